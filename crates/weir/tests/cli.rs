//! The commands that come to an end: check, explain, version, completions; and starts that fail.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::etcd;
use crate::harness::{EtcdCluster, Process, Start, binary, weir};

const GOOD: &str = r#"
routes:
  - {id: exact, uri: /orders, methods: [GET], host: api.test, upstream_id: u, plugins: {key-auth: {}, prometheus: {}}}
  - {id: wide, name: everything, uri: /*, upstream_id: u, priority: 3}
upstreams:
  - {id: u, nodes: {"127.0.0.1:1980": 1}, retries: 2, timeout: {connect: 1.5, send: 2, read: 3}, pass_host: rewrite, upstream_host: in.test,
     checks: {active: {http_path: /health, port: 1981, unhealthy: {interval: 5}}, passive: {}}}
global_rules:
  - {id: g, plugins: {limit-count: {count: 10, time_window: 60}}}
consumers:
  - {username: alice, plugins: {key-auth: {key: k}}}
#END
"#;

const BAD: &str = "\
routes:
  - uri: /a
    plugins:
      limit-count:
        count: many
        time_window: 60
  - uri: /b
    upstream_id: u
    plugins: {keyauth: {}}
upstreams:
  - {id: u, nodes: {127.0.0.1:1: 1}}
";

/// Runs the binary in a folder with these files, `input` on standard input and these variables.
fn run(files: &[(&str, &str)], variables: &[(&str, &str)], input: &str, arguments: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let file = |name: &str| folder.path().join(name);
    fs::write(file("stdin"), input).unwrap();
    let mut command = in_folder(folder.path(), variables);
    command.args(arguments).stdin(File::open(file("stdin")).unwrap());
    command.stdout(File::create(file("stdout")).unwrap()).stderr(File::create(file("stderr")).unwrap());
    let code = Process::spawn(&mut command).wait().code().unwrap_or(-1);
    let text = |name| String::from_utf8_lossy(&fs::read(file(name)).unwrap()).into_owned();
    (code, text("stdout"), text("stderr"))
}

fn in_folder(folder: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).envs(variables.iter().copied());
    command
}

struct Case<'a> {
    arguments: &'a str,
    files: &'a [(&'a str, &'a str)],
    variables: &'a [(&'a str, &'a str)],
    code: i32,
    stdout: &'a [&'a str],
    stderr: &'a [&'a str],
}

const CASE: Case<'_> = Case {
    arguments: "",
    files: &[("good.yaml", GOOD), ("bad.yaml", BAD)],
    variables: &[],
    code: 0,
    stdout: &[],
    stderr: &[],
};

impl Case<'_> {
    fn test(&self) {
        let arguments: Vec<_> = self.arguments.split_whitespace().collect();
        let (code, stdout, stderr) = run(self.files, self.variables, GOOD, &arguments);
        let seen = format!("weir {}\nstdout:\n{stdout}stderr:\n{stderr}", self.arguments);
        assert_eq!(code, self.code, "{seen}");
        for (text, parts) in [(&stdout, self.stdout), (&stderr, self.stderr)] {
            assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in: {seen}");
            assert!(!parts.is_empty() || text.is_empty(), "nothing expected: {seen}");
        }
    }
}

#[test]
fn check_tells_all_that_is_wrong() {
    let warned = GOOD.replace("#END\n", "");
    let cases = [
        Case {
            arguments: "check good.yaml",
            stdout: &["good.yaml: 2 routes, 1 upstream, 1 consumer, 1 global rule\n"],
            ..CASE
        },
        Case { arguments: "check -", stdout: &["standard input: 2 routes"], ..CASE },
        Case {
            arguments: "check bad.yaml",
            code: 1,
            stdout: &["bad.yaml: refused; 2 errors, 1 warning\n"],
            stderr: &[
                "bad.yaml:5:16: routes[0].plugins.limit-count.count: ",
                "bad.yaml:9:15: routes[1].plugins.keyauth: ",
                "did you mean key-auth?\n",
                "bad.yaml:12:1: warning: ",
            ],
            ..CASE
        },
        Case {
            arguments: "check bad.yaml --invalid-items skip",
            stdout: &["bad.yaml: 0 routes, 1 upstream; 2 errors, ", "; 2 items left out\n"],
            stderr: &["routes[0].plugins.limit-count.count: ", "routes[1].plugins.keyauth: "],
            ..CASE
        },
        Case {
            arguments: "check warned.yaml",
            files: &[("warned.yaml", &warned)],
            stdout: &["warned.yaml: 2 routes", "; 0 errors, 1 warning\n"],
            stderr: &["warned.yaml:", "warning: ", "#END"],
            ..CASE
        },
        Case {
            arguments: "check warned.yaml --strict",
            files: &[("warned.yaml", &warned)],
            code: 1,
            stdout: &["warned.yaml: refused; 1 error, 0 warnings\n"],
            stderr: &["#END"],
            ..CASE
        },
        Case {
            arguments: "check empty.yaml",
            files: &[("empty.yaml", "")],
            code: 1,
            stdout: &["empty.yaml: refused; 1 error, 0 warnings\n"],
            stderr: &["empty.yaml: the file is empty; a rules file without any route says so: routes: []\n"],
            ..CASE
        },
        Case { arguments: "check none.yaml", code: 1, stderr: &["error: cannot read none.yaml: No such file"], ..CASE },
        // Compiled, not only read: two consumers with one key.
        Case {
            arguments: "check twice.yaml",
            files: &[(
                "twice.yaml",
                "consumers:\n  - {username: a, plugins: {key-auth: {key: k}}}\n  - {username: b, plugins: {key-auth: {key: k}}}\n#END\n",
            )],
            code: 1,
            stdout: &["twice.yaml: refused; 1 error"],
            stderr: &["twice.yaml:3:", "consumers[1].plugins.key-auth"],
            ..CASE
        },
    ];
    cases.iter().for_each(Case::test);
}

#[test]
fn settings_come_from_flags_environment_and_file() {
    const FILE: &[(&str, &str)] = &[
        ("good.yaml", GOOD),
        ("s.yaml", "workers: none\n"),
        ("ok.yaml", "workers: 2\n"),
        ("weir.yaml", "workers: none\n"),
    ];
    let cases = [
        Case { arguments: "check good.yaml --settings ok.yaml", stdout: &["2 routes"], ..CASE },
        // Not picked up by its name.
        Case { arguments: "check good.yaml", stdout: &["2 routes"], ..CASE },
        Case {
            arguments: "check good.yaml --settings s.yaml",
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["s.yaml:1:10: workers: "],
            ..CASE
        },
        Case {
            arguments: "check good.yaml",
            variables: &[("WEIR_SETTINGS", "s.yaml")],
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["s.yaml:1:10: workers: "],
            ..CASE
        },
        // Values of lower precedence are not checked.
        Case {
            arguments: "check good.yaml --settings s.yaml",
            variables: &[("WEIR_WORKERS", "1")],
            stdout: &["2 routes"],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --settings s.yaml --workers 3",
            variables: &[("WEIR_WORKERS", "x")],
            stdout: &["2 routes"],
            ..CASE
        },
        Case {
            arguments: "check good.yaml",
            variables: &[("WEIR_WORKERS", "x")],
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["WEIR_WORKERS: workers: "],
            ..CASE
        },
        Case {
            arguments: "check good.yaml",
            variables: &[("WEIR_WORKRES", "1")],
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["WEIR_WORKRES: ", "did you mean WEIR_WORKERS?"],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --workers 0",
            code: 2,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["command line: workers: "],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --listen-http here",
            code: 2,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["command line: listen.http"],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --metrics here",
            code: 2,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["command line: listen.metrics: "],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --status here",
            code: 2,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["command line: listen.status: "],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --set limits.haed_size=1KiB",
            code: 2,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["command line: limits.haed_size: ", "did you mean limits.head_size?"],
            ..CASE
        },
        Case {
            arguments: "check good.yaml --set limits.buffers=2MiB",
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["limits.buffers: less than four times the largest of limits.buffered_body, limits.head_size"],
            ..CASE
        },
        Case { arguments: "check good.yaml --set limits.head_size=1KiB --metrics off", stdout: &["2 routes"], ..CASE },
        Case {
            arguments: "check good.yaml --settings none.yaml",
            code: 1,
            stdout: &[": refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"],
            stderr: &["cannot read the settings file none.yaml"],
            ..CASE
        },
    ];
    for case in cases {
        Case { files: FILE, ..case }.test();
    }
}

/// `check` reports the errors that `run` finds before it opens a socket, beside the findings about the rules.
#[test]
fn check_says_of_settings_what_run_would_say() {
    const REFUSED: &[&str] = &["settings: refused; 1 error, 0 warnings\n", "good.yaml: 2 routes"];
    let cases: &[(&str, i32, &str)] = &[
        ("--set deployment.config_provider=etcd", 2, "so there is no place for a rules file"),
        ("--set deployment.role=control_plane", 2, "needs deployment.config_provider: etcd"),
        (
            "--set error_log.path=bad.yaml/e.log",
            1,
            "cannot open the error log bad.yaml/e.log: cannot make a file in bad.yaml",
        ),
        ("--set access_log.path=bad.yaml/a/b.log", 1, "cannot open the access log bad.yaml/a/b.log"),
        ("--admin 127.0.0.1:9180 --set admin.tls.cert=none.pem", 1, "admin.tls.cert needs admin.tls.key"),
        ("--listen-http 9091", 1, "listen.metrics: cannot listen on 127.0.0.1:9091: listen.http uses this address"),
        (
            "--listen-http localhost:9443 --listen-https localhost:9443",
            1,
            "listen.https: cannot listen on 127.0.0.1:9443",
        ),
        ("--listen-http unix:/none/weir.sock", 1, "cannot listen on unix:/none/weir.sock: the folder does not exist"),
    ];
    for (flags, code, told) in cases {
        let arguments = format!("check good.yaml {flags}");
        Case { arguments: &arguments, code: *code, stdout: REFUSED, stderr: &[told], ..CASE }.test();
    }
    // Everything at once; and a folder that `run` makes is fine.
    let case = Case {
        arguments: "check bad.yaml --set error_log.path=bad.yaml/e.log --set deployment.config_provider=etcd",
        code: 2,
        stdout: &["settings: refused; 2 errors, 0 warnings\n", "bad.yaml: refused; 2 errors, 1 warning\n"],
        stderr: &["cannot open the error log", "no place for a rules file", "routes[1].plugins.keyauth"],
        ..CASE
    };
    case.test();
    Case { arguments: "check good.yaml --set error_log.path=new/logs/e.log", stdout: &["2 routes"], ..CASE }.test();
    let case = Case {
        arguments: "check good.yaml --set access_log.path=stdout --set access_log.format=$statsu",
        stdout: &["2 routes"],
        stderr: &["warning: access_log.format: at character 1: unknown variable 'statsu'", ": - is written for it"],
        ..CASE
    };
    case.test();
}

/// Without a rules file `run` begins with the store, or with etcd, and `check` looks there.
#[test]
fn check_without_a_file_looks_where_run_begins() {
    Case { arguments: "check --data-dir none", stdout: &["none: no store yet"], ..CASE }.test();
    let refused = Case {
        arguments: "check --data-dir none --set error_log.path=bad.yaml/e.log",
        code: 1,
        stdout: &["settings: refused; 1 error, 0 warnings\n"],
        stderr: &["cannot open the error log"],
        ..CASE
    };
    refused.test();

    let data = tempfile::tempdir().expect("create a folder");
    let folder = data.path().display().to_string();
    let gateway = Start::stored().data_dir(data.path()).start();
    gateway.must("PUT", "routes/1", &etcd::route("/1", "one").to_string());
    let (code, out, err) = weir(&["check", "--data-dir", &folder]);
    assert!(code == 0 && out.contains("whole; revision 1: 1 route\n"), "{out}{err}");

    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", etcd::route("/1", "one"));
    let settings = |hosts: &[String]| {
        fs::write(data.path().join("weir.yaml"), etcd::settings("data_plane", hosts, "")).expect("write settings");
        let file = data.path().join("weir.yaml").display().to_string();
        weir(&["check", "--settings", &file, "--data-dir", &folder])
    };
    let (code, out, err) = settings(&cluster.urls());
    let summary = format!("etcd at {}: revision ", cluster.urls()[0]);
    assert!(code == 0 && out.starts_with(&summary) && out.ends_with(": 1 route\n"), "{out}{err}");
    cluster.put("routes/2", r#"{"uri": "/2", "plugins": {"limit-count": {"count": -1}}}"#);
    let (code, out, err) = settings(&cluster.urls());
    assert!(
        code == 1 && out.ends_with("; 1 resource left out\n") && err.contains("routes/2.plugins.limit-count"),
        "{out}{err}"
    );
    let (code, out, err) = settings(&["http://127.0.0.1:1".to_owned()]);
    assert!(code == 1 && out.is_empty() && err.contains("etcd: http://127.0.0.1:1"), "{out}{err}");
}

#[test]
fn folders_of_logs_are_made() {
    let logs = "{error_log: {path: FOLDER/new/logs/error.log}, access_log: {path: FOLDER/other/logs/access.log}}";
    let gateway = Start::new("{\"routes\": []}").settings(logs).start();
    assert!(gateway.file("new/logs/error.log").is_file() && gateway.file("other/logs/access.log").is_file());
}

#[test]
fn the_place_of_the_store_is_told() {
    let output = |arguments: &[&str], folder: &Path| {
        let mut command = in_folder(folder, &[]);
        command.args(["run", "--listen-http", "127.0.0.1:0", "--listen-https", "off", "--metrics", "off"]);
        command.args(["--status", "off", "--admin", "127.0.0.1:0", "--control", "off"]).args(arguments);
        let (told, into) = std::io::pipe().unwrap();
        command.stdout(into).stderr(std::process::Stdio::null());
        let process = Process::spawn(&mut command);
        drop(command);
        let lines = std::io::BufRead::lines(std::io::BufReader::new(told)).map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
        drop(process);
        lines
    };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    assert!(output(&[], &place).contains(&format!("store in {}/weir-data", place.display())));
    assert!(output(&["--data-dir", "a/b"], &place).contains(&format!("store in {}/a/b", place.display())));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let cases = [
        ("", "Usage: weir <COMMAND>"),
        ("serve", "unrecognized subcommand 'serve'"),
        ("explain", "<FILE>"),
        ("check --strict", "<FILE>"),
        ("run --strict", "<FILE>"),
        ("store", "Usage: weir store"),
        ("store diff 1", "<TO>"),
        ("store history --key routes", "no place of a resource"),
        ("run -", "`run` needs a file"),
        ("run good.yaml --wrokers 1", "a similar argument exists: '--workers'"),
        ("check good.yaml --set workers", "expected PATH=VALUE"),
        ("check good.yaml --invalid-items some", "invalid value 'some'"),
        ("check good.yaml --strict --invalid-items skip", "--strict treats warnings as errors"),
        ("explain good.yaml", "--request"),
        ("explain good.yaml --request ftp://a/", "expected an http or https URL"),
        ("explain good.yaml --request /a -H apikey", "expected 'NAME: VALUE'"),
        ("explain good.yaml --request /a --remote here", "invalid value 'here'"),
        ("completions tcsh", "invalid value 'tcsh'"),
    ];
    for (arguments, told) in cases {
        Case { arguments, code: 2, stderr: &[told], ..CASE }.test();
    }
}

#[test]
fn version_help_and_completions() {
    let (code, stdout, _) = weir(&["version"]);
    assert_eq!((code, stdout), (0, format!("weir {}\n", env!("CARGO_PKG_VERSION"))));
    for command in [&["--help"][..], &["run", "--help"], &["check", "--help"], &["explain", "--help"]] {
        let (code, stdout, _) = weir(command);
        assert!(code == 0 && stdout.contains("Usage: weir") && stdout.contains("Examples:"), "{command:?}: {stdout}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, stdout, stderr) = weir(&["completions", shell]);
        assert!(code == 0 && stderr.is_empty(), "{shell}: {stderr}");
        assert!(stdout.contains("weir") && stdout.contains("invalid-items"), "{shell}: {stdout}");
    }
}

#[test]
fn explain_tells_what_would_be_done() {
    let cases: &[(&[&str], &[&str], &[&str])] = &[
        (
            &["--request", "GET http://api.test/orders?page=2"],
            &[
                "request:    GET /orders?page=2 (host api.test), from 127.0.0.1\n",
                "matched as: /orders\n",
                "route:      exact, by /orders\n",
                "not taken:\n  wide \"everything\", /*: not tried",
                "  limit-count  priority 1002: ",
                ", by a global rule\n  key-auth     priority 2500: rewrite\n  prometheus   priority 500: log\n",
                "upstream:   127.0.0.1:1980\n",
                "  target    /orders?page=2",
                "  Host      in.test\n",
                "  retries   2\n",
                "  timeouts  connect 1.5 s, send 2 s, read 3 s\n",
                "  checks    http, GET /health to port 1981 every 1 s, 5 s while unhealthy; requests count too\n",
            ],
            &[],
        ),
        (
            &["--request", "POST /orders", "-H", "Host: api.test", "--remote", "10.0.0.7"],
            &[
                "POST /orders (host api.test), from 10.0.0.7\n",
                "route:      wide \"everything\", by /*\n",
                "not taken:\n  exact, /orders: method",
            ],
            &["key-auth"],
        ),
        (
            &["--request", "http://other.test/x/../orders"],
            &["GET /x/../orders (host other.test)", "matched as: /orders\n", "route:      wide"],
            &[],
        ),
        (&["--request", "GET http://a.test/%zz"], &["answered 400 before any route is looked for: "], &["route:"]),
    ];
    for (arguments, parts, absent) in cases {
        let arguments = [&["explain", "good.yaml"], *arguments].concat();
        let (code, stdout, stderr) = run(&[("good.yaml", GOOD)], &[], "", &arguments);
        assert!(code == 0 && stderr.is_empty(), "{arguments:?}: {stderr}");
        for part in *parts {
            assert!(stdout.contains(part), "{arguments:?}: {part:?} in\n{stdout}");
        }
        for part in *absent {
            assert!(!stdout.contains(part), "{arguments:?}: no {part:?} in\n{stdout}");
        }
    }
    let split = "routes: [{id: a, uri: /a, upstream_id: one, plugins: {traffic-split: {rules: [\
        {match: [{vars: [[arg_v, ==, '2']]}], weighted_upstreams: [{upstream_id: two}]},\
        {weighted_upstreams: [{weight: 3}, {upstream: {nodes: {'127.0.0.3:3': 1}}}]}]}}}]\n\
        upstreams: [{id: one, nodes: {'127.0.0.1:1': 1}}, {id: two, nodes: {'127.0.0.2:2': 1}}]\n#END\n";
    for (url, upstreams) in [
        ("/a?v=2", &["127.0.0.2:2, by traffic-split"][..]),
        (
            "/a?v=1",
            &[
                "127.0.0.1:1, for 3 of 4 requests, by traffic-split",
                "127.0.0.3:3, for 1 of 4 requests, by traffic-split",
            ],
        ),
    ] {
        let (code, stdout, stderr) = run(&[("a.yaml", split)], &[], "", &["explain", "a.yaml", "--request", url]);
        assert!(code == 0 && stderr.is_empty(), "{url}: {stderr}");
        let told: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("upstream:   ")).collect();
        assert_eq!(told, upstreams, "{url}");
    }
    let waits = "routes: [{id: a, uri: /a, plugins: {mocking: {response_example: $env://GATEWAY_NONE}}}]\n#END\n";
    let (code, stdout, stderr) = run(&[("a.yaml", waits)], &[], "", &["explain", "a.yaml", "--request", "/a"]);
    assert!(code == 0 && stdout.contains(": a reference has no value, answered 503\n"), "{stdout}{stderr}");
    let none = GOOD.replace("uri: /*,", "uri: /other,");
    let (code, stdout, _) = run(&[("a.yaml", &none)], &[], "", &["explain", "a.yaml", "--request", "/nowhere"]);
    assert!(code == 0 && stdout.contains("route:      none: answered 404\n"), "{stdout}");
    let (code, stdout, stderr) = run(&[("bad.yaml", BAD)], &[], "", &["explain", "bad.yaml", "--request", "/a"]);
    assert!(code == 1 && stdout.is_empty() && stderr.contains("limit-count.count"), "{stderr}");
}

#[test]
fn a_start_that_fails_says_why_and_listens_nowhere() {
    // As another gateway has it: a socket whose port others may share.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    let listener = TcpListener::from(socket);
    let taken = listener.local_addr().unwrap().to_string();
    let free = [
        ("WEIR_LISTEN_HTTP", "127.0.0.1:0"),
        ("WEIR_LISTEN_METRICS", "127.0.0.1:0"),
        ("WEIR_LISTEN_STATUS", "127.0.0.1:0"),
    ];
    let cases: &[(&[&str], &str)] = &[
        (&["bad.yaml"], "bad.yaml:5:16: routes[0].plugins.limit-count.count: "),
        (&["none.yaml"], "error: cannot read none.yaml"),
        (&["empty.yaml"], "empty.yaml: the file is empty; a rules file without any route says so: routes: []"),
        (&["comment.yaml", "--invalid-items", "skip"], "comment.yaml: the file is empty; "),
        (&["good.yaml", "--listen-http", &taken], "error: listen.http: cannot listen on {taken}"),
        (&["good.yaml", "--metrics", &taken], "error: listen.metrics: cannot listen on {taken}"),
        (&["good.yaml", "--status", &taken], "error: listen.status: cannot listen on {taken}"),
        (&["good.yaml", "--set", "error_log.path=bad.yaml/e.log"], "error: cannot open the error log bad.yaml/e.log"),
        (&["good.yaml", "--set", "access_log.path=bad.yaml/a.log"], "error: cannot open the access log bad.yaml/a.log"),
    ];
    for (arguments, told) in cases {
        const FILES: &[(&str, &str)] =
            &[("good.yaml", GOOD), ("bad.yaml", BAD), ("empty.yaml", ""), ("comment.yaml", "# soon\n#END\n")];
        let arguments = [&["run"], *arguments].concat();
        let (code, stdout, stderr) = run(FILES, &free, "", &arguments);
        assert!(stderr.contains(&told.replace("{taken}", &taken)), "{arguments:?}: {told:?} in\n{stderr}");
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}");
    }
}
