//! Kong's `oauth2`: an authorization server (RFC 6749) before the services that it guards.

mod endpoints;
mod kept;
mod register;
mod tokens;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, HookCx, Invalid, Phases,
    Plugin, RequestCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::arguments::Arguments;
use super::caller::{Caller, challenge};
use super::media::Media;
use super::rate_limiting::window::Counter;
use crate::auth::credentials::{self, CredentialTable};
use crate::query;
use crate::traffic::table::Table;
pub use register::{Token, TokenChange, Tokens, random_text};
use tokens::{Grant, Purpose};

/// The definition.
#[derive(Debug)]
pub(crate) struct Oauth2;

/// Use of PKCE (RFC 7636).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Pkce {
    /// Not looked at.
    None,
    /// Needed for public clients.
    Lax,
    /// Needed for all.
    Strict,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Scopes that clients may ask for.
    scopes: Option<Vec<String>>,
    /// Refuses grants without a scope.
    mandatory_scope: bool,
    /// The secret with which the page of the login says that a user has agreed; without it no user can.
    provision_key: Option<String>,
    /// Seconds for which access tokens hold; 0: for ever.
    #[schemars(range(min = 0))]
    token_expiration: f64,
    /// Grants codes to users who agree.
    enable_authorization_code: bool,
    /// Grants tokens to users who agree, without a code.
    enable_implicit_grant: bool,
    /// Grants tokens to clients for themselves.
    enable_client_credentials: bool,
    /// Grants tokens for a user whose password the client's own page has checked.
    enable_password_grant: bool,
    /// Takes the token out of the request.
    hide_credentials: bool,
    /// Takes requests without TLS that a trusted proxy has received with it.
    accept_http_if_already_terminated: bool,
    /// Name or id of the consumer as whom requests without a valid token go on.
    anonymous: Option<String>,
    /// Tokens hold for all services whose plugins have this set.
    global_credentials: bool,
    /// Header with the token.
    auth_header_name: String,
    /// Seconds for which refresh tokens hold; 0: for ever.
    #[schemars(range(min = 0, max = 100_000_000))]
    refresh_token_ttl: f64,
    /// Lets a refresh token be used several times.
    reuse_refresh_token: bool,
    /// Seconds for which a refresh token that may be used several times holds from its use on; not supported.
    persistent_refresh_token: bool,
    /// Use of PKCE.
    pkce: Pkce,
    /// The realm told in `WWW-Authenticate`.
    realm: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            scopes: None,
            mandatory_scope: false,
            provision_key: None,
            token_expiration: 7200.0,
            enable_authorization_code: false,
            enable_implicit_grant: false,
            enable_client_credentials: false,
            enable_password_grant: false,
            hide_credentials: false,
            accept_http_if_already_terminated: false,
            anonymous: None,
            global_credentials: false,
            auth_header_name: "authorization".into(),
            refresh_token_ttl: 1_209_600.0,
            reuse_refresh_token: false,
            persistent_refresh_token: false,
            pkce: Pkce::Lax,
            realm: None,
        }
    }
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        let flows = [
            self.enable_authorization_code,
            self.enable_implicit_grant,
            self.enable_client_credentials,
            self.enable_password_grant,
        ];
        if !flows.contains(&true) {
            let text = "at least one of these fields must be true: enable_authorization_code, enable_implicit_grant, \
                enable_client_credentials, enable_password_grant";
            faults.push(Invalid::new("", text));
        }
        if self.mandatory_scope && self.scopes.as_ref().is_none_or(Vec::is_empty) {
            faults.push(Invalid::new("scopes", "required field missing: mandatory_scope needs scopes"));
        }
        if self.persistent_refresh_token {
            faults.push(Invalid::new("persistent_refresh_token", "not supported: expected false"));
        }
        faults
    }
}

/// A credential: a client.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// Its id.
    id: String,
    /// The name of the application.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Id of the client.
    #[schemars(length(min = 1))]
    client_id: String,
    /// Its secret.
    #[schemars(length(min = 1))]
    client_secret: String,
    /// URIs to which codes and tokens may be sent.
    #[serde(default)]
    redirect_uris: Vec<String>,
    /// `public` for a client that keeps no secret.
    client_type: Option<String>,
    /// True for a secret that is stored as a hash; not supported.
    #[serde(default)]
    hash_secret: bool,
}

/// Properties of a client beside its secret.
#[derive(Clone, Debug)]
struct Client {
    /// Id of the credential.
    id: Arc<str>,
    redirect_uris: Arc<[String]>,
    is_public: bool,
}

type Clients = CredentialTable<Client>;

impl Define for Oauth2 {
    const NAME: &'static str = "oauth2";
    const PRIORITY: i32 = 1400;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Grants tokens to clients, and lets requests through that carry one.";
    const EXAMPLE: &'static str = "{enable_client_credentials: true, scopes: [read, write]}\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["provision_key", "client_secret"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        let field = FieldName::new(&conf.auth_header_name);
        let field = cx.ok(field.ok_or_else(|| Invalid::new("auth_header_name", "expected the name of a header")))?;
        Some(Compiled::build(move |build| {
            let state = format!("kong oauth2 {}", build.place);
            Ok(Guard {
                caller: Caller::new(conf.anonymous.as_deref(), challenge("Bearer", conf.realm.as_deref()), build),
                used: build.states.get_or_create(&state, || Table::new(build.limit_keys)),
                tokens: Tokens::of(build.states),
                most_tokens: build.limit_keys,
                challenge: challenge("Bearer", conf.realm.as_deref()),
                told: ["X-Authenticated-Scope", "X-Authenticated-UserId"].map(FieldName::constant),
                forwarded_proto: FieldName::constant("X-Forwarded-Proto"),
                field,
                conf,
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut Clients, entry: &AuthEntry<ConsumerConf>| {
            let conf = &entry.conf;
            if conf.hash_secret {
                return Err(Invalid::new("hash_secret", "not supported: expected false"));
            }
            let is_public = conf.client_type.as_deref() == Some("public");
            let redirect_uris = conf.redirect_uris.clone().into();
            let client = Client { id: conf.id.as_str().into(), redirect_uris, is_public };
            Ok(table.insert(conf.client_id.as_bytes(), conf.client_secret.as_bytes(), entry.who, client))
        };
        let named = ("client_id", "client_id");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.client_id, put, named)?))
    }
}

/// An instance.
#[derive(Debug)]
struct Guard {
    caller: Caller,
    /// Codes and refresh tokens that have been used.
    used: Arc<Table<Counter>>,
    /// Tokens of a gateway with a store.
    tokens: Arc<Tokens>,
    /// Most of them.
    most_tokens: usize,
    /// Value of `WWW-Authenticate`.
    challenge: String,
    /// Fields that tell upstreams scope and user.
    told: [FieldName; 2],
    forwarded_proto: FieldName,
    field: FieldName,
    conf: Conf,
}

impl Plugin for Guard {
    fn credential_argument(&self) -> Option<&[u8]> {
        Some(ACCESS_TOKEN)
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) {
            return Flow::Continue;
        }
        let is_post = cx.request().method() == Method::Post;
        let asks = |cx: &RequestCx<'_>, path: &[u8]| is_post && cx.request().path().ends_with(path);
        let (token, authorize) = (asks(cx, b"/oauth2/token"), asks(cx, b"/oauth2/authorize"));
        if token || authorize {
            if cx.body().is_none() {
                return Flow::AwaitBody;
            }
            let parameters = parameters(cx);
            return if token { self.issue(cx, &parameters) } else { self.authorize(cx, &parameters) };
        }
        let Some(token) = self.token(cx) else { return Flow::AwaitBody };
        let found = token.as_deref().map(|token| self.granted(cx, token));
        if self.conf.hide_credentials {
            self.hide(cx);
        }
        for field in &self.told {
            cx.request_mut().remove_field(field);
        }
        match found {
            Some(Some((who, client, grant))) => {
                for (field, value) in self.told.iter().zip([&grant.scope, &grant.user]) {
                    if let Some(value) = value {
                        cx.request_mut().set_field(field, value.as_bytes());
                    }
                }
                self.caller.accept(cx, who, Some(&client))
            }
            _ if self.caller.fall_back(cx) => Flow::Continue,
            Some(None) => self.refuse(cx, "invalid_token", "The access token is invalid or has expired"),
            None => self.refuse(cx, "invalid_request", "The access token is missing"),
        }
    }
}

/// Arguments of the query, and those of a form or a JSON object in the body.
fn parameters(cx: &RequestCx<'_>) -> Arguments {
    let mut all = Arguments::parse(cx.request().query().unwrap_or_default());
    let media = Media::of(cx.request().field_str("content-type").unwrap_or_default());
    match (media, cx.body()) {
        (Some(Media::Form), Some(body)) => all.extend(Arguments::parse(body)),
        (Some(Media::Json), Some(body)) => {
            let values: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body).unwrap_or_default();
            for (name, value) in &values {
                if let Some(text) = value.as_str() {
                    all.append(name.as_bytes(), text.as_bytes());
                }
            }
        }
        _ => {}
    }
    all
}

const ACCESS_TOKEN: &[u8] = b"access_token";

impl Guard {
    /// The token of a request, which may have none. `None`: the body is needed first.
    fn token(&self, cx: &RequestCx<'_>) -> Option<Option<Vec<u8>>> {
        if let Some(value) = cx.request().field(&self.field) {
            let mut words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let (first, second, more) = (words.next(), words.next(), words.next());
            let is_scheme = |word: &[u8]| word.eq_ignore_ascii_case(b"bearer") || word.eq_ignore_ascii_case(b"token");
            return Some(match (first, second, more) {
                (Some(scheme), Some(token), None) if is_scheme(scheme) => Some(token.to_vec()),
                _ => Some(value.to_vec()),
            });
        }
        let one = |all: &Arguments| match all.texts(ACCESS_TOKEN)[..] {
            [one] => Some(one.to_vec()),
            _ => None,
        };
        if let Some(token) = one(&Arguments::parse(cx.request().query().unwrap_or_default())) {
            return Some(Some(token));
        }
        let content_type = cx.request().field_str("content-type").unwrap_or_default();
        let has_body = matches!(cx.request().method(), Method::Post | Method::Put | Method::Patch);
        if !has_body || Media::of(content_type).is_none() {
            return Some(None);
        }
        cx.body()?;
        Some(one(&parameters(cx)))
    }

    /// The client and the grant of an access token.
    fn granted(&self, cx: &RequestCx<'_>, token: &[u8]) -> Option<(ConsumerMatch, Vec<u8>, Grant)> {
        if self.tokens.are_kept() {
            return self.granted_by_kept(cx, token);
        }
        let client = tokens::client_of(token)?;
        let found = cx.credentials::<Clients>(self.caller.position)?.find(&client)?;
        let grant = tokens::open(Purpose::Access, &client, found.secret, token, cx.unix_ms())?;
        let is_here = grant.service == self.service(cx);
        is_here.then_some((found.who, client, grant))
    }

    /// The service that tokens are granted for; `None`: all that have this set.
    fn service(&self, cx: &RequestCx<'_>) -> Option<String> {
        if self.conf.global_credentials {
            return None;
        }
        let service = cx.view().route().and_then(|route| route.service_id.as_ref());
        Some(service.map(|id| id.text.to_string()).unwrap_or_default())
    }

    fn hide(&self, cx: &mut RequestCx<'_>) {
        if cx.request().field(&self.field).is_some() {
            cx.request_mut().remove_field(&self.field);
            return;
        }
        if cx.request().query().is_some_and(|query| query::argument(query, ACCESS_TOKEN).is_some()) {
            cx.request_mut().retain_arguments(|argument| !query::has_name(argument, ACCESS_TOKEN));
        }
        let is_form = Media::of(cx.request().field_str("content-type").unwrap_or_default()) == Some(Media::Form);
        if let Some(mut form) = cx.body().filter(|_| is_form).map(Arguments::parse)
            && form.has(ACCESS_TOKEN)
        {
            form.remove(ACCESS_TOKEN);
            let mut left = Vec::new();
            form.write(&mut left);
            cx.replace_body(&left);
        }
    }

    /// Refuses a request with 401.
    fn refuse(&self, cx: &mut RequestCx<'_>, error: &str, description: &str) -> Flow {
        let mut told = self.challenge.clone();
        if error == "invalid_token" {
            let more = if told.contains(' ') { "," } else { "" };
            told.push_str(&format!("{more} error=\"{error}\" error_description=\"{description}\""));
        }
        let body = json!({ "error": error, "error_description": description }).to_string();
        let answer = cx.reply(401).field("Content-Type", b"application/json; charset=utf-8");
        answer.field("WWW-Authenticate", told.as_bytes()).body(body.as_bytes()).done()
    }

    /// True for a request over TLS, to the gateway or to a trusted proxy before it.
    fn is_https(&self, cx: &RequestCx<'_>) -> bool {
        let told = cx.request().field(&self.forwarded_proto).filter(|_| self.conf.accept_http_if_already_terminated);
        cx.client().https || told.is_some_and(|proto| proto.eq_ignore_ascii_case(b"https"))
    }
}
