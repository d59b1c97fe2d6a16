//! Ordered maps whose copies share what they have in common.

use std::iter;

use immutable_chunkmap::map::{Map, NodeRef};
use immutable_chunkmap::set::Set;

/// Entries of one piece. A change copies one piece and the path to it, and dropping the previous map takes the same
/// apart: each entry is a few reference counters somewhere in memory, which is the cost of a change. Larger pieces
/// shorten the path by less than they add.
const PIECE: usize = 16;

/// A map; a copy shares with the original what neither of them changes afterwards.
pub type SharedMap<K, V> = Map<K, V, PIECE>;

/// A set of the same kind.
pub type SharedSet<K> = Set<K, PIECE>;

/// The entries but for those that stand before all others that are looked for, in their order. The range of the library
/// itself walks over most of those before as well.
pub(crate) fn starting_at<'a, K: Ord + Clone, V: Clone>(
    root: Option<NodeRef<'a, K, V, PIECE>>,
    is_before: impl Fn(&K) -> bool,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    let (mut above, mut next) = (Vec::new(), root);
    while let Some(node) = next {
        next = if node.pairs().last().is_none_or(|(key, _)| is_before(key)) {
            node.right()
        } else {
            let left = node.left();
            above.push(node);
            left
        };
    }
    let nodes = iter::from_fn(move || {
        let node = above.pop()?;
        let mut next = node.right();
        while let Some(below) = next {
            next = below.left();
            above.push(below);
        }
        Some(node)
    });
    nodes.flat_map(|node| node.pairs()).skip_while(move |(key, _)| is_before(key))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{SharedMap, starting_at};

    #[test]
    fn entries_are_found_from_any_key_on() {
        for size in [0, 1, 15, 16, 17, 1000] {
            let map: SharedMap<u32, ()> = (0..size).map(|key| (key * 2, ())).collect();
            for first in 0..=size * 2 {
                let found = starting_at(map.root(), |key| *key < first).map(|(key, ())| *key);
                assert!(found.eq((0..size).map(|key| key * 2).filter(|key| *key >= first)), "{size}, from {first}");
            }
        }
    }

    #[test]
    fn few_keys_of_many_are_looked_at() {
        let map: SharedMap<u32, ()> = (0..100_000).map(|key| (key, ())).collect();
        let looked = Cell::new(0);
        let is_before = |key: &u32| {
            looked.set(looked.get() + 1);
            *key < 77_777
        };
        assert_eq!(starting_at(map.root(), is_before).next(), Some((&77_777, &())));
        assert!(looked.get() < 50, "{} keys", looked.get());
    }
}
