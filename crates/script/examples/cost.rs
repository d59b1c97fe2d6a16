//! Time of a call of a script: `cargo run --release -p weir-script --example cost`.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement has no worker clock, and is printed"
)]

use std::time::Instant;

use weir_plugin::Flow;
use weir_plugin::host::{self, Exchange};
use weir_script::{Form, Hook, Script};
use weir_wire::head::Limits;
use weir_wire::target::PathRules;

const CALLS: u32 = 200_000;

fn main() {
    // Calls run on the runtime of a worker.
    weir_runtime::block_on(async { measure() }).expect("a runtime");
}

fn measure() {
    for (what, text) in [
        ("nothing", "return function() end"),
        (
            "a field read and set",
            "local core = require('apisix.core') return function(conf, ctx) \
             core.request.set_header(ctx, 'X-B', core.request.header(ctx, 'x-a')) end",
        ),
        ("the same by ngx", "return function() ngx.req.set_header('X-B', ngx.var.http_x_a) end"),
    ] {
        let texts = vec![(Hook::Access, vec![text.to_owned()])];
        let script = Script::check("cost", Form::Functions, texts, "{}".to_owned());
        let script = script.unwrap_or_else(|error| panic!("{}", error.reason));
        let mut exchange = Exchange::default();
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            for _ in 0..CALLS {
                receive(&mut exchange);
                assert_eq!(script.run(&mut host::request(&mut exchange), Hook::Access), Flow::Continue);
            }
            let with = start.elapsed();
            let start = Instant::now();
            (0..CALLS).for_each(|_| receive(&mut exchange));
            let calls = with.saturating_sub(start.elapsed());
            best = best.min(calls.as_secs_f64() * 1e6 / f64::from(CALLS));
        }
        println!("{what}: {best:.2} µs a call");
    }
}

/// Takes in a request.
fn receive(exchange: &mut Exchange) {
    exchange.reset();
    let request = &mut exchange.request;
    request.buffer.clear();
    request.buffer.extend(b"GET /a/b?c=d HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nUser-Agent: test\r\n\r\n");
    let _ = request.parse(&Limits::default());
    let _ = request.accept_head(PathRules::default());
}
