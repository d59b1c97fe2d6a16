//! Kong's `opentelemetry`: spans of exchanges, to a collector over OTLP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Value;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, NodeAddress, PerRequest, Phases, Plugin, RequestCx,
    Service, ServiceOptions, View,
};
use weir_telemetry::reports::{Channel, Check};
use weir_wire::name::FieldName;

use super::log::queue::Queue;
use super::trace::{HeaderType, Propagation, response_field};
use crate::observe;
use crate::observe::collectors::{check_headers, endpoints};
use crate::observe::trace::otlp::{self, Attribute, CLIENT, SpanHead};
use crate::observe::trace::sampler::Share;
use crate::observe::trace::{TraceContext, unix_us};

/// The definition.
#[derive(Debug)]
pub(crate) struct Opentelemetry;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The collector, such as `http://127.0.0.1:4318/v1/traces`; without it nothing is reported, and the fields of requests are
    /// written all the same.
    #[serde(alias = "endpoint")]
    traces_endpoint: Option<String>,
    /// The collector of logs; not supported.
    logs_endpoint: Option<String>,
    /// Further fields of requests to the collector.
    headers: BTreeMap<String, String>,
    /// Attributes of the gateway; `service.name` is `kong` unless it is among them.
    resource_attributes: BTreeMap<String, String>,
    /// Share of the requests that are reported, of those that come without a caller's decision.
    #[schemars(range(min = 0, max = 1))]
    sampling_rate: f64,
    /// Format of the fields that are written: `preserve`, `ignore`, `b3`, `b3-single` or `w3c`.
    header_type: HeaderType,
    /// Lists of formats in the place of `header_type`; not supported, apart from the default format.
    propagation: PropagationConf,
    /// Header of responses that tells the id of the trace.
    http_response_header_for_traceid: Option<String>,
    /// Milliseconds to connect to the collector.
    #[schemars(range(min = 1))]
    connect_timeout: u64,
    /// Milliseconds for sending.
    #[schemars(range(min = 1))]
    send_timeout: u64,
    /// Milliseconds for the answer; the three together are the limit of a request to the collector.
    #[schemars(range(min = 1))]
    read_timeout: u64,
    /// Queue of spans.
    queue: Option<Queue>,
    /// Most spans in a request, in older versions.
    batch_span_count: Option<usize>,
    /// Seconds of older versions after which spans are sent.
    batch_flush_delay: Option<f64>,
}

/// Formats that are read and written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct PropagationConf {
    /// Formats that are read, in this order; not supported.
    extract: Option<Vec<String>>,
    /// Fields that are removed; not supported.
    clear: Option<Vec<String>>,
    /// Formats that are written; not supported.
    inject: Option<Vec<String>>,
    /// Format of the fields where a request tells none: `b3`, `b3-single` or `w3c`.
    default_format: HeaderType,
}

impl Default for PropagationConf {
    fn default() -> Self {
        Self { extract: None, clear: None, inject: None, default_format: HeaderType::W3c }
    }
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            traces_endpoint: None,
            logs_endpoint: None,
            headers: BTreeMap::new(),
            resource_attributes: BTreeMap::new(),
            sampling_rate: 0.01,
            header_type: HeaderType::Preserve,
            propagation: PropagationConf::default(),
            http_response_header_for_traceid: None,
            connect_timeout: 1000,
            send_timeout: 5000,
            read_timeout: 5000,
            queue: None,
            batch_span_count: None,
            batch_flush_delay: None,
        }
    }
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let PropagationConf { extract, clear, inject, .. } = &self.propagation;
        let unsupported = [
            ("logs_endpoint", self.logs_endpoint.is_some()),
            ("propagation.extract", extract.is_some()),
            ("propagation.clear", clear.is_some()),
            ("propagation.inject", inject.is_some()),
        ];
        let refused = unsupported.into_iter().filter(|(_, is_given)| *is_given);
        refused.map(|(field, _)| Invalid::new(field, "not supported")).collect()
    }

    fn channel(&self, uri: &str, version: &str) -> weir_telemetry::reports::ChannelOptions {
        let mut fields = vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())];
        fields.extend(self.headers.clone());
        let timeout = Duration::from_millis(self.connect_timeout + self.send_timeout + self.read_timeout);
        let to = endpoints(vec![uri.to_owned()], &fields, timeout, false, Check::Success);
        let mut resource: Vec<(String, Attribute)> = Vec::new();
        if !self.resource_attributes.contains_key("service.name") {
            resource.push(("service.name".to_owned(), Attribute::Text("kong".to_owned())));
        }
        let own = self.resource_attributes.iter();
        resource.extend(own.map(|(name, value)| (name.clone(), Attribute::Text(value.clone()))));
        let queue = self.queue.clone().unwrap_or_else(|| Queue::of_batches(200));
        let older = (self.batch_span_count, self.batch_flush_delay);
        queue.channel((Opentelemetry::NAME, uri.to_owned()), to, otlp::frame(&resource, "weir", version), older)
    }
}

impl Define for Opentelemetry {
    const NAME: &'static str = "opentelemetry";
    const PRIORITY: i32 = 14;
    const PHASES: Phases = Phases::REWRITE.and(Phases::LOG);
    const DOC: &'static str = "Reports spans of exchanges to a collector over OTLP.";
    const EXAMPLE: &'static str = "{traces_endpoint: 'http://127.0.0.1:4318/v1/traces', sampling_rate: 0.1}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        if let Some(uri) = &conf.traces_endpoint {
            cx.say(Service::parse("traces_endpoint", uri, ServiceOptions::default()).err());
        }
        cx.say(check_headers("headers", &conf.headers).err());
        let default = ("propagation.default_format", conf.propagation.default_format);
        let propagation = cx.ok(Propagation::new(conf.header_type, default));
        let told_in = cx.ok(response_field(conf.http_response_header_for_traceid.as_deref()));
        let (propagation, told_in) = (propagation?, told_in?);
        Some(Compiled::build(move |build| {
            let version = build.product.rsplit('/').next().unwrap_or_default();
            let options = conf.traces_endpoint.as_ref().map(|uri| conf.channel(uri, version));
            Ok(Tracing {
                propagation,
                share: Share::new(conf.sampling_rate),
                told_in,
                context: PerRequest::new(),
                channel: options.map(|options| observe::channel(options, build)),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Tracing {
    propagation: Propagation,
    share: Share,
    told_in: Option<FieldName>,
    context: PerRequest<TraceContext>,
    /// `None` where nothing is reported.
    channel: Option<Arc<Channel>>,
}

impl Plugin for Tracing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let told = self.propagation.read(cx.request());
        let context = Propagation::place(told, self.share, false);
        self.propagation.write(told, &context, cx);
        if let Some(field) = &self.told_in {
            cx.set_response_field(field, |out| context.trace.write(out));
        }
        if context.is_sampled && self.channel.is_some() {
            self.context.put(cx, context);
        }
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if let (Some(channel), Some(context)) = (&self.channel, self.context.get(cx)) {
            channel.report(|out| write(cx.view(), context, out));
        }
    }
}

/// Appends the spans of an exchange.
fn write(x: View<'_>, context: &TraceContext, out: &mut Vec<u8>) {
    let (begin, end) = (unix_us(x, x.start()), unix_us(x, x.now()));
    otlp::push_span(out, &SpanHead::server(context, &[b"kong"], begin, end), |span| {
        let request = x.request();
        let scheme: &[u8] = if x.client().https { b"https" } else { b"http" };
        span.text("http.method", request.method_bytes());
        let url = [scheme, b"://", request.host(), request.real_request_uri()].concat();
        span.text("http.url", &url);
        span.text("http.host", request.host());
        span.text("http.scheme", scheme);
        span.text("http.flavor", flavor(x));
        span.value("net.peer.ip", Value::Ip(x.client().addr));
        if let Some(route) = x.route() {
            let path = match x.variable(&weir_expr::Variable::MatchedUri) {
                Some(Value::Bytes(path)) => path,
                _ => b"",
            };
            span.text("http.route", path);
            span.text("kong.route.id", route.id.text.as_bytes());
            for (key, named) in [("kong.route.name", &route.name), ("kong.service.name", &route.service_name)] {
                if let Some(named) = named {
                    span.text(key, named.text.as_bytes());
                }
            }
        }
        let status = x.response().status();
        span.number("http.status_code", u64::from(status));
        if status >= 500 {
            span.error(&[b"answered with an error"]);
        }
    });
    for (number, attempt) in x.tries().iter().enumerate() {
        let at = |offset: u64| unix_us(x, attempt.begin + offset);
        let last = attempt.end.max(attempt.head).max(attempt.connected);
        otlp::push_span(out, &SpanHead::child(context, &[b"kong.balancer"], CLIENT, at(0), at(last)), |span| {
            span.number("try_count", number as u64 + 1);
            if let Some(NodeAddress::Tcp(address)) = &attempt.addr {
                span.value("net.peer.ip", Value::Ip(address.ip()));
                span.number("net.peer.port", u64::from(address.port()));
            }
            span.number("http.status_code", u64::from(attempt.status));
        });
    }
}

/// `1.0`, `1.1` or `2`.
fn flavor(x: View<'_>) -> &[u8] {
    match x.variable(&weir_expr::Variable::ServerProtocol) {
        Some(Value::Bytes(b"HTTP/2.0")) => b"2",
        Some(Value::Bytes(protocol)) => protocol.strip_prefix(b"HTTP/").unwrap_or(protocol),
        _ => b"",
    }
}
