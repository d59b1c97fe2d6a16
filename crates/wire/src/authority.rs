//! Host and authority (RFC 9110 section 4.2, RFC 3986 section 3.2), checked strictly.

use crate::Reject;

/// A checked authority: host and port as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Host; an IPv6 literal includes its brackets.
    pub host: &'a [u8],
    /// Port, if one was given.
    pub port: Option<u16>,
}

/// Checks `host[:port]` without user information.
///
/// # Errors
/// An empty host, a byte that no registered name or IP literal may hold, or a port above 65535.
pub fn parse(value: &[u8]) -> Result<Authority<'_>, Reject> {
    const INVALID: Reject = Reject::bad("invalid Host");
    let (host, rest) = if value.first() == Some(&b'[') {
        let end = memchr::memchr(b']', value).ok_or(INVALID)?;
        let (host, rest) = value.split_at(end + 1);
        let literal = host.get(1..end).unwrap_or_default();
        let text = std::str::from_utf8(literal).map_err(|_| INVALID)?;
        text.parse::<std::net::Ipv6Addr>().map_err(|_| INVALID)?;
        (host, rest)
    } else {
        value.split_at(name_end(value)?)
    };
    let port = match rest {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(parse_port(digits).ok_or(INVALID)?),
        _ => return Err(INVALID),
    };
    Ok(Authority { host, port })
}

/// Bytes allowed unencoded in a registered name: unreserved and sub-delims (RFC 3986 section 3.2.2).
const PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = matches!(b as u8, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~'
            | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=');
        b += 1;
    }
    table
};

/// Finds the end of a registered name or IPv4 address: at a colon or at the end of the value. Percent-encoding is
/// allowed.
fn name_end(value: &[u8]) -> Result<usize, Reject> {
    let mut end = 0;
    loop {
        let rest = value.get(end..).unwrap_or_default();
        end += rest.iter().position(|b| !PLAIN[usize::from(*b)]).unwrap_or(rest.len());
        match value.get(end..).unwrap_or_default() {
            [] | [b':', ..] if end == 0 => return Err(Reject::bad("empty Host")),
            [] | [b':', ..] => return Ok(end),
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => end += 3,
            _ => return Err(Reject::bad("invalid Host")),
        }
    }
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 {
        return None;
    }
    let mut port = 0u32;
    for b in digits {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        port = port * 10 + u32::from(digit);
    }
    u16::try_from(port).ok()
}

#[cfg(test)]
mod tests {
    use super::{Authority, parse};

    #[test]
    fn accepts_what_rfc_3986_allows() {
        for (text, host, port) in [
            ("a.test", "a.test", None),
            ("A.test:80", "A.test", Some(80)),
            ("a.test:", "a.test", None),
            ("a%20b", "a%20b", None),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("[::1]", "[::1]", None),
            ("[2001:db8::1]:8080", "[2001:db8::1]", Some(8080)),
            ("a,b", "a,b", None),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(Authority { host: host.as_bytes(), port }), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "", ":80", "a b", "a/b", "u@a", "a#b", "a?b", "a:80x", "a:80:90", "[::1", "[::1]x", "[zz]", "a:65536",
            "a:999999", "\"a\"", "<a>", "a\\b", "a\u{e9}", "a%2", "a%zz", "a\tb", "[]",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
