//! The cases of every plugin (`crates/plugins/cases/`), run through the real data plane.
//!
//! A file has a configuration in which `${ORIGIN}` stands for an origin that gives back the body it receives, and
//! cases that are run one after the other. `upstream` in what is expected is what the origin has to see; `none: true`
//! says that nothing reaches it; `took` is the least number of milliseconds. Cases are run over HTTP/1.1 and over HTTP/2,
//! those with `over: HTTP/1.1` over that alone. `${SERVICE}` stands for a service that
//! plugins may ask. The list `bad` holds configurations with what `weir check` says or warns, and `elsewhere` fields whose
//! effect another test shows (`plugin_fields.rs`).

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use weir_config::Node;

use crate::harness::{
    Answer, Fields, H2Client, LIMIT, Origin, RawClient, Response, Start, each, repository, timed, weir,
};

/// The files with cases of requests: all but those of plugins that run on streams alone.
pub(crate) fn files() -> Vec<PathBuf> {
    all_files().into_iter().filter(|file| read(file)["subsystem"] != "stream").collect()
}

fn all_files() -> Vec<PathBuf> {
    let folder = repository().join("crates/plugins/cases");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty(), "no cases in {}", folder.display());
    files
}

pub(crate) fn read(file: &PathBuf) -> Value {
    let text = fs::read_to_string(file).expect("read a file of cases");
    Node::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).root.to_json()
}

#[test]
fn every_case_of_every_plugin_holds() {
    each(
        &files(),
        |file| file.display().to_string(),
        |file| {
            let document = read(file);
            let config = document["config"].as_str().expect("a configuration");
            let cases = document["cases"].as_array().expect("a list of cases");
            assert!(cases.len() >= 5, "only {} cases", cases.len());
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let failed = failures(config, cases, protocol);
                let (wrong, all) = (failed.len(), cases.len());
                assert!(failed.is_empty(), "{wrong} of {all} cases over {protocol:?}:\n{}", failed.join("\n"));
            }
        },
    );
}

/// Protocol that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Runs cases against a gateway with this configuration. Returns the failed ones.
fn failures(config: &str, cases: &[Value], protocol: Protocol) -> Vec<String> {
    let origin = Origin::echo();
    let service = service();
    let config = config.replace("${ORIGIN}", &origin.node()).replace("${SERVICE}", &service.node());
    let gateway = Start::new(config).http2().start();
    cases.iter().filter_map(|case| holds_over(protocol, case, gateway.addr, &origin, LIMIT).err()).collect()
}

/// As [`holds`], with this protocol.
pub(crate) fn holds_over(
    protocol: Protocol,
    case: &Value,
    gateway: SocketAddr,
    origin: &Origin,
    limit: Duration,
) -> Result<(), String> {
    known(case, &["name", "over", "request", "expect"]);
    // Targets over HTTP/2 are paths; what a connection is counted as is another matter there.
    let is_whole_uri = case["request"]["path"].as_str().is_some_and(|path| path.contains("://"));
    if protocol == Protocol::Http2 && (is_whole_uri || case["over"] == "HTTP/1.1") {
        return Ok(());
    }
    let times = case["expect"]["repeat"].as_u64().unwrap_or(1);
    let once = |_| run(protocol, case, gateway, origin, limit);
    (0..times).try_for_each(once).map_err(|why| format!("{}: {why}", case["name"]))
}

/// Runs a case against the gateway at this address, whose answers begin within this time.
pub(crate) fn holds(case: &Value, gateway: SocketAddr, origin: &Origin, limit: Duration) -> Result<(), String> {
    holds_over(Protocol::Http1, case, gateway, origin, limit)
}

/// A service beside: it answers with the status at the end of the path.
pub(crate) fn service() -> Origin {
    Origin::answering(|request| {
        let status = request.target.rsplit('/').next().unwrap_or_default();
        let body = format!("the service says {status}");
        let length = body.len();
        Answer::keep(format!(
            "HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\nContent-Type: text/service\r\nX-User-ID: user-1\r\n\
             X-Consumer: jack\r\nX-Reason: one\r\nX-Reason: two\r\nLocation: /login\r\n\r\n{body}"
        ))
    })
}

/// A misspelt expectation would expect nothing.
fn known(part: &Value, names: &[&str]) {
    for name in part.as_object().into_iter().flat_map(|object| object.keys()) {
        assert!(names.contains(&name.as_str()), "unknown key {name:?} in {part}");
    }
}

fn run(protocol: Protocol, case: &Value, gateway: SocketAddr, origin: &Origin, limit: Duration) -> Result<(), String> {
    let (request, expect) = (&case["request"], &case["expect"]);
    known(request, &["method", "path", "headers", "body", "chunked"]);
    known(expect, &["status", "headers", "absent", "body", "body_contains", "decoded", "upstream", "repeat", "took"]);
    let before = origin.requests().len();
    let (response, took) = timed(|| match protocol {
        Protocol::Http1 => RawClient::connect(gateway).try_request(encode(request), limit),
        Protocol::Http2 => Some(H2Client::connect(gateway).try_request(encode(request))),
    });
    let response = response.ok_or("no answer in time")?.map_err(|fault| format!("no answer: {fault:?}"))?;

    let wrong = |what: &str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
        Err(format!("{what}: expected {expected:?}, found {found:?} in {}", show(&response)))
    };
    if let Some(least) = expect["took"].as_u64()
        && took.as_millis() < u128::from(least)
    {
        return wrong("milliseconds", &least, &took);
    }
    if expect["status"] != response.status {
        return wrong("status", &expect["status"], &response.status);
    }
    fields(expect, &response.fields).map_err(|why| format!("{why} in {}", show(&response)))?;
    if let Some(body) = expect["body"].as_str()
        && body != response.text()
    {
        return wrong("body", &body, &response.text());
    }
    if let Some(part) = expect["body_contains"].as_str()
        && !response.text().contains(part)
    {
        return wrong("part of the body", &part, &response.text());
    }

    if let Some(text) = expect["decoded"].as_str() {
        let found = decoded(&response);
        if found.as_deref() != Ok(text) {
            return wrong("decoded body", &text, &found);
        }
    }

    let Some(upstream) = expect["upstream"].as_object() else { return Ok(()) };
    known(&expect["upstream"], &["target", "method", "headers", "absent", "none"]);
    let seen = origin.requests().split_off(before);
    if upstream.get("none") == Some(&Value::Bool(true)) {
        return if seen.is_empty() { Ok(()) } else { wrong("requests at the origin", &0, &seen) };
    }
    let [seen] = &seen[..] else { return wrong("requests at the origin", &1, &seen.len()) };
    for (name, found) in [("target", &seen.target), ("method", &seen.method)] {
        if let Some(expected) = expect["upstream"][name].as_str()
            && expected != found
        {
            return wrong(&format!("{name} at the origin"), &expected, found);
        }
    }
    fields(&expect["upstream"], &seen.fields).map_err(|why| format!("{why} at the origin: {seen:?}"))
}

/// The text of a body without its content coding.
pub(crate) fn decoded(response: &Response) -> Result<String, String> {
    let mut text = String::new();
    let read = match response.field("content-encoding") {
        Some("gzip") => flate2::read::GzDecoder::new(&*response.body).read_to_string(&mut text),
        Some("br") => brotli::Decompressor::new(&*response.body, 4096).read_to_string(&mut text),
        other => return Err(format!("the body is in {other:?}")),
    };
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

fn encode(request: &Value) -> String {
    let method = request["method"].as_str().unwrap_or("GET");
    let path = request["path"].as_str().expect("a path");
    let body = request["body"].as_str().unwrap_or_default();
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let given = request["headers"].as_object();
    let has = |name: &str| given.is_some_and(|fields| fields.keys().any(|key| key.eq_ignore_ascii_case(name)));
    if !has("host") {
        head += "Host: localhost\r\n";
    }
    for (name, value) in given.into_iter().flatten() {
        for value in texts(value) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    if let Some(body) = request["chunked"].as_str() {
        return head + &format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    }
    if !body.is_empty() {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head + "\r\n" + body
}

/// One text or a list of texts.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::String(text) => vec![text.clone()],
        other => panic!("expected a text, found {other}"),
    }
}

fn fields(expect: &Value, found: &Fields) -> Result<(), String> {
    for (name, value) in expect["headers"].as_object().into_iter().flatten() {
        // Values stand in ISO 8859-1; those of the cases are UTF-8.
        let expected: Vec<String> = texts(value).iter().map(|text| text.bytes().map(char::from).collect()).collect();
        let found_all = found.all(name);
        let is_same = found_all.len() == expected.len() && expected.iter().zip(&found_all).all(|(e, f)| fits(e, f));
        if !is_same {
            return Err(format!("{name}: expected {expected:?}, found {:?}", found.all(name)));
        }
    }
    for name in expect["absent"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        if let Some(value) = found.get(name) {
            return Err(format!("{name}: {value:?} should not be there"));
        }
    }
    Ok(())
}

/// Compares a value. `~begin*end` fits every value that begins and ends so, for values with random parts.
fn fits(expected: &str, found: &str) -> bool {
    match expected.strip_prefix('~').and_then(|pattern| pattern.split_once('*')) {
        Some((begin, end)) => found.starts_with(begin) && found.ends_with(end),
        None => expected == found,
    }
}

fn show(response: &Response) -> String {
    format!("{} {:?} {:?}", response.status, response.fields, response.text())
}

#[test]
fn bad_configurations_are_told_with_their_place() {
    let mut cases = Vec::new();
    for file in all_files() {
        let document = read(&file);
        let plugin = document["plugin"].as_str().expect("a plugin").to_owned();
        let bad = document["bad"].as_array().expect("a list of bad configurations").clone();
        cases.extend(bad.into_iter().map(|entry| (plugin.clone(), entry)));
    }
    each(
        &cases,
        |(plugin, entry)| format!("{plugin}: {entry}"),
        |(plugin, entry)| {
            known(entry, &["conf", "consumer", "consumers", "metadata", "says", "warns"]);
            let folder = tempfile::tempdir().expect("create a folder");
            let file = folder.path().join("apisix.yaml");
            fs::write(&file, document(plugin, entry).to_string()).expect("write a file");
            let (status, _, stderr) = weir(&["check", &file.display().to_string()]);
            let (text, expected) = match (entry["says"].as_str(), entry["warns"].as_str()) {
                (Some(says), None) => (says, 1),
                (None, Some(warns)) => (warns, 0),
                _ => panic!("either `says` or `warns`"),
            };
            assert_eq!(status, expected, "{stderr}");
            assert!(stderr.contains(text), "{text:?} is not in\n{stderr}");
            assert!(stderr.contains("apisix.yaml:1:"), "no position in\n{stderr}");
        },
    );
}

/// The proto that configurations refer to.
const GREETER: &str = "syntax = \"proto3\";\npackage helloworld;\nmessage Hello { string name = 1; }\n\
    service Greeter { rpc SayHello(Hello) returns (Hello); rpc Greet(Hello) returns (stream Hello); }\n";

/// A whole document around one configuration of a plugin.
fn document(plugin: &str, entry: &Value) -> Value {
    let route = |conf: &Value| json!({ "id": "r", "uri": "/*", "upstream": { "nodes": { "127.0.0.1:1": 1 } }, "plugins": { (plugin): conf } });
    let consumer =
        |number: usize, conf: &Value| json!({ "username": format!("c{number}"), "plugins": { (plugin): conf } });
    let on_streams = weir_plugins::definitions().iter().any(|d| d.name() == plugin && !d.is_for_requests());
    if let Some(conf) = entry.get("conf").filter(|_| on_streams) {
        json!({ "stream_routes": [{ "id": "r", "upstream": { "nodes": { "127.0.0.1:1": 1 } }, "plugins": { (plugin): conf } }] })
    } else if let Some(conf) = entry.get("conf") {
        json!({ "routes": [route(conf)], "protos": [{ "id": "greeter", "content": GREETER }] })
    } else if let Some(conf) = entry.get("consumer") {
        json!({ "consumers": [consumer(0, conf)] })
    } else if let Some(confs) = entry["consumers"].as_array() {
        let consumers: Vec<_> = confs.iter().enumerate().map(|(number, conf)| consumer(number, conf)).collect();
        json!({ "consumers": consumers })
    } else {
        let mut metadata = entry["metadata"].clone();
        metadata["id"] = json!(plugin);
        json!({ "plugin_metadata": [metadata] })
    }
}
