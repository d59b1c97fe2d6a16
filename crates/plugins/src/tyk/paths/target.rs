//! The target of the upstream: its base path and query, joined with what is left of the path of a request.

use serde_json::{Map, Value, json};
use weir_plugin::{BuildCx, Invalid, Request, RequestCx};

use super::Whole;
use crate::kong::route::target::encoded_length;

/// Path and query of a target URL.
#[derive(Debug)]
pub(super) struct Base {
    /// The path without a slash at its end.
    path: Vec<u8>,
    query: Vec<u8>,
}

impl Base {
    /// The base of `/path?query`.
    pub(super) fn of(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self { path: path.trim_end_matches('/').as_bytes().to_vec(), query: query.as_bytes().to_vec() }
    }

    /// The base of a whole URL.
    pub(super) fn of_url(url: &str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        Self::of(rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or_default())
    }

    /// Appends the base joined with a path by one slash, and both queries.
    pub(super) fn join(&self, path: &[u8], query: Option<&[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.path);
        if !path.is_empty() && !path.starts_with(b"/") {
            out.push(b'/');
        }
        // A path of nothing but a slash adds nothing to a base.
        if path != b"/" || self.path.is_empty() {
            out.extend_from_slice(path);
        }
        if out.is_empty() {
            out.push(b'/');
        }
        let query = query.unwrap_or_default();
        if !self.query.is_empty() || !query.is_empty() {
            out.push(b'?');
            out.extend_from_slice(&self.query);
            if !self.query.is_empty() && !query.is_empty() {
                out.push(b'&');
            }
            weir_wire::target::encode_query(query, out);
        }
    }
}

/// The encoded path of a request that goes on to the upstream.
pub(super) fn rest<'r>(request: &'r Request, whole: &Whole<'_>) -> &'r [u8] {
    let (path, encoded) = (request.path(), request.encoded_path());
    if !whole.strip {
        return encoded;
    }
    let length = whole.listen.length(path);
    // The version stands behind a slash that may belong to the listen path.
    let skipped = match (whole.skipped, path.get(length)) {
        (0, _) => 0,
        (skipped, Some(b'/')) => skipped,
        (skipped, _) => skipped.saturating_sub(1),
    };
    encoded.get(encoded_length(path, encoded, length + skipped)..).unwrap_or_default()
}

/// Settles the target of a request.
pub(super) fn write(cx: &mut RequestCx<'_>, whole: &Whole<'_>, base: &Base) {
    let request = cx.request_mut();
    let mut target = std::mem::take(&mut request.upstream.target);
    target.clear();
    base.join(rest(request, whole), request.query(), &mut target);
    request.upstream.target = target;
}

/// Settles the target of a request whose path and query a script has changed.
pub(super) fn write_url(cx: &mut RequestCx<'_>, whole: &Whole<'_>, base: &Base, url: &[u8]) {
    let mut parts = url.splitn(2, |byte| *byte == b'?');
    let (path, query) = (parts.next().unwrap_or_default(), parts.next());
    let rest = match whole.strip {
        true => path.get(whole.listen.length(path)..).unwrap_or_default(),
        false => path,
    };
    let request = cx.request_mut();
    let mut target = std::mem::take(&mut request.upstream.target);
    target.clear();
    base.join(rest, query.or(request.query()), &mut target);
    request.upstream.target = target;
}

/// An upstream with the nodes and the scheme of a URL.
pub(super) fn at_url(upstream: &Map<String, Value>, url: &str) -> Result<Map<String, Value>, Invalid> {
    let expected = || Invalid::new("", format!("expected a URL such as http://example.com:8080/path, found '{url}'"));
    let (scheme, rest) = url.split_once("://").ok_or_else(expected)?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let is_tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(expected()),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| expected())?)
        }
        _ => (authority, if is_tls { 443u16 } else { 80 }),
    };
    if host.is_empty() {
        return Err(expected());
    }
    let mut changed = upstream.clone();
    let is_own = upstream
        .get("nodes")
        .and_then(Value::as_array)
        .is_some_and(|nodes| nodes.iter().any(|node| node["host"] == host));
    if let Some(tls) = changed.get_mut("tls").and_then(Value::as_object_mut).filter(|_| !is_own) {
        // The certificate that targets are shown is no other host's.
        for field in ["client_cert", "client_key"] {
            tls.shift_remove(field);
        }
    }
    for field in ["service_name", "discovery_type", "discovery_args"] {
        changed.shift_remove(field);
    }
    changed.insert("scheme".to_owned(), scheme.into());
    changed.insert("nodes".to_owned(), json!([{ "host": host, "port": port, "weight": 1 }]));
    Ok(changed)
}

/// Adds an upstream; its number.
pub(super) fn add(upstream: Map<String, Value>, field: &str, build: &BuildCx<'_>) -> Result<u32, Invalid> {
    let upstream =
        serde_json::from_value(Value::Object(upstream)).map_err(|error| Invalid::new("", error.to_string()))?;
    build.inline_upstream(field, &upstream)
}

#[cfg(test)]
mod tests {
    use super::Base;

    #[test]
    fn targets_are_joined_as_in_tyk() {
        for (base, path, query, expected) in [
            ("/base/", "", None, "/base"),
            ("/base/", "a", Some("x=1"), "/base/a?x=1"),
            ("/base/", "/", None, "/base"),
            ("/base/", "/a", None, "/base/a"),
            ("/base/", "/kl3/", None, "/base/kl3/"),
            ("/rx?a=b", "a", Some("c=d"), "/rx/a?a=b&c=d"),
            ("/rx?a=b", "", None, "/rx?a=b"),
            ("/", "", None, "/"),
            ("", "/a", None, "/a"),
            ("/", "a%20b%2Fc", None, "/a%20b%2Fc"),
        ] {
            let mut out = Vec::new();
            Base::of(base).join(path.as_bytes(), query.map(str::as_bytes), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{base} {path}");
        }
        let mut out = Vec::new();
        Base::of_url("http://a:1/b/?q").join(b"c", None, &mut out);
        assert_eq!(out, b"/b/c?q");
    }
}
