//! Places of items that are left out. A route keeps its place in the matcher, where it answers 503, and a certificate
//! that verifies clients keeps its names, whose handshakes are refused: otherwise another route or certificate, such as
//! one for everything, would take these requests without the same conditions.

use std::sync::Arc;

use super::item::readable_id;
use super::kinds::{Item, references};
use super::link::Known;
use super::reserve::Reserve;
use super::{InvalidItems, Loader};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::kind::{ResourceKey, ResourceKind};
use crate::model::Model;
use crate::node::{Kind, Mark, Node};
use crate::resource::{HostPattern, Id, ItemPath, Origin, Route, Ssl, Status};

/// Fields that determine the requests of a route.
const PLACE: [&str; 8] = ["id", "name", "uri", "uris", "host", "hosts", "priority", "service_id"];

/// Fields that only narrow that down. One that is wrong is left aside: then the route answers 503 to more requests.
const CONDITIONS: [&str; 5] = ["methods", "remote_addr", "remote_addrs", "vars", "status"];

/// Fields that determine the names of a certificate.
const NAMES: [&str; 3] = ["id", "sni", "snis"];

impl Loader<'_> {
    /// The fields of an item that keep its place, in case that it is left out.
    pub(super) fn reserve(&self, kind: ResourceKind, path: &str, node: &Node) -> Option<Reserve> {
        let keeps = match kind {
            ResourceKind::Routes | ResourceKind::Services => true,
            ResourceKind::Ssls => verifies_clients(node),
            _ => false,
        };
        if !keeps || self.options.invalid_items == InvalidItems::Refuse {
            return None;
        }
        let is_place = |name: &str| match kind {
            ResourceKind::Ssls => NAMES.contains(&name) || matches!(name, "type" | "status" | "client"),
            _ => PLACE.contains(&name) || CONDITIONS.contains(&name),
        };
        let repeated = self.text_errors.get(path).into_iter().flatten();
        let ambiguous = repeated.filter_map(|error| error.path.strip_prefix(path)?.strip_prefix('.')).any(is_place);
        let fields = node.as_map().unwrap_or_default().iter();
        let fields = fields.filter(|(key, value)| is_place(&key.text) && !value.is_null()).cloned().collect();
        Some(Reserve { fields: Node { mark: node.mark, kind: Kind::Map(fields) }, ambiguous })
    }

    /// Keeps the place of an item that is left out.
    pub(super) fn keep_place(&mut self, kind: ResourceKind, path: &str, index: usize, reserve: Reserve) {
        let Reserve { fields, ambiguous } = reserve;
        match kind {
            ResourceKind::Services => {
                let hosts = fields.get("hosts").map_or(Ok(Vec::new()), Node::parse_into::<Vec<HostPattern>>);
                let id = fields.get("id").and_then(readable_id).unwrap_or_else(|| Id::numbered(index + 1).to_string());
                self.lost_hosts.insert(id, hosts.ok().filter(|_| !ambiguous));
            }
            ResourceKind::Routes => {
                let mark = fields.mark;
                match self.place_of_route(path, fields).filter(|_| !ambiguous) {
                    Some(Some(mut route)) => {
                        route.number(index + 1);
                        self.kept_places.push(route);
                    }
                    Some(None) => {}
                    None => self.unplaced(mark, path),
                }
            }
            _ => {}
        }
    }

    /// Keeps the names of a certificate that is left out.
    pub(super) fn keep_names(&mut self, path: &str, reserve: Reserve) -> Option<Ssl> {
        let Reserve { fields, ambiguous } = reserve;
        let mark = fields.mark;
        let kept = names_of_ssl(path, fields).filter(|_| !ambiguous);
        kept.unwrap_or_else(|| {
            self.refuse(
                Diagnostic::error(mark, path, Code::ClientVerifierNotLeftOut)
                    .with_hint("put its names right, or take it out"),
            );
            None
        })
    }

    /// The route that is left out, with nothing but its place; `Some(None)`: it takes no request. `None`: its place is
    /// wrong itself.
    pub(super) fn place_of_route(&mut self, path: &str, mut fields: Node) -> Option<Option<Route>> {
        if fields.get("uri").is_none() && fields.get("uris").is_none() {
            return Some(None);
        }
        let found = self.found.len();
        let mut route = self.typed::<Route>(path, &fields);
        if route.is_none() {
            CONDITIONS.iter().for_each(|name| drop(fields.remove(name)));
            route = self.typed::<Route>(path, &fields);
        }
        // The faults were reported before.
        self.found.truncate(found);
        let mut route = route?;
        if route.status == Status::Disabled {
            return Some(None);
        }
        route.status = Status::LeftOut;
        route.origin =
            Origin { path: ItemPath::of(ResourceKind::Routes, path), mark: fields.mark, ..Origin::default() };
        Some(Some(route))
    }

    /// Adds the routes that are left out to the others, among which their ids have to be unique.
    pub(super) fn add_kept_places(&mut self, routes: &mut Vec<Arc<Route>>) {
        let kept_places = std::mem::take(&mut self.kept_places);
        let any = !kept_places.is_empty();
        for mut route in kept_places {
            let mut number = routes.len() + 1;
            while routes.iter().any(|other| other.id == route.id) {
                route.id = Id::numbered(number);
                number += 1;
            }
            routes.push(Arc::new(route));
        }
        // Of two routes that are equal otherwise the first one counts, as it stood in the list.
        if any {
            routes.sort_by_key(|route| route.origin.path.index());
        }
        if !routes.is_empty() {
            let unplaced = std::mem::take(&mut self.unplaced);
            unplaced.into_iter().for_each(|error| self.refuse(error));
        }
    }

    /// Takes what a route that is left out does not need out of it; `false`: its place is not known.
    pub(super) fn strip_to_place(&mut self, route: &mut Route, known: &dyn Known) -> bool {
        route.status = Status::LeftOut;
        (route.plugins, route.plugin_config_id, route.timeout) = (None, None, None);
        (route.upstream, route.upstream_id) = (None, None);
        let Some(id) = route.service_id.clone().filter(|id| !known.has(ResourceKind::Services, id.as_str())) else {
            return true;
        };
        route.service_id = None;
        if route.host_patterns().next().is_some() {
            return true;
        }
        match self.lost_hosts.get(id.as_str()) {
            Some(Some(hosts)) => route.hosts.clone_from(hosts),
            Some(None) => {
                let error = unplaceable(route.origin.mark, &route.origin.path.to_string());
                self.refuse(error);
                return false;
            }
            // Without a service it has no hosts.
            None => {}
        }
        true
    }

    /// Puts the names of a certificate that is left out into a model, if it verifies clients.
    pub(super) fn put_names(&mut self, model: &mut Model, key: &ResourceKey, node: Option<Node>) {
        let named = node.filter(verifies_clients).and_then(|node| names_of_ssl(&key.to_string(), node));
        let Some(Some(ssl)) = named else { return };
        let order = model.next_order();
        model.ssls.put(key.shared_id(), Arc::new(ssl), order);
    }

    /// Puts the place of a route that is left out into a model.
    pub(super) fn put_place(&mut self, model: &mut Model, key: &ResourceKey, node: Option<Node>) {
        let Some(fields) = node else { return };
        let Some(Some(route)) = self.place_of_route(&key.to_string(), fields) else { return };
        for reference in references(&route) {
            model.refer(ResourceKey::shared(reference.to, reference.id.shared()), key.clone());
        }
        let order = model.next_order();
        model.routes.put(key.shared_id(), Arc::new(route), order);
    }

    fn unplaced(&mut self, mark: Mark, path: &str) {
        self.unplaced.push(unplaceable(mark, path));
    }
}

/// True for a certificate in any state that requires client certificates.
fn verifies_clients(ssl: &Node) -> bool {
    let asks = ssl.get("client").is_some_and(|client| !client.is_null());
    asks && ssl.get("type").and_then(Node::as_str) != Some("client")
}

/// A certificate that is left out, with nothing but its names; `Some(None)`: it has none. `None`: they are wrong themselves.
fn names_of_ssl(path: &str, mut fields: Node) -> Option<Option<Ssl>> {
    let is_off = fields.get("status").is_some_and(|status| status.kind == Kind::Int(0));
    let has_names = ["sni", "snis"].iter().any(|name| fields.get(name).is_some_and(|names| !names.is_null()));
    if is_off || !has_names {
        return Some(None);
    }
    let mark = fields.mark;
    if let Kind::Map(fields) = &mut fields.kind {
        fields.retain(|(key, value)| NAMES.contains(&&*key.text) && !value.is_null());
    }
    for secret in ["cert", "key"] {
        fields.insert(secret, Node { mark, kind: Kind::Str(String::new()) });
    }
    let mut ssl = fields.parse_into::<Ssl>().ok()?;
    ssl.status = Status::LeftOut;
    ssl.origin = Origin { path: ItemPath::of(ResourceKind::Ssls, path), mark, ..Origin::default() };
    Some(Some(ssl))
}

fn unplaceable(mark: Mark, path: &str) -> Diagnostic {
    Diagnostic::error(mark, path, Code::RouteNotLeftOut)
        .with_hint("put its paths, hosts and priority right, or take it out")
}

/// The fields that keep the place of a route, out of a whole one; `hosts` are those of its service, where that is left out.
pub fn place_of(mut route: Node, hosts: Option<Option<&Node>>) -> Node {
    if let Kind::Map(fields) = &mut route.kind {
        fields.retain(|(key, _)| PLACE.contains(&&*key.text) || CONDITIONS.contains(&&*key.text));
    }
    if let Some(hosts) = hosts {
        route.remove("service_id");
        if let (None, None, Some(hosts)) = (route.get("host"), route.get("hosts"), hosts) {
            route.insert("hosts", hosts.clone());
        }
    }
    route
}
