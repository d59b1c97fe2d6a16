//! Tokens and codes: sealed texts (AES-256-GCM) with a key of the client's secret, so that every gateway with the same
//! configuration opens them and none has to keep them.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// Purpose of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Access,
    Refresh,
    Code,
}

impl Purpose {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"access",
            Self::Refresh => b"refresh",
            Self::Code => b"code",
        }
    }
}

/// Rights that a client has been granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    /// Id of the service; `None`: all services with `global_credentials`.
    pub(super) service: Option<String>,
    /// The user who has granted it.
    pub(super) user: Option<String>,
    pub(super) scope: Option<String>,
    /// End, in milliseconds since 1970; 0: none.
    pub(super) end: u64,
    /// A number that makes each text another one.
    pub(super) number: u128,
    /// Of a code: the redirect URI that it was asked for with, and the challenge of PKCE (RFC 7636).
    pub(super) redirect_uri: Option<String>,
    pub(super) challenge: Option<String>,
}

/// The longest text that is opened.
const LONGEST: usize = 8 << 10;

/// Id of the client in a text.
pub(super) fn client_of(text: &[u8]) -> Option<Vec<u8>> {
    let id = text.split(|byte| *byte == b'.').next().filter(|_| text.len() <= LONGEST)?;
    URL_SAFE_NO_PAD.decode(id).ok()
}

/// Seals a grant. `None`: the library has failed.
pub(super) fn seal(purpose: Purpose, client: &[u8], secret: &[u8], grant: &Grant) -> Option<String> {
    let mut text = serde_json::to_vec(grant).ok()?;
    let nonce = key(client, secret)?.seal_in_place_append_tag(Aad::from(purpose.name()), &mut text).ok()?;
    let sealed = URL_SAFE_NO_PAD.encode([&nonce.as_ref()[..], &text].concat());
    Some(format!("{}.{sealed}", URL_SAFE_NO_PAD.encode(client)))
}

/// The grant of a text that was sealed for this purpose and has not ended.
pub(super) fn open(purpose: Purpose, client: &[u8], secret: &[u8], text: &[u8], now: u64) -> Option<Grant> {
    let at = text.iter().position(|byte| *byte == b'.')?;
    let mut bytes = URL_SAFE_NO_PAD.decode(text.get(at + 1..)?).ok()?;
    let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let opened = key(client, secret)?.open_in_place(nonce, Aad::from(purpose.name()), sealed).ok()?;
    let grant: Grant = serde_json::from_slice(opened).ok()?;
    (grant.end == 0 || now < grant.end).then_some(grant)
}

fn key(client: &[u8], secret: &[u8]) -> Option<RandomizedNonceKey> {
    let of_client = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &[b"oauth2 tokens of ", client].concat());
    RandomizedNonceKey::new(&AES_256_GCM, of_client.as_ref()).ok()
}

#[cfg(test)]
mod tests {
    use super::{Grant, Purpose, client_of, open, seal};

    #[test]
    fn texts_open_for_their_purpose_client_and_time_alone() {
        let grant = Grant { user: Some("jo".into()), end: 1000, number: 7, ..Grant::default() };
        let text = seal(Purpose::Access, b"c\xff", b"secret", &grant).expect("a token");
        assert_eq!(client_of(text.as_bytes()).as_deref(), Some(&b"c\xff"[..]));
        let opened = |purpose, client: &[u8], secret: &[u8], now| open(purpose, client, secret, text.as_bytes(), now);
        assert_eq!(opened(Purpose::Access, b"c\xff", b"secret", 999), Some(grant));
        assert_eq!(opened(Purpose::Refresh, b"c\xff", b"secret", 999), None);
        assert_eq!(opened(Purpose::Access, b"d", b"secret", 999), None);
        assert_eq!(opened(Purpose::Access, b"c\xff", b"other", 999), None);
        assert_eq!(opened(Purpose::Access, b"c\xff", b"secret", 1000), None);
        let broken = format!("{}x", &text[..text.len() - 1]);
        assert!(open(Purpose::Access, b"c\xff", b"secret", broken.as_bytes(), 0).is_none() || text.ends_with('x'));
        assert!(client_of(b"").is_some_and(|id| id.is_empty()) && client_of(b"!.").is_none());
    }
}
