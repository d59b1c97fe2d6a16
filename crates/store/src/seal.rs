//! Secrets at rest: AES-256-GCM over single strings of a resource, so that the rest of its JSON stays readable.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{digest, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{Key, Kind};

/// Prefix of an encrypted string; the id of the key follows, and after a colon nonce, ciphertext and tag.
pub(crate) const PREFIX: &str = "$sealed:1:";

const KEY_BYTES: usize = 32;

/// Selects the strings of a resource that are secret.
pub trait Secrets: Send + Sync + fmt::Debug {
    /// Calls `each` with every secret string.
    fn visit(&self, kind: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String));

    /// False if a resource's JSON certainly holds no secret: a quick check that saves parsing the JSON.
    fn may_be_in(&self, _json: &str) -> bool {
        true
    }
}

/// Treats no string as secret.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn visit(&self, _: Kind, _: &mut Value, _: &mut dyn FnMut(&mut String)) {}
}

/// Encrypts and decrypts the secrets of resources.
pub struct Seal {
    key: LessSafeKey,
    /// Identifies the key without revealing anything about it.
    id: String,
    secrets: Arc<dyn Secrets>,
}

/// Error when encrypting or decrypting secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The text is not a valid key.
    #[error("{0}: the key of a store is 64 hexadecimal digits")]
    NotAKey(String),
    /// The key file cannot be read or created.
    #[error("{0}")]
    File(String),
    /// The secret was encrypted with another key.
    #[error("a secret of {key} was encrypted with the key {needed}, and this is the key {given}")]
    OtherKey {
        /// The resource.
        key: Key,
        /// Id of the key that is needed.
        needed: String,
        /// Id of the key in use.
        given: String,
    },
    /// The ciphertext was changed after encryption, or belongs to another resource.
    #[error("a secret of {0} cannot be decrypted: it is damaged")]
    Damaged(Key),
}

impl Seal {
    /// Creates a seal from a key of 64 hexadecimal digits; `place` names the key's origin in messages.
    ///
    /// # Errors
    /// [`SealError::NotAKey`].
    pub fn from_hex(text: &str, place: &str, secrets: Arc<dyn Secrets>) -> Result<Self, SealError> {
        let wrong = || SealError::NotAKey(place.to_owned());
        let bytes = from_hex(text.trim()).ok_or_else(wrong)?;
        let id = to_hex(digest::digest(&digest::SHA256, &bytes).as_ref().get(..4).unwrap_or_default());
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong())?;
        Ok(Self { key: LessSafeKey::new(key), id, secrets })
    }

    /// Reads the key from a file that only its owner may access. With `create`, a missing file is created.
    ///
    /// # Errors
    /// [`SealError::File`], [`SealError::NotAKey`].
    pub fn from_file(path: &Path, create: bool, secrets: Arc<dyn Secrets>) -> Result<Self, SealError> {
        let place = path.display().to_string();
        let failed = |error: io::Error| SealError::File(format!("cannot read the key {place}: {error}"));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => create_key(path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        };
        Self::from_hex(&text, &place, secrets)
    }

    /// Id of the key, which reveals nothing about it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Encrypts the secrets in the JSON of a resource. A value that is no JSON is encrypted as a whole.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn seal(&self, key: &Key, value: &str) -> Result<String, SealError> {
        let nothing = !value.contains(PREFIX) && !self.secrets.may_be_in(value);
        if nothing && serde_json::from_str::<IgnoredAny>(value).is_ok() {
            return Ok(value.to_owned());
        }
        let Ok(mut value) = serde_json::from_str::<Value>(value) else {
            // A value that is no JSON came from another program, and may contain secrets anywhere.
            return self.encrypt(key, value).ok_or_else(|| SealError::Damaged(key.clone()));
        };
        let mut failed = false;
        let mut encrypt = |text: &mut String| match self.encrypt(key, text) {
            Some(sealed) => *text = sealed,
            None => failed = true,
        };
        // A plain text that only looks encrypted has to decrypt to itself.
        each_text(&mut value, &mut |text| {
            if text.starts_with(PREFIX) {
                encrypt(text);
            }
        });
        self.secrets.visit(key.kind(), &mut value, &mut |text| {
            if !text.starts_with(PREFIX) {
                encrypt(text);
            }
        });
        if failed { Err(SealError::Damaged(key.clone())) } else { Ok(value.to_string()) }
    }

    /// Restores the JSON of a resource that [`Seal::seal`] encrypted.
    ///
    /// # Errors
    /// The key is a different one, or the ciphertext is damaged.
    pub fn open(&self, key: &Key, stored: &str) -> Result<Arc<str>, SealError> {
        if !stored.contains(PREFIX) {
            return Ok(stored.into());
        }
        if let Some(rest) = stored.strip_prefix(PREFIX) {
            return self.decrypt(key, rest).map(Arc::from);
        }
        let mut value: Value = serde_json::from_str(stored).map_err(|_| SealError::Damaged(key.clone()))?;
        let mut failed = None;
        each_text(&mut value, &mut |text| {
            if let Some(rest) = text.strip_prefix(PREFIX) {
                match self.decrypt(key, rest) {
                    Ok(plain) => *text = plain,
                    Err(error) => failed = Some(error),
                }
            }
        });
        failed.map_or_else(|| Ok(value.to_string().into()), Err)
    }

    fn encrypt(&self, key: &Key, text: &str) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut bytes = text.as_bytes().to_vec();
        let place = key.to_string();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce_used, Aad::from(place.as_bytes()), &mut bytes).ok()?;
        let mut whole = nonce.to_vec();
        whole.append(&mut bytes);
        Some(format!("{PREFIX}{}:{}", self.id, STANDARD_NO_PAD.encode(whole)))
    }

    fn decrypt(&self, key: &Key, rest: &str) -> Result<String, SealError> {
        let damaged = || SealError::Damaged(key.clone());
        let (id, text) = rest.split_once(':').ok_or_else(damaged)?;
        if id != self.id {
            return Err(SealError::OtherKey { key: key.clone(), needed: id.to_owned(), given: self.id.clone() });
        }
        let mut whole = STANDARD_NO_PAD.decode(text).map_err(|_| damaged())?;
        let (nonce, bytes) = whole.split_at_mut_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let place = key.to_string();
        let plain = self.key.open_in_place(nonce, Aad::from(place.as_bytes()), bytes).map_err(|_| damaged())?;
        String::from_utf8(plain.to_vec()).map_err(|_| damaged())
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Calls `each` with every string that is a value.
fn each_text(value: &mut Value, each: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, each)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, each)),
        _ => {}
    }
}

/// Creates a key file atomically: it gets its name only once it is durable.
fn create_key(path: &Path) -> io::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    rand::fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    let text = format!("{}\n", to_hex(&bytes));
    let beside = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    if let Some(folder) = path.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(text)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != KEY_BYTES * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..KEY_BYTES).map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use serde_json::Value;

    use super::{NoSecrets, PREFIX, Seal, SealError, Secrets};
    use crate::{Key, Kind};

    /// Treats the string under `secret` as secret.
    #[derive(Debug)]
    struct ThatField;

    impl Secrets for ThatField {
        fn visit(&self, _: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
            if let Some(Value::String(text)) = value.get_mut("secret") {
                each(text);
            }
        }

        fn may_be_in(&self, json: &str) -> bool {
            json.contains("secret")
        }
    }

    fn seal(digit: &str) -> Seal {
        Seal::from_hex(&digit.repeat(64), "test", Arc::new(ThatField)).unwrap()
    }

    #[test]
    fn what_is_sealed_comes_back() {
        let key: Key = "routes/1".parse().unwrap();
        let looks = format!(r#"{{"uri":"/a","name":"{PREFIX}abc"}}"#);
        let cases = [
            (r#"{"uri":"/a","secret":"s3cret"}"#, "s3cret"),
            (r#"{"uri":"/a","secret":""}"#, "\"\""),
            (&looks, "1:abc\""),
        ];
        for (value, hidden) in cases {
            let stored = seal("a").seal(&key, value).unwrap();
            assert!(stored.contains(PREFIX) && !stored.contains(hidden), "{stored}");
            assert!(stored.contains(r#""uri":"/a""#), "{stored}");
            assert_eq!(&*seal("a").open(&key, &stored).unwrap(), value);
        }
        let stored = seal("a").seal(&key, "no JSON").unwrap();
        assert!(stored.starts_with(PREFIX), "{stored}");
        assert_eq!(&*seal("a").open(&key, &stored).unwrap(), "no JSON");
        let open = r#"{"uri":"/a"}"#;
        assert_eq!(seal("a").seal(&key, open).unwrap(), open);
    }

    #[test]
    fn another_key_place_or_text_is_an_error() {
        let key: Key = "routes/1".parse().unwrap();
        let stored = seal("a").seal(&key, r#"{"secret":"s3cret"}"#).unwrap();
        assert!(matches!(seal("b").open(&key, &stored), Err(SealError::OtherKey { .. })));
        let elsewhere: Key = "routes/2".parse().unwrap();
        assert_eq!(seal("a").open(&elsewhere, &stored), Err(SealError::Damaged(elsewhere)));
        let cut = format!("{}\"}}", &stored[..stored.len() - 10]);
        assert_eq!(seal("a").open(&key, &cut), Err(SealError::Damaged(key)));
    }

    #[test]
    fn a_key_file_is_made_once_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(Seal::from_file(&path, false, Arc::new(NoSecrets)), Err(SealError::File(_))));
        let first = Seal::from_file(&path, true, Arc::new(NoSecrets)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = Seal::from_file(&path, true, Arc::new(NoSecrets)).unwrap();
        assert_eq!(first.id(), again.id());
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(Seal::from_file(&path, true, Arc::new(NoSecrets)), Err(SealError::NotAKey(_))));
    }
}
