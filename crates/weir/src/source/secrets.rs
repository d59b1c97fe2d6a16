//! The secrets of resources: finding them, masking them for an audience, and restoring masked ones.

use std::sync::{Arc, LazyLock};

use regex::RegexSet;
use serde_json::Value;
use weir_admin::Audience;
use weir_plugin::host::Definition;
use weir_store::{Keyring, Kind, Secrets};

use crate::source::scripts::definitions;

/// Private keys, tokens of secret managers, and the fields that plugins declare as secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecretFields;

/// A secret of a resource.
#[derive(Debug)]
pub(crate) struct Secret<'a> {
    /// A JSON pointer.
    pub(crate) place: &'a str,
    /// True for private keys and tokens of secret managers, which are never shown.
    pub(crate) is_key: bool,
}

/// Replacement for a secret that is not shown.
const MASK: &str = "***";

impl SecretFields {
    /// Calls `each` with every secret, of any JSON type.
    pub(crate) fn each(kind: Kind, value: &mut Value, each: &mut dyn FnMut(&Secret<'_>, &mut Value)) {
        for path in kind.entry().secrets {
            at(value, path, &mut String::new(), true, each);
        }
        in_plugins(definitions(), kind, value, each);
        if kind == Kind::Entities {
            of_entity(value, each);
        }
    }
}

/// Secrets of entities of Kong's family: private keys, and what credentials are checked with.
const OF_ENTITIES: [&str; 5] = ["key", "key_alt", "password", "secret", "client_secret"];

fn of_entity(value: &mut Value, each: &mut dyn FnMut(&Secret<'_>, &mut Value)) {
    for field in OF_ENTITIES {
        at(value, field, &mut String::new(), true, each);
    }
    let name = value["name"].as_str();
    let definition = weir_plugins::kong::definitions().iter().find(|plugin| Some(plugin.name()) == name);
    let (Some(definition), Some(config)) = (definition, value.get_mut("config")) else { return };
    for field in definition.encrypted().iter().chain(definition.private_keys()) {
        at(config, field, &mut "/config".to_owned(), true, each);
    }
}

/// The plugins of families whose files are shown as the resources that they stand for.
fn of_families() -> impl Iterator<Item = &'static [&'static dyn Definition]> {
    [weir_plugins::kong::definitions(), weir_plugins::tyk::definitions(), weir_plugins::threescale::definitions()]
        .into_iter()
}

/// Calls `each` with the secrets of the plugins, which these definitions are of, of a resource and its credentials.
fn in_plugins(
    definitions: &[&dyn Definition],
    kind: Kind,
    value: &mut Value,
    each: &mut dyn FnMut(&Secret<'_>, &mut Value),
) {
    in_plugins_at(definitions, value, &mut String::new(), each);
    if kind == Kind::Consumers {
        let credentials = value.get_mut("credentials").and_then(Value::as_array_mut).into_iter().flatten();
        for (index, credential) in credentials.enumerate() {
            in_plugins_at(definitions, credential, &mut format!("/credentials/{index}"), each);
        }
    }
}

/// The same for the plugins of what is at `place`.
fn in_plugins_at(
    definitions: &[&dyn Definition],
    value: &mut Value,
    place: &mut String,
    each: &mut dyn FnMut(&Secret<'_>, &mut Value),
) {
    for (name, conf) in value.get_mut("plugins").and_then(Value::as_object_mut).into_iter().flatten() {
        let definition = definitions.iter().find(|definition| definition.name() == name);
        let Some(definition) = definition else { continue };
        let length = place.len();
        place.push_str("/plugins/");
        place.push_str(name);
        for (fields, is_key) in [(definition.encrypted(), false), (definition.private_keys(), true)] {
            for field in fields {
                at(conf, field, place, is_key, each);
            }
        }
        place.truncate(length);
    }
}

/// Calls `each` with the values at a path of names, in which `*` stands for every element of a list. Of a mapping at the end of
/// the path all values are secret.
fn at(value: &mut Value, path: &str, place: &mut String, is_key: bool, each: &mut dyn FnMut(&Secret<'_>, &mut Value)) {
    if path.is_empty() {
        match value {
            Value::Null => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    let length = place.len();
                    place.push('/');
                    place.push_str(name);
                    at(value, path, place, is_key, each);
                    place.truncate(length);
                }
            }
            value => each(&Secret { place, is_key }, value),
        }
        return;
    }
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    let length = place.len();
    let mut go = |name: &str, value: &mut Value| {
        place.push('/');
        place.push_str(name);
        at(value, rest, place, is_key, each);
        place.truncate(length);
    };
    match value {
        Value::Array(items) if step == "*" => {
            items.iter_mut().enumerate().for_each(|(index, item)| go(&index.to_string(), item));
        }
        Value::Object(fields) => {
            if let Some(field) = fields.get_mut(step) {
                go(step, field);
            }
        }
        _ => {}
    }
}

impl Secrets for SecretFields {
    fn visit(&self, kind: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
        Self::each(kind, value, &mut |_, secret| {
            if let Value::String(text) = secret {
                each(text);
            }
        });
    }

    fn may_be_in(&self, json: &str) -> bool {
        // A name may contain escapes.
        json.contains("\\u") || ENDS.as_ref().is_none_or(|ends| ends.is_match(json))
    }
}

/// Endings of the names of all fields that `each` visits, with the quote behind them, which excludes names of plugins.
static ENDS: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    let of_plugins =
        definitions().iter().flat_map(|definition| definition.encrypted().iter().chain(definition.private_keys()));
    let paths = Kind::ALL.iter().flat_map(|kind| kind.entry().secrets).chain(of_plugins);
    let of_families = of_families().flatten();
    let of_families = of_families.flat_map(|definition| definition.encrypted().iter().chain(definition.private_keys()));
    let paths = paths.chain(of_families).chain(&OF_ENTITIES);
    let mut names: Vec<&str> = paths.filter_map(|path| path.rsplit('.').find(|step| *step != "*")).collect();
    names.sort_unstable();
    names.dedup();
    // A name that plugins' names end with, such as `auth`, is looked for as a whole.
    let is_whole = |name: &str| definitions().iter().any(|definition| definition.name().ends_with(name));
    let is_covered = |name: &str| names.iter().any(|other| *other != name && name.ends_with(other) && !is_whole(other));
    let ends = names.iter().filter(|name| !is_covered(name)).map(|name| {
        let quote = if is_whole(name) { "\"" } else { "" };
        format!("{quote}{}\"", regex::escape(name))
    });
    RegexSet::new(ends).ok()
});

/// Masks the secrets of resources that are shown, and restores them in resources that a client sends back.
#[derive(Clone, Debug)]
pub(crate) struct Curtain {
    /// Encrypts the secrets in responses to changes, as APISIX does.
    keyring: Arc<Keyring>,
}

impl Curtain {
    pub(crate) fn new(keyring: Arc<Keyring>) -> Self {
        Self { keyring }
    }

    /// Replaces a secret, unless this audience may see it.
    fn draw(&self, secret: &Secret<'_>, value: &mut Value, audience: Audience) {
        match (audience, &*value) {
            // A reference is not a secret itself.
            (_, Value::String(text)) if is_reference(text) => {}
            (Audience::Administrator, _) if !secret.is_key => {}
            (Audience::Author, Value::String(text)) if !secret.is_key => {
                *value = self.keyring.seal(text).unwrap_or_else(|| MASK.to_owned()).into();
            }
            _ => *value = MASK.into(),
        }
    }

    /// Replaces the secrets that this audience must not see.
    pub(crate) fn conceal(&self, kind: Kind, resource: &mut Value, audience: Audience) {
        SecretFields::each(kind, resource, &mut |secret, value| self.draw(secret, value, audience));
    }

    /// The same for a resource that an entity of another family's file stands for. Nobody sends it back.
    pub(crate) fn conceal_of_family(&self, kind: Kind, resource: &mut Value, audience: Audience) {
        for definitions in of_families() {
            in_plugins(definitions, kind, resource, &mut |secret, value| self.draw(secret, value, audience));
        }
    }

    /// Replaces the masks of secrets by the stored secrets.
    ///
    /// # Errors
    /// A mask has no stored secret.
    pub(crate) fn restore(&self, kind: Kind, resource: &mut Value, before: Option<&Value>) -> Result<(), String> {
        let mut fault = None;
        SecretFields::each(kind, resource, &mut |secret, value| {
            let Value::String(text) = value else { return };
            let stored = before.and_then(|before| before.pointer(secret.place)?.as_str());
            let is_shown = |stored: &str| {
                // Lengths are compared first, because encryption takes time proportional to the text.
                !secret.is_key && text.len() > stored.len() && self.keyring.seal(stored).as_ref() == Some(&*text)
            };
            match stored {
                Some(stored) if text == MASK || is_shown(stored) => stored.clone_into(text),
                _ if text == MASK && fault.is_none() => {
                    let place = secret.place.trim_start_matches('/').replace('/', ".");
                    fault = Some(format!(
                        "{place}: {MASK} is shown in the place of a secret and is none itself; there is no secret here \
                         that could be kept: give it"
                    ));
                }
                _ => {}
            }
        });
        fault.map_or(Ok(()), Err)
    }
}

fn is_reference(text: &str) -> bool {
    let begins =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(scheme));
    begins("$secret://") || begins("$env://")
}

/// A value without its secrets.
pub(crate) fn masked(kind: Kind, value: &mut Value) {
    SecretFields::each(kind, value, &mut |_, secret| match secret {
        Value::String(text) if is_reference(text) => {}
        _ => *secret = MASK.into(),
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use weir_admin::Audience;
    use weir_store::{Keyring, Kind, Secrets};

    use super::{Curtain, SecretFields};

    #[test]
    fn secrets_are_found() {
        let s = "secret";
        let split =
            json!({"rules": [{"weighted_upstreams": [{"weight": 1}, {"upstream": {"tls": {"client_key": s}}}]}]});
        let cases = [
            (Kind::Ssls, json!({"sni": "a", "cert": "c", "key": s, "certs": ["c"], "keys": [s, s]}), 3),
            (Kind::Upstreams, json!({"tls": {"client_cert": "c", "client_key": s}}), 1),
            (Kind::Routes, json!({"upstream": {"tls": {"client_key": s}}, "plugins": {"csrf": {"key": s}}}), 2),
            (Kind::Routes, json!({"plugins": {"traffic-split": split}}), 1),
            (Kind::Routes, json!({"plugins": {"key-auth": {}, "unknown": {"key": "k"}, "cors": null}}), 0),
            (
                Kind::Consumers,
                json!({"plugins": {"key-auth": {"key": s}, "basic-auth": {"username": "u", "password": s}}}),
                2,
            ),
            (Kind::Consumers, json!({"credentials": [{"id": "c", "plugins": {"key-auth": {"key": s}}}]}), 1),
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
        for none in ["{\"plugins\":{\"limit-count\":{\"count\":1}}}", "{\"plugins\":{\"key-auth\":{}}}"] {
            assert!(!SecretFields.may_be_in(none), "{none}");
        }
        assert!(SecretFields.may_be_in(r#"{"plugins":{"csrf":{"\u006bey":"secret"}}}"#));
    }

    /// The quick check finds every field that a plugin declares.
    #[test]
    fn all_that_plugins_declare_is_looked_for() {
        for definition in weir_plugins::registry::definitions() {
            for field in definition.encrypted().iter().chain(definition.private_keys()) {
                let name = field.rsplit('.').find(|step| *step != "*").unwrap_or_default();
                assert!(SecretFields.may_be_in(&format!("{{\"{name}\":1}}")), "{}: {field}", definition.name());
            }
        }
    }

    #[test]
    fn what_was_shown_comes_back_as_the_secret() {
        let curtain = Curtain::new(Arc::new(Keyring::new([]).expect("a keyring")));
        let stored = json!({
            "tls": {"client_cert": "c", "client_key": "private"},
            "plugins": {"key-auth": {"key": "s3cret"}, "basic-auth": {"username": "u", "password": "$env://P"}},
        });
        for (kind, audience, key, client_key) in [
            (Kind::Upstreams, Audience::Reader, "***", "***"),
            (Kind::Upstreams, Audience::Administrator, "s3cret", "***"),
            (Kind::Upstreams, Audience::Author, "GGVcu7M0fUb6Dh0Mw8ZLfQ==", "***"),
        ] {
            let mut shown = stored.clone();
            curtain.conceal(kind, &mut shown, audience);
            let found = shown.pointer("/plugins/key-auth/key").and_then(Value::as_str).expect("a text").to_owned();
            assert!(audience == Audience::Author && found != "s3cret" && found != "***" || found == key, "{found}");
            assert_eq!(shown["tls"]["client_key"], client_key);
            assert_eq!(shown["plugins"]["basic-auth"]["password"], "$env://P", "a reference is no secret");
            curtain.restore(kind, &mut shown, Some(&stored)).expect("restored");
            assert_eq!(shown, stored, "{audience:?}");
        }
        let mut shown = json!({"tls": {"client_key": "***"}});
        let fault = curtain.restore(Kind::Upstreams, &mut shown, None).expect_err("nothing to keep");
        assert!(fault.starts_with("tls.client_key: *** is shown in the place of a secret"), "{fault}");
    }
}
