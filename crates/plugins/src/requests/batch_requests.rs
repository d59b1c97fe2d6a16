//! `batch-requests`: several requests in one, each of which goes the whole way through the gateway.

pub(crate) mod connection;
mod pipeline;

use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_plugin::{Api, ApiCx, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_plugin::{Held, NO_ROOM};
use weir_wire::head::Content;
use weir_wire::method::Method;

use connection::{Answer, Connection, Fault};
use pipeline::{Batch, Outer};

/// The definition.
#[derive(Debug)]
pub(crate) struct BatchRequests;

/// Settings: none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Most bytes of the body of a batch, up to `limits.buffered_body`. More is answered 413.
    #[schemars(range(min = 1))]
    max_body_size: u64,
    /// Most requests of a batch. More are answered 400.
    #[schemars(range(min = 1))]
    max_pipeline_items: u64,
}

impl Default for Metadata {
    fn default() -> Self {
        Self { max_body_size: 1 << 20, max_pipeline_items: 1000 }
    }
}

/// Bytes that the bodies of all answers to a batch may have.
const MOST_ANSWERS: usize = 16 << 20;

impl Define for BatchRequests {
    const NAME: &'static str = "batch-requests";
    const PRIORITY: i32 = 4010;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Offers an API, `POST /apisix/batch-requests`, that makes several requests of one. Clients reach it through a route with \
[public-api](public-api.md). The plugin does nothing on a route of its own.

```json
{
  \"query\": {\"tenant\": \"a\"}, \"headers\": {\"apikey\": \"…\"}, \"timeout\": 500,
  \"pipeline\": [{\"method\": \"POST\", \"path\": \"/orders\", \"query\": {\"fast\": true}, \"headers\": {\"Content-Type\": \"text/plain\"}, \"body\": \"…\"}, {\"path\": \"/status\"}]
}
```

- Each request of the `pipeline` is one of its own: it goes through routes, authentication, limits, metrics and the access \
log as if the client had sent it, with the client's address, one after the other.
- `method` is GET where it is not given, `version` 1.1 or 1.0. `query` and `headers` of the batch are added to those of \
each request, which take precedence, and so are the fields of the request that brings the batch, but for `Content-…`, \
`Accept-Encoding`, and what belongs to its connection or tells of its consumer.
- `timeout` is how many milliseconds each answer may take, 30000 where it is not given.
- The answer is a list in JSON, with `status`, `reason`, `headers` and `body` of each answer; a field that comes more than \
once is a list. A request without an answer in time has `{\"status\": 504, \"reason\": \"upstream timeout\"}`.
- All bodies of answers together have at most 16 MiB; in the place of one beyond that stands `read_body_err`. Bytes that are \
no UTF-8 become U+FFFD.
- A batch within a batch is refused, and so are requests to hosts that ask for client certificates.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(drop)
    }

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }
}

/// An instance on a route.
struct Nothing;

impl Plugin for Nothing {}

/// The API.
#[derive(Debug)]
pub(crate) struct BatchApi;

impl Api for BatchApi {
    fn plugin(&self) -> &'static str {
        BatchRequests::NAME
    }

    fn method(&self) -> Method {
        Method::Post
    }

    fn path(&self) -> &str {
        "/apisix/batch-requests"
    }

    fn open(&self, cx: &ApiCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        let limits = cx.metadata.map(|node| node.parse_into::<Metadata>()).transpose();
        let limits = limits.map_err(|error| Invalid::coded("", *error.code))?.unwrap_or_default();
        Ok(Arc::new(Batching { limits }))
    }
}

/// Whatever answers.
#[derive(Debug)]
struct Batching {
    limits: Metadata,
}

fn refuse(cx: &mut RequestCx<'_>, status: u16, message: &str) -> Flow {
    let body = json!({ "error_msg": message }).to_string() + "\n";
    cx.reply(status).field("Content-Type", b"application/json").body(body.as_bytes()).done()
}

impl Plugin for Batching {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.client().inner {
            return refuse(cx, 400, "a batch may not hold another batch");
        }
        let length = match (cx.body(), cx.request().head.content) {
            (Some(body), _) => body.len() as u64,
            (None, Content::Length(length)) => length,
            (None, _) => 0,
        };
        let most = self.limits.max_body_size;
        if length > most {
            let message = format!("request size {length} is greater than the maximum size {most} allowed");
            return refuse(cx, 413, &message);
        }
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The batch says how long it waits for each of its requests.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let batch = match Batch::parse(cx.body().unwrap_or_default(), self.limits.max_pipeline_items) {
                Ok(batch) => batch,
                Err(message) => return refuse(cx, 400, &message),
            };
            let outer = Outer::of(cx.request());
            let limit = Duration::from_millis(batch.timeout());
            let mut answers = Answers::new();
            let mut connection = None;
            for item in batch.items() {
                let message = match item.message(&batch, &outer) {
                    Ok(message) => message,
                    Err(message) => return refuse(cx, 400, &message),
                };
                let open = connection.take().or_else(|| io.connect(cx.client()).map(Connection::new));
                let Some(open) = open else { return cx.fail(503, "no connection to the gateway itself") };
                let left = MOST_ANSWERS.saturating_sub(answers.bodies);
                let answer = weir_runtime::timeout(limit, open.ask(&message, item.method(), left)).await;
                let entry = match answer {
                    None => json!({ "status": 504, "reason": "upstream timeout" }),
                    Some(Err(Fault::NoRoom)) => return Flow::Abort(NO_ROOM),
                    Some(Err(Fault::Broken(reason))) => json!({ "status": 502, "reason": reason }),
                    Some(Ok((answer, kept))) => {
                        connection = kept;
                        answers.entry(answer)
                    }
                };
                if !answers.push(&entry) {
                    return Flow::Abort(NO_ROOM);
                }
            }
            cx.reply(200).field("Content-Type", b"application/json").whole_body(answers.end()).done()
        })
    }
}

/// The list of answers, as text.
struct Answers {
    text: Vec<u8>,
    /// Bytes of the bodies in it.
    bodies: usize,
    held: Held,
}

impl Answers {
    fn new() -> Self {
        Self { text: vec![b'['], bodies: 0, held: Held::default() }
    }

    fn entry(&mut self, answer: Answer) -> Value {
        let mut headers = Map::new();
        for (name, value) in answer.fields {
            match headers.get_mut(&name) {
                None => drop(headers.insert(name, Value::String(value))),
                Some(Value::Array(list)) => list.push(Value::String(value)),
                Some(first) => *first = json!([first.take(), value]),
            }
        }
        let mut entry = json!({ "status": answer.status, "reason": answer.reason, "headers": headers });
        match answer.body {
            None => {}
            Some(Ok(body)) => {
                self.bodies += body.len();
                entry["body"] = Value::String(String::from_utf8_lossy(&body).into_owned());
            }
            Some(Err(reason)) => entry["read_body_err"] = reason.into(),
        }
        entry
    }

    /// Adds an entry; false: the budget for buffers has no room.
    fn push(&mut self, entry: &Value) -> bool {
        if self.text.len() > 1 {
            self.text.push(b',');
        }
        // Writing into a vector does not fail.
        let _ = serde_json::to_writer(&mut self.text, entry);
        self.held.grow_to(self.text.capacity())
    }

    fn end(mut self) -> Vec<u8> {
        self.text.extend_from_slice(b"]\n");
        self.text
    }
}
