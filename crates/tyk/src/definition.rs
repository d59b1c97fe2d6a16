//! API definitions in the classic form: their fields, what of them is refused, and what has no effect.

use weir_config::diagnostic::nearest;
use weir_config::env::Variables;
use weir_config::node::push_name;
use weir_config::{Diagnostic, Hint, Kind, Node};

use crate::rule::rule;

/// An API definition without nulls.
#[derive(Debug)]
pub(crate) struct Definition {
    /// Name of its file, with which findings begin.
    pub(crate) file: String,
    pub(crate) node: Node,
}

/// True for an API definition in the classic form.
pub(crate) fn is_classic(root: &Node) -> bool {
    let listens = root.get("proxy").is_some_and(|proxy| proxy.get("listen_path").is_some());
    listens || root.get("api_id").is_some() && root.get("version_data").is_some()
}

impl Definition {
    /// Reads a definition; `None` for one that is refused.
    pub(crate) fn read(file: &str, mut node: Node, found: &mut Vec<Diagnostic>) -> Option<Self> {
        drop_nulls(&mut node);
        let definition = Self { file: file.to_owned(), node };
        let before = found.len();
        definition.check(found);
        let is_refused = found.iter().skip(before).any(Diagnostic::is_error);
        (!is_refused).then_some(definition)
    }

    /// The value at a path of names.
    pub(crate) fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(&self.node, |node, name| node.get(name))
    }

    pub(crate) fn text(&self, path: &str) -> &str {
        self.at(path).and_then(Node::as_str).unwrap_or_default()
    }

    pub(crate) fn flag(&self, path: &str) -> bool {
        self.at(path).is_some_and(|node| node.kind == Kind::Bool(true))
    }

    pub(crate) fn number(&self, path: &str) -> f64 {
        self.at(path).and_then(|node| node.to_json().as_f64()).unwrap_or_default()
    }

    /// Path of a field, after the name of the file.
    pub(crate) fn place(&self, path: &str) -> String {
        if path.is_empty() { self.file.clone() } else { format!("{}.{path}", self.file) }
    }

    pub(crate) fn fault(&self, path: &str, text: impl Into<String>) -> Diagnostic {
        let mark = self.at(path).map_or(self.node.mark, |node| node.mark);
        Diagnostic::error(mark, self.place(path), rule(text))
    }

    pub(crate) fn doubt(&self, path: &str, text: impl Into<String>) -> Diagnostic {
        let mark = self.at(path).map_or(self.node.mark, |node| node.mark);
        Diagnostic::warning(mark, self.place(path), rule(text))
    }

    fn check(&self, found: &mut Vec<Diagnostic>) {
        for (key, value) in self.node.as_map().unwrap_or_default() {
            if !FIELDS.contains(&&*key.text) && is_on(value) {
                let hint = Hint::nearest(nearest(&key.text, FIELDS.iter().copied()));
                let warning = Diagnostic::warning(key.mark, self.place(&key.text), rule("unknown field"));
                found.push(Diagnostic { hint, ..warning });
            }
        }
        if self.text("proxy.listen_path").is_empty() {
            found.push(self.fault("proxy.listen_path", "Listen path is empty: expected a path such as /api/"));
        } else if !self.text("proxy.listen_path").starts_with('/') {
            found.push(self.fault("proxy.listen_path", "expected a path that begins with /"));
        }
        for (path, reason) in REFUSED {
            if self.at(path).is_some_and(is_on) {
                found.push(self.fault(path, *reason));
            }
        }
        for processor in self.at("response_processors").and_then(Node::as_seq).unwrap_or_default() {
            let name = processor.get("name").and_then(Node::as_str).unwrap_or_default();
            if !matches!(name, "header_injector" | "response_body_transform") {
                found.push(self.doubt("response_processors", format!("the processor '{name}' is not there")));
            }
        }
        for (path, reason) in DOUBTED {
            if self.at(path).is_some_and(is_on) {
                found.push(self.doubt(path, *reason));
            }
        }
        let extracts = ["extract_from", "extract_with"]
            .iter()
            .any(|name| !self.text(&format!("custom_middleware.id_extractor.{name}")).is_empty());
        if extracts && self.flag("enable_coprocess_auth") && !self.flag("custom_middleware.id_extractor.disabled") {
            let text = "the service is asked for each request, and its sessions are not kept by ids of requests";
            found.push(self.doubt("custom_middleware.id_extractor", text));
        }
    }
}

/// True for a setting that is switched on: neither null, false, 0 nor empty.
pub(crate) fn is_on(node: &Node) -> bool {
    match &node.kind {
        Kind::Null => false,
        Kind::Bool(flag) => *flag,
        Kind::Int(number) => *number != 0,
        Kind::Float(number) => *number != 0.0,
        Kind::Str(text) => !text.is_empty(),
        Kind::Seq(items) => !items.is_empty(),
        Kind::Map(entries) => !entries.is_empty(),
    }
}

/// Drops nulls, which are not set.
pub(crate) fn drop_nulls(node: &mut Node) {
    match &mut node.kind {
        Kind::Map(entries) => {
            entries.retain(|(_, value)| !value.is_null());
            entries.iter_mut().for_each(|(_, value)| drop_nulls(value));
        }
        Kind::Seq(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Puts the values of variables in the places of references such as `env://NAME` and `$secret_env.NAME`.
pub(crate) fn fill(node: &mut Node, variables: Variables<'_>, path: &mut String, found: &mut Vec<Diagnostic>) {
    let length = path.len();
    match &mut node.kind {
        Kind::Map(entries) => {
            for (key, value) in entries {
                push_name(path, &key.text);
                fill(value, variables, path, found);
                path.truncate(length);
            }
        }
        Kind::Seq(items) => items.iter_mut().for_each(|item| fill(item, variables, path, found)),
        Kind::Str(text) => {
            let mut value = |name: &str| {
                let value = variables(name).or_else(|| variables(&format!("TYK_SECRET_{}", name.to_ascii_uppercase())));
                if value.is_none() {
                    let reason = format!("the environment variable {name} is not set, or may not be read");
                    found.push(Diagnostic::error(node.mark, path.clone(), rule(reason)));
                }
                value.unwrap_or_default()
            };
            if let Some(name) = text.strip_prefix("env://") {
                *text = value(name);
                return;
            }
            for (kind, name) in [("secrets://", "tyk.conf"), ("vault://", "Vault"), ("consul://", "Consul")] {
                if text.starts_with(kind) {
                    let reason = format!("values from {name} ({kind}) are not supported: use env://NAME");
                    found.push(Diagnostic::error(node.mark, path.clone(), rule(reason)));
                    return;
                }
            }
            const SECRET: &str = "$secret_env.";
            let mut filled = String::new();
            let mut rest = text.as_str();
            while let Some((before, after)) = rest.split_once(SECRET) {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                let (name, behind) = after.split_at(end);
                filled.push_str(before);
                filled.push_str(&value(name));
                rest = behind;
            }
            filled.push_str(rest);
            *text = filled;
            for kind in ["$secret_conf.", "$secret_vault.", "$secret_consul.", "$secret_vault_kv", "$secret_file."] {
                if text.contains(kind) {
                    let reason = format!("{kind} is not supported: use $secret_env.NAME");
                    found.push(Diagnostic::error(node.mark, path.clone(), rule(reason)));
                    return;
                }
            }
        }
        _ => {}
    }
}

/// Fields that are refused where they are on, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("use_go_plugin_auth", "Go plugins are not supported: they are loaded into Tyk's own process"),
    ("external_oauth.enabled", "external OAuth is not supported yet"),
    ("request_signing.is_enabled", "signing of requests to upstreams is not supported"),
    ("upstream_auth.enabled", "authentication at upstreams is not supported yet"),
    ("custom_middleware_bundle", "bundles of middleware are not supported"),
    (
        "pinned_public_keys",
        "pinned keys of upstreams are not checked, and an upstream with another one would be trusted",
    ),
    ("proxy.transport.proxy_url", "a proxy towards upstreams is not supported"),
    ("enable_proxy_protocol", "set proxy_protocol of a listener in the settings"),
    ("listen_port", "a port of one API is not supported: all APIs are at the port of the traffic"),
    ("mcp.enabled", "MCP is not supported yet"),
];

/// Fields that have no effect and that somebody may rely on, with the reason.
const DOUBTED: &[(&str, &str)] =
    &[("certificates", "certificates of a single API are not read: list them in the settings")];

/// Fields of a definition, up to version 5.
#[rustfmt::skip]
const FIELDS: &[&str] = &[
    "CORS", "active", "allowed_ips", "analytics_plugin", "api_id", "api_model", "auth", "auth_configs", "auth_provider",
    "base_identity_provided_by", "basic_auth", "blacklisted_ips", "cache_options", "certificate_pinning_disabled",
    "certificates", "client_certificates", "config_data", "config_data_disabled", "created_at", "createdAt",
    "custom_middleware", "custom_middleware_bundle", "custom_middleware_bundle_disabled", "custom_plugin_auth_enabled",
    "db_id", "definition", "detailed_tracing", "disable_quota", "disable_rate_limit", "do_not_track", "domain",
    "domain_disabled", "dont_set_quota_on_create", "enable_batch_request_support", "enable_context_vars",
    "enable_coprocess_auth", "enable_detailed_recording", "enable_ip_blacklisting", "enable_ip_whitelisting", "enable_jwt",
    "enable_proxy_protocol", "enable_signature_checking", "event_handlers", "expiration", "expire_analytics_after",
    "external_oauth", "global_rate_limit", "graphql", "hmac_allowed_algorithms", "hmac_allowed_clock_skew",
    "hook_references", "id", "id_extractor", "idp_client_id_mapping_disabled", "internal", "ip_access_control_disabled",
    "is_oas", "is_site", "jsonrpc_version", "jwt_allowed_clock_skew", "jwt_client_base_field", "jwt_default_policies",
    "jwt_disable_expires_at_validation", "jwt_disable_issued_at_validation", "jwt_disable_not_before_validation",
    "jwt_expires_at_validation_skew", "jwt_identity_base_field", "jwt_identit_base_field", "jwt_issued_at_validation_skew",
    "jwt_jwks_uris", "jwt_not_before_validation_skew", "jwt_policy_field_name", "jwt_scope_claim_name",
    "jwt_scope_to_policy_mapping", "jwt_signing_method", "jwt_skip_kid", "jwt_source", "last_updated", "listen_port", "mcp",
    "middleware_bundle", "name", "notifications", "oas", "oauth_meta", "openid_options", "org_id", "pinned_public_keys",
    "plugin_auth_check_disabled", "protocol", "proxy", "request_signing", "response_processors", "scopes",
    "security_requirements", "session_lifetime", "session_lifetime_respects_key_expiration", "session_provider", "slug",
    "sort_by", "strip_auth_data", "tag_headers", "tags", "tags_disabled", "updated_at", "updatedAt", "upstream_auth",
    "upstream_certificates", "upstream_certificates_disabled", "uptime_tests", "use_basic_auth", "use_go_plugin_auth",
    "use_keyless", "use_mutual_tls_auth", "use_oauth2", "use_oauth", "use_openid", "use_standard_auth",
    "user_group_owners", "user_owners", "version_data", "version_definition", "version_name", "vendor_extensions",
    "enable_context_variables", "driver", "json_rpc_version", "application_protocol",
];
