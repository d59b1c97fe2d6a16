use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use super::Status;
use super::head::resource;
use crate::secret::is_reference;

resource! {
    /// A certificate: shown to clients by server name (SNI), or shown to upstreams.
    pub struct Ssl {
        /// Beginning of the certificate's validity, in seconds since 1970. Information only: the certificate itself
        /// decides.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub validity_start: Option<i64>,
        /// End of the certificate's validity, in seconds since 1970. Information only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub validity_end: Option<i64>,
        /// Side that the certificate is shown to.
        #[serde(default)]
        pub r#type: SslType,
        /// The server name that clients send (SNI): `example.com`, `*.example.com` (one label), or `*`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sni: Option<Sni>,
        /// As `sni`, for several names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(min = 1))]
        pub snis: Vec<Sni>,
        /// The certificate in PEM, with the intermediate ones after it.
        #[schemars(length(min = 128, max = 65536))]
        pub cert: String,
        /// Private key of the certificate in PEM: PKCS#8, PKCS#1 or SEC1.
        // APISIX requires 128 characters, more than the key of an Ed25519 certificate has.
        #[schemars(length(min = 64, max = 65536))]
        pub key: Secret,
        /// Further certificates for the same names, such as an ECDSA one beside an RSA one. A client gets the first that it
        /// can use, ECDSA and EdDSA before RSA.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(inner(length(min = 128, max = 65536)))]
        pub certs: Vec<String>,
        /// Private keys of `certs`, in the same order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(inner(length(min = 64, max = 65536)))]
        pub keys: Vec<Secret>,
        /// Verification of clients.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub client: Option<ClientVerification>,
        /// Asks clients for a certificate and verifies none, for a plugin that does so by itself, such as Kong's `mtls-auth`. Without
        /// effect beside `client`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub ask_client: bool,
        /// Staples what the OCSP responder of the certificate says to handshakes of clients that ask for it (RFC 6066 section 8).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ocsp_stapling: Option<OcspStapling>,
        /// State of the certificate: in use or not.
        #[serde(default)]
        pub status: Status,
        /// Versions of the protocol; all that are supported where there are none. TLSv1.1 is not spoken any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 3), extend("uniqueItems" = true))]
        pub ssl_protocols: Vec<SslProtocol>,
    }
}

/// Side that a certificate is shown to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SslType {
    /// Shown to clients, by server name (SNI).
    #[default]
    Server,
    /// Shown to the nodes of upstreams that name it.
    Client,
}

/// Verification of the clients of a name: each has to show a certificate of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientVerification {
    /// The authorities that are believed, in PEM.
    #[schemars(length(min = 128, max = 65536))]
    pub ca: String,
    /// Most intermediate certificates between the client's and an authority.
    #[serde(default = "one")]
    pub depth: u32,
    /// Paths that are served without a client certificate: regular expressions that are looked for in the path of the
    /// request. A certificate that is shown is verified there as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub skip_mtls_uri_regex: Vec<String>,
}

const fn one() -> u32 {
    1
}

/// Stapling of the answers of OCSP responders. The responder is the one that the certificate names; `cert` and `certs` need the
/// certificate of the issuer after their own. Answers are asked for beside the handshakes, none of which waits: one without an
/// answer goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OcspStapling {
    /// Staples at all.
    pub enabled: bool,
    /// Staples answers as they come. Otherwise only those that say that the certificate is good, are of their time, and are signed
    /// by the issuer or a responder that it has appointed.
    pub skip_verify: bool,
    /// Seconds after which the responder is asked again; earlier where the answer says that there is a newer one.
    #[schemars(range(min = 60))]
    pub cache_ttl: u64,
}

impl Default for OcspStapling {
    fn default() -> Self {
        Self { enabled: false, skip_verify: false, cache_ttl: 3600 }
    }
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum SslProtocol {
    /// Not spoken: RFC 8996 forbids it.
    #[serde(rename = "TLSv1.1")]
    Tls11,
    /// RFC 5246.
    #[serde(rename = "TLSv1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "TLSv1.3")]
    Tls13,
}

/// A text that no log and no message shows.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"…\"")
    }
}

/// A name of a server, in lower case: a host, `*.` and a host, or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Sni(String);

const SNI_EXPECTED: &str = "a host such as example.com, a wildcard such as *.example.com, or *";

impl Sni {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Sni {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let host = text.strip_prefix('*').unwrap_or(&text);
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'[' | b']' | b':');
        let wild = host.len() < text.len();
        let good =
            host.bytes().all(allowed) && if wild { host.is_empty() || host.starts_with('.') } else { !host.is_empty() };
        if !good {
            return Err(D::Error::invalid_value(Unexpected::Str(&text), &SNI_EXPECTED));
        }
        Ok(Self(text.to_ascii_lowercase().trim_end_matches('.').to_owned()))
    }
}

impl JsonSchema for Sni {
    fn schema_name() -> Cow<'static, str> {
        "Sni".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "pattern": r"^(\*|(\*\.)?[0-9a-zA-Z_\[\]:-][0-9a-zA-Z._\[\]:-]*)$", "x-expected": SNI_EXPECTED
        })
    }
}

impl Ssl {
    /// The names it is for.
    pub fn names(&self) -> impl Iterator<Item = &Sni> {
        self.sni.iter().chain(&self.snis)
    }

    /// True while a reference in it has no value.
    #[must_use]
    pub fn is_unresolved(&self) -> bool {
        let ca = self.client.as_ref().map(|client| client.ca.as_str());
        let keys = self.pairs().flat_map(|(cert, key)| [cert, key.reveal()]);
        keys.chain(ca).any(is_reference)
    }

    /// The certificates with their keys.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &Secret)> {
        let more = self.certs.iter().map(String::as_str).zip(&self.keys);
        std::iter::once((self.cert.as_str(), &self.key)).chain(more)
    }
}
