//! `opa`: a policy of Open Policy Agent decides whether a request may pass.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use weir_expr::{Value, Variable};
use weir_plugin::{
    Callout, CalloutError, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx,
    Service,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::service_conf::ServiceConf;
use crate::observe::entry::{write_arguments, write_fields};
use crate::observe::json::{Object, push_object, push_string, push_value};

/// The definition.
#[derive(Debug)]
pub(crate) struct Opa;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The server, such as `http://127.0.0.1:8181`.
    host: String,
    /// Path of the policy, such as `shop/authz`: its document is asked for at `/v1/data/shop/authz`.
    policy: String,
    /// Milliseconds until the server has to have answered, connecting included.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 60_000))]
    timeout: u64,
    #[serde(flatten)]
    service: ServiceConf,
    /// Names of fields that the upstream receives from `headers` of the decision. They replace the client's; one that the
    /// decision lacks is taken out of the request.
    #[schemars(length(min = 1))]
    send_headers_upstream: Option<Vec<String>>,
    /// Tells the policy of the route: `id`, `name`, `uris`, `hosts` and `service_id`.
    #[serde(default)]
    with_route: bool,
    /// Tells the policy of the service: `id` and `name`.
    #[serde(default)]
    with_service: bool,
    /// Tells the policy of the consumer: `username`, `group_id` and `labels`.
    #[serde(default)]
    with_consumer: bool,
}

fn timeout() -> u64 {
    3000
}

impl Define for Opa {
    const NAME: &'static str = "opa";
    const PRIORITY: i32 = 2001;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Asks a policy of Open Policy Agent whether a request may pass. Its `input` has the `request` (`scheme`, `method`, `host`, \
`port`, `path`, `headers`, `query`) and `var` (`server_addr`, `server_port`, `remote_addr`, `remote_port`, `timestamp`), and \
what `with_route`, `with_service` and `with_consumer` ask for.

The decision is an object: with `allow: true` the request passes; else it is refused with `status_code` (403), `headers`, and \
`reason`, a text or JSON, as the body.

```rego
package shop.authz
default allow := false
allow if input.request.method == \"GET\"
reason := \"only reading\"
```

A server that does not answer within `timeout` refuses the request with 403, and one whose answer is no decision with 503.";
    const EXAMPLE: &'static str = "\
host: http://127.0.0.1:8181
policy: shop/authz
with_consumer: true
send_headers_upstream: [X-User-Role]
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let timeout = Duration::from_millis(conf.timeout);
        let options = conf.service.options(timeout);
        if conf.host.starts_with("https://") && !options.verify {
            cx.warn("ssl_verify", "anybody on the way can answer in the place of the server");
        }
        let policy = conf.policy.trim_matches('/');
        let uri = format!("{}/v1/data/{policy}", conf.host.trim_end_matches('/'));
        let is_path = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#');
        if policy.is_empty() || !policy.chars().all(is_path) {
            cx.say([Invalid::new("policy", "expected the path of a policy, such as shop/authz")]);
            return None;
        }
        let service = cx.ok(Service::parse("host", &uri, options));
        let name = |(at, name): (usize, &String)| {
            let place = format!("send_headers_upstream[{at}]");
            FieldName::new(name).ok_or_else(|| Invalid::new(place, "expected the name of a field"))
        };
        let names = conf.send_headers_upstream.iter().flatten().enumerate().map(name).collect::<Result<Box<[_]>, _>>();
        let (service, to_upstream) = (service?, cx.ok(names)?);
        Some(Compiled::build(move |build| {
            Ok(Asking {
                service: service.build(build)?,
                timeout,
                to_upstream,
                with_route: conf.with_route,
                with_service: conf.with_service,
                with_consumer: conf.with_consumer,
                content_type: FieldName::constant("Content-Type"),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Asking {
    service: Service,
    timeout: Duration,
    to_upstream: Box<[FieldName]>,
    with_route: bool,
    with_service: bool,
    with_consumer: bool,
    content_type: FieldName,
}

impl Plugin for Asking {
    fn access(&self, _: &mut RequestCx<'_>) -> Flow {
        Flow::Suspend
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let answer = match io.callout(self.question(cx)).await {
                Ok(answer) => answer,
                Err(CalloutError::Busy) => return cx.fail(503, "opa: too many callouts under way"),
                Err(_) => return cx.fail(403, "opa: no answer from the server"),
            };
            let decision = serde_json::from_slice::<Map<String, Json>>(answer.body()).ok();
            match decision.as_ref().and_then(|decision| decision.get("result")?.as_object()) {
                Some(result) => self.follow(cx, result),
                None => cx.fail(503, "opa: the answer of the server is no decision"),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The callout ends before, by its own timeout.
        Some(self.timeout + Duration::from_secs(5))
    }
}

impl Asking {
    fn question(&self, cx: &RequestCx<'_>) -> Callout {
        let mut callout = self.service.callout(Method::Post);
        callout.set_timeout(self.timeout);
        callout.set_field(&self.content_type, b"application/json");
        let mut body = Vec::with_capacity(1024);
        push_object(&mut body, |object| object.nested("input", |input| self.write_input(cx, input)));
        callout.set_body(&body);
        callout
    }

    fn write_input(&self, cx: &RequestCx<'_>, input: &mut Object<'_>) {
        push_string(input.key("type"), b"http");
        input.nested("request", |object| write_request(cx, object));
        input.nested("var", |object| {
            for (key, variable) in [
                ("server_addr", Variable::ServerAddr),
                ("server_port", Variable::ServerPort),
                ("remote_addr", Variable::RemoteAddr),
                ("remote_port", Variable::RemotePort),
            ] {
                if let Some(value) = cx.variable(&variable) {
                    push_text(object.key(key), value);
                }
            }
            push_value(object.key("timestamp"), Value::Number(cx.unix_ms() / 1000));
        });
        let texts = |out: &mut Vec<u8>, texts: &mut dyn Iterator<Item = &str>| {
            out.push(b'[');
            for (at, text) in texts.enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                push_string(out, text.as_bytes());
            }
            out.push(b']');
        };
        let route = weir_plugin::HookCx::view(cx).route();
        if let Some(route) = route.filter(|_| self.with_route) {
            input.nested("route", |object| {
                push_string(object.key("id"), route.id.text.as_bytes());
                if let Some(name) = &route.name {
                    push_string(object.key("name"), name.text.as_bytes());
                }
                if let Some(service) = &route.service_id {
                    push_string(object.key("service_id"), service.text.as_bytes());
                }
                texts(object.key("uris"), &mut route.paths.iter().map(|path| &*path.text));
                texts(object.key("hosts"), &mut route.hosts.iter().map(|host| &*host.text));
            });
        }
        if let Some((route, service)) =
            route.filter(|_| self.with_service).and_then(|r| Some((r, r.service_id.as_ref()?)))
        {
            input.nested("service", |object| {
                push_string(object.key("id"), service.text.as_bytes());
                if let Some(name) = &route.service_name {
                    push_string(object.key("name"), name.text.as_bytes());
                }
            });
        }
        let tables = cx.tables();
        let consumer = tables.as_ref().filter(|_| self.with_consumer).and_then(|tables| cx.consumer_in(tables));
        if let Some(consumer) = consumer {
            input.nested("consumer", |object| {
                push_string(object.key("username"), consumer.name.text.as_bytes());
                if let Some(group) = &consumer.group_id {
                    push_string(object.key("group_id"), group.as_bytes());
                }
                object.nested("labels", |labels| {
                    for (name, value) in consumer.labels() {
                        push_string(labels.escaped_key(name.as_bytes()), value.as_bytes());
                    }
                });
            });
        }
    }

    fn follow(&self, cx: &mut RequestCx<'_>, result: &Map<String, Json>) -> Flow {
        let headers = result.get("headers").and_then(Json::as_object);
        if result.get("allow").and_then(Json::as_bool) == Some(true) {
            for name in &self.to_upstream {
                let told = headers.into_iter().flatten();
                let value = told
                    .filter(|(told, _)| told.as_bytes().eq_ignore_ascii_case(name.text()))
                    .find_map(|(_, v)| text_of(v));
                match value.filter(|text| text.bytes().all(weir_wire::is_field_byte)) {
                    Some(text) => cx.request_mut().set_field(name, text.as_bytes()),
                    None => cx.request_mut().remove_field(name),
                }
            }
            return Flow::Continue;
        }
        let status = result.get("status_code").and_then(Json::as_u64).filter(|status| (200..=599).contains(status));
        let mut reply = cx.reply(status.map_or(403, |status| status as u16));
        for (name, value) in headers.into_iter().flatten() {
            let values = match value {
                Json::Array(values) => values.iter().filter_map(text_of).collect(),
                value => Vec::from_iter(text_of(value)),
            };
            let Some(name) = FieldName::new(name).filter(|name| !is_framing(name)) else { continue };
            for value in values.iter().filter(|value| value.bytes().all(weir_wire::is_field_byte)) {
                reply = reply.named(&name, value.as_bytes());
            }
        }
        match result.get("reason") {
            None | Some(Json::Null) => reply.done(),
            Some(Json::String(reason)) => reply.body(reason.as_bytes()).done(),
            Some(reason) => reply.body(reason.to_string().as_bytes()).done(),
        }
    }
}

fn write_request(cx: &RequestCx<'_>, object: &mut Object<'_>) {
    let request = cx.request();
    push_string(object.key("scheme"), if cx.client().https { b"https" } else { b"http" });
    push_string(object.key("method"), request.method_bytes());
    push_string(object.key("host"), request.host());
    let port = request.port().and_then(|port| std::str::from_utf8(port).ok()?.parse::<u64>().ok());
    push_value(object.key("port"), Value::Number(port.unwrap_or(u64::from(cx.client().local.port()))));
    push_string(object.key("path"), request.path());
    let base = request.buffer.bytes();
    object.nested("headers", |headers| write_fields(|| request.head.fields.iter(base), headers));
    object.nested("query", |arguments| write_arguments(request, arguments));
}

/// Appends a value as a text, as nginx has all its variables.
fn push_text(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Bytes(text) => push_string(out, text),
        other => {
            out.push(b'"');
            other.write_to(out);
            out.push(b'"');
        }
    }
}

/// The text of a value of a field.
fn text_of(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// True for a field that frames the message.
fn is_framing(name: &FieldName) -> bool {
    let framing: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"connection", b"upgrade"];
    framing.iter().any(|own| name.text().eq_ignore_ascii_case(own))
}
