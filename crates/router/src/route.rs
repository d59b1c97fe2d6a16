use std::net::IpAddr;

use ipnet::IpNet;
use weir_expr::{Expr, Source};

use crate::method::MethodSet;

/// Order of routes: APISIX's three routers, or ranks; see the crate documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `radixtree_host_uri`: the host is decided first, then the path.
    #[default]
    HostUri,
    /// `radixtree_uri`: the path is decided first, the host is a condition.
    Uri,
    /// `radixtree_uri_with_parameter`: as `Uri`, and `:name` takes a segment.
    UriWithParameter,
    /// The order is given from outside: of all paths that take a request, the one of the greatest rank wins
    /// ([`Route::ranks`]).
    Ranked,
}

/// Conditions of a route. A route is identified by its number: its position in the list given to
/// [`Router::build`](crate::Router::build), or the number given to [`Router::change`](crate::Router::change).
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Paths, at least one.
    pub paths: Vec<String>,
    /// Hosts; an empty list takes every host.
    pub hosts: Vec<String>,
    /// Methods; an empty set takes every method.
    pub methods: MethodSet,
    /// Networks of the client; an empty list takes every address.
    pub remote_addrs: Vec<IpNet>,
    /// Expression over the request.
    pub vars: Option<Expr>,
    /// Priority among routes of the same path: the greater goes first.
    pub priority: i64,
    /// Ranks of the paths, in their order, with [`Mode::Ranked`]; a path without a rank has 0.
    pub ranks: Vec<u64>,
    /// Order of two routes that are otherwise equal: the lower goes first, and at equal order the route with the
    /// lower number.
    pub order: u64,
}

/// Properties of a request that decide its route.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// Method as received.
    pub method: &'a [u8],
    /// Host in lower case without port; may be empty.
    pub host: &'a [u8],
    /// Whole Host field in lower case, for host patterns with a port.
    pub host_port: &'a [u8],
    /// Path after normalisation, without the query.
    pub path: &'a [u8],
    /// Address of the client, after taking trusted proxies into account.
    pub remote: IpAddr,
    /// Variables for `vars` expressions. The router itself provides `uri_param_*`.
    pub source: &'a dyn Source,
}
