//! Kong's `response-ratelimiting`: upstreams tell how much a request costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin, RequestCx,
    ResponseCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::counted_by::CountedBy;
use super::rate_limiting::NO_CLUSTER;
use super::rate_limiting::remote::{Asked, Charge, Remote};
use super::rate_limiting::window::{Counter, Period};
use super::redis::{self, RedisFields};
use crate::traffic::key::{Key, Which};
use crate::traffic::table::Table;

/// The definition.
#[derive(Debug)]
pub(crate) struct ResponseRateLimiting;

/// Identity that requests are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LimitBy {
    Consumer,
    Credential,
    Ip,
}

/// Place of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Local,
    Cluster,
    Redis,
}

/// Most units of one limit, for each period.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Windows {
    /// Units in a second.
    second: Option<f64>,
    /// Units in a minute.
    minute: Option<f64>,
    /// Units in an hour.
    hour: Option<f64>,
    /// Units in a day.
    day: Option<f64>,
    /// Units in a month.
    month: Option<f64>,
    /// Units in a year.
    year: Option<f64>,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// The limits by their names.
    limits: BTreeMap<String, Windows>,
    /// Header with which upstreams tell costs: `name=units`, with commas between them.
    header_name: String,
    /// Identity that is counted by; without it the client's address.
    limit_by: LimitBy,
    /// Place of counters: this process, or a Redis.
    policy: Policy,
    /// True where requests pass while Redis cannot be asked; else they are answered with 500.
    fault_tolerant: bool,
    #[serde(flatten)]
    redis: RedisFields,
    /// Refuses requests before the upstream once a limit is used up.
    block_on_first_violation: bool,
    /// Does not tell clients of limits.
    hide_client_headers: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            limits: BTreeMap::new(),
            header_name: "x-kong-limit".into(),
            limit_by: LimitBy::Consumer,
            policy: Policy::Local,
            fault_tolerant: true,
            redis: RedisFields::default(),
            block_on_first_violation: false,
            hide_client_headers: false,
        }
    }
}

impl Conf {
    fn limits(&self) -> Result<Box<[Limit]>, Invalid> {
        if self.limits.is_empty() {
            return Err(Invalid::new("limits", "required field missing"));
        }
        let limit = |(number, (name, windows)): (usize, (&String, &Windows))| {
            let field = |text: String, place: &str| {
                FieldName::new(&text)
                    .ok_or_else(|| Invalid::new(format!("limits.{place}"), "expected a name that a header may contain"))
            };
            let given = [windows.second, windows.minute, windows.hour, windows.day, windows.month, windows.year];
            let mut all = Vec::new();
            for (period, units) in Period::ALL.into_iter().zip(given) {
                let Some(units) = units else { continue };
                let place = format!("limits.{name}.{}", period.name());
                if !(units > 0.0 && units.is_finite()) {
                    return Err(Invalid::new(place, "value must be greater than 0"));
                }
                let limit_field = field(format!("X-RateLimit-Limit-{name}-{}", period.name()), name)?;
                let remaining_field = field(format!("X-RateLimit-Remaining-{name}-{}", period.name()), name)?;
                let domain = number as u32 * 8 + period as u32;
                all.push(Window { period, units: units.ceil() as u64, domain, limit_field, remaining_field });
            }
            if all.is_empty() {
                let text = "at least one of these fields must be non-empty: 'second', 'minute', 'hour', 'day', 'month', \
                    'year'";
                return Err(Invalid::new(format!("limits.{name}"), text));
            }
            let told = field(format!("X-RateLimit-Remaining-{name}"), name)?;
            Ok(Limit { name: name.as_str().into(), told, windows: all.into() })
        };
        self.limits.iter().enumerate().map(limit).collect()
    }
}

impl Define for ResponseRateLimiting {
    const NAME: &'static str = "response-ratelimiting";
    const PRIORITY: i32 = 900;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE);
    const DOC: &'static str = "Limits what requests cost, as upstreams tell it in a header of their responses.";
    const EXAMPLE: &'static str = "limits: {video: {minute: 10}}\n";
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let limits = cx.ok(conf.limits());
        let server = match conf.policy {
            Policy::Local => None,
            Policy::Cluster => {
                cx.say([Invalid::new("policy", NO_CLUSTER)]);
                None
            }
            Policy::Redis => Some(cx.ok(conf.redis.server("policy redis"))?),
        };
        let header = FieldName::new(&conf.header_name);
        let header = cx.ok(header.ok_or_else(|| Invalid::new("header_name", "expected the name of a header")));
        let (limits, header) = (limits?, header?);
        Some(Compiled::build(move |build| {
            let state = format!("kong response-ratelimiting {} {}", build.place, build.conf.to_json());
            let remote = server.map(|server| {
                let redis = server.connect(conf.fault_tolerant, build)?;
                Ok(Remote::new("response-ratelimit", redis, None, build))
            });
            Ok(Limiter {
                remote: remote.transpose()?,
                passes_uncounted: conf.fault_tolerant,
                table: build.states.get_or_create(&state, || Table::new(build.limit_keys)),
                limits,
                header,
                by: match conf.limit_by {
                    LimitBy::Consumer => CountedBy::Consumer,
                    LimitBy::Credential => CountedBy::Credential,
                    LimitBy::Ip => CountedBy::Address,
                },
                blocks: conf.block_on_first_violation,
                shows: !conf.hide_client_headers,
                keys: PerRequest::new(),
            })
        }))
    }
}

/// A limit by its name.
#[derive(Debug)]
struct Limit {
    name: Box<str>,
    /// Field that tells the upstream what is left.
    told: FieldName,
    windows: Box<[Window]>,
}

#[derive(Debug)]
struct Window {
    period: Period,
    units: u64,
    /// Keeps the keys of limits and periods apart.
    domain: u32,
    limit_field: FieldName,
    remaining_field: FieldName,
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
    header: FieldName,
    by: CountedBy,
    blocks: bool,
    shows: bool,
    /// Whom a request is counted by.
    keys: PerRequest<Who>,
}

/// Whom a request is counted by.
#[derive(Clone, Debug)]
enum Who {
    Named,
    Address,
    /// In Redis: the identity, and the units that are left in each window.
    Remote(Vec<u8>, Vec<u64>),
}

/// Keeps addresses apart from names.
const ADDRESS: u32 = 1 << 31;

impl Plugin for Limiter {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.remote.is_some() {
            return Flow::Suspend;
        }
        let who = if self.by.find(cx).is_some() { Who::Named } else { Who::Address };
        self.admit(cx, who)
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long Redis is waited for.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(remote) = &self.remote else { return Flow::Continue };
            let who = self.by.find(cx).unwrap_or_else(|| cx.client().addr_text.as_bytes()).to_vec();
            let now = cx.unix_ms();
            match remote.add(&who, &self.charges(now, |_| 0)).await {
                Some(used) => {
                    let left = self.windows().zip(&used).map(|((_, window), used)| window.units.saturating_sub(*used));
                    let left = left.collect();
                    self.admit(cx, Who::Remote(who, left))
                }
                None if self.passes_uncounted => Flow::Continue,
                None => body::error(cx, 500, "An unexpected error occurred", &[]),
            }
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(who) = self.keys.get(cx).cloned() else { return Flow::Continue };
        let has_cost = self.limits.iter().any(|limit| self.cost(cx, &limit.name) > 0);
        if self.remote.is_some() && has_cost && !self.is_over(cx, &who, cx.unix_ms()) {
            return Flow::Suspend;
        }
        self.settle(cx, &who)
    }

    fn response_io<'a>(&'a self, cx: &'a mut ResponseCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let (Some(remote), Some(who)) = (&self.remote, self.keys.get(cx).cloned()) else { return Flow::Continue };
            if let Who::Remote(name, _) = &who {
                let costs: Vec<u64> = self.limits.iter().map(|limit| self.cost(cx, &limit.name)).collect();
                let charges = self.charges(cx.unix_ms(), |limit| costs.get(limit).copied().unwrap_or_default());
                // The answer is there: what cannot be counted goes on, as in Kong.
                let _ = remote.add(name, &charges).await;
            }
            self.settle(cx, &who)
        })
    }
}

impl Limiter {
    /// All windows with the numbers of their limits.
    fn windows(&self) -> impl Iterator<Item = (usize, &Window)> {
        self.limits
            .iter()
            .enumerate()
            .flat_map(|(number, limit)| limit.windows.iter().map(move |window| (number, window)))
    }

    /// Units to count in Redis, by the numbers of limits.
    fn charges(&self, now: u64, cost: impl Fn(usize) -> u64) -> Vec<Charge<'_>> {
        let charge = |(number, window): (usize, &Window)| {
            let (period, begin) = (window.period, window.period.around(now).0);
            let asked = Asked { period, begin, limit: window.units };
            Charge { asked, name: self.limits.get(number).map_or("", |limit| &*limit.name), cost: cost(number) }
        };
        self.windows().map(charge).collect()
    }

    /// Tells the upstream and the client what is left, and refuses a request where that is nothing.
    fn admit(&self, cx: &mut RequestCx<'_>, who: Who) -> Flow {
        let now = cx.unix_ms();
        let mut number = 0;
        for limit in &self.limits {
            let mut left = u64::MAX;
            for window in &limit.windows {
                left = left.min(self.left(cx, &who, (number, window), now));
                number += 1;
            }
            if left == 0 && self.blocks {
                let message = format!("API rate limit exceeded for '{}'", limit.name);
                return body::error(cx, 429, &message, &[]);
            }
            let mut text = cx.take_scratch();
            weir_wire::push_number(&mut text, left);
            cx.request_mut().set_field(&limit.told, &text);
            cx.put_scratch(text);
            if self.shows {
                cx.set_response_field(&limit.told, |out| weir_wire::push_number(out, left));
            }
        }
        self.keys.put(cx, who);
        Flow::Continue
    }

    /// True if the upstream tells a cost of a limit that is used up.
    fn is_over(&self, cx: &ResponseCx<'_>, who: &Who, now: u64) -> bool {
        self.windows().enumerate().any(|(number, (limit, window))| {
            let name = self.limits.get(limit).map_or("", |limit| &*limit.name);
            self.cost(cx, name) > 0 && self.left(cx, who, (number, window), now) == 0
        })
    }

    /// Counts the costs of a response, where that has not been done in Redis, and tells the client what is left.
    fn settle(&self, cx: &mut ResponseCx<'_>, who: &Who) -> Flow {
        let now = cx.unix_ms();
        let is_over = self.is_over(cx, who, now);
        let mut told = cx.take_scratch();
        let mut number = 0;
        for limit in &self.limits {
            let cost = self.cost(cx, &limit.name);
            for window in &limit.windows {
                let left = self.left(cx, who, (number, window), now);
                number += 1;
                if cost > 0 && !is_over && self.remote.is_none() {
                    let (begin, end) = window.period.around(now);
                    let linger = end.saturating_sub(now);
                    // Without room for another key nothing is counted, and the next request finds the limit unused.
                    let _ =
                        self.table.ask(self.key(cx, who, window), now, linger, |counter| counter.add(begin, end, cost));
                }
                if self.shows {
                    for (field, number) in
                        [(&window.limit_field, window.units), (&window.remaining_field, left.saturating_sub(cost))]
                    {
                        told.clear();
                        weir_wire::push_number(&mut told, number);
                        cx.set_field(field, &told);
                    }
                }
            }
        }
        cx.put_scratch(told);
        cx.remove_field(&self.header);
        if is_over {
            cx.set_status(429);
            cx.replace_body(b"");
        }
        Flow::Continue
    }

    fn key(&self, cx: &impl HookCx, who: &Who, window: &Window) -> Which {
        Which::Key(match (who, self.by.find(cx)) {
            (Who::Named, Some(name)) => Key::new(window.domain, name),
            _ => Key::new(window.domain | ADDRESS, cx.view().client().addr_text.as_bytes()),
        })
    }

    /// Units that are left in a window, of which the number is given.
    fn left(&self, cx: &impl HookCx, who: &Who, (number, window): (usize, &Window), now: u64) -> u64 {
        if let Who::Remote(_, left) = who {
            return left.get(number).copied().unwrap_or_default();
        }
        let (begin, _) = window.period.around(now);
        let used = self.table.look(self.key(cx, who, window), |counter| counter.used(begin)).unwrap_or(0);
        window.units.saturating_sub(used)
    }

    /// Units of a limit that the upstream has told.
    fn cost(&self, cx: &ResponseCx<'_>, name: &str) -> u64 {
        let response = cx.response();
        let told = response.head.fields.all(response.buffer.bytes(), &self.header);
        let pairs = told.flat_map(|text| text.split(|b| *b == b',')).map(weir_wire::trim_ows);
        let cost = |pair: &[u8]| {
            let rest = pair.strip_prefix(name.as_bytes())?;
            let number = weir_wire::trim_ows(rest).strip_prefix(b"=")?;
            std::str::from_utf8(weir_wire::trim_ows(number)).ok()?.parse().ok()
        };
        pairs.filter_map(cost).fold(0, u64::saturating_add)
    }
}
