//! Entities of Kong that manifests become, with the manifests that they come from.

use weir_config::{Mark, Node};

use super::objects::Object;
use crate::lower::{map, text};

/// The entities by sections.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) sections: Vec<(&'static str, Vec<Node>)>,
    /// Paths in the document that they make, and the paths in the manifests.
    pub(super) places: Vec<(String, String)>,
}

impl Made {
    /// Adds an entity that an object became; `field` leads to the part of it.
    pub(super) fn add(&mut self, section: &'static str, entity: Node, object: &Object<'_>, field: &str) {
        let at = match self.sections.iter().position(|(name, _)| *name == section) {
            Some(at) => at,
            None => {
                self.sections.push((section, Vec::new()));
                self.sections.len() - 1
            }
        };
        let Some((_, items)) = self.sections.get_mut(at) else { return };
        self.places.push((format!("{section}[{}]", items.len()), object.path(field)));
        items.push(entity);
    }

    /// True if there is an entity of this name.
    pub(super) fn has(&self, section: &str, name: &str) -> bool {
        let items = self.sections.iter().filter(|(known, _)| *known == section).flat_map(|(_, items)| items);
        let mut names = items.filter_map(|item| item.get("name")?.as_str());
        names.any(|known| known == name)
    }
}

/// A plugin that is attached: to a field with the name of an entity, or to nothing.
pub(super) fn plugin(object: &Object<'_>, config: Node, to: Option<(&str, &str)>) -> Node {
    let mark = object.node.mark;
    let mut plugin = map(mark, [("config", config)]);
    for (field, written) in [("name", "plugin"), ("protocols", "protocols")] {
        if let Some(value) = object.node.get(written).filter(|value| !value.is_null()) {
            plugin.insert(field, value.clone());
        }
    }
    if let Some(disabled) = object.node.get("disabled") {
        let is_disabled = disabled.kind == weir_config::Kind::Bool(true);
        plugin.insert("enabled", Node { mark: disabled.mark, ..crate::lower::flag(!is_disabled) });
    }
    if let Some((field, name)) = to {
        plugin.insert(field, Node { mark: Mark::NONE, ..text(name) });
    }
    plugin
}
