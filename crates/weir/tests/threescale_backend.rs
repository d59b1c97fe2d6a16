//! The backend of 3scale: calls of the Service Management API, limits and what outlives the process.

mod calls;
mod internal;
mod usage;

use std::fs;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::documentation::document;
use crate::harness::{
    ADMIN_KEY, Fault, Gateway, LIMIT, RawClient, Response, Start, replace, repository, wait_until, weir,
};

/// A file of services, and the gateway that reads it.
struct Site {
    folder: TempDir,
}

const PASSWORD: &str = "the-password-of-the-internal-api";

impl Site {
    fn new(services: &Value) -> Self {
        let site = Self { folder: tempfile::tempdir().expect("create a folder") };
        fs::write(site.file(), services.to_string()).expect("write the services");
        site
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("services.json")
    }

    fn start(&self) -> Gateway {
        self.start_with(&json!({}))
    }

    /// Starts a gateway with further settings of the backend.
    fn start_with(&self, more: &Value) -> Gateway {
        let mut options = json!({ "file": self.file(), "internal_password": PASSWORD });
        options.as_object_mut().expect("settings").extend(more.as_object().expect("settings").clone());
        start(&options, &self.folder.path().join("data"))
    }
}

/// Starts a gateway with a backend of these settings, and with this data directory.
fn start(options: &Value, data: &std::path::Path) -> Gateway {
    let settings = json!({ "listen": { "threescale_backend": "127.0.0.1:0" }, "threescale_backend": options });
    Start::new(json!({ "routes": [] })).settings(settings).data_dir(data).start()
}

fn address(gateway: &Gateway) -> SocketAddr {
    gateway.threescale.expect("a 3scale backend")
}

/// Sends a request of the form `METHOD TARGET`, further lines being fields.
fn send(gateway: &Gateway, request: &str, body: &str) -> Response {
    let (line, fields) = request.split_once('\n').unwrap_or((request, ""));
    let fields: String = fields.lines().map(|field| format!("{field}\r\n")).collect();
    let length = match line.starts_with("POST") || line.starts_with("PUT") || line.starts_with("DELETE") {
        true => format!("Content-Length: {}\r\n", body.len()),
        false => String::new(),
    };
    RawClient::connect(address(gateway))
        .request(format!("{line} HTTP/1.1\r\nHost: backend.test\r\nConnection: close\r\n{length}{fields}\r\n{body}"))
}

/// `GET /transactions/KIND.xml?QUERY`, with extensions.
fn call(gateway: &Gateway, kind: &str, query: &str, options: &str) -> Response {
    let query = query.replace('[', "%5B").replace(']', "%5D").replace('#', "%23");
    send(gateway, &format!("GET /transactions/{kind}.xml?{query}\n3scale-options: {options}"), "")
}

/// Reports usage: the parameters of transactions.
fn report(gateway: &Gateway, form: &str) -> Response {
    let form = form.replace('#', "%23").replace('+', "%2B");
    send(gateway, "POST /transactions.xml\nContent-Type: application/x-www-form-urlencoded", &form)
}

/// A request to the internal API.
fn manage(gateway: &Gateway, method: &str, path: &str, body: &Value) -> (u16, Value) {
    // `weir:the-password-of-the-internal-api`
    let login = "Authorization: Basic d2Vpcjp0aGUtcGFzc3dvcmQtb2YtdGhlLWludGVybmFsLWFwaQ==";
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = send(gateway, &format!("{method} /internal{path}\n{login}"), &body);
    let json = if answer.body.is_empty() { Value::Null } else { answer.json() };
    (answer.status, json)
}

/// The text of the first element of this name; `None` without one.
fn element<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

/// The usage report of a metric and a period.
fn usage_report<'x>(xml: &'x str, metric: &str, period: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<usage_report metric=\"{metric}\" period=\"{period}\""))?;
    Some(rest.split_once("</usage_report>")?.0)
}

/// Use of a limit, as a document gives it.
fn used(xml: &str, metric: &str, period: &str) -> u64 {
    let report = usage_report(xml, metric, period).unwrap_or_else(|| panic!("no {metric} per {period} in {xml}"));
    let value = element(report, "current_value").and_then(|text| text.parse().ok());
    value.unwrap_or_else(|| panic!("no value in {report}"))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Runs a test that counts in a period of so many seconds, again if the period has ended meanwhile, however it went. The
/// test gets the number of the attempt.
fn within<T>(seconds: u64, mut test: impl FnMut(usize) -> T) -> T {
    for attempt in 0.. {
        let before = now() / seconds;
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| test(attempt)));
        if now() / seconds == before {
            return outcome.unwrap_or_else(|failure| panic::resume_unwind(failure));
        }
        assert!(attempt < 3, "the period ends at each attempt");
    }
    unreachable!("the attempts have ended")
}

#[test]
fn the_documented_example_works() {
    let example =
        fs::read_to_string(repository().join("examples/threescale-backend/services.yaml")).expect("read the example");
    let site = Site::new(&json!({ "services": [] }));
    assert!(document("docs/threescale-backend.md").contains(example.trim_end()), "the page shows another example");
    fs::write(site.file(), example).expect("write the services");
    let gateway = site.start();
    let anna = "service_token=weather-token&service_id=16&user_key=anna-key";
    within(60, |attempt| {
        // Whoever reports begins each attempt anew.
        let before = call(&gateway, "authorize", anna, "").text();
        let before = used(&before, "hits", "minute");
        assert!(attempt > 0 || before == 0);
        for count in before + 1..=5 {
            let answer = call(&gateway, "authrep", &format!("{anna}&usage[forecast]=1"), "");
            assert_eq!((answer.status, used(&answer.text(), "hits", "minute")), (200, count));
        }
        assert_eq!(call(&gateway, "authrep", &format!("{anna}&usage[forecast]=1"), "").status, 409);
    });
    assert_eq!(call(&gateway, "authrep", &format!("{anna}&usage[history]=1"), "").status, 409);
    let bert = call(&gateway, "authorize", "service_token=weather-token&service_id=16&user_key=bert-key", "");
    assert_eq!((bert.status, element(&bert.text(), "reason")), (409, Some("application is not active")));
    let carl = "provider_key=the-provider&service_id=17&app_id=carl&app_key=carl-secret&referrer=www.example.org";
    assert_eq!(call(&gateway, "authorize", carl, "").status, 200);
}

#[test]
fn applications_are_shown_with_what_is_used_of_their_limits() {
    let example =
        fs::read_to_string(repository().join("examples/threescale-backend/services.yaml")).expect("read the example");
    let site = Site::new(&json!({ "services": [] }));
    fs::write(site.file(), example).expect("write the services");
    let settings = json!({
        "listen": { "threescale_backend": "127.0.0.1:0", "admin": "127.0.0.1:0" },
        "threescale_backend": { "file": site.file() },
        "viewer": { "key": "the-viewer-key" },
    });
    let gateway = Start::new(json!({ "routes": [] }))
        .settings(settings)
        .data_dir(&site.folder.path().join("data"))
        .variable("WEIR_ADMIN_KEY", ADMIN_KEY)
        .start();
    let ask = |query: &str| {
        let head = "Host: 127.0.0.1\r\nX-API-KEY: the-viewer-key\r\nConnection: close\r\n\r\n";
        let target = format!("/weir/v1/threescale/applications{query}");
        let answer = RawClient::connect(gateway.admin.expect("an Admin API"))
            .request(format!("GET {target} HTTP/1.1\r\n{head}"));
        (answer.status, answer.json())
    };
    let ids = |query: &str| {
        let (status, told) = ask(query);
        assert_eq!(status, 200, "{query}: {told}");
        let ids = told["applications"].as_array().expect("applications").iter().map(|one| one["id"].clone());
        (told["total"].as_u64().expect("a number"), ids.collect::<Vec<_>>())
    };
    for (query, total, expected) in [
        ("", 3, json!(["anna", "bert", "carl"])),
        ("?q=gold", 1, json!(["bert"])),
        ("?q=SUSPENDED", 1, json!(["bert"])),
        ("?service=17", 1, json!(["carl"])),
        ("?page=2&page_size=2", 3, json!(["carl"])),
        ("?q=nobody", 0, json!([])),
    ] {
        assert_eq!(ids(query), (total, expected.as_array().expect("a list").clone()), "{query}");
    }
    assert_eq!(ask("?page_size=501").0, 400);
    let anna = "service_token=weather-token&service_id=16&user_key=anna-key";
    within(60, |_| {
        let before = used(&call(&gateway, "authorize", anna, "").text(), "hits", "minute");
        if before < 5 {
            assert_eq!(call(&gateway, "authrep", &format!("{anna}&usage[forecast]=1"), "").status, 200);
        }
        let (_, told) = ask("?q=anna");
        let limit = &told["applications"][0]["limits"][0];
        let shown = [&limit["metric"], &limit["period"], &limit["used"], &limit["max"]];
        assert_eq!(shown, [&json!("hits"), &json!("minute"), &json!(before + 1), &json!(5)], "{told}");
        assert_eq!(told["applications"][0]["plan"], json!({ "id": "basic", "name": "Basic" }));
        assert!(!told.to_string().contains("anna-key"), "keys are counted: {told}");
    });
    // Without a backend of one's own.
    let other = Start::stored().start();
    assert_eq!(crate::extensions::ask(&other, "GET", "threescale/applications", "").0, 404);
}

#[test]
fn a_changed_file_holds_without_a_restart() {
    let services = |value: u64| {
        json!({ "services": [{
            "id": "1", "service_tokens": ["t"], "metrics": [{ "name": "hits" }],
            "plans": [{ "id": "p", "limits": [{ "metric": "hits", "period": "eternity", "value": value }] }],
            "applications": [{ "id": "a", "plan": "p", "user_keys": ["k"] }],
        }] })
    };
    let site = Site::new(&services(1));
    let gateway = site.start();
    let next = || call(&gateway, "authrep", "service_token=t&service_id=1&user_key=k&usage[hits]=1", "").status;
    assert_eq!([next(), next()], [200, 409]);
    replace(&site.file(), &services(2).to_string());
    wait_until("the new limit", LIMIT, || (next() == 200).then_some(()));
    assert_eq!(next(), 409, "what was used counts on");
    // A file that is wrong changes nothing.
    replace(&site.file(), &services(3).to_string().replace("eternity", "aeon"));
    let log = gateway.logged("the services before stay in force");
    assert!(log.contains("services[0].plans[0].limits[0].period"), "{log}");
    assert_eq!(next(), 409);
    // The internal API shows what is in the file, and does not change it.
    let (status, shown) = manage(&gateway, "GET", "/services/1/applications/key/k", &Value::Null);
    assert_eq!((status, &shown["application"]["id"]), (200, &json!("a")));
    let (status, refused) = manage(&gateway, "POST", "/services/", &json!({ "service": { "id": "2" } }));
    assert!(status == 403 && refused.to_string().contains("threescale_backend.file"), "{status} {refused}");
}

#[test]
fn settings_that_cannot_work_stop_the_start() {
    let folder = tempfile::tempdir().expect("create a folder");
    let (rules, settings, file) =
        (folder.path().join("rules.json"), folder.path().join("weir.yaml"), folder.path().join("services.yaml"));
    fs::write(&rules, r#"{"routes": []}"#).expect("write the rules");
    let check = |options: Value| {
        let text = json!({ "listen": { "threescale_backend": "127.0.0.1:0" }, "threescale_backend": options });
        fs::write(&settings, text.to_string()).expect("write the settings");
        let [rules, settings] = [&rules, &settings].map(|path| path.display().to_string());
        let (status, said, errors) = weir(&["check", &rules, "--settings", &settings]);
        let (run, _, run_errors) = weir(&["run", &rules, "--settings", &settings, "--set", "workers=1"]);
        assert!(status != 0 && run != 0, "{options}: {status} {run}");
        (format!("{said}{errors}"), run_errors)
    };
    for (options, expected) in [
        (json!({}), "threescale_backend.internal_password"),
        (json!({ "file": file }), "threescale_backend.file: cannot read"),
        (json!({ "file": file, "connections": 0 }), "threescale_backend.connections"),
        (json!({ "internal_user": "a:b", "internal_password": "x" }), "threescale_backend.internal_user"),
    ] {
        let (said, run) = check(options);
        assert!(said.contains(expected) && run.contains(expected), "{expected}: {said}\n{run}");
    }
    fs::write(&file, "services:\n  - {id: 1, service_tokens: [t], metric: []}\n").expect("write the services");
    let (said, run) = check(json!({ "file": file }));
    for expected in ["services.yaml:2:", " services[0].metric: unknown field"] {
        assert!(said.contains(expected) && run.contains(expected), "{said}\n{run}");
    }
}

#[test]
fn what_is_too_long_is_refused_and_stuck_clients_hold_nobody_up() {
    let services = json!({ "services": [{ "id": "1", "service_tokens": ["t"] }] });
    let gateway = Site::new(&services).start_with(&json!({ "body": "2KiB", "connections": 4 }));
    let long = report(&gateway, &format!("service_token=t&service_id=1&transactions[0][app_id]={}", "a".repeat(2048)));
    assert_eq!(long.status, 413);
    assert!(long.text().contains("threescale_backend.body"), "{}", long.text());
    let chunked = "POST /transactions.xml HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut client = RawClient::connect(address(&gateway));
    client.send(format!("{chunked}1000\r\n{}\r\n0\r\n\r\n", "a".repeat(4096)));
    assert_eq!(client.response().status, 413);
    let mut client = RawClient::connect(address(&gateway));
    client.offer(format!("GET /status?{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(70_000)));
    // The answer may be lost when the connection is closed before all of the head was sent.
    match client.try_response() {
        Ok(answer) => assert!(matches!(answer.status, 414 | 431), "{}", answer.status),
        Err(fault) => assert!(matches!(fault, Fault::Reset | Fault::Closed), "{fault:?}"),
    }
    // Clients that send nothing give way to others, and those in the middle of a body take no more than their place.
    let idle: Vec<_> = (0..8).map(|_| RawClient::connect(address(&gateway))).collect();
    let mut stuck: Vec<_> = (0..3).map(|_| RawClient::connect(address(&gateway))).collect();
    for client in &mut stuck {
        client.send("POST /transactions.xml HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nservice_token=t");
    }
    assert_eq!(send(&gateway, "GET /status", "").status, 200);
    drop((idle, stuck));
}

#[test]
fn a_stop_answers_what_is_under_way() {
    let services = json!({ "services": [{ "id": "1", "service_tokens": ["t"] }] });
    let mut gateway = Site::new(&services).start();
    let mut client = RawClient::connect(address(&gateway));
    client.send("POST /transactions.xml HTTP/1.1\r\nHost: a\r\nContent-Length: 31\r\n\r\nservice_token=t");
    // The head has come when a further request on another connection is answered.
    assert_eq!(send(&gateway, "GET /status", "").status, 200);
    gateway.signal(rustix::process::Signal::TERM);
    wait_until("the listener to close", LIMIT, || {
        std::net::TcpStream::connect(address(&gateway)).is_err().then_some(())
    });
    client.send("&service_id=1&a=");
    let answer = client.response();
    assert_eq!((answer.status, answer.field("connection")), (400, Some("close")), "{}", answer.text());
    assert!(gateway.wait().success());
}

#[test]
fn a_file_of_services_is_not_taken_for_routes() {
    let file = repository().join("examples/threescale-backend/services.yaml");
    for command in ["run", "check"] {
        let (code, _, errors) = weir(&[command, file.to_str().expect("text")]);
        assert_eq!(code, 1, "{errors}");
        let places: Vec<_> =
            errors.lines().filter(|line| line.contains("services[0]: this is a file of services")).collect();
        assert!(places.len() == 1 && places[0].contains("--set threescale_backend.file=FILE"), "{command}: {errors}");
    }
    // Neither are services without a version, which is 1 then.
    let site = Site::new(&json!({"services": [{"id": 1, "service_tokens": ["t"]}]}));
    let (code, _, errors) = weir(&["check", site.file().to_str().expect("text")]);
    assert!(code == 1 && errors.contains("for the backend of 3scale"), "{errors}");
}
