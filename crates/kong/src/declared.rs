//! The entities of a declarative configuration, one by one, for an API that takes a whole one.

use weir_config::{Diagnostic, Kind, Node};

use crate::document::{Document, rule};
use crate::front_end::{Presets, check_version};

/// A declarative configuration, taken apart.
#[derive(Debug, Default)]
pub struct Declaration {
    /// The entities, parents before what is nested in them.
    pub entities: Vec<Declared>,
    /// True if passwords are hashed already (`_transform: false`).
    pub is_hashed: bool,
    /// Everything that is wrong with it.
    pub found: Vec<Diagnostic>,
}

/// An entity.
#[derive(Debug)]
pub struct Declared {
    /// Collection that it belongs to: `services`.
    pub section: &'static str,
    /// Path in the document: `services[0].routes[1]`.
    pub path: String,
    /// Id, as written or made of its name.
    pub id: String,
    /// Name by which others refer to it.
    pub name: Option<String>,
    /// Fields, with the ids of the entities that it refers to: `{service: {id: …}}`.
    pub fields: Node,
}

/// Takes a document apart. No placeholder is filled: the document is a client's, and the environment is the gateway's.
#[must_use]
pub fn declaration(text: &str) -> Declaration {
    let mut declaration = Declaration::default();
    let root = match Node::parse(text) {
        Ok(parsed) => parsed.root,
        Err(mut error) => {
            error.path = "error".to_owned();
            declaration.found.push(error);
            return declaration;
        }
    };
    if root.as_map().is_none() {
        declaration.found.push(Diagnostic::error(root.mark, "error", rule("expected an object")));
        return declaration;
    }
    let found = &mut declaration.found;
    check_version(&root, found);
    declaration.is_hashed = root.get("_transform").is_some_and(|node| node.kind == Kind::Bool(false));
    let presets = Presets::of(&root, found);
    let mut document = Document::read(root, found);
    presets.apply(&mut document, found);
    let entity = |entity: &crate::document::Entity| {
        let mut fields = entity.node.clone();
        fields.remove("_config");
        fields.insert("id", Node::new(Kind::Str(entity.id.clone())));
        for (field, target) in entity.references() {
            if let Some(target) = document.entities.get(target) {
                let mut reference = Node::empty_map();
                reference.insert("id", Node::new(Kind::Str(target.id.clone())));
                fields.insert(field, reference);
            }
        }
        Declared {
            section: entity.kind.description().section,
            path: entity.path.clone(),
            id: entity.id.clone(),
            name: entity.name.clone(),
            fields,
        }
    };
    declaration.entities = document.entities.iter().map(entity).collect();
    declaration
}
