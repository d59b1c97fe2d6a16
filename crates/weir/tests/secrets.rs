//! Secrets that stand with a secret manager: Vault (played by an origin that answers as its API is documented) and a
//! folder.

use std::fs;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::harness::{
    Answer, Authority, Gateway, Kind, LIMIT, Nginx, Origin, Reload, Request, Start, wait_until, weir,
};

/// A Vault with one secret, whose value and status can be set.
struct Vault {
    origin: Origin,
    key: Arc<Mutex<String>>,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn start() -> Self {
        let key = Arc::new(Mutex::new("k1".to_owned()));
        let (status, asked) = (Arc::new(AtomicU16::new(200)), Arc::<AtomicUsize>::default());
        let known = (Arc::clone(&key), Arc::clone(&status), Arc::clone(&asked));
        let origin = Origin::answering(move |request| {
            known.2.fetch_add(1, Ordering::Relaxed);
            answer(request, &known.0.lock().unwrap(), known.1.load(Ordering::Relaxed))
        });
        Self { origin, key, status, asked }
    }

    fn set(&self, key: &str) {
        key.clone_into(&mut self.key.lock().unwrap());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn answer(request: &Request, key: &str, status: u16) -> Answer {
    let field = |name: &str| request.field(name).unwrap_or_default();
    if field("X-Vault-Token") != "hvs.t0ken" {
        return Answer::status(403, r#"{"errors":["permission denied"]}"#);
    }
    if status != 200 {
        return Answer::status(status, r#"{"errors":["Vault is sealed"]}"#);
    }
    let found = match (request.target.as_str(), field("X-Vault-Namespace")) {
        ("/v1/kv/apisix/jack", "") => json!({ "data": { "key": key, "number": 7 } }),
        ("/v1/kv2/data/apisix/jack", "") => {
            json!({ "data": { "data": { "key": key }, "metadata": { "version": 2 } } })
        }
        ("/v1/kv/apisix/jack", "team") => json!({ "data": { "key": "of the team" } }),
        ("/v1/kv/apisix/odd", _) => return Answer::ok("<html>"),
        ("/v1/kv/apisix/moved", _) => return Answer::status(307, ""),
        _ => return Answer::status(404, r#"{"errors":[]}"#),
    };
    Answer::ok(&found.to_string())
}

/// A route for clients with the key that a reference resolves to.
fn rules(vault: &Origin, reference: &str) -> String {
    format!(
        r#"
secrets:
  - {{id: vault/1, uri: "http://{node}", prefix: kv/apisix, token: $env://VAULT_TOKEN}}
  - {{id: vault/2, uri: "http://{node}/", prefix: kv2/data/apisix, token: hvs.t0ken}}
  - {{id: vault/team, uri: "http://{node}", prefix: /kv/apisix/, token: hvs.t0ken, namespace: team}}
  - {{id: vault/refused, uri: "http://{node}", prefix: kv/apisix, token: stolen}}
  - {{id: vault/gone, uri: "http://127.0.0.1:1", prefix: kv/apisix, token: hvs.t0ken}}
  - {{id: file/1, directory: /FOLDER}}
consumers:
  - {{username: jack, plugins: {{key-auth: {{key: "{reference}"}}}}}}
routes:
  - {{uri: /who, plugins: {{key-auth: {{}}, mocking: {{response_example: "$consumer_name"}}}}}}
"#,
        node = vault.node()
    )
}

fn start(vault: &Vault, reference: &str, settings: &str) -> Gateway {
    Start::new(rules(&vault.origin, reference)).settings(settings).variable("VAULT_TOKEN", "hvs.t0ken").start()
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.client().request(format!("GET /who HTTP/1.1\r\nHost: a\r\napikey: {key}\r\n\r\n")).status
}

#[test]
fn a_secret_is_what_vault_says() {
    let vault = Vault::start();
    let gateway = start(&vault, "$secret://vault/1/jack/key", "");
    assert_eq!((status(&gateway, "k1"), status(&gateway, "$secret://vault/1/jack/key")), (200, 401));
    for (reference, key) in [
        ("$secret://vault/2/jack/key", "k1"),
        ("$secret://vault/team/jack/key", "of the team"),
        ("$secret://vault/1/jack/number", "7"),
    ] {
        assert_eq!(gateway.reload(rules(&vault.origin, reference)), Reload::Applied, "{}", gateway.stderr());
        assert_eq!((status(&gateway, key), status(&gateway, "other")), (200, 401), "{reference}");
    }
    let before = vault.asked();
    let again = rules(&vault.origin, "$secret://vault/1/jack/number").replace("uri: /who", "uri: /who*");
    assert_eq!(gateway.reload(again), Reload::Applied);
    assert_eq!(vault.asked(), before, "what is young enough is not asked for again");
    let log = gateway.stderr();
    assert!(!log.contains("t0ken") && !log.contains("k1"), "{log}");
}

#[test]
fn what_can_never_be_had_refuses_the_change_and_what_is_not_there_is_waited_for() {
    let vault = Vault::start();
    let gateway = start(&vault, "$secret://vault/1/jack/key", "{}");
    let refused = [
        ("$secret://vault/1/../sys/key", "is no path in Vault"),
        ("$secret://vault/1/key", "expected a path and a key"),
        ("$secret://file/1/../apisix.yaml", "leads out of the folder"),
    ];
    for (reference, expected) in refused {
        assert_eq!(gateway.reload(rules(&vault.origin, reference)), Reload::Rejected, "{reference}");
        let log = gateway.stderr();
        assert!(log.contains(expected), "{reference}: {expected}\n{log}");
        assert_eq!(status(&gateway, "k1"), 200, "what was live stays live");
    }
    let waited_for = [
        ("$secret://vault/1/jack/none", "the secret has no key \"none\""),
        ("$secret://vault/1/nobody/key", "Vault says of \"kv/apisix/nobody\": there is none (404)"),
        ("$secret://vault/refused/jack/key", "permission denied (403)"),
        ("$secret://vault/gone/jack/key", "Vault at http://127.0.0.1:1: "),
        ("$secret://vault/1/odd/key", "it answers with what is not JSON"),
        ("$secret://vault/1/moved/key", "it answers with a redirect (307)"),
    ];
    for (reference, expected) in waited_for {
        assert_eq!(gateway.reload(rules(&vault.origin, reference)), Reload::Applied, "{reference}");
        let log = gateway.stderr();
        assert!(log.contains(expected), "{reference}: {expected}\n{log}");
        for key in ["k1", reference] {
            assert_eq!(status(&gateway, key), 401, "{reference}: nobody is let in by {key}");
        }
    }
    let log = gateway.stderr();
    assert!(!log.contains("t0ken") && !log.contains("stolen"), "{log}");
}

#[test]
fn a_manager_that_does_not_answer_is_waited_for_so_long_and_no_longer() {
    let silent = Origin::scripted(|connection| {
        connection.head();
        connection.await_close();
    });
    // Twenty secrets, and one time limit for all of them.
    let consumers: String = (0..20)
        .map(|n| format!("  - {{username: u{n}, plugins: {{key-auth: {{key: $secret://vault/1/u{n}/key}}}}}}\n"))
        .collect();
    let text = format!(
        "secrets:\n  - {{id: vault/1, uri: 'http://{}', prefix: kv, token: t}}\nconsumers:\n{consumers}",
        silent.node()
    );
    let gateway = Start::new("routes: []").settings("secrets: {timeout: 1s}").start();
    assert_eq!(gateway.reload(text), Reload::Applied);
    let log = gateway.stderr();
    assert_eq!(log.matches("no secret for").count(), 20, "{log}");
    assert!(log.contains("timeout"), "{log}");
    assert!(silent.connections() < 10, "it is not asked for each of them while it does not answer");
}

#[test]
fn a_secret_that_changes_is_taken_over_and_one_that_goes_stays() {
    let vault = Vault::start();
    let gateway = start(&vault, "$secret://vault/1/jack/key", "secrets: {ttl: 100ms}");
    assert_eq!(status(&gateway, "k1"), 200);
    vault.set("k2");
    wait_until("the new secret", LIMIT, || (status(&gateway, "k2") == 200).then_some(()));
    assert_eq!(status(&gateway, "k1"), 401);
    // Sealed: what is in use stays, also when something else changes, but nothing that nobody knew.
    vault.status.store(503, Ordering::Relaxed);
    vault.set("k3");
    wait_until("a warning", LIMIT, || gateway.stderr().contains("it cannot answer now (503)").then_some(()));
    let changed = rules(&vault.origin, "$secret://vault/1/jack/key").replace("uri: /who", "uri: /wh*");
    assert_eq!(gateway.reload(changed), Reload::Applied);
    assert_eq!(status(&gateway, "k2"), 200);
    assert_eq!(gateway.reload(rules(&vault.origin, "$secret://vault/2/jack/key")), Reload::Applied);
    assert_eq!(status(&gateway, "k2"), 401);
    vault.status.store(200, Ordering::Relaxed);
    wait_until("Vault again", LIMIT, || (status(&gateway, "k3") == 200).then_some(()));
}

#[test]
fn sighup_asks_again_at_once() {
    let vault = Vault::start();
    let gateway = start(&vault, "$secret://vault/1/jack/key", "secrets: {ttl: 1h}");
    vault.set("k2");
    gateway.signal(rustix::process::Signal::HUP);
    wait_until("the new secret", LIMIT, || (status(&gateway, "k2") == 200).then_some(()));
}

#[test]
fn a_folder_holds_secrets_too() {
    let vault = Vault::start();
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("jack")).expect("a folder");
    fs::write(folder.path().join("jack/key"), "from a file\n").expect("write");
    let text =
        rules(&vault.origin, "$secret://file/1/jack/key").replace("/FOLDER", &folder.path().display().to_string());
    let gateway = Start::new(text).settings("secrets: {ttl: 100ms}").variable("VAULT_TOKEN", "hvs.t0ken").start();
    assert_eq!(status(&gateway, "from a file"), 200);
    assert_eq!(vault.asked(), 0);
    fs::write(folder.path().join("jack/key"), "another").expect("write");
    wait_until("the new secret", LIMIT, || (status(&gateway, "another") == 200).then_some(()));
}

#[test]
fn certificates_come_from_a_manager_as_well_and_vault_speaks_tls() {
    let authority = Authority::new();
    let shown = authority.certificate(Kind::P256, &["a.test"]);
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let secret = json!({ "data": { "cert": shown.cert, "key": shown.key } }).to_string();
    let vault = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {};",
        own.cert_file.display(),
        own.key_file.display()
    ));
    fs::create_dir_all(vault.file("v1/kv")).expect("a folder");
    vault.write("v1/kv/cert", secret.as_bytes());
    let port = vault.node().rsplit_once(':').map(|(_, port)| port.to_owned()).expect("a port");
    let text = format!(
        "secrets:\n  - {{id: vault/1, uri: 'https://localhost:{port}', prefix: kv, token: t}}\n\
         ssls:\n  - {{sni: a.test, cert: $secret://vault/1/cert/cert, key: $secret://vault/1/cert/key}}\n"
    );
    let settings = format!("tls: {{trusted_certificate: {}}}", authority.file().display());
    let gateway = Start::new(&text).settings(settings).https().start();
    assert!(!gateway.stderr().contains("BEGIN"), "{}", gateway.stderr());
    let rules = gateway.config().display().to_string();
    // Without that authority Vault is not believed.
    let (code, _, stderr) = weir(&["check", &rules]);
    assert_eq!(code, 0);
    assert!(stderr.contains("no secret for \"$secret://vault/1/cert/cert\": Vault at https://localhost"), "{stderr}");
}

#[test]
fn a_certificate_for_the_nodes_of_an_upstream_comes_from_elsewhere_as_well() {
    let authority = Authority::new();
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let first = authority.certificate(Kind::P256, &["first"]);
    let second = authority.certificate(Kind::P256, &["second"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
         location / {{ return 200 \"$ssl_client_s_dn $ssl_client_verify\"; }}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display(),
    ));
    let folder = tempfile::tempdir().expect("a folder");
    let write = |cert: &str, key: &str| {
        fs::write(folder.path().join("cert"), cert).expect("write");
        fs::write(folder.path().join("key"), key).expect("write");
    };
    write(&first.cert, &first.key);
    let pair = json!({ "cert": first.cert, "key": first.key }).to_string();
    let settings = format!("secrets: {{ttl: 100ms, folders: [{}], environment: [PAIR]}}", folder.path().display());
    let gateway = Start::stored().settings(settings).variable("PAIR", &pair).start();
    gateway.must("PUT", "secrets/file/1", &json!({ "directory": folder.path() }).to_string());
    let upstream = |cert: &str, key: &str| {
        let tls = json!({ "client_cert": cert, "client_key": key });
        json!({ "scheme": "https", "nodes": { nginx.node(): 1 }, "tls": tls })
    };
    let by_folder = upstream("$secret://file/1/cert", "$secret://file/1/key");
    let (code, answer) = gateway.ask("PUT", "upstreams/none", &upstream("$env://NONE", "$env://NONE").to_string());
    assert_eq!(code, 400, "{answer}");
    gateway.must("PUT", "upstreams/1", &by_folder.to_string());
    let by_variable = upstream("$env://PAIR/cert", "$env://PAIR/key");
    let split = json!({ "rules": [{ "weighted_upstreams": [{ "upstream": by_folder }] }] });
    for (path, route) in [
        ("/id", json!({ "upstream_id": "1" })),
        ("/inline", json!({ "upstream": by_variable })),
        ("/split", json!({ "upstream": by_variable, "plugins": { "traffic-split": split } })),
    ] {
        let mut route = route;
        route["uri"] = json!(path);
        gateway.must("PUT", &format!("routes{path}"), &route.to_string());
        assert_eq!(gateway.get(path).text(), "CN=first SUCCESS", "{path}");
    }
    // The Admin API shows the references as written.
    let shown = gateway.must("GET", "upstreams/1", "");
    assert_eq!(shown["value"]["tls"], by_folder["tls"], "{shown}");
    write(&second.cert, &second.key);
    for path in ["/id", "/split"] {
        wait_until("the new certificate", LIMIT, || (gateway.get(path).text() == "CN=second SUCCESS").then_some(()));
    }
    assert_eq!(gateway.get("/inline").text(), "CN=first SUCCESS");
    assert!(!gateway.stderr().contains("BEGIN"), "{}", gateway.stderr());
}

#[test]
fn the_example_of_the_documentation_works() {
    let page = crate::documentation::document("docs/secrets.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let vault = Vault::start();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("jill-key"), "k2\n").expect("write");
    let origin = Origin::hello();
    let text = example
        .replace("https://vault.example.com:8200", &format!("http://{}", vault.origin.node()))
        .replace("/run/secrets/gateway", &folder.path().display().to_string())
        .replace("127.0.0.1:1980", &origin.node());
    let gateway = Start::new(text).variable("VAULT_TOKEN", "hvs.t0ken").start();
    assert_eq!((status(&gateway, "k1"), status(&gateway, "k2"), status(&gateway, "k3")), (200, 200, 401));
}

#[test]
fn a_store_keeps_references_and_serves_what_they_stand_for() {
    let vault = Vault::start();
    let settings = format!("secrets: {{ttl: 100ms, hosts: ['{}'], environment: [VAULT_*]}}", vault.origin.node());
    let gateway = Start::stored().settings(settings).variable("VAULT_TOKEN", "hvs.t0ken").start();
    let jack = |reference: &str| json!({ "username": "jack", "plugins": { "key-auth": { "key": reference } } });
    let manager = json!({ "uri": format!("http://{}", vault.origin.node()), "prefix": "kv/apisix", "token": "$env://VAULT_TOKEN" });
    gateway.must("PUT", "secrets/vault/1", &manager.to_string());
    gateway.must("PUT", "consumers/jack", &jack("$secret://vault/1/jack/key").to_string());
    let route = json!({ "uri": "/who", "plugins": { "key-auth": {}, "mocking": { "response_example": "x" } } });
    gateway.must("PUT", "routes/1", &route.to_string());
    assert_eq!((status(&gateway, "k1"), status(&gateway, "k2")), (200, 401));
    let shown = gateway.must("GET", "consumers/jack", "");
    assert_eq!(shown["value"]["plugins"]["key-auth"]["key"], "$secret://vault/1/jack/key", "{shown}");

    vault.set("k2");
    wait_until("the new secret", LIMIT, || (status(&gateway, "k2") == 200).then_some(()));
    // Of a manager that does not know what others refer to, or that goes, the last values serve on.
    let elsewhere = manager.to_string().replace("kv/apisix", "kv/elsewhere");
    for (method, body) in [("PUT", elsewhere.as_str()), ("DELETE", "")] {
        gateway.must(method, "secrets/vault/1", body);
        assert_eq!(status(&gateway, "k2"), 200, "{method}");
    }
    gateway.must("PUT", "secrets/vault/1", &manager.to_string().replace("kv/apisix", "kv2/data/apisix"));
    assert_eq!(status(&gateway, "k2"), 200);
    gateway.must("PUT", "secrets/vault/1", &manager.to_string());
    // Sealed: nothing new is known, and what is there can be changed.
    vault.status.store(503, Ordering::Relaxed);
    let jill = json!({ "username": "jill", "plugins": { "key-auth": { "key": "$secret://vault/1/jill/key" } } });
    gateway.must("PUT", "consumers/jill", &jill.to_string());
    gateway.logged("nobody is let in by this configuration of key-auth");
    gateway.must("PUT", "routes/1", &route.to_string().replace("/who", "/wh*"));
    assert_eq!(status(&gateway, "k2"), 200);
    let log = gateway.stderr();
    assert!(!log.contains("t0ken") && !log.contains("k2"), "{log}");
}

/// References in resources from the Admin API reach only the targets listed in the settings.
#[test]
fn resources_of_the_admin_api_reach_what_the_settings_list() {
    let vault = Vault::start();
    let top = tempfile::tempdir().expect("a folder");
    let (good, bad, data) = (top.path().join("good"), top.path().join("bad"), top.path().join("good/data"));
    for folder in [&good, &bad] {
        fs::create_dir(folder).expect("a folder");
        fs::write(folder.join("key"), "k1").expect("write");
    }
    std::os::unix::fs::symlink("../bad", good.join("link")).expect("a link");
    let text = |path: &std::path::Path| path.display().to_string();
    let settings = |hosts: &str| format!("secrets: {{folders: [{}], hosts: [{hosts}]}}", text(&good));
    let start = |hosts: &str| {
        Start::stored()
            .data_dir(&data)
            .settings(settings(hosts))
            .variable("GATEWAY_TOKEN", "hvs.t0ken")
            .variable("OTHER_TOKEN", "hvs.t0ken")
            .start()
    };
    let gateway = start(&format!("'{}'", vault.origin.node()));
    let file = |directory: String| json!({ "directory": directory });
    let vault_at = |uri: &str, token: &str| json!({ "uri": uri, "prefix": "kv/apisix", "token": token });
    let own = format!("http://{}", vault.origin.node());
    let elsewhere = own.replace("127.0.0.1", "localhost");
    // A manager, a reference by it, and why it is refused.
    let cases = [
        (file(text(&good)), "$secret://file/1/key", None),
        (file(format!("{}/../bad", text(&good))), "$secret://file/1/key", Some("secrets.folders")),
        (file(text(&bad)), "$secret://file/1/key", Some("secrets.folders does not allow")),
        (file("/etc".to_owned()), "$secret://file/1/none", Some("secrets.folders does not allow /etc")),
        (file("/".to_owned()), "$secret://file/1/etc/hostname", Some("secrets.folders does not allow")),
        (file(text(&good)), "$secret://file/1/link/key", Some("leads out of the folder")),
        (file(text(&good.join("link"))), "$secret://file/1/key", Some("secrets.folders")),
        (file(text(&good)), "$secret://file/1/../bad/key", Some("leads out of the folder")),
        (file(text(&good)), "$secret://file/1/data/key", Some("store.data_dir")),
        (file(text(&data)), "$secret://file/1/key", Some("store.data_dir")),
        (vault_at(&own, "$env://GATEWAY_TOKEN"), "$secret://vault/1/jack/key", None),
        (
            vault_at(&elsewhere, "hvs.t0ken"),
            "$secret://vault/1/jack/key",
            Some("secrets.hosts does not allow localhost:"),
        ),
        (vault_at(&own, "hvs.t0ken"), "$env://GATEWAY_TOKEN", None),
        (vault_at(&own, "hvs.t0ken"), "$env://OTHER_TOKEN", Some("secrets.environment does not allow")),
        (vault_at(&own, "hvs.t0ken"), "$env://WEIR_ADMIN_KEY", Some("one of the gateway's own settings")),
    ];
    let asked = vault.asked();
    for (manager, reference, refused) in &cases {
        let kind = if manager.get("uri").is_some() { "vault" } else { "file" };
        gateway.must("PUT", &format!("secrets/{kind}/1"), &manager.to_string());
        let route = json!({ "uri": "/x", "plugins": { "mocking": { "response_example": reference } } });
        let (status, answer) = gateway.ask("PUT", "routes/x", &route.to_string());
        match refused {
            None => assert!(status < 300, "{manager} {reference}: {answer}"),
            Some(reason) => {
                if !answer.to_string().contains(reason) {
                    gateway.logged(reason);
                }
                let got = gateway.get("/x");
                assert!(status == 400 || got.status == 503, "{manager} {reference}: {status} {answer} {got:?}");
            }
        }
        gateway.ask("DELETE", "routes/x", "");
        gateway.must("DELETE", &format!("secrets/{kind}/1"), "");
    }
    assert_eq!(vault.asked(), asked + 1, "hosts that are not listed are not asked");
    let (code, answer) = gateway.ask("PUT", "secrets/vault/1", &vault_at(&own, "$env://OTHER_TOKEN").to_string());
    assert!(code == 400 && answer.to_string().contains("secrets.environment"), "{answer}");
}
