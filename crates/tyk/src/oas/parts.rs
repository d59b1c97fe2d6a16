//! Parts of definitions in the OAS form, as parts of definitions in the classic form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{at, is_enabled};

pub(super) fn proxy(tyk: &Value) -> Value {
    let mut proxy = json!({
        "listen_path": at(tyk, "server.listenPath.value"),
        "strip_listen_path": at(tyk, "server.listenPath.strip").cloned().unwrap_or_else(|| json!(false)),
        "target_url": at(tyk, "upstream.url"),
        "preserve_host_header": is_enabled(at(tyk, "upstream.preserveHostHeader")),
    });
    if let Some(balancing) = at(tyk, "upstream.loadBalancing").filter(|balancing| is_enabled(Some(balancing))) {
        let mut targets = Vec::new();
        for target in balancing.get("targets").and_then(Value::as_array).into_iter().flatten() {
            let weight = target.get("weight").and_then(Value::as_u64).unwrap_or(1).min(1000);
            targets.extend((0..weight).filter_map(|_| target.get("url").cloned()));
        }
        proxy["enable_load_balancing"] = true.into();
        proxy["target_list"] = Value::Array(targets);
    }
    if let Some(part) = at(tyk, "upstream.serviceDiscovery").filter(|part| is_enabled(Some(part))) {
        let cache = part.get("cache");
        proxy["service_discovery"] = json!({
            "use_discovery_service": true, "query_endpoint": part["queryEndpoint"], "data_path": part["dataPath"],
            "use_nested_query": part["useNestedQuery"], "parent_data_path": part["parentDataPath"],
            "port_data_path": part["portDataPath"], "use_target_list": part["useTargetList"],
            "target_path": part["targetPath"], "endpoint_returns_list": part["endpointReturnsList"],
            "cache_disabled": !is_enabled(cache), "cache_timeout": cache.map(|cache| cache["timeout"].clone()),
        });
    }
    if at(tyk, "upstream.tlsTransport.insecureSkipVerify") == Some(&Value::Bool(true)) {
        proxy["transport"] = json!({ "ssl_insecure_skip_verify": true });
    }
    proxy
}

/// Places of credentials in requests, in the fields of `auth_configs`.
pub(super) fn places(scheme: &Value) -> Map<String, Value> {
    let mut config = Map::new();
    let place = |name: &str| scheme.get(name).filter(|place| place.get("enabled") != Some(&Value::Bool(false)));
    if let Some(header) = place("header").and_then(|header| header.get("name")) {
        config.insert("auth_header_name".to_owned(), header.clone());
    }
    for (written, switch, field) in [("query", "use_param", "param_name"), ("cookie", "use_cookie", "cookie_name")] {
        if let Some(place) = place(written) {
            config.insert(switch.to_owned(), true.into());
            config.insert(field.to_owned(), place.get("name").cloned().unwrap_or_default());
        }
    }
    config
}

/// The fields of providers of OpenID.
pub(super) fn openid(oidc: &Value) -> Value {
    let providers = oidc.get("providers").and_then(Value::as_array).into_iter().flatten();
    let providers = providers.map(|provider| {
        let pairs = provider.get("clientToPolicyMapping").and_then(Value::as_array).into_iter().flatten();
        let clients = pairs.filter_map(|pair| {
            let id = pair.get("clientId")?.as_str()?;
            Some((STANDARD.encode(id), pair.get("policyId")?.clone()))
        });
        json!({ "issuer": provider["issuer"], "client_ids": clients.collect::<Map<_, _>>() })
    });
    json!({
        "providers": providers.collect::<Vec<_>>(),
        "segregate_by_client": oidc.get("segregateByClientId") == Some(&Value::Bool(true)),
    })
}

/// The fields of a scheme with tokens.
pub(super) fn jwt(scheme: &Value) -> Map<String, Value> {
    let mut made = Map::new();
    for (written, field) in [
        ("signingMethod", "jwt_signing_method"),
        ("source", "jwt_source"),
        ("jwksURIs", "jwt_jwks_uris"),
        ("identityBaseField", "jwt_identity_base_field"),
        ("skipKid", "jwt_skip_kid"),
        ("policyFieldName", "jwt_policy_field_name"),
        ("defaultPolicies", "jwt_default_policies"),
        ("issuedAtValidationSkew", "jwt_issued_at_validation_skew"),
        ("expiresAtValidationSkew", "jwt_expires_at_validation_skew"),
        ("notBeforeValidationSkew", "jwt_not_before_validation_skew"),
    ] {
        if let Some(value) = scheme.get(written).filter(|value| !value.is_null()) {
            made.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(scopes) = scheme.get("scopes") {
        let pairs = scopes.get("scopeToPolicyMapping").and_then(Value::as_array).into_iter().flatten();
        let pairs =
            pairs.filter_map(|pair| Some((pair.get("scope")?.as_str()?.to_owned(), pair.get("policyId")?.clone())));
        let scopes = json!({ "scope_claim_name": scopes["claimName"].as_str().unwrap_or_default(), "scope_to_policy": Value::Object(pairs.collect()) });
        made.insert("scopes".to_owned(), json!({ "jwt": scopes }));
    }
    made
}

/// A function of middleware.
fn hook(written: &Value) -> Value {
    json!({ "name": written["functionName"], "path": written["path"], "raw_body_only": written["rawBodyOnly"] == true })
}

/// The hooks of middleware.
pub(super) fn middleware(tyk: &Value) -> Value {
    let mut made = json!({ "driver": at(tyk, "middleware.global.pluginConfig.driver") });
    for (written, field) in
        [("prePlugins", "pre"), ("postAuthenticationPlugins", "post_key_auth"), ("postPlugins", "post")]
    {
        let hooks = at(tyk, &format!("middleware.global.{written}")).and_then(Value::as_array).into_iter().flatten();
        let hooks = hooks.filter(|hook| is_enabled(Some(hook)));
        made[field] = hooks.map(hook).collect();
    }
    let check =
        at(tyk, "server.authentication.custom.config").filter(|_| is_enabled(at(tyk, "server.authentication.custom")));
    if let Some(check) = check {
        made["auth_check"] = hook(check);
        made["id_extractor"] = json!({
            "extract_from": check["idExtractor"]["source"], "extract_with": check["idExtractor"]["with"],
            "disabled": check["idExtractor"]["enabled"] != true,
        });
    }
    made
}

pub(super) fn cache(cache: &Value) -> Value {
    let mut made = json!({ "enable_cache": true });
    for (written, field) in [
        ("timeout", "cache_timeout"),
        ("cacheAllSafeRequests", "cache_all_safe_requests"),
        ("cacheResponseCodes", "cache_response_codes"),
        ("cacheByHeaders", "cache_by_headers"),
        ("enableUpstreamCacheControl", "enable_upstream_cache_control"),
        ("controlTTLHeaderName", "cache_control_ttl_header"),
    ] {
        if let Some(value) = cache.get(written).filter(|value| !value.is_null()) {
            made[field] = value.clone();
        }
    }
    made
}

pub(super) fn cors(cors: &Value) -> Value {
    let mut made = json!({ "enable": true });
    for (written, field) in [
        ("allowedOrigins", "allowed_origins"),
        ("allowedMethods", "allowed_methods"),
        ("allowedHeaders", "allowed_headers"),
        ("exposedHeaders", "exposed_headers"),
        ("allowCredentials", "allow_credentials"),
        ("maxAge", "max_age"),
        ("optionsPassthrough", "options_passthrough"),
    ] {
        if let Some(value) = cors.get(written).filter(|value| !value.is_null()) {
            made[field] = value.clone();
        }
    }
    made
}

/// An OAuth server: `oauth_meta` and `notifications`. The grants are those of the flows that the document describes.
pub(super) fn oauth(scheme: &Value, described: &Value) -> Map<String, Value> {
    let flows = [
        ("authorizationCode", "authorization_code"),
        ("clientCredentials", "client_credentials"),
        ("password", "password"),
    ];
    let has = |flow: &str| described["flows"].get(flow).is_some_and(|flow| !flow.is_null());
    let refreshes = scheme.get("refreshToken") == Some(&Value::Bool(true));
    let grants = flows.iter().filter(|(flow, _)| has(flow)).map(|(_, grant)| *grant);
    let grants: Vec<&str> = grants.chain(refreshes.then_some("refresh_token")).collect();
    let told = scheme.get("notifications").cloned().unwrap_or_default();
    Map::from_iter([
        (
            "oauth_meta".to_owned(),
            json!({
                "allowed_access_types": grants, "allowed_authorize_types": scheme["allowedAuthorizeTypes"],
                "auth_login_redirect": scheme["authLoginRedirect"],
            }),
        ),
        (
            "notifications".to_owned(),
            json!({ "shared_secret": told["sharedSecret"], "oauth_on_keychange_url": told["onKeyChangeUrl"] }),
        ),
    ])
}

/// Versions that are APIs of their own: `version_definition`.
pub(super) fn versioning(part: &Value) -> Value {
    let listed = part["versions"].as_array().into_iter().flatten();
    let versions: Map<String, Value> =
        listed.filter_map(|version| Some((version["name"].as_str()?.to_owned(), version["id"].clone()))).collect();
    json!({
        "enabled": true, "name": part["name"], "default": part["default"], "location": part["location"], "key": part["key"],
        "strip_versioning_data": part["stripVersioningData"], "fallback_to_default": part["fallbackToDefault"],
        "url_versioning_pattern": part["urlVersioningPattern"], "versions": versions,
    })
}
