//! Limits and permissions of scripts: settings of the whole process.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Settings of scripts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Instructions of the interpreter that one call may take.
    pub instructions: u64,
    /// Bytes by which one call may let the memory of its interpreter grow.
    pub memory: usize,
    /// Bytes that the interpreter of a worker may have in all.
    pub state_memory: usize,
    /// Things of the system that scripts may use.
    pub allowed: Allowed,
    /// Folders in which `require` finds modules.
    pub folders: Vec<PathBuf>,
}

/// Things of the system that scripts may use; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Environment variables: `os.getenv`.
    pub environment: bool,
    /// Files: `io`, `os.remove`, `os.rename`, `os.tmpname`, `loadfile`, `dofile`.
    pub files: bool,
    /// Programs: `os.execute`, `io.popen`.
    pub processes: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            instructions: 1_000_000,
            memory: 16 << 20,
            state_memory: 128 << 20,
            allowed: Allowed::default(),
            folders: Vec::new(),
        }
    }
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Sets the options of the process, before the first script is compiled. A second call has no effect.
pub fn configure(options: Options) {
    // The first one counts.
    let _ = OPTIONS.set(options);
}

/// The options in force.
pub(crate) fn options() -> &'static Options {
    OPTIONS.get_or_init(Options::default)
}
