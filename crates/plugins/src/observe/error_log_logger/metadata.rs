//! The metadata of `error-log-logger`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tracing::Level;
use weir_plugin::Invalid;
use weir_telemetry::reports::Topic;

use crate::observe::kafka_logger::{BrokerConf, TlsConf, is_topic};

/// The settings of the plugin.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Metadata {
    /// A server that takes lines over TCP.
    pub(super) tcp: Option<TcpConf>,
    /// Apache SkyWalking.
    pub(super) skywalking: Option<SkywalkingConf>,
    /// ClickHouse, over its HTTP interface.
    pub(super) clickhouse: Option<ClickhouseConf>,
    /// A topic of Kafka.
    pub(super) kafka: Option<KafkaConf>,
    /// Older form of `tcp.host`.
    host: Option<String>,
    /// Older form of `tcp.port`.
    port: Option<u16>,
    /// Older form of `tcp.tls`.
    #[serde(default)]
    tls: bool,
    /// Older form of `tcp.tls_server_name`.
    tls_server_name: Option<String>,
    /// The least important messages that are sent. `STDERR`, `EMERG`, `ALERT`, `CRIT`, `ERR` and `ERROR` are errors, `NOTICE`
    /// and `INFO` are one as well.
    #[serde(default)]
    pub(super) level: MessageLevel,
    /// Seconds for a request, or for connecting and for each write.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    pub(super) timeout: u64,
    /// No effect: connections are kept by the gateway's own rules.
    #[schemars(range(min = 1))]
    keepalive: Option<u64>,
    /// A name for the log.
    #[serde(default = "name")]
    pub(super) name: String,
    /// Messages after which a batch is sent; 0 is 1.
    #[serde(default = "thousand")]
    pub(super) batch_max_size: usize,
    /// Further attempts to send a batch, after which it is spilled (`reports.spill`) or dropped.
    #[serde(default)]
    pub(super) max_retry_count: u32,
    /// Seconds before the first of them, and twice as long before each further one, up to a minute.
    #[serde(default = "one")]
    pub(super) retry_delay: u64,
    /// Seconds after its first message at which a batch is sent.
    #[serde(default = "minute")]
    #[schemars(range(min = 1))]
    pub(super) buffer_duration: u64,
    /// Seconds without a further message after which a batch is sent.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    pub(super) inactive_timeout: u64,
}

/// A server that takes lines.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TcpConf {
    /// Name or address of the server.
    #[schemars(length(min = 1))]
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// Speaks TLS. The certificate of the server is not verified, as in APISIX.
    #[serde(default)]
    pub(super) tls: bool,
    /// The server name for TLS. Unset: `host`.
    pub(super) tls_server_name: Option<String>,
}

/// Apache SkyWalking.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SkywalkingConf {
    /// The whole address of the OAP server's API for logs.
    #[serde(default = "oap")]
    pub(super) endpoint_addr: String,
    /// Name of the service.
    #[serde(default = "service")]
    pub(super) service_name: String,
    /// Name of the instance; `$hostname` is the name of the machine.
    #[serde(default = "instance")]
    pub(super) service_instance_name: String,
}

/// ClickHouse.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ClickhouseConf {
    /// The server, such as `http://127.0.0.1:8123`. Certificates are verified.
    pub(super) endpoint_addr: String,
    /// The user.
    pub(super) user: String,
    /// The password.
    pub(super) password: String,
    /// The database.
    pub(super) database: String,
    /// The table, which has a column `data`.
    #[schemars(length(min = 1))]
    pub(super) logtable: String,
}

/// A topic of Kafka.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct KafkaConf {
    /// Brokers that know the others of their cluster.
    #[schemars(length(min = 1))]
    brokers: Vec<BrokerConf>,
    /// Speaks TLS to the brokers.
    tls: Option<TlsConf>,
    /// The topic.
    #[schemars(length(min = 1, max = 249))]
    kafka_topic: String,
    /// Key of messages, as in [kafka-logger](kafka-logger.md).
    #[schemars(length(min = 1, max = 1024))]
    key: Option<String>,
    /// Replicas that have to have a message: 1, the leader alone, or -1, all that are in sync.
    #[serde(default = "leader")]
    #[schemars(extend("enum" = [1, -1]))]
    required_acks: i8,
    /// No effect: no request waits for a message.
    #[schemars(extend("enum" = ["async", "sync"]))]
    producer_type: Option<String>,
    /// No effect: connections belong to the configuration.
    #[schemars(range(min = 1))]
    cluster_name: Option<u64>,
    /// No effect: brokers are asked for the leader of a partition when it does not lead it any more.
    #[schemars(range(min = 1))]
    meta_refresh_interval: Option<u64>,
}

/// A level of messages, in nginx's words.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(super) enum MessageLevel {
    Stderr,
    Emerg,
    Alert,
    Crit,
    Err,
    Error,
    #[default]
    Warn,
    Notice,
    Info,
    Debug,
}

impl MessageLevel {
    /// The least important level of the gateway's log that it lets through.
    pub(super) fn level(self) -> Level {
        match self {
            Self::Stderr | Self::Emerg | Self::Alert | Self::Crit | Self::Err | Self::Error => Level::ERROR,
            Self::Warn => Level::WARN,
            Self::Notice | Self::Info => Level::INFO,
            Self::Debug => Level::TRACE,
        }
    }
}

fn one() -> u64 {
    1
}

fn three() -> u64 {
    3
}

fn minute() -> u64 {
    60
}

fn thousand() -> usize {
    1000
}

fn leader() -> i8 {
    1
}

fn name() -> String {
    "error-log-logger".into()
}

fn oap() -> String {
    "http://127.0.0.1:12900/v3/logs".into()
}

fn service() -> String {
    "APISIX".into()
}

fn instance() -> String {
    "APISIX Service Instance".into()
}

impl Metadata {
    /// The server in the older form.
    pub(super) fn older(&self) -> Option<TcpConf> {
        let (host, port) = (self.host.clone()?, self.port?);
        Some(TcpConf { host, port, tls: self.tls, tls_server_name: self.tls_server_name.clone() })
    }

    /// Warnings of fields without an effect.
    pub(super) fn without_effect(&self) -> impl Iterator<Item = Invalid> {
        let kafka = self.kafka.as_ref();
        let given = [
            ("keepalive", self.keepalive.is_some(), "connections are kept by the gateway's own rules"),
            (
                "kafka.producer_type",
                kafka.is_some_and(|kafka| kafka.producer_type.is_some()),
                "no request waits for a message",
            ),
            (
                "kafka.cluster_name",
                kafka.is_some_and(|kafka| kafka.cluster_name.is_some()),
                "connections belong to the configuration",
            ),
            (
                "kafka.meta_refresh_interval",
                kafka.is_some_and(|kafka| kafka.meta_refresh_interval.is_some()),
                "leaders are looked up when they change",
            ),
        ];
        let given = given.into_iter().filter(|(_, is_given, _)| *is_given);
        given.map(|(field, _, reason)| Invalid::warning(field, format!("it has no effect: {reason}")))
    }
}

impl KafkaConf {
    pub(super) fn topic(&self, timeout: Duration) -> Result<Topic, Invalid> {
        if !is_topic(&self.kafka_topic) {
            return Err(Invalid::new("kafka.kafka_topic", "expected letters, digits and any of '._-'"));
        }
        if !matches!(self.required_acks, 1 | -1) {
            return Err(Invalid::new("kafka.required_acks", "expected 1 or -1"));
        }
        Ok(Topic {
            brokers: self.brokers.iter().cloned().map(BrokerConf::broker).collect(),
            name: self.kafka_topic.clone(),
            key: self.key.clone(),
            all_replicas: self.required_acks == -1,
            tls: self.tls.as_ref().map(TlsConf::verify),
            timeout,
        })
    }
}
