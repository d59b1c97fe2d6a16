//! The gateway as a client of the provider: how it proves who it is (RFC 6749 section 2.3, OpenID Connect Core section 9).

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_plugin::Callout;
use weir_wire::name::FieldName;

/// Proof of the client at an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the fields")]
pub(crate) enum AuthMethod {
    #[default]
    ClientSecretBasic,
    ClientSecretPost,
    ClientSecretJwt,
    PrivateKeyJwt,
}

/// The client as the provider knows it.
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) private_key: Option<KeyPair>,
    pub(crate) private_key_id: Option<String>,
    /// Seconds for which a signed proof holds.
    pub(crate) assertion_seconds: u64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Adds a member to a form.
pub(crate) fn add_to_form(form: &mut Vec<u8>, name: &str, value: &str) {
    if !form.is_empty() {
        form.push(b'&');
    }
    form.extend_from_slice(name.as_bytes());
    form.push(b'=');
    encode(value, form);
}

/// Appends a text with everything but unreserved characters (RFC 3986 section 2.3) encoded.
pub(crate) fn encode(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.push(b'%');
            for half in [byte >> 4, byte & 15] {
                out.push(if half < 10 { b'0' + half } else { b'A' + half - 10 });
            }
        }
    }
}

/// A text that nobody can guess: 32 random bytes in base64url.
pub(crate) fn random_text() -> String {
    URL_SAFE_NO_PAD.encode(rand::rng().random::<[u8; 32]>())
}

impl Client {
    /// Adds the proof to a form for `endpoint`, or to the fields of its request; completes the request with the form.
    /// `now` is in seconds since 1970. `None`: the proof cannot be made.
    pub(crate) fn complete(
        &self,
        method: AuthMethod,
        endpoint: &str,
        now: u64,
        mut form: Vec<u8>,
        callout: &mut Callout,
    ) -> Option<()> {
        match method {
            AuthMethod::ClientSecretBasic => {
                let mut pair = Vec::new();
                encode(&self.id, &mut pair);
                pair.push(b':');
                encode(&self.secret, &mut pair);
                let value = format!("Basic {}", STANDARD.encode(pair));
                callout.set_field(&FieldName::constant("Authorization"), value.as_bytes());
            }
            AuthMethod::ClientSecretPost => {
                add_to_form(&mut form, "client_id", &self.id);
                add_to_form(&mut form, "client_secret", &self.secret);
            }
            AuthMethod::ClientSecretJwt | AuthMethod::PrivateKeyJwt => {
                let assertion = self.assertion(method, endpoint, now)?;
                add_to_form(&mut form, "client_id", &self.id);
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                add_to_form(&mut form, "client_assertion_type", kind);
                add_to_form(&mut form, "client_assertion", &assertion);
            }
        }
        callout.set_field(&FieldName::constant("Content-Type"), b"application/x-www-form-urlencoded");
        callout.set_field(&FieldName::constant("Accept"), b"application/json");
        callout.set_body(&form);
        Some(())
    }

    /// A signed proof (RFC 7523 section 3).
    fn assertion(&self, method: AuthMethod, endpoint: &str, now: u64) -> Option<String> {
        let by_key = method == AuthMethod::PrivateKeyJwt;
        let mut header = json!({ "typ": "JWT", "alg": if by_key { "RS256" } else { "HS256" } });
        if let (true, Some(id), Some(header)) = (by_key, &self.private_key_id, header.as_object_mut()) {
            header.insert("kid".into(), json!(id));
        }
        let claims = json!({
            "iss": self.id, "sub": self.id, "aud": endpoint, "jti": random_text(),
            "iat": now, "exp": now.saturating_add(self.assertion_seconds),
        });
        let encode = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = if by_key {
            let key = self.private_key.as_ref()?;
            let mut signature = vec![0; key.public_modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
            signature
        } else {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes()), signed.as_bytes()).as_ref().to_vec()
        };
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Reads a private RSA key in PEM.
///
/// # Errors
/// The text is no private RSA key, or its key has fewer than 2048 bits.
pub(crate) fn private_key(text: &str) -> Result<KeyPair, String> {
    let section = pem::parse(text).map_err(|error| format!("expected a private key in PEM: {error}"))?;
    let key = match section.tag() {
        "PRIVATE KEY" => KeyPair::from_pkcs8(section.contents()),
        "RSA PRIVATE KEY" => KeyPair::from_der(section.contents()),
        tag => return Err(format!("expected a section PRIVATE KEY in PEM, found {tag}")),
    };
    key.map_err(|_| "expected an RSA private key of 2048 to 8192 bits".into())
}
