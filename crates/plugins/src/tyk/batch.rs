//! `batch`: several requests of an API in one (`enable_batch_request_support`), each of which goes the whole way through the
//! gateway, one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Held, Io, LocalFuture, NO_ROOM, Phases, Plugin, Request, RequestCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::body;
use crate::requests::batch_requests::connection::{Answer, Connection, Fault};

/// The definition.
#[derive(Debug)]
pub(crate) struct Batch;

/// On the route of the batches of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// The listen path of the API.
    listen_path: String,
}

impl Define for Batch {
    const NAME: &'static str = "batch";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Several requests of an API in one.";
    const EXAMPLE: &'static str = "listen_path: /a/\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Batches { base: conf.listen_path.trim_end_matches('/').into() }))
    }
}

/// An instance.
#[derive(Debug)]
struct Batches {
    /// The listen path without a slash at its end.
    base: Box<str>,
}

/// A batch.
#[derive(Debug, Deserialize)]
struct Requests {
    requests: Vec<Item>,
}

/// One of its requests.
#[derive(Debug, Deserialize)]
pub(super) struct Item {
    #[serde(default)]
    pub(super) method: String,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) body: String,
    pub(super) relative_url: String,
}

/// Most requests of a batch.
pub(super) const MOST_REQUESTS: usize = 1000;
/// Bytes that the bodies of all answers to a batch may have.
pub(super) const MOST_ANSWERS: usize = 16 << 20;
/// Longest time for one answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Tyk's words for a batch that cannot be read.
const MALFORMED: &str = "Batch request malformed";

impl Plugin for Batches {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.client().inner {
            return body::error(cx, 400, MALFORMED, &[]);
        }
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // Each of its requests has a limit.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let batch = serde_json::from_slice::<Requests>(cx.body().unwrap_or_default()).ok();
            let batch = batch.filter(|batch| batch.requests.len() <= MOST_REQUESTS);
            let messages = batch.as_ref().and_then(|batch| {
                batch.requests.iter().map(|item| item.message(&self.base, cx.request())).collect::<Option<Vec<_>>>()
            });
            let (Some(batch), Some(messages)) = (batch, messages) else {
                return body::error(cx, 400, MALFORMED, &[]);
            };
            let (mut answers, mut left, mut held) = (Vec::new(), MOST_ANSWERS, Held::default());
            let mut connection = None;
            for (item, message) in batch.requests.iter().zip(&messages) {
                let open = connection.take().or_else(|| io.connect(cx.client()).map(Connection::new));
                let Some(open) = open else { return cx.fail(503, "no connection to the gateway itself") };
                let method = Method::parse(item.method().as_bytes());
                let entry = match weir_runtime::timeout(LIMIT, open.ask(message, method, left)).await {
                    None => item.failed(504, "Upstream service reached hard timeout."),
                    Some(Err(Fault::NoRoom)) => return Flow::Abort(NO_ROOM),
                    Some(Err(Fault::Broken(reason))) => item.failed(500, reason),
                    Some(Ok((answer, kept))) => {
                        connection = kept;
                        item.answered(answer, &mut left)
                    }
                };
                answers.push(entry);
                if !held.grow_to(2 * (MOST_ANSWERS - left)) {
                    return Flow::Abort(NO_ROOM);
                }
            }
            let body = Value::Array(answers).to_string().into_bytes();
            cx.reply(200).field("Content-Type", b"application/json").whole_body(body).done()
        })
    }
}

impl Item {
    fn method(&self) -> &str {
        if self.method.is_empty() { "GET" } else { &self.method }
    }

    /// The whole request, as a client would send it; `None` for one that cannot be sent.
    fn message(&self, base: &str, outer: &Request) -> Option<Vec<u8>> {
        let relative = self.relative_url.trim_start_matches('/');
        let is_sendable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_known = !matches!(Method::parse(self.method().as_bytes()), Method::Other | Method::Connect);
        if !is_sendable(relative) || !is_known {
            return None;
        }
        let mut out = format!("{} {base}/{relative} HTTP/1.1\r\n", self.method()).into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        };
        line("Host", outer.field_str("host").unwrap_or(b"localhost"));
        for (name, value) in &self.headers {
            // Fields that frame a message or belong to a connection are the gateway's own.
            const OWN: [&str; 6] = ["host", "connection", "content-length", "transfer-encoding", "upgrade", "te"];
            if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                continue;
            }
            FieldName::new(name)?;
            line(
                name,
                Some(value.as_bytes()).filter(|value| value.iter().all(|byte| weir_wire::is_field_byte(*byte)))?,
            );
        }
        if !self.body.is_empty() {
            line("Content-Length", self.body.len().to_string().as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body.as_bytes());
        Some(out)
    }

    fn failed(&self, code: u16, reason: &str) -> Value {
        json!({ "relative_url": self.relative_url, "code": code, "headers": {}, "body": reason })
    }

    fn answered(&self, answer: Answer, left: &mut usize) -> Value {
        let mut headers = Map::new();
        for (name, value) in answer.fields {
            let list = headers.entry(canonical(&name)).or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(value.into());
            }
        }
        let body = match answer.body {
            None => String::new(),
            Some(Err(reason)) => return self.failed(500, reason),
            Some(Ok(body)) => String::from_utf8_lossy(&body).into_owned(),
        };
        *left = left.saturating_sub(body.len());
        json!({ "relative_url": self.relative_url, "code": answer.status, "headers": headers, "body": body })
    }
}

/// The name of a field as Go writes it: each word with a capital letter.
pub(super) fn canonical(name: &str) -> String {
    let mut begins = true;
    let letter = |letter: char| {
        let letter = if begins { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        begins = letter == '-';
        letter
    };
    name.chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn names_are_written_as_in_go() {
        for (name, expected) in
            [("content-type", "Content-Type"), ("X-RateLimit-Limit", "X-Ratelimit-Limit"), ("a", "A")]
        {
            assert_eq!(canonical(name), expected);
        }
    }
}
