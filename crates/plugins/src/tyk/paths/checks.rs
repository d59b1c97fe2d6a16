//! Bodies that are checked against a schema, and answers that are mocked.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{Flow, Invalid, RequestCx};

use crate::requests::request_validation::schema::Schema;
use crate::tyk::body;

/// An answer in place of the upstream's.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct MockConf {
    path: String,
    method: String,
    code: i64,
    body: String,
    headers: BTreeMap<String, String>,
}

impl MockConf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Mock {
    status: u16,
    body: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl Mock {
    pub(super) fn compile(conf: MockConf, field: &str) -> Result<Self, Invalid> {
        let status = if conf.code == 0 { 200 } else { conf.code };
        let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
        let status =
            status.ok_or_else(|| Invalid::new(format!("{field}.code"), "expected a status from 200 to 599"))?;
        Ok(Self { status, body: conf.body.into_bytes(), headers: conf.headers.into_iter().collect() })
    }

    pub(super) fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut answer = cx.reply(self.status);
        let has_type = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        for (name, value) in &self.headers {
            answer = answer.field(name, value.as_bytes());
        }
        if !has_type {
            answer = answer.field("Content-Type", b"text/plain; charset=utf-8");
        }
        answer.body(&self.body).done()
    }
}

/// A schema for bodies.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ValidationConf {
    path: String,
    method: String,
    /// The schema.
    #[schemars(with = "BTreeMap<String, Value>")]
    schema: Map<String, Value>,
    /// The schema in base64.
    schema_b64: String,
    /// Status of a refusal; 0: 422.
    error_response_code: i64,
}

impl ValidationConf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Validation {
    schema: Schema,
    status: u16,
}

/// Most faults that are told of one body.
const MOST_FAULTS: usize = 16;

impl Validation {
    pub(super) fn compile(conf: ValidationConf, field: &str) -> Result<Self, Invalid> {
        let schema = match conf.schema_b64.is_empty() {
            true => conf.schema,
            false => {
                let text = STANDARD.decode(conf.schema_b64.trim()).ok();
                let schema = text.and_then(|text| serde_json::from_slice::<Map<String, Value>>(&text).ok());
                let text = "expected a JSON schema in base64";
                schema.ok_or_else(|| Invalid::new(format!("{field}.schema_b64"), text))?
            }
        };
        let status = if conf.error_response_code == 0 { 422 } else { conf.error_response_code };
        let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
        let text = "expected a status from 200 to 599";
        let status = status.ok_or_else(|| Invalid::new(format!("{field}.error_response_code"), text))?;
        Ok(Self { schema: Schema::compile(&format!("{field}.schema"), schema)?, status })
    }

    /// Checks the body, which is collected first.
    pub(super) fn check(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(body) = cx.body() else { return Flow::AwaitBody };
        let value = match serde_json::from_slice::<Value>(body) {
            Ok(value) => value,
            Err(error) => {
                let text = match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
                    None => "JSON parsing error: EOF".to_owned(),
                    Some(_) => format!("JSON parsing error: {error}"),
                };
                return body::error(cx, 400, &text, &[]);
            }
        };
        let faults: Vec<String> = self.schema.faults(&value).take(MOST_FAULTS).map(|fault| words(&fault)).collect();
        if faults.is_empty() { Flow::Continue } else { body::error(cx, self.status, &faults.join("; "), &[]) }
    }
}

/// Tyk's words for a fault: the place and the rule.
fn words(fault: &jsonschema::ValidationError<'_>) -> String {
    let place = fault.instance_path().as_str().trim_start_matches('/').replace('/', ".");
    let place = if place.is_empty() { "(root)" } else { &place };
    let text = match fault.kind() {
        Kind::Required { property } => format!("{} is required", property.as_str().unwrap_or_default()),
        Kind::Type { kind } => {
            let expected = match kind {
                TypeKind::Single(one) => one.to_string(),
                TypeKind::Multiple(several) => several.iter().map(|one| one.to_string()).collect::<Vec<_>>().join("/"),
            };
            format!("Invalid type. Expected: {expected}, given: {}", type_of(fault.instance()))
        }
        Kind::AdditionalProperties { unexpected } => {
            let name = unexpected.first().map(String::as_str).unwrap_or_default();
            format!("Additional property {name} is not allowed")
        }
        Kind::MinLength { limit } => format!("String length must be greater than or equal to {limit}"),
        Kind::MaxLength { limit } => format!("String length must be less than or equal to {limit}"),
        Kind::Minimum { limit } => format!("Must be greater than or equal to {limit}"),
        Kind::Maximum { limit } => format!("Must be less than or equal to {limit}"),
        Kind::Pattern { pattern } => format!("Does not match pattern '{pattern}'"),
        Kind::MinItems { limit } => format!("Array must have at least {limit} items"),
        Kind::MaxItems { limit } => format!("Array must have at most {limit} items"),
        // Sent entries are left out.
        _ => fault.masked().to_string(),
    };
    format!("{place}: {text}")
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
