//! Choosing a node for a try.

pub(crate) mod turns;

use super::Upstream;
use turns::Turns;

/// How an upstream chooses among its nodes.
#[derive(Debug)]
pub(crate) enum Balancer {
    /// There is only this one to choose.
    Sole(u16),
    Turns(Turns),
}

impl Balancer {
    /// Turns by weight; nodes of weight 0 never have one.
    pub(crate) fn round_robin(weights: &[u32]) -> Self {
        let mut heavy = (0u16..).zip(weights).filter(|(_, weight)| **weight > 0);
        match (heavy.next(), heavy.next()) {
            (Some((only, _)), None) => Self::Sole(only),
            _ => Self::Turns(Turns::new(weights)),
        }
    }

    fn pick(&self, again: bool, usable: impl Fn(u16) -> bool) -> Option<u16> {
        match self {
            Self::Sole(node) => usable(*node).then_some(*node),
            Self::Turns(turns) if again => turns.pick_again(usable),
            Self::Turns(turns) => turns.pick(usable),
        }
    }
}

impl Upstream {
    /// The position of the node for the next try, which is none of those `tried`; `None`: there is none.
    ///
    /// Nodes that are not available are passed over, unless none is.
    pub(crate) fn pick(&self, tried: &[u16]) -> Option<u16> {
        if let Balancer::Sole(node) = self.balancer {
            return tried.is_empty().then_some(node);
        }
        let again = !tried.is_empty();
        let untried = |node: u16| !tried.contains(&node);
        let is_available = |node: u16| self.nodes.get(usize::from(node)).is_some_and(|n| n.is_available());
        if let Some(node) = self.balancer.pick(again, |node| untried(node) && is_available(node)) {
            return Some(node);
        }
        if self.nodes.iter().any(|node| node.weight > 0 && node.is_available()) {
            return None;
        }
        self.balancer.pick(again, untried)
    }
}
