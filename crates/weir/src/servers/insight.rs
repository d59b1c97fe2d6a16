//! Services for the Admin API beside the configuration: schemas, checks, and explanations of requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::watch;
use weir_admin::{Audience, Gateway, OwnRequest, Pulse, QuotaName, Schemas, ThreescaleQuestion};
use weir_config::settings::ListenAddr;
use weir_config::{Diagnostic, Node, Settings};
use weir_plugins::PlanCounts;
use weir_plugins::tyk::ApiRequest;
use weir_proxy::{AddressHealth, Bound, ExplainRequest, HealthChecks, Snapshot, UpstreamHealth};
use weir_store::{Kind, Secrets};
use weir_threescale_backend::{Backend, Question};
use weir_usage::Usage;

use crate::commands::explain;
use crate::process::tyk::DashboardDoor;
use crate::source::rules::Rules;
use crate::source::secrets::{Curtain, SecretFields};
use crate::stored::gateways::Gateways;

/// This gateway, as the Admin API sees it.
#[derive(Debug)]
pub(crate) struct Insight {
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) curtain: Curtain,
    /// The configuration in force.
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// The usage, if it is recorded.
    pub(crate) usage: Option<Arc<Usage>>,
    /// The figures as they come, for the dashboard.
    pub(crate) pulse: Option<Arc<Pulse>>,
    pub(crate) checks: Arc<HealthChecks>,
    /// Address of a listener for HTTP without TLS and without PROXY headers, if there is one.
    pub(crate) traffic: Option<SocketAddr>,
    /// Tyk's gateway API and its secret, where Tyk's family runs.
    pub(crate) tyk: Option<DashboardDoor>,
    /// The gateway's own backend of 3scale, where that is on.
    pub(crate) threescale: Option<Arc<Backend>>,
    /// The gateways that share an etcd.
    pub(crate) gateways: Arc<Gateways>,
    /// Properties of this process.
    pub(crate) about: Value,
    /// Counts of plans.
    pub(crate) counts: Arc<PlanCounts>,
}

/// The address by which this process reaches its own listener for HTTP, without TLS and without PROXY headers.
pub(crate) fn reachable(bound: &[Bound]) -> Option<SocketAddr> {
    let plain = bound.iter().filter(|one| !one.tls && !one.proxy_protocol && !one.streams && !one.udp);
    let mut addresses = plain.filter_map(|one| match &one.address {
        ListenAddr::Tcp(address) => Some(*address),
        ListenAddr::Unix(_) => None,
    });
    let mut found = addresses.next()?;
    match found.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => found.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => found.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Some(found)
}

impl Insight {
    /// Name of the family that is served.
    fn family(&self) -> &'static str {
        self.snapshots.borrow().as_ref().map_or("apisix", |snapshot| snapshot.family())
    }
}

impl Gateway for Insight {
    fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    fn check_item(&self, kind: Kind, item: Node) -> Option<Vec<Diagnostic>> {
        self.rules.check_item(kind, item)
    }

    fn check_document(&self, root: Node) -> Vec<Diagnostic> {
        self.rules.check_tree(root)
    }

    fn explain(&self, request: &str, fields: Vec<(String, String)>, remote: IpAddr) -> Result<Value, String> {
        let asked = explain::request(request, fields, remote).map_err(|reason| format!("request: {reason}"))?;
        let snapshot = self.snapshots.borrow().clone().ok_or("nothing serves yet")?;
        match snapshot.explain(&asked, &self.settings) {
            Ok(found) => Ok(explain::json(&found)),
            Err(reject) => Ok(json!({ "refused": { "status": reject.status, "reason": reject.reason } })),
        }
    }

    fn own_request(&self, request: &str, fields: Vec<(String, String)>) -> Result<OwnRequest, String> {
        let asked = explain::request(request, fields, Ipv4Addr::LOCALHOST.into());
        let asked = asked.map_err(|reason| format!("request: {reason}"))?;
        if asked.https {
            return Err("request: a URL with https is explained and not sent: give one with http".to_owned());
        }
        let to =
            self.traffic.ok_or("there is no listener without TLS and PROXY headers that a request can be sent to")?;
        let ExplainRequest { method, host, target, headers, .. } = asked;
        Ok(OwnRequest { to, method, host, target, fields: headers })
    }

    fn tyk(&self, method: &str, path: &str, query: Vec<(String, String)>, body: Vec<u8>) -> Option<(u16, Value)> {
        let DashboardDoor { door, secret } = self.tyk.as_ref()?;
        let (method, path, secret) = (method.to_owned(), path.to_owned(), secret.clone());
        let answer = match door.ask(ApiRequest { method, path, query, secret, body, ..ApiRequest::default() })? {
            Ok(answer) => answer,
            Err(reason) => return Some((503, json!({ "status": "error", "message": reason }))),
        };
        let value = serde_json::from_slice(&answer.body);
        Some((answer.status, value.unwrap_or_else(|_| String::from_utf8_lossy(&answer.body).trim().into())))
    }

    fn threescale_applications(&self, question: &ThreescaleQuestion) -> Option<Value> {
        let ThreescaleQuestion { words, service, skip, most } = question;
        let question = Question { words, service, skip: *skip, most: *most };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(self.threescale.as_ref()?.applications(&question, now.as_millis() as u64))
    }

    fn pulse(&self) -> Option<Arc<Pulse>> {
        self.pulse.clone()
    }

    fn about(&self) -> Value {
        let mut about = self.about.clone();
        // The dashboard has pages for these; a file of Kong's family is shown as the resources that it stands for.
        about["family"] = match self.family() {
            family @ ("tyk" | "3scale") => family,
            _ => "apisix",
        }
        .into();
        about["threescale_backend"] = self.threescale.is_some().into();
        about
    }

    fn gateways(&self) -> Vec<Value> {
        self.gateways.seen()
    }

    fn health(&self) -> Value {
        let node = |address: AddressHealth| {
            let counters = address.counters;
            json!({
                "address": address.addr.to_string(),
                "host": address.host,
                "status": address.status,
                "failures": [counters.tcp_failure, counters.http_failure, counters.timeout_failure],
                "successes": counters.success,
            })
        };
        let upstream = |health: UpstreamHealth| {
            let nodes: Vec<Value> = health.addresses.into_iter().map(node).collect();
            json!({ "key": format!("{}/{}", health.kind, health.id), "check": health.check, "nodes": nodes })
        };
        self.checks.report().into_iter().map(upstream).collect()
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        self.usage.clone()
    }

    fn quota(&self, name: &QuotaName, now: u64) -> Option<(u64, u64)> {
        let QuotaName { caller, plan, per, window, scope, id } = name;
        self.counts.used(&[caller, plan, per, window, scope, id], now)
    }

    fn reset_quota(&self, name: &QuotaName) -> bool {
        let QuotaName { caller, plan, per, window, scope, id } = name;
        self.counts.reset(&[caller, plan, per, window, scope, id])
    }

    fn may_hold_secrets(&self, json: &str) -> bool {
        SecretFields.may_be_in(json)
    }

    fn conceal(&self, kind: Kind, resource: &mut Value, audience: Audience) {
        self.curtain.conceal(kind, resource, audience);
        if self.family() != "apisix" {
            self.curtain.conceal_of_family(kind, resource, audience);
        }
    }

    fn restore(&self, kind: Kind, resource: &mut Value, before: Option<&Value>) -> Result<(), String> {
        self.curtain.restore(kind, resource, before)
    }
}
