//! The schemas of resources and of the plugins that there are, for the APIs.

use weir_admin::{PluginSchema, Schemas};
use weir_config::PluginCatalog;
use weir_plugins::registry::definitions;

use crate::rules::chosen_plugins;

/// Those of all resources, and of the plugins that the setting `plugins` leaves.
pub(crate) fn all(chosen: &[String]) -> Schemas {
    let chosen = chosen_plugins(chosen);
    let names = chosen.names();
    let plugins =
        definitions().iter().filter(|definition| names.contains(&definition.name())).map(|definition| PluginSchema {
            name: definition.name(),
            priority: definition.priority(),
            auth: definition.is_auth(),
            schema: definition.schema().to_value(),
            consumer_schema: definition.consumer_schema().map(|schema| schema.to_value()),
            metadata_schema: definition.metadata_schema().map(|schema| schema.to_value()),
        });
    Schemas::new(plugins.collect())
}
