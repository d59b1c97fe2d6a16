//! `http-dubbo`: requests become calls of a service of Apache Dubbo.

mod message;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_plugin::{
    CalloutError, CompileCx, Compiled, Define, Duplex, Flow, Io, LocalFuture, Phases, Plugin, RequestCx,
};
use weir_runtime::timeout;
use weir_wire::name::FieldName;

use message::{Call, HEAD, Head, Outcome};

/// The definition.
#[derive(Debug)]
pub(crate) struct HttpDubbo;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The service: the full name of its interface, such as `org.shop.Orders`.
    #[schemars(length(min = 1), regex(pattern = "^[^\"\\\\\n\r]+$"))]
    service_name: String,
    /// The version of the service.
    #[serde(default = "version")]
    #[schemars(regex(pattern = r"^\d+\.\d+\.\d+"))]
    service_version: String,
    /// The method.
    #[schemars(length(min = 1), regex(pattern = "^[^\"\\\\\n\r]+$"))]
    method: String,
    /// Types of the parameters, as Java's class files have them: `Ljava/lang/Long;Ljava/lang/Integer;`.
    #[serde(default)]
    #[schemars(regex(pattern = "^[^\"\\\\\n\r]*$"))]
    params_type_desc: String,
    /// Name of a field of requests whose value `true` says that their bodies are serialized, in the place of `serialized`.
    serialization_header_key: Option<String>,
    /// True where bodies are serialized already: a JSON value for each parameter, one a line. Else a body is a JSON list (or an
    /// object, whose values count in their order) with a value for each parameter.
    #[serde(default)]
    serialized: bool,
    /// Milliseconds for connecting to a node.
    #[serde(default = "six_seconds")]
    #[schemars(range(min = 1, max = 3600000))]
    connect_timeout: f64,
    /// Milliseconds for the answer.
    #[serde(default = "six_seconds")]
    #[schemars(range(min = 1, max = 3600000))]
    read_timeout: f64,
    /// Milliseconds for sending the call.
    #[serde(default = "six_seconds")]
    #[schemars(range(min = 1, max = 3600000))]
    send_timeout: f64,
    /// Bytes of the longest request body; longer ones are refused with 413, as are those beyond `limits.buffered_body`.
    #[serde(default = "most")]
    #[schemars(range(min = 1))]
    max_req_body_size: usize,
    /// Bytes of the longest answer; a longer one is answered with 502. An extension.
    #[serde(default = "most_of_answer")]
    #[schemars(range(min = 1, max = 1073741824))]
    max_resp_body_size: usize,
}

fn version() -> String {
    "0.0.0".to_owned()
}

fn six_seconds() -> f64 {
    6000.0
}

fn most() -> usize {
    64 << 20
}

fn most_of_answer() -> usize {
    8 << 20
}

impl Define for HttpDubbo {
    const NAME: &'static str = "http-dubbo";
    const PRIORITY: i32 = 504;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Makes a call of Apache Dubbo (its protocol of version 2, serialized by fastjson) of each request, to a node of the upstream of the \
route, and answers with 200 and what the method returns, in JSON. The upstream decides on the node, with its balancer, health \
checks and retries.

```sh
curl http://127.0.0.1:9080/orders --data '[1, \"shirt\"]'
```

A method that throws, and a service that is not there, are answered with 500; a body that is no JSON with 400; 502 tells that \
no node takes the call or that its answer is none of Dubbo, and 504 that it does not answer in time. A call has a connection of \
its own.";
    const EXAMPLE: &'static str = "\
service_name: org.shop.Orders
service_version: 1.0.0
method: find
params_type_desc: Ljava/lang/Long;Ljava/lang/String;
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let by_field = conf.serialization_header_key.as_ref().filter(|name| !name.is_empty()).map(|name| {
            let invalid = || weir_plugin::Invalid::new("serialization_header_key", "expected the name of a field");
            FieldName::new(name).ok_or_else(invalid)
        });
        let by_field = cx.ok(by_field.transpose())?;
        let time = |ms: f64| Duration::from_micros((ms * 1000.0) as u64);
        Some(Compiled::ready(Calling {
            call: Call {
                service: conf.service_name,
                version: conf.service_version,
                method: conf.method,
                types: conf.params_type_desc,
            },
            by_field,
            serialized: conf.serialized,
            connect: time(conf.connect_timeout),
            send: time(conf.send_timeout),
            read: time(conf.read_timeout),
            longest: conf.max_req_body_size,
            longest_answer: conf.max_resp_body_size,
            next: AtomicU64::new(1),
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Calling {
    call: Call,
    /// The field that tells whether a body is serialized.
    by_field: Option<FieldName>,
    serialized: bool,
    connect: Duration,
    send: Duration,
    read: Duration,
    longest: usize,
    longest_answer: usize,
    /// Number of the next call.
    next: AtomicU64,
}

impl Plugin for Calling {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.body() {
            None => match cx.limit_body(self.longest as u64) {
                Flow::Continue => Flow::AwaitBody,
                refused => refused,
            },
            Some(body) if body.len() > self.longest => cx.reply(413).done(),
            Some(_) => Flow::Suspend,
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let is_serialized = match &self.by_field {
                Some(name) => cx.request().field(name) == Some(b"true"),
                None => self.serialized,
            };
            let number = self.next.fetch_add(1, Relaxed);
            let question = match self.call.write(number, cx.body().unwrap_or_default(), is_serialized) {
                Ok(question) => question,
                Err(reason) => {
                    let body = format!("{{\"message\":\"{reason}\"}}\n");
                    return cx.reply(400).field("Content-Type", b"application/json").body(body.as_bytes()).done();
                }
            };
            let Some(upstream) = io.upstream() else { return cx.fail(503, "http-dubbo: the route has no upstream") };
            let mut node = match io.dial(upstream, self.connect).await {
                Ok(node) => node,
                Err(CalloutError::Busy) => return cx.fail(503, "http-dubbo: too many callouts under way"),
                Err(CalloutError::TimedOut) => return cx.fail(504, "http-dubbo: connect timed out"),
                Err(error) => return cx.fail(502, error.reason()),
            };
            match self.exchange(&mut *node, &question, number).await {
                Ok(Outcome::Value(value)) => {
                    cx.reply(200).field("Content-Type", b"application/json").body(&value).done()
                }
                Ok(Outcome::Nothing) => cx.reply(200).done(),
                Ok(Outcome::Failed(reason)) => {
                    let reason = String::from_utf8_lossy(&reason);
                    tracing::warn!(%reason, method = self.call.method, "http-dubbo: the call has failed");
                    cx.reply(500).done()
                }
                Err(Fault::TimedOut) => cx.fail(504, "http-dubbo: the node does not answer in time"),
                Err(Fault::Broken(reason)) => cx.fail(502, reason),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // Retries may each take their time to connect.
        Some(self.connect * 10 + self.send + self.read)
    }
}

/// Reasons for having no outcome.
enum Fault {
    TimedOut,
    Broken(&'static str),
}

impl Calling {
    async fn exchange(&self, node: &mut dyn Duplex, question: &[u8], number: u64) -> Result<Outcome, Fault> {
        let sending = async {
            node.write_all(question).await?;
            node.flush().await
        };
        let gone = |_: io::Error| Fault::Broken("http-dubbo: the node has closed the connection");
        timeout(self.send, sending).await.ok_or(Fault::TimedOut)?.map_err(gone)?;
        let receiving = async {
            loop {
                let mut head = [0; HEAD];
                node.read_exact(&mut head).await.map_err(gone)?;
                let head = Head::read(&head).ok_or(Fault::Broken("http-dubbo: the answer is none of Dubbo"))?;
                if head.length > self.longest_answer {
                    return Err(Fault::Broken("http-dubbo: the answer is longer than max_resp_body_size"));
                }
                let mut body = Vec::new();
                let read = (&mut *node).take(head.length as u64).read_to_end(&mut body).await;
                if read.map_err(gone)? < head.length {
                    return Err(Fault::Broken("http-dubbo: the node has closed the connection"));
                }
                // Heartbeats of the node are passed over.
                if head.is_answer_to(number) {
                    return head.outcome(&body).ok_or(Fault::Broken("http-dubbo: the answer is none of fastjson"));
                }
            }
        };
        timeout(self.read, receiving).await.ok_or(Fault::TimedOut)?
    }
}
