//! The Admin API of a running gateway, as an operator would use it.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::documentation::document;
use crate::harness::{ADMIN_KEY, Authority, Gateway, Kind, LIMIT, Origin, RawClient, Start, program, wait_until, weir};

/// Puts a route with this id and path to an origin.
fn route(gateway: &Gateway, id: &str, path: &str, origin: &Origin) -> Value {
    let node = origin.addr();
    gateway.must(
        "PUT",
        &format!("routes/{id}"),
        &format!(r#"{{"uri":"{path}","upstream":{{"nodes":{{"{node}":1}}}}}}"#),
    )
}

#[test]
fn what_is_answered_serves() {
    let origin = Origin::hello();
    let gateway = Start::stored().workers(2).start();
    assert_eq!(gateway.get("/a").status, 404);
    for turn in 0..20 {
        let path = format!("/a{turn}");
        route(&gateway, "1", &path, &origin);
        assert_eq!(gateway.get(&path).status, 200, "{path}");
        assert_eq!(gateway.get(&format!("/a{}", turn + 1)).status, 404);
    }
    gateway.must("PATCH", "routes/1", r#"{"uri":"/patched","plugins":{"mocking":{"response_example":"mocked"}}}"#);
    assert_eq!(gateway.get("/patched").text(), "mocked");
    gateway.must("PATCH", "routes/1/plugins", "null");
    assert_eq!(gateway.get("/patched").status, 200);
    gateway.must("DELETE", "routes/1", "");
    assert_eq!(gateway.get("/patched").status, 404);
}

#[test]
fn consumers_and_their_credentials_open_routes() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    route(&gateway, "1", "/*", &origin);
    gateway.must("PATCH", "routes/1", r#"{"plugins":{"key-auth":{}}}"#);
    let ask = |key: &str| {
        let request = format!("GET /x HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\n\r\n");
        gateway.client().request(request).status
    };
    assert_eq!(ask("k1"), 401);
    gateway.must("PUT", "consumers", r#"{"username":"jack","plugins":{"key-auth":{"key":"k1"}}}"#);
    gateway.must("PUT", "consumers/jack/credentials/c", r#"{"plugins":{"key-auth":{"key":"k2"}}}"#);
    assert_eq!((ask("k1"), ask("k2"), ask("k3")), (200, 200, 401));
    let (status, refused) =
        gateway.ask("PUT", "consumers", r#"{"username":"jill","plugins":{"key-auth":{"key":"k1"}}}"#);
    let message = refused["error_msg"].as_str().expect("a message");
    assert!(status == 400 && message.starts_with("duplicate key of plugin key-auth "), "{refused}");
    gateway.must("DELETE", "consumers/jack/credentials/c", "");
    assert_eq!((ask("k1"), ask("k2")), (200, 401));
    gateway.must("DELETE", "consumers/jack", "");
    assert_eq!(ask("k1"), 401);
}

#[test]
fn refusals_say_what_is_wrong_in_the_known_words() {
    let gateway = Start::stored().start();
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["a.test"]);
    let [cert, key] =
        [&certificate.cert_file, &certificate.key_file].map(|file| fs::read_to_string(file).expect("PEM"));
    gateway.must("PUT", "ssls/server", &json!({ "sni": "a.test", "cert": cert, "key": key }).to_string());
    gateway.must("PUT", "global_rules/1", r#"{"plugins":{"limit-count":{"count":1000,"time_window":1}}}"#);
    let cases = [
        (
            "routes/1",
            r#"{"uri":5,"plugins":{}}"#,
            r#"invalid configuration: property "uri" validation failed: wrong type: expected string, got number"#,
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{},"foo":1}"#,
            "invalid configuration: additional properties forbidden, found foo",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{},"methods":["NO"]}"#,
            r#"invalid configuration: property "methods" validation failed: failed to validate item 1: matches none of the enum values"#,
        ),
        ("routes/1", r#"{"uri":"/","plugins":{"nope":{}}}"#, "unknown plugin [nope]"),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{"limit-count":{"count":0,"time_window":60}}}"#,
            r#"failed to check the configuration of plugin limit-count err: property "count" validation failed: value should match only one schema, but matches none"#,
        ),
        (
            "routes/1",
            r#"{"uri":"/","upstream_id":"zz"}"#,
            "failed to fetch upstream info by upstream id [zz], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","service_id":9}"#,
            "failed to fetch service info by service id [9], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugin_config_id":"p"}"#,
            "failed to fetch plugin config info by plugin config id [p], response code: 404",
        ),
        (
            "routes/1",
            r#"{"uri":"/","upstream_id":"zz","plugins":{"nope":{}}}"#,
            "failed to fetch upstream info by upstream id [zz], response code: 404",
        ),
        (
            "consumers",
            r#"{"username":"a","group_id":"g"}"#,
            "failed to fetch consumer group info by consumer group id [g], response code: 404",
        ),
        (
            "upstreams/1",
            r#"{"type":"roundrobin"}"#,
            "invalid configuration: value should match only one schema, but matches none",
        ),
        (
            "global_rules/2",
            r#"{"plugins":{"limit-count":{"count":1,"time_window":1}}}"#,
            "plugin 'limit-count' already exists in global rule with id '1'",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{"kafka-proxy":{}}}"#,
            "unknown plugin [kafka-proxy]: it is not supported yet",
        ),
        ("routes/1", r#"{"uri":"/","plugins":{"key-auth":"x"}}"#, r#"invalid plugin conf "x" for plugin [key-auth]"#),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{"key-auth":{"_meta":{"filter":[["arg_a","x","b"]]}}}}"#,
            "failed to validate the 'vars' expression: invalid operator 'x'",
        ),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{},"vars":[["arg_a","x","b"]]}"#,
            "failed to validate the 'vars' expression: invalid operator 'x'",
        ),
        (
            "routes/1",
            r#"{"uri":"/","upstream":{"nodes":{},"pass_host":"rewrite"}}"#,
            "`upstream_host` can't be empty when `pass_host` is `rewrite`",
        ),
        ("upstreams/1", r#"{"nodes":{},"type":"chash"}"#, "missing key"),
        (
            "services/1",
            r#"{"upstream":{"nodes":{},"type":"chash","key":"x"}}"#,
            r#"invalid configuration: failed to match pattern "^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$" with "x""#,
        ),
        ("upstreams/1", r#"{"nodes":{"a:65536":1}}"#, "invalid port 65536"),
        ("plugin_metadata/nope", "{}", "invalid plugin name"),
        ("secrets/none/1", "{}", "invalid secret manager: none"),
        ("secrets/vault/1", "{}", r#"invalid configuration: property "uri" is required"#),
        (
            "routes/1",
            r#"{"uri":"/","plugins":{"traffic-split":{"rules":[{"match":[{"vars":[["arg_a","=","b"]]}],"weighted_upstreams":[{"weight":1}]}]}}}"#,
            "failed to check the configuration of plugin traffic-split err: failed to validate the 'vars' expression: invalid operator '='",
        ),
        (
            "upstreams/1",
            r#"{"nodes":[{"host":"::1","port":80,"weight":1}]}"#,
            "invalid configuration: IPv6 address must be enclosed with '[' and ']'",
        ),
        (
            "upstreams/1",
            r#"{"nodes":{},"scheme":"https","tls":{"client_cert_id":"none"}}"#,
            "failed to fetch ssl info by ssl id [none], response code: 404",
        ),
        (
            "upstreams/1",
            r#"{"nodes":{},"scheme":"https","tls":{"client_cert_id":"server"}}"#,
            "failed to fetch ssl info by ssl id [server], wrong ssl type",
        ),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = gateway.ask("PUT", path, body);
        assert_eq!((status, answer["error_msg"].as_str()), (400, Some(expected)), "{path} {body}");
    }
    for kind in ["routes", "upstreams", "stream_routes", "protos", "secrets"] {
        assert_eq!(gateway.must("GET", kind, "")["total"], 0, "{kind}");
    }
    // The log has the change, and no body.
    let log = gateway.logged("apisix/admin/routes/1");
    assert!(!log.contains("zz"), "{log}");
}

/// Stream routes know no PATCH, as in APISIX, and are resources like others.
#[test]
fn stream_routes_are_resources() {
    let gateway = Start::stored().start();
    let missing = json!({ "message": "Key not found" });
    let route = r#"{"server_port":9100,"upstream":{"nodes":{"127.0.0.1:1":1}}}"#;
    let unknown = json!({ "error_msg": "not supported `PATCH` method for stream route" });
    assert_eq!(gateway.ask("GET", "stream_routes/1", ""), (404, missing.clone()));
    assert_eq!(gateway.must("PUT", "stream_routes/1", route)["value"]["server_port"], 9100);
    assert_eq!(gateway.must("POST", "stream_routes", route)["value"]["server_port"], 9100);
    assert_eq!(gateway.must("GET", "stream_routes", "")["total"], 2);
    assert_eq!(gateway.ask("PATCH", "stream_routes/1", "{}"), (405, unknown));
    assert_eq!(gateway.must("DELETE", "stream_routes/1", "")["deleted"], "1");
    assert_eq!(gateway.ask("DELETE", "stream_routes/1", ""), (404, missing));
    let config = r#"{"stream_routes":[{"id":"1","server_port":9100,"upstream":{"nodes":{"127.0.0.1:1":1}}}]}"#;
    assert_eq!(gateway.must("POST", "configs/validate", config), json!({}));
}

#[test]
fn plugins_are_those_of_the_settings() {
    let settings = "plugins: [key-auth, mocking, limit-count, kafka-proxy]";
    let gateway = Start::stored().settings(settings).control().start();
    let mut chosen = gateway.must("GET", "plugins/list", "");
    assert_eq!(chosen, json!(["mocking", "key-auth", "limit-count", "kafka-proxy"]), "high priority first");
    chosen.as_array_mut().expect("a list").sort_by_key(|name| name.as_str().map(str::to_owned));
    let names = |all: &Value| {
        let mut names: Vec<&str> = all.as_object().expect("by name").keys().map(String::as_str).collect();
        names.sort_unstable();
        json!(names)
    };
    assert_eq!(names(&gateway.must("GET", "plugins?all=true", "")), chosen);
    let mut control = RawClient::connect(gateway.control.expect("a control API"));
    let control = control.request("GET /v1/schema HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(names(&control.json()["plugins"]), chosen);
    assert_eq!(gateway.must("GET", "plugins/key-auth", "")["type"], "object");
    let absent = json!({ "error_msg": "plugin not found in subsystem http" });
    for path in ["plugins/cors", "schema/plugins/cors", "plugins/nope"] {
        assert_eq!(gateway.ask("GET", path, ""), (404, absent.clone()), "{path}");
    }
    let reload = gateway.send_to_admin("PUT", "plugins/reload", &format!("X-API-KEY: {ADMIN_KEY}\r\n"), "");
    assert_eq!((reload.status, reload.text().trim_end()), (200, "done"));
    assert_eq!(["GET", "POST"].map(|method| gateway.ask(method, "plugins/reload", "").0), [405, 405]);

    // Each invalid item has a reason.
    for (plugin, expected) in [
        ("cors", "unknown plugin [cors]: it is not in the setting `plugins`"),
        ("kafka-proxy", "unknown plugin [kafka-proxy]: it is not supported yet"),
        ("gm", "unknown plugin [gm]: it is not supported yet"),
        ("nope", "unknown plugin [nope]"),
    ] {
        let route = json!({ "uri": "/", "plugins": { plugin: {} } }).to_string();
        let expected = json!({ "error_msg": expected });
        assert_eq!(gateway.ask("PUT", "routes/1", &route), (400, expected.clone()));
        assert_eq!(gateway.ask("POST", "schema/validate/routes", &route), (400, expected));
        let (status, answer) = gateway.ask("PUT", &format!("plugin_metadata/{plugin}"), "{}");
        assert_eq!(status, 400, "{answer}");
    }
    gateway.must("PUT", "routes/1", r#"{"uri":"/m","plugins":{"mocking":{"response_example":"m"}}}"#);
    assert_eq!(gateway.get("/m").text(), "m");
}

#[test]
fn what_is_under_way_at_sigterm_is_answered() {
    let data = tempfile::tempdir().expect("create a folder");
    let mut gateway = Start::stored().data_dir(data.path()).start();
    let addr = gateway.admin.expect("an Admin API");
    let body = r#"{"uri":"/late","plugins":{"mocking":{"response_example":"m"}}}"#;
    let head = |body: &str| {
        let length = body.len();
        format!(
            "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let (sent, rest) = body.split_at(10);
    let mut late = RawClient::connect(addr);
    late.send(head(body) + sent);
    let mut events = RawClient::connect(addr);
    events.send(format!("GET /weir/v1/events HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n"));
    assert_eq!(events.head().start, "HTTP/1.1 200 OK");
    let mut silent = RawClient::connect(addr);
    // They are accepted when one after them is answered.
    gateway.must("GET", "routes", "");
    gateway.signal(Signal::TERM);
    wait_until("nobody to listen", LIMIT, || TcpStream::connect(addr).is_err().then_some(()));
    silent.expect_close();
    while events.chunk().is_some() {}
    late.send(rest);
    let answer = late.response();
    assert_eq!((answer.status, answer.field("connection")), (201, Some("close")), "{}", answer.text());
    assert!(gateway.wait().success());
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!(gateway.get("/late").text(), "m");
}

#[test]
fn who_sends_nothing_holds_no_gateway_up_for_longer_than_the_limit() {
    let mut gateway = Start::stored().settings("timeouts: {drain: 200ms}").start();
    let mut slow = RawClient::connect(gateway.admin.expect("an Admin API"));
    slow.send(format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\nContent-Length: 9\r\n\r\n{{"
    ));
    gateway.must("GET", "routes", "");
    gateway.signal(Signal::TERM);
    gateway.logged("requests to the Admin API were cut off at the time limit");
    assert!(gateway.wait().success());
}

#[test]
fn what_is_used_is_deleted_by_force_alone() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    let node = origin.addr();
    gateway.must("PUT", "upstreams/u", &format!(r#"{{"nodes":{{"{node}":1}}}}"#));
    gateway.must("PUT", "routes/1", r#"{"uri":"/a","upstream_id":"u"}"#);
    let (status, answer) = gateway.ask("DELETE", "upstreams/u", "");
    assert_eq!(status, 400);
    assert_eq!(answer["error_msg"], "can not delete this upstream, route [1] is still using it now");
    assert_eq!(gateway.get("/a").status, 200);
    gateway.must("DELETE", "upstreams/u?force=true", "");
    assert_eq!(gateway.get("/a").status, 503, "a route that is left out keeps its place");
    // The route is still there, and serves again with its upstream.
    gateway.must("GET", "routes/1", "");
    gateway.must("PUT", "upstreams/u", &format!(r#"{{"nodes":{{"{node}":1}}}}"#));
    assert_eq!(gateway.get("/a").status, 200);
}

/// The reason distinguishes references from upstreams of their own, with APISIX's names for the kinds.
#[test]
fn an_upstream_that_plugins_use_is_not_deleted() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "upstreams/u", r#"{"nodes":{"127.0.0.1:1":1}}"#);
    let split = r#""plugins":{"traffic-split":{"rules":[{"weighted_upstreams":[{"upstream_id":"u"}]}]}}"#;
    for (path, more, by) in [
        ("routes/1", r#""uri":"/","upstream_id":"u","#, "plugin in route [1]"),
        ("services/1", "", "plugin in service [1]"),
        ("plugin_configs/1", "", "plugin in plugin_config [1]"),
        ("consumers/jack", r#""username":"jack","#, "plugin in consumer [jack]"),
        ("consumer_groups/1", "", "plugin in consumer_group [1]"),
        ("global_rules/1", "", "plugin in global_rules [1]"),
    ] {
        gateway.must("PUT", path, &format!("{{{more}{split}}}"));
        let (status, answer) = gateway.ask("DELETE", "upstreams/u", "");
        let expected = format!("can not delete this upstream, {by} is still using it now");
        assert_eq!((status, answer["error_msg"].as_str()), (400, Some(expected.as_str())), "{path}");
        gateway.must("DELETE", path, "");
    }
    gateway.must("DELETE", "upstreams/u", "");
}

#[test]
fn resources_with_a_time_to_live_go_away() {
    let origin = Origin::hello();
    let gateway = Start::stored().start();
    let body = format!(r#"{{"uri":"/a","upstream":{{"nodes":{{"{}":1}}}}}}"#, origin.addr());
    gateway.must("PUT", "routes/0?ttl=0", &body);
    gateway.must("PUT", "routes/1?ttl=5", &body);
    assert_eq!(gateway.get("/a").status, 200);
    wait_until("the route to be gone", LIMIT, || (gateway.get("/a").status == 404).then_some(()));
    assert_eq!(["routes/0", "routes/1"].map(|path| gateway.ask("GET", path, "").0), [404, 404]);
}

#[test]
fn many_changes_at_once_are_all_made() {
    let gateway = Start::stored().start();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gateway = &gateway;
            scope.spawn(move || {
                for turn in 0..5 {
                    gateway.must("POST", "routes", &format!(r#"{{"uri":"/{thread}/{turn}","plugins":{{}}}}"#));
                    let path = format!("upstreams/shared/labels/t{thread}x{turn}");
                    if gateway.ask("PUT", "upstreams/shared", r#"{"nodes":{}}"#).0 < 300 {
                        gateway.must("PATCH", &path, r#""x""#);
                    }
                }
            });
        }
    });
    let list = gateway.must("GET", "routes", "");
    assert_eq!(list["total"], 20);
    let ids: std::collections::BTreeSet<&str> =
        list["list"].as_array().expect("a list").iter().filter_map(|item| item["value"]["id"].as_str()).collect();
    assert!(ids.len() == 20 && ids.iter().all(|id| id.len() == 20), "{ids:?}");
}

#[test]
fn keys_are_made_at_the_first_start_and_shown_once() {
    // Without a key in the environment.
    let mut gateway = Start::stored().variable("WEIR_ADMIN_KEY", "").start();
    let shown = gateway.logged("viewer key");
    let key = |role: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(role)).expect("a line with the key");
        line.rsplit(' ').next().expect("a key").to_owned()
    };
    let (admin, viewer) = (key("admin key"), key("viewer key"));
    let ask = |gateway: &Gateway, method: &str, key: &str| {
        let body = r#"{"uri":"/","plugins":{}}"#;
        gateway.send_to_admin(method, "routes/1", &format!("X-API-KEY: {key}\r\n"), body).status
    };
    assert_eq!(ask(&gateway, "PUT", &viewer), 401);
    assert_eq!(ask(&gateway, "PUT", &admin), 201);
    assert_eq!(ask(&gateway, "GET", &viewer), 200);
    assert_eq!(ask(&gateway, "GET", ADMIN_KEY), 401);
    let kept = fs::read_to_string(gateway.file("data/admin-keys.json")).expect("read the kept keys");
    assert!(!kept.contains(&admin) && !kept.contains(&viewer), "{kept}");
    gateway.signal(Signal::TERM);
    gateway.wait();
}

#[test]
fn tls_and_certificates_of_clients_stand_in_front() {
    let authority = Authority::new();
    let server = authority.certificate(Kind::P256, &["localhost"]);
    let client = authority.certificate(Kind::P256, &["operator.test"]);
    let pair =
        |cert: &Path, key: &Path| format!("admin: {{tls: {{cert: {}, key: {}}}}}", cert.display(), key.display());
    // One of version 1 is shown as it is.
    let old = authority.version_one(Kind::Rsa, "old.test", 30);
    drop(Start::stored().settings(pair(&old.cert_file, &old.key_file)).start());
    for (settings, words) in [
        (pair(&server.cert_file, &client.key_file), "admin.tls.key: the key does not belong to the certificate"),
        (pair(&old.cert_file, &client.key_file), "admin.tls.key: the key does not belong to the certificate"),
        (pair(&server.key_file, &server.key_file), "admin.tls.cert: has no certificate in PEM"),
        (pair(&server.cert_file, &server.cert_file), "admin.tls.key: not a private key in PEM"),
    ] {
        let folder = tempfile::tempdir().expect("create a folder");
        let file = folder.path().join("weir.yaml");
        fs::write(&file, settings).expect("write settings");
        let (data, file) = (folder.path().display().to_string(), file.display().to_string());
        let more = ["--listen-http", "127.0.0.1:0", "--listen-https", "off", "--admin", "127.0.0.1:0"];
        let more = [&more[..], &["--metrics", "off", "--status", "off", "--control", "off"]].concat();
        let (code, _, told) = weir(&[&["run", "--settings", &file, "--data-dir", &data], &more[..]].concat());
        assert!(code != 0 && told.contains(words), "{words}: {told}");
    }
    let settings = format!(
        "admin: {{tls: {{cert: {}, key: {}, client_ca: {}}}}}",
        server.cert_file.display(),
        server.key_file.display(),
        authority.file().display()
    );
    let gateway = Start::stored().settings(settings).start();
    let port = gateway.admin.expect("an Admin API").port();
    let curl = |more: &[&str]| {
        let output = Command::new(program("curl"))
            .args(["-s", "--cacert", &authority.file().display().to_string()])
            .args(["-H", &format!("X-API-KEY: {ADMIN_KEY}"), &format!("https://localhost:{port}/apisix/admin/routes")])
            .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
            .args(more)
            .output()
            .expect("run curl");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let path = |file: &PathBuf| file.display().to_string();
    let (done, body) = curl(&["--cert", &path(&client.cert_file), "--key", &path(&client.key_file)]);
    assert!(done && body == "{\"list\":[],\"total\":0}\n", "{body}");
    let (done, body) = curl(&[]);
    assert!(!done && body.is_empty(), "without a certificate: {body}");

    // The history names both the key and the certificate.
    let shown = ["--cert", &path(&client.cert_file), "--key", &path(&client.key_file)];
    let url = |place: &str| format!("https://localhost:{port}/{place}");
    let put = ["-X", "PUT", "-d", r#"{"nodes":{}}"#, "-o", "/dev/null"];
    let (done, body) = curl(&[&shown[..], &put, &[&url("apisix/admin/upstreams/1")]].concat());
    assert!(done, "{body}");
    let (_, body) = curl(&[&shown[..], &["-o", "/dev/null", &url("weir/v1/history")]].concat());
    assert!(body.contains(r#""author":"admin (CN=operator.test)""#), "{body}");

    // One of X.509 version 1 counts as well, where that authority has signed it.
    let foreign = Authority::new();
    for kind in [Kind::Rsa, Kind::P256] {
        let cases = [(&authority, 30, true), (&foreign, 30, false), (&authority, -1, false)];
        for (signer, days, is_taken) in cases {
            let old = signer.version_one(kind, "old.operator", days);
            let (done, body) = curl(&["--cert", &path(&old.cert_file), "--key", &path(&old.key_file)]);
            assert_eq!(done && body.contains("\"total\""), is_taken, "{kind:?}, {days} days: {body}");
        }
    }
}

#[test]
fn a_rules_file_is_read_and_not_changed() {
    let gateway = Start::new("routes: [{id: a, uri: /a, plugins: {}}]\nconsumers: [{username: jack}]")
        .variable("WEIR_ADMIN_KEY", ADMIN_KEY)
        .argument("--admin")
        .argument("127.0.0.1:0")
        .start();
    assert_eq!(gateway.must("GET", "routes/a", "")["value"]["uri"], "/a");
    assert_eq!(gateway.must("GET", "consumers", "")["total"], 1);
    for (method, path, body) in [
        ("PUT", "routes/a", r#"{"uri":"/b","plugins":{}}"#),
        ("POST", "routes", r#"{"uri":"/b","plugins":{}}"#),
        ("PATCH", "routes/a", r#"{"uri":"/b"}"#),
        ("DELETE", "routes/a", ""),
    ] {
        let (status, answer) = gateway.ask(method, path, body);
        let message = answer["error_msg"].as_str().expect("a message");
        assert!(status == 405 && message.contains("apisix.yaml"), "{method}: {status} {answer}");
    }
    gateway.reload("routes: [{id: b, uri: /b, plugins: {}}]");
    wait_until("the new file to be told", LIMIT, || (gateway.ask("GET", "routes/b", "").0 == 200).then_some(()));
    assert_eq!(gateway.ask("GET", "routes/a", "").0, 404);
}

#[test]
fn a_slow_client_holds_nobody_up() {
    let gateway = Start::stored().start();
    let addr = gateway.admin.expect("an Admin API");
    let mut slow = RawClient::connect(addr);
    slow.send(format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a.test\r\nX-API-KEY: {ADMIN_KEY}\r\nContent-Length: 24\r\n\r\n"
    ));
    slow.send(r#"{"uri":"/","#);
    gateway.must("PUT", "routes/2", r#"{"uri":"/x","plugins":{}}"#);
    slow.send(r#""plugins":{}}"#);
    assert_eq!(slow.response().status, 201);
}

/// The listings of the document, run by a shell one after the other; what they print has to be what it shows.
#[test]
fn the_listings_of_the_document_do_what_they_say() {
    let gateway = Start::stored().start();
    let admin = format!("http://{}/apisix/admin", gateway.admin.expect("an Admin API"));
    let text = document("docs/admin-api.md");
    let listings: Vec<(&str, &str)> =
        text.split("```").skip(1).step_by(2).filter_map(|listing| listing.split_once('\n')).collect();
    let mut run = 0;
    for pair in listings.windows(2) {
        let [("sh", script), ("json", expected)] = pair else { continue };
        let output = Command::new("sh")
            .args(["-c", script])
            .envs([("admin", admin.as_str()), ("key", ADMIN_KEY)])
            .output()
            .expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        let values = |text: &str| -> Vec<Value> {
            let lines = text.lines().filter(|line| !line.is_empty());
            lines
                .map(|line| without_times(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))))
                .collect()
        };
        assert_eq!(values(&said), values(expected), "{script}");
        run += script.lines().count();
    }
    assert!(run >= 12, "only {run} commands");
}

/// A value with the same times everywhere.
fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                *field = match name.as_str() {
                    "create_time" | "update_time" => json!(0),
                    _ => without_times(field.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_times(item.take())),
        _ => {}
    }
    value
}
