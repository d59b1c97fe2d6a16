//! State that a plugin has once for each worker: connections, states of scripts, leases.
//!
//! A worker makes the state when it first asks for it, and nobody else ever sees it, so it needs no lock. Kept in the
//! [`StateRegistry`](crate::StateRegistry), a slot outlives changes of the configuration that leave the instance's own
//! as it is; once no configuration has the slot any more, each worker drops its state within [`SWEEP`].

#![allow(
    clippy::disallowed_types,
    reason = "no worker takes the lock: slots are made and dropped off the path of a request"
)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Interval at which a worker looks for states whose slots have gone.
const SWEEP: Duration = Duration::from_secs(1);

/// Numbers of slots that have gone, to be given again: so numbers stay dense.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The number that no slot has had yet.
static NEXT: Mutex<usize> = Mutex::new(0);

thread_local! {
    /// The states of this thread, by number of their slots.
    static STATES: RefCell<Vec<Option<Kept>>> = const { RefCell::new(Vec::new()) };
    static SWEEPS: Cell<bool> = const { Cell::new(false) };
}

/// A state, and the slot that it belongs to: another one may have its number by now.
struct Kept {
    slot: Weak<Number>,
    state: Rc<dyn Any>,
}

/// The place of one state in every worker.
pub struct Slot<T> {
    number: Arc<Number>,
    state: PhantomData<fn() -> T>,
}

/// The number of a slot, free again when it is dropped.
#[derive(Debug)]
struct Number(usize);

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.fmt(f)
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let number = free.unwrap_or_else(|| {
            let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        });
        Self { number: Arc::new(Number(number)), state: PhantomData }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

impl<T: 'static> Slot<T> {
    /// This worker's state, made by `start` when there is none.
    pub fn get_or_start(&self, start: impl FnOnce() -> T) -> Rc<T> {
        match self.get() {
            Some(state) => state,
            None => self.start(start),
        }
    }

    /// This worker's state, where it has one.
    #[must_use]
    pub fn get(&self) -> Option<Rc<T>> {
        let state = STATES.with_borrow(|states| {
            let kept = states.get(self.number.0)?.as_ref()?;
            std::ptr::eq(kept.slot.as_ptr(), Arc::as_ptr(&self.number)).then(|| Rc::clone(&kept.state))
        });
        state?.downcast().ok()
    }

    #[cold]
    fn start(&self, start: impl FnOnce() -> T) -> Rc<T> {
        self.put(start())
    }

    /// Puts a state in the place of this worker's.
    pub fn put(&self, state: T) -> Rc<T> {
        let state = Rc::new(state);
        let kept = Kept { slot: Arc::downgrade(&self.number), state: Rc::clone(&state) as Rc<dyn Any> };
        let before = STATES.with_borrow_mut(|states| {
            if states.len() <= self.number.0 {
                states.resize_with(self.number.0 + 1, || None);
            }
            states.get_mut(self.number.0).and_then(|place| place.replace(kept))
        });
        drop(before);
        if !SWEEPS.replace(true) {
            weir_runtime::spawn(sweep());
        }
        state
    }
}

/// Drops states whose slots have gone, as long as there are states.
async fn sweep() {
    loop {
        weir_runtime::sleep(SWEEP).await;
        let (gone, left) = STATES.with_borrow_mut(|states| {
            let is_gone = |kept: &&mut Option<Kept>| kept.as_ref().is_some_and(|kept| kept.slot.strong_count() == 0);
            let gone: Vec<_> = states.iter_mut().filter(is_gone).map(Option::take).collect();
            (gone, states.iter().any(Option::is_some))
        });
        // Dropping a state may ask for another one.
        drop(gone);
        if !left {
            SWEEPS.set(false);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::{SWEEP, Slot};

    #[test]
    fn a_worker_has_one_state_for_each_slot() {
        let (one, other) = (Slot::<Cell<u32>>::default(), Slot::<Cell<u32>>::default());
        let visit = || {
            let started = Cell::new(0);
            let get = |slot: &Slot<Cell<u32>>| {
                slot.get_or_start(|| {
                    started.set(started.get() + 1);
                    Cell::new(0)
                })
            };
            get(&one).set(1);
            get(&other).set(2);
            assert_eq!((get(&one).get(), get(&other).get(), started.get()), (1, 2, 2));
        };
        // Each thread has its own.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| weir_runtime::block_on(async { visit() }).expect("a runtime"));
            }
        });
    }

    #[test]
    fn a_state_goes_with_its_slot() {
        let done = weir_runtime::block_on(async {
            let alive = Rc::new(());
            let slot = Slot::<Rc<()>>::default();
            drop(slot.get_or_start(|| Rc::clone(&alive)));
            assert_eq!(Rc::strong_count(&alive), 2);
            drop(slot);
            // A slot that takes the number over has a state of its own.
            let next = Slot::<Rc<()>>::default();
            assert!(next.get().is_none());
            weir_runtime::timeout(SWEEP * 3, async {
                while Rc::strong_count(&alive) > 1 {
                    weir_runtime::sleep(SWEEP / 20).await;
                }
            })
            .await
            .expect("the state is dropped");
        });
        done.expect("a runtime");
    }
}
