//! Bodies of an operation: media types and their schemas.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::schemas::{Source, Types};
use crate::requests::request_validation::decode;
use crate::requests::request_validation::schema::Schema;
use crate::transform::body_transformer::multipart_as_json;

/// The body of an operation.
#[derive(Debug)]
pub(super) struct Body {
    is_required: bool,
    /// Those that name a media type whole stand before ranges, and `*/*` last.
    media: Box<[Media]>,
}

#[derive(Debug)]
struct Media {
    range: Range,
    schema: Option<(Arc<Schema>, BTreeMap<String, Types>)>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Range {
    Exact(Vec<u8>),
    /// The media types that begin so.
    Begin(Vec<u8>),
    All,
}

impl Range {
    fn read(text: &str) -> Self {
        let essence = essence(text.as_bytes());
        match essence.strip_suffix(b"*") {
            Some(b"*/") => Self::All,
            Some(begin) => Self::Begin(begin.to_vec()),
            None => Self::Exact(essence),
        }
    }

    fn has(&self, essence: &[u8]) -> bool {
        match self {
            Self::Exact(own) => own == essence,
            Self::Begin(begin) => essence.starts_with(begin),
            Self::All => true,
        }
    }
}

/// A media type without its parameters, in lower case.
fn essence(text: &[u8]) -> Vec<u8> {
    let essence = text.split(|byte| *byte == b';').next().unwrap_or_default();
    weir_wire::trim_ows(essence).to_ascii_lowercase()
}

impl Body {
    /// Compiles the `requestBody` of an operation.
    pub(super) fn compile<'d>(source: Source<'d>, written: &'d Value) -> Result<Self, String> {
        let written = source.follow(written)?;
        let content = written["content"].as_object().ok_or("requestBody: expected content with media types")?;
        let mut media = Vec::with_capacity(content.len());
        for (name, described) in content {
            let schema = source.follow(described)?.get("schema");
            let compile = |schema: &'d Value| -> Result<_, String> {
                let compiled = source.compile(schema).map_err(|fault| format!("requestBody: {name}: {fault}"))?;
                Ok((compiled, source.properties(schema)))
            };
            media.push(Media { range: Range::read(name), schema: schema.map(compile).transpose()? });
        }
        media.sort_by(|one, other| one.range.cmp(&other.range));
        Ok(Self { is_required: written["required"] == true, media: media.into() })
    }

    /// Checks a body, with the values of all `Content-Type` fields.
    ///
    /// # Errors
    /// Finding about it.
    pub(super) fn check(&self, content_types: &[&[u8]], body: &[u8]) -> Result<(), String> {
        if body.is_empty() {
            return if self.is_required { Err("request body is required".to_owned()) } else { Ok(()) };
        }
        let content_type = match content_types {
            [one] => *one,
            [] => return Err("the request has no Content-Type".to_owned()),
            _ => return Err("the request has more than one Content-Type".to_owned()),
        };
        let kind = essence(content_type);
        let Some(media) = self.media.iter().find(|media| media.range.has(&kind)) else {
            let shown: String = String::from_utf8_lossy(content_type).chars().take(128).collect();
            return Err(format!("content type {shown} is not declared in the spec"));
        };
        let Some((schema, properties)) = &media.schema else { return Ok(()) };
        let value = match kind.as_slice() {
            b"application/x-www-form-urlencoded" => typed(decode::form(body), properties),
            b"multipart/form-data" => typed(multipart_as_json(body, content_type)?, properties),
            kind if kind == b"application/json" || kind.ends_with(b"+json") => {
                decode::json(body).map_err(|error| format!("invalid JSON body: {error}"))?
            }
            // Text, images and so on: no value that a schema could be asked about.
            _ => return Ok(()),
        };
        schema.check(&value)
    }
}

/// The texts of a form as values of the types that the schema has for them.
fn typed(form: Value, properties: &BTreeMap<String, Types>) -> Value {
    let Value::Object(mut fields) = form else { return form };
    for (name, value) in &mut fields {
        if let Some(types) = properties.get(name) {
            *value = types.read_field(value);
        }
    }
    Value::Object(fields)
}
