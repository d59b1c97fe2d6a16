//! Sessions and logins in cookies, encrypted and authenticated (AES-256-GCM): nobody but the gateway reads or makes them.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_plugin::RequestCx;

use super::jose::Claims;

/// Most bytes of a value in one cookie; browsers take 4096 with name and attributes.
const CHUNK: usize = 3800;
/// Most cookies of one session.
const CHUNKS: usize = 6;

/// Attribute `SameSite` of a cookie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum SameSite {
    #[default]
    Lax,
    Strict,
    None,
}

/// A session: what is known of a user who has logged in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Session {
    /// End, in seconds since 1970.
    pub(super) end: u64,
    pub(super) access_token: String,
    /// End of the access token, in seconds since 1970.
    pub(super) access_end: u64,
    pub(super) refresh_token: Option<String>,
    pub(super) id_token: String,
    pub(super) user: Option<Claims>,
}

/// A login on its way: what the answer of the provider has to fit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Login {
    pub(super) state: String,
    pub(super) nonce: String,
    /// The secret of PKCE (RFC 7636).
    pub(super) verifier: Option<String>,
    /// Path and query that the user asked for.
    pub(super) target: String,
    /// End, in seconds since 1970.
    pub(super) end: u64,
}

/// Keys and attributes of cookies.
#[derive(Debug)]
pub(crate) struct Cookies {
    pub(crate) name: String,
    key: Key,
    /// Attributes of sessions, such as `; Path=/`.
    attributes: String,
    /// True where browsers send the cookies over HTTPS alone; `None`: where the request came so.
    secure: Option<bool>,
}

/// A key, of which nothing is shown.
struct Key {
    key: RandomizedNonceKey,
    /// Held so that further instances of the place find it: the secret where none is configured.
    _secret: Arc<String>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Cookies {
    /// Cookies of the client `client` of a provider. `None`: the key cannot be made.
    pub(crate) fn new(
        name: String,
        secret: &Arc<String>,
        client: &str,
        attributes: String,
        secure: Option<bool>,
    ) -> Option<Self> {
        // A session of another client is none of this one, also with the same secret.
        let of_client = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), client.as_bytes());
        let key = RandomizedNonceKey::new(&AES_256_GCM, of_client.as_ref()).ok()?;
        Some(Self { name, key: Key { key, _secret: Arc::clone(secret) }, attributes, secure })
    }

    /// A value as the text of a cookie, which opens under the same kind alone.
    pub(crate) fn seal(&self, kind: &str, what: &impl Serialize) -> Option<String> {
        let mut text = serde_json::to_vec(what).ok()?;
        let nonce = self.key.key.seal_in_place_append_tag(Aad::from(kind.as_bytes()), &mut text).ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce.as_ref()[..], &text].concat()))
    }

    /// The value of a cookie that the gateway has made.
    pub(crate) fn open<T: DeserializeOwned>(&self, kind: &str, sealed: &[u8]) -> Option<T> {
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.key.key.open_in_place(nonce, Aad::from(kind.as_bytes()), text).ok()?;
        serde_json::from_slice(text).ok()
    }

    fn chunk_name(&self, at: usize) -> String {
        if at == 0 { self.name.clone() } else { format!("{}_{}", self.name, at + 1) }
    }

    fn line(&self, cx: &RequestCx<'_>, name: &str, value: &str, attributes: &str) -> String {
        let secure = if self.secure.unwrap_or(cx.client().https) { "; Secure" } else { "" };
        format!("{name}={value}{attributes}{secure}")
    }

    /// The only cookie of its name, with this value and further attributes.
    pub(crate) fn single(&self, value: &str, attributes: &str) -> String {
        let secure = if self.secure == Some(true) { "; Secure" } else { "" };
        format!("{}={value}{}{attributes}{secure}", self.name, self.attributes)
    }

    /// The session of a request at `now`.
    pub(super) fn session(&self, cx: &RequestCx<'_>, now: u64) -> Option<Session> {
        let first = cx.request().cookie(self.name.as_bytes())?;
        // The number of cookies stands in front.
        let (count, first) = (first.first()?, first.get(2..).filter(|_| first.get(1) == Some(&b'.'))?);
        let count = usize::from(count.checked_sub(b'0')?);
        if count == 0 || count > CHUNKS {
            return None;
        }
        let mut sealed = first.to_vec();
        for at in 1..count {
            sealed.extend_from_slice(cx.request().cookie(self.chunk_name(at).as_bytes())?);
        }
        self.open::<Session>("session", &sealed).filter(|session| session.end > now)
    }

    /// The cookies of a session. `None`: it is too large for them.
    pub(super) fn of_session(&self, cx: &RequestCx<'_>, session: &Session) -> Option<Vec<String>> {
        let sealed = self.seal("session", session)?;
        let chunks: Vec<&[u8]> = sealed.as_bytes().chunks(CHUNK).collect();
        if chunks.len() > CHUNKS {
            return None;
        }
        let count = chunks.len();
        let line = |(at, chunk): (usize, &&[u8])| {
            let chunk = String::from_utf8_lossy(chunk);
            let value = if at == 0 { format!("{count}.{chunk}") } else { chunk.into_owned() };
            self.line(cx, &self.chunk_name(at), &value, &self.attributes)
        };
        Some(chunks.iter().enumerate().map(line).collect())
    }

    /// Cookies that end those of the request's session.
    pub(super) fn ending(&self, cx: &RequestCx<'_>) -> Vec<String> {
        let names = (0..CHUNKS).map(|at| self.chunk_name(at));
        let sent = names.filter(|name| cx.request().cookie(name.as_bytes()).is_some());
        sent.map(|name| self.line(cx, &name, "", &format!("{}; Max-Age=0", self.attributes))).collect()
    }

    /// The name of a login's cookie: each has its own, so that logins in several windows do not meet.
    fn login_name(&self, state: &str) -> String {
        format!("{}_login_{}", self.name, state.get(..8).unwrap_or_default())
    }

    /// The login that an answer with this state belongs to.
    pub(super) fn login(&self, cx: &RequestCx<'_>, state: &str, now: u64) -> Option<Login> {
        let sealed = cx.request().cookie(self.login_name(state).as_bytes())?;
        let login = self.open::<Login>("login", sealed)?;
        (login.state == state && login.end > now).then_some(login)
    }

    /// The cookie of a login, for the path to which the provider sends the user back.
    pub(super) fn of_login(&self, cx: &RequestCx<'_>, login: &Login, path: &str, seconds: u64) -> Option<String> {
        let sealed = self.seal("login", login)?;
        // The answer comes from another site: a stricter attribute would keep the cookie from it.
        let path = login_path(path);
        let attributes = format!("; Path={path}; HttpOnly; SameSite=Lax; Max-Age={seconds}");
        Some(self.line(cx, &self.login_name(&login.state), &sealed, &attributes))
    }

    /// A cookie that ends that of a login.
    pub(super) fn ending_login(&self, cx: &RequestCx<'_>, state: &str, path: &str) -> String {
        let path = login_path(path);
        self.line(cx, &self.login_name(state), "", &format!("; Path={path}; HttpOnly; SameSite=Lax; Max-Age=0"))
    }
}

/// Attribute `Path` of a login's cookie. The path of a request may contain `;`, which would begin another attribute: such a
/// login has a cookie for all paths.
fn login_path(path: &str) -> &str {
    if path.contains(';') { "/" } else { path }
}

#[cfg(test)]
mod tests {
    use super::login_path;

    #[test]
    fn a_path_adds_no_attribute() {
        assert_eq!(login_path("/a/.apisix/redirect"), "/a/.apisix/redirect");
        assert_eq!(login_path("/a;Domain=b.test/.apisix/redirect"), "/");
    }
}
