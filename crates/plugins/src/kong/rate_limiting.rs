//! Kong's `rate-limiting`: windows of the calendar, in UTC.

mod window;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, HookCx, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::body;
use crate::traffic::key::{Key, Which};
use crate::traffic::table::Table;
use window::{Counter, Period};

/// The definition.
#[derive(Debug)]
pub(crate) struct RateLimiting;

/// What requests are counted by.
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

/// Where counters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Local,
    Cluster,
    Redis,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
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
    /// What requests are counted by; without it the client's address.
    limit_by: LimitBy,
    /// The header of `limit_by: header`.
    header_name: Option<String>,
    /// The path of `limit_by: path`.
    path: Option<String>,
    /// Where counters are kept; only `local` is supported.
    policy: Policy,
    /// Whether requests pass while the counters cannot be reached; local ones always can.
    #[serde(rename = "fault_tolerant")]
    _fault_tolerant: bool,
    /// Does not tell clients of limits.
    hide_client_headers: bool,
    /// Status of a refusal.
    #[schemars(range(min = 200, max = 599))]
    error_code: u16,
    /// Message of a refusal.
    error_message: String,
    /// Seconds between two synchronizations; without effect with local counters.
    #[serde(rename = "sync_rate")]
    _sync_rate: f64,
    /// Redis, without effect with local counters.
    #[serde(rename = "redis")]
    _redis: Option<serde_json::Value>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_host")]
    _redis_host: Option<String>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_port")]
    _redis_port: Option<u16>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_username")]
    _redis_username: Option<String>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_password")]
    _redis_password: Option<String>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_database")]
    _redis_database: Option<u32>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_timeout")]
    _redis_timeout: Option<u64>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_ssl")]
    _redis_ssl: Option<bool>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_ssl_verify")]
    _redis_ssl_verify: Option<bool>,
    /// The same in the form of older versions.
    #[serde(rename = "redis_server_name")]
    _redis_server_name: Option<String>,
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
            _fault_tolerant: true,
            hide_client_headers: false,
            error_code: 429,
            error_message: "API rate limit exceeded".into(),
            _sync_rate: -1.0,
            _redis: None,
            _redis_host: None,
            _redis_port: None,
            _redis_username: None,
            _redis_password: None,
            _redis_database: None,
            _redis_timeout: None,
            _redis_ssl: None,
            _redis_ssl_verify: None,
            _redis_server_name: None,
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

impl Define for RateLimiting {
    const NAME: &'static str = "rate-limiting";
    const PRIORITY: i32 = 910;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Limits how many requests a client may make in a second, a minute and so on.";
    const EXAMPLE: &'static str = "minute: 60\npolicy: local\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let limits = cx.ok(conf.limits());
        if conf.policy != Policy::Local {
            let text = "only counters in memory (policy: local) are supported yet";
            cx.say([Invalid::new("policy", text)]);
        }
        let header = match (conf.limit_by, conf.header_name.as_deref()) {
            (LimitBy::Header, None) => Err(Invalid::new("header_name", "required field missing")),
            (LimitBy::Header, Some(name)) => FieldName::new(name)
                .map(Some)
                .ok_or_else(|| Invalid::new("header_name", "expected the name of a header")),
            _ => Ok(None),
        };
        let header = cx.ok(header);
        if conf.limit_by == LimitBy::Path && conf.path.is_none() {
            cx.say([Invalid::new("path", "required field missing")]);
        }
        let (limits, header) = (limits?, header?);
        let by = match conf.limit_by {
            LimitBy::Consumer => By::Consumer,
            LimitBy::Credential => By::Credential,
            LimitBy::Ip => By::Address,
            LimitBy::Service => By::Everything,
            LimitBy::Header => By::Header(header?),
            LimitBy::Path => By::Path(conf.path.unwrap_or_default().into_bytes()),
        };
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            let state = format!("kong rate-limiting {} {}", build.place, build.conf.to_json());
            Ok(Limiter {
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

/// What requests are counted by.
#[derive(Debug)]
enum By {
    Consumer,
    Credential,
    Address,
    Everything,
    Header(FieldName),
    Path(Vec<u8>),
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
    limits: Box<[Limit]>,
    by: By,
    /// Fields for the window with the least left; `None`: clients are not told.
    shown: Option<[FieldName; 4]>,
    status: u16,
    message: String,
}

/// What clients are told of a window.
#[derive(Clone, Copy)]
struct Standing {
    limit: u64,
    remaining: u64,
    /// Seconds to its end.
    reset: u64,
}

impl Plugin for Limiter {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
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
            let reset = (end.saturating_sub(now) / 1000).max(1);
            let standing = Standing { limit: limit.count, remaining, reset };
            // Of windows with as much left the longer one counts.
            if least.is_none_or(|least| remaining <= least.remaining) {
                least = Some(standing);
            }
            if self.shown.is_some() {
                cx.set_response_field(&limit.limit_field, |out| weir_wire::push_number(out, limit.count));
                cx.set_response_field(&limit.remaining_field, |out| weir_wire::push_number(out, remaining));
            }
        }
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
}

impl Limiter {
    /// The counter of a request for a period. A request without what is counted by counts by the client's address.
    fn key(&self, cx: &RequestCx<'_>, period: Period) -> Which {
        let domain = period as u32;
        let consumer = || cx.view().consumer().map(|consumer| consumer.name.text.as_bytes());
        let credential = || {
            let (tables, who) = (cx.view().tables()?, cx.consumer()?);
            tables.consumers.credential(who).map(str::as_bytes)
        };
        let named = match &self.by {
            By::Consumer => consumer(),
            By::Credential => credential().or_else(consumer),
            By::Address => None,
            By::Everything => Some(&b""[..]),
            By::Header(name) => cx.request().field(name),
            By::Path(path) => (cx.request().path() == path.as_slice()).then_some(path.as_slice()),
        };
        // A text and an address with the same letters count apart.
        Which::Key(match named {
            Some(text) => Key::new(domain, text),
            None => Key::new(domain | ADDRESS, cx.client().addr_text.as_bytes()),
        })
    }
}

/// Keeps addresses apart from texts.
const ADDRESS: u32 = 1 << 8;
