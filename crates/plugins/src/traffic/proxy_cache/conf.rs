//! The configuration of `proxy-cache`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::kong::redis::Nested;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The place of answers. `memory`: the memory of this process. `disk`: the folder of the zone in the settings
    /// (`cache_zones`); answers outlive the process. A zone without a folder is in memory, of which a warning is made. `redis`: a
    /// Redis, for all gateways that name it; an extension.
    pub(in crate::traffic) cache_strategy: Strategy,
    /// The zone: all places that name the same zone share its room, and answers under the same key.
    #[schemars(length(min = 1, max = 100))]
    pub(in crate::traffic) cache_zone: String,
    /// With `cache_strategy: redis`: the server.
    pub(super) redis: Option<Nested>,
    /// The texts and variables that the key of an answer is made of: requests in which all of it is the same get the same
    /// answer. `$request_method` cannot be one of them.
    #[schemars(length(min = 1))]
    pub(super) cache_key: Vec<String>,
    /// Statuses of answers that are kept.
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)))]
    pub(in crate::traffic) cache_http_status: Vec<u16>,
    /// Methods of requests that are answered with what is kept. Answers to `HEAD` are not kept; such requests are answered with
    /// what was kept for `GET`.
    #[schemars(length(min = 1))]
    pub(super) cache_method: Vec<CacheMethod>,
    /// Takes `Expires` and `Cache-Control` out of answers.
    pub(super) hide_cache_headers: bool,
    /// Goes by `Cache-Control` of requests (`no-store`, `no-cache`, `max-age`, `max-stale`, `min-fresh`, `only-if-cached`), and by
    /// the lifetime that an answer tells: `s-maxage`, `max-age`, `Expires`; one that tells none is not kept.
    pub(super) cache_control: bool,
    /// Texts and variables: where they come to anything but an empty text and `0`, a request is not answered with what is kept.
    #[schemars(length(min = 1))]
    pub(super) cache_bypass: Option<Vec<String>>,
    /// The same: the answer is not kept.
    #[schemars(length(min = 1))]
    pub(super) no_cache: Option<Vec<String>>,
    /// Seconds for which answers are kept without `cache_control`.
    #[schemars(range(min = 1))]
    pub(in crate::traffic) cache_ttl: u64,
    /// Seconds for which an answer that is too old stands in for one that fails: the upstream cannot be reached, does not
    /// answer in time, or answers with 500, 502, 503 or 504. With `cache_control` a `stale-if-error` of the answer counts in its
    /// place, and `must-revalidate` forbids it. An extension.
    #[schemars(range(max = 31536000))]
    pub(super) stale_if_error: u64,
    /// Seconds for which an answer that is too old is given while a newer one is fetched beside it: no client waits for that. With
    /// `cache_control` a `stale-while-revalidate` of the answer counts in its place, and `must-revalidate` forbids it. Answers
    /// beyond `limits.callout_body` cannot be fetched so. An extension.
    #[schemars(range(max = 31536000))]
    pub(super) stale_while_revalidate: u64,
    /// Asks the upstream whether an answer that is too old has changed, by its `ETag` and `Last-Modified`: where it has not (304),
    /// the answer is kept and given on. Requests with conditions of their own, or with a range, pass as they are. A Redis keeps
    /// answers for an hour longer then. An extension, as nginx's `proxy_cache_revalidate`.
    pub(super) cache_revalidate: bool,
    /// Name of the field of answers with their tags, such as `Cache-Tag`: texts with commas or blanks between them, 64 for each
    /// answer. A request with the method `PURGE` and this field makes the zone forget all answers with one of its tags. An
    /// extension.
    #[schemars(length(min = 1))]
    pub(super) cache_tags: Option<String>,
    /// Lets one request fetch an answer that is not kept, and others with the same key wait for it. An extension, as nginx's
    /// `proxy_cache_lock`.
    pub(super) cache_lock: bool,
    /// Seconds that a request waits for the answer of another; then it goes to the upstream itself.
    #[schemars(range(min = 1, max = 60))]
    pub(super) cache_lock_timeout: u64,
    /// Keeps the answers of consumers apart, unless the key has one's name, group or credential in it.
    pub(in crate::traffic) consumer_isolation: bool,
    /// Keeps answers with `Set-Cookie` as well.
    pub(in crate::traffic) cache_set_cookie: bool,
    /// Bytes of the longest body that is kept.
    #[schemars(range(min = 1))]
    pub(super) max_resp_body_size: usize,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            cache_strategy: Strategy::default(),
            cache_zone: "disk_cache_one".to_owned(),
            redis: None,
            cache_key: vec!["$host".to_owned(), "$request_uri".to_owned()],
            cache_http_status: vec![200, 301, 404],
            cache_method: vec![CacheMethod::Get, CacheMethod::Head],
            hide_cache_headers: false,
            cache_control: false,
            cache_bypass: None,
            no_cache: None,
            cache_ttl: 300,
            stale_if_error: 0,
            stale_while_revalidate: 0,
            cache_revalidate: false,
            cache_tags: None,
            cache_lock: false,
            cache_lock_timeout: 5,
            consumer_isolation: true,
            cache_set_cookie: false,
            max_resp_body_size: 64 << 20,
        }
    }
}

/// The place of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "explained at the field")]
pub(crate) enum Strategy {
    #[default]
    Disk,
    Memory,
    Redis,
}

/// A method whose answers may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
#[allow(missing_docs, reason = "methods of HTTP")]
pub(crate) enum CacheMethod {
    Get,
    Head,
    Post,
}

impl CacheMethod {
    pub(super) fn name(self) -> &'static [u8] {
        match self {
            Self::Get => b"GET",
            Self::Head => b"HEAD",
            Self::Post => b"POST",
        }
    }
}

/// `plugin_metadata` of the plugin. An extension: APISIX has sizes of zones in its `config.yaml`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// Bytes of zones by their names; a zone that is not here has 50 MiB.
    pub(super) zones: BTreeMap<String, usize>,
}
