//! From a list of routes to the tables of an [`Index`].

use crate::host::HostPattern;
use crate::index::{Candidate, Conditions, Group, Hosts, Index};
use crate::pattern::{Pattern, Rest};
use crate::router::{BuildError, Mode, Route};
use crate::segments::Segments;
use crate::table::Table;
use crate::tree::{NONE, Tree};

/// The most paths and hosts of one route: they are numbered in 16 bits, and the last number means "none".
const MOST: usize = u16::MAX as usize;

/// The most segments from the first wildcard of a path on; matching recurses once a segment.
const MOST_SEGMENTS: usize = 128;

impl Index {
    pub(crate) fn build(mode: Mode, routes: &[Option<Route>]) -> Result<Index, BuildError> {
        let mut draft = Draft { mode, ..Draft::default() };
        draft.entries.reserve(routes.len());
        for (number, route) in routes.iter().enumerate() {
            let Some(route) = route else {
                draft.host_patterns.push(Vec::new());
                continue;
            };
            draft.add(number as u32, route).map_err(|Fault { field, message }| BuildError {
                route: number,
                path: field,
                message,
            })?;
        }
        Ok(draft.finish())
    }
}

/// The routes, taken apart and not yet in order.
#[derive(Default)]
struct Draft<'r> {
    mode: Mode,
    sites: Sites,
    entries: Vec<Entry<'r>>,
    patterns: Vec<Pattern>,
    host_patterns: Vec<Vec<HostPattern>>,
}

/// A candidate with all that orders it.
struct Entry<'r> {
    site: u32,
    exact: bool,
    /// The whole path when exact, else the text before the first wildcard.
    key: &'r [u8],
    priority: i64,
    pattern_length: usize,
    order: u64,
    candidate: Candidate,
}

/// What is wrong with a field of a route.
struct Fault {
    field: String,
    message: String,
}

impl<'r> Draft<'r> {
    fn add(&mut self, number: u32, route: &'r Route) -> Result<(), Fault> {
        let fault = |field: &str, message: &str| Err(Fault { field: field.to_owned(), message: message.to_owned() });
        if route.paths.is_empty() {
            return fault("paths", "a route needs at least one path");
        }
        if route.paths.len() > MOST {
            return fault("paths", "too many paths for one route");
        }
        if route.hosts.len() > MOST {
            return fault("hosts", "too many hosts for one route");
        }
        let hosts = parse_hosts(&route.hosts)?;
        let host_decides = self.mode == Mode::HostUri && !hosts.is_empty();
        let places: Vec<(u32, u16)> = match host_decides {
            true => hosts.iter().map(|host| self.sites.site(host)).zip(0..).collect(),
            false => vec![(0, Candidate::NO_HOST)],
        };
        let conditions = Conditions {
            host: !host_decides && !hosts.is_empty(),
            remote_addr: !route.remote_addrs.is_empty(),
            vars: route.vars.is_some(),
        };
        for (text, path) in route.paths.iter().zip(0u16..) {
            let pattern = Pattern::parse(self.mode, text);
            let (key, exact) = (&text.as_bytes()[..pattern.prefix], pattern.rest == Rest::Nothing);
            let pattern = self.keep(pattern).map_err(|message| Fault { field: format!("paths[{path}]"), message })?;
            self.entries.extend(places.iter().map(|&(site, host)| Entry {
                site,
                exact,
                key,
                priority: route.priority,
                pattern_length: text.len(),
                order: route.order,
                candidate: Candidate { route: number, pattern, path, host, methods: route.methods, conditions },
            }));
        }
        self.host_patterns.push(if host_decides { Vec::new() } else { hosts });
        Ok(())
    }

    /// Keeps a pattern that has something to compare or to capture.
    fn keep(&mut self, pattern: Pattern) -> Result<u32, String> {
        match &pattern.rest {
            Rest::Nothing if pattern.prefix == 0 => Err("path is empty".to_owned()),
            Rest::Nothing | Rest::Anything => Ok(NONE),
            Rest::Segments(segments) if segments.len() > MOST_SEGMENTS => {
                Err(format!("path has more than {MOST_SEGMENTS} segments from its first wildcard on"))
            }
            Rest::Segments(_) => {
                self.patterns.push(pattern);
                Ok(self.patterns.len() as u32 - 1)
            }
        }
    }

    fn finish(mut self) -> Index {
        // The sort is stable: what is equal in all of this stays in the order of the list.
        self.entries.sort_by(|a, b| {
            (a.site, a.exact, a.key, b.priority, b.pattern_length, a.order).cmp(&(
                b.site,
                b.exact,
                b.key,
                a.priority,
                a.pattern_length,
                b.order,
            ))
        });
        let mut exact = Table::with_capacity(self.entries.iter().filter(|entry| entry.exact).count());
        let mut groups = Vec::new();
        let mut segments = Segments::default();
        let (mut keys, mut key_sites) = (Vec::new(), Vec::new());
        let mut first = 0;
        for alike in self.entries.chunk_by(|a, b| (a.site, a.exact, a.key) == (b.site, b.exact, b.key)) {
            let Entry { site, key, .. } = alike[0];
            let group = groups.len() as u32;
            if alike[0].exact {
                exact.find_or_insert(site, key, group);
            } else {
                keys.push((key, group));
                key_sites.push(site);
            }
            let end = first + alike.len() as u32;
            let segments = rank_patterns(alike, first, &self.patterns, &mut segments);
            groups.push(Group { first, end, prefix: key.len() as u32, segments });
            first = end;
        }
        let mut prefixes = Tree::default();
        let by_site = |site| key_sites.partition_point(|key_site| *key_site < site);
        let roots =
            (0..=self.sites.last).map(|site| prefixes.insert(&keys[by_site(site)..by_site(site + 1)])).collect();
        Index {
            mode: self.mode,
            hosts: self.sites.into_hosts(),
            exact,
            prefixes,
            roots,
            groups,
            candidates: self.entries.into_iter().map(|entry| entry.candidate).collect(),
            segments,
            patterns: self.patterns,
            host_patterns: self.host_patterns,
        }
    }
}

/// Puts the patterns of a group among the segments, unless every one of them takes whatever follows the group's prefix.
fn rank_patterns(alike: &[Entry<'_>], first: u32, patterns: &[Pattern], segments: &mut Segments) -> u32 {
    let rest = |entry: &Entry<'_>| patterns.get(entry.candidate.pattern as usize).map(|pattern| &pattern.rest);
    if alike.iter().all(|entry| rest(entry).is_none_or(Rest::takes_anything)) {
        return NONE;
    }
    let root = segments.start();
    for (entry, rank) in alike.iter().zip(first..) {
        segments.insert(root, rest(entry).unwrap_or(&Rest::Anything), rank);
    }
    root
}

fn parse_hosts(hosts: &[String]) -> Result<Vec<HostPattern>, Fault> {
    let parse = |(index, host): (usize, &String)| {
        HostPattern::parse(host).map_err(|message| Fault { field: format!("hosts[{index}]"), message })
    };
    hosts.iter().enumerate().map(parse).collect()
}

/// The hosts met so far, numbered from 1.
#[derive(Default)]
struct Sites {
    numbers: Table,
    last: u32,
    wildcards: Vec<(Box<str>, u32)>,
    wildcards_with_port: Vec<(Box<str>, u32)>,
    with_port: bool,
}

impl Sites {
    fn site(&mut self, host: &HostPattern) -> u32 {
        let site = self.numbers.find_or_insert(host.scope(), host.text.as_bytes(), self.last + 1);
        if site > self.last {
            self.last = site;
            self.with_port |= host.with_port;
            match host.scope() {
                HostPattern::WILDCARD => self.wildcards.push((host.text.clone(), site)),
                HostPattern::WILDCARD_WITH_PORT => self.wildcards_with_port.push((host.text.clone(), site)),
                _ => {}
            }
        }
        site
    }

    fn into_hosts(self) -> Hosts {
        Hosts {
            exact: self.numbers,
            wildcard: suffixes(self.wildcards),
            wildcard_with_port: suffixes(self.wildcards_with_port),
            with_port: self.with_port,
        }
    }
}

/// The tree of these suffixes; its root is its first node.
fn suffixes(mut suffixes: Vec<(Box<str>, u32)>) -> Tree<true> {
    suffixes.sort_by(|(a, _), (b, _)| a.bytes().rev().cmp(b.bytes().rev()));
    let keys: Vec<(&[u8], u32)> = suffixes.iter().map(|(text, site)| (text.as_bytes(), *site)).collect();
    let mut tree = Tree::default();
    tree.insert(&keys);
    tree
}
