//! The schemas of resources and plugins, for the APIs.

use weir_admin::{PluginSchema, Schemas};
use weir_config::PluginCatalog;
use weir_config::catalog::APISIX_DEFAULT_PLUGINS;

use crate::source::rules::chosen_plugins;
use crate::source::scripts::definitions;

/// Plugins that authenticate by others, and so have no data of consumers of their own.
const BY_OTHERS: [&str; 1] = ["multi-auth"];

/// The schemas of all resources, and of the plugins enabled by the setting `plugins`. Plugins of APISIX that are not
/// supported yet are listed by name only.
pub(crate) fn all(chosen: &[String]) -> Schemas {
    let chosen = chosen_plugins(chosen);
    let names = chosen.names();
    let has = |name: &str| definitions().iter().any(|definition| definition.name() == name);
    let plugins =
        definitions().iter().filter(|definition| names.contains(&definition.name())).map(|definition| PluginSchema {
            name: definition.name(),
            priority: definition.priority(),
            auth: definition.is_auth() || BY_OTHERS.contains(&definition.name()),
            streams: definition.is_for_streams(),
            requests: definition.is_for_requests(),
            supported: true,
            schema: definition.schema().to_value(),
            consumer_schema: definition.consumer_schema().map(|schema| schema.to_value()),
            metadata_schema: definition.metadata_schema().map(|schema| schema.to_value()),
            doc: definition.doc(),
            example: definition.example(),
        });
    let known = APISIX_DEFAULT_PLUGINS.iter().filter(|(name, _)| chosen.is_wanted(name) && !has(name));
    // None of these authenticates by data of consumers.
    let unsupported = known.map(|(name, priority)| PluginSchema::unsupported(name, *priority, false));
    Schemas::new(plugins.chain(unsupported).collect())
}
