//! Memory budget for messages, shared by all users of it: bodies that a plugin needs whole, copies for mirrors, large
//! heads, buffers for long bodies, compressors. When the budget is used up, requests that need more are refused with
//! 503, and optional uses (large buffers, copies, compression) are skipped.
//!
//! The fixed memory of each connection or request is not counted, since their number is bounded. A thread takes
//! memory from the process's budget in pieces and distributes it locally, so counting usually needs no shared write.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes that a thread takes at once; it keeps up to twice as many unused.
const PIECE: usize = 64 << 10;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes that this thread has taken and not handed out.
    static SPARE: Cell<usize> = const { Cell::new(0) };
}

/// Sets the budget of the process, `limits.buffers`; by default there is no bound.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Bytes in use, including those that threads keep for reuse.
#[must_use]
pub fn taken() -> usize {
    TAKEN.load(Relaxed)
}

/// Maximum number of bytes in use since the last call.
pub fn peak() -> usize {
    PEAK.swap(0, Relaxed).max(taken())
}

/// Number of times that required memory did not fit.
#[must_use]
pub fn refused() -> u64 {
    REFUSED.load(Relaxed)
}

/// Error for required memory that did not fit.
pub const NO_ROOM: &str = "no room in limits.buffers";

/// A part of the budget, held until it is dropped on the thread that took it.
#[derive(Debug, Default)]
pub struct Held(usize);

impl Held {
    /// Grows the part to at least `bytes`; returns false and changes nothing if they do not fit.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let done = bytes <= self.0 || self.take(bytes, LIMIT.load(Relaxed));
        if !done {
            REFUSED.fetch_add(1, Relaxed);
        }
        done
    }

    /// As [`Held::grow_to`] for an optional use: it leaves half of the budget to required ones.
    #[must_use]
    pub fn grow_if_plenty(&mut self, bytes: usize) -> bool {
        bytes <= self.0 || self.take(bytes, LIMIT.load(Relaxed) / 2)
    }

    /// Returns everything above `bytes` to the budget.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.0 > bytes {
            give(self.0 - bytes);
            self.0 = bytes;
        }
    }

    #[cold]
    fn take(&mut self, bytes: usize, limit: usize) -> bool {
        let more = bytes - self.0;
        let done = SPARE.with(|spare| {
            if let Some(left) = spare.get().checked_sub(more) {
                spare.set(left);
                return true;
            }
            let wanted = more - spare.get();
            // If a whole piece does not fit, only the required bytes are taken.
            [wanted.saturating_add(PIECE), wanted].into_iter().any(|piece| {
                let taken =
                    TAKEN.fetch_update(Relaxed, Relaxed, |taken| taken.checked_add(piece).filter(|n| *n <= limit));
                if let Ok(before) = taken {
                    PEAK.fetch_max(before + piece, Relaxed);
                    spare.set(spare.get() + piece - more);
                }
                taken.is_ok()
            })
        });
        if done {
            self.0 = bytes;
        }
        done
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0 > 0 {
            give(self.0);
        }
    }
}

#[cold]
fn give(bytes: usize) {
    // At the end of a thread there is no later use to keep bytes for.
    let spare = SPARE.try_with(|spare| spare.replace(0)).unwrap_or(0) + bytes;
    let keep = if spare > 2 * PIECE { PIECE } else { spare };
    let kept = SPARE.try_with(|spare| spare.set(keep)).is_ok();
    TAKEN.fetch_sub(if kept { spare - keep } else { spare }, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{Held, PIECE, refused, set_limit, taken};

    /// A single test, because the budget belongs to the process.
    #[test]
    fn the_budget_is_handed_out_and_comes_back() {
        let limit = 16 * PIECE;
        set_limit(limit);
        let mut first = Held::default();
        assert!(first.grow_to(100) && first.grow_to(10) && taken() >= 100);
        // An optional use leaves half of the budget.
        let mut optional = Held::default();
        assert!(!optional.grow_if_plenty(limit / 2));
        assert!(optional.grow_if_plenty(limit / 4));
        assert_eq!(refused(), 0, "nothing that was needed");
        assert!(first.grow_to(limit - limit / 4), "all that there is, to the last byte");
        assert_eq!(taken(), limit);
        let mut second = Held::default();
        assert!(!second.grow_to(1));
        assert_eq!(refused(), 1);
        first.shrink_to(limit / 2);
        assert!(second.grow_to(limit / 4) && !second.grow_to(limit));
        assert!(second.grow_to(0), "it has that");
        drop((first, second, optional));
        assert!(taken() <= 2 * PIECE, "{} bytes did not come back", taken());
        let mut again = Held::default();
        assert!(again.grow_to(limit));
        // Another thread has its own spare bytes.
        drop(again);
        std::thread::spawn(move || assert!(Held::default().grow_to(limit - 2 * PIECE))).join().expect("a thread");
        set_limit(usize::MAX);
    }
}
