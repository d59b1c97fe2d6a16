//! The data plane: workers that accept, match, run plugins and relay, each on its own core.
//!
//! One task per client connection owns the sockets of both sides of an exchange. There is no lock, no channel and no
//! counter shared between cores on the way of a request, and none of it allocates. The configuration is an immutable
//! [`Snapshot`], made by a [`Compiler`] away from the workers and handed to all of them whole.

mod acceptor;
#[allow(unsafe_code, reason = "two calls of the C library that no crate offers")]
mod allocator;
mod chain;
mod clock;
mod compile;
mod data_plane;
mod downstream;
mod exchange;
mod explain;
mod http1;
mod http2;
mod listener;
mod options;
mod phases;
mod readings;
mod real_ip;
mod relay;
#[allow(unsafe_code, reason = "two system calls that no library offers")]
mod schedule;
mod snapshot;
mod spread;
mod stream;
mod timer;
mod tls;
mod upstream;
mod worker;

pub use crate::allocator::{give_memory_back, set_up_allocator};
pub use clock::now_us;
pub use compile::{Catalog, ChosenPlugins, Compiled, Compiler, Definitions};
pub use data_plane::DataPlane;
pub use explain::{Ambiguity, Candidate, ExplainRequest, Explanation, PlannedChoice, PlannedPlugin, PlannedUpstream};
pub use listener::{Bound, ListenSocket};
pub use schedule::stand_back;
pub use snapshot::Snapshot;
pub use tls::server::client_verifier;
pub use upstream::dns_services::DnsServices;
pub use upstream::health::Counters;
pub use upstream::health::checker::{AddressHealth, HealthChecks, UpstreamHealth};
pub use upstream::resolve::Resolver;
pub use upstream::services::{Service, Services};
pub use weir_net::tls::client::{client_config, trusted_certificates};
pub use weir_net::tls::provider as crypto_provider;
pub use weir_net::tls::words::of as tls_words;
pub use weir_plugin::host::buffers;
