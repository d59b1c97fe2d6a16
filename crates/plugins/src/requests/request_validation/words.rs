//! What is wrong with a value, in the words of the JSON Schema library that APISIX uses.

use std::collections::HashMap;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::LocationSegment;
use serde_json::Value;
use weir_config::diagnostic::lua_type_name;

/// Longest explanation, in bytes: it may hold what the client sent.
const LONGEST: usize = 512;

/// The way to the place in `whole` that is wrong, and what is wrong with it.
pub(super) fn of(whole: &Value, error: &ValidationError<'_>) -> String {
    let mut text = String::new();
    for step in error.instance_path() {
        match step {
            LocationSegment::Property(name) => text.push_str(&format!("property \"{name}\" validation failed: ")),
            LocationSegment::Index(index) => text.push_str(&format!("failed to validate item {}: ", index + 1)),
        }
        if text.len() > LONGEST {
            break;
        }
    }
    text.push_str(&fault(whole, error));
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn fault(whole: &Value, error: &ValidationError<'_>) -> String {
    let value = error.instance().as_ref();
    let length = || value.as_str().map_or(0, |text| text.chars().count());
    match error.kind() {
        Kind::Type { kind: TypeKind::Single(expected) } => {
            format!("wrong type: expected {expected}, got {}", lua_type_name(value))
        }
        Kind::Type { kind: TypeKind::Multiple(expected) } => {
            let names: Vec<String> = expected.iter().map(|name| name.to_string()).collect();
            format!("wrong type: expected one of {}, got {}", names.join(", "), lua_type_name(value))
        }
        Kind::Required { property } => format!("property \"{}\" is required", shown(property)),
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            forbidden(unexpected.first().map(String::as_str).unwrap_or_default())
        }
        Kind::Enum { .. } => "matches none of the enum values".to_owned(),
        Kind::Constant { .. } => "failed to check const value".to_owned(),
        Kind::Pattern { pattern } => {
            let start: String = value.as_str().unwrap_or_default().chars().take(LONGEST).collect();
            format!("failed to match pattern {} with {}", Value::from(pattern.as_str()), Value::from(start))
        }
        Kind::MinLength { limit } => format!("string too short, expected at least {limit}, got {}", length()),
        Kind::MaxLength { limit } => format!("string too long, expected at most {limit}, got {}", length()),
        Kind::Minimum { limit } => format!("expected {} to be at least {}", shown(value), shown(limit)),
        Kind::ExclusiveMinimum { limit } => format!("expected {} to be greater than {}", shown(value), shown(limit)),
        Kind::Maximum { limit } => format!("expected {} to be at most {}", shown(value), shown(limit)),
        Kind::ExclusiveMaximum { limit } => format!("expected {} to be smaller than {}", shown(value), shown(limit)),
        Kind::MultipleOf { multiple_of } => format!("expected {} to be a multiple of {multiple_of}", shown(value)),
        Kind::MinItems { limit } => format!("expect array to have at least {limit} items"),
        Kind::MaxItems { limit } => format!("expect array to have at most {limit} items"),
        Kind::MinProperties { limit } => format!("expect object to have at least {limit} properties"),
        Kind::MaxProperties { limit } => format!("expect object to have at most {limit} properties"),
        Kind::AdditionalItems { .. } => "found unexpected extra items in array".to_owned(),
        Kind::UniqueItems => match equal_items(value) {
            Some((first, second)) => format!("expected unique items but items {first} and {second} are equal"),
            None => "expected unique items".to_owned(),
        },
        Kind::Contains => "failed to check contains".to_owned(),
        Kind::AnyOf { .. } => "object matches none of the required".to_owned(),
        Kind::OneOfNotValid { .. } => "value should match only one schema, but matches none".to_owned(),
        Kind::OneOfMultipleValid { context } => {
            let mut matching = (1..).zip(context).filter(|(_, errors)| errors.is_empty()).map(|(number, _)| number);
            let (first, second) = (matching.next().unwrap_or(1), matching.next().unwrap_or(2));
            format!("value should match only one schema, but matches both schemas {first} and {second}")
        }
        Kind::Not { .. } => "value wasn't supposed to match schema".to_owned(),
        // Where nothing is allowed at all, the place is the object itself.
        Kind::FalseSchema if error.schema_path().as_str().ends_with("/additionalProperties") => {
            let object = whole.pointer(error.instance_path().as_str()).and_then(Value::as_object);
            forbidden(object.and_then(|object| object.keys().next()).map(String::as_str).unwrap_or_default())
        }
        Kind::FalseSchema => "expect false always".to_owned(),
        Kind::Format { format } => {
            let what = match format.as_str() {
                "hostname" => "hostname".to_owned(),
                other => format!("{other} address"),
            };
            format!("expect valid {what} but got: {}", shown(value))
        }
        // Keywords that APISIX's library does not check. What was sent is left out.
        _ => error.masked().to_string(),
    }
}

fn forbidden(name: &str) -> String {
    format!("additional properties forbidden, found {name}")
}

/// A value within a text.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().take(LONGEST).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => float.to_string(),
            _ => number.to_string(),
        },
        other => lua_type_name(other).to_owned(),
    }
}

/// Two equal items of a list, counted from 1.
fn equal_items(list: &Value) -> Option<(usize, usize)> {
    let mut seen = HashMap::new();
    (1..).zip(list.as_array()?).find_map(|(at, item)| seen.insert(item.to_string(), at).map(|first| (first, at)))
}

#[cfg(test)]
mod tests {
    use super::LONGEST;
    use serde_json::{Value, json};

    /// What is said of a value.
    fn said(schema: &Value, value: &Value) -> String {
        let schema = super::super::schema::Schema::compile("s", schema.as_object().unwrap().clone()).unwrap();
        schema.check(value).expect_err("the value does not follow")
    }

    #[test]
    fn faults_are_told_in_the_known_words() {
        for (schema, value, expected) in [
            (json!({"type": "string"}), json!(5), "wrong type: expected string, got number"),
            (json!({"type": "object"}), json!([1]), "wrong type: expected object, got table"),
            (json!({"type": "integer"}), json!(null), "wrong type: expected integer, got userdata"),
            (json!({"type": ["string", "null"]}), json!(true), "wrong type: expected one of null, string, got boolean"),
            (
                json!({"properties": {"x": {"type": "boolean"}}}),
                json!({"x": "true"}),
                r#"property "x" validation failed: wrong type: expected boolean, got string"#,
            ),
            (json!({"required": ["required_payload"]}), json!({}), r#"property "required_payload" is required"#),
            (json!({"additionalProperties": false}), json!({"a": 1}), "additional properties forbidden, found a"),
            (
                json!({"properties": {"Host": {"enum": ["a"]}}}),
                json!({"Host": "b"}),
                r#"property "Host" validation failed: matches none of the enum values"#,
            ),
            (json!({"const": 1}), json!(2), "failed to check const value"),
            (
                json!({"pattern": "^curl/"}),
                json!("cli-\"mock\""),
                r#"failed to match pattern "^curl/" with "cli-\"mock\"""#,
            ),
            (json!({"minLength": 2}), json!("ä"), "string too short, expected at least 2, got 1"),
            (json!({"maxLength": 2}), json!("äöü"), "string too long, expected at most 2, got 3"),
            (json!({"minimum": 1}), json!(0), "expected 0 to be at least 1"),
            (json!({"exclusiveMinimum": 1}), json!(1.0), "expected 1 to be greater than 1"),
            (json!({"maximum": 1.5}), json!(2), "expected 2 to be at most 1.5"),
            (json!({"exclusiveMaximum": 1}), json!(1), "expected 1 to be smaller than 1"),
            (json!({"multipleOf": 2}), json!(5), "expected 5 to be a multiple of 2"),
            (
                json!({"items": {"items": {"type": "string"}}}),
                json!([[], ["a", 1]]),
                "failed to validate item 2: failed to validate item 2: wrong type: expected string, got number",
            ),
            (json!({"minItems": 1}), json!([]), "expect array to have at least 1 items"),
            (json!({"maxItems": 1}), json!([1, 2]), "expect array to have at most 1 items"),
            (json!({"minProperties": 1}), json!({}), "expect object to have at least 1 properties"),
            (json!({"maxProperties": 0}), json!({"a": 1}), "expect object to have at most 0 properties"),
            (json!({"uniqueItems": true}), json!([3, "a", 3]), "expected unique items but items 1 and 3 are equal"),
            (json!({"items": [{}], "additionalItems": false}), json!([1, 2]), "found unexpected extra items in array"),
            (json!({"contains": {"type": "string"}}), json!([1]), "failed to check contains"),
            (json!({"anyOf": [{"type": "string"}]}), json!(1), "object matches none of the required"),
            (json!({"oneOf": [{"type": "string"}]}), json!(1), "value should match only one schema, but matches none"),
            (
                json!({"oneOf": [{"type": "string"}, {"minimum": 1}, {"maximum": 5}]}),
                json!(3),
                "value should match only one schema, but matches both schemas 2 and 3",
            ),
            (json!({"not": {}}), json!(1), "value wasn't supposed to match schema"),
            (json!({"format": "email"}), json!("a"), "expect valid email address but got: a"),
            (json!({"format": "ipv4"}), json!("::1"), "expect valid ipv4 address but got: ::1"),
        ] {
            assert_eq!(said(&schema, &value), expected, "{schema} {value}");
        }
    }

    #[test]
    fn an_explanation_is_bounded() {
        let long = "ä".repeat(LONGEST * 3);
        for (schema, value) in [
            (json!({"pattern": "^a"}), json!(long)),
            (json!({"format": "email"}), json!(long)),
            (json!({"additionalProperties": false}), json!({ long.as_str(): 1 })),
            (json!({"additionalProperties": {"type": "string"}}), json!({ long.as_str(): 1 })),
        ] {
            let text = said(&schema, &value);
            assert!(text.len() <= LONGEST + '…'.len_utf8() && text.ends_with('…'), "{}: {text}", text.len());
        }
    }
}
