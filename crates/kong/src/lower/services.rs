//! Services, and the upstreams that their hosts name.

use weir_config::{Diagnostic, Kind, Lowered, Node, ResourceKind};

use super::address::{Address, split_port};
use super::plugins::Scoped;
use super::{flag, health, list, map, number, text};
use crate::document::{Document, Entity, EntityKind};

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
        if !address.is_of_streams() {
            item.insert("enable_websocket", flag(true));
        }
        let mut entity = service.origin();
        entity.elsewhere = own.elsewhere;
        entity.elsewhere.push(("upstream".to_owned(), service.path.clone()));
        lowered.add(ResourceKind::Services, item, entity);
    }
    for (_, target) in document.of(EntityKind::Targets).filter(|(_, target)| target.reference("upstream").is_none()) {
        found.push(target.fault("upstream", "required field missing"));
    }
}

/// The upstream of a service with the targets of another upstream, or with another host, in the place of its own. `None`
/// without a service.
pub(crate) fn upstream_by_name(document: &Document, service: Option<&Entity>, name: &str) -> Option<Node> {
    let service = service?;
    let own = Address::of(service, &mut Vec::new())?;
    upstream_of(document, service, &Address { host: name.to_owned(), ..own }, &mut Vec::new())
}

/// True for a service whose upstream goes by a group of the path's regular expression.
pub(crate) fn hashes_captures(document: &Document, service: &Entity) -> bool {
    let address = Address::of(service, &mut Vec::new());
    let named = address.and_then(|address| document.find(EntityKind::Upstreams, &address.host));
    let upstream = named.and_then(|number| document.entities.get(number));
    upstream.is_some_and(|upstream| upstream.text("hash_on") == Some("uri_capture"))
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
        // Of streams; what a client of a `tls_passthrough` route sends goes on as it is.
        "tcp" | "tls_passthrough" => "tcp",
        "tls" => "tls",
        "udp" => "udp",
        other => {
            let field = if service.text("url").is_some() { "url" } else { "protocol" };
            found.push(service.fault(field, format!("services over {other} are not supported")));
            return None;
        }
    };
    let is_stream = matches!(scheme, "tcp" | "tls" | "udp");
    let named = document.find(EntityKind::Upstreams, &address.host);
    let named = named.and_then(|number| Some((number, document.entities.get(number)?)));
    let named = named.filter(|(_, upstream)| upstream.name.as_deref() == Some(&address.host));
    let mut item = match named {
        Some((number, upstream)) => balanced(document, number, upstream, scheme, found),
        None => {
            let node =
                map(mark, [("host", text(&address.host)), ("port", number(address.port)), ("weight", number(1))]);
            map(mark, [("nodes", list(mark, vec![node])), ("pass_host", text("node"))])
        }
    };
    if is_stream {
        // Nothing of HTTP, and Kong's time limits hold for each side of a stream alike.
        item.remove("pass_host");
        item.remove("upstream_host");
    } else {
        // Kong's defaults of upstream_keepalive_pool_size, _idle_timeout and _max_requests.
        let pool = [("size", number(512)), ("idle_timeout", number(60)), ("requests", number(10_000))];
        item.insert("keepalive_pool", map(mark, pool));
    }
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
    if let Some(tls) = tls(document, service, certificate, found) {
        item.insert("tls", tls);
    }
    Some(item)
}

fn tls(document: &Document, service: &Entity, certificate: Option<usize>, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let certificate = certificate.and_then(|number| document.entities.get(number));
    let verify = service.flag("tls_verify").unwrap_or(false);
    let authorities = authorities(document, service, found);
    if authorities.is_some() && !verify {
        found.push(service.doubt("ca_certificates", "no effect without tls_verify: true"));
    }
    if service.node.get("tls_verify_depth").is_some() && verify {
        let text = "no effect: a chain may have as many certificates as the verifier takes";
        found.push(service.doubt("tls_verify_depth", text));
    }
    if certificate.is_none() && !verify {
        return None;
    }
    let mut tls = map(service.node.mark, [("verify", flag(verify))]);
    if let Some(authorities) = authorities.filter(|_| verify) {
        tls.insert("ca", text(&authorities));
    }
    if let Some(certificate) = certificate {
        for (field, written) in [("client_cert", "cert"), ("client_key", "key")] {
            tls.insert(field, certificate.node.get(written).cloned()?);
        }
    }
    Some(tls)
}

/// The certificates that `ca_certificates` of a service names, in PEM.
fn authorities(document: &Document, service: &Entity, found: &mut Vec<Diagnostic>) -> Option<String> {
    let mut pem = String::new();
    for id in service.texts("ca_certificates") {
        let authority = document.find(EntityKind::CaCertificates, &id).and_then(|at| document.entities.get(at));
        match authority.and_then(|authority| authority.text("cert")) {
            Some(cert) => {
                pem.push_str(cert.trim_end());
                pem.push('\n');
            }
            None => {
                let text = format!("invalid reference 'ca_certificates: {id}' (no such entry in 'ca_certificates')");
                found.push(service.fault("ca_certificates", text));
            }
        }
    }
    (!pem.is_empty()).then_some(pem)
}

/// An upstream with its targets, without what its service says.
fn balanced(document: &Document, at: usize, upstream: &Entity, scheme: &str, found: &mut Vec<Diagnostic>) -> Node {
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
    if let Some(name) = &upstream.name {
        item.insert("name", text(name));
    }
    match upstream.text("host_header") {
        Some(host) => {
            item.insert("pass_host", text("rewrite"));
            item.insert("upstream_host", text(host));
        }
        None => item.insert("pass_host", text("node")),
    }
    if upstream.flag("use_srv_name") == Some(true) {
        found.push(upstream.doubt("use_srv_name", "no effect: targets get the Host that they are written with"));
    }
    balancing(upstream, &mut item, found);
    if scheme != "udp" {
        health::checks(upstream, &mut item, found);
    }
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
                let name = named("hash_on_uri_capture");
                if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                    found.push(
                        upstream.fault("hash_on_uri_capture", "expected the name of a group of a regular expression"),
                    );
                    return;
                }
                ("vars_combinations", format!("${{uri_param_{name}}}"))
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
