//! Calls of scripts within their limits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use weir_javascript::{Call, Engine, Entry, Fault, HostRequest, Limits, Program, Question, Script};
use weir_plugin::{BuildCx, Invalid};

use super::ScriptConf;
use crate::tyk::fetch::{self, Fetch};
use crate::tyk::gateway::{ApiAnswer, ApiRequest, Door};
use crate::tyk::sessions::remote::{self, Remote};

/// Seconds that a call may take where nothing is said.
const TIMEOUT: u32 = 5;
/// Most seconds that a call may take.
const MOST_TIMEOUT: u32 = 60;
/// Most bytes of memory of the scripts of an API, on each thread.
const MEMORY: usize = 32 << 20;

/// The scripts of an API, compiled.
pub(in crate::tyk) struct Compiled {
    program: Arc<Program>,
    entry: Entry,
    /// The API as scripts see it, in JSON.
    config: String,
    /// Longest time of a call.
    time: Duration,
}

/// The means to call the scripts of an API.
pub(in crate::tyk) struct Runner {
    scripts: Compiled,
    fetch: Fetch,
    /// The way to the sessions of keys.
    door: Arc<Door>,
    /// The Redis of sessions.
    remote: Option<Remote>,
}

impl Compiled {
    /// Evaluates the scripts and looks for what is to be called: `names`. `timeout` is in seconds; 0: 5.
    ///
    /// # Errors
    /// A script cannot be evaluated, or a name is nothing that can be called.
    pub(in crate::tyk) fn new(
        scripts: Vec<ScriptConf>,
        (entry, names): (Entry, &[String]),
        timeout: u32,
        (api, org, data): (&str, &str, &Map<String, Value>),
    ) -> Result<Self, Invalid> {
        let scripts = scripts.into_iter().map(|script| Script { name: script.path, text: script.text }).collect();
        let seconds = if timeout == 0 { TIMEOUT } else { timeout.min(MOST_TIMEOUT) };
        let limits = Limits { time: Duration::from_secs(seconds.into()), memory: MEMORY };
        let program = Program::new(scripts, entry, names, limits);
        let program = program.map_err(|error| Invalid::new("scripts", error))?;
        let config = json!({ "APIID": api, "OrgID": org, "config_data": data }).to_string();
        Ok(Self { program, entry, config, time: limits.time })
    }

    pub(in crate::tyk) fn build(self, storage: &remote::Conf, build: &BuildCx<'_>) -> Result<Runner, Invalid> {
        let (fetch, door, remote) = (Fetch::new(build.network), Door::of(build.states), storage.build(build)?);
        Ok(Runner { scripts: self, fetch, door, remote })
    }
}

impl Runner {
    /// Longest time of a call.
    pub(super) fn time(&self) -> Duration {
        self.scripts.time
    }

    /// Longest time of this many calls, each of which is answered within a limit of its own.
    pub(super) fn time_of(&self, calls: usize) -> Duration {
        self.time() * (2 * u32::try_from(calls).unwrap_or(1) + 1)
    }

    /// Calls one of the names with a request and a session; its result in JSON.
    pub(in crate::tyk) async fn run(&self, name: &str, request: &Value, session: &Value) -> Result<String, String> {
        let arguments = [request.to_string(), session.to_string(), self.scripts.config.clone()];
        // A call waits for a thread as long as it may run; a script within one long step is ended behind that step.
        match weir_runtime::timeout(self.time() * 2, self.call(name, arguments)).await {
            Some(Ok(text)) => Ok(text),
            Some(Err(fault)) => Err(fault.to_string()),
            None => Err(Fault::Time.to_string()),
        }
    }

    /// Calls a script, and meanwhile answers its questions.
    async fn call(&self, name: &str, arguments: [String; 3]) -> Result<String, Fault> {
        let (host, mut requests) = mpsc::channel::<HostRequest>(1);
        let (program, entry) = (Arc::clone(&self.scripts.program), self.scripts.entry);
        let call = Call { program, entry, name: name.to_owned(), arguments, host };
        let mut outcome = pin!(Engine::global().call(call)?);
        loop {
            let next = poll_fn(|task| match requests.poll_recv(task) {
                Poll::Ready(Some(request)) => Poll::Ready(Err(request)),
                _ => outcome.as_mut().poll(task).map(Ok),
            });
            match next.await {
                Ok(outcome) => return outcome.unwrap_or(Err(Fault::Busy)),
                Err(request) => {
                    let answer = weir_runtime::timeout(self.time(), self.answer(request.question)).await;
                    // A script that was ended waits no longer.
                    let _ = request.reply.try_send(answer.unwrap_or_else(|| fetch::failed("no answer in time")));
                }
            }
        }
    }

    /// The answer to a question of a script, in JSON.
    async fn answer(&self, question: Question) -> String {
        match question {
            Question::Http(request) => self.fetch.answer(&request).await,
            Question::Batch(batch) => self.fetch.batch(&batch).await.unwrap_or_default(),
            Question::Session(key, api) => {
                let answer = self.ask("GET", &key, vec![("api_id".to_owned(), api)], Vec::new()).await;
                // Of a key that is not there Tyk gives its refusal as well.
                let text = answer.map(|answer| String::from_utf8_lossy(&answer.body).trim().to_owned());
                text.filter(|text| text.starts_with('{')).unwrap_or_else(|| "{}".to_owned())
            }
            Question::SetSession { key, session, keeps_quota } => {
                let query = vec![("suppress_reset".to_owned(), u8::from(keeps_quota).to_string())];
                let mut answer = self.ask("PUT", &key, query.clone(), session.clone().into_bytes()).await;
                if answer.as_ref().is_some_and(|answer| answer.status == 404) {
                    answer = self.ask("POST", &key, query, session.into_bytes()).await;
                }
                if let Some(refused) = answer.filter(|answer| answer.status != 200) {
                    let told = String::from_utf8_lossy(&refused.body);
                    tracing::warn!(status = refused.status, told = told.trim(), "TykSetKeyData has changed nothing");
                }
                String::new()
            }
        }
    }

    /// Asks the gateway API about a key; `None`, which is logged, where nothing answers.
    async fn ask(&self, method: &str, key: &str, query: Vec<(String, String)>, body: Vec<u8>) -> Option<ApiAnswer> {
        let (method, path) = (method.to_owned(), format!("keys/{key}"));
        let request = |remote| ApiRequest { method, path, query, body, remote, is_own: true, ..ApiRequest::default() };
        let answer = self.door.answer(self.remote.as_ref(), request).await;
        answer.inspect_err(|reason| tracing::warn!(reason, "a script gets no session")).ok()
    }
}
