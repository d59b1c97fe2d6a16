//! Files that are cut off, or are no files: nothing that was live goes with them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::harness::{Gateway, LIMIT, Reload, Start, each, replace, wait_until, weir};

/// A text of rules with a global rule that refuses everybody.
fn guarded(path: &str) -> String {
    format!(
        "routes:\n- {{id: a, uri: {path}, plugins: {{mocking: {{response_example: here}}}}}}\n\
         - {{id: b, uri: /b, plugins: {{mocking: {{response_example: here}}}}}}\n\
         global_rules:\n- {{id: g, plugins: {{ip-restriction: {{blacklist: [127.0.0.1]}}}}}}\n"
    )
}

/// The part of the text before the global rule.
fn unguarded(path: &str) -> String {
    let text = guarded(path);
    text.split("global_rules").next().expect("a beginning").to_owned()
}

/// Waits until so many changes are refused.
fn await_refusals(gateway: &Gateway, count: u32) {
    gateway.await_metric("weir_config_rejected_total", &[], f64::from(count));
}

#[test]
fn what_is_cut_off_does_not_go_live() {
    let marked = format!("{}#END\n", guarded("/a"));
    let json = json!({ "routes": [{ "id": "a", "uri": "/a", "plugins": { "ip-restriction": { "blacklist": ["127.0.0.1"] } } }] });
    let json = json.to_string();
    let half = &json[..json.len() / 2];
    let (empty, no_end) = ("the file is empty", "the file does not end with a line #END, so it may be incomplete");
    // The live text, the next text, the reason for its refusal.
    let cases: &[(&str, &str, &str)] = &[
        (&marked, "", empty),
        (&marked, "# a comment\n", empty),
        (&marked, &unguarded("/a"), no_end),
        (&marked, &unguarded("/other"), no_end),
        (&guarded("/a"), "", empty),
        (&guarded("/a"), &unguarded("/a"), "the file is only the beginning of the live one"),
        (&json, "\n", empty),
        (&json, half, "apisix.yaml:1:"),
        (&json, &unguarded("/a"), no_end),
    ];
    each(
        cases,
        |(live, next, _)| format!("{next:?} after {live:?}"),
        |(live, next, reason)| {
            let gateway = Start::text(live).start();
            assert_eq!(gateway.get("/a").status, 403);
            fs::write(gateway.config(), next).expect("write");
            await_refusals(&gateway, 1);
            let log = gateway.logged("the rules file is refused; the live configuration stays in force");
            let told = log.lines().find(|line| line.contains("ERROR") && line.contains(reason));
            assert!(told.is_some(), "{reason:?} is not in {log}");
            assert_eq!(gateway.get("/a").status, 403);

            // Not by being asked for it either.
            gateway.signal(rustix::process::Signal::HUP);
            await_refusals(&gateway, 2);
            assert_eq!(gateway.get("/a").status, 403);

            let whole = format!("{}#END\n", unguarded("/a"));
            replace(&gateway.config(), &whole);
            wait_until("the whole file to be live", LIMIT, || (gateway.get("/a").status == 200).then_some(()));
        },
    );
}

#[test]
fn what_shows_no_end_is_live_when_it_was_still() {
    let gateway = Start::text(&guarded("/a")).start();
    assert_eq!(gateway.get("/a").status, 403);
    let began = Instant::now();
    fs::write(gateway.config(), unguarded("/other")).expect("write");
    wait_until("the change to be live", LIMIT, || (gateway.get("/other").status == 200).then_some(()));
    assert!(began.elapsed() >= Duration::from_secs(1), "it was live after {:?}", began.elapsed());
    assert_eq!(gateway.metric("weir_config_rejected_total", &[]), 0.0);
    // The line may be put to it, and from then on has to be there.
    replace(&gateway.config(), &format!("{}#END\n", unguarded("/third")));
    wait_until("the change to be live", LIMIT, || (gateway.get("/third").status == 200).then_some(()));
    fs::write(gateway.config(), unguarded("/fourth")).expect("write");
    await_refusals(&gateway, 1);
    assert_eq!((gateway.get("/third").status, gateway.get("/fourth").status), (200, 404));
}

#[test]
fn an_empty_body_replaces_nothing_in_standalone_mode() {
    let gateway = Start::standalone().settings("deployment: {config_provider: yaml}").start();
    let put = |media_type: &str, digest: &str, body: &str| {
        let key = crate::harness::ADMIN_KEY;
        let fields = format!("X-API-KEY: {key}\r\nX-Digest: {digest}\r\nContent-Type: {media_type}\r\n");
        gateway.send_to_admin("PUT", "configs", &fields, body).status
    };
    let route: Value = json!({ "id": "a", "uri": "/a", "plugins": { "mocking": { "response_example": "here" } } });
    assert_eq!(put("application/json", "1", &json!({ "routes": [route] }).to_string()), 202);
    for body in ["", "# soon\n", "#END\n", "null", " "] {
        for media_type in ["application/json", "application/yaml"] {
            assert_eq!(put(media_type, "2", body), 400, "{media_type}: {body:?}");
        }
    }
    assert_eq!(gateway.get("/a").status, 200);
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("make a named pipe");
}

const NO_FILE: &str = "expected a regular file, found a named pipe";

/// Reading a named pipe would wait until somebody writes.
#[test]
fn a_named_pipe_is_refused_wherever_a_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let rules = folder.path().join("apisix.yaml");
    fs::write(&rules, format!("{}#END\n", guarded("/a"))).expect("write");
    let (pipe, rules) = (pipe.display().to_string(), rules.display().to_string());
    let set = |setting: &str| format!("{setting}={pipe}");
    let (cert, key, ca) = (set("admin.tls.cert"), set("admin.tls.key"), set("admin.tls.client_ca"));
    let (etcd_cert, etcd_key) = (set("deployment.etcd.tls.cert"), set("deployment.etcd.tls.key"));
    let etcd_ca = set("deployment.etcd.tls.ca");
    let data = folder.path().join("data").display().to_string();
    let etcd = ["run", "--data-dir", &data, "--set", "deployment.config_provider=etcd"];
    let cases: &[&[&str]] = &[
        &["check", &pipe],
        &["run", &pipe],
        &["explain", &pipe, "--request", "/a"],
        &["check", &rules, "--settings", &pipe],
        &["run", &rules, "--settings", &pipe],
        &["run", &rules, "--data-dir", &data, "--admin", "127.0.0.1:0", "--set", &cert, "--set", &key, "--set", &ca],
        &[&etcd[..], &["--set", &etcd_cert, "--set", &etcd_key]].concat(),
        &[&etcd[..], &["--set", &etcd_ca]].concat(),
    ];
    for arguments in cases {
        let (code, _, stderr) = weir(arguments);
        assert!(code == 1 && stderr.contains(NO_FILE), "{arguments:?}: {code} {stderr}");
    }
    // A folder is for API definitions and manifests; this one has neither.
    let (code, _, stderr) = weir(&["check", &folder.path().display().to_string()]);
    assert!(code == 1 && stderr.contains("expected API definitions of Tyk, or manifests of Kubernetes"), "{stderr}");
    fs::rename(folder.path().join("pipe"), folder.path().join("api.json")).expect("rename");
    let (code, ..) = weir(&["check", &folder.path().display().to_string()]);
    assert_eq!(code, 1, "a named pipe in a folder is not read");
    let (code, _, stderr) = weir(&["check", &rules, "--settings", "/dev/zero"]);
    assert!(code == 1 && stderr.contains("expected a regular file, found a device"), "{stderr}");
}

#[test]
fn a_named_pipe_in_the_place_of_the_rules_holds_nothing_up() {
    let gateway = Start::text(&format!("{}#END\n", unguarded("/a"))).start();
    fs::remove_file(gateway.config()).expect("remove");
    make_pipe(&gateway.config());
    await_refusals(&gateway, 1);
    gateway.logged(NO_FILE);
    assert_eq!(gateway.get("/a").status, 200);
    fs::remove_file(gateway.config()).expect("remove");
    let next = json!({ "routes": [{ "id": "n", "uri": "/n", "plugins": { "mocking": { "response_example": "n" } } }] });
    assert_eq!(gateway.reload(next), Reload::Applied);
    assert_eq!(gateway.get("/n").text(), "n");
}
