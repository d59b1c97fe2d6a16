//! People's own functions in Lua and filters in WebAssembly, as plugins; `weir_script` and `weir_wasm` run them.

pub(crate) mod exit_transformer;
pub(crate) mod own;
pub(crate) mod serverless;
pub(crate) mod wasm;

use weir_config::{Code, Diagnostic, Node, Scope};
use weir_plugin::Invalid;
use weir_script::ScriptError;

/// The finding for a configuration of people's own plugin where such a plugin does not run.
fn out_of_place(name: &str, scope: Scope, conf: &Node) -> Option<Diagnostic> {
    match scope {
        Scope::Metadata => Some(Diagnostic::warning(conf.mark, "", Code::NoMetadata)),
        Scope::StreamRoute => {
            let what = format!("the plugin {name}");
            Some(Diagnostic::error(conf.mark, "", Code::NotOnStreams { what }))
        }
        Scope::Consumer | Scope::Route | Scope::GlobalRule => None,
    }
}

/// The finding for a text of a list that cannot be used.
fn invalid(list: &str, error: &ScriptError) -> Invalid {
    Invalid::new(format!("{list}[{}]", error.at), error.reason.clone())
}
