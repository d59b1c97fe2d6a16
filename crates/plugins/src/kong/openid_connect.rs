//! `openid-connect` of Kong Enterprise: its fields over the engine of APISIX's plugin of this name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_config::Node;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};

use super::correlation_id::uuid;
use crate::auth::openid_connect;

/// The definition.
#[derive(Debug)]
pub(crate) struct OpenidConnect;

/// One text, or a list with one: Kong has lists for providers with several clients.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum OneOf {
    Text(String),
    List(Vec<String>),
}

impl OneOf {
    fn only(&self, field: &str) -> Result<Option<&str>, Invalid> {
        match self {
            Self::Text(text) => Ok(Some(text)),
            Self::List(list) => match &list[..] {
                [] => Ok(None),
                [text] => Ok(Some(text)),
                _ => Err(Invalid::new(field, "more than one is not supported")),
            },
        }
    }
}

/// A way of proving who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AuthMethod {
    Password,
    ClientCredentials,
    AuthorizationCode,
    Bearer,
    Introspection,
    Userinfo,
    KongOauth2,
    RefreshToken,
    Session,
}

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Conf {
    /// The provider, or its discovery document.
    issuer: String,
    /// The gateway's id at the provider.
    client_id: Option<OneOf>,
    /// The gateway's secret at the provider.
    client_secret: Option<OneOf>,
    /// Ways of proving who calls: `bearer`, `introspection`, `authorization_code`, `session` and `refresh_token`.
    auth_methods: Option<Vec<AuthMethod>>,
    /// URI of this gateway to which the provider sends users back.
    redirect_uri: Option<OneOf>,
    /// Scopes that a login asks for.
    scopes: Option<Vec<String>>,
    /// Scopes that a token must have, with blanks between them.
    scopes_required: Option<OneOf>,
    /// Audience that a token must have: that of the client.
    audience_required: Option<OneOf>,
    /// The endpoint that is asked about tokens.
    introspection_endpoint: Option<String>,
    /// Verifies the provider's certificate.
    #[serde(default)]
    ssl_verify: bool,
    /// Milliseconds until the provider has to have answered.
    #[serde(default = "ten_seconds")]
    timeout: f64,
    /// Seconds by which clocks may differ.
    #[serde(default)]
    leeway: f64,
    /// Secret with which sessions are encrypted.
    session_secret: Option<String>,
    /// Name of the cookies of sessions.
    session_cookie_name: Option<String>,
    /// Seconds of a session.
    session_rolling_timeout: Option<u64>,
    /// Place of sessions: in cookies.
    session_storage: Option<String>,
    /// The header that tells the upstream the access token: `authorization:bearer` or `x-access-token`.
    #[serde(default = "authorization")]
    upstream_access_token_header: Option<String>,
    /// Path at which users log out.
    logout_uri_suffix: Option<String>,
    /// URI to which users are sent after logging out.
    logout_redirect_uri: Option<OneOf>,
    /// Tells the provider at logout that tokens are not used any more.
    #[serde(default)]
    logout_revoke: bool,
    /// Places of tokens; the header alone.
    bearer_token_param_type: Option<Vec<String>>,
    /// Verifies signatures of tokens; they always are.
    #[serde(default = "yes")]
    verify_signature: bool,
    /// Verifies times, issuer and audience of tokens; they always are.
    #[serde(default = "yes")]
    verify_claims: bool,
    /// Verifies the nonce of logins; it always is.
    #[serde(default = "yes")]
    verify_nonce: bool,
    /// All other fields, which are refused.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

fn ten_seconds() -> f64 {
    10_000.0
}

#[allow(clippy::unnecessary_wraps, reason = "the default of a field that may be null")]
fn authorization() -> Option<String> {
    Some("authorization:bearer".into())
}

fn yes() -> bool {
    true
}

impl Define for OpenidConnect {
    const NAME: &'static str = "openid-connect";
    const PRIORITY: i32 = 1050;
    const PHASES: Phases = openid_connect::OpenidConnect::PHASES;
    const DOC: &'static str = "Lets requests of users through whom an identity provider knows.";
    const EXAMPLE: &'static str = "\
{issuer: 'https://idp.test/realms/a', client_id: [gateway], client_secret: [V63T88kXbe5Lm2nP], auth_methods: [bearer]}
";
    const ENCRYPTED: &'static [&'static str] = &["client_secret", "client_secret.*", "session_secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let fault = |name: &String| Invalid::new(name, "not supported by the gateway, or not known");
        cx.say(conf.others.keys().map(fault));
        let translated = cx.ok(conf.translated(cx))?;
        let parsed = Node::parse(&translated.to_string()).ok()?.root;
        match parsed.parse_into::<openid_connect::conf::Conf>() {
            Ok(parsed) => openid_connect::OpenidConnect::compile(parsed, cx),
            Err(error) => {
                cx.say([Invalid::new("", error.to_string())]);
                None
            }
        }
    }
}

/// Path of a provider's discovery document.
const DOCUMENT: &str = "/.well-known/openid-configuration";
/// Ways that the engine has.
const SUPPORTED: [AuthMethod; 5] = [
    AuthMethod::AuthorizationCode,
    AuthMethod::Bearer,
    AuthMethod::Introspection,
    AuthMethod::RefreshToken,
    AuthMethod::Session,
];

impl Conf {
    /// The fields that the engine has.
    fn translated(&self, cx: &CompileCx<'_>) -> Result<Value, Invalid> {
        use AuthMethod::{AuthorizationCode, Bearer, Introspection, RefreshToken, Session};
        let methods = match &self.auth_methods {
            Some(methods) => {
                if let Some(at) = methods.iter().position(|method| !SUPPORTED.contains(method)) {
                    let text = "expected bearer, introspection, authorization_code, session or refresh_token: others are \
                        not supported";
                    return Err(Invalid::new(format!("auth_methods[{at}]"), text));
                }
                methods.clone()
            }
            None => {
                cx.warn(
                    "auth_methods",
                    "by default authorization_code, session, refresh_token and bearer are accepted",
                );
                vec![AuthorizationCode, Session, RefreshToken, Bearer]
            }
        };
        let has = |method: AuthMethod| methods.contains(&method);
        let logs_in = has(AuthorizationCode);
        if !logs_in && !has(Bearer) && !has(Introspection) {
            return Err(Invalid::new("auth_methods", "expected one of bearer, introspection and authorization_code"));
        }
        if has(Bearer) && has(Introspection) {
            let text = "tokens are verified by their signatures: the provider is not asked beside that";
            cx.warn("auth_methods", text);
        }
        for (is_on, field) in [
            (self.verify_signature, "verify_signature"),
            (self.verify_claims, "verify_claims"),
            (self.verify_nonce, "verify_nonce"),
        ] {
            if !is_on {
                return Err(Invalid::new(field, "expected true: tokens are always verified"));
            }
        }
        if let Some(storage) = self.session_storage.as_deref().filter(|storage| *storage != "cookie") {
            let text = format!("sessions in {storage} are not supported: expected cookie");
            return Err(Invalid::new("session_storage", text));
        }
        let elsewhere = |kind: &String| kind != "header";
        if self.bearer_token_param_type.iter().flatten().any(elsewhere) {
            cx.warn("bearer_token_param_type", "tokens are looked for in Authorization alone");
        }
        let only = |given: &Option<OneOf>, field: &str| {
            let found = given.as_ref().map(|given| given.only(field).map(|text| text.map(str::to_owned)));
            found.transpose().map(Option::flatten)
        };
        let client_id = only(&self.client_id, "client_id")?;
        let asks = logs_in || !has(Bearer);
        let secret = match only(&self.client_secret, "client_secret")? {
            Some(secret) => secret,
            None if asks => return Err(Invalid::new("client_secret", "required field missing")),
            // Signatures are verified without one, and it is sent nowhere.
            None => uuid(),
        };
        let client_id = match client_id {
            Some(id) => id,
            None if asks => return Err(Invalid::new("client_id", "required field missing")),
            None => "gateway".to_owned(),
        };
        let discovery = match self.issuer.ends_with(DOCUMENT) {
            true => self.issuer.clone(),
            false => format!("{}{DOCUMENT}", self.issuer.trim_end_matches('/')),
        };
        let mut all = json!({
            "client_id": client_id,
            "client_secret": secret,
            "discovery": discovery,
            "ssl_verify": self.ssl_verify,
            "timeout": (self.timeout / 1000.0).ceil().clamp(1.0, 60.0) as u64,
            "bearer_only": !logs_in,
            "use_jwks": has(Bearer),
            "iat_slack": self.leeway.clamp(0.0, 3600.0) as u64,
            "set_id_token_header": false,
            "set_userinfo_header": false,
            "revoke_tokens_on_logout": self.logout_revoke,
            "renew_access_token_on_expiry": has(RefreshToken),
            "realm": "kong",
        });
        let mut put = |field: &str, value: Value| all[field] = value;
        if let Some(endpoint) = &self.introspection_endpoint {
            put("introspection_endpoint", json!(endpoint));
        }
        if let Some(scopes) = &self.scopes {
            put("scope", json!(scopes.join(" ")));
        }
        if let Some(scopes) = only(&self.scopes_required, "scopes_required")? {
            put("required_scopes", json!(scopes.split_ascii_whitespace().collect::<Vec<_>>()));
        }
        if let Some(audience) = only(&self.audience_required, "audience_required")? {
            if audience != client_id {
                return Err(Invalid::new("audience_required", "only the value of client_id is supported"));
            }
            let rule = json!({ "audience": { "required": true, "match_with_client_id": true } });
            put("claim_validator", rule);
        }
        if let Some(uri) = only(&self.redirect_uri, "redirect_uri")? {
            put("redirect_uri", json!(uri));
        }
        if let Some(uri) = only(&self.logout_redirect_uri, "logout_redirect_uri")? {
            put("post_logout_redirect_uri", json!(uri));
        }
        if let Some(path) = &self.logout_uri_suffix {
            put("logout_path", json!(path));
        }
        match self.upstream_access_token_header.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None => put("set_access_token_header", json!(false)),
            Some("authorization:bearer") => put("access_token_in_authorization_header", json!(true)),
            Some("x-access-token") => {}
            Some(_) => {
                let text = "expected authorization:bearer or x-access-token";
                return Err(Invalid::new("upstream_access_token_header", text));
            }
        }
        let mut session = json!({});
        if let Some(secret) = &self.session_secret {
            session["secret"] = json!(secret);
        }
        if let Some(name) = &self.session_cookie_name {
            session["name"] = json!(name);
        }
        if let Some(seconds) = self.session_rolling_timeout {
            session["cookie"] = json!({ "lifetime": seconds });
        }
        put("session", session);
        Ok(all)
    }
}
