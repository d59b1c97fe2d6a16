//! `request-validator` of Kong Enterprise: parameters and JSON bodies have to follow schemas.

mod own_schema;
mod parameter;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use crate::requests::request_validation::decode;
use crate::requests::request_validation::schema::Schema;
use parameter::{Parameter, ParameterConf};

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestValidator;

/// Language of `body_schema`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Version {
    Kong,
    Draft4,
    Draft6,
    Draft7,
    Draft201909,
    Draft202012,
}

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The schema of bodies, as a text in JSON.
    body_schema: Option<String>,
    /// Media types of requests, where there is a `body_schema`; only JSON is checked by it.
    allowed_content_types: Vec<String>,
    /// True if the parameters of media types have to be those of `allowed_content_types`.
    content_type_parameter_validation: bool,
    /// Language of `body_schema`: Kong's own, or a draft of JSON Schema.
    version: Version,
    /// Parameters in the query, in headers and in the path.
    parameter_schema: Option<Vec<ParameterConf>>,
    /// Tells clients what is wrong.
    verbose_response: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            body_schema: None,
            allowed_content_types: vec!["application/json".into()],
            content_type_parameter_validation: true,
            version: Version::Kong,
            parameter_schema: None,
            verbose_response: false,
        }
    }
}

impl Version {
    const fn uri(self) -> &'static str {
        match self {
            Self::Draft4 => "http://json-schema.org/draft-04/schema#",
            Self::Draft6 => "http://json-schema.org/draft-06/schema#",
            Self::Kong | Self::Draft7 => "http://json-schema.org/draft-07/schema#",
            Self::Draft201909 => "https://json-schema.org/draft/2019-09/schema",
            Self::Draft202012 => "https://json-schema.org/draft/2020-12/schema",
        }
    }

    fn compile(self, field: &str, text: &str) -> Result<Schema, Invalid> {
        let written: Value = serde_json::from_str(text)
            .map_err(|error| Invalid::new(field, format!("expected a schema in JSON: {error}")))?;
        let schema = match (self, written) {
            (Self::Kong, Value::Array(fields)) => {
                own_schema::to_json_schema(&fields).map_err(|text| Invalid::new(field, text))?
            }
            (Self::Kong, _) => {
                return Err(Invalid::new(field, "expected a list of fields; for JSON Schema set version: draft4"));
            }
            (_, Value::Object(mut schema)) => {
                schema.entry("$schema").or_insert_with(|| self.uri().into());
                schema
            }
            _ => return Err(Invalid::new(field, "expected an object with a JSON Schema")),
        };
        Schema::compile(field, schema)
    }
}

impl Define for RequestValidator {
    const NAME: &'static str = "request-validator";
    const PRIORITY: i32 = 999;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Refuses requests whose parameters or JSON bodies do not follow schemas.";
    const EXAMPLE: &'static str = "\
{version: draft4, body_schema: '{\"type\": \"object\", \"required\": [\"name\"]}', verbose_response: true}
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let parameters = conf.parameter_schema.unwrap_or_default();
        if conf.body_schema.is_none() && parameters.is_empty() {
            cx.say([Invalid::new(
                "",
                "at least one of these fields must be non-empty: 'body_schema', 'parameter_schema'",
            )]);
            return None;
        }
        let body = conf.body_schema.as_deref().map(|text| conf.version.compile("body_schema", text));
        let body = cx.ok(body.transpose());
        let mut compiled = Vec::with_capacity(parameters.len());
        for (at, parameter) in parameters.into_iter().enumerate() {
            compiled.push(cx.ok(Parameter::compile(
                parameter,
                &format!("parameter_schema[{at}]"),
                Version::Draft4.uri(),
            )));
        }
        let kinds: Vec<_> = conf.allowed_content_types.iter().map(|kind| ContentType::read(kind.as_bytes())).collect();
        if kinds.is_empty() || kinds.iter().any(|kind| !kind.essence.contains(&b'/')) {
            cx.say([Invalid::new("allowed_content_types", "expected media types such as application/json")]);
        }
        Some(Compiled::ready(Validator {
            body: body?,
            kinds: kinds.into(),
            has_strict_kinds: conf.content_type_parameter_validation,
            parameters: compiled.into_iter().collect::<Option<_>>()?,
            is_verbose: conf.verbose_response,
            content_type: FieldName::constant("content-type"),
        }))
    }
}

/// A media type with its first parameter, in lower case.
#[derive(Debug, PartialEq, Eq)]
struct ContentType {
    essence: Vec<u8>,
    parameter: Option<Vec<u8>>,
}

impl ContentType {
    fn read(text: &[u8]) -> Self {
        let mut parts = text.split(|byte| *byte == b';').map(|part| weir_wire::trim_ows(part).to_ascii_lowercase());
        Self { essence: parts.next().unwrap_or_default(), parameter: parts.next().filter(|part| !part.is_empty()) }
    }
}

/// An instance. Reading a message into a tree allocates, which is little beside checking it.
#[derive(Debug)]
struct Validator {
    body: Option<Schema>,
    kinds: Box<[ContentType]>,
    has_strict_kinds: bool,
    parameters: Box<[Parameter]>,
    is_verbose: bool,
    content_type: FieldName,
}

impl Plugin for Validator {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        for parameter in &self.parameters {
            if let Err(why) = parameter.check(cx) {
                return self.refuse(cx, "request param doesn't conform to schema", &why);
            }
        }
        let Some(schema) = &self.body else { return Flow::Continue };
        let kind = self.content_type(cx);
        let is_allowed = |kind: &ContentType| {
            let allows = |allowed: &ContentType| {
                allowed.essence == kind.essence && (!self.has_strict_kinds || allowed.parameter == kind.parameter)
            };
            self.kinds.iter().any(allows)
        };
        let Some(kind) = kind.filter(is_allowed) else {
            return exit(cx, &json!({ "message": "specified Content-Type is not allowed" }));
        };
        if kind.essence != b"application/json" {
            return Flow::Continue;
        }
        let Some(body) = cx.body() else { return Flow::AwaitBody };
        let read = decode::json(body).map_err(|error| format!("the body is not JSON: {error}"));
        match read.and_then(|body| schema.check(&body)) {
            Ok(()) => Flow::Continue,
            Err(why) => self.refuse(cx, "request body doesn't conform to schema", &why),
        }
    }
}

impl Validator {
    /// The media type of a request, JSON where it tells none; `None` if it tells several.
    fn content_type(&self, cx: &RequestCx<'_>) -> Option<ContentType> {
        let request = cx.request();
        let mut given = request.head.fields.all(request.buffer.bytes(), &self.content_type);
        let first = ContentType::read(given.next().unwrap_or(b"application/json"));
        given.next().is_none().then_some(first)
    }

    fn refuse(&self, cx: &mut RequestCx<'_>, message: &str, why: &str) -> Flow {
        let mut body = Map::from_iter([("message".to_owned(), Value::from(message))]);
        if self.is_verbose {
            body.insert("error".to_owned(), why.into());
        }
        exit(cx, &Value::Object(body))
    }
}

/// Answers with JSON and 400.
fn exit(cx: &mut RequestCx<'_>, body: &Value) -> Flow {
    let answer = cx.reply(400).field("Content-Type", b"application/json; charset=utf-8");
    answer.body(body.to_string().as_bytes()).done()
}
