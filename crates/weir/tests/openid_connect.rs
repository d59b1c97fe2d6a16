//! `openid-connect`: access tokens, verified with keys that a provider publishes and by asking it; providers that are away,
//! slow, or lie.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use serde_json::{Value, json};

use crate::harness::{Answer, Authority, Connection, Gateway, Kind, LIMIT, Nginx, Origin, each, wait_until};
use crate::tokens::{Signer, base64url, hs256, now, openssl};

/// A key as providers publish them (RFC 7517).
pub(crate) fn jwk(signer: &Signer, id: &str) -> Value {
    let public = signer.file("public");
    if signer.name.starts_with("ES") {
        let der = openssl(&["pkey", "-pubin", "-in", &public, "-outform", "DER"], b"");
        let point = &der[der.len() - 64..];
        let (x, y) = (base64url(&point[..32]), base64url(&point[32..]));
        return json!({ "kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y });
    }
    let text = openssl(&["rsa", "-pubin", "-in", &public, "-modulus", "-noout"], b"");
    let text = String::from_utf8(text).expect("text");
    let digits = text.trim().strip_prefix("Modulus=").expect("a modulus").as_bytes();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).expect("digits"), 16).expect("a byte");
    let modulus: Vec<u8> = digits.chunks(2).map(byte).collect();
    json!({ "kty": "RSA", "kid": id, "alg": signer.name, "n": base64url(&modulus), "e": "AQAB" })
}

/// Answers of a provider beside its discovery document; the issuer is `http://issuer.test`.
pub(crate) struct Said {
    pub(crate) keys: Value,
    /// The answer about any token.
    pub(crate) about: Value,
    /// Further members of the discovery document.
    pub(crate) more: Value,
    /// The answer of the token endpoint.
    pub(crate) tokens: Value,
}

/// A provider that says what it is told to say.
pub(crate) struct Provider {
    pub(crate) origin: Origin,
    said: Arc<Mutex<Said>>,
}

impl Provider {
    pub(crate) fn new(keys: Value) -> Self {
        let said =
            Arc::new(Mutex::new(Said { keys, about: json!({ "active": false }), more: json!({}), tokens: json!({}) }));
        let says = Arc::clone(&said);
        let origin = Origin::answering(move |request| {
            let said = says.lock().expect("what is said");
            let host = request.field("host").unwrap_or_default();
            let body = match request.target.split('?').next() {
                Some("/discovery" | "/.well-known/openid-configuration") => {
                    let mut document = json!({
                        "issuer": "http://issuer.test",
                        "jwks_uri": format!("http://{host}/keys"),
                        "introspection_endpoint": format!("http://{host}/about"),
                        "authorization_endpoint": "http://login.test/authorize?tenant=1",
                        "token_endpoint": format!("http://{host}/tokens"),
                    });
                    let Value::Object(more) = said.more.clone() else { panic!("members") };
                    document.as_object_mut().expect("an object").extend(more);
                    document
                }
                Some("/tokens") => said.tokens.clone(),
                Some("/keys") => said.keys.clone(),
                Some("/about" | "/elsewhere") => said.about.clone(),
                _ => return Answer::status(404, "there is no such thing"),
            };
            Answer::ok(&body.to_string())
        });
        Self { origin, said }
    }

    pub(crate) fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().expect("what is said"));
    }

    fn asked(&self, target: &str) -> usize {
        self.origin.requests().iter().filter(|request| request.target == target).count()
    }

    /// A configuration that takes bearer tokens of this provider.
    fn conf(&self, more: Value) -> Value {
        conf_at(&format!("http://{}/discovery", self.origin.node()), more)
    }
}

fn conf_at(discovery: &str, more: Value) -> Value {
    let mut conf = json!({
        "client_id": "gate way", "client_secret": "a secret", "discovery": discovery, "bearer_only": true,
    });
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.as_object_mut().expect("an object").extend(more);
    conf
}

/// A gateway with a route for each of these configurations, at `/0`, `/1` and so on.
fn gateway(node: &str, confs: &[Value]) -> Gateway {
    let route = |(at, conf): (usize, &Value)| {
        let upstream = json!({ "nodes": { node: 1 } });
        json!({ "id": format!("r{at}"), "uri": format!("/{at}"), "upstream": upstream, "plugins": { "openid-connect": conf } })
    };
    Gateway::start(json!({ "routes": confs.iter().enumerate().map(route).collect::<Vec<_>>() }))
}

/// Status, challenge or failure, and body for a request with this token.
fn ask(gateway: &Gateway, path: &str, token: &str) -> (u16, String, String) {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\nX-Tenant: one\r\n\r\n");
    let response = gateway.client().request(request);
    let why = response.field("www-authenticate").or(response.field("x-weir-error")).unwrap_or_default().to_owned();
    (response.status, why, response.text())
}

/// Claims of a good token, with changes: a null takes a claim out.
fn claims(changes: Value) -> Value {
    let mut claims = json!({
        "iss": "http://issuer.test", "sub": "jack", "exp": now().as_secs() + 600, "aud": ["gate way"], "scope": "a b",
    });
    let Value::Object(changes) = changes else { panic!("claims are an object") };
    let all = claims.as_object_mut().expect("an object");
    for (name, value) in changes {
        if value.is_null() {
            all.remove(&name);
        } else {
            all.insert(name, value);
        }
    }
    claims
}

#[test]
fn tokens_are_verified_with_published_keys() {
    let (rsa, ec, stranger) = (Signer::new("RS256"), Signer::new("ES256"), Signer::new("RS256"));
    let encryption = json!({ "kty": "RSA", "use": "enc", "kid": "r", "n": "AQAB", "e": "AQAB" });
    let secret = json!({ "kty": "oct", "kid": "o", "k": base64url(b"published") });
    let provider =
        Provider::new(json!({ "keys": [encryption, secret, { "kty": "new" }, jwk(&rsa, "r"), jwk(&ec, "e")] }));
    let origin = Origin::echo();
    let public = fs::read_to_string(rsa.file("public")).expect("a key");
    let confs = [
        json!({ "use_jwks": true }),
        json!({ "use_jwks": true, "token_signing_alg_values_expected": "ES256", "iat_slack": 0 }),
        json!({ "use_jwks": true, "required_scopes": ["a", "c"] }),
        json!({ "use_jwks": true, "claim_validator": { "issuer": { "valid_issuers": ["x", "y"] } } }),
        json!({ "use_jwks": true, "claim_validator": { "audience": { "claim": "for", "required": true } } }),
        json!({ "use_jwks": true, "claim_validator": { "audience": { "match_with_client_id": true } } }),
        json!({ "public_key": public }),
        json!({ "use_jwks": true, "token_signing_alg_values_expected": "HS256" }),
        json!({ "use_jwks": true, "set_access_token_header": false, "set_userinfo_header": false }),
        json!({ "use_jwks": true, "access_token_in_authorization_header": true }),
    ];
    let confs: Vec<_> = confs.into_iter().map(|more| provider.conf(more)).collect();
    let gateway = gateway(&origin.node(), &confs);
    let by = |signer: &Signer, id: &str, changes: Value| {
        signer.token_with(&json!({ "alg": signer.name, "kid": id }), &claims(changes))
    };
    let past = now().as_secs() - 60;
    let good = by(&rsa, "r", json!({}));
    let (signed, signature) = good.rsplit_once('.').expect("three parts");
    let (header, body) = signed.split_once('.').expect("three parts");
    let part = |value: Value| base64url(value.to_string().as_bytes());
    let key_as_secret = |secret: &str| hs256(r#"{"alg":"HS256"}"#, &claims(json!({})).to_string(), secret);
    let cases: Vec<(&str, &str, String, u16)> = vec![
        ("RSA", "/0", good.clone(), 200),
        ("once more", "/0", good.clone(), 200),
        ("an elliptic curve", "/0", by(&ec, "e", json!({})), 200),
        ("no id of a key", "/0", ec.token_with(&json!({ "alg": "ES256" }), &claims(json!({}))), 200),
        ("another's key", "/0", by(&stranger, "r", json!({})), 401),
        ("an unknown key", "/0", by(&stranger, "s", json!({})), 401),
        ("the id of another key", "/0", by(&ec, "r", json!({})), 401),
        (
            "another algorithm of the key",
            "/0",
            rsa.token_with(&json!({ "alg": "RS512", "kid": "r" }), &claims(json!({}))),
            401,
        ),
        ("no signature", "/0", format!("{signed}."), 401),
        ("alg none", "/0", format!("{}.{body}.", part(json!({ "alg": "none" }))), 401),
        ("other claims", "/0", format!("{header}.{}.{signature}", part(claims(json!({ "sub": "jill" })))), 401),
        (
            "an extension",
            "/0",
            rsa.token_with(&json!({ "alg": "RS256", "crit": ["x"], "x": 1 }), &claims(json!({}))),
            401,
        ),
        ("the public key as a secret", "/0", key_as_secret(&public), 401),
        ("a published secret", "/0", key_as_secret("published"), 401),
        ("the client's secret where that is not expected", "/0", key_as_secret("a secret"), 401),
        ("the public key as the expected secret", "/7", key_as_secret(&public), 401),
        ("the client's secret", "/7", key_as_secret("a secret"), 200),
        ("a key where a secret is expected", "/7", good.clone(), 401),
        ("the public key as a secret for a given key", "/6", key_as_secret(&public), 401),
        ("another issuer", "/0", by(&rsa, "r", json!({ "iss": "http://other.test" })), 401),
        ("no issuer", "/0", by(&rsa, "r", json!({ "iss": null })), 401),
        ("within the slack", "/0", by(&rsa, "r", json!({ "exp": past })), 200),
        ("expired", "/0", by(&rsa, "r", json!({ "exp": past - 120 })), 401),
        ("not yet", "/0", by(&rsa, "r", json!({ "nbf": now().as_secs() + 600 })), 401),
        ("of the future", "/0", by(&rsa, "r", json!({ "iat": now().as_secs() + 600 })), 401),
        ("a time that is none", "/0", by(&rsa, "r", json!({ "exp": "never" })), 401),
        ("without slack", "/1", by(&ec, "e", json!({ "exp": past })), 401),
        ("the expected algorithm", "/1", by(&ec, "e", json!({})), 200),
        ("another algorithm", "/1", good.clone(), 401),
        ("a scope is missing", "/2", good.clone(), 403),
        ("all scopes", "/2", by(&rsa, "r", json!({ "scope": "c a" })), 200),
        ("scopes in a list", "/2", by(&rsa, "r", json!({ "scope": ["c", "a"] })), 200),
        ("the own issuer where others are named", "/3", good.clone(), 401),
        ("a named issuer", "/3", by(&rsa, "r", json!({ "iss": "y" })), 200),
        ("no audience", "/4", good.clone(), 403),
        ("an audience", "/4", by(&rsa, "r", json!({ "for": "any" })), 200),
        ("the own audience", "/5", good.clone(), 200),
        ("another audience", "/5", by(&rsa, "r", json!({ "aud": "gate" })), 403),
        ("a given key", "/6", good.clone(), 200),
        ("another key than the given one", "/6", by(&ec, "e", json!({})), 401),
    ];
    each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, path, token, status)| {
            let (found, why, body) = ask(&gateway, path, token);
            assert_eq!(found, *status, "{path}: {why} {body}");
            if found == 401 {
                assert!(
                    why.starts_with("Bearer realm=\"apisix\", error=\"invalid_token\", error_description="),
                    "{why}"
                );
            }
        },
    );
    assert_eq!(ask(&gateway, "/2", &good).2, r#"{"error":"required scopes a, c not present"}"#);
    assert_eq!(ask(&gateway, "/4", &good).2, r#"{"error":"required audience claim not present"}"#);
    // Fields that the upstream receives.
    let user = |fields: &crate::harness::Request| fields.field("x-userinfo").map(str::to_owned);
    for (path, access, authorization, tells) in [
        ("/0", Some(good.as_str()), format!("Bearer {good}"), true),
        ("/8", None, format!("Bearer {good}"), false),
        ("/9", None, format!("Bearer {good}"), true),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: bearer {good}\r\nX-Userinfo: e30=\r\nX-ID-Token: e30=\r\n\r\n"
        );
        assert_eq!(gateway.client().request(request).status, 200, "{path}");
        let asked = origin.last();
        assert_eq!(asked.field("x-access-token"), access, "{path}");
        assert!(asked.field("authorization").is_some_and(|sent| sent.eq_ignore_ascii_case(&authorization)), "{path}");
        assert_eq!(asked.field("authorization").is_some_and(|sent| sent.starts_with("Bearer")), path == "/9", "{path}");
        assert_eq!(asked.field("x-id-token"), None);
        assert_eq!(user(&asked).is_some(), tells, "{path}");
        if let Some(user) = user(&asked) {
            let text = openssl(&["base64", "-d", "-A"], user.as_bytes());
            assert_eq!(serde_json::from_slice::<Value>(&text).expect("JSON")["sub"], "jack");
        }
    }
}

#[test]
fn keys_are_fetched_again_when_they_change() {
    let (old, new) = (Signer::new("ES256"), Signer::new("ES256"));
    let provider = Provider::new(json!({ "keys": [jwk(&old, "old")] }));
    let origin = Origin::hello();
    let confs = [
        provider.conf(json!({ "use_jwks": true })),
        provider.conf(json!({ "use_jwks": true, "jwk_expires_in": 1, "jwt_verification_cache_ignore": true })),
    ];
    let gateway = gateway(&origin.node(), &confs);
    let token =
        |signer: &Signer, id: &str| signer.token_with(&json!({ "alg": "ES256", "kid": id }), &claims(json!({})));
    let (first, second) = (token(&old, "old"), token(&new, "new"));
    for _ in 0..5 {
        assert_eq!(ask(&gateway, "/0", &first).0, 200);
    }
    assert_eq!((provider.asked("/discovery"), provider.asked("/keys")), (1, 1));
    provider.say(|said| said.keys = json!({ "keys": [jwk(&new, "new")] }));
    assert_eq!(ask(&gateway, "/0", &second).0, 200, "an unknown key has the keys fetched");
    // Tokens of made up keys do not make the gateway ask and ask.
    for id in 0..20 {
        assert_eq!(ask(&gateway, "/0", &token(&old, &id.to_string())).0, 401);
        assert_eq!(ask(&gateway, "/0", &second).0, 200);
    }
    assert!(provider.asked("/keys") <= 4, "asked {} times", provider.asked("/keys"));
    // Without a memory for signatures a token ends with its key.
    provider.say(|said| said.keys = json!({ "keys": [jwk(&old, "old"), jwk(&new, "new")] }));
    assert_eq!(ask(&gateway, "/1", &first).0, 200);
    provider.say(|said| said.keys = json!({ "keys": [jwk(&new, "new")] }));
    wait_until("the key to be forgotten", LIMIT, || (ask(&gateway, "/1", &first).0 == 401).then_some(()));
}

#[test]
fn the_provider_is_asked_about_tokens() {
    let key = Signer::new("RS256");
    let private = fs::read_to_string(key.file("key")).expect("a key");
    let provider = Provider::new(json!({}));
    let origin = Origin::echo();
    let elsewhere = format!("http://{}/elsewhere", provider.origin.node());
    let confs = [
        json!({}),
        json!({ "introspection_endpoint": elsewhere, "introspection_endpoint_auth_method": "client_secret_post",
                "introspection_addon_headers": ["X-Tenant", "X-Absent"] }),
        json!({ "introspection_endpoint_auth_method": "client_secret_jwt" }),
        json!({ "introspection_endpoint_auth_method": "private_key_jwt", "client_rsa_private_key": private,
                "client_rsa_private_key_id": "mine", "client_jwt_assertion_expires_in": 17 }),
    ];
    let confs: Vec<_> = confs.into_iter().map(|more| provider.conf(more)).collect();
    let gateway = gateway(&origin.node(), &confs);
    for about in [
        json!({ "active": false }),
        json!({ "active": "true" }),
        json!({}),
        json!({ "active": true, "exp": now().as_secs() - 600 }),
    ] {
        provider.say(|said| said.about = about.clone());
        let (status, why, _) = ask(&gateway, "/0", "opaque");
        assert_eq!(status, 401, "{about}");
        assert!(why.contains("invalid_token"), "{why}");
    }
    provider.say(|said| said.about = json!({ "active": true, "sub": "jack" }));
    let last = || {
        let request = provider.origin.last();
        let body = String::from_utf8(request.body.clone()).expect("a form");
        (request, body)
    };
    assert_eq!(ask(&gateway, "/0", "opaque/%").0, 200);
    let (asked, form) = last();
    assert_eq!((asked.method.as_str(), asked.target.as_str(), form.as_str()), ("POST", "/about", "token=opaque%2F%25"));
    // RFC 6749 section 2.3.1: id and secret are encoded before they are joined.
    assert_eq!(asked.field("authorization"), Some("Basic Z2F0ZSUyMHdheTphJTIwc2VjcmV0"));
    assert_eq!(asked.field("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(asked.field("x-tenant"), None);
    assert_eq!(ask(&gateway, "/1", "opaque").0, 200);
    let (asked, form) = last();
    assert_eq!((asked.target.as_str(), asked.field("authorization")), ("/elsewhere", None));
    assert_eq!(form, "token=opaque&client_id=gate%20way&client_secret=a%20secret");
    assert_eq!((asked.field("x-tenant"), asked.field("x-absent")), (Some("one"), None));
    for (path, algorithm, id) in [("/2", "HS256", None), ("/3", "RS256", Some("mine"))] {
        assert_eq!(ask(&gateway, path, "opaque").0, 200);
        let (asked, form) = last();
        assert_eq!(asked.field("authorization"), None);
        assert!(
            form.contains("client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer")
        );
        let assertion = form.rsplit_once("client_assertion=").expect("a proof").1;
        let parts: Vec<&str> = assertion.split('.').collect();
        let decoded = |part: &str| {
            let padded =
                format!("{}{}", part.replace('-', "+").replace('_', "/"), "=".repeat((4 - part.len() % 4) % 4));
            openssl(&["base64", "-d", "-A"], padded.as_bytes())
        };
        let read = |part: &str| serde_json::from_slice::<Value>(&decoded(part)).expect("JSON");
        let (header, claims) = (read(parts[0]), read(parts[1]));
        assert_eq!((header["alg"].as_str(), header["kid"].as_str()), (Some(algorithm), id));
        assert_eq!((&claims["iss"], &claims["sub"]), (&json!("gate way"), &json!("gate way")));
        assert_eq!(claims["aud"], format!("http://{}/about", provider.origin.node()));
        let lives = claims["exp"].as_u64().expect("exp") - claims["iat"].as_u64().expect("iat");
        assert_eq!(lives, if id.is_some() { 17 } else { 60 });
        let signed = format!("{}.{}", parts[0], parts[1]);
        if id.is_some() {
            fs::write(key.file("signature"), decoded(parts[2])).expect("write a signature");
            let arguments = ["dgst", "-sha256", "-verify", &key.file("public"), "-signature", &key.file("signature")];
            assert!(openssl(&arguments, signed.as_bytes()).starts_with(b"Verified OK"));
        } else {
            let mac = openssl(&["dgst", "-sha256", "-hmac", "a secret", "-binary"], signed.as_bytes());
            assert_eq!(decoded(parts[2]), mac);
        }
    }
}

#[test]
fn answers_about_tokens_are_remembered_as_long_as_they_hold() {
    let provider = Provider::new(json!({}));
    let origin = Origin::hello();
    let confs = [
        provider.conf(json!({})),
        provider.conf(json!({ "introspection_interval": 1 })),
        provider.conf(json!({ "introspection_expiry_claim": "until" })),
    ];
    let gateway = gateway(&origin.node(), &confs);
    let end = now().as_secs() + 600;
    provider.say(|said| said.about = json!({ "active": true, "exp": end }));
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "/0", "one").0, 200);
        assert_eq!(ask(&gateway, "/1", "one").0, 200);
    }
    assert_eq!(ask(&gateway, "/0", "two").0, 200);
    assert!(provider.asked("/about") >= 3);
    // The other place has its own memory; each answer without the claim is for one request.
    let before = provider.asked("/about");
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "/2", "one").0, 200);
    }
    assert_eq!(provider.asked("/about"), before + 3);
    provider.say(|said| said.about = json!({ "active": true, "until": end }));
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "/2", "three").0, 200);
    }
    assert_eq!(provider.asked("/about"), before + 4);
    // A token that is revoked is refused when the interval has passed, and else when its time is over.
    provider.say(|said| said.about = json!({ "active": false }));
    wait_until("the answer to be asked for again", LIMIT, || (ask(&gateway, "/1", "one").0 == 401).then_some(()));
    assert_eq!(ask(&gateway, "/0", "one").0, 200);
}

#[test]
fn endpoints_are_asked_at_known_origins_only() {
    let (provider, other) = (Provider::new(json!({})), Provider::new(json!({})));
    other.say(|said| said.about = json!({ "active": true }));
    let endpoint = format!("http://{}/about", other.origin.node());
    provider.say(|said| said.more = json!({ "introspection_endpoint": endpoint }));
    let origin = Origin::hello();
    let named = format!("http://{}", other.origin.node());
    let confs = [provider.conf(json!({})), provider.conf(json!({ "endpoint_origins": [named] }))];
    let gateway = gateway(&origin.node(), &confs);
    let (status, why, _) = ask(&gateway, "/0", "opaque");
    assert_eq!(status, 503);
    assert!(why.contains("endpoint_origins"), "{why}");
    assert_eq!(other.origin.requests().len(), 0, "the secret went nowhere");
    assert_eq!(ask(&gateway, "/1", "opaque").0, 200);
}

#[test]
fn a_provider_that_fails_lets_nobody_pass() {
    let go = Arc::<AtomicBool>::default();
    let goes = Arc::clone(&go);
    let slow = Origin::scripted(move |connection: &mut Connection| {
        while connection.request().is_some() && !goes.load(SeqCst) {
            thread::yield_now();
        }
    });
    let count = Arc::<AtomicUsize>::default();
    let liars: Vec<Origin> =
        ["[]", "{}", "{\"issuer\":7}", "not JSON", "{\"issuer\":\"\"}", "{\"issuer\":\"http://issuer.test\"}"]
            .into_iter()
            .map(|body| {
                let count = Arc::clone(&count);
                Origin::answering(move |_| {
                    count.fetch_add(1, SeqCst);
                    Answer::ok(body)
                })
            })
            .collect();
    let wrong_keys = Provider::new(json!({ "keys": "none" }));
    let origin = Origin::hello();
    let mut confs = vec![
        conf_at(&format!("http://{}/x", slow.node()), json!({ "use_jwks": true, "timeout": 1 })),
        conf_at("http://127.0.0.1:1/x", json!({ "use_jwks": true })),
        wrong_keys.conf(json!({ "use_jwks": true })),
        wrong_keys.conf(json!({ "introspection_endpoint": format!("http://{}/absent", wrong_keys.origin.node()) })),
    ];
    confs.extend(liars.iter().map(|liar| conf_at(&format!("http://{}/x", liar.node()), json!({ "use_jwks": true }))));
    let gateway = gateway(&origin.node(), &confs);
    let token = Signer::new("ES256").token_with(&json!({ "alg": "ES256" }), &claims(json!({})));
    for at in 0..confs.len() {
        for _ in 0..2 {
            let (status, why, _) = ask(&gateway, &format!("/{at}"), &token);
            assert_eq!(status, 503, "{at}: {why}");
        }
    }
    assert_eq!(origin.requests().len(), 0);
    // A failure is not remembered; the last one has a document, though without keys.
    assert_eq!(count.load(SeqCst), 2 * liars.len() - 1);
    go.store(true, SeqCst);
}

#[test]
fn the_certificate_of_the_provider_is_verified() {
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{{\"issuer\":\"x\"}}'; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let origin = Origin::hello();
    let at = format!("https://{}/x", nginx.node());
    let confs =
        [conf_at(&at, json!({ "use_jwks": true })), conf_at(&at, json!({ "use_jwks": true, "ssl_verify": false }))];
    let gateway = gateway(&origin.node(), &confs);
    let token = Signer::new("ES256").token_with(&json!({ "alg": "ES256" }), &claims(json!({})));
    // The document of an unknown server is not read; with it, the keys are what is missing.
    assert!(ask(&gateway, "/0", &token).1.contains("no answer from the provider"));
    assert!(ask(&gateway, "/1", &token).1.contains("lacks an endpoint"));
}
