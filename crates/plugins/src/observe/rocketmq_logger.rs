//! `rocketmq-logger`: entries about exchanges, as messages of a topic of RocketMQ.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_telemetry::reports::{Destination, MessageTopic};

use super::batch::BatchConf;
use super::entry_conf::EntryConf;
use super::kafka_logger::{Message, MetaFormat};
use super::logging::{self, LoggerConf, LoggerMetadata};

/// The definition.
#[derive(Debug)]
pub(crate) struct RocketmqLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Name servers, each with its port: `127.0.0.1:9876`.
    #[schemars(length(min = 1))]
    nameserver_list: Vec<String>,
    /// The topic. One that does not exist is made where brokers make topics (`autoCreateTopicEnable`).
    #[schemars(length(min = 1, max = 127))]
    topic: String,
    /// Key of messages, by which they are looked for.
    #[schemars(length(min = 1, max = 1024))]
    key: Option<String>,
    /// Tag of messages, by which consumers choose among them.
    #[schemars(length(min = 1, max = 1024))]
    tag: Option<String>,
    /// Seconds for connecting, and for each answer.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Speaks TLS to name servers and brokers. Their certificates are not verified, as in APISIX.
    #[serde(default)]
    use_tls: bool,
    /// Access key of an account, where brokers ask for one (ACL).
    #[serde(default)]
    access_key: String,
    /// Its secret key.
    #[serde(default)]
    secret_key: String,
    /// The form of an entry. `default`: JSON. `origin`: the request as it came, a text with its body where `include_req_body`
    /// asks for it; then formats have no effect.
    #[serde(default)]
    meta_format: MetaFormat,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

fn three() -> u64 {
    3
}

impl Define for RocketmqLogger {
    const NAME: &'static str = "rocketmq-logger";
    const PRIORITY: i32 = 402;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to a topic of Apache RocketMQ (4.x and 5.x, by name servers). A batch is one message: \
a list of its entries, or the entry alone where `batch_max_size` is 1. A message has to fit into what the brokers take \
(`maxMessageSize`, 4 MiB by default): else the batch is dropped, so large entries want a lower `batch_max_size`.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it. One whose answer was lost on the way is in the topic \
twice then.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
nameserver_list: ['127.0.0.1:9876']
topic: requests
tag: shop
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["secret_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.use_tls {
            cx.warn(
                "use_tls",
                "anybody on the way can answer in the place of the servers: certificates are not verified",
            );
        }
        let server = |(at, text): (usize, &String)| {
            let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let parts = parts.filter(|(host, port): &(&str, u16)| !host.is_empty() && *port > 0);
            let invalid =
                || Invalid::new(format!("nameserver_list[{at}]"), "expected a host and a port: 127.0.0.1:9876");
            parts.map(|(host, port)| (host.to_owned(), port)).ok_or_else(invalid)
        };
        let nameservers = cx.ok(conf.nameserver_list.iter().enumerate().map(server).collect::<Result<_, _>>())?;
        // Control characters separate the properties of messages.
        let is_plain = |text: &str| !text.bytes().any(|byte| byte.is_ascii_control());
        let texts = [("topic", Some(&conf.topic)), ("key", conf.key.as_ref()), ("tag", conf.tag.as_ref())];
        for (field, text) in texts {
            if text.is_some_and(|text| !is_plain(text)) {
                cx.say([Invalid::new(field, "expected a text without control characters")]);
                return None;
            }
        }
        let topic = MessageTopic {
            nameservers,
            name: conf.topic,
            key: conf.key,
            tag: conf.tag,
            account: (!conf.access_key.is_empty()).then_some((conf.access_key, conf.secret_key)),
            tls: conf.use_tls,
            timeout: Duration::from_secs(conf.timeout),
        };
        let logger = LoggerConf {
            entry: conf.entry,
            include_req_body_expr: conf.include_req_body_expr,
            include_resp_body_expr: conf.include_resp_body_expr,
            batch: conf.batch,
        };
        let form = conf.meta_format;
        logging::compile(Self::NAME, logger, cx, move |batch, _| {
            let message = Message { form, is_alone: batch.is_single() };
            Ok((Destination::RocketMq(topic), batch.array_or_single(), message))
        })
    }
}
