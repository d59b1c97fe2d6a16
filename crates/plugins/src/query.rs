//! Query arguments as forms send them: percent encoding and `+` for a space.

/// The first argument whose decoded name is `name`: its value as received.
pub(crate) fn argument<'a>(query: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    query.split(|b| *b == b'&').map(split).find(|(n, _)| is_name(n, name)).map(|(_, value)| value)
}

/// Whether `argument`, as received, carries this name.
pub(crate) fn has_name(argument: &[u8], name: &[u8]) -> bool {
    is_name(split(argument).0, name)
}

/// The name of an argument, as received.
pub(crate) fn name(argument: &[u8]) -> &[u8] {
    split(argument).0
}

/// The value of an argument, as received.
pub(crate) fn value(argument: &[u8]) -> &[u8] {
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

/// Whether decoding would change nothing.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    !text.iter().any(|b| matches!(b, b'%' | b'+'))
}

/// Appends the decoded text.
pub(crate) fn decode(text: &[u8], out: &mut Vec<u8>) {
    out.extend(decoded(text));
}

/// The decoded bytes; a `%` that two hexadecimal digits do not follow stands for itself, as in nginx.
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
    use super::{argument, decode, has_name};

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
