//! Kong's `request-termination`.

mod echo;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestTermination;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Status of the answer.
    #[schemars(range(min = 200, max = 599))]
    status_code: u16,
    /// Message, which makes a JSON body.
    message: Option<String>,
    /// The body as it is sent.
    body: Option<String>,
    /// Its media type.
    content_type: Option<String>,
    /// Answers with a JSON object that has the request.
    echo: bool,
    /// Field or query argument without which requests go on.
    trigger: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self { status_code: 503, message: None, body: None, content_type: None, echo: false, trigger: None }
    }
}

impl Define for RequestTermination {
    const NAME: &'static str = "request-termination";
    const PRIORITY: i32 = 2;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Answers requests itself.";
    const EXAMPLE: &'static str = "status_code: 403\nmessage: closed\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.message.is_some() && (conf.body.is_some() || conf.content_type.is_some()) {
            cx.say([Invalid::new("message", "message cannot be used with content_type or body")]);
        }
        if conf.content_type.is_some() && conf.body.is_none() {
            cx.say([Invalid::new("content_type", "content_type requires a body")]);
        }
        let trigger = match conf.trigger {
            None => None,
            Some(name) => {
                let field = FieldName::new(&name);
                let field = cx.ok(field.ok_or_else(|| Invalid::new("trigger", "expected the name of a header")))?;
                Some((field, name.into_bytes()))
            }
        };
        let default = match conf.status_code {
            401 => Some("Unauthorized"),
            404 => Some("Not found"),
            405 => Some("Method not allowed"),
            500 => Some("An unexpected error occurred"),
            502 => Some("Bad Gateway"),
            503 => Some("Service unavailable"),
            _ => None,
        };
        let echo = conf.echo.then(|| conf.message.clone().or_else(|| default.map(str::to_owned)));
        let (body, content_type) = match (conf.body, conf.message.as_deref().or(default)) {
            (Some(body), _) => (body, conf.content_type),
            (None, Some(message)) => {
                let body = serde_json::json!({ "message": message }).to_string();
                (body, Some("application/json; charset=utf-8".to_owned()))
            }
            (None, None) => (String::new(), None),
        };
        Some(Compiled::ready(Closed { status: conf.status_code, body, content_type, trigger, echo }))
    }
}

/// An instance.
#[derive(Debug)]
struct Closed {
    status: u16,
    body: String,
    content_type: Option<String>,
    trigger: Option<(FieldName, Vec<u8>)>,
    /// With `echo` the message beside the request, where there is one.
    #[allow(clippy::option_option, reason = "an echo may have no message")]
    echo: Option<Option<String>>,
}

impl Plugin for Closed {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if let Some((field, name)) = &self.trigger {
            let is_argument = cx.request().query().is_some_and(|query| query::argument(query, name).is_some());
            if !is_argument && cx.request().field(field).is_none() {
                return Flow::Continue;
            }
        }
        if let Some(message) = &self.echo {
            if cx.body().is_none() {
                return Flow::AwaitBody;
            }
            let text = echo::text(cx, message.as_deref());
            let answer = cx.reply(self.status).field("Content-Type", b"application/json; charset=utf-8");
            return answer.whole_body(text).done();
        }
        let mut answer = cx.reply(self.status);
        if let Some(kind) = &self.content_type {
            answer = answer.field("Content-Type", kind.as_bytes());
        }
        answer.body(self.body.as_bytes()).done()
    }
}
