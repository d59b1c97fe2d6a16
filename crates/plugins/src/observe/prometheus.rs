//! `prometheus`: counts answered requests.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Code, Diagnostic, Node};
use weir_plugin::{CompileCx, Compiled, Define, Failure, HookCx, LogCx, Named, Origin, Phases, Plugin, Side, View};
use weir_telemetry::metrics::{
    HiddenLabels, HttpLabel, HttpMetric, HttpSeries, Label, Labels, Recorder, ResponseSource, Sample,
};

/// The definition.
#[derive(Debug)]
pub(crate) struct Prometheus;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Tells routes and services by their names, where they have one, instead of their ids.
    pub(crate) prefer_name: bool,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Labels that are left empty, for each metric.
    disabled_labels: DisabledLabels,
}

/// Labels that are left empty, for each metric without its prefix.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DisabledLabels {
    /// Of `apisix_http_status`.
    http_status: Vec<StatusLabel>,
    /// Of `apisix_http_latency`.
    http_latency: Vec<TrafficLabel>,
    /// Of `apisix_bandwidth`.
    bandwidth: Vec<TrafficLabel>,
    /// No effect: there is no such metric here.
    llm_latency: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    llm_prompt_tokens: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    llm_completion_tokens: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    llm_active_connections: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    llm_prompt_tokens_dist: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    llm_completion_tokens_dist: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    ai_cache_hits_total: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    ai_cache_misses_total: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    ai_cache_bypasses_total: Option<Vec<String>>,
    /// No effect: there is no such metric here.
    ai_cache_embedding_latency: Option<Vec<String>>,
}

/// A label of `apisix_http_status` that may be left empty.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum StatusLabel {
    Route,
    MatchedUri,
    MatchedHost,
    Service,
    Consumer,
    Node,
    RequestType,
    RequestLlmModel,
    LlmModel,
    ResponseSource,
}

/// A label of `apisix_http_latency` and `apisix_bandwidth` that may be left empty.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum TrafficLabel {
    Route,
    Service,
    Consumer,
    Node,
    RequestType,
    RequestLlmModel,
    LlmModel,
}

impl StatusLabel {
    /// `None`: it is always empty here.
    fn label(self) -> Option<HttpLabel> {
        Some(match self {
            Self::Route => HttpLabel::Route,
            Self::MatchedUri => HttpLabel::MatchedUri,
            Self::MatchedHost => HttpLabel::MatchedHost,
            Self::Service => HttpLabel::Service,
            Self::Consumer => HttpLabel::Consumer,
            Self::Node => HttpLabel::Node,
            Self::RequestType => HttpLabel::RequestType,
            Self::ResponseSource => HttpLabel::ResponseSource,
            Self::RequestLlmModel | Self::LlmModel => return None,
        })
    }
}

impl TrafficLabel {
    /// `None`: it is always empty here.
    fn label(self) -> Option<HttpLabel> {
        Some(match self {
            Self::Route => HttpLabel::Route,
            Self::Service => HttpLabel::Service,
            Self::Consumer => HttpLabel::Consumer,
            Self::Node => HttpLabel::Node,
            Self::RequestType => HttpLabel::RequestType,
            Self::RequestLlmModel | Self::LlmModel => return None,
        })
    }
}

impl DisabledLabels {
    /// The metrics that are named and not here.
    fn absent(&self) -> impl Iterator<Item = &'static str> {
        let named = [
            ("llm_latency", &self.llm_latency),
            ("llm_prompt_tokens", &self.llm_prompt_tokens),
            ("llm_completion_tokens", &self.llm_completion_tokens),
            ("llm_active_connections", &self.llm_active_connections),
            ("llm_prompt_tokens_dist", &self.llm_prompt_tokens_dist),
            ("llm_completion_tokens_dist", &self.llm_completion_tokens_dist),
            ("ai_cache_hits_total", &self.ai_cache_hits_total),
            ("ai_cache_misses_total", &self.ai_cache_misses_total),
            ("ai_cache_bypasses_total", &self.ai_cache_bypasses_total),
            ("ai_cache_embedding_latency", &self.ai_cache_embedding_latency),
        ];
        named.into_iter().filter(|(_, labels)| labels.is_some()).map(|(name, _)| name)
    }

    fn hidden(&self) -> HiddenLabels {
        let traffic = |labels: &[TrafficLabel], metric| -> Vec<_> {
            labels.iter().filter_map(|label| label.label()).map(|label| (metric, label)).collect()
        };
        let of_status = self.http_status.iter().filter_map(|label| label.label());
        let mut hidden = HiddenLabels::NONE;
        of_status
            .map(|label| (HttpMetric::Status, label))
            .chain(traffic(&self.http_latency, HttpMetric::Latency))
            .chain(traffic(&self.bandwidth, HttpMetric::Bandwidth))
            .for_each(|(metric, label)| hidden.hide(metric, label));
        hidden
    }
}

impl Define for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const PHASES: Phases = Phases::LOG;
    const STREAMS: bool = true;
    const DOC: &'static str = "\
Counts answered requests for the metrics page, under the names that APISIX gave them: `apisix_http_status`, \
`apisix_http_latency` in milliseconds (of the whole request, the upstream, and the gateway itself), and \
`apisix_bandwidth` in bytes, by route, service, consumer and node.

`response_source` says who gave an answer: `upstream`; `apisix` for the router and the plugins; `nginx` for failures of \
the proxy, such as an upstream that cannot be reached.

`plugin_metadata` leaves labels empty that nobody asks for, so that there are fewer series: `disabled_labels` has a list \
of labels for each of `http_status`, `http_latency` and `bandwidth`. `code` and `type` cannot be left out, and what was \
counted before a change stays as it is.

```yaml
plugin_metadata:
  - id: prometheus
    disabled_labels:
      http_status: [consumer, node]
      http_latency: [consumer, node]
      bandwidth: [consumer, node]
```

On a stream route it counts connections: `apisix_stream_connection_total`, by route.

A request counts once: where a route has the plugin, with its service and plugin config, that of a global rule stands \
back.";
    const EXAMPLE: &'static str = "\
prefer_name: true
";

    const PREFERS_ROUTE: bool = true;

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        let labels = metadata.get("disabled_labels").unwrap_or(metadata);
        let warning = |name: &'static str| {
            let code = Code::PluginRule { text: "it has no effect: there is no such metric here".into() };
            Diagnostic::warning(labels.mark_of(name), format!("disabled_labels.{name}"), code)
        };
        let found: Vec<Diagnostic> = typed.disabled_labels.absent().map(warning).collect();
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(move |build| {
            let hidden = build.metadata::<Metadata>()?.disabled_labels.hidden();
            Ok(Counting { prefer_name: conf.prefer_name, hidden })
        }))
    }
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Counting {
    prefer_name: bool,
    hidden: HiddenLabels,
}

/// The status that nginx logs, and so APISIX counts, when the client went away before there was an answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl Plugin for Counting {
    fn log(&self, cx: &LogCx<'_>) {
        let (exchange, recorder) = (cx.view(), cx.recorder());
        if exchange.is_stream() {
            return recorder.stream_connection(self.route(exchange, recorder.labels()));
        }
        self.count(exchange, recorder, |_| {});
    }
}

impl Counting {
    /// Counts with the names of routes and services, and all labels.
    pub(crate) fn by_name() -> Self {
        Self { prefer_name: true, hidden: HiddenLabels::NONE }
    }

    /// Counts a request that is over, in a series that `change` may change.
    pub(crate) fn count(&self, exchange: View<'_>, recorder: &Recorder, change: impl FnOnce(&mut HttpSeries)) {
        let mut series = self.series(exchange, recorder.labels()).without(self.hidden);
        change(&mut series);
        recorder.http(&series, &sample(exchange));
    }

    /// The route as it is told.
    fn route(&self, exchange: View<'_>, labels: &Labels) -> Label {
        let label = |named: &Named| labels.lazy(&named.label, || &named.text);
        let Some(route) = exchange.route() else { return Label::EMPTY };
        let name = route.name.as_ref().filter(|_| self.prefer_name).map(label).filter(|name| *name != Label::EMPTY);
        name.unwrap_or_else(|| label(&route.id))
    }

    fn series(&self, exchange: View<'_>, labels: &Labels) -> HttpSeries {
        let label = |named: Option<&Named>| named.map_or(Label::EMPTY, |n| labels.lazy(&n.label, || &n.text));
        let code = match exchange.response().status() {
            0 => CLIENT_CLOSED_REQUEST,
            status => status,
        };
        let mut series = HttpSeries::unmatched(code, source(exchange));
        series.consumer = label(exchange.consumer().map(|consumer| &consumer.name));
        series.node = exchange.node().unwrap_or(Label::EMPTY);
        let (Some(route), Some(matched)) = (exchange.route(), exchange.matched()) else { return series };
        let preferred = |name: Option<&Named>| label(name.filter(|_| self.prefer_name));
        series.route = self.route(exchange, labels);
        series.service = match preferred(route.service_name.as_ref()) {
            Label::EMPTY => label(route.service_id.as_ref()),
            name => name,
        };
        series.matched_uri = label(route.paths.get(usize::from(matched.path)));
        series.matched_host = label(matched.host.and_then(|host| route.hosts.get(usize::from(host))));
        series
    }
}

/// Source of an answer.
pub(crate) fn source(exchange: View<'_>) -> ResponseSource {
    match exchange.response().origin {
        Origin::Upstream => ResponseSource::Upstream,
        Origin::Gateway => ResponseSource::Apisix,
        // Without a node to ask, APISIX answers before nginx tries to.
        Origin::Failed(Failure { side: Side::Upstream, .. }) if exchange.tries().is_empty() => ResponseSource::Apisix,
        Origin::Failed(Failure { side: Side::Gateway, .. }) => ResponseSource::Apisix,
        Origin::Failed(_) | Origin::Nobody => ResponseSource::Nginx,
    }
}

fn sample(exchange: View<'_>) -> Sample {
    let request_us = exchange.duration();
    let upstream_us = exchange.upstream_us();
    Sample {
        request_us,
        upstream_us,
        gateway_us: request_us.saturating_sub(upstream_us.unwrap_or(0)),
        ingress_bytes: exchange.received(),
        egress_bytes: exchange.sent(),
    }
}
