//! Remembered answers: what services have said, for a time, and one question at a time for each key.
//!
//! All workers share them, so a crowd that asks the same asks once. Whoever comes while a question is on its way waits for
//! its answer; when the one who asked goes away, the next of those that wait asks.

#![allow(clippy::disallowed_types, reason = "held for one lookup, by requests that would ask a service otherwise")]

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Answers by key, up to a number and a size.
pub struct Remembered<T> {
    inner: Mutex<Inner<T>>,
    max_entries: usize,
    max_bytes: usize,
}

struct Inner<T> {
    entries: HashMap<Arc<[u8]>, Entry<T>>,
    /// Keys of answers, those remembered first in front; each with the time at which its answer ends.
    order: VecDeque<(Arc<[u8]>, u64)>,
    bytes: usize,
}

enum Entry<T> {
    /// Somebody asks; those that wait for the answer.
    Asked(Vec<oneshot::Sender<Turn<T>>>),
    Known {
        answer: Arc<T>,
        until: u64,
        bytes: usize,
    },
}

/// Outcome of a wait: the answer, or the turn to ask.
enum Turn<T> {
    Answer(Arc<T>),
    Ask(Asking<T>),
}

/// Lifetime and size of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Milliseconds; 0: it is only for those that wait for it now.
    pub ttl_ms: u64,
    /// Bytes that it takes.
    pub bytes: usize,
}

impl<T> Remembered<T> {
    /// Room for so many answers, which take so many bytes with their keys.
    #[must_use]
    pub fn new(max_entries: usize, max_bytes: usize) -> Self {
        let inner = Inner { entries: HashMap::new(), order: VecDeque::new(), bytes: 0 };
        Self { inner: Mutex::new(inner), max_entries, max_bytes }
    }

    /// The answer for `key` at `now_ms`, of a clock that never goes back: a remembered one, that of a question on its way,
    /// or what `ask` comes to. `ask` says as well how long its answer is remembered.
    pub async fn get<F>(self: &Arc<Self>, key: &[u8], now_ms: u64, ask: impl FnOnce() -> F) -> Arc<T>
    where
        F: Future<Output = (T, Keep)>,
    {
        let turn = match self.look(key, now_ms) {
            Found::Answer(answer) => return answer,
            Found::Turn(turn) => turn,
            Found::Waits(waits) => match waits.await {
                Ok(Turn::Answer(answer)) => return answer,
                Ok(Turn::Ask(turn)) => Some(turn),
                // Never the case: a turn ends with an answer, or is passed on.
                Err(_) => None,
            },
        };
        let (answer, keep) = ask().await;
        let answer = Arc::new(answer);
        if let Some(turn) = turn {
            turn.answer(&answer, keep, now_ms);
        }
        answer
    }

    fn look(self: &Arc<Self>, key: &[u8], now_ms: u64) -> Found<T> {
        let mut inner = self.lock();
        match inner.entries.get_mut(key) {
            Some(Entry::Known { answer, until, .. }) if *until > now_ms => return Found::Answer(Arc::clone(answer)),
            Some(Entry::Asked(waiting)) => {
                let (sender, receiver) = oneshot::channel();
                // Those that have gone make room.
                if waiting.len() == waiting.capacity() {
                    waiting.retain(|one| !one.is_closed());
                }
                waiting.push(sender);
                return Found::Waits(receiver);
            }
            _ => {}
        }
        inner.forget(key);
        let key: Arc<[u8]> = key.into();
        inner.entries.insert(Arc::clone(&key), Entry::Asked(Vec::new()));
        Found::Turn(Some(Asking { remembered: Arc::clone(self), key, done: false }))
    }

    /// Number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().order.len()
    }

    /// True when no answer is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inner<T> {
    /// Forgets the answer for a key.
    fn forget(&mut self, key: &[u8]) {
        if let Some(Entry::Known { bytes, until, .. }) = self.entries.remove(key) {
            self.bytes -= bytes;
            self.order.retain(|(other, end)| *end != until || **other != *key);
        }
    }

    /// Forgets the oldest answers until there is room for one more.
    fn make_room(&mut self, bytes: usize, max_entries: usize, max_bytes: usize) {
        while self.order.len() >= max_entries || self.bytes + bytes > max_bytes {
            let Some((key, _)) = self.order.pop_front() else { return };
            if let Some(Entry::Known { bytes, .. }) = self.entries.remove(&key) {
                self.bytes -= bytes;
            }
        }
    }
}

/// State of a key.
enum Found<T> {
    Answer(Arc<T>),
    Waits(oneshot::Receiver<Turn<T>>),
    Turn(Option<Asking<T>>),
}

/// The turn to ask, which goes on to the next that waits when it is dropped without an answer.
struct Asking<T> {
    remembered: Arc<Remembered<T>>,
    key: Arc<[u8]>,
    done: bool,
}

impl<T> Asking<T> {
    fn answer(mut self, answer: &Arc<T>, keep: Keep, now_ms: u64) {
        self.done = true;
        let Remembered { max_entries, max_bytes, .. } = *self.remembered;
        let mut inner = self.remembered.lock();
        let waiting = match inner.entries.remove(&self.key) {
            Some(Entry::Asked(waiting)) => waiting,
            _ => Vec::new(),
        };
        let bytes = keep.bytes + self.key.len();
        if keep.ttl_ms > 0 && max_entries > 0 && bytes <= max_bytes {
            inner.make_room(bytes, max_entries, max_bytes);
            let until = now_ms.saturating_add(keep.ttl_ms);
            inner.order.push_back((Arc::clone(&self.key), until));
            inner.bytes += bytes;
            inner.entries.insert(Arc::clone(&self.key), Entry::Known { answer: Arc::clone(answer), until, bytes });
        }
        drop(inner);
        for one in waiting {
            // The request may have ended meanwhile.
            let _ = one.send(Turn::Answer(Arc::clone(answer)));
        }
    }

    /// The first of those that wait; without any, nobody asks for the key any more.
    fn next(&self) -> Option<oneshot::Sender<Turn<T>>> {
        let mut inner = self.remembered.lock();
        let waiting = match inner.entries.get_mut(&self.key) {
            Some(Entry::Asked(waiting)) => waiting,
            _ => return None,
        };
        if waiting.is_empty() {
            inner.entries.remove(&self.key);
            return None;
        }
        Some(waiting.remove(0))
    }
}

impl<T> Drop for Asking<T> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        loop {
            let Some(next) = self.next() else { return };
            let turn = Self { remembered: Arc::clone(&self.remembered), key: Arc::clone(&self.key), done: false };
            match next.send(Turn::Ask(turn)) {
                Ok(()) => return,
                // The request has ended: the turn comes back, and goes to the next one.
                Err(Turn::Ask(mut turn)) => turn.done = true,
                Err(Turn::Answer(_)) => return,
            }
        }
    }
}

impl<T> std::fmt::Debug for Remembered<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembered").field("max_entries", &self.max_entries).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Keep, Remembered};
    use std::future::{Future, pending, ready};
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    const KEEP: Keep = Keep { ttl_ms: 100, bytes: 10 };

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn ask(remembered: &Arc<Remembered<u32>>, key: &str, now: u64, answer: u32) -> u32 {
        let asked = pin!(remembered.get(key.as_bytes(), now, || ready((answer, KEEP))));
        match poll(asked) {
            Poll::Ready(answer) => *answer,
            Poll::Pending => panic!("nobody else asks"),
        }
    }

    #[test]
    fn answers_last_for_their_time_and_the_oldest_make_room() {
        let remembered = Arc::new(Remembered::new(3, 1000));
        assert_eq!((ask(&remembered, "a", 0, 1), ask(&remembered, "a", 99, 2)), (1, 1));
        assert_eq!((ask(&remembered, "a", 100, 3), ask(&remembered, "b", 100, 4)), (3, 4));
        for (number, key) in ["c", "d", "e"].into_iter().enumerate() {
            ask(&remembered, key, 101, number as u32);
        }
        assert_eq!((remembered.len(), ask(&remembered, "a", 102, 9), ask(&remembered, "e", 102, 9)), (3, 9, 2));
        // Bytes are counted with those of keys.
        let small = Arc::new(Remembered::new(100, 25));
        for key in ["a", "b", "c"] {
            ask(&small, key, 0, 1);
        }
        assert_eq!((small.len(), ask(&small, "b", 0, 2), ask(&small, "a", 0, 2)), (2, 1, 2));
        ask(&small, "a key that is longer than all", 0, 1);
        assert_eq!(small.len(), 2);
    }

    #[test]
    fn one_question_at_a_time_and_the_next_asks_when_the_first_goes() {
        let remembered = Arc::new(Remembered::<u32>::new(10, 1000));
        let mut first = Box::pin(remembered.get(b"a", 0, pending));
        assert!(poll(first.as_mut()).is_pending());
        let mut gone = Box::pin(remembered.get(b"a", 0, pending));
        let mut told = Box::pin(remembered.get(b"a", 0, || ready((2, KEEP))));
        let mut waits = Box::pin(remembered.get(b"a", 0, || ready((9, KEEP))));
        assert!(
            poll(gone.as_mut()).is_pending() && poll(told.as_mut()).is_pending() && poll(waits.as_mut()).is_pending()
        );
        drop(gone);
        drop(first);
        assert!(matches!(poll(told.as_mut()), Poll::Ready(answer) if *answer == 2));
        assert!(matches!(poll(waits.as_mut()), Poll::Ready(answer) if *answer == 2));
        assert_eq!(ask(&remembered, "a", 50, 3), 2);
    }

    #[test]
    fn a_turn_that_reaches_one_who_goes_at_once_is_not_lost() {
        let remembered = Arc::new(Remembered::<u32>::new(10, 1000));
        let mut first = Box::pin(remembered.get(b"a", 0, pending));
        assert!(poll(first.as_mut()).is_pending());
        let mut second = Box::pin(remembered.get(b"a", 0, pending));
        assert!(poll(second.as_mut()).is_pending());
        drop(first);
        // The second one has the turn, and has not been polled since.
        drop(second);
        assert_eq!(ask(&remembered, "a", 0, 5), 5);
    }
}
