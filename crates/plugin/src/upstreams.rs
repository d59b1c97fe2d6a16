//! The upstreams that a plugin may choose among.

use std::fmt::Debug;
use std::sync::Arc;

use weir_config::{Code, Diagnostic, Upstream};

/// The upstreams of a configuration while it is built. Each has a number; numbers are dense.
pub trait UpstreamSet: Debug {
    /// The upstream with this id; `None` when there is none.
    ///
    /// # Errors
    /// The upstream cannot be built.
    fn find(&self, id: &str) -> Result<Option<u32>, Diagnostic>;

    /// Builds one that is written in a plugin's configuration, at this place.
    ///
    /// # Errors
    /// The upstream cannot be built; the path is relative to the upstream.
    fn add(&self, upstream: &Upstream, place: &str) -> Result<u32, Diagnostic>;

    /// Turns by weight: what upstreams distribute requests over their nodes with.
    fn turns(&self, weights: &[u32]) -> Arc<dyn Turns>;

    /// Bytes that the table of these turns takes.
    fn size_of_turns(&self, weights: &[u32]) -> u64 {
        let _ = weights;
        0
    }
}

/// Positions in a list of weights, one after the other: each as often as its weight says, spread evenly, counted in
/// common by all workers.
pub trait Turns: Debug + Send + Sync {
    /// The position whose turn it is; `None` when no weight is above 0.
    fn next(&self) -> Option<usize>;
}

/// No upstream at all: for a plugin that is built alone.
#[derive(Debug, Clone, Copy)]
pub struct NoUpstreams;

impl UpstreamSet for NoUpstreams {
    fn find(&self, _: &str) -> Result<Option<u32>, Diagnostic> {
        Ok(None)
    }

    fn add(&self, upstream: &Upstream, _: &str) -> Result<u32, Diagnostic> {
        Err(Diagnostic::error(
            upstream.origin.mark,
            "",
            Code::Unreadable { reason: "there are no upstreams here".to_owned() },
        ))
    }

    fn turns(&self, _: &[u32]) -> Arc<dyn Turns> {
        Arc::new(Self)
    }
}

impl Turns for NoUpstreams {
    fn next(&self) -> Option<usize> {
        None
    }
}

/// One of the upstreams that a plugin chooses among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its number; `None`: the route's own.
    pub upstream: Option<u32>,
    /// Its share of all requests, beside the weights of the others.
    pub weight: u32,
}
