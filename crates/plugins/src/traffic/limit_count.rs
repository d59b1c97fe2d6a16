//! `limit-count`: so many requests in so much time.

pub(crate) mod counter;
mod group;
mod lease;
pub(crate) mod leases;
pub(crate) mod remote;
#[cfg(test)]
mod simulation;
pub(crate) mod synced;

use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use weir_config::schema::json_schema;
use weir_config::{Code, Diagnostic, Node};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use crate::traffic::amount::{Amount, AmountConf};
use crate::traffic::key::{KeySource, KeyType};
use crate::traffic::policy::Policy;
use crate::traffic::redis::{self, Redis, RedisConf};
use crate::traffic::refusal::{Refusal, Told, Verdict};
use crate::traffic::table::Table;
use counter::{Charge, Counter, MAX_COUNT, MAX_WINDOW, Quota, Taken, WindowKind};
use group::Group;
use leases::Leases;
use remote::{Exchange, Remote};

/// The definition.
#[derive(Debug)]
pub(crate) struct LimitCount;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Requests that pass in `time_window`: an integer from 1 to 1099511627775, or a text with variables that makes
    /// one for each request. Needs `time_window`; not with `rules`.
    count: Option<AmountConf>,
    /// The window in seconds: an integer from 1 to 4294967295, or a text with variables. Needs `count`; not with
    /// `rules`.
    time_window: Option<AmountConf>,
    /// The movement of the window. `fixed`: it begins with a key's first request, and at its end all is forgotten.
    /// `sliding`: the requests of the window before count as well, by the share of it that lies less than `time_window`
    /// back.
    window_type: WindowType,
    /// Several limits, all of which a request has to keep, in this order; instead of `count` and `time_window`.
    #[schemars(length(min = 1))]
    rules: Option<Vec<Rule>>,
    /// Whatever stands in several places under one `group` counts together, and its settings are meant to be the same
    /// everywhere. Where they are not, which the log warns of and APISIX refuses, each place still keeps to its own
    /// `count` and `time_window`. Not with `rules`.
    #[schemars(length(min = 1))]
    group: Option<String>,
    /// The key of a count: by `key_type` the name of a variable, without `$`, a text with variables, or a constant.
    /// A request that does not have it is counted by its address, and so are all when no variable has that name.
    #[schemars(length(min = 1))]
    key: String,
    /// The meaning of `key`.
    key_type: KeyType,
    /// Status of the answer to a request that is over the limit.
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The answer's body is `{"error_msg":"…"}` with this text; without it, with status and reason phrase.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// The place of the counts. `local`: in this process, shared by all its workers. `redis`, `redis-cluster`,
    /// `redis-sentinel`: in a Redis, shared by all gateways that have the same configuration.
    policy: Policy,
    /// Lets requests through when they cannot be counted: there is no room for another key (`limits.limit_keys`), Redis
    /// does not answer, or a `count` or `time_window` from variables is no such number. Otherwise they are answered
    /// with
    /// 500.
    allow_degradation: bool,
    /// Tells the client the limit, what remains of it and the seconds until it is renewed, on every answer.
    show_limit_quota_header: bool,
    /// With a policy of Redis: -1 asks Redis for every request, which is exact. Otherwise each worker counts by itself
    /// and tells Redis every so many seconds, at least 0.1 and less than `time_window`.
    sync_interval: f64,
    /// With a policy of Redis: each worker takes shares of the window ahead, as many as it needs for 100 ms, so that
    /// most requests pass without asking Redis. Never more than `count` pass; a few less may. Not with `sync_interval`.
    lease: bool,
    #[serde(flatten)]
    redis: RedisConf,
}

/// The movement of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum WindowType {
    Fixed,
    Sliding,
}

/// One limit among several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// As the outer `count`. A request that the rule concerns and that makes no number of it is answered with 500.
    count: AmountConf,
    /// As the outer `time_window`. A request that the rule concerns and that makes no number of it is answered with
    /// 500.
    time_window: AmountConf,
    /// A text with variables: what is counted apart. The rule is skipped for a request that has none of them.
    #[schemars(length(min = 1))]
    key: String,
    /// The rule tells its state in `X-{header_prefix}-RateLimit-Limit`, `-Remaining` and `-Reset`: the prefix stands
    /// before `RateLimit-` in the names that `plugin_metadata` gives, too. Default: its place in the list, from 1.
    #[schemars(length(min = 1))]
    header_prefix: Option<String>,
}

/// `plugin_metadata` of `limit-count`: names of the fields.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// The field that tells the limit.
    limit_header: String,
    /// The field that tells how many more requests pass.
    remaining_header: String,
    /// The field that tells after how many seconds the limit is renewed.
    reset_header: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            count: None,
            time_window: None,
            window_type: WindowType::Fixed,
            rules: None,
            group: None,
            key: "remote_addr".into(),
            key_type: KeyType::Var,
            rejected_code: 503,
            rejected_msg: None,
            policy: Policy::Local,
            allow_degradation: false,
            show_limit_quota_header: true,
            sync_interval: NO_SYNC,
            lease: false,
            redis: RedisConf::default(),
        }
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            limit_header: "X-RateLimit-Limit".into(),
            remaining_header: "X-RateLimit-Remaining".into(),
            reset_header: "X-RateLimit-Reset".into(),
        }
    }
}

const NO_SYNC: f64 = -1.0;
/// The shortest interval, in seconds.
const SHORTEST_SYNC: f64 = 0.1;

impl Define for LimitCount {
    const NAME: &'static str = "limit-count";
    const PRIORITY: i32 = 1002;
    const PHASES: Phases = Phases::ACCESS;
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;
    const DOC: &'static str = "\
Lets `count` requests pass in `time_window` seconds for each `key` and answers the others with `rejected_code`. Exact over \
all workers: of N allowed requests N pass, however many come at once.

Every answer, of whoever gives it, carries `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, the \
seconds until the window ends: a whole number on its first request, with up to two decimals later. `plugin_metadata` renames the \
three by `limit_header`, `remaining_header` and `reset_header`.

A sliding window is reckoned from two counts: the requests in the current window, and those of the window before, weighted \
by the share of it that lies less than `time_window` back. It assumes that the latter came evenly.

With `policy: local` counts are kept in this process. They survive a change of the configuration that leaves this plugin's own configuration \
as it is, and are lost with the process. A limiter holds at most `limits.limit_keys` keys; keys whose window is over make \
room, and when there is none, requests with new keys are answered with 500 unless `allow_degradation` is set.

With a policy of Redis a script counts there, so that the limit is exact over all gateways, by the clock of Redis. See \
[limits in Redis](../redis.md) for keys, failures, `lease` and `sync_interval`.";
    const EXAMPLE: &'static str = "\
count: 100
time_window: 60
key_type: var
key: remote_addr
rejected_code: 429
rejected_msg: too many requests
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        check_metadata(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        limiter(conf, cx).map(Compiled::build)
    }
}

/// Checks the names of fields in `plugin_metadata`.
pub(crate) fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
    let typed = weir_config::schema::read::<Metadata>(metadata)?;
    let faults: Vec<Diagnostic> = typed
        .names()
        .into_iter()
        .filter(|(_, name)| FieldName::new(name).is_none())
        .map(|(key, _)| {
            let code = Code::PluginRule { text: "expected the name of a field".into() };
            Diagnostic::error(metadata.mark_of(key), key, code)
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// A limiter before it is built.
pub(crate) type Built = Box<dyn FnOnce(&BuildCx<'_>) -> Result<Limiting, Invalid> + Send>;

/// Compiles a limiter.
pub(crate) fn limiter(conf: Conf, cx: &CompileCx<'_>) -> Option<Built> {
    let topology = cx.ok(conf.redis.topology(conf.policy));
    let exchange = cx.ok(conf.exchange());
    if conf.policy == Policy::Local {
        if conf.sync_interval != NO_SYNC {
            cx.warn("sync_interval", "it has no effect with policy local");
        }
        if conf.lease {
            cx.warn("lease", "it has no effect with policy local");
        }
    }
    let limits = cx.ok(conf.limits(&Metadata::default()));
    if conf.rules.is_none() {
        cx.say(KeySource::warning(&conf.key, conf.key_type));
    }
    cx.add(RedisConf::unused(cx.conf()));
    let (topology, exchange, mut limits) = (topology?, exchange?, limits?);
    Some(Box::new(move |build: &BuildCx<'_>| {
        let metadata: Metadata = build.metadata()?;
        for limit in &mut limits {
            limit.names = metadata.fields(limit.number, conf.rules.as_deref().unwrap_or_default())?;
        }
        let group = conf.group.as_deref();
        let version = match group {
            Some(group) => format!("group/{group}"),
            None => {
                let fields = ["count", "time_window", "window_type", "key", "key_type", "rules"];
                redis::version(build.place, build.conf, &fields)
            }
        };
        // Leases have other values in Redis.
        let version = if conf.lease { format!("{version}:lease") } else { version };
        let redis = topology.map(|topology| {
            let servers = (&conf.redis, conf.policy, topology);
            Redis::new(servers, &version, conf.allow_degradation, build)
        });
        let remote = redis.transpose()?.map(|redis| Remote::new(redis, &version, exchange, build));
        let state_key = match group {
            Some(name) => format!("{} group {name} {}", build.plugin, build.limit_keys),
            None => format!("{} {} {} {}", build.plugin, build.place, build.conf.to_json(), build.limit_keys),
        };
        let group = group.map(|name| {
            let group = build.states.get_or_create(&format!("{} members of {name}", build.plugin), Group::default);
            if let Some(other) = group.join(build.place, format!("{conf:?}")) {
                let place = build.place;
                tracing::warn!(group = name, place, other, "limit-count: other settings than elsewhere in its group");
            }
            group
        });
        Ok(Limiting {
            limits,
            counters: build.states.get_or_create(&state_key, || Table::new(build.limit_keys)),
            remote,
            _group: group,
            refusal: Refusal::new(conf.rejected_code, conf.rejected_msg.as_deref(), conf.allow_degradation),
            show: conf.show_limit_quota_header,
        })
    }))
}

impl Conf {
    /// True if clients are told of the limits.
    pub(crate) fn shows(&self) -> bool {
        self.show_limit_quota_header
    }

    /// The moments at which counts are exchanged with Redis.
    fn exchange(&self) -> Result<Exchange, Invalid> {
        let seconds = self.sync_interval;
        if seconds == NO_SYNC || self.policy == Policy::Local {
            return Ok(if self.lease { Exchange::Lease } else { Exchange::Always });
        }
        if self.lease {
            return Err(Invalid::new("lease", "lease and sync_interval cannot be specified at the same time"));
        }
        let fault = |message: &str| Err(Invalid::new("sync_interval", message));
        // YAML has a number for what is none.
        if seconds.is_nan() || seconds < SHORTEST_SYNC {
            return fault("expected -1, or a number of at least 0.1");
        }
        let windows = self.time_window.iter().chain(self.rules.iter().flatten().map(|rule| &rule.time_window));
        let is_longer = |window: &AmountConf| window.number().is_some_and(|window| seconds >= window as f64);
        if { windows }.any(is_longer) {
            return fault("expected a number below time_window");
        }
        Ok(Exchange::Interval((seconds * 1000.0) as u64))
    }

    fn limits(&self, metadata: &Metadata) -> Result<Box<[Limit]>, Invalid> {
        let kind = match self.window_type {
            WindowType::Fixed => WindowKind::Fixed,
            WindowType::Sliding => WindowKind::Sliding,
        };
        let one = match (&self.count, &self.time_window, &self.rules) {
            (Some(count), Some(window), None) => (count, window),
            (None, None, Some(_)) if self.group.is_some() => {
                return Err(Invalid::new("group", "group and rules cannot be specified at the same time"));
            }
            (None, None, Some(rules)) => return rules_limits(rules, kind, metadata),
            (None, None, None) => return Err(Invalid::new("", "count and time_window are missing, or rules")),
            (_, _, Some(_)) => return Err(Invalid::new("rules", "expected either count and time_window or rules")),
            (None, _, _) => return Err(Invalid::new("", "the field count is missing")),
            (_, None, _) => return Err(Invalid::new("", "the field time_window is missing")),
        };
        // Whatever else stands in the group may have another key.
        let key = KeySource::compile(&self.key, self.key_type, self.group.is_some())?;
        Ok(Box::new([Limit {
            number: 0,
            count: one.0.compile("count", MAX_COUNT)?,
            window: one.1.compile("time_window", MAX_WINDOW)?,
            kind,
            key,
            names: metadata.fields(0, &[])?,
        }]))
    }
}

fn rules_limits(rules: &[Rule], kind: WindowKind, metadata: &Metadata) -> Result<Box<[Limit]>, Invalid> {
    let limit = |(at, rule): (usize, &Rule)| {
        let field = |name: &str| format!("rules[{at}].{name}");
        if rules.iter().take(at).any(|other| other.key == rule.key) {
            return Err(Invalid::new(field("key"), format!("there are two rules with the key {:?}", rule.key)));
        }
        let number = at as u32 + 1;
        Ok(Limit {
            number,
            count: rule.count.compile(&field("count"), MAX_COUNT)?,
            window: rule.time_window.compile(&field("time_window"), MAX_WINDOW)?,
            kind,
            key: KeySource::compile_rule(&rule.key, field("key"))?,
            names: metadata.fields(number, rules)?,
        })
    };
    rules.iter().enumerate().map(limit).collect()
}

impl Metadata {
    /// The names of the fields of the limit with this number, which is that of a rule from 1.
    fn fields(&self, number: u32, rules: &[Rule]) -> Result<Names, Invalid> {
        let at = (number as usize).wrapping_sub(1);
        let prefix = rules.get(at).map(|rule| rule.header_prefix.clone().unwrap_or_else(|| number.to_string()));
        let [limit, remaining, reset] = self.names().map(|(field, name)| match &prefix {
            Some(prefix) => FieldName::new(&name.replacen("RateLimit-", &format!("{prefix}-RateLimit-"), 1))
                .ok_or_else(|| Invalid::new(format!("rules[{at}].header_prefix"), "expected a part of a field's name")),
            None => FieldName::new(name)
                .ok_or_else(|| Invalid::new("", format!("plugin_metadata: {field} is not a field name"))),
        });
        Ok(Names { limit: limit?, remaining: remaining?, reset: reset? })
    }

    fn names(&self) -> [(&'static str, &str); 3] {
        [
            ("limit_header", &self.limit_header),
            ("remaining_header", &self.remaining_header),
            ("reset_header", &self.reset_header),
        ]
    }
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Limiting {
    limits: Box<[Limit]>,
    /// Counters, which outlive a change of the configuration.
    counters: Arc<Table<Counter>>,
    /// The Redis that holds the counts.
    remote: Option<Remote>,
    /// Kept as long as somebody is in it.
    _group: Option<Arc<Group>>,
    refusal: Refusal,
    show: bool,
}

/// One limit.
#[derive(Debug)]
struct Limit {
    /// 0, or a rule's place from 1: their keys are apart.
    number: u32,
    count: Amount,
    window: Amount,
    kind: WindowKind,
    key: KeySource,
    names: Names,
}

#[derive(Debug)]
struct Names {
    limit: FieldName,
    remaining: FieldName,
    reset: FieldName,
}

impl Plugin for Limiting {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.charge(1, cx)
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long Redis is waited for.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(self.charge_remotely(1, cx))
    }
}

impl Limiting {
    /// Counts a request as so many; [`Flow::Suspend`] where Redis is asked by [`charge_remotely`](Self::charge_remotely).
    #[inline]
    pub(crate) fn charge(&self, units: u64, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(remote) = &self.remote {
            return match remote.leases() {
                Some(leases) => self.access_leased(remote, &leases, units, cx),
                None => Flow::Suspend,
            };
        }
        let mut told = Told::default();
        for limit in &self.limits {
            let verdict = self.ask(limit, units, cx);
            if let Some(flow) = self.refusal.conclude(verdict, &mut told, cx) {
                return flow;
            }
        }
        self.finish(&told, cx)
    }

    /// The same with the answer of Redis.
    pub(crate) async fn charge_remotely(&self, units: u64, cx: &mut RequestCx<'_>) -> Flow {
        let Some(remote) = &self.remote else { return Flow::Continue };
        let mut told = Told::default();
        for limit in &self.limits {
            let verdict = self.ask_remote(remote, limit, units, cx).await;
            if let Some(flow) = self.refusal.conclude(verdict, &mut told, cx) {
                return flow;
            }
        }
        self.finish(&told, cx)
    }

    fn finish(&self, told: &Told, cx: &RequestCx<'_>) -> Flow {
        if told.asked { Flow::Continue } else { self.refusal.fail(cx, "limit-count: no rule concerns the request") }
    }

    fn ask(&self, limit: &Limit, units: u64, cx: &mut RequestCx<'_>) -> Verdict {
        // Only the lack of its key keeps a rule from a request: a client must not switch it off with a number's field.
        let Some(which) = limit.key.which(limit.number, cx) else { return Verdict::Skipped };
        let Some(quota) = limit.quota(cx) else { return Verdict::Failed(NO_QUOTA) };
        let now = cx.now_ms();
        let charge = Charge { units, ..Charge::one(&quota) };
        let taken = self.counters.ask(which, now, quota.linger(), |counter| counter.charge(now, &charge));
        let Ok(taken) = taken else { return Verdict::Failed("limit-count: no room for another key") };
        self.tell(limit, &quota, taken, cx)
    }

    /// Counts a request by leases, or lets it wait where one of its limits has to be asked for. Nothing is spent then.
    fn access_leased(&self, remote: &Remote, leases: &Leases, units: u64, cx: &mut RequestCx<'_>) -> Flow {
        let is_ready = |limit: &Limit, cx: &mut RequestCx<'_>| match leased(
            remote,
            (limit, units),
            cx,
            Leases::is_ready,
            leases,
        ) {
            Ok((is_ready, _)) => is_ready,
            Err(_) => true,
        };
        if self.limits.len() > 1 && !self.limits.iter().all(|limit| is_ready(limit, cx)) {
            return Flow::Suspend;
        }
        let mut told = Told::default();
        for limit in &self.limits {
            let verdict = match leased(remote, (limit, units), cx, Leases::try_take, leases) {
                Ok((Some(taken), quota)) => self.tell(limit, &quota, taken, cx),
                // Of several limits each is ready.
                Ok((None, _)) => return Flow::Suspend,
                Err(verdict) => verdict,
            };
            if let Some(flow) = self.refusal.conclude(verdict, &mut told, cx) {
                return flow;
            }
        }
        self.finish(&told, cx)
    }

    async fn ask_remote(&self, remote: &Remote, limit: &Limit, units: u64, cx: &mut RequestCx<'_>) -> Verdict {
        let mut key = cx.take_scratch();
        if !remote.write_key(limit, cx, &mut key) {
            cx.put_scratch(key);
            return Verdict::Skipped;
        }
        // Reading a number takes the exchange's scratch memory, too.
        let Some(quota) = limit.quota(cx) else { return Verdict::Failed(NO_QUOTA) };
        let taken = remote.take(&key, &quota, units).await;
        cx.put_scratch(key);
        match taken {
            Some(taken) => self.tell(limit, &quota, taken, cx),
            None => Verdict::Failed("limit-count: Redis cannot be asked"),
        }
    }

    /// Sets the fields about the quota for the client.
    fn tell(&self, limit: &Limit, quota: &Quota, taken: Taken, cx: &mut RequestCx<'_>) -> Verdict {
        if self.show {
            cx.set_response_field(&limit.names.limit, |out| weir_wire::push_number(out, quota.count));
            cx.set_response_field(&limit.names.remaining, |out| weir_wire::push_number(out, taken.remaining));
            cx.set_response_field(&limit.names.reset, |out| push_seconds(out, taken.reset));
        }
        if taken.passed { Verdict::Passed } else { Verdict::Rejected }
    }
}

impl Limit {
    /// The quota of a request; `None` when its variables make no number in bounds.
    fn quota(&self, cx: &mut RequestCx<'_>) -> Option<Quota> {
        let (count, window) = (self.count.resolve(cx, MAX_COUNT)?, self.window.resolve(cx, MAX_WINDOW)?);
        Some(Quota { count, window: window * 1000, kind: self.kind })
    }
}

/// Asks a worker's leases of one limit, which may have no say.
fn leased<T>(
    remote: &Remote,
    (limit, units): (&Limit, u64),
    cx: &mut RequestCx<'_>,
    ask: impl FnOnce(&Leases, &mut Vec<u8>, &Charge) -> T,
    leases: &Leases,
) -> Result<(T, Quota), Verdict> {
    let mut key = cx.take_scratch();
    let concerns = remote.write_key(limit, cx, &mut key);
    let quota = if concerns { limit.quota(cx).ok_or(Verdict::Failed(NO_QUOTA)) } else { Err(Verdict::Skipped) };
    let asked = quota.map(|quota| (ask(leases, &mut key, &Charge { units, ..Charge::one(&quota) }), quota));
    cx.put_scratch(key);
    asked
}

const NO_QUOTA: &str = "limit-count: count or time_window is not a number in bounds";

/// Appends seconds as APISIX writes them, rounded down to hundredths and without zeros at the end: `60`, `59.98`, `0.5`.
fn push_seconds(out: &mut Vec<u8>, millis: u64) {
    weir_wire::push_number(out, millis / 1000);
    let hundredths = (millis % 1000 / 10) as u8;
    if hundredths == 0 {
        return;
    }
    out.extend([b'.', b'0' + hundredths / 10]);
    if !hundredths.is_multiple_of(10) {
        out.push(b'0' + hundredths % 10);
    }
}

#[cfg(test)]
mod tests {
    use super::push_seconds;

    #[test]
    fn seconds_have_up_to_two_decimals() {
        for (millis, text) in [
            (60_000, "60"),
            (59_980, "59.98"),
            (59_989, "59.98"),
            (9, "0"),
            (10, "0.01"),
            (1009, "1"),
            (999, "0.99"),
            (500, "0.5"),
            (0, "0"),
            (1010, "1.01"),
        ] {
            let mut out = Vec::new();
            push_seconds(&mut out, millis);
            assert_eq!(out, text.as_bytes(), "{millis}");
        }
    }
}
