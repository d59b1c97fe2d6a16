//! The access log, from a request's variables to the lines in a file.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_expr::{Source, Template, Value, Variable};
use weir_telemetry::access_log::{AccessLog, AccessLogOptions, Format, LogWriter, Target};

const LIMIT: Duration = Duration::from_secs(20);

/// A request with variables given by name.
struct Request<'a>(Vec<(Variable, Value<'a>)>);

impl<'a> Request<'a> {
    fn new(variables: &[(&str, Value<'a>)]) -> Self {
        Self(variables.iter().map(|(name, value)| (Variable::parse(name).expect("a variable"), *value)).collect())
    }
}

impl Source for Request<'_> {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        self.0.iter().find(|(name, _)| name == variable).map(|(_, value)| *value)
    }
}

fn open(path: &Path, format: Format) -> Arc<AccessLog> {
    let target = Target::File(path.to_owned());
    AccessLog::open(AccessLogOptions { target, format, ring_bytes: 1 << 16, mode: 0o600 })
        .expect("the file can be created")
}

fn format(text: &str) -> Format {
    Format::parse(text, false).0
}

fn fields(fields: &[(&str, &str)]) -> Format {
    let field = |(name, text): &(&str, &str)| (name.to_string(), Template::parse(text).expect("a template"));
    Format::Json { fields: fields.iter().map(field).collect() }
}

/// Content of the file after these requests were logged.
fn logged(format: Format, requests: &[&Request<'_>]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("access.log");
    let log = open(&path, format);
    let writer = log.writer();
    for request in requests {
        writer.write(*request);
    }
    assert!(log.close(LIMIT), "the log is written to its end");
    assert_eq!(log.dropped(), 0);
    fs::read_to_string(path).expect("a log in UTF-8")
}

fn bytes(text: &[u8]) -> Value<'_> {
    Value::Bytes(text)
}

#[test]
fn json_fields_keep_their_kind_and_are_escaped() {
    let cases: &[(&str, Option<Value<'_>>, &str)] = &[
        ("$status", Some(Value::Number(200)), "200"),
        ("$status", None, "null"),
        ("$request_time", Some(Value::Millis(1023)), "1.023"),
        ("$remote_addr", Some(Value::Ip(IpAddr::from([10, 0, 0, 1]))), r#""10.0.0.1""#),
        ("$http_x", Some(bytes(b"plain")), r#""plain""#),
        ("$http_x", Some(bytes(b"")), r#""""#),
        ("$http_x", Some(bytes(b"12")), r#""12""#),
        ("$http_x", Some(bytes(b"a\"b\\c")), r#""a\"b\\c""#),
        ("$http_x", Some(bytes(b"\n\r\t\x00\x1f\x7f")), "\"\\n\\r\\t\\u0000\\u001F\x7f\""),
        ("$http_x", Some(bytes("grüße 🦀".as_bytes())), "\"grüße 🦀\""),
        ("$http_x", Some(bytes(b"a\xffb\xc3")), "\"a\u{fffd}b\u{fffd}\""),
        ("$http_x", Some(bytes(b"\xf0\x9f\x22\xed\xa0\x80")), "\"\u{fffd}\\\"\u{fffd}\u{fffd}\u{fffd}\""),
        ("\"$status\"", Some(Value::Number(200)), r#""\"200\"""#),
        ("[$http_x]", None, r#""[]""#),
        ("[${http_x}]", Some(bytes(b"\"\xff")), "\"[\\\"\u{fffd}]\""),
        ("$http_x$http_x", Some(bytes(b"a")), r#""aa""#),
        ("con\\stant\n", None, r#""con\\stant\n""#),
        ("", None, r#""""#),
    ];
    for (template, value, expected) in cases {
        let variable =
            template.trim_matches(['"', '[', ']']).trim_start_matches('$').split('$').next().unwrap_or_default();
        let request = match value {
            Some(value) => Request::new(&[(variable.trim_matches(['{', '}']), *value)]),
            None => Request::new(&[]),
        };
        let line = logged(fields(&[("k", template)]), &[&request]);
        assert_eq!(line, format!("{{\"k\":{expected}}}\n"), "{template:?} with {value:?}");
        serde_json::from_str::<serde_json::Value>(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    }
}

#[test]
fn json_objects_have_their_fields_in_order() {
    let request = Request::new(&[("status", Value::Number(204)), ("host", bytes(b"a.example"))]);
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], "{}\n"),
        (&[("z", "$host"), ("a", "$status")], "{\"z\":\"a.example\",\"a\":204}\n"),
        (&[("a \"key\"", "1")], "{\"a \\\"key\\\"\":\"1\"}\n"),
    ];
    for (format, expected) in cases {
        assert_eq!(logged(fields(format), &[&request]), *expected);
    }
}

#[test]
fn templates_escape_values_as_nginx_does() {
    let cases: &[(&str, Option<Value<'_>>, &str)] = &[
        ("<$http_x>", Some(bytes(b"plain ~")), "<plain ~>"),
        ("<$http_x>", Some(bytes(b"")), "<>"),
        ("<$http_x>", None, "<->"),
        ("\"\\$http_x\\\"", Some(bytes(b"a\"b\\c")), "\"\\a\\x22b\\x5Cc\\\""),
        ("$http_x", Some(bytes(b"\r\n\x00\x1f\x7f\xc3\xa9")), "\\x0D\\x0A\\x00\\x1F\\x7F\\xC3\\xA9"),
        ("${http_x}ü", Some(Value::Number(7)), "7ü"),
        ("no variable", None, "no variable"),
    ];
    for (template, value, expected) in cases {
        let request = value.map_or(Request::new(&[]), |value| Request::new(&[("http_x", value)]));
        assert_eq!(logged(format(template), &[&request]), format!("{expected}\n"), "{template:?} with {value:?}");
    }
}

#[test]
fn presets_write_what_they_promise() {
    let request = Request::new(&[
        ("remote_addr", Value::Ip(IpAddr::from([192, 0, 2, 7]))),
        ("time_local", bytes(b"21/Nov/2026:11:12:04 +0000")),
        ("time_iso8601", bytes(b"2026-11-21T11:12:04+00:00")),
        ("request_method", bytes(b"GET")),
        ("real_request_uri", bytes(b"/a?b=\"")),
        ("server_protocol", bytes(b"HTTP/1.1")),
        ("status", Value::Number(200)),
        ("grpc_status", bytes(b"5")),
        ("body_bytes_sent", Value::Number(12)),
        ("request_time", Value::Millis(5)),
        ("upstream_status", bytes(b"502, 200")),
        ("route_id", bytes(b"r1")),
        ("http_user_agent", bytes(b"curl/8")),
    ]);
    assert_eq!(
        logged(format("combined"), &[&request, &Request::new(&[])]),
        concat!(
            "192.0.2.7 - - [21/Nov/2026:11:12:04 +0000] \"GET /a?b=\\x22 HTTP/1.1\" 200 12 \"-\" \"curl/8\"\n",
            "- - - [-] \"- - -\" - - \"-\" \"-\"\n",
        )
    );

    let line = logged(format("json"), &[&request]);
    let object: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    let expected = [
        ("time", serde_json::json!("2026-11-21T11:12:04+00:00")),
        ("remote_addr", serde_json::json!("192.0.2.7")),
        ("method", serde_json::json!("GET")),
        ("uri", serde_json::json!("/a?b=\"")),
        ("status", serde_json::json!(200)),
        ("grpc_status", serde_json::json!("5")),
        ("body_bytes_sent", serde_json::json!(12)),
        ("request_time", serde_json::json!(0.005)),
        ("upstream_status", serde_json::json!("502, 200")),
        ("upstream_latency", serde_json::Value::Null),
        ("gateway_latency", serde_json::Value::Null),
        ("route_id", serde_json::json!("r1")),
        ("service_id", serde_json::Value::Null),
        ("consumer_name", serde_json::Value::Null),
    ];
    for (name, value) in expected {
        assert_eq!(object.get(name), Some(&value), "{name} in {line}");
    }
}

#[test]
fn an_unknown_variable_is_an_error_when_the_format_is_read() {
    let (_, missing) = Format::parse("$remote_addr $remote_adr", false);
    let [error] = &missing[..] else { panic!("{missing:?}") };
    assert!(error.to_string().contains("did you mean 'remote_addr'?"), "{error}");
}

/// Logs numbered lines from several workers while the file is repeatedly moved away.
#[test]
fn no_line_is_lost_or_torn_between_workers_and_reopening() {
    const WORKERS: u64 = 3;
    const LINES: u64 = 5000;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("access.log");
    let log = open(&path, format("$request_id:$status:$http_filler"));
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let writer = log.writer();
                scope.spawn(move || {
                    let name = format!("w{worker}");
                    let filler = b"x".repeat(40 + worker as usize);
                    for line in 0..LINES {
                        writer.write(&Request::new(&[
                            ("request_id", bytes(name.as_bytes())),
                            ("status", Value::Number(line)),
                            ("http_filler", bytes(&filler)),
                        ]));
                    }
                })
            })
            .collect();
        let rotation = scope.spawn(|| {
            let mut round = 0;
            while running.load(Ordering::Acquire) && round < 200 {
                fs::rename(&path, directory.path().join(format!("access.log.{round}"))).expect("renamed");
                log.reopen().expect("reopened");
                round += 1;
            }
            round
        });
        for worker in workers {
            worker.join().expect("a worker");
        }
        running.store(false, Ordering::Release);
        assert!(rotation.join().expect("the rotation") > 0);
    });
    assert!(log.close(LIMIT));

    // Orders the files by time: moved files by age, the current one last.
    let mut files: Vec<_> =
        fs::read_dir(directory.path()).expect("a directory").flatten().map(|file| file.path()).collect();
    files
        .sort_by_key(|path| path.extension().and_then(|n| n.to_str()).and_then(|n| n.parse().ok()).unwrap_or(u32::MAX));
    let mut next = [0; WORKERS as usize];
    let mut found = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("a log");
        assert!(text.is_empty() || text.ends_with('\n'), "{} ends within a line", file.display());
        for line in text.lines() {
            let mut parts = line.split(':');
            let worker: usize =
                parts.next().and_then(|name| name.strip_prefix('w')?.parse().ok()).expect("a worker's name");
            let number: u64 = parts.next().and_then(|number| number.parse().ok()).expect("a number");
            assert_eq!(parts.next().map(str::len), Some(40 + worker), "{line}");
            assert!(number >= next[worker], "line {number} of worker {worker} is out of order");
            next[worker] = number + 1;
            found += 1;
        }
    }
    assert_eq!(found + log.dropped(), WORKERS * LINES, "a line is written once or counted as dropped");
}

#[test]
fn a_line_that_never_fits_is_dropped_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("access.log");
    let log = AccessLog::open(AccessLogOptions {
        target: Target::File(path.clone()),
        format: format("$http_x"),
        mode: 0o600,
        ring_bytes: 0, // the smallest ring: 4096 bytes
    })
    .expect("a log");
    let writer = log.writer();
    for (length, dropped) in [(10, 0), (4096, 1), (5000, 2), (20, 2), (100_000, 3), (30, 3)] {
        writer.write(&Request::new(&[("http_x", bytes(&b"x".repeat(length)))]));
        assert_eq!(log.dropped(), dropped, "after {length} bytes");
    }
    assert!(log.close(LIMIT));
    let lengths: Vec<usize> = fs::read_to_string(&path).expect("a log").lines().map(str::len).collect();
    assert_eq!(lengths, [10, 20, 30]);
}

#[test]
fn closing_and_dropping_write_what_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let request = Request::new(&[("status", Value::Number(200))]);
    // Returns the expected and the counted number of dropped lines.
    type End = fn(Arc<AccessLog>, LogWriter, &Request<'_>) -> Option<(u64, u64)>;
    let ends: [(&str, End); 4] = [
        ("the writer goes first", |log, writer, _| {
            drop(writer);
            drop(log);
            None
        }),
        ("the log goes first", |log, writer, _| {
            drop(log);
            drop(writer);
            None
        }),
        ("lines after the end are counted", |log, writer, request| {
            assert!(log.close(LIMIT));
            writer.write(request);
            log.writer().write(request);
            Some((2, log.dropped()))
        }),
        ("closed twice", |log, _writer, _| {
            assert!(log.close(LIMIT) && log.close(Duration::ZERO));
            Some((0, log.dropped()))
        }),
    ];
    for (index, (name, end)) in ends.into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        let log = open(&path, format("$status"));
        let writer = log.writer();
        writer.write(&request);
        if let Some((expected, dropped)) = end(log, writer, &request) {
            assert_eq!(dropped, expected, "{name}");
        }
        assert_eq!(fs::read_to_string(&path).expect("a log"), "200\n", "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = directory.path().join("missing");
    let target = Target::File(missing.join("access.log"));
    let opened = AccessLog::open(AccessLogOptions { target, format: format("x"), ring_bytes: 4096, mode: 0o600 });
    assert!(opened.is_err());

    // A log whose directory was removed keeps its file.
    fs::create_dir(&missing).expect("a directory");
    let log = open(&missing.join("access.log"), format("$status"));
    let moved = directory.path().join("moved");
    fs::rename(&missing, &moved).expect("renamed");
    assert!(log.reopen().is_err());
    log.writer().write(&Request::new(&[("status", Value::Number(200))]));
    assert!(log.close(LIMIT));
    assert_eq!(fs::read_to_string(moved.join("access.log")).expect("a log"), "200\n");
}

/// Runs itself as a child process, since the standard output of a test belongs to the test runner.
#[test]
fn standard_output_gets_the_lines() {
    const CHILD: &str = "WEIR_TEST_LOG_TO_STDOUT";
    if std::env::var_os(CHILD).is_some() {
        let log = AccessLog::open(AccessLogOptions {
            target: Target::Stdout,
            format: format("line=$status"),
            ring_bytes: 4096,
            mode: 0o600,
        })
        .expect("standard output is open");
        let writer = log.writer();
        for status in [200, 404] {
            writer.write(&Request::new(&[("status", Value::Number(status))]));
        }
        log.reopen().expect("nothing to do");
        assert!(log.close(LIMIT));
        return;
    }
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "standard_output_gets_the_lines", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("line=200\nline=404\n"), "{text}");
}
