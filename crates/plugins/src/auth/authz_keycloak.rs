//! `authz-keycloak`: Keycloak decides whether a token has the permissions for a request (User-Managed Access 2.0).

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use weir_plugin::{
    BuildCx, Callout, CalloutError, CalloutResponse, CompileCx, Compiled, Define, Flow, Invalid, Io, Keep, LocalFuture,
    Phases, Plugin, Remembered, RequestCx, Service, ServiceOptions, ServiceUri,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::openid_connect::client::{add_to_form, encode};
use super::openid_connect::provider::split_origin;
use crate::query;

/// The grant of UMA.
const UMA: &str = "urn:ietf:params:oauth:grant-type:uma-ticket";

/// The definition.
#[derive(Debug)]
pub(crate) struct AuthzKeycloak;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// URL of the discovery document, such as
    /// `https://HOST/realms/REALM/.well-known/uma2-configuration`. Its endpoints have to be at the same host and port.
    #[schemars(length(min = 1, max = 4096))]
    discovery: Option<String>,
    /// URL of the token endpoint; takes precedence over the discovery document.
    #[schemars(length(min = 1, max = 4096))]
    token_endpoint: Option<String>,
    /// URL of the endpoint for resources; takes precedence over the discovery document.
    #[schemars(length(min = 1, max = 4096))]
    resource_registration_endpoint: Option<String>,
    /// Id of the client whose resources the permissions are for.
    #[schemars(length(min = 1, max = 100))]
    client_id: String,
    /// Its secret, for `lazy_load_paths` and for grants by password.
    #[schemars(length(min = 1, max = 100))]
    client_secret: Option<String>,
    /// The grant; there is only one.
    #[serde(default, rename = "grant_type")]
    _grant_type: GrantType,
    /// Without any permission for a request: `ENFORCING` refuses it, `PERMISSIVE` asks Keycloak about all permissions of the token.
    #[serde(default)]
    policy_enforcement_mode: EnforcementMode,
    /// Permissions that the token has to have: names or ids of resources, with scopes behind `#`.
    #[serde(default)]
    permissions: Vec<String>,
    /// Asks Keycloak which resources belong to the path of the request, in the place of `permissions`.
    #[serde(default)]
    lazy_load_paths: bool,
    /// Adds the method of the request to each permission as a scope.
    #[serde(default)]
    http_method_as_scope: bool,
    /// Milliseconds for each answer.
    #[serde(default = "three_thousand")]
    #[schemars(range(min = 1000))]
    timeout: u64,
    /// Verifies the certificate of Keycloak, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Seconds for which the discovery document is remembered.
    #[serde(default = "day")]
    #[schemars(range(min = 1))]
    cache_ttl_seconds: u64,
    /// Keeps connections for further requests.
    #[serde(default = "yes")]
    keepalive: bool,
    /// Milliseconds for which an idle connection is kept.
    #[serde(default = "minute")]
    #[schemars(range(min = 1000))]
    keepalive_timeout: u64,
    /// Idle connections that each worker keeps.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    keepalive_pool: u32,
    /// Sends clients whose token lacks a permission to this URL (307), in the place of 403.
    #[schemars(length(min = 1, max = 2048))]
    access_denied_redirect_uri: Option<String>,
    /// Seconds that the client's own token holds where Keycloak does not say so.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 1))]
    access_token_expires_in: u64,
    /// Seconds before its end at which the client's own token is not used any more.
    #[serde(default)]
    access_token_expires_leeway: u64,
    /// No effect: a new token is fetched when one has ended.
    #[schemars(range(min = 1))]
    refresh_token_expires_in: Option<u64>,
    /// No effect: a new token is fetched when one has ended.
    refresh_token_expires_leeway: Option<u64>,
    /// Path and query at which `POST` with a form of `username` and `password` is answered with a token.
    #[schemars(length(min = 1, max = 4096))]
    password_grant_token_generation_incoming_uri: Option<String>,
    /// Bytes of the longest form for a token.
    #[serde(default = "mebibytes_64")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
}

/// The grant.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum GrantType {
    #[default]
    #[serde(rename = "urn:ietf:params:oauth:grant-type:uma-ticket")]
    Uma,
}

/// Treatment of requests without permissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum EnforcementMode {
    #[default]
    Enforcing,
    Permissive,
}

fn yes() -> bool {
    true
}

fn three_thousand() -> u64 {
    3000
}

fn minute() -> u64 {
    60_000
}

fn five() -> u32 {
    5
}

fn five_minutes() -> u64 {
    300
}

fn day() -> u64 {
    24 * 3600
}

fn mebibytes_64() -> u64 {
    64 << 20
}

impl Define for AuthzKeycloak {
    const NAME: &'static str = "authz-keycloak";
    const PRIORITY: i32 = 2000;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Asks Keycloak whether the token of a request (`Authorization: Bearer`) has all `permissions`, or those for the resources that \
Keycloak has under the path of the request (`lazy_load_paths`). Keycloak's refusal goes to the client with its status and its \
body, or as a 307 to `access_denied_redirect_uri`. A request without a token is refused with 401, and with 503 where Keycloak \
does not answer.

With `password_grant_token_generation_incoming_uri`, clients get a token there for a name and a password.";
    const EXAMPLE: &'static str = "\
discovery: http://127.0.0.1:8080/realms/shop/.well-known/uma2-configuration
client_id: shop
permissions: [orders#read]
";
    const ENCRYPTED: &'static [&'static str] = &["client_secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let options = ServiceOptions {
            verify: conf.ssl_verify,
            keepalive: conf.keepalive.then_some(conf.keepalive_pool),
            idle: Duration::from_millis(conf.keepalive_timeout),
            timeout: Duration::from_millis(conf.timeout),
        };
        for (field, is_set) in [
            ("refresh_token_expires_in", conf.refresh_token_expires_in.is_some()),
            ("refresh_token_expires_leeway", conf.refresh_token_expires_leeway.is_some()),
        ] {
            if is_set {
                cx.warn(field, "it has no effect: a new token is fetched when one has ended");
            }
        }
        if conf.discovery.is_none() && conf.token_endpoint.is_none() {
            cx.say([Invalid::new("discovery", "expected a discovery document or a token_endpoint")]);
            return None;
        }
        let knows_resources = conf.discovery.is_some() || conf.resource_registration_endpoint.is_some();
        if conf.lazy_load_paths && !knows_resources {
            let text = "lazy_load_paths needs a discovery document or a resource_registration_endpoint";
            cx.say([Invalid::new("lazy_load_paths", text)]);
            return None;
        }
        if let Some(uri) = &conf.access_denied_redirect_uri
            && !uri.bytes().all(|byte| byte.is_ascii_graphic())
        {
            cx.say([Invalid::new("access_denied_redirect_uri", "expected a URL that is encoded")]);
            return None;
        }
        let endpoint = |field: &'static str, uri: Option<&String>| match uri {
            Some(uri) => cx.ok(EndpointConf::new(field, uri, options)).map(Some),
            None => Some(None),
        };
        let discovery = endpoint("discovery", conf.discovery.as_ref())?;
        let token = endpoint("token_endpoint", conf.token_endpoint.as_ref())?;
        let resources = endpoint("resource_registration_endpoint", conf.resource_registration_endpoint.as_ref())?;
        Some(Compiled::build(move |build| {
            let place = format!("authz-keycloak {} {}", build.place, build.conf.to_json());
            let memory = build.states.get_or_create(&place, Memory::default);
            Ok(Asking {
                discovery: discovery.map(|endpoint| endpoint.build(build)).transpose()?,
                token: token.map(|endpoint| endpoint.build(build)).transpose()?,
                resources: resources.map(|endpoint| endpoint.build(build)).transpose()?,
                timeout: options.timeout,
                names: Names::default(),
                memory,
                conf,
            })
        }))
    }
}

/// An endpoint that the configuration names.
#[derive(Debug)]
struct EndpointConf {
    origin: String,
    service: ServiceUri,
}

impl EndpointConf {
    fn new(field: &'static str, uri: &str, options: ServiceOptions) -> Result<Self, Invalid> {
        let service = Service::parse(field, uri, options)?;
        let (origin, _) = split_origin(uri).ok_or_else(|| Invalid::new(field, "expected http:// or https://"))?;
        Ok(Self { origin, service })
    }

    fn build(self, cx: &BuildCx<'_>) -> Result<Endpoint, Invalid> {
        Ok(Endpoint { origin: self.origin, service: self.service.build(cx)? })
    }
}

#[derive(Debug)]
struct Endpoint {
    origin: String,
    service: Service,
}

/// Keycloak's remembered answers. They outlive changes that leave the plugin as it is.
#[derive(Debug)]
struct Memory {
    documents: Arc<Remembered<Option<Map<String, Json>>>>,
    tokens: Arc<Remembered<Option<String>>>,
}

impl Default for Memory {
    fn default() -> Self {
        let (documents, tokens) = (Arc::new(Remembered::new(1, 1 << 20)), Arc::new(Remembered::new(1, 1 << 20)));
        Self { documents, tokens }
    }
}

#[derive(Debug)]
struct Names {
    authorization: FieldName,
    content_type: FieldName,
}

impl Default for Names {
    fn default() -> Self {
        let name = FieldName::constant;
        Self { authorization: name("Authorization"), content_type: name("Content-Type") }
    }
}

/// An instance.
#[derive(Debug)]
struct Asking {
    discovery: Option<Endpoint>,
    token: Option<Endpoint>,
    resources: Option<Endpoint>,
    timeout: Duration,
    names: Names,
    memory: Arc<Memory>,
    conf: Conf,
}

/// Reason why Keycloak cannot be asked.
type Fault = &'static str;

const NO_ANSWER: Fault = "authz-keycloak: no answer from Keycloak";
const BROKEN: Fault = "authz-keycloak: the answer of Keycloak cannot be read";
const NO_ENDPOINT: Fault = "authz-keycloak: no endpoint at the host of the discovery document";

impl Plugin for Asking {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.wants_token(cx) {
            return match cx.limit_body(self.conf.max_req_body_size) {
                Flow::Continue if cx.body().is_none() => Flow::AwaitBody,
                Flow::Continue => Flow::Suspend,
                other => other,
            };
        }
        match cx.request().field(&self.names.authorization) {
            Some(_) => Flow::Suspend,
            None => cx.refuse(401, "Missing JWT token in request"),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let flow = if self.wants_token(cx) { self.give_token(cx, io).await } else { self.decide(cx, io).await };
            flow.unwrap_or_else(|fault| cx.fail(503, fault))
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // Up to four questions, each with its own timeout.
        Some(4 * self.timeout + Duration::from_secs(5))
    }
}

impl Asking {
    /// True for a request for a token.
    fn wants_token(&self, cx: &RequestCx<'_>) -> bool {
        let Some(uri) = &self.conf.password_grant_token_generation_incoming_uri else { return false };
        let request = cx.request();
        let is_form = request.field(&self.names.content_type) == Some(b"application/x-www-form-urlencoded");
        is_form && request.method() == Method::Post && request.request_uri() == uri.as_bytes()
    }

    async fn decide(&self, cx: &mut RequestCx<'_>, io: &dyn Io) -> Result<Flow, Fault> {
        let mut permissions = match self.conf.lazy_load_paths {
            true => self.permissions_of_path(cx, io).await?,
            false => self.conf.permissions.clone(),
        };
        if permissions.is_empty() && self.conf.policy_enforcement_mode == EnforcementMode::Enforcing {
            let body = "{\"error\":\"access_denied\",\"error_description\":\"not_authorized\"}";
            return Ok(self.deny(cx, 403, body.as_bytes()));
        }
        if self.conf.http_method_as_scope {
            let method = String::from_utf8_lossy(cx.request().method_bytes()).into_owned();
            for permission in &mut permissions {
                permission.push_str(if permission.contains('#') { ", " } else { "#" });
                permission.push_str(&method);
            }
        }
        let token = cx.request().field(&self.names.authorization).unwrap_or_default();
        let is_bearer = token.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        let token = if is_bearer { token.to_vec() } else { [b"Bearer ", token].concat() };
        let mut form = Vec::new();
        add_to_form(&mut form, "grant_type", UMA);
        add_to_form(&mut form, "audience", &self.conf.client_id);
        add_to_form(&mut form, "response_mode", "decision");
        for permission in &permissions {
            add_to_form(&mut form, "permission", permission);
        }
        let mut question = self.question(self.token.as_ref(), "token_endpoint", Method::Post, "", cx, io).await?;
        question.set_field(&self.names.authorization, &token);
        let answer = self.send(question, Some(&form), io).await?;
        Ok(match answer.status() {
            // A decision is JSON that says so: a page with 200 is none.
            200..300 if is_granted(answer.body()) => Flow::Continue,
            200..300 => return Err(BROKEN),
            403 => self.deny(cx, 403, answer.body()),
            status @ 400.. => {
                let reply = cx.reply(status).body(answer.body());
                reply.field("Content-Type", b"application/json").done()
            }
            _ => return Err(BROKEN),
        })
    }

    fn deny(&self, cx: &mut RequestCx<'_>, status: u16, body: &[u8]) -> Flow {
        match &self.conf.access_denied_redirect_uri {
            Some(uri) => cx.reply(307).field("Location", uri.as_bytes()).done(),
            None => cx.reply(status).field("Content-Type", b"application/json").body(body).done(),
        }
    }

    /// Ids of the resources that Keycloak has for the path of the request.
    async fn permissions_of_path(&self, cx: &RequestCx<'_>, io: &dyn Io) -> Result<Vec<String>, Fault> {
        let token = self.own_token(cx, io).await?;
        let mut query = b"?matchingUri=true&uri=".to_vec();
        encode(&String::from_utf8_lossy(cx.request().path()), &mut query);
        let query = String::from_utf8_lossy(&query).into_owned();
        let name = "resource_registration_endpoint";
        let mut question = self.question(self.resources.as_ref(), name, Method::Get, &query, cx, io).await?;
        question.set_field(&self.names.authorization, format!("Bearer {token}").as_bytes());
        let answer = self.send(question, None, io).await?;
        let resources = if answer.status() == 200 { serde_json::from_slice(answer.body()).ok() } else { None };
        resources.ok_or(BROKEN)
    }

    /// A token of the client itself.
    async fn own_token(&self, cx: &RequestCx<'_>, io: &dyn Io) -> Result<String, Fault> {
        let ask = || async {
            match self.fetch_own_token(cx, io).await {
                Ok((token, seconds)) => {
                    let seconds = seconds.saturating_sub(1 + self.conf.access_token_expires_leeway);
                    let keep = Keep { ttl_ms: seconds * 1000, bytes: token.len() };
                    (Some(token), keep)
                }
                Err(_) => (None, Keep { ttl_ms: 0, bytes: 0 }),
            }
        };
        let token = self.memory.tokens.get(b"", cx.now_ms(), ask).await;
        token.as_ref().clone().ok_or(BROKEN)
    }

    async fn fetch_own_token(&self, cx: &RequestCx<'_>, io: &dyn Io) -> Result<(String, u64), Fault> {
        let mut form = Vec::new();
        add_to_form(&mut form, "grant_type", "client_credentials");
        self.add_client(&mut form);
        let question = self.question(self.token.as_ref(), "token_endpoint", Method::Post, "", cx, io).await?;
        let answer = self.send(question, Some(&form), io).await?;
        let answer: Option<Map<String, Json>> =
            (answer.status() == 200).then(|| serde_json::from_slice(answer.body()).ok()).flatten();
        let answer = answer.ok_or(BROKEN)?;
        let token = answer.get("access_token").and_then(Json::as_str).ok_or(BROKEN)?;
        if !token.bytes().all(weir_wire::is_field_byte) {
            return Err(BROKEN);
        }
        let seconds = answer.get("expires_in").and_then(Json::as_u64).unwrap_or(self.conf.access_token_expires_in);
        Ok((token.to_owned(), seconds.min(day())))
    }

    fn add_client(&self, form: &mut Vec<u8>) {
        add_to_form(form, "client_id", &self.conf.client_id);
        if let Some(secret) = &self.conf.client_secret {
            add_to_form(form, "client_secret", secret);
        }
    }

    /// Answers with a token for a name and a password.
    async fn give_token(&self, cx: &mut RequestCx<'_>, io: &dyn Io) -> Result<Flow, Fault> {
        let mut form = Vec::new();
        add_to_form(&mut form, "grant_type", "password");
        self.add_client(&mut form);
        for name in ["username", "password"] {
            let body = cx.request().body().unwrap_or_default();
            let mut decoded = Vec::new();
            query::decode(body, &mut decoded);
            let value = match query::find(body, &decoded, name.as_bytes()) {
                Some(query::Argument::Value(value)) => Some(String::from_utf8_lossy(value).into_owned()),
                _ => None,
            };
            let Some(value) = value else {
                return Ok(
                    cx.refuse(422, if name == "username" { "username is missing." } else { "password is missing." })
                );
            };
            add_to_form(&mut form, name, &value);
        }
        let question = self.question(self.token.as_ref(), "token_endpoint", Method::Post, "", cx, io).await?;
        let Ok(answer) = self.send(question, Some(&form), io).await else {
            return Ok(cx.refuse(401, "Accessing token endpoint URL failed."));
        };
        if answer.status() != 200 || serde_json::from_slice::<Map<String, Json>>(answer.body()).is_err() {
            return Ok(cx.refuse(401, "Could not decode JSON from response."));
        }
        Ok(cx.reply(200).field("Content-Type", b"application/json").body(answer.body()).done())
    }

    /// A request to an endpoint: one that the configuration names, or that of the discovery document.
    async fn question(
        &self,
        named: Option<&Endpoint>,
        name: &str,
        method: Method,
        query: &str,
        cx: &RequestCx<'_>,
        io: &dyn Io,
    ) -> Result<Callout, Fault> {
        let uri = match name {
            "token_endpoint" => &self.conf.token_endpoint,
            _ => &self.conf.resource_registration_endpoint,
        };
        let (endpoint, uri) = match (named, uri, &self.discovery) {
            (Some(endpoint), Some(uri), _) => (endpoint, uri.clone()),
            (_, _, Some(discovery)) => {
                let document = self.document(discovery, cx, io).await;
                let document = document.as_ref().as_ref().ok_or(NO_ANSWER)?;
                (discovery, document.get(name).and_then(Json::as_str).ok_or(NO_ENDPOINT)?.to_owned())
            }
            _ => return Err(NO_ENDPOINT),
        };
        // A document that lies cannot send tokens and secrets to any other place.
        let (origin, target) = split_origin(&uri).ok_or(BROKEN)?;
        if origin != endpoint.origin || target.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#') {
            return Err(NO_ENDPOINT);
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        let query = if target.contains('?') { query.replacen('?', "&", 1) } else { query.to_owned() };
        Ok(endpoint.service.callout_to(method, format!("{slash}{target}{query}").as_bytes()))
    }

    async fn document(&self, discovery: &Endpoint, cx: &RequestCx<'_>, io: &dyn Io) -> Arc<Option<Map<String, Json>>> {
        let ask = || async {
            let answer = self.send(discovery.service.callout(Method::Get), None, io).await.ok();
            let answer = answer.filter(|answer| answer.status() == 200);
            let document = answer.as_ref().and_then(|answer| serde_json::from_slice(answer.body()).ok());
            let bytes = answer.as_ref().map_or(0, |answer| answer.body().len());
            let ttl_ms = if document.is_some() { self.conf.cache_ttl_seconds.saturating_mul(1000) } else { 0 };
            (document, Keep { ttl_ms, bytes })
        };
        self.memory.documents.get(b"", cx.now_ms(), ask).await
    }

    async fn send(&self, mut question: Callout, form: Option<&[u8]>, io: &dyn Io) -> Result<CalloutResponse, Fault> {
        question.set_timeout(self.timeout);
        if let Some(form) = form {
            question.set_field(&self.names.content_type, b"application/x-www-form-urlencoded");
            question.set_body(form);
        }
        io.callout(question).await.map_err(|error| match error {
            CalloutError::Busy => "authz-keycloak: too many callouts under way",
            _ => NO_ANSWER,
        })
    }
}

/// True for a decision that grants: `{"result":true}`.
fn is_granted(body: &[u8]) -> bool {
    let decision = serde_json::from_slice::<Map<String, Json>>(body).ok();
    decision.is_some_and(|decision| decision.get("result").and_then(Json::as_bool) == Some(true))
}
