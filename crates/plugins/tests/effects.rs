//! Effects of fields that no case can see (`elsewhere` in `cases/`): what time does, what several requests do at one time,
//! and the bytes of a coding.

mod bench;
#[path = "bench/visit.rs"]
mod visit;

use bench::Bench;
use visit::Visit;
use weir_plugin::host;
use weir_plugin::{Flow, Origin, Plugin, Try};
use weir_telemetry::metrics::{Metrics, MetricsOptions};

const GET: &str = "GET /a/b HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// True if a request passes at this second.
fn passes(visit: &mut Visit, plugin: &dyn Plugin, head: &str, second: u64) -> bool {
    visit.request(head);
    visit.exchange.times.now = second * 1_000_000;
    visit.run(plugin) == Flow::Continue
}

#[test]
fn a_circuit_follows_its_lists_and_numbers() {
    // Statuses of the upstream, at which second; then whether a request passes at these seconds.
    type Story = (&'static str, &'static [(u16, u64)], &'static [(u64, bool)]);
    let stories: [Story; 8] = [
        ("", &[(500, 10), (500, 10)], &[(10, true)]),
        ("", &[(500, 10), (500, 10), (500, 10)], &[(11, false), (13, true)]),
        (", unhealthy: {failures: 1}", &[(500, 10)], &[(11, false)]),
        (", unhealthy: {http_statuses: [502], failures: 1}", &[(500, 10)], &[(11, true)]),
        (", unhealthy: {http_statuses: [502], failures: 1}", &[(502, 10)], &[(11, false)]),
        // Two failures are forgotten after three successes, of the statuses that count as such.
        (", unhealthy: {failures: 3}", &[(500, 1), (500, 1), (200, 2), (200, 2), (200, 2), (500, 3)], &[(4, true)]),
        (
            ", unhealthy: {failures: 3}, healthy: {http_statuses: [404]}",
            &[(500, 1), (500, 1), (200, 2), (200, 2), (200, 2), (500, 3)],
            &[(4, false)],
        ),
        (
            ", unhealthy: {failures: 3}, healthy: {successes: 4}",
            &[(500, 1), (500, 1), (200, 2), (200, 2), (200, 2), (500, 3)],
            &[(4, false)],
        ),
    ];
    let recorder = Metrics::new(MetricsOptions::default()).recorder();
    let told = |visit: &mut Visit, plugin: &dyn Plugin, status: u16, second: u64| {
        assert!(passes(visit, plugin, GET, second), "at {second}");
        let attempt = Try { addr: None, status, begin: 0, connected: 0, head: 0, end: 0 };
        visit.exchange.upstream.tries.push(attempt);
        visit.log(plugin, &recorder);
    };
    for (fields, statuses, looks) in stories {
        let bench = Bench::new();
        let plugin = bench.build("api-breaker", &format!("{{break_response_code: 503{fields}}}")).unwrap();
        let mut visit = Visit::new(&bench.tables);
        for (status, second) in statuses {
            told(&mut visit, &*plugin, *status, *second);
        }
        for (second, expected) in looks {
            assert_eq!(passes(&mut visit, &*plugin, GET, *second), *expected, "{fields} at {second}");
        }
    }
    // The pause grows with each failure, up to max_breaker_sec.
    for (most, rests) in [(3, 3), (300, 4)] {
        let bench = Bench::new();
        let conf = format!("{{break_response_code: 503, max_breaker_sec: {most}, unhealthy: {{failures: 1}}}}");
        let plugin = bench.build("api-breaker", &conf).unwrap();
        let mut visit = Visit::new(&bench.tables);
        told(&mut visit, &*plugin, 500, 100);
        told(&mut visit, &*plugin, 500, 103);
        let open = (103..120).take_while(|second| !passes(&mut visit, &*plugin, GET, *second)).count();
        assert!(open.abs_diff(rests) <= 1 && (most == 300) == (open > 3), "{open} seconds with {most}");
    }
}

#[test]
fn a_sliding_window_remembers_the_one_before() {
    for (fields, expected) in [("", true), (", window_type: sliding", false)] {
        let bench = Bench::new();
        let plugin = bench.build("limit-count", &format!("{{count: 2, time_window: 60{fields}}}")).unwrap();
        let mut visit = Visit::new(&bench.tables);
        assert!(passes(&mut visit, &*plugin, GET, 1) && passes(&mut visit, &*plugin, GET, 1));
        assert_eq!(passes(&mut visit, &*plugin, GET, 62), expected, "{fields}");
    }
}

#[test]
fn a_constant_key_is_one_place_for_all() {
    for (fields, expected) in [("", true), (", key_type: constant", false)] {
        let bench = Bench::new();
        let conf = format!("{{conn: 1, burst: 0, default_conn_delay: 1, key: http_x_tenant{fields}}}");
        let plugin = bench.build("limit-conn", &conf).unwrap();
        let [mut first, mut second] = [Visit::new(&bench.tables), Visit::new(&bench.tables)];
        let tenant = |name: &str| GET.replace("\r\n\r\n", &format!("\r\nX-Tenant: {name}\r\n\r\n"));
        assert!(passes(&mut first, &*plugin, &tenant("a"), 1));
        assert_eq!(passes(&mut second, &*plugin, &tenant("b"), 1), expected, "{fields}");
    }
}

#[test]
fn settings_of_a_coding_change_its_bytes() {
    // Text that repeats itself near and far, with some noise in it.
    let body: String =
        (0..40_000u32).map(|n| format!("{} {:x} ", n % 1000, n.wrapping_mul(2_654_435_761) >> 26)).collect();
    let coded = |plugin: &str, fields: &str| {
        let bench = Bench::new();
        let plugin = bench.build(plugin, &format!("{{types: '*'{fields}}}")).unwrap();
        let mut visit = Visit::new(&bench.tables);
        visit.request(&GET.replace("\r\n\r\n", "\r\nAccept-Encoding: gzip, br\r\n\r\n"));
        let response = &mut visit.exchange.response;
        response.begin(200, Origin::Gateway);
        response.head.fields.add(b"Content-Type", b"text/plain");
        response.body.extend_from_slice(body.as_bytes());
        assert_eq!(plugin.encode(&mut host::response(&mut visit.exchange)), Flow::Continue);
        let mut piece = body.clone().into_bytes();
        visit.exchange.response.encode(&mut piece, true).unwrap();
        assert!(piece.len() < body.len(), "it is coded");
        piece
    };
    for (plugin, fields) in [
        ("gzip", ", comp_level: 9"),
        ("brotli", ", comp_level: 9"),
        ("brotli", ", comp_level: 0"),
        ("brotli", ", mode: 2"),
        ("brotli", ", lgwin: 18"),
        ("brotli", ", lgblock: 18"),
    ] {
        assert!(coded(plugin, fields) != coded(plugin, ""), "{plugin}{fields}");
    }
    assert!(coded("gzip", ", comp_level: 9").len() < coded("gzip", ", comp_level: 1").len());
}
