//! Authentication and limits of keys, caches, and CORS.

use weir_config::{Diagnostic, Mark, Node};

use super::{Scripts, add_storage, flag, list, map, middleware, number, text};
use crate::conf::Conf;
use crate::definition::Definition;
use crate::files::scripts::is_script;

/// Ways of authentication in Tyk's order: kind, switch, name in `auth_configs`, name in `base_identity_provided_by`.
const WAYS: [(&str, &str, &str, &str); 7] = [
    ("oauth", "use_oauth2", "oauth", "oauth_key"),
    ("basic", "use_basic_auth", "basic", "basic_auth_user"),
    ("hmac", "enable_signature_checking", "hmac", "hmac_key"),
    ("jwt", "enable_jwt", "jwt", "jwt_claim"),
    ("open_id", "use_openid", "oidc", "oidc_user"),
    ("custom", "enable_coprocess_auth", "coprocess", "custom_auth"),
    ("token", "use_standard_auth", "authToken", "auth_token"),
];

/// Authentication, rights and limits; `None` for an API without keys.
pub(super) fn access(
    api: &Definition,
    id: &str,
    (conf, scripts): (&Conf, &Scripts),
    found: &mut Vec<Diagnostic>,
) -> Option<Node> {
    if api.flag("use_keyless") {
        return None;
    }
    let mark = api.node.mark;
    let mut used: Vec<_> = WAYS.iter().filter(|(_, switch, ..)| api.flag(switch)).collect();
    if used.is_empty() {
        // The token is asked for where no other way is on.
        used.extend(WAYS.last());
    }
    // Without a choice each way replaces the session of the one before.
    let mut identity = used.len() - 1;
    let base = api.text("base_identity_provided_by");
    if !base.is_empty() {
        match used.iter().position(|(.., name)| *name == base) {
            Some(at) => identity = at,
            None => {
                let text = "expected a way of authentication that is on; every request would be refused";
                found.push(api.fault("base_identity_provided_by", text));
            }
        }
    }
    let mut ways = Vec::new();
    for (kind, _, name, _) in used {
        let mut way = self::way(api, kind, name);
        match *kind {
            "jwt" => way.insert("jwt", self::jwt(api)),
            "token" => {
                way.insert("use_certificate", flag(uses_certificates(api)));
                let place = if has_own(api) { "auth_configs.authToken" } else { "auth" };
                if api.flag(&format!("{place}.validate_signature"))
                    && let Some(signature) = api.at(&format!("{place}.signature"))
                {
                    way.insert("signature", signature.clone());
                }
                way.insert("allows_tokens", flag(conf.allows_tokens_for_certificates));
                way.insert("binds", flag(api.flag("use_mutual_tls_auth")));
            }
            "hmac" => way.insert("hmac", self::hmac(api)),
            "open_id" => way.insert("openid", self::openid(api)),
            "custom" => match self::custom(api, id, (conf, scripts), found) {
                Ok((field, custom)) => way.insert(field, custom),
                Err(reason) => found.push(api.fault("enable_coprocess_auth", reason)),
            },
            _ => {}
        }
        ways.push(way);
    }
    let mut access = map(mark, [("ways", list(mark, ways)), ("identity", number(identity as i64))]);
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
    access.insert("messages", Node::from(&conf.messages));
    add_storage(&mut access, conf);
    Some(access)
}

/// The place of sessions of organisations.
pub(super) fn organisation(mark: Mark, conf: &Conf) -> Node {
    let mut made = map(mark, [("hash_keys", flag(conf.hash_keys))]);
    made.insert("hash_key_function", text(&conf.hash_key_function));
    add_storage(&mut made, conf);
    made
}

/// True for an API whose tokens have settings of their own beside `auth`.
fn has_own(api: &Definition) -> bool {
    api.at("auth_configs.authToken").is_some_and(|own| own.as_map().is_some_and(|own| !own.is_empty()))
}

/// True for an API whose keys are certificates that clients show in TLS.
pub(super) fn uses_certificates(api: &Definition) -> bool {
    let field = if has_own(api) { "auth_configs.authToken.use_certificate" } else { "auth.use_certificate" };
    !api.flag("use_keyless") && api.flag(field)
}

/// The plugin with the endpoints of an API's OAuth server.
pub(super) fn oauth(api: &Definition, id: &str, conf: &Conf) -> Node {
    let mark = api.node.mark;
    let mut made = map(mark, [("api_id", text(id)), ("org_id", text(api.text("org_id")))]);
    made.insert("listen_path", text(api.text("proxy.listen_path")));
    for (field, path) in [
        ("allowed_access_types", "oauth_meta.allowed_access_types"),
        ("allowed_authorize_types", "oauth_meta.allowed_authorize_types"),
        ("auth_login_redirect", "oauth_meta.auth_login_redirect"),
        ("oauth_on_keychange_url", "notifications.oauth_on_keychange_url"),
        ("shared_secret", "notifications.shared_secret"),
    ] {
        if let Some(value) = api.at(path) {
            made.insert(field, value.clone());
        }
    }
    add_storage(&mut made, conf);
    made
}

/// Authentication by a service or a script, and the field that it stands in.
///
/// # Errors
/// There is none for it.
fn custom(
    api: &Definition,
    id: &str,
    (conf, scripts): (&Conf, &Scripts),
    found: &mut Vec<Diagnostic>,
) -> Result<(&'static str, Node), &'static str> {
    let hook = api.at("custom_middleware.auth_check").ok_or("expected the function in custom_middleware.auth_check")?;
    let driver = api.text("custom_middleware.driver");
    if is_script(driver) {
        let script = middleware::plugin(api, id, "auth_check", std::slice::from_ref(hook), (conf, scripts), found);
        return Ok(("script", script.unwrap_or_else(|| map(hook.mark, []))));
    }
    if driver != middleware::GRPC {
        return Err("authentication by middleware is supported in JavaScript and over gRPC alone \
                    (custom_middleware.driver: otto, grpc)");
    }
    let service = middleware::service(api, id, conf)?;
    Ok(("custom", map(hook.mark, [("service", service), ("hook", middleware::function(hook))])))
}

/// Signatures that are accepted.
fn hmac(api: &Definition) -> Node {
    let mut hmac = map(api.node.mark, []);
    for field in ["hmac_allowed_algorithms", "hmac_allowed_clock_skew"] {
        if let Some(value) = api.at(field) {
            hmac.insert(field, value.clone());
        }
    }
    hmac
}

/// The providers of OpenID.
fn openid(api: &Definition) -> Node {
    let mut openid = map(api.node.mark, []);
    for (field, path) in [
        ("providers", "openid_options.providers"),
        ("segregate_by_client", "openid_options.segregate_by_client"),
        ("scope_claim_name", "scopes.oidc.scope_claim_name"),
        ("scope_to_policy", "scopes.oidc.scope_to_policy"),
    ] {
        if let Some(value) = api.at(path) {
            openid.insert(field, value.clone());
        }
    }
    openid
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

/// The configuration of the cache of an API with this id.
pub(super) fn cache(api: &Definition, id: &str, versions: Node) -> Node {
    let mut cache = map(api.node.mark, [("api_id", text(id)), ("listen_path", text(api.text("proxy.listen_path")))]);
    for field in [
        "cache_timeout",
        "cache_all_safe_requests",
        "cache_response_codes",
        "enable_upstream_cache_control",
        "cache_control_ttl_header",
        "cache_by_headers",
    ] {
        if let Some(value) = api.at(&format!("cache_options.{field}")) {
            cache.insert(field, value.clone());
        }
    }
    cache.insert("versions", versions);
    cache
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
