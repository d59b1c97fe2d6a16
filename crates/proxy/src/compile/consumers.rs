//! Consumers, what they authenticate with, and the plugins they bring along.

use std::collections::HashMap;

use weir_config::{Diagnostic, Document, Id, InvalidItems, Node, Scope};
use weir_plugin::{Consumer, ConsumerMatch, Consumers, Credentials, Definition};

use super::plugins::{Builder, Layer};
use super::{Compiler, Faults};
use crate::chain::Chain;

/// The table of consumers; credentials are numbered in the order of the document.
pub(super) fn list(document: &Document) -> Consumers {
    let mut consumers = Consumers::default();
    for consumer in &document.consumers {
        consumers.push(Consumer {
            name: consumer.username.as_str().into(),
            group_id: consumer.group_id.as_ref().map(|id| id.as_str().into()),
            custom_id: consumer.labels.get("custom_id").map(|id| id.as_str().into()),
        });
        for credential in &consumer.credentials {
            consumers.push_credential(credential.id.as_str());
        }
    }
    consumers
}

/// One consumer's or credential's data for one authentication plugin.
struct Entry<'d> {
    who: ConsumerMatch,
    username: &'d str,
    conf: &'d Node,
    /// Path of the resource it stands in.
    path: &'d str,
}

/// What each authentication plugin finds consumers by; by position in the registry.
pub(super) fn credentials(
    compiler: &Compiler,
    document: &Document,
    consumers: &Consumers,
    faults: &mut Faults,
) -> Vec<Option<Credentials>> {
    let definitions = compiler.definitions.0;
    let mut entries: Vec<Vec<Entry<'_>>> = definitions.iter().map(|_| Vec::new()).collect();
    let mut number = 0;
    for consumer in &document.consumers {
        let username = consumer.username.as_str();
        let Some(id) = consumers.find(username) else { continue };
        let own = consumer.plugins.iter().map(|plugins| (plugins, None, consumer.origin.path.as_str()));
        let further =
            consumer.credentials.iter().zip(number..).map(|(c, n)| (&c.plugins, Some(n), c.origin.path.as_str()));
        for (plugins, credential, path) in own.chain(further) {
            for (name, conf) in plugins {
                let kind = definitions.iter().position(|d| d.is_auth() && d.name() == name);
                if let Some(list) = kind.and_then(|k| entries.get_mut(k)).filter(|_| !conf.meta.disable) {
                    let who = ConsumerMatch { consumer: id, credential };
                    list.push(Entry { who, username, conf: &conf.conf, path });
                }
            }
        }
        number += consumer.credentials.len() as u32;
    }
    let built = definitions
        .iter()
        .zip(entries)
        .map(|(definition, entries)| if definition.is_auth() { lookup(*definition, entries, faults) } else { None });
    built.collect()
}

/// Builds a plugin's lookup; an entry that cannot be used is dropped where items are skipped.
fn lookup(definition: &dyn Definition, mut entries: Vec<Entry<'_>>, faults: &mut Faults) -> Option<Credentials> {
    loop {
        let listed: Vec<_> = entries.iter().map(|e| (e.who, e.username, e.conf)).collect();
        match definition.credentials(&listed) {
            Ok(credentials) => return Some(credentials),
            Err((at, diagnostic)) => {
                let path = entries.get(at).map(|e| format!("{}.plugins.{}", e.path, definition.name()));
                faults.item(diagnostic.under(&path.unwrap_or_default()));
                if faults.invalid == InvalidItems::Refuse || at >= entries.len() {
                    return None;
                }
                entries.remove(at);
            }
        }
    }
}

/// The plugins that consumers bring along, by consumer: their group's, and over these their own.
pub(super) fn chains(
    document: &Document,
    consumers: &Consumers,
    builder: &Builder<'_>,
    faults: &mut Faults,
) -> Vec<Option<Chain>> {
    let mut groups: HashMap<&Id, Result<Layer, Diagnostic>> = HashMap::new();
    for group in &document.consumer_groups {
        let place = format!("consumer_group/{}", group.id);
        groups.insert(&group.id, builder.layer(Some(&group.plugins), &place, &group.origin.path, Scope::Route));
    }
    let mut chains: Vec<Option<Chain>> = (0..consumers.len()).map(|_| None).collect();
    for consumer in &document.consumers {
        let place = format!("consumer/{}", consumer.username);
        let own = builder.layer(consumer.plugins.as_ref(), &place, &consumer.origin.path, Scope::Consumer);
        let mut layer = Layer::default();
        for part in consumer.group_id.as_ref().and_then(|id| groups.get(id)).into_iter().chain([&own]) {
            match part {
                Ok(part) => layer.put_over(part),
                // Without its limits a consumer would be let through: this refuses the change in any case.
                Err(diagnostic) => faults.whole(diagnostic.clone()),
            }
        }
        let slot = consumers.find(consumer.username.as_str()).and_then(|id| chains.get_mut(id as usize));
        if let Some(slot) = slot.filter(|_| !layer.is_empty()) {
            *slot = Some(layer.chain());
        }
    }
    chains
}
