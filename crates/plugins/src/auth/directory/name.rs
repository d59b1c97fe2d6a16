//! Distinguished names of users, and addresses of directories.

/// The distinguished name of a user: `attribute=name,base`. Characters of the name that mean something in a distinguished name
/// are escaped (RFC 4514 section 2.4), so that a name cannot lead to another entry.
pub(crate) fn user_dn(attribute: &str, name: &[u8], base: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(attribute.as_bytes());
    out.push(b'=');
    let last = name.len().saturating_sub(1);
    for (at, byte) in name.iter().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' | b'=' => out.extend_from_slice(&[b'\\', *byte]),
            b'#' if at == 0 => out.extend_from_slice(b"\\#"),
            b' ' if at == 0 || at == last => out.extend_from_slice(b"\\ "),
            0 => out.extend_from_slice(b"\\00"),
            _ => out.push(*byte),
        }
    }
    if !base.is_empty() {
        out.push(b',');
        out.extend_from_slice(base.as_bytes());
    }
}

/// The host of `HOST` or `HOST:PORT`, and the port where there is one. An IPv6 address stands in brackets.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_host = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b));
    let port = match port {
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
        None => None,
    };
    is_host.then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::{host_and_port, user_dn};

    #[test]
    fn a_name_stays_one_part_of_a_distinguished_name() {
        for (name, dn) in [
            ("jack", "cn=jack,ou=users"),
            ("jack,ou=admins", "cn=jack\\,ou\\=admins,ou=users"),
            ("a+b\"c\\d<e>f;g", "cn=a\\+b\\\"c\\\\d\\<e\\>f\\;g,ou=users"),
            ("#a #", "cn=\\#a #,ou=users"),
            (" a b ", "cn=\\ a b\\ ,ou=users"),
            ("a\0b", "cn=a\\00b,ou=users"),
            ("jück", "cn=jück,ou=users"),
        ] {
            let mut out = Vec::new();
            user_dn("cn", name.as_bytes(), "ou=users", &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), dn, "{name:?}");
        }
        let mut out = Vec::new();
        user_dn("uid", b"jack", "", &mut out);
        assert_eq!(out, b"uid=jack");
    }

    #[test]
    fn addresses_have_a_port_or_none() {
        for (text, parts) in [
            ("ldap.test", Some(("ldap.test", None))),
            ("ldap.test:1389", Some(("ldap.test", Some(1389)))),
            ("127.0.0.1:389", Some(("127.0.0.1", Some(389)))),
            ("[::1]:636", Some(("::1", Some(636)))),
            ("[::1]", Some(("::1", None))),
            ("ldap://ldap.test", None),
            ("ldap.test:0", None),
            ("ldap.test:x", None),
            ("::1", None),
            (":389", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(host_and_port(text), parts, "{text}");
        }
    }
}
