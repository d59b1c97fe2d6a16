use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Seconds;

/// Role of this gateway in a deployment, and the source of its resources. The names are APISIX's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Deployment {
    /// Role of this process: traffic, administration or both.
    pub role: Role,
    /// Source of the resources.
    pub config_provider: ConfigProvider,
    /// The etcd that holds the resources of many gateways, for `config_provider: etcd`. See [etcd](etcd.md).
    pub etcd: Etcd,
    /// True when `etcd` stands in the settings, with whatever values.
    #[serde(skip)]
    pub etcd_is_set: bool,
}

/// Role of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Carries traffic and has the Admin API.
    #[default]
    Traditional,
    /// Has the Admin API and carries no traffic. Needs `config_provider: etcd`.
    ControlPlane,
    /// Carries traffic and has no Admin API. Writes nothing to etcd, so that rights to read are enough.
    DataPlane,
}

/// Source of the resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfigProvider {
    /// The rules file on the command line. Without one etcd where `deployment.etcd` is set, as in APISIX, and else the
    /// embedded store.
    #[default]
    Auto,
    /// etcd, in APISIX's layout.
    Etcd,
    /// The rules file on the command line. Without one the Admin API, which takes the configuration as a whole and
    /// keeps it in memory only: API-driven standalone mode.
    Yaml,
    /// As `yaml`: both take YAML and JSON.
    Json,
}

/// The etcd that holds resources.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Etcd {
    /// The members of one cluster, as `http://HOST:PORT` or `https://HOST:PORT`. One after the other is used; a member
    /// that does not answer is left for the next.
    #[schemars(length(min = 1, max = 64))]
    pub host: Vec<EtcdUrl>,
    /// Prefix of all keys.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^(/[0-9a-zA-Z._-]+)+$"), extend("x-expected" = "a path such as /apisix"))]
    pub prefix: String,
    /// The user, if etcd requires one.
    #[schemars(length(max = 256))]
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// Time limit of a request to etcd, connecting included.
    pub timeout: Seconds<100, 600_000>,
    /// Lifetime of one watch before it is set up again.
    pub watch_timeout: Seconds<1_000, 3_600_000>,
    /// Interval at which the watch is checked for missed events.
    pub health_check_interval: Seconds<100, 3_600_000>,
    /// First delay before etcd is tried again after a failure. Each failure in a row doubles the delay, up to 16 times;
    /// each delay is random between half of it and all of it, so that many gateways do not reconnect at once.
    pub resync_delay: Seconds<10, 600_000>,
    /// Further tries to reach etcd at start before the local copy is used.
    #[schemars(range(max = 100))]
    pub startup_retry: u32,
    /// TLS towards etcd.
    pub tls: EtcdTls,
    /// Encryption of secrets in etcd.
    pub data_encryption: DataEncryption,
}

/// TLS towards etcd, for members with `https`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdTls {
    /// The authorities that members are verified by: `system`, or the path of a file in PEM.
    #[schemars(length(min = 1, max = 4096))]
    pub ca: String,
    /// The path of the certificate that is shown to members, in PEM; empty for none.
    #[schemars(length(max = 4096))]
    pub cert: String,
    /// The path of the private key of `cert`, in PEM.
    #[schemars(length(max = 4096))]
    pub key: String,
    /// Verification of the members' certificates.
    pub verify: bool,
    /// The server name (SNI) that certificates are verified for; empty for the host of the member.
    #[schemars(length(max = 253), regex(pattern = r"^[0-9a-zA-Z._-]*$"), extend("x-expected" = "a host name"))]
    pub sni: String,
}

/// Encryption of secrets in etcd, readable by APISIX: AES-128 in CBC mode.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataEncryption {
    /// Fields of plugins that hold secrets are encrypted when they are written, if true. Private keys of `ssls` and
    /// upstreams always are. Encrypted values are read either way.
    pub enable_encrypt_fields: bool,
    /// Keys of 16 bytes. The first one encrypts, all of them decrypt. None: the two that APISIX comes with, which are
    /// public.
    #[schemars(length(max = 16))]
    pub keyring: Vec<Secret>,
}

/// A text that is not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

/// The address of a member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl(String);

impl Default for Etcd {
    fn default() -> Self {
        Self {
            host: vec![EtcdUrl("http://127.0.0.1:2379".into())],
            prefix: "/apisix".into(),
            user: String::new(),
            password: Secret::default(),
            timeout: Seconds::constant(30_000),
            watch_timeout: Seconds::constant(50_000),
            health_check_interval: Seconds::constant(10_000),
            resync_delay: Seconds::constant(500),
            startup_retry: 2,
            tls: EtcdTls::default(),
            data_encryption: DataEncryption::default(),
        }
    }
}

impl Default for EtcdTls {
    fn default() -> Self {
        Self { ca: "system".into(), cert: String::new(), key: String::new(), verify: true, sni: String::new() }
    }
}

impl Default for DataEncryption {
    fn default() -> Self {
        Self { enable_encrypt_fields: true, keyring: Vec::new() }
    }
}

impl Secret {
    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { "***" })
    }
}

impl Serialize for Secret {
    /// Never with the text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "" } else { "***" })
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": 4096 })
    }
}

const URL_EXPECTED: &str = "http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:2379";

impl EtcdUrl {
    /// The address, without a slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
        let (host, port) = authority.rsplit_once(':')?;
        let named =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => named(host),
        };
        let port = port.parse::<u16>().is_ok_and(|port| port != 0);
        (good && port).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for EtcdUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for EtcdUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &URL_EXPECTED))
    }
}

impl JsonSchema for EtcdUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "EtcdUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-expected": URL_EXPECTED })
    }
}

#[cfg(test)]
mod tests {
    use super::{EtcdUrl, Secret};

    #[test]
    fn addresses_of_members_are_checked() {
        let cases = [
            ("http://127.0.0.1:2379", Some("http://127.0.0.1:2379")),
            ("https://etcd-0.etcd:2379/", Some("https://etcd-0.etcd:2379")),
            ("http://[::1]:2379", Some("http://[::1]:2379")),
            ("http://127.0.0.1", None),
            ("127.0.0.1:2379", None),
            ("http://a:0", None),
            ("http://user@a:1", None),
            ("http://a:2379/v3", None),
            ("unix:///run/etcd:1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(EtcdUrl::parse(text).as_ref().map(EtcdUrl::as_str), expected, "{text}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(serde_json::to_string(&secret).ok().as_deref(), Some("\"***\""));
        assert_eq!(secret.expose(), "hunter2");
    }
}
