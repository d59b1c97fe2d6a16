//! `gateway`: the gateway API and its pages, at the port of the traffic.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Io, LocalFuture, NO_ROOM, Phases, Plugin, RequestCx, StateRegistry,
};

use super::VERSION;
use super::sessions::{Policies, Sessions};

/// The definition.
#[derive(Debug)]
pub(crate) struct Gateway;

/// On the routes of the gateway API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// The policies by their ids.
    #[schemars(with = "std::collections::BTreeMap<String, Value>")]
    policies: serde_json::Map<String, Value>,
    /// Name of the page of health.
    hello: String,
}

impl Define for Gateway {
    const NAME: &'static str = "gateway";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "The gateway API.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(move |build| {
            let page = format!("{{\"status\":\"pass\",\"version\":\"{VERSION}\",\"description\":\"Tyk GW\"}}\n");
            let sessions = Sessions::of(build.states);
            sessions.set_policies(conf.policies.into_iter().collect::<Policies>());
            Ok(Entrance {
                door: Door::of(build.states),
                hello: format!("/{}", conf.hello).into_bytes(),
                page: page.into_bytes(),
                _held: sessions,
            })
        }))
    }
}

/// Work for a thread that may block.
pub type Job = Box<dyn FnOnce() + Send>;
/// Does work on such a thread.
pub type Offload = Box<dyn Fn(Job) + Send + Sync>;

/// A request for the gateway API.
#[derive(Debug)]
pub struct ApiRequest {
    /// The method.
    pub method: String,
    /// The path without `/tyk/`, decoded.
    pub path: String,
    /// The query arguments, decoded.
    pub query: Vec<(String, String)>,
    /// The value of `X-Tyk-Authorization`.
    pub secret: String,
    /// The whole body.
    pub body: Vec<u8>,
}

/// An answer of the gateway API.
#[derive(Debug)]
pub struct ApiAnswer {
    /// The status.
    pub status: u16,
    /// The media type.
    pub content_type: &'static str,
    /// Fields beside it.
    pub fields: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Answers to requests for the gateway API, on a thread that may block.
pub trait GatewayApi: Send + Sync + fmt::Debug {
    /// Answers a request.
    fn answer(&self, request: ApiRequest) -> ApiAnswer;
}

/// Requests for the gateway API that are answered at one time. More wait.
const AT_ONCE: usize = 16;

/// The way from the path of a request to what answers it, which comes when the gateway starts.
#[derive(Default)]
pub struct Door(OnceLock<Behind>);

struct Behind {
    api: Arc<dyn GatewayApi>,
    offload: Offload,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("is_open", &self.0.get().is_some()).finish()
    }
}

impl Door {
    /// The door of all configurations.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("tyk gateway", Self::default)
    }

    /// Opens the door.
    pub fn open(&self, api: Arc<dyn GatewayApi>, offload: Offload) {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        // It is opened once.
        let _ = self.0.set(Behind { api, offload, permits });
    }
}

/// An instance.
#[derive(Debug)]
struct Entrance {
    door: Arc<Door>,
    hello: Vec<u8>,
    /// The page of health.
    page: Vec<u8>,
    /// Kept while no API has keys.
    _held: Arc<Sessions>,
}

impl Plugin for Entrance {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let path = cx.request().path();
        if path.starts_with(b"/tyk/") {
            return if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend };
        }
        // The gateway serves, or nobody would answer; nothing that it needs can be away.
        match path == self.hello {
            true => cx.reply(200).field("Content-Type", b"application/json").body(&self.page).done(),
            false => cx.reply(200).field("Content-Type", b"text/plain; charset=utf-8").body(b"Tyk GW Ready").done(),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A reload of a large configuration takes a while.
        Some(Duration::from_secs(60))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(behind) = self.door.0.get() else { return cx.fail(503, "the gateway API has not started yet") };
            let Ok(permit) = Arc::clone(&behind.permits).acquire_owned().await else {
                return cx.fail(503, "the gateway stops");
            };
            let path = String::from_utf8_lossy(cx.request().path()).into_owned();
            let request = request(cx, path.strip_prefix("/tyk/").unwrap_or_default());
            let (sender, answer) = oneshot::channel();
            let api = Arc::clone(&behind.api);
            (behind.offload)(Box::new(move || {
                // Whoever has asked may have gone; then nobody takes it.
                let _ = sender.send(api.answer(request));
                drop(permit);
            }));
            let Ok(answer) = answer.await else { return Flow::Abort(NO_ROOM) };
            let mut reply = cx.reply(answer.status).field("Content-Type", answer.content_type.as_bytes());
            for (name, value) in &answer.fields {
                reply = reply.field(name, value.as_bytes());
            }
            reply.whole_body(answer.body).done()
        })
    }
}

/// A request for the gateway API, at a path behind `/tyk/`.
fn request(cx: &RequestCx<'_>, path: &str) -> ApiRequest {
    let request = cx.request();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let query = request.arguments().map(|(name, value)| match value {
        weir_wire::query::Argument::Flag => (text(name), String::new()),
        weir_wire::query::Argument::Value(value) => (text(name), text(value)),
    });
    ApiRequest {
        method: text(request.method_bytes()),
        path: path.to_owned(),
        query: query.collect(),
        secret: text(request.field_str("x-tyk-authorization").unwrap_or_default()),
        body: cx.body().unwrap_or_default().to_vec(),
    }
}
