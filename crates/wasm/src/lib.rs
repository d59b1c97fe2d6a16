//! People's own filters in WebAssembly, by proxy-wasm 0.2: what a module exports is called at the points of an exchange,
//! and it calls functions of the gateway that read and change the exchange.
//!
//! ```text
//!  file ─► Filter (compiled once) ─► Vm (one in each worker) ─► root context (one for each configuration)
//!                                                                  └─► stream context (one for each request)
//! ```
//!
//! The ABI is that of <https://github.com/proxy-wasm/spec>, versions 0.2.0 and 0.2.1. While a call runs, the exchange is
//! lent to it ([`weir_plugin::lend`]): functions of the gateway find it in its place. Each call has a budget of
//! instructions (fuel), each machine a bound of memory. A machine whose code fails gives way to a new one.

mod buffers;
mod call;
mod filter;
mod functions;
mod headers;
mod host;
mod options;
mod pairs;
mod plugin;
mod property;
mod shared;
mod vm;
mod wait;
mod wasi;

pub use filter::Filter;
pub use options::{Options, configure};
pub use plugin::{RequestPhase, Wasm};
