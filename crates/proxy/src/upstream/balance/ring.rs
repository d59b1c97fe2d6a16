//! Consistent hashing: a key goes to the same node while that is there, and a node that comes or goes moves only its
//! own share of the keys.
//!
//! Points and picks are those of nginx's `hash … consistent` and lua-resty-chash, so that a key meets the same node as
//! behind APISIX when the nodes are written as addresses: APISIX hashes what a name resolves to, and this gateway the
//! name, which does not change when an address does.

use weir_config::NodeAddr;

/// Points on the ring for each unit of a node's weight.
const POINTS: u64 = 160;
/// Most points of a ring: 2 MiB. With larger weights each node has its share of so many, and at least one.
const MAX_POINTS: u64 = 1 << 18;
/// Points of the ring that are visited before checking that any node is usable at all.
const WALK: usize = 64;

/// The nodes on a circle of hashes.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Points, sorted by hash.
    points: Box<[Point]>,
    /// The nodes that have points.
    nodes: Box<[u16]>,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    hash: u32,
    node: u16,
}

impl Ring {
    /// The ring of these nodes, by position.
    pub(crate) fn new(nodes: &[(u16, &NodeAddr)]) -> Self {
        let total: u64 = nodes.iter().map(|(_, node)| u64::from(node.weight) * POINTS).sum();
        let mut points = Vec::with_capacity(usize::try_from(total.min(MAX_POINTS)).unwrap_or_default());
        for (position, node) in nodes {
            let count = points_of(node.weight, total);
            // nginx's name of a peer: the colon becomes a zero byte. As in APISIX it does in IPv6 addresses, too.
            let mut base = crc32fast::Hasher::new();
            base.update(node.to_string().replace(':', "\0").as_bytes());
            let mut hash = 0u32;
            for _ in 0..count {
                let mut next = base.clone();
                next.update(&hash.to_le_bytes());
                hash = next.finalize();
                points.push(Point { hash, node: *position });
            }
        }
        points.sort_by_key(|point| point.hash);
        Self { points: points.into(), nodes: nodes.iter().map(|(position, _)| *position).collect() }
    }

    /// Bytes that it takes with nodes of these weights.
    pub(crate) fn size(weights: &[u32]) -> u64 {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight) * POINTS).sum();
        weights.iter().map(|weight| points_of(*weight, total)).sum::<u64>() * size_of::<Point>() as u64
    }

    /// The node of the first point at or after `hash` that may be used; `None` when there is none.
    pub(crate) fn pick(&self, hash: u32, usable: impl Fn(u16) -> bool) -> Option<u16> {
        let start = self.points.partition_point(|point| point.hash < hash);
        let (before, after) = self.points.split_at_checked(start)?;
        let mut clockwise = after.iter().chain(before).map(|point| point.node);
        let near = clockwise.by_ref().take(WALK).find(|node| usable(*node));
        near.or_else(|| if self.nodes.iter().any(|node| usable(*node)) { clockwise.find(|n| usable(*n)) } else { None })
    }
}

/// The points of a node of this weight, of all nodes that would have so many together.
fn points_of(weight: u32, total: u64) -> u64 {
    let wanted = u64::from(weight) * POINTS;
    if total > MAX_POINTS { (wanted * MAX_POINTS / total).max(1) } else { wanted }
}

#[cfg(test)]
mod tests {
    use weir_config::{NodeAddr, NodeHost};

    use super::{MAX_POINTS, Ring};

    fn ring(nodes: &[(&str, u32)]) -> Ring {
        let nodes: Vec<NodeAddr> = nodes.iter().map(|(name, weight)| node(name, *weight)).collect();
        Ring::new(&(0..).zip(&nodes).collect::<Vec<_>>())
    }

    fn node(name: &str, weight: u32) -> NodeAddr {
        let (host, port) = name.rsplit_once(':').unwrap();
        NodeAddr { host: NodeHost::new(host).unwrap(), port: port.parse().unwrap(), weight, priority: 0 }
    }

    fn pick(ring: &Ring, key: &str, usable: impl Fn(u16) -> bool) -> Option<u16> {
        ring.pick(crc32fast::hash(key.as_bytes()), usable)
    }

    /// Picks for `key-0` to `key-63`, as a model of lua-resty-chash 0.03 and later makes them that is not this code.
    #[test]
    fn keys_meet_the_nodes_that_they_meet_behind_apisix() {
        let cases = [
            (
                vec![("127.0.0.1:1980", 1), ("127.0.0.1:1981", 1), ("127.0.0.1:1982", 1)],
                "2222022202102000110021110200100110120112112102112211202100021202",
            ),
            (
                vec![("10.0.0.1:80", 5), ("10.0.0.2:80", 1), ("[::1]:8080", 3)],
                "2000002100202020000210000000021002200220001000201200100101010222",
            ),
        ];
        for (nodes, expected) in cases {
            let ring = ring(&nodes);
            let found: String = (0..64).filter_map(|n| pick(&ring, &format!("key-{n}"), |_| true)).map(digit).collect();
            assert_eq!(found, expected, "{nodes:?}");
        }
    }

    fn digit(position: u16) -> char {
        char::from(b'0' + position as u8)
    }

    #[test]
    fn only_the_keys_of_a_missing_node_move() {
        let ring = ring(&[("10.0.0.1:80", 1), ("10.0.0.2:80", 2), ("10.0.0.3:80", 1), ("10.0.0.4:80", 1)]);
        let without = self::ring(&[("10.0.0.1:80", 1), ("10.0.0.2:80", 2), ("10.0.0.4:80", 1)]);
        for n in 0..3_000 {
            let key = n.to_string();
            let all = pick(&ring, &key, |_| true);
            let some = pick(&ring, &key, |node| node != 2);
            assert!(all == some || all == Some(2), "key {n} moved from {all:?} to {some:?}");
            // Passing a node over is as if it were not there.
            let renumbered = pick(&without, &key, |_| true).map(|node| if node == 2 { 3 } else { node });
            assert_eq!(some, renumbered, "key {n}");
        }
        assert_eq!(pick(&ring, "a", |_| false), None);
        assert_eq!(pick(&Ring::new(&[]), "a", |_| true), None);
    }

    #[test]
    fn shares_follow_weights_and_the_ring_is_bounded() {
        for (nodes, unusable, off) in [
            (vec![("10.0.0.1:80", 1), ("10.0.0.2:80", 2), ("10.0.0.3:80", 3)], None, 0.05),
            (vec![("10.0.0.1:80", 100), ("10.0.0.2:80", 100)], None, 0.05),
            (vec![("10.0.0.1:80", 4_000_000_000), ("10.0.0.2:80", 1_000_000_000), ("10.0.0.3:80", 1)], None, 0.05),
            (vec![("10.0.0.1:80", 4_000_000_000), ("10.0.0.2:80", 1)], Some(0), 0.0),
        ] {
            let ring = ring(&nodes);
            assert!(ring.points.len() as u64 <= MAX_POINTS + nodes.len() as u64, "{} points", ring.points.len());
            assert!(ring.points.is_sorted_by_key(|point| point.hash));
            let mut counts = vec![0u32; nodes.len()];
            let n = 5_000;
            for key in 0..n {
                let node = pick(&ring, &key.to_string(), |node| Some(node) != unusable).unwrap();
                counts[usize::from(node)] += 1;
            }
            let weight = |at: usize| if unusable == Some(at as u16) { 0.0 } else { f64::from(nodes[at].1) };
            let total: f64 = (0..nodes.len()).map(weight).sum();
            for (at, count) in counts.iter().enumerate() {
                let (share, got) = (weight(at) / total, f64::from(*count) / f64::from(n));
                assert!((share - got).abs() <= off, "{nodes:?}: {got} instead of {share}");
            }
        }
    }
}
