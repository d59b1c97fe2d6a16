//! APISIX's own `config.yaml` as settings.

use std::path::Path;

use serde_json::{Value, json};
use weir_config::settings::apisix::{Effect, KEYS};
use weir_config::settings::{SettingsSource, leaves};
use weir_config::{Diagnostic, Settings};

type Read = Result<(Settings, Vec<Diagnostic>), Vec<Diagnostic>>;

fn read(text: &str) -> Read {
    read_with(text, &[], &[])
}

fn read_with(text: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Read {
    let owned = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let (variables, flags) = (owned(variables), owned(flags));
    Settings::load(SettingsSource {
        file: Some(("config.yaml", text)),
        variables: &variables,
        flags: &flags,
        below: &[],
    })
}

/// The settings, and what is said of them.
fn good(text: &str) -> (Value, Vec<String>) {
    match read(text) {
        Ok((settings, found)) => {
            (serde_json::to_value(settings).expect("JSON"), found.iter().map(ToString::to_string).collect())
        }
        Err(found) => panic!("{text}\n{:?}", found.iter().filter(|one| one.is_error()).collect::<Vec<_>>()),
    }
}

#[test]
fn a_key_sets_what_the_table_says() {
    // The file, the path of a setting, its value.
    let cases: &[(&str, &str, Value)] = &[
        ("apisix: {node_listen: 9081}", "/listen/http", json!(["0.0.0.0:9081"])),
        ("apisix: {node_listen: [9081, {port: 9082}]}", "/listen/http", json!(["0.0.0.0:9081", "0.0.0.0:9082"])),
        ("apisix: {node_listen: [{ip: 127.0.0.2, port: 1}]}", "/listen/http", json!(["127.0.0.2:1"])),
        (
            "apisix: {node_listen: [{ip: '::1', port: 1}, {ip: '[::2]'}]}",
            "/listen/http",
            json!(["[::1]:1", "[::2]:9080"]),
        ),
        (
            "apisix: {node_listen: [9081, {port: 9082, enable_http2: true}, {port: 9083, enable_http2: false}]}",
            "/listen/http",
            json!([
                "0.0.0.0:9081",
                {"address": "0.0.0.0:9082", "proxy_protocol": false, "http2": true},
                {"address": "0.0.0.0:9083", "proxy_protocol": false, "http2": false},
            ]),
        ),
        (
            "apisix: {ssl: {listen: [{port: 1, enable_http2: false}]}}",
            "/listen/https",
            json!([{"address": "0.0.0.0:1", "proxy_protocol": false, "http2": false}]),
        ),
        ("apisix: {enable_http2: false}", "/http2/enabled", json!(false)),
        ("apisix: {enable_http2: false}", "/listen/http", json!(["0.0.0.0:9080"])),
        (
            "apisix: {enable_http2: true}",
            "/listen/http",
            json!([{"address": "0.0.0.0:9080", "proxy_protocol": false, "http2": true}]),
        ),
        (
            "apisix: {enable_http2: true, node_listen: [1]}",
            "/listen/http",
            json!([{"address": "0.0.0.0:1", "proxy_protocol": false, "http2": true}]),
        ),
        ("apisix: {node_listen: '9081'}", "/listen/http", json!(["0.0.0.0:9081"])),
        ("apisix: {enable_ipv6: true, node_listen: 1}", "/listen/http", json!(["0.0.0.0:1", "[::]:1"])),
        ("apisix: {enable_ipv6: true}", "/listen/https", json!(["0.0.0.0:9443", "[::]:9443"])),
        ("apisix: {enable_ipv6: false}", "/listen/http", json!(["0.0.0.0:9080"])),
        ("apisix: {ssl: {enable: false}}", "/listen/https", json!([])),
        ("apisix: {ssl: {enable: false, listen: [{port: 1}]}}", "/listen/https", json!([])),
        (
            "apisix: {ssl: {listen: [{port: 1}, {ip: 127.0.0.3, port: 2}]}}",
            "/listen/https",
            json!(["0.0.0.0:1", "127.0.0.3:2"]),
        ),
        ("apisix: {ssl: {listen_port: 444}}", "/listen/https", json!(["0.0.0.0:444"])),
        ("apisix: {ssl: {ssl_protocols: TLSv1.3}}", "/tls/protocols", json!(["TLSv1.3"])),
        ("apisix: {ssl: {ssl_protocols: TLSv1.2 TLSv1.3}}", "/tls/protocols", json!(["TLSv1.2", "TLSv1.3"])),
        ("apisix: {ssl: {ssl_session_tickets: false}}", "/tls/session_tickets", json!(false)),
        ("apisix: {ssl: {fallback_sni: a.test}}", "/tls/fallback_sni", json!("a.test")),
        ("apisix: {ssl: {ssl_trusted_certificate: /ca.pem}}", "/tls/trusted_certificate", json!("/ca.pem")),
        ("apisix: {delete_uri_tail_slash: true}", "/uri/delete_tail_slash", json!(true)),
        ("apisix: {delete_uri_tail_slash: 'true'}", "/uri/delete_tail_slash", json!(true)),
        ("apisix: {normalize_uri_like_servlet: true}", "/uri/normalize_like_servlet", json!(true)),
        ("apisix: {match_uri_encoded_slash: true}", "/uri/match_encoded_slash", json!(true)),
        ("apisix: {router: {http: radixtree_uri}}", "/router", json!("radixtree_uri")),
        ("apisix: {enable_dev_mode: true}", "/workers", json!(1)),
        ("apisix: {dns_resolver: [10.0.0.2]}", "/dns/servers", json!(["10.0.0.2:53"])),
        ("apisix: {dns_resolver_valid: 30}", "/dns/min_ttl", json!("30s")),
        ("apisix: {dns_resolver_valid: 30}", "/dns/max_ttl", json!("30s")),
        ("apisix: {resolver_timeout: 7}", "/dns/timeout", json!("7s")),
        ("apisix: {status: {ip: 127.0.0.2, port: 7086}}", "/listen/status", json!("127.0.0.2:7086")),
        ("apisix: {trusted_addresses: [10.0.0.0/8]}", "/trusted_proxies", json!(["10.0.0.0/8"])),
        (
            "apisix: {show_upstream_status_in_response_header: true}",
            "/show_upstream_status_in_response_header",
            json!(true),
        ),
        (
            "apisix: {enable_admin: false}\ndeployment: {admin: {admin_listen: {port: 1}}}",
            "/listen/admin",
            json!("off"),
        ),
        ("apisix: {enable_admin: true}", "/listen/admin", json!("auto")),
        (
            "deployment: {admin: {admin_key: [{name: a, key: k1, role: admin}, {name: v, key: 123, role: viewer}]}}",
            "/admin/keys",
            json!([]),
        ),
        ("deployment: {admin: {admin_key: [{name: a, key: '', role: admin}]}}", "/admin/key", json!("")),
        ("deployment: {admin: {admin_key: [{name: a, key: k1, role: admin}]}}", "/admin/key", json!("***")),
        ("deployment: {admin: {admin_key: [{name: v, key: 123, role: viewer}]}}", "/viewer/key", json!("***")),
        (
            "deployment: {admin: {admin_key: [{name: a, key: k1, role: admin}, {name: b, key: k2, role: admin}]}}",
            "/admin/keys",
            json!([{"name": "b", "key": "***", "role": "admin"}]),
        ),
        ("deployment: {admin: {admin_key_required: false}}", "/admin/key_required", json!(false)),
        ("deployment: {admin: {allow_admin: [10.0.0.0/8]}}", "/admin/allow", json!(["10.0.0.0/8"])),
        ("deployment: {admin: {enable_admin_cors: true}}", "/admin/cors", json!(true)),
        (
            "deployment: {admin: {https_admin: true, admin_api_mtls: {admin_ssl_cert: /c, admin_ssl_cert_key: /k, admin_ssl_ca_cert: ''}}}",
            "/admin/tls",
            json!({"cert": "/c", "key": "/k", "client_ca": ""}),
        ),
        (
            "deployment: {admin: {https_admin: false, admin_api_mtls: {admin_ssl_cert: /c, admin_ssl_cert_key: /k}}}",
            "/admin/tls/cert",
            json!(""),
        ),
        ("deployment: {admin: {admin_listen: {ip: 0.0.0.0, port: 9181}}}", "/listen/admin", json!("0.0.0.0:9181")),
        ("apisix: {enable_control: true}", "/listen/control", json!("auto")),
        ("apisix: {enable_control: false}", "/listen/control", json!("off")),
        ("apisix: {control: {port: 9092}}", "/listen/control", json!("127.0.0.1:9092")),
        ("apisix: {lru: {secret: {ttl: 60}}}", "/secrets/ttl", json!("60s")),
        ("nginx_config: {error_log: /dev/stderr}", "/error_log/path", json!("stderr")),
        ("nginx_config: {error_log: logs/error.log}", "/error_log/path", json!("logs/error.log")),
        ("nginx_config: {error_log_level: notice}", "/error_log/level", json!("info")),
        ("nginx_config: {error_log_level: emerg}", "/error_log/level", json!("error")),
        ("nginx_config: {worker_processes: 3}", "/workers", json!(3)),
        ("nginx_config: {worker_processes: '3'}", "/workers", json!(3)),
        ("nginx_config: {worker_processes: auto}", "/workers", json!("auto")),
        ("nginx_config: {worker_shutdown_timeout: 240s}", "/timeouts/drain", json!("240s")),
        ("nginx_config: {worker_processes: 3, event: {worker_connections: 100}}", "/limits/connections", json!(300)),
        ("nginx_config: {http: {access_log: /dev/stdout}}", "/access_log/path", json!("stdout")),
        ("nginx_config: {http: {enable_access_log: false, access_log: a}}", "/access_log/path", json!("off")),
        ("nginx_config: {http: {access_log_format: '$status'}}", "/access_log/path", json!("logs/access.log")),
        (
            "nginx_config: {http: {access_log_format: \"\\\"$status\\\" \\\\\\\"\\n\"}}",
            "/access_log/format",
            json!("\"$status\" \""),
        ),
        (
            "nginx_config: {http: {access_log_format: '$remote_user \"$request\" ${request}x $request_uri'}}",
            "/access_log/format",
            json!(
                "${consumer_name} \"$request_method $request_uri ${server_protocol}\" $request_method $request_uri ${server_protocol}x $request_uri"
            ),
        ),
        ("nginx_config: {http: {access_log_format_escape: json}}", "/access_log/escape", json!("json")),
        ("nginx_config: {http: {keepalive_timeout: 1m30s}}", "/timeouts/idle", json!("90s")),
        ("nginx_config: {http: {client_header_timeout: 60}}", "/timeouts/head", json!("60s")),
        ("nginx_config: {http: {client_body_timeout: 500ms}}", "/timeouts/body", json!("500ms")),
        ("nginx_config: {http: {send_timeout: 10s}}", "/timeouts/send", json!("10s")),
        ("nginx_config: {http: {client_max_body_size: 10m}}", "/limits/body_size", json!("10MiB")),
        ("nginx_config: {http: {client_max_body_size: 0}}", "/limits/body_size", json!("0")),
        ("nginx_config: {http: {real_ip_header: X-Forwarded-For}}", "/real_ip/header", json!("X-Forwarded-For")),
        ("nginx_config: {http: {real_ip_recursive: 'on'}}", "/real_ip/recursive", json!(true)),
        (
            "nginx_config: {http: {real_ip_from: [127.0.0.1, 'unix:', 10.0.0.0/8]}}",
            "/real_ip/trusted",
            json!(["127.0.0.1", "10.0.0.0/8"]),
        ),
        (
            "nginx_config: {http: {real_ip_header: proxy_protocol, real_ip_from: [127.0.0.1]}}",
            "/real_ip/trusted",
            json!([]),
        ),
        ("nginx_config: {http: {upstream: {keepalive: 320}}}", "/limits/upstream_idle_connections", json!(320)),
        (
            "nginx_config: {stream: {enable_access_log: true}}",
            "/stream_access_log/path",
            json!("logs/access_stream.log"),
        ),
        ("nginx_config: {stream: {access_log: logs/s.log}}", "/stream_access_log/path", json!("off")),
        (
            "nginx_config: {stream: {enable_access_log: true, access_log: logs/s.log, access_log_format: $protocol}}",
            "/stream_access_log/format",
            json!("$protocol"),
        ),
        (
            "apisix: {proxy_mode: stream, stream_proxy: {udp: [9100, '127.0.0.1:9101']}}",
            "/listen/udp",
            json!(["0.0.0.0:9100", "127.0.0.1:9101"]),
        ),
        ("plugins: [key-auth, cors]", "/plugins", json!(["key-auth", "cors"])),
        ("plugin_attr: {prometheus: {export_uri: /m}}", "/metrics/path", json!("/m")),
        ("plugin_attr: {prometheus: {metric_prefix: gw_}}", "/metrics/prefix", json!("gw_")),
        (
            "plugin_attr: {prometheus: {enable_export_server: false, export_addr: {port: 1}}}",
            "/listen/metrics",
            json!("off"),
        ),
        (
            "plugin_attr: {prometheus: {export_addr: {ip: 0.0.0.0, port: 9092}}}",
            "/listen/metrics",
            json!("0.0.0.0:9092"),
        ),
        ("plugin_attr: {prometheus: {export_addr: {ip: '::1'}}}", "/listen/metrics", json!("[::1]:9091")),
        ("plugin_attr: {redirect: {https_port: 8443}}", "/redirect/https_port", json!(8443)),
        (
            "deployment: {role: data_plane, role_data_plane: {config_provider: yaml}}",
            "/deployment/role",
            json!("data_plane"),
        ),
        (
            "deployment: {role: data_plane, role_data_plane: {config_provider: yaml}}",
            "/deployment/config_provider",
            json!("yaml"),
        ),
        ("deployment: {role_traditional: {config_provider: etcd}}", "/deployment/config_provider", json!("etcd")),
        (
            "deployment: {role: data_plane, role_data_plane: {config_provider: yaml}, role_traditional: {config_provider: etcd}}",
            "/deployment/config_provider",
            json!("yaml"),
        ),
        (
            "deployment: {config_provider: yaml, role: data_plane, role_data_plane: {config_provider: yaml}}",
            "/deployment/config_provider",
            json!("yaml"),
        ),
        ("deployment: {config_provider: yaml, role: data_plane}", "/deployment/config_provider", json!("yaml")),
        (
            "deployment: {config_provider: yaml, role_data_plane: {config_provider: etcd}}",
            "/deployment/config_provider",
            json!("yaml"),
        ),
        (
            "deployment: {etcd: {host: ['http://e:2379'], prefix: /a}}",
            "/deployment/etcd/host",
            json!(["http://e:2379"]),
        ),
        (
            "apisix: {data_encryption: {enable_encrypt_fields: false}}",
            "/deployment/etcd/data_encryption/enable_encrypt_fields",
            json!(false),
        ),
    ];
    for (text, setting, expected) in cases {
        let (settings, found) = good(text);
        assert_eq!(settings.pointer(setting), Some(expected), "{text}: {setting}");
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[test]
fn the_provider_of_the_role_takes_precedence() {
    for text in [
        "deployment: {config_provider: yaml, role_traditional: {config_provider: etcd}}",
        "deployment: {role_traditional: {config_provider: etcd}, config_provider: yaml}",
    ] {
        let (settings, found) = good(text);
        assert_eq!(settings["deployment"]["config_provider"], "etcd", "{text}");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let [one] = found.as_slice() else { panic!("{text}: {found:?}") };
        assert!(one.contains("deployment.role_traditional.config_provider takes precedence"), "{one}");
    }
}

#[test]
fn variables_of_the_log_that_are_not_here_are_written_as_nothing() {
    for (escape, expected) in [("default", "- -x- $5 $status"), ("json", " x $5 $status")] {
        let text = format!(
            "nginx_config: {{http: {{access_log_format: '$gzip_ratio ${{no_such_id}}x$no_such $5 $status', access_log_format_escape: {escape}}}}}"
        );
        let (settings, found) = good(&text);
        assert_eq!(settings.pointer("/access_log/format"), Some(json!(expected)).as_ref(), "{text}");
        assert_eq!(found.len(), 3, "{found:?}");
    }
}

#[test]
fn listeners_behind_proxies_believe_those_that_are_believed_about_addresses() {
    let text = "\
apisix: {proxy_protocol: {listen_http_port: 9181, listen_https_port: 9182}}
nginx_config: {http: {real_ip_header: proxy_protocol, real_ip_from: [10.0.0.0/8]}}
";
    let (settings, found) = good(text);
    assert!(found.is_empty(), "{found:?}");
    let proxied = |address: &str| json!({"address": address, "proxy_protocol": true});
    assert_eq!(settings["listen"]["http"], json!(["0.0.0.0:9080", proxied("0.0.0.0:9181")]));
    assert_eq!(settings["listen"]["https"], json!(["0.0.0.0:9443", proxied("0.0.0.0:9182")]));
    assert_eq!(settings["proxy_protocol"]["trusted"], json!(["10.0.0.0/8"]));
    let alone = read("apisix: {proxy_protocol: {listen_http_port: 9181}}").expect_err("nobody is believed");
    assert!(alone[0].message().contains("proxy_protocol.trusted"), "{alone:?}");
}

#[test]
fn what_has_no_effect_is_told_by_name_with_its_reason() {
    // The file, and what is said: each of them, and nothing else.
    let cases: &[(&str, &[&str])] = &[
        (
            "apisix: {extra_lua_cpath: /x}",
            &["config.yaml:1:10: warning: apisix.extra_lua_cpath: has no effect here: scripts load no code but Lua"],
        ),
        ("apisix: {enable_http2: true}", &[]),
        ("apisix: {enable_http2: false, enable_reuseport: true, proxy_mode: http}", &[]),
        ("apisix: {enable_reuseport: false}", &["apisix.enable_reuseport: has no effect"]),
        ("apisix: {node_listen: [{port: 1, enable_http2: true}]}", &[]),
        (
            "apisix: {ssl: {listen: [{port: 1, enable_http3: true}]}}",
            &["apisix.ssl.listen[0].enable_http3: has no effect here: HTTP/3"],
        ),
        ("apisix: {ssl: {ssl_protocols: TLSv1.1 TLSv1.2}}", &["apisix.ssl.ssl_protocols: TLSv1.1 has no effect here"]),
        (
            "apisix: {stream_proxy: {tcp: [9100]}}",
            &["apisix.stream_proxy.tcp: has no effect here: apisix.proxy_mode opens no ports for streams"],
        ),
        ("apisix: {proxy_mode: http&stream, stream_proxy: {tcp: [9100]}}", &[]),
        (
            "apisix: {stream_proxy: {udp: [9100]}}",
            &["apisix.stream_proxy.udp: has no effect here: apisix.proxy_mode opens no ports for streams"],
        ),
        ("apisix: {proxy_mode: http&stream, stream_proxy: {udp: [9100, '127.0.0.1:9101']}}", &[]),
        ("nginx_config: {stream: {enable_access_log: true, access_log_format: $protocol $status}}", &[]),
        (
            "nginx_config: {stream: {enable_access_log: true, access_log_format: $protocol $tcpinfo_rtt}}",
            &["nginx_config.stream.access_log_format: "],
        ),
        ("nginx_config: {stream: {lua_shared_dict: {}}}", &["nginx_config.stream.lua_shared_dict: has no effect"]),
        ("apisix: {ssl: {ssl_ciphers: HIGH}}", &["apisix.ssl.ssl_ciphers: has no effect"]),
        (
            "apisix: {node_lisen: 1}",
            &["apisix.node_lisen: has no effect: APISIX has no such key; did you mean node_listen?"],
        ),
        ("apisix: {enable_websocket: true}", &["apisix.enable_websocket: has no effect: APISIX has no such key"]),
        ("apisix: {admin_key: [{key: k}]}", &["apisix.admin_key: has no effect here: that is the form of APISIX 2"]),
        (
            "deployment: {admin: {admin_key: [{key: k, role: king}]}}",
            &["deployment.admin.admin_key[0]: \"king\" is no role: admin or viewer; the Admin API does not start"],
        ),
        ("etcd: {host: [x]}", &["etcd: has no effect here: that is the form of APISIX 2"]),
        (
            "apisix: {}\nroutes: [{uri: /}]",
            &["config.yaml:2:1: warning: routes: has no effect in a config.yaml; rules are in a file of their own"],
        ),
        (
            "nginx_config: {client_max_body_size: 1m}",
            &[
                "nginx_config.client_max_body_size: has no effect: APISIX has no such key; it belongs in nginx_config.http",
            ],
        ),
        ("apisix: {}\nlogging: {level: info}", &["logging: has no effect: APISIX has no such key"]),
        ("nginx_config: {http_configuration_snippet: \"# nothing\\n\\n  # more\"}", &[]),
        (
            "nginx_config: {http_configuration_snippet: \"deny all;\"}",
            &["nginx_config.http_configuration_snippet: has no effect here: it is text for nginx"],
        ),
        (
            "nginx_config: {http: {lua_shared_dict: {a: 1m}, access_log_format_escape: none}}",
            &["lua_shared_dict: has no effect", "access_log_format_escape: has no effect"],
        ),
        (
            "nginx_config: {http: {access_log_format: '$gzip_ratio $no_such $status'}}",
            &[
                "access_log_format: variable 'gzip_ratio' is not supported yet: - is written for it",
                "access_log_format: unknown variable 'no_such': - is written for it",
            ],
        ),
        (
            "nginx_config: {http: {access_log: 'syslog:server=a'}, error_log: 'syslog:server=b'}",
            &["nginx_config.http.access_log: has no effect", "nginx_config.error_log: has no effect"],
        ),
        (
            "plugin_attr: {my-plugin: {a: 1}}",
            &["plugin_attr.my-plugin: has no effect here: the gateway has no such attributes"],
        ),
        (
            "plugin_attr: {prometheus: {refresh_interval: 15}}",
            &["plugin_attr.prometheus.refresh_interval: has no effect"],
        ),
        (
            "discovery: {tars: {db_conf: {}}, consul: {servers: ['http://127.0.0.1:8500'], shared_size: 1m}}\nxrpc: {protocols: []}",
            &["discovery.tars: has no effect", "discovery.consul.shared_size: has no effect", "xrpc: has no effect"],
        ),
        ("apisix: {ssl: , dns_resolver: null}\nnginx_config:", &[]),
    ];
    for (text, expected) in cases {
        let (_, found) = good(text);
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for (found, expected) in found.iter().zip(*expected) {
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}

#[test]
fn what_is_wrong_is_told_by_the_key_of_the_file() {
    let cases = [
        ("apisix:\n  node_listen: many", "config.yaml:2:16: apisix.node_listen: "),
        ("apisix: {node_listen: [[1]]}", "apisix.node_listen[0]: expected a port or a mapping with port"),
        ("apisix: {delete_uri_tail_slash: 3}", "apisix.delete_uri_tail_slash: expected true or false"),
        ("apisix: {router: {http: radix}}", "apisix.router.http: expected"),
        ("apisix: {ssl: {ssl_protocols: TLSv1.1}}", "apisix.ssl.ssl_protocols: expected TLSv1.2, TLSv1.3 or both"),
        ("apisix: {ssl: {enable: maybe}}", "apisix.ssl.enable: expected true or false"),
        ("apisix: 3", "apisix: expected a mapping"),
        ("nginx_config: {http: {keepalive_timeout: soon}}", "nginx_config.http.keepalive_timeout: expected a time"),
        (
            "nginx_config: {http: {keepalive_timeout: 60s 60s x}}",
            "nginx_config.http.keepalive_timeout: expected a time",
        ),
        (
            "nginx_config: {http: {keepalive_timeout: 0}}",
            "nginx_config.http.keepalive_timeout: expected a time from 100ms",
        ),
        (
            "nginx_config: {http: {client_max_body_size: big}}",
            "nginx_config.http.client_max_body_size: expected a size",
        ),
        ("nginx_config: {http: {real_ip_from: [a.test]}}", "nginx_config.http.real_ip_from"),
        (
            "nginx_config: {http: {real_ip_recursive: perhaps}}",
            "nginx_config.http.real_ip_recursive: expected on or off",
        ),
        ("nginx_config: {error_log_level: loud}", "nginx_config.error_log_level: expected debug, info"),
        (
            "nginx_config: {event: {worker_connections: some}}",
            "nginx_config.event.worker_connections: expected a number",
        ),
        (
            "deployment: {admin: {https_admin: true}}",
            "deployment.admin.https_admin: needs admin_api_mtls.admin_ssl_cert",
        ),
        ("deployment: {admin: {https_admin: yep}}", "deployment.admin.https_admin: expected true or false"),
        ("deployment: {admin: {admin_key: [{name: a, key: k}]}}", "deployment.admin.admin_key[0]: expected a role"),
        ("deployment: {admin: {admin_key: k}}", "deployment.admin.admin_key: expected a list"),
        ("deployment: {admin: {allow_admin: [anywhere]}}", "deployment.admin.allow_admin"),
        ("plugins: {a: b}", "plugins: expected a list"),
        ("deployment: {role: king}", "deployment.role: expected"),
        (
            "deployment: {role: data_plane, role_data_plane: {config_provider: xds}}",
            "not supported yet: configuration over xDS",
        ),
        ("deployment: {role: data_plane, role_data_plane: {config_provider: control_plane}}", "data planes ask etcd"),
        ("apisix: {node_listen: '${{NO_SUCH}}'}", "the environment variable NO_SUCH is not set"),
        (
            "apisix: {}\nworkers: 3",
            "config.yaml:2:1: workers: apisix stands in APISIX's config.yaml and workers in this gateway's weir.yaml",
        ),
        ("routes: []\nworkers: 2", "not a settings file: this is a rules file"),
    ];
    for (text, expected) in cases {
        let found = read(text).expect_err(text);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|one| one.contains(expected)), "{text}: {found:?}");
    }
}

#[test]
fn variables_and_flags_go_before_it_as_before_a_weir_yaml() {
    let text = "apisix: {node_listen: ${{PORT}}}\nnginx_config: {worker_processes: '${{CORES:=2}}'}\n#END\n";
    let (settings, found) =
        read_with(text, &[("PORT", "9081"), ("WEIR_LIMITS_BODY_SIZE", "1KiB")], &[("workers", "4")]).expect("settings");
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(settings.listen.http[0].to_string(), "0.0.0.0:9081");
    assert_eq!((settings.workers.to_string().as_str(), settings.limits.body_size.bytes()), ("4", 1024));
    let (settings, _) = read_with(text, &[("PORT", "1"), ("CORES", "3")], &[("listen.http", "127.0.0.1:0")]).unwrap();
    assert_eq!(
        (settings.workers.to_string().as_str(), settings.listen.http[0].to_string().as_str()),
        ("3", "127.0.0.1:0")
    );
}

/// Ports for streams, in the forms that they may have.
#[test]
fn stream_ports_become_listeners() {
    let text = "apisix:\n  proxy_mode: http&stream\n  proxy_protocol: {enable_tcp_pp: true}\n  \
        stream_proxy: {tcp: [{addr: 9100, tls: true}, \"127.0.0.1:9101\", 9102]}\n\
        nginx_config: {http: {real_ip_from: [10.0.0.0/8]}}";
    let (settings, found) = good(text);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(
        settings["listen"]["tcp"],
        json!([
            {"address": "0.0.0.0:9100", "proxy_protocol": true, "tls": true},
            {"address": "127.0.0.1:9101", "proxy_protocol": true},
            {"address": "0.0.0.0:9102", "proxy_protocol": true},
        ])
    );
}

/// The file that comes with APISIX, with every key of it.
const WHOLE: &str = include_str!("config.yaml");

#[test]
fn every_key_of_apisix_own_file_is_in_the_table() {
    let (settings, found) = good(WHOLE);
    let unknown: Vec<_> = found.iter().filter(|one| one.contains("APISIX has no such key")).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(
        found.iter().all(|one| one.contains("has no effect here: ") || one.contains("- is written for it")),
        "{found:#?}"
    );
    assert_eq!(
        settings["listen"]["http"],
        json!([
            {"address": "0.0.0.0:9080", "proxy_protocol": false, "http2": true},
            {"address": "[::]:9080", "proxy_protocol": false, "http2": true},
        ])
    );
    assert_eq!(settings["limits"]["upstream_idle_connections"], json!(320));
    assert_eq!(settings["limits"]["body_variables"], json!("512KiB"));
}

#[test]
fn the_table_names_settings_that_there_are() {
    let mut paths: Vec<&str> = Vec::new();
    for row in KEYS {
        assert!(!paths.contains(&row.path), "{} stands twice", row.path);
        let inner = paths.iter().find(|path| row.path.starts_with(&format!("{path}.")));
        assert!(inner.is_none(), "{} is never reached: {inner:?} stands for it", row.path);
        paths.push(row.path);
        match row.effect {
            Effect::Sets(settings, _) => {
                for setting in settings {
                    let known = leaves()
                        .iter()
                        .any(|leaf| leaf.path == *setting || leaf.path.starts_with(&format!("{setting}.")));
                    assert!(known, "{}: there is no setting {setting}", row.path);
                }
            }
            Effect::Always(_) | Effect::Nothing => assert!(!row.note.is_empty(), "{} needs a reason", row.path),
        }
    }
}

#[test]
fn the_committed_page_is_generated() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config-yaml.md");
    let page = weir_config::reference::config_yaml();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).expect("docs/config-yaml.md can be written");
        return;
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == page, "docs/config-yaml.md is out of date: UPDATE_DOCS=1 cargo test -p weir-config");
}
