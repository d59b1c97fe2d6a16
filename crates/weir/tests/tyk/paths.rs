//! Caches, breakers, templates, web hooks and batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use super::{Site, ask, error, extended, key, keyed, keyless, right, send, told};
use crate::harness::{Answer, LIMIT, Origin, Start, wait_until, weir};

/// An origin whose answers count up, with the status of the target's last segment where there is one.
fn counting() -> (Origin, Arc<AtomicUsize>) {
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    let origin = Origin::answering(move |request| {
        let number = counted.fetch_add(1, SeqCst) + 1;
        let status = request.target.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(200);
        let ttl = request.field("X-Ttl").map_or(String::new(), |ttl| format!("x-tyk-cache-action-set-ttl: {ttl}\r\n"));
        let body = format!("{number}");
        Answer::keep(format!(
            "HTTP/1.1 {status} Status\r\nX-Number: {number}\r\n{ttl}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    });
    (origin, count)
}

#[test]
fn answers_are_cached_as_in_tyk() {
    let (origin, _) = counting();
    let site = Site::new();
    let api = |id: &str, options: Value, paths: Value| {
        let mut definition = extended(id, paths);
        definition["proxy"]["target_url"] = format!("http://{}/", origin.node()).into();
        definition["cache_options"] = options;
        definition
    };
    site.api(
        "all",
        api("all", json!({"enable_cache": true, "cache_all_safe_requests": true, "cache_timeout": 60}), json!({})),
    );
    site.api(
        "some",
        api(
            "some",
            json!({"enable_cache": true, "cache_timeout": 60, "cache_response_codes": [200], "cache_by_headers": ["X-By"], "enable_upstream_cache_control": true}),
            json!({"cache": ["/plain"], "advance_cache_config": [{"path": "/post", "method": "POST", "cache_key_regex": "\"id\":[0-9]+"}]}),
        ),
    );
    site.api(
        "off",
        api("off", json!({"enable_cache": false, "cache_all_safe_requests": true}), json!({"cache": ["/plain"]})),
    );
    let mut limited = keyed("keyed");
    limited["proxy"]["target_url"] = format!("http://{}/", origin.node()).into();
    limited["cache_options"] = json!({"enable_cache": true, "cache_all_safe_requests": true, "cache_timeout": 60});
    site.api("keyed", limited);
    let gateway = site.start();
    let ask_once = |request: &str| {
        let response = send(&gateway, request);
        let number = String::from_utf8_lossy(&response.body).into_owned();
        (number, response.field("X-Tyk-Cached-Response").map(str::to_owned))
    };
    let is_cached = |first: &str, second: &str| {
        let (one, two) = (ask_once(first), ask_once(second));
        assert_eq!(one.1, None, "{first}");
        (two.0 == one.0, two.1.is_some())
    };
    for (first, second, cached) in [
        ("GET /all/a", "GET /all/a", true),
        ("GET /all/a?x=1", "GET /all/a?x=1", true),
        ("GET /all/b", "GET /all/b?x=1", false),
        ("GET /all/x/500", "GET /all/x/500", true),
        ("POST /all/c\n\n{}", "POST /all/c\n\n{}", false),
        ("GET /some/plain", "GET /some/plain", true),
        ("GET /some/plain/404", "GET /some/plain/404", false),
        ("GET /some/other", "GET /some/other", false),
        ("GET /some/plain/h\nX-By: 1", "GET /some/plain/h\nX-By: 2", false),
        ("POST /some/post\n\n{\"id\":1,\"a\":1}", "POST /some/post\n\n{\"id\":1,\"a\":2}", true),
        ("POST /some/post\n\n{\"id\":2}", "POST /some/post\n\n{\"id\":3}", false),
        ("POST /some/post\n\n{}", "POST /some/post\n\n{}", false),
        ("GET /off/plain", "GET /off/plain", false),
    ] {
        assert_eq!(is_cached(first, second), (cached, cached), "{second}");
    }
    // The header of the upstream says for how long.
    assert_eq!(is_cached("GET /some/plain/t\nX-Ttl: 1", "GET /some/plain/t"), (true, true));
    wait_until("the answer to be old", LIMIT, || ask_once("GET /some/plain/t").1.is_none().then_some(()));
    // Keys have answers of their own, and a cached answer uses their quota.
    let session = right("keyed", json!({"quota_max": 2, "quota_renewal_rate": 60}));
    let [one, other] = [key(&gateway, &session), key(&gateway, &session)];
    let of = |key: &str| send(&gateway, &format!("GET /keyed/a\nAuthorization: {key}"));
    let (first, hit, foreign) = (of(&one), of(&one), of(&other));
    assert_eq!((first.body == hit.body, first.body == foreign.body), (true, false));
    assert_eq!((hit.field("X-Tyk-Cached-Response"), hit.field("X-Ratelimit-Remaining")), (Some("1"), Some("0")));
    assert_eq!(told(&of(&one)), (403, error("Quota exceeded")));
    // The gateway API forgets the answers of one API.
    assert!(ask_once("GET /all/a").1.is_some());
    assert_eq!(ask(&gateway, "DELETE", "/tyk/cache/all", &Value::Null).1["message"], "cache invalidated");
    assert!(ask_once("GET /all/a").1.is_none());
    assert!(ask_once("GET /some/plain").1.is_some());
}

#[test]
fn breakers_keep_requests_from_an_upstream_that_fails() {
    let (origin, count) = counting();
    let site = Site::new();
    let breaker = |path: &str, seconds: u32| json!({"path": path, "method": "GET", "threshold_percent": 0.5, "samples": 4, "return_to_service_after": seconds, "disable_half_open_state": true});
    let mut broken = extended("cb", json!({"circuit_breakers": [breaker("/long", 3600), breaker("/short", 1)]}));
    broken["proxy"]["target_url"] = format!("http://{}/", origin.node()).into();
    site.api("cb", broken);
    let gateway = Start::at(&site.apps()).start();
    let status = |path: &str| send(&gateway, &format!("GET /cb/{path}")).status;
    assert_eq!(["long/500", "long/200", "long/200", "long/500"].map(status), [500, 200, 200, 500]);
    let asked = count.load(SeqCst);
    let refused = send(&gateway, "GET /cb/long/200");
    assert_eq!(told(&refused), (503, error("Service temporarily unavailable.")));
    assert_eq!(count.load(SeqCst), asked, "the upstream is left alone");
    assert_eq!(["other/500", "short/200"].map(status), [500, 200]);
    assert_eq!(["short/500", "short/500", "short/500"].map(status), [500, 500, 500]);
    wait_until("the breaker to open", LIMIT, || (status("short/200") == 503).then_some(()));
    wait_until("the breaker to close", LIMIT, || (status("short/200") == 200).then_some(()));
}

#[test]
fn bodies_are_made_of_templates() {
    let origin = Origin::answering(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let body = if body.is_empty() { "{\"list\": [{\"id\": 1}, {\"id\": 2}]}".to_owned() } else { body };
        Answer::ok(&body)
    });
    let site = Site::new();
    let blob = |text: &str| crate::signatures::base64(text.as_bytes());
    let data = |text: &str| json!({"input_type": "json", "template_mode": "blob", "template_source": blob(text), "enable_session": true});
    site.write("answer.tmpl", "{\"first\": {{ (index .list 0).id }}, \"all\": [{{ range $i, $e := .list }}{{ if $i }},{{ end }}{{ $e.id }}{{ end }}]}");
    let file = json!({"input_type": "json", "template_mode": "file", "template_source": "answer.tmpl"});
    let mut api = extended(
        "tp",
        json!({
            "transform": [
                {"path": "/in", "method": "POST", "template_data": data("{\"value\": \"{{.a.b}}\", \"to\": {{.n | jsonMarshal}}, \"q\": \"{{index ._tyk_context.request_data.q 0}}\", \"none\": \"{{.none}}\"}")},
                {"path": "/fails", "method": "POST", "template_data": data("{{index .list 9}}")},
            ],
            "transform_response": [{"path": "/out", "method": "GET", "template_data": file}],
        }),
    );
    api["enable_context_vars"] = true.into();
    api["proxy"]["target_url"] = format!("http://{}/", origin.node()).into();
    site.api("tp", api);
    let gateway = Start::at(&site.conf(json!({}))).start();
    for (request, expected) in [
        (
            "POST /tp/in?q=Q\n\n{\"a\": {\"b\": \"x\"}, \"n\": [1, 2]}",
            (200, "{\"value\": \"x\", \"to\": [1,2], \"q\": \"Q\", \"none\": \"<no value>\"}"),
        ),
        ("POST /tp/in?q=Q\n\nno JSON", (200, "no JSON")),
        ("GET /tp/out\nAccept-Encoding: gzip", (200, "{\"first\": 1, \"all\": [1,2]}")),
        ("GET /tp/other", (200, "{\"list\": [{\"id\": 1}, {\"id\": 2}]}")),
        ("POST /tp/fails\n\n{\"list\": []}", (500, &*error("Template error"))),
    ] {
        let response = send(&gateway, request);
        assert_eq!(told(&response), (expected.0, expected.1.to_owned()), "{request}: {response:?}");
    }
    let asked = origin.requests();
    let answered = asked.iter().find(|request| request.target == "/out").expect("a request");
    assert_eq!(answered.field("Accept-Encoding"), None, "what is changed may not be encoded");
}

#[test]
fn bodies_are_xml_on_either_side() {
    let origin = Origin::answering(|request| Answer::ok(&String::from_utf8_lossy(&request.body)));
    let site = Site::new();
    let data = |kind: &str, text: &str| {
        let source = crate::signatures::base64(text.as_bytes());
        json!({"input_type": kind, "template_mode": "blob", "template_source": source})
    };
    let mut api = extended(
        "xm",
        json!({
            "transform": [{"path": "/in", "method": "POST", "template_data":
                data("xml", "{\"id\": {{index .order \"-id\" | jsonMarshal}}, \"items\": {{.order.item | jsonMarshal}}, \"note\": \"{{.order.note}}\"}")}],
            "transform_response": [{"path": "/out", "method": "POST", "template_data": data("json", "{{ . | xmlMarshal }}")}],
        }),
    );
    api["proxy"]["target_url"] = format!("http://{}/", origin.node()).into();
    site.api("xm", api);
    let gateway = Start::at(&site.apps()).start();
    for (request, expected) in [
        (
            "POST /xm/in\n\n<?xml version=\"1.0\"?><s:order xmlns:s=\"u\" id=\"7\"><s:item>a</s:item><item>b</item><note/></s:order>",
            "{\"id\": \"7\", \"items\": [\"a\",\"b\"], \"note\": \"\"}",
        ),
        ("POST /xm/in\n\n<order><item>", "<order><item>"),
        (
            "POST /xm/out\n\n{\"order\": {\"-id\": 7, \"item\": [\"a\", \"b<\"]}}",
            "<order id=\"7\">\n  <item>a</item>\n  <item>b&lt;</item>\n</order>",
        ),
    ] {
        assert_eq!(told(&send(&gateway, request)), (200, expected.to_owned()), "{request}");
    }
}

#[test]
fn refusals_are_told_to_web_hooks() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    let site = Site::new();
    site.write("hook.tmpl", "{{.Type}} of {{.Meta.Path}}");
    let hook = |path: &str, more: Value| {
        let mut meta = json!({
            "method": "POST", "target_path": format!("http://{}{path}", hooks.node()), "template_path": "",
            "header_map": {"X-Hook": "h"}, "event_timeout": 0, "name": "", "id": ""
        });
        for (name, value) in more.as_object().expect("fields") {
            meta[name] = value.clone();
        }
        json!({"handler_name": "eh_web_hook_handler", "handler_meta": meta})
    };
    let mut api = keyed("ev");
    api["version_data"]["versions"]["Default"]["extended_paths"]["black_list"] =
        json!([{"path": "/blk", "method_actions": {"GET": {"action": "no_action"}}}]);
    api["event_handlers"] = json!({"events": {
        "AuthFailure": [hook("/auth", json!({}))],
        "QuotaExceeded": [hook("/quota", json!({"event_timeout": 3600}))],
        "RatelimitExceeded": [hook("/rate", json!({}))],
        "KeyExpired": [hook("/expired", json!({}))],
        "VersionFailure": [hook("/version", json!({"template_path": "hook.tmpl"})), {"handler_name": "eh_log_handler", "handler_meta": {"prefix": "p"}}],
    }});
    site.api("ev", api);
    let gateway = site.start();
    let of = |key: &str| send(&gateway, &format!("GET /ev/x\nAuthorization: {key}")).status;
    let quota = key(&gateway, &right("ev", json!({"quota_max": 1, "quota_renewal_rate": 3600})));
    let rate = key(&gateway, &right("ev", json!({"rate": 1, "per": 3600})));
    let expired = key(&gateway, &right("ev", json!({"expires": 1000})));
    assert_eq!(
        [of("wrong"), of(&quota), of(&quota), of(&quota), of(&rate), of(&rate), of(&expired)],
        [403, 200, 403, 403, 200, 429, 401]
    );
    assert_eq!(send(&gateway, "GET /ev/blk").status, 403);
    let told = wait_until("the events to be told", LIMIT, || {
        let told = hooks.complete();
        (told.len() >= 5).then_some(told)
    });
    let bodies = |path: &str| -> Vec<String> {
        let told = told.iter().filter(|request| request.target == path);
        told.map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect()
    };
    assert_eq!(bodies("/version"), ["VersionFailure of /ev/blk"]);
    assert_eq!((bodies("/quota").len(), bodies("/rate").len(), bodies("/expired").len()), (1, 1, 1), "{told:?}");
    let auth: Value = serde_json::from_str(&bodies("/auth").concat()).expect("JSON");
    let expected =
        json!({"event": "AuthFailure", "message": "Auth Failure", "path": "/ev/x", "origin": "127.0.0.1", "key": ""});
    assert_eq!(auth, expected);
    assert!(told.iter().all(|request| request.field("X-Hook") == Some("h") && request.method == "POST"));
}

#[test]
fn batches_are_answered_one_by_one() {
    let site = Site::new();
    let mut batched = keyed("at");
    batched["enable_batch_request_support"] = true.into();
    site.api("at", batched);
    site.api("plain", keyless("plain", "/plain/", "/"));
    let gateway = site.start();
    let key = key(&gateway, &right("at", json!({})));
    let batch = json!({"requests": [
        {"method": "POST", "headers": {"Authorization": key, "X-A": "1"}, "body": "one", "relative_url": "a?x=1"},
        {"method": "GET", "headers": {}, "body": "", "relative_url": "b"},
    ], "suppress_parallel_execution": true});
    let response = send(&gateway, &format!("POST /at/tyk/batch/\n\n{batch}"));
    assert_eq!(response.status, 200, "{response:?}");
    let answers = response.json();
    let told_of = |at: usize| (&answers[at]["relative_url"], &answers[at]["code"], &answers[at]["body"]);
    assert_eq!(told_of(0), (&json!("a?x=1"), &json!(200), &json!("one")));
    assert_eq!(answers[0]["headers"]["X-Target"], json!(["/base/a?x=1"]));
    assert_eq!(told_of(1), (&json!("b"), &json!(401), &json!(error("Authorization field missing"))));
    assert_eq!(site.origin.last().field("X-A"), Some("1"));
    for bad in [
        "{",
        "{}",
        "{\"requests\": [{\"relative_url\": \"a b\"}]}",
        "{\"requests\": [{\"method\": \"X\", \"relative_url\": \"a\"}]}",
    ] {
        let refused = send(&gateway, &format!("POST /at/tyk/batch/\n\n{bad}"));
        assert_eq!(told(&refused), (400, error("Batch request malformed")), "{bad}");
    }
    assert_eq!(send(&gateway, "POST /plain/tyk/batch/\n\n{}").status, 200);
    assert_eq!(site.origin.last().target, "/tyk/batch/", "without the switch it goes to the upstream");
}

#[test]
fn requests_become_operations_of_graphql() {
    let site = Site::new();
    let operation = "query ($id: ID!) { user(id: $id) { name } }";
    let variables = json!({"id": "$path.id", "of": ["$path.identity", 3], "agent": "$tyk_context.headers_X_Team"});
    let mut api = extended(
        "q",
        json!({"persist_graphql": [
            {"path": "/users/{id}/of/{identity}", "method": "GET", "operation": operation, "variables": variables}
        ]}),
    );
    api["enable_context_vars"] = true.into();
    api["proxy"]["target_url"] = format!("http://{}/graphql", site.origin.node()).into();
    site.api("q", api);
    let gateway = site.start();
    assert_eq!(send(&gateway, "GET /q/users/7\"/of/b?x=1\nX-Team: blue").status, 200);
    let seen = site.origin.last();
    assert_eq!((&*seen.method, &*seen.target), ("POST", "/graphql?x=1"));
    assert_eq!(seen.field("Content-Type"), Some("application/json"));
    let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let expected = json!({"id": "7\"", "of": ["b", 3], "agent": "blue"});
    assert_eq!(body, json!({"query": operation, "variables": expected}));
    // Other paths and methods are as they were.
    assert_eq!(send(&gateway, "POST /q/users/7/of/b\n\nbody").status, 200);
    let seen = site.origin.last();
    assert_eq!((&*seen.method, &*seen.target, &*seen.body), ("POST", "/graphql/users/7/of/b", &b"body"[..]));
    let site = Site::new();
    site.api("q", extended("q", json!({"persist_graphql": [{"path": "/a", "method": "GET"}]})));
    let conf = site.conf(json!({}));
    let (status, out, err) = weir(&["check", conf.to_str().expect("a path")]);
    let fault = "persist_graphql[0].operation: expected an operation of GraphQL";
    assert!(status != 0 && (out.clone() + &err).contains(fault), "{out}{err}");
}
