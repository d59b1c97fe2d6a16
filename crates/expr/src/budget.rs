//! The size of what is compiled from a configuration, counted before it is built.
//!
//! A few letters may ask for megabytes (`\w{1000}`, weights of a million). Whoever compiles a part of a configuration says
//! how much memory it may take ([`metered`]), and whoever builds such a thing asks first ([`spend`]). Both are on the same
//! thread, far apart: what lies between them, such as the plugins, passes nothing on.

use std::cell::Cell;

thread_local! {
    /// Bytes left and bytes spent of the innermost budget; none where nothing is counted.
    static BUDGET: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// A thing that is not built, because it would be too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it takes some {} compiled, and {} are left of limits.compiled_size", size(*.needed), size(*.left))]
pub struct TooLarge {
    /// The bytes it would take, estimated.
    pub needed: u64,
    /// The bytes there were.
    pub left: u64,
}

/// Does some work with a budget of so many bytes, whatever budget there is around it. Returns how many were spent.
pub fn metered<T>(bytes: u64, work: impl FnOnce() -> T) -> (T, u64) {
    /// Puts the budget around it back, also after a panic.
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

/// Takes bytes out of the budget, for a thing that is about to be built. Without a budget nothing is counted.
///
/// # Errors
/// There are not so many left; nothing is taken then.
pub fn spend(bytes: u64) -> Result<(), TooLarge> {
    let Some((left, spent)) = BUDGET.get() else { return Ok(()) };
    let rest = left.checked_sub(bytes).ok_or(TooLarge { needed: bytes, left })?;
    BUDGET.set(Some((rest, spent.saturating_add(bytes))));
    Ok(())
}

/// The bytes spent of the innermost budget.
pub fn spent() -> u64 {
    BUDGET.get().map_or(0, |(_, spent)| spent)
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x2800 => format!("{bytes} bytes"),
        0x2800..0xa0_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::{TooLarge, metered, spend, spent};

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
        let broken = std::panic::catch_unwind(|| metered(1, || panic!("in the middle")));
        assert!(broken.is_err() && spend(2).is_ok(), "a panic ends its budget");
    }

    #[test]
    fn sizes_are_told_in_words() {
        let error = TooLarge { needed: 3 << 30, left: 20 << 10 };
        assert_eq!(error.to_string(), "it takes some 3072 MiB compiled, and 20 KiB are left of limits.compiled_size");
    }
}
