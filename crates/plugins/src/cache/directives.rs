//! Directives of `Cache-Control` (RFC 9111 section 5.2).

/// The directives of a message that a shared cache goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) only_if_cached: bool,
    /// Seconds.
    pub(crate) max_age: Option<u64>,
    /// Seconds.
    pub(crate) s_maxage: Option<u64>,
    /// Seconds; the largest number where the directive has none.
    pub(crate) max_stale: Option<u64>,
    /// Seconds.
    pub(crate) min_fresh: Option<u64>,
    /// Seconds (RFC 5861 section 4).
    pub(crate) stale_if_error: Option<u64>,
    /// Seconds (RFC 5861 section 3).
    pub(crate) stale_while_revalidate: Option<u64>,
}

impl Directives {
    /// Reads the values of all `Cache-Control` fields of a message. A directive with a broken number is one with 0, so that
    /// nothing is used for longer than its sender wants (section 4.2.1).
    pub(crate) fn read<'v>(values: impl Iterator<Item = &'v [u8]>) -> Self {
        let mut read = Self::default();
        for value in values {
            Parts(value).for_each(|part| read.add(part));
        }
        read
    }

    fn add(&mut self, part: &[u8]) {
        let (name, argument) = match part.iter().position(|byte| *byte == b'=') {
            Some(at) => (part.get(..at).unwrap_or_default(), part.get(at + 1..)),
            None => (part, None),
        };
        let name = weir_wire::trim_ows(name);
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let seconds = || Some(argument.and_then(seconds).unwrap_or(0));
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            // With names of fields it forbids only these; treating it as a whole is allowed (section 5.2.2.4).
            self.no_cache = true;
        } else if is("private") {
            self.private = true;
        } else if is("public") {
            self.public = true;
        } else if is("must-revalidate") || is("proxy-revalidate") {
            self.must_revalidate = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        } else if is("max-age") {
            self.max_age = self.max_age.or_else(seconds);
        } else if is("s-maxage") {
            self.s_maxage = self.s_maxage.or_else(seconds);
        } else if is("max-stale") {
            self.max_stale = Some(argument.map_or(u64::MAX, |argument| self::seconds(argument).unwrap_or(0)));
        } else if is("min-fresh") {
            self.min_fresh = self.min_fresh.or_else(seconds);
        } else if is("stale-if-error") {
            self.stale_if_error = self.stale_if_error.or_else(seconds);
        } else if is("stale-while-revalidate") {
            self.stale_while_revalidate = self.stale_while_revalidate.or_else(seconds);
        }
    }
}

/// The number of a directive, which may stand in quotes. One that is too large is the largest (section 1.2.2).
pub(crate) fn seconds(argument: &[u8]) -> Option<u64> {
    let digits = weir_wire::trim_ows(argument);
    let digits = digits.strip_prefix(b"\"").and_then(|digits| digits.strip_suffix(b"\"")).unwrap_or(digits);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

/// The parts of a list between commas, those in quotes left aside.
pub(crate) struct Parts<'v>(pub(crate) &'v [u8]);

impl<'v> Iterator for Parts<'v> {
    type Item = &'v [u8];

    fn next(&mut self) -> Option<&'v [u8]> {
        loop {
            if self.0.is_empty() {
                return None;
            }
            let (mut is_quoted, mut is_escaped) = (false, false);
            let end = self.0.iter().position(|byte| {
                let ends = *byte == b',' && !is_quoted;
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' if is_quoted => is_escaped = true,
                    b'"' => is_quoted = !is_quoted,
                    _ => {}
                }
                ends
            });
            let end = end.unwrap_or(self.0.len());
            let part = weir_wire::trim_ows(self.0.get(..end).unwrap_or_default());
            self.0 = self.0.get(end + 1..).unwrap_or_default();
            if !part.is_empty() {
                return Some(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Directives, Parts};

    #[test]
    fn directives_are_read_as_the_specification_has_them() {
        let read = |text: &str| Directives::read(std::iter::once(text.as_bytes()));
        let none = Directives::default();
        for (text, expected) in [
            ("", none),
            ("max-age=60", Directives { max_age: Some(60), ..none }),
            ("Max-Age=60, s-maxage=\"5\"", Directives { max_age: Some(60), s_maxage: Some(5), ..none }),
            ("max-age=60, max-age=5", Directives { max_age: Some(60), ..none }),
            ("max-age=-1", Directives { max_age: Some(0), ..none }),
            ("max-age", Directives { max_age: Some(0), ..none }),
            ("max-age=99999999999999999999999", Directives { max_age: Some(u64::MAX), ..none }),
            ("private=\"a, no-store\", no-cache", Directives { private: true, no_cache: true, ..none }),
            ("NO-STORE,, public", Directives { no_store: true, public: true, ..none }),
            ("max-stale, min-fresh=1", Directives { max_stale: Some(u64::MAX), min_fresh: Some(1), ..none }),
            ("stale-while-revalidate=8", Directives { stale_while_revalidate: Some(8), ..none }),
            ("stale-if-error=9", Directives { stale_if_error: Some(9), ..none }),
            ("max-stale=x", Directives { max_stale: Some(0), ..none }),
            ("only-if-cached, proxy-revalidate", Directives { only_if_cached: true, must_revalidate: true, ..none }),
            ("xno-store", none),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let parts: Vec<_> = Parts(br#"a, "b, \", c" ,,d"#).collect();
        assert_eq!(parts, [&b"a"[..], br#""b, \", c""#, b"d"]);
    }
}
