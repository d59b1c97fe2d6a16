//! Bearer tokens for collectors, each kept for as long as it is good.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use weir_telemetry::reports::Grant;

/// Most tokens that are kept.
const KEPT: usize = 64;
/// Time before its end at which a token is not used any more.
const MARGIN: Duration = Duration::from_secs(60);
/// Longest time for which a token is used.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The tokens, by the service, the account and the scopes that they were given for, and by the account's key.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<[String; 4], Token>>);

struct Token {
    /// The value of `Authorization`.
    authorization: String,
    until: Instant,
}

/// Answer of a service (RFC 6749 section 5.1).
#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<u64>,
}

impl Tokens {
    /// The value of `Authorization` for this grant. `ask` sends a form to the service, and returns its answer.
    ///
    /// # Errors
    /// Reason why there is none.
    pub(super) fn of(
        &self,
        grant: &Grant,
        ask: impl FnOnce(String) -> Result<Vec<u8>, String>,
    ) -> Result<String, String> {
        let now = Instant::now();
        if let Some(token) = self.lock().get(&key(grant)).filter(|token| now < token.until) {
            return Ok(token.authorization.clone());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let assertion = (grant.assert)(grant, seconds)?;
        // The assertion has no byte that a form would encode.
        let form = format!("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}");
        let answer = ask(form).map_err(|reason| format!("no token of {}: {reason}", grant.token_uri))?;
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|_| format!("no token of {}: the answer holds none", grant.token_uri))?;
        let kind = answer.token_type.as_deref().unwrap_or("Bearer");
        let authorization = format!("{kind} {}", answer.access_token);
        let good = Duration::from_secs(answer.expires_in.unwrap_or(0)).min(LONGEST).saturating_sub(MARGIN);
        let mut tokens = self.lock();
        tokens.retain(|_, token| now < token.until);
        if tokens.len() < KEPT && !good.is_zero() {
            tokens.insert(key(grant), Token { authorization: authorization.clone(), until: now + good });
        }
        Ok(authorization)
    }

    /// Drops the token of a grant, which a collector does not take.
    pub(super) fn forget(&self, grant: &Grant) {
        self.lock().remove(&key(grant));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[String; 4], Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(grant: &Grant) -> [String; 4] {
    [&grant.token_uri, &grant.issuer, &grant.scope, &grant.private_key].map(String::clone)
}
