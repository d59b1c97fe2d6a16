//! Changes as they are made, as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{sleep, timeout};
use weir_store::{Event, Item, Key};

use super::{masked, revision};
use crate::Gateway;
use crate::answer::{Answer, Body, Outcome};
use crate::api::Api;
use crate::request::Request;
use crate::streams::STREAMS;

/// Events that wait for a reader, and how long the oldest may wait before the reader is cut off.
const WAITING: usize = 1;
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the values in an event. A larger change is reported as `reset`: a follower reads everything anew. With the
/// streams that there may be, and three events of each in memory, that is 48 MiB.
const EVENT_SIZE: usize = 256 * 1024;

/// Interval of comments in a stream without events, so that neither side holds on to a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

impl Api {
    /// A stream of changes.
    pub(crate) async fn events(&self, request: &Request) -> Outcome {
        let place = self.streams.open().ok_or_else(|| {
            let message = format!("{STREAMS} streams of events are open already: close one, or try again later");
            Answer::error(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let last = request.fields.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let after = match last.or(revision(request, "after")?) {
            Some(after) => after,
            None => self.configuration.store().revision().await.map_err(|error| Answer::store(&error))?,
        };
        if request.method == hyper::Method::HEAD {
            return Ok(stream_of(Body::Whole(None)));
        }
        let events = self.configuration.store().watch(after);
        let (sender, pieces) = mpsc::channel(WAITING);
        let telling = tell(Arc::clone(&self.gateway), events, after, sender, place);
        let ended = self.streams.ended();
        tokio::spawn(async move {
            tokio::select! {
                () = telling => {}
                () = ended => {}
            }
        });
        Ok(stream_of(Body::Stream(pieces, None)))
    }
}

/// The text of an event, and its revision.
fn event_text(gateway: &dyn Gateway, event: &Event) -> (u64, Bytes) {
    match event {
        Event::Committed { revision, changes } if size_of(changes) > EVENT_SIZE => reset(*revision),
        Event::Committed { revision, changes } => {
            let told = |(key, item): &(Key, Option<Item>)| {
                let value = item.as_ref().map(|item| masked(gateway, key, &item.value));
                json!({ "key": key.to_string(), "value": value })
            };
            let changes: Vec<_> = changes.iter().map(told).collect();
            let data = json!({ "revision": revision, "changes": changes });
            (*revision, format!("id: {revision}\nevent: change\ndata: {data}\n\n").into())
        }
        // The changes in between are not reported: a follower reads everything anew.
        Event::Reset(listing) => reset(listing.revision),
    }
}

fn reset(revision: u64) -> (u64, Bytes) {
    let data = json!({ "revision": revision });
    (revision, format!("id: {revision}\nevent: reset\ndata: {data}\n\n").into())
}

fn size_of(changes: &[(Key, Option<Item>)]) -> usize {
    changes.iter().map(|(key, item)| key.id().len() + 64 + item.as_ref().map_or(0, |item| item.value.len())).sum()
}

fn stream_of(body: Body) -> Answer {
    let mut answer = Answer::empty(StatusCode::OK);
    answer.body = body;
    answer
        .with(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
        .with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

/// Passes events on until the reader is gone or too slow, or the store ends.
async fn tell(
    gateway: Arc<dyn Gateway>,
    mut events: mpsc::Receiver<Event>,
    mut told: u64,
    to: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    // The head goes out at once, so that the reader knows that it misses nothing from here on.
    let mut next = Some(Bytes::from_static(b": changes follow\n\n"));
    loop {
        if let Some(piece) = next.take()
            && !matches!(timeout(PATIENCE, to.send(piece)).await, Ok(Ok(())))
        {
            tracing::debug!("a reader of events was too slow, or is gone");
            return;
        }
        tokio::select! {
            event = events.recv() => match event {
                None => return,
                Some(event) => {
                    let (revision, text) = event_text(&*gateway, &event);
                    // A watch may bring what the reader has already.
                    if revision > told || matches!(event, Event::Reset(_)) {
                        told = revision;
                        next = Some(text);
                    }
                }
            },
            () = sleep(HEARTBEAT) => next = Some(Bytes::from_static(b":\n\n")),
            () = to.closed() => return,
        }
    }
}
