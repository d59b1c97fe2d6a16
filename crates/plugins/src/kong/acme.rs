//! Kong's `acme`: certificates that an authority issues by itself (RFC 8555), proved over HTTP.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_acme::{Authority, KeyKind, Names, Place};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_redis::{GET, Value};

use super::redis::Nested;
use crate::traffic::redis::{Redis, SingleServer};

/// The definition.
#[derive(Debug)]
pub(crate) struct Acme;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Address of whoever answers for the certificates.
    account_email: String,
    /// Key of the account, in Kong's store; not supported: a key is made.
    account_key: Option<serde_json::Value>,
    /// URL of the authority's directory.
    #[serde(default = "lets_encrypt")]
    api_uri: String,
    /// Accepts the terms of service of Let's Encrypt, which needs it; those of others are accepted in any case, as by Kong.
    #[serde(default)]
    tos_accepted: bool,
    /// With an account elsewhere that the one here belongs to: its id.
    eab_kid: Option<String>,
    /// With an account elsewhere that the one here belongs to: its key, in base64 for URLs.
    eab_hmac_key: Option<String>,
    /// Kind of the certificates' keys.
    #[serde(default)]
    cert_type: CertType,
    /// With `cert_type: rsa`: bits of the keys; 2048, 3072 or 4096.
    #[serde(default = "bits")]
    rsa_key_size: f64,
    /// Days before the end of a certificate at which another one is ordered. One that holds for less than three times as
    /// long is renewed in the last third of its time.
    #[serde(default = "fortnight")]
    #[schemars(range(min = 0, max = 3650))]
    renew_threshold_days: f64,
    /// Names that certificates are ordered for; `*.example.com` stands for all below it, each with a certificate of its
    /// own.
    domains: Option<Vec<String>>,
    /// Orders certificates for all names. Whoever asks for a name that leads here makes an order then.
    #[serde(default)]
    allow_any_domain: bool,
    /// Minutes after a failed order in which none is made for the same name.
    #[serde(default = "five")]
    #[schemars(range(min = 0, max = 525_600))]
    fail_backoff_minutes: f64,
    /// Place of the certificates: `shm` is the memory of this process, `kong` the folder of the embedded store, and `redis`
    /// a Redis for several gateways.
    #[serde(default)]
    storage: StorageKind,
    /// Settings of the places.
    #[serde(default)]
    storage_config: StorageConfig,
    /// Chain of certificates among several that the authority offers; not supported: its first one is taken.
    preferred_chain: Option<String>,
    /// Orders certificates for addresses of IPv4. Clients do not ask for addresses by name, so none is ordered.
    #[serde(default = "yes", rename = "enable_ipv4_common_name")]
    _enable_ipv4_common_name: bool,
}

/// Kind of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CertType {
    #[default]
    Rsa,
    Ecc,
}

/// Place of the certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum StorageKind {
    #[default]
    Shm,
    Kong,
    Redis,
    Consul,
    Vault,
}

/// Settings of the places.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct StorageConfig {
    /// For `storage: shm`.
    #[serde(rename = "shm")]
    _shm: Option<Shm>,
    /// For `storage: kong`; nothing.
    #[serde(rename = "kong")]
    _kong: Option<serde_json::Value>,
    /// For `storage: redis`.
    redis: Option<RedisStorage>,
    /// For `storage: consul`, which is not supported.
    #[serde(rename = "consul")]
    _consul: Option<serde_json::Value>,
    /// For `storage: vault`, which is not supported.
    #[serde(rename = "vault")]
    _vault: Option<serde_json::Value>,
}

/// For `storage: shm`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Shm {
    /// Name of Kong's memory, of which there is one here.
    #[serde(rename = "shm_name")]
    _shm_name: Option<String>,
}

/// The server of `storage: redis`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
struct RedisStorage {
    #[serde(flatten)]
    server: Nested,
    /// `password` of older versions.
    auth: Option<String>,
    /// `server_name` of older versions.
    ssl_server_name: Option<String>,
    /// `extra_options.namespace` of older versions.
    namespace: Option<String>,
    /// `extra_options.scan_count` of older versions.
    #[serde(rename = "scan_count")]
    _scan_count: Option<f64>,
    /// Further settings.
    extra_options: Option<ExtraOptions>,
}

/// Further settings of `storage: redis`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExtraOptions {
    /// Beginning of all keys.
    namespace: Option<String>,
    /// Keys that Kong asks for at once; none are asked for by lists here.
    #[serde(rename = "scan_count")]
    _scan_count: Option<f64>,
}

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org";
const LETS_ENCRYPT_TEST: &str = "https://acme-staging-v02.api.letsencrypt.org";
/// Path of the authorities' questions for a proof (RFC 8555 section 8.3).
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";
/// Longest token that is looked for; authorities use 43 letters.
const LONGEST_TOKEN: usize = 256;
const DAY: f64 = 86_400.0;

fn lets_encrypt() -> String {
    format!("{LETS_ENCRYPT}/directory")
}

fn bits() -> f64 {
    4096.0
}

fn fortnight() -> f64 {
    14.0
}

fn five() -> f64 {
    5.0
}

fn yes() -> bool {
    true
}

impl RedisStorage {
    fn namespace(&self) -> String {
        let extra = self.extra_options.as_ref().and_then(|extra| extra.namespace.clone());
        extra.or_else(|| self.namespace.clone()).unwrap_or_default()
    }

    fn server(self) -> Result<SingleServer, Invalid> {
        let mut server = self.server;
        server.password = server.password.or(self.auth);
        server.server_name = server.server_name.or(self.ssl_server_name);
        server.server("storage_config.redis", "storage redis")
    }
}

/// The directory of an authority. For the URL of a host alone it is the one of Let's Encrypt's name.
fn directory(uri: &str) -> Result<String, Invalid> {
    let is_url = |rest: &&str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic());
    let rest = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://")).filter(is_url);
    let Some(rest) = rest else {
        return Err(Invalid::new(
            "api_uri",
            "expected the URL of an ACME directory, such as https://ca.test/directory",
        ));
    };
    let is_host = rest.split_once('/').is_none_or(|(_, path)| path.is_empty());
    Ok(if is_host { format!("{}/directory", uri.trim_end_matches('/')) } else { uri.to_owned() })
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        if !self.account_email.contains('@') {
            faults.push(Invalid::new("account_email", "expected an address such as admin@example.com"));
        }
        let is_lets_encrypt = self.api_uri.starts_with(LETS_ENCRYPT) || self.api_uri.starts_with(LETS_ENCRYPT_TEST);
        if is_lets_encrypt && !self.tos_accepted {
            let text = "terms of service must be accepted, see https://letsencrypt.org/repository/";
            faults.push(Invalid::new("tos_accepted", text));
        }
        for (field, is_there) in
            [("account_key", self.account_key.is_some()), ("preferred_chain", self.preferred_chain.is_some())]
        {
            if is_there {
                faults.push(Invalid::new(field, "not supported: leave it out"));
            }
        }
        if self.eab_kid.is_some() != self.eab_hmac_key.is_some() {
            faults.push(Invalid::new("eab_kid", "eab_kid and eab_hmac_key belong together"));
        }
        if !self.allow_any_domain && self.domains.as_ref().is_none_or(Vec::is_empty) {
            let text = "no certificate would be ordered: list the names, or set allow_any_domain";
            faults.push(Invalid::warning("domains", text));
        }
        match self.storage {
            StorageKind::Kong if weir_acme::folder().is_none() => {
                faults.push(Invalid::new("storage", "\"kong\" storage can't be used with dbless mode"));
            }
            StorageKind::Shm | StorageKind::Kong | StorageKind::Redis => {}
            StorageKind::Consul | StorageKind::Vault => {
                faults.push(Invalid::new("storage", "not supported: expected shm, kong or redis"));
            }
        }
        faults
    }

    fn key(&self) -> Result<KeyKind, Invalid> {
        match (self.cert_type, self.rsa_key_size) {
            (CertType::Ecc, _) => Ok(KeyKind::EcP256),
            (CertType::Rsa, 2048.0) => Ok(KeyKind::Rsa2048),
            (CertType::Rsa, 3072.0) => Ok(KeyKind::Rsa3072),
            (CertType::Rsa, 4096.0) => Ok(KeyKind::Rsa4096),
            _ => Err(Invalid::new("rsa_key_size", "expected one of: 2048, 3072, 4096")),
        }
    }

    fn external_account(&self) -> Result<Option<(String, Vec<u8>)>, Invalid> {
        let (Some(id), Some(key)) = (&self.eab_kid, &self.eab_hmac_key) else { return Ok(None) };
        let key = URL_SAFE_NO_PAD.decode(key).or_else(|_| URL_SAFE.decode(key));
        let key = key.map_err(|_| Invalid::new("eab_hmac_key", "expected base64 for URLs"))?;
        Ok(Some((id.clone(), key)))
    }

    fn names(&self) -> Names {
        match (self.allow_any_domain, &self.domains) {
            (true, _) => Names::all(),
            (false, names) => Names::of(names.iter().flatten().map(String::as_str)),
        }
    }
}

impl Define for Acme {
    const NAME: &'static str = "acme";
    const PRIORITY: i32 = 1705;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str =
        "Gets certificates for TLS from an authority such as Let's Encrypt when clients ask for them.";
    const EXAMPLE: &'static str =
        "{account_email: admin@example.com, tos_accepted: true, domains: [example.com], storage: shm}\n";
    const ENCRYPTED: &'static [&'static str] =
        &["account_email", "eab_kid", "eab_hmac_key", "storage_config.redis.password", "storage_config.redis.auth"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        let (key, external_account) = (cx.ok(conf.key()), cx.ok(conf.external_account()));
        let (directory, names) = (cx.ok(directory(&conf.api_uri)), conf.names());
        let redis = match (conf.storage, conf.storage_config.redis) {
            (StorageKind::Redis, given) => {
                let given = given.unwrap_or_default();
                let namespace = given.namespace();
                Some((cx.ok(given.server())?, namespace))
            }
            _ => None,
        };
        let (key, external_account, directory) = (key?, external_account?, directory?);
        Some(Compiled::build(move |build| {
            let remote = redis.map(|(server, namespace)| {
                Ok::<_, Invalid>(Remote { redis: server.connect(false, build)?, namespace })
            });
            let remote = remote.transpose()?;
            let authority = Authority {
                directory,
                email: conf.account_email,
                external_account,
                key,
                renew_before: Duration::from_secs_f64(conf.renew_threshold_days * DAY),
                pause: Duration::from_secs_f64(conf.fail_backoff_minutes * 60.0),
                names,
                place: match (&remote, weir_acme::folder()) {
                    (Some(remote), _) => Place::Redis(weir_acme::Redis {
                        settings: Arc::clone(remote.redis.settings()),
                        namespace: remote.namespace.clone(),
                    }),
                    (None, Some(folder)) if conf.storage == StorageKind::Kong => Place::Folder(folder.to_owned()),
                    _ => Place::Memory,
                },
            };
            Ok(Proving { authority: weir_acme::follow(authority), remote })
        }))
    }
}

/// An instance: it answers the authority's questions.
#[derive(Debug)]
struct Proving {
    /// Certificates are ordered for its names while this lives.
    authority: Arc<Authority>,
    remote: Option<Remote>,
}

/// The Redis of several gateways.
#[derive(Debug)]
struct Remote {
    redis: Redis,
    namespace: String,
}

impl Proving {
    /// The token of a request for a proof of one of the names.
    fn token<'c>(&self, cx: &'c RequestCx<'_>) -> Option<&'c str> {
        let token = cx.request().path().strip_prefix(CHALLENGES)?;
        let host = std::str::from_utf8(cx.request().host()).ok()?;
        let is_asked = !cx.client().https && !token.is_empty() && self.authority.names.has(host);
        std::str::from_utf8(token).ok().filter(|token| is_asked && token.len() <= LONGEST_TOKEN)
    }
}

fn not_found(cx: &mut RequestCx<'_>) -> Flow {
    cx.reply(404).field("Content-Type", b"text/plain; charset=utf-8").body(b"Not found\n").done()
}

fn answer(cx: &mut RequestCx<'_>, text: &[u8]) -> Flow {
    cx.reply(200).field("Content-Type", b"application/octet-stream").body(text).done()
}

impl Plugin for Proving {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(token) = self.token(cx) else { return Flow::Continue };
        match weir_acme::authorization(token) {
            Some(text) => answer(cx, text.as_bytes()),
            None if self.remote.is_some() => Flow::Suspend,
            None => not_found(cx),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let (Some(token), Some(remote)) = (self.token(cx), &self.remote) else { return Flow::Continue };
            let key = weir_acme::challenge_key(&remote.namespace, token);
            // A failure is logged already.
            match remote.redis.run(&GET, key.as_bytes(), &[]).await {
                Ok(Value::BulkString(text)) => answer(cx, &text),
                _ => not_found(cx),
            }
        })
    }
}
