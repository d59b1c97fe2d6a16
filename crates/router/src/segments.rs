use std::ops::ControlFlow;
use std::sync::Arc;

use crate::candidate::{Candidate, CandidateEdit, Group, Ranked};
use crate::needs::Needs;
use crate::pattern::{Rest, Segment, capture};
use crate::table::Table;

/// Finds, among many patterns with wildcards that share the text before the first one, those that take a path.
///
/// The patterns form a tree with one step per segment, so the cost depends on the path: each node leads to at most
/// the child for exactly this text and the child for a parameter. Only the text behind an inner star is compared
/// pattern by pattern. Clones share all nodes that a change does not lead through.
#[derive(Clone)]
pub(crate) struct Segments {
    /// Length of the text that all patterns begin with.
    prefix: usize,
    root: Node,
    /// Number of candidates that take only some of the paths with this prefix.
    comparing: usize,
}

#[derive(Clone, Default)]
struct Node {
    /// Lower bound of the rank of every candidate in this subtree; `None` if there is none. Used to skip subtrees.
    bound: Option<Ranked>,
    literals: Table<Arc<Node>>,
    parameter: Option<Arc<Node>>,
    /// Candidates with a pattern that ends here, by rank.
    ends: Vec<Ranked>,
    /// Candidates with a star here, by rank. A pattern that ends with the star takes any remaining text.
    stars: Vec<Ranked>,
}

impl Segments {
    pub(crate) fn new(prefix: usize) -> Segments {
        Segments { prefix, root: Node::default(), comparing: 0 }
    }

    /// Calls `visit` with the candidates that take `path`, by rank, until it breaks. `rest` returns the pattern of a
    /// candidate.
    pub(crate) fn walk<'p>(
        &self,
        path: &[u8],
        rest: impl Fn(&Candidate) -> &'p Rest,
        visit: &mut impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut search = Search { text: &path[self.prefix..], rest, after: None, best: None };
        loop {
            search.visit(&self.root, Some(0));
            let Some(found) = search.best.take() else {
                return ControlFlow::Continue(());
            };
            visit(&found.candidate)?;
            search.after = Some(found);
        }
    }

    /// Adds or removes a candidate.
    pub(crate) fn change(&mut self, turn: &CandidateEdit<'_>) {
        if turn.is_added {
            self.insert(turn.ranked, turn.rest);
        } else {
            self.root.remove(turn.rest.segments(), &turn.ranked);
            self.comparing -= usize::from(turn.ranked.candidate.needs.has(Needs::COMPARISON));
        }
    }

    pub(crate) fn insert(&mut self, ranked: Ranked, rest: &Rest) {
        self.root.insert(rest.segments(), ranked);
        self.comparing += usize::from(ranked.candidate.needs.has(Needs::COMPARISON));
    }

    /// Converts to the simplest group with the same candidates.
    pub(crate) fn into_group(self) -> Option<Group> {
        if self.comparing == 0 { Group::of(self.root.stars) } else { Some(Group::Patterns(Arc::new(self))) }
    }
}

impl Node {
    fn insert(&mut self, segments: &[Segment], candidate: Ranked) {
        if self.bound.is_none_or(|bound| candidate.rank() < bound.rank()) {
            self.bound = Some(candidate);
        }
        match segments {
            [] => insert(&mut self.ends, candidate),
            [Segment::Star(_), ..] => insert(&mut self.stars, candidate),
            [Segment::Parameter(_), behind @ ..] => {
                Arc::make_mut(self.parameter.get_or_insert_default()).insert(behind, candidate);
            }
            [Segment::Literal(text), behind @ ..] => match self.literals.find_mut(text.as_bytes()) {
                Some(child) => Arc::make_mut(child).insert(behind, candidate),
                None => {
                    let mut child = Node::default();
                    child.insert(behind, candidate);
                    self.literals.insert(text.as_bytes(), Arc::new(child));
                }
            },
        }
    }

    /// Removes a candidate, and nodes that become empty. The bounds are kept: they may be lower than necessary.
    fn remove(&mut self, segments: &[Segment], candidate: &Ranked) {
        match segments {
            [] => remove(&mut self.ends, candidate),
            [Segment::Star(_), ..] => remove(&mut self.stars, candidate),
            [Segment::Parameter(_), behind @ ..] => {
                if let Some(child) = &mut self.parameter {
                    let child = Arc::make_mut(child);
                    child.remove(behind, candidate);
                    if child.is_empty() {
                        self.parameter = None;
                    }
                }
            }
            [Segment::Literal(text), behind @ ..] => {
                if let Some(child) = self.literals.find_mut(text.as_bytes()) {
                    let child = Arc::make_mut(child);
                    child.remove(behind, candidate);
                    if child.is_empty() {
                        self.literals.remove(text.as_bytes());
                    }
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.stars.is_empty() && self.parameter.is_none() && self.literals.is_empty()
    }
}

fn insert(candidates: &mut Vec<Ranked>, candidate: Ranked) {
    candidates.insert(candidates.partition_point(|other| other.rank() < candidate.rank()), candidate);
}

fn remove(candidates: &mut Vec<Ranked>, candidate: &Ranked) {
    if let Ok(place) = candidates.binary_search_by_key(&candidate.rank(), Ranked::rank) {
        candidates.remove(place);
    }
}

/// Search for the first candidate after the previous result that takes a text.
struct Search<'a, R> {
    text: &'a [u8],
    rest: R,
    after: Option<&'a Ranked>,
    best: Option<&'a Ranked>,
}

impl<'a, 'p, R: Fn(&Candidate) -> &'p Rest> Search<'a, R> {
    /// Visits a node; `at` is the start of a segment, or `None` after the end of the text. Recurses once per segment
    /// of a pattern, and the number of segments is limited when patterns are compiled.
    fn visit(&mut self, node: &'a Node, at: Option<usize>) {
        if !node.bound.as_ref().is_some_and(|bound| self.improves(bound)) {
            return;
        }
        let Some(at) = at else {
            self.best = self.behind(&node.ends).first().filter(|end| self.improves(end)).or(self.best);
            return;
        };
        for star in self.behind(&node.stars).iter().take_while(|star| self.improves(star)) {
            if !star.candidate.needs.has(Needs::INNER_STAR) || takes((self.rest)(&star.candidate), self.text) {
                self.best = Some(star);
                break;
            }
        }
        let text = self.text;
        let end = text[at..].iter().position(|byte| *byte == b'/').map_or(text.len(), |slash| at + slash);
        let next = (end < text.len()).then_some(end + 1);
        if let Some(child) = node.literals.find(&text[at..end]) {
            self.visit(child, next);
        }
        if let Some(child) = &node.parameter
            && end > at
        {
            self.visit(child, next);
        }
    }

    /// True if a candidate goes before the best one so far.
    fn improves(&self, candidate: &Ranked) -> bool {
        self.best.is_none_or(|best| candidate.rank() < best.rank())
    }

    /// Candidates after the previous result.
    fn behind(&self, candidates: &'a [Ranked]) -> &'a [Ranked] {
        match self.after {
            Some(after) => &candidates[candidates.partition_point(|candidate| candidate.rank() <= after.rank())..],
            None => candidates,
        }
    }
}

fn takes(rest: &Rest, text: &[u8]) -> bool {
    match rest {
        Rest::Segments(segments) => capture(segments, text, &mut |_, _| {}),
        Rest::Anything | Rest::Regex => true,
        Rest::Nothing => text.is_empty(),
    }
}
