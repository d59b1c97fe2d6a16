//! The front end of Tyk's files.

use weir_config::env::Variables;
use weir_config::{Checked, CompiledConf, Diagnostic, Family, FrontEnd, Lowered, Node, PluginCatalog, Scope};
use weir_plugins::tyk::definitions;

use crate::definition::{self, Definition, is_on};
use crate::lower::Scripts;
use crate::rule::rule;
use crate::{conf, files, lower, oas};

/// The family.
pub static FAMILY: Family = Family {
    name: "tyk",
    is_ranked: true,
    internal: &[lower::NO_API, lower::ANSWERS, lower::GATEWAY, lower::CONTROL, lower::HEALTH],
};

/// Front end of Tyk's files: a gathered document, or one API definition.
#[derive(Clone, Copy, Debug)]
pub struct Tyk;

impl FrontEnd for Tyk {
    fn family(&self) -> &'static Family {
        &FAMILY
    }

    fn plugins(&self) -> Option<&dyn PluginCatalog> {
        Some(&Catalog)
    }

    fn takes_repeated_keys(&self) -> bool {
        true
    }

    fn recognises(&self, root: &Node) -> bool {
        is_gathered(root) || oas::is_oas(root) || definition::is_classic(root)
    }

    fn lower(&self, root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        let mark = root.mark;
        let mut parts = Parts::of(root);
        for (_, node) in parts.apis.iter_mut() {
            definition::fill(node, variables, &mut String::new(), found);
        }
        let settings = parts.settings(found);
        let mut apis = Vec::new();
        for (name, node) in std::mem::take(&mut parts.apis) {
            if oas::is_oas(&node) {
                if let Some(classic) = oas::classic(&node, &name, found) {
                    apis.extend(Definition::read(&name, classic, found));
                }
            } else if definition::is_classic(&node) {
                apis.extend(Definition::read(&name, node, found));
            } else {
                let text = "no API definition: neither the classic fields nor x-tyk-api-gateway; it is left out";
                found.push(Diagnostic::warning(node.mark, name, rule(text)));
            }
        }
        lower::lower(&apis, (&settings, &parts.scripts), &parts.policies, mark, found)
    }
}

/// True for a document of [`files`].
fn is_gathered(root: &Node) -> bool {
    root.get(files::KEY).is_some() && root.get("contents").is_some()
}

/// The files of a document.
#[derive(Default)]
struct Parts {
    conf: Option<Node>,
    /// Name of the file, and the definition.
    apis: Vec<(String, Node)>,
    policies: Vec<Node>,
    /// Scripts by their paths as they are written.
    scripts: Scripts,
}

impl Parts {
    fn of(root: Node) -> Self {
        if !is_gathered(&root) {
            return Self { apis: vec![("api".to_owned(), root)], ..Self::default() };
        }
        let names = root.get(files::KEY).and_then(Node::as_seq).unwrap_or_default().to_vec();
        let contents = root.get("contents").and_then(Node::as_seq).unwrap_or_default().to_vec();
        let mut parts = Self::default();
        for (file, node) in names.iter().zip(contents) {
            let text = |field: &str| file.get(field).and_then(Node::as_str).unwrap_or_default();
            match text("kind") {
                "conf" => parts.conf = Some(node),
                "policies" => parts.policies.push(node),
                "script" => {
                    let code = node.as_str().unwrap_or_default().to_owned();
                    parts.scripts.insert(text("name").to_owned(), code);
                }
                _ => {
                    let name = text("name").rsplit('/').next().unwrap_or_default();
                    parts.apis.push((name.trim_end_matches(".json").to_owned(), node));
                }
            }
        }
        parts
    }

    /// The settings of `tyk.conf`, whose dead and refused fields are told.
    fn settings(&self, found: &mut Vec<Diagnostic>) -> conf::Conf {
        let Some(node) = &self.conf else { return conf::Conf::default() };
        let at = |path: &str| path.split('.').try_fold(node, |node, name| node.get(name)).filter(|node| is_on(node));
        for (path, reason) in conf::REFUSED {
            if let Some(node) = at(path) {
                found.push(Diagnostic::error(node.mark, *path, rule(*reason)));
            }
        }
        for (path, reason) in conf::DOUBTED {
            if let Some(node) = at(path) {
                found.push(Diagnostic::warning(node.mark, *path, rule(*reason)));
            }
        }
        for (key, handlers) in at("event_handlers.events").and_then(Node::as_map).into_iter().flatten() {
            let reason = match weir_plugins::tyk::sender(&key.text) {
                Some("gateway") if handlers.to_json().as_array().is_some_and(|all| all.iter().any(conf::is_script)) => {
                    "handlers in JavaScript are run for events of API definitions alone"
                }
                Some("gateway") => continue,
                _ => "this event is sent by API definitions alone, or not at all",
            };
            found.push(Diagnostic::warning(handlers.mark, format!("event_handlers.events.{}", key.text), rule(reason)));
        }
        let source = at("policies.policy_source");
        if let Some(source) = source.filter(|source| matches!(source.as_str(), Some("service" | "rpc"))) {
            let text =
                "policies come from a Dashboard, which the gateway does not read: keys that name one are refused";
            found.push(Diagnostic::warning(source.mark, "policies.policy_source", rule(text)));
        }
        // The paths in it have been read already.
        conf::Conf::read(&node.to_json(), std::path::Path::new("")).unwrap_or_else(|error| {
            found.push(Diagnostic::error(node.mark, "", rule(error)));
            conf::Conf::default()
        })
    }
}

/// The plugins of the family, as the loader asks about them.
struct Catalog;

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        definitions().iter().map(|definition| definition.name()).collect()
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        let Some(definition) = definitions().iter().find(|definition| definition.name() == name) else {
            return Checked::default();
        };
        let (mut found, prepared) = definition.check(scope, conf);
        // Tyk ignores fields that it does not know; those of whole definitions are told by their reader.
        found.retain(|fault| !fault.code.is_unknown_field());
        Checked { found, compiled: prepared.map(|prepared| Box::new(prepared) as CompiledConf) }
    }

    fn peers_known(&self, _: &str) -> bool {
        false
    }

    fn is_auth(&self, name: &str) -> bool {
        definitions().iter().any(|definition| definition.name() == name && definition.is_auth())
    }
}
