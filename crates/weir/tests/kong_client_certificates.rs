//! Kong's `mtls-auth`: certificates of clients in TLS, and the consumers that they belong to.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Authority, Certificate, Gateway, Kind, Origin, Reload, Start, weir};
use crate::tls::curl;

const FIRST: &str = "0a9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e11";
const SECOND: &str = "1b9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e22";

/// Certificates of a test: two authorities, and the server's.
struct Parts {
    authority: Authority,
    other: Authority,
    server: Certificate,
}

impl Parts {
    fn new() -> Self {
        let authority = Authority::new();
        let server = authority.certificate(Kind::P256, &["asked.test", "x.wild.test", "open.test"]);
        Self { authority, other: Authority::new(), server }
    }

    /// Routes with the plugin under two names, and one without it.
    fn document(&self, origin: &Origin, conf: Value) -> Value {
        let mut config = json!({ "ca_certificates": [FIRST], "revocation_check_mode": "SKIP" });
        crate::loggers::extend(&mut config, conf);
        let guarded = json!([{ "name": "mtls-auth", "config": config }]);
        json!({
            "_format_version": "3.0",
            "ca_certificates": [{ "id": FIRST, "cert": self.authority.pem() }, { "id": SECOND, "cert": self.other.pem() }],
            "certificates": [{ "cert": self.server.cert, "key": self.server.key,
                "snis": [{ "name": "asked.test" }, { "name": "*.wild.test" }, { "name": "open.test" }] }],
            "services": [{ "name": "s", "url": format!("http://{}", origin.node()), "routes": [
                { "name": "asked", "hosts": ["asked.test"], "plugins": guarded },
                { "name": "wild", "snis": ["x.wild.test"], "hosts": ["x.wild.test"], "plugins": guarded },
                { "name": "open", "hosts": ["open.test"] },
            ] }],
            "consumers": [
                { "username": "jack", "custom_id": "jack-7", "mtls_auth_credentials": [
                    { "id": "5a9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e55", "subject_name": "desk.test" },
                    { "id": "6a9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e66", "subject_name": "phone.test",
                      "ca_certificate": { "id": SECOND } } ] },
                { "username": "jill.test", "custom_id": "jill-7" },
                { "username": "guest" },
            ],
        })
    }
}

/// Status and body of a request with a certificate or without one.
fn ask(gateway: &Gateway, host: &str, shown: Option<&Certificate>, more: &[&str]) -> (String, String) {
    let mut arguments =
        vec!["-w", " %{http_code}", "-H", "X-Consumer-Username: forged", "-H", "X-Client-Cert-DN: forged"];
    arguments.extend(more);
    let files = shown.map(|c| [&c.cert_file, &c.key_file].map(|file| file.to_str().expect("a path")));
    if let Some([cert, key]) = &files {
        arguments.extend(["--cert", cert, "--key", key]);
    }
    let seen = curl(gateway, None, (host, "/"), &arguments);
    assert!(seen.good, "{}", seen.err);
    let (body, status) = seen.out.rsplit_once(' ').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn certificates_belong_to_consumers() {
    let (origin, parts) = (Origin::hello(), Parts::new());
    let gateway = Start::new(parts.document(&origin, json!({}))).https().start();
    let made = |names: &[&str]| parts.authority.certificate(Kind::P256, names);
    let (desk, jill, custom) = (made(&["desk.test"]), made(&["other.test", "jill.test"]), made(&["jill-7"]));
    let (phone, nobody) = (made(&["phone.test"]), made(&["nobody.test"]));
    let foreign = parts.other.certificate(Kind::P256, &["jack"]);
    let between = parts.authority.chained(1, "jack");
    let jack = "5a9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e55";
    let failed = "TLS certificate failed verification";
    type Case<'a> = (&'a str, &'a str, Option<&'a Certificate>, Result<&'a str, &'a str>);
    let cases: &[Case<'_>] = &[
        ("a credential", "asked.test", Some(&desk), Ok("jack")),
        ("a user name among the alternative names", "asked.test", Some(&jill), Ok("jill.test")),
        ("a custom id", "asked.test", Some(&custom), Ok("jill.test")),
        ("a name below a wildcard", "x.wild.test", Some(&desk), Ok("jack")),
        ("one between", "asked.test", Some(&between), Ok("jack")),
        ("a credential of another authority", "asked.test", Some(&phone), Err(failed)),
        ("nobody's", "asked.test", Some(&nobody), Err(failed)),
        ("another authority's", "asked.test", Some(&foreign), Err(failed)),
        ("none", "asked.test", None, Err("No required TLS certificate was sent")),
    ];
    for more in [&[][..], &["--http1.1"], &["--tls-max", "1.2"]] {
        for (case, host, shown, expected) in cases {
            let (status, body) = ask(&gateway, host, *shown, more);
            match expected {
                Ok(name) => {
                    let told = origin.last();
                    let found = (status.as_str(), told.field("x-consumer-username"), told.field("x-client-cert-dn"));
                    assert_eq!(found, ("200", Some(*name), None), "{case} {more:?}");
                }
                Err(message) => assert!(status == "401" && body.contains(message), "{case} {more:?}: {status} {body}"),
            }
        }
    }
    ask(&gateway, "asked.test", Some(&desk), &[]);
    assert_eq!(origin.last().field("x-credential-identifier"), Some(jack));
    // Without TLS nobody can show one; and names that no route with the plugin has ask for none.
    let plain = gateway.client().request("GET / HTTP/1.1\r\nHost: asked.test\r\n\r\n");
    assert_eq!((plain.status, &plain.json()["message"]), (401, &json!("No required TLS certificate was sent")));
    for (name, asks) in [("asked.test", true), ("x.wild.test", true), ("y.wild.test", false), ("open.test", false)] {
        let seen = crate::tls::s_client(crate::tls::https(&gateway), &["-servername", name]);
        // OpenSSL tells the kinds of signatures of a server that has asked for a certificate.
        assert_eq!(seen.out.contains("Requested Signature Algorithms"), asks, "{name}: {}", seen.out);
    }
    // A credential of the other authority, and a certificate that was good before.
    let conf = json!({ "ca_certificates": [SECOND], "consumer_by": [] });
    assert_eq!(gateway.reload(parts.document(&origin, conf)), Reload::Applied);
    let phone = parts.other.certificate(Kind::P256, &["phone.test"]);
    assert_eq!(ask(&gateway, "asked.test", Some(&phone), &[]).0, "200");
    assert_eq!(ask(&gateway, "asked.test", Some(&foreign), &[]).0, "401", "user names do not count");
    assert_eq!(ask(&gateway, "asked.test", Some(&desk), &[]).0, "401");
}

#[test]
fn certificates_count_without_consumers() {
    let (origin, parts) = (Origin::hello(), Parts::new());
    let made = |names: &[&str]| parts.authority.certificate(Kind::P256, names);
    let (first, second) = (made(&["first.test", "more.test"]), made(&["second.test"]));
    let foreign = parts.other.certificate(Kind::P256, &["first.test"]);
    let told = |names: [&str; 3]| names.map(|name| origin.last().field(name).map(str::to_owned));
    let mut document = parts.document(&origin, json!({ "skip_consumer_lookup": true }));
    document["plugins"] = json!([{ "name": "acl", "config": { "allow": ["first.test"] }, "route": "asked" }]);
    let gateway = Start::new(&document).https().start();
    assert_eq!(ask(&gateway, "asked.test", Some(&first), &[]).0, "200");
    let names = ["X-Client-Cert-DN", "X-Client-Cert-SAN", "X-Authenticated-Groups"];
    assert_eq!(told(names), ["CN=first.test", "first.test,more.test", "first.test"].map(|text| Some(text.to_owned())));
    assert_eq!(origin.last().field("X-Consumer-Username"), None);
    assert_eq!(ask(&gateway, "asked.test", Some(&second), &[]).0, "403");
    assert_eq!(ask(&gateway, "asked.test", Some(&foreign), &[]).0, "401");
    document["services"][0]["routes"][0]["plugins"][0]["config"]["authenticated_group_by"] = json!("DN");
    document["plugins"][0]["config"] = json!({ "deny": ["CN=first.test"] });
    assert_eq!(gateway.reload(&document), Reload::Applied);
    let statuses = [&first, &second].map(|shown| ask(&gateway, "asked.test", Some(shown), &[]).0);
    assert_eq!(statuses, ["403", "200"]);
    // Consumers of those that belong to nobody, and of those that are not good.
    let conf = json!({ "default_consumer": "jack", "anonymous": "guest" });
    assert_eq!(gateway.reload(parts.document(&origin, conf)), Reload::Applied);
    for (shown, name) in [(Some(&second), "jack"), (Some(&foreign), "guest"), (None, "guest")] {
        assert_eq!(ask(&gateway, "asked.test", shown, &[]).0, "200");
        assert_eq!(origin.last().field("X-Consumer-Username"), Some(name));
    }
}

#[test]
fn what_cannot_be_done_with_certificates_is_refused() {
    let (origin, parts) = (Origin::hello(), Parts::new());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.json");
    for (conf, code, said) in [
        (json!({ "revocation_check_mode": "STRICT" }), 1, "not checked for revocation; expected SKIP"),
        (json!({ "revocation_check_mode": null }), 1, "not checked for revocation; expected SKIP"),
        (json!({ "send_ca_dn": true }), 1, "send_ca_dn: not supported"),
        (json!({ "ca_certificates": [] }), 1, "ca_certificates"),
        (
            json!({ "ca_certificates": ["2b9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e22"] }),
            1,
            "no such entry in 'ca_certificates'",
        ),
        (json!({ "http_timeout": 5 }), 0, "no effect: certificates are not checked for revocation"),
    ] {
        fs::write(&file, parts.document(&origin, conf.clone()).to_string()).expect("write a file");
        let (status, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(status == code && told.contains(said), "{conf}: {status} {told}");
    }
    let mut document = parts.document(&origin, json!({}));
    document["certificates"] = json!([]);
    fs::write(&file, document.to_string()).expect("write a file");
    let (status, _, told) = weir(&["check", &file.display().to_string()]);
    assert!(status == 0 && told.contains("no client can show a certificate"), "{told}");
}
