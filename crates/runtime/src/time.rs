//! Delays of tasks, with millisecond resolution. Deadlines that move with every request belong to the timer wheel in
//! `weir-proxy`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::task::Core;
use crate::timers::now_us;

/// Future that completes at a deadline.
#[derive(Debug)]
#[must_use = "nothing waits unless it is awaited"]
pub struct Sleep {
    deadline: u64,
    /// Number of the wait and its core, once the future was polled.
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
    /// Panics outside of [`block_on`](crate::block_on).
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now_us() >= self.deadline {
            return Poll::Ready(());
        }
        let deadline = self.deadline;
        let (number, core) = self.waits.get_or_insert_with(|| {
            let core = Core::current();
            (core.timers.next_number(), core)
        });
        core.timers.wait(deadline, *number, cx.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((number, core)) = &self.waits {
            core.timers.forget(self.deadline, *number);
        }
    }
}

/// Output of `work`, or `None` if it takes longer than `limit`.
pub async fn timeout<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    let (mut work, mut late) = (pin!(work), pin!(sleep(limit)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}
