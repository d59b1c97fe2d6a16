//! Responses in a Redis, which several gateways share.

use std::sync::LazyLock;

use weir_redis::{Error, GET, Script, Value};

use crate::cache::zone::Stored;
use crate::traffic::redis::Redis;

/// Beginning of the keys.
pub(super) const PREFIX: &str = "kong_proxy_cache:";

/// Stores what is behind the seconds for which it is kept, which take ten digits.
static SET: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "return redis.call('SET', KEYS[1], string.sub(ARGV[1], 11), 'EX', tonumber(string.sub(ARGV[1], 1, 10)))",
    )
});

/// The key of a response.
pub(super) fn key(hex: &str) -> Vec<u8> {
    [PREFIX.as_bytes(), hex.as_bytes()].concat()
}

/// Finds a response. One that cannot be read is none.
pub(super) async fn find(redis: &Redis, hex: &str) -> Result<Option<Stored>, Error> {
    match redis.run(&GET, &key(hex), &[]).await? {
        Value::BulkString(bytes) => Ok(read(&bytes)),
        _ => Ok(None),
    }
}

/// Stores a response for so many seconds. Nobody waits for it.
pub(super) fn store(redis: &Redis, hex: &str, stored: &Stored, seconds: u64) {
    let mut out = format!("{:010}", seconds.clamp(1, 9_999_999_999)).into_bytes();
    write(stored, &mut out);
    redis.run_beside(&SET, key(hex).into(), out.into());
}

/// Version of the form of a stored response.
const VERSION: u64 = 1;

/// Writes a response: numbers in eight bytes each, then names, values and the body with their lengths before them.
fn write(stored: &Stored, out: &mut Vec<u8>) {
    let fields = stored.fields.len() as u64;
    for number in [VERSION, stored.status.into(), stored.at_ms, stored.lifetime_ms, fields] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    let fields = stored.fields.iter().flat_map(|(name, value)| [name, value]);
    for text in fields.chain([&stored.body]) {
        out.extend_from_slice(&(text.len() as u64).to_be_bytes());
        out.extend_from_slice(text);
    }
}

/// Reads a response; `None` for what is none.
pub(super) fn read(mut bytes: &[u8]) -> Option<Stored> {
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        let (first, rest) = bytes.split_first_chunk::<8>()?;
        *bytes = rest;
        Some(u64::from_be_bytes(*first))
    }
    fn text(bytes: &mut &[u8]) -> Option<Box<[u8]>> {
        let length = usize::try_from(number(bytes)?).ok()?;
        let (first, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(first.into())
    }
    let rest = &mut bytes;
    if number(rest)? != VERSION {
        return None;
    }
    let (status, at_ms, lifetime_ms, fields) = (number(rest)?, number(rest)?, number(rest)?, number(rest)?);
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status))?;
    let mut stored = Stored::new(status, at_ms, 0, lifetime_ms);
    for _ in 0..fields {
        stored.fields.push((text(rest)?, text(rest)?));
    }
    stored.body = text(rest)?;
    rest.is_empty().then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::{read, write};
    use crate::cache::zone::Stored;

    #[test]
    fn a_response_comes_back_as_it_was_and_nothing_else_is_one() {
        let fields = vec![(Box::from(&b"content-type"[..]), Box::from(&b"text/\xff"[..]))];
        let mut stored = Stored::new(201, 5000, 0, 9000);
        (stored.fields, stored.body) = (fields, Box::from(&b"hello"[..]));
        let mut out = Vec::new();
        write(&stored, &mut out);
        let found = read(&out).expect("a response");
        assert_eq!((found.status, found.at_ms, found.lifetime_ms), (201, 5000, 9000));
        assert_eq!((&found.fields, &*found.body), (&stored.fields, &b"hello"[..]));
        for end in 0..out.len() {
            assert!(read(&out[..end]).is_none(), "cut at {end}");
        }
        for at in 0..out.len() {
            let mut changed = out.clone();
            changed[at] ^= 0x80;
            // No panic, and no memory for lengths that are not there.
            let _ = read(&changed);
        }
        assert!(read(&[&out[..], b"x"].concat()).is_none());
    }
}
