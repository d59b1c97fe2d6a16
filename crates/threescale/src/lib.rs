//! 3scale's family: the configuration of APIcast as a front end, and the portal that hands it out.
//!
//! ```text
//! apicast.json ────────────────┐
//! portal ─► portal: documents ─┴─► front_end ─► service: one form of all fields ─► lower: a route with the plugin `service`
//! ```
//!
//! Answers of services are the work of plugins (`weir_plugins::threescale`), so that nothing else on the path of a request
//! knows the family.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod front_end;
mod lower;
mod nodes;
mod pem;
mod portal;
mod service;
mod tls;
mod upstream;

pub use front_end::{FAMILY, Threescale};
pub use portal::{Pages, Portal};

use weir_config::Code;

/// A fault against a rule of 3scale's.
fn rule(text: impl Into<String>) -> Code {
    Code::FamilyRule { text: text.into().into() }
}
