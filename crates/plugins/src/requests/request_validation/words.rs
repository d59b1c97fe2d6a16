//! Faults of a value that was checked against a JSON Schema, in the words of the library that APISIX uses: the texts
//! are those of [`Fault`], as in answers of the Admin API.

use std::collections::HashMap;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::LocationSegment;
use serde_json::Value;
use weir_config::node::Step;
use weir_config::schema::{Amount, Fault, type_of, way_to};

/// Longest explanation, in bytes: it may hold what the client sent.
const LONGEST: usize = 512;

/// The way to the place in `whole` that is wrong, and what is wrong with it.
pub(super) fn of(whole: &Value, error: &ValidationError<'_>) -> String {
    let mut path = Vec::new();
    let mut length = 0;
    for step in error.instance_path() {
        path.push(match step {
            LocationSegment::Property(name) => Step::Name(name.to_string()),
            LocationSegment::Index(index) => Step::Index(index),
        });
        length += path.last().map_or(0, |step| way_to(std::slice::from_ref(step)).len());
        if length > LONGEST {
            break;
        }
    }
    let mut text = match fault(whole, error) {
        Some(fault) => fault.text(&path),
        // Keywords that APISIX's library does not check. What was sent is left out.
        None => format!("{}{}", way_to(&path), error.masked()),
    };
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The rule that is broken; `None` for a keyword that APISIX's library does not know.
fn fault(whole: &Value, error: &ValidationError<'_>) -> Option<Fault> {
    let value = error.instance().as_ref();
    let length = || value.as_str().map_or(0, |text| text.chars().count() as u64);
    Some(match error.kind() {
        Kind::Type { kind: TypeKind::Single(expected) } => {
            Fault::WrongType { expected: expected.to_string(), found: type_of(value) }
        }
        Kind::Type { kind: TypeKind::Multiple(expected) } => {
            let expected = expected.iter().map(|name| name.to_string()).collect();
            Fault::NoneOfTypes { expected, found: type_of(value) }
        }
        Kind::Required { property } => Fault::MissingField { name: start(property) },
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            Fault::FieldBeyond { name: unexpected.first().cloned().unwrap_or_default() }
        }
        Kind::Enum { .. } => Fault::NotInEnum,
        Kind::Constant { .. } => Fault::NotConstant,
        Kind::Pattern { pattern } => Fault::Pattern { pattern: pattern.clone(), found: start(value) },
        Kind::MinLength { limit } | Kind::MaxLength { limit } => Fault::Length { found: length(), bound: *limit },
        Kind::Minimum { limit } => Fault::TooSmall { found: number(value), least: number(limit), exclusive: false },
        Kind::ExclusiveMinimum { limit } => {
            Fault::TooSmall { found: number(value), least: number(limit), exclusive: true }
        }
        Kind::Maximum { limit } => Fault::TooLarge { found: number(value), most: number(limit), exclusive: false },
        Kind::ExclusiveMaximum { limit } => {
            Fault::TooLarge { found: number(value), most: number(limit), exclusive: true }
        }
        Kind::MultipleOf { multiple_of } => {
            Fault::NotMultiple { found: number(value), of: Amount::Float(*multiple_of) }
        }
        Kind::MinItems { limit } => Fault::TooFewItems { least: *limit },
        Kind::MaxItems { limit } => Fault::TooManyItems { most: *limit },
        Kind::MinProperties { limit } => Fault::TooFewFields { least: *limit },
        Kind::MaxProperties { limit } => Fault::TooManyFields { most: *limit },
        Kind::AdditionalItems { .. } => Fault::ItemsBeyond,
        Kind::UniqueItems => Fault::NotUnique { places: equal_items(value) },
        Kind::Contains => Fault::NotContained,
        Kind::AnyOf { .. } => Fault::NoneOfAny,
        Kind::OneOfNotValid { .. } => Fault::NoneOfOne,
        Kind::OneOfMultipleValid { context } => {
            let mut matching = (1..).zip(context).filter(|(_, errors)| errors.is_empty()).map(|(number, _)| number);
            Fault::SeveralOfOne { first: matching.next().unwrap_or(1), second: matching.next().unwrap_or(2) }
        }
        Kind::Not { .. } => Fault::Forbidden,
        // If nothing is allowed at all, the fault is at the object itself.
        Kind::FalseSchema if error.schema_path().as_str().ends_with("/additionalProperties") => {
            let object = whole.pointer(error.instance_path().as_str()).and_then(Value::as_object);
            Fault::FieldBeyond { name: object.and_then(|object| object.keys().next()).cloned().unwrap_or_default() }
        }
        Kind::FalseSchema => Fault::NothingAllowed,
        Kind::Format { format } => Fault::Format { format: format.clone(), found: start(value) },
        _ => return None,
    })
}

/// As much of a text as may be shown.
fn start(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().take(LONGEST).collect()
}

fn number(value: &Value) -> Amount {
    value.as_number().map_or(Amount::Float(f64::NAN), Amount::from)
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

    /// The error message about a value.
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
