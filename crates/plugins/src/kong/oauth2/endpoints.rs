//! The endpoints at which users agree and clients get tokens: `/oauth2/authorize` and `/oauth2/token` behind a route's path.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;
use weir_plugin::{Flow, RequestCx};

use super::tokens::{self, Grant, Purpose};
use super::{Client, Clients, Guard, Pkce};
use crate::kong::arguments::Arguments;
use crate::traffic::key::{Key, Which};

/// Milliseconds for which a code holds.
const CODE: u64 = 300_000;

/// A refusal: error, description, and true if the client has named itself in the header.
pub(super) struct Refusal(&'static str, String, bool);

pub(super) type Outcome<T> = Result<T, Refusal>;

pub(super) fn refused<T>(error: &'static str, description: impl Into<String>) -> Outcome<T> {
    Err(Refusal(error, description.into(), false))
}

/// A client by its id.
pub(super) struct Known {
    pub(super) id: Vec<u8>,
    secret: Vec<u8>,
    pub(super) client: Client,
}

/// The text of a parameter that is there once.
fn one(parameters: &Arguments, name: &str) -> Option<String> {
    match parameters.texts(name.as_bytes())[..] {
        [text] => String::from_utf8(text.to_vec()).ok().filter(|text| !text.is_empty()),
        _ => None,
    }
}

impl Guard {
    /// `/oauth2/token`
    pub(super) fn issue(&self, cx: &mut RequestCx<'_>, parameters: &Arguments) -> Flow {
        let mut body = match self.grant(cx, parameters) {
            Ok(body) => body,
            Err(Refusal(error, description, is_in_header)) => {
                let mut body = Map::new();
                body.insert("error".into(), error.into());
                body.insert("error_description".into(), description.into());
                put_state(parameters, &mut body);
                let status = if is_in_header && error == "invalid_client" { 401 } else { 400 };
                return exit(cx, status, &body, status == 401);
            }
        };
        put_state(parameters, &mut body);
        exit(cx, 200, &body, false)
    }

    fn grant(&self, cx: &RequestCx<'_>, parameters: &Arguments) -> Outcome<Map<String, Value>> {
        if !self.is_https(cx) {
            return refused("access_denied", "You must use HTTPS");
        }
        let kind = one(parameters, "grant_type").unwrap_or_default();
        let is_enabled = match kind.as_str() {
            "authorization_code" | "refresh_token" => true,
            "client_credentials" => self.conf.enable_client_credentials,
            "password" => self.conf.enable_password_grant,
            _ => false,
        };
        if !is_enabled {
            return refused("unsupported_grant_type", "Invalid grant_type");
        }
        let known = self.client(cx, parameters, &kind)?;
        let asked = one(parameters, "redirect_uri");
        if asked.as_ref().is_some_and(|uri| !known.client.redirect_uris.contains(uri)) {
            return refused("invalid_request", NO_SUCH_URI);
        }
        match kind.as_str() {
            "authorization_code" => self.redeem(cx, parameters, &known, asked.as_deref()),
            "refresh_token" => self.refresh(cx, parameters, &known),
            "password" => {
                let user = self.agreed(parameters)?;
                let grant = self.fresh(cx, Some(user), self.scope(parameters)?);
                self.tokens(cx, &known, &grant, Refresh::New)
            }
            _ => {
                let user = one(parameters, "authenticated_userid");
                if user.is_some() {
                    self.agreed(parameters)?;
                }
                let grant = self.fresh(cx, user, self.scope(parameters)?);
                self.tokens(cx, &known, &grant, Refresh::None)
            }
        }
    }

    /// The client that asks, by its secret; a public one without it where PKCE proves that it is the same.
    fn client(&self, cx: &RequestCx<'_>, parameters: &Arguments, kind: &str) -> Outcome<Known> {
        let mut is_in_header = false;
        let (id, secret) = match (one(parameters, "client_id"), one(parameters, "client_secret")) {
            (Some(id), Some(secret)) => (Some(id.into_bytes()), Some(secret.into_bytes())),
            (id, _) => match cx.request().field(&self.field).and_then(basic) {
                Some((id, secret)) => {
                    is_in_header = true;
                    (Some(id), Some(secret))
                }
                None => (id.map(String::into_bytes), None),
            },
        };
        let refusal = || Refusal("invalid_client", "Invalid client authentication".into(), is_in_header);
        let known = id.and_then(|id| self.find(cx, &id)).ok_or_else(refusal)?;
        let is_right = match secret {
            Some(secret) => bool::from(secret.ct_eq(&known.secret)),
            None => known.client.is_public && matches!(kind, "authorization_code" | "refresh_token"),
        };
        if is_right { Ok(known) } else { Err(refusal()) }
    }

    fn find(&self, cx: &RequestCx<'_>, id: &[u8]) -> Option<Known> {
        let found = cx.credentials::<Clients>(self.caller.position)?.find(id)?;
        Some(Known { id: id.to_vec(), secret: found.secret.to_vec(), client: found.more.clone() })
    }

    /// The user who has agreed, for whom the page of the login vouches with the provision key.
    fn agreed(&self, parameters: &Arguments) -> Outcome<String> {
        let given = one(parameters, "provision_key").unwrap_or_default();
        let held = self.conf.provision_key.as_deref().filter(|key| !key.is_empty());
        if !held.is_some_and(|held| bool::from(held.as_bytes().ct_eq(given.as_bytes()))) {
            return refused("invalid_provision_key", "Invalid provision_key");
        }
        let user = one(parameters, "authenticated_userid").filter(|user| !user.trim().is_empty());
        match user.filter(|user| user.bytes().all(weir_wire::is_field_byte)) {
            Some(user) => Ok(user),
            None => refused("invalid_authenticated_userid", "Missing authenticated_userid parameter"),
        }
    }

    fn scope(&self, parameters: &Arguments) -> Outcome<Option<String>> {
        let asked = one(parameters, "scope");
        let Some(known) = &self.conf.scopes else { return Ok(None) };
        match asked {
            Some(asked) => {
                let unknown = asked.split_whitespace().find(|scope| !known.iter().any(|known| known == scope));
                match unknown {
                    Some(scope) => refused("invalid_scope", format!("\"{scope}\" is an invalid scope")),
                    None => {
                        Ok(Some(asked.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|all| !all.is_empty()))
                    }
                }
            }
            None if self.conf.mandatory_scope => refused("invalid_scope", "You must specify a scope"),
            None => Ok(None),
        }
    }

    fn fresh(&self, cx: &RequestCx<'_>, user: Option<String>, scope: Option<String>) -> Grant {
        Grant { service: self.service(cx), user, scope, ..Grant::default() }
    }

    /// Changes a code for tokens.
    fn redeem(
        &self,
        cx: &RequestCx<'_>,
        parameters: &Arguments,
        known: &Known,
        redirect_uri: Option<&str>,
    ) -> Outcome<Map<String, Value>> {
        let code = one(parameters, "code").unwrap_or_default();
        let grant = self.opened(cx, Purpose::Code, known, &code);
        let Some(grant) = grant.filter(|grant| grant.service == self.service(cx)) else {
            return refused("invalid_request", "Invalid code");
        };
        if grant.redirect_uri.as_deref().is_some_and(|asked| Some(asked) != redirect_uri) {
            return refused("invalid_request", NO_SUCH_URI);
        }
        if let Some(challenge) = &grant.challenge {
            let verifier = one(parameters, "code_verifier").unwrap_or_default();
            let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, verifier.as_bytes());
            if !bool::from(URL_SAFE_NO_PAD.encode(hash).as_bytes().ct_eq(challenge.as_bytes())) {
                return refused("invalid_grant", "Invalid code_verifier");
            }
        } else if known.client.is_public && one(parameters, "client_secret").is_none() {
            return refused("invalid_request", "code_challenge is required for public clients");
        }
        // Whoever uses a code again may have stolen it (RFC 6749 section 4.1.2).
        if !self.is_first_use(cx, &grant) {
            return refused("invalid_request", "Invalid code");
        }
        let grant = Grant { redirect_uri: None, challenge: None, ..grant };
        self.tokens(cx, known, &grant, Refresh::New)
    }

    fn refresh(&self, cx: &RequestCx<'_>, parameters: &Arguments, known: &Known) -> Outcome<Map<String, Value>> {
        let token = one(parameters, "refresh_token").unwrap_or_default();
        if self.tokens.are_kept() {
            return self.refresh_kept(cx, known, &token);
        }
        if tokens::client_of(token.as_bytes()).is_some_and(|client| !client.is_empty() && client != known.id) {
            return refused("invalid_client", "Invalid client authentication");
        }
        let grant = self.opened(cx, Purpose::Refresh, known, &token);
        let Some(grant) = grant.filter(|grant| grant.service == self.service(cx)) else {
            return refused("invalid_request", "Invalid refresh_token");
        };
        if self.conf.reuse_refresh_token {
            return self.tokens(cx, known, &grant, Refresh::Same(token));
        }
        if !self.is_first_use(cx, &grant) {
            return refused("invalid_request", "Invalid refresh_token");
        }
        self.tokens(cx, known, &grant, Refresh::New)
    }

    fn opened(&self, cx: &RequestCx<'_>, purpose: Purpose, known: &Known, text: &str) -> Option<Grant> {
        tokens::open(purpose, &known.id, &known.secret, text.as_bytes(), cx.unix_ms())
    }

    /// Notes the use of a code or a refresh token. False if it has been used before, or cannot be noted.
    fn is_first_use(&self, cx: &RequestCx<'_>, grant: &Grant) -> bool {
        let now = cx.unix_ms();
        let end = if grant.end == 0 { u64::MAX } else { grant.end };
        let key = Which::Key(Key::new(0, &grant.number.to_be_bytes()));
        let noted = self.used.ask(key, now, end.saturating_sub(now), |counter| counter.take(now, end, 1));
        matches!(noted, Ok(Some(_)))
    }

    /// Tokens for a grant.
    fn tokens(
        &self,
        cx: &RequestCx<'_>,
        known: &Known,
        grant: &Grant,
        refresh: Refresh,
    ) -> Outcome<Map<String, Value>> {
        if self.tokens.are_kept() {
            return self.keep(cx, known, grant, matches!(refresh, Refresh::New));
        }
        let seal = |purpose, seconds: f64| {
            let end = if seconds > 0.0 { cx.unix_ms() + (seconds * 1000.0) as u64 } else { 0 };
            let grant = Grant { end, number: fastrand::u128(..), ..grant.clone() };
            let sealed = tokens::seal(purpose, &known.id, &known.secret, &grant);
            sealed.ok_or_else(|| Refusal("server_error", "An unexpected error occurred".into(), false))
        };
        let seconds = self.conf.token_expiration;
        let mut body = Map::new();
        body.insert("access_token".into(), seal(Purpose::Access, seconds)?.into());
        body.insert("token_type".into(), "bearer".into());
        if seconds > 0.0 {
            body.insert("expires_in".into(), json!(seconds as u64));
            match refresh {
                Refresh::None => {}
                Refresh::Same(token) => drop(body.insert("refresh_token".into(), token.into())),
                Refresh::New => {
                    let token = seal(Purpose::Refresh, self.conf.refresh_token_ttl)?;
                    body.insert("refresh_token".into(), token.into());
                }
            }
        }
        Ok(body)
    }

    /// `/oauth2/authorize`
    pub(super) fn authorize(&self, cx: &mut RequestCx<'_>, parameters: &Arguments) -> Flow {
        let asked = one(parameters, "redirect_uri");
        let is_trusted = self.is_https(cx) && self.agreed(parameters).is_ok();
        let known = one(parameters, "client_id").filter(|_| is_trusted).and_then(|id| self.find(cx, id.as_bytes()));
        let uris = known.as_ref().map(|known| &known.client.redirect_uris);
        let first = uris.and_then(|uris| uris.first()).cloned();
        let is_listed = uris.is_some_and(|uris| asked.as_ref().is_none_or(|asked| uris.contains(asked)));
        let target = if is_listed { asked.clone().or(first) } else { first };
        let outcome = self.agree(cx, parameters, known.as_ref(), asked.filter(|_| is_listed), is_listed);
        let (status, mut body) = match outcome {
            Ok(body) => (200, body),
            Err(Refusal(error, description, _)) => {
                let mut body = Map::new();
                body.insert("error".into(), error.into());
                body.insert("error_description".into(), description.into());
                (400, body)
            }
        };
        put_state(parameters, &mut body);
        let Some(target) = target else { return exit(cx, status, &body, false) };
        let is_implicit = body.contains_key("access_token");
        let mut answer = Map::new();
        answer.insert("redirect_uri".into(), with_parameters(&target, &body, is_implicit).into());
        exit(cx, status, &answer, false)
    }

    fn agree(
        &self,
        cx: &RequestCx<'_>,
        parameters: &Arguments,
        known: Option<&Known>,
        redirect_uri: Option<String>,
        is_listed: bool,
    ) -> Outcome<Map<String, Value>> {
        if !self.is_https(cx) {
            return refused("access_denied", "You must use HTTPS");
        }
        let user = self.agreed(parameters)?;
        let kind = one(parameters, "response_type").unwrap_or_default();
        let is_code = kind == "code" && self.conf.enable_authorization_code;
        let is_implicit = kind == "token" && self.conf.enable_implicit_grant;
        if !(is_code || is_implicit) {
            return refused("unsupported_response_type", "Invalid response_type");
        }
        let scope = self.scope(parameters)?;
        let Some(known) = known else { return refused("invalid_client", "Invalid client authentication") };
        if !is_listed || known.client.redirect_uris.is_empty() {
            return refused("invalid_request", NO_SUCH_URI);
        }
        let mut grant = self.fresh(cx, Some(user), scope);
        if !is_code {
            return self.tokens(cx, known, &grant, Refresh::None);
        }
        grant.challenge = self.challenge(parameters, known)?;
        grant.redirect_uri = redirect_uri;
        (grant.end, grant.number) = (cx.unix_ms() + CODE, fastrand::u128(..));
        let sealed = tokens::seal(Purpose::Code, &known.id, &known.secret, &grant);
        let code = sealed.ok_or_else(|| Refusal("server_error", "An unexpected error occurred".into(), false))?;
        Ok(Map::from_iter([("code".to_owned(), code.into())]))
    }

    /// The challenge of PKCE, where one is used.
    fn challenge(&self, parameters: &Arguments, known: &Known) -> Outcome<Option<String>> {
        let is_needed = match self.conf.pkce {
            Pkce::None => return Ok(None),
            Pkce::Lax => known.client.is_public,
            Pkce::Strict => true,
        };
        let Some(challenge) = one(parameters, "code_challenge") else {
            return if is_needed { refused("invalid_request", "code_challenge is required") } else { Ok(None) };
        };
        if one(parameters, "code_challenge_method").as_deref() != Some("S256") {
            return refused("invalid_request", "code_challenge_method is not supported, must be S256");
        }
        Ok(Some(challenge))
    }
}

const NO_SUCH_URI: &str = "Invalid redirect_uri that does not match with any redirect_uri created with the application";

/// The refresh token beside an access token.
enum Refresh {
    None,
    New,
    Same(String),
}

/// Id and secret of a client in `Authorization: Basic …`.
fn basic(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, encoded) = value.split_at_checked(6)?;
    let decoded =
        STANDARD.decode(weir_wire::trim_ows(encoded)).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic "))?;
    let at = decoded.iter().position(|byte| *byte == b':')?;
    let (id, secret) = decoded.split_at(at);
    Some((id.to_vec(), secret.get(1..)?.to_vec()))
}

fn put_state(parameters: &Arguments, body: &mut Map<String, Value>) {
    if let Some(state) = one(parameters, "state") {
        body.insert("state".into(), state.into());
    }
}

/// A URI with these parameters in its query, or in its fragment.
fn with_parameters(uri: &str, parameters: &Map<String, Value>, in_fragment: bool) -> String {
    let (uri, fragment) = uri.split_once('#').unwrap_or((uri, ""));
    let mut all = Arguments::parse(b"");
    for (name, value) in parameters {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        all.set(name.as_bytes(), text.as_bytes());
    }
    let mut written = Vec::new();
    all.write(&mut written);
    let written = String::from_utf8_lossy(&written);
    if in_fragment {
        return format!("{uri}#{written}");
    }
    let separator = if uri.contains('?') { '&' } else { '?' };
    let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
    format!("{uri}{separator}{written}{fragment}")
}

/// Answers with JSON that nobody keeps.
fn exit(cx: &mut RequestCx<'_>, status: u16, body: &Map<String, Value>, asks: bool) -> Flow {
    let text = Value::Object(body.clone()).to_string();
    let mut answer = cx.reply(status).field("Content-Type", b"application/json; charset=utf-8");
    answer = answer.field("cache-control", b"no-store").field("pragma", b"no-cache");
    if asks {
        answer = answer.field("www-authenticate", b"Basic realm=\"OAuth2.0\"");
    }
    answer.body(text.as_bytes()).done()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{basic, with_parameters};

    #[test]
    fn parameters_go_into_the_query_or_the_fragment() {
        let parameters = json!({ "code": "a.b", "state": "x y" });
        let parameters = parameters.as_object().expect("an object");
        for (uri, in_fragment, expected) in [
            ("http://a.test/cb", false, "http://a.test/cb?code=a.b&state=x%20y"),
            ("http://a.test/cb?q=1", false, "http://a.test/cb?q=1&code=a.b&state=x%20y"),
            ("http://a.test/cb#f", false, "http://a.test/cb?code=a.b&state=x%20y#f"),
            ("http://a.test/cb", true, "http://a.test/cb#code=a.b&state=x%20y"),
        ] {
            assert_eq!(with_parameters(uri, parameters, in_fragment), expected);
        }
    }

    #[test]
    fn clients_name_themselves_by_basic() {
        assert_eq!(basic(b"Basic YTpiOmM="), Some((b"a".to_vec(), b"b:c".to_vec())));
        assert_eq!(basic(b"bearer YTpi"), None);
        assert_eq!(basic(b"basic !"), None);
    }
}
