use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{GIB, KIB, MIB, Size};

/// Functions in Lua: see [scripts](scripts.md).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scripts {
    /// Instructions of the interpreter that one call may take; a call that takes more is ended, and its request answered
    /// with 500. A million take some milliseconds, in which the worker does nothing else.
    #[schemars(range(min = 1000, max = 1_000_000_000))]
    pub instructions: u32,
    /// Memory by which one call may let its interpreter grow.
    pub memory: Size<{ 64 * KIB }, { 4 * GIB }>,
    /// Memory of the interpreter of one worker in all. One that is full of what scripts keep gives way to a new one.
    pub state_memory: Size<{ 8 * MIB }, { 64 * GIB }>,
    /// Things of the system that scripts may use: `environment` (`os.getenv`), `files` (`io`, `os.remove`, `loadfile`, …)
    /// and `processes` (`os.execute`, `io.popen`). A script that waits for a file or a program stops its worker.
    pub allow: Vec<ScriptPermission>,
    /// Folders with modules for `require` (`a.b` is `a/b.lua` or `a/b/init.lua`). Files in their `apisix/plugins` are
    /// plugins, by the name of the file.
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub folders: Vec<String>,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            instructions: 1_000_000,
            memory: Size::constant(16 * MIB),
            state_memory: Size::constant(128 * MIB),
            allow: Vec::new(),
            folders: Vec::new(),
        }
    }
}

/// A thing of the system that scripts may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScriptPermission {
    /// Environment variables.
    Environment,
    /// Files.
    Files,
    /// Programs.
    Processes,
}
