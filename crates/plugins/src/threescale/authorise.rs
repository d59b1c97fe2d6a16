//! Authorisation of requests by a backend, whose verdicts are remembered, and reports of what they have used.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BuildCx, Flow, Invalid, Io, Keep, RequestCx};

use super::backend::{Ask, Backend, Draft};
use super::errors::Refusal;
use super::parts::Parts;
use super::policy::Step;
use super::reports::Reports;
use super::state::State;
use super::verdicts::{AnswerFields, Known, Table, Verdict, Verdicts};

/// Verdicts that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Caching {
    /// Those that let pass, until the backend says or does anything else.
    #[default]
    Strict,
    /// All, until the backend gives another one: one that does not answer changes nothing.
    Resilient,
    /// The same, and while the backend does not answer, everybody passes of whom no refusal is known.
    Allow,
    /// None.
    None,
}

/// The policy `3scale_batcher`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batching {
    /// Seconds for which a verdict is used.
    pub(super) auths_ttl: u64,
    /// Seconds between reports.
    pub(super) batch_report_seconds: u64,
}

/// Milliseconds after which a verdict is asked for again beside the requests, without [`Batching`].
const REFRESH_MS: u64 = 1000;
/// Seconds between reports, without [`Batching`].
const REPORT_SECONDS: u64 = 1;

/// Authorisation, before it is built.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) backend: Draft,
    /// `None`: there is no policy `caching`.
    pub(super) caching: Option<Caching>,
    pub(super) batching: Option<Batching>,
}

/// Authorisation of the requests of a service.
#[derive(Debug)]
pub(super) struct Authoriser {
    backend: Backend,
    verdicts: Arc<Verdicts>,
    reports: Reports,
    caching: Caching,
    /// True if last verdicts hold while the backend does not answer.
    outlasts: bool,
    batching: Option<Batching>,
    fields: Arc<AnswerFields>,
}

impl Settings {
    pub(super) fn build(self, id: &str, build: &BuildCx<'_>) -> Result<Authoriser, Invalid> {
        let seconds = self.batching.map_or(REPORT_SECONDS, |batching| batching.batch_report_seconds);
        let reports = Reports::open(&self.backend, id, seconds, build);
        let key = format!("3scale verdicts {} {} {:?}", self.backend.endpoint, self.backend.identity, self.batching);
        let caching = self.caching.unwrap_or_default();
        Ok(Authoriser {
            backend: self.backend.build(build)?,
            verdicts: build.states.get_or_create(&key, Verdicts::new),
            reports,
            caching,
            outlasts: matches!(caching, Caching::Resilient | Caching::Allow),
            batching: self.batching,
            fields: Arc::default(),
        })
    }
}

impl Authoriser {
    /// Lets a request pass, refuses it, or has to ask.
    pub(super) fn check(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        if state.usage.is_empty() {
            return Step::Done(parts.errors.refuse(cx, Refusal::NoMatch, None));
        }
        if self.batching.is_none() && self.caching == Caching::None {
            return Step::Done(Flow::Suspend);
        }
        let mut key = cx.take_scratch();
        write_key(parts, state, &mut key);
        let known = self.verdicts.here().look(&key, cx.now_ms(), self.batching.is_some());
        cx.put_scratch(key);
        match known {
            Known::Passes => {
                self.report(parts, cx, state);
                Step::Next
            }
            Known::Stale => {
                state.is_stale = true;
                Step::Done(Flow::Suspend)
            }
            Known::Refused(is_over_limit) => Step::Done(refuse(parts, cx, is_over_limit, None)),
            Known::Nothing => Step::Done(Flow::Suspend),
        }
    }

    /// Asks the backend.
    pub(super) async fn ask(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State, io: &dyn Io) -> Step {
        let mut key = Vec::new();
        write_key(parts, state, &mut key);
        let table = self.verdicts.here();
        if std::mem::take(&mut state.is_stale) {
            self.ask_again(&key, parts, cx, state, io);
            self.report(parts, cx, state);
            return Step::Next;
        }
        let ask = if self.batching.is_some() { Ask::Authorize } else { Ask::AuthRep };
        let question = self.backend.question(ask, &arguments(parts, state));
        let mut is_counted = false;
        let verdict = if self.caching == Caching::None && self.batching.is_none() {
            is_counted = true;
            Arc::new(Verdict::of(&io.callout(question).await, &self.fields))
        } else {
            let counted = &mut is_counted;
            let ask_backend = || {
                *counted = ask == Ask::AuthRep;
                async {
                    let verdict = Verdict::of(&io.callout(question).await, &self.fields);
                    (verdict, Keep { ttl_ms: 0, bytes: 0 })
                }
            };
            self.verdicts.asked.get(&key, cx.now_ms(), ask_backend).await
        };
        if verdict.is_unasked {
            return Step::Done(cx.fail(503, "3scale: too many callouts under way"));
        }
        if !self.take_in(&table, &key, &verdict, (cx.now_ms(), state.token_end)) {
            // Clients learn when a limit begins anew only of the backend itself.
            let retry_after = verdict.retry_after.as_deref().filter(|_| self.batching.is_none());
            return Step::Done(refuse(parts, cx, verdict.is_over_limit, retry_after));
        }
        if !is_counted || verdict.is_unavailable() {
            self.report(parts, cx, state);
        }
        Step::Next
    }

    /// Asks the backend for a verdict again, without waiting for the answer.
    fn ask_again(&self, key: &[u8], parts: &Parts, cx: &RequestCx<'_>, state: &State, io: &dyn Io) {
        let question = self.backend.question(Ask::Authorize, &arguments(parts, state));
        let (table, key, fields) = (self.verdicts.here(), Box::<[u8]>::from(key), Arc::clone(&self.fields));
        let (caching, times) = (self.caching, (cx.now_ms(), state.token_end));
        let done = move |answer: Result<_, _>| {
            let verdict = Verdict::of(&answer, &fields);
            if verdict.is_unasked {
                return table.keep(&key);
            }
            remember(caching, &table, &key, &verdict, times);
        };
        io.start(question, Box::new(done));
    }

    /// Remembers a verdict. True if the request may pass.
    fn take_in(&self, table: &Table, key: &[u8], verdict: &Verdict, times: (u64, u64)) -> bool {
        let (now, end) = times;
        let Some(batching) = self.batching else { return remember(self.caching, table, key, verdict, times) };
        if !verdict.is_unavailable() {
            let fresh = now.saturating_add(batching.auths_ttl * 1000);
            table.put(key, verdict.status, verdict.is_over_limit, (fresh, end), now);
            return verdict.status == 200;
        }
        match table.last(key, now) {
            Some(passes) => self.outlasts && passes,
            None => self.caching == Caching::Allow,
        }
    }

    /// Reports the usage of a request that passes.
    fn report(&self, parts: &Parts, cx: &RequestCx<'_>, state: &State) {
        self.reports.add(&state.credentials, cx.unix_ms(), |out| state.usage.write_report(&parts.metrics, out));
    }

    /// Reports usage beside that of the mapping rules: `metric=number` with `&` between them.
    pub(super) fn report_more(&self, state: &State, unix_ms: u64, usage: &[u8]) {
        self.reports.add(&state.credentials, unix_ms, |out| out.extend_from_slice(usage));
    }
}

/// Remembers a verdict as the policy `caching` says. True if the request may pass.
fn remember(caching: Caching, table: &Table, key: &[u8], verdict: &Verdict, (now, end): (u64, u64)) -> bool {
    let passes = verdict.status == 200;
    let put = |status: u16| {
        table.put(key, status, verdict.is_over_limit, (now.saturating_add(REFRESH_MS), end), now);
    };
    match caching {
        Caching::Strict if passes => put(200),
        Caching::Strict => table.forget(key),
        Caching::Resilient | Caching::Allow if !verdict.is_unavailable() => put(verdict.status),
        Caching::Resilient | Caching::Allow => {
            let last = table.last(key, now);
            if last.is_none() && caching == Caching::Allow {
                put(200);
                return true;
            }
            table.keep(key);
            return last == Some(true);
        }
        Caching::None => {}
    }
    passes
}

fn refuse(parts: &Parts, cx: &mut RequestCx<'_>, is_over_limit: bool, retry_after: Option<&[u8]>) -> Flow {
    match is_over_limit {
        true => parts.errors.refuse(cx, Refusal::LimitsExceeded, retry_after),
        false => parts.errors.refuse(cx, Refusal::AuthFailed, None),
    }
}

/// Appends what a verdict depends on: credentials and usage.
fn write_key(parts: &Parts, state: &State, out: &mut Vec<u8>) {
    state.credentials.write(out);
    out.push(b'&');
    state.usage.write(&parts.metrics, out);
}

/// Arguments of a question.
fn arguments(parts: &Parts, state: &State) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_key(parts, state, &mut out);
    out
}
