//! Events of an API (`event_handlers`): requests that are refused are told to web hooks and to the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aws_lc_rs::digest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{BuildCx, Invalid, RequestCx};

use super::fetch::Fetch;
use super::template::Template;

/// Handlers by the names of events.
pub(super) type Conf = BTreeMap<String, Vec<HandlerConf>>;

/// A handler.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct HandlerConf {
    /// `eh_web_hook_handler` or `eh_log_handler`.
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
}

/// An event that a refusal of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    AuthFailure,
    KeyExpired,
    VersionFailure,
    RateLimitExceeded,
    QuotaExceeded,
}

impl Event {
    /// Every event that is sent.
    const ALL: [Self; 5] =
        [Self::AuthFailure, Self::KeyExpired, Self::VersionFailure, Self::RateLimitExceeded, Self::QuotaExceeded];

    fn name(self) -> &'static str {
        match self {
            Self::AuthFailure => "AuthFailure",
            Self::KeyExpired => "KeyExpired",
            Self::VersionFailure => "VersionFailure",
            Self::RateLimitExceeded => "RatelimitExceeded",
            Self::QuotaExceeded => "QuotaExceeded",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::AuthFailure => "Auth Failure",
            Self::KeyExpired => "Attempted access from inactive key.",
            Self::VersionFailure => "Attempted access to disallowed version / path.",
            Self::RateLimitExceeded => "Key Rate Limit Exceeded",
            Self::QuotaExceeded => "Key Quota Limit Exceeded",
        }
    }
}

/// True for the name of an event that is sent.
#[must_use]
pub fn is_sent(name: &str) -> bool {
    Event::ALL.iter().any(|event| event.name() == name)
}

/// Web hooks that are under way at one time, over all APIs.
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
#[derive(Debug, Default)]
pub(super) struct Events {
    handlers: Vec<(Event, Handler)>,
    fetch: Option<Arc<Fetch>>,
}

impl Events {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let mut handlers = Vec::new();
        for (name, list) in conf {
            // Others are told where the configuration is read.
            let Some(event) = Event::ALL.into_iter().find(|event| event.name() == name) else { continue };
            for (at, handler) in list.into_iter().enumerate() {
                let field = format!("events.{name}[{at}]");
                let meta = handler.handler_meta;
                let compiled = match handler.handler_name.as_str() {
                    "eh_log_handler" => Handler::Log(meta.prefix),
                    "eh_web_hook_handler" => Handler::Hook(Box::new(Hook::compile(meta, &field)?)),
                    other => {
                        let text = format!("expected one of: eh_web_hook_handler, eh_log_handler; found '{other}'");
                        return Err(Invalid::new(format!("{field}.handler_name"), text));
                    }
                };
                handlers.push((event, compiled));
            }
        }
        Ok(Self { handlers, fetch: None })
    }

    pub(super) fn build(self, build: &BuildCx<'_>) -> Self {
        let fetch = (!self.handlers.is_empty()).then(|| Arc::new(Fetch::new(build.network)));
        Self { fetch, ..self }
    }

    /// Tells an event of a request beside it. `key` is the name of the caller's session.
    pub(super) fn tell(&self, event: Event, cx: &RequestCx<'_>, key: &str) {
        for (_, handler) in self.handlers.iter().filter(|(of, _)| *of == event) {
            let path = String::from_utf8_lossy(cx.request().path()).into_owned();
            let origin = cx.client().addr.to_string();
            match handler {
                Handler::Log(prefix) => {
                    tracing::warn!(event = event.name(), prefix, path, origin, key, "{}", event.message());
                }
                Handler::Hook(hook) => {
                    let meta = json!({ "Message": event.message(), "Path": path, "Origin": origin, "Key": key });
                    if let (Some(request), Some(fetch)) = (hook.request(event, &meta, cx), &self.fetch) {
                        send(Arc::clone(fetch), request);
                    }
                }
            }
        }
    }
}

/// Sends a request beside all others, if there are not too many.
pub(super) fn send(fetch: Arc<Fetch>, request: String) {
    struct Slot;
    impl Drop for Slot {
        fn drop(&mut self) {
            UNDER_WAY.fetch_sub(1, Relaxed);
        }
    }
    if UNDER_WAY.fetch_add(1, Relaxed) >= MOST_UNDER_WAY {
        UNDER_WAY.fetch_sub(1, Relaxed);
        tracing::warn!("an event is not sent: too many requests to web hooks are under way");
        return;
    }
    let slot = Slot;
    weir_runtime::spawn(async move {
        // A failure is told by whoever asks.
        let _ = weir_runtime::timeout(LIMIT, fetch.answer(&request)).await;
        drop(slot);
    });
}

impl Hook {
    fn compile(conf: MetaConf, field: &str) -> Result<Self, Invalid> {
        let is_url = conf.target_path.starts_with("http://") || conf.target_path.starts_with("https://");
        if !is_url {
            let text = format!("expected a URL such as http://example.com/hook, found '{}'", conf.target_path);
            return Err(Invalid::new(format!("{field}.handler_meta.target_path"), text));
        }
        let template = Some(conf.template_text).filter(|text| !text.is_empty());
        let template = template.map(|text| Template::parse(&text)).transpose();
        Ok(Self {
            method: if conf.method.is_empty() { "POST".to_owned() } else { conf.method },
            url: conf.target_path,
            headers: conf.header_map,
            quiet: conf.event_timeout.saturating_mul(1000),
            template: template.map_err(|error| Invalid::new(format!("{field}.handler_meta.template_path"), error))?,
            sent: papaya::HashMap::new(),
        })
    }

    /// The request that tells an event; `None` for one that was told a moment ago.
    fn request(&self, event: Event, meta: &Value, cx: &RequestCx<'_>) -> Option<String> {
        let body = match &self.template {
            None => json!({
                "event": event.name(), "message": meta["Message"], "path": meta["Path"], "origin": meta["Origin"],
                "key": meta["Key"],
            })
            .to_string(),
            Some(template) => {
                let time = jiff::Timestamp::now().to_string();
                let data = json!({ "Type": event.name(), "Meta": meta, "TimeStamp": time });
                match template.run(&data) {
                    Ok(body) => body,
                    Err(error) => {
                        tracing::warn!(%error, "an event is not sent: its template failed");
                        return None;
                    }
                }
            }
        };
        if self.quiet > 0 && !self.is_news(&body, cx.now_ms()) {
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
