//! Services for the Admin API beside the configuration: schemas, checks, and explanations of requests.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use weir_admin::{Audience, Gateway, Pulse, Schemas};
use weir_config::{Diagnostic, Node, Settings};
use weir_proxy::{AddressHealth, HealthChecks, Snapshot, UpstreamHealth};
use weir_store::{Kind, Secrets};
use weir_usage::Usage;

use crate::commands::explain;
use crate::source::rules::Rules;
use crate::source::secrets::{Curtain, SecretFields};

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
    /// Properties of this process.
    pub(crate) about: Value,
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

    fn pulse(&self) -> Option<Arc<Pulse>> {
        self.pulse.clone()
    }

    fn about(&self) -> Value {
        self.about.clone()
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

    fn may_hold_secrets(&self, json: &str) -> bool {
        SecretFields.may_be_in(json)
    }

    fn conceal(&self, kind: Kind, resource: &mut Value, audience: Audience) {
        self.curtain.conceal(kind, resource, audience);
    }

    fn restore(&self, kind: Kind, resource: &mut Value, before: Option<&Value>) -> Result<(), String> {
        self.curtain.restore(kind, resource, before)
    }
}
