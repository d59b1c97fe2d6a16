use std::sync::Arc;

use regex::bytes::Regex;

use crate::candidate::{Candidate, Ranked};
use crate::host::HostPattern;
use crate::pattern::{Pattern, Rest, Segment};
use crate::route::Route;
use crate::slots::Slots;

/// Routes by number.
pub(crate) type Routes = Slots<Arc<Compiled>>;

/// A route with its parsed paths and hosts.
pub(crate) struct Compiled {
    pub(crate) route: Route,
    /// Patterns in the order of the paths.
    pub(crate) patterns: Box<[Pattern]>,
    /// Regular expressions in the order of the paths, with [`Mode::Ranked`](crate::Mode::Ranked); `None` for a prefix.
    pub(crate) regexes: Box<[Option<Regex>]>,
    /// Patterns in the order of the hosts.
    pub(crate) hosts: Box<[HostPattern]>,
}

impl Compiled {
    /// Adds the values that order a candidate of this route.
    pub(crate) fn ranked(&self, candidate: Candidate) -> Ranked {
        let Route { priority, order, ref paths, ref ranks, .. } = self.route;
        if let Some(rank) = ranks.get(usize::from(candidate.path)) {
            // The order of unsigned numbers, kept among signed ones.
            return Ranked { candidate, priority: (rank ^ 1 << 63) as i64, order, length: 0 };
        }
        let length = paths.get(usize::from(candidate.path)).map_or(0, String::len);
        Ranked { candidate, priority, order, length: u32::try_from(length).unwrap_or(u32::MAX) }
    }
}

impl Routes {
    /// Adds the values that order a candidate of one of these routes.
    pub(crate) fn ranked(&self, candidate: &Candidate) -> Option<Ranked> {
        Some(self.get(candidate.route)?.ranked(*candidate))
    }

    /// Part of a candidate's path after the text before the first wildcard.
    pub(crate) fn rest(&self, candidate: &Candidate) -> &Rest {
        self.pattern(candidate.route, candidate.path).map_or(&Rest::Nothing, |pattern| &pattern.rest)
    }

    /// Segments of a path from its first wildcard on, if there is something to capture.
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
