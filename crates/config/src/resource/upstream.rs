use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::head::resource;
use super::{Balancer, Checks, HashOn, Id, NodeFault, Origin, Secret};
use crate::diagnostic::{Diagnostic, Hint};
use crate::load::prepare_upstream;
use crate::node::{Node, Step};
use crate::schema::{Checker, ignore_unknown};
use crate::secret::is_reference;
use crate::settings::{UNIX, unix_path};

resource! {
    /// Targets of requests: nodes, and how to speak to them. The id of an upstream that is written in place has no
    /// meaning.
    pub struct Upstream {
        /// The nodes: a mapping from `host:port` to weight, or a list of `{host, port, weight, priority}`. An empty one
        /// answers 503. A name stands for all its addresses, `_SERVICE._tcp.DOMAIN` for the targets of its SRV records. Left
        /// out beside `service_name`.
        pub nodes: Nodes,
        /// Algorithm that chooses a node for a request.
        #[serde(default)]
        pub r#type: Balancer,
        /// Input of the hash of `type: chash`. A request without it is hashed on the client's address.
        #[serde(default)]
        pub hash_on: HashOn,
        /// The key of `type: chash`, by `hash_on`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub key: Option<String>,
        /// Further tries of a request on other nodes after a failure to connect, send or read, where that is safe.
        /// Unset: one for each further node; 0: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retries: Option<u32>,
        /// After how many seconds, over all tries, no further try is made; 0: no limit.
        #[serde(default, with = "seconds")]
        #[schemars(with = "f64", range(min = 0))]
        pub retry_timeout: Duration,
        /// Time limits towards the nodes.
        #[serde(default)]
        pub timeout: Timeout,
        /// Protocol spoken to the nodes.
        #[serde(default)]
        pub scheme: Scheme,
        /// HTTP/2 to the nodes: with `scheme: http` by prior knowledge, so that all nodes have to speak it; with
        /// `scheme: https` where a node chooses it by ALPN, and HTTP/1.1 where not. Requests of many clients share a
        /// connection. An extension.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub http2: bool,
        /// The set-up of TLS with `scheme: https`, `grpcs` and `tls`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tls: Option<UpstreamTls>,
        /// Host that the nodes receive.
        #[serde(default)]
        pub pass_host: PassHost,
        /// The Host for `pass_host: rewrite`, which needs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream_host: Option<UpstreamHost>,
        /// Idle connections that are kept for further requests.
        #[serde(default)]
        pub keepalive_pool: KeepalivePool,
        /// Name of the service whose nodes a registry knows, in the place of `nodes`; see [service
        /// discovery](service-discovery.md). A service without a node answers 503.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = 2048))]
        pub service_name: Option<String>,
        /// The registry that knows `service_name`. Its servers stand in the settings, under `discovery`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub discovery_type: Option<DiscoveryType>,
        /// Arguments of service discovery, for `discovery_type: nacos` and `http`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub discovery_args: Option<DiscoveryArgs>,
        /// The PROXY header that begins each connection to a node and carries the client's address and port. Such a
        /// connection carries one request. An extension: APISIX has it for streams only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub proxy_protocol: Option<ProxyHeader>,
        /// A server that is reached by way of the nodes, which are forward proxies. An extension.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tunnel: Option<Tunnel>,
        /// Health checks of the nodes; see [health checks](health-checks.md). Unset: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub checks: Option<Checks>,
    }
}

/// A server behind forward proxies: they are asked for a tunnel to it (CONNECT, RFC 9110 section 9.3.6), in which everything
/// else takes place, TLS included.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// Name or address of the server, which the proxy resolves.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[0-9a-zA-Z._:\[\]-]+$"), extend("x-expected" = "a host"))]
    pub host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// The value of `Proxy-Authorization`: `Basic` and user and password in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^[ -~]+$"), extend("x-expected" = "the value of a field"))]
    pub authorization: Option<Secret>,
}

/// A registry that knows the nodes of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiscoveryType {
    /// Name servers.
    Dns,
    /// The catalog of Consul.
    Consul,
    /// The key-value store of Consul.
    ConsulKv,
    /// Nacos.
    Nacos,
    /// Eureka.
    Eureka,
    /// Kubernetes.
    Kubernetes,
    /// Lists in JSON, each at the URL that is its name. An extension.
    Http,
}

impl DiscoveryType {
    /// All registries.
    pub const ALL: [Self; 7] =
        [Self::Dns, Self::Consul, Self::ConsulKv, Self::Nacos, Self::Eureka, Self::Kubernetes, Self::Http];

    /// Name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Consul => "consul",
            Self::ConsulKv => "consul_kv",
            Self::Nacos => "nacos",
            Self::Eureka => "eureka",
            Self::Kubernetes => "kubernetes",
            Self::Http => "http",
        }
    }
}

/// Arguments of service discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryArgs {
    /// Namespace of the service in Nacos; `public` unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub namespace_id: Option<String>,
    /// Group of the service in Nacos; `DEFAULT_GROUP` unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub group_name: Option<String>,
    /// Path to the host in an entry of a list: names and numbers with dots between them. With `http` alone, as those that
    /// follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub data_path: Option<String>,
    /// Path to the port in an entry; none: it stands behind the host, or is 80, or 443 in a URL with `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub port_path: Option<String>,
    /// Path to the entries in the answer, or to the text in which they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub parent_path: Option<String>,
    /// The entries are in a text at `parent_path`, which is JSON itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<bool>,
    /// All entries are nodes, and not the first alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// Seconds between two questions; 60 unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub interval: Option<u32>,
}

/// The version of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Protocol spoken to the nodes of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// HTTP/1.1 without TLS; port 80 where a node has none.
    #[default]
    Http,
    /// HTTP/1.1 over TLS; port 443 where a node has none. The server name (SNI) is the Host that the node receives.
    Https,
    /// gRPC: HTTP/2 without TLS, by prior knowledge; port 80 where a node has none.
    Grpc,
    /// gRPC over TLS; port 443 where a node has none.
    Grpcs,
    /// Bytes over TCP, for stream routes.
    Tcp,
    /// Bytes over TLS, for stream routes. The name asked for (SNI) is the one that the client asked for, else the
    /// node's.
    Tls,
    /// Datagrams of UDP, for stream routes.
    Udp,
}

/// TLS towards the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTls {
    /// A certificate to show to the nodes, in PEM, with the intermediate ones after it, or a reference to one. Needs
    /// `client_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 128, max = 65536))]
    pub client_cert: Option<String>,
    /// Private key of `client_cert` in PEM, or a reference to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 65536))]
    pub client_key: Option<Secret>,
    /// The same by the id of an item of `ssls` with `type: client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert_id: Option<Id>,
    /// Verification of the nodes' certificates: by an authority of `tls.trusted_certificate` in the settings and for
    /// the server name (SNI). Off by default, as in APISIX.
    pub verify: bool,
    /// Certificates of the authorities that `verify` goes by for these nodes, in PEM, in the place of
    /// `tls.trusted_certificate`. An extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 128, max = 1048576))]
    pub ca: Option<String>,
}

/// Host that the nodes receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PassHost {
    /// The client's.
    #[default]
    Pass,
    /// The node's own name, with its port where that is not the scheme's.
    Node,
    /// The node's own name, never with its port: set by plugins, not by configurations.
    #[serde(skip)]
    NodeName,
    /// `upstream_host`.
    Rewrite,
}

/// A host, with or without a port, for requests to the upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct UpstreamHost(String);

/// Time limits towards an upstream; all three stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    /// Seconds to connect, decimals allowed.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub connect: Duration,
    /// Seconds between two writes of the request.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub send: Duration,
    /// Seconds between two reads of the response.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub read: Duration,
    /// True where nothing was written, so that a stream is idle by `timeouts.stream_idle` of the settings.
    #[serde(skip)]
    pub is_default: bool,
}

/// Idle connections to an upstream that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeepalivePool {
    /// Idle connections that each worker keeps. Those beyond are closed within a second.
    #[schemars(range(min = 1))]
    pub size: u32,
    /// Seconds after which an idle connection is closed; 0: never.
    #[serde(with = "seconds")]
    #[schemars(with = "f64", range(min = 0))]
    pub idle_timeout: Duration,
    /// Requests after which a connection is closed.
    #[schemars(range(min = 1))]
    pub requests: u32,
}

/// The nodes of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(pub Vec<NodeAddr>);

/// A node of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NodeAddr {
    /// Address or name of the node.
    pub host: NodeHost,
    /// Port of the node; the scheme's where none was written, 0 for a service, whose SRV records have it, and for a
    /// Unix socket.
    pub port: u16,
    /// Share of the requests; 0: none.
    pub weight: u32,
    /// Nodes of a lower priority are used when none of a higher one can be.
    pub priority: i64,
}

/// The host of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeHost {
    /// An address.
    Ip(IpAddr),
    /// A name to be resolved, as it was written; `_SERVICE._tcp.DOMAIN` is that of a service.
    Name(String),
    /// The absolute path of a Unix socket.
    Unix(Arc<str>),
}

/// True if an unknown field is allowed at this place, as in APISIX: in `timeout`, `keepalive_pool` and `checks` of an
/// upstream or of an item with one. A field that is nearly the name of a known one is taken for a slip.
pub(crate) fn is_open(fault: &Diagnostic, way: &[Step]) -> bool {
    let is_slip = matches!(fault.hint, Some(Hint::DidYouMean(_)));
    let parents = way.split_last().map_or(&[][..], |(_, parents)| parents);
    let upstream = parents.iter().position(|step| *step == Step::Name("upstream".into())).map_or(0, |at| at + 1);
    let place = parents.get(upstream..).and_then(<[_]>::first);
    !is_slip && matches!(place, Some(Step::Name(name)) if matches!(&**name, "timeout" | "keepalive_pool" | "checks"))
}

impl Upstream {
    /// Reads an upstream that is written in a plugin's configuration, as strictly as a route's own. Returns the
    /// upstream, unless there is an error, and all findings, with paths relative to the upstream.
    pub fn from_node(node: &Node) -> (Option<Self>, Vec<Diagnostic>) {
        let (mut node, mut found) = (node.clone(), Vec::new());
        prepare_upstream(&mut node, "", &mut found);
        let mut faults = Checker::of::<Self>().check(&node);
        let known = ignore_unknown(&node, &mut faults, is_open);
        found.extend(faults);
        if found.iter().any(Diagnostic::is_error) {
            return (None, found);
        }
        match known.parse_into::<Self>() {
            Ok(mut upstream) => {
                upstream.origin = Origin { mark: node.mark, ..Origin::default() };
                upstream.fill_ports();
                (Some(upstream), found)
            }
            Err(error) => {
                found.push(error);
                (None, found)
            }
        }
    }

    /// True while a reference to its own certificate has no value.
    #[must_use]
    pub fn is_unresolved(&self) -> bool {
        let tls = self.tls.as_ref().filter(|_| self.scheme.has_tls());
        let key = tls.and_then(|tls| tls.client_key.as_ref()).map(Secret::reveal);
        tls.and_then(|tls| tls.client_cert.as_deref()).into_iter().chain(key).any(is_reference)
    }

    /// Puts the scheme's port where none was written.
    pub(crate) fn fill_ports(&mut self) {
        for node in &mut self.nodes.0 {
            if node.has_no_port() {
                node.port = self.scheme.default_port();
            }
        }
    }
}

impl Default for Timeout {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { connect: minute, send: minute, read: minute, is_default: true }
    }
}

impl Default for KeepalivePool {
    fn default() -> Self {
        Self { size: 320, idle_timeout: Duration::from_secs(60), requests: 1000 }
    }
}

impl Scheme {
    /// The port where none is written.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http | Self::Grpc => 80,
            Self::Https | Self::Grpcs => 443,
            // The loader wants a port to be written.
            Self::Tcp | Self::Tls | Self::Udp => 0,
        }
    }

    /// True if TLS is spoken.
    pub const fn has_tls(self) -> bool {
        matches!(self, Self::Https | Self::Grpcs | Self::Tls)
    }

    /// Name of a scheme that only stream routes know.
    pub const fn of_streams(self) -> Option<&'static str> {
        match self {
            Self::Tcp => Some("tcp"),
            Self::Tls => Some("tls"),
            Self::Udp => Some("udp"),
            Self::Http | Self::Https | Self::Grpc | Self::Grpcs => None,
        }
    }

    /// True if the nodes are gRPC services, which HTTP/2 is always spoken to.
    pub const fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::Grpcs)
    }
}

const HOST_EXPECTED: &str = "a host, with or without a port: example.com, 10.0.0.1:8080, [::1]:80";

impl UpstreamHost {
    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for UpstreamHost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'[' | b']' | b':');
        if text.is_empty() || !text.bytes().all(allowed) {
            return Err(D::Error::invalid_value(Unexpected::Str(&text), &HOST_EXPECTED));
        }
        Ok(Self(text))
    }
}

impl JsonSchema for UpstreamHost {
    fn schema_name() -> Cow<'static, str> {
        "UpstreamHost".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[0-9a-zA-Z._\[\]:-]+$", "x-expected": HOST_EXPECTED })
    }
}

impl Deref for Nodes {
    type Target = [NodeAddr];

    fn deref(&self) -> &[NodeAddr] {
        &self.0
    }
}

impl fmt::Display for NodeHost {
    /// The host as in a URI: an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(address)) => address.fmt(f),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
            Self::Unix(path) => write!(f, "{UNIX}{path}"),
        }
    }
}

impl NodeAddr {
    /// True if a port is needed, and none was written or filled in yet.
    pub(crate) fn has_no_port(&self) -> bool {
        self.port == PORT_UNSET && self.host.refuses_port().is_none()
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.refuses_port() {
            Some(_) => self.host.fmt(f),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Serialize for NodeHost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl NodeHost {
    /// Takes an IPv4 address, an IPv6 address in brackets, a name, or `unix:/PATH`.
    ///
    /// # Errors
    /// Parses the text; the error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, NodeFault> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return unix_path(path).map(|path| Self::Unix(path.into())).map_err(NodeFault::UnixPath);
        }
        if text.starts_with('/') || text.starts_with("unix@") {
            return Err(NodeFault::UnixForm);
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return inner.parse::<Ipv6Addr>().map(|a| Self::Ip(a.into())).map_err(|_| NodeFault::NotIpv6);
        }
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => return Err(NodeFault::BareIpv6),
            Ok(address) => return Ok(Self::Ip(address)),
            Err(_) => {}
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        match text {
            "" => Err(NodeFault::EmptyHost),
            _ if Self::looks_like_a_service(text) && !Self::is_service_name(text) => Err(NodeFault::ServiceForm),
            _ if text.contains("//") => Err(NodeFault::Scheme),
            _ if text.contains('/') => Err(NodeFault::Path),
            _ if text.bytes().all(allowed) => Ok(Self::Name(text.to_owned())),
            _ => Err(NodeFault::NotAHost),
        }
    }

    /// True if a name is that of a service (RFC 2782), `_SERVICE._tcp.DOMAIN`, whose SRV records hold hosts, ports and
    /// weights.
    pub fn is_service_name(name: &str) -> bool {
        Self::domain_of_service(name).is_some()
    }

    /// The domain of a service, which is what it is called towards the service itself.
    pub fn domain_of_service(name: &str) -> Option<&str> {
        let (service, rest) = name.strip_prefix('_')?.split_once('.')?;
        let (protocol, domain) = rest.split_once('.')?;
        let whole = !service.is_empty() && protocol.eq_ignore_ascii_case("_tcp") && !domain.is_empty();
        whole.then_some(domain)
    }

    /// True if the first two labels begin with an underscore, which those of no host do.
    fn looks_like_a_service(name: &str) -> bool {
        name.starts_with('_') && name.split_once('.').is_some_and(|(_, rest)| rest.starts_with('_'))
    }

    /// True if the port comes from SRV records.
    pub fn is_service(&self) -> bool {
        matches!(self, Self::Name(name) if Self::is_service_name(name))
    }

    /// Reason why no port may be written with the host, for hosts without ports of their own.
    pub(crate) fn refuses_port(&self) -> Option<NodeFault> {
        match self {
            Self::Unix(_) => Some(NodeFault::UnixPort),
            host => host.is_service().then_some(NodeFault::ServicePort),
        }
    }
}

/// The port of a node whose port was not written, until the loader puts in the scheme's.
const PORT_UNSET: u16 = 0;

pub(crate) fn node_from_key(key: &str, weight: u32) -> Result<NodeAddr, NodeFault> {
    if key.starts_with(UNIX) {
        return Ok(NodeAddr { host: NodeHost::new(key)?, port: PORT_UNSET, weight, priority: 0 });
    }
    let (host, port) = match key.rsplit_once(':') {
        // The colon belongs to an address: [::1] alone, or ::1 without brackets.
        Some((host, _)) if key.ends_with(']') || (host.contains(':') && !host.ends_with(']')) => (key, None),
        Some((host, port)) => (host, Some(port)),
        None => (key, None),
    };
    let port = match port {
        None => PORT_UNSET,
        Some(text) => match text.parse::<u16>() {
            Ok(port @ 1..) if text.bytes().all(|b| b.is_ascii_digit()) => port,
            _ => return Err(NodeFault::Port { found: format!("{text:?}") }),
        },
    };
    let host = NodeHost::new(host)?;
    if host.is_service() && port != PORT_UNSET {
        return Err(NodeFault::ServicePort);
    }
    Ok(NodeAddr { host, port, weight, priority: 0 })
}

/// One element of the list form.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListedNode {
    /// Address or name; an IPv6 address in brackets; a service with SRV records as `_SERVICE._tcp.DOMAIN`; a Unix
    /// socket as `unix:/PATH`.
    host: String,
    /// Port; the scheme's when there is none, and none for a service.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65535))]
    port: Option<u16>,
    /// Share of the requests; 0: none.
    weight: u32,
    /// Nodes of a lower priority are used when none of a higher one can be.
    #[serde(default)]
    priority: i64,
    /// Data for people and tools.
    #[serde(default, rename = "metadata")]
    #[schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")]
    _metadata: Option<Node>,
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodesVisitor;
        impl<'de> Visitor<'de> for NodesVisitor {
            type Value = Nodes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping from host:port to weight, or a list of {host, port, weight}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Nodes, A::Error> {
                let mut nodes = Vec::new();
                while let Some((key, weight)) = map.next_entry::<String, u32>()? {
                    nodes.push(node_from_key(&key, weight).map_err(|reason| {
                        A::Error::custom(format_args!("node {}: {reason}", crate::node::quoted(&key)))
                    })?);
                }
                Ok(Nodes(nodes))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Nodes, A::Error> {
                let mut nodes = Vec::new();
                while let Some(listed) = seq.next_element::<ListedNode>()? {
                    let host = NodeHost::new(&listed.host).map_err(|reason| {
                        A::Error::custom(format_args!("host {}: {reason}", crate::node::quoted(&listed.host)))
                    })?;
                    let port = listed.port.unwrap_or(PORT_UNSET);
                    if let (Some(reason), Some(_)) = (host.refuses_port(), listed.port) {
                        return Err(A::Error::custom(format_args!("host {}: {reason}", listed.host)));
                    }
                    nodes.push(NodeAddr { host, port, weight: listed.weight, priority: listed.priority });
                }
                Ok(Nodes(nodes))
            }
        }
        deserializer.deserialize_any(NodesVisitor)
    }
}

impl JsonSchema for Nodes {
    fn schema_name() -> Cow<'static, str> {
        "Nodes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let listed = generator.subschema_for::<ListedNode>();
        json_schema!({
            "anyOf": [
                {
                    "type": "object",
                    "additionalProperties": { "type": "integer", "minimum": 0, "maximum": u32::MAX }
                },
                { "type": "array", "items": listed }
            ],
            "x-expected": "a mapping from host:port to weight, or a list of {host, port, weight}"
        })
    }
}

/// Seconds as a number, decimals allowed.
pub(super) mod seconds {
    use super::*;

    pub(in crate::resource) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        match value.subsec_nanos() {
            0 => serializer.serialize_u64(value.as_secs()),
            _ => serializer.serialize_f64(value.as_secs_f64()),
        }
    }

    pub(in crate::resource) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(number)
            .map_err(|_| D::Error::invalid_value(Unexpected::Float(number), &"a number of seconds"))
    }
}
