//! The `checks` of an upstream: every limit, every default, and the rules between fields.

use serde_json::{Value, json};
use weir_config::{ActiveChecks, CheckType, Loaded};

use crate::support::{OPTIONS, load_with, shown};

/// Loads an upstream with these checks.
fn load(checks: &Value) -> Loaded {
    load_with(&json!({ "upstreams": [{ "nodes": {}, "checks": checks }] }).to_string(), &OPTIONS)
}

/// Checks that are whole but for one field.
fn with(place: &str, value: Value) -> Value {
    let mut checks = json!({ "active": {} });
    let mut at = &mut checks;
    for name in place.split('.') {
        at = &mut at[name];
    }
    *at = value;
    checks
}

#[test]
fn every_limit_holds() {
    let mut wrong = Vec::new();
    for (place, good, bad) in [
        ("active.type", json!(["http", "https", "tcp"]), json!(["udp", "HTTP", 1])),
        ("active.timeout", json!([0.1, 1, 60]), json!([0, -1, "1"])),
        ("active.concurrency", json!([1, 100]), json!([0, 1.5, "1"])),
        ("active.host", json!(["a.b", "a:80"]), json!(["", "a b", 1])),
        ("active.port", json!([1, 65535]), json!([0, 65536, "80"])),
        ("active.http_method", json!(["GET", "HEAD", "POST"]), json!(["get", "CONNECT", "", 1])),
        ("active.http_path", json!(["/", "/a?b=c"]), json!(["", "a", "/a b", "/a\r\nX: y", "/é", 1])),
        ("active.http_req_body", json!(["", "{}"]), json!([1, {}])),
        ("active.https_verify_certificate", json!([true, false]), json!(["true", 1])),
        (
            "active.req_headers",
            json!([["A: b"], ["A:b", "X-Y_z: é\tf"]]),
            json!([[], "A: b", ["A"], ["A b: c"], [": c"], ["A: b\r\nC: d"], ["A: b", "A: b"], [1]]),
        ),
        ("active.healthy.interval", json!([1, 3600]), json!([0, 0.5, "1"])),
        ("active.healthy.http_statuses", json!([[200], [200, 599]]), json!([[], [199], [600], [200, 200], 200])),
        ("active.healthy.successes", json!([1, 254]), json!([0, 255, "1"])),
        ("active.unhealthy.interval", json!([1]), json!([0])),
        ("active.unhealthy.http_statuses", json!([[500]]), json!([[], [199], [600]])),
        ("active.unhealthy.http_failures", json!([0, 1, 254]), json!([-1, 255])),
        ("active.unhealthy.tcp_failures", json!([0, 1, 254]), json!([-1, 255])),
        ("active.unhealthy.timeouts", json!([0, 1, 254]), json!([-1, 255])),
        ("passive.type", json!(["http", "https", "tcp"]), json!(["udp"])),
        ("passive.healthy.http_statuses", json!([[200]]), json!([[], [600]])),
        ("passive.healthy.successes", json!([0, 254]), json!([-1, 255])),
        ("passive.unhealthy.http_statuses", json!([[500]]), json!([[], [199]])),
        ("passive.unhealthy.http_failures", json!([0, 254]), json!([-1, 255])),
        ("passive.unhealthy.tcp_failures", json!([0, 254]), json!([-1, 255])),
        ("passive.unhealthy.timeouts", json!([0, 254]), json!([-1, 255])),
    ] {
        let list = |value: Value| value.as_array().cloned().expect("values come as a list");
        for value in list(good) {
            let loaded = load(&with(place, value.clone()));
            if loaded.document.is_none() || !loaded.diagnostics.is_empty() {
                wrong.push(format!("{place}: {value}: {:?}", shown(&loaded)));
            }
        }
        for value in list(bad) {
            let loaded = load(&with(place, value.clone()));
            let path = format!("upstreams[0].checks.{place}");
            let named = loaded.errors().count() > 0 && loaded.errors().all(|error| error.path.starts_with(&path));
            if loaded.document.is_some() || !named {
                wrong.push(format!("{place}: {value}: {:?}", shown(&loaded)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn defaults_are_those_of_apisix() {
    let checks =
        load(&json!({ "active": {}, "passive": {} })).document.expect("a document").upstreams[0].checks.clone();
    let written = serde_json::to_value(checks.expect("checks")).expect("JSON");
    assert_eq!(
        written,
        json!({
            "active": {
                "type": "http", "timeout": 1, "concurrency": 10, "http_method": "GET", "http_path": "/",
                "http_req_body": "", "https_verify_certificate": true,
                "healthy": { "interval": 1, "http_statuses": [200, 302], "successes": 2 },
                "unhealthy": {
                    "interval": 1, "http_statuses": [429, 404, 500, 501, 502, 503, 504, 505],
                    "http_failures": 5, "tcp_failures": 2, "timeouts": 3,
                },
            },
            "passive": {
                "type": "http",
                "healthy": {
                    "http_statuses": [
                        200, 201, 202, 203, 204, 205, 206, 207, 208, 226,
                        300, 301, 302, 303, 304, 305, 306, 307, 308,
                    ],
                    "successes": 5,
                },
                "unhealthy": { "http_statuses": [429, 500, 503], "http_failures": 5, "tcp_failures": 2, "timeouts": 7 },
            },
        })
    );
    assert_eq!(ActiveChecks::default().r#type, CheckType::Http);
}

#[test]
fn rules_between_fields_hold() {
    let cases = [
        (
            json!({ "passive": {} }),
            &["checks.passive: passive checks need active ones: nothing else would bring a node back; \
               add active, if only with its defaults: {}"][..],
        ),
        (json!({}), &["checks: the field active is missing"]),
        (
            json!({ "active": { "type": "tcp", "http_path": "/x" } }),
            &["warning: upstreams[0].checks.active.http_path: has no effect with the type tcp: \
               a connection is all that is tried"],
        ),
        (
            json!({ "active": { "timeout": 5000 } }),
            &["warning: upstreams[0].checks.active.timeout: 5000 seconds is a long time; \
               the unit is seconds, not milliseconds"],
        ),
        (
            json!({ "active": { "req_headers": ["A: b", "content-length: 5"] } }),
            &["warning: upstreams[0].checks.active.req_headers[1]: \"content-length\" is not sent: \
               the gateway writes that field itself"],
        ),
        (
            json!({ "active": { "healthy": { "http_statuses": [200, 404] }, "unhealthy": { "http_statuses": [404] } } }),
            &[
                "warning: upstreams[0].checks.active.unhealthy.http_statuses[0]: 404 stands in both lists and counts as \
               a success",
            ],
        ),
        (
            json!({ "active": { "port": null, "healthy": { "successes": null } } }),
            &[
                "warning: upstreams[0].checks.active.port: null is taken as not set",
                "warning: upstreams[0].checks.active.healthy.successes: null is taken as not set",
            ],
        ),
    ];
    for (checks, expected) in cases {
        let said = shown(&load(&checks));
        let same = said.len() == expected.len() && said.iter().zip(expected).all(|(said, part)| said.ends_with(part));
        assert!(same, "{checks}: {said:?}");
    }
}

#[test]
fn checks_without_tls_of_nodes_with_tls_are_doubtful() {
    for (scheme, active, warned) in [
        ("https", json!({}), true),
        ("https", json!({ "type": "http" }), true),
        ("https", json!({ "port": 8080 }), false),
        ("https", json!({ "type": "https" }), false),
        ("https", json!({ "type": "tcp" }), false),
        ("http", json!({}), false),
        ("http", json!({ "type": "https" }), false),
    ] {
        let upstream = json!({ "nodes": {}, "scheme": scheme, "checks": { "active": active } });
        let loaded = load_with(&json!({ "upstreams": [upstream] }).to_string(), &OPTIONS);
        let said = shown(&loaded);
        let named =
            said.iter().any(|said| said.contains("checks.active: checks of the type http are made without TLS"));
        assert_eq!((named, said.len()), (warned, usize::from(warned)), "{scheme} {active}: {said:?}");
    }
}
