//! Consumers, what they authenticate with, and the plugins they bring along.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_config::{Consumer, InvalidItems, Model, Node, Place, Scope, Section};
use weir_plugin::{ConsumerMatch, ConsumerSet, Consumers, CredentialChange, Credentials, Definition};

use super::making::Making;
use super::plugins::Builder;
use super::{Compiler, Faults};

/// A consumer that came, changed or went.
pub(super) struct Change<'m> {
    before: Option<&'m Consumer>,
    after: Option<&'m Consumer>,
}

/// The consumers that have changed at these places; without a configuration before, all of them in their order.
pub(super) fn changes<'m>(before: Option<&'m Model>, model: &'m Model, places: &BTreeSet<Place>) -> Vec<Change<'m>> {
    let Some(before) = before else {
        let all = model.consumers.in_order().into_iter();
        return all.map(|listed| Change { before: None, after: Some(&*listed.item) }).collect();
    };
    let places = places.iter().filter(|place| place.section == Section::Consumers);
    let find = |model: &'m Model, place: &Place| model.consumers.get(&place.id).map(AsRef::as_ref);
    places.map(|place| Change { before: find(before, place), after: find(model, place) }).collect()
}

/// Brings the table of consumers up to date. Gives their numbers, of those that went the last ones.
pub(super) fn list(consumers: &mut Consumers, changes: &[Change<'_>]) -> Vec<u32> {
    let mut number = |change: &Change<'_>| match (change.after, change.before) {
        (Some(consumer), _) => consumers.put(weir_plugin::Consumer {
            name: consumer.username.shared().into(),
            group_id: consumer.group_id.as_ref().map(|id| id.as_str().into()),
            custom_id: consumer.labels.get("custom_id").map(|id| id.as_str().into()),
            credentials: consumer.credentials.iter().map(|credential| credential.id.as_str().into()).collect(),
        }),
        (None, Some(gone)) => consumers.remove(&gone.username.shared()).unwrap_or(u32::MAX),
        (None, None) => u32::MAX,
    };
    changes.iter().map(&mut number).collect()
}

/// One consumer's or credential's data for one authentication plugin.
struct Entry<'d> {
    who: ConsumerMatch,
    username: &'d str,
    conf: &'d Node,
    /// Path of the resource it stands in.
    path: &'d str,
}

/// All data of a consumer for authentication plugins, each with the plugin's position in the registry.
fn entries<'d>(compiler: &Compiler, consumer: &'d Consumer, number: u32) -> Vec<(usize, Entry<'d>)> {
    let definitions = compiler.definitions.0;
    let username = consumer.username.as_str();
    let own = consumer.plugins.iter().map(|plugins| (plugins, None, consumer.origin.path.as_str()));
    let further = consumer.credentials.iter().zip(0..).map(|(c, at)| (&c.plugins, Some(at), c.origin.path.as_str()));
    let mut found = Vec::new();
    for (plugins, credential, path) in own.chain(further) {
        for (name, conf) in plugins {
            let kind = definitions.iter().position(|d| d.is_auth() && d.name() == name);
            if let Some(kind) = kind.filter(|_| !conf.meta.disable) {
                let who = ConsumerMatch { consumer: number, credential };
                found.push((kind, Entry { who, username, conf: &conf.conf, path }));
            }
        }
    }
    found
}

/// Brings up to date what each authentication plugin finds consumers by; by position in the registry.
pub(super) fn credentials(
    compiler: &Compiler,
    held: &mut [Option<Credentials>],
    consumers: &Consumers,
    changes: &[Change<'_>],
    numbers: &[u32],
    faults: &mut Faults,
) {
    let definitions = compiler.definitions.0;
    let mut gone: Vec<Vec<Entry<'_>>> = definitions.iter().map(|_| Vec::new()).collect();
    let mut came: Vec<Vec<Entry<'_>>> = definitions.iter().map(|_| Vec::new()).collect();
    for (change, number) in changes.iter().zip(numbers) {
        for (consumer, lists) in [(change.before, &mut gone), (change.after, &mut came)] {
            for (kind, entry) in consumer.into_iter().flat_map(|consumer| entries(compiler, consumer, *number)) {
                if let Some(list) = lists.get_mut(kind) {
                    list.push(entry);
                }
            }
        }
    }
    for (((definition, held), gone), came) in definitions.iter().zip(held).zip(gone).zip(came) {
        let concerned = held.is_none() || !gone.is_empty() || !came.is_empty();
        if definition.is_auth() && concerned {
            *held = lookup(*definition, held.as_ref(), consumers, &gone, came, faults);
        }
    }
}

/// Builds a plugin's lookup; an entry that cannot be used is dropped where items are skipped.
fn lookup(
    definition: &dyn Definition,
    held: Option<&Credentials>,
    consumers: &Consumers,
    gone: &[Entry<'_>],
    mut came: Vec<Entry<'_>>,
    faults: &mut Faults,
) -> Option<Credentials> {
    fn listed<'e>(entries: &'e [Entry<'_>]) -> Vec<(ConsumerMatch, &'e str, &'e Node)> {
        entries.iter().map(|e| (e.who, e.username, e.conf)).collect()
    }
    let gone = listed(gone);
    loop {
        let change = CredentialChange { held, gone: &gone, came: &listed(&came), consumers };
        match definition.credentials(&change) {
            Ok(credentials) => return Some(credentials),
            Err((at, diagnostic)) => {
                let path = came.get(at).map(|e| format!("{}.plugins.{}", e.path, definition.name()));
                faults.item(diagnostic.under(&path.unwrap_or_default()));
                if faults.invalid == InvalidItems::Refuse || at >= came.len() {
                    return None;
                }
                came.remove(at);
            }
        }
    }
}

impl Making<'_> {
    /// The plugins that a consumer brings along: its group's, and over these its own.
    pub(super) fn consumer_chain(&mut self, builder: &Builder<'_, '_>, id: Arc<str>, faults: &mut Faults) {
        let consumer = self.model().consumers.get(&id);
        let number = self.consumers.find(&id);
        let place = Place { section: Section::Consumers, id };
        let (Some(consumer), Some(number)) = (consumer, number) else {
            self.drop_layer(builder, &place);
            return;
        };
        let at = format!("consumer/{}", consumer.username);
        let own = builder.build(consumer.plugins.as_ref(), &at, &consumer.origin.path, Scope::Consumer);
        let group = consumer.group_id.as_ref().map(|id| Place { section: Section::ConsumerGroups, id: id.shared() });
        let group = group.map(|place| self.layer(builder, place)).transpose();
        let (group, own) = match (group, own) {
            (Ok(group), Ok(own)) => (group, own),
            // Without its limits a consumer would be let through: this refuses the change in any case.
            (group, own) => {
                group.err().into_iter().chain(own.err()).for_each(|diagnostic| faults.whole(diagnostic));
                return;
            }
        };
        let mut layer = group.map(|group| group.layer.clone()).unwrap_or_default();
        layer.put_over(&own.layer);
        let chain = (!layer.is_empty()).then(|| layer.chain());
        if chain.is_some() || self.consumer_chains.get(number).is_some() {
            Arc::make_mut(&mut self.consumer_chains).set(number, chain);
        }
        // Most consumers have none of their own, and there may be a million.
        if own.layer.is_empty() {
            self.drop_layer(builder, &place);
        } else {
            self.put_layer(builder, place, own);
        }
    }
}
