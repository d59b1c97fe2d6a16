//! Tokens of Kong's `oauth2` at a gateway with a store: kept, listed, made and revoked by the Admin API.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, Response, Start, wait_until};
use crate::kong_admin::{ask, must};

fn start(folder: &Path) -> Gateway {
    let settings = json!({ "trusted_proxies": ["127.0.0.1"] });
    Start::stored().data_dir(folder).settings(settings).argument("--family").argument("kong").start()
}

/// A gateway with two services behind the plugin, and a client.
fn gateway(folder: &Path, origin: &Origin, conf: &Value) -> Gateway {
    let gateway = start(folder);
    for name in ["s", "other"] {
        must(&gateway, "POST", "/services", json!({ "name": name, "url": format!("http://{}", origin.node()) }));
        must(&gateway, "POST", &format!("/services/{name}/routes"), json!({ "paths": [format!("/{name}")] }));
        let mut config = json!({
            "enable_client_credentials": true, "enable_password_grant": true, "provision_key": "pk", "scopes": ["read"],
            "accept_http_if_already_terminated": true,
        });
        for (field, value) in conf.as_object().into_iter().flatten() {
            config[field] = value.clone();
        }
        let plugin = json!({ "name": "oauth2", "config": config });
        must(&gateway, "POST", &format!("/services/{name}/plugins"), plugin);
    }
    must(&gateway, "POST", "/consumers", "username=shop");
    let client = json!({ "name": "app", "client_id": "app", "client_secret": "app-secret", "redirect_uris": ["http://a.test/"] });
    must(&gateway, "POST", "/consumers/shop/oauth2", client);
    gateway
}

fn token(gateway: &Gateway, form: &str) -> Response {
    let form = format!("{form}&client_id=app&client_secret=app-secret&authenticated_userid=jo&provision_key=pk");
    gateway.client().request(format!(
        "POST /s/oauth2/token HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    ))
}

fn granted(gateway: &Gateway, form: &str) -> Value {
    let response = token(gateway, form);
    assert_eq!(response.status, 200, "{form}: {}", response.text());
    response.json()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn status(gateway: &Gateway, path: &str, token: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n\r\n");
    gateway.client().request(request).status
}

fn listed(gateway: &Gateway, path: &str) -> Vec<Value> {
    must(gateway, "GET", path, "")["data"].as_array().cloned().unwrap_or_default()
}

#[test]
fn granted_tokens_are_listed_and_revoked() {
    let (folder, origin) = (tempfile::tempdir().expect("a folder"), Origin::echo());
    let gateway = gateway(folder.path(), &origin, &json!({}));
    let answer = granted(&gateway, "grant_type=password&scope=read");
    let (access, refresh) = (text(&answer, "access_token"), text(&answer, "refresh_token"));
    assert!(access.len() == 32 && access.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{access}");
    assert_eq!([status(&gateway, "/s/x", access), status(&gateway, "/other/x", access)], [200, 401]);
    let told = ["X-Consumer-Username", "X-Credential-Identifier", "X-Authenticated-Scope", "X-Authenticated-UserId"];
    let seen = origin.last();
    assert_eq!(told.map(|name| seen.field(name)), [Some("shop"), Some("app"), Some("read"), Some("jo")]);

    let all = listed(&gateway, "/oauth2_tokens");
    let [entity] = &all[..] else { panic!("{all:?}") };
    let (client, service) = (must(&gateway, "GET", "/oauth2/app", ""), must(&gateway, "GET", "/services/s", ""));
    assert_eq!((&entity["credential"]["id"], &entity["service"]["id"]), (&client["id"], &service["id"]));
    let fields = ["access_token", "refresh_token", "authenticated_userid", "scope", "token_type"];
    assert_eq!(fields.map(|field| text(entity, field)), [access, refresh, "jo", "read", "bearer"]);
    assert_eq!(entity["expires_in"], 7200);
    let id = text(entity, "id");
    for path in
        [format!("/oauth2_tokens/{id}"), format!("/oauth2_tokens/{access}"), format!("/oauth2/app/oauth2_tokens/{id}")]
    {
        assert_eq!(text(&must(&gateway, "GET", &path, ""), "id"), id, "{path}");
    }
    assert_eq!(must(&gateway, "GET", &format!("/oauth2_tokens/{id}/credential"), "")["client_id"], "app");
    assert_eq!(
        [listed(&gateway, "/services/s/oauth2_tokens").len(), listed(&gateway, "/services/other/oauth2_tokens").len()],
        [1, 0]
    );

    must(&gateway, "DELETE", &format!("/oauth2_tokens/{id}"), "");
    assert_eq!(status(&gateway, "/s/x", access), 401);
    let again = token(&gateway, &format!("grant_type=refresh_token&refresh_token={refresh}"));
    assert_eq!((again.status, again.json()["error_description"].clone()), (400, json!("Invalid refresh_token")));
    assert_eq!(ask(&gateway, "GET", &format!("/oauth2_tokens/{id}"), "").0, 404);
    assert_eq!(ask(&gateway, "DELETE", &format!("/oauth2_tokens/{id}"), "").0, 204);
}

#[test]
fn tokens_of_another_gateway_are_taken_over() {
    let (folder, origin) = (tempfile::tempdir().expect("a folder"), Origin::echo());
    let gateway = gateway(folder.path(), &origin, &json!({}));
    let client = must(&gateway, "GET", "/oauth2/app", "");
    let service = must(&gateway, "GET", "/services/s", "");
    let own = json!({
        "credential": { "id": client["id"] }, "service": { "id": service["id"] }, "access_token": "old-access",
        "refresh_token": "old-refresh", "expires_in": 3600, "authenticated_userid": "ann",
    });
    let made = must(&gateway, "POST", "/oauth2_tokens", &own);
    assert_eq!(status(&gateway, "/s/x", "old-access"), 200);
    assert_eq!(origin.last().field("X-Authenticated-UserId"), Some("ann"));
    // By the fields of a form, with a text that is made.
    let form = format!("credential.id={}&expires_in=0", text(&client, "id"));
    let second = must(&gateway, "POST", "/oauth2_tokens", form);
    assert_eq!(status(&gateway, "/s/x", text(&second, "access_token")), 401, "it has no service");
    // Changed, and refused.
    let place = format!("/oauth2_tokens/{}", text(&made, "id"));
    must(&gateway, "PATCH", &place, json!({ "access_token": "new-access" }));
    assert_eq!(["old-access", "new-access"].map(|token| status(&gateway, "/s/x", token)), [401, 200]);
    let fresh = granted(&gateway, "grant_type=refresh_token&refresh_token=old-refresh");
    assert_eq!(status(&gateway, "/s/x", text(&fresh, "access_token")), 200);
    assert_eq!(status(&gateway, "/s/x", "new-access"), 401, "refreshing takes its place");
    let cases = [
        (json!({ "expires_in": 1 }), 400, "schema violation (credential: required field missing)"),
        (json!({ "credential": client["id"], "expires_in": 1 }), 400, ""),
        (json!({ "credential": { "id": "00000000-0000-4000-8000-000000000000" }, "expires_in": 1 }), 400, ""),
        (
            json!({ "credential": { "id": client["id"] }, "expires_in": 1, "nonsense": 1 }),
            400,
            "schema violation (nonsense: unknown field)",
        ),
        (
            json!({ "credential": { "id": client["id"] }, "expires_in": 1, "access_token": fresh["access_token"] }),
            409,
            "",
        ),
        (
            json!({ "credential": { "id": client["id"] }, "expires_in": 1, "refresh_token": fresh["refresh_token"] }),
            409,
            "",
        ),
    ];
    for (body, expected, message) in cases {
        let (status, answer) = ask(&gateway, "POST", "/oauth2_tokens", &body);
        assert_eq!(status, expected, "{body}: {answer}");
        assert!(message.is_empty() || answer["message"] == message, "{body}: {answer}");
    }
    // With the client go its tokens.
    assert_eq!(listed(&gateway, "/oauth2_tokens").len(), 2);
    must(&gateway, "DELETE", "/consumers/shop", "");
    assert_eq!(listed(&gateway, "/oauth2_tokens").len(), 0);
    assert_eq!(status(&gateway, "/s/x", text(&fresh, "access_token")), 401);
}

#[test]
fn tokens_survive_a_restart_and_end() {
    let (folder, origin) = (tempfile::tempdir().expect("a folder"), Origin::echo());
    let mut gateway = gateway(
        folder.path(),
        &origin,
        &json!({ "reuse_refresh_token": true, "token_expiration": 2, "refresh_token_ttl": 6 }),
    );
    let answer = granted(&gateway, "grant_type=password");
    let (access, refresh) = (text(&answer, "access_token").to_owned(), text(&answer, "refresh_token").to_owned());
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    for file in fs::read_dir(folder.path().join("oauth2")).expect("a folder").flatten() {
        let bytes = fs::read(file.path()).unwrap_or_default();
        let shows = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!shows(&access) && !shows(&refresh), "{:?}", file.path());
    }
    let gateway = start(folder.path());
    wait_until("the end of the access token", LIMIT, || (status(&gateway, "/s/x", &access) == 401).then_some(()));
    // The refresh token stays the same, and the access token is another one in the same entity.
    let fresh = granted(&gateway, &format!("grant_type=refresh_token&refresh_token={refresh}"));
    assert_eq!(text(&fresh, "refresh_token"), refresh);
    assert_ne!(text(&fresh, "access_token"), access);
    wait_until("the end of it all", LIMIT, || listed(&gateway, "/oauth2_tokens").is_empty().then_some(()));
    let late = token(&gateway, &format!("grant_type=refresh_token&refresh_token={refresh}"));
    assert_eq!(late.status, 400);
}

#[test]
fn a_bound_holds_for_tokens() {
    let (folder, origin) = (tempfile::tempdir().expect("a folder"), Origin::echo());
    drop(gateway(folder.path(), &origin, &json!({})));
    let settings = json!({ "trusted_proxies": ["127.0.0.1"], "limits": { "limit_keys": 1000 } });
    let gateway = Start::stored().data_dir(folder.path()).settings(settings).start();
    let mut statuses: Vec<u16> = (0..1001).map(|_| token(&gateway, "grant_type=client_credentials").status).collect();
    assert_eq!(statuses.pop(), Some(400));
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}
