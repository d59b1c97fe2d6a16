//! The types of resources as the loader sees them: their reading, ids and references.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Loader;
use super::item::readable_id;
use super::link::{Ids, Known, Reference};
use super::reserve::Reserve;
use super::rules::{
    check_route, check_secret_manager, check_service, check_ssl, check_stream_route, drop_nulls, field,
    prepare_upstream,
};
use crate::catalog::Scope;
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::kind::ResourceKind;
use crate::model::{Items, Model};
use crate::node::{Kind, Node, Path, push_index};
use crate::resource::{
    Consumer, ConsumerGroup, Credential, Developer, GlobalRule, GraphqlCostDecoration, Id, Origin, Plan, PluginConfig,
    PluginMetadata, Proto, Route, SecretManager, Service, Ssl, SslType, Status, StreamRoute, Upstream, compile_proto,
};
use crate::schema::json_schema;
use crate::unsupported::{Owner, take_out};

/// The type of the resources of a kind.
pub(crate) trait Item: Serialize + JsonSchema + Sized + 'static {
    /// The kind.
    const KIND: ResourceKind;

    /// The items of this kind in a model.
    fn items(model: &Model) -> &Items<Self>;

    /// The items as single changes replace them: without what other kinds add to them.
    fn own_items(model: &mut Model) -> &mut Items<Self>;

    /// The id within the list that the item stands in.
    fn id(&self) -> &str;

    /// The id, not copied where it is shared.
    fn shared_id(&self) -> Arc<str> {
        self.id().into()
    }

    /// The id in a field with the id of another item.
    fn id_at(&self, _field: &'static str) -> Option<&Id> {
        None
    }

    /// Gives an id to an item without one.
    fn number(&mut self, _place: usize) {}

    /// Position in the document.
    fn origin(&self) -> &Origin;

    /// Position in the document, to be set.
    fn origin_mut(&mut self) -> &mut Origin;

    /// Calls a function with the origin, and those of nested items.
    fn each_origin(&mut self, each: &mut dyn FnMut(&mut Origin)) {
        each(self.origin_mut());
    }

    /// Reads an item that stands at this path, and gives it that origin.
    fn read(loader: &mut Loader<'_>, path: &str, node: Node) -> Option<Self>;

    /// Checks the rules that a schema cannot state, and makes the tree fit for the schema.
    fn prepare(_loader: &mut Loader<'_>, _node: &mut Node, _path: &str) {}

    /// Keeps the place of an item that is left out; what stands there instead of it.
    fn place(loader: &mut Loader<'_>, path: &str, index: usize, reserve: Reserve) -> Option<Self> {
        loader.keep_place(Self::KIND, path, index, reserve);
        None
    }

    /// Completes an item whose origin is known.
    fn complete(&mut self) {}

    /// The id that many items of this kind refer to.
    fn common_id(&mut self) -> Option<&mut Id> {
        None
    }

    /// True for an item of which only the place is kept.
    fn is_left_out(&self) -> bool {
        false
    }

    /// True if references to it lead somewhere.
    fn may_be_referred_to(&self) -> bool {
        !self.is_left_out()
    }

    /// Reads an item of a list.
    fn read_listed(loader: &mut Loader<'_>, index: usize, node: Node) -> Option<Self> {
        loader.item(index, node)
    }

    /// Reads the section of a rules file.
    fn section(loader: &mut Loader<'_>, root: &mut Node) -> Vec<Arc<Self>> {
        loader.section(root)
    }

    /// Leaves the items whose references all lead somewhere, and notes what others may refer to.
    fn link(loader: &mut Loader<'_>, items: &mut Vec<Arc<Self>>, known: &mut Ids) {
        loader.keep(items, known);
        known.note(items);
    }

    /// The JSON Schema, with the rules that the type cannot express.
    fn schema() -> Value {
        json_schema::<Self>().to_value()
    }

    /// A valid item as it is in force: with its defaults. References to the environment and to secrets stay as written.
    fn in_force(node: &Node) -> Option<Value>;
}

/// The ids of other items.
pub(super) fn references<T: Item>(item: &T) -> impl Iterator<Item = Reference<'_>> {
    let references = T::KIND.entry().references.iter();
    references.filter_map(|(field, to)| Some(Reference { field, to: *to, id: item.id_at(field)? }))
}

/// The certificate that an upstream shows to its nodes.
fn client_certificate(upstream: Option<&Upstream>) -> Option<&Id> {
    upstream?.tls.as_ref()?.client_cert_id.as_ref()
}

/// The parts of an item that is read by its schema and stands in a list of its own.
macro_rules! listed_item {
    ($items:ident) => {
        fn items(model: &Model) -> &Items<Self> {
            &model.$items
        }

        fn own_items(model: &mut Model) -> &mut Items<Self> {
            &mut model.$items
        }
    };
}

/// The origin of an item, and its reading by its schema.
macro_rules! typed_item {
    () => {
        fn origin(&self) -> &Origin {
            &self.origin
        }

        fn origin_mut(&mut self) -> &mut Origin {
            &mut self.origin
        }

        fn read(loader: &mut Loader<'_>, path: &str, node: Node) -> Option<Self> {
            loader.read_item(path, node)
        }

        fn in_force(node: &Node) -> Option<Value> {
            in_force::<Self>(node)
        }
    };
}

/// An id that an item may be without.
macro_rules! numbered_item {
    () => {
        fn id(&self) -> &str {
            self.id.as_str()
        }

        fn shared_id(&self) -> Arc<str> {
            self.id.shared()
        }

        fn number(&mut self, place: usize) {
            if self.id.is_unset() {
                self.id = Id::numbered(place);
            }
        }
    };
}

impl Item for Route {
    const KIND: ResourceKind = ResourceKind::Routes;
    listed_item!(routes);
    typed_item!();
    numbered_item!();

    fn id_at(&self, field: &'static str) -> Option<&Id> {
        match field {
            "upstream.tls.client_cert_id" => client_certificate(self.upstream.as_deref()),
            "upstream_id" => self.upstream_id.as_ref(),
            "service_id" => self.service_id.as_ref(),
            "plugin_config_id" => self.plugin_config_id.as_ref(),
            _ => None,
        }
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        check_route(node, path, loader.options.router, &mut loader.found);
        loader.conditions(node, path, "vars");
        prepare_parts(loader, node, path, Scope::Route);
    }

    fn complete(&mut self) {
        complete_upstream(&mut self.upstream, &self.upstream_id);
    }

    fn is_left_out(&self) -> bool {
        self.status == Status::LeftOut
    }

    fn link(loader: &mut Loader<'_>, items: &mut Vec<Arc<Self>>, known: &mut Ids) {
        loader.keep_routes(items, known);
    }

    fn schema() -> Value {
        let mut schema = json_schema::<Self>().to_value();
        let paths = json!([{ "required": ["uri"] }, { "required": ["uris"] }]);
        let purpose = ["plugins", "upstream", "upstream_id", "service_id", "script"];
        let purpose = purpose.map(|field| json!({ "required": [field] }));
        schema["allOf"] = json!([{ "oneOf": paths }, { "anyOf": purpose }]);
        schema
    }
}

impl Item for StreamRoute {
    const KIND: ResourceKind = ResourceKind::StreamRoutes;
    listed_item!(stream_routes);
    typed_item!();
    numbered_item!();

    fn id_at(&self, field: &'static str) -> Option<&Id> {
        match field {
            "upstream.tls.client_cert_id" => client_certificate(self.upstream.as_deref()),
            "upstream_id" => self.upstream_id.as_ref(),
            "service_id" => self.service_id.as_ref(),
            _ => None,
        }
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        take_out(Owner::StreamRoute, node, path, &mut loader.found);
        check_stream_route(node, path, &mut loader.found);
        prepare_parts(loader, node, path, Scope::StreamRoute);
    }

    fn complete(&mut self) {
        complete_upstream(&mut self.upstream, &self.upstream_id);
    }

    fn schema() -> Value {
        let mut schema = json_schema::<Self>().to_value();
        let purpose = ["upstream", "upstream_id", "service_id"].map(|field| json!({ "required": [field] }));
        schema["anyOf"] = json!(purpose);
        schema
    }
}

impl Item for Service {
    const KIND: ResourceKind = ResourceKind::Services;
    typed_item!();
    numbered_item!();

    fn items(model: &Model) -> &Items<Self> {
        &model.services
    }

    fn own_items(model: &mut Model) -> &mut Items<Self> {
        &mut model.lone_services
    }

    fn section(loader: &mut Loader<'_>, root: &mut Node) -> Vec<Arc<Self>> {
        loader.services(root)
    }

    fn id_at(&self, field: &'static str) -> Option<&Id> {
        match field {
            "upstream.tls.client_cert_id" => client_certificate(self.upstream.as_deref()),
            "upstream_id" => self.upstream_id.as_ref(),
            _ => None,
        }
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        check_service(node, path, &mut loader.found);
        prepare_parts(loader, node, path, Scope::Route);
    }

    fn complete(&mut self) {
        complete_upstream(&mut self.upstream, &self.upstream_id);
    }

    fn link(loader: &mut Loader<'_>, items: &mut Vec<Arc<Self>>, known: &mut Ids) {
        let all = items.clone();
        loader.keep(items, known);
        known.note(items);
        if all.len() > items.len() {
            for service in all.iter().filter(|service| !known.has(Self::KIND, service.id())) {
                loader.lost_hosts.insert(service.id.to_string(), Some(service.hosts.clone()));
            }
        }
    }
}

impl Item for Upstream {
    const KIND: ResourceKind = ResourceKind::Upstreams;
    listed_item!(upstreams);
    typed_item!();
    numbered_item!();

    fn id_at(&self, field: &'static str) -> Option<&Id> {
        if field == "tls.client_cert_id" { client_certificate(Some(self)) } else { None }
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        prepare_own_upstream(loader, node, path);
    }

    fn complete(&mut self) {
        self.fill_ports();
    }
}

impl Item for Ssl {
    const KIND: ResourceKind = ResourceKind::Ssls;
    listed_item!(ssls);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        let meanwhile = match node.get("type").and_then(Node::as_str) {
            Some("client") => "requests to upstreams that it is shown to are answered 503",
            _ => "TLS handshakes for its names are refused",
        };
        loader.resolve_certificate(node, &Path::Text(path), meanwhile);
        check_ssl(node, path, &mut loader.found);
    }

    fn is_left_out(&self) -> bool {
        self.status == Status::LeftOut
    }

    fn may_be_referred_to(&self) -> bool {
        self.r#type == SslType::Client
    }

    fn place(loader: &mut Loader<'_>, path: &str, _: usize, reserve: Reserve) -> Option<Self> {
        loader.keep_names(path, reserve)
    }
}

impl Item for Proto {
    const KIND: ResourceKind = ResourceKind::Protos;
    listed_item!(protos);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        // The schema reports a value that is too long or not a text.
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
    const KIND: ResourceKind = ResourceKind::Secrets;
    listed_item!(secrets);
    typed_item!();

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn section(loader: &mut Loader<'_>, root: &mut Node) -> Vec<Arc<Self>> {
        let secrets = loader.section::<Self>(root);
        let managers = secrets.iter().map(|item| (item.id.as_str().to_owned(), Arc::clone(item)));
        loader.managers = Some(managers.collect());
        secrets
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        // A secret of another manager would have to be fetched first.
        if let Some(token) = node.get_mut("token") {
            let unresolved = loader.resolve(token, &Path::Name(&Path::Text(path), "token"));
            loader.wait_for(unresolved, "no secret of this manager can be had");
        }
        check_secret_manager(node, path, &mut loader.found);
    }
}

impl Item for Consumer {
    const KIND: ResourceKind = ResourceKind::Consumers;
    typed_item!();

    fn items(model: &Model) -> &Items<Self> {
        &model.consumers
    }

    fn own_items(model: &mut Model) -> &mut Items<Self> {
        &mut model.lone_consumers
    }

    fn id(&self) -> &str {
        self.username.as_str()
    }

    fn shared_id(&self) -> Arc<str> {
        self.username.shared()
    }

    fn section(loader: &mut Loader<'_>, root: &mut Node) -> Vec<Arc<Self>> {
        loader.consumers(root)
    }

    fn each_origin(&mut self, each: &mut dyn FnMut(&mut Origin)) {
        each(&mut self.origin);
        self.credentials.iter_mut().for_each(|credential| each(&mut credential.origin));
    }

    fn id_at(&self, field: &'static str) -> Option<&Id> {
        if field == "group_id" { self.group_id.as_ref() } else { None }
    }

    fn common_id(&mut self) -> Option<&mut Id> {
        self.group_id.as_mut()
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
            let mut path = field(&self.origin.path.to_string(), "credentials");
            push_index(&mut path, index);
            credential.origin = Origin { path: path.into(), mark: self.origin.mark, ..Origin::default() };
            credential.number(index + 1);
        }
    }
}

impl Item for Credential {
    const KIND: ResourceKind = ResourceKind::Credentials;
    listed_item!(lone_credentials);
    typed_item!();
    numbered_item!();

    fn read_listed(loader: &mut Loader<'_>, index: usize, node: Node) -> Option<Self> {
        loader.nested_item(index, node)
    }

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        loader.prepare_credential(node, path);
    }
}

impl Item for GraphqlCostDecoration {
    const KIND: ResourceKind = ResourceKind::GraphqlCostDecorations;
    listed_item!(lone_decorations);
    typed_item!();
    numbered_item!();

    fn read_listed(loader: &mut Loader<'_>, index: usize, node: Node) -> Option<Self> {
        loader.nested_item(index, node)
    }
}

impl Item for PluginMetadata {
    const KIND: ResourceKind = ResourceKind::PluginMetadata;
    listed_item!(plugin_metadata);

    fn id(&self) -> &str {
        &self.plugin
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn origin_mut(&mut self) -> &mut Origin {
        &mut self.origin
    }

    fn read(loader: &mut Loader<'_>, path: &str, node: Node) -> Option<Self> {
        loader.metadata_item(path, node)
    }

    fn in_force(_: &Node) -> Option<Value> {
        None
    }
}

impl Item for Plan {
    const KIND: ResourceKind = ResourceKind::Plans;
    listed_item!(plans);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        super::plan_limits::check(loader, node, path);
    }
}

impl Item for Developer {
    const KIND: ResourceKind = ResourceKind::Developers;
    listed_item!(developers);
    typed_item!();
    numbered_item!();
}

impl Item for ConsumerGroup {
    const KIND: ResourceKind = ResourceKind::ConsumerGroups;
    listed_item!(consumer_groups);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        prepare_parts(loader, node, path, Scope::Route);
    }
}

impl Item for PluginConfig {
    const KIND: ResourceKind = ResourceKind::PluginConfigs;
    listed_item!(plugin_configs);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        prepare_parts(loader, node, path, Scope::Route);
    }
}

impl Item for GlobalRule {
    const KIND: ResourceKind = ResourceKind::GlobalRules;
    listed_item!(global_rules);
    typed_item!();
    numbered_item!();

    fn prepare(loader: &mut Loader<'_>, node: &mut Node, path: &str) {
        prepare_parts(loader, node, path, Scope::GlobalRule);
    }

    fn link(loader: &mut Loader<'_>, items: &mut Vec<Arc<Self>>, _: &mut Ids) {
        loader.plugins_of_global_rules(items);
    }
}

fn in_force<T: Item + DeserializeOwned>(node: &Node) -> Option<Value> {
    let mut node = node.clone();
    drop_nulls(&mut node, "", &mut Vec::new());
    let mut item = node.parse_into::<T>().ok()?;
    item.complete();
    serde_json::to_value(item).ok()
}

/// Prepares the parts that several kinds have: plugins and an upstream.
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

/// Removes an upstream that is written in place where an id takes precedence over it.
fn complete_upstream(upstream: &mut Option<Box<Upstream>>, id: &Option<Id>) {
    if id.is_some() {
        *upstream = None;
    }
    if let Some(upstream) = upstream {
        upstream.fill_ports();
    }
}
