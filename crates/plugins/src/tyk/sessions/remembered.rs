//! Answers of Redis, for the time in which it is not asked again.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Milliseconds between two looks for what is no longer fresh, where there is no room.
const SWEEP_MS: u64 = 1000;

/// Answers by their names, each until a time in milliseconds.
#[derive(Debug)]
pub(super) struct Remembered<T> {
    answers: papaya::HashMap<Box<[u8]>, (T, u64)>,
    /// The time of the next sweep.
    sweeps: AtomicU64,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { answers: papaya::HashMap::default(), sweeps: AtomicU64::default() }
    }
}

impl<T: Clone> Remembered<T> {
    pub(super) fn find(&self, name: &[u8], now_ms: u64) -> Option<T> {
        let answers = self.answers.pin();
        let (answer, until) = answers.get(name)?;
        (now_ms < *until).then(|| answer.clone())
    }

    pub(super) fn put(&self, name: &[u8], answer: T, (now_ms, fresh): (u64, u64), most: usize) {
        let answers = self.answers.pin();
        if answers.len() >= most {
            let next = self.sweeps.load(Relaxed);
            let is_mine =
                now_ms >= next && self.sweeps.compare_exchange(next, now_ms + SWEEP_MS, Relaxed, Relaxed).is_ok();
            if !is_mine {
                return;
            }
            answers.retain(|_, (_, until)| now_ms < *until);
            if answers.len() >= most {
                return;
            }
        }
        answers.insert(name.into(), (answer, now_ms + fresh));
    }

    pub(super) fn remove(&self, name: &[u8]) {
        self.answers.pin().remove(name);
    }

    pub(super) fn clear(&self) {
        self.answers.pin().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::Remembered;
    use crate::tyk::sessions::Session;

    #[test]
    fn sessions_are_remembered_for_a_while_and_within_a_bound() {
        let session = |name: &str| Arc::new(Session::compile(name, &json!({}), 0).expect("a session"));
        let kept = Remembered::default();
        let is_there = |name: &str, now| kept.find(name.as_bytes(), now).is_some();
        for (name, now) in [("a", 0), ("b", 50), ("c", 60)] {
            kept.put(name.as_bytes(), session(name), (now, 100), 2);
        }
        assert_eq!([is_there("a", 99), is_there("b", 99), is_there("c", 99)], [true, true, false], "there is no room");
        assert_eq!([is_there("a", 100), is_there("b", 100)], [false, true]);
        kept.put(b"c", session("c"), (1100, 100), 2);
        assert!(is_there("c", 1199), "what is old has made room");
        kept.remove(b"c");
        assert!(!is_there("c", 1100));
        kept.put(b"d", session("d"), (1200, 100), 2);
        kept.clear();
        assert!(!is_there("d", 1200));
    }
}
