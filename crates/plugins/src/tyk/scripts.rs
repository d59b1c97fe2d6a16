//! `pre`, `post` and `response`: middleware in JavaScript, before and behind authentication and for answers.

mod answers;
mod check;
mod exchange;
mod runner;
mod virtual_endpoints;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_javascript::Entry;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Io, LocalFuture, PerRequest, Phases, Plugin, RequestCx};

use super::body;
use super::changes::{Answer, FAILED};
use super::sessions::remote;
use super::shared::{self, Known};
pub(crate) use answers::Answers;
pub(super) use check::Check;
use exchange::{Beside, Returned};
pub(super) use runner::{Compiled as Scripts, Runner};
pub(crate) use virtual_endpoints::Virtual;

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
    /// The Redis of sessions.
    storage: remote::Conf,
}

/// A script.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ScriptConf {
    /// Its path.
    pub(super) path: String,
    /// Its text.
    pub(super) text: String,
}

fn compile(conf: Conf, is_pre: bool, cx: &CompileCx<'_>) -> Option<Compiled> {
    let names = (Entry::Middleware, &*conf.middleware);
    let api = (&*conf.api_id, &*conf.org_id, &conf.config_data);
    let compiled = cx.ok(Scripts::new(conf.scripts, names, conf.timeout, api))?;
    Some(Compiled::build(move |build| {
        Ok(Chain {
            place: shared::place(build, &conf.api_id),
            runner: compiled.build(&conf.storage, build)?,
            middleware: conf.middleware.into(),
            is_pre,
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
struct Chain {
    place: Arc<PerRequest<Known>>,
    runner: Runner,
    middleware: Box<[String]>,
    /// True before authentication, when there is no session.
    is_pre: bool,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("middleware", &self.middleware).finish_non_exhaustive()
    }
}

impl Plugin for Chain {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { shared::wait_with_body(cx) } else { Flow::Continue }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { Flow::Continue } else { shared::wait_with_body(cx) }
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(self.runner.time_of(self.middleware.len()))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for name in &self.middleware {
                let session = self.place.get(cx).map_or_else(|| Value::Object(Map::new()), exchange::session);
                let (answer, returned) = match run(&self.runner, name, &session, cx, &self.place).await {
                    Ok(done) => done,
                    Err(reason) => {
                        tracing::warn!(middleware = %name, %reason, "a script failed: its request is refused");
                        return body::error(cx, 500, FAILED, &[]);
                    }
                };
                let known = self.place.get_mut(cx).filter(|_| !self.is_pre);
                if let (Some(known), Some(meta)) = (known, returned.meta) {
                    known.meta = Some(Arc::new(meta));
                }
                if let Some(answer) = answer {
                    return answer.send(cx);
                }
            }
            Flow::Continue
        })
    }
}

/// Calls a middleware with a request and a session, and changes the request as it wants; its answer in the place of the
/// upstream's, and what it returned beside.
///
/// # Errors
/// Reason for which the request cannot go on.
async fn run(
    runner: &Runner,
    name: &str,
    session: &Value,
    cx: &mut RequestCx<'_>,
    place: &PerRequest<Known>,
) -> Result<(Option<Answer>, Beside), String> {
    let request = exchange::request(cx.request(), cx.source(), cx.body().unwrap_or_default());
    let text = runner.run(name, &request, session).await?;
    let (changes, beside) = Returned::parse(&text)?.changes(cx.body().unwrap_or_default())?;
    changes.apply(cx).map_err(|reason| format!("what it returned cannot be used: {reason}"))?;
    if let Some(url) = changes.new_url(cx) {
        shared::known(place, cx, |known| known.url = Some(url));
    }
    Ok((changes.answer, beside))
}
