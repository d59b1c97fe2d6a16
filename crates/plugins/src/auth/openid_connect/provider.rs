//! The provider: its discovery document, its keys, and questions to its endpoints.
//!
//! Endpoints that the document names are asked only at origins that the configuration names: a document that lies cannot
//! send the gateway, with its secret, to any other place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Deserialize;
use weir_plugin::{
    BuildCx, Callout, CalloutError, CalloutResponse, Invalid, Io, Keep, Remembered, Service, ServiceOptions, ServiceUri,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::jose::{Jwt, KeySet, Verdict};

/// Members of the discovery document (OpenID Connect Discovery section 3, RFC 8414) that are used.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    pub(super) issuer: String,
    pub(super) jwks_uri: Option<String>,
    pub(super) introspection_endpoint: Option<String>,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: Option<String>,
    pub(super) userinfo_endpoint: Option<String>,
    pub(super) end_session_endpoint: Option<String>,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) authorization_response_iss_parameter_supported: Option<bool>,
}

/// Reasons for having no usable answer of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Callout(CalloutError),
    /// Another status than was expected.
    Status,
    /// An answer that is not what it should be.
    Broken,
    /// The discovery document has no such endpoint.
    NoEndpoint,
    /// An endpoint at an origin that the configuration does not name.
    Elsewhere,
    /// The client cannot prove who it is.
    Unproven,
}

impl Fault {
    /// A few words for logs and `X-Weir-Error`.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Callout(CalloutError::Busy) => "openid-connect: too many callouts under way",
            Self::Callout(CalloutError::TooLarge) => "openid-connect: answer of the provider too large",
            Self::Callout(_) => "openid-connect: no answer from the provider",
            Self::Status => "openid-connect: the provider answered with an error",
            Self::Broken => "openid-connect: the provider's answer cannot be read",
            Self::NoEndpoint => "openid-connect: the discovery document lacks an endpoint",
            Self::Elsewhere => "openid-connect: an endpoint at an origin that endpoint_origins does not name",
            Self::Unproven => "openid-connect: the client cannot be authenticated",
        }
    }
}

/// Origins of providers whose endpoints are spread over several hosts: discovery, then the others.
const SPREAD: [(&str, &[&str]); 2] = [
    (
        "https://accounts.google.com",
        &["https://oauth2.googleapis.com", "https://www.googleapis.com", "https://openidconnect.googleapis.com"],
    ),
    ("https://login.microsoftonline.com", &["https://graph.microsoft.com"]),
];

/// Most origins that a configuration names.
const ORIGINS: usize = 4;

/// The fields under which the upstreams of origins are built: named ones from the front, those of [`SPREAD`] from the back.
const PLACES: [&str; 2 * ORIGINS] = [
    "endpoint_origins.0",
    "endpoint_origins.1",
    "endpoint_origins.2",
    "endpoint_origins.3",
    "endpoint_origins.4",
    "endpoint_origins.5",
    "endpoint_origins.6",
    "endpoint_origins.7",
];

/// Seconds between two questions for keys because a token names one that is not known.
const KEYS_AGAIN_MS: u64 = 30_000;
/// Milliseconds for which a discovery document is remembered.
const DOCUMENT_MS: u64 = 3_600_000;

/// The origin of a URI in one form: lower case, without the port that the scheme has anyway. And the rest of the URI.
pub(crate) fn split_origin(uri: &str) -> Option<(String, &str)> {
    let (scheme, rest) = uri.split_once("://")?;
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at_checked(at)?;
    let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
    let port = match scheme.as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return None,
    };
    let authority = authority.strip_suffix(port).unwrap_or(&authority);
    (!authority.is_empty() && !authority.contains('@')).then(|| (format!("{scheme}://{authority}"), target))
}

/// A provider as configured, before its upstreams are built.
#[derive(Debug)]
pub(super) struct ProviderConf {
    pub(super) discovery: String,
    origins: Vec<(String, ServiceUri)>,
    timeout: Duration,
}

impl ProviderConf {
    /// Reads the URIs; `named` are the origins that `endpoint_origins` has, `endpoints` further URIs of the configuration.
    pub(super) fn new(
        discovery: &str,
        named: &[String],
        endpoints: &[(&'static str, &str)],
        options: ServiceOptions,
    ) -> Result<Self, Invalid> {
        let expected = "expected http://HOST:PORT/PATH or https://HOST:PORT/PATH";
        let mut origins: Vec<(String, ServiceUri)> = Vec::new();
        let mut put = |field: &'static str, uri: &str| {
            let (origin, _) = split_origin(uri).ok_or_else(|| Invalid::new(field, expected))?;
            let service = Service::parse(field, uri, options)?;
            if origins.iter().all(|(other, _)| *other != origin) {
                origins.push((origin, service));
            }
            Ok(())
        };
        put("discovery", discovery)?;
        for (field, uri) in endpoints {
            put(field, uri)?;
        }
        if named.len() > ORIGINS {
            return Err(Invalid::new("endpoint_origins", format!("expected at most {ORIGINS} origins")));
        }
        for (place, origin) in PLACES.iter().zip(named) {
            put(place, origin)?;
            if split_origin(origin).is_some_and(|(_, rest)| !matches!(rest, "" | "/")) {
                return Err(Invalid::new(*place, "expected an origin, such as https://HOST:PORT, without a path"));
            }
        }
        let own = split_origin(discovery).map(|(origin, _)| origin);
        let spread = SPREAD.iter().filter(|(origin, _)| own.as_deref() == Some(*origin));
        for (place, origin) in PLACES.iter().rev().zip(spread.flat_map(|(_, others)| others.iter())) {
            put(place, origin)?;
        }
        Ok(Self { discovery: discovery.to_owned(), origins, timeout: options.timeout })
    }

    pub(super) fn build(self, keys_ms: u64, cx: &BuildCx<'_>) -> Result<Provider, Invalid> {
        let key = format!("openid-connect {} {}", cx.place, cx.conf.to_json());
        let memory = cx.states.get_or_create(&key, Memory::new);
        let build = |(origin, service): (String, ServiceUri)| Ok((origin, service.build(cx)?));
        let origins = self.origins.into_iter().map(build).collect::<Result<_, Invalid>>()?;
        Ok(Provider { discovery: self.discovery, origins, timeout: self.timeout, keys_ms, memory })
    }
}

/// Answers of the provider, which outlive changes of the configuration that leave the plugin as it is.
#[derive(Debug)]
struct Memory {
    documents: Arc<Remembered<Result<Document, Fault>>>,
    keys: Arc<Remembered<Result<KeySet, Fault>>>,
    /// Counts up when newer keys are known than those that are remembered.
    generation: AtomicU64,
}

impl Memory {
    fn new() -> Self {
        Self {
            documents: Arc::new(Remembered::new(1, 1 << 20)),
            keys: Arc::new(Remembered::new(8, 8 << 20)),
            generation: AtomicU64::new(0),
        }
    }
}

/// A provider.
#[derive(Debug)]
pub(super) struct Provider {
    discovery: String,
    origins: Vec<(String, Service)>,
    timeout: Duration,
    keys_ms: u64,
    memory: Arc<Memory>,
}

/// Lifetime of an answer in memory; an unusable one is not kept.
fn keep<T>(ttl_ms: u64, answer: &Result<T, Fault>, bytes: usize) -> Keep {
    Keep { ttl_ms: if answer.is_ok() { ttl_ms } else { 0 }, bytes }
}

impl Provider {
    /// A request to an endpoint.
    pub(super) fn request(&self, method: Method, uri: &str) -> Result<Callout, Fault> {
        let (origin, target) = split_origin(uri).ok_or(Fault::Broken)?;
        let (_, service) = self.origins.iter().find(|(known, _)| *known == origin).ok_or(Fault::Elsewhere)?;
        let target = target.split('#').next().unwrap_or_default();
        if target.bytes().any(|b| !b.is_ascii_graphic()) {
            return Err(Fault::Broken);
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        let mut callout = service.callout_to(method, format!("{slash}{target}").as_bytes());
        callout.set_timeout(self.timeout);
        Ok(callout)
    }

    /// Fetches a document; an answer other than 200 is none.
    async fn fetch(&self, uri: &str, io: &dyn Io) -> Result<CalloutResponse, Fault> {
        let mut callout = self.request(Method::Get, uri)?;
        callout.set_field(&FieldName::constant("Accept"), b"application/json");
        let answer = io.callout(callout).await.map_err(Fault::Callout)?;
        if answer.status() == 200 { Ok(answer) } else { Err(Fault::Status) }
    }

    /// The discovery document.
    pub(super) async fn document(&self, now_ms: u64, io: &dyn Io) -> Arc<Result<Document, Fault>> {
        let ask = || async {
            let mut bytes = 0;
            let document = self.fetch(&self.discovery, io).await.and_then(|answer| {
                bytes = answer.body().len();
                // A list would be read as a document, too.
                let is_object = answer.body().trim_ascii_start().first() == Some(&b'{');
                let document = serde_json::from_slice::<Document>(answer.body()).ok().filter(|_| is_object);
                document.filter(|document| !document.issuer.is_empty()).ok_or(Fault::Broken)
            });
            let keep = keep(DOCUMENT_MS, &document, bytes);
            (document, keep)
        };
        self.memory.documents.get(b"", now_ms, ask).await
    }

    async fn keys(&self, key: &[u8], ttl_ms: u64, now_ms: u64, io: &dyn Io) -> Arc<Result<KeySet, Fault>> {
        let ask = || async {
            let fetched = async {
                let document = self.document(now_ms, io).await;
                let document = document.as_ref().as_ref().map_err(|fault| *fault)?;
                self.fetch(document.jwks_uri.as_deref().ok_or(Fault::NoEndpoint)?, io).await
            };
            let mut bytes = 0;
            let keys = fetched.await.and_then(|answer| {
                bytes = answer.body().len();
                KeySet::parse(answer.body()).ok_or(Fault::Broken)
            });
            let keep = keep(ttl_ms, &keys, bytes);
            (keys, keep)
        };
        self.memory.keys.get(key, now_ms, ask).await
    }

    /// Verifies the signature of a token with the provider's keys. They are asked for once more when none fits, at most
    /// every half minute, whatever tokens clients make up.
    pub(super) async fn verifies(&self, token: &Jwt<'_>, now_ms: u64, io: &dyn Io) -> Result<bool, Fault> {
        let generation = self.memory.generation.load(Relaxed);
        let known = self.keys(&generation.to_le_bytes(), self.keys_ms, now_ms, io).await;
        match known.as_ref().as_ref().map_err(|fault| *fault)?.verify(token) {
            Verdict::Good => return Ok(true),
            Verdict::Bad => return Ok(false),
            Verdict::NoKey => {}
        }
        let newer = self.keys(b"newer", KEYS_AGAIN_MS, now_ms, io).await;
        match newer.as_ref().as_ref().map_err(|fault| *fault)?.verify(token) {
            Verdict::Good => {
                // From the next request on the newer keys are those that are looked at first.
                let _ = self.memory.generation.compare_exchange(generation, generation + 1, Relaxed, Relaxed);
                Ok(true)
            }
            Verdict::Bad | Verdict::NoKey => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split_origin;

    #[test]
    fn origins_have_one_form() {
        for (uri, origin, rest) in [
            ("HTTPS://A.test:443/x?y", "https://a.test", "/x?y"),
            ("http://a.test:80", "http://a.test", ""),
            ("http://a.test:443/", "http://a.test:443", "/"),
            ("https://[::1]:8443?x", "https://[::1]:8443", "?x"),
        ] {
            assert_eq!(split_origin(uri), Some((origin.to_owned(), rest)), "{uri}");
        }
        for uri in ["a.test", "ftp://a.test/", "https:///x", "https://a@b.test/", "https://a.test@b.test"] {
            assert_eq!(split_origin(uri), None, "{uri}");
        }
    }
}
