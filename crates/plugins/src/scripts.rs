//! People's own functions in Lua and filters in WebAssembly, as plugins; `weir_script` and `weir_wasm` run them.

pub(crate) mod exit_transformer;
pub(crate) mod own;
pub(crate) mod serverless;
pub(crate) mod wasm;

use weir_plugin::Invalid;
use weir_script::ScriptError;

/// The finding for a text of a list that cannot be used.
fn invalid(list: &str, error: &ScriptError) -> Invalid {
    Invalid::new(format!("{list}[{}]", error.at), error.reason.clone())
}
