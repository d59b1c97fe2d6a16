//! `prometheus`: counts answered requests.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BuildCx, Define, Exchange, Failure, Invalid, LogCx, Named, Origin, Phases, Plugin, Side};
use weir_telemetry::metrics::{HttpSeries, Label, Labels, ResponseSource, Sample};

/// The definition.
#[derive(Debug)]
pub(crate) struct Prometheus;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Tells routes and services by their names, where they have one, instead of their ids.
    prefer_name: bool,
}

impl Define for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "\
Counts answered requests for the metrics page, under the names that APISIX gave them: `apisix_http_status`, \
`apisix_http_latency` in milliseconds (of the whole request, the upstream, and the gateway itself), and \
`apisix_bandwidth` in bytes, by route, service, consumer and node.

`response_source` says who gave an answer: `upstream`; `apisix` for the router and the plugins; `nginx` for failures of \
the proxy, such as an upstream that cannot be reached.

A request counts once: where a route has the plugin, with its service and plugin config, that of a global rule stands \
back.";
    const EXAMPLE: &'static str = "\
prefer_name: true
";

    const PREFERS_ROUTE: bool = true;

    type Conf = Conf;
    type ConsumerConf = ();

    fn build(conf: Conf, _: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        Ok(Arc::new(Counting { prefer_name: conf.prefer_name }))
    }
}

/// An instance.
#[derive(Debug)]
struct Counting {
    prefer_name: bool,
}

/// What nginx logs, and so APISIX counts, when the client went away before there was an answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl Plugin for Counting {
    fn log(&self, cx: &LogCx<'_>) {
        let exchange = cx.exchange;
        cx.recorder.http(&self.series(exchange, cx.recorder.labels()), &sample(exchange));
    }
}

impl Counting {
    fn series(&self, exchange: &Exchange, labels: &Labels) -> HttpSeries {
        let label = |named: Option<&Named>| named.map_or(Label::EMPTY, |n| labels.lazy(&n.label, || &n.text));
        let code = match exchange.response.status() {
            0 => CLIENT_CLOSED_REQUEST,
            status => status,
        };
        let mut series = HttpSeries::unmatched(code, source(exchange));
        series.consumer = label(exchange.consumer().map(|consumer| &consumer.name));
        series.node = exchange.upstream.node.unwrap_or(Label::EMPTY);
        let (Some(route), Some(matched)) = (exchange.route(), exchange.matched) else { return series };
        let preferred = |name: Option<&Named>| label(name.filter(|_| self.prefer_name));
        series.route = match preferred(route.name.as_ref()) {
            Label::EMPTY => label(Some(&route.id)),
            name => name,
        };
        series.service = match preferred(route.service_name.as_ref()) {
            Label::EMPTY => label(route.service_id.as_ref()),
            name => name,
        };
        series.matched_uri = label(route.paths.get(usize::from(matched.path)));
        series.matched_host = label(matched.host.and_then(|host| route.hosts.get(usize::from(host))));
        series
    }
}

fn source(exchange: &Exchange) -> ResponseSource {
    match exchange.response.origin {
        Origin::Upstream => ResponseSource::Upstream,
        Origin::Gateway => ResponseSource::Apisix,
        // Without a node to ask, APISIX answers before nginx tries to.
        Origin::Failed(Failure { side: Side::Upstream, .. }) if exchange.upstream.tries.is_empty() => {
            ResponseSource::Apisix
        }
        Origin::Failed(Failure { side: Side::Gateway, .. }) => ResponseSource::Apisix,
        Origin::Failed(_) | Origin::Nobody => ResponseSource::Nginx,
    }
}

fn sample(exchange: &Exchange) -> Sample {
    let request_us = exchange.times.now.saturating_sub(exchange.times.start);
    let upstream_us = exchange.upstream_us();
    Sample {
        request_us,
        upstream_us,
        gateway_us: request_us.saturating_sub(upstream_us.unwrap_or(0)),
        ingress_bytes: exchange.received,
        egress_bytes: exchange.sent,
    }
}
