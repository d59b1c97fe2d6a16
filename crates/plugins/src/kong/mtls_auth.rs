//! `mtls-auth` of Kong Enterprise: a caller is known by the certificate that it shows in TLS.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_net::tls::authorities::{Authorities, Subject};
use weir_plugin::{
    AuthChange, AuthEntry, BuildCx, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases,
    Plugin, RequestCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::caller::Caller;
use crate::auth::credentials::{self, CredentialTable};
use crate::security::verified_chains::VerifiedChains;

/// The definition.
#[derive(Debug)]
pub(crate) struct MtlsAuth;

/// Field of consumers that names in certificates are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConsumerBy {
    /// The user name.
    Username,
    /// The id in another system.
    CustomId,
}

/// Name in a certificate that is a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum GroupBy {
    /// The common name.
    #[serde(rename = "CN")]
    CommonName,
    /// The distinguished name.
    #[serde(rename = "DN")]
    DistinguishedName,
}

/// Use of lists of certificates that authorities have revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Revocation {
    /// None.
    Skip,
    /// A certificate is taken where the authority does not answer; not supported.
    IgnoreCaError,
    /// A certificate is not taken where the authority does not answer; not supported.
    Strict,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Ids of the certificates of the authorities.
    #[schemars(length(min = 1))]
    ca_certificates: Vec<String>,
    /// The authorities, which the front end writes.
    #[serde(default)]
    authorities: Vec<Authority>,
    /// Takes an authority that another one has issued as the end of a chain.
    #[serde(default)]
    allow_partial_chain: bool,
    /// Fields of consumers that names in certificates are compared with.
    #[serde(default = "consumer_by")]
    consumer_by: Vec<ConsumerBy>,
    /// Takes every caller with a good certificate, without a consumer.
    #[serde(default)]
    skip_consumer_lookup: bool,
    /// Name that is the group of a caller without a consumer.
    #[serde(default = "group_by")]
    authenticated_group_by: Option<GroupBy>,
    /// Name or id of the consumer of good certificates that belong to nobody.
    #[serde(default)]
    default_consumer: Option<String>,
    /// Name or id of the consumer as whom requests without a good certificate go on.
    #[serde(default)]
    anonymous: Option<String>,
    /// Seconds for which a certificate is not verified again, 60 at most.
    #[serde(default = "cache_ttl")]
    #[schemars(range(min = 0))]
    cache_ttl: f64,
    /// Use of lists of revoked certificates; only `SKIP` is supported.
    #[serde(default = "revocation")]
    revocation_check_mode: Revocation,
    /// Tells clients which authorities are taken; not supported.
    #[serde(default)]
    send_ca_dn: bool,
    /// Milliseconds for which the state of revocation is kept; there is none.
    #[serde(default)]
    cert_cache_ttl: Option<f64>,
    /// Milliseconds for questions about revocation; there are none.
    #[serde(default)]
    http_timeout: Option<f64>,
    /// Proxy for questions about revocation; there are none.
    #[serde(default)]
    http_proxy_host: Option<String>,
    /// Its port.
    #[serde(default)]
    http_proxy_port: Option<u16>,
    /// Proxy for questions about revocation over TLS; there are none.
    #[serde(default)]
    https_proxy_host: Option<String>,
    /// Its port.
    #[serde(default)]
    https_proxy_port: Option<u16>,
    /// Verification of servers that are asked about revocation; there are none.
    #[serde(default)]
    ssl_verify: Option<bool>,
}

/// An authority.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Authority {
    /// Its id.
    id: String,
    /// Its certificate in PEM.
    cert: String,
}

fn consumer_by() -> Vec<ConsumerBy> {
    vec![ConsumerBy::Username, ConsumerBy::CustomId]
}

fn group_by() -> Option<GroupBy> {
    Some(GroupBy::CommonName)
}

fn cache_ttl() -> f64 {
    60.0
}

fn revocation() -> Revocation {
    Revocation::IgnoreCaError
}

/// Longest time for which a certificate is not verified again, in seconds: it may expire meanwhile.
const LONGEST: f64 = 60.0;

impl Conf {
    fn check(&self, cx: &CompileCx<'_>) {
        if self.revocation_check_mode != Revocation::Skip {
            let text = "not supported: certificates are not checked for revocation; expected SKIP";
            cx.say([Invalid::new("revocation_check_mode", text)]);
        }
        if self.send_ca_dn {
            cx.say([Invalid::new("send_ca_dn", "not supported: expected false")]);
        }
        let of_revocation = [
            ("cert_cache_ttl", self.cert_cache_ttl.is_some()),
            ("http_timeout", self.http_timeout.is_some()),
            ("http_proxy_host", self.http_proxy_host.is_some() || self.http_proxy_port.is_some()),
            ("https_proxy_host", self.https_proxy_host.is_some() || self.https_proxy_port.is_some()),
            ("ssl_verify", self.ssl_verify.is_some()),
        ];
        for (field, _) in of_revocation.iter().filter(|(_, is_given)| *is_given) {
            cx.warn(*field, "no effect: certificates are not checked for revocation");
        }
    }

    /// The authorities with their ids.
    fn authorities(&self) -> Result<(Authorities, Vec<Box<str>>), Invalid> {
        for (at, id) in self.ca_certificates.iter().enumerate() {
            if !self.authorities.iter().any(|authority| authority.id == *id) {
                return Err(Invalid::new(format!("ca_certificates[{at}]"), "no such entry in 'ca_certificates'"));
            }
        }
        let ids = self.authorities.iter().map(|authority| authority.id.as_str().into()).collect();
        let all = self.authorities.iter().map(|authority| authority.cert.as_str());
        let read = Authorities::new(all, self.allow_partial_chain);
        let fault = |(at, reason): (usize, String)| Invalid::new(format!("ca_certificates[{at}]"), reason);
        Ok((read.map_err(fault)?, ids))
    }
}

/// A name in certificates that belongs to a consumer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// Id of the credential, or of the consumer where it is found by a name of its own.
    id: String,
    /// The name, after a word for its kind: `subject:`, `subject AUTHORITY:`, `username:` or `custom_id:`.
    #[schemars(length(min = 1))]
    key: String,
}

impl Define for MtlsAuth {
    const NAME: &'static str = "mtls-auth";
    const PRIORITY: i32 = 1600;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Lets a request through whose client has shown a good certificate in TLS.";
    const EXAMPLE: &'static str =
        "{ca_certificates: [8f6f9ad1-2c8c-4a0d-9d6c-0f4a1b2c3d4e], revocation_check_mode: SKIP}\n";
    const AUTH: bool = true;

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        conf.check(cx);
        Some(Compiled::build(move |build| Checked::new(&conf, build)))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut Names, entry: &AuthEntry<ConsumerConf>| {
            Ok(table.insert(entry.conf.key.as_bytes(), b"", entry.who, entry.conf.id.as_str().into()))
        };
        let named = ("key", "name in certificates");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.key, put, named)?))
    }
}

/// Consumers by names in certificates, with the id that upstreams are told.
type Names = CredentialTable<Box<str>>;

/// An instance.
#[derive(Debug)]
struct Checked {
    authorities: Authorities,
    /// Ids of the authorities by their numbers.
    ids: Vec<Box<str>>,
    verified: VerifiedChains<Good>,
    /// Milliseconds for which a certificate is not verified again.
    ttl: u64,
    consumer_by: Vec<ConsumerBy>,
    /// True if callers have no consumer.
    alone: bool,
    group_by: Option<GroupBy>,
    default_consumer: Option<u32>,
    /// Fields that tell upstreams the names of a caller without a consumer.
    told: [FieldName; 2],
    caller: Caller,
}

/// A certificate that an authority stands for.
#[derive(Debug, Clone)]
struct Good {
    /// Number of the authority.
    authority: usize,
    subject: Arc<Subject>,
}

impl Checked {
    fn new(conf: &Conf, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let (authorities, ids) = conf.authorities()?;
        let default = conf.default_consumer.as_deref().filter(|name| !name.is_empty());
        Ok(Self {
            authorities,
            ids,
            verified: VerifiedChains::new(build.limit_keys),
            ttl: (conf.cache_ttl.min(LONGEST) * 1000.0) as u64,
            consumer_by: conf.consumer_by.clone(),
            alone: conf.skip_consumer_lookup,
            group_by: conf.authenticated_group_by,
            default_consumer: default.and_then(|name| build.consumer("default_consumer", name)),
            told: ["X-Client-Cert-DN", "X-Client-Cert-SAN"].map(FieldName::constant),
            caller: Caller::new(conf.anonymous.as_deref(), String::new(), build),
        })
    }

    /// The names in a chain that ends at an authority.
    fn good(&self, cx: &RequestCx<'_>, chain: &[Box<[u8]>]) -> Option<Good> {
        let now = cx.now_ms();
        if let Some(known) = self.verified.find(chain, now) {
            return known;
        }
        let authority = self.authorities.verify(chain, Duration::from_millis(cx.unix_ms()));
        let subject = chain.first().and_then(|own| Subject::read(own));
        let good = authority.zip(subject).map(|(authority, subject)| Good { authority, subject: Arc::new(subject) });
        if self.ttl > 0 {
            self.verified.remember(chain, good.clone(), now + self.ttl);
        }
        good
    }

    /// The consumer of a certificate, and the id of what has led to it.
    fn consumer(&self, cx: &RequestCx<'_>, good: &Good) -> Option<(ConsumerMatch, Box<str>)> {
        let table = cx.credentials::<Names>(self.caller.position)?;
        let id = self.ids.get(good.authority).map_or("", |id| id);
        let mut kinds = vec![format!("subject {id}:"), "subject:".to_owned()];
        kinds.extend(self.consumer_by.iter().map(|by| match by {
            ConsumerBy::Username => "username:".to_owned(),
            ConsumerBy::CustomId => "custom_id:".to_owned(),
        }));
        let names = || good.subject.alternative_names.iter().chain(&good.subject.common_name);
        kinds.iter().find_map(|kind| {
            let found = names().find_map(|name| table.find(format!("{kind}{name}").as_bytes()));
            found.map(|found| (found.who, found.more.clone()))
        })
    }

    fn accept(&self, cx: &mut RequestCx<'_>, good: &Good) -> Flow {
        if self.alone {
            return self.accept_alone(cx, &good.subject);
        }
        if let Some((who, id)) = self.consumer(cx, good) {
            return self.caller.accept(cx, who, Some(id.as_bytes()));
        }
        match self.default_consumer {
            Some(consumer) => self.caller.accept(cx, ConsumerMatch { consumer, credential: None }, None),
            None => self.refuse(cx, FAILED),
        }
    }

    fn accept_alone(&self, cx: &mut RequestCx<'_>, subject: &Subject) -> Flow {
        let group = match self.group_by {
            Some(GroupBy::CommonName) => subject.common_name.as_deref(),
            Some(GroupBy::DistinguishedName) => Some(subject.distinguished_name.as_str()),
            None => None,
        };
        let flow = self.caller.accept_alone(cx, None, group.into_iter().map(Into::into).collect());
        let values = [subject.distinguished_name.clone(), subject.alternative_names.join(",")];
        for (field, value) in self.told.iter().zip(values) {
            // A name may hold characters that no field may.
            if !value.is_empty() && value.bytes().all(|b| b >= b' ' && b != 0x7f) {
                cx.request_mut().set_field(field, value.as_bytes());
            }
        }
        flow
    }

    fn refuse(&self, cx: &mut RequestCx<'_>, message: &str) -> Flow {
        match self.caller.fall_back(cx) {
            true => Flow::Continue,
            false => body::error(cx, 401, message, &[]),
        }
    }
}

const MISSING: &str = "No required TLS certificate was sent";
const FAILED: &str = "TLS certificate failed verification";

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        for field in &self.told {
            cx.request_mut().remove_field(field);
        }
        if self.caller.is_done(cx) {
            return Flow::Continue;
        }
        let Some(chain) = cx.client_certificate() else { return self.refuse(cx, MISSING) };
        match self.good(cx, &chain) {
            Some(good) => self.accept(cx, &good),
            None => self.refuse(cx, FAILED),
        }
    }
}
