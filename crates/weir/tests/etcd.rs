//! Gateways that share an etcd: a change at one is in force on the others, and a failure of etcd stops none of them.

use std::fmt::Display;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use weir_config::Settings;
use weir_config::settings::SettingsSource;

use crate::documentation::document;
use crate::etcd_loss::{accept, is_ready};
use crate::harness::{ADMIN_KEY, Authority, EtcdCluster, Gateway, LIMIT, RawClient, Relay, Start, wait_until, weir};

/// Settings of a gateway with this role, at these members; `more` stands below `deployment.etcd`.
pub(crate) fn settings(role: &str, hosts: &[String], more: &str) -> String {
    // Each member has its share of the time.
    let timeout = 5 * hosts.len();
    let hosts = hosts.join(", ");
    format!(
        "deployment: {{role: {role}, config_provider: etcd, etcd: {{host: [{hosts}], timeout: {timeout}s, startup_retry: 0, \
         health_check_interval: 300ms, watch_timeout: 5s, resync_delay: 50ms, {more}}}}}"
    )
}

pub(crate) fn start(role: &str, hosts: &[String]) -> Start {
    let start = Start::stored().settings(settings(role, hosts, ""));
    match role {
        "data_plane" => start.admin_by_settings(),
        "control_plane" => start.own_listeners(),
        _ => start,
    }
}

/// A route that answers by itself.
pub(crate) fn route(path: &str, answer: impl Display) -> Value {
    let plugins = json!({ "mocking": { "response_example": answer.to_string(), "content_type": "text/plain" } });
    json!({ "uri": path, "plugins": plugins })
}

/// Waits until a gateway answers a path so; `None`: until it has no route for it.
pub(crate) fn await_answer(gateway: &Gateway, path: &str, answer: Option<&str>) {
    wait_until(&format!("{path} to be answered {answer:?}"), LIMIT, || {
        let response = gateway.get(path);
        match answer {
            Some(text) => (response.status == 200 && response.text() == text).then_some(()),
            None => (response.status == 404).then_some(()),
        }
    });
}

#[test]
fn gateways_of_all_roles_serve_the_same() {
    let cluster = EtcdCluster::start(3);
    cluster.put("routes/", "init_dir");
    cluster.put("plugins", "[{\"name\":\"mocking\"}]");
    cluster.put("routes/old", route("/old", "old"));
    let control = start("control_plane", &cluster.urls()).start();
    let both = start("traditional", &cluster.urls()).start();
    let data = start("data_plane", &cluster.urls()).start();
    assert!(control.addrs.is_empty(), "a control plane carries no traffic");
    assert!(data.admin.is_none(), "a data plane has no Admin API");
    for gateway in [&both, &data] {
        await_answer(gateway, "/old", Some("old"));
    }

    control.must("PUT", "routes/1", &route("/1", "one").to_string());
    both.must("PUT", "routes/2", &route("/2", "two").to_string());
    // The gateway that makes a change serves it when the change is answered.
    assert_eq!(both.get("/2").text(), "two");
    await_answer(&both, "/1", Some("one"));
    for (path, answer) in [("/1", "one"), ("/2", "two")] {
        await_answer(&data, path, Some(answer));
    }
    assert_eq!(both.must("GET", "routes/1", "")["value"]["uri"], "/1");
    both.must("DELETE", "routes/1", "");
    control.must("DELETE", "routes/old", "");
    for path in ["/1", "/old"] {
        await_answer(&data, path, None);
    }
    assert_eq!(cluster.value("routes/1"), None);
    data.await_metric("apisix_etcd_reachable", &[], 1.0);
    let index = cluster.value("routes/2").map(|_| data.metric("apisix_etcd_modify_indexes", &[("key", "routes")]));
    assert!(index.is_some_and(|index| index > 1.0), "{index:?}");
}

#[test]
fn changes_at_several_gateways_at_once_are_all_made() {
    let cluster = EtcdCluster::start(1);
    let gateways: Vec<Gateway> = (0..2).map(|_| start("traditional", &cluster.urls()).start()).collect();
    thread::scope(|scope| {
        for (number, gateway) in gateways.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..15 {
                    let own = route(&format!("/{number}/{round}"), round).to_string();
                    gateway.must("PUT", &format!("routes/{number}-{round}"), &own);
                    // The same one from all of them.
                    gateway.must("PUT", "routes/same", &route("/same", format!("{number} {round}")).to_string());
                }
            });
        }
    });
    let last = cluster.value("routes/same").expect("a route");
    let last = last["plugins"]["mocking"]["response_example"].as_str().expect("an answer");
    for gateway in &gateways {
        await_answer(gateway, "/same", Some(last));
        for number in 0..2 {
            for round in 0..15 {
                await_answer(gateway, &format!("/{number}/{round}"), Some(&round.to_string()));
            }
        }
    }
}

#[test]
fn what_is_wrong_is_named_and_the_rest_stays_live() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route("/1", "good"));
    let data = tempfile::tempdir().expect("create a folder");
    let gateway = start("data_plane", &cluster.urls()).data_dir(data.path()).start();
    await_answer(&gateway, "/1", Some("good"));
    cluster.put("routes/new", "{\"uri\":");
    gateway.await_metric("weir_config_left_out", &[], 1.0);

    let unknown = json!({ "uri": "/1", "plugins": { "no-such-plugin": {} } });
    let cases = [
        ("routes/1", "no JSON at all".to_owned()),
        ("routes/1", "[]".to_owned()),
        ("routes/1", unknown.to_string()),
        ("routes/1", json!({ "uri": "/1", "upstream_id": "missing" }).to_string()),
        // Nothing is ever served without a global rule that is there.
        ("global_rules/1", json!({ "plugins": { "no-such-plugin": {} } }).to_string()),
    ];
    for (number, (key, value)) in cases.into_iter().enumerate() {
        if key == "global_rules/1" {
            cluster.put("routes/1", route("/1", "good"));
            gateway.await_metric("weir_config_left_out", &[], 1.0);
            cluster.put(key, json!({ "plugins": { "request-id": {} } }));
            wait_until("the global rule", LIMIT, || gateway.get("/1").fields.get("X-Request-Id").map(|_| ()));
        }
        cluster.put(key, &value);
        // Later changes are live nevertheless.
        let other = format!("/other/{number}");
        cluster.put(&format!("routes/other-{number}"), route(&other, "other"));
        await_answer(&gateway, &other, Some("other"));
        let answer = gateway.get("/1");
        assert_eq!(answer.text(), "good", "the last good version of {key} serves beside {value}");
        assert_eq!(answer.fields.get("X-Request-Id").is_some(), key == "global_rules/1");
        gateway.await_metric("weir_config_left_out", &[], 2.0);
        wait_until("the log to name it", LIMIT, || {
            gateway
                .stderr()
                .contains(&format!("{key}: "))
                .then_some(())
                .or_else(|| gateway.stderr().contains(&format!("{key}.")).then_some(()))
        });
    }
    // The last good versions outlive the process.
    let copy = data.path().join("etcd+apisix.json");
    wait_until("the copy", LIMIT, || {
        std::fs::read_to_string(&copy).is_ok_and(|text| text.contains("other-4")).then_some(())
    });
    drop(gateway);
    let gateway = start("data_plane", &cluster.urls()).data_dir(data.path()).start();
    assert!(gateway.get("/1").fields.get("X-Request-Id").is_some(), "the global rule serves as it was");
    cluster.delete("global_rules/1");
    cluster.delete("routes/new");
    gateway.await_metric("weir_config_left_out", &[], 0.0);
    await_answer(&gateway, "/1", Some("good"));
}

/// A global rule that was never good was not in force either, and one that was good is.
#[test]
fn a_wrong_global_rule_stops_neither_starts_nor_changes() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route("/1", "one"));
    cluster.put("global_rules/good", json!({ "plugins": { "request-id": {} } }));
    let data = tempfile::tempdir().expect("create a folder");
    let unknown = json!({ "plugins": { "no-such-plugin": {} } }).to_string();
    let secret = json!({ "plugins": { "request-id": { "header_name": 5 } } }).to_string();
    let mut gateway = start("traditional", &cluster.urls()).data_dir(data.path()).start();
    await_answer(&gateway, "/1", Some("one"));
    let guards = |gateway: &Gateway| gateway.get("/1").fields.get("X-Request-Id").is_some();
    let copy = data.path().join("etcd+apisix.json");
    for (number, wrong) in ["no JSON", unknown.as_str(), secret.as_str()].into_iter().enumerate() {
        for (key, left_out) in [("new", 1.0), ("good", 2.0)] {
            cluster.put(&format!("global_rules/{key}"), wrong);
            gateway.await_metric("weir_config_left_out", &[], left_out);
            // Changes of everything else are live, in etcd and over the Admin API.
            let (path, api) = (format!("/{number}/{key}"), format!("/api/{number}/{key}"));
            cluster.put(&format!("routes/{number}-{key}"), route(&path, key));
            await_answer(&gateway, &path, Some(key));
            gateway.must("PUT", &format!("routes/api-{number}-{key}"), &route(&api, key).to_string());
            assert_eq!(gateway.get(&api).text(), key);
            assert!(guards(&gateway), "{wrong}: what was in force is in force");
            gateway.logged(&format!("global_rules/{key}"));
        }
        let (status, answer) = gateway.ask("PUT", "global_rules/new", &unknown);
        assert_eq!((status, answer.to_string().contains("no-such-plugin")), (400, true), "{answer}");
        // Nor do they stop a process that starts.
        let last = format!("\"routes/api-{number}-good\"");
        wait_until("the copy", LIMIT, || {
            std::fs::read_to_string(&copy).is_ok_and(|text| text.contains(&last)).then_some(())
        });
        gateway.signal(rustix::process::Signal::TERM);
        gateway.wait();
        gateway = start("traditional", &cluster.urls()).data_dir(data.path()).start();
        assert!(guards(&gateway), "{wrong}: after a start");
        assert_eq!(gateway.get(&format!("/api/{number}/good")).text(), "good");
        gateway.await_metric("weir_config_left_out", &[], 2.0);
        gateway.logged("global_rules/new");
        cluster.delete("global_rules/new");
        cluster.put("global_rules/good", json!({ "plugins": { "request-id": {} } }));
        gateway.await_metric("weir_config_left_out", &[], 0.0);
        assert!(guards(&gateway));
    }
    cluster.put(
        "global_rules/new",
        json!({ "plugins": { "response-rewrite": { "headers": { "set": { "X-New": "1" } } } } }),
    );
    wait_until("a rule that is right to be in force", LIMIT, || gateway.get("/1").fields.get("X-New").map(|_| ()));
    cluster.delete("global_rules/good");
    wait_until("the rule to be gone", LIMIT, || (!guards(&gateway)).then_some(()));
}

/// Invalid items by `/status`.
pub(crate) fn invalid(gateway: &Gateway) -> Value {
    let answer = RawClient::connect(gateway.status).get("/status").json();
    assert_eq!(answer["status"], "ok", "{answer}");
    answer["invalid"].clone()
}

/// Resources whose place is unknown, because they guard everything or their paths or names cannot be read. Where they were
/// never in force, nothing that they guarded opens without them; a fresh gateway cannot know that.
#[test]
fn a_resource_without_a_place_is_left_out_where_it_was_never_in_force() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route("/1", "one"));
    cluster.put("routes/all", route("/*", "all"));
    let data = tempfile::tempdir().expect("create a folder");
    let mut gateway = start("traditional", &cluster.urls()).data_dir(data.path()).start();
    await_answer(&gateway, "/1", Some("one"));
    let copy = data.path().join("etcd+apisix.json");
    let client = json!({ "ca": "no PEM" });
    for (number, (key, value)) in [
        ("global_rules/bad", json!({ "plugins": { "no-such-plugin": {} } })),
        ("global_rules/bad", json!("no JSON object")),
        ("routes/bad", json!({ "uri": 5, "upstream_id": "1" })),
        ("routes/bad", json!({ "uri": "/admin", "hosts": [5] })),
        ("routes/bad", json!([])),
        ("ssls/bad", json!({ "snis": [5], "cert": "x", "key": "y", "client": client })),
        ("ssls/bad", json!(7)),
    ]
    .into_iter()
    .enumerate()
    {
        cluster.put(key, &value);
        gateway.await_metric("weir_config_left_out", &[], 1.0);
        gateway.logged(key);
        assert_eq!(
            (gateway.get("/1").text(), gateway.get("/x").text()),
            ("one".to_owned(), "all".to_owned()),
            "{value}"
        );
        assert_eq!(invalid(&gateway), json!([key]), "{value}");
        let (path, name) = (format!("/n/{number}"), format!("routes/n{number}"));
        gateway.must("PUT", &name, &route(&path, number).to_string());
        assert_eq!(gateway.get(&path).text(), number.to_string(), "{value}");
        assert!(is_ready(&gateway), "{value}");
        wait_until("the copy", LIMIT, || {
            std::fs::read_to_string(&copy).is_ok_and(|text| text.contains(&format!("\"{name}\""))).then_some(())
        });

        let fresh = start("traditional", &cluster.urls()).control().start();
        assert_eq!((fresh.get("/1").status, fresh.get("/x").status), (503, 503), "{value}");
        assert!(!is_ready(&fresh), "{value}");
        fresh.logged("may guard any request");
        assert_eq!(invalid(&fresh), json!([key]), "{value}");
        // Other resources can be changed, without effect on this one.
        fresh.must("PUT", "routes/other", &route("/other", "other").to_string());
        assert_eq!(fresh.get("/other").status, 503, "{value}");
        match number % 2 {
            0 => assert_eq!(accept(&fresh)["resources"], json!(number + 4), "{value}"),
            _ => drop(fresh.must("DELETE", key, "")),
        }
        assert_eq!((fresh.get("/1").text(), fresh.get("/x").text()), ("one".to_owned(), "all".to_owned()), "{value}");
        assert!(is_ready(&fresh), "{value}");

        cluster.put(key, &value);
        gateway.await_metric("weir_config_left_out", &[], 1.0);
        gateway.signal(rustix::process::Signal::TERM);
        gateway.wait();
        gateway = start("traditional", &cluster.urls()).data_dir(data.path()).start();
        assert_eq!((gateway.get("/1").text(), gateway.get(&path).text()), ("one".to_owned(), number.to_string()));
        cluster.delete(key);
        gateway.await_metric("weir_config_left_out", &[], 0.0);
        assert_eq!(invalid(&gateway), Value::Null, "{value}");
    }
}

/// The requests of a route, and the handshakes for the names of a certificate that verifies clients, are refused.
#[test]
fn what_can_be_read_of_a_place_is_refused() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/all", route("/*", "all"));
    cluster.put("routes/admin", json!({ "uri": "/admin/*", "plugins": { "no-such-plugin": {} } }));
    let verifying = json!({ "snis": ["mtls.test"], "cert": "x", "key": "y", "client": { "ca": "no PEM" } });
    cluster.put("ssls/mtls", verifying);
    let gateway = start("traditional", &cluster.urls()).start();
    gateway.await_metric("weir_config_left_out", &[], 2.0);
    let status = |host: &str, path: &str| {
        gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).status
    };
    let seen = || [status("a.test", "/x"), status("a.test", "/admin/x"), status("mtls.test", "/x")];
    assert_eq!(seen(), [200, 503, 400]);
    assert!(is_ready(&gateway));
    assert_eq!(invalid(&gateway), json!(["routes/admin", "ssls/mtls"]));
    gateway.must("PUT", "routes/more", &route("/more", "more").to_string());
    assert_eq!(seen(), [200, 503, 400]);
    cluster.delete("ssls/mtls");
    gateway.await_metric("weir_config_left_out", &[], 1.0);
    assert_eq!(seen(), [200, 503, 200]);
}

#[test]
fn a_wrong_resource_is_put_right_over_the_admin_api() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route("/1", "good"));
    let gateway = start("traditional", &cluster.urls()).start();
    cluster.put("routes/1", "{");
    gateway.await_metric("weir_config_left_out", &[], 1.0);
    gateway.must("PUT", "routes/2", &route("/2", "two").to_string());
    assert_eq!((gateway.get("/1").text().as_str(), gateway.get("/2").text().as_str()), ("good", "two"));
    let (status, answer) = gateway.ask("PUT", "routes/1", "{\"uri\":\"/1\",\"upstream_id\":\"missing\"}");
    assert_eq!(status, 400, "{answer}");
    gateway.must("PUT", "routes/1", &route("/1", "better").to_string());
    assert_eq!(gateway.get("/1").text(), "better");
    gateway.await_metric("weir_config_left_out", &[], 0.0);
}

#[test]
fn what_was_serves_again_until_it_is_compacted() {
    let cluster = EtcdCluster::start(1);
    let fields = "data_encryption: {enable_encrypt_fields: true}";
    let gateway = Start::stored().settings(settings("traditional", &cluster.urls(), fields)).start();
    let other = start("traditional", &cluster.urls()).start();
    let ask = |method: &str, path: &str, body: &str| {
        let addr = gateway.admin.expect("an Admin API");
        let answer = RawClient::connect(addr).request(format!(
            "{method} /weir/v1/{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-KEY: {ADMIN_KEY}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        (answer.status, answer.json())
    };
    gateway.must("PUT", "routes/1", &route("/1", "one").to_string());
    other.must(
        "PUT",
        "consumers",
        &json!({ "username": "jack", "plugins": { "key-auth": { "key": "s3cret-key" } } }).to_string(),
    );
    let before = cluster.revision();
    other.must("PUT", "routes/1", &route("/1", "other").to_string());
    other.must("DELETE", "consumers/jack", "");
    await_answer(&gateway, "/1", Some("other"));
    let (status, history) = ask("GET", "history", "");
    let keys: Vec<_> =
        history["commits"].as_array().expect("commits").iter().map(|c| c["changes"][0]["key"].clone()).collect();
    assert_eq!(
        (status, keys.as_slice()),
        (200, ["consumers/jack", "routes/1", "consumers/jack", "routes/1"].map(Value::from).as_slice()),
        "{history}"
    );
    assert!(history["commits"][0]["time"].is_null() && history["commits"][0]["author"].is_null(), "{history}");
    let (status, difference) = ask("GET", &format!("diff?from={before}"), "");
    let key = "/plugins/key-auth/key";
    assert_eq!((status, difference["changes"][0]["old"].pointer(key)), (200, Some(&json!("***"))), "{difference}");
    let (status, tried) = ask("POST", "rollback?dry_run=true", &json!({ "revision": before }).to_string());
    assert_eq!((status, tried["changes"].as_array().map(Vec::len)), (200, Some(2)), "{tried}");
    assert_eq!(gateway.get("/1").text(), "other");
    let (status, done) = ask("POST", "rollback", &json!({ "revision": before }).to_string());
    assert_eq!((status, &done["restored"]), (200, &json!(before)), "{done}");
    assert_eq!(gateway.get("/1").text(), "one");
    await_answer(&other, "/1", Some("one"));
    let jack = cluster.value("consumers/jack").expect("the consumer is back");
    assert_ne!(jack.pointer(key), Some(&json!("s3cret-key")), "it is encrypted as this gateway does");
    assert_eq!(gateway.must("GET", "consumers/jack", "")["value"].pointer(key), Some(&json!("s3cret-key")));
    let (_, difference) = ask("GET", &format!("diff?from={before}"), "");
    assert_eq!(difference["changes"], json!([]));

    cluster.compact();
    let now = cluster.revision();
    for (method, path, body) in [
        ("GET", format!("diff?from={before}"), String::new()),
        ("POST", "rollback".to_owned(), json!({ "revision": before }).to_string()),
    ] {
        let (status, answer) = ask(method, &path, &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains(&format!("from {now} to {now}")), "{answer}");
    }
    for told in [history, difference, tried, done] {
        assert!(!told.to_string().contains("s3cret-key"), "{told}");
    }
    cluster.freeze(0);
    let (status, answer) = ask("GET", "history", "");
    assert_eq!(status, 503, "{answer}");
    cluster.thaw(0);
}

#[test]
fn members_may_end_and_come_back() {
    let mut cluster = EtcdCluster::start(3);
    let gateway = start("traditional", &cluster.urls()).start();
    for index in 0..3 {
        cluster.kill(index);
        let path = format!("/{index}");
        wait_until("a change with two of three", LIMIT, || {
            (gateway.ask("PUT", &format!("routes/{index}"), &route(&path, index).to_string()).0 < 300).then_some(())
        });
        assert_eq!(gateway.get(&path).text(), index.to_string());
        cluster.start_member(index);
        cluster.await_healthy();
    }
    // Two that are frozen leave one that cannot decide anything.
    cluster.freeze(0);
    cluster.freeze(1);
    let (status, answer) = gateway.ask("PUT", "routes/frozen", &route("/frozen", "x").to_string());
    assert_eq!(status, 503, "{answer}");
    gateway.await_metric("apisix_etcd_reachable", &[], 0.0);
    assert_eq!(gateway.get("/0").text(), "0", "what is live stays live");
    cluster.thaw(0);
    cluster.thaw(1);
    cluster.await_healthy();
    cluster.put("routes/thawed", route("/thawed", "thawed"));
    await_answer(&gateway, "/thawed", Some("thawed"));

    cluster.kill_all();
    let (status, answer) = gateway.ask("PUT", "routes/away", &route("/away", "x").to_string());
    assert_eq!(status, 503, "{answer}");
    assert_eq!(gateway.get("/0").text(), "0", "what is live stays live");
    cluster.start_all();
    cluster.put("routes/back", route("/back", "back"));
    await_answer(&gateway, "/back", Some("back"));
    gateway.await_metric("apisix_etcd_reachable", &[], 1.0);
    gateway.must("PUT", "routes/9", &route("/9", "nine").to_string());
}

#[test]
fn a_gateway_starts_without_etcd_and_misses_nothing() {
    let mut cluster = EtcdCluster::start(1);
    let relay = Relay::to(cluster.port(0));
    let hosts = [format!("http://{}", relay.addr)];
    let data = tempfile::tempdir().expect("create a folder");
    cluster.put("routes/1", route("/1", "one"));
    cluster.put("routes/gone", route("/gone", "gone"));
    let gateway = start("traditional", &hosts).data_dir(data.path()).start();
    cluster.put("routes/2", route("/2", "two"));
    await_answer(&gateway, "/2", Some("two"));
    let copy = data.path().join("etcd+apisix.json");
    wait_until("the copy", LIMIT, || {
        std::fs::read_to_string(&copy).is_ok_and(|text| text.contains("\"routes/2\"")).then_some(())
    });
    relay.cut();
    drop(gateway);
    cluster.put("routes/1", route("/1", "changed"));
    cluster.delete("routes/gone");
    cluster.compact();
    cluster.kill(0);

    let gateway = start("traditional", &hosts).data_dir(data.path()).start();
    for (path, answer) in [("/1", "one"), ("/2", "two"), ("/gone", "gone")] {
        assert_eq!(gateway.get(path).text(), answer);
    }
    let (status, answer) = gateway.ask("PUT", "routes/3", &route("/3", "three").to_string());
    assert_eq!(status, 503, "{answer}");
    gateway.await_metric("apisix_etcd_reachable", &[], 0.0);
    gateway.logged("is served from the local copy");

    cluster.start_all();
    relay.mend();
    await_answer(&gateway, "/1", Some("changed"));
    await_answer(&gateway, "/gone", None);
    gateway.must("PUT", "routes/3", &route("/3", "three").to_string());
    assert_eq!(gateway.get("/3").text(), "three");
}

#[test]
fn without_etcd_and_without_a_copy_there_is_no_start() {
    let folder = tempfile::tempdir().expect("create a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let nobody = ["http://127.0.0.1:1".to_owned()];
    let etcd = "config_provider: etcd";
    let cases = [
        (settings("data_plane", &nobody, ""), vec![], 1, "there is no copy of its resources"),
        // etcd is APISIX's own provider, so naming one is enough.
        (
            "deployment: {etcd: {host: ['http://127.0.0.1:1'], startup_retry: 0, timeout: 1}}".to_owned(),
            vec![],
            1,
            "there is no copy of its resources",
        ),
        (
            "deployment: {role: data_plane, etcd: {host: ['http://127.0.0.1:1'], startup_retry: 0}}".to_owned(),
            vec![],
            1,
            "there is no copy of its resources",
        ),
        (settings("data_plane", &nobody, "password: x"), vec![], 2, "without deployment.etcd.user"),
        (settings("data_plane", &nobody, "data_encryption: {keyring: [short]}"), vec![], 1, "must have 16"),
        (settings("data_plane", &nobody, "tls: {cert: a}"), vec![], 2, "need each other"),
        (settings("data_plane", &nobody, "tls: {ca: /none}"), vec![], 1, "/none"),
        (settings("data_plane", &["http://127.0.0.1".to_owned()], ""), vec![], 1, "expected http://HOST:PORT"),
        ("deployment: {role: control_plane}".to_owned(), vec![], 2, "needs deployment.config_provider: etcd"),
        ("deployment: {role: data_plane}".to_owned(), vec![], 2, "or a rules file"),
        (format!("deployment: {{{etcd}}}"), vec!["rules.yaml"], 2, "no place for a rules file"),
    ];
    for (settings, arguments, code, words) in cases {
        std::fs::write(folder.path().join("weir.yaml"), &settings).expect("write settings");
        let (settings_file, data) = (path("weir.yaml"), path("data"));
        let mut all =
            vec!["run", "--settings", &settings_file, "--data-dir", &data, "--metrics", "off", "--status", "off"];
        all.extend(arguments);
        let (status, _, errors) = weir(&all);
        assert_eq!(status, code, "{settings}: {errors}");
        assert!(errors.contains(words), "{settings}: {errors}");
    }
}

#[test]
fn what_a_role_has_no_use_for_is_named() {
    let cluster = EtcdCluster::start(1);
    let data = Start::stored().settings(settings("data_plane", &cluster.urls(), "")).start();
    let control = Start::stored().settings(settings("control_plane", &cluster.urls(), "")).start();
    let file = Gateway::with("{\"routes\": []}", "deployment: {role: data_plane, etcd: {prefix: /other}}");
    let cases = [
        (&data, "listen.admin has no effect: a data plane has no Admin API"),
        (&control, "listen.http has no effect: a control plane carries no traffic"),
        (&file, "deployment.etcd has no effect: deployment.config_provider is not etcd"),
    ];
    for (gateway, words) in cases {
        gateway.logged(words);
    }
    assert!(data.admin.is_none() && control.addrs.is_empty());
}

#[test]
fn a_data_plane_reads_over_tls_as_a_user_who_may_only_read() {
    let cluster = EtcdCluster::start_tls(false);
    cluster.put("routes/1", route("/1", "one"));
    cluster.require_users();
    let (authority, _) = cluster.tls();
    let tls = |user: &str| format!("user: {user}, password: secret, tls: {{ca: {}}}", authority.display());
    let reader = settings("data_plane", &cluster.urls(), &tls("reader"));
    let data = Start::stored().admin_by_settings().settings(reader).start();
    let writer = settings("control_plane", &cluster.urls(), &tls("root"));
    let control = Start::stored().own_listeners().settings(writer).start();
    await_answer(&data, "/1", Some("one"));
    control.must("PUT", "routes/2", &route("/2", "two").to_string());
    await_answer(&data, "/2", Some("two"));
    let errors = data.stderr();
    assert!(!errors.contains("permission denied"), "{errors}");
    // With rights to read alone the Admin API says what is missing.
    let reader = settings("control_plane", &cluster.urls(), &tls("reader"));
    let control = Start::stored().own_listeners().settings(reader).start();
    let (status, answer) = control.ask("PUT", "routes/3", &route("/3", "three").to_string());
    assert_eq!(status, 503, "{answer}");
    control.logged("permission denied");
}

#[test]
fn a_gateway_shows_etcd_its_certificate() {
    let cluster = EtcdCluster::start_tls(true);
    cluster.put("routes/1", route("/1", "one"));
    let (authority, client) = cluster.tls();
    let files = (authority.display(), client.cert_file.display(), client.key_file.display());
    let tls = format!("tls: {{ca: {}, cert: {}, key: {}}}", files.0, files.1, files.2);
    let gateway = Start::stored().settings(settings("traditional", &cluster.urls(), &tls)).start();
    assert_eq!(gateway.get("/1").text(), "one");
    gateway.must("PUT", "routes/2", &route("/2", "two").to_string());
    assert_eq!(gateway.get("/2").text(), "two");

    // Another authority's certificates, and none, are told in plain words.
    let folder = tempfile::tempdir().expect("create a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let foreign = Authority::new();
    let foreign = format!("tls: {{ca: {}, cert: {}, key: {}}}", foreign.file().display(), files.1, files.2);
    let without = format!("tls: {{ca: {}}}", files.0);
    for (tls, words) in [
        (foreign, "the certificate's signature, or one made with its key, is wrong"),
        (without, "the other side ended it with the alert \""),
    ] {
        std::fs::write(folder.path().join("weir.yaml"), settings("data_plane", &cluster.urls(), &tls))
            .expect("write settings");
        let (settings, data) = (path("weir.yaml"), path("data"));
        let (status, _, errors) =
            weir(&["run", "--settings", &settings, "--data-dir", &data, "--metrics", "off", "--status", "off"]);
        assert!(status == 1 && errors.contains(words), "{words}: {errors}");
    }
}

#[test]
fn secrets_lie_in_etcd_as_apisix_reads_them() {
    let cluster = EtcdCluster::start(1);
    let mine = "data_encryption: {keyring: [0123456789abcdef, qeddd145sfvddff3]}";
    let gateway = Start::stored().settings(settings("traditional", &cluster.urls(), mine)).start();
    let consumer = json!({ "username": "jack", "plugins": { "key-auth": { "key": "auth-one" } } });
    gateway.must("PUT", "consumers", &consumer.to_string());
    let kept = cluster.value("consumers/jack").expect("a consumer");
    let sealed = kept["plugins"]["key-auth"]["key"].as_str().expect("a text");
    // `printf auth-one | openssl enc -aes-128-cbc -a -K HEX -iv HEX`, HEX being the digits of the first key.
    assert_eq!(sealed, "vXsdHx8Wcc8WHw9xMPtmYQ==");
    assert_eq!(gateway.must("GET", "consumers/jack", "")["value"]["plugins"]["key-auth"]["key"], "auth-one");

    // A value that APISIX encrypted with its own key, and a value in plain text.
    let old = json!({ "username": "old", "plugins": { "key-auth": { "key": "Miw9nx9VcNLvGX0g835QIQ==" } } });
    cluster.put("consumers/old", old);
    cluster.put("consumers/plain", json!({ "username": "plain", "plugins": { "key-auth": { "key": "auth-plain" } } }));
    let plugins = json!({ "key-auth": {}, "mocking": { "response_example": "in" } });
    gateway.must("PUT", "routes/1", &json!({ "uri": "/1", "plugins": plugins }).to_string());
    for key in ["auth-one", "auth-two", "auth-plain"] {
        wait_until(&format!("{key} to be known"), LIMIT, || {
            let request = format!("GET /1 HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\nConnection: close\r\n\r\n");
            (gateway.client().request(request).status == 200).then_some(())
        });
    }
    copy_is_sealed(&gateway.file("data"));
}

#[test]
fn what_the_documentation_tells_to_do_works() {
    let text = document("docs/etcd.md");
    let blocks = |kind: &str| {
        let parts: Vec<String> = text.split(&format!("```{kind}\n")).skip(1).map(str::to_owned).collect();
        parts.into_iter().map(|part| part.split("```").next().unwrap_or_default().to_owned())
    };
    let yaml = blocks("yaml").next().expect("settings");
    let variables = [("ETCD_PASSWORD".to_owned(), "secret".to_owned())];
    let source =
        SettingsSource { file: Some(("weir.yaml", &yaml)), variables: &variables, ..SettingsSource::default() };
    let (settings, doubts) = Settings::load(source).expect("good settings");
    assert!(doubts.is_empty(), "{doubts:?}");
    assert_eq!(settings.deployment.etcd.password.expose(), "secret");
    let cluster = EtcdCluster::start(1);
    let commands = blocks("sh").filter(|block| block.contains("etcdctl")).collect::<String>();
    for line in commands.lines() {
        cluster.ctl(&line.split_whitespace().skip(1).collect::<Vec<_>>());
    }
    assert!(cluster.ctl(&["role", "get", "weir-reader"]).contains("/apisix/"));
}

/// The copy holds no secret either.
fn copy_is_sealed(data: &Path) {
    let copy = data.join("etcd+apisix.json");
    let text = wait_until("the copy", LIMIT, || {
        std::fs::read_to_string(&copy).ok().filter(|text| text.contains("consumers/plain"))
    });
    for secret in ["auth-one", "auth-two", "auth-plain"] {
        assert!(!text.contains(secret), "{text}");
    }
}

/// Gateways tell of themselves at APISIX's key of server-info, and the dashboard shows versions that differ.
#[test]
fn gateways_of_other_versions_are_told() {
    let cluster = EtcdCluster::start(1);
    let other = json!({ "product": "weir", "id": "x", "hostname": "old-one", "version": "0.0.1" });
    cluster.put("data_plane/server_info/x", &other);
    cluster.put("data_plane/server_info/apisix", json!({ "id": "apisix", "hostname": "a", "version": "3.14.0" }));
    let problem = |gateway: &Gateway| {
        wait_until("the problem of a version", LIMIT, || {
            let (status, told) = crate::extensions::ask(gateway, "GET", "problems", "");
            assert_eq!(status, 200, "{told}");
            let found = told["problems"].as_array()?.iter().find(|one| one["sort"] == "version")?;
            Some(found["text"].as_str().expect("a text").to_owned())
        })
    };
    let mut gateway = start("traditional", &cluster.urls()).start();
    let version = env!("CARGO_PKG_VERSION");
    assert!(problem(&gateway).starts_with("1 of 2 gateways run another version than"), "{}", problem(&gateway));
    assert!(problem(&gateway).ends_with(&format!("{version}: old-one 0.0.1")), "{}", problem(&gateway));
    let keys = || cluster.ctl(&["get", "--prefix", "--keys-only", "/apisix/data_plane/server_info/"]);
    let own = || keys().lines().filter(|key| !key.is_empty()).count();
    assert_eq!(own(), 3, "{}", keys());
    // A data plane looks, and writes nothing. It has no Admin API for others; its own page shows what it sees.
    let _data = start("data_plane", &cluster.urls()).start();
    assert_eq!(own(), 3, "{}", keys());
    // A gateway that stops takes itself back.
    gateway.signal(rustix::process::Signal::TERM);
    assert!(gateway.wait().success());
    wait_until("the key of the gateway to go", LIMIT, || (own() == 2).then_some(()));
}
