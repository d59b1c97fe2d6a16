//! The address of a Redis, and the way to speak with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use weir_net::Network;
use weir_net::tls::client::Setup;

/// Settings of a client.
pub struct Settings {
    /// Servers, and how they work together.
    pub topology: Topology,
    /// User of an access control list; `None`: the default user.
    pub username: Option<String>,
    /// Password of the servers; `None`: they ask for none.
    pub password: Option<String>,
    /// Number of the database; a cluster has only 0.
    pub database: u32,
    /// The set-up of TLS; `None`: without.
    pub tls: Option<Setup>,
    /// Longest time to connect, with TLS and authentication.
    pub connect_timeout: Duration,
    /// Longest time from a command to its reply.
    pub timeout: Duration,
    /// The time for which a connection stays open without a command.
    pub keepalive: Duration,
    /// The network that connections are made with.
    pub network: Arc<Network>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("topology", &self.topology).finish_non_exhaustive()
    }
}

/// Servers, and how they work together.
pub enum Topology {
    /// One server.
    Single(Server),
    /// A master and its replicas, watched by sentinels.
    Sentinel {
        /// The sentinels, in the order in which they are asked.
        sentinels: Box<[Server]>,
        /// The name under which they know the master.
        master: String,
        /// User that the sentinels ask for.
        username: Option<String>,
        /// Password that the sentinels ask for.
        password: Option<String>,
    },
    /// Servers that share the keys; some of them are enough to learn of the others.
    Cluster(Box<[Server]>),
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(server) => write!(f, "redis at {server}"),
            Self::Sentinel { sentinels, master, .. } => write!(f, "master {master} of sentinels {sentinels:?}"),
            Self::Cluster(servers) => write!(f, "cluster of {servers:?}"),
        }
    }
}

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// A name, an address, or `unix:` and a path.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
}

impl Server {
    /// Reads `host:port`; an IPv6 address stands in brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() {
            return None;
        }
        Some(Self { host: host.into(), port: port.parse().ok().filter(|port| *port > 0)? })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains('/') {
            f.write_str(host)
        } else if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn addresses_are_read_as_they_are_told() {
        for text in ["redis.test:6379", "127.0.0.1:1", "[::1]:65535"] {
            assert_eq!(Server::parse(text).map(|server| server.to_string()).as_deref(), Some(text));
        }
        for text in ["redis.test", ":6379", "redis.test:0", "redis.test:70000", "redis.test:", ""] {
            assert_eq!(Server::parse(text), None, "{text}");
        }
    }
}
