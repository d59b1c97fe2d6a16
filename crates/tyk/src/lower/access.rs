//! Authentication and limits of keys, and CORS.

use weir_config::Node;

use super::{flag, list, map, text};
use crate::conf::Conf;
use crate::definition::Definition;

/// Authentication, rights and limits; `None` for an API without keys.
pub(super) fn access(api: &Definition, conf: &Conf) -> Option<Node> {
    if api.flag("use_keyless") {
        return None;
    }
    let mark = api.node.mark;
    let mut ways = Vec::new();
    if api.flag("use_basic_auth") {
        ways.push(way(api, "basic", "basic"));
    }
    if api.flag("enable_jwt") {
        let mut jwt = way(api, "jwt", "jwt");
        jwt.insert("jwt", self::jwt(api));
        ways.push(jwt);
    }
    // Also where no other way is on.
    if api.flag("use_standard_auth") || ways.is_empty() {
        ways.push(way(api, "token", "authToken"));
    }
    let mut access = map(mark, [("ways", list(mark, ways))]);
    for (field, value) in [
        ("strip_auth_data", api.flag("strip_auth_data")),
        ("hash_keys", conf.hash_keys),
        ("allow_master_keys", conf.allow_master_keys),
        ("disable_rate_limit", api.flag("disable_rate_limit")),
        ("disable_quota", api.flag("disable_quota")),
    ] {
        access.insert(field, flag(value));
    }
    access.insert("hash_key_function", text(&conf.hash_key_function));
    Some(access)
}

/// A way of authentication, with its place in requests: that of `auth_configs`, else that of `auth`.
fn way(api: &Definition, kind: &str, name: &str) -> Node {
    let own = api.at(&format!("auth_configs.{name}")).filter(|own| own.as_map().is_some_and(|own| !own.is_empty()));
    let place = own.or_else(|| api.at("auth"));
    let mark = place.map_or(api.node.mark, |place| place.mark);
    let mut way = map(mark, [("kind", text(kind))]);
    let fields = ["auth_header_name", "disable_header", "use_param", "param_name", "use_cookie", "cookie_name"];
    for field in fields {
        if let Some(value) = place.and_then(|place| place.get(field)) {
            way.insert(field, value.clone());
        }
    }
    way
}

/// Verification and reading of tokens.
fn jwt(api: &Definition) -> Node {
    let mut jwt = map(api.node.mark, []);
    for field in [
        "jwt_signing_method",
        "jwt_source",
        "jwt_jwks_uris",
        "jwt_identity_base_field",
        "jwt_skip_kid",
        "jwt_policy_field_name",
        "jwt_default_policies",
        "jwt_issued_at_validation_skew",
        "jwt_expires_at_validation_skew",
        "jwt_not_before_validation_skew",
        "jwt_disable_issued_at_validation",
        "jwt_disable_expires_at_validation",
        "jwt_disable_not_before_validation",
    ] {
        if let Some(value) = api.at(field) {
            jwt.insert(field, value.clone());
        }
    }
    let old = ("jwt_scope_claim_name", "jwt_scope_to_policy_mapping");
    for (field, path, before) in [
        ("scope_claim_name", "scopes.jwt.scope_claim_name", old.0),
        ("scope_to_policy", "scopes.jwt.scope_to_policy", old.1),
    ] {
        if let Some(value) = api.at(path).or_else(|| api.at(before)) {
            jwt.insert(field, value.clone());
        }
    }
    jwt
}

/// The configuration of CORS.
pub(super) fn cors(api: &Definition) -> Node {
    let mut cors = map(api.node.mark, []);
    for field in [
        "allowed_origins",
        "allowed_methods",
        "allowed_headers",
        "exposed_headers",
        "allow_credentials",
        "max_age",
        "options_passthrough",
    ] {
        if let Some(value) = api.at(&format!("CORS.{field}")) {
            cors.insert(field, value.clone());
        }
    }
    cors
}
