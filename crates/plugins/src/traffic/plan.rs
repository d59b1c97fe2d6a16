//! `plan`: what a caller may call, and how much.

mod counts;
mod rights;
mod watch;

use std::sync::LazyLock;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::{json_schema, read};
use weir_config::{Diagnostic, Node, Period, PlanScope, PlanWindow};
use weir_expr::{Value, Variable};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plan, PlanLimit, Plugin, RequestCx, Tables,
};
use weir_wire::name::FieldName;

pub use self::counts::{PlanCount, PlanCounts};
pub use self::watch::{QuotaUse, QuotaWatch};
use crate::traffic::limit_count::counter::{Charge, Taken};
use crate::traffic::meter::{Meter, MeterConf, Metered, Span, length};
use rights::{includes, units};

/// The definition.
#[derive(Debug)]
pub(crate) struct OnPlan;

/// On a consumer or a consumer group; on a route, a service or a global rule for consumers without it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Ids of plans. The first of them that lets the request through by its `access` is the one whose limits hold.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1)))]
    plans: Vec<String>,
    /// Time in seconds since 1970 from which requests are answered with 401. Without it, or with 0, never.
    #[serde(default)]
    expires: u64,
    /// Answers requests with 403 as long as it is true.
    #[serde(default)]
    suspended: bool,
    /// Tells the client the limit, what remains of it and the seconds until it is renewed, on every answer: of the
    /// limit of which the least remains.
    #[serde(default = "yes")]
    #[schemars(extend("default" = true))]
    show_limit_headers: bool,
}

fn yes() -> bool {
    true
}

impl Define for OnPlan {
    const NAME: &'static str = "plan";
    const PRIORITY: i32 = 2390;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Puts callers on [plans](../plans.md): resources that say what may be called, and how much. On a consumer or its group it \
goes with the caller to every route. On a route, a service or a global rule it holds for consumers without a plan of their \
own there.

The caller is the consumer that an authentication plugin has found.

| answer | when |
|---|---|
| 401 `The plan needs to know who calls` | there is no consumer |
| 403 `The key is suspended`, 401 `The key has expired` | `suspended`, `expires` |
| 403 `The plan does not include this` | no plan has it in its `access` |
| 429 `The rate limit is exceeded`, with `Retry-After` | a limit of at most an hour is used up |
| 429 `The quota is exceeded`, with `Retry-After` | a longer limit is used up |
| 500 | there is no room for another count (`limits.limit_keys`) |

`X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` are on every answer behind a limit. A changed plan \
holds for the next request, and counts go on under the new limit. Counts are kept in this process, for all its workers, and \
outlive it in a file of the data directory, or in a Redis where `plugin_metadata` says so.";
    const EXAMPLE: &'static str = "\
plans: [gold]
expires: 4102444800
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<MeterConf>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let found = read::<MeterConf>(metadata)?.check(metadata);
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let repeated = conf.plans.iter().enumerate().find(|(at, plan)| conf.plans.iter().take(*at).any(|p| p == *plan));
        if let Some((at, plan)) = repeated {
            cx.say([Invalid::new(format!("plans[{at}]"), format!("the plan '{plan}' stands twice"))]);
            return None;
        }
        Some(Compiled::build(move |build| {
            let meter = Meter::new(&build.metadata::<MeterConf>()?, build)?;
            let find = |(at, id): (usize, &String)| {
                let plan = build.plans.find(id);
                plan.ok_or_else(|| Invalid::new(format!("plans[{at}]"), format!("there is no plan '{id}'")))
            };
            Ok(Planned {
                plans: conf.plans.iter().enumerate().map(find).collect::<Result<_, _>>()?,
                expires: if conf.expires == 0 { u64::MAX } else { conf.expires.saturating_mul(1000) },
                suspended: conf.suspended,
                of_key: build.place.starts_with("credential/"),
                shows: conf.show_limit_headers,
                meter,
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Planned {
    /// Their numbers.
    plans: Box<[u32]>,
    /// Milliseconds since 1970.
    expires: u64,
    suspended: bool,
    /// True for the plan of one credential, whose requests count apart from those of its consumer's other keys.
    of_key: bool,
    shows: bool,
    meter: Meter,
}

/// Names of the fields about a limit.
static FIELDS: LazyLock<[FieldName; 3]> =
    LazyLock::new(|| ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"].map(FieldName::constant));

impl Plugin for Planned {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(tables) = cx.tables() else { return cx.fail(500, NO_TABLES) };
        match self.plan(&tables, cx) {
            Ok(plan) => self.count(plan, &tables, cx),
            Err(refusal) => refusal,
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long Redis is waited for.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(tables) = cx.tables() else { return cx.fail(500, NO_TABLES) };
            match self.plan(&tables, cx) {
                Ok(plan) => self.count_waiting(plan, &tables, cx).await,
                Err(refusal) => refusal,
            }
        })
    }
}

const NO_TABLES: &str = "plan: there is no configuration";

impl Planned {
    /// The plan that holds for a request, or the refusal.
    fn plan<'t>(&self, tables: &'t Tables, cx: &mut RequestCx<'_>) -> Result<&'t Plan, Flow> {
        if cx.consumer().is_none() {
            return Err(cx.refuse(401, "The plan needs to know who calls"));
        }
        if self.suspended {
            return Err(cx.refuse(403, "The key is suspended"));
        }
        if cx.unix_ms() >= self.expires {
            return Err(cx.refuse(401, "The key has expired"));
        }
        let mut plans = self.plans.iter().filter_map(|number| Some((*number, tables.plans.get(*number)?)));
        let Some((number, plan)) = plans.find(|(_, plan)| includes(plan, cx)) else {
            return Err(cx.refuse(403, "The plan does not include this"));
        };
        cx.set_plan(number);
        Ok(plan)
    }

    /// Counts a request against all limits of a plan, or lets it wait. Nothing is counted then.
    fn count(&self, plan: &Plan, tables: &Tables, cx: &mut RequestCx<'_>) -> Flow {
        let mut is_ready = |limit: &PlanLimit| {
            self.with_charge(plan, limit, tables, cx, |name, _, charge| self.meter.is_ready(name, charge))
        };
        if plan.limits.len() > 1 && !plan.limits.iter().all(|limit| is_ready(limit).unwrap_or(true)) {
            return Flow::Suspend;
        }
        let mut tightest = None;
        for limit in &plan.limits {
            let metered =
                self.with_charge(plan, limit, tables, cx, |name, now, charge| self.meter.charge_now(name, now, charge));
            let metered = match metered {
                None => continue,
                // Of several limits each is ready.
                Some(None) => return Flow::Suspend,
                Some(Some(metered)) => metered,
            };
            if let Some(refusal) = self.conclude(limit, metered, &mut tightest, cx) {
                return refusal;
            }
        }
        self.pass(tightest, cx)
    }

    /// The same with waits for Redis.
    async fn count_waiting(&self, plan: &Plan, tables: &Tables, cx: &mut RequestCx<'_>) -> Flow {
        let mut tightest = None;
        for limit in &plan.limits {
            let Some((name, now, charge)) = self.charge(plan, limit, tables, cx) else { continue };
            let metered = self.meter.charge(&name, now, &charge).await;
            cx.put_scratch(name);
            if let Some(refusal) = self.conclude(limit, metered, &mut tightest, cx) {
                return refusal;
            }
        }
        self.pass(tightest, cx)
    }

    /// Does something with the name of a limit's count and the charge; `None`: the limit does not concern the request.
    fn with_charge<T>(
        &self,
        plan: &Plan,
        limit: &PlanLimit,
        tables: &Tables,
        cx: &mut RequestCx<'_>,
        then: impl FnOnce(&mut Vec<u8>, u64, &Charge) -> T,
    ) -> Option<T> {
        let (mut name, now, charge) = self.charge(plan, limit, tables, cx)?;
        let done = then(&mut name, now, &charge);
        cx.put_scratch(name);
        Some(done)
    }

    /// The name of a limit's count, in scratch memory of the request, the time, and the charge.
    fn charge(
        &self,
        plan: &Plan,
        limit: &PlanLimit,
        tables: &Tables,
        cx: &mut RequestCx<'_>,
    ) -> Option<(Vec<u8>, u64, Charge)> {
        let units = units(plan, limit, cx).filter(|units| *units > 0)?;
        let mut name = cx.take_scratch();
        self.meter.begin(&mut name);
        self.write_key(plan, limit, tables, cx, &mut name);
        let now = cx.unix_ms();
        Some((name, now, span(limit).charge(limit.count, units, now)))
    }

    /// The refusal by a limit. Otherwise it is the tightest so far, or not.
    fn conclude(
        &self,
        limit: &PlanLimit,
        metered: Metered,
        tightest: &mut Option<(u64, Taken)>,
        cx: &mut RequestCx<'_>,
    ) -> Option<Flow> {
        let taken = match metered {
            Ok(taken) => taken?,
            Err(uncounted) => return Some(cx.fail(500, uncounted.reason())),
        };
        if !taken.passed {
            return Some(self.reject(limit, taken, cx));
        }
        if tightest.is_none_or(|(_, other)| taken.remaining < other.remaining) {
            *tightest = Some((limit.count, taken));
        }
        None
    }

    fn pass(&self, tightest: Option<(u64, Taken)>, cx: &mut RequestCx<'_>) -> Flow {
        if let Some((count, taken)) = tightest {
            self.tell(count, taken, cx);
        }
        Flow::Continue
    }

    fn reject(&self, limit: &PlanLimit, taken: Taken, cx: &mut RequestCx<'_>) -> Flow {
        self.tell(limit.count, taken, cx);
        let message = match limit.per {
            Period::Second | Period::Minute | Period::Hour => "The rate limit is exceeded",
            _ => "The quota is exceeded",
        };
        let mut after = cx.take_scratch();
        weir_wire::push_number(&mut after, taken.reset.div_ceil(1000));
        let flow = cx.reply(429).field("Retry-After", &after).message(message).done();
        cx.put_scratch(after);
        flow
    }

    /// Sets the fields about a limit for the client.
    fn tell(&self, count: u64, taken: Taken, cx: &mut RequestCx<'_>) {
        if self.shows {
            let [limit, remaining, reset] = &*FIELDS;
            cx.set_response_field(limit, |out| weir_wire::push_number(out, count));
            cx.set_response_field(remaining, |out| weir_wire::push_number(out, taken.remaining));
            cx.set_response_field(reset, |out| weir_wire::push_number(out, taken.reset.div_ceil(1000)));
        }
    }

    /// Writes the key of a count: by caller, plan, kind of limit, and what the limit counts apart. The number of requests is not
    /// in it, so that a changed limit goes on with the same count.
    fn write_key(&self, plan: &Plan, limit: &PlanLimit, tables: &Tables, cx: &RequestCx<'_>, out: &mut Vec<u8>) {
        let caller = cx.consumer().and_then(|who| tables.consumers.get(who.consumer));
        let caller = caller.map_or("", |caller| &*caller.name.text);
        let window = match limit.window {
            PlanWindow::Fixed => "fixed",
            PlanWindow::Sliding => "sliding",
            PlanWindow::Calendar => "calendar",
        };
        let (scope, apart) = match limit.scope {
            PlanScope::Plan => ("plan", None),
            PlanScope::Service => ("service", cx.variable(&Variable::ServiceId)),
            PlanScope::Route => ("route", cx.variable(&Variable::RouteId)),
        };
        let period = period_name(limit.per);
        out.extend_from_slice(caller.as_bytes());
        if let Some(key) = cx.consumer().filter(|_| self.of_key).and_then(|who| tables.consumers.credential(who)) {
            out.push(b'/');
            out.extend_from_slice(key.as_bytes());
        }
        out.push(b':');
        for part in [&*plan.id.text, period, window] {
            out.extend_from_slice(part.as_bytes());
            out.push(b':');
        }
        out.extend_from_slice(scope.as_bytes());
        if let Some(metric) = limit.metric.and_then(|at| plan.metrics.get(usize::from(at))) {
            out.push(b'/');
            out.extend_from_slice(metric.name.as_bytes());
        }
        out.push(b':');
        if let Some(Value::Bytes(id)) = apart {
            out.extend_from_slice(id);
        }
    }
}

/// The name of a period, as it is written.
fn period_name(period: Period) -> &'static str {
    match period {
        Period::Second => "second",
        Period::Minute => "minute",
        Period::Hour => "hour",
        Period::Day => "day",
        Period::Week => "week",
        Period::Month => "month",
        Period::Year => "year",
    }
}

/// The periods of a limit.
fn span(limit: &PlanLimit) -> Span {
    match limit.window {
        PlanWindow::Fixed => Span::Fixed(length(limit.per)),
        PlanWindow::Sliding => Span::Sliding(length(limit.per)),
        PlanWindow::Calendar => Span::Calendar(limit.per),
    }
}
