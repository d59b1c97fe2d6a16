//! `openwhisk`: requests are answered by an action of Apache OpenWhisk.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    CalloutError, CalloutResponse, CompileCx, Compiled, Define, Failure, Flow, Io, LocalFuture, Phases, Plugin,
    RequestCx, Service, ServiceOptions,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::called::answer;
use super::forwarded::{five, minute, most, three_seconds, yes};
use super::signature::encoded;

/// The definition.
#[derive(Debug)]
pub(crate) struct Openwhisk;

/// On a route or a service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// URI of OpenWhisk's API host.
    api_host: String,
    /// Verifies the certificate of the host.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// User and password as `USER:PASSWORD`, sent in `Authorization` (Basic).
    service_token: String,
    /// Namespace of the action.
    #[schemars(length(max = 256), regex(pattern = r"^([\w]|[\w][\w@ .-]*[\w@.-]+)$"), extend("x-expected" = "a name of OpenWhisk"))]
    namespace: String,
    /// Package of the action.
    #[schemars(length(max = 256), regex(pattern = r"^([\w]|[\w][\w@ .-]*[\w@.-]+)$"), extend("x-expected" = "a name of OpenWhisk"))]
    package: Option<String>,
    /// Name of the action.
    #[schemars(length(max = 256), regex(pattern = r"^([\w]|[\w][\w@ .-]*[\w@.-]+)$"), extend("x-expected" = "a name of OpenWhisk"))]
    action: String,
    /// Asks for the result of the action alone; else its whole record is the answer.
    #[serde(default = "yes")]
    result: bool,
    /// Milliseconds for the action; later the request is answered 503.
    #[serde(default = "three_seconds")]
    #[schemars(range(min = 1, max = 60_000))]
    timeout: u64,
    /// Keeps connections for further requests.
    #[serde(default = "yes")]
    keepalive: bool,
    /// Milliseconds for which an unused connection is kept.
    #[serde(default = "minute")]
    #[schemars(range(min = 1000, max = 86_400_000))]
    keepalive_timeout: u64,
    /// Unused connections that a worker keeps.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    keepalive_pool: u32,
    /// Most bytes of a request body, where it is less than `limits.buffered_body`: a longer one is answered 413.
    #[serde(default = "most")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
}

impl Define for Openwhisk {
    const NAME: &'static str = "openwhisk";
    const PRIORITY: i32 = -1901;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests with an action of Apache OpenWhisk. The action gets the body of the request as its parameters, and says \
`statusCode`, `headers` and `body` of the answer, or anything else in JSON, which is the body then. An action that does not answer \
in time, or answers without JSON, is answered 503.";
    const EXAMPLE: &'static str = "\
api_host: https://openwhisk.example.com
service_token: user:secret
namespace: shop
action: orders
";
    const ENCRYPTED: &'static [&'static str] = &["service_token"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let timeout = Duration::from_millis(conf.timeout);
        let options = ServiceOptions {
            verify: conf.ssl_verify,
            keepalive: conf.keepalive.then_some(conf.keepalive_pool),
            idle: Duration::from_millis(conf.keepalive_timeout),
            timeout,
        };
        let package = conf.package.map_or_else(String::new, |package| format!("{}/", encoded(&package)));
        let uri = format!(
            "{}/api/v1/namespaces/{}/actions/{package}{}?blocking=true&result={}&timeout={}",
            conf.api_host.trim_end_matches('/'),
            encoded(&conf.namespace),
            encoded(&conf.action),
            conf.result,
            conf.timeout
        );
        let service = cx.ok(Service::parse("api_host", &uri, options))?;
        let login = format!("Basic {}", STANDARD.encode(conf.service_token)).into_bytes();
        let most = conf.max_req_body_size;
        let names = ["Authorization", "Content-Type"].map(FieldName::constant);
        Some(Compiled::build(move |build| Ok(Action { service: service.build(build)?, login, names, timeout, most })))
    }
}

/// An instance.
#[derive(Debug)]
struct Action {
    service: Service,
    login: Vec<u8>,
    names: [FieldName; 2],
    timeout: Duration,
    most: u64,
}

impl Plugin for Action {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.body() {
            None => Flow::AwaitBody,
            Some(body) if body.len() as u64 > self.most => Flow::Abort(Failure::BODY_TOO_LARGE),
            Some(_) => Flow::Suspend,
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let [authorization, content_type] = &self.names;
            let mut callout = self.service.callout(Method::Post);
            callout.set_timeout(self.timeout);
            callout.set_field(authorization, &self.login);
            callout.set_field(content_type, b"application/json");
            callout.set_body(cx.body().unwrap_or_default());
            match io.callout(callout).await {
                Ok(response) => said(cx, &response),
                Err(CalloutError::Busy) => cx.fail(503, "too many callouts under way"),
                Err(error) => {
                    tracing::error!(plugin = Openwhisk::NAME, reason = error.reason(), "an action does not answer");
                    cx.fail(503, "the action does not answer")
                }
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A callout ends before, by its own timeout.
        Some(self.timeout + Duration::from_secs(5))
    }
}

/// Answers as the action says.
fn said(cx: &mut RequestCx<'_>, response: &CalloutResponse) -> Flow {
    let Ok(result) = serde_json::from_slice::<Value>(response.body()) else {
        return cx.fail(503, "the action does not answer with JSON");
    };
    let status = match result.get("statusCode") {
        None | Some(Value::Null) => response.status(),
        Some(status) => match status.as_u64().and_then(|status| u16::try_from(status).ok()) {
            Some(status) if (200..=599).contains(&status) => status,
            _ => return cx.fail(503, "the action answers with a status that is none"),
        },
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fields = result.get("headers").and_then(Value::as_object).into_iter().flatten();
    let fields: Vec<(String, String)> = fields.map(|(name, value)| (name.clone(), text(value))).collect();
    let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    match result.get("body") {
        None | Some(Value::Null) => answer(cx, status, fields, response.body()),
        Some(body) => answer(cx, status, fields, text(body).as_bytes()),
    }
}
