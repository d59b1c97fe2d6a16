//! Targets of requests: an upstream, the path before that of the request, and the `Host`.

use serde_json::{Map, Value, json};
use weir_plugin::{BuildCx, Flow, Invalid, RequestCx};

use super::state::State;

/// A URL of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    scheme: &'static str,
    host: String,
    port: u16,
    path: String,
    query: String,
}

/// A target.
#[derive(Debug)]
pub(super) struct Target {
    /// `None`: the route's own.
    upstream: Option<u32>,
    /// The path, without a slash at its end.
    path: Box<[u8]>,
    /// True if the URL has a path, be it a slash.
    has_path: bool,
    query: Box<[u8]>,
    host: Box<[u8]>,
}

impl Url {
    /// Reads `http://HOST:PORT/PATH?QUERY`, or `https`; `ws` and `wss` stand for them.
    pub(super) fn parse(url: &str, field: &str) -> Result<Self, Invalid> {
        let fault = || {
            let text = format!("expected a URL such as http://example.com:8080/path, found '{url}'");
            Invalid::new(field, text)
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(fault)?;
        let (scheme, default) = match scheme {
            "http" | "ws" => ("http", 80),
            "https" | "wss" => ("https", 443),
            _ => return Err(fault()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().map_err(|_| fault())?)
            }
            _ => (authority, default),
        };
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if host.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(fault());
        }
        Ok(Self { scheme, host: host.to_owned(), port, path: path.to_owned(), query: query.to_owned() })
    }

    /// The `Host` of requests.
    fn host(&self) -> String {
        match (self.scheme, self.port) {
            ("http", 80) | ("https", 443) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// The target on the route's own upstream.
    pub(super) fn on_route(&self, host: Option<&str>) -> Target {
        self.target(None, host)
    }

    /// The target on an upstream of its own, which is like that of the service: `upstream`.
    pub(super) fn build(
        &self,
        host: Option<&str>,
        upstream: &Map<String, Value>,
        field: &str,
        build: &BuildCx<'_>,
    ) -> Result<Target, Invalid> {
        let mut changed = upstream.clone();
        changed.insert("scheme".to_owned(), self.scheme.into());
        changed.insert("nodes".to_owned(), json!([{ "host": self.host, "port": self.port, "weight": 1 }]));
        if self.scheme == "http" {
            changed.remove("tls");
        }
        let upstream =
            serde_json::from_value(Value::Object(changed)).map_err(|error| Invalid::new(field, error.to_string()))?;
        Ok(self.target(Some(build.inline_upstream(field, &upstream)?), host))
    }

    fn target(&self, upstream: Option<u32>, host: Option<&str>) -> Target {
        let host = host.filter(|host| !host.is_empty()).map_or_else(|| self.host(), str::to_owned);
        Target {
            upstream,
            path: self.path.trim_end_matches('/').as_bytes().into(),
            has_path: !self.path.is_empty(),
            query: self.query.as_bytes().into(),
            host: host.into_bytes().into(),
        }
    }
}

impl Target {
    /// Sends a request there.
    pub(super) fn send(&self, cx: &mut RequestCx<'_>, state: &State) -> Flow {
        let mut path = cx.take_scratch();
        state.write_encoded_path(cx.request(), &mut path);
        let request = cx.request_mut();
        let mut target = std::mem::take(&mut request.upstream.target);
        target.clear();
        let replaced_query = state.replaced.as_deref().and_then(|replaced| {
            path.clear();
            path.push(b'/');
            let (given, query) = replaced.split_once('?').unwrap_or((replaced, ""));
            weir_wire::target::encode_path(given.trim_start_matches('/').as_bytes(), &mut path);
            Some(query).filter(|query| !query.is_empty())
        });
        self.join(&path, &mut target);
        // A query of the URL takes the place of the client's, as in APIcast.
        let query = match (&*self.query, replaced_query) {
            ([], Some(query)) => query.as_bytes(),
            ([], None) => request.query().unwrap_or_default(),
            (query, _) => query,
        };
        if !query.is_empty() {
            target.push(b'?');
            weir_wire::target::encode_query(query, &mut target);
        }
        request.upstream.target = target;
        request.upstream.host.clear();
        request.upstream.host.extend_from_slice(&self.host);
        cx.put_scratch(path);
        cx.choose_upstream(self.upstream);
        Flow::Continue
    }

    /// Appends the path of the target joined with that of a request.
    fn join(&self, path: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.path);
        let is_root = matches!(path, b"" | b"/");
        if is_root && self.has_path && !self.path.is_empty() {
            return;
        }
        if !path.starts_with(b"/") {
            out.push(b'/');
        }
        out.extend_from_slice(path);
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn paths_are_joined_as_in_apicast() {
        for (url, path, expected, host) in [
            ("http://a.test", "/x", "/x", "a.test"),
            ("http://a.test/", "/", "/", "a.test"),
            ("https://a.test:443/base", "/", "/base", "a.test"),
            ("https://a.test:8443/base/", "/x/y", "/base/x/y", "a.test:8443"),
            ("ws://a.test:81/base?q=1", "/x", "/base/x", "a.test:81"),
        ] {
            let target = Url::parse(url, "x").expect("a URL").on_route(None);
            let mut out = Vec::new();
            target.join(path.as_bytes(), &mut out);
            assert_eq!((String::from_utf8_lossy(&out).as_ref(), &*target.host), (expected, host.as_bytes()), "{url}");
        }
        assert_eq!(&*Url::parse("http://a.test", "x").expect("a URL").on_route(Some("b.test")).host, b"b.test");
        for url in ["a.test", "ftp://a.test", "http://", "http://a:x/", "http://a/b c"] {
            assert!(Url::parse(url, "x").is_err(), "{url}");
        }
    }
}
