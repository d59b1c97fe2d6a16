//! Plugins that decide who and what may come in, and which pages may read the answers.

pub(crate) mod acl;
pub(crate) mod address_set;
pub(crate) mod chaitin_waf;
pub(crate) mod consumer_restriction;
pub(crate) mod cors;
pub(crate) mod csrf;
pub(crate) mod data_mask;
mod host_set;
pub(crate) mod ip_restriction;
pub(crate) mod listed_certificates;
pub(crate) mod ocsp_stapling;
pub(crate) mod referer_restriction;
pub(crate) mod ua_restriction;
pub(crate) mod uri_blocker;
pub(crate) mod verified_chains;

use weir_plugin::Invalid;

/// A list of what is let through, or of what is not.
#[derive(Debug)]
enum Listed<T> {
    /// Nothing else is let through.
    Allowed(T),
    /// Everything else is.
    Denied(T),
}

impl<T> Listed<T> {
    /// Takes the one list of the two that is there, compiled.
    fn compile<C>(
        allowed: (&str, Option<&C>),
        denied: (&str, Option<&C>),
        compile: impl Fn(&str, &C) -> Result<T, Invalid>,
    ) -> Result<Self, Invalid> {
        match (allowed.1, denied.1) {
            (Some(list), None) => compile(allowed.0, list).map(Self::Allowed),
            (None, Some(list)) => compile(denied.0, list).map(Self::Denied),
            (Some(_), Some(_)) => {
                Err(Invalid::new(denied.0, format!("expected either {} or {}, not both", allowed.0, denied.0)))
            }
            (None, None) => Err(Invalid::new("", format!("expected either {} or {}", allowed.0, denied.0))),
        }
    }

    /// True if something is let through of which `is_listed` says whether it stands in the list.
    fn lets_through(&self, is_listed: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::Allowed(list) => is_listed(list),
            Self::Denied(list) => !is_listed(list),
        }
    }
}
