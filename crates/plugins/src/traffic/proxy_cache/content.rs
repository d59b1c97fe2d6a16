//! The cache of 3scale's policy `content_caching`, which follows what upstreams say.

use weir_plugin::{BuildCx, Invalid};
use weir_wire::name::FieldName;

use super::{CacheMethod, Caching, Names, PerRequest, Zone, compile_all};

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
            zone: build.states.get_or_create("3scale content cache", || Zone::new(BYTES)),
            key: compile_all("id", &key)?,
            names_caller: false,
            isolates: false,
            statuses: [200, 302].into(),
            methods: [CacheMethod::Get, CacheMethod::Head].into(),
            hides: false,
            obeys: true,
            unsaid_ms: Some(UNSAID_MS),
            bypass: None,
            no_cache: None,
            ttl_ms: 0,
            stale_if_error: 0,
            lock: None,
            waiting: PerRequest::new(),
            keeps_cookies: false,
            longest: LONGEST,
            names: Names { status, ..Names::default() },
            pending: PerRequest::new(),
        })
    }
}
