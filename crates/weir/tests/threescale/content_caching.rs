//! The policy `content_caching`: answers of upstreams that are kept.

use serde_json::{Value, json};

use super::{Site, send};
use crate::harness::{Answer, Gateway, LIMIT, Origin, Response, wait_until, weir};

/// An upstream that says of its answers what the path asks for.
fn upstream() -> Origin {
    Origin::answering(|request| {
        let with = |field: &str| Answer::keep(format!("HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 4\r\n\r\nkept"));
        match request.target.split('?').next().unwrap_or_default() {
            "/no-store" => with("Cache-Control: no-store"),
            "/over" => with("Cache-Control: max-age=0"),
            "/short" => with("Cache-Control: max-age=1"),
            "/cookie" => with("Set-Cookie: a=b"),
            "/missing" => Answer::status(404, "none"),
            _ => Answer::ok("kept"),
        }
    })
}

/// A gateway whose service keeps answers by these rules, and takes keys in a field.
fn gateway(site: &Site, upstream: &Origin, rules: &Value) -> Gateway {
    let chain = json!([
        {"name": "apicast.policy.content_caching", "version": "builtin", "configuration": {"rules": rules}},
        {"name": "apicast"},
    ]);
    let service = site.service(json!({
        "api_backend": format!("http://{}", upstream.node()), "policy_chain": chain,
        "credentials_location": "headers", "auth_user_key": "X-Key",
    }));
    site.start(json!([service]))
}

fn rules() -> Value {
    let comparison = |left: &str, right: &str| json!({"operations": [{"left": left, "left_type": "liquid", "op": "==", "right": right}]});
    json!([
        {"cache": false, "header": "X-Cache-Status-POLICY", "condition": comparison("{{ uri }}", "/never")},
        {"cache": true, "header": "X-Cache-Status-POLICY", "condition": comparison("{{ http_method }}", "GET")},
    ])
}

fn ask(gateway: &Gateway, request: &str) -> Response {
    send(gateway, &format!("{request}\nX-Key: good"))
}

/// The outcome that the gateway tells of its cache.
fn told(response: &Response) -> Option<&str> {
    assert_eq!(response.status, 200, "{}", response.text());
    response.field("x-cache-status-policy")
}

#[test]
fn answers_are_kept_by_rules_and_by_what_upstreams_say() {
    let (site, upstream) = (Site::new(), upstream());
    let gateway = gateway(&site, &upstream, &rules());
    for (path, second) in [
        ("/kept", Some("HIT")),
        ("/kept?x=1", Some("HIT")),
        ("/no-store", Some("MISS")),
        ("/over", Some("MISS")),
        ("/cookie", Some("MISS")),
        ("/never", None),
    ] {
        let before = upstream.requests().len();
        let first = ask(&gateway, &format!("GET {path}"));
        assert_eq!(told(&first), second.map(|_| "MISS"), "{path}");
        let again = ask(&gateway, &format!("GET {path}"));
        assert_eq!((told(&again), again.text().as_str()), (second, "kept"), "{path}");
        let count = if second == Some("HIT") { 1 } else { 2 };
        assert_eq!(upstream.requests().len() - before, count, "{path}");
    }
    // Another status than 200 and 302 is not kept.
    assert_eq!([0, 1].map(|_| ask(&gateway, "GET /missing").status), [404, 404]);
    assert_eq!(upstream.requests().iter().filter(|request| request.target.starts_with("/missing")).count(), 2);
    // The end of a lifetime.
    assert_eq!(told(&ask(&gateway, "GET /short")), Some("MISS"));
    wait_until("the end of an answer", LIMIT, || (told(&ask(&gateway, "GET /short")) == Some("EXPIRED")).then_some(()));
}

#[test]
fn who_may_not_call_gets_nothing_out_of_the_cache() {
    let (site, upstream) = (Site::new(), upstream());
    let gateway = gateway(&site, &upstream, &rules());
    assert_eq!([0, 1].map(|_| told(&ask(&gateway, "GET /x")) == Some("HIT")), [false, true]);
    assert_eq!(send(&gateway, "GET /x\nX-Key: bad").status, 403);
    assert_eq!(send(&gateway, "GET /x").status, 401);
    // Nobody empties it but who changes something.
    assert!(send(&gateway, "PURGE /x\nX-Key: good").status != 200);
    assert_eq!(told(&ask(&gateway, "GET /x")), Some("HIT"));
    // All calls that pass are counted.
    let hits = || site.backend.complete().iter().filter(|request| request.method == "POST").count();
    wait_until("a report", LIMIT, || (hits() > 0).then_some(()));
}

#[test]
fn faults_are_told() {
    let site = Site::new();
    let rules = json!([{"cache": true, "header": "no name"}]);
    let chain = json!([{"name": "content_caching", "configuration": {"rules": rules}}, {"name": "apicast"}]);
    let file = site.file(&json!({"services": [site.service(json!({"policy_chain": chain}))]}));
    let (code, out, err) = weir(&["check", file.to_str().expect("a path")]);
    assert!(code != 0 && format!("{out}{err}").contains("rules[0].header"), "{out}{err}");
}
