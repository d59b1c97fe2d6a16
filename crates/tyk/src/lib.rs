//! Tyk's family: `tyk.conf`, folders of API definitions and policies as a front end, and the gateway API.
//!
//! ```text
//! tyk.conf, apps/*.json, policies ─► files: one document ─► front_end ─► definition (classic form; oas makes it of OAS)
//!                                                                        └─► lower: routes with `api` and `paths`
//! /tyk/… at the port of the traffic ─► api ─┬─► keys ──► sessions of `weir_plugins::tyk`, embedded store
//!                                           └─► apis, policies ─► the files, and a reload
//! ```
//!
//! Tyk's answers are the work of plugins (`weir_plugins::tyk`), so that nothing else on the path of a request knows the
//! family.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod api;
mod conf;
mod definition;
mod files;
mod front_end;
mod lower;
mod oas;
mod rule;

pub use api::{GatewayApi, Reload, Storage};
pub use conf::Conf;
pub use files::{Gathered, Place};
pub use front_end::{FAMILY, Tyk};
