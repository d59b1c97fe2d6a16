//! Parts that the plugins of one API share: its listen path, and the values that one plugin hands to the next.

use std::sync::Arc;

use regex::bytes::Regex;
use serde_json::{Map, Value};
use weir_expr::{Source, Variable};
use weir_plugin::{BuildCx, Flow, HookCx, Origin, PerRequest, Request, RequestCx, ResponseCx};
use weir_wire::method::Method;

use super::patterns::{compile, is_plain, pattern_of};
use super::sessions::{Counted, Session};

/// State of a request when its chain has come to a plugin.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The session of the caller; none without a key.
    pub(super) session: Option<Arc<Session>>,
    /// Name under which the requests of the caller count, where it is not the session's.
    pub(super) identity: Option<String>,
    /// Number of the version.
    pub(super) version: usize,
    /// Bytes of the path behind the listen path that name the version and are taken off.
    pub(super) skipped: usize,
    /// True for a path in the list `ignored`: neither key nor limits.
    pub(super) is_ignored: bool,
    /// Numbers for `X-RateLimit-*`: limit, remaining, reset.
    pub(super) told: [i64; 3],
    /// True if the answer was mocked, which has no such fields.
    pub(super) is_mocked: bool,
    /// `meta_data` in the place of the session's, where a script has changed it.
    pub(super) meta: Option<Arc<Map<String, Value>>>,
    /// Path and query in the place of the request's, where a script has changed them.
    pub(super) url: Option<Box<[u8]>>,
    /// True if the answer was kept from an earlier request.
    pub(super) is_cached: bool,
    /// The session of the organisation and the requests of its quota that are used, in the pass that counts them.
    pub(super) organisation_used: Option<(Arc<Session>, u64)>,
    /// The method in the place of the request's, by which lists find it.
    pub(super) method: Option<Method>,
    /// Results of earlier passes through the chain, each of which ended with a wait.
    pub(super) progress: Progress,
}

impl Known {
    /// `meta_data` of the caller.
    pub(super) fn meta(&self) -> Option<Arc<Map<String, Value>>> {
        self.meta.clone().or_else(|| Some(Arc::clone(&self.session.as_ref()?.meta)))
    }

    /// Takes note of what the request waits for.
    pub(super) fn wait_for(&mut self, wait: Wait) -> Flow {
        self.progress.wait = Some(wait);
        Flow::Suspend
    }
}

/// Name and session of what was read from Redis; `None`: there is no usable session.
pub(super) type ReadSession = (Box<[u8]>, Option<Arc<Session>>);

/// A session, and the name under which its requests count.
pub(super) type Caller = (Arc<Session>, String);

/// Results of the waits of a request, and the next wait.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The next wait.
    pub(super) wait: Option<Wait>,
    /// Sessions that were read from Redis, by their names; `None` for a name without a usable session.
    pub(super) read: Vec<ReadSession>,
    /// True once the rates of the session have let the request through.
    pub(super) has_rate: bool,
    /// Number of times that the request was held because of its rate, and milliseconds for which it was held.
    pub(super) held: (u32, u64),
    /// Names of values beside sessions, and whether Redis has them.
    pub(super) records: Vec<(String, bool)>,
    /// The session of the organisation in Redis; an error where Redis could not be asked.
    pub(super) organisation: Option<Result<Option<Arc<Session>>, ()>>,
    /// The count of the organisation's quota in Redis; an error where Redis could not be asked.
    pub(super) organisation_counted: Option<Result<Counted, ()>>,
    /// True once the limits of the organisation have let the request through.
    pub(super) has_organisation: bool,
    /// The verdict of a provider about the token.
    pub(super) is_verified: Option<bool>,
    /// The session that the authentication of a service has given, and the name under which its requests count.
    pub(super) custom: Option<Result<Caller, (u16, &'static str)>>,
    /// The count of the quota in Redis; an error where Redis could not be asked.
    pub(super) counted: Option<Result<Counted, ()>>,
}

impl Progress {
    /// Milliseconds since 1970: the clock of a request stands while it is held.
    pub(super) fn unix_ms(&self, cx: &RequestCx<'_>) -> u64 {
        cx.unix_ms() + self.held.1
    }
}

/// A wait of a request before its chain goes on.
#[derive(Debug)]
pub(super) enum Wait {
    /// The sets of keys of tokens.
    Keys,
    /// The first of these sessions that there is in Redis.
    Sessions(Vec<Box<[u8]>>),
    /// A look whether there is a value beside sessions with this name in Redis.
    Record(String),
    /// The session of the organisation.
    Organisation,
    /// The count of the organisation's quota in Redis, in periods of seconds.
    OrganisationQuota(u64),
    /// The verdict of a provider about a token.
    Verify(Box<str>),
    /// Authentication by a service.
    Custom,
    /// Milliseconds, after which the rate is asked again.
    Throttle(u64),
    /// The count of a quota in Redis under a name, in periods of seconds.
    Quota(Vec<u8>, u64),
}

/// Place of [`Known`] on an exchange, one for the plugins of an API.
pub(super) fn place(build: &BuildCx<'_>, api: &str) -> Arc<PerRequest<Known>> {
    build.states.get_or_create(&format!("tyk request {api}"), PerRequest::new)
}

/// The method by which the lists of an API find a request.
pub(super) fn method(place: &PerRequest<Known>, cx: &impl HookCx) -> Option<Method> {
    place.get(cx)?.method
}

/// The name of a method, which is the request's where there is no other.
pub(super) fn name_of(method: Option<Method>, request: &Request) -> &[u8] {
    method.map_or_else(|| request.method_bytes(), |method| method.as_str().as_bytes())
}

/// A text of a request; bytes that are no UTF-8 are replaced.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The scheme of a request, as middleware is told.
pub(super) fn scheme(source: &dyn Source) -> String {
    let mut scheme = Vec::new();
    source.variable(&Variable::Scheme).iter().for_each(|value| value.write_to(&mut scheme));
    text(&scheme)
}

/// Lets a hook wait once the whole body of the request is there.
pub(super) fn wait_with_body(cx: &RequestCx<'_>) -> Flow {
    if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
}

/// Lets a hook wait once the whole body of an upstream's answer is there. Answers of the gateway's own pass.
pub(super) fn wait_with_answer(cx: &ResponseCx<'_>) -> Flow {
    match cx.body() {
        _ if cx.response().origin != Origin::Upstream => Flow::Continue,
        None => Flow::AwaitBody,
        Some(_) => Flow::Suspend,
    }
}

/// Changes [`Known`], which is made where it is not there yet.
pub(super) fn known(place: &PerRequest<Known>, cx: &mut RequestCx<'_>, change: impl FnOnce(&mut Known)) {
    if place.get(cx).is_none() {
        place.put(cx, Known::default());
    }
    if let Some(known) = place.get_mut(cx) {
        change(known);
    }
}

/// The listen path of an API.
#[derive(Debug)]
pub(super) enum ListenPath {
    /// One without.
    Plain(Box<[u8]>),
    /// One with parameters or expressions.
    Regex(Regex),
}

impl ListenPath {
    pub(super) fn compile(path: &str) -> Result<Self, String> {
        match is_plain(path) {
            true => Ok(Self::Plain(path.as_bytes().into())),
            false => Ok(Self::Regex(compile(&format!("^{}", pattern_of(path)), false)?)),
        }
    }

    /// Length of the listen path at the beginning of a path; 0 for a path with another beginning, which loops lead to and
    /// scripts write.
    pub(super) fn length(&self, path: &[u8]) -> usize {
        match self {
            Self::Plain(plain) if path.starts_with(plain) => plain.len(),
            Self::Plain(_) => 0,
            Self::Regex(regex) => regex.find(path).map_or(0, |found| found.end()),
        }
    }

    /// Appends the path behind the listen path, with a slash at its beginning.
    pub(super) fn write_rest(&self, request: &Request, out: &mut Vec<u8>) {
        let path = request.path();
        let rest = path.get(self.length(path)..).unwrap_or_default();
        if !rest.starts_with(b"/") {
            out.push(b'/');
        }
        out.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::ListenPath;
    use crate::tyk::patterns::is_plain;

    #[test]
    fn a_listen_path_has_a_length() {
        for (listen, path, length) in
            [("/kl/", "/kl/a", 4), ("/", "/a", 1), ("/rx/{id}/x/", "/rx/12/x/a", 9), ("/rx/{id}", "/rx/12/x", 6)]
        {
            let compiled = ListenPath::compile(listen).expect("a path");
            assert_eq!(
                (compiled.length(path.as_bytes()), is_plain(listen)),
                (length, !listen.contains('{')),
                "{listen}"
            );
        }
    }
}
