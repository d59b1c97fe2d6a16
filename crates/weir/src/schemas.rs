//! The schemas of resources and of the plugins that there are, for the APIs.

use weir_admin::{PluginSchema, Schemas};
use weir_plugins::registry::definitions;

/// All of them.
pub(crate) fn all() -> Schemas {
    let plugins = definitions().iter().map(|definition| PluginSchema {
        name: definition.name(),
        priority: definition.priority(),
        auth: definition.is_auth(),
        schema: definition.schema().to_value(),
        consumer_schema: definition.consumer_schema().map(|schema| schema.to_value()),
        metadata_schema: definition.metadata_schema().map(|schema| schema.to_value()),
    });
    Schemas::new(plugins.collect())
}
