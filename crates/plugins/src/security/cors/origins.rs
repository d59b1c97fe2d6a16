//! Allowed origins.

use weir_plugin::Invalid;

use crate::pattern::Patterns;

/// Origins that are allowed.
#[derive(Debug)]
pub(super) enum Origins {
    /// All, without a difference: `*`.
    Any,
    /// All, each answered with its own name: `**`.
    Each,
    /// These, in order.
    Listed(Box<[Box<[u8]>]>),
    /// Those in which an expression matches.
    Matching(Patterns),
}

impl Origins {
    /// Reads `*`, `**`, or origins separated by commas; `path` is where the text stands.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, Invalid> {
        match text {
            "*" => return Ok(Self::Any),
            "**" => return Ok(Self::Each),
            _ => {}
        }
        let mut listed = Vec::new();
        for origin in text.split(',').map(str::trim) {
            if !is_origin(origin) {
                let message = format!(
                    "expected *, ** or origins such as https://example.com, separated by commas, found {text:?}"
                );
                return Err(Invalid::new(path, message));
            }
            listed.push(origin.as_bytes().into());
        }
        listed.sort_unstable();
        Ok(Self::Listed(listed.into()))
    }

    /// The value of the answer's field for this origin; `None`: it is not allowed.
    pub(super) fn allowed<'a>(&self, origin: Option<&'a [u8]>) -> Option<&'a [u8]> {
        match self {
            Self::Any => Some(b"*"),
            // Without an origin nobody is given anything that he could not have anyway.
            Self::Each => Some(origin.unwrap_or(b"*")),
            Self::Listed(listed) => {
                origin.filter(|origin| listed.binary_search_by(|known| (**known).cmp(origin)).is_ok())
            }
            Self::Matching(patterns) => origin.filter(|origin| patterns.is_match(origin)),
        }
    }

    /// True if answers to different origins differ.
    pub(super) fn depends_on_origin(&self) -> bool {
        !matches!(self, Self::Any)
    }
}

/// `null`, or a scheme and an authority.
fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return text == "null" };
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'+' | b'-' | b'.');
    !scheme.is_empty() && scheme.bytes().all(word) && !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic())
}

/// One of the origins in a text that no browser ever sends (RFC 6454 section 6.2).
pub(super) fn never_sent(text: &str) -> Option<&str> {
    text.split(',').map(str::trim).find(|origin| {
        let authority = origin.split_once("://").map(|(_, rest)| rest);
        authority.is_some_and(|a| a.contains(['/', '?', '#']) || a.bytes().any(|b| b.is_ascii_uppercase()))
    })
}

/// All that is configured about origins.
#[derive(Debug)]
pub(super) struct Policy {
    /// Those that the metadata has under the names in the configuration.
    pub(super) named: Box<[Origins]>,
    /// Those of the configuration itself.
    pub(super) own: Option<Origins>,
}

impl Policy {
    /// The value of the answer's field for this origin; `None`: it is not allowed.
    pub(super) fn allowed<'a>(&self, origin: Option<&'a [u8]>) -> Option<&'a [u8]> {
        let named = origin.filter(|_| self.named.iter().any(|origins| origins.allowed(origin).is_some()));
        named.or_else(|| self.own.as_ref()?.allowed(origin))
    }

    /// True if answers to different origins differ.
    pub(super) fn depends_on_origin(&self) -> bool {
        !self.named.is_empty() || self.own.as_ref().is_none_or(Origins::depends_on_origin)
    }
}

#[cfg(test)]
mod tests {
    use super::{Origins, never_sent};

    #[test]
    fn origins_are_allowed() {
        for (text, origin, allowed) in [
            ("*", Some("http://a.test"), Some("*")),
            ("*", None, Some("*")),
            ("**", Some("http://a.test"), Some("http://a.test")),
            ("**", None, Some("*")),
            ("http://a.test", Some("http://a.test"), Some("http://a.test")),
            ("http://a.test", Some("http://a.test:80"), None),
            ("http://a.test", Some("https://a.test"), None),
            ("http://a.test", Some("http://a.test.evil"), None),
            ("http://a.test", None, None),
            ("http://b.test, http://a.test,http://c.test", Some("http://c.test"), Some("http://c.test")),
            ("null", Some("null"), Some("null")),
            ("http://a.test", Some("null"), None),
            ("http://a.test", Some(""), None),
        ] {
            let origins = Origins::parse("", text).unwrap();
            assert_eq!(origins.allowed(origin.map(str::as_bytes)), allowed.map(str::as_bytes), "{text} {origin:?}");
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in
            ["", "a.test", "*,http://a.test", "http://", "://a", "http://a.test,", "http://a b", "http://a\r\nb"]
        {
            assert!(Origins::parse("", text).is_err(), "{text:?}");
        }
        for (text, odd) in [
            ("http://a.test/,http://b.test", Some("http://a.test/")),
            ("http://a.test,http://B.test", Some("http://B.test")),
            ("http://a.test,null", None),
            ("*", None),
        ] {
            assert_eq!(never_sent(text), odd);
        }
    }
}
