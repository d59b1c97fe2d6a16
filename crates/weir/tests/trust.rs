//! Fields in which clients and proxies name the original client: they are accepted from `trusted_proxies`, and removed from
//! requests of all others. Also fields that a program behind a CGI takes for those of the gateway.

use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Origin, each, route_with, wait_until};

const TOLD: &str =
    "$http_x_forwarded_for|$http_x_forwarded_proto|$http_x_forwarded_host|$http_x_forwarded_port|$http_forwarded";
const SAID: &str = "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.test\r\n\
                    X-Forwarded-Port: 443\r\nForwarded: for=6.6.6.6\r\n";

/// Routes that answer with what they see, behind each thing that can look.
fn telling() -> Value {
    let answer = |text: &str| json!({ "response_example": text, "with_mock_header": false });
    let route = |id: &str, uri: &str, plugins: Value| json!({ "id": id, "uri": uri, "plugins": plugins });
    let mut matched = route("matched", "/vars", json!({ "mocking": answer("believed") }));
    matched["vars"] = json!([["http_x_forwarded_proto", "==", "https"]]);
    let mut of_host = route("host", "/host", json!({ "mocking": answer("believed") }));
    of_host["vars"] = json!([["http_x_forwarded_host", "==", "evil.test"]]);
    let filtered = |name: &str, value: &str| json!({ "filter": [[name, "==", value]] });
    json!({ "routes": [
        matched,
        of_host,
        route("unmatched", "/*", json!({ "mocking": answer("not believed") })),
        route("plugin", "/plugin", json!({ "mocking": answer(TOLD) })),
        route("real-ip", "/real-ip", json!({
            "real-ip": { "source": "http_x_forwarded_for" },
            "mocking": answer("$remote_addr"),
        })),
        route("redirect", "/redirect", json!({
            "redirect": { "http_to_https": true },
            "mocking": { "response_example": "not sent on", "_meta": filtered("http_x_forwarded_proto", "https") },
        })),
    ] })
}

#[test]
fn untrusted_peers_say_nothing_of_whom_they_ask_for() {
    // Without trusted proxies X-Forwarded-For is continued for everybody, as in APISIX.
    let none = ["not believed", "not believed", "6.6.6.6|http|A.test:81|81|", "6.6.6.6", "301"];
    let others = ["not believed", "not believed", "|http|A.test:81|81|", "127.0.0.1", "301"];
    let trusted = ["believed", "believed", "6.6.6.6|https|evil.test|443|for=6.6.6.6", "6.6.6.6", "not sent on"];
    each(
        &[(json!([]), none), (json!(["10.0.0.0/8"]), others), (json!(["127.0.0.0/8"]), trusted)],
        |(proxies, _)| proxies.to_string(),
        |(proxies, expected)| {
            let log = json!({ "path": "FOLDER/access.log", "format": format!("$uri {TOLD}") });
            let gateway = Gateway::with(telling(), json!({ "trusted_proxies": proxies, "access_log": log }));
            let paths = ["/vars", "/host", "/plugin", "/real-ip", "/redirect"];
            for (path, expected) in paths.into_iter().zip(expected) {
                let head = format!("GET {path} HTTP/1.1\r\nHost: A.test:81\r\n{SAID}\r\n");
                let response = gateway.client().request(head);
                let seen = if response.status == 301 { "301".to_owned() } else { response.text() };
                assert_eq!(seen.trim_end(), *expected, "{path}");
            }
            let line = format!(
                "/plugin {}",
                if expected[2].starts_with('|') { format!("-{}", expected[2]) } else { expected[2].to_owned() }
            );
            let line = if line.ends_with('|') { format!("{line}-") } else { line };
            wait_until("the line in the access log", LIMIT, || {
                let text = std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
                text.lines().any(|logged| logged == line).then_some(())
            });
        },
    );
}

#[test]
fn variables_tell_what_the_upstream_is_told() {
    let gateway = Gateway::start(telling());
    let port = gateway.addr.port();
    for (host, expected) in
        [("A.test", format!("|http|A.test|{port}|")), ("a.test:8080", "|http|a.test:8080|8080|".into())]
    {
        let response = gateway.client().request(format!("GET /plugin HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(response.text().trim_end(), expected, "{host}");
    }
}

/// CGI knows no `-` in names, so that an upstream would see two fields of one name.
#[test]
fn fields_that_cgi_merges_with_ours_do_not_cross() {
    let origin = Origin::hello();
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    let fields = json!({ "headers": { "set": { "X-Tenant": "ours", "X_Region": "ours" }, "remove": ["X-Internal"] } });
    let mut config = route_with(json!({ "plugins": { "key-auth": {}, "proxy-rewrite": fields } }), upstream);
    config["consumers"] = json!([{ "username": "jack", "plugins": { "key-auth": { "key": "k" } } }]);
    let open = json!({ "id": "open", "uri": "/open", "upstream": { "nodes": { (origin.node()): 1 } } });
    config["routes"].as_array_mut().expect("routes").push(open);
    let gateway = Gateway::start(config);
    let names = |path: &str, lines: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\napikey: k\r\n{lines}\r\n\r\n");
        assert_eq!(gateway.client().request(head).status, 200, "{lines}");
        origin.last().fields.0.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    for (path, name, crosses) in [
        ("/open", "X_Forwarded_For", false),
        ("/open", "x_forwarded-HOST", false),
        ("/open", "X_Forwarded_Port", false),
        ("/open", "X-Forwarded_Proto", false),
        ("/open", "X.Forwarded.Proto", false),
        ("/open", "X_REAL_IP", false),
        ("/open", "X_Consumer_Username", false),
        ("/open", "x-consumer_custom_id", false),
        ("/open", "X_Credential_Identifier", false),
        ("/open", "X_Request_Id", false),
        ("/open", "X_Tenant", true),
        ("/open", "X_Forwarded_Fo", true),
        ("/open", "X_A_name_that_is_longer_than_any_name_of_ours", true),
        // Plugins set names of their own.
        ("/", "X_Tenant", false),
        ("/", "x_TENANT", false),
        ("/", "X-Region", false),
        ("/", "X_Internal", false),
        ("/", "X_Other", true),
        // A longer name than the usual ones, and one that stands last.
        ("/", "Upgrade-Insecure-Requests: 1\r\nX_Tenant", false),
    ] {
        let names = names(path, &format!("{name}: 7"));
        let last = name.rsplit('\n').next().expect("a name");
        assert_eq!(names.iter().any(|seen| seen == last), crosses, "{path} {name}: {names:?}");
    }
    let request = origin.last();
    assert_eq!((request.field("x-tenant"), request.field("x_region")), (Some("ours"), Some("ours")));
}
