//! The plugins of the gateway: one file each, one line each in [`registry`].
//!
//! | group | plugins |
//! |---|---|
//! | `auth` | `attach-consumer-label`, `authz-casbin`, `basic-auth`, `forward-auth`, `hmac-auth`, `jwt-auth`, `key-auth`, `opa`, `openid-connect` |
//! | `security` | `acl`, `consumer-restriction`, `cors`, `csrf`, `ip-restriction`, `referer-restriction`, `ua-restriction`, `uri-blocker` |
//! | `traffic` | `api-breaker`, `limit-conn`, `limit-count`, `limit-req`, `proxy-cache`, `proxy-mirror`, `traffic-label`, `traffic-split`, `workflow` |
//! | `transform` | `brotli`, `echo`, `gzip`, `proxy-rewrite`, `response-rewrite` |
//! | `requests` | `batch-requests`, `client-control`, `proxy-control`, `real-ip`, `request-validation` |
//! | `general` | `fault-injection`, `mocking`, `public-api`, `redirect`, `request-id` |
//! | `scripts` | `exit-transformer`, `serverless-post-function`, `serverless-pre-function` |
//! | `observe` | `datadog`, `node-status`, `opentelemetry`, `prometheus`, `zipkin`, and the loggers: `clickhouse-logger`, `elasticsearch-logger`, `file-logger`, `http-logger`, `loggly`, `loki-logger`, `skywalking-logger`, `sls-logger`, `splunk-hec-logging`, `syslog`, `tcp-logger`, `udp-logger` |
//!
//! A plugin is built once for each place in a configuration where it stands; everything that depends on the
//! configuration alone is worked out then. Its hooks run on the path of requests and do not allocate in steady state.

mod apis;
mod auth;
mod cache;
mod cookies;
mod fields;
mod general;
pub mod kong;
mod number_hash;
mod observe;
mod pattern;
pub mod reference;
pub mod registry;
mod rejection;
mod requests;
mod scripts;
mod security;
mod traffic;
mod transform;
pub mod tyk;

pub use apis::{Apis, Offload};
pub use registry::definitions;
pub use scripts::own::own_plugins;
pub use traffic::{PlanCount, PlanCounts, QuotaUse, QuotaWatch, limit_keys};
use weir_wire::query;
