//! Answers that are too old, of which the upstream is asked whether they have changed (RFC 9111 section 4.3).

use weir_plugin::{HookCx, RequestCx, ResponseCx};

use super::Caching;
use super::conditions::value;
use super::keeping::{Asked, Came};
use super::loading::Whole;
use super::values_of;
use crate::cache::zone::Stored;

/// Fields of a 304 that say nothing of the stored answer's own (RFC 9111 section 3.2).
const NOT_TAKEN: [&str; 4] = ["content-encoding", "content-type", "content-range", "content-length"];

impl Caching {
    /// True if the upstream can be asked whether a stored answer has changed: it has a tag or a time of its last change, and
    /// the request brings no condition of its own.
    pub(super) fn can_be_asked_about(&self, cx: &RequestCx<'_>, stored: &Stored) -> bool {
        let request = cx.request();
        let own = ["if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "range"];
        self.revalidates
            && request.method_bytes() == b"GET"
            && !own.iter().any(|name| request.field_str(name).is_some())
            && ["etag", "last-modified"].iter().any(|name| value(stored, name).is_some())
    }

    /// Makes the request one that asks whether a stored answer has changed.
    pub(super) fn ask_about(&self, cx: &mut RequestCx<'_>, stored: &Stored) {
        for (name, validator) in [(&self.names.if_none_match, "etag"), (&self.names.if_modified_since, "last-modified")]
        {
            if let Some(value) = value(stored, validator) {
                cx.request_mut().set_field(name, value);
            }
        }
    }

    /// Answers with what is stored, of which the upstream has said that it has not changed, and keeps it with the fields of the
    /// upstream's answer.
    pub(super) fn take_unchanged(&self, cx: &mut ResponseCx<'_>, key: &[u8], old: &Whole) {
        let response = cx.response();
        let new: Vec<_> =
            response.head.fields.sent(response.buffer.bytes()).filter(|(name, _)| is_taken(name)).collect();
        let is_new = |name: &[u8]| new.iter().any(|(taken, _)| taken.eq_ignore_ascii_case(name));
        let kept = old.stored.fields.iter().map(|(name, value)| (&**name, &**value)).filter(|(name, _)| !is_new(name));
        let came = Came {
            status: old.stored.status,
            fields: kept.chain(new.iter().copied()).collect(),
            length: Some(old.body().len() as u64),
        };
        let asked = Asked {
            is_callers: self.is_callers(cx),
            values: &|names, out| values_of(cx.request(), names, out),
            now_ms: cx.view().now() / 1000,
            unix_ms: cx.unix_ms(),
        };
        let (mut stored, place) = match self.keeping.keep(&came, &asked) {
            Some(pending) => (pending.stored, Some((pending.vary, pending.values))),
            None => {
                let mut stored = Stored::new(came.status, asked.now_ms, 0, 0);
                stored.fields = came.fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
                (stored, None)
            }
        };
        self.stand_in(cx, &stored, old.body(), b"REVALIDATED");
        match place {
            Some((vary, values)) => {
                stored.body = old.body().into();
                self.keeping.store(key, &vary, &values, stored);
            }
            // It may not be kept any longer.
            None => self.keeping.forget(key),
        }
    }
}

fn is_taken(name: &[u8]) -> bool {
    super::is_kept(name) && !NOT_TAKEN.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}
