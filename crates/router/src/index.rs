use std::ops::ControlFlow;
use std::sync::Arc;

use crate::candidate::{Candidate, Group};
use crate::numbered::Routes;
use crate::route::{Mode, Query};
use crate::table::Table;
use crate::tree::Tree;

/// Index from requests to candidates. A clone shares everything with the original until it is changed.
#[derive(Clone, Default)]
pub(crate) struct Index {
    pub(crate) mode: Mode,
    pub(crate) routes: Routes,
    pub(crate) hosts: Hosts,
    /// Routes without host; all routes in modes that do not decide the host first.
    pub(crate) hostless: Site,
}

/// Map from hosts to sites. Patterns with a port are separate, so that they cost nothing in a configuration without
/// them.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    pub(crate) exact: Table<Arc<Site>>,
    pub(crate) wildcard: Tree<Arc<Site>, true>,
    pub(crate) exact_with_port: Table<Arc<Site>>,
    pub(crate) wildcard_with_port: Tree<Arc<Site>, true>,
    /// Patterns with a wildcard at the end, only with [`Mode::Ranked`].
    pub(crate) open: Tree<Arc<Site>, false>,
    /// True if there are patterns with a port.
    pub(crate) with_port: bool,
}

/// Paths of a host.
#[derive(Clone, Default)]
pub(crate) struct Site {
    pub(crate) exact: Table<Group>,
    pub(crate) prefixes: Tree<Group, false>,
}

impl Index {
    /// Calls `visit` with the candidates whose path takes that of the request, best first, until it breaks.
    #[inline]
    pub(crate) fn walk(
        &self,
        query: &Query<'_>,
        mut visit: impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.hosts.walk(query, |site| self.walk_site(site, query.path, &mut visit))?;
        self.walk_site(&self.hostless, query.path, &mut visit)
    }

    #[inline]
    fn walk_site(
        &self,
        site: &Site,
        path: &[u8],
        visit: &mut impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if let Some(group) = site.exact.find(path) {
            self.walk_group(group, path, visit)?;
        }
        site.prefixes.walk(path, |group| self.walk_group(group, path, visit))
    }

    #[inline]
    fn walk_group(
        &self,
        group: &Group,
        path: &[u8],
        visit: &mut impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match group {
            Group::One(candidate) => visit(candidate),
            Group::Many(candidates) => candidates.iter().map(|ranked| &ranked.candidate).try_for_each(visit),
            Group::Patterns(segments) => segments.walk(path, |candidate| self.routes.rest(candidate), visit),
        }
    }
}

impl Hosts {
    /// Calls `visit` with the sites of the request's host: exact before wildcard, long suffix before short, and each
    /// with port before without.
    #[inline]
    pub(crate) fn walk(&self, query: &Query<'_>, mut visit: impl FnMut(&Site) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.with_port
            && let Some(site) = self.exact_with_port.find(query.host_port)
        {
            visit(site)?;
        }
        if let Some(site) = self.exact.find(query.host) {
            visit(site)?;
        }
        if self.with_port {
            self.wildcard_with_port.walk(query.host_port, |site| visit(site))?;
        }
        self.wildcard.walk(query.host, |site| visit(site))
    }
}

impl Site {
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }
}
