use std::net::IpAddr;

use ipnet::IpNet;
use weir_expr::{Expr, Source};

use crate::method::MethodSet;

/// Which of APISIX's three routers decides; see the crate documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `radixtree_host_uri`: the host is decided first, then the path.
    #[default]
    HostUri,
    /// `radixtree_uri`: the path is decided first, the host is a condition.
    Uri,
    /// `radixtree_uri_with_parameter`: the same, and `:name` takes a segment.
    UriWithParameter,
}

/// What a route asks of a request. A route is known by its number: its position in the list that was given to
/// [`Router::build`](crate::Router::build), or the number under which [`Router::change`](crate::Router::change) has put it.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Paths, of which at least one is needed.
    pub paths: Vec<String>,
    /// Hosts; every host when empty.
    pub hosts: Vec<String>,
    /// Methods; every method when empty.
    pub methods: MethodSet,
    /// Networks of the client; every address when empty.
    pub remote_addrs: Vec<IpNet>,
    /// An expression over the request.
    pub vars: Option<Expr>,
    /// Orders the routes of the same path: the greater goes first.
    pub priority: i64,
    /// Which of two routes comes first where nothing else decides: the one of lower order, and at equal order the one
    /// of lower number.
    pub order: u64,
}

/// What of a request decides its route.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// Method as received.
    pub method: &'a [u8],
    /// Host in lower case and without port; may be empty.
    pub host: &'a [u8],
    /// The whole Host field in lower case, for host patterns with a port.
    pub host_port: &'a [u8],
    /// Path after normalisation, without the query.
    pub path: &'a [u8],
    /// Address of the client, after trusted proxies were taken into account.
    pub remote: IpAddr,
    /// The variables that `vars` expressions read. A `uri_param_*` is answered by the router.
    pub source: &'a dyn Source,
}
