//! Secrets in etcd in APISIX's format: base64 of AES-128 in CBC mode, with the key as the initialisation vector.
//!
//! The format only hides secrets from readers of etcd: equal texts have equal ciphertexts, and nothing detects that
//! one was replaced. It is the format that APISIX can read.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::cipher::{
    AES_128, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::{Kind, Secrets};

/// Default keys of APISIX.
const DEFAULT_KEYS: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];

const BLOCK: usize = 16;

/// Keys that encrypt and decrypt texts.
pub struct Keyring {
    keys: Vec<[u8; BLOCK]>,
}

/// Encryption of the secrets in etcd.
#[derive(Clone, Debug)]
pub struct Sealing {
    /// The keys.
    pub keyring: Arc<Keyring>,
    /// Selects the secret texts.
    pub secrets: Arc<dyn Secrets>,
    /// True if fields are encrypted beside the private keys of `ssls` and upstreams. Encrypted texts are decrypted in
    /// any case.
    pub fields: bool,
}

impl Sealing {
    /// JSON with its secrets encrypted; `None` if the cryptographic library fails.
    pub(super) fn seal(&self, kind: Kind, value: &Arc<str>) -> Option<Arc<str>> {
        let mut failed = false;
        let sealed = self.each(kind, value, |text| {
            let secret = match kind {
                // APISIX takes a private key with this beginning for plain text.
                Kind::Ssls | Kind::Upstreams => text.starts_with("---"),
                // APISIX reads the credentials of secret managers without decrypting them.
                Kind::Secrets => false,
                // A reference to a secret is not secret itself.
                _ => self.fields && !text.is_empty() && !is_reference(text),
            };
            if !secret {
                return None;
            }
            let sealed = self.keyring.seal(text);
            failed |= sealed.is_none();
            sealed
        });
        if failed { None } else { Some(sealed.unwrap_or_else(|| Arc::clone(value))) }
    }

    /// JSON with its secrets decrypted. Texts in plain, or encrypted with another key, are kept unchanged.
    pub(super) fn open(&self, kind: Kind, value: Arc<str>) -> Arc<str> {
        self.each(kind, &value, |text| self.keyring.open(text)).unwrap_or(value)
    }

    /// JSON with its secrets replaced; `None` if none was.
    fn each(&self, kind: Kind, value: &str, mut other: impl FnMut(&str) -> Option<String>) -> Option<Arc<str>> {
        let mut value: Value = serde_json::from_str(value).ok()?;
        let mut changed = false;
        self.secrets.visit(kind, &mut value, &mut |text| {
            if let Some(new) = other(text) {
                *text = new;
                changed = true;
            }
        });
        changed.then(|| value.to_string().into())
    }
}

fn is_reference(text: &str) -> bool {
    ["$secret://", "$env://", "$ENV://"].iter().any(|scheme| text.starts_with(scheme))
}

/// A key of a keyring has the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {position} of the keyring has {length} bytes and must have 16")]
pub struct KeyLengthError {
    /// Position of the key, counted from 1.
    pub position: usize,
    /// Length of the key in bytes.
    pub length: usize,
}

impl Keyring {
    /// Creates a keyring: the first key encrypts, all keys decrypt. Without keys, APISIX's default keys are used.
    ///
    /// # Errors
    /// A key does not have 16 bytes.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyLengthError> {
        let read = |(index, key): (usize, &str)| {
            key.as_bytes().try_into().map_err(|_| KeyLengthError { position: index + 1, length: key.len() })
        };
        let mut keys = keys.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            keys = DEFAULT_KEYS.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        }
        Ok(Self { keys })
    }

    /// True if it encrypts with one of APISIX's default keys, which everybody knows.
    #[must_use]
    pub fn uses_default_key(&self) -> bool {
        self.keys.first().is_some_and(|key| DEFAULT_KEYS.iter().any(|known| known.as_bytes() == key))
    }

    /// Encrypts a text; `None` if the cryptographic library fails.
    #[must_use]
    pub fn seal(&self, text: &str) -> Option<String> {
        let key = self.keys.first()?;
        let cipher = UnboundCipherKey::new(&AES_128, key).and_then(PaddedBlockEncryptingKey::cbc_pkcs7).ok()?;
        let mut bytes = text.as_bytes().to_vec();
        cipher.less_safe_encrypt(&mut bytes, EncryptionContext::Iv128(key.into())).ok()?;
        Some(STANDARD.encode(bytes))
    }

    /// Decrypts a text; `None` if it was not encrypted, or with a key that is not in the keyring.
    #[must_use]
    pub fn open(&self, text: &str) -> Option<String> {
        let bytes = STANDARD.decode(text).ok()?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(BLOCK) {
            return None;
        }
        self.keys.iter().find_map(|key| {
            let cipher = UnboundCipherKey::new(&AES_128, key).and_then(PaddedBlockDecryptingKey::cbc_pkcs7).ok()?;
            let mut bytes = bytes.clone();
            let plain = cipher.decrypt(&mut bytes, DecryptionContext::Iv128(key.into())).ok()?;
            // With a wrong key, the padding is valid by chance one time in 256.
            std::str::from_utf8(plain).ok().map(str::to_owned)
        })
    }
}

impl fmt::Debug for Keyring {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::{KeyLengthError, Keyring, Sealing};
    use crate::{Kind, Secrets};

    /// Treats every top-level field `key` as secret.
    #[derive(Debug)]
    struct Keys;

    impl Secrets for Keys {
        fn visit(&self, _: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
            if let Some(Value::String(text)) = value.get_mut("key") {
                each(text);
            }
        }
    }

    #[test]
    fn secrets_are_sealed_where_apisix_seals_them() {
        let keyring = Arc::new(Keyring::new([]).expect("the known keys"));
        let on = Sealing { keyring, secrets: Arc::new(Keys), fields: true };
        let off = Sealing { fields: false, ..on.clone() };
        let private = r#"{"key":"-----BEGIN PRIVATE KEY-----"}"#;
        let cases = [
            (&on, Kind::Consumers, r#"{"key":"auth-one","a":1}"#, true),
            (&off, Kind::Consumers, r#"{"key":"auth-one"}"#, false),
            (&on, Kind::Consumers, r#"{"key":"$secret://vault/1/jack/key"}"#, false),
            (&on, Kind::Consumers, r#"{"key":""}"#, false),
            (&on, Kind::Routes, r#"{"other":"auth-one"}"#, false),
            (&on, Kind::Routes, "{broken", false),
            (&on, Kind::Secrets, private, false),
            (&on, Kind::Upstreams, private, true),
            (&on, Kind::Upstreams, r#"{"key":"other"}"#, false),
            (&on, Kind::Ssls, private, true),
            (&off, Kind::Ssls, private, true),
            (&on, Kind::Ssls, r#"{"key":"$env://KEY"}"#, false),
        ];
        for (sealing, kind, value, is_sealed) in cases {
            let sealed = sealing.seal(kind, &value.into()).expect("sealed");
            assert_eq!(&*sealed != value, is_sealed, "{value}");
            assert_eq!(&*off.open(kind, sealed), value);
        }
    }

    /// Expected texts come from `openssl enc -aes-128-cbc -K HEX -iv HEX -a -A`, with the key's digits for HEX.
    #[test]
    fn it_is_what_openssl_makes() {
        let keyring = Keyring::new(["qeddd145sfvddff3"]).expect("a keyring");
        let cases = [
            ("auth-one", "4y+JvURBE6ZwRbbgaryrhg=="),
            ("", "CEGh183MAO3X8/ZV2jzHeA=="),
            ("sixteen bytes ok", "bCNXBPzbrTUi1SCwHcmm1Ks8u4jceEPcAgrQDN2FWYk="),
        ];
        for (plain, sealed) in cases {
            assert_eq!(keyring.seal(plain).as_deref(), Some(sealed), "{plain}");
            assert_eq!(keyring.open(sealed).as_deref(), Some(plain), "{plain}");
        }
    }

    #[test]
    fn all_keys_decrypt_and_the_first_encrypts() {
        let old = Keyring::new(["edd1c9f0985e76a2"]).expect("a keyring");
        let new = Keyring::new(["0123456789abcdef", "edd1c9f0985e76a2"]).expect("a keyring");
        let sealed = old.seal("a secret of some length").expect("sealed");
        assert_eq!(new.open(&sealed).as_deref(), Some("a secret of some length"));
        let sealed = new.seal("a secret of some length").expect("sealed");
        assert_ne!(old.open(&sealed).as_deref(), Some("a secret of some length"));
    }

    #[test]
    fn what_is_not_encrypted_is_no_text_of_ours() {
        let keyring = Keyring::new([]).expect("the known keys");
        assert!(keyring.uses_default_key());
        for plain in ["auth-one", "", "$secret://vault/1/jack/key", "YWJj", "-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(keyring.open(plain), None, "{plain}");
        }
    }

    #[test]
    fn keys_have_sixteen_bytes() {
        let error = Keyring::new(["0123456789abcdef", "short"]).map(|_| ()).expect_err("too short");
        assert_eq!(error, KeyLengthError { position: 2, length: 5 });
    }
}
