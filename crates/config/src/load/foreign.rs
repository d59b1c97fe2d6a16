//! Files of other tools that come under the name of a rules file, recognised by what they hold.

use crate::kind::ResourceKind;
use crate::node::{Kind, Mark, Node};
use crate::settings;

/// Kind of document that is no rules file.
pub(crate) struct Foreign {
    /// Name, with an article.
    pub(super) what: &'static str,
    /// Advice; may be empty.
    pub(super) hint: &'static str,
    /// Position of the key that gives the document away.
    pub(super) mark: Mark,
    /// Path of the key.
    pub(super) path: &'static str,
}

/// The sections of a rules file, whether supported or not.
pub(super) fn section_names() -> impl Iterator<Item = &'static str> {
    ResourceKind::sections().map(ResourceKind::directory).chain(["plugins"])
}

/// True for the name of a section, whether supported or not.
pub(super) fn is_section(name: &str) -> bool {
    section_names().any(|section| section == name)
}

/// Sections of APISIX's `config.yaml`.
pub(super) const GATEWAY: &[&str] = &["deployment", "apisix", "nginx_config", "plugin_attr", "etcd", "stream_plugins"];

/// Identifies a document that is not a rules file.
pub(crate) fn identify(root: &Node) -> Option<Foreign> {
    let entries = match &root.kind {
        Kind::Map(entries) if !entries.is_empty() => entries,
        Kind::Seq(items) if !items.is_empty() => {
            if items.iter().all(|item| item.get("access_rights").is_some()) {
                return Some(told(root, "", "a list of Tyk policies", ""));
            }
            return Some(told(root, "", "a list", "a rules file is a mapping with sections such as routes"));
        }
        Kind::Str(_) | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => {
            return Some(told(root, "", "a single value", "a rules file is a mapping with sections such as routes"));
        }
        _ => return None,
    };
    let has = |key: &str| root.get(key).is_some();
    let tell = |key: &'static str, what, hint| Some(told(root, key, what, hint));
    if has("_format_version") {
        return tell("_format_version", KONG, "");
    }
    if has("apiVersion") && has("kind") {
        return tell("apiVersion", "a Kubernetes manifest", "the rules may stand inside it, in a ConfigMap");
    }
    if has("x-tyk-api-gateway") {
        return tell("x-tyk-api-gateway", "a Tyk OAS API definition", "");
    }
    for (key, what) in [("swagger", "a Swagger API description"), ("openapi", "an OpenAPI description")] {
        if has(key) {
            return tell(key, what, "");
        }
    }
    if has("api_id") || (has("proxy") && (has("version_data") || has("use_keyless"))) {
        return tell(if has("api_id") { "api_id" } else { "proxy" }, "a Tyk API definition", "");
    }
    if has("template_path") && has("listen_port") {
        return tell("listen_port", "a Tyk gateway configuration (tyk.conf)", "");
    }
    if let Some(services) = root.get("services") {
        let inside = |field: &str| match &services.kind {
            Kind::Map(items) => items.iter().any(|(_, item)| item.get(field).is_some()),
            Kind::Seq(items) => items.iter().any(|item| item.get(field).is_some()),
            _ => false,
        };
        if services.as_map().is_some() && (inside("image") || inside("build")) {
            return tell("services", "a docker-compose file", "");
        }
        if inside("backend_version") || (inside("proxy") && inside("system_name")) {
            return tell("services", "a 3scale (APIcast) configuration", "");
        }
        if services.as_seq().is_some() && (inside("url") || (inside("protocol") && inside("host"))) {
            return tell("services", KONG, "");
        }
        if services.as_seq().is_some() && inside("routes") {
            return tell("services", ADC, "a rules file has its routes at the top, with service_id for their service");
        }
    }
    if has("proxy_config") {
        return tell("proxy_config", "a 3scale (APIcast) configuration", "");
    }
    let item_has = |section: &str, field: &str| {
        root.get(section).and_then(Node::as_seq).is_some_and(|items| items.iter().any(|i| i.get(field).is_some()))
    };
    if item_has("routes", "paths") {
        return tell("routes", KONG, "");
    }
    if item_has("routes", "description") || item_has("services", "description") || item_has("ssls", "certificates") {
        let section = ["routes", "services", "ssls"].into_iter().find(|section| has(section)).unwrap_or("");
        return tell(section, ADC, "a rules file says desc and id, and refers to services and upstreams by id");
    }
    if let Some(key) = ["name", "version"].into_iter().find(|key| has(key))
        && names_stand_for_ids(root)
    {
        return tell(key, ADC, "a rules file says desc and id, and refers to services and upstreams by id");
    }
    // A list of plugins alone is what a config.yaml has as well.
    let known = entries.iter().any(|(key, _)| is_section(&key.text) && &*key.text != "plugins");
    if known || entries.iter().all(|(key, _)| key.text.ends_with("_conf_version")) {
        return None;
    }
    if let Some(key) = GATEWAY.iter().find(|key| has(key)) {
        return tell(key, "APISIX's own config.yaml", "give it with --settings");
    }
    let is_setting = |key: &str| settings::leaves().iter().any(|leaf| leaf.path.split('.').next() == Some(key));
    if entries.iter().all(|(key, _)| is_setting(&key.text)) {
        return tell("", "a file of gateway settings (weir.yaml)", "give it with --settings");
    }
    Some(Foreign::unknown(root))
}

impl Foreign {
    /// A document that nothing gives away.
    pub(super) fn unknown(root: &Node) -> Self {
        let hint = "a rules file has sections: routes, services, upstreams, consumers, …";
        told(root, "", "none of the known kinds of file", hint)
    }
}

/// True if routes or services have names, and none of them an id: ADC identifies them by name.
fn names_stand_for_ids(root: &Node) -> bool {
    let items = || ["routes", "services"].into_iter().filter_map(|section| root.get(section)?.as_seq()).flatten();
    items().next().is_some() && items().all(|item| item.get("name").is_some() && item.get("id").is_none())
}

const KONG: &str = "a Kong declarative configuration";
const ADC: &str = "an ADC configuration";

fn told(root: &Node, path: &'static str, what: &'static str, hint: &'static str) -> Foreign {
    let mark = root.entry(path).map_or(root.mark, |(key, _)| key.mark);
    Foreign { what, hint, mark, path }
}
