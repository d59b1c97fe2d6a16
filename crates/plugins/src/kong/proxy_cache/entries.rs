//! Entries of all caches of this process, for Kong's Admin API.

#![allow(
    clippy::disallowed_types,
    reason = "no worker takes the lock: caches are made and asked for off the path of a request"
)]

use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde_json::{Map, Value as Json, json};
use weir_redis::{Client, GET, REMOVE, Script, Settings, Value};

use super::remote;
use crate::cache::zone::{Stored, Zone};
use crate::hex;

/// The caches that plugins use.
static CACHES: Mutex<Vec<Cache>> = Mutex::new(Vec::new());

/// Removes a page of the keys that begin with the one given; gives back where the next page begins.
static SWEEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local page = redis.call('SCAN', ARGV[1], 'MATCH', KEYS[1] .. '*', 'COUNT', 1000) \
         for _, key in ipairs(page[2]) do redis.call('DEL', key) end return page[1]",
    )
});

#[derive(Clone)]
enum Cache {
    Memory(Weak<Zone>),
    Redis(Weak<Settings>),
}

/// Counts a zone among the caches.
pub(super) fn add_zone(zone: &Arc<Zone>) {
    add(Cache::Memory(Arc::downgrade(zone)));
}

/// Counts a Redis among the caches.
pub(super) fn add_redis(settings: &Arc<Settings>) {
    add(Cache::Redis(Arc::downgrade(settings)));
}

fn add(cache: Cache) {
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |other: &Cache| match (other, &cache) {
        (Cache::Memory(one), Cache::Memory(other)) => one.ptr_eq(other),
        (Cache::Redis(one), Cache::Redis(other)) => one.ptr_eq(other),
        _ => false,
    };
    caches.retain(|other| match other {
        Cache::Memory(zone) => zone.strong_count() > 0,
        Cache::Redis(settings) => settings.strong_count() > 0,
    });
    if !caches.iter().any(is_same) {
        caches.push(cache);
    }
}

fn all() -> Vec<Cache> {
    CACHES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// An entry as Kong's Admin API shows it; `None` where no cache has it. May block.
///
/// # Errors
/// A Redis does not answer.
pub fn cached_entry(key: &str) -> Result<Option<Json>, String> {
    for cache in all() {
        let found = match cache {
            Cache::Memory(zone) => {
                let stored = zone.upgrade().zip(hex::decode(key)).and_then(|(zone, key)| zone.find(&key, |_, _| {}));
                stored.map(|stored| shown(&stored))
            }
            Cache::Redis(settings) => match ask(&settings, &GET, &remote::key(key), &[])? {
                Some(Value::BulkString(bytes)) => remote::read(&bytes).map(|stored| shown(&stored)),
                _ => None,
            },
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Removes an entry; false where no cache had it. May block.
///
/// # Errors
/// A Redis does not answer.
pub fn remove_cached(key: &str) -> Result<bool, String> {
    let mut removed = false;
    for cache in all() {
        removed |= match cache {
            Cache::Memory(zone) => zone.upgrade().zip(hex::decode(key)).is_some_and(|(zone, key)| zone.purge(&key)),
            Cache::Redis(settings) => matches!(ask(&settings, &REMOVE, &remote::key(key), &[])?, Some(Value::Int(1))),
        };
    }
    Ok(removed)
}

/// Removes all entries. May block.
///
/// # Errors
/// A Redis does not answer.
pub fn remove_all_cached() -> Result<(), String> {
    for cache in all() {
        match cache {
            Cache::Memory(zone) => {
                if let Some(zone) = zone.upgrade() {
                    zone.purge_all();
                }
            }
            Cache::Redis(settings) => {
                let mut cursor = b"0".to_vec();
                loop {
                    match ask(&settings, &SWEEP, remote::PREFIX.as_bytes(), &[&cursor])? {
                        Some(Value::BulkString(next)) if next != b"0" => cursor = next,
                        _ => break,
                    }
                }
            }
        }
    }
    Ok(())
}

/// Runs a script over a connection of its own; `None` for a Redis that no plugin uses any more.
fn ask(settings: &Weak<Settings>, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Option<Value>, String> {
    let Some(settings) = settings.upgrade() else { return Ok(None) };
    let asked = weir_runtime::block_on(async { Client::new(&settings).run(script, key, arguments).await });
    let reply = asked.map_err(|error| error.to_string())?;
    reply.map(Some).map_err(|error| format!("Redis does not answer: {error}"))
}

fn shown(stored: &Stored) -> Json {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut headers: Map<String, Json> = Map::new();
    for (name, value) in &stored.fields {
        headers.insert(text(name), text(value).into());
    }
    json!({
        "status": stored.status, "headers": headers, "body": text(&stored.body), "body_len": stored.body.len(),
        "timestamp": stored.at_ms / 1000, "ttl": stored.lifetime_ms / 1000, "version": 1,
    })
}
