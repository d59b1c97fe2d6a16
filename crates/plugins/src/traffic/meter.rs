//! Limits of callers: counts by name that outlive changes, processes and, in a Redis, gateways.
//!
//! The plugin `plan` counts here against plans. A family whose keys bring limits of their own counts here as well: it makes
//! a [`Span`] and a [`Charge`] of each of its limits, and writes the name of its count.
//!
//! ```text
//! begin(name), the caller, the limit ──► is_ready? ──► charge_now                        on the path of a request
//!                                            └──no───► Flow::Suspend ──► charge().await  in `request_io`
//! ```

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{Diagnostic, Node, Period};
use weir_plugin::{BuildCx, Invalid, Slot};
use weir_redis::{Script, Value};

use super::calendar;
use super::limit_count::counter::{Charge, Quota, Taken, WindowKind};
use super::limit_count::leases::Leases;
use super::limit_count::remote::{self, Counted};
use super::plan::PlanCounts;
use super::policy::Policy;
use super::redis::{Redis, RedisConf};

/// The place of counts, as `plugin_metadata` says.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct MeterConf {
    /// The place of the counts of all plans. `local`: in this process, shared by all its workers. `redis`,
    /// `redis-cluster`, `redis-sentinel`: in a Redis, shared by all gateways, which is asked for each limit of each
    /// request.
    pub(crate) policy: Policy,
    /// Lets requests through when Redis does not answer. Otherwise they are answered with 500.
    pub(crate) allow_degradation: bool,
    /// With a policy of Redis: each worker takes shares of a limit ahead, as many as it needs for 100 ms, so that most
    /// requests pass without asking Redis. Never more than `count` pass; a few less may.
    pub(crate) lease: bool,
    #[serde(flatten)]
    pub(crate) redis: RedisConf,
}

/// The sequence of periods of a limit. Lengths are milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// Begins with a request; the next one with the first request after its end.
    Fixed(u64),
    /// Ends now.
    Sliding(u64),
    /// A period of the calendar, in UTC.
    Calendar(Period),
}

/// Counts of one instance.
#[derive(Debug)]
pub(crate) struct Meter {
    counts: Arc<PlanCounts>,
    remote: Option<Remote>,
    degrades: bool,
}

#[derive(Debug)]
struct Remote {
    redis: Redis,
    leases: Option<Arc<Slot<Leases>>>,
    max_keys: usize,
}

/// A request that could not be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncounted {
    /// There is no room for another count.
    NoRoom,
    /// Redis does not answer, and `allow_degradation` is off.
    NoRedis,
}

impl Uncounted {
    /// The reason, for the log and `X-Weir-Error`.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoRoom => "plan: no room for another count",
            Self::NoRedis => "plan: Redis cannot be asked",
        }
    }
}

/// The result of counting a request; `None`: it passes uncounted, because Redis does not answer.
pub(crate) type Metered = Result<Option<Taken>, Uncounted>;

impl MeterConf {
    /// Findings about the fields that a schema cannot state.
    pub(crate) fn check(&self, conf: &Node) -> Vec<Diagnostic> {
        let mut found = RedisConf::unused(conf);
        if self.lease && self.policy == Policy::Local {
            let code = weir_config::Code::PluginRule { text: "it has no effect with policy local".into() };
            found.push(Diagnostic::warning(conf.mark_of("lease"), "lease", code));
        }
        if let Err(Invalid { path, code, .. }) = self.redis.topology(self.policy) {
            found.push(Diagnostic::error(conf.mark_of(&path), &*path, *code));
        }
        found
    }
}

impl Span {
    /// A charge against a limit of so many units, at a time in milliseconds since 1970.
    pub(crate) fn charge(self, count: u64, units: u64, now: u64) -> Charge {
        let (period, window, kind) = match self {
            Self::Fixed(length) => (length, length, WindowKind::Fixed),
            Self::Sliding(length) => (length, length, WindowKind::Sliding),
            // A window that begins now ends with the period.
            Self::Calendar(period) => {
                let length = length(period);
                (length, calendar::left(period, now).unwrap_or(length), WindowKind::Fixed)
            }
        };
        Charge { quota: Quota { count, window, kind }, period, units, counts_refused: false }
    }
}

/// Milliseconds of a period outside of a calendar.
pub(crate) fn length(per: Period) -> u64 {
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

impl Meter {
    /// The counts where `conf` says.
    ///
    /// # Errors
    /// Findings about the fields of Redis.
    pub(crate) fn new(conf: &MeterConf, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let version = if conf.lease { "lease" } else { "count" };
        let remote = conf.redis.topology(conf.policy)?.map(|topology| {
            let servers = (&conf.redis, conf.policy, topology);
            let redis = Redis::new(servers, version, conf.allow_degradation, build)?;
            // One for all instances with this Redis: callers are on plans in many places.
            let key = format!("plan leases {} {:?} {:?}", conf.allow_degradation, conf.policy, conf.redis);
            let leases = conf.lease.then(|| build.states.get_or_create(&key, Slot::default));
            Ok(Remote { redis, leases, max_keys: build.limit_keys })
        });
        Ok(Self {
            counts: PlanCounts::of(build.states, build.limit_keys),
            remote: remote.transpose()?,
            degrades: conf.allow_degradation,
        })
    }

    /// Begins the name of a count. Whoever counts appends what names the limit and the caller.
    pub(crate) fn begin(&self, name: &mut Vec<u8>) {
        if let Some(remote) = &self.remote {
            remote.redis.write_prefix(name);
        }
    }

    /// True if [`charge_now`](Self::charge_now) would decide. The name grows by the quota where there are leases.
    pub(crate) fn is_ready(&self, name: &mut Vec<u8>, charge: &Charge) -> bool {
        match &self.remote {
            None => true,
            Some(remote) => remote.leases().is_some_and(|leases| leases.is_ready(name, charge)),
        }
    }

    /// Counts a request without a wait; `None`: it has to wait, and is not counted.
    pub(crate) fn charge_now(&self, name: &mut Vec<u8>, now: u64, charge: &Charge) -> Option<Metered> {
        let length = name.len();
        let metered = match &self.remote {
            None => self.counts.charge(name, now, charge).map(Some).map_err(|_| Uncounted::NoRoom),
            Some(remote) => Ok(Some(remote.leases()?.try_take(name, charge)?)),
        };
        self.note(name.get(..length).unwrap_or_default(), charge, &metered);
        Some(metered)
    }

    /// Counts a request.
    pub(crate) async fn charge(&self, name: &[u8], now: u64, charge: &Charge) -> Metered {
        let metered = match &self.remote {
            None => self.counts.charge(name, now, charge).map(Some).map_err(|_| Uncounted::NoRoom),
            Some(remote) => match remote.charge(name, charge).await {
                Some(taken) => Ok(Some(taken)),
                None if self.degrades => Ok(None),
                None => Err(Uncounted::NoRedis),
            },
        };
        self.note(name, charge, &metered);
        metered
    }

    /// Notes a share of a limit that the caller has used now, where somebody is to hear of it.
    fn note(&self, name: &[u8], charge: &Charge, metered: &Metered) {
        if let (Some(watch), Ok(Some(taken))) = (self.counts.watched(), metered) {
            let prefix = self.remote.as_ref().map_or("", |remote| remote.redis.prefix());
            watch.see(name.strip_prefix(prefix.as_bytes()).unwrap_or(name), charge, taken);
        }
    }

    /// Looks at a count; `None` for one in which nothing is counted, or where Redis does not answer.
    #[allow(dead_code, reason = "for families whose keys bring limits of their own")]
    pub(crate) async fn look(&self, name: &[u8], now: u64, charge: &Charge) -> Option<Taken> {
        match &self.remote {
            None => self.counts.look(name, now, charge),
            Some(remote) => remote.look(name, charge).await,
        }
    }

    /// Forgets a count, where it is kept. False where there is none, or Redis does not answer.
    #[allow(dead_code, reason = "for families whose keys bring limits of their own")]
    pub(crate) async fn clear(&self, name: &[u8], charge: &Charge) -> bool {
        match &self.remote {
            None => self.counts.clear(name, charge),
            Some(remote) => remote.redis.run(&CLEAR, name, &[]).await.is_ok(),
        }
    }
}

impl Remote {
    /// This worker's leases, where requests are counted by them.
    fn leases(&self) -> Option<Rc<Leases>> {
        let slot = self.leases.as_ref()?;
        Some(slot.get_or_start(|| Leases::new(&self.redis, self.max_keys)))
    }

    async fn charge(&self, name: &[u8], charge: &Charge) -> Option<Taken> {
        let Charge { quota, units, counts_refused, .. } = charge;
        if let Some(leases) = self.leases() {
            return leases.take(name, charge).await;
        }
        let Counted { passed, used, left } =
            remote::count(&self.redis, name, quota, *units, *counts_refused).await.ok()?;
        let passed = passed && used <= quota.count;
        // Redis has no window where no request may pass.
        let reset = if left == 0 { quota.window } else { left };
        Some(Taken { passed, remaining: quota.count.saturating_sub(used), reset })
    }

    async fn look(&self, name: &[u8], charge: &Charge) -> Option<Taken> {
        let quota = &charge.quota;
        let mut window = Vec::with_capacity(20);
        weir_wire::push_number(&mut window, quota.window);
        let Value::Array(parts) = self.redis.run(&LOOK, name, &[&window]).await.ok()? else { return None };
        let [Value::Int(used), Value::Int(left)] = parts.as_slice() else { return None };
        let [used, left] = [used, left].map(|number| u64::try_from(*number).unwrap_or_default());
        let passed = used.saturating_add(charge.units) <= quota.count;
        (left > 0).then_some(Taken { passed, remaining: quota.count.saturating_sub(used), reset: left })
    }
}

/// Reads what counts of a key, whichever script has written it, and the milliseconds that its window has left; 0 for none.
static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local window = tonumber(ARGV[1])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
    return {tonumber(redis.call('GET', KEYS[1]) or 0), math.max(redis.call('PTTL', KEYS[1]), 0)}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'end', 'now', 'before')
local last, inside, before = tonumber(kept[1] or 0), tonumber(kept[2] or 0), tonumber(kept[3] or 0)
if now >= last then
    if now - last >= window then return {0, 0} end
    last, inside, before = last + window, 0, inside
end
return {inside + math.ceil(before * math.min(last - now, window) / window), last - now}
",
    )
});

/// Forgets a key.
static CLEAR: LazyLock<Script> = LazyLock::new(|| Script::new("redis.call('DEL', KEYS[1])\nreturn 0\n"));

#[cfg(test)]
mod tests {
    use super::{Charge, Meter, PlanCounts, Quota, Span, Uncounted, WindowKind};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use weir_config::Period;
    use weir_plugin::StateRegistry;

    /// Local counters never wait.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a local count waits"),
        }
    }

    fn meter(keys: usize) -> Meter {
        Meter { counts: PlanCounts::of(&StateRegistry::default(), keys), remote: None, degrades: false }
    }

    #[test]
    fn spans_are_charges() {
        // 2026-11-23T12:34:56.789Z
        let at = 1_795_437_296_789;
        let day = 86_400_000;
        for (span, expected) in [
            (Span::Fixed(5), (5, 5, WindowKind::Fixed)),
            (Span::Sliding(5), (5, 5, WindowKind::Sliding)),
            (Span::Calendar(Period::Day), (day, day - at % day, WindowKind::Fixed)),
            (Span::Calendar(Period::Second), (1000, 211, WindowKind::Fixed)),
        ] {
            let Charge { quota: Quota { count, window, kind }, period, units, counts_refused } = span.charge(7, 3, at);
            assert_eq!((period, window, kind), expected, "{span:?}");
            assert_eq!((count, units, counts_refused), (7, 3, false));
        }
    }

    #[test]
    fn counts_are_charged_looked_at_and_cleared() {
        let meter = meter(1);
        let charge = |units| Span::Fixed(1000).charge(10, units, 0);
        let mut name = b"jack:gold".to_vec();
        let mut taken = |units| {
            meter
                .charge_now(&mut name, 0, &charge(units))
                .map(|metered| metered.map(|taken| taken.map(|one| (one.passed, one.remaining))))
        };
        assert_eq!(taken(8), Some(Ok(Some((true, 2)))));
        assert_eq!(taken(3), Some(Ok(Some((false, 2)))));
        let left = |name: &[u8]| now(meter.look(name, 0, &charge(0))).map(|one| one.remaining);
        assert_eq!((left(b"jack:gold"), left(b"jill:gold")), (Some(2), None));
        assert!(now(meter.clear(b"jack:gold", &charge(0))));
        assert_eq!(left(b"jack:gold"), Some(10));
        assert_eq!(now(meter.charge(b"jill:gold", 0, &charge(1))), Err(Uncounted::NoRoom));
    }

    #[test]
    fn refused_requests_count_where_a_limit_says_so() {
        let meter = meter(1);
        let charge = Charge { counts_refused: true, ..Span::Fixed(1000).charge(2, 1, 0) };
        let next = || now(meter.charge(b"jack", 0, &charge)).expect("room").expect("counted").passed;
        assert_eq!([next(), next(), next()], [true, true, false]);
        // A larger limit meets what was refused before.
        let larger = Charge { quota: Quota { count: 4, ..charge.quota }, ..charge };
        let next = || now(meter.charge(b"jack", 0, &larger)).expect("room").expect("counted").passed;
        assert_eq!([next(), next()], [true, false]);
    }
}
