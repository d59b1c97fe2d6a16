use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{GIB, MIB, Size};

/// Filters in WebAssembly: see [filters](filters.md).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wasm {
    /// The filters, each of which is a plugin by its name.
    #[schemars(length(max = 256))]
    pub plugins: Vec<WasmPlugin>,
    /// Instructions that one call of a filter may take; a call that takes more is ended, and its request answered with
    /// 503. Ten million take some tens of milliseconds, in which the worker does nothing else.
    #[schemars(range(min = 10_000, max = 4_000_000_000u32))]
    pub instructions: u32,
    /// Memory of a filter in one worker.
    pub memory: Size<{ MIB }, { 4 * GIB }>,
}

impl Default for Wasm {
    fn default() -> Self {
        Self { plugins: Vec::new(), instructions: 10_000_000, memory: Size::constant(64 * MIB) }
    }
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WasmPlugin {
    /// The name of the plugin.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Its place among other plugins: higher ones come first.
    pub priority: i32,
    /// The file of the module.
    #[schemars(length(min = 1, max = 4096))]
    pub file: String,
    /// The phase in which it sees requests: `access`, or `rewrite`, which comes before the caller is known.
    #[serde(default)]
    pub http_request_phase: WasmRequestPhase,
}

/// A phase in which filters see requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WasmRequestPhase {
    /// When the caller is known.
    #[default]
    Access,
    /// Before the caller is known.
    Rewrite,
}
