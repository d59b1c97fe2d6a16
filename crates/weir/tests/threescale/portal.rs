//! The portal: a configuration that is fetched, kept, and outlives the portal.

use std::sync::Arc;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{Site, check, send};
use crate::harness::{Answer, LIMIT, Origin, Start, wait_until};

/// A portal that hands out these services.
fn portal(services: Value) -> (Origin, Arc<Mutex<Value>>) {
    let state = Arc::new(Mutex::new(services));
    let given = Arc::clone(&state);
    let origin = Origin::answering(move |request| {
        // token:
        if request.field("authorization") != Some("Basic dG9rZW46") {
            return Answer::status(403, "");
        }
        let services = given.lock().expect("services").clone();
        let Some(services) = services.as_array() else { return Answer::status(503, "") };
        let configs: Vec<Value> =
            services.iter().map(|service| json!({"proxy_config": {"content": service}})).collect();
        Answer::ok(&json!({ "proxy_configs": configs }).to_string())
    });
    (origin, state)
}

fn starting(site: &Site, portal: &Origin, loader: &str) -> Start {
    Start::stored()
        .admin_by_settings()
        .data_dir(&site.folder.path().join("data"))
        .variable("THREESCALE_PORTAL_ENDPOINT", &format!("http://token@{}", portal.node()))
        .variable("APICAST_CONFIGURATION_LOADER", loader)
        .variable("APICAST_CONFIGURATION_CACHE", if loader == "lazy" { "1" } else { "60" })
}

#[test]
fn the_configuration_of_a_portal_is_served_and_outlives_it() {
    let site = Site::new();
    let (portal, services) = portal(json!([site.service(json!({}))]));
    let gateway = starting(&site, &portal, "boot").start();
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    let asked = portal.requests();
    let target = "/admin/api/account/proxy_configs/production.json?version=latest&page=1&per_page=500";
    assert_eq!(asked[0].target, target);
    drop(gateway);
    // Broken, and then away: a start serves the last good one.
    for broken in [json!([{"backend_version": "9"}]), Value::Null] {
        *services.lock().expect("services") = broken;
        let gateway = starting(&site, &portal, "boot").start();
        assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
        gateway.logged("its last good configuration is served");
    }
}

#[test]
fn changes_of_a_portal_are_found_and_broken_ones_are_not_taken() {
    let site = Site::new();
    let (portal, services) = portal(Value::Null);
    let gateway = starting(&site, &portal, "lazy").start();
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 404);
    *services.lock().expect("services") = json!([site.service(json!({}))]);
    wait_until("the first configuration", LIMIT, || {
        (send(&gateway, "GET /?user_key=good").status == 200).then_some(())
    });
    *services.lock().expect("services") = json!([{"id": 1, "backend_version": "9"}]);
    gateway.logged("its configuration has errors");
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    *services.lock().expect("services") = json!([site.service(json!({"hosts": ["b.test"]}))]);
    wait_until("the change", LIMIT, || {
        (send(&gateway, "GET /?user_key=good\nHost: b.test").status == 200).then_some(())
    });
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 404);
}

#[test]
fn a_gateway_does_not_boot_without_a_configuration() {
    let site = Site::new();
    let (portal, _) = portal(Value::Null);
    let folder = site.folder.path().join("other");
    let endpoint = format!("http://token@{}", portal.node());
    let variables =
        [("THREESCALE_PORTAL_ENDPOINT", endpoint.as_str()), ("WEIR_STORE_DATA_DIR", folder.to_str().expect("text"))];
    let (code, _, errors) = check(&variables);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("has no configuration (THREESCALE_PORTAL_ENDPOINT): status 503"), "{errors}");
    assert!(!errors.contains("token@"), "{errors}");
    let (code, _, errors) = check(&[("THREESCALE_PORTAL_ENDPOINT", "portal.test")]);
    assert!(code == Some(2) && errors.contains("expected https://ACCESS-TOKEN@HOST"), "{errors}");
}
