//! The path that an upstream receives.

/// Appends the path of the service joined with that of the request, of which `stripped` bytes are taken off; `None` takes
/// off nothing. `base` is the service's path, `/` where it has none. As Kong does with `path_handling: v0`.
pub(super) fn join(base: &[u8], path: &[u8], stripped: Option<usize>, out: &mut Vec<u8>) {
    let ends_with_slash = path.ends_with(b"/");
    let rest = stripped.map(|length| path.get(length..).unwrap_or_default()).map(|rest| {
        let relative: &[&[u8]] = &[b"./", b"../"];
        relative.iter().find_map(|dots| rest.strip_prefix(*dots)).unwrap_or(rest)
    });
    match (base.strip_suffix(b"/"), rest) {
        (Some(_), Some(b"")) if base == b"/" || ends_with_slash => out.extend_from_slice(base),
        (Some(short), Some(b"")) => out.extend_from_slice(short),
        (Some(_), Some(rest)) => {
            out.extend_from_slice(base);
            out.extend_from_slice(rest.strip_prefix(b"/").unwrap_or(rest));
        }
        (Some(_), None) => {
            out.extend_from_slice(base);
            out.extend_from_slice(path.strip_prefix(b"/").unwrap_or(path));
        }
        (None, Some(b"")) => {
            out.extend_from_slice(base);
            if path.len() > 1 && ends_with_slash {
                out.push(b'/');
            }
        }
        (None, Some(rest)) => {
            out.extend_from_slice(base);
            if !rest.starts_with(b"/") {
                out.push(b'/');
            }
            out.extend_from_slice(rest);
        }
        (None, None) => {
            out.extend_from_slice(base);
            if path != b"/" {
                out.extend_from_slice(path);
            }
        }
    }
}

/// Number of bytes of the encoded path that stand for the first `length` bytes of the decoded one.
pub(crate) fn encoded_length(decoded: &[u8], encoded: &[u8], length: usize) -> usize {
    if decoded.len() == encoded.len() {
        return length.min(encoded.len());
    }
    let (mut from, mut to) = (0, 0);
    while from < length && to < encoded.len() {
        let is_escaped = encoded.get(to) == Some(&b'%');
        // A slash that stays encoded is encoded in both.
        let is_kept =
            is_escaped && encoded.get(to..to + 3) == Some(b"%2F") && decoded.get(from..from + 3) == Some(b"%2F");
        from += if is_kept { 3 } else { 1 };
        to += if is_escaped { 3 } else { 1 };
    }
    to.min(encoded.len())
}

#[cfg(test)]
mod tests {
    use super::{encoded_length, join};

    #[test]
    fn paths_are_joined_as_in_kong() {
        for (base, path, prefix, expected) in [
            ("/", "/", Some("/"), "/"),
            ("/", "/foo", Some("/foo"), "/"),
            ("/", "/foo/", Some("/foo"), "/"),
            ("/", "/foo/bar", Some("/foo"), "/bar"),
            ("/", "/foo/bar", Some("/foo/"), "/bar"),
            ("/", "/foo/bar", None, "/foo/bar"),
            ("/base/", "/foo", Some("/foo"), "/base"),
            ("/base/", "/foo/", Some("/foo/"), "/base/"),
            ("/base/", "/foox", Some("/foo"), "/base/x"),
            ("/base/", "/foo../a", Some("/foo"), "/base/a"),
            ("/base/", "/foo/bar", Some("/foo"), "/base/bar"),
            ("/base/", "/foo", None, "/base/foo"),
            ("/base", "/foo", Some("/foo"), "/base"),
            ("/base", "/foo/", Some("/foo/"), "/base/"),
            ("/base", "/", Some("/"), "/base"),
            ("/base", "/foo/bar", Some("/foo"), "/base/bar"),
            ("/base", "/foo/bar", Some("/foo/"), "/base/bar"),
            ("/base", "/foox", Some("/foo"), "/base/x"),
            ("/base", "/foo", None, "/base/foo"),
            ("/base", "/", None, "/base"),
        ] {
            let mut out = Vec::new();
            join(base.as_bytes(), path.as_bytes(), prefix.map(str::len), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{base} {path} {prefix:?}");
        }
    }

    #[test]
    fn decoded_lengths_are_found_in_encoded_paths() {
        for (decoded, encoded, length, expected) in [
            ("/a/b", "/a/b", 2, 2),
            ("/a b/c", "/a%20b/c", 4, 6),
            ("/a%2Fb", "/a%2Fb", 5, 5),
            ("/a b%2Fc", "/a%20b%2Fc", 7, 9),
            ("/%x", "/%25x", 2, 4),
        ] {
            assert_eq!(encoded_length(decoded.as_bytes(), encoded.as_bytes(), length), expected, "{decoded}");
        }
    }
}
