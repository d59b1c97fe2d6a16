//! Answers that are too old, of which the upstream is asked whether they have changed (RFC 9111 section 4.3).

use weir_plugin::{HookCx, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use super::Caching;
use super::conditions::value;
use super::keeping::{Asked, Came, Keeping};
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
            && self.conditions(stored).next().is_some()
    }

    /// Makes the request one that asks whether a stored answer has changed.
    pub(super) fn ask_about(&self, cx: &mut RequestCx<'_>, stored: &Stored) {
        for (name, value) in self.conditions(stored) {
            cx.request_mut().set_field(name, value);
        }
    }

    /// The fields by which the upstream is asked whether a stored answer has changed; none where it cannot be asked.
    pub(super) fn conditions<'s>(&'s self, stored: &'s Stored) -> impl Iterator<Item = (&'s FieldName, &'s [u8])> {
        let names = [(&self.names.if_none_match, "etag"), (&self.names.if_modified_since, "last-modified")];
        names.into_iter().filter_map(|(name, validator)| Some((name, value(stored, validator)?)))
    }

    /// Answers with what is stored, of which the upstream has said that it has not changed, and keeps it with the fields of the
    /// upstream's answer.
    pub(super) fn take_unchanged(&self, cx: &mut ResponseCx<'_>, key: &[u8], old: &Whole) {
        let response = cx.response();
        let asked = Asked {
            is_callers: self.is_callers(cx),
            values: &|names, out| values_of(cx.request(), names, out),
            now_ms: cx.view().now() / 1000,
            unix_ms: cx.unix_ms(),
        };
        let renewed = self.keeping.renewed(old, response.head.fields.sent(response.buffer.bytes()), &asked);
        self.stand_in(cx, &renewed.stored, old.body(), b"REVALIDATED");
        self.keeping.keep_renewed(key, old, renewed);
    }
}

/// A stored answer with the fields of one that says that it has not changed, without its body.
pub(super) struct Renewed {
    stored: Stored,
    /// Names of the fields that choose a variant, and their values; `None`: it may not be kept any longer.
    place: Option<(Vec<Box<str>>, Vec<u8>)>,
}

impl Keeping {
    /// A stored answer with the fields of one that says that it has not changed.
    pub(super) fn renewed<'f>(
        &self,
        old: &Whole,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        asked: &Asked<'_>,
    ) -> Renewed {
        let new: Vec<_> = fields.filter(|(name, _)| is_taken(name)).collect();
        let is_new = |name: &[u8]| new.iter().any(|(taken, _)| taken.eq_ignore_ascii_case(name));
        let kept = old.stored.fields.iter().map(|(name, value)| (&**name, &**value)).filter(|(name, _)| !is_new(name));
        let came = Came {
            status: old.stored.status,
            fields: kept.chain(new.iter().copied()).collect(),
            length: Some(old.body().len() as u64),
        };
        match self.keep(&came, asked) {
            Some(pending) => Renewed { stored: pending.stored, place: Some((pending.vary, pending.values)) },
            None => {
                let mut stored = Stored::new(came.status, asked.now_ms, 0, 0);
                stored.fields = came.fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
                Renewed { stored, place: None }
            }
        }
    }

    /// Keeps such an answer, or forgets it where it may not be kept any longer.
    pub(super) fn keep_renewed(&self, key: &[u8], old: &Whole, renewed: Renewed) {
        let Renewed { mut stored, place } = renewed;
        match place {
            Some((vary, values)) => {
                stored.body = old.body().into();
                self.store(key, &vary, &values, stored);
            }
            None => self.forget(key),
        }
    }
}

fn is_taken(name: &[u8]) -> bool {
    super::is_kept(name) && !NOT_TAKEN.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}
