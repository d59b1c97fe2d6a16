//! Answers whose bodies are on a disk, and have to be read before they are given.

use std::sync::Arc;

use weir_plugin::{Flow, RequestCx};

use super::Caching;
use super::conditions::Part;
use crate::cache::directives::Directives;
use crate::cache::disk::{Body, Unread};
use crate::cache::zone::Stored;

/// A stored answer with its body.
#[derive(Debug, Clone)]
pub(super) struct Whole {
    pub(super) stored: Arc<Stored>,
    /// The body of one on a disk.
    read: Option<Arc<Body>>,
}

impl Whole {
    /// A stored answer, where its body is in memory.
    pub(super) fn now(stored: &Arc<Stored>) -> Option<Self> {
        let read = stored.on_disk.as_ref().map(|on_disk| on_disk.body().ok_or(())).transpose().ok()?;
        Some(Self { stored: Arc::clone(stored), read })
    }

    /// A stored answer that is told of without its body.
    pub(super) fn without_body(stored: &Arc<Stored>) -> Self {
        Self { stored: Arc::clone(stored), read: None }
    }

    pub(super) fn body(&self) -> &[u8] {
        self.read.as_deref().map_or(&self.stored.body, |body| &**body)
    }
}

/// A body that is to be read.
#[derive(Debug)]
pub(super) struct Loading {
    key: Vec<u8>,
    stored: Arc<Stored>,
    then: Then,
}

/// Use of the answer.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The answer to the request, with this status of the cache.
    Answer(&'static [u8]),
    /// The stand-in for an answer of the upstream that fails or tells that nothing has changed, which is asked for with this
    /// status.
    StandIn(&'static [u8]),
}

impl Loading {
    pub(super) fn to_answer(key: Vec<u8>, stored: Arc<Stored>, status: &'static [u8]) -> Self {
        Self { key, stored, then: Then::Answer(status) }
    }

    pub(super) fn to_stand_in(key: Vec<u8>, stored: Arc<Stored>, status: &'static [u8]) -> Self {
        Self { key, stored, then: Then::StandIn(status) }
    }
}

impl Caching {
    /// Goes on from `flow` with the bodies that a request waits for.
    pub(in crate::traffic) async fn load_all(&self, cx: &mut RequestCx<'_>, mut flow: Flow) -> Flow {
        while let Some(loading) = self.loading.take(cx) {
            flow = self.load(cx, loading).await;
        }
        flow
    }

    /// A stored answer with its body, which is read where it is on a disk.
    pub(super) async fn whole(&self, stored: &Arc<Stored>) -> Result<Whole, Unread> {
        if let Some(whole) = Whole::now(stored) {
            return Ok(whole);
        }
        let disk = self.keeping.zone.disk.as_ref().ok_or(Unread::Gone)?;
        Ok(Whole { stored: Arc::clone(stored), read: Some(disk.read(stored).await?) })
    }

    async fn load(&self, cx: &mut RequestCx<'_>, loading: Loading) -> Flow {
        let Loading { key, stored, then } = loading;
        match (self.whole(&stored).await, then) {
            (Ok(whole), Then::Answer(status)) => {
                let part = Part::of(cx.request(), &stored);
                self.answer_part(cx, &whole, &part, status)
            }
            (Ok(whole), Then::StandIn(status)) => {
                if self.pending.get(cx).is_some_and(|pending| pending.asks) {
                    self.ask_about(cx, &stored);
                }
                if let Some(pending) = self.pending.get_mut(cx) {
                    pending.stale = Some(whole);
                }
                self.pass(cx, status)
            }
            (Err(_), Then::StandIn(status)) => self.pass(cx, status),
            // Nothing else is known of the key but that.
            (Err(Unread::Gone), Then::Answer(_)) => {
                self.purge(&key);
                self.find(cx, key, &Directives::default(), false)
            }
            (Err(Unread::NoRoom), Then::Answer(_)) => self.pass(cx, b"MISS"),
        }
    }
}
