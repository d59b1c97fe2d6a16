//! Kong's `oauth2`: grants of every kind, and the tokens that come of them.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Response, Start, each, weir};

const CLIENT: &str = "client_id=app&client_secret=app-secret";
const AGREED: &str = "provision_key=pk&authenticated_userid=user%201";

fn document(node: &str, conf: &Value) -> Value {
    let mut config = json!({
        "provision_key": "pk", "scopes": ["read", "write"], "enable_authorization_code": true, "enable_client_credentials": true,
        "enable_password_grant": true, "enable_implicit_grant": true, "accept_http_if_already_terminated": true,
    });
    for (name, value) in conf.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    json!({
        "_format_version": "3.0",
        "services": [
            { "name": "s", "url": format!("http://{node}"), "routes": [{ "name": "r", "paths": ["/api"] }],
              "plugins": [{ "name": "oauth2", "config": config }] },
            { "name": "other", "url": format!("http://{node}"), "routes": [{ "name": "o", "paths": ["/other"] }],
              "plugins": [{ "name": "oauth2", "config": config }] },
        ],
        "consumers": [{ "username": "shop", "custom_id": "7", "oauth2_credentials": [
            { "name": "app", "client_id": "app", "client_secret": "app-secret", "redirect_uris": ["http://app.test/cb", "http://app.test/two?x=1"] },
            { "name": "page", "client_id": "page", "client_secret": "page-secret", "client_type": "public", "redirect_uris": ["http://page.test/"] },
        ] }, { "username": "nobody" }],
    })
}

fn start(origin: &Origin, conf: &Value) -> Gateway {
    let settings = json!({ "trusted_proxies": ["127.0.0.1"] });
    Start::new(document(&origin.node(), conf)).settings(settings).start()
}

/// Sends a form, as over a proxy that has ended TLS.
fn post(gateway: &Gateway, path: &str, form: &str, fields: &str) -> Response {
    gateway.client().request(format!(
        "POST {path} HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\n{fields}Content-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    ))
}

fn call(gateway: &Gateway, path: &str, token: &str) -> Response {
    gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n\r\n"))
}

fn granted(gateway: &Gateway, form: &str) -> Value {
    let response = post(gateway, "/api/oauth2/token", form, "");
    assert_eq!(response.status, 200, "{form}: {}", response.text());
    assert_eq!((response.field("cache-control"), response.field("pragma")), (Some("no-store"), Some("no-cache")));
    response.json()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// The code that a user's agreement gives.
fn code(gateway: &Gateway, more: &str) -> String {
    let response = post(gateway, "/api/oauth2/authorize", &format!("response_type=code&{AGREED}&{more}"), "");
    assert_eq!(response.status, 200, "{}", response.text());
    let answer = response.json();
    let uri = text(&answer, "redirect_uri");
    let rest = uri.split_once("code=").unwrap_or_else(|| panic!("no code in {uri}")).1;
    rest.split('&').next().unwrap_or_default().to_owned()
}

#[test]
fn clients_get_tokens_for_themselves() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({}));
    let body = granted(&gateway, &format!("grant_type=client_credentials&scope=read&state=x&{CLIENT}"));
    assert_eq!((text(&body, "token_type"), &body["expires_in"], text(&body, "state")), ("bearer", &json!(7200), "x"));
    assert!(body["refresh_token"].is_null());
    let token = text(&body, "access_token");
    assert_eq!(call(&gateway, "/api/x", token).status, 200);
    let told = origin.last();
    let found = ["X-Consumer-Username", "X-Consumer-Custom-ID", "X-Credential-Identifier", "X-Authenticated-Scope"];
    assert_eq!(found.map(|name| told.field(name)), [Some("shop"), Some("7"), Some("app"), Some("read")]);
    assert_eq!(told.field("X-Authenticated-UserId"), None);
    // In the query, and by the header of the client.
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode("app:app-secret"));
    let response = post(&gateway, "/api/oauth2/token", "grant_type=client_credentials", &basic);
    let by_header = response.json();
    let path = format!("/api/x?access_token={}", text(&by_header, "access_token"));
    assert_eq!(gateway.get(&path).status, 200);
    // A token is one of its service alone, and of nothing else.
    let refused = call(&gateway, "/other/x", token);
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.json(),
        json!({ "error": "invalid_token", "error_description": "The access token is invalid or has expired" })
    );
    let challenge = "Bearer error=\"invalid_token\" error_description=\"The access token is invalid or has expired\"";
    assert_eq!(refused.field("WWW-Authenticate"), Some(challenge));
    for wrong in ["", "x", "x.y", &token[..token.len() - 4], &format!("{token}AAAA")] {
        assert_eq!(call(&gateway, "/api/x", wrong).status, 401, "{wrong}");
    }
    let missing = gateway.get("/api/x");
    assert_eq!((missing.status, missing.field("WWW-Authenticate")), (401, Some("Bearer")));
    assert_eq!(missing.json()["error_description"], "The access token is missing");
    // Another gateway with the same configuration knows the token; one with another secret does not.
    let second = start(&origin, &json!({}));
    let other = document(&origin.node(), &json!({})).to_string().replace("app-secret", "new-secret");
    let third = Start::new(other).start();
    assert_eq!(second.get(&format!("/api/x?access_token={token}")).status, 200);
    assert_eq!(third.get(&format!("/api/x?access_token={token}")).status, 401);
}

#[test]
fn codes_are_changed_for_tokens_once() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({}));
    let form = |code: &str| format!("grant_type=authorization_code&code={code}&{CLIENT}");
    let first = code(&gateway, "client_id=app&scope=write");
    let body = granted(&gateway, &form(&first));
    assert_eq!(call(&gateway, "/api/x", text(&body, "access_token")).status, 200);
    let told = origin.last();
    assert_eq!(
        (told.field("X-Authenticated-UserId"), told.field("X-Authenticated-Scope")),
        (Some("user 1"), Some("write"))
    );
    let again = post(&gateway, "/api/oauth2/token", &form(&first), "");
    assert_eq!((again.status, again.json()["error_description"].clone()), (400, json!("Invalid code")));
    // A code is no token, and of its client and redirect URI alone.
    let second = code(&gateway, "client_id=app&redirect_uri=http%3A%2F%2Fapp.test%2Ftwo%3Fx%3D1");
    assert_eq!(call(&gateway, "/api/x", &second).status, 401);
    let other = format!("grant_type=authorization_code&code={second}&client_id=page&client_secret=page-secret");
    assert_eq!(post(&gateway, "/api/oauth2/token", &other, "").json()["error_description"], "Invalid code");
    assert_eq!(post(&gateway, "/api/oauth2/token", &form(&second), "").status, 400, "another redirect URI");
    granted(&gateway, &format!("{}&redirect_uri=http%3A%2F%2Fapp.test%2Ftwo%3Fx%3D1", form(&second)));
    // Refresh tokens replace each other.
    let refresh = |token: &str| {
        post(&gateway, "/api/oauth2/token", &format!("grant_type=refresh_token&refresh_token={token}&{CLIENT}"), "")
    };
    let old = text(&body, "refresh_token").to_owned();
    let renewed = refresh(&old);
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    let renewed = renewed.json();
    assert_eq!(call(&gateway, "/api/x", text(&renewed, "access_token")).status, 200);
    assert_eq!(origin.last().field("X-Authenticated-UserId"), Some("user 1"));
    assert_eq!(refresh(&old).json()["error_description"], "Invalid refresh_token");
    assert_eq!(refresh(text(&renewed, "refresh_token")).status, 200);
    assert_eq!(call(&gateway, "/api/x", text(&renewed, "refresh_token")).status, 401, "it is no access token");
}

#[test]
fn public_clients_prove_that_they_are_the_same() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({ "reuse_refresh_token": true }));
    let verifier = "a-verifier-of-more-than-forty-three-characters-0123";
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, verifier.as_bytes());
    let challenge = format!("code_challenge={}&code_challenge_method=S256", URL_SAFE_NO_PAD.encode(hash));
    let without = post(&gateway, "/api/oauth2/authorize", &format!("response_type=code&{AGREED}&client_id=page"), "");
    assert_eq!(without.status, 400);
    let answer = without.json();
    let uri = text(&answer, "redirect_uri");
    assert!(
        uri.starts_with("http://page.test/?error=invalid_request&error_description=code_challenge%20is%20required"),
        "{uri}"
    );
    let code = code(&gateway, &format!("client_id=page&{challenge}"));
    let form =
        |verifier: &str| format!("grant_type=authorization_code&client_id=page&code={code}&code_verifier={verifier}");
    let wrong = post(&gateway, "/api/oauth2/token", &form("another"), "");
    assert_eq!((wrong.status, wrong.json()["error"].clone()), (400, json!("invalid_grant")));
    let body = granted(&gateway, &form(verifier));
    assert_eq!(call(&gateway, "/api/x", text(&body, "access_token")).status, 200);
    // A refresh token may be used again where the configuration says so.
    let refresh = format!("grant_type=refresh_token&client_id=page&refresh_token={}", text(&body, "refresh_token"));
    assert_eq!(granted(&gateway, &refresh)["refresh_token"], body["refresh_token"]);
    granted(&gateway, &refresh);
}

#[test]
fn users_grant_tokens_without_a_code() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({ "token_expiration": 0, "hide_credentials": true }));
    let password = granted(&gateway, &format!("grant_type=password&{AGREED}&{CLIENT}"));
    assert!(password["expires_in"].is_null() && password["refresh_token"].is_null(), "{password}");
    assert_eq!(call(&gateway, "/api/x", text(&password, "access_token")).status, 200);
    assert_eq!(origin.last().field("Authorization"), None);
    let implicit =
        post(&gateway, "/api/oauth2/authorize", &format!("response_type=token&{AGREED}&client_id=app&state=s"), "")
            .json();
    let uri = text(&implicit, "redirect_uri");
    let fragment = uri.strip_prefix("http://app.test/cb#").unwrap_or_else(|| panic!("{uri}"));
    assert!(fragment.contains("state=s") && fragment.contains("token_type=bearer"), "{fragment}");
    let token = fragment.split('&').find_map(|pair| pair.strip_prefix("access_token=")).expect("a token");
    assert_eq!(gateway.get(&format!("/api/x?q=1&access_token={token}")).status, 200);
    assert_eq!(origin.last().target, "/x?q=1");
}

#[test]
fn global_tokens_hold_for_all_services() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({ "global_credentials": true, "anonymous": "nobody" }));
    let token = granted(&gateway, &format!("grant_type=client_credentials&{CLIENT}"));
    for path in ["/api/x", "/other/x"] {
        assert_eq!(call(&gateway, path, text(&token, "access_token")).status, 200);
        assert_eq!(origin.last().field("X-Consumer-Username"), Some("shop"));
    }
    let forged = "GET /api/x HTTP/1.1\r\nHost: a.test\r\nX-Authenticated-UserId: root\r\n\r\n";
    assert_eq!(gateway.client().request(forged).status, 200);
    let told = origin.last();
    assert_eq!((told.field("X-Anonymous-Consumer"), told.field("X-Authenticated-UserId")), (Some("true"), None));
}

#[test]
fn refusals_are_kongs() {
    let origin = Origin::echo();
    let gateway = start(&origin, &json!({ "enable_implicit_grant": false, "mandatory_scope": true, "pkce": "strict" }));
    let cases = [
        ("token", "", "unsupported_grant_type", "Invalid grant_type"),
        ("token", "grant_type=client_credentials", "invalid_client", "Invalid client authentication"),
        ("token", "grant_type=client_credentials&client_id=app", "invalid_client", "Invalid client authentication"),
        (
            "token",
            "grant_type=client_credentials&client_id=app&client_secret=x",
            "invalid_client",
            "Invalid client authentication",
        ),
        (
            "token",
            "grant_type=client_credentials&client_id=app&client_secret=app-secret",
            "invalid_scope",
            "You must specify a scope",
        ),
        (
            "token",
            "grant_type=client_credentials&client_id=app&client_secret=app-secret&scope=root",
            "invalid_scope",
            "\"root\" is an invalid scope",
        ),
        (
            "token",
            "grant_type=password&client_id=app&client_secret=app-secret&scope=read",
            "invalid_provision_key",
            "Invalid provision_key",
        ),
        (
            "token",
            "grant_type=password&provision_key=pk&client_id=app&client_secret=app-secret",
            "invalid_authenticated_userid",
            "Missing authenticated_userid parameter",
        ),
        (
            "token",
            "grant_type=authorization_code&client_id=app&client_secret=app-secret&code=x",
            "invalid_request",
            "Invalid code",
        ),
        (
            "token",
            "grant_type=refresh_token&client_id=app&client_secret=app-secret",
            "invalid_request",
            "Invalid refresh_token",
        ),
        (
            "token",
            "grant_type=client_credentials&client_id=app&client_secret=app-secret&redirect_uri=http://x",
            "invalid_request",
            "Invalid redirect_uri that does not",
        ),
        ("authorize", "response_type=code&client_id=app", "invalid_provision_key", "Invalid provision_key"),
        (
            "authorize",
            "response_type=code&provision_key=pk&client_id=app",
            "invalid_authenticated_userid",
            "Missing authenticated_userid parameter",
        ),
        (
            "authorize",
            "response_type=code&provision_key=pk&authenticated_userid=u&scope=read",
            "invalid_client",
            "Invalid client authentication",
        ),
    ];
    each(
        &cases,
        |(path, form, ..)| format!("{path} {form}"),
        |(path, form, error, description)| {
            let response = post(&gateway, &format!("/api/oauth2/{path}"), form, "");
            let body = response.json();
            assert_eq!((response.status, text(&body, "error")), (400, *error), "{body}");
            assert!(text(&body, "error_description").starts_with(description), "{body}");
        },
    );
    // A known client's page gets the error.
    for (form, error) in [
        ("response_type=token&scope=read", "unsupported_response_type"),
        ("response_type=code", "invalid_scope"),
        ("response_type=code&scope=read", "invalid_request"),
        ("response_type=code&scope=read&redirect_uri=http://evil.test", "invalid_request"),
    ] {
        let response = post(&gateway, "/api/oauth2/authorize", &format!("{form}&{AGREED}&client_id=app"), "");
        let body = response.json();
        assert!(
            response.status == 400
                && text(&body, "redirect_uri").starts_with(&format!("http://app.test/cb?error={error}")),
            "{form}: {body}"
        );
    }
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode("app:wrong"));
    let response = post(&gateway, "/api/oauth2/token", "grant_type=client_credentials", &basic);
    assert_eq!((response.status, response.field("WWW-Authenticate")), (401, Some("Basic realm=\"OAuth2.0\"")));
    let plain = "POST /api/oauth2/token HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(gateway.client().request(plain).json()["error_description"], "You must use HTTPS");
}

#[test]
fn bad_configurations_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.json");
    let none = json!({ "enable_authorization_code": false, "enable_client_credentials": false, "enable_password_grant": false, "enable_implicit_grant": false });
    for (conf, says) in [
        (none, "at least one of these fields must be true"),
        (json!({ "scopes": [], "mandatory_scope": true }), "scopes: required field missing"),
        (json!({ "persistent_refresh_token": true }), "persistent_refresh_token: not supported"),
        (json!({ "auth_header_name": "a b" }), "auth_header_name: expected the name of a header"),
    ] {
        std::fs::write(&file, document("127.0.0.1:1", &conf).to_string()).expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(code == 1 && told.contains(says), "{conf}: {told}");
    }
    let hashed = document("127.0.0.1:1", &json!({}))
        .to_string()
        .replace("\"client_id\":\"app\"", "\"client_id\":\"app\",\"hash_secret\":true");
    std::fs::write(&file, hashed).expect("written");
    let (code, _, told) = weir(&["check", &file.display().to_string()]);
    assert!(code == 1 && told.contains("hash_secret: not supported"), "{told}");
}
