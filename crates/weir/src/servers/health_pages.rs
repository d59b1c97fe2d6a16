//! `/v1/healthcheck`, in the format of APISIX's control API: the state of the nodes that have health checks.

use std::net::IpAddr;

use hyper::{Response, StatusCode};
use serde::Serialize;
use weir_proxy::{AddressHealth, HealthChecks, UpstreamHealth};

use crate::servers::pages::{Page, with_type};

const PATH: &str = "/v1/healthcheck";

/// An upstream.
#[derive(Debug, Serialize)]
struct Upstream {
    name: String,
    r#type: &'static str,
    nodes: Vec<Node>,
}

/// An address of one of its nodes.
#[derive(Debug, Serialize)]
struct Node {
    ip: IpAddr,
    hostname: String,
    port: u16,
    status: &'static str,
    counter: Counter,
}

#[derive(Debug, Serialize)]
struct Counter {
    tcp_failure: u8,
    http_failure: u8,
    success: u8,
    timeout_failure: u8,
}

/// The response for a path: `/v1/healthcheck` for all, `/v1/healthcheck/{routes,services,upstreams,plugins}/ID` for one;
/// with `html`, as an HTML page.
pub(crate) fn page(path: &str, html: bool, checks: &HealthChecks, prefix: &str) -> Option<Response<Page>> {
    let rest = path.strip_prefix(PATH)?;
    let report = checks.report();
    if matches!(rest, "" | "/") {
        let all: Vec<Upstream> = report.into_iter().map(|health| Upstream::new(health, prefix)).collect();
        return Some(match (html, all.is_empty()) {
            (true, _) => table(&all),
            // An empty table, as Lua serializes it.
            (false, true) => json(StatusCode::OK, &serde_json::json!({})),
            (false, false) => json(StatusCode::OK, &all),
        });
    }
    let Some((kind, id)) = rest.strip_prefix('/')?.split_once('/') else {
        let message = format!("missing src id for src type {}", rest.trim_start_matches('/'));
        return Some(error(StatusCode::NOT_FOUND, &message));
    };
    if !matches!(kind, "routes" | "services" | "upstreams" | "stream_routes" | "plugins") {
        return Some(error(StatusCode::BAD_REQUEST, &format!("invalid src type {kind}")));
    }
    Some(match report.into_iter().find(|upstream| upstream.kind == kind && *upstream.id == *id) {
        Some(upstream) if html => table(&[Upstream::new(upstream, prefix)]),
        Some(upstream) => json(StatusCode::OK, &Upstream::new(upstream, prefix)),
        None => error(StatusCode::NOT_FOUND, &format!("{kind}[{id}] not found")),
    })
}

/// The HTML page of the same data.
fn table(upstreams: &[Upstream]) -> Response<Page> {
    const COLUMNS: [&str; 8] =
        ["Upstream", "Check", "Node", "Status", "Successes", "TCP failures", "HTTP failures", "Timeouts"];
    let cell = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let mut page = "<!DOCTYPE html>\n<title>Health of upstream nodes</title>\n<table border=\"1\">\n<tr>".to_owned();
    page.extend(COLUMNS.map(|name| format!("<th>{name}")));
    page.push('\n');
    for upstream in upstreams {
        for Node { ip, hostname, port, status, counter } in &upstream.nodes {
            let node = match hostname.as_str() {
                name if name == ip.to_string() => std::net::SocketAddr::new(*ip, *port).to_string(),
                name => format!("{name}, {}", std::net::SocketAddr::new(*ip, *port)),
            };
            let Counter { tcp_failure, http_failure, success, timeout_failure } = counter;
            let texts = [&upstream.name, upstream.r#type, &node, status].map(|text| format!("<td>{}", cell(text)));
            let counts = [success, tcp_failure, http_failure, timeout_failure].map(|count| format!("<td>{count}"));
            page.push_str("<tr>");
            page.extend(texts.into_iter().chain(counts));
            page.push('\n');
        }
    }
    page.push_str("</table>\n");
    with_type(StatusCode::OK, "text/html; charset=utf-8", Page::Whole(Some(page.into())))
}

/// An error response in APISIX's format.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<Page> {
    json(status, &serde_json::json!({ "error_msg": message }))
}

/// A page of JSON.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Page> {
    // Serialization fails only for maps with keys that are not strings, which these types do not have.
    let body = serde_json::to_vec(body).unwrap_or_default();
    with_type(status, "application/json", Page::Whole(Some(body.into())))
}

impl Upstream {
    fn new(upstream: UpstreamHealth, prefix: &str) -> Self {
        Self {
            name: format!("{prefix}{}/{}", upstream.kind, upstream.id),
            r#type: upstream.check,
            nodes: upstream.addresses.into_iter().map(Node::from).collect(),
        }
    }
}

impl From<AddressHealth> for Node {
    fn from(address: AddressHealth) -> Self {
        let counters = address.counters;
        Self {
            ip: address.addr.ip(),
            hostname: address.host,
            port: address.addr.port(),
            status: address.status,
            counter: Counter {
                tcp_failure: counters.tcp_failure,
                http_failure: counters.http_failure,
                success: counters.success,
                timeout_failure: counters.timeout_failure,
            },
        }
    }
}
