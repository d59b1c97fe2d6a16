//! People's own plugins: files in Lua in the form of APISIX's plugins.

use std::path::{Path, PathBuf};

use schemars::Schema;
use weir_config::{Code, Diagnostic, Node, Scope};
use weir_plugin::host::{Definition, Instance, Prepared};
use weir_plugin::{BuildCx, Compiled, Phases};
use weir_script::{Form, Hook, Module, Script};

/// The folder of plugins under one that `scripts.folders` names, as with APISIX's `extra_lua_path`.
const FOLDER: &str = "apisix/plugins";

/// A plugin in Lua.
#[derive(Debug)]
struct OwnPlugin {
    name: &'static str,
    path: PathBuf,
    text: String,
    /// Things that the plugin says of itself, or why it cannot be used: then its configurations are refused.
    module: Result<Module, String>,
}

/// Reads the plugins in these folders. They live as long as the process.
///
/// # Errors
/// A folder or a file that cannot be read. A folder without plugins, or that is not there, is no error.
pub fn own_plugins(folders: &[PathBuf]) -> Result<Vec<&'static dyn Definition>, String> {
    let mut found: Vec<&'static dyn Definition> = Vec::new();
    for folder in folders {
        let folder = folder.join(FOLDER);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{}: {error}", folder.display())),
        };
        let fault = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| fault(&folder, error))?.path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                files.push(path);
            }
        }
        files.sort_unstable();
        for path in files {
            let Some(name) = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
            if found.iter().any(|other| other.name() == name) {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(|error| fault(&path, error))?;
            let module = Module::read(&path.display().to_string(), &text);
            // One for each file, once in the life of a process.
            let name: &'static str = Box::leak(name.into_boxed_str());
            found.push(Box::leak(Box::new(OwnPlugin { name, path, text, module })));
        }
    }
    Ok(found)
}

impl Definition for OwnPlugin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        self.module.as_ref().map_or(0, |module| module.priority)
    }

    fn phases(&self) -> Phases {
        self.module.as_ref().map_or(Phases::NONE, |module| module.phases)
    }

    fn doc(&self) -> &'static str {
        "A plugin in Lua."
    }

    fn example(&self) -> &'static str {
        "{}"
    }

    fn schema(&self) -> Schema {
        let schema = self.module.as_ref().ok().map(|module| module.schema.clone());
        schema.and_then(|schema| schema.try_into().ok()).unwrap_or_default()
    }

    fn check(&self, scope: Scope, conf: &Node) -> (Vec<Diagnostic>, Option<Prepared>) {
        let fault = |text: String| {
            let text = format!("{}: {text}", self.path.display()).into();
            (vec![Diagnostic::error(conf.mark, "", Code::PluginRule { text })], None)
        };
        if let Some(found) = super::out_of_place(self.name, scope, conf) {
            return (vec![found], None);
        }
        if let Err(reason) = &self.module {
            return fault(reason.clone());
        }
        let texts = vec![(Hook::Load, vec![self.text.clone()])];
        let work = || Script::check(self.name, Form::Module, texts, conf.to_json().to_string());
        let (script, size) = weir_expr::counted(work);
        match script {
            Ok(script) => {
                let compiled = Compiled::build(move |build| script.build(build));
                (Vec::new(), Some(Prepared { plugin: self.name, compiled, size, reads_body: false }))
            }
            Err(error) => fault(error.reason),
        }
    }

    fn build(&self, prepared: Prepared, cx: &BuildCx<'_>) -> Result<Instance, Diagnostic> {
        prepared.build(cx).map_err(|fault| Diagnostic::error(cx.conf.mark, fault.path, *fault.code))
    }
}
