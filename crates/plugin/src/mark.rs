//! What a plugin leaves for itself on an exchange, from one phase to the next.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells what an instance of a plugin left on an exchange from what others did: no two instances have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// A mark that nobody has; made once, when an instance is built.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// State of plugins for one response body, such as a compressor.
#[derive(Default)]
pub(crate) struct States(pub(crate) Vec<(Mark, Box<dyn Any>)>);

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(mark, _)| mark)).finish()
    }
}

impl States {
    pub(crate) fn put(&mut self, mark: Mark, state: Box<dyn Any>) {
        self.0.retain(|(other, _)| *other != mark);
        self.0.push((mark, state));
    }

    pub(crate) fn peek<T: Any>(&self, mark: Mark) -> Option<&T> {
        self.0.iter().find(|(other, _)| *other == mark)?.1.downcast_ref()
    }

    pub(crate) fn get<T: Any>(&mut self, mark: Mark) -> Option<&mut T> {
        self.0.iter_mut().find(|(other, _)| *other == mark)?.1.downcast_mut()
    }
}

/// Two numbers that an instance keeps from one phase of an exchange to the next.
pub type Note = [u64; 2];

/// The notes of an exchange.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<(Mark, Note)>);

impl Notes {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn set(&mut self, mark: Mark, note: Note) {
        match self.0.iter_mut().find(|(other, _)| *other == mark) {
            Some((_, old)) => *old = note,
            None => self.0.push((mark, note)),
        }
    }

    pub(crate) fn get(&self, mark: Mark) -> Option<Note> {
        self.0.iter().find(|(other, _)| *other == mark).map(|(_, note)| *note)
    }
}

/// Something of which an exchange may take a part for as long as it lasts, such as places for requests under way.
pub trait Hold: Send + Sync + 'static {
    /// Takes back what [`RequestCx::hold`](crate::RequestCx::hold) took with this note. Called once for each, when the
    /// exchange is over, however it ends: also when its task is dropped or panics.
    fn release(&self, note: Note);
}

/// What an exchange holds.
#[derive(Default)]
pub(crate) struct Holds(Vec<(Arc<dyn Hold>, Note)>);

impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, note)| note)).finish()
    }
}

impl Holds {
    pub(crate) fn add(&mut self, what: Arc<dyn Hold>, note: Note) {
        self.0.push((what, note));
    }

    pub(crate) fn release(&mut self) {
        while let Some((what, note)) = self.0.pop() {
            what.release(note);
        }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::{Hold, Note};
    use crate::{Exchange, RequestCx};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[derive(Default)]
    struct Taken(AtomicU64);

    impl Hold for Taken {
        fn release(&self, [amount, _]: Note) {
            self.0.fetch_sub(amount, Relaxed);
        }
    }

    impl Taken {
        fn take(self: &Arc<Self>, exchange: &mut Exchange, amount: u64) {
            self.0.fetch_add(amount, Relaxed);
            RequestCx(exchange).hold(Arc::clone(self) as Arc<dyn Hold>, [amount, 0]);
        }

        fn left(&self) -> u64 {
            self.0.load(Relaxed)
        }
    }

    #[test]
    fn what_an_exchange_holds_is_given_back_once_however_it_ends() {
        let taken = Arc::<Taken>::default();
        taken.0.store(100, Relaxed);
        let mut exchange = Exchange::default();
        let ends: [fn(&mut Exchange); 3] = [Exchange::end, Exchange::reset, |x| drop(std::mem::take(x))];
        for end in ends {
            taken.take(&mut exchange, 1);
            taken.take(&mut exchange, 10);
            assert_eq!(taken.left(), 111);
            end(&mut exchange);
            assert_eq!(taken.left(), 100);
            end(&mut exchange);
            assert_eq!(taken.left(), 100);
        }
        let task = Arc::clone(&taken);
        let panicked = std::panic::catch_unwind(move || {
            let mut exchange = Exchange::default();
            task.take(&mut exchange, 5);
            assert_eq!(task.left(), 0, "this task panics");
        });
        assert!(panicked.is_err());
        assert_eq!(taken.left(), 100);
    }
}
