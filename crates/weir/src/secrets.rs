//! Which texts of resources are secret.

use serde_json::Value;
use weir_store::{Kind, Secrets};

/// Private keys, and what plugins say is secret in their configurations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecretFields;

/// What gives access to a secret manager, by the place in its resource.
const MANAGERS: [&[&str]; 3] = [&["token"], &["secret_access_key"], &["auth_config", "private_key"]];

impl Secrets for SecretFields {
    fn visit(&self, kind: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
        match kind {
            Kind::Ssls => {
                at(value, &["key"], each);
                for key in value.get_mut("keys").and_then(Value::as_array_mut).into_iter().flatten() {
                    at(key, &[], each);
                }
            }
            Kind::Secrets => MANAGERS.iter().for_each(|path| at(value, path, each)),
            Kind::Upstreams => at(value, &["tls", "client_key"], each),
            _ => at(value, &["upstream", "tls", "client_key"], each),
        }
        for (name, conf) in value.get_mut("plugins").and_then(Value::as_object_mut).into_iter().flatten() {
            let definition = weir_plugins::registry::definitions().iter().find(|definition| definition.name() == name);
            for field in definition.map_or(&[][..], |definition| definition.encrypted()) {
                at(conf, &[field], each);
            }
        }
    }

    fn may_be_in(&self, json: &str) -> bool {
        // A name may be written with escapes.
        json.contains("\\u") || ENDS.iter().any(|end| json.contains(end))
    }
}

/// What the names of all fields end with that `visit` looks at.
const ENDS: [&str; 4] = ["key", "token", "secret", "password"];

/// Calls `each` with the text at a place.
fn at(value: &mut Value, path: &[&str], each: &mut dyn FnMut(&mut String)) {
    let found = path.iter().try_fold(value, |value, name| value.get_mut(name));
    if let Some(Value::String(text)) = found {
        each(text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_store::{Kind, Secrets};

    use super::SecretFields;

    #[test]
    fn secrets_are_found() {
        let s = "secret";
        let cases = [
            (Kind::Ssls, json!({"sni": "a", "cert": "c", "key": s, "certs": ["c"], "keys": [s, s]}), 3),
            (Kind::Upstreams, json!({"tls": {"client_cert": "c", "client_key": s}}), 1),
            (Kind::Routes, json!({"upstream": {"tls": {"client_key": s}}, "plugins": {"csrf": {"key": s}}}), 2),
            (Kind::Routes, json!({"plugins": {"key-auth": {}, "unknown": {"key": "k"}, "cors": null}}), 0),
            (
                Kind::Consumers,
                json!({"plugins": {"key-auth": {"key": s}, "basic-auth": {"username": "u", "password": s}}}),
                2,
            ),
            (Kind::Credentials, json!({"plugins": {"jwt-auth": {"key": "k", "secret": s}}}), 1),
            (Kind::Credentials, json!({"plugins": {"hmac-auth": {"key_id": "k", "secret_key": s}}}), 1),
            (Kind::Secrets, json!({"uri": "u", "prefix": "p", "token": s}), 1),
            (Kind::Secrets, json!({"auth_config": {"private_key": s, "project_id": "p"}}), 1),
            (Kind::Routes, json!([1]), 0),
            (Kind::Routes, Value::Null, 0),
        ];
        for (kind, mut value, count) in cases {
            let before = value.to_string();
            let mut found = 0;
            SecretFields.visit(kind, &mut value, &mut |text| {
                assert_eq!(text, s, "{before}");
                found += 1;
            });
            assert_eq!(found, count, "{before}");
            assert!(found == 0 || SecretFields.may_be_in(&before), "{before}");
        }
        assert!(!SecretFields.may_be_in(r#"{"uri":"/a","upstream_id":"1","plugins":{"limit-count":{"count":1}}}"#));
        assert!(SecretFields.may_be_in(r#"{"plugins":{"csrf":{"\u006bey":"secret"}}}"#));
    }

    /// A quick look must not miss what a plugin declares.
    #[test]
    fn all_that_plugins_declare_is_looked_for() {
        for definition in weir_plugins::registry::definitions() {
            for field in definition.encrypted() {
                assert!(SecretFields.may_be_in(&format!("{{\"{field}\":1}}")), "{}: {field}", definition.name());
            }
        }
    }
}
