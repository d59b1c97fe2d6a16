use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Average number of entries per shard above which a shard is added; a change copies one shard. Shards differ a
/// little by chance; the hash table of nearly every one then has 512 slots, three quarters of them occupied.
const ROOM: usize = 384;

/// Average number of entries per shard below which a shard is removed.
const SPARSE: usize = 64;

/// A map from text to values, in shards that its clones share: changing a clone copies only the affected shard.
///
/// All exact lookups use this map: hosts, paths, the literal segments behind a node. The number of shards grows and
/// shrinks by one at a time (linear hashing), so no change affects more than two of them. The seed may be fixed: only
/// configuration is ever inserted, so a client cannot lengthen a probe.
#[derive(Clone)]
pub(crate) struct Table<V> {
    shards: Vec<Arc<Shard<V>>>,
    /// Number of shards, rounded up to a power of two, minus one.
    mask: usize,
    length: usize,
}

#[derive(Clone)]
struct Shard<V> {
    entries: HashTable<Entry<V>>,
    /// Keys that are too long for their entries, including some of removed entries.
    text: Vec<u8>,
    /// Number of bytes of the text that belong to removed entries.
    unused: usize,
}

/// An entry of one cache line: most keys fit beside the value, and each lookup reads the entry from memory.
#[derive(Clone)]
#[repr(align(64))]
struct Entry<V> {
    value: V,
    length: u32,
    /// The key, or its offset in the text.
    key: [u8; SHORT],
}

/// Maximum length of a key that is stored in its entry.
const SHORT: usize = 44;

impl<V: Clone> Table<V> {
    /// Creates an empty table with room for this many entries.
    pub(crate) fn with_room(entries: usize) -> Table<V> {
        let shards = entries.div_ceil(ROOM);
        let each = entries.checked_div(shards).unwrap_or_default();
        let shard = |_| Arc::new(Shard { entries: HashTable::with_capacity(each), ..Shard::default() });
        let mut table = Table { shards: (0..shards).map(shard).collect(), ..Table::default() };
        table.set_mask();
        table
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Value of the key, if there is one.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<&V> {
        if self.shards.is_empty() { None } else { self.find_in_shard(key) }
    }

    fn find_in_shard(&self, key: &[u8]) -> Option<&V> {
        let hash = hash(key);
        let shard = &*self.shards[self.place(hash)];
        shard.entries.find(hash, |entry| entry.text(&shard.text) == key).map(|entry| &entry.value)
    }

    /// Mutable value of the key, if there is one.
    pub(crate) fn find_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.find(key)?;
        let hash = hash(key);
        let place = self.place(hash);
        let Shard { entries, text, .. } = Arc::make_mut(&mut self.shards[place]);
        entries.find_mut(hash, |entry| entry.text(text) == key).map(|entry| &mut entry.value)
    }

    /// Sets the value of the key, replacing a present one.
    pub(crate) fn insert(&mut self, key: &[u8], value: V) {
        if let Some(present) = self.find_mut(key) {
            *present = value;
            return;
        }
        if self.length >= self.shards.len() * ROOM {
            self.split();
        }
        let hash = hash(key);
        let place = self.place(hash);
        Arc::make_mut(&mut self.shards[place]).insert(hash, key, value);
        self.length += 1;
    }

    /// Removes the value of the key.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if self.find(key).is_none() {
            return;
        }
        let hash = hash(key);
        let place = self.place(hash);
        Arc::make_mut(&mut self.shards[place]).remove(hash, key);
        self.length -= 1;
        if self.length == 0 {
            *self = Table::default();
        } else if self.length < (self.shards.len() - 1) * SPARSE {
            self.merge();
        }
    }

    /// Index of the shard of a key. It uses other bits of the hash than the shard itself.
    #[inline]
    fn place(&self, hash: u64) -> usize {
        if self.mask == 0 {
            return 0; // without waiting for the hash
        }
        let place = (hash >> 32) as usize & self.mask;
        if place < self.shards.len() { place } else { place & (self.mask >> 1) }
    }

    /// Adds a shard, which takes over entries from exactly one other.
    fn split(&mut self) {
        self.shards.push(Arc::default());
        self.set_mask();
        let new = self.shards.len() - 1;
        let old = new & (self.mask >> 1);
        if old != new {
            let shard = std::mem::take(&mut self.shards[old]);
            self.spread(&shard);
        }
    }

    /// Removes the last shard; its entries return to the shard that they came from.
    fn merge(&mut self) {
        let last = self.shards.pop();
        self.set_mask();
        if let Some(last) = last {
            self.spread(&last);
        }
    }

    fn spread(&mut self, shard: &Shard<V>) {
        for entry in &shard.entries {
            let key = entry.text(&shard.text);
            let hash = hash(key);
            let place = self.place(hash);
            Arc::make_mut(&mut self.shards[place]).insert(hash, key, entry.value.clone());
        }
    }

    fn set_mask(&mut self) {
        self.mask = self.shards.len().next_power_of_two() - 1;
    }
}

impl<V> Shard<V> {
    /// Inserts an entry with a key that is not present.
    fn insert(&mut self, hash: u64, key: &[u8], value: V) {
        let entry = Entry::new(key, value, &mut self.text);
        let text = &self.text;
        self.entries.insert_unique(hash, entry, |entry| self::hash(entry.text(text)));
    }

    fn remove(&mut self, hash: u64, key: &[u8]) {
        if let Ok(entry) = self.entries.find_entry(hash, |entry| entry.text(&self.text) == key) {
            let (entry, _) = entry.remove();
            self.unused += if entry.is_short() { 0 } else { key.len() };
        }
        if self.unused > self.text.len() / 2 {
            let mut text = Vec::with_capacity(self.text.len() - self.unused);
            for entry in self.entries.iter_mut().filter(|entry| !entry.is_short()) {
                entry.key = Entry::<V>::key(entry.text(&self.text), &mut text);
            }
            (self.text, self.unused) = (text, 0);
        }
    }
}

impl<V> Entry<V> {
    fn new(key: &[u8], value: V, text: &mut Vec<u8>) -> Entry<V> {
        Entry { value, length: key.len() as u32, key: Self::key(key, text) }
    }

    /// Stored form of a key in its entry; a long key is appended to the text.
    fn key(key: &[u8], text: &mut Vec<u8>) -> [u8; SHORT] {
        let mut short = [0; SHORT];
        match short.get_mut(..key.len()) {
            Some(place) => place.copy_from_slice(key),
            None => {
                short[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
                text.extend_from_slice(key);
            }
        }
        short
    }

    fn is_short(&self) -> bool {
        self.length as usize <= SHORT
    }

    #[inline]
    fn text<'a>(&'a self, text: &'a [u8]) -> &'a [u8] {
        let length = self.length as usize;
        self.key.get(..length).unwrap_or_else(|| {
            let [a, b, c, d, ..] = self.key;
            let start = u32::from_le_bytes([a, b, c, d]) as usize;
            &text[start..start + length]
        })
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Table { shards: Vec::new(), mask: 0, length: 0 }
    }
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Shard { entries: HashTable::new(), text: Vec::new(), unused: 0 }
    }
}

#[inline]
fn hash(key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0x5765_6972).build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{SHORT, Table};

    /// A key of each length, around the maximum length stored in an entry.
    fn key(length: usize) -> String {
        (0..length).map(|place| char::from(b'a' + ((length + place) % 26) as u8)).collect()
    }

    #[test]
    fn keys_of_every_length_come_and_go() {
        let mut table = Table::default();
        for length in 0..3 * SHORT {
            table.insert(key(length).as_bytes(), length);
            table.insert(key(length).as_bytes(), length + 1);
        }
        let before = table.clone();
        for length in (0..3 * SHORT).filter(|length| length % 4 != 0) {
            table.remove(key(length).as_bytes());
            for other in 0..3 * SHORT {
                let there = other % 4 == 0 || other > length;
                assert_eq!(
                    table.find(key(other).as_bytes()),
                    there.then_some(&(other + 1)),
                    "{other} without {length}"
                );
                assert_eq!(before.find(key(other).as_bytes()), Some(&(other + 1)));
            }
        }
        for length in SHORT - 1..SHORT + 3 {
            let mut other = key(length).into_bytes();
            *other.last_mut().unwrap() = b'!';
            assert_eq!(before.find(&other), None, "a key that differs at its end");
        }
    }
}
