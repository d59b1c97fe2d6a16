//! Streams: connections whose bytes the gateway does not read, between clients and nodes of stream routes.
//!
//! ```text
//!  listen.tcp ─► TLS ended, or its name read in passing ─┐
//!  listen.udp ─► Entrance: a session for each client ────┴► StreamTable ─► plugins ─► a node ─► Relay ─► log
//! ```
//!
//! Listeners, TLS, balancing, connections to nodes and health are those of exchanges. What plugins, balancers and logs
//! see of a stream is an [`Exchange`](weir_plugin::host::Exchange) without a request in it, made for the stream alone.

mod connection;
mod datagrams;
mod entrance;
mod hello;
mod relay;
mod session;
pub(crate) mod table;

pub(crate) use connection::serve;
pub(crate) use entrance::Entrance;
