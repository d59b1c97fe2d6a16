//! `mocking`: the gateway answers by itself.

mod shape;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_expr::Template;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::fields::Fields;
use weir_wire::name::Known;

use crate::fields::{AnswerFields, FieldsConf};
use shape::Shape;

/// The definition.
#[derive(Debug)]
pub(crate) struct Mocking;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Seconds to wait before answering.
    #[schemars(range(max = 86400))]
    delay: u32,
    /// Status of the answer.
    #[schemars(range(min = 200, max = 999))]
    response_status: u16,
    /// `Content-Type` of the answer: `application/json`, `application/xml`, `text/plain`, `text/html` or `text/xml`, with
    /// any parameters.
    content_type: String,
    /// The body, in which variables such as `$remote_addr` are replaced. It goes before `response_schema`; one of the two
    /// has to be there.
    response_example: Option<String>,
    /// A JSON schema that the body is made by, with random values. Types are `string`, `number`, `integer`, `boolean`,
    /// `object` (by its `properties`) and `array` (of one to three `items`); a value's `example` is taken as it is, if it
    /// is of the type. A member of another type is left out, as is an array without `items`. As XML where `content_type`
    /// says so.
    response_schema: Option<Map<String, Value>>,
    /// Adds `x-mock-by` with the name and the version of the gateway.
    with_mock_header: bool,
    /// Fields of the answer; variables in the values are replaced.
    response_headers: Option<FieldsConf>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            delay: 0,
            response_status: 200,
            content_type: "application/json;charset=utf8".into(),
            response_example: None,
            response_schema: None,
            with_mock_header: true,
            response_headers: None,
        }
    }
}

impl Define for Mocking {
    const NAME: &'static str = "mocking";
    const PRIORITY: i32 = 10900;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests here, with a fixed body or one made by a JSON schema, and asks no upstream: for a service that is not \
there yet, or must not be asked.";
    const EXAMPLE: &'static str = "\
response_status: 201
content_type: application/json
response_example: '{\"id\": 7, \"from\": \"$remote_addr\"}'
response_headers:
  X-Stage: mock
";

    const TEMPLATES: &'static [&'static str] = &["response_example", "response_headers.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut warnings = Vec::new();
        let body = cx.ok(conf.body(&mut warnings));
        cx.say(warnings);
        cx.say(conf.check_content_type().err());
        let fields = cx.ok(conf.fields());
        if conf.response_example.is_some() && conf.response_schema.is_some() {
            cx.warn("response_schema", "response_example goes before response_schema, which has no effect");
        }
        let fields = fields?;
        let mut constant = Fields::default();
        if !fields.has(Known::ContentType) {
            constant.add(b"Content-Type", conf.content_type.as_bytes());
        }
        let delay = Duration::from_secs(conf.delay.into());
        let body = body?;
        Some(Compiled::build(move |build| {
            if conf.with_mock_header {
                constant.add(b"x-mock-by", build.product.as_bytes());
            }
            Ok(Mocked { status: conf.response_status, delay, body, constant, fields })
        }))
    }
}

/// The types whose bodies this plugin makes.
const TYPES: [&str; 5] = ["application/json", "application/xml", "text/plain", "text/html", "text/xml"];

impl Conf {
    fn media_type(&self) -> &str {
        self.content_type.split(';').next().unwrap_or_default().trim()
    }

    fn check_content_type(&self) -> Result<(), Invalid> {
        if !TYPES.contains(&self.media_type()) {
            return Err(Invalid::new("content_type", format!("expected one of {}", TYPES.join(", "))));
        }
        if !self.content_type.bytes().all(weir_wire::is_field_byte) {
            return Err(Invalid::new("content_type", "a field's value may not hold control characters"));
        }
        Ok(())
    }

    fn fields(&self) -> Result<AnswerFields, Invalid> {
        AnswerFields::compile(self.response_headers.as_ref(), "response_headers")
    }

    /// The body, and what there is to say of it.
    fn body(&self, warnings: &mut Vec<Invalid>) -> Result<Body, Invalid> {
        if let Some(example) = &self.response_example {
            let template =
                Template::parse_lenient(example, false).map_err(|e| Invalid::new("response_example", e.to_string()))?;
            return Ok(match template.literal() {
                Some(literal) => Body::Fixed(literal.into()),
                None => Body::Template(template),
            });
        }
        let Some(schema) = &self.response_schema else {
            return Err(Invalid::new("", "one of response_example and response_schema has to be there"));
        };
        let shape = Shape::of_object(schema, "response_schema", warnings)?;
        match self.media_type() {
            "application/xml" | "text/xml" => Ok(Body::Xml(shape)),
            "text/html" => {
                let message = "response_schema makes JSON or XML, not HTML: the body is empty";
                warnings.push(Invalid::warning("content_type", message));
                Ok(Body::Fixed(Box::default()))
            }
            _ => Ok(Body::Json(shape)),
        }
    }
}

/// An instance.
#[derive(Debug)]
struct Mocked {
    status: u16,
    delay: Duration,
    body: Body,
    /// Fields that are the same for all requests.
    constant: Fields,
    fields: AnswerFields,
}

#[derive(Debug)]
enum Body {
    Fixed(Box<[u8]>),
    Template(Template),
    Json(Shape),
    Xml(Shape),
}

impl Plugin for Mocked {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.delay.is_zero() { self.answer(cx) } else { Flow::Suspend }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long it waits.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            weir_runtime::sleep(self.delay).await;
            self.answer(cx)
        })
    }
}

impl Mocked {
    fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let ends = self.fields.render(cx.source(), &mut room);
        match &self.body {
            Body::Template(template) => template.render(cx.source(), &mut room),
            Body::Json(shape) => shape.write_json(&mut room),
            Body::Xml(shape) => shape.write_xml(&mut room),
            Body::Fixed(_) => {}
        }
        let answer = cx.reply(self.status).fields(&self.constant);
        let answer = self.fields.add_to(answer, room.get(..ends).unwrap_or_default());
        let body = match &self.body {
            Body::Fixed(body) => body,
            _ => room.get(ends..).unwrap_or_default(),
        };
        let flow = answer.body(body).done();
        cx.put_scratch(room);
        flow
    }
}
