//! Sessions that were read from Redis, for the time in which they are not read again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::session::Session;

/// Milliseconds between two looks for sessions that are no longer fresh, where there is no room.
const SWEEP_MS: u64 = 1000;

/// Sessions by their names, each until a time in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    sessions: papaya::HashMap<Box<[u8]>, (Arc<Session>, u64)>,
    /// The time of the next sweep.
    sweeps: AtomicU64,
}

impl Remembered {
    pub(super) fn find(&self, name: &[u8], now_ms: u64) -> Option<Arc<Session>> {
        let sessions = self.sessions.pin();
        let (session, until) = sessions.get(name)?;
        (now_ms < *until).then(|| Arc::clone(session))
    }

    pub(super) fn put(&self, name: &[u8], session: &Arc<Session>, (now_ms, fresh): (u64, u64), most: usize) {
        let sessions = self.sessions.pin();
        if sessions.len() >= most {
            let next = self.sweeps.load(Relaxed);
            let is_mine =
                now_ms >= next && self.sweeps.compare_exchange(next, now_ms + SWEEP_MS, Relaxed, Relaxed).is_ok();
            if !is_mine {
                return;
            }
            sessions.retain(|_, (_, until)| now_ms < *until);
            if sessions.len() >= most {
                return;
            }
        }
        sessions.insert(name.into(), (Arc::clone(session), now_ms + fresh));
    }

    pub(super) fn remove(&self, name: &[u8]) {
        self.sessions.pin().remove(name);
    }

    pub(super) fn clear(&self) {
        self.sessions.pin().clear();
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
            kept.put(name.as_bytes(), &session(name), (now, 100), 2);
        }
        assert_eq!([is_there("a", 99), is_there("b", 99), is_there("c", 99)], [true, true, false], "there is no room");
        assert_eq!([is_there("a", 100), is_there("b", 100)], [false, true]);
        kept.put(b"c", &session("c"), (1100, 100), 2);
        assert!(is_there("c", 1199), "what is old has made room");
        kept.remove(b"c");
        assert!(!is_there("c", 1100));
        kept.put(b"d", &session("d"), (1200, 100), 2);
        kept.clear();
        assert!(!is_there("d", 1200));
    }
}
