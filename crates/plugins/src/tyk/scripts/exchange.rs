//! Requests and sessions as scripts see them, and what scripts return.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{Flow, Request, RequestCx};
use weir_wire::name::FieldName;
use weir_wire::query::Argument;

use crate::tyk::batch::canonical;
use crate::tyk::body;
use crate::tyk::shared::Known;

/// Result of a script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Returned {
    request: ReturnedRequest,
    /// `meta_data` of the session.
    #[serde(rename = "SessionMeta")]
    pub(super) meta: Option<Map<String, Value>>,
}

/// The request that a script returns.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReturnedRequest {
    #[serde(rename = "SetHeaders")]
    set_headers: Option<BTreeMap<String, String>>,
    #[serde(rename = "DeleteHeaders")]
    delete_headers: Option<Vec<String>>,
    /// In base64.
    #[serde(rename = "Body")]
    body: String,
    #[serde(rename = "IgnoreBody")]
    ignores_body: bool,
    #[serde(rename = "URL")]
    url: String,
    #[serde(rename = "AddParams")]
    add_params: Option<BTreeMap<String, String>>,
    #[serde(rename = "ExtendedParams")]
    extended_params: Option<BTreeMap<String, Vec<String>>>,
    #[serde(rename = "DeleteParams")]
    delete_params: Option<Vec<String>>,
    #[serde(rename = "ReturnOverrides")]
    overrides: Option<Overrides>,
}

/// The answer in place of the upstream's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overrides {
    #[serde(rename = "ResponseCode")]
    code: i64,
    #[serde(rename = "ResponseError")]
    error: String,
    #[serde(rename = "ResponseBody")]
    body: String,
    #[serde(rename = "ResponseHeaders")]
    headers: Option<BTreeMap<String, String>>,
    #[serde(rename = "OverrideError")]
    overrides_error: bool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn add(all: &mut Map<String, Value>, name: String, value: String) {
    if let Value::Array(list) = all.entry(name).or_insert_with(|| json!([])) {
        list.push(value.into());
    }
}

/// The target of a request as its client sent it, with query changes of earlier middleware.
fn url(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.write_request_uri(&mut out);
    out
}

/// The request for a script.
pub(super) fn request(cx: &RequestCx<'_>) -> Value {
    let request = cx.request();
    let (mut headers, mut params) = (Map::new(), Map::new());
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        add(&mut headers, canonical(&text(name)), text(value));
    }
    for (name, value) in request.arguments() {
        let value = match value {
            Argument::Flag => String::new(),
            Argument::Value(value) => text(value),
        };
        add(&mut params, text(name), value);
    }
    let url = text(&url(request));
    json!({
        "Headers": headers, "SetHeaders": {}, "DeleteHeaders": [], "Body": STANDARD.encode(cx.body().unwrap_or_default()),
        "URL": url, "RequestURI": url, "Method": text(request.method_bytes()), "Scheme": "http", "IgnoreBody": false,
        "Params": params, "AddParams": {}, "ExtendedParams": {}, "DeleteParams": [],
        "ReturnOverrides": {
            "ResponseCode": 0, "ResponseError": "", "ResponseBody": "", "ResponseHeaders": {}, "OverrideError": false
        },
    })
}

/// The session for a script.
pub(super) fn session(known: &Known) -> Value {
    let Some(session) = &known.session else { return json!({ "meta_data": known.meta.as_deref() }) };
    let meta = known.meta.as_ref().unwrap_or(&session.meta);
    json!({
        "org_id": session.org, "alias": session.alias, "tags": session.tags, "meta_data": **meta,
        "expires": session.expires, "is_inactive": session.is_inactive, "rate": session.limits.rate.unwrap_or(0),
        "per": session.limits.per / 1000, "quota_max": session.limits.quota_max,
        "quota_renewal_rate": session.limits.renewal.unwrap_or(0) / 1000, "last_updated": session.last_updated,
        "hmac_enabled": session.hmac_enabled,
    })
}

impl Returned {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("what it returned cannot be read: {error}"))
    }

    /// Changes the request as the script wants it.
    pub(super) fn change(&self, cx: &mut RequestCx<'_>) -> Result<(), &'static str> {
        const NO_NAME: &str = "a header has no valid name";
        let returned = &self.request;
        for name in returned.delete_headers.iter().flatten() {
            cx.request_mut().remove_field(&FieldName::new(name).ok_or(NO_NAME)?);
        }
        for (name, value) in returned.set_headers.iter().flatten() {
            let name = FieldName::new(name).ok_or(NO_NAME)?;
            if !value.bytes().all(weir_wire::is_field_byte) {
                return Err("a header has control characters in its value");
            }
            cx.request_mut().set_field(&name, value.as_bytes());
        }
        self.change_query(cx);
        if returned.ignores_body {
            return Ok(());
        }
        let body = STANDARD.decode(&returned.body).map_err(|_| "the body is no base64")?;
        // Bytes that are no text were replaced in what the script saw.
        let is_same = String::from_utf8_lossy(cx.body().unwrap_or_default()).as_bytes() == body;
        if !is_same {
            cx.replace_body(&body);
        }
        Ok(())
    }

    fn change_query(&self, cx: &mut RequestCx<'_>) {
        let returned = &self.request;
        let set = returned.add_params.iter().flatten();
        let removed = returned.delete_params.iter().flatten().chain(set.clone().map(|(name, _)| name));
        let more = returned.extended_params.iter().flatten();
        let more = more.flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
        let added = set.chain(more).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        cx.request_mut().replace_arguments(removed.map(String::as_bytes), added);
    }

    /// The URL of the script, where it has changed the path.
    pub(super) fn new_url(&self, cx: &RequestCx<'_>) -> Option<Box<[u8]>> {
        let path_of = |url: &[u8]| url.split(|byte| *byte == b'?').next().unwrap_or_default().to_vec();
        let (own, new) = (url(cx.request()), self.request.url.as_bytes());
        let is_path = new.starts_with(b"/") && new.iter().all(u8::is_ascii_graphic);
        (is_path && path_of(&own) != path_of(new)).then(|| new.into())
    }

    /// The answer of the script in place of the upstream's.
    pub(super) fn answer(&self, cx: &mut RequestCx<'_>) -> Option<Flow> {
        let overrides = self.request.overrides.as_ref().filter(|overrides| overrides.code != 0)?;
        let Some(code) = u16::try_from(overrides.code).ok().filter(|code| (200..600).contains(code)) else {
            return Some(body::error(cx, 500, super::FAILED, &[]));
        };
        let text = if overrides.error.is_empty() { &overrides.body } else { &overrides.error };
        let headers = overrides.headers.iter().flatten();
        let headers: Vec<(&str, &[u8])> = headers.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let is_sendable = |(name, value): &(&str, &[u8])| {
            FieldName::new(name).is_some() && value.iter().all(|byte| weir_wire::is_field_byte(*byte))
        };
        if !headers.iter().all(is_sendable) {
            return Some(body::error(cx, 500, super::FAILED, &[]));
        }
        if code >= 400 && !overrides.overrides_error {
            return Some(body::error(cx, code, text, &headers));
        }
        let mut answer = cx.reply(code);
        for (name, value) in headers {
            answer = answer.field(name, value);
        }
        Some(answer.body(text.as_bytes()).done())
    }
}
