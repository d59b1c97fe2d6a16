//! Changes of single resources, checked by the rules of a whole document.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::item::Item;
use super::link::Known;
use super::rules::field;
use super::{LoadOptions, Loaded, Loader};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::model::{ItemChange, Items, Model, Place, Section};
use crate::node::{Key, Kind, Mark, Node};
use crate::resource::{
    Consumer, ConsumerGroup, Credential, GlobalRule, PluginConfig, Proto, Route, SecretManager, Service, Ssl, SslType,
    Upstream,
};
use crate::secret::Revealed;

/// A change that is right.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The resources with it.
    pub model: Model,
    /// The places of what came, changed or went, each once.
    pub places: Vec<Place>,
    /// What is doubtful about it.
    pub warnings: Vec<Diagnostic>,
    /// The secrets in it. Whoever says something about it takes them out.
    pub revealed: Revealed,
}

impl Model {
    /// The resources after some were put in place, or taken away. What did not change is not checked again, but for its
    /// references to what did; and it is shared with this model.
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
        let places = loader.change(&mut model, changes);
        let failed = loader.failed_since(0);
        let Loaded { diagnostics, revealed, .. } = loader.finish(name, None);
        if failed { Err(diagnostics) } else { Ok(Changed { model, places, warnings: diagnostics, revealed }) }
    }
}

impl Loader<'_> {
    fn change(&mut self, model: &mut Model, changes: Vec<ItemChange>) -> Vec<Place> {
        let mut places = BTreeSet::new();
        // The others may refer to what is kept there.
        let (secrets, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(|c| c.section == Section::Secrets);
        for ItemChange { section, id, node, .. } in secrets {
            places.insert(Place { section, id: Arc::clone(&id) });
            self.put::<SecretManager>(model, &id, node);
        }
        let managers = model.secrets.in_order();
        let managers =
            managers.into_iter().map(|listed| (listed.item.id.as_str().to_owned(), Arc::clone(&listed.item)));
        self.managers = Some(managers.collect());
        for ItemChange { section, id, node, left_out } in others {
            // The consumer changes with its credentials.
            let owner = id.split_once("/credentials/").filter(|_| section == Section::Consumers);
            places.insert(Place { section, id: owner.map_or_else(|| Arc::clone(&id), |(owner, _)| owner.into()) });
            match section {
                Section::Secrets => self.put::<SecretManager>(model, &id, node),
                Section::Protos => self.put::<Proto>(model, &id, node),
                Section::Ssls => self.put::<Ssl>(model, &id, node),
                Section::Upstreams => self.put::<Upstream>(model, &id, node),
                Section::Services => self.put::<Service>(model, &id, node),
                Section::PluginConfigs => self.put::<PluginConfig>(model, &id, node),
                Section::Routes if left_out => self.put_place(model, &id, node),
                Section::Routes => self.put::<Route>(model, &id, node),
                Section::ConsumerGroups => self.put::<ConsumerGroup>(model, &id, node),
                Section::Consumers if owner.is_some() => self.put_credential(model, &id, node),
                Section::Consumers => self.put::<Consumer>(model, &id, node),
                Section::GlobalRules => self.put::<GlobalRule>(model, &id, node),
                Section::PluginMetadata => self.put_metadata(model, &id, node),
            }
        }
        for place in places.iter().filter(|place| place.section == Section::Consumers) {
            self.compose_consumer(model, &place.id);
        }
        if !self.failed_since(0) {
            self.relink(model, &places);
        }
        places.into_iter().collect()
    }

    /// Puts an item in its place, or takes it away.
    fn put<T: Item>(&mut self, model: &mut Model, id: &Arc<str>, node: Option<Node>) {
        let place = Place { section: T::KIND, id: Arc::clone(id) };
        let before = T::items(model).remove(id);
        if let Some(before) = &before {
            for target in targets(&*before.item) {
                model.refer_no_more(target, place.clone());
            }
        }
        let Some(mut node) = node else { return };
        let path = place.to_string();
        let key = if T::KIND == Section::Consumers { "username" } else { "id" };
        name(&mut node, key, id);
        let Some(item) = self.read_item::<T>(&path, node) else { return };
        if item.id() != &**id {
            let code = Code::OtherId { key, id: item.id().to_owned(), place: id.to_string() };
            self.found.push(Diagnostic::error(item.origin().mark, field(&path, key), code));
        }
        for target in targets(&item) {
            model.refer(target, place.clone());
        }
        let order = before.map_or_else(|| model.next_order(), |before| before.order);
        T::items(model).put(Arc::clone(id), Arc::new(item), order);
    }

    fn put_credential(&mut self, model: &mut Model, id: &Arc<str>, node: Option<Node>) {
        let before = model.lone_credentials.remove(id);
        let Some(mut node) = node else { return };
        let path = Place { section: Section::Consumers, id: Arc::clone(id) }.to_string();
        let own = id.split_once("/credentials/").map_or(&**id, |(_, own)| own);
        // Stores have it with its own id, rules files with the whole path.
        if node.get("id").and_then(Node::as_str) == Some(&**id) {
            node.remove("id");
        }
        name(&mut node, "id", own);
        let Some(credential) = self.credential(&path, node, 0) else { return };
        if credential.id.as_str() != own {
            let code = Code::OtherId { key: "id", id: credential.id.to_string(), place: id.to_string() };
            self.found.push(Diagnostic::error(credential.origin.mark, field(&path, "id"), code));
        }
        let order = before.map_or_else(|| model.next_order(), |before| before.order);
        model.lone_credentials.put(Arc::clone(id), Arc::new(credential), order);
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
                self.found.push(Diagnostic::error(origin.mark, origin.path.as_str(), code));
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

    fn put_metadata(&mut self, model: &mut Model, id: &Arc<str>, node: Option<Node>) {
        let before = model.plugin_metadata.remove(id);
        let Some(mut node) = node else { return };
        let path = Place { section: Section::PluginMetadata, id: Arc::clone(id) }.to_string();
        name(&mut node, "id", id);
        let item = self.metadata_item(&path, node);
        if item.plugin != **id {
            let code = Code::OtherId { key: "id", id: item.plugin.clone(), place: id.to_string() };
            self.found.push(Diagnostic::error(item.origin.mark, field(&path, "id"), code));
        }
        let order = before.map_or_else(|| model.next_order(), |before| before.order);
        model.plugin_metadata.put(Arc::clone(id), Arc::new(item), order);
    }

    /// Checks the references of what changed, and those to it.
    fn relink(&mut self, model: &Model, places: &BTreeSet<Place>) {
        for place in places {
            self.refers_from(model, place);
            if model.has(place.section, &place.id) {
                continue; // It can be referred to; of an upstream's users there may be very many.
            }
            for referrer in model.referrers(place).filter(|referrer| !places.contains(*referrer)) {
                self.refers_from(model, referrer);
            }
        }
        if places.iter().any(|place| place.section == Section::GlobalRules) {
            let rules = model.global_rules.in_order();
            let mut rules: Vec<Arc<GlobalRule>> = rules.into_iter().map(|listed| Arc::clone(&listed.item)).collect();
            self.plugins_of_global_rules(&mut rules);
        }
    }

    fn refers_from(&mut self, model: &Model, place: &Place) {
        fn check<T: Item>(loader: &mut Loader<'_>, items: &Items<T>, model: &Model, id: &str) {
            if let Some(item) = items.get(id) {
                loader.refers(&**item, model);
            }
        }
        match place.section {
            Section::Upstreams => check(self, &model.upstreams, model, &place.id),
            Section::Services => check(self, &model.services, model, &place.id),
            Section::Routes => check(self, &model.routes, model, &place.id),
            Section::Consumers => check(self, &model.consumers, model, &place.id),
            // They refer to nothing.
            Section::Secrets
            | Section::Protos
            | Section::Ssls
            | Section::PluginConfigs
            | Section::ConsumerGroups
            | Section::GlobalRules
            | Section::PluginMetadata => {}
        }
    }
}

impl Known for Model {
    fn has(&self, section: Section, id: &str) -> bool {
        match section {
            Section::Ssls => self.ssls.get(id).is_some_and(|ssl| ssl.r#type == SslType::Client),
            _ => self.contains(section, id),
        }
    }

    fn ids(&self, section: Section) -> Vec<&str> {
        match section {
            Section::Secrets => self.secrets.ids().collect(),
            Section::Protos => self.protos.ids().collect(),
            Section::Ssls => self.ssls.ids().collect(),
            Section::Upstreams => self.upstreams.ids().collect(),
            Section::Services => self.services.ids().collect(),
            Section::PluginConfigs => self.plugin_configs.ids().collect(),
            Section::Routes => self.routes.ids().collect(),
            Section::ConsumerGroups => self.consumer_groups.ids().collect(),
            Section::Consumers => self.consumers.ids().collect(),
            Section::GlobalRules => self.global_rules.ids().collect(),
            Section::PluginMetadata => self.plugin_metadata.ids().collect(),
        }
    }
}

/// What an item refers to.
fn targets<T: Item>(item: &T) -> Vec<Place> {
    let references = item.references().into_iter();
    references.map(|reference| Place { section: reference.to, id: reference.id.shared() }).collect()
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
