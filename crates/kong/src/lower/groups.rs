//! Consumer groups: who is in which of them.

use std::collections::HashMap;

use weir_config::{Diagnostic, Hint, Node, diagnostic::nearest};

use crate::document::{Document, Entity, EntityKind, rule};

/// The groups of consumers by the numbers of both.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    of_consumer: HashMap<usize, Vec<usize>>,
}

impl Groups {
    /// Reads `groups` of consumers and `consumers` of groups.
    pub(crate) fn of(document: &Document, found: &mut Vec<Diagnostic>) -> Self {
        let mut groups = Self::default();
        for (consumer, entity) in document.of(EntityKind::Consumers) {
            for group in members(document, entity, "groups", EntityKind::ConsumerGroups, found) {
                groups.add(consumer, group);
            }
        }
        for (group, entity) in document.of(EntityKind::ConsumerGroups) {
            for consumer in members(document, entity, "consumers", EntityKind::Consumers, found) {
                groups.add(consumer, group);
            }
        }
        // Of several groups with one plugin, the one whose name comes first counts.
        let name = |group: &usize| document.entities.get(*group).and_then(|group| group.name.clone());
        groups.of_consumer.values_mut().for_each(|all| all.sort_by_key(name));
        groups
    }

    fn add(&mut self, consumer: usize, group: usize) {
        let all = self.of_consumer.entry(consumer).or_default();
        if !all.contains(&group) {
            all.push(group);
        }
    }

    /// The groups of a consumer, in the order of their names.
    pub(crate) fn of_consumer(&self, consumer: usize) -> &[usize] {
        self.of_consumer.get(&consumer).map_or(&[], Vec::as_slice)
    }
}

/// The entities that a list of names, or of records with a name or an id, stands for.
fn members(
    document: &Document,
    entity: &Entity,
    field: &str,
    kind: EntityKind,
    found: &mut Vec<Diagnostic>,
) -> Vec<usize> {
    let Some(list) = entity.node.get(field) else { return Vec::new() };
    let Some(items) = list.as_seq() else {
        found.push(entity.fault(field, format!("expected an array, found {}", list.describe())));
        return Vec::new();
    };
    let description = kind.description();
    let key = |item: &Node| {
        let of_record = ["id", description.name].into_iter().find_map(|name| item.get(name)?.as_str());
        item.as_str().or(of_record).map(str::to_owned)
    };
    let mut numbers = Vec::with_capacity(items.len());
    for item in items {
        let Some(key) = key(item) else {
            let text = format!("expected the name or the id of a {}", description.noun);
            found.push(Diagnostic::error(item.mark, entity.at(field), rule(text)));
            continue;
        };
        match document.find(kind, &key) {
            Some(number) => numbers.push(number),
            None => {
                let section = description.section;
                let text = format!("invalid reference '{field}: {key}' (no such entry in '{section}')");
                let names = document.of(kind).filter_map(|(_, entity)| entity.name.as_deref());
                let hint = Hint::nearest(nearest(&key, names));
                found.push(Diagnostic { hint, ..Diagnostic::error(item.mark, entity.at(field), rule(text)) });
            }
        }
    }
    numbers
}
