//! Redis on a worker's own sockets: one server, a master that sentinels know, or a cluster.
//!
//! ```text
//!  Client::run(script, key, arguments)
//!     │ the server that has the key (cluster.rs), or is the master (sentinel.rs)
//!     ▼
//!  Link ── commands of a round in one write ──► server
//!     ▲                                            │
//!     └──────────── replies, in order ◄────────────┘
//! ```
//!
//! A [`Client`] belongs to one worker and has one connection to each server, on which the commands of all requests
//! follow each other without waiting. Everything has a bound: commands that wait, bytes to be sent, the length of a
//! reply, the number of servers, attempts of a command, and the time of each.

mod client;
mod cluster;
mod error;
mod link;
mod reply;
mod script;
mod sentinel;
mod settings;

pub use client::Client;
pub use error::Error;
pub use redis::Value;
pub use script::{GET, REMOVE, Script};
pub use settings::{Server, Settings, Topology};
