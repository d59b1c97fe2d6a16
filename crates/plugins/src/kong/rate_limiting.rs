//! Kong's `rate-limiting`: windows of the calendar, in UTC.

pub(super) mod remote;
pub(super) mod window;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::body;
use super::counted_by::CountedBy;
use super::redis::{self, RedisFields};
use crate::traffic::key::{Key, Which};
use crate::traffic::redis::SingleServer;
use crate::traffic::table::Table;
use remote::{Asked, Remote};
use window::{Counter, Period};

/// The definition.
#[derive(Debug)]
pub(crate) struct RateLimiting;

/// Identity that requests are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LimitBy {
    Consumer,
    Credential,
    Ip,
    Service,
    Header,
    Path,
}

/// Place of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Local,
    Cluster,
    Redis,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Requests in a second.
    second: Option<f64>,
    /// Requests in a minute.
    minute: Option<f64>,
    /// Requests in an hour.
    hour: Option<f64>,
    /// Requests in a day.
    day: Option<f64>,
    /// Requests in a month.
    month: Option<f64>,
    /// Requests in a year.
    year: Option<f64>,
    /// Identity that requests are counted by; without it the client's address.
    limit_by: LimitBy,
    /// The header of `limit_by: header`.
    header_name: Option<String>,
    /// The path of `limit_by: path`.
    path: Option<String>,
    /// Place of counters: this process, or a Redis.
    policy: Policy,
    /// True where requests pass while Redis cannot be asked; else they are answered with 500.
    fault_tolerant: bool,
    /// Does not tell clients of limits.
    hide_client_headers: bool,
    /// Status of a refusal.
    #[schemars(range(min = 200, max = 599))]
    error_code: u16,
    /// Message of a refusal.
    error_message: String,
    /// With `policy: redis`: seconds between two synchronizations of counts that workers keep; -1 asks Redis for every
    /// request.
    sync_rate: f64,
    #[serde(flatten)]
    redis: RedisFields,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            second: None,
            minute: None,
            hour: None,
            day: None,
            month: None,
            year: None,
            limit_by: LimitBy::Consumer,
            header_name: None,
            path: None,
            policy: Policy::Local,
            fault_tolerant: true,
            hide_client_headers: false,
            error_code: 429,
            error_message: "API rate limit exceeded".into(),
            sync_rate: REALTIME,
            redis: RedisFields::default(),
        }
    }
}

impl Conf {
    /// The limits, from the shortest window to the longest.
    fn limits(&self) -> Result<Vec<(Period, u64)>, Invalid> {
        let given = [self.second, self.minute, self.hour, self.day, self.month, self.year];
        let mut limits: Vec<(Period, f64)> = Vec::new();
        for (period, limit) in Period::ALL.into_iter().zip(given) {
            let Some(limit) = limit else { continue };
            if !(limit > 0.0 && limit.is_finite()) {
                return Err(Invalid::new(period.name(), "value must be greater than 0"));
            }
            if let Some((shorter, less)) = limits.last().filter(|(_, less)| *less > limit) {
                let text = format!(
                    "The limit for {}({limit:.1}) cannot be lower than the limit for {}({less:.1})",
                    period.name(),
                    shorter.name()
                );
                return Err(Invalid::new(period.name(), text));
            }
            limits.push((period, limit));
        }
        if limits.is_empty() {
            let text = "at least one of these fields must be non-empty: 'config.second', 'config.minute', \
                'config.hour', 'config.day', 'config.month', 'config.year'";
            return Err(Invalid::new("", text));
        }
        // A request passes while fewer than the limit are counted, so that with 2.5 a third one does.
        Ok(limits.into_iter().map(|(period, limit)| (period, limit.ceil() as u64)).collect())
    }
}

/// `sync_rate` that asks Redis for every request.
const REALTIME: f64 = -1.0;

impl Conf {
    /// The Redis with the counts, and milliseconds between two synchronizations; `None`: counts are in this process.
    fn remote(&self) -> Result<Option<(SingleServer, Option<u64>)>, Invalid> {
        let interval = sync_interval(self.sync_rate, self.policy == Policy::Redis)?;
        match self.policy {
            Policy::Local => Ok(None),
            Policy::Cluster => Err(Invalid::new("policy", NO_CLUSTER)),
            Policy::Redis => Ok(Some((self.redis.clone().server("policy redis")?, interval))),
        }
    }
}

/// Reason why `policy: cluster` is refused.
pub(super) const NO_CLUSTER: &str =
    "counters in Kong's database (policy: cluster) are not supported: use policy redis for several gateways, or local";

/// Milliseconds of a `sync_rate`; `None` for every request.
pub(super) fn sync_interval(rate: f64, is_redis: bool) -> Result<Option<u64>, Invalid> {
    match rate {
        REALTIME => Ok(None),
        _ if !is_redis => Err(Invalid::new("sync_rate", "sync_rate can only be used with policy redis")),
        rate if (0.02..=86_400.0).contains(&rate) => Ok(Some((rate * 1000.0) as u64)),
        _ => Err(Invalid::new("sync_rate", "expected -1, or a number of at least 0.02")),
    }
}

impl Define for RateLimiting {
    const NAME: &'static str = "rate-limiting";
    const PRIORITY: i32 = 910;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Limits how many requests a client may make in a second, a minute and so on.";
    const EXAMPLE: &'static str = "minute: 60\npolicy: local\n";
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let limits = cx.ok(conf.limits());
        let remote = cx.ok(conf.remote());
        let by = cx.ok(match conf.limit_by {
            LimitBy::Consumer => Ok(CountedBy::Consumer),
            LimitBy::Credential => Ok(CountedBy::Credential),
            LimitBy::Ip => Ok(CountedBy::Address),
            LimitBy::Service => Ok(CountedBy::Service),
            LimitBy::Header => CountedBy::header(conf.header_name.as_deref()),
            LimitBy::Path => CountedBy::path(conf.path.clone()),
        });
        let (limits, by, remote) = (limits?, by?, remote?);
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            let state = format!("kong rate-limiting {} {}", build.place, build.conf.to_json());
            let remote = remote.map(|(server, interval)| {
                let redis = server.connect(conf.fault_tolerant, build)?;
                Ok(Remote::new("ratelimit", redis, interval, build))
            });
            Ok(Limiter {
                remote: remote.transpose()?,
                passes_uncounted: conf.fault_tolerant,
                table: build.states.get_or_create(&state, || Table::new(build.limit_keys)),
                limits: limits.into_iter().map(|(period, count)| Limit::new(period, count)).collect(),
                by,
                shown: (!conf.hide_client_headers).then(|| {
                    [name("RateLimit-Limit"), name("RateLimit-Remaining"), name("RateLimit-Reset"), name("Retry-After")]
                }),
                status: conf.error_code,
                message: conf.error_message,
            })
        }))
    }
}

/// The limit of one window.
#[derive(Debug)]
struct Limit {
    period: Period,
    count: u64,
    limit_field: FieldName,
    remaining_field: FieldName,
}

impl Limit {
    fn new(period: Period, count: u64) -> Self {
        let [limit_field, remaining_field] = period.field_names().map(FieldName::constant);
        Self { period, count, limit_field, remaining_field }
    }
}

/// An instance.
#[derive(Debug)]
struct Limiter {
    table: Arc<Table<Counter>>,
    /// The Redis that holds the counts.
    remote: Option<Remote>,
    /// True where requests pass that cannot be counted there.
    passes_uncounted: bool,
    limits: Box<[Limit]>,
    by: CountedBy,
    /// Fields for the window with the least left; `None`: clients are not told.
    shown: Option<[FieldName; 4]>,
    status: u16,
    message: String,
}

/// State of a window that clients are told.
#[derive(Clone, Copy)]
struct Standing {
    limit: u64,
    remaining: u64,
    /// Seconds to its end.
    reset: u64,
}

impl Plugin for Limiter {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.remote.is_some() {
            return Flow::Suspend;
        }
        let now = cx.unix_ms();
        // All windows are looked at before the request counts in any: a refused one counts in none.
        let used = |limit: &Limit, which: Which| {
            let (begin, _) = limit.period.around(now);
            self.table.look(which, |counter| counter.used(begin)).unwrap_or(0)
        };
        let keys = |cx: &RequestCx<'_>, limit: &Limit| self.key(cx, limit.period);
        let is_over = self.limits.iter().any(|limit| used(limit, keys(cx, limit)) >= limit.count);
        let mut refused = is_over;
        let mut least: Option<Standing> = None;
        for limit in &self.limits {
            let which = keys(cx, limit);
            let (begin, end) = limit.period.around(now);
            let remaining = if is_over {
                limit.count.saturating_sub(used(limit, which).saturating_add(1))
            } else {
                let linger = end.saturating_sub(now);
                let take = |counter: &Counter| counter.take(begin, end, limit.count);
                match self.table.ask(which, now, linger, take) {
                    Ok(Some(used)) => limit.count.saturating_sub(used),
                    // Another request was faster, or there is no room for another key: neither may pass.
                    Ok(None) | Err(_) => {
                        refused = true;
                        0
                    }
                }
            };
            self.tell(cx, limit, remaining, &mut least);
        }
        self.finish(cx, refused, least)
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long Redis is waited for.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(remote) = &self.remote else { return Flow::Continue };
            let now = cx.unix_ms();
            let who = self.by.find(cx).unwrap_or_else(|| cx.client().addr_text.as_bytes()).to_vec();
            let asked =
                |limit: &Limit| Asked { period: limit.period, begin: limit.period.around(now).0, limit: limit.count };
            let windows: Vec<Asked> = self.limits.iter().map(asked).collect();
            let Some(used) = remote.take(&who, &windows).await else {
                return match self.passes_uncounted {
                    true => Flow::Continue,
                    false => body::error(cx, 500, "An unexpected error occurred", &[]),
                };
            };
            let mut least = None;
            for (limit, used) in self.limits.iter().zip(&used) {
                self.tell(cx, limit, limit.count.saturating_sub(*used), &mut least);
            }
            let refused = self.limits.iter().zip(&used).any(|(limit, used)| *used > limit.count);
            self.finish(cx, refused, least)
        })
    }
}

impl Limiter {
    /// Tells the client of a window, and keeps the one with the least left; of windows with as much left the longer one.
    fn tell(&self, cx: &mut RequestCx<'_>, limit: &Limit, remaining: u64, least: &mut Option<Standing>) {
        let now = cx.unix_ms();
        let (_, end) = limit.period.around(now);
        let reset = (end.saturating_sub(now) / 1000).max(1);
        if least.is_none_or(|least| remaining <= least.remaining) {
            *least = Some(Standing { limit: limit.count, remaining, reset });
        }
        if self.shown.is_some() {
            cx.set_response_field(&limit.limit_field, |out| weir_wire::push_number(out, limit.count));
            cx.set_response_field(&limit.remaining_field, |out| weir_wire::push_number(out, remaining));
        }
    }

    fn finish(&self, cx: &mut RequestCx<'_>, refused: bool, least: Option<Standing>) -> Flow {
        if let (Some([limit, remaining, reset, retry]), Some(least)) = (&self.shown, least) {
            cx.set_response_field(limit, |out| weir_wire::push_number(out, least.limit));
            cx.set_response_field(remaining, |out| weir_wire::push_number(out, least.remaining));
            cx.set_response_field(reset, |out| weir_wire::push_number(out, least.reset));
            if refused {
                cx.set_response_field(retry, |out| weir_wire::push_number(out, least.reset));
            }
        }
        if refused { body::error(cx, self.status, &self.message, &[]) } else { Flow::Continue }
    }

    /// The counter of a request for a period. A request without what is counted by counts by the client's address.
    fn key(&self, cx: &RequestCx<'_>, period: Period) -> Which {
        let domain = period as u32;
        // A text and an address with the same letters count apart.
        Which::Key(match self.by.find(cx) {
            Some(text) => Key::new(domain, text),
            None => Key::new(domain | ADDRESS, cx.client().addr_text.as_bytes()),
        })
    }
}

/// Keeps addresses apart from texts.
const ADDRESS: u32 = 1 << 8;
