//! A change of one route shares the rest. The test has its own file because it counts the bytes of the whole process.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use weir_router::{Mode, Route, Router};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Total number of routes: several megabytes.
const ROUTES: usize = 20_000;

/// Maximum number of bytes that one change may allocate.
const MAX_BYTES: usize = 200 << 10;

fn route(path: String, host: Option<String>) -> Route {
    Route { paths: vec![path], hosts: host.into_iter().collect(), ..Route::default() }
}

#[test]
fn a_change_of_one_route_shares_the_rest() {
    type Case = (&'static str, Mode, fn(usize) -> Route);
    let cases: &[Case] = &[
        ("exact path", Mode::HostUri, |n| route(format!("/orders/{n}"), None)),
        ("prefix", Mode::HostUri, |n| route(format!("/service-{n}/*"), None)),
        ("host", Mode::HostUri, |n| route("/*".to_owned(), Some(format!("h{n}.test")))),
        ("host with a port", Mode::HostUri, |n| route("/*".to_owned(), Some(format!("h{n}.test:81")))),
        ("wildcard host", Mode::HostUri, |n| route("/*".to_owned(), Some(format!("*.h{n}.test")))),
        ("parameter", Mode::UriWithParameter, |n| route(format!("/t{n}/:id"), None)),
        ("text behind a parameter", Mode::UriWithParameter, |n| route(format!("/:id/t{n}"), None)),
    ];
    for (name, mode, route) in cases {
        let mut router = Router::build(*mode, (0..ROUTES).map(route).collect()).unwrap();
        // Removed, added again, and added under an unused number.
        for (number, put) in [(4711, false), (4711, true), (ROUTES, true)] {
            let change = [(number as u32, put.then(|| route(number)))];
            let region = Region::new(ALLOCATOR);
            let changed = router.change(&change).unwrap();
            let bytes = region.change().bytes_allocated;
            assert!(bytes < MAX_BYTES, "{name}: {bytes} bytes for a change of route {number}");
            router = changed;
        }
    }
}
