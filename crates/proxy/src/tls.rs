//! What a configuration says about TLS towards clients. Handshakes are in [`crate::downstream::tls`], and what both sides
//! of TLS share is in [`weir_net::tls`].

pub(crate) mod server;
