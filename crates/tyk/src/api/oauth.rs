//! The OAuth server of an API: codes and tokens for its clients, as Tyk makes them and keeps them.
//!
//! | endpoint behind the listen path | |
//! |---|---|
//! | `oauth/authorize` | sends the user to the page of the login |
//! | `tyk/oauth/authorize-client` | the page of the login tells that the user has agreed, with the gateway's secret |
//! | `oauth/token` | a client gets tokens |
//! | `oauth/revoke`, `oauth/revoke_all` | tokens end |

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use url::{Url, form_urlencoded};
use weir_plugins::tyk::sessions::{Password, Session, records};
use weir_plugins::tyk::{ApiAnswer, ApiRequest, OAuthServer};

use super::held::Held;
use super::records::{Fault, Records};
use super::{GatewayApi, NO_SECRET, hex, now, random_bytes, random_id, status, told};

/// Seconds for which a code holds.
const CODE: u64 = 250;
/// Ends a request early with an error of OAuth (RFC 6749 sections 4.1.2.1 and 5.2).
#[derive(Debug)]
struct Refusal(&'static str);

type Outcome<T> = Result<T, Refusal>;
/// A URI that a user goes back to, with true where values belong into its fragment.
type Redirect = (String, bool);

impl From<Fault> for Refusal {
    fn from((status, text): Fault) -> Self {
        tracing::warn!(status, text, "an OAuth server cannot answer");
        Self("server_error")
    }
}

impl Refusal {
    fn description(&self) -> &'static str {
        match self.0 {
            "invalid_request" => {
                "The request is missing a required parameter, includes an invalid parameter value, includes a parameter \
                 more than once, or is otherwise malformed."
            }
            "unauthorized_client" => "The client is not authorized to request a token using this method.",
            "access_denied" => "The resource owner or authorization server denied the request.",
            "unsupported_response_type" => {
                "The authorization server does not support obtaining a token using this method."
            }
            "unsupported_grant_type" => "The authorization grant type is not supported by the authorization server.",
            "invalid_grant" => {
                "The provided authorization grant (e.g., authorization code, resource owner credentials) or refresh token \
                 is invalid, expired, revoked, does not match the redirection URI used in the authorization request, or \
                 was issued to another client."
            }
            "invalid_client" => {
                "Client authentication failed (e.g., unknown client, no client authentication included, or unsupported \
                 authentication method)."
            }
            _ => {
                "The authorization server encountered an unexpected condition that prevented it from fulfilling the \
                 request."
            }
        }
    }
}

/// A client, as Tyk keeps it: `id`, `secret`, `redirecturi`, `policyid`, `meta_data`, `description`.
pub(super) struct Client(pub(super) Value);

impl Client {
    pub(super) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn id(&self) -> &str {
        self.text("id")
    }

    pub(super) fn has_secret(&self, secret: &str) -> bool {
        verify_slices_are_equal(self.text("secret").as_bytes(), secret.as_bytes()).is_ok()
    }
}

/// Answers a request for an endpoint.
pub(super) fn answer(api: &GatewayApi, server: &OAuthServer, request: &ApiRequest) -> ApiAnswer {
    let form = form(request);
    let asked = Asked { api, server, request, form, records: Records::of(api, request) };
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "tyk/oauth/authorize-client") if !api.is_right(&request.secret) => {
            told(403, &status("error", NO_SECRET))
        }
        ("POST", "tyk/oauth/authorize-client") => {
            let (outcome, redirect) = asked.authorise(true);
            asked.written(outcome, redirect)
        }
        ("GET" | "POST", "oauth/authorize") => match asked.authorise(false).0 {
            Ok(_) => asked.to_login(),
            Err(refusal) => told(api.conf.oauth.error_status, &status("error", refusal.description())),
        },
        ("GET" | "POST", "oauth/token") => {
            let outcome = if request.method == "POST" { asked.tokens() } else { Err(Refusal("invalid_request")) };
            let mut answer = asked.written(outcome, None);
            for (name, value) in [
                ("X-Content-Type-Options", "nosniff"),
                ("X-XSS-Protection", "1; mode=block"),
                ("X-Frame-Options", "DENY"),
                ("Strict-Transport-Security", "max-age=63072000; includeSubDomains"),
                ("Cache-Control", "no-cache, no-store, must-revalidate"),
                ("Pragma", "no-cache"),
                ("Expires", "0"),
            ] {
                answer.fields.push((name, value.to_owned()));
            }
            answer
        }
        (_, "oauth/revoke") => asked.revoke(),
        (_, "oauth/revoke_all") => asked.revoke_all(),
        _ => told(405, &status("error", "Method not supported")),
    }
}

/// Fields of a form: those of the body, and behind them those of the query. The body may be JSON.
pub(super) fn form(request: &ApiRequest) -> Vec<(String, String)> {
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
    let mut form: Vec<(String, String)> = match kind {
        "application/x-www-form-urlencoded" => form_urlencoded::parse(&request.body).into_owned().collect(),
        "application/json" => {
            let fields: Map<String, Value> = serde_json::from_slice(&request.body).unwrap_or_default();
            let text = |value: Value| value.as_str().map(str::to_owned);
            fields.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
        }
        _ => Vec::new(),
    };
    form.extend(request.query.iter().cloned());
    form
}

/// The first field of a form with a name; empty: there is none.
pub(super) fn field<'f>(form: &'f [(String, String)], name: &str) -> &'f str {
    form.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// A request for an endpoint.
struct Asked<'r> {
    api: &'r GatewayApi,
    server: &'r OAuthServer,
    request: &'r ApiRequest,
    form: Vec<(String, String)>,
    records: Records<'r>,
}

/// Rights that a client is about to get.
#[derive(Default)]
struct Grant {
    /// The session as JSON; none: that of the client's policy.
    session: Option<Value>,
    redirect_uri: String,
    scope: String,
    /// The token that ends with it.
    before: Option<String>,
    has_refresh: bool,
}

impl Asked<'_> {
    fn field(&self, name: &str) -> &str {
        field(&self.form, name)
    }

    fn name(&self, kind: &str, id: &str) -> String {
        format!("{}{kind}.{id}", records::oauth_of(&self.server.api_id))
    }

    fn client(&self, id: &str) -> Result<Option<Client>, Fault> {
        client(&self.records, &self.server.api_id, id)
    }

    /// The client of `Authorization: Basic`.
    fn known_client(&self) -> Outcome<Client> {
        let given = self.request.authorization.strip_prefix("Basic ").ok_or(Refusal("invalid_request"))?;
        let decoded = STANDARD.decode(given).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or(Refusal("invalid_request"))?;
        let (id, secret) = decoded.split_once(':').ok_or(Refusal("invalid_request"))?;
        let client = self.client(id)?.filter(|client| client.has_secret(secret));
        client.filter(|client| !client.text("redirecturi").is_empty()).ok_or(Refusal("unauthorized_client"))
    }

    /// The first of the URIs that a client may be sent back to.
    fn first_uri<'c>(&self, client: &'c Client) -> &'c str {
        self.uris(client).next().unwrap_or_default()
    }

    fn uris<'c>(&self, client: &'c Client) -> impl Iterator<Item = &'c str> {
        let (all, separator) = (client.text("redirecturi"), self.api.conf.oauth.separator.clone());
        let mut rest = Some(all);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            if separator.is_empty() {
                return Some(text);
            }
            let (first, behind) = text.split_once(&separator).map_or((text, None), |(a, b)| (a, Some(b)));
            rest = behind;
            Some(first)
        })
    }

    /// The URI of a request, which has to be one of the client's, or lie below it.
    fn redirect_uri(&self, client: &Client) -> Outcome<String> {
        let given = Some(self.field("redirect_uri")).filter(|given| !given.is_empty());
        let uri = given.unwrap_or_else(|| self.first_uri(client));
        match self.uris(client).any(|base| is_below(base, uri)) {
            true => Ok(uri.to_owned()),
            false => Err(Refusal("invalid_request")),
        }
    }

    /// Checks a request for an authorisation; with `agreed` makes the code or the token.
    fn authorise(&self, agreed: bool) -> (Outcome<Map<String, Value>>, Option<Redirect>) {
        let kind = self.field("response_type");
        if !self.server.allowed_authorize_types.iter().any(|known| known == kind) || !matches!(kind, "code" | "token") {
            return (Err(Refusal("unsupported_response_type")), None);
        }
        let client = match self.client(self.field("client_id")) {
            Ok(Some(client)) => client,
            // As in Tyk, where no client is a fault of the store.
            Ok(None) => return (Err(Refusal("server_error")), None),
            Err(fault) => return (Err(fault.into()), None),
        };
        if client.text("redirecturi").is_empty() {
            return (Err(Refusal("unauthorized_client")), None);
        }
        let uri = match self.redirect_uri(&client) {
            Ok(uri) => uri,
            Err(refusal) => return (Err(refusal), Some((self.first_uri(&client).to_owned(), false))),
        };
        if !agreed {
            return (Ok(Map::new()), None);
        }
        let grant = Grant {
            session: serde_json::from_str(self.field("key_rules")).ok().filter(Value::is_object),
            redirect_uri: uri.clone(),
            scope: self.field("scope").to_owned(),
            ..Grant::default()
        };
        let made = if kind == "token" { self.grant(&client, grant) } else { self.code(&client, &grant) };
        (made, Some((uri, kind == "token")))
    }

    fn code(&self, client: &Client, grant: &Grant) -> Outcome<Map<String, Value>> {
        let code = URL_SAFE_NO_PAD.encode(random_bytes::<16>()?);
        let mut data = json!({
            "Client": client.0, "Code": code, "ExpiresIn": CODE, "Scope": grant.scope,
            "RedirectUri": grant.redirect_uri, "State": self.field("state"), "CreatedAt": jiff::Timestamp::now().to_string(),
        });
        data["UserData"] = grant.session.as_ref().map_or(String::new(), Value::to_string).into();
        self.records.put(&self.name("oauth-authorize", &code), &data.to_string(), CODE)?;
        Ok(Map::from_iter([("code".to_owned(), code.into())]))
    }

    /// Sends the user to the page of the login.
    fn to_login(&self) -> ApiAnswer {
        let login = &self.server.auth_login_redirect;
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.request.query).finish();
        let to = if self.request.method == "GET" { format!("{login}?{query}") } else { login.clone() };
        ApiAnswer { status: 307, content_type: "", fields: vec![("Location", to)], body: Vec::new() }
    }

    /// An answer of the server, with the URI that the user goes back to.
    fn written(&self, outcome: Outcome<Map<String, Value>>, redirect: Option<Redirect>) -> ApiAnswer {
        let (code, mut fields) = match outcome {
            Ok(fields) => (200, fields),
            Err(refusal) => {
                let fields = [("error", refusal.0), ("error_description", refusal.description())];
                let fields = fields.map(|(name, value)| (name.to_owned(), Value::from(value)));
                (self.api.conf.oauth.error_status, Map::from_iter(fields))
            }
        };
        let state = self.field("state");
        if redirect.is_some() && !state.is_empty() {
            fields.insert("state".to_owned(), state.into());
        }
        // Go writes fields in the order of their names.
        fields.sort_keys();
        if let Some((uri, in_fragment)) = redirect {
            let in_fragment = in_fragment && code == 200;
            let to = with_values(&uri, &fields, in_fragment);
            fields.insert("redirect_to".to_owned(), to.into());
            fields.sort_keys();
        }
        told(code, &Value::Object(fields))
    }

    fn tokens(&self) -> Outcome<Map<String, Value>> {
        let kind = self.field("grant_type");
        if !self.server.allowed_access_types.iter().any(|known| known == kind) {
            return Err(Refusal("unsupported_grant_type"));
        }
        match kind {
            "authorization_code" => self.redeem(),
            "refresh_token" => self.refresh(),
            "password" => self.login(),
            "client_credentials" => {
                let client = self.known_client()?;
                let redirect_uri = self.first_uri(&client).to_owned();
                let scope = self.field("scope").to_owned();
                self.grant(&client, Grant { redirect_uri, scope, ..Grant::default() })
            }
            _ => Err(Refusal("unsupported_grant_type")),
        }
    }

    /// Changes a code for tokens. A code is good once.
    fn redeem(&self) -> Outcome<Map<String, Value>> {
        let client = self.known_client()?;
        let code = self.field("code");
        let name = self.name("oauth-authorize", code);
        let data = self.records.get(&name)?.filter(|_| !code.is_empty()).ok_or(Refusal("invalid_grant"))?;
        let data: Value = serde_json::from_str(&data).map_err(|_| Refusal("invalid_grant"))?;
        if data["Client"]["id"] != client.id() {
            return Err(Refusal("invalid_grant"));
        }
        let redirect_uri = self.redirect_uri(&client)?;
        if data["RedirectUri"] != redirect_uri.as_str() {
            return Err(Refusal("invalid_request"));
        }
        if !self.records.remove(&name)? {
            return Err(Refusal("invalid_grant"));
        }
        let grant = Grant {
            session: session_of(&data),
            redirect_uri,
            scope: data["Scope"].as_str().unwrap_or_default().to_owned(),
            has_refresh: true,
            ..Grant::default()
        };
        self.grant(&client, grant)
    }

    /// Changes a token for new tokens. It is good once.
    fn refresh(&self) -> Outcome<Map<String, Value>> {
        let client = self.known_client()?;
        let given = self.field("refresh_token");
        let name = self.name("oauth-refresh", given);
        let data = self.records.get(&name)?.filter(|_| !given.is_empty()).ok_or(Refusal("invalid_grant"))?;
        let data: Value = serde_json::from_str(&data).map_err(|_| Refusal("invalid_grant"))?;
        if data["Client"]["id"] != client.id() {
            return Err(Refusal("invalid_client"));
        }
        if !self.records.remove(&name)? {
            return Err(Refusal("invalid_grant"));
        }
        let text = |field: &str| data[field].as_str().unwrap_or_default().to_owned();
        let scope = Some(self.field("scope")).filter(|scope| !scope.is_empty()).map(str::to_owned);
        let grant = Grant {
            session: session_of(&data),
            redirect_uri: text("RedirectUri"),
            scope: scope.unwrap_or_else(|| text("Scope")),
            before: Some(text("AccessToken")),
            has_refresh: true,
        };
        self.grant(&client, grant)
    }

    /// Tokens for a user with a password, which take the place of those that the user had of the client.
    fn login(&self) -> Outcome<Map<String, Value>> {
        let (user, password) = (self.field("username"), self.field("password"));
        if user.is_empty() || password.is_empty() {
            return Err(Refusal("invalid_grant"));
        }
        let client = self.known_client()?;
        let held = Held::of(self.api, self.request);
        let name = self.api.naming.name(&format!("{}{user}", self.server.org_id));
        let written = held.written(&name)?;
        let compiled: Option<Session> =
            written.as_ref().and_then(|written| self.api.sessions.compile_apart(written).ok());
        let has_password =
            Password::fits(compiled.as_ref().and_then(|session| session.password.as_ref()), password.as_bytes());
        let Some(mut session) = written.filter(|_| has_password) else { return Err(Refusal("access_denied")) };
        if let Some(old) = session["oauth_keys"][client.id()].as_str().filter(|old| !old.is_empty()) {
            self.end(old)?;
        }
        let mut copied = session.clone();
        if let Some(fields) = copied.as_object_mut() {
            for field in ["basic_auth_data", "oauth_keys", "quota_renews", "last_updated"] {
                fields.shift_remove(field);
            }
        }
        let redirect_uri = self.first_uri(&client).to_owned();
        let scope = self.field("scope").to_owned();
        let grant = Grant { session: Some(copied), redirect_uri, scope, has_refresh: true, ..Grant::default() };
        let made = self.grant(&client, grant)?;
        if !session["oauth_keys"].is_object() {
            session["oauth_keys"] = json!({});
        }
        session["oauth_keys"][client.id()] = made["access_token"].clone();
        held.put(&name, &session, true)?;
        Ok(made)
    }

    /// Makes tokens, and ends what they were given for.
    fn grant(&self, client: &Client, grant: Grant) -> Outcome<Map<String, Value>> {
        let oauth = &self.api.conf.oauth;
        let mut session = match grant.session.clone() {
            Some(session) => session,
            None => self.of_policy(client)?,
        };
        let org = session["org_id"].as_str().unwrap_or_default().to_owned();
        let access = self.api.naming.key(&org, &random_id()?);
        let refresh = grant.has_refresh.then(uuid).transpose()?.map(|uuid| STANDARD.encode(uuid));
        let expires = now() + oauth.access_expires;
        session["oauth_client_id"] = client.id().into();
        session["expires"] = expires.into();
        if let Some(own) = client.0["meta_data"].as_object().filter(|own| !own.is_empty()) {
            if !session["meta_data"].is_object() {
                session["meta_data"] = json!({});
            }
            for (name, value) in own {
                if session["meta_data"].get(name).is_none() {
                    session["meta_data"][name] = value.clone();
                }
            }
        }
        let name = self.api.naming.name(&access);
        let session = super::keys::complete(session.as_object().cloned().unwrap_or_default(), None, false);
        let mut data = json!({
            "Client": client.0, "AccessToken": access, "RefreshToken": refresh.as_deref().unwrap_or_default(),
            "ExpiresIn": oauth.access_expires, "Scope": grant.scope, "RedirectUri": grant.redirect_uri,
            "CreatedAt": jiff::Timestamp::now().to_string(),
        });
        if let Some(given) = &grant.session {
            data["UserData"] = given.to_string().into();
        }
        let data = data.to_string();
        self.records.put(&self.name("oauth-access", &name), &data, oauth.access_expires)?;
        self.records.rank_token(&self.server.api_id, client.id(), &name, Some(expires))?;
        Held::of(self.api, self.request).put_for(&name, &session, oauth.access_expires)?;
        if let Some(refresh) = &refresh {
            self.records.put(&self.name("oauth-refresh", refresh), &data, oauth.refresh_expires)?;
        }
        if let Some(before) = &grant.before {
            self.end(before)?;
        }
        let mut made = Map::from_iter([
            ("access_token".to_owned(), access.into()),
            ("expires_in".to_owned(), oauth.access_expires.into()),
            ("token_type".to_owned(), "bearer".into()),
        ]);
        if let Some(refresh) = refresh {
            made.insert("refresh_token".to_owned(), refresh.into());
        }
        if !grant.scope.is_empty() {
            made.insert("scope".to_owned(), grant.scope.into());
        }
        Ok(made)
    }

    /// A session with the policy of a client.
    fn of_policy(&self, client: &Client) -> Outcome<Value> {
        let id = client.text("policyid");
        let policies = self.api.sessions.policies();
        let policy = policies.get(id).ok_or_else(|| {
            tracing::warn!(
                policy = id,
                client = client.id(),
                "a client of OAuth gets no token: its policy is not there"
            );
            Refusal("server_error")
        })?;
        let org = policy["org_id"].as_str().unwrap_or(&self.server.org_id);
        Ok(json!({ "org_id": org, "apply_policies": [id] }))
    }

    /// Ends a token.
    fn end(&self, token: &str) -> Result<(), Fault> {
        end_token(self.api, self.request, &self.server.api_id, &self.api.naming.name(token))
    }

    fn revoke(&self) -> ApiAnswer {
        let token = self.field("token");
        if token.is_empty() {
            return told(400, &status("error", "token is required"));
        }
        match revoke(self.api, self.request, &self.server.api_id, (token, self.field("token_type_hint"))) {
            Ok(()) => told(200, &status("ok", "token revoked successfully")),
            Err((code, text)) => told(code, &status("error", &text)),
        }
    }

    fn revoke_all(&self) -> ApiAnswer {
        let (client, secret) = (self.field("client_id"), self.field("client_secret"));
        for (value, text) in [(client, "client_id is required"), (secret, "client_secret is required")] {
            if value.is_empty() {
                return told(401, &status("error", text));
            }
        }
        match revoke_all(self.api, self.request, &self.server.api_id, (client, secret)) {
            Ok(()) => told(200, &status("ok", "tokens revoked successfully")),
            Err((code, text)) => told(code, &status("error", &text)),
        }
    }
}

/// The session that was given for a code or a token; none: that of the client's policy.
fn session_of(data: &Value) -> Option<Value> {
    serde_json::from_str(data["UserData"].as_str()?).ok().filter(Value::is_object)
}

/// A client of an API.
pub(super) fn client(records: &Records<'_>, api: &str, id: &str) -> Result<Option<Client>, Fault> {
    let Some(text) = records.get(&records::oauth_client(api, id))?.filter(|_| !id.is_empty()) else { return Ok(None) };
    Ok(serde_json::from_str(&text).ok().map(Client))
}

/// Ends a token by the name of its session.
pub(super) fn end_token(api: &GatewayApi, request: &ApiRequest, id: &str, name: &str) -> Result<(), Fault> {
    let records = Records::of(api, request);
    let access = format!("{}oauth-access.{name}", records::oauth_of(id));
    let data: Value = records.get(&access)?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    if let Some(client) = data["Client"]["id"].as_str() {
        records.rank_token(id, client, name, None)?;
    }
    records.remove(&access)?;
    Held::of(api, request).remove(name)
}

/// Ends a token, or the token for new ones, or whatever it is.
pub(super) fn revoke(
    api: &GatewayApi,
    request: &ApiRequest,
    id: &str,
    (token, hint): (&str, &str),
) -> Result<(), Fault> {
    if hint != "refresh_token" {
        end_token(api, request, id, &api.naming.name(token))?;
    }
    if hint != "access_token" {
        Records::of(api, request).remove(&format!("{}oauth-refresh.{token}", records::oauth_of(id)))?;
    }
    Ok(())
}

/// Ends all tokens of a client.
pub(super) fn revoke_all(
    api: &GatewayApi,
    request: &ApiRequest,
    id: &str,
    (client, secret): (&str, &str),
) -> Result<(), Fault> {
    let records = Records::of(api, request);
    let known = self::client(&records, id, client)?.ok_or((404, "error getting oauth client".to_owned()))?;
    if !known.has_secret(secret) {
        return Err((401, "client secret is wrong".to_owned()));
    }
    end_all(api, request, id, client)
}

/// Ends all tokens of a client, and those for new ones.
pub(super) fn end_all(api: &GatewayApi, request: &ApiRequest, id: &str, client: &str) -> Result<(), Fault> {
    let records = Records::of(api, request);
    let prefix = records::oauth_of(id);
    for (name, _) in records.tokens(id, client)? {
        let data = records.get(&format!("{prefix}oauth-access.{name}"))?.unwrap_or_default();
        let data: Value = serde_json::from_str(&data).unwrap_or_default();
        if let Some(refresh) = data["RefreshToken"].as_str().filter(|refresh| !refresh.is_empty()) {
            records.remove(&format!("{prefix}oauth-refresh.{refresh}"))?;
        }
        end_token(api, request, id, &name)?;
    }
    Ok(())
}

/// A random UUID (RFC 9562 section 5.4).
fn uuid() -> Result<String, Fault> {
    let mut bytes = random_bytes::<16>()?;
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut bytes;
    (*version, *variant) = (*version & 0x0f | 0x40, *variant & 0x3f | 0x80);
    let hex = hex(&bytes);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    Ok([part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"))
}

/// True for a URI that is `base`, or lies below it. Neither may have a fragment.
fn is_below(base: &str, uri: &str) -> bool {
    let (Ok(base), Ok(uri)) = (Url::parse(base), Url::parse(uri)) else { return false };
    let origin = |url: &Url| {
        (url.scheme().to_owned(), url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default())
    };
    let is_user = |url: &Url| !url.username().is_empty() || url.password().is_some();
    let Some(rest) = uri.path().strip_prefix(base.path()) else { return false };
    let is_whole = rest.is_empty() || base.path().ends_with('/') || rest.starts_with('/');
    origin(&base) == origin(&uri)
        && is_whole
        && [&base, &uri].into_iter().all(|url| url.fragment().is_none() && !is_user(url))
}

/// A URI with these values in its query, or in its fragment.
fn with_values(uri: &str, values: &Map<String, Value>, in_fragment: bool) -> String {
    let (base, query) = uri.split_once('?').unwrap_or((uri, ""));
    let mut all: std::collections::BTreeMap<String, String> =
        form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    for (name, value) in values {
        all.insert(name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    let written = form_urlencoded::Serializer::new(String::new()).extend_pairs(all).finish();
    format!("{base}{}{written}", if in_fragment { '#' } else { '?' })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{is_below, uuid, with_values};

    #[test]
    fn clients_are_sent_back_to_their_own_places() {
        for (base, uri, expected) in [
            ("http://a.test/cb", "http://a.test/cb", true),
            ("http://a.test/cb", "http://a.test/cb/x?y=1", true),
            ("http://a.test", "http://a.test/cb", true),
            ("http://a.test/cb", "http://a.test:80/cb", true),
            ("http://a.test/cb", "http://a.test/cbx", false),
            ("http://a.test/cb", "http://a.test/cb/../x", false),
            ("http://a.test/cb", "https://a.test/cb", false),
            ("http://a.test/cb", "http://a.test:81/cb", false),
            ("http://a.test", "http://a.test@evil.test/", false),
            ("http://a.test", "http://me:x@a.test/", false),
            ("http://a.test/cb", "http://a.test/cb#f", false),
            ("http://a.test/cb", "cb", false),
        ] {
            assert_eq!(is_below(base, uri), expected, "{base} {uri}");
        }
        let values = json!({ "code": "a", "state": "x y" });
        let values = values.as_object().expect("an object");
        assert_eq!(with_values("http://a.test?b=1", values, false), "http://a.test?b=1&code=a&state=x+y");
        assert_eq!(with_values("http://a.test/", values, true), "http://a.test/#code=a&state=x+y");
        let id = uuid().expect("random numbers");
        assert!(id.len() == 36 && id.get(14..15) == Some("4"), "{id}");
    }
}
