//! `virtual`: endpoints whose answers a function in JavaScript makes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_javascript::Entry;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::runner::{self, Runner};
use super::{ScriptConf, exchange};
use crate::tyk::body;
use crate::tyk::entries::{Entries, entries};
use crate::tyk::sessions::remote;
use crate::tyk::shared::{self, Known, ListenPath};

/// The definition.
#[derive(Debug)]
pub(crate) struct Virtual;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// Its organisation.
    org_id: String,
    /// The listen path.
    listen_path: String,
    /// The scripts, which are evaluated in this order.
    scripts: Vec<ScriptConf>,
    /// `config_data` of the API.
    #[schemars(with = "BTreeMap<String, Value>")]
    config_data: Map<String, Value>,
    /// Seconds that a call may take (`jsvm_timeout`); 0: 5.
    timeout: u32,
    /// The Redis of sessions.
    storage: remote::Conf,
    /// The versions, in the order of those of `api`.
    versions: Vec<VersionConf>,
}

/// A version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct VersionConf {
    ignore_endpoint_case: bool,
    r#virtual: Vec<EndpointConf>,
}

/// An endpoint.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct EndpointConf {
    path: String,
    method: String,
    /// Global name of the function.
    response_function_name: String,
    /// Gives the function the session of the caller.
    use_session: bool,
    /// Sends the request to the upstream where the function fails.
    proxy_on_error: bool,
}

/// An endpoint, compiled.
#[derive(Debug)]
struct Endpoint {
    function: String,
    has_session: bool,
    proxies_on_error: bool,
}

impl Define for Virtual {
    const NAME: &'static str = "virtual";
    const PRIORITY: i32 = 790;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Endpoints whose answers a function in JavaScript makes.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, versions: [{}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let listen = cx.ok(listen)?;
        let names = conf.versions.iter().flat_map(|version| &version.r#virtual);
        let names: Vec<String> = names.map(|endpoint| endpoint.response_function_name.clone()).collect();
        let api = (&*conf.api_id, &*conf.org_id, &conf.config_data);
        let compiled = cx.ok(runner::Compiled::new(conf.scripts, (Entry::Function, &names), conf.timeout, api))?;
        let mut versions = Vec::with_capacity(conf.versions.len());
        for (at, version) in conf.versions.into_iter().enumerate() {
            let list = entries(
                &format!("versions[{at}].virtual"),
                version.r#virtual,
                version.ignore_endpoint_case,
                |entry| (entry.path.clone(), entry.method.clone()),
                |entry, _| {
                    Ok(Endpoint {
                        function: entry.response_function_name,
                        has_session: entry.use_session,
                        proxies_on_error: entry.proxy_on_error,
                    })
                },
            );
            versions.push(cx.ok(list)?);
        }
        Some(Compiled::build(move |build| {
            let place = shared::place(build, &conf.api_id);
            Ok(Endpoints { place, runner: compiled.build(&conf.storage, build)?, listen, versions: versions.into() })
        }))
    }
}

/// An instance.
struct Endpoints {
    place: Arc<PerRequest<Known>>,
    runner: Runner,
    listen: ListenPath,
    versions: Box<[Entries<Endpoint>]>,
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints").field("versions", &self.versions).finish_non_exhaustive()
    }
}

/// Result of a function.
#[derive(Debug, Deserialize)]
struct Returned {
    #[serde(rename = "Response", alias = "response")]
    response: Response,
    /// `meta_data` of the session.
    #[serde(rename = "SessionMeta", default)]
    meta: Option<Map<String, Value>>,
}

/// The answer that a function makes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    #[serde(rename = "Body", alias = "body")]
    body: String,
    #[serde(rename = "Headers", alias = "headers")]
    headers: Option<BTreeMap<String, String>>,
    #[serde(rename = "Code", alias = "code")]
    code: u16,
}

/// The answer where a function fails: its faults are told in the log.
const FAILED: &str = "Error during virtual endpoint execution. Contact Administrator for more details.";

impl Plugin for Endpoints {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.endpoint(cx).is_some() { shared::wait_with_body(cx) } else { Flow::Continue }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The call has a limit of its own, within which it is answered.
        Some(self.runner.time() * 3)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(endpoint) = self.endpoint(cx) else { return Flow::Continue };
            let known = self.place.get(cx).filter(|_| endpoint.has_session);
            let session = known.map_or_else(|| json!({}), exchange::session);
            let outcome = self.runner.run(&endpoint.function, &request(cx), &session).await;
            match outcome.and_then(|text| Returned::parse(&text)) {
                Ok(returned) => {
                    let known = self.place.get_mut(cx).filter(|_| endpoint.has_session);
                    if let (Some(known), Some(meta)) = (known, returned.meta) {
                        known.meta = Some(Arc::new(meta));
                    }
                    returned.response.send(cx)
                }
                Err(reason) => {
                    let function = &endpoint.function;
                    if endpoint.proxies_on_error {
                        tracing::warn!(function, reason, "a virtual endpoint failed: its request goes to the upstream");
                        return Flow::Continue;
                    }
                    tracing::warn!(function, reason, "a virtual endpoint failed: its request is refused");
                    body::error(cx, 500, FAILED, &[])
                }
            }
        })
    }
}

impl Endpoints {
    /// The endpoint that a request is for.
    fn endpoint(&self, cx: &mut RequestCx<'_>) -> Option<&Endpoint> {
        let (number, skipped) = self.place.get(cx).map_or((0, 0), |known| (known.version, known.skipped));
        let version = self.versions.get(number).filter(|version| !version.0.is_empty())?;
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let found = version.find(cx.request().method_bytes(), rest.get(skipped..).unwrap_or_default());
        cx.put_scratch(rest);
        found
    }
}

/// The request for a function: its body is text, and its URL has no query.
fn request(cx: &RequestCx<'_>) -> Value {
    let mut request = exchange::request(cx.request(), cx.source(), cx.body().unwrap_or_default());
    let url = request.get("URL").and_then(Value::as_str).unwrap_or_default();
    let path = url.split('?').next().unwrap_or_default().to_owned();
    if let Value::Object(fields) = &mut request {
        fields.insert("Body".to_owned(), String::from_utf8_lossy(cx.body().unwrap_or_default()).into());
        fields.insert("URL".to_owned(), path.into());
    }
    request
}

impl Returned {
    fn parse(text: &str) -> Result<Self, String> {
        let returned: Self = serde_json::from_str(text)
            .map_err(|error| format!("what it returned is not TykJsResponse(response, session.meta_data): {error}"))?;
        returned.response.check().map(|()| returned)
    }
}

impl Response {
    fn check(&self) -> Result<(), String> {
        if self.code != 0 && !(200..600).contains(&self.code) {
            return Err(format!("Code: expected a status from 200 to 599, found {}", self.code));
        }
        let is_bad = |(name, value): &(&String, &String)| {
            FieldName::new(name).is_none() || !value.bytes().all(weir_wire::is_field_byte)
        };
        match self.headers.iter().flatten().find(is_bad) {
            Some((name, _)) => Err(format!("Headers: '{name}' has an invalid name or value")),
            None => Ok(()),
        }
    }

    fn send(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut answer = cx.reply(if self.code == 0 { 200 } else { self.code });
        for (name, value) in self.headers.iter().flatten() {
            answer = answer.field(name, value.as_bytes());
        }
        answer.body(self.body.as_bytes()).done()
    }
}
