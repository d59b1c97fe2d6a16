//! The plugins of the family, with the schemas of their configurations in the form that Kong's clients read.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use weir_plugins::kong::{definitions, is_internal};

use crate::kinds;
use crate::shape::Field;

/// A plugin.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) name: &'static str,
    pub(crate) priority: i32,
    /// Fields of the configuration.
    pub(crate) fields: Vec<Field>,
    /// The schema as clients read it.
    pub(crate) described: Value,
}

/// All plugins, in the order of names.
pub(crate) static PLUGINS: LazyLock<Vec<Plugin>> = LazyLock::new(|| {
    let there = definitions().iter().filter(|definition| !is_internal(definition.name()));
    let plugin = there.map(|definition| {
        let schema = definition.schema().to_value();
        let mut described = Reader { defs: &schema["$defs"] }.fields(&schema, 0);
        add_defaults(definition.name(), &mut described);
        let fields = Field::list(&described);
        let scopes = ["consumer", "route", "service"].map(|field| {
            let to = format!("{field}s");
            let mut foreign = json!({ "type": "foreign", "reference": to });
            if field == "consumer" && definition.is_auth() {
                foreign["eq"] = Value::Null;
            }
            json!({ field: foreign })
        });
        let mut all = scopes.to_vec();
        all.push(json!({ "protocols": protocols() }));
        all.push(json!({ "config": { "type": "record", "required": true, "fields": described } }));
        let described = json!({ "fields": all, "entity_checks": [], "supported_partials": {} });
        Plugin { name: definition.name(), priority: definition.priority(), fields, described }
    });
    plugin.collect()
});

/// A plugin by its name.
pub(crate) fn named(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// True if the gateway has the plugin.
pub(crate) fn is_there(name: &str) -> bool {
    named(name).is_some()
}

fn protocols() -> Value {
    let plugins = kinds::KINDS.iter().find(|kind| kind.name == "plugins");
    let fields = plugins.and_then(|kind| kind.described.as_array()).into_iter().flatten();
    fields.filter_map(|field| field.get("protocols")).next().cloned().unwrap_or_default()
}

/// Defaults that stand in no schema, because their types are those of the plugin alone: the values that a plugin takes for
/// an absent field.
const DEFAULTS: &str = include_str!("defaults.json");

fn add_defaults(plugin: &str, fields: &mut Value) {
    let all: Value = serde_json::from_str(DEFAULTS).unwrap_or_default();
    let Some(defaults) = all.get(plugin).and_then(Value::as_object) else { return };
    for (name, default) in defaults {
        let field = fields.as_array_mut().into_iter().flatten().find_map(|field| field.get_mut(name));
        if let Some(Value::Object(field)) = field {
            field.entry("default").or_insert_with(|| default.clone());
        }
    }
}

/// Reader of a JSON Schema.
struct Reader<'s> {
    defs: &'s Value,
}

/// Deepest nesting of records; a schema that refers to itself ends there.
const MOST_DEPTH: usize = 8;

impl Reader<'_> {
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        target.and_then(|name| self.defs.get(name)).unwrap_or(schema)
    }

    fn fields(&self, schema: &Value, depth: usize) -> Value {
        let schema = self.resolve(schema);
        let required = |name: &str| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        let field = |(name, property): (&String, &Value)| {
            let mut field = self.field(property, depth);
            if required(name) {
                field.insert("required".into(), true.into());
            }
            json!({ name: field })
        };
        properties.map(field).collect()
    }

    /// A field, or what a list or a map holds.
    fn field(&self, property: &Value, depth: usize) -> Map<String, Value> {
        let mut field = Map::new();
        let target = self.resolve(property);
        // `null` beside another type says that the field may be absent.
        let choices = ["anyOf", "oneOf"].iter().find_map(|name| target[*name].as_array());
        if let Some(choices) = choices {
            let real: Vec<&Value> = choices.iter().filter(|choice| choice["type"] != "null").collect();
            let constants: Option<Vec<Value>> = real.iter().map(|choice| choice.get("const").cloned()).collect();
            match (real.as_slice(), constants) {
                (_, Some(constants)) if !constants.is_empty() => {
                    field.insert("type".into(), type_of(&constants).into());
                    field.insert("one_of".into(), constants.into());
                }
                ([one], _) => {
                    field = self.field(one, depth);
                    if real.len() < choices.len() {
                        field.remove("required");
                    }
                }
                _ => {
                    field.insert("type".into(), "any".into());
                }
            }
        } else {
            self.plain(target, &mut field, depth);
        }
        for source in [target, property] {
            if let Some(default) = source.get("default").filter(|default| !default.is_null()) {
                field.insert("default".into(), default.clone());
            }
        }
        field
    }

    fn plain(&self, target: &Value, field: &mut Map<String, Value>, depth: usize) {
        let names: Vec<&str> = match &target["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect(),
            _ => Vec::new(),
        };
        let kind = match names.as_slice() {
            ["string"] => "string",
            ["boolean"] => "boolean",
            ["integer"] => "integer",
            ["number"] => "number",
            ["array"] => "array",
            ["object"] if target["properties"].is_object() && depth < MOST_DEPTH => "record",
            ["object"] => "map",
            [] if target["enum"].is_array() => "string",
            _ => "any",
        };
        field.insert("type".into(), kind.into());
        match kind {
            "array" => {
                field.insert("elements".into(), self.field(&target["items"], depth + 1).into());
            }
            "record" => {
                field.insert("fields".into(), self.fields(target, depth + 1));
                field.insert("required".into(), true.into());
            }
            "map" => {
                let values = match &target["additionalProperties"] {
                    values @ Value::Object(_) => self.field(values, depth + 1),
                    _ => Map::from_iter([("type".to_owned(), "any".into())]),
                };
                field.insert("keys".into(), json!({ "type": "string" }));
                field.insert("values".into(), values.into());
            }
            _ => {}
        }
        let constants = target["enum"].as_array().map(|all| all.iter().filter(|value| !value.is_null()).cloned());
        if let Some(constants) = constants {
            field.insert("one_of".into(), constants.collect());
        }
        if let (Some(least), Some(most)) = (target["minimum"].as_f64(), target["maximum"].as_f64()) {
            field.insert("between".into(), json!([least, most]));
        }
    }
}

fn type_of(constants: &[Value]) -> &'static str {
    match constants.first() {
        Some(Value::Number(_)) => "integer",
        Some(Value::Bool(_)) => "boolean",
        _ => "string",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{DEFAULTS, PLUGINS, named};
    use crate::kinds::KINDS;
    use crate::shape::{Object, check, complete};

    #[test]
    fn defaults_are_those_of_fields_and_fit_them() {
        let defaults: Object = serde_json::from_str(DEFAULTS).expect("defaults");
        for (plugin, fields) in &defaults {
            let plugin = named(plugin).unwrap_or_else(|| panic!("{plugin}"));
            for name in fields.as_object().expect("fields").keys() {
                assert!(plugin.fields.iter().any(|field| field.name == *name), "{} has no {name}", plugin.name);
            }
        }
        for plugin in PLUGINS.iter() {
            let mut config = Object::new();
            complete(&plugin.fields, &mut config);
            let faults = check(&plugin.fields, &config);
            let is_required = |fault: &Value| fault == "required field missing";
            assert!(faults.values().all(is_required), "{}: {faults:?}", plugin.name);
        }
    }

    #[test]
    fn kinds_refer_to_kinds_before_them() {
        for (number, kind) in KINDS.iter().enumerate() {
            assert!(kind.fields.len() > 3, "{} is described", kind.name);
            assert!(kind.references().all(|(_, to)| to < number), "{}", kind.name);
            let named = kind.fields.iter().filter(|field| field.shape.reference.is_some()).count();
            assert_eq!(kind.references().count(), named, "{}", kind.name);
        }
    }
}
