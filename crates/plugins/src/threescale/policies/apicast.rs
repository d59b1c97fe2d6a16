//! `apicast` and `3scale_batcher`: who calls, what a request uses, and whether it may pass.

use std::borrow::Cow;

use subtle::ConstantTimeEq;
use weir_plugin::{Flow, Io, LocalFuture, RequestCx};
use weir_wire::query::{self, Argument};

use crate::threescale::credentials::{Lacking, Version, has_form};
use crate::threescale::errors::Refusal;
use crate::threescale::oidc::{Fault, end};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Phase, Policy, Step};
use crate::threescale::state::State;

/// The policy `apicast`.
#[derive(Debug)]
pub(in crate::threescale) struct Apicast;

/// The policy `3scale_batcher`, which authorises in the place of `apicast`.
#[derive(Debug)]
pub(super) struct Batcher;

impl Policy for Apicast {
    fn rewrite(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        // Another policy may have given credentials.
        if !state.credentials.is_complete() {
            match parts.extractor.extract(cx, &mut state.credentials) {
                Ok(()) => {}
                Err(Lacking::Body) => return Step::Done(Flow::AwaitBody),
                Err(Lacking::Missing) => return Step::Done(parts.errors.refuse(cx, Refusal::AuthMissing, None)),
            }
        }
        if parts.rules.has_arguments && has_form(cx) && cx.body().is_none() {
            return Step::Done(Flow::AwaitBody);
        }
        apply_rules(parts, cx, state);
        state.is_identified = true;
        if !parts.secret.is_empty() {
            cx.request_mut().set_field(&parts.fields.secret_token, &parts.secret);
        }
        let Some(oidc) = &parts.oidc else { return Step::Next };
        match oidc.verify_here(state.credentials.token(), cx) {
            Ok(claims) => identify(parts, cx, state, claims),
            Err(Fault::NeedsProvider) => Step::Done(Flow::Suspend),
            Err(_) => Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None)),
        }
    }

    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        if parts.has_batcher { Step::Next } else { authorise(parts, cx, state) }
    }

    fn wait<'a>(
        &'a self,
        parts: &'a Parts,
        cx: &'a mut RequestCx<'_>,
        state: &'a mut State,
        io: &'a dyn Io,
        phase: Phase,
    ) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            if phase == Phase::Access {
                return ask(parts, cx, state, io).await;
            }
            let Some(oidc) = &parts.oidc else { return Step::Done(cx.fail(500, "3scale: no provider to ask")) };
            match oidc.verify_there(state.credentials.token(), cx, io).await {
                Ok(claims) => identify(parts, cx, state, claims),
                Err(Fault::Provider(reason)) => Step::Done(cx.fail(503, reason)),
                Err(_) => Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None)),
            }
        })
    }

    fn content(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        match &parts.target {
            Some(target) => Step::Done(target.send(cx, state)),
            None => Step::Done(cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").done()),
        }
    }
}

impl Policy for Batcher {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        // Without the policy apicast, or ahead of a condition that leaves it out, nobody knows who calls.
        if parts.authoriser.is_none() { Step::Next } else { authorise(parts, cx, state) }
    }

    fn wait<'a>(
        &'a self,
        parts: &'a Parts,
        cx: &'a mut RequestCx<'_>,
        state: &'a mut State,
        io: &'a dyn Io,
        _: Phase,
    ) -> LocalFuture<'a, Step> {
        Box::pin(ask(parts, cx, state, io))
    }
}

/// Adds what the mapping rules say of a request.
fn apply_rules(parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) {
    let mut path = cx.take_scratch();
    state.write_encoded_path(cx.request(), &mut path);
    let request = cx.request();
    let form = Some(request.body().unwrap_or_default()).filter(|_| parts.rules.has_arguments && has_form(cx));
    let argument = |name: &[u8]| {
        let in_form = form.and_then(|form| last_argument(form, name));
        in_form.or_else(|| last_argument(request.query().unwrap_or_default(), name))
    };
    let (mut usage, mut matched) = (std::mem::take(&mut state.usage), std::mem::take(&mut state.matched));
    parts.rules.apply(request.method_bytes(), &path, argument, &mut usage, &mut matched);
    (state.usage, state.matched) = (usage, matched);
    cx.put_scratch(path);
}

/// The last argument of a name; `Some(None)` for one without a value.
fn last_argument<'t>(text: &'t [u8], name: &[u8]) -> Option<Option<Cow<'t, [u8]>>> {
    let mut decoded = Vec::new();
    let plain = if query::is_plain(text) {
        text
    } else {
        query::decode(text, &mut decoded);
        &decoded
    };
    let last = query::all(text, plain).filter(|(known, _)| *known == name).last();
    last.map(|(_, argument)| match argument {
        Argument::Flag => None,
        Argument::Value(value) => Some(Cow::Owned(value.to_vec())),
    })
}

/// Takes the application of a token for the caller.
fn identify(
    parts: &Parts,
    cx: &mut RequestCx<'_>,
    state: &mut State,
    claims: std::rc::Rc<crate::auth::openid_connect::jose::Claims>,
) -> Step {
    let id = parts.oidc.as_ref().and_then(|oidc| oidc.client_id(&claims));
    let Some(id) = id else { return Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None)) };
    state.credentials.set(Version::AppId, [Some(id.as_bytes()), None]);
    let left = (end(&claims) - cx.unix_ms() as f64 / 1000.0).max(0.0);
    state.token_end = cx.now_ms().saturating_add((left * 1000.0) as u64);
    state.jwt = Some(claims);
    Step::Next
}

fn authorise(parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
    let Some(authoriser) = parts.authoriser.as_ref().filter(|_| state.is_identified) else {
        // Whoever is not known is not authorised.
        return Step::Done(parts.errors.refuse(cx, Refusal::AuthMissing, None));
    };
    tell(parts, cx, state);
    authoriser.check(parts, cx, state)
}

async fn ask(parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State, io: &dyn Io) -> Step {
    match &parts.authoriser {
        Some(authoriser) => authoriser.ask(parts, cx, state, io).await,
        None => Step::Done(cx.fail(500, "3scale: no backend to ask")),
    }
}

/// Tells a client that knows the secret of the service by what its request is judged.
fn tell(parts: &Parts, cx: &mut RequestCx<'_>, state: &State) {
    let Some(given) = cx.request().field(&parts.fields.debug) else { return };
    if parts.debug_secret.is_empty() || !bool::from(given.ct_eq(&parts.debug_secret)) {
        return;
    }
    let fields = &parts.fields;
    cx.set_response_field(&fields.matched, |out| parts.rules.write_patterns(&state.matched, out));
    cx.set_response_field(&fields.credentials, |out| state.credentials.write(out));
    cx.set_response_field(&fields.usage, |out| state.usage.write(&parts.metrics, out));
    cx.set_response_field(&fields.hostname, |out| out.extend_from_slice(&parts.host_name));
    cx.set_response_field(&fields.service_id, |out| out.extend_from_slice(parts.names.id.as_bytes()));
    cx.set_response_field(&fields.service_name, |out| out.extend_from_slice(parts.names.system_name.as_bytes()));
}
