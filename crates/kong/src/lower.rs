//! From entities to items of the model.
//!
//! | Kong | model |
//! |---|---|
//! | service, with the upstream of its host | service with an upstream in place |
//! | route | route with ranked paths, and the plugin `route` for what happens to its path, host and protocol |
//! | global plugins | a plugin config that every route has |
//! | consumer with its credentials | consumer with credentials |
//! | plugins of consumer groups, and of consumers on single routes | consumer groups |
//! | route of streams | stream routes, one for each pair of a source, a destination and an SNI |
//! | certificate with its SNIs | ssl |

mod address;
mod client_certificates;
mod consumers;
mod expression;
mod groups;
mod health;
mod names;
mod plugins;
mod routes;
mod services;
mod streams;

pub(crate) use names::may_be_left_out;
pub(crate) use routes::escaped;

pub(crate) use weir_config::nodes::{flag, list, map, number, text};
use weir_config::{Diagnostic, Lowered, Mark, Node, ResourceKind};

use crate::document::{Document, EntityKind};

/// Id of the plugin config with the global plugins.
pub(crate) const GLOBAL: &str = "global";
/// Id of the route that takes what no other takes.
pub(crate) const NO_ROUTE: &str = "no-route";
/// Id of the global rule that makes answers Kong's.
pub(crate) const ANSWERS: &str = "answers";

/// Beginning of the ids of what stands for no entity of its own: layers of plugins, further stream routes of one route.
pub(crate) const LAYER: &str = ".";

/// Lowers a document. `is_hashed` says that passwords are stored as Kong stores them.
pub(crate) fn lower(document: &Document, is_hashed: bool, mark: Mark, found: &mut Vec<Diagnostic>) -> Lowered {
    let mut lowered = Lowered::new(mark);
    let plugins = plugins::Scoped::of(document, found);
    let asked = client_certificates::Asked::of(document, &plugins, found);
    certificates(document, &asked, &mut lowered, found);
    consumers::lower(document, &plugins, is_hashed, &mut lowered, found);
    services::lower(document, &plugins, &mut lowered, found);
    plugins.lower_global(mark, &mut lowered);
    routes::lower(document, &plugins, mark, &mut lowered, found);
    streams::lower(document, &plugins, &mut lowered, found);
    for (_, entity) in document.of(EntityKind::Vaults).filter(|(_, vault)| vault.text("name") != Some("env")) {
        found.push(entity.fault("name", "only the vault env is supported"));
    }
    lowered
}

fn certificates(
    document: &Document,
    asked: &client_certificates::Asked,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    for (number, certificate) in document.of(EntityKind::Certificates) {
        let snis = document.children(EntityKind::Snis, "certificate", number);
        let snis: Vec<Node> = snis.filter_map(|sni| sni.node.get("name").cloned()).collect();
        if snis.is_empty() {
            continue;
        }
        let mut item = map(certificate.node.mark, [("id", text(&certificate.id))]);
        for field in ["cert", "key"] {
            item.insert(field, certificate.node.get(field).cloned().unwrap_or_else(|| text("")));
        }
        for (field, single) in [("certs", "cert_alt"), ("keys", "key_alt")] {
            if let Some(value) = certificate.node.get(single) {
                item.insert(field, list(value.mark, vec![value.clone()]));
            }
        }
        for (at, (names, asks)) in asked.divide(snis).into_iter().enumerate() {
            let mut item = item.clone();
            if at > 0 {
                item.insert("id", text(&format!("{LAYER}{}", certificate.id)));
            }
            item.insert("snis", list(certificate.node.mark, names));
            if asks {
                item.insert("ask_client", flag(true));
            }
            lowered.add(ResourceKind::Ssls, item, certificate.origin());
        }
    }
    for (_, sni) in document.of(EntityKind::Snis).filter(|(_, sni)| sni.reference("certificate").is_none()) {
        found.push(sni.fault("certificate", "required field missing"));
    }
}
