//! Content codings of long and of endless bodies, read by programs that know nothing of the gateway.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Fault, Framing, Gateway, LIMIT, Origin, Protocol, Start, each, over_both, program, route_with, wait_until,
};
use crate::plugins::decoded;

over_both!(each_event_reaches_the_client_when_it_has_come);

const CODINGS: [(&str, &str); 2] = [("gzip", "gzip"), ("brotli", "br")];

fn config(plugins: &Value, origin: &Origin) -> Value {
    route_with(json!({ "plugins": plugins }), json!({ "nodes": { (origin.node()): 1 } }))
}

fn ask(coding: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: {coding}\r\n\r\n")
}

/// The readable part of a stream that has not ended.
fn readable(coding: &str, stream: &[u8]) -> String {
    let mut text = Vec::new();
    // The end of what has come so far is no end of the stream.
    let _ = match coding {
        "gzip" => flate2::read::GzDecoder::new(stream).read_to_end(&mut text),
        _ => brotli::Decompressor::new(stream, 4096).read_to_end(&mut text),
    };
    String::from_utf8(text).expect("text")
}

fn each_event_reaches_the_client_when_it_has_come(over: Protocol) {
    const EVENTS: [&str; 3] = ["data: one\n\n", "data: two\n\n", "data: three\n\n"];
    for (plugin, coding) in CODINGS {
        let gate = Arc::new(Barrier::new(2));
        let of_origin = Arc::clone(&gate);
        let origin = Origin::scripted(move |connection| {
            if connection.request().is_none() {
                return;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for event in EVENTS {
                connection.send(format!("{:x}\r\n{event}\r\n", event.len()));
                of_origin.wait();
            }
            connection.send("0\r\n\r\n");
        });
        let gateway =
            Start::new(config(&json!({ (plugin): { "types": ["text/event-stream"] } }), &origin)).over(over).start();
        let mut client = gateway.caller();
        client.send(ask(coding));
        let head = client.head();
        assert_eq!(head.fields.get("content-encoding"), Some(coding));
        let (mut stream, mut expected) = (Vec::new(), String::new());
        for event in EVENTS {
            expected += event;
            while readable(coding, &stream) != expected {
                stream.extend(client.chunk().expect("more of the stream"));
            }
            gate.wait();
        }
        while let Some(rest) = client.chunk() {
            stream.extend(rest);
        }
        assert_eq!(readable(coding, &stream), expected);
    }
}

/// A text that neither compresses to nothing nor not at all.
fn long_text() -> String {
    (0..200_000).map(|line| format!("{line} {}\n", line * 7919 % 10_007)).collect()
}

#[test]
fn long_bodies_are_whole_in_every_framing_and_memory_stays_small() {
    let text = Arc::new(long_text());
    let framings = ["length", "chunked", "close"];
    let cases: Vec<_> = CODINGS.iter().flat_map(|coding| framings.map(|framing| (*coding, framing))).collect();
    each(
        &cases,
        |case| format!("{case:?}"),
        |((plugin, coding), framing)| {
            let (body, framing) = (Arc::clone(&text), *framing);
            let origin = Origin::answering(move |_| {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n";
                match framing {
                    "length" => Answer::keep(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())),
                    "chunked" => Answer::keep(format!(
                        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                        body.len()
                    )),
                    _ => Answer::close(format!("{head}Connection: close\r\n\r\n{body}")),
                }
            });
            let gateway = Gateway::start(config(&json!({ (*plugin): { "comp_level": 3 } }), &origin));
            let before = gateway.process.resident();
            let response = gateway.client().request(ask(coding));
            assert_eq!(response.framing, Framing::Chunked);
            assert!(response.body.len() < text.len(), "{} bytes", response.body.len());
            assert!(decoded(&response).as_ref() == Ok(&*text));
            let grown = gateway.process.resident().saturating_sub(before);
            assert!(grown < 16 << 20, "{grown} bytes for a body of {}", text.len());
            if *coding == "gzip" {
                assert!(gunzip(&response.body) == text.as_bytes(), "as gzip reads it");
            }
        },
    );
}

/// The output of gzip for a stream.
fn gunzip(stream: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program("gzip"));
    let mut gzip = command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start gzip");
    let mut input = gzip.stdin.take().expect("standard input is a pipe");
    let stream = stream.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&stream));
    let output = gzip.wait_with_output().expect("gzip's output");
    writer.join().expect("the writer").expect("gzip reads all of it");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn clients_that_leave_cost_nothing_and_a_cut_body_is_seen() {
    for (plugin, coding) in CODINGS {
        let origin = Origin::scripted(|connection| {
            let Some(request) = connection.request() else { return };
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n");
            connection.send("1e\r\na piece of a body that is cut \r\n");
            if request.target != "/cut" {
                connection.await_close();
            }
        });
        let gateway = Gateway::start(config(&json!({ (plugin): {} }), &origin));
        for _ in 0..20 {
            let mut client = gateway.client();
            client.send(ask(coding));
            client.head();
            client.reset();
        }
        wait_until("the connections to the origin to be closed", LIMIT, || (origin.open() == 0).then_some(()));
        let mut client = gateway.client();
        client.send(ask(coding).replace("GET / ", "GET /cut "));
        let broken = client.try_response();
        assert!(matches!(broken, Err(Fault::Closed)), "the body has no end: {broken:?}");
    }
}

#[test]
fn an_older_client_gets_it_only_where_that_is_asked_for() {
    let origin = Origin::answering(|_| {
        Answer::keep("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 24\r\n\r\naaaaaaaaaaaaaaaaaaaaaaaa")
    });
    for (plugin, coding) in CODINGS {
        for (version, expected) in [(1.1, None), (1.0, Some(coding))] {
            let gateway = Gateway::start(config(&json!({ (plugin): { "http_version": version } }), &origin));
            let request = ask(coding).replace("HTTP/1.1", "HTTP/1.0");
            let response = gateway.client().request(request);
            assert_eq!(response.field("content-encoding"), expected, "{plugin} from {version}");
            let text = if expected.is_some() { decoded(&response) } else { Ok(response.text()) };
            assert_eq!(text.as_deref(), Ok("aaaaaaaaaaaaaaaaaaaaaaaa"));
        }
    }
}

#[test]
fn a_global_rule_encodes_what_the_routes_plugins_have_made() {
    let origin = Origin::answering(|_| {
        Answer::keep("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 24\r\n\r\naaaaaaaaaaaaaaaaaaaaaaaa")
    });
    for (plugin, coding) in CODINGS {
        let filters =
            json!({ "response-rewrite": { "filters": [{ "regex": "a", "scope": "global", "replace": "b" }] } });
        let mut config = config(&filters, &origin);
        config["global_rules"] = json!([{ "id": 1, "plugins": { (plugin): {} } }]);
        let gateway = Gateway::start(config);
        let response = gateway.client().request(ask(coding));
        assert_eq!(decoded(&response).as_deref(), Ok("bbbbbbbbbbbbbbbbbbbbbbbb"), "{plugin}");
    }
}
