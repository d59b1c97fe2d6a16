//! Zones of proxy-cache on a disk: answers that outlive the process, bounds of memory and disk, and files that are lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, RawClient, Response, Start, wait_until, weir};

/// An origin whose answers are as long as their path says, and have its text in them. Others fail, as far as they are told.
fn origin() -> Origin {
    Origin::answering(|request| {
        let path = request.target.split('?').next().unwrap_or_default();
        let size: usize = path.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(10);
        let body = body(path, size);
        let language = request.field("accept-language").unwrap_or("none").to_owned();
        let vary = if path.starts_with("/vary") { "Vary: Accept-Language\r\n" } else { "" };
        Answer::keep(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: \"{path}\"\r\nCache-Tag: all, {language}\r\n{vary}\r\n{body}"
        ))
    })
}

fn body(path: &str, size: usize) -> String {
    path.chars().cycle().take(size).collect()
}

fn start(node: &str, zone: &Value, conf: Value) -> Start {
    let mut conf = conf;
    conf["cache_zone"] = json!("z");
    let rules = json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { (node): 1 } },
                                     "plugins": { "proxy-cache": conf } }] });
    Start::new(rules).settings(json!({ "cache_zones": [zone] })).workers(2)
}

fn ask(gateway: &Gateway, method: &str, path: &str, fields: &str) -> (Response, String) {
    let mut client = gateway.client();
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
    let response = client.response_to(method);
    let status = response.field("apisix-cache-status").unwrap_or("none").to_owned();
    (response, status)
}

/// The status of the cache, of an answer that is right.
fn state(gateway: &Gateway, path: &str) -> String {
    let (response, state) = ask(gateway, "GET", path, "");
    let size = path.rsplit('/').next().and_then(|size| size.parse().ok()).unwrap_or(10);
    assert!(response.status == 200 && response.text() == body(path, size), "{path}: {state} {}", response.status);
    state
}

/// Waits until a gateway has found what is there from before, which begins with a request.
fn await_found(gateway: &Gateway) {
    ask(gateway, "HEAD", "/first/1", "");
    gateway.logged("responses are on the disk from before");
}

/// The files of answers that are whole.
fn files(folder: &Path) -> Vec<PathBuf> {
    let inner = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    inner(folder)
        .filter(|path| path.is_dir())
        .flat_map(|path| inner(&path))
        .filter(|path| path.extension().is_none())
        .collect()
}

fn await_files(folder: &Path, count: usize) {
    wait_until(&format!("{count} files"), LIMIT, || (files(folder).len() == count).then_some(()));
}

fn zone(folder: &Path, memory: &str, disk: &str) -> Value {
    json!({ "name": "z", "disk_path": folder, "memory_size": memory, "disk_size": disk })
}

#[test]
fn answers_outlive_the_process() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let cache = folder.path().join("made/by/it");
    let conf = json!({ "cache_tags": "Cache-Tag", "cache_lock": true });
    let start = || start(&origin.node(), &zone(&cache, "10MiB", "1GiB"), conf.clone()).start();
    let mut gateway = start();
    for path in ["/a/300000", "/a/300000", "/b/0", "/tagged/5"] {
        state(&gateway, path);
    }
    for language in ["de", "fr"] {
        assert_eq!(ask(&gateway, "GET", "/vary/3", &format!("Accept-Language: {language}\r\n")).1, "MISS");
    }
    await_files(&cache, 5);
    assert_eq!(origin.requests().len(), 5);
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(&cache), mode(&files(&cache)[0])), (0o700, 0o600), "answers are nobody else's");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    let mut gateway = start();
    await_found(&gateway);
    assert_eq!(["/a/300000", "/b/0"].map(|path| state(&gateway, path)), ["HIT", "HIT"]);
    let (head, found) = ask(&gateway, "HEAD", "/a/300000", "");
    assert_eq!((head.status, head.field("content-length"), found.as_str()), (200, Some("300000"), "HIT"));
    let (known, found) = ask(&gateway, "GET", "/a/300000", "If-None-Match: \"/a/300000\"\r\n");
    assert_eq!((known.status, found.as_str()), (304, "HIT"));
    assert!(known.field("age").and_then(|age| age.parse::<u64>().ok()).is_some_and(|age| age < 60), "{known:?}");
    for (language, expected) in [("de", "HIT"), ("fr", "HIT"), ("it", "MISS")] {
        assert_eq!(ask(&gateway, "GET", "/vary/3", &format!("Accept-Language: {language}\r\n")).1, expected);
    }
    // One to begin with, and one for a variant.
    assert_eq!(origin.requests().len(), 7);
    // Purging by the key, by a tag of one variant (the whole key goes), and by one of all.
    await_files(&cache, 6);
    for (path, fields, left) in [("/b/0", "", 5), ("/x", "Cache-Tag: it\r\n", 2), ("/x", "Cache-Tag: all\r\n", 0)] {
        assert_eq!(ask(&gateway, "PURGE", path, fields).0.status, 200);
        await_files(&cache, left);
    }
    assert_eq!(state(&gateway, "/a/300000"), "MISS");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
}

#[test]
fn bodies_take_neither_more_memory_nor_more_disk_than_they_may() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let path = |number: usize| format!("/{number}/200000");
    // Ten times as much as there is memory.
    let gateway = start(&origin.node(), &zone(folder.path(), "1MiB", "1GiB"), json!({})).start();
    for number in 0..50 {
        wait_until("an answer that is kept", LIMIT, || (state(&gateway, &path(number)) == "HIT").then_some(()));
    }
    await_files(folder.path(), 50);
    let before = origin.requests().len();
    thread::scope(|scope| {
        for turn in 0..4 {
            let gateway = &gateway;
            scope.spawn(move || (0..50).for_each(|number| drop(state(gateway, &path((number + turn) % 50)))));
        }
    });
    assert_eq!((0..50).filter(|number| state(&gateway, &path(*number)) == "HIT").count(), 50);
    assert!(origin.requests().len() - before < 50, "bodies come from the disk while there is memory for them");
    // A longer one than all memory passes.
    assert_eq!([(); 2].map(|()| state(&gateway, "/long/2000000")), ["MISS", "MISS"]);

    let folder = tempfile::tempdir().expect("a folder");
    let gateway = start(&origin.node(), &zone(folder.path(), "10MiB", "1MiB"), json!({})).start();
    for number in 0..20 {
        assert_eq!(state(&gateway, &path(number)), "MISS");
        // Always asked for again, so that it stays.
        assert_eq!(state(&gateway, &path(0)), "HIT");
    }
    await_files(folder.path(), 5);
    assert_eq!(state(&gateway, &path(1)), "MISS", "one that nobody asks for makes room");
}

#[test]
fn files_that_are_lost_or_wrong_are_as_if_they_had_not_been() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let start = || start(&origin.node(), &zone(folder.path(), "10MiB", "1GiB"), json!({})).start();
    let mut gateway = start();
    let paths = ["/one/1000", "/two/1000", "/three/1000"];
    paths.iter().for_each(|path| assert_eq!(state(&gateway, path), "MISS"));
    await_files(folder.path(), 3);
    for file in files(folder.path()) {
        fs::remove_file(file).expect("remove a file");
    }
    assert_eq!(paths.map(|path| state(&gateway, path)), ["MISS"; 3]);
    await_files(folder.path(), 3);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    // One is cut off, one is something else, and one has no name yet.
    let found = files(folder.path());
    fs::OpenOptions::new().write(true).open(&found[0]).and_then(|file| file.set_len(900)).expect("cut a file off");
    fs::write(&found[1], "something else").expect("write a file");
    fs::write(found[1].with_file_name("0123456789abcdef.part"), "half").expect("write a file");
    let foreign = folder.path().join("readme.txt");
    fs::write(&foreign, "of somebody else").expect("write a file");
    let gateway = start();
    await_found(&gateway);
    await_files(folder.path(), 1);
    assert!(foreign.exists());
    assert!(found[1].with_file_name("0123456789abcdef.part").exists(), "another process may be writing it");
    let mut states = paths.map(|path| state(&gateway, path));
    states.sort_unstable();
    assert_eq!(states, ["HIT", "MISS", "MISS"]);
}

#[test]
fn answers_on_a_disk_are_given_when_they_are_too_old() {
    for field in ["stale_if_error", "stale_while_revalidate"] {
        let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
        let conf = json!({ "cache_ttl": 1, field: 600 });
        let start = |node: &str| start(node, &zone(folder.path(), "10MiB", "1GiB"), conf.clone()).start();
        let stop = |mut gateway: Gateway| {
            gateway.signal(Signal::TERM);
            assert!(gateway.wait().success());
        };
        let gateway = start(&origin.node());
        assert_eq!(state(&gateway, "/a/5000"), "MISS");
        await_files(folder.path(), 1);
        stop(gateway);
        // The upstream is away when the gateway is there again.
        let gateway = start("127.0.0.1:1");
        await_found(&gateway);
        wait_until("one that is too old", LIMIT, || (state(&gateway, "/a/5000") == "STALE").then_some(()));
        stop(gateway);
        let gateway = start(&origin.node());
        await_found(&gateway);
        let first = state(&gateway, "/a/5000");
        assert_eq!(first, if field == "stale_if_error" { "EXPIRED" } else { "STALE" });
        wait_until("a newer one", LIMIT, || (state(&gateway, "/a/5000") == "HIT").then_some(()));
    }
}

#[test]
fn a_folder_that_cannot_be_used_refuses_the_configuration() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("file");
    fs::write(&file, "").expect("write a file");
    let (rules, settings) = (folder.path().join("rules.json"), folder.path().join("weir.yaml"));
    let conf = json!({ "cache_zone": "z" });
    let route =
        json!({ "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "proxy-cache": conf } });
    fs::write(&rules, json!({ "routes": [route] }).to_string()).expect("write the rules");
    let text = json!({ "cache_zones": [zone(&file.join("below"), "10MiB", "1GiB")] }).to_string();
    fs::write(&settings, text).expect("write the settings");
    let [rules, settings] = [&rules, &settings].map(|path| path.display().to_string());
    let (status, said, errors) = weir(&["check", &rules, "--settings", &settings]);
    let told = format!("{said}{errors}");
    assert!(status != 0 && told.contains("cache_zone: the folder ") && told.contains("cannot be used"), "{told}");
    // The settings of APISIX name zones as well.
    let text = format!(
        "apisix:\n  proxy_cache:\n    cache_ttl: 10s\n    zones:\n      - {{name: z, memory_size: 5m, disk_size: 1G, \
         disk_path: {}, cache_levels: '1:2'}}\n      - {{name: memory_cache, memory_size: 50m}}\n",
        folder.path().join("apisix").display()
    );
    let own = folder.path().join("config.yaml");
    fs::write(&own, text).expect("write the settings");
    let (status, said, errors) = weir(&["check", &rules, "--settings", &own.display().to_string()]);
    assert!(status == 0 && folder.path().join("apisix").is_dir(), "{said}{errors}");
    assert!(format!("{said}{errors}").contains("cache_levels"), "{said}{errors}");
}

/// Clients that go away while a body is read leave the gateway as it is.
#[test]
fn clients_that_go_away_do_no_harm() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let gateway = start(&origin.node(), &zone(folder.path(), "10MiB", "1GiB"), json!({})).start();
    assert_eq!(state(&gateway, "/a/3000000"), "MISS");
    await_files(folder.path(), 1);
    for _ in 0..20 {
        let mut client = RawClient::connect(gateway.addr);
        client.send("GET /a/3000000 HTTP/1.1\r\nHost: a.test\r\n\r\n");
        client.reset();
    }
    assert_eq!(state(&gateway, "/a/3000000"), "HIT");
    assert_eq!(origin.requests().len(), 1);
}
