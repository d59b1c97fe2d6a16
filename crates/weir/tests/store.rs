//! The embedded store: what was acknowledged stays, whatever happens, and the gateway serves meanwhile.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::etcd_loss::is_ready;
use crate::harness::{
    ADMIN_KEY, Gateway, LIMIT, Origin, RawClient, Start, binary, program, put_program, repository, wait_until, weir,
};

/// A route that answers by itself, so that no origin is needed.
fn mock(uri: &str, answer: &str) -> String {
    json!({"uri": uri, "plugins": {"mocking": {"response_example": answer, "content_type": "text/plain"}}}).to_string()
}

/// Runs `weir store` on a data directory.
fn store(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let folder = folder.display().to_string();
    let words: Vec<&str> = ["store"].iter().chain(arguments).copied().chain(["--data-dir", &folder]).collect();
    weir(&words)
}

/// As [`store`], for what has to succeed.
fn done(folder: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = store(folder, arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{err}");
    out
}

#[test]
fn a_change_is_live_when_it_is_answered_for_and_survives_the_process() {
    let data = tempfile::tempdir().expect("a folder");
    let origin = Origin::hello();
    {
        let mut gateway = Start::stored().data_dir(data.path()).workers(2).start();
        assert_eq!(gateway.get("/a").status, 404);
        let nodes = json!({ origin.addr().to_string(): 1 });
        gateway.must("PUT", "upstreams/1", &json!({ "nodes": nodes }).to_string());
        for number in 0..20 {
            let path = format!("/a{number}");
            gateway.must("PUT", &format!("routes/{number}"), &json!({ "uri": path, "upstream_id": "1" }).to_string());
            assert_eq!(gateway.get(&path).status, 200, "{path}");
        }
        // A reference to a resource that does not exist is refused, and nothing has changed.
        let (status, answer) = gateway.ask("PUT", "routes/0", r#"{"uri": "/a0", "upstream_id": "none"}"#);
        assert_eq!(status, 400, "{answer}");
        assert_eq!(gateway.get("/a0").status, 200);
        assert_eq!(gateway.metric("weir_store_up", &[]), 1.0);
        assert_eq!(gateway.metric("weir_store_revision", &[]), 21.0);
        assert_eq!(gateway.metric("weir_config_rejected_total", &[]), 1.0);
        gateway.must("DELETE", "routes/3", "");
        assert_eq!(gateway.get("/a3").status, 404);
        gateway.signal(Signal::TERM);
        assert!(gateway.wait().success());
    }
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!((gateway.get("/a3").status, gateway.get("/a4").status), (404, 200));
    // Everything is its owner's alone.
    for entry in fs::read_dir(data.path()).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let mode = fs::metadata(&entry).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", entry.display());
    }
}

/// Changes that arrive while another one is made are committed as a group; each gets its own response.
#[test]
fn changes_of_many_clients_are_made_together() {
    const CLIENTS: usize = 16;
    const CHANGES: usize = 12;
    let gateway = Start::stored().workers(2).start();
    // All clients change this one too, so that they wait for each other.
    gateway.must("PUT", "routes/all", &mock("/all", "0"));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let gateway = &gateway;
            scope.spawn(move || {
                for change in 0..CHANGES {
                    let (id, text) = (format!("routes/{client}"), format!("{client}.{change}"));
                    gateway.must("PUT", &id, &mock(&format!("/{client}"), &text));
                    assert_eq!(gateway.get(&format!("/{client}")).text(), text);
                    if client == 0 {
                        // Among those that are right, and refused alone.
                        let (status, answer) = gateway.ask("PUT", &id, r#"{"uri": "/x", "upstream_id": "none"}"#);
                        assert_eq!(status, 400, "{answer}");
                    }
                    gateway.must("PATCH", "routes/all", &json!({"desc": text}).to_string());
                    assert_eq!(gateway.get(&format!("/{client}")).text(), text);
                }
            });
        }
    });
    let made = 1 + 2 * (CLIENTS * CHANGES) as u64;
    assert_eq!(gateway.metric("weir_store_revision", &[]), made as f64);
    let taken = gateway.metric("weir_config_revision", &[]);
    assert!(taken < made as f64, "{made} changes were taken by the workers one by one");
}

#[test]
fn what_expires_is_not_served_any_more() {
    let gateway = Start::stored().start();
    gateway.must("PUT", "routes/1?ttl=5", &mock("/a", "a"));
    assert_eq!(gateway.get("/a").status, 200);
    wait_until("the route to expire", LIMIT, || (gateway.get("/a").status == 404).then_some(()));
    assert_eq!(gateway.ask("GET", "routes/1", "").0, 404);
}

/// Kills the gateway at a moment by chance, under writes, again and again.
#[test]
fn no_kill_loses_what_was_acknowledged() {
    const KILLS: u64 = 200;
    let data = tempfile::tempdir().expect("a folder");
    let writer = Writer::default();
    let mut acknowledged = [None; 4];
    for round in 0..KILLS {
        let gateway = Start::stored().data_dir(data.path()).argument("--set").argument("store.history=50").start();
        let listed = gateway.must("GET", "routes", "");
        let number = |entry: &Value| entry["value"]["desc"].as_str()?.parse::<u64>().ok();
        for (route, acknowledged) in acknowledged.iter().enumerate() {
            let mut list = listed["list"].as_array().expect("a list").iter();
            let id = route.to_string();
            let kept = list.find(|entry| entry["value"]["id"] == id.as_str()).and_then(number);
            // A change in progress may be there or not.
            assert!(
                kept >= *acknowledged,
                "round {round}: of route {route} {acknowledged:?} was answered and {kept:?} is there"
            );
        }
        let client = RawClient::connect(gateway.admin.expect("an Admin API"));
        let before = writer.answered.load(SeqCst);
        thread::scope(|scope| {
            scope.spawn(|| writer.write(client, &mut acknowledged));
            let enough = before + 1 + round % 3;
            wait_until("answers", LIMIT, || (writer.answered.load(SeqCst) >= enough).then_some(()));
            // A change takes some milliseconds: the kill hits each part of it.
            thread::sleep(Duration::from_micros(round * 7919 % 8000));
            gateway.signal(Signal::KILL);
        });
    }
    assert!(done(data.path(), &["check"]).contains("whole"));
}

/// Writes into routes, each time another number, and counts the answers.
#[derive(Default)]
struct Writer {
    last: AtomicU64,
    answered: AtomicU64,
}

impl Writer {
    /// Writes until the connection ends; notes what was answered for.
    fn write(&self, mut client: RawClient, acknowledged: &mut [Option<u64>]) {
        loop {
            let number = self.last.fetch_add(1, SeqCst) + 1;
            let route = number as usize % acknowledged.len();
            let plugins = json!({"mocking": {"response_example": "a"}});
            let body = json!({"uri": format!("/{route}"), "desc": number.to_string(), "plugins": plugins}).to_string();
            let length = body.len();
            let sent = client.offer(format!(
                "PUT /apisix/admin/routes/{route} HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ));
            let Some(answer) = sent.then(|| client.try_response()).and_then(Result::ok) else { return };
            assert!(answer.status < 300, "{answer:?}");
            acknowledged[route] = Some(number);
            self.answered.fetch_add(1, SeqCst);
        }
    }
}

/// The gateway serves, and changes are answered 503 with the reason, as long as they cannot be kept.
fn refuses_changes_and_serves(gateway: &Gateway, words: &str) {
    let (status, answer) = gateway.ask("PUT", "routes/new", &mock("/new", "new"));
    assert_eq!(status, 503, "{answer}");
    assert!(answer.to_string().contains(words), "{words}: {answer}");
    assert_eq!((gateway.get("/a").status, gateway.get("/new").status), (200, 404));
    assert_eq!(gateway.metric("weir_store_up", &[]), 0.0);
    assert_eq!(gateway.ask("GET", "routes/a", "").0, 200, "what is there can be read");
}

#[test]
fn a_full_disk_is_told_and_serving_goes_on() {
    // Files may not become larger than 300 KB: a write beyond fails as on a full disk.
    let limited = ["sh", "-c", r#"trap '' XFSZ; ulimit -f 600 && exec "$0" "$@""#];
    let data = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(data.path()).wrapper(&limited).start();
    gateway.must("PUT", "routes/a", &mock("/a", "a"));
    // Ever smaller ones, until there is room for none.
    let (mut kept, mut number) = (0, 0);
    for size in [60_000, 2_000, 1] {
        let refused = (0..100).find_map(|_| {
            number += 1;
            let route = mock(&format!("/{number}"), &"x".repeat(size));
            let (status, answer) = gateway.ask("PUT", &format!("routes/{number}"), &route);
            kept += usize::from(status == 201);
            (status != 201).then_some((status, answer))
        });
        let (status, answer) = refused.expect("a write that has no room");
        assert_eq!(status, 503, "{answer}");
    }
    refuses_changes_and_serves(&gateway, "disk");
    drop(gateway);
    // With room again all that was answered for is there, and there can be more.
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!(gateway.must("GET", "routes", "")["total"], kept + 1);
    gateway.must("PUT", "routes/new", &mock("/new", "new"));
    assert_eq!((gateway.get("/a").status, gateway.get("/new").status), (200, 200));
}

#[test]
fn a_read_only_file_is_told_and_served_from() {
    let data = tempfile::tempdir().expect("a folder");
    {
        let mut gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "routes/a", &mock("/a", "a"));
        gateway.signal(Signal::TERM);
        assert!(gateway.wait().success());
    }
    let file = data.path().join("weir.db");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).expect("change the mode");
    // Root may write to the file nevertheless.
    let root = fs::metadata(&file).expect("a file").uid() == 0;
    let as_root = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all"];
    let start = Start::stored().data_dir(data.path());
    let gateway = if root { start.wrapper(&as_root).start() } else { start.start() };
    refuses_changes_and_serves(&gateway, "readonly");
}

#[test]
fn a_damaged_store_leaves_the_last_good_state_serving() {
    let cut = |file: &Path| {
        let text = fs::read(file).expect("read");
        fs::write(file, &text[..text.len() / 2]).expect("write");
    };
    let overwritten = |file: &Path| {
        let mut text = fs::read(file).expect("read");
        let from = text.len() / 3;
        text[from..].fill(0xa5);
        fs::write(file, text).expect("write");
    };
    let none = |file: &Path| fs::write(file, "no database").expect("write");
    let gone = |file: &Path| fs::remove_file(file).expect("remove");
    let empty = |file: &Path| fs::write(file, "").expect("write");
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Damage<'_>); 5] =
        [("cut", &cut), ("overwritten", &overwritten), ("none", &none), ("gone", &gone), ("empty", &empty)];
    for (name, harm) in cases {
        let data = tempfile::tempdir().expect("a folder");
        {
            let mut gateway = Start::stored().data_dir(data.path()).start();
            gateway.must("PUT", "routes/a", &mock("/a", "a"));
            gateway.signal(Signal::TERM);
            assert!(gateway.wait().success());
        }
        harm(&data.path().join("weir.db"));
        {
            let mut gateway = Start::stored().data_dir(data.path()).start();
            refuses_changes_and_serves(&gateway, "weir store restore");
            gateway.signal(Signal::TERM);
            assert!(gateway.wait().success());
        }
        let (code, out, err) = store(data.path(), &["check"]);
        assert_eq!(code, 1, "{name}: {out}{err}");
        assert!(err.contains("`weir store restore` takes the copy of revision 1"), "{name}: {err}");
        done(data.path(), &["restore"]);
        assert!(done(data.path(), &["check"]).contains("whole; revision 1: 1 route"), "{name}");
        let gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "routes/b", &mock("/b", "b"));
        assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 200), "{name}");
    }
}

#[test]
fn one_gateway_uses_a_store_and_a_second_is_told() {
    let data = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(data.path()).start();
    gateway.must("PUT", "routes/a", &mock("/a", "a"));
    let folder = data.path().display().to_string();
    let (code, _, err) = weir(&["run", "--data-dir", &folder, "--listen-http", "127.0.0.1:0"]);
    let owner = format!("process {} uses the data directory", gateway.process.id());
    assert!(code == 1 && err.contains(&owner), "{code}: {err}");
    // Commands that read work meanwhile; commands that write are refused.
    assert!(done(data.path(), &["check"]).contains("whole; revision 1: 1 route"));
    assert!(done(data.path(), &["export"]).contains("uri: /a"));
    assert!(done(data.path(), &["history"]).contains("+ routes/a"));
    for arguments in [&["rollback", "0"][..], &["restore"], &["import", "-"]] {
        let (code, _, err) = store(data.path(), arguments);
        assert!(code == 1 && (err.contains(&owner) || arguments[0] == "import"), "{arguments:?}: {code}: {err}");
    }
    assert_eq!(gateway.get("/a").status, 200);
}

#[test]
fn a_new_process_takes_the_store_over() {
    let data = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(data.path()).start();
    for round in 0..3 {
        let name = format!("a{round}");
        gateway.must("PUT", &format!("routes/{name}"), &mock(&format!("/{name}"), "a"));
        let first = gateway.process.id();
        let before = fs::read_to_string(data.path().join("lock")).expect("the lock");
        gateway.signal(Signal::USR2);
        // Changes go on all the time.
        let put = |path: &str, answer: &str| {
            let (status, told) = gateway.ask("PUT", &format!("routes{path}"), &mock(path, answer));
            assert!(status < 300, "{path}: {status} {told}");
            assert_eq!(gateway.get(path).text(), answer, "{path}: answered for and live");
        };
        let mut number = 0;
        wait_until("another process to have the store", LIMIT, || {
            number += 1;
            put(&format!("/b{round}-{number}"), "b");
            let now = fs::read_to_string(data.path().join("lock")).expect("the lock");
            (now != before && !now.is_empty()).then_some(())
        });
        assert_eq!(gateway.process.id(), first, "the first process stays for whoever started it");
        put(&format!("/{name}"), "new");
    }
}

/// One that takes the store and then fails leaves the old one with it.
#[test]
fn a_new_process_that_fails_gives_the_store_back() {
    let data = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(data.path()).linked().start();
    gateway.must("PUT", "routes/a", &mock("/a", "a"));
    let program = gateway.file("successor");
    let lock = data.path().join("lock").display().to_string();
    let text = format!(
        r#"#!/usr/bin/env python3
import fcntl, socket
channel = socket.socket(fileno=0)
channel.send(b'{{"kind": "hello"}}')
while b'"end"' not in channel.recv(65536): pass
channel.send(b'{{"kind": "prepared"}}')
lock = open("{lock}", "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
channel.send(b'{{"kind": "failed", "reason": "it has the store and does not serve"}}')
"#
    );
    put_program(&program, &text);
    let link = gateway.file("weir.new");
    std::os::unix::fs::symlink(&program, &link).expect("make a link");
    fs::rename(&link, gateway.file("weir")).expect("rename a link");
    gateway.signal(Signal::USR2);
    wait_until("the upgrade to fail", LIMIT, || gateway.stderr().contains("does not serve").then_some(()));
    gateway.must("PUT", "routes/b", &mock("/b", "b"));
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 200));
    // Nobody else has got in meanwhile.
    let (code, _, err) = store(data.path(), &["rollback", "0"]);
    assert!(code == 1 && err.contains("the gateway is running"), "{code} {err}");
}

#[test]
fn what_was_changed_by_hand_is_read_on_sighup() {
    let data = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(data.path()).start();
    gateway.must("PUT", "routes/a", &mock("/a", "a"));
    assert!(set_by_hand(data.path(), "routes/a", &mock("/b", "b")), "the value was changed");
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 404));
    gateway.signal(Signal::HUP);
    wait_until("the change to be live", LIMIT, || (gateway.get("/b").status == 200).then_some(()));
    assert_eq!(gateway.get("/a").status, 404);
}

#[test]
fn a_store_is_exported_and_imported_again() {
    let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let secret = "a-key-that-nobody-may-read";
    {
        let mut gateway = Start::stored().data_dir(one.path()).start();
        gateway.must("PUT", "upstreams/1", r#"{"nodes": {"127.0.0.1:1": 1}, "desc": "a\nb\n"}"#);
        gateway.must("PUT", "routes/1", r#"{"uri": "/1", "upstream_id": "1", "plugins": {"key-auth": {}}}"#);
        gateway.must("PUT", "routes/a", &mock("/a", "yes"));
        let consumer = json!({"username": "jack", "plugins": {"key-auth": {"key": secret}}});
        gateway.must("PUT", "consumers", &consumer.to_string());
        gateway.must("PUT", "consumers/jack/credentials/c", r#"{"plugins": {"key-auth": {"key": "of-a-credential"}}}"#);
        gateway.must("PUT", "plugin_metadata/prometheus", r#"{"export_uri": "/m"}"#);
        gateway.must("PUT", "protos/p", r#"{"content": "syntax = \"proto3\";\nmessage A {\n}\n"}"#);
        gateway.signal(Signal::TERM);
        assert!(gateway.wait().success());
    }
    // At rest nobody finds the secret, neither in the database nor beside it.
    for entry in fs::read_dir(one.path()).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let bytes = fs::read(&entry).expect("a file");
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the secret stands in {}", entry.display());
    }
    let exported = done(one.path(), &["export"]);
    assert!(exported.contains(secret) && exported.ends_with("#END\n"), "{exported}");
    let file = one.path().join("apisix.yaml");
    fs::write(&file, &exported).expect("write a file");
    let file = file.display().to_string();
    let (code, out, err) = weir(&["check", &file]);
    assert_eq!(code, 0, "{out}{err}");
    done(other.path(), &["import", &file]);
    assert_eq!(done(other.path(), &["export"]), exported);
    assert!(done(other.path(), &["import", &file]).contains("no change; revision"));

    let gateway = Start::stored().data_dir(other.path()).start();
    assert_eq!(gateway.get("/a").text(), "yes");
    for (key, status) in [(secret, 502), ("of-a-credential", 502), ("another", 401)] {
        let request = format!("GET /1 HTTP/1.1\r\nHost: a\r\napikey: {key}\r\n\r\n");
        assert_eq!(gateway.client().request(request).status, status, "{key}");
    }
}

#[test]
fn an_import_takes_the_place_of_everything_or_changes_nothing() {
    let data = tempfile::tempdir().expect("a folder");
    let file = data.path().join("rules.yaml");
    let import = |rules: &str| {
        fs::write(&file, format!("{rules}\n#END\n")).expect("write a file");
        store(data.path(), &["import", &file.display().to_string()])
    };
    let good = "routes: [{id: a, uri: /a, upstream_id: u}, {uri: /b, upstream_id: u}]
upstreams: [{id: u, nodes: {127.0.0.1:1: 1}}]";
    let (code, out, err) = import(good);
    assert_eq!((code, out.as_str()), (0, "revision 1: 3 resources written, 0 deleted\n"), "{err}");
    for (rules, words) in [
        ("routes: [{id: a, uri: a}]", "rules.yaml:1:"),
        ("routes: [{id: a, uri: /a, upstream_id: none}]", "none"),
        ("services: [{id: a/graphql_cost_decorations/b}]", "field_path is missing"),
    ] {
        let (code, out, err) = import(rules);
        assert!(code == 1 && err.contains(words), "{rules}: {code} {out}{err}");
    }
    let (code, out, _) = import("routes: [{id: a, uri: /c, upstream: {nodes: {127.0.0.1:1: 1}}}]");
    assert_eq!((code, out.as_str()), (0, "revision 2: 1 resource written, 2 deleted\n"));

    let history = done(data.path(), &["history"]);
    let lines: Vec<&str> = history.lines().collect();
    assert!(lines[0].starts_with("2 20") && lines[0].ends_with("Z import"), "{history}");
    assert!(lines.contains(&"  ~ routes/a") && lines.contains(&"  - upstreams/u"), "{history}");
    assert_eq!(done(data.path(), &["history", "--key", "upstreams/u", "--limit", "1"]).lines().count(), 4);
    let difference = done(data.path(), &["diff", "1", "2"]);
    assert!(difference.contains("routes/a\n- {") && difference.contains(r#""uri":"/c""#), "{difference}");

    assert!(done(data.path(), &["rollback", "1"]).starts_with("revision 3: 3 resources written"), "back to the first");
    let exported = done(data.path(), &["export"]);
    assert!(
        exported.contains("uri: /a") && exported.contains("uri: /b") && !exported.contains("uri: /c"),
        "{exported}"
    );
    assert!(done(data.path(), &["rollback", "2"]).starts_with("revision 4: "), "and forth");
    let (code, _, err) = store(data.path(), &["rollback", "9"]);
    assert!(code == 1 && err.contains("revision 9 is not known: the history goes from 0 to 4"), "{err}");
}

#[test]
fn a_backup_of_a_running_gateway_is_restored() {
    let data = tempfile::tempdir().expect("a folder");
    let backup = data.path().join("backup.db");
    let path = backup.display().to_string();
    {
        let gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "routes/a", &mock("/a", "a"));
        assert!(done(data.path(), &["backup", &path]).starts_with("revision 1 is in "));
        gateway.must("DELETE", "routes/a", "");
    }
    fs::write(data.path().join("text"), "no database").expect("write a file");
    let (code, _, err) = store(data.path(), &["restore", &data.path().join("text").display().to_string()]);
    assert!(code == 1 && err.contains("cannot read"), "{err}");
    assert!(done(data.path(), &["restore", &path]).contains("is at revision 1; what was there is kept as"));
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!(gateway.get("/a").status, 200);
}

#[test]
fn the_key_of_the_store_may_come_from_the_environment() {
    let data = tempfile::tempdir().expect("a folder");
    let key = "0123456789abcdef".repeat(4);
    {
        let gateway = Start::stored().data_dir(data.path()).variable("WEIR_STORE_KEY", &key).start();
        gateway.must("PUT", "routes/a", &mock("/a", "a"));
    }
    assert!(!data.path().join("key").exists());
    for (place, words) in [
        ("store.key=abc", "64 hexadecimal digits"),
        (&*format!("store.key={}", "0".repeat(64)), "was written with the key"),
    ] {
        let (code, out, err) = store(data.path(), &["export", "--set", place]);
        assert!(code == 1 && err.contains(words), "{code} {out}{err}");
    }
    let (code, _, err) = store(data.path(), &["export"]);
    assert!(code == 1 && err.contains("cannot read the key"), "{err}");
    done(data.path(), &["export", "--set", &format!("store.key={key}")]);
}

#[test]
fn a_resource_that_another_version_left_is_named_and_the_rest_serves() {
    let data = tempfile::tempdir().expect("a folder");
    {
        let gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "routes/a", &mock("/a", "a"));
        gateway.must("PUT", "routes/b", &mock("/b", "b"));
    }
    let changed = set_by_hand(data.path(), "routes/b", r#"{"uri": "/b", "plugins": {"of-tomorrow": {}}}"#);
    assert!(changed, "the value was changed");
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 503));
    gateway.logged("routes/b.plugins.of-tomorrow");
    assert_eq!(gateway.metric("weir_config_left_out", &[]), 1.0);
    // The invalid resource does not block other changes, and can be corrected.
    gateway.must("PUT", "routes/c", &mock("/c", "c"));
    assert_eq!(gateway.ask("PUT", "routes/b", r#"{"uri": "/b", "plugins": {"of-tomorrow": {}}}"#).0, 400);
    gateway.must("PUT", "routes/b", &mock("/b", "b"));
    assert_eq!((gateway.get("/b").status, gateway.get("/c").status), (200, 200));
}

/// The rule may guard every request, and nobody knows of a time without it.
#[test]
fn a_global_rule_that_another_version_left_refuses_every_request() {
    let data = tempfile::tempdir().expect("a folder");
    {
        let gateway = Start::stored().data_dir(data.path()).start();
        gateway.must("PUT", "routes/a", &mock("/a", "a"));
        gateway.must("PUT", "global_rules/g", r#"{"plugins": {"request-id": {}}}"#);
    }
    assert!(set_by_hand(data.path(), "global_rules/g", r#"{"plugins": {"of-tomorrow": {}}}"#));
    let copy = || fs::read(data.path().join("last-good.json")).ok();
    let before = copy();
    let gateway = Start::stored().data_dir(data.path()).start();
    assert_eq!((gateway.get("/a").status, is_ready(&gateway)), (503, false));
    gateway.logged("global_rules/g.plugins.of-tomorrow");
    gateway.must("PUT", "routes/b", &mock("/b", "b"));
    assert_eq!((gateway.get("/b").status, is_ready(&gateway)), (503, false));
    assert!(copy() == before, "there is nothing good to copy");
    gateway.must("DELETE", "global_rules/g", "");
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status, is_ready(&gateway)), (200, 200, true));
}

/// Writes a value past the gateway, which is not running, with SQLite's own tool.
fn set_by_hand(data: &Path, key: &str, value: &str) -> bool {
    let sql = format!("UPDATE items SET value = '{value}' WHERE key = '{key}'; SELECT changes();");
    let output = Command::new(program("sqlite3")).arg(data.join("weir.db")).arg(sql).output();
    String::from_utf8_lossy(&output.expect("run sqlite3").stdout).trim() == "1"
}

/// Every `weir store …` command in the documentation works as written, on a store of 42 revisions.
#[test]
fn the_commands_of_the_documentation_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("weir-data");
    {
        let mut gateway = Start::stored().data_dir(&data).start();
        for number in 1..=42 {
            gateway.must("PUT", "routes/1", &mock(&format!("/{number}"), "a"));
        }
        gateway.signal(Signal::TERM);
        assert!(gateway.wait().success());
    }
    done(&data, &["backup", &folder.path().join("weir.db").display().to_string()]);
    fs::write(folder.path().join("apisix.yaml"), done(&data, &["export"])).expect("write a file");

    let document = fs::read_to_string(repository().join("docs/store.md")).expect("read the document");
    let lines: Vec<&str> = document.lines().filter(|line| line.starts_with("weir store ")).collect();
    assert!(lines.len() >= 10, "{lines:?}");
    let program = binary().display().to_string();
    for line in lines {
        let copy = tempfile::tempdir().expect("a folder");
        let line = line.replacen("weir", &program, 1).replace("/backup/", "./");
        let prepared = format!("cp -r {}/. . && {line}", folder.path().display());
        let output = Command::new("sh").args(["-c", &prepared]).current_dir(copy.path()).output().expect("run a shell");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
