//! 3scale's APIcast: services, credentials, mapping rules, verdicts of a backend and its absence, reports, policies, and the
//! portal. No backend of 3scale can be installed here, so a scripted one answers as its protocol says.

mod certificates;
mod content_caching;
mod forward_proxies;
mod own_backend;
mod policies;
mod portal;
mod verdicts;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Answer, Gateway, Origin, Request, Response, Start, weir};

/// A configuration file, and the servers around the gateway.
struct Site {
    folder: TempDir,
    origin: Origin,
    backend: Origin,
    /// Status of all answers of the backend; 0: by what it is asked.
    status: Arc<AtomicU16>,
}

impl Site {
    fn new() -> Self {
        let status = Arc::<AtomicU16>::default();
        let given = Arc::clone(&status);
        let backend = Origin::answering(move |request| answer(request, given.load(SeqCst)));
        Self { folder: tempfile::tempdir().expect("create a folder"), origin: Origin::echo(), backend, status }
    }

    /// Starts a gateway with these services.
    fn start(&self, services: Value) -> Gateway {
        self.starting(services).start()
    }

    #[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
    fn starting(&self, services: Value) -> Start {
        Start::at(&self.file(&json!({ "services": services })))
    }

    fn file(&self, document: &Value) -> std::path::PathBuf {
        let path = self.folder.path().join("apicast.json");
        fs::write(&path, document.to_string()).expect("write a file");
        path
    }

    /// A service with a key, which counts all requests as hits.
    #[allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
    fn service(&self, proxy: Value) -> Value {
        let mut all = json!({
            "api_backend": format!("http://{}", self.origin.node()),
            "hosts": ["a.test"],
            "backend": {"endpoint": format!("http://{}", self.backend.node()), "host": "backend.test"},
            "proxy_rules": [
                {"http_method": "GET", "pattern": "/", "metric_system_name": "hits", "delta": 1},
                {"http_method": "POST", "pattern": "/", "metric_system_name": "hits", "delta": 1}
            ],
        });
        for (name, value) in proxy.as_object().expect("fields") {
            all[name] = value.clone();
        }
        json!({
            "id": 16, "system_name": "api", "backend_version": "1", "backend_authentication_type": "service_token",
            "backend_authentication_value": "token", "proxy": all
        })
    }

    /// Targets of the questions so far, without those of reports.
    fn asked(&self) -> Vec<String> {
        let questions = self.backend.complete().into_iter().filter(|request| request.method == "GET");
        questions.map(|request| request.target).collect()
    }
}

/// The answer of a backend: by the key or the id of an application.
fn answer(request: &Request, status: u16) -> Answer {
    if status != 0 {
        return Answer::status(status, "");
    }
    if request.method == "POST" {
        return Answer::status(202, "");
    }
    let has = |text: &str| request.target.contains(text);
    let limits = |max: u32| {
        format!(
            "HTTP/1.1 409 Conflict\r\n3scale-rejection-reason: limits_exceeded\r\n3scale-limit-reset: 42\r\n\
             3scale-limit-max-value: {max}\r\nContent-Length: 0\r\n\r\n"
        )
    };
    match () {
        () if has("=limited&") => Answer::keep(limits(5)),
        () if has("=off&") => Answer::keep(limits(0)),
        () if has("=good&") || has("app_id=app&app_key=key&") || has("app_id=client&usage") => Answer::status(200, ""),
        () => Answer::status(403, ""),
    }
}

/// Sends a request: its line, field lines after it, and after an empty line a body.
fn send(gateway: &Gateway, request: &str) -> Response {
    gateway.send_to("a.test", request)
}

/// Status and body as text.
fn told(response: &Response) -> (u16, String) {
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}

#[test]
fn every_refusal_has_its_words() {
    let site = Site::new();
    let gateway = site.start(json!([site.service(json!({}))]));
    for (request, status, body) in [
        ("GET /x", 401, "Authentication parameters missing"),
        ("GET /x?user_key=bad", 403, "Authentication failed"),
        ("GET /x?user_key=off", 403, "Authentication failed"),
        ("GET /x?user_key=limited", 429, "Limits exceeded"),
        ("DELETE /x?user_key=good", 404, "No Mapping Rule matched"),
    ] {
        let response = send(&gateway, request);
        assert_eq!(told(&response), (status, body.to_owned()), "{request}");
        assert_eq!(response.field("content-type"), Some("text/plain; charset=utf-8"), "{request}");
        assert_eq!(response.field("retry-after"), (status == 429).then_some("42"), "{request}");
        assert_eq!(response.field("x-3scale-matched-rules"), (status == 404).then_some(""), "{request}");
    }
    // No service has the host.
    assert_eq!(told(&send(&gateway, "GET /x?user_key=good\nHost: b.test")), (404, String::new()));
    assert_eq!(send(&gateway, "GET /x?user_key=good\nHost: a.test:8080").status, 200);
    assert_eq!(site.origin.requests().len(), 1);
}

#[test]
fn refusals_are_those_of_the_service() {
    let site = Site::new();
    let mut proxy = json!({});
    for (name, status) in [("auth_missing", 402), ("auth_failed", 405), ("limits_exceeded", 420), ("no_match", 410)] {
        proxy[format!("error_{name}")] = json!(format!("{{\"e\": \"{name}\"}}"));
        proxy[format!("error_status_{name}")] = json!(status);
        proxy[format!("error_headers_{name}")] = json!("application/json");
    }
    // Portals write numbers as texts, too.
    proxy["error_status_auth_failed"] = json!("405");
    let gateway = site.start(json!([site.service(proxy)]));
    for (request, status, name) in [
        ("GET /x", 402, "auth_missing"),
        ("GET /x?user_key=bad", 405, "auth_failed"),
        ("GET /x?user_key=limited", 420, "limits_exceeded"),
        ("PUT /x?user_key=good", 410, "no_match"),
    ] {
        let response = send(&gateway, request);
        assert_eq!(told(&response), (status, format!("{{\"e\": \"{name}\"}}")));
        assert_eq!(response.field("content-type"), Some("application/json"));
    }
}

#[test]
fn credentials_have_three_places() {
    let site = Site::new();
    let service = |id: u32, host: &str, version: &str, proxy: Value| {
        let mut service = site.service(proxy);
        service["id"] = json!(id);
        service["backend_version"] = json!(version);
        service["proxy"]["hosts"] = json!([host]);
        service
    };
    let gateway = site.start(json!([
        service(1, "query1.test", "1", json!({"credentials_location": "query", "auth_user_key": "Api_Key"})),
        service(2, "headers1.test", "1", json!({"credentials_location": "headers"})),
        service(3, "basic1.test", "1", json!({"credentials_location": "authorization"})),
        service(4, "query2.test", "2", json!({})),
        service(5, "headers2.test", "2", json!({"credentials_location": "headers", "auth_app_id": "x-id"})),
        service(6, "basic2.test", "2", json!({"credentials_location": "authorization"})),
    ]));
    let form = "Content-Type: application/x-www-form-urlencoded";
    for (request, status) in [
        ("GET /?api_key=good\nHost: query1.test".to_owned(), 200),
        ("GET /?user_key=good\nHost: query1.test".to_owned(), 401),
        ("GET /\nHost: query1.test\nApi-Key: good".to_owned(), 401),
        (format!("POST /\nHost: query1.test\n{form}\n\nx=1&api_key=good"), 200),
        ("POST /\nHost: query1.test\nContent-Type: text/plain\n\napi_key=good".to_owned(), 401),
        ("GET /\nHost: headers1.test\nUSER-KEY: good".to_owned(), 200),
        ("GET /\nHost: headers1.test\nuser_key: bad".to_owned(), 403),
        ("GET /?user_key=good\nHost: headers1.test".to_owned(), 401),
        // good: and :x
        ("GET /\nHost: basic1.test\nAuthorization: Basic Z29vZDo=".to_owned(), 200),
        ("GET /\nHost: basic1.test\nAuthorization: Bearer good".to_owned(), 200),
        ("GET /\nHost: basic1.test\nAuthorization: Basic !".to_owned(), 401),
        ("GET /\nHost: basic1.test".to_owned(), 401),
        ("GET /?app_id=app&app_key=key\nHost: query2.test".to_owned(), 200),
        ("GET /?app_id=app\nHost: query2.test".to_owned(), 401),
        ("GET /?app_id=app&app_key=other\nHost: query2.test".to_owned(), 403),
        (format!("POST /?app_id=app\nHost: query2.test\n{form}\n\napp_key=key"), 200),
        ("GET /\nHost: headers2.test\nX-Id: app\nApp-Key: key".to_owned(), 200),
        ("GET /\nHost: headers2.test\nX-Id: app".to_owned(), 401),
        // app:key
        ("GET /\nHost: basic2.test\nAuthorization: Basic YXBwOmtleQ==".to_owned(), 200),
    ] {
        assert_eq!(send(&gateway, &request).status, status, "{request}");
    }
}

#[test]
fn mapping_rules_say_what_is_asked() {
    let site = Site::new();
    let rule = |method: &str, pattern: &str, metric: &str, more: Value| {
        let mut rule = json!({"http_method": method, "pattern": pattern, "metric_system_name": metric, "delta": 1});
        for (name, value) in more.as_object().expect("fields") {
            rule[name] = value.clone();
        }
        rule
    };
    let rules = json!([
        rule("GET", "/words/{word}.json", "words", json!({"delta": "2"})),
        rule("ANY", "/words", "hits", json!({"delta": null})),
        rule("GET", "/words", "hits", json!({"parameters": [], "querystring_parameters": {}})),
        rule("GET", "/exact$", "exact", json!({"last": true})),
        rule("GET", "/exact", "never", json!({})),
        rule("GET", "/q?a={b}", "q", json!({"querystring_parameters": {"a": "{b}", "c": "1"}})),
        rule("POST", "/form", "form", json!({"querystring_parameters": {"kind": "x"}})),
        rule("GET", "/a%20b", "blank", json!({})),
    ]);
    let gateway = site.start(json!([site.service(json!({"proxy_rules": rules}))]));
    for (request, usage) in [
        ("GET /words/hello.json?user_key=good", "usage%5Bhits%5D=1&usage%5Bwords%5D=2"),
        ("GET /words/a/b.json?user_key=good", "usage%5Bhits%5D=1"),
        ("GET //words?user_key=good", "usage%5Bhits%5D=1"),
        ("POST /words?user_key=good", ""),
        ("GET /exact?user_key=good", "usage%5Bexact%5D=1"),
        ("GET /exact/x?user_key=good", "usage%5Bnever%5D=1"),
        ("GET /q?user_key=good&a=5&c=2&c=1", "usage%5Bq%5D=1"),
        ("GET /q?user_key=good&a=5&c=2", ""),
        ("GET /q?user_key=good&c=1", ""),
        (
            "POST /form?user_key=good&kind=y\nContent-Type: application/x-www-form-urlencoded\n\nkind=x",
            "usage%5Bform%5D=1",
        ),
        (
            "POST /form?user_key=good&kind=x\nContent-Type: application/x-www-form-urlencoded\n\nother=x",
            "usage%5Bform%5D=1",
        ),
        ("GET /a%20b/c?user_key=good", "usage%5Bblank%5D=1"),
    ] {
        // A key of its own, so that no verdict is known.
        let before = site.asked().len();
        let response = send(&gateway, &request.replacen("user_key=good", &format!("user_key=good&n={before}"), 1));
        let mut asked = site.asked().split_off(before);
        // A verdict may have been asked for again meanwhile.
        asked.retain(|target| target.contains("authrep"));
        if usage.is_empty() {
            assert_eq!((response.status, asked.len()), (404, 0), "{request}");
        } else {
            assert_eq!(response.status, 200, "{request}");
            // The same usage may be known already.
            let target = format!("/transactions/authrep.xml?service_token=token&service_id=16&user_key=good&{usage}");
            assert!(asked.is_empty() || asked == [target.clone()], "{request}: {asked:?}, expected {target}");
            assert!(site.asked().contains(&target), "{request}: {:?}", site.asked());
        }
    }
}

#[test]
fn upstreams_are_told_what_apicast_tells() {
    let site = Site::new();
    let node = site.origin.node();
    let proxy = json!({
        "api_backend": format!("http://{node}/base/"), "secret_token": "shared", "hostname_rewrite": "rewritten.test"
    });
    let gateway = site.start(json!([site.service(proxy)]));
    let response = send(&gateway, "GET /a%2Fb/x?user_key=good&y=1\nX-3scale-proxy-secret-token: forged");
    assert_eq!(response.status, 200);
    let seen = site.origin.last();
    assert_eq!(seen.fields.all("x-3scale-proxy-secret-token"), ["shared"]);
    assert_eq!((seen.field("host"), seen.field("x-real-ip")), (Some("rewritten.test"), Some("127.0.0.1")));
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"));
    assert!(seen.target.starts_with("/base/a") && seen.target.ends_with("/x?user_key=good&y=1"), "{}", seen.target);
    let asked = site.backend.last();
    assert_eq!(asked.field("host"), Some("backend.test"));
    assert_eq!(asked.field("3scale-options"), Some("rejection_reason_header=1&limit_headers=1&no_body=1"));
    // Without a host of its own the upstream gets that of its URL.
    let gateway = site.start(json!([site.service(json!({}))]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    assert_eq!(site.origin.last().field("host"), Some(node.as_str()));
}

#[test]
fn the_secret_of_a_service_shows_what_is_judged() {
    let site = Site::new();
    let gateway = site.start(json!([site.service(json!({}))]));
    let response = send(&gateway, "GET /x?user_key=good\nX-3scale-Debug: token");
    for (name, value) in [
        ("x-3scale-matched-rules", "/"),
        ("x-3scale-credentials", "user_key=good"),
        ("x-3scale-usage", "usage%5Bhits%5D=1"),
        ("x-3scale-service-id", "16"),
        ("x-3scale-service-name", "api"),
    ] {
        assert_eq!(response.field(name), Some(value));
    }
    let response = send(&gateway, "GET /x?user_key=good\nX-3scale-Debug: other");
    assert_eq!((response.status, response.field("x-3scale-usage")), (200, None));
}

#[test]
fn services_are_chosen_by_the_environment() {
    let site = Site::new();
    let mut other = site.service(json!({"hosts": ["b.test"]}));
    other["id"] = json!("17");
    let services = json!([site.service(json!({"backend": null})), other]);
    let backend = format!("http://{}", site.backend.node());
    let gateway = site
        .starting(services.clone())
        .variable("APICAST_SERVICES_LIST", "16, 18")
        .variable("BACKEND_ENDPOINT_OVERRIDE", &backend)
        .start();
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    assert_eq!(send(&gateway, "GET /?user_key=good\nHost: b.test").status, 404);
    // The file may be named by the environment.
    let path = site.file(&json!({"services": services}));
    let (code, _, errors) = check(&[
        ("THREESCALE_CONFIG_FILE", path.to_str().expect("text")),
        ("APICAST_PATH_ROUTING", "true"),
        ("APICAST_RESPONSE_CODES", "true"),
        ("APICAST_CACHE_MAX_TIME", "5m"),
    ]);
    assert_eq!(code, Some(1), "{errors}");
    for text in [
        "APICAST_PATH_ROUTING is not supported",
        "APICAST_RESPONSE_CODES has no effect",
        "APICAST_CACHE_MAX_TIME has no effect",
    ] {
        assert!(errors.contains(text), "{text}: {errors}");
    }
}

/// Runs `weir run` with these variables, where it ends at once.
fn check(variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(crate::harness::binary());
    command.args(["run", "--listen-http", "127.0.0.1:0"]).envs(variables.iter().copied());
    let output = command.output().expect("run weir");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn faults_are_told_with_their_place() {
    let site = Site::new();
    for (service, says) in [
        (json!({"backend_version": "3"}), "services[0].backend_version: expected one of: 1, 2, oauth; found '3'"),
        (json!({"backend_version": "oauth"}), "the OAuth server of APIcast itself is not supported"),
        (json!({"proxy": {"api_backend": "nowhere"}}), "services[0].proxy.api_backend: expected a URL"),
        (json!({"proxy": {"backend": {"endpoint": ""}}}), "services[0].proxy.backend.endpoint"),
        (json!({"proxy": {"error_status_no_match": 99}}), "services[0].proxy.error_status_no_match: expected a status"),
        (json!({"proxy": {"credentials_location": "cookie"}}), "services[0].proxy.credentials_location"),
        (
            json!({"proxy": {"proxy_rules": [{"http_method": "GET", "pattern": "/("}]}}),
            "services[0].proxy.proxy_rules[0].metric_system_name",
        ),
        (
            json!({"proxy": {"proxy_rules": [{"http_method": "GET", "pattern": "/(", "metric_system_name": "h"}]}}),
            "services[0].proxy.proxy_rules[0].pattern: no pattern of paths",
        ),
        (
            json!({"proxy": {"policy_chain": [{"name": "apicast"}, {"name": "soap"}]}}),
            "services[0].proxy.policy_chain[1].name: the policy soap is not supported: actions of SOAP have no metrics",
        ),
        (
            json!({"proxy": {"policy_chain": [{"name": "my_own"}]}}),
            "services[0].proxy.policy_chain[0].name: the policy 'my_own' is not known: expected one of 3scale_batcher",
        ),
        (
            json!({"proxy": {"policy_chain": [{"name": "apicast", "version": "1.0.0"}]}}),
            "services[0].proxy.policy_chain[0].version: the policy apicast of version '1.0.0' is not there",
        ),
        (
            json!({"proxy": {"policy_chain": [{"name": "echo", "configuration": {"status": "x"}}]}}),
            "services[0].proxy.policy_chain[0].configuration.status",
        ),
        (
            json!({"proxy": {"policy_chain": [{"name": "headers", "configuration": {
                "request": [{"op": "set", "header": "x", "value": "{{ a", "value_type": "liquid"}]
            }}]}}),
            "services[0].proxy.policy_chain[0].configuration.request[0].value: no valid Liquid template",
        ),
    ] {
        let mut whole = site.service(json!({}));
        for (name, value) in service.as_object().expect("fields") {
            match (name.as_str(), value) {
                ("proxy", Value::Object(fields)) => {
                    fields.iter().for_each(|(name, value)| whole["proxy"][name] = value.clone());
                }
                _ => whole[name] = value.clone(),
            }
        }
        let path = site.file(&json!({"services": [whole]}));
        let (code, _, errors) = weir(&["check", path.to_str().expect("text")]);
        assert!(code == 1 && errors.contains(says), "{service}: {code} {errors}");
    }
}

#[test]
fn requests_are_explained() {
    let site = Site::new();
    let path = site.file(&json!({"services": [site.service(json!({}))]}));
    let path = path.to_str().expect("text");
    let (code, told, _) = weir(&["explain", path, "--request", "GET http://a.test/x"]);
    assert!(code == 0 && told.contains("api") && told.contains(&site.origin.node()), "{told}");
    let (_, told, _) = weir(&["explain", path, "--request", "GET http://b.test/x"]);
    assert!(told.contains("no-service"), "{told}");
}

#[test]
fn a_dump_of_a_portal_is_served() {
    let site = Site::new();
    let mut service = site.service(json!({
        "tenant_id": 2, "valid?": true, "created_at": "2020-01-01T00:00:00Z", "hostname_rewrite": null,
        "secret_token": "s", "policy_chain": [{"name": "apicast", "version": "builtin", "configuration": null}],
        "oidc_issuer_endpoint": null, "jwt_claim_with_client_id": null, "lock_version": 7
    }));
    service["proxiable?"] = json!(true);
    service["logo_file_name"] = json!(null);
    let document = json!({"proxy_configs": [{"proxy_config": {"id": 3, "version": 4, "content": service}}]});
    let gateway = Start::at(&site.file(&document)).start();
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    assert_eq!(send(&gateway, "GET /?user_key=bad").status, 403);
}
