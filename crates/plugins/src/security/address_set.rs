//! A set of addresses that is asked in the logarithm of its size.

use std::net::IpAddr;

use weir_config::AddrRange;

/// Ranges of addresses, in order and apart from each other.
#[derive(Debug)]
pub(crate) struct AddressSet {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl AddressSet {
    pub(crate) fn new(ranges: &[AddrRange]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for range in ranges {
            // IPv4 addresses that are written mapped into IPv6 are IPv4 addresses.
            match (range.net().network().to_canonical(), range.net().broadcast().to_canonical()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((u32::from(first), u32::from(last))),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((u128::from(first), u128::from(last))),
                // A network never has one end inside of the mapped addresses and the other outside, unless it holds
                // all of them.
                (first, last) => v6.push((bits(first), bits(last))),
            }
        }
        Self { v4: joined(v4), v6: joined(v6) }
    }

    /// True if the address is in one of the ranges. One that came mapped into IPv6 counts as IPv4.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => is_within(&self.v4, u32::from(address)),
            IpAddr::V6(address) => is_within(&self.v6, u128::from(address)),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn joined<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined.into()
}

fn is_within<T: Ord + Copy>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= value);
    let before = after.checked_sub(1).and_then(|at| ranges.get(at));
    before.is_some_and(|(_, last)| value <= *last)
}

#[cfg(test)]
mod tests {
    use super::AddressSet;
    use std::net::IpAddr;
    use weir_config::AddrRange;

    fn set(ranges: &[&str]) -> AddressSet {
        let ranges: Vec<AddrRange> = ranges.iter().map(|text| AddrRange::new(text).unwrap()).collect();
        AddressSet::new(&ranges)
    }

    #[test]
    fn addresses_are_found() {
        for (ranges, address, found) in [
            (&["10.0.0.0/8"][..], "10.255.255.255", true),
            (&["10.0.0.0/8"], "11.0.0.0", false),
            (&["10.0.0.0/8"], "9.255.255.255", false),
            (&["10.0.0.0/8"], "::ffff:10.1.2.3", true),
            (&["10.1.2.3/8"], "10.9.9.9", true),
            (&["127.0.0.1"], "127.0.0.1", true),
            (&["127.0.0.1"], "127.0.0.2", false),
            (&["0.0.0.0/0"], "255.255.255.255", true),
            (&["0.0.0.0/0"], "::1", false),
            (&["::/0"], "::1", true),
            (&["::1"], "::1", true),
            (&["fd00::/8"], "fdff:ffff::1", true),
            (&["fd00::/8"], "fe00::", false),
            (&["::ffff:10.0.0.0/104"], "10.1.2.3", true),
            (&["::ffff:10.0.0.1"], "10.0.0.1", true),
            (&["::ffff:0:0/96"], "1.2.3.4", true),
            (&["10.0.0.0/8", "10.1.0.0/16", "10.0.0.1"], "10.200.0.1", true),
            (&["10.1.0.0/16", "10.3.0.0/16", "::1", "10.2.0.0/16"], "10.2.255.255", true),
            (&["10.1.0.0/16", "10.3.0.0/16"], "10.2.0.0", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(set(ranges).contains(address), found, "{address} in {ranges:?}");
        }
    }

    #[test]
    fn it_says_what_each_range_says() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let texts: Vec<String> =
                (0..40).map(|_| format!("10.{}.{}.0/{}", random.u8(..4), random.u8(..), random.u8(14..=32))).collect();
            let ranges: Vec<AddrRange> = texts.iter().map(|text| AddrRange::new(text).unwrap()).collect();
            let set = AddressSet::new(&ranges);
            for _ in 0..200 {
                let address = IpAddr::from([10, random.u8(..5), random.u8(..), random.u8(..)]);
                let naive = ranges.iter().any(|range| range.contains(address));
                assert_eq!(set.contains(address), naive, "{address} in {texts:?}");
            }
        }
    }
}
