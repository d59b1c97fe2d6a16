//! Requests and sessions as scripts see them, and what scripts return.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_expr::Source;
use weir_plugin::Request;

use crate::tyk::batch::canonical;
use crate::tyk::changes::{Answer, Changes, url};
use crate::tyk::shared::{Known, scheme, text};

/// Result of a script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Returned {
    request: ReturnedRequest,
    /// `meta_data` of the session.
    #[serde(rename = "SessionMeta")]
    meta: Option<Map<String, Value>>,
    /// The session of the caller, of a script that authenticates.
    session: Option<Value>,
    /// The caller's name, which limits count under.
    auth_value: Option<String>,
}

/// Values that a script returned beside the request.
#[derive(Debug)]
pub(super) struct Beside {
    /// `meta_data` of the session.
    pub(super) meta: Option<Map<String, Value>>,
    /// The session of the caller, of a script that authenticates.
    pub(super) session: Option<Value>,
    /// The caller's name; empty: it has none.
    pub(super) token: String,
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

/// Adds a value of a header.
pub(super) fn add(all: &mut Map<String, Value>, name: &[u8], value: &[u8]) {
    push(all, canonical(&text(name)), text(value));
}

fn push(all: &mut Map<String, Value>, name: String, value: String) {
    if let Value::Array(list) = all.entry(name).or_insert_with(|| json!([])) {
        list.push(value.into());
    }
}

/// The request for a script.
pub(super) fn request(request: &Request, source: &dyn Source, body: &[u8]) -> Value {
    let (mut headers, mut params) = (Map::new(), Map::new());
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        add(&mut headers, name, value);
    }
    for (name, value) in request.arguments() {
        push(&mut params, text(name), text(value.text()));
    }
    let url = text(&url(request));
    json!({
        "Headers": headers, "SetHeaders": {}, "DeleteHeaders": [], "Body": STANDARD.encode(body),
        "URL": url, "RequestURI": url, "Method": text(request.method_bytes()), "Scheme": scheme(source), "IgnoreBody": false,
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

    /// Changes to the request as the script wants them, and what it returned beside. `body` is that of the request.
    pub(super) fn changes(self, body: &[u8]) -> Result<(Changes, Beside), &'static str> {
        let Self { request, meta, session, auth_value } = self;
        let new_body = match request.ignores_body {
            true => None,
            false => Some(STANDARD.decode(&request.body).map_err(|_| "the body is no base64")?),
        };
        let answer = request.overrides.filter(|overrides| overrides.code != 0).map(|overrides| Answer {
            code: overrides.code,
            text: if overrides.error.is_empty() { overrides.body } else { overrides.error },
            headers: overrides.headers.unwrap_or_default(),
            overrides_error: overrides.overrides_error,
        });
        let changes = Changes {
            set_headers: request.set_headers.unwrap_or_default(),
            delete_headers: request.delete_headers.unwrap_or_default(),
            // Bytes that are no text were replaced in what the script saw.
            body: new_body.filter(|new| String::from_utf8_lossy(body).as_bytes() != new),
            url: request.url,
            add_params: request.add_params.unwrap_or_default(),
            extended_params: request.extended_params.unwrap_or_default(),
            delete_params: request.delete_params.unwrap_or_default(),
            answer,
        };
        Ok((changes, Beside { meta, session, token: auth_value.unwrap_or_default() }))
    }
}
