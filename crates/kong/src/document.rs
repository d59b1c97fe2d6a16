//! Entities of a declarative configuration: nested or at the top level, checked one by one, their references resolved.

mod kinds;

use std::collections::HashMap;

use weir_config::diagnostic::nearest;
use weir_config::{Code, Diagnostic, Hint, Key, Kind, Mark, Node};

use crate::id;
pub(crate) use kinds::EntityKind;
use kinds::{Description, Shape};

/// An entity.
#[derive(Debug)]
pub(crate) struct Entity {
    pub(crate) kind: EntityKind,
    pub(crate) id: String,
    /// Value of the field that names entities of the kind.
    pub(crate) name: Option<String>,
    /// Fields without nested entities and nulls.
    pub(crate) node: Node,
    /// Path in the document.
    pub(crate) path: String,
    /// Entities that it refers to, by field.
    references: Vec<(&'static str, usize)>,
}

/// The entities of a document, parents before what is nested in them.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) entities: Vec<Entity>,
    /// Entities by their kind, and the field and the number of the entity that they refer to.
    children: HashMap<(EntityKind, &'static str, usize), Vec<usize>>,
    /// Entities by kind and name.
    named: HashMap<(EntityKind, String), usize>,
}

impl Document {
    /// Reads all entities. The findings hold everything that is wrong with them.
    pub(crate) fn read(root: Node, found: &mut Vec<Diagnostic>) -> Self {
        let mut reader = Reader { entities: Vec::new(), pending: Vec::new(), found };
        let Kind::Map(sections) = root.kind else { return Self::default() };
        let mut defaults = None;
        for (key, node) in sections {
            if let Some(kind) = EntityKind::of_section(&key.text) {
                reader.list(kind, &key, node, &key.text, None);
            } else if &*key.text == "_info" {
                defaults = node.get("defaults").filter(|defaults| !defaults.is_null()).cloned();
            } else if !is_meta(&key.text) {
                let near = nearest(&key.text, EntityKind::ALL.into_iter().map(|kind| kind.description().section));
                reader.rule(&key, &key.text, "unknown field".into(), Hint::nearest(near));
            }
        }
        if let Some(defaults) = defaults {
            reader.rule_at(defaults.mark, "_info.defaults", "defaults of decK are not supported".into());
        }
        reader.finish()
    }

    /// The entities of one kind, with their numbers.
    pub(crate) fn of(&self, kind: EntityKind) -> impl Iterator<Item = (usize, &Entity)> {
        self.entities.iter().enumerate().filter(move |(_, entity)| entity.kind == kind)
    }

    /// The entities of one kind that refer to another one in this field.
    pub(crate) fn children(
        &self,
        kind: EntityKind,
        field: &'static str,
        parent: usize,
    ) -> impl Iterator<Item = &Entity> {
        self.numbered_children(kind, field, parent).map(|(_, entity)| entity)
    }

    /// The same, with their numbers.
    pub(crate) fn numbered_children(
        &self,
        kind: EntityKind,
        field: &'static str,
        parent: usize,
    ) -> impl Iterator<Item = (usize, &Entity)> {
        let numbers = self.children.get(&(kind, field, parent)).map_or(&[][..], Vec::as_slice);
        numbers.iter().filter_map(|number| Some((*number, self.entities.get(*number)?)))
    }

    /// The entity of one kind with this id or name.
    pub(crate) fn find(&self, kind: EntityKind, key: &str) -> Option<usize> {
        self.named.get(&(kind, key.to_owned())).copied()
    }

    fn of_entities(entities: Vec<Entity>) -> Self {
        let mut document = Self { entities, ..Self::default() };
        for (number, entity) in document.entities.iter().enumerate() {
            for (field, target) in &entity.references {
                document.children.entry((entity.kind, field, *target)).or_default().push(number);
            }
            let name = entity.name.as_ref().filter(|_| entity.kind.description().is_unique);
            for key in name.into_iter().chain([&entity.id]) {
                document.named.insert((entity.kind, key.clone()), number);
            }
        }
        document
    }
}

/// Fields at the top of a document that are no sections.
fn is_meta(name: &str) -> bool {
    matches!(
        name,
        "_format_version" | "_transform" | "_comment" | "_ignore" | "_workspace" | "_konnect" | "_plugin_configs"
    )
}

impl Entity {
    /// Number of the entity that a field refers to.
    pub(crate) fn reference(&self, field: &str) -> Option<usize> {
        self.references.iter().find(|(name, _)| *name == field).map(|(_, number)| *number)
    }

    /// The entities that it refers to, by field.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.references.iter().copied()
    }

    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.node.get(field)?.as_str()
    }

    pub(crate) fn flag(&self, field: &str) -> Option<bool> {
        match self.node.get(field)?.kind {
            Kind::Bool(flag) => Some(flag),
            _ => None,
        }
    }

    pub(crate) fn whole(&self, field: &str) -> Option<i64> {
        whole(self.node.get(field)?)
    }

    /// The texts of a list.
    pub(crate) fn texts(&self, field: &str) -> Vec<String> {
        let items = self.node.get(field).and_then(Node::as_seq).unwrap_or_default();
        items.iter().filter_map(Node::as_str).map(str::to_owned).collect()
    }

    /// Path of a field in the document.
    pub(crate) fn at(&self, field: &str) -> String {
        format!("{}.{field}", self.path)
    }

    /// A fault in a field.
    pub(crate) fn fault(&self, field: &str, text: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.mark_of(field), self.at(field), rule(text))
    }

    /// A warning about a field.
    pub(crate) fn doubt(&self, field: &str, text: impl Into<String>) -> Diagnostic {
        Diagnostic::warning(self.mark_of(field), self.at(field), rule(text))
    }

    fn mark_of(&self, field: &str) -> Mark {
        self.node.get(field).map_or(self.node.mark, |node| node.mark)
    }

    /// The entity that items of the model were made from.
    pub(crate) fn origin(&self) -> weir_config::Entity {
        let id = self.name.clone().unwrap_or_else(|| self.id.clone());
        weir_config::Entity { kind: self.kind.description().noun, id, path: self.path.clone(), ..Default::default() }
    }
}

/// A whole number, also one that was written with a fraction of 0.
pub(crate) fn whole(node: &Node) -> Option<i64> {
    match node.kind {
        Kind::Int(number) => Some(number),
        Kind::Float(number) if number.fract() == 0.0 && number.abs() < 1e15 => Some(number as i64),
        _ => None,
    }
}

/// A fault against a rule of Kong's.
pub(crate) fn rule(text: impl Into<String>) -> Code {
    Code::FamilyRule { text: text.into().into() }
}

/// The id of an entity without one. Names of targets and of credentials without a key of their own hold within their
/// parents.
fn made_id(description: &Description, name: Option<String>, path: &str, parent: Option<String>) -> String {
    let key = match name {
        Some(name) if description.is_unique => name,
        Some(name) => format!("{}:{name}", parent.unwrap_or_default()),
        None => path.to_owned(),
    };
    id::from_name(description.section, &key)
}

/// A reference that is not resolved yet.
struct Pending {
    entity: usize,
    field: &'static str,
    kind: EntityKind,
    key: String,
    mark: Mark,
}

struct Reader<'f> {
    entities: Vec<Entity>,
    pending: Vec<Pending>,
    found: &'f mut Vec<Diagnostic>,
}

impl Reader<'_> {
    fn rule(&mut self, key: &Key, path: &str, text: String, hint: Option<Hint>) {
        self.found.push(Diagnostic { hint, ..Diagnostic::error(key.mark, path, rule(text)) });
    }

    fn rule_at(&mut self, mark: Mark, path: &str, text: String) {
        self.found.push(Diagnostic::error(mark, path, rule(text)));
    }

    /// Reads a list of entities. `parent` is the field that refers to the one that the list is nested in, and its number.
    fn list(&mut self, kind: EntityKind, key: &Key, node: Node, path: &str, parent: Option<(&'static str, usize)>) {
        match node.kind {
            Kind::Seq(items) => {
                for (at, item) in items.into_iter().enumerate() {
                    self.entity(kind, item, &format!("{path}[{at}]"), parent);
                }
            }
            Kind::Null => {}
            other => {
                let found = Node { mark: node.mark, kind: other };
                self.rule(key, path, format!("expected an array, found {}", found.describe()), None);
            }
        }
    }

    fn entity(&mut self, kind: EntityKind, item: Node, path: &str, parent: Option<(&'static str, usize)>) {
        let description = kind.description();
        let mark = item.mark;
        let fields = match item.kind {
            Kind::Map(fields) => fields,
            // SNIs and targets may be plain texts.
            Kind::Str(text) if description.is_plain => {
                vec![(Key { text: description.name.into(), mark }, Node { mark, kind: Kind::Str(text) })]
            }
            other => {
                let found = Node { mark, kind: other };
                self.rule_at(mark, path, format!("expected a {}, found {}", description.noun, found.describe()));
                return;
            }
        };
        let number = self.entities.len();
        self.entities.push(Entity {
            kind,
            id: String::new(),
            name: None,
            node: Node { mark, kind: Kind::Map(Vec::new()) },
            path: path.to_owned(),
            references: parent.into_iter().collect(),
        });
        // The id comes first: those of nested entities may depend on it.
        let field = |name: &str| fields.iter().find(|(key, _)| &*key.text == name).map(|(_, value)| value);
        let written = |name: &str| field(name).and_then(Node::as_str).map(str::to_owned);
        let id = written("id").unwrap_or_else(|| {
            let of_record = |value: &Node| {
                ["id", "name", "username"].iter().find_map(|name| value.get(name)?.as_str()).map(str::to_owned)
            };
            let mut parents = ["upstream", "consumer"].iter().filter_map(|name| field(name));
            let named = parents.find_map(|value| value.as_str().map(str::to_owned).or_else(|| of_record(value)));
            let nested = parent.and_then(|(_, parent)| self.entities.get(parent)).map(|parent| parent.id.clone());
            made_id(description, written(description.name), path, nested.or(named))
        });
        if let Some(entity) = self.entities.get_mut(number) {
            entity.id = id;
        }
        let mut kept = Vec::with_capacity(fields.len());
        for (key, value) in fields {
            if value.is_null() || matches!(&*key.text, "_comment" | "_ignore") {
                continue;
            }
            let at = format!("{path}.{}", key.text);
            if let Some((section, field)) = description.nested.iter().find(|(section, _)| *section == &*key.text) {
                if let Some(nested) = EntityKind::of_section(section) {
                    self.list(nested, &key, value, &at, Some((field, number)));
                }
                continue;
            }
            match description.field(&key.text) {
                None => {
                    let names = description.fields.iter().map(|(name, _)| *name);
                    let near = nearest(&key.text, names.chain(description.nested.iter().map(|(name, _)| *name)));
                    self.rule(&key, &at, "unknown field".into(), Hint::nearest(near));
                }
                Some((field, Shape::Reference(target))) => self.refer(number, field, target, &value, &at),
                Some((_, shape)) => {
                    if let Err(text) = shape.check(&value) {
                        self.rule_at(value.mark, &at, text);
                        continue;
                    }
                    kept.push((key, value));
                }
            }
        }
        self.complete(number, description, Node { mark, kind: Kind::Map(kept) });
    }

    /// Settles the fields and the name of an entity.
    fn complete(&mut self, number: usize, description: &Description, node: Node) {
        let path = self.entities.get(number).map(|entity| entity.path.clone()).unwrap_or_default();
        for name in description.required {
            if node.get(name).is_none() {
                self.rule_at(node.mark, &format!("{path}.{name}"), "required field missing".into());
            }
        }
        let name = node.get(description.name).and_then(Node::as_str).map(str::to_owned);
        if let Some(entity) = self.entities.get_mut(number) {
            (entity.name, entity.node) = (name, node);
        }
    }

    fn refer(&mut self, entity: usize, field: &'static str, kind: EntityKind, value: &Node, path: &str) {
        let name = kind.description().name;
        let text = |node: &Node| node.as_str().map(str::to_owned);
        let key = text(value).or_else(|| ["id", name].iter().find_map(|name| value.get(name).and_then(text)));
        match key {
            Some(key) => self.pending.push(Pending { entity, field, kind, key, mark: value.mark }),
            None => {
                self.rule_at(value.mark, path, format!("expected the name or the id of a {}", kind.description().noun))
            }
        }
    }

    fn finish(mut self) -> Document {
        let mut known: HashMap<(EntityKind, &str), usize> = HashMap::new();
        for (number, entity) in self.entities.iter().enumerate() {
            let unique = entity.name.as_deref().filter(|_| entity.kind.description().is_unique);
            for key in unique.into_iter().chain([entity.id.as_str()]) {
                let Some(first) = known.insert((entity.kind, key), number).filter(|first| *first != number) else {
                    continue;
                };
                let description = entity.kind.description();
                let field = if unique == Some(key) { description.name } else { "id" };
                let shown = if description.is_secret && field != "id" { "***" } else { key };
                let first = self.entities.get(first).map(|first| first.path.clone()).unwrap_or_default();
                self.found.push(entity.fault(
                    field,
                    format!(
                        "uniqueness violation: '{}' entity with {field} set to '{shown}' already declared at {first}",
                        description.section,
                    ),
                ));
                break;
            }
        }
        let mut resolved = Vec::with_capacity(self.pending.len());
        for pending in &self.pending {
            match known.get(&(pending.kind, pending.key.as_str())) {
                Some(target) => resolved.push((pending.entity, pending.field, *target)),
                None => {
                    let section = pending.kind.description().section;
                    let text = format!(
                        "invalid reference '{}: {}' (no such entry in '{section}')",
                        pending.field, pending.key
                    );
                    let path = self.entities.get(pending.entity).map(|entity| entity.at(pending.field));
                    let names = known.keys().filter(|(kind, _)| *kind == pending.kind).map(|(_, name)| *name);
                    let hint = Hint::nearest(nearest(&pending.key, names));
                    let error = Diagnostic::error(pending.mark, path.unwrap_or_default(), rule(text));
                    self.found.push(Diagnostic { hint, ..error });
                }
            }
        }
        drop(known);
        for (entity, field, target) in resolved {
            if let Some(entity) = self.entities.get_mut(entity) {
                entity.references.push((field, target));
            }
        }
        Document::of_entities(self.entities)
    }
}
