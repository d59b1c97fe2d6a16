//! API-driven standalone mode: the configuration comes as a whole, and lives in memory.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Gateway, LIMIT, Origin, Response, Start, wait_until};
use crate::listings::{self, contains};

const SETTINGS: &str = "deployment: {config_provider: yaml}";

/// The same, as APISIX's own settings say it.
const OF_APISIX: &str = "\
apisix: {enable_admin: true}
deployment: {role: traditional, role_traditional: {config_provider: yaml}}
";

fn put(gateway: &Gateway, digest: &str, body: &str) -> Response {
    gateway.send_to_admin("PUT", "configs", &format!("X-API-KEY: {ADMIN_KEY}\r\nX-Digest: {digest}\r\n"), body)
}

fn config(path: &str, origin: &Origin) -> Value {
    json!({
        "routes": [{ "id": "r", "uri": path, "upstream_id": "u", "modifiedIndex": 7 }],
        "upstreams": [{ "id": "u", "nodes": { origin.node(): 1 } }],
    })
}

#[test]
fn what_is_put_serves() {
    let origin = Origin::hello();
    for settings in [SETTINGS, OF_APISIX] {
        let gateway = Start::standalone().settings(settings).workers(2).control().start();
        let empty = gateway.must("GET", "configs", "");
        assert!(contains(&empty, &json!({ "routes_conf_version": 0, "stream_routes_conf_version": 0 })), "{empty}");
        assert_eq!(gateway.get("/a").status, 404);

        let answer = put(&gateway, "d1", &config("/a", &origin).to_string());
        assert_eq!((answer.status, answer.text().as_str()), (202, ""));
        assert_eq!(answer.field("x-digest"), Some("d1"));
        assert!(answer.field("x-last-modified").is_some_and(|time| time.parse::<u64>().is_ok()));
        assert_eq!(gateway.get("/a").status, 200);
        assert_eq!(put(&gateway, "d1", &config("/b", &origin).to_string()).status, 204);
        assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 404));

        // An invalid configuration changes neither the one in force nor the versions.
        let mut dangling = config("/b", &origin);
        dangling.as_object_mut().expect("an object").remove("upstreams");
        assert_eq!(put(&gateway, "d2", &dangling.to_string()).status, 400);
        assert_eq!(put(&gateway, "d2", "{\"routes\":[{\"uri\":1}]}").status, 400);
        assert_eq!(gateway.get("/a").status, 200);

        let mut next = config("/b", &origin);
        next["routes_conf_version"] = 1.into();
        assert_eq!(put(&gateway, "d3", &next.to_string()).status, 202);
        assert_eq!(gateway.get("/a").status, 200, "the version of the routes is that of before");
        next["routes_conf_version"] = 2.into();
        assert_eq!(put(&gateway, "d4", &next.to_string()).status, 202);
        assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (404, 200));
        let told = gateway.must("GET", "configs", "");
        let expected = json!({
            "routes": [{ "id": "r", "uri": "/b", "modifiedIndex": 7 }],
            "routes_conf_version": 2, "upstreams_conf_version": 3,
        });
        assert!(contains(&told, &expected), "{told}");

        for path in ["routes", "routes/r", "upstreams/u"] {
            assert_eq!(gateway.ask("GET", path, "").0, 404, "{path}");
        }
        assert_eq!(gateway.ask("PUT", "routes/x", r#"{"uri":"/x"}"#).0, 404);
        assert_eq!(gateway.must("POST", "configs/validate", &config("/c", &origin).to_string()), json!({}));
    }
}

#[test]
fn no_other_process_takes_over_without_the_configuration() {
    let origin = Origin::hello();
    let gateway = Start::standalone().settings(SETTINGS).start();
    assert_eq!(put(&gateway, "d1", &config("/a", &origin).to_string()).status, 202);
    gateway.signal(Signal::USR2);
    wait_until("the log to tell of it", LIMIT, || {
        gateway.stderr().contains("SIGUSR2: the configuration").then_some(())
    });
    assert_eq!(gateway.get("/a").status, 200);
}

#[test]
fn the_listings_of_the_document_do_what_they_say() {
    let gateway = Start::standalone().settings(SETTINGS).start();
    let addr = format!("http://{}/apisix/admin", gateway.admin.expect("an Admin API"));
    assert_eq!(listings::run("docs/standalone.md", &[("admin", &addr), ("key", ADMIN_KEY)]), 3);
}
