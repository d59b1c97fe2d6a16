//! Every field of every plugin stands in the configuration of a case, so that it has an effect that a case can see, or in
//! one that is told that the field has none; or `elsewhere` names the test that shows its effect.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use weir_config::Node;

/// The paths of all fields that a schema knows: `rules[].match[].vars`.
fn known(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for alternative in ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| schema.get(name)?.as_array()).flatten() {
        known(alternative, path, found);
    }
    if let Some(items) = schema.get("items") {
        known(items, &format!("{path}[]"), found);
    }
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        known(field, &path, found);
        found.insert(path);
    }
}

/// The paths of all fields that a configuration has.
fn written(conf: &Value, path: &str, found: &mut BTreeSet<String>) {
    match conf {
        Value::Array(items) => items.iter().for_each(|item| written(item, &format!("{path}[]"), found)),
        Value::Object(fields) => {
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                written(field, &path, found);
                found.insert(path);
            }
        }
        _ => {}
    }
}

/// All configurations of a plugin in a document, with whether they stand on a consumer.
fn confs<'d>(node: &'d Value, plugin: &str, on_consumer: bool, found: &mut Vec<(bool, &'d Value)>) {
    match node {
        Value::Array(items) => items.iter().for_each(|item| confs(item, plugin, on_consumer, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "plugins" {
                    found.extend(value.get(plugin).map(|conf| (on_consumer, conf)));
                } else {
                    confs(value, plugin, on_consumer || name == "consumers", found);
                }
            }
        }
        _ => {}
    }
}

/// A field of which a configuration of `bad` is told that it has no effect or is not supported.
fn without_effect<'e>(entry: &'e Value, place: &str) -> Option<&'e str> {
    entry.get(place)?;
    let (field, said) = entry["warns"].as_str().or(entry["says"].as_str())?.split_once(": ")?;
    let is_said = ["no effect", "no plugin here reads", "not supported"].iter().any(|words| said.contains(words));
    (is_said && !said.contains("unknown field")).then_some(field)
}

fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Node::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).root.to_json()
}

#[test]
fn every_field_has_a_case() {
    let mut missing = Vec::new();
    for definition in weir_plugins::definitions() {
        let name = definition.name();
        let cases = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(format!("{name}.yaml")));
        let config = Node::parse(cases["config"].as_str().expect("a configuration")).expect("YAML").root.to_json();
        let mut found = Vec::new();
        confs(&config, name, false, &mut found);
        let metadata = config["plugin_metadata"].as_array().into_iter().flatten().filter(|item| item["id"] == name);
        // An authentication plugin alone has another configuration on consumers.
        let of = |on_consumer: bool| {
            let is_auth = definition.consumer_schema().is_some();
            found.iter().filter(move |(on, _)| !is_auth || *on == on_consumer).map(|(_, conf)| *conf).collect()
        };
        let places: [(&str, Option<_>, Vec<&Value>); 3] = [
            ("conf", Some(definition.schema()), of(false)),
            ("consumer", definition.consumer_schema(), of(true)),
            ("metadata", definition.metadata_schema(), metadata.collect()),
        ];
        for (place, schema, confs) in places {
            let Some(schema) = schema else { continue };
            let (mut fields, mut used) = (BTreeSet::new(), BTreeSet::new());
            known(schema.as_value(), "", &mut fields);
            confs.into_iter().for_each(|conf| written(conf, "", &mut used));
            let bad = cases["bad"].as_array().into_iter().flatten();
            let mut told: BTreeSet<&str> = bad.filter_map(|entry| without_effect(entry, place)).collect();
            let elsewhere = cases["elsewhere"].as_array().into_iter().flatten();
            told.extend(elsewhere.filter_map(|entry| entry[place].as_str()));
            // A case for a field is one for all fields in it.
            let is_used = |field: &str| {
                let outer = field.match_indices(['.', '[']).filter_map(|(at, _)| field.get(..at));
                used.contains(field) || told.contains(field) || outer.into_iter().any(|outer| told.contains(outer))
            };
            let absent = fields.iter().filter(|field| !is_used(field));
            missing.extend(absent.map(|field| format!("{name}: {place}: {field}")));
        }
    }
    assert!(missing.is_empty(), "fields without a case:\n{}", missing.join("\n"));
}
