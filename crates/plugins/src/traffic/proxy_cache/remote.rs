//! Answers in a Redis, which several gateways share.
//!
//! ```text
//! PREFIX k:SHA-256 of a key ─► hash: "vary" ─► names of the fields that choose a variant
//!                                    SHA-256 of their values ─► head, and body
//! PREFIX t:tag ─► set of these keys
//! ```

use std::sync::LazyLock;

use aws_lc_rs::digest;
use weir_redis::{Error, REMOVE, Script, Value};

use crate::cache::head::Head;
use crate::cache::zone::Stored;
use crate::hex;
use crate::traffic::redis::Redis;

/// Finds the names of the fields that choose a variant; where there are none, the answer itself.
static FIND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local vary = redis.call('HGET', KEYS[1], 'vary') \
         if not vary then return false end \
         if vary ~= '' then return '?' .. vary end \
         local found = redis.call('HGET', KEYS[1], ARGV[1]) \
         return found and '=' .. found",
    )
});

/// Finds a variant.
static FIND_VARIANT: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('HGET', KEYS[1], ARGV[1])"));

/// Stores an answer; 64 variants make room for a further one. Seconds and the length of the names in ten digits each, the names, 64 digits for the variant, the answer.
static STORE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local seconds, length = tonumber(string.sub(ARGV[1], 1, 10)), tonumber(string.sub(ARGV[1], 11, 20)) \
         local vary, name = string.sub(ARGV[1], 21, 20 + length), string.sub(ARGV[1], 21 + length, 84 + length) \
         local known = redis.call('HGET', KEYS[1], 'vary') \
         if known ~= vary or redis.call('HLEN', KEYS[1]) > 64 then redis.call('DEL', KEYS[1]) end \
         redis.call('HSET', KEYS[1], 'vary', vary, name, string.sub(ARGV[1], 85 + length)) \
         if redis.call('TTL', KEYS[1]) < seconds then redis.call('EXPIRE', KEYS[1], seconds) end \
         return 1",
    )
});

/// Adds a key to those of a tag: seconds in ten digits, the key.
static TAG: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local seconds = tonumber(string.sub(ARGV[1], 1, 10)) \
         redis.call('SADD', KEYS[1], string.sub(ARGV[1], 11)) \
         if redis.call('TTL', KEYS[1]) < seconds then redis.call('EXPIRE', KEYS[1], seconds) end \
         return 1",
    )
});

/// Takes the keys of a tag.
static UNTAG: LazyLock<Script> = LazyLock::new(|| {
    Script::new("local keys = redis.call('SMEMBERS', KEYS[1]) redis.call('DEL', KEYS[1]) return keys")
});

/// A zone in a Redis.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) redis: Redis,
    /// Name of the zone.
    pub(super) zone: String,
    /// Milliseconds for which answers stay beyond the time for which they may be given: the upstream is asked about them.
    pub(super) kept_ms: u64,
}

fn sha256(text: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, text).as_ref())
}

impl Remote {
    fn key(&self, key: &[u8]) -> Vec<u8> {
        format!("{}{}:k:{}", self.redis.prefix(), self.zone, sha256(key)).into_bytes()
    }

    fn tag(&self, tag: &[u8]) -> Vec<u8> {
        format!("{}{}:t:{}", self.redis.prefix(), self.zone, sha256(tag)).into_bytes()
    }

    /// Finds an answer. One that cannot be read is none.
    pub(super) async fn find(
        &self,
        key: &[u8],
        values: impl Fn(&[Box<str>], &mut Vec<u8>),
    ) -> Result<Option<Stored>, Error> {
        let place = self.key(key);
        let found = match self.redis.run(&FIND, &place, &[sha256(b"").as_bytes()]).await? {
            Value::BulkString(found) => found,
            _ => return Ok(None),
        };
        if let Some(found) = found.strip_prefix(b"=") {
            return Ok(read(found, key, b""));
        }
        let names = String::from_utf8_lossy(found.strip_prefix(b"?").unwrap_or_default()).into_owned();
        let names: Vec<Box<str>> = names.split(',').map(Into::into).collect();
        let mut wanted = Vec::new();
        values(&names, &mut wanted);
        match self.redis.run(&FIND_VARIANT, &place, &[sha256(&wanted).as_bytes()]).await? {
            Value::BulkString(found) => Ok(read(&found, key, &wanted)),
            _ => Ok(None),
        }
    }

    /// Stores an answer for as long as it may be given. Nobody waits for it.
    pub(super) fn store(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Stored) {
        let beyond = stored.stale_if_error_ms.max(stored.revalidate_ms);
        let left = stored.lifetime_ms.saturating_add(beyond.max(self.kept_ms)).saturating_sub(stored.age_ms);
        let seconds = left.div_ceil(1000).clamp(1, 9_999_999_999);
        let Ok(head) = serde_json::to_string(&Head::of(key, vary, values, stored, stored.body.len())) else { return };
        let names = vary.join(",");
        let mut argument = format!("{seconds:010}{:010}{names}{}{head}\n", names.len(), sha256(values)).into_bytes();
        argument.extend_from_slice(&stored.body);
        let place = self.key(key);
        for tag in &stored.tags {
            let mut argument = format!("{seconds:010}").into_bytes();
            argument.extend_from_slice(&place);
            self.redis.run_beside(&TAG, self.tag(tag).into(), argument.into());
        }
        self.redis.run_beside(&STORE, place.into(), argument.into());
    }

    /// Forgets all answers of a key; tells whether there were any.
    pub(super) async fn purge(&self, key: &[u8]) -> Result<bool, Error> {
        self.remove(&self.key(key)).await
    }

    /// The same beside the request.
    pub(super) fn purge_beside(&self, key: &[u8]) {
        self.redis.run_beside(&REMOVE, self.key(key).into(), Box::default());
    }

    /// Forgets all answers of keys with one of these tags; tells whether there were any.
    pub(super) async fn purge_tags<'t>(&self, tags: impl Iterator<Item = &'t [u8]>) -> Result<bool, Error> {
        let mut has_purged = false;
        for tag in tags {
            let Value::Array(keys) = self.redis.run(&UNTAG, &self.tag(tag), &[]).await? else { continue };
            for key in keys {
                if let Value::BulkString(key) = key {
                    has_purged |= self.remove(&key).await?;
                }
            }
        }
        Ok(has_purged)
    }

    async fn remove(&self, place: &[u8]) -> Result<bool, Error> {
        Ok(matches!(self.redis.run(&REMOVE, place, &[]).await?, Value::Int(count) if count > 0))
    }
}

/// Reads the answer for a key and the values that choose a variant.
fn read(text: &[u8], key: &[u8], values: &[u8]) -> Option<Stored> {
    let at = text.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = text.split_at_checked(at)?;
    let head: Head = serde_json::from_slice(head).ok()?;
    let body = body.get(1..).filter(|body| body.len() == head.len)?;
    let (known_key, _, known_values, mut stored) = head.read()?;
    stored.body = body.into();
    (known_key == key && known_values == values).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::cache::head::Head;
    use crate::cache::zone::Stored;

    #[test]
    fn an_answer_comes_back_as_it_was_and_nothing_else_is_one() {
        let mut stored = Stored::new(201, 0, 0, 9000);
        stored.fields = vec![(Box::from(&b"content-type"[..]), Box::from(&b"text/\xff"[..]))];
        stored.body = Box::from(&b"hel\nlo"[..]);
        let head = serde_json::to_string(&Head::of(b"k", &[], b"v", &stored, stored.body.len())).unwrap();
        let text = [head.as_bytes(), b"\n", &stored.body].concat();
        let found = read(&text, b"k", b"v").expect("an answer");
        assert_eq!((found.status, found.lifetime_ms, &found.fields), (201, 9000, &stored.fields));
        assert_eq!(found.body, stored.body);
        assert!(read(&text, b"other", b"v").is_none() && read(&text, b"k", b"other").is_none());
        for end in 0..text.len() {
            assert!(read(&text[..end], b"k", b"v").is_none(), "cut at {end}");
        }
    }
}
