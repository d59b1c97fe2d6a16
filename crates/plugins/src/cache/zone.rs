//! A zone: responses in memory, or with their bodies on a disk, shared by all workers and by all places that name the zone.
//!
//! ```text
//! key ─► Page: names in Vary ─► variant: values of these fields ─► Arc<Stored>
//! ```
//!
//! One lock guards a zone, held for a lookup or a change of the tables; a body is copied outside of it. Responses that were
//! not asked for since the last round make room first (CLOCK).

#![allow(clippy::disallowed_types, reason = "held for a lookup in a table, with nothing that waits")]

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::disk::{Disk, OnDisk};

/// Most variants of one key; the oldest makes room.
const VARIANTS: usize = 64;
/// Bytes that the tables take for each response, about.
const OVERHEAD: usize = 256;
/// Bytes that the tables take for each tag of a response, about.
const TAG_OVERHEAD: usize = 128;

/// Name and value of a field.
type Field = (Box<[u8]>, Box<[u8]>);

/// A stored response.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) status: u16,
    /// Fields to send, with their names.
    pub(crate) fields: Vec<Field>,
    /// Empty where the body is on a disk.
    pub(crate) body: Box<[u8]>,
    pub(crate) on_disk: Option<OnDisk>,
    /// Milliseconds of a clock that never goes back at which the response came.
    pub(crate) at_ms: u64,
    /// Milliseconds of age that the response came with.
    pub(crate) age_ms: u64,
    /// Milliseconds for which the response is fresh, its first age included.
    pub(crate) lifetime_ms: u64,
    /// Milliseconds behind its lifetime for which the response may stand in for one that fails (RFC 5861 section 4).
    pub(crate) stale_if_error_ms: u64,
    /// Milliseconds behind its lifetime for which the response may be given while a newer one is fetched (RFC 5861 section 3).
    pub(crate) revalidate_ms: u64,
    /// Milliseconds of the clock from which a newer one is fetched.
    pub(crate) refresh_at_ms: AtomicU64,
    /// Texts by which it is purged.
    pub(crate) tags: Box<[Box<[u8]>]>,
    /// True since the last round of evictions.
    is_used: AtomicBool,
}

impl Stored {
    pub(crate) fn new(status: u16, at_ms: u64, age_ms: u64, lifetime_ms: u64) -> Self {
        Self {
            status,
            fields: Vec::new(),
            body: Box::default(),
            on_disk: None,
            at_ms,
            age_ms,
            lifetime_ms,
            stale_if_error_ms: 0,
            revalidate_ms: 0,
            refresh_at_ms: AtomicU64::new(0),
            tags: Box::default(),
            is_used: AtomicBool::new(false),
        }
    }

    /// Bytes of the body.
    pub(crate) fn body_len(&self) -> usize {
        self.on_disk.as_ref().map_or(self.body.len(), OnDisk::len)
    }

    /// Milliseconds since the response was made (RFC 9111 section 4.2.3).
    pub(crate) fn age_ms(&self, now_ms: u64) -> u64 {
        self.age_ms + now_ms.saturating_sub(self.at_ms)
    }

    /// Bytes in memory, without those of a body that was read from a disk.
    fn bytes(&self) -> usize {
        let fields: usize = self.fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        // A tag stands here and in the index.
        let tags: usize = self.tags.iter().map(|tag| 2 * tag.len() + TAG_OVERHEAD).sum();
        OVERHEAD + fields + tags + self.body.len()
    }
}

/// A zone.
pub(crate) struct Zone {
    /// Bytes in memory.
    max_bytes: usize,
    /// Bytes of bodies on the disk.
    max_on_disk: usize,
    pub(crate) disk: Option<Disk>,
    tables: Mutex<Tables>,
    /// Bytes of bodies that are being collected.
    collected: AtomicUsize,
    /// Keys whose responses are being fetched, each with what others wait for: it is closed at the end.
    fetches: Mutex<HashMap<Box<[u8]>, Arc<Semaphore>>>,
}

/// A fetch of the response for a key, for which others wait until it is dropped.
#[derive(Debug)]
pub(crate) struct Fetching {
    zone: Arc<Zone>,
    key: Box<[u8]>,
    waited: Arc<Semaphore>,
}

impl Fetching {
    /// Ends the waiting of others. A second time does nothing.
    pub(crate) fn end(&self) {
        if self.waited.is_closed() {
            return;
        }
        self.zone.fetches.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.waited.close();
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.end();
    }
}

/// A body that is being collected for a zone. All of them together take no more than the zone.
pub(crate) struct Collected {
    zone: Arc<Zone>,
    body: Vec<u8>,
    /// Bytes that are counted.
    counted: usize,
}

impl Collected {
    pub(crate) fn new(zone: &Arc<Zone>) -> Self {
        Self { zone: Arc::clone(zone), body: Vec::new(), counted: 0 }
    }

    /// Adds a piece; false when there is no room for it, or when the body becomes longer than `most`.
    pub(crate) fn add(&mut self, piece: &[u8], most: usize) -> bool {
        let zone = &self.zone;
        if self.body.len() + piece.len() > most.min(zone.max_bytes) {
            return false;
        }
        let before = zone.collected.fetch_add(piece.len(), Relaxed);
        self.counted += piece.len();
        if before + piece.len() > zone.max_bytes {
            return false;
        }
        self.body.extend_from_slice(piece);
        true
    }

    /// The body.
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.body).into()
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.zone.collected.fetch_sub(self.counted, Relaxed);
    }
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Tables {
    pages: HashMap<Arc<[u8]>, Page>,
    /// Keys of pages by the tags of their responses.
    tagged: HashMap<Box<[u8]>, HashSet<Arc<[u8]>>>,
    /// Keys of stored responses with their serial numbers, those stored first in front. A response that is gone stays here
    /// until its turn.
    order: VecDeque<(Arc<[u8]>, u64)>,
    next: u64,
    bytes: usize,
    on_disk: usize,
    /// Responses that are gone, whose files are to be removed.
    gone: Vec<Arc<Stored>>,
}

/// The responses of one key.
struct Page {
    /// Names of the fields that choose among them, in lower case and in order.
    vary: Arc<[Box<str>]>,
    variants: Vec<Variant>,
}

struct Variant {
    values: Box<[u8]>,
    serial: u64,
    stored: Arc<Stored>,
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

impl Zone {
    /// A zone with room for so many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            max_on_disk: 0,
            disk: None,
            tables: Mutex::default(),
            collected: AtomicUsize::new(0),
            fetches: Mutex::default(),
        }
    }

    /// A zone whose bodies are on a disk, with room for so many bytes in memory and there.
    pub(crate) fn on_disk(max_bytes: usize, max_on_disk: usize, disk: Disk) -> Self {
        Self { max_on_disk, disk: Some(disk), ..Self::new(max_bytes) }
    }

    /// Begins to fetch the response for a key.
    ///
    /// # Errors
    /// Somebody else does already: what is waited for, which is closed at the end.
    pub(crate) fn fetch(self: &Arc<Self>, key: &[u8]) -> Result<Fetching, Arc<Semaphore>> {
        let mut fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = fetches.get(key) {
            return Err(Arc::clone(other));
        }
        let waited = Arc::new(Semaphore::new(0));
        fetches.insert(key.into(), Arc::clone(&waited));
        Ok(Fetching { zone: Arc::clone(self), key: key.into(), waited })
    }

    /// The stored response for a key and the values of the fields that choose among variants, which `values` appends for the
    /// names that it is given.
    pub(crate) fn find(&self, key: &[u8], values: impl Fn(&[Box<str>], &mut Vec<u8>)) -> Option<Arc<Stored>> {
        // Those of most keys have no variants.
        let vary = {
            let tables = self.lock();
            let page = tables.pages.get(key)?;
            match (&*page.vary, page.variants.as_slice()) {
                ([], [only]) => {
                    only.stored.is_used.store(true, Relaxed);
                    return Some(Arc::clone(&only.stored));
                }
                _ => Arc::clone(&page.vary),
            }
        };
        let mut wanted = Vec::new();
        values(&vary, &mut wanted);
        let tables = self.lock();
        let page = tables.pages.get(key).filter(|page| page.vary == vary)?;
        let found = page.variants.iter().find(|variant| *variant.values == *wanted)?;
        found.stored.is_used.store(true, Relaxed);
        Some(Arc::clone(&found.stored))
    }

    /// Stores a response. One that is longer than the zone is not stored.
    pub(crate) fn store(&self, key: &[u8], vary: &[Box<str>], values: &[u8], mut stored: Stored) {
        if let Some(disk) = &self.disk {
            let body = std::mem::take(&mut stored.body);
            // Without memory to hold the body until it is written the response is not stored.
            let Some(on_disk) = disk.place(body) else { return };
            stored.on_disk = Some(on_disk);
        }
        let stored = Arc::new(stored);
        let has_stored = self.put(key, vary, values, &stored, false);
        if let Some(disk) = self.disk.as_ref().filter(|_| has_stored)
            && !disk.write(key, vary, values, &stored)
        {
            self.forget_one(key, values, &stored);
        }
    }

    /// Takes a response that is on the disk from before, unless there is a newer one; false where there is no room for it.
    pub(crate) fn restore(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: Stored) -> bool {
        self.put(key, vary, values, &Arc::new(stored), true)
    }

    /// True if this one response is stored.
    pub(crate) fn has(&self, key: &[u8], values: &[u8], stored: &Arc<Stored>) -> bool {
        self.lock().has(key, values, stored)
    }

    /// Forgets this one response.
    pub(crate) fn forget_one(&self, key: &[u8], values: &[u8], stored: &Arc<Stored>) {
        let mut tables = self.lock();
        if tables.has(key, values, stored) {
            match tables.pages.get(key).map_or(0, |page| page.variants.len()) {
                1 => drop(tables.remove_page(key)),
                _ => tables.remove_variant(key, values),
            }
        }
        self.clear(tables);
    }

    /// Puts a response in its place; an old one only where there is none.
    fn put(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Arc<Stored>, is_old: bool) -> bool {
        let bytes = stored.bytes() + key.len() + values.len();
        let on_disk = stored.on_disk.as_ref().map_or(0, OnDisk::len);
        if bytes > self.max_bytes || on_disk > self.max_on_disk {
            return false;
        }
        let mut guard = self.lock();
        let tables = &mut *guard;
        if is_old && tables.has_newer(key, vary, values, stored) {
            return false;
        }
        let known = tables.pages.get(key).is_some_and(|page| *page.vary == *vary);
        if !known {
            tables.remove_page(key);
        }
        tables.remove_variant(key, values);
        tables.make_room(self.max_bytes - bytes, self.max_on_disk - on_disk);
        let shared: Arc<[u8]> = match tables.pages.get_key_value(key) {
            Some((shared, _)) => Arc::clone(shared),
            None => key.into(),
        };
        let page =
            tables.pages.entry(Arc::clone(&shared)).or_insert_with(|| Page { vary: vary.into(), variants: Vec::new() });
        let oldest = (page.variants.len() >= VARIANTS).then(|| page.variants.remove(0));
        let serial = tables.next;
        tables.next += 1;
        for tag in &stored.tags {
            tables.tagged.entry(tag.clone()).or_default().insert(Arc::clone(&shared));
        }
        page.variants.push(Variant { values: values.into(), serial, stored: Arc::clone(stored) });
        if let Some(oldest) = oldest {
            tables.forget(key, &oldest);
        }
        tables.bytes += bytes;
        tables.on_disk += on_disk;
        tables.order.push_back((shared, serial));
        self.clear(guard);
        true
    }

    /// Gives the tables back, and removes the files of responses that are gone.
    fn clear(&self, mut tables: MutexGuard<'_, Tables>) {
        let gone = std::mem::take(&mut tables.gone);
        drop(tables);
        if let Some(disk) = &self.disk {
            disk.remove(gone.iter().filter_map(|stored| stored.on_disk.as_ref()));
        }
    }

    /// Forgets all responses of a key; tells whether there were any.
    pub(crate) fn purge(&self, key: &[u8]) -> bool {
        let mut tables = self.lock();
        let has_purged = tables.remove_page(key);
        self.clear(tables);
        has_purged
    }

    /// Forgets all responses of keys with one of these tags; tells whether there were any.
    pub(crate) fn purge_tags<'t>(&self, tags: impl Iterator<Item = &'t [u8]>) -> bool {
        let mut tables = self.lock();
        let mut has_purged = false;
        for tag in tags {
            for key in tables.tagged.remove(tag).into_iter().flatten() {
                has_purged |= tables.remove_page(&key);
            }
        }
        self.clear(tables);
        has_purged
    }

    /// Forgets all responses.
    pub(crate) fn purge_all(&self) {
        let gone = std::mem::take(&mut *self.lock());
        // The memory is given back without the lock.
        if let Some(disk) = &self.disk {
            let variants = gone.pages.values().flat_map(|page| &page.variants);
            disk.remove(variants.filter_map(|variant| variant.stored.on_disk.as_ref()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cost(key: &[u8], variant: &Variant) -> usize {
    variant.stored.bytes() + key.len() + variant.values.len()
}

impl Tables {
    fn remove_page(&mut self, key: &[u8]) -> bool {
        let Some(page) = self.pages.remove(key) else { return false };
        page.variants.iter().for_each(|variant| self.forget(key, variant));
        true
    }

    /// Takes a response that has left its page out of the index of tags and out of the count.
    fn forget(&mut self, key: &[u8], gone: &Variant) {
        self.bytes = self.bytes.saturating_sub(cost(key, gone));
        if let Some(on_disk) = &gone.stored.on_disk {
            self.on_disk = self.on_disk.saturating_sub(on_disk.len());
            self.gone.push(Arc::clone(&gone.stored));
        }
        for tag in &gone.stored.tags {
            let others = self.pages.get(key).map_or(&[][..], |page| &page.variants);
            if others.iter().any(|other| other.stored.tags.contains(tag)) {
                continue;
            }
            if let Some(keys) = self.tagged.get_mut(tag) {
                keys.remove(key);
                if keys.is_empty() {
                    self.tagged.remove(tag);
                }
            }
        }
    }

    fn remove_variant(&mut self, key: &[u8], values: &[u8]) {
        let Some(page) = self.pages.get_mut(key) else { return };
        if let Some(at) = page.variants.iter().position(|variant| *variant.values == *values) {
            let gone = page.variants.remove(at);
            self.forget(key, &gone);
        }
    }

    fn has(&self, key: &[u8], values: &[u8], stored: &Arc<Stored>) -> bool {
        let page = self.pages.get(key);
        let mut variants = page.into_iter().flat_map(|page| &page.variants);
        variants.any(|variant| *variant.values == *values && Arc::ptr_eq(&variant.stored, stored))
    }

    /// True if there is a response in the place of this one that came later, or one that is chosen by other fields.
    fn has_newer(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Stored) -> bool {
        let Some(page) = self.pages.get(key) else { return false };
        let now = stored.at_ms;
        *page.vary != *vary
            || page.variants.iter().any(|known| {
                let is_newer = known.stored.age_ms(now) <= stored.age_ms(now);
                *known.values == *values && is_newer
            })
    }

    /// Evicts responses until no more than so many bytes are left in memory and on the disk.
    fn make_room(&mut self, most: usize, most_on_disk: usize) {
        // Entries of responses that are gone would pile up where keys are stored again and again.
        if self.order.len() > 1024 && self.order.len() > 2 * self.pages.len() * VARIANTS.min(4) {
            let pages = &self.pages;
            self.order.retain(|(key, serial)| {
                pages.get(key).is_some_and(|page| page.variants.iter().any(|variant| variant.serial == *serial))
            });
        }
        while self.bytes > most || self.on_disk > most_on_disk {
            let Some((key, serial)) = self.order.pop_front() else { return };
            let Some(page) = self.pages.get_mut(&key) else { continue };
            let Some(at) = page.variants.iter().position(|variant| variant.serial == serial) else { continue };
            let is_used = page.variants.get(at).is_some_and(|variant| variant.stored.is_used.swap(false, Relaxed));
            if is_used {
                self.order.push_back((key, serial));
                continue;
            }
            let gone = page.variants.remove(at);
            if page.variants.is_empty() {
                self.pages.remove(&key);
            }
            self.forget(&key, &gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Collected, Stored, Zone};

    fn stored(body: &str) -> Stored {
        Stored { body: body.as_bytes().into(), ..Stored::new(200, 0, 0, 1000) }
    }

    fn body(zone: &Zone, key: &str, value: &str) -> Option<String> {
        let found = zone.find(key.as_bytes(), |_, out| out.extend_from_slice(value.as_bytes()))?;
        Some(String::from_utf8(found.body.to_vec()).unwrap())
    }

    #[test]
    fn variants_are_kept_apart_and_purged_together() {
        let zone = Zone::new(1 << 20);
        let store = |vary: &[&str], values: &str, text: &str| {
            let vary: Vec<Box<str>> = vary.iter().map(|name| (*name).into()).collect();
            zone.store(b"k", &vary, values.as_bytes(), stored(text));
        };
        assert_eq!(body(&zone, "k", ""), None);
        store(&[], "", "plain");
        assert_eq!(body(&zone, "k", "whatever").as_deref(), Some("plain"));
        store(&["accept"], "a", "of a");
        store(&["accept"], "b", "of b");
        assert_eq!(body(&zone, "k", "a").as_deref(), Some("of a"));
        assert_eq!(body(&zone, "k", "b").as_deref(), Some("of b"));
        assert_eq!(body(&zone, "k", "c"), None);
        store(&["accept"], "b", "newer");
        assert_eq!(body(&zone, "k", "b").as_deref(), Some("newer"));
        // Other names: what is there cannot be told apart by them.
        store(&["cookie"], "x", "of x");
        assert_eq!((body(&zone, "k", "a"), body(&zone, "k", "x").as_deref()), (None, Some("of x")));
        for number in 0..100 {
            store(&["cookie"], &number.to_string(), "many");
        }
        assert_eq!((body(&zone, "k", "x"), body(&zone, "k", "99").as_deref()), (None, Some("many")));
        assert!(zone.purge(b"k") && !zone.purge(b"k"));
        assert_eq!((body(&zone, "k", "99"), zone.lock().bytes), (None, 0));
    }

    #[test]
    fn tags_are_purged_and_forgotten_with_their_responses() {
        let zone = Zone::new(20_000);
        let store = |key: &str, value: &str, tags: &[&str]| {
            let tags = tags.iter().map(|tag| tag.as_bytes().into()).collect();
            let stored = Stored { tags, ..stored("text") };
            zone.store(key.as_bytes(), &["accept".into()], value.as_bytes(), stored);
        };
        let purge = |tags: &[&str]| zone.purge_tags(tags.iter().map(|tag| tag.as_bytes()));
        store("a", "1", &["shop", "red"]);
        store("a", "2", &["shop"]);
        store("b", "1", &["red"]);
        store("c", "1", &[]);
        assert!(!purge(&["blue"]) && purge(&["blue", "red"]) && !purge(&["shop"]), "both variants of a key go");
        assert_eq!((body(&zone, "a", "2"), body(&zone, "b", "1")), (None, None));
        assert_eq!(body(&zone, "c", "1").as_deref(), Some("text"));
        // One that is stored anew without a tag has it no more.
        store("a", "1", &["shop"]);
        store("a", "1", &[]);
        assert!(!purge(&["shop"]) && body(&zone, "a", "1").is_some());
        // Nothing piles up where responses make room for others, or variants.
        for number in 0..1000 {
            store(&format!("key {}", number % 300), "1", &[&format!("tag {number}"), "all"]);
            store("many", &number.to_string(), &[&format!("variant {number}")]);
        }
        let tables = zone.lock();
        assert!(
            tables.bytes <= 20_000 && tables.tagged.len() <= 2 * tables.pages.len() + 65,
            "{}",
            tables.tagged.len()
        );
        drop(tables);
        assert!(purge(&["all"]) && zone.purge(b"many"));
        let tables = zone.lock();
        assert_eq!((tables.tagged.len(), tables.pages.keys().filter(|key| key.starts_with(b"key")).count()), (0, 0));
    }

    #[test]
    fn one_fetches_and_others_wait_for_the_end() {
        let zone = std::sync::Arc::new(Zone::new(1000));
        let fetching = zone.fetch(b"k").expect("the first");
        let waiting = zone.fetch(b"k").expect_err("the second waits");
        assert!(zone.fetch(b"other").is_ok() && !waiting.is_closed());
        drop(fetching);
        assert!(waiting.is_closed() && zone.fetch(b"k").is_ok());
    }

    #[test]
    fn bodies_that_are_collected_share_the_room_of_a_zone() {
        let zone = std::sync::Arc::new(Zone::new(1000));
        let (mut one, mut other) = (Collected::new(&zone), Collected::new(&zone));
        assert!(one.add(&[1; 600], 700) && !one.add(&[1; 101], 700), "its own limit");
        assert!(!other.add(&[1; 500], 700), "the zone's");
        assert_eq!(one.take().len(), 600);
        drop((one, other));
        assert!(Collected::new(&zone).add(&[1; 1000], 1000));
    }

    #[test]
    fn a_zone_is_bounded_and_keeps_what_is_used() {
        let zone = Zone::new(10_000);
        zone.store(b"long", &[], b"", stored(&"x".repeat(20_000)));
        assert_eq!(body(&zone, "long", ""), None, "longer than the zone");
        zone.store(b"used", &[], b"", stored("used"));
        for number in 0..5000 {
            let key = format!("key {}", number % 700);
            zone.store(key.as_bytes(), &[], b"", stored(&"x".repeat(500)));
            assert_eq!(body(&zone, "used", "").as_deref(), Some("used"), "{number}");
            let tables = zone.lock();
            assert!(tables.bytes <= 10_000 && tables.order.len() < 2000, "{}", tables.bytes);
        }
        let tables = zone.lock();
        let counted: usize =
            tables.pages.iter().flat_map(|(key, page)| page.variants.iter().map(|v| super::cost(key, v))).sum();
        assert_eq!(tables.bytes, counted);
    }
}
