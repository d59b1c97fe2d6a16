//! Leases of a worker: shares of windows in Redis, so that most requests need no network.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::Notify;
use weir_redis::{Error, Script, Value};
use weir_runtime::now_us;

use super::counter::{Quota, Taken, WindowKind};
use super::lease::{Ask, Grant, Lease, Return};
use crate::traffic::redis::{Redis, together};

/// Takes shares of a window: `count`, milliseconds of the window, 1 for one that slides, shares that are needed, shares
/// that are wanted, and the window of which the holder had shares last, or -1 where it keeps none. Gives the shares, the
/// requests that count, the milliseconds that the window has left, and its end.
///
/// Beyond what is needed, a grant is at most a quarter of the rest divided by the holders. Those are counted anew in each
/// window.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local count, window, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local slides, held = ARGV[3] == '1', tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'end', 'now', 'before', 'holders', 'held')
local last, inside, before = tonumber(kept[1] or 0), tonumber(kept[2] or 0), tonumber(kept[3] or 0)
local holders, others = tonumber(kept[4] or 0), tonumber(kept[5] or 0)
if now >= last then
    if not slides or now - last >= window then
        last, inside, before = now + window, 0, 0
    else
        last, inside, before = last + window, 0, inside
    end
    holders, others = 0, holders
end
if held >= 0 and held ~= last then holders = holders + 1 end
local used = inside
if slides then used = inside + math.ceil(before * math.min(last - now, window) / window) end
local free = math.max(count - used, 0)
local share = math.floor(free / (4 * math.max(holders, others, 1)))
local grant = math.min(free, math.max(need, math.min(want, share)))
redis.call('HSET', KEYS[1], 'end', last, 'now', inside + grant, 'before', before, 'holders', holders, 'held', others)
redis.call('PEXPIRE', KEYS[1], last - now + (slides and window or 0))
return {grant, used + grant, last - now, last}
",
    )
});

/// Gives shares back: the window that they are of, its milliseconds, and their number.
static GIVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local of, window, shares = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'end', 'now', 'before')
local last = tonumber(kept[1] or 0)
if last == of then
    redis.call('HSET', KEYS[1], 'now', math.max(tonumber(kept[2]) - shares, 0))
elseif last == of + window then
    redis.call('HSET', KEYS[1], 'before', math.max(tonumber(kept[3]) - shares, 0))
end
return 0
",
    )
});

/// Interval at which leases are looked at that are idle or over.
const SWEEP: Duration = Duration::from_millis(250);
/// Leases that are looked at then at least, and part of all leases.
const SWEPT: usize = 1024;
const SWEPT_PART: usize = 16;
/// Returns of shares that are under way at once.
const AT_ONCE: usize = 64;
/// Longest time for which the end of a worker is held up by shares on their way back.
const FAREWELL: Duration = Duration::from_millis(500);
/// Questions that one request waits for, before it asks for itself alone.
const ROUNDS: u32 = 3;
/// The window of a question by one who keeps no shares.
const KEEPS_NONE: i64 = -1;

thread_local! {
    /// All leases of this worker, which are given back when it ends.
    static ALL: RefCell<Vec<Weak<Held>>> = const { RefCell::new(Vec::new()) };
}

/// A worker's leases of one instance.
#[derive(Debug)]
pub(super) struct Leases {
    held: Rc<Held>,
    /// Gone when no configuration has the instance any more.
    alive: Rc<()>,
}

#[derive(Debug)]
struct Held {
    redis: Redis,
    max_keys: usize,
    keys: RefCell<HashMap<Rc<[u8]>, Rc<LeasedKey>>>,
    /// All of them, in the order in which they are looked at.
    order: RefCell<VecDeque<Rc<LeasedKey>>>,
    /// True while there is a task that sweeps.
    sweeps: Cell<bool>,
}

/// The lease of one key and one quota.
#[derive(Debug)]
struct LeasedKey {
    /// The key in Redis, and the name of the lease.
    key: Box<[u8]>,
    name: Rc<[u8]>,
    quota: Quota,
    lease: RefCell<Lease>,
    /// Requests that wait for an answer.
    waiting: Cell<u64>,
    /// Notified of each answer, and of each failure.
    answered: Notify,
    failures: Cell<u64>,
}

impl Leases {
    /// Without a lease, of at most `max_keys` keys.
    pub(super) fn new(redis: &Redis, max_keys: usize) -> Self {
        let held = Rc::new(Held {
            redis: redis.clone(),
            max_keys,
            keys: RefCell::default(),
            order: RefCell::default(),
            sweeps: Cell::new(false),
        });
        let is_first = ALL.with_borrow_mut(|all| {
            let is_first = all.is_empty();
            all.retain(|held| held.strong_count() > 0);
            all.push(Rc::downgrade(&held));
            is_first
        });
        if is_first {
            weir_plugin::at_worker_end(|| Box::pin(give_all_back()));
        }
        Self { held, alive: Rc::new(()) }
    }

    /// Decides about a request without a wait; `None`: it has to wait. `key` is that in Redis, and becomes the name of the
    /// lease.
    pub(super) fn try_take(&self, key: &mut Vec<u8>, quota: &Quota) -> Option<Taken> {
        name(key, quota);
        let place = self.held.keys.borrow().get(key.as_slice()).map(Rc::clone)?;
        let now = now_ms();
        let mut lease = place.lease.borrow_mut();
        let taken = lease.take(now)?;
        if lease.is_low(now) {
            lease.is_asking = true;
            drop(lease);
            self.held.ask(&place);
        }
        Some(taken)
    }

    /// True if [`try_take`](Self::try_take) would decide.
    pub(super) fn is_ready(&self, key: &mut Vec<u8>, quota: &Quota) -> bool {
        name(key, quota);
        let keys = self.held.keys.borrow();
        keys.get(key.as_slice()).is_some_and(|place| place.lease.borrow().is_ready(now_ms()))
    }

    /// Decides about a request, and waits for Redis where that is needed; `None`: Redis cannot be asked.
    pub(super) async fn take(&self, key: &[u8], quota: &Quota) -> Option<Taken> {
        let mut named = key.to_vec();
        for _ in 0..ROUNDS {
            if let Some(taken) = self.try_take(&mut named, quota) {
                return Some(taken);
            }
            let Some(place) = self.place(&named, key, quota) else { break };
            named.truncate(key.len());
            let failures = place.failures.get();
            // Notified from here on, polled or not.
            let answered = place.answered.notified();
            let _waits = Waits::new(&place);
            if !std::mem::replace(&mut place.lease.borrow_mut().is_asking, true) {
                self.held.ask(&place);
            }
            answered.await;
            if place.failures.get() != failures {
                return None;
            }
        }
        let ask = Ask { need: 1, want: 0, window: 0 };
        let grant = take(&self.held.redis, key, quota, &ask, KEEPS_NONE).await.ok()?;
        let remaining = quota.count.saturating_sub(grant.used);
        Some(Taken { passed: grant.shares > 0, remaining, reset: grant.left })
    }

    /// The place of a lease, made where there is none; `None`: there is no room.
    fn place(&self, named: &[u8], key: &[u8], quota: &Quota) -> Option<Rc<LeasedKey>> {
        let mut keys = self.held.keys.borrow_mut();
        if let Some(place) = keys.get(named) {
            return Some(Rc::clone(place));
        }
        if keys.len() >= self.held.max_keys {
            return None;
        }
        let place = Rc::new(LeasedKey {
            key: key.into(),
            name: named.into(),
            quota: *quota,
            lease: RefCell::default(),
            waiting: Cell::new(0),
            answered: Notify::new(),
            failures: Cell::new(0),
        });
        keys.insert(Rc::clone(&place.name), Rc::clone(&place));
        drop(keys);
        self.held.order.borrow_mut().push_back(Rc::clone(&place));
        if !self.held.sweeps.replace(true) {
            weir_runtime::spawn(sweep(Rc::clone(&self.held), Rc::downgrade(&self.alive)));
        }
        Some(place)
    }
}

/// One request that waits, as long as it is there.
struct Waits<'a>(&'a LeasedKey);

impl<'a> Waits<'a> {
    fn new(place: &'a LeasedKey) -> Self {
        place.waiting.set(place.waiting.get() + 1);
        Self(place)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Held {
    /// Asks for shares beside the requests that wait for them: the answer counts even where they go. `is_asking` is set.
    fn ask(self: &Rc<Self>, place: &Rc<LeasedKey>) {
        let (this, place) = (Rc::clone(self), Rc::clone(place));
        weir_runtime::spawn(async move {
            let sent = now_ms();
            // Requests of the same round wait by now.
            let ask = place.lease.borrow_mut().ask(sent, place.waiting.get());
            let window = i64::try_from(ask.window).unwrap_or_default();
            let back = match take(&this.redis, &place.key, &place.quota, &ask, window).await {
                Ok(grant) => place.lease.borrow_mut().receive((sent, now_ms()), &ask, &grant, &place.quota),
                Err(_) => {
                    place.lease.borrow_mut().fail();
                    place.failures.set(place.failures.get() + 1);
                    None
                }
            };
            place.answered.notify_waiters();
            if let Some(back) = back {
                this.give(&place, back).await;
            }
        });
    }

    /// Gives shares back, once: what is lost on the way stays used.
    async fn give(&self, place: &LeasedKey, back: Return) {
        let [window, length, shares] = [back.window, place.quota.window, back.shares].map(|number| number.to_string());
        let arguments = [window.as_bytes(), length.as_bytes(), shares.as_bytes()];
        let _ = self.redis.run_once(&GIVE, &place.key, &arguments).await;
    }

    /// Gives up all shares; the keys are forgotten.
    fn give_up(&self) -> Vec<(Rc<LeasedKey>, Return)> {
        self.keys.take();
        let back = self.order.take().into_iter().filter_map(|place| {
            let back = place.lease.borrow_mut().give_up()?;
            Some((place, back))
        });
        back.collect()
    }

    async fn give_each(&self, backs: Vec<(Rc<LeasedKey>, Return)>) {
        for some in backs.chunks(AT_ONCE) {
            together(some.iter().map(|(place, back)| self.give(place, *back))).await;
        }
    }

    /// Looks at some leases: forgets those that are over, and gives what goes back.
    fn look(&self, now: u64) -> Vec<(Rc<LeasedKey>, Return)> {
        let mut order = self.order.borrow_mut();
        let mut backs = Vec::new();
        for _ in 0..order.len().min(SWEPT.max(order.len() / SWEPT_PART)) {
            let Some(place) = order.pop_front() else { break };
            let mut lease = place.lease.borrow_mut();
            let is_over = lease.is_over(now) && place.waiting.get() == 0;
            let back = if is_over { lease.close(&place.quota) } else { lease.rest_idle(now) };
            drop(lease);
            backs.extend(back.map(|back| (Rc::clone(&place), back)));
            if is_over {
                self.keys.borrow_mut().remove(&place.name);
            } else {
                order.push_back(place);
            }
        }
        backs
    }
}

/// Takes shares of a window.
async fn take(redis: &Redis, key: &[u8], quota: &Quota, ask: &Ask, window: i64) -> Result<Grant, Error> {
    let slides: &[u8] = if quota.kind == WindowKind::Sliding { b"1" } else { b"0" };
    let [count, length, need, want] = [quota.count, quota.window, ask.need, ask.want].map(|number| number.to_string());
    let window = window.to_string();
    let numbers = [count.as_bytes(), length.as_bytes(), slides, need.as_bytes(), want.as_bytes(), window.as_bytes()];
    match redis.run(&TAKE, key, &numbers).await? {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(shares), Value::Int(used), Value::Int(left), Value::Int(window)] => {
                let [shares, used, left, window] =
                    [shares, used, left, window].map(|number| u64::try_from(*number).unwrap_or_default());
                Ok(Grant { shares, used, left, window })
            }
            _ => Err(Error::Unexpected),
        },
        _ => Err(Error::Unexpected),
    }
}

/// Gives idle shares back and forgets leases that are over, as long as there are leases.
async fn sweep(held: Rc<Held>, alive: Weak<()>) {
    loop {
        weir_runtime::sleep(SWEEP).await;
        if alive.strong_count() == 0 {
            let backs = held.give_up();
            return held.give_each(backs).await;
        }
        let backs = held.look(now_ms());
        held.give_each(backs).await;
        if held.keys.borrow().is_empty() {
            held.sweeps.set(false);
            return;
        }
    }
}

/// Gives all shares of a worker back at its end.
async fn give_all_back() {
    let all = ALL.take();
    let giving = async {
        for held in all.iter().filter_map(Weak::upgrade) {
            let backs = held.give_up();
            held.give_each(backs).await;
        }
    };
    // Shares that are not returned by then count as used until their window ends.
    let _ = weir_runtime::timeout(FAREWELL, giving).await;
}

/// Appends the quota to a key: requests with another one have a lease of their own.
fn name(key: &mut Vec<u8>, quota: &Quota) {
    key.push(0);
    key.extend_from_slice(&quota.count.to_le_bytes());
    key.extend_from_slice(&quota.window.to_le_bytes());
}

fn now_ms() -> u64 {
    now_us() / 1000
}
