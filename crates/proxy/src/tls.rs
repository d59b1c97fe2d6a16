//! TLS settings towards clients. Handshakes are in [`crate::downstream::tls`], and the parts common to both sides of
//! TLS in [`weir_net::tls`].

pub(crate) mod server;
