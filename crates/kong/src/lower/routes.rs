//! Routes, in the order and with the ranks of Kong's router.

use std::cmp::Reverse;

use regex::bytes::Regex;
use weir_config::{Diagnostic, Lowered, Mark, Matching, Node, ResourceKind};

use super::address::{Address, is_stream};
use super::plugins::Scoped;
use super::services;
use super::{GLOBAL, NO_ROUTE, expression, flag, list, map, number, text};
use crate::document::{Document, Entity, EntityKind};
use crate::rank::Conditions;

/// Adds the routes, of which the greater id wins where ranks are equal, and one that takes what no other takes.
pub(crate) fn lower(
    document: &Document,
    plugins: &Scoped<'_>,
    mark: Mark,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mut routes: Vec<(usize, &Entity)> = document.of(EntityKind::Routes).collect();
    routes.sort_by_key(|(_, route)| Reverse(route.id.to_ascii_lowercase()));
    for (number, route) in routes.into_iter().filter(|(_, route)| !is_stream(route)) {
        // Kong's router does not hold the routes of a service that is disabled.
        let service = route.reference("service").and_then(|number| document.entities.get(number));
        if service.is_some_and(|service| service.flag("enabled") == Some(false)) {
            continue;
        }
        self::route(document, number, route, plugins, lowered, found);
    }
    let matching = Matching { paths: vec!["/".to_owned()], ranks: vec![0], hosts: Vec::new() };
    let entity = weir_config::Entity {
        kind: "document",
        id: NO_ROUTE.to_owned(),
        path: "routes".to_owned(),
        matching: Some(matching),
        ..Default::default()
    };
    let nothing = map(mark, [("no-route", map(mark, []))]);
    let item = [("id", text(NO_ROUTE)), ("uri", text("/*")), ("plugins", nothing), ("plugin_config_id", text(GLOBAL))];
    lowered.add(ResourceKind::Routes, map(mark, item), entity);
}

fn route(
    document: &Document,
    at: usize,
    route: &Entity,
    plugins: &Scoped<'_>,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mark = route.node.mark;
    let before = found.len();
    let protocols = protocols(route, found);
    let headers = route.node.get("headers").and_then(Node::as_map).unwrap_or_default();
    let (hosts, mut paths) = (hosts(route, found), paths(route, found));
    let conditions = Conditions {
        hosts: &hosts,
        has_methods: !route.texts("methods").is_empty(),
        headers: headers.len(),
        has_snis: !route.texts("snis").is_empty(),
        paths: &paths.clone(),
        regex_priority: route.whole("regex_priority").and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
    };
    doubts(route, found);
    let expression = expression::of_route(route, found);
    let is_with_tls = protocols.iter().any(|protocol| matches!(protocol.as_str(), "https" | "grpcs"));
    let has_snis = conditions.has_snis && is_with_tls;
    let has_any = conditions.has_methods || !headers.is_empty() || !hosts.is_empty() || !paths.is_empty() || has_snis;
    if !has_any && expression.is_none() && found.len() == before {
        let text = match is_with_tls {
            true => "must set one of 'methods', 'hosts', 'headers', 'paths', 'snis' when 'protocols' is 'https'",
            false => "must set one of 'methods', 'hosts', 'headers', 'paths' when 'protocols' is 'http'",
        };
        found.push(Diagnostic::error(mark, route.path.as_str(), crate::document::rule(text)));
    }
    if let Some(expression) = &expression {
        paths = expression.paths.clone();
    }
    if paths.is_empty() {
        paths.push(String::new());
    }
    let rank = |path: &String| match &expression {
        Some(expression) => Conditions::of_expression(expression.priority),
        None => conditions.rank(path),
    };
    let ranks = paths.iter().map(rank).collect();
    // A route without paths takes every path.
    let matched: Vec<String> = paths.iter().map(|path| if path.is_empty() { "/" } else { path }.to_owned()).collect();
    let own = plugins.of_route(at, route.reference("service"));
    let mut all = own.node;
    let service = route.reference("service").and_then(|number| document.entities.get(number));
    let mut behaviour = behaviour(route, service, &paths, &protocols);
    if plugins.has_captures() || service.is_some_and(|service| services::hashes_captures(document, service)) {
        behaviour.insert("captures", flag(true));
    }
    all.insert("route", behaviour);
    let mut item = map(mark, [("id", text(&route.id)), ("uri", text("/*")), ("plugins", all)]);
    item.insert("plugin_config_id", text(GLOBAL));
    if let Some(name) = &route.name {
        item.insert("name", text(name));
    }
    if let Some(methods) = route.node.get("methods").filter(|methods| methods.as_seq() != Some(&[])) {
        item.insert("methods", methods.clone());
    }
    let mut all_vars = vars(route, headers, found);
    if conditions.has_snis {
        all_vars.push(snis(route, found));
    }
    all_vars.extend(expression.map(|expression| expression.condition));
    if !all_vars.is_empty() {
        item.insert("vars", list(mark, all_vars));
    }
    if let Some(timeouts) = plugins.timeouts(at, route.reference("service")) {
        item.insert("timeout", timeouts);
    }
    if let Some(service) = service {
        item.insert("service_id", text(&service.id));
        // The same upstream with the client's Host.
        if route.flag("preserve_host") == Some(true)
            && let Some(mut upstream) = services::upstream(document, service)
        {
            upstream.insert("pass_host", text("pass"));
            item.insert("upstream", upstream);
        }
    }
    let mut entity = route.origin();
    entity.elsewhere = own.elsewhere;
    entity.fields = vec![("vars", "headers"), ("uri", "paths"), ("service_id", "service")];
    entity.matching = Some(Matching { paths: matched, ranks, hosts });
    lowered.add(ResourceKind::Routes, item, entity);
}

/// Says what has no effect, or stands where it may not.
fn doubts(route: &Entity, found: &mut Vec<Diagnostic>) {
    for field in ["sources", "destinations"] {
        let given = route.node.get(field).and_then(Node::as_seq);
        if given.is_some_and(|items| !items.is_empty()) {
            found.push(route.fault(field, "only for routes of streams, whose 'protocols' are tcp, tls or udp"));
        }
    }
    if route.text("path_handling") == Some("v1") {
        found.push(
            route.doubt("path_handling", "v1 has no effect, as in Kong with the router flavor traditional_compatible"),
        );
    }
}

fn protocols(route: &Entity, found: &mut Vec<Diagnostic>) -> Vec<String> {
    let protocols = route.texts("protocols");
    for protocol in &protocols {
        match protocol.as_str() {
            "http" | "https" | "grpc" | "grpcs" => {}
            // A WebSocket begins as a request over HTTP.
            "ws" | "wss" => {}
            "tcp" | "tls" | "udp" | "tls_passthrough" => {
                let text = "a route is for requests (http, https, grpc, grpcs) or for streams, not for both";
                found.push(route.fault("protocols", text));
            }
            other => found.push(route.fault("protocols", format!("invalid value: {other}"))),
        }
    }
    if protocols.is_empty() { vec!["http".to_owned(), "https".to_owned()] } else { protocols }
}

fn hosts(route: &Entity, found: &mut Vec<Diagnostic>) -> Vec<String> {
    let hosts = route.texts("hosts");
    for host in &hosts {
        let inner = host.strip_prefix("*.").or_else(|| host.strip_suffix(".*")).unwrap_or(host);
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b);
        if inner.is_empty() || !inner.bytes().all(allowed) || inner.len() < host.len() && inner.contains(':') {
            let expected = "expected a host such as example.com, *.example.com, example.* or example.com:8080";
            found.push(route.fault("hosts", format!("invalid value: {host}; {expected}")));
        }
    }
    hosts
}

fn paths(route: &Entity, found: &mut Vec<Diagnostic>) -> Vec<String> {
    let items = route.node.get("paths").and_then(Node::as_seq).unwrap_or_default();
    let mut paths = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let Some(path) = item.as_str() else { continue };
        let mut fault = |text: &str| {
            let path = format!("{}[{at}]", route.at("paths"));
            found.push(Diagnostic::error(item.mark, path, crate::document::rule(text)));
        };
        if !path.starts_with(['/', '~']) || path.starts_with('~') && !path.starts_with("~/") {
            fault("should start with: / (fixed path) or ~/ (regex path)");
        } else if path.starts_with('/') && path.contains("//") {
            fault("must not have empty segments");
        } else if let Some(regex) = path.strip_prefix('~')
            && let Err(error) = Regex::new(&format!("^{regex}"))
        {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            fault(&format!("invalid regex: '{regex}' ({reason})"));
            continue;
        }
        paths.push(path.to_owned());
        if path.contains('<') && !path.starts_with('~') {
            let text = "matched by its letters: a parameter is a regular expression such as ~/user/(?<email>[^/]+)";
            let path = format!("{}[{at}]", route.at("paths"));
            found.push(Diagnostic::warning(item.mark, path, crate::document::rule(text)));
        }
    }
    paths
}

/// Conditions on headers: a value equal to one of those given, in any case; after `~*` a regular expression.
fn vars(route: &Entity, headers: &[(weir_config::Key, Node)], found: &mut Vec<Diagnostic>) -> Vec<Node> {
    let mut vars = Vec::with_capacity(headers.len());
    for (name, values) in headers {
        if name.text.eq_ignore_ascii_case("host") {
            found.push(
                route
                    .fault("headers", "cannot contain 'host' header, which must be specified in the 'hosts' attribute"),
            );
        }
        let values = match values.as_seq() {
            Some(values) => values.iter().filter_map(Node::as_str).collect::<Vec<_>>(),
            None => values.as_str().into_iter().collect(),
        };
        let regex = match values[..] {
            [value] if value.starts_with("~*") => value.trim_start_matches("~*").to_owned(),
            _ => format!("^(?:{})$", values.iter().map(|value| escaped(value)).collect::<Vec<_>>().join("|")),
        };
        let variable = format!("http_{}", name.text.to_ascii_lowercase().replace('-', "_"));
        vars.push(list(name.mark, vec![text(&variable), text("~*"), text(&regex)]));
    }
    vars
}

/// The condition on the name that a client asks for by TLS, which requests without TLS meet.
fn snis(route: &Entity, found: &mut Vec<Diagnostic>) -> Node {
    let mark = route.node.get("snis").map_or(route.node.mark, |snis| snis.mark);
    let mut names = Vec::new();
    for sni in route.texts("snis") {
        let name = sni.strip_suffix('.').unwrap_or(&sni);
        let (start, end) = match (name.strip_prefix('*'), name.strip_suffix('*')) {
            (Some(end), _) => ("", end),
            (None, Some(start)) => (start, ""),
            (None, None) => (name, ""),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let is_wild = start.len() + end.len() < name.len();
        let is_whole = !is_wild || end.starts_with('.') && end.len() > 1 || start.ends_with('.') && start.len() > 1;
        if name.is_empty() || !is_whole || !start.bytes().chain(end.bytes()).all(allowed) {
            let expected = "expected a name such as example.com, *.example.com or example.*";
            found.push(route.fault("snis", format!("invalid value: {sni}; {expected}")));
        }
        let rest = if is_wild { ".*" } else { "" };
        names.push(match end.is_empty() {
            true => format!("{}{rest}", escaped(start)),
            false => format!("{rest}{}", escaped(end)),
        });
    }
    let plain = list(mark, vec![text("scheme"), text("=="), text("http")]);
    let regex = format!("^(?:{})$", names.join("|"));
    let named = list(mark, vec![text("ssl_server_name"), text("~*"), text(&regex)]);
    list(mark, vec![text("OR"), plain, named])
}

/// A text as a regular expression for it alone.
pub(crate) fn escaped(value: &str) -> String {
    value.chars().flat_map(|c| (!c.is_ascii_alphanumeric()).then_some('\\').into_iter().chain([c])).collect()
}

/// The configuration of the plugin `route`.
fn behaviour(route: &Entity, service: Option<&Entity>, paths: &[String], protocols: &[String]) -> Node {
    let mark = route.node.mark;
    let is_grpc = protocols.iter().any(|protocol| protocol.starts_with("grpc"));
    let has = |one: &str, other: &str| protocols.iter().any(|protocol| protocol == one || protocol == other);
    let mut conf = map(
        mark,
        [
            ("paths", list(mark, paths.iter().map(|path| text(path)).collect())),
            ("strip_path", flag(route.flag("strip_path").unwrap_or(!is_grpc))),
            ("plain", flag(has("http", "grpc") || has("ws", "ws"))),
            ("grpc", flag(is_grpc)),
            ("https_redirect_status_code", number(route.whole("https_redirect_status_code").unwrap_or(426))),
        ],
    );
    let base = service.and_then(|service| Address::of(service, &mut Vec::new())).and_then(|address| address.path);
    if let Some(base) = base {
        conf.insert("base", text(&base));
    }
    conf
}
