//! The identity provider of the dashboard (`admin.oidc`), asked on threads that may block.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use serde_json::{Map, Value};
use url::Url;
use weir_admin::{LoginProvider, Role, Visitor};
use weir_config::Settings;
use weir_config::settings::AdminOidc;
use weir_plugins::oidc::id_token;

use crate::agents::Agents;

/// Path of the redirect URI.
const CALLBACK: &str = "/weir/v1/session/oidc/callback";
/// Limit for each question to the provider.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const MOST: u64 = 1 << 20;
/// Time after which the provider's document is read again.
const FRESH: Duration = Duration::from_secs(600);

/// An identity provider.
struct Oidc {
    conf: AdminOidc,
    agents: Agents,
    /// The provider's document, and when it was read.
    document: Mutex<Option<(Instant, Arc<Value>)>>,
}

/// The provider of the settings, if there is one.
///
/// # Errors
/// A setting is missing, or has no effect.
pub(crate) fn provider(settings: &Settings) -> anyhow::Result<Option<Arc<dyn LoginProvider>>> {
    let conf = &settings.admin.oidc;
    if conf.issuer.is_empty() {
        if *conf != AdminOidc::default() {
            bail!("admin.oidc.issuer: the other settings of admin.oidc have no effect without it");
        }
        return Ok(None);
    }
    for (name, url) in [("issuer", &conf.issuer), ("public_url", &conf.public_url)] {
        let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if parsed.is_none_or(|url| url.query().is_some()) {
            bail!("admin.oidc.{name}: expected a URL such as https://login.example, found {url:?}");
        }
    }
    if conf.client_id.is_empty() {
        bail!("admin.oidc.client_id: the setting is missing");
    }
    if conf.admins.is_empty() && conf.operators.is_empty() && conf.viewers.is_empty() {
        bail!(
            "admin.oidc.admins: nobody would be let in: name values of the claim {} in admins, operators or viewers",
            conf.role_claim
        );
    }
    if !conf.scopes.iter().any(|scope| scope == "openid") {
        bail!("admin.oidc.scopes: expected openid among them");
    }
    if !settings.admin.key_required {
        bail!("admin.oidc.issuer: without effect while admin.key_required is false, which lets everybody in");
    }
    let agents = Agents::new(&settings.tls.trusted_certificate, Some(LIMIT));
    Ok(Some(Arc::new(Oidc { conf: conf.clone(), agents, document: Mutex::default() })))
}

impl LoginProvider for Oidc {
    fn begin(&self, state: &str, nonce: &str, challenge: &str) -> Result<String, String> {
        let document = self.document()?;
        let mut url = Url::parse(text(&document, "authorization_endpoint")?).map_err(|error| error.to_string())?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.conf.client_id)
            .append_pair("redirect_uri", &self.redirect_uri())
            .append_pair("scope", &self.conf.scopes.join(" "))
            .append_pair("state", state)
            .append_pair("nonce", nonce)
            .append_pair("code_challenge", challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url.into())
    }

    fn finish(&self, code: &str, verifier: &str, nonce: &str) -> Result<Visitor, String> {
        let document = self.document()?;
        let tokens = self.tokens(&document, code, verifier)?;
        let keys = self.get(text(&document, "jwks_uri")?, None)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let issuer = text(&document, "issuer")?;
        let mut claims =
            id_token(text(&tokens, "id_token")?, &keys, (issuer, self.conf.client_id.as_str(), nonce), now)?;
        let is_missing = |claims: &Map<String, Value>, path: &str| !path.is_empty() && find(claims, path).is_none();
        let wanted = [&self.conf.role_claim, &self.conf.name_claim, &self.conf.team_claim];
        if wanted.iter().any(|path| is_missing(&claims, path))
            && let (Ok(endpoint), Ok(token)) = (text(&document, "userinfo_endpoint"), text(&tokens, "access_token"))
        {
            let told = self.get(endpoint, Some(token))?;
            let told: Map<String, Value> =
                serde_json::from_slice(&told).map_err(|_| "the provider tells no claims".to_owned())?;
            // OpenID Connect Core 1.0 section 5.3.2: else it is somebody else's answer.
            if told.get("sub") != claims.get("sub") {
                return Err("the provider tells claims of somebody else".to_owned());
            }
            for (name, claim) in told {
                claims.entry(name).or_insert(claim);
            }
        }
        self.visitor(&claims)
    }
}

impl Oidc {
    fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.conf.public_url.trim_end_matches('/'))
    }

    /// The provider's document (OpenID Connect Discovery 1.0).
    fn document(&self) -> Result<Arc<Value>, String> {
        let mut held = self.document.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, document)) = held.as_ref().filter(|(read, _)| read.elapsed() < FRESH) {
            return Ok(Arc::clone(document));
        }
        let place = format!("{}/.well-known/openid-configuration", self.conf.issuer.trim_end_matches('/'));
        let document: Value =
            serde_json::from_slice(&self.get(&place, None)?).map_err(|_| format!("{place}: no JSON"))?;
        // Section 4.3: else the document is another provider's.
        if text(&document, "issuer")?.trim_end_matches('/') != self.conf.issuer.trim_end_matches('/') {
            return Err(format!("{place}: it is the document of another issuer"));
        }
        let document = Arc::new(document);
        *held = Some((Instant::now(), Arc::clone(&document)));
        Ok(document)
    }

    /// The tokens for a code.
    fn tokens(&self, document: &Value, code: &str, verifier: &str) -> Result<Value, String> {
        let endpoint = text(document, "token_endpoint")?;
        let agent = self.agents.of(endpoint, true)?;
        let secret = self.conf.client_secret.expose();
        let redirect = self.redirect_uri();
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("code_verifier", verifier),
            ("redirect_uri", &redirect),
        ];
        let mut request = agent.post(endpoint);
        if secret.is_empty() {
            form.push(("client_id", &self.conf.client_id));
        } else {
            // RFC 6749 section 2.3.1: both are encoded as in a form.
            let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let both = format!("{}:{}", encoded(&self.conf.client_id), encoded(secret));
            request = request.header("Authorization", format!("Basic {}", base64_of(&both)));
        }
        let sent = request.send_form(form).map_err(|error| format!("{endpoint}: {error}"))?;
        let (status, body) = read(endpoint, sent)?;
        let tokens: Value = serde_json::from_slice(&body).map_err(|_| format!("{endpoint}: no JSON"))?;
        match status {
            200 => Ok(tokens),
            _ => Err(format!(
                "the provider gives no tokens: {}",
                tokens.get("error").and_then(Value::as_str).unwrap_or("no reason is told")
            )),
        }
    }

    fn get(&self, uri: &str, token: Option<&str>) -> Result<Vec<u8>, String> {
        let mut request = self.agents.of(uri, true)?.get(uri);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let (status, body) = read(uri, request.call().map_err(|error| format!("{uri}: {error}"))?)?;
        match status {
            200 => Ok(body),
            _ => Err(format!("{uri}: status {status}")),
        }
    }

    /// The person that claims are about, if the person has a role.
    fn visitor(&self, claims: &Map<String, Value>) -> Result<Visitor, String> {
        let AdminOidc { admins, operators, viewers, role_claim, name_claim, team_claim, .. } = &self.conf;
        let found = texts(find(claims, role_claim));
        let has = |wanted: &[String]| found.iter().any(|one| wanted.iter().any(|wanted| wanted == one));
        let roles = [(admins, Role::Admin), (operators, Role::Operator), (viewers, Role::Viewer)];
        let role = roles.into_iter().find(|(wanted, _)| has(wanted)).map(|(_, role)| role);
        let role = role.ok_or_else(|| format!("none of your roles in {role_claim} opens the dashboard"))?;
        let first = |path: &str| texts(find(claims, path)).into_iter().next().filter(|text| !text.is_empty());
        let name = first(name_claim).or_else(|| first("sub")).ok_or("the provider tells no name")?;
        let name = name.chars().filter(|c| !c.is_control()).take(256).collect();
        let team = match team_claim.as_str() {
            "" => None,
            // Without it the whole configuration would be open.
            path => Some(first(path).ok_or_else(|| format!("you have no team in {path}"))?.to_owned()),
        };
        Ok(Visitor { name, role, team })
    }
}

fn read(uri: &str, mut response: ureq::http::Response<ureq::Body>) -> Result<(u16, Vec<u8>), String> {
    let body =
        response.body_mut().with_config().limit(MOST).read_to_vec().map_err(|error| format!("{uri}: {error}"))?;
    Ok((response.status().as_u16(), body))
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn text<'v>(value: &'v Value, name: &str) -> Result<&'v str, String> {
    value.get(name).and_then(Value::as_str).ok_or_else(|| format!("the provider tells no {name}"))
}

/// The claim at a path, of which a dot leads into an object unless a claim has it in its name.
fn find<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(found) = claims.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
}

/// The texts of a claim: a text, or a list of them.
fn texts(claim: Option<&Value>) -> Vec<&str> {
    match claim {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

impl std::fmt::Debug for Oidc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oidc").field("issuer", &self.conf.issuer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_admin::{Role, Visitor};
    use weir_config::Settings;
    use weir_config::settings::AdminOidc;

    use super::{Agents, Mutex, Oidc, provider};

    fn conf() -> AdminOidc {
        AdminOidc {
            issuer: "https://login.example/realm".to_owned(),
            client_id: "weir".to_owned(),
            public_url: "https://gateway.example".to_owned(),
            admins: vec!["root".to_owned()],
            viewers: vec!["staff".to_owned()],
            role_claim: "realm.roles".to_owned(),
            ..AdminOidc::default()
        }
    }

    #[test]
    fn claims_make_a_visitor() {
        let oidc = |team: &str| Oidc {
            conf: AdminOidc { team_claim: team.to_owned(), ..conf() },
            agents: Agents::new("system", None),
            document: Mutex::default(),
        };
        let ask = |team: &str, claims: serde_json::Value| oidc(team).visitor(claims.as_object().expect("claims"));
        let jo = |role, team: Option<&str>| Visitor { name: "jo".to_owned(), role, team: team.map(str::to_owned) };
        let claims = json!({ "sub": "1", "email": "jo", "realm": { "roles": ["staff", "root"] }, "team": "red" });
        assert_eq!(ask("", claims.clone()), Ok(jo(Role::Admin, None)));
        assert_eq!(ask("team", claims), Ok(jo(Role::Admin, Some("red"))));
        assert_eq!(ask("", json!({ "sub": "jo", "realm.roles": "staff" })), Ok(jo(Role::Viewer, None)));
        for (team, claims) in [
            ("", json!({ "sub": "jo" })),
            ("", json!({ "sub": "jo", "realm": { "roles": ["root2"] } })),
            ("", json!({ "realm": { "roles": ["root"] } })),
            ("team", json!({ "sub": "jo", "realm": { "roles": ["root"] } })),
        ] {
            assert!(ask(team, claims.clone()).is_err(), "{claims}");
        }
    }

    #[test]
    fn settings_that_let_nobody_in_are_refused() {
        let with = |oidc: AdminOidc| {
            let mut settings = Settings::default();
            settings.admin.oidc = oidc;
            provider(&settings).map(|found| found.is_some())
        };
        assert!(with(conf()).expect("a provider") && !with(AdminOidc::default()).expect("none"));
        for (oidc, reason) in [
            (AdminOidc { issuer: String::new(), ..conf() }, "admin.oidc.issuer"),
            (AdminOidc { issuer: "login.example".to_owned(), ..conf() }, "admin.oidc.issuer"),
            (AdminOidc { public_url: String::new(), ..conf() }, "admin.oidc.public_url"),
            (AdminOidc { client_id: String::new(), ..conf() }, "admin.oidc.client_id"),
            (AdminOidc { admins: Vec::new(), viewers: Vec::new(), ..conf() }, "admin.oidc.admins"),
            (AdminOidc { scopes: vec!["email".to_owned()], ..conf() }, "admin.oidc.scopes"),
        ] {
            let error = with(oidc).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
