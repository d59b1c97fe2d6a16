//! Ways of authentication beside keys: signatures, identity providers, and several at a time.

use std::process::Command;

use serde_json::{Value, json};

use super::{Site, ask, error, key, keyed, right, send, told};
use crate::openid_connect::{Provider, jwk};
use crate::signatures::base64;
use crate::tokens::{Signer, now, openssl};

/// The `Date` of some seconds from now.
fn date(from_now: i32) -> String {
    let mut command = Command::new("date");
    command.env("LC_ALL", "C").args(["-u", "-d", &format!("{from_now} seconds"), "+%a, %d %b %Y %H:%M:%S GMT"]);
    let output = command.output().expect("run date");
    String::from_utf8(output.stdout).expect("a date").trim().to_owned()
}

/// A signature of a text, percent-encoded as Tyk's clients send it.
fn signature(digest: &str, secret: &str, text: &str) -> String {
    let made = openssl(&["dgst", &format!("-{digest}"), "-hmac", secret, "-binary"], text.as_bytes());
    base64(&made).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

#[test]
fn requests_are_signed_with_the_secret_of_a_key() {
    let site = Site::new();
    let mut signed = keyed("signed");
    signed["enable_signature_checking"] = true.into();
    signed["hmac_allowed_clock_skew"] = 60_000.into();
    signed["hmac_allowed_algorithms"] = json!(["hmac-sha1", "hmac-sha256"]);
    site.api("signed", signed);
    let gateway = site.start();
    let secret = json!({"hmac_enabled": true, "hmac_string": "a secret"});
    assert_eq!(ask(&gateway, "POST", "/tyk/keys/hmac1", &right("signed", secret)).0, 200);
    let disabled = json!({"hmac_enabled": false, "hmac_string": "a secret"});
    assert_eq!(ask(&gateway, "POST", "/tyk/keys/hmac2", &right("signed", disabled)).0, 200);
    let request = |id: &str, algorithm: &str, date: &str, path: &str, signed: &str| {
        let digest = algorithm.trim_start_matches("hmac-");
        let text = format!("(request-target): get {signed}\ndate: {date}\nx-a: 1");
        let signature = signature(digest, "a secret", &text);
        format!(
            "GET {path}\nX-A: 1\nDate: {date}\nAuthorization: Signature keyId=\"{id}\",algorithm=\"{algorithm}\",headers=\"(request-target) date x-a\",signature=\"{signature}\""
        )
    };
    let today = date(0);
    let fault = (400, error("Authorization field missing, malformed or invalid"));
    let good = request("hmac1", "hmac-sha256", &today, "/signed/x", "/signed/x");
    for (case, is_good) in [
        (good.clone(), true),
        (request("hmac1", "hmac-sha1", &today, "/signed/x", "/signed/x"), true),
        (
            good.replace("Date:", "X-Aux-Date:").replace("\"(request-target) date", "\"(request-target) x-aux-date"),
            false,
        ),
        (request("hmac1", "hmac-sha512", &today, "/signed/x", "/signed/x"), false),
        (request("hmac1", "hmac-sha256", &today, "/signed/y", "/signed/x"), false),
        (request("hmac1", "hmac-sha256", &date(-90), "/signed/x", "/signed/x"), false),
        (request("hmac2", "hmac-sha256", &today, "/signed/x", "/signed/x"), false),
        (request("hmac3", "hmac-sha256", &today, "/signed/x", "/signed/x"), false),
        (good.replace("X-A: 1", "X-A: 2"), false),
        ("GET /signed/x".to_owned(), false),
        ("GET /signed/x\nAuthorization: hmac1".to_owned(), false),
    ] {
        let answer = told(&send(&gateway, &case));
        match is_good {
            true => assert_eq!(answer.0, 200, "{case}: {answer:?}"),
            false => assert_eq!(answer, fault, "{case}"),
        }
    }
}

#[test]
fn several_ways_have_to_succeed_and_one_says_who_calls() {
    let site = Site::new();
    for (id, base) in [("last", ""), ("basic", "basic_auth_user"), ("token", "auth_token")] {
        let mut both = keyed(id);
        both["use_basic_auth"] = true.into();
        both["use_standard_auth"] = true.into();
        both["base_identity_provided_by"] = base.into();
        both["auth_configs"] = json!({"authToken": {"auth_header_name": "X-Key"}});
        site.api(id, both);
    }
    let gateway = site.start();
    let rights = json!({"last": {}, "basic": {}, "token": {}});
    let own =
        key(&gateway, &right("last", json!({"access_rights": rights, "quota_max": 100, "quota_renewal_rate": 60})));
    let user = json!({"access_rights": rights, "quota_max": 7, "quota_renewal_rate": 60, "basic_auth_data": {"password": "pass"}});
    assert_eq!(ask(&gateway, "POST", "/tyk/keys/joe", &right("last", user)).0, 200);
    // joe:pass
    let both = format!("Authorization: Basic am9lOnBhc3M=\nX-Key: {own}");
    for (id, limit) in [("last", "100"), ("basic", "7"), ("token", "100")] {
        let passed = send(&gateway, &format!("GET /{id}/\n{both}"));
        assert_eq!((passed.status, passed.field("X-Ratelimit-Limit")), (200, Some(limit)), "{id}: {passed:?}");
        assert_eq!(send(&gateway, &format!("GET /{id}/\nX-Key: {own}")).status, 401);
        assert_eq!(send(&gateway, &format!("GET /{id}/\nAuthorization: Basic am9lOnBhc3M=")).status, 401);
    }
}

#[test]
fn tokens_of_identity_providers_stand_for_policies() {
    let signer = Signer::new("RS256");
    let provider = Provider::new(json!({"keys": [jwk(&signer, "k1")]}));
    let issuer = format!("http://{}", provider.origin.node());
    let site = Site::new();
    // The id of the client is `client` in base64.
    let openid = |id: &str, issuer: &str| {
        let mut api = keyed(id);
        api["use_openid"] = true.into();
        api["openid_options"] =
            json!({"providers": [{"issuer": issuer, "client_ids": {"Y2xpZW50": "p"}}], "segregate_by_client": false});
        api
    };
    site.api("oidc", openid("oidc", &issuer));
    site.api("gone", openid("gone", "http://127.0.0.1:1"));
    let rights = json!({"oidc": {}, "gone": {}});
    site.write(
        "policies.json",
        json!({"p": {"org_id": "o1", "rate": 2, "per": 60, "quota_max": -1, "access_rights": rights}}),
    );
    let gateway = site.start();
    let token = |more: Value| {
        let mut claims = json!({"iss": issuer, "aud": "client", "sub": "u1", "exp": now().as_secs() + 60});
        for (name, value) in more.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        signer.token_with(&json!({"alg": "RS256", "kid": "k1"}), &claims)
    };
    let ask = |id: &str, token: &str| told(&send(&gateway, &format!("GET /{id}/\nAuthorization: Bearer {token}")));
    let refused = (401, error("Key not authorised"));
    let good = token(json!({}));
    assert_eq!([ask("oidc", &good).0, ask("oidc", &good).0, ask("oidc", &good).0], [200, 200, 429]);
    assert_eq!(ask("oidc", &token(json!({"sub": "u2", "aud": ["other", "client"]}))).0, 200, "each user has counts");
    let (signed, _) = good.rsplit_once('.').expect("a signature");
    for bad in [
        format!("{signed}.AAAA"),
        token(json!({"aud": "other"})),
        token(json!({"iss": "http://issuer.test"})),
        token(json!({"exp": now().as_secs() - 5})),
        token(json!({"exp": null})),
        token(json!({"nbf": now().as_secs() + 60})),
        token(json!({"sub": ""})),
        "garbage".to_owned(),
        String::new(),
    ] {
        assert_eq!(ask("oidc", &bad), refused, "{bad}");
    }
    assert_eq!(ask("gone", &token(json!({"iss": "http://127.0.0.1:1"}))), refused, "the provider is away");
}

#[test]
fn tokens_come_with_signatures_of_the_second() {
    let site = Site::new();
    let signed = |id: &str, more: Value| {
        let mut api = keyed(id);
        let mut signature = json!({"algorithm": "MasherySHA256", "header": "X-Signature", "secret": "$tyk_meta.secret", "allowed_clock_skew": 30});
        crate::loggers::extend(&mut signature, more);
        api["auth"] = json!({"auth_header_name": "Authorization", "validate_signature": true, "signature": signature});
        api
    };
    site.api("sha", signed("sha", json!({})));
    site.api(
        "md5",
        signed(
            "md5",
            json!({"algorithm": "MasheryMD5", "secret": "fixed", "use_param": true, "param_name": "sig",
        "error_code": 403, "error_message": "unsigned"}),
        ),
    );
    let gateway = site.start();
    let session = right("sha", json!({"meta_data": {"secret": "own"}, "access_rights": {"sha": {}, "md5": {}}}));
    let (_, made) = ask(&gateway, "POST", "/tyk/keys/o1plain", &session);
    assert_eq!(made["key"], "o1plain", "{made}");
    let described = key(&gateway, &session);
    let id: Value = serde_json::from_slice(&openssl(&["base64", "-d", "-A"], described.as_bytes())).expect("JSON");
    let id = id["id"].as_str().expect("an id");
    let bare = key(&gateway, &right("sha", json!({"meta_data": {}})));
    let digest = |kind: &str, id: &str, secret: &str, from_now: i64| {
        let second = now().as_secs() as i64 + from_now;
        let made = openssl(&["dgst", &format!("-{kind}"), "-binary"], format!("{id}{secret}{second}").as_bytes());
        made.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let call = |key: &str, signature: &str| {
        told(&send(&gateway, &format!("GET /sha/\nAuthorization: {key}\nX-Signature: {signature}")))
    };
    for (key, signature, is_good) in [
        ("o1plain", digest("sha256", "plain", "own", 0), true),
        ("o1plain", digest("sha256", "o1plain", "own", 0), true),
        (&described, digest("sha256", id, "own", -20), true),
        (&described, digest("sha256", id, "own", 20), true),
        (&described, digest("sha256", id, "own", -300), false),
        (&described, digest("sha256", id, "other", 0), false),
        (&described, digest("md5", id, "own", 0), false),
        (&described, String::new(), false),
        (&described, "no digits".to_owned(), false),
        (&bare, digest("sha256", "", "", 0), false),
    ] {
        let (status, body) = call(key, &signature);
        match is_good {
            true => assert_eq!(status, 200, "{key} {signature}: {body}"),
            false => {
                assert_eq!((status, body), (401, error("Request signature verification failed")), "{key} {signature}")
            }
        }
    }
    let with = |signature: &str| told(&send(&gateway, &format!("GET /md5/?sig={signature}\nAuthorization: o1plain")));
    assert_eq!(with(&digest("md5", "plain", "fixed", 0)).0, 200);
    assert_eq!(with("00"), (403, error("unsigned")));
    assert_eq!(told(&send(&gateway, "GET /sha/\nAuthorization: wrong")).0, 403, "an unknown key stays one");
    for (more, expected) in [
        (json!({"algorithm": "SHA1"}), "signature.algorithm: expected one of: MasherySHA256, MasheryMD5"),
        (json!({"header": "a b"}), "signature.header: expected the name of a header"),
        (json!({"allowed_clock_skew": 10_000}), "signature.allowed_clock_skew: expected seconds from 0 to 900"),
        (json!({"secret": "$tyk_context.path"}), "signature.secret: expected a secret, or $tyk_meta.NAME"),
        (json!({"error_code": 200}), "signature.error_code: expected a status from 400 to 599"),
    ] {
        site.api("sha", signed("sha", more));
        let (status, out, err) = crate::harness::weir(&["check", site.apps().to_str().expect("a path")]);
        let text = out + &err;
        assert!(status != 0 && text.contains(expected), "{expected}: {text}");
    }
}
