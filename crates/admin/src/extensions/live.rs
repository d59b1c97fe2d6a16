//! Figures and requests as they come, as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::time::timeout;
use weir_telemetry::metrics::{Label, Labels, Seen};

use crate::answer::{Answer, Body, Outcome};
use crate::api::Api;
use crate::pulse::Pulse;
use crate::request::{Query, Request};
use crate::streams::STREAMS;

/// Time that a reader may take for an event before it is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests in an event; with four events a second that is 200, more than anybody reads.
const ROWS: usize = 50;

impl Api {
    /// The figures of the last hour, and then those of each second.
    pub(crate) fn figures(&self, request: &Request) -> Outcome {
        let (pulse, place) = self.pulse_and_place()?;
        if request.method == Method::HEAD {
            return Ok(stream_of(Body::Whole(None)));
        }
        let (watching, mut frames) = pulse.watch();
        let history = event("history", &pulse.history());
        Ok(self.stream(history, place, move |to| async move {
            let _watching = watching;
            loop {
                let text = tokio::select! {
                    () = to.closed() => return,
                    frame = frames.recv() => match frame {
                        Ok((frame, busiest)) => {
                            let mut told = frame.told();
                            told["top"] = (*busiest).clone();
                            event("frame", &told)
                        }
                        Err(broadcast::error::RecvError::Lagged(_)) => continue,
                        Err(broadcast::error::RecvError::Closed) => return,
                    },
                };
                if !send(&to, text).await {
                    return;
                }
            }
        }))
    }

    /// Samples of requests as they end.
    pub(crate) fn requests(&self, request: &Request) -> Outcome {
        let filter = Filter::read(&request.query)?;
        let (pulse, place) = self.pulse_and_place()?;
        if request.method == Method::HEAD {
            return Ok(stream_of(Body::Whole(None)));
        }
        let (watching, mut samples) = pulse.watch_requests();
        let begin = Bytes::from_static(b": requests follow\n\n");
        Ok(self.stream(begin, place, move |to| async move {
            let _watching = watching;
            let metrics = Arc::clone(pulse.metrics());
            loop {
                let text = tokio::select! {
                    () = to.closed() => return,
                    // A line now and then, so that neither side holds on to a dead connection.
                    () = tokio::time::sleep(PATIENCE) => Bytes::from_static(b":\n\n"),
                    batch = samples.recv() => match batch {
                        Ok(batch) => match filter.event(&batch, metrics.labels()) {
                            Some(event) => event,
                            None => continue,
                        },
                        Err(broadcast::error::RecvError::Lagged(_)) => continue,
                        Err(broadcast::error::RecvError::Closed) => return,
                    },
                };
                if !send(&to, text).await {
                    return;
                }
            }
        }))
    }

    fn pulse_and_place(&self) -> Result<(Arc<Pulse>, OwnedSemaphorePermit), Answer> {
        let pulse = self
            .gateway
            .pulse()
            .ok_or_else(|| Answer::error(StatusCode::NOT_FOUND, "figures are not taken: admin.dashboard is false"))?;
        let place = self.streams.open().ok_or_else(|| {
            let message = format!("{STREAMS} streams of events are open already: close one, or try again later");
            Answer::error(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        Ok((pulse, place))
    }

    /// A stream that begins with `first` and is then fed by `tell`, until the reader is gone or the gateway ends.
    fn stream<F>(
        &self,
        first: Bytes,
        place: OwnedSemaphorePermit,
        tell: impl FnOnce(mpsc::Sender<Bytes>) -> F + Send + 'static,
    ) -> Answer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, pieces) = mpsc::channel(1);
        let ended = self.streams.ended();
        tokio::spawn(async move {
            let _place = place;
            let telling = async {
                if send(&sender, first).await {
                    tell(sender).await;
                }
            };
            tokio::select! {
                () = telling => {}
                () = ended => {}
            }
        });
        stream_of(Body::Stream(pieces, None))
    }
}

/// Sends an event; false when the reader is gone or too slow.
async fn send(to: &mpsc::Sender<Bytes>, text: Bytes) -> bool {
    matches!(timeout(PATIENCE, to.send(text)).await, Ok(Ok(())))
}

fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn stream_of(body: Body) -> Answer {
    let mut answer = Answer::empty(StatusCode::OK);
    answer.body = body;
    answer
        .with(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
        .with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

/// Requests that a reader wants.
#[derive(Debug, Default)]
struct Filter {
    /// A status, or the first digit of a class.
    status: Option<u16>,
    method: Option<String>,
    route: Option<String>,
    consumer: Option<String>,
    host: Option<String>,
    path: Option<String>,
    slower_us: u64,
}

impl Filter {
    fn read(query: &Query) -> Result<Self, Answer> {
        let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let status = match query.get("status").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => {
                let class = text.strip_suffix("xx").and_then(|class| class.parse().ok());
                let wanted = class.filter(|class| (1..=5).contains(class));
                let wanted = wanted.or_else(|| text.parse().ok().filter(|status| (100..600).contains(status)));
                Some(
                    wanted
                        .ok_or_else(|| Answer::bad("status: expected a status such as 404, or a class such as 5xx"))?,
                )
            }
        };
        let slower = match query.get("slower_ms").filter(|text| !text.is_empty()) {
            None => 0,
            Some(text) => text.parse::<u64>().map_err(|_| Answer::bad("slower_ms: expected a whole number"))?,
        };
        Ok(Self {
            status,
            method: text("method"),
            route: text("route"),
            consumer: text("consumer"),
            host: text("host"),
            path: text("path"),
            slower_us: slower.saturating_mul(1000),
        })
    }

    fn fits(&self, seen: &Seen, labels: &Labels) -> bool {
        let is =
            |wanted: &Option<String>, found: &[u8]| wanted.as_ref().is_none_or(|wanted| wanted.as_bytes() == found);
        let named = |wanted: &Option<String>, found: Label| is(wanted, labels.text(found).as_bytes());
        let has = |wanted: &Option<String>, found: &[u8]| {
            wanted.as_ref().is_none_or(|wanted| String::from_utf8_lossy(found).contains(wanted.as_str()))
        };
        self.status.is_none_or(|status| seen.status == status || seen.status / 100 == status)
            && is(&self.method, seen.method.bytes())
            && named(&self.route, seen.route)
            && named(&self.consumer, seen.consumer)
            && has(&self.host, seen.host.bytes())
            && has(&self.path, seen.path.bytes())
            && u64::from(seen.latency_us) >= self.slower_us
    }

    /// The event about those of a batch that are wanted; `None` if none is.
    fn event(&self, batch: &[Seen], labels: &Labels) -> Option<Bytes> {
        let mut wanted = batch.iter().filter(|seen| self.fits(seen, labels));
        let rows: Vec<Value> = wanted.by_ref().take(ROWS).map(|seen| told(seen, labels)).collect();
        let more = wanted.count();
        (!rows.is_empty()).then(|| event("requests", &json!({ "requests": rows, "more": more })))
    }
}

/// A sample as it is shown.
pub(super) fn told(seen: &Seen, labels: &Labels) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "time": seen.unix_ms,
        "method": text(seen.method.bytes()),
        "host": text(seen.host.bytes()),
        "path": text(seen.path.bytes()),
        "status": seen.status,
        "ms": f64::from(seen.latency_us) / 1000.0,
        "upstream_ms": seen.upstream_us.map(|us| f64::from(us) / 1000.0),
        "received": seen.received,
        "sent": seen.sent,
        "route": labels.text(seen.route),
        "service": labels.text(seen.service),
        "consumer": labels.text(seen.consumer),
        "node": labels.text(seen.node),
        "client": text(seen.client.bytes()),
    })
}

#[cfg(test)]
mod tests {
    use weir_telemetry::metrics::{Metrics, MetricsOptions, Seen, ShortText};

    use super::Filter;
    use crate::request::Query;

    #[test]
    fn a_reader_gets_the_requests_that_are_asked_for() {
        let metrics = Metrics::new(MetricsOptions::default());
        let labels = metrics.labels();
        let seen = Seen {
            status: 502,
            latency_us: 30_000,
            route: labels.intern("r1"),
            consumer: labels.intern("jack"),
            method: ShortText::new(b"GET"),
            host: ShortText::new(b"a.test"),
            path: ShortText::new(b"/orders/7"),
            ..Seen::default()
        };
        for (query, fits) in [
            ("", true),
            ("status=502", true),
            ("status=5xx&method=GET&route=r1&consumer=jack&host=a.te&path=orders&slower_ms=30", true),
            ("status=4xx", false),
            ("status=500", false),
            ("method=PUT", false),
            ("route=r", false),
            ("consumer=jill", false),
            ("host=b", false),
            ("path=items", false),
            ("slower_ms=31", false),
        ] {
            let filter = Filter::read(&Query::parse(Some(query))).expect(query);
            assert_eq!(filter.fits(&seen, labels), fits, "{query}");
            assert_eq!(filter.event(&[seen], labels).is_some(), fits, "{query}");
        }
        for wrong in ["status=6xx", "status=x", "status=99", "slower_ms=a"] {
            assert!(Filter::read(&Query::parse(Some(wrong))).is_err(), "{wrong}");
        }
        let event = Filter::default().event(&[seen; 60], labels).expect("an event");
        let text = std::str::from_utf8(&event).expect("text");
        assert!(text.starts_with("event: requests\ndata: ") && text.contains("\"more\":10"), "{text}");
    }
}
