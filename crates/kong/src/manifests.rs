//! Manifests of Kubernetes as Kong's ingress controller reads them: Ingress, HTTPRoute, Service with EndpointSlice,
//! KongPlugin, KongClusterPlugin, KongConsumer and Secret. They become a declarative configuration.
//!
//! Findings about an entity name the manifest that it was made from.

mod entities;
mod objects;
mod routes;

use weir_config::env::Variables;
use weir_config::{Diagnostic, Family, FrontEnd, Key, Kind, Lowered, Mark, Node, PluginCatalog};

use crate::document::{Document, rule};
use crate::front_end::{Catalog, FAMILY};
use crate::lower::{self, list, map};
use entities::Made;
use objects::Objects;

/// Front end of manifests.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// Addresses of services outside of a cluster: `NAME`, `NAMESPACE/NAME` or either with `:PORT`, and `HOST:PORT`.
    resolve: Vec<(String, String)>,
    /// Documents that are no YAML.
    faults: Vec<Diagnostic>,
}

/// Section of the tree that [`Manifests::of`] makes.
const SECTION: &str = "manifests";

/// True for a text with manifests: documents of YAML with `apiVersion` and `kind`.
#[must_use]
pub fn is_manifests(text: &str) -> bool {
    let has = |field: &str| {
        let is_field = |line: &str| {
            let line = line.trim_start_matches(['{', ' ', '"']);
            line.strip_prefix(field).is_some_and(|rest| rest.trim_start_matches('"').trim_start().starts_with(':'))
        };
        text.lines().filter(|line| !line.starts_with([' ', '\t', '-'])).any(is_field)
    };
    has("apiVersion") && has("kind") && !has("_format_version")
}

impl Manifests {
    /// The front end for a text, and the documents of the text as one tree, with the positions that they have in it.
    #[must_use]
    pub fn of(text: &str, resolve: &[(String, String)]) -> (Self, Node) {
        let mut own = Self { resolve: resolve.to_vec(), faults: Vec::new() };
        let (mut all, mut current, mut before) = (Vec::new(), String::new(), 0);
        for (number, line) in text.lines().enumerate() {
            if line == "---" || line.starts_with("--- ") {
                own.take(&std::mem::take(&mut current), before, &mut all);
                before = number + 1;
                continue;
            }
            current.push_str(line);
            current.push('\n');
        }
        own.take(&current, before, &mut all);
        let key = Key { text: SECTION.into(), mark: Mark::NONE };
        let mark = Mark { line: 1, column: 1 };
        (own, Node { mark, kind: Kind::Map(vec![(key, Node::new(Kind::Seq(all)))]) })
    }

    /// Reads one document, which begins after so many lines.
    fn take(&mut self, text: &str, before: usize, all: &mut Vec<Node>) {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return;
        }
        // Empty lines before it keep the numbers of lines.
        match Node::parse(&format!("{}{text}", "\n".repeat(before))) {
            Ok(parsed) if parsed.root.get("kind").and_then(Node::as_str) == Some("List") => {
                all.extend(parsed.root.get("items").and_then(Node::as_seq).unwrap_or_default().iter().cloned());
            }
            Ok(parsed) => all.push(parsed.root),
            Err(error) => self.faults.push(error),
        }
    }
}

impl FrontEnd for Manifests {
    fn family(&self) -> &'static Family {
        &FAMILY
    }

    fn plugins(&self) -> Option<&dyn PluginCatalog> {
        Some(&Catalog)
    }

    fn recognises(&self, root: &Node) -> bool {
        root.get(SECTION).is_some()
    }

    fn lower(&self, root: Node, _: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        found.extend(self.faults.iter().cloned());
        let mark = root.mark;
        let objects = Objects::of(root.get(SECTION).and_then(Node::as_seq).unwrap_or_default(), found);
        let mut made = Made::default();
        objects.consumers(&mut made, found);
        objects.routes(&self.resolve, &mut made, found);
        objects.global_plugins(&mut made, found);
        objects.certificates(&mut made, found);
        let Made { sections, places } = made;
        let document = map(mark, sections.iter().map(|(name, items)| (*name, list(mark, items.clone()))));
        let mut own = Vec::new();
        let mut document = Document::read(document, &mut own);
        // The paths are those of a document that nobody has written.
        let name = |path: &str| {
            let nearest = places.iter().filter(|(place, _)| path.starts_with(place.as_str()));
            let nearest = nearest.max_by_key(|(place, _)| place.len())?;
            Some(format!("{}{}", nearest.1, path.get(nearest.0.len()..).unwrap_or_default()))
        };
        for fault in &mut own {
            if let Some(path) = name(&fault.path) {
                fault.path = path;
            }
        }
        found.append(&mut own);
        for entity in &mut document.entities {
            if let Some(path) = name(&entity.path) {
                entity.path = path;
            }
        }
        lower::lower(&document, false, mark, found)
    }
}

/// A warning about a field of a manifest.
fn doubt(node: &Node, path: String, text: impl Into<String>) -> Diagnostic {
    Diagnostic::warning(node.mark, path, rule(text))
}

/// A fault in a field of a manifest.
fn fault(node: &Node, path: String, text: impl Into<String>) -> Diagnostic {
    Diagnostic::error(node.mark, path, rule(text))
}
