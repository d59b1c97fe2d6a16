//! Kong's own language of schemas, as JSON Schema: a list of fields, `[{"name": {"type": "string", "required": true}}]`.

use serde_json::{Map, Value, json};

/// Deepest nesting of a schema.
const DEEPEST: usize = 32;

/// A list of fields as the schema of an object that has no others.
///
/// # Errors
/// Part without a meaning, with its place.
pub(super) fn to_json_schema(fields: &[Value]) -> Result<Map<String, Value>, String> {
    record(fields, "", 0)
}

fn record(fields: &[Value], place: &str, depth: usize) -> Result<Map<String, Value>, String> {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in fields {
        let entry = field.as_object().filter(|entry| entry.len() == 1).and_then(|entry| entry.iter().next());
        let (name, described) =
            entry.ok_or_else(|| format!("expected {{\"NAME\": {{…}}}} in the fields of {place:?}"))?;
        let place = format!("{place}.{name}");
        properties.insert(name.clone(), value(described, place.trim_start_matches('.'), depth + 1)?);
        if described["required"] == true {
            required.push(Value::from(name.as_str()));
        }
    }
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    Ok(schema.as_object().cloned().unwrap_or_default())
}

fn value(described: &Value, place: &str, depth: usize) -> Result<Value, String> {
    if depth > DEEPEST {
        return Err(format!("{place}: nested deeper than {DEEPEST} levels"));
    }
    let members = described.as_object().ok_or_else(|| format!("{place}: expected an object"))?;
    let inner = |field: &str| -> Result<Value, String> {
        let inner = members.get(field).ok_or_else(|| format!("{place}: {field} is missing"))?;
        value(inner, &format!("{place}.{field}"), depth + 1)
    };
    let kind = members.get("type").and_then(Value::as_str).unwrap_or_default();
    let mut schema = match kind {
        "string" | "boolean" | "number" | "integer" => Map::from_iter([("type".to_owned(), kind.into())]),
        "array" | "set" => {
            let mut schema =
                Map::from_iter([("type".to_owned(), "array".into()), ("items".to_owned(), inner("elements")?)]);
            if kind == "set" {
                schema.insert("uniqueItems".to_owned(), true.into());
            }
            schema
        }
        "map" => {
            let mut schema = Map::from_iter([("type".to_owned(), "object".into())]);
            schema.insert("additionalProperties".to_owned(), inner("values")?);
            schema.insert("propertyNames".to_owned(), inner("keys")?);
            schema
        }
        "record" => {
            let fields = members.get("fields").and_then(Value::as_array);
            record(fields.ok_or_else(|| format!("{place}: fields is missing"))?, place, depth + 1)?
        }
        other => return Err(format!("{place}: the type {other:?} is not known")),
    };
    for (name, rule) in members {
        let to = match (name.as_str(), kind) {
            ("type" | "required" | "elements" | "keys" | "values" | "fields" | "default" | "description", _) => {
                continue;
            }
            ("one_of", _) => "enum",
            ("match", "string") => "pattern",
            ("len_min", "string") => "minLength",
            ("len_max", "string") => "maxLength",
            ("len_min", "array" | "set") => "minItems",
            ("len_max", "array" | "set") => "maxItems",
            ("len_min", "map") => "minProperties",
            ("len_max", "map") => "maxProperties",
            ("gt", "number" | "integer") => "exclusiveMinimum",
            ("between", "number" | "integer") => {
                schema.insert("minimum".to_owned(), rule[0].clone());
                schema.insert("maximum".to_owned(), rule[1].clone());
                continue;
            }
            // A field that may be null is one that may be absent.
            ("nullable", _) => continue,
            _ => return Err(format!("{place}: the rule {name} is not supported")),
        };
        schema.insert(to.to_owned(), rule.clone());
    }
    Ok(Value::Object(schema))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::to_json_schema;

    #[test]
    fn rules_of_kong_are_those_of_json_schema() {
        let fields = json!([
            { "name": { "type": "string", "required": true, "len_min": 2, "match": "^[a-z]+$" } },
            { "age": { "type": "integer", "between": [0, 150] } },
            { "tags": { "type": "set", "elements": { "type": "string", "one_of": ["a", "b"] } } },
            { "more": { "type": "map", "keys": { "type": "string" }, "values": { "type": "number", "gt": 0 } } },
            { "inner": { "type": "record", "fields": [{ "x": { "type": "boolean", "required": true } }] } },
        ]);
        let schema = Value::Object(to_json_schema(fields.as_array().expect("a list")).expect("a schema"));
        assert_eq!(schema["required"], json!(["name"]));
        assert_eq!(schema["properties"]["name"], json!({ "type": "string", "minLength": 2, "pattern": "^[a-z]+$" }));
        assert_eq!(schema["properties"]["age"], json!({ "type": "integer", "minimum": 0, "maximum": 150 }));
        assert_eq!(schema["properties"]["tags"]["uniqueItems"], true);
        assert_eq!(schema["properties"]["more"]["additionalProperties"]["exclusiveMinimum"], 0);
        assert_eq!(schema["properties"]["inner"]["additionalProperties"], false);
        for (bad, says) in [
            (json!([{ "a": { "type": "strin" } }]), "a: the type \"strin\" is not known"),
            (json!([{ "a": { "type": "array" } }]), "a: elements is missing"),
            (
                json!([{ "a": { "type": "string", "custom_validator": "x" } }]),
                "a: the rule custom_validator is not supported",
            ),
            (json!(["a"]), "expected {\"NAME\""),
        ] {
            let told = to_json_schema(bad.as_array().expect("a list")).expect_err("a fault");
            assert!(told.starts_with(says), "{told}");
        }
    }
}
