//! Service discovery: nodes that a registry knows. The name server is a real one. Consul, Nacos, Eureka and Kubernetes are
//! servers that speak their documented protocols, for none of them can be had as a package here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::dns::{Dnsmasq, pair};
use crate::harness::{
    Answer, Connection, Gateway, LIMIT, Origin, RawClient, Request, Start, each, route_with, wait_until, weir,
};

/// Longest wait of a question for a change.
const WAIT: Duration = Duration::from_secs(2);

/// A server with a page behind each path, which answers questions for changes when something has changed.
struct Registry {
    origin: Origin,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    version: u64,
    pages: BTreeMap<String, Value>,
    events: Vec<Value>,
    /// Number of events that were sent.
    sent: usize,
    /// Answer to everything, in the place of the pages.
    lie: Option<Vec<u8>>,
    ended: bool,
}

impl Registry {
    fn start(pages: &[(&str, Value)]) -> Self {
        let shared = Arc::<Shared>::default();
        let of_origin = Arc::clone(&shared);
        let origin = Origin::scripted(move |connection| {
            while let Some(request) = connection.request() {
                if request.target.contains("watch=true") {
                    return of_origin.stream(connection);
                }
                let answer = of_origin.answer(&request);
                if !connection.send(answer) {
                    return;
                }
            }
        });
        let registry = Self { origin, shared };
        for (path, page) in pages {
            registry.set(path, page.clone());
        }
        registry
    }

    fn uri(&self) -> String {
        format!("http://{}", self.origin.node())
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.state.lock().expect("a lock");
        change(&mut state);
        state.version += 1;
        self.shared.changed.notify_all();
    }

    fn set(&self, path: &str, page: Value) {
        self.change(|state| drop(state.pages.insert(path.to_owned(), page)));
    }

    /// Answers everything with these bytes.
    fn lie(&self, bytes: Option<&str>) {
        self.change(|state| state.lie = bytes.map(|bytes| bytes.as_bytes().to_vec()));
    }

    fn event(&self, kind: &str, object: &Value) {
        self.change(|state| state.events.push(json!({ "type": kind, "object": object })));
    }

    /// The requests whose target begins like this.
    fn asked(&self, target: &str) -> Vec<Request> {
        self.origin.requests().into_iter().filter(|request| request.target.starts_with(target)).collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.change(|state| state.ended = true);
    }
}

impl Shared {
    fn answer(&self, request: &Request) -> Vec<u8> {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let index = query.split('&').find_map(|part| part.strip_prefix("index=")?.parse::<u64>().ok());
        let mut state = self.state.lock().expect("a lock");
        if let Some(index) = index.filter(|index| *index > 0) {
            let is_same = |state: &mut State| state.version == index && !state.ended;
            state = self.changed.wait_timeout_while(state, WAIT, is_same).expect("a lock").0;
        }
        if let Some(lie) = &state.lie {
            return lie.clone();
        }
        let (status, body) = match state.pages.get(path) {
            Some(page) => ("200 OK", page.to_string()),
            None => ("404 Not Found", String::new()),
        };
        let (version, length) = (state.version, body.len());
        format!("HTTP/1.1 {status}\r\nX-Consul-Index: {version}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// Sends the events as they come.
    fn stream(&self, connection: &mut Connection) {
        if !connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") {
            return;
        }
        loop {
            let state = self.state.lock().expect("a lock");
            let is_same = |state: &mut State| state.events.len() == state.sent && !state.ended;
            let mut state = self.changed.wait_timeout_while(state, WAIT, is_same).expect("a lock").0;
            if state.ended {
                return;
            }
            let events: Vec<String> = state.events.iter().skip(state.sent).map(|event| format!("{event}\n")).collect();
            state.sent = state.events.len();
            drop(state);
            // An event may come in several chunks.
            for event in events {
                let (first, second) = event.split_at(event.len() / 2);
                if !connection.send(format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n", first.len(), second.len())) {
                    return;
                }
            }
        }
    }
}

/// One route to a service.
fn route_to_service(registry: &str, name: &str, more: &Value) -> Value {
    let mut upstream = json!({ "discovery_type": registry, "service_name": name, "type": "roundrobin" });
    upstream.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
    route_with(json!({}), upstream)
}

fn gateway(rules: &Value, discovery: &Value) -> Gateway {
    let settings = json!({ "discovery": discovery, "dns": { "min_ttl": 0, "timeout": "500ms" } });
    Start::new(rules).settings(settings).control().start()
}

fn dump(gateway: &Gateway, registry: &str) -> Value {
    let mut client = RawClient::connect(gateway.control.expect("a control API"));
    let path = format!("/v1/discovery/{registry}");
    client.request(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).json()
}

/// Waits until requests are answered by exactly these origins, whose answers are their names.
fn await_nodes(gateway: &Gateway, expected: &[&str]) {
    let wanted: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    wait_until(&format!("answers of {expected:?} alone"), LIMIT, || {
        let seen: BTreeSet<String> = (0..expected.len() * 4).map(|_| gateway.get("/").text()).collect();
        (seen == wanted).then_some(())
    });
}

fn await_unknown(gateway: &Gateway) {
    wait_until("an unknown service to be answered 503", LIMIT, || {
        let answer = gateway.get("/");
        let reason = answer.field("X-Weir-Error").map(str::to_owned);
        (answer.status == 503)
            .then(|| assert_eq!(reason.as_deref(), Some("gateway; service discovery knows no node of the service")))
    });
}

fn named(name: &'static str) -> Origin {
    Origin::answering(move |_| Answer::ok(name))
}

fn port(origin: &Origin) -> u16 {
    origin.addr().port()
}

#[test]
fn name_servers_know_services() {
    let (_first, _second, port) = pair();
    let srv = [format!("--srv-host=web.test,one.test,{port},0,1"), format!("--srv-host=web.test,two.test,{port},1,1")];
    let arguments: Vec<&str> = srv.iter().map(String::as_str).chain(["--local=/test/"]).collect();
    let mut server = Dnsmasq::with("127.0.0.1 one.test plain.test\n127.0.0.2 two.test plain.test\n", &arguments);
    let discovery = json!({ "dns": { "servers": [format!("127.0.0.1:{}", server.port)] } });
    let of = |name: &str| gateway(&route_to_service("dns", name, &json!({})), &discovery);
    // Addresses, with the port in the name of the service.
    let plain = of(&format!("plain.test:{port}"));
    await_nodes(&plain, &["127.0.0.1", "127.0.0.2"]);
    // SRV records bring ports; the lower priority goes first.
    let records = of("web.test");
    await_nodes(&records, &["127.0.0.1"]);
    let node = |host: &str, priority: i64| json!({ "host": host, "port": port, "weight": 1, "priority": priority });
    let mut first = node("127.0.0.1", 0);
    first.as_object_mut().expect("a node").remove("priority");
    assert_eq!(dump(&records, "dns/dump")["services"]["web.test"], json!([first, node("127.0.0.2", -1)]));
    await_unknown(&of("nobody.test"));
    // A change is followed, and the last good answer stays.
    server.change("127.0.0.1 one.test\n127.0.0.2 two.test plain.test\n");
    await_nodes(&plain, &["127.0.0.2"]);
    server.process.signal(Signal::KILL);
    server.process.wait();
    wait_until("a message of the failure", LIMIT, || {
        plain.stderr().contains("cannot resolve a service; its last nodes, if any, stay in use").then_some(())
    });
    await_nodes(&plain, &["127.0.0.2"]);
}

fn instance(origin: &Origin) -> Value {
    json!({ "Node": { "Address": "10.0.0.1" }, "Service": { "Address": "127.0.0.1", "Port": port(origin), "Meta": null } })
}

const CATALOG: &str = "/v1/catalog/services";

/// A catalog of `web` with these instances.
fn catalog(origins: &[&Origin]) -> Vec<(&'static str, Value)> {
    let instances: Value = origins.iter().map(|origin| instance(origin)).collect();
    vec![
        (CATALOG, json!({ "consul": [], "web": ["v1"], "hidden": [] })),
        ("/v1/health/state/any", json!([])),
        ("/v1/health/service/web", instances.clone()),
        ("/v1/health/service/hidden", instances),
    ]
}

#[test]
fn nodes_of_a_catalog_come_and_go_while_requests_go_on() {
    let (one, two) = (named("one"), named("two"));
    let consul = Registry::start(&catalog(&[&one]));
    let settings = json!({ "servers": [consul.uri()], "token": "the token", "skip_services": ["hidden"], "dump": { "path": "FOLDER/kept.json" } });
    let gateway = gateway(&route_to_service("consul", "web", &json!({})), &json!({ "consul": settings }));
    await_nodes(&gateway, &["one"]);
    assert!(consul.origin.requests().iter().all(|request| request.field("X-Consul-Token") == Some("the token")));
    assert!(
        consul.asked("/v1/health/service/hidden").is_empty() && consul.asked("/v1/health/service/consul").is_empty()
    );
    // A client's connection, and the one to a node that stays, outlive the change.
    let mut client = gateway.client();
    assert_eq!(client.get("/").text(), "one");
    let kept = one.connections();
    consul.set("/v1/health/service/web", json!([instance(&one), instance(&two)]));
    await_nodes(&gateway, &["one", "two"]);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(one.connections(), kept, "no connection was made anew");
    consul.set("/v1/health/service/web", json!([instance(&two)]));
    await_nodes(&gateway, &["two"]);
    let shown = dump(&gateway, "consul/dump");
    let node = json!({ "host": "127.0.0.1", "port": port(&two), "weight": 1 });
    assert_eq!(shown["services"], json!({ "web": [node] }));
    assert_eq!(shown["config"]["token"], "***");
    wait_until("the file with the last answer", LIMIT, || {
        (dump(&gateway, "consul/show_dump_file")["services"] == shown["services"]).then_some(())
    });
    // The file serves a gateway whose registry is away.
    let kept = std::fs::read_to_string(gateway.file("kept.json")).expect("read the file");
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("kept.json");
    std::fs::write(&file, kept).expect("write the file");
    let away = json!({ "consul": { "servers": ["http://127.0.0.1:1"], "dump": { "path": file } } });
    await_nodes(&self::gateway(&route_to_service("consul", "web", &json!({})), &away), &["two"]);
    // A service that is gone.
    consul.set(CATALOG, json!({ "consul": [] }));
    await_unknown(&gateway);
}

#[test]
fn the_last_good_answer_is_kept_whatever_a_registry_says() {
    let answer = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nX-Consul-Index: 9\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let lies = [
        Some(answer("500 Internal Server Error", "no leader")),
        Some(answer("200 OK", "<html>")),
        Some(answer("200 OK", "[1, 2]")),
        Some(answer("403 Forbidden", "ACL not found")),
        // Half of an answer, and the rest never comes.
        Some("HTTP/1.1 200 OK\r\nX-Consul-Index: 9\r\nContent-Length: 1000\r\n\r\n{".to_owned()),
        // The registry goes away altogether.
        None,
    ];
    each(
        &lies,
        |lie| format!("{lie:?}"),
        |lie| {
            let (one, two) = (named("one"), named("two"));
            let consul = Registry::start(&catalog(&[&one]));
            let timeout = json!({ "connect": 200, "read": 300, "wait": 1 });
            let conf = json!({ "consul": { "servers": [consul.uri()], "timeout": timeout } });
            let gateway = gateway(&route_to_service("consul", "web", &json!({})), &conf);
            await_nodes(&gateway, &["one"]);
            let before = consul.asked(CATALOG).len();
            match lie {
                Some(lie) => {
                    consul.lie(Some(lie));
                    wait_until("the registry to be asked again", LIMIT, || {
                        (consul.asked(CATALOG).len() > before + 1).then_some(())
                    });
                }
                None => consul.origin.die(),
            }
            wait_until("a message of the failure", LIMIT, || {
                gateway
                    .stderr()
                    .contains("a registry does not answer; its last answer, if any, stays in use")
                    .then_some(())
            });
            assert_eq!(gateway.get("/").text(), "one");
            // The registry comes back with other nodes.
            consul.lie(None);
            consul.set("/v1/health/service/web", json!([instance(&two)]));
            consul.origin.rise();
            await_nodes(&gateway, &["two"]);
        },
    );
}

#[test]
fn keys_of_consul_are_nodes() {
    let (one, two) = (named("one"), named("two"));
    let key = |origin: &Origin, value: &str| json!({ "Key": format!("upstreams/web/{}", origin.node()), "Value": STANDARD.encode(value) });
    let consul = Registry::start(&[("/v1/kv/upstreams", json!([key(&one, r#"{"weight": 1}"#)]))]);
    let name = format!("{}/v1/kv/upstreams/web/", consul.uri());
    let conf = json!({ "consul_kv": { "servers": [consul.uri()] } });
    let gateway = gateway(&route_to_service("consul_kv", &name, &json!({})), &conf);
    await_nodes(&gateway, &["one"]);
    consul.set("/v1/kv/upstreams", json!([key(&one, r#"{"weight": 1, "check_status": false}"#), key(&two, "{}")]));
    await_nodes(&gateway, &["two"]);
    assert_eq!(dump(&gateway, "consul_kv/dump")["services"][&name][0]["port"], port(&two));
    // No key at all is an answer, and a default node is for services that are not known.
    consul.change(|state| drop(state.pages.remove("/v1/kv/upstreams")));
    await_unknown(&gateway);
    let fallback = json!({ "host": "127.0.0.1", "port": port(&one) });
    let conf = json!({ "consul_kv": { "servers": [consul.uri()], "default_service": fallback } });
    await_nodes(&self::gateway(&route_to_service("consul_kv", &name, &json!({})), &conf), &["one"]);
}

#[test]
fn nacos_is_asked_for_each_service() {
    let (one, two) = (named("one"), named("two"));
    let host = |origin: &Origin| json!({ "ip": "127.0.0.1", "port": port(origin), "weight": 1.0, "healthy": true });
    let list = "/nacos/v1/ns/instance/list";
    let nacos = Registry::start(&[
        ("/nacos/v1/auth/login", json!({ "accessToken": "t 1" })),
        (list, json!({ "hosts": [host(&one)] })),
    ]);
    let login = format!("http://user:pass%@{}", nacos.origin.node());
    // The first server is away: the next one is asked.
    let conf = json!({ "nacos": {
        "host": ["http://127.0.0.1:1", login], "fetch_interval": 1, "access_key": "ak", "secret_key": "sk",
    } });
    let more = json!({ "discovery_args": { "namespace_id": "ns-1", "group_name": "g" } });
    let gateway = gateway(&route_to_service("nacos", "a b", &more), &conf);
    await_nodes(&gateway, &["one"]);
    assert_eq!(nacos.asked("/nacos/v1/auth")[0].target, "/nacos/v1/auth/login?username=user&password=pass%25");
    let asked = &nacos.asked(list)[0].target;
    let query = "?healthyOnly=true&serviceName=a%20b&namespaceId=ns%2D1&groupName=g&ak=ak&data=";
    assert!(asked.starts_with(&format!("{list}{query}")) && asked.ends_with("&accessToken=t%201"), "{asked}");
    assert!(asked.contains("%40%40g%40%40a%20b&signature="), "{asked}");
    nacos.set(list, json!({ "hosts": [host(&two)] }));
    await_nodes(&gateway, &["two"]);
    let node = json!({ "host": "127.0.0.1", "port": port(&two), "weight": 1 });
    assert_eq!(dump(&gateway, "nacos/dump"), json!({ "services": { "default/ns-1/g/a b": { "nodes": [node] } } }));
    // A service that a change of the rules brings is asked for at once.
    let before = nacos.asked(list).len();
    gateway.reload(route_to_service("nacos", "new", &json!({})));
    wait_until("the new service to be asked for", LIMIT, || {
        nacos.asked(list)[before..]
            .iter()
            .any(|request| request.target.contains("serviceName=new&namespaceId=public&groupName=DEFAULT%5FGROUP"))
            .then_some(())
    });
    // The answer to that is not to be the lie.
    await_nodes(&gateway, &["two"]);
    nacos.lie(Some("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull"));
    let before = nacos.asked("/nacos/v1/auth").len();
    wait_until("a further login", LIMIT, || (nacos.asked("/nacos/v1/auth").len() > before).then_some(()));
    assert_eq!(gateway.get("/").text(), "two", "a login without a token changes nothing");
    assert!(!gateway.stderr().contains("pass%"), "the password is not logged");
}

#[test]
fn eureka_knows_applications() {
    let (one, two) = (named("one"), named("two"));
    let instance = |origin: &Origin, status: &str| {
        json!({
            "ipAddr": "127.0.0.1", "status": status, "port": { "$": port(origin), "@enabled": "true" },
            "securePort": { "$": 443, "@enabled": "false" }, "metadata": {},
        })
    };
    let page =
        |instances: Value| json!({ "applications": { "application": [{ "name": "WEB", "instance": instances }] } });
    let eureka = Registry::start(&[("/eureka/apps", page(json!([instance(&one, "UP"), instance(&two, "DOWN")])))]);
    let login = format!("http://user:word@{}", eureka.origin.node());
    let conf = json!({ "eureka": { "host": [login], "prefix": "/eureka/", "fetch_interval": 1 } });
    let gateway = gateway(&route_to_service("eureka", "WEB", &json!({})), &conf);
    await_nodes(&gateway, &["one"]);
    let asked = eureka.asked("/eureka/apps")[0].clone();
    assert_eq!(asked.field("Authorization"), Some("Basic dXNlcjp3b3Jk"));
    assert_eq!(asked.field("Accept"), Some("application/json"));
    eureka.set("/eureka/apps", page(json!([instance(&one, "DOWN"), instance(&two, "UP")])));
    await_nodes(&gateway, &["two"]);
    assert_eq!(dump(&gateway, "eureka/dump")["services"]["WEB"][0]["weight"], 100);
    eureka.set("/eureka/apps", json!({ "error": "starting" }));
    wait_until("a message of the failure", LIMIT, || {
        gateway.stderr().contains("a registry does not answer; its last answer, if any, stays in use").then_some(())
    });
    assert_eq!(gateway.get("/").text(), "two");
}

fn endpoints(namespace: &str, origins: &[&Origin], version: u32) -> Value {
    let subset = |origin: &&Origin| json!({ "addresses": [{ "ip": "127.0.0.1" }], "ports": [{ "name": "http", "port": port(origin) }] });
    json!({
        "metadata": { "name": "web", "namespace": namespace, "resourceVersion": version.to_string() },
        "subsets": origins.iter().map(subset).collect::<Vec<_>>(),
    })
}

#[test]
fn kubernetes_is_watched() {
    let (one, two) = (named("one"), named("two"));
    let path = "/api/v1/endpoints";
    let page = json!({ "metadata": { "resourceVersion": "5" }, "items": [endpoints("shop", &[&one], 4), endpoints("other", &[&two], 3)] });
    let server = Registry::start(&[(path, page)]);
    let cluster = json!({
        "service": { "schema": "http", "host": "127.0.0.1", "port": "${API_PORT}" }, "client": { "token": "${TOKEN}" },
        "namespace_selector": { "match": ["sh.*"] }, "label_selector": "app=\"web\"",
    });
    let settings = json!({ "discovery": { "kubernetes": cluster } });
    let rules = route_to_service("kubernetes", "shop/web:http", &json!({}));
    let start = Start::new(rules).settings(settings).control();
    let gateway = start.variable("API_PORT", &port(&server.origin).to_string()).variable("TOKEN", "abc").start();
    await_nodes(&gateway, &["one"]);
    let listed = server.asked(path)[0].clone();
    assert_eq!(listed.target, "/api/v1/endpoints?limit=500&labelSelector=app%3D%22web%22");
    assert_eq!(listed.field("Authorization"), Some("Bearer abc"));
    let watch = wait_until("a watch", LIMIT, || server.asked(&format!("{path}?watch=true")).pop());
    assert!(watch.target.contains("&resourceVersion=5&"), "{}", watch.target);
    server.event("MODIFIED", &endpoints("shop", &[&one, &two], 6));
    await_nodes(&gateway, &["one", "two"]);
    server.event("BOOKMARK", &json!({ "metadata": { "resourceVersion": "7" } }));
    server.event("MODIFIED", &endpoints("shop", &[&two], 8));
    await_nodes(&gateway, &["two"]);
    let nodes = json!({ "http": [{ "host": "127.0.0.1", "port": port(&two), "weight": 50 }] });
    let shown = dump(&gateway, "kubernetes/dump")["endpoints"][0]["endpoints"][0].clone();
    let value: Value = serde_json::from_str(shown["value"].as_str().expect("a text")).expect("JSON");
    assert_eq!((shown["name"].as_str(), value), (Some("shop/web"), nodes));
    server.event("DELETED", &endpoints("shop", &[&two], 9));
    await_unknown(&gateway);
    // A version that is too old: everything is listed again.
    let page = json!({ "metadata": { "resourceVersion": "20" }, "items": [endpoints("shop", &[&one], 19)] });
    server.set(path, page);
    server.event("ERROR", &json!({ "code": 410, "message": "too old resource version" }));
    await_nodes(&gateway, &["one"]);
}

#[test]
fn slices_of_several_clusters_are_put_together() {
    let (one, two) = (named("one"), named("two"));
    let path = "/apis/discovery.k8s.io/v1/endpointslices";
    let slice = |name: &str, origin: &Origin| {
        json!({
            "metadata": { "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" } },
            "endpoints": [
                { "addresses": ["127.0.0.1"], "conditions": { "ready": true } },
                { "addresses": ["127.0.0.9"], "conditions": { "ready": false } },
            ],
            "ports": [{ "name": "http", "port": port(origin) }],
        })
    };
    let server = Registry::start(&[(
        path,
        json!({ "metadata": { "resourceVersion": "1" }, "items": [slice("web-1", &one), slice("web-2", &two)] }),
    )]);
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "from a file\n").expect("write the token");
    let service = json!({ "schema": "http", "host": "127.0.0.1", "port": port(&server.origin).to_string() });
    let conf = json!({ "kubernetes": [
        { "id": "far", "service": { "schema": "http", "host": "127.0.0.1", "port": "1" }, "client": { "token_file": "" } },
        { "id": "near", "service": service, "client": { "token_file": token.path() }, "watch_endpoint_slices": true },
    ] });
    let gateway = gateway(&route_to_service("kubernetes", "near/shop/web:http", &json!({})), &conf);
    await_nodes(&gateway, &["one", "two"]);
    assert_eq!(server.asked(path)[0].field("Authorization"), Some("Bearer from a file"));
    assert_eq!(dump(&gateway, "kubernetes/dump")["endpoints"][1]["id"], "near");
}

#[test]
fn health_checks_and_balancers_apply_to_nodes_of_a_registry() {
    let (good, bad) = (named("good"), Origin::answering(|_| Answer::status(500, "bad")));
    let consul = Registry::start(&catalog(&[&good, &bad]));
    let active = json!({ "http_path": "/", "healthy": { "interval": 1, "successes": 1 }, "unhealthy": { "interval": 1, "http_failures": 1 } });
    let conf = json!({ "consul": { "servers": [consul.uri()] } });
    let checked = gateway(&route_to_service("consul", "web", &json!({ "checks": { "active": active } })), &conf);
    await_nodes(&checked, &["good"]);
    // The hash of one client leads to one node.
    let hashed = gateway(&route_to_service("consul", "web", &json!({ "type": "chash", "key": "remote_addr" })), &conf);
    let first =
        wait_until("an answer", LIMIT, || Some(hashed.get("/").text()).filter(|text| text == "good" || text == "bad"));
    assert!((0..8).all(|_| hashed.get("/").text() == first));
}

#[test]
fn a_registry_that_never_answers_holds_nothing_up() {
    let silent = Origin::scripted(|connection| {
        connection.request();
        connection.await_close();
    });
    let conf = json!({ "consul": { "servers": [format!("http://{}", silent.node())], "timeout": { "read": 60000 } } });
    let gateway = gateway(&route_to_service("consul", "web", &json!({})), &conf);
    await_unknown(&gateway);
    let one = named("one");
    gateway.reload(route_with(json!({}), json!({ "nodes": { (one.node()): 1 } })));
    assert_eq!(gateway.get("/").text(), "one");
}

#[test]
fn services_need_a_registry_that_the_settings_name() {
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("apisix.yaml");
    let cases = [
        (json!({ "service_name": "a" }), "the field discovery_type is missing"),
        (json!({ "discovery_type": "dns" }), "the field service_name is missing"),
        (
            json!({ "service_name": "a", "discovery_type": "dns", "nodes": {} }),
            "only one of nodes and service_name is allowed",
        ),
        (json!({ "service_name": "a", "discovery_type": "tars" }), "discovery_type"),
    ];
    each(
        &cases,
        |(upstream, _)| upstream.to_string(),
        |(upstream, expected)| {
            let file = file.with_file_name(format!("{:x}.yaml", upstream.to_string().len() * 1000 + expected.len()));
            std::fs::write(&file, format!("{}\n#END\n", route_with(json!({}), upstream.clone())))
                .expect("write the rules");
            let (code, _, errors) = weir(&["check", &file.display().to_string()]);
            assert!(code != 0 && errors.contains(expected), "{code} {errors}");
        },
    );
    // As in APISIX such an upstream is taken, and answers 503.
    let unset = json!({ "service_name": "a", "discovery_type": "nacos" });
    std::fs::write(&file, format!("{}\n#END\n", route_with(json!({}), unset))).expect("write the rules");
    let (code, output, errors) = weir(&["check", &file.display().to_string()]);
    assert!(code == 0 && errors.contains("discovery.nacos in the settings names them"), "{code} {output} {errors}");
    let (code, ..) = weir(&["check", "--strict", &file.display().to_string()]);
    assert_ne!(code, 0);
}
