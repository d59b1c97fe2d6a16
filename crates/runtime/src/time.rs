//! Waits of tasks, to the millisecond. Deadlines that move with every request are not for these: `weir-proxy` has a
//! wheel for them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::task::Core;
use crate::timers::now_us;

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

/// What comes of `work`; `None` when it takes longer than `limit`.
pub async fn timeout<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    let (mut work, mut late) = (pin!(work), pin!(sleep(limit)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}
