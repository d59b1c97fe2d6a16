//! Sources of configuration: the gateway's own settings, the rules file with its watcher, resources and their secrets.

pub(crate) mod changes;
pub(crate) mod file_source;
pub(crate) mod findings;
pub(crate) mod live_text;
pub(crate) mod reload;
pub(crate) mod reload_requests;
pub(crate) mod resources;
pub(crate) mod rules;
pub(crate) mod rules_file;
pub(crate) mod scripts;
pub(crate) mod secret_managers;
pub(crate) mod secrets;
pub(crate) mod settings;
pub(crate) mod watch;
