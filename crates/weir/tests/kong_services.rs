//! Kong's plugins with services beside: counters in a real Redis, metrics under Kong's names, tokens of a provider; and plugins
//! that are left out.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};

use serde_json::json;

use crate::harness::{Answer, Gateway, LIMIT, Origin, Redis, Response, Start, weir};
use crate::openid_connect::{Provider, jwk};
use crate::tokens::{Signer, now};

/// Sends a request with these field lines.
fn send(gateway: &Gateway, path: &str, fields: &str) -> Response {
    gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: o\r\n{fields}\r\n"))
}

/// A document with one service, whose routes and plugins are given.
fn document(origin: &Origin, rest: &str) -> String {
    format!("_format_version: '3.0'\nservices:\n- name: s\n  url: http://{}\n{rest}", origin.node())
}

#[test]
fn counters_in_redis_are_shared_under_kongs_keys() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let limited = |more: &str| {
        let port = redis.port;
        let rest = format!(
            "  routes:\n  - name: r\n    id: 3c0f5f9a-6f43-4d7e-8f0a-0a4f5c1d2e3f\n    paths: [/]\n    plugins:\n    \
             - {{name: rate-limiting, config: {{hour: 3, year: 9, policy: redis, limit_by: header, header_name: X-Who, \
             fault_tolerant: false, {more}}}}}\n"
        );
        document(&origin, &rest.replace("PORT", &port.to_string()))
    };
    let gateways = ["redis: {host: 127.0.0.1, port: PORT}", "redis_host: 127.0.0.1, redis_port: PORT"]
        .map(|servers| Start::text(&limited(servers)).start());
    let statuses: Vec<u16> = (0..4).map(|at| send(&gateways[at % 2], "/", "X-Who: a\r\n").status).collect();
    // A new hour may begin between two requests; then a fourth one passes.
    assert_eq!(statuses[..3], [200, 200, 200]);
    if statuses[3] == 429 {
        let refused = send(&gateways[0], "/", "X-Who: a\r\n");
        assert_eq!((refused.status, refused.field("X-RateLimit-Remaining-Hour")), (429, Some("0")), "{refused:?}");
        assert_eq!(refused.field("Retry-After"), refused.field("RateLimit-Reset"));
        assert!(refused.text().contains("API rate limit exceeded"));
    }
    let first = send(&gateways[1], "/", "X-Who: b\r\n");
    assert_eq!(first.field("X-RateLimit-Remaining-Hour"), Some("2"), "{first:?}");
    assert_eq!(first.field("X-RateLimit-Remaining-Year"), Some("8"), "{first:?}");
    let keys = redis.keys();
    let prefix = "ratelimit:3c0f5f9a-6f43-4d7e-8f0a-0a4f5c1d2e3f:00000000-0000-0000-0000-000000000000:";
    assert!(keys.iter().all(|key| key.starts_with(prefix)), "{keys:?}");
    let year = keys.iter().find(|key| key.starts_with(&format!("{prefix}b:")) && key.ends_with(":year"));
    let year = year.unwrap_or_else(|| panic!("no key for a year: {keys:?}"));
    assert_eq!(redis.cli(&["GET", year]), "1");
    let left: i64 = redis.cli(&["PTTL", year]).parse().expect("milliseconds");
    assert!((31_000_000_000..=31_536_000_000).contains(&left), "{left}");
}

#[test]
fn workers_count_between_two_synchronizations() {
    let (origin, redis) = (Origin::hello(), Redis::start());
    let rest = format!(
        "  routes: [{{name: r, paths: [/]}}]\n  plugins:\n  - {{name: rate-limiting, config: {{year: 5, policy: redis, \
         fault_tolerant: false, sync_rate: 0.05, redis: {{host: 127.0.0.1, port: {}}}}}}}\n  - {{name: rate-limiting-advanced, config: {{limit: \
         [100], window_size: [86400], strategy: redis, namespace: shared, redis: {{host: 127.0.0.1, port: {}}}}}}}\n",
        redis.port, redis.port
    );
    let gateway = Start::text(&document(&origin, &rest)).workers(1).start();
    let statuses: Vec<u16> = (0..7).map(|_| send(&gateway, "/", "").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let keys = redis.keys();
    assert!(keys.iter().any(|key| key.starts_with("weir:rate-limiting-advanced:shared:0:86400:")), "{keys:?}");
}

#[test]
fn a_redis_that_is_gone_is_not_waited_for_or_refuses() {
    let origin = Origin::hello();
    let mut redis = Redis::start();
    let rest = format!(
        "  plugins: [{{name: rate-limiting, config: {{minute: 5, policy: redis, redis: {{host: 127.0.0.1, port: {port}}}}}}}]\n  \
         routes:\n  - {{name: r, paths: [/open]}}\n  - {{name: c, paths: [/closed], plugins: [{{name: rate-limiting, config: \
         {{minute: 5, policy: redis, fault_tolerant: false, redis: {{host: 127.0.0.1, port: {port}}}}}}}]}}\n",
        port = redis.port
    );
    let gateway = Start::text(&document(&origin, &rest)).start();
    // A request that may pass uncounted waits for 50 ms at most, so only the other one is sure to be counted.
    assert_eq!([send(&gateway, "/open", "").status, send(&gateway, "/closed", "").status], [200, 200]);
    redis.kill();
    let open = send(&gateway, "/open", "");
    assert_eq!((open.status, open.field("X-RateLimit-Limit-Minute")), (200, None), "{open:?}");
    let closed = send(&gateway, "/closed", "");
    assert_eq!(closed.status, 500, "{closed:?}");
    assert!(closed.text().contains("An unexpected error occurred"), "{closed:?}");
}

#[test]
fn metrics_have_kongs_names() {
    let origin = Origin::hello();
    let rest = "  routes: [{name: r, paths: [/a], plugins: [{name: key-auth}]}, {name: open, paths: [/b]}]\n\
        consumers: [{username: jack, keyauth_credentials: [{key: k}]}]\n\
        plugins: [{name: prometheus, config: {per_consumer: true, status_code_metrics: true, latency_metrics: true, \
        bandwidth_metrics: true, upstream_health_metrics: true}}]\n";
    let gateway = Start::text(&document(&origin, rest)).start();
    let statuses = [("/a", "apikey: k\r\n"), ("/a", ""), ("/b", ""), ("/none", "")];
    let statuses = statuses.map(|(path, fields)| send(&gateway, path, fields).status);
    assert_eq!(statuses, [200, 401, 200, 404]);
    let page = gateway.metrics_page();
    let value = |name: &str, labels: &[(&str, &str)]| page.value(name, labels);
    let requests = "kong_http_requests_total";
    for (labels, expected) in [
        (&[("service", "s"), ("route", "r"), ("code", "200"), ("source", "service"), ("consumer", "jack")][..], 1.0),
        (&[("service", "s"), ("route", "r"), ("code", "401"), ("source", "exit"), ("consumer", "")], 1.0),
        (&[("service", "s"), ("route", "open"), ("workspace", "default")], 1.0),
    ] {
        assert_eq!(value(requests, labels), Some(expected), "{labels:?} in\n{}", page.0);
    }
    assert_eq!(value(requests, &[("code", "404")]), None, "as in Kong, what has no service does not count");
    for name in ["kong_kong_latency_ms", "kong_upstream_latency_ms", "kong_request_latency_ms"] {
        let count = value(&format!("{name}_count"), &[("route", "open")]);
        let all = value(&format!("{name}_bucket"), &[("route", "open"), ("le", "+Inf")]);
        assert_eq!((count, all), (Some(1.0), Some(1.0)), "{name}");
        assert_eq!(page.0.lines().filter(|line| *line == format!("# TYPE {name} histogram")).count(), 1);
    }
    assert!(
        value("kong_bandwidth_bytes", &[("direction", "egress"), ("consumer", "jack")])
            .is_some_and(|bytes| bytes > 0.0)
    );
    assert!(value("kong_nginx_requests_total", &[]).is_some_and(|requests| requests >= 4.0));
    assert_eq!(value("kong_datastore_reachable", &[]), Some(1.0));
    assert_eq!(value("kong_node_info", &[]), Some(1.0));
}

#[test]
fn metrics_are_those_that_are_configured() {
    let origin = Origin::hello();
    let rest = "  routes: [{name: r, paths: [/a], plugins: [{name: key-auth}]}]\n\
        consumers: [{username: jack, keyauth_credentials: [{key: k}]}]\n\
        plugins: [{name: prometheus, config: {status_code_metrics: true}}]\n";
    let gateway = Start::text(&document(&origin, rest)).start();
    assert_eq!(send(&gateway, "/a", "apikey: k\r\n").status, 200);
    let page = gateway.metrics_page();
    assert_eq!(page.value("kong_http_requests_total", &[("consumer", "")]), Some(1.0), "{}", page.0);
    assert!(!page.0.contains("kong_bandwidth_bytes") && !page.0.contains("latency_ms"), "{}", page.0);
}

#[test]
fn tokens_of_a_provider_are_verified() {
    let (signer, stranger) = (Signer::new("RS256"), Signer::new("RS256"));
    let provider = Provider::new(json!({ "keys": [jwk(&signer, "r")] }));
    let origin = Origin::hello();
    let rest = format!(
        "  routes:\n  - {{name: r, paths: [/], plugins: [{{name: openid-connect, config: {{issuer: 'http://{}', auth_methods: \
         [bearer], client_id: [gateway], scopes_required: ['a b'], audience_required: [gateway]}}}}]}}\n",
        provider.origin.node()
    );
    let gateway = Start::text(&document(&origin, &rest)).start();
    let token = |signer: &Signer, scope: &str, audience: &str| {
        let claims = json!({
            "iss": "http://issuer.test", "sub": "jack", "exp": now().as_secs() + 600, "aud": audience, "scope": scope,
        });
        signer.token_with(&json!({ "alg": "RS256", "kid": "r" }), &claims)
    };
    for (name, token, status) in [
        ("a good token", token(&signer, "a b c", "gateway"), 200),
        ("a scope is missing", token(&signer, "a", "gateway"), 403),
        ("another audience", token(&signer, "a b", "other"), 403),
        ("another's key", token(&stranger, "a b", "gateway"), 401),
    ] {
        let response = send(&gateway, "/", &format!("Authorization: Bearer {token}\r\n"));
        assert_eq!(response.status, status, "{name}: {response:?}");
        if status == 200 {
            assert_eq!(origin.last().field("Authorization"), Some(&*format!("Bearer {token}")));
        }
    }
    assert_eq!(send(&gateway, "/", "").status, 401);
}

#[test]
fn only_plugins_that_guard_nothing_are_left_out() {
    let origin = Origin::hello();
    let skip = ["--unsupported-plugins", "skip-with-warning"];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kong.yml");
    let path = file.display().to_string();
    let passing =
        "  routes: [{name: r, paths: [/]}]\n  plugins: [{name: ai-proxy, config: {route_type: llm/v1/chat}}]\n";
    fs::write(&file, document(&origin, passing)).expect("written");
    let (code, _, told) = weir(&["check", &path]);
    assert!(code == 1 && told.contains("plugin 'ai-proxy' of Kong is not supported yet"), "{told}");
    let (code, _, told) = weir(&[&["check", &path][..], &skip].concat());
    assert!(
        code == 0 && told.contains("services[0].plugins[0].name: plugin 'ai-proxy' is not supported and left out"),
        "{told}"
    );
    let gateway = Start::text(&document(&origin, passing)).argument(skip[0]).argument(skip[1]).start();
    assert_eq!(send(&gateway, "/", "").status, 200);
    for name in ["ai-prompt-guard", "opa", "my-own-auth"] {
        let guarding = format!("  routes: [{{name: r, paths: [/]}}]\n  plugins: [{{name: {name}}}]\n");
        fs::write(&file, document(&origin, &guarding)).expect("written");
        let (code, _, told) = weir(&[&["check", &path][..], &skip].concat());
        assert!(code == 1 && told.contains(name), "{name}: {told}");
    }
}

#[test]
fn callers_are_known_by_their_sessions() {
    let origin = Origin::hello();
    let rest = "  plugins:\n  - {name: key-auth, config: {anonymous: guest}}\n  - {name: session, config: {secret: a secret of sessions, \
        cookie_secure: false, cookie_same_site: Lax}}\n  routes: [{name: r, paths: [/]}]\n\
        consumers:\n- {username: jack, keyauth_credentials: [{key: k, id: 0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d}]}\n- {username: guest}\n";
    let document = document(&origin, rest);
    let gateway = Start::text(&document).start();
    let told =
        || ["X-Consumer-Username", "X-Credential-Identifier"].map(|name| origin.last().field(name).map(str::to_owned));
    let first = send(&gateway, "/", "apikey: k\r\n");
    let cookie = first.field("Set-Cookie").expect("a cookie").to_owned();
    assert!(cookie.starts_with("session=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{cookie}");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let credential = "0b7f1c1e-5a4e-4c0f-8d0a-3a7a3b1d2c3d";
    let jack = [Some("jack".to_owned()), Some(credential.to_owned())];
    assert_eq!(told(), jack);
    let again = send(&gateway, "/", &format!("Cookie: {cookie}\r\n"));
    assert_eq!((again.status, again.field("Set-Cookie"), told()), (200, None, jack), "{again:?}");
    // Another gateway with the same secret knows the session, and nobody makes one up.
    let other = Start::text(&document).start();
    assert_eq!(send(&other, "/", &format!("Cookie: {cookie}\r\n")).status, 200);
    assert_eq!(told()[0].as_deref(), Some("jack"));
    let forged = cookie.replacen("session=", "session=A", 1);
    for fields in [format!("Cookie: {forged}\r\n"), String::new()] {
        let response = send(&gateway, "/", &fields);
        assert_eq!((response.field("Set-Cookie"), told()[0].as_deref()), (None, Some("guest")), "{response:?}");
    }
    let mut client = gateway.client();
    let ended = client.request(format!(
        "POST /?session_logout=true HTTP/1.1\r\nHost: o\r\nCookie: {cookie}\r\nContent-Length: 0\r\n\r\n"
    ));
    let line = ended.field("Set-Cookie").unwrap_or_default();
    assert!(
        ended.status == 200 && ended.body.is_empty() && line.contains("session=;") && line.contains("Max-Age=0"),
        "{ended:?}"
    );
}

#[test]
fn limits_of_a_route_take_the_place_of_its_services() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.await_close();
        }
    });
    let rest = "  read_timeout: 600000\n  retries: 0\n  routes:\n  - {name: r, paths: [/r], plugins: [{name: upstream-timeout, config: \
        {read_timeout: 300}}]}\n";
    let gateway = Start::text(&document(&origin, rest)).start();
    let response = send(&gateway, "/r", "");
    assert_eq!(response.status, 504, "{response:?}");
    assert!(response.text().contains("The upstream server is timing out"), "{response:?}");
}

/// The part of the document that calls a function at this service, in one plugin of one route for each of these configurations.
fn functions(plugin: &str, confs: &[String]) -> String {
    let route = |(at, conf): (usize, &String)| {
        format!("  - {{name: r{at}, paths: [/{at}], plugins: [{{name: {plugin}, config: {conf}}}]}}\n")
    };
    let routes: String = confs.iter().enumerate().map(route).collect();
    format!("  routes:\n{routes}")
}

#[test]
fn functions_of_lambda_answer_requests() {
    let service = Origin::answering(|request| {
        let proxied = r#"{"statusCode":201,"headers":{"X-Made":"by the function"},"body":"hello"}"#;
        let body = match request.target.split('/').nth(3) {
            Some("proxied") => proxied.to_owned(),
            Some("broken") => "no JSON".to_owned(),
            _ => String::from_utf8_lossy(&request.body).into_owned(),
        };
        let failed = if request.target.contains("/failing/") { "X-Amz-Function-Error: Unhandled\r\n" } else { "" };
        Answer::keep(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{failed}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    });
    let node = service.node();
    let (host, port) = node.rsplit_once(':').expect("host and port");
    let conf = |more: &str| {
        format!(
            "{{aws_key: AKIDEXAMPLE, aws_secret: secret, aws_region: eu-west-1, host: {host}, port: {port}, disable_https: true, {more}}}"
        )
    };
    let confs = [
        "function_name: plain",
        "function_name: proxied, is_proxy_integration: true",
        "function_name: broken, is_proxy_integration: true",
        "function_name: failing, unhandled_status: 512",
        "function_name: told, qualifier: a b, forward_request_method: true, forward_request_uri: true, forward_request_headers: true, \
         forward_request_body: true",
    ];
    let origin = Origin::hello();
    let gateway = Start::text(&document(&origin, &functions("aws-lambda", &confs.map(conf)))).start();
    let plain = send(&gateway, "/0?a=1&b", "");
    assert_eq!((plain.status, plain.text().as_str()), (200, r#"{"a":"1","b":true}"#), "{plain:?}");
    let seen = service.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/2015-03-31/functions/plain/invocations"));
    let authorization = seen.field("Authorization").unwrap_or_default();
    let signed = "/eu-west-1/lambda/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-invocation-type;x-amz-log-type, ";
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"), "{authorization}");
    assert!(authorization.contains(signed), "{authorization}");
    assert_eq!((seen.field("Host"), seen.field("X-Amz-Invocation-Type")), (Some(&*node), Some("RequestResponse")));
    let proxied = send(&gateway, "/1", "");
    let found = (proxied.status, proxied.field("X-Made"), proxied.text());
    assert_eq!(found, (201, Some("by the function"), "hello".to_owned()), "{proxied:?}");
    let broken = send(&gateway, "/2", "");
    assert_eq!((broken.status, broken.text().contains("\"message\":\"Bad Gateway\"")), (502, true), "{broken:?}");
    assert_eq!(send(&gateway, "/3", "").status, 512);
    let mut client = gateway.client();
    let told =
        client.request("PUT /4?x=1 HTTP/1.1\r\nHost: o\r\nContent-Type: image/png\r\nContent-Length: 2\r\n\r\nhi");
    let event: serde_json::Value = serde_json::from_str(&told.text()).unwrap_or_default();
    for (pointer, value) in [
        ("/request_method", json!("PUT")),
        ("/request_uri", json!("/4?x=1")),
        ("/request_uri_args/x", json!("1")),
        ("/request_headers/content-type", json!("image/png")),
        ("/request_body", json!("aGk=")),
        ("/request_body_base64", json!(true)),
    ] {
        assert_eq!(event.pointer(pointer), Some(&value), "{pointer} in {event}");
    }
    assert!(service.last().target.ends_with("/told/invocations?Qualifier=a%20b"), "{:?}", service.last());
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn functions_of_azure_answer_requests() {
    let service = Origin::echo();
    let node = service.node();
    let (_, port) = node.rsplit_once(':').expect("host and port");
    // The name of an application and a domain make up the address of the origin.
    let conf = format!(
        "{{appname: '127.0', hostdomain: '0.1:{port}', https: false, functionname: list, apikey: key, clientid: me}}"
    );
    let gone = "{appname: '127.0', hostdomain: '0.1:1', https: false, functionname: list, timeout: 2000}".to_owned();
    let origin = Origin::hello();
    let gateway = Start::text(&document(&origin, &functions("azure-functions", &[conf, gone]))).start();
    let mut client = gateway.client();
    let answer = client.request("POST /0/x?a=1 HTTP/1.1\r\nHost: o\r\nX-A: b\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"), "{answer:?}");
    let seen = service.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/api/list?a=1"));
    let fields = ["x-functions-key", "x-functions-clientid", "X-A"].map(|name| seen.field(name));
    assert_eq!(fields, [Some("key"), Some("me"), Some("b")], "{seen:?}");
    let failed = send(&gateway, "/1", "");
    assert_eq!((failed.status, failed.text().starts_with("{\"message\":")), (500, true), "{failed:?}");
}

#[test]
fn a_share_of_requests_goes_to_the_other_upstream() {
    let (origin, other) = (Origin::hello(), Origin::answering(|_| Answer::ok("other")));
    let port = other.node().rsplit_once(':').expect("a port").1.to_owned();
    let rest = "  path: /base\n  routes:\n  - {name: none, paths: [/none], plugins: [{name: canary, config: {percentage: 0, upstream_host: \
        127.0.0.1, upstream_port: PORT, canary_by_header_name: X-Canary}}]}\n  - {name: all, paths: [/all], plugins: [{name: canary, \
        config: {percentage: 100, upstream_host: 127.0.0.1, upstream_port: PORT, upstream_uri: /v2}}]}\n  - {name: half, paths: [/half], \
        plugins: [{name: canary, config: {percentage: 50, hash: header, hash_header: X-Who, upstream_host: 127.0.0.1, upstream_port: \
        PORT}}]}\n  - {name: path, paths: [/path], plugins: [{name: canary, config: {start: 1, upstream_uri: /v3}}]}\n";
    let gateway = Start::text(&document(&origin, &rest.replace("PORT", &port))).start();
    let ask = |path: &str, fields: &str| send(&gateway, path, fields).text();
    assert_eq!([ask("/none", ""), ask("/none", "X-Canary: always\r\n")], ["hello", "other"]);
    assert_eq!(ask("/all/x?a=1", ""), "other");
    assert_eq!(other.last().target, "/v2?a=1");
    assert_eq!((ask("/path", "").as_str(), origin.last().target.as_str()), ("hello", "/v3"));
    let who = |number: usize| ask("/half", &format!("X-Who: caller {number}\r\n"));
    let first: Vec<String> = (0..40).map(who).collect();
    let count = first.iter().filter(|text| *text == "other").count();
    assert!((8..=32).contains(&count), "{count} of 40");
    assert_eq!((0..40).map(who).collect::<Vec<_>>(), first, "the same caller goes the same way");
}

#[test]
fn entries_and_metrics_reach_their_receivers() {
    let origin = Origin::hello();
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        socket
    };
    let [entries, loggly, datadog, statsd] = [0; 4].map(|_| socket());
    let stream = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = |socket: &UdpSocket| socket.local_addr().expect("an address").port();
    let rest = format!(
        "  routes: [{{name: r, paths: [/a], plugins: [{{name: key-auth}}]}}]\nconsumers: [{{username: jack, custom_id: j.1, \
         keyauth_credentials: [{{key: k}}]}}]\nplugins:\n- {{name: tcp-log, config: {{host: 127.0.0.1, port: {}}}}}\n\
         - {{name: udp-log, config: {{host: 127.0.0.1, port: {}}}}}\n\
         - {{name: loggly, config: {{host: 127.0.0.1, port: {}, key: abc-1, tags: [a], successful_severity: notice}}}}\n\
         - {{name: datadog, config: {{host: 127.0.0.1, port: {}}}}}\n\
         - {{name: statsd, config: {{host: 127.0.0.1, port: {}, allow_status_codes: [200-299]}}}}\n",
        stream.local_addr().expect("an address").port(),
        port(&entries),
        port(&loggly),
        port(&datadog),
        port(&statsd)
    );
    let gateway = Start::text(&document(&origin, &rest)).start();
    assert_eq!(send(&gateway, "/a/x?q=1", "apikey: k\r\n").status, 200);
    let text = |socket: &UdpSocket| {
        let mut room = [0; 65_535];
        let length = socket.recv(&mut room).expect("a datagram");
        String::from_utf8_lossy(&room[..length]).into_owned()
    };
    let uri =
        |entry: &str| serde_json::from_str::<serde_json::Value>(entry).unwrap_or_default()["request"]["uri"].clone();
    assert_eq!(uri(&text(&entries)), "/a/x?q=1");
    let message = text(&loggly);
    assert!(message.starts_with("<13>1 20") && message.contains(" o kong - - [abc-1@41058 tag=\"a\"] {"), "{message}");
    let (connection, _) = stream.accept().expect("a connection");
    connection.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).expect("a line");
    assert_eq!(uri(&line), "/a/x?q=1");
    let told: Vec<String> = (0..6).map(|_| text(&datadog)).collect();
    assert!(told.contains(&"kong.request.count:1|c|#name:s,status:200,consumer:jack,app:kong".to_owned()), "{told:?}");
    assert!(
        told.iter().any(|one| one.starts_with("kong.upstream_latency:") && one.contains("|ms|#name:s")),
        "{told:?}"
    );
    let told: Vec<String> = (0..12).map(|_| text(&statsd)).collect();
    for expected in [
        "kong.service.s.request.count:1|c",
        "kong.service.s.status.200:1|c",
        "kong.service.s.user.uniques:j_1|s",
        "kong.service.s.user.j_1.request.count:1|c",
        "kong.service.s.user.j_1.status.200:1|c",
        "kong.service.s.workspace.default.status.200:1|c",
    ] {
        assert!(told.iter().any(|one| one == expected), "{expected} in {told:?}");
    }
    assert!(
        told.iter().any(|one| one.starts_with("kong.route.") && one.ends_with(".user.j_1.status.200:1|c")),
        "{told:?}"
    );
}

#[test]
fn what_upstreams_tell_counts_in_redis() {
    let (origin, mut redis) = (
        Origin::answering(|request| {
            let cost = request.fields.get("x-cost").unwrap_or_default();
            Answer::keep(format!("HTTP/1.1 200 OK\r\nX-Kong-Limit: {cost}\r\nContent-Length: 2\r\n\r\nhi"))
        }),
        Redis::start(),
    );
    let port = redis.port;
    let limited = |tolerant: bool, path: &str| {
        format!(
            "  - name: r{tolerant}\n    paths: [{path}]\n    plugins:\n    - {{name: response-ratelimiting, config: {{limits: {{video: {{year: 3}}}}, \
             policy: redis, fault_tolerant: {tolerant}, redis: {{host: 127.0.0.1, port: {port}}}}}}}\n"
        )
    };
    let rest = format!("  routes:\n{}{}", limited(false, "/closed"), limited(true, "/open"));
    let gateways = [(), ()].map(|()| Start::text(&document(&origin, &rest)).start());
    let told = |response: &Response| response.field("X-RateLimit-Remaining-video-year").map(str::to_owned);
    let first = send(&gateways[0], "/closed", "X-Cost: video=2\r\n");
    assert_eq!((first.status, told(&first).as_deref()), (200, Some("1")), "{first:?}");
    // The other gateway has seen it.
    let second = send(&gateways[1], "/closed", "X-Cost: \r\n");
    assert_eq!((second.status, told(&second).as_deref()), (200, Some("1")), "{second:?}");
    assert_eq!(origin.last().field("X-RateLimit-Remaining-video"), Some("1"));
    let third = send(&gateways[1], "/closed", "X-Cost: video=1\r\n");
    assert_eq!((third.status, told(&third).as_deref()), (200, Some("0")), "{third:?}");
    let over = send(&gateways[0], "/closed", "X-Cost: video=1\r\n");
    assert_eq!((over.status, over.body.len()), (429, 0), "{over:?}");
    assert_eq!(send(&gateways[0], "/closed", "X-Cost: \r\n").status, 200, "what costs nothing passes");
    let keys = redis.keys();
    assert!(keys.iter().any(|key| key.starts_with("response-ratelimit:") && key.ends_with(":video:year")), "{keys:?}");
    redis.kill();
    let open = send(&gateways[0], "/open", "X-Cost: video=1\r\n");
    assert_eq!((open.status, told(&open)), (200, None), "{open:?}");
    assert_eq!(send(&gateways[0], "/closed", "").status, 500);
}
