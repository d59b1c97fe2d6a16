//! Entry that Kong's loggers report of an exchange.

pub(super) mod queue;
pub(super) mod severity;

use std::sync::Arc;

use weir_expr::Value;
use weir_plugin::{HookCx, LogCx, NodeAddress, Origin, Phases, Plugin, View};
use weir_telemetry::reports::Channel;

use super::body::request_id;
use crate::observe::entry::{write_arguments, write_fields};
use crate::observe::json::{Object, push_string, push_value};

/// An instance of a logger.
#[derive(Debug)]
pub(super) struct Logger(pub(super) Arc<Channel>);

impl Plugin for Logger {
    fn phases(&self, _: Phases) -> Phases {
        Phases::LOG
    }

    fn log(&self, cx: &LogCx<'_>) {
        self.0.report(|out| write(cx.view(), out));
    }
}

/// Appends the entry of an exchange that is over.
pub(super) fn write(x: View<'_>, out: &mut Vec<u8>) {
    let mut entry = Object::begin(out);
    let number =
        |object: &mut Object<'_>, key: &'static str, number: u64| push_value(object.key(key), Value::Number(number));
    entry.nested("request", |object| write_request(x, object));
    let mut target = Vec::new();
    x.request().write_upstream_target(&mut target);
    push_string(entry.key("upstream_uri"), &target);
    if let Some(attempt) = x.tries().last() {
        push_string(entry.key("upstream_status"), attempt.status.to_string().as_bytes());
    }
    entry.nested("response", |object| {
        number(object, "status", u64::from(x.response().status()));
        let base = x.response().buffer.bytes();
        object.nested("headers", |headers| write_fields(|| x.response().head.fields.iter(base), headers));
        number(object, "size", x.sent());
    });
    entry.nested("latencies", |object| {
        let total = x.duration() / 1000;
        let upstream = x.upstream_us().map(|us| us / 1000);
        number(object, "request", total);
        number(object, "kong", total.saturating_sub(upstream.unwrap_or(0)));
        match upstream {
            Some(upstream) => number(object, "proxy", upstream),
            None => object.key("proxy").extend_from_slice(b"-1"),
        }
    });
    write_tries(x, entry.key("tries"));
    if let Some(route) = x.route() {
        let name = |name: &Option<weir_plugin::Named>| name.as_ref().map(|name| name.text.to_string());
        write_named(&mut entry, "route", "name", &route.id.text, name(&route.name));
        if let Some(service) = &route.service_id {
            write_named(&mut entry, "service", "name", &service.text, name(&route.service_name));
        }
    }
    if let Some(consumer) = x.consumer() {
        entry.nested("consumer", |object| push_string(object.key("username"), consumer.name.text.as_bytes()));
    }
    push_string(entry.key("client_ip"), x.client().addr_text.as_bytes());
    number(&mut entry, "started_at", x.unix_ms());
    let source: &[u8] = if x.response().origin == Origin::Upstream { b"upstream" } else { b"kong" };
    push_string(entry.key("source"), source);
    entry.end();
}

fn write_request(x: View<'_>, object: &mut Object<'_>) {
    let request = x.request();
    push_string(object.key("id"), request_id(x.source()));
    let uri = request.real_request_uri();
    push_string(object.key("uri"), uri);
    let mut url = Vec::from(if x.client().https { &b"https://"[..] } else { b"http://" });
    url.extend_from_slice(request.host());
    url.push(b':');
    weir_wire::push_number(&mut url, u64::from(x.client().local.port()));
    url.extend_from_slice(uri);
    push_string(object.key("url"), &url);
    push_string(object.key("method"), request.method_bytes());
    object.nested("querystring", |arguments| write_arguments(request, arguments));
    let base = request.buffer.bytes();
    let shown = |(name, value)| {
        let is_secret =
            [&b"authorization"[..], b"proxy-authorization"].iter().any(|secret| secret.eq_ignore_ascii_case(name));
        (name, if is_secret { &b"REDACTED"[..] } else { value })
    };
    object.nested("headers", |headers| write_fields(|| request.head.fields.iter(base).map(shown), headers));
    push_value(object.key("size"), Value::Number(x.received()));
}

fn write_tries(x: View<'_>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, attempt) in x.tries().iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut object = Object::begin(out);
        if let Some(NodeAddress::Tcp(address)) = &attempt.addr {
            push_string(object.key("ip"), address.ip().to_string().as_bytes());
            push_value(object.key("port"), Value::Number(u64::from(address.port())));
        }
        push_value(object.key("code"), Value::Number(u64::from(attempt.status)));
        object.end();
    }
    out.push(b']');
}

/// An entity by its id and its name.
fn write_named(entry: &mut Object<'_>, key: &'static str, name_key: &'static str, id: &str, name: Option<String>) {
    entry.nested(key, |object| {
        push_string(object.key("id"), id.as_bytes());
        if let Some(name) = name {
            push_string(object.key(name_key), name.as_bytes());
        }
    });
}
