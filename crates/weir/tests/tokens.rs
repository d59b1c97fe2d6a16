//! Signed tokens: of issuers, made by openssl, in every algorithm, and the ones against forged requests.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Answer, Gateway, LIMIT, Origin, Reload, Start, each, wait_until};

/// The output of openssl for this input.
pub(crate) fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start openssl");
    child.stdin.take().expect("a pipe").write_all(input).expect("write to openssl");
    let output = child.wait_with_output().expect("wait for openssl");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Base64 as tokens have it (RFC 7515 section 2); a process for each part of each token would take most of the time.
pub(crate) fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        let digits = [18, 12, 6, 0].map(|shift| char::from(ALPHABET[bits >> shift & 63]));
        text.extend(&digits[..=three.len()]);
    }
    text
}

/// A token that is signed with HS256.
pub(crate) fn hs256(header: &str, claims: &str, secret: &str) -> String {
    let signed = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
    let signature = openssl(&["dgst", "-sha256", "-hmac", secret, "-binary"], signed.as_bytes());
    format!("{signed}.{}", base64url(&signature))
}

/// One algorithm, with a key of its own.
pub(crate) struct Signer {
    pub(crate) name: &'static str,
    folder: TempDir,
}

const ALGORITHMS: [&str; 13] = [
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA",
];

const SECRET: &str = "a secret of some length";

impl Signer {
    pub(crate) fn new(name: &'static str) -> Self {
        let signer = Self { name, folder: tempfile::tempdir().expect("create a folder") };
        let key = signer.file("key");
        let made: &[&str] = match name {
            "RS256" | "RS384" | "RS512" | "PS256" | "PS384" | "PS512" => {
                &["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out"]
            }
            "ES256" => &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"],
            "ES384" => &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out"],
            "ES512" => &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521", "-out"],
            "EdDSA" => &["genpkey", "-algorithm", "ed25519", "-out"],
            _ => return signer,
        };
        openssl(&[made, &[&key]].concat(), b"");
        openssl(&["pkey", "-in", &key, "-pubout", "-out", &signer.file("public")], b"");
        signer
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Its consumer, who is called as the algorithm.
    fn consumer(&self) -> Value {
        let mut conf = json!({ "key": self.name, "algorithm": self.name });
        if Path::new(&self.file("public")).exists() {
            conf["public_key"] = fs::read_to_string(self.file("public")).expect("read a key").into();
        } else {
            conf["secret"] = SECRET.into();
        }
        json!({ "username": self.name, "plugins": { "jwt-auth": conf } })
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.name }), claims)
    }

    /// A token with this header.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let part = |part: &Value| base64url(part.to_string().as_bytes());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self.sign(signed.as_bytes());
        format!("{signed}.{}", base64url(&signature))
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let (digest, key) = (format!("-sha{}", &self.name[2..]), self.file("key"));
        match &self.name[..2] {
            "HS" => openssl(&["dgst", &digest, "-hmac", SECRET, "-binary"], message),
            "RS" => openssl(&["dgst", &digest, "-sign", &key], message),
            "PS" => {
                let padding = ["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:digest"];
                openssl(&[&["dgst", &digest, "-sign", &key][..], &padding].concat(), message)
            }
            "ES" => fixed(&openssl(&["dgst", &digest, "-sign", &key], message), self.name),
            _ => {
                fs::write(self.file("message"), message).expect("write a message");
                openssl(&["pkeyutl", "-sign", "-rawin", "-inkey", &key, "-in", &self.file("message")], b"")
            }
        }
    }
}

/// The two numbers of an ECDSA signature in their fixed length (RFC 7518 section 3.4), from their ASN.1.
fn fixed(der: &[u8], name: &str) -> Vec<u8> {
    let length = match name {
        "ES256" => 32,
        "ES384" => 48,
        _ => 66,
    };
    // A sequence, whose length takes two bytes where it is above 127, of two integers.
    let mut rest = if der[1] & 0x80 == 0 { &der[2..] } else { &der[3..] };
    let mut both = Vec::new();
    for _ in 0..2 {
        let (number, after) = rest[2..].split_at(usize::from(rest[1]));
        let number = &number[number.len().saturating_sub(length)..];
        both.resize(both.len() + length - number.len(), 0);
        both.extend_from_slice(number);
        rest = after;
    }
    both
}

pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

fn config(origin: &Origin, consumers: &[Value]) -> Value {
    json!({
        "routes": [{
            "id": "all", "uri": "/*", "plugins": { "jwt-auth": {} }, "upstream": { "nodes": { (origin.node()): 1 } },
        }],
        "consumers": consumers,
    })
}

fn ask(gateway: &Gateway, token: &str) -> (u16, String) {
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n\r\n");
    let response = gateway.client().request(request);
    (response.status, response.text())
}

const FAILED: &str = "{\"message\":\"failed to verify jwt\"}\n";

#[test]
fn every_algorithm_is_verified_and_taken_for_no_other() {
    let signers = ALGORITHMS.map(Signer::new);
    let origin = Origin::echo();
    let gateway = Gateway::start(config(&origin, &signers.each_ref().map(Signer::consumer)));
    each(
        &signers,
        |signer| signer.name.to_owned(),
        |signer| {
            let claims = json!({ "key": signer.name, "exp": now().as_secs() + 600, "of": signer.name });
            let token = signer.token(&claims);
            // The second time it is remembered.
            for time in ["first", "second"] {
                assert_eq!(ask(&gateway, &token).0, 200, "the {time} time: {token}");
            }
            let (signed, signature) = token.rsplit_once('.').expect("three parts");
            let (header, _) = signed.split_once('.').expect("three parts");
            let other = base64url(json!({ "key": signer.name, "exp": now().as_secs() + 6000 }).to_string().as_bytes());
            assert_eq!(ask(&gateway, &format!("{header}.{other}.{signature}")), (401, FAILED.into()), "other claims");
            assert_eq!(ask(&gateway, &format!("{signed}.")), (401, FAILED.into()), "no signature");
            // Signed well, though not as the consumer's tokens are.
            for consumer in ALGORITHMS.iter().filter(|name| **name != signer.name) {
                let token = signer.token(&json!({ "key": consumer }));
                assert_eq!(ask(&gateway, &token), (401, FAILED.into()), "{consumer}'s: {token}");
            }
        },
    );
    let seen: Vec<_> =
        origin.requests().iter().filter_map(|r| r.field("x-consumer-username").map(str::to_owned)).collect();
    for name in ALGORITHMS {
        assert_eq!(seen.iter().filter(|seen| *seen == name).count(), 2, "{name} in {seen:?}");
    }
}

#[test]
fn a_remembered_token_ends_with_its_time() {
    let signer = Signer::new("ES256");
    let origin = Origin::hello();
    let gateway = Start::new(config(&origin, &[signer.consumer()])).workers(2).start();
    let end = now().as_secs() + 6;
    let token = signer.token(&json!({ "key": "ES256", "exp": end }));
    let mut good = 0;
    let refused = wait_until("the token to end", LIMIT, || match ask(&gateway, &token) {
        (200, _) => {
            good += 1;
            None
        }
        answer => Some(answer),
    });
    assert_eq!(refused, (401, FAILED.into()));
    assert!(good > 1, "it was good {good} times");
    assert!(now().as_secs() >= end, "refused before its end");
    assert_eq!(ask(&gateway, &token), (401, FAILED.into()));
}

#[test]
fn a_remembered_token_ends_with_the_key_it_was_verified_by() {
    let origin = Origin::hello();
    let (old, new) = (Signer::new("ES256"), Signer::new("ES256"));
    let gateway = Gateway::start(config(&origin, &[old.consumer()]));
    let claims = json!({ "key": "ES256" });
    let (first, second) = (old.token(&claims), new.token(&claims));
    assert_eq!(ask(&gateway, &first).0, 200);
    assert_eq!(ask(&gateway, &second), (401, FAILED.into()));
    assert_eq!(gateway.reload(config(&origin, &[new.consumer()])), Reload::Applied);
    assert_eq!(ask(&gateway, &first), (401, FAILED.into()));
    assert_eq!(ask(&gateway, &second).0, 200);
    assert_eq!(gateway.reload(config(&origin, &[])), Reload::Applied);
    assert_eq!(ask(&gateway, &second), (401, "{\"message\":\"Invalid user key in JWT token\"}\n".into()));
    // A key that cannot be used refuses the change.
    let mut unusable = new.consumer();
    unusable["plugins"]["jwt-auth"]["algorithm"] = "ES384".into();
    assert_eq!(gateway.reload(config(&origin, &[unusable])), Reload::Rejected);
}

#[test]
fn a_csrf_token_is_taken_back() {
    let origin =
        Origin::answering(|_| Answer::keep("HTTP/1.1 200 OK\r\nSet-Cookie: own=1\r\nContent-Length: 0\r\n\r\n"));
    let gateway = Start::new(json!({ "routes": [{
        "id": "all", "uri": "/*", "plugins": { "csrf": { "key": "a secret", "expires": 600 } },
        "upstream": { "nodes": { (origin.node()): 1 } },
    }]}))
    .workers(2)
    .start();
    // The upstream's cookies stay, and an answer of the gateway's own has one as well.
    for (method, status, others) in [("GET", 200, 1), ("POST", 401, 0)] {
        let response = gateway.client().request(format!("{method} / HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        let cookies = response.fields.all("set-cookie");
        let cookie = cookies.iter().find_map(|cookie| cookie.strip_prefix("apisix-csrf-token="));
        let (token, attributes) = cookie.and_then(|cookie| cookie.split_once(';')).expect("a cookie with a token");
        assert_eq!((response.status, cookies.len()), (status, others + 1), "{method}: {cookies:?}");
        assert!(attributes.starts_with("path=/;SameSite=Lax;Expires="), "{attributes}");
        for (sent, status) in [(token, 200), (&token[4..], 401)] {
            let fields = format!("Cookie: own=1; apisix-csrf-token={sent}\r\napisix-csrf-token: {sent}\r\n");
            let response = gateway.client().request(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
            assert_eq!(response.status, status, "{response:?}");
        }
    }
}
