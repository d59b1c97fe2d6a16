//! `zipkin`: spans of exchanges, to a collector of Zipkin.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Value;
use weir_plugin::{
    CompileCx, Compiled, Define, Failure, Flow, HookCx, LogCx, PerRequest, Phases, Plugin, RequestCx, Service,
    ServiceOptions, Side, View,
};
use weir_telemetry::reports::{Channel, ChannelOptions, Check, Frame};

use super::collectors::endpoints;
use super::json::{Object, push_string, push_value};
use super::trace::b3::{self, Broken};
use super::trace::sampler::Share;
use super::trace::{TraceContext, TraceId, push_span, random_span, response_source, unix_us};

/// The definition.
#[derive(Debug)]
pub(crate) struct Zipkin;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The collector, such as `http://127.0.0.1:9411/api/v2/spans`.
    endpoint: String,
    /// Share of the requests that are reported, of those that come without a caller's decision.
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// Name of the gateway among the services.
    #[serde(default = "service")]
    service_name: String,
    /// Address of the gateway, where it is another than the one at which requests are accepted.
    server_addr: Option<Ipv4Addr>,
    /// Spans within that of a request. `2`: `apisix.proxy` and `apisix.response_span`. `1`: `apisix.rewrite`, `apisix.access`,
    /// `apisix.proxy` and `apisix.body_filter`.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 2))]
    span_version: u8,
}

fn service() -> String {
    "APISIX".into()
}

fn two() -> u8 {
    2
}

impl Define for Zipkin {
    const NAME: &'static str = "zipkin";
    const PRIORITY: i32 = 12011;
    const PHASES: Phases = Phases::REWRITE.and(Phases::ACCESS).and(Phases::LOG);
    const DOC: &'static str = "\
Reports spans of exchanges to a collector of Zipkin, in JSON (API v2). A request continues the trace of its fields \
`X-B3-TraceId`, `X-B3-SpanId` and `X-B3-Sampled`, or of the single field `b3`, or begins one; the upstream receives the fields \
`X-B3-*` in any case. The caller's decision counts before `sample_ratio`, and `X-B3-Flags: 1` has a request reported. A \
request with a field `b3` that has no ids is refused with 400, and ids that cannot be ones begin a new trace.

Spans are sent in batches of up to 1,000 requests, after 5 seconds without a further one and after 60 seconds at the latest. \
No request waits for that. A collector that answers with anything but 2xx has not taken a batch; it is not sent again.";
    const EXAMPLE: &'static str = "\
endpoint: http://127.0.0.1:9411/api/v2/spans
sample_ratio: 0.01
service_name: shop-gateway
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.ok(Service::parse("endpoint", &conf.endpoint, ServiceOptions::default()))?;
        Some(Compiled::build(move |build| {
            let fields = [("Content-Type".to_owned(), "application/json".to_owned())];
            let options = ChannelOptions {
                plugin: Self::NAME,
                name: "zipkin".to_owned(),
                destination: endpoints(vec![conf.endpoint], &fields, TIMEOUT, true, Check::Success),
                frame: Frame::Array,
                batch_records: 1000,
                batch_age: Duration::from_secs(60),
                batch_idle: Duration::from_secs(5),
                max_pending: None,
                retries: 0,
                retry_delay: Duration::ZERO,
            };
            Ok(Tracing {
                share: Share::new(conf.sample_ratio),
                service: conf.service_name,
                address: conf.server_addr.map(IpAddr::V4),
                has_phases: conf.span_version == 1,
                fields: b3::Fields::default(),
                begun: PerRequest::new(),
                channel: super::channel(options, build),
            })
        }))
    }
}

/// Limit of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An instance.
#[derive(Debug)]
struct Tracing {
    share: Share,
    service: String,
    address: Option<IpAddr>,
    /// True for the spans of version 1.
    has_phases: bool,
    fields: b3::Fields,
    begun: PerRequest<Begun>,
    channel: Arc<Channel>,
}

/// State of a trace before the exchange is over.
#[derive(Debug, Clone, Copy)]
struct Begun {
    context: TraceContext,
    /// Id of the span `apisix.proxy`, which is the upstream's parent.
    proxy: u64,
    /// End of the phase rewrite, on the worker's clock.
    rewritten: u64,
    /// End of the phase access.
    admitted: u64,
}

impl Plugin for Tracing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let told = match self.fields.read(cx.request()) {
            Ok(told) => told,
            Err(Broken) => {
                let reason = "the field b3 of the request cannot be read";
                return Flow::Abort(Failure { status: 400, side: Side::Client, reason });
            }
        };
        let trace = told.caller.map_or_else(TraceId::random, |caller| caller.trace);
        let is_sampled = match told.is_sampled {
            Some(decision) => decision,
            None => told.is_debug || self.share.has(TraceId::random()),
        };
        let parent = told.caller.and_then(|caller| caller.span);
        let context = TraceContext { trace, span: random_span(), parent, is_sampled };
        let now = cx.view().now();
        if told.is_debug {
            self.fields.write_debug(cx.request_mut());
        }
        self.begun.put(cx, Begun { context, proxy: random_span(), rewritten: now, admitted: now });
        Flow::Continue
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let now = cx.view().now();
        let Some(begun) = self.begun.get_mut(cx) else { return Flow::Continue };
        begun.admitted = now;
        let Begun { context, proxy, .. } = *begun;
        // Of spans that are not reported the upstream's parent is the request's.
        let sent = match context.is_sampled {
            true => TraceContext { span: proxy, parent: Some(context.span), ..context },
            false => context,
        };
        let mut scratch = cx.take_scratch();
        self.fields.write(&sent, cx.request_mut(), &mut scratch);
        cx.put_scratch(scratch);
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if let Some(begun) = self.begun.get(cx).filter(|begun| begun.context.is_sampled) {
            self.channel.report(|out| self.write(cx.view(), begun, out));
        }
    }
}

impl Tracing {
    /// Appends the spans of an exchange, with commas between them.
    fn write(&self, x: View<'_>, begun: &Begun, out: &mut Vec<u8>) {
        let (start, end) = (x.start(), x.now());
        let head = x.tries().last().filter(|last| last.head > 0).map_or(end, |last| last.begin + last.head);
        let of_request = Some(begun.context.span);
        self.span(x, begun, "apisix.request", begun.context.span, begun.context.parent, (start, end), out);
        let mut child = |name, id, parent, times| {
            out.push(b',');
            self.span(x, begun, name, id, parent, times, out);
        };
        if self.has_phases {
            child("apisix.rewrite", random_span(), of_request, (start, begun.rewritten));
            child("apisix.access", random_span(), of_request, (begun.rewritten, begun.admitted));
            child("apisix.proxy", begun.proxy, of_request, (begun.admitted, end));
            child("apisix.body_filter", random_span(), Some(begun.proxy), (head, end));
        } else {
            child("apisix.proxy", begun.proxy, of_request, (start, head));
            child("apisix.response_span", random_span(), of_request, (head, end));
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a span")]
    fn span(
        &self,
        x: View<'_>,
        begun: &Begun,
        name: &'static str,
        id: u64,
        parent: Option<u64>,
        (begin, end): (u64, u64),
        out: &mut Vec<u8>,
    ) {
        let is_request = id == begun.context.span;
        let mut span = Object::begin(out);
        push_id(span.key("traceId"), |out| begun.context.trace.write(out));
        push_id(span.key("id"), |out| push_span(id, out));
        if let Some(parent) = parent {
            push_id(span.key("parentId"), |out| push_span(parent, out));
        }
        push_string(span.key("name"), name.as_bytes());
        push_value(span.key("timestamp"), Value::Number(unix_us(x, begin)));
        push_value(span.key("duration"), Value::Number(end.saturating_sub(begin)));
        span.nested("localEndpoint", |endpoint| {
            push_string(endpoint.key("serviceName"), self.service.as_bytes());
            let local = x.client().local;
            push_address(endpoint, self.address.unwrap_or(local.ip()), local.port());
        });
        if is_request {
            push_string(span.key("kind"), b"SERVER");
            let client = x.client();
            span.nested("remoteEndpoint", |endpoint| push_address(endpoint, client.addr, client.port));
            span.nested("tags", |tags| {
                push_string(tags.key("component"), b"apisix");
                push_string(tags.key("http.method"), x.request().method_bytes());
                push_string(tags.key("http.url"), x.request().request_uri());
                push_id(tags.key("http.status_code"), |out| {
                    weir_wire::push_number(out, u64::from(x.response().status()));
                });
                push_string(tags.key("apisix.response_source"), response_source(x).as_bytes());
            });
        }
        span.end();
    }
}

/// Appends a text that needs no escapes.
fn push_id(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'"');
    write(out);
    out.push(b'"');
}

fn push_address(endpoint: &mut Object<'_>, address: IpAddr, port: u16) {
    let key = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    push_value(endpoint.key(key), Value::Ip(address));
    push_value(endpoint.key("port"), Value::Number(u64::from(port)));
}
