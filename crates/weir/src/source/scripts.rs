//! Settings of scripts and filters, for the whole process, and people's own plugins.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::anyhow;
use weir_config::Settings;
use weir_config::settings::{ScriptPermission, WasmRequestPhase};
use weir_plugin::host::Definition;
use weir_plugins::WasmFilter;
use weir_script::{Allowed, Options};
use weir_wasm::RequestPhase;

use crate::failure::Failure;
use crate::process::runner;

/// Plugins of the gateway, those in the folders of `scripts.folders`, and the filters of `wasm.plugins`.
static DEFINITIONS: OnceLock<Vec<&'static dyn Definition>> = OnceLock::new();

/// Sets limits and permissions of scripts and filters, before the first one is compiled, and reads people's own plugins.
/// Where a plugin of the gateway has the name of one, the gateway's is meant.
pub(crate) fn configure(settings: &Settings) -> Result<(), Failure> {
    let scripts = &settings.scripts;
    let allows = |permission| scripts.allow.contains(&permission);
    let folders: Vec<PathBuf> = scripts.folders.iter().map(Into::into).collect();
    weir_script::configure(Options {
        instructions: u64::from(scripts.instructions),
        memory: scripts.memory.as_usize(),
        state_memory: scripts.state_memory.as_usize(),
        allowed: Allowed {
            environment: allows(ScriptPermission::Environment),
            files: allows(ScriptPermission::Files),
            processes: allows(ScriptPermission::Processes),
        },
        folders: folders.clone(),
    });
    let own = weir_plugins::own_plugins(&folders);
    let own = own.map_err(|error| anyhow!("cannot read the plugins of scripts.folders: {error}"))?;
    weir_plugins::set_runner(runner::socket(settings));
    let filters = filters(settings).map_err(|error| anyhow!("wasm.plugins: {error}"))?;
    let known = weir_plugins::registry::definitions();
    let own = own.into_iter().chain(filters).filter(|own| known.iter().all(|known| known.name() != own.name()));
    // The settings of a process are read once.
    let _ = DEFINITIONS.set(known.iter().copied().chain(own).collect());
    Ok(())
}

/// The filters in WebAssembly.
fn filters(settings: &Settings) -> Result<Vec<&'static dyn Definition>, String> {
    let wasm = &settings.wasm;
    weir_wasm::configure(weir_wasm::Options {
        instructions: u64::from(wasm.instructions),
        memory: wasm.memory.as_usize(),
    });
    let filter = |plugin: &weir_config::settings::WasmPlugin| WasmFilter {
        name: plugin.name.clone(),
        priority: plugin.priority,
        file: plugin.file.clone().into(),
        phase: match plugin.http_request_phase {
            WasmRequestPhase::Access => RequestPhase::Access,
            WasmRequestPhase::Rewrite => RequestPhase::Rewrite,
        },
    };
    weir_plugins::wasm_plugins(wasm.plugins.iter().map(filter).collect())
}

/// Every plugin of APISIX's family.
pub(crate) fn definitions() -> &'static [&'static dyn Definition] {
    DEFINITIONS.get().map_or_else(weir_plugins::registry::definitions, Vec::as_slice)
}
