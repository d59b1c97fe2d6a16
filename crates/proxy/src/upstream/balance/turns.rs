//! Nodes in turn: smooth weighted round robin from a table built at compile time.

use std::sync::atomic::{AtomicU32, Ordering};

/// Longest table, unless there are more positions. Weights whose sum, after their greatest common divisor was taken out, is
/// larger are scaled to it; a share is then off by at most one in this many.
const MAX_TABLE: u64 = 8192;
/// Most turns in a row that are given up because their nodes may not be used.
const MAX_GIVEN_UP: usize = 16;
/// Most comparisons for a table in nginx's order, which compares all positions at each turn.
const MAX_COMPARISONS: u64 = 1 << 24;

/// The order in which positions take their turns by weight.
#[derive(Debug)]
pub(crate) struct RoundRobin {
    /// Positions in the order of nginx's smooth weighted round robin: heavy ones spread among the light ones.
    order: Box<[u16]>,
    /// Position of the next turn, common to all workers, so that shares are exact over all of them.
    next: AtomicU32,
    /// The positions that have turns, with their weights.
    weights: Box<[(u16, u32)]>,
}

impl RoundRobin {
    /// Builds the table for positions with their weights; those of weight 0 never have a turn.
    pub(crate) fn new(weights: &[(u16, u32)]) -> Self {
        let weights: Box<[_]> = weights.iter().copied().filter(|(_, weight)| *weight > 0).collect();
        let reduced = reduce(&weights);
        let total: u64 = reduced.iter().map(|weight| weight.unsigned_abs()).sum();
        let order = if total * reduced.len() as u64 <= MAX_COMPARISONS { smooth(&reduced) } else { spread(&reduced) };
        let order = order.into_iter().filter_map(|place| Some(weights.get(place)?.0)).collect();
        Self { order, next: AtomicU32::new(0), weights }
    }

    /// Bytes that it takes with positions of these weights.
    pub(crate) fn size(weights: impl Iterator<Item = u32>) -> u64 {
        let weights: Vec<(u16, u32)> = weights.filter(|weight| *weight > 0).map(|weight| (0, weight)).collect();
        let turns: u64 = reduce(&weights).iter().map(|weight| weight.unsigned_abs()).sum();
        turns * size_of::<u16>() as u64 + size_of_val(&*weights) as u64
    }

    /// The next position that may be used; `None` when there is none.
    ///
    /// A turn that cannot be used is skipped, so that its share goes to the others by their weights and not to the next
    /// position alone.
    pub(crate) fn pick(&self, usable: impl Fn(u16) -> bool) -> Option<u16> {
        if let [only] = *self.order {
            return usable(only).then_some(only);
        }
        for _ in 0..self.order.len().min(MAX_GIVEN_UP) {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.order.len();
            if let Some(position) = self.order.get(turn).copied().filter(|p| usable(*p)) {
                return Some(position);
            }
        }
        self.draw(usable)
    }

    /// A position that may be used, for a further try of a request. No turn is taken: with two positions a second turn
    /// for each request would have every request begin at the same one.
    #[cold]
    pub(crate) fn pick_again(&self, usable: impl Fn(u16) -> bool) -> Option<u16> {
        let start = self.next.load(Ordering::Relaxed) as usize % self.order.len().max(1);
        let to_come = self.order.iter().cycle().skip(start).copied();
        to_come.take(MAX_GIVEN_UP.min(self.order.len())).find(|p| usable(*p)).or_else(|| self.draw(usable))
    }

    /// A position at random by weight, for when most of the weight may not be used.
    #[cold]
    fn draw(&self, usable: impl Fn(u16) -> bool) -> Option<u16> {
        let candidates = || self.weights.iter().copied().filter(|(position, _)| usable(*position));
        let total: u64 = candidates().map(|(_, weight)| u64::from(weight)).sum();
        let mut left = if total == 0 { 0 } else { fastrand::u64(..total) };
        let mut last = None;
        // Others may stop being usable between the two passes: then the last one seen is taken.
        for (position, weight) in candidates() {
            last = Some(position);
            if left < u64::from(weight) {
                break;
            }
            left -= u64::from(weight);
        }
        last
    }
}

/// Places in the order of nginx's smooth weighted round robin.
fn smooth(weights: &[i64]) -> Vec<usize> {
    let total: i64 = weights.iter().sum();
    let mut current = vec![0i64; weights.len()];
    let mut turns = Vec::with_capacity(usize::try_from(total).unwrap_or_default());
    for _ in 0..total {
        for (c, w) in current.iter_mut().zip(weights) {
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
        turns.push(best);
    }
    turns
}

/// Places with the turns of each spread evenly: another order than nginx's, and as smooth, for very many nodes.
fn spread(weights: &[i64]) -> Vec<usize> {
    let turns = |(place, weight): (usize, &i64)| {
        let each = 1.0 / *weight as f64;
        (0..*weight).map(move |turn| ((turn as f64 + 0.5) * each, place))
    };
    let mut turns: Vec<(f64, usize)> = weights.iter().enumerate().flat_map(turns).collect();
    turns.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    turns.into_iter().map(|(_, place)| place).collect()
}

/// Weights with their greatest common divisor taken out, scaled to [`MAX_TABLE`]; a weight above 0 stays above 0.
fn reduce(weights: &[(u16, u32)]) -> Vec<i64> {
    let divisor = weights.iter().fold(0, |a, (_, b)| gcd(a, *b)).max(1);
    let total: u64 = weights.iter().map(|(_, w)| u64::from(w / divisor)).sum();
    weights
        .iter()
        .map(|(_, w)| {
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
    use super::{RoundRobin, spread};

    fn round_robin(weights: &[u32]) -> RoundRobin {
        RoundRobin::new(&(0..).zip(weights.iter().copied()).collect::<Vec<_>>())
    }

    fn take(weights: &[u32], n: usize, usable: impl Fn(u16) -> bool) -> Vec<u16> {
        let turns = round_robin(weights);
        (0..n).filter_map(|_| turns.pick(&usable)).collect()
    }

    #[test]
    fn turns_are_smooth() {
        let all = |weights: &[u32], n| take(weights, n, |_| true);
        assert_eq!(all(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(all(&[1, 1], 4), [0, 1, 0, 1]);
        assert_eq!(all(&[300, 100], 4), [0, 0, 1, 0]);
        assert_eq!(all(&[0, 2, 0], 3), [1, 1, 1]);
        assert!(all(&[0, 0], 3).is_empty());
        assert!(all(&[], 3).is_empty());
    }

    #[test]
    fn shares_follow_weights() {
        let cases = [
            (vec![1, 2, 3], vec![]),
            (vec![99, 1], vec![]),
            (vec![7; 50], vec![]),
            (vec![1_000_000, 1], vec![]),
            (vec![4_000_000_000, 1_000_000_000, 3], vec![]),
            // The remaining positions share the turns of the others.
            (vec![1, 1, 1], vec![0]),
            (vec![1, 2, 3, 4], vec![1]),
            (vec![3, 1, 1, 1], vec![0, 2]),
            (vec![1000, 3, 1], vec![0]),
            (vec![4_000_000_000, 3_000_000, 1_000_000], vec![0]),
            (vec![1; 100], (0..98).collect()),
        ];
        for (weights, unusable) in cases {
            let usable = |position: u16| !unusable.contains(&position);
            let left: Vec<u64> =
                (0u16..).zip(&weights).map(|(p, w)| if usable(p) { u64::from(*w) } else { 0 }).collect();
            let total: u64 = left.iter().sum();
            let n = 10_000;
            let mut counts = vec![0u64; weights.len()];
            for position in take(&weights, n, usable) {
                counts[position as usize] += 1;
            }
            for (count, weight) in counts.iter().zip(&left) {
                let share = *weight as f64 / total as f64;
                let got = *count as f64 / n as f64;
                let off = if unusable.is_empty() { 0.001 } else { 0.03 };
                assert!((share - got).abs() < off, "{weights:?} without {unusable:?}: {got} instead of {share}");
                assert!(*count > 0 || *weight == 0, "{weights:?}: a position without a turn");
            }
        }
    }

    #[test]
    fn very_many_positions_are_spread_without_comparing_all_of_them_at_each_turn() {
        let weights: Vec<u32> = (0..40_000).map(|place| 1 + place % 7).collect();
        let turns = round_robin(&weights);
        let size = RoundRobin::size(weights.iter().copied());
        assert_eq!(size as usize, turns.order.len() * 2 + weights.len() * 8, "as large as was said");
        assert!((0..turns.order.len()).all(|_| turns.pick(|_| true).is_some()));
        // One of weight 3 among others of weight 1 has its turns apart.
        assert_eq!(spread(&[3, 1, 1, 1]), [0, 0, 1, 2, 3, 0]);
        let millions = RoundRobin::size([1_000_000_000, 1].into_iter());
        assert!(millions < 20_000, "{millions}");
    }

    #[test]
    fn the_only_usable_position_is_found() {
        let turns = round_robin(&[1_000_000, 1, 1, 0]);
        for _ in 0..10 {
            assert_eq!(turns.pick(|p| p == 2), Some(2));
            assert_eq!(turns.pick(|p| p == 3), None, "of weight 0");
            assert_eq!(turns.pick(|_| false), None);
            assert_eq!(turns.pick_again(|p| p == 2), Some(2));
            assert_eq!(turns.pick_again(|p| p == 3), None, "of weight 0");
        }
        let none = round_robin(&[0]);
        assert_eq!((none.pick(|_| true), none.pick_again(|_| true)), (None, None));
    }

    #[test]
    fn a_second_pick_takes_no_turn() {
        let turns = round_robin(&[1, 1, 1]);
        for request in 0..9 {
            assert_eq!(turns.pick(|_| true), Some(request % 3));
            assert_eq!(turns.pick_again(|p| p != request % 3), Some((request + 1) % 3));
        }
    }
}
