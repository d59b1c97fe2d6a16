//! Counts that a worker keeps by itself, and exchanges with Redis once in an interval.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_runtime::now_us;

use super::counter::{Quota, WindowKind};
use super::remote::{Counted, count};
use crate::traffic::redis::{Redis, together};

/// Keys that one pass of a synchronisation has under way at once.
const AT_ONCE: usize = 64;

/// A worker's counts of one instance.
#[derive(Debug)]
pub(crate) struct Synced(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    redis: Redis,
    interval: Duration,
    max_keys: usize,
    keys: RefCell<HashMap<Rc<[u8]>, Own>>,
    /// True while there is a task that synchronises.
    runs: Cell<bool>,
}

/// The state of a key.
#[derive(Debug, Clone, Copy)]
struct Own {
    quota: Quota,
    /// Requests that Redis has counted, as it said last.
    remote: u64,
    /// Requests since.
    since: u64,
    /// End of the window, in milliseconds of the clock.
    end: u64,
}

impl Synced {
    /// Synchronises every `interval` milliseconds.
    pub(crate) fn new(redis: &Redis, interval: u64, max_keys: usize) -> Self {
        Self(Rc::new(Counts {
            redis: redis.clone(),
            interval: Duration::from_millis(interval),
            max_keys,
            keys: RefCell::default(),
            runs: Cell::new(false),
        }))
    }

    /// Asks for one request: Redis where nothing is known of the key in this window, else what this worker knows.
    pub(crate) async fn take(&self, key: &[u8], quota: &Quota) -> Option<Counted> {
        if let Some(counted) = self.0.take(key, quota, now_ms()) {
            return Some(counted);
        }
        let counted = count(&self.0.redis, key, quota, 1, false).await.ok()?;
        self.0.keep(key, quota, counted, now_ms());
        if !self.0.runs.replace(true) {
            weir_runtime::spawn(synchronise(Rc::downgrade(&self.0)));
        }
        Some(counted)
    }
}

impl Own {
    /// True if no request passes before the window ends, whatever others do.
    fn is_used_up(&self) -> bool {
        self.quota.kind == WindowKind::Fixed && self.remote >= self.quota.count
    }
}

impl Counts {
    fn take(&self, key: &[u8], quota: &Quota, now: u64) -> Option<Counted> {
        let mut keys = self.keys.borrow_mut();
        let own = keys.get_mut(key).filter(|own| own.end > now && own.quota == *quota)?;
        let used = own.remote + own.since;
        let passed = used < quota.count;
        own.since += u64::from(passed);
        Some(Counted { passed, used: used + u64::from(passed), left: own.end - now })
    }

    /// Keeps what Redis said. Without room nothing is kept: the key's next request asks again.
    fn keep(&self, key: &[u8], quota: &Quota, counted: Counted, now: u64) {
        let mut keys = self.keys.borrow_mut();
        let (end, has_room) = (now + counted.left, keys.len() < self.max_keys);
        match keys.get_mut(key) {
            // Others asked at the same time, and what they were told later is more.
            Some(own) if own.end > now => own.remote = own.remote.max(counted.used),
            Some(own) => *own = Own { quota: *quota, remote: counted.used, since: 0, end },
            None if has_room => {
                keys.insert(key.into(), Own { quota: *quota, remote: counted.used, since: 0, end });
            }
            None => {}
        }
    }

    /// The keys with requests since the last exchange with Redis. The others are forgotten, so that their next request
    /// asks: nobody counts from a number older than an interval. A fixed window that is used up stays known until it
    /// ends.
    fn due(&self, now: u64) -> Vec<(Rc<[u8]>, Own)> {
        let mut keys = self.keys.borrow_mut();
        keys.retain(|_, own| own.end > now && (own.since > 0 || own.is_used_up()));
        keys.iter().filter(|(_, own)| own.since > 0).map(|(key, own)| (Rc::clone(key), *own)).collect()
    }

    /// Tells Redis of one key. What it cannot be told stays for the next time.
    async fn tell(&self, key: &Rc<[u8]>, told: Own) {
        let Ok(counted) = count(&self.redis, key, &told.quota, told.since, true).await else { return };
        if let Some(own) = self.keys.borrow_mut().get_mut(key) {
            own.since = own.since.saturating_sub(told.since);
            own.remote = counted.used;
            own.end = now_ms() + counted.left;
        }
    }
}

/// Synchronises as long as there are keys.
async fn synchronise(counts: Weak<Counts>) {
    loop {
        let Some(interval) = counts.upgrade().map(|counts| counts.interval) else { return };
        weir_runtime::sleep(interval).await;
        let Some(counts) = counts.upgrade() else { return };
        let due = counts.due(now_ms());
        for some in due.chunks(AT_ONCE) {
            together(some.iter().map(|(key, own)| counts.tell(key, *own))).await;
        }
        if counts.keys.borrow().is_empty() {
            counts.runs.set(false);
            return;
        }
    }
}

fn now_ms() -> u64 {
    now_us() / 1000
}
