//! Numbers of added, changed and removed resources, for the log.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use serde::Serialize;
use weir_config::{Items, Model, Place, Section, Status};

/// A digest of every resource, by a hash of its id. A digest takes some twenty bytes a resource, where the resource itself
/// would take hundreds. If two ids have the same hash, a number in the log is wrong.
#[derive(Debug, Default)]
pub(crate) struct Digest {
    sections: [(&'static str, HashMap<u64, u64>); 11],
}

/// Numbers of resources added, changed and removed, by section. Displayed as `routes +1 ~2 -0, upstreams +0 ~1 -0`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes(Vec<(&'static str, Counts)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    added: usize,
    changed: usize,
    removed: usize,
}

impl Digest {
    /// Computes the digest of a model.
    pub(crate) fn of(model: &Model) -> Self {
        fn all<T: Serialize>(section: Section, items: &Items<T>) -> (&'static str, HashMap<u64, u64>) {
            let mut text = Vec::new();
            let digests = items.iter().map(|(id, item)| (hash(id.as_bytes()), digest(&**item, &mut text)));
            (section.name(), digests.collect())
        }
        let mut routes = all(Section::Routes, &model.routes);
        for (id, _) in model.routes.iter().filter(|(_, route)| route.status == Status::LeftOut) {
            routes.1.remove(&hash(id.as_bytes()));
        }
        Self {
            sections: [
                routes,
                all(Section::Services, &model.services),
                all(Section::Upstreams, &model.upstreams),
                all(Section::Consumers, &model.consumers),
                all(Section::ConsumerGroups, &model.consumer_groups),
                all(Section::PluginConfigs, &model.plugin_configs),
                all(Section::Ssls, &model.ssls),
                all(Section::Protos, &model.protos),
                all(Section::GlobalRules, &model.global_rules),
                all(Section::Secrets, &model.secrets),
                all(Section::PluginMetadata, &model.plugin_metadata),
            ],
        }
    }

    /// Updates the digest at these places of a model. Returns the changes.
    pub(crate) fn follow(&mut self, model: &Model, places: &[Place]) -> Changes {
        let mut changes = Changes(Vec::new());
        for (name, digests) in &mut self.sections {
            let mut counts = Counts::default();
            for place in places.iter().filter(|place| place.section.name() == *name) {
                let id = hash(place.id.as_bytes());
                match digest_at(model, place) {
                    Some(digest) => match digests.insert(id, digest) {
                        None => counts.added += 1,
                        Some(before) if before != digest => counts.changed += 1,
                        Some(_) => {}
                    },
                    None => counts.removed += usize::from(digests.remove(&id).is_some()),
                }
            }
            changes.0.extend((counts != Counts::default()).then_some((*name, counts)));
        }
        changes
    }

    /// The sizes of the sections: `2 routes, 1 upstream`.
    pub(crate) fn inventory(&self) -> String {
        let sizes =
            self.sections.iter().map(|(name, items)| (name.trim_end_matches('s').replace('_', " "), items.len()));
        let parts: Vec<_> = sizes
            .filter(|(noun, count)| *count > 0 || noun == "route")
            .map(|(noun, count)| counted(count, &noun))
            .collect();
        parts.join(", ")
    }

    /// The changes from `self` to `next`.
    pub(crate) fn changes_to(&self, next: &Self) -> Changes {
        let pairs = self.sections.iter().zip(&next.sections);
        let counted = pairs.map(|((_, old), (name, new))| {
            let mut counts = Counts::default();
            for (id, digest) in new {
                match old.get(id) {
                    None => counts.added += 1,
                    Some(before) if before != digest => counts.changed += 1,
                    Some(_) => {}
                }
            }
            counts.removed = old.keys().filter(|id| !new.contains_key(*id)).count();
            (*name, counts)
        });
        Changes(counted.filter(|(_, counts)| *counts != Counts::default()).collect())
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no resource changed");
        }
        for (at, (name, counts)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name} +{} ~{} -{}", counts.added, counts.changed, counts.removed)?;
        }
        Ok(())
    }
}

/// `1 route`, `2 routes`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 || noun.ends_with("data") { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

fn digest_at(model: &Model, place: &Place) -> Option<u64> {
    let (id, mut text) = (&*place.id, Vec::new());
    match place.section {
        Section::Secrets => model.secrets.get(id).map(|item| digest(&**item, &mut text)),
        Section::Protos => model.protos.get(id).map(|item| digest(&**item, &mut text)),
        Section::Ssls => model.ssls.get(id).map(|item| digest(&**item, &mut text)),
        Section::Upstreams => model.upstreams.get(id).map(|item| digest(&**item, &mut text)),
        Section::Services => model.services.get(id).map(|item| digest(&**item, &mut text)),
        Section::PluginConfigs => model.plugin_configs.get(id).map(|item| digest(&**item, &mut text)),
        Section::Routes => {
            let route = model.routes.get(id).filter(|route| route.status != Status::LeftOut);
            route.map(|item| digest(&**item, &mut text))
        }
        Section::ConsumerGroups => model.consumer_groups.get(id).map(|item| digest(&**item, &mut text)),
        Section::Consumers => model.consumers.get(id).map(|item| digest(&**item, &mut text)),
        Section::GlobalRules => model.global_rules.get(id).map(|item| digest(&**item, &mut text)),
        Section::PluginMetadata => model.plugin_metadata.get(id).map(|item| digest(&**item, &mut text)),
    }
}

/// Hash of the JSON form of a resource, so that resources can be compared without keeping that form.
fn digest(item: &impl Serialize, text: &mut Vec<u8>) -> u64 {
    text.clear();
    // A failed serialization would only make a number in the log wrong.
    let _ = serde_json::to_writer(&mut *text, item);
    hash(text)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use weir_config::{LoadOptions, Model, Place, Section, load};

    use super::Digest;

    fn model(routes: &str) -> Model {
        let text = format!("routes: [{routes}]\nupstreams: [{{id: u, nodes: {{127.0.0.1:1: 1}}}}]\n#END\n");
        let options = LoadOptions::PLAIN;
        let loaded = load("test", text.as_bytes(), &options);
        Model::from(loaded.document.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics)))
    }

    #[test]
    fn changes_are_counted() {
        let a = "{id: a, uri: /a, upstream_id: u}";
        let b = "{id: b, uri: /b, upstream_id: u}";
        let moved = "{id: b, uri: /c, upstream_id: u}";
        let cases = [
            (format!("{a},{b}"), format!("{b},{a}"), "no resource changed"),
            (a.to_owned(), format!("{a},{b}"), "routes +1 ~0 -0"),
            (format!("{a},{b}"), moved.to_owned(), "routes +0 ~1 -1"),
        ];
        for (before, after, expected) in cases {
            let changes = Digest::of(&model(&before)).changes_to(&Digest::of(&model(&after)));
            assert_eq!(changes.to_string(), expected, "{before} → {after}");
        }
        let both = model(&format!("{a},{b}"));
        let place = |id: &str| Place { section: Section::Routes, id: id.into() };
        let mut digest = Digest::of(&both);
        let next = model(&moved.replace("id: b", "id: c").replace("/c", "/d"));
        assert_eq!(digest.follow(&next, &[place("a"), place("c"), place("x")]).to_string(), "routes +1 ~0 -1");
        assert_eq!(digest.follow(&both, &[place("b")]).to_string(), "no resource changed");
        let first = Digest::default().changes_to(&Digest::of(&model(a)));
        assert_eq!(first.to_string(), "routes +1 ~0 -0, upstreams +1 ~0 -0");
    }

    #[test]
    fn an_inventory_names_what_is_there() {
        assert_eq!(Digest::of(&Model::default()).inventory(), "0 routes");
        assert_eq!(Digest::of(&model("{id: a, uri: /a, upstream_id: u}")).inventory(), "1 route, 1 upstream");
    }
}
