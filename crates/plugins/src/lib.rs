//! The plugins of the gateway: one file each, one line each in [`registry`].
//!
//! | group | plugins |
//! |---|---|
//! | `auth` | `attach-consumer-label`, `authz-casbin`, `authz-casdoor`, `authz-keycloak`, `basic-auth`, `cas-auth`, `forward-auth`, `hmac-auth`, `jwe-decrypt`, `jwt-auth`, `key-auth`, `ldap-auth`, `ldap-auth-advanced`, `multi-auth`, `opa`, `openid-connect`, `saml-auth`, `wolf-rbac` |
//! | `security` | `acl`, `chaitin-waf`, `consumer-restriction`, `cors`, `csrf`, `data-mask`, `ip-restriction`, `ocsp-stapling`, `referer-restriction`, `ua-restriction`, `uri-blocker` |
//! | `traffic` | `api-breaker`, `graphql-limit-count`, `graphql-proxy-cache`, `limit-conn`, `limit-count`, `limit-req`, `proxy-cache`, `proxy-mirror`, `traffic-label`, `traffic-split`, `workflow` |
//! | `transform` | `body-transformer`, `brotli`, `degraphql`, `echo`, `gzip`, `proxy-rewrite`, `response-rewrite` |
//! | `requests` | `batch-requests`, `client-control`, `oas-validator`, `proxy-buffering`, `proxy-control`, `real-ip`, `request-validation` |
//! | `external` | `ext-plugin-post-req`, `ext-plugin-pre-req` |
//! | `functions` | `aws-lambda`, `azure-functions`, `http-dubbo`, `openfunction`, `openwhisk` |
//! | `general` | `fault-injection`, `mocking`, `public-api`, `redirect`, `request-id` |
//! | `scripts` | `exit-transformer`, `serverless-post-function`, `serverless-pre-function` |
//! | `observe` | `datadog`, `log-rotate`, `node-status`, `opentelemetry`, `prometheus`, `server-info`, `skywalking`, `zipkin`, and the loggers: `clickhouse-logger`, `elasticsearch-logger`, `error-log-logger`, `file-logger`, `google-cloud-logging`, `http-logger`, `kafka-logger`, `lago`, `loggly`, `loki-logger`, `rocketmq-logger`, `skywalking-logger`, `sls-logger`, `splunk-hec-logging`, `syslog`, `tcp-logger`, `udp-logger` |
//!
//! A plugin is built once for each place in a configuration where it stands; everything that depends on the
//! configuration alone is worked out then. Its hooks run on the path of requests and do not allocate in steady state.

mod apis;
mod auth;
mod cache;
mod cookies;
mod external;
mod fetch;
mod fields;
mod functions;
mod general;
mod hex;
pub mod kong;
mod name_alone;
mod number_hash;
mod observe;
pub mod oidc;
mod pattern;
mod received;
pub mod reference;
pub mod registry;
mod rejection;
mod requests;
mod scripts;
mod security;
pub mod threescale;
mod traffic;
mod transform;
pub mod tyk;

pub use apis::{Apis, Offload};
pub use external::{CONF_EXPIRE, set_runner};
pub use registry::definitions;
pub use scripts::own::own_plugins;
pub use scripts::wasm::{WasmFilter, wasm_plugins};
pub use traffic::{PlanCount, PlanCounts, QuotaUse, QuotaWatch, limit_keys};
use weir_wire::query;
