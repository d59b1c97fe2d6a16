//! The entry that loggers report of an exchange: APISIX's, or fields of one's own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value as Json;
use weir_expr::{Source, Template, Value, Variable};
use weir_plugin::{Invalid, Request, View, hostname};
use weir_wire::push_number;
use weir_wire::query::Argument;

use super::json::{Object, end_string, push_object, push_seconds_as_millis, push_string, push_value};

/// Most levels of nested objects in a format; APISIX cuts deeper ones off.
const DEPTH: usize = 5;

/// Fields that a configuration makes of variables.
pub(crate) type Format = BTreeMap<String, Json>;

/// A value of a format.
#[derive(Debug)]
enum Shape {
    Constant,
    /// Kept out when the variable is not set.
    Variable(Variable),
    Template(Template),
    Object(Fields),
}

/// A field of a format.
#[derive(Debug)]
struct Field {
    key: Box<str>,
    /// The key as JSON, with its colon, and the value where that is a constant.
    json: Box<[u8]>,
    shape: Shape,
}

/// The fields of a format, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Fields(Box<[Field]>);

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
            let mut json = Vec::new();
            push_string(&mut json, key.as_bytes());
            json.push(b':');
            if let (Shape::Constant, Json::String(text)) = (&shape, value) {
                push_string(&mut json, text.as_bytes());
            }
            Ok(Field { key: key.as_str().into(), json: json.into(), shape })
        });
        Ok(Self(compiled.collect::<Result<_, Invalid>>()?))
    }

    /// Writes the fields into an object.
    pub(crate) fn write(&self, source: &dyn Source, object: &mut Object<'_>) {
        for Field { json, shape, .. } in &self.0 {
            match shape {
                Shape::Constant => {
                    object.written(json);
                }
                Shape::Variable(variable) => {
                    if let Some(value) = source.variable(variable) {
                        push_value(object.written(json), value);
                    }
                }
                Shape::Template(template) => {
                    let out = object.written(json);
                    out.push(b'"');
                    let begin = out.len();
                    template.render(source, out);
                    end_string(out, begin);
                }
                Shape::Object(fields) => push_object(object.written(json), |object| fields.write(source, object)),
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|field| &*field.key == key)
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
            Some(_) => Ok(Self::Constant),
            None => Ok(Self::Template(template)),
        }
    }
}

/// The parts of an entry.
#[derive(Debug)]
pub(crate) struct Entry {
    /// In the place of APISIX's own fields.
    pub(crate) format: Option<Fields>,
    /// Laid over them.
    pub(crate) extra: Fields,
    /// The field `server` as JSON.
    server: Box<[u8]>,
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
    UPSTREAM_ADDR = "upstream_addr";
}

fn known<'x>(x: View<'x>, variable: &'static LazyLock<Option<Variable>>) -> Option<Value<'x>> {
    x.variable(variable.as_ref()?)
}

impl Entry {
    /// Entries of a gateway of this version.
    pub(crate) fn new(format: Option<Fields>, extra: Fields, version: &str) -> Self {
        let mut server = b"\"server\":".to_vec();
        push_object(&mut server, |object| {
            push_string(object.key("hostname"), hostname().as_bytes());
            push_string(object.key("version"), version.as_bytes());
        });
        Self { format, extra, server: server.into() }
    }

    /// Appends the entry of an exchange that is over.
    pub(crate) fn write(&self, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        let mut entry = Object::begin(out);
        match &self.format {
            Some(format) => {
                format.write(x.source(), &mut entry);
                write_ids(x, &mut entry);
            }
            None => self.write_all(x, bodies, &mut entry),
        }
        entry.end();
    }

    fn write_all(&self, x: View<'_>, bodies: Bodies<'_>, entry: &mut Object<'_>) {
        let over = |key: &str| self.extra.has(key);
        if !over("request") {
            entry.nested("request", |object| write_request(x, bodies.request, object));
        }
        if !over("response") {
            entry.nested("response", |object| write_response(x, bodies.response, object));
        }
        if !over("server") {
            entry.written(&self.server);
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
            None if !over("service_id") => push_string(entry.key("service_id"), x.request().host()),
            None => {}
        }
        if let Some(consumer) = x.consumer().filter(|_| !over("consumer")) {
            entry.nested("consumer", |object| push_string(object.key("username"), consumer.name.text.as_bytes()));
        }
        if !over("client_ip") {
            push_string(entry.key("client_ip"), x.client().addr_text.as_bytes());
        }
        if !over("start_time") {
            push_number(entry.key("start_time"), x.unix_ms());
        }
        let latency = x.duration();
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
        self.extra.write(x.source(), entry);
    }
}

/// The ids that APISIX adds to fields of one's own.
fn write_ids(x: View<'_>, entry: &mut Object<'_>) {
    let Some(route) = x.route() else { return };
    if let Some(service) = &route.service_id {
        push_string(entry.key("service_id"), service.text.as_bytes());
    }
    push_string(entry.key("route_id"), route.id.text.as_bytes());
}

fn write_request(x: View<'_>, body: Option<&[u8]>, object: &mut Object<'_>) {
    let request = x.request();
    push_url(x, object.key("url"));
    push_string(object.key("uri"), request.request_uri());
    push_string(object.key("method"), request.method_bytes());
    let base = request.buffer.bytes();
    object.nested("headers", |headers| write_fields(|| request.head.fields.iter(base), headers));
    object.nested("querystring", |arguments| write_arguments(request, arguments));
    push_number(object.key("size"), x.received());
    if let Some(body) = body {
        push_string(object.key("body"), body);
    }
}

/// Appends the URL of a request as a text.
pub(crate) fn push_url(x: View<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    let begin = out.len();
    out.extend_from_slice(if x.client().https { b"https://" } else { b"http://" });
    out.extend_from_slice(x.request().host());
    out.push(b':');
    match x.client().local.port() {
        // A Unix socket.
        0 => {}
        port => push_number(out, u64::from(port)),
    }
    out.extend_from_slice(x.request().request_uri());
    end_string(out, begin);
}

fn write_response(x: View<'_>, body: Option<&[u8]>, object: &mut Object<'_>) {
    push_number(object.key("status"), u64::from(x.response().status()));
    let base = x.response().buffer.bytes();
    object.nested("headers", |headers| write_fields(|| x.response().head.fields.iter(base), headers));
    push_number(object.key("size"), x.sent());
    if let Some(body) = body {
        push_string(object.key("body"), body);
    }
}

/// The fields of a message: names in lower case, a list where one comes several times.
pub(crate) fn write_fields<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
    fields: impl Fn() -> I,
    object: &mut Object<'_>,
) {
    let repeated = Marks::repeated(fields().map(|(name, _)| name));
    for (at, (name, value)) in fields().enumerate() {
        if !repeated.has(name) {
            push_string(object.lowered_key(name), value);
            continue;
        }
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
pub(crate) fn write_arguments(request: &Request, object: &mut Object<'_>) {
    if request.query().is_none_or(<[u8]>::is_empty) {
        return;
    }
    let all = || request.arguments();
    let repeated = Marks::repeated(all().map(|(name, _)| name));
    for (at, (name, value)) in all().enumerate() {
        if name.is_empty() {
            continue;
        }
        if !repeated.has(name) {
            push_argument(object.escaped_key(name), &value);
            continue;
        }
        if all().take(at).any(|(other, _)| other == name) {
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

/// A set of names in one word, in which a name may share its bit with others: for a quick look whether names repeat.
#[derive(Debug, Clone, Copy, Default)]
struct Marks(u64);

impl Marks {
    /// The names that come more than once, and perhaps others.
    fn repeated<'n>(names: impl Iterator<Item = &'n [u8]>) -> Self {
        let (_, repeated) = names.fold((0, 0), |(seen, repeated), name| {
            let bit = Self::bit(name);
            (seen | bit, repeated | (seen & bit))
        });
        Self(repeated)
    }

    /// False for a name that comes only once.
    fn has(self, name: &[u8]) -> bool {
        self.0 & Self::bit(name) != 0
    }

    /// The bit of a name: the same for letters of either case.
    fn bit(name: &[u8]) -> u64 {
        let letter = |byte: Option<&u8>| byte.map_or(0, |byte| usize::from(byte | 0x20));
        let sum =
            name.len() * 7 + letter(name.first()) * 31 + letter(name.last()) * 11 + letter(name.get(name.len() / 2));
        1 << (sum % 64)
    }
}

fn push_argument(out: &mut Vec<u8>, argument: &Argument<'_>) {
    match argument {
        Argument::Flag => out.extend_from_slice(b"true"),
        Argument::Value(value) => push_string(out, value),
    }
}

#[cfg(test)]
mod tests {
    use super::{Object, write_fields};

    #[test]
    fn names_that_repeat_have_a_list_whoever_shares_their_mark() {
        let names: Vec<String> = (0..100).map(|number| format!("X-Field-{number}")).collect();
        let once = names.iter().map(|name| (name.as_bytes(), &b"1"[..]));
        let again: [(&[u8], &[u8]); 3] = [(b"x-field-7", b"2"), (b"X-FIELD-7", b"3"), (b"Via", b"4")];
        let mut out = Vec::new();
        let mut object = Object::begin(&mut out);
        write_fields(|| once.clone().chain(again), &mut object);
        object.end();
        let json: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(101));
        assert_eq!(out.windows(11).filter(|text| text == b"\"x-field-7\"").count(), 1, "a key comes once");
        assert_eq!((&json["x-field-7"], &json["x-field-8"]), (&serde_json::json!(["1", "2", "3"]), &"1".into()));
    }
}
