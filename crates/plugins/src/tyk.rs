//! Tyk's middleware: one plugin for each part of the chain that an API definition configures, over the engines that the
//! other families use.
//!
//! ```text
//! answers (clean paths, words of failures) ─► pre: scripts, services ─► api: versions, lists, IP, authentication, rights, limits
//!   └─► post: scripts, services ─► paths: bodies, headers, rewrites, mocks, breakers ─► cache ─► virtual: scripts ─► upstream
//! ```
//!
//! `pre` and `api` run in the phase `rewrite` and the others in `access`, so that the order is Tyk's but for scripts: `pre`
//! runs before the lists of paths, and `post` before what `paths` changes. `analytics` records requests for Tyk's Pump when
//! they are over.

mod analytics;
mod answers;
mod apart;
mod api;
mod batch;
mod body;
mod cache;
mod changes;
mod coprocess;
mod cors;
mod entries;
mod events;
mod fetch;
mod gateway;
mod graphql;
mod loops;
mod no_api;
mod oas_validation;
mod oauth;
mod paths;
mod patterns;
mod scripts;
pub mod sessions;
mod shared;
mod template;

use weir_plugin::host::Definition;

pub use api::message_ids;
pub use cache::Caches;
pub use events::sender;
pub use gateway::{ApiAnswer, ApiRequest, Door, GatewayApi, Job, Offload};
pub use loops::{loop_path, parse as parse_loop};
pub use oauth::OAuthServer;
pub use patterns::{is_plain, pattern_of};

/// Every plugin of the family, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[
        &analytics::Analytics,
        &answers::Answers,
        &api::Api,
        &batch::Batch,
        &cache::Cache,
        &coprocess::Answers,
        &coprocess::Before,
        &coprocess::Behind,
        &cors::Cors,
        &gateway::Gateway,
        &graphql::Graphql,
        &no_api::NoApi,
        &oas_validation::OasValidation,
        &oauth::OAuth,
        &paths::Paths,
        &scripts::Answers,
        &scripts::Post,
        &scripts::Pre,
        &scripts::Virtual,
    ]
}

/// Version of Tyk whose answers these are.
pub const VERSION: &str = "v5.14.0";
