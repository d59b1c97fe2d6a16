//! Programs: scripts that are evaluated together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::machine::{Entry, Machine};

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its name in messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The budget of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest time of a call.
    pub time: Duration,
    /// Most bytes of memory of an interpreter.
    pub memory: usize,
}

/// Scripts that are evaluated together, in the order in which they stand. What they leave in global variables stays for the
/// next call on the same thread.
pub struct Program {
    /// Sets it apart from all others.
    pub(crate) number: u64,
    pub(crate) scripts: Vec<Script>,
    pub(crate) limits: Limits,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.scripts.iter().map(|script| script.name.as_str()).collect();
        f.debug_struct("Program").field("scripts", &names).finish_non_exhaustive()
    }
}

impl Program {
    /// A program with middleware or functions of these global names.
    ///
    /// # Errors
    /// A script cannot be evaluated within the limits, or a name is nothing of the kind.
    pub fn new(scripts: Vec<Script>, entry: Entry, names: &[String], limits: Limits) -> Result<Arc<Self>, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let program = Self { number: NEXT.fetch_add(1, Relaxed), scripts, limits };
        let machine = Machine::new(&program)?;
        for name in names {
            machine.check(entry, name)?;
        }
        Ok(Arc::new(program))
    }
}
