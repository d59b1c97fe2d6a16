//! Loops: APIs that others lead requests to inside the gateway (`tyk://API/path`), found by id or name.

use std::collections::{BTreeMap, BTreeSet};

use weir_config::{Diagnostic, Kind, Mark, Node};
use weir_plugins::tyk::parse_loop;

use super::{map, text};
use crate::definition::Definition;

/// The API itself, in the place of a name.
const SELF: &str = "self";

/// The loops of all definitions.
#[derive(Default)]
pub(super) struct Loops {
    /// Ids of the APIs by the names with which loops name them.
    ids: BTreeMap<String, String>,
    /// Ids of the APIs that they lead to.
    targets: BTreeSet<String>,
    /// Files of the APIs that lead to themselves: another definition may have the same id.
    selves: BTreeSet<String>,
}

impl Loops {
    /// Reads the URLs of loops in all definitions. Names that are no API's are told.
    pub(super) fn of(apis: &[Definition], found: &mut Vec<Diagnostic>) -> Self {
        let mut loops = Self::default();
        for api in apis {
            for name in named(api) {
                if name == SELF {
                    loops.selves.insert(api.file.clone());
                    continue;
                }
                let Some(target) = apis.iter().find(|api| is_named(api, &name)) else {
                    let text = format!("no API has the id or name '{name}': requests for it are answered 500");
                    found.push(api.doubt("tyk://", text));
                    continue;
                };
                let id = target.text("api_id");
                loops.targets.insert(id.to_owned());
                loops.ids.insert(name, id.to_owned());
            }
        }
        loops
    }

    /// True for an API that others lead requests to, or that does so itself.
    pub(super) fn lead_to(&self, api: &Definition) -> bool {
        self.targets.contains(api.text("api_id")) || self.selves.contains(&api.file)
    }

    /// Ids by names, for the loops of an API with this id.
    pub(super) fn ids(&self, own: &str, mark: Mark) -> Node {
        let mut made = map(mark, []);
        for (name, id) in &self.ids {
            made.insert(name, text(id));
        }
        made.insert(SELF, text(own));
        made
    }
}

/// True for an API with this id or name. Letters of a name that no URL has may be dashes.
fn is_named(api: &Definition, name: &str) -> bool {
    let dashed = |text: &str| {
        let mut made = String::new();
        for letter in text.chars() {
            match letter.is_ascii_alphanumeric() {
                true => made.push(letter.to_ascii_lowercase()),
                false if made.ends_with('-') => {}
                false => made.push('-'),
            }
        }
        made
    };
    api.text("api_id") == name || dashed(api.text("name")) == dashed(name)
}

/// Names of the APIs that a definition leads requests to.
fn named(api: &Definition) -> Vec<String> {
    let mut names = Vec::new();
    collect(&api.node, &mut names);
    names
}

fn collect(node: &Node, names: &mut Vec<String>) {
    if let Some(list) = node.as_seq() {
        list.iter().for_each(|item| collect(item, names));
    }
    for (_, value) in node.as_map().unwrap_or_default() {
        collect(value, names);
    }
    if let Kind::Str(_) = node.kind
        && let Some((name, _)) = node.as_str().and_then(parse_loop)
        && !names.iter().any(|known| known == name)
    {
        names.push(name.to_owned());
    }
}
