//! Order of creation: what a resource refers to may come after it. Until it is there requests are refused, and then they
//! are served without another write of the resource.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Certificate, EtcdCluster, Gateway, Kind, LIMIT, Origin, Reload, Start, wait_until,
};
use crate::tls::{curl, https, s_client};
use crate::{etcd, extensions};

fn mocking(answer: &str) -> Value {
    json!({ "response_example": answer, "content_type": "text/plain" })
}

fn status(gateway: &Gateway, path: &str, fields: &str) -> u16 {
    gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).status
}

fn await_status(gateway: &Gateway, path: &str, fields: &str, wanted: u16) {
    wait_until(&format!("{path} {fields:?} to be answered {wanted}"), LIMIT, || {
        (status(gateway, path, fields) == wanted).then_some(())
    });
}

/// The warnings in the answer to a change over the extended API.
fn told(gateway: &Gateway, path: &str, body: &Value) -> String {
    let (status, answer) = extensions::ask(gateway, "PUT", &format!("resources/{path}"), &body.to_string());
    assert!(status < 300, "{path}: {status} {answer}");
    answer["diagnostics"].to_string()
}

/// A route for each authentication plugin, whose anonymous consumer is `who`.
fn anonymous_routes(who: &str) -> Vec<Value> {
    let plugins = ["key-auth", "basic-auth", "jwt-auth", "hmac-auth"];
    let route = |plugin: &&str| {
        let plugins = json!({ *plugin: { "anonymous_consumer": who }, "mocking": mocking("$consumer_name") });
        json!({ "id": plugin, "uri": format!("/{plugin}"), "plugins": plugins })
    };
    plugins.iter().map(route).collect()
}

fn await_anonymous(gateway: &Gateway, wanted: u16) {
    for route in anonymous_routes("") {
        await_status(gateway, route["uri"].as_str().expect("a path"), "", wanted);
    }
}

#[test]
fn an_anonymous_consumer_may_come_after_whoever_names_it() {
    let routes = anonymous_routes("late");
    let late = json!({ "username": "late" });
    let warning = "there is no consumer 'late'; until it is there, requests without credentials are answered 401";

    // A rules file.
    let file = |consumers: Value| json!({ "routes": routes, "consumers": consumers });
    let gateway = Start::new(file(json!([]))).start();
    await_anonymous(&gateway, 401);
    let log = gateway.logged("the gateway is up");
    assert_eq!(log.matches(warning).count(), 4, "{log}");
    assert_eq!(gateway.reload(file(json!([late]))), Reload::Applied);
    await_anonymous(&gateway, 200);
    assert_eq!(gateway.get("/key-auth").text(), "late");
    assert_eq!(gateway.reload(file(json!([]))), Reload::Applied);
    await_anonymous(&gateway, 401);

    // The Admin API.
    let gateway = Start::stored().start();
    for route in &routes {
        let id = route["id"].as_str().expect("an id");
        let said = told(&gateway, &format!("routes/{id}"), route);
        assert!(
            said.contains(warning) && said.contains(&format!("routes/{id}.plugins.{id}.anonymous_consumer")),
            "{said}"
        );
    }
    await_anonymous(&gateway, 401);
    gateway.must("PUT", "consumers/late", &late.to_string());
    await_anonymous(&gateway, 200);
    gateway.must("DELETE", "consumers/late", "");
    await_anonymous(&gateway, 401);
    gateway.must("PUT", "consumers/other", &json!({ "username": "other" }).to_string());
    await_anonymous(&gateway, 401);
    gateway.must("PUT", "consumers/late", &late.to_string());
    await_anonymous(&gateway, 200);

    // etcd, written by somebody else.
    let cluster = EtcdCluster::start(1);
    let gateway = etcd::start("data_plane", &cluster.urls()).start();
    for route in &routes {
        cluster.put(&format!("routes/{}", route["id"].as_str().expect("an id")), route);
    }
    await_anonymous(&gateway, 401);
    cluster.put("consumers/late", &late);
    await_anonymous(&gateway, 200);
}

/// A Vault that knows nothing until it has a status of 200.
fn vault() -> (Origin, Arc<AtomicU16>, Arc<Mutex<Value>>) {
    let (status, data) = (Arc::new(AtomicU16::new(404)), Arc::new(Mutex::new(json!({ "key": "k1" }))));
    let (told, held) = (Arc::clone(&status), Arc::clone(&data));
    let origin = Origin::answering(move |_| match told.load(Ordering::Relaxed) {
        200 => Answer::ok(&json!({ "data": *held.lock().unwrap() }).to_string()),
        status => Answer::status(status, r#"{"errors":[]}"#),
    });
    (origin, status, data)
}

/// Resources that refer to one secret, in all kinds that plugins stand in.
fn waiting(reference: &str) -> Vec<(&'static str, Value)> {
    let open = mocking("open");
    let secret = mocking(reference);
    vec![
        ("services/s", json!({ "plugins": { "mocking": secret } })),
        ("plugin_configs/p", json!({ "plugins": { "mocking": secret } })),
        ("consumer_groups/g", json!({ "plugins": { "mocking": secret } })),
        ("routes/route", json!({ "uri": "/route", "plugins": { "mocking": secret } })),
        ("routes/service", json!({ "uri": "/service", "service_id": "s" })),
        ("routes/config", json!({ "uri": "/config", "plugin_config_id": "p", "plugins": {} })),
        ("routes/who", json!({ "uri": "/who", "plugins": { "key-auth": {}, "mocking": open } })),
        ("routes/open", json!({ "uri": "/open", "plugins": { "mocking": open } })),
        ("consumers/jack", json!({ "username": "jack", "plugins": { "key-auth": { "key": reference } } })),
        ("consumers/own", json!({ "username": "own", "plugins": { "key-auth": { "key": "own" }, "mocking": secret } })),
        (
            "consumers/member",
            json!({ "username": "member", "group_id": "g", "plugins": { "key-auth": { "key": "member" } } }),
        ),
    ]
}

/// The resources as a rules file.
fn as_file(resources: &[(&str, Value)], more: &Value) -> Value {
    let mut file = more.clone();
    for (key, value) in resources {
        let (section, id) = key.split_once('/').expect("a section and an id");
        let mut item = value.clone();
        if section != "consumers" {
            item["id"] = id.into();
        }
        match &mut file[section] {
            Value::Array(items) => items.push(item),
            section => *section = json!([item]),
        }
    }
    file
}

/// A request, and its status with the secret and without it.
const REQUESTS: [(&str, &str, u16, u16); 9] = [
    ("/route", "", 200, 503),
    ("/service", "", 200, 503),
    ("/config", "", 200, 503),
    ("/open", "", 200, 200),
    ("/who", "", 401, 401),
    ("/who", "apikey: k1\r\n", 200, 401),
    ("/who", "apikey: $secret://vault/1/jack/key\r\n", 401, 401),
    ("/who", "apikey: own\r\n", 200, 503),
    ("/who", "apikey: member\r\n", 200, 503),
];

fn await_all(gateway: &Gateway, is_there: bool) {
    for (path, fields, with, without) in REQUESTS {
        await_status(gateway, path, fields, if is_there { with } else { without });
    }
}

fn manager(vault: &Origin) -> Value {
    json!({ "uri": format!("http://{}", vault.node()), "prefix": "kv", "token": "t" })
}

const REFERENCE: &str = "$secret://vault/1/jack/key";

#[test]
fn a_rules_file_waits_for_its_secrets() {
    let (vault, known, data) = vault();
    let mut of_vault = manager(&vault);
    of_vault["id"] = "vault/1".into();
    let resources = waiting(REFERENCE);
    let with = as_file(&resources, &json!({ "secrets": [of_vault] }));
    let gateway = Start::new(as_file(&resources, &json!({}))).settings("secrets: {ttl: 200ms}").start();
    await_all(&gateway, false);
    let log = gateway.logged("the gateway is up");
    for part in [
        "there is no valid item \"vault/1\" in `secrets`; until it is there, requests for which mocking runs are answered 503",
        "until it is there, nobody is let in by this configuration of key-auth",
        "until it is there, the requests of this consumer are answered 503",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    // With the manager, and still without the secret.
    assert_eq!(gateway.reload(&with), Reload::Applied);
    await_all(&gateway, false);
    gateway.logged("there is none (404)");
    known.store(200, Ordering::Relaxed);
    await_all(&gateway, true);
    // The earlier version serves on, also after other changes.
    known.store(404, Ordering::Relaxed);
    let mut changed = with;
    changed["routes"]
        .as_array_mut()
        .expect("routes")
        .push(json!({ "uri": "/new", "plugins": { "mocking": mocking("new") } }));
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("a warning", LIMIT, || gateway.stderr().contains("its last value serves on").then_some(()));
    assert_eq!(gateway.reload(&changed), Reload::Applied);
    await_all(&gateway, true);
    assert_eq!(status(&gateway, "/new", ""), 200);
    // And the next value is taken when there is one.
    *data.lock().unwrap() = json!({ "key": "k2" });
    known.store(200, Ordering::Relaxed);
    await_status(&gateway, "/who", "apikey: k2\r\n", 200);
    assert_eq!(status(&gateway, "/who", "apikey: k1\r\n"), 401);
}

#[test]
fn resources_of_the_admin_api_wait_for_their_secrets() {
    let (vault, known, _) = vault();
    let settings = format!("secrets: {{ttl: 200ms, hosts: ['{}']}}", vault.node());
    let gateway = Start::stored().settings(settings).start();
    for (key, value) in waiting(REFERENCE) {
        let said = told(&gateway, key, &value);
        let waits = value.to_string().contains(REFERENCE);
        assert_eq!(said.contains("there is no valid item \\\"vault/1\\\" in `secrets`"), waits, "{key}: {said}");
    }
    await_all(&gateway, false);
    let said = told(&gateway, "secrets/vault/1", &manager(&vault));
    assert!(
        said.contains("routes/route.plugins.mocking.response_example") && said.contains("there is none (404)"),
        "{said}"
    );
    await_all(&gateway, false);
    known.store(200, Ordering::Relaxed);
    await_all(&gateway, true);
    // A resource that is changed meanwhile keeps its value.
    known.store(503, Ordering::Relaxed);
    gateway.must(
        "PUT",
        "routes/route",
        &json!({ "uri": "/rou*", "plugins": { "mocking": mocking(REFERENCE) } }).to_string(),
    );
    await_all(&gateway, true);
    assert_eq!(gateway.get("/route").text(), "k1");
    // A manager that goes takes nothing away that serves, and says so.
    gateway.must("DELETE", "secrets/vault/1", "");
    wait_until("a warning", LIMIT, || gateway.stderr().contains("its last value serves on").then_some(()));
    await_all(&gateway, true);
    // A global rule without its secret closes everything, and says so.
    let rule =
        |reference: &str| json!({ "plugins": { "response-rewrite": { "headers": { "set": { "X-A": reference } } } } });
    let said = told(&gateway, "global_rules/1", &rule("$secret://vault/2/none"));
    assert!(said.contains("until it is there, all requests are answered 503"), "{said}");
    for path in ["/open", "/who", "/nothing"] {
        assert_eq!(status(&gateway, path, ""), 503, "{path}");
    }
    gateway.must("DELETE", "global_rules/1", "");
    await_all(&gateway, true);
    // The order of creation excuses nothing that the settings forbid, and no reference that is none.
    for (reference, reason) in [("$env://HOME", "secrets.environment"), ("$secret://aws/1/a", "not supported yet")] {
        let (code, answer) = gateway.ask("PUT", "global_rules/1", &rule(reference).to_string());
        assert!(code == 400 && answer.to_string().contains(reason), "{reference}: {code} {answer}");
    }
}

#[test]
fn resources_of_etcd_wait_for_their_secrets() {
    let (vault, known, _) = vault();
    let cluster = EtcdCluster::start(1);
    for (key, value) in waiting(REFERENCE) {
        cluster.put(key, value);
    }
    let secrets = format!("secrets: {{ttl: 200ms, hosts: ['{}']}}", vault.node());
    let settings = format!("{}\n{secrets}", etcd::settings("data_plane", &cluster.urls(), ""));
    let gateway = Start::stored().settings(settings).admin_by_settings().start();
    await_all(&gateway, false);
    gateway.logged("routes/route.plugins.mocking.response_example: no secret for");
    cluster.put("secrets/vault/1", manager(&vault));
    gateway.logged("there is none (404)");
    await_all(&gateway, false);
    known.store(200, Ordering::Relaxed);
    await_all(&gateway, true);
}

#[test]
fn settings_of_a_plugin_wait_as_well() {
    let gateway = Start::stored().variable("GATEWAY_A", "{}").start();
    gateway.must("PUT", "routes/1", &json!({ "uri": "/*", "plugins": { "mocking": mocking("x") } }).to_string());
    assert_eq!(status(&gateway, "/", ""), 200);
    let said = told(&gateway, "plugin_metadata/mocking", &json!({ "a": "$env://GATEWAY_NONE" }));
    assert!(said.contains("requests for which mocking runs are answered 503"), "{said}");
    assert_eq!(status(&gateway, "/", ""), 503);
    told(&gateway, "plugin_metadata/mocking", &json!({ "a": "$env://GATEWAY_A" }));
    assert_eq!(status(&gateway, "/", ""), 200);
}

fn write_pair(folder: &Path, pair: &Certificate) {
    fs::write(folder.join("key"), &pair.key).expect("write");
    fs::write(folder.join("cert"), &pair.cert).expect("write");
}

/// Handshakes for the names of a certificate that is not there are refused, while others serve; no certificate for more
/// names takes its place, and what it asks of clients is asked without TLS too.
#[test]
fn certificates_may_come_later() {
    let authority = Authority::new();
    let made = |name: &str| authority.certificate(Kind::P256, &[name]);
    let (late, other) = (made("late.test"), made("*.test"));
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!("secrets: {{ttl: 200ms, folders: [{}]}}", folder.path().display());
    let gateway = Start::stored().https().settings(settings).start();
    gateway.must("PUT", "routes/1", &json!({ "uri": "/*", "plugins": { "mocking": mocking("hello") } }).to_string());
    gateway.must("PUT", "secrets/file/1", &json!({ "directory": folder.path() }).to_string());
    gateway.must("PUT", "ssls/other", &json!({ "snis": ["*.test"], "cert": other.cert, "key": other.key }).to_string());
    let ca = fs::read_to_string(authority.file()).expect("a certificate");
    let references = json!({ "snis": ["late.test"], "cert": "$secret://file/1/cert", "key": "$secret://file/1/key" });
    let mut asking = references.clone();
    asking["client"] = json!({ "ca": ca });
    let said = told(&gateway, "ssls/late", &asking);
    assert!(said.contains("ssls/late.cert") && said.contains("TLS handshakes for its names are refused"), "{said}");
    let refused = |name: &str| s_client(https(&gateway), &["-servername", name]).err.contains("unrecognized name");
    assert!(refused("late.test") && !refused("other.test"));
    let plain = |host: &str| gateway.client().request(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).status;
    assert_eq!((plain("late.test"), plain("other.test")), (400, 200));
    told(&gateway, "ssls/late", &references);
    assert!(refused("late.test") && !refused("other.test"));
    write_pair(folder.path(), &late);
    wait_until("the certificate", LIMIT, || {
        (curl(&gateway, Some(&authority), ("late.test", "/"), &[]).out == "hello").then_some(())
    });
    // A text that is no certificate is reported as such.
    fs::write(folder.path().join("odd"), "rubbish").expect("write");
    let odd = json!({ "snis": ["odd.test"], "cert": "$secret://file/1/odd", "key": "$secret://file/1/key" });
    let (code, answer) = gateway.ask("PUT", "ssls/odd", &odd.to_string());
    assert!(code == 400 && answer.to_string().contains("is no PEM: expected -----BEGIN"), "{code} {answer}");
}

/// An upstream that has to show a certificate answers 503 without it.
#[test]
fn certificates_for_nodes_may_come_later() {
    let authority = Authority::new();
    let pair = authority.certificate(Kind::P256, &["gateway"]);
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let nginx = crate::harness::Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
         location / {{ return 200 \"$ssl_client_s_dn\"; }}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display(),
    ));
    let folder = tempfile::tempdir().expect("a folder");
    let settings = format!("secrets: {{ttl: 200ms, folders: [{}]}}", folder.path().display());
    let gateway = Start::stored().settings(settings).start();
    gateway.must("PUT", "secrets/file/1", &json!({ "directory": folder.path() }).to_string());
    let shown = json!({ "type": "client", "cert": "$secret://file/1/cert", "key": "$secret://file/1/key" });
    let said = told(&gateway, "ssls/shown", &shown);
    assert!(said.contains("requests to upstreams that it is shown to are answered 503"), "{said}");
    let upstream = |tls: Value| json!({ "scheme": "https", "nodes": { nginx.node(): 1 }, "tls": tls });
    let own = upstream(json!({ "client_cert": "$secret://file/1/cert", "client_key": "$secret://file/1/key" }));
    let said = told(&gateway, "upstreams/own", &own);
    assert!(said.contains("requests to this upstream are answered 503"), "{said}");
    gateway.must("PUT", "upstreams/by_id", &upstream(json!({ "client_cert_id": "shown" })).to_string());
    for path in ["own", "by_id"] {
        gateway.must(
            "PUT",
            &format!("routes/{path}"),
            &json!({ "uri": format!("/{path}"), "upstream_id": path }).to_string(),
        );
        assert_eq!(status(&gateway, &format!("/{path}"), ""), 503, "{path}");
    }
    write_pair(folder.path(), &pair);
    for path in ["/own", "/by_id"] {
        await_status(&gateway, path, "", 200);
        assert_eq!(gateway.get(path).text(), "CN=gateway", "{path}");
    }
}
