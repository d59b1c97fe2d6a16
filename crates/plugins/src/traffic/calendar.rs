//! Periods of the calendar, in UTC.

use jiff::civil::{DateTime, Time};
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};
use weir_config::Period;

/// Milliseconds until the period ends in which a time lies, both from 1970 on; at least 1. `None`: the calendar does not
/// reach so far.
pub(crate) fn left(period: Period, unix_ms: u64) -> Option<u64> {
    let round = |length: u64| Some(length - unix_ms % length);
    match period {
        Period::Second => return round(1000),
        Period::Minute => return round(60_000),
        Period::Hour => return round(3_600_000),
        Period::Day => return round(86_400_000),
        Period::Week | Period::Month | Period::Year => {}
    }
    let now = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    let today = Offset::UTC.to_datetime(now).date();
    let next = match period {
        Period::Month => today.first_of_month().checked_add(1.month()),
        Period::Year => today.first_of_year().checked_add(1.year()),
        _ => today.checked_add((7 - i64::from(today.weekday().to_monday_zero_offset())).days()),
    };
    let end = Offset::UTC.to_timestamp(DateTime::from_parts(next.ok()?, Time::midnight())).ok()?;
    u64::try_from(end.as_millisecond()).ok()?.checked_sub(unix_ms)
}

#[cfg(test)]
mod tests {
    use super::left;
    use jiff::Timestamp;
    use weir_config::Period;

    #[test]
    fn periods_end_with_the_calendar() {
        for (now, period, end) in [
            ("2026-11-23T12:34:56.789Z", Period::Second, "2026-11-23T12:34:57Z"),
            ("2026-11-23T12:34:56.789Z", Period::Minute, "2026-11-23T12:35:00Z"),
            ("2026-11-23T12:34:56.789Z", Period::Hour, "2026-11-23T13:00:00Z"),
            ("2026-11-23T12:34:56.789Z", Period::Day, "2026-11-24T00:00:00Z"),
            // A Monday, and the Sunday after it.
            ("2026-11-23T00:00:00Z", Period::Week, "2026-11-30T00:00:00Z"),
            ("2026-11-29T23:59:59.999Z", Period::Week, "2026-11-30T00:00:00Z"),
            ("2026-11-30T00:00:00Z", Period::Month, "2026-12-01T00:00:00Z"),
            ("2026-12-01T00:00:00Z", Period::Month, "2027-01-01T00:00:00Z"),
            ("2028-02-29T01:00:00Z", Period::Month, "2028-03-01T00:00:00Z"),
            ("2028-02-29T01:00:00Z", Period::Year, "2029-01-01T00:00:00Z"),
        ] {
            let at = |text: &str| text.parse::<Timestamp>().expect("a time").as_millisecond() as u64;
            assert_eq!(left(period, at(now)), Some(at(end) - at(now)), "{now} {period:?}");
        }
        assert_eq!(left(Period::Month, u64::MAX), None);
    }
}
