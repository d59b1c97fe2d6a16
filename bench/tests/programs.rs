//! Properties of the relay and the origin that measurements and tests rely on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A started program, which is ended with the test in any case.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(binary: &str, arguments: &[&str]) -> Program {
        let mut child = Command::new(binary).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
        Program { child, address }
    }

    fn origin(arguments: &[&str]) -> Program {
        Program::start(env!("CARGO_BIN_EXE_origin"), arguments)
    }

    fn relay(to: SocketAddr) -> Program {
        Program::start(env!("CARGO_BIN_EXE_relay"), &["--to", &to.to_string()])
    }

    fn connect(&self) -> TcpStream {
        connect(self.address)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Response to `request` until the connection closes.
fn exchange(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn the_origin_answers_by_path() {
    let origin = Program::origin(&[]);
    for (request, status, part) in [
        ("GET /a?b HTTP/1.1\r\nX-One: 1\r\n", 200, "\"target\": \"/a?b\""),
        ("GET /a?b HTTP/1.1\r\nX-One: 1\r\n", 200, "\"x-one: 1\""),
        ("GET /size/5 HTTP/1.1\r\n", 200, "\r\n\r\nxxxxx"),
        ("GET /size/0 HTTP/1.1\r\n", 200, "content-length: 0"),
        ("GET /status/418 HTTP/1.1\r\n", 418, "content-length: 0"),
        ("GET /status/99999 HTTP/1.1\r\n", 400, "content-length: 0"),
        ("GET /delay/20 HTTP/1.1\r\n", 200, "\"target\": \"/delay/20\""),
        ("GET /stream/2/1 HTTP/1.1\r\n", 200, "8\r\nchunk 1\n\r\n8\r\nchunk 2\n\r\n0\r\n\r\n"),
        ("GET /sse/1/1 HTTP/1.1\r\n", 200, "text/event-stream"),
        ("GET /json/valid HTTP/1.1\r\n", 200, "\"valid\":true"),
        ("GET /json/hello?x HTTP/1.1\r\n", 200, "\r\n\r\n{\"hello\":\"world\"}"),
        ("GET /text/hello HTTP/1.1\r\n", 200, "\r\n\r\nhello world\n"),
        ("GET /size/x HTTP/1.1\r\n", 200, "\"method\": \"GET\""),
    ] {
        let answer = exchange(origin.connect(), &format!("{request}Host: a\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(part), "{request}: {answer}");
    }
    let post = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    assert!(exchange(origin.connect(), post).contains("\"body_length\": 3"));
}

#[test]
fn the_origin_closes_where_it_is_told_to() {
    let origin = Program::origin(&["--no-keep-alive"]);
    // `exchange` returns only when the origin closes.
    let answer = exchange(origin.connect(), "GET /size/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[test]
fn the_relay_passes_bytes_and_ends_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Program::relay(listener.local_addr().unwrap());
    let mut client = relay.connect();
    let (mut upstream, _) = listener.accept().unwrap();
    let mut got = [0; 4];
    for _ in 0..3 {
        client.write_all(b"ping").unwrap();
        upstream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
        upstream.write_all(b"pong").unwrap();
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"pong");
    }
    // After a half-close, the other direction continues.
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(upstream.read(&mut got).unwrap(), 0);
    upstream.write_all(b"last").unwrap();
    drop(upstream);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"last");
}

#[test]
fn the_relay_holds_back_for_a_slow_reader_and_loses_nothing() {
    const SIZE: usize = 32 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Program::relay(listener.local_addr().unwrap());
    let mut client = relay.connect();
    let (mut upstream, _) = listener.accept().unwrap();
    let (done, ended) = std::sync::mpsc::sync_channel(1);
    let writer = thread::spawn(move || {
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 251 + at) as u8).collect();
        client.write_all(&bytes).unwrap();
        done.send(()).unwrap();
    });
    // 32 MiB exceed every socket buffer: while nobody reads, the writer cannot finish.
    assert!(ended.recv_timeout(Duration::from_millis(300)).is_err());
    let mut got = Vec::new();
    upstream.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert_eq!(got.len(), SIZE);
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at / 251 + at) as u8));
}
