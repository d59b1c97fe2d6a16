//! The control thread of a running gateway: what it prints, its servers, changes of the rules, signals, logs.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{
    Answer, Gateway, LIMIT, Origin, RawClient, Reload, Start, binary, each, get, program, replace, route_to, timed,
    wait_until,
};

/// A configuration that answers everything with this text.
fn answering(text: &str) -> serde_json::Value {
    json!({ "routes": [{ "id": "r", "uri": "/*", "plugins": { "mocking": { "response_example": text } } }] })
}

/// A change is promised to be live within 200 ms; a machine that is busy with other tests may take much longer.
const LIVE: Duration = Duration::from_secs(10);

#[test]
fn pages_of_the_status_and_metrics_servers() {
    let gateway = Start::new(answering("a")).settings("metrics: {path: /m}").workers(2).start();
    let ok = r#"{"status":"ok"}"#;
    let (status, metrics) = (gateway.status, gateway.metrics);
    type Expected<'a> = (u16, &'a str, Option<&'a str>);
    let cases: &[(std::net::SocketAddr, &str, Expected<'_>)] = &[
        (status, "GET /status", (200, "text/plain", Some(ok))),
        (status, "GET /status?x=1", (200, "text/plain", Some(ok))),
        (status, "GET /status/ready", (200, "text/plain", Some(ok))),
        (status, "HEAD /status/ready", (200, "text/plain", Some(""))),
        (status, "GET /", (404, "text/plain", Some("404 Not Found\n"))),
        (status, "GET /metrics", (404, "text/plain", Some("404 Not Found\n"))),
        (status, "POST /status", (405, "text/plain", Some("405 Method Not Allowed\n"))),
        (metrics, "GET /m", (200, "text/plain; version=0.0.4", None)),
        (metrics, "GET /metrics", (200, "text/plain; version=0.0.4", None)),
        (metrics, "HEAD /m", (200, "text/plain; version=0.0.4", Some(""))),
        (metrics, "GET /apisix/prometheus/metrics", (404, "text/plain", Some("404 Not Found\n"))),
        (metrics, "DELETE /m", (405, "text/plain", Some("405 Method Not Allowed\n"))),
    ];
    for (addr, line, (code, media_type, body)) in cases {
        let answer = RawClient::connect(*addr).request(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status, answer.field("content-type")), (*code, Some(*media_type)), "{line}");
        match body {
            Some(body) => assert_eq!(answer.text(), *body, "{line}"),
            None => assert!(answer.text().contains("\napisix_http_requests_total "), "{line}: {}", answer.text()),
        }
        assert_eq!(answer.field("allow"), (*code == 405).then_some("GET, HEAD"), "{line}");
    }
    let head = format!("GET /status HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    assert_eq!(RawClient::connect(status).request(head).status, 431);
}

/// The connection that waits longest for a request gives way, whatever part of it has come.
#[test]
fn idle_connections_lock_nobody_out_of_status_metrics_and_control() {
    let gateway = Start::new(answering("a")).control().start();
    let control = gateway.control.expect("a control API");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (addr, path) in [(gateway.status, "/status"), (gateway.metrics, "/metrics"), (control, "/v1/schema")] {
        let mut idle: Vec<RawClient> = (0..200)
            .map(|n| {
                let mut client = RawClient::connect(addr);
                match n % 3 {
                    0 => {}
                    1 => client.send("GET / HTTP/1.1\r\nHost:"),
                    _ => assert_eq!(client.request(get("/")).status, 404),
                }
                client
            })
            .collect();
        let (answer, took) = timed(|| RawClient::connect(addr).request(get(path)));
        assert_eq!(answer.status, 200, "{addr}");
        assert!(took < Duration::from_secs(10), "{path} was answered after {took:?}");
        idle[0].expect_close();
        assert_eq!(idle[197].request(get(path)).status, 200, "{path}: the last ones are still there");
    }
}

#[test]
fn promtool_takes_a_live_page() {
    let origin = Origin::hello();
    let rules = json!({
        "routes": [{ "id": "r", "name": "a \"quoted\" name", "uri": "/*", "plugins": { "prometheus": { "prefer_name": true } },
            "upstream": { "nodes": { origin.node(): 1 } } }],
    });
    let gateway = Start::new(rules).settings("metrics: {types: linted}").start();
    for path in ["/a", "/b?c=d", "/%22"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    gateway.await_metric("apisix_http_status", &[("code", "200")], 3.0);
    let mut check = Command::new(program("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    check.stdin.take().expect("a pipe").write_all(gateway.metrics_page().0.as_bytes()).expect("write the page");
    let found = check.wait_with_output().expect("wait for promtool");
    let told = String::from_utf8_lossy(&found.stderr).into_owned() + &String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success() && told.is_empty(), "{told}");
}

#[test]
fn servers_can_be_switched_off_and_settings_have_their_order() {
    let folder = tempfile::tempdir().expect("create a folder");
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, format!("{}\n#END\n", answering("a"))).expect("write rules");
    let settings = folder.path().join("s.yaml");
    fs::write(
        &settings,
        "listen: {http: ['127.0.0.1:0'], https: [], metrics: '127.0.0.1:0', status: off}\nmetrics: {path: /file}\n",
    )
    .expect("write settings");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&[], &[], &["listening on http://127.0.0.1:", "metrics on http://127.0.0.1:*/file", "ready"]),
        (
            &[("WEIR_METRICS_PATH", "/env")],
            &[],
            &["listening on http://127.0.0.1:", "metrics on http://127.0.0.1:*/env", "ready"],
        ),
        (
            &[("WEIR_METRICS_PATH", "/env")],
            &["--set", "metrics.path=/flag", "--status", "[::1]:0"],
            &[
                "listening on http://127.0.0.1:",
                "metrics on http://127.0.0.1:*/flag",
                "status on http://[::1]:*/status",
                "ready",
            ],
        ),
        (
            &[("WEIR_LISTEN_METRICS", "off")],
            &["--listen-http", "127.0.0.1:0", "--listen-http", "[::1]:0"],
            &["listening on http://127.0.0.1:", "listening on http://[::1]:", "ready"],
        ),
    ];
    for (variables, flags, expected) in cases {
        let mut command = Command::new(binary());
        command.arg("run").arg(&rules).arg("--settings").arg(&settings).args(*flags);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = crate::harness::Process::spawn(&mut command);
        let mut out = process.child().stdout.take().expect("a pipe");
        let mut seen = String::new();
        while !seen.ends_with("ready\n") {
            let mut piece = [0; 512];
            let count = std::io::Read::read(&mut out, &mut piece).expect("read what it prints");
            assert!(count > 0, "it ended after {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        let lines: Vec<_> = seen.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{seen}");
        for (line, pattern) in lines.iter().zip(*expected) {
            let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
            assert!(line.starts_with(start) && line.ends_with(end), "{line:?} is not {pattern:?}");
            assert!(!line.contains(":0/") && !line.ends_with(":0"), "{line:?} names no port");
        }
        process.signal(Signal::TERM);
        assert!(process.wait().success());
    }
}

#[test]
fn a_change_is_live_soon_however_it_is_written() {
    type Write = fn(&Gateway, &str);
    let ways: &[(&str, Write)] = &[
        ("renamed over", |gateway, text| replace(&gateway.config(), text)),
        ("written in place", |gateway, text| fs::write(gateway.config(), text).expect("write")),
        ("through a new link", |gateway, text| {
            fs::write(gateway.file(&format!("v{}", text.len())), text).expect("write");
            let link = gateway.file("link");
            std::os::unix::fs::symlink(format!("v{}", text.len()), &link).expect("link");
            fs::rename(link, gateway.config()).expect("rename");
        }),
        ("removed and written again", |gateway, text| {
            fs::remove_file(gateway.config()).expect("remove");
            gateway.logged("the rules file does not exist any more");
            assert_eq!(gateway.get("/").status, 200, "what was live has to go on");
            fs::write(gateway.config(), text).expect("write");
        }),
    ];
    each(
        ways,
        |(name, _)| (*name).to_owned(),
        |(_, write)| {
            let gateway = Start::new(answering("before")).workers(2).start();
            assert_eq!(gateway.get("/").text(), "before");
            for text in ["after", "once more"] {
                write(&gateway, &format!("{}\n#END\n", answering(text)));
                let took = timed(|| wait_until(text, LIMIT, || (gateway.get("/").text() == text).then_some(()))).1;
                assert!(took < LIVE, "{text} was live after {took:?}");
            }
            gateway.logged("revision=3 routes=1 changes=routes +0 ~1 -0");
            assert_eq!(gateway.metric("weir_config_revision", &[]), 3.0);
            assert_eq!(gateway.metric("weir_config_reload_total", &[]), 3.0);
        },
    );
}

#[test]
fn what_changed_is_logged_in_numbers() {
    let gateway = Gateway::start(answering("a"));
    let mut rules = answering("a");
    rules["routes"]
        .as_array_mut()
        .expect("a list")
        .push(json!({ "id": "s", "uri": "/s", "plugins": { "mocking": { "response_example": "s" } } }));
    rules["upstreams"] = json!([{ "id": "u", "nodes": { "127.0.0.1:1": 1 } }]);
    assert_eq!(gateway.reload(&rules), Reload::Applied);
    gateway.logged("routes=2 changes=routes +1 ~0 -0, upstreams +1 ~0 -0");
    rules["routes"].as_array_mut().expect("a list").remove(0);
    assert_eq!(gateway.reload(&rules), Reload::Applied);
    gateway.logged("routes=1 changes=routes +0 ~0 -1");
}

#[test]
fn a_bad_change_is_refused_with_every_reason() {
    let gateway = Gateway::start(answering("good"));
    let bad = "routes:\n  - {id: r, uri: /a, plugins: {mockign: {}}}\n  - {id: s, uri: /b, upstream_id: none}";
    for (number, text) in [(1, bad), (2, "routes: [")] {
        assert_eq!(gateway.reload(text), Reload::Rejected);
        assert_eq!(gateway.metric("weir_config_rejected_total", &[]), f64::from(number));
        assert_eq!(gateway.get("/").text(), "good");
    }
    let file = gateway.config().display().to_string();
    for reason in [
        format!("ERROR weir::source::findings: {file}:2:32: routes[0].plugins.mockign: "),
        "did you mean mocking?".to_owned(),
        format!("ERROR weir::source::findings: {file}:3:35: routes[1].upstream_id: "),
        "the rules file is refused; the live configuration stays in force".to_owned(),
    ] {
        gateway.logged(&reason);
    }
    assert_eq!(gateway.metric("weir_config_revision", &[]), 1.0);
    assert_eq!(gateway.reload(answering("better")), Reload::Applied);
    assert_eq!(gateway.get("/").text(), "better");
    assert_eq!(gateway.metric("weir_config_rejected_total", &[]), 2.0);
}

#[test]
fn the_same_content_is_no_change() {
    let gateway = Start::new(answering("a")).settings("error_log: {level: debug}").start();
    replace(&gateway.config(), &format!("{}\n#END\n", answering("a")));
    gateway.logged("with the same content");
    assert_eq!(gateway.metric("weir_config_revision", &[]), 1.0);
}

#[test]
fn sighup_reads_the_file_again() {
    let gateway = Start::new(answering("a")).settings("config: {watch: false}").start();
    // The same text too: what it refers to may be another.
    gateway.signal(Signal::HUP);
    gateway.await_metric("weir_config_revision", &[], 2.0);
    replace(&gateway.config(), &format!("{}\n#END\n", answering("b")));
    assert_eq!(gateway.get("/").text(), "a", "without a watch nothing is read");
    gateway.signal(Signal::HUP);
    gateway.await_metric("weir_config_revision", &[], 3.0);
    assert_eq!(gateway.get("/").text(), "b");
    fs::remove_file(gateway.config()).expect("remove");
    gateway.signal(Signal::HUP);
    gateway.await_metric("weir_config_rejected_total", &[], 1.0);
    gateway.logged("cannot read ");
    assert_eq!(gateway.get("/").text(), "b");
}

#[test]
fn the_poll_finds_changes_that_leave_no_notice() {
    // The kernel does not notify changes of a file that is open for writing until it is closed.
    let gateway = Start::new(answering("a")).settings("config: {poll_interval: 10ms}").start();
    let mut file = fs::File::create(gateway.config()).expect("open");
    write!(file, "{}\n#END\n", answering("b")).expect("write");
    wait_until("the change to be live", LIMIT, || (gateway.get("/").text() == "b").then_some(()));
    drop(file);
}

/// A gateway with a request that its origin answers when the sender is used, and the client that waits for it.
fn with_request_in_flight(settings: &str) -> (Gateway, Origin, RawClient, std::sync::mpsc::SyncSender<()>) {
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::answering(move |_| {
        // Nobody may let it go on.
        let _ = wait.lock().expect("the receiver").recv();
        Answer::ok("late")
    });
    let gateway = Start::new(route_to([&origin.node()])).settings(settings).start();
    let mut client = gateway.client();
    client.send(get("/"));
    wait_until("the request to reach the origin", LIMIT, || (!origin.requests().is_empty()).then_some(()));
    (gateway, origin, client, go)
}

#[test]
fn sigterm_and_sigint_finish_what_is_in_flight() {
    each(
        &[Signal::TERM, Signal::INT],
        |signal| format!("{signal:?}"),
        |signal| {
            let (mut gateway, _origin, mut client, go) = with_request_in_flight("");
            gateway.signal(*signal);
            wait_until("no longer ready", LIMIT, || {
                let ready = RawClient::connect(gateway.status).get("/status/ready");
                (ready.text() == r#"{"status":"error","error":"draining"}"#).then(|| assert_eq!(ready.status, 503))
            });
            assert_eq!(RawClient::connect(gateway.status).get("/status").status, 200);
            wait_until("no new connections", LIMIT, || {
                std::net::TcpStream::connect(gateway.addr).is_err().then_some(())
            });
            go.send(()).expect("the origin waits");
            assert_eq!(client.response().text(), "late");
            client.expect_close();
            assert_eq!(gateway.wait().code(), Some(0));
            gateway.logged("all requests in flight were finished");
        },
    );
}

#[test]
fn the_drain_has_a_limit_and_a_second_signal_ends_it() {
    let (mut gateway, _origin, mut client, go) = with_request_in_flight("timeouts: {drain: 0.2}");
    let began = Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    assert!(began.elapsed() >= Duration::from_millis(200), "it was cut after {:?}", began.elapsed());
    gateway.logged("connections=1");
    client.expect_close();
    drop(go);

    let (mut gateway, _origin, mut client, go) = with_request_in_flight("timeouts: {drain: 1h}");
    gateway.signal(Signal::TERM);
    gateway.logged("stopping: requests in flight are finished");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.wait().code(), Some(0));
    gateway.logged("stopped at once by a second signal");
    client.expect_close();
    drop(go);
}

#[test]
fn sigusr1_opens_both_logs_again() {
    let settings =
        "access_log: {path: FOLDER/access.log, format: 'status $status'}\nerror_log: {path: FOLDER/error.log}";
    let route = |status| {
        let plugins = json!({ "mocking": { "response_status": status, "response_example": "" } });
        json!({ "uri": format!("/{status}"), "plugins": plugins })
    };
    let gateway = Start::new(json!({ "routes": [route(201), route(202), route(203)] })).settings(settings).start();
    let text = |name: &str| fs::read_to_string(gateway.file(name)).unwrap_or_default();
    let await_line = |name: &str, line: &str| {
        wait_until(&format!("{line:?} in {name}"), LIMIT, || text(name).contains(line).then_some(()));
    };
    await_line("error.log", "the gateway is up");
    assert_eq!(gateway.get("/201").status, 201);
    await_line("access.log", "status 201\n");
    for name in ["access.log", "error.log"] {
        fs::rename(gateway.file(name), gateway.file(&format!("{name}.1"))).expect("rename");
    }
    assert_eq!(gateway.get("/202").status, 202);
    await_line("access.log.1", "status 202\n");
    gateway.signal(Signal::USR1);
    await_line("error.log", "log files were opened again");
    assert_eq!(gateway.get("/203").status, 203);
    await_line("access.log", "status 203\n");
    assert_eq!(text("access.log.1"), "status 201\nstatus 202\n");
    assert!(text("error.log.1").contains("the gateway is up"));
    assert!(gateway.stderr().is_empty(), "{}", gateway.stderr());
}

#[test]
fn levels_of_the_error_log() {
    for (level, up) in [("warn", false), ("info", true)] {
        let settings = format!("error_log: {{level: {level}}}");
        let gateway = Start::new(answering("a")).settings(settings).start();
        assert_eq!(gateway.reload("routes: ["), Reload::Rejected);
        gateway.logged("the rules file is refused");
        assert_eq!(gateway.stderr().contains("the gateway is up"), up, "{level}: {}", gateway.stderr());
    }
}
