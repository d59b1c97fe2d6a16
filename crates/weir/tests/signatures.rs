//! Signed requests: signatures made by openssl, around the present time, over bodies of any framing.

use std::process::Command;

use serde_json::json;

use crate::harness::{Gateway, Origin};
use crate::tokens::openssl;

/// The `Date` of some seconds from now.
fn date(from_now: i32) -> String {
    let mut command = Command::new("date");
    command.env("LC_ALL", "C").args(["-u", "-d", &format!("{from_now} seconds"), "+%a, %d %b %Y %H:%M:%S GMT"]);
    let output = command.output().expect("run date");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("a date").trim().to_owned()
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    String::from_utf8(openssl(&["base64", "-A"], bytes)).expect("base64 is text")
}

/// The fields of a request that is signed at `date`, with `fields` besides its target and date.
fn signed(digest: &str, request: &str, date: &str, fields: &[(&str, &str)]) -> String {
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    let text = format!("jacks-id\n{request}\ndate: {date}\n{lines}");
    let signature =
        base64(&openssl(&["dgst", &format!("-{digest}"), "-hmac", "jacks-secret", "-binary"], text.as_bytes()));
    let names: String = fields.iter().map(|(name, _)| format!(" {name}")).collect();
    format!(
        "Date: {date}\r\n{}Authorization: Signature keyId=\"jacks-id\",algorithm=\"hmac-{digest}\",\
         headers=\"@request-target date{names}\",signature=\"{signature}\"\r\n",
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>(),
    )
}

fn gateway(origin: &Origin, conf: &serde_json::Value) -> Gateway {
    Gateway::start(json!({
        "routes": [{
            "id": "all", "uri": "/*", "plugins": { "hmac-auth": conf }, "upstream": { "nodes": { (origin.node()): 1 } },
        }],
        "consumers": [{
            "username": "jack", "plugins": { "hmac-auth": { "key_id": "jacks-id", "secret_key": "jacks-secret" } },
        }],
    }))
}

#[test]
fn a_signature_is_good_around_its_date() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, &json!({}));
    for digest in ["sha1", "sha256", "sha512"] {
        for (from_now, status) in [(0, 200), (-290, 200), (290, 200), (-330, 401), (330, 401)] {
            let fields = signed(digest, "GET /a?b=c", &date(from_now), &[("host", "a.test")]);
            let response = gateway.client().request(format!("GET /a?b=c HTTP/1.1\r\n{fields}\r\n"));
            assert_eq!(response.status, status, "{digest}, {from_now} s: {response:?}");
            let response = gateway.client().request(format!("GET /a?b=d HTTP/1.1\r\n{fields}\r\n"));
            assert_eq!(response.status, 401, "another target: {response:?}");
        }
    }
}

/// The target may be signed as it is sent, or normalised, which is what APISIX wants.
#[test]
fn a_target_is_signed_as_sent_or_normalised() {
    let origin = Origin::hello();
    let gateway = gateway(&origin, &json!({}));
    for (target, signed_target, status) in [
        ("/a%20b/%2e/c?d=%20", "/a%20b/%2e/c?d=%20", 200),
        ("/a%20b/%2e/c?d=%20", "/a b/c?d=%20", 200),
        ("/a%20b/%2e/c?d=%20", "/a b/./c?d=%20", 401),
        ("/a%20b/%2e/c?d=%20", "/a%20b/%2e/c?d= ", 401),
        ("/a%20b", "/a b?", 401),
        ("http://a.test/b?c", "/b?c", 200),
        ("http://a.test", "/", 200),
        ("http://a.test?c", "/?c", 200),
        ("/a?u=http://b.test/c", "/a?u=http://b.test/c", 200),
    ] {
        let fields = signed("sha256", &format!("GET {signed_target}"), &date(0), &[("host", "a.test")]);
        let response = gateway.client().request(format!("GET {target} HTTP/1.1\r\n{fields}\r\n"));
        assert_eq!(response.status, status, "{target} signed as {signed_target}: {response:?}");
    }
}

#[test]
fn a_body_is_validated_however_it_is_framed_and_sent_on() {
    let origin = Origin::echo();
    let conf = json!({ "validate_request_body": true, "signed_headers": ["@request-target", "date", "digest"] });
    let gateway = gateway(&origin, &conf);
    let body = "0123456789".repeat(10_000);
    let other = body.replacen("9", "8", 1);
    let digest = format!("SHA-256={}", base64(&openssl(&["dgst", "-sha256", "-binary"], body.as_bytes())));
    // Framing fields are signed as the client sent them, though a chunked body goes on with a length.
    let length = body.len().to_string();
    for (name, value, framed) in [
        ("content-length", length.as_str(), (|body: &str| body.to_owned()) as fn(&str) -> String),
        ("transfer-encoding", "chunked", |body| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())),
    ] {
        let fields = signed("sha256", "POST /", &date(0), &[("host", "a.test"), ("digest", &digest), (name, value)]);
        let response = gateway.client().request(format!("POST / HTTP/1.1\r\n{fields}\r\n{}", framed(&body)));
        assert_eq!((response.status, response.text() == body), (200, true), "{name}: {:?}", response.fields);
        let response = gateway.client().request(format!("POST / HTTP/1.1\r\n{fields}\r\n{}", framed(&other)));
        assert_eq!(response.status, 401, "another body, {name}: {:?}", response.fields);
    }
    assert_eq!(origin.requests().len(), 2);
    // A body is not waited for before the signature is good.
    let fields = signed("sha256", "PUT /", &date(0), &[("host", "a.test"), ("digest", &digest)]);
    let response = gateway.client().request(format!("POST / HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n"));
    assert_eq!(response.status, 401);
}
