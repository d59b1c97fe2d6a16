//! From the tree of an item to a typed resource.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::link::Reference;
use super::rules::{check_route, check_secret_manager, check_service, check_ssl, drop_nulls, field, prepare_upstream};
use super::{Dropped, InvalidItems, Loader};
use crate::catalog::{AUTH_PLUGINS, Scope};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::model::{Items, Model, Section};
use crate::node::{Key, Kind, Mark, Node, Path, push_index, quoted};
use crate::resource::{
    Consumer, ConsumerGroup, Credential, GlobalRule, Id, Origin, PluginConfig, PluginMetadata, Proto, Route,
    SecretManager, Service, Ssl, Upstream, compile_proto, is_open,
};
use crate::schema::{Checker, ignore_unknown};
use crate::unsupported::{Place, take_out};

/// A resource that stands in a list of its kind.
pub(super) trait Item: DeserializeOwned + JsonSchema + 'static {
    /// The list.
    const KIND: Section;

    /// Its name.
    const SECTION: &'static str = Self::KIND.name();

    /// The items of this kind in a model.
    fn items(model: &mut Model) -> &mut Items<Self>;

    /// The id.
    fn id(&self) -> &str;

    /// The ids of other items.
    fn references(&self) -> Vec<Reference<'_>> {
        Vec::new()
    }

    /// Gives an id to an item without one.
    fn number(&mut self, place: usize);

    /// Where it stood.
    fn origin(&self) -> &Origin;

    /// The same, to be set.
    fn origin_mut(&mut self) -> &mut Origin;

    /// Looks at what the schema cannot judge, and makes the tree fit for it.
    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str);

    /// Completes what was read; its origin is known.
    fn complete(&mut self) {}
}

impl Loader<'_> {
    /// Reads an item; `None` when it is invalid.
    pub(super) fn item<T: Item>(&mut self, index: usize, node: Node) -> Option<T> {
        let path = item_path(T::SECTION, index);
        let id = ["username", "id"].into_iter().find_map(|name| readable_id(node.get(name)?));
        let mark = node.mark;
        let before = self.found.len();
        let reserve = self.reserve(T::KIND, &path, &node);
        let verifies = T::KIND == Section::Ssls && verifies_clients(&node);
        let item = self.read_item::<T>(&path, node);
        if self.failed_since(before) {
            if let Some(reserve) = reserve {
                self.keep_place(T::KIND, &path, index, reserve);
            }
            if verifies && self.options.invalid_items == InvalidItems::Skip {
                self.refuse(Diagnostic::error(mark, &path, Code::ClientVerifierNotLeftOut));
            }
            self.drop_item(T::SECTION, mark, path, id);
            return None;
        }
        let mut item = item?;
        item.number(index + 1);
        Some(item)
    }

    /// Reads an item that stands at this path, and gives it that origin.
    pub(super) fn read_item<T: Item>(&mut self, path: &str, mut node: Node) -> Option<T> {
        self.found.extend(self.text_errors.remove(path).unwrap_or_default());
        if node.as_map().is_some() {
            drop_nulls(&mut node, path, &mut self.found);
            T::prepare(self, &mut node, path);
        }
        let mut item = self.typed::<T>(path, &node)?;
        let fields: Vec<_> = item.references().into_iter().map(|reference| reference.field).collect();
        let references = fields.into_iter().filter_map(|name| Some((name, node.get(name)?.mark))).collect();
        *item.origin_mut() = Origin { path: path.to_owned(), mark: node.mark, references };
        item.complete();
        Some(item)
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
            let first = items[*earlier].origin().path.clone();
            let code = Code::RepeatedId { id: items[*later].id().to_owned(), item: "item", first };
            let Origin { path, mark, .. } = items[*later].origin().clone();
            self.warn(mark, &path, code);
        }
        let gone: HashSet<usize> = replaced.into_iter().map(|(earlier, _)| earlier).collect();
        let mut at = 0;
        items.retain(|_| {
            at += 1;
            gone.is_empty() || !gone.contains(&(at - 1))
        });
        items
    }

    /// The settings of plugins.
    pub(super) fn metadata(&mut self, root: &mut Node) -> Vec<Arc<PluginMetadata>> {
        let section = PluginMetadata::SECTION;
        let nodes = self.section_nodes(section, root, true);
        let mut list: Vec<Arc<PluginMetadata>> = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.into_iter().enumerate() {
            let path = item_path(section, index);
            let mark = node.mark;
            let before = self.found.len();
            self.found.extend(self.text_errors.remove(&path).unwrap_or_default());
            let item = self.metadata_item(&path, node);
            if self.failed_since(before) {
                self.drop_item(section, mark, path, Some(item.plugin));
                continue;
            }
            if let Some(earlier) = list.iter().position(|known| known.plugin == item.plugin) {
                let first = list.remove(earlier).origin.path.clone();
                self.warn(mark, &path, Code::RepeatedId { id: item.plugin.clone(), item: "item", first });
            }
            list.push(Arc::new(item));
        }
        list
    }

    /// The settings of one plugin.
    pub(super) fn metadata_item(&mut self, path: &str, mut node: Node) -> PluginMetadata {
        let mark = node.mark;
        let mut is_unresolved = false;
        let plugin = match node.remove("id") {
            Some((_, Node { kind: Kind::Str(name), mark })) => {
                let path = Path::Text(path);
                let unresolved = self.resolve(&mut node, &path);
                is_unresolved = !unresolved.is_empty();
                self.wait_for(unresolved, &self.meanwhile(&name, Scope::Metadata, false));
                if self.plugin_name(&name, mark, &Path::Name(&path, "id")) {
                    self.plugin_conf(&name, &node, &path, Scope::Metadata);
                }
                name
            }
            _ => {
                self.found.push(Diagnostic::error(mark, path, Code::NoIdOfMetadata));
                String::new()
            }
        };
        let origin = Origin { path: path.to_owned(), mark, references: Vec::new() };
        PluginMetadata { plugin, conf: node, is_unresolved, origin }
    }

    /// A credential that stands beside the consumers, with the id `<username>/credentials/<id>`.
    pub(super) fn lone_credential(&mut self, index: usize, mut node: Node, id: &str) -> Option<Credential> {
        let path = item_path(Consumer::SECTION, index);
        let (mark, whole) = (node.mark, node.get("id").and_then(readable_id));
        let before = self.found.len();
        self.found.extend(self.text_errors.remove(&path).unwrap_or_default());
        node.insert("id", Node { mark: node.mark_of("id"), kind: Kind::Str(id.to_owned()) });
        let credential = self.credential(&path, node, 0);
        if self.failed_since(before) {
            self.drop_item(Consumer::SECTION, mark, path, whole);
            return None;
        }
        credential
    }

    pub(super) fn credential(&mut self, path: &str, mut node: Node, index: usize) -> Option<Credential> {
        self.prepare_credential(&mut node, path);
        let mut credential = self.typed::<Credential>(path, &node)?;
        credential.origin = Origin { path: path.to_owned(), mark: node.mark, references: Vec::new() };
        if credential.id.is_unset() {
            credential.id = Id::numbered(index + 1);
        }
        Some(credential)
    }

    fn prepare_credential(&mut self, node: &mut Node, path: &str) {
        drop_nulls(node, path, &mut self.found);
        let Some(plugins) = node.get_mut("plugins") else { return };
        for (key, _) in plugins.as_map().unwrap_or_default() {
            if self.plugin_names.contains(&*key.text) && !self.options.plugins.is_auth(&key.text) {
                let code = Code::NotAuthenticating { known: AUTH_PLUGINS.join(", ") };
                self.found.push(Diagnostic::error(key.mark, field(&field(path, "plugins"), &key.text), code));
            }
        }
        self.plugins(plugins, &Path::Name(&Path::Text(path), "plugins"), Scope::Consumer);
    }

    /// Gives credentials to the consumers they name.
    pub(super) fn attach_credentials(
        &mut self,
        consumers: &mut [Arc<Consumer>],
        list: Vec<(String, Mark, Credential)>,
    ) {
        let owners = if list.is_empty() { &[] } else { &*consumers };
        let owners = owners.iter().enumerate().map(|(at, consumer)| (consumer.username.to_string(), at));
        let places: HashMap<String, usize> = owners.collect();
        for (owner, mark, credential) in list {
            if let Some(at) = places.get(&owner) {
                Arc::make_mut(&mut consumers[*at]).credentials.push(credential);
                continue;
            }
            let invalid = self.invalid_ids.get(Consumer::SECTION).is_some_and(|ids| ids.contains(&owner));
            if !invalid || self.options.invalid_items == InvalidItems::Skip {
                let state = if invalid { "invalid" } else { "not there" };
                let code = Code::NoConsumerOfCredential { consumer: quoted(&owner), state };
                let error = Diagnostic::error(mark, field(&credential.origin.path, "id"), code);
                let near = nearest(&owner, places.keys().map(String::as_str)).filter(|_| !invalid);
                self.found.push(Diagnostic { hint: Hint::nearest(near), ..error });
            }
            let whole = format!("{owner}/credentials/{}", credential.id);
            self.drop_item(Consumer::SECTION, mark, credential.origin.path, Some(whole));
        }
        for consumer in consumers.iter_mut().filter(|consumer| consumer.credentials.len() > 1) {
            self.unique_credentials(Arc::make_mut(consumer));
        }
    }

    /// Leaves the later of several credentials with one id.
    pub(super) fn unique_credentials(&mut self, consumer: &mut Consumer) {
        let mut kept: Vec<Credential> = Vec::with_capacity(consumer.credentials.len());
        for credential in std::mem::take(&mut consumer.credentials) {
            if let Some(earlier) = kept.iter().position(|known| known.id == credential.id) {
                let first = kept.remove(earlier).origin.path;
                let code = Code::RepeatedId { id: credential.id.to_string(), item: "one", first };
                self.warn(credential.origin.mark, &credential.origin.path, code);
            }
            kept.push(credential);
        }
        consumer.credentials = kept;
    }

    /// Notes that an item is invalid and, where the rest is used, that it is missing.
    pub(super) fn drop_item(&mut self, section: &'static str, mark: Mark, path: String, id: Option<String>) {
        if let Some(id) = &id {
            self.invalid_ids.entry(section).or_default().insert(id.clone());
        }
        if self.options.invalid_items == InvalidItems::Skip && section == GlobalRule::SECTION {
            // Every route would be served without it, and it may be what authenticates or limits.
            self.refuse(Diagnostic::error(mark, &path, Code::GlobalRuleNotLeftOut));
        } else if self.options.invalid_items == InvalidItems::Skip {
            self.warn(mark, &path, Code::LeftOut);
        }
        self.dropped.push(Dropped { path, id });
    }
}

/// Whether a certificate in whatever state asks clients for theirs.
fn verifies_clients(ssl: &Node) -> bool {
    let asks = ssl.get("client").is_some_and(|client| !client.is_null());
    asks && ssl.get("type").and_then(Node::as_str) != Some("client")
}

pub(super) fn item_path(section: &str, index: usize) -> String {
    let mut path = section.to_owned();
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

impl PluginMetadata {
    pub(super) const SECTION: &'static str = Section::PluginMetadata.name();
}

/// The reference in a field that may be absent.
fn reference<'a>(field: &'static str, to: Section, id: &'a Option<Id>) -> Option<Reference<'a>> {
    id.as_ref().map(|id| Reference { field, to, id })
}

/// The certificate that an upstream shows to its nodes.
fn client_certificate<'a>(field: &'static str, upstream: Option<&'a Upstream>) -> Option<Reference<'a>> {
    upstream.and_then(|u| u.tls.as_ref()).and_then(|tls| reference(field, Section::Ssls, &tls.client_cert_id))
}

macro_rules! with_id {
    ($items:ident) => {
        fn items(model: &mut Model) -> &mut Items<Self> {
            &mut model.$items
        }

        fn id(&self) -> &str {
            self.id.as_str()
        }

        fn number(&mut self, place: usize) {
            if self.id.is_unset() {
                self.id = Id::numbered(place);
            }
        }

        fn origin(&self) -> &Origin {
            &self.origin
        }

        fn origin_mut(&mut self) -> &mut Origin {
            &mut self.origin
        }
    };
}

impl Item for Route {
    const KIND: Section = Section::Routes;
    with_id!(routes);

    fn references(&self) -> Vec<Reference<'_>> {
        let client = client_certificate("upstream.tls.client_cert_id", self.upstream.as_deref());
        let upstream = reference("upstream_id", Section::Upstreams, &self.upstream_id);
        let service = reference("service_id", Section::Services, &self.service_id);
        let config = reference("plugin_config_id", Section::PluginConfigs, &self.plugin_config_id);
        upstream.into_iter().chain(service).chain(config).chain(client).collect()
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        let taken = take_out(Place::Route, node, path, &mut loader.found);
        check_route(node, path, &taken, loader.options.router, &mut loader.found);
        loader.conditions(node, path, "vars");
        prepare_parts(loader, node, path, Scope::Route);
    }

    fn complete(&mut self) {
        complete_upstream(&mut self.upstream, &self.upstream_id);
    }
}

impl Item for Service {
    const KIND: Section = Section::Services;
    with_id!(services);

    fn references(&self) -> Vec<Reference<'_>> {
        let client = client_certificate("upstream.tls.client_cert_id", self.upstream.as_deref());
        reference("upstream_id", Section::Upstreams, &self.upstream_id).into_iter().chain(client).collect()
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        take_out(Place::Service, node, path, &mut loader.found);
        check_service(node, path, &mut loader.found);
        prepare_parts(loader, node, path, Scope::Route);
    }

    fn complete(&mut self) {
        complete_upstream(&mut self.upstream, &self.upstream_id);
    }
}

impl Item for Upstream {
    const KIND: Section = Section::Upstreams;
    with_id!(upstreams);

    fn references(&self) -> Vec<Reference<'_>> {
        client_certificate("tls.client_cert_id", Some(self)).into_iter().collect()
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        prepare_own_upstream(loader, node, path);
    }

    fn complete(&mut self) {
        self.fill_ports();
    }
}

impl Item for Ssl {
    const KIND: Section = Section::Ssls;
    with_id!(ssls);

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        let meanwhile = match node.get("type").and_then(Node::as_str) {
            Some("client") => "requests to upstreams that it is shown to are answered 503",
            _ => "TLS handshakes for its names are refused",
        };
        loader.resolve_certificate(node, &Path::Text(path), meanwhile);
        check_ssl(node, path, &mut loader.found);
    }
}

impl Item for Proto {
    const KIND: Section = Section::Protos;
    with_id!(protos);

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        // What is too long or no text is the schema's to say.
        let Some(content) = node.get("content") else { return };
        let Some(text) = content.as_str().filter(|text| (1..=Proto::LONGEST).contains(&text.chars().count())) else {
            return;
        };
        if let Err(refusal) = compile_proto(text) {
            let code = Code::InvalidProto { reason: refusal.to_string() };
            loader.found.push(Diagnostic::error(content.mark, field(path, "content"), code));
        }
    }
}

impl Item for SecretManager {
    const KIND: Section = Section::Secrets;

    fn items(model: &mut Model) -> &mut Items<Self> {
        &mut model.secrets
    }

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn number(&mut self, _: usize) {}

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn origin_mut(&mut self) -> &mut Origin {
        &mut self.origin
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        // A secret of another manager would have to be asked for first.
        if let Some(token) = node.get_mut("token") {
            let unresolved = loader.resolve(token, &Path::Name(&Path::Text(path), "token"));
            loader.wait_for(unresolved, "no secret of this manager can be had");
        }
        check_secret_manager(node, path, &mut loader.found);
    }
}

impl Item for Consumer {
    const KIND: Section = Section::Consumers;

    fn items(model: &mut Model) -> &mut Items<Self> {
        &mut model.lone_consumers
    }

    fn id(&self) -> &str {
        self.username.as_str()
    }

    fn number(&mut self, _: usize) {}

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn origin_mut(&mut self) -> &mut Origin {
        &mut self.origin
    }

    fn references(&self) -> Vec<Reference<'_>> {
        reference("group_id", Section::ConsumerGroups, &self.group_id).into_iter().collect()
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        if let (Some(id), Some(username)) = (node.get("id"), node.get("username"))
            && readable_id(id) != readable_id(username)
        {
            loader.found.push(Diagnostic::error(id.mark, field(path, "id"), Code::OtherUsername));
        }
        // The username may be longer than other ids.
        node.remove("id");
        prepare_parts(loader, node, path, Scope::Consumer);
        if let Some(Kind::Seq(items)) = node.get_mut("credentials").map(|node| &mut node.kind) {
            let credentials = field(path, "credentials");
            for (index, item) in items.iter_mut().enumerate() {
                let mut path = credentials.clone();
                push_index(&mut path, index);
                loader.prepare_credential(item, &path);
            }
        }
    }

    fn complete(&mut self) {
        for (index, credential) in self.credentials.iter_mut().enumerate() {
            let mut path = field(&self.origin.path, "credentials");
            push_index(&mut path, index);
            credential.origin = Origin { path, mark: self.origin.mark, references: Vec::new() };
            if credential.id.is_unset() {
                credential.id = Id::numbered(index + 1);
            }
        }
    }
}

macro_rules! plugin_holder {
    ($($type:ident: $section:ident, $items:ident, $scope:expr;)*) => {$(
        impl Item for $type {
            const KIND: Section = Section::$section;
            with_id!($items);

            fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
                prepare_parts(loader, node, path, $scope);
            }
        }
    )*};
}
plugin_holder! {
    ConsumerGroup: ConsumerGroups, consumer_groups, Scope::Route;
    PluginConfig: PluginConfigs, plugin_configs, Scope::Route;
    GlobalRule: GlobalRules, global_rules, Scope::GlobalRule;
}

/// What several kinds of items have: plugins and an upstream.
fn prepare_parts(loader: &mut Loader<'_>, node: &mut Node, path: &str, scope: Scope) {
    if let Some(timeout) = node.get_mut("timeout") {
        drop_nulls(timeout, &field(path, "timeout"), &mut loader.found);
    }
    if let Some(upstream) = node.get_mut("upstream") {
        prepare_own_upstream(loader, upstream, &field(path, "upstream"));
    }
    if let Some(plugins) = node.get_mut("plugins") {
        loader.plugins(plugins, &Path::Name(&Path::Text(path), "plugins"), scope);
    }
}

/// An upstream that is no part of a plugin's configuration, in which references stand for values anywhere.
fn prepare_own_upstream(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
    for name in ["client_cert", "client_key"] {
        if let Some(text) = node.get_mut("tls").and_then(|tls| tls.get_mut(name)) {
            let path = Path::Text(path);
            let path = Path::Name(&path, "tls");
            loader.resolve_certificate(text, &Path::Name(&path, name), "requests to this upstream are answered 503");
        }
    }
    prepare_upstream(node, path, &mut loader.found);
}

/// The upstream that is written in place is left out where an id goes before it.
fn complete_upstream(upstream: &mut Option<Box<Upstream>>, id: &Option<Id>) {
    if id.is_some() {
        *upstream = None;
    }
    if let Some(upstream) = upstream {
        upstream.fill_ports();
    }
}

impl Node {
    /// Puts a value under a key, in the place of the one that is there.
    pub(super) fn insert(&mut self, name: &str, value: Node) {
        let Kind::Map(entries) = &mut self.kind else { return };
        match entries.iter_mut().find(|(key, _)| &*key.text == name) {
            Some((_, old)) => *old = value,
            None => entries.push((Key { text: name.into(), mark: value.mark }, value)),
        }
    }
}
