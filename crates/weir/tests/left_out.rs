//! Items that are left out open no access: requests of a route that is left out are answered 503, and no other route takes
//! them.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Authority, Gateway, Kind, Origin, RawClient, Start, each, weir};
use crate::tls::curl;

/// A file whose route for every path takes whatever is left to it.
fn rules(origin: &Origin, further: &str) -> String {
    format!(
        "upstreams:\n- {{id: o, nodes: {{\"{}\": 1}}}}\n{further}\n- {{id: all, uri: /*, upstream_id: o}}\n#END\n",
        origin.addr()
    )
}

fn skipping(rules: String) -> Gateway {
    Start::new(rules).argument("--invalid-items").argument("skip").start()
}

fn status(gateway: &Gateway, method: &str, host: &str, path: &str) -> u16 {
    let mut client = gateway.client();
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.response().status
}

#[test]
fn nobody_else_takes_the_requests_of_a_route_that_is_left_out() {
    let origin = Origin::hello();
    let cases = [
        (
            "a plugin that is not there",
            "routes:\n- {id: a, uri: /admin/*, upstream_id: o, plugins: {opa: {uri: \"http://x\"}}}",
        ),
        (
            "a plugin that is wrong",
            "routes:\n- {id: a, uri: /admin/*, upstream_id: o, plugins: {key-auth: {header: 5}}}",
        ),
        (
            "a plugin that cannot be built",
            "routes:\n- {id: a, uri: /admin/*, upstream_id: o, plugins: {traffic-split: {rules: [{weighted_upstreams: [{upstream_id: none}]}]}}}",
        ),
        ("an upstream that is not there", "routes:\n- {id: a, uri: /admin/*, upstream_id: none}"),
        ("an unknown field", "routes:\n- {id: a, uris: [/admin/x, /admin/*], upstream_id: o, strip_uri: true}"),
        ("a method that is not one", "routes:\n- {id: a, uri: /admin/*, methods: [GETT], upstream_id: o}"),
        (
            "a filter function that does not compile",
            "routes:\n- {id: a, uri: /admin/*, filter_func: \"function() nothing\", upstream_id: o}",
        ),
        ("conditions that are wrong", "routes:\n- {id: a, uri: /admin/*, vars: [[a, 5]], upstream_id: o}"),
        (
            "no id, and another with its id",
            "routes:\n- {uri: /admin/*, strip_uri: true, upstream_id: o}\n- {id: arr_1, uri: /b, upstream_id: o}",
        ),
        (
            "a service that is wrong",
            "services:\n- {id: s, plugins: {opa: {}}}\nroutes:\n- {id: a, uri: /admin/*, service_id: s, upstream_id: o}",
        ),
        (
            "a service with an upstream that is not there",
            "services:\n- {id: s, upstream_id: none}\nroutes:\n- {id: a, uri: /admin/*, service_id: s}",
        ),
        (
            "a plugin config that is wrong",
            "plugin_configs:\n- {id: p, plugins: {opa: {}}}\nroutes:\n- {id: a, uri: /admin/*, plugin_config_id: p, upstream_id: o}",
        ),
        (
            "the first of two for a path",
            "routes:\n- {id: a, uri: /admin/*, upstream_id: none}\n- {id: b, uri: /admin/*, upstream_id: o}",
        ),
    ];
    each(
        &cases,
        |(name, _)| (*name).to_owned(),
        |(name, further)| {
            let gateway = skipping(rules(&origin, further));
            assert_eq!(status(&gateway, "GET", "a.test", "/admin/x"), 503, "{name}");
            assert_eq!(status(&gateway, "GET", "a.test", "/other"), 200, "{name}");
            let log = gateway.logged("would take them otherwise");
            let other = if *name == "the first of two for a path" { "the route b" } else { "the route all" };
            assert!(log.contains("routes[0]: its requests are answered 503") && log.contains(other), "{name}: {log}");
            let page = RawClient::connect(gateway.status).get("/status").json();
            let invalid = page["invalid"].as_array().expect("names");
            assert!(invalid.contains(&json!("routes[0]")), "{name}: {page}");
            assert_eq!(gateway.metric("weir_config_left_out", &[]), invalid.len() as f64, "{name}");
        },
    );
}

#[test]
fn the_place_of_a_route_is_as_narrow_as_it_was() {
    let origin = Origin::hello();
    let further = "services:\n- {id: s, hosts: [s.test], plugins: {opa: {}}}\n- {id: t, hosts: [t.test], upstream_id: none}\nroutes:\n\
        - {uri: /*, host: a.test, plugins: {opa: {}}, upstream_id: o}\n\
        - {uri: /*, hosts: [\"*.b.test\"], methods: [POST], plugins: {opa: {}}, upstream_id: o}\n\
        - {uri: /*, service_id: s, upstream_id: o}\n- {uri: /*, service_id: t}\n\
        - {uri: /off, status: 0, upstream_id: none}\n- {upstream_id: o}";
    let gateway = skipping(rules(&origin, further));
    for (method, host, path, expected) in [
        ("GET", "a.test", "/x", 503),
        ("GET", "c.test", "/x", 200),
        ("POST", "x.b.test", "/x", 503),
        ("GET", "x.b.test", "/x", 200),
        ("GET", "s.test", "/x", 503),
        ("GET", "t.test", "/x", 503),
        ("GET", "c.test", "/off", 200),
    ] {
        assert_eq!(status(&gateway, method, host, path), expected, "{method} {host}{path}");
    }
}

#[test]
fn a_route_without_a_place_refuses_the_file() {
    let origin = Origin::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    for (route, taken) in [
        ("routes:\n- {id: a, uri: 5, upstream_id: o}", false),
        ("routes:\n- {id: a, uris: [/a, 5], upstream_id: o}", false),
        ("routes:\n- {id: a, uri: /a, uri: /b, upstream_id: o}", false),
        ("routes:\n- {id: a, uri: /a, hosts: [5], upstream_id: o}", false),
        ("routes:\n- {id: a, uri: /a, priority: high, upstream_id: o}", false),
        ("services:\n- {id: s, hosts: [5], upstream_id: o}\nroutes:\n- {id: a, uri: /a, service_id: s}", false),
        ("routes:\n- {id: a, upstream_id: o}", true),
        ("ssls:\n- {id: c, sni: 5, cert: x, key: y, client: {ca: z}}\nroutes:", false),
        ("ssls:\n- {id: c, snis: [a.test, 5], cert: x, key: y, client: {ca: z}}\nroutes:", false),
        ("ssls:\n- {id: c, sni: a.test, sni: b.test, cert: x, key: y, client: {ca: z}}\nroutes:", false),
        ("ssls:\n- {id: c, sni: a.test, cert: x, key: y, client: {ca: z}}\nroutes:", true),
        ("ssls:\n- {id: c, sni: 5, cert: x, key: y}\nroutes:", true),
        ("ssls:\n- {id: c, sni: a.test, cert: x, key: y}\nroutes:", true),
    ] {
        fs::write(&file, rules(&origin, route)).expect("written");
        let (code, out, err) = weir(&["check", &file.display().to_string(), "--invalid-items", "skip"]);
        assert_eq!(code == 0, taken, "{route}: {out}{err}");
        assert!(taken || err.contains("left out"), "{route}: {out}{err}");
    }
}

#[test]
fn nobody_else_takes_the_names_of_a_certificate_that_verifies_clients() {
    let (origin, authority) = (Origin::hello(), Authority::new());
    let good = authority.certificate(Kind::P256, &["a.test", "b.test"]);
    let any = json!({ "id": "any", "sni": "*.test", "cert": good.cert, "key": good.key });
    let with = |change: &dyn Fn(&mut Value)| {
        let mut item = any.clone();
        item["id"] = json!("mtls");
        item["sni"] = json!("a.test");
        item["client"] = json!({ "ca": authority.pem() });
        change(&mut item);
        item
    };
    let broken = [
        ("a certificate that cannot be read", with(&|item| item["cert"] = json!("x".repeat(200)))),
        ("an authority that cannot be read", with(&|item| item["client"]["ca"] = json!("x".repeat(200)))),
        ("an unknown field", with(&|item| item["clients"] = json!(5))),
        ("no key", with(&|item| drop(item.as_object_mut().expect("an object").remove("key")))),
    ];
    each(
        &broken,
        |(name, _)| (*name).to_owned(),
        |(name, item)| {
            let ssls = json!([any, item]);
            let gateway = Start::new(rules(&origin, &format!("ssls: {ssls}\nroutes:")))
                .argument("--invalid-items")
                .argument("skip")
                .https()
                .start();
            let [named, other] = ["a.test", "b.test"].map(|host| curl(&gateway, Some(&authority), (host, "/"), &[]));
            assert!(!named.good && named.err.contains("unrecognized name"), "{name}: {}{}", named.out, named.err);
            assert!(other.good, "{name}: {}{}", other.out, other.err);
            assert_eq!([status(&gateway, "GET", "a.test", "/"), status(&gateway, "GET", "b.test", "/")], [400, 200]);
        },
    );
}

/// A resource in a store is invalid not because of a change, but because of another version, or other settings.
#[test]
fn a_store_keeps_the_places_of_what_is_wrong_in_it() {
    let data = tempfile::tempdir().expect("a folder");
    let origin = Origin::hello();
    let nodes = json!({ origin.addr().to_string(): 1 });
    {
        let gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "upstreams/o", &json!({ "nodes": nodes }).to_string());
        let service = json!({"hosts": ["s.test"], "upstream_id": "o", "plugins": {"key-auth": {}}});
        gateway.must("PUT", "services/s", &service.to_string());
        gateway.must("PUT", "routes/s", &json!({"uri": "/*", "service_id": "s"}).to_string());
        let guarded = json!({"uri": "/admin/*", "upstream_id": "o", "plugins": {"key-auth": {}}});
        gateway.must("PUT", "routes/guarded", &guarded.to_string());
        gateway.must("PUT", "routes/all", &json!({"uri": "/*", "upstream_id": "o"}).to_string());
        assert_eq!(status(&gateway, "GET", "a.test", "/admin/x"), 401);
    }
    let gateway = Start::stored().data_dir(data.path()).settings(json!({"plugins": ["cors"]})).start();
    let held = |gateway: &Gateway| {
        for (host, path, expected) in [("a.test", "/admin/x", 503), ("s.test", "/x", 503), ("a.test", "/x", 200)] {
            assert_eq!(status(gateway, "GET", host, path), expected, "{host}{path}");
        }
    };
    held(&gateway);
    // Changes of others leave the places, and one that puts a route right takes it over.
    gateway.must("PUT", "routes/more", &json!({"uri": "/more", "upstream_id": "o"}).to_string());
    assert_eq!(status(&gateway, "GET", "a.test", "/more"), 200);
    held(&gateway);
    gateway.must("PUT", "routes/guarded", &json!({"uri": "/admin/*", "upstream_id": "o"}).to_string());
    assert_eq!(status(&gateway, "GET", "a.test", "/admin/x"), 200);
    gateway.must("DELETE", "routes/s", "");
    assert_eq!(status(&gateway, "GET", "s.test", "/x"), 200);
}
