//! Answers that are too old, in the place of those that fail (RFC 5861 section 4).

use weir_plugin::{HookCx, Origin, ResponseCx, Side};

use super::Caching;
use crate::cache::zone::Stored;

/// Fields that speak of one answer's content.
pub(super) const OF_CONTENT: [&str; 14] = [
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Content-Location",
    "Content-Range",
    "Content-Disposition",
    "Accept-Ranges",
    "ETag",
    "Last-Modified",
    "Cache-Control",
    "Expires",
    "Location",
    "Retry-After",
    "Vary",
];

/// True if a stored answer may still stand in.
pub(super) fn may_stand_in(stored: &Stored, now_ms: u64) -> bool {
    let old_ms = stored.age_ms(now_ms).saturating_sub(stored.lifetime_ms);
    stored.stale_if_error_ms > 0 && old_ms <= stored.stale_if_error_ms
}

/// True if the upstream has failed. A failure that is not the upstream's may be a refusal.
pub(super) fn has_failed(cx: &ResponseCx<'_>) -> bool {
    match cx.response().origin {
        Origin::Failed(failure) => failure.side == Side::Upstream,
        Origin::Upstream => matches!(cx.status(), 500 | 502..=504),
        Origin::Nobody | Origin::Gateway => false,
    }
}

impl Caching {
    /// Puts a stored answer in the place of the upstream's. Fields that plugins have added stay.
    pub(super) fn stand_in(&self, cx: &mut ResponseCx<'_>, stored: &Stored, body: &[u8], status: &'static [u8]) {
        let age = stored.age_ms(cx.view().now() / 1000) / 1000;
        cx.set_status(stored.status);
        cx.response_mut().head.fields.remove_received();
        for name in &self.names.of_content {
            cx.remove_field(name);
        }
        let response = cx.response_mut();
        let (fields, base) = (&mut response.head.fields, response.buffer.bytes());
        let is_absent: Vec<bool> = stored.fields.iter().map(|(name, _)| fields.get_str(base, name).is_none()).collect();
        for ((name, value), _) in stored.fields.iter().zip(is_absent).filter(|(_, is_absent)| *is_absent) {
            fields.add(name, value);
        }
        let mut text = Vec::new();
        weir_wire::push_number(&mut text, age);
        cx.set_field(&self.names.age, &text);
        cx.set_field(&self.names.status, status);
        cx.replace_body(body);
    }
}
