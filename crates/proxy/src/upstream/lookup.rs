//! Resolution of one name: the hosts file, then name servers, with the system's search domains.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_config::NodeHost;
use weir_config::file::{self, MAX_FILE_BYTES};
use weir_config::settings::{Dns, DnsRecord};

/// Tries of a question within `dns.timeout`.
const TRIES: u32 = 3;

/// Most targets of one service, and most of them resolved at once.
const MAX_TARGETS: usize = 64;
const TARGETS_AT_ONCE: usize = 4;

/// Stand-in for the system's name servers where it configures none, as in libc.
const LOCAL_SERVER: &[u8] = b"\nnameserver 127.0.0.1\n";

/// Resolver of names.
pub(super) struct Lookup {
    resolver: TokioResolver,
    hosts: Hosts,
    timeout: Duration,
}

/// Result of resolving a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) found: Vec<Found>,
    /// Time for which the answer holds; `None`: until the hosts file changes.
    pub(super) ttl: Option<Duration>,
    /// The name that was found, with its search domain; `None` where no name server was queried for addresses.
    name: Option<Name>,
}

/// An address of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) ip: IpAddr,
    /// Port from an SRV record; `None`: the node's own.
    pub(super) port: Option<u16>,
    pub(super) priority: u16,
    pub(super) weight: u32,
}

impl Lookup {
    /// Reads the hosts file and the system's configuration, and takes the configured servers instead of its own.
    ///
    /// # Errors
    /// A file cannot be read or understood. One that is not there is empty.
    pub(super) fn new(dns: &Dns) -> Result<Self, String> {
        let fault = |path: &str| {
            let path = path.to_owned();
            move |error: &dyn std::fmt::Display| format!("{path}: {error}")
        };
        let mut text = read(&dns.resolv_conf).map_err(|e| fault(&dns.resolv_conf)(&e))?;
        // The search domains count even where no server is named.
        let (system, mut options) = match parse_resolv_conf(&text) {
            Ok(parsed) => parsed,
            Err(_) => {
                text.extend_from_slice(LOCAL_SERVER);
                parse_resolv_conf(&text).map_err(|e| fault(&dns.resolv_conf)(&e))?
            }
        };
        let mut servers = system.name_servers().to_vec();
        if !dns.servers.is_empty() {
            servers = dns.servers.iter().map(|server| name_server(server.0)).collect();
        }
        // Without search domains, that of the machine's own name is one.
        let mut search = system.search().to_vec();
        if search.is_empty() {
            search.extend(system.domain().cloned());
        }
        options.timeout = dns.timeout.duration() / TRIES;
        options.attempts = TRIES as usize - 1;
        // Names are resolved when due, and failed ones again soon: a cache would return the old result.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let config = ResolverConfig::from_parts(None, search, servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(|e| format!("the DNS resolver: {e}"))?;
        let mut hosts = Hosts::default();
        let text = read(&dns.hosts).map_err(|e| fault(&dns.hosts)(&e))?;
        hosts.read_hosts_conf(&*text).map_err(|e| fault(&dns.hosts)(&e))?;
        Ok(Self { resolver, hosts, timeout: dns.timeout.duration() })
    }

    /// Resolves a name: the targets of its SRV records if it is that of a service, else its addresses. For an address
    /// family that cannot be resolved now, the addresses of `before` are kept.
    ///
    /// # Errors
    /// Nothing was found, for whatever reason.
    pub(super) async fn find(self: Arc<Self>, name: &str, before: Option<Answer>) -> Result<Answer, String> {
        if NodeHost::is_service_name(name) {
            return self.service(name).await;
        }
        let mut answer = self.addresses(name).await?;
        for is_v4 in [true, false] {
            let of_family = |found: &&Found| found.ip.is_ipv4() == is_v4;
            let kept: Vec<Found> = before.iter().flat_map(|before| &before.found).filter(of_family).copied().collect();
            let (Some(full_name), false) = (&answer.name, kept.is_empty()) else { continue };
            if answer.found.iter().any(|found| found.ip.is_ipv4() == is_v4) {
                continue;
            }
            // A lookup of both families does not show whether a family is gone or its query failed.
            let kind = if is_v4 { RecordType::A } else { RecordType::AAAA };
            let asked = timeout(self.timeout, self.resolver.lookup(full_name.clone(), kind)).await;
            match asked {
                Ok(Ok(late)) => answer.found.extend(late.answers().iter().filter_map(|r| r.data.ip_addr()).map(plain)),
                Ok(Err(error)) if error.is_no_records_found() => {}
                _ => answer.found.extend(kept),
            }
        }
        Ok(answer)
    }

    /// Resolves a name by the types of records in `order`, until there is an answer; `last` is the type of the answer
    /// before. Returns the type of the answer as well.
    ///
    /// # Errors
    /// Nothing was found, for whatever reason: that of the last type.
    pub(super) async fn records(
        self: Arc<Self>,
        name: &str,
        order: &[DnsRecord],
        last: Option<DnsRecord>,
    ) -> Result<(Answer, DnsRecord), String> {
        let kinds = order.iter().filter_map(|kind| if *kind == DnsRecord::Last { last } else { Some(*kind) });
        let mut failed = "no type of records is asked for".to_owned();
        for kind in kinds {
            let found = match kind {
                DnsRecord::Srv => Arc::clone(&self).service(name).await,
                DnsRecord::A => self.of_type(name, RecordType::A).await,
                DnsRecord::Aaaa => self.of_type(name, RecordType::AAAA).await,
                // Aliases are followed with every other type.
                DnsRecord::Cname | DnsRecord::Last => continue,
            };
            match found {
                Ok(answer) => return Ok((answer, kind)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn of_type(&self, name: &str, kind: RecordType) -> Result<Answer, String> {
        let answer = timeout(self.timeout, self.resolver.lookup(name, kind)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        let found: Vec<Found> = answer.answers().iter().filter_map(|r| r.data.ip_addr()).map(plain).collect();
        if found.is_empty() {
            return Err("the answer has no address".into());
        }
        Ok(Answer { found, ttl: Some(until(answer.valid_until())), name: None })
    }

    async fn addresses(&self, name: &str) -> Result<Answer, String> {
        let listed: Vec<Found> = self.listed(name).into_iter().map(plain).collect();
        if !listed.is_empty() {
            return Ok(Answer { found: listed, ttl: None, name: None });
        }
        let answer = timeout(self.timeout, self.resolver.lookup_ip(name)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        let found: Vec<Found> = answer.iter().map(plain).collect();
        if found.is_empty() {
            return Err("the answer has no address".into());
        }
        Ok(Answer { found, ttl: Some(until(answer.valid_until())), name: Some(answer.query().name().clone()) })
    }

    /// Addresses from the hosts file. A name listed there, even with one family alone, is not resolved elsewhere.
    fn listed(&self, name: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_str(name) else { return Vec::new() };
        let kinds = [RecordType::AAAA, RecordType::A];
        let lookups =
            kinds.into_iter().filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        lookups.flat_map(|found| found.answers().iter().filter_map(|r| r.data.ip_addr()).collect::<Vec<_>>()).collect()
    }

    async fn service(self: Arc<Self>, name: &str) -> Result<Answer, String> {
        let answer = timeout(self.timeout, self.resolver.srv_lookup(name)).await;
        let answer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
        let records = answer.answers().iter().filter_map(|record| match &record.data {
            // The root as target means that the service does not exist (RFC 2782).
            RData::SRV(srv) if !srv.target.is_root() && srv.port > 0 => Some(srv.clone()),
            _ => None,
        });
        let mut records: Vec<SRV> = records.collect();
        records.sort_by_key(|srv| (srv.priority, srv.port));
        records.truncate(MAX_TARGETS);
        if records.is_empty() {
            return Err("the answer has no SRV record with a target".into());
        }
        let weighted = records.iter().any(|srv| srv.weight > 0);
        let mut ttl = until(answer.valid_until());
        let (mut found, mut failed) = (Vec::new(), None);
        let mut waiting = records.into_iter();
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < TARGETS_AT_ONCE
                && let Some(srv) = waiting.next()
            {
                let lookup = Arc::clone(&self);
                asked.spawn(async move { (lookup.addresses(&srv.target.to_ascii()).await, srv) });
            }
            match asked.join_next().await {
                None => break,
                Some(Ok((Ok(target), srv))) => {
                    ttl = ttl.min(target.ttl.unwrap_or(ttl));
                    found.extend(shares(&srv, weighted, &target.found));
                }
                Some(Ok((Err(error), srv))) => failed = Some(format!("its target {}: {error}", srv.target)),
                Some(Err(error)) => failed = Some(error.to_string()),
            }
        }
        match failed {
            Some(error) if found.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(name, error, "a target of a service has no address; the others are used");
                Ok(Answer { found, ttl: Some(ttl), name: None })
            }
            None => Ok(Answer { found, ttl: Some(ttl), name: None }),
        }
    }
}

/// An address that has its port from the node, like all others of its name.
fn plain(ip: IpAddr) -> Found {
    Found { ip, port: None, priority: 0, weight: 1 }
}

/// The addresses of a target, which share its weight. Beside heavier ones, a target of weight 0 has a very small share
/// (RFC 2782).
fn shares(srv: &SRV, weighted: bool, target: &[Found]) -> Vec<Found> {
    /// Units of a weight of 1: up to 10 addresses share them evenly.
    const UNIT: u32 = 2520;
    let weight = match srv.weight {
        0 if weighted => UNIT / 100,
        0 => UNIT,
        weight => u32::from(weight) * UNIT,
    };
    let share = (weight / target.len().max(1) as u32).max(1);
    let place = |found: &Found| Found { port: Some(srv.port), priority: srv.priority, weight: share, ..*found };
    target.iter().map(place).collect()
}

fn name_server(addr: std::net::SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(addr.ip());
    for connection in &mut server.connections {
        connection.port = addr.port();
    }
    server
}

/// The bytes of a file; none when there is no such file.
fn read(path: &str) -> io::Result<Vec<u8>> {
    match file::read(path.as_ref(), MAX_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Fingerprint of the system's files, for detecting changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp([Option<(u64, u64, SystemTime)>; 2]);

impl Stamp {
    pub(super) fn of(dns: &Dns) -> Self {
        Self([&dns.hosts, &dns.resolv_conf].map(|path| {
            let data = fs::metadata(path).ok()?;
            Some((data.ino(), data.len(), data.modified().ok()?))
        }))
    }
}

#[allow(clippy::disallowed_methods, reason = "the resolver's answers expire on this clock; off the path of a request")]
fn until(at: std::time::Instant) -> Duration {
    at.saturating_duration_since(std::time::Instant::now())
}
