//! OAuth servers of APIs: clients, codes, tokens, and what of them a real Redis has.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{SECRET, Site, ask, error, keyed, right, send, told};
use crate::harness::{Gateway, LIMIT, Origin, Redis, Start, wait_until};

/// An API with an OAuth server.
fn server(id: &str) -> Value {
    let mut api = keyed(id);
    api["use_oauth2"] = true.into();
    api["oauth_meta"] = json!({
        "allowed_access_types": ["authorization_code", "refresh_token", "client_credentials", "password"],
        "allowed_authorize_types": ["code", "token"], "auth_login_redirect": "http://login.test/agree",
    });
    api
}

/// A policy with a right to APIs.
fn policies(ids: &[&str]) -> Value {
    let rights: BTreeMap<&str, Value> =
        ids.iter().map(|id| (*id, json!({"api_id": id, "versions": ["Default"]}))).collect();
    json!({"gold": {"id": "gold", "org_id": "o1", "rate": 1000, "per": 1, "quota_max": -1, "access_rights": rights},
           "other": {"id": "other", "org_id": "o1", "rate": 9, "per": 1, "quota_max": -1, "access_rights": rights}})
}

/// Makes a client; its id and secret.
fn client(gateway: &Gateway, more: &[(&str, Value)]) -> (String, String) {
    let mut body = json!({"redirect_uri": "http://client.test/cb", "api_id": "oa", "policy_id": "gold"});
    for (name, value) in more {
        body[*name] = value.clone();
    }
    let (status, made) = ask(gateway, "POST", "/tyk/oauth/clients/create", &body);
    assert_eq!(status, 200, "{made}");
    let of = |name: &str| made[name].as_str().expect("a text").to_owned();
    (of("client_id"), of("secret"))
}

fn basic((id, secret): &(String, String)) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(format!("{id}:{secret}")))
}

const FORM: &str = "Content-Type: application/x-www-form-urlencoded";

/// Asks for tokens as a client.
fn tokens(gateway: &Gateway, client: &(String, String), form: &str) -> (u16, Value) {
    let response = send(gateway, &format!("POST /oa/oauth/token\n{}\n{FORM}\n\n{form}", basic(client)));
    (response.status, response.json())
}

fn call(gateway: &Gateway, token: &str) -> (u16, String) {
    let (status, body) = told(&send(gateway, &format!("GET /oa/x\nAuthorization: Bearer {token}")));
    (status, if status == 200 { String::new() } else { body })
}

/// Agrees for a user, as the page of the login does.
fn agree(gateway: &Gateway, form: &str) -> (u16, Value) {
    let path = "/oa/tyk/oauth/authorize-client/";
    let response = send(gateway, &format!("POST {path}\nX-Tyk-Authorization: {SECRET}\n{FORM}\n\n{form}"));
    (response.status, response.json())
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name}: {value}"))
}

const GOOD: (u16, String) = (200, String::new());

#[test]
fn users_agree_and_clients_get_tokens() {
    let site = Site::new();
    site.api("oa", server("oa"));
    site.write("policies.json", policies(&["oa"]));
    let gateway = site.start();
    let app = client(&gateway, &[("meta_data", json!({"app": "one"}))]);
    let query = format!("response_type=code&client_id={}&redirect_uri=http%3A%2F%2Fclient.test%2Fcb&state=s1", app.0);
    let sent = send(&gateway, &format!("GET /oa/oauth/authorize/?{query}"));
    assert_eq!((sent.status, sent.field("Location")), (307, Some(format!("http://login.test/agree?{query}").as_str())));
    let (status, agreed) = agree(&gateway, &query);
    assert_eq!(status, 200, "{agreed}");
    let code = text(&agreed, "code");
    assert_eq!(text(&agreed, "redirect_to"), format!("http://client.test/cb?code={code}&state=s1"));
    let redeem = format!("grant_type=authorization_code&redirect_uri=http://client.test/cb&code={code}");
    let (status, first) = tokens(&gateway, &app, &redeem);
    assert_eq!((status, &first["token_type"], &first["expires_in"]), (200, &json!("bearer"), &json!(3600)), "{first}");
    let (access, refresh) = (text(&first, "access_token"), text(&first, "refresh_token"));
    assert_eq!(call(&gateway, access), GOOD);
    let (status, again) = tokens(&gateway, &app, &redeem);
    assert_eq!((status, &again["error"]), (403, &json!("invalid_grant")), "a code is good once");
    // The session has the policy, the client and what the client has.
    let (_, shown) = ask(&gateway, "GET", &format!("/tyk/keys/{access}"), &Value::Null);
    assert_eq!(
        (text(&shown, "oauth_client_id"), &shown["meta_data"]["app"]),
        (app.0.as_str(), &json!("one")),
        "{shown}"
    );
    let (status, second) = tokens(&gateway, &app, &format!("grant_type=refresh_token&refresh_token={refresh}"));
    assert_eq!(status, 200, "{second}");
    assert_eq!(call(&gateway, text(&second, "access_token")), GOOD);
    assert_eq!(call(&gateway, access), (403, error("Key not authorised")), "the token before has ended");
    let (status, again) = tokens(&gateway, &app, &format!("grant_type=refresh_token&refresh_token={refresh}"));
    assert_eq!((status, &again["error"]), (403, &json!("invalid_grant")));
    // A token at once, with rules of its own.
    let rules = right("oa", json!({"quota_max": 1, "quota_renewal_rate": 3600}));
    let form = format!("response_type=token&client_id={}&key_rules={rules}", app.0);
    let (status, implicit) = agree(&gateway, &form);
    assert_eq!(status, 200, "{implicit}");
    let token = text(&implicit, "access_token");
    assert!(text(&implicit, "redirect_to").starts_with("http://client.test/cb#access_token="), "{implicit}");
    assert_eq!([call(&gateway, token).0, call(&gateway, token).0], [200, 403], "the quota of the rules");
}

#[test]
fn clients_and_users_get_tokens_of_their_own() {
    let site = Site::new();
    site.api("oa", server("oa"));
    site.write("policies.json", policies(&["oa"]));
    let gateway = site.start();
    let app = client(&gateway, &[]);
    let (status, own) = tokens(&gateway, &app, "grant_type=client_credentials&scope=read");
    assert_eq!((status, &own["refresh_token"], &own["scope"]), (200, &Value::Null, &json!("read")), "{own}");
    assert_eq!(call(&gateway, text(&own, "access_token")), GOOD);
    let session = right("oa", json!({"basic_auth_data": {"password": "pass"}}));
    assert_eq!(ask(&gateway, "POST", "/tyk/keys/joe", &session).0, 200);
    let login =
        |password: &str| tokens(&gateway, &app, &format!("grant_type=password&username=joe&password={password}"));
    assert_eq!(login("wrong").1["error"], "access_denied");
    let (status, first) = login("pass");
    assert_eq!(status, 200, "{first}");
    assert_eq!(call(&gateway, text(&first, "access_token")), GOOD);
    let (_, second) = login("pass");
    assert_eq!(call(&gateway, text(&second, "access_token")), GOOD);
    assert_eq!(call(&gateway, text(&first, "access_token")).0, 403, "the next login ends the token before");
    let (_, shown) = ask(&gateway, "GET", "/tyk/keys/joe?username=true&org_id=o1", &Value::Null);
    assert_eq!(shown["oauth_keys"][&app.0], second["access_token"], "{shown}");
}

#[test]
fn requests_that_are_wrong_are_refused_in_tyks_words() {
    let site = Site::new();
    site.api("oa", server("oa"));
    let mut narrow = server("narrow");
    narrow["oauth_meta"] = json!({"allowed_access_types": ["authorization_code"], "allowed_authorize_types": ["code"]});
    site.api("narrow", narrow);
    site.write("policies.json", policies(&["oa"]));
    let gateway = Start::at(&site.conf(json!({"oauth_error_status_code": 400, "override_messages": {
        "oauth.auth_field_missing": {"message": "a token, please", "code": 401}}})))
    .start();
    let app = client(&gateway, &[]);
    for (authorization, expected) in [
        ("", (401, error("a token, please"))),
        ("alone", (401, error("a token, please"))),
        ("Token x", (400, error("Bearer token malformed"))),
        ("Bearer x", (403, error("Key not authorised"))),
    ] {
        assert_eq!(
            told(&send(&gateway, &format!("GET /oa/x\nAuthorization: {authorization}"))),
            expected,
            "{authorization}"
        );
    }
    // A key that is no token of a client.
    let (_, made) = ask(&gateway, "POST", "/tyk/keys/create", &right("oa", json!({})));
    let revoked = (403, error("Key not authorised. OAuth client access was revoked"));
    assert_eq!(call(&gateway, text(&made, "key")), revoked);
    let wrong = (app.0.clone(), "wrong".to_owned());
    for (client, form, expected) in [
        (&app, "grant_type=none", "unsupported_grant_type"),
        (&app, "", "unsupported_grant_type"),
        (&wrong, "grant_type=client_credentials", "unauthorized_client"),
        (&app, "grant_type=authorization_code&code=none", "invalid_grant"),
        (&app, "grant_type=authorization_code", "invalid_grant"),
        (&app, "grant_type=refresh_token&refresh_token=none", "invalid_grant"),
        (&app, "grant_type=password&username=joe", "invalid_grant"),
        (&app, "grant_type=password&username=nobody&password=x", "access_denied"),
    ] {
        let (status, answer) = tokens(&gateway, client, form);
        assert_eq!((status, &answer["error"]), (400, &json!(expected)), "{form}: {answer}");
        assert!(answer["error_description"].is_string(), "{answer}");
    }
    let unnamed = send(&gateway, &format!("POST /oa/oauth/token\n{FORM}\n\ngrant_type=client_credentials"));
    assert_eq!(
        (unnamed.status, unnamed.field("Cache-Control"), &unnamed.json()["error"]),
        (400, Some("no-cache, no-store, must-revalidate"), &json!("invalid_request"))
    );
    assert_eq!(send(&gateway, "GET /oa/oauth/token").json()["error"], "invalid_request");
    let asked = |query: &str| told(&send(&gateway, &format!("GET /oa/oauth/authorize?{query}"))).0;
    let of = |more: &str| format!("client_id={}&{more}", app.0);
    for (query, expected) in [
        (of("response_type=code"), 307),
        (of("response_type=none"), 400),
        (of("response_type=code&redirect_uri=http://evil.test/"), 400),
        (of("response_type=code&redirect_uri=http://client.test/cb/deep"), 307),
        ("client_id=none&response_type=code".to_owned(), 400),
    ] {
        assert_eq!(asked(&query), expected, "{query}");
    }
    let path = "/oa/tyk/oauth/authorize-client";
    let stranger =
        send(&gateway, &format!("POST {path}\nX-Tyk-Authorization: wrong\n{FORM}\n\n{}", of("response_type=code")));
    assert_eq!(stranger.status, 403, "{stranger:?}");
    assert_eq!(send(&gateway, &format!("GET {path}\nX-Tyk-Authorization: {SECRET}")).status, 405);
    // A code of one client is of no use to another.
    let (_, agreed) = agree(&gateway, &of("response_type=code"));
    let other = client(&gateway, &[]);
    let redeem = format!("grant_type=authorization_code&code={}", text(&agreed, "code"));
    assert_eq!(tokens(&gateway, &other, &redeem).1["error"], "invalid_grant");
    let elsewhere = format!("{redeem}&redirect_uri=http://client.test/cb/deep");
    assert_eq!(tokens(&gateway, &app, &elsewhere).1["error"], "invalid_request");
    assert_eq!(tokens(&gateway, &app, &redeem).0, 200);
    let of_narrow =
        send(&gateway, &format!("POST /narrow/oauth/token\n{}\n{FORM}\n\ngrant_type=client_credentials", basic(&app)));
    assert_eq!(of_narrow.json()["error"], "unsupported_grant_type");
    let gone = client(&gateway, &[("policy_id", json!("gone"))]);
    assert_eq!(tokens(&gateway, &gone, "grant_type=client_credentials").1["error"], "server_error");
}

#[test]
fn the_gateway_api_has_clients_and_tokens() {
    let site = Site::new();
    site.api("oa", server("oa"));
    site.api("plain", keyed("plain"));
    site.write("policies.json", policies(&["oa", "plain"]));
    let conf = site.conf(json!({}));
    let data = tempfile::tempdir().expect("create a folder");
    let start = || Start::at(&conf).data_dir(data.path()).start();
    let gateway = start();
    let own = json!({"client_id": "app", "secret": "s", "redirect_uri": "http://client.test/", "policy_id": "gold", "description": "d"});
    let shown = json!({"client_id": "app", "redirect_uri": "http://client.test/", "policy_id": "gold", "secret": "s", "meta_data": null, "description": "d"});
    assert_eq!(
        ask(&gateway, "POST", "/tyk/oauth/clients/create", &own),
        (200, shown.clone()),
        "of all APIs of the policy"
    );
    let refused = |body: &Value, path: &str, method: &str| {
        let (status, answer) = ask(&gateway, method, path, body);
        (status, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let none = Value::Null;
    for (method, path, body, expected) in [
        ("POST", "/tyk/oauth/clients/create", json!({"api_id": "none"}), (400, "API doesn't exist")),
        ("POST", "/tyk/oauth/clients/create", json!({"api_id": "plain"}), (400, "API is not OAuth2")),
        ("POST", "/tyk/oauth/clients/create", json!({"policy_id": "none"}), (400, "Policy doesn't exist")),
        ("GET", "/tyk/oauth/clients/oa/none", none.clone(), (404, "OAuth Client ID not found")),
        ("GET", "/tyk/oauth/clients/none", none.clone(), (404, "OAuth client not found")),
        ("PUT", "/tyk/oauth/clients/oa/none/rotate", none.clone(), (404, "OAuth Client ID not found")),
        ("PUT", "/tyk/oauth/clients/oa/app", json!({"policy_id": "none"}), (404, "Policy doesn't exist")),
        ("DELETE", "/tyk/oauth/refresh/x", none.clone(), (400, "Missing parameter api_id")),
        ("DELETE", "/tyk/oauth/tokens", none.clone(), (422, "scope parameter is required")),
    ] {
        assert_eq!(refused(&body, path, method), (expected.0, expected.1.to_owned()), "{method} {path}");
    }
    assert_eq!(ask(&gateway, "GET", "/tyk/oauth/clients/oa", &none), (200, json!([shown])));
    assert_eq!(ask(&gateway, "GET", "/tyk/oauth/clients/apis/app?orgID=o1", &none), (200, json!(["oa"])));
    let app = ("app".to_owned(), "s".to_owned());
    let token = |form: &str| text(&tokens(&gateway, &app, form).1, "access_token").to_owned();
    let [first, second] = [token("grant_type=client_credentials"), token("grant_type=client_credentials")];
    let listed = || ask(&gateway, "GET", "/tyk/oauth/clients/oa/app/tokens", &none).1.as_array().map_or(0, Vec::len);
    assert_eq!(listed(), 2);
    let paged = ask(&gateway, "GET", "/tyk/oauth/clients/oa/app/tokens?page=1", &none).1;
    assert_eq!((&paged["pagination"]["page_total"], paged["tokens"].as_array().map(Vec::len)), (&json!(1), Some(2)));
    let revoke = send(&gateway, &format!("POST /oa/oauth/revoke\n{FORM}\n\ntoken={first}"));
    assert_eq!((revoke.status, revoke.json()["message"].as_str()), (200, Some("token revoked successfully")));
    assert_eq!((call(&gateway, &first).0, call(&gateway, &second), listed()), (403, GOOD, 1));
    // Clients and tokens outlive the process.
    drop(gateway);
    let gateway = start();
    assert_eq!(call(&gateway, &second), GOOD);
    let rotated = ask(&gateway, "PUT", "/tyk/oauth/clients/oa/app/rotate", &none).1;
    assert_ne!(rotated["secret"], "s");
    assert_eq!(tokens(&gateway, &app, "grant_type=client_credentials").1["error"], "unauthorized_client");
    assert_eq!(call(&gateway, &second), GOOD, "tokens go on");
    let (_, changed) = ask(
        &gateway,
        "PUT",
        "/tyk/oauth/clients/oa/app",
        &json!({"policy_id": "other", "redirect_uri": "http://client.test/"}),
    );
    assert_eq!((&changed["policy_id"], call(&gateway, &second).0), (&json!("other"), 403), "another policy ends them");
    let app = ("app".to_owned(), text(&rotated, "secret").to_owned());
    let third = tokens(&gateway, &app, "grant_type=client_credentials").1;
    let third = text(&third, "access_token");
    let form = format!("client_id=app&client_secret={}", app.1);
    let response = send(&gateway, &format!("POST /oa/oauth/revoke_all\n{FORM}\n\n{form}"));
    assert_eq!((response.status, call(&gateway, third).0), (200, 403));
    let fourth = tokens(&gateway, &app, "grant_type=client_credentials").1;
    assert_eq!(ask(&gateway, "DELETE", "/tyk/oauth/clients/oa/app", &none).1["action"], "deleted");
    assert_eq!(call(&gateway, text(&fourth, "access_token")).0, 403);
    assert_eq!(ask(&gateway, "GET", "/tyk/oauth/clients/oa", &none), (200, json!([])));
}

#[test]
fn redis_has_clients_and_tokens_as_tyk_keeps_them() {
    let (site, redis) = (Site::new(), Redis::start());
    site.api("oa", server("oa"));
    site.write("policies.json", policies(&["oa"]));
    let conf =
        json!({"storage": {"type": "redis", "host": "127.0.0.1", "port": redis.port}, "oauth_token_expire": 600});
    let gateways = [Start::at(&site.conf(conf.clone())).start(), Start::at(&site.conf(conf)).start()];
    let [one, other] = &gateways;
    // A client that a Tyk has made.
    let client = json!({"id": "app", "secret": "s", "redirecturi": "http://client.test/cb", "policyid": "gold", "description": ""});
    redis.cli(&["SET", "oauth-data.oa.oauth-clientid.app", &client.to_string()]);
    redis.cli(&["RPUSH", "oauth-data.oa.oauth-client-index.o1", "oauth-clientid.app"]);
    let app = ("app".to_owned(), "s".to_owned());
    let (status, made) = tokens(one, &app, "grant_type=client_credentials");
    assert_eq!((status, &made["expires_in"]), (200, &json!(600)), "{made}");
    let token = text(&made, "access_token");
    assert_eq!([call(one, token), call(other, token)], [GOOD, GOOD]);
    let ranked = redis.cli(&["ZRANGE", "oauth-data.oa.oauth-client-tokens.app", "0", "-1"]);
    let seconds = |key: &str| redis.cli(&["TTL", key]).parse::<i64>().expect("seconds");
    for key in [format!("apikey-{ranked}"), format!("oauth-data.oa.oauth-access.{ranked}")] {
        assert!((500..=600).contains(&seconds(&key)), "{key}");
    }
    let access: Value =
        serde_json::from_str(&redis.cli(&["GET", &format!("oauth-data.oa.oauth-access.{ranked}")])).expect("JSON");
    assert_eq!(
        (&access["AccessToken"], &access["Client"], &access["ExpiresIn"]),
        (&json!(token), &client, &json!(600))
    );
    assert_eq!(ask(other, "GET", "/tyk/oauth/clients/oa", &Value::Null).1[0]["client_id"], "app");
    let (_, agreed) = agree(one, "response_type=code&client_id=app");
    let code = text(&agreed, "code");
    assert!((200..=250).contains(&seconds(&format!("oauth-data.oa.oauth-authorize.{code}"))));
    let redeem = format!("grant_type=authorization_code&code={code}");
    assert_eq!([tokens(other, &app, &redeem).0, tokens(one, &app, &redeem).0], [200, 403], "once, at all gateways");
    // The other gateway sees within a moment that the client is gone.
    assert_eq!(ask(one, "DELETE", "/tyk/oauth/clients/oa/app", &Value::Null).0, 200);
    assert_eq!(redis.cli(&["LLEN", "oauth-data.oa.oauth-client-index.o1"]), "0");
    wait_until("a refusal of the token", LIMIT, || (call(other, token).0 == 403).then_some(()));
}

#[test]
fn new_tokens_are_told_and_definitions_in_the_oas_form_have_servers() {
    let (site, hook) = (Site::new(), Origin::echo());
    let oas = json!({
        "openapi": "3.0.3", "info": {"title": "oa", "version": "1"}, "paths": {},
        "components": {"securitySchemes": {"own": {"type": "oauth2", "flows": {
            "clientCredentials": {"tokenUrl": "/oauth/token", "scopes": {}},
            "authorizationCode": {"tokenUrl": "/oauth/token", "authorizationUrl": "/oauth/authorize", "scopes": {}},
        }}}},
        "x-tyk-api-gateway": {
            "info": {"name": "oa", "id": "oa", "orgId": "o1", "state": {"active": true}},
            "upstream": {"url": "http://ORIGIN/"},
            "server": {"listenPath": {"value": "/oa/", "strip": true}, "authentication": {"enabled": true, "securitySchemes": {"own": {
                "enabled": true, "header": {"enabled": true, "name": "Authorization"}, "refreshToken": true,
                "allowedAuthorizeTypes": ["code"], "authLoginRedirect": "http://login.test/",
                "notifications": {"sharedSecret": "told", "onKeyChangeUrl": format!("http://{}/hook", hook.node())},
            }}}},
        },
    });
    site.api("oa", oas);
    site.write("policies.json", policies(&["oa"]));
    let gateway = site.start();
    let app = client(&gateway, &[]);
    assert_eq!(
        tokens(&gateway, &app, "grant_type=password&username=a&password=b").1["error"],
        "unsupported_grant_type"
    );
    let (_, agreed) = agree(&gateway, &format!("response_type=code&client_id={}", app.0));
    let code = text(&agreed, "code");
    let (_, first) = tokens(&gateway, &app, &format!("grant_type=authorization_code&code={code}"));
    assert_eq!(call(&gateway, text(&first, "access_token")), GOOD);
    let told = wait_until("a notification", LIMIT, || hook.requests().pop());
    let body: Value = serde_json::from_slice(&told.body).expect("JSON");
    assert_eq!((told.target.as_str(), told.field("X-Tyk-Shared-Secret")), ("/hook", Some("told")));
    assert_eq!(
        (&body["auth_code"], &body["new_oauth_token"], &body["notification_type"]),
        (&json!(code), &first["access_token"], &json!("new"))
    );
}
