//! `body-transformer`: bodies of requests and responses, made anew by templates.

mod decode;
mod functions;
mod lexer;
mod parser;
mod template;
mod value;

use std::borrow::Cow;
use std::rc::Rc;

use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Source;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Failure, Flow, Invalid, PerRequest, Phases, Plugin, RequestCx, ResponseCx,
};
use weir_wire::method::Method;

use super::BASE64;
use super::response_rewrite::{GZIP, forget_body, gunzip};
use decode::Format;
use template::{Input, Template};
use value::Table;

/// The parts of a multipart body by their names, as JSON.
pub(crate) fn multipart_as_json(body: &[u8], content_type: &[u8]) -> Result<serde_json::Value, String> {
    decode::multipart(body, content_type).map(|parts| value::Value::Table(parts).to_json())
}

/// The definition.
#[derive(Debug)]
pub(crate) struct BodyTransformer;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Makes the request body that the node receives.
    request: Option<Side>,
    /// Makes the response body that the client receives.
    response: Option<Side>,
    /// Most bytes of a request body, where it is less than `limits.buffered_body`: a longer one is answered 413.
    #[serde(default = "most")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
    /// Most bytes of a response body, where it is less than `limits.buffered_body`: a longer one is answered 502.
    #[serde(default = "most")]
    #[schemars(range(min = 1))]
    max_resp_body_size: u64,
}

/// A template, and the form of the bodies that it reads.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Side {
    /// The form of the body. Unset: by `Content-Type` (`text/xml`, `application/json`,
    /// `application/x-www-form-urlencoded`, `multipart/…`), and none that is read for any other type. A request with the
    /// method `GET` is read as `args` in any case.
    input_format: Option<Format>,
    /// The template.
    template: String,
    /// The template is written in base64. Where the form is neither `encoded` nor `args`, a template that can be read as base64
    /// is taken for base64 in any case, as in APISIX.
    #[serde(default)]
    template_is_base64: bool,
}

const fn most() -> u64 {
    64 << 20
}

impl Define for BodyTransformer {
    const NAME: &'static str = "body-transformer";
    const PRIORITY: i32 = 1080;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "\
Makes the bodies of requests and responses anew, by templates in the form of lua-resty-template that read the body as JSON, \
XML, a form or a multipart body.

| in a template | meaning |
|---|---|
| `{{ value }}`, `{* value *}` | prints a value, escaped for HTML or as it is; `nil` and `null` print nothing |
| `{% if … then %} {% elseif … then %} {% else %} {% end %}` | as in Lua |
| `{% for key, value in pairs(table) do %} {% end %}` | also `ipairs`, and `for i = 1, 9 do` |
| `{% local name = value %}` | a variable |
| `{# … #}`, `{-raw-} … {-raw-}` | a comment, text without marks |
| `name`, `a.b[\"c\"][1]` | values of the body |
| `_body`, `_ctx.var.NAME` | the body as it came, a variable |
| `..` `+` `-` `*` `/` `%` `#` `==` `~=` `<` `<=` `>` `>=` `and` `or` `not` | as in Lua |
| `_escape_json(value)`, `_escape_xml(text)` | a value as JSON, a text for XML |
| `tostring` `tonumber` `type` `string.upper` `lower` `len` `sub` `gsub` `table.concat` `math.floor` `ceil` | as in Lua, also as \
`text:upper()`; `gsub` replaces texts, not patterns |

Nothing else of Lua is there: a template that needs more is refused by name. Of XML, an element with text alone is that \
text, one that comes several times a list, and attributes are in `_attr`; prefixes of namespaces are left out. A template takes \
at most 4 million steps and prints at most 16 MiB.

A request body that cannot be read is answered 400, and a template that fails on it 503, with the reason in `message`. Of a \
response it is 502. A response in gzip is decoded; one in another coding is answered 502.";
    const EXAMPLE: &'static str = "\
request:
  input_format: json
  template: '<user><name>{{_escape_xml(name)}}</name></user>'
response:
  input_format: xml
  template: '{\"id\": {{user.id}}, \"from\": {*_escape_json(_ctx.var.host)*}}'
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.request.is_none() && conf.response.is_none() {
            cx.say([Invalid::new("", "expected request, response or both")]);
        }
        let request = cx.ok(conf.request.as_ref().map(|side| Transform::new("request", side)).transpose());
        let response = cx.ok(conf.response.as_ref().map(|side| Transform::new("response", side)).transpose());
        Some(Compiled::ready(Transforming {
            request: request?,
            response: response?,
            most_of_request: conf.max_req_body_size,
            most_of_response: conf.max_resp_body_size,
            reads_response: PerRequest::new(),
        }))
    }
}

/// A template for one side.
#[derive(Debug)]
struct Transform {
    side: &'static str,
    format: Option<Format>,
    template: Template,
    /// The template read as base64, for forms of which only the body decides.
    decoded: Option<Template>,
    is_base64: bool,
}

/// The reason why a body is not made.
enum Fault {
    /// The body cannot be read.
    Body(String),
    /// The template fails.
    Template(String),
}

impl Transform {
    fn new(side: &'static str, conf: &Side) -> Result<Self, Invalid> {
        let fault = |reason| Invalid::new(format!("{side}.template"), reason);
        let parse = |text: &str| Template::parse(text).map_err(fault);
        let takes_base64 =
            conf.template_is_base64 || !matches!(conf.input_format, Some(Format::Encoded | Format::Args));
        let decoded = if takes_base64 { decode_base64(&conf.template) } else { None };
        let decoded = decoded.map(|text| parse(&text)).transpose()?;
        let template = parse(&conf.template)?;
        Ok(Self { side, format: conf.input_format, template, decoded, is_base64: conf.template_is_base64 })
    }

    /// The new body.
    fn body(
        &self,
        body: Option<&[u8]>,
        format: Option<Format>,
        content_type: &[u8],
        query: &[u8],
        source: &dyn Source,
    ) -> Result<Vec<u8>, Fault> {
        let unread = |error: String| Fault::Body(format!("{} body decode: {error}", self.side));
        let bytes = body.unwrap_or_default();
        let fields = match format {
            Some(Format::Args) => decode::form(query),
            _ if body.is_none() => Rc::new(Table::default()),
            Some(Format::Json) => decode::json(bytes).map_err(unread)?,
            Some(Format::Xml) => decode::xml(bytes).map_err(unread)?,
            Some(Format::Encoded) => decode::form(bytes),
            Some(Format::Multipart) => decode::multipart(bytes, content_type).map_err(unread)?,
            Some(Format::Plain) | None => Rc::new(Table::default()),
        };
        let reads_base64 = self.is_base64 || !matches!(format, None | Some(Format::Encoded | Format::Args));
        let template = self.decoded.as_ref().filter(|_| reads_base64).unwrap_or(&self.template);
        let input = Input { fields: &fields, body, source };
        let failed = |error| Fault::Template(format!("{} template rendering: {error}", self.side));
        template.render(&input).map_err(failed)
    }
}

/// Reads base64 with or without padding.
fn decode_base64(text: &str) -> Option<String> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    String::from_utf8(BASE64.decode(text).ok()?).ok()
}

/// An instance.
#[derive(Debug)]
struct Transforming {
    request: Option<Transform>,
    response: Option<Transform>,
    most_of_request: u64,
    most_of_response: u64,
    /// Set for a response whose body is made anew.
    reads_response: PerRequest<()>,
}

impl Plugin for Transforming {
    fn phases(&self, declared: Phases) -> Phases {
        let without_request = if self.request.is_none() { Phases::REWRITE } else { Phases::NONE };
        let without_response = if self.response.is_none() { Phases::RESPONSE.and(Phases::BODY) } else { Phases::NONE };
        declared.without(without_request).without(without_response)
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(transform) = &self.request else { return Flow::Continue };
        let Some(body) = cx.body() else { return Flow::AwaitBody };
        if body.len() as u64 > self.most_of_request {
            return Flow::Abort(Failure::BODY_TOO_LARGE);
        }
        let request = cx.request();
        let content_type = request.field_str("Content-Type").unwrap_or_default();
        let is_get = request.method() == Method::Get;
        let format = match is_get {
            true => Some(Format::Args),
            false => transform.format.or_else(|| Format::of(content_type)),
        };
        let body = Some(body).filter(|body| !body.is_empty());
        let made = transform.body(body, format, content_type, request.query().unwrap_or_default(), cx.source());
        match made {
            Ok(made) => {
                cx.replace_body(&made);
                Flow::Continue
            }
            Err(Fault::Body(reason)) => cx.refuse(400, &reason),
            Err(Fault::Template(reason)) => cx.refuse(503, &reason),
        }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        // That of a response in whose place this one is.
        self.reads_response.take(cx);
        if self.response.is_none() {
            return Flow::Continue;
        }
        if cx.response().content_length().is_some_and(|length| length > self.most_of_response) {
            return TOO_LONG;
        }
        let coding = cx.response().field_str("Content-Encoding").map(weir_wire::trim_ows).unwrap_or_default();
        let readable = [&b""[..], b"identity", b"gzip", b"x-gzip"];
        if !readable.iter().any(|known| known.eq_ignore_ascii_case(coding)) {
            return Flow::Abort(Failure::upstream(502, "response body in a coding that body-transformer cannot read"));
        }
        self.reads_response.put(cx, ());
        cx.filter_body(true);
        forget_body(cx);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, _last: bool) -> Flow {
        let (Some(transform), Some(())) = (&self.response, self.reads_response.get(cx)) else { return Flow::Continue };
        if chunk.len() as u64 > self.most_of_response {
            return TOO_LONG;
        }
        let response = cx.response();
        let base = response.buffer.bytes();
        let mut body = Cow::Borrowed(chunk.as_slice());
        if chunk.starts_with(&GZIP) && response.head.fields.received(base, b"content-encoding").is_some() {
            match gunzip(chunk) {
                Ok(decoded) => body = Cow::Owned(decoded),
                Err(reason) => return Flow::Abort(Failure::upstream(502, reason)),
            }
        }
        let content_type = response.field_str("Content-Type").unwrap_or_default();
        let format = transform.format.or_else(|| Format::of(content_type));
        let view = weir_plugin::HookCx::view(cx);
        let query = view.request().query().unwrap_or_default();
        match transform.body(Some(&body), format, content_type, query, cx.source()) {
            Ok(made) => {
                *chunk = made;
                Flow::Continue
            }
            Err(Fault::Body(reason) | Fault::Template(reason)) => {
                tracing::error!(reason, "body-transformer: a response cannot be made anew");
                Flow::Abort(Failure::upstream(502, "response body that body-transformer cannot make anew"))
            }
        }
    }
}

const TOO_LONG: Flow = Flow::Abort(Failure::upstream(502, "response body longer than max_resp_body_size"));
