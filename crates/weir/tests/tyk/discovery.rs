//! Targets that a service tells, as JSON.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Site, keyless, send};
use crate::harness::{Answer, Gateway, LIMIT, Origin, Start, wait_until, weir};

/// A service with an answer that changes; none: it fails.
fn registry() -> (Origin, Arc<Mutex<Option<Value>>>) {
    let answer: Arc<Mutex<Option<Value>>> = Arc::default();
    let told = Arc::clone(&answer);
    let origin = Origin::answering(move |_| match &*told.lock().expect("an answer") {
        Some(answer) => Answer::ok(&answer.to_string()),
        None => Answer::keep("HTTP/1.1 500 S\r\nContent-Length: 0\r\n\r\n"),
    });
    (origin, answer)
}

/// An entry for a node.
fn entry(origin: &Origin) -> Value {
    json!({ "Address": origin.addr().ip().to_string(), "ServicePort": origin.addr().port() })
}

fn body(gateway: &Gateway) -> (u16, String) {
    let response = send(gateway, "GET /a/x");
    (response.status, response.text())
}

#[test]
fn targets_come_from_a_service_and_the_last_good_ones_stay() {
    let [one, two] =
        ["one", "two"].map(|name| Origin::answering(move |request| Answer::ok(&format!("{name} {}", request.target))));
    for is_oas in [false, true] {
        let (registry, answer) = registry();
        let set = |value: Option<Value>| *answer.lock().expect("an answer") = value;
        set(Some(json!([entry(&one)])));
        let url = format!("http://{}/v1/catalog/service/a", registry.node());
        let site = Site::new();
        if is_oas {
            site.api(
                "a",
                json!({
                    "openapi": "3.0.3", "info": {"title": "a", "version": "1"}, "paths": {},
                    "x-tyk-api-gateway": {
                        "info": {"name": "a", "id": "a", "orgId": "o1", "state": {"active": true}},
                        "upstream": {"url": "http://unused.test/", "serviceDiscovery": {
                            "enabled": true, "queryEndpoint": url, "dataPath": "Address", "portDataPath": "ServicePort",
                            "useTargetList": true, "endpointReturnsList": true, "targetPath": "/base"}},
                        "server": {"listenPath": {"value": "/a/", "strip": true}},
                    },
                }),
            );
        } else {
            let mut api = keyless("a", "/a/", "/unused");
            api["proxy"]["service_discovery"] = json!({
                "use_discovery_service": true, "query_endpoint": url, "data_path": "Address", "port_data_path": "ServicePort",
                "use_target_list": true, "endpoint_returns_list": true, "target_path": "/base", "cache_timeout": 1,
            });
            // A path with a limit of time of its own goes to the same targets.
            api["version_data"]["versions"]["Default"]["extended_paths"] =
                json!({"hard_timeouts": [{"path": "/x", "method": "GET", "timeout": 9}]});
            site.api("a", api);
        }
        let gateway = Start::at(&site.apps()).start();
        assert_eq!(body(&gateway), (200, "one /base/x".to_owned()), "the gateway waits for the first answer");
        set(Some(json!([entry(&two)])));
        wait_until("the new target", LIMIT, || (body(&gateway).1 == "two /base/x").then_some(()));
        for bad in [None, Some(json!([])), Some(json!({"Address": 7}))] {
            let before = registry.requests().len();
            set(bad);
            wait_until("two questions", LIMIT, || (registry.requests().len() > before + 1).then_some(()));
            assert_eq!(body(&gateway), (200, "two /base/x".to_owned()), "the last good ones stay");
        }
        set(Some(json!([entry(&one), entry(&two)])));
        wait_until("both targets", LIMIT, || {
            let seen: Vec<String> = (0..4).map(|_| body(&gateway).1).collect();
            (seen.contains(&"one /base/x".to_owned()) && seen.contains(&"two /base/x".to_owned())).then_some(())
        });
    }
}

#[test]
fn lists_at_urls_serve_other_families_too() {
    let (registry, answer) = registry();
    let target = Origin::answering(|_| Answer::ok("found"));
    *answer.lock().expect("an answer") = Some(json!({"nodes": [{"host": target.node()}]}));
    let config = json!({"routes": [{"uri": "/*", "upstream": {
        "service_name": format!("http://{}/nodes", registry.node()), "discovery_type": "http",
        "discovery_args": {"parent_path": "nodes", "data_path": "host", "all": true}, "type": "roundrobin"}}]});
    let gateway = Start::new(&config).start();
    let response = send(&gateway, "GET /x");
    assert_eq!((response.status, response.text().as_str()), (200, "found"));
    let wrong = config.to_string().replace("http://", "ftp://");
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("apisix.yaml");
    std::fs::write(&file, format!("{wrong}\n#END\n")).expect("write a file");
    let (status, out, err) = weir(&["check", file.to_str().expect("a path")]);
    assert!(status != 0 && (out + &err).contains("service_name: expected a URL such as http://HOST:PORT/PATH"));
    let site = Site::new();
    let mut api = keyless("a", "/a/", "/");
    api["proxy"]["service_discovery"] = json!({"use_discovery_service": true, "query_endpoint": "consul"});
    site.api("a", api);
    let (status, out, err) = weir(&["check", site.apps().to_str().expect("a path")]);
    assert!(status != 0 && (out + &err).contains("query_endpoint: expected a URL such as http"), "a URL is needed");
}
