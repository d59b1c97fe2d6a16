//! The kinds of entities: names in paths and documents, fields, and what is unique among them.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::plugins;
use crate::shape::Field;

/// A kind of entity.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Name in documents, the store and errors: `keyauth_credentials`.
    pub(crate) name: &'static str,
    /// Name in paths: `key-auths`; `None` for a kind that is reached through its parent alone.
    pub(crate) path: Option<&'static str>,
    /// Name in paths below its parent: `key-auth`.
    pub(crate) nested: &'static str,
    /// Field by which one may be addressed instead of by its id.
    pub(crate) key: Option<&'static str>,
    /// Fields that are unique together, beside those that are alone.
    pub(crate) together: &'static [&'static str],
    /// Plugin that the kind belongs to.
    pub(crate) plugin: Option<&'static str>,
    /// Its fields.
    pub(crate) fields: Vec<Field>,
    /// Its fields as clients read them.
    pub(crate) described: Value,
}

/// Number of a kind in [`KINDS`].
pub(crate) type KindNumber = usize;

const SCHEMAS: &str = include_str!("schemas.json");

/// All kinds, those that others refer to before them.
pub(crate) static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    // It is a part of the program; a test reads it.
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    let kind = |name, path, nested, key: &'static str| {
        let described = described(name, &schemas[name]);
        let fields = Field::list(&described);
        let key = Some(key).filter(|key| !key.is_empty());
        Kind { name, path, nested, key, together: &[], plugin: None, fields, described }
    };
    let credential = |name, path, nested, key| Kind { plugin: Some(nested), ..kind(name, Some(path), nested, key) };
    vec![
        kind("certificates", Some("certificates"), "certificates", ""),
        kind("ca_certificates", Some("ca_certificates"), "ca_certificates", ""),
        kind("services", Some("services"), "services", "name"),
        kind("routes", Some("routes"), "routes", "name"),
        kind("consumers", Some("consumers"), "consumers", "username"),
        kind("upstreams", Some("upstreams"), "upstreams", "name"),
        Kind { together: &["upstream", "target"], ..kind("targets", None, "targets", "target") },
        kind("snis", Some("snis"), "snis", "name"),
        kind("vaults", Some("vaults"), "vaults", "prefix"),
        credential("keyauth_credentials", "key-auths", "key-auth", "key"),
        credential("basicauth_credentials", "basic-auths", "basic-auth", "username"),
        credential("jwt_secrets", "jwts", "jwt", "key"),
        credential("hmacauth_credentials", "hmac-auths", "hmac-auth", "username"),
        credential("oauth2_credentials", "oauth2", "oauth2", "client_id"),
        Kind {
            plugin: Some("oauth2"),
            ..kind("oauth2_tokens", Some("oauth2_tokens"), "oauth2_tokens", "access_token")
        },
        Kind {
            together: &["subject_name", "ca_certificate"],
            ..credential("mtls_auth_credentials", "mtls-auths", "mtls-auth", "")
        },
        Kind { together: &["consumer", "group"], plugin: Some("acl"), ..kind("acls", Some("acls"), "acls", "group") },
        Kind {
            together: &["name", "route", "service", "consumer"],
            ..kind("plugins", Some("plugins"), "plugins", "instance_name")
        },
    ]
});

/// The kinds that this gateway has plugins for.
pub(crate) fn kinds() -> impl Iterator<Item = (KindNumber, &'static Kind)> {
    KINDS.iter().enumerate().filter(|(_, kind)| kind.plugin.is_none_or(plugins::is_there))
}

/// The kind of this name.
pub(crate) fn named(name: &str) -> Option<(KindNumber, &'static Kind)> {
    kinds().find(|(_, kind)| kind.name == name)
}

/// A kind by its number.
pub(crate) fn kind(number: KindNumber) -> Option<&'static Kind> {
    KINDS.get(number)
}

impl Kind {
    /// Fields with the ids of other entities, and their kinds.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&Field, KindNumber)> {
        self.fields.iter().filter_map(|field| Some((field, named(field.shape.reference.as_deref()?)?.0)))
    }

    /// Every set of fields of which no two entities have the same values.
    pub(crate) fn unique(&self) -> impl Iterator<Item = Vec<&str>> {
        let alone = self.fields.iter().filter(|field| field.is_unique).map(|field| vec![field.name.as_str()]);
        alone.chain((!self.together.is_empty()).then(|| self.together.to_vec()))
    }
}

/// Fields with those that all kinds have.
fn described(name: &str, own: &Value) -> Value {
    let mut fields = vec![
        json!({ "id": { "type": "string", "uuid": true, "auto": true } }),
        json!({ "created_at": { "type": "integer", "timestamp": true, "auto": true } }),
    ];
    if !matches!(name, "keyauth_credentials" | "basicauth_credentials" | "jwt_secrets" | "hmacauth_credentials")
        && !matches!(name, "oauth2_credentials" | "oauth2_tokens" | "mtls_auth_credentials" | "acls")
    {
        fields.push(json!({ "updated_at": { "type": "integer", "timestamp": true, "auto": true } }));
    }
    fields.extend(own.as_array().cloned().unwrap_or_default());
    if name != "oauth2_tokens" {
        fields.push(json!({ "tags": { "type": "set", "elements": { "type": "string", "required": true } } }));
    }
    Value::Array(fields)
}
