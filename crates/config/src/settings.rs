//! The gateway's own settings: file `weir.yaml`, environment variables, flags.
//!
//! Every setting has a default. [`Settings::load`] lays the file over the defaults, the environment over the file and
//! the flags over the environment. A setting `limits.head_size` is the variable `WEIR_LIMITS_HEAD_SIZE`.

mod address;
mod admin;
pub mod apisix;
mod cache_zone;
mod choice;
mod deployment;
mod discovery;
mod ext_plugin;
mod file_mode;
mod http2;
mod kong;
mod listener;
mod log_rotation;
mod names;
mod observing;
mod overlay;
mod plans;
mod quantity;
mod scripts;
mod store;
mod threescale;
mod usage;
mod wasm;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use address::{AutoEndpoint, Endpoint, ListenAddr};
pub(crate) use address::{UNIX, unix_path};
pub use admin::{Admin, AdminKey, AdminOidc, AdminRole, AdminTls, Viewer};
pub use cache_zone::CacheZone;
pub use choice::{
    AccessLogEscape, AccessLogFormat, AccessLogPath, ErrorLogPath, LogLevel, MetricTypes, RouterMode, TlsVersion,
    Workers,
};
pub use deployment::{ConfigProvider, DataEncryption, Deployment, Etcd, EtcdTls, EtcdUrl, Role, Secret};
pub use discovery::{
    ConsulDiscovery, ConsulKvDiscovery, ConsulSort, ConsulTimeout, DefaultService, Discovery, DiscoveryDump,
    DnsDiscovery, DnsRecord, EurekaDiscovery, HttpScheme, KubernetesClient, KubernetesCluster, KubernetesServer,
    NacosDiscovery, NamespaceSelector, RegistryTimeout,
};
pub use ext_plugin::ExtPlugin;
pub use file_mode::FileMode;
pub use http2::Http2;
pub use kong::{Kong, KongHeader, KongUpstreamHeader};
pub use listener::Listener;
pub use log_rotation::LogRotation;
pub use names::PluginNames;
pub use observing::{AccessLog, ErrorLog, Metrics, Reports, StreamAccessLog};
pub use overlay::{Leaf, SettingsSource, leaves};
pub use plans::Plans;
pub use quantity::{GIB, KIB, MIB, Seconds, Size};
pub use scripts::{ScriptPermission, Scripts};
pub use store::Store;
pub use threescale::ThreescaleBackend;
pub use usage::{AlertOn, Usage, UsageAlert, UsageExport, UsageTarget};
pub use wasm::{Wasm, WasmPlugin, WasmRequestPhase};

use crate::resource::AddrRange;

/// The gateway's own settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Addresses to listen on.
    pub listen: Listen,
    /// Number of workers that carry traffic: `auto` for one per core, or 1 to 1024.
    pub workers: Workers,
    /// Algorithm that matches routes; the names are APISIX's.
    pub router: RouterMode,
    /// The plugins that may be configured; every other one is refused. `*` stands for all that the gateway has; with an
    /// empty list there is none.
    pub plugins: PluginNames,
    /// Listeners that speak the PROXY protocol.
    pub proxy_protocol: ProxyProtocol,
    /// Normalisation of a path before routes are matched.
    pub uri: UriHandling,
    /// TLS towards clients and upstreams.
    pub tls: Tls,
    /// HTTP/2 with clients.
    pub http2: Http2,
    /// Limits of size, number and speed; what exceeds one is refused or closed.
    pub limits: Limits,
    /// Limits of time; what exceeds one is cut.
    pub timeouts: Timeouts,
    /// Peers whose X-Forwarded-* fields are kept: addresses and ranges. From every other peer they are overwritten
    /// before anything looks at the request, and X-Forwarded-For is dropped once this list is not empty.
    pub trusted_proxies: Vec<AddrRange>,
    /// Redirects to HTTPS.
    pub redirect: Redirect,
    /// Taking the client's address from a header.
    pub real_ip: RealIp,
    /// The access log.
    pub access_log: AccessLog,
    /// The access log of streams.
    pub stream_access_log: StreamAccessLog,
    /// Delivery of reports of plugins such as `http-logger`.
    pub reports: Reports,
    /// Recording who has called what.
    pub usage: Usage,
    /// Counts of plans.
    pub plans: Plans,
    /// The backend of 3scale.
    pub threescale_backend: ThreescaleBackend,
    /// Zones in which `proxy-cache` and `graphql-proxy-cache` keep answers: a list of mappings with `name`, `memory_size` (50MiB:
    /// keys, fields and bodies, or with a folder keys and fields, and as much again for bodies on their way), `disk_path` (a folder
    /// for bodies, of this zone alone; none unless told) and `disk_size` (1GiB: bodies in the folder). A zone that is not here is
    /// in memory, with 50 MiB.
    pub cache_zones: Vec<CacheZone>,
    /// Functions in Lua.
    pub scripts: Scripts,
    /// Filters in WebAssembly.
    pub wasm: Wasm,
    /// The runner of external plugins.
    pub ext_plugin: ExtPlugin,
    /// The gateway's own messages.
    pub error_log: ErrorLog,
    /// Rotation of the files of these logs.
    pub log_rotation: LogRotation,
    /// Prometheus metrics, served at `listen.metrics`.
    pub metrics: Metrics,
    /// X-APISIX-Upstream-Status in every proxied response if true, not only in those with a 5xx status from the
    /// upstream.
    pub show_upstream_status_in_response_header: bool,
    /// Kong's family: the version, fields and headers that it announces.
    pub kong_answers: Kong,
    /// The Server field of responses, in the place of the upstream's; an empty text leaves the upstream's as it is.
    pub server_header: ServerHeader,
    /// Resolving the names of upstream nodes.
    pub dns: Dns,
    /// Registries that know the nodes of services, for upstreams with `service_name`.
    pub discovery: Discovery,
    /// Settings for all upstreams.
    pub upstream: Upstreams,
    /// Watching the rules file, and the threads that work on the configuration.
    pub config: ConfigWork,
    /// Asking secret managers.
    pub secrets: Secrets,
    /// Role of this gateway in a deployment, and the source of its resources.
    pub deployment: Deployment,
    /// The Admin API.
    pub admin: Admin,
    /// The key of the Admin API that only reads.
    pub viewer: Viewer,
    /// The store that resources live in when there is no rules file.
    pub store: Store,
}

/// Addresses to listen on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Traffic over plain HTTP: a list of `ADDRESS:PORT`, `unix:/PATH`, or mappings with `address`, `proxy_protocol`
    /// (whether connections begin with a PROXY protocol header), `http2` (whether HTTP/2 by prior knowledge is taken as
    /// well) and `mode` (of a Unix socket, `"0666"`). Port 0 takes a
    /// free one; a line at start names it. See [listeners](listeners.md).
    #[schemars(length(min = 1, max = 64))]
    pub http: Vec<Listener>,
    /// Traffic over TLS: a list like that of `listen.http`, which may be empty. Certificates come from `ssls` of the
    /// rules; with none there, one made at start shows that the listener works, and clients do not trust it.
    #[schemars(length(max = 64))]
    pub https: Vec<Listener>,
    /// Connections of TCP for `stream_routes`: a list of `ADDRESS:PORT`, `unix:/PATH`, or mappings with `address`,
    /// `tls` (whether TLS is ended here, with certificates of `ssls`), `proxy_protocol` and `mode`. See [stream
    /// routes](stream-routes.md).
    #[schemars(length(max = 64))]
    pub tcp: Vec<Listener>,
    /// Datagrams of UDP for `stream_routes`: a list of `ADDRESS:PORT`. See [stream routes](stream-routes.md).
    #[schemars(length(max = 64))]
    pub udp: Vec<Listener>,
    /// Prometheus metrics: `ADDRESS:PORT` or `off`.
    pub metrics: Endpoint,
    /// `/status` and `/status/ready`: `ADDRESS:PORT` or `off`.
    pub status: Endpoint,
    /// The Admin API: `ADDRESS:PORT`, `off` or `auto`: 127.0.0.1:9180 when resources live in a store, off with a rules
    /// file.
    pub admin: AutoEndpoint,
    /// The control API: `ADDRESS:PORT`, `off` or `auto`: 127.0.0.1:9090 when resources live in a store, off with a
    /// rules file.
    pub control: AutoEndpoint,
    /// The backend of [3scale](threescale-backend.md): `ADDRESS:PORT` or `off`.
    pub threescale_backend: Endpoint,
}

/// TLS towards clients and upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The name whose certificate is shown to clients that send no server name (SNI), such as those that connect to an
    /// address. Empty: such clients are refused.
    #[schemars(length(max = 253), regex(pattern = r"^[0-9a-zA-Z._-]*$"), extend("x-expected" = "a host name"))]
    pub fallback_sni: String,
    /// Versions of TLS spoken with clients: `TLSv1.2`, `TLSv1.3`. `ssl_protocols` of a certificate takes precedence.
    #[schemars(length(min = 1, max = 2), extend("uniqueItems" = true))]
    pub protocols: Vec<TlsVersion>,
    /// Session tickets, with which clients resume their TLS sessions. Their keys are renewed every six hours.
    pub session_tickets: bool,
    /// Hosts that require a client certificate (`client` of `ssls`) are served over plain HTTP as well if true, where
    /// no client can show one: for a proxy in front that ends TLS and verifies certificates itself. Otherwise such a
    /// request is answered 400, unless its path is one of `skip_mtls_uri_regex`.
    pub mtls_hosts_on_http: bool,
    /// The authorities that nodes with `tls.verify` are verified by: `system`, or the path of a file in PEM.
    #[schemars(length(min = 1, max = 4096))]
    pub trusted_certificate: String,
}

/// Listeners that speak the PROXY protocol, which sends the client's address ahead of the client's bytes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyProtocol {
    /// Trusted peers of listeners with `proxy_protocol`: addresses and ranges. Connections of all others are closed. On
    /// a Unix socket every peer that may open it is trusted.
    pub trusted: Vec<AddrRange>,
}

/// Normalisation of a path before routes are matched.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UriHandling {
    /// `/a/` is matched as `/a` if true.
    pub delete_tail_slash: bool,
    /// `;parameters` of path segments are removed before matching if true, as servlet containers do.
    pub normalize_like_servlet: bool,
    /// `%2F` stays encoded when routes are matched if true, so that it does not separate segments.
    pub match_encoded_slash: bool,
    /// A path with `;` or `\\` is served if true, even when a server that cuts `;parameters`, or takes `\\` for `/`,
    /// would read a path that another route takes. Otherwise such a path is answered 400.
    pub allow_ambiguous: bool,
}

/// Limits of size, number and speed; what exceeds one is refused or closed.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of a request head: request line and fields. More is answered 431.
    pub head_size: Size<{ KIB }, { MIB }>,
    /// Fields in a head. More is answered 431 (a request) or 502 (a response).
    #[schemars(range(min = 8, max = 4096))]
    pub header_count: u16,
    /// Bytes of a request target. More is answered 414.
    pub target_length: Size<64, { MIB }>,
    /// Bytes of a request body; 0 for no limit. More is answered 413. The plugin client-control sets it for a route.
    pub body_size: Size<0, { 1024 * GIB }>,
    /// Least speed of a request body in bytes a second, as an average from the moment `body_rate_grace` has passed;
    /// 0 for none. A slower client is answered 408 and cut.
    pub body_rate: Size<0, { GIB }>,
    /// Time from the beginning of a request body in which it may be slower than `body_rate`.
    pub body_rate_grace: Seconds<1_000, 3_600_000>,
    /// Bytes of a response head from an upstream. More is answered 502.
    pub response_head_size: Size<{ KIB }, { MIB }>,
    /// Bytes of a body that is held whole, because a plugin needs all of it. More is answered 413 (a request) or
    /// 502 (a response): a plugin must not let pass what it has not seen.
    pub buffered_body: Size<0, { GIB }>,
    /// Bytes of a request body that variables are read from (`post_arg_…`, `post_arg.…`, `graphql_…`), up to
    /// `buffered_body`. With a longer body these variables are unset. 0: always unset. A body is only read where such a
    /// variable is used; before a route is found, that is where the `vars` of a candidate use one.
    pub body_variables: Size<0, { GIB }>,
    /// Memory for exceptional parts of messages, over all workers: bodies that a plugin needs whole, copies for
    /// mirrors, heads over 16 KiB, large buffers for long bodies, compressors, answers made here that wait for a slow
    /// client. A request for which there is no room is answered 503; optional uses (large buffers, copies, compression)
    /// take no more than half. At least 4 times the largest of `buffered_body`, `head_size` and `response_head_size`.
    pub buffers: Size<{ MIB }, { 1024 * GIB }>,
    /// Copies of requests for mirrors (`proxy-mirror`) that one worker has under way. Further copies are dropped and
    /// counted.
    #[schemars(range(max = 1_000_000))]
    pub mirror_copies: u32,
    /// Bytes of the body of a copy for a mirror, which is held whole until it is sent. A request with a longer body is
    /// not copied, which is counted.
    pub mirror_body: Size<0, { GIB }>,
    /// Callouts of plugins (such as `forward-auth`) that one worker has under way. A further callout is not made: the
    /// plugin refuses the request, with 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub callouts: u32,
    /// Bytes of the body of an answer to a callout, which is held whole. A longer answer counts as none.
    pub callout_body: Size<0, { GIB }>,
    /// Bytes of the body of a request to the Admin API. More is answered 400.
    pub admin_body: Size<{ KIB }, { GIB }>,
    /// Bytes that bodies of requests to the Admin API, and its answers, take together; those of at most 64 KiB are not
    /// counted. More waits for up to 10 seconds, and is then answered 503.
    pub admin_memory: Size<{ MIB }, { 64 * GIB }>,
    /// Answers of the Admin API with a list of resources, or with changes, at one time. A further one waits for up to
    /// 10 seconds, and is then answered 503.
    #[schemars(range(min = 1, max = 256))]
    pub admin_lists: u32,
    /// Bytes of resources in one answer about changes. Changes beyond that are listed without their values.
    pub admin_answer: Size<{ KIB }, { GIB }>,
    /// Client connections of the whole gateway at one time, or fewer where file descriptors (`ulimit -n`) do not allow
    /// so many. A new connection takes the place of the one that has been idle longest; with a request under way on
    /// each, the new one waits in the listen queue of the system.
    #[schemars(range(min = 1, max = 16_000_000))]
    pub connections: u32,
    /// Sessions of UDP of the whole gateway at one time, or fewer where file descriptors (`ulimit -n`) do not allow so
    /// many: each has a socket. Datagrams of further clients are dropped and counted.
    #[schemars(range(min = 1, max = 16_000_000))]
    pub udp_sessions: u32,
    /// Requests on one client connection, after which it is closed; 0 for no limit.
    #[schemars(range(max = 1_000_000_000))]
    pub requests_per_connection: u32,
    /// Idle connections to upstreams that one worker keeps, over all upstreams.
    #[schemars(range(max = 1_000_000))]
    pub upstream_idle_connections: u32,
    /// Time series that a metric may have; further ones are counted under `other`.
    #[schemars(range(min = 100, max = 10_000_000))]
    pub metric_series: u32,
    /// Keys (addresses, consumers, …) of which one limiter keeps count. A key is forgotten when its window is over;
    /// with no room left, requests on further keys are refused.
    #[schemars(range(min = 1_000, max = 100_000_000))]
    pub limit_keys: u32,
    /// Entries of the matcher that one route may have: its hosts, or those of its service, times its URIs; with the
    /// routers that do not decide by host first, the sum of both. A route with more is refused.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub route_entries: u32,
    /// Bytes that the compiled rules may take in sum, as far as the length of their text is no measure: entries of the
    /// matcher, regular expressions, turn tables and hash rings of upstreams, plugins of a service repeated on its
    /// routes. The sizes are estimates. A change that needs more is refused before it is built. The limit bounds the
    /// time of a change as well: 1 GiB takes up to a minute.
    pub compiled_size: Size<{ MIB }, { 1024 * GIB }>,
}

/// Limits of time; what exceeds one is cut. Seconds, decimals allowed; or a text with a unit: `500ms`, `5s`, `2m`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Time from the first byte of a request, or from accepting a connection, to the end of the request's head. A later
    /// end is answered 408.
    pub head: Seconds<100, 3_600_000>,
    /// Time from accepting a connection to the end of its TLS handshake. Then the connection is closed.
    pub handshake: Seconds<100, 3_600_000>,
    /// Time that a client connection stays open without a request.
    pub idle: Seconds<100, 86_400_000>,
    /// Age of a client connection from which on it takes one request more, or none: over HTTP/1.1 the response says
    /// `Connection: close`, over HTTP/2 the client gets GOAWAY, and streams under way end. So clients that keep connections
    /// for ever spread over the gateways behind a load balancer. WebSocket goes on. 0: no limit.
    pub connection_age: Seconds<0, 2_592_000_000>,
    /// Between two reads of a request body. Later is answered 408.
    pub body: Seconds<100, 86_400_000>,
    /// Between two writes of a response to a client that does not read.
    pub send: Seconds<100, 86_400_000>,
    /// The longest time without a byte in either direction on a stream of a stream route whose upstream has no
    /// `timeout`; else the longer of `timeout.send` and `timeout.read` counts.
    pub stream_idle: Seconds<100, 86_400_000>,
    /// The longest time without a datagram in either direction of a UDP session whose upstream has no `timeout`; else the
    /// longer of `timeout.send` and `timeout.read` counts.
    pub udp_idle: Seconds<100, 86_400_000>,
    /// The longest time without a byte in either direction on a WebSocket connection; then it is closed. 0: the longer
    /// one of `timeout.read` and `timeout.send` of the upstream or route.
    pub websocket: Seconds<0, 86_400_000>,
    /// The longest time for which a plugin waits for something outside, such as an answer to a callout, unless its own
    /// configuration says how long it waits. Later the request is answered 504.
    pub plugin: Seconds<100, 86_400_000>,
    /// Time for requests in flight to finish after SIGTERM, SIGINT or an upgrade; then they are cut.
    pub drain: Seconds<0, 86_400_000>,
    /// Time that idle client connections stay open in a process that has handed over to a new one. The next request on
    /// such a connection is answered, with `Connection: close`; then the connection is closed. At most `drain`.
    pub drain_idle: Seconds<0, 86_400_000>,
    /// The time for which WebSocket connections go on after connections that wait for a request were closed. Then both
    /// sides get a Close frame with the status 1001 (going away), and 5 s to answer it. At most `drain`.
    pub drain_websocket: Seconds<0, 86_400_000>,
    /// The time that a new process may take after SIGUSR2 until it serves. Then it is killed, and the old one goes on.
    pub upgrade: Seconds<1_000, 3_600_000>,
}

/// Redirects to HTTPS, by `http_to_https` of the plugin `redirect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Redirect {
    /// The port that clients are sent to. 0: that of the first listener in `listen.https` whose port is known, or 443.
    pub https_port: u16,
}

/// Taking the client's address from a header that a proxy in front sets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RealIp {
    /// The field the address is taken from: a single address (X-Real-IP) or a list (X-Forwarded-For).
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), extend("x-expected" = "the name of a header field"))]
    pub header: String,
    /// Trusted peers: addresses and ranges. The field of any other peer is ignored.
    pub trusted: Vec<AddrRange>,
    /// Search of a list from the right, past trusted addresses to the first that is not, if true.
    pub recursive: bool,
}

/// Resolving the names of upstream nodes. The last good answer is used while none comes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// Name servers as `ADDRESS` or `ADDRESS:PORT` (port 53); none means those of the system's `/etc/resolv.conf`.
    pub servers: Vec<DnsServer>,
    /// Least time that an answer is used, whatever its TTL.
    pub min_ttl: Seconds<0, 86_400_000>,
    /// Most time that an answer is used, whatever its TTL.
    pub max_ttl: Seconds<1_000, 86_400_000>,
    /// Time limit of a query, over all servers and tries.
    pub timeout: Seconds<100, 60_000>,
    /// The hosts file: names in it are not looked up elsewhere. Changes of the file take effect within seconds.
    #[schemars(length(min = 1, max = 4096))]
    pub hosts: String,
    /// The system's configuration of names: search domains, `ndots`, and the servers where `servers` names none. A
    /// change of it is seen within seconds.
    #[schemars(length(min = 1, max = 4096))]
    pub resolv_conf: String,
}

/// Settings for all upstreams.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Upstreams {
    /// Time that a node is set aside after it has refused a connection, let it time out or reset it at once, where its
    /// upstream has others; then a connection to the node is tried, apart from any request, and after each such time
    /// again. 0 sets no node aside.
    pub set_aside: Seconds<0, 3_600_000>,
}

/// Watching the rules file, and the threads that work on the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigWork {
    /// Changes of the file are taken over while the gateway runs, if true. SIGHUP re-reads the file in any case.
    pub watch: bool,
    /// Interval at which the file is polled where the system does not notify of changes.
    pub poll_interval: Seconds<10, 3_600_000>,
    /// Priority below the workers of the threads that read, check, compile and keep the configuration, where there are
    /// not enough cores for all: steps of `nice`. The kernel schedules them as batch threads, too, so that they do not
    /// interrupt a worker. 0: no lower priority. With 19 a change may take long while workers use all cores.
    #[schemars(range(max = 19))]
    pub nice: u8,
}

/// Asking secret managers (`secrets` of the rules).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// Time that a secret is used before its manager is queried again. If the secret has changed, the configuration is
    /// read anew; if the manager does not answer, the secret stays in use.
    pub ttl: Seconds<100, 86_400_000>,
    /// Time limit of a query to a secret manager.
    pub timeout: Seconds<100, 60_000>,
    /// Folders below which `$secret://file` may read in resources that came over the Admin API or from etcd. None
    /// named: none. The data directory is never read. A rules file may name any other folder.
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub folders: Vec<String>,
    /// Hosts, `HOST` or `HOST:PORT`, that `$secret://vault` may query in resources that came over the Admin API or from
    /// etcd. None named: none. A rules file may name any host.
    #[schemars(length(max = 64), inner(length(min = 1, max = 300)))]
    pub hosts: Vec<String>,
    /// Variables that `$env://` may read in resources that came over the Admin API or from etcd: names, or beginnings
    /// of names with `*` behind them. Those of the gateway's own settings (`WEIR_*`) are never read there. A rules file
    /// may name any variable.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub environment: Vec<String>,
}

/// The value of the Server field of responses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ServerHeader(
    #[schemars(length(max = 128), regex(pattern = r"^([!-~]([ -~]*[!-~])?)?$"), extend("x-expected" = "up to 128 printable ASCII characters"))]
     String,
);

/// A name server: `ADDRESS` or `ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsServer(pub std::net::SocketAddr);

impl Settings {
    /// The port at which clients reach the gateway over HTTPS.
    #[must_use]
    pub fn https_port(&self) -> u16 {
        let listeners = || self.listen.https.iter().filter_map(|listener| listener.address.tcp());
        [self.redirect.https_port]
            .into_iter()
            .chain(listeners().map(|address| address.port()))
            .find(|port| *port != 0)
            .unwrap_or(443)
    }
}

impl Default for Listen {
    fn default() -> Self {
        let addr = |ip: [u8; 4], port| std::net::SocketAddr::new(IpAddr::from(ip), port);
        Self {
            http: vec![ListenAddr::Tcp(addr([0, 0, 0, 0], 9080)).into()],
            https: vec![ListenAddr::Tcp(addr([0, 0, 0, 0], 9443)).into()],
            tcp: Vec::new(),
            udp: Vec::new(),
            metrics: Endpoint::On(addr([127, 0, 0, 1], 9091)),
            status: Endpoint::On(addr([127, 0, 0, 1], 7085)),
            admin: AutoEndpoint::Auto,
            control: AutoEndpoint::Auto,
            threescale_backend: Endpoint::Off,
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            fallback_sni: String::new(),
            protocols: vec![TlsVersion::Tls12, TlsVersion::Tls13],
            session_tickets: true,
            mtls_hosts_on_http: false,
            trusted_certificate: "system".into(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_size: Size::constant(64 * KIB),
            header_count: 128,
            target_length: Size::constant(32 * KIB),
            body_size: Size::constant(0),
            body_rate: Size::constant(KIB),
            body_rate_grace: Seconds::constant(10_000),
            response_head_size: Size::constant(64 * KIB),
            buffered_body: Size::constant(MIB),
            body_variables: Size::constant(MIB),
            buffers: Size::constant(128 * MIB),
            mirror_copies: 128,
            mirror_body: Size::constant(256 * KIB),
            callouts: 4_096,
            callout_body: Size::constant(MIB),
            admin_body: Size::constant(1536 * KIB),
            admin_memory: Size::constant(64 * MIB),
            admin_lists: 8,
            admin_answer: Size::constant(4 * MIB),
            connections: 65_536,
            udp_sessions: 16_384,
            requests_per_connection: 100_000,
            upstream_idle_connections: 4_096,
            metric_series: 50_000,
            limit_keys: 1_000_000,
            route_entries: 65_536,
            compiled_size: Size::constant(512 * MIB),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Seconds::constant(10_000),
            handshake: Seconds::constant(10_000),
            idle: Seconds::constant(75_000),
            connection_age: Seconds::constant(3_600_000),
            body: Seconds::constant(60_000),
            send: Seconds::constant(60_000),
            stream_idle: Seconds::constant(600_000),
            udp_idle: Seconds::constant(60_000),
            websocket: Seconds::constant(0),
            plugin: Seconds::constant(60_000),
            drain: Seconds::constant(30_000),
            drain_idle: Seconds::constant(10_000),
            drain_websocket: Seconds::constant(10_000),
            upgrade: Seconds::constant(60_000),
        }
    }
}

impl Default for RealIp {
    fn default() -> Self {
        Self { header: "X-Real-IP".into(), trusted: Vec::new(), recursive: false }
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            min_ttl: Seconds::constant(1_000),
            max_ttl: Seconds::constant(300_000),
            timeout: Seconds::constant(5_000),
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

impl Default for Upstreams {
    fn default() -> Self {
        Self { set_aside: Seconds::constant(10_000) }
    }
}

impl Default for ConfigWork {
    fn default() -> Self {
        Self { watch: true, poll_interval: Seconds::constant(100), nice: 10 }
    }
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            ttl: Seconds::constant(300_000),
            timeout: Seconds::constant(5_000),
            folders: Vec::new(),
            hosts: Vec::new(),
            environment: vec!["GATEWAY_*".to_owned()],
        }
    }
}

impl Default for ServerHeader {
    fn default() -> Self {
        Self("weir".into())
    }
}

impl ServerHeader {
    /// The value; `None` when the field is neither set nor replaced.
    pub fn value(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(self.0.as_str())
    }
}
