//! Lifetimes of responses in a shared cache (RFC 9111 sections 3 and 4.2).

use super::directives::Directives;

/// Largest lifetime: a year.
const LONGEST: u64 = 366 * 24 * 3600;

/// Fields of a response that its lifetime follows from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lifetime<'r> {
    pub(crate) directives: Directives,
    pub(crate) expires: Option<&'r [u8]>,
    pub(crate) date: Option<&'r [u8]>,
}

impl Lifetime<'_> {
    /// Seconds for which the response is fresh by its own fields: `s-maxage`, `max-age`, then `Expires` after `Date`.
    /// `None`: they say nothing.
    pub(crate) fn seconds(&self, unix_seconds: u64) -> Option<u64> {
        let date = weir_wire::date::parse;
        let told = self.directives.s_maxage.or(self.directives.max_age);
        let until = || {
            // An `Expires` that cannot be read is in the past (section 5.3).
            let Some(expires) = date(self.expires?) else { return Some(0) };
            let begin = self.date.and_then(date).unwrap_or(unix_seconds);
            Some(expires.saturating_sub(begin))
        };
        told.or_else(until).map(|seconds| seconds.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::{Directives, Lifetime};

    #[test]
    fn lifetimes_follow_from_the_first_that_says_something() {
        let life = |control: &str, expires: Option<&'static str>, date: Option<&'static str>| {
            let directives = Directives::read(std::iter::once(control.as_bytes()));
            let bytes = |text: Option<&'static str>| text.map(str::as_bytes);
            Lifetime { directives, expires: bytes(expires), date: bytes(date) }.seconds(784_111_777)
        };
        let (later, now) = ("Sun, 06 Nov 1994 08:51:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (control, expires, date, seconds) in [
            ("", None, None, None),
            ("max-age=5", Some(later), None, Some(5)),
            ("max-age=5, s-maxage=7", None, None, Some(7)),
            ("", Some(later), Some(now), Some(120)),
            ("", Some(later), None, Some(120)),
            ("", Some(now), Some(later), Some(0)),
            ("", Some("0"), None, Some(0)),
            ("max-age=999999999999", None, None, Some(366 * 24 * 3600)),
        ] {
            assert_eq!(life(control, expires, date), seconds, "{control} {expires:?} {date:?}");
        }
    }
}
