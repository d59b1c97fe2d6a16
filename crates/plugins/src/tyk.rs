//! Tyk's middleware: one plugin for each part of the chain that an API definition configures, over the engines that the
//! other families use.
//!
//! ```text
//! answers (clean paths, words of failures) ─► api: versions, lists, IP, authentication, rights, limits
//!                                             └─► paths: bodies, headers, rewrites, mocks ─► target ─► upstream
//! ```
//!
//! `analytics` records requests for Tyk's Pump when they are over.
//!
//! `api` runs in the phase `rewrite` and `paths` in `access`, so the order is Tyk's.

mod analytics;
mod answers;
mod api;
mod body;
mod cors;
mod gateway;
mod no_api;
mod paths;
mod patterns;
pub mod sessions;
mod shared;

use weir_plugin::host::Definition;

pub use gateway::{ApiAnswer, ApiRequest, Door, GatewayApi, Job, Offload};
pub use patterns::{is_plain, pattern_of};

/// Every plugin of the family, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[
        &analytics::Analytics,
        &answers::Answers,
        &api::Api,
        &cors::Cors,
        &gateway::Gateway,
        &no_api::NoApi,
        &paths::Paths,
    ]
}

/// Version of Tyk whose answers these are.
pub const VERSION: &str = "v5.14.0";
