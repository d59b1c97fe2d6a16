//! Consumers, what they authenticate with, and the plugins they bring along.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_config::{
    Code, Consumer, Diagnostic, Id, InvalidItems, Model, Node, OnRoutes, PluginConf, Plugins, ResourceKey,
    ResourceKind, Scope,
};
use weir_plugin::host::CredentialChange;
use weir_plugin::{ConsumerMatch, ConsumerSet, Consumers, Credentials};

use super::making::Compilation;
use super::plugins::{Builder, Built, Layer};
use super::{Faults, ListedDefinitions};
use crate::chain::{Brought, Chain};

/// A consumer that came, changed or went.
pub(super) struct Change<'m> {
    before: Option<&'m Consumer>,
    after: Option<&'m Consumer>,
}

/// The consumers that have changed at these places; without a configuration before, all of them in their order.
pub(super) fn changes<'m>(
    before: Option<&'m Model>,
    model: &'m Model,
    places: &BTreeSet<ResourceKey>,
) -> Vec<Change<'m>> {
    let Some(before) = before else {
        let all = model.consumers.in_order().into_iter();
        return all.map(|listed| Change { before: None, after: Some(&*listed.item) }).collect();
    };
    let places = places.iter().filter(|place| place.kind() == ResourceKind::Consumers);
    let find = |model: &'m Model, place: &ResourceKey| model.consumers.get(place.id()).map(AsRef::as_ref);
    places.map(|place| Change { before: find(before, place), after: find(model, place) }).collect()
}

/// Brings the table of consumers up to date. Gives their numbers, of those that went the last ones.
pub(super) fn list(consumers: &mut Consumers, changes: &[Change<'_>]) -> Vec<u32> {
    let mut number = |change: &Change<'_>| match (change.after, change.before) {
        (Some(consumer), _) => consumers.put(weir_plugin::Consumer::new(
            // A copy: the text that was read lies among much that is let go soon, and would keep the memory around it.
            consumer.username.as_str().into(),
            consumer.group_id.as_ref().map(Id::shared),
            consumer.labels.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect(),
            consumer.credentials.iter().map(|credential| credential.id.as_str().into()).collect(),
        )),
        (None, Some(gone)) => consumers.remove(&gone.username.shared()).unwrap_or(u32::MAX),
        (None, None) => u32::MAX,
    };
    changes.iter().map(&mut number).collect()
}

/// Data of consumers and credentials for one authentication plugin.
type Entries<'m> = Vec<(ConsumerMatch, &'m Node)>;

/// Adds all data of a consumer for authentication plugins to their lists, by position in the registry.
fn add_entries<'m>(lists: &mut [(&str, Entries<'m>)], consumer: &'m Consumer, number: u32) {
    let own = consumer.plugins.iter().map(|plugins| (plugins, None));
    // A reference without a value is not a credential.
    let is_in_force = |conf: &PluginConf| !conf.is_disabled() && !conf.is_unresolved();
    let further = consumer.credentials.iter().zip(0..).map(|(credential, at)| (&credential.plugins, Some(at)));
    for (plugins, credential) in own.chain(further) {
        for (name, conf) in plugins.iter().filter(|(_, conf)| is_in_force(conf)) {
            if let Some((_, entries)) = lists.iter_mut().find(|(plugin, _)| *plugin == &**name) {
                entries.push((ConsumerMatch { consumer: number, credential }, &conf.conf));
            }
        }
    }
}

/// Brings up to date what each authentication plugin finds consumers by; by position in the registry.
pub(super) fn credentials(
    definitions: ListedDefinitions,
    held: &mut [Option<Credentials>],
    consumers: &Consumers,
    changes: &[Change<'_>],
    numbers: &[u32],
    faults: &mut Faults,
) {
    let plugins = || definitions.0.iter().zip(0..).filter(|(definition, _)| definition.is_auth());
    let mut gone: Vec<(&str, Entries<'_>)> = plugins().map(|(plugin, _)| (plugin.name(), Vec::new())).collect();
    let mut came = gone.clone();
    for (change, number) in changes.iter().zip(numbers) {
        for (consumer, lists) in [(change.before, &mut gone), (change.after, &mut came)] {
            if let Some(consumer) = consumer {
                add_entries(lists, consumer, *number);
            }
        }
    }
    // Position of a consumer or credential, for messages.
    let origin = |who: ConsumerMatch| {
        let mut known = changes.iter().zip(numbers).filter(|(_, number)| **number == who.consumer);
        let consumer = known.find_map(|(change, _)| change.after)?;
        match who.credential {
            None => Some(&consumer.origin),
            Some(at) => Some(&consumer.credentials.get(at as usize)?.origin),
        }
    };
    for (((definition, at), (_, gone)), (_, mut came)) in plugins().zip(gone).zip(came) {
        let Some(held) = held.get_mut(at) else { continue };
        if held.is_some() && gone.is_empty() && came.is_empty() {
            continue;
        }
        // An entry that cannot be used is dropped where items are skipped.
        *held = loop {
            let change = CredentialChange { held: held.as_ref(), gone: &gone, came: &came, consumers };
            match definition.credentials(&change) {
                Ok(credentials) => break Some(credentials),
                Err((at, diagnostic)) => {
                    let place = came.get(at).and_then(|(who, _)| origin(*who));
                    let path = place.map(|place| format!("{}.plugins.{}", place.path, definition.name()));
                    faults.item(diagnostic.under(&path.unwrap_or_default()));
                    if faults.invalid == InvalidItems::Refuse || at >= came.len() {
                        break None;
                    }
                    came.remove(at);
                }
            }
        };
    }
}

impl Compilation<'_> {
    /// The plugins that a consumer brings along: its group's, and over these its own.
    pub(super) fn consumer_chain(&mut self, builder: &Builder<'_, '_>, id: Arc<str>, faults: &mut Faults) {
        let consumer = self.model().consumers.get(&id);
        let number = self.consumers.find(&id);
        let place = ResourceKey::shared(ResourceKind::Consumers, id);
        let (Some(consumer), Some(number)) = (consumer, number) else {
            self.drop_layer(builder, &place);
            return;
        };
        self.drop_layer(builder, &place);
        let at = format!("consumer/{}", consumer.username);
        let own = builder.build(consumer.plugins.as_ref(), &at, &consumer.origin.path, Scope::Consumer);
        let group = consumer.group_id.as_ref().map(|id| ResourceKey::shared(ResourceKind::ConsumerGroups, id.shared()));
        let group = group.map(|place| self.layer(builder, place)).transpose();
        let (group, mut own) = match (group, own) {
            (Ok(group), Ok(own)) => (group, own),
            // Without its limits a consumer would be let through: this refuses the change in any case.
            (group, own) => {
                group.err().into_iter().chain(own.err()).for_each(|diagnostic| faults.whole(diagnostic));
                return;
            }
        };
        let keys: Result<Vec<(u32, Built)>, Diagnostic> = (0..)
            .zip(&consumer.credentials)
            .filter_map(|(at, credential)| Some((at, credential, credential.plan.as_ref()?)))
            .map(|(at, credential, plan)| {
                let conf = PluginConf { conf: plan.conf(), meta: None, compiled: 0 };
                let plugins = Plugins(vec![("plan".into(), conf)]);
                let place = format!("credential/{}/{}", consumer.username, credential.id);
                let path = &credential.origin.path;
                let built = builder.build(Some(&plugins), &place, path, Scope::Consumer);
                built.map(|built| (at, built)).map_err(|mut error| {
                    // A plan is written as a field of its own.
                    error.path = error.path.replacen(".plugins.plan", ".plan", 1);
                    error.mark = credential.origin.mark;
                    error
                })
            })
            .collect();
        let keys = match keys {
            Ok(keys) => keys,
            Err(diagnostic) => {
                faults.whole(diagnostic);
                return;
            }
        };
        let layers = || group.as_deref().into_iter().chain([&own]);
        let size = Built::size_of_chain(layers())
            + keys.iter().map(|(_, key)| Built::size_of_chain(layers().chain([key]))).sum::<u64>();
        if let Err(error) = builder.ledger.take(size) {
            let path = format!("{}.plugins", consumer.origin.path);
            let code = Code::TooLarge { what: String::new(), reason: error.to_string() };
            faults.whole(Diagnostic::error(consumer.origin.mark, path, code));
            return;
        }
        // Most consumers bring credentials, and what they have in common with their group.
        let brought = match &group {
            Some(group) if own.layer.is_empty() && keys.is_empty() => group.brought(),
            _ => Arc::new(Brought {
                chain: Built::chain(layers()),
                keys: keys.iter().map(|(at, key)| (*at, Built::chain(layers().chain([key])))).collect(),
                routes: Box::default(),
            }),
        };
        let brought = Some(brought).filter(|brought| !brought.is_nothing());
        if brought.is_some() || self.consumer_chains.get(number).is_some() {
            Arc::make_mut(&mut self.consumer_chains).set(number, brought);
        }
        own.size += size + keys.iter().map(|(_, key)| key.size).sum::<u64>();
        // Most consumers have none of their own, and there may be a million.
        if !own.layer.is_empty() || !keys.is_empty() {
            self.put_layer(builder, place, own);
        }
    }

    /// The plugins that consumers bring along on single routes, in a family that has such ones. After all routes have
    /// their numbers.
    pub(super) fn consumers_on_routes(&mut self, builder: &Builder<'_, '_>, faults: &mut Faults) {
        let model = self.model();
        for (id, consumer) in model.consumers.iter() {
            let Some(entity) = consumer.origin.entity.as_ref().filter(|entity| !entity.on_routes.is_empty()) else {
                continue;
            };
            let Some(number) = self.consumers.find(id) else { continue };
            if let Err(diagnostic) = self.consumer_on_routes(builder, consumer, number, &entity.on_routes) {
                faults.whole(diagnostic);
            }
        }
    }

    fn consumer_on_routes(
        &mut self,
        builder: &Builder<'_, '_>,
        consumer: &Consumer,
        number: u32,
        places: &[OnRoutes],
    ) -> Result<(), Diagnostic> {
        let own = self.layers.get(&ResourceKey::shared(ResourceKind::Consumers, consumer.username.shared())).cloned();
        let group = consumer.group_id.as_ref().map(|id| ResourceKey::shared(ResourceKind::ConsumerGroups, id.shared()));
        let group = group.map(|place| self.layer(builder, place)).transpose()?;
        let mut routes = Vec::new();
        for place in places {
            let above = place.layer.as_ref().map(|id| ResourceKey::new(ResourceKind::ConsumerGroups, id));
            let above = above.map(|place| self.layer(builder, place)).transpose()?;
            let kinds = builder.definitions.iter().zip(0u8..);
            let without = kinds.filter(|(definition, _)| place.without.iter().any(|name| name == definition.name()));
            let without: Vec<u8> = without.map(|(_, kind)| kind).collect();
            let mut layer = Layer::default();
            for below in [&group, &own].into_iter().flatten() {
                layer.put_over(&below.layer);
            }
            layer.take_out(&without);
            if let Some(above) = &above {
                layer.put_over(&above.layer);
            }
            let size = layer.size() + (place.routes.len() * size_of::<(u32, Arc<Chain>)>()) as u64;
            builder.ledger.take(size).map_err(|error| {
                let path = format!("{}.plugins", consumer.origin.path);
                let code = Code::TooLarge { what: "on single routes: ".to_owned(), reason: error.to_string() };
                Diagnostic::error(consumer.origin.mark, path, code)
            })?;
            let chain = layer.chain();
            let numbers = place.routes.iter().filter_map(|id| self.slots.by_id.get(id.as_str()).copied());
            routes.extend(numbers.map(|number| (number, Arc::clone(&chain))));
        }
        routes.sort_unstable_by_key(|(number, _)| *number);
        let before = self.consumer_chains.get(number);
        let brought = Brought {
            chain: before.map_or_else(|| Arc::clone(Chain::nothing()), |brought| Arc::clone(&brought.chain)),
            keys: before.map(|brought| brought.keys.clone()).unwrap_or_default(),
            routes: routes.into(),
        };
        Arc::make_mut(&mut self.consumer_chains).set(number, Some(Arc::new(brought)));
        Ok(())
    }
}
