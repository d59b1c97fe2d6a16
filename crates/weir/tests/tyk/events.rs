//! Events that are told to web hooks and scripts: changes of breakers, limits of organisations, triggers of quotas.

use std::fs;

use serde_json::{Value, json};

use super::{Site, ask, extended, key, keyed, keyless, right, send, told};
use crate::harness::{Answer, LIMIT, Origin, Redis, Start, wait_until, weir};

/// A handler that tells a web hook.
fn hook(to: &Origin, path: &str) -> Value {
    let meta = json!({"method": "POST", "target_path": format!("http://{}{path}", to.node()), "header_map": {}});
    json!({"handler_name": "eh_web_hook_handler", "handler_meta": meta})
}

/// The bodies that a web hook was told, once there are so many.
fn told_to(hooks: &Origin, count: usize) -> Vec<(String, Value)> {
    let told = wait_until(&format!("{count} events"), LIMIT, || {
        let told = hooks.complete();
        (told.len() >= count).then_some(told)
    });
    let body = |body: &[u8]| serde_json::from_slice(body).expect("JSON");
    let mut told: Vec<(String, Value)> =
        told.into_iter().map(|request| (request.target, body(&request.body))).collect();
    told.sort_by_key(|(target, _)| target.clone());
    told
}

#[test]
fn breakers_tell_that_they_open_and_close() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    let failing = Origin::answering(|request| {
        let status = request.target.rsplit('/').next().unwrap_or_default();
        Answer::keep(format!("HTTP/1.1 {status} S\r\nContent-Length: 0\r\n\r\n"))
    });
    let site = Site::new();
    let breaker = json!({"path": "/b", "method": "GET", "threshold_percent": 0.5, "samples": 2, "return_to_service_after": 1, "disable_half_open_state": true});
    let mut api = extended("cb", json!({"circuit_breakers": [breaker]}));
    api["proxy"]["target_url"] = format!("http://{}/", failing.node()).into();
    api["event_handlers"] = json!({"events": {
        "BreakerTriggered": [hook(&hooks, "/1")], "BreakerTripped": [hook(&hooks, "/2")], "BreakerReset": [hook(&hooks, "/3")],
    }});
    site.api("cb", api);
    let gateway = site.start();
    let status = |path: &str| send(&gateway, &format!("GET /cb/b/{path}")).status;
    assert_eq!(["500", "500"].map(status), [500, 500]);
    // No request closes it.
    let of = |event: &str, message: &str, more: Value| {
        let mut body = json!({"event": event, "message": message, "api_id": "cb", "path": "/b"});
        if !more.is_null() {
            body["Status"] = more;
        }
        body
    };
    let mut told = told_to(&hooks, 4);
    told.sort_by_key(|(target, body)| (target.clone(), body["Status"].to_string()));
    let expected = [
        ("/1", of("BreakerTriggered", "Breaker Tripped", json!("0"))),
        ("/1", of("BreakerTriggered", "Breaker Reset", json!("1"))),
        ("/2", of("BreakerTripped", "Breaker Tripped", Value::Null)),
        ("/3", of("BreakerReset", "Breaker Reset", Value::Null)),
    ];
    assert_eq!(told, expected.map(|(target, body)| (target.to_owned(), body)));
    assert_eq!(status("200"), 200);
}

const HANDLER: &str = "var teller = new TykJS.TykEventHandlers.NewEventHandler({});
teller.NewHandler(function(event, context) {
    TykMakeHttpRequest(JSON.stringify({Method: 'POST', Domain: 'http://HOOK', Resource: '/told', Headers: {},
        Body: JSON.stringify([event.Type, event.Meta, typeof event.TimeStamp, context])}));
});
";

#[test]
fn scripts_handle_events() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    for is_oas in [false, true] {
        let site = Site::new();
        fs::create_dir(site.folder.path().join("event_handlers")).expect("create a folder");
        site.write("event_handlers/teller.js", HANDLER.replace("HOOK", &hooks.node()));
        let path = "event_handlers/teller.js";
        if is_oas {
            site.api(
                "ev",
                json!({"openapi": "3.0.3", "info": {"title": "ev", "version": "1"}, "paths": {}, "x-tyk-api-gateway": {
                    "info": {"name": "ev", "id": "ev", "orgId": "o1", "state": {"active": true}}, "upstream": {"url": "http://ORIGIN/"},
                    "server": {"listenPath": {"value": "/ev/", "strip": true},
                        "authentication": {"enabled": true, "securitySchemes": {"authToken": {"enabled": true, "header": {"enabled": true, "name": "Authorization"}}}},
                        "eventHandlers": [{"enabled": true, "trigger": "AuthFailure", "type": "custom", "functionName": "teller", "path": path}]}}}),
            );
        } else {
            let mut api = keyed("ev");
            api["event_handlers"] = json!({"events": {"AuthFailure": [
                {"handler_name": "eh_dynamic_handler", "handler_meta": {"name": "teller", "path": path}},
                {"handler_name": "eh_dynamic_handler", "handler_meta": {"name": "gone", "path": "gone.js", "disabled": true}},
            ]}});
            site.api("ev", api);
        }
        let gateway = site.start();
        assert_eq!(send(&gateway, "GET /ev/x\nAuthorization: wrong").status, 403);
        let told = told_to(&hooks, 1 + usize::from(is_oas));
        let expected = json!(["AuthFailure", {"Message": "Auth Failure", "Path": "/ev/x", "Origin": "127.0.0.1", "Key": ""},
            "string", {"APIID": "ev", "OrgID": "o1"}]);
        assert!(told.iter().all(|told| *told == ("/told".to_owned(), expected.clone())), "{told:?}");
    }
}

#[test]
fn handlers_that_cannot_be_run_are_refused() {
    for (script, name, path, reason) in [
        ("var x = 1;", "x", "h.js", "x is no handler of events: expected new TykJS.TykEventHandlers"),
        ("var x = 1;", "y", "h.js", "y is not defined"),
        ("var x = ;", "x", "h.js", "unexpected token"),
        ("", "x", "none.js", "none.js"),
    ] {
        let site = Site::new();
        site.write("h.js", script);
        let mut api = keyed("ev");
        api["event_handlers"] = json!({"events": {"AuthFailure": [
            {"handler_name": "eh_dynamic_handler", "handler_meta": {"name": name, "path": path}}]}});
        site.api("ev", api);
        let conf = site.conf(json!({}));
        let (status, out, err) = weir(&["check", conf.to_str().expect("a path")]);
        assert!(status != 0 && (out.clone() + &err).contains(reason), "{name} of {path}: {out}{err}");
    }
}

#[test]
fn limits_of_organisations_are_told() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    let site = Site::new();
    let mut api = keyless("open", "/open/", "/");
    api["event_handlers"] = json!({"events": {
        "OrgQuotaExceeded": [hook(&hooks, "/1")], "OrgRateLimitExceeded": [hook(&hooks, "/2")],
    }});
    site.api("open", api);
    let gateway = Start::at(&site.conf(json!({"enforce_org_quotas": true}))).start();
    let put = |session: Value| ask(&gateway, "PUT", "/tyk/org/keys/o1?reset_quota=1", &session).0;
    let call = || send(&gateway, "GET /open/").status;
    assert_eq!(
        [
            put(json!({"org_id": "o1", "quota_max": 1, "quota_renewal_rate": 3600})),
            call(),
            call(),
            put(json!({"org_id": "o1", "rate": 1, "per": 3600})),
            call(),
            call()
        ],
        [200, 200, 403, 200, 200, 403]
    );
    let of = |event: &str, what: &str| json!({"event": event, "message": format!("Organisation {what} has been exceeded"), "path": "/open/", "origin": "127.0.0.1", "key": "o1"});
    let expected = [("/1", of("OrgQuotaExceeded", "quota")), ("/2", of("OrgRateLimitExceeded", "rate limit"))];
    assert_eq!(told_to(&hooks, 2), expected.map(|(target, body)| (target.to_owned(), body)));
}

#[test]
fn shares_of_quotas_are_told() {
    let redis = Redis::start();
    for storage in [json!({}), json!({"type": "redis", "host": "127.0.0.1", "port": redis.port})] {
        let hooks = Origin::answering(|_| Answer::ok("told"));
        let site = Site::new();
        for id in ["a", "b"] {
            site.api(id, keyed(id));
        }
        site.write("monitor.tmpl", "{\"all\": \"{{.Type}} {{.Meta.Message}} {{.Meta.OrgID}} {{.Meta.TriggerLimit}} {{.Meta.UsagePercentage}}\"}");
        let mut conf = json!({
            "enforce_org_quotas": true, "local_session_cache": {"disable_cached_session_state": true},
            "monitor": {"enable_trigger_monitors": true, "monitor_user_keys": true, "monitor_org_keys": true, "global_trigger_limit": 75.0,
                "configuration": {"method": "POST", "target_path": format!("http://{}/told", hooks.node()), "header_map": null,
                    "template_path": "monitor.tmpl", "event_timeout": 60}},
        });
        if storage != json!({}) {
            conf["storage"] = storage;
        }
        let gateway = Start::at(&site.conf(conf)).start();
        let session = json!({"quota_max": 4, "quota_renewal_rate": 3600, "monitor": {"trigger_limits": [50.0]}});
        let own = key(&gateway, &right("a", session));
        let call = || send(&gateway, &format!("GET /a/\nAuthorization: {own}")).status;
        let all = |told: &[(String, Value)]| {
            let mut all: Vec<String> =
                told.iter().map(|(_, body)| body["all"].as_str().expect("a text").to_owned()).collect();
            all.sort();
            all
        };
        let of = |what: &str| format!("TriggerExceeded Quota trigger reached o1 {what}");
        assert_eq!([call(), call()], [200, 200]);
        assert_eq!(all(&told_to(&hooks, 1)), [of("50 50")]);
        assert_eq!([call(), call(), call()], [200, 200, 403]);
        assert_eq!(all(&told_to(&hooks, 3)), [of("50 50"), of("75 100"), of("75 75")]);
        let organisation = json!({"org_id": "o1", "quota_max": 1, "quota_renewal_rate": 3600});
        assert_eq!(ask(&gateway, "POST", "/tyk/org/keys/o1", &organisation).0, 200);
        let other = key(&gateway, &right("b", json!({})));
        let (status, _) = told(&send(&gateway, &format!("GET /b/\nAuthorization: {other}")));
        // The same words are not told again within a minute.
        let again = key(
            &gateway,
            &right("b", json!({"quota_max": 10, "quota_renewal_rate": 3600, "monitor": {"trigger_limits": [10.0]}})),
        );
        ask(&gateway, "DELETE", "/tyk/org/keys/o1", &Value::Null);
        assert_eq!((status, send(&gateway, &format!("GET /b/\nAuthorization: {again}")).status), (200, 200));
        let told = told_to(&hooks, 4);
        assert_eq!(all(&told), [of("10 10"), of("50 50"), of("75 100"), of("75 75")]);
    }
}

#[test]
fn changes_of_keys_are_told() {
    let hooks = Origin::answering(|_| Answer::ok("told"));
    let site = Site::new();
    site.api("a", keyed("a"));
    site.write("key.tmpl", "{\"all\": \"{{.Type}} {{.Meta.Message}} {{.Meta.Org}}\"}");
    let (mut made, mut off) = (hook(&hooks, "/1"), hook(&hooks, "/off"));
    made["handler_meta"]["template_path"] = "key.tmpl".into();
    off["handler_meta"]["disabled"] = true.into();
    let script = json!({"handler_name": "eh_dynamic_handler", "handler_meta": {"name": "x", "path": "x.js"}});
    let conf = site.conf(json!({"event_handlers": {"events": {
        "TokenCreated": [made, off, script], "TokenUpdated": [hook(&hooks, "/2")], "TokenDeleted": [hook(&hooks, "/3")],
        "AuthFailure": [hook(&hooks, "/4")],
    }}}));
    let (_, out, err) = weir(&["check", conf.to_str().expect("a path")]);
    for warning in [
        "event_handlers.events.TokenCreated: handlers in JavaScript are run for events of API definitions alone",
        "event_handlers.events.AuthFailure: this event is sent by API definitions alone, or not at all",
    ] {
        assert!((out.clone() + &err).contains(warning), "{out}{err}");
    }
    let gateway = Start::at(&conf).start();
    let own = key(&gateway, &right("a", json!({})));
    let path = format!("/tyk/keys/{own}");
    let statuses = [
        ask(&gateway, "GET", &path, &Value::Null).0,
        ask(&gateway, "PUT", &path, &right("a", json!({"rate": 5}))).0,
        ask(&gateway, "POST", "/tyk/keys/mine", &right("a", json!({}))).0,
        ask(&gateway, "PUT", "/tyk/keys/none", &right("a", json!({}))).0,
        ask(&gateway, "DELETE", &path, &Value::Null).0,
        send(&gateway, "GET /a/\nAuthorization: none").status,
    ];
    assert_eq!(statuses, [200, 200, 200, 404, 200, 403]);
    let mut told = told_to(&hooks, 4);
    told.sort_by_key(|(target, body)| (target.clone(), body.to_string()));
    let expected = [
        ("/1", json!({"all": "TokenCreated Key generated. o1"})),
        ("/1", json!({"all": "TokenCreated Key modified. o1"})),
        ("/2", json!({"event": "TokenUpdated", "message": "Key modified.", "org": "o1", "key": own})),
        ("/3", json!({"event": "TokenDeleted", "message": "Key deleted.", "org": "", "key": own})),
    ];
    assert_eq!(told, expected.map(|(target, body)| (target.to_owned(), body)));
}
