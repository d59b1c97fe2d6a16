//! The text of the rules file that is live, kept for the control API.
//!
//! A document takes more memory than all that is made of it, and the file may have been written since; so what is kept
//! is the text as it was read, compressed: about a tenth of the file.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use tokio::sync::Notify;
use weir_config::load::{Written, items};

/// What is live.
#[derive(Debug)]
pub(crate) struct LiveText {
    kept: Mutex<Kept>,
    /// Told of every text that is live from then on.
    changed: Notify,
}

/// A text on its way to be live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    revision: u64,
    text: Vec<u8>,
    /// Paths of items that are invalid and were left out.
    left_out: HashSet<String>,
}

impl Kept {
    /// Keeps a text; on a thread that may block.
    pub(crate) fn new(text: &[u8], revision: u64) -> Self {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory does not fail.
        let text = encoder.write_all(text).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { revision, text, left_out: HashSet::new() }
    }

    /// The items with these paths are none.
    pub(crate) fn without(self, left_out: HashSet<String>) -> Self {
        Self { left_out, ..self }
    }

    /// Its number.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The items of a section that serve; on a thread that may block.
    pub(crate) fn items(&self, section: &str) -> Vec<Written> {
        let mut text = Vec::new();
        if DeflateDecoder::new(self.text.as_slice()).read_to_end(&mut text).is_err() {
            return Vec::new();
        }
        let mut found = items(&text, section, &|name| std::env::var(name).ok());
        found.retain(|item| !self.left_out.contains(&item.path));
        found
    }
}

impl LiveText {
    pub(crate) fn new(first: Kept) -> Self {
        Self { kept: Mutex::new(first), changed: Notify::new() }
    }

    /// From now on this one is live.
    pub(crate) fn set(&self, kept: Kept) {
        *self.lock() = kept;
        self.changed.notify_one();
    }

    /// Waits for another one; for one task alone.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The one that is live.
    pub(crate) fn kept(&self) -> Kept {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kept, LiveText};

    #[test]
    fn what_is_live_is_told() {
        let live = LiveText::new(Kept::new(b"services: [{id: s}]\n#END\n", 1));
        assert_eq!((live.kept().revision(), live.kept().items("services").len()), (1, 1));
        let text = b"routes: [{id: a, uri: /a}, {id: b, uri: 1}, {id: c, uri: /c}]\n#END\n";
        live.set(Kept::new(text, 7).without(["routes[1]".to_owned()].into()));
        let (revision, items) = (live.kept().revision(), live.kept().items("routes"));
        let ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!((revision, ids.as_slice()), (7, ["a", "c"].as_slice()));
        assert!(live.kept().items("services").is_empty());
    }
}
