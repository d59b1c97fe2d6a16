//! The Admin API: what clients send over HTTP, checked and turned into commits to a store.
//!
//! ```text
//!  server ──► api ──────────────────────► read ───────────────────► Configuration::store
//!  (sockets,  (who may, body, dispatch)   write ─► references ────► Configuration::change
//!   bounds)     │                           └──► words, when it is refused
//!               └──► operations: describe, configs, extensions, openapi ───► Gateway
//! ```
//!
//! This crate knows no data plane. The binary hands it a [`Configuration`], which checks changes against all that is
//! live, keeps them and makes them live, and a [`Gateway`] for the rest.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod answer;
mod api;
mod bodies;
mod cjson;
mod configs;
mod dashboard;
mod describe;
mod extensions;
mod family;
mod keys;
mod kinds;
mod login;
mod logins;
mod openapi;
mod operations;
mod origins;
mod patch;
mod peer;
mod pulse;
mod put;
mod read;
mod references;
mod request;
mod schemas;
mod seats;
mod server;
mod session;
mod sessions;
mod streams;
mod tls;
mod turns;
mod ui;
mod words;
mod write;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use weir_config::{Diagnostic, Node};
use weir_store::{Commit, Item, Key, Kind, Store, StoreError};
use weir_usage::Usage;

pub use api::{Api, Options};
pub use extensions::{OwnRequest, ThreescaleQuestion};
pub use family::{FamilyAnswer, FamilyApi, FamilyDoor, FamilyRequest};
pub use keys::{KeyDigest, Keys, Role, key_digest, new_key};
pub use logins::{LoginProvider, Visitor};
pub use origins::Hosts;
pub use pulse::Pulse;
pub use schemas::{PluginSchema, Schemas};
pub use seats::{Seats, Taken};
pub use server::{Leaving, Rest, Served, serve};
pub use tls::server_config;
pub use ui::Ui;
/// The configuration in force, seen from the Admin API.
pub trait Configuration: Send + Sync + fmt::Debug {
    /// Store that resources are read from.
    fn store(&self) -> &dyn Store;

    /// A resource as it was a moment ago, which may be known without asking the store: for whoever bases a change on it
    /// and [expects](Commit::expect) it to be still so.
    fn recent<'a>(&'a self, key: &'a Key) -> weir_store::Answer<'a, Option<Item>> {
        self.store().get(key)
    }

    /// All resources of a kind, or of every kind, with texts that are shared with what serves where that is known to be
    /// what the store has: a list is not another copy of everything.
    fn listing(&self, kind: Option<Kind>) -> weir_store::Answer<'_, weir_store::Listing> {
        self.store().list(kind)
    }

    /// Checks changes as one against everything else, commits them and makes them live: when it answers `Ok`, every
    /// worker serves with them. With `dry_run` they are only checked. On an error nothing has changed.
    fn change(
        &self,
        commit: Commit,
        dry_run: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>>;

    /// Reason why nothing can be changed, for a configuration that is only shown.
    fn read_only(&self) -> Option<String> {
        None
    }

    /// As [`change`](Self::change), though other resources that refer to what is changed may become invalid by it; they
    /// are left out of what serves until they are put right.
    fn change_by_force(&self, commit: Commit) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        self.change(commit, false)
    }
}

/// Parts of the gateway beside its configuration. Methods may take their time and are called on threads that
/// may block.
pub trait Gateway: Send + Sync + fmt::Debug {
    /// The schemas of resources and plugins.
    fn schemas(&self) -> &Schemas;

    /// Everything that is to be said of one resource by itself, with paths from the resource on; `None` for a kind that
    /// is not supported.
    fn check_item(&self, kind: Kind, item: Node) -> Option<Vec<Diagnostic>>;

    /// Everything that is to be said of a whole configuration, whatever is live.
    fn check_document(&self, root: Node) -> Vec<Diagnostic>;

    /// Explains the treatment of a request: a method and a URL, fields, and the client's address.
    ///
    /// # Errors
    /// Reason that the text is no request.
    fn explain(&self, request: &str, fields: Vec<(String, String)>, remote: IpAddr) -> Result<Value, String>;

    /// A request that the gateway can send to itself.
    ///
    /// # Errors
    /// Reason that the text is no request, or cannot be sent.
    fn own_request(&self, _request: &str, _fields: Vec<(String, String)>) -> Result<OwnRequest, String> {
        Err("this gateway has no listener that a request can be sent to".to_owned())
    }

    /// The answer of Tyk's gateway API: status and JSON. `None` where Tyk's family does not run, or has no such API.
    fn tyk(&self, _method: &str, _path: &str, _query: Vec<(String, String)>, _body: Vec<u8>) -> Option<(u16, Value)> {
        None
    }

    /// Applications of the gateway's own backend of 3scale: `total` and `applications`. `None` where it is off.
    fn threescale_applications(&self, _question: &ThreescaleQuestion) -> Option<Value> {
        None
    }

    /// The figures of the gateway as they come; `None` where nobody takes them.
    fn pulse(&self) -> Option<Arc<Pulse>> {
        None
    }

    /// Properties of this process: version, host, time of start, workers, addresses.
    fn about(&self) -> Value {
        Value::Object(serde_json::Map::new())
    }

    /// The gateways that share a store with this one, as they tell of themselves: `product`, `hostname` and `version`.
    fn gateways(&self) -> Vec<Value> {
        Vec::new()
    }

    /// Health of the nodes that have checks: a list of upstreams with their addresses.
    fn health(&self) -> Value {
        Value::Array(Vec::new())
    }

    /// The usage; `None` where it is not recorded.
    fn usage(&self) -> Option<Arc<Usage>>;

    /// Usage of a quota at a time in milliseconds since 1970, and the milliseconds until it is renewed; `None` for
    /// one of which nothing is used.
    fn quota(&self, _: &QuotaName, _now: u64) -> Option<(u64, u64)> {
        None
    }

    /// Begins the count of a quota anew. False where there is none.
    fn reset_quota(&self, _: &QuotaName) -> bool {
        false
    }

    /// A quick look at a resource's JSON: false when there is nothing in it to [`conceal`](Self::conceal).
    fn may_hold_secrets(&self, json: &str) -> bool;

    /// Puts something else in the place of the secrets of a resource that this audience is not shown. Private keys and
    /// tokens are shown to nobody.
    fn conceal(&self, kind: Kind, resource: &mut Value, audience: Audience);

    /// Puts stored secrets in the place of what [`conceal`](Self::conceal) has shown for them, for clients send back
    /// what they have read.
    ///
    /// # Errors
    /// Something stands for a secret that `before`, the stored resource, does not have.
    fn restore(&self, kind: Kind, resource: &mut Value, before: Option<&Value>) -> Result<(), String>;
}

/// The name of a count against a limit of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaName {
    /// The consumer; `CONSUMER/KEY` for a key that has plans of its own.
    pub caller: String,
    /// Id of the plan.
    pub plan: String,
    /// The period.
    pub per: String,
    /// The sequence of periods.
    pub window: String,
    /// The scope; `SCOPE/METRIC` for a limit that counts a metric.
    pub scope: String,
    /// Id of the service or route that is counted apart.
    pub id: String,
}

/// The kind of reader that a resource is shown to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A key that only reads, and whoever follows or looks back at changes: no secret.
    Reader,
    /// An administrator who reads: secrets of plugins' configurations as they are, as with APISIX.
    Administrator,
    /// The administrator who has made a change: secrets of plugins' configurations encrypted, as with APISIX.
    Author,
}

/// Changes that are live, or could be.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// The store's revision with them; without them for a dry run.
    pub revision: u64,
    /// Warnings about the changes.
    pub warnings: Vec<Diagnostic>,
}

/// Reasons for refusing changes.
#[derive(Clone, Debug)]
pub enum Refused {
    /// Wrong changes: at least one error. A path begins with the resource: `routes/1.uri`.
    Invalid(Vec<Diagnostic>),
    /// The store did not take them.
    Store(StoreError),
    /// The role of the key does not include such changes.
    NotAllowed(String),
    /// The configuration cannot be changed this way at all: it comes from a file, or this is a data plane only.
    ReadOnly(String),
}
