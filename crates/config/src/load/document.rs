//! Splitting of a tree into sections and items.

use std::sync::Arc;

use super::Loader;
use super::foreign::{GATEWAY, is_section, section_names};
use super::item::Nested;
use super::kinds::Item;
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::kind::{ResourceKind, listed};
use crate::node::{Key, Kind, Node};
use crate::resource::{Consumer, Document, Service};

impl Loader<'_> {
    /// Reads all sections; `None` when there is nothing to read.
    pub(super) fn document(&mut self, mut root: Node) -> Option<Document> {
        if self.is_empty(&root) {
            return Some(Document { family: self.family, ..Document::default() });
        }
        if root.as_map().is_none() {
            let code = Code::NotSections { found: root.describe() };
            self.refuse(Diagnostic::error(root.mark, "", code));
            return None;
        }
        self.unknown_sections(&root);
        let mut document = Document { compiled: self.compiled.clone(), family: self.family, ..Document::default() };
        macro_rules! read {
            ($($(#[$doc:meta])* $type:ident $items:ident;)*) => {
                // Secrets come first: the others may refer to what is kept there.
                $(document.$items = crate::resource::$type::section(self, &mut root);)*
            };
        }
        listed!(read);
        for (_, errors) in std::mem::take(&mut self.text_errors) {
            // The errors belong to a section that is not read.
            self.refused = true;
            self.found.extend(errors);
        }
        self.add_kept_places(&mut document.routes);
        self.link(&mut document);
        if !self.origins.is_empty() {
            self.relocate(&mut document);
        }
        Some(document)
    }

    /// Gives the items the paths and the entities that they were made from.
    fn relocate(&self, document: &mut Document) {
        macro_rules! relocate {
            ($($(#[$doc:meta])* $type:ident $items:ident;)*) => {
                $(for item in &mut document.$items {
                    Arc::make_mut(item).each_origin(&mut |origin| origin.relocate(&self.origins));
                })*
            };
        }
        listed!(relocate);
    }

    fn unknown_sections(&mut self, root: &Node) {
        for (key, value) in root.as_map().unwrap_or_default() {
            let name = &*key.text;
            let empty = value.is_null() || value.as_seq().is_some_and(<[Node]>::is_empty);
            if name == "plugins" && !empty {
                self.warn(key.mark, name, Code::PluginsAllThere);
            } else if !is_section(name) {
                let warning = Diagnostic::warning(key.mark, name, Code::UnknownSection);
                if GATEWAY.contains(&name) {
                    self.found.push(warning.with_hint("a section of config.yaml; give that file with --settings"));
                    continue;
                }
                let anchors = name.starts_with("x-") || name.starts_with('_') || name.starts_with('.');
                let near = nearest(name, section_names()).filter(|_| !anchors);
                self.found.push(Diagnostic { hint: Hint::nearest(near), ..warning });
            }
        }
    }

    /// Reads one section.
    pub(super) fn section<T: Item>(&mut self, root: &mut Node) -> Vec<Arc<T>> {
        let nodes = self.section_nodes(T::KIND, root);
        let mut items = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.into_iter().enumerate() {
            items.extend(self.item::<T>(index, node).map(Arc::new));
        }
        self.unique(items)
    }

    /// The consumers, with the credentials that stand beside them.
    pub(super) fn consumers(&mut self, root: &mut Node) -> Vec<Arc<Consumer>> {
        let (mut consumers, credentials) = self.section_with_nested(root);
        self.attach_credentials(&mut consumers, credentials);
        consumers
    }

    /// The services, with the weights of GraphQL that stand beside them.
    pub(super) fn services(&mut self, root: &mut Node) -> Vec<Arc<Service>> {
        let (mut services, decorations) = self.section_with_nested(root);
        self.attach_decorations(&mut services, decorations);
        services
    }

    /// Reads one section in which items of a nested kind stand as well: those with an id such as
    /// `<username>/credentials/<id>`, which come with the ids of their owners and the positions of theirs.
    fn section_with_nested<T: Item, N: Item>(&mut self, root: &mut Node) -> (Vec<Arc<T>>, Vec<Nested<N>>) {
        let nodes = self.section_nodes(T::KIND, root);
        let mut items = Vec::with_capacity(nodes.len());
        let mut nested = Vec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let owner = node.get("id").and_then(Node::as_str).and_then(|id| N::KIND.split_nested(id));
            match owner.map(|(owner, _)| owner.to_owned()) {
                Some(owner) => {
                    let mark = node.mark_of("id");
                    nested.extend(self.nested_item(index, node).map(|item| (owner, mark, item)));
                }
                None => items.extend(self.item::<T>(index, node).map(Arc::new)),
            }
        }
        (self.unique(items), nested)
    }

    /// The items of a section, which may be missing, null or empty. That of metadata may be a mapping from ids.
    fn section_nodes(&mut self, kind: ResourceKind, root: &mut Node) -> Vec<Node> {
        let section = kind.directory();
        let Some((key, node)) = root.remove(section) else { return Vec::new() };
        match node.kind {
            Kind::Seq(items) => items,
            Kind::Null => {
                self.warn(key.mark, section, Code::NullTaken { meaning: "an empty list" });
                Vec::new()
            }
            Kind::Map(entries) if entries.is_empty() => Vec::new(),
            Kind::Map(entries) if kind == ResourceKind::PluginMetadata => {
                self.warn(node.mark, section, Code::MetadataMapping);
                entries.into_iter().map(with_id).collect()
            }
            other => {
                let found = Node { mark: node.mark, kind: other };
                let code = Code::Unlike { expected: "a list".into(), found: found.describe() };
                let error = Diagnostic::error(found.mark, section, code);
                self.refuse(match kind {
                    ResourceKind::GlobalRules if found.as_map().is_some() => {
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
