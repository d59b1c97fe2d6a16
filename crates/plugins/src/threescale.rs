//! 3scale's APIcast: a service with its chain of policies, as a client of a 3scale backend.
//!
//! ```text
//! service ─► chain: policies in their order, by phases (rewrite, access, content)
//!              ├─► apicast: credentials ─► mapping rules ─► verdict: known, or asked of the backend
//!              │                                              └─► reports, in sums, off the path of requests
//!              └─► headers, url_rewriting, routing, cors, … ─► target ─► upstream
//! ```
//!
//! APIcast runs all policies for each phase in the order of the chain, and a chain may hold a policy twice. So a chain is
//! one plugin, whose policies run in its hook `rewrite`.

mod authorise;
mod backend;
mod chain;
mod condition;
mod credentials;
mod errors;
mod limits;
mod no_service;
mod oidc;
mod parts;
mod policies;
mod policy;
mod reports;
mod rules;
mod service;
mod state;
mod target;
mod text;
mod usage;
mod values;
mod verdicts;

use weir_plugin::host::Definition;

pub use policies::{REFUSED, SUPPORTED, name_of};
pub use target::{PROXIES, by_way_of_proxy};

/// Every plugin of the family, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[&no_service::NoService, &service::Service]
}
