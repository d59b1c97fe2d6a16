//! What a worker runs on: the tasks of one thread, woken by its sockets, its timers, each other and other threads.
//!
//! A request costs a handful of wake-ups, so these are what this is made for: nothing of them is shared with another
//! thread, and so they take no atomic operation and no lock. A ready socket is known by a store to its own state, a
//! woken task by its number in a queue. What is rare (timers, wake-ups from other threads) is simple.
//!
//! Channels and locks of `tokio::sync` work here, for they only need wakers. Its timers and sockets do not.

mod reactor;
mod source;
mod task;
mod time;
mod timers;

use std::future::poll_fn;
use std::task::Poll;

pub use source::Source;
pub use task::{block_on, spawn};
pub use time::{Sleep, sleep, timeout};
pub use timers::now_us;

/// Lets everything else that is ready have its turn, and looks for new events.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
