//! Front ends: from the document of a family to sections of the model.
//!
//! APISIX's documents are the model's own form ([`Apisix`]). Another family is a crate with a [`FrontEnd`], which the
//! binary hands to the loader in [`LoadOptions::front_ends`](crate::LoadOptions::front_ends).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::catalog::PluginCatalog;
use crate::diagnostic::Diagnostic;
use crate::env::Variables;
use crate::kind::ResourceKind;
use crate::load::identify;
use crate::node::{Kind, Mark, Node, push_index};

/// Properties of a family on which compiling a configuration depends.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// True if routes are ordered by [`Matching::ranks`], and if the plugins of a service take precedence over those of
    /// a plugin config. False for APISIX's order in both.
    pub is_ranked: bool,
    /// Ids of items that stand for no entity of a document, so that nobody counts them. One that ends with `*` stands
    /// for all that begin so.
    pub internal: &'static [&'static str],
}

impl Family {
    /// True for the id of an item that stands for no entity of a document.
    #[must_use]
    pub fn is_internal(&self, id: &str) -> bool {
        self.internal.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => id.starts_with(start),
            None => id == *known,
        })
    }
}

/// APISIX's family, whose resources are the model.
pub static APISIX: Family = Family { name: "apisix", is_ranked: false, internal: &[] };

impl Default for &'static Family {
    fn default() -> Self {
        &APISIX
    }
}

/// Reader of the documents of one family.
pub trait FrontEnd: Sync + fmt::Debug {
    /// The family.
    fn family(&self) -> &'static Family {
        &APISIX
    }

    /// The plugins of the family; `None`: those of [`LoadOptions::plugins`](crate::LoadOptions::plugins).
    fn plugins(&self) -> Option<&dyn PluginCatalog> {
        None
    }

    /// True if a mapping may have a key twice, of which the later counts; that is a warning then.
    fn takes_repeated_keys(&self) -> bool {
        false
    }

    /// True for a document of the family. The first front end that recognises a document reads it.
    fn recognises(&self, root: &Node) -> bool;

    /// True if a YAML document ends with the line `#END`.
    fn has_end_marker(&self) -> bool {
        false
    }

    /// Lowers a document to sections of the model. Nodes keep the positions that they have in the document. An error
    /// among the findings, whose paths are those of the document, refuses the document. `variables` are those of the
    /// environment.
    fn lower(&self, root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered;
}

/// The front end that reads a document.
pub(crate) fn reading<'f>(front_ends: &[&'f dyn FrontEnd], root: &Node) -> Option<&'f dyn FrontEnd> {
    front_ends.iter().copied().find(|front_end| front_end.recognises(root))
}

/// Front end of APISIX's rules files, which are in the form of the model.
#[derive(Clone, Copy, Debug)]
pub struct Apisix;

impl FrontEnd for Apisix {
    fn recognises(&self, root: &Node) -> bool {
        identify(root).is_none()
    }

    fn has_end_marker(&self) -> bool {
        true
    }

    fn lower(&self, root: Node, _: Variables<'_>, _: &mut Vec<Diagnostic>) -> Lowered {
        Lowered { root, origins: Origins::default() }
    }
}

/// Entity of a family, from which items of the model were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entity {
    /// Kind in the words of the family.
    pub kind: &'static str,
    /// Name or id in the family.
    pub id: String,
    /// Path in the document: `services[0].routes[1]`.
    pub path: String,
    /// Fields of the item and the paths of the fields that they were made from, within the entity: `uris` from `paths`.
    /// Other fields have one path in both.
    pub fields: Vec<(&'static str, &'static str)>,
    /// Fields of the item that stand elsewhere in the document, with their paths there: `plugins.cors` from
    /// `plugins[2].config`.
    pub elsewhere: Vec<(String, String)>,
    /// The conditions of a route, in a family that orders routes by ranks; they count instead of the paths and hosts of
    /// the item.
    pub matching: Option<Matching>,
    /// Plugins of a consumer on single routes. A route stands in one element at most.
    pub on_routes: Vec<OnRoutes>,
}

/// Plugins of a consumer on some routes, which lie over those that it has on all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnRoutes {
    /// Ids of the routes.
    pub routes: Vec<String>,
    /// Id of the consumer group with the plugins.
    pub layer: Option<String>,
    /// Plugins of the consumer that do not run there, where those of the route take precedence.
    pub without: Vec<String>,
}

/// Paths and hosts of a route in the forms of `weir_router::Mode::Ranked`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// Prefixes, and regular expressions after `~`.
    pub paths: Vec<String>,
    /// Rank of each path; the greatest wins. Of routes with equal ranks the one that was added first wins.
    pub ranks: Vec<u64>,
    /// Hosts, with a wildcard at either end; none takes every host.
    pub hosts: Vec<String>,
}

/// A document in the form of the model.
#[derive(Debug)]
pub struct Lowered {
    pub(crate) root: Node,
    pub(crate) origins: Origins,
}

/// Entities by the paths of the items that they became: `routes[3]`. None where items are entities themselves.
#[derive(Debug, Default)]
pub(crate) struct Origins(HashMap<String, Arc<Entity>>);

impl Lowered {
    /// A document without items; the mark is that of the whole document.
    #[must_use]
    pub fn new(mark: Mark) -> Self {
        Self { root: Node { mark, kind: Kind::Map(Vec::new()) }, origins: Origins::default() }
    }

    /// Adds an item in the form of a rules file, which was made from an entity.
    pub fn add(&mut self, kind: ResourceKind, item: Node, entity: Entity) {
        let section = kind.directory();
        if self.root.get(section).is_none() {
            self.root.insert(section, Node { mark: item.mark, kind: Kind::Seq(Vec::new()) });
        }
        if let Some(Node { kind: Kind::Seq(items), .. }) = self.root.get_mut(section) {
            let mut path = section.to_owned();
            push_index(&mut path, items.len());
            items.push(item);
            self.origins.0.insert(path, Arc::new(entity));
        }
    }

    /// The items of a kind with the entities that they were made from, in the order in which they were added.
    pub fn items(&self, kind: ResourceKind) -> impl Iterator<Item = (&Node, Option<&Entity>)> {
        let section = kind.directory();
        let items = self.root.get(section).and_then(Node::as_seq).unwrap_or_default();
        items.iter().enumerate().map(move |(at, item)| {
            let mut path = section.to_owned();
            push_index(&mut path, at);
            (item, self.origins.0.get(&path).map(AsRef::as_ref))
        })
    }
}

impl Origins {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entity of the item that a path begins with, and the path in the document.
    pub(crate) fn find(&self, path: &str) -> Option<(&Arc<Entity>, String)> {
        let (item, field) = path.split_at(path.find(']')? + 1);
        let entity = self.0.get(item)?;
        let ends = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        let elsewhere = entity.elsewhere.iter().find_map(|(lowered, written)| {
            let rest = field.strip_prefix('.')?.strip_prefix(lowered.as_str())?;
            ends(rest).then(|| format!("{written}{rest}"))
        });
        if let Some(path) = elsewhere {
            return Some((entity, path));
        }
        let renamed = entity.fields.iter().find_map(|(lowered, written)| {
            let rest = field.strip_prefix('.')?.strip_prefix(lowered)?;
            ends(rest).then(|| format!(".{written}{rest}"))
        });
        Some((entity, format!("{}{}", entity.path, renamed.as_deref().unwrap_or(field))))
    }
}
