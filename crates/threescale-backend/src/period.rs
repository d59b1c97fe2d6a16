//! Periods of limits: those of the calendar in UTC, and eternity. Times are milliseconds since 1970.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A period, from the longest to the shortest: the order of usage reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Period {
    Eternity,
    Year,
    Month,
    /// From Monday on.
    Week,
    Day,
    Hour,
    Minute,
}

/// End of eternity, the 31st of December 9999.
const END: u64 = 253_402_214_400_000;

impl Period {
    /// All periods.
    pub(crate) const ALL: [Self; 7] =
        [Self::Eternity, Self::Year, Self::Month, Self::Week, Self::Day, Self::Hour, Self::Minute];

    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eternity => "eternity",
            Self::Year => "year",
            Self::Month => "month",
            Self::Week => "week",
            Self::Day => "day",
            Self::Hour => "hour",
            Self::Minute => "minute",
        }
    }

    /// The period of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.name() == name)
    }

    /// The start and the end of the period in which a time lies; the end belongs to the next one.
    pub(crate) fn bounds(self, at: u64) -> (u64, u64) {
        let round = |length: u64| (at - at % length, (at - at % length).saturating_add(length));
        match self {
            Self::Minute => round(60_000),
            Self::Hour => round(3_600_000),
            Self::Day => round(86_400_000),
            Self::Eternity => (0, END),
            // A time beyond the calendar is as good as eternity.
            Self::Week | Self::Month | Self::Year => self.dates(at).unwrap_or((0, END)),
        }
    }

    fn dates(self, at: u64) -> Option<(u64, u64)> {
        let today = Offset::UTC.to_datetime(timestamp(at)?).date();
        let (first, next) = match self {
            Self::Year => (today.first_of_year(), today.first_of_year().checked_add(1.year())),
            Self::Month => (today.first_of_month(), today.first_of_month().checked_add(1.month())),
            _ => {
                let since_monday = i64::from(today.weekday().to_monday_zero_offset());
                let monday = today.checked_sub(since_monday.days()).ok()?;
                (monday, monday.checked_add(7.days()))
            }
        };
        Some((millis(first)?, millis(next.ok()?)?))
    }
}

fn timestamp(at: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()
}

fn millis(date: Date) -> Option<u64> {
    let time = Offset::UTC.to_timestamp(date.to_datetime(Time::midnight())).ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

/// A time as usage reports show it.
pub(crate) fn format(at: u64) -> String {
    timestamp(at).map(|time| time.strftime("%Y-%m-%d %H:%M:%S +0000").to_string()).unwrap_or_default()
}

/// Reads the time of a transaction: seconds since 1970, or a date, with a time of day and an offset if there is more.
/// `None` for any other text, whose transaction counts now.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<i64>() {
        return seconds.checked_mul(1000);
    }
    let text = text.replace('/', "-");
    let (date, rest) = text.split_at_checked(10)?;
    let date: Date = date.parse().ok()?;
    let rest = rest.trim_start_matches(['T', ' ']);
    let (clock, offset) = match rest.find(['+', '-', 'Z', 'U', ' ']) {
        Some(at) => rest.split_at_checked(at)?,
        None => (rest, ""),
    };
    let clock: Time = match clock {
        "" => Time::midnight(),
        clock => clock.parse().ok()?,
    };
    let local = Offset::UTC.to_timestamp(date.to_datetime(clock)).ok()?.as_millisecond();
    local.checked_sub(offset_of(offset.trim())?)
}

/// Milliseconds of an offset: `+0200`, `-02:00`, `UTC`, `Z` or nothing.
fn offset_of(text: &str) -> Option<i64> {
    if matches!(text, "" | "Z" | "UTC") {
        return Some(0);
    }
    let sign = match text.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    let digits: String = text.chars().skip(1).filter(|c| *c != ':').collect();
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes = if minutes.is_empty() { "0" } else { minutes };
    let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
    (hours <= 24 && minutes < 60).then(|| sign * (i64::from(hours) * 60 + i64::from(minutes)) * 60_000)
}

#[cfg(test)]
mod tests {
    use super::{Period, format, parse};

    fn at(text: &str) -> u64 {
        text.parse::<jiff::Timestamp>().expect("a time").as_millisecond() as u64
    }

    #[test]
    fn periods_are_those_of_the_calendar() {
        for (now, period, start, end) in [
            ("2026-11-23T12:34:56.789Z", Period::Minute, "2026-11-23 12:34:00 +0000", "2026-11-23 12:35:00 +0000"),
            ("2026-11-23T12:34:56.789Z", Period::Hour, "2026-11-23 12:00:00 +0000", "2026-11-23 13:00:00 +0000"),
            ("2026-11-23T12:34:56.789Z", Period::Day, "2026-11-23 00:00:00 +0000", "2026-11-24 00:00:00 +0000"),
            // A Monday, and the Sunday after it.
            ("2026-11-23T00:00:00Z", Period::Week, "2026-11-23 00:00:00 +0000", "2026-11-30 00:00:00 +0000"),
            ("2026-11-29T23:59:59.999Z", Period::Week, "2026-11-23 00:00:00 +0000", "2026-11-30 00:00:00 +0000"),
            ("2026-12-31T23:59:59Z", Period::Month, "2026-12-01 00:00:00 +0000", "2027-01-01 00:00:00 +0000"),
            ("2028-02-29T01:00:00Z", Period::Year, "2028-01-01 00:00:00 +0000", "2029-01-01 00:00:00 +0000"),
        ] {
            let (from, to) = period.bounds(at(now));
            assert_eq!((format(from).as_str(), format(to).as_str()), (start, end), "{now} {period:?}");
        }
        // The 31st of December 9999 at midnight.
        assert_eq!(Period::Eternity.bounds(at("2028-02-29T01:00:00Z")), (0, 253_402_214_400_000));
        assert_eq!(Period::Month.bounds(u64::MAX), Period::Eternity.bounds(0));
    }

    #[test]
    fn times_of_transactions_are_read_as_they_are_written() {
        for (text, expected) in [
            ("1271980765", Some("2010-04-22T23:59:25Z")),
            ("2010-04-22 23:59:25 UTC", Some("2010-04-22T23:59:25Z")),
            ("2010-04-22 23:55:45 +0200", Some("2010-04-22T21:55:45Z")),
            ("2010-04-22 21:00:25 -02:00", Some("2010-04-22T23:00:25Z")),
            ("2010-04-22T21:00:25.5Z", Some("2010-04-22T21:00:25.5Z")),
            ("2012/10/01", Some("2012-10-01T00:00:00Z")),
            (" 2012-10-01 10:11:12 ", Some("2012-10-01T10:11:12Z")),
            ("2012garbage2012", None),
            ("", None),
            ("2012-13-01", None),
            ("2012-10-01 25:00:00", None),
            ("2012-10-01 10:00:00 +99", None),
        ] {
            assert_eq!(parse(text), expected.map(|time| at(time) as i64), "{text:?}");
        }
        assert_eq!(parse("-5"), Some(-5000));
    }
}
