//! Answers about the status of certificates in handshakes, with openssl as the client and as the OCSP responder.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Certificate, Gateway, Kind, LIMIT, Origin, Process, Reload, Start, each, free_port, wait_until,
};
use crate::tls::{https, s_client};

/// Name of the certificates.
const NAME: &str = "a.test";
const GOOD: &str = "Cert Status: good";
const NOTHING: &str = "OCSP response: no response sent";

/// A certificate whose responder is at this port of loopback, with its issuer's after it.
fn certificate(authority: &Authority, port: u16) -> Certificate {
    let access = format!("authorityInfoAccess=OCSP;URI:http://127.0.0.1:{port}/ask\n");
    let mut made = authority.extended(Kind::P256, &[NAME], &access);
    made.cert.push_str(&authority.pem());
    made
}

fn rules(certificate: &Certificate, stapling: &Value) -> Value {
    json!({ "routes": [], "ssls": [{ "id": "s", "snis": [NAME], "cert": certificate.cert, "key": certificate.key,
                                     "ocsp_stapling": stapling }] })
}

fn start(rules: &Value) -> Gateway {
    Start::new(rules.to_string()).https().start()
}

/// openssl's responder, which knows a certificate by this status, and signs with this certificate.
fn responder(authority: &Authority, port: u16, subject: &Certificate, status: &str, signer: &Certificate) -> Process {
    let output = Command::new("openssl").args(["x509", "-noout", "-serial", "-in"]).arg(&subject.cert_file).output();
    let serial = String::from_utf8(output.expect("run openssl").stdout).expect("a text");
    let serial = serial.trim().trim_start_matches("serial=");
    let line = match status {
        "V" => format!("V\t351231235959Z\t\t{serial}\tunknown\t/CN={NAME}\n"),
        "R" => format!("R\t351231235959Z\t240101000000Z\t{serial}\tunknown\t/CN={NAME}\n"),
        _ => String::new(),
    };
    let index = subject.cert_file.with_extension(format!("{port}.index"));
    fs::write(&index, line).expect("write an index");
    let mut command = Command::new("openssl");
    command.args(["ocsp", "-port", &port.to_string(), "-nmin", "60", "-index"]).arg(&index);
    command.arg("-CA").arg(authority.file()).arg("-rsigner").arg(&signer.cert_file);
    let log = subject.cert_file.with_extension(format!("{port}.log"));
    let file = || fs::File::options().create(true).append(true).open(&log).expect("create a file");
    command.arg("-rkey").arg(&signer.key_file).stdin(Stdio::null()).stdout(file()).stderr(file());
    let process = Process::spawn(&mut command);
    // A connection without a question would end it.
    let has_begun = || fs::read_to_string(&log).ok().filter(|text| text.contains("ACCEPT"));
    wait_until("the responder to listen", LIMIT, has_begun);
    process
}

/// Words of openssl about the status that came with a handshake.
fn status(gateway: &Gateway, authority: &Authority, more: &[&str]) -> String {
    let file = authority.file();
    let file = file.to_str().expect("a path");
    let seen = s_client(https(gateway), &[&["-servername", NAME, "-CAfile", file][..], more].concat());
    assert!(seen.out.contains("Verify return code: 0"), "{}{}", seen.out, seen.err);
    seen.out
}

fn await_status(gateway: &Gateway, authority: &Authority, wanted: &str) {
    wait_until(wanted, LIMIT * 2, || Some(()).filter(|()| status(gateway, authority, &["-status"]).contains(wanted)));
}

#[test]
fn a_good_answer_is_stapled() {
    let authority = Authority::new();
    let signers = [authority.own(), authority.extended(Kind::Rsa, &["responder"], "extendedKeyUsage=OCSPSigning\n")];
    for signer in signers {
        let port = free_port();
        let certificate = certificate(&authority, port);
        let responder = responder(&authority, port, &certificate, "V", &signer);
        let conf = json!({ "enabled": true, "cache_ttl": 3600 });
        let gateway = start(&rules(&certificate, &conf));
        await_status(&gateway, &authority, GOOD);
        for version in ["-tls1_2", "-tls1_3"] {
            assert!(status(&gateway, &authority, &["-status", version]).contains(GOOD), "{version}");
        }
        assert!(!status(&gateway, &authority, &[]).contains(GOOD), "a client that does not ask for it");
        // A change elsewhere keeps the answer, whether the responder is there or not.
        drop(responder);
        let mut changed = rules(&certificate, &conf);
        changed["routes"] = json!([{ "id": "r", "uri": "/*", "upstream": { "nodes": { "127.0.0.1:1": 1 } } }]);
        assert_eq!(gateway.reload(&changed), Reload::Applied);
        assert!(status(&gateway, &authority, &["-status"]).contains(GOOD));
        // Switched off.
        assert_eq!(gateway.reload(rules(&certificate, &json!({ "enabled": false }))), Reload::Applied);
        assert!(status(&gateway, &authority, &["-status"]).contains(NOTHING));
    }
}

#[test]
fn an_answer_that_cannot_be_believed_is_not_stapled() {
    let other = Authority::new();
    let appointed = "extendedKeyUsage=OCSPSigning\n";
    type Signer<'a> = &'a (dyn Fn(&Authority) -> Certificate + Sync);
    // The status, the signer of the answer, and the words of the log.
    let cases: [(&str, &str, Signer<'_>, &str); 4] = [
        ("revoked", "R", &Authority::own, "the certificate is revoked"),
        ("unknown", "", &Authority::own, "the responder does not know the certificate"),
        ("no responder", "V", &|own| own.extended(Kind::P256, &["server"], ""), "neither the issuer has signed"),
        (
            "another's responder",
            "V",
            &|_| other.extended(Kind::P256, &["other"], appointed),
            "neither the issuer has signed",
        ),
    ];
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, known, signer, says)| {
            let (authority, port) = (Authority::new(), free_port());
            let certificate = certificate(&authority, port);
            let _responder = responder(&authority, port, &certificate, known, &signer(&authority));
            let gateway = start(&rules(&certificate, &json!({ "enabled": true })));
            gateway.logged(says);
            assert!(status(&gateway, &authority, &["-status"]).contains(NOTHING));
            // Whoever asks for it gets whatever the responder says.
            assert_eq!(
                gateway.reload(rules(&certificate, &json!({ "enabled": true, "skip_verify": true }))),
                Reload::Applied
            );
            await_status(&gateway, &authority, "OCSP Response Status: successful");
        },
    );
}

#[test]
fn a_responder_that_is_away_or_no_responder_is_asked_again() {
    let authority = Authority::new();
    type Answering = fn() -> Answer;
    let cases: [(Answering, &str); 3] = [
        (|| Answer::status(500, "no"), "the responder answers with the status 500"),
        (|| Answer::ok("<html>"), "the answer is none of OCSP's"),
        (|| Answer::ok(&"a".repeat(100_000)), "the response body is larger than"),
    ];
    for (answer, says) in cases {
        let origin = Origin::answering(move |_| answer());
        let certificate = certificate(&authority, origin.addr().port());
        let gateway = start(&rules(&certificate, &json!({ "enabled": true })));
        gateway.logged(says);
        gateway.logged("asked again in 10 s");
        assert!(status(&gateway, &authority, &["-status"]).contains(NOTHING));
        let request = origin.last();
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/ask"));
        assert_eq!(request.fields.all("content-type"), ["application/ocsp-request"]);
    }
    let port = free_port();
    let certificate = certificate(&authority, port);
    let gateway = start(&rules(&certificate, &json!({ "enabled": true })));
    gateway.logged("asked again in 10 s");
    let _responder = responder(&authority, port, &certificate, "V", &authority.own());
    await_status(&gateway, &authority, GOOD);
}

#[test]
fn a_certificate_without_a_responder_is_served_with_a_warning() {
    let authority = Authority::new();
    let alone = authority.certificate(Kind::P256, &[NAME]);
    let mut followed = alone.clone();
    followed.cert.push_str(&authority.pem());
    for (certificate, says) in [
        (
            &alone,
            "ssls[0].cert: no status of this certificate can be stapled: the certificate of its issuer does not follow it",
        ),
        (
            &followed,
            "ssls[0].cert: no status of this certificate can be stapled: it names no OCSP responder at http or https",
        ),
    ] {
        let gateway = start(&rules(certificate, &json!({ "enabled": true })));
        gateway.logged(says);
        assert!(status(&gateway, &authority, &["-status"]).contains(NOTHING));
    }
    let mut wrong = rules(&alone, &json!({ "enabled": true, "cache_ttl": 59 }));
    let gateway = start(&rules(&alone, &json!({})));
    assert_eq!(gateway.reload(&wrong), Reload::Rejected);
    gateway.logged("cache_ttl");
    wrong["ssls"][0]["ocsp_stapling"] = json!({ "enabled": "yes" });
    assert_eq!(gateway.reload(&wrong), Reload::Rejected);
}
