//! A set of hosts, some of them with `*` before them.

use std::collections::HashSet;

use weir_config::{HostKind, HostPattern};

/// Hosts, asked by the number of labels a host has and not by how many there are.
#[derive(Debug, Default)]
pub(super) struct HostSet {
    any: bool,
    exact: HashSet<Box<[u8]>>,
    /// The texts after the `*` of `*.example.com`, with their dot.
    domains: HashSet<Box<[u8]>>,
    /// The texts after the `*` of `*example.com`: rare.
    endings: Box<[Box<[u8]>]>,
}

impl HostSet {
    pub(super) fn new(patterns: &[HostPattern]) -> Self {
        let mut set = Self::default();
        let mut endings = Vec::new();
        for pattern in patterns {
            match pattern.kind() {
                HostKind::Any => set.any = true,
                HostKind::Exact(host) => drop(set.exact.insert(host.as_bytes().into())),
                HostKind::Suffix(suffix) if suffix.starts_with('.') => {
                    set.domains.insert(suffix.as_bytes().into());
                }
                HostKind::Suffix(suffix) => endings.push(suffix.as_bytes().into()),
            }
        }
        set.endings = endings.into();
        set
    }

    /// True if a host, which is given in lower case, is in the set.
    pub(super) fn contains(&self, host: &[u8]) -> bool {
        self.any
            || self.exact.contains(host)
            || (!self.domains.is_empty() && parents(host).any(|parent| self.domains.contains(parent)))
            || self.endings.iter().any(|ending| host.ends_with(ending))
    }
}

/// `.b.c` and `.c` of `a.b.c`.
fn parents(host: &[u8]) -> impl Iterator<Item = &[u8]> {
    host.iter().enumerate().skip(1).filter(|(_, b)| **b == b'.').filter_map(|(at, _)| host.get(at..))
}

#[cfg(test)]
mod tests {
    use super::HostSet;
    use weir_config::HostPattern;

    #[test]
    fn hosts_are_found() {
        for (patterns, host, found) in [
            (&["a.test"][..], "a.test", true),
            (&["A.test"], "a.test", true),
            (&["a.test"], "b.a.test", false),
            (&["*.a.test"], "b.a.test", true),
            (&["*.a.test"], "c.b.a.test", true),
            (&["*.a.test"], "a.test", false),
            (&["*.a.test"], "ba.test", false),
            (&["*.a.test"], ".a.test", false),
            (&["*a.test"], "ba.test", true),
            (&["*a.test"], "a.test", true),
            (&["*"], "a.test", true),
            (&["b.test", "*.c.test", "*d.test"], "e.test", false),
            (&["[::1]"], "[::1]", true),
        ] {
            let patterns: Vec<HostPattern> = patterns.iter().map(|text| HostPattern::new(text).unwrap()).collect();
            assert_eq!(HostSet::new(&patterns).contains(host.as_bytes()), found, "{host} in {patterns:?}");
        }
    }
}
