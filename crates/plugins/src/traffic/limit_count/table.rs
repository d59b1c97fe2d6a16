//! The counters of one limiter, by key.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crossbeam_queue::SegQueue;

use super::counter::{Counter, Quota, Taken, WindowKind};

/// How many keys all limiters of the process hold.
static ALL_KEYS: AtomicU64 = AtomicU64::new(0);

/// How many keys all limiters of the process hold now, for the metric `weir_limit_keys`.
#[must_use]
pub fn limit_keys() -> u64 {
    ALL_KEYS.load(Relaxed)
}

/// How many of the oldest keys are looked at when a new one comes: two, so that keys go faster than they come.
const SWEPT_PER_INSERT: usize = 2;
/// The same when there is no room.
const SWEPT_WHEN_FULL: usize = 32;

/// Counters by key, up to a bound.
///
/// A request on a known key takes no lock, allocates nothing and writes one word. A new key allocates its entry and
/// looks at the oldest ones, of which those whose window is over are dropped: the work is spread evenly, and a table
/// that fills up never stops a worker to be cleaned.
///
/// A key is a hash of 128 bits, keyed by a random seed of the process: two keys share a counter with a probability
/// that does not matter, and nobody can look for such keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// Made by the first request: an empty map takes some 19 KB, and there may be a limiter on each of 100,000 routes.
    map: OnceLock<papaya::HashMap<Key, Counter, KeyIsHash>>,
    /// Every key in the map, once, about in the order in which they end.
    queue: SegQueue<Key>,
    held: AtomicU64,
    max: u64,
    /// Milliseconds for which a counter is needed after its window's end: the longest sliding window so far.
    linger: AtomicU64,
}

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u128);

/// There is no room for a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Table {
    /// A table for at most `max` keys.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            map: OnceLock::new(),
            queue: SegQueue::new(),
            held: AtomicU64::new(0),
            max: max as u64,
            linger: AtomicU64::new(0),
        }
    }

    fn counters(&self) -> &papaya::HashMap<Key, Counter, KeyIsHash> {
        self.map.get_or_init(|| papaya::HashMap::with_hasher(KeyIsHash))
    }

    /// Asks for one request on `key`.
    pub(crate) fn take(&self, key: Key, now: u64, quota: &Quota) -> Result<Taken, Full> {
        let counters = self.counters().pin();
        loop {
            if let Some(counter) = counters.get(&key) {
                if let Some(taken) = counter.take(now, quota) {
                    return Ok(taken);
                }
                // Somebody is about to drop it, and whoever is first does.
                self.drop_dead(&key);
                continue;
            }
            if quota.kind == WindowKind::Sliding {
                self.linger.fetch_max(quota.window, Relaxed);
            }
            self.reserve(now)?;
            if counters.try_insert(key, Counter::begun(now, quota)).is_ok() {
                self.queue.push(key);
                return Ok(Taken { passed: true, remaining: quota.count.saturating_sub(1), reset: quota.window });
            }
            self.release();
        }
    }

    /// Makes sure of room for one key.
    fn reserve(&self, now: u64) -> Result<(), Full> {
        self.sweep(now, SWEPT_PER_INSERT);
        if self.admit() {
            return Ok(());
        }
        self.sweep(now, SWEPT_WHEN_FULL);
        if self.admit() { Ok(()) } else { Err(Full) }
    }

    fn admit(&self) -> bool {
        if self.held.fetch_add(1, AcqRel) < self.max {
            ALL_KEYS.fetch_add(1, Relaxed);
            return true;
        }
        self.held.fetch_sub(1, AcqRel);
        false
    }

    fn release(&self) {
        self.held.fetch_sub(1, AcqRel);
        ALL_KEYS.fetch_sub(1, Relaxed);
    }

    /// Looks at the first keys of the queue: those that are over go, the others to its end.
    fn sweep(&self, now: u64, keys: usize) {
        let linger = self.linger.load(Relaxed);
        let counters = self.counters().pin();
        for _ in 0..keys {
            let Some(key) = self.queue.pop() else { return };
            match counters.get(&key) {
                Some(counter) if counter.retire(now, linger) => self.drop_dead(&key),
                // A dead one is dropped by whoever marked it or met it; its key is in the queue again if it came back.
                Some(counter) if counter.is_dead() => {}
                Some(_) => self.queue.push(key),
                None => {}
            }
        }
    }

    fn drop_dead(&self, key: &Key) {
        if let Ok(Some(_)) = self.counters().pin().remove_if(key, |_, counter| counter.is_dead()) {
            self.release();
        }
    }

    /// How many keys are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        ALL_KEYS.fetch_sub(self.held.load(Relaxed), Relaxed);
    }
}

impl Key {
    /// The key made of `parts` under `domain`, which keeps keys of different kinds apart.
    pub(crate) fn new(domain: u32, part: &[u8]) -> Self {
        let (first, second) = seeds();
        let half = |seed: &foldhash::quality::RandomState| {
            let mut hasher = seed.build_hasher();
            hasher.write_u32(domain);
            hasher.write(part);
            hasher.finish()
        };
        Self(u128::from(half(first)) << 64 | u128::from(half(second)))
    }
}

fn seeds() -> &'static (foldhash::quality::RandomState, foldhash::quality::RandomState) {
    static SEEDS: std::sync::LazyLock<(foldhash::quality::RandomState, foldhash::quality::RandomState)> =
        std::sync::LazyLock::new(Default::default);
    &SEEDS
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

/// A key is a hash already.
#[derive(Debug, Clone, Copy)]
struct KeyIsHash;

impl BuildHasher for KeyIsHash {
    type Hasher = SameNumber;

    fn build_hasher(&self) -> SameNumber {
        SameNumber(0)
    }
}

/// Hands on the one number it is given.
#[derive(Debug)]
struct SameNumber(u64);

impl Hasher for SameNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[cfg(test)]
mod tests {
    use super::{Full, Key, Table};
    use crate::traffic::limit_count::counter::{Quota, WindowKind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const QUOTA: Quota = Quota { count: 3, window: 1000, kind: WindowKind::Fixed };

    fn key(n: u64) -> Key {
        Key::new(0, &n.to_le_bytes())
    }

    #[test]
    fn keys_count_apart() {
        let table = Table::new(10);
        for n in 0..5 {
            let passed = (0..5).filter(|_| table.take(key(n), 0, &QUOTA).unwrap().passed).count();
            assert_eq!(passed, 3, "key {n}");
        }
        assert_eq!(table.held(), 5);
        assert_ne!(Key::new(0, b"a"), Key::new(1, b"a"));
    }

    #[test]
    fn a_full_table_refuses_new_keys_until_old_ones_are_over() {
        let table = Table::new(4);
        for n in 0..4 {
            table.take(key(n), n * 100, &QUOTA).unwrap();
        }
        assert_eq!(table.take(key(9), 999, &QUOTA), Err(Full));
        assert!(table.take(key(2), 999, &QUOTA).is_ok(), "a known key goes on");
        // The first two are over: two new ones have room.
        for (n, ok) in [(9, true), (10, true), (11, false)] {
            assert_eq!(table.take(key(n), 1100, &QUOTA).is_ok(), ok, "key {n}");
        }
        assert_eq!(table.held(), 4);
    }

    #[test]
    fn a_sliding_key_stays_for_a_window_after_its_end() {
        let sliding = Quota { kind: WindowKind::Sliding, ..QUOTA };
        let table = Table::new(1);
        table.take(key(0), 0, &sliding).unwrap();
        assert_eq!(table.take(key(1), 1999, &sliding), Err(Full));
        assert!(table.take(key(1), 2000, &sliding).is_ok());
    }

    #[test]
    fn keys_that_come_once_do_not_pile_up() {
        let table = Table::new(1_000_000);
        let mut most = 0;
        for n in 0..20_000 {
            // Ten keys a millisecond, each needed for a second: 10,000 at a time.
            table.take(key(n), n / 10, &QUOTA).unwrap();
            most = most.max(table.held());
        }
        // Live keys go to the end of the queue when they are looked at, so that some wait for their turn.
        assert!((10_000..=15_000).contains(&most), "held {most}");
    }

    /// Threads that ask at once for keys that come, run out and go, on clocks that differ: never does more than the
    /// quota pass in a window.
    #[test]
    fn exactly_the_quota_passes_under_contention() {
        const THREADS: u64 = 8;
        const KEYS: u64 = 7;
        const WINDOWS: u64 = 30;
        let quota = Quota { count: 50, window: 1000, kind: WindowKind::Fixed };
        let table = Table::new(16);
        let passed: Vec<AtomicU64> = (0..KEYS * WINDOWS).map(|_| AtomicU64::new(0)).collect();
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (table, passed, barrier) = (&table, &passed, &barrier);
                scope.spawn(move || {
                    for window in 0..WINDOWS {
                        // All threads meet, so that a window never overlaps the next in any of them.
                        barrier.wait();
                        let now = window * 2000 + thread;
                        for n in 0..200 * KEYS {
                            let n = (n + thread) % KEYS;
                            if table.take(key(n), now, &quota).is_ok_and(|taken| taken.passed) {
                                passed[(window * KEYS + n) as usize].fetch_add(1, Relaxed);
                            }
                        }
                        // Keys that come once push the others through the sweep.
                        let _ = table.take(key(1_000_000 + window * THREADS + thread), now, &quota);
                    }
                });
            }
        });
        let passed: Vec<u64> = passed.iter().map(|n| n.load(Relaxed)).collect();
        assert!(passed.iter().all(|n| *n == quota.count), "{passed:?}");
        assert!(table.held() <= 16);
    }
}
