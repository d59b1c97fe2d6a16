//! `ext-plugin-pre-req`, `ext-plugin-post-req` and `ext-plugin-post-resp`: plugins of a runner, a program of its own that speaks
//! APISIX's protocol for such over a Unix socket.

mod answer;
mod connection;
mod flat;
mod message;

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_net::Network;
use weir_plugin::{
    CompileCx, Compiled, Define, Failure, Flow, HookCx, Io, LocalFuture, Origin, Phases, Plugin, RequestCx, ResponseCx,
    Side, Slot,
};

use connection::Connection;
use message::{Kind, Reply, Runner, Wish};

/// The definition of what runs before other plugins.
#[derive(Debug)]
pub(crate) struct ExtPluginPreReq;

/// The definition of what runs behind other plugins.
#[derive(Debug)]
pub(crate) struct ExtPluginPostReq;

/// The definition of what runs for answers of upstreams.
#[derive(Debug)]
pub(crate) struct ExtPluginPostResp;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Conf {
    /// The plugins of the runner, in the order in which they run.
    #[schemars(length(min = 1))]
    conf: Option<Vec<PluginConf>>,
    /// Lets requests pass if the runner cannot be asked. An extension: APISIX refuses them in any case.
    #[serde(default)]
    allow_degradation: bool,
}

/// A plugin of the runner.
#[derive(Debug, Deserialize, JsonSchema)]
struct PluginConf {
    /// Its name.
    #[schemars(length(min = 1, max = 128))]
    name: String,
    /// Its configuration, most often JSON.
    value: String,
}

/// The socket of the runner.
static SOCKET: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Seconds for which a runner keeps a configuration after it was last asked about it.
pub const CONF_EXPIRE: u64 = 3600;
/// A configuration is sent again after this part of the time.
const EXPIRE_MS: u64 = CONF_EXPIRE * 900;
/// Time limit of one exchange of messages.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Most idle connections that a worker keeps.
const IDLE: usize = 32;
/// Attempts while the runner does not know the configuration, as after its restart.
const TRIES: usize = 3;

const ABSENT: &str = "there is no runner: set ext_plugin.command or ext_plugin.socket";
const FAILED: Failure = Failure { status: 503, side: Side::Gateway, reason: "runner failed" };

/// Sets the socket of the runner for the process. A second call has no effect.
pub fn set_runner(socket: Option<PathBuf>) {
    // The first one counts.
    let _ = SOCKET.set(socket);
}

fn compile(conf: Conf) -> Option<Compiled> {
    let socket = SOCKET.get().cloned().flatten();
    Some(Compiled::build(move |build| {
        let plugins: Vec<(String, String)> =
            conf.conf.into_iter().flatten().map(|plugin| (plugin.name, plugin.value)).collect();
        let mut digest = DefaultHasher::new();
        (build.place, &plugins).hash(&mut digest);
        Ok(External {
            socket: socket.map(|path| format!("unix:{}", path.display())),
            prepare: message::prepare(&plugins, &format!("{:016x}", digest.finish())),
            allow_degradation: conf.allow_degradation,
            asks_body: AtomicBool::new(false),
            local: Slot::default(),
            network: Arc::clone(build.network),
        })
    }))
}

const DOC: &str = "\
Plugins of a runner: another program, in Go, Java, Python or JavaScript, that APISIX's runners are made for. The runner is \
started by the gateway (`ext_plugin.command` of the settings, `ext-plugin.cmd` of a `config.yaml`) or by somebody else \
(`ext_plugin.socket`), and asked about each request over a Unix socket. It answers the request itself, or changes its path, \
arguments, headers and body, and headers of the response.

A request is refused with 503 if the runner is not there, does not answer within a minute, or says what cannot be used; with \
`allow_degradation` it passes then.";

impl Define for ExtPluginPreReq {
    const NAME: &'static str = "ext-plugin-pre-req";
    const PRIORITY: i32 = 12000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = DOC;
    const EXAMPLE: &'static str = "\
conf:
  - {name: say, value: '{\"body\": \"hello\"}'}
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        compile(conf)
    }
}

impl Define for ExtPluginPostReq {
    const NAME: &'static str = "ext-plugin-post-req";
    const PRIORITY: i32 = -3000;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = DOC;
    const EXAMPLE: &'static str = ExtPluginPreReq::EXAMPLE;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        compile(conf)
    }
}

impl Define for ExtPluginPostResp {
    const NAME: &'static str = "ext-plugin-post-resp";
    const PRIORITY: i32 = -4000;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "\
Plugins of a runner for the answers of upstreams: as `ext-plugin-post-req`, and asked about each answer of an upstream, whose \
status, headers and body they change. A body is collected only for runners that ask for it, within `limits.buffered_body`; its \
request is answered 502 above. Headers that the runner does not name stay: APISIX drops them once the runner sets one.

A request is answered 503 if the runner is not there, does not answer within a minute, or says what cannot be used; with \
`allow_degradation` the answer goes on as it is.";
    const EXAMPLE: &'static str = ExtPluginPreReq::EXAMPLE;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        compile(conf)
    }
}

/// A thing that the runner is asked about.
enum Subject<'c, 'x> {
    Request(&'c RequestCx<'x>),
    Answer(&'c ResponseCx<'x>),
}

impl Subject<'_, '_> {
    /// Milliseconds of the clock of the worker.
    fn now_ms(&self) -> u64 {
        match self {
            Self::Request(cx) => cx.now_ms(),
            Self::Answer(cx) => cx.view().now() / 1000,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Request(_) => Kind::RequestCall,
            Self::Answer(_) => Kind::ResponseCall,
        }
    }

    /// The message that tells the runner of it.
    fn call(&self, id: u32, token: u32) -> Vec<u8> {
        match self {
            Self::Request(cx) => message::call(cx, id, token),
            Self::Answer(cx) => message::answer_call(cx, id, token),
        }
    }

    /// The message with what the runner wants to know; `None`: it is not here yet.
    fn tell(&self, wish: &Wish) -> Option<Vec<u8>> {
        match (wish, self) {
            (Wish::Variable(name), Self::Request(cx)) => Some(message::variable(name, cx.source())),
            (Wish::Variable(name), Self::Answer(cx)) => Some(message::variable(name, cx.source())),
            (Wish::Body, Self::Request(cx)) => Some(message::body(cx.body()?)),
            (Wish::AnswerBody, Self::Answer(cx)) => Some(message::body(cx.body()?)),
            // The request has gone.
            (Wish::Body, Self::Answer(_)) | (Wish::AnswerBody, Self::Request(_)) => Some(message::body(b"")),
        }
    }
}

/// An instance.
#[derive(Debug)]
struct External {
    /// `unix:` and the path; `None` without a runner.
    socket: Option<String>,
    /// The message that tells the runner the configuration.
    prepare: Vec<u8>,
    allow_degradation: bool,
    /// True once the runner has asked for a body: further ones are collected before it is asked.
    asks_body: AtomicBool,
    local: Slot<Local>,
    network: Arc<Network>,
}

/// Connections and the configuration's number, of a worker.
#[derive(Debug, Default)]
struct Local {
    idle: RefCell<Vec<Connection>>,
    /// The number by which the runner knows the configuration, and milliseconds of the worker's clock until which it does.
    token: Cell<Option<(u32, u64)>>,
    next: Cell<u32>,
}

/// Reasons for having no reply.
enum Fault {
    /// The runner does not know the configuration any more.
    UnknownConf,
    /// The runner wants to see the body, which is not here.
    WantsBody,
    /// A connection that was kept is of no use.
    Stale,
    Failed(String),
}

impl Plugin for External {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.begin(cx)
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.begin(cx)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let reply = match self.reply(&Subject::Request(cx)).await {
                Ok(reply) => reply,
                Err(flow) => return flow,
            };
            answer::apply(&reply, cx).unwrap_or_else(|reason| self.fail(&reason))
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        match cx.body() {
            _ if cx.response().origin != Origin::Upstream => Flow::Continue,
            None if self.asks_body.load(Relaxed) => Flow::AwaitBody,
            _ => Flow::Suspend,
        }
    }

    fn response_io<'a>(&'a self, cx: &'a mut ResponseCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let reply = match self.reply(&Subject::Answer(cx)).await {
                Ok(reply) => reply,
                Err(flow) => return flow,
            };
            match answer::change(&reply, cx) {
                Ok(()) => Flow::Continue,
                Err(reason) => self.fail(&reason),
            }
        })
    }
}

impl External {
    /// The runner's word about a subject.
    ///
    /// # Errors
    /// The continuation without it.
    async fn reply(&self, subject: &Subject<'_, '_>) -> Result<Reply, Flow> {
        let local = self.local.get_or_start(Local::default);
        for _ in 0..TRIES {
            let asked = weir_runtime::timeout(TIMEOUT, self.ask(subject, &local)).await;
            return match asked.unwrap_or_else(|| Err(Fault::Failed("no answer in time".to_owned()))) {
                Ok(reply) => Ok(reply),
                Err(Fault::WantsBody) => {
                    self.asks_body.store(true, Relaxed);
                    Err(Flow::AwaitBody)
                }
                Err(Fault::UnknownConf | Fault::Stale) => continue,
                Err(Fault::Failed(reason)) => Err(self.fail(&reason)),
            };
        }
        Err(self.fail("it does not keep the configuration"))
    }

    fn begin(&self, cx: &RequestCx<'_>) -> Flow {
        if self.asks_body.load(Relaxed) && cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    #[cold]
    fn fail(&self, reason: &str) -> Flow {
        if self.allow_degradation {
            tracing::warn!(reason, "the runner cannot be asked: the exchange goes on without it");
            return Flow::Continue;
        }
        tracing::error!(reason, "the runner cannot be asked: the request is refused");
        Flow::Abort(FAILED)
    }

    /// Asks the runner about a subject.
    async fn ask(&self, subject: &Subject<'_, '_>, local: &Local) -> Result<Reply, Fault> {
        let socket = self.socket.as_ref().ok_or_else(|| Fault::Failed(ABSENT.to_owned()))?;
        let kept = local.idle.borrow_mut().pop();
        let is_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(socket, &self.network).await.map_err(Fault::Failed)?,
        };
        let stale = |error: String| if is_kept { Fault::Stale } else { Fault::Failed(error) };
        let token = match local.token.get().filter(|(_, until)| subject.now_ms() < *until) {
            Some((token, _)) => token,
            None => {
                connection.send(Kind::PrepareConf, &self.prepare).await.map_err(stale)?;
                let (kind, body) = connection.receive().await.map_err(stale)?;
                let token = message::token(kind, &body).map_err(Fault::Failed)?;
                local.token.set(Some((token, subject.now_ms() + EXPIRE_MS)));
                token
            }
        };
        let id = local.next.get();
        local.next.set(id.wrapping_add(1));
        connection.send(subject.kind(), &subject.call(id, token)).await.map_err(stale)?;
        loop {
            let (kind, body) = connection.receive().await.map_err(stale)?;
            match message::read(subject.kind(), kind, &body).map_err(Fault::Failed)? {
                Runner::Reply(reply) => {
                    let mut idle = local.idle.borrow_mut();
                    if idle.len() < IDLE {
                        idle.push(connection);
                    }
                    return Ok(reply);
                }
                Runner::Wants(wish) => {
                    let told = subject.tell(&wish).ok_or(Fault::WantsBody)?;
                    connection.send(Kind::ExtraInfo, &told).await.map_err(Fault::Failed)?;
                }
                Runner::UnknownConf => {
                    local.token.set(None);
                    return Err(Fault::UnknownConf);
                }
            }
        }
    }
}
