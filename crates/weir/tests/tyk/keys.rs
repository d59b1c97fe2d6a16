//! Keys, users, tokens and their limits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Origin, Redis, Start, weir};

use super::{Site, ask, error, key, keyed, keyless, right, send, told};

#[test]
fn keys_are_checked_as_in_tyk() {
    let site = Site::new();
    site.api("at", keyed("at"));
    let mut other = keyed("other");
    other["auth"] = json!({"auth_header_name": "X-Key", "use_param": true, "param_name": "key", "use_cookie": true, "cookie_name": "ck"});
    other["strip_auth_data"] = true.into();
    site.api("other", other);
    let gateway = site.start();
    let rights = json!({"at": {"api_id": "at", "versions": ["v9"], "allowed_urls": [{"url": "/good/(.*)", "methods": ["GET"]}]}});
    let [at, both, limited, inactive, expired] = [
        right("at", json!({})),
        right("at", json!({"access_rights": {"at": {}, "other": {}}})),
        right("at", json!({"access_rights": rights})),
        right("at", json!({"is_inactive": true})),
        right("at", json!({"expires": 1000})),
    ]
    .map(|session| key(&gateway, &session));
    let disallowed = error("Access to this API has been disallowed");
    for (request, expected) in [
        ("GET /at/x".to_owned(), (401, error("Authorization field missing"))),
        (
            "GET /at/x\nContent-Type: text/xml; charset=utf-8".to_owned(),
            (
                401,
                "<?xml version = \"1.0\" encoding = \"UTF-8\"?>\n<error>Authorization field missing</error>\n"
                    .to_owned(),
            ),
        ),
        ("GET /at/x\nAuthorization: wrong".to_owned(), (403, disallowed.clone())),
        (format!("GET /at/x\nAuthorization: {at}"), (200, String::new())),
        (format!("GET /at/x\nAuthorization: Bearer {at}"), (200, String::new())),
        (format!("GET /at/x\nAuthorization: bearer {at}"), (200, String::new())),
        (format!("GET /at/x\nAuthorization: Token {at}"), (403, disallowed.clone())),
        (format!("GET /at/x\nAuthorization: Bearer  {at}"), (403, disallowed.clone())),
        (format!("GET /other/x\nX-Key: {at}"), (403, disallowed)),
        (format!("GET /other/x?a=1&key={both}\nX-Key: wrong"), (200, String::new())),
        (format!("GET /other/x\nCookie: ck={both}"), (200, String::new())),
        (format!("GET /at/x/good/1\nAuthorization: {limited}"), (200, String::new())),
        (format!("GET /at/bad\nAuthorization: {limited}"), (403, error("Access to this resource has been disallowed"))),
        (
            format!("POST /at/good/1\nAuthorization: {limited}\n\n"),
            (403, error("Access to this resource has been disallowed")),
        ),
        (format!("GET /at/\nAuthorization: {inactive}"), (403, error("Key is inactive, please renew"))),
        (format!("GET /at/\nAuthorization: {expired}"), (401, error("Key has expired, please renew"))),
    ] {
        let response = send(&gateway, &request);
        let (status, body) = told(&response);
        let body = if status == 200 { String::new() } else { body };
        assert_eq!((status, body), expected, "{request}: {response:?}");
        if status != 200 {
            assert_eq!(response.field("X-Generator"), Some("tyk.io"));
            assert_eq!(response.field("X-Ratelimit-Limit"), None);
        }
    }
    assert_eq!(send(&gateway, &format!("GET /other/x?a=1&key={both}")).status, 200);
    assert_eq!((site.origin.last().target.as_str(), site.origin.last().field("X-Key")), ("/base/x?a=1", None));
    assert_eq!(send(&gateway, &format!("GET /at/x\nAuthorization: {at}")).status, 200);
    assert_eq!(site.origin.last().field("Authorization"), Some(at.as_str()), "the key goes on to the upstream");
}

#[test]
fn users_have_passwords() {
    let site = Site::new();
    let mut basic = keyed("basic");
    basic["use_basic_auth"] = true.into();
    basic["name"] = "My API".into();
    site.api("basic", basic);
    let gateway = site.start();
    let session = right("basic", json!({"basic_auth_data": {"password": "pass"}}));
    let (status, answer) = ask(&gateway, "POST", "/tyk/keys/joe", &session);
    assert_eq!((status, &answer["key"], &answer["action"]), (200, &json!(""), &json!("added")), "{answer}");
    // joe:pass, joe:wrong, jim:pass, joe
    for (credentials, expected) in [
        ("Basic am9lOnBhc3M=", (200, String::new())),
        ("Basic am9lOndyb25n", (401, error("User not authorised"))),
        ("Basic amltOnBhc3M=", (401, error("User not authorised"))),
        ("Bearer !!", (400, error("Attempted access with malformed header, auth data not encoded correctly"))),
        ("Basic", (400, error("Attempted access with malformed header, header not in basic auth format"))),
        ("Basic am9l", (400, error("Attempted access with malformed header, values not in basic auth format"))),
    ] {
        let response = send(&gateway, &format!("GET /basic/\nAuthorization: {credentials}"));
        let (status, body) = told(&response);
        let body = if status == 200 { String::new() } else { body };
        assert_eq!((status, body), expected, "{credentials}");
        let challenge = (status == 401).then_some("Basic realm=\"My API\"");
        assert_eq!(response.field("Www-Authenticate"), challenge);
    }
    assert_eq!(told(&send(&gateway, "GET /basic/")), (401, error("Authorization field missing")));
    let (status, shown) = ask(&gateway, "GET", "/tyk/keys/joe?username=true&org_id=o1", &Value::Null);
    assert_eq!((status, &shown["basic_auth_data"]["password"]), (200, &Value::Null), "{shown}");
}

#[test]
fn rates_and_quotas_are_counted_as_in_tyk() {
    let site = Site::new();
    site.api("at", keyed("at"));
    site.api("rated", keyed("rated"));
    let mut global = keyless("global", "/global/", "/");
    global["global_rate_limit"] = json!({"rate": 2, "per": 60});
    site.api("global", global);
    let gateway = site.start();
    let statuses = |key: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| send(&gateway, &format!("GET /at/\nAuthorization: {key}")).status).collect()
    };
    let rate = key(&gateway, &right("at", json!({"rate": 2, "per": 60})));
    assert_eq!(statuses(&rate, 3), [200, 200, 429]);
    let refused = send(&gateway, &format!("GET /at/\nAuthorization: {rate}"));
    assert_eq!(told(&refused), (429, error("Rate Limit Exceeded")));
    assert_eq!((refused.field("X-Ratelimit-Limit"), refused.field("Retry-After")), (None, None));
    let session = right("at", json!({"quota_max": 3, "quota_renewal_rate": 3600}));
    let quota = key(&gateway, &session);
    let first = send(&gateway, &format!("GET /at/\nAuthorization: {quota}"));
    assert_eq!((first.field("X-Ratelimit-Limit"), first.field("X-Ratelimit-Remaining")), (Some("3"), Some("2")));
    let reset: i64 = first.field("X-Ratelimit-Reset").and_then(|reset| reset.parse().ok()).expect("a time");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs() as i64;
    assert!((3500..=3601).contains(&(reset - now)), "{reset} {now}");
    assert_eq!(statuses(&quota, 3), [200, 200, 403]);
    assert_eq!(told(&send(&gateway, &format!("GET /at/\nAuthorization: {quota}"))), (403, error("Quota exceeded")));
    let (_, shown) = ask(&gateway, "GET", &format!("/tyk/keys/{quota}"), &Value::Null);
    assert_eq!((&shown["quota_max"], &shown["quota_remaining"]), (&json!(3), &json!(0)), "{shown}");
    let path = format!("/tyk/keys/{quota}");
    assert_eq!(ask(&gateway, "PUT", &format!("{path}?suppress_reset=1"), &session).0, 200);
    assert_eq!(statuses(&quota, 1), [403], "the count goes on");
    let (status, answer) = ask(&gateway, "PUT", &path, &session);
    assert_eq!((status, answer), (200, json!({"key": quota, "status": "ok", "action": "modified"})));
    assert_eq!(statuses(&quota, 4), [200, 200, 200, 403], "the quota begins anew");
    let unlimited = key(&gateway, &right("at", json!({})));
    let passed = send(&gateway, &format!("GET /at/\nAuthorization: {unlimited}"));
    assert_eq!((passed.field("X-Ratelimit-Limit"), passed.field("X-Ratelimit-Remaining")), (Some("-1"), Some("0")));
    let all: Vec<u16> = (0..3).map(|_| send(&gateway, "GET /global/").status).collect();
    assert_eq!(all, [200, 200, 429]);
    assert_eq!(told(&send(&gateway, "GET /global/")), (429, error("API Rate Limit Exceeded")));
    // Limits of one right, and of one endpoint.
    let own = json!({"access_rights": {"at": {"limit": {"rate": 1, "per": 60}}, "rated": {"endpoints": [
        {"path": "/e1", "methods": [{"name": "GET", "limit": {"rate": 1, "per": 60}}]}
    ]}}});
    let own = key(&gateway, &right("at", own));
    assert_eq!(statuses(&own, 2), [200, 429]);
    let at = |path: &str| send(&gateway, &format!("GET {path}\nAuthorization: {own}")).status;
    assert_eq!([at("/rated/e1"), at("/rated/e1/z"), at("/rated/e2")], [200, 429, 200]);
}

#[test]
fn requests_beyond_a_throttled_rate_are_held() {
    let site = Site::new();
    site.api("at", keyed("at"));
    let gateway = site.start();
    let status = |key: &str| send(&gateway, &format!("GET /at/\nAuthorization: {key}")).status;
    let throttled = |retries: u32, per: u32| {
        let more = json!({"rate": 1, "per": per, "throttle_interval": 0.2, "throttle_retry_limit": retries});
        key(&gateway, &right("at", more))
    };
    let patient = throttled(20, 1);
    let begin = Instant::now();
    assert_eq!([status(&patient), status(&patient)], [200, 200]);
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(800), "{took:?}: the second request waits for the next window");
    let impatient = throttled(2, 3600);
    assert_eq!(status(&impatient), 200);
    let begin = Instant::now();
    assert_eq!(status(&impatient), 429);
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
    // The limit of a right has its own.
    let limit = json!({"rate": 1, "per": 3600, "throttle_interval": 0.2, "throttle_retry_limit": 1});
    let own = key(&gateway, &right("at", json!({"access_rights": {"at": {"limit": limit}}})));
    let begin = Instant::now();
    assert_eq!([status(&own), status(&own)], [200, 429]);
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
}

/// Tokens signed with the secret `secret-of-32-bytes-0123456789abcd`.
mod tokens {
    pub(super) const GOOD: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6InAiLCJleHAiOjQxMDI0NDQ4MDB9.qAwgz3xZte5jT9Vbuij4atlISX3rL6VxOWxrhbBTs8M";
    pub(super) const OTHER: &str = "eyJhbGciOiJIUzUxMiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MiIsInBvbCI6InAifQ._Fv6BzK0tK1Phswf3GgAXHb-e_j3Ms5uVucRkatsbS2FDdCGlGiWNIQO3tIr8p_ziycxUM0Q0VU0RBLppNDqQA";
    pub(super) const EXPIRED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6InAiLCJleHAiOjEwMDB9.-31X2eu_p0nkkOq440tfWOl55ejyaRCHnZvKFuvM_Ss";
    pub(super) const EARLY: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6InAiLCJuYmYiOjQxMDI0NDQ4MDB9.tQuHgDCWaSILAm2_8pOpypo-8SJAH_TMXVcconFJ7jI";
    pub(super) const UNISSUED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6InAiLCJpYXQiOjQxMDI0NDQ4MDB9.0Zzi6K6wBYWZ4rL90RAcQUzDkQGqty-vhKyZ7cmkw7g";
    pub(super) const NOBODY: &str =
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJwb2wiOiJwIn0.FoHtA5hgxd8p9gHhxjW21Pxcrf3c_ajSf8ZB-5C_DCM";
    pub(super) const NO_POLICY: &str =
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSJ9.OzxLnYRwI1dsgwCcMrqWME6qmZljXjYwMwkSHotQN_E";
    pub(super) const WRONG_POLICY: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6Inp6In0.zWtvOYphnffxT1byl61n5eM6kt2WLRDE3dmdzVvg44A";
    pub(super) const RS256: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ1MSIsInBvbCI6InAifQ.TSVVRbUNR1qiL3Ddu1KgZVQBGz6jJmEr32Rt63KqutM";
}

#[test]
fn tokens_stand_for_policies() {
    let site = Site::new();
    let mut jwt = keyed("jwt");
    jwt["enable_jwt"] = true.into();
    jwt["jwt_signing_method"] = "hmac".into();
    jwt["jwt_source"] = "c2VjcmV0LW9mLTMyLWJ5dGVzLTAxMjM0NTY3ODlhYmNk".into();
    site.api("jwt", jwt);
    site.write(
        "policies.json",
        json!({"p": {"org_id": "o1", "rate": 3, "per": 60, "quota_max": -1, "active": true,
        "access_rights": {"jwt": {"api_id": "jwt", "versions": ["Default"]}}}}),
    );
    let gateway = site.start();
    let tampered = tokens::GOOD.replace(".ey", ".fy");
    for (token, expected) in [
        ("", (400, error("Authorization field missing"))),
        (&tampered, (403, error("Key not authorized"))),
        ("garbage", (403, error("Key not authorized"))),
        (tokens::RS256, (403, error("Key not authorized: Unexpected signing method"))),
        (tokens::EXPIRED, (401, error("Key not authorized: token has expired"))),
        (tokens::EARLY, (401, error("Key not authorized: token is not valid yet"))),
        (tokens::UNISSUED, (401, error("Key not authorized: token used before issued"))),
        (tokens::NOBODY, (403, error("no suitable claims for user ID were found"))),
        (tokens::NO_POLICY, (403, error("key not authorized: no matching policy found"))),
        (tokens::WRONG_POLICY, (403, error("key not authorized: no matching policy"))),
    ] {
        let field = if token.is_empty() { String::new() } else { format!("\nAuthorization: Bearer {token}") };
        assert_eq!(told(&send(&gateway, &format!("GET /jwt/{field}"))), expected, "{token}");
    }
    let status = |token: &str| send(&gateway, &format!("GET /jwt/\nAuthorization: {token}")).status;
    // Each identity has counts of its own.
    assert_eq!([(); 4].map(|()| status(tokens::GOOD)), [200, 200, 200, 429]);
    assert_eq!(status(tokens::OTHER), 200);
}

/// A token of RS256 with the key id `k1`, for the identity `u1` and the policy `p`, and the set with its key.
mod published {
    pub(super) const TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsxIn0.eyJzdWIiOiJ1MSIsInBvbCI6InAifQ.Ow5uqoQpop6aT6s-2VkCoG_TwnreBTPEhAYhD0cTUPhcoWzeJ0WaZ9kQJ_wK4qfkWdaKPx85TPSGqYBT__nUptl97_aY3uZ70dJHDp2cay8AKQnu3lXyHtR1OB2VJkmbU-TlOKNTccVER93-5jBSBLdVUlTpZD1V-MQtN7f7P9wIBTiBjfHXyxVTsUs24h-IH7m2I8B0dydHYn_3KpM7qpjYuCNAD5fPpCzdWZeVvkdnQoPpjx1UOApAK4x0nrxRADsnoqCW-YQqxBEUXDojvgufqBTz7Hov1aEws6hJUvYjaE4JxV2yDqdDeEHSLAbwi8wRzu7gqSew0vpiZEZIXg";
    pub(super) const SET: &str = r#"{"keys":[{"kty":"RSA","kid":"k1","use":"sig","alg":"RS256","e":"AQAB","n":"3Q9fzxbBoque3R0_Jmp4n_8ufNOaCopMQ2-A0myCDr4MZJL9djlRkkwhHMaRS8KctCf5sEaxKCED2nGX64bTEXugnu3idzs1WUEVjPXVFB_jIWmYIgtdmnURePAQbgpLNlcPiASPK75KUWqWgbmRH3Buz_ELIJv4HfE74bj72KLC41gdEPsuSwbi5GtlCse9Ls8-5rO3CACSnE_iBDBneS8f7FS_B6YHCliJyJRDsQaCn2qrNX1Gdyfdntd_HF7ZpsAcOiAoRWAPUTGRMXkxqwdtq6rAHRP02J0NgSBE5CAcwld-WSQ-oX0GrtQuYGmdKXb_sEpV7nOmVD_mGE8aLw"}]}"#;
}

#[test]
fn tokens_are_verified_by_published_keys() {
    let keys = Origin::answering(|_| Answer::ok(published::SET));
    let site = Site::new();
    for (id, url) in [("set", format!("http://{}/jwks", keys.node())), ("gone", "http://127.0.0.1:1/jwks".to_owned())] {
        let mut jwt = keyed(id);
        jwt["enable_jwt"] = true.into();
        jwt["jwt_signing_method"] = "rsa".into();
        jwt["jwt_source"] = url.into();
        jwt["jwt_skip_kid"] = true.into();
        site.api(id, jwt);
    }
    let rights = json!({"set": {}, "gone": {}});
    site.write(
        "policies.json",
        json!({"p": {"org_id": "o1", "rate": 100, "per": 1, "quota_max": -1, "access_rights": rights}}),
    );
    let gateway = site.start();
    let send = |id: &str, token: &str| send(&gateway, &format!("GET /{id}/\nAuthorization: Bearer {token}"));
    for _ in 0..3 {
        assert_eq!(send("set", published::TOKEN).status, 200);
    }
    assert_eq!(keys.requests().len(), 1, "the set is fetched once");
    let (signed, _) = published::TOKEN.rsplit_once('.').expect("a signature");
    assert_eq!(told(&send("set", &format!("{signed}.AAAA"))), (403, error("Key not authorized")));
    let unexpected = error("Key not authorized: Unexpected signing method");
    assert_eq!(told(&send("set", tokens::GOOD)), (403, unexpected), "a secret is no public key");
    assert_eq!(told(&send("gone", published::TOKEN)), (403, error("Key not authorized")));
}

#[test]
fn refusals_of_tokens_have_other_words_where_the_settings_say_so() {
    let site = Site::new();
    site.api("kx", keyed("kx"));
    let messages = json!({
        "auth.auth_field_missing": {"message": "No \"key\"", "code": 400}, "auth.key_not_found": {"message": "Nobody"},
    });
    let gateway = Start::at(&site.conf(json!({"override_messages": messages}))).start();
    assert_eq!(told(&send(&gateway, "GET /kx/")), (400, error("No \\\"key\\\"")));
    assert_eq!(told(&send(&gateway, "GET /kx/\nAuthorization: x")), (403, error("Nobody")));
    // A key that is one, and may not call the API, has the words of that refusal.
    let other = key(&gateway, &right("other", json!({})));
    let disallowed = error("Access to this API has been disallowed");
    assert_eq!(told(&send(&gateway, &format!("GET /kx/\nAuthorization: {other}"))), (403, disallowed));
    for (id, code, says) in [
        (
            "auth.none",
            401,
            "override_messages.auth.none: expected one of: auth.auth_field_missing, auth.key_not_found,",
        ),
        ("auth.key_not_found", 200, "override_messages.auth.key_not_found.code: expected a status from 400 to 599"),
    ] {
        let conf = site.conf(json!({"override_messages": {id: {"message": "m", "code": code}}}));
        let (status, out, err) = weir(&["check", conf.to_str().expect("a path")]);
        assert!(status != 0 && (out + &err).contains(says), "{id}");
    }
}

#[test]
fn organisations_have_limits() {
    let redis = Redis::start();
    for storage in [json!({}), json!({"type": "redis", "host": "127.0.0.1", "port": redis.port})] {
        let is_remote = storage != json!({});
        let site = Site::new();
        for id in ["at", "open"] {
            let mut api = if id == "at" { keyed(id) } else { keyless(id, "/open/", "/") };
            api["org_id"] = "acme".into();
            site.api(id, api);
        }
        site.api("other", keyless("other", "/other/", "/"));
        let mut conf =
            json!({"enforce_org_quotas": true, "local_session_cache": {"disable_cached_session_state": true}});
        if is_remote {
            conf["storage"] = storage;
        }
        let gateway = Start::at(&site.conf(conf)).start();
        let own = key(&gateway, &right("at", json!({"org_id": "acme"})));
        let call = || told(&send(&gateway, &format!("GET /at/\nAuthorization: {own}")));
        let open = |path: &str| told(&send(&gateway, &format!("GET {path}")));
        let exceeded = |what: &str| {
            (403, error(&format!("This organisation {what} has been exceeded, please contact your API administrator")))
        };
        assert_eq!([call().0, open("/open/").0], [200, 200], "without a session there are no limits");
        let put = |method: &str, query: &str, session: Value| {
            ask(&gateway, method, &format!("/tyk/org/keys/acme{query}"), &session)
        };
        let session = json!({"org_id": "acme", "quota_max": 2, "quota_renewal_rate": 3600});
        assert_eq!(put("POST", "", session.clone()), (200, json!({"key": "acme", "status": "ok", "action": "added"})));
        // Keys and callers without a key count together.
        assert_eq!([call().0, open("/open/").0], [200, 200]);
        assert_eq!([call(), open("/open/")], [exceeded("quota"), exceeded("quota")]);
        assert_eq!(open("/other/").0, 200, "another organisation");
        assert_eq!(put("PUT", "", session.clone()).0, 200);
        assert_eq!(call(), exceeded("quota"), "the count goes on");
        let (status, shown) = put("GET", "", Value::Null);
        assert_eq!((status, &shown["quota_remaining"], &shown["quota_max"]), (200, &json!(0), &json!(2)), "{shown}");
        assert_eq!(put("PUT", "?reset_quota=1", session).1["action"], "modified");
        assert_eq!(call().0, 200, "the quota begins anew");
        assert_eq!(put("PUT", "", json!({"org_id": "acme", "rate": 1, "per": 60})).0, 200);
        assert_eq!([call(), call()], [call_passed(), exceeded("rate limit")]);
        assert_eq!(put("PUT", "", json!({"org_id": "acme", "is_inactive": true})).0, 200);
        let disabled = error("this organisation access has been disabled, please contact your API administrator");
        assert_eq!(open("/open/"), (403, disabled));
        let keys = ask(&gateway, "GET", "/tyk/keys", &Value::Null).1;
        assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1), "an organisation is no key: {keys}");
        assert_eq!(ask(&gateway, "GET", "/tyk/org/keys", &Value::Null).1, json!({"keys": ["acme"]}));
        if is_remote {
            assert_eq!(redis.cli(&["EXISTS", "orgkey.acme"]), "1");
            assert_eq!(redis.cli(&["KEYS", "quota-orgkey*"]), "");
        }
        assert_eq!(put("DELETE", "", Value::Null).1["action"], "deleted");
        assert_eq!((call().0, put("GET", "", Value::Null).0), (200, 404));
    }
}

/// The answer of the origin to a call that passed.
fn call_passed() -> (u16, String) {
    (200, String::new())
}
