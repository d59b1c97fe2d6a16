//! Front end of the entities in a store, as the Admin API writes them.

use weir_config::env::Variables;
use weir_config::node::push_name;
use weir_config::{Diagnostic, Family, FrontEnd, Kind, Lowered, Node, PluginCatalog};

use crate::document::{Document, rule};
use crate::front_end::{Catalog, FAMILY};
use crate::lower;
use crate::vaults::{Unresolved, Vaults};

/// Front end of stored entities: a tree with the sections of a declarative configuration. Unlike in a file, passwords
/// are hashed, and no text but a reference to the vault `env` stands for a variable of the environment.
#[derive(Clone, Copy, Debug)]
pub struct Stored;

impl FrontEnd for Stored {
    fn family(&self) -> &'static Family {
        &FAMILY
    }

    fn plugins(&self) -> Option<&dyn PluginCatalog> {
        Some(&Catalog)
    }

    fn recognises(&self, _: &Node) -> bool {
        true
    }

    fn lower(&self, mut root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        let vaults = Vaults::of(&root);
        fill(&mut root, &mut String::new(), (&vaults, variables), found);
        let mark = root.mark;
        lower::lower(&Document::read(root, found), true, mark, found)
    }
}

/// Puts the values of variables in the places of references: `{vault://env/my-key}` is `MY_KEY`.
fn fill(node: &mut Node, path: &mut String, sources: (&Vaults, Variables<'_>), found: &mut Vec<Diagnostic>) {
    let length = path.len();
    match &mut node.kind {
        Kind::Map(entries) => {
            for (key, value) in entries {
                push_name(path, &key.text);
                fill(value, path, sources, found);
                path.truncate(length);
            }
        }
        Kind::Seq(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                path.push_str(&format!("[{at}]"));
                fill(item, path, sources, found);
                path.truncate(length);
            }
        }
        Kind::Str(text) => {
            let (vaults, variables) = sources;
            let resolved = vaults.resolve(text, variables).filter(|(length, _)| *length == text.len());
            match resolved {
                Some((_, Ok(value))) => *text = value,
                Some((_, Err(Unresolved(reason)))) => {
                    found.push(Diagnostic::error(node.mark, path.clone(), rule(reason)));
                }
                None => {}
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use weir_config::Node;

    use super::{Vaults, fill};

    #[test]
    fn references_are_filled_and_nothing_else() {
        let cases = [
            ("{vault://env/my-key}", Some("value")),
            ("{vault://env/none}", None),
            ("x{vault://env/my-key}", Some("x{vault://env/my-key}")),
            ("$MY_KEY", Some("$MY_KEY")),
            ("${MY_KEY}", Some("${MY_KEY}")),
        ];
        let variables = |name: &str| (name == "MY_KEY").then(|| "value".to_owned());
        for (text, expected) in cases {
            let mut root = Node::from(&serde_json::json!({ "services": [{ "path": text }] }));
            let mut found = Vec::new();
            let vaults = Vaults::of(&root);
            fill(&mut root, &mut String::new(), (&vaults, &variables), &mut found);
            let read = root.to_json();
            let filled = read["services"][0]["path"].as_str().filter(|_| found.is_empty());
            assert_eq!(filled, expected, "{text}");
            assert!(found.iter().all(|found| found.path == "services[0].path"), "{found:?}");
        }
    }
}
