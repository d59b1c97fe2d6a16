//! `authz-casdoor`: users log in at Casdoor (the authorization code grant of OAuth 2.0, RFC 6749 section 4.1).

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{
    CalloutError, CompileCx, Compiled, Define, Failure, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx,
    Service, ServiceOptions, Side,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::openid_connect::client::{add_to_form, random_text};
use super::openid_connect::provider::split_origin;
use super::openid_connect::session::Cookies;
use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct AuthzCasdoor;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Casdoor's address, such as `http://127.0.0.1:8000`, without a slash at its end.
    #[schemars(regex(pattern = "^[^?]+[^/]$"))]
    endpoint_addr: String,
    /// Id of the application at Casdoor.
    #[schemars(length(min = 1))]
    client_id: String,
    /// Its secret. Cookies are encrypted with a key that is made of it.
    #[schemars(length(min = 1))]
    client_secret: String,
    /// URL to which Casdoor sends users back, on a route with this plugin, such as `http://127.0.0.1:9080/callback`.
    #[schemars(regex(pattern = "^[^?]+[^/]$"))]
    callback_url: String,
}

/// Seconds in which a user has to log in at Casdoor.
const LOGIN_SECONDS: u64 = 600;
/// Longest target to which a user comes back; with a longer one it is `/`.
const TARGET: usize = 2000;
/// Limit for Casdoor's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Define for AuthzCasdoor {
    const NAME: &'static str = "authz-casdoor";
    const PRIORITY: i32 = 2559;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets a request through of a user who has logged in at Casdoor. A request without a session is sent there (302), Casdoor sends the \
user back with a code to `callback_url`, the gateway changes the code for an access token, and sends the user on to where the \
login began. The session lasts as long as the token does, and is kept in a cookie that is encrypted (AES-256-GCM, with a key of \
`client_secret`), so that any gateway with this configuration knows it.

| answer at the callback | |
|---|---|
| 302 | the user has logged in |
| 400, `failed when accessing token. Invalid code or state` | one of the two is missing |
| 400, `invalid state` | the login was not begun in this browser, or more than 10 minutes ago (APISIX answers 503 where there is no session at all) |
| 503 | Casdoor gives no access token: nobody passes meanwhile |

The upstream is told nothing of the user. No consumer is set.";
    const EXAMPLE: &'static str = "\
endpoint_addr: http://127.0.0.1:8000
client_id: 7ceb9b7fda4a9061ec1c
client_secret: 3416238e1edf915eac08b8fe345b2b95cdba7e04
callback_url: http://127.0.0.1:9080/callback
";
    const ENCRYPTED: &'static [&'static str] = &["client_secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let uri = format!("{}/api/login/oauth/access_token", conf.endpoint_addr);
        let options = ServiceOptions { timeout: TIMEOUT, ..ServiceOptions::default() };
        let service = cx.ok(Service::parse("endpoint_addr", &uri, options));
        if conf.endpoint_addr.contains('#') {
            cx.say([Invalid::new("endpoint_addr", "expected an address without a fragment")]);
        }
        let fault = Invalid::new("callback_url", "expected http://HOST:PORT/PATH or https://HOST:PORT/PATH");
        let is_plain = conf.callback_url.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        let path = split_origin(&conf.callback_url).map(|(_, path)| path).filter(|path| is_plain && path.len() > 1);
        let path = cx.ok(path.map(|path| path.to_owned().into_bytes()).ok_or(fault));
        let secure = conf.callback_url.starts_with("https://");
        let (service, path) = (service?, path?);
        Some(Compiled::build(move |build| {
            let of = format!("authz-casdoor {} {}", conf.endpoint_addr, conf.client_id);
            let cookies = Cookies::new(
                format!("casdoor_{}", super::short_digest(&of)),
                &Arc::new(conf.client_secret.clone()),
                &of,
                "; Path=/; HttpOnly; SameSite=Lax".to_owned(),
                Some(secure),
            );
            Ok(LoggingIn {
                cookies: cookies.ok_or_else(|| Invalid::new("client_secret", "no key can be made of it"))?,
                service: service.build(build)?,
                path,
                conf,
                content_type: FieldName::constant("Content-Type"),
            })
        }))
    }
}

/// A session. Times are seconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Session {
    end: u64,
}

/// A login on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Login {
    state: String,
    /// Path and query that the user asked for.
    target: String,
    end: u64,
}

/// The answer of Casdoor's endpoint for tokens, which has the status 200 in any case.
#[derive(Debug, Deserialize)]
struct Tokens {
    access_token: Option<String>,
    /// Seconds; 0 where the token is no good.
    expires_in: Option<f64>,
}

/// An instance.
#[derive(Debug)]
struct LoggingIn {
    cookies: Cookies,
    service: Service,
    /// Path of the callback.
    path: Vec<u8>,
    conf: Conf,
    content_type: FieldName,
}

impl Plugin for LoggingIn {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.request().encoded_path() == self.path {
            return Flow::Suspend;
        }
        let sealed = cx.request().cookie(self.cookies.name.as_bytes());
        let session = sealed.and_then(|sealed| self.cookies.open::<Session>("casdoor session", sealed));
        match session {
            Some(session) if session.end > seconds(cx) => Flow::Continue,
            _ => self.begin(cx),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let (Some(code), Some(state)) = (argument(cx, "code"), argument(cx, "state")) else {
                return refuse(cx, "failed when accessing token. Invalid code or state");
            };
            let Some(login) = self.login(cx, &state) else { return refuse(cx, "invalid state") };
            match self.lifetime(&code, io).await {
                Ok(lifetime) => self.finish(cx, &login, lifetime),
                Err(reason) => Flow::Abort(Failure { status: 503, side: Side::Gateway, reason }),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The callout ends before, by its own limit.
        Some(TIMEOUT + Duration::from_secs(5))
    }
}

fn seconds(cx: &RequestCx<'_>) -> u64 {
    cx.unix_ms() / 1000
}

/// An argument of the query, decoded.
fn argument(cx: &RequestCx<'_>, name: &str) -> Option<String> {
    let value = query::argument(cx.request().query()?, name.as_bytes())?;
    let mut decoded = Vec::new();
    query::decode(value, &mut decoded);
    String::from_utf8(decoded).ok().filter(|value| !value.is_empty())
}

fn refuse(cx: &mut RequestCx<'_>, text: &str) -> Flow {
    let answer = cx.reply(400).field("Content-Type", b"text/plain; charset=utf-8");
    answer.body(text.as_bytes()).body(b"\n").done()
}

impl LoggingIn {
    /// The name of a login's cookie: each has its own, so that logins in several windows do not meet.
    fn login_name(&self, state: &str) -> String {
        format!("{}_{}", self.cookies.name, state.get(..8).unwrap_or_default())
    }

    /// A cookie of a login, for so many seconds.
    fn login_cookie(&self, state: &str, value: &str, seconds: u64) -> String {
        let secure = if self.conf.callback_url.starts_with("https://") { "; Secure" } else { "" };
        format!("{}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}", self.login_name(state))
    }

    /// Sends the user to Casdoor.
    fn begin(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut target = Vec::new();
        cx.request().write_request_uri(&mut target);
        let target = String::from_utf8(target).ok().filter(|target| target.len() <= TARGET);
        let end = seconds(cx).saturating_add(LOGIN_SECONDS);
        let login = Login { state: random_text(), target: target.unwrap_or_else(|| "/".into()), end };
        let Some(sealed) = self.cookies.seal("casdoor login", &login) else {
            return cx.fail(500, "authz-casdoor: a cookie cannot be sealed");
        };
        let mut location = format!("{}/login/oauth/authorize?", self.conf.endpoint_addr).into_bytes();
        let mut form = Vec::new();
        for (name, value) in [
            ("response_type", "code"),
            ("scope", "read"),
            ("state", &login.state),
            ("client_id", &self.conf.client_id),
            ("redirect_uri", &self.conf.callback_url),
        ] {
            add_to_form(&mut form, name, value);
        }
        location.extend_from_slice(&form);
        super::moved(cx, &location, &[self.login_cookie(&login.state, &sealed, LOGIN_SECONDS)])
    }

    /// The login that an answer with this state belongs to.
    fn login(&self, cx: &RequestCx<'_>, state: &str) -> Option<Login> {
        let sealed = cx.request().cookie(self.login_name(state).as_bytes())?;
        let login = self.cookies.open::<Login>("casdoor login", sealed)?;
        (login.state == state && login.end > seconds(cx)).then_some(login)
    }

    /// Seconds of the access token for a code.
    async fn lifetime(&self, code: &str, io: &dyn Io) -> Result<u64, &'static str> {
        let mut form = Vec::new();
        for (name, value) in [
            ("code", code),
            ("grant_type", "authorization_code"),
            ("client_id", &self.conf.client_id),
            ("client_secret", &self.conf.client_secret),
        ] {
            add_to_form(&mut form, name, value);
        }
        let mut question = self.service.callout(Method::Post);
        question.set_timeout(TIMEOUT);
        question.set_field(&self.content_type, b"application/x-www-form-urlencoded");
        question.set_body(&form);
        let answer = io.callout(question).await.map_err(CalloutError::reason)?;
        let tokens = serde_json::from_slice::<Tokens>(answer.body()).ok().filter(|_| answer.status() == 200);
        let tokens = tokens.ok_or("authz-casdoor: the answer for a code is none of Casdoor's")?;
        let has_token = tokens.access_token.is_some_and(|token| !token.is_empty());
        // An endless number becomes one that fits.
        let lifetime = tokens.expires_in.map_or(0, |seconds| seconds as u64);
        if has_token && lifetime > 0 { Ok(lifetime) } else { Err("authz-casdoor: no access token for the code") }
    }

    fn finish(&self, cx: &mut RequestCx<'_>, login: &Login, lifetime: u64) -> Flow {
        let session = Session { end: seconds(cx).saturating_add(lifetime) };
        let Some(sealed) = self.cookies.seal("casdoor session", &session) else {
            return cx.fail(500, "authz-casdoor: a cookie cannot be sealed");
        };
        let cookies = [self.cookies.single(&sealed, ""), self.login_cookie(&login.state, "", 0)];
        // Two slashes would be a host for browsers.
        let dot = if login.target.starts_with("//") { "/." } else { "" };
        super::moved(cx, format!("{dot}{}", login.target).as_bytes(), &cookies)
    }
}
