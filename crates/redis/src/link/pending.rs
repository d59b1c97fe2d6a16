//! Commands that wait: to be sent, and for their replies.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use redis::Value;
use weir_runtime::now_us;

use crate::error::Error;

/// Most commands of one connection that wait for their replies.
const MOST_WAITING: usize = 16 << 10;
/// Most bytes of one connection that wait to be sent.
const MOST_BYTES: usize = 4 << 20;
/// Room for bytes that is kept from one round to the next.
const KEPT_BYTES: usize = 64 << 10;

/// The commands of one connection.
#[derive(Default)]
pub(crate) struct Pending {
    /// Commands that have not been handed to the connection.
    bytes: Vec<u8>,
    /// Commands whose replies are to come, in this order.
    waiting: VecDeque<Waiting>,
    /// Time of the last command.
    last: u64,
    /// True when somebody had a command for a server that is away.
    pub(crate) is_wanted: bool,
}

struct Waiting {
    /// The beginning of its time limit, in microseconds of the clock.
    since: u64,
    /// `None`: nobody wants to know the reply.
    answer: Option<Rc<Cell<Answer>>>,
}

/// A reply on its way.
#[derive(Default)]
enum Answer {
    #[default]
    Nothing,
    /// Somebody waits for it.
    Awaited(Waker),
    Here(Result<Value, Error>),
}

/// A command whose reply has come.
pub(crate) struct Answered(Option<Rc<Cell<Answer>>>);

/// A reply to come.
#[must_use = "the reply is lost unless it is awaited"]
pub(crate) struct Reply(Rc<Cell<Answer>>);

impl Pending {
    /// Adds a command.
    ///
    /// # Errors
    /// Too much waits.
    pub(crate) fn add(&mut self, asking: bool, write: impl FnOnce(&mut Vec<u8>)) -> Result<Reply, Error> {
        if self.waiting.len() >= MOST_WAITING || self.bytes.len() >= MOST_BYTES {
            return Err(Error::Overloaded);
        }
        let since = now_us();
        if asking {
            crate::script::write_words(&["ASKING"], &mut self.bytes);
            self.waiting.push_back(Waiting { since, answer: None });
        }
        write(&mut self.bytes);
        let answer = Rc::<Cell<Answer>>::default();
        self.waiting.push_back(Waiting { since, answer: Some(Rc::clone(&answer)) });
        self.last = since;
        Ok(Reply(answer))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves what is to be sent into `out`, which is empty.
    pub(crate) fn take_bytes(&mut self, out: &mut Vec<u8>) {
        std::mem::swap(&mut self.bytes, out);
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Whose reply comes next.
    pub(crate) fn next_reply(&mut self) -> Option<Answered> {
        self.waiting.pop_front().map(|waiting| Answered(waiting.answer))
    }

    /// The beginning of the time limit of the command that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.since)
    }

    /// Time of the last command.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The time of everything that waits begins now: the connection stands only now.
    pub(crate) fn restart_clocks(&mut self, now: u64) {
        for waiting in &mut self.waiting {
            waiting.since = now;
        }
    }

    /// Ends everything that waits.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.bytes = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            Answered(waiting.answer).answer(Err(error.clone()));
        }
    }
}

impl Answered {
    /// Hands the reply over.
    pub(crate) fn answer(self, answer: Result<Value, Error>) {
        let Some(place) = self.0 else { return };
        if let Answer::Awaited(waker) = place.replace(Answer::Here(answer)) {
            waker.wake();
        }
    }
}

impl Future for Reply {
    type Output = Result<Value, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.take() {
            Answer::Here(answer) => Poll::Ready(answer),
            Answer::Nothing | Answer::Awaited(_) => {
                self.0.set(Answer::Awaited(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_BYTES, MOST_WAITING, Pending};
    use crate::error::Error;

    #[test]
    fn what_waits_has_a_bound() {
        let mut pending = Pending::default();
        for _ in 0..MOST_WAITING {
            drop(pending.add(false, |out| out.push(b'x')).expect("room"));
        }
        assert!(matches!(pending.add(false, |_| {}), Err(Error::Overloaded)));
        pending.fail(&Error::Timeout);
        drop(pending.add(false, |out| out.resize(MOST_BYTES, b'x')).expect("room again"));
        assert!(matches!(pending.add(false, |_| {}), Err(Error::Overloaded)));
    }
}
