//! Numbers of added, changed and removed resources, for the log.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use weir_config::{Model, ResourceKey, ResourceKind};

/// A digest of every resource, by a hash of its id. A digest takes some twenty bytes a resource, where the resource itself
/// would take hundreds. If two ids have the same hash, a number in the log is wrong.
#[derive(Debug, Default)]
pub(crate) struct Digest {
    kinds: Vec<(ResourceKind, HashMap<u64, u64>)>,
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
        // Credentials are a part of their consumers.
        let listed = ResourceKind::sections();
        let kinds = listed.map(|kind| {
            let mut digests = HashMap::new();
            model.each_as_json(kind, &mut |id, json| {
                if model.family.is_internal(id) {
                    return;
                }
                digests.insert(hash(id.as_bytes()), hash(json));
            });
            (kind, digests)
        });
        Self { kinds: kinds.collect() }
    }

    /// Updates the digest for these resources of a model. Returns the changes.
    pub(crate) fn follow(&mut self, model: &Model, keys: &[ResourceKey]) -> Changes {
        let mut changes = Changes(Vec::new());
        for (kind, digests) in &mut self.kinds {
            let mut counts = Counts::default();
            for key in keys.iter().filter(|key| key.kind() == *kind) {
                let id = hash(key.id().as_bytes());
                match model.json_of(key).map(|json| hash(&json)) {
                    Some(digest) => match digests.insert(id, digest) {
                        None => counts.added += 1,
                        Some(before) if before != digest => counts.changed += 1,
                        Some(_) => {}
                    },
                    None => counts.removed += usize::from(digests.remove(&id).is_some()),
                }
            }
            changes.0.extend((counts != Counts::default()).then_some((kind.plural(), counts)));
        }
        changes
    }

    /// The numbers of resources: `2 routes, 1 upstream`.
    pub(crate) fn inventory(&self) -> String {
        let sizes =
            self.kinds.iter().map(|(kind, items)| (kind.plural().trim_end_matches('s').replace('_', " "), items.len()));
        let parts: Vec<_> = sizes
            .filter(|(noun, count)| *count > 0 || noun == "route")
            .map(|(noun, count)| counted(count, &noun))
            .collect();
        parts.join(", ")
    }

    /// The changes from `self` to `next`.
    pub(crate) fn changes_to(&self, next: &Self) -> Changes {
        let none = HashMap::new();
        let counted = next.kinds.iter().map(|(kind, new)| {
            let old = self.kinds.iter().find(|(other, _)| other == kind).map_or(&none, |(_, digests)| digests);
            let mut counts = Counts::default();
            for (id, digest) in new {
                match old.get(id) {
                    None => counts.added += 1,
                    Some(before) if before != digest => counts.changed += 1,
                    Some(_) => {}
                }
            }
            counts.removed = old.keys().filter(|id| !new.contains_key(*id)).count();
            (kind.plural(), counts)
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

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use weir_config::{LoadOptions, Model, ResourceKey, ResourceKind, load};

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
        let key = |id: &str| ResourceKey::new(ResourceKind::Routes, id);
        let mut digest = Digest::of(&both);
        let next = model(&moved.replace("id: b", "id: c").replace("/c", "/d"));
        assert_eq!(digest.follow(&next, &[key("a"), key("c"), key("x")]).to_string(), "routes +1 ~0 -1");
        assert_eq!(digest.follow(&both, &[key("b")]).to_string(), "no resource changed");
        let first = Digest::default().changes_to(&Digest::of(&model(a)));
        assert_eq!(first.to_string(), "routes +1 ~0 -0, upstreams +1 ~0 -0");
    }

    #[test]
    fn an_inventory_names_what_is_there() {
        assert_eq!(Digest::of(&Model::default()).inventory(), "0 routes");
        assert_eq!(Digest::of(&model("{id: a, uri: /a, upstream_id: u}")).inventory(), "1 route, 1 upstream");
    }
}
