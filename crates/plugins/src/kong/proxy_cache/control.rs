//! Directives of `Cache-Control` (RFC 9111 section 5.2).

/// Directives of a request or a response. Numbers are seconds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    pub(super) only_if_cached: bool,
    pub(super) max_age: Option<u64>,
    pub(super) s_maxage: Option<u64>,
    /// Seconds past its end for which a response is taken; any number of them for a directive without one.
    pub(super) max_stale: Option<u64>,
    pub(super) min_fresh: Option<u64>,
}

impl Control {
    pub(super) fn parse(field: &[u8]) -> Self {
        let mut control = Self::default();
        for directive in field.split(|b| *b == b',').map(weir_wire::trim_ows) {
            let end = directive.iter().position(|b| *b == b'=').unwrap_or(directive.len());
            let (name, value) = directive.split_at(end);
            let value = value.strip_prefix(b"=").map(|value| value.trim_ascii());
            let value =
                value.map(|value| value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value));
            let seconds = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            match &*name.to_ascii_lowercase() {
                b"no-store" => control.no_store = true,
                b"no-cache" => control.no_cache = true,
                b"private" => control.private = true,
                b"only-if-cached" => control.only_if_cached = true,
                // A number that cannot be read is the strictest one.
                b"max-age" => control.max_age = Some(seconds.unwrap_or(0)),
                b"s-maxage" => control.s_maxage = Some(seconds.unwrap_or(0)),
                b"max-stale" => control.max_stale = Some(seconds.unwrap_or(if value.is_none() { u64::MAX } else { 0 })),
                b"min-fresh" => control.min_fresh = Some(seconds.unwrap_or(u64::MAX)),
                _ => {}
            }
        }
        control
    }
}

#[cfg(test)]
mod tests {
    use super::Control;

    #[test]
    fn directives_are_read() {
        let control = Control { no_store: true, max_age: Some(60), ..Control::default() };
        assert_eq!(Control::parse(b"No-Store, max-age=60 ,x=1"), control);
        assert_eq!(Control::parse(b"max-age=\"5\"").max_age, Some(5));
        assert_eq!(Control::parse(b"max-age=many").max_age, Some(0));
        assert_eq!(Control::parse(b"max-stale").max_stale, Some(u64::MAX));
        assert_eq!(Control::parse(b""), Control::default());
    }
}
