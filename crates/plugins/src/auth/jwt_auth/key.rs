//! Keys that verify the tokens of one consumer (RFC 7518 section 3).

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rsa::PublicEncryptingKey;
use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use weir_plugin::Invalid;

use super::ConsumerConf;

/// A signature algorithm. A consumer has one, and its tokens have to name it: were the token asked which one to use, a
/// public key could be taken for a secret (RFC 8725 section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub(crate) enum Algorithm {
    #[default]
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    Es512,
    Ps256,
    Ps384,
    Ps512,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// The kind of signature of an algorithm.
enum Kind {
    /// With a secret that both sides have.
    Secret(hmac::Algorithm),
    /// With a private key that only the issuer has.
    Public(&'static dyn VerificationAlgorithm),
}

impl Algorithm {
    /// Its name in tokens.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm that tokens call so.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }

    /// The verification of signatures with a public key; `None` for an algorithm with a secret.
    pub(crate) fn public(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self.kind() {
            Kind::Public(algorithm) => Some(algorithm),
            Kind::Secret(_) => None,
        }
    }

    /// The keyed hash of an algorithm with a secret; `None` for one with a public key.
    pub(crate) fn secret(self) -> Option<hmac::Algorithm> {
        match self.kind() {
            Kind::Secret(algorithm) => Some(algorithm),
            Kind::Public(_) => None,
        }
    }

    /// True if issuer and gateway share a secret.
    pub(crate) fn has_secret(self) -> bool {
        matches!(self.kind(), Kind::Secret(_))
    }

    /// The key that it needs.
    fn wants(self) -> &'static str {
        match self {
            Self::Hs256 | Self::Hs384 | Self::Hs512 => "a secret",
            Self::Es256 => "a public key on the curve P-256",
            Self::Es384 => "a public key on the curve P-384",
            Self::Es512 => "a public key on the curve P-521",
            Self::EdDsa => "a public key of the kind Ed25519",
            _ => "an RSA public key of 2048 to 8192 bits",
        }
    }

    /// True if a key that fits otherwise is long enough: that of RSA is looked at only when it verifies, which would
    /// refuse every token.
    fn takes(self, key: &ParsedPublicKey) -> bool {
        match self {
            Self::Rs256 | Self::Rs384 | Self::Rs512 | Self::Ps256 | Self::Ps384 | Self::Ps512 => {
                let der: Result<PublicKeyX509Der<'_>, _> = key.as_der();
                // Keys of 2048 to 8192 bits are accepted.
                der.is_ok_and(|der| PublicEncryptingKey::from_der(der.as_ref()).is_ok())
            }
            _ => true,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Hs256 => Kind::Secret(hmac::HMAC_SHA256),
            Self::Hs384 => Kind::Secret(hmac::HMAC_SHA384),
            Self::Hs512 => Kind::Secret(hmac::HMAC_SHA512),
            Self::Rs256 => Kind::Public(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Kind::Public(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Kind::Public(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Es256 => Kind::Public(&signature::ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Kind::Public(&signature::ECDSA_P384_SHA384_FIXED),
            Self::Es512 => Kind::Public(&signature::ECDSA_P521_SHA512_FIXED),
            Self::Ps256 => Kind::Public(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Kind::Public(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Kind::Public(&signature::RSA_PSS_2048_8192_SHA512),
            Self::EdDsa => Kind::Public(&signature::ED25519),
        }
    }
}

/// The key that verifies the tokens of one consumer. A secret is kept where the consumer's key is, with those of all
/// others, so that a million of them are little memory.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) algorithm: Algorithm,
    /// Seconds by which clocks may differ.
    pub(crate) grace: u32,
    public: Option<Box<ParsedPublicKey>>,
}

impl Verifier {
    /// The verifier of a consumer, and its secret; the secret is empty where there is a public key.
    pub(crate) fn new(conf: &ConsumerConf) -> Result<(Self, Vec<u8>), Invalid> {
        let verifier = |public| Self { algorithm: conf.algorithm, grace: conf.lifetime_grace_period, public };
        match conf.algorithm.kind() {
            Kind::Secret(_) => Ok((verifier(None), secret(conf)?)),
            Kind::Public(algorithm) => {
                let key = public_key(conf, algorithm)?;
                Ok((verifier(Some(Box::new(key))), Vec::new()))
            }
        }
    }

    /// True if this is the signature of `message`.
    pub(crate) fn verifies(&self, secret: &[u8], message: &[u8], signature: &[u8]) -> bool {
        match (self.algorithm.kind(), &self.public) {
            (Kind::Secret(algorithm), None) => {
                // The comparison takes constant time.
                hmac::verify(&hmac::Key::new(algorithm, secret), message, signature).is_ok()
            }
            (Kind::Public(_), Some(key)) => key.verify_sig(message, signature).is_ok(),
            _ => false,
        }
    }
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

fn secret(conf: &ConsumerConf) -> Result<Vec<u8>, Invalid> {
    let name = conf.algorithm.name();
    let Some(text) = &conf.secret else {
        return Err(Invalid::new("", format!("the field secret is missing: algorithm {name} needs it")));
    };
    crate::auth::check_credential(text).map_err(|message| Invalid::new("secret", message))?;
    if !conf.base64_secret {
        return Ok(text.clone().into_bytes());
    }
    match BASE64.decode(text) {
        Ok(secret) if !secret.is_empty() => Ok(secret),
        _ => Err(Invalid::new("secret", "expected a text in base64, as base64_secret says")),
    }
}

fn public_key(conf: &ConsumerConf, algorithm: &'static dyn VerificationAlgorithm) -> Result<ParsedPublicKey, Invalid> {
    let name = conf.algorithm.name();
    let Some(text) = &conf.public_key else {
        return Err(Invalid::new("", format!("the field public_key is missing: algorithm {name} needs it")));
    };
    crate::auth::check_credential(text).map_err(|message| Invalid::new("public_key", message))?;
    let fault = |message: String| Invalid::new("public_key", message);
    let der = public_der(text).map_err(fault)?;
    let key = ParsedPublicKey::new(algorithm, &der);
    match key {
        Ok(key) if conf.algorithm.takes(&key) => Ok(key),
        _ => Err(fault(format!("algorithm {name} needs {}", conf.algorithm.wants()))),
    }
}

/// The one public key in a text in PEM, in DER.
///
/// # Errors
/// Says in which way it is none.
pub(crate) fn public_der(text: &str) -> Result<Vec<u8>, String> {
    let sections = pem::parse_many(text).map_err(|error| format!("expected a public key in PEM: {error}"))?;
    let [section] = &sections[..] else {
        return Err(format!("expected one public key in PEM, found {} sections", sections.len()));
    };
    match section.tag() {
        "PUBLIC KEY" | "RSA PUBLIC KEY" => {}
        tag if tag.ends_with("PRIVATE KEY") => {
            let advice = "make the public one with openssl pkey -pubout, and do not keep the private one here";
            return Err(format!("expected a public key, found a private one: {advice}"));
        }
        "CERTIFICATE" => {
            let advice = "take its key out with openssl x509 -pubkey -noout";
            return Err(format!("expected a public key, found a certificate: {advice}"));
        }
        tag => return Err(format!("expected a section PUBLIC KEY in PEM, found {tag}")),
    }
    Ok(section.contents().to_vec())
}
