//! Buckets in a Redis.

use std::sync::LazyLock;

use weir_redis::{Error, Script, Value};

use super::bucket::Rate;
use crate::traffic::redis::Redis;

/// Longest time for which a bucket is kept, in milliseconds: ten years.
const LONGEST: u64 = 10 * 365 * 86_400_000;

/// Pours one request: thousandths of a request that leak in a second, how many may be there before, and milliseconds
/// for which the bucket is kept. Gives the milliseconds until what was there has leaked, -1: there was too much.
static POUR: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local leak, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('HMGET', KEYS[1], 'excess', 'at')
local at, excess = tonumber(kept[2] or 0), 0
if at > 0 then
    excess = math.max(tonumber(kept[1] or 0) - leak * math.max(now - at, 0) / 1000 + 1000, 0)
end
if excess > burst then return -1 end
redis.call('HSET', KEYS[1], 'excess', math.floor(excess), 'at', math.max(now, at))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return math.min(math.floor(excess / leak * 1000), 1e15)
",
    )
});

/// Adds one request to a bucket, and gives the milliseconds that it waits; `None` when it is over the limit.
pub(crate) async fn pour(redis: &Redis, key: &[u8], rate: &Rate) -> Result<Option<u64>, Error> {
    let [leak, burst] = rate.in_thousandths().map(|number| number.to_string());
    let kept = rate.drain_ms().clamp(1, LONGEST).to_string();
    match redis.run(&POUR, key, &[leak.as_bytes(), burst.as_bytes(), kept.as_bytes()]).await? {
        Value::Int(wait) => Ok(u64::try_from(wait).ok()),
        _ => Err(Error::Unexpected),
    }
}
