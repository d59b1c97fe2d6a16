//! Choosing a node: smooth weighted round robin from a table built at compile time.

use std::sync::atomic::{AtomicU32, Ordering};

/// Longest table. Weights whose sum, after their greatest common divisor was taken out, is larger are scaled to it; a
/// share is then off by at most one in this many.
const MAX_TABLE: u64 = 8192;

/// The order in which the nodes of an upstream take their turns.
#[derive(Debug)]
pub(crate) struct RoundRobin {
    /// Node positions in the order of nginx's smooth weighted round robin: heavy nodes spread among the light ones.
    turns: Box<[u16]>,
    /// One for all workers, so that shares are exact and not only exact for each worker.
    next: AtomicU32,
}

impl RoundRobin {
    /// Builds the table; nodes of weight 0 never have a turn.
    pub(crate) fn new(weights: &[u32]) -> Self {
        let weights = reduce(weights);
        let total: i64 = weights.iter().sum();
        let mut current = vec![0i64; weights.len()];
        let mut turns = Vec::with_capacity(usize::try_from(total).unwrap_or_default());
        for _ in 0..total {
            for (c, w) in current.iter_mut().zip(&weights) {
                *c += w;
            }
            // The first of the highest, as nginx does.
            let mut best = 0;
            for (i, c) in current.iter().enumerate() {
                if *c > current.get(best).copied().unwrap_or(i64::MIN) {
                    best = i;
                }
            }
            if let Some(c) = current.get_mut(best) {
                *c -= total;
            }
            turns.push(best as u16);
        }
        Self { turns: turns.into(), next: AtomicU32::new(0) }
    }

    /// The next node that is available and not among `tried`; `None` when there is none. A node without others is
    /// always available.
    pub(crate) fn pick(&self, tried: &[u16], available: impl Fn(u16) -> bool) -> Option<u16> {
        let len = self.turns.len();
        if len <= 1 {
            return self.turns.first().copied().filter(|n| !tried.contains(n));
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed) as usize % len;
        let from_start = self.turns.get(start..).unwrap_or_default();
        let before = self.turns.get(..start).unwrap_or_default();
        from_start.iter().chain(before).copied().find(|n| !tried.contains(n) && available(*n))
    }
}

/// Weights with their greatest common divisor taken out, scaled to [`MAX_TABLE`]; a weight above 0 stays above 0.
fn reduce(weights: &[u32]) -> Vec<i64> {
    let divisor = weights.iter().fold(0, |a, b| gcd(a, *b)).max(1);
    let total: u64 = weights.iter().map(|w| u64::from(w / divisor)).sum();
    weights
        .iter()
        .map(|w| {
            let w = u64::from(w / divisor);
            let scaled = if total > MAX_TABLE { (w * MAX_TABLE / total).max(u64::from(w > 0)) } else { w };
            scaled as i64
        })
        .collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::RoundRobin;

    fn take(weights: &[u32], n: usize) -> Vec<u16> {
        let balancer = RoundRobin::new(weights);
        (0..n).filter_map(|_| balancer.pick(&[], |_| true)).collect()
    }

    #[test]
    fn turns_are_smooth() {
        assert_eq!(take(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(take(&[1, 1], 4), [0, 1, 0, 1]);
        assert_eq!(take(&[300, 100], 4), [0, 0, 1, 0]);
        assert_eq!(take(&[0, 2, 0], 3), [1, 1, 1]);
        assert!(take(&[0, 0], 3).is_empty());
        assert!(take(&[], 3).is_empty());
    }

    #[test]
    fn shares_follow_weights() {
        for weights in
            [vec![1, 2, 3], vec![99, 1], vec![7; 50], vec![1_000_000, 1], vec![4_000_000_000, 1_000_000_000, 3]]
        {
            let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            let n = 100_000;
            let mut counts = vec![0u64; weights.len()];
            for node in take(&weights, n) {
                counts[node as usize] += 1;
            }
            for (count, weight) in counts.iter().zip(&weights) {
                let share = u64::from(*weight) as f64 / total as f64;
                let got = *count as f64 / n as f64;
                assert!((share - got).abs() < 0.001, "{weights:?}: {got} instead of {share}");
                assert!(*count > 0, "{weights:?}: a node without a turn");
            }
        }
    }

    #[test]
    fn a_tried_node_is_passed_over() {
        let balancer = RoundRobin::new(&[3, 1, 1]);
        for _ in 0..10 {
            assert_ne!(balancer.pick(&[0], |_| true), Some(0));
            assert_eq!(balancer.pick(&[0, 1], |_| true), Some(2));
            assert_eq!(balancer.pick(&[0, 1, 2], |_| true), None);
            assert_eq!(balancer.pick(&[0], |node| node != 1), Some(2));
            assert_eq!(balancer.pick(&[], |_| false), None);
        }
    }
}
