use weir_config::env::Variables;
use weir_config::{
    Checked, Code, CompiledConf, Diagnostic, Entity, Family, FrontEnd, Kind, Lowered, Node, PluginCatalog,
    ResourceKind, Scope,
};
use weir_plugins::kong::{definitions, is_internal};

use crate::document::{Document, EntityKind, rule};
use crate::{lower, placeholders};

/// The family.
pub static FAMILY: Family =
    Family { name: "kong", is_ranked: true, internal: &[lower::NO_ROUTE, lower::GLOBAL, lower::ANSWERS, ".*"] };

/// Front end of Kong's declarative configurations.
#[derive(Clone, Copy, Debug)]
pub struct Kong;

impl FrontEnd for Kong {
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
        if root.get("_format_version").is_some() {
            return true;
        }
        // Old files without a version: services with what no other tool calls so.
        let services = root.get("services").and_then(Node::as_seq).unwrap_or_default();
        let has = |service: &Node, field: &str| service.get(field).is_some();
        let is_kong = |service: &Node| has(service, "url") || has(service, "protocol") && has(service, "host");
        let is_other = |service: &Node| has(service, "backend_version") || has(service, "upstream");
        services.iter().any(is_kong) && !services.iter().any(is_other)
    }

    fn lower(&self, root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        self.lower_with(root, variables, found, |_, _| {})
    }
}

impl Kong {
    /// Lowers a document after `change` has seen its entities.
    fn lower_with(
        self,
        mut root: Node,
        variables: Variables<'_>,
        found: &mut Vec<Diagnostic>,
        change: impl FnOnce(&mut Document, &mut Vec<Diagnostic>),
    ) -> Lowered {
        placeholders::fill(&mut root, variables, found);
        check_version(&root, found);
        let mark = root.mark;
        let hashed = root.get("_transform").is_some_and(|node| node.kind == Kind::Bool(false));
        let presets = Presets::of(&root, found);
        let plans = take_plans(&mut root, found);
        let mut document = Document::read(root, found);
        presets.apply(&mut document, found);
        change(&mut document, found);
        let mut lowered = lower::lower(&document, hashed, mark, found);
        for (at, plan) in plans.into_iter().enumerate() {
            let id = plan.get("id").and_then(Node::as_str).unwrap_or_default().to_owned();
            let entity = Entity { kind: "plan", id, path: format!("{PLANS}[{at}]"), ..Default::default() };
            lowered.add(ResourceKind::Plans, plan, entity);
        }
        lowered
    }
}

/// The section of plans, which Kong does not have.
const PLANS: &str = "plans";

/// Takes the plans out of a document. They are written as in a rules file.
fn take_plans(root: &mut Node, found: &mut Vec<Diagnostic>) -> Vec<Node> {
    match root.remove(PLANS) {
        None => Vec::new(),
        Some((_, Node { kind: Kind::Seq(plans), .. })) => plans,
        Some((key, node)) => {
            let text = format!("expected an array, found {}", node.describe());
            found.push(Diagnostic::error(key.mark, PLANS, rule(text)));
            Vec::new()
        }
    }
}

/// Front end of Kong's declarative configurations that leaves out plugins that are not supported, with a warning each: for a
/// first look. Plugins that authenticate, limit or check requests are never left out, nor are those that nobody knows.
#[derive(Clone, Copy, Debug)]
pub struct KongWithoutUnsupported;

impl FrontEnd for KongWithoutUnsupported {
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
        Kong.recognises(root)
    }

    fn lower(&self, root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        Kong.lower_with(root, variables, found, leave_out_unsupported)
    }
}

/// Disables the plugins that may be left out.
fn leave_out_unsupported(document: &mut Document, found: &mut Vec<Diagnostic>) {
    for plugin in document.entities.iter_mut().filter(|entity| entity.kind == EntityKind::Plugins) {
        let name = plugin.text("name").unwrap_or_default();
        if plugin.flag("enabled") != Some(false) && lower::may_be_left_out(name) {
            let text = format!("plugin '{name}' is not supported and left out: requests pass without it");
            found.push(plugin.doubt("name", text));
            plugin.node.insert("enabled", lower::flag(false));
        }
    }
}

/// The plugins of the family, as the loader asks about them.
pub(crate) struct Catalog;

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        definitions().iter().map(|definition| definition.name()).collect()
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        let Some(definition) = definitions().iter().find(|definition| definition.name() == name) else {
            return Checked::default();
        };
        let (mut found, prepared) = definition.check(scope, conf);
        // Kong refuses a field that it does not know, where APISIX ignores it.
        for fault in found.iter_mut().filter(|fault| fault.code.is_unknown_field()) {
            *fault = Diagnostic {
                hint: fault.hint.take(),
                ..Diagnostic::error(fault.mark, &*fault.path, rule("unknown field"))
            };
        }
        Checked { found, compiled: prepared.map(|prepared| Box::new(prepared) as CompiledConf) }
    }

    fn peers_known(&self, _: &str) -> bool {
        false
    }

    fn is_auth(&self, name: &str) -> bool {
        definitions().iter().any(|definition| definition.name() == name && definition.is_auth())
    }
}

/// Names of plugins that a file may have, for the nearest one.
pub(crate) fn plugin_names() -> impl Iterator<Item = &'static str> {
    definitions().iter().map(|definition| definition.name()).filter(|name| !is_internal(name))
}

pub(crate) fn check_version(root: &Node, found: &mut Vec<Diagnostic>) {
    const VERSION: &str = "_format_version";
    let Some(version) = root.get(VERSION) else {
        found.push(Diagnostic::warning(root.mark, VERSION, rule("required field missing; read as 3.0")));
        return;
    };
    let text = match &version.kind {
        Kind::Str(text) if matches!(text.as_str(), "1.1" | "2.1" | "3.0") => return,
        Kind::Str(_) => "expected one of: 1.1, 2.1, 3.0".to_owned(),
        Kind::Float(number) if [1.1, 2.1, 3.0].contains(number) => {
            let text = "Kong expects a string: write it between quotes";
            found.push(Diagnostic::warning(version.mark, VERSION, rule(text)));
            return;
        }
        _ => format!("expected a string, found {}", version.describe()),
    };
    found.push(Diagnostic::error(version.mark, VERSION, Code::FamilyRule { text: text.into() }));
}

/// decK's `_plugin_configs`: configurations that plugins take by name with `_config`.
pub(crate) struct Presets(Vec<(String, Node)>);

impl Presets {
    pub(crate) fn of(root: &Node, found: &mut Vec<Diagnostic>) -> Self {
        let Some(node) = root.get("_plugin_configs") else { return Self(Vec::new()) };
        let Some(presets) = node.as_map() else {
            let text = format!("expected a map, found {}", node.describe());
            found.push(Diagnostic::error(node.mark, "_plugin_configs", rule(text)));
            return Self(Vec::new());
        };
        Self(presets.iter().map(|(key, node)| (key.text.to_string(), node.clone())).collect())
    }

    /// Lays the configurations of plugins over those that they name.
    pub(crate) fn apply(&self, document: &mut Document, found: &mut Vec<Diagnostic>) {
        for plugin in document.entities.iter_mut().filter(|entity| entity.kind == EntityKind::Plugins) {
            let Some(name) = plugin.text("_config").map(str::to_owned) else { continue };
            let Some((_, preset)) = self.0.iter().find(|(known, _)| *known == name) else {
                found.push(plugin.fault("_config", format!("no such entry in '_plugin_configs': {name}")));
                continue;
            };
            let mut config = preset.clone();
            for (key, value) in plugin.node.get("config").and_then(Node::as_map).unwrap_or_default() {
                config.insert(&key.text, value.clone());
            }
            plugin.node.insert("config", config);
        }
    }
}
