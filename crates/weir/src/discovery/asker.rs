//! Questions to registries over HTTP, and the pauses after failed ones.

use std::io::BufReader;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::{Body, BodyReader};
use weir_config::settings::{ConsulTimeout, RegistryTimeout};

use crate::agents::Agents;

/// Most bytes of an answer.
const MOST: u64 = 64 << 20;
/// Most bytes of an answer that are shown in the log.
const SHOWN: u64 = 200;

/// Pauses after failures: each twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A client for registries.
pub(super) struct Asker {
    agents: Agents,
    verify: bool,
    connect: Duration,
    answer: Duration,
}

/// An answer in JSON.
pub(super) struct Answer {
    pub(super) body: Value,
    /// Consul's `X-Consul-Index`.
    pub(super) index: u64,
}

impl Asker {
    pub(super) fn new(trusted: &str, timeout: &RegistryTimeout) -> Self {
        let answer = Duration::from_millis(u64::from(timeout.send) + u64::from(timeout.read));
        Self::with(trusted, true, Duration::from_millis(timeout.connect.into()), answer)
    }

    pub(super) fn of_consul(trusted: &str, timeout: &ConsulTimeout) -> Self {
        let millis = |n: u32| Duration::from_millis(n.into());
        Self::with(trusted, true, millis(timeout.connect), millis(timeout.read))
    }

    pub(super) fn with(trusted: &str, verify: bool, connect: Duration, answer: Duration) -> Self {
        Self { agents: Agents::new(trusted, None), verify, connect, answer }
    }

    /// Asks for JSON. The server may take `more` time than the limit, because it waits for a change.
    ///
    /// # Errors
    /// There is no answer in time, it has another status than 200, or it is no JSON.
    pub(super) fn get(&self, uri: &str, fields: &[(&str, &str)], more: Duration) -> Result<Answer, String> {
        let response = self.send(uri, fields, self.answer + more, self.answer)?;
        read(response)
    }

    /// Sends a form without a body by POST, and reads the answer in the same way.
    ///
    /// # Errors
    /// As those of [`Asker::get`].
    pub(super) fn post(&self, uri: &str) -> Result<Value, String> {
        let agent = self.agents.of(uri, self.verify)?;
        let request = agent.post(uri).config().timeout_connect(Some(self.connect)).timeout_global(Some(self.answer));
        let response = request.build().send_empty().map_err(|error| error.to_string())?;
        read(response).map(|answer| answer.body)
    }

    /// Asks for an answer that comes bit by bit, for at most `whole`.
    ///
    /// # Errors
    /// There is no answer in time, or it has another status than 200.
    pub(super) fn stream(
        &self,
        uri: &str,
        fields: &[(&str, &str)],
        whole: Duration,
    ) -> Result<BufReader<BodyReader<'static>>, String> {
        let response = self.send(uri, fields, self.answer, whole)?;
        let response = of_success(response)?;
        Ok(BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader()))
    }

    fn send(
        &self,
        uri: &str,
        fields: &[(&str, &str)],
        head: Duration,
        body: Duration,
    ) -> Result<Response<Body>, String> {
        let agent = self.agents.of(uri, self.verify)?;
        let request = agent
            .get(uri)
            .config()
            .timeout_connect(Some(self.connect))
            .timeout_recv_response(Some(head))
            .timeout_recv_body(Some(body))
            .build();
        let request = request.header("Accept", "application/json");
        let filled = fields.iter().filter(|(_, value)| !value.is_empty());
        let request = filled.fold(request, |request, (name, value)| request.header(*name, *value));
        request.call().map_err(|error| error.to_string())
    }
}

fn of_success(mut response: Response<Body>) -> Result<Response<Body>, String> {
    let status = response.status().as_u16();
    if status == 200 {
        return Ok(response);
    }
    let text = response.body_mut().with_config().limit(SHOWN).lossy_utf8(true).read_to_string().unwrap_or_default();
    Err(format!("status {status}: {}", text.trim()).trim_end_matches(": ").to_owned())
}

fn read(response: Response<Body>) -> Result<Answer, String> {
    let mut response = of_success(response)?;
    let index = response.headers().get("X-Consul-Index").and_then(|value| value.to_str().ok()?.parse().ok());
    let body = response.body_mut().with_config().limit(MOST).read_to_vec().map_err(|error| error.to_string())?;
    let body = serde_json::from_slice(&body).map_err(|error| format!("the answer is no JSON: {error}"))?;
    Ok(Answer { body, index: index.unwrap_or(0) })
}

/// Failures of one source of nodes: logged once, with a pause after each.
pub(super) struct Failures {
    registry: &'static str,
    source: String,
    pause: Option<Duration>,
}

impl Failures {
    pub(super) fn of(registry: &'static str, source: &str) -> Self {
        Self { registry, source: source.to_owned(), pause: None }
    }

    /// Notes an answer.
    pub(super) fn end(&mut self) {
        if self.pause.take().is_some() {
            tracing::info!(registry = self.registry, source = self.source, "a registry answers again");
        }
    }

    /// Notes a failure.
    pub(super) fn note(&mut self, error: &str) {
        if self.pause.is_none() {
            let (registry, source) = (self.registry, &self.source);
            tracing::warn!(
                registry,
                source,
                error,
                "a registry does not answer; its last answer, if any, stays in use"
            );
        }
        self.pause = Some(self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE)));
    }

    /// Notes a failure, and waits.
    pub(super) fn wait(&mut self, error: &str) {
        self.note(error);
        thread::sleep(self.pause.unwrap_or(FIRST_PAUSE));
    }
}
