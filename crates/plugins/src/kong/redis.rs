//! Redis as Kong's plugins configure it: nested since Kong 3.8, flat before.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Invalid;

use crate::traffic::redis::SingleServer;

/// Paths of the passwords, for stores that encrypt.
pub(super) const ENCRYPTED: &[&str] = &["redis.password", "redis_password"];

/// The server.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Nested {
    /// Name or address.
    host: Option<String>,
    /// Port; 6379.
    #[schemars(range(min = 1))]
    port: Option<u16>,
    /// User of an access control list.
    username: Option<String>,
    /// Password.
    pub(super) password: Option<String>,
    /// Number of the database; 0.
    database: Option<u32>,
    /// Milliseconds to connect, and again for a reply; 2000.
    #[schemars(range(min = 1, max = 86_400_000))]
    timeout: Option<u64>,
    /// True for TLS.
    ssl: Option<bool>,
    /// True where the server's certificate is verified.
    ssl_verify: Option<bool>,
    /// Name in the handshake; only that of `host`.
    pub(super) server_name: Option<String>,
}

/// The fields of a plugin that are about Redis.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RedisFields {
    /// With `policy: redis`: the server.
    redis: Option<Nested>,
    /// `redis.host` of older versions.
    redis_host: Option<String>,
    /// `redis.port` of older versions.
    redis_port: Option<u16>,
    /// `redis.username` of older versions.
    redis_username: Option<String>,
    /// `redis.password` of older versions.
    redis_password: Option<String>,
    /// `redis.database` of older versions.
    redis_database: Option<u32>,
    /// `redis.timeout` of older versions.
    redis_timeout: Option<u64>,
    /// `redis.ssl` of older versions.
    redis_ssl: Option<bool>,
    /// `redis.ssl_verify` of older versions.
    redis_ssl_verify: Option<bool>,
    /// `redis.server_name` of older versions.
    redis_server_name: Option<String>,
}

impl Nested {
    /// The server, of which the fields stand at `path`. `who` needs one.
    pub(crate) fn server(self, path: &str, who: &str) -> Result<SingleServer, Invalid> {
        let Some(host) = self.host.filter(|host| !host.is_empty()) else {
            let text = format!("required field missing: {who} needs a server");
            return Err(Invalid::new(format!("{path}.host"), text));
        };
        if self.server_name.is_some_and(|name| name != host) {
            let text = format!("a name other than {path}.host is not supported: write the name as {path}.host");
            return Err(Invalid::new(format!("{path}.server_name"), text));
        }
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(SingleServer {
            host,
            port: self.port.unwrap_or(6379),
            username: text(self.username),
            password: text(self.password),
            database: self.database.unwrap_or(0),
            timeout: self.timeout.unwrap_or(2000).max(1),
            ssl: self.ssl.unwrap_or(false),
            ssl_verify: self.ssl_verify.unwrap_or(false),
        })
    }
}

impl RedisFields {
    /// The server that `who` needs; a nested field takes precedence over a flat one.
    pub(super) fn server(self, who: &str) -> Result<SingleServer, Invalid> {
        let nested = self.redis.unwrap_or_default();
        let whole = Nested {
            host: nested.host.or(self.redis_host),
            port: nested.port.or(self.redis_port),
            username: nested.username.or(self.redis_username),
            password: nested.password.or(self.redis_password),
            database: nested.database.or(self.redis_database),
            timeout: nested.timeout.or(self.redis_timeout),
            ssl: nested.ssl.or(self.redis_ssl),
            ssl_verify: nested.ssl_verify.or(self.redis_ssl_verify),
            server_name: nested.server_name.or(self.redis_server_name),
        };
        whole.server("redis", who)
    }
}
