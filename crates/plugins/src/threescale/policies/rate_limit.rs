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
use crate::traffic::limit_count::counter::{Charge, MAX_COUNT, Quota, WindowKind};
use crate::traffic::limit_req::bucket::{Bucket, Rate};
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
    /// `None`: requests pass.
    exceeded: Option<u16>,
    failed: Option<u16>,
}

/// Keeps keys of this policy apart from those of others.
const DOMAIN: u32 = 1 << 29;

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let say = |name: &str, text: String| cx.say([Invalid::new(format!("{field}.{name}"), text)]);
    if !conf.redis_url.is_empty() {
        say("redis_url", "counts in Redis are not supported: they are those of this gateway, so leave it out".into());
        return None;
    }
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
enum Outcome {
    /// Milliseconds that the request waits.
    Passes(u64),
    Exceeded,
    /// There is no room for another count.
    Failed,
}

impl RateLimit {
    fn count(&self, limiter: &Limiter, name: &str, cx: &RequestCx<'_>, state: &mut State) -> Outcome {
        let text = format!("{}\0{name}", limiter.scope);
        let key = Key::new(DOMAIN, text.as_bytes());
        match limiter.measure {
            Measure::Connections { conn, burst, delay_ms } => {
                match Entered::take(&self.counts.connections, key, conn.saturating_add(burst), cx.now_ms()) {
                    Ok(Some((entered, taken))) => {
                        state.entered.push(entered);
                        let over = taken.saturating_sub(conn);
                        Outcome::Passes((delay_ms * over.div_ceil(conn) as f64) as u64)
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
        let mut longest = 0;
        let answer = |cx: &mut RequestCx<'_>, status: u16| Step::Done(cx.reply(status).done());
        for limiter in &self.limiters {
            let around = Around { view: cx.view(), state, names: &parts.names };
            if limiter.condition.as_ref().is_some_and(|condition| !condition.holds(&around)) {
                continue;
            }
            let name = limiter.name.render(&around).into_owned();
            let status = match self.count(limiter, &name, cx, state) {
                Outcome::Passes(wait) => {
                    longest = wait.max(longest);
                    continue;
                }
                Outcome::Exceeded => self.exceeded,
                Outcome::Failed => self.failed,
            };
            if let Some(status) = status {
                return answer(cx, status);
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
        _: &'a Parts,
        _: &'a mut RequestCx<'_>,
        state: &'a mut State,
        _: &'a dyn Io,
        _: Phase,
    ) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            weir_runtime::sleep(Duration::from_millis(std::mem::take(&mut state.delay))).await;
            Step::Next
        })
    }
}
