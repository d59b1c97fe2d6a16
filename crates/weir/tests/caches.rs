//! proxy-cache: what is kept, for whom and for how long.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, RawClient, Reload, Response, Start, wait_until};

/// An origin whose answers have these fields, and a number as their body.
fn counting(fields: &'static str) -> Origin {
    let count = Arc::new(AtomicUsize::new(0));
    Origin::answering(move |request| {
        let (number, target) = (count.fetch_add(1, SeqCst) + 1, request.target.clone());
        let body = format!("{number}");
        let status = target.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(200u16);
        let length =
            if request.method == "HEAD" { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let body = if request.method == "HEAD" { String::new() } else { body };
        Answer::keep(format!("HTTP/1.1 {status} S\r\n{length}{fields}\r\n{body}"))
    })
}

fn rules(node: &str, conf: Value) -> Value {
    let mut conf = conf;
    conf["cache_strategy"] = json!("memory");
    json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { node: 1 } }, "plugins": { "proxy-cache": conf } }] })
}

fn ask(client: &mut RawClient, method: &str, path: &str, fields: &str) -> (Response, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n{fields}\r\n");
    client.send(request);
    let response = client.response_to(method);
    let status = response.field("apisix-cache-status").unwrap_or("none").to_owned();
    (response, status)
}

#[test]
fn a_cache_goes_by_its_configuration() {
    type Ask = (&'static str, &'static str, &'static str, &'static str);
    // The configuration, fields of the origin's answers, and requests with what the cache says of them.
    let stories: [(Value, &'static str, &[Ask]); 12] = [
        (json!({}), "", &[("GET", "/", "", "MISS"), ("GET", "/", "X-A: 1\r\n", "HIT"), ("GET", "/?a", "", "MISS")]),
        (
            json!({ "cache_key": ["$uri", "-", "$http_x_a"] }),
            "",
            &[("GET", "/", "", "MISS"), ("GET", "/?b", "", "HIT"), ("GET", "/", "X-A: 1\r\n", "MISS")],
        ),
        (
            json!({}),
            "",
            &[
                ("GET", "/500", "", "MISS"),
                ("GET", "/500", "", "MISS"),
                ("GET", "/404", "", "MISS"),
                ("GET", "/404", "", "HIT"),
            ],
        ),
        (
            json!({ "cache_http_status": [500] }),
            "",
            &[
                ("GET", "/500", "", "MISS"),
                ("GET", "/500", "", "HIT"),
                ("GET", "/", "", "MISS"),
                ("GET", "/", "", "MISS"),
            ],
        ),
        (
            json!({}),
            "",
            &[
                ("HEAD", "/", "", "MISS"),
                ("GET", "/", "", "MISS"),
                ("HEAD", "/", "", "HIT"),
                ("POST", "/", "", "MISS"),
                ("GET", "/", "", "MISS"),
            ],
        ),
        (
            json!({ "cache_method": ["POST"] }),
            "",
            &[("POST", "/", "", "MISS"), ("POST", "/", "", "HIT"), ("GET", "/", "", "MISS"), ("GET", "/", "", "MISS")],
        ),
        (
            json!({ "cache_bypass": ["$arg_x", "$http_x_b"], "cache_key": ["$uri"] }),
            "",
            &[
                ("GET", "/", "", "MISS"),
                ("GET", "/?x=1", "", "BYPASS"),
                ("GET", "/?x=0", "", "HIT"),
                ("GET", "/", "X-B: y\r\n", "BYPASS"),
            ],
        ),
        (
            json!({ "no_cache": ["$arg_x"], "cache_key": ["$uri"] }),
            "",
            &[("GET", "/?x=1", "", "MISS"), ("GET", "/", "", "MISS"), ("GET", "/?x=1", "", "HIT")],
        ),
        (json!({ "max_resp_body_size": 1 }), "", &[("GET", "/", "", "MISS"), ("GET", "/", "", "HIT")]),
        (
            json!({}),
            "Vary: X-A, Accept\r\n",
            &[
                ("GET", "/", "", "MISS"),
                ("GET", "/", "X-A: 1\r\n", "MISS"),
                ("GET", "/", "", "HIT"),
                ("GET", "/", "X-A: 1\r\n", "HIT"),
                ("GET", "/", "X-A: 2\r\n", "MISS"),
            ],
        ),
        (json!({}), "Vary: *\r\n", &[("GET", "/", "", "MISS"), ("GET", "/", "", "MISS")]),
        (json!({}), "Cache-Control: private\r\n", &[("GET", "/", "", "MISS"), ("GET", "/", "", "MISS")]),
    ];
    for (conf, fields, requests) in stories {
        let origin = counting(fields);
        let gateway = Gateway::start(rules(&origin.node(), conf.clone()));
        let mut client = gateway.client();
        for (method, path, more, expected) in requests {
            let before = origin.requests().len();
            let (response, status) = ask(&mut client, method, path, more);
            assert_eq!(status, *expected, "{conf} {fields}: {method} {path} {more}: {response:?}");
            assert_eq!(origin.requests().len() == before, *expected == "HIT", "{conf}: {method} {path}");
        }
    }
    // Longer than may be: the body passes. Chunked ones as well.
    for framing in ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"]
    {
        let origin = Origin::answering(move |_| Answer::keep(format!("HTTP/1.1 200 OK\r\n{framing}")));
        for (most, expected) in [(2, "MISS"), (3, "HIT")] {
            let gateway = Gateway::start(rules(&origin.node(), json!({ "max_resp_body_size": most })));
            assert_eq!(gateway.get("/").text(), "abc");
            let again = gateway.get("/");
            assert_eq!((again.text(), again.field("apisix-cache-status")), ("abc".into(), Some(expected)), "{framing}");
        }
    }
    // A zone that two routes share, hidden fields, and time.
    let origin = counting("Expires: 0\r\nCache-Control: max-age=0\r\nETag: \"t\"\r\n");
    let conf = |zone: &str| json!({ "cache_key": ["k"], "cache_zone": zone, "cache_ttl": 1, "hide_cache_headers": zone == "b" });
    let mut config = rules(&origin.node(), conf("a"));
    let mut other = config["routes"][0].clone();
    other["id"] = json!("other");
    other["uri"] = json!("/other/*");
    for (zone, status) in [("a", "HIT"), ("b", "MISS")] {
        let mut both = conf(zone);
        both["cache_strategy"] = json!("memory");
        other["plugins"]["proxy-cache"] = both;
        config["routes"] = json!([config["routes"][0], other]);
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        ask(&mut client, "GET", "/", "");
        let (response, found) = ask(&mut client, "GET", "/other/", "");
        assert_eq!(found, status);
        assert_eq!(
            [response.field("expires"), response.field("cache-control")].map(|field| field.is_none()),
            [zone == "b"; 2]
        );
        wait_until("the answer to be too old", LIMIT, || {
            (ask(&mut client, "GET", "/", "").1 == "EXPIRED").then_some(())
        });
        let response = wait_until("an answer out of the cache", LIMIT, || {
            let (response, found) = ask(&mut client, "GET", "/", "If-None-Match: W/\"x\", \"t\"\r\n");
            (found == "HIT").then_some(response)
        });
        assert_eq!((response.status, response.body.len()), (304, 0));
        assert_eq!(response.field("etag"), Some("\"t\""));
    }
}

#[test]
fn a_cache_goes_by_cache_control() {
    let conf = json!({ "cache_control": true });
    for (fields, requests) in [
        // Without a lifetime nothing is kept.
        ("", &[("", "MISS", 200), ("", "MISS", 200)][..]),
        (
            "Cache-Control: max-age=100\r\nAge: 40\r\n",
            &[("", "MISS", 200), ("", "HIT", 200), ("max-age=39", "STALE", 200)],
        ),
        (
            "Cache-Control: max-age=100\r\nAge: 40\r\n",
            &[("", "MISS", 200), ("min-fresh=50", "HIT", 200), ("min-fresh=61", "STALE", 200)],
        ),
        (
            "Cache-Control: s-maxage=100, max-age=0\r\n",
            &[("", "MISS", 200), ("", "HIT", 200), ("no-cache", "BYPASS", 200), ("no-store", "BYPASS", 200)],
        ),
        (
            "Cache-Control: max-age=100\r\nAge: 200\r\n",
            &[("", "MISS", 200), ("max-stale=101", "HIT", 200), ("max-stale=50", "EXPIRED", 200), ("", "EXPIRED", 200)],
        ),
        (
            "Expires: Sun, 06 Nov 1994 08:51:37 GMT\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            &[("", "MISS", 200), ("", "HIT", 200)],
        ),
        (
            "Cache-Control: max-age=5\r\n",
            &[("only-if-cached", "MISS", 504), ("", "MISS", 200), ("only-if-cached", "HIT", 200)],
        ),
    ] {
        let origin = counting(fields);
        let gateway = Gateway::start(rules(&origin.node(), conf.clone()));
        let mut client = gateway.client();
        for (control, status, code) in requests {
            let field = if control.is_empty() { String::new() } else { format!("Cache-Control: {control}\r\n") };
            let (response, found) = ask(&mut client, "GET", "/", &field);
            assert_eq!((found.as_str(), response.status), (*status, *code), "{fields}: {control}");
        }
        // Without the setting, none of it counts but what forbids.
        let gateway = Gateway::start(rules(&origin.node(), json!({})));
        let mut client = gateway.client();
        ask(&mut client, "GET", "/", "");
        assert_eq!(ask(&mut client, "GET", "/", "Cache-Control: no-cache\r\n").1, "HIT", "{fields}");
    }
}

#[test]
fn callers_get_nothing_of_each_other() {
    let consumers = json!([
        { "username": "jack", "plugins": { "key-auth": { "key": "j" } } },
        { "username": "jill", "plugins": { "key-auth": { "key": "i" } } },
    ]);
    for (conf, fields, requests) in [
        (
            json!({}),
            "",
            &[("apikey: j", "MISS"), ("apikey: i", "MISS"), ("apikey: j", "HIT"), ("apikey: i", "HIT")][..],
        ),
        (json!({ "consumer_isolation": false }), "", &[("apikey: j", "MISS"), ("apikey: i", "HIT")]),
        (
            json!({ "cache_key": ["$consumer_name"] }),
            "",
            &[("apikey: j", "MISS"), ("apikey: i", "MISS"), ("apikey: j", "HIT")],
        ),
        // Credentials that the gateway knows nothing of.
        (
            json!({ "consumer_isolation": false }),
            "",
            &[("apikey: j\r\nAuthorization: x", "MISS"), ("apikey: j\r\nAuthorization: y", "MISS")],
        ),
        (
            json!({ "consumer_isolation": false }),
            "Cache-Control: public\r\n",
            &[("apikey: j\r\nAuthorization: x", "MISS"), ("apikey: j\r\nAuthorization: y", "HIT")],
        ),
        (
            json!({ "cache_key": ["$http_authorization"] }),
            "",
            &[("apikey: j\r\nAuthorization: x", "MISS"), ("apikey: i\r\nAuthorization: x", "HIT")],
        ),
        (json!({}), "Set-Cookie: a=1\r\n", &[("apikey: j", "MISS"), ("apikey: j", "MISS")]),
        (json!({ "cache_set_cookie": true }), "Set-Cookie: a=1\r\n", &[("apikey: j", "MISS"), ("apikey: j", "HIT")]),
    ] {
        let origin = counting(fields);
        let mut config = rules(&origin.node(), conf.clone());
        config["consumers"] = consumers.clone();
        config["routes"][0]["plugins"]["key-auth"] = json!({});
        let gateway = Gateway::start(&config);
        let mut client = gateway.client();
        for (field, status) in requests {
            assert_eq!(ask(&mut client, "GET", "/", &format!("{field}\r\n")).1, *status, "{conf} {fields} {field}");
        }
    }
}

#[test]
fn a_zone_is_as_large_as_the_metadata_says() {
    let origin = Origin::answering(|_| Answer::ok(&"x".repeat(2000)));
    let config = |bytes: usize| {
        let mut config = rules(&origin.node(), json!({ "cache_zone": "z" }));
        config["plugin_metadata"] = json!([{ "id": "proxy-cache", "zones": { "z": bytes } }]);
        config
    };
    for (bytes, status) in [(1000, "MISS"), (100_000, "HIT")] {
        let gateway = Gateway::start(config(bytes));
        for _ in 0..2 {
            assert_eq!(gateway.get("/").text().len(), 2000);
        }
        assert_eq!(gateway.get("/").field("apisix-cache-status"), Some(status));
        // A change that leaves the zone as it is leaves what is in it.
        assert_eq!(
            gateway.reload({
                let mut config = config(bytes);
                config["routes"][0]["name"] = json!("renamed");
                config
            }),
            Reload::Applied
        );
        assert_eq!(gateway.get("/").field("apisix-cache-status"), Some(status));
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_kept() {
    let count = Arc::new(AtomicUsize::new(0));
    let origin = Origin::scripted(move |connection| {
        while connection.request().is_some() {
            let whole = count.fetch_add(1, SeqCst) > 0;
            connection.send(if whole {
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
            } else {
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234"
            });
            if !whole {
                return;
            }
        }
    });
    let gateway = Gateway::start(rules(&origin.node(), json!({})));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the origin to be asked", LIMIT, || (origin.requests().len() == 1).then_some(()));
    wait_until("the exchange to end", LIMIT, || (origin.open() == 0).then_some(()));
    let again = gateway.get("/");
    assert_eq!((again.text(), again.field("apisix-cache-status")), ("0123456789".into(), Some("MISS")));
    assert_eq!(gateway.get("/").field("apisix-cache-status"), Some("HIT"));
}

#[test]
fn an_answer_that_is_too_old_stands_in_for_a_failure() {
    // Paths that end with a number are answered with that status once the switch is on.
    let (fails, fields) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(String::new())));
    let (switch, told) = (Arc::clone(&fails), Arc::clone(&fields));
    let origin = Origin::answering(move |_| match switch.load(SeqCst) {
        0 => {
            let fields = told.lock().expect("fields").clone();
            Answer::keep(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/good\r\nLink: a\r\nLink: b\r\nContent-Length: 4\r\n{fields}\r\ngood"
            ))
        }
        status => Answer::keep(format!(
            "HTTP/1.1 {status} S\r\nContent-Type: text/bad\r\nRetry-After: 9\r\nContent-Length: 3\r\n\r\nbad"
        )),
    });
    let cors = json!({ "cors": { "allow_origins": "http://shop.test" } });
    let start = |conf: Value| {
        let mut rules = rules(&origin.node(), conf);
        rules["routes"][0]["plugins"]["cors"] = cors["cors"].clone();
        Gateway::start(rules)
    };
    let of = |gateway: &Gateway| {
        let (response, status) = ask(&mut gateway.client(), "GET", "/", "Origin: http://shop.test\r\n");
        (response.status, response.text(), status)
    };
    let good = |status: &str| (200, "good".to_owned(), status.to_owned());
    let until_old = |gateway: &Gateway| {
        fails.store(0, SeqCst);
        assert_eq!(of(gateway), good("MISS"));
        fails.store(503, SeqCst);
        // As long as it is fresh it is given as it is.
        wait_until("an old answer", LIMIT, || Some(of(gateway)).filter(|(_, _, status)| status != "HIT"))
    };
    let gateway = start(json!({ "cache_ttl": 1, "stale_if_error": 60 }));
    assert_eq!(until_old(&gateway), good("STALE"));
    for status in [500, 502, 504] {
        fails.store(status, SeqCst);
        assert_eq!(of(&gateway), good("STALE"), "{status}");
    }
    let (response, _) = ask(&mut gateway.client(), "GET", "/", "Origin: http://shop.test\r\n");
    assert_eq!((response.field("content-type"), response.field("retry-after")), (Some("text/good"), None));
    assert_eq!(response.fields.all("link"), ["a", "b"]);
    assert_eq!(response.field("access-control-allow-origin"), Some("http://shop.test"));
    assert!(response.field("age").is_some_and(|age| age.parse::<u32>().is_ok_and(|age| age >= 1)), "{response:?}");
    // Another status is the upstream's word, and a good answer takes the place of the old one.
    fails.store(404, SeqCst);
    assert_eq!((of(&gateway).0, of(&gateway).1), (404, "bad".to_owned()));
    assert_eq!(until_old(&start(json!({ "cache_ttl": 1 }))).0, 503, "it is asked for");
    // With cache_control the word of the answer counts.
    for (control, expected) in
        [("max-age=1", "STALE"), ("max-age=1, stale-if-error=0", "EXPIRED"), ("max-age=1, must-revalidate", "EXPIRED")]
    {
        *fields.lock().expect("fields") = format!("Cache-Control: {control}\r\n");
        let gateway = start(json!({ "cache_control": true, "stale_if_error": 60 }));
        assert_eq!(until_old(&gateway).2, expected, "{control}");
    }
    // A refusal of the gateway's own is none of the upstream's failures.
    fields.lock().expect("fields").clear();
    let mut limited = rules(&origin.node(), json!({ "cache_ttl": 1, "stale_if_error": 60 }));
    limited["routes"][0]["plugins"]["limit-count"] =
        json!({ "count": 1, "time_window": 3600, "rejected_code": 503, "rejected_msg": "no more" });
    let (status, text, _) = until_old(&Gateway::start(limited));
    assert_eq!((status, text.contains("no more")), (503, true), "{text}");
    // A node that is away.
    fields.lock().expect("fields").clear();
    let gateway = start(json!({ "cache_ttl": 1, "stale_if_error": 60 }));
    until_old(&gateway);
    origin.die();
    assert_eq!(of(&gateway), good("STALE"));
}

#[test]
fn an_answer_that_is_too_old_is_given_while_a_newer_one_is_fetched() {
    // The origin's next status, its further fields, and true while it keeps its answers back.
    let (status, fields, holds) =
        (Arc::new(AtomicUsize::new(200)), Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
    let (switch, told, kept) = (Arc::clone(&status), Arc::clone(&fields), Arc::clone(&holds));
    let count = AtomicUsize::new(0);
    let origin = Origin::answering(move |_| {
        let number = count.fetch_add(1, SeqCst) + 1;
        wait_until("the answer to be let go", LIMIT, || Some(()).filter(|()| !kept.load(SeqCst)));
        let (status, fields) = (switch.load(SeqCst), told.lock().expect("fields").clone());
        Answer::keep(format!(
            "HTTP/1.1 {status} S\r\nVary: Accept\r\nContent-Length: {}\r\n{fields}\r\n{number}",
            number.to_string().len()
        ))
    });
    let start = |conf: Value| Gateway::start(rules(&origin.node(), conf));
    let asked = || origin.requests().len();
    const FIELDS: &str = "Accept: text/a\r\nX-A: b\r\nIf-None-Match: \"x\"\r\nRange: bytes=0-1\r\n";
    let of = |gateway: &Gateway| {
        let (response, status) = ask(&mut gateway.client(), "GET", "/p?q=1", FIELDS);
        (status, response.text())
    };
    let until_old = |gateway: &Gateway| {
        assert_eq!(of(gateway).0, "MISS");
        wait_until("an old answer", LIMIT, || Some(of(gateway)).filter(|(status, _)| status != "HIT"))
    };
    let gateway = start(json!({ "cache_ttl": 1, "stale_while_revalidate": 60 }));
    let first = of(&gateway);
    holds.store(true, SeqCst);
    let stale = ("STALE".to_owned(), first.1);
    wait_until("an old answer", LIMIT, || Some(of(&gateway)).filter(|found| *found == stale));
    wait_until("the question", LIMIT, || Some(()).filter(|()| asked() == 2));
    // Nobody waits, and nobody asks as well.
    for method in ["GET", "HEAD", "GET"] {
        assert_eq!(ask(&mut gateway.client(), method, "/p?q=1", FIELDS).1, "STALE", "{method}");
    }
    assert_eq!(asked(), 2);
    let question = origin.last();
    assert_eq!((question.method.as_str(), question.target.as_str()), ("GET", "/p?q=1"));
    let told = ["host", "accept", "x-a", "x-forwarded-for", "x-real-ip", "x-forwarded-proto", "if-none-match", "range"];
    let told = told.map(|name| question.fields.all(name).join(","));
    assert_eq!(told, ["a.test", "text/a", "b", "127.0.0.1", "127.0.0.1", "http", "", ""]);
    holds.store(false, SeqCst);
    wait_until("the newer answer", LIMIT, || {
        Some(of(&gateway)).filter(|found| *found == ("HIT".to_owned(), "2".to_owned()))
    });
    // One of another variant is another answer.
    assert_eq!(ask(&mut gateway.client(), "GET", "/p?q=1", "Accept: text/b\r\n").1, "MISS");
    // A failure changes nothing, and the question is asked again after a second.
    status.store(503, SeqCst);
    let before = asked();
    wait_until("two questions", LIMIT, || {
        let (status, _) = of(&gateway);
        assert!(status == "HIT" || status == "STALE", "{status}");
        Some(()).filter(|()| asked() == before + 2)
    });
    // An answer that may not be kept ends the old one.
    status.store(200, SeqCst);
    *fields.lock().expect("fields") = "Cache-Control: no-store\r\n".to_owned();
    wait_until("the end of the old answer", LIMIT, || Some(()).filter(|()| of(&gateway).0 == "MISS"));
    // With cache_control the word of the answer counts.
    for (control, configured, expected) in [
        ("max-age=1", 60, "STALE"),
        ("max-age=1, stale-while-revalidate=60", 0, "STALE"),
        ("max-age=1, stale-while-revalidate=0", 60, "EXPIRED"),
        ("max-age=1, must-revalidate", 60, "EXPIRED"),
        ("max-age=1", 0, "EXPIRED"),
    ] {
        *fields.lock().expect("fields") = format!("Cache-Control: {control}\r\n");
        let gateway = start(json!({ "cache_control": true, "stale_while_revalidate": configured }));
        assert_eq!(until_old(&gateway).0, expected, "{control} {configured}");
    }
    // A node that is away, and one whose answer is longer than that of a callout may be.
    fields.lock().expect("fields").clear();
    let gateway = start(json!({ "cache_ttl": 1, "stale_while_revalidate": 60 }));
    assert_eq!(until_old(&gateway).0, "STALE");
    origin.die();
    wait_until("an old answer", LIMIT, || Some(of(&gateway)).filter(|(status, _)| status == "STALE"));
    gateway.logged("an answer that is too old cannot be renewed");
}

#[test]
fn answers_are_purged_by_their_tags() {
    let origin = Origin::answering(|request| {
        let tags = request.target.trim_start_matches('/').replace('/', ", ");
        Answer::keep(format!("HTTP/1.1 200 S\r\nCache-Tag: {tags}\r\nCache-Tag: all\r\nContent-Length: 1\r\n\r\n1"))
    });
    let gateway = Gateway::start(rules(&origin.node(), json!({ "cache_tags": "Cache-Tag" })));
    let mut client = gateway.client();
    let paths = ["/shop/red", "/shop/blue", "/office/red"];
    let mut of = |expected: [&str; 3]| {
        for (path, expected) in paths.into_iter().zip(expected) {
            assert_eq!(ask(&mut client, "GET", path, "").1, expected, "{path}");
        }
    };
    let purge = |tags: &str| ask(&mut gateway.client(), "PURGE", "/", tags).0.status;
    of(["MISS"; 3]);
    assert_eq!(purge("Cache-Tag: green\r\n"), 404);
    of(["HIT"; 3]);
    assert_eq!(purge("Cache-Tag: blue office\r\n"), 200);
    of(["HIT", "MISS", "MISS"]);
    assert_eq!(purge("Cache-Tag: green\r\nCache-Tag: shop\r\n"), 200);
    of(["MISS", "MISS", "HIT"]);
    assert_eq!((purge("Cache-Tag: all\r\n"), purge("Cache-Tag: all\r\n")), (200, 404));
    of(["MISS"; 3]);
    // Without the field, the key of the request alone.
    assert_eq!(ask(&mut gateway.client(), "PURGE", "/shop/red", "").0.status, 200);
    of(["MISS", "HIT", "HIT"]);
}

#[test]
fn one_request_fetches_and_others_wait_for_it() {
    // The first answers wait until they are let go.
    let (asked, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, let_go) = (Arc::clone(&asked), Arc::clone(&gone));
    let origin = Origin::answering(move |request| {
        counted.fetch_add(1, SeqCst);
        wait_until("the test", LIMIT, || (let_go.load(SeqCst) > 0).then_some(()));
        let control = if request.target == "/private" { "Cache-Control: no-store\r\n" } else { "" };
        Answer::keep(format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n{control}\r\ntext"))
    });
    let locked = rules(&origin.node(), json!({ "cache_ttl": 60, "cache_lock": true, "cache_lock_timeout": 10 }));
    let gateway = Start::new(locked).workers(2).start();
    let crowd = |path: &'static str, expected: usize| {
        asked.store(0, SeqCst);
        gone.store(0, SeqCst);
        let states = std::thread::scope(|scope| {
            let one = || {
                let (response, status) = ask(&mut gateway.client(), "GET", path, "");
                assert_eq!((response.status, response.text().as_str()), (200, "text"), "{response:?}");
                status
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "writing")], 8.0);
            gone.store(1, SeqCst);
            threads.into_iter().map(|thread| thread.join().expect("an answer")).collect::<Vec<_>>()
        });
        assert_eq!(asked.load(SeqCst), expected, "{path}: {states:?}");
        assert_eq!(states.iter().filter(|status| *status == "HIT").count(), 8 - expected, "{states:?}");
    };
    crowd("/shared", 1);
    // An answer that is not kept is nobody else's.
    crowd("/private", 8);
    // A client that goes away leaves nobody waiting for what it would have fetched.
    asked.store(0, SeqCst);
    gone.store(0, SeqCst);
    let mut first = gateway.client();
    first.send("GET /left HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the first at the origin", LIMIT, || (asked.load(SeqCst) == 1).then_some(()));
    let mut second = gateway.client();
    second.send("GET /left HTTP/1.1\r\nHost: a.test\r\n\r\n");
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "writing")], 2.0);
    first.reset();
    wait_until("the second at the origin", LIMIT / 4, || (asked.load(SeqCst) == 2).then_some(()));
    gone.store(1, SeqCst);
    assert_eq!(second.response().status, 200);
    // A fetch that takes longer than others wait.
    gone.store(0, SeqCst);
    asked.store(0, SeqCst);
    let hasty = rules(&origin.node(), json!({ "cache_lock": true, "cache_lock_timeout": 1 }));
    assert_eq!(gateway.reload(hasty), Reload::Applied);
    std::thread::scope(|scope| {
        let answers = [(); 2].map(|()| scope.spawn(|| ask(&mut gateway.client(), "GET", "/slow", "").0.status));
        wait_until("both at the origin", LIMIT, || (asked.load(SeqCst) == 2).then_some(()));
        gone.store(1, SeqCst);
        assert_eq!(answers.map(|thread| thread.join().expect("an answer")), [200, 200]);
    });
}

#[test]
fn answers_to_queries_of_graphql_are_kept_by_their_settings() {
    let consumers = json!([
        { "username": "jack", "plugins": { "key-auth": { "key": "j" } } },
        { "username": "jill", "plugins": { "key-auth": { "key": "i" } } },
    ]);
    let start = |origin: &Origin, mut conf: Value| {
        conf["cache_strategy"] = json!("memory");
        Gateway::start(json!({
            "routes": [{ "id": "q", "uri": "/*", "upstream": { "nodes": { origin.node(): 1 } },
                "plugins": { "key-auth": {}, "graphql-proxy-cache": conf } }],
            "consumers": consumers,
        }))
    };
    let ask = |gateway: &Gateway, method: &str, fields: &str, body: &str| {
        let length = body.len();
        gateway.client().request(format!(
            "{method} /q HTTP/1.1\r\nHost: a\r\n{fields}\r\nContent-Type: application/graphql\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    };
    let state = |response: &Response| response.field("apisix-cache-status").unwrap_or("none").to_owned();
    for (conf, fields, requests) in [
        (json!({}), "", &[("j", "MISS"), ("i", "MISS"), ("j", "HIT"), ("i", "HIT")][..]),
        (json!({ "consumer_isolation": false }), "", &[("j", "MISS"), ("i", "HIT")]),
        (json!({}), "Set-Cookie: a=1\r\n", &[("j", "MISS"), ("j", "MISS")]),
        (json!({ "cache_set_cookie": true }), "Set-Cookie: a=1\r\n", &[("j", "MISS"), ("j", "HIT")]),
        (json!({}), "Cache-Control: no-store\r\n", &[("j", "MISS"), ("j", "MISS")]),
    ] {
        let origin = counting(fields);
        let gateway = start(&origin, conf.clone());
        for (key, expected) in requests {
            let response = ask(&gateway, "POST", &format!("apikey: {key}"), "{ a }");
            assert_eq!(state(&response), *expected, "{conf} {fields} {key}");
        }
    }
    // The key that is told purges the answer; a second is long enough for one to be too old.
    let origin = counting("");
    let gateway = start(&origin, json!({ "cache_ttl": 1 }));
    let first = ask(&gateway, "POST", "apikey: j", "{ a }");
    let key = first.field("APISIX-Cache-Key").expect("a key").to_owned();
    let purge = || ask(&gateway, "PURGE", &format!("apikey: j\r\nAPISIX-Cache-Key: {key}"), "").status;
    assert_eq!([purge(), purge()], [200, 404]);
    assert_eq!(state(&ask(&gateway, "POST", "apikey: j", "{ a }")), "MISS");
    wait_until("an answer that is too old", LIMIT, || {
        (state(&ask(&gateway, "POST", "apikey: j", "{ a }")) == "EXPIRED").then_some(())
    });
    // Zones are apart.
    let text = json!({
        "routes": [
            { "id": "a", "uri": "/a", "upstream": { "nodes": { origin.node(): 1 } }, "plugins": { "graphql-proxy-cache": { "cache_zone": "small" } } },
        ],
        "plugin_metadata": [{ "id": "graphql-proxy-cache", "zones": { "small": 100 } }],
    });
    let gateway = Gateway::start(text);
    gateway.logged("cache_zone: the zone small has no folder (cache_zones): answers are kept in memory");
    for _ in 0..2 {
        let response = gateway.get("/a?query={a}");
        assert_eq!((response.status, state(&response).as_str()), (200, "MISS"), "no answer has room in 100 bytes");
    }
}
