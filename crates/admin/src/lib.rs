//! The Admin API: what clients send over HTTP, checked and turned into commits to a store.
//!
//! ```text
//!  server ──► api ──────────────────────► read ───────────────────► Configuration::store
//!  (sockets,  (who may, body, dispatch)   write ─► references ────► Configuration::change
//!   bounds)                                 └──► words, when it is refused
//! ```
//!
//! This crate knows no data plane. The binary hands it a [`Configuration`], which checks changes against all that is
//! live, keeps them and makes them live.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod answer;
mod api;
mod cjson;
mod keys;
mod kinds;
mod patch;
mod read;
mod references;
mod request;
mod server;
mod tls;
mod words;
mod write;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use weir_config::Diagnostic;
use weir_store::{Commit, Store, StoreError};

pub use api::{Api, Options};
pub use keys::{KeyDigest, Keys, Role, key_digest};
pub use server::serve;
pub use tls::server_config;
/// What serves, seen from the Admin API.
pub trait Configuration: Send + Sync + fmt::Debug {
    /// Where resources are read from.
    fn store(&self) -> &dyn Store;

    /// Checks changes as one against everything else, commits them and makes them live: when it answers `Ok`, every
    /// worker serves with them. With `dry_run` they are only checked. On an error nothing has changed.
    fn change(
        &self,
        commit: Commit,
        dry_run: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>>;
}

/// Changes that are live, or could be.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// The store's revision with them; without them for a dry run.
    pub revision: u64,
    /// What is doubtful about them.
    pub warnings: Vec<Diagnostic>,
}

/// Why changes were not made.
#[derive(Clone, Debug)]
pub enum Refused {
    /// They are wrong: at least one error, positions and paths as in a rules file (`routes[0].uri`).
    Invalid(Vec<Diagnostic>),
    /// The store did not take them.
    Store(StoreError),
    /// The configuration cannot be changed this way at all: it comes from a file, or this is a data plane only.
    ReadOnly(String),
}
