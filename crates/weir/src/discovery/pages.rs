//! Pages of the control API with the services that registries know: `/v1/discovery/REGISTRY/dump`.

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use weir_config::DiscoveryType;
use weir_config::file::{self, MAX_FILE_BYTES};
use weir_config::settings::Discovery;
use weir_proxy::{Service, Services};

use super::dump::shown;
use crate::servers::health_pages::{error, json as json_page};
use crate::servers::pages::Page;

/// The page behind `/v1/discovery/`; `None`: there is none.
pub(crate) fn page(path: &str, discovery: &Discovery, services: &Services) -> Option<Response<Page>> {
    let (registry, page) = path.trim_end_matches('/').split_once('/')?;
    let registry = DiscoveryType::ALL.into_iter().find(|known| known.name() == registry)?;
    if !services.has(registry) {
        let text = format!("no servers are set: discovery.{} in the settings names them", registry.name());
        return Some(error(StatusCode::NOT_FOUND, &text));
    }
    match page {
        "dump" => Some(json_page(StatusCode::OK, &dump(registry, discovery, services))),
        "show_dump_file" => dump_file(registry, discovery),
        _ => None,
    }
}

/// The nodes of all services, in APISIX's form. Secrets are masked.
fn dump(registry: DiscoveryType, discovery: &Discovery, services: &Services) -> Value {
    let found = services.dump(registry);
    let by_name = |name: &dyn Fn(&Service) -> String| -> Map<String, Value> {
        found.iter().map(|(service, nodes)| (name(service), shown(nodes))).collect()
    };
    let plain = |service: &Service| service.name.clone();
    match registry {
        DiscoveryType::Dns => json!({ "config": discovery.dns, "services": by_name(&plain) }),
        DiscoveryType::Consul => json!({ "config": discovery.consul, "services": by_name(&plain) }),
        DiscoveryType::ConsulKv => json!({ "config": discovery.consul_kv, "services": by_name(&plain) }),
        DiscoveryType::Http => json!({ "services": by_name(&plain) }),
        DiscoveryType::Eureka => json!({ "config": discovery.eureka, "services": by_name(&plain) }),
        DiscoveryType::Nacos => {
            let placed = |service: &Service| {
                let (namespace, group) = service.place.clone().unwrap_or_default();
                format!("default/{namespace}/{group}/{}", service.name)
            };
            let services = by_name(&placed).into_iter().map(|(name, nodes)| (name, json!({ "nodes": nodes })));
            json!({ "services": services.collect::<Map<_, _>>() })
        }
        DiscoveryType::Kubernetes => {
            let clusters = discovery.kubernetes.iter().map(|cluster| {
                let mut shown = json!({ "endpoints": endpoints(&found_in(&found, &cluster.id)) });
                if !cluster.id.is_empty() {
                    shown["id"] = cluster.id.as_str().into();
                }
                shown
            });
            json!({ "config": discovery.kubernetes, "endpoints": clusters.collect::<Vec<_>>() })
        }
    }
}

type Found = [(Service, std::sync::Arc<[weir_config::NodeAddr]>)];

/// Names and nodes of a cluster, without its id.
fn found_in<'a>(found: &'a Found, id: &str) -> Vec<(&'a str, Value)> {
    let own = |name: &'a str| match id {
        // NAMESPACE/SERVICE:PORT, and an id before that in other clusters.
        "" => (name.matches('/').count() == 1).then_some(name),
        id => name.strip_prefix(id)?.strip_prefix('/'),
    };
    found.iter().filter_map(|(service, nodes)| Some((own(&service.name)?, shown(nodes)))).collect()
}

/// The nodes by service and port.
fn endpoints(found: &[(&str, Value)]) -> Vec<Value> {
    let mut services: Map<String, Value> = Map::new();
    for (name, nodes) in found {
        let Some((service, port)) = name.rsplit_once(':') else { continue };
        let ports = services.entry(service).or_insert_with(|| json!({}));
        ports[port] = nodes.clone();
    }
    services.into_iter().map(|(name, ports)| json!({ "name": name, "value": ports.to_string() })).collect()
}

/// The file that the last answer is kept in.
fn dump_file(registry: DiscoveryType, discovery: &Discovery) -> Option<Response<Page>> {
    let path = match registry {
        DiscoveryType::Consul => &discovery.consul.dump.path,
        DiscoveryType::ConsulKv => &discovery.consul_kv.dump.path,
        _ => return None,
    };
    if path.is_empty() {
        return Some(error(StatusCode::SERVICE_UNAVAILABLE, "dump params is nil"));
    }
    let text = file::read(path.as_ref(), MAX_FILE_BYTES).map_err(|error| error.to_string());
    let text = text.and_then(|text| serde_json::from_slice::<Value>(&text).map_err(|error| error.to_string()));
    Some(match text {
        Ok(text) => json_page(StatusCode::OK, &text),
        Err(reason) => error(StatusCode::SERVICE_UNAVAILABLE, &reason),
    })
}
