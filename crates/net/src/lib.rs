//! Network access of a worker: sockets on its reactor and TLS on them, below any protocol.
//!
//! The data plane serves clients and nodes through this crate; plugins may open their own connections with it.

pub mod buffers;
pub mod datagrams;
pub mod names;
mod network;
pub mod pipe;
mod stream;
pub mod sys;
pub mod tls;

pub use network::Network;
pub use stream::Stream;
