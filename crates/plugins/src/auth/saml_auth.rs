//! `saml-auth`: users log in at an identity provider of SAML 2.0.

mod assertion;
mod messages;
mod signatures;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::method::Method;

use super::callback::Callback;
use super::openid_connect::client::random_text;
use super::openid_connect::provider::split_origin;
use super::openid_connect::session::Cookies;
use crate::query;
use assertion::Expected;
use messages::Kind;
use signatures::{Document, Keys, Message};

/// The definition.
#[derive(Debug)]
pub(crate) struct SamlAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The name of this service provider (entity ID), as the identity provider knows it.
    #[schemars(length(min = 1))]
    sp_issuer: String,
    /// The place of the identity provider to which users are sent, for logins and logouts.
    idp_uri: String,
    /// The certificate of the identity provider in PEM, with an RSA key: it signs all answers.
    idp_cert: String,
    /// Path to which the identity provider sends users back (assertion consumer service), or its whole URL. To a path the host
    /// of the request is added.
    login_callback_uri: String,
    /// Path of a GET that logs the user out, here and at the identity provider.
    #[schemars(regex(pattern = "^/"))]
    logout_uri: String,
    /// Path to which the identity provider sends users back after a logout, and at which it logs users out.
    #[schemars(regex(pattern = "^/"))]
    logout_callback_uri: String,
    /// The place to which users are sent after a logout.
    logout_redirect_uri: String,
    /// The certificate of this service provider in PEM: the identity provider checks requests with it.
    sp_cert: String,
    /// Its private RSA key in PEM, which signs requests.
    sp_private_key: String,
    /// The way of answers: `HTTP-Redirect`, in the query of a GET; `HTTP-POST`, in a form, for which cookies are sent from other
    /// sites as well (`SameSite=None`, `Secure`). Requests go by redirects in any case, as in APISIX.
    #[serde(default)]
    auth_protocol_binding_method: Binding,
    /// Secret that cookies are encrypted with.
    #[schemars(length(min = 8, max = 32))]
    secret: String,
    /// Former secrets, whose sessions go on.
    #[schemars(inner(length(min = 8, max = 32)))]
    secret_fallbacks: Option<Vec<String>>,
}

/// The way of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Binding {
    #[default]
    #[serde(rename = "HTTP-Redirect")]
    Redirect,
    #[serde(rename = "HTTP-POST")]
    Post,
}

impl Binding {
    fn name(self) -> &'static str {
        match self {
            Self::Redirect => "HTTP-Redirect",
            Self::Post => "HTTP-POST",
        }
    }
}

/// Seconds in which a user has to log in.
const LOGIN_SECONDS: u64 = 600;
/// Seconds for which a session lives, unless the identity provider says less.
const SESSION_SECONDS: u64 = 24 * 3600;
/// Longest target to which a user comes back; with a longer one it is `/`.
const TARGET: usize = 2000;
/// Longest value of a cookie; browsers take 4096 bytes with name and attributes.
const COOKIE: usize = 3800;

impl Define for SamlAuth {
    const NAME: &'static str = "saml-auth";
    const PRIORITY: i32 = 2598;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through of a user who has logged in at an identity provider of SAML 2.0 (Keycloak, Okta, Azure AD, …). A request \
without a session is sent to `idp_uri` with a signed request (302), the identity provider sends the user back with an assertion, \
and the gateway sends the user on to where the login began.

An answer is taken if `idp_cert` has signed it (RSA with SHA-256 or longer; SHA-1 is refused): the query of a redirect, or the \
message or its one assertion in a form. Its assertion has to be for this service provider (`AudienceRestriction`), this place \
(`Recipient`), this login (`InResponseTo`) and this time, with a minute for clocks that differ. Nothing outside of what is signed \
is read, and documents with a DTD are refused. Encrypted assertions are not supported, and refused.

Sessions are cookies (`saml_session`), encrypted with `secret`, for at most a day (`SessionNotOnOrAfter` may say less). A logout by \
the identity provider ends the session of the browser that it comes through.

| answer | |
|---|---|
| 302 | the user has to log in, or has, or is logged out |
| 400 | an answer that cannot be read, or a login that was not begun in this browser |
| 401 | an answer that is not signed, or not for this login; a logout without a session |
| 500, `saml authentication failed` | the identity provider says that the login has failed |

The upstream is told nothing of the user. No consumer is set.";
    const EXAMPLE: &'static str = "\
sp_issuer: https://shop.test/saml
idp_uri: https://idp.test/realms/shop/protocol/saml
idp_cert: |
  -----BEGIN CERTIFICATE-----
  MIIDBTCCAe2gAwIBAgIUV7HOkMqUf0gCUax4swDXCh1DrJwwDQYJKoZIhvcNAQEL
  BQAwETEPMA0GA1UEAwwGYS50ZXN0MCAXDTI2MTEyOTAyNDAzMloYDzIxMjYxMTA1
  MDI0MDMyWjARMQ8wDQYDVQQDDAZhLnRlc3QwggEiMA0GCSqGSIb3DQEBAQUAA4IB
  DwAwggEKAoIBAQDgbcKy2wTTXx96mGM+dK9JH/ooii2gUCZNKFq8uMLOTei3mfEq
  ZCQY1+x+s6F7b4DXqdggLYQ2dsiLB/FAJj7VPQixqrgRsWv3pBJrJBCy1lDEcYpi
  SjPXiq8t7YFXvPvtYplvA50iD5SY9FTCjvhfstWxiOvCerZs/wxz6flxwWVn13Cl
  nKJ/UTyjhCnE3DwVAzbSryH1wa4XqYx/eN69do5GhRGLUEEE6Xtk6pb+8fx6yBkl
  ylzmPaiEb92KicJxIiaI+Ut3Kqq+LsvJYV3OznPJwIB1cxxzEFd5EopJPR6F9sbM
  qGsfpSotPvF5w3ADGOtP6t1Huvaz9XUo1XdxAgMBAAGjUzBRMB0GA1UdDgQWBBTI
  OlORlCS5Y74rsT2r8UkD08f87DAfBgNVHSMEGDAWgBTIOlORlCS5Y74rsT2r8UkD
  08f87DAPBgNVHRMBAf8EBTADAQH/MA0GCSqGSIb3DQEBCwUAA4IBAQDSrbxnrIq7
  rJ3pBpJ0WkrNbviS9jdRZ2/rRs8cXRAQauHCahgtl1L/2BvXe/y0RxHuM6Dqc4F4
  cZ9Pb5l49x8wDG6Dr3HEayweGfHvlii9Mfyb1jjNp35z0VsO6tVAUSR8OQHsVM83
  KoZ63e7l/yFukDVCl9I48UHc23n1whDFDJi0bv2iBcwt4kklcExQeMBVZbMz1PNi
  Yg3AgwzeQk10tNTX64Nw7/HfPBCAcnaUXCyC/aloeAMl41BpTwA5LMpQ/xrfq+th
  BpmTYXQn2Py7xkZ+LfviEZ0zNR3QU3zEdnHoZyJa+RTMc/I+rLWtcfWazKsk87hh
  cb1FBOuUOdPN
  -----END CERTIFICATE-----
login_callback_uri: https://shop.test/saml/acs
logout_uri: /logout
logout_callback_uri: /saml/sls
logout_redirect_uri: /
sp_cert: |
  -----BEGIN CERTIFICATE-----
  MIIDBTCCAe2gAwIBAgIUV7HOkMqUf0gCUax4swDXCh1DrJwwDQYJKoZIhvcNAQEL
  BQAwETEPMA0GA1UEAwwGYS50ZXN0MCAXDTI2MTEyOTAyNDAzMloYDzIxMjYxMTA1
  MDI0MDMyWjARMQ8wDQYDVQQDDAZhLnRlc3QwggEiMA0GCSqGSIb3DQEBAQUAA4IB
  DwAwggEKAoIBAQDgbcKy2wTTXx96mGM+dK9JH/ooii2gUCZNKFq8uMLOTei3mfEq
  ZCQY1+x+s6F7b4DXqdggLYQ2dsiLB/FAJj7VPQixqrgRsWv3pBJrJBCy1lDEcYpi
  SjPXiq8t7YFXvPvtYplvA50iD5SY9FTCjvhfstWxiOvCerZs/wxz6flxwWVn13Cl
  nKJ/UTyjhCnE3DwVAzbSryH1wa4XqYx/eN69do5GhRGLUEEE6Xtk6pb+8fx6yBkl
  ylzmPaiEb92KicJxIiaI+Ut3Kqq+LsvJYV3OznPJwIB1cxxzEFd5EopJPR6F9sbM
  qGsfpSotPvF5w3ADGOtP6t1Huvaz9XUo1XdxAgMBAAGjUzBRMB0GA1UdDgQWBBTI
  OlORlCS5Y74rsT2r8UkD08f87DAfBgNVHSMEGDAWgBTIOlORlCS5Y74rsT2r8UkD
  08f87DAPBgNVHRMBAf8EBTADAQH/MA0GCSqGSIb3DQEBCwUAA4IBAQDSrbxnrIq7
  rJ3pBpJ0WkrNbviS9jdRZ2/rRs8cXRAQauHCahgtl1L/2BvXe/y0RxHuM6Dqc4F4
  cZ9Pb5l49x8wDG6Dr3HEayweGfHvlii9Mfyb1jjNp35z0VsO6tVAUSR8OQHsVM83
  KoZ63e7l/yFukDVCl9I48UHc23n1whDFDJi0bv2iBcwt4kklcExQeMBVZbMz1PNi
  Yg3AgwzeQk10tNTX64Nw7/HfPBCAcnaUXCyC/aloeAMl41BpTwA5LMpQ/xrfq+th
  BpmTYXQn2Py7xkZ+LfviEZ0zNR3QU3zEdnHoZyJa+RTMc/I+rLWtcfWazKsk87hh
  cb1FBOuUOdPN
  -----END CERTIFICATE-----
sp_private_key: |
  -----BEGIN PRIVATE KEY-----
  MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDgbcKy2wTTXx96
  mGM+dK9JH/ooii2gUCZNKFq8uMLOTei3mfEqZCQY1+x+s6F7b4DXqdggLYQ2dsiL
  B/FAJj7VPQixqrgRsWv3pBJrJBCy1lDEcYpiSjPXiq8t7YFXvPvtYplvA50iD5SY
  9FTCjvhfstWxiOvCerZs/wxz6flxwWVn13ClnKJ/UTyjhCnE3DwVAzbSryH1wa4X
  qYx/eN69do5GhRGLUEEE6Xtk6pb+8fx6yBklylzmPaiEb92KicJxIiaI+Ut3Kqq+
  LsvJYV3OznPJwIB1cxxzEFd5EopJPR6F9sbMqGsfpSotPvF5w3ADGOtP6t1Huvaz
  9XUo1XdxAgMBAAECggEAAkghZrC+/kBpRTWBjE3yxog9go4hl7+63PXWItUwz1jH
  zv6Q3vLG0m0XE6RzRcpQ3bh1iOG3lndrk2zKr1GYOdIpmYdUIONsNufHU2kp5YyT
  5IRoQRayq1xGys1vb0c9yziBeXlInqMYilvRFQuPs0bh4PDEv1zgqA/phi/svCMj
  q0DJ4jtnyvi/Mi3J718pHPD/FfnfH6W6IQoJ+2Vu6LAqKmpRo2lgFpK89M3kvLga
  osnHowKLhALi0QhttXkZreYWvicoteYWk2PgwO7F97Qgt9ULS3BBxLOcUY9ZnPKH
  pJLPoDEOBdaj1vp1e8CSRDAgBwu8Jb+pqfjz00+NYQKBgQDy3pc8cP/rcvWdLpXA
  AM0039NoiePiV4/D8QhhzZvN3gjGXjOX/fybMxK6Ekp7wSOZBXKLg33qEFXOdXIV
  lEjPHz2mbkqyZcFWzzvVq6aNkk4n47riLr+DfsXBckZVAdiTdz6kiNDQ1vYyW8Bl
  ARV91PQy/Ge94IJiA0XT2JXm4QKBgQDsj/FRRus6KDixInoyFzO/3+xkOwbn6oRQ
  9567u5K/zp2ZMinVScwxHQqiqou6SFxcDkehdAc75ZNknoqee09GjGeai6Cy7npp
  JR2Zz9JuqEgi/wO4dO4oOvWY3dbTyvnLu2/NjAb4MNkperGK4KI4fGsvy8mMw3qZ
  +BRMFk3ykQKBgAQ+QVQsATyi2Imze6hMG0m2M2JbLmEQ+JEK0AOtbPBu1aZplOst
  49DuVoBru2NoH3AX+UVYucVyHZ2qzaB048TCnfgfayysvHEA0+HKyvEkQjtOLkCv
  YmcwutHDZlkr3BXPeoezYDqV1t1QXw8ksrRtGQse/80AdCa0Oe8WlJ/hAoGBAKsh
  jl9PwIc35Zsu59soscUShn4TvXE0VDgGigwhK44aOCRFB8JGOrMk4Ta/zYkbI8Vs
  hyEjQMBx2eimUH1JkxXkKGbCr6QBpQg/U2Sb1Q08K8M1XEmqPUdZL6ZAhVJ9uatK
  kxzNOZV+MPsyyRFAY9odF6Vh9RIhr6WGs5g/YnAhAoGAW/+bdNm+Ss0bMql82f4z
  M9jdl9vqpLC4zrdKz22bQoAbH3Ajy6sFYwNp46Mj6dDiF22MUaQ5qZ97zlhip+tV
  70w2MJWVgAHZsk9ON8KKGPvqQe4KU7vxwA/OjEmnQn6awzlI6Tcqc2ooBcrKwGXV
  uoOxbPrKcZzYak8648qF+Gc=
  -----END PRIVATE KEY-----
secret: a secret of cookies
";
    const ENCRYPTED: &'static [&'static str] = &["sp_private_key", "secret", "secret_fallbacks.*"];
    const PRIVATE_KEYS: &'static [&'static str] = &["sp_private_key"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let callback = cx.ok(Callback::new("login_callback_uri", &conf.login_callback_uri));
        if split_origin(&conf.idp_uri).is_none() || conf.idp_uri.contains('#') || !is_plain(&conf.idp_uri) {
            cx.say([Invalid::new("idp_uri", "expected http://HOST/PATH or https://HOST/PATH")]);
            return None;
        }
        if !is_plain(&conf.logout_redirect_uri) {
            cx.say([Invalid::new("logout_redirect_uri", "expected a URL or a path")]);
            return None;
        }
        if callback.as_ref().is_some_and(|callback| callback.whole.is_none()) {
            cx.warn(
                "login_callback_uri",
                "a path alone lets the Host of a request say where the answer goes: better a whole URL",
            );
        }
        let keys = cx.ok(Keys::new(&conf.idp_cert, &conf.sp_cert, &conf.sp_private_key));
        let (callback, keys) = (callback?, keys?);
        let same_site = match conf.auth_protocol_binding_method {
            Binding::Redirect => "Lax",
            Binding::Post => "None",
        };
        // Over HTTP alone browsers would not keep a cookie that other sites send.
        let secure = Some(conf.auth_protocol_binding_method == Binding::Post);
        let attributes = format!("; Path=/; HttpOnly; SameSite={same_site}");
        let client = format!("saml-auth {} {}", conf.idp_uri, conf.sp_issuer);
        let cookies = |name: &str, field: &str, secret: &str| {
            let secret = Arc::new(secret.to_owned());
            let made = Cookies::new(name.to_owned(), &secret, &client, attributes.clone(), secure);
            made.ok_or_else(|| Invalid::new(field, "no key can be made of it"))
        };
        let former = conf.secret_fallbacks.iter().flatten().enumerate();
        let former = former.map(|(at, secret)| cookies("saml_session", &format!("secret_fallbacks[{at}]"), secret));
        let session = cx.ok(cookies("saml_session", "secret", &conf.secret));
        let login = cx.ok(cookies("saml_login", "secret", &conf.secret));
        let former = cx.ok(former.collect::<Result<Box<[_]>, _>>());
        Some(Compiled::ready(LoggingIn {
            session: session?,
            former: former?,
            login: login?,
            keys,
            callback,
            issuer: conf.sp_issuer,
            idp: conf.idp_uri,
            binding: conf.auth_protocol_binding_method,
            logout: conf.logout_uri.into_bytes(),
            logout_callback: conf.logout_callback_uri.into_bytes(),
            after_logout: conf.logout_redirect_uri,
        }))
    }
}

fn is_plain(uri: &str) -> bool {
    !uri.is_empty() && uri.bytes().all(|b| b.is_ascii_graphic())
}

/// A login on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Login {
    /// The text that comes back as `RelayState`.
    state: String,
    /// The ID of the request.
    request: String,
    /// Path and query that the user asked for.
    target: String,
    /// End, in seconds since 1970.
    end: u64,
}

/// A user who has logged in.
#[derive(Debug, Serialize, Deserialize)]
struct Session {
    name_id: String,
    /// The session at the identity provider.
    index: Option<String>,
    /// End, in seconds since 1970.
    end: u64,
}

/// An instance.
#[derive(Debug)]
struct LoggingIn {
    session: Cookies,
    /// Cookies under former secrets.
    former: Box<[Cookies]>,
    login: Cookies,
    keys: Keys,
    callback: Callback,
    /// The name of this service provider.
    issuer: String,
    /// The place of the identity provider.
    idp: String,
    binding: Binding,
    logout: Vec<u8>,
    logout_callback: Vec<u8>,
    after_logout: String,
}

impl Plugin for LoggingIn {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let path = cx.request().path();
        if path == self.callback.path {
            return self.take_answer(cx);
        }
        if path == self.logout {
            return self.log_out(cx);
        }
        if path == self.logout_callback {
            return self.take_logout(cx);
        }
        if self.user(cx).is_some() { Flow::Continue } else { self.begin(cx) }
    }
}

fn seconds(cx: &RequestCx<'_>) -> u64 {
    cx.unix_ms() / 1000
}

/// An ID, which begins with a letter (xs:ID).
fn new_id() -> String {
    format!("ID_{}", random_text())
}

impl LoggingIn {
    fn user(&self, cx: &RequestCx<'_>) -> Option<Session> {
        let sealed = cx.request().cookie(self.session.name.as_bytes())?;
        let cookies = std::iter::once(&self.session).chain(&self.former);
        let session = { cookies }.find_map(|cookies| cookies.open::<Session>("saml session", sealed))?;
        (session.end > seconds(cx)).then_some(session)
    }

    /// Sends the user to the identity provider.
    fn begin(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut target = Vec::new();
        cx.request().write_request_uri(&mut target);
        let target = String::from_utf8(target).ok().filter(|target| target.len() <= TARGET);
        let login = Login {
            state: random_text(),
            request: new_id(),
            target: target.unwrap_or_else(|| "/".into()),
            end: seconds(cx).saturating_add(LOGIN_SECONDS),
        };
        let request = messages::authn_request(
            &messages::Head { id: &login.request, now: seconds(cx), destination: &self.idp, issuer: &self.issuer },
            &self.callback.url(cx),
            self.binding.name(),
        );
        let Some(sealed) = self.login.seal("saml login", &login) else {
            return cx.fail(500, "saml-auth: a cookie cannot be sealed");
        };
        let cookies = [self.login.single(&sealed, "")];
        self.send(cx, Kind::Request, &request, Some(&login.state), &cookies)
    }

    /// Sends the user to the identity provider with a signed message.
    fn send(&self, cx: &mut RequestCx<'_>, kind: Kind, message: &str, state: Option<&str>, cookies: &[String]) -> Flow {
        let Some(query) = self.keys.signed_query(kind, message, state) else {
            return cx.fail(500, "saml-auth: a message cannot be signed");
        };
        let between = if self.idp.contains('?') { '&' } else { '?' };
        super::moved(cx, format!("{}{between}{query}", self.idp).as_bytes(), cookies)
    }

    /// The message of a request, with the text that was sent with it.
    ///
    /// # Errors
    /// The continuation without it.
    fn message(&self, cx: &mut RequestCx<'_>, kinds: &[Kind]) -> Result<(Message, Option<String>), Flow> {
        let fields = match cx.request().method() {
            Method::Get => cx.request().query().unwrap_or_default().to_vec(),
            Method::Post => match cx.body() {
                None => return Err(Flow::AwaitBody),
                Some(body) => body.to_vec(),
            },
            _ => return Err(cx.refuse(405, "expected GET or POST")),
        };
        let by_query = cx.request().method() == Method::Get;
        let value = |name: &str| {
            let mut decoded = Vec::new();
            query::decode(query::argument(&fields, name.as_bytes())?, &mut decoded);
            String::from_utf8(decoded).ok()
        };
        let found = kinds.iter().find_map(|kind| Some((*kind, value(kind.name())?)));
        let Some((kind, text)) = found else { return Err(cx.refuse(400, "no message of SAML")) };
        let read = match by_query {
            true => self.keys.of_query(kind, &text, &fields),
            false => Keys::of_form(&text),
        };
        read.map(|message| (message, value("RelayState"))).map_err(|reason| {
            tracing::warn!(reason, "saml-auth: a message cannot be taken");
            cx.refuse(if reason == signatures::NOT_SIGNED { 401 } else { 400 }, "invalid message of SAML")
        })
    }

    /// Takes the answer to a login.
    fn take_answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let (message, state) = match self.message(cx, &[Kind::Response]) {
            Ok(message) => message,
            Err(flow) => return flow,
        };
        let sealed = cx.request().cookie(self.login.name.as_bytes());
        let login = sealed.and_then(|sealed| self.login.open::<Login>("saml login", sealed));
        let Some(login) = login.filter(|login| login.end > seconds(cx)) else {
            return cx.refuse(400, "the login was not begun in this browser, or took too long");
        };
        if state.as_deref() != Some(login.state.as_str()) {
            return cx.refuse(401, "invalid state");
        }
        let place = self.callback.url(cx);
        let expected = Expected { place: &place, request: &login.request, audience: &self.issuer, now: seconds(cx) };
        let read = Document::read(&message).and_then(|document| {
            let root = document.root("Response")?;
            if !assertion::has_succeeded(&document, root) {
                return Ok(None);
            }
            let signed = self.keys.signed_assertion(&document, root)?;
            assertion::identity(&document, root, signed, &expected).map(Some)
        });
        let identity = match read {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                tracing::warn!("saml-auth: the identity provider says that a login has failed");
                return cx.refuse(500, "saml authentication failed");
            }
            Err(reason) => {
                tracing::warn!(reason, "saml-auth: an answer is refused");
                return cx.refuse(401, "invalid answer of the identity provider");
            }
        };
        let end = seconds(cx).saturating_add(SESSION_SECONDS).min(identity.end.unwrap_or(u64::MAX));
        let session = Session { name_id: identity.name_id, index: identity.session_index, end };
        let sealed = self.session.seal("saml session", &session).filter(|sealed| sealed.len() <= COOKIE);
        let Some(sealed) = sealed else { return cx.fail(500, "saml-auth: a session does not fit into a cookie") };
        let cookies = [self.session.single(&sealed, ""), self.login.single("", "; Max-Age=0")];
        // Two slashes would be a host for browsers.
        let dot = if login.target.starts_with("//") { "/." } else { "" };
        super::moved(cx, format!("{dot}{}", login.target).as_bytes(), &cookies)
    }

    /// Asks the identity provider to end the session.
    fn log_out(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(session) = self.user(cx) else { return cx.reply(401).done() };
        let id = new_id();
        let head = messages::Head { id: &id, now: seconds(cx), destination: &self.idp, issuer: &self.issuer };
        let request = messages::logout_request(&head, &session.name_id, session.index.as_deref());
        self.send(cx, Kind::Request, &request, None, &[])
    }

    /// Ends the session: the identity provider has answered, or asks for it.
    fn take_logout(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(session) = self.user(cx) else { return cx.reply(401).done() };
        let (message, state) = match self.message(cx, &[Kind::Response, Kind::Request]) {
            Ok(message) => message,
            Err(flow) => return flow,
        };
        let ended = [self.session.single("", "; Max-Age=0")];
        let read = Document::read(&message).and_then(|document| {
            if let Ok(root) = document.root("LogoutResponse") {
                self.keys.check_whole(&document, root)?;
                return Ok(assertion::has_succeeded(&document, root).then_some(None));
            }
            let root = document.root("LogoutRequest")?;
            self.keys.check_whole(&document, root)?;
            assertion::logout(&document, root, &session.name_id, seconds(cx)).map(|id| Some(Some(id)))
        });
        match read {
            Ok(Some(None)) => super::moved(cx, self.after_logout.as_bytes(), &ended),
            Ok(None) => cx.refuse(500, "saml logout failed"),
            Ok(Some(Some(request))) => {
                let id = new_id();
                let head = messages::Head { id: &id, now: seconds(cx), destination: &self.idp, issuer: &self.issuer };
                let answer = messages::logout_response(&head, &request);
                self.send(cx, Kind::Response, &answer, state.as_deref(), &ended)
            }
            Err(reason) => {
                tracing::warn!(reason, "saml-auth: a logout is refused");
                cx.refuse(401, "invalid logout message")
            }
        }
    }
}
