//! wolf's decisions and logins, with a peer that answers as `server/src/controllers/rbac.js` of wolf does: of wolf itself
//! there is no package.

use serde_json::{Value, json};

use crate::harness::{Answer, Authority, Gateway, Haproxy, Kind, Origin, Reload, Response};

/// A server that knows ann, whose token is `t`, and lets her read.
fn wolf() -> Origin {
    Origin::answering(|request| {
        let token = request.fields.all("x-rbac-token").join(",");
        let user = json!({ "id": 7, "username": "ann", "nickname": "Ann B" });
        let ok = |data: Value| Answer::ok(&json!({ "ok": true, "reason": "", "data": data }).to_string());
        let fail = |reason: &str| json!({ "ok": false, "reason": reason, "data": {} }).to_string();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        match (request.method.as_str(), path) {
            ("GET", "/base/wolf/rbac/access_check") => match (token.as_str(), query) {
                ("busy", _) => Answer::status(503, "later"),
                ("page", _) => Answer::ok("<html>"),
                ("moved", _) => Answer::status(302, "{}"),
                ("denied-page", _) => Answer::status(403, "<html>"),
                ("t", "appID=shop&resName=/read/a%20b&action=GET&clientIP=127.0.0.1") => {
                    ok(json!({ "userInfo": user }))
                }
                ("t", _) => {
                    let refused = json!({ "ok": false, "reason": "no permission", "data": { "userInfo": user } });
                    Answer::status(403, &refused.to_string())
                }
                _ => Answer::status(401, &fail("TOKEN_INVALID")),
            },
            ("POST", "/base/wolf/rbac/login.rest") => match body["password"].as_str() {
                Some("p w") => ok(json!({ "userInfo": user, "token": "t" })),
                Some("broken") => Answer::status(500, "no"),
                _ => Answer::ok(&fail("ERR_PASSWORD_ERROR")),
            },
            ("POST", "/base/wolf/rbac/change_pwd") if token == "t" => match body["oldPassword"].as_str() {
                Some("p w") => ok(json!({})),
                _ => Answer::ok(&fail("ERR_OLD_PASSWORD_INCORRECT")),
            },
            ("GET", "/base/wolf/rbac/user_info") if token == "t" => ok(json!({ "userInfo": user })),
            other => panic!("{other:?}"),
        }
    })
}

fn rules(origin: &Origin, consumer: &Value) -> Value {
    json!({
        "routes": [
            { "id": "r", "uri": "/*", "upstream_id": "o", "plugins": { "wolf-rbac": { "appid": "other", "server": "http://127.0.0.1:1",
                "header_prefix": "Y-", "ssl_verify": true } } },
            { "id": "api", "uri": "/apisix/plugin/wolf-rbac/*", "plugins": { "public-api": {} } },
        ],
        "upstreams": [{ "id": "o", "nodes": { (origin.node()): 1 } }],
        "consumers": [{ "username": "shoppers", "plugins": { "wolf-rbac": consumer } }],
    })
}

fn ask(gateway: &Gateway, line: &str, token: &str) -> Response {
    let token = if token.is_empty() { String::new() } else { format!("Authorization: V1#shop#{token}\r\n") };
    gateway
        .client()
        .request(format!("{line} HTTP/1.1\r\nHost: a.test\r\nX-UserId: 1\r\nX-Nickname: root\r\n{token}\r\n"))
}

fn send(gateway: &Gateway, line: &str, kind: &str, more: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: a.test\r\n{kind}{more}Content-Length: {length}\r\n\r\n");
    gateway.client().request(format!("{head}{body}"))
}

fn start() -> (Origin, Origin, Gateway) {
    let (origin, wolf) = (Origin::hello(), wolf());
    let consumer = json!({ "appid": "shop", "server": format!("http://{}/base/", wolf.node()) });
    let gateway = Gateway::start(rules(&origin, &consumer));
    (origin, wolf, gateway)
}

#[test]
fn wolf_decides() {
    let (origin, wolf, gateway) = start();
    let response = ask(&gateway, "GET /read/a%20b?x=1", "t");
    assert_eq!(response.status, 200);
    let told = [("x-userid", "7"), ("x-username", "ann"), ("x-nickname", "Ann%20B")];
    let request = origin.last();
    for (name, value) in told {
        assert_eq!(response.fields.all(name), [value]);
        assert_eq!(request.fields.all(name), [value]);
    }
    assert_eq!(request.fields.all("x-consumer-username"), ["shoppers"]);
    // The other places of a token.
    for (target, field) in [
        ("/read/a%20b?rbac_token=V1%23shop%23t", ""),
        ("/read/a%20b", "X-Rbac-Token: V1#shop#t\r\n"),
        ("/read/a%20b", "Cookie: a=b; x-rbac-token=V1#shop#t\r\n"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{field}\r\n");
        assert_eq!(gateway.client().request(request).status, 200, "{target} {field}");
    }
    // Refusals, and how often wolf was asked.
    for (line, token, status, body, asked) in [
        (
            "POST /read/a%20b",
            "t",
            403,
            json!({ "message": "no permission", "username": "ann", "nickname": "Ann B" }),
            1,
        ),
        ("GET /read/b", "t", 403, json!({ "message": "no permission", "username": "ann", "nickname": "Ann B" }), 1),
        ("GET /x", "old", 401, json!({ "message": "TOKEN_INVALID" }), 1),
        ("GET /x", "denied-page", 403, json!({ "message": "check permission failed! parse response json failed!" }), 1),
        ("GET /x", "busy", 500, json!({ "message": "request to wolf-server failed, status:503" }), 3),
        ("GET /x", "moved", 500, json!({ "message": "request to wolf-server failed, status:302" }), 1),
        (
            "GET /x",
            "page",
            500,
            json!({ "message": "request to wolf-server failed, err:its answer is no object in JSON" }),
            1,
        ),
    ] {
        let (before, seen) = (origin.requests().len(), wolf.requests().len());
        let response = ask(&gateway, line, token);
        let found: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!((response.status, found), (status, body), "{line} {token}");
        assert_eq!(origin.requests().len(), before, "{line} {token}");
        assert_eq!(wolf.requests().len(), seen + asked, "{line} {token}");
    }
    // Another beginning of the names.
    let server = format!("http://{}/base", wolf.node());
    let other = rules(&origin, &json!({ "appid": "shop", "server": server, "header_prefix": "User-" }));
    assert_eq!(gateway.reload(other), Reload::Applied);
    let response = ask(&gateway, "GET /read/a%20b", "t");
    assert_eq!((response.status, response.fields.all("user-username")), (200, vec!["ann"]));
    assert_eq!(origin.last().fields.all("x-userid"), ["1"], "a field that is none of the plugin's");
}

#[test]
fn fields_of_a_route_have_no_effect() {
    // The route of every test here has all of them, and none is used.
    let (_origin, _wolf, gateway) = start();
    for field in ["appid", "server", "header_prefix", "ssl_verify"] {
        gateway.logged(&format!("wolf-rbac.{field}: it has no effect here"));
    }
    let response = ask(&gateway, "GET /read/a%20b", "t");
    assert_eq!((response.status, response.fields.all("y-userid").len()), (200, 0));
}

#[test]
fn users_log_in_by_the_api() {
    let (_origin, wolf, gateway) = start();
    let path = "/apisix/plugin/wolf-rbac";
    let json_kind = "Content-Type: application/json; charset=utf-8\r\n";
    let form_kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let user = json!({ "id": 7, "username": "ann", "nickname": "Ann B" });
    for (kind, body) in [
        (json_kind, "{\"appid\":\"shop\",\"username\":\"ann\",\"password\":\"p w\",\"authType\":1}"),
        (form_kind, "appid=shop&username=ann&password=p+w"),
    ] {
        let response = send(&gateway, &format!("POST {path}/login"), kind, "", body);
        let found: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!((response.status, found), (200, json!({ "rbac_token": "V1#shop#t", "user_info": user })));
    }
    let sent: Value = serde_json::from_slice(&wolf.requests()[0].body).expect("JSON");
    assert_eq!(sent, json!({ "appid": "shop", "username": "ann", "password": "p w", "authType": 1 }));
    let token = "Cookie: x-rbac-token=V1#shop#t\r\n";
    let failed = "request to wolf-server failed!";
    for (line, kind, more, body, status, wanted) in [
        ("GET user_info", "", token, "", 200, json!({ "user_info": user })),
        ("GET user_info", "", "", "", 401, json!({ "message": "Missing rbac token in request" })),
        (
            "GET user_info",
            "",
            "X-Rbac-Token: V1#x\r\n",
            "",
            401,
            json!({ "message": "invalid rbac token: parse failed" }),
        ),
        ("GET user_info", "", "X-Rbac-Token: V1#x#t\r\n", "", 400, json!({ "message": "appid not found" })),
        ("POST login", json_kind, "", "[1]", 400, json!({ "message": "invalid request" })),
        ("POST login", json_kind, "", "{}", 400, json!({ "message": "appid is missing" })),
        ("POST login", form_kind, "", "appid=x", 400, json!({ "message": "appid not found" })),
        ("POST login", form_kind, "", "appid=shop&password=x", 200, json!({ "message": failed })),
        ("POST login", form_kind, "", "appid=shop&password=broken", 500, json!({ "message": failed })),
        (
            "PUT change_pwd",
            json_kind,
            token,
            "{\"oldPassword\":\"p w\",\"newPassword\":\"n\"}",
            200,
            json!({ "message": "success to change password" }),
        ),
        (
            "PUT change_pwd",
            json_kind,
            token,
            "{\"oldPassword\":\"x\",\"newPassword\":\"n\"}",
            200,
            json!({ "message": failed }),
        ),
        ("PUT change_pwd", json_kind, "", "{}", 401, json!({ "message": "Missing rbac token in request" })),
    ] {
        let (method, name) = line.split_once(' ').expect("two words");
        let response = send(&gateway, &format!("{method} {path}/{name}"), kind, more, body);
        let found: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!((response.status, found), (status, wanted), "{line} {more} {body}");
    }
    assert_eq!(send(&gateway, &format!("GET {path}/login"), "", "", "").status, 404);
}

#[test]
fn a_server_with_tls_is_verified_where_that_is_asked_for() {
    let (origin, wolf) = (Origin::hello(), wolf());
    let authority = Authority::new();
    let proxy = Haproxy::with_tls(&authority.certificate(Kind::P256, &["localhost"]), &wolf.node());
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let with = |host: &str, verify: bool| {
        let server = format!("https://{host}:{}/base", proxy.addr.port());
        rules(&origin, &json!({ "appid": "shop", "server": server, "ssl_verify": verify }))
    };
    let gateway = Gateway::with(with("localhost", true), &trusted);
    assert_eq!(ask(&gateway, "GET /read/a%20b", "t").status, 200);
    for (host, verify, status) in [("127.0.0.1", true, 500), ("127.0.0.1", false, 200)] {
        assert_eq!(gateway.reload(with(host, verify)), Reload::Applied);
        assert_eq!(ask(&gateway, "GET /read/a%20b", "t").status, status, "{host} {verify}");
    }
}
