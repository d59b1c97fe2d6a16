//! Targets of APIs: upstreams, and what of a target URL stands before the path of a request.

use weir_config::{Diagnostic, Kind, Node};

use super::{Scripts, flag, list, map, number, text, tls, uptime};
use crate::conf::Conf;
use crate::definition::Definition;

/// The parts of a URL.
pub(super) struct Url {
    scheme: &'static str,
    pub(super) host: String,
    pub(super) port: i64,
}

/// True for an API whose targets a service tells.
fn is_discovered(api: &Definition) -> bool {
    api.flag("proxy.service_discovery.use_discovery_service") && !api.flag("proxy.service_discovery_disabled")
}

/// Adds the service that tells the targets.
fn add_discovery(api: &Definition, item: &mut Node, found: &mut Vec<Diagnostic>) {
    const PLACE: &str = "proxy.service_discovery";
    let of = |field: &str| api.at(&format!("{PLACE}.{field}"));
    let url = api.text("proxy.service_discovery.query_endpoint");
    if !url.starts_with("http://") && !url.starts_with("https://") {
        let text = format!("expected a URL such as http://example.com:8500/v1/catalog/service/a, found '{url}'");
        found.push(api.fault("proxy.service_discovery.query_endpoint", text));
        return;
    }
    let mut args = map(api.node.mark, []);
    for (written, name) in [
        ("data_path", "data_path"),
        ("port_data_path", "port_path"),
        ("parent_data_path", "parent_path"),
        ("use_nested_query", "nested"),
        ("use_target_list", "all"),
    ] {
        if let Some(value) = of(written) {
            args.insert(name, value.clone());
        }
    }
    let seconds = api.number("proxy.service_discovery.cache_timeout");
    let interval = match (of("cache_disabled").is_some_and(|flag| flag.kind == Kind::Bool(true)), seconds) {
        (true, _) => Some(1.0),
        (false, seconds) if seconds > 0.0 => Some(seconds.clamp(1.0, 86_400.0)),
        _ => None,
    };
    if let Some(interval) = interval {
        args.insert("interval", number(interval as i64));
    }
    item.insert("service_name", text(url));
    item.insert("discovery_type", text("http"));
    item.insert("discovery_args", args);
}

/// Name of the API that the target URL leads to inside the gateway.
pub(super) fn loop_of(api: &Definition) -> Option<&str> {
    weir_plugins::tyk::parse_loop(api.text("proxy.target_url")).map(|(name, _)| name)
}

/// The upstream of an API.
pub(super) fn upstream(
    api: &Definition,
    (conf, files): (&Conf, &Scripts),
    found: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let mark = api.node.mark;
    if loop_of(api).is_some() {
        return Some(map(mark, [("nodes", map(mark, []))]));
    }
    let is_balanced = api.flag("proxy.enable_load_balancing");
    let mut urls: Vec<(&str, &str)> = Vec::new();
    if is_balanced {
        let targets = api.at("proxy.target_list").and_then(Node::as_seq).unwrap_or_default();
        urls.extend(targets.iter().filter_map(Node::as_str).map(|url| ("proxy.target_list", url)));
        let listed = api.at("proxy.structured_target_list").and_then(Node::as_seq).unwrap_or_default();
        let structured = listed.iter().filter_map(|entry| entry.get("url").and_then(Node::as_str));
        if urls.is_empty() {
            urls.extend(structured.map(|url| ("proxy.structured_target_list", url)));
        }
    }
    if urls.is_empty() {
        urls.push(("proxy.target_url", api.text("proxy.target_url")));
    }
    let mut nodes: Vec<(Url, i64)> = Vec::new();
    for (field, url) in urls {
        let Some(parsed) = parse(url, is_balanced) else {
            let text = format!("expected a URL such as http://example.com:8080/path, found '{url}'");
            found.push(api.fault(field, text));
            return None;
        };
        match nodes.iter_mut().find(|(known, _)| known.host == parsed.host && known.port == parsed.port) {
            Some((_, weight)) => *weight += 1,
            None => nodes.push((parsed, 1)),
        }
    }
    let checks = uptime::checks(api, conf, &nodes, is_balanced, found);
    let scheme = nodes.first().map_or("http", |(url, _)| url.scheme);
    if nodes.iter().any(|(url, _)| url.scheme != scheme) {
        found.push(api.fault("proxy.target_list", "targets with http and with https in one list are not supported"));
        return None;
    }
    let default = if scheme == "https" { 443 } else { 80 };
    let host = |(url, _): &(Url, i64)| match url.port {
        port if port == default => url.host.clone(),
        port => format!("{}:{port}", url.host),
    };
    let hosts: Vec<String> = nodes.iter().map(host).collect();
    let nodes = nodes.into_iter().map(|(url, weight)| {
        map(mark, [("host", text(&url.host)), ("port", number(url.port)), ("weight", number(weight))])
    });
    let mut item = map(mark, [("scheme", text(scheme)), ("retries", number(0))]);
    match is_discovered(api) {
        true => add_discovery(api, &mut item, found),
        false => item.insert("nodes", list(mark, nodes.collect())),
    }
    item.insert("pass_host", text(if api.flag("proxy.preserve_host_header") { "pass" } else { "node" }));
    if scheme == "https" {
        let skips = conf.skips_verification || api.flag("proxy.transport.ssl_insecure_skip_verify");
        let mut tls = map(mark, [("verify", flag(!skips))]);
        for (field, value) in tls::of_upstream(api, &hosts, files, found)? {
            tls.insert(field, value);
        }
        item.insert("tls", tls);
    }
    if let Some(checks) = checks {
        item.insert("checks", checks);
    }
    if conf.proxy_default_timeout > 0 {
        let seconds = || Node { mark, kind: Kind::Float(f64::from(conf.proxy_default_timeout)) };
        item.insert("timeout", map(mark, [("connect", seconds()), ("send", seconds()), ("read", seconds())]));
    }
    Some(item)
}

/// A URL, of a balanced target also without a scheme.
fn parse(url: &str, is_balanced: bool) -> Option<Url> {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None if is_balanced => ("http", url),
        None => return None,
    };
    let (scheme, default) = match scheme {
        "http" | "ws" => ("http", 80),
        "https" | "wss" => ("https", 443),
        // HTTP/2 without TLS.
        "h2c" => ("grpc", 80),
        _ => return None,
    };
    let (host, port) = host_and_port(rest, default)?;
    Some(Url { scheme, host: host.to_owned(), port })
}

/// Host and port in what is behind the scheme of a URL; `default` is the port where none is written.
pub(super) fn host_and_port(rest: &str, default: i64) -> Option<(&str, i64)> {
    let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse::<u16>().ok()?.into()),
        _ => (authority, default),
    };
    (!host.is_empty()).then_some((host, port))
}

/// Path and query of the target URL.
pub(super) fn base(api: &Definition) -> String {
    match is_discovered(api) {
        true => api.text("proxy.service_discovery.target_path").to_owned(),
        false => target_of(api.text("proxy.target_url")).to_owned(),
    }
}

/// Path and query of a URL.
pub(super) fn target_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or_default()
}

/// Host and port of the target URL, as they are written.
pub(super) fn authority(api: &Definition) -> String {
    let url = api.text("proxy.target_url");
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().and_then(|authority| authority.rsplit('@').next()).unwrap_or_default().to_owned()
}

/// True for a listen path without parameters and expressions.
pub(super) fn is_plain(path: &str) -> bool {
    weir_plugins::tyk::is_plain(path)
}

/// The regular expression of a listen path.
pub(super) fn pattern(path: &str) -> String {
    weir_plugins::tyk::pattern_of(path)
}

/// A text in a regular expression.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if !letter.is_alphanumeric() && !matches!(letter, '-' | '_' | '/') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}
