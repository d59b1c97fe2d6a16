//! The first steps of a newcomer work: the examples, and the lines that `make run` prints.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::harness::{ADMIN_KEY, Process, Start, companion, free_port, program, repository, weir};

#[test]
fn every_example_is_valid() {
    let mut checked = 0;
    for folder in ["examples", "examples/plugins", "examples/threescale"] {
        for entry in fs::read_dir(repository().join(folder)).expect("read the examples") {
            let file = entry.expect("an entry").path();
            if !file.extension().is_some_and(|e| e == "yaml" || e == "json") {
                continue;
            }
            let (status, stdout, stderr) = weir(&["check", "--strict", &file.display().to_string()]);
            assert_eq!(status, 0, "{}\n{stdout}{stderr}", file.display());
            checked += 1;
        }
    }
    assert!(checked >= 8, "only {checked} examples");
}

/// The listing of the README that sends a first request, on other ports and in another folder.
#[test]
fn the_first_request_of_the_readme_is_answered() {
    let gateway = Start::stored().start();
    let folder = tempfile::tempdir().expect("a folder");
    let readme = fs::read_to_string(repository().join("README.md")).expect("read the README");
    let listing =
        readme.split("```sh\n").find(|listing| listing.starts_with("mkdir -p /tmp/hello")).expect("a listing");
    let script = listing.split("```").next().expect("an end");
    let script = script
        .replace("/tmp/hello", &folder.path().display().to_string())
        .replace("127.0.0.1:9180", &gateway.admin.expect("an Admin API").to_string())
        .replace("127.0.0.1:9080", &gateway.addr.to_string())
        .replace("8080", &free_port().to_string());
    let (request, setup) = script.trim_end().rsplit_once('\n').map(|(setup, request)| (request, setup)).expect("lines");
    program("curl");
    let script = format!(
        "trap 'kill $!' EXIT\n{setup}\nfor n in $(seq 200); do {}\nsleep 0.1; done\nexit 1",
        request.replace(" #", " | grep 'hello from an origin' && exit 0 #"),
    );
    let mut shell = Process::spawn(Command::new("sh").args(["-c", &script]).env("key", ADMIN_KEY));
    assert!(shell.wait().success(), "{script}");
}

/// The lines that the quickstart suggests, as a shell runs them, and a text that each has to print.
#[test]
fn the_lines_of_the_quickstart_do_what_they_say() {
    const EXPECTED: &[&str] = &[
        "HTTP/1.1 200 ",
        "HTTP/1.1 401 ",
        "x-consumer-username: alice",
        "200\n200\n200\n200\n200\n429\n",
        "hello",
        "\"total\":4",
        "\"uri\":\"/other\"",
        "apisix_http_status{code=\"200\"",
    ];
    let mut origin = Process::spawn(
        Command::new(companion("origin"))
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    );
    let mut line = String::new();
    let stdout = origin.child().stdout.take().expect("standard output is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("read a line");
    let node = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("no address in {line:?}"));

    let gateway = Start::stored().start();
    let admin = gateway.admin.expect("an Admin API").to_string();
    let script = fs::read_to_string(repository().join("tools/quickstart")).expect("read the script");
    for (path, body) in resources(&script) {
        gateway.must("PUT", path, &body.replace("'\"$node\"'", node));
    }
    let lines: Vec<_> =
        script.lines().filter(|line| line.starts_with("  curl ") || line.starts_with("  for ")).collect();
    assert_eq!(lines.len(), EXPECTED.len(), "lines to try and what they print: {lines:?}");
    program("curl");
    for (line, expected) in lines.iter().zip(EXPECTED) {
        let line = line.replace("$base", &format!("http://{}", gateway.addr));
        let line = line.replace("127.0.0.1:$metrics", &gateway.metrics.to_string()).replace("| head", "");
        let line = line.replace("127.0.0.1:$admin", &admin).replace("$WEIR_ADMIN_KEY", ADMIN_KEY);
        let output = Command::new("sh").args(["-c", &line]).output().expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(expected), "{line}\nprinted\n{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The resources created by the script: paths and bodies of its lines `put PATH 'JSON'`.
fn resources(script: &str) -> Vec<(&str, &str)> {
    let calls = script.split("\nput ").skip(1).filter_map(|rest| rest.split_once(" '"));
    let found: Vec<_> = calls
        .map(|(path, rest)| (path, rest.split_once("'\n").map_or(rest, |(body, _)| body).trim_end_matches('\'')))
        .collect();
    assert_eq!(found.len(), 8, "{found:?}");
    found
}
