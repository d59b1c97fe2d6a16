//! References between items.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::kinds::{Item, references};
use super::{InvalidItems, Loader};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Hint, nearest};
use crate::kind::{ResourceKind, listed};
use crate::node::{Mark, push_name, quoted};
use crate::resource::{Document, GlobalRule, Id, Origin, Route, Status};

/// Id of another item, and its field.
pub(crate) struct Reference<'a> {
    /// Path of the field within the item.
    pub(super) field: &'static str,
    pub(super) to: ResourceKind,
    pub(super) id: &'a Id,
}

/// The items that there are. Of certificates only those for upstreams count: nothing refers to the others.
pub(super) trait Known {
    fn has(&self, kind: ResourceKind, id: &str) -> bool;

    /// Ids of the items, in any order.
    fn ids(&self, kind: ResourceKind) -> Vec<&str>;
}

impl Loader<'_> {
    /// Checks that every reference leads to an item. Items are checked after the kinds that they refer to, so that
    /// users of a dropped item are dropped in turn.
    pub(super) fn link(&mut self, document: &mut Document) {
        let mut known = Ids::default();
        macro_rules! link {
            ($($(#[$doc:meta])* $type:ident $items:ident;)*) => {
                $(crate::resource::$type::link(self, &mut document.$items, &mut known);)*
            };
        }
        listed!(link);
    }

    /// Leaves the items whose references all lead somewhere.
    pub(super) fn keep<T: Item>(&mut self, items: &mut Vec<Arc<T>>, known: &Ids) {
        items.retain(|item| {
            let keep = self.refers(&**item, known);
            if !keep {
                let Origin { path, mark, .. } = item.origin().clone();
                self.drop_item(T::KIND, mark, path.to_string(), Some(item.id().to_owned()));
            }
            keep
        });
    }

    /// Leaves the routes whose references all lead somewhere; the others keep their places where items are skipped.
    pub(super) fn keep_routes(&mut self, routes: &mut Vec<Arc<Route>>, known: &Ids) {
        routes.retain_mut(|item| {
            if item.status != Status::LeftOut {
                if self.refers(&**item, known) {
                    return true;
                }
                let Origin { path, mark, .. } = item.origin.clone();
                self.drop_item(ResourceKind::Routes, mark, path.to_string(), Some(item.id.to_string()));
                if self.options.invalid_items == InvalidItems::Refuse || item.status == Status::Disabled {
                    return false;
                }
            }
            self.strip_to_place(Arc::make_mut(item), known)
        });
    }

    /// True if all references of an item lead somewhere; reports those that do not.
    pub(super) fn refers<T: Item>(&mut self, item: &T, known: &dyn Known) -> bool {
        let mut all = true;
        for reference in references(item) {
            all &= self.leads(item.origin(), &reference, known);
        }
        all
    }

    fn leads(&mut self, origin: &Origin, reference: &Reference<'_>, known: &dyn Known) -> bool {
        let Reference { field, to, id } = *reference;
        if known.has(to, id.as_str()) {
            return true;
        }
        let section = to.directory();
        let mark = origin.references.iter().find(|(name, _)| *name == field).map_or(origin.mark, |(_, mark)| *mark);
        let path = format!("{}.{field}", origin.path);
        if to == ResourceKind::Ssls {
            let code = Code::NoClientCertificate { id: quoted(id.as_str()) };
            self.found.push(Diagnostic::error(mark, path, code));
            return false;
        }
        let kind = section.trim_end_matches('s').replace('_', " ");
        if self.invalid_ids.get(&to).is_some_and(|ids| ids.contains(id.as_str())) {
            // Otherwise that error is enough.
            if self.options.invalid_items == InvalidItems::Skip {
                let code = Code::InvalidReferent { kind, id: quoted(id.as_str()) };
                self.found.push(Diagnostic::error(mark, path, code));
            }
            return false;
        }
        let error = Diagnostic::error(mark, path, Code::NoReferent { kind, id: quoted(id.as_str()) });
        let mut ids = known.ids(to);
        let near = self.nearest_id(id.as_str(), &mut ids);
        self.found.push(match near {
            Some(near) => error.with_hint(Hint::DidYouMean(near)),
            None if ids.is_empty() && !self.invalid_ids.contains_key(&to) => {
                error.with_hint(format!("there are no {section} at all"))
            }
            None => error,
        });
        false
    }

    /// The nearest of many ids, as long as there is not too much to compare.
    fn nearest_id(&mut self, id: &str, known: &mut [&str]) -> Option<String> {
        self.comparisons = self.comparisons.checked_sub(known.len())?;
        known.sort_unstable();
        nearest(id, known.iter().copied()).map(str::to_owned)
    }

    /// Drops global rules that repeat a plugin of an earlier one: nothing defines which of the two takes precedence.
    pub(super) fn plugins_of_global_rules(&mut self, rules: &mut Vec<Arc<GlobalRule>>) {
        let mut first: HashMap<Arc<str>, (String, Mark)> = HashMap::new();
        rules.retain(|rule| {
            let mut keep = true;
            for (name, plugin) in &rule.plugins {
                let mut path = rule.origin.path.to_string();
                push_name(&mut path, "plugins");
                push_name(&mut path, name);
                if let Some((id, at)) = first.get(name) {
                    let code = Code::InOtherGlobalRule { plugin: name.to_string(), rule: id.clone(), at: *at };
                    self.found.push(Diagnostic::error(plugin.conf.mark, path, code));
                    keep = false;
                }
            }
            if keep {
                let names = rule.plugins.iter();
                first.extend(names.map(|(name, plugin)| (name.clone(), (rule.id.to_string(), plugin.conf.mark))));
            } else {
                let Origin { path, mark, .. } = rule.origin.clone();
                self.drop_item(ResourceKind::GlobalRules, mark, path.to_string(), Some(rule.id.to_string()));
            }
            keep
        });
    }
}

/// The ids of a document's items, by kind.
#[derive(Default)]
pub(crate) struct Ids(HashMap<ResourceKind, HashSet<String>>);

impl Ids {
    /// Takes the ids of the items that others may refer to.
    pub(super) fn note<T: Item>(&mut self, items: &[Arc<T>]) {
        if T::KIND.is_referred_to() {
            let items = items.iter().filter(|item| item.may_be_referred_to());
            self.0.insert(T::KIND, items.map(|item| item.id().to_owned()).collect());
        }
    }
}

impl Known for Ids {
    fn has(&self, kind: ResourceKind, id: &str) -> bool {
        self.0.get(&kind).is_some_and(|ids| ids.contains(id))
    }

    fn ids(&self, kind: ResourceKind) -> Vec<&str> {
        self.0.get(&kind).into_iter().flatten().map(String::as_str).collect()
    }
}
