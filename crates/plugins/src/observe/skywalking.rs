//! `skywalking`: segments of traces, to Apache SkyWalking.

mod carrier;

use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::Value;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, LogCx, PerRequest, Phases, Plugin, RequestCx, Try, View, hostname,
};
use weir_telemetry::reports::{Channel, ChannelOptions, Check, Frame};
use weir_wire::name::FieldName;

use super::collectors::{collector, endpoints};
use super::json::{Object, push_string, push_value};
use super::trace::sampler::Share;
use super::trace::{TraceId, unix_us};
use carrier::{Carrier, Sender};

/// The definition.
#[derive(Debug)]
pub(crate) struct Skywalking;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Share of the requests that are reported.
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
}

impl Default for Conf {
    fn default() -> Self {
        Self { sample_ratio: 1.0 }
    }
}

/// `plugin_metadata` of the plugin: `plugin_attr.skywalking` in APISIX's `config.yaml`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Name of the gateway among the services.
    service_name: String,
    /// Name of the instance; `$hostname` is the name of the machine.
    service_instance_name: String,
    /// The OAP server.
    endpoint_addr: String,
    /// Seconds between reports.
    #[schemars(range(min = 1, max = 3600))]
    report_interval: u64,
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            service_name: "APISIX".to_owned(),
            service_instance_name: "APISIX Instance Name".to_owned(),
            endpoint_addr: "http://127.0.0.1:12800".to_owned(),
            report_interval: 3,
        }
    }
}

impl Define for Skywalking {
    const NAME: &'static str = "skywalking";
    const PRIORITY: i32 = 12010;
    const PHASES: Phases = Phases::REWRITE.and(Phases::LOG);
    const DOC: &'static str = "\
Reports a segment about exchanges to Apache SkyWalking (`/v3/segments` of its OAP server): a span of the request, and one of what the \
upstream took. A request continues the trace of its field `sw8`, or begins one; the upstream receives an `sw8` of the gateway's. \
A request that is not among the share `sample_ratio` passes as it came.

`plugin_metadata` says where reports go, and how the gateway is called. Segments are sent in batches, and no request waits for that. \
A server that answers with an error has not taken a batch; it is not sent again.

```yaml
plugin_metadata:
  - {id: skywalking, service_name: shop-gateway, service_instance_name: $hostname, endpoint_addr: 'http://127.0.0.1:12800'}
```";
    const EXAMPLE: &'static str = "sample_ratio: 0.01\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let read = weir_config::schema::read::<Metadata>(metadata)?;
        let mark = metadata.get("endpoint_addr").map_or(metadata.mark, |node| node.mark);
        let checked = collector("endpoint_addr", &read.endpoint_addr, "");
        checked.map(|_| ()).map_err(|invalid| vec![Diagnostic::error(mark, invalid.path, *invalid.code)])
    }

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Metadata>()?;
            let uri = collector("endpoint_addr", &metadata.endpoint_addr, "/v3/segments")?;
            let fields = [("Content-Type".to_owned(), "application/json".to_owned())];
            let options = ChannelOptions {
                plugin: Self::NAME,
                name: "skywalking".to_owned(),
                destination: endpoints(vec![uri], &fields, TIMEOUT, false, Check::NoError),
                frame: Frame::Array,
                batch_records: 1000,
                batch_age: Duration::from_secs(metadata.report_interval),
                batch_idle: Duration::from_secs(metadata.report_interval),
                max_pending: None,
                retries: 0,
                retry_delay: Duration::ZERO,
            };
            let instance = match metadata.service_instance_name.as_str() {
                "$hostname" => hostname().to_owned(),
                name => name.to_owned(),
            };
            Ok(Tracing {
                share: Share::new(conf.sample_ratio),
                service: metadata.service_name,
                instance,
                field: FieldName::constant("sw8"),
                begun: PerRequest::new(),
                channel: super::channel(options, build),
            })
        }))
    }
}

/// Limit of a request to the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The upstream, as APISIX calls it.
const PEER: &str = "upstream service";
/// SkyWalking's number of APISIX among the components.
const COMPONENT: u64 = 6002;

/// An instance. Reading and writing the field allocates.
#[derive(Debug)]
struct Tracing {
    share: Share,
    service: String,
    instance: String,
    field: FieldName,
    begun: PerRequest<Begun>,
    channel: Arc<Channel>,
}

/// State of a segment before the exchange is over.
#[derive(Debug)]
struct Begun {
    /// The caller's span.
    caller: Option<Carrier>,
    trace: String,
    segment: String,
}

fn random_id() -> String {
    let mut id = Vec::with_capacity(32);
    TraceId::random().write(&mut id);
    String::from_utf8(id).unwrap_or_default()
}

impl Plugin for Tracing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if !self.share.has(TraceId::random()) {
            return Flow::Continue;
        }
        let caller = cx.request().field(&self.field).and_then(Carrier::read);
        let trace = caller.as_ref().map_or_else(random_id, |caller| caller.trace.clone());
        let segment = random_id();
        let path = String::from_utf8_lossy(cx.request().path()).into_owned();
        let sent = Sender { trace: &trace, segment: &segment, service: &self.service, instance: &self.instance };
        let value = sent.write(&path, PEER);
        cx.request_mut().set_field(&self.field, value.as_bytes());
        self.begun.put(cx, Begun { caller, trace, segment });
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if let Some(begun) = self.begun.get(cx) {
            self.channel.report(|out| self.write(cx.view(), begun, out));
        }
    }
}

impl Tracing {
    /// Appends the segment of an exchange.
    fn write(&self, x: View<'_>, begun: &Begun, out: &mut Vec<u8>) {
        let mut segment = Object::begin(out);
        push_string(segment.key("traceId"), begun.trace.as_bytes());
        push_string(segment.key("traceSegmentId"), begun.segment.as_bytes());
        push_string(segment.key("service"), self.service.as_bytes());
        push_string(segment.key("serviceInstance"), self.instance.as_bytes());
        let spans = segment.key("spans");
        spans.push(b'[');
        entry(x, begun, spans);
        if let Some(last) = x.tries().last() {
            spans.push(b',');
            exit(x, last, spans);
        }
        spans.push(b']');
        segment.end();
    }
}

/// Appends the span of the request.
fn entry(x: View<'_>, begun: &Begun, out: &mut Vec<u8>) {
    let (status, mut span) = (x.response().status(), Object::begin(out));
    push_span(&mut span, x, ("Entry", 0), (x.start(), x.now()), status);
    if let Some(caller) = &begun.caller {
        let refs = span.key("refs");
        refs.push(b'[');
        let mut one = Object::begin(refs);
        push_string(one.key("refType"), b"CrossProcess");
        for (key, text) in [
            ("traceId", &caller.trace),
            ("parentTraceSegmentId", &caller.segment),
            ("parentService", &caller.service),
            ("parentServiceInstance", &caller.instance),
            ("parentEndpoint", &caller.endpoint),
            ("networkAddressUsedAtPeer", &caller.address),
        ] {
            push_string(one.key(key), text.as_bytes());
        }
        push_value(one.key("parentSpanId"), Value::Number(caller.span));
        one.end();
        refs.push(b']');
    }
    let mut url = Vec::new();
    url.extend_from_slice(if x.client().https { b"https://" } else { b"http://" });
    url.extend_from_slice(x.request().host());
    url.extend_from_slice(x.request().request_uri());
    let method = x.request().method_bytes();
    push_tags(&mut span, &[("http.method", method), ("http.params", &url)], Some(status));
    span.end();
}

/// Appends the span of the upstream, which its last try is.
fn exit(x: View<'_>, last: &Try, out: &mut Vec<u8>) {
    let end = if last.head > 0 { last.begin + last.head } else { x.now() };
    let (begin, status) = (last.begin, last.status);
    let mut span = Object::begin(out);
    push_span(&mut span, x, ("Exit", 1), (begin, end), status);
    push_string(span.key("peer"), PEER.as_bytes());
    push_tags(&mut span, &[], Some(status).filter(|status| *status > 0));
    span.end();
}

/// Appends what all spans have: a type and a number, times on the worker's clock, and a status of which 500 and above are an error.
fn push_span(span: &mut Object<'_>, x: View<'_>, (kind, number): (&str, u64), times: (u64, u64), status: u16) {
    let ms = |at: u64| Value::Number(unix_us(x, at) / 1000);
    push_string(span.key("operationName"), x.request().path());
    push_value(span.key("startTime"), ms(times.0));
    push_value(span.key("endTime"), ms(times.1));
    push_string(span.key("spanType"), kind.as_bytes());
    push_value(span.key("spanId"), Value::Number(number));
    // The span of the request has no parent.
    span.key("parentSpanId").extend_from_slice(if number == 0 { b"-1" } else { b"0" });
    span.key("isError").extend_from_slice(if status >= 500 || status == 0 { b"true" } else { b"false" });
    push_string(span.key("spanLayer"), b"Http");
    push_value(span.key("componentId"), Value::Number(COMPONENT));
}

fn push_tags(span: &mut Object<'_>, tags: &[(&str, &[u8])], status: Option<u16>) {
    let out = span.key("tags");
    out.push(b'[');
    let begin = out.len();
    let mut push = |key: &str, value: &[u8]| {
        if out.len() > begin {
            out.push(b',');
        }
        let mut tag = Object::begin(out);
        push_string(tag.key("key"), key.as_bytes());
        push_string(tag.key("value"), value);
        tag.end();
    };
    tags.iter().for_each(|(key, value)| push(key, value));
    if let Some(status) = status {
        let mut text = Vec::new();
        weir_wire::push_number(&mut text, u64::from(status));
        push("http.status", &text);
    }
    out.push(b']');
}
