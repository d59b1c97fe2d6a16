//! `rate-limiting-advanced` of Kong Enterprise: windows of any length that may slide.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, HookCx, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx, Slot,
};
use weir_wire::name::FieldName;

use super::counted_by::CountedBy;
use super::rate_limiting::NO_CLUSTER;
use super::redis::{self, RedisFields};
use crate::traffic::key::{Key, Which};
use crate::traffic::limit_count::counter::{Counter, MAX_COUNT, MAX_WINDOW, Quota, Taken, WindowKind};
use crate::traffic::limit_count::remote::{Counted, count};
use crate::traffic::limit_count::synced::Synced;
use crate::traffic::redis::{Redis, SingleServer};
use crate::traffic::table::Table;

/// The definition.
#[derive(Debug)]
pub(crate) struct RateLimitingAdvanced;

/// The movement of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WindowType {
    Fixed,
    Sliding,
}

/// Identity that requests are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Identifier {
    Consumer,
    Credential,
    Ip,
    Service,
    Header,
    Path,
    ConsumerGroup,
}

/// Place of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    Local,
    Cluster,
    Redis,
}

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Requests in each of the windows.
    limit: Vec<f64>,
    /// Seconds of the windows, as many as there are limits.
    window_size: Vec<f64>,
    /// The movement of the windows.
    window_type: WindowType,
    /// Identity that requests are counted by; without it the client's address.
    identifier: Identifier,
    /// The header of `identifier: header`.
    header_name: Option<String>,
    /// The path of `identifier: path`.
    path: Option<String>,
    /// Place of counters: this process, or a Redis.
    strategy: Strategy,
    /// With `strategy: redis`: seconds between two synchronizations of counts that workers keep; -1 and without it Redis is
    /// asked for every request.
    sync_rate: Option<f64>,
    /// With `strategy: redis`: name of the counters, for plugins that count together.
    namespace: Option<String>,
    /// Dictionary of local counters in Kong, of which the gateway has no need.
    #[serde(rename = "dictionary_name")]
    _dictionary_name: Option<String>,
    /// As the one above.
    #[serde(rename = "lock_dictionary_name")]
    _lock_dictionary_name: Option<String>,
    /// Does not tell clients of limits.
    hide_client_headers: bool,
    /// Most seconds that are added to `Retry-After`, by chance.
    #[schemars(range(min = 0))]
    retry_after_jitter_max: f64,
    /// Counts requests that are refused as well; they never count here.
    #[serde(rename = "disable_penalty")]
    _disable_penalty: bool,
    /// Status of a refusal.
    #[schemars(range(min = 200, max = 599))]
    error_code: u16,
    /// Message of a refusal.
    error_message: String,
    /// Limits of consumer groups; only false.
    enforce_consumer_groups: bool,
    /// Consumer groups with limits of their own; only none.
    consumer_groups: Vec<String>,
    #[serde(flatten)]
    redis: RedisFields,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            limit: Vec::new(),
            window_size: Vec::new(),
            window_type: WindowType::Sliding,
            identifier: Identifier::Consumer,
            header_name: None,
            path: None,
            strategy: Strategy::Local,
            sync_rate: None,
            namespace: None,
            _dictionary_name: None,
            _lock_dictionary_name: None,
            hide_client_headers: false,
            retry_after_jitter_max: 0.0,
            _disable_penalty: false,
            error_code: 429,
            error_message: "API rate limit exceeded".into(),
            enforce_consumer_groups: false,
            consumer_groups: Vec::new(),
            redis: RedisFields::default(),
        }
    }
}

impl Conf {
    fn windows(&self) -> Result<Vec<Window>, Invalid> {
        if self.limit.is_empty() {
            return Err(Invalid::new("limit", "required field missing"));
        }
        if self.limit.len() != self.window_size.len() {
            return Err(Invalid::new("window_size", "You must provide the same number of windows and limits"));
        }
        let kind = match self.window_type {
            WindowType::Fixed => WindowKind::Fixed,
            WindowType::Sliding => WindowKind::Sliding,
        };
        let whole = |field: &str, at: usize, number: f64, most: u64| {
            let fits = (1.0..=most as f64).contains(&number);
            let fault = || Invalid::new(format!("{field}[{at}]"), format!("expected a number from 1 to {most}"));
            fits.then_some(number.ceil() as u64).ok_or_else(fault)
        };
        let pairs = self.limit.iter().zip(&self.window_size).enumerate();
        let window = |(at, (limit, size)): (usize, (&f64, &f64))| {
            let (count, seconds) =
                (whole("limit", at, *limit, MAX_COUNT)?, whole("window_size", at, *size, MAX_WINDOW)?);
            let name = match seconds {
                1 => "Second".to_owned(),
                60 => "Minute".to_owned(),
                3600 => "Hour".to_owned(),
                86_400 => "Day".to_owned(),
                2_592_000 => "Month".to_owned(),
                31_536_000 => "Year".to_owned(),
                other => other.to_string(),
            };
            let field = |what: &str| {
                let name = FieldName::new(&format!("X-RateLimit-{what}-{name}"));
                name.ok_or_else(|| Invalid::new("window_size", "expected numbers"))
            };
            Ok(Window {
                quota: Quota { count, window: seconds * 1000, kind },
                limit_field: field("Limit")?,
                remaining_field: field("Remaining")?,
            })
        };
        pairs.map(window).collect()
    }

    fn by(&self) -> Result<CountedBy, Invalid> {
        Ok(match self.identifier {
            Identifier::Consumer => CountedBy::Consumer,
            Identifier::Credential => CountedBy::Credential,
            Identifier::Ip => CountedBy::Address,
            Identifier::Service => CountedBy::Service,
            Identifier::Header => return CountedBy::header(self.header_name.as_deref()),
            Identifier::Path => return CountedBy::path(self.path.clone()),
            Identifier::ConsumerGroup => {
                return Err(Invalid::new("identifier", "consumer groups are not supported"));
            }
        })
    }

    /// The Redis with the counts, and milliseconds between two synchronizations.
    fn remote(&self) -> Result<Option<(SingleServer, Option<u64>)>, Invalid> {
        match self.strategy {
            Strategy::Local => Ok(None),
            Strategy::Cluster => Err(Invalid::new("strategy", NO_CLUSTER)),
            Strategy::Redis => {
                let rate = self.sync_rate.filter(|rate| *rate > 0.0).unwrap_or(-1.0);
                let interval = super::rate_limiting::sync_interval(rate, true)?;
                Ok(Some((self.redis.clone().server("policy redis")?, interval)))
            }
        }
    }
}

impl Define for RateLimitingAdvanced {
    const NAME: &'static str = "rate-limiting-advanced";
    const PRIORITY: i32 = 910;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Limits how many requests a client may make in windows of any length, which may slide.";
    const EXAMPLE: &'static str = "{limit: [10, 100], window_size: [60, 3600], sync_rate: -1}\n";
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.enforce_consumer_groups || !conf.consumer_groups.is_empty() {
            cx.say([Invalid::new("consumer_groups", "limits of consumer groups are not supported")]);
        }
        let (windows, by, remote) = (cx.ok(conf.windows()), cx.ok(conf.by()), cx.ok(conf.remote()));
        let (windows, by, remote) = (windows?, by?, remote?);
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            let state = format!("kong rate-limiting-advanced {} {}", build.place, build.conf.to_json());
            let remote =
                remote.map(|(server, interval)| Remote::new(server, interval, conf.namespace.as_deref(), build));
            Ok(Limiter {
                table: build.states.get_or_create(&state, || Table::new(build.limit_keys)),
                remote: remote.transpose()?,
                windows: windows.into(),
                by,
                shown: (!conf.hide_client_headers).then(|| {
                    [name("RateLimit-Limit"), name("RateLimit-Remaining"), name("RateLimit-Reset"), name("Retry-After")]
                }),
                jitter: conf.retry_after_jitter_max as u64,
                status: conf.error_code,
                body: serde_json::json!({ "message": conf.error_message }).to_string(),
            })
        }))
    }
}

/// A window with its limit.
#[derive(Debug)]
struct Window {
    quota: Quota,
    limit_field: FieldName,
    remaining_field: FieldName,
}

/// Counts in Redis.
#[derive(Debug)]
struct Remote {
    redis: Redis,
    synced: Option<(Arc<Slot<Synced>>, u64)>,
    prefix: String,
    max_keys: usize,
}

impl Remote {
    fn new(
        server: SingleServer,
        interval: Option<u64>,
        namespace: Option<&str>,
        build: &BuildCx<'_>,
    ) -> Result<Self, Invalid> {
        let synced = interval.map(|interval| {
            let key = format!("kong rate-limiting-advanced synced {interval} {} {}", build.place, build.conf.to_json());
            (build.states.get_or_create(&key, Slot::default), interval)
        });
        let prefix = format!("weir:rate-limiting-advanced:{}:", namespace.unwrap_or(build.place));
        Ok(Self { redis: server.connect(false, build)?, synced, prefix, max_keys: build.limit_keys })
    }

    async fn take(&self, who: &[u8], number: usize, quota: &Quota) -> Option<Taken> {
        let mut key = format!("{}{number}:{}:", self.prefix, quota.window / 1000).into_bytes();
        key.extend_from_slice(who);
        let counted = match &self.synced {
            None => count(&self.redis, &key, quota, 1, false).await.ok()?,
            Some((slot, interval)) => {
                let synced = slot.get_or_start(|| Synced::new(&self.redis, *interval, self.max_keys));
                synced.take(&key, quota, 1).await?
            }
        };
        let Counted { passed, used, left } = counted;
        let remaining = if passed { quota.count.saturating_sub(used) } else { 0 };
        Some(Taken { passed, remaining, reset: left })
    }
}

/// An instance.
#[derive(Debug)]
struct Limiter {
    table: Arc<Table<Counter>>,
    remote: Option<Remote>,
    windows: Box<[Window]>,
    by: CountedBy,
    /// Fields for the window with the least left; `None`: clients are not told.
    shown: Option<[FieldName; 4]>,
    jitter: u64,
    status: u16,
    body: String,
}

/// Outcome of all windows for a request.
#[derive(Clone, Copy, Default)]
struct Told {
    refused: bool,
    /// Limit, what is left, and seconds until the window ends, of the window with the least left.
    least: Option<(u64, u64, u64)>,
}

/// Keeps addresses apart from names.
const ADDRESS: u32 = 1 << 31;

impl Plugin for Limiter {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.remote.is_some() {
            return Flow::Suspend;
        }
        let (now, mut told) = (cx.now_ms(), Told::default());
        for (number, window) in self.windows.iter().enumerate() {
            let which = Which::Key(match self.by.find(cx) {
                Some(name) => Key::new(number as u32, name),
                None => Key::new(number as u32 | ADDRESS, cx.client().addr_text.as_bytes()),
            });
            let quota = &window.quota;
            let taken = self.table.ask(which, now, quota.linger(), |counter| counter.take(now, quota));
            // Without room for another key nobody may pass.
            let taken = taken.unwrap_or(Taken { passed: false, remaining: 0, reset: quota.window });
            self.tell(cx, window, taken, &mut told);
        }
        self.finish(cx, told)
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long Redis is waited for.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(remote) = &self.remote else { return Flow::Continue };
            let who = self.by.find(cx).unwrap_or_else(|| cx.view().client().addr_text.as_bytes()).to_vec();
            let mut told = Told::default();
            for (number, window) in self.windows.iter().enumerate() {
                match remote.take(&who, number, &window.quota).await {
                    Some(taken) => self.tell(cx, window, taken, &mut told),
                    None => return super::body::error(cx, 500, "An unexpected error occurred", &[]),
                }
            }
            self.finish(cx, told)
        })
    }
}

impl Limiter {
    fn tell(&self, cx: &mut RequestCx<'_>, window: &Window, taken: Taken, told: &mut Told) {
        told.refused |= !taken.passed;
        let (limit, reset) = (window.quota.count, taken.reset.div_ceil(1000).max(1));
        if told.least.is_none_or(|(_, remaining, _)| taken.remaining <= remaining) {
            told.least = Some((limit, taken.remaining, reset));
        }
        if self.shown.is_some() {
            cx.set_response_field(&window.limit_field, |out| weir_wire::push_number(out, limit));
            cx.set_response_field(&window.remaining_field, |out| weir_wire::push_number(out, taken.remaining));
        }
    }

    fn finish(&self, cx: &mut RequestCx<'_>, told: Told) -> Flow {
        if let (Some([limit, remaining, reset, retry]), Some(least)) = (&self.shown, told.least) {
            cx.set_response_field(limit, |out| weir_wire::push_number(out, least.0));
            cx.set_response_field(remaining, |out| weir_wire::push_number(out, least.1));
            cx.set_response_field(reset, |out| weir_wire::push_number(out, least.2));
            if told.refused {
                let jitter = if self.jitter == 0 { 0 } else { fastrand::u64(0..=self.jitter) };
                cx.set_response_field(retry, |out| weir_wire::push_number(out, least.2 + jitter));
            }
        }
        if !told.refused {
            return Flow::Continue;
        }
        let answer = cx.reply(self.status).field("Content-Type", b"application/json; charset=utf-8");
        answer.body(self.body.as_bytes()).done()
    }
}
