//! Turns added and removed routes into changes of an [`Index`].

use std::sync::Arc;

use crate::candidate::{Candidate, CandidateEdit, Group};
use crate::host::HostPattern;
use crate::index::{Hosts, Index, Site};
use crate::needs::Needs;
use crate::numbered::{Compiled, Routes};
use crate::pattern::{self, Pattern, Rest};
use crate::ranked;
use crate::route::{Mode, Route};
use crate::router::BuildError;
use crate::table::Table;
use crate::tree::Tree;

/// Maximum number of paths and of hosts of one route: they are numbered in 16 bits, and the highest number means
/// "none".
const MAX_NUMBER: usize = u16::MAX as usize;

/// Maximum number of segments from the first wildcard of a path on; matching recurses once per segment.
const MAX_SEGMENTS: usize = 128;

impl Compiled {
    pub(crate) fn new(mode: Mode, number: u32, route: Route) -> Result<Compiled, BuildError> {
        let fault = |path, message| BuildError { route: number as usize, path, message };
        if route.paths.is_empty() {
            return Err(fault("paths".to_owned(), "a route needs at least one path".to_owned()));
        }
        if route.paths.len() > MAX_NUMBER {
            return Err(fault("paths".to_owned(), "too many paths for one route".to_owned()));
        }
        if route.hosts.len() > MAX_NUMBER {
            return Err(fault("hosts".to_owned(), "too many hosts for one route".to_owned()));
        }
        let mut hosts = Vec::with_capacity(route.hosts.len());
        for (place, host) in route.hosts.iter().enumerate() {
            hosts.push(HostPattern::parse(mode, host).map_err(|message| fault(format!("hosts[{place}]"), message))?);
        }
        let mut patterns = Vec::with_capacity(route.paths.len());
        let mut regexes = Vec::new();
        for (place, path) in route.paths.iter().enumerate() {
            let fault = |message| fault(format!("paths[{place}]"), message);
            let pattern = checked_pattern(mode, path).map_err(fault)?;
            if mode == Mode::Ranked {
                let regex = path.strip_prefix(pattern::REGEX).filter(|_| pattern.rest == Rest::Regex);
                regexes.push(regex.map(ranked::compile_regex).transpose().map_err(fault)?);
            }
            patterns.push(pattern);
        }
        Ok(Compiled { route, patterns: patterns.into(), regexes: regexes.into(), hosts: hosts.into() })
    }
}

fn checked_pattern(mode: Mode, path: &str) -> Result<Pattern, String> {
    let pattern = Pattern::parse(mode, path);
    match &pattern.rest {
        Rest::Nothing if path.is_empty() => Err("path is empty".to_owned()),
        Rest::Segments(segments) if segments.len() > MAX_SEGMENTS => {
            Err(format!("path has more than {MAX_SEGMENTS} segments from its first wildcard on"))
        }
        _ => Ok(pattern),
    }
}

impl Index {
    /// Sets or removes routes by number; each number occurs once.
    pub(crate) fn change(&mut self, changes: Vec<(u32, Option<Arc<Compiled>>)>) {
        let before: Vec<_> = changes.iter().map(|(number, _)| self.routes.get(*number).cloned()).collect();
        let mut edits = Vec::with_capacity(changes.len());
        for ((number, after), before) in changes.iter().zip(&before) {
            before.iter().for_each(|route| Edit::add(&mut edits, self.mode, *number, route, false));
            after.iter().for_each(|route| Edit::add(&mut edits, self.mode, *number, route, true));
        }
        edits.sort_by(|a, b| a.order().cmp(&b.order()));
        let (hostless, hosted) = edits.split_at(edits.partition_point(|edit| edit.host.is_none()));
        self.hostless.change(hostless, &self.routes);
        self.hosts.change(hosted, &self.routes);
        drop(edits);
        for (number, route) in changes {
            self.routes.set(number, route);
        }
    }
}

/// Addition or removal of a candidate, with its location in the index.
struct Edit<'r> {
    /// Host of the site; `None` for the site of routes without host.
    host: Option<&'r HostPattern>,
    exact: bool,
    /// Whole path if `exact`, else the text before the first wildcard.
    key: &'r [u8],
    turn: CandidateEdit<'r>,
}

impl<'r> Edit<'r> {
    /// Appends the edits that add or remove a route.
    fn add(edits: &mut Vec<Edit<'r>>, mode: Mode, number: u32, compiled: &'r Compiled, is_added: bool) {
        let Compiled { route, patterns, hosts, .. } = compiled;
        let host_decides = matches!(mode, Mode::HostUri | Mode::Ranked) && !hosts.is_empty();
        let needs = Needs::HOST.when(!host_decides && !hosts.is_empty())
            | Needs::REMOTE_ADDR.when(!route.remote_addrs.is_empty())
            | Needs::VARS.when(route.vars.is_some());
        let hosts = if host_decides { &**hosts } else { &[] };
        let everywhere = (!host_decides).then_some((None, Candidate::NO_HOST));
        for (path, (text, pattern)) in (0u16..).zip(route.paths.iter().zip(patterns)) {
            let places = hosts.iter().map(Some).zip(0u16..).chain(everywhere);
            edits.extend(places.map(|(host, place)| {
                let ranked = compiled.ranked(Candidate {
                    route: number,
                    path,
                    host: place,
                    methods: route.methods,
                    needs: needs | pattern.rest.needs(),
                });
                let exact = pattern.rest == Rest::Nothing;
                let turn = CandidateEdit { is_added, ranked, rest: &pattern.rest };
                Edit { host, exact, key: pattern.key(text), turn }
            }));
        }
    }

    /// Sort key that makes edits of the same location adjacent; within a group, by rank with removals before
    /// additions.
    fn order(&self) -> impl Ord {
        (self.host.map(HostPattern::order), self.exact, self.key, self.turn.ranked.rank(), self.turn.is_added)
    }
}

impl Hosts {
    fn change(&mut self, edits: &[Edit<'_>], routes: &Routes) {
        let (mut wildcard, mut wildcard_with_port, mut open) = (Vec::new(), Vec::new(), Vec::new());
        let sites = edits.chunk_by(|a, b| a.host.map(HostPattern::order) == b.host.map(HostPattern::order));
        for edits in sites {
            let Some(host) = edits[0].host else { continue };
            match (host.wildcard, host.with_port) {
                _ if host.open => open.push(change_wildcard(&self.open, host, edits, routes)),
                (false, false) => change_exact(&mut self.exact, host, edits, routes),
                (false, true) => change_exact(&mut self.exact_with_port, host, edits, routes),
                (true, false) => wildcard.push(change_wildcard(&self.wildcard, host, edits, routes)),
                (true, true) => wildcard_with_port.push(change_wildcard(&self.wildcard_with_port, host, edits, routes)),
            }
        }
        self.wildcard.change(wildcard);
        self.wildcard_with_port.change(wildcard_with_port);
        self.open.change(open);
        self.with_port = !self.exact_with_port.is_empty() || !self.wildcard_with_port.is_empty();
    }
}

fn change_exact(sites: &mut Table<Arc<Site>>, host: &HostPattern, edits: &[Edit<'_>], routes: &Routes) {
    let key = host.text.as_bytes();
    match sites.find_mut(key) {
        Some(site) => {
            let site = Arc::make_mut(site);
            site.change(edits, routes);
            if site.is_empty() {
                sites.remove(key);
            }
        }
        None => {
            let mut site = Site::default();
            site.change(edits, routes);
            sites.insert(key, Arc::new(site));
        }
    }
}

fn change_wildcard<'h, const REVERSED: bool>(
    sites: &Tree<Arc<Site>, REVERSED>,
    host: &'h HostPattern,
    edits: &[Edit<'_>],
    routes: &Routes,
) -> (&'h [u8], Option<Arc<Site>>) {
    let key = host.text.as_bytes();
    let mut site = sites.find(key).map(|site| Site::clone(site)).unwrap_or_default();
    site.change(edits, routes);
    (key, (!site.is_empty()).then(|| Arc::new(site)))
}

impl Site {
    fn change(&mut self, edits: &[Edit<'_>], routes: &Routes) {
        let (prefixes, exact) = edits.split_at(edits.partition_point(|edit| !edit.exact));
        if self.exact.is_empty() {
            self.exact = Table::with_room(exact.len());
        }
        for alike in exact.chunk_by(|a, b| a.key == b.key) {
            let key = alike[0].key;
            match Group::change(self.exact.find(key), routes, key.len(), turns(alike)) {
                Some(group) => self.exact.insert(key, group),
                None => self.exact.remove(key),
            }
        }
        let changed = prefixes.chunk_by(|a, b| a.key == b.key).map(|alike| {
            let key = alike[0].key;
            (key, Group::change(self.prefixes.find(key), routes, key.len(), turns(alike)))
        });
        let changed = changed.collect();
        self.prefixes.change(changed);
    }
}

fn turns<'e, 'r>(edits: &'e [Edit<'r>]) -> impl Iterator<Item = &'e CandidateEdit<'r>> + Clone {
    edits.iter().map(|edit| &edit.turn)
}
