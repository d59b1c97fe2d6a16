//! State that an instance of a plugin keeps on an exchange, from one hook to the next.

pub(crate) mod values;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::context::{HookCx, HookCxMut};

/// Key of a value that an instance of a plugin keeps on each exchange: a number for the log phase, the piece of a body, or
/// a guard that gives something back.
///
/// The value is dropped when the exchange is over, however it ends: after the log phase, and also when its task is dropped
/// or panics. So what has to be given back belongs into the value's `Drop`; the log phase may be left out. A value
/// outlives the response for which it was put, where another response takes the place of that one. Memory for a value
/// stays with the exchange for the next one of its type: what a value allocates by itself does not.
pub struct PerRequest<T> {
    key: u64,
    of: PhantomData<fn() -> T>,
}

impl<T: Any> PerRequest<T> {
    /// A key of its own; made once, when an instance is built.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { key: NEXT.fetch_add(1, Relaxed), of: PhantomData }
    }

    /// Puts a value in the place of the one before.
    pub fn put(&self, cx: &mut impl HookCxMut, value: T) {
        cx.exchange_mut().states.put(self.key, value);
    }

    /// The value of this exchange.
    #[must_use]
    pub fn get<'c>(&self, cx: &'c impl HookCx) -> Option<&'c T> {
        cx.exchange().states.get(self.key)
    }

    /// The value of this exchange, to change it.
    #[must_use]
    pub fn get_mut<'c>(&self, cx: &'c mut impl HookCxMut) -> Option<&'c mut T> {
        cx.exchange_mut().states.get_mut(self.key)
    }

    /// Takes the value away.
    pub fn take(&self, cx: &mut impl HookCxMut) -> Option<T> {
        cx.exchange_mut().states.take(self.key)
    }
}

impl<T: Any> Default for PerRequest<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerRequest({})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::PerRequest;
    use crate::RequestCx;
    use crate::exchange::Exchange;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Gives back what it has taken.
    struct Guard(Arc<AtomicU64>, u64);

    impl Guard {
        fn new(taken: &Arc<AtomicU64>, amount: u64) -> Self {
            taken.fetch_add(amount, Relaxed);
            Self(Arc::clone(taken), amount)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_sub(self.1, Relaxed);
        }
    }

    #[test]
    fn values_are_dropped_once_however_an_exchange_ends() {
        let taken = Arc::new(AtomicU64::new(100));
        let (one, other) = (PerRequest::new(), PerRequest::new());
        let mut exchange = Exchange::default();
        let ends: [fn(&mut Exchange); 3] = [Exchange::end, Exchange::reset, |x| drop(std::mem::take(x))];
        for end in ends {
            one.put(&mut RequestCx(&mut exchange), Guard::new(&taken, 1));
            other.put(&mut RequestCx(&mut exchange), Guard::new(&taken, 10));
            assert_eq!(taken.load(Relaxed), 111);
            end(&mut exchange);
            assert_eq!(taken.load(Relaxed), 100);
            end(&mut exchange);
            assert_eq!(taken.load(Relaxed), 100);
        }
        let task = Arc::clone(&taken);
        let panicked = std::panic::catch_unwind(move || {
            let mut exchange = Exchange::default();
            one.put(&mut RequestCx(&mut exchange), Guard::new(&task, 5));
            assert_eq!(task.load(Relaxed), 0, "this task panics");
        });
        assert!(panicked.is_err());
        assert_eq!(taken.load(Relaxed), 100);
    }

    #[test]
    fn each_key_has_a_value_of_its_own() {
        let (number, text, same) = (PerRequest::<u64>::new(), PerRequest::<String>::new(), PerRequest::<u64>::new());
        let mut exchange = Exchange::default();
        let cx = &mut RequestCx(&mut exchange);
        for round in 0..3 {
            assert_eq!((number.get(cx), text.get(cx), same.get(cx)), (None, None, None), "round {round}");
            number.put(cx, 1);
            text.put(cx, "a".to_owned());
            same.put(cx, 2);
            number.put(cx, 3);
            if let Some(text) = text.get_mut(cx) {
                text.push('b');
            }
            assert_eq!(
                (number.get(cx), text.get(cx).map(String::as_str), same.get(cx)),
                (Some(&3), Some("ab"), Some(&2))
            );
            assert_eq!((same.take(cx), same.take(cx), number.get(cx)), (Some(2), None, Some(&3)));
            assert!(cx.0.states.spare_cells() <= 3, "cells are used again");
            cx.0.end();
        }
    }
}
