//! Consumers with their credentials.

use weir_config::{Diagnostic, Lowered, Node, ResourceKind};

use super::names::{MTLS_AUTH, key};
use super::plugins::{Layers, Scoped};
use super::{LAYER, flag, list, map, text};
use crate::document::{Document, Entity, EntityKind};

/// Kinds of credentials that stand beside a consumer, with their plugins.
const CREDENTIALS: [(EntityKind, &str); 5] = [
    (EntityKind::KeyAuth, "key-auth"),
    (EntityKind::BasicAuth, "basic-auth"),
    (EntityKind::Jwt, "jwt"),
    (EntityKind::HmacAuth, "hmac-auth"),
    (EntityKind::Oauth2, "oauth2"),
];

/// Adds the consumers.
pub(crate) fn lower(
    document: &Document,
    plugins: &Scoped<'_>,
    is_hashed: bool,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mut layers = Layers::default();
    let finds_names = !plugins.routes_with(MTLS_AUTH).is_empty();
    for (number, consumer) in document.of(EntityKind::Consumers) {
        if consumer.text("username").is_none() && consumer.text("custom_id").is_none() {
            let text = "at least one of these fields must be non-empty: 'custom_id', 'username'";
            found.push(Diagnostic::error(consumer.node.mark, consumer.path.as_str(), crate::document::rule(text)));
        }
        let mark = consumer.node.mark;
        let own = plugins.of_consumer(number);
        let mut all = own.node;
        all.insert("consumer", identity(consumer));
        let groups = document.children(EntityKind::Acls, "consumer", number);
        let groups: Vec<Node> = groups.filter_map(|acl| acl.node.get("group").cloned()).collect();
        if !groups.is_empty() {
            all.insert("acl", map(mark, [("groups", list(mark, groups))]));
        }
        let mut credentials = Vec::new();
        let mut entity = consumer.origin();
        for (kind, plugin) in CREDENTIALS {
            for credential in document.children(kind, "consumer", number) {
                if credential.node.get("key").is_none() && kind == EntityKind::Jwt {
                    let text = "a secret without a key matches no token: Kong makes a random key of it";
                    found.push(credential.doubt("key", text));
                    continue;
                }
                let is_whole = ["client_id", "client_secret"].iter().all(|field| credential.node.get(field).is_some());
                if kind == EntityKind::Oauth2 && !is_whole {
                    let text =
                        "a client without client_id and client_secret gets no token: Kong makes random ones of them";
                    found.push(credential.doubt("client_id", text));
                    continue;
                }
                let place = format!("credentials[{}].plugins.{plugin}", credentials.len());
                entity.elsewhere.push((place, credential.path.clone()));
                let conf = conf(credential, consumer, is_hashed);
                let held = map(credential.node.mark, [(plugin, conf)]);
                let id = text(&credential.id);
                let mut lowered = map(credential.node.mark, [("id", id), ("plugins", held)]);
                if let Some(plan) = credential.node.get("plan") {
                    lowered.insert("plan", plan.clone());
                    entity.elsewhere.push((format!("credentials[{}].plan", credentials.len()), credential.at("plan")));
                }
                credentials.push(lowered);
            }
        }
        let named = certificate_names(document, number, consumer, finds_names);
        credentials.extend(named.into_iter().map(|(id, conf)| {
            let held = map(mark, [(MTLS_AUTH, conf)]);
            map(mark, [("id", text(&id)), ("plugins", held)])
        }));
        entity.elsewhere.extend(own.elsewhere);
        let brought = plugins.brought(number, &mut layers, lowered);
        entity.on_routes = brought.on_routes;
        let mut item = map(mark, [("username", text(&key(consumer))), ("plugins", all)]);
        item.insert("credentials", list(mark, credentials));
        if let Some(group) = &brought.group {
            item.insert("group_id", text(group));
        }
        lowered.add(ResourceKind::Consumers, item, entity);
    }
    let kinds = CREDENTIALS.map(|(kind, _)| kind).into_iter().chain([EntityKind::MtlsAuth, EntityKind::Acls]);
    for (_, credential) in kinds.flat_map(|kind| document.of(kind)) {
        if credential.reference("consumer").is_none() {
            found.push(credential.fault("consumer", "required field missing"));
        }
    }
}

/// Names in certificates that belong to a consumer: those of its credentials, and its own where plugins look for these. Each with
/// an id, and in the form of the plugin.
fn certificate_names(document: &Document, number: usize, consumer: &Entity, finds_names: bool) -> Vec<(String, Node)> {
    let mut names = Vec::new();
    for credential in document.children(EntityKind::MtlsAuth, "consumer", number) {
        let authority = credential.reference("ca_certificate").and_then(|number| document.entities.get(number));
        let authority = authority.map(|authority| format!(" {}", authority.id)).unwrap_or_default();
        let name = credential.text("subject_name").unwrap_or_default();
        let key = text(&format!("subject{authority}:{name}"));
        let conf = map(credential.node.mark, [("id", text(&credential.id)), ("key", key)]);
        names.push((credential.id.clone(), conf));
    }
    for field in ["username", "custom_id"].into_iter().filter(|_| finds_names) {
        if let Some(name) = consumer.text(field) {
            let key = text(&format!("{field}:{name}"));
            let conf = map(consumer.node.mark, [("id", text(&consumer.id)), ("key", key)]);
            names.push((format!("{LAYER}{field}.{}", consumer.id), conf));
        }
    }
    names
}

/// The fields about a consumer that upstreams receive.
fn identity(consumer: &Entity) -> Node {
    let mut identity = map(consumer.node.mark, [("id", text(&consumer.id))]);
    for field in ["username", "custom_id"] {
        if let Some(value) = consumer.node.get(field) {
            identity.insert(field, value.clone());
        }
    }
    identity
}

/// A credential in the form of its plugin.
fn conf(credential: &Entity, consumer: &Entity, is_hashed: bool) -> Node {
    let mut conf = map(credential.node.mark, [("id", text(&credential.id))]);
    const FIELDS: [&str; 6] = ["key", "username", "password", "secret", "rsa_public_key", "algorithm"];
    const OF_CLIENTS: [&str; 6] = ["name", "client_id", "client_secret", "client_type", "hash_secret", "redirect_uris"];
    for field in if credential.kind == EntityKind::Oauth2 { OF_CLIENTS } else { FIELDS } {
        if let Some(value) = credential.node.get(field) {
            conf.insert(field, value.clone());
        }
    }
    if credential.kind == EntityKind::BasicAuth {
        conf.insert("consumer_id", text(&consumer.id));
        conf.insert("is_hashed", flag(is_hashed));
    }
    conf
}
