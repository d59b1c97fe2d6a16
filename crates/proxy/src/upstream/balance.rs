//! Choosing a node for a try.

mod key;
mod load;
mod ring;
pub(crate) mod turns;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weir_config::{Balancer as Type, HashKey, NodeAddr};
use weir_expr::Variable;
use weir_plugin::host::Exchange;

use super::load::Active;
use super::{Node, Upstream};
use load::{Ewma, LeastConn};
use ring::Ring;
use turns::RoundRobin;

/// Most nodes of one upstream: their positions have 16 bits.
pub(crate) const MAX_NODES: usize = 1 << 16;

/// Requirements on a node, strictest first; the next applies when no node meets the one before.
const GOOD: [fn(&Node) -> bool; 3] = [Node::is_available, Node::is_healthy, |_| true];

/// Balancer of an upstream: the choice among its nodes.
#[derive(Debug)]
pub(crate) enum Balancer {
    /// The only node there is.
    Sole(u16),
    RoundRobin(Groups<RoundRobin>),
    Hash(HashKey, Groups<Ring>),
    LeastConn(Groups<LeastConn>),
    Ewma(Groups<Ewma>),
}

/// A balancer for each priority, the highest first.
type Groups<T> = Box<[T]>;

/// Inputs of a choice beside the state of the nodes.
#[derive(Debug, Clone, Copy)]
struct ChoiceInput {
    /// The hash of the key, where the balancer goes by it.
    hash: u32,
    now_ms: u64,
    /// True if another node has failed this request before.
    again: bool,
}

impl Balancer {
    /// A balancer of this type; nodes of weight 0 are never chosen. `key` is for [`Type::Chash`].
    pub(crate) fn new(kind: Type, key: Option<HashKey>, nodes: &[NodeAddr]) -> Self {
        let groups = by_priority(nodes);
        if let [group] = &*groups
            && let [(only, _)] = **group
        {
            return Self::Sole(only);
        }
        match (kind, key) {
            (Type::Chash, Some(key)) => Self::Hash(key, groups.iter().map(|group| Ring::new(group)).collect()),
            (Type::Roundrobin | Type::Chash, _) => {
                let weights = |group: &Vec<(u16, &NodeAddr)>| -> Vec<(u16, u32)> {
                    group.iter().map(|(position, node)| (*position, node.weight)).collect()
                };
                Self::RoundRobin(groups.iter().map(|group| RoundRobin::new(&weights(group))).collect())
            }
            (Type::LeastConn, _) => Self::LeastConn(groups.iter().map(|group| LeastConn::new(group)).collect()),
            (Type::Ewma, _) => Self::Ewma(groups.iter().map(|group| Ewma::new(group)).collect()),
        }
    }

    /// Bytes that a balancer of this type takes with these nodes.
    pub(crate) fn size(kind: Type, nodes: &[NodeAddr]) -> u64 {
        let groups = by_priority(nodes);
        let weights = |group: &Vec<(u16, &NodeAddr)>| group.iter().map(|(_, node)| node.weight).collect::<Vec<_>>();
        if groups.iter().map(Vec::len).sum::<usize>() == 1 {
            return 0;
        }
        let size = |group| match kind {
            Type::Chash => Ring::size(&weights(group)),
            Type::Roundrobin => RoundRobin::size(weights(group).into_iter()),
            Type::LeastConn | Type::Ewma => 0,
        };
        groups.iter().map(size).sum()
    }

    /// Name of the balancer in a configuration; `None` with only one node.
    pub(crate) fn name(&self) -> Option<&'static str> {
        match self {
            Self::Sole(_) => None,
            Self::RoundRobin(_) => Some(Type::Roundrobin.name()),
            Self::Hash(..) => Some(Type::Chash.name()),
            Self::LeastConn(_) => Some(Type::LeastConn.name()),
            Self::Ewma(_) => Some(Type::Ewma.name()),
        }
    }

    /// True if the balancer uses response times.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self, Self::Ewma(_))
    }

    fn pick(&self, nodes: &[Node], asked: ChoiceInput, usable: impl Fn(u16) -> bool) -> Option<u16> {
        let usable = &usable;
        match self {
            Self::Sole(node) => usable(*node).then_some(*node),
            Self::RoundRobin(groups) if asked.again => groups.iter().find_map(|turns| turns.pick_again(usable)),
            Self::RoundRobin(groups) => groups.iter().find_map(|turns| turns.pick(usable)),
            Self::Hash(_, groups) => groups.iter().find_map(|ring| ring.pick(asked.hash, usable)),
            Self::LeastConn(groups) => groups.iter().find_map(|group| group.pick(nodes, usable)),
            Self::Ewma(groups) => groups.iter().find_map(|group| group.pick(nodes, asked.now_ms, usable)),
        }
    }
}

/// The nodes of a weight above 0 by their positions, those of the highest priority first.
fn by_priority(nodes: &[NodeAddr]) -> Vec<Vec<(u16, &NodeAddr)>> {
    let mut groups: BTreeMap<Reverse<i64>, Vec<(u16, &NodeAddr)>> = BTreeMap::new();
    for (position, node) in nodes.iter().enumerate().filter(|(_, node)| node.weight > 0) {
        groups.entry(Reverse(node.priority)).or_default().push((position as u16, node));
    }
    groups.into_values().collect()
}

impl Upstream {
    /// The position of the node for the next try, which has not been tried before; `None`: there is none. The only node
    /// of an upstream is tried again, as in APISIX, where `retries` demands it.
    ///
    /// Nodes that are not available are passed over. If all nodes are, those set aside are used; if no node is healthy
    /// either, all are.
    pub(crate) fn pick(&self, x: &mut Exchange, now_ms: u64) -> Option<u16> {
        if self.lacks_healthy_nodes() {
            return None;
        }
        if let Balancer::Sole(node) = self.balancer {
            return (x.upstream.tried.is_empty() || self.nodes.len() == 1).then_some(node);
        }
        let hash = match &self.balancer {
            Balancer::Hash(key, _) => {
                let mut room = std::mem::take(&mut x.scratch);
                let hash = key::hash(key, x, &mut room);
                x.scratch = room;
                hash
            }
            _ => 0,
        };
        let tried = &x.upstream.tried;
        let asked = ChoiceInput { hash, now_ms, again: !tried.is_empty() };
        for good in GOOD {
            let is_good = |node: u16| self.nodes.get(usize::from(node)).is_some_and(good);
            if let Some(node) = self.balancer.pick(&self.nodes, asked, |node| !tried.contains(&node) && is_good(node)) {
                return Some(node);
            }
            if self.nodes.iter().any(|node| node.weight > 0 && good(node)) {
                break;
            }
        }
        None
    }

    /// True if the weight of the healthy nodes does not exceed `threshold` of the health checks, so that none is used.
    fn lacks_healthy_nodes(&self) -> bool {
        let Some(threshold) = self.checked.as_ref().and_then(|checked| checked.checks.threshold) else { return false };
        let (mut healthy, mut all) = (0, 0);
        for node in &self.nodes {
            let weight = u64::from(node.weight);
            all += weight;
            healthy += if node.is_healthy() { weight } else { 0 };
        }
        healthy * 100 <= all * u64::from(threshold)
    }

    /// The node that a request goes to while it is available, where that does not depend on other requests or on the
    /// connection; for people.
    pub(crate) fn decided(&self, x: &Exchange) -> Option<u16> {
        match &self.balancer {
            Balancer::Sole(node) => Some(*node),
            Balancer::Hash(key, _) if key.variables().all(is_of_request) => {
                let asked = ChoiceInput { hash: key::hash(key, x, &mut Vec::new()), now_ms: 0, again: false };
                self.balancer.pick(&self.nodes, asked, |_| true)
            }
            _ => None,
        }
    }

    /// Counts a request to one of the nodes, while what is returned lives, where it is balanced by that.
    pub(crate) fn begin<'n>(&self, node: &'n Node) -> Option<Active<'n>> {
        matches!(self.balancer, Balancer::LeastConn(_)).then(|| node.endpoint.load.begin())
    }

    /// Takes in how long the last try took, to its response or its failure, where it is balanced by that.
    pub(crate) fn observe_latency(&self, node: &Node, x: &Exchange, failed: bool) {
        if self.balancer.is_timed()
            && let Some(attempt) = x.upstream.tries.last()
        {
            node.endpoint.load.observe(attempt.end, failed, x.times.now / 1000);
        }
    }
}

/// True if the variable depends on the request and the client's address alone.
fn is_of_request(variable: &Variable) -> bool {
    use Variable::{
        Arg, Args, Cookie, Header, Host, Hostname, HttpHost, RealRequestUri, RemoteAddr, RequestMethod, RequestUri,
        ServerName, Uri,
    };
    matches!(variable, Arg(_) | Cookie(_) | Header(_))
        || matches!(
            variable,
            Args | Host
                | Hostname
                | HttpHost
                | RealRequestUri
                | RemoteAddr
                | RequestMethod
                | RequestUri
                | ServerName
                | Uri
        )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_config::{Balancer as Type, HashKey, HashOn, NodeAddr, NodeHost};
    use weir_plugin::host::Exchange;

    use super::Balancer;
    use crate::upstream::Keepalive;
    use crate::upstream::endpoint::Endpoints;
    use crate::upstream::{Node, PassHost, Timeouts, Upstream};

    const TYPES: [Type; 4] = [Type::Roundrobin, Type::Chash, Type::LeastConn, Type::Ewma];

    /// An upstream of nodes with these weights and priorities.
    fn upstream(kind: Type, nodes: &[(u32, i64)]) -> Upstream {
        let addr = |(number, (weight, priority)): (u8, &(u32, i64))| NodeAddr {
            host: NodeHost::Ip([10, 0, 0, number].into()),
            port: 80,
            weight: *weight,
            priority: *priority,
        };
        let addrs: Vec<NodeAddr> = (1..).zip(nodes).map(addr).collect();
        let endpoints = Endpoints::default();
        let node = |addr: &NodeAddr| Node {
            endpoint: endpoints.get(addr, None, None),
            host: Box::default(),
            weight: addr.weight,
            priority: addr.priority,
            health: None,
        };
        let key = HashKey::new(HashOn::Vars, Some("remote_addr")).unwrap();
        Upstream {
            size: 0,
            reads_body: false,
            balancer: Balancer::new(kind, Some(key), &addrs),
            nodes: addrs.iter().map(node).collect(),
            retries: 0,
            retry_ms: u64::MAX,
            timeouts: Timeouts { connect: 1, send: 1, read: 1 },
            has_timeouts: true,
            scheme: weir_config::Scheme::Http,
            protocol: crate::upstream::Protocol::Http1,
            is_grpc: false,
            keepalive: Keepalive { size: 1, idle_ms: 1, requests: 1 },
            host: PassHost::Pass,
            checked: None,
            discovered: None,
            proxy_protocol: None,
        }
    }

    /// All nodes that requests are given, one after the other, until there is none.
    fn tries(upstream: &Upstream) -> Vec<u16> {
        let mut x = Exchange::default();
        while let Some(node) = upstream.pick(&mut x, 1_000) {
            assert!(!x.upstream.tried.contains(&node), "{node} twice after {:?}", x.upstream.tried);
            x.upstream.tried.push(node);
        }
        x.upstream.tried
    }

    fn sorted(nodes: &[u16]) -> Vec<u16> {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes
    }

    fn set_aside(upstream: &Upstream, position: usize) {
        assert!(upstream.nodes[position].endpoint.aside.set().is_some());
    }

    #[test]
    fn every_node_is_tried_once_and_those_of_weight_0_never() {
        for kind in TYPES {
            for nodes in
                [vec![(1, 0), (1, 0), (1, 0)], vec![(5, 0), (0, 0), (1, 0)], vec![(0, 0), (7, 0)], vec![(0, 9)]]
            {
                let upstream = upstream(kind, &nodes);
                let expected: Vec<u16> = (0..).zip(&nodes).filter(|(_, (w, _))| *w > 0).map(|(n, _)| n).collect();
                for _ in 0..20 {
                    assert_eq!(sorted(&tries(&upstream)), expected, "{kind:?} {nodes:?}");
                }
            }
            assert!(tries(&upstream(kind, &[])).is_empty());
        }
    }

    #[test]
    fn a_priority_is_exhausted_before_the_next() {
        let nodes = [(1, -1), (1, 10), (3, 10), (1, 0), (0, 99), (1, -1)];
        for kind in TYPES {
            let upstream = upstream(kind, &nodes);
            for _ in 0..20 {
                let tries = tries(&upstream);
                assert_eq!(
                    (sorted(&tries[..2]), tries[2], sorted(&tries[3..])),
                    (vec![1, 2], 3, vec![0, 5]),
                    "{kind:?}"
                );
            }
            // Unavailable nodes give way to the next priority, and are not tried after it either.
            set_aside(&upstream, 1);
            set_aside(&upstream, 2);
            let tries = tries(&upstream);
            assert_eq!((tries[0], sorted(&tries[1..])), (3, vec![0, 5]), "{kind:?}");
        }
    }

    #[test]
    fn with_no_node_available_all_are() {
        for kind in TYPES {
            let upstream = upstream(kind, &[(1, 0), (2, 0), (0, 0), (1, 5)]);
            for position in [0, 1, 3] {
                assert_eq!(
                    tries(&upstream).len(),
                    3 - [0, 1, 3].iter().position(|p| *p == position).unwrap(),
                    "{kind:?}"
                );
                set_aside(&upstream, position);
            }
            let tries = tries(&upstream);
            assert_eq!((tries[0], sorted(&tries)), (3, vec![0, 1, 3]), "{kind:?}");
        }
    }

    #[test]
    fn the_only_node_is_always_there() {
        for kind in TYPES {
            let upstream = upstream(kind, &[(0, 5), (3, 0)]);
            set_aside(&upstream, 1);
            assert_eq!(tries(&upstream), [1]);
        }
    }

    #[test]
    fn the_fewest_requests_for_the_weight() {
        let upstream = upstream(Type::LeastConn, &[(1, 0), (2, 0), (1, 0)]);
        let mut x = Exchange::default();
        let mut under_way = Vec::new();
        for _ in 0..40 {
            let node = upstream.pick(&mut x, 0).unwrap();
            under_way.push((node, upstream.begin(&upstream.nodes[usize::from(node)]).unwrap()));
        }
        let active = || upstream.nodes.iter().map(|n| n.endpoint.load.active()).collect::<Vec<_>>();
        assert_eq!(active(), [10, 20, 10]);
        // The node that gets rid of its requests gets the next ones.
        under_way.retain(|(node, _)| *node != 2);
        assert_eq!(active(), [10, 20, 0]);
        for _ in 0..9 {
            let node = upstream.pick(&mut x, 0).unwrap();
            assert_eq!(node, 2);
            under_way.push((node, upstream.begin(&upstream.nodes[2]).unwrap()));
        }
        under_way.clear();
        assert_eq!(active(), [0, 0, 0]);
        // Without any load, nodes of the same weight take turns.
        let even = self::upstream(Type::LeastConn, &[(1, 0), (1, 0)]);
        let picks: Vec<_> = (0..4).filter_map(|_| even.pick(&mut x, 0)).collect();
        assert_eq!(picks, [0, 1, 0, 1]);
    }

    #[test]
    fn the_sooner_of_two_by_chance() {
        let upstream = upstream(Type::Ewma, &[(1, 0), (9, 0), (1, 0), (0, 0)]);
        let now = 50_000;
        for (node, latency) in [(0, 1_000), (1, 2_000), (2, 3_000)] {
            upstream.nodes[node].endpoint.load.observe(latency, false, now);
        }
        let mut x = Exchange::default();
        let mut counts = BTreeMap::new();
        for _ in 0..9_000 {
            *counts.entry(upstream.pick(&mut x, now).unwrap()).or_insert(0u32) += 1;
        }
        // The best wins both of its pairs, the second one of its two, the worst none.
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1], "{counts:?}");
        assert!(counts[&0].abs_diff(6_000) < 300, "{counts:?}");

        // With one node unusable the pairs of the others stay equally likely.
        upstream.nodes[0].endpoint.aside.set();
        assert!((0..100).all(|_| upstream.pick(&mut x, now) == Some(1)));
    }

    #[test]
    fn pairs_of_what_is_left_are_equally_likely() {
        let upstream = upstream(Type::Ewma, &[(1, 0); 6]);
        set_aside(&upstream, 0);
        let mut x = Exchange::default();
        x.upstream.tried.push(3);
        let mut counts = [0u32; 6];
        for _ in 0..8_000 {
            counts[usize::from(upstream.pick(&mut x, 0).unwrap())] += 1;
        }
        // Nothing is known of any, so the first of each pair is taken.
        for (node, count) in counts.iter().enumerate() {
            let expected = if [0, 3].contains(&node) { 0 } else { 2_000 };
            assert!(count.abs_diff(expected) < 250, "{counts:?}");
        }
    }

    #[test]
    fn a_missing_key_is_the_clients_address() {
        let mut x = Exchange::default();
        x.client.port = 7;
        let hash = |key: &HashKey| super::key::hash(key, &x, &mut b"left over".to_vec());
        let address = hash(&HashKey::new(HashOn::Vars, Some("remote_addr")).unwrap());
        assert_eq!(address, crc32fast::hash(b"0.0.0.0"));
        for (hash_on, key) in [
            (HashOn::Vars, Some("arg_a")),
            (HashOn::Header, Some("X-A")),
            (HashOn::Cookie, Some("a")),
            (HashOn::Consumer, None),
            (HashOn::VarsCombinations, Some("x$arg_a$cookie_b")),
            (HashOn::VarsCombinations, Some("without")),
        ] {
            assert_eq!(hash(&HashKey::new(hash_on, key).unwrap()), address, "{hash_on:?}");
        }
        let text = HashKey::new(HashOn::VarsCombinations, Some("$remote_port-$arg_a-")).unwrap();
        assert_eq!(hash(&text), crc32fast::hash(b"7--"), "some of them are enough");
        let port = HashKey::new(HashOn::Vars, Some("remote_port")).unwrap();
        assert_eq!(hash(&port), crc32fast::hash(b"7"), "not only texts");
    }
}
