//! Parts of a service that its policies share.

use weir_wire::name::FieldName;

use super::authorise::Authoriser;
use super::credentials::Extractor;
use super::errors::Errors;
use super::oidc::Oidc;
use super::rules::Rules;
use super::target::Target;
use super::text::Names;
use super::usage::Metrics;

/// Parts of a service that its policies share.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) names: Names,
    pub(super) errors: Errors,
    pub(super) metrics: Metrics,
    pub(super) rules: Rules,
    pub(super) extractor: Extractor,
    /// `None` in a chain without the policy `apicast`.
    pub(super) authoriser: Option<Authoriser>,
    pub(super) oidc: Option<Oidc>,
    /// `None`: there is no `api_backend`.
    pub(super) target: Option<Target>,
    pub(super) secret: Box<[u8]>,
    /// The secret that asks for fields about the verdict.
    pub(super) debug_secret: Box<[u8]>,
    pub(super) host_name: Box<[u8]>,
    /// True if the policy `3scale_batcher` authorises.
    pub(super) has_batcher: bool,
    pub(super) fields: Fields,
}

/// Names of fields.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) secret_token: FieldName,
    pub(super) debug: FieldName,
    pub(super) matched: FieldName,
    pub(super) credentials: FieldName,
    pub(super) usage: FieldName,
    pub(super) hostname: FieldName,
    pub(super) service_id: FieldName,
    pub(super) service_name: FieldName,
    /// Fields of the gateway's own that APIcast has not.
    pub(super) foreign: [FieldName; 2],
}

impl Fields {
    pub(super) fn new() -> Self {
        let name = FieldName::constant;
        Self {
            secret_token: name("X-3scale-proxy-secret-token"),
            debug: name("X-3scale-Debug"),
            matched: name("X-3scale-matched-rules"),
            credentials: name("X-3scale-credentials"),
            usage: name("X-3scale-usage"),
            hostname: name("X-3scale-hostname"),
            service_id: name("X-3scale-service-id"),
            service_name: name("X-3scale-service-name"),
            foreign: [name("X-APISIX-Upstream-Status"), name("X-Weir-Error")],
        }
    }
}
