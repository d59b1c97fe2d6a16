//! `answers`: what Kong tells upstreams and clients of itself, and its bodies for failures.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::settings::{KongHeader, KongUpstreamHeader};
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Failure, Flow, HookCx, Origin, Phases, Plugin, RequestCx, ResponseCx, View,
};
use weir_wire::head::Version;
use weir_wire::name::FieldName;

use super::body::{self, Form};

/// The definition.
#[derive(Debug)]
pub(crate) struct Answers;

/// Nothing to configure: the fields are settings of the gateway.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {}

impl Define for Answers {
    const NAME: &'static str = "answers";
    const PRIORITY: i32 = i32::MAX;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Fields that Kong adds to requests and responses, and its bodies for failures.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(|build: &BuildCx<'_>| Ok(Words::new(build))))
    }
}

/// An instance.
#[derive(Debug)]
struct Words {
    /// Name and version.
    product: Vec<u8>,
    told: Told,
    via: FieldName,
    server: FieldName,
    request_id: FieldName,
    forwarded_host: FieldName,
    forwarded_path: FieldName,
    forwarded_prefix: FieldName,
    content_type: FieldName,
    upstream_latency: FieldName,
    proxy_latency: FieldName,
    response_latency: FieldName,
    upstream_status: FieldName,
    /// Fields of the gateway's own that Kong has not.
    foreign: [FieldName; 2],
}

/// The fields that the settings name.
#[derive(Debug)]
struct Told {
    via: bool,
    server: bool,
    request_id: bool,
    upstream_latency: bool,
    proxy_latency: bool,
    response_latency: bool,
    upstream_status: bool,
    /// Upstreams are told the id of a request.
    id_upstream: bool,
}

impl Words {
    fn new(build: &BuildCx<'_>) -> Self {
        let name = FieldName::constant;
        let has = |header| build.kong.has(header);
        Self {
            product: format!("kong/{}", build.kong.version).into_bytes(),
            told: Told {
                via: has(KongHeader::Via),
                server: has(KongHeader::Server),
                request_id: has(KongHeader::RequestId),
                upstream_latency: has(KongHeader::UpstreamLatency),
                proxy_latency: has(KongHeader::ProxyLatency),
                response_latency: has(KongHeader::ResponseLatency),
                upstream_status: has(KongHeader::UpstreamStatus),
                id_upstream: build.kong.headers_upstream.contains(&KongUpstreamHeader::RequestId),
            },
            via: name("Via"),
            server: name("Server"),
            request_id: name("X-Kong-Request-Id"),
            forwarded_host: name("X-Forwarded-Host"),
            forwarded_path: name("X-Forwarded-Path"),
            forwarded_prefix: name("X-Forwarded-Prefix"),
            content_type: name("Content-Type"),
            upstream_latency: name("X-Kong-Upstream-Latency"),
            proxy_latency: name("X-Kong-Proxy-Latency"),
            response_latency: name("X-Kong-Response-Latency"),
            upstream_status: name("X-Kong-Upstream-Status"),
            foreign: [name("X-APISIX-Upstream-Status"), name("X-Weir-Error")],
        }
    }
}

impl Plugin for Words {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        cx.need_times();
        let mut text = cx.take_scratch();
        if let Some(before) = cx.request().field(&self.via) {
            text.extend_from_slice(before);
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(match cx.request().head.version {
            Version::Http10 => b"1 ",
            Version::Http11 => b"1.1 ",
            _ => b"2 ",
        });
        text.extend_from_slice(&self.product);
        cx.request_mut().set_field(&self.via, &text);
        text.clear();
        if self.told.id_upstream {
            text.extend_from_slice(body::request_id(cx.source()));
            cx.request_mut().set_field(&self.request_id, &text);
            text.clear();
        } else {
            cx.request_mut().remove_field(&self.request_id);
        }
        text.extend_from_slice(cx.request().host());
        // That of a trusted proxy stays.
        if cx.request().field(&self.forwarded_host).is_none() && !text.is_empty() {
            cx.request_mut().set_field(&self.forwarded_host, &text);
        }
        text.clear();
        let path = cx.request().real_request_uri();
        let end = path.iter().position(|b| *b == b'?').unwrap_or(path.len());
        text.extend_from_slice(path.get(..end).unwrap_or_default());
        cx.request_mut().set_field(&self.forwarded_path, &text);
        cx.request_mut().remove_field(&self.forwarded_prefix);
        cx.put_scratch(text);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if let Origin::Failed(failure) = cx.response().origin {
            self.rewrite_failure(cx, failure);
        }
        for field in &self.foreign {
            cx.remove_field(field);
        }
        self.name_charset(cx);
        let mut text = cx.take_scratch();
        let is_proxied = match cx.response().origin {
            Origin::Upstream => true,
            Origin::Failed(failure) => matches!(failure.status, 502 | 504) && !cx.view().tries().is_empty(),
            Origin::Gateway | Origin::Nobody => false,
        };
        if is_proxied {
            let (proxy, upstream) = latencies(cx.view());
            if self.told.upstream_latency {
                self.set_number(cx, &self.upstream_latency, upstream, &mut text);
            }
            if self.told.proxy_latency {
                self.set_number(cx, &self.proxy_latency, proxy, &mut text);
            }
            if self.told.upstream_status {
                let status = cx.response().status().into();
                self.set_number(cx, &self.upstream_status, status, &mut text);
            }
            if self.told.via {
                text.clear();
                if let Some(before) = cx.response().field_str("via") {
                    text.extend_from_slice(before);
                    text.extend_from_slice(b", ");
                }
                text.extend_from_slice(b"1.1 ");
                text.extend_from_slice(&self.product);
                cx.set_field(&self.via, &text);
            }
        } else if self.told.response_latency {
            let total = cx.view().duration() / 1000;
            self.set_number(cx, &self.response_latency, total, &mut text);
        }
        text.clear();
        // Set anew, because a setting puts the gateway's own name in the place of the upstream's.
        match cx.response().field_str("server").filter(|_| cx.response().origin == Origin::Upstream) {
            Some(server) => text.extend_from_slice(server),
            None if self.told.server => text.extend_from_slice(&self.product),
            None => {}
        }
        match text.is_empty() {
            true => drop(cx.remove_field(&self.server)),
            false => cx.set_field(&self.server, &text),
        }
        if self.told.request_id {
            text.clear();
            text.extend_from_slice(body::request_id(cx.source()));
            cx.set_field(&self.request_id, &text);
        }
        cx.put_scratch(text);
        Flow::Continue
    }
}

impl Words {
    fn set_number(&self, cx: &mut ResponseCx<'_>, name: &FieldName, number: u64, text: &mut Vec<u8>) {
        text.clear();
        weir_wire::push_number(text, number);
        cx.set_field(name, text);
    }

    /// Puts Kong's body in the place of the gateway's own.
    fn rewrite_failure(&self, cx: &mut ResponseCx<'_>, failure: Failure) {
        // Errors that nginx makes in Kong are plain texts where the client says nothing; others are JSON.
        let by_nginx = matches!(failure.status, 400 | 413 | 414 | 431 | 502 | 504);
        let field = |name: &str| cx.request().field_str(name);
        let content_type = || field("content-type").and_then(|kind| Form::of_type(kind.split(|b| *b == b';').next()?));
        let form = match field("accept") {
            Some(accept) => Form::accepted(accept),
            None if by_nginx => content_type().unwrap_or(Form::Plain),
            None => Form::Json,
        };
        let mut text = cx.take_scratch();
        form.write(message(failure), body::request_id(cx.source()), &mut text);
        cx.replace_body(&text);
        cx.put_scratch(text);
        cx.set_field(&self.content_type, form.content_type());
    }

    /// Adds the charset that nginx adds to some media types.
    fn name_charset(&self, cx: &mut ResponseCx<'_>) {
        const TYPES: [&[u8]; 4] = [b"text/html", b"text/plain", b"text/xml", b"application/javascript"];
        let Some(kind) = cx.response().field_str("content-type").filter(|kind| TYPES.contains(kind)) else { return };
        let Some(kind) = TYPES.iter().find(|known| **known == kind) else { return };
        let mut text = cx.take_scratch();
        text.extend_from_slice(kind);
        text.extend_from_slice(b"; charset=UTF-8");
        cx.set_field(&self.content_type, &text);
        cx.put_scratch(text);
    }
}

/// Milliseconds from the beginning of a request to the first try at an upstream, and from there to the head of the
/// response.
fn latencies(exchange: View<'_>) -> (u64, u64) {
    let begin = exchange.upstream_start().unwrap_or_else(|| exchange.now());
    let head = exchange.tries().last().filter(|attempt| attempt.head > 0);
    let end = head.map_or_else(|| exchange.now(), |attempt| attempt.begin + attempt.head);
    (begin.saturating_sub(exchange.start()) / 1000, end.saturating_sub(begin) / 1000)
}

/// Kong's words for a failure.
fn message(failure: Failure) -> &'static str {
    match (failure.status, failure.reason) {
        (503, "route has no upstream") => "no Service found with those values",
        (503, "upstream has no node") => "failure to get a peer from the ring-balancer",
        (400, _) => "Bad request",
        (401, _) => "Unauthorized",
        (403, _) => "Forbidden",
        (404, _) => "Not found",
        (405, _) => "Method not allowed",
        (408, _) => "Request timeout",
        (411, _) => "Length required",
        (413, _) => "Payload too large",
        (414, _) => "URI too long",
        (415, _) => "Unsupported media type",
        (417, _) => "Expectation failed",
        (426, _) => "Upgrade required",
        (429, _) => "Too many requests",
        (431, _) => "Request header or cookie too large",
        (502, _) => "An invalid response was received from the upstream server",
        (503, _) => "The upstream server is currently unavailable",
        (504, _) => "The upstream server is timing out",
        _ => "An unexpected error occurred",
    }
}
