use std::ops::ControlFlow;

use crate::host::HostPattern;
use crate::method::MethodSet;
use crate::pattern::{Pattern, Rest, Segment};
use crate::router::{Mode, Query};
use crate::segments::Segments;
use crate::table::Table;
use crate::tree::{NONE, Tree};

/// The tables that lead from a request to the candidates for it.
///
/// A *site* is a set of paths that belong together: in host mode one for every host that routes name, and site 0 for the
/// routes without host; otherwise site 0 alone. A *group* is the ranked list of candidates of one path or prefix of a
/// site.
pub(crate) struct Index {
    pub(crate) mode: Mode,
    pub(crate) hosts: Hosts,
    /// Scope: the site. Value: the group.
    pub(crate) exact: Table,
    /// Values: groups.
    pub(crate) prefixes: Tree<false>,
    /// By site: the root among the prefixes.
    pub(crate) roots: Vec<u32>,
    pub(crate) groups: Vec<Group>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) segments: Segments,
    /// The patterns of paths with wildcards inside or with names.
    pub(crate) patterns: Vec<Pattern>,
    /// By route, where the host is a condition.
    pub(crate) host_patterns: Vec<Vec<HostPattern>>,
}

/// From a host to its site. Patterns with a port are kept apart, so that a configuration without any pays nothing.
#[derive(Default)]
pub(crate) struct Hosts {
    /// Scope: [`HostPattern::scope`]. Value: the site.
    pub(crate) exact: Table,
    /// Values: sites.
    pub(crate) wildcard: Tree<true>,
    pub(crate) wildcard_with_port: Tree<true>,
    pub(crate) with_port: bool,
}

pub(crate) struct Group {
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// Length of the text that all its patterns begin with.
    pub(crate) prefix: u32,
    /// The root of the group among the segments; [`NONE`] when every candidate takes every path that begins so.
    pub(crate) segments: u32,
}

/// One path of a route, under one of its hosts.
pub(crate) struct Candidate {
    pub(crate) route: u32,
    /// Index of the pattern, or [`NONE`] when there is nothing to capture.
    pub(crate) pattern: u32,
    pub(crate) path: u16,
    pub(crate) host: u16,
    pub(crate) methods: MethodSet,
    pub(crate) conditions: Conditions,
}

/// Which conditions need a look at the route itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub(crate) host: bool,
    pub(crate) remote_addr: bool,
    pub(crate) vars: bool,
}

impl Candidate {
    pub(crate) const NO_HOST: u16 = u16::MAX;

    /// Which of the route's hosts has led here, where the host decides first.
    #[inline]
    pub(crate) fn host(&self) -> Option<u16> {
        (self.host != Candidate::NO_HOST).then_some(self.host)
    }
}

impl Index {
    /// Calls `visit` with the candidates whose path takes that of the request, best first, until it breaks.
    #[inline]
    pub(crate) fn walk(
        &self,
        query: &Query<'_>,
        mut visit: impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if !self.hosts.exact.is_empty() {
            self.hosts.walk(query, |site| self.walk_site(site, query.path, &mut visit))?;
        }
        self.walk_site(0, query.path, &mut visit)
    }

    #[inline]
    fn walk_site(
        &self,
        site: u32,
        path: &[u8],
        visit: &mut impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if let Some(group) = self.exact.find(site, path) {
            let group = &self.groups[group as usize];
            self.candidates[group.first as usize..group.end as usize].iter().try_for_each(&mut *visit)?;
        }
        let mut next = self.prefixes.longest(self.roots[site as usize], path);
        while next != NONE {
            let group = &self.groups[next as usize];
            if group.segments == NONE {
                self.candidates[group.first as usize..group.end as usize].iter().try_for_each(&mut *visit)?;
            } else {
                self.walk_segments(group, path, visit)?;
            }
            next = self.prefixes.shorter(next);
        }
        ControlFlow::Continue(())
    }

    fn walk_segments(
        &self,
        group: &Group,
        path: &[u8],
        visit: &mut impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let rest = |rank: u32| match self.candidates[rank as usize].pattern {
            NONE => &Rest::Anything,
            pattern => &self.patterns[pattern as usize].rest,
        };
        let text = &path[group.prefix as usize..];
        let mut rank = self.segments.next(group.segments, text, group.first, &rest);
        while rank != NONE {
            visit(&self.candidates[rank as usize])?;
            rank = self.segments.next(group.segments, text, rank + 1, &rest);
        }
        ControlFlow::Continue(())
    }

    /// Which host of the route takes the request's, where the host is a condition.
    pub(crate) fn host_of(&self, route: u32, query: &Query<'_>) -> Option<u16> {
        let hosts = &self.host_patterns[route as usize];
        hosts.iter().position(|host| host.takes(query.host, query.host_port)).map(|index| index as u16)
    }

    /// The pattern of a candidate; nothing for [`NONE`].
    #[inline]
    pub(crate) fn pattern(&self, pattern: u32) -> Option<&Pattern> {
        self.patterns.get(pattern as usize)
    }

    /// The segments of a pattern from its first wildcard on.
    pub(crate) fn segments(&self, pattern: u32) -> &[Segment] {
        match self.pattern(pattern) {
            Some(Pattern { rest: Rest::Segments(segments), .. }) => segments,
            _ => &[],
        }
    }
}

impl Hosts {
    /// Calls `visit` with the sites of the request's host: exact before wildcard, long suffix before short, and each with
    /// port before without.
    #[inline]
    fn walk(&self, query: &Query<'_>, mut visit: impl FnMut(u32) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.with_port
            && let Some(site) = self.exact.find(HostPattern::EXACT_WITH_PORT, query.host_port)
        {
            visit(site)?;
        }
        if let Some(site) = self.exact.find(HostPattern::EXACT, query.host) {
            visit(site)?;
        }
        if self.with_port {
            let mut site = self.wildcard_with_port.longest(0, query.host_port);
            while site != NONE {
                visit(site)?;
                site = self.wildcard_with_port.shorter(site);
            }
        }
        let mut site = self.wildcard.longest(0, query.host);
        while site != NONE {
            visit(site)?;
            site = self.wildcard.shorter(site);
        }
        ControlFlow::Continue(())
    }
}
