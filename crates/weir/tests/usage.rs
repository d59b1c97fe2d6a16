//! Usage of a running gateway: exact counts, answers, and the end of the process in every form.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::documentation::document;
use crate::extensions::ask;
use crate::harness::{
    ADMIN_KEY, Answer, Gateway, H2Client, LIMIT, Origin, RawClient, Start, get, post, program, route_to, wait_until,
};
use crate::upgrade::{Load, upgrade};

/// The address of usage, with its key, as the Admin API of a gateway answers it.
fn look(gateway: &Gateway, question: &str) -> Value {
    let (status, answer) = ask(gateway, "GET", &format!("usage?{question}"), "");
    assert_eq!(status, 200, "{question}: {answer}");
    answer
}

/// The sum of a column over all rows.
fn sum(answer: &Value, column: &str) -> u64 {
    answer["rows"].as_array().expect("rows").iter().filter_map(|row| row[column].as_u64()).sum()
}

/// Waits until so many requests are recorded, and gives the answer to a question then.
fn await_requests(gateway: &Gateway, wanted: u64, question: &str) -> Value {
    wait_until(&format!("{wanted} requests are recorded"), LIMIT, || {
        let total = sum(&look(gateway, ""), "requests");
        assert!(total <= wanted, "{total} requests are recorded, {wanted} were sent");
        (total == wanted).then(|| look(gateway, question))
    })
}

fn start(folder: &Path, more: &str) -> Gateway {
    let settings = format!("usage: {{enabled: true{more}}}");
    Start::stored().data_dir(folder).settings(settings).workers(4).start()
}

/// A service with two routes, a consumer with a key of its own and one with credentials, and a route without a service.
fn configure(gateway: &Gateway, origin: &Origin) {
    let upstream = json!({ "nodes": { origin.node(): 1 } });
    for (path, body) in [
        ("services/shop", json!({ "upstream": upstream, "plugins": { "key-auth": {} } })),
        ("routes/orders", json!({ "uri": "/orders/*", "service_id": "shop" })),
        ("routes/items", json!({ "uri": "/items/*", "service_id": "shop" })),
        ("routes/open", json!({ "uri": "/open/*", "upstream": upstream })),
        ("plans/none", json!({ "access": [{ "routes": ["nothing"] }] })),
        ("plans/gold", json!({ "limits": [{ "count": 1_000_000, "per": "month" }] })),
        (
            "consumers",
            json!({ "username": "jack", "plugins": { "key-auth": { "key": "k-jack" }, "plan": { "plans": ["none", "gold"] } } }),
        ),
        ("consumers", json!({ "username": "jill" })),
        ("consumers/jill/credentials/phone", json!({ "plugins": { "key-auth": { "key": "k-phone" } } })),
    ] {
        gateway.must("PUT", path, &body.to_string());
    }
}

fn with_key(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\napikey: {key}\r\n\r\n")
}

fn origin() -> Origin {
    Origin::answering(|request| match request.target.as_str() {
        "/orders/fail" => Answer::status(503, "no"),
        _ => Answer::ok("hello"),
    })
}

#[test]
fn every_request_is_counted_once_under_load() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 150;
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let gateway = start(folder.path(), "");
    configure(&gateway, &origin);
    // Requests of each round, with their statuses.
    let requests = [
        (with_key("/orders/1", "k-jack"), 200),
        (with_key("/orders/fail", "k-phone"), 503),
        (with_key("/items/1", "k-phone"), 200),
        (with_key("/items/1", "wrong"), 401),
        (post("/open/1", "0123456789"), 200),
        (get("/nothing"), 404),
    ];
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut client = gateway.client();
                for _ in 0..ROUNDS {
                    for (request, status) in &requests {
                        assert_eq!(client.request(request).status, *status, "{request}");
                    }
                }
            });
        }
    });
    let each = THREADS * ROUNDS;
    let found = await_requests(&gateway, 6 * each, "group_by=api,route,consumer,key,plan,status");
    let mut rows: Vec<String> = Vec::new();
    for row in found["rows"].as_array().expect("rows") {
        assert_eq!(row["requests"], each, "{row}");
        rows.push(
            ["api", "route", "consumer", "key", "plan", "status"]
                .map(|name| row[name].as_str().expect("a text"))
                .join("|"),
        );
    }
    rows.sort();
    let wanted = [
        "open|open||||2xx",
        "shop|items|jill|phone||2xx",
        "shop|items||||4xx",
        "shop|orders|jack||gold|2xx",
        "shop|orders|jill|phone||5xx",
        "|||||4xx",
    ];
    assert_eq!(rows, wanted);
    // Bytes are those on the wire.
    let open = look(&gateway, "api=open");
    assert_eq!(sum(&open, "bytes_received"), each * post("/open/1", "0123456789").len() as u64);
    assert!(sum(&open, "bytes_sent") > each * 5);
    let row = &look(&gateway, "consumer=jill&group_by=consumer&percentiles=50,99.9")["rows"][0];
    assert_eq!(
        (&row["requests"], &row["server_errors"], &row["client_errors"]),
        (&json!(2 * each), &json!(each), &json!(0))
    );
    let number = |name: &str| row[name].as_f64().expect("a number");
    assert!(number("latency_ms") > 0.0 && number("upstream_latency_ms") <= number("latency_ms"), "{row}");
    assert!(number("p50_ms") > 0.0 && number("p50_ms") <= number("p99.9_ms"), "{row}");
    // The metrics say the same.
    let shop = gateway.metric("weir_usage_requests_total", &[("api", "shop"), ("status", "2xx")]);
    assert_eq!(shop, (2 * each) as f64);
    assert_eq!(gateway.metric("weir_usage_lost_total", &[]), 0.0);
    // Filters, series of time and CSV.
    assert_eq!(sum(&look(&gateway, "status=4xx&status=5xx"), "requests"), 3 * each);
    let by_minute = look(&gateway, "step=minute&api=shop");
    assert_eq!(sum(&by_minute, "requests"), 4 * each);
    let text = csv(&gateway, "group_by=route&sort=server_errors&format=csv&percentiles=");
    let lines: Vec<_> = text.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "route,requests,client_errors,server_errors,bytes_received,bytes_sent,latency_ms,upstream_latency_ms"
    );
    assert!(lines[1].starts_with(&format!("orders,{},0,{each},", 2 * each)), "{text}");
    assert_eq!(lines.len(), 6, "{text}");
    let cut = look(&gateway, "group_by=route&limit=1");
    assert_eq!((cut["rows"].as_array().map(Vec::len), &cut["more"]), (Some(1), &json!(true)));
}

fn csv(gateway: &Gateway, question: &str) -> String {
    let answer = RawClient::connect(gateway.admin.expect("an Admin API"))
        .request(format!("GET /weir/v1/usage?{question} HTTP/1.1\r\nHost: a\r\nX-API-KEY: {ADMIN_KEY}\r\n\r\n"));
    assert_eq!(answer.status, 200, "{question}");
    assert_eq!(answer.field("content-type"), Some("text/csv; charset=utf-8"), "{question}");
    answer.text()
}

#[test]
fn a_stop_loses_nothing_and_a_kill_at_most_the_last_moment() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let mut gateway = start(folder.path(), "");
    configure(&gateway, &origin);
    let mut sent = 0;
    let mut client = gateway.client();
    for _ in 0..500 {
        client.get("/open/1");
        sent += 1;
    }
    drop(client);
    // Right behind the last answer.
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    let gateway = start(folder.path(), "");
    await_requests(&gateway, sent, "");

    // The time of each answer, from four clients that never pause.
    let (answers, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let killed = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !stop.load(SeqCst) {
                    client.send(get("/open/1"));
                    let Ok(_) = client.try_response() else { break };
                    answers.lock().expect("answers").push(Instant::now());
                }
            });
        }
        wait_until("some of it is recorded", LIMIT, || {
            let answered = answers.lock().expect("answers").len() as u64;
            (answered > 2_000 && sum(&look(&gateway, ""), "requests") > sent + 1_000).then_some(())
        });
        let killed = Instant::now();
        gateway.signal(Signal::KILL);
        stop.store(true, SeqCst);
        killed
    });
    let answers = answers.into_inner().expect("answers");
    // A second, and as much again for a machine that has other things to do.
    let long_before = answers.iter().filter(|at| **at + Duration::from_secs(2) < killed).count() as u64;
    drop(gateway);
    let gateway = start(folder.path(), "");
    let found = sum(&look(&gateway, ""), "requests");
    let most = sent + answers.len() as u64 + 4;
    assert!((sent + long_before..=most).contains(&found), "{found}: {sent} + {long_before} to {most}");
    // It goes on where it was.
    let mut client = gateway.client();
    (0..100).for_each(|_| drop(client.get("/open/1")));
    await_requests(&gateway, found + 100, "");
}

#[test]
fn upgrades_under_load_lose_no_count() {
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let settings = "usage: {enabled: true}\ntimeouts: {drain_idle: 15s}";
    let gateway = Start::stored().data_dir(folder.path()).settings(settings).workers(2).linked().start();
    gateway.must("PUT", "routes/all", &route_to([&origin.node()])["routes"][0].to_string());
    let requests = Load::under(gateway.addr, |load| {
        for _ in 0..3 {
            upgrade(&gateway);
            load.go_on(100);
        }
    });
    let found = await_requests(&gateway, requests as u64, "group_by=route,status");
    assert_eq!(found["rows"].as_array().map(Vec::len), Some(1), "{found}");
}

#[test]
fn usage_is_recorded_beside_a_rules_file() {
    let origin = Origin::hello();
    let settings = "usage: {enabled: true}\nstore: {data_dir: FOLDER/data}\n\
                    listen: {http: [{address: '127.0.0.1:0', http2: true}], https: [], admin: '127.0.0.1:0'}";
    let start = Start::new(route_to([&origin.node()])).settings(settings).variable("WEIR_ADMIN_KEY", ADMIN_KEY);
    let gateway = start.own_listeners().start();
    let mut client = H2Client::connect(gateway.addr);
    for _ in 0..10 {
        assert_eq!(client.get("/a").status, 200);
    }
    gateway.get("/a");
    let found = await_requests(&gateway, 11, "");
    assert!(sum(&found, "bytes_received") > 0 && sum(&found, "bytes_sent") > 11 * 5, "{found}");
}

#[test]
fn callers_beyond_the_bound_are_added_up() {
    const CALLERS: u64 = 60;
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let gateway = start(folder.path(), ", series: 10");
    configure(&gateway, &origin);
    for number in 0..CALLERS {
        let consumer =
            json!({ "username": format!("c{number}"), "plugins": { "key-auth": { "key": format!("k{number}") } } });
        gateway.must("PUT", "consumers", &consumer.to_string());
    }
    let mut client = gateway.client();
    for number in 0..CALLERS {
        assert_eq!(client.request(with_key("/orders/1", &format!("k{number}"))).status, 200);
    }
    let found = await_requests(&gateway, CALLERS, "group_by=consumer&api=shop");
    let others = found["rows"].as_array().expect("rows").iter().find(|row| row["consumer"] == "(others)");
    let others = others.unwrap_or_else(|| panic!("no others in {found}"))["requests"].as_u64().expect("a number");
    assert_eq!(gateway.metric("weir_usage_folded_total", &[]), others as f64);
}

#[test]
fn without_the_setting_nothing_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Start::stored().data_dir(folder.path()).start();
    let (status, answer) = ask(&gateway, "GET", "usage", "");
    assert_eq!((status, answer["error_msg"].as_str()), (404, Some("usage is not recorded: usage.enabled is false")));
    assert!(!folder.path().join("usage.db").exists());
    assert!(gateway.metrics_page().value("weir_usage_lost_total", &[]).is_none());
}

#[test]
fn wrong_questions_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = start(folder.path(), "");
    for (question, reason) in [
        ("form=-1h", "form: unknown argument"),
        ("from=yesterday", "from: expected a time"),
        ("group_by=city", "group_by: city: unknown dimension"),
        ("step=minute&from=-9d", "step: a time of up to 7 days"),
        ("format=xml", "format: expected json or csv, found xml"),
        ("limit=20000", "limit: expected 1 to 10000"),
    ] {
        let (status, answer) = ask(&gateway, "GET", &format!("usage?{question}"), "");
        let message = answer["error_msg"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(reason), "{question}: {status} {answer}");
    }
    let (_, document) = ask(&gateway, "GET", "openapi.json", "");
    let arguments = document["paths"]["/weir/v1/usage"]["get"]["parameters"].as_array().expect("arguments");
    assert!(arguments.iter().any(|argument| argument["name"] == "group_by"), "{arguments:?}");
}

#[test]
fn a_file_that_is_no_usage_stops_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("usage.db"), "a text where a database should be, longer than its head would be")
        .expect("write a file");
    let settings = folder.path().join("weir.yaml");
    let text = format!(
        "store: {{data_dir: {:?}}}\nusage: {{enabled: true}}\nlisten: {{http: [\"127.0.0.1:0\"], https: [], admin: off, control: off}}\n",
        folder.path()
    );
    std::fs::write(&settings, text).expect("write the settings");
    let (status, _, said) = crate::harness::weir(&["run", "--settings", &settings.display().to_string()]);
    assert!(status != 0 && said.contains("usage.db") && said.contains("usage.enabled"), "{status}: {said}");
}

/// The listings of the document, as a shell runs them, each with what it has to print.
#[test]
fn the_listings_of_the_document_are_answered() {
    const EXPECTED: &[&str] =
        &["\"consumer\":\"jack\"", "\"time\":", "\"p99.9_ms\":", "\"rows\":", "consumer,api,requests"];
    let (origin, folder) = (origin(), tempfile::tempdir().expect("a folder"));
    let gateway = start(folder.path(), "");
    configure(&gateway, &origin);
    let mut client = gateway.client();
    client.request(with_key("/orders/1", "k-jack"));
    await_requests(&gateway, 1, "");
    let document = document("docs/usage.md");
    let lines: Vec<&str> = document.lines().filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(lines.len(), EXPECTED.len(), "{lines:?}");
    program("curl");
    for (line, expected) in lines.iter().zip(EXPECTED) {
        let weir = format!("http://{}/weir/v1", gateway.admin.expect("an Admin API"));
        let output = Command::new("sh")
            .args(["-c", line])
            .env("weir", weir)
            .env("key", ADMIN_KEY)
            .output()
            .expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(expected), "{line}\nprinted\n{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}
