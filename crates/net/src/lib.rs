//! A worker's network: sockets on its reactor and TLS on them, below whatever speaks a protocol.
//!
//! The data plane serves clients and nodes with these; a plugin may open connections of its own with them.

pub mod buffers;
pub mod names;
mod network;
mod stream;
pub mod sys;
pub mod tls;

pub use network::Network;
pub use stream::Stream;
