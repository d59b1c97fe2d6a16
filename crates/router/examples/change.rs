//! Measures changes of one route among 1,000 and 100,000 routes: removing it, adding it again, and freeing the
//! previous router.
//!
//! `cargo run -p weir-router --release --example change`

#![expect(clippy::disallowed_methods, reason = "this program measures; it serves no requests")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use weir_router::{Mode, Route, Router};

const SIZES: [usize; 2] = [1_000, 100_000];

/// Name, mode, and the route of a number.
type Case = (&'static str, Mode, fn(usize) -> Route);

const CASES: &[Case] = &[
    ("exact paths", Mode::HostUri, |n| route(format!("/api/v1/orders/{n}"), None)),
    ("prefixes, numbered", Mode::HostUri, |n| route(format!("/service-{n}/*"), None)),
    ("prefixes, scattered", Mode::HostUri, |n| route(format!("/api/{:x}/*", scattered(n)), None)),
    ("prefixes, nested", Mode::HostUri, |n| route(format!("/{}{n}/*", "a/".repeat(n % 100)), None)),
    ("hosts", Mode::HostUri, |n| route("/api/*".to_owned(), Some(format!("h{n}.api.test")))),
    ("hosts with an exact path", Mode::HostUri, |n| route("/api".to_owned(), Some(format!("h{n}.api.test")))),
    ("wildcard hosts", Mode::HostUri, |n| route("/api/*".to_owned(), Some(format!("*.h{n}.api.test")))),
    ("parameters", Mode::UriWithParameter, |n| route(format!("/users/:id/t{n}"), None)),
    ("parameters, each below a text", Mode::UriWithParameter, |n| route(format!("/t{n}/:id"), None)),
    ("one prefix, hosts as conditions", Mode::Uri, |n| route("/api/*".to_owned(), Some(format!("h{n}.api.test")))),
];

fn route(path: String, host: Option<String>) -> Route {
    Route { paths: vec![path], hosts: host.into_iter().collect(), ..Route::default() }
}

fn scattered(n: usize) -> u64 {
    (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn main() {
    let heads = SIZES.map(|size| format!("{:>33}", format!("among {size} routes")));
    println!("{:<34}{}", "microseconds, median (9 of 10)", heads.concat());
    let heads = ["change", "free"].map(|head| format!("{head:>11}      ")).concat();
    println!("{:<34}{}", "", heads.repeat(SIZES.len()));
    for (name, mode, route) in CASES {
        let columns = SIZES.map(|size| {
            let (mut changes, mut frees) = changes(*mode, *route, size);
            format!("{}{}", column(&mut changes), column(&mut frees))
        });
        println!("{name:<34}{}", columns.concat());
    }
}

/// Durations of changes, and of freeing the replaced routers.
fn changes(mode: Mode, route: fn(usize) -> Route, size: usize) -> (Vec<Duration>, Vec<Duration>) {
    let routes: Vec<Route> = (0..size).map(route).collect();
    let mut router = Router::build(mode, routes.clone()).expect("the routes are good");
    let (mut changes, mut frees) = (Vec::new(), Vec::new());
    for turn in 0..200 {
        let number = scattered(turn / 2) as usize % size;
        let put = (turn % 2 == 1).then(|| routes[number].clone());
        let change = [(number as u32, put)];
        let start = Instant::now();
        let changed = black_box(router.change(black_box(&change))).expect("the routes are good");
        changes.push(start.elapsed());
        let old = std::mem::replace(&mut router, changed);
        let start = Instant::now();
        drop(black_box(old));
        frees.push(start.elapsed());
    }
    (changes, frees)
}

fn column(times: &mut [Duration]) -> String {
    // The machine may be shared, so the slowest measurements are ignored.
    times.sort_unstable();
    let [median, most] = [times.len() / 2, times.len() * 9 / 10].map(|place| times[place].as_secs_f64() * 1e6);
    format!("{median:>8.0} {:>8}", format!("({most:.0})"))
}
