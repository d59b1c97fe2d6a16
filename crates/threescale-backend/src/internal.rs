//! The internal API, by which 3scale's portal and its tools manage services and applications: `/internal/…`, JSON, with
//! the name and password of the settings.

mod applications;
mod services;
mod shown;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use crate::backend::{Backend, Login, NotChanged};
use crate::listener::{Answer, Call};
use crate::params::{Params, parse};

/// Longest id, name or key in bytes.
const TEXT: usize = 512;

/// An answer: a status, and JSON.
#[derive(Debug)]
struct Reply {
    status: u16,
    body: Value,
}

/// An answer, or a refusal.
type Outcome = Result<Reply, Reply>;

impl Reply {
    fn ok(body: Value) -> Self {
        Self { status: 200, body }
    }

    fn created(body: Value) -> Self {
        Self { status: 201, body }
    }

    fn not_found(what: &str) -> Self {
        Self { status: 404, body: json!({ "status": "not_found", "error": what }) }
    }

    fn bad(what: impl Into<String>) -> Self {
        Self { status: 400, body: json!({ "status": "error", "error": what.into() }) }
    }

    fn missing(parameter: &str) -> Self {
        Self::bad(format!("missing parameter '{parameter}'"))
    }
}

impl From<NotChanged> for Reply {
    fn from(not: NotChanged) -> Self {
        let (status, error) = match not {
            NotChanged::OfFile => {
                (403, "services come from the file threescale_backend.file: change that file".to_owned())
            }
            NotChanged::Store(reason) => (503, reason),
        };
        Self { status, body: json!({ "status": "error", "error": error }) }
    }
}

/// A request that was let in.
struct Request<'a> {
    method: &'a str,
    /// Arguments of the query.
    query: Params,
    body: Map<String, Value>,
    now: u64,
}

impl Request<'_> {
    /// An object of the body.
    fn object(&self, name: &str) -> Result<&Map<String, Value>, Reply> {
        self.body.get(name).and_then(Value::as_object).ok_or_else(|| Reply::missing(name))
    }
}

impl Backend {
    /// Answers a request below `/internal`, at a time in milliseconds since 1970.
    pub(crate) async fn answer_internal(&self, call: &Call, now: u64) -> Answer {
        let refusal = |status, error: &str| {
            let body = json!({ "status": "error", "error": error }).to_string();
            Answer { status, fields: vec![("content-type", "application/json".to_owned())], body }
        };
        let Some(login) = &self.login else {
            return refusal(403, "the internal API is off: set threescale_backend.internal_password");
        };
        if !is_login(login, call.authorization.as_deref()) {
            let mut answer = refusal(401, "user and password are needed (HTTP basic)");
            answer.fields.push(("www-authenticate", "Basic realm=\"internal API\"".to_owned()));
            return answer;
        }
        let Reply { status, body } = self.dispatch(call, now).await.unwrap_or_else(|refusal| refusal);
        if call.method != Method::GET && call.method != Method::HEAD {
            tracing::info!(method = %call.method, path = call.path, status, "internal API of the 3scale backend");
        }
        Answer { status, fields: vec![("content-type", "application/json".to_owned())], body: body.to_string() }
    }

    async fn dispatch(&self, call: &Call, now: u64) -> Outcome {
        let segments = segments(&call.path).ok_or_else(|| Reply::bad("a path is not UTF-8, or too long"))?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let body = match call.body.is_empty() {
            true => Map::new(),
            false => match serde_json::from_slice(&call.body) {
                Ok(Value::Object(body)) => body,
                _ => return Err(Reply::bad("expected a JSON object as the body")),
            },
        };
        let mut query = Params::new();
        parse(call.query.as_bytes(), &mut query).map_err(|fault| Reply::bad(fault.to_string()))?;
        let request = Request { method: call.method.as_str(), query, body, now };
        match segments.as_slice() {
            ["check.json"] if request.method == "GET" => Ok(Reply::ok(json!({ "status": "ok" }))),
            ["status"] if request.method == "GET" => {
                let version = env!("CARGO_PKG_VERSION");
                Ok(Reply::ok(json!({ "status": "ok", "version": { "backend": version } })))
            }
            ["service_tokens", rest @ ..] => services::tokens(self, &request, rest).await,
            ["services", service, "applications", app, "utilization"] => {
                shown::utilization(self, &request, service, app)
            }
            ["services", service, "applications", rest @ ..] => {
                applications::answer(self, &request, service, rest).await
            }
            ["services", service, "errors"] => shown::errors(self, &request, service),
            ["services", service, "metrics", id] => services::metric(self, &request, service, id).await,
            ["services", service, "plans", plan, "usagelimits", metric, period] => {
                services::limit(self, &request, (service, plan, metric, period)).await
            }
            ["events", ..] | ["services", _, "alert_limits", ..] => Err(unsupported(
                "events and alert limits are not supported: the alerts of the gateway's settings (usage.alerts) tell of \
                 plans of its own",
            )),
            ["services", _, "stats"] => Err(unsupported("there are no statistics that could be deleted")),
            ["services", rest @ ..] => services::answer(self, &request, rest).await,
            _ => Err(Reply::not_found("Not found")),
        }
    }
}

fn unsupported(what: &str) -> Reply {
    Reply { status: 501, body: json!({ "status": "error", "error": what }) }
}

/// The segments of a path below `/internal`, decoded; `None` for one that is no text, or too long.
fn segments(path: &str) -> Option<Vec<String>> {
    let parts = path.split('/').skip(2).filter(|part| !part.is_empty());
    let decoded = parts.map(|part| percent_decode_str(part).decode_utf8().ok().map(String::from));
    decoded.map(|part| part.filter(|part| part.len() <= TEXT)).collect()
}

fn is_login(login: &Login, field: Option<&str>) -> bool {
    let Some((scheme, encoded)) = field.and_then(|field| field.split_once(' ')) else { return false };
    let wanted = format!("{}:{}", login.user, login.password);
    let given = STANDARD.decode(encoded.trim());
    scheme.eq_ignore_ascii_case("basic")
        && given.is_ok_and(|given| verify_slices_are_equal(&given, wanted.as_bytes()).is_ok())
}

/// A value as a text: ids may be numbers. `None` for anything else, for nothing, and for a text that is too long.
fn text_of(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty() && text.len() <= TEXT).then_some(text)
}
