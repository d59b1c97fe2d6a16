//! Clusters of Kubernetes: Endpoints or EndpointSlices, listed once and watched from there on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use regex::Regex;
use serde_json::Value;
use weir_config::settings::{HttpScheme, KubernetesCluster, NamespaceSelector};
use weir_config::{DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::asker::{Asker, Failures};
use super::{node, spawn};

/// Limits of time of a question.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(10);
/// Seconds after which the server ends a watch, and the time after which one that has not ended is given up.
const WATCH: u64 = 300;
const LONGEST_WATCH: Duration = Duration::from_secs(WATCH + 30);
/// Objects in one answer of a list.
const PAGE: u32 = 500;
/// Most bytes of an event.
const MOST_EVENT: u64 = 8 << 20;
/// Label of an EndpointSlice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Starts watching a cluster.
///
/// # Errors
/// A setting cannot be used, or the thread not be started.
pub(super) fn start(conf: &KubernetesCluster, services: &Arc<Services>, trusted: &str) -> anyhow::Result<()> {
    let cluster = Cluster::new(conf, services, trusted)
        .with_context(|| format!("discovery.kubernetes, the cluster with the id {:?}", conf.id))?;
    spawn("weir-kubernetes", move || cluster.follow())?;
    Ok(())
}

struct Cluster {
    conf: KubernetesCluster,
    /// URI of all objects.
    uri: String,
    token: String,
    namespaces: Namespaces,
    asker: Asker,
    services: Arc<Services>,
}

/// Objects of a cluster: the nodes by the name of their port. An object is an Endpoints, or a slice of a service.
#[derive(Default)]
struct Objects {
    by_service: HashMap<String, BTreeMap<String, Ports>>,
    /// Version of the last object, from which a watch goes on.
    version: String,
}

/// Nodes by the name of their port.
type Ports = BTreeMap<String, Vec<NodeAddr>>;

/// An object of a cluster: the name of its service, its own name and its nodes.
struct Object {
    service: String,
    name: String,
    ports: Ports,
}

/// The reason why a watch has ended.
enum Ended {
    /// The server has ended it: it goes on from the last version.
    Over,
    /// The last version is too old: everything is listed again.
    Gone,
}

impl Cluster {
    fn new(conf: &KubernetesCluster, services: &Arc<Services>, trusted: &str) -> anyhow::Result<Self> {
        let scheme = match conf.service.schema {
            HttpScheme::Http => "http",
            HttpScheme::Https => "https",
        };
        let (host, port) = (expanded(&conf.service.host)?, expanded(&conf.service.port)?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let path = match conf.watch_endpoint_slices {
            true => "/apis/discovery.k8s.io/v1/endpointslices",
            false => "/api/v1/endpoints",
        };
        Ok(Self {
            conf: conf.clone(),
            uri: format!("{scheme}://{host}:{port}{path}"),
            token: expanded(conf.client.token.expose())?,
            namespaces: Namespaces::new(&conf.namespace_selector)?,
            asker: Asker::with(trusted, conf.service.ssl_verify, CONNECT, ANSWER),
            services: Arc::clone(services),
        })
    }

    fn follow(&self) {
        let mut failures = Failures::of("kubernetes", &self.uri);
        loop {
            let done = self.list().and_then(|mut objects| {
                failures.end();
                self.services.report(DiscoveryType::Kubernetes, &self.conf.id, self.found(&objects));
                while let Ended::Over = self.watch(&mut objects)? {}
                Ok(())
            });
            if let Err(error) = done {
                self.services.report_failure(DiscoveryType::Kubernetes, None);
                failures.wait(&error);
            }
        }
    }

    /// Lists all objects, page by page.
    fn list(&self) -> Result<Objects, String> {
        let (mut objects, mut page) = (Objects::default(), String::new());
        loop {
            let uri = format!("{}?limit={PAGE}{}{page}", self.uri, self.selectors());
            let answer = self.asker.get(&uri, &[("Authorization", &self.authorization()?)], Duration::ZERO)?.body;
            let items = answer["items"].as_array().ok_or("the answer is no list of objects")?;
            items.iter().filter_map(|item| self.object(item)).for_each(|object| objects.put(object));
            objects.version = answer["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            match answer["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
                Some(next) => page = format!("&continue={}", coded(next)),
                None => return Ok(objects),
            }
        }
    }

    /// Takes events until the server ends the watch.
    fn watch(&self, objects: &mut Objects) -> Result<Ended, String> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH}&resourceVersion={}{}",
            self.uri,
            coded(&objects.version),
            self.selectors()
        );
        let mut events = match self.asker.stream(&uri, &[("Authorization", &self.authorization()?)], LONGEST_WATCH) {
            Err(error) if error.starts_with("status 410") => return Ok(Ended::Gone),
            opened => opened?,
        };
        loop {
            let mut line = Vec::new();
            let read = events.by_ref().take(MOST_EVENT).read_until(b'\n', &mut line);
            match read {
                Ok(0) => return Ok(Ended::Over),
                Ok(_) if !line.ends_with(b"\n") => return Err("an event is too long, or breaks off".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
            let event: Value =
                serde_json::from_slice(&line).map_err(|error| format!("an event is no JSON: {error}"))?;
            let item = &event["object"];
            let kind = event["type"].as_str().unwrap_or_default();
            if kind == "ERROR" {
                return match item["code"].as_u64() {
                    Some(410) => Ok(Ended::Gone),
                    _ => Err(format!("an error instead of an event: {}", item["message"].as_str().unwrap_or_default())),
                };
            }
            if let Some(version) = item["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut objects.version);
            }
            if kind == "BOOKMARK" {
                continue;
            }
            if let Some(object) = self.object(item) {
                self.change(objects, object, kind == "DELETED");
            }
        }
    }

    /// Reports the services of an object that has changed.
    fn change(&self, objects: &mut Objects, object: Object, is_gone: bool) {
        let service = object.service.clone();
        let before: HashSet<String> = objects.ports(&service).into_keys().collect();
        match is_gone {
            true => objects.remove(&object),
            false => objects.put(object),
        }
        let after = objects.ports(&service);
        for port in before.iter().filter(|port| !after.contains_key(*port)) {
            self.services.report_one(&self.conf.id, &self.named(&service, port), Vec::new());
        }
        for (port, nodes) in after {
            self.services.report_one(&self.conf.id, &self.named(&service, &port), nodes);
        }
    }

    fn found(&self, objects: &Objects) -> HashMap<Service, Vec<NodeAddr>> {
        let services = objects.by_service.keys();
        let ports = services.flat_map(|service| objects.ports(service).into_iter().map(move |ports| (service, ports)));
        ports.map(|(service, (port, nodes))| (self.named(service, &port), nodes)).collect()
    }

    fn named(&self, service: &str, port: &str) -> Service {
        let id = if self.conf.id.is_empty() { String::new() } else { format!("{}/", self.conf.id) };
        Service::named(DiscoveryType::Kubernetes, format!("{id}{service}:{port}"))
    }

    /// An object as far as it matters; `None` for one of another namespace, or without a name.
    fn object(&self, item: &Value) -> Option<Object> {
        let metadata = &item["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
        if !self.namespaces.has(namespace) {
            return None;
        }
        let weight = self.conf.default_weight;
        if self.conf.watch_endpoint_slices {
            let service = metadata["labels"][SERVICE_NAME].as_str()?;
            let ports = of_slice(item, weight);
            return Some(Object { service: format!("{namespace}/{service}"), name: name.to_owned(), ports });
        }
        Some(Object { service: format!("{namespace}/{name}"), name: String::new(), ports: of_endpoints(item, weight) })
    }

    fn selectors(&self) -> String {
        let label = &self.conf.label_selector;
        let mut query = if label.is_empty() { String::new() } else { format!("&labelSelector={}", coded(label)) };
        let selector = &self.conf.namespace_selector;
        for (operator, namespace) in [("=", &selector.equal), ("!=", &selector.not_equal)] {
            if !namespace.is_empty() {
                let field = coded(&format!("metadata.namespace{operator}{namespace}"));
                query.push_str(&format!("&fieldSelector={field}"));
            }
        }
        query
    }

    /// The token, read anew each time: Kubernetes renews the file.
    fn authorization(&self) -> Result<String, String> {
        let token = match (self.token.as_str(), self.conf.client.token_file.as_str()) {
            ("", "") => return Ok(String::new()),
            ("", path) => std::fs::read_to_string(path).map_err(|error| format!("token_file {path}: {error}"))?,
            (token, _) => token.to_owned(),
        };
        Ok(format!("Bearer {}", token.trim()))
    }
}

impl Objects {
    fn put(&mut self, object: Object) {
        self.by_service.entry(object.service).or_default().insert(object.name, object.ports);
    }

    fn remove(&mut self, object: &Object) {
        if let Some(slices) = self.by_service.get_mut(&object.service) {
            slices.remove(&object.name);
            if slices.is_empty() {
                self.by_service.remove(&object.service);
            }
        }
    }

    /// The nodes of a service by port, from all its slices.
    fn ports(&self, service: &str) -> Ports {
        let mut all = Ports::new();
        for (port, nodes) in self.by_service.get(service).into_iter().flat_map(BTreeMap::values).flatten() {
            all.entry(port.clone()).or_default().extend(nodes.iter().cloned());
        }
        for nodes in all.values_mut() {
            nodes.sort_by_key(ToString::to_string);
            nodes.dedup();
        }
        all
    }
}

fn of_endpoints(item: &Value, weight: u32) -> Ports {
    let mut ports = Ports::new();
    for subset in item["subsets"].as_array().into_iter().flatten() {
        let addresses: Vec<&str> =
            subset["addresses"].as_array().into_iter().flatten().filter_map(|address| address["ip"].as_str()).collect();
        put(&mut ports, &subset["ports"], &addresses, weight);
    }
    ports
}

fn of_slice(item: &Value, weight: u32) -> Ports {
    let endpoints = item["endpoints"].as_array().into_iter().flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    let addresses: Vec<&str> = ready
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    let mut ports = Ports::new();
    put(&mut ports, &item["ports"], &addresses, weight);
    ports
}

fn put(ports: &mut Ports, listed: &Value, addresses: &[&str], weight: u32) {
    for port in listed.as_array().into_iter().flatten() {
        let Some(number) = port["port"].as_u64().and_then(|number| u16::try_from(number).ok()) else { continue };
        let own = port["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let name = own.unwrap_or_else(|| number.to_string());
        let nodes = addresses.iter().filter_map(|address| node(address, number, weight));
        ports.entry(name).or_default().extend(nodes);
    }
}

/// Namespaces that are watched, beyond what the server selects.
enum Namespaces {
    All,
    Matching(Vec<Regex>),
    Others(Vec<Regex>),
}

impl Namespaces {
    fn new(selector: &NamespaceSelector) -> anyhow::Result<Self> {
        let NamespaceSelector { equal, not_equal, r#match, not_match } = selector;
        let set = [!equal.is_empty(), !not_equal.is_empty(), !r#match.is_empty(), !not_match.is_empty()];
        if set.into_iter().filter(|set| *set).count() > 1 {
            anyhow::bail!("namespace_selector: only one of equal, not_equal, match and not_match is allowed");
        }
        let whole = |patterns: &[String]| -> anyhow::Result<Vec<Regex>> {
            let regex = |pattern: &String| Regex::new(&format!("^(?:{pattern})$")).context("namespace_selector");
            patterns.iter().map(regex).collect()
        };
        Ok(match (r#match.is_empty(), not_match.is_empty()) {
            (false, _) => Self::Matching(whole(r#match)?),
            (_, false) => Self::Others(whole(not_match)?),
            _ => Self::All,
        })
    }

    fn has(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Matching(patterns) => patterns.iter().any(|pattern| pattern.is_match(namespace)),
            Self::Others(patterns) => !patterns.iter().any(|pattern| pattern.is_match(namespace)),
        }
    }
}

/// A text, or the value of a variable that stands there as `${NAME}`.
fn expanded(text: &str) -> anyhow::Result<String> {
    match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => std::env::var(name).with_context(|| format!("the environment variable {name} is not set")),
        None => Ok(text.to_owned()),
    }
}

fn coded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(ports: &Ports) -> Vec<String> {
        ports
            .iter()
            .map(|(port, nodes)| {
                format!("{port}={}", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            })
            .collect()
    }

    #[test]
    fn subsets_become_nodes_by_port() {
        let item = json!({ "subsets": [
            { "addresses": [{ "ip": "10.5.10.2" }, { "ip": "10.5.10.1" }], "notReadyAddresses": [{ "ip": "10.9.9.9" }],
              "ports": [{ "name": "p1", "port": 5001 }, { "port": 5002 }] },
            { "addresses": [{ "ip": "10.5.20.1" }], "ports": [{ "name": "p1", "port": 5003 }] },
            { "notReadyAddresses": [{ "ip": "10.9.9.9" }], "ports": [{ "name": "p2", "port": 1 }] },
        ] });
        let expected = ["5002=10.5.10.2:5002,10.5.10.1:5002", "p1=10.5.10.2:5001,10.5.10.1:5001,10.5.20.1:5003", "p2="];
        assert_eq!(shown(&of_endpoints(&item, 50)), expected);
    }

    #[test]
    fn slices_of_a_service_are_put_together() {
        let slice = |address: &str, ready: bool| json!({ "endpoints": [{ "addresses": [address], "conditions": { "ready": ready } }], "ports": [{ "name": "http", "port": 80 }] });
        let mut objects = Objects::default();
        let object = |name: &str, slice: &Value| Object {
            service: "ns/web".into(),
            name: name.into(),
            ports: of_slice(slice, 50),
        };
        objects.put(object("web-2", &slice("10.0.0.2", true)));
        objects.put(object("web-1", &slice("10.0.0.1", true)));
        objects.put(object("web-3", &slice("10.0.0.3", false)));
        assert_eq!(shown(&objects.ports("ns/web")), ["http=10.0.0.1:80,10.0.0.2:80"]);
        objects.remove(&object("web-1", &slice("10.0.0.1", true)));
        assert_eq!(shown(&objects.ports("ns/web")), ["http=10.0.0.2:80"]);
    }

    #[test]
    fn namespaces_are_matched_whole() {
        let list = |text: &str| vec![text.to_owned()];
        let matching = NamespaceSelector { r#match: list("team-.*"), ..NamespaceSelector::default() };
        let others = NamespaceSelector { not_match: list("kube"), ..NamespaceSelector::default() };
        let matching = Namespaces::new(&matching).unwrap();
        assert!(matching.has("team-a") && !matching.has("my-team-a"));
        let others = Namespaces::new(&others).unwrap();
        assert!(others.has("kube-system") && !others.has("kube"));
        let both = NamespaceSelector { equal: "a".into(), not_match: list("b"), ..NamespaceSelector::default() };
        assert!(Namespaces::new(&both).is_err());
    }
}
