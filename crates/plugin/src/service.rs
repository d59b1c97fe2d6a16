//! Services that a plugin's configuration names by a URI.

use std::time::Duration;

use serde_json::json;
use weir_config::{Node, Upstream};
use weir_wire::method::Method;

use crate::callout::Callout;
use crate::definition::{BuildCx, Invalid};

/// Options of connections to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceOptions {
    /// True if certificates of `https` are verified.
    pub verify: bool,
    /// Idle connections that a worker keeps; `None`: every connection carries one request.
    pub keepalive: Option<u32>,
    /// Time for which an idle connection is kept.
    pub idle: Duration,
    /// Limit for connecting, and between two reads or writes.
    pub timeout: Duration,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { verify: true, keepalive: Some(320), idle: minute, timeout: minute }
    }
}

/// A service at a URI, as an upstream of one node.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(Default))]
pub struct Service {
    number: u32,
    host: Box<[u8]>,
    target: Box<[u8]>,
}

/// The URI of a service, before its upstream is built.
#[derive(Debug)]
pub struct ServiceUri {
    field: &'static str,
    upstream: Box<Upstream>,
    host: Box<[u8]>,
    target: Box<[u8]>,
}

impl ServiceUri {
    /// The service, with an upstream of its own.
    ///
    /// # Errors
    /// The upstream cannot be built.
    pub fn build(self, cx: &BuildCx<'_>) -> Result<Service, Invalid> {
        let number = cx.inline_upstream(self.field, &self.upstream)?;
        Ok(Service { number, host: self.host, target: self.target })
    }
}

/// The parts of a URI.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    scheme: &'a str,
    authority: &'a str,
    /// Path and query; `/` where there is none.
    target: String,
}

impl Service {
    /// Reads the URI of a service, which stands in `field` of the configuration.
    ///
    /// # Errors
    /// The URI is neither of `http` nor of `https`, or has an invalid host.
    pub fn parse(field: &'static str, uri: &str, options: ServiceOptions) -> Result<ServiceUri, Invalid> {
        let parts = split(uri).map_err(|message| Invalid::new(field, message))?;
        let upstream = upstream(field, &parts, options)?;
        let (host, target) = (parts.authority.as_bytes().into(), parts.target.as_bytes().into());
        Ok(ServiceUri { field, upstream: Box::new(upstream), host, target })
    }

    /// Reads the address of a service of gRPC, `HOST:PORT`, which stands in `field` of the configuration: HTTP/2, without TLS.
    ///
    /// # Errors
    /// The address has an invalid host, or no port.
    pub fn parse_grpc(field: &'static str, address: &str, options: ServiceOptions) -> Result<ServiceUri, Invalid> {
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
        if !has_port {
            return Err(Invalid::new(field, "expected HOST:PORT"));
        }
        let parts = Parts { scheme: "grpc", authority: address, target: "/".to_owned() };
        let upstream = upstream(field, &parts, options)?;
        Ok(ServiceUri { field, upstream: Box::new(upstream), host: address.as_bytes().into(), target: b"/"[..].into() })
    }

    /// A request to the service.
    #[must_use]
    pub fn callout(&self, method: Method) -> Callout {
        Callout::new(self.number, method, &self.target, &self.host)
    }

    /// Path and query of the URI; `/` where it has none.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        &self.target
    }

    /// The service under another `Host`.
    #[must_use]
    pub fn with_host(self, host: &str) -> Self {
        Self { host: host.as_bytes().into(), ..self }
    }

    /// A request to another target of the same scheme, host and port, such as one that the service has named itself.
    #[must_use]
    pub fn callout_to(&self, method: Method, target: &[u8]) -> Callout {
        Callout::new(self.number, method, target, &self.host)
    }
}

fn upstream(field: &str, parts: &Parts<'_>, options: ServiceOptions) -> Result<Upstream, Invalid> {
    let seconds = |time: Duration| time.as_secs_f64().max(0.001);
    let timeout = seconds(options.timeout);
    let text = json!({
        "scheme": parts.scheme,
        "nodes": { parts.authority: 1 },
        "retries": 0,
        "timeout": { "connect": timeout, "send": timeout, "read": timeout },
        "tls": { "verify": options.verify && parts.scheme == "https" },
        "keepalive_pool": {
            "size": options.keepalive.unwrap_or(1),
            "idle_timeout": seconds(options.idle),
            "requests": options.keepalive.map_or(1, |_| 100_000),
        },
    });
    let (upstream, found) = match Node::parse(&text.to_string()) {
        Ok(parsed) => Upstream::from_node(&parsed.root),
        Err(error) => (None, vec![error]),
    };
    let fault = || found.into_iter().find(weir_config::Diagnostic::is_error).map(|error| *error.code);
    match upstream {
        Some(upstream) => Ok(upstream),
        None => Err(fault().map_or_else(|| Invalid::new(field, ""), |code| Invalid::coded(field, code))),
    }
}

fn split(uri: &str) -> Result<Parts<'_>, String> {
    const EXPECTED: &str = "expected http://HOST:PORT/PATH or https://HOST:PORT/PATH";
    let (scheme, rest) = uri.split_once("://").ok_or(EXPECTED)?;
    if !matches!(scheme, "http" | "https") {
        return Err(format!("{EXPECTED}, found the scheme '{scheme}'"));
    }
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(at);
    if authority.is_empty() {
        return Err(format!("{EXPECTED}, found no host"));
    }
    if authority.contains('@') {
        return Err("a user and a password do not belong into a URI: send them in a field".into());
    }
    let target = target.split('#').next().unwrap_or_default();
    if let Some(wrong) = target.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(format!("expected a path and a query that are encoded, found {wrong:?}"));
    }
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok(Parts { scheme, authority, target: format!("{slash}{target}") })
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn uris_have_a_host_and_perhaps_a_target() {
        for (uri, scheme, authority, target) in [
            ("http://a.test", "http", "a.test", "/"),
            ("https://a.test:8443/auth?x=1#part", "https", "a.test:8443", "/auth?x=1"),
            ("http://[::1]:80?x", "http", "[::1]:80", "/?x"),
        ] {
            let parts = split(uri).unwrap();
            assert_eq!((parts.scheme, parts.authority, &*parts.target), (scheme, authority, target), "{uri}");
        }
        for (uri, says) in [
            ("a.test/x", "expected http://"),
            ("ftp://a.test", "'ftp'"),
            ("http:///x", "no host"),
            ("http://u:p@a.test/", "field"),
            ("http://a.test/a b", "encoded"),
        ] {
            let error = split(uri).unwrap_err();
            assert!(error.contains(says), "{uri}: {error}");
        }
    }
}
