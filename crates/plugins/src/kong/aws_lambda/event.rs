//! Event that tells a function of a request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use weir_plugin::RequestCx;

use super::super::arguments::Arguments;
use super::super::media::Media;

/// Parts of a request that a function is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarded {
    pub(super) method: bool,
    pub(super) uri: bool,
    pub(super) headers: bool,
    pub(super) body: bool,
    /// Sends bodies of other media types in base64.
    pub(super) encodes: bool,
}

/// Media types of bodies that are told as they are.
const TEXTS: [&str; 5] = ["text/plain", "text/html", "application/xml", "text/xml", "application/soap+xml"];

impl Forwarded {
    /// The event of a request whose body is here.
    pub(super) fn event(self, cx: &RequestCx<'_>) -> Value {
        let request = cx.request();
        let query = Arguments::parse(request.query().unwrap_or_default()).to_json();
        let body = cx.body().unwrap_or_default();
        let kind = request.field_str("content-type").unwrap_or_default();
        let values = match Media::of(kind) {
            Some(Media::Json) => serde_json::from_slice(body).unwrap_or_default(),
            Some(Media::Form) => Arguments::parse(body).to_json(),
            None => Map::new(),
        };
        if !(self.method || self.uri || self.headers || self.body) {
            // Without any of them a function is told the arguments and the values of the body.
            let mut all = query;
            all.extend(values);
            return Value::Object(all);
        }
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut event = Map::new();
        if self.method {
            event.insert("request_method".to_owned(), lossy(request.method_bytes()).into());
        }
        if self.headers {
            let mut headers = Map::new();
            for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
                // Of a field that comes several times the first one is told.
                headers.entry(lossy(name).to_ascii_lowercase()).or_insert_with(|| lossy(value).into());
            }
            event.insert("request_headers".to_owned(), headers.into());
        }
        if self.uri {
            let mut uri = Vec::new();
            request.write_request_uri(&mut uri);
            event.insert("request_uri".to_owned(), lossy(&uri).into());
            event.insert("request_uri_args".to_owned(), query.into());
        }
        if self.body {
            let media = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            let is_text = TEXTS.iter().any(|text| media.eq_ignore_ascii_case(text.as_bytes()));
            let is_known = is_text || Media::of(kind).is_some() || body.is_empty();
            if !is_known && self.encodes {
                event.insert("request_body".to_owned(), STANDARD.encode(body).into());
                event.insert("request_body_base64".to_owned(), true.into());
            } else {
                event.insert("request_body".to_owned(), lossy(body).into());
            }
            event.insert("request_body_args".to_owned(), json!(values));
        }
        Value::Object(event)
    }
}
