//! Which texts of resources are secret.

use serde_json::Value;
use weir_store::{Kind, Secrets};

/// The private keys of certificates, and the tokens that secret managers are asked with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecretFields;

impl Secrets for SecretFields {
    fn visit(&self, kind: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
        if kind == Kind::Secrets
            && let Some(Value::String(token)) = value.get_mut("token")
        {
            each(token);
        }
        if kind == Kind::Ssls {
            if let Some(Value::String(key)) = value.get_mut("key") {
                each(key);
            }
            for key in value.get_mut("keys").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Value::String(key) = key {
                    each(key);
                }
            }
        }
    }
}
