//! Measures finding a route with 1, 1,000 and 100,000 routes, for the same request.
//!
//! `cargo run -p weir-router --release --example cost`

#![expect(clippy::disallowed_methods, reason = "this program measures; it serves no requests")]

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_expr::{Source, Value, Variable};
use weir_router::{Mode, Params, Query, Route, Router};

struct Request;

impl Source for Request {
    fn variable(&self, _: &Variable) -> Option<Value<'_>> {
        None
    }
}

const SIZES: [usize; 3] = [1, 1_000, 100_000];

struct Case {
    name: &'static str,
    mode: Mode,
    /// Route of a number; number 0 is the one that matches.
    route: fn(usize) -> Route,
    host: &'static str,
    path: &'static str,
}

fn route(path: String, host: Option<String>) -> Route {
    Route { paths: vec![path], hosts: host.into_iter().collect(), ..Route::default() }
}

const CASES: &[Case] = &[
    Case {
        name: "exact path",
        mode: Mode::HostUri,
        route: |n| route(format!("/api/v1/orders/{n}"), None),
        host: "api.test",
        path: "/api/v1/orders/0",
    },
    Case {
        name: "prefix /x/*",
        mode: Mode::HostUri,
        route: |n| route(format!("/api/v1/s{n:05}/*"), None),
        host: "api.test",
        path: "/api/v1/s00000/items/17",
    },
    Case {
        name: "exact host, prefix",
        mode: Mode::HostUri,
        route: |n| route("/api/*".to_owned(), Some(format!("h{n}.api.test"))),
        host: "h0.api.test",
        path: "/api/orders/17",
    },
    Case {
        name: "wildcard host, exact path",
        mode: Mode::HostUri,
        route: |n| route("/api/orders".to_owned(), Some(format!("*.h{n}.api.test"))),
        host: "www.h0.api.test",
        path: "/api/orders",
    },
    Case {
        name: "parameter",
        mode: Mode::UriWithParameter,
        route: |n| route(format!("/users/:id/t{n}"), None),
        host: "api.test",
        path: "/users/4711/t0",
    },
    Case {
        name: "no route",
        mode: Mode::HostUri,
        route: |n| route(format!("/api/v1/orders/{n}"), None),
        host: "api.test",
        path: "/favicon.ico",
    },
];

fn main() {
    println!("{:<28}{}   build of {}", "ns per find", SIZES.map(|size| format!("{size:>10}")).concat(), SIZES[2]);
    for case in CASES {
        let mut built = Duration::ZERO;
        let routers = SIZES.map(|size| {
            let routes = (0..size).map(case.route).collect();
            let start = Instant::now();
            let router = Router::build(case.mode, routes).expect("the routes are good");
            built = start.elapsed();
            router
        });
        // The sizes alternate, and the best of many short rounds counts, because the machine is shared.
        let mut best = [f64::INFINITY; SIZES.len()];
        for _ in 0..60 {
            for (router, best) in routers.iter().zip(&mut best) {
                *best = best.min(nanoseconds(router, case));
            }
        }
        let columns = best.map(|best| format!("{best:>10.1}")).concat();
        println!("{:<28}{columns}   {:.0} ms", case.name, built.as_secs_f64() * 1e3);
    }
}

fn nanoseconds(router: &Router, case: &Case) -> f64 {
    const ROUND: u32 = 20_000;
    let mut params = Params::default();
    let start = Instant::now();
    for _ in 0..ROUND {
        let query = Query {
            method: b"GET",
            host: case.host.as_bytes(),
            host_port: case.host.as_bytes(),
            path: case.path.as_bytes(),
            remote: IpAddr::from([127, 0, 0, 1]),
            source: &Request,
        };
        black_box(router.find(black_box(&query), &mut params));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND)
}
