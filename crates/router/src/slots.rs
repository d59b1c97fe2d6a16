use std::sync::Arc;

use crate::candidate::Candidate;
use crate::host::HostPattern;
use crate::pattern::{Pattern, Rest, Segment};
use crate::router::Route;

/// How many numbers lie in one chunk; a change copies one.
const CHUNK: usize = 256;

/// Routes by number, in chunks that clones share.
#[derive(Clone, Default)]
pub(crate) struct Slots {
    chunks: Vec<Option<Arc<Chunk>>>,
}

type Chunk = [Option<Arc<Compiled>>; CHUNK];

/// A route with its paths and hosts taken apart.
pub(crate) struct Compiled {
    pub(crate) route: Route,
    /// By path.
    pub(crate) patterns: Box<[Pattern]>,
    /// By host.
    pub(crate) hosts: Box<[HostPattern]>,
}

impl Slots {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Compiled>> {
        let number = number as usize;
        self.chunks.get(number / CHUNK)?.as_ref()?[number % CHUNK].as_ref()
    }

    pub(crate) fn put(&mut self, number: u32, route: Option<Arc<Compiled>>) {
        let number = number as usize;
        let place = number / CHUNK;
        if place >= self.chunks.len() {
            self.chunks.resize(place + 1, None);
        }
        let empty = || Arc::new([const { None }; CHUNK]);
        Arc::make_mut(self.chunks[place].get_or_insert_with(empty))[number % CHUNK] = route;
    }

    /// All routes in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Compiled)> {
        let slots = self.chunks.iter().zip(0u32..).filter_map(|(chunk, place)| Some((chunk.as_ref()?, place)));
        slots.flat_map(|(chunk, place)| {
            let first = place * CHUNK as u32;
            chunk.iter().zip(first..).filter_map(|(slot, number)| Some((number, &**slot.as_ref()?)))
        })
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
