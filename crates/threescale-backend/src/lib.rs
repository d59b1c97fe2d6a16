//! 3scale's backend: the Service Management API that gateways authorise and report at, and the internal API by which
//! services and applications are managed.
//!
//! ```text
//!  gateways ──► listener ──► authorize ─┐                    ┌─ file    (YAML, JSON)
//!               (server)  ─► report ────┴─► counts, catalog ◄┤
//!  portal ────► internal ───────────────────────► catalog ◄──┴─ store   (changed by the internal API)
//! ```
//!
//! Counts are those of plans (`weir_plugins::PlanCounts`): what is kept of them outlives the process. The names of errors and
//! the order of checks are those of 3scale's own backend.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the workers; the backend has a thread and a runtime of its own"
)]

mod authorize;
mod backend;
mod catalog;
mod counts;
mod errors;
mod extensions;
mod fault;
mod file;
mod internal;
mod listener;
mod model;
mod overview;
mod params;
mod period;
mod report;
mod server;
mod status;
mod usage;
mod xml;

pub use backend::{Backend, Login, Source, stored};
pub use catalog::Catalog;
pub use file::read_file;
pub use model::StoredSecrets;
pub use overview::Question;
pub use server::{Leaving, Limits, serve};
