//! Services that name servers know: `discovery_type: dns`. Each name is resolved when its time to live is over, and the
//! last good answer stays in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use weir_config::settings::{Discovery, Dns, DnsRecord};
use weir_config::{DiscoveryType, NodeAddr, NodeHost};

use super::lookup::{Answer, Found, Lookup};
use super::services::{Service, Services};
use crate::clock;

/// Pause before a failed name is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Least time between two lookups of a name.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// Most names that are looked up at once.
const MAX_LOOKUPS: usize = 64;

/// Keeps the nodes of services fresh that name servers know.
pub struct DnsServices {
    services: Arc<Services>,
    lookup: Arc<Lookup>,
    dns: Dns,
    order: Arc<[DnsRecord]>,
    names: BTreeMap<Service, Name>,
    under_way: JoinSet<(Service, Resolved)>,
}

/// An answer, with the type of its records.
type Resolved = Result<(Answer, DnsRecord), String>;

/// State of a name.
#[derive(Debug, Default)]
struct Name {
    /// Time of the next lookup in microseconds of the clock; `None` while one is under way.
    due: Option<u64>,
    /// The type of the records that were found before.
    last: Option<DnsRecord>,
    is_failing: bool,
}

impl std::fmt::Debug for DnsServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsServices").field("names", &self.names).finish_non_exhaustive()
    }
}

impl DnsServices {
    /// The name servers of the settings; `None` where they name none. Limits of time are those of `dns`.
    ///
    /// # Errors
    /// The file of `discovery.dns.resolv_conf` cannot be read.
    pub(crate) fn new(services: &Arc<Services>, dns: &Dns, discovery: &Discovery) -> Result<Option<Self>, String> {
        let own = &discovery.dns;
        if !own.is_set() {
            return Ok(None);
        }
        let mut dns = Dns { servers: own.servers.clone(), ..dns.clone() };
        if !own.resolv_conf.is_empty() {
            dns.resolv_conf.clone_from(&own.resolv_conf);
        }
        Ok(Some(Self {
            services: Arc::clone(services),
            lookup: Arc::new(Lookup::new(&dns)?),
            dns,
            order: own.order.clone().into(),
            names: BTreeMap::new(),
            under_way: JoinSet::new(),
        }))
    }

    /// Resolves the names that upstreams have, for ever.
    pub async fn run(mut self) {
        let mut wanted = self.services.wanted();
        loop {
            let services = Arc::clone(&wanted.borrow_and_update());
            let is_mine = |service: &&Service| service.registry == DiscoveryType::Dns;
            self.names.retain(|service, _| services.contains(service));
            for service in services.iter().filter(is_mine) {
                self.names.entry(service.clone()).or_insert_with(|| Name { due: Some(0), ..Name::default() });
            }
            self.services.retain(DiscoveryType::Dns, &services);
            self.start_due();
            let next = self.names.values().filter_map(|name| name.due).min();
            let wait = match next {
                Some(due) if self.under_way.len() < MAX_LOOKUPS => due.saturating_sub(clock::now_us()),
                _ => 3_600_000_000,
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                Some(done) = self.under_way.join_next() => match done {
                    Ok((service, found)) => self.take(&service, found),
                    Err(error) => tracing::error!(%error, "a lookup of a service has died"),
                },
                () = tokio::time::sleep(Duration::from_micros(wait)) => {}
            }
        }
    }

    fn start_due(&mut self) {
        let now = clock::now_us();
        let due = self.names.iter_mut().filter(|(_, name)| name.due.is_some_and(|due| due <= now));
        for (service, name) in due.take(MAX_LOOKUPS.saturating_sub(self.under_way.len())) {
            name.due = None;
            let (lookup, order, last) = (Arc::clone(&self.lookup), Arc::clone(&self.order), name.last);
            let service = service.clone();
            self.under_way.spawn(async move {
                let (host, _) = split(&service.name);
                let found = lookup.records(host, &order, last).await;
                (service, found)
            });
        }
    }

    fn take(&mut self, service: &Service, found: Resolved) {
        let Some(name) = self.names.get_mut(service) else { return };
        let wait = match found {
            Ok((answer, kind)) => {
                if std::mem::take(&mut name.is_failing) {
                    tracing::info!(service = service.name, "a service can be resolved again");
                }
                name.last = Some(kind);
                let (min, max) = (self.dns.min_ttl.duration(), self.dns.max_ttl.duration());
                let (_, port) = split(&service.name);
                self.services.report_one("", service, nodes(&answer.found, port));
                answer.ttl.unwrap_or(max).clamp(min, max.max(min)).max(LEAST_WAIT)
            }
            Err(error) => {
                if !std::mem::replace(&mut name.is_failing, true) {
                    let service = &service.name;
                    tracing::warn!(service, error, "cannot resolve a service; its last nodes, if any, stay in use");
                }
                self.services.report_failure(DiscoveryType::Dns, Some(service));
                RETRY
            }
        };
        name.due = Some(clock::now_us() + wait.as_micros() as u64);
    }
}

/// Host and port of a service.
fn split(name: &str) -> (&str, Option<u16>) {
    match name.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (host, Some(port)),
        None => (name, None),
    }
}

/// The nodes of an answer. A port in the name of the service takes precedence over that of a record.
fn nodes(found: &[Found], port: Option<u16>) -> Vec<NodeAddr> {
    let common = found.iter().fold(0, |common, found| gcd(common, found.weight)).max(1);
    let node = |found: &Found| NodeAddr {
        host: NodeHost::Ip(found.ip),
        port: port.or(found.port).unwrap_or(0),
        weight: found.weight / common,
        // Records of a lower priority go first (RFC 2782), nodes of a higher one.
        priority: -i64::from(found.priority),
    };
    let mut nodes: Vec<NodeAddr> = found.iter().map(node).collect();
    // Answers come in any order, which is no change.
    nodes.sort_by_key(|node| (-node.priority, node.to_string()));
    nodes
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{Found, nodes, split};

    #[test]
    fn a_name_may_have_a_port() {
        assert_eq!(split("a.test"), ("a.test", None));
        assert_eq!(split("a.test:81"), ("a.test", Some(81)));
        assert_eq!(split("a.test:x"), ("a.test:x", None));
    }

    #[test]
    fn weights_are_as_small_as_can_be() {
        let found =
            |last: u8, priority, weight| Found { ip: [10, 0, 0, last].into(), port: Some(80), priority, weight };
        let made = nodes(&[found(2, 1, 5040), found(1, 0, 2520), found(3, 1, 2520)], None);
        let shown: Vec<_> = made.iter().map(|node| (node.to_string(), node.weight, node.priority)).collect();
        let of = |name: &str, weight, priority| (name.to_owned(), weight, priority);
        assert_eq!(shown, [of("10.0.0.1:80", 1, 0), of("10.0.0.2:80", 2, -1), of("10.0.0.3:80", 1, -1)]);
        assert_eq!(nodes(&[found(1, 0, 1)], Some(81))[0].port, 81);
    }
}
