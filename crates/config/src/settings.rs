//! The gateway's own settings: file `weir.yaml`, environment variables, flags.
//!
//! Every setting has a default. [`Settings::load`] lays the file over the defaults, the environment over the file and
//! the flags over the environment. A setting `limits.head_size` is the variable `WEIR_LIMITS_HEAD_SIZE`.

mod address;
mod admin;
pub mod apisix;
mod choice;
mod deployment;
mod file_mode;
mod listener;
mod names;
mod overlay;
mod quantity;
mod store;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use address::{AutoEndpoint, Endpoint, ListenAddr};
pub(crate) use address::{UNIX, unix_path};
pub use admin::{Admin, AdminKey, AdminRole, AdminTls, Viewer};
pub use choice::{
    AccessLogEscape, AccessLogFormat, AccessLogPath, ErrorLogPath, LogLevel, MetricTypes, RouterMode, TlsVersion,
    Workers,
};
pub use deployment::{ConfigProvider, DataEncryption, Deployment, Etcd, EtcdTls, EtcdUrl, Role, Secret};
pub use file_mode::FileMode;
pub use listener::Listener;
pub use names::PluginNames;
pub use overlay::{Leaf, SettingsSource, leaves};
pub use quantity::{GIB, KIB, MIB, Seconds, Size};
pub use store::Store;

use crate::resource::AddrRange;

/// The gateway's own settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Addresses to listen on.
    pub listen: Listen,
    /// How many workers carry traffic: `auto` for one per core, or 1 to 1024.
    pub workers: Workers,
    /// How routes are matched; the names are APISIX's.
    pub router: RouterMode,
    /// The plugins that may be configured; every other one is refused. `*` stands for all that the gateway has; with an empty
    /// list there is none.
    pub plugins: PluginNames,
    /// Listeners that speak the PROXY protocol.
    pub proxy_protocol: ProxyProtocol,
    /// What is done to a path before routes are matched.
    pub uri: UriHandling,
    /// TLS towards clients and upstreams.
    pub tls: Tls,
    /// What is refused or closed for being too much.
    pub limits: Limits,
    /// What is cut for being too slow.
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
    /// What plugins report, such as `http-logger`, on its way.
    pub reports: Reports,
    /// The gateway's own messages.
    pub error_log: ErrorLog,
    /// Prometheus metrics, served at `listen.metrics`.
    pub metrics: Metrics,
    /// Whether X-APISIX-Upstream-Status stands in every proxied response, not only in those with a 5xx status from the
    /// upstream.
    pub show_upstream_status_in_response_header: bool,
    /// The Server field of responses, in the place of the upstream's; an empty text leaves the upstream's as it is.
    pub server_header: ServerHeader,
    /// Resolving the names of upstream nodes.
    pub dns: Dns,
    /// What holds for all upstreams.
    pub upstream: Upstreams,
    /// Watching the rules file, and the threads that work on the configuration.
    pub config: ConfigWork,
    /// Asking secret managers.
    pub secrets: Secrets,
    /// What this gateway is among others, and where its resources come from.
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
    /// (whether connections begin with a PROXY protocol header) and `mode` (of a Unix socket, `"0666"`). Port 0 takes a
    /// free one; a line at start names it. See [listeners](listeners.md).
    #[schemars(length(min = 1, max = 64))]
    pub http: Vec<Listener>,
    /// Traffic over TLS: a list like that of `listen.http`, which may be empty. Certificates come from `ssls` of the rules; with
    /// none there, one made at start shows that the listener works, and clients do not trust it.
    #[schemars(length(max = 64))]
    pub https: Vec<Listener>,
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
}

/// TLS towards clients and upstreams.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The name whose certificate is shown to clients that ask for none, such as those that know the address alone.
    /// Empty: they are refused.
    #[schemars(length(max = 253), regex(pattern = r"^[0-9a-zA-Z._-]*$"), extend("x-expected" = "a host name"))]
    pub fallback_sni: String,
    /// The versions that are spoken with clients: `TLSv1.2`, `TLSv1.3`. `ssl_protocols` of a certificate goes before it.
    #[schemars(length(min = 1, max = 2), extend("uniqueItems" = true))]
    pub protocols: Vec<TlsVersion>,
    /// Whether clients get tickets to resume their session with. Their keys are renewed every six hours.
    pub session_tickets: bool,
    /// Whether hosts that ask clients for a certificate (`client` of `ssls`) are served over plain HTTP as well, where
    /// nobody can show one: for a proxy in front that ends TLS and verifies certificates itself. Otherwise such a request is
    /// answered 400, unless its path is one of `skip_mtls_uri_regex`.
    pub mtls_hosts_on_http: bool,
    /// The authorities that nodes with `tls.verify` are verified by: `system`, or the path of a file in PEM.
    #[schemars(length(min = 1, max = 4096))]
    pub trusted_certificate: String,
}

/// Listeners that speak the PROXY protocol, which tells the client's address ahead of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyProtocol {
    /// Peers that are believed on listeners with `proxy_protocol`: addresses and ranges. Connections of all others are
    /// closed. Whoever may open a Unix socket is believed there.
    pub trusted: Vec<AddrRange>,
}

/// What is done to a path before routes are matched.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UriHandling {
    /// Whether `/a/` is matched as `/a`.
    pub delete_tail_slash: bool,
    /// Whether `;parameters` of path segments are taken away before matching, as servlet containers do.
    pub normalize_like_servlet: bool,
    /// Whether `%2F` stays encoded when routes are matched, so that it is no separator of segments.
    pub match_encoded_slash: bool,
    /// Whether a path with `;` or `\\` is served even when a server that cuts `;parameters`, or takes `\\` for `/`, would
    /// read a path that another route takes. Otherwise it is answered 400.
    pub allow_ambiguous: bool,
}

/// What is refused or closed for being too much.
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
    /// How long a request body may be slower than `body_rate` at its beginning.
    pub body_rate_grace: Seconds<1_000, 3_600_000>,
    /// Bytes of a response head from an upstream. More is answered 502.
    pub response_head_size: Size<{ KIB }, { MIB }>,
    /// Bytes of a body that is held whole, because a plugin needs all of it. More is answered 413 (a request) or
    /// 502 (a response): a plugin must not let pass what it has not seen.
    pub buffered_body: Size<0, { GIB }>,
    /// Bytes of a request body that variables read (`post_arg_…`, `post_arg.…`, `graphql_…`), up to `buffered_body`. Of a
    /// longer body none of them is set. 0: of none. A body is only read where a variable is asked for: before there is a
    /// route, where one that may take the request asks for it in its `vars`.
    pub body_variables: Size<0, { GIB }>,
    /// Memory for what messages may fill beyond the ordinary, over all workers: bodies that a plugin needs whole, copies
    /// for mirrors, heads over 16 KiB, large buffers for long bodies, compressors, answers made here that wait for a
    /// slow client. A request for which there is no room is answered 503; what can be done without (large buffers, copies,
    /// compression) takes no more than half. At least 4 times the largest of
    /// `buffered_body`, `head_size` and `response_head_size`.
    pub buffers: Size<{ MIB }, { 1024 * GIB }>,
    /// Copies of requests for mirrors (`proxy-mirror`) that one worker has under way. What is over is dropped and counted.
    #[schemars(range(max = 1_000_000))]
    pub mirror_copies: u32,
    /// Bytes of the body of a copy for a mirror, which is held whole until it is sent. A request with more is not
    /// copied, which is counted.
    pub mirror_body: Size<0, { GIB }>,
    /// Callouts of plugins (such as `forward-auth`) that one worker has under way. One more is not made: the plugin refuses
    /// the request, with 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub callouts: u32,
    /// Bytes of the body of an answer to a callout, which is held whole. An answer with more counts as none.
    pub callout_body: Size<0, { GIB }>,
    /// Bytes of the body of a request to the Admin API. More is answered 400.
    pub admin_body: Size<{ KIB }, { GIB }>,
    /// Bytes that bodies of requests to the Admin API, and its answers, take together; those of at most 64 KiB are not
    /// counted. More waits for up to 10 seconds, and is then answered 503.
    pub admin_memory: Size<{ MIB }, { 64 * GIB }>,
    /// Answers of the Admin API with a list of resources, or with what was changed, at one time. One more waits for up to 10
    /// seconds, and is then answered 503.
    #[schemars(range(min = 1, max = 256))]
    pub admin_lists: u32,
    /// Bytes of resources in one answer about what was changed. Changes beyond that are told without their values.
    pub admin_answer: Size<{ KIB }, { GIB }>,
    /// Client connections of the whole gateway at one time, or fewer where file descriptors (`ulimit -n`) do not allow so
    /// many. A new one takes the place of the one that has waited longest for a request; with a request under way on
    /// each, it waits in the listen queue of the system.
    #[schemars(range(min = 1, max = 16_000_000))]
    pub connections: u32,
    /// Requests on one client connection, after which it is closed; 0 for no limit.
    #[schemars(range(max = 1_000_000_000))]
    pub requests_per_connection: u32,
    /// Idle connections to upstreams that one worker keeps, over all upstreams.
    #[schemars(range(max = 1_000_000))]
    pub upstream_idle_connections: u32,
    /// Time series a metric may have; what comes beyond is counted under `other`.
    #[schemars(range(min = 100, max = 10_000_000))]
    pub metric_series: u32,
    /// Keys (addresses, consumers, …) of which one limiter keeps count. A key is forgotten when its window is over;
    /// with no room left, requests on further keys are refused.
    #[schemars(range(min = 1_000, max = 100_000_000))]
    pub limit_keys: u32,
    /// Entries of the matcher that one route may have: its hosts, or those of its service, times its URIs. A route with
    /// more is refused. With the routers that do not decide by host first it is their sum.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub route_entries: u32,
    /// Bytes that the compiled rules may take in sum, of what their text does not tell: entries of the matcher, regular
    /// expressions, turn tables and hash rings of upstreams, plugins of a service repeated on its routes. The sizes are
    /// estimates. A change that needs more is refused before it is built. It bounds the time of a change as well: 1 GiB
    /// takes up to a minute.
    pub compiled_size: Size<{ MIB }, { 1024 * GIB }>,
}

/// What is cut for being too slow. Seconds, decimals allowed; or a text with a unit: `500ms`, `5s`, `2m`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// From the first byte of a request, or from accepting a connection, to the end of its head. Later is answered
    /// 408.
    pub head: Seconds<100, 3_600_000>,
    /// From accepting a connection to the end of its TLS handshake. Later it is closed.
    pub handshake: Seconds<100, 3_600_000>,
    /// How long a kept client connection may be without a request.
    pub idle: Seconds<100, 86_400_000>,
    /// Between two reads of a request body. Later is answered 408.
    pub body: Seconds<100, 86_400_000>,
    /// Between two writes of a response to a client that does not read.
    pub send: Seconds<100, 86_400_000>,
    /// How long a plugin may wait for something outside, such as an answer to a callout, unless its own configuration
    /// says how long it waits. Later the request is answered 504.
    pub plugin: Seconds<100, 86_400_000>,
    /// How long requests in flight may take to finish after SIGTERM, SIGINT or an upgrade; then they are cut.
    pub drain: Seconds<0, 86_400_000>,
    /// How long client connections that wait for a request stay open in a process that has handed over to a new one.
    /// The next request on one is answered, with `Connection: close`; then they are closed. At most `drain`.
    pub drain_idle: Seconds<0, 86_400_000>,
    /// How long a new process may take after SIGUSR2 until it serves. Then it is killed, and the old one goes on.
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
    /// Peers that are believed: addresses and ranges. From no other peer the field is looked at.
    pub trusted: Vec<AddrRange>,
    /// In a list: whether to go on from the right past trusted addresses to the first that is not.
    pub recursive: bool,
}

/// The access log: a line for each request.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// `off`, `stdout` or the path of a file, which is reopened on SIGUSR1.
    pub path: AccessLogPath,
    /// `json`, or a text with nginx's variables: `$remote_addr "$request" $status`. For a variable that is not here `-` is
    /// written, or nothing where `access_log.escape` is `json`, with a warning at start.
    pub format: AccessLogFormat,
    /// How values are written in a line whose form is a text; nginx's `escape`. The form `json` needs none.
    pub escape: AccessLogEscape,
    /// Whether `***` stands for the values of query arguments that carry credentials: those that any key-auth or jwt-auth
    /// is configured with, whether they were looked at or not. In the request's target, its arguments and `Referer`.
    pub hide_credentials: bool,
    /// Bytes that one worker holds back until the log is written. Lines beyond are dropped and counted: the log never
    /// slows a request.
    pub buffer: Size<{ 4 * KIB }, { 64 * MIB }>,
    /// The permissions of a file that is made, less the umask of the process; a file that is there keeps its own. `0640`
    /// lets a collector read it that is of the gateway's group.
    pub mode: FileMode,
}

/// What plugins report, such as `http-logger`, on its way.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Reports {
    /// Bytes of records that one worker holds back until they are taken. Records beyond are dropped and counted: reporting
    /// never slows a request.
    pub buffer: Size<{ 4 * KIB }, { 64 * MIB }>,
    /// Bytes of batches that wait to be sent, over all plugins. Records beyond are spilled, or dropped and counted.
    pub memory: Size<{ MIB }, { 64 * GIB }>,
    /// The folder for batches that cannot be sent: a file for each collector, with mode 0600, which is sent when the
    /// collector takes batches again, also after a restart. Empty: such batches are dropped.
    pub spill: String,
    /// Most bytes of one such file.
    pub spill_size: Size<{ MIB }, { 1024 * GIB }>,
    /// How long the process may take at its end to send what waits.
    pub flush: Seconds<0, 3_600_000>,
}

/// The gateway's own messages.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ErrorLog {
    /// `stderr` or the path of a file, which is reopened on SIGUSR1.
    pub path: ErrorLogPath,
    /// The least important messages that are logged.
    pub level: LogLevel,
    /// The permissions of a file that is made, as `access_log.mode`.
    pub mode: FileMode,
}

/// Prometheus metrics.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Path at `listen.metrics`.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^/[^?#\\s]*$"), extend("x-expected" = "a path that begins with '/'"))]
    pub path: String,
    /// What the names of metrics begin with that APISIX has as well; those of this gateway alone begin with `weir_`.
    #[schemars(length(max = 64), regex(pattern = "^([a-zA-Z_:][a-zA-Z0-9_:]*)?$"), extend("x-expected" = "the beginning of a metric's name, such as apisix_"))]
    pub prefix: String,
    /// The declared types of `apisix_http_status`, `apisix_bandwidth` and `apisix_http_requests_total`: those of APISIX, or
    /// `linted`, which `promtool check metrics` takes. Prometheus itself treats both alike.
    pub types: MetricTypes,
}

/// Resolving the names of upstream nodes. The last good answer is used while none comes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// Name servers as `ADDRESS` or `ADDRESS:PORT` (port 53); none means those of the system's `/etc/resolv.conf`.
    pub servers: Vec<DnsServer>,
    /// How long an answer is used at least, whatever its TTL.
    pub min_ttl: Seconds<0, 86_400_000>,
    /// How long an answer is used at most, whatever its TTL.
    pub max_ttl: Seconds<1_000, 86_400_000>,
    /// How long an answer is waited for, over all servers and tries.
    pub timeout: Seconds<100, 60_000>,
    /// The hosts file: names in it are not asked for. A change of it is seen within seconds.
    #[schemars(length(min = 1, max = 4096))]
    pub hosts: String,
    /// The system's configuration of names: search domains, `ndots`, and the servers where `servers` names none. A change
    /// of it is seen within seconds.
    #[schemars(length(min = 1, max = 4096))]
    pub resolv_conf: String,
}

/// What holds for all upstreams.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Upstreams {
    /// How long a node is set aside that refuses connections, lets them time out or resets them at once, where its
    /// upstream has others; then a connection to it is tried, apart from any request, and after each such time again.
    /// 0 sets no node aside.
    pub set_aside: Seconds<0, 3_600_000>,
}

/// Watching the rules file, and the threads that work on the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigWork {
    /// Whether a change of the file is taken over while the gateway runs. SIGHUP re-reads it in any case.
    pub watch: bool,
    /// How often the file is looked at where the system does not tell of changes.
    pub poll_interval: Seconds<10, 3_600_000>,
    /// How far the threads that read, check, compile and keep the configuration stand back behind the workers where
    /// there are not enough cores for all: steps of `nice`. They are a batch to the kernel, too, and do not interrupt a
    /// worker. 0: not at all. With 19 a change may take long to come through while workers use all there is.
    #[schemars(range(max = 19))]
    pub nice: u8,
}

/// Asking secret managers (`secrets` of the rules).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// How long a secret is used before its manager is asked again. When it is another one then, the configuration is
    /// read anew; when the manager does not answer, it stays.
    pub ttl: Seconds<100, 86_400_000>,
    /// How long an answer is waited for.
    pub timeout: Seconds<100, 60_000>,
    /// Folders below which `$secret://file` may read in resources that came over the Admin API or from etcd. None named:
    /// none. The data directory is never read. A rules file may name any other folder.
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub folders: Vec<String>,
    /// Hosts, `HOST` or `HOST:PORT`, at which `$secret://vault` may ask in resources that came over the Admin API or from
    /// etcd. None named: none. A rules file may name any host.
    #[schemars(length(max = 64), inner(length(min = 1, max = 300)))]
    pub hosts: Vec<String>,
    /// Variables that `$env://` may read in resources that came over the Admin API or from etcd: names, or beginnings of
    /// names with `*` behind them. Those of the gateway's own settings (`WEIR_*`) are never read there. A rules file may
    /// name any variable.
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
            metrics: Endpoint::On(addr([127, 0, 0, 1], 9091)),
            status: Endpoint::On(addr([127, 0, 0, 1], 7085)),
            admin: AutoEndpoint::Auto,
            control: AutoEndpoint::Auto,
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
            body: Seconds::constant(60_000),
            send: Seconds::constant(60_000),
            plugin: Seconds::constant(60_000),
            drain: Seconds::constant(30_000),
            drain_idle: Seconds::constant(10_000),
            upgrade: Seconds::constant(60_000),
        }
    }
}

impl Default for RealIp {
    fn default() -> Self {
        Self { header: "X-Real-IP".into(), trusted: Vec::new(), recursive: false }
    }
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            buffer: Size::constant(MIB),
            memory: Size::constant(64 * MIB),
            spill: String::new(),
            spill_size: Size::constant(256 * MIB),
            flush: Seconds::constant(5_000),
        }
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        Self {
            path: AccessLogPath::Off,
            format: AccessLogFormat::Json,
            escape: AccessLogEscape::Default,
            hide_credentials: true,
            buffer: Size::constant(256 * KIB),
            mode: FileMode::OWNER,
        }
    }
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self { path: ErrorLogPath::default(), level: LogLevel::default(), mode: FileMode::OWNER }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { path: "/apisix/prometheus/metrics".into(), prefix: "apisix_".into(), types: MetricTypes::default() }
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
