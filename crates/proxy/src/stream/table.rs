//! Stream routes, ready to be matched.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use weir_config::Scheme;
use weir_plugin::{Client, Tables};

use crate::chain::Chain;

/// The stream routes of a configuration, in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    pub(crate) routes: Box<[StreamRoute]>,
    /// Names for variables, logs and metrics; there is no route for requests among them.
    pub(crate) tables: Arc<Tables>,
}

/// A stream route.
#[derive(Debug)]
pub(crate) struct StreamRoute {
    pub(crate) conditions: Conditions,
    pub(crate) chain: Arc<Chain>,
    /// Number of its upstream. `None`: it has none, and its streams end at once unless a plugin chooses one.
    pub(crate) upstream: Option<u32>,
}

/// Conditions of a route for its streams.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) server_port: Option<u16>,
    pub(crate) server_addr: Option<IpNet>,
    pub(crate) remote_addr: Option<IpNet>,
    pub(crate) name: Option<Name>,
    /// Scheme of its upstream, which takes what comes over TCP, over UDP, or both.
    pub(crate) scheme: Scheme,
}

/// A name that clients ask for, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Exact(Box<str>),
    /// The text behind the first label.
    Below(Box<str>),
    Any,
}

impl Name {
    pub(crate) fn new(sni: &str) -> Self {
        match sni.strip_prefix("*.") {
            _ if sni == "*" => Self::Any,
            Some(suffix) => Self::Below(suffix.into()),
            None => Self::Exact(sni.into()),
        }
    }

    fn is_for(&self, sni: &str) -> bool {
        let sni = sni.strip_suffix('.').unwrap_or(sni);
        match self {
            Self::Exact(name) => name.eq_ignore_ascii_case(sni),
            Self::Below(suffix) => {
                let parent = sni.split_once('.').map(|(_, parent)| parent);
                parent.is_some_and(|parent| parent.eq_ignore_ascii_case(suffix))
            }
            Self::Any => true,
        }
    }

    /// Less is more specific.
    fn rank(&self) -> u8 {
        match self {
            Self::Exact(_) => 0,
            Self::Below(_) => 1,
            Self::Any => 2,
        }
    }
}

/// Transport of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// True when an upstream with this scheme takes what is carried so. `http` is what an upstream has that says nothing.
    pub(crate) fn is_for(self, scheme: Scheme) -> bool {
        match self {
            Self::Tcp => scheme != Scheme::Udp,
            Self::Udp => matches!(scheme, Scheme::Udp | Scheme::Http),
        }
    }

    /// Value of the variable `protocol`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl Conditions {
    fn admit(&self, client: &Client, transport: Transport) -> bool {
        let is_in =
            |range: &Option<IpNet>, addr: IpAddr| range.is_none_or(|range| range.contains(&addr.to_canonical()));
        transport.is_for(self.scheme)
            && self.server_port.is_none_or(|port| port == client.local.port())
            && is_in(&self.server_addr, client.local.ip())
            && is_in(&self.remote_addr, client.addr)
    }
}

impl StreamTable {
    /// Position of the route that takes a stream: with the most specific name, else the first without one.
    pub(crate) fn find(&self, client: &Client, sni: Option<&str>, transport: Transport) -> Option<u32> {
        let admitted = || (0u32..).zip(&self.routes).filter(|(_, route)| route.conditions.admit(client, transport));
        let named = sni.and_then(|sni| {
            let named = admitted().filter_map(|(at, route)| Some((at, route.conditions.name.as_ref()?)));
            named.filter(|(_, name)| name.is_for(sni)).min_by_key(|(_, name)| name.rank()).map(|(at, _)| at)
        });
        named.or_else(|| admitted().find(|(_, route)| route.conditions.name.is_none()).map(|(at, _)| at))
    }

    /// True if the name that a client of TCP asks for makes a difference.
    pub(crate) fn asks_for_name(&self, client: &Client) -> bool {
        self.routes
            .iter()
            .any(|route| route.conditions.name.is_some() && route.conditions.admit(client, Transport::Tcp))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::{Chain, Client, Conditions, Name, Scheme, StreamRoute, StreamTable, Transport};

    fn route(port: Option<u16>, remote: Option<&str>, sni: Option<&str>) -> StreamRoute {
        let conditions = Conditions {
            server_port: port,
            server_addr: None,
            remote_addr: remote.map(|range| range.parse().expect("a range")),
            name: sni.map(Name::new),
            scheme: Scheme::Tcp,
        };
        StreamRoute { conditions, chain: Chain::nothing().clone(), upstream: Some(0) }
    }

    #[test]
    fn names_come_first_and_then_the_order() {
        let table = StreamTable {
            routes: Box::new([
                route(Some(1), Some("10.0.0.0/8"), None),
                route(None, None, Some("*")),
                route(None, None, Some("*.a.test")),
                route(None, None, Some("b.a.test")),
                route(Some(1), None, None),
                route(Some(1), Some("10.0.0.1/32"), None),
            ]),
            ..StreamTable::default()
        };
        let cases: [(&str, u16, Option<&str>, Option<u32>); 8] = [
            ("10.0.0.1", 1, None, Some(0)),
            ("::ffff:10.0.0.1", 1, None, Some(0)),
            ("11.0.0.1", 1, None, Some(4)),
            ("11.0.0.1", 2, None, None),
            ("11.0.0.1", 2, Some("B.a.test."), Some(3)),
            ("11.0.0.1", 2, Some("c.a.test"), Some(2)),
            ("11.0.0.1", 2, Some("d.c.a.test"), Some(1)),
            ("10.0.0.1", 1, Some("x"), Some(1)),
        ];
        for (addr, port, sni, expected) in cases {
            let addr = addr.parse().expect("an address");
            let local = SocketAddr::new([127, 0, 0, 1].into(), port);
            let client = Client { addr, local, ..Client::default() };
            assert_eq!(table.find(&client, sni, Transport::Tcp), expected, "{addr} {port} {sni:?}");
            assert_eq!(table.find(&client, sni, Transport::Udp), None);
        }
    }
}
