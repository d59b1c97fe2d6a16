//! Secrets in etcd as APISIX keeps them: AES-128 in CBC mode with the key as its first block, in base64.
//!
//! It hides texts from those who only see etcd, and no more: the same text is the same everywhere, and nobody would notice
//! that one was exchanged. It is what APISIX reads.

use std::fmt;

use aws_lc_rs::cipher::{
    AES_128, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The keys that APISIX comes with.
const KNOWN_TO_ALL: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];

const BLOCK: usize = 16;

/// Keys that texts are encrypted with.
pub struct Keyring {
    keys: Vec<[u8; BLOCK]>,
}

/// A key of a keyring that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {position} of the keyring has {length} bytes and must have 16")]
pub struct NotAKeyring {
    /// Counted from 1.
    pub position: usize,
    /// Its bytes.
    pub length: usize,
}

impl Keyring {
    /// With these keys: the first one encrypts, all of them decrypt. With none: those that APISIX comes with.
    ///
    /// # Errors
    /// One has not 16 bytes.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, NotAKeyring> {
        let read = |(index, key): (usize, &str)| {
            key.as_bytes().try_into().map_err(|_| NotAKeyring { position: index + 1, length: key.len() })
        };
        let mut keys = keys.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            keys = KNOWN_TO_ALL.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        }
        Ok(Self { keys })
    }

    /// Whether it encrypts with a key that everybody knows.
    #[must_use]
    pub fn is_known_to_all(&self) -> bool {
        self.keys.first().is_some_and(|key| KNOWN_TO_ALL.iter().any(|known| known.as_bytes() == key))
    }

    /// The text encrypted; `None` when the library refuses.
    #[must_use]
    pub fn seal(&self, text: &str) -> Option<String> {
        let key = self.keys.first()?;
        let cipher = UnboundCipherKey::new(&AES_128, key).and_then(PaddedBlockEncryptingKey::cbc_pkcs7).ok()?;
        let mut bytes = text.as_bytes().to_vec();
        cipher.less_safe_encrypt(&mut bytes, EncryptionContext::Iv128(key.into())).ok()?;
        Some(STANDARD.encode(bytes))
    }

    /// The text that was encrypted; `None` for what was not, or not with one of these keys.
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
            // A wrong key gives rubbish that is padded well by chance, one time in 256.
            std::str::from_utf8(plain).ok().map(str::to_owned)
        })
    }
}

impl fmt::Debug for Keyring {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} keys)", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{Keyring, NotAKeyring};

    /// Made with `openssl enc -aes-128-cbc -K HEX -iv HEX -a -A`, where HEX are the digits of the key.
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
        assert!(keyring.is_known_to_all());
        for plain in ["auth-one", "", "$secret://vault/1/jack/key", "YWJj", "-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(keyring.open(plain), None, "{plain}");
        }
    }

    #[test]
    fn keys_have_sixteen_bytes() {
        let error = Keyring::new(["0123456789abcdef", "short"]).map(|_| ()).expect_err("too short");
        assert_eq!(error, NotAKeyring { position: 2, length: 5 });
    }
}
