//! TLS: certificates of the environment and of the policy `tls`, and those of clients (`tls_validation`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Site;
use crate::harness::{Authority, Certificate, Gateway, Kind, Start, weir};
use crate::tls::curl;

/// A service behind a host, whose chain begins with these policies.
#[expect(clippy::needless_pass_by_value, reason = "policies are written where they are passed")]
fn service(site: &Site, host: &str, policies: Value) -> Value {
    let mut chain = policies.as_array().expect("policies").clone();
    chain.push(json!({"name": "apicast"}));
    let mut service = site.service(json!({"hosts": [host], "policy_chain": chain}));
    (service["id"], service["system_name"]) = (host.into(), host.into());
    service
}

fn validation(whitelist: &[&str], more: Value) -> Value {
    let list: Vec<_> = whitelist.iter().map(|pem| json!({"pem_certificate": pem})).collect();
    let mut configuration = json!({"whitelist": list});
    crate::loggers::extend(&mut configuration, more);
    json!({"name": "apicast.policy.tls_validation", "configuration": configuration})
}

fn path(file: &std::path::Path) -> &str {
    file.to_str().expect("a path")
}

fn starting(site: &Site, server: &Certificate, services: Value) -> Start {
    let start = site.starting(services).https();
    let start = start.variable("APICAST_HTTPS_CERTIFICATE", path(&server.cert_file));
    start.variable("APICAST_HTTPS_CERTIFICATE_KEY", path(&server.key_file))
}

/// Status and body of a request with a certificate or without one.
fn ask(gateway: &Gateway, host: &str, shown: Option<&Certificate>) -> (String, String) {
    let mut arguments = vec!["-w", " %{http_code}"];
    if let Some(shown) = shown {
        arguments.extend(["--cert", path(&shown.cert_file), "--key", path(&shown.key_file)]);
    }
    let seen = curl(gateway, None, (host, "/?user_key=good"), &arguments);
    assert!(seen.good, "{}", seen.err);
    let (body, status) = seen.out.rsplit_once(' ').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn clients_show_certificates_of_the_list() {
    let (site, authority, other) = (Site::new(), Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["a.test", "ca.test", "open.test", "inner.test"]);
    let (listed, stranger) = (other.certificate(Kind::P256, &["listed"]), other.certificate(Kind::P256, &["stranger"]));
    let (issued, chained) = (authority.certificate(Kind::P256, &["issued"]), authority.chained(1, "deep"));
    let of_authority = validation(&[&authority.pem()], json!({}));
    let conditional = json!({"name": "conditional", "configuration": {
        "condition": {"operations": [{"left": "{{ uri }}", "left_type": "liquid", "op": "==", "right": "/"}]},
        "policy_chain": [of_authority],
    }});
    let services = json!([
        service(&site, "a.test", json!([validation(&[&listed.cert], json!({}))])),
        service(&site, "ca.test", json!([of_authority])),
        service(&site, "inner.test", json!([conditional])),
        service(&site, "open.test", json!([])),
    ]);
    let gateway = starting(&site, &server, services).start();
    let (missing, failed) = ("No required TLS certificate was sent\n", "TLS certificate validation failed\n");
    type Case<'a> = (&'a str, Option<&'a Certificate>, Option<&'a str>);
    let cases: &[Case<'_>] = &[
        ("a.test", Some(&listed), None),
        ("a.test", Some(&stranger), Some(failed)),
        ("a.test", Some(&issued), Some(failed)),
        ("a.test", None, Some(missing)),
        ("ca.test", Some(&issued), None),
        ("ca.test", Some(&chained), None),
        ("ca.test", Some(&listed), Some(failed)),
        ("inner.test", Some(&issued), None),
        ("inner.test", None, Some(missing)),
        ("open.test", None, None),
    ];
    for (host, shown, refused) in cases {
        let (status, body) = ask(&gateway, host, *shown);
        match refused {
            None => assert_eq!(status, "200", "{host}: {body}"),
            Some(text) => assert_eq!((status.as_str(), body.as_str()), ("400", *text), "{host}"),
        }
    }
    // Other services ask no browser for a certificate.
    for (name, asks) in [("a.test", true), ("inner.test", true), ("open.test", false)] {
        let seen = crate::tls::s_client(crate::tls::https(&gateway), &["-servername", name]);
        assert_eq!(seen.out.contains("Requested Signature Algorithms"), asks, "{name}: {}", seen.out);
    }
    let plain = gateway.client().request("GET /?user_key=good HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((plain.status, plain.text().as_str()), (400, missing));
}

#[test]
fn services_have_certificates_of_their_own() {
    let (site, authority) = (Site::new(), Authority::new());
    let made = |name: &str| authority.certificate(Kind::P256, &[name]);
    let (server, by_path, embedded) = (made("rest.test"), made("path.test"), made("data.test"));
    let data = |text: &str| format!("data:application/x-x509-ca-cert;name=a.pem;base64,{}", STANDARD.encode(text));
    let tls = |certificate: Value| json!([{"name": "tls", "configuration": {"certificates": [certificate]}}]);
    let services = json!([
        service(
            &site,
            "path.test",
            tls(json!({"certificate_path": by_path.cert_file, "certificate_key_path": by_path.key_file}))
        ),
        service(
            &site,
            "data.test",
            tls(json!({"certificate": data(&embedded.cert), "certificate_key": data(&embedded.key)}))
        ),
        service(&site, "rest.test", json!([])),
    ]);
    let gateway = starting(&site, &server, services).start();
    for name in ["path.test", "data.test", "rest.test"] {
        let seen =
            curl(&gateway, Some(&authority), (name, "/?user_key=good"), &["-o", "/dev/null", "-w", "%{http_code}"]);
        assert_eq!(seen.out, "200", "{name}: {}", seen.err);
    }
}

#[test]
fn faults_are_told() {
    let (site, authority) = (Site::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["a.test"]);
    let policy = |name: &str, configuration: Value| json!([{"name": name, "configuration": configuration}]);
    let cases = [
        (policy("tls_validation", json!({"whitelist": [{"pem_certificate": "x"}]})), "whitelist[0].pem_certificate"),
        (policy("tls_validation", json!({"whitelist": [], "revocation_check_type": "ocsp"})), "revocation_check_type"),
        (policy("tls", json!({"certificates": [{"certificate_path": "/none.pem"}]})), "cannot read /none.pem"),
        (policy("tls", json!({"certificates": [{"certificate_path": server.cert_file}]})), "certificate_key"),
        (policy("tls", json!({"certificates": [{"certificate": "x", "certificate_key": "y"}]})), "expected a data URL"),
    ];
    for (policies, expected) in cases {
        let file = site.file(&json!({"services": [service(&site, "a.test", policies)]}));
        let (code, out, err) = weir(&["check", path(&file)]);
        assert!(code != 0 && format!("{out}{err}").contains(expected), "{expected}: {out}{err}");
    }
}
