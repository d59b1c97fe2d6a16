//! `response`: middleware in JavaScript for the answers of upstreams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_javascript::Entry;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Io, LocalFuture, PerRequest, Phases, Plugin, Response, ResponseCx,
};

use super::{Conf, Runner, Scripts, exchange};
use crate::tyk::changes::{self, AnswerChanges, is_gateways};
use crate::tyk::shared::{self, Known};

/// The definition.
#[derive(Debug)]
pub(crate) struct Answers;

impl Define for Answers {
    const NAME: &'static str = "response";
    const PRIORITY: i32 = 850;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "Middleware in JavaScript for answers of upstreams.";
    const EXAMPLE: &'static str = "{api_id: a}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let names = (Entry::Response, &*conf.middleware);
        let api = (&*conf.api_id, &*conf.org_id, &conf.config_data);
        let compiled = cx.ok(Scripts::new(conf.scripts, names, conf.timeout, api))?;
        Some(Compiled::build(move |build| {
            let place = shared::place(build, &conf.api_id);
            Ok(Chain { place, runner: compiled.build(&conf.storage, build)?, middleware: conf.middleware.into() })
        }))
    }
}

/// An instance.
struct Chain {
    place: Arc<PerRequest<Known>>,
    runner: Runner,
    middleware: Box<[String]>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("middleware", &self.middleware).finish_non_exhaustive()
    }
}

impl Plugin for Chain {
    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        shared::wait_with_answer(cx)
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(self.runner.time_of(self.middleware.len()))
    }

    fn response_io<'a>(&'a self, cx: &'a mut ResponseCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for name in &self.middleware {
                if let Err(reason) = self.run(name, cx).await {
                    return changes::refuse_answer(name, &reason);
                }
            }
            Flow::Continue
        })
    }
}

impl Chain {
    /// Calls a middleware with an answer, and changes the answer as it wants.
    ///
    /// # Errors
    /// Reason for which the answer cannot go on.
    async fn run(&self, name: &str, cx: &mut ResponseCx<'_>) -> Result<(), String> {
        let session = self.place.get(cx).map_or_else(|| Value::Object(Map::new()), exchange::session);
        let messages = json!({
            "Response": response(cx.response(), cx.body().unwrap_or_default()),
            "Request": exchange::request(cx.request(), cx.source(), b""),
        });
        let text = self.runner.run(name, &messages, &session).await?;
        let returned: Returned =
            serde_json::from_str(&text).map_err(|error| format!("what it returned cannot be read: {error}"))?;
        let changes = returned.response.changes(cx.body().unwrap_or_default());
        changes.apply(cx).map_err(|reason| format!("what it returned cannot be used: {reason}"))
    }
}

/// The answer for a script.
fn response(response: &Response, body: &[u8]) -> Value {
    let mut headers = Map::new();
    for (name, value) in response.head.fields.sent(response.buffer.bytes()).filter(|(name, _)| !is_gateways(name)) {
        exchange::add(&mut headers, name, value);
    }
    json!({
        "StatusCode": response.status(), "Body": String::from_utf8_lossy(body), "Headers": headers,
        "SetHeaders": {}, "DeleteHeaders": [],
    })
}

/// Result of a script.
#[derive(Debug, Deserialize)]
struct Returned {
    #[serde(rename = "Response")]
    response: ReturnedResponse,
}

/// The answer that a script returns.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ReturnedResponse {
    /// 0: as it was.
    status_code: i64,
    body: String,
    set_headers: Option<BTreeMap<String, String>>,
    delete_headers: Option<Vec<String>>,
}

impl ReturnedResponse {
    /// Changes to the answer as the script wants them. `body` is that of the upstream.
    fn changes(self, body: &[u8]) -> AnswerChanges {
        // Bytes that are no text were replaced in what the script saw.
        let is_new = String::from_utf8_lossy(body) != self.body;
        AnswerChanges {
            status: self.status_code,
            clears: false,
            delete_headers: self.delete_headers.unwrap_or_default(),
            set_headers: self.set_headers.into_iter().flatten().map(|(name, value)| (name, vec![value])).collect(),
            body: is_new.then(|| self.body.into_bytes()),
        }
    }
}
