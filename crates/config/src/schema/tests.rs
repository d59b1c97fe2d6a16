use super::*;
use crate::resource::{Consumer, ConsumerGroup, Document, GlobalRule, Meta, PluginConfig, Route, Service, Upstream};
use crate::settings::Settings;

/// Keywords that are checked.
const CHECKED: &[&str] = &[
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "properties",
    "required",
    "additionalProperties",
    "maxProperties",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
];

/// Keywords without effect on validity, or whose values are checked when they are read.
const TOLD: &[&str] = &["$schema", "title", "description", "default", "format", "x-expected"];

fn unknown_keywords(schema: &Value, found: &mut Vec<String>) {
    let Some(object) = schema.as_object() else { return };
    for (keyword, value) in object {
        match keyword.as_str() {
            "properties" | "$defs" => {
                value.as_object().into_iter().flatten().for_each(|(_, inner)| unknown_keywords(inner, found));
            }
            "items" | "additionalProperties" => unknown_keywords(value, found),
            "anyOf" | "oneOf" | "allOf" => {
                value.as_array().into_iter().flatten().for_each(|inner| unknown_keywords(inner, found));
            }
            known if CHECKED.contains(&known) || TOLD.contains(&known) => {}
            unknown => found.push(unknown.to_owned()),
        }
    }
}

#[test]
fn no_keyword_of_our_schemas_is_unchecked() {
    let schemas = [
        json_schema::<Route>(),
        json_schema::<Service>(),
        json_schema::<Upstream>(),
        json_schema::<Consumer>(),
        json_schema::<ConsumerGroup>(),
        json_schema::<PluginConfig>(),
        json_schema::<GlobalRule>(),
        json_schema::<Meta>(),
        json_schema::<Document>(),
        json_schema::<Settings>(),
    ];
    for schema in schemas {
        let mut found = Vec::new();
        unknown_keywords(schema.as_value(), &mut found);
        assert!(found.is_empty(), "{found:?} in {:?}", schema.get("title"));
    }
}

#[test]
fn keywords_are_checked_and_told() {
    use serde_json::json;
    let cases = [
        (json!({ "type": "boolean" }), json!(1), "expected true or false, found 1"),
        (json!({ "type": "integer", "minimum": 1 }), json!(0), "expected an integer of at least 1, found 0"),
        (json!({ "type": "integer", "maximum": 3 }), json!(4), "expected an integer of at most 3, found 4"),
        (json!({ "type": "integer" }), json!(1.5), "expected an integer, found 1.5"),
        (
            json!({ "type": "integer", "format": "uint32", "minimum": 0 }),
            json!(4294967296_u64),
            "expected an integer from 0 to 4294967295, found 4294967296",
        ),
        (json!({ "type": "number", "exclusiveMinimum": 0 }), json!(0), "expected a number above 0, found 0"),
        (
            json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 }),
            json!(1),
            "expected a number between 0 and 1, found 1",
        ),
        (json!({ "type": "number", "exclusiveMaximum": 1 }), json!(1), "expected a number below 1, found 1"),
        (
            json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }),
            json!(1),
            "expected a number from 0 to below 1, found 1",
        ),
        (
            json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
            json!(2),
            "expected a number above 0 and up to 1, found 2",
        ),
        (
            json!({ "type": "string", "minLength": 2 }),
            json!("é"),
            "expected a text of 2 or more characters, found \"é\"",
        ),
        (
            json!({ "type": "string", "maxLength": 1 }),
            json!("éa"),
            "expected a text of at most 1 characters, found \"éa\"",
        ),
        (json!({ "type": "string", "pattern": "^a$" }), json!("b"), "expected a text that matches ^a$, found \"b\""),
        (json!({ "type": "string", "x-expected": "an a", "pattern": "^a$" }), json!("b"), "expected an a, found \"b\""),
        (json!({ "type": ["string", "integer"] }), json!(null), "expected a text or an integer, found nothing (null)"),
        (
            json!({ "enum": ["red", "green"] }),
            json!("gren"),
            "expected one of red, green, found \"gren\"; did you mean green?",
        ),
        (json!({ "const": 5 }), json!(6), "expected 5, found 6"),
        (json!({ "oneOf": [{ "const": "a" }, { "const": "b" }] }), json!("x"), "expected one of a, b, found \"x\""),
        (
            json!({ "type": "array", "minItems": 1 }),
            json!([]),
            "expected a list of 1 or more elements, found an empty list",
        ),
        (
            json!({ "type": "array", "maxItems": 1 }),
            json!([1, 2]),
            "expected a list of at most 1 elements, found a list of 2",
        ),
        (json!({ "type": "array", "uniqueItems": true }), json!([1, 2, 1]), "[2]: 1 stands twice in the list"),
        (
            json!({ "type": "array", "items": { "type": "string" } }),
            json!(["a", 1]),
            "[1]: expected a text, found 1; put it in quotes",
        ),
        (json!({ "type": "object", "required": ["a"] }), json!({}), "the field a is missing"),
        (
            json!({ "type": "object", "maxProperties": 1 }),
            json!({ "a": 1, "b": 1 }),
            "expected a mapping of at most 1 entry, found one of 2",
        ),
        (
            json!({ "type": "object", "additionalProperties": false }),
            json!({ "a": 1 }),
            "a: unknown field; no fields are known here",
        ),
        (
            json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
            json!({ "a.b": "x" }),
            "[\"a.b\"]: expected an integer, found \"x\"",
        ),
        (
            json!({ "anyOf": [{ "type": "integer" }, { "type": "object", "required": ["a"] }] }),
            json!({}),
            "the field a is missing",
        ),
        (
            json!({ "anyOf": [{ "type": "integer" }, { "type": "object" }] }),
            json!("x"),
            "expected an integer or a mapping, found \"x\"",
        ),
        (
            json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }], "x-expected": "an id" }),
            json!(0),
            "expected an id, found 0",
        ),
        (
            json!({ "allOf": [{ "type": "string" }, { "minLength": 2 }] }),
            json!("a"),
            "expected another value, found \"a\"",
        ),
        (
            json!({ "$defs": { "n": { "type": "object", "properties": { "in": { "$ref": "#/$defs/n" }, "x": { "type": "integer" } } } }, "$ref": "#/$defs/n" }),
            json!({ "in": { "in": { "x": "y" } } }),
            "in.in.x: expected an integer, found \"y\"",
        ),
    ];
    for (schema, value, expected) in cases {
        let checker = Checker::new(&Schema::try_from(schema.clone()).expect("a schema"));
        let found: Vec<String> = checker.check(&Node::from(&value)).iter().map(ToString::to_string).collect();
        assert_eq!(found, [expected], "{schema}");
    }
}

#[test]
fn an_optional_field_may_be_absent_but_not_null() {
    #[derive(serde::Deserialize, JsonSchema, Debug, PartialEq)]
    struct Conf {
        number: Option<u8>,
        choice: Option<Choice>,
    }
    #[derive(serde::Deserialize, JsonSchema, Debug, PartialEq)]
    enum Choice {
        A,
    }
    let read = |text: &str| read::<Conf>(&Node::parse(text).expect(text).root);
    assert_eq!(read("{}"), Ok(Conf { number: None, choice: None }));
    assert_eq!(read("{number: 1, choice: A}"), Ok(Conf { number: Some(1), choice: Some(Choice::A) }));
    let found = read("{number: null, choice: null}").expect_err("nulls");
    let said: Vec<String> = found.iter().map(Diagnostic::message).collect();
    assert_eq!(said, ["expected an integer from 0 to 255, found nothing (null)", "expected A, found nothing (null)"]);
}
