//! Addresses of a node's name, and the order in which they are connected to.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::balance::turns::RoundRobin;

/// Most addresses of one name that are connected to in one try of its node.
pub(crate) const MAX_TRIED: usize = 4;

/// Most addresses that one name stands for; further ones are not used.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// Milliseconds for which an address that could not be connected to has its turn after all others.
const ASIDE_MS: u64 = 10_000;

/// One address that a name was resolved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResolvedAddr {
    /// Addresses of a higher number are used when none of a lower one can be (RFC 2782); 0 where there is no SRV record.
    pub(crate) priority: u16,
    /// Address and port.
    pub(crate) addr: SocketAddr,
    /// Share of the connections among the addresses of the same priority.
    pub(crate) weight: u32,
}

/// The addresses of one name.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// All addresses, by priority.
    all: Box<[Address]>,
    groups: Box<[Group]>,
}

#[derive(Debug)]
struct Address {
    place: ResolvedAddr,
    /// Time from which the address is used again, in milliseconds of the workers' clock; 0: not set aside.
    aside_until: AtomicU64,
}

/// Addresses of one priority.
#[derive(Debug)]
struct Group {
    /// Position in `all` of the group's first address.
    from: usize,
    len: usize,
    turns: RoundRobin,
}

impl Addresses {
    /// Addresses in no particular order; what is known of those in `before` stays known.
    pub(crate) fn new(mut places: Vec<ResolvedAddr>, before: Option<&Self>) -> Self {
        places.sort_unstable();
        places.dedup_by_key(|place| (place.priority, place.addr));
        places.truncate(MAX_ADDRESSES);
        let groups = places.chunk_by(|a, b| a.priority == b.priority).scan(0, |at, group| {
            let from = *at;
            *at += group.len();
            let weights: Vec<(u16, u32)> = (0..).zip(group.iter().map(|place| place.weight)).collect();
            Some(Group { from, len: group.len(), turns: RoundRobin::new(&weights) })
        });
        let groups = groups.collect();
        let known =
            |addr| before?.all.iter().find(|a| a.place.addr == addr).map(|a| a.aside_until.load(Ordering::Relaxed));
        let address =
            |place: ResolvedAddr| Address { aside_until: AtomicU64::new(known(place.addr).unwrap_or(0)), place };
        Self { all: places.into_iter().map(address).collect(), groups }
    }

    /// True if both have the same places with the same shares.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.all.iter().map(|a| a.place).eq(other.all.iter().map(|a| a.place))
    }

    /// Number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// True if `addr` is one of the addresses.
    pub(crate) fn contains(&self, addr: SocketAddr) -> bool {
        self.all.iter().any(|a| a.place.addr == addr)
    }

    /// The address at a position.
    pub(crate) fn at(&self, position: usize) -> Option<SocketAddr> {
        self.all.get(position).map(|a| a.place.addr)
    }

    /// All addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.all.iter().map(|a| a.place.addr)
    }

    /// The address whose turn it is. Addresses that are set aside or not `usable` are passed over while there is
    /// another one.
    pub(crate) fn turn(&self, now_ms: u64, usable: impl Fn(SocketAddr) -> bool) -> Option<usize> {
        let free = |at: &usize| !self.is_aside(*at, now_ms) && self.at(*at).is_some_and(&usable);
        let mut first = None;
        for group in &self.groups {
            let start = usize::from(group.turns.pick(|_| true)?);
            let turn = (0..group.len).map(|step| group.from + (start + step) % group.len);
            first = first.or(Some(group.from + start));
            if let Some(free) = turn.into_iter().find(free) {
                return Some(free);
            }
        }
        first
    }

    /// The address to connect to next while those at `tried` are not connected yet: of the best priority, in the order
    /// after the last, and of the other family where there is one (RFC 8305 section 4).
    pub(crate) fn next_after(
        &self,
        tried: &[usize],
        now_ms: u64,
        usable: impl Fn(SocketAddr) -> bool,
    ) -> Option<usize> {
        let last = *tried.last()?;
        if tried.len() >= MAX_TRIED {
            return None;
        }
        let family = self.at(last)?.is_ipv4();
        let len = self.all.len();
        (1..len).map(|step| (last + step) % len).filter(|at| !tried.contains(at)).min_by_key(|at| {
            let place = self.all.get(*at).map(|a| a.place);
            let same_family = place.is_some_and(|p| p.addr.is_ipv4() == family);
            let passed = self.is_aside(*at, now_ms) || !place.is_some_and(|p| usable(p.addr));
            (passed, place.map(|p| p.priority), same_family)
        })
    }

    /// Sets an address aside for a while: it could not be connected to, or not in time.
    pub(crate) fn set_aside(&self, position: usize, now_ms: u64) {
        if let Some(address) = self.all.get(position) {
            address.aside_until.store(now_ms + ASIDE_MS, Ordering::Relaxed);
        }
    }

    fn is_aside(&self, position: usize, now_ms: u64) -> bool {
        self.all.get(position).is_some_and(|a| a.aside_until.load(Ordering::Relaxed) > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::{ASIDE_MS, Addresses, MAX_ADDRESSES, MAX_TRIED, ResolvedAddr};
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    fn place(priority: u16, weight: u32, addr: &str) -> ResolvedAddr {
        ResolvedAddr { priority, addr: addr.parse().unwrap(), weight }
    }

    fn turns(addresses: &Addresses, n: usize, now_ms: u64) -> BTreeMap<String, usize> {
        let mut seen = BTreeMap::new();
        for _ in 0..n {
            let addr = addresses.turn(now_ms, |_| true).and_then(|at| addresses.at(at)).unwrap();
            *seen.entry(addr.to_string()).or_default() += 1;
        }
        seen
    }

    fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
        expected.iter().map(|(addr, n)| ((*addr).to_owned(), *n)).collect()
    }

    #[test]
    fn turns_follow_priorities_and_weights() {
        let addresses = Addresses::new(
            vec![
                place(1, 1, "10.0.0.3:1"),
                place(0, 3, "10.0.0.1:1"),
                place(0, 1, "10.0.0.2:1"),
                place(0, 3, "10.0.0.1:1"),
            ],
            None,
        );
        assert_eq!(addresses.len(), 3);
        assert_eq!(turns(&addresses, 8, 0), counts(&[("10.0.0.1:1", 6), ("10.0.0.2:1", 2)]));
        addresses.set_aside(0, 100);
        assert_eq!(turns(&addresses, 8, 101), counts(&[("10.0.0.2:1", 8)]));
        addresses.set_aside(1, 100);
        assert_eq!(turns(&addresses, 8, 101), counts(&[("10.0.0.3:1", 8)]));
        addresses.set_aside(2, 100);
        assert_eq!(turns(&addresses, 8, 101), counts(&[("10.0.0.1:1", 6), ("10.0.0.2:1", 2)]), "all aside: as if none");
        let later = 100 + ASIDE_MS;
        let first: SocketAddr = "10.0.0.1:1".parse().unwrap();
        assert_eq!(addresses.turn(later, |addr| addr != first), Some(1));
        assert!(addresses.turn(later, |_| false).is_some(), "none usable: as if all were");
        assert_eq!(turns(&addresses, 4, later), counts(&[("10.0.0.1:1", 3), ("10.0.0.2:1", 1)]));
    }

    #[test]
    fn what_is_set_aside_stays_so_over_an_answer() {
        let places = vec![place(0, 1, "10.0.0.1:1"), place(0, 1, "10.0.0.2:1")];
        let before = Addresses::new(places.clone(), None);
        before.set_aside(0, 0);
        let after = Addresses::new([places, vec![place(0, 1, "10.0.0.3:1")]].concat(), Some(&before));
        assert!(!after.is_same(&before));
        assert!(!turns(&after, 9, 1).contains_key("10.0.0.1:1"));
    }

    /// The fallbacks from any first address: families alternate; addresses set aside or of a lower priority come last.
    #[test]
    fn fallbacks_alternate_between_families() {
        let addresses = Addresses::new(
            ["10.0.0.1:1", "10.0.0.2:1", "[::1]:1", "[::2]:1"].map(|addr| place(0, 1, addr)).into(),
            None,
        );
        for first in 0..addresses.len() {
            let mut tried = vec![first];
            while let Some(next) = addresses.next_after(&tried, 0, |_| true) {
                tried.push(next);
            }
            let found: Vec<SocketAddr> = tried.iter().filter_map(|at| addresses.at(*at)).collect();
            assert_eq!(found.len(), 4, "{found:?}");
            assert!(found.windows(2).all(|pair| pair[0].is_ipv4() != pair[1].is_ipv4()), "{found:?}");
        }
        addresses.set_aside(2, 0);
        addresses.set_aside(3, 0);
        assert_eq!(addresses.next_after(&[0], 1, |_| true), Some(1), "an address set aside is not gone back to early");

        let ranked =
            Addresses::new(vec![place(0, 1, "10.0.0.1:1"), place(0, 1, "10.0.0.2:1"), place(5, 1, "[::1]:1")], None);
        assert_eq!(ranked.next_after(&[0], 0, |_| true), Some(1), "the priority goes before the family");
    }

    #[test]
    fn there_are_bounds() {
        let many = (0..300u32).map(|n| ResolvedAddr {
            priority: 0,
            addr: SocketAddr::new(std::net::Ipv4Addr::from(n).into(), 80),
            weight: 1,
        });
        let addresses = Addresses::new(many.collect(), None);
        assert_eq!(addresses.len(), MAX_ADDRESSES);
        let tried: Vec<usize> = (0..MAX_TRIED).collect();
        assert_eq!(addresses.next_after(&tried, 0, |_| true), None);
        assert_eq!(Addresses::new(Vec::new(), None).turn(0, |_| true), None);
    }
}
