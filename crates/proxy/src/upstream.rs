//! Upstreams as the path of a request needs them.

pub(crate) mod addresses;
pub(crate) mod aside;
pub(crate) mod balance;
pub(crate) mod endpoint;
pub(crate) mod load;
mod lookup;
pub(crate) mod pool;
pub(crate) mod resolve;
pub(crate) mod stream;

use std::sync::Arc;

use balance::Balancer;
use endpoint::Endpoint;
use pool::Keepalive;

/// A compiled upstream.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) nodes: Box<[Node]>,
    pub(crate) balancer: Balancer,
    /// Further tries after the first.
    pub(crate) retries: u32,
    /// Milliseconds after which no further try is made; `u64::MAX`: no limit.
    pub(crate) retry_ms: u64,
    pub(crate) timeouts: Timeouts,
    pub(crate) keepalive: Keepalive,
    pub(crate) host: PassHost,
}

/// A node of an upstream.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Its name for `pass_host: node`, with the port where that is not the scheme's.
    pub(crate) host: Box<[u8]>,
    /// Its share of the requests; 0: none.
    pub(crate) weight: u32,
    /// For people; balancers have their groups.
    pub(crate) priority: i64,
}

impl Node {
    /// Whether a balancer may choose it.
    pub(crate) fn is_available(&self) -> bool {
        !self.endpoint.aside.is_set()
    }
}

/// Which Host a node sees.
#[derive(Debug)]
pub(crate) enum PassHost {
    Pass,
    Node,
    Rewrite(Box<[u8]>),
}

/// Time limits towards a node, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: u64,
    pub(crate) send: u64,
    pub(crate) read: u64,
}
