//! Two gateways with Weir as their backend: no report is lost or counted twice when one of them, or the backend, is killed.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::send;
use crate::harness::{Gateway, LIMIT, Origin, RawClient, Start, free_port, wait_until, weir};

/// The backend's port and data, which outlive it, and what is behind the gateways.
struct Fleet {
    folder: TempDir,
    origin: Origin,
    port: u16,
}

impl Fleet {
    fn new() -> Self {
        let fleet =
            Self { folder: tempfile::tempdir().expect("create a folder"), origin: Origin::hello(), port: free_port() };
        let services = json!({ "services": [{
            "id": "1", "provider_key": "p", "service_tokens": ["t"], "backend_version": "1",
            "metrics": [{ "name": "hits" }],
            "plans": [{ "id": "basic", "limits": [{ "metric": "hits", "period": "eternity", "value": 100_000 }] }],
            "applications": [{ "id": "a", "user_keys": ["good"], "plan": "basic" }],
        }] });
        fs::write(fleet.folder.path().join("services.json"), services.to_string()).expect("write the services");
        fleet
    }

    fn backend(&self) -> Gateway {
        let settings = json!({
            "listen": { "threescale_backend": format!("127.0.0.1:{}", self.port) },
            "threescale_backend": { "file": self.folder.path().join("services.json") },
        });
        Start::new(json!({ "routes": [] })).settings(settings).data_dir(&self.folder.path().join("data")).start()
    }

    /// A gateway that reports each second, and keeps what it cannot report in a folder of its own.
    fn client(&self, name: &str) -> Gateway {
        let file = self.folder.path().join("apicast.json");
        let batcher = json!({ "auths_ttl": 600, "batch_report_seconds": 1 });
        let document = json!({ "services": [{
            "id": 1, "backend_version": "1", "backend_authentication_type": "service_token",
            "backend_authentication_value": "t",
            "proxy": {
                "api_backend": format!("http://{}", self.origin.node()), "hosts": ["a.test"],
                "backend": { "endpoint": format!("http://127.0.0.1:{}", self.port) },
                "proxy_rules": [{ "http_method": "GET", "pattern": "/", "metric_system_name": "hits", "delta": 1 }],
                "policy_chain": [{ "name": "3scale_batcher", "configuration": batcher }, { "name": "apicast" }],
            },
        }] });
        fs::write(&file, document.to_string()).expect("write a file");
        Start::at(&file).settings(json!({ "reports": { "spill": self.folder.path().join(name) } })).start()
    }

    /// Calls that the backend has counted.
    fn counted(&self) -> Option<u64> {
        let target = "/transactions/authorize.xml?service_token=t&service_id=1&user_key=good";
        let mut client = RawClient::connect(([127, 0, 0, 1], self.port).into());
        let answer =
            client.request(format!("GET {target} HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n")).text();
        answer.split_once("<current_value>")?.1.split_once('<')?.0.parse().ok()
    }

    fn await_count(&self, expected: u64) {
        let mut last = None;
        wait_until(&format!("{expected} calls to be counted"), LIMIT, || {
            last = self.counted();
            assert!(last.is_none_or(|counted| counted <= expected), "{last:?} of {expected}: some are counted twice");
            (last == Some(expected)).then_some(())
        });
    }
}

fn call(gateway: &Gateway, times: u64) {
    for _ in 0..times {
        assert_eq!(send(gateway, "GET /?user_key=good").status, 200);
    }
}

/// True once a report of the gateway has failed.
fn has_failed(gateway: &Gateway) -> bool {
    gateway.metric("weir_reports_retries_total", &[("plugin", "apicast")]) > 0.0
}

/// Waits until the database with the counts has not changed for longer than they are held back.
fn await_rest(data: &Path) {
    let written = || fs::metadata(data.join("plans.db-wal")).and_then(|file| file.modified()).ok();
    let pause = std::time::Duration::from_millis(1200);
    wait_until("counts to be written", LIMIT, || {
        let age = written().and_then(|at| at.elapsed().ok());
        age.is_some_and(|age| age > pause).then_some(())
    });
}

#[test]
fn no_report_is_lost_or_doubled_when_one_is_killed() {
    let fleet = Fleet::new();
    let data = fleet.folder.path().join("data");
    let backend = fleet.backend();
    let (first, mut second) = (fleet.client("first"), fleet.client("second"));
    call(&first, 30);
    call(&second, 20);
    fleet.await_count(50);
    await_rest(&data);
    // The backend is killed while both have nothing to report; what comes meanwhile waits.
    drop(backend);
    call(&first, 7);
    call(&second, 5);
    wait_until("reports that fail", LIMIT, || (has_failed(&first) && has_failed(&second)).then_some(()));
    // A gateway that stops meanwhile leaves its reports to the next one.
    second.signal(Signal::TERM);
    assert!(second.wait().success());
    let _backend = fleet.backend();
    fleet.await_count(57);
    let second = fleet.client("second");
    fleet.await_count(62);
    call(&second, 3);
    fleet.await_count(65);
    // A gateway that is killed when it has reported everything leaves nothing to be reported again.
    drop(first);
    let first = fleet.client("first");
    call(&first, 1);
    fleet.await_count(66);
}

/// A file of the backend that is no configuration of APIcast is told as such.
#[test]
fn the_backends_file_is_told_from_apicasts() {
    let fleet = Fleet::new();
    let file = fleet.folder.path().join("services.json");
    let (code, out, err) = weir(&["check", file.to_str().expect("a path")]);
    assert!(code != 0 && format!("{out}{err}").contains("threescale_backend"), "{out}{err}");
}
