//! TLS of `tyk.conf`, and certificates that clients have to show.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    ADMIN_KEY, Authority, Certificate, Gateway, Kind, LIMIT, Nginx, Process, RawClient, Redis, Start, binary,
    free_port, program, wait_until, weir,
};
use crate::tls::curl;
use crate::tyk::{Site, ask as ask_api, error, keyed, keyless, right};

fn options(server: &Certificate, more: Value) -> Value {
    let mut options = json!({
        "use_ssl": true, "certificates": [{"domain_name": "api.test", "cert_file": server.cert_file, "key_file": server.key_file}],
    });
    crate::loggers::extend(&mut options, more);
    json!({ "http_server_options": options })
}

fn mutual(id: &str, listen: &str, certificates: Value) -> Value {
    let mut api = keyless(id, listen, "/");
    (api["use_mutual_tls_auth"], api["client_certificates"]) = (true.into(), certificates);
    api
}

/// Status and body of a request with a certificate or without one.
fn ask(gateway: &Gateway, path: &str, shown: Option<&Certificate>) -> (String, String) {
    let files = shown.map(|c| [&c.cert_file, &c.key_file].map(|file| file.to_str().expect("a path")));
    let mut arguments = vec!["-w", " %{http_code}"];
    if let Some([cert, key]) = &files {
        arguments.extend(["--cert", cert, "--key", key]);
    }
    let seen = curl(gateway, None, ("api.test", path), &arguments);
    assert!(seen.good, "{}", seen.err);
    let (body, status) = seen.out.rsplit_once(' ').expect("a status");
    (status.to_owned(), body.to_owned())
}

fn sha256(certificate: &Certificate) -> String {
    let mut command = Command::new(program("openssl"));
    let output =
        command.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]).arg(&certificate.cert_file).output();
    let text = String::from_utf8(output.expect("run openssl").stdout).expect("text");
    let (_, digits) = text.trim().rsplit_once('=').expect("a fingerprint");
    digits.replace(':', "").to_lowercase()
}

#[test]
fn clients_show_certificates_that_an_api_lists() {
    let (site, authority, other) = (Site::new(), Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["api.test"]);
    let made = |name: &str| other.certificate(Kind::P256, &[name]);
    let (listed, by_id, issued, stranger) =
        (made("listed"), made("by-id"), authority.certificate(Kind::P256, &["x"]), made("stranger"));
    let id = format!("o1{}", sha256(&by_id));
    site.api("m", mutual("m", "/m/", json!([listed.cert_file, id])));
    site.api("ca", mutual("ca", "/ca/", json!([authority.file()])));
    site.api("open", keyless("open", "/open/", "/"));
    let oas = json!({
        "openapi": "3.0.3", "info": {"title": "oas", "version": "1"}, "paths": {},
        "x-tyk-api-gateway": {
            "info": {"name": "oas", "id": "oas", "orgId": "o1", "state": {"active": true}},
            "upstream": {"url": "http://ORIGIN/"},
            "server": {"listenPath": {"value": "/oas/", "strip": true},
                       "clientCertificates": {"enabled": true, "allowlist": [listed.cert_file]}},
        },
    });
    site.api("oas", oas);
    let gateway = Start::at(&site.conf(options(&server, json!({})))).https().start();
    let needed = "Client TLS certificate is required";
    let not_allowed = format!("Certificate with SHA256 {} not allowed", sha256(&stranger));
    let cases: &[(&str, Option<&Certificate>, Option<&str>)] = &[
        ("/m/x", Some(&listed), None),
        ("/m/x", Some(&by_id), None),
        ("/m/x", Some(&stranger), Some(&not_allowed)),
        ("/m/x", Some(&issued), Some("not allowed")),
        ("/m/x", None, Some(needed)),
        ("/ca/x", Some(&issued), None),
        ("/ca/x", Some(&listed), Some("not allowed")),
        ("/open/x", None, None),
        ("/open/x", Some(&stranger), None),
        ("/oas/x", Some(&stranger), Some(&not_allowed)),
        ("/oas/x", None, Some(needed)),
    ];
    for (path, shown, refused) in cases {
        let (status, body) = ask(&gateway, path, *shown);
        match refused {
            None => assert_eq!(status, "200", "{path}: {body}"),
            Some(text) => assert!(status == "403" && body.contains(text), "{path}: {status} {body}"),
        }
    }
    // A chain that ends with a listed certificate, which is not the client's own.
    fs::write(&stranger.cert_file, format!("{}{}", stranger.cert, listed.cert)).expect("write a file");
    assert_eq!(ask(&gateway, "/m/x", Some(&stranger)).0, "403");
    // Without TLS nobody can show one.
    let plain = gateway.get("/m/x");
    assert!(plain.status == 403 && plain.text().contains(needed), "{}", plain.text());
}

#[test]
fn the_port_of_tyk_conf_speaks_tls() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["api.test"]);
    site.api("open", keyless("open", "/open/", "/"));
    let port = free_port();
    let mut conf = options(&server, json!({ "min_version": 772 }));
    (conf["listen_port"], conf["listen_address"]) = (port.into(), "127.0.0.1".into());
    let conf = site.conf(conf);
    let mut command = Command::new(binary());
    command.arg("run").arg(conf).arg("--data-dir").arg(site.apps().with_file_name("data"));
    command.args(["--metrics", "off", "--status", "off", "--control", "off"]);
    let _gateway = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let fetch = |more: &[&str]| {
        let mut command = Command::new(program("curl"));
        command.args(["-sS", "--max-time", "5", "--cacert"]).arg(authority.file());
        command.args(["--resolve", &format!("api.test:{port}:127.0.0.1"), "-o", "/dev/null", "-w", "%{http_code}"]);
        let output = command.args(more).arg(format!("https://api.test:{port}/open/x")).output().expect("run curl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    wait_until("an answer over TLS", LIMIT, || (fetch(&[]) == "200").then_some(()));
    assert_eq!(fetch(&["--tls-max", "1.2"]), "000");
}

#[test]
fn faults_in_certificates_are_told() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["api.test"]);
    let none = json!({ "certificates": [{ "cert_file": "/none.pem", "key_file": server.key_file }] });
    let cases = [
        (options(&server, none), json!([server.cert_file]), Err("/none.pem: there is no such file")),
        (options(&server, json!({ "use_ssl_le": true })), json!([]), Err("http_server_options.use_ssl_le")),
        (options(&server, json!({})), json!(["/none.pem"]), Err("/none.pem: there is no such file")),
        (options(&server, json!({})), json!([server.key_file]), Err("client_certificates.pem[0]")),
        (options(&server, json!({})), json!([]), Ok("every request is refused")),
        (json!({}), json!([server.cert_file]), Ok("no client can show a certificate")),
    ];
    for (conf, certificates, expected) in cases {
        site.api("m", mutual("m", "/m/", certificates));
        let conf = site.conf(conf);
        let (code, out, err) = weir(&["check", conf.to_str().expect("a path")]);
        let (text, is_good) = match expected {
            Ok(text) => (text, true),
            Err(text) => (text, false),
        };
        assert_eq!(code == 0, is_good, "{text}: {out}{err}");
        assert!(format!("{out}{err}").contains(text), "{text}: {out}{err}");
    }
}

/// Adds a certificate to the store; its id.
fn add(gateway: &Gateway, certificate: &Certificate) -> String {
    let request = format!("POST /tyk/certs?org_id=o1\nX-Tyk-Authorization: {}\n\n{}", super::SECRET, certificate.cert);
    let answer = gateway.send_to("o", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["id"].as_str().expect("an id").to_owned()
}

#[test]
fn certificates_are_keys() {
    let (site, authority, redis) = (Site::new(), Authority::new(), Redis::start());
    let server = authority.certificate(Kind::P256, &["api.test"]);
    let [own, other, bare] = ["own", "other", "bare"].map(|name| authority.certificate(Kind::P256, &[name]));
    let mut api = keyed("ck");
    api["auth"] = json!({"auth_header_name": "Authorization", "use_certificate": true});
    site.api("ck", api);
    for storage in [json!({}), json!({"type": "redis", "host": "127.0.0.1", "port": redis.port})] {
        for allows_tokens in [false, true] {
            let mut conf = options(&server, json!({}));
            conf["security"] = json!({"allow_unsafe_dynamic_mtls_token": allows_tokens});
            if storage != json!({}) {
                conf["storage"] = storage.clone();
                redis.cli(&["FLUSHALL"]);
            }
            let gateway = Start::at(&site.conf(conf)).https().start();
            let id = add(&gateway, &own);
            assert_eq!(id, format!("o1{}", sha256(&own)));
            let session = right("ck", json!({"certificate": id}));
            let (status, made) = ask_api(&gateway, "POST", "/tyk/keys/create", &session);
            assert_eq!(status, 200, "{made}");
            let (status, again) = ask_api(&gateway, "POST", "/tyk/keys/create", &session);
            assert!(
                status == 500 && again["message"].as_str().is_some_and(|text| text.contains("already found")),
                "{again}"
            );
            // A key for a certificate that is not in the store.
            let unknown = right("ck", json!({"certificate": format!("o1{}", sha256(&bare))}));
            assert_eq!(ask_api(&gateway, "POST", "/tyk/keys/create", &unknown).0, 200);
            let disallowed = error("Access to this API has been disallowed");
            assert_eq!(ask(&gateway, "/ck/x", Some(&own)).0, "200");
            assert_eq!(ask(&gateway, "/ck/x", Some(&other)), ("401".to_owned(), disallowed.clone()));
            assert_eq!(ask(&gateway, "/ck/x", Some(&bare)), ("403".to_owned(), disallowed.clone()));
            let without = if allows_tokens { "Authorization field missing" } else { "Client certificate required" };
            assert_eq!(ask(&gateway, "/ck/x", None), ("401".to_owned(), error(without)));
            // The text of the key alone is public: it is made of the certificate.
            let key = made["key"].as_str().expect("a key");
            let token = gateway.send_to("o", &format!("GET /ck/x\nAuthorization: {key}"));
            assert_eq!(token.status, if allows_tokens { 200 } else { 401 }, "{token:?}");
            let listed = ask_api(&gateway, "GET", "/tyk/certs?org_id=o1", &Value::Null).1;
            assert_eq!(listed, json!({ "certs": [id] }));
            let detailed = ask_api(&gateway, "GET", "/tyk/certs?org_id=o1&mode=detailed", &Value::Null).1;
            assert_eq!(
                (&detailed["certs"][0]["id"], &detailed["certs"][0]["is_ca"]),
                (&json!(id), &json!(false)),
                "{detailed}"
            );
            let shown = ask_api(&gateway, "GET", &format!("/tyk/certs/{id}"), &Value::Null).1;
            assert_eq!((&shown["dns_names"], &shown["has_private"]), (&json!(["own"]), &json!(false)), "{shown}");
            assert_eq!(ask_api(&gateway, "DELETE", &format!("/tyk/certs/{id}"), &Value::Null).1["message"], "removed");
            assert_eq!(ask_api(&gateway, "GET", &format!("/tyk/certs/{id}"), &Value::Null).0, 404);
            let refused = || (ask(&gateway, "/ck/x", Some(&own)).0 == "403").then_some(());
            wait_until("a refusal of the certificate", LIMIT, refused);
        }
    }
}

#[test]
fn keys_are_bound_to_certificates() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["api.test"]);
    let [own, other] = ["own", "other"].map(|name| authority.certificate(Kind::P256, &[name]));
    let mut api = keyed("b");
    (api["use_mutual_tls_auth"], api["client_certificates"]) = (true.into(), json!([authority.file()]));
    site.api("b", api);
    let gateway = Start::at(&site.conf(options(&server, json!({})))).https().start();
    let bound = |ids: Value| {
        ask_api(&gateway, "POST", "/tyk/keys/create", &right("b", json!({"mtls_static_certificate_bindings": ids})))
    };
    for (ids, text) in [(json!(["x"]), "invalid certificate ID: x"), (json!(["o1x"]), "certificate not found: o1x")] {
        let (status, answer) = bound(ids);
        assert_eq!((status, &answer["message"]), (400, &json!(text)));
    }
    let id = add(&gateway, &own);
    let (status, made) = bound(json!([id]));
    assert_eq!(status, 200, "{made}");
    let call = |certificate: &Certificate| {
        let files = [&certificate.cert_file, &certificate.key_file].map(|file| file.to_str().expect("a path"));
        let key = format!("Authorization: {}", made["key"].as_str().expect("a key"));
        let seen = curl(
            &gateway,
            None,
            ("api.test", "/b/x"),
            &["-w", " %{http_code}", "--cert", files[0], "--key", files[1], "-H", &key],
        );
        seen.out.rsplit_once(' ').expect("a status").1.to_owned()
    };
    assert_eq!([call(&own), call(&other)], ["200", "401"]);
    let text = format!("{}\n{}", own.cert, fs::read_to_string(&own.key_file).expect("read a file"));
    let request = format!("POST /tyk/certs?org_id=o1\nX-Tyk-Authorization: {}\n\n{text}", super::SECRET);
    let refused = gateway.send_to("o", &request);
    assert!(refused.status == 403 && refused.text().contains("private keys are not kept"), "{refused:?}");
}

#[test]
fn upstreams_are_shown_a_certificate() {
    let (site, authority) = (Site::new(), Authority::new());
    let (server, own) =
        (authority.certificate(Kind::P256, &["origin.test"]), authority.certificate(Kind::P256, &["gateway"]));
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
         location / {{ return 200 \"$ssl_client_verify $ssl_client_s_dn\"; }}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display(),
    ));
    site.write("own.pem", format!("{}{}", own.cert, own.key));
    site.write("apart.pem", own.cert);
    let node = nginx.node();
    let path = |name: &str| site.folder.path().join(name).display().to_string();
    let api = |id: &str, certificates: Value| {
        let mut api = keyless(id, &format!("/{id}/"), "/");
        api["proxy"]["target_url"] = format!("https://{node}/").into();
        api["proxy"]["transport"] = json!({"ssl_insecure_skip_verify": true});
        api["upstream_certificates"] = certificates;
        api
    };
    site.api("host", api("host", json!({ (node.clone()): path("own.pem"), "*": "a".repeat(64) })));
    site.api("all", api("all", json!({ "*": path("own.pem") })));
    site.api("other", api("other", json!({ "elsewhere.test": path("own.pem") })));
    let mut off = api("off", json!({ "*": path("own.pem") }));
    off["upstream_certificates_disabled"] = true.into();
    site.api("off", off);
    site.api(
        "oas",
        json!({"openapi": "3.0.3", "info": {"title": "o", "version": "1"}, "paths": {}, "x-tyk-api-gateway": {
            "info": {"name": "oas", "id": "oas", "state": {"active": true}},
            "upstream": {"url": format!("https://{node}/"), "tlsTransport": {"insecureSkipVerify": true},
                "mutualTLS": {"enabled": true, "domainToCertificates": [{"domain": "*", "certificate": path("own.pem")}]}},
            "server": {"listenPath": {"value": "/oas/", "strip": true}}}}),
    );
    let settings = "listen: {admin: '127.0.0.1:0'}\nviewer: {key: the-viewer-key}";
    let gateway = Start::at(&site.conf(json!({}))).settings(settings).variable("WEIR_ADMIN_KEY", ADMIN_KEY).start();
    let head = "GET /weir/v1/resources/routes/host HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: the-viewer-key\r\n\r\n";
    let shown = RawClient::connect(gateway.admin.expect("an Admin API")).request(head).text();
    assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    for (api, told) in [
        ("host", "SUCCESS CN=gateway"),
        ("all", "SUCCESS CN=gateway"),
        ("oas", "SUCCESS CN=gateway"),
        ("other", "NONE "),
        ("off", "NONE "),
    ] {
        assert_eq!(gateway.get(&format!("/{api}/")).text(), told, "{api}");
    }
    for (certificate, reason) in [
        (path("apart.pem"), "expected a certificate and one key, both in PEM"),
        (path("gone.pem"), "gone.pem: there is no such file"),
        (format!("o1{}", "a".repeat(64)), "upstream_certificates: the keys of certificates in Tyk's store"),
    ] {
        let site = Site::new();
        site.api("a", api("a", json!({ "*": certificate })));
        let (status, out, err) = weir(&["check", &site.apps().display().to_string()]);
        let told = out + &err;
        assert!(status != 0 && told.contains(reason), "{reason}: {told}");
    }
}
