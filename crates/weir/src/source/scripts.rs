//! Settings of scripts, for the whole process, and people's own plugins.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::anyhow;
use weir_config::Settings;
use weir_config::settings::ScriptPermission;
use weir_plugin::host::Definition;
use weir_script::{Allowed, Options};

use crate::failure::Failure;

/// Plugins of the gateway, and those in the folders of `scripts.folders`.
static DEFINITIONS: OnceLock<Vec<&'static dyn Definition>> = OnceLock::new();

/// Sets limits and permissions of scripts, before the first one is compiled, and reads people's own plugins. Where a plugin
/// of the gateway has the name of one, the gateway's is meant.
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
    let known = weir_plugins::registry::definitions();
    let own = own.into_iter().filter(|own| known.iter().all(|known| known.name() != own.name()));
    // The settings of a process are read once.
    let _ = DEFINITIONS.set(known.iter().copied().chain(own).collect());
    Ok(())
}

/// Every plugin of APISIX's family.
pub(crate) fn definitions() -> &'static [&'static dyn Definition] {
    DEFINITIONS.get().map_or_else(weir_plugins::registry::definitions, Vec::as_slice)
}
