//! Kong's Admin API over the store of the gateway.
//!
//! ```text
//!  weir_admin::FamilyDoor ─► api ─┬─► read ──► live (entities in force, from the watch of the store)
//!                                 ├─► write ─► live.prepare ─► Configuration::change ─► store, workers
//!                                 └─► info, schemas
//! ```
//!
//! Entities are stored as Kong's own documents, one each under `entities/KIND/ID`, with every default; the gateway
//! lowers all of them with `weir-kong` when one changes. What is wrong with an entity is told in Kong's words, first by
//! its schema ([`shape`]), then by the reader of the family.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod acme;
mod api;
mod body;
mod config;
mod entities;
mod fault;
mod health;
mod info;
mod kinds;
mod live;
mod made;
mod plugins;
mod proxy_cache;
mod read;
mod shape;
mod target;
mod tokens;
mod write;

pub use api::{CheckedPlace, Gateway, KongAdmin, TargetAddress};
