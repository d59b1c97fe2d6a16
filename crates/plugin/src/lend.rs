//! Lending of an exchange to code that cannot hold a reference to it, such as functions of an interpreter.
//!
//! While an exchange is lent, it lies in a place of its thread, where functions find it without having been given it;
//! what stands in its own place meanwhile is empty. It goes back when the work has ended, also by a panic.

use std::cell::{Cell, RefCell};
use std::mem::swap;

use crate::context::{HookCxMut, RequestCx, ResponseCx};
use crate::exchange::Exchange;

thread_local! {
    static PLACE: RefCell<Exchange> = RefCell::default();
    static IS_LENT: Cell<bool> = const { Cell::new(false) };
}

/// An exchange that is lent.
#[derive(Debug)]
pub struct Lent<'a>(&'a mut Exchange);

impl Lent<'_> {
    /// The exchange as request hooks have it.
    pub fn as_request(&mut self) -> RequestCx<'_> {
        RequestCx(self.0)
    }

    /// The exchange as response hooks have it.
    pub fn as_response(&mut self) -> ResponseCx<'_> {
        ResponseCx(self.0)
    }
}

/// Lends the exchange of a hook for as long as `work` takes.
pub fn lend<R>(cx: &mut impl HookCxMut, work: impl FnOnce() -> R) -> R {
    let _back = GiveBack::of(cx.exchange_mut());
    work()
}

/// Looks at the exchange that is lent in this thread; `None` if there is none, or if it is being looked at.
pub fn lent<R>(look: impl FnOnce(&mut Lent<'_>) -> R) -> Option<R> {
    if !IS_LENT.get() {
        return None;
    }
    PLACE.with(|place| place.try_borrow_mut().ok().map(|mut exchange| look(&mut Lent(&mut exchange))))
}

/// Gives the exchange back when dropped.
struct GiveBack<'a> {
    owner: &'a mut Exchange,
    was_lent: bool,
}

impl<'a> GiveBack<'a> {
    fn of(owner: &'a mut Exchange) -> Self {
        PLACE.with_borrow_mut(|place| swap(place, owner));
        Self { owner, was_lent: IS_LENT.replace(true) }
    }
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        IS_LENT.set(self.was_lent);
        PLACE.with_borrow_mut(|place| swap(place, self.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::{lend, lent};
    use crate::RequestCx;
    use crate::exchange::Exchange;

    #[test]
    fn an_exchange_comes_back_however_the_work_ends() {
        let mut exchange = Exchange::default();
        let id = |text: &[u8]| lent(|exchange| exchange.as_request().set_request_id(text));
        assert_eq!(id(b"nobody's"), None);
        assert_eq!(lend(&mut RequestCx(&mut exchange), || id(b"one")), Some(()));
        assert_eq!(exchange.own_id, b"one");
        let panics = std::panic::AssertUnwindSafe(|| {
            lend(&mut RequestCx(&mut exchange), || {
                id(b"two");
                panic!("this work panics");
            });
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(exchange.own_id, b"two");
        assert_eq!(id(b"nobody's"), None);
    }
}
