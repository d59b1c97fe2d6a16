//! The resource or collection that a path names.

use serde_json::Value;
use weir_admin::FamilyAnswer;

use crate::entities::{Entities, Entity};
use crate::fault;
use crate::kinds::{self, Kind, KindNumber};
use crate::shape::is_uuid;

/// A collection, or one entity in it.
#[derive(Debug)]
pub(crate) struct Target<'p> {
    pub(crate) number: KindNumber,
    pub(crate) kind: &'static Kind,
    /// The entity that all of the collection refer to, and the field in which they do.
    pub(crate) parent: Option<(&'static str, Place<'p>)>,
    /// Id or name of one.
    pub(crate) id: Option<&'p str>,
    /// Field of the entity, whose own entity is meant.
    pub(crate) through: Option<(&'static str, KindNumber)>,
}

/// An entity that a path names.
#[derive(Debug)]
pub(crate) struct Place<'p> {
    pub(crate) number: KindNumber,
    pub(crate) kind: &'static Kind,
    pub(crate) id: &'p str,
}

impl<'p> Target<'p> {
    /// Reads a path; `None` for one that leads nowhere.
    pub(crate) fn of(path: &'p [String]) -> Option<Self> {
        let (first, rest) = path.split_first()?;
        let (number, kind) = kinds::kinds().find(|(_, kind)| kind.path == Some(first))?;
        let plain = |id| Some(Self { number, kind, parent: None, id, through: None });
        match rest {
            [] => plain(None),
            [id] => plain(Some(id)),
            [id, below, more @ ..] => {
                let through = kind.references().find(|(field, _)| field.name == **below);
                if let Some((field, to)) = through.filter(|_| more.is_empty()) {
                    return Some(Self { through: Some((&field.name, to)), ..plain(Some(id))? });
                }
                let children = kinds::kinds().filter(|(_, child)| child.nested == *below);
                let mut children = children.filter_map(|(child, description)| {
                    let (field, _) = description.references().find(|(_, to)| *to == number)?;
                    Some((child, description, field))
                });
                let (child, description, field) = children.next()?;
                let place = Place { number, kind, id };
                let id = match more {
                    [] => None,
                    [id] => Some(id.as_str()),
                    _ => return None,
                };
                let parent = Some((field.name.as_str(), place));
                Some(Self { number: child, kind: description, parent, id, through: None })
            }
        }
    }

    /// The id of the parent.
    pub(crate) fn parent_id(&self, entities: &Entities) -> Result<Option<(&'static str, String)>, FamilyAnswer> {
        let Some((field, place)) = &self.parent else { return Ok(None) };
        let entity = place.find(entities).ok_or_else(fault::not_found)?;
        Ok(Some((field, id_of(entity))))
    }

    /// The entity that the path names, if it is there.
    pub(crate) fn find<'e>(
        &self,
        entities: &'e Entities,
        parent: Option<&(&'static str, String)>,
    ) -> Option<&'e Entity> {
        let id = self.id?;
        let Some((field, of)) = parent else {
            return Place { number: self.number, kind: self.kind, id }.find(entities);
        };
        let mut children = entities.children(self.number, field, of);
        children.find(|entity| entity["id"] == id || self.kind.key.is_some_and(|key| entity[key] == id))
    }
}

impl Place<'_> {
    pub(crate) fn find<'e>(&self, entities: &'e Entities) -> Option<&'e Entity> {
        if is_uuid(self.id) {
            return entities.get(self.number, &self.id.to_ascii_lowercase());
        }
        if self.kind.name == "certificates" {
            // A certificate goes by any of its SNIs.
            let (snis, _) = kinds::named("snis")?;
            let sni = entities.by_field(snis, "name", self.id)?;
            return entities.get(self.number, sni["certificate"]["id"].as_str()?);
        }
        entities.by_field(self.number, self.kind.key?, self.id)
    }
}

/// The id of an entity.
pub(crate) fn id_of(entity: &Value) -> String {
    entity["id"].as_str().unwrap_or_default().to_owned()
}
