//! `limit-conn`: so many requests at once.

pub(crate) mod count;
pub(crate) mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, HookCx, Invalid, Io, LocalFuture, LogCx, PerRequest, Phases, Plugin, RequestCx,
};

use crate::traffic::amount::{Amount, AmountConf};
use crate::traffic::key::{KeySource, KeyType, Which};
use crate::traffic::policy::Policy;
use crate::traffic::redis::{self, Redis, RedisConf};
use crate::traffic::refusal::{Refusal, Told, Verdict};
use crate::traffic::table::{Full, Table};
use count::Count;
use remote::Remote;

/// The definition.
#[derive(Debug)]
pub(crate) struct LimitConn;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Requests that may be under way: an integer from 1 to 4294967295, or a text with variables that makes one for
    /// each request. Needs `burst` and `key`; not with `rules`.
    conn: Option<AmountConf>,
    /// Further requests that may be under way, each of which had to wait first: an integer from 0 to 4294967295, or a
    /// text with variables. Needs `conn`; not with `rules`.
    burst: Option<AmountConf<0>>,
    /// Several limits, all of which a request has to keep, in this order; instead of `conn`, `burst` and `key`.
    #[schemars(length(min = 1))]
    rules: Option<Vec<Rule>>,
    /// Seconds for which a request beyond `conn` waits, once for each time that `conn` fits into the requests before
    /// it.
    #[schemars(range(max = 86400), extend("exclusiveMinimum" = 0))]
    default_conn_delay: f64,
    /// True if that time stays as it is. Otherwise it follows the requests: after each one it is the mean of itself and
    /// of how long the upstream took.
    #[serde(default)]
    only_use_default_delay: bool,
    /// The key of a count: by `key_type` the name of a variable, without `$`, a text with variables, or a constant.
    /// A request that does not have it is counted by its address, and so are all when no variable has that name.
    /// Not with `rules`.
    #[schemars(length(min = 1))]
    key: Option<String>,
    /// The meaning of `key`.
    #[serde(default)]
    key_type: KeyType,
    /// Status of the answer to a request that is over the limit.
    #[serde(default = "service_unavailable")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The answer's body is `{"error_msg":"…"}` with this text; without it, with status and reason phrase.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// The place of the counts. `local`: in this process, shared by all its workers. `redis`, `redis-cluster`,
    /// `redis-sentinel`: in a Redis, shared by all gateways that have the same configuration.
    #[serde(default)]
    policy: Policy,
    /// Lets requests through when they cannot be counted: there is no room for another key (`limits.limit_keys`), Redis
    /// does not answer, a `conn` or `burst` from variables is no such number, or no rule concerns them. Otherwise they
    /// are answered with 500.
    #[serde(default)]
    allow_degradation: bool,
    /// With a policy of Redis: seconds after which a request counts no longer, whether or not it is under way. So the
    /// requests of a gateway that died go.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 1, max = 31_536_000))]
    key_ttl: u64,
    #[serde(flatten)]
    redis: RedisConf,
}

/// One limit among several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// As the outer `conn`. A request that the rule concerns and that makes no number of it is answered with 500.
    conn: AmountConf,
    /// As the outer `burst`. A request that the rule concerns and that makes no number of it is answered with 500.
    burst: AmountConf<0>,
    /// A text with variables: what is counted apart. The rule is skipped for a request that has none of them.
    #[schemars(length(min = 1))]
    key: String,
}

fn service_unavailable() -> u16 {
    503
}

fn an_hour() -> u64 {
    3600
}

/// Most requests that `conn` and `burst` may each allow.
const MAX_CONN: u64 = u32::MAX as u64;

impl Define for LimitConn {
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::ACCESS.and(Phases::LOG);
    const STREAMS: bool = true;
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;
    const DOC: &'static str = "\
Lets `conn` requests of each `key` be under way at once, and `burst` more after a wait; others are answered with \
`rejected_code`. Exact over all workers, however many requests come at once.

A request is under way from here until its exchange is over: its answer was sent, or the client reset the connection, the \
upstream failed, another plugin answered. A client that only closes its side may still read, so its request counts as long \
as the upstream works on it. A WebSocket is under way until it is closed. Should the gateway itself fail in the middle, the \
request counts no longer either.

The request that is the n-th under way, with n above `conn`, first waits for `default_conn_delay` times (n - 1) / `conn`, \
rounded down. Waiting holds no worker up.

With `policy: local` counts are kept in this process. They survive a change of the configuration that leaves this plugin's own configuration \
as it is; after another, requests that are under way are not counted any more. A limiter holds at most \
`limits.limit_keys` keys; those without a request make room, and when there is none, requests with new keys are answered \
with 500 unless `allow_degradation` is set.

With a policy of Redis a script counts there, so that the limit is exact over all gateways; the time to wait follows the \
requests of this process. A request that lasts longer than `key_ttl` counts no longer: see \
[limits in Redis](../redis.md).";
    const EXAMPLE: &'static str = "\
conn: 10
burst: 5
default_conn_delay: 0.1
key_type: var
key: remote_addr
rejected_code: 429
rejected_msg: too many requests at once
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let topology = cx.ok(conf.redis.topology(conf.policy));
        let unit = cx.ok(conf.unit_us());
        let limits = cx.ok(conf.limits());
        cx.say(conf.key.as_deref().and_then(|key| KeySource::warning(key, conf.key_type)));
        cx.add(RedisConf::unused(cx.conf()));
        let (unit, limits, topology) = (unit?, limits?, topology?);
        Some(Compiled::build(move |build| {
            let version = redis::version(build.place, build.conf, &["conn", "burst", "key", "key_type", "rules"]);
            let redis = topology.map(|topology| {
                let servers = (&conf.redis, conf.policy, topology);
                Redis::new(servers, &version, conf.allow_degradation, build)
            });
            let redis = redis.transpose()?;
            let state_key = format!("limit-conn {} {} {}", build.place, build.conf.to_json(), build.limit_keys);
            let state = || State {
                counts: Table::new(build.limit_keys),
                units: limits.iter().map(|_| AtomicU64::new(unit)).collect(),
            };
            let state = build.states.get_or_create(&state_key, state);
            let follows = !conf.only_use_default_delay && limits.iter().any(|limit| !limit.never_waits());
            Ok(Limiting {
                limits,
                state,
                remote: redis.map(|redis| Remote::new(redis, conf.key_ttl)),
                follows,
                refusal: Refusal::new(conf.rejected_code, conf.rejected_msg.as_deref(), conf.allow_degradation),
            })
        }))
    }
}

impl Conf {
    /// `default_conn_delay` in microseconds.
    fn unit_us(&self) -> Result<u64, Invalid> {
        let seconds = self.default_conn_delay;
        // YAML has a number for what is none.
        if seconds.is_nan() || seconds <= 0.0 {
            return Err(Invalid::new("default_conn_delay", format!("expected a number above 0, found {seconds}")));
        }
        Ok((seconds * 1e6) as u64)
    }

    fn limits(&self) -> Result<Box<[Limit]>, Invalid> {
        let missing = |field: &str| Invalid::new("", format!("the field {field} is missing"));
        let Some(rules) = &self.rules else {
            let (conn, burst) = match (&self.conn, &self.burst) {
                (Some(conn), Some(burst)) => (conn, burst),
                (None, None) => return Err(Invalid::new("", "conn, burst and key are missing, or rules")),
                (None, _) => return Err(missing("conn")),
                (_, None) => return Err(missing("burst")),
            };
            let key = self.key.as_deref().ok_or_else(|| missing("key"))?;
            return Ok(Box::new([Limit {
                number: 0,
                conn: conn.compile("conn", MAX_CONN)?,
                burst: burst.compile("burst", MAX_CONN)?,
                key: KeySource::compile(key, self.key_type, false)?,
                entered: PerRequest::new(),
            }]));
        };
        if self.conn.is_some() || self.burst.is_some() || self.key.is_some() {
            return Err(Invalid::new("rules", "expected either conn, burst and key or rules"));
        }
        let limit = |(at, rule): (usize, &Rule)| {
            let field = |name: &str| format!("rules[{at}].{name}");
            if rules.iter().take(at).any(|other| other.key == rule.key) {
                return Err(Invalid::new(field("key"), format!("there are two rules with the key {:?}", rule.key)));
            }
            Ok(Limit {
                number: at as u32 + 1,
                conn: rule.conn.compile(&field("conn"), MAX_CONN)?,
                burst: rule.burst.compile(&field("burst"), MAX_CONN)?,
                key: KeySource::compile_rule(&rule.key, field("key"))?,
                entered: PerRequest::new(),
            })
        };
        rules.iter().enumerate().map(limit).collect()
    }
}

/// An instance.
#[derive(Debug)]
struct Limiting {
    limits: Box<[Limit]>,
    state: Arc<State>,
    /// The Redis that holds the counts.
    remote: Option<Remote>,
    /// True if the time to wait follows the requests.
    follows: bool,
    refusal: Refusal,
}

/// One limit.
#[derive(Debug)]
struct Limit {
    /// 0, or a rule's place from 1: their keys are apart.
    number: u32,
    conn: Amount,
    burst: Amount<0>,
    key: KeySource,
    /// The place of a request.
    entered: PerRequest<Entered>,
}

/// A request that counts, or that asks to.
#[derive(Debug)]
struct Entered {
    /// Microseconds that it waits; `None` while it has no place.
    wait: Option<u64>,
    _place: HeldShare,
}

/// A place among the requests under way, which is given back when it is dropped.
#[derive(Debug)]
enum HeldShare {
    Here { _held: LocalShare },
    Redis { _held: Arc<remote::Entry> },
}

#[derive(Debug)]
struct LocalShare {
    state: Arc<State>,
    which: Which,
}

impl Drop for LocalShare {
    fn drop(&mut self) {
        // A key that has requests stays in its table.
        self.state.counts.look(self.which, Count::leave);
    }
}

/// The state that outlives a change of the configuration.
#[derive(Debug)]
struct State {
    counts: Table<Count>,
    /// For each limit, how long one takes for whom the next has to wait, in microseconds.
    units: Box<[AtomicU64]>,
}

impl Plugin for Limiting {
    fn phases(&self, declared: Phases) -> Phases {
        if self.follows { declared } else { declared.without(Phases::LOG) }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.remote.is_some() {
            return Flow::Suspend;
        }
        let mut told = Told::default();
        for (limit, unit) in self.limits.iter().zip(&self.state.units) {
            let verdict = self.enter(limit, unit, cx);
            if let Some(flow) = self.refusal.conclude(verdict, &mut told, cx) {
                return flow;
            }
        }
        match told {
            Told { asked: false, .. } => self.refusal.fail(cx, NO_RULE),
            Told { waits: true, .. } => Flow::Suspend,
            Told { waits: false, .. } => Flow::Continue,
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long it waits.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            if let Some(remote) = &self.remote {
                let mut told = Told::default();
                for (limit, unit) in self.limits.iter().zip(&self.state.units) {
                    let verdict = self.enter_remote(remote, limit, unit, cx).await;
                    if let Some(flow) = self.refusal.conclude(verdict, &mut told, cx) {
                        return flow;
                    }
                }
                match told {
                    Told { asked: false, .. } => return self.refusal.fail(cx, NO_RULE),
                    Told { waits: false, .. } => return Flow::Continue,
                    Told { waits: true, .. } => {}
                }
            }
            let waits = self.limits.iter().filter_map(|limit| limit.entered.get(cx)?.wait);
            let wait = waits.fold(0, u64::saturating_add);
            weir_runtime::sleep(Duration::from_micros(wait)).await;
            Flow::Continue
        })
    }

    fn log(&self, cx: &LogCx<'_>) {
        let exchange = cx.view();
        let whole = exchange.duration();
        for (limit, unit) in self.limits.iter().zip(&self.state.units) {
            let Some(waited) = limit.entered.get(cx).and_then(|entered| entered.wait) else { continue };
            let took = exchange.upstream_us().unwrap_or(whole.saturating_sub(waited));
            // One of two that end at once may be lost: it is a mean of what is usual.
            unit.store(unit.load(Relaxed).midpoint(took), Relaxed);
        }
    }
}

const NO_RULE: &str = "limit-conn: no rule concerns the request";
const NO_NUMBER: &str = "limit-conn: conn or burst is not a number in bounds";

impl Limiting {
    fn enter(&self, limit: &Limit, unit: &AtomicU64, cx: &mut RequestCx<'_>) -> Verdict {
        // Only the lack of its key keeps a rule from a request: a client must not switch it off with a number's field.
        let Some(which) = limit.key.which(limit.number, cx) else { return Verdict::Skipped };
        let Some((conn, burst)) = limit.bounds(cx) else { return Verdict::Failed(NO_NUMBER) };
        let place = match self.state.counts.ask(which, cx.now_ms(), 0, |count| count.enter(conn + burst)) {
            Ok(Some(place)) => place,
            Ok(None) => return Verdict::Rejected,
            Err(Full) => return Verdict::Failed("limit-conn: no room for another key"),
        };
        let held = LocalShare { state: Arc::clone(&self.state), which };
        let wait = wait(unit, place, conn);
        limit.entered.put(cx, Entered { wait: Some(wait), _place: HeldShare::Here { _held: held } });
        pass(wait)
    }

    async fn enter_remote(&self, remote: &Remote, limit: &Limit, unit: &AtomicU64, cx: &mut RequestCx<'_>) -> Verdict {
        let mut key = cx.take_scratch();
        let concerned = remote.redis.write_key(&limit.key, limit.number, cx, &mut key);
        let own = concerned.then(|| Box::<[u8]>::from(key.as_slice()));
        cx.put_scratch(key);
        let Some(key) = own else { return Verdict::Skipped };
        let Some((conn, burst)) = limit.bounds(cx) else { return Verdict::Failed(NO_NUMBER) };
        let entry = remote.entry(key);
        let held = HeldShare::Redis { _held: Arc::clone(&entry) };
        limit.entered.put(cx, Entered { wait: None, _place: held });
        match entry.enter(conn + burst).await {
            Ok(Some(place)) => {
                let wait = wait(unit, place, conn);
                if let Some(entered) = limit.entered.get_mut(cx) {
                    entered.wait = Some(wait);
                }
                pass(wait)
            }
            Ok(None) => Verdict::Rejected,
            Err(_) => Verdict::Failed("limit-conn: Redis cannot be asked"),
        }
    }
}

/// Microseconds that a request waits which is at this place among those under way.
fn wait(unit: &AtomicU64, place: u64, conn: u64) -> u64 {
    if place > conn { unit.load(Relaxed).saturating_mul((place - 1) / conn.max(1)) } else { 0 }
}

/// A request passes, at once or after this wait.
fn pass(wait: u64) -> Verdict {
    if wait >= SHORTEST_WAIT { Verdict::Waits } else { Verdict::Passed }
}

/// Microseconds; for less nobody waits.
const SHORTEST_WAIT: u64 = 1000;

impl Limit {
    /// `conn` and `burst` for a request; `None` when its variables make no number in bounds.
    fn bounds(&self, cx: &mut RequestCx<'_>) -> Option<(u64, u64)> {
        Some((self.conn.resolve(cx, MAX_CONN)?, self.burst.resolve(cx, MAX_CONN)?))
    }

    fn never_waits(&self) -> bool {
        matches!(self.burst, Amount::Number(0))
    }
}
