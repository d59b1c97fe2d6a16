//! Windows of the calendar, and a counter for one of them.

use portable_atomic::AtomicU128;
use portable_atomic::Ordering::{AcqRel, Acquire};

use crate::traffic::table::Entry;

/// Length of a window. Times are milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kong) enum Period {
    Second = 1,
    Minute,
    Hour,
    Day,
    Month,
    Year,
}

impl Period {
    /// All of them, the shortest first.
    pub(in crate::kong) const ALL: [Self; 6] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year];

    /// The name in a configuration.
    pub(in crate::kong) const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Milliseconds for which a counter in Redis is kept, as in Kong.
    pub(super) const fn expiry(self) -> u64 {
        match self {
            Self::Second => 1000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
            Self::Month => 2_592_000_000,
            Self::Year => 31_536_000_000,
        }
    }

    /// Names of the fields that tell the limit and what is left.
    pub(super) const fn field_names(self) -> [&'static str; 2] {
        match self {
            Self::Second => ["X-RateLimit-Limit-Second", "X-RateLimit-Remaining-Second"],
            Self::Minute => ["X-RateLimit-Limit-Minute", "X-RateLimit-Remaining-Minute"],
            Self::Hour => ["X-RateLimit-Limit-Hour", "X-RateLimit-Remaining-Hour"],
            Self::Day => ["X-RateLimit-Limit-Day", "X-RateLimit-Remaining-Day"],
            Self::Month => ["X-RateLimit-Limit-Month", "X-RateLimit-Remaining-Month"],
            Self::Year => ["X-RateLimit-Limit-Year", "X-RateLimit-Remaining-Year"],
        }
    }

    /// Beginning and end of the window around a point in time.
    pub(in crate::kong) fn around(self, now: u64) -> (u64, u64) {
        const DAY: u64 = 86_400_000;
        let length = match self {
            Self::Second => 1000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => DAY,
            Self::Month | Self::Year => {
                let (year, month) = date(now / DAY);
                let (first, next) = match self {
                    Self::Year => ((year, 1), (year + 1, 1)),
                    _ if month == 12 => ((year, 12), (year + 1, 1)),
                    _ => ((year, month), (year, month + 1)),
                };
                return (days(first) * DAY, days(next) * DAY);
            }
        };
        let begin = now - now % length;
        (begin, begin + length)
    }
}

/// Days from 1970 to the first of a month.
fn days((year, month): (u64, u64)) -> u64 {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let whole = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    let within = BEFORE.get(month as usize - 1).copied().unwrap_or_default();
    whole + within + u64::from(month > 2 && is_leap(year))
}

/// Year and month of a day, counted from 1970.
fn date(day: u64) -> (u64, u64) {
    let mut year = 1970 + day / 366;
    while days((year + 1, 1)) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days((year, *month)) <= day).unwrap_or(1);
    (year, month)
}

/// Requests of one key in one window, in a word that changes as a whole: the end of the window and the count, 64 bits
/// each.
#[derive(Debug)]
pub(in crate::kong) struct Counter(AtomicU128);

/// Marks a counter that is being taken out of its table.
const DEAD: u128 = u128::MAX;

const fn unpack(word: u128) -> (u64, u64) {
    ((word >> 64) as u64, word as u64)
}

impl Counter {
    /// Requests in the window that began then.
    pub(in crate::kong) fn used(&self, begin: u64) -> u64 {
        let word = self.0.load(Acquire);
        let (end, count) = unpack(word);
        if word == DEAD || end <= begin { 0 } else { count }
    }

    /// Counts a request unless `limit` are counted. The result is `None` when the counter is dead, and its value the number
    /// of requests with this one, or `None` when the limit is reached.
    pub(in crate::kong) fn take(&self, begin: u64, end: u64, limit: u64) -> Option<Option<u64>> {
        let mut word = self.0.load(Acquire);
        loop {
            if word == DEAD {
                return None;
            }
            let (held_end, held) = unpack(word);
            let count = if held_end <= begin { 0 } else { held };
            if count >= limit {
                return Some(None);
            }
            let next = u128::from(end) << 64 | u128::from(count + 1);
            match self.0.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return Some(Some(count + 1)),
                Err(now_there) => word = now_there,
            }
        }
    }
}

impl Counter {
    /// Counts so many units, whatever the limit. `None`: the counter is dead.
    pub(in crate::kong) fn add(&self, begin: u64, end: u64, units: u64) -> Option<()> {
        let mut word = self.0.load(Acquire);
        loop {
            if word == DEAD {
                return None;
            }
            let (held_end, held) = unpack(word);
            let count = if held_end <= begin { 0 } else { held };
            let next = u128::from(end) << 64 | u128::from(count.saturating_add(units));
            match self.0.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return Some(()),
                Err(now_there) => word = now_there,
            }
        }
    }
}

impl Entry for Counter {
    fn unused() -> Self {
        Self(AtomicU128::new(0))
    }

    fn retire(&self, now: u64, _: u64) -> bool {
        let word = self.0.load(Acquire);
        word != DEAD && now >= unpack(word).0 && self.0.compare_exchange(word, DEAD, AcqRel, Acquire).is_ok()
    }

    fn is_dead(&self) -> bool {
        self.0.load(Acquire) == DEAD
    }
}

#[cfg(test)]
mod tests {
    use super::{Counter, Period};
    use crate::traffic::table::Entry;

    #[test]
    fn windows_are_those_of_the_calendar() {
        // 2026-11-23T23:18:16.054Z, and the last second of February 2028.
        for (period, now, begin, end) in [
            (Period::Second, 1_795_475_896_054, 1_795_475_896_000, 1_795_475_897_000),
            (Period::Minute, 1_795_475_896_054, 1_795_475_880_000, 1_795_475_940_000),
            (Period::Hour, 1_795_475_896_054, 1_795_474_800_000, 1_795_478_400_000),
            (Period::Day, 1_795_475_896_054, 1_795_392_000_000, 1_795_478_400_000),
            (Period::Month, 1_795_475_896_054, 1_793_491_200_000, 1_796_083_200_000),
            (Period::Year, 1_795_475_896_054, 1_767_225_600_000, 1_798_761_600_000),
            (Period::Month, 1_835_481_599_000, 1_832_976_000_000, 1_835_481_600_000),
        ] {
            assert_eq!(period.around(now), (begin, end), "{period:?} {now}");
        }
    }

    #[test]
    fn a_counter_counts_up_to_its_limit() {
        let counter = Counter::unused();
        assert_eq!([1, 2, 3].map(|_| counter.take(0, 10, 2)), [Some(Some(1)), Some(Some(2)), Some(None)]);
        assert_eq!((counter.used(0), counter.used(10)), (2, 0));
        assert_eq!(counter.take(10, 20, 2), Some(Some(1)), "the next window");
        assert!(!counter.retire(19, 0) && counter.retire(20, 0));
        assert_eq!(counter.take(20, 30, 2), None);
    }
}
