//! Upstreams: each compiled once, however many routes use it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_config::{
    Checks, Diagnostic, Document, HashKey, Id, NodeAddr, NodeHost, Origin, PassHost, Scheme, Service, Timeout,
};
use weir_plugin::{Turns, UpstreamSet};

use super::certificates::Certificates;
use crate::upstream::balance::turns::RoundRobin;
use crate::upstream::balance::{Balancer, MAX_NODES};
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::HealthTable;
use crate::upstream::pool::Keepalive;
use crate::upstream::{Checked, Node, PassHost as CompiledHost, Timeouts, Upstream};

/// The upstreams of a configuration. Plugins and routes add to them in turn.
#[derive(Debug)]
pub(super) struct SharedUpstreams<'d>(pub(super) RefCell<Upstreams<'d>>);

impl UpstreamSet for SharedUpstreams<'_> {
    fn find(&self, id: &str) -> Result<Option<u32>, Diagnostic> {
        self.0.borrow_mut().find(id)
    }

    fn add(&self, upstream: &weir_config::Upstream, place: &str) -> Result<u32, Diagnostic> {
        self.0.borrow_mut().put(upstream, "plugins", place)
    }

    fn turns(&self, weights: &[u32]) -> Arc<dyn Turns> {
        Arc::new(RoundRobin::new(weights))
    }
}

impl Turns for RoundRobin {
    fn next(&self) -> Option<usize> {
        self.pick(|_| true).map(usize::from)
    }
}

/// What is compiled of them.
#[derive(Debug)]
pub(super) struct Upstreams<'d> {
    endpoints: &'d Endpoints,
    health: &'d HealthTable,
    certificates: &'d Certificates,
    document: &'d Document,
    by_id: HashMap<&'d str, &'d weir_config::Upstream>,
    /// Where those with an id, and those of services, have been put.
    placed: HashMap<Place<'d>, u32>,
    pub(super) compiled: Vec<Upstream>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Place<'d> {
    Upstream(&'d Id),
    Service(&'d Id),
}

impl<'d> Upstreams<'d> {
    pub(super) fn new(
        endpoints: &'d Endpoints,
        health: &'d HealthTable,
        certificates: &'d Certificates,
        document: &'d Document,
    ) -> Self {
        let by_id = document.upstreams.iter().map(|u| (u.id.as_str(), u)).collect();
        Self { endpoints, health, certificates, document, by_id, placed: HashMap::new(), compiled: Vec::new() }
    }

    /// Where a route's upstream is: its own, else its service's.
    ///
    /// # Errors
    /// It cannot be built.
    pub(super) fn of_route(
        &mut self,
        route: &'d weir_config::Route,
        service: Option<&'d Service>,
    ) -> Result<Option<u32>, Diagnostic> {
        let inline = |origin: &Origin, fault: Diagnostic| Diagnostic {
            mark: origin.mark,
            ..fault.under(&format!("{}.upstream", origin.path))
        };
        if let Some(upstream) = &route.upstream {
            return self
                .put(upstream, "routes", route.id.as_str())
                .map(Some)
                .map_err(|fault| inline(&route.origin, fault));
        }
        if let Some(id) = &route.upstream_id {
            return self.find(id.as_str());
        }
        let Some(service) = service else { return Ok(None) };
        if let Some(upstream) = &service.upstream {
            if let Some(found) = self.placed.get(&Place::Service(&service.id)) {
                return Ok(Some(*found));
            }
            let position =
                self.put(upstream, "services", service.id.as_str()).map_err(|fault| inline(&service.origin, fault))?;
            self.placed.insert(Place::Service(&service.id), position);
            return Ok(Some(position));
        }
        service.upstream_id.as_ref().map_or(Ok(None), |id| self.find(id.as_str()))
    }

    fn find(&mut self, id: &str) -> Result<Option<u32>, Diagnostic> {
        let Some(upstream) = self.by_id.get(id).copied() else { return Ok(None) };
        if let Some(found) = self.placed.get(&Place::Upstream(&upstream.id)) {
            return Ok(Some(*found));
        }
        let position = self
            .put(upstream, "upstreams", upstream.id.as_str())
            .map_err(|fault| fault.under(&upstream.origin.path))?;
        self.placed.insert(Place::Upstream(&upstream.id), position);
        Ok(Some(position))
    }

    /// Compiles an upstream; `kind` and `id` are those of the item it is written in.
    fn put(&mut self, upstream: &weir_config::Upstream, kind: &'static str, id: &str) -> Result<u32, Diagnostic> {
        let tls = self.certificates.setup(upstream, self.document)?;
        let tls_of_checks = self.certificates.setup_of_checks(upstream, self.document)?;
        let checked = upstream.checks.clone().map(|checks| Checked { kind, id: id.into(), checks: Arc::new(checks) });
        let nodes: Box<[Node]> = upstream
            .nodes
            .0
            .iter()
            .map(|addr| {
                let endpoint = self.endpoints.get(addr, tls.as_ref());
                let host = host_of(addr, upstream.scheme);
                let health = checked.as_ref().map(|checked| {
                    let host = host_of_checks(upstream, &checked.checks, &host);
                    self.health.get(&endpoint, &checked.checks, tls_of_checks.as_ref(), host)
                });
                Node { endpoint, host: host.into_bytes().into(), weight: addr.weight, priority: addr.priority, health }
            })
            .collect();
        if nodes.len() > MAX_NODES {
            let message = format!("an upstream has at most {MAX_NODES} nodes, found {}", nodes.len());
            return Err(Diagnostic::error(upstream.origin.mark, "nodes", message));
        }
        let key = match upstream.r#type {
            weir_config::Balancer::Chash => {
                let key = HashKey::new(upstream.hash_on, upstream.key.as_deref());
                Some(key.map_err(|message| Diagnostic::error(upstream.origin.mark, "key", message))?)
            }
            _ => None,
        };
        let pool = &upstream.keepalive_pool;
        self.compiled.push(Upstream {
            balancer: Balancer::new(upstream.r#type, key, &upstream.nodes.0),
            retries: upstream.retries.unwrap_or_else(|| (nodes.len() as u32).saturating_sub(1)),
            nodes,
            retry_ms: match upstream.retry_timeout {
                Duration::ZERO => u64::MAX,
                limit => millis(limit),
            },
            timeouts: timeouts(&upstream.timeout),
            keepalive: Keepalive {
                size: pool.size,
                idle_ms: if pool.idle_timeout.is_zero() { u64::MAX } else { millis(pool.idle_timeout) },
                // A connection with a PROXY header is its client's: no other request may follow on it.
                requests: if upstream.proxy_protocol.is_some() { 1 } else { pool.requests },
            },
            proxy_protocol: upstream.proxy_protocol,
            checked,
            host: match upstream.pass_host {
                PassHost::Pass => CompiledHost::Pass,
                PassHost::Node => CompiledHost::Node,
                PassHost::Rewrite => {
                    let host = upstream.upstream_host.as_ref().map(|h| h.as_str()).unwrap_or_default();
                    CompiledHost::Rewrite(host.as_bytes().into())
                }
            },
        });
        Ok(self.compiled.len() as u32 - 1)
    }
}

pub(super) fn timeouts(timeout: &Timeout) -> Timeouts {
    Timeouts { connect: millis(timeout.connect), send: millis(timeout.send), read: millis(timeout.read) }
}

/// Milliseconds, never 0: a time limit always leaves some time.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The Host of active checks: their own, else what requests bring that have none from a client.
fn host_of_checks<'a>(upstream: &'a weir_config::Upstream, checks: &'a Checks, node: &'a str) -> &'a str {
    let rewritten = upstream.upstream_host.as_ref().filter(|_| upstream.pass_host == PassHost::Rewrite);
    checks.active.host.as_ref().or(rewritten).map_or(node, |host| host.as_str())
}

/// The Host of `pass_host: node`: without the port where that is the scheme's. A Unix socket is on this host, and nginx
/// says so too.
fn host_of(node: &NodeAddr, scheme: Scheme) -> String {
    let host = match &node.host {
        NodeHost::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        NodeHost::Ip(ip) => ip.to_string(),
        NodeHost::Name(name) => match NodeHost::domain_of_service(name) {
            // The service is that of its domain, whichever host and port it has today.
            Some(domain) => return domain.to_owned(),
            None => name.clone(),
        },
        NodeHost::Unix(_) => return "localhost".to_owned(),
    };
    if node.port == scheme.default_port() { host } else { format!("{host}:{}", node.port) }
}
