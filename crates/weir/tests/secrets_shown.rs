//! Secrets of resources in everything that shows resources: nobody sees private keys and tokens, a viewer sees no secret
//! at all, and what is sent back as it was shown destroys nothing.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, Authority, Certificate, Gateway, Kind, LIMIT, RawClient, Reload, Start, weir};
use crate::tokens::openssl;

const VIEWER_KEY: &str = "viewer-key-of-the-test";

/// Secrets of plugins, as administrators read them.
const FIELDS: &[&str] = &[
    "s3cret-of-key-auth",
    "s3cret-of-basic-auth",
    "s3cret-of-jwt-auth",
    "s3cret-of-hmac-auth",
    "s3cret-of-csrf",
    "s3cret-of-redis",
    "s3cret-of-sentinels",
    "s3cret-of-http-logger",
    "s3cret-of-openid-connect",
    "s3cret-of-openid-sessions",
    "s3cret-of-clickhouse",
    "s3cret-of-elasticsearch",
    "s3cret-in-a-field-for-elasticsearch",
    "s3cret-in-a-field-for-loki",
    "s3cret-of-splunk",
    "s3cret-of-loggly",
    "s3cret-of-sls",
    "s3cret-of-keycloak",
    "s3cret-of-lago",
    "s3cret-of-kafka",
    "s3cret-of-casdoor",
    "s3cret-of-cas-in-32-characters---",
    "s3cret-name-of-an-encryption-key",
    "s3cret-key-of-tokens--32-bytes--",
    "s3cret-key-of-a-lambda",
    "s3cret-access-key-of-a-lambda",
    "s3cret-secret-key-of-a-lambda",
    "s3cret-key-of-azure",
    "s3cret-token-of-openfunction",
    "s3cret-token-of-openwhisk",
    "s3cret-in-a-field-for-a-spec",
    "s3cret-of-tencent",
    "s3cret-of-a-directory",
    "s3cret-in-a-field-for-a-schema",
    "s3cret-of-rocketmq",
    "s3cret-of-a-cache",
    "s3cret-of-saml-sessions",
    "s3cret-of-saml-before",
];
/// Read by nobody.
const TOKEN: &str = "hvs.t0ken-of-vault";

struct Secrets {
    pair: Certificate,
    /// A private RSA key.
    rsa: String,
    /// Its certificate.
    rsa_cert: String,
}

impl Secrets {
    fn new() -> Self {
        let rsa = openssl(&["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"], b"");
        let cert = openssl(&["req", "-x509", "-key", "/dev/stdin", "-days", "1", "-subj", "/CN=a.test"], &rsa);
        let [rsa, rsa_cert] = [rsa, cert].map(|text| String::from_utf8(text).expect("PEM"));
        Self { pair: Authority::new().certificate(Kind::P256, &["a.test"]), rsa, rsa_cert }
    }

    /// A resource for each place in which a secret may stand.
    fn resources(&self) -> Vec<(&'static str, Value)> {
        let (cert, key) = (&self.pair.cert, &self.pair.key);
        let upstream = json!({ "scheme": "https", "nodes": { "127.0.0.1:1": 1 }, "tls": { "client_cert": cert, "client_key": key } });
        let csrf = json!({ "csrf": { "key": FIELDS[4] } });
        let split = json!({ "rules": [{ "weighted_upstreams": [{ "upstream": upstream }] }] });
        let with_plugins = |plugins: Value| json!({ "plugins": plugins });
        let limit = |own: Value| {
            let mut limit = json!({
                "key": "remote_addr", "policy": "redis", "redis_host": "127.0.0.1", "redis_port": 1,
                "redis_password": FIELDS[5], "sentinel_password": FIELDS[6],
            });
            limit.as_object_mut().expect("a map").extend(own.as_object().expect("a map").clone());
            limit
        };
        let limits = json!({
            "limit-count": limit(json!({ "count": 1, "time_window": 1 })),
            "graphql-limit-count": limit(json!({ "count": 1, "time_window": 1 })),
            "limit-req": limit(json!({ "rate": 1, "burst": 0 })),
            "limit-conn": limit(json!({ "conn": 1, "burst": 0, "default_conn_delay": 1 })),
            "workflow": { "rules": [{ "actions": [["limit-count", limit(json!({ "count": 1, "time_window": 1 }))]] }] },
            "http-logger": { "uri": "http://127.0.0.1:1/", "auth_header": FIELDS[7] },
        });
        let identity = json!({
            "client_id": "a", "client_secret": FIELDS[8], "discovery": "http://127.0.0.1:1/",
            "session": { "secret": FIELDS[9] }, "client_rsa_private_key": self.rsa,
        });
        let collectors = json!({
            "clickhouse-logger": { "endpoint_addr": "http://127.0.0.1:1", "user": "u", "password": FIELDS[10], "database": "d",
                                   "logtable": "t" },
            "elasticsearch-logger": { "endpoint_addr": "http://127.0.0.1:1", "field": { "index": "i" },
                                      "auth": { "username": "u", "password": FIELDS[11] }, "headers": { "X-Key": FIELDS[12] } },
            "loki-logger": { "endpoint_addrs": ["http://127.0.0.1:1"], "headers": { "X-Key": FIELDS[13] } },
            "splunk-hec-logging": { "endpoint": { "uri": "http://127.0.0.1:1", "token": FIELDS[14] } },
            "loggly": { "customer_token": FIELDS[15] },
            "sls-logger": { "host": "127.0.0.1", "port": 1, "project": "p", "logstore": "l", "access_key_id": "i",
                            "access_key_secret": FIELDS[16] },
            "tencent-cloud-cls": { "cls_host": "127.0.0.1:1", "cls_topic": "t", "secret_id": "i", "secret_key": FIELDS[31] },
            "google-cloud-logging": { "auth_config": { "client_email": "a", "project_id": "p", "private_key": self.rsa } },
            "authz-keycloak": { "token_endpoint": "http://127.0.0.1:1", "client_id": "c", "client_secret": FIELDS[17] },
            "lago": { "endpoint_addrs": ["http://127.0.0.1:1"], "token": FIELDS[18], "event_transaction_id": "a",
                      "event_subscription_id": "s", "event_code": "c" },
            "kafka-logger": { "brokers": [{ "host": "127.0.0.1", "port": 1,
                                            "sasl_config": { "user": "u", "password": FIELDS[19] } }], "kafka_topic": "t" },
            "rocketmq-logger": { "nameserver_list": ["127.0.0.1:1"], "topic": "t", "access_key": "a", "secret_key": FIELDS[34] },
            "proxy-cache": { "cache_strategy": "redis", "redis": { "host": "127.0.0.1", "port": 1, "password": FIELDS[35] } },
            "saml-auth": { "sp_issuer": "s", "idp_uri": "http://127.0.0.1:1", "idp_cert": self.rsa_cert, "login_callback_uri": "http://a.test/acs",
                           "logout_uri": "/out", "logout_callback_uri": "/sls", "logout_redirect_uri": "/", "sp_cert": self.rsa_cert,
                           "sp_private_key": self.rsa, "secret": FIELDS[36], "secret_fallbacks": [FIELDS[37]] },
            "authz-casdoor": { "endpoint_addr": "http://127.0.0.1:1", "client_id": "c", "client_secret": FIELDS[20],
                               "callback_url": "http://a.test/back" },
            "ldap-auth-advanced": { "ldap_uri": "127.0.0.1:1", "base_dn": "dc=a", "bind_dn": "cn=a", "ldap_password": FIELDS[32] },
            "cas-auth": { "idp_uri": "http://127.0.0.1:1", "cas_callback_uri": "http://a.test/back", "logout_uri": "/out",
                          "cookie": { "secret": FIELDS[21] } },
            "aws-lambda": { "function_uri": "http://127.0.0.1:1", "authorization": { "apikey": FIELDS[24],
                            "iam": { "accesskey": FIELDS[25], "secretkey": FIELDS[26] } } },
            "azure-functions": { "function_uri": "http://127.0.0.1:1", "authorization": { "apikey": FIELDS[27] } },
            "openfunction": { "function_uri": "http://127.0.0.1:1", "authorization": { "service_token": FIELDS[28] } },
            "oas-validator": { "spec_url": "http://127.0.0.1:1", "spec_url_request_headers": { "X-Key": FIELDS[30] } },
            "graphql-limit-count": { "count": 1, "time_window": 1, "cost_strategy": "complexity",
                                     "introspection_headers": { "X-Key": FIELDS[33] } },
            "openwhisk": { "api_host": "http://127.0.0.1:1", "service_token": FIELDS[29], "namespace": "n", "action": "a" },
        });
        vec![
            ("ssls/1", json!({ "sni": "a.test", "cert": cert, "key": key, "certs": [cert], "keys": [key] })),
            (
                "plugin_metadata/error-log-logger",
                json!({ "clickhouse": { "endpoint_addr": "http://127.0.0.1:1", "user": "u", "password": TOKEN,
                                        "database": "d", "logtable": "t" } }),
            ),
            ("secrets/vault/1", json!({ "uri": "http://127.0.0.1:1", "prefix": "kv", "token": TOKEN })),
            ("upstreams/1", upstream.clone()),
            ("services/1", json!({ "upstream": upstream, "plugins": csrf })),
            ("routes/1", json!({ "uri": "/a", "upstream": upstream, "plugins": csrf })),
            ("routes/2", json!({ "uri": "/b", "upstream_id": "1", "plugins": { "traffic-split": split } })),
            ("routes/3", json!({ "uri": "/c", "upstream_id": "1", "plugins": limits })),
            ("routes/4", json!({ "uri": "/d", "upstream_id": "1", "plugins": { "openid-connect": identity } })),
            ("routes/5", json!({ "uri": "/e", "upstream_id": "1", "plugins": collectors })),
            ("plugin_configs/1", with_plugins(csrf.clone())),
            ("consumer_groups/1", with_plugins(csrf.clone())),
            ("global_rules/1", with_plugins(csrf)),
            (
                "consumers/jack",
                json!({ "username": "jack", "plugins": {
                    "key-auth": { "key": FIELDS[0] },
                    "basic-auth": { "username": "jack", "password": FIELDS[1] },
                } }),
            ),
            (
                "consumers/jack/credentials/1",
                with_plugins(json!({ "jwt-auth": { "key": "jacks", "secret": FIELDS[2], "private_key": key } })),
            ),
            (
                "consumers/jack/credentials/2",
                with_plugins(json!({ "hmac-auth": { "key_id": "jacks", "secret_key": FIELDS[3] } })),
            ),
            (
                "consumers/jack/credentials/3",
                with_plugins(json!({ "jwe-decrypt": { "key": FIELDS[22], "secret": FIELDS[23] } })),
            ),
        ]
    }

    /// Checks that a text contains no secret key, and with `fields` no secret of a plugin.
    fn assert_hidden(&self, what: &str, text: &str, fields: bool) {
        // Of a private key any line is too much.
        let [line, rsa] = [&self.pair.key, &self.rsa].map(|key| key.lines().nth(2).expect("a private key"));
        for secret in [line, rsa, TOKEN].iter().chain(FIELDS.iter().filter(|_| fields)) {
            assert!(!text.contains(secret), "{what} shows {secret}:\n{text}");
        }
    }
}

fn ask(gateway: &Gateway, key: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let answer = RawClient::connect(gateway.admin.expect("an Admin API")).request(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-KEY: {key}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    (answer.status, answer.text())
}

fn start() -> Gateway {
    Start::stored().settings("usage: { enabled: true }").variable("WEIR_VIEWER_KEY", VIEWER_KEY).control().start()
}

/// The first event of a stream, with all changes since the beginning.
fn events(gateway: &Gateway, key: &str) -> String {
    let mut stream = TcpStream::connect(gateway.admin.expect("an Admin API")).expect("connect");
    stream.set_read_timeout(Some(LIMIT)).expect("set a timeout");
    write!(stream, "GET /weir/v1/events?after=0 HTTP/1.1\r\nHost: a\r\nX-API-KEY: {key}\r\n\r\n").expect("send");
    let lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let mut told = String::new();
    for line in lines {
        told.push_str(&line);
        if told.contains("consumers/jack/credentials/2") && line.starts_with("data:") {
            break;
        }
    }
    told
}

#[test]
fn nothing_that_shows_resources_shows_their_keys_nor_any_secret_to_viewers() {
    let secrets = Secrets::new();
    let gateway = start();
    for (path, value) in secrets.resources() {
        let (status, answer) = ask(&gateway, ADMIN_KEY, "PUT", &format!("/apisix/admin/{path}"), &value.to_string());
        assert_eq!(status, 201, "{path}: {answer}");
        secrets.assert_hidden(&format!("the answer to PUT {path}"), &answer, true);
        let key = path.replace("consumers/jack/credentials", "credentials/jack/credentials");
        let key = key.replace("credentials/jack/credentials", "consumers/jack/credentials");
        let (status, answer) =
            ask(&gateway, ADMIN_KEY, "PUT", &format!("/weir/v1/resources/{key}"), &value.to_string());
        assert_eq!(status, 200, "{key}: {answer}");
        secrets.assert_hidden(&format!("the answer to PUT of {key} by /weir/v1"), &answer, true);
    }
    let group = json!({ "desc": "patched" }).to_string();
    for path in ["routes/1", "upstreams/1", "services/1", "ssls/1", "secrets/vault/1", "plugin_configs/1"] {
        let (status, answer) = ask(&gateway, ADMIN_KEY, "PATCH", &format!("/apisix/admin/{path}"), &group);
        if status == 200 {
            secrets.assert_hidden(&format!("the answer to PATCH {path}"), &answer, true);
        } else {
            assert!(path.starts_with("secrets") || path.starts_with("ssls"), "{path}: {status} {answer}");
        }
    }
    // Every path that can be read, by the API's own description.
    let (_, document) = ask(&gateway, ADMIN_KEY, "GET", "/weir/v1/openapi.json", "");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let mut paths = BTreeSet::new();
    // Streams do not end; that of changes is read below, and figures and samples of requests hold no resource. The pages of
    // a browser and of a developer are for senders of another kind.
    let is_elsewhere = |path: &str| {
        ["/weir/v1/events", "/weir/v1/live", "/weir/v1/requests"].contains(&path)
            || path.starts_with("/weir/v1/session")
            || path == "/weir/v1/self"
            || path.starts_with("/weir/v1/self/")
            // Applications of 3scale have a test beside those of their backend.
            || path == "/weir/v1/threescale/applications"
    };
    for (path, _) in
        document["paths"].as_object().expect("paths").iter().filter(|(_, methods)| methods.get("get").is_some())
    {
        match path.split_once('{') {
            _ if is_elsewhere(path) => {}
            None if path == "/weir/v1/diff" => drop(paths.insert("/weir/v1/diff?from=0".to_owned())),
            None if path == "/weir/v1/references" => {
                paths.insert("/weir/v1/references?key=upstreams/1".to_owned());
            }
            None if path == "/weir/v1/quotas" => drop(paths.insert("/weir/v1/quotas?consumer=jack".to_owned())),
            None if path == "/weir/v1/explain" => {
                paths.insert("/weir/v1/explain?request=GET%20http://a/a".to_owned());
            }
            None => drop(paths.insert(path.clone())),
            Some((before, _)) => {
                let all = secrets.resources();
                let below = all.iter().filter(|(key, _)| match before.strip_prefix("/apisix/admin/") {
                    Some(kind) => key.starts_with(kind),
                    None => before == "/weir/v1/resources/",
                });
                paths.extend(below.map(|(key, _)| match before {
                    "/weir/v1/resources/" => format!("{before}{key}"),
                    _ => format!("/apisix/admin/{key}"),
                }));
            }
        }
    }
    for needed in ["/apisix/admin/routes", "/apisix/admin/consumers/jack/credentials/1", "/apisix/admin/configs"] {
        assert!(paths.contains(needed), "{needed} is not among {paths:?}");
    }
    paths.insert("/apisix/admin/consumers/jack/credentials".to_owned());
    for path in &paths {
        for (key, fields) in [(VIEWER_KEY, true), (ADMIN_KEY, false)] {
            let (status, answer) = ask(&gateway, key, "GET", path, "");
            assert!(
                status == 200 || path.contains("schema") || path.ends_with("/plugins") || path.contains("plugins/"),
                "{path}: {status} {answer}"
            );
            secrets.assert_hidden(&format!("GET {path} with {key}"), &answer, fields);
        }
    }
    // An administrator reads what plugins are configured with, as with APISIX: tools compare it with what they have.
    let (_, consumer) = ask(&gateway, ADMIN_KEY, "GET", "/apisix/admin/consumers/jack", "");
    assert!(consumer.contains(FIELDS[0]) && consumer.contains(FIELDS[1]), "{consumer}");
    for key in [VIEWER_KEY, ADMIN_KEY] {
        secrets.assert_hidden("the stream of events", &events(&gateway, key), true);
    }
    for path in
        ["/v1/routes", "/v1/services", "/v1/upstreams", "/v1/plugin_metadatas", "/v1/route/1", "/v1/healthcheck"]
    {
        let answer = RawClient::connect(gateway.control.expect("a control API")).get(path);
        secrets.assert_hidden(path, &answer.text(), true);
    }
    secrets.assert_hidden("the log", &gateway.stderr(), true);
}

/// Every field that a plugin declares secret has a resource above.
#[test]
fn every_secret_of_every_plugin_is_among_them() {
    let all = Secrets::new().resources();
    fn leads_somewhere(value: &Value, path: &str) -> bool {
        let (step, rest) = path.split_once('.').unwrap_or((path, ""));
        match step {
            "" => true,
            "*" => value.as_array().is_some_and(|all| all.iter().any(|value| leads_somewhere(value, rest))),
            name => value.get(name).is_some_and(|value| leads_somewhere(value, rest)),
        }
    }
    let has = |plugin: &str, path: &str| {
        let confs = all.iter().filter_map(|(_, value)| value.get("plugins")?.get(plugin));
        { confs }.any(|conf| leads_somewhere(conf, path))
    };
    for definition in weir_plugins::registry::definitions() {
        for field in definition.encrypted().iter().chain(definition.private_keys()) {
            assert!(has(definition.name(), field), "no resource with {field} of {}", definition.name());
        }
    }
}

#[test]
fn what_was_read_may_be_sent_back() {
    let secrets = Secrets::new();
    let gateway = start();
    for (path, value) in secrets.resources() {
        assert_eq!(ask(&gateway, ADMIN_KEY, "PUT", &format!("/apisix/admin/{path}"), &value.to_string()).0, 201);
    }
    let stored = |gateway: &Gateway| {
        let folder = gateway.file("data").display().to_string();
        let (code, out, stderr) = weir(&["store", "export", "--data-dir", &folder]);
        assert_eq!(code, 0, "{stderr}");
        let times = |line: &&str| !line.contains("update_time");
        // Fields come in any order.
        let mut lines: Vec<String> = out.lines().filter(times).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let before = stored(&gateway);
    let whole = before.join("\n");
    assert!(FIELDS.iter().chain(&[TOKEN]).all(|secret| whole.contains(secret)), "an export holds them: {whole}");
    for (path, value) in secrets.resources() {
        let path = format!("/apisix/admin/{path}");
        let (_, written) = ask(&gateway, ADMIN_KEY, "PUT", &path, &value.to_string());
        let forms = [
            ("an administrator has read", ask(&gateway, ADMIN_KEY, "GET", &path, "").1),
            ("a viewer has read", ask(&gateway, VIEWER_KEY, "GET", &path, "").1),
            ("was answered to a change", written),
        ];
        for (form, shown) in forms {
            let mut shown = serde_json::from_str::<Value>(&shown).expect("JSON")["value"].clone();
            for time in ["create_time", "update_time"] {
                shown.as_object_mut().expect("an object").remove(time);
            }
            let (status, answer) = ask(&gateway, ADMIN_KEY, "PUT", &path, &shown.to_string());
            assert_eq!(status, 200, "{path}, as {form}: {shown}\n{answer}");
            assert_eq!(stored(&gateway), before, "{path}, as {form}");
        }
    }
    // In a new place there is nothing that could be kept.
    let masked = json!({ "plugins": { "key-auth": { "key": "***" } }, "username": "jill" }).to_string();
    for (method, path) in [("PUT", "/apisix/admin/consumers/jill"), ("PUT", "/weir/v1/resources/consumers/jill")] {
        let (status, answer) = ask(&gateway, ADMIN_KEY, method, path, &masked);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains("plugins.key-auth.key: *** is shown in the place of a secret"), "{answer}");
    }
    // A new secret takes the place of the old one, beside one that is kept.
    let plugins = json!({ "key-auth": { "key": "new" }, "basic-auth": { "username": "jack", "password": "***" } });
    let changed = json!({ "username": "jack", "plugins": plugins }).to_string();
    assert_eq!(ask(&gateway, ADMIN_KEY, "PUT", "/apisix/admin/consumers/jack", &changed).0, 200);
    let whole = stored(&gateway).join("\n");
    assert!(!whole.contains(FIELDS[0]) && whole.contains(FIELDS[1]), "{whole}");
}

#[test]
fn findings_quote_no_secret() {
    let gateway = Start::stored().start();
    let cases = [
        ("consumers/jack", json!({ "username": "jack", "plugins": { "key-auth": { "key": 8_675_309 } } })),
        (
            "consumers/jack",
            json!({ "username": "jack", "plugins": { "basic-auth": { "username": "a:b", "password": 8_675_309 } } }),
        ),
        (
            "consumers/jack",
            json!({ "username": "jack", "plugins": { "jwt-auth": { "key": "k", "secret": 8_675_309 } } }),
        ),
        ("secrets/vault/1", json!({ "uri": "http://127.0.0.1:1", "prefix": "kv", "token": 8_675_309 })),
        ("upstreams/1", json!({ "nodes": {}, "tls": { "client_cert": "c", "client_key": 8_675_309 } })),
        ("ssls/1", json!({ "sni": "a", "cert": "c", "key": 8_675_309 })),
    ];
    for (path, value) in cases {
        for path in [format!("/apisix/admin/{path}"), format!("/weir/v1/resources/{path}")] {
            let (status, answer) = ask(&gateway, ADMIN_KEY, "PUT", &path, &value.to_string());
            assert_eq!(status, 400, "{answer}");
            assert!(!answer.contains("8675309"), "{path}: {answer}");
        }
    }
    let gateway = Start::new("routes: []").start();
    let rules = "consumers:\n  - {username: jack, plugins: {key-auth: {key: 8675309}}}\n\
                 ssls:\n  - {sni: a, cert: c, key: 8675309}\n\
                 secrets:\n  - {id: vault/1, uri: 'http://127.0.0.1:1', prefix: kv, token: 8675309}\n\
                 upstreams:\n  - {nodes: {}, tls: {client_cert: c, client_key: 8675309}}\n";
    assert_eq!(gateway.reload(rules), Reload::Rejected);
    let log = gateway.stderr();
    assert!(log.contains("plugins.key-auth.key") && !log.contains("8675309"), "{log}");
}
