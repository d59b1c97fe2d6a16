//! Addresses of services that stand in texts: `http://` or `https://`, a host and a port.

/// Most bytes of a host and a port.
const LONGEST: usize = 255;

/// Appends the scheme, host and port of each URI that stands in `text`, in lower case.
pub(crate) fn addresses(text: &str, found: &mut Vec<String>) {
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = (rest.get(..at).unwrap_or_default(), rest.get(at + 3..).unwrap_or_default());
        let scheme = ["https", "http"].into_iter().find(|scheme| {
            let end = before.len().checked_sub(scheme.len());
            let end = end
                .filter(|end| before.as_bytes().get(*end..).is_some_and(|s| s.eq_ignore_ascii_case(scheme.as_bytes())));
            end.is_some_and(|end| {
                !before.as_bytes().get(..end).is_some_and(|b| b.last().is_some_and(u8::is_ascii_alphanumeric))
            })
        });
        let is_of_host = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte);
        let length = after.bytes().position(|byte| !is_of_host(&byte)).unwrap_or(after.len());
        let authority = after.get(..length).unwrap_or_default().trim_end_matches(['.', ':']);
        if let Some(scheme) = scheme
            && (1..=LONGEST).contains(&authority.len())
            && authority.bytes().any(|byte| byte.is_ascii_alphanumeric())
        {
            found.push(format!("{scheme}://{}", authority.to_ascii_lowercase()));
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn uris_are_found_wherever_they_stand() {
        for (text, wanted) in [
            ("http:request_uri('http://Opa:8181/v1/data')", vec!["http://opa:8181"]),
            ("'https://a.test' .. path, \"HTTP://[::1]:80/x\"", vec!["https://a.test", "http://[::1]:80"]),
            ("'http://' .. host", vec![]),
            ("see http://a.test.", vec!["http://a.test"]),
            ("ftp://a.test xhttp://b.test ://", vec![]),
            ("", vec![]),
        ] {
            let mut found = Vec::new();
            addresses(text, &mut found);
            assert_eq!(found, wanted, "{text}");
        }
    }
}
