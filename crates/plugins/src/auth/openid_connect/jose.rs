//! Signed tokens of a provider and the keys that verify them (RFC 7515, 7517, 7518, 7519).

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ParsedPublicKey, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::auth::jwt_auth::key::Algorithm;

/// The claims of a token, or the members of another JSON object of the provider.
pub(crate) type Claims = Map<String, Value>;

/// A token taken apart. Nothing is known of its signature yet.
#[derive(Debug)]
pub(crate) struct Jwt<'t> {
    /// The first two parts as received: the signature is of them.
    signed: &'t [u8],
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
    pub(crate) claims: Claims,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

impl<'t> Jwt<'t> {
    /// Takes a token apart; `None` when it is no JSON web token in compact form, or its algorithm is none that verifies
    /// anything: `none` is no [`Algorithm`].
    pub(crate) fn parse(token: &'t str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        // A struct is read from a list, too.
        let object = |json: Vec<u8>| (json.trim_ascii_start().first() == Some(&b'{')).then_some(json);
        let header: Header = serde_json::from_slice(&object(decode(header)?)?).ok()?;
        // RFC 7515 section 4.1.11: extensions that have to be understood, and none is.
        if header.crit.is_some() {
            return None;
        }
        let claims = serde_json::from_slice(&decode(claims)?).ok()?;
        let algorithm = Algorithm::named(&header.alg)?;
        Some(Self { signed: signed.as_bytes(), algorithm, key_id: header.kid, claims, signature: decode(signature)? })
    }

    /// Verifies a signature that was made with a secret of both sides; false for any other algorithm.
    pub(super) fn is_signed_with(&self, secret: &str) -> bool {
        let Some(algorithm) = self.algorithm.secret() else { return false };
        let key = hmac::Key::new(algorithm, secret.as_bytes());
        hmac::verify(&key, self.signed, &self.signature).is_ok()
    }
}

/// Most keys of a set that are looked at; providers have two to four.
const KEYS: usize = 64;

/// Public keys of a provider. A key for secrets (`oct`) is never taken from a set.
#[derive(Debug)]
pub(crate) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    kind: Kind,
    /// In the form that the algorithms of this kind read.
    bytes: Vec<u8>,
}

/// Kind of a public key: which algorithms it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

impl Kind {
    fn of(algorithm: Algorithm) -> Option<Self> {
        use Algorithm::{EdDsa, Es256, Es384, Es512, Hs256, Hs384, Hs512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
        match algorithm {
            Hs256 | Hs384 | Hs512 => None,
            Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512 => Some(Self::Rsa),
            Es256 => Some(Self::P256),
            Es384 => Some(Self::P384),
            Es512 => Some(Self::P521),
            EdDsa => Some(Self::Ed25519),
        }
    }
}

/// Outcome of a search for the key of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Bad,
    /// No key of the set fits the token: there may be newer ones.
    NoKey,
}

impl KeySet {
    /// Reads a set (RFC 7517 section 5). Keys of other kinds, and keys for encryption, are left out.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Claims>,
        }
        let set: Set = serde_json::from_slice(json).ok()?;
        Some(Self(set.keys.iter().take(KEYS).filter_map(Key::read).collect()))
    }

    /// A set of one key, in DER.
    ///
    /// # Errors
    /// No algorithm takes the key, or `only` does not.
    pub(crate) fn of_der(der: Vec<u8>, only: Option<Algorithm>) -> Result<Self, String> {
        let kinds = [Algorithm::Rs256, Algorithm::Es256, Algorithm::Es384, Algorithm::Es512, Algorithm::EdDsa];
        let fits = |algorithm: &&Algorithm| algorithm.public().is_some_and(|a| ParsedPublicKey::new(a, &der).is_ok());
        let kind = kinds.iter().find(fits).and_then(|algorithm| Kind::of(*algorithm));
        let kind = kind.ok_or("expected a public key for RS256, ES256, ES384, ES512, EdDSA or their like")?;
        if let Some(only) = only.filter(|only| Kind::of(*only) != Some(kind)) {
            return Err(format!("the key does not fit {}", only.name()));
        }
        Ok(Self(vec![Key { id: None, algorithm: None, kind, bytes: der }]))
    }

    /// Looks for the key of a token, by its id where the token names one, and verifies the signature.
    pub(crate) fn verify(&self, token: &Jwt<'_>) -> Verdict {
        let mut verdict = Verdict::NoKey;
        let (Some(algorithm), Some(kind)) = (token.algorithm.public(), Kind::of(token.algorithm)) else {
            return Verdict::Bad;
        };
        for key in &self.0 {
            let is_named = match (&token.key_id, &key.id) {
                (Some(wanted), Some(id)) => wanted == id,
                _ => true,
            };
            let fits = key.algorithm.as_deref().is_none_or(|name| name == token.algorithm.name());
            if !is_named || !fits || key.kind != kind {
                continue;
            }
            if UnparsedPublicKey::new(algorithm, &key.bytes).verify(token.signed, &token.signature).is_ok() {
                return Verdict::Good;
            }
            verdict = Verdict::Bad;
        }
        verdict
    }
}

impl Key {
    fn read(jwk: &Claims) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let (kind, bytes) = match (text("kty")?, text("crv")) {
            ("RSA", _) => (Kind::Rsa, rsa_der(&bytes("n")?, &bytes("e")?)),
            ("EC", Some("P-256")) => (Kind::P256, point(32, &bytes("x")?, &bytes("y")?)?),
            ("EC", Some("P-384")) => (Kind::P384, point(48, &bytes("x")?, &bytes("y")?)?),
            ("EC", Some("P-521")) => (Kind::P521, point(66, &bytes("x")?, &bytes("y")?)?),
            ("OKP", Some("Ed25519")) => (Kind::Ed25519, bytes("x")?),
            _ => return None,
        };
        Some(Self { id: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), kind, bytes })
    }
}

/// An uncompressed point (SEC 1 section 2.3.3).
fn point(len: usize, x: &[u8], y: &[u8]) -> Option<Vec<u8>> {
    (x.len() == len && y.len() == len).then(|| [&[4], x, y].concat())
}

/// An `RSAPublicKey` in DER (RFC 8017 appendix A.1.1).
fn rsa_der(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| {
        let digits = bytes.iter().skip_while(|b| **b == 0).copied();
        let mut content: Vec<u8> = digits.collect();
        if content.first().is_none_or(|b| b & 0x80 != 0) {
            content.insert(0, 0);
        }
        tagged(2, &content)
    };
    tagged(0x30, &[number(modulus), number(exponent)].concat())
}

/// An element in DER.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = content.len();
    let mut out = vec![tag];
    match u8::try_from(len) {
        Ok(short @ 0..0x80) => out.push(short),
        _ => {
            let bytes: Vec<u8> = len.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
            out.push(0x80 | bytes.len() as u8);
            out.extend(bytes);
        }
    }
    out.extend_from_slice(content);
    out
}
