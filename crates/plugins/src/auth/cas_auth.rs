//! `cas-auth`: users log in at a server of CAS (its protocol 3.0).

mod sessions;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{
    CalloutError, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx, Service,
    ServiceOptions,
};
use weir_wire::method::Method;

use super::callback::Callback;
use super::openid_connect::client::add_to_form;
use super::openid_connect::session::Cookies;
use crate::query;
use sessions::Sessions;

/// The definition.
#[derive(Debug)]
pub(crate) struct CasAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The server, such as `https://cas.test:8443/cas`.
    idp_uri: String,
    /// The place to which the server sends users back, and where it ends sessions: a whole URL, such as
    /// `https://a.test/cas_callback`, or a path, to which the host of the request is added.
    cas_callback_uri: String,
    /// Path of a GET that ends the session.
    #[schemars(regex(pattern = "^/"))]
    logout_uri: String,
    /// Cookies.
    cookie: CookieConf,
}

/// Cookies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CookieConf {
    /// Secret that they are encrypted with.
    #[schemars(length(min = 32))]
    secret: String,
    /// Browsers send them over HTTPS alone.
    #[serde(default = "yes")]
    secure: bool,
    /// Attribute `SameSite`.
    #[serde(default)]
    samesite: SameSite,
}

/// Attribute `SameSite` of a cookie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum SameSite {
    #[default]
    Lax,
    None,
}

fn yes() -> bool {
    true
}

/// Most sessions of a configuration.
const SESSIONS: usize = 100_000;
/// Seconds in which a user has to log in.
const LOGIN_SECONDS: u64 = 600;
/// Longest target to which a user comes back; with a longer one it is `/`.
const TARGET: usize = 2000;
/// Limit for the server's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a ticket.
const TICKET: usize = 512;

impl Define for CasAuth {
    const NAME: &'static str = "cas-auth";
    const PRIORITY: i32 = 2597;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets a request through of a user who has logged in at a server of CAS. A request without a session is sent to `IDP_URI/login` \
(302), the server sends the user back with a ticket, the gateway has it validated at `IDP_URI/serviceValidate`, and sends the \
user on to where the login began. The session ends after an hour without a request, at `logout_uri`, or when the server says so \
by a POST at the place of `cas_callback_uri` (single logout).

Sessions are kept in the process, up to 100,000 of a configuration (then nobody else can log in, with 503); the cookie has the \
ticket, encrypted with `cookie.secret`. A restart ends sessions, and several gateways want one client at one of them.

| answer | |
|---|---|
| 302 | the user has to log in, or has |
| 400, `invalid logout request from IdP, no ticket` | a logout of the server without a ticket |
| 401, `invalid callback state` | the login was not begun in this browser |
| 401, `invalid ticket` | the server does not take the ticket |
| 401 | a logout without a session |
| 503 | the server gives no answer that can be used: nobody passes meanwhile (APISIX answers 401) |

The upstream is told nothing of the user. No consumer is set.";
    const EXAMPLE: &'static str = "\
idp_uri: http://127.0.0.1:8080/cas
cas_callback_uri: http://127.0.0.1:9080/cas_callback
logout_uri: /logout
cookie: {secret: a-secret-of-32-characters-or-more, secure: false}
";
    const ENCRYPTED: &'static [&'static str] = &["cookie.secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let options = ServiceOptions { timeout: TIMEOUT, ..ServiceOptions::default() };
        let base = conf.idp_uri.trim_end_matches('/').to_owned();
        let service = cx.ok(Service::parse("idp_uri", &format!("{base}/serviceValidate"), options));
        if base.contains(['?', '#']) {
            cx.say([Invalid::new("idp_uri", "expected an address without a query")]);
        }
        if conf.cookie.samesite == SameSite::None && !conf.cookie.secure {
            cx.say([Invalid::new(
                "cookie.secure",
                "expected true: browsers drop a cookie with SameSite=None otherwise",
            )]);
        }
        let callback = cx.ok(Callback::new("cas_callback_uri", &conf.cas_callback_uri));
        if callback.as_ref().is_some_and(|callback| callback.whole.is_none()) {
            cx.warn(
                "cas_callback_uri",
                "a path alone lets the Host of a request say where the ticket goes: better a whole URL",
            );
        }
        let (service, callback) = (service?, callback?);
        Some(Compiled::build(move |build| {
            let of = format!("cas-auth {base} {}", conf.cas_callback_uri);
            let key = format!("{of} {} sessions", build.place);
            let sessions = build.states.get_or_create(&key, || Sessions::new(SESSIONS));
            let attributes = format!("; Path=/; HttpOnly; SameSite={:?}", conf.cookie.samesite);
            let secret = Arc::new(conf.cookie.secret);
            let cookies = |name: &str| {
                let made = Cookies::new(name.to_owned(), &secret, &of, attributes.clone(), Some(conf.cookie.secure));
                made.ok_or_else(|| Invalid::new("cookie.secret", "no key can be made of it"))
            };
            Ok(LoggingIn {
                session: cookies(&format!("CAS_SESSION_{}", super::short_digest(&of)))?,
                login: cookies("CAS_REQUEST_URI")?,
                sessions,
                service: service.build(build)?,
                base,
                callback,
                logout: conf.logout_uri.into_bytes(),
            })
        }))
    }
}

/// A login on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Login {
    /// Path and query that the user asked for.
    target: String,
    /// End, in seconds since 1970.
    end: u64,
}

/// An instance.
#[derive(Debug)]
struct LoggingIn {
    /// Cookies of sessions, which hold tickets.
    session: Cookies,
    /// Cookies of logins.
    login: Cookies,
    sessions: Arc<Sessions>,
    service: Service,
    /// Address of the server.
    base: String,
    callback: Callback,
    /// Path of a logout.
    logout: Vec<u8>,
}

impl Plugin for LoggingIn {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let method = cx.request().method();
        let is_callback = cx.request().path() == self.callback.path;
        if method == Method::Get && cx.request().path() == self.logout {
            return self.log_out(cx);
        }
        if method == Method::Post && is_callback {
            return self.single_logout(cx);
        }
        let ticket = self.ticket(cx);
        if ticket.is_some_and(|ticket| self.sessions.touch(&ticket, seconds(cx))) {
            return Flow::Continue;
        }
        match argument(cx, "ticket").filter(|_| is_callback) {
            Some(_) => Flow::Suspend,
            None => self.begin(cx),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let ticket = argument(cx, "ticket").unwrap_or_default();
            let sealed = cx.request().cookie(self.login.name.as_bytes());
            let login = sealed.and_then(|sealed| self.login.open::<Login>("cas login", sealed));
            let Some(login) = login.filter(|login| login.end > seconds(cx)) else {
                return cx.refuse(401, "invalid callback state");
            };
            match self.is_valid(cx, &ticket, io).await {
                Ok(true) => self.finish(cx, &ticket, &login),
                Ok(false) => cx.refuse(401, "invalid ticket"),
                Err(reason) => cx.fail(503, reason),
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
    String::from_utf8(decoded).ok().filter(|value| !value.is_empty() && value.len() <= TICKET)
}

/// The text between two others.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

impl LoggingIn {
    /// The ticket in the cookie of the session.
    fn ticket(&self, cx: &RequestCx<'_>) -> Option<String> {
        self.session.open::<String>("cas session", cx.request().cookie(self.session.name.as_bytes())?)
    }

    /// Sends the user to the server.
    fn begin(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut target = Vec::new();
        cx.request().write_request_uri(&mut target);
        let target = String::from_utf8(target).ok().filter(|target| target.len() <= TARGET);
        let login =
            Login { target: target.unwrap_or_else(|| "/".into()), end: seconds(cx).saturating_add(LOGIN_SECONDS) };
        let Some(sealed) = self.login.seal("cas login", &login) else {
            return cx.fail(500, "cas-auth: a cookie cannot be sealed");
        };
        let mut location = format!("{}/login?", self.base).into_bytes();
        let mut form = Vec::new();
        add_to_form(&mut form, "service", &self.callback.url(cx));
        location.extend_from_slice(&form);
        let mut cookies = vec![self.login.single(&sealed, "")];
        if cx.request().cookie(self.session.name.as_bytes()).is_some() {
            cookies.push(self.session.single("", "; Max-Age=0"));
        }
        super::moved(cx, &location, &cookies)
    }

    /// True if the server takes the ticket.
    async fn is_valid(&self, cx: &RequestCx<'_>, ticket: &str, io: &dyn Io) -> Result<bool, &'static str> {
        let mut target = self.service.target().to_vec();
        target.push(b'?');
        let mut form = Vec::new();
        add_to_form(&mut form, "ticket", ticket);
        add_to_form(&mut form, "service", &self.callback.url(cx));
        target.extend_from_slice(&form);
        let mut question = self.service.callout_to(Method::Get, &target);
        question.set_timeout(TIMEOUT);
        let answer = io.callout(question).await.map_err(CalloutError::reason)?;
        let text = std::str::from_utf8(answer.body()).ok().filter(|_| answer.status() == 200);
        let text = text.ok_or("cas-auth: the answer for a ticket is none of CAS")?;
        let good = between(text, "<cas:authenticationSuccess>", "</cas:authenticationSuccess>");
        let user = good.and_then(|good| between(good, "<cas:user>", "</cas:user>"));
        Ok(user.is_some_and(|user| !user.trim().is_empty()) && !text.contains("<cas:authenticationFailure"))
    }

    fn finish(&self, cx: &mut RequestCx<'_>, ticket: &str, login: &Login) -> Flow {
        if !self.sessions.begin(ticket, seconds(cx)) {
            return cx.fail(503, "cas-auth: no room for a session, or a ticket that was used before");
        }
        let Some(sealed) = self.session.seal("cas session", &ticket) else {
            return cx.fail(500, "cas-auth: a cookie cannot be sealed");
        };
        let cookies = [self.session.single(&sealed, ""), self.login.single("", "; Max-Age=0")];
        // Two slashes would be a host for browsers.
        let dot = if login.target.starts_with("//") { "/." } else { "" };
        super::moved(cx, format!("{dot}{}", login.target).as_bytes(), &cookies)
    }

    /// Ends the session of the user who asks for it.
    fn log_out(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(ticket) = self.ticket(cx) else { return cx.reply(401).done() };
        self.sessions.end(&ticket);
        let location = format!("{}/logout", self.base);
        super::moved(cx, location.as_bytes(), &[self.session.single("", "; Max-Age=0")])
    }

    /// Ends the session that the server names.
    fn single_logout(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(body) = cx.body() else { return Flow::AwaitBody };
        let text = String::from_utf8_lossy(body);
        let mut decoded = Vec::new();
        // Servers send it as a form, with the message in one field, or as it is.
        let message = match text.split('&').find_map(|field| field.strip_prefix("logoutRequest=")) {
            Some(value) => {
                query::decode(value.as_bytes(), &mut decoded);
                String::from_utf8_lossy(&decoded)
            }
            None => text,
        };
        let ticket =
            between(&message, "<samlp:SessionIndex>", "</samlp:SessionIndex>").map(|ticket| ticket.trim().to_owned());
        match ticket {
            Some(ticket) => {
                self.sessions.end(&ticket);
                cx.reply(200).done()
            }
            None => cx.refuse(400, "invalid logout request from IdP, no ticket"),
        }
    }
}
