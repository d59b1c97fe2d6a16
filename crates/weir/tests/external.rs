//! Plugins of a runner: one made with APISIX's library for Go, and runners that lie.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, LIMIT, Origin, Response, Start, made_with_go, wait_until};

/// The runner in Go.
fn runner() -> Option<PathBuf> {
    made_with_go("ext-runner")
}

/// Routes `/NAME` with the plugin of the runner that does NAME, before other plugins and behind them (`/post/NAME`).
fn rules(origin: &Origin) -> Value {
    let mut routes = Vec::new();
    for (place, plugin) in [("", "ext-plugin-pre-req"), ("/post", "ext-plugin-post-req")] {
        for what in ["none", "stop", "rewrite", "body", "die", "panic", "wrong"] {
            let value = json!({ "Do": what, "Name": format!("{place}{what}") }).to_string();
            routes.push(json!({
                "id": format!("{what}{}", place.len()), "uris": [format!("{place}/{what}"), format!("{place}/{what}/*")],
                "upstream": { "nodes": { origin.node(): 1 } },
                "plugins": { plugin: { "conf": [{ "name": "driven", "value": value }] } },
            }));
        }
    }
    let absent = json!({ "conf": [{ "name": "nobody", "value": "{}" }], "allow_degradation": true });
    routes.push(json!({ "id": "absent", "uri": "/absent", "upstream": { "nodes": { origin.node(): 1 } },
                        "plugins": { "ext-plugin-pre-req": absent } }));
    json!({ "routes": routes })
}

/// Waits until the runner answers.
fn await_runner(gateway: &Gateway) {
    wait_until("the runner", LIMIT, || (gateway.send_to("a.test", "GET /stop").status == 418).then_some(()));
}

#[test]
fn a_runner_in_go_answers_and_changes_requests() {
    let Some(program) = runner() else { return };
    let origin = Origin::echo();
    // As in a config.yaml of APISIX.
    let settings = json!({ "ext-plugin": { "cmd": [program.display().to_string(), "run"] } });
    let mut gateway = Start::new(rules(&origin)).settings(settings).start();
    gateway.logged("runner: the runner is up");
    await_runner(&gateway);
    for place in ["", "/post"] {
        let stopped = gateway.send_to("a.test", &format!("PUT {place}/stop/x"));
        let name = format!("{place}stop");
        assert_eq!((stopped.status, stopped.field("x-stopped")), (418, Some(name.as_str())));
        assert_eq!(stopped.text(), format!("stopped PUT {place}/stop/x"));
        let line = format!("GET {place}/rewrite?a=1&gone=2&c=\nX-In: in\nX-Gone: g");
        let answer = gateway.send_to("a.test", &line);
        let name = format!("{place}rewrite");
        assert_eq!((answer.status, answer.field("x-from-runner")), (200, Some(name.as_str())), "{}", answer.text());
        let seen = origin.last();
        assert_eq!(seen.field("x-runner"), Some("127.0.0.1 in 1 a.test"));
        assert_eq!(seen.field("x-gone"), None);
        assert_eq!(seen.target, "/rewritten%20it?a=1&c=&b=2%203");
        for body in ["one", "two"] {
            assert_eq!(gateway.send_to("a.test", &format!("POST {place}/body\n\n{body}")).status, 200);
            assert_eq!(origin.last().field("x-body"), Some(format!("{body}<nil>").as_str()));
            assert_eq!(origin.last().body, body.as_bytes());
        }
        assert_eq!(gateway.send_to("a.test", &format!("GET {place}/none")).status, 200);
        assert_eq!(origin.last().target, format!("{place}/none"));
        assert_eq!(gateway.send_to("a.test", &format!("GET {place}/wrong")).status, 503, "a path that is none");
    }
    assert_eq!(gateway.send_to("a.test", "GET /absent").status, 200, "the runner skips plugins that it does not know");
    // The runner ends with a gateway that is stopped.
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
}

#[test]
fn a_runner_in_go_changes_answers() {
    let Some(program) = runner() else { return };
    let origin = Origin::answering(|request| {
        let body = if request.target.ends_with("none") || request.method == "HEAD" { "" } else { "hello" };
        let (status, length) =
            if request.target.ends_with("none") { ("204 None", "") } else { ("200 OK", "Content-Length: 5\r\n") };
        Answer::keep(format!("HTTP/1.1 {status}\r\nX-In: in\r\nX-Gone: g\r\nX-Kept: k\r\n{length}\r\n{body}"))
    });
    let mut routes =
        vec![json!({ "id": "stop", "uri": "/stop", "upstream": { "nodes": { origin.node(): 1 } }, "plugins": {
        "ext-plugin-pre-req": { "conf": [{ "name": "driven", "value": "{\"Do\": \"stop\"}" }] } } })];
    for what in ["headers", "status", "body", "wrong", "none", "die"] {
        let value = json!({ "Do": what, "Name": what }).to_string();
        for (place, may_pass) in [("", false), ("/passes", true)] {
            let conf = json!({ "conf": [{ "name": "driven", "value": value }], "allow_degradation": may_pass });
            routes.push(json!({
                "id": format!("{what}{may_pass}"), "uris": [format!("{place}/{what}"), format!("{place}/{what}/*")],
                "upstream": { "nodes": { origin.node(): 1 } }, "plugins": { "ext-plugin-post-resp": conf },
            }));
        }
    }
    routes.push(json!({ "id": "own", "uri": "/own", "plugins": {
        "ext-plugin-post-resp": { "conf": [{ "name": "driven", "value": "{\"Do\": \"status\"}" }] }, "mocking": { "response_example": "own" } } }));
    let settings = json!({ "ext_plugin": { "command": [program.display().to_string()] } });
    let gateway = Start::new(json!({ "routes": routes })).settings(settings).start();
    await_runner(&gateway);
    let fields =
        |answer: &Response| ["X-Runner", "X-In", "X-Gone", "X-Kept"].map(|name| answer.field(name).map(str::to_owned));
    let answer = gateway.send_to("a.test", "GET /headers");
    let expected = [Some("headers 200 in a.test"), Some("out"), None, Some("k")].map(|value| value.map(str::to_owned));
    assert_eq!((answer.status, answer.text(), fields(&answer)), (200, "hello".to_owned(), expected));
    let answer = gateway.send_to("a.test", "GET /status");
    assert_eq!((answer.status, answer.text()), (418, "hello".to_owned()));
    // The first body is collected once the runner asks for it, those of further answers before.
    for _ in 0..2 {
        let answer = gateway.send_to("a.test", "GET /body");
        assert_eq!((answer.status, answer.text()), (200, "changed hello<nil>".to_owned()));
    }
    assert_eq!(gateway.send_to("a.test", "HEAD /headers").field("x-in"), Some("out"));
    assert_eq!(gateway.send_to("a.test", "GET /headers/none").status, 204);
    assert_eq!(gateway.send_to("a.test", "GET /none").status, 204, "a plugin that changes nothing");
    assert_eq!(gateway.send_to("a.test", "GET /own").status, 200, "an answer of the gateway's own");
    assert_eq!(gateway.send_to("a.test", "GET /wrong").status, 503);
    assert_eq!(gateway.send_to("a.test", "GET /passes/wrong").status, 200);
    assert_eq!(gateway.send_to("a.test", "GET /passes/die").text(), "hello");
    assert_eq!(gateway.send_to("a.test", "GET /headers").status, 503, "while there is no runner");
}

#[test]
fn a_runner_that_ends_is_started_again() {
    let Some(program) = runner() else { return };
    let origin = Origin::hello();
    let settings = json!({ "ext_plugin": { "command": [program.display().to_string()] } });
    let mut gateway = Start::new(rules(&origin)).settings(settings).start();
    await_runner(&gateway);
    assert_eq!(gateway.send_to("a.test", "GET /die").status, 503);
    assert_eq!(gateway.send_to("a.test", "GET /none").status, 503, "while there is none");
    gateway.logged("the runner of external plugins has ended: another one is started");
    // The new one does not know the configurations of the old one.
    await_runner(&gateway);
    assert_eq!(gateway.send_to("a.test", "GET /none").status, 200);
    let children = |of: u32| {
        let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let own = gateway.processes();
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
    for process in own {
        assert!(children(process).is_empty(), "the runner ends with the gateway");
    }
}

#[test]
fn without_a_runner_requests_are_refused_unless_they_may_pass() {
    let origin = Origin::hello();
    let gateway = Gateway::start(rules(&origin));
    assert_eq!(
        (gateway.send_to("a.test", "GET /none").status, gateway.send_to("a.test", "GET /absent").status),
        (503, 200)
    );
    gateway.logged("there is no runner: set ext_plugin.command or ext_plugin.socket");
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("none.sock").display().to_string();
    let gateway = Start::new(rules(&origin)).settings(json!({ "ext_plugin": { "socket": socket } })).start();
    assert_eq!(
        (gateway.send_to("a.test", "GET /none").status, gateway.send_to("a.test", "GET /absent").status),
        (503, 200)
    );
    gateway.logged("No such file");
}

#[test]
fn a_runner_that_lies_refuses_the_request() {
    let origin = Origin::hello();
    // Its answer to the first message, behind which nothing follows.
    for (bytes, reason) in [
        (vec![1, 0, 0, 0], "malformed"),
        (vec![1, 0, 0, 4, 200, 0, 0, 0], "malformed"),
        (vec![9, 0, 0, 4, 4, 0, 0, 0], "unexpected kind"),
        (vec![0, 0, 0, 0], "error 255"),
        (vec![1, 0, 1], "closed the connection"),
        (vec![], "closed the connection"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("runner.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let gateway = Start::new(rules(&origin))
            .settings(json!({ "ext_plugin": { "socket": socket.display().to_string() } }))
            .start();
        let liar = thread::spawn(move || {
            let (mut connection, _) = listener.accept().expect("a connection");
            let mut head = [0; 4];
            connection.read_exact(&mut head).expect("the head of a message");
            let [kind, _, high, low] = head;
            let mut body = vec![0; usize::from(u16::from_be_bytes([high, low]))];
            connection.read_exact(&mut body).expect("a message");
            connection.write_all(&bytes).expect("an answer");
            kind
        });
        assert_eq!(gateway.send_to("a.test", "GET /none").status, 503);
        assert_eq!(liar.join().expect("a liar"), 1, "the configuration comes first");
        assert!(gateway.logged("the runner cannot be asked").contains(reason), "{reason}: {}", gateway.stderr());
    }
    assert!(origin.requests().is_empty());
}
