//! All entities at one revision of the store, as a persistent structure: a copy costs nothing.

use std::sync::Arc;

use serde_json::Value;
use weir_config::{SharedMap, SharedSet};
use weir_store::{Change, Item, Key, Kind as StoreKind};

use crate::kinds::{self, KINDS, Kind, KindNumber};

/// An entity with all of its fields.
pub(crate) type Entity = Arc<Value>;

/// The entities, and where they are found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entities {
    tables: Vec<Table>,
}

/// A field with a reference, and the id that it names.
type Reference = (Arc<str>, Arc<str>);

/// The entities of one kind.
#[derive(Clone, Debug, Default)]
struct Table {
    rows: SharedMap<Arc<str>, Entity>,
    /// Ids by the number of a set of unique fields, and their values.
    unique: SharedMap<(usize, Arc<str>), Arc<str>>,
    /// Ids by the references that they have.
    children: SharedMap<Reference, SharedSet<Arc<str>>>,
}

/// Values of a set of fields as one text; `None` if one of fields that are unique alone is null.
fn values(entity: &Value, fields: &[&str]) -> Option<Arc<str>> {
    if let [field] = fields {
        return entity[*field].as_str().map(Arc::from);
    }
    Some(fields.iter().map(|field| entity[*field].to_string()).collect::<Vec<_>>().join("\n").into())
}

impl Entities {
    /// The entities among the items of a store.
    pub(crate) fn of(items: &[Item]) -> Self {
        let mut entities = Self { tables: vec![Table::default(); KINDS.len()] };
        for item in items {
            entities.set(&item.key, Some(&item.value));
        }
        entities
    }

    /// Makes changes.
    pub(crate) fn change(&mut self, changes: &[Change]) {
        for change in changes {
            self.set(&change.key, change.value.as_ref());
        }
    }

    /// Sets the entity of a key, or removes it.
    pub(crate) fn set(&mut self, key: &Key, value: Option<&Arc<str>>) {
        let Some((number, kind, id)) = parts(key) else { return };
        let Some(table) = self.tables.get_mut(number) else { return };
        if let Some(before) = table.rows.get(id).cloned() {
            table.remove(kind, id, &before);
        }
        let entity = value.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(entity) = entity {
            table.insert(kind, id.into(), Arc::new(entity));
        }
    }

    /// An entity by its id.
    pub(crate) fn get(&self, kind: KindNumber, id: &str) -> Option<&Entity> {
        self.tables.get(kind)?.rows.get(id)
    }

    /// The entity with this value in a field that is unique.
    pub(crate) fn by_field(&self, number: KindNumber, field: &str, value: &str) -> Option<&Entity> {
        let at = kinds::kind(number)?.unique().position(|fields| fields == [field])?;
        let id = self.tables.get(number)?.unique.get(&(at, Arc::from(value)))?;
        self.get(number, id)
    }

    /// The other entity that has the same values in fields that are unique together, and those fields.
    pub(crate) fn rival(&self, number: KindNumber, id: &str, entity: &Value) -> Option<Vec<&'static str>> {
        let kind = kinds::kind(number)?;
        let table = self.tables.get(number)?;
        kind.unique().enumerate().find_map(|(at, fields)| {
            let holder = table.unique.get(&(at, values(entity, &fields)?))?;
            (**holder != *id).then_some(fields)
        })
    }

    /// The entities of a kind after an id, in the order of ids.
    pub(crate) fn after<'a>(&'a self, kind: KindNumber, after: Option<&'a str>) -> impl Iterator<Item = &'a Entity> {
        let rows = self.tables.get(kind).into_iter().flat_map(|table| &table.rows);
        rows.filter(move |(id, _)| after.is_none_or(|after| ***id > *after)).map(|(_, entity)| entity)
    }

    /// The entities of a kind that refer to another one in this field, in the order of ids.
    pub(crate) fn children<'a>(&'a self, kind: KindNumber, field: &str, of: &str) -> impl Iterator<Item = &'a Entity> {
        let table = self.tables.get(kind);
        let ids = table.and_then(|table| table.children.get(&(Arc::from(field), Arc::from(of))));
        ids.into_iter().flatten().filter_map(move |id| table?.rows.get(id))
    }

    /// False before the store has been read.
    pub(crate) fn is_known(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Number of entities of all kinds.
    pub(crate) fn len(&self) -> usize {
        self.tables.iter().map(|table| table.rows.len()).sum()
    }
}

impl Table {
    fn insert(&mut self, kind: &'static Kind, id: Arc<str>, entity: Entity) {
        for (at, fields) in kind.unique().enumerate() {
            if let Some(values) = values(&entity, &fields) {
                self.unique.insert_cow((at, values), Arc::clone(&id));
            }
        }
        for (place, parent) in places(kind, &entity) {
            let key = (place, parent);
            let mut ids = self.children.get(&key).cloned().unwrap_or_default();
            ids.insert_cow(Arc::clone(&id));
            self.children.insert_cow(key, ids);
        }
        self.rows.insert_cow(id, entity);
    }

    fn remove(&mut self, kind: &'static Kind, id: &str, entity: &Value) {
        let id: Arc<str> = id.into();
        for (at, fields) in kind.unique().enumerate() {
            if let Some(values) = values(entity, &fields) {
                self.unique.remove_cow(&(at, values));
            }
        }
        for key in places(kind, entity) {
            let mut ids = self.children.get(&key).cloned().unwrap_or_default();
            ids.remove_cow(&id);
            match ids.len() {
                0 => drop(self.children.remove_cow(&key)),
                _ => drop(self.children.insert_cow(key, ids)),
            }
        }
        self.rows.remove_cow(&id);
    }
}

/// Fields with references, and the ids that they name.
fn places(kind: &'static Kind, entity: &Value) -> Vec<(Arc<str>, Arc<str>)> {
    let named = |field: &str| Some((field.into(), entity[field]["id"].as_str()?.into()));
    kind.references().filter_map(|(field, _)| named(&field.name)).collect()
}

/// The kind and the id of a key.
pub(crate) fn parts(key: &Key) -> Option<(KindNumber, &'static Kind, &str)> {
    let (name, id) = key.id().split_once('/').filter(|_| key.kind() == StoreKind::Entities)?;
    let (number, kind) = kinds::KINDS.iter().enumerate().find(|(_, kind)| kind.name == name)?;
    Some((number, kind, id))
}

/// The key of an entity in a store.
pub(crate) fn key(kind: &Kind, id: &str) -> Key {
    Key::new(StoreKind::Entities, &format!("{}/{id}", kind.name))
}
