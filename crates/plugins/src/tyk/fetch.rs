//! HTTP requests that scripts (`TykMakeHttpRequest`) and events make: a connection of its own for each.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_net::Network;
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::fetch::Url;
use crate::tyk::batch::{Item, MOST_ANSWERS, MOST_REQUESTS, canonical};

/// Most bytes of an answer.
const MOST_ANSWER: usize = 4 << 20;

/// The way to services.
#[derive(Debug)]
pub(super) struct Fetch {
    network: Arc<Network>,
}

/// A request as scripts write it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    #[serde(alias = "method", rename = "Method")]
    method: String,
    #[serde(alias = "body", rename = "Body")]
    body: String,
    #[serde(alias = "headers", rename = "Headers")]
    headers: BTreeMap<String, String>,
    #[serde(alias = "domain", rename = "Domain")]
    domain: String,
    #[serde(alias = "resource", rename = "Resource")]
    resource: String,
    #[serde(alias = "formData", alias = "formdata", rename = "FormData")]
    form: BTreeMap<String, String>,
}

/// A batch as scripts write it.
#[derive(Debug, Deserialize)]
struct Batch {
    requests: Vec<Item>,
}

/// An answer.
struct Answered {
    code: u16,
    /// Lists of values by names.
    headers: Value,
    body: String,
}

/// An answer as scripts read it.
fn answered(code: u16, headers: &Value, body: &str) -> String {
    json!({ "Code": code, "Body": body, "Headers": headers, "code": code, "body": body, "headers": headers })
        .to_string()
}

/// The answer where there is none.
pub(super) fn failed(reason: &str) -> String {
    answered(0, &json!({}), reason)
}

impl Fetch {
    pub(super) fn new(network: &Arc<Network>) -> Self {
        Self { network: Arc::clone(network) }
    }

    /// Makes a request; its answer.
    pub(super) async fn answer(&self, request: &str) -> String {
        let asked = serde_json::from_str(request).map_err(|error| format!("the request is no JSON: {error}"));
        let answer = match asked {
            Ok(asked) => self.ask(&asked).await,
            Err(reason) => Err(reason),
        };
        match answer {
            Ok(Answered { code, headers, body }) => answered(code, &headers, &body),
            Err(reason) => {
                tracing::warn!(reason, "a request of a script or an event has no answer");
                failed(&reason)
            }
        }
    }

    /// Makes the requests of a batch (`TykBatchRequest`), whose URLs are whole, one after the other; `None` for what is no
    /// batch. A request without an answer has an empty one, as in Tyk.
    pub(super) async fn batch(&self, batch: &str) -> Option<String> {
        let batch: Batch = serde_json::from_str(batch).ok()?;
        let (mut replies, mut bytes) = (Vec::new(), 0);
        for item in batch.requests.into_iter().take(MOST_REQUESTS) {
            let Item { method, headers, body, relative_url } = item;
            let asked = Asked { method, headers, body, domain: relative_url.clone(), ..Asked::default() };
            let answer = self.ask(&asked).await.and_then(|answer| {
                bytes += answer.body.len();
                if bytes > MOST_ANSWERS { Err("there is no room for the answer".to_owned()) } else { Ok(answer) }
            });
            replies.push(match answer {
                Ok(Answered { code, headers, body }) => {
                    json!({ "relative_url": relative_url, "code": code, "headers": headers, "body": body })
                }
                Err(reason) => {
                    tracing::warn!(reason, "a request of a script's batch has no answer");
                    json!({ "relative_url": "", "code": 0, "headers": null, "body": "" })
                }
            });
        }
        Some(Value::Array(replies).to_string())
    }

    async fn ask(&self, asked: &Asked) -> Result<Answered, String> {
        let url = format!("{}{}", asked.domain, asked.resource);
        let place = Url::parse(&url)?;
        let message = asked.message(place.authority, place.target)?;
        let method = Method::parse(asked.method().as_bytes());
        let answer = place.ask(&self.network, true, &message, method, MOST_ANSWER).await?;
        let mut headers = Map::new();
        for (name, value) in answer.fields {
            if let Value::Array(list) = headers.entry(canonical(&name)).or_insert_with(|| json!([])) {
                list.push(value.into());
            }
        }
        let body = answer.body.transpose()?.unwrap_or_default();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answered { code: answer.status, headers: headers.into(), body })
    }
}

impl Asked {
    fn method(&self) -> &str {
        if self.method.is_empty() { "GET" } else { &self.method }
    }

    /// The whole request.
    fn message(&self, authority: &str, target: &str) -> Result<Vec<u8>, String> {
        let is_sendable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sendable(target) || !is_sendable(authority) || Method::parse(self.method().as_bytes()) == Method::Other {
            return Err("the method or the URL of the request cannot be sent".to_owned());
        }
        let mut body = self.body.clone().into_bytes();
        if !self.form.is_empty() {
            body.clear();
            for (name, value) in &self.form {
                if !body.is_empty() {
                    body.push(b'&');
                }
                weir_wire::query::encode(name.as_bytes(), &mut body);
                body.push(b'=');
                weir_wire::query::encode(value.as_bytes(), &mut body);
            }
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        let mut text =
            format!("{} {slash}{target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n", self.method());
        for (name, value) in &self.headers {
            const OWN: [&str; 4] = ["host", "connection", "content-length", "transfer-encoding"];
            let is_good = FieldName::new(name).is_some() && value.bytes().all(weir_wire::is_field_byte);
            if !is_good {
                return Err(format!("the header '{name}' of the request cannot be sent"));
            }
            if !OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        let has_type = self.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
        if !self.form.is_empty() && !has_type {
            text.push_str("Content-Type: application/x-www-form-urlencoded\r\n");
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut message = text.into_bytes();
        message.append(&mut body);
        Ok(message)
    }
}
