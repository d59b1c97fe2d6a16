//! Kong's `response-ratelimiting`: upstreams tell how much a request costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, PerRequest, Phases, Plugin, RequestCx, ResponseCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::counted_by::CountedBy;
use super::rate_limiting::NO_CLUSTER;
use super::rate_limiting::window::{Counter, Period};
use super::redis::RedisFields;
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
    /// Place of counters; only `local` is supported.
    policy: Policy,
    /// Lets requests pass while counters cannot be reached; local ones always can.
    #[serde(rename = "fault_tolerant")]
    _fault_tolerant: bool,
    #[serde(flatten, rename = "redis")]
    _redis: RedisFields,
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
            _fault_tolerant: true,
            _redis: RedisFields::default(),
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

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let limits = cx.ok(conf.limits());
        match conf.policy {
            Policy::Local => {}
            Policy::Cluster => cx.say([Invalid::new("policy", NO_CLUSTER)]),
            Policy::Redis => cx.say([Invalid::new(
                "policy",
                "counters in Redis are not supported yet for what upstreams tell: use policy local",
            )]),
        }
        let header = FieldName::new(&conf.header_name);
        let header = cx.ok(header.ok_or_else(|| Invalid::new("header_name", "expected the name of a header")));
        let (limits, header) = (limits?, header?);
        Some(Compiled::build(move |build| {
            let state = format!("kong response-ratelimiting {} {}", build.place, build.conf.to_json());
            Ok(Limiter {
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
    limits: Box<[Limit]>,
    header: FieldName,
    by: CountedBy,
    blocks: bool,
    shows: bool,
    /// True for a request that was counted by its consumer.
    keys: PerRequest<Who>,
}

/// Whom a request is counted by.
#[derive(Clone, Copy, Debug)]
enum Who {
    Named,
    Address,
}

/// Keeps addresses apart from names.
const ADDRESS: u32 = 1 << 31;

impl Plugin for Limiter {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let who = if self.by.find(cx).is_some() { Who::Named } else { Who::Address };
        self.keys.put(cx, who);
        let now = cx.unix_ms();
        for limit in &self.limits {
            let left = limit.windows.iter().map(|window| self.left(cx, who, window, now)).min().unwrap_or_default();
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
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(who) = self.keys.get(cx).copied() else { return Flow::Continue };
        let now = cx.unix_ms();
        let mut told = cx.take_scratch();
        let mut is_over = false;
        // All limits are looked at before a unit counts in any.
        for limit in &self.limits {
            let cost = self.cost(cx, &limit.name);
            is_over |= cost > 0 && limit.windows.iter().any(|window| self.left(cx, who, window, now) == 0);
        }
        for limit in &self.limits {
            let cost = self.cost(cx, &limit.name);
            for window in &limit.windows {
                let left = self.left(cx, who, window, now);
                if cost > 0 && !is_over {
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
}

impl Limiter {
    fn key(&self, cx: &impl HookCx, who: Who, window: &Window) -> Which {
        Which::Key(match (who, self.by.find(cx)) {
            (Who::Named, Some(name)) => Key::new(window.domain, name),
            _ => Key::new(window.domain | ADDRESS, cx.view().client().addr_text.as_bytes()),
        })
    }

    /// Units that are left in a window.
    fn left(&self, cx: &impl HookCx, who: Who, window: &Window, now: u64) -> u64 {
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
