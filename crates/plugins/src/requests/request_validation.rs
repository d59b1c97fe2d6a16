//! `request-validation`: fields and body of a request have to follow a JSON Schema.

pub(crate) mod decode;
pub(crate) mod scalar;
pub(crate) mod schema;
mod words;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::head::Content;
use weir_wire::name::Known;

use schema::{FieldsSchema, Schema, unchecked_formats};

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestValidation;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// A JSON Schema for the fields of the request: an object with a text for each field, or a list of texts for one
    /// that is repeated. Names are compared without regard to case.
    header_schema: Option<Map<String, Value>>,
    /// A JSON Schema for the body, which is collected whole, up to `limits.buffered_body`.
    body_schema: Option<Map<String, Value>>,
    /// Most bytes of a body that is checked, where it is less than `limits.buffered_body`: a longer one is refused as
    /// one that does not follow its schema.
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The body of a refusal; unset: what is wrong, in up to 512 bytes, which may hold the value that is.
    #[schemars(length(min = 1, max = 256))]
    rejected_msg: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            header_schema: None,
            body_schema: None,
            max_req_body_size: 64 << 20,
            rejected_code: 400,
            rejected_msg: None,
        }
    }
}

impl Define for RequestValidation {
    const NAME: &'static str = "request-validation";
    const PRIORITY: i32 = 2800;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Refuses requests whose fields or body do not follow a JSON Schema. At least one of `header_schema` and `body_schema` is \
needed.

A body of the media type `application/x-www-form-urlencoded` is read as an object: a text for each argument, a list of \
texts for one that is repeated, `true` for one without `=`. Every other body has to be JSON. Where there is a \
`body_schema`, a request without a body is refused, and one with two `Content-Type` fields, of which the upstream might \
go by the other.

The upstream receives the body as the client sent it. So that it cannot read it in another way than it was checked, JSON \
in which an object has the same name twice is refused.

Schemas are of draft 7 unless `$schema` names another draft (4, 6, 7, 2019-09 and 2020-12 are known). They are compiled \
when the configuration is loaded; one that is wrong, or refers to another document, refuses the configuration. Patterns \
are matched in linear time whatever is sent, and of `format` only `email`, `hostname`, `ipv4` and `ipv6` are checked, as \
in APISIX; look-around and back-references, which that rules out, refuse the \
configuration too.";
    const EXAMPLE: &'static str = "\
body_schema:
  type: object
  required: [item, count]
  properties:
    item: {type: string, minLength: 1}
    count: {type: integer, minimum: 1}
rejected_code: 422
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.header_schema.is_none() && conf.body_schema.is_none() {
            cx.say([Invalid::new("", "expected at least one of header_schema and body_schema")]);
        }
        let schemas = [("header_schema", conf.header_schema.clone()), ("body_schema", conf.body_schema.clone())];
        let header = conf.header_schema.map(|schema| cx.ok(FieldsSchema::compile(schema)));
        let body = conf.body_schema.map(|schema| cx.ok(Schema::compile("body_schema", schema)));
        let mut unchecked = Vec::new();
        for (field, schema) in schemas {
            if let Some(schema) = schema {
                unchecked_formats(field, &Value::Object(schema), &mut unchecked);
            }
        }
        cx.say(unchecked);
        Some(Compiled::ready(Validated {
            header: match header {
                Some(header) => Some(header?),
                None => None,
            },
            body: match body {
                Some(body) => Some(body?),
                None => None,
            },
            most: conf.max_req_body_size,
            code: conf.rejected_code,
            message: conf.rejected_msg,
        }))
    }
}

/// An instance. Reading a message into a tree allocates, which is little beside checking it.
#[derive(Debug)]
struct Validated {
    header: Option<FieldsSchema>,
    body: Option<Schema>,
    /// Most bytes of a body.
    most: u64,
    code: u16,
    message: Option<String>,
}

impl Plugin for Validated {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(schema) = &self.header
            && let Err(why) = schema.check(cx.request())
        {
            return self.refuse(cx, &why);
        }
        let Some(schema) = &self.body else { return Flow::Continue };
        if content_types(cx) > 1 {
            return self.refuse(cx, "the request has more than one Content-Type");
        }
        if let Content::Length(length) = cx.request().head.content
            && length > self.most
        {
            return self.refuse(cx, TOO_LONG);
        }
        let Some(body) = cx.body() else { return Flow::AwaitBody };
        let read = match body {
            [] => Err("the request has no body".to_owned()),
            // One that came in chunks, and so with no length.
            body if body.len() as u64 > self.most => Err(TOO_LONG.to_owned()),
            body if is_form(cx) => Ok(decode::form(body)),
            body => decode::json(body).map_err(|error| format!("the body is not JSON: {error}")),
        };
        match read.and_then(|body| schema.check(&body)) {
            Ok(()) => Flow::Continue,
            Err(why) => self.refuse(cx, &why),
        }
    }
}

const TOO_LONG: &str = "the request body is longer than max_req_body_size";

impl Validated {
    fn refuse(&self, cx: &mut RequestCx<'_>, why: &str) -> Flow {
        let body = self.message.as_deref().unwrap_or(why);
        cx.reply(self.code).field("Content-Type", b"text/plain; charset=utf-8").body(body.as_bytes()).done()
    }
}

fn content_types(cx: &RequestCx<'_>) -> usize {
    let request = cx.request();
    let fields = request.head.fields.iter(request.buffer.bytes());
    fields.filter(|(name, _)| Known::classify(name) == Known::ContentType).count()
}

/// True if the body says that it is a form, whatever parameters follow.
fn is_form(cx: &RequestCx<'_>) -> bool {
    let request = cx.request();
    let kind = request.head.fields.get_known(request.buffer.bytes(), Known::ContentType).unwrap_or_default();
    let essence = kind.split(|b| *b == b';').next().unwrap_or_default();
    weir_wire::trim_ows(essence).eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}
