use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Vars;
use crate::node::{COMPILED, Kind, Node, PLUGIN_CONF, UNRESOLVED};

/// Plugins by name, in the order they were written (which decides nothing: priorities do).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plugins(pub Vec<(Arc<str>, PluginConf)>);

/// The configuration of one plugin in one place.
#[derive(Clone, Debug)]
pub struct PluginConf {
    /// The plugin's own configuration, a mapping without `_meta`; [`Node::parse_into`] gives it a type.
    pub conf: Node,
    /// The contents of `_meta`, if present.
    pub meta: Option<Box<Meta>>,
    /// Number of the compiled configuration in [`CompiledConfs`](crate::CompiledConfs); 0: there is none.
    pub compiled: i64,
}

/// The number of the compiled configuration says nothing about the configuration.
impl PartialEq for PluginConf {
    fn eq(&self, other: &Self) -> bool {
        self.conf == other.conf && self.meta == other.meta
    }
}

/// `_meta`, which every plugin configuration may have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Switches the plugin off here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable: bool,
    /// Goes before the plugin's own priority: higher runs earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The plugin runs only for requests that meet these conditions, as they are when it first is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Vars>,
    /// Takes the place of the body when the plugin refuses a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_response: Option<ErrorResponse>,
    /// A text in Lua that returns a `function(conf, ctx)`, which runs before the plugin in each phase. See
    /// [scripts](scripts.md).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_function: Option<String>,
    /// True while a reference in the configuration has no value.
    #[serde(skip)]
    is_unresolved: bool,
}

/// The body of a refusal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ErrorResponse {
    /// Sent as it is.
    Text(String),
    /// Sent as JSON.
    Json(Value),
}

impl PluginConf {
    /// True if the plugin is switched off here.
    pub fn is_disabled(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.disable)
    }

    /// True while a reference in it has no value: then the plugin cannot run, and what it is for is refused.
    pub fn is_unresolved(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.is_unresolved)
    }
}

impl Plugins {
    /// The configuration of a plugin.
    pub fn get(&self, name: &str) -> Option<&PluginConf> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, conf)| conf)
    }
}

/// A plugin's name, not copied where many resources have it: a million consumers have the same one.
fn shared_name(name: &str) -> Arc<str> {
    /// More than there are plugins.
    const MOST: usize = 1024;
    thread_local! {
        static NAMES: RefCell<HashSet<Arc<str>>> = RefCell::default();
    }
    NAMES.with_borrow_mut(|names| {
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        if names.len() < MOST {
            names.insert(Arc::clone(&name));
        }
        name
    })
}

impl Deref for Plugins {
    type Target = [(Arc<str>, PluginConf)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Plugins {
    type Item = &'a (Arc<str>, PluginConf);
    type IntoIter = std::slice::Iter<'a, (Arc<str>, PluginConf)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Serialize for Plugins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, conf)| (&**name, conf)))
    }
}

impl<'de> Deserialize<'de> for Plugins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PluginsVisitor;
        impl<'de> Visitor<'de> for PluginsVisitor {
            type Value = Plugins;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping from plugin names to their configurations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Plugins, A::Error> {
                let mut plugins = Vec::with_capacity(map.size_hint().unwrap_or(0).min(64));
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    plugins.push((shared_name(&name), map.next_value()?));
                }
                plugins.shrink_to_fit();
                Ok(Plugins(plugins))
            }
        }
        deserializer.deserialize_map(PluginsVisitor)
    }
}

impl JsonSchema for Plugins {
    fn schema_name() -> Cow<'static, str> {
        "Plugins".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let meta = generator.subschema_for::<Meta>();
        json_schema!({
            "type": "object",
            "additionalProperties": { "type": "object", "properties": { "_meta": meta } }
        })
    }
}

impl Serialize for PluginConf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.conf.as_map().unwrap_or_default() {
            map.serialize_entry(&*key.text, value)?;
        }
        if let Some(meta) = &self.meta {
            map.serialize_entry("_meta", meta)?;
        }
        map.end()
    }
}

/// A plugin's configuration keeps its positions, which serde's data model cannot carry. The deserializer of [`Node`]
/// recognises this type by name and hands over two values: the tree and the contents of `_meta`.
impl<'de> Deserialize<'de> for PluginConf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PluginConfVisitor;
        impl<'de> Visitor<'de> for PluginConfVisitor {
            type Value = PluginConf;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PluginConf, A::Error> {
                let missing = || A::Error::custom("a plugin configuration is read from a positioned tree only");
                let mut conf: Node = seq.next_element()?.ok_or_else(missing)?;
                let mut meta = seq.next_element::<Box<Meta>>()?.unwrap_or_default();
                if conf.is_null() {
                    conf.kind = Kind::Map(Vec::new());
                }
                conf.remove("_meta");
                meta.is_unresolved = conf.remove(UNRESOLVED).is_some();
                let compiled = match conf.remove(COMPILED) {
                    Some((_, Node { kind: Kind::Int(number), .. })) => number,
                    _ => 0,
                };
                if let Kind::Map(fields) = &mut conf.kind {
                    fields.shrink_to_fit();
                }
                Ok(PluginConf { conf, meta: Some(meta).filter(|meta| **meta != Meta::default()), compiled })
            }
        }
        deserializer.deserialize_tuple_struct(PLUGIN_CONF, 2, PluginConfVisitor)
    }
}

impl<'de> Deserialize<'de> for ErrorResponse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            value @ Value::Object(_) => Ok(Self::Json(value)),
            _ => Err(D::Error::custom("expected a text or a mapping")),
        }
    }
}

impl JsonSchema for ErrorResponse {
    fn schema_name() -> Cow<'static, str> {
        "ErrorResponse".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "object"] })
    }
}
