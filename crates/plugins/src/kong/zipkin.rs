//! Kong's `zipkin`: spans of exchanges, to a collector of Zipkin.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Value;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, NodeAddress, PerRequest, Phases, Plugin, RequestCx,
    Service, ServiceOptions, Try, View,
};
use weir_telemetry::reports::{Channel, Check, Frame};
use weir_wire::name::FieldName;

use super::consumer::id_of_consumer;
use super::log::queue::Queue;
use super::trace::{HeaderType, Propagation, response_field};
use crate::observe;
use crate::observe::collectors::endpoints;
use crate::observe::json::{Object, push_string, push_value};
use crate::observe::trace::sampler::Share;
use crate::observe::trace::{TraceContext, push_span, random_span, unix_us};

/// The definition.
#[derive(Debug)]
pub(crate) struct Zipkin;

/// A tag.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Tag {
    /// Its name.
    name: String,
    /// Its value.
    value: String,
}

/// Name of the span of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SpanName {
    Method,
    MethodPath,
}

/// The way in which the times of phases are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Flavor {
    Annotations,
    Tags,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The collector; without it nothing is reported, and the fields of requests are written all the same.
    http_endpoint: Option<String>,
    /// Name of the gateway among the services.
    local_service_name: String,
    /// Name of the service behind the gateway, where it has none.
    default_service_name: Option<String>,
    /// Share of the requests that are reported, of those that come without a caller's decision.
    #[schemars(range(min = 0, max = 1))]
    sample_ratio: f64,
    /// Bytes of the ids of new traces: 8 or 16.
    traceid_byte_count: u8,
    /// Format of the fields that are written: `preserve`, `ignore`, `b3`, `b3-single` or `w3c`.
    header_type: HeaderType,
    /// Format of the fields where a request tells none: `b3`, `b3-single` or `w3c`.
    default_header_type: HeaderType,
    /// Tells the consumer in a tag.
    include_credential: bool,
    /// Tags of every request.
    static_tags: Vec<Tag>,
    /// Header with further tags: `name=value`, with semicolons between them.
    tags_header: String,
    /// Name of the span of a request.
    http_span_name: SpanName,
    /// The way in which the times of phases are told.
    phase_duration_flavor: Flavor,
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
    queue: Queue,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            http_endpoint: None,
            local_service_name: "kong".into(),
            default_service_name: None,
            sample_ratio: 0.001,
            traceid_byte_count: 16,
            header_type: HeaderType::Preserve,
            default_header_type: HeaderType::B3,
            include_credential: true,
            static_tags: Vec::new(),
            tags_header: "Zipkin-Tags".into(),
            http_span_name: SpanName::Method,
            phase_duration_flavor: Flavor::Annotations,
            http_response_header_for_traceid: None,
            connect_timeout: 2000,
            send_timeout: 5000,
            read_timeout: 5000,
            queue: Queue::default(),
        }
    }
}

impl Define for Zipkin {
    const NAME: &'static str = "zipkin";
    const PRIORITY: i32 = 100_000;
    const PHASES: Phases = Phases::REWRITE.and(Phases::ACCESS).and(Phases::LOG);
    const DOC: &'static str = "Reports spans of exchanges to a collector of Zipkin.";
    const EXAMPLE: &'static str = "{http_endpoint: 'http://127.0.0.1:9411/api/v2/spans', sample_ratio: 0.01}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if let Some(uri) = &conf.http_endpoint {
            cx.say(Service::parse("http_endpoint", uri, ServiceOptions::default()).err());
        }
        if !matches!(conf.traceid_byte_count, 8 | 16) {
            cx.say([Invalid::new("traceid_byte_count", "expected one of: 8, 16")]);
        }
        let propagation = cx.ok(Propagation::new(conf.header_type, ("default_header_type", conf.default_header_type)));
        let told_in = cx.ok(response_field(conf.http_response_header_for_traceid.as_deref()));
        let tags_in = FieldName::new(&conf.tags_header);
        let tags_in = cx.ok(tags_in.ok_or_else(|| Invalid::new("tags_header", "expected the name of a header")));
        let (propagation, told_in, tags_in) = (propagation?, told_in?, tags_in?);
        Some(Compiled::build(move |build| {
            let channel = conf.http_endpoint.as_ref().map(|uri| {
                let fields = [("Content-Type".to_owned(), "application/json".to_owned())];
                let timeout = Duration::from_millis(conf.connect_timeout + conf.send_timeout + conf.read_timeout);
                let to = endpoints(vec![uri.clone()], &fields, timeout, false, Check::Success);
                observe::channel(conf.queue.channel((Self::NAME, uri.clone()), to, Frame::Array, (None, None)), build)
            });
            Ok(Tracing {
                propagation,
                share: Share::new(conf.sample_ratio),
                is_short: conf.traceid_byte_count == 8,
                told_in,
                tags_in,
                shown: Shown {
                    service: conf.local_service_name,
                    remote: conf.default_service_name,
                    tags: conf.static_tags,
                    tells_consumer: conf.include_credential,
                    name: conf.http_span_name,
                    phases: conf.phase_duration_flavor,
                },
                begun: PerRequest::new(),
                channel,
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Tracing {
    propagation: Propagation,
    share: Share,
    is_short: bool,
    told_in: Option<FieldName>,
    tags_in: FieldName,
    shown: Shown,
    begun: PerRequest<Begun>,
    /// `None` where nothing is reported.
    channel: Option<Arc<Channel>>,
}

/// Facts that spans show.
#[derive(Debug)]
struct Shown {
    service: String,
    remote: Option<String>,
    tags: Vec<Tag>,
    tells_consumer: bool,
    name: SpanName,
    phases: Flavor,
}

/// State of a trace before the exchange is over.
#[derive(Debug)]
struct Begun {
    context: TraceContext,
    /// Id of the span that is the upstream's parent.
    proxy: u64,
    /// End of the phase rewrite, on the worker's clock.
    rewritten: u64,
    /// End of the phase access.
    admitted: u64,
    /// Tags that the request has told.
    tags: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Plugin for Tracing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let told = self.propagation.read(cx.request());
        let context = Propagation::place(told, self.share, self.is_short);
        let now = cx.view().now();
        let proxy = random_span();
        let tags = if context.is_sampled { told_tags(cx.request().field(&self.tags_in)) } else { Vec::new() };
        // Of spans that are not reported the upstream's parent is the request's.
        let sent = match context.is_sampled {
            true => TraceContext { span: proxy, parent: Some(context.span), ..context },
            false => context,
        };
        self.propagation.write(told, &sent, cx);
        if let Some(field) = &self.told_in {
            cx.set_response_field(field, |out| context.trace.write(out));
        }
        self.begun.put(cx, Begun { context, proxy, rewritten: now, admitted: now, tags });
        Flow::Continue
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let now = cx.view().now();
        if let Some(begun) = self.begun.get_mut(cx) {
            begun.admitted = now;
        }
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        let Some(channel) = &self.channel else { return };
        let Some(begun) = self.begun.get(cx).filter(|begun| begun.context.is_sampled) else { return };
        let consumer = id_of_consumer(cx).filter(|_| self.shown.tells_consumer);
        channel.report(|out| self.shown.write(cx.view(), begun, consumer, out));
    }
}

/// Tags in the value of a field: `name=value; other=value`.
fn told_tags(value: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let parts = value.unwrap_or_default().split(|byte| *byte == b';').take(MOST_TAGS);
    let pair = |part: &[u8]| {
        let at = part.iter().position(|byte| *byte == b'=')?;
        let (name, value) = part.split_at(at);
        let name = weir_wire::trim_ows(name);
        (!name.is_empty()).then(|| (name.to_vec(), weir_wire::trim_ows(value.get(1..).unwrap_or_default()).to_vec()))
    };
    parts.filter_map(pair).collect()
}

/// Most tags that are read of a request.
const MOST_TAGS: usize = 32;

/// The parts of a span.
struct Span<'a> {
    name: Vec<u8>,
    kind: &'static [u8],
    id: u64,
    parent: Option<u64>,
    /// Begin and end, on the worker's clock.
    times: (u64, u64),
    /// The other end.
    remote: Option<(IpAddr, u16)>,
    remote_name: Option<&'a str>,
}

impl Shown {
    /// Appends the spans of an exchange, with commas between them.
    fn write(&self, x: View<'_>, begun: &Begun, consumer: Option<&[u8]>, out: &mut Vec<u8>) {
        let (start, end) = (x.start(), x.now());
        let mut name = x.request().method_bytes().to_vec();
        if self.name == SpanName::MethodPath {
            name.push(b' ');
            name.extend_from_slice(x.request().path());
        }
        let with = |more: &str| [&name[..], more.as_bytes()].concat();
        let client = x.client();
        let request = Span {
            name: name.clone(),
            kind: b"SERVER",
            id: begun.context.span,
            parent: begun.context.parent,
            times: (start, end),
            remote: Some((client.addr, client.port)),
            remote_name: None,
        };
        self.span(x, begun, &request, out, |span| {
            self.write_request(x, begun, consumer, span);
        });
        out.push(b',');
        let remote = x.route().and_then(|route| route.service_name.as_ref()).map(|name| &*name.text);
        let proxy = Span {
            name: with(" (proxy)"),
            kind: b"CLIENT",
            id: begun.proxy,
            parent: Some(begun.context.span),
            times: (begun.rewritten, end),
            remote: None,
            remote_name: remote.or(self.remote.as_deref()),
        };
        self.span(x, begun, &proxy, out, |span| self.write_proxy(x, begun, span));
        for (number, attempt) in x.tries().iter().enumerate() {
            out.push(b',');
            self.attempt(x, begun, (number + 1, attempt), with(&format!(" (balancer try {})", number + 1)), out);
        }
    }

    fn write_request(&self, x: View<'_>, begun: &Begun, consumer: Option<&[u8]>, span: &mut Object<'_>) {
        span.nested("tags", |tags| {
            push_string(tags.key("lc"), b"kong");
            push_string(tags.key("http.method"), x.request().method_bytes());
            push_string(tags.key("http.host"), x.request().host());
            push_string(tags.key("http.path"), x.request().path());
            push_string(tags.key("http.protocol"), protocol(x));
            push_text(tags.key("http.status_code"), u64::from(x.response().status()));
            if let Some(consumer) = consumer {
                push_string(tags.key("kong.consumer"), consumer);
            }
            for tag in &self.tags {
                push_string(tags.escaped_key(tag.name.as_bytes()), tag.value.as_bytes());
            }
            for (name, value) in &begun.tags {
                push_string(tags.escaped_key(name), value);
            }
            if self.phases == Flavor::Tags {
                push_text(tags.key("kong.rewrite.duration_ms"), begun.rewritten.saturating_sub(x.start()) / 1000);
            }
        });
        if self.phases == Flavor::Annotations {
            annotations(x, span, &[("kong.rewrite", x.start(), begun.rewritten)]);
        }
    }

    fn write_proxy(&self, x: View<'_>, begun: &Begun, span: &mut Object<'_>) {
        let end = x.now();
        let head = x.tries().last().filter(|last| last.head > 0).map_or(end, |last| last.begin + last.head);
        span.nested("tags", |tags| {
            if let Some(route) = x.route() {
                push_string(tags.key("kong.route"), route.id.text.as_bytes());
                let named = [("kong.route_name", &route.name), ("kong.service", &route.service_id)];
                for (key, value) in named.into_iter().chain([("kong.service_name", &route.service_name)]) {
                    if let Some(value) = value {
                        push_string(tags.key(key), value.text.as_bytes());
                    }
                }
            }
            if self.phases == Flavor::Tags {
                push_text(tags.key("kong.access.duration_ms"), begun.admitted.saturating_sub(begun.rewritten) / 1000);
                push_text(tags.key("kong.body_filter.duration_ms"), end.saturating_sub(head) / 1000);
            }
        });
        if self.phases == Flavor::Annotations {
            let phases = [("kong.access", begun.rewritten, begun.admitted), ("kong.body_filter", head, end)];
            annotations(x, span, &phases);
        }
    }

    fn attempt(&self, x: View<'_>, begun: &Begun, (number, attempt): (usize, &Try), name: Vec<u8>, out: &mut Vec<u8>) {
        let last = attempt.begin + attempt.end.max(attempt.head).max(attempt.connected);
        let remote = match &attempt.addr {
            Some(NodeAddress::Tcp(address)) => Some((address.ip(), address.port())),
            _ => None,
        };
        let parts = Span {
            name,
            kind: b"CLIENT",
            id: random_span(),
            parent: Some(begun.context.span),
            times: (attempt.begin, last),
            remote,
            remote_name: None,
        };
        self.span(x, begun, &parts, out, |span| {
            span.nested("tags", |tags| {
                push_text(tags.key("kong.balancer.try"), number as u64);
                push_text(tags.key("http.status_code"), u64::from(attempt.status));
            });
        });
    }

    fn span(
        &self,
        x: View<'_>,
        begun: &Begun,
        parts: &Span<'_>,
        out: &mut Vec<u8>,
        more: impl FnOnce(&mut Object<'_>),
    ) {
        let mut span = Object::begin(out);
        push_id(span.key("traceId"), |out| begun.context.trace.write(out));
        push_id(span.key("id"), |out| push_span(parts.id, out));
        if let Some(parent) = parts.parent {
            push_id(span.key("parentId"), |out| push_span(parent, out));
        }
        push_string(span.key("name"), &parts.name);
        push_string(span.key("kind"), parts.kind);
        let (begin, end) = parts.times;
        push_value(span.key("timestamp"), Value::Number(unix_us(x, begin)));
        push_value(span.key("duration"), Value::Number(end.saturating_sub(begin)));
        span.nested("localEndpoint", |endpoint| push_string(endpoint.key("serviceName"), self.service.as_bytes()));
        if parts.remote.is_some() || parts.remote_name.is_some() {
            span.nested("remoteEndpoint", |endpoint| {
                if let Some(name) = parts.remote_name {
                    push_string(endpoint.key("serviceName"), name.as_bytes());
                }
                if let Some((address, port)) = parts.remote {
                    let key = if address.is_ipv4() { "ipv4" } else { "ipv6" };
                    push_value(endpoint.key(key), Value::Ip(address));
                    push_value(endpoint.key("port"), Value::Number(u64::from(port)));
                }
            });
        }
        more(&mut span);
        span.end();
    }
}

/// Adds the begins and ends of phases.
fn annotations(x: View<'_>, span: &mut Object<'_>, phases: &[(&str, u64, u64)]) {
    let out = span.key("annotations");
    out.push(b'[');
    let points = phases.iter().flat_map(|(name, begin, end)| [(name, "start", *begin), (name, "finish", *end)]);
    for (at, (name, point, time)) in points.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut annotation = Object::begin(out);
        push_string(annotation.key("value"), format!("{name}.{point}").as_bytes());
        push_value(annotation.key("timestamp"), Value::Number(unix_us(x, time)));
        annotation.end();
    }
    out.push(b']');
}

fn protocol(x: View<'_>) -> &[u8] {
    match x.variable(&weir_expr::Variable::ServerProtocol) {
        Some(Value::Bytes(protocol)) => protocol,
        _ => b"",
    }
}

/// Appends a text that needs no escapes.
fn push_id(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'"');
    write(out);
    out.push(b'"');
}

/// Appends a number as a text.
fn push_text(out: &mut Vec<u8>, number: u64) {
    push_id(out, |out| weir_wire::push_number(out, number));
}

#[cfg(test)]
mod tests {
    use super::told_tags;

    #[test]
    fn tags_are_told_in_pairs() {
        let text = |pairs: Vec<(Vec<u8>, Vec<u8>)>| {
            let pair = |(name, value): &(Vec<u8>, Vec<u8>)| {
                format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            };
            pairs.iter().map(pair).collect::<Vec<_>>().join(",")
        };
        for (value, expected) in [("fg=blue; bg=red", "fg=blue,bg=red"), ("a", ""), ("=b;c=", "c="), ("a=b=c", "a=b=c")]
        {
            assert_eq!(text(told_tags(Some(value.as_bytes()))), expected, "{value}");
        }
        assert!(told_tags(None).is_empty());
    }
}
