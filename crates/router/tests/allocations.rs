//! Finding a route allocates nothing. The test has its own file because it counts the allocations of the whole
//! process.

use std::alloc::System;
use std::net::IpAddr;

use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use weir_expr::{Expr, Source, Value, Variable};
use weir_router::{Mode, Params, Query, Route, Router};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Request;

impl Source for Request {
    fn variable(&self, _: &Variable) -> Option<Value<'_>> {
        None
    }
}

#[test]
fn nothing_is_allocated() {
    let route = |path: &str, hosts: &[&str]| Route {
        paths: vec![path.to_owned()],
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        remote_addrs: vec!["10.0.0.0/8".parse().unwrap()],
        vars: Some(Expr::parse(&json!([["uri_param_id", "~=", "no"]])).unwrap()),
        ..Route::default()
    };
    let routes = [
        route("/exact", &[]),
        route("/prefix/*", &["*.api.test"]),
        route("/users/:id/*rest", &["v1.api.test"]),
        route("/a/*/b/*two", &[]),
        route("/users/no", &["v1.api.test:81"]),
    ];
    let paths = ["/exact", "/prefix/a/b", "/users/7/x/y", "/users/no", "/a/1/2/b/3", "/none"];
    for mode in [Mode::HostUri, Mode::Uri, Mode::UriWithParameter] {
        let router = Router::build(mode, routes.to_vec()).unwrap();
        let mut params = Params::default();
        let mut round = || {
            let matched = paths.iter().filter(|path| {
                let query = Query {
                    method: b"GET",
                    host: b"v1.api.test",
                    host_port: b"v1.api.test:81",
                    path: path.as_bytes(),
                    remote: IpAddr::from([10, 0, 0, 1]),
                    source: &Request,
                };
                router.find(&query, &mut params).is_some()
            });
            matched.count()
        };
        let expected = if mode == Mode::UriWithParameter { 5 } else { 4 };
        assert_eq!(round(), expected, "{mode:?}, and the parameters have grown");
        let region = Region::new(ALLOCATOR);
        assert_eq!(round(), expected);
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{mode:?}");
    }
}
