//! Kong's `statsd`: metrics of exchanges for a StatsD.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, HookCx, Invalid, LogCx, Phases, Plugin, View};
use weir_telemetry::reports::{Channel, Destination, Frame, Tcp, Udp};

use super::consumer::id_of_consumer;
use super::log::queue::{Queue, at_once};
use super::measures::{Measure, letters, push_name};
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct Statsd;

/// A metric.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricConf {
    /// The measure.
    name: String,
    /// Its type.
    stat_type: String,
    /// Share of the exchanges that are told; only 1.
    sample_rate: Option<f64>,
    /// Name by which a consumer is told.
    consumer_identifier: Option<ConsumerIdentifier>,
    /// Name by which a service is told.
    service_identifier: Option<ServiceIdentifier>,
    /// Name by which a workspace is told; there is one.
    #[serde(rename = "workspace_identifier")]
    _workspace_identifier: Option<String>,
}

/// Name by which a consumer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConsumerIdentifier {
    ConsumerId,
    CustomId,
    Username,
}

/// Name by which a service is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum ServiceIdentifier {
    #[serde(rename = "service_id")]
    Id,
    #[serde(rename = "service_name")]
    Name,
    #[serde(rename = "service_host")]
    Host,
    #[serde(rename = "service_name_or_host")]
    NameOrHost,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name or address of the StatsD.
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
    /// Beginning of the names of metrics.
    prefix: String,
    /// The metrics; without it all that there are.
    metrics: Option<Vec<MetricConf>>,
    /// Statuses of exchanges that are told, such as `200-299`; without it all.
    allow_status_codes: Option<Vec<String>>,
    /// Bytes of several metrics in a datagram; each has one of its own.
    #[serde(rename = "udp_packet_size")]
    _udp_packet_size: f64,
    /// Sends lines over TCP.
    use_tcp: bool,
    /// Adds the name of the machine to the prefix; not supported.
    hostname_in_prefix: bool,
    /// Name by which consumers are told.
    consumer_identifier_default: ConsumerIdentifier,
    /// Name by which services are told.
    service_identifier_default: ServiceIdentifier,
    /// Name by which workspaces are told; there is one.
    #[serde(rename = "workspace_identifier_default")]
    _workspace_identifier_default: String,
    /// Style of tags; not supported.
    tag_style: Option<String>,
    /// Tries of older versions; nobody confirms a datagram.
    #[serde(rename = "retry_count")]
    _retry_count: Option<f64>,
    /// Metrics of older versions in a datagram.
    #[serde(rename = "queue_size")]
    _queue_size: Option<f64>,
    /// Seconds of older versions after which they are sent.
    #[serde(rename = "flush_timeout")]
    _flush_timeout: Option<f64>,
    /// Queue of metrics, which are sent at once.
    #[serde(rename = "queue")]
    _queue: Option<Queue>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            host: "localhost".into(),
            port: 8125,
            prefix: "kong".into(),
            metrics: None,
            allow_status_codes: None,
            _udp_packet_size: 0.0,
            use_tcp: false,
            hostname_in_prefix: false,
            consumer_identifier_default: ConsumerIdentifier::CustomId,
            service_identifier_default: ServiceIdentifier::NameOrHost,
            _workspace_identifier_default: "workspace_id".into(),
            tag_style: None,
            _retry_count: None,
            _queue_size: None,
            _flush_timeout: None,
            _queue: None,
        }
    }
}

/// Content of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Measure(Measure),
    Status,
    UniqueUsers,
    RequestsOfUser,
    StatusOfUser,
    StatusOfWorkspace,
    StatusOfUserAndRoute,
    /// Memory of Lua, which there is none of.
    Nothing,
}

/// All metrics, with their types.
const USUAL: [(&str, Told, &str); 13] = [
    ("request_count", Told::Measure(Measure::Requests), "c"),
    ("latency", Told::Measure(Measure::Latency), "ms"),
    ("request_size", Told::Measure(Measure::RequestSize), "ms"),
    ("status_count", Told::Status, "c"),
    ("response_size", Told::Measure(Measure::ResponseSize), "ms"),
    ("unique_users", Told::UniqueUsers, "s"),
    ("request_per_user", Told::RequestsOfUser, "c"),
    ("upstream_latency", Told::Measure(Measure::UpstreamLatency), "ms"),
    ("kong_latency", Told::Measure(Measure::KongLatency), "ms"),
    ("status_count_per_user", Told::StatusOfUser, "c"),
    ("status_count_per_workspace", Told::StatusOfWorkspace, "c"),
    ("status_count_per_user_per_route", Told::StatusOfUserAndRoute, "c"),
    ("shdict_usage", Told::Nothing, "g"),
];

impl Conf {
    fn metrics(&self) -> Result<Vec<Metric>, Invalid> {
        let (consumer, service) = (self.consumer_identifier_default, self.service_identifier_default);
        let Some(given) = &self.metrics else {
            return Ok(USUAL.map(|(_, told, kind)| Metric { told, kind, consumer, service }).into());
        };
        let metric = |(at, metric): (usize, &MetricConf)| {
            let fault = |field: &str, text: &str| Invalid::new(format!("metrics[{at}].{field}"), text);
            if metric.sample_rate.is_some_and(|rate| rate < 1.0) && metric.stat_type != "gauge" {
                return Err(fault("sample_rate", "samples are not supported: expected 1"));
            }
            let found = USUAL.iter().find(|(name, ..)| *name == metric.name);
            Ok(Metric {
                told: found.map(|(_, told, _)| *told).ok_or_else(|| fault("name", "not known"))?,
                kind: letters(&metric.stat_type).ok_or_else(|| fault("stat_type", "not known"))?,
                consumer: metric.consumer_identifier.unwrap_or(consumer),
                service: metric.service_identifier.unwrap_or(service),
            })
        };
        given.iter().enumerate().map(metric).collect()
    }

    /// Ranges of statuses; empty for all.
    fn statuses(&self) -> Result<Vec<(u16, u16)>, Invalid> {
        let range = |(at, text): (usize, &String)| {
            let (from, to) = text.split_once('-').unwrap_or((text.as_str(), text.as_str()));
            match (from.trim().parse(), to.trim().parse()) {
                (Ok(from), Ok(to)) => Ok((from, to)),
                _ => Err(Invalid::new(format!("allow_status_codes[{at}]"), "expected two statuses such as 200-299")),
            }
        };
        self.allow_status_codes.iter().flatten().enumerate().map(range).collect()
    }
}

impl Define for Statsd {
    const NAME: &'static str = "statsd";
    const PRIORITY: i32 = 11;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends metrics of exchanges to a StatsD.";
    const EXAMPLE: &'static str = "{host: 127.0.0.1, port: 8125}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.hostname_in_prefix {
            cx.say([Invalid::new("hostname_in_prefix", "not supported: write the name into prefix")]);
        }
        if conf.tag_style.is_some() {
            cx.say([Invalid::new("tag_style", "tags are not supported: names hold what they would say")]);
        }
        if conf.service_identifier_default == ServiceIdentifier::Host {
            cx.say([Invalid::new(
                "service_identifier_default",
                "expected service_id, service_name or service_name_or_host",
            )]);
        }
        let (metrics, statuses) = (cx.ok(conf.metrics()), cx.ok(conf.statuses()));
        let (metrics, statuses) = (metrics?, statuses?);
        let options = match conf.use_tcp {
            true => {
                let timeout = Duration::from_secs(10);
                let to = Tcp { host: conf.host, port: conf.port, tls: None, timeout, is_kept: true };
                at_once(Self::NAME, Destination::Tcp(to), Frame::LineEnds)
            }
            false => at_once(Self::NAME, Destination::Udp(Udp { host: conf.host, port: conf.port }), Frame::Lengths),
        };
        Some(Compiled::build(move |build| {
            Ok(Telling { channel: observe::channel(options, build), metrics, statuses, prefix: conf.prefix })
        }))
    }
}

/// A metric.
#[derive(Debug)]
struct Metric {
    told: Told,
    kind: &'static str,
    consumer: ConsumerIdentifier,
    service: ServiceIdentifier,
}

/// An instance.
#[derive(Debug)]
struct Telling {
    channel: Arc<Channel>,
    metrics: Vec<Metric>,
    /// Ranges of statuses that are told; empty: all.
    statuses: Vec<(u16, u16)>,
    prefix: String,
}

impl Plugin for Telling {
    fn log(&self, cx: &LogCx<'_>) {
        let status = cx.view().response().status();
        let is_told =
            self.statuses.is_empty() || self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status));
        if !is_told {
            return;
        }
        for metric in &self.metrics {
            // A metric without a consumer or an upstream is none; reported texts are never empty.
            let mut room = Vec::new();
            if self.write(cx, metric, &mut room).is_some() {
                self.channel.report(|out| out.extend_from_slice(&room));
            }
        }
    }
}

impl Telling {
    fn write(&self, cx: &LogCx<'_>, metric: &Metric, out: &mut Vec<u8>) -> Option<()> {
        let x = cx.view();
        let user = || match metric.consumer {
            ConsumerIdentifier::ConsumerId => id_of_consumer(cx),
            ConsumerIdentifier::CustomId => super::consumer::custom_id_of_consumer(cx).or_else(|| id_of_consumer(cx)),
            ConsumerIdentifier::Username => x.consumer().map(|consumer| consumer.name.text.as_bytes()),
        };
        out.extend_from_slice(self.prefix.as_bytes());
        if metric.told == Told::StatusOfUserAndRoute {
            out.extend_from_slice(b".route.");
            push_name(x.route()?.id.text.as_bytes(), out);
            out.extend_from_slice(b".user.");
            push_name(user()?, out);
            push_status(x, out);
        } else {
            push_service(x, metric.service, out);
            match metric.told {
                Told::Measure(measure) => {
                    out.push(b'.');
                    out.extend_from_slice(measure.name().as_bytes());
                    return finish(measure.of(x)?, metric.kind, out);
                }
                Told::Status => push_status(x, out),
                Told::UniqueUsers => {
                    out.extend_from_slice(b".user.uniques:");
                    push_name(user()?, out);
                    out.push(b'|');
                    out.extend_from_slice(metric.kind.as_bytes());
                    return Some(());
                }
                Told::RequestsOfUser => {
                    out.extend_from_slice(b".user.");
                    push_name(user()?, out);
                    out.extend_from_slice(b".request.count");
                }
                Told::StatusOfUser => {
                    out.extend_from_slice(b".user.");
                    push_name(user()?, out);
                    push_status(x, out);
                }
                Told::StatusOfWorkspace => {
                    out.extend_from_slice(b".workspace.default");
                    push_status(x, out);
                }
                Told::StatusOfUserAndRoute | Told::Nothing => return None,
            }
        }
        finish(1, metric.kind, out)
    }
}

fn finish(number: u64, kind: &str, out: &mut Vec<u8>) -> Option<()> {
    out.push(b':');
    weir_wire::push_number(out, number);
    out.push(b'|');
    out.extend_from_slice(kind.as_bytes());
    Some(())
}

fn push_status(x: View<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b".status.");
    weir_wire::push_number(out, u64::from(x.response().status()));
}

fn push_service(x: View<'_>, by: ServiceIdentifier, out: &mut Vec<u8>) {
    let found = x.route().and_then(|route| {
        let id = route.service_id.as_ref()?;
        Some(match by {
            ServiceIdentifier::Id => id,
            _ => route.service_name.as_ref().unwrap_or(id),
        })
    });
    match found {
        Some(service) => {
            out.extend_from_slice(b".service.");
            push_name(service.text.as_bytes(), out);
        }
        None => out.extend_from_slice(b".global.unmatched"),
    }
}
