//! The resources of a store, and their form as a rules file.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use weir_config::load::place_of;
use weir_config::node::Mark;
use weir_config::{Code, Diagnostic, ItemChange, Key as Name, Kind as NodeKind, Node, SharedMap};
use weir_store::{Expectation, Item, Key, Kind, Listing};

/// All resources, in the order of their creation.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    items: SharedMap<u64, Item>,
    /// The number of each resource in the order of creation.
    numbers: HashMap<Key, u64>,
    next: u64,
    /// The global rules.
    global_rules: HashSet<Key>,
}

/// The former state of changed resources, in the order of the changes.
#[derive(Debug, Default)]
pub(crate) struct Undo(Vec<(Key, Option<(u64, Item)>)>);

/// A change of a resource.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) key: Key,
    /// True if the resource was deleted, even if it was created again afterwards.
    pub(crate) deleted: bool,
}

/// Resources in the form of a rules file.
pub(crate) struct Assembled {
    pub(crate) root: Node,
    /// Errors of the resources that are left out of the document.
    pub(crate) faults: Vec<(Key, Diagnostic)>,
    /// The resource of each item, by section.
    sections: Vec<(Box<str>, Vec<Key>)>,
}

impl Resources {
    pub(crate) fn new(listing: Listing) -> Self {
        let mut resources = Self::default();
        for item in listing.items {
            resources.set(item.key.clone(), Some(item));
        }
        resources
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn global_rules(&self) -> impl Iterator<Item = &Key> {
        self.global_rules.iter()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Item> {
        self.items.get(self.numbers.get(key)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.items.into_iter().map(|(_, item)| item)
    }

    /// The current items as a persistent map, which later changes do not affect. The items are shared, not copied.
    pub(crate) fn items(&self) -> SharedMap<u64, Item> {
        self.items.clone()
    }

    /// Applies changes, each with the new state of its resource.
    pub(crate) fn change(&mut self, changes: impl IntoIterator<Item = (Key, Option<Item>)>) -> Undo {
        Undo(changes.into_iter().map(|(key, item)| (key.clone(), self.set(key, item))).collect())
    }

    /// Reverts changes.
    pub(crate) fn undo(&mut self, undo: Undo) {
        for (key, before) in undo.0.into_iter().rev() {
            self.set(key.clone(), None);
            if let Some((number, item)) = before {
                if key.kind() == Kind::GlobalRules {
                    self.global_rules.insert(key.clone());
                }
                self.numbers.insert(key, number);
                self.items.insert_cow(number, item);
            }
        }
    }

    /// Sets a resource. Returns its former state.
    fn set(&mut self, key: Key, item: Option<Item>) -> Option<(u64, Item)> {
        if key.kind() == Kind::GlobalRules {
            match item {
                Some(_) => self.global_rules.insert(key.clone()),
                None => self.global_rules.remove(&key),
            };
        }
        let Some(item) = item else {
            let number = self.numbers.remove(&key)?;
            return self.items.remove_cow(&number).map(|item| (number, item));
        };
        if let Some(number) = self.numbers.get(&key) {
            return self.items.insert_cow(*number, item).map(|item| (*number, item));
        }
        self.numbers.insert(key, self.next);
        self.items.insert_cow(self.next, item);
        self.next += 1;
        None
    }

    /// Every resource as an addition, with those in `instead` in place of the stored ones. Of the resources in `without`,
    /// only the places of routes and certificates are left. Returns `None` if not all resources can be changed one by one.
    pub(crate) fn pieces(&self, without: &HashSet<Key>, instead: &HashMap<Key, Item>) -> Option<Vec<ItemChange>> {
        let item = |item: &Item| match without.contains(&item.key) {
            false => Some(piece(&item.key, Some(instead.get(&item.key).unwrap_or(item))).and_then(Result::ok)),
            true => self.place(&item.key, without, instead).map(Some),
        };
        self.iter().filter_map(item).collect()
    }

    /// Placeholder that keeps the position of a route that is left out, or the names of a certificate.
    fn place(&self, key: &Key, without: &HashSet<Key>, instead: &HashMap<Key, Item>) -> Option<ItemChange> {
        let is_kept = matches!(key.kind(), Kind::Routes | Kind::Ssls);
        let item = node(self.get(key).filter(|_| is_kept)?).ok()?;
        if key.kind() == Kind::Ssls {
            return Some(ItemChange { key: key.clone(), node: Some(item), left_out: true });
        }
        let route = item;
        let service = match route.get("service_id").map(|id| &id.kind) {
            Some(NodeKind::Str(id)) => Some(id.clone()),
            Some(NodeKind::Int(id)) => Some(id.to_string()),
            _ => None,
        };
        let service = service.map(|id| Key::new(Kind::Services, &id));
        let lost = service.filter(|service| without.contains(service) || self.get(service).is_none());
        let item = lost.as_ref().and_then(|service| self.get(service).or_else(|| instead.get(service)));
        let item = item.and_then(|item| node(item).ok());
        let hosts = item.as_ref().and_then(|service| service.get("hosts"));
        let node = place_of(route, lost.as_ref().map(|_| hosts));
        Some(ItemChange { key: key.clone(), node: Some(node), left_out: true })
    }

    /// The current state of changed resources, as changes against their state before `steps`. A resource that was deleted
    /// in between counts as added. Returns `None` if the changes affect more than single resources.
    pub(crate) fn steps(&self, steps: &[Step]) -> Option<Result<Vec<ItemChange>, Diagnostic>> {
        let step = |step: &Step| match step.deleted {
            // Other resources contain values read from a secret manager.
            _ if step.key.kind() == Kind::Secrets => None,
            true => piece(&step.key, None),
            false => piece(&step.key, self.get(&step.key)),
        };
        steps.iter().map(step).collect()
    }

    /// The resource that the path of a finding begins with.
    pub(crate) fn named(&self, path: &str) -> Option<Key> {
        // An id may contain dots.
        let ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
        let mut keys = ends.filter_map(|end| path.get(..end)?.parse::<Key>().ok());
        keys.rfind(|key| self.get(key).is_some())
    }

    /// The document of a rules file, without the resources in `without`, and with those in `instead` in place of the
    /// stored ones.
    pub(crate) fn assemble(&self, instead: &HashMap<Key, Item>, without: &HashSet<Key>) -> Assembled {
        let mut faults = Vec::new();
        let mut sections: Vec<(&str, Vec<Key>, Vec<Node>)> = Vec::new();
        let there = self.iter().filter(|item| !without.contains(&item.key));
        for item in there.map(|item| instead.get(&item.key).unwrap_or(item)) {
            let node = match node(item) {
                Ok(node) => node,
                Err(fault) => {
                    faults.push((item.key.clone(), fault));
                    continue;
                }
            };
            let section = section(&item.key);
            let place = sections.iter().position(|(name, ..)| *name == section).unwrap_or_else(|| {
                sections.push((section, Vec::new(), Vec::new()));
                sections.len() - 1
            });
            if let Some((_, keys, nodes)) = sections.get_mut(place) {
                keys.push(item.key.clone());
                nodes.push(node);
            }
        }
        let mut entries = Vec::with_capacity(sections.len());
        let mut places = Vec::with_capacity(sections.len());
        for (section, keys, nodes) in sections {
            entries.push((Name { text: section.into(), mark: Mark::NONE }, Node::new(NodeKind::Seq(nodes))));
            places.push((section.into(), keys));
        }
        Assembled { root: Node::new(NodeKind::Map(entries)), faults, sections: places }
    }
}

impl Undo {
    /// Appends the former state of later changes.
    pub(crate) fn and(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// The state that a store must have for the changes to be made there, except for resources that have an expectation
    /// already.
    pub(crate) fn expectations(&self, already: &[Expectation]) -> Vec<Expectation> {
        let others = self.0.iter().filter(|(key, _)| already.iter().all(|expected| expected.key != *key));
        let modified = |before: &Option<(u64, Item)>| before.as_ref().map(|(_, item)| item.modified);
        others.map(|(key, before)| Expectation { key: key.clone(), modified: modified(before) }).collect()
    }
}

impl Assembled {
    /// Finds the resource of a finding, and replaces the item in its path by the resource: `routes[0].uri` becomes
    /// `routes/1.uri`.
    pub(crate) fn name(&self, found: &mut Diagnostic) -> Option<Key> {
        let (section, rest) = found.path.split_once('[')?;
        let (number, rest) = rest.split_once(']')?;
        let (_, keys) = self.sections.iter().find(|(name, _)| **name == *section)?;
        let key = keys.get(number.parse::<usize>().ok()?)?;
        found.path = format!("{key}{rest}");
        Some(key.clone())
    }
}

/// A change of a resource as a change of a configuration item; `None` if the resource is not an item of its own.
pub(crate) fn piece(key: &Key, item: Option<&Item>) -> Option<Result<ItemChange, Diagnostic>> {
    if !key.kind().is_of_model() {
        return None;
    }
    let node = item.map(node).transpose();
    Some(node.map(|node| ItemChange { key: key.clone(), node, left_out: false }))
}

/// Section of the document that a resource stands in; that of an entity is a part of its id.
fn section(key: &Key) -> &str {
    match key.kind() {
        Kind::Entities => key.id().split('/').next().unwrap_or_default(),
        kind => kind.directory(),
    }
}

/// A resource as an item of its section.
fn node(item: &Item) -> Result<Node, Diagnostic> {
    let fault = |code: Code| Diagnostic::error(Mark::NONE, item.key.to_string(), code);
    let kind = item.key.kind();
    let value: Value = serde_json::from_str(&item.value)
        .map_err(|error| fault(Code::NotJson { reason: format!("is no JSON: {error}") }))?;
    let Value::Object(mut fields) = value else {
        return Err(fault(Code::Expected { what: "a JSON object" }));
    };
    // The key of a resource supersedes the id in its value.
    let id = || Value::from(item.key.id());
    match kind {
        Kind::Entities => {}
        // The id of a nested resource contains that of its owner.
        kind if kind.is_nested() || matches!(kind, Kind::PluginMetadata | Kind::Secrets) => {
            fields.insert("id".to_owned(), id());
        }
        _ => {
            fields.entry(kind.id_field()).or_insert_with(id);
        }
    }
    Ok(Node::from(&Value::Object(fields)))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use weir_store::{Item, Key, Listing};

    use super::Resources;

    fn item(key: &str, value: &str) -> Item {
        Item { key: key.parse().unwrap(), value: value.into(), created: 1, modified: 1 }
    }

    fn text(resources: &Resources) -> String {
        serde_json::to_string(&resources.assemble(&HashMap::new(), &HashSet::new()).root).unwrap()
    }

    #[test]
    fn they_make_a_rules_file() {
        let items = vec![
            item("routes/b", r#"{"uri":"/b"}"#),
            item("upstreams/1", r#"{"nodes":{}}"#),
            item("routes/a", r#"{"id":"a","uri":"/a"}"#),
            item("consumers/jack", "{}"),
            item("consumers/jack/credentials/c", r#"{"id":"c","plugins":{}}"#),
            item("plugin_metadata/x", r#"{"a":1}"#),
            item("routes/broken", "{"),
            item("routes/list", "[]"),
            item("stream_routes/1", r#"{"upstream_id":"1"}"#),
        ];
        let resources = Resources::new(Listing { cluster: 0, revision: 1, items });
        assert_eq!(
            text(&resources),
            r#"{"routes":[{"uri":"/b","id":"b"},{"id":"a","uri":"/a"}],"upstreams":[{"nodes":{},"id":"1"}],"#
                .to_owned()
                + r#""consumers":[{"username":"jack"},{"id":"jack/credentials/c","plugins":{}}],"#
                + r#""plugin_metadata":[{"a":1,"id":"x"}],"stream_routes":[{"upstream_id":"1","id":"1"}]}"#
        );
        let faults: Vec<String> = resources
            .assemble(&HashMap::new(), &HashSet::new())
            .faults
            .iter()
            .map(|(_, fault)| fault.to_string())
            .collect();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("routes/broken: is no JSON"), "{faults:?}");
    }

    #[test]
    fn changes_are_undone() {
        let items = vec![item("routes/a", r#"{"uri":"/a"}"#), item("routes/b", r#"{"uri":"/b"}"#)];
        let mut resources = Resources::new(Listing { cluster: 0, revision: 1, items });
        let before = text(&resources);
        let key = |text: &str| text.parse::<Key>().unwrap();
        let undo = resources.change([
            (key("routes/a"), None),
            (key("routes/b"), Some(item("routes/b", r#"{"uri":"/c"}"#))),
            (key("routes/c"), Some(item("routes/c", r#"{"uri":"/c"}"#))),
        ]);
        assert_eq!(text(&resources), r#"{"routes":[{"uri":"/c","id":"b"},{"uri":"/c","id":"c"}]}"#);
        resources.undo(undo);
        assert_eq!(text(&resources), before);
    }
}
