//! Tokens of identity providers, for logins that are not on the path of a request.

use serde_json::{Map, Value};

use crate::auth::openid_connect::claims::{check_times, holds};
use crate::auth::openid_connect::jose::{Jwt, KeySet, Verdict};

/// Seconds by which clocks may differ.
const SLACK: f64 = 120.0;

/// The claims of an ID token (OpenID Connect Core 1.0 section 3.1.3.7), at `now` in seconds since 1970. `keys` is the set of
/// the provider's keys.
///
/// # Errors
/// Reason that the token says nothing.
pub fn id_token(
    token: &str,
    keys: &[u8],
    (issuer, client, nonce): (&str, &str, &str),
    now: f64,
) -> Result<Map<String, Value>, String> {
    let keys = KeySet::parse(keys).ok_or("the provider's keys are no set of keys")?;
    let token = Jwt::parse(token).ok_or("the ID token is no token with a signature")?;
    match keys.verify(&token) {
        Verdict::Good => {}
        Verdict::Bad => return Err("the signature of the ID token is wrong".to_owned()),
        Verdict::NoKey => return Err("the provider has no key for the ID token".to_owned()),
    }
    let claims = token.claims;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(issuer) {
        return Err("the ID token is of another issuer".to_owned());
    }
    if !holds(claims.get("aud"), client) {
        return Err("the ID token is for somebody else".to_owned());
    }
    let has_others = matches!(claims.get("aud"), Some(Value::Array(list)) if list.len() > 1);
    if has_others && text("azp") != Some(client) {
        return Err("the ID token is for several clients, and not given to this one".to_owned());
    }
    if text("nonce") != Some(nonce) {
        return Err("the ID token is of another login".to_owned());
    }
    if claims.get("exp").is_none() || text("sub").is_none() {
        return Err("the ID token has no subject or no end".to_owned());
    }
    check_times(&claims, now, SLACK)?;
    Ok(claims)
}
