//! Client addresses as proxies report them, in `X-Forwarded-For`, `X-Real-IP` and similar fields.

use std::net::{IpAddr, SocketAddr};

/// Parses an address, optionally with a port or in brackets. IPv4-mapped IPv6 addresses become IPv4 addresses.
#[must_use]
pub fn parse(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let (addr, port) = match bare.parse::<IpAddr>() {
        Ok(addr) => (addr, None),
        Err(_) => text.parse::<SocketAddr>().ok().map(|a| (a.ip(), Some(a.port())))?,
    };
    if port == Some(0) { None } else { Some((addr.to_canonical(), port)) }
}

/// Client's address in a list to which each proxy has appended the address of its own client. The result is the last
/// address; with `recursive` it is the rightmost one that is not a trusted proxy's, or the leftmost one if all are
/// trusted.
///
/// An unreadable element ends the trustworthy part of the list: nothing to the left of it counts.
#[must_use]
pub fn client<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    recursive: bool,
    trusted: impl Fn(IpAddr) -> bool,
) -> Option<(IpAddr, Option<u16>)> {
    let mut found = None;
    for item in values.flat_map(crate::list) {
        found = match parse(item) {
            // The list is read from the left: all proxies to the right of a candidate have to be trusted.
            Some((addr, _)) if recursive && found.is_some() && trusted(addr) => found,
            read => read,
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{client, parse};

    #[test]
    fn addresses_may_have_ports_and_brackets() {
        for (text, addr, port) in [
            ("1.2.3.4", "1.2.3.4", None),
            ("1.2.3.4:80", "1.2.3.4", Some(80)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[2001:db8::1]:65535", "2001:db8::1", Some(65535)),
            ("::ffff:1.2.3.4", "1.2.3.4", None),
        ] {
            assert_eq!(parse(text.as_bytes()), Some((addr.parse().unwrap(), port)), "{text}");
        }
        for text in [
            "",
            "x",
            "1.2.3",
            "1.2.3.4:",
            "1.2.3.4:0",
            "1.2.3.4:65536",
            "[::1",
            "::1]",
            "[1.2.3.4]x",
            "a.test",
            "1.2.3.4 ",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_client_is_found_in_a_list() {
        for (values, recursive, found) in [
            (&["1.2.3.4"][..], false, Some("1.2.3.4")),
            (&["9.9.9.9, 1.2.3.4"], false, Some("1.2.3.4")),
            (&["9.9.9.9", "1.2.3.4 , 10.0.0.2"], true, Some("1.2.3.4")),
            (&["10.0.0.3, 10.0.0.2"], true, Some("10.0.0.3")),
            (&["10.0.0.3", "10.0.0.2"], false, Some("10.0.0.2")),
            (&["junk"], false, None),
            (&["1.2.3.4, junk"], true, None),
            (&["1.2.3.4, junk, 10.0.0.2"], true, Some("10.0.0.2")),
            (&["1.2.3.4, junk, 10.0.0.2, 5.6.7.8, 10.0.0.1"], true, Some("5.6.7.8")),
            (&[""], true, None),
            (&[], true, None),
        ] {
            let trusted = |addr: std::net::IpAddr| addr.to_string().starts_with("10.");
            let got = client(values.iter().map(|v| v.as_bytes()), recursive, trusted);
            assert_eq!(got.map(|(addr, _)| addr.to_string()).as_deref(), found, "{values:?} {recursive}");
        }
    }
}
