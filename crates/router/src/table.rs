use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// A map from (scope, text) to a number, with all texts in one allocation.
///
/// It serves every exact lookup: hosts, the paths of a site, the literal segments behind a node. The seed may be fixed:
/// only configuration is ever inserted, so a client cannot lengthen a probe.
#[derive(Default)]
pub(crate) struct Table {
    entries: HashTable<Entry>,
    text: Vec<u8>,
}

struct Entry {
    scope: u32,
    start: u32,
    length: u32,
    value: u32,
}

impl Table {
    pub(crate) fn with_capacity(entries: usize) -> Table {
        Table { entries: HashTable::with_capacity(entries), text: Vec::new() }
    }

    /// The value under the key, if there is one.
    pub(crate) fn find(&self, scope: u32, key: &[u8]) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let is_key = |entry: &Entry| entry.scope == scope && entry.text(&self.text) == key;
        self.entries.find(hash(scope, key), is_key).map(|entry| entry.value)
    }

    /// The value under the key, after `value` was inserted where there was none.
    pub(crate) fn find_or_insert(&mut self, scope: u32, key: &[u8], value: u32) -> u32 {
        if let Some(present) = self.find(scope, key) {
            return present;
        }
        let entry = Entry { scope, start: self.text.len() as u32, length: key.len() as u32, value };
        self.text.extend_from_slice(key);
        let text = &self.text;
        self.entries.insert_unique(hash(scope, key), entry, |entry| hash(entry.scope, entry.text(text)));
        value
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    fn text<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        &text[start..start + self.length as usize]
    }
}

fn hash(scope: u32, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0x5765_6972).build_hasher();
    hasher.write_u32(scope);
    hasher.write(key);
    hasher.finish()
}
