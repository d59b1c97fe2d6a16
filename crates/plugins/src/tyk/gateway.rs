//! `gateway`: the gateway API and its pages, at the port of the traffic.

#![allow(clippy::disallowed_types, reason = "no worker takes this lock: compiling does, and the dashboard")]

mod health;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Io, LocalFuture, Phases, Plugin, RequestCx, StateRegistry};

use super::apart;
use super::events::{self, Events};
use super::oauth::OAuthServer;
use super::sessions::remote::{self, Remote};
use super::sessions::{Policies, RemoteSessions, Sessions};
use super::shared::text;
use health::Health;

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
    /// The Redis of sessions.
    storage: remote::Conf,
    /// Handlers of events of keys.
    events: events::Conf,
}

impl Define for Gateway {
    const NAME: &'static str = "gateway";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "The gateway API.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let events = Events::compile(conf.events, cx)?;
        Some(Compiled::build(move |build| {
            let sessions = Sessions::of(build.states);
            sessions.set_policies(conf.policies.into_iter().collect::<Policies>());
            let door = Door::of(build.states);
            let remote = conf.storage.build(build)?.map(Arc::new);
            if let Some(remote) = &remote {
                door.knows(remote);
            }
            Ok(Entrance {
                door,
                hello: format!("/{}", conf.hello).into_bytes(),
                remote,
                events: events.build(build)?,
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
#[derive(Debug, Default)]
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
    /// Sessions in Redis; `None`: they are in this process.
    pub remote: Option<RemoteSessions>,
    /// True for a question of the gateway itself, which needs no secret.
    pub is_own: bool,
    /// The value of `Authorization`.
    pub authorization: String,
    /// The value of `Content-Type`.
    pub content_type: String,
    /// The OAuth server of an API that is asked, at a path behind the listen path; none: the gateway API.
    pub of_server: Option<Arc<OAuthServer>>,
}

/// An answer of the gateway API.
#[derive(Debug)]
pub struct ApiAnswer {
    /// The status.
    pub status: u16,
    /// The media type; empty: none.
    pub content_type: &'static str,
    /// Fields beside it.
    pub fields: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl ApiAnswer {
    /// Answers a request with it.
    pub(super) fn send(self, cx: &mut RequestCx<'_>) -> Flow {
        let mut reply = cx.reply(self.status);
        if !self.content_type.is_empty() {
            reply = reply.field("Content-Type", self.content_type.as_bytes());
        }
        for (name, value) in &self.fields {
            reply = reply.field(name, value.as_bytes());
        }
        reply.whole_body(self.body).done()
    }
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
pub struct Door {
    behind: OnceLock<Behind>,
    /// Ways to the Redis of sessions, the newest last.
    remotes: Mutex<Vec<Weak<Remote>>>,
    /// True while the last reload was refused.
    is_refused: AtomicBool,
}

struct Behind {
    api: Arc<dyn GatewayApi>,
    offload: Offload,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("is_open", &self.behind.get().is_some()).finish_non_exhaustive()
    }
}

impl Door {
    /// The door of all configurations.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("tyk gateway", Self::default)
    }

    /// Takes note of a way to Redis, for as long as somebody else holds it.
    fn knows(&self, remote: &Arc<Remote>) {
        let mut remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
        remotes.retain(|remote| remote.strong_count() > 0);
        remotes.push(Arc::downgrade(remote));
    }

    /// Asks what answers, on a thread that may block; `None` before there is anything.
    ///
    /// # Errors
    /// The reason for which nothing answers now.
    pub fn ask(self: &Arc<Self>, request: ApiRequest) -> Option<Result<ApiAnswer, &'static str>> {
        let behind = self.behind.get()?;
        let remote = {
            let remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
            remotes.iter().rev().find_map(Weak::upgrade)
        };
        let Some(remote) = remote else { return Some(Ok(behind.api.answer(request))) };
        let (sender, answer) = oneshot::channel();
        let door = Arc::clone(self);
        let started = apart::run(move || async move {
            let made = door.answer(Some(&remote), |remote| ApiRequest { remote, ..request }).await;
            // Whoever has asked may have gone.
            let _ = sender.send(made);
        });
        Some(started.and_then(|()| answer.blocking_recv().unwrap_or(Err("the gateway stops"))))
    }

    /// Asks what answers, and meanwhile runs the commands that it has for Redis.
    ///
    /// # Errors
    /// Nothing answers yet, or no more.
    pub(super) async fn answer(
        &self,
        remote: Option<&Remote>,
        request: impl FnOnce(Option<RemoteSessions>) -> ApiRequest,
    ) -> Result<ApiAnswer, &'static str> {
        let behind = self.behind.get().ok_or("the gateway API has not started yet")?;
        let permit = Arc::clone(&behind.permits).acquire_owned().await.map_err(|_| "the gateway stops")?;
        let (sessions, commands) = remote.map(Remote::open).unzip();
        let request = request(sessions);
        let (sender, answer) = oneshot::channel();
        let api = Arc::clone(&behind.api);
        (behind.offload)(Box::new(move || {
            // Whoever has asked may have gone; then nobody takes it.
            let _ = sender.send(api.answer(request));
            drop(permit);
        }));
        serve(remote, answer, commands).await.map_err(|_| "the gateway API has no room")
    }

    /// Opens the door.
    pub fn open(&self, api: Arc<dyn GatewayApi>, offload: Offload) {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        // It is opened once.
        let _ = self.behind.set(Behind { api, offload, permits });
    }

    /// Takes note of a reload: true if what was read is in force.
    pub fn reloaded(&self, is_live: bool) {
        self.is_refused.store(!is_live, Relaxed);
    }
}

/// An instance.
#[derive(Debug)]
struct Entrance {
    door: Arc<Door>,
    hello: Vec<u8>,
    /// The Redis of sessions.
    remote: Option<Arc<Remote>>,
    events: Events,
    /// Kept while no API has keys.
    _held: Arc<Sessions>,
}

impl Plugin for Entrance {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let path = cx.request().path();
        if path.starts_with(b"/tyk/") {
            return if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend };
        }
        match self.remote {
            Some(_) => Flow::Suspend,
            None => self.tell_health(cx, None),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A reload of a large configuration takes a while.
        Some(Duration::from_secs(60))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            if let Some(remote) = self.remote.as_ref().filter(|_| !cx.request().path().starts_with(b"/tyk/")) {
                let is_there = remote.ping().await.is_ok();
                return self.tell_health(cx, Some(is_there));
            }
            let path = String::from_utf8_lossy(cx.request().path()).into_owned();
            let path = path.strip_prefix("/tyk/").unwrap_or_default();
            let answer = self.door.answer(self.remote.as_deref(), |remote| request(cx, path, remote)).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(reason) => return cx.fail(503, reason),
            };
            if answer.status == 200 && path.starts_with("keys/") && cx.request().method_bytes() != b"GET" {
                let session = serde_json::from_slice::<Value>(cx.body().unwrap_or_default()).unwrap_or_default();
                let org = session["org_id"].as_str().unwrap_or_default();
                self.events.tell_key(path, org, &answer.body, cx.now_ms());
            }
            answer.send(cx)
        })
    }
}

impl Entrance {
    fn tell_health(&self, cx: &mut RequestCx<'_>, redis: Option<bool>) -> Flow {
        let health = Health { redis, is_loaded: !self.door.is_refused.load(Relaxed) };
        if cx.request().path() == self.hello {
            return cx.reply(200).field("Content-Type", b"application/json").body(&health.page()).done();
        }
        let (status, kind, body) = health.readiness();
        cx.reply(status).field("Content-Type", kind).body(body).done()
    }
}

/// Waits for an answer, and meanwhile runs the commands that it needs.
async fn serve(
    remote: Option<&Remote>,
    answer: oneshot::Receiver<ApiAnswer>,
    mut commands: Option<mpsc::Receiver<remote::Command>>,
) -> Result<ApiAnswer, oneshot::error::RecvError> {
    let mut answer = pin!(answer);
    loop {
        let next = poll_fn(|task| {
            let command = commands.as_mut().map_or(Poll::Ready(None), |commands| commands.poll_recv(task));
            match command {
                Poll::Ready(Some(command)) => Poll::Ready(Err(command)),
                _ => answer.as_mut().poll(task).map(Ok),
            }
        });
        match (next.await, remote) {
            (Ok(answer), _) => return answer,
            (Err(command), Some(remote)) => remote.run(command).await,
            (Err(command), None) => drop(command),
        }
    }
}

/// A request for the gateway API, at a path behind `/tyk/`.
pub(super) fn request(cx: &RequestCx<'_>, path: &str, remote: Option<RemoteSessions>) -> ApiRequest {
    let request = cx.request();
    let query = request.arguments().map(|(name, value)| (text(name), text(value.text())));
    ApiRequest {
        method: text(request.method_bytes()),
        path: path.to_owned(),
        query: query.collect(),
        secret: text(request.field_str("x-tyk-authorization").unwrap_or_default()),
        body: cx.body().unwrap_or_default().to_vec(),
        remote,
        is_own: false,
        authorization: text(request.field_str("authorization").unwrap_or_default()),
        content_type: text(request.field_str("content-type").unwrap_or_default()),
        of_server: None,
    }
}
