//! Checks of what a token says: by whom it was issued, for whom, and for how long.

use serde_json::Value;

use super::jose::Claims;

/// Seconds of `exp`, `nbf` and `iat`, which may have a fraction. A claim of another kind is a fault of the token.
fn time(claims: &Claims, name: &str) -> Result<Option<f64>, String> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| format!("the claim {name} is no number")),
    }
}

/// Checks `exp`, `nbf` and `iat` at `now`, in seconds since 1970, with clocks that differ by up to `slack`.
///
/// # Errors
/// Says which claim does not hold.
pub(crate) fn check_times(claims: &Claims, now: f64, slack: f64) -> Result<(), String> {
    if time(claims, "exp")?.is_some_and(|exp| exp + slack <= now) {
        return Err("the token has expired".into());
    }
    if time(claims, "nbf")?.is_some_and(|nbf| nbf - slack > now) {
        return Err("the token is not valid yet".into());
    }
    if time(claims, "iat")?.is_some_and(|iat| iat - slack > now) {
        return Err("the token was issued in the future".into());
    }
    Ok(())
}

/// True when a claim, a text or a list of texts, holds this text.
pub(super) fn holds(claim: Option<&Value>, wanted: &str) -> bool {
    match claim {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Array(list)) => list.iter().any(|one| one.as_str() == Some(wanted)),
        _ => false,
    }
}

/// True when a claim of scopes, a text with blanks between them (RFC 8693 section 4.2) or a list, holds all of these.
pub(super) fn has_scopes(claim: Option<&Value>, wanted: &[String]) -> bool {
    wanted.iter().all(|scope| match claim {
        Some(Value::String(text)) => text.split(' ').any(|one| one == scope),
        list => holds(list, scope),
    })
}

#[cfg(test)]
mod tests {
    use super::{check_times, has_scopes, holds};
    use serde_json::json;

    #[test]
    fn times_hold_within_the_slack() {
        for (claims, good) in [
            (json!({}), true),
            (json!({ "exp": 1000.5, "nbf": 1000, "iat": 1000 }), true),
            (json!({ "exp": 991 }), true),
            (json!({ "exp": 990 }), false),
            (json!({ "nbf": 1010 }), true),
            (json!({ "nbf": 1011 }), false),
            (json!({ "iat": 1010 }), true),
            (json!({ "iat": 1011 }), false),
            (json!({ "exp": "9999" }), false),
            (json!({ "nbf": null }), false),
        ] {
            let checked = check_times(claims.as_object().unwrap(), 1000.0, 10.0);
            assert_eq!(checked.is_ok(), good, "{claims}: {checked:?}");
        }
    }

    #[test]
    fn audiences_and_scopes_are_texts_or_lists() {
        assert!(holds(Some(&json!("a")), "a") && holds(Some(&json!(["b", "a"])), "a"));
        assert!(!holds(Some(&json!("ab")), "a") && !holds(Some(&json!([["a"]])), "a") && !holds(None, "a"));
        let wanted = ["read".to_owned(), "write".to_owned()];
        assert!(
            has_scopes(Some(&json!("write x read")), &wanted) && has_scopes(Some(&json!(["read", "write"])), &wanted)
        );
        assert!(!has_scopes(Some(&json!("read writes")), &wanted) && !has_scopes(None, &wanted));
        assert!(has_scopes(None, &[]));
    }
}
