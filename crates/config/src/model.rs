//! Checked resources that can be changed one by one, as a store needs it where a file is read whole.
//!
//! A [`Model`] is a value: [`Model::change`] gives a new one, which shares with the old one whatever the change does not
//! concern. So a change that is refused further on has never happened, at no cost.

use std::fmt;
use std::sync::Arc;

use crate::node::Node;
use crate::resource::{
    Consumer, ConsumerGroup, Credential, Document, GlobalRule, PluginConfig, PluginMetadata, Proto, Route,
    SecretManager, Service, Ssl, Status, Upstream,
};
use crate::shared::{SharedMap, SharedSet, starting_at};

/// A kind of resource: the name of its list in a rules file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// `secrets`
    Secrets,
    /// `protos`
    Protos,
    /// `ssls`
    Ssls,
    /// `upstreams`
    Upstreams,
    /// `services`
    Services,
    /// `plugin_configs`
    PluginConfigs,
    /// `routes`
    Routes,
    /// `consumer_groups`
    ConsumerGroups,
    /// `consumers`, with the credentials that stand beside them
    Consumers,
    /// `global_rules`
    GlobalRules,
    /// `plugin_metadata`
    PluginMetadata,
}

/// The place of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Its kind.
    pub section: Section,
    /// Its id: the user name of a consumer, the plugin's name of metadata.
    pub id: Arc<str>,
}

/// What is to become of one resource.
#[derive(Clone, Debug)]
pub struct ItemChange {
    /// Its kind.
    pub section: Section,
    /// Its id; `<username>/credentials/<id>` among the consumers is a credential of one.
    pub id: Arc<str>,
    /// Its tree as it would stand in a rules file; `None`: it is to go.
    pub node: Option<Node>,
    /// A route that is left out: the tree has nothing but its place (`load::place_of`), where it answers 503.
    pub left_out: bool,
}

/// Resources as a [`Document`] has them: ids are unique in each section and every reference leads to a resource.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Where secrets are kept. What was read from there before stays as it was when these change.
    pub secrets: Items<SecretManager>,
    /// Which requests are taken and what is done with them.
    pub routes: Items<Route>,
    /// What several routes have in common.
    pub services: Items<Service>,
    /// Where requests go.
    pub upstreams: Items<Upstream>,
    /// Who calls, with all credentials.
    pub consumers: Items<Consumer>,
    /// Plugins that several consumers have in common.
    pub consumer_groups: Items<ConsumerGroup>,
    /// Plugins that several routes have in common.
    pub plugin_configs: Items<PluginConfig>,
    /// What gRPC services look like.
    pub protos: Items<Proto>,
    /// Plugins for every request.
    pub global_rules: Items<GlobalRule>,
    /// Certificates.
    pub ssls: Items<Ssl>,
    /// Settings of a plugin that hold wherever it is used.
    pub plugin_metadata: Items<PluginMetadata>,
    /// Consumers without the credentials that stand beside them.
    pub(crate) lone_consumers: Items<Consumer>,
    /// The credentials that stand beside consumers, under `<username>/credentials/<id>`.
    pub(crate) lone_credentials: Items<Credential>,
    /// What is referred to, and by what.
    references: SharedSet<(Place, Place)>,
    /// The order of the next resource.
    next: u64,
    /// Whether it is of a kind that cannot be changed.
    whole: bool,
}

/// The resources of one section.
pub struct Items<T>(SharedMap<Arc<str>, Listed<T>>);

/// A resource with its place in the order of the section.
#[derive(Debug)]
pub struct Listed<T> {
    /// The resource.
    pub item: Arc<T>,
    /// Less than that of every resource that came later. It stays when the resource is replaced.
    pub order: u64,
}

impl Section {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Secrets => "secrets",
            Self::Protos => "protos",
            Self::Ssls => "ssls",
            Self::Upstreams => "upstreams",
            Self::Services => "services",
            Self::PluginConfigs => "plugin_configs",
            Self::Routes => "routes",
            Self::ConsumerGroups => "consumer_groups",
            Self::Consumers => "consumers",
            Self::GlobalRules => "global_rules",
            Self::PluginMetadata => "plugin_metadata",
        }
    }

    /// The section with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    const ALL: [Self; 11] = [
        Self::Secrets,
        Self::Protos,
        Self::Ssls,
        Self::Upstreams,
        Self::Services,
        Self::PluginConfigs,
        Self::Routes,
        Self::ConsumerGroups,
        Self::Consumers,
        Self::GlobalRules,
        Self::PluginMetadata,
    ];
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.section.name(), self.id)
    }
}

impl Model {
    /// Whether it can be changed piece by piece.
    #[must_use]
    pub fn is_changeable(&self) -> bool {
        !self.whole
    }

    /// Whether there is such a resource; `<username>/credentials/<id>` among the consumers is a credential of one.
    #[must_use]
    pub fn contains(&self, section: Section, id: &str) -> bool {
        match section {
            Section::Secrets => self.secrets.get(id).is_some(),
            Section::Protos => self.protos.get(id).is_some(),
            Section::Ssls => self.ssls.get(id).is_some(),
            Section::Upstreams => self.upstreams.get(id).is_some(),
            Section::Services => self.services.get(id).is_some(),
            Section::PluginConfigs => self.plugin_configs.get(id).is_some(),
            Section::Routes => self.routes.get(id).is_some_and(|route| route.status != Status::LeftOut),
            Section::ConsumerGroups => self.consumer_groups.get(id).is_some(),
            Section::Consumers => self.consumers.get(id).is_some() || self.lone_credentials.get(id).is_some(),
            Section::GlobalRules => self.global_rules.get(id).is_some(),
            Section::PluginMetadata => self.plugin_metadata.get(id).is_some(),
        }
    }

    /// What refers to a resource.
    pub fn referrers<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = &'a Place> {
        let pairs = starting_at(self.references.root(), move |(target, _)| target < place).map(|(pair, ())| pair);
        pairs.take_while(move |(target, _)| target == place).map(|(_, referrer)| referrer)
    }

    pub(crate) fn refer(&mut self, target: Place, referrer: Place) {
        self.references.insert_cow((target, referrer));
    }

    pub(crate) fn refer_no_more(&mut self, target: Place, referrer: Place) {
        self.references.remove_cow(&(target, referrer));
    }

    /// The order of a new resource.
    pub(crate) fn next_order(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// For configurations that are only ever replaced whole: a model of this kind cannot be changed, since a document does
/// not tell which credentials stand beside their consumers.
impl From<Document> for Model {
    fn from(document: Document) -> Self {
        Self {
            secrets: document.secrets.into_iter().map(|item| (item.id.as_str().into(), item)).collect(),
            routes: document.routes.into_iter().map(|item| (item.id.shared(), item)).collect(),
            services: document.services.into_iter().map(|item| (item.id.shared(), item)).collect(),
            upstreams: document.upstreams.into_iter().map(|item| (item.id.shared(), item)).collect(),
            consumers: document.consumers.into_iter().map(|item| (item.username.shared(), item)).collect(),
            consumer_groups: document.consumer_groups.into_iter().map(|item| (item.id.shared(), item)).collect(),
            plugin_configs: document.plugin_configs.into_iter().map(|item| (item.id.shared(), item)).collect(),
            protos: document.protos.into_iter().map(|item| (item.id.shared(), item)).collect(),
            global_rules: document.global_rules.into_iter().map(|item| (item.id.shared(), item)).collect(),
            ssls: document.ssls.into_iter().map(|item| (item.id.shared(), item)).collect(),
            plugin_metadata: document.plugin_metadata.into_iter().map(|m| (m.plugin.as_str().into(), m)).collect(),
            whole: true,
            ..Self::default()
        }
    }
}

impl<T> Items<T> {
    /// The resource with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<T>> {
        self.0.get(id).map(|listed| &listed.item)
    }

    /// The same, with its order.
    #[must_use]
    pub fn listed(&self, id: &str) -> Option<&Listed<T>> {
        self.0.get(id)
    }

    /// All of them, in their order.
    #[must_use]
    pub fn in_order(&self) -> Vec<&Listed<T>> {
        let mut all: Vec<_> = self.0.into_iter().map(|(_, listed)| listed).collect();
        all.sort_unstable_by_key(|listed| listed.order);
        all
    }

    /// All of them with their ids, in the order of the letters of these.
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

    /// Those whose ids begin with `prefix`.
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

/// In the order given.
impl<T> FromIterator<(Arc<str>, Arc<T>)> for Items<T> {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<T>)>>(items: I) -> Self {
        /// So many go in at once: neighbours, where one by one each would look for its place.
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
