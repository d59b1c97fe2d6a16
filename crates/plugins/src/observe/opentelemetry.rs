//! `opentelemetry`: spans of exchanges, to a collector over OTLP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Code, Diagnostic, Node};
use weir_expr::{Value, Variable};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, NodeAddress, PerRequest, Phases, Plugin, RequestCx,
    Service, ServiceOptions, Try, View, hostname,
};
use weir_telemetry::reports::{Channel, ChannelOptions, Check, Destination, Post};
use weir_wire::name::{FieldName, Known};

use super::collectors::{check_headers, endpoints};
use super::trace::otlp::{self, Attribute, CLIENT, INTERNAL, Span, SpanHead};
use super::trace::sampler::{Sampler, SamplerConf};
use super::trace::w3c::{self, push_traceparent};
use super::trace::{TraceContext, TraceId, random_span, response_source, unix_us};

/// The definition.
#[derive(Debug)]
pub(crate) struct Opentelemetry;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Choice of the requests that are reported.
    sampler: SamplerConf,
    /// Variables such as `http_user_agent`, without `$`, that are added as attributes.
    additional_attributes: Vec<String>,
    /// Names of fields of requests that are added as attributes; one that ends in `*` stands for all that begin so.
    additional_header_prefix_attributes: Vec<String>,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Source of the ids of new traces. `random`: they are random. `x-request-id`: the field of that name, or
    /// `$request_id`, where it has 32 hexadecimal digits.
    trace_id_source: TraceIdSource,
    /// Attributes of the gateway: texts, numbers or booleans. `hostname` and `service.name` (`APISIX`) are there anyhow.
    resource: BTreeMap<String, serde_json::Value>,
    /// The collector.
    collector: Collector,
    /// Batches.
    batch_span_processor: Batches,
    /// Tells `traceparent`, trace and span in the variables `opentelemetry_context_traceparent`, `opentelemetry_trace_id` and
    /// `opentelemetry_span_id`, for logs.
    set_ngx_var: bool,
}

/// Source of the ids of new traces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
enum TraceIdSource {
    #[default]
    Random,
    XRequestId,
}

/// A collector.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Collector {
    /// `HOST:PORT`, or a URI with `http://` or `https://`. Spans go to `/v1/traces` there, or to the service of `grpc`.
    address: String,
    /// The form of OTLP: `http`, or `grpc`, for which collectors mostly have the port 4317. An extension.
    protocol: Protocol,
    /// Seconds for a request.
    #[schemars(range(min = 1))]
    request_timeout: u64,
    /// Further fields of requests: texts, numbers or booleans.
    request_headers: BTreeMap<String, serde_json::Value>,
}

impl Default for Collector {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:4318".to_owned(),
            protocol: Protocol::Http,
            request_timeout: 3,
            request_headers: BTreeMap::new(),
        }
    }
}

/// A form of OTLP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
enum Protocol {
    #[default]
    Http,
    Grpc,
}

/// Fields of calls that are none of the configuration's.
const OF_CALLS: [&str; 8] =
    ["te", "content-type", "host", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// The path of the method that takes spans.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Batches of spans.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Batches {
    /// No effect: what finds no room is dropped.
    drop_on_queue_full: Option<bool>,
    /// Most requests whose spans wait to be sent.
    #[schemars(range(min = 1))]
    max_queue_size: usize,
    /// Seconds after its first request at which a batch is sent.
    #[schemars(range(min = 0, max = 3600))]
    batch_timeout: f64,
    /// Seconds without a further request after which a batch is sent.
    #[schemars(range(min = 0, max = 3600))]
    inactive_timeout: f64,
    /// Requests after whose spans a batch is sent.
    #[schemars(range(min = 1))]
    max_export_batch_size: usize,
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            drop_on_queue_full: None,
            max_queue_size: 2048,
            batch_timeout: 5.0,
            inactive_timeout: 2.0,
            max_export_batch_size: 256,
        }
    }
}

impl Define for Opentelemetry {
    const NAME: &'static str = "opentelemetry";
    const PRIORITY: i32 = 12009;
    const PHASES: Phases = Phases::REWRITE.and(Phases::LOG);
    const DOC: &'static str = "\
Reports spans of exchanges to a collector of OpenTelemetry, over OTLP with Protocol Buffers, by HTTP or by gRPC. A request continues the \
trace of its `traceparent` (W3C Trace Context) or begins one, and the upstream receives a `traceparent` in any case. The \
spans of a request that is sampled are one for the whole exchange, with APISIX's attributes, and within it `apisix.request` \
for the time until the first try at a node, `apisix.upstream` for each try, with the times of its connection and of the head \
of the answer as events, and `apisix.response` for the rest.

Spans are sent in batches, and no request waits for that. A collector that answers with anything but 2xx, or with a status of \
gRPC other than 0, has not taken a batch; it is not sent again.

`plugin_metadata` has the collector, the attributes of the gateway (`resource`) and the batches, for all places:

```yaml
plugin_metadata:
  - id: opentelemetry
    collector: {address: \"127.0.0.1:4318\"}
    resource: {service.name: shop}
```";
    const EXAMPLE: &'static str = "\
sampler: {name: parent_base, options: {root: {name: trace_id_ratio, options: {fraction: 0.01}}}}
additional_attributes: [consumer_name]
additional_header_prefix_attributes: ['x-shop-*']
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        let mut found: Vec<Diagnostic> = Vec::new();
        if let Err(fault) = Exporter::new(&typed) {
            let top = fault.path.split('.').next().unwrap_or_default().to_owned();
            found.push(Diagnostic::error(metadata.mark_of(&top), fault.path, *fault.code));
        }
        if typed.batch_span_processor.drop_on_queue_full.is_some() {
            let code = Code::PluginRule { text: "it has no effect: what finds no room is dropped".into() };
            let mark = metadata.mark_of("batch_span_processor");
            found.push(Diagnostic::warning(mark, "batch_span_processor.drop_on_queue_full", code));
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut variables: Vec<(Box<str>, Variable)> = Vec::new();
        for (at, name) in conf.additional_attributes.into_iter().enumerate() {
            match Variable::parse(&name) {
                Ok(variable) => variables.push((name.into(), variable)),
                Err(error) => cx.warn(format!("additional_attributes[{at}]"), error.to_string()),
            }
        }
        let mut headers = Vec::new();
        for (at, name) in conf.additional_header_prefix_attributes.iter().enumerate() {
            let place = format!("additional_header_prefix_attributes[{at}]");
            match (name.strip_suffix('*').filter(|prefix| !prefix.is_empty()), FieldName::new(name)) {
                (Some(prefix), _) if FieldName::new(prefix).is_some() => {
                    headers.push(Header::Prefix(prefix.to_lowercase()))
                }
                (None, Some(field)) => headers.push(Header::One(name.to_lowercase(), field)),
                _ => {
                    cx.say([Invalid::new(place, "expected the name of a header, perhaps with '*' at its end")]);
                    return None;
                }
            }
        }
        let sampler = conf.sampler.sampler();
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Metadata>()?;
            let exporter = Exporter::new(&metadata)?;
            let options = exporter.channel(&metadata, hostname(), build.product);
            Ok(Tracing {
                sampler,
                variables: variables.into(),
                headers: headers.into(),
                takes_request_id: (metadata.trace_id_source == TraceIdSource::XRequestId)
                    .then(|| FieldName::constant("x-request-id")),
                tells: metadata.set_ngx_var,
                fields: w3c::Fields::default(),
                context: PerRequest::new(),
                channel: super::channel(options, build),
            })
        }))
    }
}

/// The collector and the resource, as the metadata says.
struct Exporter {
    uri: String,
    protocol: Protocol,
    fields: Vec<(String, String)>,
    resource: Vec<(String, Attribute)>,
}

impl Exporter {
    fn new(metadata: &Metadata) -> Result<Self, Invalid> {
        let address = metadata.collector.address.trim_end_matches('/');
        let base = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let protocol = metadata.collector.protocol;
        let uri = match protocol {
            Protocol::Http => format!("{base}/v1/traces"),
            Protocol::Grpc => format!("{base}{EXPORT}"),
        };
        Service::parse("collector", &uri, ServiceOptions::default())
            .map_err(|fault| Invalid { path: "collector.address".to_owned(), ..fault })?;
        let mut headers = BTreeMap::new();
        for (name, value) in &metadata.collector.request_headers {
            headers.insert(name.clone(), text_of("collector.request_headers", name, value)?);
        }
        check_headers("collector.request_headers", &headers)?;
        let mut fields = match protocol {
            Protocol::Http => vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())],
            Protocol::Grpc => {
                let own = headers.keys().find(|name| OF_CALLS.iter().any(|own| own.eq_ignore_ascii_case(name)));
                if let Some(name) = own {
                    let place = format!("collector.request_headers.{name}");
                    return Err(Invalid::new(place, "this field belongs to calls of gRPC, or to their connection"));
                }
                Vec::new()
            }
        };
        fields.extend(headers);
        let mut resource = Vec::new();
        for (name, value) in &metadata.resource {
            let attribute = match value {
                serde_json::Value::Bool(value) => Attribute::Boolean(*value),
                serde_json::Value::Number(number) => Attribute::Number(number.as_f64().unwrap_or_default()),
                _ => Attribute::Text(text_of("resource", name, value)?),
            };
            resource.push((name.clone(), attribute));
        }
        if !metadata.resource.contains_key("service.name") {
            resource.push(("service.name".to_owned(), Attribute::Text("APISIX".to_owned())));
        }
        Ok(Self { uri, protocol, fields, resource })
    }

    fn channel(mut self, metadata: &Metadata, hostname: &str, product: &str) -> ChannelOptions {
        let batches = &metadata.batch_span_processor;
        if !metadata.resource.contains_key("hostname") {
            self.resource.insert(0, ("hostname".to_owned(), Attribute::Text(hostname.to_owned())));
        }
        let version = product.rsplit('/').next().unwrap_or_default();
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let timeout = Duration::from_secs(metadata.collector.request_timeout);
        ChannelOptions {
            plugin: Opentelemetry::NAME,
            name: "opentelemetry".to_owned(),
            destination: match self.protocol {
                Protocol::Http => endpoints(vec![self.uri], &self.fields, timeout, true, Check::Success),
                Protocol::Grpc => Destination::Grpc(Post { uri: self.uri, fields: self.fields, timeout, verify: true }),
            },
            frame: otlp::frame(&self.resource, "weir", version),
            batch_records: batches.max_export_batch_size,
            batch_age: seconds(batches.batch_timeout),
            batch_idle: seconds(batches.inactive_timeout),
            max_pending: Some(batches.max_queue_size),
            retries: 0,
            retry_delay: Duration::ZERO,
        }
    }
}

/// The text of a value that is a text, a number or a boolean.
fn text_of(place: &str, name: &str, value: &serde_json::Value) -> Result<String, Invalid> {
    match value {
        serde_json::Value::String(text) => Ok(text.clone()),
        serde_json::Value::Number(number) => Ok(number.to_string()),
        serde_json::Value::Bool(value) => Ok(value.to_string()),
        _ => Err(Invalid::new(format!("{place}.{name}"), "expected a text, a number or a boolean")),
    }
}

/// Fields of requests that are attributes.
#[derive(Debug)]
enum Header {
    One(String, FieldName),
    /// All whose names begin so, in lower case.
    Prefix(String),
}

/// An instance.
#[derive(Debug)]
struct Tracing {
    sampler: Sampler,
    variables: Box<[(Box<str>, Variable)]>,
    headers: Box<[Header]>,
    /// The field with the ids of new traces.
    takes_request_id: Option<FieldName>,
    /// True if variables tell the trace.
    tells: bool,
    fields: w3c::Fields,
    context: PerRequest<TraceContext>,
    channel: Arc<Channel>,
}

impl Plugin for Tracing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let caller = self.fields.read(cx.request());
        let trace = match &caller {
            Some(caller) => caller.trace,
            None => self.new_trace(cx),
        };
        let context = TraceContext {
            trace,
            span: random_span(),
            parent: caller.as_ref().and_then(|caller| caller.span),
            is_sampled: self.sampler.decide(trace, caller.as_ref()),
        };
        let mut scratch = cx.take_scratch();
        if self.tells {
            push_traceparent(&context, &mut scratch);
            cx.set_traceparent(&scratch);
        }
        self.fields.write(&context, caller.is_some(), cx.request_mut(), &mut scratch);
        cx.put_scratch(scratch);
        if context.is_sampled {
            self.context.put(cx, context);
        }
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if let Some(context) = self.context.get(cx) {
            self.channel.report(|out| self.write(cx.view(), context, out));
        }
    }
}

impl Tracing {
    fn new_trace(&self, cx: &RequestCx<'_>) -> TraceId {
        let of_request = self.takes_request_id.as_ref().and_then(|name| {
            let id = match cx.request().field(name) {
                Some(id) => Some(id),
                None => match cx.variable(&Variable::RequestId) {
                    Some(Value::Bytes(id)) => Some(id),
                    _ => None,
                },
            };
            TraceId::of_request_id(id?)
        });
        of_request.unwrap_or_else(TraceId::random)
    }

    /// Appends the spans of an exchange.
    fn write(&self, x: View<'_>, context: &TraceContext, out: &mut Vec<u8>) {
        let (begin, end) = (unix_us(x, x.start()), unix_us(x, x.now()));
        let method = x.request().method_bytes();
        let path = match x.variable(&Variable::MatchedUri) {
            Some(Value::Bytes(path)) => path,
            _ => b"",
        };
        let name: [&[u8]; 3] = [method, if path.is_empty() { b"" } else { b" " }, path];
        otlp::push_span(out, &SpanHead::server(context, &name, begin, end), |span| {
            if let Some(state) = self.fields.state(x.request()) {
                span.state(state);
            }
            write_request(x, path, span);
            self.write_more(x, span);
            write_response(x, span);
        });
        let tries = x.tries();
        let first = tries.first().map_or(end, |attempt| unix_us(x, attempt.begin));
        otlp::push_span(out, &SpanHead::child(context, &[b"apisix.request"], INTERNAL, begin, first), |_| {});
        for attempt in tries {
            write_try(x, context, attempt, out);
        }
        if let Some(last) = tries.last().filter(|last| last.head > 0) {
            let head = unix_us(x, last.begin + last.head);
            otlp::push_span(out, &SpanHead::child(context, &[b"apisix.response"], INTERNAL, head, end), |_| {});
        }
    }

    fn write_more(&self, x: View<'_>, span: &mut Span<'_>) {
        for (name, variable) in &self.variables {
            if let Some(value) = x.variable(variable) {
                span.value(name, value);
            }
        }
        let request = x.request();
        for header in &self.headers {
            match header {
                Header::One(name, field) => {
                    if let Some(value) = request.field(field) {
                        span.text(name, value);
                    }
                }
                Header::Prefix(prefix) => {
                    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
                        let begins =
                            name.get(..prefix.len()).is_some_and(|b| b.eq_ignore_ascii_case(prefix.as_bytes()));
                        if let Some(name) = std::str::from_utf8(name).ok().filter(|_| begins) {
                            span.lowered(name, value);
                        }
                    }
                }
            }
        }
    }
}

fn write_request(x: View<'_>, path: &[u8], span: &mut Span<'_>) {
    let request = x.request();
    let scheme: &[u8] = if x.client().https { b"https" } else { b"http" };
    let agent = request.head.fields.get_known(request.buffer.bytes(), Known::UserAgent);
    span.text("net.host.name", request.host());
    // The names of before the conventions of 2023, and those since.
    span.text("http.method", request.method_bytes());
    span.text("http.scheme", scheme);
    span.text("http.target", request.request_uri());
    span.text("http.request.method", request.method_bytes());
    span.text("url.scheme", scheme);
    span.text("url.path", request.path());
    if let Some(agent) = agent {
        span.text("http.user_agent", agent);
        span.text("user_agent.original", agent);
    }
    if let Some(route) = x.route() {
        let mut named = |key: &str, named: Option<&weir_plugin::Named>| {
            if let Some(named) = named {
                span.text(key, named.text.as_bytes());
            }
        };
        named("apisix.route_id", Some(&route.id));
        named("apisix.route_name", route.name.as_ref());
        named("apisix.service_id", route.service_id.as_ref());
        named("apisix.service_name", route.service_name.as_ref());
        span.text("http.route", path);
    }
}

fn write_response(x: View<'_>, span: &mut Span<'_>) {
    let source = response_source(x);
    let status = x.response().status();
    span.text("apisix.response_source", source.as_bytes());
    span.number("http.status_code", u64::from(status));
    span.number("http.response.status_code", u64::from(status));
    if status >= 500 {
        let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
        span.error(&[source.as_bytes(), b" error: ", &digits]);
    }
}

/// Appends the span of a try at a node.
fn write_try(x: View<'_>, context: &TraceContext, attempt: &Try, out: &mut Vec<u8>) {
    let at = |offset: u64| unix_us(x, attempt.begin + offset);
    let last = attempt.end.max(attempt.head).max(attempt.connected);
    otlp::push_span(out, &SpanHead::child(context, &[b"apisix.upstream"], CLIENT, at(0), at(last)), |span| {
        match &attempt.addr {
            Some(NodeAddress::Tcp(address)) => {
                span.value("server.address", Value::Ip(address.ip()));
                span.number("server.port", u64::from(address.port()));
            }
            Some(NodeAddress::Unix(path)) => span.text("server.address", path.as_bytes()),
            None => {}
        }
        span.number("http.response.status_code", u64::from(attempt.status));
        if attempt.connected > 0 {
            span.event("connected", at(attempt.connected));
        }
        if attempt.head > 0 {
            span.event("response head", at(attempt.head));
        }
    });
}
