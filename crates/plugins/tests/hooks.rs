//! Effects of hooks that cannot be seen from outside: state that outlives a configuration, bounds, and the log phase.

mod bench;
#[path = "bench/visit.rs"]
mod visit;

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bench::{Bench, definition, node};
use visit::Visit;
use weir_plugin::host;
use weir_plugin::{BuildCx, ConsumerMatch, Failure, Flow, Origin, Plugin, Side, Try};
use weir_telemetry::metrics::{Metrics, MetricsOptions};

const GET: &str = "GET /a/b HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// Position of a limiter in a configuration.
struct Setup<'a> {
    place: &'a str,
    keys: usize,
    metadata: &'a str,
}

const ROUTE: Setup<'_> = Setup { place: "route/1", keys: 100, metadata: "" };

impl Setup<'_> {
    fn limit_count(&self, bench: &Bench, conf: &str) -> Arc<dyn Plugin> {
        self.limiter(bench, "limit-count", conf)
    }

    fn limiter(&self, bench: &Bench, plugin: &str, conf: &str) -> Arc<dyn Plugin> {
        let (conf, metadata) = (node(conf), node(self.metadata));
        let cx = BuildCx {
            plugin,
            place: self.place,
            states: &bench.states,
            consumers: &*bench.tables.consumers,
            plans: &weir_plugin::Plans::default(),
            protos: &weir_config::Items::<weir_config::Proto>::default(),
            position: 0,
            conf: &conf,
            limit_keys: self.keys,
            metadata: (!self.metadata.is_empty()).then_some(&metadata),
            https_port: 443,
            cache_zones: &[],
            product: "weir/1.2.3",
            kong: &weir_config::settings::Kong::default(),
            network: &Arc::default(),
            upstreams: &weir_plugin::NoUpstreams,
            apis: &weir_plugin::NoApis,
            warned: &std::cell::RefCell::default(),
        };
        definition(plugin).compile(&cx).unwrap_or_else(|error| panic!("{error}")).plugin
    }
}

impl Visit {
    /// Asks once, from an address that ends in `last`; returns true if the request passed.
    fn passes(&mut self, plugin: &dyn Plugin, last: u8) -> bool {
        self.request(GET);
        self.exchange.client.addr = IpAddr::from([10, 0, 0, last]);
        self.run(plugin) == Flow::Continue
    }

    fn early(&self, name: &str) -> Option<&str> {
        self.exchange.early_fields.get_str(b"", name.as_bytes()).and_then(|value| std::str::from_utf8(value).ok())
    }
}

#[test]
fn counts_survive_a_change_that_does_not_concern_them() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let conf = "{count: 2, time_window: 600}";
    let first = ROUTE.limit_count(&bench, conf);
    assert!(visit.passes(&*first, 1));
    let again = ROUTE.limit_count(&bench, conf);
    drop(first);
    bench.states.sweep();
    assert!(visit.passes(&*again, 1));
    assert!(!visit.passes(&*again, 1));
    for (place, conf, passes) in [
        (ROUTE, conf, false),
        (ROUTE, "{count: 2, time_window: 600, rejected_code: 429}", true),
        (Setup { place: "route/2", ..ROUTE }, conf, true),
        (ROUTE, "{count: 3, time_window: 600}", true),
    ] {
        let plugin = place.limit_count(&bench, conf);
        assert_eq!(visit.passes(&*plugin, 1), passes, "{} {conf}", place.place);
    }
}

#[test]
fn a_group_counts_together_wherever_it_stands() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let group = |place, conf: &str| Setup { place, ..ROUTE }.limit_count(&bench, conf);
    let one = group("route/1", "{count: 2, time_window: 600, group: g}");
    let two = group("route/2", "{count: 2, time_window: 600, group: g, rejected_code: 429}");
    let constant = group("route/3", "{count: 2, time_window: 600, group: g, key: all, key_type: constant}");
    let other = group("route/4", "{count: 2, time_window: 600, group: h}");
    let larger = group("route/5", "{count: 3, time_window: 600, group: g}");
    assert!(visit.passes(&*one, 1));
    assert!(visit.passes(&*two, 1));
    for (plugin, passes) in [(&one, false), (&two, false), (&constant, true), (&other, true), (&larger, true)] {
        assert_eq!(visit.passes(&**plugin, 1), passes);
    }
}

#[test]
fn without_room_a_new_key_is_refused_unless_told_otherwise() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let small = Setup { keys: 2, ..ROUTE };
    let strict = small.limit_count(&bench, "{count: 5, time_window: 600}");
    let lenient = small.limit_count(&bench, "{count: 5, time_window: 600, allow_degradation: true}");
    for plugin in [&strict, &lenient] {
        assert!(visit.passes(&**plugin, 1) && visit.passes(&**plugin, 2));
    }
    visit.request(GET);
    visit.exchange.client.addr = IpAddr::from([10, 0, 0, 3]);
    let reason = "limit-count: no room for another key";
    assert_eq!(visit.run(&*strict), Flow::Abort(Failure { status: 500, side: Side::Gateway, reason }));
    assert!(visit.passes(&*lenient, 3));
    assert_eq!(visit.early("X-RateLimit-Limit"), None, "what was not counted is not told");
    assert!(visit.passes(&*strict, 2), "a known key goes on");
}

#[test]
fn without_room_other_limiters_refuse_a_new_key_unless_told_otherwise() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let small = Setup { keys: 1, ..ROUTE };
    for (plugin, conf, reason) in [
        ("limit-req", "rate: 1, burst: 9, nodelay: true, key: remote_addr", "limit-req: no room for another key"),
        (
            "limit-conn",
            "conn: 9, burst: 0, default_conn_delay: 0.1, key: remote_addr",
            "limit-conn: no room for another key",
        ),
    ] {
        let strict = small.limiter(&bench, plugin, &format!("{{{conf}}}"));
        let lenient = small.limiter(&bench, plugin, &format!("{{{conf}, allow_degradation: true}}"));
        // A request under way keeps its place.
        let (mut first, mut second) = (Visit::new(&bench.tables), Visit::new(&bench.tables));
        assert!(first.passes(&*strict, 1) && second.passes(&*lenient, 1), "{plugin}");
        visit.request(GET);
        visit.exchange.client.addr = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(visit.run(&*strict), Flow::Abort(Failure { status: 500, side: Side::Gateway, reason }));
        assert!(visit.passes(&*lenient, 2), "{plugin}");
    }
}

#[test]
fn metadata_renames_the_fields() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let place = Setup { metadata: "{limit_header: X-Most, remaining_header: X-Left, reset_header: X-Again}", ..ROUTE };
    let plugin = place.limit_count(&bench, "{count: 2, time_window: 600}");
    visit.exchange.times.now = 5_000_000;
    assert!(visit.passes(&*plugin, 1));
    for (name, value) in [
        ("X-Most", Some("2")),
        ("X-Left", Some("1")),
        ("X-Again", Some("600")),
        ("X-RateLimit-Limit", None),
        ("X-RateLimit-Remaining", None),
        ("X-RateLimit-Reset", None),
    ] {
        assert_eq!(visit.early(name), value, "{name}");
    }
}

#[test]
fn metadata_renames_the_fields_of_rules() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let metadata = "{limit_header: X-Acme-RateLimit-Limit, reset_header: X-Again}";
    let place = Setup { metadata, ..ROUTE };
    let plugin = place.limit_count(&bench, "{rules: [{count: 2, time_window: 600, key: $remote_addr}]}");
    assert!(visit.passes(&*plugin, 1));
    for (name, value) in [
        ("X-Acme-1-RateLimit-Limit", Some("2")),
        ("X-1-RateLimit-Remaining", Some("1")),
        ("X-Again", Some("600")),
        ("X-1-RateLimit-Limit", None),
    ] {
        assert_eq!(visit.early(name), value, "{name}");
    }
}

#[test]
fn the_reset_counts_down_and_the_window_begins_anew() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let plugin = ROUTE.limit_count(&bench, "{count: 2, time_window: 60}");
    for (now_ms, passes, remaining, reset) in [
        (1000, true, "1", "60"),
        (1020, true, "0", "59.98"),
        (1500, false, "0", "59.5"),
        (60_985, false, "0", "0.01"),
        (61_000, true, "1", "60"),
    ] {
        visit.request(GET);
        visit.exchange.times.now = now_ms * 1000;
        assert_eq!(visit.run(&*plugin) == Flow::Continue, passes, "at {now_ms}");
        assert_eq!(
            (visit.early("X-RateLimit-Remaining"), visit.early("X-RateLimit-Reset")),
            (Some(remaining), Some(reset))
        );
    }
}

#[test]
fn exactly_the_quota_passes_over_all_workers() {
    for conf in [
        "{count: 500, time_window: 600}",
        "{count: 500, time_window: 600, window_type: sliding}",
        "{count: 500, time_window: 600, key: all, key_type: constant}",
    ] {
        let bench = Bench::new();
        let plugin = ROUTE.limit_count(&bench, conf);
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let bench = Bench::new();
                    let mut visit = Visit::new(&bench.tables);
                    for _ in 0..200 {
                        passed.fetch_add(u64::from(visit.passes(&*plugin, 1)), Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.load(Relaxed), 500, "{conf}");
    }
}

/// One exchange of the log phase, and the labels it is counted under.
struct Logged {
    conf: &'static str,
    path: &'static str,
    status: u16,
    origin: Origin,
    tried: bool,
    labels: &'static str,
}

#[test]
fn answers_are_counted_by_who_gave_them() {
    let failed = |side| Origin::Failed(Failure { status: 502, side, reason: "test" });
    let logged = |origin, labels| Logged { conf: "", path: "/a/b", status: 200, origin, tried: false, labels };
    let matched = r#"matched_uri="/a/*",matched_host="a.test",service="s1",consumer="jill""#;
    for case in [
        Logged {
            tried: true,
            ..logged(Origin::Upstream, r#"code="200",route="r1",MATCHED,node="127.0.0.9",response_source="upstream""#)
        },
        logged(Origin::Gateway, r#"code="200",route="r1",MATCHED,node="",response_source="apisix""#),
        Logged { conf: "{prefer_name: true}", ..logged(Origin::Gateway, r#"route="route one",MATCHED,node="""#) },
        Logged { tried: true, ..logged(failed(Side::Upstream), r#"node="127.0.0.9",response_source="nginx""#) },
        logged(failed(Side::Upstream), r#"node="",response_source="apisix""#),
        logged(failed(Side::Gateway), r#"response_source="apisix""#),
        logged(failed(Side::Client), r#"response_source="nginx""#),
        Logged {
            status: 0,
            ..logged(Origin::Nobody, r#"code="499",route="r1",MATCHED,node="",response_source="nginx""#)
        },
        Logged {
            path: "/none",
            status: 404,
            ..logged(
                Origin::Gateway,
                r#"code="404",route="",matched_uri="",matched_host="",service="",consumer="jill""#,
            )
        },
    ] {
        let metrics = Metrics::new(MetricsOptions::default());
        let recorder = metrics.recorder();
        let bench = Bench::new();
        let mut visit = Visit::new(&bench.tables);
        let plugin = bench.build("prometheus", case.conf).unwrap();
        visit.request(&format!("GET {} HTTP/1.1\r\nHost: a.test\r\n\r\n", case.path));
        let x = &mut visit.exchange;
        x.consumer = Some(ConsumerMatch { consumer: 1, credential: None });
        x.response.begin(case.status, case.origin);
        (x.times.start, x.times.now, x.received, x.sent) = (1_000_000, 1_004_000, 70, 700);
        if case.tried {
            let attempt = Try { addr: None, status: 200, begin: 0, connected: 0, head: 0, end: 0 };
            x.upstream.tries.push(attempt);
            x.upstream.node = Some(metrics.labels().intern("127.0.0.9"));
            (x.times.upstream_start, x.times.upstream_end) = (1_001_000, 1_002_500);
        }
        visit.log(&*plugin, &recorder);
        let mut page = String::new();
        metrics.render(&mut page);
        let status = page.lines().find(|line| line.starts_with("apisix_http_status{")).unwrap();
        let plain = status.replace(r#",request_type="traditional_http",request_llm_model="",llm_model="""#, "");
        let labels = case.labels.replace("MATCHED", matched);
        assert!(plain.contains(&labels) && plain.ends_with(" 1"), "wanted {labels} in {status}");
        let sum = |kind: &str| {
            let start = format!("apisix_http_latency_sum{{type=\"{kind}\"");
            page.lines().find(|line| line.starts_with(&start)).and_then(|line| line.rsplit(' ').next())
        };
        let expected = if case.tried { (Some("4"), Some("1.5"), Some("2.5")) } else { (Some("4"), None, Some("4")) };
        assert_eq!((sum("request"), sum("upstream"), sum("apisix")), expected, "{page}");
    }
}

#[test]
fn filters_read_gzip_and_only_what_they_asked_for() {
    let bench = Bench::new();
    let mut visit = Visit::new(&bench.tables);
    let conf = "{filters: [{regex: a, replace: b, scope: global}], vars: [[status, ==, 200]]}";
    let plugin = bench.build("response-rewrite", conf).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"banana").unwrap();
    let gzip = encoder.finish().unwrap();
    let broken = &gzip[..gzip.len() - 4];
    for (status, coding, body, changed) in [
        (200, None, &b"banana"[..], Some(&b"bbnbnb"[..])),
        (200, Some("gzip"), &gzip, Some(b"bbnbnb")),
        (200, Some("GZIP"), &gzip, Some(b"bbnbnb")),
        (200, Some("identity"), b"banana", Some(b"bbnbnb")),
        (200, Some("gzip"), broken, None),
        (200, Some("br"), b"banana", Some(b"banana")),
        (404, None, b"banana", Some(b"banana")),
        (404, Some("gzip"), &gzip, Some(&gzip)),
    ] {
        visit.request(GET);
        let response = &mut visit.exchange.response;
        response.buffer.clear();
        let field = coding.map_or(String::new(), |coding| format!("Content-Encoding: {coding}\r\n"));
        response.buffer.extend(format!("HTTP/1.1 {status} X\r\n{field}ETag: \"1\"\r\n\r\n").as_bytes());
        let limits = weir_wire::head::Limits::default();
        assert!(response.parse(&limits, weir_wire::method::Method::Get).unwrap().is_some());
        response.origin = Origin::Upstream;
        assert_eq!(plugin.response(&mut host::response(&mut visit.exchange)), Flow::Continue);
        let mut chunk = body.to_vec();
        let flow = plugin.body(&mut host::body(&mut visit.exchange), &mut chunk, true);
        let at = format!("{status} {coding:?}");
        match changed {
            Some(changed) => assert_eq!((flow, &*chunk), (Flow::Continue, changed), "{at}"),
            None => assert!(matches!(flow, Flow::Abort(Failure { status: 502, .. })), "{at}"),
        }
        let asked = status == 200 && coding != Some("br");
        assert_eq!(visit.exchange.response.filtered && visit.exchange.response.collected, asked, "{at}");
        assert_eq!(visit.exchange.response.field_str("ETag").is_none(), asked, "{at}");
        let kept = coding.filter(|_| !asked).map(str::as_bytes);
        assert_eq!(visit.exchange.response.field_str("Content-Encoding"), kept, "{at}");
        visit.exchange.response.reset();
    }
}
