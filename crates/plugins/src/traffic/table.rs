//! The counts of one limiter, by key.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crossbeam_queue::SegQueue;

use super::key::{Key, Which};
use crate::number_hash::NumberHash;

/// Keys that all limiters of the process hold.
static ALL_KEYS: AtomicU64 = AtomicU64::new(0);

/// Keys that all limiters of the process hold now, for the metric `weir_limit_keys`.
#[must_use]
pub fn limit_keys() -> u64 {
    ALL_KEYS.load(Relaxed)
}

/// Oldest keys that are looked at when a new one comes: two, so that keys go faster than they come.
const SWEPT_PER_INSERT: usize = 2;
/// The same when there is no room.
const SWEPT_WHEN_FULL: usize = 32;

/// The count of one key: a few numbers that change as a whole.
pub(crate) trait Entry: Sized {
    /// One in which nothing is counted yet.
    fn unused() -> Self;

    /// Marks it dead if it has been over for `linger` milliseconds; returns true if this call did it. Nobody counts in a
    /// dead one any more.
    fn retire(&self, now: u64, linger: u64) -> bool;

    /// True if it is dead.
    fn is_dead(&self) -> bool;
}

/// Entries by key, up to a bound.
///
/// A request on a known key takes no lock, allocates nothing and writes one word. A new key allocates its entry and
/// looks at the oldest ones, of which those that are over are dropped: the work is spread evenly, and a table that
/// fills up never stops a worker to be cleaned.
#[derive(Debug)]
pub(crate) struct Table<E> {
    /// Made by the first request: an empty map takes some 19 KB, and there may be a limiter on each of 100,000 routes.
    map: OnceLock<papaya::HashMap<Key, E, NumberHash>>,
    /// The entry of a limiter that has only one; it is never retired.
    everything: E,
    /// Every key in the map, once, about in the order in which they end.
    queue: SegQueue<Key>,
    held: AtomicU64,
    max: u64,
    /// Milliseconds for which an entry is needed after it is over: the longest time asked for so far.
    linger: AtomicU64,
}

/// There is no room for a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl<E: Entry> Table<E> {
    /// A table for at most `max` keys.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            map: OnceLock::new(),
            everything: E::unused(),
            queue: SegQueue::new(),
            held: AtomicU64::new(0),
            max: max as u64,
            linger: AtomicU64::new(0),
        }
    }

    fn entries(&self) -> &papaya::HashMap<Key, E, NumberHash> {
        self.map.get_or_init(|| papaya::HashMap::with_hasher(NumberHash::default()))
    }

    /// Asks an entry, which is made if there is none and stays for `linger` milliseconds after it is over. `ask` gives
    /// `None` only when the entry is dead.
    pub(crate) fn ask<T>(&self, which: Which, now: u64, linger: u64, ask: impl Fn(&E) -> Option<T>) -> Result<T, Full> {
        let key = match which {
            Which::Everything => return ask(&self.everything).ok_or(Full),
            Which::Key(key) => key,
        };
        let entries = self.entries().pin();
        loop {
            if let Some(entry) = entries.get(&key) {
                if let Some(answer) = ask(entry) {
                    return Ok(answer);
                }
                // Somebody is about to drop it, and whoever is first does.
                self.drop_dead(&key);
                continue;
            }
            self.linger.fetch_max(linger, Relaxed);
            self.reserve(now)?;
            match entries.try_insert(key, E::unused()) {
                Ok(entry) => {
                    // Nobody retires it before its key is in the queue.
                    let answer = ask(entry);
                    self.queue.push(key);
                    if let Some(answer) = answer {
                        return Ok(answer);
                    }
                }
                Err(_) => self.release(),
            }
        }
    }

    /// Puts an entry in that was there before; one that is there already stays.
    pub(crate) fn restore(&self, key: Key, entry: E, linger: u64) -> Result<(), Full> {
        self.linger.fetch_max(linger, Relaxed);
        if !self.admit() {
            return Err(Full);
        }
        match self.entries().pin().try_insert(key, entry) {
            Ok(_) => self.queue.push(key),
            Err(_) => self.release(),
        }
        Ok(())
    }

    /// Looks at an entry, if there is one.
    pub(crate) fn look<T>(&self, which: Which, look: impl FnOnce(&E) -> T) -> Option<T> {
        match which {
            Which::Everything => Some(look(&self.everything)),
            Which::Key(key) => self.map.get()?.pin().get(&key).map(look),
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
        let entries = self.entries().pin();
        for _ in 0..keys {
            let Some(key) = self.queue.pop() else { return };
            match entries.get(&key) {
                Some(entry) if entry.retire(now, linger) => self.drop_dead(&key),
                // A dead one is dropped by whoever marked it or met it; its key is in the queue again if it came back.
                Some(entry) if entry.is_dead() => {}
                Some(_) => self.queue.push(key),
                None => {}
            }
        }
    }

    fn drop_dead(&self, key: &Key) {
        if let Ok(Some(_)) = self.entries().pin().remove_if(key, |_, entry| entry.is_dead()) {
            self.release();
        }
    }

    /// Keys that are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

impl<E> Drop for Table<E> {
    fn drop(&mut self) {
        ALL_KEYS.fetch_sub(self.held.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Full, Key, Which};
    use crate::traffic::limit_count::counter::{Counter, Quota, Taken, WindowKind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const QUOTA: Quota = Quota { count: 3, window: 1000, kind: WindowKind::Fixed };

    fn key(n: u64) -> Which {
        Which::Key(Key::new(0, &n.to_le_bytes()))
    }

    type Table = super::Table<Counter>;

    impl Table {
        fn take(&self, key: Which, now: u64, quota: &Quota) -> Result<Taken, Full> {
            self.ask(key, now, quota.linger(), |counter| counter.take(now, quota))
        }
    }

    #[test]
    fn keys_count_apart() {
        let table = Table::new(10);
        for n in 0..5 {
            let passed = (0..5).filter(|_| table.take(key(n), 0, &QUOTA).unwrap().passed).count();
            assert_eq!(passed, 3, "key {n}");
        }
        assert_eq!(table.held(), 5);
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
