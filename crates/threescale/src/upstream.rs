//! The upstream of a service: `api_backend`, and the policies that are about connections to it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use weir_config::{Diagnostic, Node};
use weir_plugins::threescale::PROXIES;

use crate::pem::{embedded, of_file};
use crate::service::Service;

/// Parts of a service's upstream.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The upstream; without nodes where the service has no `api_backend`.
    pub(crate) item: Map<String, Value>,
    /// True if there are nodes.
    pub(crate) has_nodes: bool,
}

/// The upstream of a service; `None` with an error among the findings.
pub(crate) fn upstream(service: &Service, found: &mut Vec<Diagnostic>) -> Option<Upstream> {
    let before = found.len();
    let mut item = Map::new();
    item.insert("retries".to_owned(), 0.into());
    let mut tls = json!({ "verify": false });
    for (at, name, policy) in service.policies() {
        let field = format!("proxy.policy_chain[{at}].configuration");
        let empty = Node::empty_map();
        let conf = policy.get("configuration").unwrap_or(&empty);
        match name {
            "retry" => retry(service, conf, &field, &mut item, found),
            "upstream_connection" => connection(service, conf, &field, &mut item, found),
            "http_proxy" => proxies(service, conf, &field, &mut item, found),
            "upstream_mtls" => certificate(service, conf, &field, &mut tls, found),
            _ => {}
        }
    }
    let url = service.text("proxy.api_backend");
    let has_nodes = !url.is_empty();
    if has_nodes {
        let Some((scheme, host, port)) = parts(url) else {
            let text = format!("expected a URL such as http://example.com:8080/path, found '{url}'");
            found.push(service.fault("proxy.api_backend", text));
            return None;
        };
        item.insert("scheme".to_owned(), scheme.into());
        item.insert("nodes".to_owned(), json!([{ "host": host, "port": port, "weight": 1 }]));
    }
    item.insert("tls".to_owned(), tls);
    let is_refused = found.iter().skip(before).any(Diagnostic::is_error);
    (!is_refused).then_some(Upstream { item, has_nodes })
}

/// Scheme, host and port of a URL.
fn parts(url: &str) -> Option<(&'static str, &str, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, default) = match scheme {
        "http" | "ws" => ("http", 80),
        "https" | "wss" => ("https", 443),
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, default),
    };
    (!host.is_empty()).then_some((scheme, host, port))
}

pub(crate) fn fault(
    service: &Service,
    conf: &Node,
    (field, name): (&str, &str),
    text: impl Into<String>,
) -> Diagnostic {
    let path = format!("{}.{field}.{name}", service.path);
    Diagnostic::error(conf.mark_of(name), path, crate::rule(text))
}

/// The forward proxies of the policy `http_proxy`.
fn proxies(service: &Service, conf: &Node, field: &str, item: &mut Map<String, Value>, found: &mut Vec<Diagnostic>) {
    let mut proxies = json!({});
    for (scheme, own) in [("http", "http_proxy"), ("https", "https_proxy")] {
        let given = |name: &'static str| {
            Some((name, conf.get(name).and_then(Node::as_str)?)).filter(|(_, url)| !url.is_empty())
        };
        let Some((name, url)) = given(own).or_else(|| given("all_proxy")) else { continue };
        let Some(("http", host, port)) = parts(url) else {
            let text =
                format!("expected a URL such as http://user:password@proxy.example:3128, found '{}'", shown(url));
            found.push(fault(service, conf, (field, name), text));
            continue;
        };
        proxies[scheme] = json!({ "host": host, "port": port });
        let authority = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
        if let Some((user, _)) = authority.rsplit_once('@') {
            let known: Vec<u8> = percent_encoding::percent_decode_str(user).collect();
            proxies[scheme]["authorization"] = format!("Basic {}", STANDARD.encode(known)).into();
        }
    }
    item.insert(PROXIES.to_owned(), proxies);
}

/// A URL without its user.
fn shown(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, rest)| format!("…@{rest}"))
}

fn retry(service: &Service, conf: &Node, field: &str, item: &mut Map<String, Value>, found: &mut Vec<Diagnostic>) {
    match conf.get("retries").map(|retries| retries.to_json().as_i64()) {
        None => {}
        Some(Some(retries @ 1..=10)) => drop(item.insert("retries".to_owned(), retries.into())),
        Some(_) => found.push(fault(service, conf, (field, "retries"), "expected a number from 1 to 10")),
    }
}

fn connection(service: &Service, conf: &Node, field: &str, item: &mut Map<String, Value>, found: &mut Vec<Diagnostic>) {
    let mut timeout = json!({ "connect": 60, "send": 60, "read": 60 });
    for (name, part) in [("connect_timeout", "connect"), ("send_timeout", "send"), ("read_timeout", "read")] {
        let Some(given) = conf.get(name) else { continue };
        match given.to_json().as_f64() {
            Some(seconds) if seconds > 0.0 => timeout[part] = json!(seconds),
            _ => found.push(fault(service, conf, (field, name), "expected a number of seconds above 0")),
        }
    }
    item.insert("timeout".to_owned(), timeout);
}

/// The certificate that the gateway shows, and authorities that it trusts.
fn certificate(service: &Service, conf: &Node, field: &str, tls: &mut Value, found: &mut Vec<Diagnostic>) {
    let text = |name: &str| conf.get(name).and_then(Node::as_str).unwrap_or_default();
    for (name, kind, target) in
        [("certificate", "certificate_type", "client_cert"), ("certificate_key", "certificate_key_type", "client_key")]
    {
        let given = text(name);
        if given.is_empty() {
            continue;
        }
        let pem = match text(kind) {
            "embedded" => embedded(given),
            "" | "path" => of_file(given),
            other => Err(format!("expected one of: path, embedded; found '{other}'")),
        };
        match pem {
            Ok(pem) => tls[target] = pem.into(),
            Err(reason) => found.push(fault(service, conf, (field, name), reason)),
        }
    }
    if conf.get("verify").is_some_and(|verify| verify.to_json() == Value::Bool(true)) {
        tls["verify"] = true.into();
    }
    let authorities = conf.get("ca_certificates").and_then(Node::as_seq).unwrap_or_default();
    let authorities: Vec<&str> = authorities.iter().filter_map(Node::as_str).collect();
    if !authorities.is_empty() {
        tls["ca"] = authorities.join("\n").into();
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn urls_have_parts() {
        assert_eq!(parts("http://a.test/x?y"), Some(("http", "a.test", 80)));
        assert_eq!(parts("wss://u:p@a.test"), Some(("https", "a.test", 443)));
        assert_eq!(parts("http://[::1]:81"), Some(("http", "[::1]", 81)));
        assert_eq!((parts("a.test"), parts("ftp://a"), parts("http:///x")), (None, None, None));
    }
}
