//! Stored responses as text, without their bodies: for files, and for a Redis.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::zone::Stored;

/// All of a response but its body, and its place.
#[derive(Serialize, Deserialize)]
pub(crate) struct Head {
    key: String,
    vary: Vec<String>,
    values: String,
    status: u16,
    fields: Vec<(String, String)>,
    /// Milliseconds since 1970 at which the response came.
    came: u64,
    age_ms: u64,
    lifetime_ms: u64,
    stale_if_error_ms: u64,
    revalidate_ms: u64,
    tags: Vec<String>,
    /// Bytes of the body.
    pub(crate) len: usize,
}

/// Key, names of fields that choose a variant, their values, and the response.
pub(crate) type Found = (Vec<u8>, Vec<Box<str>>, Vec<u8>, Stored);

fn unix_ms() -> u64 {
    weir_wire::date::unix_now().as_millis() as u64
}

/// Milliseconds of the clock of stored responses.
pub(crate) fn now_ms() -> u64 {
    weir_runtime::now_us() / 1000
}

impl Head {
    /// The head of a response with a body of so many bytes.
    pub(crate) fn of(key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Stored, len: usize) -> Self {
        let text = |bytes: &[u8]| STANDARD.encode(bytes);
        Self {
            key: text(key),
            vary: vary.iter().map(ToString::to_string).collect(),
            values: text(values),
            status: stored.status,
            fields: stored.fields.iter().map(|(name, value)| (text(name), text(value))).collect(),
            came: unix_ms().saturating_sub(now_ms().saturating_sub(stored.at_ms)),
            age_ms: stored.age_ms,
            lifetime_ms: stored.lifetime_ms,
            stale_if_error_ms: stored.stale_if_error_ms,
            revalidate_ms: stored.revalidate_ms,
            tags: stored.tags.iter().map(|tag| text(tag)).collect(),
            len,
        }
    }

    /// The response, without its body. Time has gone on meanwhile, by the clock on the wall.
    pub(crate) fn read(&self) -> Option<Found> {
        let bytes = |text: &String| STANDARD.decode(text).ok();
        let age_ms = self.age_ms.saturating_add(unix_ms().saturating_sub(self.came));
        let mut stored = Stored::new(self.status, now_ms(), age_ms, self.lifetime_ms);
        (stored.stale_if_error_ms, stored.revalidate_ms) = (self.stale_if_error_ms, self.revalidate_ms);
        for (name, value) in &self.fields {
            stored.fields.push((bytes(name)?.into(), bytes(value)?.into()));
        }
        stored.tags = self.tags.iter().map(|tag| bytes(tag).map(Into::into)).collect::<Option<_>>()?;
        let vary = self.vary.iter().map(|name| name.as_str().into()).collect();
        Some((bytes(&self.key)?, vary, bytes(&self.values)?, stored))
    }
}
