//! What loggers report of an exchange: APISIX's entry, or fields of one's own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value as Json;
use weir_expr::{Source, Template, Value, Variable};
use weir_plugin::{Exchange, Invalid};
use weir_wire::query::{self, Argument};

use super::json::{Object, push_seconds_as_millis, push_string, push_value};

/// How deep objects in a format may be nested; APISIX cuts deeper ones off.
const DEPTH: usize = 5;

/// Fields that a configuration makes of variables.
pub(crate) type Format = BTreeMap<String, Json>;

/// A value of a format.
#[derive(Debug)]
enum Shape {
    Constant(Box<str>),
    /// Kept out when the variable is not set.
    Variable(Variable),
    Template(Template),
    Object(Fields),
}

/// The fields of a format, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Fields(Box<[(Box<str>, Shape)]>);

impl Fields {
    /// Compiles a format, which stands at `place`.
    pub(crate) fn new(place: &str, format: &Format) -> Result<Self, Invalid> {
        Self::compiled(place, format.iter(), 1)
    }

    fn compiled<'a>(
        place: &str,
        fields: impl Iterator<Item = (&'a String, &'a Json)>,
        depth: usize,
    ) -> Result<Self, Invalid> {
        let compiled = fields.map(|(key, value)| {
            let place = format!("{place}.{key}");
            let shape = match value {
                Json::String(text) => Shape::of_text(&place, text)?,
                Json::Object(_) if depth >= DEPTH => {
                    return Err(Invalid::new(place, format!("objects are nested up to {DEPTH} deep")));
                }
                Json::Object(map) => Shape::Object(Self::compiled(&place, map.iter(), depth + 1)?),
                _ => return Err(Invalid::new(place, "expected a text, or an object of texts")),
            };
            Ok((key.as_str().into(), shape))
        });
        Ok(Self(compiled.collect::<Result<_, Invalid>>()?))
    }

    fn write(&self, source: &dyn Source, object: &mut Object<'_>) {
        for (key, shape) in &self.0 {
            match shape {
                Shape::Constant(text) => push_string(object.key(key), text.as_bytes()),
                Shape::Variable(variable) => {
                    if let Some(value) = source.variable(variable) {
                        push_value(object.key(key), value);
                    }
                }
                Shape::Template(template) => {
                    let mut text = Vec::new();
                    template.render(source, &mut text);
                    push_string(object.key(key), &text);
                }
                Shape::Object(fields) => object.nested(key, |object| fields.write(source, object)),
            }
        }
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(own, _)| &**own == key)
    }
}

impl Shape {
    fn of_text(place: &str, text: &str) -> Result<Self, Invalid> {
        if let Some(variable) = text.strip_prefix('$').and_then(|name| Variable::parse(name).ok()) {
            return Ok(Self::Variable(variable));
        }
        let template = Template::parse_lenient(text, false);
        let template = template.map_err(|error| Invalid::new(place, error.to_string()))?;
        match template.literal() {
            Some(_) => Ok(Self::Constant(text.into())),
            None => Ok(Self::Template(template)),
        }
    }
}

/// What an entry is made of.
#[derive(Debug)]
pub(crate) struct Entry {
    /// In the place of APISIX's own fields.
    pub(crate) format: Option<Fields>,
    /// Laid over them.
    pub(crate) extra: Fields,
    /// The version of the gateway.
    pub(crate) version: Box<str>,
}

/// The bodies that stand in an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bodies<'a> {
    pub(crate) request: Option<&'a [u8]>,
    pub(crate) response: Option<&'a [u8]>,
}

macro_rules! variables {
    ($($name:ident = $text:literal;)+) => {
        $(static $name: LazyLock<Option<Variable>> = LazyLock::new(|| Variable::parse($text).ok());)+
    };
}

variables! {
    HOSTNAME = "hostname";
    SERVER_PORT = "server_port";
    UPSTREAM_ADDR = "upstream_addr";
    STATUS = "status";
}

fn known<'x>(x: &'x Exchange, variable: &'static LazyLock<Option<Variable>>) -> Option<Value<'x>> {
    x.variable(variable.as_ref()?)
}

impl Entry {
    /// Appends the entry of an exchange that is over.
    pub(crate) fn write(&self, x: &Exchange, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        let mut entry = Object::begin(out);
        match &self.format {
            Some(format) => {
                format.write(x, &mut entry);
                write_ids(x, &mut entry);
            }
            None => self.write_all(x, bodies, &mut entry),
        }
        entry.end();
    }

    fn write_all(&self, x: &Exchange, bodies: Bodies<'_>, entry: &mut Object<'_>) {
        let over = |key: &str| self.extra.has(key);
        if !over("request") {
            entry.nested("request", |object| write_request(x, bodies.request, object));
        }
        if !over("response") {
            entry.nested("response", |object| write_response(x, bodies.response, object));
        }
        if !over("server") {
            entry.nested("server", |object| {
                if let Some(name) = known(x, &HOSTNAME) {
                    push_value(object.key("hostname"), name);
                }
                push_string(object.key("version"), self.version.as_bytes());
            });
        }
        if !over("upstream")
            && let Some(address) = known(x, &UPSTREAM_ADDR)
        {
            push_value(entry.key("upstream"), address);
        }
        match x.route() {
            Some(route) => {
                let service = route.service_id.as_ref().map_or("", |id| &*id.text);
                if !over("service_id") {
                    push_string(entry.key("service_id"), service.as_bytes());
                }
                if !over("route_id") {
                    push_string(entry.key("route_id"), route.id.text.as_bytes());
                }
            }
            None if !over("service_id") => push_string(entry.key("service_id"), x.request.host()),
            None => {}
        }
        if let Some(consumer) = x.consumer().filter(|_| !over("consumer")) {
            entry.nested("consumer", |object| push_string(object.key("username"), consumer.name.text.as_bytes()));
        }
        if !over("client_ip") {
            push_string(entry.key("client_ip"), x.client.addr_text.as_bytes());
        }
        if !over("start_time") {
            push_value(entry.key("start_time"), Value::Number(x.times.unix_ms));
        }
        let latency = x.times.now.saturating_sub(x.times.start);
        let upstream = x.upstream_us();
        if !over("latency") {
            push_seconds_as_millis(entry.key("latency"), latency);
        }
        if let Some(upstream) = upstream.filter(|_| !over("upstream_latency")) {
            push_seconds_as_millis(entry.key("upstream_latency"), upstream);
        }
        if !over("apisix_latency") {
            push_seconds_as_millis(entry.key("apisix_latency"), latency.saturating_sub(upstream.unwrap_or(0)));
        }
        self.extra.write(x, entry);
    }
}

/// The ids that APISIX adds to fields of one's own.
fn write_ids(x: &Exchange, entry: &mut Object<'_>) {
    let Some(route) = x.route() else { return };
    if let Some(service) = &route.service_id {
        push_string(entry.key("service_id"), service.text.as_bytes());
    }
    push_string(entry.key("route_id"), route.id.text.as_bytes());
}

fn write_request(x: &Exchange, body: Option<&[u8]>, object: &mut Object<'_>) {
    let request = &x.request;
    let uri = request.request_uri();
    let scheme: &[u8] = if x.client.https { b"https" } else { b"http" };
    let url = object.key("url");
    url.push(b'"');
    let begin = url.len();
    url.extend_from_slice(scheme);
    url.extend_from_slice(b"://");
    url.extend_from_slice(request.host());
    url.push(b':');
    if let Some(port) = known(x, &SERVER_PORT) {
        port.write_to(url);
    }
    url.extend_from_slice(uri);
    super::json::end_string(url, begin);
    push_string(object.key("uri"), uri);
    push_string(object.key("method"), request.method_bytes());
    let base = request.buffer.bytes();
    object.nested("headers", |headers| write_fields(|| request.head.fields.iter(base), headers));
    object.nested("querystring", |arguments| write_arguments(request.query().unwrap_or_default(), arguments));
    push_value(object.key("size"), Value::Number(x.received));
    if let Some(body) = body {
        push_string(object.key("body"), body);
    }
}

fn write_response(x: &Exchange, body: Option<&[u8]>, object: &mut Object<'_>) {
    match known(x, &STATUS) {
        Some(status) => push_value(object.key("status"), status),
        None => push_value(object.key("status"), Value::Number(u64::from(x.response.status()))),
    }
    let base = x.response.buffer.bytes();
    object.nested("headers", |headers| write_fields(|| x.response.head.fields.iter(base), headers));
    push_value(object.key("size"), Value::Number(x.sent));
    if let Some(body) = body {
        push_string(object.key("body"), body);
    }
}

/// The fields of a message: names in lower case, a list where one comes several times.
fn write_fields<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(fields: impl Fn() -> I, object: &mut Object<'_>) {
    for (at, (name, value)) in fields().enumerate() {
        let same = |(other, _): &(&[u8], &[u8])| other.eq_ignore_ascii_case(name);
        if fields().take(at).any(|field| same(&field)) {
            continue;
        }
        let mut more = fields().skip(at + 1).filter(same).peekable();
        let out = object.lowered_key(name);
        if more.peek().is_none() {
            push_string(out, value);
            continue;
        }
        out.push(b'[');
        push_string(out, value);
        for (_, value) in more {
            out.push(b',');
            push_string(out, value);
        }
        out.push(b']');
    }
}

/// The arguments of a query, decoded; one without a value is `true`.
fn write_arguments(query: &[u8], object: &mut Object<'_>) {
    if query.is_empty() {
        return;
    }
    let mut room = Vec::new();
    let decoded = if query::is_plain(query) {
        query
    } else {
        query::decode(query, &mut room);
        &room
    };
    let all = || query::all(query, decoded);
    for (at, (name, value)) in all().enumerate() {
        if name.is_empty() || all().take(at).any(|(other, _)| other == name) {
            continue;
        }
        let mut more = all().skip(at + 1).filter(|(other, _)| *other == name).peekable();
        let out = object.escaped_key(name);
        if more.peek().is_none() {
            push_argument(out, &value);
            continue;
        }
        out.push(b'[');
        push_argument(out, &value);
        for (_, value) in more {
            out.push(b',');
            push_argument(out, &value);
        }
        out.push(b']');
    }
}

fn push_argument(out: &mut Vec<u8>, argument: &Argument<'_>) {
    match argument {
        Argument::Flag => out.extend_from_slice(b"true"),
        Argument::Value(value) => push_string(out, value),
    }
}
