//! `mocking` of Kong Enterprise: the gateway answers with the examples of an API's description.

mod description;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use description::{Answer, Description, Example};

/// The definition.
#[derive(Debug)]
pub(crate) struct Mocking;

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The description: OpenAPI 3 or Swagger 2, in JSON or YAML.
    api_specification: Option<String>,
    /// Name of a file with the description in a developer portal; not supported.
    api_specification_filename: Option<String>,
    /// Waits before the answer.
    random_delay: bool,
    /// Most seconds of such a delay.
    #[schemars(range(min = 0, max = 60))]
    max_delay_time: f64,
    /// Least seconds of such a delay.
    #[schemars(range(min = 0, max = 60))]
    min_delay_time: f64,
    /// Takes any of several examples, not the first.
    random_examples: bool,
    /// Statuses of which one is answered; without it the lowest that the description has.
    included_status_codes: Option<Vec<u16>>,
    /// Takes any of several statuses, not the lowest.
    random_status_code: bool,
    /// Expects the base path of the description, or `custom_base_path`, before its paths.
    include_base_path: bool,
    /// The base path in the place of the description's.
    custom_base_path: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            api_specification: None,
            api_specification_filename: None,
            random_delay: false,
            max_delay_time: 1.0,
            min_delay_time: 0.001,
            random_examples: false,
            included_status_codes: None,
            random_status_code: false,
            include_base_path: false,
            custom_base_path: None,
        }
    }
}

impl Define for Mocking {
    const NAME: &'static str = "mocking";
    const PRIORITY: i32 = -1;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Answers with the examples of an API's description.";
    const EXAMPLE: &'static str = "\
api_specification: '{\"openapi\": \"3.0.0\", \"paths\": {\"/orders\": {\"get\": {\"responses\": {\"200\": {\"content\": \
{\"application/json\": {\"example\": [1, 2]}}}}}}}}'
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.api_specification_filename.is_some() {
            cx.say([Invalid::new("api_specification_filename", "not supported: write the text as api_specification")]);
        }
        if conf.min_delay_time > conf.max_delay_time {
            cx.say([Invalid::new("min_delay_time", "expected at most max_delay_time")]);
        }
        let text = conf.api_specification.as_deref();
        let text = cx.ok(text.ok_or_else(|| Invalid::new("api_specification", "required field missing")))?;
        let base = conf.include_base_path.then(|| conf.custom_base_path.clone());
        let read = Description::read(text, base).map_err(|reason| Invalid::new("api_specification", reason));
        let description = cx.ok(read)?;
        Some(Compiled::ready(Mocked {
            description,
            delay: conf.random_delay.then_some((conf.min_delay_time, conf.max_delay_time)),
            any_example: conf.random_examples,
            any_status: conf.random_status_code,
            statuses: conf.included_status_codes.filter(|statuses| !statuses.is_empty()),
            fields: ["X-Kong-Mocking-Delay", "X-Kong-Mocking-Example-Id", "X-Kong-Mocking-Status-Code"]
                .map(FieldName::constant),
        }))
    }
}

/// The longest delay that a request may ask for, in seconds.
const LONGEST: f64 = 10.0;

/// An instance.
#[derive(Debug)]
struct Mocked {
    description: Description,
    /// Least and most seconds.
    delay: Option<(f64, f64)>,
    any_example: bool,
    any_status: bool,
    statuses: Option<Vec<u16>>,
    /// Fields with which a request asks for a delay, an example and a status.
    fields: [FieldName; 3],
}

impl Plugin for Mocked {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.seconds(cx) > 0.0 { Flow::Suspend } else { self.answer(cx) }
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(Duration::from_secs(60))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            weir_runtime::sleep(Duration::from_secs_f64(self.seconds(cx))).await;
            self.answer(cx)
        })
    }
}

impl Mocked {
    /// The delay of a request.
    fn seconds(&self, cx: &RequestCx<'_>) -> f64 {
        let asked = self
            .asked(cx, 0)
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|seconds| (0.0..=LONGEST).contains(seconds));
        match (asked, self.delay) {
            (Some(seconds), _) => seconds,
            (None, Some((least, most))) => least + fastrand::f64() * (most - least),
            (None, None) => 0.0,
        }
    }

    fn asked<'c>(&self, cx: &'c RequestCx<'_>, field: usize) -> Option<&'c str> {
        std::str::from_utf8(cx.request().field(self.fields.get(field)?)?).ok()
    }

    fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(answers) = self.description.find(cx.request().method_bytes(), cx.request().path()) else {
            return refuse(cx, "Corresponding path and method spec does not exist in API Specification");
        };
        let Some(answer) = self.choose(cx, answers) else {
            return refuse(cx, "No examples exist in API specification for this resource");
        };
        let status = answer.status;
        let accept = cx.request().field_str("accept").unwrap_or_default();
        let Some(content) = answer.content(accept) else {
            return cx.reply(status).field("X-Kong-Mocking-Plugin", b"true").body(b"").done();
        };
        let asked = self.asked(cx, 1).and_then(|name| content.examples.iter().find(|example| example.name == name));
        let example: Option<&Example> = match asked {
            None if self.any_example => content.examples.get(fastrand::usize(..content.examples.len().max(1))),
            None => content.examples.first(),
            found => found,
        };
        let Some(example) = example else {
            return refuse(cx, "No examples exist in API specification for this resource");
        };
        let answer = cx.reply(status).field("Content-Type", content.kind.as_bytes());
        answer.field("X-Kong-Mocking-Plugin", b"true").body(&example.body).done()
    }

    fn choose<'a>(&self, cx: &RequestCx<'_>, answers: &'a [Answer]) -> Option<&'a Answer> {
        if let Some(status) = self.asked(cx, 2).and_then(|text| text.parse::<u16>().ok()) {
            return answers.iter().find(|answer| answer.status == status);
        }
        let is_included =
            |answer: &&Answer| self.statuses.as_ref().is_none_or(|statuses| statuses.contains(&answer.status));
        let left: Vec<&Answer> = answers.iter().filter(is_included).collect();
        if self.any_status { left.get(fastrand::usize(..left.len().max(1))).copied() } else { left.first().copied() }
    }
}

fn refuse(cx: &mut RequestCx<'_>, message: &str) -> Flow {
    let answer = cx.reply(404).field("Content-Type", b"application/json; charset=utf-8");
    answer.body(json!({ "message": message }).to_string().as_bytes()).done()
}
