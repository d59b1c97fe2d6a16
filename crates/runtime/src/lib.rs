//! The runtime of a worker: tasks of one thread, woken by sockets, timers, each other and other threads.
//!
//! A request costs a handful of wake-ups, so the runtime is optimised for them: wake-ups within the thread share no
//! state with other threads and need no atomic operation and no lock. A socket becomes ready by a store to its own
//! state, a task is woken by appending its number to a queue. Rare events (timers, wake-ups from other threads) are
//! implemented simply.
//!
//! Channels and locks of `tokio::sync` work here, because they need only wakers. Tokio's timers and sockets do not.

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

/// Lets all other ready tasks run, and polls for new events.
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
