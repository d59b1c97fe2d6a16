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
const OWNER: &str = "owners-key";
const MOBILE: &str = "key-of-the-mobile-team";

/// A request of a developer's.
fn ask_as(gateway: &Gateway, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let answer = RawClient::connect(gateway.admin.expect("an Admin API")).request(format!(
        "{method} /weir/v1/self{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Developer-Token: {token}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    (answer.status, answer.json())
}

fn start(origin: &Origin) -> Gateway {
    let keys = json!([
        { "name": "olga", "key": OPERATOR, "role": "operator" },
        { "name": "otto", "key": OWNER, "role": "owner" },
        { "name": "mona", "key": MOBILE, "role": "admin", "team": "mobile" },
    ]);
    let settings = json!({ "admin": { "keys": keys }, "usage": { "enabled": true } });
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

#[test]
fn documents_of_apis_are_for_those_who_may_call_them() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let document = |title: &str| json!({ "openapi": "3.0.3", "info": { "title": title, "version": "1" }, "paths": {} });
    let with =
        |title: &str, more: Value| json!({ "oas-validator": { "spec": document(title).to_string(), "_meta": more } });
    let route =
        json!({ "uri": "/orders/*", "service_id": "shop", "plugins": with("Orders", json!({ "disable": true })) });
    gateway.must("PUT", "routes/orders", &route.to_string());
    let open =
        json!({ "uri": "/open", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": with("Open", json!({})) });
    gateway.must("PUT", "routes/open", &open.to_string());
    let get = |path: &str| ask(&gateway, OPERATOR, "GET", &format!("weir/v1/products{path}"), &Value::Null);
    let expected = json!({ "api": "shop", "documents": [{ "of": "routes/orders", "document": document("Orders") }] });
    assert_eq!(get("/shop/openapi"), (200, expected.clone()));
    assert_eq!(get("/none/openapi").0, 404);
    assert_eq!(get("").1["products"].as_array().map(|all| all.iter().all(|one| one["documented"] == true)), Some(true));
    let made = ask(&gateway, OPERATOR, "POST", "weir/v1/developers", &json!({ "id": "anna", "plans": ["two"] })).1;
    let token = made["token"].as_str().expect("a token").to_owned();
    let own = |api: &str| ask_as(&gateway, &token, "GET", &format!("/products/{api}/openapi"), &Value::Null);
    assert_eq!(own("shop"), (200, expected));
    // No plan of hers includes it.
    assert_eq!((own("open").0, own("none").0), (404, 404));
    // One that is switched off is shown, and checks nothing.
    assert_eq!(gateway.client().request("GET /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 401);
}

#[test]
fn a_developer_looks_after_applications_and_keys() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let manage =
        |method: &str, path: &str, body: Value| ask(&gateway, OPERATOR, method, &format!("weir/v1/{path}"), &body);
    let new = json!({ "id": "anna", "name": "Anna", "email": "anna@a.test", "plans": ["two", "gone"], "max_applications": 2 });
    let (status, made) = manage("POST", "developers", new.clone());
    let token = made["token"].as_str().unwrap_or_default().to_owned();
    assert!(status == 201 && token.starts_with("anna.") && token.len() == 5 + 64, "{status} {made}");
    assert_eq!(manage("POST", "developers", new).0, 412);
    let (_, other) = manage("POST", "developers", json!({ "plans": ["two"] }));
    let stranger = other["token"].as_str().expect("a token").to_owned();
    let own = |method: &str, path: &str, body: Value| ask_as(&gateway, &token, method, path, &body);
    let (status, me) = own("GET", "", Value::Null);
    assert_eq!((status, &me["id"], &me["email"]), (200, &json!("anna"), &json!("anna@a.test")), "{me}");
    let products = me["products"].as_array().expect("products");
    assert_eq!(
        (products.len(), &products[0]["api"], &products[0]["plans"][0]["id"]),
        (1, &json!("shop"), &json!("two")),
        "{me}"
    );
    assert!(!me.to_string().contains("sha256"), "{me}");

    // An application, a key for it, and calls with the key.
    let (status, refused) = own("POST", "/applications", json!({ "plans": ["all"] }));
    assert!(
        status == 403 && refused.to_string().contains("plans: \\\"all\\\" is not open to you"),
        "{status} {refused}"
    );
    assert_eq!(own("POST", "/applications", json!({})).0, 400);
    let (status, made) = own("POST", "/applications", json!({ "plans": ["two"], "desc": "Anna's phone" }));
    assert_eq!(status, 201, "{made}");
    let application = made["id"].as_str().expect("an id").to_owned();
    let keys = format!("/applications/{application}/keys");
    assert_eq!(own("POST", &format!("{keys}?dry_run=true"), json!({})).0, 200);
    let (status, issued) = own("POST", &keys, json!({ "id": "k1", "desc": "first" }));
    let first = issued["key"].as_str().unwrap_or_default().to_owned();
    assert!(status == 201 && first.len() == 64, "{status} {issued}");
    wait_until("the key to be live", LIMIT, || (call(&gateway, &first) == 200).then_some(()));
    assert_eq!([call(&gateway, &first), call(&gateway, &first)], [200, 429], "the plan holds");
    let (status, renewed) = own("PATCH", &format!("{keys}/k1"), json!({ "renew": true }));
    let second = renewed["key"].as_str().unwrap_or_default().to_owned();
    assert!(status == 200 && second.len() == 64, "{status} {renewed}");
    wait_until("the new key to be live", LIMIT, || (call(&gateway, &second) == 429).then_some(()));
    assert_eq!(call(&gateway, &first), 401);
    let (_, listed) = own("GET", "/applications", Value::Null);
    let shown = &listed["applications"][0];
    assert_eq!(
        (&shown["id"], &shown["plans"], &shown["keys"][0]["id"]),
        (&json!(application), &json!(["two"]), &json!("k1")),
        "{listed}"
    );
    assert!(!listed.to_string().contains(&second), "{listed}");

    // Nobody else's, whatever is asked for.
    for (method, path, body) in [
        ("PATCH", format!("/applications/{application}"), json!({ "desc": "mine" })),
        ("DELETE", format!("/applications/{application}"), Value::Null),
        ("POST", keys.clone(), json!({})),
        ("PATCH", format!("{keys}/k1"), json!({ "renew": true })),
        ("DELETE", format!("{keys}/k1"), Value::Null),
        ("DELETE", "/applications/jack".to_owned(), Value::Null),
    ] {
        let (status, answer) = ask_as(&gateway, &stranger, method, &path, &body);
        assert_eq!(status, 404, "{method} {path}: {answer}");
    }
    assert_eq!(ask_as(&gateway, &stranger, "GET", "/applications", &Value::Null).1["total"], 0);
    for token in ["", "anna", "anna.", "anna.x", "nobody.x", OPERATOR, &format!("../consumers/jack.{first}")] {
        let (status, answer) = ask_as(&gateway, token, "GET", "/applications", &Value::Null);
        assert_eq!(status, 401, "{token}: {answer}");
    }
    // A token opens nothing else, and a key of the API is no token.
    for path in ["weir/v1/developers", "weir/v1/resources", "apisix/admin/routes"] {
        assert_eq!(ask(&gateway, &token, "GET", path, &Value::Null).0, 401, "{path}");
    }
    assert_eq!(ask(&gateway, OWNER, "GET", "weir/v1/self", &Value::Null).0, 401);

    // Use of the plan, and a new beginning.
    let (_, quotas) = own("GET", "/quotas", Value::Null);
    let expected = json!({ "plan": "two", "limit": 2, "per": "year", "window": "fixed", "scope": "plan", "used": 2, "remaining": 0 });
    let count = &quotas["applications"][0]["counts"][0];
    assert!(expected.as_object().expect("fields").iter().all(|(name, value)| count[name] == *value), "{quotas}");
    assert!(count["resets_in"].as_u64().is_some_and(|seconds| seconds > 300 * 86_400), "{quotas}");
    let of_application = format!("quotas?consumer={application}&key=k1");
    assert_eq!(manage("GET", &of_application, Value::Null).1["counts"][0]["used"], 2);
    assert_eq!(manage("DELETE", &of_application, Value::Null).1["reset"], 1);
    assert_eq!(manage("GET", &of_application, Value::Null).1["counts"][0]["used"], 0);
    assert_eq!([call(&gateway, &second), call(&gateway, &second), call(&gateway, &second)], [200, 200, 429]);
    for (question, expected) in
        [("", 400), ("?consumer=nobody", 404), ("?consumer=jack&key=none", 404), ("?consumer=jack", 200)]
    {
        assert_eq!(manage("GET", &format!("quotas{question}"), Value::Null).0, expected, "{question}");
    }
    // Usage of the own applications alone.
    let requests = |token: &str, question: &str| {
        let (status, answer) = ask_as(&gateway, token, "GET", &format!("/usage?{question}"), &Value::Null);
        let rows = answer["rows"].as_array().cloned().unwrap_or_default();
        (status, rows.iter().filter_map(|row| row["requests"].as_u64()).sum::<u64>())
    };
    wait_until("usage to be recorded", LIMIT, || (requests(&token, "group_by=consumer").1 >= 4).then_some(()));
    assert_eq!(requests(&stranger, ""), (200, 0));
    assert_eq!(requests(&stranger, &format!("consumer={application}")).0, 403);

    // The bounds, a suspension and the end.
    assert_eq!(own("POST", "/applications", json!({ "plans": ["two"] })).0, 201);
    let (status, refused) = own("POST", "/applications", json!({ "plans": ["two"] }));
    assert!(status == 400 && refused.to_string().contains("which is the most"), "{status} {refused}");
    let (_, all) = manage("GET", "applications?developer=anna", Value::Null);
    assert_eq!(all["total"], 2, "{all}");
    assert_eq!(manage("PATCH", &format!("applications/{application}"), json!({ "suspended": true })).0, 200);
    wait_until("the application to be suspended", LIMIT, || (call(&gateway, &second) == 403).then_some(()));
    assert_eq!(manage("PATCH", "developers/anna", json!({ "suspended": true })).0, 200);
    assert_eq!(own("GET", "", Value::Null).0, 403);
    let (_, changed) =
        manage("PATCH", "developers/anna", json!({ "suspended": false, "renew_token": true, "name": null }));
    let renewed = changed["token"].as_str().expect("a token").to_owned();
    assert_eq!(own("GET", "", Value::Null).0, 401, "the old token");
    assert!(ask_as(&gateway, &renewed, "GET", "", &Value::Null).1.get("name").is_none());
    let (status, answer) = ask_as(&gateway, &renewed, "DELETE", &format!("/applications/{application}"), &Value::Null);
    assert_eq!(status, 200, "{answer}");
    wait_until("the key to be gone", LIMIT, || (call(&gateway, &second) == 401).then_some(()));
    let (status, answer) = manage("DELETE", "developers/anna", Value::Null);
    assert_eq!((status, &answer["applications"]), (200, &json!(1)), "{answer}");
    assert_eq!(manage("GET", "applications", Value::Null).1["total"], 0);
    for (method, path, body, expected) in [
        ("POST", "developers", json!({ "id": "a/b" }), 400),
        ("POST", "developers", json!({ "email": "nowhere" }), 400),
        ("POST", "developers", json!({ "rights": [] }), 400),
        ("PATCH", "developers/nobody", json!({}), 404),
        ("DELETE", "developers/nobody", Value::Null, 404),
        ("POST", "applications", json!({ "developer": "nobody", "plans": ["two"] }), 404),
        ("PATCH", "applications/jack", json!({ "desc": "a consumer" }), 404),
        ("DELETE", "applications/jack", Value::Null, 404),
    ] {
        let (status, answer) = manage(method, path, body.clone());
        assert_eq!(status, expected, "{method} {path} {body}: {answer}");
    }
    // The audit log: each change with its author.
    let (_, audit) = manage("GET", "audit?actor=developer%20anna&kind=credentials", Value::Null);
    let entries = audit["entries"].as_array().expect("entries");
    let told: Vec<(&str, &str)> = entries
        .iter()
        .map(|entry| (entry["action"].as_str().expect("a text"), entry["key"].as_str().expect("a text")))
        .collect();
    let key = format!("consumers/{application}/credentials/k1");
    assert_eq!(told, [("delete", key.as_str()), ("update", &key), ("create", &key)], "{audit}");
    assert_eq!(entries[1]["fields"], json!(["plugins"]));
    assert!(entries.iter().all(|entry| entry["time"].is_number() && entry["revision"].is_number()), "{audit}");
    let (_, audit) = manage("GET", "audit?actor=olga&limit=1", Value::Null);
    assert_eq!((audit["entries"].as_array().map(Vec::len), &audit["more"]), (Some(1), &json!(true)), "{audit}");
}

#[test]
fn a_team_changes_its_own_resources_only() {
    let origin = Origin::hello();
    let gateway = start(&origin);
    let mobile = |method: &str, path: &str, body: Value| ask(&gateway, MOBILE, method, path, &body);
    let own = json!({ "team": "mobile" });
    let node = json!({ "nodes": { (origin.node()): 1 } });
    let change = |key: &str, value: Value| json!({ "changes": [{ "key": key, "value": value }] });
    for (method, path, body) in [
        ("PUT", "apisix/admin/services/m", json!({ "labels": own, "upstream": node, "plugins": { "key-auth": {} } })),
        ("PUT", "apisix/admin/routes/m", json!({ "labels": own, "uri": "/m", "service_id": "m" })),
        ("PUT", "apisix/admin/plans/m", json!({ "labels": own })),
        ("PUT", "apisix/admin/consumers", json!({ "username": "max", "labels": own })),
        ("POST", "weir/v1/keys", json!({ "consumer": "max", "id": "k" })),
        ("POST", "weir/v1/developers", json!({ "id": "mia", "plans": ["m"] })),
        ("POST", "weir/v1/applications", json!({ "developer": "mia", "id": "mapp", "plans": ["m"] })),
        ("POST", "weir/v1/keys", json!({ "consumer": "mapp" })),
        ("PATCH", "apisix/admin/routes/m", json!({ "uri": "/m2" })),
        (
            "POST",
            "weir/v1/transactions",
            change("plans/m", json!({ "labels": own, "limits": [{ "count": 1, "per": "day" }] })),
        ),
    ] {
        let (status, answer) = mobile(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
    }
    let before = ask(&gateway, ADMIN_KEY, "GET", "weir/v1/resources", &Value::Null).1;
    for (method, path, body) in [
        // Without the label, with another one, or of somebody else.
        ("PUT", "apisix/admin/routes/new", json!({ "uri": "/new", "service_id": "m" })),
        ("PUT", "apisix/admin/routes/new", json!({ "uri": "/new", "service_id": "m", "labels": { "team": "web" } })),
        ("PUT", "apisix/admin/routes/open", json!({ "uri": "/mine", "service_id": "m", "labels": own })),
        ("PATCH", "apisix/admin/routes/m", json!({ "labels": { "team": "web" } })),
        ("DELETE", "apisix/admin/routes/open", Value::Null),
        ("DELETE", "apisix/admin/routes/open?force=true", Value::Null),
        ("POST", "weir/v1/keys", json!({ "consumer": "jack" })),
        ("POST", "weir/v1/developers", json!({ "id": "willi", "team": "web" })),
        ("PUT", "apisix/admin/global_rules/1", json!({ "plugins": {}, "labels": own })),
        ("PUT", "weir/v1/resources/plugin_metadata/plan", json!({ "policy": "local" })),
        ("POST", "weir/v1/transactions", change("plans/two", json!({ "labels": own }))),
        ("POST", "weir/v1/rollback", json!({ "revision": 1 })),
    ] {
        let (status, answer) = mobile(method, path, body.clone());
        assert!(status == 403 && answer.to_string().contains("mobile"), "{method} {path} {body}: {status} {answer}");
    }
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "weir/v1/resources", &Value::Null).1, before);
    // Lists show the team's own.
    let (_, products) = mobile("GET", "weir/v1/products", Value::Null);
    assert_eq!(
        (products["products"].as_array().map(Vec::len), &products["products"][0]["api"]),
        (Some(1), &json!("m"))
    );
    assert_eq!(mobile("GET", "weir/v1/applications", Value::Null).1["total"], 1);
    assert_eq!(mobile("GET", "weir/v1/developers", Value::Null).1["developers"][0]["id"], "mia");
    assert_eq!(mobile("GET", "weir/v1/developers?team=web", Value::Null).0, 403);
    assert_eq!(ask(&gateway, OWNER, "GET", "weir/v1/developers?team=web", &Value::Null).1["total"], 0);
    let (_, audit) = mobile("GET", "weir/v1/audit", Value::Null);
    assert!(audit.to_string().contains("plans/m") && !audit.to_string().contains("plans/two"), "{audit}");
    for (key, role, team) in
        [(OWNER, "admin", Value::Null), (MOBILE, "admin", json!("mobile")), (OPERATOR, "operator", Value::Null)]
    {
        let (_, who) = ask(&gateway, key, "GET", "weir/v1/identity", &Value::Null);
        assert_eq!((&who["role"], who.get("team").unwrap_or(&Value::Null)), (&json!(role), &team), "{who}");
        let may = who["may_change"].as_array().expect("kinds");
        assert_eq!(may.contains(&json!("global_rules")), key == OWNER, "{who}");
    }
    assert_eq!(ask(&gateway, OWNER, "PUT", "apisix/admin/global_rules/1", &json!({ "plugins": {} })).0, 201);
    let (_, document) = ask(&gateway, OPERATOR, "GET", "weir/v1/openapi.json", &Value::Null);
    for (path, method) in [
        ("/weir/v1/developers/{id}", "patch"),
        ("/weir/v1/self/applications/{id}/keys/{key_id}", "delete"),
        ("/weir/v1/audit", "get"),
    ] {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
    assert_eq!(document["paths"]["/weir/v1/self"]["get"]["security"], json!([{ "developer": [] }]));
}
