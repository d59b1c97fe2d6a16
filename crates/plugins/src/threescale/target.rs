//! Targets of requests: an upstream, the path before that of the request, and the `Host`.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use weir_plugin::{BuildCx, Flow, Invalid, RequestCx};
use weir_wire::name::FieldName;

use super::state::State;

static PROXY_AUTHORIZATION: LazyLock<FieldName> = LazyLock::new(|| FieldName::constant("Proxy-Authorization"));

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
    /// `None`: no forward proxy passes requests on.
    proxied: Option<Proxied>,
}

/// Parts of a request that a forward proxy passes on.
#[derive(Debug, PartialEq, Eq)]
struct Proxied {
    /// The beginning of targets in the absolute form (RFC 9112 section 3.2.2).
    origin: Box<[u8]>,
    /// The value of `Proxy-Authorization`.
    authorization: Option<Box<[u8]>>,
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

    /// The target on the route's own upstream, which [`by_way_of_proxy`] has been applied to.
    pub(super) fn on_route(&self, host: Option<&str>, upstream: &Map<String, Value>) -> Target {
        self.target(None, host, upstream)
    }

    /// The target on an upstream of its own, which is like that of the service: `upstream`.
    pub(super) fn build(
        &self,
        host: Option<&str>,
        of: &Map<String, Value>,
        field: &str,
        build: &BuildCx<'_>,
    ) -> Result<Target, Invalid> {
        let mut changed = of.clone();
        changed.insert("scheme".to_owned(), self.scheme.into());
        changed.insert("nodes".to_owned(), json!([{ "host": self.host, "port": self.port, "weight": 1 }]));
        if self.scheme == "http" {
            changed.remove("tls");
        }
        by_way_of_proxy(&mut changed);
        let upstream =
            serde_json::from_value(Value::Object(changed)).map_err(|error| Invalid::new(field, error.to_string()))?;
        Ok(self.target(Some(build.inline_upstream(field, &upstream)?), host, of))
    }

    fn target(&self, number: Option<u32>, host: Option<&str>, upstream: &Map<String, Value>) -> Target {
        let host = host.filter(|host| !host.is_empty()).map_or_else(|| self.host(), str::to_owned);
        let authority = match (self.scheme, self.port) {
            ("http", 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        };
        let proxied = proxy(upstream, self.scheme).filter(|_| self.scheme == "http").map(|proxy| {
            let authorization = proxy["authorization"].as_str().map(|known| known.as_bytes().into());
            Proxied { origin: format!("http://{authority}").into_bytes().into(), authorization }
        });
        Target {
            upstream: number,
            proxied,
            path: self.path.trim_end_matches('/').as_bytes().into(),
            has_path: !self.path.is_empty(),
            query: self.query.as_bytes().into(),
            host: host.into_bytes().into(),
        }
    }
}

/// The forward proxy for a scheme, of the policy `http_proxy`.
fn proxy<'u>(upstream: &'u Map<String, Value>, scheme: &str) -> Option<&'u Value> {
    upstream.get(PROXIES)?.get(scheme)
}

/// Name of the forward proxies by scheme in an upstream that is written down.
pub const PROXIES: &str = "proxies";

/// Puts the forward proxy for the scheme of an upstream in the place of its node: it passes requests on, or with TLS opens a
/// tunnel.
pub fn by_way_of_proxy(upstream: &mut Map<String, Value>) {
    let scheme = upstream.get("scheme").and_then(Value::as_str).unwrap_or("http").to_owned();
    let found = proxy(upstream, &scheme).cloned();
    upstream.remove(PROXIES);
    let Some(proxy) = found else { return };
    let node = upstream.get("nodes").and_then(|nodes| nodes.get(0)).cloned().unwrap_or_default();
    if scheme == "https" {
        let mut tunnel = json!({ "host": node["host"], "port": node["port"] });
        if proxy["authorization"].is_string() {
            tunnel["authorization"] = proxy["authorization"].clone();
        }
        upstream.insert("tunnel".to_owned(), tunnel);
    }
    upstream.insert("nodes".to_owned(), json!([{ "host": proxy["host"], "port": proxy["port"], "weight": 1 }]));
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
        if let Some(Proxied { origin, authorization }) = &self.proxied {
            target.extend_from_slice(origin);
            // The client's own are not for the proxy.
            match authorization {
                Some(known) => request.set_field(&PROXY_AUTHORIZATION, known),
                None => request.remove_field(&PROXY_AUTHORIZATION),
            }
        }
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
    use serde_json::{Map, json};

    use super::{Proxied, Url, by_way_of_proxy};

    #[test]
    fn paths_are_joined_as_in_apicast() {
        for (url, path, expected, host) in [
            ("http://a.test", "/x", "/x", "a.test"),
            ("http://a.test/", "/", "/", "a.test"),
            ("https://a.test:443/base", "/", "/base", "a.test"),
            ("https://a.test:8443/base/", "/x/y", "/base/x/y", "a.test:8443"),
            ("ws://a.test:81/base?q=1", "/x", "/base/x", "a.test:81"),
        ] {
            let target = Url::parse(url, "x").expect("a URL").on_route(None, &Map::new());
            let mut out = Vec::new();
            target.join(path.as_bytes(), &mut out);
            assert_eq!((String::from_utf8_lossy(&out).as_ref(), &*target.host), (expected, host.as_bytes()), "{url}");
        }
        assert_eq!(
            &*Url::parse("http://a.test", "x").expect("a URL").on_route(Some("b.test"), &Map::new()).host,
            b"b.test"
        );
        let proxies = json!({ "proxies": { "http": { "host": "p", "port": 3128, "authorization": "Basic x" } } });
        let target =
            Url::parse("http://a.test:81/b", "x").expect("a URL").on_route(None, proxies.as_object().expect("fields"));
        let expected = Proxied { origin: b"http://a.test:81"[..].into(), authorization: Some(b"Basic x"[..].into()) };
        assert_eq!(target.proxied, Some(expected));
        let mut upstream = json!({
            "scheme": "https", "nodes": [{ "host": "a.test", "port": 443, "weight": 1 }], "tls": {},
            "proxies": { "https": { "host": "p", "port": 3128 } },
        });
        by_way_of_proxy(upstream.as_object_mut().expect("fields"));
        let expected = json!({
            "scheme": "https", "nodes": [{ "host": "p", "port": 3128, "weight": 1 }], "tls": {},
            "tunnel": { "host": "a.test", "port": 443 },
        });
        assert_eq!(upstream, expected);
        for url in ["a.test", "ftp://a.test", "http://", "http://a:x/", "http://a/b c"] {
            assert!(Url::parse(url, "x").is_err(), "{url}");
        }
    }
}
