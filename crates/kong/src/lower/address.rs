//! Addresses of services, and the keys of streams among them.

use weir_config::Diagnostic;

use crate::document::Entity;

/// The target of a service's requests.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) protocol: String,
    pub(crate) host: String,
    pub(crate) port: i64,
    pub(crate) path: Option<String>,
}

impl Address {
    /// True for a service of streams.
    pub(crate) fn is_of_streams(&self) -> bool {
        matches!(self.protocol.as_str(), "tcp" | "tls" | "udp" | "tls_passthrough")
    }

    /// The address of a service; its URL takes precedence over the single fields. `None` for one that has none, of
    /// which `found` tells.
    pub(crate) fn of(service: &Entity, found: &mut Vec<Diagnostic>) -> Option<Self> {
        if let Some(url) = service.text("url") {
            let address = parse_url(url);
            if address.is_none() {
                found.push(service.fault("url", "expected a URL such as http://example.com:8080/path"));
            }
            return address;
        }
        let Some(host) = service.text("host").filter(|host| !host.is_empty()) else {
            found.push(service.fault("host", "required field missing"));
            return None;
        };
        let protocol = service.text("protocol").unwrap_or("http");
        let path = service.text("path").map(str::to_owned);
        if path.as_ref().is_some_and(|path| !path.starts_with('/')) {
            found.push(service.fault("path", "should start with: /"));
        }
        let port = service.whole("port").unwrap_or(80);
        Some(Self { protocol: protocol.to_owned(), host: host.to_owned(), port, path })
    }
}

fn parse_url(url: &str) -> Option<Address> {
    let (protocol, rest) = url.split_once("://")?;
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = split_port(authority);
    let default = if matches!(protocol, "https" | "grpcs" | "wss") { 443 } else { 80 };
    let port = match port {
        Some(port) => port.parse::<u16>().ok()?.into(),
        None => default,
    };
    let path = path.split(['?', '#']).next().filter(|path| !path.is_empty()).map(str::to_owned);
    (!host.is_empty()).then(|| Address { protocol: protocol.to_owned(), host: host.to_owned(), port, path })
}

/// Host and port of `host:port`; brackets belong to an IPv6 address.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// True for a route of streams.
pub(crate) fn is_stream(route: &Entity) -> bool {
    let protocols = route.texts("protocols");
    !protocols.is_empty() && protocols.iter().all(|protocol| is_of_stream(protocol))
}

/// True for a service of streams.
pub(crate) fn is_of_streams(service: &Entity) -> bool {
    Address::of(service, &mut Vec::new()).is_some_and(|address| address.is_of_streams())
}

fn is_of_stream(protocol: &str) -> bool {
    matches!(protocol, "tcp" | "tls" | "udp" | "tls_passthrough")
}
