//! Idle connections to upstream nodes, kept by each worker for itself. There is no task and no timer per connection:
//! what closed meanwhile is found when it is taken out, or by the sweep once a second.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use weir_telemetry::metrics::{Recorder, UpstreamState};

use super::Keepalive;
use super::endpoint::Endpoint;
use super::h1::Connection;
use super::h2::Sessions;

/// The pools of one worker, by endpoint number.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: RefCell<Vec<Pool>>,
    idle: Cell<usize>,
    /// Most idle connections of this worker, over all nodes.
    max_idle: usize,
    /// Connections over HTTP/2.
    pub(crate) sessions: Sessions,
}

#[derive(Debug, Default)]
struct Pool {
    /// Endpoint of the connections. While this weak reference exists, no other endpoint has the same address in memory.
    owner: Weak<Endpoint>,
    /// [`Keepalive::size`] of the last connection that came.
    size: usize,
    /// Last in, first out: what was used last is least likely to have been closed.
    idle: Vec<Idle>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    /// Time at which the connection is closed for being idle.
    until: u64,
}

impl Pools {
    pub(crate) fn new(max_idle: usize) -> Self {
        Self { pools: RefCell::default(), idle: Cell::new(0), max_idle, sessions: Sessions::default() }
    }

    /// Takes an idle, still open connection to an address of a node, if any; with TLS, one whose SNI is the same
    /// `host`.
    pub(crate) fn take<'h>(
        &self,
        endpoint: &Arc<Endpoint>,
        addr: SocketAddr,
        host: impl FnOnce() -> &'h [u8],
        now: u64,
        recorder: &Recorder,
    ) -> Option<Box<Connection>> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get_mut(endpoint.id as usize)?;
        if !std::ptr::eq(pool.owner.as_ptr(), Arc::as_ptr(endpoint)) {
            return None;
        }
        let host = endpoint.tls.is_some().then(host);
        let fits =
            |idle: &Idle| idle.connection.addr == addr && host.is_none_or(|host| idle.connection.stream.is_for(host));
        loop {
            // Of a node with one address and without TLS it is always the last.
            let idle = match pool.idle.pop_if(|last| fits(last)) {
                Some(idle) => idle,
                None => pool.idle.remove(pool.idle.iter().rposition(fits)?),
            };
            self.idle.set(self.idle.get() - 1);
            if idle.until > now && idle.connection.stream.is_quiet() {
                recorder.upstream_moved(UpstreamState::Idle, UpstreamState::Active);
                return Some(idle.connection);
            }
            recorder.upstream_closed(UpstreamState::Idle);
        }
    }

    /// Keeps a connection for the next request, or closes it when it has carried enough or the worker has too many.
    pub(crate) fn put(
        &self,
        endpoint: &Arc<Endpoint>,
        connection: Box<Connection>,
        keepalive: Keepalive,
        now: u64,
        recorder: &Recorder,
    ) {
        let mut pools = self.pools.borrow_mut();
        let slot = endpoint.id as usize;
        if slot >= pools.len() {
            pools.resize_with(slot + 1, Pool::default);
        }
        let Some(pool) = pools.get_mut(slot) else { return };
        if !std::ptr::eq(pool.owner.as_ptr(), Arc::as_ptr(endpoint)) {
            self.forget(pool.idle.len(), recorder);
            pool.idle.clear();
            pool.owner = Arc::downgrade(endpoint);
        }
        if self.idle.get() >= self.max_idle || connection.requests >= keepalive.requests {
            recorder.upstream_closed(UpstreamState::Active);
            return;
        }
        self.idle.set(self.idle.get() + 1);
        recorder.upstream_moved(UpstreamState::Active, UpstreamState::Idle);
        pool.size = keepalive.size as usize;
        pool.idle.push(Idle { connection, until: now.saturating_add(keepalive.idle_ms) });
    }

    /// Closes what has been idle for too long, was closed by its node, belongs to a node that is gone or has moved, or is
    /// more than is kept.
    pub(crate) fn sweep(&self, now: u64, recorder: &Recorder) {
        self.sessions.sweep(now);
        for pool in self.pools.borrow_mut().iter_mut() {
            let before = pool.idle.len();
            let owner = pool.owner.upgrade();
            pool.idle.retain(|idle| {
                let of_use = owner.as_ref().is_some_and(|owner| owner.is_at(idle.connection.addr));
                of_use && idle.until > now && idle.connection.stream.is_quiet()
            });
            // The connections used last stay.
            pool.idle.drain(..pool.idle.len().saturating_sub(pool.size));
            self.forget(before - pool.idle.len(), recorder);
        }
    }

    /// Closes everything.
    pub(crate) fn clear(&self, recorder: &Recorder) {
        self.sessions.clear();
        for pool in self.pools.borrow_mut().iter_mut() {
            self.forget(pool.idle.len(), recorder);
            pool.idle.clear();
        }
    }

    fn forget(&self, n: usize, recorder: &Recorder) {
        self.idle.set(self.idle.get() - n);
        for _ in 0..n {
            recorder.upstream_closed(UpstreamState::Idle);
        }
    }
}
