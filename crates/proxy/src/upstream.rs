//! Upstreams as the path of a request needs them.

pub(crate) mod addresses;
pub(crate) mod aside;
pub(crate) mod balance;
pub(crate) mod connection;
pub(crate) mod discovered;
pub(crate) mod dns_services;
pub(crate) mod endpoint;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod health;
pub(crate) mod load;
mod lookup;
pub(crate) mod outgoing;
pub(crate) mod pool;
pub(crate) mod recipe;
pub(crate) mod resolve;
pub(crate) mod services;
pub(crate) mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use weir_config::{ProxyHeader, Scheme};

use balance::Balancer;
use discovered::Discovered;
use endpoint::{Choice, Endpoint};
use health::{Health, Seen};
use weir_config::Checks;
use weir_plugin::host::Exchange;
use weir_plugin::{Failure, Side};

/// A compiled upstream.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) nodes: Box<[Node]>,
    pub(crate) balancer: Balancer,
    /// True if the balancer reads variables of the request body.
    pub(crate) reads_body: bool,
    /// Bytes of the balancer, as the compiler counts them.
    pub(crate) size: u64,
    /// Further tries after the first.
    pub(crate) retries: u32,
    /// Milliseconds after which no further try is made; `u64::MAX`: no limit.
    pub(crate) retry_ms: u64,
    pub(crate) timeouts: Timeouts,
    /// True where its configuration says them.
    pub(crate) has_timeouts: bool,
    pub(crate) scheme: Scheme,
    /// Protocol of its nodes.
    pub(crate) protocol: Protocol,
    /// True when its nodes are gRPC services.
    pub(crate) is_grpc: bool,
    pub(crate) keepalive: Keepalive,
    /// The PROXY header that connections to its nodes begin with.
    pub(crate) proxy_protocol: Option<ProxyHeader>,
    pub(crate) host: PassHost,
    /// Health checks of the nodes; with them each node has its [`Health`].
    pub(crate) checked: Option<Checked>,
    /// Source of the nodes, where that is a registry of services.
    pub(crate) discovered: Option<Arc<Discovered>>,
}

/// The item and the checks of an upstream with health checks.
#[derive(Debug)]
pub(crate) struct Checked {
    /// `upstreams`, `routes`, `services` or `plugins`.
    pub(crate) kind: &'static str,
    pub(crate) id: Arc<str>,
    /// Name of the upstream for people.
    pub(crate) title: Option<Arc<str>>,
    pub(crate) checks: Arc<Checks>,
}

/// A node of an upstream.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Host for `pass_host: node`, with the port where it is not the scheme's.
    pub(crate) host: Box<[u8]>,
    /// Share of the requests; 0: none.
    pub(crate) weight: u32,
    /// Priority, for people; balancers have their groups.
    pub(crate) priority: i64,
    /// Health of the node; `None` without health checks of the upstream.
    pub(crate) health: Option<Arc<Health>>,
}

impl Node {
    /// True if a balancer may choose the node.
    pub(crate) fn is_available(&self) -> bool {
        !self.endpoint.aside.is_set() && self.is_healthy()
    }

    /// True unless health checks have found the node unhealthy.
    pub(crate) fn is_healthy(&self) -> bool {
        self.health.as_ref().is_none_or(|health| health.is_up())
    }

    /// The address whose turn it is; `None` when its name has none yet.
    pub(crate) fn choose(&self, now_ms: u64) -> Option<Choice> {
        self.endpoint.choose(now_ms, |addr| self.takes(addr))
    }

    /// True if a connection to this address of the node is worth a try.
    pub(crate) fn takes(&self, addr: SocketAddr) -> bool {
        self.health.as_ref().is_none_or(|health| health.takes(addr))
    }

    /// Takes note of a failure, if it is its own.
    pub(crate) fn observe_failure(&self, addr: SocketAddr, failure: &Failure) {
        if failure.side == Side::Upstream {
            self.observe(addr, if failure.status == 504 { Seen::TimedOut } else { Seen::Failed });
        }
    }

    /// Takes note of what a request has shown of it.
    pub(crate) fn observe(&self, addr: SocketAddr, seen: Seen) {
        if let Some(health) = &self.health {
            health.observe(addr, seen);
        }
    }
}

impl Upstream {
    /// Milliseconds for which neither side of a stream may be silent, `usual` where the configuration does not say it.
    pub(crate) fn idle_ms(&self, usual: u64) -> u64 {
        let Timeouts { send, read, .. } = self.timeouts;
        if self.has_timeouts { send.max(read) } else { usual }
    }

    /// The Host that a node is sent, by `pass_host`.
    pub(crate) fn host_for<'a>(&'a self, x: &'a Exchange, node: &'a Node) -> &'a [u8] {
        let request = &x.request;
        match &self.host {
            _ if request.upstream.host_wins && !request.upstream.host.is_empty() => &request.upstream.host,
            // As in APISIX, a plugin changes the Host only where the upstream does not name one.
            PassHost::Pass if !request.upstream.host.is_empty() => &request.upstream.host,
            // Without any (HTTP/1.0), the node's.
            PassHost::Pass if !request.host_port().is_empty() => request.host_port(),
            PassHost::Pass | PassHost::Node => &node.host,
            PassHost::Rewrite(host) => host,
        }
    }
}

/// Protocols spoken to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    /// HTTP/2 with nodes that choose it by ALPN, else HTTP/1.1.
    Negotiated,
}

/// Sources of the Host that a node receives.
#[derive(Debug)]
pub(crate) enum PassHost {
    Pass,
    Node,
    Rewrite(Box<[u8]>),
}

/// Limits of the idle connections of an upstream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keepalive {
    /// Idle connections to one node that a worker keeps over a sweep. Until then there may be more: a crowd of requests
    /// comes and goes within milliseconds, and would otherwise connect anew each time.
    pub(crate) size: u32,
    /// Milliseconds after which an idle one is closed; `u64::MAX`: never.
    pub(crate) idle_ms: u64,
    /// Requests after which a connection is closed.
    pub(crate) requests: u32,
}

/// Time limits towards a node, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: u64,
    pub(crate) send: u64,
    pub(crate) read: u64,
}
