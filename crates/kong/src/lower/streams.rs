//! Routes of streams: TCP, TLS and UDP.

use std::cmp::Reverse;
use std::net::IpAddr;

use weir_config::{Diagnostic, Kind, Lowered, Node, ResourceKind};

use super::address::{is_of_streams, is_stream};
use super::plugins::Scoped;
use super::{LAYER, map, number, text};
use crate::document::{Document, Entity, EntityKind, rule, whole};

/// One end of a stream, as `sources` and `destinations` name them.
#[derive(Clone, Debug, Default)]
struct End {
    range: Option<String>,
    port: Option<u16>,
}

/// A stream route of the model.
struct Made {
    item: Node,
    entity: weir_config::Entity,
    /// Order among those without an SNI: the most specific first.
    order: (bool, u8),
}

/// Adds the routes of streams.
pub(crate) fn lower(document: &Document, plugins: &Scoped<'_>, lowered: &mut Lowered, found: &mut Vec<Diagnostic>) {
    let mut made = Vec::new();
    let mut routes: Vec<(usize, &Entity)> = document.of(EntityKind::Routes).collect();
    routes.sort_by_key(|(_, route)| Reverse(route.id.to_ascii_lowercase()));
    for (number, route) in routes.into_iter().filter(|(_, route)| is_stream(route)) {
        let service = route.reference("service").and_then(|number| document.entities.get(number));
        if service.is_some_and(|service| service.flag("enabled") == Some(false)) {
            continue;
        }
        self::route(number, route, service, plugins, &mut made, found);
    }
    // The sort is stable: of equal ones the greater id stays first.
    made.sort_by_key(|made| Reverse(made.order));
    for Made { item, entity, .. } in made {
        lowered.add(ResourceKind::StreamRoutes, item, entity);
    }
}

fn route(
    at: usize,
    route: &Entity,
    service: Option<&Entity>,
    plugins: &Scoped<'_>,
    made: &mut Vec<Made>,
    found: &mut Vec<Diagnostic>,
) {
    let mark = route.node.mark;
    for field in ["methods", "hosts", "paths", "headers", "expression"] {
        if route.node.get(field).is_some_and(|node| node.as_seq() != Some(&[])) {
            found.push(route.fault(field, "cannot be set on a route of streams"));
        }
    }
    let (sources, destinations) = (ends(route, "sources", found), ends(route, "destinations", found));
    let snis = route.texts("snis");
    if sources.is_empty() && destinations.is_empty() && snis.is_empty() {
        let text = "must set one of 'sources', 'destinations', 'snis' when 'protocols' is 'tcp', 'tls' or 'udp'";
        found.push(Diagnostic::error(mark, route.path.as_str(), rule(text)));
        return;
    }
    if sources.iter().any(|source| source.port.is_some()) {
        found.push(route.fault("sources", "a port of the client is not supported: name addresses alone"));
    }
    let Some(service) = service else {
        found.push(route.fault("service", "required field missing"));
        return;
    };
    if !is_of_streams(service) {
        let text = "a route of streams needs a service with the protocol tcp, tls, udp or tls_passthrough";
        found.push(route.fault("service", text));
        return;
    }
    let own = plugins.of_route(at, route.reference("service"));
    let or_any = |ends: Vec<End>| if ends.is_empty() { vec![End::default()] } else { ends };
    let names: Vec<Option<&str>> =
        if snis.is_empty() { vec![None] } else { snis.iter().map(|sni| Some(sni.trim_end_matches('.'))).collect() };
    let has_both = !sources.is_empty() && !destinations.is_empty();
    let sources = or_any(sources);
    let mut count = 0;
    for destination in or_any(destinations) {
        for source in &sources {
            for sni in &names {
                let id = if count == 0 { route.id.clone() } else { format!("{LAYER}{}-{count}", route.id) };
                count += 1;
                let mut item = map(mark, [("id", text(&id)), ("service_id", text(&service.id))]);
                if let Some(name) = &route.name {
                    item.insert("name", text(name));
                }
                let fields = [
                    ("remote_addr", source.range.as_deref().map(text)),
                    ("server_addr", destination.range.as_deref().map(text)),
                    ("server_port", destination.port.map(|port| number(port.into()))),
                    ("sni", sni.map(text)),
                    ("plugins", own.node.as_map().is_some_and(|all| !all.is_empty()).then(|| own.node.clone())),
                ];
                for (field, value) in fields {
                    if let Some(value) = value {
                        item.insert(field, value);
                    }
                }
                let mut entity = route.origin();
                entity.elsewhere = own.elsewhere.clone();
                entity.fields = vec![
                    ("sni", "snis"),
                    ("remote_addr", "sources"),
                    ("server_addr", "destinations"),
                    ("server_port", "destinations"),
                    ("service_id", "service"),
                ];
                made.push(Made { item, entity, order: (has_both, source.weight().max(destination.weight())) });
            }
        }
    }
}

impl End {
    /// Rank by specificity: an address before a port before a range.
    fn weight(&self) -> u8 {
        match (&self.range, self.port) {
            (Some(range), _) if !range.contains('/') => 3,
            (_, Some(_)) => 2,
            (Some(_), None) => 1,
            (None, None) => 0,
        }
    }
}

fn ends(route: &Entity, field: &str, found: &mut Vec<Diagnostic>) -> Vec<End> {
    let Some(node) = route.node.get(field) else { return Vec::new() };
    let Kind::Seq(items) = &node.kind else {
        found.push(route.fault(field, format!("expected an array, found {}", node.describe())));
        return Vec::new();
    };
    let mut ends = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let mut fault = |mark, text: &str| {
            found.push(Diagnostic::error(mark, format!("{}[{at}]", route.at(field)), rule(text)));
        };
        let Some(entries) = item.as_map() else {
            fault(item.mark, "expected a record with ip, port or both");
            continue;
        };
        let mut end = End::default();
        for (key, value) in entries.iter().filter(|(_, value)| !value.is_null()) {
            match &*key.text {
                "ip" => {
                    let text = value.as_str().unwrap_or_default();
                    let (address, bits) = text.split_once('/').map_or((text, None), |(at, bits)| (at, Some(bits)));
                    let most = match address.parse::<IpAddr>() {
                        Ok(IpAddr::V4(_)) => 32,
                        Ok(IpAddr::V6(_)) => 128,
                        Err(_) => 0,
                    };
                    let is_range = bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most));
                    match most > 0 && is_range {
                        true => end.range = Some(text.to_owned()),
                        false => fault(value.mark, "ip: invalid ip or cidr range"),
                    }
                }
                "port" => match whole(value).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0) {
                    Some(port) => end.port = Some(port),
                    None => fault(value.mark, "port: value should be between 1 and 65535"),
                },
                _ => fault(key.mark, "unknown field: an end has ip and port"),
            }
        }
        if end.range.is_none() && end.port.is_none() {
            fault(item.mark, "at least one of these fields must be non-empty: 'ip', 'port'");
        }
        ends.push(end);
    }
    ends
}
