//! A gateway with APISIX's own `config.yaml` for its settings.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::harness::{LIMIT, Origin, RawClient, Start, wait_until, weir};

const CONFIG: &str = r#"
apisix:
  node_listen: [{ip: 127.0.0.1, port: 0}, {ip: 127.0.0.2, port: 0}]
  enable_http2: true
  delete_uri_tail_slash: true
  normalize_uri_like_servlet: true
  ssl:
    listen: [{ip: 127.0.0.1, port: 0}]
    ssl_protocols: TLSv1.3
  router: {http: radixtree_uri_with_parameter}
  trusted_addresses: [127.0.0.1]
nginx_config:
  error_log_level: info
  worker_processes: 2
  http:
    access_log: FOLDER/access.log
    access_log_format: '{"by":"$http_user_agent","with":"$request","of":"$upstream_scheme","status":$status}'
    access_log_format_escape: json
    client_max_body_size: 1k
  http_server_configuration_snippet: "allow 10.0.0.0/8; deny all;"
plugins: [proxy-rewrite, prometheus, dingtalk-auth]
plugin_attr:
  prometheus: {metric_prefix: gw_}
deployment:
  role: data_plane
  role_data_plane: {config_provider: yaml}
  admin: {admin_key: [{name: admin, key: k, role: admin}]}
"#;

#[test]
fn keys_of_config_yaml_take_effect() {
    let origin = Origin::hello();
    let rules = format!(
        r#"
routes:
  - {{id: user, uri: /users/:name, upstream: {{nodes: {{"{}": 1}}}}, plugins: {{prometheus: {{}}, proxy-rewrite: {{uri: "/of/$uri_param_name"}}}}}}
"#,
        origin.node()
    );
    let gateway = Start::new(rules).settings(CONFIG).own_listeners().workers_by_settings().start();
    assert_eq!(gateway.addrs.len(), 2, "both addresses of node_listen");
    for addr in &gateway.addrs {
        let mut client = RawClient::connect(*addr);
        // A slash at the end and servlet parameters are taken away before matching.
        let answer = client.request("GET /users/bo;v=1/ HTTP/1.1\r\nHost: a\r\nUser-Agent: \"q\"\\\r\n\r\n");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let seen = origin.requests();
    assert!(seen.iter().all(|request| request.target == "/of/bo"), "{seen:?}");
    let mut client = gateway.client();
    assert_eq!(client.request("POST /users/bo HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n").status, 413);

    let log = wait_until("three lines of the access log", LIMIT, || {
        let log = fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
        (log.lines().count() >= 3).then_some(log)
    });
    // Lines of different workers come in any order.
    let served = log.lines().find(|line| line.contains("GET ")).unwrap_or_default();
    let line: serde_json::Value = serde_json::from_str(served).expect(&log);
    assert_eq!(line["by"], "\"q\"\\");
    assert_eq!(line["with"], "GET /users/bo;v=1/ HTTP/1.1");
    assert_eq!((line["of"].as_str(), line["status"].as_u64()), (Some(""), Some(200)));

    let page = gateway.metrics_page();
    assert_eq!(page.value("gw_http_status", &[("route", "user"), ("code", "200")]), Some(2.0));
    assert!(page.0.contains("# TYPE gw_http_latency histogram") && !page.0.contains("apisix_"), "{}", page.0);
    assert!(page.value("weir_config_revision", &[]).is_some(), "names of its own stay");

    assert!(handshake(&gateway.https.expect("it speaks TLS"), "-tls1_3"));
    assert!(!handshake(&gateway.https.expect("it speaks TLS"), "-tls1_2"));
}

fn handshake(addr: &SocketAddr, version: &str) -> bool {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &addr.to_string(), version]).stdin(std::process::Stdio::null());
    let output = command.output().expect("openssl runs");
    String::from_utf8_lossy(&output.stdout).contains("New, TLSv1.")
}

#[test]
fn what_has_no_effect_is_listed_at_start_and_by_check() {
    let expected = [
        "warning: nginx_config.http_server_configuration_snippet: has no effect here: it is text for nginx's configuration",
        "warning: nginx_config.http.access_log_format: variable 'upstream_scheme' is not supported yet: nothing is written for it",
        "warning: plugins: the gateway does not have: dingtalk-auth",
    ];
    let gateway = Start::new("routes: []").settings(CONFIG).own_listeners().start();
    for line in expected {
        gateway.logged(line.trim_start_matches("warning: "));
    }
    let (rules, settings) = (gateway.config(), gateway.file("weir.yaml"));
    let (code, stdout, stderr) =
        weir(&["check", &rules.display().to_string(), "--settings", &settings.display().to_string()]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    for line in expected {
        assert!(stderr.contains(line), "{line}\n{stderr}");
    }
}

#[test]
fn a_plugin_that_the_list_leaves_out_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("apisix.yaml");
    let settings = folder.path().join("config.yaml");
    fs::write(&rules, "routes:\n  - {uri: /a, plugins: {cors: {}, mocking: {response_example: a}}}\n#END\n")
        .expect("write");
    let rules = rules.display().to_string();
    let cases = [
        ("plugins: [mocking]\ndeployment: {role: traditional}", "the plugin cors is not in the setting `plugins`"),
        ("plugins: [cors]", "the plugin mocking is not in the setting `plugins`"),
        ("plugins: [cors, mocking]", ""),
        ("plugins: []", "the plugin cors is not in the setting `plugins`"),
        ("plugins:\ndeployment: {role: traditional}", "the plugin cors is not in the setting `plugins`"),
        ("plugins: ['*']", ""),
        ("workers: 1", ""),
    ];
    for (text, expected) in cases {
        fs::write(&settings, text).expect("write");
        let (code, _, stderr) = weir(&["check", &rules, "--settings", &settings.display().to_string()]);
        assert_eq!(code, i32::from(!expected.is_empty()), "{text}: {stderr}");
        assert!(stderr.contains(expected), "{text}: {stderr}");
    }
    let (code, _, stderr) = weir(&["check", &rules, "--set", "plugins=cors"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("the plugin mocking is not in the setting `plugins`; add it there"), "{stderr}");
}

#[test]
fn a_key_with_another_role_matters_to_the_admin_api_alone() {
    let settings = "deployment: {admin: {admin_key: [{name: a, key: k, role: king}]}}";
    let gateway = Start::new("routes: []").settings(settings).start();
    gateway.logged("deployment.admin.admin_key[0]: \"king\" is no role: admin or viewer");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    fs::write(&file, settings).expect("write");
    let data = folder.path().join("data").display().to_string();
    let (code, _, stderr) =
        weir(&["run", "--settings", &file.display().to_string(), "--data-dir", &data, "--admin", "127.0.0.1:0"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("the role of the key \"a\""), "{stderr}");
}

#[test]
fn ports_without_an_address_are_those_of_ipv4_and_with_enable_ipv6_of_both() {
    let port = crate::harness::free_port();
    let settings = format!("apisix: {{node_listen: {port}, enable_ipv6: true, ssl: {{enable: false}}}}");
    let gateway = Start::new("routes: []").settings(settings).own_listeners().start();
    assert_eq!(gateway.https, None);
    for addr in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let addr: SocketAddr = addr.parse().expect("an address");
        assert_eq!(RawClient::connect(addr).get("/").status, 404, "{addr}");
    }
}
