//! The JSON Schemas of resources and plugins, as the Admin API and the control API serve them.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use weir_config::load::schema_of;
use weir_config::schema::{fill_defaults, json_schema};
use weir_config::{Meta, ResourceKind};

/// Description of a plugin, from the binary.
#[derive(Clone, Debug)]
pub struct PluginSchema {
    /// Name.
    pub name: &'static str,
    /// Order among the plugins of a phase: high to low.
    pub priority: i32,
    /// True for an authentication plugin.
    pub auth: bool,
    /// True if it runs on stream routes.
    pub streams: bool,
    /// True if it runs for requests.
    pub requests: bool,
    /// False for a plugin of APISIX that is known by its name alone.
    pub supported: bool,
    /// The schema of its configuration.
    pub schema: Value,
    /// The schema of its configuration on a consumer, where that is another one.
    pub consumer_schema: Option<Value>,
    /// The schema of its `plugin_metadata`, where it has some.
    pub metadata_schema: Option<Value>,
    /// Description in Markdown; empty for a plugin that is not supported.
    pub doc: &'static str,
    /// An example configuration in YAML; empty for a plugin that is not supported.
    pub example: &'static str,
}

/// All schemas, made once.
#[derive(Debug)]
pub struct Schemas {
    /// By the names that paths use, in the singular: `route`.
    resources: Vec<(&'static str, Value)>,
    /// High priority first.
    plugins: Vec<PluginSchema>,
    /// The text about all plugins, once it was asked for.
    text: OnceLock<Bytes>,
}

/// Versions of plugins are not counted here; APISIX's are mostly this one.
const VERSION: f64 = 0.1;

/// The mark of a plugin that is known and not supported yet, in its description and in its schema: tools that do not know it
/// pass it over.
const UNSUPPORTED: &str = "x-weir-supported";

impl PluginSchema {
    /// A plugin of APISIX that is not supported yet: no configuration of it is taken.
    #[must_use]
    pub fn unsupported(name: &'static str, priority: i32, auth: bool) -> Self {
        let mut schema = json!({ "type": "object", "description": "not supported yet" });
        schema[UNSUPPORTED] = false.into();
        let consumer_schema = auth.then(|| schema.clone());
        Self {
            name,
            priority,
            auth,
            streams: false,
            requests: true,
            supported: false,
            schema,
            consumer_schema,
            metadata_schema: None,
            doc: "",
            example: "",
        }
    }
}

impl Schemas {
    /// The schemas of the resources and of these plugins.
    #[must_use]
    pub fn new(mut plugins: Vec<PluginSchema>) -> Self {
        let meta = json_schema::<Meta>().to_value();
        for plugin in &mut plugins {
            for schema in [Some(&mut plugin.schema), plugin.consumer_schema.as_mut()].into_iter().flatten() {
                // Every configuration of a plugin may have it.
                let properties = schema.as_object_mut().map(|s| s.entry("properties").or_insert_with(|| json!({})));
                if let Some(Value::Object(properties)) = properties {
                    properties.insert("_meta".into(), meta.clone());
                }
            }
        }
        plugins.sort_by_key(|plugin| std::cmp::Reverse(plugin.priority));
        Self { resources: resources(), plugins, text: OnceLock::new() }
    }

    /// The schema of a resource by its name in the singular: `route`, `plugin_config`.
    #[must_use]
    pub fn resource(&self, name: &str) -> Option<&Value> {
        self.resources.iter().find(|(known, _)| *known == name).map(|(_, schema)| schema)
    }

    /// The schemas of all resources.
    pub fn resources(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.resources.iter().map(|(name, schema)| (*name, schema))
    }

    /// A plugin.
    #[must_use]
    pub fn plugin(&self, name: &str) -> Option<&PluginSchema> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }

    /// All plugins, those of high priority first.
    #[must_use]
    pub fn plugins(&self) -> &[PluginSchema] {
        &self.plugins
    }

    /// Everything that is known of every plugin for requests, by name: the answer to `/apisix/admin/plugins?all=true`.
    #[must_use]
    pub fn all_plugins(&self) -> Value {
        described(self.plugins.iter().filter(|plugin| plugin.requests))
    }

    /// The same of every plugin for streams.
    #[must_use]
    pub fn stream_plugins(&self) -> Value {
        described(self.plugins.iter().filter(|plugin| plugin.streams))
    }

    /// The same as a text that all who ask share.
    pub(crate) fn all_plugins_text(&self) -> Bytes {
        self.text.get_or_init(|| Bytes::from(self.all_plugins().to_string() + "\n")).clone()
    }

    /// All schemas there are: the answer to `/v1/schema` of the control API.
    #[must_use]
    pub fn everything(&self) -> Value {
        let mut main: Map<String, Value> =
            self.resources.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
        main.insert("plugins".into(), plugins_schema());
        json!({ "main": main, "plugins": self.all_plugins(), "stream_plugins": self.stream_plugins() })
    }

    /// Puts the defaults of plugins into the `plugins` of a resource.
    pub fn complete_plugins(&self, resource: &mut Value) {
        let Some(Value::Object(plugins)) = resource.get_mut("plugins") else { return };
        for (name, conf) in plugins {
            if let Some(plugin) = self.plugin(name) {
                fill_defaults(&plugin.schema, conf);
                if let Value::Object(fields) = conf {
                    fields.entry("_meta").or_insert_with(|| json!({}));
                }
            }
        }
    }
}

impl PluginSchema {
    fn described(&self) -> Value {
        let mut described = json!({ "version": VERSION, "priority": self.priority, "schema": self.schema });
        if self.auth {
            described["type"] = "auth".into();
        }
        if !self.supported {
            described[UNSUPPORTED] = false.into();
        }
        for (name, schema) in [("consumer_schema", &self.consumer_schema), ("metadata_schema", &self.metadata_schema)] {
            if let Some(schema) = schema {
                described[name] = schema.clone();
            }
        }
        described
    }
}

fn resources() -> Vec<(&'static str, Value)> {
    let served = ResourceKind::ranked().iter().filter(|kind| kind.entry().has_schema);
    served.filter_map(|kind| Some((kind.entry().name, schema_of(*kind)?))).collect()
}

fn described<'a>(plugins: impl Iterator<Item = &'a PluginSchema>) -> Value {
    plugins.map(|plugin| (plugin.name.to_owned(), plugin.described())).collect::<Map<_, _>>().into()
}

/// The schema of the list of plugins, as `/apisix/admin/plugins/list` shows it.
fn plugins_schema() -> Value {
    json!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": { "name": { "type": "string", "minLength": 1 }, "stream": { "type": "boolean" } },
            "required": ["name"],
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PluginSchema, Schemas};

    fn plugin(name: &'static str, priority: i32) -> PluginSchema {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "default": 1 } } });
        PluginSchema {
            name,
            priority,
            auth: false,
            streams: false,
            requests: true,
            supported: true,
            schema,
            consumer_schema: None,
            metadata_schema: None,
            doc: "",
            example: "",
        }
    }

    #[test]
    fn schemas_are_told_by_name_and_all_at_once() {
        let auth = PluginSchema { auth: true, consumer_schema: Some(json!({ "type": "object" })), ..plugin("auth", 5) };
        let schemas = Schemas::new(vec![plugin("late", -1), auth, plugin("early", 10)]);
        let names: Vec<_> = schemas.plugins().iter().map(|plugin| plugin.name).collect();
        assert_eq!(names, ["early", "auth", "late"]);
        let everything = schemas.everything();
        for name in ["route", "service", "upstream", "consumer", "credential", "ssl", "plugins"] {
            assert!(everything["main"][name].is_object(), "{name}");
        }
        assert_eq!(everything["plugins"]["auth"]["type"], "auth");
        assert!(everything["plugins"]["auth"]["consumer_schema"]["properties"]["_meta"].is_object());
        assert!(everything["plugins"]["late"].get("type").is_none());
        assert!(schemas.resource("routes").is_none());
        let mut route = json!({ "plugins": { "late": {}, "early": { "a": 2 }, "other": {} } });
        schemas.complete_plugins(&mut route);
        assert_eq!(
            route,
            json!({ "plugins": { "late": { "a": 1, "_meta": {} }, "early": { "a": 2, "_meta": {} }, "other": {} } })
        );
    }
}
