//! Query arguments in the encoding of forms: percent-encoding, and `+` for a space.

/// Value as received of the first argument whose decoded name is `name`.
#[must_use]
pub fn argument<'a>(query: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    query.split(|b| *b == b'&').map(split).find(|(n, _)| is_name(n, name)).map(|(_, value)| value)
}

/// True if `argument`, as received, has this name.
#[must_use]
pub fn has_name(argument: &[u8], name: &[u8]) -> bool {
    is_name(split(argument).0, name)
}

/// Name of an argument, as received.
#[must_use]
pub fn name(argument: &[u8]) -> &[u8] {
    split(argument).0
}

/// Value of an argument, as received.
#[must_use]
pub fn value(argument: &[u8]) -> &[u8] {
    split(argument).1
}

/// Name and value; an argument without `=` has an empty value.
fn split(argument: &[u8]) -> (&[u8], &[u8]) {
    match argument.iter().position(|b| *b == b'=') {
        Some(at) => (argument.get(..at).unwrap_or_default(), argument.get(at + 1..).unwrap_or_default()),
        None => (argument, &[]),
    }
}

fn is_name(received: &[u8], name: &[u8]) -> bool {
    received == name || (!is_plain(received) && decoded(received).eq(name.iter().copied()))
}

/// True if decoding the text would not change it.
#[must_use]
pub fn is_plain(text: &[u8]) -> bool {
    memchr::memchr2(b'%', b'+', text).is_none()
}

/// Decoded argument of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// Argument without `=`.
    Flag,
    /// Value after `=`.
    Value(&'a [u8]),
}

impl<'a> Argument<'a> {
    /// The value; empty without `=`.
    #[must_use]
    pub const fn text(self) -> &'a [u8] {
        match self {
            Self::Flag => b"",
            Self::Value(value) => value,
        }
    }
}

/// Finds the first argument whose decoded name is `name`. `decoded` is the result of [`decode`] for the query, or the
/// query itself if it is plain.
pub fn find<'a>(query: &[u8], decoded: &'a [u8], name: &[u8]) -> Option<Argument<'a>> {
    // Pairs have the same order in the decoded query, are also separated by one byte, and are shorter by their
    // escapes.
    let same = query.len() == decoded.len();
    let len = |received: &[u8]| if same { received.len() } else { self::decoded(received).count() };
    let mut at = 0;
    query.split(|b| *b == b'&').find_map(|pair| {
        let text = decoded.get(at..at + len(pair))?;
        at += text.len() + 1;
        let value = text.strip_prefix(name)?;
        // A `=` after the name may have been encoded, and then belongs to a longer name.
        (len(split(pair).0) == name.len()).then(|| value.get(1..).map_or(Argument::Flag, Argument::Value))
    })
}

/// All arguments in order, with their decoded names. `decoded` is the result of [`decode`] for the query, or the query
/// itself if it is plain.
pub fn all<'a>(query: &'a [u8], decoded: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Argument<'a>)> {
    let same = query.len() == decoded.len();
    let len = move |received: &[u8]| if same { received.len() } else { self::decoded(received).count() };
    let mut at = 0;
    query.split(|b| *b == b'&').filter_map(move |pair| {
        let text = decoded.get(at..at + len(pair))?;
        at += text.len() + 1;
        let end = len(split(pair).0);
        Some((text.get(..end)?, text.get(end + 1..).map_or(Argument::Flag, Argument::Value)))
    })
}

/// Appends a text encoded for use in an argument's name or value.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    for &b in text {
        if matches!(b, 0..=0x20 | 0x7f.. | b'#' | b'%' | b'&' | b'+' | b'=') {
            crate::target::push_escape(out, b);
        } else {
            out.push(b);
        }
    }
}

/// Appends the decoded text.
pub fn decode(text: &[u8], out: &mut Vec<u8>) {
    out.extend(decoded(text));
}

/// Decoded bytes. A `%` without two hexadecimal digits after it is kept, as in nginx.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, len) = match rest {
            [] => return None,
            [b'%', high, low, ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'%', 1),
            },
            [b'+', ..] => (b' ', 1),
            [byte, ..] => (*byte, 1),
        };
        rest = rest.get(len..).unwrap_or_default();
        Some(byte)
    })
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    use super::{Argument, all, argument, decode, encode, find, has_name, is_plain};

    #[test]
    fn all_arguments_come_in_order() {
        for (query, pairs) in [
            ("a=1&b=2&a", vec![("a", Some("1")), ("b", Some("2")), ("a", None)]),
            ("%61=%3D%26&b+c=", vec![("a", Some("=&")), ("b c", Some(""))]),
            ("a%3Db=c", vec![("a=b", Some("c"))]),
            ("", vec![("", None)]),
        ] {
            let mut decoded = Vec::new();
            decode(query.as_bytes(), &mut decoded);
            let found: Vec<_> = all(query.as_bytes(), &decoded).collect();
            let value =
                |text: Option<&'static str>| text.map_or(Argument::Flag, |text| Argument::Value(text.as_bytes()));
            let expected: Vec<_> = pairs.into_iter().map(|(name, text)| (name.as_bytes(), value(text))).collect();
            assert_eq!(found, expected, "{query}");
        }
    }

    #[test]
    fn arguments_are_found_by_their_decoded_name() {
        for (query, name, value) in [
            ("a=1&b=2", "b", Some("2")),
            ("a=1&a=2", "a", Some("1")),
            ("ab=1&a=2", "a", Some("2")),
            ("a", "a", Some("")),
            ("a=b=c", "a", Some("b=c")),
            ("%61=1", "a", Some("1")),
            ("x+y=1", "x y", Some("1")),
            ("x%2by=1", "x+y", Some("1")),
            ("a%=1", "a%", Some("1")),
            ("", "a", None),
            ("", "", Some("")),
            ("b=a", "a", None),
        ] {
            assert_eq!(argument(query.as_bytes(), name.as_bytes()), value.map(str::as_bytes), "{query} {name}");
            let any = query.split('&').any(|a| has_name(a.as_bytes(), name.as_bytes()));
            assert_eq!(any, value.is_some(), "{query} {name}");
        }
    }

    #[test]
    fn decoded_arguments_are_found() {
        for (query, name, value) in [
            ("a=1&b=2", "b", Some("2")),
            ("a=1&a=2", "a", Some("1")),
            ("ab=1&a=2", "a", Some("2")),
            ("a&a=1", "a", None),
            ("a=&a=1", "a", Some("")),
            ("a=b=c", "a", Some("b=c")),
            ("admin=%74rue", "admin", Some("true")),
            ("%61dmin=true", "admin", Some("true")),
            ("x=%26&%61=p%20q+r", "a", Some("p q r")),
            ("x=%26a=1&a=2", "a", Some("2")),
            ("a%3D1=2&a=3", "a", Some("3")),
            ("a%3D1=2", "a=1", Some("2")),
            ("%61&b=%2", "a", None),
            ("%&b=%2", "b", Some("%2")),
            ("x+y=1", "x y", Some("1")),
            ("&&a=%c3%a9", "a", Some("\u{e9}")),
        ] {
            let mut decoded = Vec::new();
            decode(query.as_bytes(), &mut decoded);
            let expected = value.map_or(Argument::Flag, |value| Argument::Value(value.as_bytes()));
            assert_eq!(find(query.as_bytes(), &decoded, name.as_bytes()), Some(expected), "{query} {name}");
            if is_plain(query.as_bytes()) {
                assert_eq!(find(query.as_bytes(), query.as_bytes(), name.as_bytes()), Some(expected), "{query}");
            }
            assert_eq!(find(query.as_bytes(), &decoded, b"none"), None, "{query}");
        }
    }

    #[test]
    fn an_encoded_text_is_one_value() {
        let text = "a&b=c+d%20#\u{e9} /?";
        let mut query = b"x=".to_vec();
        encode(text.as_bytes(), &mut query);
        assert_eq!(query, b"x=a%26b%3Dc%2Bd%2520%23%C3%A9%20/?");
        let mut decoded = Vec::new();
        decode(&query, &mut decoded);
        assert_eq!(find(&query, &decoded, b"x"), Some(Argument::Value(text.as_bytes())));
    }

    #[test]
    fn values_are_decoded() {
        for (text, decoded) in
            [("a+b", "a b"), ("%41%2B", "A+"), ("%4", "%4"), ("%zz", "%zz"), ("%%41", "%A"), ("", "")]
        {
            let mut out = Vec::new();
            decode(text.as_bytes(), &mut out);
            assert_eq!(out, decoded.as_bytes(), "{text}");
        }
    }
}
