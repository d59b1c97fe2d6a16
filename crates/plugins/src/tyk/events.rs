//! Events of an API (`event_handlers`): requests that are refused and breakers that open and close are told to web hooks, to
//! scripts and to the log.

pub(super) mod monitor;
pub(super) mod nodes;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aws_lc_rs::digest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_javascript::Entry;
use weir_plugin::{BuildCx, CompileCx, Invalid, RequestCx};

use super::fetch::Fetch;
use super::paths::breaker;
use super::scripts::{Runner, ScriptConf, Scripts};
use super::sessions::remote;
use super::template::Template;

/// Handlers of events.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Id of the API, which scripts are told.
    api_id: String,
    /// Its organisation.
    org_id: String,
    /// Handlers by the names of events.
    handlers: BTreeMap<String, Vec<HandlerConf>>,
    /// Seconds that a call of a script may take (`jsvm_timeout`); 0: 5.
    timeout: u32,
    /// The Redis of sessions, which scripts read.
    storage: remote::Conf,
}

/// A handler.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct HandlerConf {
    /// `eh_web_hook_handler`, `eh_log_handler` or `eh_dynamic_handler`.
    handler_name: String,
    handler_meta: MetaConf,
}

/// Settings of a handler.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct MetaConf {
    /// The method; empty: POST.
    method: String,
    /// The URL of a web hook.
    target_path: String,
    /// Headers of its requests.
    header_map: BTreeMap<String, String>,
    /// Seconds for which the same event is not sent again.
    event_timeout: u64,
    /// The text of the template of its bodies; empty: the default one.
    template_text: String,
    /// Text in front of a line in the log.
    prefix: String,
    /// Global name of a handler in JavaScript.
    script_name: String,
    /// Path of its script.
    script_path: String,
    /// The text of the script.
    script_text: String,
}

/// An event: a refusal of a request, a change of a breaker or of a target, or one of a key by the gateway API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    AuthFailure,
    KeyExpired,
    VersionFailure,
    RateLimitExceeded,
    QuotaExceeded,
    OrgRateLimitExceeded,
    OrgQuotaExceeded,
    /// A breaker has opened or closed.
    BreakerTriggered,
    /// A breaker has opened.
    BreakerTripped,
    /// A breaker has closed.
    BreakerReset,
    /// A target has failed its uptime tests.
    HostDown,
    /// A target has passed them again.
    HostUp,
    TokenCreated,
    TokenUpdated,
    TokenDeleted,
}

impl Event {
    /// Every event that is sent.
    const ALL: [Self; 15] = [
        Self::AuthFailure,
        Self::KeyExpired,
        Self::VersionFailure,
        Self::RateLimitExceeded,
        Self::QuotaExceeded,
        Self::OrgRateLimitExceeded,
        Self::OrgQuotaExceeded,
        Self::BreakerTriggered,
        Self::BreakerTripped,
        Self::BreakerReset,
        Self::HostDown,
        Self::HostUp,
        Self::TokenCreated,
        Self::TokenUpdated,
        Self::TokenDeleted,
    ];

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::AuthFailure => "AuthFailure",
            Self::KeyExpired => "KeyExpired",
            Self::VersionFailure => "VersionFailure",
            Self::RateLimitExceeded => "RatelimitExceeded",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::OrgRateLimitExceeded => "OrgRateLimitExceeded",
            Self::OrgQuotaExceeded => "OrgQuotaExceeded",
            Self::BreakerTriggered => "BreakerTriggered",
            Self::BreakerTripped => "BreakerTripped",
            Self::BreakerReset => "BreakerReset",
            Self::HostDown => "HostDown",
            Self::HostUp => "HostUp",
            Self::TokenCreated => "TokenCreated",
            Self::TokenUpdated => "TokenUpdated",
            Self::TokenDeleted => "TokenDeleted",
        }
    }

    /// Tyk's words for it; a breaker that has triggered has those of what it did.
    fn message(self) -> &'static str {
        match self {
            Self::AuthFailure => "Auth Failure",
            Self::KeyExpired => "Attempted access from inactive key.",
            Self::VersionFailure => "Attempted access to disallowed version / path.",
            Self::RateLimitExceeded => "Key Rate Limit Exceeded",
            Self::QuotaExceeded => "Key Quota Limit Exceeded",
            Self::OrgRateLimitExceeded => "Organisation rate limit has been exceeded",
            Self::OrgQuotaExceeded => "Organisation quota has been exceeded",
            Self::BreakerTriggered | Self::BreakerTripped => "Breaker Tripped",
            Self::BreakerReset => "Breaker Reset",
            Self::HostDown => "Uptime test failed",
            Self::HostUp => "Uptime test succeeded",
            Self::TokenCreated | Self::TokenUpdated => "Key modified.",
            Self::TokenDeleted => "Key deleted.",
        }
    }
}

/// The plugin that sends an event of this name; `None` for one that is not sent.
#[must_use]
pub fn sender(name: &str) -> Option<&'static str> {
    Event::of_name(name).map(|event| match event {
        Event::BreakerTriggered | Event::BreakerTripped | Event::BreakerReset => "paths",
        Event::HostDown | Event::HostUp => "paths",
        Event::TokenCreated | Event::TokenUpdated | Event::TokenDeleted => "gateway",
        _ => "api",
    })
}

/// Web hooks and scripts that are under way at one time, over all APIs.
const MOST_UNDER_WAY: usize = 64;
/// Events that are remembered so that they are not sent again.
const MOST_REMEMBERED: usize = 1024;
/// Longest time of a web hook.
const LIMIT: Duration = Duration::from_secs(30);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
enum Handler {
    Log(String),
    Hook(Box<Hook>),
    /// The global name of a handler in JavaScript.
    Script(String),
}

#[derive(Debug)]
struct Hook {
    method: String,
    url: String,
    headers: BTreeMap<String, String>,
    /// Milliseconds.
    quiet: u64,
    template: Option<Template>,
    /// Digests of bodies, with the time until which they are not sent again.
    sent: papaya::HashMap<[u8; 32], u64>,
}

/// The handlers of an API.
#[derive(Default)]
pub(super) struct Events {
    handlers: Vec<(Event, Handler)>,
    fetch: Option<Arc<Fetch>>,
    /// The scripts, until they are built.
    scripts: Option<(Scripts, remote::Conf)>,
    runner: Option<Arc<Runner>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("handlers", &self.handlers).finish_non_exhaustive()
    }
}

impl Events {
    pub(super) fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Self> {
        let (mut handlers, mut scripts, mut names) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (name, list) in conf.handlers {
            // Others are told where the configuration is read.
            let Some(event) = Event::of_name(&name) else { continue };
            for (at, handler) in list.into_iter().enumerate() {
                let field = format!("events.handlers.{name}[{at}]");
                let meta = handler.handler_meta;
                let compiled = match handler.handler_name.as_str() {
                    "eh_log_handler" => Handler::Log(meta.prefix),
                    "eh_web_hook_handler" => {
                        Handler::Hook(Box::new(cx.ok(Hook::compile(meta, &field, "handler_meta"))?))
                    }
                    "eh_dynamic_handler" => {
                        scripts.insert(meta.script_path, meta.script_text);
                        names.push(meta.script_name.clone());
                        Handler::Script(meta.script_name)
                    }
                    other => {
                        let expected = "expected one of: eh_web_hook_handler, eh_log_handler, eh_dynamic_handler";
                        cx.say([Invalid::new(format!("{field}.handler_name"), format!("{expected}; found '{other}'"))]);
                        return None;
                    }
                };
                handlers.push((event, compiled));
            }
        }
        let mut made = Self { handlers, ..Self::default() };
        if !names.is_empty() {
            let scripts = scripts.into_iter().map(|(path, text)| ScriptConf { path, text }).collect();
            let api = (&*conf.api_id, &*conf.org_id, &Map::new());
            let compiled = cx.ok(Scripts::new(scripts, (Entry::Event, &names), conf.timeout, api))?;
            made.scripts = Some((compiled, conf.storage));
        }
        Some(made)
    }

    /// # Errors
    /// The Redis of sessions is told wrongly.
    pub(super) fn build(mut self, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        self.fetch = (!self.handlers.is_empty()).then(|| Arc::new(Fetch::new(build.network)));
        if let Some((scripts, storage)) = self.scripts.take() {
            self.runner = Some(Arc::new(scripts.build(&storage, build)?));
        }
        Ok(self)
    }

    /// True if somebody is told such an event.
    pub(super) fn hears(&self, event: Event) -> bool {
        self.handlers.iter().any(|(of, _)| *of == event)
    }

    /// Tells an event of a request beside it. `key` is the name of the caller's session.
    pub(super) fn tell(&self, event: Event, cx: &RequestCx<'_>, key: &str) {
        if !self.hears(event) {
            return;
        }
        let path = String::from_utf8_lossy(cx.request().path());
        let origin = cx.client().addr.to_string();
        self.send(
            event,
            &json!({ "Message": event.message(), "Path": path, "Origin": origin, "Key": key }),
            cx.now_ms(),
        );
    }

    /// Tells that the breaker of a path of an API has opened or closed, at a time in milliseconds.
    pub(super) fn tell_breaker(&self, change: breaker::Change, (api, path): (&str, &str), now_ms: u64) {
        let (event, number) = match change {
            breaker::Change::Opened => (Event::BreakerTripped, 0),
            breaker::Change::Closed => (Event::BreakerReset, 1),
        };
        for of in [Event::BreakerTriggered, event] {
            if self.hears(of) {
                let meta = json!({ "Message": event.message(), "Path": path, "APIID": api, "CircuitEvent": number });
                self.send(of, &meta, now_ms);
            }
        }
    }

    /// Tells what a request at this path of the gateway API has done with a key, by the answer to it.
    pub(super) fn tell_key(&self, path: &str, org: &str, answer: &[u8], now_ms: u64) {
        if self.handlers.is_empty() {
            return;
        }
        let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return };
        let event = match answer["action"].as_str() {
            Some("added") => Event::TokenCreated,
            Some("modified") => Event::TokenUpdated,
            Some("deleted") => Event::TokenDeleted,
            _ => return,
        };
        let text = if path == "keys/create" { "Key generated." } else { event.message() };
        self.send(event, &json!({ "Message": text, "Org": org, "Key": answer["key"] }), now_ms);
    }

    fn send(&self, event: Event, meta: &Value, now_ms: u64) {
        for (_, handler) in self.handlers.iter().filter(|(of, _)| *of == event) {
            let of = |field: &str| meta[field].as_str().unwrap_or_default();
            match handler {
                Handler::Log(prefix) => {
                    let (path, origin, key, api_id) = (of("Path"), of("Origin"), of("Key"), of("APIID"));
                    let host = meta["HostInfo"]["CheckURL"].as_str().unwrap_or_default();
                    tracing::warn!(event = event.name(), prefix, path, origin, key, api_id, host, "{}", of("Message"));
                }
                Handler::Hook(hook) => {
                    if let (Some(request), Some(fetch)) = (hook.request(event.name(), meta, now_ms), &self.fetch) {
                        send(Arc::clone(fetch), request);
                    }
                }
                Handler::Script(name) => {
                    let Some(runner) = self.runner.clone() else { continue };
                    let (name, told) = (name.clone(), message(event.name(), meta));
                    beside(async move {
                        if let Err(reason) = runner.run(&name, &told, &Value::Null).await {
                            tracing::warn!(handler = %name, %reason, "the handler of an event failed");
                        }
                    });
                }
            }
        }
    }
}

/// An event as templates and scripts see it.
fn message(event: &str, meta: &Value) -> Value {
    json!({ "Type": event, "Meta": meta, "TimeStamp": jiff::Timestamp::now().to_string() })
}

/// The body of a web hook without a template, which is that of Tyk's `default_webhook.json`.
fn default_body(event: &str, meta: &Value) -> Value {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut body = json!({ "event": event, "message": meta["Message"] });
    let fields: &[(&str, &str)] = match event {
        "TriggerExceeded" => &[("org", "OrgID"), ("key", "Key"), ("trigger_limit", "TriggerLimit")],
        "BreakerTriggered" => &[("api_id", "APIID"), ("path", "Path"), ("Status", "CircuitEvent")],
        "HostDown" | "HostUp" => {
            let host = &meta["HostInfo"];
            for (name, value) in [
                ("url", &host["CheckURL"]),
                ("response_code", &host["ResponseCode"]),
                ("tcp_error", &host["IsTCPError"]),
                ("host", &host["MetaData"]["host_name"]),
                ("api_id", &host["MetaData"]["api_id"]),
            ] {
                body[name] = text(value).into();
            }
            &[]
        }
        "BreakerTripped" | "BreakerReset" => &[("api_id", "APIID"), ("path", "Path")],
        "TokenCreated" | "TokenUpdated" | "TokenDeleted" => &[("org", "Org"), ("key", "Key")],
        _ => &[("path", "Path"), ("origin", "Origin"), ("key", "Key")],
    };
    for (name, field) in fields {
        body[*name] = text(&meta[*field]).into();
    }
    body
}

/// Sends a request beside all others, if there are not too many.
pub(super) fn send(fetch: Arc<Fetch>, request: String) {
    beside(async move {
        // A failure is told by whoever asks.
        let _ = weir_runtime::timeout(LIMIT, fetch.answer(&request)).await;
    });
}

/// Does something beside all requests, if not too much is under way.
fn beside(work: impl Future<Output = ()> + 'static) {
    struct Slot;
    impl Drop for Slot {
        fn drop(&mut self) {
            UNDER_WAY.fetch_sub(1, Relaxed);
        }
    }
    if UNDER_WAY.fetch_add(1, Relaxed) >= MOST_UNDER_WAY {
        UNDER_WAY.fetch_sub(1, Relaxed);
        tracing::warn!("an event is not told: too many web hooks and scripts are under way");
        return;
    }
    let slot = Slot;
    weir_runtime::spawn(async move {
        work.await;
        drop(slot);
    });
}

impl Hook {
    /// `at` is the place of the settings, and `name` their name there.
    fn compile(conf: MetaConf, at: &str, name: &str) -> Result<Self, Invalid> {
        let field = format!("{at}.{name}");
        let is_url = conf.target_path.starts_with("http://") || conf.target_path.starts_with("https://");
        if !is_url {
            let text = format!("expected a URL such as http://example.com/hook, found '{}'", conf.target_path);
            return Err(Invalid::new(format!("{field}.target_path"), text));
        }
        let template = Some(conf.template_text).filter(|text| !text.is_empty());
        let template = template.map(|text| Template::parse(&text)).transpose();
        Ok(Self {
            method: if conf.method.is_empty() { "POST".to_owned() } else { conf.method },
            url: conf.target_path,
            headers: conf.header_map,
            quiet: conf.event_timeout.saturating_mul(1000),
            template: template.map_err(|error| Invalid::new(format!("{field}.template_path"), error))?,
            sent: papaya::HashMap::new(),
        })
    }

    /// The request that tells an event; `None` for one that was told a moment ago.
    fn request(&self, event: &str, meta: &Value, now_ms: u64) -> Option<String> {
        let body = match &self.template {
            None => default_body(event, meta).to_string(),
            Some(template) => match template.run(&message(event, meta)) {
                Ok(body) => body,
                Err(error) => {
                    tracing::warn!(%error, "an event is not sent: its template failed");
                    return None;
                }
            },
        };
        if self.quiet > 0 && !self.is_news(&body, now_ms) {
            return None;
        }
        let mut headers = self.headers.clone();
        headers.entry("Content-Type".to_owned()).or_insert_with(|| "application/json".to_owned());
        Some(json!({ "Method": self.method, "Domain": self.url, "Headers": headers, "Body": body }).to_string())
    }

    fn is_news(&self, body: &str, now_ms: u64) -> bool {
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, body.as_bytes()).as_ref());
        let sent = self.sent.pin();
        if sent.get(&key).is_some_and(|until| now_ms < *until) {
            return false;
        }
        if sent.len() >= MOST_REMEMBERED {
            sent.clear();
        }
        sent.insert(key, now_ms + self.quiet);
        true
    }
}
