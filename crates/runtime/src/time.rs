//! Timers of tasks, to the millisecond. Deadlines that move with every request are not for these: `weir-proxy` has a
//! wheel for them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::task::Core;

/// Microseconds on a clock that never goes back and never shows 0.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn now_us() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let epoch = *EPOCH.get_or_init(Instant::now);
    epoch.elapsed().as_micros() as u64 + 1
}

/// Tasks that wait for a time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// By deadline in microseconds, and a number that tells those of one deadline apart.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// The number given last.
    last: Cell<u64>,
    /// When it was last looked who is due.
    now: Cell<u64>,
}

impl Timers {
    /// Wakes whose time has come.
    pub(crate) fn fire(&self) {
        let now = now_us();
        self.now.set(now);
        loop {
            // A wake-up must not find this borrowed.
            let mut waiting = self.waiting.borrow_mut();
            let waker = match waiting.first_entry() {
                Some(entry) if entry.key().0 <= now => entry.remove(),
                _ => return,
            };
            drop(waiting);
            waker.wake();
        }
    }

    /// Microseconds from the last look until the next one's time, so as much too long as the round has taken: one look
    /// at the clock a round is enough.
    pub(crate) fn until_next(&self) -> Option<u64> {
        let waiting = self.waiting.borrow();
        let ((deadline, _), _) = waiting.first_key_value()?;
        Some(deadline.saturating_sub(self.now.get()))
    }
}

/// A wait that ends at a time.
#[derive(Debug)]
#[must_use = "nothing waits unless it is awaited"]
pub struct Sleep {
    deadline: u64,
    /// Its number and what it waits with, once it does.
    waits: Option<(u64, Rc<Core>)>,
}

/// Waits for at least `time`, rounded up to a millisecond.
pub fn sleep(time: Duration) -> Sleep {
    let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Sleep { deadline: now_us().saturating_add(time), waits: None }
}

impl Future for Sleep {
    type Output = ();

    /// # Panics
    /// Outside of [`block_on`](crate::block_on).
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now_us() >= self.deadline {
            return Poll::Ready(());
        }
        let deadline = self.deadline;
        let (number, core) = self.waits.get_or_insert_with(|| {
            let core = Core::here();
            let number = core.timers.last.get() + 1;
            core.timers.last.set(number);
            (number, core)
        });
        core.timers.waiting.borrow_mut().insert((deadline, *number), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((number, core)) = &self.waits {
            let waker = core.timers.waiting.borrow_mut().remove(&(self.deadline, *number));
            drop(waker);
        }
    }
}

/// What comes of `work`; `None` when it takes longer than `limit`.
pub async fn timeout<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    let (mut work, mut late) = (pin!(work), pin!(sleep(limit)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}
