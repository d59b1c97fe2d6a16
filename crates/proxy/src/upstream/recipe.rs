//! Upstreams built of their configuration and nodes, again when a registry reports other nodes.

use std::sync::Arc;
use std::time::Duration;

use weir_config::{
    CheckType, Checks, Code, Diagnostic, HashKey, NodeAddr, NodeHost, PassHost, Scheme, Timeout, Tunnel,
    Upstream as Conf,
};
use weir_expr::Variable;
use weir_net::tls::client::{Setup, SetupKey};

use super::balance::{Balancer, MAX_NODES};
use super::endpoint::Endpoints;
use super::health::{HealthTable, Means};
use super::{Checked, Keepalive, Node, PassHost as CompiledHost, Protocol, Timeouts, Upstream};

/// Parts that an upstream is built of. They are resolved: nothing in them refers to another item.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) upstream: Conf,
    /// `upstreams`, `routes`, `services` or `plugins`.
    pub(crate) kind: &'static str,
    pub(crate) id: Arc<str>,
    pub(crate) tls: Option<(SetupKey, Arc<Setup>)>,
    pub(crate) tls_of_checks: Option<Arc<Setup>>,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) health: Arc<HealthTable>,
}

impl Recipe {
    /// The upstream with the nodes of its configuration.
    ///
    /// # Errors
    /// There are too many nodes, or the key of the hash cannot be read.
    pub(crate) fn build(&self) -> Result<Upstream, Diagnostic> {
        self.build_with(&self.upstream.nodes.0)
    }

    /// The upstream with these nodes.
    ///
    /// # Errors
    /// There are too many nodes, or the key of the hash cannot be read.
    pub(crate) fn build_with(&self, addrs: &[NodeAddr]) -> Result<Upstream, Diagnostic> {
        let upstream = &self.upstream;
        let mark = upstream.origin.mark;
        if addrs.len() > MAX_NODES {
            let code = Code::TooManyNodes { most: MAX_NODES, found: addrs.len() };
            return Err(Diagnostic::error(mark, "nodes", code));
        }
        let key = match upstream.r#type {
            weir_config::Balancer::Chash => {
                let key = HashKey::new(upstream.hash_on, upstream.key.as_deref());
                Some(key.map_err(|code| Diagnostic::error(mark, "key", code))?)
            }
            _ => None,
        };
        let checks = upstream.checks.clone().map(Arc::new);
        let title = upstream.name.as_deref().map(Arc::from);
        let checked = checks.map(|checks| Checked { kind: self.kind, id: Arc::clone(&self.id), title, checks });
        let nodes: Box<[Node]> = addrs.iter().map(|addr| self.node(addr, checked.as_ref())).collect();
        let pool = &upstream.keepalive_pool;
        Ok(Upstream {
            size: 0,
            reads_body: key.as_ref().is_some_and(|key| key.variables().any(Variable::reads_body)),
            balancer: Balancer::new(upstream.r#type, key, addrs),
            retries: upstream.retries.unwrap_or_else(|| (nodes.len() as u32).saturating_sub(1)),
            nodes,
            retry_ms: match upstream.retry_timeout {
                Duration::ZERO => u64::MAX,
                limit => millis(limit),
            },
            timeouts: timeouts(&upstream.timeout),
            has_timeouts: !upstream.timeout.is_default,
            scheme: upstream.scheme,
            protocol: protocol_of(upstream),
            is_grpc: upstream.scheme.is_grpc(),
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
                PassHost::Node | PassHost::NodeName => CompiledHost::Node,
                PassHost::Rewrite => {
                    let host = upstream.upstream_host.as_ref().map(|h| h.as_str()).unwrap_or_default();
                    CompiledHost::Rewrite(host.as_bytes().into())
                }
            },
            discovered: None,
        })
    }

    fn node(&self, addr: &NodeAddr, checked: Option<&Checked>) -> Node {
        let upstream = &self.upstream;
        let endpoint = self.endpoints.get(addr, self.tls.as_ref(), upstream.tunnel.as_ref().map(question));
        let host = host_of(addr, upstream.scheme);
        let health = checked.map(|checked| {
            let host = host_of_checks(upstream, &checked.checks, &host);
            let protocol = protocol_of_checks(upstream, protocol_of(upstream));
            let means = Means { protocol, tls: self.tls_of_checks.as_ref(), host };
            self.health.get(&endpoint, &checked.checks, &means)
        });
        let host = if upstream.pass_host == PassHost::NodeName { name_of(addr) } else { host };
        Node { endpoint, host: host.into_bytes().into(), weight: addr.weight, priority: addr.priority, health }
    }
}

/// The question for a tunnel (RFC 9110 section 9.3.6).
fn question(tunnel: &Tunnel) -> Arc<[u8]> {
    let Tunnel { host, port, authorization } = tunnel;
    let known = authorization.as_ref().map(|value| format!("Proxy-Authorization: {}\r\n", value.reveal()));
    let known = known.unwrap_or_default();
    format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{known}\r\n").into_bytes().into()
}

/// Protocol that is spoken to the nodes of an upstream.
pub(crate) fn protocol_of(upstream: &Conf) -> Protocol {
    match upstream.scheme {
        Scheme::Grpc | Scheme::Grpcs => Protocol::Http2,
        Scheme::Http if upstream.http2 => Protocol::Http2,
        Scheme::Https if upstream.http2 => Protocol::Negotiated,
        // Of streams nobody asks.
        Scheme::Http | Scheme::Https | Scheme::Tcp | Scheme::Tls | Scheme::Udp => Protocol::Http1,
    }
}

/// Protocol of active checks of the types `http` and `https`: that of requests. At a port of its own something else answers,
/// and without TLS nothing is negotiated.
pub(crate) fn protocol_of_checks(upstream: &Conf, protocol: Protocol) -> Protocol {
    let active = upstream.checks.as_ref().map(|checks| &checks.active);
    let is_negotiable = active.is_some_and(|active| active.r#type == CheckType::Https);
    match protocol {
        _ if active.is_some_and(|active| active.port.is_some()) => Protocol::Http1,
        Protocol::Negotiated if !is_negotiable => Protocol::Http1,
        protocol => protocol,
    }
}

pub(crate) fn timeouts(timeout: &Timeout) -> Timeouts {
    Timeouts { connect: millis(timeout.connect), send: millis(timeout.send), read: millis(timeout.read) }
}

/// Milliseconds, never 0: a time limit always leaves some time.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The Host of active checks: their own, else what requests bring that have none from a client.
fn host_of_checks<'a>(upstream: &'a Conf, checks: &'a Checks, node: &'a str) -> &'a str {
    let rewritten = upstream.upstream_host.as_ref().filter(|_| upstream.pass_host == PassHost::Rewrite);
    checks.active.host.as_ref().or(rewritten).map_or(node, |host| host.as_str())
}

/// The Host of `pass_host: node`: without the port where that is the scheme's.
fn host_of(node: &NodeAddr, scheme: Scheme) -> String {
    let name = name_of(node);
    let has_port = match &node.host {
        NodeHost::Unix(_) => false,
        // The service is that of its domain, whichever port it has today.
        NodeHost::Name(name) => NodeHost::domain_of_service(name).is_none(),
        NodeHost::Ip(_) => true,
    };
    if has_port && node.port != scheme.default_port() { format!("{name}:{}", node.port) } else { name }
}

/// The host of a node, without a port. `localhost` for a Unix socket, as in nginx.
fn name_of(node: &NodeAddr) -> String {
    match &node.host {
        NodeHost::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        NodeHost::Ip(ip) => ip.to_string(),
        NodeHost::Name(name) => NodeHost::domain_of_service(name).unwrap_or(name).to_owned(),
        NodeHost::Unix(_) => "localhost".to_owned(),
    }
}
