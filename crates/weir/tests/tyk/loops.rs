//! Loops: requests that one API leads to another inside the gateway, or to itself.

use serde_json::{Value, json};

use super::{Site, error, extended, key, keyed, keyless, right, send, told};
use crate::harness::{Gateway, Start, weir};

/// Rewrites: paths, methods, patterns and URLs.
fn rewrites(list: &[(&str, &str, &str, &str)]) -> Value {
    let one = |(path, method, pattern, to): &(&str, &str, &str, &str)| json!({"path": path, "method": method, "match_pattern": pattern, "rewrite_to": to, "triggers": []});
    json!({"url_rewrites": list.iter().map(one).collect::<Vec<_>>()})
}

/// Target that the origin got, if the answer is 200.
fn arrives(site: &Site, gateway: &Gateway, request: &str) -> Option<String> {
    let response = send(gateway, request);
    (response.status == 200).then(|| site.origin.last().target)
}

#[test]
fn rewrites_lead_to_other_apis_and_back() {
    let site = Site::new();
    site.api(
        "a",
        extended(
            "a",
            rewrites(&[
                ("/b", "GET", "/b/([^?]*)", "tyk://b/from-a/$1?x=1"),
                ("/name", "GET", "/name", "tyk://the-other-one/named"),
                ("/self", "GET", "/self/(.*)", "tyk://self/plain/$1"),
                ("/endless", "GET", ".*", "tyk://self/endless"),
                ("/more", "GET", ".*", "tyk://self/more?loop_limit=7"),
                ("/nobody", "GET", ".*", "tyk://nobody/x"),
                ("/post", "GET", ".*", "tyk://b/posted?method=POST&kept=1"),
                ("/internal", "GET", ".*", "tyk://self/hidden"),
            ]),
        ),
    );
    let mut b = extended(
        "b",
        json!({"method_transforms": [], "mock_response": [{"path": "/mock", "method": "POST", "code": 201, "body": "mocked"}]}),
    );
    b["name"] = "The other  one".into();
    b["internal"] = true.into();
    b["proxy"]["target_url"] = "http://ORIGIN/of-b/".into();
    b["version_data"]["versions"]["Default"]["global_headers"] = json!({"X-Of": "b"});
    site.api("b", b);
    let gateway = site.start();
    assert_eq!(arrives(&site, &gateway, "GET /a/b/c?gone=1").as_deref(), Some("/of-b/from-a/c?x=1"));
    assert_eq!(site.origin.last().field("X-Of"), Some("b"));
    assert_eq!(arrives(&site, &gateway, "GET /a/name").as_deref(), Some("/of-b/named"));
    assert_eq!(arrives(&site, &gateway, "GET /a/self/c?q=1").as_deref(), Some("/plain/c?q=1"));
    assert_eq!(site.origin.last().field("X-Of"), None);
    assert_eq!(arrives(&site, &gateway, "GET /a/post").as_deref(), Some("/of-b/posted?kept=1"));
    assert_eq!(site.origin.last().method, "POST");
    // An API that is internal has no listen path, and no client has a loop's.
    for request in ["GET /b/x", "GET tyk://b/x", "GET /tyk://b/x"] {
        assert_ne!(send(&gateway, request).status, 200, "{request}");
    }
    let deep = |number: u32| error(&format!("Loop level too deep. Found more than {number} loops in single request"));
    assert_eq!(told(&send(&gateway, "GET /a/endless")), (500, deep(5)));
    assert_eq!(told(&send(&gateway, "GET /a/more")), (500, deep(7)));
    assert_eq!(told(&send(&gateway, "GET /a/nobody")), (500, error("Can't detect loop target")));
}

#[test]
fn bodies_and_internal_paths_go_along() {
    let site = Site::new();
    let mut paths = rewrites(&[("/in", "POST", ".*", "tyk://self/hidden")]);
    paths["internal"] = json!([{"path": "/hidden", "method": "POST", "method_actions": {}, "any_method": true}]);
    paths["transform"] = json!([{"path": "/in", "method": "POST", "template_data": {
        "template_mode": "blob", "template_source": crate::signatures::base64(b"<{{.a}}>"), "input_type": "json", "enable_session": false}}]);
    site.api("a", extended("a", paths));
    let gateway = site.start();
    assert_eq!(told(&send(&gateway, "POST /a/hidden\n\nx")), (403, error("Requested endpoint is forbidden")));
    assert_eq!(told(&send(&gateway, "POST /a/in\n\n{\"a\": \"b\"}")), (200, "<b>".to_owned()));
    assert_eq!(site.origin.last().target, "/hidden");
}

#[test]
fn callers_and_limits_hold_at_each_api() {
    let site = Site::new();
    let with = |mut definition: Value, list: &[(&str, &str, &str, &str)]| {
        definition["version_data"]["versions"]["Default"]["use_extended_paths"] = true.into();
        definition["version_data"]["versions"]["Default"]["extended_paths"] = rewrites(list);
        definition
    };
    let mut first = with(
        keyed("first"),
        &[
            ("/self", "GET", ".*", "tyk://self/x"),
            ("/counted", "GET", ".*", "tyk://self/x?check_limits=true"),
            ("/second", "GET", ".*", "tyk://second/x"),
        ],
    );
    // The credentials are gone when the request comes back.
    first["strip_auth_data"] = true.into();
    site.api("first", first);
    site.api("open", with(keyless("open", "/open/", "/"), &[("/second", "GET", ".*", "tyk://second/x")]));
    site.api("second", keyed("second"));
    let gateway = site.start();
    let session = |api: &str| right(api, json!({"quota_max": 4, "quota_renewal_rate": 3600}));
    let (of_first, of_second) = (key(&gateway, &session("first")), key(&gateway, &session("second")));
    let ask = |path: &str, key: &str| {
        let response = send(&gateway, &format!("GET {path}\nAuthorization: {key}"));
        (response.status, response.field("X-RateLimit-Remaining").map(str::to_owned))
    };
    let left = |number: u32| (200, Some(number.to_string()));
    // Once, and twice where limits are checked again.
    assert_eq!(ask("/first/self", &of_first), left(3));
    assert_eq!(ask("/first/counted", &of_first), left(1));
    // Another API looks at its callers itself: their credentials were taken out, or have no right to it.
    assert_eq!(ask("/first/second", &of_first).0, 401);
    assert_eq!(ask("/open/second", &of_first).0, 403);
    assert_eq!(ask("/open/second", "nobody").0, 403);
    assert_eq!(ask("/open/second", &of_second).0, 200);
    assert_eq!(ask("/second/x", &of_second), left(3), "the loop has not counted");
}

#[test]
fn target_urls_lead_to_other_apis() {
    let site = Site::new();
    let mut front = keyless("front", "/front/", "/");
    front["proxy"]["target_url"] = "tyk://back/base/".into();
    site.api("front", front);
    let mut back = keyless("back", "/back/", "/of-back/");
    back["internal"] = true.into();
    site.api("back", back);
    let mut dead = keyless("dead", "/dead/", "/");
    dead["proxy"]["target_url"] = "tyk://nobody/".into();
    site.api("dead", dead);
    let mut round = keyless("round", "/round/", "/");
    round["proxy"]["target_url"] = "tyk://round/x".into();
    site.api("round", round);
    let gateway = site.start();
    assert_eq!(arrives(&site, &gateway, "GET /front/a?b=1").as_deref(), Some("/of-back/base/a?b=1"));
    assert_eq!(told(&send(&gateway, "GET /dead/a")), (500, error("Couldn't detect target")));
    assert_eq!(send(&gateway, "GET /round/a").status, 500, "one that leads to itself for ever");
    assert_eq!(arrives(&site, &gateway, "GET /front/a").as_deref(), Some("/of-back/base/a"));
}

#[test]
fn versions_and_domains_are_those_of_the_target() {
    let site = Site::new();
    site.api("a", extended("a", rewrites(&[("/b", "GET", "/b/(.*)", "tyk://base/$1")])));
    let mut base = keyless("base", "/base/", "/of-base/");
    base["domain"] = "elsewhere.test".into();
    base["version_definition"] = json!({
        "enabled": true, "name": "v1", "default": "self", "location": "header", "key": "X-Version", "versions": {"v2": "two"}
    });
    site.api("base", base);
    let mut two = keyless("two", "/two/", "/of-two/");
    two["internal"] = true.into();
    let own = extended("two", rewrites(&[("/old", "GET", "/old/(.*)", "tyk://self/new/$1")]));
    two["version_data"] = own["version_data"].clone();
    site.api("two", two);
    let conf = site.conf(json!({"enable_custom_domains": true}));
    let gateway = Start::at(&conf).start();
    assert_eq!(arrives(&site, &gateway, "GET /a/b/x").as_deref(), Some("/of-base/x"));
    assert_eq!(arrives(&site, &gateway, "GET /a/b/x\nX-Version: v2").as_deref(), Some("/of-two/x"));
    // A version that leads to itself is itself, whatever the base says.
    let own = "GET /base/old/x\nHost: elsewhere.test\nX-Version: v2";
    assert_eq!(arrives(&site, &gateway, own).as_deref(), Some("/of-two/new/x"));
    let (_, out, err) = weir(&["check", conf.to_str().expect("a path")]);
    assert!(!(out + &err).contains("tyk://"), "nothing to tell");
}
