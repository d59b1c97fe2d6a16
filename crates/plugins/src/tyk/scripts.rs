//! `pre` and `post`: middleware in JavaScript, before and behind authentication.

mod exchange;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use weir_javascript::{Call, Engine, Fault, HostRequest, Limits, Program, Script};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin, RequestCx};

use super::body;
use super::fetch::{self, Fetch};
use super::shared::{self, Known};
use exchange::Returned;

/// The definition of what runs before authentication.
#[derive(Debug)]
pub(crate) struct Pre;

/// The definition of what runs behind it.
#[derive(Debug)]
pub(crate) struct Post;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// Its organisation.
    org_id: String,
    /// The scripts, which are evaluated in this order.
    scripts: Vec<ScriptConf>,
    /// Global names of the middleware, in the order in which it runs.
    middleware: Vec<String>,
    /// `config_data` of the API.
    #[schemars(with = "BTreeMap<String, Value>")]
    config_data: Map<String, Value>,
    /// Seconds that a call may take (`jsvm_timeout`); 0: 5.
    timeout: u32,
}

/// A script.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ScriptConf {
    /// Its path.
    path: String,
    /// Its text.
    text: String,
}

/// Seconds that a call may take where nothing is said.
const TIMEOUT: u32 = 5;
/// Most seconds that a call may take.
const MOST_TIMEOUT: u32 = 60;
/// Most bytes of memory of the scripts of an API, on each thread.
const MEMORY: usize = 32 << 20;

fn compile(conf: Conf, is_pre: bool, cx: &CompileCx<'_>) -> Option<Compiled> {
    let scripts = conf.scripts.into_iter().map(|script| Script { name: script.path, text: script.text }).collect();
    let seconds = if conf.timeout == 0 { TIMEOUT } else { conf.timeout.min(MOST_TIMEOUT) };
    let limits = Limits { time: Duration::from_secs(seconds.into()), memory: MEMORY };
    let program = Program::new(scripts, &conf.middleware, limits);
    let program = cx.ok(program.map_err(|error| Invalid::new("scripts", error)))?;
    let config = json!({ "APIID": conf.api_id, "OrgID": conf.org_id, "config_data": conf.config_data });
    Some(Compiled::build(move |build| {
        Ok(Scripts {
            place: shared::place(build, &conf.api_id),
            program,
            middleware: conf.middleware.into(),
            config: config.to_string(),
            is_pre,
            time: limits.time,
            fetch: Fetch::new(build.network),
        })
    }))
}

impl Define for Pre {
    const NAME: &'static str = "pre";
    const PRIORITY: i32 = 1050;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Middleware in JavaScript, before authentication.";
    const EXAMPLE: &'static str = "{api_id: a}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        compile(conf, true, cx)
    }
}

impl Define for Post {
    const NAME: &'static str = "post";
    const PRIORITY: i32 = 950;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Middleware in JavaScript, behind authentication.";
    const EXAMPLE: &'static str = "{api_id: a}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        compile(conf, false, cx)
    }
}

/// An instance.
struct Scripts {
    place: Arc<PerRequest<Known>>,
    program: Arc<Program>,
    middleware: Box<[String]>,
    /// The API as scripts see it, in JSON.
    config: String,
    /// True before authentication, when there is no session.
    is_pre: bool,
    time: Duration,
    fetch: Fetch,
}

impl std::fmt::Debug for Scripts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripts").field("middleware", &self.middleware).finish_non_exhaustive()
    }
}

/// The answer where a script fails: its faults are told in the log.
const FAILED: &str = "Middleware error";

impl Plugin for Scripts {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { wait(cx) } else { Flow::Continue }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { Flow::Continue } else { wait(cx) }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // Each call has a limit of its own, within which it is answered.
        Some(self.time * (2 * u32::try_from(self.middleware.len()).unwrap_or(1) + 1))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for name in &self.middleware {
                let session = self.place.get(cx).map_or_else(|| Value::Object(Map::new()), exchange::session);
                let arguments = [exchange::request(cx).to_string(), session.to_string(), self.config.clone()];
                // A call waits for a thread as long as it may run; a script within one long step is ended behind that step.
                let outcome = match weir_runtime::timeout(self.time * 2, self.call(name, arguments)).await {
                    Some(Ok(text)) => Returned::parse(&text),
                    Some(Err(fault)) => Err(fault.to_string()),
                    None => Err(Fault::Time.to_string()),
                };
                let returned = match outcome {
                    Ok(returned) => returned,
                    Err(reason) => {
                        tracing::warn!(middleware = %name, %reason, "a script failed: its request is refused");
                        return body::error(cx, 500, FAILED, &[]);
                    }
                };
                let known = self.place.get_mut(cx).filter(|_| !self.is_pre);
                if let (Some(known), Some(meta)) = (known, &returned.meta) {
                    known.meta = Some(Arc::new(meta.clone()));
                }
                if let Err(reason) = returned.change(cx) {
                    tracing::warn!(middleware = %name, reason, "what a script returns cannot be used: its request is refused");
                    return body::error(cx, 500, FAILED, &[]);
                }
                if let Some(url) = returned.new_url(cx)
                    && let Some(known) = self.known(cx)
                {
                    known.url = Some(url);
                }
                if let Some(flow) = returned.answer(cx) {
                    return flow;
                }
            }
            Flow::Continue
        })
    }
}

/// Collects the body, and then waits for a thread.
fn wait(cx: &RequestCx<'_>) -> Flow {
    if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
}

impl Scripts {
    /// The place of [`Known`], filled where it is empty.
    fn known<'c>(&self, cx: &'c mut RequestCx<'_>) -> Option<&'c mut Known> {
        if self.place.get(cx).is_none() {
            self.place.put(cx, Known::default());
        }
        self.place.get_mut(cx)
    }

    /// Calls a middleware, and meanwhile makes the requests that it wants.
    async fn call(&self, name: &str, arguments: [String; 3]) -> Result<String, Fault> {
        let (host, mut requests) = mpsc::channel::<HostRequest>(1);
        let call = Call { program: Arc::clone(&self.program), name: name.to_owned(), arguments, host };
        let mut outcome = pin!(Engine::global().call(call)?);
        loop {
            let next = poll_fn(|task| match requests.poll_recv(task) {
                Poll::Ready(Some(request)) => Poll::Ready(Err(request)),
                _ => outcome.as_mut().poll(task).map(Ok),
            });
            match next.await {
                Ok(outcome) => return outcome.unwrap_or(Err(Fault::Busy)),
                Err(request) => {
                    let answer = weir_runtime::timeout(self.time, self.fetch.answer(&request.request)).await;
                    // A script that was ended waits no longer.
                    let _ = request.reply.try_send(answer.unwrap_or_else(|| fetch::failed("no answer in time")));
                }
            }
        }
    }
}
