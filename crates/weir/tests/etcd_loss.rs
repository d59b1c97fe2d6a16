//! Gateways whose etcd loses its resources: what serves and its copy stay until somebody accepts the loss.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::etcd::{await_answer, route, start};
use crate::harness::{EtcdCluster, Gateway, LIMIT, RawClient, Response, wait_until};

fn request(addr: std::net::SocketAddr, line: &str) -> Response {
    RawClient::connect(addr).request(format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

pub(crate) fn accept(gateway: &Gateway) -> Value {
    let answer = request(gateway.control.expect("a control API"), "POST /v1/store/accept");
    assert_eq!(answer.status, 200);
    answer.json()["accepted"].clone()
}

pub(crate) fn is_ready(gateway: &Gateway) -> bool {
    request(gateway.status, "GET /status/ready").status == 200
}

fn withheld(gateway: &Gateway) -> bool {
    gateway.metric("weir_config_withheld", &[]) == 1.0
}

fn copy(data: &Path) -> String {
    fs::read_to_string(data.join("etcd+apisix.json")).unwrap_or_default()
}

/// Waits until the copy has some resources and lacks others.
fn await_copy(data: &TempDir, has: &[&str], lacks: &[&str]) {
    let named = |text: &str, key: &&str| text.contains(&format!("\"{key}\""));
    wait_until(&format!("a copy with {has:?} and without {lacks:?}"), LIMIT, || {
        let text = copy(data.path());
        (has.iter().all(|key| named(&text, key)) && !lacks.iter().any(|key| named(&text, key))).then_some(())
    });
}

/// A cluster with two routes, and a gateway that serves them and has a copy of them.
fn serving() -> (EtcdCluster, TempDir, Gateway) {
    let cluster = EtcdCluster::start(1);
    for name in ["1", "2"] {
        cluster.put(&format!("routes/{name}"), route(&format!("/{name}"), name));
    }
    let data = tempfile::tempdir().expect("create a folder");
    let gateway = start("traditional", &cluster.urls()).control().data_dir(data.path()).start();
    await_answer(&gateway, "/2", Some("2"));
    await_copy(&data, &["routes/1", "routes/2"], &[]);
    (cluster, data, gateway)
}

/// A way to lose resources.
type Loss = fn(&mut EtcdCluster);

#[test]
fn a_loss_replaces_nothing_until_it_is_accepted() {
    // The loss, a word of the log, the routes that are left.
    let cases: [(Loss, &str, &[&str]); 5] = [
        (|cluster| drop(cluster.ctl(&["del", "--prefix", "/apisix/"])), "holds none", &[]),
        // The watch reports the final state only, because the revisions in between are compacted away.
        (
            |cluster| {
                cluster.freeze(0);
                cluster.thaw(0);
                cluster.ctl(&["del", "--prefix", "/apisix/"]);
                cluster.put("routes/new", route("/new", "new"));
                cluster.compact();
            },
            "holds",
            &["new"],
        ),
        (|cluster| cluster.forget(0), "is another cluster", &[]),
        (
            |cluster| {
                cluster.forget(0);
                cluster.put("routes/1", route("/1", "other"));
            },
            "is another cluster",
            &["1"],
        ),
        // A member that comes back with its disk of yesterday.
        (
            |cluster| {
                cluster.kill_all();
                cluster.set_back(0);
                cluster.start_all();
            },
            "was set back from revision",
            &["1"],
        ),
    ];
    for (number, (lose, words, left)) in cases.into_iter().enumerate() {
        let (mut cluster, data, gateway) = if number == 4 { serving_after_a_backup() } else { serving() };
        lose(&mut cluster);
        wait_until(&format!("loss {number} to be noticed"), LIMIT, || withheld(&gateway).then_some(()));
        let line = gateway.logged(words);
        assert!(line.contains("ERROR") || line.contains("error"), "{line}");
        // Nothing of it, nor what comes after it, is taken over.
        cluster.put("routes/later", route("/later", "later"));
        let stays = |gateway: &Gateway| {
            for name in ["1", "2"] {
                assert_eq!(gateway.get(&format!("/{name}")).text(), name, "after loss {number}");
            }
            for name in ["new", "later"] {
                assert_eq!(gateway.get(&format!("/{name}")).status, 404, "after loss {number}");
            }
            assert!(is_ready(gateway), "it has something to serve");
            let (status, answer) = gateway.ask("PUT", "routes/mine", &route("/mine", "mine").to_string());
            assert_eq!((status, answer.to_string().contains("/v1/store/accept")), (503, true), "{answer}");
            await_copy(&data, &["routes/1", "routes/2"], &["routes/later"]);
        };
        stays(&gateway);
        // Nor does a reload accept it, or a process that starts.
        gateway.signal(rustix::process::Signal::HUP);
        stays(&gateway);
        let mut gateway = gateway;
        gateway.signal(rustix::process::Signal::TERM);
        gateway.wait();
        drop(gateway);
        let gateway = start("traditional", &cluster.urls()).control().data_dir(data.path()).start();
        wait_until("the loss to be noticed again", LIMIT, || withheld(&gateway).then_some(()));
        gateway.logged("those of the local copy are served");
        stays(&gateway);

        let told = accept(&gateway);
        assert_eq!(told["resources"], json!(left.len() + 1), "{told}");
        assert!(!withheld(&gateway));
        for name in ["1", "2", "new", "later"] {
            let is_left = name == "later" || left.contains(&name);
            let status = gateway.get(&format!("/{name}")).status;
            assert_eq!(status, if is_left { 200 } else { 404 }, "/{name} after loss {number}");
        }
        await_copy(&data, &["routes/later"], if left.contains(&"2") { &[] } else { &["routes/2"] });
        gateway.must("PUT", "routes/mine", &route("/mine", "mine").to_string());
        assert_eq!(gateway.get("/mine").text(), "mine");
        assert_eq!(accept(&gateway), Value::Null, "nothing is withheld any more");
    }
}

/// As [`serving`], with a backup of etcd that has the first route alone.
fn serving_after_a_backup() -> (EtcdCluster, TempDir, Gateway) {
    let mut cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route("/1", "1"));
    cluster.kill_all();
    cluster.keep(0);
    cluster.start_all();
    cluster.put("routes/2", route("/2", "2"));
    let data = tempfile::tempdir().expect("create a folder");
    let gateway = start("traditional", &cluster.urls()).control().data_dir(data.path()).start();
    await_copy(&data, &["routes/1", "routes/2"], &[]);
    (cluster, data, gateway)
}

#[test]
fn resources_are_deleted_by_hand_to_the_last() {
    let (cluster, data, gateway) = serving();
    cluster.delete("routes/2");
    await_answer(&gateway, "/2", None);
    cluster.delete("routes/1");
    await_answer(&gateway, "/1", None);
    assert!(!withheld(&gateway));
    await_copy(&data, &[], &["routes/1", "routes/2"]);
    // A single one, and one of several at one revision.
    for name in ["1", "2", "3"] {
        cluster.put(&format!("routes/{name}"), route(&format!("/{name}"), name));
        await_answer(&gateway, &format!("/{name}"), Some(name));
    }
    cluster.ctl(&["del", "/apisix/routes/1", "/apisix/routes/3"]);
    await_answer(&gateway, "/2", None);
    assert_eq!((gateway.get("/3").text().as_str(), withheld(&gateway)), ("3", false));
}

#[test]
fn what_is_put_back_is_followed_again() {
    let (cluster, _data, gateway) = serving();
    cluster.ctl(&["del", "--prefix", "/apisix/"]);
    wait_until("the loss to be noticed", LIMIT, || withheld(&gateway).then_some(()));
    // One after the other, as an import does it: half of it is no reason to lose the other half.
    cluster.put("routes/more", route("/more", "more"));
    cluster.put("routes/1", route("/1", "1"));
    cluster.put("routes/2", route("/2", "changed"));
    gateway.logged("others");
    assert_eq!((gateway.get("/2").text().as_str(), gateway.get("/more").status), ("2", 404));
    cluster.put("routes/2", route("/2", "2"));
    await_answer(&gateway, "/more", Some("more"));
    assert!(!withheld(&gateway));
    gateway.logged("holds the resources in force again");
    cluster.put("routes/2", route("/2", "changed"));
    await_answer(&gateway, "/2", Some("changed"));
}

#[test]
fn a_data_plane_that_has_nothing_is_not_ready() {
    let cluster = EtcdCluster::start(1);
    let first = start("data_plane", &cluster.urls()).control().start();
    let second = start("data_plane", &cluster.urls()).control().start();
    let both = start("traditional", &cluster.urls()).start();
    assert!(is_ready(&both), "its Admin API is where resources come from");
    for data_plane in [&first, &second] {
        assert!(!is_ready(data_plane));
        data_plane.logged("etcd holds no resource");
    }
    assert_eq!(accept(&second)["resources"], json!(0));
    assert!(is_ready(&second), "nothing is what it shall serve");
    assert!(!is_ready(&first));
    both.must("PUT", "routes/1", &route("/1", "1").to_string());
    wait_until("the data plane to be ready", LIMIT, || is_ready(&first).then_some(()));
    both.must("DELETE", "routes/1", "");
    await_answer(&first, "/1", None);
    assert!(is_ready(&first), "it was told so");
}
