//! `limit-conn`: so many requests at once.

mod count;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BuildCx, Define, Flow, Hold, Invalid, Io, LocalFuture, LogCx, Mark, Note, Phases, Plugin, RequestCx,
};

use crate::rejection;
use crate::traffic::amount::{Amount, AmountConf};
use crate::traffic::key::{KeySource, KeyType, Which};
use crate::traffic::policy::Policy;
use crate::traffic::table::{Full, Table};
use count::Count;

/// The definition.
#[derive(Debug)]
pub(crate) struct LimitConn;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// How many requests may be under way: an integer from 1 to 4294967295, or a text with variables that makes one for
    /// each request. Needs `burst` and `key`; not with `rules`.
    conn: Option<AmountConf>,
    /// How many more may be under way that had to wait first: an integer from 0 to 4294967295, or a text with variables.
    /// Needs `conn`; not with `rules`.
    burst: Option<AmountConf<0>>,
    /// Several limits, all of which a request has to keep, in this order; instead of `conn`, `burst` and `key`.
    #[schemars(length(min = 1))]
    rules: Option<Vec<Rule>>,
    /// Seconds for which a request beyond `conn` waits, once for each time that `conn` fits into the requests before it.
    #[schemars(range(max = 86400), extend("exclusiveMinimum" = 0))]
    default_conn_delay: f64,
    /// Whether that time stays as it is. Otherwise it follows the requests: after each one it is the mean of itself and
    /// of how long the upstream took.
    #[serde(default)]
    only_use_default_delay: bool,
    /// What is counted apart: by `key_type` the name of a variable, without `$`, a text with variables, or a constant.
    /// A request that does not have it is counted by its address, and so are all when no variable has that name.
    /// Not with `rules`.
    #[schemars(length(min = 1))]
    key: Option<String>,
    /// How `key` is read.
    #[serde(default)]
    key_type: KeyType,
    /// Status of the answer to a request that is over the limit.
    #[serde(default = "service_unavailable")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The answer's body is `{"error_msg":"…"}` with this text; without it, with status and reason phrase.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Where the counts are kept. Only `local`, in this process and shared by all its workers, is supported yet.
    #[serde(default)]
    policy: Policy,
    /// Lets requests through when they cannot be counted: there is no room for another key (`limits.limit_keys`), a
    /// `conn` or `burst` from variables is no such number, or no rule concerns them. Otherwise they are answered with
    /// 500.
    #[serde(default)]
    allow_degradation: bool,
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

/// Most requests that `conn` and `burst` may each allow.
const MAX_CONN: u64 = u32::MAX as u64;

impl Define for LimitConn {
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::ACCESS.and(Phases::LOG);
    const DOC: &'static str = "\
Lets `conn` requests of each `key` be under way at once, and `burst` more after a wait; others are answered with \
`rejected_code`. Exact over all workers, however many requests come at once.

A request is under way from here until its exchange is over: its answer was sent, or the client reset the connection, the \
upstream failed, another plugin answered. A client that only closes its side may still read, so its request counts as long \
as the upstream works on it. A WebSocket is under way until it is closed. Should the gateway itself fail in the middle, the \
request counts no longer either.

The request that is the n-th under way, with n above `conn`, first waits for `default_conn_delay` times (n - 1) / `conn`, \
rounded down. Waiting holds no worker up.

Counts are kept in this process. They survive a change of the configuration that leaves this plugin's own configuration \
as it is; after another, requests that are under way are not counted any more. A limiter holds at most \
`limits.limit_keys` keys; those without a request make room, and when there is none, requests with new keys are answered \
with 500 unless `allow_degradation` is set.";
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

    fn check(conf: &Conf) -> Result<(), Vec<Invalid>> {
        let mut faults = Vec::new();
        faults.extend(conf.policy.check().err());
        faults.extend(conf.unit_us().err());
        faults.extend(conf.limits().err());
        faults.extend(conf.key.as_deref().and_then(|key| KeySource::warning(key, conf.key_type)));
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn build(conf: Conf, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        conf.policy.check()?;
        let unit = conf.unit_us()?;
        let limits = conf.limits()?;
        let state_key = format!("limit-conn {} {} {}", cx.place, cx.conf.to_json(), cx.limit_keys);
        let state = || State {
            counts: Table::new(cx.limit_keys),
            units: limits.iter().map(|_| AtomicU64::new(unit)).collect(),
        };
        let state = cx.states.get_or_create(&state_key, state);
        let follows = !conf.only_use_default_delay && limits.iter().any(|limit| !limit.never_waits());
        Ok(Arc::new(Limiting {
            limits,
            state,
            follows,
            code: conf.rejected_code,
            body: rejection::error_msg(conf.rejected_code, conf.rejected_msg.as_deref()),
            degrade: conf.allow_degradation,
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
                entered: Mark::unique(),
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
                entered: Mark::unique(),
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
    /// Whether the time to wait follows the requests.
    follows: bool,
    code: u16,
    body: Vec<u8>,
    degrade: bool,
}

/// One limit.
#[derive(Debug)]
struct Limit {
    /// 0, or a rule's place from 1: their keys are apart.
    number: u32,
    conn: Amount,
    burst: Amount<0>,
    key: KeySource,
    /// Under which is noted of a request that counts here how long it waits for that, in microseconds.
    entered: Mark,
}

/// What outlives a change of the configuration.
#[derive(Debug)]
struct State {
    counts: Table<Count>,
    /// For each limit, how long one takes for whom the next has to wait, in microseconds.
    units: Box<[AtomicU64]>,
}

impl Hold for State {
    fn release(&self, note: Note) {
        // A key that has requests stays in its table.
        self.counts.look(Which::from_note(note), Count::leave);
    }
}

impl Plugin for Limiting {
    fn phases(&self, declared: Phases) -> Phases {
        if self.follows { declared } else { declared.without(Phases::LOG) }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let (mut asked, mut waits) = (false, false);
        for (limit, unit) in self.limits.iter().zip(&self.state.units) {
            match self.enter(limit, unit, cx) {
                Verdict::Passed => asked = true,
                Verdict::Waits => (asked, waits) = (true, true),
                Verdict::Skipped => {}
                Verdict::Rejected => {
                    let answer = cx.reply(self.code).field("Content-Type", b"text/plain; charset=utf-8");
                    return answer.body(&self.body).done();
                }
                Verdict::Failed(reason) => return self.fail(cx, reason),
            }
        }
        match (asked, waits) {
            (false, _) => self.fail(cx, "limit-conn: no rule concerns the request"),
            (true, true) => Flow::Suspend,
            (true, false) => Flow::Continue,
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long it waits.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let waits = self.limits.iter().filter_map(|limit| cx.noted(limit.entered));
            let wait = waits.fold(0, |all: u64, [wait, _]| all.saturating_add(wait));
            weir_runtime::sleep(Duration::from_micros(wait)).await;
            Flow::Continue
        })
    }

    fn log(&self, cx: &LogCx<'_>) {
        let exchange = cx.exchange;
        let whole = exchange.times.now.saturating_sub(exchange.times.start);
        for (limit, unit) in self.limits.iter().zip(&self.state.units) {
            let Some([waited, _]) = cx.noted(limit.entered) else { continue };
            let took = exchange.upstream_us().unwrap_or(whole.saturating_sub(waited));
            // One of two that end at once may be lost: it is a mean of what is usual.
            unit.store(unit.load(Relaxed).midpoint(took), Relaxed);
        }
    }
}

/// What a limit says of a request.
enum Verdict {
    Passed,
    /// It passes, but late.
    Waits,
    /// The rule does not concern the request.
    Skipped,
    Rejected,
    /// It could not be counted.
    Failed(&'static str),
}

impl Limiting {
    fn fail(&self, cx: &RequestCx<'_>, reason: &'static str) -> Flow {
        if self.degrade { Flow::Continue } else { cx.fail(500, reason) }
    }

    fn enter(&self, limit: &Limit, unit: &AtomicU64, cx: &mut RequestCx<'_>) -> Verdict {
        // Only the lack of its key keeps a rule from a request: a client must not switch it off with a number's field.
        let Some(which) = limit.key.which(limit.number, cx) else { return Verdict::Skipped };
        let (Some(conn), Some(burst)) = (limit.conn.resolve(cx, MAX_CONN), limit.burst.resolve(cx, MAX_CONN)) else {
            return Verdict::Failed("limit-conn: conn or burst is not a number in bounds");
        };
        let place = match self.state.counts.ask(which, cx.now_ms(), 0, |count| count.enter(conn + burst)) {
            Ok(Some(place)) => place,
            Ok(None) => return Verdict::Rejected,
            Err(Full) => return Verdict::Failed("limit-conn: no room for another key"),
        };
        cx.hold(Arc::clone(&self.state) as Arc<dyn Hold>, which.to_note());
        let wait = if place > conn { unit.load(Relaxed).saturating_mul((place - 1) / conn.max(1)) } else { 0 };
        cx.note(limit.entered, [wait, 0]);
        if wait >= SHORTEST_WAIT { Verdict::Waits } else { Verdict::Passed }
    }
}

/// Microseconds; for less nobody waits.
const SHORTEST_WAIT: u64 = 1000;

impl Limit {
    fn never_waits(&self) -> bool {
        matches!(self.burst, Amount::Number(0))
    }
}
