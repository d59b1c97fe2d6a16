//! Kong's `prometheus`, which counts in the gateway's own metrics.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};

use crate::observe::prometheus;

/// The definition.
#[derive(Debug)]
pub(crate) struct Prometheus;

/// Kong's configuration. The gateway's metrics have all of it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Counts by consumer.
    #[serde(rename = "per_consumer")]
    _per_consumer: bool,
    /// Counts by status.
    #[serde(rename = "status_code_metrics")]
    _status_code_metrics: bool,
    /// Times requests.
    #[serde(rename = "latency_metrics")]
    _latency_metrics: bool,
    /// Counts bytes.
    #[serde(rename = "bandwidth_metrics")]
    _bandwidth_metrics: bool,
    /// Tells the health of targets.
    #[serde(rename = "upstream_health_metrics")]
    _upstream_health_metrics: bool,
    /// Counts what language models do; there are none.
    #[serde(rename = "ai_metrics")]
    _ai_metrics: bool,
}

impl Define for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 13;
    const PHASES: Phases = prometheus::Prometheus::PHASES;
    const DOC: &'static str = "Counts requests in the metrics at `listen.metrics`.";
    const EXAMPLE: &'static str = "per_consumer: true\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let text = "metrics are served at the setting listen.metrics under the gateway's names; Kong's names, such as \
            kong_http_requests_total, are not there yet";
        cx.warn("", text);
        prometheus::Prometheus::compile(prometheus::Conf { prefer_name: true }, cx)
    }
}
