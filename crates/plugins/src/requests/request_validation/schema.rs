//! Compiled schemas, and what is said of a value that does not follow one.

use std::collections::HashMap;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value};
use weir_expr::{TooLarge, spend_for_regex};
use weir_plugin::{Invalid, Request};

use super::words;

/// The formats that are checked: those that APISIX checks.
pub(super) const FORMATS: [&str; 4] = ["email", "hostname", "ipv4", "ipv6"];

/// Formats that could be checked as well.
const OTHER_FORMATS: [&str; 15] = [
    "date",
    "date-time",
    "duration",
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// A schema.
#[derive(Debug)]
pub(crate) struct Schema(Validator);

impl Schema {
    /// Compiles the schema in `field`. What it refers to has to stand in it.
    pub(crate) fn compile(field: &str, schema: Map<String, Value>) -> Result<Self, Invalid> {
        let draft = if schema.contains_key("$schema") { None } else { Some(Draft::Draft7) };
        let schema = Value::Object(schema);
        spend_for_patterns(&schema).map_err(|error| Invalid::new(field, error.to_string()))?;
        let patterns = PatternOptions::regex().size_limit(MOST_PATTERN_BYTES).dfa_size_limit(MOST_PATTERN_BYTES);
        let mut options = jsonschema::options().offline().with_pattern_options(patterns).should_validate_formats(true);
        for format in OTHER_FORMATS {
            options = options.with_format(format, |_: &str| true);
        }
        if let Some(draft) = draft {
            options = options.with_draft(draft);
        }
        options.build(&schema).map(Self).map_err(|error| {
            let at: String = error.instance_path().as_str().split('/').filter(|s| !s.is_empty()).fold(
                field.to_owned(),
                |mut path, step| {
                    path.push('.');
                    path.push_str(step);
                    path
                },
            );
            Invalid::new(at, format!("not a JSON Schema that can be checked: {error}"))
        })
    }

    /// All faults of a value.
    pub(crate) fn faults<'v>(&'v self, value: &'v Value) -> impl Iterator<Item = jsonschema::ValidationError<'v>> {
        self.0.iter_errors(value)
    }

    /// Checks a value.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        self.0.validate(value).map_err(|error| words::of(value, &error))
    }
}

/// The most memory that the program of a pattern in a schema may take.
const MOST_PATTERN_BYTES: usize = 1 << 20;

/// Takes out of the budget what the patterns of a schema cost; all else in it is about as large as its text.
fn spend_for_patterns(schema: &Value) -> Result<(), TooLarge> {
    match schema {
        Value::Object(members) => members.iter().try_for_each(|(keyword, inner)| {
            match (keyword.as_str(), inner) {
                ("pattern", Value::String(pattern)) => spend_for_regex(pattern)?,
                ("patternProperties", Value::Object(patterns)) => {
                    patterns.keys().try_for_each(|pattern| spend_for_regex(pattern))?;
                }
                _ => {}
            }
            spend_for_patterns(inner)
        }),
        Value::Array(items) => items.iter().try_for_each(spend_for_patterns),
        _ => Ok(()),
    }
}

/// A schema for the fields of a request.
#[derive(Debug)]
pub(super) struct FieldsSchema {
    schema: Schema,
    /// The names that the schema spells with capitals, by their lower case.
    spelled: HashMap<String, String>,
}

impl FieldsSchema {
    /// Compiles the schema in `header_schema`.
    pub(super) fn compile(schema: Map<String, Value>) -> Result<Self, Invalid> {
        let mut names = HashMap::new();
        collect_names(&schema, &mut |name| {
            let known = names.entry(name.to_ascii_lowercase()).or_insert_with(|| name.to_owned());
            if *known == name { Ok(()) } else { Err(format!("spells a field as {known:?} and as {name:?}")) }
        })
        .map_err(|message| Invalid::new("header_schema", message))?;
        names.retain(|lower, spelled| lower != spelled);
        Ok(Self { schema: Schema::compile("header_schema", schema)?, spelled: names })
    }

    /// Checks the fields of a request.
    pub(super) fn check(&self, request: &Request) -> Result<(), String> {
        let mut fields = Map::new();
        for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
            let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
            let name = self.spelled.get(&lower).cloned().unwrap_or(lower);
            let value = Value::String(String::from_utf8_lossy(value).into_owned());
            match fields.get_mut(&name) {
                Some(Value::Array(values)) => values.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
                None => {
                    fields.insert(name, value);
                }
            }
        }
        self.schema.check(&Value::Object(fields))
    }
}

/// Warnings of formats in the schema at `path` that are not checked.
pub(super) fn unchecked_formats(path: &str, schema: &Value, warnings: &mut Vec<Invalid>) {
    match schema {
        Value::Object(members) => {
            for (keyword, inner) in members {
                let path = format!("{path}.{keyword}");
                match (keyword.as_str(), inner) {
                    ("const" | "enum" | "default" | "examples", _) => {}
                    ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => {
                        let message = format!("the format {format:?} is not checked: only {} are", FORMATS.join(", "));
                        warnings.push(Invalid::warning(path, message));
                    }
                    _ => unchecked_formats(&path, inner, warnings),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                unchecked_formats(&format!("{path}[{index}]"), item, warnings);
            }
        }
        _ => {}
    }
}

/// Gives the names of fields that a schema speaks of, wherever in it, to `take`.
fn collect_names(schema: &Map<String, Value>, take: &mut impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties" | "dependencies" | "dependentRequired" | "dependentSchemas", Value::Object(members)) => {
                for (name, inner) in members {
                    take(name)?;
                    in_value(inner, take)?;
                }
            }
            ("required", Value::Array(names)) => names.iter().filter_map(Value::as_str).try_for_each(&mut *take)?,
            ("const" | "enum" | "default" | "examples", _) => {}
            (_, inner) => in_value(inner, take)?,
        }
    }
    Ok(())
}

fn in_value(value: &Value, take: &mut impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    match value {
        Value::Object(schema) => collect_names(schema, take),
        Value::Array(items) => items.iter().try_for_each(|item| in_value(item, take)),
        _ => Ok(()),
    }
}
