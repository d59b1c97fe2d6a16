//! Kong's `prometheus`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, HookCx, LogCx, Phases, Plugin};
use weir_telemetry::metrics::{KongMetrics, Label};

use crate::observe::prometheus::Counting;

/// The definition.
#[derive(Debug)]
pub(crate) struct Prometheus;

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Counts by consumer.
    per_consumer: bool,
    /// Tells `kong_http_requests_total`.
    status_code_metrics: bool,
    /// Tells `kong_kong_latency_ms`, `kong_upstream_latency_ms` and `kong_request_latency_ms`.
    latency_metrics: bool,
    /// Tells `kong_bandwidth_bytes`.
    bandwidth_metrics: bool,
    /// Tells `kong_upstream_target_health`.
    upstream_health_metrics: bool,
    /// Counts what language models do; there are none.
    #[serde(rename = "ai_metrics")]
    _ai_metrics: bool,
}

impl Define for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 13;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Counts requests in the metrics at `listen.metrics`, under Kong's names as well.";
    const EXAMPLE: &'static str = "{per_consumer: true, status_code_metrics: true}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        let metrics = [
            (conf.status_code_metrics, KongMetrics::STATUS),
            (conf.latency_metrics, KongMetrics::LATENCY),
            (conf.bandwidth_metrics, KongMetrics::BANDWIDTH),
            (conf.upstream_health_metrics, KongMetrics::HEALTH),
        ];
        let metrics = metrics.into_iter().filter(|(is_told, _)| *is_told);
        Some(Compiled::ready(Counted {
            counting: Counting::by_name(),
            per_consumer: conf.per_consumer,
            metrics: metrics.fold(KongMetrics::NODE, |all, (_, metric)| all.and(metric)),
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Counted {
    counting: Counting,
    per_consumer: bool,
    metrics: KongMetrics,
}

impl Plugin for Counted {
    fn log(&self, cx: &LogCx<'_>) {
        let recorder = cx.recorder();
        recorder.metrics().tell_as_kong(self.metrics);
        self.counting.count(cx.view(), recorder, |series| {
            // Kong has no labels for these, and one for the consumer where the configuration says so.
            (series.matched_uri, series.matched_host, series.node) = (Label::EMPTY, Label::EMPTY, Label::EMPTY);
            if !self.per_consumer {
                series.consumer = Label::EMPTY;
            }
        });
    }
}
