//! Checked resources that can be changed one by one, as a store needs them where a file is read whole.
//!
//! A [`Model`] is a value: [`Model::change`] gives a new one, which shares with the old one whatever the change does not
//! concern. So a change that is refused further on has never happened, at no cost.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::catalog::CompiledConfs;
use crate::front_end::Family;
use crate::kind::{ResourceKey, ResourceKind, listed, with_type};
use crate::load::Item;
use crate::node::Node;
use crate::resource::{Consumer, Credential, Document, GraphqlCostDecoration, Service};
use crate::shared::{SharedMap, SharedSet, starting_at};

/// Change of one resource.
#[derive(Clone, Debug)]
pub struct ItemChange {
    /// Key of the resource.
    pub key: ResourceKey,
    /// Tree of the resource as in a rules file; `None` deletes the resource.
    pub node: Option<Node>,
    /// A route, or a certificate, that is left out: nothing but its place is read (`load::place_of`).
    pub left_out: bool,
}

macro_rules! model {
    ($($(#[$doc:meta])* $type:ident $items:ident;)*) => {
        /// Resources as a [`Document`] has them: ids are unique in each section and every reference leads to a resource.
        #[derive(Clone, Debug, Default)]
        pub struct Model {
            $($(#[$doc])* pub $items: Items<crate::resource::$type>,)*
            /// Plugins that were compiled to check their configurations, for the compiler that builds them.
            pub compiled: CompiledConfs,
            /// Family that the resources were lowered from.
            pub family: &'static Family,
            /// Consumers without the credentials that stand beside them.
            pub(crate) lone_consumers: Items<Consumer>,
            /// The credentials that stand beside consumers, under `<username>/credentials/<id>`.
            pub(crate) lone_credentials: Items<Credential>,
            /// Services without the weights of GraphQL below them.
            pub(crate) lone_services: Items<Service>,
            /// The weights, under `<service>/graphql_cost_decorations/<id>`.
            pub(crate) lone_decorations: Items<GraphqlCostDecoration>,
            /// Pairs of a resource that is referred to and one that refers to it.
            references: SharedSet<(ResourceKey, ResourceKey)>,
            /// The order of the next resource.
            next: u64,
            /// True for a model that cannot be changed.
            whole: bool,
        }

        /// Conversion for configurations that are only ever replaced whole: a model made this way cannot be changed,
        /// since a document does not record which credentials stand beside their consumers.
        impl From<Document> for Model {
            fn from(document: Document) -> Self {
                Self {
                    $($items: document.$items.into_iter().map(|item| (item.shared_id(), item)).collect(),)*
                    compiled: document.compiled,
                    family: document.family,
                    whole: true,
                    ..Self::default()
                }
            }
        }
    };
}
listed!(model);

/// The resources of one section.
pub struct Items<T>(SharedMap<Arc<str>, Listed<T>>);

/// A resource with its place in the order of the section.
#[derive(Debug)]
pub struct Listed<T> {
    /// The resource.
    pub item: Arc<T>,
    /// Number below that of every resource that came later; kept when the resource is replaced.
    pub order: u64,
}

impl Model {
    /// True for a model that can be changed piece by piece.
    #[must_use]
    pub fn is_changeable(&self) -> bool {
        !self.whole
    }

    /// True if there is such a resource.
    #[must_use]
    pub fn contains(&self, key: &ResourceKey) -> bool {
        with_type!(key.kind(), T => T::items(self).get(key.id()).is_some_and(|item| !item.is_left_out()), else false)
    }

    /// Calls a function with the id and the JSON text of each resource of a kind that is not left out, in the order of the ids.
    pub fn each_as_json(&self, kind: ResourceKind, each: &mut dyn FnMut(&str, &[u8])) {
        fn all<T: Item>(items: &Items<T>, each: &mut dyn FnMut(&str, &[u8])) {
            let mut text = Vec::new();
            for (id, item) in items.iter().filter(|(_, item)| !item.is_left_out()) {
                write_json(&**item, &mut text);
                each(id, &text);
            }
        }
        with_type!(kind, T => all(T::items(self), each), else ());
    }

    /// The JSON text of a resource, unless it is left out.
    #[must_use]
    pub fn json_of(&self, key: &ResourceKey) -> Option<Vec<u8>> {
        fn one<T: Item>(items: &Items<T>, id: &str) -> Option<Vec<u8>> {
            let mut text = Vec::new();
            write_json(&**items.get(id).filter(|item| !item.is_left_out())?, &mut text);
            Some(text)
        }
        with_type!(key.kind(), T => one(T::items(self), key.id()), else None)
    }

    /// Keys of the resources that refer to one.
    pub fn referrers<'a>(&'a self, key: &'a ResourceKey) -> impl Iterator<Item = &'a ResourceKey> {
        let pairs = starting_at(self.references.root(), move |(target, _)| target < key).map(|(pair, ())| pair);
        pairs.take_while(move |(target, _)| target == key).map(|(_, referrer)| referrer)
    }

    pub(crate) fn refer(&mut self, target: ResourceKey, referrer: ResourceKey) {
        self.references.insert_cow((target, referrer));
    }

    pub(crate) fn refer_no_more(&mut self, target: ResourceKey, referrer: ResourceKey) {
        self.references.remove_cow(&(target, referrer));
    }

    /// The order of a new resource.
    pub(crate) fn next_order(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Writes the JSON text of a resource. A failed serialization leaves a text that is cut off, for comparisons only.
fn write_json(item: &impl Serialize, text: &mut Vec<u8>) {
    text.clear();
    let _ = serde_json::to_writer(&mut *text, item);
}

impl<T> Items<T> {
    /// The resource with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<T>> {
        self.0.get(id).map(|listed| &listed.item)
    }

    /// The resource with this id, and its order.
    #[must_use]
    pub fn listed(&self, id: &str) -> Option<&Listed<T>> {
        self.0.get(id)
    }

    /// All resources, in their order.
    #[must_use]
    pub fn in_order(&self) -> Vec<&Listed<T>> {
        let mut all: Vec<_> = self.0.into_iter().map(|(_, listed)| listed).collect();
        all.sort_unstable_by_key(|listed| listed.order);
        all
    }

    /// All resources with their ids, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<T>)> {
        self.0.into_iter().map(|(id, listed)| (id, &listed.item))
    }

    /// All ids, in the order of their letters, not copied.
    pub fn shared_ids(&self) -> impl Iterator<Item = Arc<str>> {
        self.iter().map(|(id, _)| Arc::clone(id))
    }

    /// All ids, in the order of their letters.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.into_iter().map(|(id, _)| &**id)
    }

    /// Resources whose ids begin with `prefix`.
    pub(crate) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Listed<T>> {
        let all = starting_at(self.0.root(), move |id| **id < *prefix);
        all.take_while(move |(id, _)| id.starts_with(prefix)).map(|(_, listed)| listed)
    }

    pub(crate) fn put(&mut self, id: Arc<str>, item: Arc<T>, order: u64) {
        self.0.insert_cow(id, Listed { item, order });
    }

    pub(crate) fn remove(&mut self, id: &Arc<str>) -> Option<Listed<T>> {
        self.0.remove_cow(id)
    }
}

/// Collects resources in the order given.
impl<T> FromIterator<(Arc<str>, Arc<T>)> for Items<T> {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<T>)>>(items: I) -> Self {
        /// Entries inserted at once: neighbours share the search for their place.
        const TOGETHER: usize = 512;
        let listed = items.into_iter().zip(1..).map(|((id, item), order)| (id, Listed { item, order }));
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (mut all, mut left) = (SharedMap::new(), listed.into_iter());
        while left.len() > 0 {
            all = all.insert_many(left.by_ref().take(TOGETHER));
        }
        Self(all)
    }
}

impl<T> Clone for Items<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self(SharedMap::new())
    }
}

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}

impl<T> Clone for Listed<T> {
    fn clone(&self) -> Self {
        Self { item: Arc::clone(&self.item), order: self.order }
    }
}
