//! Certificates that the gateway shows: of `APICAST_HTTPS_CERTIFICATE`, and of the policy `tls` for the hosts of a service.
//! Clients are asked for theirs under the hosts of services with the policy `tls_validation`.

use weir_config::nodes::{flag, list, map, text};
use weir_config::{Diagnostic, Entity, Lowered, Mark, Node, ResourceKind};
use weir_plugins::threescale::name_of;

use crate::pem::{Pair, embedded, of_file};
use crate::service::{Environment, Service};
use crate::upstream::fault;

/// Adds the certificates for the hosts of a service.
pub(crate) fn of_service(
    service: &Service,
    hosts: &[String],
    environment: &Environment,
    id: &str,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mut pairs = Vec::new();
    for (at, _, policy) in service.policies().filter(|(_, name, _)| *name == "tls") {
        let field = format!("proxy.policy_chain[{at}].configuration");
        let certificates = policy.get("configuration").and_then(|conf| conf.get("certificates"));
        for (number, entry) in certificates.and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            pairs.extend(pair(service, entry, &format!("{field}.certificates[{number}]"), found));
        }
    }
    let asks = asks(service.at("proxy.policy_chain"));
    if asks && pairs.is_empty() {
        pairs.extend(environment.https.clone());
        if pairs.is_empty() {
            let reason =
                "tls_validation: no client can show a certificate without APICAST_HTTPS_CERTIFICATE or the policy tls";
            found.push(service.doubt("proxy.policy_chain", reason));
        }
    }
    let Some(first) = pairs.first().cloned() else { return };
    let mark = service.node.mark;
    let names = hosts.iter().map(|host| text(host)).collect();
    let mut item = map(mark, [("id", text(&format!("tls-{id}"))), ("snis", list(mark, names))]);
    item.insert("cert", text(&first.cert));
    item.insert("key", text(&first.key));
    let rest = pairs.get(1..).unwrap_or_default();
    if !rest.is_empty() {
        item.insert("certs", list(mark, rest.iter().map(|pair| text(&pair.cert)).collect()));
        item.insert("keys", list(mark, rest.iter().map(|pair| text(&pair.key)).collect()));
    }
    if asks {
        item.insert("ask_client", flag(true));
    }
    let entity = Entity { kind: "service", id: service.id.clone(), path: service.path.clone(), ..Entity::default() };
    lowered.add(ResourceKind::Ssls, item, entity);
}

/// Adds the certificate for all other names.
pub(crate) fn of_environment(environment: &Environment, mark: Mark, lowered: &mut Lowered) {
    let Some(pair) = &environment.https else { return };
    let mut item = map(mark, [("id", text("tls")), ("snis", list(mark, vec![text("*")]))]);
    item.insert("cert", text(&pair.cert));
    item.insert("key", text(&pair.key));
    lowered.add(ResourceKind::Ssls, item, Entity { kind: "document", id: "tls".to_owned(), ..Entity::default() });
}

/// A certificate by its files, or as it is embedded.
fn pair(service: &Service, entry: &Node, field: &str, found: &mut Vec<Diagnostic>) -> Option<Pair> {
    let mut read = |name: &str| {
        let path = format!("{name}_path");
        let given = |name: &str| entry.get(name).and_then(Node::as_str).filter(|given| !given.is_empty());
        let (name, outcome) = match (given(&path), given(name)) {
            (Some(path_of), _) => (path.as_str(), of_file(path_of)),
            (None, Some(url)) => (name, embedded(url)),
            (None, None) => (name, Err(format!("required field missing: expected {name} or {path}"))),
        };
        outcome.map_err(|reason| found.push(fault(service, entry, (field, name), reason))).ok()
    };
    let (cert, key) = (read("certificate"), read("certificate_key"));
    Some(Pair { cert: cert?, key: key? })
}

/// True for a chain with `tls_validation`, also within `conditional`.
fn asks(chain: Option<&Node>) -> bool {
    chain.and_then(Node::as_seq).unwrap_or_default().iter().any(|policy| {
        let name = policy.get("name").and_then(Node::as_str).unwrap_or_default();
        let inner = policy.get("configuration").and_then(|conf| conf.get("policy_chain"));
        name_of(name) == "tls_validation" || asks(inner)
    })
}
