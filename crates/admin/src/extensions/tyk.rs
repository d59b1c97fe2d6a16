//! `/weir/v1/tyk/…`: APIs, policies and keys of Tyk's family, for the dashboard, over Tyk's own gateway API.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::keys::Role;
use crate::request::Request;

/// Ends of the names of fields that only administrators are shown.
const SECRET: [&str; 5] = ["jwt_source", "secret", "password", "hmac_string", "api_key"];

impl Api {
    /// Asks Tyk's gateway API, as far as the role goes.
    pub(crate) async fn tyk(&self, rest: &[String], request: &Request) -> Outcome {
        let (role, first) = (request.by.role, rest.first().map(String::as_str).unwrap_or_default());
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        let is_known = matches!(first, "apis" | "policies" | "keys" | "reload");
        if !is_known {
            return Err(Answer::error(StatusCode::NOT_FOUND, "expected apis, policies, keys or reload"));
        }
        let may = match (role, first) {
            (Role::Admin, _) | (Role::Operator, "keys") => true,
            // Names of keys may be the keys themselves, and a reload puts changes in force.
            (_, "keys" | "reload") => false,
            _ => reads,
        };
        if !may {
            let message = format!("the role {} may not do this with {first}", role.name());
            return Err(Answer::error(StatusCode::FORBIDDEN, message));
        }
        let (gateway, method, path) = (Arc::clone(&self.gateway), request.method.clone(), rest.join("/"));
        let (query, body) = (request.query.pairs(), request.body.to_vec());
        let asked = tokio::task::spawn_blocking(move || {
            let method = if method == Method::HEAD { "GET" } else { method.as_str() };
            gateway.tyk(method, &path, query, body)
        });
        let answer = asked.await.map_err(|panicked| {
            tracing::error!(%panicked, "Tyk's gateway API could not be asked");
            Answer::internal()
        })?;
        let none = "there is no gateway API of Tyk here: it needs a tyk.conf with a secret";
        let (status, mut value) = answer.ok_or_else(|| Answer::error(StatusCode::NOT_FOUND, none))?;
        if role != Role::Admin {
            mask(&mut value);
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let answer = Answer::json(status, &value).unversioned();
        if status.is_success() { Ok(answer) } else { Err(answer) }
    }
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_secret = SECRET.iter().any(|end| name.ends_with(end));
                match value {
                    Value::String(text) if is_secret && !text.is_empty() => *text = "***".to_owned(),
                    value => mask(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let mut value = json!([{ "jwt_source": "c2VjcmV0", "auth": { "client_secret": "x", "use": true }, "name": "n", "password": "" }]);
        super::mask(&mut value);
        assert_eq!(
            value,
            json!([{ "jwt_source": "***", "auth": { "client_secret": "***", "use": true }, "name": "n", "password": "" }])
        );
    }
}
