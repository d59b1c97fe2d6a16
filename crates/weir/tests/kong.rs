//! Kong's declarative configurations: routes, answers and plugins as a running Kong has them, and what is refused.

use std::fs;

use crate::harness::{Gateway, LIMIT, Origin, Reload, Response, Start, each, get, wait_until, weir};

/// A gateway with this document, in which `ORIGIN` is the address of the origin.
fn start(document: &str) -> (Gateway, Origin) {
    let origin = Origin::echo();
    let gateway = Start::text(&document.replace("ORIGIN", &origin.node())).start();
    (gateway, origin)
}

/// Sends a request: its line, and field lines after it. A Host is added where there is none.
fn send(gateway: &Gateway, request: &str) -> Response {
    gateway.send_to("o", request)
}

/// The message of an error in JSON.
fn message(response: &Response) -> String {
    response.json()["message"].as_str().unwrap_or_default().to_owned()
}

const ROUTES: &str = "
_format_version: '3.0'
_transform: true
_info: {select_tags: [a]}
_comment: text
services:
- name: a
  url: http://ORIGIN/base
  tags: null
  routes:
  - {name: prefix, paths: [/foo]}
  - {name: longer, paths: [/foo/keep], strip_path: false}
  - {name: regex, paths: ['~/re/(?<id>\\d+)']}
  - {name: posted, paths: [/], methods: [POST], strip_path: false}
- {name: gone, url: 'http://ORIGIN', enabled: false, routes: [{name: gone, paths: [/gone]}]}
- name: b
  host: pool
  path: /b/
  routes:
  - {name: host, hosts: [b.test, '*.wild.test', 'any.*'], paths: [/]}
  - {name: header, paths: [/], headers: {X-Kind: [One, two]}}
  - {name: kept, hosts: [kept.test], preserve_host: true}
upstreams:
- {name: pool, targets: [ORIGIN, {target: '127.0.0.1:1', weight: 0}]}
- {name: unused}
routes:
- {name: apart, service: {name: a}, paths: [/apart]}
- {name: secure, service: a, paths: [/secure], protocols: [https]}
- {name: moved, service: a, paths: [/moved], protocols: [https], https_redirect_status_code: 301}
- {name: empty, paths: [/empty]}
";

#[test]
fn routes_lead_where_they_do_in_kong() {
    let (gateway, origin) = start(ROUTES);
    let cases = [
        ("GET /foo", "/base"),
        ("GET /foo/", "/base/"),
        ("GET /foo/bar?x=1", "/base/bar?x=1"),
        ("GET /foox", "/base/x"),
        ("GET /foo/keep/x", "/base/foo/keep/x"),
        ("GET /re/42/x", "/base/x"),
        ("GET /apart/x", "/base/x"),
        ("POST /other\nContent-Length: 0", "/base/other"),
        ("GET /x\nHost: b.test", "/b/x"),
        ("GET /x\nHost: c.wild.test", "/b/x"),
        ("GET /x\nHost: any.thing", "/b/x"),
        ("GET /x\nX-Kind: TWO", "/b/x"),
        ("GET /a%20b?\nHost: b.test", "/b/a%20b?"),
    ];
    for (request, target) in cases {
        let response = send(&gateway, request);
        assert_eq!((response.status, origin.last().target.as_str()), (200, target), "{request}: {response:?}");
    }
    for request in ["GET /other", "GET /gone", "GET /re/x", "GET /\nX-Kind: three", "GET /x\nHost: wild.test", "FOO /"]
    {
        let response = send(&gateway, request);
        assert_eq!(
            (response.status, message(&response).as_str()),
            (404, "no Route matched with those values"),
            "{request}"
        );
    }
    assert_eq!(send(&gateway, "GET /\nHost: kept.test:81").status, 200);
    assert_eq!(origin.last().field("Host"), Some("kept.test:81"));
    assert_eq!(send(&gateway, "GET /\nHost: b.test").status, 200);
    assert_eq!(origin.last().field("Host"), Some(origin.node().as_str()));
}

#[test]
fn upstreams_and_clients_are_told_what_kong_tells() {
    let (gateway, origin) = start(ROUTES);
    let response = send(&gateway, "GET /foo/x?y=1\nHost: me.test:81\nVia: 1.0 foo\nX-Forwarded-Prefix: /forged");
    let request = origin.last();
    let id = response.field("X-Kong-Request-Id").expect("an id");
    assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    for (name, value) in [
        ("Via", "1.0 foo, 1.1 kong/3.9.3"),
        ("X-Forwarded-Host", "me.test"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Path", "/foo/x"),
        ("X-Forwarded-Prefix", "/foo"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Real-IP", "127.0.0.1"),
        ("X-Kong-Request-Id", id),
    ] {
        assert_eq!(request.field(name), Some(value), "{request:?}");
    }
    assert_eq!(response.field("Via"), Some("1.1 kong/3.9.3"));
    for name in ["X-Kong-Upstream-Latency", "X-Kong-Proxy-Latency"] {
        assert!(response.field(name).is_some_and(|ms| ms.parse::<u64>().is_ok()), "{response:?}");
    }
    assert_eq!(response.field("X-Kong-Response-Latency"), None);
}

#[test]
fn answers_are_kongs_in_the_accepted_form() {
    let (gateway, _origin) = start(ROUTES);
    let forms = [
        ("", "application/json; charset=utf-8", "{\n  \"message\":\"M\",\n  \"request_id\":\"ID\"\n}"),
        ("Accept: text/plain", "text/plain; charset=utf-8", "M\nrequest_id: ID\n"),
        (
            "Accept: application/xml",
            "application/xml; charset=utf-8",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<error>\n  <message>M</message>\n  <requestid>ID</requestid>\n</error>\n",
        ),
    ];
    for (accept, kind, body) in forms {
        let response = send(&gateway, &format!("GET /none\n{accept}"));
        let id = response.field("X-Kong-Request-Id").expect("an id");
        let body = body.replace('M', "no Route matched with those values").replace("ID", id);
        assert_eq!((response.field("Content-Type"), response.text()), (Some(kind), body), "{accept}");
        assert_eq!(response.field("Server"), Some("kong/3.9.3"));
        assert!(response.field("X-Kong-Response-Latency").is_some() && response.field("Via").is_none());
    }
    for (path, status, text) in
        [("/empty", 503, "no Service found with those values"), ("/secure", 426, "Please use HTTPS protocol")]
    {
        let response = send(&gateway, &format!("GET {path}"));
        assert_eq!((response.status, message(&response).as_str()), (status, text), "{response:?}");
    }
    let response = send(&gateway, "GET /moved/x?y\nHost: a.test:81");
    assert_eq!((response.status, response.field("Location")), (301, Some("https://a.test/moved/x?y")));
    let gone =
        "_format_version: '3.0'\nservices: [{name: s, url: 'http://127.0.0.1:1', retries: 0, routes: [{paths: [/]}]}]";
    let (gateway, _origin) = start(gone);
    let response = send(&gateway, "GET /");
    let plain = response.text();
    assert!(plain.starts_with("An invalid response was received from the upstream server\nrequest_id: "), "{plain}");
    assert_eq!((response.status, response.field("Via")), (502, Some("1.1 kong/3.9.3")));
    assert!(response.field("X-Weir-Error").is_none() && response.field("X-Kong-Proxy-Latency").is_some());
    let response = send(&gateway, "GET /\nAccept: application/json");
    assert_eq!(message(&response), "An invalid response was received from the upstream server");
}

const PLUGINS: &str = "
_format_version: '3.0'
services:
- name: s
  url: http://ORIGIN
  plugins:
  - {name: cors, config: {origins: ['http://a.test', 'http://.*[.]b[.]test'], credentials: true, max_age: 60}}
  routes:
  - {name: key, paths: [/key], plugins: [{name: key-auth, config: {hide_credentials: true, realm: R}}]}
  - {name: basic, paths: [/basic], plugins: [{name: basic-auth}]}
  - name: grouped
    paths: [/grouped]
    plugins: [{name: key-auth}, {name: acl, config: {allow: [admins]}}]
  - name: either
    paths: [/either]
    plugins: [{name: key-auth, config: {anonymous: nobody}}, {name: basic-auth, config: {anonymous: nobody}}]
  - name: limited
    paths: [/limited]
    plugins: [{name: rate-limiting, config: {hour: 2, year: 5, policy: local, limit_by: header, header_name: X-Who}}]
  - name: sized
    paths: [/sized]
    plugins: [{name: request-size-limiting, config: {allowed_payload_size: 4, size_unit: bytes}}]
  - {name: inside, paths: [/inside], plugins: [{name: ip-restriction, config: {allow: [10.0.0.0/8]}}]}
  - {name: off, paths: [/off], plugins: [{name: cors, enabled: false}, {name: request-termination, enabled: false}]}
  - name: changed
    paths: [/changed]
    plugins:
    - name: request-transformer
      config: {add: {headers: ['X-Add: 1', 'X-There:2']}, remove: {headers: [X-Gone]}, replace: {headers: ['X-There:3']}}
    - {name: response-transformer, config: {add: {headers: ['X-Frame-Options:DENY']}, remove: {headers: [X-Kong-Nothing]}}}
- name: closed
  plugins: [{name: request-termination, config: {status_code: 403, message: closed}}]
  url: http://ORIGIN
  routes:
  - {name: closed, paths: [/closed]}
  - {name: moved, paths: [/moved], plugins: [{name: redirect, config: {location: 'https://to.test/at?x=1'}}]}
  - name: kept
    paths: [/kept]
    plugins: [{name: redirect, config: {location: 'https://to.test/at?x=1', status_code: 308, keep_incoming_path: true}}]
  - {name: agents, paths: [/agents], plugins: [{name: bot-detection, config: {allow: [^goodbot], deny: [^curl/]}}, {name: request-termination, config: {status_code: 403, message: closed}}]}
  - {name: text, paths: [/text], plugins: [{name: request-termination, config: {status_code: 200, body: <a/>, content_type: text/xml}}]}
consumers:
- username: alice
  custom_id: c-1
  keyauth_credentials: [{key: alice-key, id: 0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d}]
  basicauth_credentials: [{username: alice, password: 'se:cret'}]
  acls: [{group: admins}, {group: staff}]
- username: bob
- username: nobody
  plugins: [{name: request-termination, config: {status_code: 401, message: who are you}}]
keyauth_credentials:
- {consumer: bob, key: bob-key}
plugins:
- {name: correlation-id, config: {header_name: X-Request-ID, generator: uuid, echo_downstream: true}}
- {name: ip-restriction, route: inside, enabled: false, config: {deny: [0.0.0.0/0]}}
";

#[test]
fn callers_are_known_as_in_kong() {
    let (gateway, origin) = start(PLUGINS);
    let alice = "alice-key";
    let refusals = [
        ("GET /key", 401, "No API key found in request", "Key realm=\"R\""),
        ("GET /key\napikey: nobody's", 401, "Unauthorized", "Key realm=\"R\""),
        ("GET /key?apikey=alice-key&apikey=x", 401, "Duplicate API key found", "Key realm=\"R\""),
        ("GET /basic", 401, "Unauthorized", "Basic realm=\"service\""),
        ("GET /basic\nAuthorization: Basic YWxpY2U6c2U6Y3JldA==x", 401, "Unauthorized", "Basic realm=\"service\""),
        ("GET /grouped\napikey: bob-key", 403, "You cannot consume this service", ""),
        ("GET /either", 401, "who are you", ""),
        ("GET /either\napikey: wrong", 401, "who are you", ""),
        ("GET /inside", 403, "IP address not allowed: 127.0.0.1", ""),
        ("GET /closed", 403, "closed", ""),
    ];
    for (request, status, text, challenge) in refusals {
        let response = send(&gateway, request);
        assert_eq!((response.status, message(&response).as_str()), (status, text), "{request}");
        assert_eq!(response.field("WWW-Authenticate").unwrap_or_default(), challenge, "{request}");
    }
    let forged = "X-Consumer-Username: root\nX-Consumer-Groups: root\nX-Anonymous-Consumer: true";
    for request in [
        format!("GET /key?apikey={alice}&q=1\n{forged}"),
        format!("GET /key?q=1\napikey: {alice}\n{forged}"),
        format!("GET /grouped?q=1\napikey: {alice}\n{forged}"),
        format!("GET /either?q=1\nAuthorization: basic YWxpY2U6c2U6Y3JldA==\n{forged}"),
    ] {
        let response = send(&gateway, &request);
        assert_eq!(response.status, 200, "{request}: {response:?}");
        let seen = origin.last();
        assert_eq!(seen.target, "/?q=1", "{request}");
        let told = ["X-Consumer-Username", "X-Consumer-Custom-ID", "X-Anonymous-Consumer"].map(|name| seen.field(name));
        assert_eq!(told, [Some("alice"), Some("c-1"), None], "{request}: {seen:?}");
        let credential = if request.contains("asic") { "alice" } else { "0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d" };
        assert_eq!(seen.field("X-Credential-Identifier"), Some(credential), "{request}");
        // Ids of entities without one are made from their names (UUID version 5 in Kong's namespace).
        assert!(seen.field("X-Consumer-ID").is_some_and(|id| id.len() == 36 && id.as_bytes()[14] == b'5'), "{seen:?}");
        if request.contains("grouped") {
            assert_eq!(seen.field("X-Consumer-Groups"), Some("admins, staff"));
        }
    }
}

#[test]
fn limits_count_in_windows_of_the_calendar() {
    let (gateway, origin) = start(PLUGINS);
    let field = |response: &Response, name: &str| response.field(name).unwrap_or_default().to_owned();
    // A new hour may begin between two requests; then one more passes.
    let mut left = Vec::new();
    for _ in 0..2 {
        let response = send(&gateway, "GET /limited\nX-Who: a");
        assert_eq!(response.status, 200);
        left.push(field(&response, "X-RateLimit-Remaining-Hour"));
        assert_eq!(field(&response, "X-RateLimit-Limit-Year"), "5");
        assert_eq!(field(&response, "RateLimit-Limit"), "2");
    }
    assert_eq!(left, ["1", "0"]);
    let before = origin.requests().len();
    let response = send(&gateway, "GET /limited\nX-Who: a");
    assert_eq!((response.status, message(&response).as_str()), (429, "API rate limit exceeded"));
    assert_eq!(field(&response, "Retry-After"), field(&response, "RateLimit-Reset"));
    assert!(field(&response, "RateLimit-Reset").parse::<u64>().is_ok_and(|seconds| (1..=3600).contains(&seconds)));
    assert_eq!(origin.requests().len(), before);
    assert_eq!(send(&gateway, "GET /limited\nX-Who: b").status, 200, "another key");
    assert_eq!(send(&gateway, "GET /limited").status, 200, "the address");
    for (request, status) in [
        ("POST /sized\nContent-Length: 5", 413),
        ("POST /sized\nContent-Length: 5\nExpect: 100-continue", 417),
        ("POST /sized\nContent-Length: 0", 200),
    ] {
        let response = send(&gateway, request);
        assert_eq!(response.status, status, "{request}");
        if status != 200 {
            assert_eq!(message(&response), "Request size limit exceeded");
        }
    }
}

#[test]
fn other_plugins_do_as_in_kong() {
    let (gateway, origin) = start(PLUGINS);
    // Preflight requests are answered before authentication, and the answers of other plugins carry the fields too.
    let preflight =
        "OPTIONS /key\nOrigin: http://a.test\nAccess-Control-Request-Method: PUT\nAccess-Control-Request-Headers: x-a";
    let response = send(&gateway, preflight);
    for (name, value) in [
        ("Access-Control-Allow-Origin", "http://a.test"),
        ("Access-Control-Allow-Credentials", "true"),
        ("Access-Control-Allow-Methods", "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT"),
        ("Access-Control-Allow-Headers", "x-a"),
        ("Access-Control-Max-Age", "60"),
        ("Vary", "Origin"),
    ] {
        assert_eq!(response.field(name), Some(value), "{response:?}");
    }
    assert_eq!((response.status, response.body.len()), (200, 0));
    for (origin, allowed) in [
        ("http://a.test:80", Some("http://a.test:80")),
        ("http://x.b.test", Some("http://x.b.test")),
        ("http://x.b.test.evil", None),
        ("http://c.test", None),
    ] {
        let response = send(&gateway, &format!("GET /key\nOrigin: {origin}"));
        assert_eq!((response.status, response.field("Access-Control-Allow-Origin")), (401, allowed), "{origin}");
        assert_eq!(response.field("Vary"), Some("Origin"));
    }
    let response = send(&gateway, "GET /changed\nX-Gone: 1\nX-There: 1");
    let seen = origin.last();
    let fields = ["X-Add", "X-There", "X-Gone"].map(|name| seen.field(name));
    assert_eq!(fields, [Some("1"), Some("3"), None], "{seen:?}");
    assert_eq!(response.field("X-Frame-Options"), Some("DENY"));
    let id = response.field("X-Request-ID").expect("an id");
    assert_eq!((id.len(), seen.field("X-Request-ID")), (36, Some(id)));
    let response = send(&gateway, "GET /changed\nX-Request-ID: mine");
    assert_eq!((response.field("X-Request-ID"), origin.last().field("X-Request-ID")), (Some("mine"), Some("mine")));
    let response = send(&gateway, "GET /text");
    let found = (response.status, response.field("Content-Type"), response.text());
    assert_eq!(found, (200, Some("text/xml; charset=UTF-8"), "<a/>".to_owned()));
    let response = send(&gateway, "GET /off\nOrigin: http://a.test");
    assert_eq!(response.field("Access-Control-Allow-Origin"), Some("http://a.test"), "a disabled one does not shadow");
    // Plugins at the top apply to what no route takes, as far as answers go.
    assert_eq!(send(&gateway, "GET /none").status, 404);
}

#[test]
fn redirects_and_refused_programs_are_kongs() {
    let (gateway, _origin) = start(PLUGINS);
    for (path, status, location) in [
        ("/moved/a?b=1", 301, "https://to.test/at?x=1"),
        ("/kept/a?b=1", 308, "https://to.test/kept/a?b=1"),
        ("/kept//evil.test", 308, "https://to.test/kept/evil.test"),
    ] {
        let response = send(&gateway, &format!("GET {path}"));
        let found = (response.status, response.field("Location"), response.field("Content-Type"), response.text());
        assert_eq!(found, (status, Some(location), None, "redirecting".to_owned()), "{path}");
    }
    // Behind the plugin stands one that answers 403 with another message.
    for (agent, expected) in [
        ("Mozilla/5.0", "closed"),
        ("goodbot/1.0", "closed"),
        ("Somebot/1.0", "Forbidden"),
        ("my-spider/v2", "Forbidden"),
        ("Go-http-client/1.1", "Forbidden"),
        ("curl/8.0", "Forbidden"),
        ("a\nUser-Agent: b", "Only one User-Agent header allowed"),
    ] {
        let response = send(&gateway, &format!("GET /agents\nUser-Agent: {agent}"));
        assert_eq!(message(&response), expected, "{agent}: {response:?}");
        assert_eq!(response.status, if expected.starts_with("Only") { 400 } else { 403 });
    }
    assert_eq!(message(&send(&gateway, "GET /agents")), "closed", "without User-Agent");
}

#[test]
fn tokens_are_verified_as_in_kong() {
    // Signed with HS256 by "secret": {"iss":"alice"}, {"iss":"alice","exp":1}, {} with kid alice.
    let (gateway, origin) = start(
        "
_format_version: '3.0'
services:
- url: http://ORIGIN
  name: s
  routes:
  - {name: plain, paths: [/plain], plugins: [{name: jwt}]}
  - {name: timed, paths: [/timed], plugins: [{name: jwt, config: {claims_to_verify: [exp]}}]}
  - {name: kid, paths: [/kid], plugins: [{name: jwt, config: {key_claim_name: kid, header_names: [x-token]}}]}
consumers: [{username: alice, jwt_secrets: [{key: alice, secret: secret}]}]
",
    );
    let plain = token(r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"iss":"alice"}"#);
    let expired = token(r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"iss":"alice","exp":1}"#);
    let kid = token(r#"{"alg":"HS256","typ":"JWT","kid":"alice"}"#, "{}");
    let other = token(r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"iss":"bob"}"#);
    let wrong = token(r#"{"alg":"HS512","typ":"JWT"}"#, r#"{"iss":"alice"}"#);
    let cut = plain.get(..plain.len() - 4).unwrap_or_default();
    let bearer = |path: &str, token: &str| format!("GET {path}\nAuthorization: Bearer {token}");
    for (request, body) in [
        ("GET /plain".to_owned(), r#"{"message":"Unauthorized"}"#),
        (bearer("/plain", "x.y.z"), r#"{"message":"Bad token; invalid JSON"}"#),
        (bearer("/plain", &other), r#"{"message":"No credentials found for given 'iss'"}"#),
        (bearer("/plain", &wrong), r#"{"message":"Invalid algorithm"}"#),
        (bearer("/plain", &format!("{cut}AAAA")), r#"{"message":"Invalid signature"}"#),
        (bearer("/plain", &kid), r#"{"message":"No mandatory 'iss' in claims"}"#),
        (bearer(&format!("/plain?jwt={expired}"), &plain), r#"{"message":"Multiple tokens provided"}"#),
        (bearer("/timed", &expired), r#"{"exp":"token expired"}"#),
        (bearer("/timed", &plain), r#"{"exp":"must be a number"}"#),
    ] {
        let response = send(&gateway, &request);
        assert_eq!((response.status, response.text().as_str()), (401, body), "{request}");
        let challenge = if request == "GET /plain" { "Bearer" } else { "Bearer error=\"invalid_token\"" };
        assert_eq!(response.field("WWW-Authenticate"), Some(challenge), "{request}");
    }
    let requests =
        [bearer("/plain", &plain), format!("GET /plain?jwt={plain}"), format!("GET /kid\nX-Token: Bearer {kid}")];
    for request in requests {
        assert_eq!(send(&gateway, &request).status, 200, "{request}");
        let seen = origin.last();
        let told = ["X-Consumer-Username", "X-Credential-Identifier"].map(|name| seen.field(name));
        assert_eq!(told, [Some("alice"), Some("alice")]);
    }
}

/// A token signed with HS256 by `secret`.
fn token(header: &str, claims: &str) -> String {
    crate::tokens::hs256(header, claims, "secret")
}

#[test]
fn exchanges_are_logged_as_kong_logs_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("log");
    let collector = Origin::hello();
    let document = "
_format_version: '3.0'
services:
- {name: s, url: 'http://ORIGIN/base', routes: [{name: r, paths: [/a], plugins: [{name: key-auth}]}]}
consumers: [{username: alice, keyauth_credentials: [{key: k}]}]
plugins:
- {name: file-log, config: {path: FILE, reopen: true}}
- {name: http-log, config: {http_endpoint: 'http://COLLECTOR/logs', headers: {X-To: me}, queue: {max_coalescing_delay: 0.1}}}
- {name: prometheus, config: {per_consumer: true, status_code_metrics: true}}
";
    let document = document.replace("FILE", &file.display().to_string()).replace("COLLECTOR", &collector.node());
    let (gateway, _origin) = start(&document);
    assert_eq!(send(&gateway, "GET /a/x?q=1\napikey: k\nAuthorization: secret").status, 200);
    assert_eq!(send(&gateway, "GET /none").status, 404);
    let lines: Vec<serde_json::Value> = wait_until("two lines", LIMIT, || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() == 2).then_some(lines)
    });
    let entry = &lines[0];
    for (pointer, value) in [
        ("/request/uri", "/a/x?q=1"),
        ("/request/method", "GET"),
        ("/request/querystring/q", "1"),
        ("/request/headers/authorization", "REDACTED"),
        ("/upstream_uri", "/base/x?q=1"),
        ("/upstream_status", "200"),
        ("/route/name", "r"),
        ("/service/name", "s"),
        ("/consumer/username", "alice"),
        ("/client_ip", "127.0.0.1"),
        ("/source", "upstream"),
    ] {
        assert_eq!(entry.pointer(pointer).and_then(|value| value.as_str()), Some(value), "{pointer}: {entry:#}");
    }
    assert_eq!(entry.pointer("/response/status"), Some(&200.into()));
    assert_eq!(
        (lines[1].pointer("/source"), lines[1].pointer("/latencies/proxy")),
        (Some(&"kong".into()), Some(&(-1).into()))
    );
    let sent = wait_until("two entries", LIMIT, || (collector.requests().len() == 2).then(|| collector.requests()));
    let fields = ["Content-Type", "X-To"].map(|name| sent[0].field(name));
    assert_eq!((sent[0].target.as_str(), fields), ("/logs", [Some("application/json"), Some("me")]));
    assert!(serde_json::from_slice::<serde_json::Value>(&sent[0].body).is_ok_and(|entry| entry.is_object()));
}

#[test]
fn a_document_is_watched_and_filled_from_the_environment() {
    let document = "_format_version: '3.0'\nservices: [{name: s, url: '${UPSTREAM}', routes: [{paths: [/], plugins: \
        [{name: key-auth}]}]}]\nconsumers: [{username: u, keyauth_credentials: [{key: $KEY}, {key: \"${{ env \"DECKED\" }}\"}]}]";
    let origin = Origin::hello();
    let url = format!("http://{}", origin.node());
    let gateway = Start::text(document)
        .variable("UPSTREAM", &url)
        .variable("KEY", "from-outside")
        .variable("DECKED", "by-deck")
        .start();
    assert_eq!(send(&gateway, "GET /\napikey: from-outside").status, 200);
    assert_eq!(send(&gateway, "GET /\napikey: by-deck").status, 200);
    assert_eq!(gateway.reload("_format_version: '3.0'\nroutes: [{paths: [/}]"), Reload::Rejected);
    assert_eq!(send(&gateway, "GET /\napikey: from-outside").status, 200, "the last good one serves");
    let next = "_format_version: '3.0'\nservices: [{name: s, url: '${UPSTREAM}', routes: [{paths: [/new]}]}]";
    assert_eq!(gateway.reload(next), Reload::Applied);
    wait_until("the new routes", LIMIT, || (gateway.get("/new").status == 200).then_some(()));
    assert_eq!(gateway.client().request(get("/")).status, 404);
}

#[test]
fn faults_are_told_all_at_once_in_kongs_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.yml");
    let cases: &[(&str, &[&str])] = &[
        (
            "_format_version: '3.0'\nservices:\n- name: s\n  hots: x\n  port: many\n  routes:\n  - {name: r, paths: [foo, /a//b, '~/[']}\n",
            &[
                ":4:3: services[0].hots: unknown field; did you mean host?",
                ":5:9: services[0].port: expected an integer",
                ": services[0].host: required field missing",
                ":7:23: services[0].routes[0].paths[0]: should start with: / (fixed path) or ~/ (regex path)",
                ":7:28: services[0].routes[0].paths[1]: must not have empty segments",
            ],
        ),
        (
            "_format_version: '3.0'\nroutes: [{name: r, service: nosuch, paths: [/]}]\nservices: [{name: nosuchs, url: 'http://a'}]",
            &["invalid reference 'service: nosuch' (no such entry in 'services'); did you mean nosuchs?"],
        ),
        (
            "_format_version: '3.0'\nroutes: [{name: r}]",
            &["routes[0]: must set one of 'methods', 'hosts', 'headers', 'paths'"],
        ),
        (
            "_format_version: '3.0'\nplugins: [{name: corss}, {name: ai-proxy}, {name: opa}]",
            &[
                "plugins[0].name: plugin 'corss' is not known; did you mean cors?",
                "plugins[1].name: plugin 'ai-proxy' of Kong is not supported yet",
                "plugins[2].name: plugin 'opa' of Kong Enterprise is not supported yet",
            ],
        ),
        (
            "_format_version: '3.0'\nplugins: [{name: key-auth, config: {key_name: [a]}}]\nservices: [{name: s, url: 'http://a', plugins: [{name: rate-limiting, config: {minute: 5, hour: 1, policy: redis}}]}]",
            &[
                "plugins[0].config.key_name: unknown field; did you mean key_names?",
                "services[0].plugins[0].config.hour: The limit for hour(1.0) cannot be lower than the limit for minute(5.0)",
                "services[0].plugins[0].config.redis.host: required field missing: policy redis needs a server",
            ],
        ),
        (
            "_format_version: '3.0'\nservices: [{name: a, url: 'http://a'}, {name: a, url: 'http://b'}]",
            &["uniqueness violation: 'services' entity with name set to 'a' already declared at services[0]"],
        ),
        ("_format_version: '9.9'\n", &["_format_version: expected one of: 1.1, 2.1, 3.0"]),
        (
            "_format_version: '3.0'\nupstreams: [{name: u, targets: ['<X>:8080']}]\nservices: [{name: s, host: u}]",
            &["upstreams[0].targets[0].target: expected a host with an optional port"],
        ),
        (
            "_format_version: '3.0'\nservices: [{name: s, url: 'http://a', routes: [{paths: [/], plugins: [{name: acl, config: {allow: [a], deny: [b]}}]}]}]",
            &["services[0].routes[0].plugins[0].config: exactly one of these fields must be non-empty"],
        ),
    ];
    for (text, expected) in cases {
        fs::write(&file, text).expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert_eq!(code, 1, "{text}: {told}");
        for line in *expected {
            assert!(told.contains(line), "{text}: no {line:?} in:\n{told}");
        }
    }
}

#[test]
fn odd_documents_that_kong_or_deck_takes_are_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.yml");
    let cases = [
        "_format_version: '3.0'\n",
        "_format_version: 2.1\nservices: []\nroutes: null\n",
        "---\n_format_version: \"1.1\"\n_konnect: {runtime_group_name: x}\nservices: []\nservices: []\n",
        r#"{"_format_version": "3.0", "services": [{"name": "s", "url": "http://a", "protocol": "ws", "retries": 5.0}]}"#,
        "_format_version: '3.0'\nconsumers: [{username: a b@c.d, jwt_secrets: [{secret: x}]}, {custom_id: only}]\n",
        "_format_version: '3.0'\n_plugin_configs: {shared: {minute: 5}}\nplugins: [{name: rate-limiting, _config: shared, config: {policy: local, redis: {host: x}}}]\n",
    ];
    each(
        &cases,
        |text| (*text).to_owned(),
        |text| {
            let file = folder.path().join(format!("{}.yml", text.len()));
            fs::write(&file, text).expect("written");
            let (code, _, told) = weir(&["check", &file.display().to_string()]);
            assert_eq!(code, 0, "{text}: {told}");
        },
    );
    fs::write(&file, ROUTES.replace("ORIGIN", "127.0.0.1:2")).expect("written");
    let (_, counted, _) = weir(&["check", &file.display().to_string()]);
    assert!(counted.contains("kong.yml: 11 routes, 3 services"), "{counted}");
    assert!(!counted.contains("rule") && !counted.contains("config"), "{counted}");
    let (code, told, _) = weir(&["explain", &file.display().to_string(), "--request", "GET /foo/keep"]);
    assert!(code == 0 && told.contains("\"longer\", by /foo/keep"), "{told}");
}
