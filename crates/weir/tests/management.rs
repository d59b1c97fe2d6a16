//! Keys that are issued, products, and what an operator may change.

use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Gateway, LIMIT, Origin, RawClient, Start, wait_until};

/// A request to `path` below the root of the Admin API, with this key.
fn ask(gateway: &Gateway, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let answer = RawClient::connect(gateway.admin.expect("an Admin API")).request(format!(
        "{method} /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-KEY: {key}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    (answer.status, answer.json())
}

const OPERATOR: &str = "operators-key";

fn start(origin: &Origin) -> Gateway {
    let settings = format!("admin: {{keys: [{{name: olga, key: {OPERATOR}, role: operator}}]}}");
    let gateway = Start::stored().settings(settings).workers(2).start();
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    for (path, body) in [
        ("services/shop", json!({ "name": "The shop", "upstream": upstream, "plugins": { "key-auth": {} } })),
        ("routes/orders", json!({ "uri": "/orders/*", "service_id": "shop" })),
        ("routes/open", json!({ "uri": "/open", "upstream": upstream })),
        ("plans/all", json!({})),
        ("plans/two", json!({ "limits": [{ "count": 2, "per": "year" }], "access": [{ "services": ["shop"] }] })),
        ("consumers", json!({ "username": "jack" })),
    ] {
        gateway.must("PUT", path, &body.to_string());
    }
    gateway
}

fn call(gateway: &Gateway, key: &str) -> u16 {
    gateway.client().request(format!("GET /orders/1 HTTP/1.1\r\nHost: a\r\napikey: {key}\r\n\r\n")).status
}

#[test]
fn a_key_is_issued_renewed_suspended_and_taken_back() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let ask =
        |method: &str, path: &str, body: Value| ask(&gateway, OPERATOR, method, &format!("weir/v1/{path}"), &body);
    let asked = json!({ "consumer": "jack", "id": "phone", "desc": "Jack's phone", "plan": { "plans": ["two"] } });
    assert_eq!(ask("POST", "keys?dry_run=true", asked.clone()).0, 200);
    let (status, issued) = ask("POST", "keys", asked.clone());
    let first = issued["key"].as_str().unwrap_or_default().to_owned();
    assert!(status == 201 && first.len() == 64 && issued["id"] == "phone", "{status} {issued}");
    assert_eq!(ask("POST", "keys", asked).0, 412, "it is there already");
    wait_until("the key to be live", LIMIT, || (call(&gateway, &first) == 200).then_some(()));
    assert_eq!([call(&gateway, &first), call(&gateway, &first)], [200, 429], "its plan holds");

    // One without an id of its own, on the plans of its consumer.
    let (status, further) = ask("POST", "keys", json!({ "consumer": "jack" }));
    let further_id = further["id"].as_str().expect("an id").to_owned();
    assert!(status == 201 && further_id.len() == 16, "{status} {further}");
    let (_, listed) = ask("GET", "keys?consumer=jack", Value::Null);
    assert_eq!((&listed["total"], listed.to_string().contains(&first)), (&json!(2), false), "{listed}");
    let keys = listed["keys"].as_array().expect("keys");
    let phone = keys.iter().find(|key| key["id"] == "phone").expect("the phone");
    assert_eq!((&phone["plugin"], &phone["plan"]["plans"][0]), (&json!("key-auth"), &json!("two")));
    assert_eq!(ask("GET", "keys?consumer=jill", Value::Null).1["total"], 0);

    let (status, renewed) = ask("PATCH", "keys/jack/phone", json!({ "renew": true, "plan": { "plans": ["all"] } }));
    let second = renewed["key"].as_str().unwrap_or_default().to_owned();
    assert!(status == 200 && second.len() == 64 && second != first, "{status} {renewed}");
    wait_until("the new key to be live", LIMIT, || (call(&gateway, &second) == 200).then_some(()));
    assert_eq!(call(&gateway, &first), 401);

    let held = json!({ "plan": { "plans": ["all"], "suspended": true } });
    let (status, answer) = ask("PATCH", "keys/jack/phone", held);
    assert!(status == 200 && answer.get("key").is_none(), "{status} {answer}");
    wait_until("the key to be suspended", LIMIT, || (call(&gateway, &second) == 403).then_some(()));
    assert_eq!(ask("PATCH", "keys/jack/phone", json!({ "plan": null })).0, 200);
    wait_until("the key to be on no plan", LIMIT, || (call(&gateway, &second) == 200).then_some(()));
    assert_eq!(ask("DELETE", "keys/jack/phone", Value::Null).0, 200);
    wait_until("the key to be gone", LIMIT, || (call(&gateway, &second) == 401).then_some(()));

    for (method, path, body, expected) in [
        ("POST", "keys", json!({ "consumer": "nobody" }), 404),
        ("POST", "keys", json!({}), 400),
        ("POST", "keys", json!({ "consumer": "jack", "id": "a/b" }), 400),
        ("POST", "keys", json!({ "consumer": "jack", "rights": [] }), 400),
        ("POST", "keys", json!({ "consumer": "jack", "plan": { "plans": ["none"] } }), 400),
        ("PATCH", "keys/jack/none", json!({}), 404),
        ("PATCH", &*format!("keys/jack/{further_id}"), json!({ "renew": 1 }), 400),
        ("DELETE", "keys/jack/none", Value::Null, 404),
    ] {
        let (status, answer) = ask(method, path, body.clone());
        assert_eq!(status, expected, "{method} {path} {body}: {answer}");
    }
    // The history says who has done it, and not what the keys are.
    let (_, history) = ask("GET", "history?key=consumers/jack/credentials/phone", Value::Null);
    let text = history.to_string();
    assert!(text.contains("olga") && !text.contains(&first) && !text.contains(&second), "{text}");
}

#[test]
fn an_operator_changes_callers_only() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let change = |key: &str, value: Value| json!({ "changes": [{ "key": key, "value": value }] });
    let plan = json!({ "limits": [{ "count": 1, "per": "day" }] });
    let allowed = [
        ("PUT", "apisix/admin/plans/new", plan.clone()),
        ("PUT", "apisix/admin/consumer_groups/g", json!({ "plugins": { "plan": { "plans": ["new"] } } })),
        ("PUT", "apisix/admin/consumers", json!({ "username": "jill", "group_id": "g" })),
        ("PUT", "weir/v1/resources/plans/new", plan),
        ("POST", "weir/v1/transactions", change("plans/other", json!({}))),
        ("DELETE", "apisix/admin/consumers/jill", Value::Null),
        ("GET", "apisix/admin/routes", Value::Null),
    ];
    for (method, path, body) in allowed {
        let (status, answer) = ask(&gateway, OPERATOR, method, path, &body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
    }
    let before = ask(&gateway, ADMIN_KEY, "GET", "weir/v1/resources", &Value::Null).1;
    let refused = [
        ("PUT", "apisix/admin/routes/new", json!({ "uri": "/new" }), "routes"),
        ("PATCH", "apisix/admin/routes/open", json!({ "uri": "/closed" }), "routes"),
        ("DELETE", "apisix/admin/routes/open", Value::Null, "routes"),
        ("DELETE", "apisix/admin/routes/open?force=true", Value::Null, "routes"),
        ("DELETE", "weir/v1/resources/services/shop", Value::Null, "services"),
        ("PUT", "weir/v1/resources/global_rules/1", json!({ "plugins": {} }), "global_rules"),
        ("POST", "weir/v1/transactions", change("routes/open", Value::Null), "routes"),
        ("POST", "weir/v1/rollback", json!({ "revision": 1 }), ""),
    ];
    for (method, path, body, kind) in refused {
        let (status, answer) = ask(&gateway, OPERATOR, method, path, &body);
        let expected = format!("the role operator may not change {kind}");
        assert!(status == 403 && answer.to_string().contains(&expected), "{method} {path}: {status} {answer}");
    }
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "weir/v1/resources", &Value::Null).1, before);
}

#[test]
fn products_are_apis_with_their_plans() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let (status, answer) = ask(&gateway, OPERATOR, "GET", "weir/v1/products", &Value::Null);
    assert_eq!(status, 200, "{answer}");
    let mut products = answer["products"].as_array().expect("products").clone();
    products.sort_by_key(|product| product["api"].as_str().map(str::to_owned));
    let expected = json!([
        { "api": "open", "routes": ["open"], "plans": [{ "id": "all", "limits": [] }] },
        { "api": "shop", "name": "The shop", "routes": ["orders"], "plans": [
            { "id": "all", "limits": [] },
            { "id": "two", "limits": [{ "count": 2, "per": "year" }] },
        ] },
    ]);
    assert_eq!(json!(products), expected);
    let (_, document) = ask(&gateway, OPERATOR, "GET", "weir/v1/openapi.json", &Value::Null);
    for (path, method) in
        [("/weir/v1/products", "get"), ("/weir/v1/keys", "post"), ("/weir/v1/keys/{consumer}/{id}", "patch")]
    {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
    assert_eq!(document["components"]["schemas"]["NewKey"]["required"], json!(["consumer"]));
}
