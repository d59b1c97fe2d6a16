//! `kafka-logger`: entries about exchanges, as messages of a topic of Kafka.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases, View};
use weir_telemetry::reports::{Broker, Destination, Login, Mechanism, Topic};

use super::batch::BatchConf;
use super::entry::{Bodies, Entry};
use super::entry_conf::EntryConf;
use super::json::end_string;
use super::logging::{self, LoggerConf, LoggerMetadata, Render};
use crate::received;

/// The definition.
#[derive(Debug)]
pub(crate) struct KafkaLogger;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Brokers: ports by names or addresses; older form of `brokers`.
    #[schemars(extend("minProperties" = 1))]
    broker_list: Option<BTreeMap<String, u16>>,
    /// Brokers that know the others of their cluster.
    #[schemars(length(min = 1))]
    brokers: Option<Vec<BrokerConf>>,
    /// Speaks TLS to the brokers.
    tls: Option<TlsConf>,
    /// The topic.
    #[schemars(length(min = 1, max = 249))]
    kafka_topic: String,
    /// Key of messages, whose CRC-32 decides on the partition. Unset: a partition by chance, for as long as a connection is used.
    #[schemars(length(min = 1, max = 1024))]
    key: Option<String>,
    /// Replicas that have to have a message: 1, the leader alone, or -1, all that are in sync.
    #[serde(default = "leader")]
    #[schemars(extend("enum" = [1, -1]))]
    required_acks: i8,
    /// Seconds for connecting, and for each answer of a broker.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// The form of an entry. `default`: JSON. `origin`: the request as it came, a text with its body where `include_req_body`
    /// asks for it; then formats have no effect.
    #[serde(default)]
    meta_format: MetaFormat,
    /// `include_req_body` only for exchanges of which this holds in the end.
    include_req_body_expr: Option<Vars>,
    /// `include_resp_body` only for responses of which this holds when their head is known.
    include_resp_body_expr: Option<Vars>,
    /// No effect: a batch is sent by one thread, and no request waits for it.
    #[schemars(extend("enum" = ["async", "sync"]))]
    producer_type: Option<String>,
    /// No effect: the version of the request is the gateway's own.
    #[schemars(range(max = 2))]
    api_version: Option<u8>,
    /// No effect: connections belong to the configuration.
    #[schemars(range(min = 1))]
    cluster_name: Option<u64>,
    /// No effect, as the three below: batches are those of this configuration.
    #[schemars(range(min = 1))]
    producer_batch_num: Option<u64>,
    /// No effect.
    producer_batch_size: Option<u64>,
    /// No effect.
    #[schemars(range(min = 1))]
    producer_max_buffering: Option<u64>,
    /// No effect.
    #[schemars(range(min = 1))]
    producer_time_linger: Option<u64>,
    /// No effect: brokers are asked for the leader of a partition when it does not lead it any more.
    #[schemars(range(min = 1))]
    meta_refresh_interval: Option<u64>,
    #[serde(flatten)]
    batch: BatchConf,
    #[serde(flatten)]
    entry: EntryConf,
}

/// A broker.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BrokerConf {
    /// Its name or address.
    #[schemars(length(min = 1))]
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
    /// User and password (SASL). Brokers that are not in the list have the first one's.
    sasl_config: Option<SaslConf>,
}

/// User and password.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaslConf {
    /// The mechanism.
    #[serde(default)]
    mechanism: SaslMechanism,
    /// The user.
    user: String,
    /// The password.
    password: String,
}

/// A mechanism of SASL.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum SaslMechanism {
    #[default]
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// TLS to brokers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConf {
    /// Verifies the certificates of the brokers, by an authority of `tls.trusted_certificate`.
    #[serde(default)]
    verify: bool,
}

/// The form of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum MetaFormat {
    #[default]
    Default,
    Origin,
}

impl TlsConf {
    pub(super) fn verify(&self) -> bool {
        self.verify
    }
}

/// True for the name of a topic.
pub(super) fn is_topic(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn leader() -> i8 {
    1
}

fn three() -> u64 {
    3
}

impl Define for KafkaLogger {
    const NAME: &'static str = "kafka-logger";
    const PRIORITY: i32 = 403;
    const PHASES: Phases = logging::PHASES;
    const DOC: &'static str = "\
Sends an entry in JSON about every exchange to a topic of Kafka (0.11 to 4). A batch is one message: a list of its entries, or \
the entry alone where `batch_max_size` is 1. A message has to fit into what the brokers take (`message.max.bytes`, 1 MiB by \
default): else the batch is dropped, so large entries want a lower `batch_max_size`.

Batches are made and sent as those of [http-logger](http-logger.md): a batch that fails is tried again by \
`max_retry_count` and `retry_delay`, and no request waits for any of it. One whose answer was lost on the way is in the topic \
twice then.

`plugin_metadata` has a `log_format` and a `log_format_extra` for all places without their own, and \
`max_pending_entries`.";
    const EXAMPLE: &'static str = "\
brokers:
  - {host: 127.0.0.1, port: 9092}
kafka_topic: requests
key: shop
";
    const TEMPLATES: &'static [&'static str] = logging::TEMPLATES;
    const ENCRYPTED: &'static [&'static str] = &["brokers.*.sasl_config.password"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<LoggerMetadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        LoggerMetadata::check(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        conf.tell_without_effect(cx);
        if !is_topic(&conf.kafka_topic) {
            cx.say([Invalid::new("kafka_topic", "expected letters, digits and any of '._-'")]);
            return None;
        }
        let brokers = match (conf.broker_list, conf.brokers) {
            (Some(list), None) => list.into_iter().map(|(host, port)| Broker { host, port, login: None }).collect(),
            (None, Some(brokers)) => brokers.into_iter().map(BrokerConf::broker).collect(),
            _ => {
                cx.say([Invalid::new("brokers", "expected either brokers or broker_list")]);
                return None;
            }
        };
        let brokers: Vec<Broker> = brokers;
        if brokers.is_empty() || brokers.iter().any(|broker| broker.port == 0) {
            cx.say([Invalid::new("broker_list", "expected at least one broker, with a port from 1 to 65535")]);
            return None;
        }
        if !matches!(conf.required_acks, 1 | -1) {
            cx.say([Invalid::new("required_acks", "expected 1 or -1")]);
            return None;
        }
        let topic = Topic {
            brokers,
            name: conf.kafka_topic,
            key: conf.key,
            all_replicas: conf.required_acks == -1,
            tls: conf.tls.map(|tls| tls.verify),
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
            Ok((Destination::Kafka(topic), batch.array_or_single(), message))
        })
    }
}

impl Conf {
    fn tell_without_effect(&self, cx: &CompileCx<'_>) {
        let batches = "it has no effect: batches are made by batch_max_size, inactive_timeout and buffer_duration";
        for (field, is_given, text) in [
            ("producer_type", self.producer_type.is_some(), "it has no effect: no request waits for a batch"),
            (
                "api_version",
                self.api_version.is_some(),
                "it has no effect: the version of requests is the gateway's own",
            ),
            ("cluster_name", self.cluster_name.is_some(), "it has no effect: connections belong to the configuration"),
            ("producer_batch_num", self.producer_batch_num.is_some(), batches),
            ("producer_batch_size", self.producer_batch_size.is_some(), batches),
            ("producer_max_buffering", self.producer_max_buffering.is_some(), batches),
            ("producer_time_linger", self.producer_time_linger.is_some(), batches),
            (
                "meta_refresh_interval",
                self.meta_refresh_interval.is_some(),
                "it has no effect: leaders are looked up when they change",
            ),
        ] {
            if is_given {
                cx.warn(field, text);
            }
        }
    }
}

impl BrokerConf {
    pub(super) fn broker(self) -> Broker {
        let login = self.sasl_config.map(|SaslConf { mechanism, user, password }| {
            let mechanism = match mechanism {
                SaslMechanism::Plain => Mechanism::Plain,
                SaslMechanism::ScramSha256 => Mechanism::ScramSha256,
                SaslMechanism::ScramSha512 => Mechanism::ScramSha512,
            };
            Login { mechanism, user, password }
        });
        Broker { host: self.host, port: self.port, login }
    }
}

/// An entry in a message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) form: MetaFormat,
    /// True where the entry is the whole message.
    pub(super) is_alone: bool,
}

impl Render for Message {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        match self.form {
            MetaFormat::Default => entry.write(x, bodies, out),
            MetaFormat::Origin if self.is_alone => write_request(x, bodies.request, out),
            MetaFormat::Origin => {
                out.push(b'"');
                let begin = out.len();
                write_request(x, bodies.request, out);
                end_string(out, begin);
            }
        }
    }
}

/// Appends the request as it came, in the form of HTTP/1.1.
fn write_request(x: View<'_>, body: Option<&[u8]>, out: &mut Vec<u8>) {
    received::write_head(x.request(), out);
    out.extend_from_slice(body.unwrap_or_default());
}
