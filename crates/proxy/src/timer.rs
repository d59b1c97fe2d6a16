//! Deadlines of connections on one wheel a worker.
//!
//! Each connection has one deadline, set with a store. The wheel looks at a connection when its earliest deadline may
//! have come, and not whenever a deadline moves, so a request costs no timer operation at all.

use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Milliseconds between two looks at the wheel: how late a deadline may be seen, and how far the wheel's clock may be
/// behind.
pub(crate) const TICK_MS: u64 = 50;
/// Buckets of the wheel; deadlines further away are looked at once a turn.
const BUCKETS: u64 = 1024;
/// Connections found by one search for those that have been idle longest.
const LONGEST: usize = 64;

/// The wheel.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Milliseconds, as of the last tick.
    now: Cell<u64>,
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: Slab<Entry>,
    buckets: Vec<Vec<u32>>,
    /// Room for the entries of one look.
    due: Vec<u32>,
    /// Start of idleness, and key, of some of the connections idle longest, the longest last. They may have become
    /// active since they were found.
    longest: Vec<(u64, usize)>,
    /// The last tick that was processed.
    tick: u64,
}

#[derive(Debug)]
struct Entry {
    deadline: u64,
    /// Bound of all deadlines.
    cap: u64,
    /// The tick at which it is looked at next.
    scheduled: u64,
    /// Since when the connection has been idle, on the wheel's clock; [`BUSY`] while it is not.
    idle_since: u64,
    waker: Option<Waker>,
}

/// Stands for no time at all.
const BUSY: u64 = u64::MAX;
/// A deadline that is over because the connection has to give way to another.
const GIVES_WAY: u64 = 0;

/// One connection's deadline.
#[derive(Debug)]
pub(crate) struct Timer {
    timers: Rc<Timers>,
    key: usize,
}

impl Timers {
    pub(crate) fn new(now_ms: u64) -> Rc<Self> {
        Rc::new(Self {
            now: Cell::new(now_ms),
            inner: RefCell::new(Inner {
                entries: Slab::new(),
                buckets: (0..BUCKETS).map(|_| Vec::with_capacity(8)).collect(),
                due: Vec::with_capacity(64),
                longest: Vec::new(),
                tick: now_ms / TICK_MS,
            }),
        })
    }

    /// A deadline that is not set.
    pub(crate) fn timer(self: &Rc<Self>) -> Timer {
        let entry = Entry { deadline: u64::MAX, cap: u64::MAX, scheduled: u64::MAX, idle_since: BUSY, waker: None };
        let key = self.inner.borrow_mut().entries.insert(entry);
        Timer { timers: Rc::clone(self), key }
    }

    /// Milliseconds as of the last tick.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Moves on to `now_ms` and wakes whose deadline has come.
    pub(crate) fn advance(&self, now_ms: u64) {
        self.now.set(now_ms);
        let inner = &mut *self.inner.borrow_mut();
        let target = now_ms / TICK_MS;
        // After a long pause one turn sees every bucket.
        let from = (inner.tick + 1).max(target.saturating_sub(BUCKETS - 1));
        for tick in from..=target {
            let Some(bucket) = inner.buckets.get_mut((tick % BUCKETS) as usize) else { break };
            inner.due.append(bucket);
            bucket.shrink_to(256);
        }
        let mut due = std::mem::take(&mut inner.due);
        for key in due.drain(..) {
            let Some(entry) = inner.entries.get_mut(key as usize) else { continue };
            // Left here by a connection that has gone, or that was moved to an earlier bucket since.
            if entry.scheduled > target {
                continue;
            }
            entry.scheduled = u64::MAX;
            if entry.deadline > now_ms {
                inner.schedule(key, target);
            } else if let Some(waker) = &entry.waker {
                waker.wake_by_ref();
            }
        }
        due.shrink_to(256);
        inner.due = due;
        inner.tick = target;
    }

    /// Ends the time of the connection that has been idle longest, so that its task closes it unless a request has come
    /// by then. False when none is idle. One search in [`LONGEST`] calls looks at all connections.
    pub(crate) fn end_longest_idle(&self) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        if inner.longest.is_empty() {
            inner.find_longest_idle();
        }
        loop {
            let Some((since, key)) = inner.longest.pop() else {
                inner.find_longest_idle();
                if inner.longest.is_empty() {
                    return false;
                }
                continue;
            };
            let Some(entry) = inner.entries.get_mut(key).filter(|entry| entry.idle_since == since) else { continue };
            entry.idle_since = BUSY;
            entry.deadline = GIVES_WAY;
            if let Some(waker) = &entry.waker {
                waker.wake_by_ref();
                return true;
            }
        }
    }

    /// Wakes every connection, so that it sees a change such as the begin of a drain.
    pub(crate) fn wake_all(&self) {
        for (_, entry) in &self.inner.borrow().entries {
            if let Some(waker) = &entry.waker {
                waker.wake_by_ref();
            }
        }
    }
}

impl Inner {
    fn find_longest_idle(&mut self) {
        let mut longest = BinaryHeap::with_capacity(LONGEST + 1);
        for (key, entry) in &self.entries {
            // Without a waker its task has not waited yet.
            if entry.idle_since == BUSY || entry.waker.is_none() {
                continue;
            }
            if longest.len() < LONGEST || longest.peek().is_some_and(|(since, _)| entry.idle_since < *since) {
                longest.push((entry.idle_since, key));
                if longest.len() > LONGEST {
                    longest.pop();
                }
            }
        }
        self.longest = longest.into_sorted_vec();
        self.longest.reverse();
    }

    /// Puts an entry where its deadline is looked at, at most a turn ahead of `tick`.
    fn schedule(&mut self, key: u32, tick: u64) {
        let Some(entry) = self.entries.get_mut(key as usize) else { return };
        let at = (entry.deadline.div_ceil(TICK_MS)).clamp(tick + 1, tick + BUCKETS - 1);
        if at < entry.scheduled {
            entry.scheduled = at;
            if let Some(bucket) = self.buckets.get_mut((at % BUCKETS) as usize) {
                bucket.push(key);
            }
        }
    }
}

impl Timer {
    /// Sets the deadline `ms` milliseconds from now, or up to two ticks later.
    pub(crate) fn set(&self, ms: u64) {
        self.set_at(self.timers.now.get().saturating_add(ms).saturating_add(TICK_MS));
    }

    /// Sets the deadline of an idle client connection, which is closed in favour of a new one when there are too many.
    /// Idle until another method sets the next deadline.
    pub(crate) fn set_idle(&self, ms: u64) {
        let now = self.timers.now.get();
        self.put(now.saturating_add(ms).saturating_add(TICK_MS), now);
    }

    /// Sets the deadline to a time of the wheel's clock.
    pub(crate) fn set_at(&self, deadline: u64) {
        self.put(deadline, BUSY);
    }

    /// The connection may give way from now on, until a deadline is set; that of now stays.
    pub(crate) fn begin_idle(&self) {
        let inner = &mut *self.timers.inner.borrow_mut();
        if let Some(entry) = inner.entries.get_mut(self.key) {
            entry.idle_since = self.timers.now.get();
        }
    }

    /// The connection does not give way any more; its deadline stays.
    pub(crate) fn end_idle(&self) {
        let inner = &mut *self.timers.inner.borrow_mut();
        if let Some(entry) = inner.entries.get_mut(self.key) {
            entry.idle_since = BUSY;
        }
    }

    /// True when the deadline is over because the connection has to give way.
    pub(crate) fn gives_way(&self) -> bool {
        self.timers.inner.borrow().entries.get(self.key).is_some_and(|entry| entry.deadline == GIVES_WAY)
    }

    fn put(&self, deadline: u64, idle_since: u64) {
        let inner = &mut *self.timers.inner.borrow_mut();
        let tick = inner.tick;
        let Some(entry) = inner.entries.get_mut(self.key) else { return };
        let deadline = deadline.min(entry.cap);
        entry.deadline = deadline;
        entry.idle_since = idle_since;
        if deadline.div_ceil(TICK_MS) < entry.scheduled {
            inner.schedule(self.key as u32, tick);
        }
    }

    /// Bounds the deadlines that are set from now on by a time of the wheel's clock; `u64::MAX`: they have no bound.
    pub(crate) fn cap(&self, at: u64) {
        let inner = &mut *self.timers.inner.borrow_mut();
        if let Some(entry) = inner.entries.get_mut(self.key) {
            entry.cap = at;
        }
    }

    /// The bound of the deadlines; `u64::MAX`: there is none.
    pub(crate) fn bound(&self) -> u64 {
        self.timers.inner.borrow().entries.get(self.key).map_or(u64::MAX, |entry| entry.cap)
    }

    /// True when the bound of the deadlines has come.
    pub(crate) fn is_over(&self) -> bool {
        self.bound() <= self.timers.now.get()
    }

    /// The wheel's clock.
    pub(crate) fn now(&self) -> u64 {
        self.timers.now.get()
    }

    /// The output of `work`; `None` when the deadline has passed first.
    pub(crate) async fn within<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_expired(cx).map(|()| None),
        })
        .await
    }

    /// Ready when the deadline has come; else the task is woken when it does.
    pub(crate) fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.timers.inner.borrow_mut();
        let Some(entry) = inner.entries.get_mut(self.key) else { return Poll::Ready(()) };
        if entry.deadline <= self.timers.now.get() {
            return Poll::Ready(());
        }
        match &entry.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => entry.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.timers.inner.borrow_mut().entries.try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, TICK_MS, Timers};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A timer is seen at its deadline, however often it was moved, and at most one tick late.
    #[test]
    fn deadlines_are_seen_in_time() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..200 {
            let start = random.u64(0..10_000_000);
            let timers = Timers::new(start);
            let timer = timers.timer();
            let count = Arc::new(Count(AtomicUsize::new(0)));
            let waker = Waker::from(count.clone());
            let mut cx = Context::from_waker(&waker);
            let mut now = start;
            let mut deadline = u64::MAX;
            for _ in 0..100 {
                if random.bool() {
                    deadline = now + random.u64(1..3 * BUCKETS * TICK_MS);
                    timer.set_at(deadline);
                }
                if timer.poll_expired(&mut cx).is_ready() {
                    assert!(deadline <= now);
                    deadline = u64::MAX;
                    timer.set_at(u64::MAX);
                    assert_eq!(timer.poll_expired(&mut cx), Poll::Pending);
                }
                let woken = count.0.load(Ordering::Relaxed);
                now += random.u64(1..TICK_MS * 300);
                timers.advance(now);
                let was_woken = count.0.load(Ordering::Relaxed) > woken;
                let due = deadline <= now / TICK_MS * TICK_MS;
                assert!(!due || was_woken, "round {round}: deadline {deadline} passed unseen at {now}");
                assert!(!was_woken || deadline <= now, "round {round}: woken too early");
            }
        }
    }

    /// The wheel's clock may be a tick behind; that is not taken from a deadline.
    #[test]
    fn a_deadline_does_not_come_early() {
        let mut cx = Context::from_waker(Waker::noop());
        for behind in 0..TICK_MS {
            let timers = Timers::new(1000);
            let timer = timers.timer();
            timer.set(300);
            timers.advance(1000 + behind + 299);
            assert_eq!(timer.poll_expired(&mut cx), Poll::Pending, "set {behind} ms after the last tick");
            timers.advance(1000 + 300 + 2 * TICK_MS);
            assert_eq!(timer.poll_expired(&mut cx), Poll::Ready(()));
        }
    }

    /// A deadline that is bounded is seen at its bound, also where a later one was scheduled before.
    #[test]
    fn a_bound_wakes_in_time() {
        let timers = Timers::new(0);
        let timer = timers.timer();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        timer.set(10_000);
        timer.cap(200);
        timer.set(60_000);
        assert_eq!(timer.poll_expired(&mut Context::from_waker(&waker)), Poll::Pending);
        timers.advance(200 + TICK_MS);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "the task is woken");
        assert_eq!(timer.poll_expired(&mut Context::from_waker(&waker)), Poll::Ready(()));
    }

    #[test]
    fn buckets_do_not_grow_with_requests() {
        let timers = Timers::new(0);
        let timer = timers.timer();
        for request in 0..10_000u64 {
            timer.set(75_000);
            timer.set(10_000);
            timer.set(60_000);
            timers.advance(request);
        }
        let held: usize = timers.inner.borrow().buckets.iter().map(Vec::len).sum();
        assert!(held <= 3, "{held} entries for one timer");
    }

    #[test]
    fn the_longest_idle_connection_gives_way_first() {
        let timers = Timers::new(1000);
        let mut cx = Context::from_waker(Waker::noop());
        let mut timer = || {
            let timer = timers.timer();
            timer.set_idle(60_000);
            assert_eq!(timer.poll_expired(&mut cx), Poll::Pending);
            timers.advance(timers.now() + TICK_MS);
            timer
        };
        let all: Vec<_> = (0..200).map(|_| timer()).collect();
        let gone = || all.iter().enumerate().filter(|(_, t)| t.gives_way()).map(|(n, _)| n).collect::<Vec<_>>();
        // A request has come, one was answered meanwhile, and one ended and another took its place.
        all[0].set(1000);
        all[1].set(1000);
        all[1].set_idle(60_000);
        for expected in [2, 3, 4] {
            assert!(timers.end_longest_idle());
            assert_eq!(gone().last(), Some(&expected));
        }
        // Candidates are known by now, and those that are busy since are passed over.
        all[5].set(1000);
        assert!(timers.end_longest_idle());
        assert_eq!(gone(), [2, 3, 4, 6]);
        for _ in 0..200 - 6 {
            assert!(timers.end_longest_idle());
        }
        assert!(!timers.end_longest_idle(), "those with a request stay");
        assert_eq!(gone().len(), 198);
        assert!(!all[0].gives_way() && all[1].gives_way() && !all[5].gives_way());
        // A request that was faster has its own deadline.
        all[1].set(1000);
        assert!(!all[1].gives_way());
    }

    #[test]
    fn a_gone_timer_is_forgotten() {
        let timers = Timers::new(0);
        let timer = timers.timer();
        timer.set(100);
        drop(timer);
        timers.advance(1000);
        assert!(timers.inner.borrow().entries.is_empty());
    }
}
