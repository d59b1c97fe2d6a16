//! Responses by keys, up to a number of bytes; those that were kept first make room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_queue::SegQueue;
use papaya::HashMap;

/// Bytes of all responses of a store.
const MOST_BYTES: usize = 64 << 20;
/// Bytes that an entry takes beside its texts, about.
const OVERHEAD: usize = 256;

/// Name and value of a field.
type Field = (Box<[u8]>, Box<[u8]>);

/// A response.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) status: u16,
    pub(super) fields: Vec<Field>,
    pub(super) body: Vec<u8>,
    /// Seconds since 1970 at which it was kept.
    pub(super) since: u64,
    /// Seconds for which it may be used.
    pub(super) ttl: u64,
}

impl Entry {
    fn size(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len() + 32);
        OVERHEAD + self.body.len() + fields.sum::<usize>()
    }
}

/// Responses by keys.
#[derive(Debug, Default)]
pub(super) struct Store {
    entries: HashMap<[u8; 32], (u64, Arc<Entry>)>,
    /// Keys with the numbers of their entries, those that came first in front.
    order: SegQueue<([u8; 32], u64)>,
    next: AtomicU64,
    bytes: AtomicUsize,
}

impl Store {
    pub(super) fn get(&self, key: &[u8; 32]) -> Option<Arc<Entry>> {
        self.entries.pin().get(key).map(|(_, entry)| Arc::clone(entry))
    }

    pub(super) fn put(&self, key: [u8; 32], entry: Entry) {
        let size = entry.size();
        if size > MOST_BYTES {
            return;
        }
        let number = self.next.fetch_add(1, Relaxed);
        self.bytes.fetch_add(size, Relaxed);
        let entries = self.entries.pin();
        if let Some((_, before)) = entries.insert(key, (number, Arc::new(entry))) {
            self.bytes.fetch_sub(before.size(), Relaxed);
        }
        self.order.push((key, number));
        // Of a key that was kept again only the last place in the order counts; the others are passed over, and there are never
        // more of them than entries that fit.
        while self.bytes.load(Relaxed) > MOST_BYTES || self.order.len() > MOST_BYTES / OVERHEAD {
            let Some((oldest, number)) = self.order.pop() else { return };
            let is_it = |_: &[u8; 32], held: &(u64, Arc<Entry>)| held.0 == number;
            if let Ok(Some((_, (_, gone)))) = entries.remove_if(&oldest, is_it) {
                self.bytes.fetch_sub(gone.size(), Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, MOST_BYTES, Store};

    #[test]
    fn the_oldest_responses_make_room() {
        let store = Store::default();
        let entry = |length: usize| Entry { body: vec![0; length], ..Entry::default() };
        let key = |number: u8| [number; 32];
        for number in 0..80 {
            store.put(key(number), entry(1 << 20));
        }
        let kept = (0..80).filter(|number| store.get(&key(*number)).is_some()).count();
        assert!((60..64).contains(&kept), "{kept}");
        assert!(store.get(&key(0)).is_none() && store.get(&key(79)).is_some());
        // A response in the place of another one takes no further room.
        for _ in 0..200 {
            store.put(key(79), entry(1 << 20));
        }
        assert!(store.get(&key(40)).is_some());
        store.put(key(99), entry(MOST_BYTES));
        assert!(store.get(&key(99)).is_none());
    }
}
