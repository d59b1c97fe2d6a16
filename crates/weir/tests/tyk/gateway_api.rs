//! The gateway API, reloads, and what outlives the process.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SECRET, Site, ask, key, keyed, keyless, right, send, told};
use crate::harness::{Gateway, LIMIT, Start, free_port, program, repository, wait_until};

#[test]
fn the_gateway_api_answers_as_tyks() {
    let site = Site::new();
    site.api("at", keyed("at"));
    let gateway = site.start();
    let refused = send(&gateway, "GET /tyk/keys\nX-Tyk-Authorization: wrong");
    let text = "{\"status\":\"error\",\"message\":\"Attempted administrative access with invalid or missing key!\"}\n";
    assert_eq!(told(&refused), (403, text.to_owned()));
    let (status, made) = ask(&gateway, "POST", "/tyk/keys/create", &right("at", json!({})));
    assert_eq!((status, &made["status"], &made["action"]), (200, &json!("ok"), &json!("added")));
    let (key, hash) = (made["key"].as_str().expect("a key"), made["key_hash"].as_str().expect("a hash"));
    assert!(key.starts_with("eyJ") && hash.len() == 16, "{made}");
    let none = Value::Null;
    for (method, path, body, expected) in [
        ("GET", "/tyk/keys".to_owned(), &none, (200, json!({"keys": [hash]}))),
        (
            "POST",
            "/tyk/keys/create".to_owned(),
            &json!({"org_id": "o1"}),
            (
                400,
                json!({"status": "error", "message": "Failed to create key, keys must have at least one Access Rights record set."}),
            ),
        ),
        (
            "PUT",
            "/tyk/keys/none".to_owned(),
            &right("at", json!({})),
            (404, json!({"status": "error", "message": "Key is not found"})),
        ),
        ("GET", "/tyk/keys/none".to_owned(), &none, (404, json!({"status": "error", "message": "Key not found"}))),
        (
            "DELETE",
            "/tyk/keys/none".to_owned(),
            &none,
            (404, json!({"status": "error", "message": "There is no such key found"})),
        ),
        ("PATCH", "/tyk/keys".to_owned(), &none, (405, json!({"status": "error", "message": "Method not supported"}))),
        ("POST", "/tyk/reload".to_owned(), &none, (405, json!({"status": "error", "message": "Method not supported"}))),
        ("GET", "/tyk/apis/none".to_owned(), &none, (404, json!({"status": "error", "message": "API not found"}))),
        (
            "PUT",
            "/tyk/apis/x".to_owned(),
            &json!({"api_id": "y"}),
            (
                400,
                json!({"status": "error", "message": "Request APIID does not match that in Definition! For Update operations these must match."}),
            ),
        ),
        (
            "POST",
            "/tyk/apis".to_owned(),
            &json!({"api_id": "../x"}),
            (400, json!({"status": "error", "message": "Request malformed"})),
        ),
        (
            "GET",
            "/tyk/policies/none".to_owned(),
            &none,
            (404, json!({"status": "error", "message": "Policy not found"})),
        ),
        (
            "DELETE",
            "/tyk/policies/none".to_owned(),
            &none,
            (500, json!({"status": "error", "message": "Delete failed"})),
        ),
        (
            "GET",
            "/tyk/health".to_owned(),
            &none,
            (400, json!({"status": "error", "message": "Health checks are not enabled for this node"})),
        ),
        ("GET", "/tyk/org/keys/o1".to_owned(), &none, (404, json!({"status": "error", "message": "Org not found"}))),
        ("GET", "/tyk/certs".to_owned(), &none, (200, json!({"certs": null}))),
        ("DELETE", "/tyk/cache/at".to_owned(), &none, (200, json!({"status": "ok", "message": "cache invalidated"}))),
        (
            "POST",
            "/tyk/keys/create".to_owned(),
            &right("at", json!({"apply_policies": ["zz"]})),
            (500, json!({"status": "error", "message": "Failed to create key - policy not found: \"zz\""})),
        ),
    ] {
        assert_eq!(ask(&gateway, method, &path, body), expected, "{method} {path}");
    }
    let unknown = send(&gateway, &format!("GET /tyk/x\nX-Tyk-Authorization: {SECRET}"));
    assert_eq!(told(&unknown), (404, "404 page not found\n".to_owned()));
    // A key with a text of its own.
    assert_eq!(ask(&gateway, "POST", "/tyk/keys/mykey1", &right("at", json!({}))).0, 200);
    let status = |key: &str| send(&gateway, &format!("GET /at/\nAuthorization: {key}")).status;
    assert_eq!((status("mykey1"), status("mykey2")), (200, 403));
    assert_eq!(ask(&gateway, "GET", "/tyk/keys/mykey1", &none).0, 404);
    assert_eq!(ask(&gateway, "GET", "/tyk/keys/mykey1?org_id=o1", &none).0, 200);
    assert_eq!(ask(&gateway, "DELETE", "/tyk/keys/mykey1?org_id=o1", &none).1["action"], "deleted");
    assert_eq!(status("mykey1"), 403);
    let hello = send(&gateway, "GET /hello");
    assert_eq!(hello.json(), json!({"status": "pass", "version": "v5.14.0", "description": "Tyk GW"}));
    assert_eq!(told(&send(&gateway, "GET /ready")), (200, "Tyk GW Ready".to_owned()));
    assert_eq!(send(&gateway, "GET /hellox").status, 404);
}

#[test]
fn definitions_and_policies_take_effect_with_a_reload() {
    let site = Site::new();
    site.api("at", keyed("at"));
    let gateway = site.start();
    let definition = keyless("new", "/new/", "/").to_string().replace("ORIGIN", &site.origin.node());
    let definition: Value = serde_json::from_str(&definition).expect("a definition");
    let (status, answer) = ask(&gateway, "POST", "/tyk/apis", &definition);
    assert_eq!((status, answer), (200, json!({"key": "new", "status": "ok", "action": "added"})));
    assert_eq!(send(&gateway, "GET /new/").status, 404);
    let reload = || {
        assert_eq!(
            ask(&gateway, "GET", "/tyk/reload?block=true", &Value::Null),
            (200, json!({"status": "ok", "message": ""}))
        )
    };
    reload();
    assert_eq!(send(&gateway, "GET /new/").status, 200);
    assert_eq!(ask(&gateway, "GET", "/tyk/apis/new", &Value::Null).1["name"], "new");
    let policy = |rate: u64| json!({"id": "p", "org_id": "o1", "rate": rate, "per": 60, "quota_max": -1, "access_rights": {"at": {}}});
    assert_eq!(ask(&gateway, "POST", "/tyk/policies", &policy(1)).1["action"], "added");
    assert_eq!(ask(&gateway, "GET", "/tyk/policies/p", &Value::Null).0, 404, "until the reload");
    reload();
    assert_eq!(ask(&gateway, "GET", "/tyk/policies/p", &Value::Null).1["rate"], 1);
    let key = key(&gateway, &json!({"org_id": "o1", "apply_policies": ["p"]}));
    let status = || send(&gateway, &format!("GET /at/\nAuthorization: {key}")).status;
    assert_eq!([status(), status()], [200, 429]);
    assert_eq!(ask(&gateway, "PUT", "/tyk/policies/p", &policy(4)).1["action"], "modified");
    reload();
    assert_eq!([status(), status(), status()], [200, 200, 200], "the changed policy holds for keys that are there");
    assert_eq!(ask(&gateway, "DELETE", "/tyk/policies/p", &Value::Null).1["action"], "deleted");
    reload();
    assert_eq!(status(), 403, "a key whose only policy is gone");
    assert_eq!(ask(&gateway, "DELETE", "/tyk/apis/new", &Value::Null).1["action"], "deleted");
    reload();
    assert_eq!(send(&gateway, "GET /new/").status, 404);
}

#[test]
fn a_refused_reload_is_told_by_the_page_of_health() {
    let site = Site::new();
    site.api("at", keyless("at", "/at/", "/"));
    let gateway = site.start();
    let tells = |status: &str| {
        let hello = send(&gateway, "GET /hello");
        (hello.status == 200 && hello.json()["status"] == status).then(|| hello.json())
    };
    assert!(tells("pass").is_some());
    site.write("apps/broken.json", "{\"api_id\": ");
    assert_eq!(ask(&gateway, "GET", "/tyk/reload?block=true", &Value::Null).0, 200);
    let hello = wait_until("the fault to be told", LIMIT, || tells("warn"));
    assert_eq!(hello["details"]["configuration"]["status"], "warn", "{hello}");
    assert_eq!([send(&gateway, "GET /at/").status, send(&gateway, "GET /ready").status], [200, 200]);
    fs::remove_file(site.apps().join("broken.json")).expect("remove the file");
    assert_eq!(ask(&gateway, "GET", "/tyk/reload?block=true", &Value::Null).0, 200);
    wait_until("the fault to be gone", LIMIT, || tells("pass"));
    // The same with a signal.
    site.write("apps/broken.json", "{\"api_id\": ");
    gateway.signal(Signal::HUP);
    wait_until("the fault to be told", LIMIT, || tells("warn"));
    fs::remove_file(site.apps().join("broken.json")).expect("remove the file");
    gateway.signal(Signal::HUP);
    wait_until("the fault to be gone", LIMIT, || tells("pass"));
}

#[test]
fn keys_and_quotas_outlive_the_process() {
    let site = Site::new();
    site.api("at", keyed("at"));
    let conf = site.conf(json!({}));
    let data = site.folder.path().join("data");
    let start = || Start::at(&conf).data_dir(&data).start();
    let mut gateway = start();
    let key = key(&gateway, &right("at", json!({"quota_max": 3, "quota_renewal_rate": 3600})));
    let gone = self::key(&gateway, &right("at", json!({})));
    let status = |gateway: &Gateway, key: &str| send(gateway, &format!("GET /at/\nAuthorization: {key}")).status;
    assert_eq!([status(&gateway, &key), status(&gateway, &key)], [200, 200]);
    assert_eq!(ask(&gateway, "DELETE", &format!("/tyk/keys/{gone}"), &Value::Null).0, 200);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    let gateway = start();
    assert_eq!([status(&gateway, &key), status(&gateway, &key)], [200, 403], "the quota goes on");
    assert_eq!(status(&gateway, &gone), 403);
}

/// The files and commands of `docs/tyk.md`, as a user would try them.
#[test]
fn the_page_for_tyks_users_is_tried() {
    let page = fs::read_to_string(repository().join("docs/tyk.md")).expect("read the page");
    let site = Site::new();
    let (mut commands, mut files) = (Vec::new(), 0);
    for block in page.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').expect("a block");
        if let Some(name) = kind.strip_prefix("json ") {
            let text = text.replace("\"./", &format!("\"{}/", site.folder.path().display()));
            site.write(name, text.replace("127.0.0.1:9000", "ORIGIN"));
            files += 1;
        } else if kind == "sh" {
            commands.extend(text.lines().filter(|line| line.starts_with("curl ")).map(str::to_owned));
        }
    }
    assert!(files == 2 && commands.len() > 10, "{files} {commands:?}");
    let gateway = Start::at(&site.folder.path().join("tyk.conf")).start();
    for command in commands {
        let (command, expected) = command.rsplit_once(" # ").expect("what is answered");
        let command = command.replace("127.0.0.1:8080", &gateway.addr.to_string());
        let output = std::process::Command::new("sh").args(["-c", &command]).output().expect("run sh");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(expected), "{command}: {text}");
    }
}

#[test]
fn the_gateway_api_has_a_port_of_its_own() {
    let site = Site::new();
    site.api("root", keyless("root", "/", "/base"));
    let port = free_port();
    let conf = json!({"control_api_port": port, "listen_address": "127.0.0.1"});
    let gateway = Start::at(&site.conf(conf)).start();
    let control = |path: &str, secret: &str| {
        let mut command = Command::new(program("curl"));
        command.args(["-sS", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}"]);
        command.args(["-H", &format!("X-Tyk-Authorization: {secret}")]).arg(format!("http://127.0.0.1:{port}{path}"));
        String::from_utf8_lossy(&command.output().expect("run curl").stdout).into_owned()
    };
    for (path, secret, expected) in [
        ("/tyk/keys", SECRET, "200"),
        ("/tyk/keys", "wrong", "403"),
        ("/hello", "", "200"),
        ("/ready", "", "200"),
        ("/", "", "404"),
        ("/anything", "", "404"),
    ] {
        assert_eq!(control(path, secret), expected, "{path}");
    }
    // At the port of the traffic the paths belong to the APIs, but for the pages of health.
    let request = format!("GET /tyk/keys\nX-Tyk-Authorization: {SECRET}");
    assert_eq!((send(&gateway, &request).status, site.last_target().as_str()), (200, "/base/tyk/keys"));
    assert!(send(&gateway, "GET /hello").text().contains("\"status\":\"pass\""));
}

#[test]
fn the_gateway_api_may_have_a_host_of_its_own() {
    let site = Site::new();
    site.api("root", keyless("root", "/", "/base"));
    let gateway = Start::at(&site.conf(json!({"control_api_hostname": "Control.test"}))).start();
    let ask = |host: &str, path: &str| {
        send(&gateway, &format!("GET {path}\nHost: {host}\nX-Tyk-Authorization: {SECRET}")).status
    };
    assert_eq!(ask("control.test", "/tyk/keys"), 200);
    assert_eq!((ask("api.test", "/tyk/keys"), site.last_target().as_str()), (200, "/base/tyk/keys"));
    for host in ["control.test", "api.test"] {
        assert_eq!(ask(host, "/hello"), 200, "{host}");
    }
}
