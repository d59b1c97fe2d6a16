//! Requests and sessions in the messages of middleware over gRPC.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use weir_expr::Source;
use weir_plugin::{Request, Response};

use super::message::{
    AccessDefinition, AccessSpec, Header, MiniRequest, Object, ResponseObject, ReturnOverrides, SessionState,
};
use crate::tyk::batch::canonical;
use crate::tyk::changes::{Answer, AnswerChanges, Changes, is_gateways, url};
use crate::tyk::shared::{Known, scheme, text};

/// The request as it is.
pub(super) fn request(request: &Request, source: &dyn Source, body: &[u8], raw_body_only: bool) -> MiniRequest {
    let (mut headers, mut params) = (BTreeMap::new(), BTreeMap::new());
    // Of several values the first counts.
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        headers.entry(canonical(&text(name))).or_insert_with(|| text(value));
    }
    headers.insert("Host".to_owned(), text(request.host()));
    for (name, value) in request.arguments() {
        params.entry(text(name)).or_insert_with(|| text(value.text()));
    }
    let url = text(&url(request));
    MiniRequest {
        headers,
        params,
        body: readable(body, raw_body_only),
        raw_body: body.to_vec(),
        method: text(request.method_bytes()),
        request_uri: url.clone(),
        url,
        scheme: scheme(source),
        return_overrides: Some(ReturnOverrides { response_code: -1, ..ReturnOverrides::default() }),
        ..MiniRequest::default()
    }
}

/// A body as a text; empty where it is none, or not asked for.
fn readable(body: &[u8], raw_body_only: bool) -> String {
    std::str::from_utf8(body).ok().filter(|_| !raw_body_only).unwrap_or_default().to_owned()
}

/// The answer as it is.
pub(super) fn response(response: &Response, body: &[u8], raw_body_only: bool) -> ResponseObject {
    let mut made = ResponseObject {
        status_code: response.status().into(),
        raw_body: body.to_vec(),
        body: readable(body, raw_body_only),
        ..ResponseObject::default()
    };
    for (name, value) in response.head.fields.sent(response.buffer.bytes()).filter(|(name, _)| !is_gateways(name)) {
        let (key, value) = (canonical(&text(name)), text(value));
        match made.multivalue_headers.iter_mut().find(|header| header.key == key) {
            Some(header) => header.values.push(value),
            None => {
                made.headers.insert(key.clone(), value.clone());
                made.multivalue_headers.push(Header { key, values: vec![value] });
            }
        }
    }
    made
}

/// Changes to an answer that were returned. `sent` are the headers that the service got. As in Tyk the headers of single values
/// count where they were changed: one that is not among them goes, and of the others the first value is theirs.
pub(super) fn answer_changes(returned: ResponseObject, sent: &BTreeMap<String, String>) -> AnswerChanges {
    let (single, mut multi) = (returned.headers, returned.multivalue_headers);
    if single != *sent {
        multi.retain(|header| single.contains_key(&header.key));
        for (key, value) in single {
            match multi.iter_mut().find(|header| header.key == key) {
                Some(header) => header.values.first_mut().into_iter().for_each(|first| first.clone_from(&value)),
                None => multi.push(Header { key, values: vec![value] }),
            }
        }
    }
    AnswerChanges {
        // A service that returns no status has returned 0, which cannot be sent.
        status: if returned.status_code == 0 { -1 } else { returned.status_code.into() },
        clears: true,
        delete_headers: Vec::new(),
        set_headers: multi.into_iter().map(|header| (header.key, header.values)).collect(),
        body: Some(returned.raw_body),
    }
}

/// The session of a caller.
pub(super) fn session(known: &Known) -> Option<SessionState> {
    let session = known.session.as_ref()?;
    let meta = known.meta.as_ref().unwrap_or(&session.meta);
    let seconds = |ms: u64| (ms / 1000) as i64;
    let rights = session.rights.iter().map(|right| {
        let allowed = right.allowed.iter().map(|allowed| AccessSpec {
            url: allowed.path.as_str().to_owned(),
            methods: allowed.methods.iter().map(|method| method.to_string()).collect(),
        });
        let right = AccessDefinition {
            api_id: right.api.to_string(),
            versions: right.versions.iter().map(|version| version.to_string()).collect(),
            allowed_urls: allowed.collect(),
            ..AccessDefinition::default()
        };
        (right.api_id.clone(), right)
    });
    Some(SessionState {
        rate: session.limits.rate.unwrap_or_default() as f64,
        per: (session.limits.per / 1000) as f64,
        expires: session.expires,
        quota_max: session.limits.quota_max,
        quota_renews: session.quota_renews,
        quota_renewal_rate: seconds(session.limits.renewal.unwrap_or_default()),
        access_rights: rights.collect(),
        org_id: session.org.to_string(),
        hmac_enabled: session.hmac_enabled,
        is_inactive: session.is_inactive,
        metadata: meta.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        tags: session.tags.iter().map(|tag| tag.to_string()).collect(),
        alias: session.alias.to_string(),
        last_updated: session.last_updated.to_string(),
        apply_policies: session.policies.iter().map(|policy| policy.to_string()).collect(),
        ..SessionState::default()
    })
}

/// A value of `meta_data` as a text: anything else in JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Changes that were returned. `body` is that of the request.
pub(super) fn changes(request: MiniRequest, body: &[u8]) -> Changes {
    let overrides = request.return_overrides.filter(|overrides| overrides.response_code > 0);
    Changes {
        set_headers: request.set_headers,
        delete_headers: request.delete_headers,
        body: Some(request.raw_body).filter(|new| new != body),
        url: request.url,
        add_params: request.add_params,
        extended_params: BTreeMap::new(),
        delete_params: request.delete_params,
        answer: overrides.map(|overrides| {
            let text = match overrides.response_error.is_empty() {
                true => overrides.response_body,
                false => overrides.response_error,
            };
            let is_silent = text.is_empty() && overrides.response_code >= 400 && !overrides.override_error;
            Answer {
                code: overrides.response_code.into(),
                text: if is_silent { "Key not authorised".to_owned() } else { text },
                headers: overrides.headers,
                overrides_error: overrides.override_error,
            }
        }),
    }
}

/// The token of a returned session, and its fields in Tyk's form; `None`: the caller is nobody.
pub(super) fn authenticated(object: &Object, org: &str) -> Option<(String, Value)> {
    let session = object.session.as_ref()?;
    let mut meta: Map<String, Value> = Map::new();
    for (name, value) in session.metadata.iter().chain(&object.metadata) {
        meta.insert(name.clone(), value.as_str().into());
    }
    let token = meta.get("token").and_then(Value::as_str).filter(|token| !token.is_empty())?.to_owned();
    let rights = session.access_rights.iter().map(|(id, right)| {
        let allowed = right.allowed_urls.iter().map(|spec| json!({ "url": spec.url, "methods": spec.methods }));
        let right = json!({
            "api_id": id, "api_name": right.api_name,
            "versions": right.versions, "allowed_urls": allowed.collect::<Vec<_>>(),
        });
        (id.clone(), right)
    });
    let written = json!({
        "rate": session.rate, "per": session.per, "allowance": session.allowance, "expires": session.expires,
        "quota_max": session.quota_max, "quota_renews": session.quota_renews, "quota_remaining": session.quota_remaining,
        "quota_renewal_rate": session.quota_renewal_rate, "access_rights": rights.collect::<Map<_, _>>(), "org_id": org,
        "is_inactive": session.is_inactive, "apply_policy_id": session.apply_policy_id,
        "apply_policies": session.apply_policies, "meta_data": meta, "tags": session.tags, "alias": session.alias,
        "last_updated": session.last_updated,
    });
    Some((token, written))
}
