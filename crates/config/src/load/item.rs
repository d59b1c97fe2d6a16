//! Reading of an item's tree into a typed resource.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::kinds::{Item, references};
use super::rules::{drop_nulls, field};
use super::{Dropped, InvalidItems, Loader};
use crate::catalog::Scope;
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::kind::ResourceKind;
use crate::node::{Kind, Mark, Node, Path, push_index, quoted};
use crate::resource::{
    Consumer, CostDecorations, Credential, GraphqlCostDecoration, Id, ItemPath, Origin, PluginMetadata, Service,
    is_open,
};
use crate::schema::{Checker, ignore_unknown};

/// An item of a nested kind: the id of its owner, the position of its own, and the item.
pub(super) type Nested<T> = (String, Mark, T);

impl Loader<'_> {
    /// Reads an item; `None` when it is invalid.
    pub(super) fn item<T: Item>(&mut self, index: usize, node: Node) -> Option<T> {
        let path = item_path(T::KIND, index);
        let id = ["username", "id"].into_iter().find_map(|name| readable_id(node.get(name)?));
        let mark = node.mark;
        let before = self.found.len();
        let reserve = self.reserve(T::KIND, &path, &node);
        self.found.extend(self.text_errors.remove(&path).unwrap_or_default());
        let item = T::read(self, &path, node);
        if self.failed_since(before) {
            let place = reserve.and_then(|reserve| T::place(self, &path, index, reserve));
            self.drop_item(T::KIND, mark, path, id);
            return place.map(|mut item| {
                item.number(index + 1);
                item
            });
        }
        let mut item = item?;
        item.number(index + 1);
        Some(item)
    }

    /// Reads an item by its schema.
    pub(super) fn read_item<T: Item + DeserializeOwned>(&mut self, path: &str, mut node: Node) -> Option<T> {
        if node.as_map().is_some() {
            drop_nulls(&mut node, path, &mut self.found);
            T::prepare(self, &mut node, path);
        }
        let mut item = self.typed::<T>(path, &node)?;
        let fields: Vec<_> = references(&item).map(|reference| reference.field).collect();
        let references = fields.into_iter().filter_map(|name| Some((name, node.get(name)?.mark))).collect();
        *item.origin_mut() = Origin { path: ItemPath::of(T::KIND, path), mark: node.mark, references, entity: None };
        item.complete();
        if let Some(id) = item.common_id() {
            self.share(id);
        }
        Some(item)
    }

    /// Gives an id the text of an equal one that was read before.
    fn share(&mut self, id: &mut Id) {
        match self.common_ids.get(&*id) {
            Some(known) => *id = known.clone(),
            None => {
                self.common_ids.insert(id.clone());
            }
        }
    }

    pub(super) fn typed<T: DeserializeOwned + JsonSchema + 'static>(&mut self, path: &str, node: &Node) -> Option<T> {
        let mut faults = Checker::of::<T>().check(node);
        let known = ignore_unknown(node, &mut faults, is_open);
        let faults = faults.into_iter().map(|fault| fault.under(path));
        let faults: Vec<_> = faults.filter(|fault| !self.unresolved.contains(&fault.path)).collect();
        let failed = faults.iter().any(Diagnostic::is_error);
        self.found.extend(faults.into_iter().filter(|fault| !self.settled.contains(&fault.path)));
        if failed {
            return None;
        }
        known.parse_into().map_err(|fault| self.found.push(fault.under(path))).ok()
    }

    /// Leaves the later of several items with one id, as APISIX does.
    pub(super) fn unique<T: Item>(&mut self, mut items: Vec<Arc<T>>) -> Vec<Arc<T>> {
        let mut last: HashMap<&str, usize> = HashMap::with_capacity(items.len());
        let mut replaced: Vec<(usize, usize)> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            replaced.extend(last.insert(item.id(), at).map(|earlier| (earlier, at)));
        }
        for (earlier, later) in &replaced {
            let first = items[*earlier].origin().path.to_string();
            let code = Code::RepeatedId { id: items[*later].id().to_owned(), item: "item", first };
            let Origin { path, mark, .. } = items[*later].origin().clone();
            self.warn(mark, &path.to_string(), code);
        }
        let gone: HashSet<usize> = replaced.into_iter().map(|(earlier, _)| earlier).collect();
        let mut at = 0;
        items.retain(|_| {
            at += 1;
            gone.is_empty() || !gone.contains(&(at - 1))
        });
        items
    }

    /// The settings of one plugin.
    pub(super) fn metadata_item(&mut self, path: &str, mut node: Node) -> Option<PluginMetadata> {
        let mark = node.mark;
        let Some((_, Node { kind: Kind::Str(name), mark: name_mark })) = node.remove("id") else {
            self.found.push(Diagnostic::error(mark, path, Code::NoIdOfMetadata));
            return None;
        };
        let at = Path::Text(path);
        let unresolved = self.resolve(&mut node, &at);
        let is_unresolved = !unresolved.is_empty();
        self.wait_for(unresolved, &self.meanwhile(&name, Scope::Metadata, false));
        if self.plugin_name(&name, name_mark, &Path::Name(&at, "id")) {
            let _ = self.plugin_conf(&name, &node, &at, Scope::Metadata);
        }
        let origin = Origin { path: ItemPath::of(ResourceKind::PluginMetadata, path), mark, ..Origin::default() };
        Some(PluginMetadata { plugin: name, conf: node, is_unresolved, origin })
    }

    /// An item of a nested kind that stands beside its owner, with an id such as `<username>/credentials/<id>`.
    pub(super) fn nested_item<T: Item>(&mut self, index: usize, mut node: Node) -> Option<T> {
        let section = T::KIND.section();
        let path = item_path(section, index);
        let (mark, whole) = (node.mark, node.get("id").and_then(readable_id));
        let before = self.found.len();
        self.found.extend(self.text_errors.remove(&path).unwrap_or_default());
        let id = whole.as_deref().unwrap_or_default();
        let own = T::KIND.split_nested(id).map_or_else(|| id.rsplit('/').next(), |(_, own)| Some(own));
        let own = own.unwrap_or_default().to_owned();
        node.insert("id", Node { mark: node.mark_of("id"), kind: Kind::Str(own) });
        let item = T::read(self, &path, node);
        if self.failed_since(before) {
            self.drop_item(section, mark, path, whole);
            return None;
        }
        item
    }

    pub(super) fn prepare_credential(&mut self, node: &mut Node, path: &str) {
        drop_nulls(node, path, &mut self.found);
        let Some(plugins) = node.get_mut("plugins") else { return };
        for (key, _) in plugins.as_map().unwrap_or_default() {
            if self.plugin_names.contains(&*key.text) && !self.plugins.is_auth(&key.text) {
                let mut known = self.plugins.names();
                known.retain(|name| self.plugins.is_auth(name));
                let code = Code::NotAuthenticating { known: known.join(", ") };
                self.found.push(Diagnostic::error(key.mark, field(&field(path, "plugins"), &key.text), code));
            }
        }
        self.plugins(plugins, &Path::Name(&Path::Text(path), "plugins"), Scope::Consumer);
    }

    /// Gives credentials to the consumers they name.
    pub(super) fn attach_credentials(&mut self, consumers: &mut [Arc<Consumer>], list: Vec<Nested<Credential>>) {
        let owners = if list.is_empty() { &[] } else { &*consumers };
        let owners = owners.iter().enumerate().map(|(at, consumer)| (consumer.username.to_string(), at));
        let places: HashMap<String, usize> = owners.collect();
        for (owner, mark, credential) in list {
            if let Some(at) = places.get(&owner) {
                Arc::make_mut(&mut consumers[*at]).credentials.push(credential);
                continue;
            }
            let invalid = self.invalid_ids.get(&ResourceKind::Consumers).is_some_and(|ids| ids.contains(&owner));
            if !invalid || self.options.invalid_items == InvalidItems::Skip {
                let state = if invalid { "invalid" } else { "not there" };
                let code = Code::NoConsumerOfCredential { consumer: quoted(&owner), state };
                let error = Diagnostic::error(mark, field(&credential.origin.path.to_string(), "id"), code);
                let near = nearest(&owner, places.keys().map(String::as_str)).filter(|_| !invalid);
                self.found.push(Diagnostic { hint: Hint::nearest(near), ..error });
            }
            let whole = format!("{owner}/credentials/{}", credential.id);
            self.drop_item(ResourceKind::Consumers, mark, credential.origin.path.to_string(), Some(whole));
        }
        for consumer in consumers.iter_mut().filter(|consumer| consumer.credentials.len() > 1) {
            self.unique_credentials(Arc::make_mut(consumer));
        }
    }

    /// Gives weights of GraphQL to the services they name. One whose service is not there weighs nothing.
    pub(super) fn attach_decorations(
        &mut self,
        services: &mut [Arc<Service>],
        list: Vec<Nested<GraphqlCostDecoration>>,
    ) {
        if list.is_empty() {
            return;
        }
        let known: HashSet<String> = services.iter().map(|service| service.id().to_owned()).collect();
        let mut of_services: BTreeMap<String, Vec<GraphqlCostDecoration>> = BTreeMap::new();
        for (owner, mark, decoration) in list {
            if !known.contains(&owner) {
                let place = field(&decoration.origin.path.to_string(), "id");
                self.warn(mark, &place, Code::NoServiceOfDecoration { service: owner });
                continue;
            }
            of_services.entry(owner).or_default().push(decoration);
        }
        for service in services {
            if let Some(mut all) = of_services.remove(service.id()) {
                // The order of keys, as in a store.
                all.sort_by(|one, other| one.id.cmp(&other.id));
                self.decorate(Arc::make_mut(service), all);
            }
        }
    }

    /// Gives a service these weights.
    pub(super) fn decorate(&mut self, service: &mut Service, all: Vec<GraphqlCostDecoration>) {
        for (at, decoration) in all.iter().enumerate() {
            let origin = decoration.origin.clone();
            if let Some(other) = decoration.service_id.as_ref().filter(|named| named.as_str() != service.id()) {
                let code = Code::OtherServiceOfDecoration { service: other.to_string() };
                let place = field(&origin.path.to_string(), "service_id");
                self.found.push(Diagnostic::error(origin.mark, place, code));
            }
            let is_same = |other: &&GraphqlCostDecoration| other.field_path == decoration.field_path;
            if let Some(other) = all.iter().skip(at + 1).find(is_same) {
                let place = field(&origin.path.to_string(), "field_path");
                let code = Code::RepeatedFieldPath { path: decoration.field_path.clone(), other: other.id.to_string() };
                self.warn(origin.mark, &place, code);
            }
        }
        service.graphql_cost_decorations = CostDecorations::new(all);
    }

    /// Leaves the later of several credentials with one id.
    pub(super) fn unique_credentials(&mut self, consumer: &mut Consumer) {
        let mut kept: Vec<Credential> = Vec::with_capacity(consumer.credentials.len());
        for credential in std::mem::take(&mut consumer.credentials) {
            if let Some(earlier) = kept.iter().position(|known| known.id == credential.id) {
                let first = kept.remove(earlier).origin.path.to_string();
                let code = Code::RepeatedId { id: credential.id.to_string(), item: "one", first };
                self.warn(credential.origin.mark, &credential.origin.path.to_string(), code);
            }
            kept.push(credential);
        }
        consumer.credentials = kept;
    }

    /// Notes that an item is invalid and, where the rest is used, that it is missing.
    pub(super) fn drop_item(&mut self, kind: ResourceKind, mark: Mark, path: String, id: Option<String>) {
        if let Some(id) = &id {
            self.invalid_ids.entry(kind).or_default().insert(id.clone());
        }
        if self.options.invalid_items == InvalidItems::Skip && kind == ResourceKind::GlobalRules {
            // Every route would be served without it, and it may be what authenticates or limits.
            self.refuse(Diagnostic::error(mark, &path, Code::GlobalRuleNotLeftOut));
        } else if self.options.invalid_items == InvalidItems::Skip && kind == ResourceKind::StreamRoutes {
            // A stream route for everything would take its connections, without its plugins.
            self.refuse(Diagnostic::error(mark, &path, Code::StreamRouteNotLeftOut));
        } else if self.options.invalid_items == InvalidItems::Skip {
            self.warn(mark, &path, Code::LeftOut);
        }
        self.dropped.push(Dropped { path, id });
    }
}

pub(super) fn item_path(kind: ResourceKind, index: usize) -> String {
    let mut path = kind.directory().to_owned();
    push_index(&mut path, index);
    path
}

pub(super) fn readable_id(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Str(text) => Some(text.clone()),
        Kind::Int(number) => Some(number.to_string()),
        _ => None,
    }
}
