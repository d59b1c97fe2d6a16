//! Kong's `datadog`: metrics of exchanges for an agent of Datadog.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, HookCx, Invalid, LogCx, Phases, Plugin, View};
use weir_telemetry::reports::{Channel, Destination, Frame, Udp};

use super::log::queue::{Queue, at_once};
use super::measures::{Measure, letters};
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct Datadog;

/// A metric.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricConf {
    /// The measure.
    name: String,
    /// Its type.
    stat_type: String,
    /// Further tags.
    #[serde(default)]
    tags: Vec<String>,
    /// Share of the exchanges that are told; only 1.
    sample_rate: Option<f64>,
    /// Name by which a consumer is told.
    consumer_identifier: Option<Identifier>,
}

/// Name by which a consumer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Identifier {
    ConsumerId,
    CustomId,
    Username,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name or address of the agent.
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
    /// Beginning of the names of metrics.
    prefix: String,
    /// Name of the tag of the service.
    service_name_tag: String,
    /// Name of the tag of the status.
    status_tag: String,
    /// Name of the tag of the consumer.
    consumer_tag: String,
    /// The metrics; without it the six that there are.
    metrics: Option<Vec<MetricConf>>,
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
            service_name_tag: "name".into(),
            status_tag: "status".into(),
            consumer_tag: "consumer".into(),
            metrics: None,
            _retry_count: None,
            _queue_size: None,
            _flush_timeout: None,
            _queue: None,
        }
    }
}

impl Conf {
    fn metrics(&self) -> Result<Vec<Metric>, Invalid> {
        const USUAL: [(Measure, &str); 6] = [
            (Measure::Requests, "c"),
            (Measure::Latency, "ms"),
            (Measure::RequestSize, "ms"),
            (Measure::ResponseSize, "ms"),
            (Measure::UpstreamLatency, "ms"),
            (Measure::KongLatency, "ms"),
        ];
        let Some(given) = &self.metrics else {
            let usual = |(measure, kind)| Metric { measure, kind, tags: "app:kong".into() };
            return Ok(USUAL.map(usual).into());
        };
        let metric = |(at, metric): (usize, &MetricConf)| {
            let fault = |field: &str, text: &str| Invalid::new(format!("metrics[{at}].{field}"), text);
            if metric.sample_rate.is_some_and(|rate| rate < 1.0) && metric.stat_type != "gauge" {
                return Err(fault("sample_rate", "samples are not supported: expected 1"));
            }
            if !metric.tags.iter().all(|tag| tag.bytes().all(|b| b.is_ascii_graphic() && b != b'|' && b != b',')) {
                return Err(fault("tags", "expected texts without blanks, commas and bars"));
            }
            Ok(Metric {
                measure: Measure::parse(&metric.name).ok_or_else(|| fault("name", "not known"))?,
                kind: letters(&metric.stat_type).ok_or_else(|| fault("stat_type", "not known"))?,
                tags: metric.tags.join(",").into(),
            })
        };
        given.iter().enumerate().map(metric).collect()
    }
}

impl Define for Datadog {
    const NAME: &'static str = "datadog";
    const PRIORITY: i32 = 10;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Sends metrics of exchanges to an agent of Datadog.";
    const EXAMPLE: &'static str = "{host: 127.0.0.1, port: 8125}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let identifiers = conf.metrics.iter().flatten().filter_map(|metric| metric.consumer_identifier);
        if { identifiers }.any(|identifier| identifier != Identifier::Username) {
            cx.warn("metrics", "consumers are told by their user names");
        }
        let metrics = cx.ok(conf.metrics())?;
        let options = at_once(Self::NAME, Destination::Udp(Udp { host: conf.host, port: conf.port }), Frame::Lengths);
        Some(Compiled::build(move |build| {
            Ok(Telling {
                channel: observe::channel(options, build),
                metrics,
                prefix: conf.prefix,
                names: [conf.service_name_tag, conf.status_tag, conf.consumer_tag],
            })
        }))
    }
}

/// A metric.
#[derive(Debug)]
struct Metric {
    measure: Measure,
    kind: &'static str,
    tags: Box<str>,
}

/// An instance.
#[derive(Debug)]
struct Telling {
    channel: Arc<Channel>,
    metrics: Vec<Metric>,
    prefix: String,
    /// Names of the tags of service, status and consumer.
    names: [String; 3],
}

impl Plugin for Telling {
    fn log(&self, cx: &LogCx<'_>) {
        let x = cx.view();
        // As in Kong, what has no service is not told.
        if x.route().is_none_or(|route| route.service_id.is_none()) {
            return;
        }
        for metric in &self.metrics {
            if let Some(number) = metric.measure.of(x) {
                self.channel.report(|out| self.write(x, metric, number, out));
            }
        }
    }
}

impl Telling {
    fn write(&self, x: View<'_>, metric: &Metric, number: u64, out: &mut Vec<u8>) {
        let Some(route) = x.route() else { return };
        out.extend_from_slice(self.prefix.as_bytes());
        out.push(b'.');
        out.extend_from_slice(metric.measure.name().as_bytes());
        out.push(b':');
        weir_wire::push_number(out, number);
        out.push(b'|');
        out.extend_from_slice(metric.kind.as_bytes());
        out.extend_from_slice(b"|#");
        let [service, status, consumer] = &self.names;
        let name = route.service_name.as_ref().or(route.service_id.as_ref());
        push_tag(service, name.map_or(b"", |name| name.text.as_bytes()), out);
        out.push(b',');
        out.extend_from_slice(status.as_bytes());
        out.push(b':');
        weir_wire::push_number(out, u64::from(x.response().status()));
        if let Some(found) = x.consumer() {
            out.push(b',');
            push_tag(consumer, found.name.text.as_bytes(), out);
        }
        if !metric.tags.is_empty() {
            out.push(b',');
            out.extend_from_slice(metric.tags.as_bytes());
        }
    }
}

fn push_tag(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.push(b':');
    // A comma begins the next tag, and a bar ends them.
    out.extend(value.iter().map(|byte| if matches!(byte, b',' | b'|' | b'\n') { b'_' } else { *byte }));
}
