//! Kong's Admin API over the embedded store: what clients such as decK ask, and that changes are live at once.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Map, Value, json};

use crate::harness::{ADMIN_KEY, Gateway, LIMIT, Origin, RawClient, Response, Start, each, get, wait_until, weir};

pub(crate) fn start() -> Gateway {
    Start::stored().argument("--family").argument("kong").start()
}

/// Sends a request to the Admin API, with the token of an administrator.
pub(crate) fn send(gateway: &Gateway, method: &str, path: &str, body: &str) -> Response {
    let kind = if body.starts_with('{') { "application/json" } else { "application/x-www-form-urlencoded" };
    let mut client = RawClient::connect(gateway.admin.expect("an Admin API"));
    let length = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nKong-Admin-Token: {ADMIN_KEY}\r\nConnection: close\r\n\
         Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    client.response_to(method)
}

#[expect(clippy::needless_pass_by_value, reason = "bodies are written where they are passed")]
pub(crate) fn ask(gateway: &Gateway, method: &str, path: &str, body: impl ToString) -> (u16, Value) {
    let response = send(gateway, method, path, &body.to_string());
    let body = if response.body.is_empty() { Value::Null } else { response.json() };
    (response.status, body)
}

#[expect(clippy::needless_pass_by_value, reason = "bodies are written where they are passed")]
pub(crate) fn must(gateway: &Gateway, method: &str, path: &str, body: impl ToString) -> Value {
    let body = body.to_string();
    let (status, answer) = ask(gateway, method, path, &body);
    assert!(status < 300, "{method} {path} {body}: {status} {answer}");
    answer
}

#[test]
fn changes_of_entities_are_live_when_they_are_answered() {
    let (gateway, origin) = (start(), Origin::echo());
    let node = origin.node();
    let status = |path: &str| gateway.client().request(get(path)).status;
    assert_eq!(status("/x"), 404);
    let service = must(&gateway, "POST", "/services", format!("name=s1&url=http://{node}/base"));
    assert_eq!(
        (&service["host"], &service["path"], &service["retries"]),
        (&"127.0.0.1".into(), &"/base".into(), &5.into())
    );
    assert_eq!((&service["tls_verify"], &service["enabled"]), (&Value::Null, &true.into()));
    let route = must(&gateway, "POST", "/services/s1/routes", json!({ "name": "r1", "paths": ["/x"] }));
    assert_eq!((&route["service"]["id"], &route["protocols"]), (&service["id"], &json!(["http", "https"])));
    assert_eq!(status("/x"), 200);
    let plugin = must(&gateway, "POST", "/routes/r1/plugins", "name=key-auth&config.hide_credentials=true");
    assert_eq!(
        (&plugin["config"]["hide_credentials"], &plugin["config"]["key_names"]),
        (&true.into(), &json!(["apikey"]))
    );
    assert_eq!(status("/x"), 401);
    must(&gateway, "PUT", "/consumers/jo", json!({ "custom_id": "7" }));
    let credential = must(&gateway, "POST", "/consumers/jo/key-auth", "key=k1");
    assert_eq!(status("/x?apikey=k1"), 200);
    let made = must(&gateway, "POST", "/consumers/jo/key-auth", "");
    assert_eq!(made["key"].as_str().map(str::len), Some(32), "{made}");
    assert_eq!(must(&gateway, "GET", "/routes/r1/service", "")["name"], "s1");
    assert_eq!(must(&gateway, "GET", "/consumers?custom_id=7", "")["data"][0]["username"], "jo");
    let renamed = must(&gateway, "PATCH", "/routes/r1", json!({ "paths": ["/y"] }));
    assert_eq!((&renamed["id"], &renamed["created_at"]), (&route["id"], &route["created_at"]));
    assert_eq!((status("/x?apikey=k1"), status("/y?apikey=k1")), (404, 200));
    let path = format!("/consumers/jo/key-auth/{}", credential["id"].as_str().unwrap_or_default());
    assert_eq!(send(&gateway, "DELETE", &path, "").status, 204);
    assert_eq!(send(&gateway, "DELETE", &path, "").status, 204, "what is not there is gone");
    assert_eq!(status("/y?apikey=k1"), 401);
    // Children of an entity are deleted with it; a reference to it keeps it.
    assert_eq!(ask(&gateway, "DELETE", "/services/s1", "").1["fields"], json!({ "@referenced_by": "routes" }));
    assert_eq!(send(&gateway, "DELETE", "/routes/r1", "").status, 204);
    assert_eq!(must(&gateway, "GET", "/plugins", "")["data"], json!([]));
    assert_eq!(send(&gateway, "DELETE", "/services/s1", "").status, 204);
    assert_eq!(status("/y?apikey=k1"), 404);
}

#[test]
fn faults_are_told_in_kongs_words_and_change_nothing() {
    let gateway = start();
    must(&gateway, "POST", "/services", json!({ "name": "s1", "host": "a" }));
    must(&gateway, "POST", "/consumers", json!({ "username": "jo" }));
    must(&gateway, "POST", "/plugins", json!({ "name": "correlation-id" }));
    let absent = "00000000-0000-4000-8000-000000000000";
    let (name, key, ip) =
        (r#"{"name":"s2"}"#, json!({ "name": "key-auth", "config": { "x": 1 } }).to_string(), "ip-restriction");
    let foreign = json!({ "paths": ["/a"], "service": { "id": absent } }).to_string();
    let cases: [(&str, &str, &str, u16, &str); 28] = [
        ("POST", "/services", name, 400, "schema violation (host: required field missing)"),
        ("POST", "/services", r#"{"name":"s1","host":"b"}"#, 409, "UNIQUE violation detected on '{name=\"s1\"}'"),
        (
            "POST",
            "/services",
            r#"{"host":1,"port":"x"}"#,
            400,
            "2 schema violations (host: expected a string; port: expected an integer)",
        ),
        (
            "POST",
            "/services",
            r#"{"host":"a","port":70000}"#,
            400,
            "schema violation (port: value should be between 0 and 65535)",
        ),
        ("POST", "/services", r#"{"host":"a","nope":1}"#, 400, "schema violation (nope: unknown field)"),
        ("POST", "/services", r#"{"host":"a","path":"x"}"#, 400, "schema violation (path: should start with: /)"),
        ("POST", "/services", "{", 400, "Cannot parse JSON body"),
        (
            "POST",
            "/routes",
            r#"{"paths":["a"]}"#,
            400,
            "schema violation (paths.1: should start with: / (fixed path) or ~/ (regex path))",
        ),
        (
            "POST",
            "/routes",
            &foreign,
            400,
            "the foreign key '{id=\"00000000-0000-4000-8000-000000000000\"}' does not reference an existing 'services' entity.",
        ),
        (
            "POST",
            "/plugins",
            r#"{"name":"nope"}"#,
            400,
            "schema violation (name: plugin 'nope' not enabled; add it to the 'plugins' configuration property)",
        ),
        ("POST", "/plugins", &key, 400, "schema violation (config.x: unknown field)"),
        (
            "POST",
            "/plugins",
            r#"{"name":"correlation-id"}"#,
            409,
            "UNIQUE violation detected on '{consumer=null,name=\"correlation-id\",route=null,service=null}'",
        ),
        (
            "POST",
            "/consumers",
            "{}",
            400,
            "schema violation (at least one of these fields must be non-empty: 'custom_id', 'username')",
        ),
        ("POST", "/consumers/jo/basic-auth", "username=a", 400, "schema violation (password: required field missing)"),
        ("POST", "/consumers/nobody/key-auth", "key=a", 404, "Not found"),
        ("PATCH", "/services/none", "host=a", 404, "Not found"),
        ("GET", "/services/none", "", 404, "Not found"),
        ("GET", "/nothing", "", 404, "Not found"),
        ("GET", "/targets", "", 404, "Not found"),
        ("PUT", "/services", "host=a", 405, "Method not allowed"),
        ("POST", "/status", "", 405, "Method not allowed"),
        ("GET", "/services?size=0", "", 400, "size must be an integer between 1 and 1000"),
        ("GET", "/services?offset=%25", "", 400, "'%' is not a valid offset: bad base64 encoding"),
        ("GET", "/services?tags=a,b/c", "", 400, "invalid option: tags: invalid filter syntax"),
        ("GET", "/schemas/plugins/zz", "", 404, "No plugin named 'zz'"),
        ("POST", "/schemas/services/validate", name, 400, "schema violation (host: required field missing)"),
        ("POST", "/schemas/services/validate", r#"{"name":"s1","host":"a"}"#, 200, "schema validation successful"),
        ("POST", "/schemas/routes/validate", &foreign, 200, "schema validation successful"),
    ];
    each(
        &cases,
        |(method, path, body, ..)| format!("{method} {path} {body}"),
        |&(method, path, body, status, expected)| {
            let (found, answer) = ask(&gateway, method, path, body);
            assert_eq!((found, answer["message"].as_str()), (status, Some(expected)), "{answer}");
        },
    );
    // A fault that depends on more than the schema.
    let (status, answer) = ask(&gateway, "POST", "/plugins", json!({ "name": ip, "config": {} }));
    assert_eq!((status, &answer["code"]), (400, &2.into()), "{answer}");
    let count = |path: &str| must(&gateway, "GET", path, "")["data"].as_array().map(Vec::len);
    assert_eq!(["/services", "/routes", "/plugins", "/consumers"].map(count), [Some(1), Some(0), Some(1), Some(1)]);
}

#[test]
fn collections_come_in_pages_and_by_tags() {
    let gateway = start();
    for number in 0..7 {
        let tags = if number % 2 == 0 { json!(["even", "all"]) } else { json!(["all"]) };
        must(&gateway, "POST", "/services", json!({ "name": format!("s{number}"), "host": "a", "tags": tags }));
    }
    let (mut path, mut seen, mut pages) = ("/services?size=3&tags=all".to_owned(), Vec::new(), 0);
    loop {
        let page = must(&gateway, "GET", &path, "");
        seen.extend(page["data"].as_array().expect("data").iter().map(|s| s["id"].to_string()));
        pages += 1;
        assert_eq!(page.get("offset").is_some(), page["next"].is_string(), "{page}");
        let Some(next) = page["next"].as_str() else { break };
        path = next.to_owned();
    }
    assert!(pages == 3 && seen.len() == 7 && seen.is_sorted(), "{seen:?}");
    let count = |path: &str| must(&gateway, "GET", path, "")["data"].as_array().map(Vec::len);
    let paths =
        ["/services?tags=even,all", "/services?tags=even/none", "/services?tags=none", "/tags/even", "/tags?size=1000"];
    assert_eq!(paths.map(count), [Some(4), Some(4), Some(0), Some(4), Some(11)]);
    // The search of the dashboard, over names and places.
    let searches =
        ["S3", "even&tags=all", "s&size=3", "127.0.0.1", "nobody"].map(|words| format!("/services?search={words}"));
    assert_eq!(searches.each_ref().map(|path| count(path)), [Some(1), Some(4), Some(3), Some(0), Some(0)]);
    let next = must(&gateway, "GET", "/services?search=s&size=3", "")["next"].as_str().expect("a page").to_owned();
    assert!(next.contains("search=s"), "{next}");
}

#[test]
fn entities_survive_a_restart_with_their_secrets_sealed() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |family: &[&str]| {
        let start = Start::stored().data_dir(folder.path());
        family.iter().fold(start, |start, word| start.argument(word)).start()
    };
    let gateway = start(&["--family", "kong"]);
    must(&gateway, "POST", "/services", "name=s1&host=a");
    must(
        &gateway,
        "POST",
        "/routes",
        json!({ "name": "r1", "paths": ["/x"], "plugins": null, "service": { "name": "s1" } })
            .to_string()
            .replace("\"plugins\":null,", ""),
    );
    must(&gateway, "POST", "/plugins", "name=key-auth");
    must(&gateway, "POST", "/consumers", "username=jo");
    must(&gateway, "POST", "/consumers/jo/key-auth", "key=distinctive-key");
    must(&gateway, "POST", "/consumers/jo/basic-auth", "username=jo&password=distinctive-password");
    drop(gateway);
    for file in fs::read_dir(folder.path()).expect("a folder").flatten() {
        let bytes = fs::read(file.path()).unwrap_or_default();
        assert!(!bytes.windows(11).any(|part| part == b"distinctive"), "{:?}", file.path());
    }
    // The store knows its family.
    let gateway = start(&[]);
    assert_eq!(must(&gateway, "GET", "/key-auths", "")["data"][0]["key"], "distinctive-key");
    assert_eq!(gateway.client().request(get("/x")).status, 401);
}

#[test]
fn a_credential_ends_with_its_time_to_live() {
    let gateway = start();
    must(&gateway, "POST", "/consumers", "username=jo");
    must(&gateway, "POST", "/routes", json!({ "paths": ["/x"] }));
    must(&gateway, "POST", "/plugins", "name=key-auth");
    must(&gateway, "POST", "/consumers/jo/key-auth", "key=k1&ttl=1");
    wait_until("the end of the credential", LIMIT, || {
        let listed = must(&gateway, "GET", "/key-auths", "")["data"] == json!([]);
        (listed && gateway.client().request(get("/x?apikey=k1")).status == 401).then_some(())
    });
}

#[test]
fn only_who_has_the_token_may_ask() {
    let gateway = start();
    let ask = |fields: &str| {
        let mut client = RawClient::connect(gateway.admin.expect("an Admin API"));
        client.request(format!("GET /services HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Connection: close\r\n\r\n")).status
    };
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Kong-Admin-Token: wrong\r\n"), 401);
    assert_eq!(ask(&format!("Kong-Admin-Token: {ADMIN_KEY}\r\n")), 200);
    let open = Start::stored().argument("--family").argument("kong").variable("WEIR_ADMIN_KEY", "").start();
    let status = |fields: &str| {
        let mut client = RawClient::connect(open.admin.expect("an Admin API"));
        client.request(format!("GET /services HTTP/1.1\r\n{fields}Connection: close\r\n\r\n")).status
    };
    assert_eq!(status("Host: 127.0.0.1\r\n"), 200);
    assert_eq!(status("Host: 127.0.0.1\r\nOrigin: http://evil.test\r\n"), 403, "pages of others may not ask");
}

/// Puts the defaults of a schema into a configuration, as decK does before it compares.
fn fill(fields: &Value, config: &mut Map<String, Value>) {
    for (name, field) in fields.as_array().into_iter().flatten().filter_map(Value::as_object).flatten() {
        let given = config.get(name).filter(|value| !value.is_null());
        if field["type"] == "record" && (given.is_some() || field["required"] == true) {
            let mut inner = given.and_then(Value::as_object).cloned().unwrap_or_default();
            fill(&field["fields"], &mut inner);
            config.insert(name.clone(), inner.into());
        } else if given.is_none() {
            config.insert(name.clone(), field.get("default").cloned().unwrap_or_default());
        }
    }
}

/// Entities that decK would have stored: kind, path to put each at, and the entity.
fn wanted(node: &str) -> Vec<(&'static str, String, Value)> {
    let id = |kind: u32, number: u32| format!("00000000-0000-4000-8000-{kind:04}{number:08}");
    let mut all = Vec::new();
    for number in 0..20 {
        let (service, route, consumer) = (id(1, number), id(2, number), id(3, number));
        let (host, port) = node.split_once(':').expect("a port");
        let port: u16 = port.parse().expect("a port");
        all.push((
            "consumers",
            format!("/consumers/{consumer}"),
            json!({ "id": consumer, "username": format!("c{number}") }),
        ));
        all.push((
            "services",
            format!("/services/{service}"),
            json!({ "id": service, "name": format!("s{number}"), "host": host, "port": port }),
        ));
        let key = id(4, number);
        let body = json!({ "id": key, "key": format!("k{number}"), "consumer": { "id": consumer } });
        all.push(("key-auths", format!("/consumers/{consumer}/key-auth/{key}"), body));
        let body = json!({ "id": route, "name": format!("r{number}"), "paths": [format!("/r{number}")], "service": { "id": service } });
        all.push(("routes", format!("/routes/{route}"), body));
        let plugin = id(5, number);
        let (name, config) = match number % 4 {
            0 => ("key-auth", json!({})),
            1 => ("rate-limiting", json!({ "minute": 5 })),
            2 => ("cors", json!({ "origins": ["http://a.test"] })),
            _ => ("request-transformer", json!({ "add": { "headers": ["x:1"] } })),
        };
        all.push((
            "plugins",
            format!("/plugins/{plugin}"),
            json!({ "id": plugin, "name": name, "config": config, "route": { "id": route } }),
        ));
    }
    let upstream = id(6, 0);
    all.push(("upstreams", format!("/upstreams/{upstream}"), json!({ "id": upstream, "name": "pool" })));
    let target = id(7, 0);
    all.push((
        "targets",
        format!("/upstreams/{upstream}/targets/{target}"),
        json!({ "id": target, "target": node, "upstream": { "id": upstream } }),
    ));
    all
}

/// The order in which decK makes entities; it deletes them backwards.
const LEVELS: [&[&str]; 4] =
    [&["consumers"], &["services", "upstreams", "key-auths"], &["routes", "targets"], &["plugins"]];

/// The entities that differ from what is stored, compared as decK does: with the defaults of the schemas.
fn differing(gateway: &Gateway, wanted: &[(&'static str, String, Value)]) -> Vec<String> {
    let schema = |name: &str| must(gateway, "GET", &format!("/schemas/{name}"), "")["fields"].clone();
    let mut found = Vec::new();
    for (kind, path, entity) in wanted {
        let (_, stored) = ask(gateway, "GET", path, "");
        let mut entity = entity.as_object().cloned().expect("a record");
        let name = if *kind == "key-auths" { "keyauth_credentials" } else { kind };
        if *kind == "plugins" {
            let all = schema(&format!("plugins/{}", entity["name"].as_str().unwrap_or_default()));
            let config = all.as_array().into_iter().flatten().find_map(|field| field.get("config"));
            fill(&config.expect("a config")["fields"], entity["config"].as_object_mut().expect("a record"));
        }
        let config = entity.remove("config");
        fill(&schema(name), &mut entity);
        entity.extend(config.map(|config| ("config".to_owned(), config)));
        let mut stored = stored.as_object().cloned().unwrap_or_default();
        for time in ["created_at", "updated_at"] {
            entity.remove(time);
            stored.remove(time);
        }
        if Value::from(entity.clone()) != Value::from(stored.clone()) {
            found.push(format!("{path}: {} is {}", Value::from(entity), Value::from(stored)));
        }
    }
    found
}

#[test]
fn the_calls_of_deck_leave_no_difference() {
    let (gateway, origin) = (start(), Origin::echo());
    let node = must(&gateway, "GET", "/", "");
    assert_eq!((&node["version"], &node["edition"]), (&"3.9.3".into(), &"community".into()));
    // Lists that a dump reads; kinds that open source lacks may be missing.
    for path in
        ["/services", "/routes", "/plugins", "/consumers", "/certificates", "/snis", "/upstreams", "/ca_certificates"]
    {
        assert_eq!(must(&gateway, "GET", &format!("{path}?size=1000"), "")["data"], json!([]), "{path}");
    }
    for path in ["/consumer_groups", "/keys", "/key-sets", "/partials", "/custom-plugins"] {
        assert_eq!(send(&gateway, "GET", path, "").status, 404, "{path}");
    }
    let mut all = wanted(&origin.node());
    for level in LEVELS {
        let of_level: Vec<_> = all.iter().filter(|(kind, ..)| level.contains(kind)).collect();
        let gateway = &gateway;
        thread::scope(|scope| {
            for part in of_level.chunks(of_level.len().div_ceil(10)) {
                scope.spawn(move || part.iter().for_each(|(_, path, entity)| drop(must(gateway, "PUT", path, entity))));
            }
        });
    }
    assert_eq!(differing(&gateway, &all), [""; 0]);
    assert_eq!(gateway.client().request(get("/r0")).status, 401);
    assert_eq!(gateway.client().request(get("/r0?apikey=k3")).status, 200);
    all[3].2["paths"] = json!(["/other"]);
    assert_eq!(differing(&gateway, &all).len(), 1);
    for level in LEVELS.iter().rev() {
        for (_, path, _) in all.iter().filter(|(kind, ..)| level.contains(kind)) {
            assert_eq!(send(&gateway, "DELETE", path, "").status, 204, "{path}");
        }
    }
    assert_eq!(must(&gateway, "GET", "/status", "")["entities"], 0);
}

#[test]
fn the_health_of_targets_is_told_and_set() {
    let (gateway, origin, other) = (start(), Origin::echo(), Origin::echo());
    must(&gateway, "POST", "/upstreams", json!({ "name": "bare" }));
    must(&gateway, "POST", "/upstreams/bare/targets", json!({ "target": origin.node() }));
    let passive = json!({ "passive": { "unhealthy": { "http_failures": 1, "http_statuses": [500] } } });
    must(&gateway, "POST", "/upstreams", json!({ "name": "pool", "healthchecks": passive }));
    for node in [&origin, &other] {
        must(&gateway, "POST", "/upstreams/pool/targets", json!({ "target": node.node(), "weight": 10 }));
    }
    for name in ["bare", "pool"] {
        must(&gateway, "POST", "/services", json!({ "name": name, "host": name }));
        must(
            &gateway,
            "POST",
            &format!("/services/{name}/routes"),
            json!({ "name": name, "paths": [format!("/{name}")] }),
        );
    }
    let states = |name: &str| {
        let all = must(&gateway, "GET", &format!("/upstreams/{name}/health"), "");
        let mut states: Vec<(String, String)> = all["data"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|target| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (text(&target["target"]), text(&target["health"]))
            })
            .collect();
        states.sort();
        states
    };
    let sorted = |first: &str, second: &str| {
        let mut all = vec![(origin.node(), first.to_owned()), (other.node(), second.to_owned())];
        all.sort();
        all
    };
    assert_eq!(states("bare"), [(origin.node(), "HEALTHCHECKS_OFF".to_owned())]);
    wait_until("the checks to begin", LIMIT, || (states("pool") == sorted("HEALTHY", "HEALTHY")).then_some(()));
    // A target that is marked unhealthy gets no requests until it is marked healthy again.
    let mark = |path: String| ask(&gateway, "PUT", &path, "").0;
    assert_eq!(mark(format!("/upstreams/pool/targets/{}/unhealthy", origin.node())), 204);
    assert_eq!(states("pool"), sorted("UNHEALTHY", "HEALTHY"));
    let before = origin.requests().len();
    assert!((0..6).all(|_| gateway.client().request(get("/pool")).status == 200));
    assert_eq!(origin.requests().len(), before, "it gets none");
    let whole = must(&gateway, "GET", "/upstreams/pool/health?balancer_health=1", "");
    assert_eq!(whole["data"]["health"], "HEALTHY");
    assert_eq!(mark(format!("/upstreams/pool/targets/{0}/{0}/unhealthy", other.node())), 204);
    let whole = must(&gateway, "GET", "/upstreams/pool/health?balancer_health=1", "");
    assert_eq!(whole["data"]["health"], "UNHEALTHY");
    assert_eq!(gateway.client().request(get("/pool")).status, 503);
    let all = must(&gateway, "GET", "/upstreams/pool/health", "");
    let data = &all["data"][0]["data"];
    assert_eq!((&data["weight"]["total"], &data["weight"]["available"]), (&10.into(), &0.into()), "{all}");
    assert_eq!(data["addresses"][0]["health"], "UNHEALTHY");
    assert_eq!(mark(format!("/upstreams/pool/targets/{}/healthy", origin.node())), 204);
    assert_eq!(gateway.client().request(get("/pool")).status, 200);
    assert_eq!(must(&gateway, "GET", "/upstreams/pool/targets/all", "")["data"].as_array().map(Vec::len), Some(2));
    for (path, status) in [
        ("/upstreams/nope/health".to_owned(), 404),
        ("/upstreams/pool/targets/nope/healthy".to_owned(), 404),
        (format!("/upstreams/pool/targets/{}/nope/healthy", origin.node()), 404),
        (format!("/upstreams/bare/targets/{}/healthy", origin.node()), 400),
    ] {
        let method = if path.ends_with("/health") { "GET" } else { "PUT" };
        assert_eq!(ask(&gateway, method, &path, "").0, status, "{path}");
    }
}

#[test]
fn a_store_has_one_family() {
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(folder.path()).start();
    gateway.must("PUT", "routes/1", r#"{"uri":"/a","upstream":{"type":"roundrobin","nodes":{"127.0.0.1:1":1}}}"#);
    drop(gateway);
    let data: &Path = folder.path();
    let (code, _, errors) = weir(&["run", "--family", "kong", "--data-dir", &data.display().to_string()]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("APISIX's family"), "{errors}");
}
