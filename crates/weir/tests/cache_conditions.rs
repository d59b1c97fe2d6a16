//! proxy-cache: conditions and ranges of requests, and answers that the upstream says have not changed.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Response, Start, wait_until};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

/// Gateways with a zone in memory and with one on a disk.
fn each_zone(node: &str, conf: &Value, check: impl Fn(&Gateway)) {
    let folder = tempfile::tempdir().expect("a folder");
    let zone = json!({ "name": "z", "disk_path": folder.path(), "disk_size": "64MiB", "memory_size": "16MiB" });
    for strategy in ["memory", "disk"] {
        let mut conf = conf.clone();
        (conf["cache_strategy"], conf["cache_zone"]) = (json!(strategy), json!("z"));
        let rules = json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (node): 1 } },
                                         "plugins": { "proxy-cache": conf } }] });
        check(&Start::new(rules).settings(json!({ "cache_zones": [zone] })).start());
    }
}

fn ask(gateway: &Gateway, method: &str, path: &str, fields: &str) -> (Response, String) {
    let mut client = gateway.client();
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
    let response = client.response_to(method);
    let state = response.field("apisix-cache-status").unwrap_or("none").to_owned();
    (response, state)
}

#[test]
fn conditions_and_ranges_are_answered_out_of_the_cache() {
    let origin = Origin::answering(|request| {
        let status = if request.target == "/404" { 404 } else { 200 };
        Answer::keep(format!(
            "HTTP/1.1 {status} S\r\nContent-Length: 10\r\nETag: \"a\"\r\nLast-Modified: {DATE}\r\nX-A: b\r\n\r\n0123456789"
        ))
    });
    each_zone(&origin.node(), &json!({}), |gateway| {
        for path in ["/", "/404"] {
            assert_eq!(ask(gateway, "GET", path, "").1, "MISS");
        }
        let asked = origin.requests().len();
        let since = |date: &str| format!("If-Modified-Since: {date}\r\n");
        let range = |range: &str| format!("Range: bytes={range}\r\n");
        for (fields, status, body, told) in [
            (String::new(), 200, "0123456789", None),
            ("If-None-Match: \"a\"\r\n".into(), 304, "", None),
            ("If-None-Match: W/\"a\", \"b\"\r\n".into(), 304, "", None),
            ("If-None-Match: \"b\"\r\n".into(), 200, "0123456789", None),
            (since(DATE), 304, "", None),
            (since(LATER), 304, "", None),
            (since(BEFORE), 200, "0123456789", None),
            (since("yesterday"), 200, "0123456789", None),
            // The tag counts where there is one.
            (format!("If-None-Match: \"b\"\r\n{}", since(LATER)), 200, "0123456789", None),
            (range("2-4"), 206, "234", Some("bytes 2-4/10")),
            (range("8-"), 206, "89", Some("bytes 8-9/10")),
            (range("-1"), 206, "9", Some("bytes 9-9/10")),
            (range("0-99"), 206, "0123456789", Some("bytes 0-9/10")),
            (range("10-"), 416, "", Some("bytes */10")),
            (range("0-1,4-5"), 200, "0123456789", None),
            (range("x"), 200, "0123456789", None),
            (format!("If-Range: \"a\"\r\n{}", range("2-4")), 206, "234", Some("bytes 2-4/10")),
            (format!("If-Range: \"b\"\r\n{}", range("2-4")), 200, "0123456789", None),
            (format!("If-Range: W/\"a\"\r\n{}", range("2-4")), 200, "0123456789", None),
            (format!("If-Range: {DATE}\r\n{}", range("2-4")), 206, "234", Some("bytes 2-4/10")),
            (format!("If-Range: {LATER}\r\n{}", range("2-4")), 200, "0123456789", None),
            (format!("If-None-Match: \"a\"\r\n{}", range("2-4")), 304, "", None),
        ] {
            let (response, state) = ask(gateway, "GET", "/", &fields);
            assert_eq!((state.as_str(), response.status, response.text().as_str()), ("HIT", status, body), "{fields}");
            assert_eq!(response.field("content-range"), told, "{fields}");
            if status != 416 {
                assert_eq!((response.field("x-a"), response.field("etag")), (Some("b"), Some("\"a\"")), "{fields}");
            }
        }
        assert_eq!(ask(gateway, "HEAD", "/", &range("2-4")).0.status, 200);
        // Neither is for an answer with another status.
        for fields in ["If-None-Match: \"a\"\r\n".to_owned(), range("2-4")] {
            assert_eq!(ask(gateway, "GET", "/404", &fields).0.status, 404);
        }
        assert_eq!(origin.requests().len(), asked);
    });
}

#[test]
fn parts_of_answers_are_not_kept() {
    let origin = Origin::answering(|request| match request.field("range") {
        Some(_) => Answer::keep("HTTP/1.1 206 S\r\nContent-Length: 2\r\nContent-Range: bytes 0-1/4\r\n\r\n01"),
        None => Answer::keep("HTTP/1.1 200 S\r\nContent-Length: 4\r\nContent-Range: bytes 0-1/4\r\n\r\n0123"),
    });
    each_zone(&origin.node(), &json!({ "cache_http_status": [200, 206] }), |gateway| {
        for _ in 0..2 {
            let (response, state) = ask(gateway, "GET", "/", "Range: bytes=0-1\r\n");
            assert_eq!((response.status, state.as_str()), (206, "MISS"));
        }
        assert_eq!(ask(gateway, "GET", "/", "").0.text(), "0123");
    });
}

#[test]
fn answers_without_a_body_are_kept() {
    let origin = Origin::answering(|request| match request.target.as_str() {
        "/204" => Answer::keep("HTTP/1.1 204 S\r\nX-A: b\r\n\r\n"),
        _ => Answer::keep(
            "HTTP/1.1 301 S\r\nContent-Length: 0\r\nLocation: /x\r\nX-A: b\r\nX-Hop: 1\r\nConnection: X-Hop\r\n\r\n",
        ),
    });
    each_zone(&origin.node(), &json!({ "cache_http_status": [204, 301] }), |gateway| {
        for (path, status) in [("/204", 204), ("/301", 301)] {
            assert_eq!(ask(gateway, "GET", path, "").1, "MISS");
            let (response, state) = ask(gateway, "GET", path, "");
            assert_eq!((response.status, state.as_str()), (status, "HIT"), "{path}");
            // A field of the connection to the upstream is not kept.
            assert_eq!((response.field("x-a"), response.field("x-hop")), (Some("b"), None), "{path}");
        }
    });
}

/// An origin whose answer is old after a second, and has not changed for whom names its tag.
fn unchanging() -> Origin {
    let count = AtomicUsize::new(0);
    Origin::answering(move |request| {
        let number = count.fetch_add(1, SeqCst);
        let tag = if request.target == "/changes" { format!("\"{number}\"") } else { "\"a\"".to_owned() };
        let fields = format!("ETag: {tag}\r\nLast-Modified: {DATE}\r\nX-Number: {number}\r\nCache-Control: max-age=1");
        // An answer that may be kept until somebody asks again.
        let store = if request.target == "/last" { ", no-store" } else { "" };
        match request.field("if-none-match") {
            Some(known) if *known == tag => Answer::keep(format!("HTTP/1.1 304 S\r\n{fields}{store}\r\n\r\n")),
            _ => Answer::keep(format!("HTTP/1.1 200 S\r\nContent-Length: 5\r\nX-Old: 1\r\n{fields}\r\n\r\nhello")),
        }
    })
}

#[test]
fn the_upstream_is_asked_whether_an_answer_has_changed() {
    let conf = json!({ "cache_control": true, "cache_revalidate": true });
    for (path, states) in [
        ("/same", ["REVALIDATED", "REVALIDATED"]),
        ("/changes", ["EXPIRED", "EXPIRED"]),
        ("/last", ["REVALIDATED", "MISS"]),
    ] {
        let origin = unchanging();
        each_zone(&origin.node(), &conf, |gateway| {
            assert_eq!(ask(gateway, "GET", path, "").1, "MISS", "{path}");
            for expected in states {
                wait_until(expected, LIMIT, || {
                    let (response, state) = ask(gateway, "GET", path, "");
                    assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{path}");
                    assert_eq!(response.field("x-old"), Some("1"), "{path}");
                    assert!(state == expected || state == "HIT", "{path}: {state}");
                    (state == expected).then_some(())
                });
                let asked = origin.last();
                let is_asked = asked.field("if-none-match").is_some() && asked.field("if-modified-since") == Some(DATE);
                assert_eq!(is_asked, expected != "MISS", "{path}");
            }
        });
    }
}

#[test]
fn so_is_it_beside_an_answer_that_is_given_meanwhile() {
    let origin = unchanging();
    let conf = json!({ "cache_control": true, "cache_revalidate": true, "stale_while_revalidate": 600 });
    each_zone(&origin.node(), &conf, |gateway| {
        assert_eq!(ask(gateway, "GET", "/same", "").1, "MISS");
        let number = |response: &Response| response.field("x-number").and_then(|text| text.parse::<usize>().ok());
        let first = wait_until("STALE", LIMIT, || {
            let (response, state) = ask(gateway, "GET", "/same", "");
            (state == "STALE").then(|| number(&response))
        });
        wait_until("a newer answer", LIMIT, || {
            let (response, _) = ask(gateway, "GET", "/same", "");
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            (number(&response) > first).then_some(())
        });
        assert_eq!(origin.last().field("if-none-match"), Some("\"a\""));
    });
}

#[test]
fn requests_with_conditions_of_their_own_pass_as_they_are() {
    let origin = unchanging();
    let conf = json!({ "cache_control": true, "cache_revalidate": true });
    each_zone(&origin.node(), &conf, |gateway| {
        ask(gateway, "GET", "/own", "");
        for fields in ["If-None-Match: \"x\"\r\n", "If-Match: \"x\"\r\n", "Range: bytes=0-1\r\n"] {
            wait_until("EXPIRED", LIMIT, || (ask(gateway, "GET", "/own", fields).1 == "EXPIRED").then_some(()));
            let asked = origin.last();
            let own = fields.split(": ").next().expect("a name").to_ascii_lowercase();
            assert!(asked.field(&own).is_some(), "{fields}");
            assert_eq!(asked.field("if-modified-since"), None, "{fields}");
            assert_ne!(asked.field("if-none-match"), Some("\"a\""), "{fields}");
        }
    });
    // Without the setting nobody asks.
    let origin = unchanging();
    each_zone(&origin.node(), &json!({ "cache_control": true }), |gateway| {
        ask(gateway, "GET", "/plain", "");
        wait_until("EXPIRED", LIMIT, || (ask(gateway, "GET", "/plain", "").1 == "EXPIRED").then_some(()));
        assert_eq!(origin.last().field("if-none-match"), None);
    });
}

#[test]
fn an_unchanged_answer_stands_in_for_a_failure_without_the_fields_of_that() {
    let count = AtomicUsize::new(0);
    let origin = Origin::answering(move |_| match count.fetch_add(1, SeqCst) {
        0 => Answer::keep(
            "HTTP/1.1 200 S\r\nContent-Length: 5\r\nX-A: good\r\nX-B: good\r\nCache-Control: max-age=1, stale-if-error=60\r\n\r\nhello",
        ),
        _ => Answer::keep("HTTP/1.1 503 S\r\nContent-Length: 4\r\nX-A: bad\r\nX-C: bad\r\n\r\nfail"),
    });
    let rules = json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": {
        "proxy-cache": { "cache_strategy": "memory", "cache_control": true },
        "cors": { "allow_origins": "http://o.test" },
    } }] });
    let gateway = Gateway::start(rules);
    assert_eq!(ask(&gateway, "GET", "/", "Origin: http://o.test\r\n").1, "MISS");
    wait_until("STALE", LIMIT, || (ask(&gateway, "GET", "/", "Origin: http://o.test\r\n").1 == "STALE").then_some(()));
    let (response, _) = ask(&gateway, "GET", "/", "Origin: http://o.test\r\n");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    assert_eq!(["x-a", "x-b", "x-c"].map(|name| response.field(name)), [Some("good"), Some("good"), None]);
    assert_eq!(response.field("access-control-allow-origin"), Some("http://o.test"));
}
