//! Consul: the catalog of services, and keys of nodes. Questions that wait for a change have a thread each.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use weir_config::settings::{ConsulDiscovery, ConsulKvDiscovery, ConsulSort};
use weir_config::{DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::asker::{Asker, Failures};
use super::dump::Dump;
use super::{node, spawn};

/// The service that Consul itself is.
const ITSELF: &str = "consul";
/// Port of instances that are registered without one.
const USUAL_PORT: u16 = 80;
/// Field that holds the token.
const TOKEN: &str = "X-Consul-Token";

/// Nodes of all services.
type Found = HashMap<Service, Vec<NodeAddr>>;

/// A server that is asked for its catalog.
struct Catalog {
    conf: ConsulDiscovery,
    server: String,
    asker: Asker,
}

/// Starts asking for catalogs.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn start(conf: &ConsulDiscovery, services: &Arc<Services>, trusted: &str) -> io::Result<()> {
    let dump = Arc::new(Dump::new(DiscoveryType::Consul, &conf.dump, conf.servers.len()));
    dump.load(services);
    for server in &conf.servers {
        let server = server.trim_end_matches('/').to_owned();
        let asker = Asker::of_consul(trusted, &conf.timeout);
        let catalog = Arc::new(Catalog { conf: conf.clone(), server, asker });
        let (notify, notified) = sync_channel(1);
        if conf.keepalive {
            for path in ["/v1/catalog/services", "/v1/health/state/any"] {
                let (catalog, notify) = (Arc::clone(&catalog), notify.clone());
                spawn("weir-consul-wait", move || catalog.watch(path, &notify))?;
            }
        }
        let (services, dump) = (Arc::clone(services), Arc::clone(&dump));
        // The sender lives as long as the receiver, so that the receiver waits where there are no watches.
        spawn("weir-consul", move || catalog.follow(&services, &dump, &notified, notify))?;
    }
    Ok(())
}

impl Catalog {
    /// Waits for changes behind a path, and notifies of each.
    fn watch(&self, path: &str, notify: &SyncSender<()>) {
        let mut failures = Failures::of("consul", &format!("{}{path}", self.server));
        let wait = Duration::from_secs(self.conf.timeout.wait.into());
        let mut index = 0;
        loop {
            let uri = format!("{}{path}?index={index}&wait={}s", self.server, wait.as_secs());
            // Consul adds up to a sixteenth of the time, so that not all clients come back at once.
            match self.asker.get(&uri, &[(TOKEN, self.conf.token.expose())], wait + wait / 16) {
                Ok(answer) => {
                    failures.end();
                    if answer.index != index {
                        // A full channel holds a notification already.
                        let _ = notify.try_send(());
                    }
                    index = next_index(index, answer.index, &mut failures);
                }
                Err(error) => {
                    index = 0;
                    failures.wait(&error);
                }
            }
        }
    }

    fn follow(&self, services: &Services, dump: &Dump, notified: &Receiver<()>, _notify: SyncSender<()>) {
        let mut failures = Failures::of("consul", &self.server);
        let interval = Duration::from_secs(self.conf.fetch_interval.into());
        let mut is_first = true;
        loop {
            match self.fetch() {
                Ok(found) => {
                    failures.end();
                    services.report(DiscoveryType::Consul, &self.server, found);
                    dump.answered(services, std::mem::take(&mut is_first));
                }
                Err(error) => {
                    services.report_failure(DiscoveryType::Consul, None);
                    failures.wait(&error);
                    continue;
                }
            }
            if self.conf.keepalive {
                // The other end is held here.
                let _ = notified.recv();
            } else {
                std::thread::sleep(interval);
            }
        }
    }

    fn fetch(&self) -> Result<Found, String> {
        let token = [(TOKEN, self.conf.token.expose())];
        let catalog = self.asker.get(&format!("{}/v1/catalog/services", self.server), &token, Duration::ZERO)?.body;
        let names = catalog.as_object().ok_or("the catalog is no mapping of services")?.keys();
        let skipped: HashSet<&str> = self.conf.skip_services.iter().map(String::as_str).chain([ITSELF]).collect();
        let mut found = Found::new();
        for name in names.filter(|name| !skipped.contains(name.as_str())) {
            let path = utf8_percent_encode(name, NON_ALPHANUMERIC);
            let uri = format!("{}/v1/health/service/{path}?passing=true", self.server);
            let instances = self.asker.get(&uri, &token, Duration::ZERO)?.body;
            let instances = instances.as_array().ok_or("the instances of a service are no list")?;
            let mut nodes = nodes(instances, self.conf.weight);
            sort(&mut nodes, self.conf.sort_type);
            if !nodes.is_empty() {
                found.insert(Service::named(DiscoveryType::Consul, name), nodes);
            }
        }
        Ok(found)
    }
}

/// The index for the next question. One that goes backwards begins anew (Consul's documentation of blocking queries), and a
/// server without an index would be asked again at once.
fn next_index(before: u64, now: u64, failures: &mut Failures) -> u64 {
    match now {
        0 => {
            failures.wait("the answer has no X-Consul-Index");
            0
        }
        now if now < before => 0,
        now => now,
    }
}

/// The instances of a service; an address that stands twice counts once.
fn nodes(instances: &[Value], weight: u32) -> Vec<NodeAddr> {
    let mut seen = HashSet::new();
    let instance = |instance: &Value| {
        let service = instance.get("Service")?;
        let own = service.get("Address").and_then(Value::as_str).filter(|address| !address.is_empty());
        // A service without an address is at that of its node.
        let address = own.or_else(|| instance.pointer("/Node/Address")?.as_str())?;
        let port = service.get("Port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        node(address, port.filter(|port| *port > 0).unwrap_or(USUAL_PORT), weight)
    };
    let nodes = instances.iter().filter_map(instance);
    nodes.filter(|node| seen.insert(node.to_string())).collect()
}

fn sort(nodes: &mut [NodeAddr], by: ConsulSort) {
    match by {
        ConsulSort::Origin => {}
        ConsulSort::HostSort => nodes.sort_by_key(|node| node.host.to_string()),
        ConsulSort::PortSort => nodes.sort_by_key(|node| node.port),
        ConsulSort::CombineSort => nodes.sort_by_key(|node| (node.host.to_string(), node.port)),
    }
}

/// Starts asking for keys.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn start_kv(conf: &ConsulKvDiscovery, services: &Arc<Services>, trusted: &str) -> io::Result<()> {
    let dump = Arc::new(Dump::new(DiscoveryType::ConsulKv, &conf.dump, conf.servers.len()));
    dump.load(services);
    for server in &conf.servers {
        let (conf, server) = (conf.clone(), server.trim_end_matches('/').to_owned());
        let asker = Asker::of_consul(trusted, &conf.timeout);
        let (services, dump) = (Arc::clone(services), Arc::clone(&dump));
        spawn("weir-consul-kv", move || follow_kv(&conf, &server, &asker, &services, &dump))?;
    }
    Ok(())
}

fn follow_kv(conf: &ConsulKvDiscovery, server: &str, asker: &Asker, services: &Services, dump: &Dump) {
    let mut failures = Failures::of("consul_kv", server);
    let wait = Duration::from_secs(conf.timeout.wait.into());
    let (mut index, mut is_first) = (0, true);
    loop {
        let mut uri = format!("{server}/v1/kv/{}?recurse=true", conf.prefix.trim_matches('/'));
        let mut more = Duration::ZERO;
        if conf.keepalive {
            uri.push_str(&format!("&index={index}&wait={}s", wait.as_secs()));
            more = wait + wait / 16;
        }
        let asked = asker.get(&uri, &[(TOKEN, conf.token.expose())], more);
        let (body, now) = match asked {
            Ok(answer) => (answer.body, answer.index),
            // There is no key.
            Err(error) if error.starts_with("status 404") => (Value::Array(Vec::new()), 0),
            Err(error) => {
                index = 0;
                services.report_failure(DiscoveryType::ConsulKv, None);
                failures.wait(&error);
                continue;
            }
        };
        let Some(keys) = body.as_array() else {
            services.report_failure(DiscoveryType::ConsulKv, None);
            failures.wait("the keys are no list");
            continue;
        };
        if now == 0 || now != index {
            services.report(DiscoveryType::ConsulKv, server, of_keys(keys, conf, server));
            dump.answered(services, std::mem::take(&mut is_first));
        }
        failures.end();
        if conf.keepalive && now > 0 {
            index = if now < index { 0 } else { now };
        } else {
            std::thread::sleep(Duration::from_secs(conf.fetch_interval.into()));
        }
    }
}

/// The services of keys `PREFIX/SERVICE/HOST:PORT`.
fn of_keys(keys: &[Value], conf: &ConsulKvDiscovery, server: &str) -> Found {
    let mut found = Found::new();
    for entry in keys {
        let Some(key) = entry.get("Key").and_then(Value::as_str) else { continue };
        let Some((service, address)) = key.rsplit_once('/') else { continue };
        let service = format!("{service}/");
        let below = service.strip_prefix(conf.prefix.trim_matches('/')).is_some_and(|rest| rest.len() > 1);
        if !below || address.is_empty() || conf.skip_keys.contains(&service) {
            continue;
        }
        match of_key(address, entry, conf.weight) {
            Ok(Some(node)) => {
                let service = Service::named(DiscoveryType::ConsulKv, format!("{server}/v1/kv/{service}"));
                found.entry(service).or_default().push(node);
            }
            Ok(None) => {}
            Err(reason) => tracing::warn!(key, reason, "a key of Consul is no node; it is left out"),
        }
    }
    found
}

/// A node, unless its value says that the node is not healthy.
fn of_key(address: &str, entry: &Value, weight: u32) -> Result<Option<NodeAddr>, &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("expected HOST:PORT at its end")?;
    let port: u16 = port.parse().map_err(|_| "expected HOST:PORT at its end")?;
    let value = entry.get("Value").and_then(Value::as_str).ok_or("it has no value")?;
    let value = STANDARD.decode(value).map_err(|_| "its value is no Base64")?;
    let value: Value = serde_json::from_slice(&value).map_err(|_| "its value is no JSON")?;
    if matches!(value.get("check_status"), Some(Value::Bool(false))) || value["check_status"] == "false" {
        return Ok(None);
    }
    let weight = match value.get("weight") {
        None | Some(Value::Null) => weight,
        Some(own) => own.as_u64().and_then(|own| u32::try_from(own).ok()).ok_or("its weight is no number")?,
    };
    node(host, port, weight).map(Some).ok_or("its host is none")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instances_become_nodes() {
        let instances = json!([
            { "Node": { "Address": "10.0.0.9" }, "Service": { "Address": "10.0.0.2", "Port": 8000 } },
            { "Node": { "Address": "10.0.0.9" }, "Service": { "Address": "", "Port": 0 } },
            { "Node": { "Address": "10.0.0.9" }, "Service": { "Address": "10.0.0.2", "Port": 8000 } },
            { "Service": { "Address": "::1", "Port": 7000 } },
            { "Service": { "Address": "no host", "Port": 1 } },
            { "Node": {} },
        ]);
        let mut made = nodes(instances.as_array().unwrap(), 3);
        let shown = |made: &[NodeAddr]| made.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&made), ["10.0.0.2:8000", "10.0.0.9:80", "[::1]:7000"]);
        sort(&mut made, ConsulSort::PortSort);
        assert_eq!(shown(&made), ["10.0.0.9:80", "[::1]:7000", "10.0.0.2:8000"]);
        assert!(made.iter().all(|node| node.weight == 3));
    }

    #[test]
    fn keys_become_nodes() {
        let conf = ConsulKvDiscovery { skip_keys: vec!["upstreams/off/".to_owned()], ..ConsulKvDiscovery::default() };
        let key = |key: &str, value: &str| json!({ "Key": key, "Value": STANDARD.encode(value) });
        let keys = [
            key("upstreams/web/10.0.0.1:80", "{}"),
            key("upstreams/web/10.0.0.2:80", r#"{"weight": 7, "max_fails": 2}"#),
            key("upstreams/web/10.0.0.3:80", r#"{"check_status": false}"#),
            key("upstreams/web/10.0.0.4:80", "not JSON"),
            key("upstreams/web/10.0.0.5", "{}"),
            key("upstreams/web/", "{}"),
            key("upstreams/10.0.0.6:80", "{}"),
            key("upstreams/off/10.0.0.7:80", "{}"),
            key("other/web/10.0.0.8:80", "{}"),
        ];
        let found = of_keys(&keys, &conf, "http://c:1");
        assert_eq!(found.len(), 1, "{found:?}");
        let nodes = &found[&Service::named(DiscoveryType::ConsulKv, "http://c:1/v1/kv/upstreams/web/")];
        let shown: Vec<_> = nodes.iter().map(|node| (node.to_string(), node.weight)).collect();
        assert_eq!(shown, [("10.0.0.1:80".to_owned(), 1), ("10.0.0.2:80".to_owned(), 7)]);
    }
}
