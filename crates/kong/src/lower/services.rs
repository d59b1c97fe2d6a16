//! Services, and the upstreams that their hosts name.

use weir_config::{Diagnostic, Kind, Lowered, Mark, Node, ResourceKind};

use super::plugins::Scoped;
use super::{flag, list, map, number, text};
use crate::document::{Document, Entity, EntityKind, whole};

/// The target of a service's requests.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) protocol: String,
    host: String,
    pub(crate) port: i64,
    pub(crate) path: Option<String>,
}

impl Address {
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
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Adds the services.
pub(crate) fn lower(document: &Document, plugins: &Scoped<'_>, lowered: &mut Lowered, found: &mut Vec<Diagnostic>) {
    for (number, service) in document.of(EntityKind::Services) {
        let Some(address) = Address::of(service, found) else { continue };
        let Some(upstream) = upstream_of(document, service, &address, found) else { continue };
        let own = plugins.of_service(number);
        let mut item = map(service.node.mark, [("id", text(&service.id)), ("upstream", upstream)]);
        if let Some(name) = &service.name {
            item.insert("name", text(name));
        }
        item.insert("plugins", own.node);
        item.insert("enable_websocket", flag(true));
        let mut entity = service.origin();
        entity.elsewhere = own.elsewhere;
        entity.elsewhere.push(("upstream".to_owned(), service.path.clone()));
        lowered.add(ResourceKind::Services, item, entity);
    }
    for (_, target) in document.of(EntityKind::Targets).filter(|(_, target)| target.reference("upstream").is_none()) {
        found.push(target.fault("upstream", "required field missing"));
    }
}

/// The upstream of a service, of whose faults is told with the service itself.
pub(crate) fn upstream(document: &Document, service: &Entity) -> Option<Node> {
    let mut told = Vec::new();
    let address = Address::of(service, &mut told)?;
    upstream_of(document, service, &address, &mut told)
}

fn upstream_of(document: &Document, service: &Entity, address: &Address, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let mark = service.node.mark;
    let scheme = match address.protocol.as_str() {
        // A WebSocket begins as a request over HTTP.
        "http" | "ws" => "http",
        "https" | "wss" => "https",
        "grpc" => "grpc",
        "grpcs" => "grpcs",
        other => {
            let field = if service.text("url").is_some() { "url" } else { "protocol" };
            found.push(service.fault(field, format!("services over {other} are not supported")));
            return None;
        }
    };
    for field in ["ca_certificates"] {
        if !service.texts(field).is_empty() {
            found.push(service.fault(field, "authorities of a single service are not supported yet: the setting tls.trusted_certificate holds for all"));
        }
    }
    let named =
        document.of(EntityKind::Upstreams).find(|(_, upstream)| upstream.name.as_deref() == Some(&address.host));
    let mut item = match named {
        Some((number, upstream)) => balanced(document, number, upstream, found),
        None => {
            let node =
                map(mark, [("host", text(&address.host)), ("port", number(address.port)), ("weight", number(1))]);
            map(mark, [("nodes", list(mark, vec![node])), ("pass_host", text("node"))])
        }
    };
    item.insert("scheme", text(scheme));
    let retries = service.whole("retries").unwrap_or(5);
    item.insert("retries", number(retries));
    let seconds = |field: &str| {
        let given = service.whole(field).unwrap_or(60_000);
        Node { mark, kind: Kind::Float(given as f64 / 1000.0) }
    };
    let (connect, send, read) = (seconds("connect_timeout"), seconds("write_timeout"), seconds("read_timeout"));
    item.insert("timeout", map(mark, [("connect", connect), ("send", send), ("read", read)]));
    let certificate = service.reference("client_certificate");
    let certificate = certificate.or_else(|| named.and_then(|(_, upstream)| upstream.reference("client_certificate")));
    if let Some(tls) = tls(document, service, certificate) {
        item.insert("tls", tls);
    }
    Some(item)
}

fn tls(document: &Document, service: &Entity, certificate: Option<usize>) -> Option<Node> {
    let certificate = certificate.and_then(|number| document.entities.get(number));
    let verify = service.flag("tls_verify").unwrap_or(false);
    if certificate.is_none() && !verify {
        return None;
    }
    let mut tls = map(service.node.mark, [("verify", flag(verify))]);
    if let Some(certificate) = certificate {
        for (field, written) in [("client_cert", "cert"), ("client_key", "key")] {
            tls.insert(field, certificate.node.get(written).cloned()?);
        }
    }
    Some(tls)
}

/// An upstream with its targets, without what its service says.
fn balanced(document: &Document, at: usize, upstream: &Entity, found: &mut Vec<Diagnostic>) -> Node {
    let mark = upstream.node.mark;
    let targets = document.children(EntityKind::Targets, "upstream", at);
    let nodes = targets.filter_map(|target| {
        let written = target.text("target")?;
        let (host, port) = split_port(written);
        let port = port.map_or(Ok(8000), str::parse::<u16>);
        let is_host = !host.is_empty() && !host.contains(['<', '>', '/', ' ', '$']);
        let (Ok(port), true) = (port, is_host) else {
            found.push(target.fault("target", "expected a host with an optional port: example.com:8080"));
            return None;
        };
        let weight = target.whole("weight").unwrap_or(100);
        let entries = [("host", text(host)), ("port", number(port.into())), ("weight", number(weight))];
        Some(map(target.node.mark, entries))
    });
    let nodes = nodes.collect();
    let mut item = map(mark, [("nodes", list(mark, nodes))]);
    match upstream.text("host_header") {
        Some(host) => {
            item.insert("pass_host", text("rewrite"));
            item.insert("upstream_host", text(host));
        }
        None => item.insert("pass_host", text("node")),
    }
    balancing(upstream, &mut item, found);
    checks(upstream, &mut item, found);
    item
}

/// The algorithm, and what it hashes.
fn balancing(upstream: &Entity, item: &mut Node, found: &mut Vec<Diagnostic>) {
    let hash_on = upstream.text("hash_on").unwrap_or("none");
    let algorithm = match upstream.text("algorithm") {
        _ if hash_on != "none" => "chash",
        Some("consistent-hashing") => "chash",
        Some("least-connections") => "least_conn",
        Some("latency") => "ewma",
        _ => "roundrobin",
    };
    item.insert("type", text(algorithm));
    if algorithm == "chash" {
        let named = |field: &str| upstream.text(field).unwrap_or_default().to_owned();
        let (on, key) = match hash_on {
            "consumer" => ("consumer", String::new()),
            "header" => ("header", named("hash_on_header")),
            "cookie" => ("cookie", named("hash_on_cookie")),
            "path" => ("vars", "uri".to_owned()),
            "query_arg" => ("vars", format!("arg_{}", named("hash_on_query_arg"))),
            "uri_capture" => {
                found.push(upstream.fault("hash_on", "hash_on uri_capture is not supported yet"));
                return;
            }
            _ => ("vars", "remote_addr".to_owned()),
        };
        item.insert("hash_on", text(on));
        if !key.is_empty() {
            item.insert("key", text(&key));
        }
        if hash_on == "cookie" {
            let text = "a missing cookie is not made: requests without it are spread by the client's address";
            found.push(upstream.doubt("hash_on", text));
        }
    }
    if !matches!(upstream.text("hash_fallback"), None | Some("none" | "ip")) {
        let text = "not supported: requests without a value to hash are spread by the client's address";
        found.push(upstream.doubt("hash_fallback", text));
    }
}

/// Health checks, which are on where Kong's are.
fn checks(upstream: &Entity, item: &mut Node, found: &mut Vec<Diagnostic>) {
    let Some(checks) = upstream.node.get("healthchecks") else { return };
    let at = |path: &[&str]| path.iter().try_fold(checks, |node, name| node.get(name)).filter(|node| !node.is_null());
    let count = |path: &[&str]| at(path).and_then(whole).unwrap_or(0);
    if at(&["threshold"]).is_some_and(|node| !matches!(node.kind, Kind::Int(0)) && node.to_json().as_f64() != Some(0.0))
    {
        found.push(upstream.fault("healthchecks.threshold", "a threshold other than 0 is not supported yet"));
    }
    let intervals = ["healthy", "unhealthy"].map(|side| count(&["active", side, "interval"]));
    let is_active = intervals.iter().any(|interval| *interval > 0);
    let counters = ["tcp_failures", "timeouts", "http_failures"];
    let is_passive = counters.iter().any(|counter| count(&["passive", "unhealthy", counter]) > 0);
    if !is_active {
        if is_passive {
            found.push(upstream.fault(
                "healthchecks.passive",
                "passive health checks without active ones are not supported: nothing would bring a target back",
            ));
        }
        return;
    }
    let mark = checks.mark;
    let mut active = map(mark, []);
    for (field, written) in [
        ("type", "type"),
        ("timeout", "timeout"),
        ("concurrency", "concurrency"),
        ("http_path", "http_path"),
        ("https_verify_certificate", "https_verify_certificate"),
    ] {
        if let Some(value) = at(&["active", written]) {
            active.insert(field, value.clone());
        }
    }
    if !matches!(at(&["active", "type"]).and_then(Node::as_str), None | Some("http" | "https" | "tcp")) {
        found.push(upstream.fault("healthchecks.active.type", "expected one of: http, https, tcp"));
    }
    for (side, interval) in [("healthy", intervals[0]), ("unhealthy", intervals[1])] {
        let interval = if interval > 0 { interval } else { intervals.into_iter().max().unwrap_or(1) };
        active.insert(side, side_of(mark, side, Some(interval), &|name| at(&["active", side, name])));
    }
    let mut made = map(mark, [("active", active)]);
    if is_passive {
        let mut passive = map(mark, []);
        if let Some(kind) = at(&["passive", "type"]) {
            passive.insert("type", kind.clone());
        }
        for side in ["healthy", "unhealthy"] {
            passive.insert(side, side_of(mark, side, None, &|name| at(&["passive", side, name])));
        }
        made.insert("passive", passive);
    }
    item.insert("checks", made);
}

/// The counters of one side of checks. Those that Kong leaves out are off there: 0.
fn side_of<'n>(mark: Mark, side: &str, interval: Option<i64>, at: &dyn Fn(&'static str) -> Option<&'n Node>) -> Node {
    let mut made = map(mark, []);
    if let Some(interval) = interval {
        made.insert("interval", number(interval));
    }
    if let Some(statuses) = at("http_statuses") {
        made.insert("http_statuses", statuses.clone());
    }
    let counters: &[&str] =
        if side == "healthy" { &["successes"] } else { &["tcp_failures", "timeouts", "http_failures"] };
    for counter in counters {
        let value = at(counter).and_then(whole).unwrap_or(0);
        // A target that nothing brings back is not what an interval is written for.
        let least = i64::from(*counter == "successes");
        made.insert(counter, number(value.max(least)));
    }
    made
}
