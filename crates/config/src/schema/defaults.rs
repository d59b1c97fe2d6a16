//! Defaults of a schema, filled into a value.

use serde_json::{Map, Value};

/// Inserts the defaults of a schema where a value lacks the field, at any depth. Fields that are present stay as they
/// are.
///
/// Of several alternatives (`anyOf`, `oneOf`) those of the first whose type fits hold, where there is only one such.
pub fn fill_defaults(schema: &Value, value: &mut Value) {
    if let Some(parts) = schema.get("allOf").and_then(Value::as_array) {
        parts.iter().for_each(|part| fill_defaults(part, value));
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(branches) = schema.get(keyword).and_then(Value::as_array) else { continue };
        let mut fitting = branches.iter().filter(|branch| fits_type(branch, value));
        if let (Some(only), None) = (fitting.next(), fitting.next()) {
            fill_defaults(only, value);
        }
    }
    match value {
        Value::Object(fields) => fill_object(schema, fields),
        Value::Array(items) => {
            if let Some(each) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_defaults(each, item));
            }
        }
        _ => {}
    }
}

fn fill_object(schema: &Value, fields: &mut Map<String, Value>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties").filter(|others| others.is_object());
    for (name, value) in fields.iter_mut() {
        if let Some(inner) = properties.and_then(|known| known.get(name)).or(others) {
            fill_defaults(inner, value);
        }
    }
    for (name, inner) in properties.into_iter().flatten() {
        if let (None, Some(default)) = (fields.get(name), inner.get("default")) {
            let mut default = default.clone();
            fill_defaults(inner, &mut default);
            fields.insert(name.clone(), default);
        }
    }
}

fn fits_type(schema: &Value, value: &Value) -> bool {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |wanted: &Value| wanted == name || (wanted == "integer" && name == "number");
    match schema.get("type") {
        None => true,
        Some(Value::Array(wanted)) => wanted.iter().any(is),
        Some(wanted) => is(wanted),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fill_defaults;

    #[test]
    fn defaults_are_filled_in_at_any_depth() {
        let inner = json!({ "type": "object", "properties": { "a": { "default": 1 }, "b": {} } });
        let cases = [
            (inner.clone(), json!({}), json!({ "a": 1 })),
            (inner.clone(), json!({ "a": 2 }), json!({ "a": 2 })),
            (inner.clone(), json!({ "a": null, "c": 3 }), json!({ "a": null, "c": 3 })),
            (inner.clone(), json!("text"), json!("text")),
            (json!({ "items": inner }), json!([{}, { "b": 1 }]), json!([{ "a": 1 }, { "b": 1, "a": 1 }])),
            (json!({ "properties": { "x": inner } }), json!({}), json!({})),
            (json!({ "properties": { "x": inner } }), json!({ "x": {} }), json!({ "x": { "a": 1 } })),
            (json!({ "additionalProperties": inner }), json!({ "y": {} }), json!({ "y": { "a": 1 } })),
            (json!({ "allOf": [inner] }), json!({}), json!({ "a": 1 })),
            (json!({ "anyOf": [{ "type": "integer" }, inner] }), json!({}), json!({ "a": 1 })),
            (json!({ "anyOf": [inner, inner] }), json!({}), json!({})),
            (
                json!({ "properties": { "x": { "default": {}, "properties": { "y": { "default": true } } } } }),
                json!({}),
                json!({ "x": { "y": true } }),
            ),
        ];
        for (schema, mut value, expected) in cases {
            let before = value.clone();
            fill_defaults(&schema, &mut value);
            assert_eq!(value, expected, "{before} with {schema}");
        }
    }
}
