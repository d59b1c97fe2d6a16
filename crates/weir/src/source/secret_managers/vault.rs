//! HashiCorp Vault: its engine for keys and values, version 1 and 2.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use crate::agents::Agents;

use super::{Contents, MOST, Refusal};

/// A client of Vault.
pub(super) struct Client(Agents);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// The path that is asked for, and the key in what it says: the last part of a reference.
pub(super) fn path_and_key<'a>(prefix: &str, reference: &'a str) -> Result<(String, &'a str), String> {
    let Some((path, key)) = reference.rsplit_once('/').filter(|(path, key)| !path.is_empty() && !key.is_empty()) else {
        return Err("expected a path and a key after the manager: $secret://vault/ID/PATH/KEY".to_owned());
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~@:+=,!$'()*&;".contains(&b);
    let good = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(allowed);
    if !path.split('/').all(good) {
        return Err(format!("{path:?} is no path in Vault"));
    }
    let prefix: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    if prefix.iter().any(|part| matches!(*part, "." | "..")) {
        return Err(format!("{:?} is no path in Vault", prefix.join("/")));
    }
    Ok((format!("{}/{path}", prefix.join("/")), key))
}

impl Client {
    pub(super) fn new(timeout: Duration, trusted: &str) -> Self {
        Self(Agents::new(trusted, Some(timeout)))
    }

    /// Everything at a path.
    pub(super) fn read(
        &self,
        uri: &str,
        namespace: Option<&str>,
        token: &str,
        path: &str,
    ) -> Result<Contents, Refusal> {
        let url = format!("{uri}/v1/{path}");
        let unreachable = |reason: &dyn std::fmt::Display| Refusal::Unreachable(format!("Vault at {uri}: {reason}"));
        let agent = self.0.of(uri, true).map_err(|reason| unreachable(&reason))?;
        let mut request = agent.get(&url).header("X-Vault-Token", token).header("X-Vault-Request", "true");
        if let Some(namespace) = namespace {
            request = request.header("X-Vault-Namespace", namespace);
        }
        let mut response = request.call().map_err(|error| match error {
            // A token that is no field value: nothing to be waited for, and nothing to be shown.
            ureq::Error::Http(_) => Refusal::None("the token is none that can be sent".to_owned()),
            error => unreachable(&error),
        })?;
        let status = response.status().as_u16();
        let unable = |reason: &dyn std::fmt::Display| Refusal::Unable(format!("Vault at {uri}: {reason}"));
        let refused = |reason: &str| Refusal::None(format!("Vault says of {path:?}: {reason}"));
        match status {
            200 => {}
            403 => return Err(refused("permission denied (403): the token is unknown or must not read it")),
            404 => return Err(refused("there is none (404)")),
            300..400 => {
                return Err(unable(&format_args!(
                    "it answers with a redirect ({status}); give the address of the active node"
                )));
            }
            429 | 472 | 473 | 500.. => return Err(unable(&format_args!("it cannot answer now ({status})"))),
            _ => return Err(refused(&format!("status {status}"))),
        }
        let body = response.body_mut().with_config().limit(MOST as u64).read_to_vec();
        let body = body.map_err(|error| unreachable(&error))?;
        let answer: Value = serde_json::from_slice(&body).map_err(|_| unable(&"it answers with what is not JSON"))?;
        keys(&answer).map(Contents::Keys).ok_or_else(|| refused("it holds no keys and values"))
    }
}

/// The values of an answer, by key. Version 2 of the engine has them one level deeper, beside what is known of them.
fn keys(answer: &Value) -> Option<HashMap<String, String>> {
    let data = answer.get("data")?.as_object()?;
    let versioned = data.get("metadata").is_some_and(Value::is_object);
    let data = match data.get("data") {
        Some(Value::Object(inner)) if versioned => inner,
        // A version that was deleted.
        Some(Value::Null) if versioned => return None,
        _ => data,
    };
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    Some(data.iter().filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{keys, path_and_key};

    #[test]
    fn a_reference_is_a_path_and_a_key() {
        let cases = [
            ("kv/apisix", "jack/key", Ok(("kv/apisix/jack", "key"))),
            ("/kv/data/apisix/", "a/b/key", Ok(("kv/data/apisix/a/b", "key"))),
            ("kv", "key", Err("expected a path and a key")),
            ("kv", "/key", Err("expected a path and a key")),
            ("kv", "jack/", Err("expected a path and a key")),
            ("kv", "../sys/key", Err("is no path in Vault")),
            ("kv/..", "jack/key", Err("is no path in Vault")),
            ("kv", "jack?x/key", Err("is no path in Vault")),
            ("kv", "a//key", Err("is no path in Vault")),
            ("kv", "a%2e/key", Err("is no path in Vault")),
        ];
        for (prefix, reference, expected) in cases {
            match (path_and_key(prefix, reference), expected) {
                (Ok((path, key)), Ok(wanted)) => assert_eq!((path.as_str(), key), wanted),
                (Err(reason), Err(wanted)) => assert!(reason.contains(wanted), "{reference}: {reason}"),
                (got, wanted) => panic!("{reference}: {got:?}, not {wanted:?}"),
            }
        }
    }

    #[test]
    fn both_versions_of_the_engine_are_understood() {
        let cases = [
            (json!({"data": {"key": "v1", "n": 7}}), Some(vec![("key", "v1"), ("n", "7")])),
            (json!({"data": {"data": {"key": "v2"}, "metadata": {"version": 3}}}), Some(vec![("key", "v2")])),
            // With version 1 these are keys like others.
            (json!({"data": {"data": "x", "metadata": "y"}}), Some(vec![("data", "x"), ("metadata", "y")])),
            (json!({"data": {"data": null, "metadata": {"deletion_time": "t"}}}), None),
            (json!({"data": null}), None),
            (json!([]), None),
        ];
        for (answer, expected) in cases {
            let mut found: Option<Vec<_>> = keys(&answer).map(|keys| keys.into_iter().collect());
            if let Some(found) = &mut found {
                found.sort_unstable();
            }
            let expected: Option<Vec<_>> =
                expected.map(|list| list.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
            assert_eq!(found, expected, "{answer}");
        }
    }
}
