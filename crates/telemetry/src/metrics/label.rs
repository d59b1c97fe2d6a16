//! Label values as small integers.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hashbrown::HashTable;

/// A label value interned by [`Labels`]; valid only for the `Labels` that returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(pub(super) u32);

impl Label {
    /// Empty text: "unknown" or "does not apply".
    pub const EMPTY: Label = Label(0);
    /// Text `other`, which stands for all values that did not fit.
    pub const OTHER: Label = Label(1);
}

impl Default for Label {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Cached label, interned at its first use. It serves values that are too many to intern in advance, such as
/// consumers, and is shared between workers.
#[derive(Debug, Default)]
pub struct LazyLabel(AtomicU32);

impl LazyLabel {
    /// Creates a label without a value yet.
    pub const fn new() -> Self {
        // Zero means "not yet"; a label n is stored as n + 1.
        Self(AtomicU32::new(0))
    }
}

/// Maximum length of a text in bytes; longer texts get the label `other`.
pub const MAX_LABEL_BYTES: usize = 4096;

/// Table of label values. It grows up to a bound and never removes a value, so a [`Label`] stays valid.
///
/// Interning takes a lock, so it belongs to compilation or to the first use of a value. Reading a text takes no lock.
#[derive(Debug)]
pub struct Labels {
    texts: boxcar::Vec<Box<str>>,
    ids: Mutex<HashTable<u32>>,
    hasher: foldhash::quality::RandomState,
    max: usize,
}

impl Labels {
    /// Creates a table for at most `max` texts in addition to the empty one and `other`.
    pub(super) fn new(max: usize) -> Self {
        let labels = Self {
            texts: boxcar::Vec::new(),
            ids: Mutex::new(HashTable::new()),
            hasher: foldhash::quality::RandomState::default(),
            max: max.saturating_add(2).min(u32::MAX as usize),
        };
        labels.intern("");
        labels.intern("other");
        labels
    }

    /// Label of `text`, created on first use; [`Label::OTHER`] if the table is full or the text is longer than
    /// [`MAX_LABEL_BYTES`].
    pub fn intern(&self, text: &str) -> Label {
        if text.len() > MAX_LABEL_BYTES {
            return Label::OTHER;
        }
        let hash = self.hasher.hash_one(text);
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = ids.find(hash, |id| self.text(Label(*id)) == text) {
            return Label(*id);
        }
        if self.texts.count() >= self.max {
            return Label::OTHER;
        }
        // Appended under the lock, so the index is below `max` and fits.
        let id = self.texts.push(text.into()) as u32;
        ids.insert_unique(hash, id, |id| self.hasher.hash_one(self.text(Label(*id))));
        Label(id)
    }

    /// Label cached in `lazy`; only the first call evaluates the text and takes the lock.
    pub fn lazy<'a>(&self, lazy: &LazyLabel, text: impl FnOnce() -> &'a str) -> Label {
        match lazy.0.load(Relaxed).checked_sub(1) {
            Some(id) => Label(id),
            None => {
                let label = self.intern(text());
                lazy.0.store(label.0 + 1, Relaxed);
                label
            }
        }
    }

    /// Text of a label; empty for a label of another table.
    pub fn text(&self, label: Label) -> &str {
        self.texts.get(label.0 as usize).map_or("", |text| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_label_and_the_table_is_bounded() {
        let labels = Labels::new(2);
        assert_eq!(labels.intern(""), Label::EMPTY);
        assert_eq!(labels.intern("other"), Label::OTHER);
        let (a, b) = (labels.intern("a"), labels.intern("b"));
        assert_ne!(a, b);
        let cases = [("a", a), ("b", b), ("c", Label::OTHER), ("", Label::EMPTY)];
        for (text, label) in cases {
            assert_eq!(labels.intern(text), label, "{text:?}");
        }
        assert_eq!(labels.text(a), "a");
        assert_eq!(labels.text(Label(77)), "");
    }

    #[test]
    fn a_text_that_is_too_long_is_other() {
        let labels = Labels::new(10);
        assert_eq!(labels.intern(&"x".repeat(MAX_LABEL_BYTES + 1)), Label::OTHER);
        assert_ne!(labels.intern(&"x".repeat(MAX_LABEL_BYTES)), Label::OTHER);
    }

    #[test]
    fn a_lazy_label_asks_for_its_text_once() {
        let labels = Labels::new(10);
        let lazy = LazyLabel::new();
        let first = labels.lazy(&lazy, || "jack");
        let second = labels.lazy(&lazy, || unreachable!("the label is known"));
        assert_eq!((first, labels.text(first)), (second, "jack"));
        let empty = LazyLabel::new();
        labels.lazy(&empty, || "");
        assert_eq!(labels.lazy(&empty, || unreachable!("the empty label is remembered too")), Label::EMPTY);
    }

    #[test]
    fn threads_that_intern_at_once_agree() {
        let labels = Labels::new(1000);
        let texts: Vec<String> = (0..200).map(|n| format!("route-{n}")).collect();
        let seen: Vec<Vec<Label>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| texts.iter().map(|text| labels.intern(text)).collect())).collect();
            threads.into_iter().map(|thread| thread.join().expect("interning thread")).collect()
        });
        for other in &seen[1..] {
            assert_eq!(other, &seen[0]);
        }
        for (label, text) in seen[0].iter().zip(&texts) {
            assert_eq!(labels.text(*label), text);
        }
    }
}
