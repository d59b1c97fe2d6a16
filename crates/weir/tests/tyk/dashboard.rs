//! Questions of the dashboard to Tyk's family, in the words of Tyk.

use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Gateway, RawClient, Redis, Start};

use super::{Site, keyed, keyless, right, send};

const VIEWER: &str = "the-viewer-key";
const OPERATOR: &str = "the-operator-key";

fn ask(gateway: &Gateway, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head =
        format!("{method} /weir/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {key}\r\nConnection: close\r\n");
    let head = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let answer = RawClient::connect(gateway.admin.expect("an Admin API")).request(head);
    (answer.status, answer.json())
}

#[test]
fn the_dashboard_speaks_of_apis_policies_and_keys() {
    let site = Site::new();
    let mut at = keyed("at");
    at["jwt_source"] = "c2VjcmV0".into();
    site.api("at", at);
    let settings = format!(
        "listen: {{admin: '127.0.0.1:0'}}\nviewer: {{key: {VIEWER}}}\nadmin: {{keys: [{{name: olga, key: {OPERATOR}, role: operator}}]}}\n"
    );
    let gateway = Start::at(&site.conf(json!({}))).settings(settings).variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let none = Value::Null;
    let (status, about) = ask(&gateway, VIEWER, "GET", "about", &none);
    assert_eq!((status, &about["family"]), (200, &json!("tyk")), "{about}");
    let source = |key: &str| ask(&gateway, key, "GET", "tyk/apis/at", &none).1["jwt_source"].clone();
    assert_eq!((source(ADMIN_KEY), source(VIEWER), source(OPERATOR)), (json!("c2VjcmV0"), json!("***"), json!("***")));
    // An API is made, and answers after the reload.
    let open = keyless("open", "/open/", "/").to_string().replace("ORIGIN", &site.origin.node());
    let open: Value = serde_json::from_str(&open).expect("JSON");
    for (key, expected) in [(VIEWER, 401), (OPERATOR, 403), (ADMIN_KEY, 200)] {
        assert_eq!(ask(&gateway, key, "POST", "tyk/apis", &open).0, expected, "{key}");
    }
    assert_eq!(send(&gateway, "GET /open/x").status, 404);
    assert_eq!(ask(&gateway, OPERATOR, "GET", "tyk/reload?block=true", &none).0, 403);
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "tyk/reload?block=true", &none).1["status"], "ok");
    assert_eq!(send(&gateway, "GET /open/x").status, 200);
    // A key is made by an operator, listed, shown by its hash, and taken back.
    let (status, made) = ask(&gateway, OPERATOR, "POST", "tyk/keys/create", &right("at", json!({ "alias": "phone" })));
    assert_eq!(status, 200, "{made}");
    let (key, hash) = (made["key"].as_str().expect("a key"), made["key_hash"].as_str().expect("its hash"));
    let call = || send(&gateway, &format!("GET /at/x\nAuthorization: {key}")).status;
    assert_eq!(call(), 200);
    assert_eq!(ask(&gateway, OPERATOR, "GET", "tyk/keys", &none).1["keys"], json!([hash]));
    assert_eq!(ask(&gateway, VIEWER, "GET", "tyk/keys", &none).0, 403, "names of keys may be the keys");
    assert_eq!(ask(&gateway, OPERATOR, "GET", &format!("tyk/keys/{hash}?hashed=true"), &none).1["alias"], "phone");
    assert_eq!(ask(&gateway, OPERATOR, "DELETE", &format!("tyk/keys/{hash}?hashed=true"), &none).0, 200);
    assert_eq!(call(), 403);
    let policy = json!({ "id": "gold", "org_id": "o1", "rate": 5, "per": 1, "quota_max": -1, "access_rights": {} });
    assert_eq!(ask(&gateway, ADMIN_KEY, "POST", "tyk/policies", &policy).0, 200);
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "tyk/reload?block=true", &none).0, 200);
    assert_eq!(ask(&gateway, VIEWER, "GET", "tyk/policies/gold", &none).1["rate"], 5);
    for (path, expected) in [("tyk/apis/missing", 404), ("tyk/certs", 404), ("tyk/org/keys", 404)] {
        assert_eq!(ask(&gateway, ADMIN_KEY, "GET", path, &none).0, expected, "{path}");
    }
    // On a gateway that runs another family.
    let other = Start::stored().start();
    let (status, told) = ask(&other, ADMIN_KEY, "GET", "tyk/apis", &none);
    assert!(status == 404 && told["error_msg"].as_str().is_some_and(|text| text.contains("tyk.conf")), "{told}");
}

#[test]
fn keys_in_redis_are_the_dashboards_too() {
    let (site, redis) = (Site::new(), Redis::start());
    site.api("at", keyed("at"));
    let settings = "listen: {admin: '127.0.0.1:0'}\n";
    let conf = json!({"storage": {"type": "redis", "host": "127.0.0.1", "port": redis.port}, "enable_hashed_keys_listing": true});
    let gateway = Start::at(&site.conf(conf)).settings(settings).variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let none = Value::Null;
    let (status, made) = ask(&gateway, ADMIN_KEY, "POST", "tyk/keys/create", &right("at", json!({ "alias": "phone" })));
    assert_eq!(status, 200, "{made}");
    let (key, hash) = (made["key"].as_str().expect("a key"), made["key_hash"].as_str().expect("its hash"));
    assert_eq!(redis.cli(&["EXISTS", &format!("apikey-{hash}")]), "1");
    let call = || send(&gateway, &format!("GET /at/x\nAuthorization: {key}")).status;
    assert_eq!(call(), 200);
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "tyk/keys", &none).1["keys"], json!([hash]));
    // Several at one time, on the one thread that asks Redis.
    let shown = || ask(&gateway, ADMIN_KEY, "GET", &format!("tyk/keys/{hash}?hashed=true"), &none).1["alias"].clone();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(shown)).collect();
        all.into_iter().for_each(|one| assert_eq!(one.join().expect("an answer"), "phone"));
    });
    // A reload builds another way to Redis.
    assert_eq!(ask(&gateway, ADMIN_KEY, "GET", "tyk/reload?block=true", &none).1["status"], "ok");
    assert_eq!(ask(&gateway, ADMIN_KEY, "DELETE", &format!("tyk/keys/{hash}?hashed=true"), &none).0, 200);
    assert_eq!(redis.cli(&["EXISTS", &format!("apikey-{hash}")]), "0");
    drop(redis);
    let (status, told) = ask(&gateway, ADMIN_KEY, "GET", "tyk/keys", &none);
    assert!(status >= 500 && told.to_string().contains("Redis"), "{status} {told}");
}
