//! Redis, where limiters of several gateways count together.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aws_lc_rs::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_config::{Code, Diagnostic, Node};
use weir_plugin::{BuildCx, Invalid, RequestCx, Slot};
use weir_redis::{Client, Error, Script, Server, Settings, Topology, Value};

use crate::traffic::key::KeySource;
use crate::traffic::policy::Policy;

/// Longest wait for Redis of a request that passes without it.
const DEGRADED_WAIT: Duration = Duration::from_millis(50);
/// Microseconds from one message about failures to the next.
const TOLD_EVERY: u64 = 1_000_000;
/// Longest part of a key that is written as it is.
const LONGEST_VALUE: usize = 64;
/// Milliseconds for which a connection stays open without a command, as in APISIX: with sentinels and without.
const KEEPALIVE: u64 = 10_000;
const SENTINEL_KEEPALIVE: u64 = 60_000;

/// The fields of a limiter that are about Redis.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct RedisConf {
    /// With `policy: redis`, which needs it: name or address of the server, or `unix:` and the path of its socket.
    #[schemars(length(min = 2))]
    redis_host: Option<String>,
    /// With `policy: redis`: port of the server.
    #[schemars(range(min = 1))]
    redis_port: u16,
    /// User of an access control list. Without it, and with `redis_password`, the default user. Not with
    /// `redis-cluster`.
    #[schemars(length(min = 1))]
    redis_username: Option<String>,
    /// Password of the servers. Without it, or with an empty one, they are sent none.
    redis_password: Option<String>,
    /// Number of the database. Not with `redis-cluster`, which has only 0.
    redis_database: u32,
    /// Milliseconds in which a connection has to stand, and again in which a reply has to come. With
    /// `allow_degradation` a request waits for 50 at most. Not with `redis-sentinel`.
    #[schemars(range(min = 1, max = 86_400_000))]
    redis_timeout: u64,
    /// With `policy: redis`: true for TLS.
    redis_ssl: bool,
    /// With `redis_ssl`: true where the server's certificate has to be one of `redis_host`, from an authority of the
    /// setting `tls.trusted_certificate`.
    redis_ssl_verify: bool,
    /// Milliseconds after which a connection without a command is closed; 10000, and with `redis-sentinel` 60000.
    #[schemars(range(min = 1, max = 86_400_000))]
    redis_keepalive_timeout: Option<u64>,
    /// Most unused connections that are kept open. Each worker has one connection to a server for all requests, so any
    /// number is kept to.
    #[schemars(range(min = 1))]
    redis_keepalive_pool: u32,
    /// With `policy: redis-cluster`, which needs it: some of the servers, each as `host:port`. The others are learnt
    /// from them.
    #[schemars(length(min = 1), inner(length(min = 2, max = 100)))]
    redis_cluster_nodes: Option<Vec<String>>,
    /// With `policy: redis-cluster`, which needs it: a name for the cluster. Nothing is looked up by it.
    redis_cluster_name: Option<String>,
    /// With `policy: redis-cluster`: true for TLS.
    redis_cluster_ssl: bool,
    /// With `redis_cluster_ssl`: as `redis_ssl_verify`, for each server by the host that the cluster tells of it.
    redis_cluster_ssl_verify: bool,
    /// With `policy: redis-sentinel`, which needs it: the sentinels.
    #[schemars(length(min = 1))]
    redis_sentinels: Option<Vec<Sentinel>>,
    /// With `policy: redis-sentinel`, which needs it: the name under which the sentinels know the master.
    #[schemars(length(min = 1))]
    redis_master_name: Option<String>,
    /// With `policy: redis-sentinel`: which server is used. Only `master`, for counts are written.
    redis_role: Role,
    /// With `policy: redis-sentinel`: milliseconds in which a connection has to stand.
    #[schemars(range(min = 1, max = 86_400_000))]
    redis_connect_timeout: u64,
    /// With `policy: redis-sentinel`: milliseconds in which a reply has to come.
    #[schemars(range(min = 1, max = 86_400_000))]
    redis_read_timeout: u64,
    /// With `policy: redis-sentinel`: user that the sentinels ask for.
    #[schemars(length(min = 1))]
    sentinel_username: Option<String>,
    /// With `policy: redis-sentinel`: password that the sentinels ask for.
    sentinel_password: Option<String>,
}

/// A sentinel.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// Its name or address.
    #[schemars(length(min = 2))]
    host: String,
    /// Its port.
    #[schemars(range(min = 1))]
    port: u16,
}

/// Server that is used, of those that sentinels watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Role {
    Master,
    Slave,
}

impl Default for RedisConf {
    fn default() -> Self {
        Self {
            redis_host: None,
            redis_port: 6379,
            redis_username: None,
            redis_password: None,
            redis_database: 0,
            redis_timeout: 1000,
            redis_ssl: false,
            redis_ssl_verify: false,
            redis_keepalive_timeout: None,
            redis_keepalive_pool: 100,
            redis_cluster_nodes: None,
            redis_cluster_name: None,
            redis_cluster_ssl: false,
            redis_cluster_ssl_verify: false,
            redis_sentinels: None,
            redis_master_name: None,
            redis_role: Role::Master,
            redis_connect_timeout: 1000,
            redis_read_timeout: 1000,
            sentinel_username: None,
            sentinel_password: None,
        }
    }
}

/// One server of `policy: redis`, as another family names its fields.
#[derive(Debug, Clone)]
pub(crate) struct SingleServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    /// Milliseconds to connect, and again for a reply.
    pub(crate) timeout: u64,
    pub(crate) ssl: bool,
    pub(crate) ssl_verify: bool,
}

impl SingleServer {
    /// Reads `redis://USER:PASSWORD@HOST:PORT/DATABASE`, of which all but the host may be left out; user and
    /// password stand as they are. `None` for another text.
    pub(crate) fn of_url(url: &str, timeout: u64) -> Option<Self> {
        let rest = url.strip_prefix("redis://")?;
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, server) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let (username, password) = login.map_or(("", ""), |login| login.split_once(':').unwrap_or(("", login)));
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let has_port = server.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let Server { host, port } = match has_port {
            true => Server::parse(server)?,
            false => Server::parse(&format!("{server}:6379"))?,
        };
        Some(Self {
            host: host.into(),
            port,
            username: given(username),
            password: given(password),
            database: if database.is_empty() { 0 } else { database.parse().ok()? },
            timeout,
            ssl: false,
            ssl_verify: false,
        })
    }

    /// The way to the server. With `degrade` a request waits for it no longer than one that passes without it may.
    pub(crate) fn connect(self, degrade: bool, build: &BuildCx<'_>) -> Result<Redis, Invalid> {
        let conf = RedisConf::from(self);
        match conf.topology(Policy::Redis)? {
            Some(topology) => Redis::new((&conf, Policy::Redis, topology), "", degrade, build),
            None => Err(Invalid::new("redis", "required field missing")),
        }
    }
}

impl From<SingleServer> for RedisConf {
    fn from(server: SingleServer) -> Self {
        Self {
            redis_host: Some(server.host),
            redis_port: server.port,
            redis_username: server.username,
            redis_password: server.password,
            redis_database: server.database,
            redis_timeout: server.timeout,
            redis_ssl: server.ssl,
            redis_ssl_verify: server.ssl_verify,
            ..Self::default()
        }
    }
}

/// Fields that every policy but `local` has.
const OF_ALL: [&str; 4] = ["redis_password", "redis_keepalive_timeout", "redis_keepalive_pool", "key_ttl"];
const OF_REDIS: [&str; 7] =
    ["redis_host", "redis_port", "redis_username", "redis_database", "redis_timeout", "redis_ssl", "redis_ssl_verify"];
const OF_CLUSTER: [&str; 5] =
    ["redis_timeout", "redis_cluster_nodes", "redis_cluster_name", "redis_cluster_ssl", "redis_cluster_ssl_verify"];
const OF_SENTINEL: [&str; 9] = [
    "redis_username",
    "redis_database",
    "redis_sentinels",
    "redis_master_name",
    "redis_role",
    "redis_connect_timeout",
    "redis_read_timeout",
    "sentinel_username",
    "sentinel_password",
];

/// Secrets among the fields.
pub(crate) const ENCRYPTED: &[&str] = &["redis_password", "sentinel_password"];

impl RedisConf {
    /// Warns of fields that the policy has no use for.
    pub(crate) fn unused(conf: &Node) -> Vec<Diagnostic> {
        let policy = conf.get("policy").and_then(Node::as_str).unwrap_or("local");
        let used: &[&str] = match policy {
            "redis" => &OF_REDIS,
            "redis-cluster" => &OF_CLUSTER,
            "redis-sentinel" => &OF_SENTINEL,
            _ => &[],
        };
        let is_common = |name: &str| policy != "local" && OF_ALL.contains(&name);
        let known = [&OF_ALL[..], &OF_REDIS, &OF_CLUSTER, &OF_SENTINEL].concat();
        let is_unused = |name: &str| known.contains(&name) && !used.contains(&name) && !is_common(name);
        let fields = conf.as_map().into_iter().flatten();
        fields
            .filter(|(key, _)| is_unused(&key.text))
            .map(|(key, _)| {
                let code = Code::PluginRule { text: format!("it has no effect with policy {policy}").into() };
                Diagnostic::warning(key.mark, &*key.text, code)
            })
            .collect()
    }

    /// The servers of a policy; none for `local`.
    pub(crate) fn topology(&self, policy: Policy) -> Result<Option<Topology>, Invalid> {
        let missing = |field: &str| {
            let policy = policy.name();
            Invalid::new(field, format!("the field is missing: policy {policy} needs it"))
        };
        Ok(Some(match policy {
            Policy::Local => return Ok(None),
            Policy::Redis => {
                let host = self.redis_host.as_deref().ok_or_else(|| missing("redis_host"))?;
                Topology::Single(Server { host: host.into(), port: self.redis_port })
            }
            Policy::RedisCluster => {
                let nodes = self.redis_cluster_nodes.as_ref().ok_or_else(|| missing("redis_cluster_nodes"))?;
                self.redis_cluster_name.as_ref().ok_or_else(|| missing("redis_cluster_name"))?;
                let server = |(at, text): (usize, &String)| {
                    let field = format!("redis_cluster_nodes[{at}]");
                    Server::parse(text).ok_or_else(|| Invalid::new(field, "expected HOST:PORT"))
                };
                Topology::Cluster(nodes.iter().enumerate().map(server).collect::<Result<_, _>>()?)
            }
            Policy::RedisSentinel => {
                if self.redis_role == Role::Slave {
                    return Err(Invalid::new(
                        "redis_role",
                        "expected master: counts are written, and replicas take no writes",
                    ));
                }
                let sentinels = self.redis_sentinels.as_ref().ok_or_else(|| missing("redis_sentinels"))?;
                let master = self.redis_master_name.as_ref().ok_or_else(|| missing("redis_master_name"))?;
                let server = |sentinel: &Sentinel| Server { host: sentinel.host.as_str().into(), port: sentinel.port };
                Topology::Sentinel {
                    sentinels: sentinels.iter().map(server).collect(),
                    master: master.clone(),
                    username: self.sentinel_username.clone(),
                    password: self.sentinel_password.clone(),
                }
            }
        }))
    }

    fn settings(&self, policy: Policy, topology: Topology, cx: &BuildCx<'_>) -> Result<Settings, Invalid> {
        let (field, ssl, verify) = match policy {
            Policy::Redis => ("redis_ssl_verify", self.redis_ssl, self.redis_ssl_verify),
            Policy::RedisCluster => ("redis_cluster_ssl_verify", self.redis_cluster_ssl, self.redis_cluster_ssl_verify),
            Policy::Local | Policy::RedisSentinel => ("", false, false),
        };
        let tls = ssl.then(|| cx.network.tls(verify)).transpose().map_err(|reason| Invalid::new(field, reason))?;
        let millis = |millis: u64| Duration::from_millis(millis);
        let is_cluster = policy == Policy::RedisCluster;
        let (connect_timeout, timeout, keepalive) = match policy {
            Policy::RedisSentinel => (self.redis_connect_timeout, self.redis_read_timeout, SENTINEL_KEEPALIVE),
            _ => (self.redis_timeout, self.redis_timeout, KEEPALIVE),
        };
        Ok(Settings {
            topology,
            username: self.redis_username.clone().filter(|_| !is_cluster),
            password: self.redis_password.clone(),
            database: if is_cluster { 0 } else { self.redis_database },
            tls,
            connect_timeout: millis(connect_timeout),
            timeout: millis(timeout),
            keepalive: millis(self.redis_keepalive_timeout.unwrap_or(keepalive)),
            network: Arc::clone(cx.network),
        })
    }
}

/// A limiter's way to its Redis.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    /// Shared by all that have the same settings.
    shared: Arc<Shared>,
    /// Longest wait for a reply, where it is shorter than that of the settings.
    patience: Option<Duration>,
    /// Beginning of its keys.
    prefix: Arc<str>,
}

#[derive(Debug)]
struct Shared {
    settings: Arc<Settings>,
    workers: Slot<Worker>,
}

/// The state of a worker.
#[derive(Debug)]
struct Worker {
    client: Client,
    /// Time of the last failure that was logged.
    told: Cell<Option<u64>>,
}

impl Redis {
    /// The way to the Redis of a limiter. `version` stands for what of the configuration counts depend on, and keys of
    /// different versions are apart.
    pub(crate) fn new(
        (conf, policy, topology): (&RedisConf, Policy, Topology),
        version: &str,
        degrade: bool,
        cx: &BuildCx<'_>,
    ) -> Result<Self, Invalid> {
        let settings = conf.settings(policy, topology, cx)?;
        let written = serde_json::to_string(&(policy, conf)).unwrap_or_default();
        let shared = cx.states.get_or_create(&format!("redis {}", hex(written.as_bytes(), 32)), || Shared {
            settings: Arc::new(settings),
            workers: Slot::default(),
        });
        let prefix = format!("weir:{}:{version}:", cx.plugin).into();
        Ok(Self { shared, patience: degrade.then_some(DEGRADED_WAIT), prefix })
    }

    /// Runs a script.
    ///
    /// # Errors
    /// Reason that there is no result; it is logged already.
    pub(crate) async fn run(&self, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Value, Error> {
        let worker = self.worker();
        self.finish(&worker, worker.client.run(script, key, arguments)).await
    }

    /// Runs a script that must not run twice.
    ///
    /// # Errors
    /// As those of [`run`](Self::run); the script may have run nevertheless.
    pub(crate) async fn run_once(&self, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Value, Error> {
        let worker = self.worker();
        self.finish(&worker, worker.client.run_once(script, key, arguments)).await
    }

    fn worker(&self) -> Rc<Worker> {
        let Shared { settings, workers } = &*self.shared;
        workers.get_or_start(|| Worker { client: Client::new(settings), told: Cell::new(None) })
    }

    /// Waits for a reply, and reports where there is none.
    async fn finish(
        &self,
        worker: &Worker,
        running: impl Future<Output = Result<Value, Error>>,
    ) -> Result<Value, Error> {
        let settings = &self.shared.settings;
        let result = match self.patience {
            None => running.await,
            Some(patience) => weir_runtime::timeout(patience, running).await.unwrap_or(Err(Error::Timeout)),
        };
        if let Err(error) = &result {
            let now = weir_runtime::now_us();
            if worker.told.get().is_none_or(|told| now.saturating_sub(told) >= TOLD_EVERY) {
                worker.told.set(Some(now));
                tracing::warn!(redis = ?settings.topology, %error, "Redis cannot be asked");
            }
        }
        result
    }

    /// The same beside the request: nobody waits for it. Nothing is done in a thread that has not asked before.
    pub(crate) fn run_beside(&self, script: &'static Script, key: Box<[u8]>, argument: Box<[u8]>) {
        if self.shared.workers.get().is_none() {
            return;
        }
        let this = Self { patience: None, ..self.clone() };
        weir_runtime::spawn(async move {
            // A failure is logged elsewhere; an entry that stays expires.
            let _ = this.run(script, &key, &[&argument]).await;
        });
    }

    /// The settings, for a client of another thread.
    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.shared.settings
    }

    /// The beginning of its keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Writes the beginning of its keys.
    pub(crate) fn write_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
    }

    /// Writes the key of a request: the prefix, the number of the limit, and what is counted apart. False where a rule
    /// does not concern the request.
    pub(crate) fn write_key(&self, source: &KeySource, number: u32, cx: &RequestCx<'_>, out: &mut Vec<u8>) -> bool {
        self.write_prefix(out);
        weir_wire::push_number(out, number.into());
        out.push(b':');
        let at = out.len();
        if !source.write(number, cx, out) {
            return false;
        }
        shorten(at, out);
        true
    }

    /// The key of a text.
    pub(crate) fn key_of(&self, text: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + text.len());
        self.write_prefix(&mut key);
        let at = key.len();
        key.extend_from_slice(text);
        shorten(at, &mut key);
        key
    }
}

/// Replaces a long text that begins at `at` by its digest.
fn shorten(at: usize, out: &mut Vec<u8>) {
    if out.len() - at > LONGEST_VALUE {
        let digest = hex(out.get(at..).unwrap_or_default(), 32);
        out.truncate(at);
        out.extend_from_slice(b"sha256:");
        out.extend_from_slice(digest.as_bytes());
    }
}

/// Runs futures until all are complete. Commands that they send go out in one write.
pub(crate) async fn together(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    poll_fn(|cx| {
        for future in &mut futures {
            future.take_if(|future| future.as_mut().poll(cx).is_ready());
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The version of keys: a digest of the place, or of the group of several, and of these fields of the configuration.
pub(crate) fn version(place: &str, conf: &Node, fields: &[&str]) -> String {
    let mut written = String::new();
    for field in fields {
        let value = conf.get(field).map(Node::to_json);
        written.push_str(&format!("{field}={};", value.map(|value| value.to_string()).unwrap_or_default()));
    }
    format!("{place}:{}", hex(written.as_bytes(), 8))
}

/// The first bytes of the SHA-256 of a text, in hexadecimal digits.
fn hex(text: &[u8], bytes: usize) -> String {
    let digest = digest::digest(&digest::SHA256, text);
    digest.as_ref().iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}
