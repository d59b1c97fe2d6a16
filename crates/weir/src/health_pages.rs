//! `/v1/healthcheck`, in the shape of APISIX's control API: what is known of the nodes that have health checks.

use std::net::IpAddr;

use hyper::{Response, StatusCode};
use serde::Serialize;
use weir_proxy::{AddressHealth, HealthChecks, UpstreamHealth};

use crate::server::{Page, with_type};

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

/// The answer for a path: `/v1/healthcheck` for all, `/v1/healthcheck/{routes,services,upstreams,plugins}/ID` for
/// one.
pub(crate) fn page(path: &str, checks: &HealthChecks) -> Option<Response<Page>> {
    let rest = path.strip_prefix(PATH)?;
    let report = checks.report();
    if matches!(rest, "" | "/") {
        let all: Vec<Upstream> = report.into_iter().map(Upstream::from).collect();
        return Some(json(StatusCode::OK, &all));
    }
    let (kind, id) = rest.strip_prefix('/')?.split_once('/')?;
    if !matches!(kind, "routes" | "services" | "upstreams" | "plugins") {
        return Some(json(StatusCode::BAD_REQUEST, &error(&format!("invalid src type {kind}"))));
    }
    match report.into_iter().find(|upstream| upstream.kind == kind && *upstream.id == *id) {
        Some(upstream) => Some(json(StatusCode::OK, &Upstream::from(upstream))),
        None => Some(json(StatusCode::NOT_FOUND, &error(&format!("{kind}[{id}] not found")))),
    }
}

fn error(message: &str) -> serde_json::Value {
    serde_json::json!({ "error_msg": message })
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Page> {
    // These types have no map with keys that are no texts, which is all that could fail.
    let body = serde_json::to_vec(body).unwrap_or_default();
    with_type(status, "application/json", Page::Whole(Some(body.into())))
}

impl From<UpstreamHealth> for Upstream {
    fn from(upstream: UpstreamHealth) -> Self {
        Self {
            name: format!("/apisix/{}/{}", upstream.kind, upstream.id),
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
