//! Uptime tests of balanced targets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use serde_json::{Value, json};

use super::{Site, keyless, send};
use crate::harness::{Answer, Gateway, LIMIT, Origin, Start, wait_until, weir};

/// A target whose test is answered with a status that changes.
fn target(name: &'static str) -> (Origin, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let told = Arc::clone(&status);
    let origin = Origin::answering(move |request| match request.target.as_str() {
        "/health?deep=1" => {
            assert_eq!((request.method.as_str(), request.field("X-Test")), ("POST", Some("t")));
            let status = told.load(Relaxed);
            Answer::keep(format!("HTTP/1.1 {status} S\r\nContent-Length: 0\r\n\r\n"))
        }
        _ => Answer::ok(name),
    });
    (origin, status)
}

fn definition(targets: &[&Origin], tests: &Value) -> Value {
    let mut definition = keyless("up", "/up/", "/");
    definition["proxy"]["enable_load_balancing"] = true.into();
    definition["proxy"]["check_host_against_uptime_tests"] = true.into();
    let urls: Vec<String> = targets.iter().map(|origin| format!("http://{}", origin.node())).collect();
    definition["proxy"]["target_list"] = json!(urls);
    definition["uptime_tests"] = json!({ "check_list": tests });
    definition
}

/// Targets that answer ten requests; the status where they are refused.
fn answering(gateway: &Gateway) -> BTreeSet<String> {
    let ask = |_| {
        let response = send(gateway, "GET /up/");
        if response.status == 200 { response.text() } else { response.status.to_string() }
    };
    (0..10).map(ask).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn targets_that_fail_their_tests_get_no_requests() {
    let site = Site::new();
    let ((one, of_one), (other, of_other)) = (target("one"), target("other"));
    let test = |origin: &Origin| json!({ "url": format!("http://{}/health?deep=1", origin.node()), "method": "POST", "body": "b", "headers": {"X-Test": "t"}, "timeout": 1_000_000_000u64 });
    site.api("up", definition(&[&one, &other], &json!([test(&other), test(&one)])));
    let conf = json!({"uptime_tests": {"config": {"time_wait": 1, "failure_trigger_sample_size": 2}}});
    let gateway = Start::at(&site.conf(conf)).start();
    let await_them = |names: &[&str]| {
        wait_until(&format!("{names:?}"), LIMIT, || (answering(&gateway) == set(names)).then_some(()));
    };
    await_them(&["one", "other"]);
    of_one.store(500, Relaxed);
    await_them(&["other"]);
    // Any other status than 200 is a failure.
    of_other.store(204, Relaxed);
    await_them(&["503"]);
    of_one.store(200, Relaxed);
    await_them(&["one"]);
    of_other.store(200, Relaxed);
    await_them(&["one", "other"]);
}

const HANDLER: &str = "var teller = new TykJS.TykEventHandlers.NewEventHandler({});
teller.NewHandler(function(event, context) {
    TykMakeHttpRequest(JSON.stringify({Method: 'POST', Domain: 'http://HOOK', Resource: '/script', Headers: {},
        Body: JSON.stringify([event.Type, event.Meta, context])}));
});
";

#[test]
fn targets_that_fail_and_come_back_are_told() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    let ((one, of_one), (other, _)) = (target("one"), target("other"));
    let test = |origin: &Origin| json!({ "url": format!("http://{}/health?deep=1", origin.node()), "method": "POST", "headers": {"X-Test": "t"}, "timeout": 10_000_000_000u64 });
    let mut api = definition(&[&one, &other], &json!([test(&one), test(&other)]));
    let hook = |path: &str| {
        let meta = json!({"method": "POST", "target_path": format!("http://{}{path}", hooks.node()), "header_map": {}});
        json!({"handler_name": "eh_web_hook_handler", "handler_meta": meta})
    };
    let script = json!({"handler_name": "eh_dynamic_handler", "handler_meta": {"name": "teller", "path": "event_handlers/teller.js"}});
    let log = json!({"handler_name": "eh_log_handler", "handler_meta": {"prefix": "PREFIX"}});
    api["event_handlers"] = json!({"events": {"HostDown": [hook("/down"), log], "HostUp": [hook("/up"), script]}});
    // Versions have the same targets, which are told once.
    api["version_definition"] =
        json!({"enabled": true, "name": "v1", "default": "self", "location": "header", "key": "V"});
    let site = Site::new();
    std::fs::create_dir(site.folder.path().join("event_handlers")).expect("create a folder");
    site.write("event_handlers/teller.js", HANDLER.replace("HOOK", &hooks.node()));
    site.api("up", api);
    let conf = json!({"uptime_tests": {"config": {"time_wait": 1, "failure_trigger_sample_size": 1}}});
    let gateway = Start::at(&site.conf(conf)).start();
    let told = |count: usize| {
        let told = wait_until(&format!("{count} events"), LIMIT, || {
            let told = hooks.complete();
            (told.len() >= count).then_some(told)
        });
        let mut told: Vec<(String, Value)> = told
            .into_iter()
            .map(|request| (request.target, serde_json::from_slice(&request.body).expect("JSON")))
            .collect();
        told.sort_by_key(|(target, _)| target.clone());
        told
    };
    of_one.store(500, Relaxed);
    let host = one.node();
    let url = format!("http://{host}/health?deep=1");
    let body = |event: &str, message: &str, status: &str| json!({"event": event, "message": message, "url": url, "response_code": status, "tcp_error": "false", "host": host, "api_id": "up"});
    let down = ("/down".to_owned(), body("HostDown", "Uptime test failed", "500"));
    assert_eq!(told(1), std::slice::from_ref(&down));
    gateway.logged("PREFIX");
    of_one.store(200, Relaxed);
    let meta = json!({"Message": "Uptime test succeeded", "HostInfo": {
        "CheckURL": url, "ResponseCode": 200, "IsTCPError": false,
        "MetaData": {"target_url": format!("http://{host}/"), "api_id": "up", "host_name": host},
    }});
    let script = json!(["HostUp", meta, {"APIID": "up", "OrgID": "o1"}]);
    let up = ("/up".to_owned(), body("HostUp", "Uptime test succeeded", "200"));
    assert_eq!(told(3), [down, ("/script".to_owned(), script), up]);
}

#[test]
fn tests_that_cannot_be_made_are_told_with_their_reason() {
    let (one, other) = (Origin::hello(), Origin::hello());
    let url = |origin: &Origin, path: &str| json!({ "url": format!("http://{}{path}", origin.node()) });
    let commands = json!({ "url": format!("tcp://{}", one.node()), "protocol": "tcp", "commands": [{ "name": "send", "message": "x" }] });
    for (tests, reason) in [
        (json!([url(&one, "/a")]), "each target needs a test of its own"),
        (json!([url(&one, "/a"), url(&other, "/b")]), "may differ in their hosts alone"),
        (json!([commands, url(&other, "/b")]), "tests with commands or PROXY headers are not supported"),
        (json!([{ "url": "udp://a:1" }]), "the protocol of the test udp://a:1 is not supported"),
        (json!([{ "url": "http://" }]), "expected the URL of a test with a host and a port"),
    ] {
        let site = Site::new();
        site.api("up", definition(&[&one, &other], &tests));
        let (status, out, err) = weir(&["check", &site.apps().display().to_string()]);
        let told = out + &err;
        assert!(status == 0 && told.contains(reason), "{reason}: {told}");
    }
    let site = Site::new();
    let mut unused = definition(&[&one], &json!([url(&one, "/a")]));
    unused["proxy"]["check_host_against_uptime_tests"] = false.into();
    site.api("up", unused);
    let (_, out, err) = weir(&["check", &site.apps().display().to_string()]);
    assert!((out.clone() + &err).contains("no effect without proxy.check_host_against_uptime_tests"), "{out}{err}");
}
