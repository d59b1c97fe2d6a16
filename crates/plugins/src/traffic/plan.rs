//! `plan`: what a caller may call, and how much.

mod calendar;
mod counts;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::{json_schema, read};
use weir_config::{Diagnostic, Node, Period, PlanScope, PlanWindow};
use weir_expr::{Value, Variable};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plan, PlanAccess, PlanLimit, PlanPath, Plugin,
    RequestCx, Tables,
};
use weir_wire::name::FieldName;

pub use self::counts::{PlanCount, PlanCounts};
use crate::traffic::limit_count::counter::{Quota, Taken, WindowKind};
use crate::traffic::limit_count::remote;
use crate::traffic::policy::Policy;
use crate::traffic::redis::{Redis, RedisConf};

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

/// `plugin_metadata` of `plan`: where counts are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// The place of the counts of all plans. `local`: in this process, shared by all its workers. `redis`,
    /// `redis-cluster`, `redis-sentinel`: in a Redis, shared by all gateways, which is asked for each limit of each
    /// request.
    policy: Policy,
    /// Lets requests through when Redis does not answer. Otherwise they are answered with 500.
    allow_degradation: bool,
    #[serde(flatten)]
    redis: RedisConf,
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
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = read::<Metadata>(metadata)?;
        let mut found = RedisConf::unused(metadata);
        if let Err(Invalid { path, code, .. }) = typed.redis.topology(typed.policy) {
            found.push(Diagnostic::error(metadata.mark_of(&path), &*path, *code));
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let repeated = conf.plans.iter().enumerate().find(|(at, plan)| conf.plans.iter().take(*at).any(|p| p == *plan));
        if let Some((at, plan)) = repeated {
            cx.say([Invalid::new(format!("plans[{at}]"), format!("the plan '{plan}' stands twice"))]);
            return None;
        }
        Some(Compiled::build(move |build| {
            let metadata = build.metadata::<Metadata>()?;
            let redis = metadata.redis.topology(metadata.policy)?.map(|topology| {
                let servers = (&metadata.redis, metadata.policy, topology);
                Redis::new(servers, "count", metadata.allow_degradation, build)
            });
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
                redis: redis.transpose()?,
                degrades: metadata.allow_degradation,
                counts: PlanCounts::of(build.states, build.limit_keys),
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
    counts: Arc<PlanCounts>,
    /// The Redis that holds the counts instead.
    redis: Option<Redis>,
    degrades: bool,
}

/// Names of the fields about a limit.
static FIELDS: LazyLock<[FieldName; 3]> =
    LazyLock::new(|| ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"].map(FieldName::constant));

impl Plugin for Planned {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(tables) = cx.tables() else { return cx.fail(500, NO_TABLES) };
        match self.plan(&tables, cx) {
            Ok(plan) if self.redis.is_some() && !plan.limits.is_empty() => Flow::Suspend,
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
            let (Some(redis), Some(tables)) = (&self.redis, cx.tables()) else { return cx.fail(500, NO_TABLES) };
            match self.plan(&tables, cx) {
                Ok(plan) => self.count_remote(redis, plan, &tables, cx).await,
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

    /// Counts a request against all limits of a plan.
    fn count(&self, plan: &Plan, tables: &Tables, cx: &mut RequestCx<'_>) -> Flow {
        let now = cx.unix_ms();
        let mut tightest = None;
        for limit in &plan.limits {
            let mut text = cx.take_scratch();
            self.write_key(plan, limit, tables, cx, &mut text);
            let quota = quota(limit, now);
            let taken = self.counts.take(&text, now, &quota, length(limit.per));
            cx.put_scratch(text);
            let Ok(taken) = taken else { return cx.fail(500, "plan: no room for another count") };
            if let Some(refusal) = self.conclude(limit, taken, &mut tightest, cx) {
                return refusal;
            }
        }
        self.pass(tightest, cx)
    }

    /// The same in a Redis.
    async fn count_remote(&self, redis: &Redis, plan: &Plan, tables: &Tables, cx: &mut RequestCx<'_>) -> Flow {
        let now = cx.unix_ms();
        let mut tightest = None;
        for limit in &plan.limits {
            let mut key = cx.take_scratch();
            redis.write_prefix(&mut key);
            self.write_key(plan, limit, tables, cx, &mut key);
            let quota = quota(limit, now);
            let counted = remote::count(redis, &key, &quota, 1, false).await;
            cx.put_scratch(key);
            let taken = match counted {
                Ok(counted) => Taken {
                    passed: counted.passed,
                    remaining: if counted.passed { limit.count.saturating_sub(counted.used) } else { 0 },
                    // Redis has no window where no request may pass.
                    reset: if counted.left == 0 { quota.window } else { counted.left },
                },
                Err(_) if self.degrades => continue,
                Err(_) => return cx.fail(500, "plan: Redis cannot be asked"),
            };
            if let Some(refusal) = self.conclude(limit, taken, &mut tightest, cx) {
                return refusal;
            }
        }
        self.pass(tightest, cx)
    }

    /// The refusal by a limit. Otherwise it is the tightest so far, or not.
    fn conclude(
        &self,
        limit: &PlanLimit,
        taken: Taken,
        tightest: &mut Option<(u64, Taken)>,
        cx: &mut RequestCx<'_>,
    ) -> Option<Flow> {
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
        const PERIODS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];
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
        let period = PERIODS.get(limit.per as usize).copied().unwrap_or_default();
        out.extend_from_slice(caller.as_bytes());
        if let Some(key) = cx.consumer().filter(|_| self.of_key).and_then(|who| tables.consumers.credential(who)) {
            out.push(b'/');
            out.extend_from_slice(key.as_bytes());
        }
        out.push(b':');
        for part in [&*plan.id.text, period, window, scope] {
            out.extend_from_slice(part.as_bytes());
            out.push(b':');
        }
        if let Some(Value::Bytes(id)) = apart {
            out.extend_from_slice(id);
        }
    }
}

/// True if a plan lets a request through.
fn includes(plan: &Plan, cx: &RequestCx<'_>) -> bool {
    plan.access.as_ref().is_none_or(|entries| entries.iter().any(|entry| fits(entry, cx)))
}

fn fits(entry: &PlanAccess, cx: &RequestCx<'_>) -> bool {
    let has = |ids: &Option<Box<[Box<str>]>>, variable: &Variable| {
        ids.as_ref().is_none_or(|ids| match cx.variable(variable) {
            Some(Value::Bytes(id)) => ids.iter().any(|one| one.as_bytes() == id),
            _ => false,
        })
    };
    let request = cx.request();
    has(&entry.routes, &Variable::RouteId)
        && has(&entry.services, &Variable::ServiceId)
        && entry.methods.as_ref().is_none_or(|all| all.iter().any(|one| one.as_bytes() == request.method_bytes()))
        && entry.paths.as_ref().is_none_or(|paths| {
            let path = request.path();
            // Whoever reads the path in another way might see one that is not included.
            !request.has_other_readings()
                && paths.iter().any(|one| match one {
                    PlanPath::Whole(whole) => path == whole.as_bytes(),
                    PlanPath::Beginning(beginning) => path.starts_with(beginning.as_bytes()),
                })
        })
}

/// A limit as a counter knows it, at a time in milliseconds since 1970.
fn quota(limit: &PlanLimit, now: u64) -> Quota {
    let length = length(limit.per);
    let (window, kind) = match limit.window {
        PlanWindow::Fixed => (length, WindowKind::Fixed),
        PlanWindow::Sliding => (length, WindowKind::Sliding),
        // A window that begins now ends with the period.
        PlanWindow::Calendar => (calendar::left(limit.per, now).unwrap_or(length), WindowKind::Fixed),
    };
    Quota { count: limit.count, window, kind }
}

/// Milliseconds of a period outside of a calendar.
fn length(per: Period) -> u64 {
    const DAY: u64 = 86_400_000;
    match per {
        Period::Second => 1000,
        Period::Minute => 60_000,
        Period::Hour => 3_600_000,
        Period::Day => DAY,
        Period::Week => 7 * DAY,
        Period::Month => 30 * DAY,
        Period::Year => 365 * DAY,
    }
}
