//! Health of the targets of an upstream: `/upstreams/U/health`, and targets that an administrator marks.

use std::net::SocketAddr;

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_admin::FamilyRequest;

use crate::api::{CheckedPlace, Gateway, TargetAddress};
use crate::entities::{Entities, Entity};
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds;
use crate::read::argument;
use crate::target::{Place, id_of};

/// The upstream of a path with its targets and the items of the model that its targets are checked for.
struct Upstream<'e> {
    entity: &'e Entity,
    targets: Vec<&'e Entity>,
    places: Vec<CheckedPlace>,
}

impl<'e> Upstream<'e> {
    fn of(key: &str, entities: &'e Entities) -> Option<Self> {
        let (number, kind) = kinds::named("upstreams")?;
        let entity = Place { number, kind, id: key }.find(entities)?;
        let (targets, _) = kinds::named("targets")?;
        let (services, _) = kinds::named("services")?;
        let (routes, _) = kinds::named("routes")?;
        let mut places = Vec::new();
        for service in entities.after(services, None).filter(|service| service["host"] == entity["name"]) {
            let id = id_of(service);
            // Routes that keep the client's Host have the upstream in place.
            places.extend(
                entities
                    .children(routes, "service", &id)
                    .map(|route| CheckedPlace { kind: "routes", id: id_of(route) }),
            );
            places.push(CheckedPlace { kind: "services", id });
        }
        let targets = entities.children(targets, "upstream", &id_of(entity)).collect();
        Some(Self { entity, targets, places })
    }
}

/// `GET /upstreams/U/health`, with `?balancer_health=1` of the upstream as a whole.
pub(crate) fn health(key: &str, entities: &Entities, gateway: &dyn Gateway, request: &FamilyRequest) -> Outcome {
    let upstream = Upstream::of(key, entities).ok_or_else(fault::not_found)?;
    let known = gateway.addresses(&upstream.places);
    let all: Vec<Value> = upstream.targets.iter().map(|target| described(target, known.as_deref())).collect();
    if argument(request, "balancer_health").is_some_and(|value| matches!(value, "1" | "true")) {
        let states: Vec<&str> = all.iter().filter_map(|target| target["health"].as_str()).collect();
        let state = match states.contains(&HEALTHY) {
            _ if known.is_none() => OFF,
            true => HEALTHY,
            false => UNHEALTHY,
        };
        let data = json!({ "id": upstream.entity["id"], "health": state });
        return Ok(answer(StatusCode::OK, &json!({ "data": data, "next": null, "node_id": gateway.node_id() })));
    }
    Ok(answer(StatusCode::OK, &json!({ "data": all, "next": null, "node_id": gateway.node_id() })))
}

const HEALTHY: &str = "HEALTHY";
const UNHEALTHY: &str = "UNHEALTHY";
const OFF: &str = "HEALTHCHECKS_OFF";

/// A target with its health; `known` is `None` for an upstream without checks.
fn described(target: &Value, known: Option<&[TargetAddress]>) -> Value {
    let (host, port) = address_of(target);
    let weight = target["weight"].as_u64().unwrap_or(100);
    let own: Vec<&TargetAddress> = known.into_iter().flatten().filter(|address| address.is_of(&host, port)).collect();
    let state = |is_healthy: bool| if is_healthy { HEALTHY } else { UNHEALTHY };
    let addresses: Vec<Value> = own
        .iter()
        .map(|known| {
            let (ip, port) = (known.address.ip().to_string(), known.address.port());
            json!({ "ip": ip, "port": port, "weight": weight, "health": state(known.is_healthy) })
        })
        .collect();
    let up = own.iter().filter(|address| address.is_healthy).count() as u64;
    let health = match known {
        None => OFF,
        Some(_) if own.is_empty() => "DNS_ERROR",
        Some(_) => state(up > 0),
    };
    let total = weight * own.len() as u64;
    let weights = json!({ "total": total, "available": weight * up, "unavailable": total - weight * up });
    let mut all = target.clone();
    all["health"] = health.into();
    all["data"] =
        json!({ "host": host, "port": port, "nodeWeight": weight, "weight": weights, "addresses": addresses });
    all
}

/// Host and port of a target.
fn address_of(target: &Value) -> (String, u16) {
    let written = target["target"].as_str().unwrap_or_default();
    let split = written.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let (host, port) = split.unwrap_or((written, ""));
    (host.trim_matches(['[', ']']).to_owned(), port.parse().unwrap_or(8000))
}

/// `PUT /upstreams/U/targets/T/healthy` and `/unhealthy`, of one address with `/T/ADDRESS/healthy`.
pub(crate) fn mark(
    [upstream, target]: [&str; 2],
    address: Option<&str>,
    is_healthy: bool,
    entities: &Entities,
    gateway: &dyn Gateway,
) -> Outcome {
    let upstream = Upstream::of(upstream, entities).ok_or_else(fault::not_found)?;
    let found = upstream.targets.iter().find(|known| known["id"] == target || known["target"] == target);
    let (host, port) = address_of(found.ok_or_else(fault::not_found)?);
    let address = match address.map(str::parse::<SocketAddr>) {
        None => None,
        Some(Ok(address)) => Some(address),
        Some(Err(_)) => return Err(fault::not_found()),
    };
    let chosen =
        |known: &TargetAddress| known.is_of(&host, port) && address.is_none_or(|address| address == known.address);
    if gateway.mark(&upstream.places, &chosen, is_healthy) == 0 {
        let text = "the target has no address whose health is known: its upstream has no health checks, or its name \
                    cannot be resolved";
        return Err(fault::message(StatusCode::BAD_REQUEST, text));
    }
    Ok(empty(StatusCode::NO_CONTENT))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{address_of, described};
    use crate::api::TargetAddress;

    #[test]
    fn targets_have_hosts_and_ports() {
        for (written, host, port) in [
            ("a.test:80", "a.test", 80),
            ("a.test", "a.test", 8000),
            ("[::1]:7", "::1", 7),
            ("10.0.0.1:1", "10.0.0.1", 1),
        ] {
            assert_eq!(address_of(&json!({ "target": written })), (host.to_owned(), port), "{written}");
        }
    }

    #[test]
    fn a_target_is_healthy_while_one_of_its_addresses_is() {
        let address = |text: &str, is_healthy| TargetAddress {
            host: "a.test".to_owned(),
            address: text.parse().expect("an address"),
            is_healthy,
        };
        let target = json!({ "target": "a.test:80", "weight": 10 });
        let known = [address("10.0.0.1:80", true), address("10.0.0.2:80", false), address("10.0.0.3:81", true)];
        let found = described(&target, Some(&known));
        assert_eq!(found["health"], "HEALTHY");
        assert_eq!(found["data"]["weight"], json!({ "total": 20, "available": 10, "unavailable": 10 }));
        assert_eq!(found["data"]["addresses"][1]["health"], "UNHEALTHY");
        assert_eq!(described(&target, Some(&known[1..]))["health"], "UNHEALTHY");
        assert_eq!(described(&target, Some(&[]))["health"], "DNS_ERROR");
        assert_eq!(described(&target, None)["health"], "HEALTHCHECKS_OFF");
    }
}
