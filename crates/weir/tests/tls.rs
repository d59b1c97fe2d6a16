//! TLS towards clients and nodes, with openssl and curl as clients and nginx as node.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Authority, Certificate, Gateway, Kind, LIMIT, Nginx, Reload, Start, each, route_with, wait_until,
};

/// Result of a TLS client.
pub(crate) struct Seen {
    /// True if the client succeeded.
    pub(crate) good: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

fn run(command: &mut Command) -> Seen {
    let done = command.stdin(Stdio::null()).output().expect("run a client");
    Seen {
        good: done.status.success(),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// Shakes hands and says what was agreed upon.
pub(crate) fn s_client(addr: SocketAddr, arguments: &[&str]) -> Seen {
    let addr = addr.to_string();
    run(Command::new("timeout").args(["20", "openssl", "s_client", "-connect", &addr]).args(arguments))
}

/// The subject of the certificate that is shown.
fn subject(seen: &Seen) -> Option<&str> {
    seen.out.lines().find_map(|line| line.strip_prefix("subject=")).map(|text| text.trim_start_matches("CN = ").trim())
}

/// A request to this host, wherever its address is.
pub(crate) fn curl(gateway: &Gateway, authority: Option<&Authority>, url_of: (&str, &str), arguments: &[&str]) -> Seen {
    let (host, path) = url_of;
    let addr = https(gateway);
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "--resolve", &format!("{host}:{}:{}", addr.port(), addr.ip())]);
    match authority {
        Some(authority) => command.arg("--cacert").arg(authority.file()),
        None => command.arg("-k"),
    };
    run(command.args(arguments).arg(format!("https://{host}:{}{path}", addr.port())))
}

pub(crate) fn https(gateway: &Gateway) -> SocketAddr {
    gateway.https.expect("a gateway with TLS")
}

/// An item of `ssls`.
fn ssl(names: &[&str], certificate: &Certificate) -> Value {
    json!({ "snis": names, "cert": certificate.cert, "key": certificate.key })
}

/// Routes that answer with the host asked for, and certificates.
fn answering(ssls: &Value) -> Value {
    json!({
        "ssls": ssls,
        "routes": [{ "id": 1, "uri": "/*", "plugins": { "mocking": { "response_example": "hello $scheme $host" } } }],
    })
}

#[test]
fn the_certificate_is_that_of_the_name() {
    let authority = Authority::new();
    let made = |name: &str| authority.certificate(Kind::P256, &[name]);
    let (exact, wild, all) = (made("a.test"), made("*.wild.test"), made("everybody.test"));
    let config = answering(&json!([
        ssl(&["a.test", "B.test"], &exact),
        ssl(&["*.wild.test"], &wild),
        { "sni": "off.test", "cert": exact.cert, "key": exact.key, "status": 0 },
    ]));
    let strict = Start::new(&config).https().settings(json!({ "tls": { "fallback_sni": "x.wild.test" } })).start();
    let none = Start::new(&config).https().start();
    let mut more = config;
    more["ssls"].as_array_mut().expect("a list").push(ssl(&["*"], &all));
    let open = Start::new(&more).https().start();
    let cases: &[(&str, &Gateway, Option<&str>, Option<&str>)] = &[
        ("exact", &strict, Some("a.test"), Some("a.test")),
        ("in capitals", &strict, Some("A.TEST"), Some("a.test")),
        ("configured in capitals", &strict, Some("b.test"), Some("a.test")),
        ("wildcard", &strict, Some("x.wild.test"), Some("*.wild.test")),
        ("a wildcard is for one label", &strict, Some("x.y.wild.test"), None),
        ("a wildcard is not for the name itself", &strict, Some("wild.test"), None),
        ("unknown", &strict, Some("c.test"), None),
        ("switched off", &strict, Some("off.test"), None),
        ("none asked for, with a fallback", &strict, None, Some("*.wild.test")),
        ("none asked for", &none, None, None),
        ("everybody's", &open, Some("c.test"), Some("everybody.test")),
        ("exact before everybody's", &open, Some("a.test"), Some("a.test")),
    ];
    each(
        cases,
        |(name, ..)| (*name).to_owned(),
        |(_, gateway, sni, expected)| {
            let arguments = match sni {
                Some(sni) => vec!["-servername", sni],
                None => vec!["-noservername"],
            };
            let seen = s_client(https(gateway), &arguments);
            match expected {
                Some(expected) => assert_eq!(subject(&seen), Some(*expected), "{}", seen.err),
                None => assert!(seen.err.contains("unrecognized name"), "{}{}", seen.out, seen.err),
            }
        },
    );
    let seen = curl(&strict, Some(&authority), ("a.test", "/"), &[]);
    assert_eq!(seen.out, "hello https a.test", "{}", seen.err);
}

#[test]
fn without_any_certificate_there_is_one_for_trying_out() {
    let gateway = Start::new(answering(&json!([]))).https().start();
    let seen = curl(&gateway, None, ("whatever.test", "/"), &[]);
    assert_eq!(seen.out, "hello https whatever.test", "{}", seen.err);
    assert!(s_client(https(&gateway), &["-noservername"]).good, "also without a name");
}

#[test]
fn keys_and_versions_are_agreed_upon() {
    let authority = Authority::new();
    let made = |kind, name: &str| authority.certificate(kind, &[name]);
    let (rsa, ec) = (made(Kind::Rsa, "both.test"), made(Kind::P256, "both.test"));
    let (p384, ed) = (made(Kind::P384, "p384.test"), made(Kind::Ed25519, "ed.test"));
    let gateway = Start::new(answering(&json!([
        { "snis": ["both.test"], "cert": rsa.cert, "key": rsa.key, "certs": [ec.cert], "keys": [ec.key] },
        ssl(&["p384.test"], &p384),
        ssl(&["ed.test"], &ed),
        { "snis": ["old.test"], "cert": rsa.cert, "key": rsa.key, "ssl_protocols": ["TLSv1.2"] },
        { "snis": ["new.test"], "cert": rsa.cert, "key": rsa.key, "ssl_protocols": ["TLSv1.3"] },
    ])))
    .https()
    .start();
    type Case<'a> = (&'a str, &'a str, &'a [&'a str], Result<&'a [&'a str], &'a str>);
    let cases: &[Case<'_>] = &[
        ("ECDSA is preferred", "both.test", &[], Ok(&["TLSv1.3", "id-ecPublicKey"])),
        ("RSA where nothing else can be used", "both.test", &["-sigalgs", "RSA-PSS+SHA256"], Ok(&["rsaEncryption"])),
        ("RSA in TLS 1.2", "both.test", &["-tls1_2", "-cipher", "aRSA"], Ok(&["TLSv1.2", "rsaEncryption"])),
        ("P-384", "p384.test", &[], Ok(&["384 bit"])),
        ("Ed25519", "ed.test", &[], Ok(&["ED25519"])),
        ("TLS 1.2 alone", "old.test", &[], Ok(&["TLSv1.2"])),
        ("TLS 1.3 alone", "new.test", &[], Ok(&["TLSv1.3"])),
        ("TLS 1.2 where 1.3 is asked for", "new.test", &["-tls1_2"], Err("protocol version")),
        ("TLS 1.1", "both.test", &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], Err("handshake failure")),
        ("HTTP/2 by ALPN", "both.test", &["-alpn", "http/1.1,h2"], Ok(&["ALPN protocol: h2"])),
        ("HTTP/1.1 by ALPN", "both.test", &["-alpn", "http/1.1"], Ok(&["ALPN protocol: http/1.1"])),
        ("HTTP/1.0 by ALPN", "both.test", &["-alpn", "http/1.0"], Ok(&["ALPN protocol: http/1.0"])),
        ("no common protocol", "both.test", &["-alpn", "imap"], Err("no application protocol")),
    ];
    each(
        cases,
        |(name, ..)| (*name).to_owned(),
        |(_, sni, arguments, expected)| {
            let seen = s_client(https(&gateway), &[&["-servername", sni], *arguments].concat());
            match expected {
                Ok(parts) => {
                    for part in *parts {
                        assert!(seen.out.contains(part), "no {part} in {}{}", seen.out, seen.err);
                    }
                }
                Err(part) => assert!(seen.err.contains(part), "{}{}", seen.out, seen.err),
            }
        },
    );
}

#[test]
fn sessions_are_resumed_by_every_worker_and_after_a_change() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let config = answering(&json!([ssl(&["a.test"], &certificate)]));
    let gateway = Start::new(&config).https().workers(2).start();
    let folder = tempfile::tempdir().expect("create a folder");
    let session = folder.path().join("session");
    let session = session.to_str().expect("a path of plain characters");
    // With TLS 1.3 the tickets come after the handshake: an answer is waited for.
    let connect = |version: &str, way: &str| {
        let text = format!(
            "printf 'GET / HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n' | \
             timeout 20 openssl s_client -connect {} -servername a.test {version} {way} {session} -ign_eof",
            https(&gateway),
        );
        run(Command::new("sh").args(["-c", &text]))
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let first = connect(version, "-sess_out");
        assert!(first.out.contains("New, TLS") && first.out.contains("hello https"), "{}{}", first.out, first.err);
        // Enough that with all likelihood both workers are asked.
        for _ in 0..8 {
            let again = connect(version, "-sess_in");
            assert!(again.out.contains("Reused, TLS"), "{version}: {}{}", again.out, again.err);
        }
        let mut changed = config.clone();
        changed["routes"][0]["name"] = json!(version);
        assert_eq!(gateway.reload(&changed), Reload::Applied);
        assert!(connect(version, "-sess_in").out.contains("Reused, TLS"), "{version}: after a change");
    }
}

#[test]
fn a_change_of_certificates_is_live_and_a_bad_one_is_refused() {
    let authority = Authority::new();
    let made = |name: &str| authority.certificate(Kind::P256, &[name]);
    let (first, second) = (made("first.test"), made("second.test"));
    let gateway = Start::new(answering(&json!([ssl(&["a.test"], &first)]))).https().start();
    let shown = || subject(&s_client(https(&gateway), &["-servername", "a.test"])).map(str::to_owned);
    assert_eq!(shown().as_deref(), Some("first.test"));
    assert_eq!(gateway.reload(answering(&json!([ssl(&["a.test"], &second)]))), Reload::Applied);
    assert_eq!(shown().as_deref(), Some("second.test"));
    let mixed = json!({ "snis": ["a.test"], "cert": first.cert, "key": second.key });
    let cut = json!({ "snis": ["a.test"], "cert": first.cert.replace("MII", "MIX"), "key": first.key });
    let no_key = json!({ "snis": ["a.test"], "cert": first.cert, "key": first.cert });
    let bad_ca = json!({ "snis": ["a.test"], "cert": first.cert, "key": first.key, "client": { "ca": first.key } });
    for (item, says) in [
        (mixed, "ssls[0].key: the key does not belong to the certificate"),
        (cut, "ssls[0].cert: "),
        (no_key, "ssls[0].key: "),
        (bad_ca, "ssls[0].client.ca: "),
    ] {
        assert_eq!(gateway.reload(answering(&json!([item]))), Reload::Rejected);
        wait_until(says, LIMIT, || gateway.stderr().contains(says).then_some(()));
        assert_eq!(shown().as_deref(), Some("second.test"), "the old one stays");
    }
}

#[test]
fn clients_show_certificates_where_they_are_asked_for() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server =
        authority.certificate(Kind::P256, &["mtls.test", "deep.test", "part.test", "plain.test", "*.wild.test"]);
    let asked = |names: &[&str], client: Value| {
        let mut item = ssl(names, &server);
        item["client"] = client;
        item
    };
    let gateway = Start::new(answering(&json!([
        asked(&["mtls.test", "*.wild.test"], json!({ "ca": authority.pem() })),
        asked(&["deep.test"], json!({ "ca": authority.pem(), "depth": 2 })),
        asked(
            &["part.test"],
            json!({ "ca": authority.pem(), "skip_mtls_uri_regex": ["^/health$", "^/open/", "^/\\<x\\>$"] })
        ),
        ssl(&["plain.test"], &server),
    ])))
    .https()
    .start();
    let good = authority.certificate(Kind::P256, &["client"]);
    let foreign = other.certificate(Kind::P256, &["stranger"]);
    let (one, two) = (authority.chained(1, "one"), authority.chained(2, "two"));
    let refused = "alert";
    type Case<'a> = (&'a str, &'a str, &'a str, Option<&'a Certificate>, &'a [&'a str], Result<&'a str, &'a str>);
    let cases: &[Case<'_>] = &[
        ("shown", "mtls.test", "/", Some(&good), &[], Ok("hello https mtls.test")),
        ("none", "mtls.test", "/", None, &[], Err(refused)),
        ("another authority's", "mtls.test", "/", Some(&foreign), &[], Err(refused)),
        ("one between", "mtls.test", "/", Some(&one), &[], Ok("hello")),
        ("two between, one allowed", "mtls.test", "/", Some(&two), &[], Err(refused)),
        ("two between, two allowed", "deep.test", "/", Some(&two), &[], Ok("hello")),
        ("an exempt path without", "part.test", "/health", None, &[], Ok("hello")),
        ("an exempt folder without", "part.test", "/open/x", None, &[], Ok("hello")),
        ("another path, by a word boundary of another dialect", "part.test", "/x", None, &[], Ok("400")),
        ("another path without", "part.test", "/healthy", None, &[], Ok("400")),
        ("a path that only looks exempt", "part.test", "/open/../x", None, &["--path-as-is"], Ok("400")),
        ("a path that is exempt in one reading", "part.test", "/open/..%5cx", None, &["--path-as-is"], Ok("400")),
        ("another path with", "part.test", "/x", Some(&good), &[], Ok("hello")),
        ("an exempt path with a foreign one", "part.test", "/health", Some(&foreign), &[], Err(refused)),
        ("a host that asks, by another name", "plain.test", "/", None, &["-H", "Host: mtls.test"], Ok("421")),
        ("the same with a certificate", "plain.test", "/", Some(&good), &["-H", "Host: mtls.test"], Ok("421")),
        ("verified for another host", "deep.test", "/", Some(&good), &["-H", "Host: MTLS.test:443"], Ok("421")),
        ("names of one wildcard", "a.wild.test", "/", Some(&good), &["-H", "Host: b.wild.test"], Ok("421")),
        ("a host that asks nothing", "mtls.test", "/", Some(&good), &["-H", "Host: plain.test"], Ok("hello")),
        ("over HTTP/1.1", "plain.test", "/", None, &["--http1.1", "-H", "Host: mtls.test"], Ok("421")),
        ("exempt by another name", "plain.test", "/health", None, &["-H", "Host: part.test"], Ok("421")),
        ("a host that asks nothing, without", "part.test", "/x", None, &["-H", "Host: plain.test"], Ok("421")),
        ("a host that nothing is known of, without", "part.test", "/x", None, &["-H", "Host: any"], Ok("421")),
        ("no host, without", "part.test", "/x", None, &["--http1.0", "-H", "Host:"], Ok("400")),
        (
            "an exempt path of a host that asks nothing",
            "part.test",
            "/health",
            None,
            &["-H", "Host: plain.test"],
            Ok("hello"),
        ),
    ];
    each(
        cases,
        |(name, ..)| (*name).to_owned(),
        |(_, host, path, certificate, arguments, expected)| {
            let mut arguments = [&["-w", " %{http_code}"], *arguments].concat();
            let files = certificate.map(|c| [&c.cert_file, &c.key_file].map(|file| file.to_str().expect("a path")));
            if let Some([cert, key]) = &files {
                arguments.extend(["--cert", cert, "--key", key]);
            }
            let seen = curl(&gateway, Some(&authority), (host, path), &arguments);
            match expected {
                Ok(part) => assert!(seen.good && seen.out.contains(part), "{}{}", seen.out, seen.err),
                Err(part) => assert!(!seen.good && seen.err.contains(part), "{}{}", seen.out, seen.err),
            }
        },
    );
}

#[test]
fn a_ticket_does_not_stand_for_a_certificate_that_is_not_believed_any_more() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["a.test"]);
    let client = authority.certificate(Kind::P256, &["client"]);
    let config = |ca: &Authority| {
        let mut item = ssl(&["a.test"], &server);
        item["client"] = json!({ "ca": ca.pem() });
        answering(&json!([item]))
    };
    let gateway = Start::new(config(&authority)).https().start();
    let folder = tempfile::tempdir().expect("create a folder");
    let file = |path: &Path| path.to_str().expect("a path").to_owned();
    let session = file(&folder.path().join("session"));
    let (cert, key) = (file(&client.cert_file), file(&client.key_file));
    let connect = |arguments: &str| {
        let text = format!(
            "printf 'GET / HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n' | \
             timeout 20 openssl s_client -connect {} -servername a.test {arguments} -ign_eof",
            https(&gateway),
        );
        run(Command::new("sh").args(["-c", &text]))
    };
    let first = connect(&format!("-cert {cert} -key {key} -sess_out {session}"));
    assert!(first.out.contains("hello https"), "{}{}", first.out, first.err);
    assert!(connect(&format!("-sess_in {session}")).out.contains("hello https"), "resumed while it is believed");
    assert_eq!(gateway.reload(config(&other)), Reload::Applied);
    let again = connect(&format!("-sess_in {session}"));
    assert!(!again.out.contains("hello https"), "{}", again.out);
}

#[test]
fn bodies_pass_both_ways_with_tls_on_both_sides() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let files = format!(
        "ssl_certificate {}; ssl_certificate_key {};",
        certificate.cert_file.display(),
        certificate.key_file.display()
    );
    let nginx = Nginx::start_tls(&format!(
        "{files} location /up {{ proxy_pass http://127.0.0.1:1/; error_page 502 =200 /ok; proxy_request_buffering on; }} location /ok {{ return 200 \"$request_length\"; }}"
    ));
    let content: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    nginx.write("large", &content);
    nginx.write("small", b"small");
    let mut config = route_with(json!({}), json!({ "nodes": { nginx.node(): 1 }, "scheme": "https" }));
    config["ssls"] = json!([ssl(&["a.test"], &certificate)]);
    let gateway = Start::new(&config).https().start();
    let folder = tempfile::tempdir().expect("create a folder");
    let (sent, got) = (folder.path().join("sent"), folder.path().join("got"));
    std::fs::write(&sent, &content).expect("write a body");
    for version in [["--tlsv1.3", "--tls-max", "1.3"], ["--tlsv1.2", "--tls-max", "1.2"]] {
        let to = ["-o", got.to_str().expect("a path")];
        let seen = curl(&gateway, Some(&authority), ("a.test", "/large"), &[&version[..], &to].concat());
        assert!(seen.good, "{}", seen.err);
        assert!(std::fs::read(&got).expect("read a body") == content, "{version:?}: the body has changed");
        let body = format!("@{}", sent.display());
        let seen =
            curl(&gateway, Some(&authority), ("a.test", "/up"), &[&version[..], &["--data-binary", &body]].concat());
        let length: usize = seen.out.parse().unwrap_or_else(|_| panic!("{}{}", seen.out, seen.err));
        assert!(length > content.len(), "{length} bytes reached the node");
    }
    // One connection each way, many requests.
    let url = format!("https://a.test:{}/small", https(&gateway).port());
    let more: Vec<&str> = std::iter::repeat_n(url.as_str(), 49).collect();
    let seen =
        curl(&gateway, Some(&authority), ("a.test", "/small"), &[&["-w", " %{num_connects}\n"], &more[..]].concat());
    let expected = format!("small 1\n{}", "small 0\n".repeat(49));
    assert_eq!(seen.out, expected, "{}", seen.err);
}

#[test]
fn nodes_are_spoken_to_as_the_upstream_says() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let (client, foreign) = (authority.certificate(Kind::P256, &["gateway"]), other.certificate(Kind::P256, &["no"]));
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
         location / {{ return 200 \"$ssl_server_name $http_host $ssl_client_s_dn $ssl_client_verify\"; }}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display(),
    ));
    let node = nginx.node();
    let port = node.rsplit(':').next().expect("a port").to_owned();
    let named = format!("localhost:{port}");
    let settings = json!({ "tls": { "trusted_certificate": authority.file() } });
    let inline = json!({ "client_cert": client.cert, "client_key": client.key });
    let cases: &[(&str, Value, &str)] = &[
        ("the client's Host", json!({ "nodes": { &node: 1 } }), "asked.test asked.test:81  NONE"),
        ("the node's name", json!({ "nodes": { &named: 1 }, "pass_host": "node" }), "localhost localhost:PORT  NONE"),
        ("an address has no name", json!({ "nodes": { &node: 1 }, "pass_host": "node" }), " 127.0.0.1:PORT  NONE"),
        (
            "another name",
            json!({ "nodes": { &node: 1 }, "pass_host": "rewrite", "upstream_host": "node.test" }),
            "node.test node.test  NONE",
        ),
        (
            "verified",
            json!({ "nodes": { &node: 1 }, "pass_host": "rewrite", "upstream_host": "node.test", "tls": { "verify": true } }),
            "node.test node.test  NONE",
        ),
        (
            "verified, another name",
            json!({ "nodes": { &node: 1 }, "tls": { "verify": true } }),
            "502 upstream; TLS handshake failed",
        ),
        (
            "a certificate",
            json!({ "nodes": { &node: 1 }, "tls": inline }),
            "asked.test asked.test:81 CN=gateway SUCCESS",
        ),
        (
            "a certificate by id",
            json!({ "nodes": { &node: 1 }, "tls": { "client_cert_id": "c" } }),
            "asked.test asked.test:81 CN=gateway SUCCESS",
        ),
        (
            "a certificate that is not believed",
            json!({ "nodes": { &node: 1 }, "tls": { "client_cert_id": "f" } }),
            "400 The SSL certificate error",
        ),
    ];
    each(
        cases,
        |(name, ..)| (*name).to_owned(),
        |(_, upstream, expected)| {
            let mut upstream = upstream.clone();
            upstream["scheme"] = json!("https");
            let mut config = route_with(json!({}), upstream);
            config["ssls"] = json!([
                { "id": "c", "type": "client", "cert": client.cert, "key": client.key },
                { "id": "f", "type": "client", "cert": foreign.cert, "key": foreign.key },
            ]);
            let gateway = Gateway::with(&config, &settings);
            let mut client = gateway.client();
            for _ in 0..2 {
                let answer = client.request("GET / HTTP/1.1\r\nHost: asked.test:81\r\n\r\n");
                let told = match answer.status {
                    200 => answer.text(),
                    status => format!("{status} {}{}", answer.field("X-Weir-Error").unwrap_or_default(), answer.text()),
                };
                let expected = expected.replace("PORT", &port);
                let good =
                    if answer.status == 200 { told == expected } else { expected.split(' ').all(|p| told.contains(p)) };
                assert!(good, "{told}");
            }
        },
    );
}

#[test]
fn connections_to_a_node_are_shared_only_where_they_are_alike() {
    let authority = Authority::new();
    let server = authority.certificate(Kind::P256, &["node.test"]);
    let client = authority.certificate(Kind::P256, &["gateway"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client optional;\n\
         location / {{ return 200 \"$connection $ssl_server_name $ssl_client_verify\"; }}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display(),
    ));
    let with = |tls: Value| json!({ "nodes": { nginx.node(): 1 }, "scheme": "https", "tls": tls });
    let gateway = Gateway::start(json!({
        "routes": [
            { "id": 1, "uri": "/plain", "upstream": with(json!({})) },
            { "id": 2, "uri": "/same", "upstream": with(json!({})) },
            { "id": 3, "uri": "/shown", "upstream": with(json!({ "client_cert": client.cert, "client_key": client.key })) },
        ],
    }));
    let mut asking = gateway.client();
    let mut ask = |path: &str, host: &str| {
        let answer = asking.request(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).text();
        let (connection, rest) = answer.split_once(' ').expect("two words");
        (connection.to_owned(), rest.to_owned())
    };
    let (first, told) = ask("/plain", "a.test");
    assert_eq!(told, "a.test NONE");
    assert_eq!(ask("/plain", "a.test"), (first.clone(), "a.test NONE".to_owned()), "kept");
    assert_eq!(ask("/same", "a.test").0, first, "another upstream that is set up alike");
    let (second, told) = ask("/plain", "b.test");
    assert!(second != first && told == "b.test NONE", "another name: {second} {told}");
    let (third, told) = ask("/shown", "a.test");
    assert!(third != first && told == "a.test SUCCESS", "another certificate: {third} {told}");
    assert_eq!(ask("/plain", "a.test").0, first, "each is kept for its own");
    assert_eq!(ask("/plain", "b.test").0, second);
}

#[test]
fn a_handshake_that_does_not_end_is_ended() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let gateway = Start::new(answering(&json!([ssl(&["a.test"], &certificate)])))
        .https()
        .settings(json!({ "timeouts": { "handshake": "300ms" } }))
        .start();
    // A record of a handshake whose end never comes, a byte of no record, noise, a record of an absurd length, nothing.
    let cases: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        &[0xff; 2000],
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xff",
        b"",
    ];
    for (at, bytes) in cases.iter().enumerate() {
        let mut stream = TcpStream::connect(https(&gateway)).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("set a time limit");
        stream.write_all(bytes).expect("send");
        let mut seen = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut seen);
        assert!(!seen.starts_with(b"HTTP"), "case {at}");
        let reason = [("reason", "tls_handshake")];
        gateway.await_metric("weir_client_errors_total", &reason, (at + 1) as f64);
    }
    wait_until("the connections to be gone", LIMIT, || {
        (gateway.metric("apisix_nginx_http_current_connections", &[("state", "active")]) == 0.0).then_some(())
    });
}

#[test]
fn an_idle_connection_with_tls_is_small() {
    idle_connections_are_small(
        "http/1.1",
        "s.sendall(b'GET / HTTP/1.1\\r\\nHost: a.test\\r\\n\\r\\n'); assert b'200 OK' in s.recv(4096)",
    );
}

#[test]
fn an_idle_connection_over_http2_is_small() {
    // The preface, SETTINGS and their acknowledgement, and a GET with END_STREAM.
    idle_connections_are_small(
        "h2",
        "s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0]) + \
         bytes([0, 0, 11, 1, 5, 0, 0, 0, 1, 0x82, 0x87, 0x84, 0x41, 6]) + b'a.test'); got = b''\n\
         \x20   while b'hello' not in got: more = s.recv(4096); assert more; got += more",
    );
}

/// `ask`: lines of Python that use the connection `s` once.
fn idle_connections_are_small(protocol: &str, ask: &str) {
    const CONNECTIONS: usize = 400;
    const MOST: usize = 12 << 10;
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let gateway = Start::new(answering(&json!([ssl(&["a.test"], &certificate)]))).https().start();
    let status = format!("/proc/{}/status", gateway.process.id());
    let memory = || -> usize {
        let text = std::fs::read_to_string(&status).expect("read what the process uses");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line with the memory");
        line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") << 10
    };
    let addr = https(&gateway);
    // In one program, which holds them open until its standard input ends.
    let script = format!(
        "import socket, ssl, sys\n\
         c = ssl.create_default_context(cafile={:?})\n\
         c.set_alpn_protocols([{protocol:?}])\n\
         def one():\n\
         \x20   s = c.wrap_socket(socket.create_connection(({:?}, {})), server_hostname='a.test')\n\
         \x20   assert s.selected_alpn_protocol() == {protocol:?}\n\
         \x20   {ask}\n\
         \x20   return s\n\
         kept = []\n\
         for count in sys.stdin:\n\
         \x20   kept += [one() for _ in range(int(count))]\n\
         \x20   print(len(kept), flush=True)\n",
        authority.file(),
        addr.ip().to_string(),
        addr.port(),
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut clients = crate::harness::Process::spawn(&mut python);
    let mut input = clients.child().stdin.take().expect("a pipe");
    let mut output = std::io::BufReader::new(clients.child().stdout.take().expect("a pipe"));
    let mut open = |more: usize| {
        writeln!(input, "{more}").expect("ask for connections");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("read how many there are");
        assert!(!line.is_empty(), "the clients have ended");
    };
    open(100);
    let before = memory();
    open(CONNECTIONS);
    let each = memory().saturating_sub(before) / CONNECTIONS;
    assert!(each <= MOST, "{each} bytes for each idle connection");
    println!("{each} bytes for each idle connection");
}

#[test]
fn what_a_node_cuts_short_is_cut_short() {
    // Without TLS's own end, the end of the connection is no end of a body (RFC 8446 section 6.1).
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["node.test"]);
    let script = format!(
        "import socket, ssl\n\
         c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
         c.load_cert_chain({:?}, {:?})\n\
         l = socket.create_server(('127.0.0.1', 0))\n\
         print(l.getsockname()[1], flush=True)\n\
         for close in (True, False):\n\
         \x20   s = c.wrap_socket(l.accept()[0], server_side=True, suppress_ragged_eofs=True)\n\
         \x20   s.recv(4096)\n\
         \x20   s.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\nwhole?')\n\
         \x20   if close: s.unwrap()\n\
         \x20   s.shutdown(socket.SHUT_RDWR)\n\
         \x20   s.close()\n",
        certificate.cert_file, certificate.key_file,
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut node = crate::harness::Process::spawn(&mut python);
    let mut port = String::new();
    let mut output = std::io::BufReader::new(node.child().stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut output, &mut port).expect("read the port");
    let addr = format!("127.0.0.1:{}", port.trim());
    let gateway =
        Gateway::start(route_with(json!({}), json!({ "nodes": { addr: 1 }, "scheme": "https", "retries": 0 })));
    let mut client = gateway.client();
    assert_eq!(client.request("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").text(), "whole?");
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let cut = client.try_response_within(LIMIT).expect("an end");
    assert!(cut.is_err(), "a body that may be cut: {:?}", cut.map(|answer| (answer.status, answer.text())));
}
