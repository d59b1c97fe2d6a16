//! Memory budget for compiling a configuration, charged before an object is built.
//!
//! A few characters may demand megabytes (`\w{1000}`, weights of a million). The compiler of a part of a
//! configuration sets the memory that it may take ([`metered`]), and builders of such objects charge it first
//! ([`spend`]). Both run on the same thread but far apart, and the code between them, such as the plugins, passes no
//! budget on.

use std::cell::Cell;

thread_local! {
    /// Bytes left and bytes spent of the innermost budget; `None` if nothing is metered.
    static BUDGET: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// Error for an object that is not built because it would be too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it takes some {} compiled, and {} are left of limits.compiled_size", size(*.needed), size(*.left))]
pub struct TooLarge {
    /// Estimated size of the object in bytes.
    pub needed: u64,
    /// Bytes that were left.
    pub left: u64,
}

/// Runs `work` with a budget of `bytes`, independent of any outer budget. Returns its output and the number of bytes
/// spent.
pub fn metered<T>(bytes: u64, work: impl FnOnce() -> T) -> (T, u64) {
    /// Restores the outer budget, also after a panic.
    struct Around(Option<(u64, u64)>);
    impl Drop for Around {
        fn drop(&mut self) {
            BUDGET.set(self.0);
        }
    }
    let _around = Around(BUDGET.replace(Some((bytes, 0))));
    let done = work();
    (done, spent())
}

/// Charges the budget for an object that is about to be built. Without a budget nothing is counted.
///
/// # Errors
/// Fewer bytes are left; then nothing is charged.
pub fn spend(bytes: u64) -> Result<(), TooLarge> {
    let Some((left, spent)) = BUDGET.get() else { return Ok(()) };
    let rest = left.checked_sub(bytes).ok_or(TooLarge { needed: bytes, left })?;
    BUDGET.set(Some((rest, spent.saturating_add(bytes))));
    Ok(())
}

/// Runs `work` within the current budget, or without one. Returns its output and the number of bytes it spent.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    if BUDGET.get().is_none() {
        return metered(u64::MAX, work);
    }
    let before = spent();
    let done = work();
    (done, spent().saturating_sub(before))
}

/// Bytes spent of the innermost budget.
pub fn spent() -> u64 {
    BUDGET.get().map_or(0, |(_, spent)| spent)
}

/// Number of bytes in a form for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x2800 => format!("{bytes} bytes"),
        0x2800..0xa0_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::{TooLarge, counted, metered, spend, spent};

    #[test]
    fn budgets_hold_for_what_is_within() {
        assert_eq!((spend(u64::MAX), spent()), (Ok(()), 0), "nothing is counted outside");
        let (inner, outer) = metered(100, || {
            assert_eq!(spend(60), Ok(()));
            assert_eq!(spend(50), Err(TooLarge { needed: 50, left: 40 }));
            let ((), inner) = metered(1000, || assert_eq!(spend(500), Ok(())));
            assert_eq!((spend(40), spent()), (Ok(()), 100));
            inner
        });
        assert_eq!((inner, outer), (500, 100));
        assert_eq!(counted(|| spend(70)), (Ok(()), 70), "bytes are counted without a budget");
        let (within, all) = metered(100, || (spend(10), counted(|| spend(20)), counted(|| spend(80))));
        assert_eq!(within.1, (Ok(()), 20));
        assert_eq!((within.2, all), ((Err(TooLarge { needed: 80, left: 70 }), 0), 30));
        let broken = std::panic::catch_unwind(|| metered(1, || panic!("in the middle")));
        assert!(broken.is_err() && spend(2).is_ok(), "a panic ends its budget");
    }

    #[test]
    fn sizes_are_printed_with_units() {
        let error = TooLarge { needed: 3 << 30, left: 20 << 10 };
        assert_eq!(error.to_string(), "it takes some 3072 MiB compiled, and 20 KiB are left of limits.compiled_size");
    }
}
