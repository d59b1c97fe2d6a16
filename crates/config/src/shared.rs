//! Ordered maps whose copies share what they have in common.

use immutable_chunkmap::map::Map;
use immutable_chunkmap::set::Set;

/// How many entries lie in one piece. A change copies one of them and the way to it, and whoever drops the map before
/// takes the same apart: each entry is a few counters of references somewhere in memory, which is what a change costs.
/// Larger pieces make the way shorter by less than they add.
const PIECE: usize = 16;

/// A map; a copy shares with the original what neither of them changes afterwards.
pub type SharedMap<K, V> = Map<K, V, PIECE>;

/// A set of the same kind.
pub type SharedSet<K> = Set<K, PIECE>;
