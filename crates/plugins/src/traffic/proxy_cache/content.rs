//! The cache of 3scale's policy `content_caching`, which follows what upstreams say.

use std::sync::Arc;

use weir_plugin::{BuildCx, Invalid};
use weir_wire::name::FieldName;

use super::{CacheMethod, Caching, Keeping, Names, PerRequest, compile_all};
use crate::cache::zone::Zone;

/// Bytes of the answers of all services.
const BYTES: usize = 64 << 20;
/// Longest body that is kept.
const LONGEST: usize = 1 << 20;
/// Milliseconds for which an answer is kept whose upstream says nothing of it, as APIcast has it.
const UNSAID_MS: u64 = 60_000;

impl Caching {
    /// The cache of a service, which tells what happened in the field `status`.
    ///
    /// # Errors
    /// The id of the service cannot be a part of keys.
    pub(crate) fn of_service(id: &str, status: FieldName, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let key = [id, "$scheme", "$host", "$request_uri"].map(str::to_owned);
        Ok(Self {
            keeping: Arc::new(Keeping {
                zone: build.states.get_or_create("3scale content cache", || Zone::new(BYTES)),
                remote: None,
                statuses: [200, 302].into(),
                obeys: true,
                unsaid_ms: Some(UNSAID_MS),
                ttl_ms: 0,
                stale_if_error: 0,
                stale_while_revalidate: 0,
                keeps_cookies: false,
                longest: LONGEST,
                tags: None,
            }),
            key: compile_all("id", &key)?,
            names_caller: false,
            isolates: false,
            methods: [CacheMethod::Get, CacheMethod::Head].into(),
            hides: false,
            revalidates: false,
            bypass: None,
            no_cache: None,
            lock: None,
            waiting: PerRequest::new(),
            refreshing: PerRequest::new(),
            loading: PerRequest::new(),
            asking: PerRequest::new(),
            names: Names { status, ..Names::default() },
            pending: PerRequest::new(),
        })
    }
}
