//! Kong's `session`: callers are known by a cookie after the first request with credentials.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{
    CompileCx, Compiled, ConsumerMatch, ConsumerSet, Define, Flow, HookCx, Invalid, PerRequest, Phases, Plugin,
    RequestCx, ResponseCx,
};
use weir_wire::name::FieldName;

use super::consumer::Told;
use crate::auth::openid_connect::client::random_text;
use crate::auth::openid_connect::session::Cookies;
use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct Session;

/// Attribute `SameSite` of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum SameSite {
    Strict,
    Lax,
    None,
    Default,
}

/// Place of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Storage {
    Cookie,
    Kong,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Secret that cookies are encrypted with; without it one of the process.
    secret: Option<String>,
    /// Place of sessions: the cookies themselves.
    storage: Storage,
    /// Sessions of plugins with another text here are others.
    audience: String,
    /// Seconds without a request after which a session ends.
    #[schemars(range(min = 0))]
    idling_timeout: f64,
    /// Seconds after which a cookie is renewed at the latest.
    #[schemars(range(min = 0))]
    rolling_timeout: f64,
    /// Seconds after which a session ends; 0: none.
    #[schemars(range(min = 0))]
    absolute_timeout: f64,
    /// Seconds for which an old cookie of a stored session is taken; cookies hold their sessions here.
    #[serde(rename = "stale_ttl")]
    _stale_ttl: f64,
    /// Name of the cookie.
    cookie_name: String,
    /// Path under which browsers send it.
    cookie_path: String,
    /// Domain to whose hosts browsers send it.
    cookie_domain: Option<String>,
    /// Attribute that keeps the cookie from requests of other sites.
    cookie_same_site: SameSite,
    /// Keeps the cookie from scripts.
    cookie_http_only: bool,
    /// Sends the cookie over HTTPS alone.
    cookie_secure: bool,
    /// Sessions that outlive the browser; only false.
    remember: bool,
    /// Name of their cookie.
    #[serde(rename = "remember_cookie_name")]
    _remember_cookie_name: Option<String>,
    /// Seconds after which such a cookie is renewed.
    #[serde(rename = "remember_rolling_timeout")]
    _remember_rolling_timeout: Option<f64>,
    /// Seconds after which such a session ends.
    #[serde(rename = "remember_absolute_timeout")]
    _remember_absolute_timeout: Option<f64>,
    /// Fields of responses in Kong; only none.
    response_headers: Option<Vec<String>>,
    /// Fields of requests in Kong; only none.
    request_headers: Option<Vec<String>>,
    /// Methods of requests that may end a session.
    logout_methods: Vec<String>,
    /// Query argument that ends a session.
    logout_query_arg: String,
    /// Field of a form that ends a session.
    logout_post_arg: String,
    /// Looks for that field in bodies.
    read_body_for_logout: bool,
    /// Hides subjects in stored sessions; there are none.
    #[serde(rename = "hash_subject")]
    _hash_subject: bool,
    /// Stores what is known of sessions; only false.
    store_metadata: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            secret: None,
            storage: Storage::Cookie,
            audience: "default".into(),
            idling_timeout: 900.0,
            rolling_timeout: 3600.0,
            absolute_timeout: 86_400.0,
            _stale_ttl: 10.0,
            cookie_name: "session".into(),
            cookie_path: "/".into(),
            cookie_domain: None,
            cookie_same_site: SameSite::Strict,
            cookie_http_only: true,
            cookie_secure: true,
            remember: false,
            _remember_cookie_name: None,
            _remember_rolling_timeout: None,
            _remember_absolute_timeout: None,
            response_headers: None,
            request_headers: None,
            logout_methods: vec!["POST".into(), "DELETE".into()],
            logout_query_arg: "session_logout".into(),
            logout_post_arg: "session_logout".into(),
            read_body_for_logout: false,
            _hash_subject: false,
            store_metadata: false,
        }
    }
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let attribute = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b',');
        let domain = self.cookie_domain.as_deref().unwrap_or("a");
        [
            (self.storage == Storage::Kong, "storage", "expected cookie: sessions in a database are not supported"),
            (self.remember, "remember", "sessions that outlive the browser are not supported: expected false"),
            (self.store_metadata, "store_metadata", "not supported: expected false"),
            (self.read_body_for_logout, "read_body_for_logout", "not supported: log out with logout_query_arg"),
            (self.response_headers.is_some(), "response_headers", "not supported"),
            (self.request_headers.is_some(), "request_headers", "not supported"),
            (!crate::cookies::is_name(&self.cookie_name), "cookie_name", "expected the name of a cookie"),
            (!self.cookie_path.starts_with('/') || !attribute(&self.cookie_path), "cookie_path", "expected a path"),
            (domain.is_empty() || !attribute(domain), "cookie_domain", "expected a domain"),
        ]
        .into_iter()
        .filter(|(is_wrong, ..)| *is_wrong)
        .map(|(_, field, text)| Invalid::new(field, text))
        .collect()
    }

    fn attributes(&self) -> String {
        let mut text = format!("; Path={}", self.cookie_path);
        if let Some(domain) = &self.cookie_domain {
            text.push_str(&format!("; Domain={domain}"));
        }
        if self.cookie_http_only {
            text.push_str("; HttpOnly");
        }
        if self.cookie_same_site != SameSite::Default {
            text.push_str(&format!("; SameSite={:?}", self.cookie_same_site));
        }
        text
    }
}

impl Define for Session {
    const NAME: &'static str = "session";
    const PRIORITY: i32 = 1900;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Knows callers by a cookie, once another plugin has authenticated them.";
    const EXAMPLE: &'static str = "{secret: 'a secret of sessions', cookie_secure: false}\n";
    const ENCRYPTED: &'static [&'static str] = &["secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        if conf.secret.is_none() {
            cx.warn("secret", "without it sessions end with the process, and no other gateway knows them");
        }
        Some(Compiled::build(move |build| {
            let made_up = build.states.get_or_create(&format!("kong session secret {}", build.place), random_text);
            let secret = conf.secret.clone().map_or(made_up, Arc::new);
            let attributes = conf.attributes();
            let secure = Some(conf.cookie_secure);
            let cookies = Cookies::new(conf.cookie_name, &secret, &conf.audience, attributes, secure);
            Ok(Sessions {
                cookies: cookies.ok_or_else(|| Invalid::new("secret", "no key can be made of it"))?,
                idling: conf.idling_timeout as u64,
                rolling: conf.rolling_timeout as u64,
                absolute: conf.absolute_timeout as u64,
                logout_methods: conf.logout_methods,
                logout_argument: conf.logout_query_arg.into_bytes(),
                told: Told::new(),
                anonymous: FieldName::constant("X-Anonymous-Consumer"),
                set_cookie: FieldName::constant("Set-Cookie"),
                known: PerRequest::new(),
            })
        }))
    }
}

/// Content of a cookie. Times are seconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    consumer: String,
    credential: Option<String>,
    began: u64,
    /// The last time at which the cookie was made.
    made: u64,
}

/// An instance.
#[derive(Debug)]
struct Sessions {
    cookies: Cookies,
    /// Seconds; 0: none.
    idling: u64,
    rolling: u64,
    absolute: u64,
    logout_methods: Vec<String>,
    logout_argument: Vec<u8>,
    told: Told,
    anonymous: FieldName,
    set_cookie: FieldName,
    /// The session of a request.
    known: PerRequest<Kept>,
}

impl Plugin for Sessions {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let now = cx.unix_ms() / 1000;
        let Some(kept) = self.session(cx, now) else { return Flow::Continue };
        if self.logs_out(cx) {
            let cookie = self.cookies.single("", "; Max-Age=0");
            return cx.reply(200).field("Set-Cookie", cookie.as_bytes()).done();
        }
        // A consumer that is gone has no session any more.
        let found = cx.tables().and_then(|tables| tables.consumers.find(&kept.consumer));
        if let Some(consumer) = found {
            let credential = kept.credential.as_deref().unwrap_or_default().as_bytes().to_vec();
            self.told.authenticate(cx, ConsumerMatch { consumer, credential: None }, Some(&credential));
            self.known.put(cx, kept);
        }
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let now = cx.unix_ms() / 1000;
        let (view, is_anonymous) = (cx.view(), cx.request().field(&self.anonymous).is_some());
        let (Some(consumer), Some(who)) = (view.consumer(), view.caller()) else { return Flow::Continue };
        if is_anonymous {
            return Flow::Continue;
        }
        let name = &consumer.name.text;
        let kept = match self.known.get(cx).filter(|kept| *kept.consumer == **name) {
            Some(kept) if !self.is_due(kept, now) => return Flow::Continue,
            Some(kept) => Kept { made: now, ..kept.clone() },
            None => {
                let credential = view.tables().and_then(|tables| tables.consumers.credential(who));
                Kept { consumer: name.to_string(), credential: credential.map(str::to_owned), began: now, made: now }
            }
        };
        if let Some(value) = self.cookies.seal("kong session", &kept) {
            let cookie = self.cookies.single(&value, "");
            cx.add_field(&self.set_cookie, cookie.as_bytes());
        }
        Flow::Continue
    }
}

impl Sessions {
    /// The session of a request.
    fn session(&self, cx: &RequestCx<'_>, now: u64) -> Option<Kept> {
        let sealed = cx.request().cookie(self.cookies.name.as_bytes())?;
        let kept = self.cookies.open::<Kept>("kong session", sealed)?;
        let holds = |seconds: u64, since: u64| seconds == 0 || now.saturating_sub(since) < seconds;
        // A cookie is made anew long before either of its ends.
        let is_idle = !holds(self.idling, kept.made) || !holds(self.rolling, kept.made);
        (holds(self.absolute, kept.began) && !is_idle).then_some(kept)
    }

    /// True for a session whose cookie has to be made anew.
    fn is_due(&self, kept: &Kept, now: u64) -> bool {
        let shortest = [self.idling, self.rolling].into_iter().filter(|seconds| *seconds > 0).min();
        shortest.is_some_and(|seconds| now.saturating_sub(kept.made) >= (seconds / 4).min(60))
    }

    fn logs_out(&self, cx: &RequestCx<'_>) -> bool {
        let method = cx.request().method_bytes();
        let query = cx.request().query().unwrap_or_default();
        self.logout_methods.iter().any(|known| known.as_bytes() == method)
            && query::argument(query, &self.logout_argument).is_some()
    }
}
