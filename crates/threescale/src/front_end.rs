//! The front end of APIcast's configuration.

use weir_config::env::Variables;
use weir_config::{Checked, CompiledConf, Diagnostic, Family, FrontEnd, Kind, Lowered, Node, PluginCatalog, Scope};
use weir_plugins::threescale::definitions;

use crate::service::{Environment, Service};
use crate::{lower, rule};

/// The family.
pub static FAMILY: Family = Family { name: "3scale", is_ranked: true, internal: &[lower::NO_SERVICE] };

/// Front end of APIcast's configuration, and of the answers of a portal.
#[derive(Clone, Copy, Debug)]
pub struct Threescale;

impl FrontEnd for Threescale {
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
        let is_service = |item: &Node| {
            item.get("backend_version").is_some()
                || item.get("proxy").is_some_and(|proxy| matches!(proxy.kind, Kind::Map(_)))
                || is_of_backend(item)
        };
        let services = root.get("services").and_then(Node::as_seq);
        root.get("_format_version").is_none()
            && (services
                .is_some_and(|services| services.iter().any(is_service) || services.is_empty() && has_owner(root))
                || root.get("proxy_configs").is_some_and(|list| list.as_seq().is_some()))
    }

    fn lower(&self, root: Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        let mark = root.mark;
        if let Some((at, service)) = service_of_backend(&root) {
            found.push(Diagnostic::error(service.mark, format!("services[{at}]"), rule(OF_BACKEND)));
            return Lowered::new(mark);
        }
        let environment = Environment::read(variables, mark, found);
        let mut services = Vec::new();
        for (node, path) in written(&root) {
            let Some(service) = Service::read(node, path, &environment, found) else { continue };
            if environment.takes(&service) {
                services.push(service);
            }
        }
        if services.is_empty() && !environment.services.is_empty() {
            let text = format!("no service is in APICAST_SERVICES_LIST ({})", environment.services.join(","));
            found.push(Diagnostic::warning(mark, "services", rule(text)));
        }
        let oidc = root.get("oidc").and_then(Node::as_seq).unwrap_or_default();
        lower::lower(&services, oidc, &environment, mark, found)
    }
}

/// The fault of a file for the backend, where a configuration of APIcast is expected.
const OF_BACKEND: &str = "this is a file of services for the backend of 3scale, not a configuration of APIcast: run it with \
    --set listen.threescale_backend=127.0.0.1:3000 --set threescale_backend.file=FILE beside a file of routes (see \
    docs/threescale-backend.md)";

/// True for a service of a file for the backend, which has no `proxy`.
fn is_of_backend(service: &Node) -> bool {
    let has = |name: &str| service.get(name).is_some();
    !has("proxy") && ["service_tokens", "metrics", "plans", "applications"].into_iter().any(has)
}

/// The first service of a file for the backend; `None` for another document.
fn service_of_backend(root: &Node) -> Option<(usize, &Node)> {
    let services = root.get("services").and_then(Node::as_seq)?;
    services.iter().enumerate().find(|(_, service)| is_of_backend(service))
}

/// True for a configuration without services that names its owner.
fn has_owner(root: &Node) -> bool {
    root.get("provider_key").is_some() || root.get("oidc").is_some()
}

/// The services of a document, with their paths: of a configuration, or of the answer of a portal.
fn written(root: &Node) -> Vec<(Node, String)> {
    if let Some(configs) = root.get("proxy_configs").and_then(Node::as_seq) {
        let content = |(at, config): (usize, &Node)| {
            let content = config.get("proxy_config")?.get("content")?.clone();
            Some((content, format!("proxy_configs[{at}].proxy_config.content")))
        };
        return configs.iter().enumerate().filter_map(content).collect();
    }
    let services = root.get("services").and_then(Node::as_seq).unwrap_or_default();
    services.iter().enumerate().map(|(at, node)| (node.clone(), format!("services[{at}]"))).collect()
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
        // A portal writes some forty fields that gateways have no use for.
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
