//! Choosing by what nodes have to do: the fewest requests under way, or the soonest answers.

use std::sync::atomic::{AtomicU32, Ordering};

use weir_config::NodeAddr;

use crate::upstream::Node;

/// The node with the fewest requests under way for its weight.
#[derive(Debug)]
pub(crate) struct LeastConn {
    /// Positions of nodes of a weight above 0.
    nodes: Box<[u16]>,
    /// Position at which the search begins, so that nodes with the same load take turns.
    next: AtomicU32,
}

/// The node that has answered sooner, of two that chance names.
#[derive(Debug)]
pub(crate) struct Ewma {
    /// Positions of nodes of a weight above 0; the weights have no further effect.
    nodes: Box<[u16]>,
}

impl LeastConn {
    pub(crate) fn new(nodes: &[(u16, &NodeAddr)]) -> Self {
        Self { nodes: nodes.iter().map(|(position, _)| *position).collect(), next: AtomicU32::new(0) }
    }

    /// The usable node with the lowest (requests + 1) / weight. Every node is looked at: counts change with every
    /// request of every worker, so that no order of theirs would last.
    pub(crate) fn pick(&self, all: &[Node], usable: impl Fn(u16) -> bool) -> Option<u16> {
        let start = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.nodes.len().max(1);
        let (before, from_start) = self.nodes.split_at_checked(start)?;
        let mut best: Option<(u16, u64, u64)> = None;
        for position in from_start.iter().chain(before).copied().filter(|position| usable(*position)) {
            let Some(node) = all.get(usize::from(position)) else { continue };
            let (load, weight) = (u64::from(node.endpoint.load.active()) + 1, u64::from(node.weight));
            // load / weight < other / its weight, without the division
            if best.is_none_or(|(_, other, its)| load * its < other * weight) {
                best = Some((position, load, weight));
            }
        }
        best.map(|(position, ..)| position)
    }
}

impl Ewma {
    pub(crate) fn new(nodes: &[(u16, &NodeAddr)]) -> Self {
        Self { nodes: nodes.iter().map(|(position, _)| *position).collect() }
    }

    /// The node with the lower latency at `now_ms` of two usable nodes by chance. The best of all nodes would get every
    /// request until it is the worst.
    pub(crate) fn pick(&self, all: &[Node], now_ms: u64, usable: impl Fn(u16) -> bool) -> Option<u16> {
        let (one, other) = self.two(usable)?;
        let latency = |position: u16| all.get(usize::from(position)).map(|n| n.endpoint.load.latency(now_ms));
        Some(if latency(other) < latency(one) { other } else { one })
    }

    /// Two different usable nodes by chance; twice the same when there is only one.
    fn two(&self, usable: impl Fn(u16) -> bool) -> Option<(u16, u16)> {
        let len = self.nodes.len();
        if len > 1 {
            let one = fastrand::usize(..len);
            let other = (one + fastrand::usize(1..len)) % len;
            if let (Some(one), Some(other)) = (self.nodes.get(one), self.nodes.get(other))
                && usable(*one)
                && usable(*other)
            {
                return Some((*one, *other));
            }
        }
        self.two_of_some(usable)
    }

    /// Two random nodes where not all may be used: in one pass, each pair equally likely.
    #[cold]
    fn two_of_some(&self, usable: impl Fn(u16) -> bool) -> Option<(u16, u16)> {
        let mut found = None;
        let candidates = self.nodes.iter().copied().filter(|position| usable(*position));
        for (seen, position) in candidates.enumerate() {
            found = match found {
                None => Some((position, position)),
                Some((one, _)) if seen == 1 => Some((one, position)),
                // One of `seen + 1` candidates takes a place with the chance of two in so many.
                Some((one, other)) => Some(match fastrand::usize(..=seen) {
                    0 => (position, other),
                    1 => (one, position),
                    _ => (one, other),
                }),
            };
        }
        // Which comes first decides where the latencies are the same.
        found.map(|(one, other)| if fastrand::bool() { (one, other) } else { (other, one) })
    }
}
