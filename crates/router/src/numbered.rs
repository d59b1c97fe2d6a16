use std::sync::Arc;

use crate::candidate::{Candidate, Ranked};
use crate::host::HostPattern;
use crate::pattern::{Pattern, Rest, Segment};
use crate::route::Route;
use crate::slots::Slots;

/// Routes by number.
pub(crate) type Routes = Slots<Arc<Compiled>>;

/// A route with its paths and hosts taken apart.
pub(crate) struct Compiled {
    pub(crate) route: Route,
    /// By path.
    pub(crate) patterns: Box<[Pattern]>,
    /// By host.
    pub(crate) hosts: Box<[HostPattern]>,
}

impl Compiled {
    /// A candidate of this route, with what orders it.
    pub(crate) fn ranked(&self, candidate: Candidate) -> Ranked {
        let Route { priority, order, ref paths, .. } = self.route;
        let length = paths.get(usize::from(candidate.path)).map_or(0, String::len);
        Ranked { candidate, priority, order, length: u32::try_from(length).unwrap_or(u32::MAX) }
    }
}

impl Routes {
    /// A candidate of one of these routes, with what orders it.
    pub(crate) fn ranked(&self, candidate: &Candidate) -> Option<Ranked> {
        Some(self.get(candidate.route)?.ranked(*candidate))
    }

    /// What follows the text before the first wildcard in the path of a candidate.
    pub(crate) fn rest(&self, candidate: &Candidate) -> &Rest {
        self.pattern(candidate.route, candidate.path).map_or(&Rest::Nothing, |pattern| &pattern.rest)
    }

    /// The segments of a path from its first wildcard on, where there is something to capture.
    pub(crate) fn segments(&self, route: u32, path: u16) -> &[Segment] {
        match self.pattern(route, path) {
            Some(Pattern { rest: Rest::Segments(segments), .. }) => segments,
            _ => &[],
        }
    }

    pub(crate) fn pattern(&self, route: u32, path: u16) -> Option<&Pattern> {
        self.get(route)?.patterns.get(usize::from(path))
    }
}
