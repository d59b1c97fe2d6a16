//! What a plugin leaves for itself on an exchange, from one phase to the next.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells what an instance of a plugin left on an exchange from what others did: no two instances have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// A mark that nobody has; made once, when an instance is built.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// State of plugins for one response body, such as a compressor.
#[derive(Default)]
pub(crate) struct States(pub(crate) Vec<(Mark, Box<dyn Any>)>);

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(mark, _)| mark)).finish()
    }
}

impl States {
    pub(crate) fn put(&mut self, mark: Mark, state: Box<dyn Any>) {
        self.0.retain(|(other, _)| *other != mark);
        self.0.push((mark, state));
    }

    pub(crate) fn get<T: Any>(&mut self, mark: Mark) -> Option<&mut T> {
        self.0.iter_mut().find(|(other, _)| *other == mark)?.1.downcast_mut()
    }
}

/// Two numbers that an instance keeps from one phase of an exchange to the next.
pub type Note = [u64; 2];

/// The notes of an exchange.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<(Mark, Note)>);

impl Notes {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn set(&mut self, mark: Mark, note: Note) {
        match self.0.iter_mut().find(|(other, _)| *other == mark) {
            Some((_, old)) => *old = note,
            None => self.0.push((mark, note)),
        }
    }

    pub(crate) fn get(&self, mark: Mark) -> Option<Note> {
        self.0.iter().find(|(other, _)| *other == mark).map(|(_, note)| *note)
    }
}
