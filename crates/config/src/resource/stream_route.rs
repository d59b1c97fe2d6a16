use super::head::resource;
use super::{AddrRange, Id, Plugins, Sni, Upstream};

resource! {
    /// A route of TCP connections and UDP datagrams. All conditions that are written have to hold; of several routes
    /// that match, those with the name that a client asks for by TLS come first, and then the first in the order in
    /// which they were created.
    pub struct StreamRoute {
        /// The port at which the gateway was reached. Unset: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = 65535))]
        pub server_port: Option<u16>,
        /// The address at which the gateway was reached, or a range of such addresses. Unset: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub server_addr: Option<AddrRange>,
        /// The client's address, or a range. Unset: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub remote_addr: Option<AddrRange>,
        /// The name that the client asks for by TLS (SNI), or `*.` and what it ends with. At a listener without `tls`
        /// the name is read in passing, and the session goes on to the upstream as it is. Never matches UDP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sni: Option<Sni>,
        /// Plugins by name: those that run on streams.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub plugins: Option<Plugins>,
        /// The upstream, written in place. Without effect beside `upstream_id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream: Option<Box<Upstream>>,
        /// The upstream, by its id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub upstream_id: Option<Id>,
        /// A service whose upstream and plugins the route takes where it has none itself. All plugins of the service
        /// have to run on streams.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_id: Option<Id>,
    }
}
