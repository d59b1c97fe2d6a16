//! The call that runs in this thread: its phase, its budget, and the answer that it makes.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use mlua::{Error, Result, VmState};

use crate::hook::{Hook, Identify};
use crate::options::options;

/// Instructions between two looks at the budget.
pub(crate) const STEP: u32 = 1000;

/// Longest time for which a call runs without waiting. Instructions are the bound; this one is for those that take long.
const LONGEST: Duration = Duration::from_secs(1);

/// Most bytes of a body that a script prints.
const MOST_OUTPUT: usize = 16 << 20;

/// State of a call. It is kept while the call waits.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) hook: Hook,
    /// Reader of the consumer's identity, where it is not the name of the consumer.
    pub(crate) identify: Option<Identify>,
    /// Instructions that are left.
    pub(crate) left: u64,
    /// The end of the time that it may run without waiting; set when it first spends instructions.
    pub(crate) until: Option<Instant>,
    /// True once the call has ended itself with an answer.
    pub(crate) exits: bool,
    /// Status of the answer; 0: the script has set none.
    pub(crate) status: u16,
    /// Body of the answer.
    pub(crate) output: Vec<u8>,
    /// The piece of a body that the call changes.
    pub(crate) piece: Vec<u8>,
    /// True with the last piece of a body.
    pub(crate) is_last: bool,
}

thread_local! {
    static CALL: RefCell<Call> = RefCell::new(Call::new(Hook::Load));
    /// True once the budget of the call is spent.
    static SPENT: Cell<bool> = const { Cell::new(false) };
}

impl Call {
    pub(crate) fn new(hook: Hook) -> Self {
        let left = options().instructions;
        let (identify, exits, status, is_last) = (None, false, 0, false);
        Self { hook, identify, left, until: None, exits, status, output: Vec::new(), piece: Vec::new(), is_last }
    }

    /// Makes this the call of the thread; gives the one before.
    pub(crate) fn enter(mut self) -> Self {
        SPENT.set(false);
        self.until = None;
        CALL.replace(self)
    }

    /// Appends to the body of the answer.
    pub(crate) fn print(&mut self, text: &[u8]) -> Result<()> {
        if self.output.len() + text.len() > MOST_OUTPUT {
            return Err(Error::runtime("a script may print 16 MiB at most"));
        }
        self.output.extend_from_slice(text);
        Ok(())
    }
}

/// Looks at the call of this thread.
pub(crate) fn with<R>(look: impl FnOnce(&mut Call) -> R) -> R {
    CALL.with_borrow_mut(look)
}

/// The hook of the call that runs.
pub(crate) fn hook() -> Hook {
    with(|call| call.hook)
}

/// Spends instructions of the budget.
///
/// # Errors
/// The budget or the time is spent. The error ends the call, for [`is_ending`] stays true: nothing that catches errors
/// goes on.
pub(crate) fn spend(instructions: u64) -> Result<()> {
    #[allow(clippy::disallowed_methods, reason = "the worker's clock stands still while a script runs")]
    let now = Instant::now();
    let (is_over, is_late) = with(|call| {
        call.left = call.left.saturating_sub(instructions);
        (call.left == 0, now > *call.until.get_or_insert(now + LONGEST))
    });
    if !is_over && !is_late {
        return Ok(());
    }
    SPENT.set(true);
    if is_late {
        return Err(Error::runtime("the script has run for more than a second without waiting"));
    }
    let most = options().instructions;
    Err(Error::runtime(format!("the script has taken more than {most} instructions (scripts.instructions)")))
}

/// Spends instructions for something short, which does not look at the clock.
///
/// # Errors
/// As of [`spend`].
pub(crate) fn spend_few(instructions: u64) -> Result<()> {
    let is_over = with(|call| {
        call.left = call.left.saturating_sub(instructions);
        call.left == 0
    });
    if is_over || instructions > u64::from(STEP) { spend(0) } else { Ok(()) }
}

/// The hook of the interpreter, called after each [`STEP`] instructions.
pub(crate) fn count() -> Result<VmState> {
    spend(u64::from(STEP)).map(|()| VmState::Continue)
}

/// True if the call is to end: it has answered, or its budget is spent.
pub(crate) fn is_ending() -> bool {
    SPENT.get() || with(|call| call.exits)
}
