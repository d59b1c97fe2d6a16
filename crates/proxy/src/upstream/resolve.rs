//! Names of nodes, resolved off the path of a request, again when their time to live is over. What a name last
//! resolved to stays in use when it cannot be resolved any more.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use weir_config::NodeHost;
use weir_config::settings::Dns;

use super::endpoint::{Endpoint, Endpoints};
use crate::clock;

/// How long to wait before a failed name is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the addresses of named endpoints fresh.
pub struct Resolver {
    endpoints: Arc<Endpoints>,
    resolver: TokioResolver,
    min_ttl: Duration,
    max_ttl: Duration,
    /// By name: when to ask again (clock microseconds).
    due: HashMap<String, u64>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// A resolver with the configured servers, or the system's.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub(crate) fn new(endpoints: Arc<Endpoints>, dns: &Dns) -> Result<Self, String> {
        let mut builder = if dns.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|e| format!("the system's DNS configuration: {e}"))?
        } else {
            let mut config = ResolverConfig::default();
            for server in &dns.servers {
                let mut named = NameServerConfig::udp_and_tcp(server.0.ip());
                for connection in &mut named.connections {
                    connection.port = server.0.port();
                }
                config.add_name_server(named);
            }
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        builder.options_mut().timeout = dns.timeout.duration();
        let resolver = builder.build().map_err(|e| format!("the DNS resolver: {e}"))?;
        let (min_ttl, max_ttl) = (dns.min_ttl.duration(), dns.max_ttl.duration());
        Ok(Self { endpoints, resolver, min_ttl, max_ttl, due: HashMap::new() })
    }

    /// Resolves the names that are due, and gives when the next one is.
    pub async fn run_due(&mut self) -> Duration {
        let mut by_name: HashMap<String, Vec<Arc<Endpoint>>> = HashMap::new();
        for endpoint in self.endpoints.named() {
            if let NodeHost::Name(name) = &endpoint.host {
                by_name.entry(name.clone()).or_default().push(endpoint);
            }
        }
        self.due.retain(|name, _| by_name.contains_key(name));
        let now = clock::now_us();
        let mut lookups = tokio::task::JoinSet::new();
        for (name, endpoints) in by_name {
            let known = endpoints.iter().all(|e| e.is_resolved());
            if known && self.due.get(&name).is_some_and(|due| *due > now) {
                continue;
            }
            if self.due.get(&name).is_some_and(|due| *due > now) && !endpoints.iter().any(|e| e.is_resolved()) {
                continue;
            }
            let resolver = self.resolver.clone();
            lookups.spawn(async move {
                let found = resolver.lookup_ip(name.as_str()).await;
                (name, endpoints, found)
            });
        }
        while let Some(done) = lookups.join_next().await {
            let Ok((name, endpoints, found)) = done else { continue };
            let wait = match found {
                Ok(answer) => {
                    let ips: Vec<_> = answer.iter().collect();
                    for endpoint in &endpoints {
                        endpoint.set_addrs(ips.iter().map(|ip| SocketAddr::new(*ip, endpoint.port)).collect());
                    }
                    let ttl = answer.valid_until().saturating_duration_since(now_instant());
                    ttl.clamp(self.min_ttl, self.max_ttl.max(self.min_ttl))
                }
                Err(error) => {
                    tracing::warn!(name, %error, "cannot resolve an upstream node; its last addresses stay in use");
                    RETRY
                }
            };
            self.due.insert(name, clock::now_us() + wait.as_micros() as u64);
        }
        let now = clock::now_us();
        let next = self.due.values().min().map_or(u64::MAX, |due| due.saturating_sub(now));
        Duration::from_micros(next).clamp(Duration::from_millis(50), Duration::from_secs(3600))
    }
}

#[allow(clippy::disallowed_methods, reason = "the resolver's answers expire on this clock; off the path of a request")]
fn now_instant() -> std::time::Instant {
    std::time::Instant::now()
}
