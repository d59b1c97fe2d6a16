use std::cmp::Reverse;
use std::sync::Arc;

use crate::method::MethodSet;
use crate::needs::Needs;
use crate::numbered::Routes;
use crate::pattern::Rest;
use crate::segments::Segments;

/// One path of a route under one of its hosts: the data that a request is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) route: u32,
    pub(crate) path: u16,
    pub(crate) host: u16,
    pub(crate) methods: MethodSet,
    pub(crate) needs: Needs,
}

/// A candidate with the values that order it among others.
#[derive(Clone, Copy)]
pub(crate) struct Ranked {
    pub(crate) candidate: Candidate,
    pub(crate) priority: i64,
    pub(crate) order: u64,
    /// Length of the path as written.
    pub(crate) length: u32,
}

impl Candidate {
    pub(crate) const NO_HOST: u16 = u16::MAX;

    /// Index of the route's host that led to the candidate, if the host is decided first.
    #[inline]
    pub(crate) fn host(&self) -> Option<u16> {
        (self.host != Candidate::NO_HOST).then_some(self.host)
    }
}

impl Ranked {
    /// Sort key of the candidates of a group: the lowest goes first. It is unique for each candidate.
    #[inline]
    pub(crate) fn rank(&self) -> (Reverse<i64>, Reverse<u32>, u64, u32, u16, u16) {
        let Candidate { route, path, host, .. } = self.candidate;
        (Reverse(self.priority), Reverse(self.length), self.order, route, path, host)
    }
}

/// Candidates of one path, or of one text before the first wildcard. The type is small because each of many groups is
/// read from memory, and nearly all are of the first variant.
#[derive(Clone)]
pub(crate) enum Group {
    /// A single candidate, which takes every path that leads to the group.
    One(Candidate),
    /// Several such candidates, by rank.
    Many(Arc<Vec<Ranked>>),
    /// Candidates of which at least one takes only some of the paths that lead to the group.
    Patterns(Arc<Segments>),
}

/// Addition or removal of a candidate, with its path from the first wildcard on.
pub(crate) struct CandidateEdit<'r> {
    pub(crate) is_added: bool,
    pub(crate) ranked: Ranked,
    pub(crate) rest: &'r Rest,
}

impl Group {
    /// Builds the changed group; `None` if it is empty. `prefix` is the length of the text before the first wildcard.
    /// `turns` are ordered by rank, removals before additions. `routes` are those before the change.
    pub(crate) fn change<'t, 'r: 't>(
        group: Option<&Group>,
        routes: &Routes,
        prefix: usize,
        turns: impl Iterator<Item = &'t CandidateEdit<'r>> + Clone,
    ) -> Option<Group> {
        if let Some(Group::Patterns(segments)) = group {
            let mut segments = Segments::clone(segments);
            turns.for_each(|turn| segments.change(turn));
            return segments.into_group();
        }
        let one;
        let mut present = match group {
            Some(Group::One(candidate)) => {
                one = routes.ranked(candidate);
                one.as_slice()
            }
            Some(Group::Many(candidates)) => candidates,
            _ => &[],
        };
        if turns.clone().any(|turn| turn.ranked.candidate.needs.has(Needs::COMPARISON)) {
            let mut segments = Segments::new(prefix);
            present.iter().for_each(|ranked| segments.insert(*ranked, &Rest::Anything));
            turns.for_each(|turn| segments.change(turn));
            return segments.into_group();
        }
        let mut candidates = Vec::with_capacity(present.len() + 1);
        for CandidateEdit { is_added, ranked, .. } in turns {
            let before = present.partition_point(|other| other.rank() < ranked.rank());
            candidates.extend_from_slice(&present[..before]);
            present = &present[before..];
            if *is_added {
                candidates.push(*ranked);
            } else if let Some((gone, others)) = present.split_first()
                && gone.rank() == ranked.rank()
            {
                present = others;
            }
        }
        candidates.extend_from_slice(present);
        Group::of(candidates)
    }

    /// Group of candidates that take every path that leads to them, ordered by rank.
    pub(crate) fn of(candidates: Vec<Ranked>) -> Option<Group> {
        match candidates[..] {
            [] => None,
            [Ranked { candidate, .. }] => Some(Group::One(candidate)),
            _ => Some(Group::Many(Arc::new(candidates))),
        }
    }
}
