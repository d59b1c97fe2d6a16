//! Messages about quotas, errors and latencies, to a real server.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, LIMIT, Origin, Start, wait_until};

/// The messages that a server has got on a path.
fn messages(hook: &Origin, path: &str) -> Vec<Value> {
    let requests = hook.complete();
    let of_path = requests.iter().filter(|request| request.target == path);
    of_path.map(|request| serde_json::from_slice(&request.body).expect("JSON")).collect()
}

#[test]
fn quotas_errors_and_latencies_are_told_once() {
    let broken = std::sync::Arc::new(AtomicBool::new(true));
    let is_broken = std::sync::Arc::clone(&broken);
    let origin = Origin::answering(move |request| match request.target.as_str() {
        "/slow" => {
            thread::sleep(Duration::from_millis(60));
            Answer::ok("late")
        }
        "/fail" if is_broken.load(SeqCst) => Answer::status(503, "no"),
        _ => Answer::ok("hello"),
    });
    let first = AtomicBool::new(true);
    // The first message about a quota has to be sent again.
    let hook = Origin::answering(move |request| match request.target.as_str() {
        "/quota" if first.swap(false, SeqCst) => Answer::status(500, "later"),
        _ => Answer::ok(""),
    });
    let url = |path: &str| format!("http://{}{path}", hook.node());
    let settings = json!({ "usage": { "enabled": true, "alerts": [
        { "name": "half", "on": "quota", "url": url("/quota"), "shares": [50, 100] },
        { "name": "broken", "on": "errors", "url": url("/errors"), "percent": 20, "requests": 5, "minutes": 60 },
        { "name": "slow", "on": "latency", "url": url("/latency"), "over_ms": 50, "requests": 5, "apis": ["slow"] },
    ] } });
    let gateway = Start::stored().settings(settings).workers(2).start();
    let upstream = json!({ "nodes": { origin.node(): 1 } });
    for (path, body) in [
        ("plans/four", json!({ "limits": [{ "count": 4, "per": "year", "window": "calendar" }] })),
        ("routes/fail", json!({ "uri": "/fail", "upstream": upstream })),
        ("routes/slow", json!({ "uri": "/slow", "upstream": upstream })),
        ("routes/keyed", json!({ "uri": "/keyed", "upstream": upstream, "plugins": { "key-auth": {} } })),
        (
            "consumers",
            json!({ "username": "jack", "plugins": { "key-auth": { "key": "jacks" }, "plan": { "plans": ["four"] } } }),
        ),
    ] {
        gateway.must("PUT", path, &body.to_string());
    }
    let keyed = "GET /keyed HTTP/1.1\r\nHost: a\r\napikey: jacks\r\n\r\n";
    wait_until("the consumer to be live", LIMIT, || (gateway.client().request(keyed).status == 200).then_some(()));
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..5).map(|_| client.request(keyed).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    for path in ["/fail", "/slow"] {
        (0..6).for_each(|_| drop(client.get(path)));
    }
    let quota = wait_until("both shares to be told", LIMIT, || {
        let told = messages(&hook, "/quota");
        (told.len() == 3).then_some(told)
    });
    assert_eq!(quota[0], quota[1], "sent again");
    let shares: Vec<_> = quota[1..].iter().map(|one| (&one["share"], &one["used"], &one["limit"])).collect();
    assert_eq!(shares, [(&json!(50), &json!(2), &json!(4)), (&json!(100), &json!(4), &json!(4))]);
    assert_eq!(
        (&quota[1]["consumer"], &quota[1]["plan"], &quota[1]["alert"]),
        (&json!("jack"), &json!("four"), &json!("half"))
    );
    let one = |path: &str| wait_until("a message", LIMIT, || messages(&hook, path).into_iter().next());
    let errors = one("/errors");
    assert_eq!(
        (&errors["state"], &errors["api"], &errors["percent"]),
        (&json!("firing"), &json!("fail"), &json!(100.0))
    );
    let slow = one("/latency");
    assert_eq!((&slow["state"], &slow["api"]), (&json!("firing"), &json!("slow")));
    assert!(slow["ms"].as_f64().is_some_and(|ms| ms >= 55.0), "{slow}");
    // Better again.
    broken.store(false, SeqCst);
    (0..60).for_each(|_| drop(client.get("/fail")));
    wait_until("the end of it to be told", LIMIT, || {
        let told = messages(&hook, "/errors");
        (told.len() == 2 && told[1]["state"] == "resolved" && told[1]["api"] == "fail").then_some(())
    });
    assert_eq!(messages(&hook, "/quota").len(), 3, "nothing is told twice");
    assert_eq!(gateway.metric("weir_alerts_sent_total", &[]), 5.0);
    assert_eq!(gateway.metric("weir_alert_failures_total", &[]), 1.0);
    assert_eq!(gateway.metric("weir_alerts_dropped_total", &[]), 0.0);
}
