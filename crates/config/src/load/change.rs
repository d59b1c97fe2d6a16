//! Changes of single resources, checked by the rules of a whole document.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::kinds::{Item, references};
use super::link::Known;
use super::rules::field;
use super::{LoadOptions, Loaded, Loader};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::kind::{ResourceKey, ResourceKind, with_type};
use crate::model::{ItemChange, Items, Model};
use crate::node::{Key, Kind, Mark, Node};
use crate::resource::{Consumer, Credential, GlobalRule, GraphqlCostDecoration, Service};
use crate::secret::Revealed;

/// A change that is right.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The resources with it.
    pub model: Model,
    /// The keys of what came, changed or went, each once; that of the consumer for a credential.
    pub keys: Vec<ResourceKey>,
    /// Warnings about the change.
    pub warnings: Vec<Diagnostic>,
    /// The secrets in the change, to be taken out of every text about it.
    pub revealed: Revealed,
}

impl Model {
    /// The resources after some were put in place, or taken away. Unchanged resources are not checked again, but for
    /// their references to changed ones; and they are shared with this model.
    ///
    /// Paths in messages begin with the place of a resource: `routes/a.uri`, where those of a file have `routes[0].uri`.
    ///
    /// # Errors
    /// Everything that is wrong, [`InvalidItems::Skip`](super::InvalidItems::Skip) or not: what is to be left out is not
    /// known before the whole is read.
    pub fn change(
        &self,
        name: &str,
        changes: Vec<ItemChange>,
        options: &LoadOptions<'_>,
    ) -> Result<Changed, Vec<Diagnostic>> {
        let options = LoadOptions { invalid_items: super::InvalidItems::Refuse, ..*options };
        let mut loader = Loader::new(&options);
        if !self.is_changeable() {
            return Err(vec![Diagnostic::error(Mark::NONE, "", Code::NotChangeable)]);
        }
        let mut model = self.clone();
        model.compiled = self.compiled.moved();
        loader.compiled = model.compiled.clone();
        let keys = loader.change(&mut model, changes);
        let failed = loader.failed_since(0);
        let Loaded { diagnostics, revealed, .. } = loader.finish(name, None);
        if failed { Err(diagnostics) } else { Ok(Changed { model, keys, warnings: diagnostics, revealed }) }
    }
}

impl Loader<'_> {
    fn change(&mut self, model: &mut Model, changes: Vec<ItemChange>) -> Vec<ResourceKey> {
        let mut keys = BTreeSet::new();
        // The others may refer to what is kept there.
        let (secrets, others): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.key.kind() == ResourceKind::Secrets);
        for change in secrets {
            self.put_change(model, change, &mut keys);
        }
        let managers = model.secrets.in_order();
        let managers =
            managers.into_iter().map(|listed| (listed.item.id.as_str().to_owned(), Arc::clone(&listed.item)));
        self.managers = Some(managers.collect());
        for change in others {
            self.put_change(model, change, &mut keys);
        }
        for key in &keys {
            match key.kind() {
                ResourceKind::Consumers => self.compose_consumer(model, &key.shared_id()),
                ResourceKind::Services => self.compose_service(model, &key.shared_id()),
                _ => {}
            }
        }
        if !self.failed_since(0) {
            self.relink(model, &keys);
        }
        keys.into_iter().collect()
    }

    fn put_change(&mut self, model: &mut Model, change: ItemChange, keys: &mut BTreeSet<ResourceKey>) {
        let ItemChange { key, node, left_out } = change;
        // A resource changes with those below it.
        keys.insert(key.owner_key().unwrap_or_else(|| key.clone()));
        if left_out {
            return match key.kind() {
                ResourceKind::Ssls => self.put_names(model, &key, node),
                _ => self.put_place(model, &key, node),
            };
        }
        with_type!(key.kind(), T => self.put::<T>(model, &key, node), else {
            self.found.push(Diagnostic::error(Mark::NONE, key.to_string(), Code::UnknownSection));
        });
    }

    /// Puts an item in its place, or takes it away.
    fn put<T: Item>(&mut self, model: &mut Model, key: &ResourceKey, node: Option<Node>) {
        let before = T::own_items(model).remove(&key.shared_id());
        if let Some(before) = &before {
            for target in targets(&*before.item) {
                model.refer_no_more(target, key.clone());
            }
        }
        let Some(mut node) = node else { return };
        let path = key.to_string();
        let (id_field, own) = (T::KIND.id_field(), key.own_id());
        // Stores have a credential with its own id, rules files with that of its consumer before it.
        if own != key.id() && node.get(id_field).and_then(Node::as_str) == Some(key.id()) {
            node.remove(id_field);
        }
        name(&mut node, id_field, own);
        let Some(item) = T::read(self, &path, node) else { return };
        if item.id() != own {
            let code = Code::OtherId { key: id_field, id: item.id().to_owned(), place: key.id().to_owned() };
            self.found.push(Diagnostic::error(item.origin().mark, field(&path, id_field), code));
        }
        for target in targets(&item) {
            model.refer(target, key.clone());
        }
        let order = before.map_or_else(|| model.next_order(), |before| before.order);
        T::own_items(model).put(key.shared_id(), Arc::new(item), order);
    }

    /// Gives a consumer the credentials that stand beside it.
    fn compose_consumer(&mut self, model: &mut Model, username: &Arc<str>) {
        let prefix = format!("{username}/credentials/");
        let mut beside: Vec<_> = model.lone_credentials.below(&prefix).cloned().collect();
        beside.sort_unstable_by_key(|listed| listed.order);
        let Some(alone) = model.lone_consumers.listed(username).cloned() else {
            model.consumers.remove(username);
            for credential in beside {
                let code = Code::NoConsumerOfCredential { consumer: format!("'{username}'"), state: "not there" };
                let origin = &credential.item.origin;
                self.found.push(Diagnostic::error(origin.mark, origin.path.to_string(), code));
            }
            return;
        };
        let item = if beside.is_empty() && alone.item.credentials.len() < 2 {
            alone.item
        } else {
            let mut consumer = Consumer::clone(&alone.item);
            consumer.credentials.extend(beside.iter().map(|listed| Credential::clone(&listed.item)));
            self.unique_credentials(&mut consumer);
            Arc::new(consumer)
        };
        model.consumers.put(Arc::clone(username), item, alone.order);
    }

    /// Gives a service the weights of GraphQL below it.
    fn compose_service(&mut self, model: &mut Model, id: &Arc<str>) {
        let Some(alone) = model.lone_services.listed(id).cloned() else {
            model.services.remove(id);
            return;
        };
        let prefix = format!("{id}/{}/", ResourceKind::GraphqlCostDecorations.plural());
        let below: Vec<_> = model.lone_decorations.below(&prefix).map(|listed| Arc::clone(&listed.item)).collect();
        let item = match below.is_empty() {
            true => alone.item,
            false => {
                let mut service = Service::clone(&alone.item);
                self.decorate(&mut service, below.iter().map(|item| GraphqlCostDecoration::clone(item)).collect());
                Arc::new(service)
            }
        };
        model.services.put(Arc::clone(id), item, alone.order);
    }

    /// Checks the references of what changed, and those to it.
    fn relink(&mut self, model: &Model, keys: &BTreeSet<ResourceKey>) {
        for key in keys {
            self.refers_from(model, key);
            if model.has(key.kind(), key.id()) {
                continue; // It can be referred to; of an upstream's users there may be very many.
            }
            for referrer in model.referrers(key).filter(|referrer| !keys.contains(*referrer)) {
                self.refers_from(model, referrer);
            }
        }
        if keys.iter().any(|key| key.kind() == ResourceKind::GlobalRules) {
            let rules = model.global_rules.in_order();
            let mut rules: Vec<Arc<GlobalRule>> = rules.into_iter().map(|listed| Arc::clone(&listed.item)).collect();
            self.plugins_of_global_rules(&mut rules);
        }
    }

    fn refers_from(&mut self, model: &Model, key: &ResourceKey) {
        fn check<T: Item>(loader: &mut Loader<'_>, items: &Items<T>, model: &Model, id: &str) {
            if let Some(item) = items.get(id) {
                loader.refers(&**item, model);
            }
        }
        with_type!(key.kind(), T => check(self, T::items(model), model, key.id()), else ());
    }
}

impl Known for Model {
    fn has(&self, kind: ResourceKind, id: &str) -> bool {
        with_type!(kind, T => T::items(self).get(id).is_some_and(|item| item.may_be_referred_to()), else false)
    }

    fn ids(&self, kind: ResourceKind) -> Vec<&str> {
        with_type!(kind, T => T::items(self).ids().collect(), else Vec::new())
    }
}

/// Keys of the resources that an item refers to.
fn targets<T: Item>(item: &T) -> Vec<ResourceKey> {
    references(item).map(|reference| ResourceKey::shared(reference.to, reference.id.shared())).collect()
}

/// Gives an item the id that it stands under, unless it has one.
fn name(node: &mut Node, key: &str, id: &str) {
    let mark = node.mark;
    if let Kind::Map(fields) = &mut node.kind
        && fields.iter().all(|(field, _)| &*field.text != key)
    {
        let value = Node { mark, kind: Kind::Str(id.to_owned()) };
        fields.insert(0, (Key { text: key.into(), mark }, value));
    }
}
