//! Requests under way, counted in a Redis.
//!
//! Each is a member of a sorted set, under the time at which it counts no longer. It is taken out when its exchange is
//! over, however that ends, also when nobody knows whether it was ever put in; what a gateway leaves behind that died
//! expires.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use weir_redis::{Error, Script, Value};

use crate::traffic::redis::Redis;

/// Puts a request in: how many may be there, milliseconds for which it counts, its name. Gives how many are there then,
/// 0: there is no place.
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local others = redis.call('ZCARD', KEYS[1])
if redis.call('ZSCORE', KEYS[1], ARGV[3]) then others = others - 1 end
if others >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return others + 1
",
    )
});

/// Takes a request out.
static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('ZREM', KEYS[1], ARGV[1])"));

/// Counts of one instance.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) redis: Redis,
    /// Milliseconds for which a request counts at most.
    ttl: u64,
}

impl Remote {
    /// Requests count for `ttl` seconds at most.
    pub(super) fn new(redis: Redis, ttl: u64) -> Self {
        Self { redis, ttl: ttl * 1000 }
    }

    /// The means to enter and to leave of one request.
    pub(super) fn entry(&self, key: Box<[u8]>) -> Arc<Entry> {
        Arc::new(Entry::new(&self.redis, key, self.ttl))
    }
}

/// A request that counts, or asks to. It leaves when it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    redis: Redis,
    key: Box<[u8]>,
    name: String,
    ttl: u64,
    /// True when it may have been put in.
    leaves: AtomicBool,
}

impl Entry {
    /// A request that counts for `ttl` milliseconds at most, once it has entered.
    pub(crate) fn new(redis: &Redis, key: Box<[u8]>, ttl: u64) -> Self {
        Self { redis: redis.clone(), key, name: name(), ttl, leaves: AtomicBool::new(false) }
    }

    /// Asks for a place, where `most` may be: which one it is, from 1; `None` when there is none.
    pub(crate) async fn enter(&self, most: u64) -> Result<Option<u64>, Error> {
        self.leaves.store(true, Relaxed);
        let (most, ttl) = (most.to_string(), self.ttl.to_string());
        let arguments = [most.as_bytes(), ttl.as_bytes(), self.name.as_bytes()];
        let place = match self.redis.run(&ENTER, &self.key, &arguments).await? {
            Value::Int(place) => u64::try_from(place).map_err(|_| Error::Unexpected)?,
            _ => return Err(Error::Unexpected),
        };
        self.leaves.store(place > 0, Relaxed);
        Ok((place > 0).then_some(place))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.leaves.load(Relaxed) {
            self.redis.run_beside(&LEAVE, self.key.clone(), self.name.as_bytes().into());
        }
    }
}

/// A name that no other request has, in whatever gateway.
fn name() -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}{:x}", *PROCESS, NEXT.fetch_add(1, Relaxed))
}
