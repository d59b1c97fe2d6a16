//! Certificates as people have them, hosts that clients show one to, and clients that do not know that they have to speak
//! TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Authority, Certificate, Gateway, Kind, LIMIT, Nginx, RawClient, Start, each, route_with, weir};

/// Certificates, and a route that answers with the scheme and the host.
fn answering(ssls: &Value) -> Value {
    json!({
        "ssls": ssls,
        "routes": [{ "id": 1, "uri": "/*", "plugins": { "mocking": { "response_example": "hello $scheme $host" } } }],
    })
}

fn ssl(names: &[&str], certificate: &Certificate) -> Value {
    json!({ "snis": names, "cert": certificate.cert, "key": certificate.key })
}

#[test]
fn a_host_that_asks_for_certificates_is_closed_over_plain_http() {
    let authority = Authority::new();
    let server = authority.certificate(Kind::P256, &["a.test"]);
    let asking = |names: &[&str], skipped: &[&str]| {
        let mut item = ssl(names, &server);
        item["client"] = json!({ "ca": authority.pem() });
        if !skipped.is_empty() {
            item["client"]["skip_mtls_uri_regex"] = json!(skipped);
        }
        item
    };
    let config = answering(&json!([
        asking(&["mtls.test", "*.wild.test"], &[]),
        asking(&["part.test"], &["^/health$", "^/open/"]),
        ssl(&["plain.test"], &server),
    ]));
    let closed = Gateway::start(&config);
    let open = Gateway::with(&config, json!({ "tls": { "mtls_hosts_on_http": true } }));
    let mut everybody = config;
    everybody["ssls"].as_array_mut().expect("a list").push(asking(&["*"], &[]));
    let everybody = Gateway::start(everybody);
    let to = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let cases: &[(&str, &Gateway, String, u16)] = &[
        ("guarded", &closed, to("/", "mtls.test"), 400),
        ("with a port and in capitals", &closed, to("/", "MTLS.test:9080"), 400),
        ("with a dot at its end", &closed, to("/", "mtls.test."), 400),
        ("by a wildcard", &closed, to("/", "a.wild.test"), 400),
        ("a wildcard is for one label", &closed, to("/", "a.b.wild.test"), 200),
        ("escaped", &closed, to("/", "%6dtls.test"), 400),
        ("in the target", &closed, to("http://mtls.test/", "plain.test"), 400),
        ("in the target with a port", &closed, to("http://Mtls.test:80/", "plain.test"), 400),
        ("the target goes before Host", &closed, to("http://plain.test/", "mtls.test"), 200),
        ("not guarded", &closed, to("/", "plain.test"), 200),
        ("nothing known of it", &closed, to("/", "other.test"), 200),
        ("no host", &closed, "GET / HTTP/1.0\r\n\r\n".to_owned(), 200),
        ("an exempt path", &closed, to("/health", "part.test"), 200),
        ("another path", &closed, to("/healthy", "part.test"), 400),
        ("a path that only looks exempt", &closed, to("/open/../x", "part.test"), 400),
        ("a path that is exempt in one reading", &closed, to("/open/..\\x", "part.test"), 400),
        ("where the settings open it", &open, to("/", "mtls.test"), 200),
        ("every host", &everybody, to("/", "other.test"), 400),
        ("every host, none named", &everybody, "GET / HTTP/1.0\r\n\r\n".to_owned(), 400),
        ("every host but one", &everybody, to("/", "plain.test"), 200),
    ];
    each(
        cases,
        |(name, ..)| (*name).to_owned(),
        |(_, gateway, request, status)| {
            let answer = gateway.client().request(request);
            assert_eq!(answer.status, *status, "{answer:?}");
        },
    );
    let told = closed.client().request(to("/", "mtls.test"));
    assert_eq!(told.field("x-weir-error"), Some("client; client certificate required"), "as over TLS");
}

/// Everything that comes until the connection ends.
fn until_the_end(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    let mut seen = Vec::new();
    stream.read_to_end(&mut seen).expect("an end that is no reset");
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn plain_http_on_the_port_of_tls_is_told_so() {
    const WORDS: &str = "The plain HTTP request was sent to HTTPS port";
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let gateway = Start::new(answering(&json!([ssl(&["a.test"], &certificate)]))).https().start();
    let https = gateway.https.expect("a listener with TLS");
    let cases = [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", true),
        ("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n", false),
        ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\n", true),
        ("G", true),
        ("get nothing\n\n", true),
    ];
    for (request, has_body) in cases {
        let mut stream = TcpStream::connect(https).expect("connect");
        stream.write_all(request.as_bytes()).expect("send");
        let told = until_the_end(&mut stream);
        assert!(told.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request:?}: {told}");
        assert!(told.contains("\r\nConnection: close\r\n") && told.contains(WORDS), "{request:?}: {told}");
        let body = told.split_once("\r\n\r\n").expect("an end of the head").1;
        assert_eq!(
            body,
            if has_body { format!("{{\"error_msg\":\"400 Bad Request: {WORDS}\"}}\n") } else { String::new() }
        );
    }
    // One that is still sending gets the answer, and not a reset.
    let mut stream = TcpStream::connect(https).expect("connect");
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 200000\r\n\r\n").expect("send");
    let _ = stream.write_all(&vec![b'x'; 200_000]);
    let _ = stream.shutdown(Shutdown::Write);
    assert!(until_the_end(&mut stream).contains(WORDS));
    gateway.await_metric("weir_client_errors_total", &[("reason", "bad_request")], cases.len() as f64 + 1.0);
    assert_eq!(gateway.metric("weir_client_errors_total", &[("reason", "tls_handshake")]), 0.0);
    // Nobody waits for a client that says nothing more, and TLS is spoken as before.
    let mut client = RawClient::connect(https);
    assert_eq!(client.request("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").status, 400);
    let addr = format!("https://a.test:{}/", https.port());
    let resolve = format!("a.test:{}:127.0.0.1", https.port());
    let output = Command::new("curl").args(["-sSk", "--max-time", "20", "--resolve", &resolve, &addr]).output();
    assert_eq!(String::from_utf8_lossy(&output.expect("run curl").stdout).trim_end(), "hello https a.test");
}

/// A node with such a certificate is spoken to unless it has to be verified, and is shown such a certificate.
#[test]
fn nodes_may_have_certificates_of_version_one() {
    let authority = Authority::new();
    let client = authority.version_one(Kind::P256, "gateway", 30);
    let cases: Vec<_> = [Kind::Rsa, Kind::P256, Kind::P384, Kind::Ed25519]
        .into_iter()
        .flat_map(|kind| [(kind, "TLSv1.2"), (kind, "TLSv1.3")])
        .collect();
    each(
        &cases,
        |case| format!("{case:?}"),
        |(kind, version)| {
            let server = authority.version_one(*kind, &format!("node-{version}.test"), 30);
            let nginx = Nginx::start_tls(&format!(
                "ssl_certificate {}; ssl_certificate_key {}; ssl_protocols {version};\n\
                 ssl_client_certificate {}; ssl_verify_client optional;\n\
                 location / {{ return 200 \"$ssl_protocol $ssl_client_verify $ssl_client_s_dn\"; }}",
                server.cert_file.display(),
                server.key_file.display(),
                authority.file().display(),
            ));
            let node = nginx.node();
            let shown = json!({ "client_cert": client.cert, "client_key": client.key });
            let upstream = json!({ "nodes": { &node: 1 }, "scheme": "https", "tls": shown });
            let gateway = Gateway::start(route_with(json!({}), upstream));
            assert_eq!(gateway.get("/").text(), format!("{version} SUCCESS CN=gateway"));
        },
    );
    let server = authority.version_one(Kind::P256, "a.test", 30);
    let files = [&server.cert_file, &server.key_file].map(|file| file.display().to_string());
    let nginx =
        Nginx::start_tls(&format!("ssl_certificate {}; ssl_certificate_key {}; return 200 hi;", files[0], files[1]));
    let upstream = json!({ "nodes": { nginx.node(): 1 }, "scheme": "https", "tls": { "verify": true } });
    let settings = json!({ "tls": { "trusted_certificate": authority.file() } });
    let gateway = Gateway::with(route_with(json!({}), upstream), settings);
    assert_eq!(gateway.get("/").status, 502);
    let told = gateway.logged("TLS handshake with a node failed");
    assert!(told.contains("of X.509 version 1") && told.contains("-extfile"), "{told}");
}

#[test]
fn certificates_of_version_one_are_shown_and_taken() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.version_one(Kind::P256, "one.test", 30);
    let mut asking = ssl(&["one.test"], &server);
    asking["client"] = json!({ "ca": authority.pem() });
    let gateway = Start::new(answering(&json!([asking]))).https().start();
    let port = gateway.https.expect("a listener with TLS").port();
    let resolve = format!("one.test:{port}:127.0.0.1");
    let url = format!("https://one.test:{port}/");
    let cases: &[(&str, Option<Certificate>, Result<&str, &str>)] = &[
        ("RSA", Some(authority.version_one(Kind::Rsa, "client", 30)), Ok("hello https one.test")),
        ("ECDSA", Some(authority.version_one(Kind::P384, "client", 30)), Ok("hello https one.test")),
        ("version 3", Some(authority.certificate(Kind::P256, &["client"])), Ok("hello https one.test")),
        // The authorities have the same name and differ only in the signature.
        (
            "another authority's",
            Some(other.version_one(Kind::P256, "client", 30)),
            Err("or one made with its key, is wrong"),
        ),
        ("expired", Some(authority.version_one(Kind::P256, "client", -1)), Err("the certificate has expired")),
        ("none", None, Err("sent no certificates")),
    ];
    for (name, certificate, expected) in cases {
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "--max-time", "20", "--resolve", &resolve]);
        if let Some(certificate) = certificate {
            curl.arg("--cert").arg(&certificate.cert_file).arg("--key").arg(&certificate.key_file);
        }
        let output = curl.arg(&url).output().expect("run curl");
        let out = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        match expected {
            Ok(text) => assert_eq!(out, *text, "{name}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(reason) => {
                assert!(!output.status.success() && out.is_empty(), "{name}: {out}");
                assert!(gateway.logged(reason).contains("TLS handshake failed"), "{name}");
            }
        }
    }
}

/// Errors about certificates say what is wrong and what to do, and contain no text of a program's source.
#[test]
fn what_is_wrong_with_a_certificate_is_told_in_words() {
    let authority = Authority::new();
    let (good, other) =
        (authority.certificate(Kind::P256, &["a.test"]), authority.version_one(Kind::P256, "b.test", 30));
    let item = |cert: &str, key: &str| json!({ "id": "s", "sni": "a.test", "cert": cert, "key": key });
    let cut = good.cert.replace("-----END CERTIFICATE-----", "");
    let spoilt = good.cert.replacen('M', "*", 1);
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned() + &"#".repeat(128);
    let mut bad_ca = item(&good.cert, &good.key);
    bad_ca["client"] = json!({ "ca": empty });
    let bad_client = json!({ "nodes": { "127.0.0.1:1": 1 }, "scheme": "https", "tls": { "client_cert": other.cert, "client_key": good.key } });
    for (config, parts) in [
        (answering(&json!([item(&good.cert, &other.key)])), &["ssls[0].key", "does not belong to the certificate"][..]),
        (answering(&json!([item(&other.cert, &good.key)])), &["ssls[0].key", "does not belong to the certificate"]),
        (answering(&json!([item(&cut, &good.key)])), &["ssls[0].cert", "no line \"-----END CERTIFICATE-----\""]),
        (answering(&json!([item(&spoilt, &good.key)])), &["ssls[0].cert", "not base64"]),
        (answering(&json!([item(&empty, &good.key)])), &["ssls[0].cert", "cannot be read"]),
        (answering(&json!([item(&good.cert, &good.cert)])), &["ssls[0].key", "not a private key in PEM", "no section"]),
        (answering(&json!([bad_ca])), &["ssls[0].client.ca", "cannot be read"]),
        (route_with(json!({}), bad_client), &["tls.client_key", "does not belong to the certificate"]),
    ] {
        let folder = tempfile::tempdir().expect("create a folder");
        let file = folder.path().join("rules.json");
        std::fs::write(&file, config.to_string()).expect("write rules");
        let (code, out, err) = weir(&["check", file.to_str().expect("a path")]);
        let told = out + &err;
        assert_eq!(code, 1, "{parts:?}: {told}");
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
        for debug in ["Other(", "Error(", "BadEncoding", "KeyMismatch", "[45, 45"] {
            assert!(!told.contains(debug), "{debug}: {told}");
        }
    }
}

/// The Admin API says what is wrong with a reference, and not how long it is.
#[test]
fn a_reference_that_leads_nowhere_is_told_by_the_admin_api() {
    let authority = Authority::new();
    let good = authority.certificate(Kind::P256, &["a.test"]);
    let reached = "secrets: {environment: [NONE, SHORT, CERT]}";
    let gateway = Start::stored().settings(reached).variable("SHORT", "rubbish").variable("CERT", &good.cert).start();
    let put = |cert: &str, key: &str| {
        let item = json!({ "sni": "a.test", "cert": cert, "key": key });
        let (status, told) = gateway.ask("PUT", "ssls/1", &item.to_string());
        (status, told.to_string())
    };
    for (cert, key, part) in [("$env://SHORT", good.key.as_str(), "no PEM"), (&good.cert, "$env://SHORT", "no PEM")] {
        let (status, told) = put(cert, key);
        assert_eq!(status, 400, "{told}");
        assert!(told.contains(part) && !told.contains("too short"), "{told}");
    }
    for cert in ["$env://NONE", "$env://CERT"] {
        let (status, told) = put(cert, &good.key);
        assert!(status < 300, "{told}");
    }
    let log = gateway.logged("ssls/1.cert: the environment variable \"NONE\" is not set");
    assert!(!log.contains("too short"), "{log}");
}
