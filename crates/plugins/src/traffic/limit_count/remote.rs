//! Counts in a Redis.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use weir_plugin::{BuildCx, RequestCx, Slot};
use weir_redis::{Error, Script, Value};

use super::Limit;
use super::counter::{Charge, Quota, Taken, WindowKind};
use super::leases::Leases;
use super::synced::Synced;
use crate::traffic::redis::Redis;

/// Counts in a window that begins with a request: `count`, milliseconds of the window, requests to count, and 1 where
/// they count in any case. Gives whether they count, the requests of the window, and the milliseconds that it has left.
static FIXED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local count, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local used, left = 0, redis.call('PTTL', KEYS[1])
if left >= 0 then used = tonumber(redis.call('GET', KEYS[1]) or 0) end
if ARGV[4] == '0' and used + cost > count then return {0, used, math.max(left, 0)} end
if left < 0 then
    redis.call('SET', KEYS[1], cost, 'PX', window)
    return {1, cost, window}
end
return {1, redis.call('INCRBY', KEYS[1], cost), left}
",
    )
});

/// The same in a window that slides: the requests of the one before count by the share of it that still lies within.
static SLIDING: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local count, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'end', 'now', 'before')
local last, inside, before = tonumber(kept[1] or 0), tonumber(kept[2] or 0), tonumber(kept[3] or 0)
if now >= last then
    if now - last >= window then
        last, inside, before = now + window, 0, 0
    else
        last, inside, before = last + window, 0, inside
    end
end
local used = inside + math.ceil(before * math.min(last - now, window) / window)
if ARGV[4] == '0' and used + cost > count then return {0, used, last - now} end
redis.call('HSET', KEYS[1], 'end', last, 'now', inside + cost, 'before', before)
redis.call('PEXPIRE', KEYS[1], last - now + window)
return {1, used + cost, last - now}
",
    )
});

/// The answer of a Redis about a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) passed: bool,
    /// Requests that count against the quota.
    pub(crate) used: u64,
    /// Milliseconds until the window ends.
    pub(crate) left: u64,
}

/// Counts of one instance.
#[derive(Debug)]
pub(super) struct Remote {
    redis: Redis,
    way: Way,
    max_keys: usize,
}

/// The way of counting a request.
#[derive(Debug)]
enum Way {
    /// Redis is asked for each.
    Asks,
    /// Each worker counts by itself, and synchronises in this interval of milliseconds (`sync_interval`).
    Synced(Arc<Slot<Synced>>, u64),
    /// Each worker takes shares ahead (`lease`).
    Leases(Arc<Slot<Leases>>),
}

/// The moments at which counts are exchanged with Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// With each request.
    Always,
    /// Every so many milliseconds.
    Interval(u64),
    /// Ahead, for shares of the window.
    Lease,
}

impl Remote {
    /// Counts under `version`.
    pub(super) fn new(redis: Redis, version: &str, exchange: Exchange, cx: &BuildCx<'_>) -> Self {
        let key = |way: &str| format!("limit-count {way} {version} {}", cx.conf.to_json());
        let way = match exchange {
            Exchange::Always => Way::Asks,
            Exchange::Interval(interval) => {
                let key = key(&format!("synced {interval}"));
                Way::Synced(cx.states.get_or_create(&key, Slot::default), interval)
            }
            Exchange::Lease => Way::Leases(cx.states.get_or_create(&key("leases"), Slot::default)),
        };
        Self { redis, way, max_keys: cx.limit_keys }
    }

    /// This worker's leases, where requests are counted by them.
    pub(super) fn leases(&self) -> Option<Rc<Leases>> {
        match &self.way {
            Way::Leases(slot) => Some(slot.get_or_start(|| Leases::new(&self.redis, self.max_keys))),
            _ => None,
        }
    }

    /// Writes the key of a request; false where the rule does not concern it.
    pub(super) fn write_key(&self, limit: &Limit, cx: &RequestCx<'_>, out: &mut Vec<u8>) -> bool {
        self.redis.write_key(&limit.key, limit.number, cx, out)
    }

    /// Asks for a request that counts as so many; `None`: Redis cannot be asked.
    pub(super) async fn take(&self, key: &[u8], quota: &Quota, units: u64) -> Option<Taken> {
        let counted = match &self.way {
            Way::Asks => count(&self.redis, key, quota, units, false).await.ok()?,
            Way::Synced(slot, interval) => {
                let synced = slot.get_or_start(|| Synced::new(&self.redis, *interval, self.max_keys));
                synced.take(key, quota, units).await?
            }
            Way::Leases(slot) => {
                let leases = slot.get_or_start(|| Leases::new(&self.redis, self.max_keys));
                return leases.take(key, &Charge { units, ..Charge::one(quota) }).await;
            }
        };
        let Counted { passed, used, left } = counted;
        let remaining = if passed { quota.count.saturating_sub(used) } else { 0 };
        Some(Taken { passed, remaining, reset: left })
    }
}

/// Counts `cost` requests, if the quota has room for them or `always`.
pub(crate) async fn count(redis: &Redis, key: &[u8], quota: &Quota, cost: u64, always: bool) -> Result<Counted, Error> {
    let script = match quota.kind {
        WindowKind::Fixed => &FIXED,
        WindowKind::Sliding => &SLIDING,
    };
    let [count, window, cost] = [quota.count, quota.window, cost].map(|number| {
        let mut text = Vec::with_capacity(20);
        weir_wire::push_number(&mut text, number);
        text
    });
    let always: &[u8] = if always { b"1" } else { b"0" };
    match redis.run(script, key, &[&count, &window, &cost, always]).await? {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(passed), Value::Int(used), Value::Int(left)] => Ok(Counted {
                passed: *passed == 1,
                used: u64::try_from(*used).unwrap_or_default(),
                left: u64::try_from(*left).unwrap_or_default(),
            }),
            _ => Err(Error::Unexpected),
        },
        _ => Err(Error::Unexpected),
    }
}
