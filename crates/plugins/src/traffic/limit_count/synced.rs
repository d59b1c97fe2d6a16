//! Counts that a worker keeps by itself, and exchanges with Redis once in an interval.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use weir_runtime::now_us;

use super::counter::{Quota, WindowKind};
use super::remote::{Counted, count};
use crate::traffic::redis::{Redis, together};

/// Maximum number of keys that one pass of a synchronisation reports at once.
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
    /// Keys about which Redis is being asked. One question at a time for each key: a further one would let its request
    /// pass by the count of Redis, which lacks the requests that this worker has let pass since the first answer.
    questions: RefCell<HashMap<Rc<[u8]>, Rc<Question>>>,
    /// True while there is a task that synchronises.
    runs: Cell<bool>,
}

/// A question about a key under way, for which further requests of the key wait.
#[derive(Debug, Default)]
struct Question {
    ended: Notify,
    outcome: Cell<Outcome>,
}

/// Outcome of a question for the requests that wait for it.
#[derive(Debug, Clone, Copy, Default)]
enum Outcome {
    /// The request that asked has gone before the answer came.
    #[default]
    Abandoned,
    /// The count is known now.
    Known,
    /// There was no room to keep the count, so each request asks for itself.
    NotKept,
    /// Redis did not answer.
    Failed,
}

/// The right to ask about a key. Its end wakes the requests that wait.
struct Asking<'a> {
    counts: &'a Counts,
    key: Rc<[u8]>,
    question: Rc<Question>,
}

/// The state of a key.
#[derive(Debug, Clone, Copy)]
struct Own {
    quota: Quota,
    /// Requests that Redis has counted, by its last answer.
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
            questions: RefCell::default(),
            runs: Cell::new(false),
        }))
    }

    /// Asks for a request that counts as so many: Redis where nothing is known of the key in this window, else what this
    /// worker knows. `None`: Redis cannot be asked.
    pub(crate) async fn take(&self, key: &[u8], quota: &Quota, units: u64) -> Option<Counted> {
        loop {
            match self.0.take(key, quota, units, now_ms()) {
                Known::Count(counted) => return Some(counted),
                Known::OtherQuota => return self.ask(key, quota, units).await.map(|(counted, _)| counted),
                Known::Nothing => {}
            }
            let question = self.0.questions.borrow().get(key).map(Rc::clone);
            let Some(question) = question else {
                let asking = Asking::new(&self.0, key);
                let answer = self.ask(key, quota, units).await;
                asking.question.outcome.set(match answer {
                    Some((_, true)) => Outcome::Known,
                    Some((_, false)) => Outcome::NotKept,
                    None => Outcome::Failed,
                });
                return answer.map(|(counted, _)| counted);
            };
            question.ended.notified().await;
            match question.outcome.get() {
                Outcome::Abandoned | Outcome::Known => {}
                Outcome::NotKept => return self.ask(key, quota, units).await.map(|(counted, _)| counted),
                Outcome::Failed => return None,
            }
        }
    }

    /// Asks Redis for a request. Returns its answer, and true if the count is kept.
    async fn ask(&self, key: &[u8], quota: &Quota, units: u64) -> Option<(Counted, bool)> {
        let counted = count(&self.0.redis, key, quota, units, false).await.ok()?;
        let is_kept = self.0.keep(key, quota, counted, now_ms());
        if !self.0.runs.replace(true) {
            weir_runtime::spawn(synchronise(Rc::downgrade(&self.0)));
        }
        Some((counted, is_kept))
    }
}

impl<'a> Asking<'a> {
    fn new(counts: &'a Counts, key: &[u8]) -> Self {
        let (key, question) = (Rc::from(key), Rc::new(Question::default()));
        counts.questions.borrow_mut().insert(Rc::clone(&key), Rc::clone(&question));
        Self { counts, key, question }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.counts.questions.borrow_mut().remove(&self.key);
        self.question.ended.notify_waiters();
    }
}

/// Knowledge of a worker about a key.
enum Known {
    /// The decision about a request.
    Count(Counted),
    /// A count by another quota, which comes from variables.
    OtherQuota,
    /// Nothing, in this window.
    Nothing,
}

impl Own {
    /// True if no request passes before the window ends, whatever others do.
    fn is_used_up(&self) -> bool {
        self.quota.kind == WindowKind::Fixed && self.remote >= self.quota.count
    }
}

impl Counts {
    fn take(&self, key: &[u8], quota: &Quota, units: u64, now: u64) -> Known {
        let mut keys = self.keys.borrow_mut();
        let Some(own) = keys.get_mut(key).filter(|own| own.end > now) else { return Known::Nothing };
        if own.quota != *quota {
            return Known::OtherQuota;
        }
        let used = own.remote + own.since;
        let passed = used.saturating_add(units) <= quota.count;
        let counted = if passed { units } else { 0 };
        own.since += counted;
        Known::Count(Counted { passed, used: used + counted, left: own.end - now })
    }

    /// Keeps the count of Redis. Returns false without room: the key's next request asks again.
    fn keep(&self, key: &[u8], quota: &Quota, counted: Counted, now: u64) -> bool {
        let mut keys = self.keys.borrow_mut();
        let (end, has_room) = (now + counted.left, keys.len() < self.max_keys);
        match keys.get_mut(key) {
            // An answer about another quota; the higher count is the later one.
            Some(own) if own.end > now => own.remote = own.remote.max(counted.used),
            Some(own) => *own = Own { quota: *quota, remote: counted.used, since: 0, end },
            None if has_room => {
                keys.insert(key.into(), Own { quota: *quota, remote: counted.used, since: 0, end });
            }
            None => return false,
        }
        true
    }

    /// The keys with requests since the last exchange with Redis. The others are forgotten, so that their next request
    /// asks: nobody counts from a number older than an interval. A fixed window that is used up stays known until it
    /// ends.
    fn due(&self, now: u64) -> Vec<(Rc<[u8]>, Own)> {
        let mut keys = self.keys.borrow_mut();
        keys.retain(|_, own| own.end > now && (own.since > 0 || own.is_used_up()));
        keys.iter().filter(|(_, own)| own.since > 0).map(|(key, own)| (Rc::clone(key), *own)).collect()
    }

    /// Reports the requests of one key to Redis. After a failure they are reported the next time.
    async fn report(&self, key: &Rc<[u8]>, reported: Own) {
        let Ok(counted) = count(&self.redis, key, &reported.quota, reported.since, true).await else { return };
        if let Some(own) = self.keys.borrow_mut().get_mut(key) {
            own.since = own.since.saturating_sub(reported.since);
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
            together(some.iter().map(|(key, own)| counts.report(key, *own))).await;
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
