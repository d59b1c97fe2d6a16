//! The body of a batch, and the requests that follow from it.

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::Request;
use weir_wire::method::Method;
use weir_wire::name::FieldName;
use weir_wire::query;

/// A batch.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    query: Option<Map<String, Value>>,
    headers: Option<Map<String, Value>>,
    timeout: Option<u64>,
    pipeline: Vec<Item>,
}

/// One of its requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    method: Option<String>,
    path: String,
    query: Option<Map<String, Value>>,
    headers: Option<Map<String, Value>>,
    body: Option<String>,
    version: Option<f64>,
    /// There is no connection whose certificate could be verified.
    #[serde(rename = "ssl_verify")]
    _ssl_verify: Option<bool>,
    #[serde(skip)]
    position: usize,
}

/// Methods of requests in a batch.
const METHODS: [(&str, Method); 10] = [
    ("GET", Method::Get),
    ("POST", Method::Post),
    ("PUT", Method::Put),
    ("DELETE", Method::Delete),
    ("PATCH", Method::Patch),
    ("HEAD", Method::Head),
    ("OPTIONS", Method::Options),
    ("CONNECT", Method::Connect),
    ("TRACE", Method::Trace),
    ("PURGE", Method::Purge),
];

/// Fields that frame a message or belong to its connection (RFC 9110 section 7.6.1).
const OF_CONNECTIONS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Fields about the consumer for upstreams; each request of a batch finds its own.
const OF_CONSUMERS: [&str; 3] = ["x-consumer-username", "x-credential-identifier", "x-consumer-custom-id"];

const DEFAULT_TIMEOUT_MS: u64 = 30_000;

impl Batch {
    /// Reads the body of a batch of at most so many requests.
    pub(super) fn parse(body: &[u8], most: u64) -> Result<Self, String> {
        if body.is_empty() {
            return Err("no request body, you should give at least one pipeline setting".to_owned());
        }
        let value: Value = serde_json::from_slice(body).map_err(|error| format!("invalid request body: {error}"))?;
        let mut batch: Self = serde_json::from_value(value).map_err(|error| format!("bad request body: {error}"))?;
        if batch.timeout == Some(0) {
            return Err("bad request body: timeout: expected at least 1".to_owned());
        }
        match batch.pipeline.len() as u64 {
            0 => Err("bad request body: pipeline: expected at least one request".to_owned()),
            count if count > most => Err(format!("too many pipeline requests, {count} exceeds the maximum of {most}")),
            _ => {
                for (position, item) in batch.pipeline.iter_mut().enumerate() {
                    item.position = position;
                    item.check()?;
                }
                Ok(batch)
            }
        }
    }

    /// Milliseconds for each answer.
    pub(super) fn timeout(&self) -> u64 {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT_MS)
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.pipeline
    }
}

impl Item {
    pub(super) fn method(&self) -> Method {
        let name = self.method.as_deref().unwrap_or("GET");
        METHODS.iter().find(|(known, _)| *known == name).map_or(Method::Other, |(_, method)| *method)
    }

    fn error(&self, what: &str) -> String {
        format!("bad request body: pipeline[{}].{what}", self.position)
    }

    fn check(&self) -> Result<(), String> {
        if self.method() == Method::Other {
            let names: Vec<_> = METHODS.iter().map(|(name, _)| *name).collect();
            return Err(self.error(&format!("method: expected one of {}", names.join(", "))));
        }
        if !self.path.starts_with('/') || !self.path.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(self.error("path: expected a path that begins with '/', of printable ASCII characters"));
        }
        match self.version {
            None | Some(1.0 | 1.1) => Ok(()),
            Some(_) => Err(self.error("version: expected 1.0 or 1.1")),
        }
    }

    /// The whole request, as a client would send it.
    pub(super) fn message(&self, batch: &Batch, outer: &Outer) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        out.extend_from_slice(self.method.as_deref().unwrap_or("GET").as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path.as_bytes());
        let mut has_query = self.path.contains('?');
        let own = self.query.iter().flatten();
        let common = batch.query.iter().flatten().filter(|(name, _)| !has(&self.query, |own| own == *name));
        for (name, value) in own.chain(common) {
            write_arguments(name, value, &mut has_query, &mut out).map_err(|what| self.error(&what))?;
        }
        out.extend_from_slice(if self.version == Some(1.0) { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        let own = self.headers.iter().flatten();
        let is_own = |name: &str| has(&self.headers, |own| own.eq_ignore_ascii_case(name));
        let common = batch.headers.iter().flatten().filter(|(name, _)| !is_own(name));
        for (name, value) in own.chain(common) {
            write_field(name, value, &mut out).map_err(|what| self.error(&what))?;
        }
        let is_here = |name: &str| is_own(name) || has(&batch.headers, |common| common.eq_ignore_ascii_case(name));
        for (name, value) in outer.fields.iter().filter(|(name, _)| !is_here(name)) {
            write_line(name, value, &mut out);
        }
        if let Some(body) = &self.body {
            write_line("Content-Length", body.len().to_string().as_bytes(), &mut out);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body.as_deref().unwrap_or_default().as_bytes());
        Ok(out)
    }
}

fn has(map: &Option<Map<String, Value>>, is: impl Fn(&str) -> bool) -> bool {
    map.as_ref().is_some_and(|map| map.keys().any(|key| is(key)))
}

/// The request that brought the batch: its fields that the requests get too.
pub(super) struct Outer {
    fields: Vec<(String, Vec<u8>)>,
}

impl Outer {
    pub(super) fn of(request: &Request) -> Self {
        let passes = |name: &str| {
            let lower = name.to_ascii_lowercase();
            let kept_back = [&OF_CONNECTIONS[..], &OF_CONSUMERS, &["accept-encoding"]];
            !lower.starts_with("content-") && !kept_back.iter().any(|names| names.contains(&lower.as_str()))
        };
        let fields = request.head.fields.iter(request.buffer.bytes());
        let named =
            fields.filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?.to_owned(), value.to_vec())));
        Self { fields: named.filter(|(name, _)| passes(name)).collect() }
    }
}

fn write_arguments(name: &str, value: &Value, has_query: &mut bool, out: &mut Vec<u8>) -> Result<(), String> {
    let mut begin = |out: &mut Vec<u8>| {
        out.push(if std::mem::replace(has_query, true) { b'&' } else { b'?' });
        query::encode(name.as_bytes(), out);
    };
    match value {
        // As ngx.encode_args has it.
        Value::Bool(true) => begin(out),
        Value::Bool(false) => {}
        Value::Array(values) => {
            for value in values {
                if value.is_array() {
                    return Err(format!("query.{name}: expected a text, a number, a boolean or a list of these"));
                }
                write_arguments(name, value, has_query, out)?;
            }
        }
        value => {
            let what = || format!("query.{name}: expected a text, a number, a boolean or a list of these");
            let text = text_of(value).ok_or_else(what)?;
            begin(out);
            out.push(b'=');
            query::encode(text.as_bytes(), out);
        }
    }
    Ok(())
}

fn write_field(name: &str, value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    if FieldName::new(name).is_none() {
        return Err(format!("headers: {name:?} is no name of a field"));
    }
    if OF_CONNECTIONS.iter().any(|other| other.eq_ignore_ascii_case(name)) {
        return Err(format!("headers.{name}: the gateway frames each message itself"));
    }
    let values = match value {
        Value::Array(values) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    for value in values {
        let text = text_of(value).filter(|text| text.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f)));
        let what =
            || format!("headers.{name}: expected a text without control characters, a number or a list of these");
        write_line(name, text.ok_or_else(what)?.as_bytes(), out);
    }
    Ok(())
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::{Batch, Outer};

    #[test]
    fn a_batch_becomes_requests() {
        let body = br#"{
            "query": {"t": "a b", "own": 1}, "headers": {"X-Common": "c", "Host": "common.test"},
            "pipeline": [
                {"path": "/a?x=1", "query": {"own": "2", "flag": true, "off": false, "list": ["1", 2]}, "headers": {"host": "own.test", "X-N": 5}},
                {"method": "POST", "path": "/b", "body": "hello", "version": 1.0}
            ]
        }"#;
        let batch = Batch::parse(body, 2).unwrap();
        let outer = Outer { fields: vec![("Host".into(), b"outer.test".to_vec()), ("apikey".into(), b"k".to_vec())] };
        let messages: Vec<_> = batch.items().iter().map(|item| item.message(&batch, &outer).unwrap()).collect();
        assert_eq!(
            messages.iter().map(|message| String::from_utf8_lossy(message)).collect::<Vec<_>>(),
            [
                "GET /a?x=1&own=2&flag&list=1&list=2&t=a%20b HTTP/1.1\r\nhost: own.test\r\nX-N: 5\r\nX-Common: c\r\napikey: k\r\n\r\n",
                "POST /b?t=a%20b&own=1 HTTP/1.0\r\nX-Common: c\r\nHost: common.test\r\napikey: k\r\nContent-Length: 5\r\n\r\nhello",
            ]
        );
    }

    #[test]
    fn what_is_no_batch_is_said() {
        for (body, message) in [
            ("", "no request body, you should give at least one pipeline setting"),
            ("{", "invalid request body: "),
            ("{}", "bad request body: missing field `pipeline`"),
            (r#"{"pipeline":[]}"#, "bad request body: pipeline: expected at least one request"),
            (
                r#"{"pipeline":[{"path":"/"},{"path":"/"},{"path":"/"}]}"#,
                "too many pipeline requests, 3 exceeds the maximum of 2",
            ),
            (r#"{"timeout":0,"pipeline":[{"path":"/"}]}"#, "bad request body: timeout: expected at least 1"),
            (r#"{"pipeline":[{}]}"#, "bad request body: missing field `path`"),
            (r#"{"pipeline":[{"path":"a"}]}"#, "bad request body: pipeline[0].path: expected a path"),
            (r#"{"pipeline":[{"path":"/ HTTP/1.1\r\nX: y"}]}"#, "bad request body: pipeline[0].path: expected a path"),
            (
                r#"{"pipeline":[{"path":"/","method":"get"}]}"#,
                "bad request body: pipeline[0].method: expected one of GET",
            ),
            (
                r#"{"pipeline":[{"path":"/","version":2}]}"#,
                "bad request body: pipeline[0].version: expected 1.0 or 1.1",
            ),
            (r#"{"pipeline":[{"path":"/","url":"/"}]}"#, "bad request body: unknown field `url`"),
        ] {
            let error = Batch::parse(body.as_bytes(), 2).err().unwrap_or_default();
            assert!(error.starts_with(message), "{body}: {error}");
        }
        let outer = Outer { fields: Vec::new() };
        for (item, message) in [
            (
                r#""headers":{"Content-Length":"3"}"#,
                "pipeline[0].headers.Content-Length: the gateway frames each message itself",
            ),
            (r#""headers":{"a b":"3"}"#, "pipeline[0].headers: \"a b\" is no name of a field"),
            (
                r#""headers":{"X-A":"a\r\nX-B: c"}"#,
                "pipeline[0].headers.X-A: expected a text without control characters",
            ),
            (r#""query":{"a":{}}"#, "pipeline[0].query.a: expected a text, a number"),
            (r#""query":{"a":[[1]]}"#, "pipeline[0].query.a: expected a text, a number"),
        ] {
            let batch = Batch::parse(format!(r#"{{"pipeline":[{{"path":"/",{item}}}]}}"#).as_bytes(), 2).unwrap();
            let error = batch.items()[0].message(&batch, &outer).unwrap_err();
            assert!(error.starts_with(&format!("bad request body: {message}")), "{item}: {error}");
        }
    }
}
