//! Hooks allocate nothing once they have run. A program without a test harness, because the count is of the whole
//! process and a harness has a thread of its own.

mod bench;
#[path = "bench/visit.rs"]
mod visit;

use std::alloc::System;

use bench::{Bench, definition};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use visit::Visit;
use weir_plugin::host;
use weir_plugin::{Flow, Origin, Phases, Plugin};
use weir_telemetry::metrics::{Metrics, MetricsOptions, Recorder};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const GET: &str = "GET /a/b?x=1&apikey=j%26l+l&y=2 HTTP/1.1\r\nHost: a.test\r\nUser-Agent: test\r\n";

/// Tokens of `cases/jwt-auth.yaml`: by a secret, by a public key, and one that is not signed by its consumer.
const HS256: &str = "Authorization: Bearer eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9\
     .eyJrZXkiOiJqYWNrcyIsImV4cCI6NDEwMjQ0NDgwMH0\
     .wTgQAs9sEUnPYABxV0VQ6CPQQAjn22-N1oGg7aD1bkM\r\n";
const ES256: &str = "Authorization: Bearer eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9\
     .eyJrZXkiOiJlcyIsImV4cCI6NDEwMjQ0NDgwMCwicm9sZXMiOnsicmVhbG0iOlsiYSIsImJcbiJdfX0\
     .EG_8IeVXpsyIo6j176wa7MLkgZCHFmFr9wD38IziqRfHOzH3ehQfqigNlmYWtVAHSjpUyd1Pw_aR7OtYeZhQlQ\r\n";
const FORGED: &str = "Authorization: Bearer eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9\
     .eyJrZXkiOiJqYWNrcyIsImV4cCI6NDEwMjQ0NDgwMH0\
     .3oeoXRsHlz8WUDRfPh58bWt2vrsIpj5LvYYqZiqRhIQ\r\n";

/// Requests signed as in `cases/hmac-auth.yaml`, by their consumer and by somebody else.
const SIGNED: &str = "Date: Fri, 06 Sep 2024 06:41:29 GMT\r\nAuthorization: Signature keyId=\"jacks-id\",algorithm=\"hmac-sha256\",headers=\"@request-target date user-agent\",signature=\"JMsCKhU192GaAOz5E1XmgMd5aDsf0LS4UOt8zft5B7k=\"\r\n";
const WITH_DIGEST: &str = "Date: Fri, 06 Sep 2024 06:41:29 GMT\r\nAuthorization: Signature keyId=\"jacks-id\",algorithm=\"hmac-sha256\",headers=\"@request-target date user-agent\",signature=\"JMsCKhU192GaAOz5E1XmgMd5aDsf0LS4UOt8zft5B7k=\"\r\nDigest: SHA-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\r\n";
const MISSIGNED: &str = "Date: Fri, 06 Sep 2024 06:41:29 GMT\r\nAuthorization: Signature keyId=\"jacks-id\",algorithm=\"hmac-sha256\",headers=\"@request-target date\",signature=\"Jr+pmOZxELNiBbLnyi4H9kwsEgrn8CGaipl673cIXlw=\"\r\n";

/// A policy with roles.
const CASBIN: &str = r#"
username: X-User
model: "[request_definition]\nr = u, o, a\n[policy_definition]\np = u, o, a\n[role_definition]\ng = _, _\n[policy_effect]\ne = some(where (p.eft == allow))\n[matchers]\nm = g(r.u, p.u) && keyMatch2(r.o, p.o) && r.a == p.a\n"
policy: "p, admin, /a/:id, GET\ng, alice, admin"
"#;

fn main() {
    let google = weir_plugins::definitions().iter().find(|one| one.name() == "google-cloud-logging");
    let google = google.expect("google-cloud-logging").example();
    let cases = [
        ("key-auth", "", "apikey: jacks\r\n", true),
        ("key-auth", "{hide_credentials: true}", "apikey: jacks\r\n", true),
        ("key-auth", "{hide_credentials: true}", "", true),
        ("key-auth", "", "apikey: nobodys\r\n", false),
        ("key-auth", "{anonymous_consumer: anonymous}", "apikey: nobodys\r\n", true),
        ("basic-auth", "", "Authorization: Basic amFjazpwYXNzOndvcmQ=\r\n", true),
        ("basic-auth", "{hide_credentials: true}", "Authorization: Basic amFjazpwYXNzOndvcmQ=\r\n", true),
        ("basic-auth", "", "Authorization: Basic amFjazp3cm9uZw==\r\n", false),
        ("basic-auth", "", "", false),
        ("multi-auth", "{auth_plugins: [{key-auth: {}}, {basic-auth: {}}]}", "apikey: jacks\r\n", true),
        ("hmac-auth", "{clock_skew: 4000000000}", SIGNED, true),
        (
            "hmac-auth",
            "{clock_skew: 4000000000, signed_headers: [user-agent, date], hide_credentials: true, validate_request_body: true}",
            WITH_DIGEST,
            true,
        ),
        ("hmac-auth", "{clock_skew: 4000000000}", MISSIGNED, false),
        ("hmac-auth", "", "", false),
        ("jwt-auth", "", HS256, true),
        ("jwt-auth", "{hide_credentials: true, claims_to_verify: [exp]}", ES256, true),
        ("jwt-auth", "{cookie: session, hide_credentials: true}", "Cookie: a=1; session=x\r\n", false),
        ("jwt-auth", "{hide_credentials: true}", &HS256.replace("Authorization: Bearer ", "Cookie: a=1; jwt="), true),
        ("jwt-auth", "", FORGED, false),
        ("jwt-auth", "{anonymous_consumer: anonymous}", FORGED, true),
        ("consumer-restriction", "{type: route_id, whitelist: [r1], blacklist: [r2]}", "", true),
        ("consumer-restriction", "{type: service_id, allowed_by_methods: [{user: s1, methods: [PUT]}]}", "", false),
        ("consumer-restriction", "{whitelist: [jack]}", "", false),
        ("cors", "", "", true),
        (
            "cors",
            "{allow_origins: 'https://a.test,https://b.test', expose_headers: X-A, timing_allow_origins: '**'}",
            "Origin: https://b.test\r\n",
            true,
        ),
        ("cors", "{allow_origins_by_regex: ['^https://'], allow_headers: '**'}", "Origin: https://b.test\r\n", true),
        ("csrf", "{key: secret}", "", true),
        ("fault-injection", "{abort: {http_status: 503}}", "", false),
        (
            "fault-injection",
            "{abort: {http_status: 503, body: 'for $uri', headers: {X-A: $remote_addr}, vars: [[[arg_x, ~~, '1']]]}}",
            "",
            false,
        ),
        ("fault-injection", "{abort: {http_status: 503, percentage: 0}}", "", true),
        ("ip-restriction", "{whitelist: [10.0.0.0/8, 0.0.0.0, '::1']}", "", true),
        ("ip-restriction", "{blacklist: [0.0.0.0/0]}", "", false),
        ("redirect", "{http_to_https: true}", "", false),
        ("redirect", "{uri: 'https://www.$host$uri?x=$arg_x', append_query_string: true}", "", false),
        ("redirect", "{regex_uri: ['^/a/(.*)', '/$1/x']}", "", false),
        ("redirect", "{regex_uri: ['^/z/(.*)', '/$1/x']}", "", true),
        ("referer-restriction", "{whitelist: ['*.b.test', c.test]}", "Referer: https://a.B.test/x\r\n", true),
        ("referer-restriction", "{blacklist: ['*.b.test']}", "", false),
        ("request-id", "", "", true),
        ("request-id", "{algorithm: uuidv7, header_name: X-Trace}", "", true),
        ("request-id", "{algorithm: nanoid}", "", true),
        ("request-id", "{algorithm: ksuid}", "", true),
        ("request-id", "{algorithm: range_id, range_id: {length: 256}}", "", true),
        ("request-id", "", "X-Request-Id: mine\r\n", true),
        ("ua-restriction", "{denylist: ['(bot|spider)/\\d+', curl]}", "", true),
        ("ua-restriction", "{allowlist: ['^x']}", "", false),
        ("uri-blocker", "{block_rules: ['root\\.exe', '^/x/']}", "", true),
        ("uri-blocker", "{block_rules: ['x=[0-9]']}", "", false),
        ("limit-count", "{count: 1000000, time_window: 60}", "", true),
        ("limit-count", "{count: 1000000, time_window: 60, window_type: sliding}", "", true),
        ("limit-count", "{count: 1000000, time_window: 60, key: a, key_type: constant}", "", true),
        (
            "limit-count",
            "{count: 1000000, time_window: 60, key: $uri $http_user_agent, key_type: var_combination}",
            "",
            true,
        ),
        ("limit-count", "{count: $http_x_count, time_window: 60, key: arg_x}", "X-Count: 1000000\r\n", true),
        ("limit-count", "{count: 1, time_window: 600, rejected_code: 429}", "", false),
        (
            "limit-count",
            "{rules: [{count: 1000000, time_window: 60, key: $arg_x}, {count: 9, time_window: 1, key: $arg_z}]}",
            "",
            true,
        ),
        ("api-breaker", "{break_response_code: 503}", "", true),
        ("limit-conn", "{conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr}", "", true),
        (
            "limit-conn",
            "{default_conn_delay: 0.1, rules: [{conn: 1, burst: 1, key: $arg_x}, {conn: $http_x_conn, burst: 0, key: $uri}]}",
            "X-Conn: 1\r\n",
            true,
        ),
        ("limit-req", "{rate: 1000000, burst: 1000, key: remote_addr}", "", true),
        ("limit-req", "{rate: 1, burst: 1000, nodelay: true, key: a, key_type: constant}", "", true),
        ("limit-req", "{rate: 0.001, burst: 0, key: $uri $arg_x, key_type: var_combination}", "", false),
        ("plan", "{plans: [gold], expires: 9000000000}", "", true),
        ("plan", "{plans: [gold], suspended: true}", "", false),
        ("mocking", "{response_example: hello}", "", false),
        ("public-api", "", "", false),
        ("public-api", "{uri: /apisix/status}", "", false),
        ("mocking", "{response_example: '$arg_apikey ${arg_z ?? none} $request_uri'}", "", false),
        (
            "mocking",
            "{response_example: 'hello $remote_addr $arg_x', response_headers: {X-A: b, X-Uri: $uri}}",
            "",
            false,
        ),
        ("mocking", "{response_schema: {properties: {a: {type: string, example: x}, b: {type: object}}}}", "", false),
        ("file-logger", "{path: /nowhere/requests.log}", "Accept: a\r\naccept: \"b\"\r\nVia: 1.1 ü\r\n", true),
        (
            "http-logger",
            "{uri: 'http://127.0.0.1:1/', log_format: {at: $time_iso8601, line: '$request_method $arg_apikey', by: {us: weir}}}",
            "",
            true,
        ),
        ("tcp-logger", "{host: 127.0.0.1, port: 9}", "", true),
        ("udp-logger", "{host: 127.0.0.1, port: 9, log_format: {at: $time_iso8601}}", "", true),
        ("syslog", "{host: 127.0.0.1, port: 9}", "", true),
        ("sls-logger", "{host: a, port: 9, project: p, logstore: l, access_key_id: i, access_key_secret: s}", "", true),
        ("loggly", "{customer_token: t, severity_map: {'503': ERR}}", "", true),
        (
            "tencent-cloud-cls",
            "{cls_host: a, cls_topic: t, secret_id: i, secret_key: s, global_tag: {env: test}}",
            "",
            true,
        ),
        ("loki-logger", "{endpoint_addrs: ['http://127.0.0.1:1'], log_labels: {job: $host}}", "", true),
        (
            "elasticsearch-logger",
            "{endpoint_addrs: ['http://127.0.0.1:1'], field: {index: 'a-{%Y.%m.%d}-$host'}}",
            "",
            true,
        ),
        (
            "clickhouse-logger",
            "{endpoint_addr: 'http://a.test', user: u, password: p, database: d, logtable: t}",
            "",
            true,
        ),
        ("skywalking-logger", "{endpoint_addr: 'http://a.test'}", "sw8: 1-dHJhY2U=-c2VnbWVudA==-7-c-i-e-a\r\n", true),
        (
            "kafka-logger",
            "{brokers: [{host: a.test, port: 9092}], kafka_topic: t, batch_max_size: 1, meta_format: origin}",
            "",
            true,
        ),
        (
            "lago",
            "{endpoint_addrs: ['http://a.test'], token: t, event_transaction_id: $remote_addr, event_subscription_id: s, event_code: c, event_properties: {a: $host}}",
            "",
            true,
        ),
        ("splunk-hec-logging", "{endpoint: {uri: 'http://a.test', token: t}}", "", true),
        ("google-cloud-logging", google, "", true),
        ("datadog", "{include_path: true, include_method: true, constant_tags: [a]}", "", true),
        ("opentelemetry", "{sampler: {name: always_on}, additional_attributes: [host]}", "", true),
        ("opentelemetry", "{}", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", true),
        ("zipkin", "{endpoint: 'http://a.test', sample_ratio: 1}", "b3: 64fe8b2a57d3eff7-e457b5a2e4d86bd1\r\n", true),
        ("zipkin", "{endpoint: 'http://a.test', sample_ratio: 0.00001}", "", true),
        ("authz-casbin", CASBIN, "X-User: alice\r\n", true),
        ("authz-casbin", CASBIN, "X-User: bob\r\n", false),
        ("error-page", "{}", "", true),
        ("prometheus", "", "", true),
        ("prometheus", "{prefer_name: true}", "", true),
        ("proxy-rewrite", "{uri: /new, method: POST, host: b.test}", "", true),
        ("proxy-rewrite", "{regex_uri: ['^/a/(.*)', '/$1']}", "", true),
        ("proxy-rewrite", "{headers: {add: {X-A: $remote_addr}, set: {X-B: b}, remove: [User-Agent]}}", "", true),
        (
            "response-rewrite",
            "{status_code: 201, body: hello, headers: {set: {X-A: $remote_addr}, add: ['X-B: b']}}",
            "",
            true,
        ),
        ("response-rewrite", "{status_code: 201, vars: [[status, ==, 200]]}", "", true),
        ("echo", "{before_body: a, body: b, after_body: c, headers: {X-A: b}}", "", true),
        ("echo", "{before_body: a, after_body: c}", "", true),
        // For whom nothing is encoded; an encoder takes memory of its own.
        ("gzip", "{types: [text/plain], vary: true}", "Accept-Encoding: br, gzip;q=0\r\n", true),
        ("brotli", "{types: [text/plain], vary: true}", "Accept-Encoding: gzip\r\n", true),
        ("grpc-web", "", "", false),
        (
            "traffic-split",
            "{rules: [{match: [{vars: [[arg_x, ==, '2']]}]}, {weighted_upstreams: [{upstream_id: next}, {weight: 2}]}]}",
            "",
            true,
        ),
        ("proxy-mirror", "{host: 'http://127.0.0.1:1', path: /copy, path_concat_mode: prefix}", "", true),
        ("echo", "{before_body: a, body: b, after_body: c, headers: {X-A: b}}", "", true),
        ("echo", "{before_body: a, after_body: c}", "", true),
        // For whom nothing is encoded; an encoder takes memory of its own.
        ("gzip", "{types: [text/plain], vary: true}", "Accept-Encoding: br, gzip;q=0\r\n", true),
        ("brotli", "{types: [text/plain], vary: true}", "Accept-Encoding: gzip\r\n", true),
        ("client-control", "{max_body_size: 1000}", "Content-Length: 1000\r\n", true),
        ("real-ip", "{source: http_x_real_ip, trusted_addresses: [0.0.0.0]}", "X-Real-IP: 1.2.3.4:80\r\n", true),
        (
            "real-ip",
            "{source: http_x_forwarded_for, trusted_addresses: [0.0.0.0, '10.0.0.0/8'], recursive: true}",
            "X-Forwarded-For: 1.2.3.4, 10.0.0.2\r\nX-Forwarded-For: 10.0.0.1\r\n",
            true,
        ),
        ("kong:rate-limiting", "{minute: 1000000, year: 100000000}", "", true),
        ("kong:rate-limiting", "{minute: 1000000, limit_by: header, header_name: User-Agent}", "", true),
        ("kong:rate-limiting", "{year: 1}", "", false),
        ("kong:rate-limiting-advanced", "{limit: [1000000, 1000000], window_size: [60, 3600]}", "", true),
        (
            "kong:request-transformer",
            "{remove: {headers: [X-B]}, replace: {headers: ['User-Agent:x', 'Host:b.test']}, add: {headers: ['X-A:$(headers.x_c or query_params.x)']}}",
            "X-B: 1\r\n",
            true,
        ),
        ("kong:response-transformer", "{add: {headers: ['X-A:b']}, remove: {headers: [X-C]}}", "", true),
        ("kong:request-termination", "{message: closed}", "", false),
        ("kong:ip-restriction", "{allow: [0.0.0.0/0]}", "", true),
        ("kong:cors", "{origins: ['http://a.test'], credentials: true}", "Origin: http://a.test\r\n", true),
        ("kong:prometheus", "{per_consumer: true, status_code_metrics: true}", "", true),
        ("kong:response-ratelimiting", "{limits: {video: {minute: 1000000}}}", "", true),
        ("kong:upstream-timeout", "{read_timeout: 5}", "", true),
    ];
    let metrics = Metrics::new(MetricsOptions::default());
    let recorder = metrics.recorder();
    for (name, conf, fields, passes) in cases {
        let bench = Bench::new();
        let mut visit = Visit::new(&bench.tables);
        let plugin = bench.build(name, conf).unwrap_or_else(|error| panic!("{name} {conf}: {error}"));
        let head = format!("{GET}{fields}\r\n");
        // The first request grows what is kept; of a limit of one it is the only one that passes.
        for _ in 0..3 {
            round(&mut visit, name, &*plugin, &head, &recorder);
        }
        let region = Region::new(ALLOCATOR);
        for _ in 0..100 {
            let passed = round(&mut visit, name, &*plugin, &head, &recorder);
            assert_eq!(passed, passes, "{name} {conf}");
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{name} {conf}");
    }
}

/// One exchange; returns true if the request passed.
fn round(visit: &mut Visit, name: &str, plugin: &dyn Plugin, head: &str, recorder: &Recorder) -> bool {
    let phases = plugin.phases(definition(name).phases());
    visit.request(head);
    if name == "plan" {
        // An authentication plugin has found out who calls.
        visit.exchange.consumer = Some(weir_plugin::ConsumerMatch { consumer: 0, credential: None });
    }
    match visit.run(plugin) {
        Flow::Continue => {}
        Flow::Respond(_) => return false,
        other => panic!("{name}: {other:?}"),
    }
    if phases.contains(Phases::UPSTREAM) {
        assert_eq!(plugin.upstream_request(&mut host::upstream_request(&mut visit.exchange)), Flow::Continue);
    }
    if phases.contains(Phases::RESPONSE) {
        visit.exchange.response.begin(200, Origin::Upstream);
        assert_eq!(plugin.response(&mut host::response(&mut visit.exchange)), Flow::Continue);
    }
    if phases.contains(Phases::ENCODE) {
        let response = &mut visit.exchange.response;
        response.begin(200, Origin::Upstream);
        response.head.fields.add(b"Content-Type", b"text/plain");
        response.body.extend_from_slice(b"twenty bytes or more of text");
        assert_eq!(plugin.encode(&mut host::response(&mut visit.exchange)), Flow::Continue);
    }
    if phases.contains(Phases::LOG) {
        visit.log(plugin, recorder);
    }
    true
}
