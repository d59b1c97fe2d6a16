//! From a tree to sections and items.

use std::sync::Arc;

use super::Loader;
use super::foreign::{GATEWAY, SECTIONS};
use super::item::Item;
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::node::{Key, Kind, Node};
use crate::resource::{
    Consumer, ConsumerGroup, Document, GlobalRule, PluginConfig, Proto, Route, SecretManager, Service, Ssl, Upstream,
};
use crate::unsupported::{Place, take_out};

impl Loader<'_> {
    /// Reads all sections; `None` when there is nothing to read.
    pub(super) fn document(&mut self, mut root: Node) -> Option<Document> {
        if self.is_empty(&root) {
            return Some(Document::default());
        }
        if root.as_map().is_none() {
            let code = Code::NotSections { found: root.describe() };
            self.refuse(Diagnostic::error(root.mark, "", code));
            return None;
        }
        let before = self.found.len();
        take_out(Place::Document, &mut root, "", &mut self.found);
        self.refused |= self.failed_since(before);
        self.unknown_sections(&root);
        let secrets = self.section::<SecretManager>(&mut root);
        let managers = secrets.iter().map(|item| (item.id.as_str().to_owned(), Arc::clone(item)));
        self.managers = Some(managers.collect());
        let mut document = Document {
            secrets,
            ssls: self.section::<Ssl>(&mut root),
            upstreams: self.section::<Upstream>(&mut root),
            services: self.section::<Service>(&mut root),
            plugin_configs: self.section::<PluginConfig>(&mut root),
            routes: self.section::<Route>(&mut root),
            consumer_groups: self.section::<ConsumerGroup>(&mut root),
            consumers: self.consumers(&mut root),
            protos: self.section::<Proto>(&mut root),
            global_rules: self.section::<GlobalRule>(&mut root),
            plugin_metadata: self.metadata(&mut root),
        };
        for (_, errors) in std::mem::take(&mut self.text_errors) {
            // They belong to a section that is not read.
            self.refused = true;
            self.found.extend(errors);
        }
        self.add_kept_places(&mut document.routes);
        self.link(&mut document);
        Some(document)
    }

    fn unknown_sections(&mut self, root: &Node) {
        for (key, value) in root.as_map().unwrap_or_default() {
            let name = &*key.text;
            let empty = value.is_null() || value.as_seq().is_some_and(<[Node]>::is_empty);
            if name == "plugins" && !empty {
                self.warn(key.mark, name, Code::PluginsAllThere);
            } else if !SECTIONS.contains(&name) {
                let warning = Diagnostic::warning(key.mark, name, Code::UnknownSection);
                if GATEWAY.contains(&name) {
                    self.found.push(warning.with_hint("a section of config.yaml; give that file with --settings"));
                    continue;
                }
                let anchors = name.starts_with("x-") || name.starts_with('_') || name.starts_with('.');
                let near = nearest(name, SECTIONS.iter().copied()).filter(|_| !anchors);
                self.found.push(Diagnostic { hint: Hint::nearest(near), ..warning });
            }
        }
    }

    /// Reads one section.
    fn section<T: Item>(&mut self, root: &mut Node) -> Vec<Arc<T>> {
        let nodes = self.section_nodes(T::SECTION, root, false);
        let mut items = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.into_iter().enumerate() {
            items.extend(self.item::<T>(index, node).map(Arc::new));
        }
        self.unique(items)
    }

    /// The consumers, with the credentials that stand beside them.
    fn consumers(&mut self, root: &mut Node) -> Vec<Arc<Consumer>> {
        let nodes = self.section_nodes(Consumer::SECTION, root, false);
        let mut consumers = Vec::with_capacity(nodes.len());
        let mut credentials = Vec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let owner = node.get("id").and_then(Node::as_str).and_then(|id| id.split_once("/credentials/"));
            match owner.map(|(owner, id)| (owner.to_owned(), id.to_owned())) {
                Some((owner, id)) => {
                    let mark = node.mark_of("id");
                    if let Some(credential) = self.lone_credential(index, node, &id) {
                        credentials.push((owner, mark, credential));
                    }
                }
                None => consumers.extend(self.item::<Consumer>(index, node).map(Arc::new)),
            }
        }
        let mut consumers = self.unique(consumers);
        self.attach_credentials(&mut consumers, credentials);
        consumers
    }

    /// The items of a section, which may be missing, null or empty. A keyed section may be a mapping from ids.
    pub(super) fn section_nodes(&mut self, section: &'static str, root: &mut Node, keyed: bool) -> Vec<Node> {
        let Some((key, node)) = root.remove(section) else { return Vec::new() };
        match node.kind {
            Kind::Seq(items) => items,
            Kind::Null => {
                self.warn(key.mark, section, Code::NullTaken { meaning: "an empty list" });
                Vec::new()
            }
            Kind::Map(entries) if entries.is_empty() => Vec::new(),
            Kind::Map(entries) if keyed => {
                self.warn(node.mark, section, Code::MetadataMapping);
                entries.into_iter().map(with_id).collect()
            }
            kind => {
                let found = Node { mark: node.mark, kind };
                let code = Code::Unlike { expected: "a list".into(), found: found.describe() };
                let error = Diagnostic::error(found.mark, section, code);
                self.refuse(match section {
                    "global_rules" if found.as_map().is_some() => {
                        error.with_hint("write a list of {id, plugins: {…}}; a mapping is the form of ADC")
                    }
                    _ => error,
                });
                Vec::new()
            }
        }
    }
}

/// An entry of a mapping from ids as an item with that id.
pub(super) fn with_id((key, mut node): (Key, Node)) -> Node {
    if node.is_null() {
        node.kind = Kind::Map(Vec::new());
    }
    if let Kind::Map(fields) = &mut node.kind {
        let id = Node { mark: key.mark, kind: Kind::Str(key.text.to_string()) };
        fields.retain(|(field, _)| &*field.text != "id");
        fields.insert(0, (Key { text: "id".into(), mark: key.mark }, id));
    }
    node
}
