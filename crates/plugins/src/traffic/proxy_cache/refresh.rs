//! Answers that are too old, given while newer ones are fetched beside them (RFC 5861 section 3).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use weir_plugin::{Callout, CalloutError, CalloutResponse, Flow, Io, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::keeping::{Asked, Came, Keeping};
use super::{Caching, values_among};
use crate::cache::zone::{Fetching, Stored};

/// Milliseconds after which a newer answer is asked for again that did not come.
const PAUSE_MS: u64 = 1000;

/// A newer answer that is to be fetched.
#[derive(Debug)]
pub(super) struct Refresh {
    key: Vec<u8>,
    /// The answer to give meanwhile.
    stored: Arc<Stored>,
    /// Keeps others from fetching it as well.
    fetching: Fetching,
}

/// True if a stored answer may be given while a newer one is fetched.
pub(super) fn may_be_given(stored: &Stored, now_ms: u64) -> bool {
    let old_ms = stored.age_ms(now_ms).saturating_sub(stored.lifetime_ms);
    stored.revalidate_ms > 0 && old_ms <= stored.revalidate_ms
}

impl Caching {
    /// Gives a stored answer that is too old, and fetches a newer one beside, unless somebody does already.
    pub(super) fn give_and_refresh(&self, cx: &mut RequestCx<'_>, key: Vec<u8>, stored: Arc<Stored>) -> Flow {
        let is_due = stored.refresh_at_ms.load(Relaxed) <= cx.now_ms();
        let fetching = is_due.then(|| self.keeping.zone.fetch(&key).ok()).flatten();
        let Some(fetching) = fetching else { return self.answer(cx, &key, &stored, b"STALE") };
        self.refreshing.put(cx, Refresh { key, stored, fetching });
        Flow::Suspend
    }

    /// Begins to fetch the newer answer.
    pub(super) async fn refresh(&self, cx: &mut RequestCx<'_>, io: &dyn Io, refresh: Refresh) -> Flow {
        let Refresh { key, stored, fetching } = refresh;
        let of_stored = key.clone();
        stored.refresh_at_ms.store(cx.now_ms() + PAUSE_MS, Relaxed);
        if let Some(upstream) = io.upstream() {
            let (mut question, fields) = question(cx, upstream);
            let old = if self.revalidates { self.whole(&stored).await.ok() } else { None };
            if let Some(old) = &old {
                self.conditions(&old.stored).for_each(|(name, value)| question.add_field(name, value));
            }
            let keeping = Arc::clone(&self.keeping);
            let is_callers = self.is_callers(cx);
            // Times of the question, so that nothing is taken for newer than it is.
            let (now_ms, unix_ms) = (cx.now_ms(), cx.unix_ms());
            let done = move |answer: Result<CalloutResponse, CalloutError>| {
                let values = |names: &[Box<str>], out: &mut Vec<u8>| {
                    values_among(|| fields.iter().map(|(name, value)| (&**name, &**value)), names, out);
                };
                match answer {
                    Ok(answer) => {
                        let asked = Asked { is_callers, values: &values, now_ms, unix_ms };
                        match old.filter(|_| answer.status() == 304) {
                            Some(old) => {
                                let renewed = keeping.renewed(&old, answer.fields(), &asked);
                                keeping.keep_renewed(&key, &old, renewed);
                            }
                            None => take(&keeping, &key, &answer, &asked),
                        }
                    }
                    Err(error) => {
                        tracing::info!(reason = error.reason(), "an answer that is too old cannot be renewed");
                    }
                }
                drop(fetching);
            };
            io.start(question, Box::new(done));
        }
        self.answer(cx, &of_stored, &stored, b"STALE")
    }
}

/// Keeps a newer answer, or forgets the old one where there is none any more. A failure changes nothing.
fn take(keeping: &Keeping, key: &[u8], answer: &CalloutResponse, asked: &Asked<'_>) {
    let status = answer.status();
    if matches!(status, 500 | 502..=504) {
        tracing::info!(status, "an answer that is too old cannot be renewed");
        return;
    }
    let came = Came { status, fields: answer.fields().collect(), length: Some(answer.body().len() as u64) };
    match keeping.keep(&came, asked) {
        Some(pending) => {
            let mut stored = pending.stored;
            stored.body = answer.body().into();
            keeping.store(key, &pending.vary, &pending.values, stored);
        }
        None => keeping.forget(key),
    }
}

/// Names and values.
type Fields = Vec<(Box<[u8]>, Box<[u8]>)>;

/// The request for a newer answer, and the fields of the client's request.
fn question(cx: &RequestCx<'_>, upstream: u32) -> (Callout, Fields) {
    let request = cx.request();
    let mut target = Vec::new();
    request.write_upstream_target(&mut target);
    let host = if request.upstream.host.is_empty() { request.host_port() } else { &request.upstream.host };
    let mut callout = Callout::new(upstream, Method::Get, &target, host);
    let mut fields = Fields::new();
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        fields.push((name.into(), value.into()));
        let name = std::str::from_utf8(name).ok().and_then(FieldName::new);
        if let Some(name) = name.filter(is_sent) {
            callout.add_field(&name, value);
        }
    }
    let proto: &[u8] = if cx.client().https { b"https" } else { b"http" };
    let client = cx.client().addr_text.as_bytes();
    for (name, value) in [
        ("X-Real-IP", client),
        ("X-Forwarded-For", client),
        ("X-Forwarded-Proto", proto),
        ("X-Forwarded-Host", request.host_port()),
    ] {
        let name = FieldName::constant(name);
        if !callout.has_field(&name) {
            callout.add_field(&name, value);
        }
    }
    (callout, fields)
}

/// True for a field that belongs neither to the client's connection nor to what the client has already.
fn is_sent(name: &FieldName) -> bool {
    const LEFT_OUT: [&[u8]; 10] = [
        b"host",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"expect",
        b"range",
        b"if-range",
        b"if-match",
        b"if-none-match",
        b"if-modified-since",
        b"if-unmodified-since",
    ];
    !name.is_framing() && !LEFT_OUT.iter().any(|other| other.eq_ignore_ascii_case(name.text()))
}
