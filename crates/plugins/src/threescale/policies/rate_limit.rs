//! `rate_limit`: requests under way, rates, and requests in a time.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, Flow, HookCx, Invalid, Io, LocalFuture, RequestCx};

use super::{DraftLink, read};
use crate::threescale::condition::{self, Condition};
use crate::threescale::limits::Entered;
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Phase, Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};
use crate::traffic::PlanCounts;
use crate::traffic::key::{Key, Which};
use crate::traffic::limit_conn::count::Count;
use crate::traffic::limit_conn::remote::Entry;
use crate::traffic::limit_count::counter::{Charge, MAX_COUNT, Quota, WindowKind};
use crate::traffic::limit_count::remote;
use crate::traffic::limit_req::bucket::{Bucket, Rate};
use crate::traffic::limit_req::remote::pour;
use crate::traffic::redis::{Redis, SingleServer};
use crate::traffic::table::Table;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    connection_limiters: Vec<ConnectionLimiter>,
    leaky_bucket_limiters: Vec<BucketLimiter>,
    fixed_window_limiters: Vec<WindowLimiter>,
    redis_url: String,
    limits_exceeded_error: ErrorConf,
    configuration_error: ErrorConf,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ErrorConf {
    status_code: Option<u16>,
    error_handling: Handling,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Handling {
    /// The request is answered.
    #[default]
    Exit,
    /// The request passes.
    Log,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct KeyConf {
    name: String,
    name_type: TextType,
    scope: Scope,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Scope {
    /// One count for all services.
    Global,
    /// One for each service.
    #[default]
    Service,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ConnectionLimiter {
    key: KeyConf,
    condition: condition::Conf,
    conn: u64,
    burst: u64,
    delay: f64,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct BucketLimiter {
    key: KeyConf,
    condition: condition::Conf,
    rate: u64,
    burst: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WindowLimiter {
    #[serde(default)]
    key: KeyConf,
    #[serde(default)]
    condition: condition::Conf,
    count: u64,
    #[serde(default = "one")]
    window: u64,
}

fn one() -> u64 {
    1
}

/// Measure of a limiter, with its bounds.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Connections { conn: u64, burst: u64, delay_ms: f64 },
    Rate(Rate),
    Window { count: u64, ms: u64 },
}

#[derive(Debug)]
struct Limiter {
    name: Text,
    /// Keeps the counts of limiters apart, also those of services.
    scope: String,
    condition: Option<Condition>,
    measure: Measure,
}

/// The counts.
#[derive(Debug)]
struct Counts {
    connections: Arc<Table<Count>>,
    buckets: Arc<Table<Bucket>>,
    windows: Arc<PlanCounts>,
}

/// The policy.
#[derive(Debug)]
struct RateLimit {
    limiters: Box<[Limiter]>,
    counts: Counts,
    /// The Redis that has the counts in the place of `counts`.
    remote: Option<Redis>,
    /// `None`: requests pass.
    exceeded: Option<u16>,
    failed: Option<u16>,
}

/// Keeps keys of this policy apart from those of others.
const DOMAIN: u32 = 1 << 29;
/// Milliseconds for a connection to Redis, and again for a reply.
const REDIS_TIMEOUT: u64 = 1000;
/// Milliseconds for which a request counts in Redis at most, should its gateway die.
const LONGEST_REQUEST: u64 = 3_600_000;

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let say = |name: &str, text: String| cx.say([Invalid::new(format!("{field}.{name}"), text)]);
    let server = match conf.redis_url.as_str() {
        "" => None,
        url => match SingleServer::of_url(url, REDIS_TIMEOUT) {
            Some(server) => Some(server),
            None => {
                say("redis_url", "expected redis://USER:PASSWORD@HOST:PORT/DATABASE".into());
                return None;
            }
        },
    };
    let status = |name: &str, error: &ErrorConf, default: u16| {
        let status = error.status_code.unwrap_or(default);
        if !(200..=599).contains(&status) {
            say(&format!("{name}.status_code"), format!("expected a status from 200 to 599, found {status}"));
            return None;
        }
        Some((error.error_handling == Handling::Exit).then_some(status))
    };
    let exceeded = status("limits_exceeded_error", &conf.limits_exceeded_error, 429)?;
    let failed = status("configuration_error", &conf.configuration_error, 500)?;
    if failed.is_none() {
        let text = "requests pass that cannot be counted";
        cx.warn(format!("{field}.configuration_error.error_handling"), text);
    }
    let limiters = cx.ok(conf.limiters(field))?;
    Some(DraftLink::built(move |site| {
        let (states, most) = (site.build.states, site.build.limit_keys);
        let limiters = limiters.into_iter().map(|(scope, limiter)| {
            let service = if scope == Scope::Service { site.id } else { "" };
            Limiter { scope: format!("{service}/{}", limiter.scope), ..limiter }
        });
        Ok(RateLimit {
            limiters: limiters.collect(),
            counts: Counts {
                connections: states.get_or_create(&format!("3scale connections {most}"), || Table::new(most)),
                buckets: states.get_or_create(&format!("3scale buckets {most}"), || Table::new(most)),
                windows: PlanCounts::of(states, most),
            },
            remote: server.map(|server| server.connect(false, site.build)).transpose()?,
            exceeded,
            failed,
        })
    }))
}

impl Conf {
    fn limiters(self, field: &str) -> Result<Vec<(Scope, Limiter)>, Invalid> {
        let mut all = Vec::new();
        let mut add = |kind: &str, at: usize, key: &KeyConf, condition: &condition::Conf, measure: Measure| {
            let field = format!("{field}.{kind}[{at}]");
            let condition = match condition.is_empty() {
                true => None,
                false => Some(Condition::compile(condition, &format!("{field}.condition"))?),
            };
            let name = Text::compile(&key.name, key.name_type, &format!("{field}.key.name"))?;
            // A changed limit begins a new count.
            let scope = format!("{kind} {measure:?}");
            all.push((key.scope, Limiter { name, scope, condition, measure }));
            Ok(())
        };
        let above_0 = |name: String, is_good: bool| {
            if is_good { Ok(()) } else { Err(Invalid::new(name, "expected a number above 0")) }
        };
        for (at, limiter) in self.connection_limiters.iter().enumerate() {
            above_0(format!("{field}.connection_limiters[{at}].conn"), limiter.conn > 0)?;
            let is_time = limiter.delay > 0.0 && limiter.delay.is_finite();
            above_0(format!("{field}.connection_limiters[{at}].delay"), is_time || limiter.burst == 0)?;
            let (conn, burst, delay_ms) = (limiter.conn, limiter.burst, limiter.delay.min(3600.0) * 1000.0);
            let measure = Measure::Connections { conn, burst, delay_ms };
            add("connection_limiters", at, &limiter.key, &limiter.condition, measure)?;
        }
        for (at, limiter) in self.leaky_bucket_limiters.iter().enumerate() {
            above_0(format!("{field}.leaky_bucket_limiters[{at}].rate"), limiter.rate > 0)?;
            let measure = Measure::Rate(Rate::new(limiter.rate as f64, limiter.burst as f64));
            add("leaky_bucket_limiters", at, &limiter.key, &limiter.condition, measure)?;
        }
        for (at, limiter) in self.fixed_window_limiters.iter().enumerate() {
            above_0(format!("{field}.fixed_window_limiters[{at}].count"), limiter.count > 0)?;
            let measure =
                Measure::Window { count: limiter.count.min(MAX_COUNT), ms: limiter.window.clamp(1, 31_536_000) * 1000 };
            add("fixed_window_limiters", at, &limiter.key, &limiter.condition, measure)?;
        }
        Ok(all)
    }
}

/// Outcome of one limiter.
#[derive(Clone, Copy)]
enum Outcome {
    /// Milliseconds that the request waits.
    Passes(u64),
    Exceeded,
    /// There is no room for another count, or Redis cannot be asked.
    Failed,
}

/// Milliseconds that a request waits as one of `taken`, where `conn` pass at once.
fn wait_above(taken: u64, conn: u64, delay_ms: f64) -> u64 {
    (delay_ms * taken.saturating_sub(conn).div_ceil(conn) as f64) as u64
}

/// Counts a request in a Redis, under `text`.
async fn count_remotely(redis: &Redis, measure: Measure, text: &str, unix_ms: u64, state: &mut State) -> Outcome {
    let key = |text: &str| redis.key_of(text.as_bytes());
    match measure {
        Measure::Connections { conn, burst, delay_ms } => {
            let entry = Entry::new(redis, key(text).into(), LONGEST_REQUEST);
            let place = entry.enter(conn.saturating_add(burst)).await;
            // The place is given back also where nobody knows whether it was taken.
            state.entered_remotely.push(entry);
            match place {
                Ok(Some(taken)) => Outcome::Passes(wait_above(taken, conn, delay_ms)),
                Ok(None) => Outcome::Exceeded,
                Err(_) => Outcome::Failed,
            }
        }
        Measure::Rate(rate) => match pour(redis, &key(text), &rate).await {
            Ok(Some(wait)) => Outcome::Passes(wait),
            Ok(None) => Outcome::Exceeded,
            Err(_) => Outcome::Failed,
        },
        Measure::Window { count, ms } => {
            let quota = Quota { count, window: ms - unix_ms % ms, kind: WindowKind::Fixed };
            match remote::count(redis, &key(&format!("{} {text}", unix_ms / ms)), &quota, 1, false).await {
                Ok(counted) if counted.passed => Outcome::Passes(0),
                Ok(_) => Outcome::Exceeded,
                Err(_) => Outcome::Failed,
            }
        }
    }
}

impl RateLimit {
    /// The text under which a limiter counts a request; `None` where its condition does not hold.
    fn text_of(limiter: &Limiter, parts: &Parts, cx: &RequestCx<'_>, state: &State) -> Option<String> {
        let around = Around { view: cx.view(), state, names: &parts.names };
        if limiter.condition.as_ref().is_some_and(|condition| !condition.holds(&around)) {
            return None;
        }
        Some(format!("{}\0{}", limiter.scope, limiter.name.render(&around)))
    }

    /// Adds to the longest wait; `Err` with the status of a request that does not pass.
    fn conclude(&self, outcome: Outcome, longest: &mut u64) -> Result<(), u16> {
        let status = match outcome {
            Outcome::Passes(wait) => {
                *longest = wait.max(*longest);
                return Ok(());
            }
            Outcome::Exceeded => self.exceeded,
            Outcome::Failed => self.failed,
        };
        status.map_or(Ok(()), Err)
    }

    /// Counts in Redis: milliseconds that the request waits, or the status with which it is refused.
    async fn ask(&self, redis: &Redis, parts: &Parts, cx: &RequestCx<'_>, state: &mut State) -> Result<u64, u16> {
        let mut longest = 0;
        for limiter in &self.limiters {
            let Some(text) = Self::text_of(limiter, parts, cx, state) else { continue };
            let outcome = count_remotely(redis, limiter.measure, &text, cx.unix_ms(), state).await;
            self.conclude(outcome, &mut longest)?;
        }
        Ok(longest)
    }

    fn count(&self, limiter: &Limiter, text: &str, cx: &RequestCx<'_>, state: &mut State) -> Outcome {
        let key = Key::new(DOMAIN, text.as_bytes());
        match limiter.measure {
            Measure::Connections { conn, burst, delay_ms } => {
                match Entered::take(&self.counts.connections, key, conn.saturating_add(burst), cx.now_ms()) {
                    Ok(Some((entered, taken))) => {
                        state.entered.push(entered);
                        Outcome::Passes(wait_above(taken, conn, delay_ms))
                    }
                    Ok(None) => Outcome::Exceeded,
                    Err(()) => Outcome::Failed,
                }
            }
            Measure::Rate(rate) => {
                let now = cx.now_ms();
                let poured =
                    self.counts.buckets.ask(Which::Key(key), now, rate.drain_ms(), |bucket| bucket.pour(now, &rate));
                match poured {
                    Ok(Some(wait)) => Outcome::Passes(wait),
                    Ok(None) => Outcome::Exceeded,
                    Err(_) => Outcome::Failed,
                }
            }
            Measure::Window { count, ms } => {
                // Windows of one length begin at the same time for all keys, as in APIcast.
                let left = ms - cx.unix_ms() % ms;
                let quota = Quota { count, window: left.max(1), kind: WindowKind::Fixed };
                let charge = Charge { period: 0, ..Charge::one(&quota) };
                match self.counts.windows.charge(text.as_bytes(), cx.unix_ms(), &charge) {
                    Ok(taken) if taken.passed => Outcome::Passes(0),
                    Ok(_) => Outcome::Exceeded,
                    Err(_) => Outcome::Failed,
                }
            }
        }
    }
}

impl Policy for RateLimit {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        if self.remote.is_some() {
            return Step::Done(Flow::Suspend);
        }
        let mut longest = 0;
        for limiter in &self.limiters {
            let Some(text) = Self::text_of(limiter, parts, cx, state) else { continue };
            let outcome = self.count(limiter, &text, cx, state);
            if let Err(status) = self.conclude(outcome, &mut longest) {
                return Step::Done(cx.reply(status).done());
            }
        }
        if longest == 0 {
            return Step::Next;
        }
        state.delay = longest;
        Step::Done(Flow::Suspend)
    }

    fn wait<'a>(
        &'a self,
        parts: &'a Parts,
        cx: &'a mut RequestCx<'_>,
        state: &'a mut State,
        _: &'a dyn Io,
        _: Phase,
    ) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            if let Some(redis) = &self.remote {
                match self.ask(redis, parts, cx, state).await {
                    Ok(longest) => state.delay = longest,
                    Err(status) => return Step::Done(cx.reply(status).done()),
                }
            }
            let delay = std::mem::take(&mut state.delay);
            if delay > 0 {
                weir_runtime::sleep(Duration::from_millis(delay)).await;
            }
            Step::Next
        })
    }
}
