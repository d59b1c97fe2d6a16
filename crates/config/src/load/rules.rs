//! Rules that a schema cannot state: rules between fields, spellings that are taken for another, and doubtful values.
//!
//! The rules apply to the tree rather than to the typed resource, so that their faults are reported together with all
//! others of an item.

use super::checks::prepare_checks;
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Node, push_index, push_name, quoted};
use crate::resource::{Balancer, HashKey, HashOn, NodeHost, node_from_key};
use crate::secret::{is_reference, no_such_manager, unsupported};
use crate::settings::RouterMode;
use crate::settings::UNIX;
use crate::unsupported::{Owner, take_out};
use weir_expr::{Template, VariableError};

/// True for a time limit in seconds that was probably meant in milliseconds. A number of whole hours up to a week is what people
/// mean who write it, and so is a number of minutes that is no round one of milliseconds.
pub(super) fn looks_like_milliseconds(seconds: f64) -> bool {
    let whole = |unit: f64| seconds % unit == 0.0;
    let meant = seconds <= 604_800.0 && (whole(3600.0) || (whole(60.0) && !whole(1000.0)));
    seconds >= 1000.0 && !meant
}

/// Takes null fields away, with a warning each: null is no value. For `plugins` it is an empty mapping.
pub(super) fn drop_nulls(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Kind::Map(entries) = &mut node.kind else { return };
    if entries.iter().all(|(_, value)| !value.is_null()) {
        return;
    }
    entries.retain_mut(|(key, value)| {
        if !value.is_null() {
            return true;
        }
        let (keep, meaning) = match &*key.text {
            "plugins" | "nodes" => (true, "an empty mapping"),
            _ => (false, "not set"),
        };
        found.push(Diagnostic::warning(key.mark, field(path, &key.text), Code::NullTaken { meaning }));
        value.kind = Kind::Map(Vec::new());
        keep
    });
}

/// The rules of a route.
pub(super) fn check_route(node: &Node, path: &str, router: RouterMode, found: &mut Vec<Diagnostic>) {
    let has = |name: &str| node.get(name).is_some();
    for (one, several) in [("uri", "uris"), ("host", "hosts"), ("remote_addr", "remote_addrs")] {
        if has(one) && has(several) {
            let code = Code::OnlyOneOf { one, other: several };
            found.push(Diagnostic::error(node.mark_of(several), field(path, several), code));
        }
    }
    if !has("uri") && !has("uris") {
        found.push(Diagnostic::error(node.mark, path, Code::RouteWithoutPath));
    }
    let action = ["plugins", "upstream", "upstream_id", "service_id", "script"].into_iter().any(has);
    for other in ["plugins", "plugin_config_id"].into_iter().filter(|other| has("script") && has(other)) {
        let code = Code::OnlyOneOf { one: "script", other };
        found.push(Diagnostic::error(node.mark_of("script"), field(path, "script"), code));
    }
    if !action {
        found.push(Diagnostic::error(node.mark, path, Code::RouteWithoutPurpose));
    }
    check_upstream_choice(node, path, found);
    check_timeout(node, path, found);
    let uris = node.get("uris").and_then(Node::as_seq).unwrap_or_default();
    for (index, uri) in node.get("uri").into_iter().chain(uris).enumerate() {
        let Some(text) = uri.as_str() else { continue };
        let place = || match has("uri") {
            true => field(path, "uri"),
            false => {
                let mut place = field(path, "uris");
                push_index(&mut place, index);
                place
            }
        };
        if !text.starts_with(['/', '*']) && !text.is_empty() {
            found.push(Diagnostic::warning(uri.mark, place(), Code::NeverMatches { path: quoted(text) }));
        }
        if router != RouterMode::RadixtreeUriWithParameter && text.contains("/:") {
            let code = Code::MatchedLiterally { path: quoted(text) };
            let hint = "parameters need the router radixtree_uri_with_parameter";
            found.push(Diagnostic::warning(uri.mark, place(), code).with_hint(hint));
        }
    }
}

/// The rules of a stream route.
pub(super) fn check_stream_route(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    if !["upstream", "upstream_id", "service_id"].into_iter().any(|name| node.get(name).is_some()) {
        found.push(Diagnostic::warning(node.mark, path, Code::StreamRouteWithoutUpstream));
    }
    check_upstream_choice(node, path, found);
}

/// The rules of a service.
pub(super) fn check_service(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    check_upstream_choice(node, path, found);
}

/// Checks the fields of a secret manager, which depend on its kind.
pub(super) fn check_secret_manager(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some(id) = node.get("id").filter(|id| id.as_str().is_some_and(|id| id.contains('/'))) else {
        found.push(Diagnostic::error(node.mark_of("id"), field(path, "id"), Code::ManagerWithoutKind));
        node.remove("id");
        return;
    };
    let mark = id.mark;
    let kind = id.as_str().and_then(|id| id.split_once('/')).map(|(kind, _)| kind.to_owned()).unwrap_or_default();
    let (needed, foreign): (&[&'static str], &[&'static str]) = match kind.as_str() {
        "vault" => (&["uri", "prefix", "token"], &["directory"]),
        "file" => (&["directory"], &["uri", "prefix", "token", "namespace"]),
        _ => {
            let code = match unsupported(&kind) {
                Some(name) => Code::NotSupported { feature: name.into() },
                None => no_such_manager(&kind),
            };
            found.push(Diagnostic::error(mark, field(path, "id"), code));
            // The fields of another manager have no meaning here.
            if let Kind::Map(entries) = &mut node.kind {
                entries.retain(|(key, _)| &*key.text == "id");
            }
            return;
        }
    };
    for name in needed.iter().filter(|name| node.get(name).is_none()) {
        found.push(Diagnostic::error(node.mark, path, Code::ManagerNeeds { kind: kind.clone(), field: name }));
    }
    for name in foreign.iter().filter(|name| node.get(name).is_some()) {
        let code = Code::ManagerWithout { kind: kind.clone(), field: name };
        found.push(Diagnostic::error(node.mark_of(name), field(path, name), code));
    }
    if node.get("token").and_then(Node::as_str).is_some_and(|token| token.starts_with("$secret://")) {
        found.push(Diagnostic::error(node.mark_of("token"), field(path, "token"), Code::TokenInManager));
    }
}

/// The rules of a certificate.
pub(super) fn check_ssl(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let has = |name: &str| node.get(name).is_some();
    let texts = |name: &str| node.get(name).and_then(Node::as_seq).unwrap_or_default();
    if has("sni") && has("snis") {
        let code = Code::OnlyOneOf { one: "sni", other: "snis" };
        found.push(Diagnostic::error(node.mark_of("snis"), field(path, "snis"), code));
    }
    let is_client = node.get("type").and_then(Node::as_str) == Some("client");
    if !is_client && !has("sni") && !has("snis") {
        found.push(Diagnostic::error(node.mark, path, Code::SslWithoutNames));
    }
    if is_client && has("client") {
        let why = "with type: client, which is shown to upstreams".into();
        found.push(Diagnostic::warning(node.mark_of("client"), field(path, "client"), Code::NoEffect { why }));
    }
    let (certs, keys) = (texts("certs").len(), texts("keys").len());
    if certs != keys {
        let more = if certs > keys { "certs" } else { "keys" };
        found.push(Diagnostic::error(node.mark_of(more), field(path, more), Code::UnevenKeys { certs, keys }));
    }
    for name in ["cert", "key"] {
        if let Some(text) = node.get(name).and_then(Node::as_str)
            && !text.trim_start().starts_with("-----BEGIN ")
            && !is_reference(text)
            && !found.iter().any(|found| found.is_error() && found.path == field(path, name))
        {
            let error = Diagnostic::error(node.mark_of(name), field(path, name), Code::PemExpected);
            found.push(error.with_hint("the text itself stands here, not the path of a file"));
        }
    }
    let protocols = texts("ssl_protocols");
    let old = protocols.iter().filter(|version| version.as_str() == Some("TLSv1.1")).count();
    if old > 0 && old == protocols.len() {
        found.push(Diagnostic::error(node.mark_of("ssl_protocols"), field(path, "ssl_protocols"), Code::OnlyOldTls));
    } else if old > 0 {
        found.push(Diagnostic::warning(node.mark_of("ssl_protocols"), field(path, "ssl_protocols"), Code::OldTls));
    }
}

fn check_upstream_choice(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    if let (Some((key, _)), true) = (node.entry("upstream"), node.get("upstream_id").is_some()) {
        let code = Code::NoEffect { why: "beside upstream_id".into() };
        found.push(Diagnostic::warning(key.mark, field(path, "upstream"), code));
    }
}

/// The nodes come from a registry, or stand in the upstream.
fn check_discovery(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let service = [("service_name", "discovery_type"), ("discovery_type", "service_name")];
    let registry = node.get("discovery_type").and_then(Node::as_str).map(str::to_owned);
    if let Some((key, args)) = node.entry("discovery_args")
        && args.as_map().is_some_and(|args| !args.is_empty())
        && !matches!(registry.as_deref(), Some("nacos" | "http"))
    {
        let why = registry
            .as_ref()
            .map_or("without discovery_type".into(), |name| format!("with discovery_type: {name}").into());
        found.push(Diagnostic::warning(key.mark, field(path, "discovery_args"), Code::NoEffect { why }));
    }
    let Some((key, _)) = service.iter().find_map(|(name, _)| node.entry(name)) else { return };
    let mark = key.mark;
    if node.get("nodes").is_some() {
        let code = Code::OnlyOneOf { one: "nodes", other: "service_name" };
        found.push(Diagnostic::error(mark, field(path, "service_name"), code));
        return;
    }
    let name = node.get("service_name").and_then(Node::as_str);
    let is_url = |name: &str| name.starts_with("http://") || name.starts_with("https://");
    if registry.as_deref() == Some("http") && name.is_some_and(|name| !is_url(name)) {
        let code = Code::Expected { what: "a URL such as http://HOST:PORT/PATH" };
        found.push(Diagnostic::error(mark, field(path, "service_name"), code));
    }
    for (_, missing) in service.iter().filter(|(_, other)| node.get(other).is_none()) {
        found.push(Diagnostic::error(mark, path, Code::MissingField { field: (*missing).to_owned() }));
    }
    node.insert("nodes", Node::empty_map());
}

/// The rules of an upstream; what is not supported and what has no effect is taken out of it.
pub(crate) fn prepare_upstream(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    drop_nulls(node, path, found);
    for name in ["timeout", "keepalive_pool"] {
        if let Some(inner) = node.get_mut(name) {
            drop_nulls(inner, &field(path, name), found);
        }
    }
    let taken = take_out(Owner::Upstream, node, path, found);
    check_discovery(node, path, found);
    mend_type(node, path, found);
    check_hash(node, path, found);
    let pass_host = node.get("pass_host").and_then(Node::as_str).unwrap_or("pass");
    match node.entry("upstream_host") {
        None if pass_host == "rewrite" => {
            found.push(Diagnostic::error(node.mark_of("pass_host"), field(path, "pass_host"), Code::NoUpstreamHost));
        }
        Some((key, _)) if pass_host != "rewrite" => {
            let code = Code::NoEffect { why: format!("with pass_host: {pass_host}").into() };
            found.push(Diagnostic::warning(key.mark, field(path, "upstream_host"), code));
        }
        _ => {}
    }
    if let (Some((key, _)), Some(_)) = (node.entry("keepalive_pool"), node.get("proxy_protocol")) {
        let why = "with proxy_protocol: such a connection is for one request".into();
        found.push(Diagnostic::warning(key.mark, field(path, "keepalive_pool"), Code::NoEffect { why }));
    }
    check_tunnel(node, path, found);
    check_timeout(node, path, found);
    check_what_checks_reach(node, path, found);
    check_http2(node, path, found);
    let speaks_tls = speaks_tls(node);
    if let Some(checks) = node.get_mut("checks") {
        prepare_checks(checks, speaks_tls, &field(path, "checks"), found);
    }
    if let Some(tls) = node.get_mut("tls") {
        drop_nulls(tls, &field(path, "tls"), found);
    }
    check_upstream_tls(node, path, found);
    check_stream_nodes(node, path, found);
    let scheme_is_written = node.get("scheme").is_some() || taken.contains(&"scheme");
    if let Some(nodes) = node.get_mut("nodes") {
        prepare_nodes(nodes, &field(path, "nodes"), scheme_is_written, found);
    }
}

/// Nodes of a stream have a port each, and so nothing of HTTP.
fn check_stream_nodes(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some(scheme @ ("tcp" | "tls" | "udp")) = node.get("scheme").and_then(Node::as_str) else { return };
    let nodes = field(path, "nodes");
    for (key, _) in node.get("nodes").and_then(Node::as_map).unwrap_or_default() {
        if node_from_key(&key.text, 0).is_ok_and(|node| node.has_no_port()) {
            found.push(Diagnostic::error(key.mark, field(&nodes, &key.text), Code::NodeWithoutPort));
        }
    }
    for (index, item) in node.get("nodes").and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
        let host = item.get("host").and_then(Node::as_str).and_then(|host| NodeHost::new(host).ok());
        if item.get("port").is_none() && host.is_some_and(|host| host.refuses_port().is_none()) {
            let mut path = nodes.clone();
            push_index(&mut path, index);
            found.push(Diagnostic::error(item.mark, path, Code::NodeWithoutPort));
        }
    }
    for name in ["http2", "pass_host", "upstream_host", "keepalive_pool"] {
        if let Some((key, _)) = node.entry(name) {
            let code = Code::NoEffect { why: format!("with scheme: {scheme}").into() };
            found.push(Diagnostic::warning(key.mark, field(path, name), code));
        }
    }
    if let ("udp", Some((key, _))) = (scheme, node.entry("proxy_protocol")) {
        let code = Code::NotSupported { feature: "proxy_protocol of an upstream with scheme: udp".into() };
        found.push(Diagnostic::error(key.mark, field(path, "proxy_protocol"), code));
    }
}

/// The proxy knows the client that it is told of, and streams may begin with the server.
fn check_tunnel(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some((key, _)) = node.entry("tunnel") else { return };
    let is_stream = matches!(node.get("scheme").and_then(Node::as_str), Some("tcp" | "tls" | "udp"));
    for (is_refused, with) in [
        (is_stream, "an upstream for streams"),
        (node.get("proxy_protocol").is_some(), "proxy_protocol"),
        (node.get("service_name").is_some(), "service_name"),
    ] {
        if is_refused {
            let code = Code::NotSupported { feature: format!("tunnel together with {with}").into() };
            found.push(Diagnostic::error(key.mark, field(path, "tunnel"), code));
        }
    }
}

fn speaks_tls(upstream: &Node) -> bool {
    matches!(upstream.get("scheme").and_then(Node::as_str), Some("https" | "grpcs" | "tls"))
}

fn speaks_grpc(upstream: &Node) -> bool {
    matches!(upstream.get("scheme").and_then(Node::as_str), Some("grpc" | "grpcs"))
}

/// Connections over HTTP/2 carry the requests of many clients.
fn check_http2(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let http2 = node.entry("http2").filter(|(_, value)| value.kind == Kind::Bool(true));
    if let (Some((key, _)), true) = (http2, speaks_grpc(node)) {
        let code = Code::NoEffect { why: "with scheme: grpc and grpcs, which are HTTP/2".into() };
        found.push(Diagnostic::warning(key.mark, field(path, "http2"), code));
    }
    if let Some((key, _)) = node.entry("proxy_protocol")
        && (http2.is_some() || speaks_grpc(node))
    {
        let code = Code::NotSupported { feature: "proxy_protocol on connections over HTTP/2".into() };
        found.push(Diagnostic::error(key.mark, field(path, "proxy_protocol"), code));
    }
}

fn check_upstream_tls(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some(tls) = node.get("tls") else { return };
    let path = field(path, "tls");
    let has = |name: &str| tls.get(name).is_some();
    for (one, other) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
        if has(one) && !has(other) {
            let code = Code::FieldNeeds { field: one, other };
            found.push(Diagnostic::error(tls.mark_of(one), field(&path, one), code));
        }
    }
    let verifies = tls.get("verify").is_some_and(|verify| verify.kind == Kind::Bool(true));
    if let (Some((key, _)), false) = (tls.entry("ca"), verifies) {
        let code = Code::NoEffect { why: "without verify: true".into() };
        found.push(Diagnostic::warning(key.mark, field(&path, "ca"), code));
    }
    if has("client_cert_id") && has("client_cert") {
        let code = Code::OnlyOneOf { one: "client_cert_id", other: "client_cert" };
        found.push(Diagnostic::error(tls.mark_of("client_cert_id"), field(&path, "client_cert_id"), code));
    }
    if tls.as_map().is_some_and(|fields| !fields.is_empty()) && !speaks_tls(node) {
        let code = Code::NoEffect { why: "without scheme: https".into() };
        found.push(Diagnostic::warning(tls.mark, path, code));
    }
}

/// `round-robin` is what people write and what APISIX accepts, to fail at the first request.
fn mend_type(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some(value) = node.get_mut("type") else { return };
    let Kind::Str(text) = &mut value.kind else { return };
    let plain: String = text.chars().filter(char::is_ascii_alphabetic).collect();
    if text != "roundrobin" && plain.eq_ignore_ascii_case("roundrobin") {
        let code = Code::TakenAsRoundrobin { text: quoted(text) };
        found.push(Diagnostic::warning(value.mark, field(path, "type"), code));
        "roundrobin".clone_into(text);
    }
}

/// Checks the hashed value of `type: chash`, which has no effect for every other type.
fn check_hash(node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let text = |node: &Node, name: &str| node.get(name).and_then(Node::as_str).map(str::to_owned);
    let balancer = text(node, "type").unwrap_or_else(|| Balancer::default().name().to_owned());
    if balancer != Balancer::Chash.name() {
        for name in ["key", "hash_on"] {
            if let Some((key, _)) = node.remove(name) {
                let code = Code::NoEffect { why: format!("with the type {balancer}").into() };
                found.push(Diagnostic::warning(key.mark, field(path, name), code));
            }
        }
        return;
    }
    // The schema reports a value that is not a text, or not a known way to hash.
    let hash_on = match node.get("hash_on") {
        None => HashOn::default(),
        Some(written) => match written.parse_into() {
            Ok(hash_on) => hash_on,
            Err(_) => return,
        },
    };
    if node.get("key").is_some_and(|key| key.as_str().is_none()) {
        return;
    }
    match HashKey::new(hash_on, text(node, "key").as_deref()) {
        Err(code) => {
            let at = if node.get("key").is_some() { "key" } else { "type" };
            found.push(Diagnostic::error(node.mark_of(at), field(path, at), code));
        }
        Ok(_) if hash_on == HashOn::Consumer => {
            if let Some((key, _)) = node.remove("key") {
                let code = Code::NoEffect { why: "with hash_on: consumer".into() };
                found.push(Diagnostic::warning(key.mark, field(path, "key"), code));
            }
        }
        Ok(key) if key.variables().next().is_none() => {
            found.push(Diagnostic::warning(node.mark_of("key"), field(path, "key"), Code::HashKeyConstant));
        }
        Ok(_) => {
            let doubts = doubts_of_key(hash_on, &text(node, "key").unwrap_or_default()).into_iter();
            found.extend(doubts.map(|reason| {
                Diagnostic::warning(node.mark_of("key"), field(path, "key"), Code::HashKeyDoubtful { reason })
            }));
        }
    }
}

/// Doubtful parts of a key that can be compiled: `$http_header_x` for `$http_x`.
fn doubts_of_key(hash_on: HashOn, key: &str) -> Vec<String> {
    match hash_on {
        HashOn::Header => VariableError::doubt(&format!("http_{key}")).iter().map(ToString::to_string).collect(),
        HashOn::VarsCombinations => {
            let doubtful = Template::unknown(key).into_iter().filter(|error| error.reason.is_doubtful());
            doubtful.map(|error| error.to_string()).collect()
        }
        HashOn::Vars | HashOn::Cookie | HashOn::Consumer => Vec::new(),
    }
}

/// Reports nodes whose host or port is wrong, each at its place, and takes them out.
fn prepare_nodes(nodes: &mut Node, path: &str, scheme_is_written: bool, found: &mut Vec<Diagnostic>) {
    let no_port = |mark, path: &str, found: &mut Vec<Diagnostic>| {
        if !scheme_is_written {
            found.push(Diagnostic::warning(mark, path, Code::PortOfScheme));
        }
    };
    match &mut nodes.kind {
        Kind::Map(entries) => entries.retain(|(key, _)| match node_from_key(&key.text, 0) {
            Ok(node) => {
                if node.has_no_port() {
                    no_port(key.mark, &field(path, &key.text), found);
                }
                true
            }
            Err(fault) => {
                found.push(Diagnostic::error(key.mark, field(path, &key.text), Code::Node { fault }));
                false
            }
        }),
        Kind::Seq(items) => {
            let mut index = 0;
            items.retain_mut(|item| {
                let mut path = path.to_owned();
                push_index(&mut path, index);
                index += 1;
                drop_nulls(item, &path, found);
                part_host_and_port(item, &path, found);
                let host = item.get("host").and_then(Node::as_str).map(NodeHost::new);
                let no_port_of_its_own = match &host {
                    Some(Ok(host)) => host.refuses_port(),
                    _ => None,
                };
                match (item.entry("port"), no_port_of_its_own) {
                    (Some((_, port)), Some(fault)) => {
                        found.push(Diagnostic::error(port.mark, field(&path, "port"), Code::Node { fault }));
                        return false;
                    }
                    (None, None) if item.as_map().is_some() => no_port(item.mark, &path, found),
                    _ => {}
                }
                let Some(written) = item.get("host") else { return true };
                match host {
                    Some(Err(fault)) => {
                        let code = Code::NodeHost { host: written.describe(), fault };
                        found.push(Diagnostic::error(written.mark, field(&path, "host"), code));
                        false
                    }
                    _ => true,
                }
            });
        }
        _ => {}
    }
}

/// A host that holds a port, which APISIX takes for a name and finds no address for: the port of the node.
fn part_host_and_port(item: &mut Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some(host) = item.get("host").filter(|host| host.as_str().is_some_and(|text| NodeHost::new(text).is_err()))
    else {
        return;
    };
    let (mark, text) = (host.mark, host.as_str().unwrap_or_default().to_owned());
    let Ok(node) = node_from_key(&text, 0) else { return };
    if node.has_no_port() {
        return;
    }
    let port = i64::from(node.port);
    match item.get("port").map(|port| port.kind.clone()) {
        None => item.insert("port", Node { mark, kind: Kind::Int(port) }),
        Some(Kind::Int(told)) if told == port => {}
        Some(_) => return,
    }
    item.insert("host", Node { mark, kind: Kind::Str(node.host.to_string()) });
    let code = Code::HostHoldsPort { text: quoted(&text), host: node.host.to_string(), port };
    found.push(Diagnostic::warning(mark, field(path, "host"), code));
}

/// Bytes of content that a server takes before it has announced any window (RFC 9113 section 6.9.2).
const MOST_OVER_HTTP2: usize = 65_535;

/// Health checks open connections of their own, over TCP and without a PROXY header: what needs another kind would be
/// found dead.
fn check_what_checks_reach(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let Some((key, _)) = node.entry("checks") else { return };
    let on_unix = |text: &str| text.starts_with(UNIX);
    let nodes = node.get("nodes");
    let by_key = nodes.and_then(Node::as_map).unwrap_or_default().iter().any(|(key, _)| on_unix(&key.text));
    let mut hosts =
        nodes.and_then(Node::as_seq).unwrap_or_default().iter().filter_map(|item| item.get("host")?.as_str());
    let mut refuse = |feature: &str| {
        let code = Code::NotSupported { feature: format!("health checks {feature}").into() };
        found.push(Diagnostic::error(key.mark, field(path, "checks"), code));
    };
    if by_key || hosts.any(on_unix) {
        refuse("of a node on a Unix socket");
    }
    for name in ["proxy_protocol", "tunnel"] {
        if node.get(name).is_some() {
            refuse(&format!("together with {name}"));
        }
    }
    let active = node.get("checks").and_then(|checks| checks.get("active"));
    let kind = active.and_then(|active| active.get("type")).and_then(Node::as_str);
    let speaks_http2 = speaks_grpc(node) || node.get("http2").is_some_and(|http2| http2.kind == Kind::Bool(true));
    let body = active.and_then(|active| active.get("http_req_body")).and_then(Node::as_str).unwrap_or_default();
    let has_port = active.is_some_and(|active| active.get("port").is_some());
    if speaks_http2 && !has_port && !matches!(kind, Some("tcp" | "grpc")) && body.len() > MOST_OVER_HTTP2 {
        refuse("over HTTP/2 with `http_req_body` of more than 65,535 bytes");
    }
}

fn check_timeout(node: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    for (key, value) in node.get("timeout").and_then(Node::as_map).unwrap_or_default() {
        let seconds = match value.kind {
            Kind::Int(number) => number as f64,
            Kind::Float(number) => number,
            _ => continue,
        };
        if looks_like_milliseconds(seconds) {
            let code = Code::LongTime { seconds: value.describe() };
            let hint = "the unit is seconds, not milliseconds";
            let path = field(&field(path, "timeout"), &key.text);
            found.push(Diagnostic::warning(value.mark, path, code).with_hint(hint));
        }
    }
}

/// The path of a field.
pub(super) fn field(path: &str, name: &str) -> String {
    let mut path = path.to_owned();
    push_name(&mut path, name);
    path
}
