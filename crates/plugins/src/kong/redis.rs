//! Redis as Kong's plugins configure it: nested since Kong 3.8, flat before.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Invalid;

use crate::traffic::redis::SingleServer;

/// Paths of the passwords, for stores that encrypt.
pub(super) const ENCRYPTED: &[&str] = &["redis.password", "redis_password"];

/// The server.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Nested {
    /// Name or address.
    host: Option<String>,
    /// Port; 6379.
    #[schemars(range(min = 1))]
    port: Option<u16>,
    /// User of an access control list.
    username: Option<String>,
    /// Password.
    password: Option<String>,
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
    server_name: Option<String>,
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

impl RedisFields {
    /// The server; a nested field takes precedence over a flat one.
    pub(super) fn server(self) -> Result<SingleServer, Invalid> {
        let nested = self.redis.unwrap_or_default();
        let Some(host) = nested.host.or(self.redis_host).filter(|host| !host.is_empty()) else {
            return Err(Invalid::new("redis.host", "required field missing: policy redis needs a server"));
        };
        if let Some(name) = nested.server_name.or(self.redis_server_name)
            && name != host
        {
            let text = "a name other than redis.host is not supported: write the name as redis.host";
            return Err(Invalid::new("redis.server_name", text));
        }
        let text = |nested: Option<String>, flat: Option<String>| nested.or(flat).filter(|text| !text.is_empty());
        Ok(SingleServer {
            host,
            port: nested.port.or(self.redis_port).unwrap_or(6379),
            username: text(nested.username, self.redis_username),
            password: text(nested.password, self.redis_password),
            database: nested.database.or(self.redis_database).unwrap_or(0),
            timeout: nested.timeout.or(self.redis_timeout).unwrap_or(2000).max(1),
            ssl: nested.ssl.or(self.redis_ssl).unwrap_or(false),
            ssl_verify: nested.ssl_verify.or(self.redis_ssl_verify).unwrap_or(false),
        })
    }
}
