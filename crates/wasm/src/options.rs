//! Limits of filters: settings of the whole process.

use std::sync::OnceLock;

/// Settings of filters.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Instructions that one call may take.
    pub instructions: u64,
    /// Bytes of memory that the machine of a filter may have in a worker.
    pub memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { instructions: 10_000_000, memory: 64 << 20 }
    }
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Sets the options of the process, before the first filter is started. A second call has no effect.
pub fn configure(options: Options) {
    // The first one counts.
    let _ = OPTIONS.set(options);
}

/// The options in force.
pub(crate) fn options() -> Options {
    *OPTIONS.get_or_init(Options::default)
}
