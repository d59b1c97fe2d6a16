//! Policies that others decide by: Open Policy Agent, with a peer that answers as it does, and the real one where it is
//! installed.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Authority, Connection, Gateway, Kind, LIMIT, Nginx, Origin, Process, Reload, free_port, repository,
    wait_until,
};

fn rules(origin: &Origin, conf: Value) -> Value {
    let mut rules = json!({
        "routes": [{ "id": "r", "name": "named", "uri": "/*", "hosts": ["a.test"], "service_id": "s",
                     "plugins": { "key-auth": {} } }],
        "services": [{ "id": "s", "name": "shop", "upstream": { "nodes": { (origin.node()): 1 } } }],
        "consumers": [{ "username": "jack", "labels": { "team": "red" }, "plugins": { "key-auth": { "key": "j" } } }],
    });
    rules["routes"][0]["plugins"]["opa"] = conf;
    rules
}

fn ask(gateway: &Gateway, path: &str, fields: &str) -> crate::harness::Response {
    gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\napikey: j\r\n{fields}\r\n"))
}

/// A server that decides by the path of the request.
fn server() -> Origin {
    Origin::answering(|request| {
        let input: Value = serde_json::from_slice(&request.body).expect("JSON");
        let result = match input["input"]["request"]["path"].as_str().expect("a path") {
            "/yes" => json!({ "result": { "allow": true, "headers": { "X-Role": "admin", "x-number": 7 } } }),
            "/no" => json!({ "result": { "allow": false } }),
            "/why" => json!({ "result": { "allow": false, "status_code": 401, "reason": "no key",
                                           "headers": { "WWW-Authenticate": "Key", "X-List": ["a", "b"], "Content-Length": "9", "X-Bad": "a\nb" } } }),
            "/json" => json!({ "result": { "allow": 1, "reason": { "code": 7 }, "status_code": 99 } }),
            "/list" => json!({ "result": [true] }),
            "/none" => json!({ "decision": 1 }),
            path => panic!("{path}"),
        };
        Answer::ok(&result.to_string())
    })
}

#[test]
fn opa_decides() {
    let (origin, server) = (Origin::hello(), server());
    let conf = json!({ "host": format!("http://{}", server.node()), "policy": "shop/authz",
                       "send_headers_upstream": ["x-role", "X-Number", "X-Other"] });
    let gateway = Gateway::start(rules(&origin, conf.clone()));
    let response = ask(&gateway, "/yes?a=1&a=2", "X-Role: mine\r\nX-Other: mine\r\n");
    assert_eq!(response.status, 200);
    let told = origin.last();
    assert_eq!(["x-role", "x-number", "x-other"].map(|name| told.field(name)), [Some("admin"), Some("7"), None]);
    let question = server.last();
    assert_eq!((question.method.as_str(), question.target.as_str()), ("POST", "/v1/data/shop/authz"));
    let input: Value = serde_json::from_slice(&question.body).expect("JSON");
    let input = &input["input"];
    let request = &input["request"];
    assert_eq!(
        (&request["method"], &request["host"], &request["scheme"]),
        (&json!("GET"), &json!("a.test"), &json!("http"))
    );
    assert_eq!((&request["query"], &request["headers"]["apikey"]), (&json!({ "a": ["1", "2"] }), &json!("j")));
    assert_eq!(request["port"], gateway.addr.port());
    assert_eq!(input["var"]["remote_addr"], "127.0.0.1");
    assert!(input["var"]["timestamp"].as_u64().is_some_and(|seconds| seconds > 1_700_000_000), "{input}");
    assert!(input["var"]["server_port"].is_string(), "{input}");
    assert!(["route", "service", "consumer"].iter().all(|name| input.get(name).is_none()), "{input}");
    for (path, status, body) in [("/no", 403, ""), ("/why", 401, "no key"), ("/json", 403, "{\"code\":7}")] {
        let response = ask(&gateway, path, "");
        assert_eq!((response.status, response.text().as_str()), (status, body), "{path}");
        assert_eq!(origin.requests().len(), 1, "{path}");
        if path == "/why" {
            assert_eq!((response.field("www-authenticate"), response.field("x-bad")), (Some("Key"), None));
            assert_eq!(response.fields.all("x-list"), ["a", "b"]);
        }
    }
    for path in ["/list", "/none"] {
        assert_eq!(ask(&gateway, path, "").status, 503, "{path}");
    }
    let mut more = conf;
    for name in ["with_route", "with_service", "with_consumer"] {
        more[name] = json!(true);
    }
    assert_eq!(gateway.reload(rules(&origin, more)), Reload::Applied);
    assert_eq!(ask(&gateway, "/yes", "").status, 200);
    let input: Value = serde_json::from_slice(&server.last().body).expect("JSON");
    let input = &input["input"];
    assert_eq!(
        input["route"],
        json!({ "id": "r", "name": "named", "service_id": "s", "uris": ["/*"], "hosts": ["a.test"] })
    );
    assert_eq!(input["service"], json!({ "id": "s", "name": "shop" }));
    assert_eq!(input["consumer"], json!({ "username": "jack", "labels": { "team": "red" } }));
}

#[test]
fn a_server_of_policies_that_lies_or_is_slow() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let broken = Origin::answering(|_| Answer::ok("{\"result\":{\"allow\":true}"));
    let endless = Origin::answering(|_| {
        Answer::ok(&format!("{{\"result\":{{\"allow\":true,\"x\":\"{}\"}}}}", "x".repeat(2 << 20)))
    });
    for (node, status) in [(silent.node(), 403), (broken.node(), 503), (endless.node(), 403)] {
        let conf = json!({ "host": format!("http://{node}"), "policy": "a", "timeout": 300 });
        let gateway = Gateway::start(rules(&origin, conf));
        assert_eq!(ask(&gateway, "/", "").status, status, "{node}");
    }
    assert_eq!(origin.requests().len(), 0);
    // A certificate of an authority that nobody trusts.
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{{\"result\":{{\"allow\":true}}}}'; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let host = format!("https://localhost:{}", nginx.node().rsplit(':').next().expect("a port"));
    for (verify, status) in [(true, 403), (false, 200)] {
        let gateway = Gateway::start(rules(&origin, json!({ "host": host, "policy": "a", "ssl_verify": verify })));
        assert_eq!(ask(&gateway, "/", "").status, status, "{verify}");
    }
}

#[test]
fn connections_to_a_server_of_policies_are_kept() {
    let origin = Origin::hello();
    for (more, connections) in [(json!({}), 1), (json!({ "keepalive": false }), 3)] {
        let server = keycloak(None);
        let mut conf = json!({ "discovery": null, "token_endpoint": format!("http://{}/token", server.node()), "permissions": ["a"] });
        conf.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let gateway = Gateway::start(guarded(&origin, "a.test", conf.clone()));
        for _ in 0..3 {
            assert_eq!(with_token(&gateway, "GET", "/x", "Bearer good").0, 200);
        }
        assert_eq!(server.connections(), connections, "{conf}");
        for (name, value) in [("keepalive_pool", 1), ("keepalive_timeout", 1000)] {
            conf[name] = json!(value);
        }
        assert_eq!(gateway.reload(guarded(&origin, "a.test", conf)), Reload::Applied);
        assert_eq!(with_token(&gateway, "GET", "/x", "Bearer good").0, 200);
        wait_until("connections to be closed", LIMIT, || (server.open() == 0).then_some(()));
    }
    for (more, connections) in [
        (json!({}), 1),
        (json!({ "keepalive": false }), 3),
        (json!({ "keepalive_pool": 1, "keepalive_timeout": 60000 }), 1),
    ] {
        let server = server();
        let mut conf = json!({ "host": format!("http://{}", server.node()), "policy": "a" });
        conf.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let gateway = Gateway::start(rules(&origin, conf));
        for _ in 0..3 {
            assert_eq!(ask(&gateway, "/yes", "").status, 200);
        }
        assert_eq!(server.connections(), connections, "{more}");
    }
    // One that has been idle for longer is not used again.
    let server = server();
    let conf = json!({ "host": format!("http://{}", server.node()), "policy": "a", "keepalive_timeout": 1000 });
    let gateway = Gateway::start(rules(&origin, conf));
    assert_eq!(ask(&gateway, "/yes", "").status, 200);
    wait_until("the connection to be closed", LIMIT, || (server.open() == 0).then_some(()));
}

#[test]
fn the_real_server_decides() {
    let program = repository().join("target/test-tools/opa");
    if !program.is_file() {
        return println!("left out: there is no Open Policy Agent (make test-peers)");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("authz.rego");
    let text = "package shop.authz\n\
        default allow := false\n\
        allow if { input.request.method == \"GET\"; input.consumer.labels.team == \"red\"; input.request.path == \"/yes\" }\n\
        headers := {\"X-Role\": \"admin\"} if allow\n\
        reason := \"not that path\" if not allow\n\
        status_code := 402 if not allow\n";
    fs::write(&policy, text).expect("write a file");
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["run", "--server", "--disable-telemetry", "--addr", &format!("127.0.0.1:{port}")]).arg(&policy);
    let _process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until("the server to listen", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let origin = Origin::hello();
    let conf = json!({ "host": format!("http://127.0.0.1:{port}"), "policy": "shop/authz", "with_consumer": true,
                       "send_headers_upstream": ["X-Role"] });
    let gateway = Gateway::start(rules(&origin, conf));
    assert_eq!(ask(&gateway, "/yes", "").status, 200);
    assert_eq!(origin.last().field("x-role"), Some("admin"));
    let refused = ask(&gateway, "/no", "");
    assert_eq!((refused.status, refused.text()), (402, "not that path".to_owned()));
}

/// A server that answers as Keycloak does, for the realm `r`; its document names endpoints at `elsewhere` where that is set.
fn keycloak(elsewhere: Option<String>) -> Origin {
    Origin::answering(move |request| {
        let host = request.field("host").expect("a host").to_owned();
        let base = format!("http://{}", elsewhere.as_ref().unwrap_or(&host));
        let form = String::from_utf8_lossy(&request.body).into_owned();
        let token = request.field("authorization").unwrap_or_default();
        match (request.target.split('?').next().expect("a path"), token) {
            ("/uma2", _) => Answer::ok(&json!({ "issuer": "i", "token_endpoint": format!("{base}/token"), "resource_registration_endpoint": format!("{base}/resources") }).to_string()),
            ("/token", _) if form.contains("grant_type=client_credentials") => {
                assert!(form.contains("client_id=shop") && form.contains("client_secret=s%20%26"), "{form}");
                Answer::ok("{\"access_token\":\"own\",\"expires_in\":60}")
            }
            ("/token", _) if form.contains("grant_type=password") => match form.contains("username=jack&password=p%26w") {
                true => Answer::ok("{\"access_token\":\"of jack\"}"),
                false => Answer::status(401, "{\"error\":\"invalid_grant\"}"),
            },
            ("/resources", "Bearer own") if request.target.ends_with("uri=%2Forders%2F1") => Answer::ok("[\"id-7\"]"),
            ("/resources", "Bearer own") => Answer::ok("[]"),
            ("/token", "Bearer good") => Answer::ok("{\"result\":true}"),
            ("/token", "Bearer false") => Answer::ok("{\"result\":false}"),
            ("/token", "Bearer page") => Answer::ok("<html>"),
            ("/token", "Bearer old") => Answer::status(401, "{\"error\":\"invalid_token\"}"),
            _ => Answer::status(403, "{\"error\":\"access_denied\"}"),
        }
    })
}

fn guarded(origin: &Origin, server: &str, more: Value) -> Value {
    let mut conf = json!({ "discovery": format!("http://{server}/uma2"), "client_id": "shop", "client_secret": "s &" });
    let Value::Object(more) = more else { panic!("expected an object, found {more}") };
    let fields = conf.as_object_mut().expect("an object");
    fields.extend(more);
    fields.retain(|_, value| !value.is_null());
    json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "authz-keycloak": conf } }] })
}

fn with_token(gateway: &Gateway, method: &str, path: &str, token: &str) -> (u16, String) {
    let mut client = gateway.client();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a.test\r\nAuthorization: {token}\r\nContent-Length: 0\r\n\r\n"
    ));
    let response = client.response_to(method);
    (response.status, response.field("location").map_or_else(|| response.text(), str::to_owned))
}

#[test]
fn keycloak_decides() {
    let (origin, server) = (Origin::hello(), keycloak(None));
    let form_of = || String::from_utf8_lossy(&server.last().body).into_owned();
    let grant = "urn:ietf:params:oauth:grant-type:uma-ticket";
    let more = json!({ "permissions": ["orders", "a#read"], "http_method_as_scope": true, "grant_type": grant, "cache_ttl_seconds": 600 });
    let gateway = Gateway::start(guarded(&origin, &server.node(), more));
    for (token, status) in [
        ("Bearer good", 200),
        ("good", 200),
        ("Bearer bad", 403),
        ("Bearer old", 401),
        ("Bearer false", 503),
        ("Bearer page", 503),
    ] {
        assert_eq!(with_token(&gateway, "GET", "/x", token).0, status, "{token}");
    }
    assert_eq!(origin.requests().len(), 2);
    let form = form_of();
    assert!(
        form.starts_with(&format!("grant_type={}&audience=shop&response_mode=decision", grant.replace(':', "%3A"))),
        "{form}"
    );
    assert!(form.ends_with("&permission=orders%23GET&permission=a%23read%2C%20GET"), "{form}");
    let documents = || server.requests().iter().filter(|request| request.target == "/uma2").count();
    assert_eq!(documents(), 1, "it is remembered");
    // Permissions by the path, with a token of the client's own.
    let lazy = json!({ "lazy_load_paths": true, "access_denied_redirect_uri": "http://b.test/no", "access_token_expires_leeway": 0, "access_token_expires_in": 60 });
    assert_eq!(gateway.reload(guarded(&origin, &server.node(), lazy.clone())), Reload::Applied);
    for _ in 0..2 {
        assert_eq!(with_token(&gateway, "GET", "/orders/1", "Bearer good").0, 200);
    }
    assert!(form_of().ends_with("&permission=id-7"), "{}", form_of());
    let own_tokens = || {
        server
            .requests()
            .iter()
            .filter(|request| String::from_utf8_lossy(&request.body).contains("client_credentials"))
            .count()
    };
    assert_eq!(own_tokens(), 1, "it is remembered");
    assert_eq!(with_token(&gateway, "GET", "/other", "Bearer good"), (307, "http://b.test/no".into()), "no resource");
    assert_eq!(with_token(&gateway, "GET", "/orders/1", "Bearer bad"), (307, "http://b.test/no".into()));
    let mut short = lazy;
    short["access_token_expires_leeway"] = json!(60);
    assert_eq!(gateway.reload(guarded(&origin, &server.node(), short)), Reload::Applied);
    for _ in 0..2 {
        assert_eq!(with_token(&gateway, "GET", "/orders/1", "Bearer good").0, 200);
    }
    assert_eq!(own_tokens(), 3, "a token that ends at once is not kept");
    // Without permissions, with endpoints of the configuration.
    let named = json!({ "policy_enforcement_mode": "PERMISSIVE", "discovery": null, "token_endpoint": format!("http://{}/token", server.node()),
                        "resource_registration_endpoint": format!("http://{}/resources", server.node()) });
    assert_eq!(gateway.reload(guarded(&origin, &server.node(), named)), Reload::Applied);
    assert_eq!(with_token(&gateway, "GET", "/x", "Bearer good").0, 200);
    assert!(!form_of().contains("permission="), "{}", form_of());
    // Tokens for names and passwords.
    let grants = json!({ "password_grant_token_generation_incoming_uri": "/token", "max_req_body_size": 40 });
    assert_eq!(gateway.reload(guarded(&origin, &server.node(), grants)), Reload::Applied);
    for (form, status, body) in [
        ("username=jack&password=p%26w", 200, "of jack"),
        ("username=jack&password=x", 401, "Could not decode"),
        ("username=jack", 422, "password is missing."),
        ("password=x", 422, "username is missing."),
        ("username=jack&password=01234567890123456789", 413, ""),
    ] {
        let request = format!(
            "POST /token HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            form.len()
        );
        let response = gateway.client().request(request);
        assert!(response.status == status && response.text().contains(body), "{form}: {response:?}");
    }
}

#[test]
fn a_keycloak_that_lies_or_is_slow() {
    let origin = Origin::hello();
    let silent = Origin::scripted(Connection::await_close);
    let thief = Origin::hello();
    let lying = keycloak(Some(thief.node()));
    for node in [silent.node(), lying.node(), Origin::answering(|_| Answer::ok("{\"token_endpoint\":7}")).node()] {
        let gateway = Gateway::start(guarded(&origin, &node, json!({ "permissions": ["a"], "timeout": 1000 })));
        assert_eq!(with_token(&gateway, "GET", "/x", "Bearer good").0, 503, "{node}");
    }
    assert_eq!((origin.requests().len(), thief.requests().len()), (0, 0), "no token goes to another place");
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{{\"result\":true}}'; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let uri = format!("https://localhost:{}/token", nginx.node().rsplit(':').next().expect("a port"));
    for (verify, status) in [(true, 503), (false, 200)] {
        let more = json!({ "discovery": null, "token_endpoint": uri, "permissions": ["a"], "ssl_verify": verify });
        let gateway = Gateway::start(guarded(&origin, "a.test", more));
        assert_eq!(with_token(&gateway, "GET", "/x", "Bearer good").0, status, "{verify}");
    }
}

#[test]
fn casbin_reads_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, policy) = (folder.path().join("model.conf"), folder.path().join("policy.csv"));
    let text = "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub, obj, act\n\
        [policy_effect]\ne = some(where (p.eft == allow))\n[matchers]\nm = r.sub == p.sub && keyMatch2(r.obj, p.obj) && regexMatch(r.act, p.act)\n";
    fs::write(&model, text).expect("write a file");
    fs::write(&policy, "p, alice, /orders/:id, ^(GET|HEAD)$\n").expect("write a file");
    let origin = Origin::hello();
    let conf = json!({ "username": "X-User", "model_path": model.display().to_string(), "policy_path": policy.display().to_string() });
    let rules = json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "authz-casbin": conf } }] });
    let gateway = Gateway::start(rules);
    for (path, user, status) in [("/orders/7", "alice", 200), ("/orders/7/x", "alice", 403), ("/orders/7", "bob", 403)]
    {
        let response =
            gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nX-User: {user}\r\n\r\n"));
        assert_eq!(response.status, status, "{user} {path}");
    }
}
