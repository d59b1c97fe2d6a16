//! TLS of `tyk.conf`, and certificates that clients have to show.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Certificate, Gateway, Kind, LIMIT, Process, Start, binary, free_port, program, wait_until, weir,
};
use crate::tls::curl;
use crate::tyk::{Site, keyless};

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
