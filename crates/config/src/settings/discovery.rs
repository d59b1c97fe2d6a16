use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DnsServer, Secret};
use crate::resource::{NodeAddr, NodeHost};

/// Registries that know the nodes of services, for upstreams with `service_name`. A registry is asked once it has servers;
/// see [service discovery](service-discovery.md).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// Name servers, for `discovery_type: dns`.
    pub dns: DnsDiscovery,
    /// The catalog of Consul, for `discovery_type: consul`.
    pub consul: ConsulDiscovery,
    /// The key-value store of Consul, for `discovery_type: consul_kv`.
    pub consul_kv: ConsulKvDiscovery,
    /// Nacos, for `discovery_type: nacos`.
    pub nacos: NacosDiscovery,
    /// Eureka, for `discovery_type: eureka`.
    pub eureka: EurekaDiscovery,
    /// Clusters of Kubernetes, for `discovery_type: kubernetes`: a list of mappings with `id`, `service` (`schema`, `host`,
    /// `port`, `ssl_verify`), `client` (`token` or `token_file`), `namespace_selector`, `label_selector`, `default_weight`
    /// and `watch_endpoint_slices`.
    #[schemars(length(max = 64))]
    pub kubernetes: Vec<KubernetesCluster>,
}

impl Discovery {
    /// Conflicts between settings: the path, and the rule.
    pub(super) fn conflicts(&self) -> Vec<(String, &'static str)> {
        let mut found = Vec::new();
        if !self.dns.servers.is_empty() && !self.dns.resolv_conf.is_empty() {
            found.push(("resolv_conf".to_owned(), "only one of servers and resolv_conf is allowed in discovery.dns"));
        }
        let own = |list: &[Secret]| list.iter().map(|host| host.expose().to_owned()).collect::<Vec<_>>();
        let lists = [
            ("consul.servers", self.consul.servers.clone()),
            ("consul_kv.servers", self.consul_kv.servers.clone()),
            ("nacos.host", own(&self.nacos.host)),
            ("eureka.host", own(&self.eureka.host)),
        ];
        for (name, list) in lists {
            for (at, _) in list.iter().enumerate().filter(|(_, uri)| !is_uri(uri)) {
                found.push((format!("{name}[{at}]"), "expected http://HOST:PORT or https://HOST:PORT"));
            }
        }
        let defaults = [("consul", &self.consul.default_service), ("consul_kv", &self.consul_kv.default_service)];
        for (name, service) in defaults {
            if !service.host.is_empty() && service.node(1).is_none() {
                found.push((format!("{name}.default_service.host"), "expected an address or a name of a host"));
            }
        }
        let repeated = |(at, cluster): &(usize, &KubernetesCluster)| {
            self.kubernetes.iter().take(*at).any(|before| before.id == cluster.id)
        };
        for (at, _) in self.kubernetes.iter().enumerate().filter(repeated) {
            found.push((format!("kubernetes[{at}].id"), "each cluster needs an id of its own"));
        }
        found.into_iter().map(|(path, rule)| (format!("discovery.{path}"), rule)).collect()
    }
}

fn is_uri(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|host| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control()))
}

/// Name servers that know services.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DnsDiscovery {
    /// Name servers as `ADDRESS` or `ADDRESS:PORT` (port 53).
    #[schemars(length(max = 16))]
    pub servers: Vec<DnsServer>,
    /// File with name servers in the form of `/etc/resolv.conf`, in the place of `servers`. Empty: none.
    #[schemars(length(max = 4096))]
    pub resolv_conf: String,
    /// Types of records in the order in which they are asked for, until there is an answer; `last` is the type that a name
    /// had before. Aliases (`CNAME`) are followed in any case.
    #[schemars(length(min = 1, max = 5), extend("uniqueItems" = true))]
    pub order: Vec<DnsRecord>,
}

/// A type of records of DNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DnsRecord {
    /// The type that a name had before.
    #[serde(rename = "last")]
    Last,
    /// Hosts with ports, weights and priorities.
    #[serde(rename = "SRV")]
    Srv,
    /// Addresses of IPv4.
    A,
    /// Addresses of IPv6.
    #[serde(rename = "AAAA")]
    Aaaa,
    /// Aliases.
    #[serde(rename = "CNAME")]
    Cname,
}

/// The catalog of Consul.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsulDiscovery {
    /// Servers as `http://HOST:PORT` or `https://HOST:PORT`, each of which is asked for its services. None: the registry is off.
    #[schemars(length(max = 16))]
    pub servers: Vec<String>,
    /// The token of the ACL, sent as `X-Consul-Token`.
    pub token: Secret,
    /// Seconds between two questions without `keepalive`.
    #[schemars(range(min = 1, max = 86_400))]
    pub fetch_interval: u32,
    /// Questions that Consul answers as soon as something has changed if true (blocking queries), else one question each
    /// `fetch_interval`.
    pub keepalive: bool,
    /// Weight of the nodes.
    #[schemars(range(min = 1, max = 65_535))]
    pub weight: u32,
    /// Limits of time of a question.
    pub timeout: ConsulTimeout,
    /// Order of the nodes: as they come, or sorted by host, by port or by both. It matters for `type: chash` alone.
    pub sort_type: ConsulSort,
    /// Services that are left out; `consul` itself always is.
    #[schemars(length(max = 1024))]
    pub skip_services: Vec<String>,
    /// File in which the last answer is kept, for the next start.
    pub dump: DiscoveryDump,
    /// Node of services that Consul does not know.
    pub default_service: DefaultService,
}

/// The key-value store of Consul: a key for each node, `PREFIX/SERVICE/HOST:PORT`, whose value is `{"weight": 1}`. The
/// `service_name` is the URL of the keys, such as `http://127.0.0.1:8500/v1/kv/upstreams/web/`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsulKvDiscovery {
    /// Servers as `http://HOST:PORT` or `https://HOST:PORT`. None: the registry is off.
    #[schemars(length(max = 16))]
    pub servers: Vec<String>,
    /// The token of the ACL, sent as `X-Consul-Token`.
    pub token: Secret,
    /// Seconds between two questions without `keepalive`.
    #[schemars(range(min = 1, max = 86_400))]
    pub fetch_interval: u32,
    /// Questions that Consul answers as soon as something has changed if true, else one question each `fetch_interval`.
    pub keepalive: bool,
    /// Beginning of the keys.
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: String,
    /// Weight of nodes whose value has none.
    #[schemars(range(min = 1, max = 65_535))]
    pub weight: u32,
    /// Limits of time of a question.
    pub timeout: ConsulTimeout,
    /// Keys of services, `PREFIX/SERVICE/`, that are left out.
    #[schemars(length(max = 1024))]
    pub skip_keys: Vec<String>,
    /// File in which the last answer is kept, for the next start.
    pub dump: DiscoveryDump,
    /// Node of services that Consul does not know.
    pub default_service: DefaultService,
}

/// Limits of time of a question to Consul.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsulTimeout {
    /// Milliseconds to connect.
    #[schemars(range(min = 1, max = 600_000))]
    pub connect: u32,
    /// Milliseconds to the answer, beyond `wait` where Consul waits for a change.
    #[schemars(range(min = 1, max = 600_000))]
    pub read: u32,
    /// Seconds that Consul may wait for a change.
    #[schemars(range(min = 1, max = 600))]
    pub wait: u32,
}

/// Order of the nodes of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConsulSort {
    /// As they come.
    #[default]
    Origin,
    /// By host.
    HostSort,
    /// By port.
    PortSort,
    /// By host and port.
    CombineSort,
}

/// File in which the last answer of a registry is kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryDump {
    /// Path of the file. Empty: none.
    #[schemars(length(max = 4096))]
    pub path: String,
    /// The file is read at start if true.
    pub load_on_init: bool,
    /// Seconds after which the file is too old to be read; 0: never.
    #[schemars(range(max = 31_536_000))]
    pub expire: u32,
}

/// Node of services that a registry does not know.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultService {
    /// Address or name. Empty: there is no such node, and requests for an unknown service are answered 503.
    #[schemars(length(max = 253))]
    pub host: String,
    /// Port; 0: the scheme's.
    pub port: u16,
}

/// Nacos.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NacosDiscovery {
    /// Servers as `http://HOST:PORT`, or `http://USER:PASSWORD@HOST:PORT` with a login. One after the other is asked until one
    /// answers. None: the registry is off.
    #[schemars(length(max = 16))]
    pub host: Vec<Secret>,
    /// Seconds between two questions.
    #[schemars(range(min = 1, max = 86_400))]
    pub fetch_interval: u32,
    /// Path of Nacos' API.
    #[schemars(length(min = 1, max = 100), regex(pattern = r"^[/a-zA-Z0-9._-]+$"), extend("x-expected" = "a path such as /nacos/v1/"))]
    pub prefix: String,
    /// Weight of nodes that Nacos gives none.
    #[schemars(range(min = 1, max = 65_535))]
    pub weight: u32,
    /// Limits of time of a question.
    pub timeout: RegistryTimeout,
    /// Access key, with which questions are signed. Empty: they are not.
    pub access_key: Secret,
    /// The secret of `access_key`.
    pub secret_key: Secret,
}

/// Eureka.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EurekaDiscovery {
    /// Servers as `http://HOST:PORT`, or `http://USER:PASSWORD@HOST:PORT`. One after the other is asked until one answers.
    /// None: the registry is off.
    #[schemars(length(max = 16))]
    pub host: Vec<Secret>,
    /// Path of Eureka's API, such as `/eureka/`.
    #[schemars(length(max = 1024))]
    pub prefix: String,
    /// Seconds between two questions.
    #[schemars(range(min = 1, max = 86_400))]
    pub fetch_interval: u32,
    /// Weight of nodes without a `weight` in their metadata.
    #[schemars(range(max = 65_535))]
    pub weight: u32,
    /// Limits of time of a question.
    pub timeout: RegistryTimeout,
}

/// Limits of time of a question to a registry.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryTimeout {
    /// Milliseconds to connect.
    #[schemars(range(min = 1, max = 600_000))]
    pub connect: u32,
    /// Milliseconds to send the question.
    #[schemars(range(min = 1, max = 600_000))]
    pub send: u32,
    /// Milliseconds to the answer.
    #[schemars(range(min = 1, max = 600_000))]
    pub read: u32,
}

/// A cluster of Kubernetes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesCluster {
    /// Name of the cluster, with which a `service_name` begins: `ID/NAMESPACE/SERVICE:PORT`. Empty, for the only cluster:
    /// `NAMESPACE/SERVICE:PORT`.
    #[schemars(regex(pattern = r"^[a-z0-9]{0,64}$"), extend("x-expected" = "up to 64 letters and digits"))]
    pub id: String,
    /// The API server.
    pub service: KubernetesServer,
    /// The identity of this gateway.
    pub client: KubernetesClient,
    /// Namespaces that are watched; all unless told.
    pub namespace_selector: NamespaceSelector,
    /// Selector of labels, as in `kubectl -l`. Empty: none.
    #[schemars(length(max = 4096))]
    pub label_selector: String,
    /// Weight of the nodes.
    #[schemars(range(max = 65_535))]
    pub default_weight: u32,
    /// EndpointSlices are watched if true, else Endpoints.
    pub watch_endpoint_slices: bool,
}

/// The API server of a cluster.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesServer {
    /// Protocol of the server.
    pub schema: HttpScheme,
    /// Host, or `${NAME}` for that of a variable of the environment.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Port, or `${NAME}`.
    #[schemars(length(min = 1, max = 253))]
    pub port: String,
    /// The certificate of the server is verified by `tls.trusted_certificate` if true. Off by default, as in APISIX.
    pub ssl_verify: bool,
}

/// `http` or `https`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HttpScheme {
    /// Without TLS.
    Http,
    /// With TLS.
    #[default]
    Https,
}

/// The identity of the gateway in a cluster.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesClient {
    /// Token of a service account, or `${NAME}`. Empty: that of `token_file`.
    pub token: Secret,
    /// File with the token, read anew for each question. Empty, with an empty `token`: no token.
    #[schemars(length(max = 500))]
    pub token_file: String,
}

/// Namespaces that are watched. At most one of the fields is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceSelector {
    /// This one only. Empty: no matter.
    #[schemars(length(max = 253))]
    pub equal: String,
    /// All but this one. Empty: no matter.
    #[schemars(length(max = 253))]
    pub not_equal: String,
    /// Those that one of these regular expressions matches whole.
    #[schemars(length(max = 64))]
    pub r#match: Vec<String>,
    /// Those that none of these regular expressions matches whole.
    #[schemars(length(max = 64))]
    pub not_match: Vec<String>,
}

impl DefaultService {
    /// The node; `None`: there is none.
    #[must_use]
    pub fn node(&self, weight: u32) -> Option<NodeAddr> {
        let host = NodeHost::new(&self.host).ok()?;
        Some(NodeAddr { host, port: self.port, weight, priority: 0 })
    }
}

impl Default for DnsDiscovery {
    fn default() -> Self {
        use DnsRecord::{A, Aaaa, Cname, Last, Srv};
        Self { servers: Vec::new(), resolv_conf: String::new(), order: vec![Last, Srv, A, Aaaa, Cname] }
    }
}

impl DnsDiscovery {
    /// True if name servers are set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.servers.is_empty() || !self.resolv_conf.is_empty()
    }
}

impl Default for ConsulDiscovery {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            token: Secret::default(),
            fetch_interval: 3,
            keepalive: true,
            weight: 1,
            timeout: ConsulTimeout::default(),
            sort_type: ConsulSort::default(),
            skip_services: Vec::new(),
            dump: DiscoveryDump::default(),
            default_service: DefaultService::default(),
        }
    }
}

impl Default for ConsulKvDiscovery {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            token: Secret::default(),
            fetch_interval: 3,
            keepalive: true,
            prefix: "upstreams".to_owned(),
            weight: 1,
            timeout: ConsulTimeout::default(),
            skip_keys: Vec::new(),
            dump: DiscoveryDump::default(),
            default_service: DefaultService::default(),
        }
    }
}

impl Default for ConsulTimeout {
    fn default() -> Self {
        Self { connect: 2000, read: 2000, wait: 60 }
    }
}

impl Default for DiscoveryDump {
    fn default() -> Self {
        Self { path: String::new(), load_on_init: true, expire: 0 }
    }
}

impl Default for NacosDiscovery {
    fn default() -> Self {
        Self {
            host: Vec::new(),
            fetch_interval: 30,
            prefix: "/nacos/v1/".to_owned(),
            weight: 100,
            timeout: RegistryTimeout::default(),
            access_key: Secret::default(),
            secret_key: Secret::default(),
        }
    }
}

impl Default for EurekaDiscovery {
    fn default() -> Self {
        let timeout = RegistryTimeout::default();
        Self { host: Vec::new(), prefix: String::new(), fetch_interval: 30, weight: 100, timeout }
    }
}

impl Default for RegistryTimeout {
    fn default() -> Self {
        Self { connect: 2000, send: 2000, read: 5000 }
    }
}

impl Default for KubernetesCluster {
    fn default() -> Self {
        Self {
            id: String::new(),
            service: KubernetesServer::default(),
            client: KubernetesClient::default(),
            namespace_selector: NamespaceSelector::default(),
            label_selector: String::new(),
            default_weight: 50,
            watch_endpoint_slices: false,
        }
    }
}

impl Default for KubernetesServer {
    fn default() -> Self {
        Self {
            schema: HttpScheme::default(),
            host: "${KUBERNETES_SERVICE_HOST}".to_owned(),
            port: "${KUBERNETES_SERVICE_PORT}".to_owned(),
            ssl_verify: false,
        }
    }
}

impl Default for KubernetesClient {
    fn default() -> Self {
        Self { token: Secret::default(), token_file: "/var/run/secrets/kubernetes.io/serviceaccount/token".to_owned() }
    }
}
