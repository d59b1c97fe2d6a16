//! People's own filters in WebAssembly, as plugins with the configuration that APISIX gives them.

use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_config::{Code, Diagnostic, Node, Scope};
use weir_plugin::host::{Definition, Instance, Prepared};
use weir_plugin::{BuildCx, Compiled, Phases};
use weir_script::Services;
use weir_wasm::{Filter, RequestPhase, Wasm};

/// A filter of the settings.
#[derive(Debug, Clone)]
pub struct WasmFilter {
    /// The name of the plugin.
    pub name: String,
    /// Its place among other plugins.
    pub priority: i32,
    /// The file of the module.
    pub file: PathBuf,
    /// The phase in which it sees requests.
    pub phase: RequestPhase,
}

/// The configuration of a filter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Conf {
    /// The configuration that the filter receives: a text as it is, an object as JSON.
    conf: Given,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Given {
    Text(#[schemars(length(min = 1))] String),
    Object(#[schemars(extend("minProperties" = 1))] Map<String, Value>),
}

/// A filter as a plugin.
#[derive(Debug)]
struct FilterPlugin {
    filter: &'static Filter,
    priority: i32,
    file: PathBuf,
    phase: RequestPhase,
}

/// Compiles filters. They live as long as the process.
///
/// # Errors
/// A file that cannot be read or is no filter, with its path.
pub fn wasm_plugins(filters: Vec<WasmFilter>) -> Result<Vec<&'static dyn Definition>, String> {
    let mut found: Vec<&'static dyn Definition> = Vec::new();
    for WasmFilter { name, priority, file, phase } in filters {
        if found.iter().any(|other| other.name() == name) {
            return Err(format!("the name {name} is given twice"));
        }
        // One for each filter, once in the life of a process.
        let name: &'static str = Box::leak(name.into_boxed_str());
        let filter = load(name, &file).map_err(|reason| format!("{name}: {}: {reason}", file.display()))?;
        let filter = Box::leak(Box::new(filter));
        found.push(Box::leak(Box::new(FilterPlugin { filter, priority, file, phase })));
    }
    Ok(found)
}

fn load(name: &'static str, file: &Path) -> Result<Filter, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    Filter::load(name, &bytes)
}

impl Definition for FilterPlugin {
    fn name(&self) -> &'static str {
        self.filter.name()
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn phases(&self) -> Phases {
        Wasm::phases_of(self.filter, self.phase)
    }

    fn doc(&self) -> &'static str {
        "A filter in WebAssembly."
    }

    fn example(&self) -> &'static str {
        "conf: a text that the filter receives"
    }

    fn schema(&self) -> Schema {
        weir_config::schema::json_schema::<Conf>()
    }

    fn check(&self, scope: Scope, conf: &Node) -> (Vec<Diagnostic>, Option<Prepared>) {
        if let Some(found) = super::out_of_place(self.filter.name(), scope, conf) {
            return (vec![found], None);
        }
        let text = match weir_config::schema::read::<Conf>(conf) {
            Ok(Conf { conf: Given::Text(text) }) => text,
            Ok(Conf { conf: Given::Object(object) }) => Value::Object(object).to_string(),
            Err(found) => return (found, None),
        };
        if let Err(reason) = self.filter.try_configuration(&text) {
            let text = format!("{}: {reason}", self.file.display()).into();
            return (vec![Diagnostic::error(conf.mark_of("conf"), "conf", Code::PluginRule { text })], None);
        }
        (Vec::new(), Some(self.prepared(text)))
    }

    fn build(&self, prepared: Prepared, cx: &BuildCx<'_>) -> Result<Instance, Diagnostic> {
        prepared.build(cx).map_err(|fault| Diagnostic::error(cx.conf.mark, fault.path, *fault.code))
    }
}

impl FilterPlugin {
    fn prepared(&self, text: String) -> Prepared {
        let (filter, phase) = (self.filter, self.phase);
        let size = text.len() as u64;
        let compiled = Compiled::build(move |build| {
            let services = Services::build([&*text], build)?;
            Ok(Wasm::new(filter, &text, phase, services))
        });
        Prepared { plugin: self.filter.name(), compiled, size, reads_body: false }
    }
}
