//! Nodes of services, as registries report them. Workers never look here: nodes that have changed come with a snapshot.

#![allow(clippy::disallowed_types, reason = "compiling and the threads of registries take the lock, never a worker")]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use weir_config::settings::Discovery;
use weir_config::{DiscoveryArgs, DiscoveryType, NodeAddr, Scheme, Upstream};

/// Most nodes of one service; further ones are not used.
const MAX_NODES: usize = 4_096;

/// Most services of one registry; further ones are not kept.
const MAX_SERVICES: usize = 65_536;

/// Namespace and group of Nacos unless told.
const NAMESPACE: &str = "public";
const GROUP: &str = "DEFAULT_GROUP";

/// A service, by which its nodes are looked up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The registry that knows the service.
    pub registry: DiscoveryType,
    /// Name of the service in the registry.
    pub name: String,
    /// Namespace and group, in Nacos.
    pub place: Option<(String, String)>,
    /// Arguments of a list at a URL.
    pub args: Option<Box<DiscoveryArgs>>,
    /// True in Nacos for an upstream of gRPC, whose nodes may have a port of their own for it.
    pub is_grpc: bool,
}

/// The nodes of all services that registries have reported. The last report of a registry stays while there is no other.
#[derive(Debug)]
pub struct Services {
    registries: Vec<DiscoveryType>,
    /// Nodes of services that a registry does not know.
    defaults: HashMap<DiscoveryType, Arc<[NodeAddr]>>,
    state: Mutex<State>,
    /// Number of changes of nodes.
    changes: watch::Sender<u64>,
    /// Services of the configuration in force.
    wanted: watch::Sender<Arc<BTreeSet<Service>>>,
}

#[derive(Debug, Default)]
struct State {
    /// Reports by registry and source: a server, or a cluster.
    reports: BTreeMap<(DiscoveryType, String), Report>,
    /// Number of reports so far.
    count: u64,
    /// Registries that list all services, once they have answered or failed to.
    listed: HashSet<DiscoveryType>,
    /// Services that their registry was asked for one by one.
    asked: HashSet<Service>,
}

#[derive(Debug, Default)]
struct Report {
    /// Position among all reports, by which the newest one of a service counts.
    number: u64,
    nodes: HashMap<Service, Arc<[NodeAddr]>>,
}

impl Service {
    /// The service of an upstream, if its nodes come from a registry.
    pub(crate) fn of(upstream: &Upstream) -> Option<Self> {
        let (name, registry) = upstream.service_name.as_ref().zip(upstream.discovery_type)?;
        let args = upstream.discovery_args.as_ref();
        let argument = |value: Option<&String>, usual: &str| value.map_or_else(|| usual.to_owned(), Clone::clone);
        let place = match registry {
            DiscoveryType::Nacos => {
                let namespace = argument(args.and_then(|args| args.namespace_id.as_ref()), NAMESPACE);
                Some((namespace, argument(args.and_then(|args| args.group_name.as_ref()), GROUP)))
            }
            _ => None,
        };
        let own_args = args.filter(|_| registry == DiscoveryType::Http).cloned().map(Box::new);
        let is_grpc = registry == DiscoveryType::Nacos && matches!(upstream.scheme, Scheme::Grpc | Scheme::Grpcs);
        Some(Self { registry, name: name.clone(), place, args: own_args, is_grpc })
    }

    /// A service of a registry that has names alone.
    #[must_use]
    pub fn named(registry: DiscoveryType, name: impl Into<String>) -> Self {
        Self { registry, name: name.into(), place: None, args: None, is_grpc: false }
    }
}

impl Services {
    /// The services of the registries that the settings name.
    #[must_use]
    pub fn new(discovery: &Discovery) -> Self {
        use DiscoveryType::{Consul, ConsulKv, Dns, Eureka, Http, Kubernetes, Nacos};
        let set = |registry: &DiscoveryType| match registry {
            Dns => discovery.dns.is_set(),
            Consul => !discovery.consul.servers.is_empty(),
            ConsulKv => !discovery.consul_kv.servers.is_empty(),
            Nacos => !discovery.nacos.host.is_empty(),
            Eureka => !discovery.eureka.host.is_empty(),
            Kubernetes => !discovery.kubernetes.is_empty(),
            // Each of its services names its own server.
            Http => true,
        };
        let (consul, consul_kv) = (&discovery.consul, &discovery.consul_kv);
        let defaults = [
            (Consul, consul.default_service.node(consul.weight)),
            (ConsulKv, consul_kv.default_service.node(consul_kv.weight)),
        ];
        let defaults = defaults.into_iter().filter_map(|(registry, node)| Some((registry, Arc::from([node?]))));
        Self {
            defaults: defaults.collect(),
            registries: DiscoveryType::ALL.into_iter().filter(set).collect(),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            wanted: watch::Sender::default(),
        }
    }

    /// True if the settings name servers of a registry.
    #[must_use]
    pub fn has(&self, registry: DiscoveryType) -> bool {
        self.registries.contains(&registry)
    }

    /// The services of the configuration in force, for registries that are asked for one at a time.
    #[must_use]
    pub fn wanted(&self) -> watch::Receiver<Arc<BTreeSet<Service>>> {
        self.wanted.subscribe()
    }

    /// Counts changes of nodes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes the whole answer of a source: services that are not in it have no nodes there any more.
    pub fn report(&self, registry: DiscoveryType, source: &str, found: HashMap<Service, Vec<NodeAddr>>) {
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        let report = state.reports.entry((registry, source.to_owned())).or_default();
        let mut before = std::mem::take(&mut report.nodes);
        if found.len() > MAX_SERVICES {
            tracing::warn!(
                registry = registry.name(),
                source,
                most = MAX_SERVICES,
                "a registry has too many services; the others are not used"
            );
        }
        report.number = number;
        let mut changed = false;
        report.nodes = found
            .into_iter()
            .take(MAX_SERVICES)
            .map(|(service, nodes)| {
                let nodes = kept(&service, before.remove(&service), nodes, &mut changed);
                (service, nodes)
            })
            .collect();
        changed |= !before.is_empty();
        state.listed.insert(registry);
        drop(state);
        self.notify(changed);
    }

    /// Takes the answer for one service; without nodes the service has none any more.
    pub fn report_one(&self, source: &str, service: &Service, nodes: Vec<NodeAddr>) {
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        let report = state.reports.entry((service.registry, source.to_owned())).or_default();
        report.number = number;
        let (before, mut changed) = (report.nodes.remove(service), false);
        if nodes.is_empty() {
            changed = before.is_some();
        } else {
            let nodes = kept(service, before, nodes, &mut changed);
            report.nodes.insert(service.clone(), nodes);
        }
        state.asked.insert(service.clone());
        drop(state);
        self.notify(changed);
    }

    /// Notes that a registry did not answer: nobody waits for its first answer any longer.
    pub fn report_failure(&self, registry: DiscoveryType, service: Option<&Service>) {
        let mut state = self.state();
        match service {
            Some(service) => drop(state.asked.insert(service.clone())),
            None => drop(state.listed.insert(registry)),
        }
        drop(state);
        self.notify(false);
    }

    /// Forgets the nodes of services that a registry is not asked for any more.
    pub fn retain(&self, registry: DiscoveryType, wanted: &BTreeSet<Service>) {
        let mut state = self.state();
        state.asked.retain(|service| service.registry != registry || wanted.contains(service));
        for ((_, _), report) in state.reports.iter_mut().filter(|((of, _), _)| *of == registry) {
            report.nodes.retain(|service, _| wanted.contains(service));
        }
    }

    /// The services that a registry has nodes of, with the nodes.
    #[must_use]
    pub fn dump(&self, registry: DiscoveryType) -> Vec<(Service, Arc<[NodeAddr]>)> {
        let state = self.state();
        let reports = state.reports.iter().filter(|((of, _), _)| *of == registry);
        let services: BTreeSet<&Service> = reports.flat_map(|(_, report)| report.nodes.keys()).collect();
        services.into_iter().filter_map(|service| Some((service.clone(), state.nodes(service)?))).collect()
    }

    /// The nodes of a service; `None`: its registry knows none.
    pub(crate) fn nodes(&self, service: &Service) -> Option<Arc<[NodeAddr]>> {
        self.state().nodes(service).or_else(|| self.defaults.get(&service.registry).cloned())
    }

    /// Sets the services of the configuration in force.
    pub(crate) fn want(&self, services: BTreeSet<Service>) {
        self.wanted.send_if_modified(|wanted| {
            let changed = **wanted != services;
            if changed {
                *wanted = Arc::new(services);
            }
            changed
        });
    }

    /// Waits until each of these services was asked for once, at most for `limit`.
    pub(crate) async fn settled(&self, services: &BTreeSet<Service>, limit: Duration) {
        let mut changes = self.changes();
        let all = async { while !self.is_settled(services) && changes.changed().await.is_ok() {} };
        // Longer answers come later.
        let _ = timeout(limit, all).await;
    }

    fn is_settled(&self, services: &BTreeSet<Service>) -> bool {
        let state = self.state();
        services.iter().all(|service| match service.registry {
            DiscoveryType::Dns | DiscoveryType::Nacos | DiscoveryType::Http => state.asked.contains(service),
            registry => state.listed.contains(&registry),
        })
    }

    fn notify(&self, changed: bool) {
        // Those that wait for a first answer look at every report, and nodes are compared by whoever takes them.
        self.changes.send_modify(|count| *count += u64::from(changed));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The nodes in the newest report that has the service.
    fn nodes(&self, service: &Service) -> Option<Arc<[NodeAddr]>> {
        let reports = self.reports.iter().filter(|((registry, _), _)| *registry == service.registry);
        let having = reports.filter_map(|(_, report)| Some((report.number, report.nodes.get(service)?)));
        having.max_by_key(|(number, _)| *number).map(|(_, nodes)| Arc::clone(nodes))
    }
}

/// The nodes as they were before if they are the same, so that nothing is built anew for them.
fn kept(
    service: &Service,
    before: Option<Arc<[NodeAddr]>>,
    mut nodes: Vec<NodeAddr>,
    changed: &mut bool,
) -> Arc<[NodeAddr]> {
    if nodes.len() > MAX_NODES {
        tracing::warn!(
            service = service.name,
            most = MAX_NODES,
            found = nodes.len(),
            "a service has too many nodes; the others are not used"
        );
        nodes.truncate(MAX_NODES);
    }
    match before {
        Some(before) if *before == *nodes => before,
        _ => {
            *changed = true;
            nodes.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::NodeHost;

    fn nodes(ports: &[u16]) -> Vec<NodeAddr> {
        let node =
            |port: &u16| NodeAddr { host: NodeHost::Ip([10, 0, 0, 1].into()), port: *port, weight: 1, priority: 0 };
        ports.iter().map(node).collect()
    }

    fn ports(services: &Services, name: &str) -> Option<Vec<u16>> {
        let service = Service::named(DiscoveryType::Consul, name);
        services.nodes(&service).map(|nodes| nodes.iter().map(|node| node.port).collect())
    }

    fn found(of: &[(&str, &[u16])]) -> HashMap<Service, Vec<NodeAddr>> {
        of.iter().map(|(name, ports)| (Service::named(DiscoveryType::Consul, *name), nodes(ports))).collect()
    }

    #[test]
    fn the_newest_report_that_knows_a_service_counts() {
        let services = Services::new(&Discovery::default());
        services.report(DiscoveryType::Consul, "a", found(&[("web", &[1]), ("only-a", &[7])]));
        services.report(DiscoveryType::Consul, "b", found(&[("web", &[2, 3])]));
        assert_eq!(ports(&services, "web"), Some(vec![2, 3]));
        assert_eq!(ports(&services, "only-a"), Some(vec![7]));
        assert_eq!(ports(&services, "nobody"), None);
        services.report(DiscoveryType::Consul, "a", found(&[]));
        assert_eq!((ports(&services, "web"), ports(&services, "only-a")), (Some(vec![2, 3]), None));
        services.report(DiscoveryType::Eureka, "b", HashMap::new());
        assert_eq!(ports(&services, "web"), Some(vec![2, 3]), "a registry by itself");
        assert_eq!(services.dump(DiscoveryType::Consul).len(), 1);
    }

    #[test]
    fn equal_nodes_are_no_change() {
        let services = Services::new(&Discovery::default());
        let counted = || *services.changes().borrow();
        services.report(DiscoveryType::Consul, "a", found(&[("web", &[1])]));
        let first = services.nodes(&Service::named(DiscoveryType::Consul, "web")).unwrap();
        let before = counted();
        services.report(DiscoveryType::Consul, "a", found(&[("web", &[1])]));
        let again = services.nodes(&Service::named(DiscoveryType::Consul, "web")).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && counted() == before);
        services.report(DiscoveryType::Consul, "a", found(&[("web", &[2])]));
        assert!(counted() > before);
        let service = Service::named(DiscoveryType::Dns, "a.test");
        services.report_one("", &service, nodes(&[5]));
        assert_eq!(services.nodes(&service).unwrap().len(), 1);
        services.retain(DiscoveryType::Dns, &BTreeSet::new());
        assert!(services.nodes(&service).is_none());
    }

    #[test]
    fn there_are_bounds() {
        let services = Services::new(&Discovery::default());
        let many: Vec<u16> = (1..=5_000).collect();
        services.report(DiscoveryType::Consul, "a", found(&[("web", &many)]));
        assert_eq!(ports(&services, "web").map(|ports| ports.len()), Some(MAX_NODES));
    }
}
