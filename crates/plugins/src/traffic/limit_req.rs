//! `limit-req`: so many requests a second, evenly.

pub(crate) mod bucket;
pub(crate) mod remote;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin, RequestCx};

use crate::traffic::key::{KeySource, KeyType};
use crate::traffic::policy::Policy;
use crate::traffic::redis::{self, Redis, RedisConf};
use crate::traffic::refusal::Refusal;
use crate::traffic::table::{Full, Table};
use bucket::{Bucket, Rate};
use weir_redis::Error;

/// The definition.
#[derive(Debug)]
pub(crate) struct LimitReq;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    /// Requests that pass in a second; also less than one, such as 0.1.
    #[schemars(range(max = 1_000_000_000), extend("exclusiveMinimum" = 0))]
    rate: f64,
    /// Requests above `rate` that are let through, late or with `nodelay` at once, before others are rejected.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    burst: f64,
    /// The key of a count: by `key_type` the name of a variable, without `$`, a text with variables, or a constant.
    /// A request that does not have it is counted by its address, and so are all when no variable has that name.
    #[schemars(length(min = 1))]
    key: String,
    /// The meaning of `key`.
    #[serde(default)]
    key_type: KeyType,
    /// Lets requests within `burst` through at once.
    #[serde(default)]
    nodelay: bool,
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
    /// Lets requests through when there is no room for another key (`limits.limit_keys`) or Redis does not answer.
    /// Otherwise they are answered with 500.
    #[serde(default)]
    allow_degradation: bool,
    #[serde(flatten)]
    redis: RedisConf,
}

fn service_unavailable() -> u16 {
    503
}

impl Define for LimitReq {
    const NAME: &'static str = "limit-req";
    const PRIORITY: i32 = 1001;
    const PHASES: Phases = Phases::ACCESS;
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;
    const DOC: &'static str = "\
Lets `rate` requests a second pass for each `key`, evenly: a leaky bucket. A request that comes too early, and finds no \
more than `burst` ahead of it, waits for its turn; others are answered with `rejected_code`. Exact over all workers, \
however many requests come at once.

The bucket holds thousandths of a request. Each request adds 1000, and `rate` times 1000 leak in a second. A request \
waits until what it finds has leaked, if that takes a millisecond or more; the first one finds an empty bucket. With \
`rate: 10` and `burst: 20`, 21 requests that come together pass in two seconds, and a 22nd is rejected. Waiting holds \
no worker up.

With `policy: local` buckets are kept in this process. They survive a change of the configuration that leaves this plugin's own configuration \
as it is, and are lost with the process. A limiter holds at most `limits.limit_keys` keys; empty buckets make room, and \
when there is none, requests with new keys are answered with 500 unless `allow_degradation` is set.

With a policy of Redis a script keeps them there, so that the rate is exact over all gateways, by the clock of Redis: see \
[limits in Redis](../redis.md).";
    const EXAMPLE: &'static str = "\
rate: 10
burst: 20
key_type: var
key: remote_addr
rejected_code: 429
rejected_msg: too many requests
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let topology = cx.ok(conf.redis.topology(conf.policy));
        let rate = cx.ok(conf.rate());
        let key = cx.ok(KeySource::compile(&conf.key, conf.key_type, false));
        cx.say(KeySource::warning(&conf.key, conf.key_type));
        cx.add(RedisConf::unused(cx.conf()));
        let (rate, key, topology) = (rate?, key?, topology?);
        Some(Compiled::build(move |build| {
            let version = redis::version(build.place, build.conf, &["rate", "burst", "key", "key_type"]);
            let state_key = format!("limit-req {} {} {}", build.place, build.conf.to_json(), build.limit_keys);
            let redis = topology.map(|topology| {
                let servers = (&conf.redis, conf.policy, topology);
                Redis::new(servers, &version, conf.allow_degradation, build)
            });
            Ok(Limiting {
                rate,
                key,
                buckets: build.states.get_or_create(&state_key, || Table::new(build.limit_keys)),
                redis: redis.transpose()?,
                delays: !conf.nodelay,
                wait: PerRequest::new(),
                refusal: Refusal::new(conf.rejected_code, conf.rejected_msg.as_deref(), conf.allow_degradation),
            })
        }))
    }
}

impl Conf {
    fn rate(&self) -> Result<Rate, Invalid> {
        // YAML has a number for what is none.
        if self.rate.is_nan() || self.rate <= 0.0 {
            return Err(Invalid::new("rate", format!("expected a number above 0, found {}", self.rate)));
        }
        if self.burst.is_nan() {
            return Err(Invalid::new("burst", format!("expected a number, found {}", self.burst)));
        }
        Ok(Rate::new(self.rate, self.burst))
    }
}

/// An instance.
#[derive(Debug)]
struct Limiting {
    rate: Rate,
    key: KeySource,
    /// Levels of buckets. They outlive a change of the configuration.
    buckets: Arc<Table<Bucket>>,
    /// The Redis that holds the buckets.
    redis: Option<Redis>,
    delays: bool,
    /// Milliseconds that a request waits.
    wait: PerRequest<u64>,
    refusal: Refusal,
}

impl Plugin for Limiting {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.redis.is_some() {
            return Flow::Suspend;
        }
        let now = cx.now_ms();
        // Not a rule among several, so there always is a key.
        let Some(which) = self.key.which(0, cx) else { return Flow::Continue };
        match self.buckets.ask(which, now, self.rate.drain_ms(), |bucket| bucket.pour(now, &self.rate)) {
            Ok(Some(wait)) if wait >= 1 && self.delays => {
                self.wait.put(cx, wait);
                Flow::Suspend
            }
            Ok(Some(_)) => Flow::Continue,
            Ok(None) => self.refusal.reject(cx),
            Err(Full) => self.refusal.fail(cx, "limit-req: no room for another key"),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long it waits.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let wait = match &self.redis {
                None => self.wait.get(cx).map_or(0, |wait| *wait),
                Some(redis) => match self.ask(redis, cx).await {
                    Ok(Some(wait)) => wait,
                    Ok(None) => return self.refusal.reject(cx),
                    Err(_) => return self.refusal.fail(cx, "limit-req: Redis cannot be asked"),
                },
            };
            if wait >= 1 && self.delays {
                weir_runtime::sleep(Duration::from_millis(wait)).await;
            }
            Flow::Continue
        })
    }
}

impl Limiting {
    /// Asks Redis for how many milliseconds a request waits; `None`: it is over the limit.
    async fn ask(&self, redis: &Redis, cx: &mut RequestCx<'_>) -> Result<Option<u64>, Error> {
        let mut key = cx.take_scratch();
        redis.write_key(&self.key, 0, cx, &mut key);
        let asked = remote::pour(redis, &key, &self.rate).await;
        cx.put_scratch(key);
        asked
    }
}
