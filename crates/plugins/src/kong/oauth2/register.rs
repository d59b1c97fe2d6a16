//! Tokens of a gateway with a store: Kong's entities `oauth2_tokens`, shared by all workers and found without a lock.

use std::hash::RandomState;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use serde_json::{Value, json};
use weir_plugin::StateRegistry;

/// A pair of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id, a UUID.
    pub id: String,
    /// Id of the credential: of the client that it was granted to.
    pub credential: String,
    /// The client's `client_id`.
    pub client_id: String,
    /// Id of the service; `None`: all services with `global_credentials`.
    pub service: Option<String>,
    /// Text that requests carry.
    pub access: String,
    /// Text that is changed for new tokens.
    pub refresh: Option<String>,
    /// The user who has granted it.
    pub user: Option<String>,
    /// Scopes, with blanks between them.
    pub scope: Option<String>,
    /// Seconds for which the text in `access` holds; 0: for ever.
    pub expires_in: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970 at which all of it goes; `None`: never.
    pub ends: Option<u64>,
}

type Hash = [u8; 32];
type Table<K> = papaya::HashMap<K, Arc<Token>, RandomState>;

/// A change of the register, to be written down: the token, or `None` for one that goes.
#[derive(Clone, Debug)]
pub struct TokenChange {
    /// Id of the token.
    pub id: String,
    /// The token.
    pub token: Option<Arc<Token>>,
}

/// Takes changes; false if it cannot take this one.
type Keeper = Box<dyn Fn(TokenChange) -> bool + Send + Sync>;

/// The tokens of the process. Without a keeper there are none, and clients get sealed ones.
#[derive(Default)]
pub struct Tokens {
    by_id: Table<Box<str>>,
    /// By hashes of the texts, so that the time of a look-up tells nothing of them.
    by_access: Table<Hash>,
    by_refresh: Table<Hash>,
    keeper: OnceLock<Keeper>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("count", &self.by_id.len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// The tokens of all configurations.
    #[must_use]
    pub fn of(states: &StateRegistry) -> Arc<Self> {
        states.get_or_create("kong oauth2 tokens", Self::default)
    }

    /// Keeps tokens from now on: `keeper` is told of each change.
    pub fn keep(&self, keeper: impl Fn(TokenChange) -> bool + Send + Sync + 'static) {
        let _ = self.keeper.set(Box::new(keeper));
    }

    /// True if tokens are kept.
    #[must_use]
    pub fn are_kept(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts back a token that was written down, unless there is one with its id.
    pub fn restore(&self, token: Token) {
        if self.by_id.pin().get(token.id.as_str()).is_none() {
            self.insert(&Arc::new(token));
        }
    }

    /// Takes out a token that was removed where it is written down.
    pub fn forget(&self, id: &str) {
        drop(self.take(id));
    }

    /// Puts a token in the place of the one with its id. False if it cannot be written down.
    #[must_use]
    pub fn put(&self, token: Token) -> bool {
        let token = Arc::new(token);
        let change = TokenChange { id: token.id.clone(), token: Some(Arc::clone(&token)) };
        if !self.keeper.get().is_some_and(|keeper| keeper(change)) {
            return false;
        }
        self.insert(&token);
        true
    }

    /// Removes a token. Returns it if it was there.
    pub fn remove(&self, id: &str) -> Option<Arc<Token>> {
        let token = self.take(id)?;
        if let Some(keeper) = self.keeper.get() {
            // One that cannot be written down now is back after a restart; the keeper logs that.
            keeper(TokenChange { id: id.to_owned(), token: None });
        }
        Some(token)
    }

    /// A token by its id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Token>> {
        self.by_id.pin().get(id).cloned()
    }

    /// The token with this text in `access`, whether it still holds or not.
    #[must_use]
    pub fn by_access(&self, text: &[u8]) -> Option<Arc<Token>> {
        self.by_access.pin().get(&hash(text)).cloned()
    }

    /// The token with this text in `refresh`.
    #[must_use]
    pub fn by_refresh(&self, text: &[u8]) -> Option<Arc<Token>> {
        self.by_refresh.pin().get(&hash(text)).cloned()
    }

    /// All tokens that have not ended, in the order of their ids. Those that have are removed.
    #[must_use]
    pub fn all(&self, now: u64) -> Vec<Arc<Token>> {
        self.sweep(now);
        let mut all: Vec<_> = self.by_id.pin().values().cloned().collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Removes the tokens that have ended.
    pub fn sweep(&self, now: u64) {
        self.retain(|token| !token.has_ended(now));
    }

    /// Removes the tokens that `keep` does not want.
    pub fn retain(&self, keep: impl Fn(&Token) -> bool) {
        let gone: Vec<_> = self.by_id.pin().values().filter(|token| !keep(token)).map(Arc::clone).collect();
        for token in gone {
            drop(self.remove(&token.id));
        }
    }

    fn insert(&self, token: &Arc<Token>) {
        let before = self.by_id.pin().insert(token.id.as_str().into(), Arc::clone(token)).cloned();
        self.by_access.pin().insert(hash(token.access.as_bytes()), Arc::clone(token));
        if let Some(refresh) = &token.refresh {
            self.by_refresh.pin().insert(hash(refresh.as_bytes()), Arc::clone(token));
        }
        let Some(before) = before else { return };
        if before.access != token.access {
            self.by_access.pin().remove(&hash(before.access.as_bytes()));
        }
        if let Some(refresh) = before.refresh.as_ref().filter(|_| before.refresh != token.refresh) {
            self.by_refresh.pin().remove(&hash(refresh.as_bytes()));
        }
    }

    /// Takes a token out; of several callers one gets it.
    fn take(&self, id: &str) -> Option<Arc<Token>> {
        let token = self.by_id.pin().remove(id).cloned()?;
        self.by_access.pin().remove(&hash(token.access.as_bytes()));
        if let Some(refresh) = &token.refresh {
            self.by_refresh.pin().remove(&hash(refresh.as_bytes()));
        }
        Some(token)
    }
}

impl Token {
    /// True once all of it has ended.
    #[must_use]
    pub fn has_ended(&self, now: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// True while requests may carry it.
    #[must_use]
    pub fn holds(&self, now: u64) -> bool {
        !self.has_ended(now) && (self.expires_in == 0 || now < self.created.saturating_add(self.expires_in))
    }

    /// The entity, as Kong's Admin API shows it.
    #[must_use]
    pub fn entity(&self, now: u64) -> Value {
        let reference = |id: &String| json!({ "id": id });
        let mut entity = json!({
            "id": self.id, "created_at": self.created, "credential": { "id": self.credential },
            "service": self.service.as_ref().map(reference), "token_type": "bearer", "expires_in": self.expires_in,
            "access_token": self.access, "refresh_token": self.refresh, "authenticated_userid": self.user,
            "scope": self.scope,
        });
        if let Some(ends) = self.ends {
            entity["ttl"] = ends.saturating_sub(now).into();
        }
        entity
    }

    /// The text that is written down.
    #[must_use]
    pub fn written(&self) -> String {
        let mut written = self.entity(0);
        written["client_id"] = self.client_id.as_str().into();
        written.to_string()
    }

    /// Reads an entity, or what was written down. `ttl` counts from `now`.
    ///
    /// # Errors
    /// A field is missing or no text.
    pub fn read(entity: &Value, client_id: Option<&str>, now: u64) -> Result<Self, &'static str> {
        let text = |name: &str| entity[name].as_str().map(str::to_owned);
        let id_of = |name: &str| entity[name]["id"].as_str().map(str::to_owned);
        Ok(Self {
            id: text("id").ok_or("id")?,
            credential: id_of("credential").ok_or("credential")?,
            client_id: client_id.map(str::to_owned).or_else(|| text("client_id")).ok_or("client_id")?,
            service: id_of("service"),
            access: text("access_token").ok_or("access_token")?,
            refresh: text("refresh_token"),
            user: text("authenticated_userid"),
            scope: text("scope"),
            expires_in: entity["expires_in"].as_u64().ok_or("expires_in")?,
            created: entity["created_at"].as_u64().ok_or("created_at")?,
            ends: entity["ttl"].as_u64().filter(|ttl| *ttl > 0).map(|ttl| now.saturating_add(ttl)),
        })
    }
}

fn hash(text: &[u8]) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, text).as_ref());
    hash
}

/// A random text of 32 letters and digits, as Kong makes keys and tokens. `None`: the library has failed.
#[must_use]
pub fn random_text() -> Option<String> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789Az";
    let mut bytes = [0_u8; 32];
    rand::fill(&mut bytes).ok()?;
    Some(
        bytes.iter().filter_map(|byte| LETTERS.get(usize::from(byte & 63)).map(|letter| char::from(*letter))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::{Token, Tokens};

    fn token(id: &str, access: &str) -> Token {
        Token {
            id: id.into(),
            credential: "c".into(),
            client_id: "app".into(),
            service: None,
            access: access.into(),
            refresh: Some(format!("{access}-refresh")),
            user: None,
            scope: Some("read".into()),
            expires_in: 10,
            created: 100,
            ends: Some(200),
        }
    }

    #[test]
    fn tokens_are_found_replaced_and_end() {
        let tokens = Tokens::default();
        assert!(!tokens.put(token("1", "a")), "nobody writes it down");
        tokens.keep(|_| true);
        assert!(tokens.put(token("1", "a")) && tokens.put(token("2", "b")) && tokens.put(token("1", "new")));
        assert!(tokens.by_access(b"a").is_none() && tokens.by_refresh(b"a-refresh").is_none());
        assert_eq!(tokens.by_access(b"new").map(|token| token.id.clone()).as_deref(), Some("1"));
        let held = tokens.by_refresh(b"b-refresh").expect("a token");
        assert_eq!(
            [held.holds(109), held.holds(110), held.has_ended(199), held.has_ended(200)],
            [true, false, false, true]
        );
        let read = Token::read(&serde_json::from_str(&held.written()).expect("JSON"), None, 0);
        assert_eq!(read.as_ref(), Ok(&*held));
        assert_eq!(tokens.all(199).len(), 2);
        assert!(tokens.all(200).is_empty() && tokens.is_empty() && tokens.by_access(b"new").is_none());
    }
}
