//! Request bodies that plugins replace, or change on their way to a node. The plugin is one of these tests, served by the
//! data plane in this process.

use std::net::SocketAddr;
use std::sync::{LazyLock, mpsc};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_config::{Diagnostic, InvalidItems, LoadOptions, Model, Settings, load, settings::SettingsSource};
use weir_plugin::host::Definition;
use weir_plugin::{
    CompileCx, Compiled, Define, Failure, Flow, PerRequest, Phases, Plugin, RequestBodyCx, RequestCx, Side,
};
use weir_proxy::{Catalog, Compiler, DataPlane};
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::{Metrics, MetricsOptions};

use crate::harness::{
    AnyClient, Connection, Fault, Framing, LIMIT, Origin, Protocol, RawClient, chunked, each, get, over_both, post,
    route_with, wait_until, weighted,
};

over_both!(
    a_replaced_body_goes_up_with_its_length,
    digests_of_a_replaced_body_go,
    a_client_that_holds_back_what_is_replaced_is_asked_for_it,
    limits_are_about_what_the_client_sends,
    pieces_go_up_as_they_come,
    a_body_that_is_here_is_one_piece_with_a_length,
    a_plugin_may_refuse_a_body_on_its_way,
    what_plugins_make_of_a_body_has_a_bound,
    a_mirror_gets_what_the_node_gets,
);

/// Changes bodies of requests as its configuration says.
#[derive(Debug)]
struct Changing;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Conf {
    /// Collects the body first.
    collect: bool,
    /// The body in place of the client's; a `{}` in it is the client's where it was collected.
    replace: Option<String>,
    /// Puts brackets around the body, and its letters into upper case.
    filter: bool,
    /// Repeats each piece so many times.
    repeat: usize,
    /// Refuses a body with this text in a piece.
    refuse: Option<String>,
}

impl Define for Changing {
    const NAME: &'static str = "changing";
    const PRIORITY: i32 = 5000;
    const PHASES: Phases = Phases::ACCESS.and(Phases::REQUEST_BODY);
    const DOC: &'static str = "";
    const EXAMPLE: &'static str = "{}";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Instance { conf, pieces: PerRequest::new() }))
    }
}

struct Instance {
    conf: Conf,
    pieces: PerRequest<u32>,
}

impl Plugin for Instance {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.conf.collect && cx.body().is_none() {
            return Flow::AwaitBody;
        }
        if let Some(text) = &self.conf.replace {
            let old = String::from_utf8_lossy(cx.body().unwrap_or_default()).into_owned();
            cx.replace_body(text.replace("{}", &old).as_bytes());
            assert_eq!(cx.body(), Some(text.replace("{}", &old).as_bytes()), "others see the new one");
        }
        if self.conf.filter {
            cx.filter_body();
            self.pieces.put(cx, 0);
        }
        Flow::Continue
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let begins = cx.begins();
        let pieces = self.pieces.get_mut(cx).expect("the state of the access phase");
        *pieces += 1;
        if self.conf.refuse.as_ref().is_some_and(|text| String::from_utf8_lossy(piece).contains(text)) {
            return Flow::Abort(Failure { status: 403, side: Side::Gateway, reason: "a word that may not pass" });
        }
        piece.make_ascii_uppercase();
        *piece = piece.repeat(self.conf.repeat.max(1));
        if begins {
            piece.insert(0, b'[');
        }
        if last {
            piece.push(b']');
        }
        Flow::Continue
    }
}

/// A port for both protocols.
const LISTEN: &str = "listen: {http: [{address: '127.0.0.1:0', http2: true}]}";

/// A data plane in this process.
pub(crate) struct Plane {
    _plane: DataPlane,
    pub(crate) addr: SocketAddr,
    over: Protocol,
}

impl Plane {
    /// Serves a configuration with these plugins.
    pub(crate) fn serve(
        plugins: &'static [&'static dyn Definition],
        config: &Value,
        settings: &[(&str, &str)],
    ) -> Result<Self, Vec<Diagnostic>> {
        let fixed = [("listen.https", "127.0.0.1:0"), ("workers", "1")];
        let flags: Vec<_> =
            fixed.iter().chain(settings).map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let source = SettingsSource { file: Some(("weir.yaml", LISTEN)), flags: &flags, ..SettingsSource::default() };
        let (settings, _) = Settings::load(source).expect("settings");
        let options = LoadOptions { plugins: &Catalog(plugins), ..LoadOptions::PLAIN };
        let loaded = load("rules", config.to_string().as_bytes(), &options);
        assert_eq!(loaded.errors().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
        let model = Model::from(loaded.document.expect("a document"));
        let compiled = Compiler::new(plugins, &settings, "weir/test").compile(&model, InvalidItems::Refuse, 1)?;
        let metrics = Metrics::new(MetricsOptions::default());
        let mut plane = DataPlane::start(&settings, Vec::new(), &metrics, &AccessLogs::default(), None).expect("start");
        plane.apply(compiled.snapshot);
        wait_until("the worker", LIMIT, || plane.ready().is_ok().then_some(()));
        let addr = plane.addresses()[0].address.tcp().expect("an address and a port");
        Ok(Self { _plane: plane, addr, over: Protocol::Http1 })
    }

    /// With the plugins there are, and the one of these tests.
    fn start(over: Protocol, config: &Value, settings: &[(&str, &str)]) -> Self {
        static ALL: LazyLock<&[&dyn Definition]> = LazyLock::new(|| {
            let all = weir_plugins::definitions().iter().copied().chain([&Changing as &dyn Definition]);
            all.collect::<Vec<_>>().leak()
        });
        let plane = Self::serve(*ALL, config, settings).unwrap_or_else(|faults| panic!("{faults:?}"));
        Self { over, ..plane }
    }

    /// With one route to these nodes, which has the plugin with this configuration.
    fn changing(over: Protocol, nodes: &[String], conf: &Value, settings: &[(&str, &str)]) -> Self {
        Self::start(over, &route_with(json!({ "plugins": { "changing": conf } }), upstream(nodes)), settings)
    }

    fn client(&self) -> AnyClient {
        AnyClient::connect(self.over, self.addr)
    }
}

fn upstream(nodes: &[String]) -> Value {
    json!({ "nodes": weighted(nodes), "timeout": { "connect": 5, "send": 5, "read": 5 } })
}

fn put(path: &str, body: &str) -> String {
    post(path, body).replacen("POST", "PUT", 1)
}

fn in_chunks(method: &str, body: &str, size: usize) -> Vec<u8> {
    let head = format!("{method} /c HTTP/1.1\r\nHost: a.test\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut bytes = [head.as_bytes(), &chunked(body.as_bytes(), size)].concat();
    bytes.truncate(bytes.len() - 2);
    bytes.extend(b"X-T: 1\r\n\r\n");
    bytes
}

fn a_replaced_body_goes_up_with_its_length(over: Protocol) {
    let long = "x".repeat(300_000);
    let texts = ["", "new", "{}{}", &long];
    for (text, collect) in texts.iter().flat_map(|text| [(*text, false), (*text, true)]) {
        let origin = Origin::echo();
        let plane = Plane::changing(over, &[origin.node()], &json!({ "replace": text, "collect": collect }), &[]);
        let mut client = plane.client();
        for (request, old) in [
            (get("/none").into_bytes(), ""),
            (post("/length", "").into_bytes(), ""),
            (post("/length", "hello").into_bytes(), "hello"),
            (post("/length", &long).into_bytes(), &long),
            (in_chunks("POST", "hello", 2), "hello"),
            (in_chunks("POST", &long, 10_000), &long),
        ] {
            // The bytes behind a body are the next request.
            client.send([request.as_slice(), get("/next").as_bytes()].concat());
            let has_body = collect || old.is_empty();
            let expected = text.replace("{}", if has_body { old } else { "" });
            let response = client.response();
            assert_eq!((response.status, response.text() == expected), (200, true), "{text:.9} {}", old.len());
            assert_eq!(client.response().text(), text.replace("{}", ""), "the next");
        }
        for request in origin.complete() {
            assert_eq!(request.framing, Framing::Length(request.body.len()));
            assert_eq!(request.fields.all("content-length"), [request.body.len().to_string()]);
            assert_eq!((request.field("transfer-encoding"), request.field("trailer")), (None, None));
        }
    }
}

fn digests_of_a_replaced_body_go(over: Protocol) {
    let origin = Origin::echo();
    let plane = Plane::changing(over, &[origin.node()], &json!({ "replace": "new" }), &[]);
    let request = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Digest: sha-256=:x:\r\nContent-MD5: x\r\nContent-Length: 3\r\n\r\nold";
    assert_eq!(plane.client().request(request).text(), "new");
    assert_eq!((origin.last().field("content-digest"), origin.last().field("content-md5")), (None, None));
}

fn a_client_that_holds_back_what_is_replaced_is_asked_for_it(over: Protocol) {
    let origin = Origin::echo();
    let plane = Plane::changing(over, &[origin.node()], &json!({ "replace": "new" }), &[]);
    let mut client = plane.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(client.head().start, "HTTP/1.1 100 Continue");
    client.send("old");
    assert_eq!(client.response().text(), "new");
    assert_eq!(origin.last().field("expect"), None);
}

fn limits_are_about_what_the_client_sends(over: Protocol) {
    let origin = Origin::echo();
    let limits = [("limits.body_size", "1000"), ("limits.buffered_body", "2000")];
    let (fits, too_long) = ("x".repeat(1000), "x".repeat(1001));
    for conf in [
        json!({ "replace": "y".repeat(5000) }),
        json!({ "replace": "y".repeat(5000), "filter": true }),
        json!({ "filter": true, "repeat": 5 }),
        json!({ "filter": true, "repeat": 5, "collect": true }),
    ] {
        let plane = Plane::changing(over, &[origin.node()], &conf, &limits);
        for (request, status) in [
            (post("/", &fits).into_bytes(), 200),
            (in_chunks("POST", &fits, 100), 200),
            (post("/", &too_long).into_bytes(), 413),
            (in_chunks("POST", &too_long, 100), 413),
        ] {
            let mut client = plane.client();
            client.offer(&request);
            let response = client.response();
            assert_eq!(response.status, status, "{conf}");
            assert!(status != 200 || response.body.len() >= 5000, "{conf}");
        }
    }
    // A body that is replaced unread has to be received.
    let plane = Plane::changing(over, &[origin.node()], &json!({ "replace": "y" }), &[("limits.buffered_body", "900")]);
    assert_eq!(plane.client().request(post("/", &fits)).status, 413);
}

fn pieces_go_up_as_they_come(over: Protocol) {
    let (seen, sees) = mpsc::channel();
    let origin = Origin::scripted(move |connection: &mut Connection| {
        let head = connection.head().expect("a head");
        assert_eq!((head.framing, head.field("content-length")), (Framing::Chunked, None));
        while let Some(chunk) = connection.chunk().expect("a chunk") {
            seen.send(String::from_utf8(chunk).expect("text")).expect("the test waits");
        }
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        connection.await_close();
    });
    let plane = Plane::changing(over, &[origin.node()], &json!({ "filter": true }), &[]);
    let piece = || sees.recv_timeout(LIMIT).expect("a piece at the node");
    for head in ["Content-Length: 6", "Transfer-Encoding: chunked"] {
        let (first, second) =
            if head.starts_with('C') { ("abc", "def") } else { ("3\r\nabc\r\n", "3\r\ndef\r\n0\r\n\r\n") };
        let mut client = plane.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{head}\r\n\r\n{first}"));
        assert_eq!(piece(), "[ABC", "{head}");
        client.send(second);
        // Over HTTP/2 the end may come in a frame of its own, which makes it a piece of its own.
        let mut rest = piece();
        while !rest.ends_with(']') {
            rest += &piece();
        }
        assert_eq!(rest, "DEF]", "{head}");
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn long_bodies_go_through_piece_by_piece() {
    let origin = Origin::echo();
    let plane = Plane::changing(Protocol::Http1, &[origin.node()], &json!({ "filter": true }), &[]);
    let long = "abcdefgh".repeat(500_000);
    let cases = [put("/", &long).into_bytes(), in_chunks("PUT", &long, 100_000), in_chunks("PUT", &long, 7)];
    each(
        &cases,
        |bytes| format!("{} bytes", bytes.len()),
        |bytes| {
            let mut client = RawClient::connect(plane.addr);
            let mut sender = client.sender();
            std::thread::scope(|scope| {
                scope.spawn(move || std::io::Write::write_all(&mut sender, bytes).expect("send"));
                let response = client.response();
                assert!(response.status == 200 && response.text() == format!("[{}]", long.to_uppercase()));
            });
            assert_eq!(client.request(post("/", "x")).text(), "[X]", "the connection is kept");
        },
    );
    let trailers = origin.complete().iter().filter(|r| r.trailers.get("x-t") == Some("1")).count();
    assert_eq!(trailers, 2, "what is behind the content is passed on");
}

fn a_body_that_is_here_is_one_piece_with_a_length(over: Protocol) {
    let origin = Origin::echo();
    for conf in
        [json!({ "filter": true, "collect": true }), json!({ "filter": true, "replace": "{}", "collect": true })]
    {
        let plane = Plane::changing(over, &[origin.node()], &conf, &[]);
        for request in [post("/", "hello").into_bytes(), in_chunks("POST", "hello", 1)] {
            assert_eq!(plane.client().request(request).text(), "[HELLO]", "{conf}");
            assert_eq!(origin.last().framing, Framing::Length(7), "{conf}");
        }
        let none = plane.client().request(get("/"));
        assert_eq!(none.text(), if conf["replace"].is_null() { "" } else { "[]" }, "{conf}");
    }
}

/// An origin that takes one request, and closes.
fn failing() -> Origin {
    Origin::scripted(|connection: &mut Connection| {
        connection.request();
    })
}

#[test]
fn another_attempt_sends_the_body_anew() {
    for (conf, expected) in [
        (json!({ "replace": "new" }), "new"),
        (json!({ "filter": true }), "[OLD]"),
        (json!({ "filter": true, "collect": true }), "[OLD]"),
        (json!({ "filter": true, "replace": "new" }), "[NEW]"),
    ] {
        for request in [put("/", "old").into_bytes(), in_chunks("PUT", "old", 2)] {
            let (first, second) = (failing(), Origin::echo());
            let plane = Plane::changing(Protocol::Http1, &[first.node(), second.node()], &conf, &[]);
            // One of the two comes first.
            while first.requests().is_empty() {
                assert_eq!(plane.client().request(&request).text(), expected, "{conf}");
            }
            assert_eq!(first.last().body, expected.as_bytes(), "{conf}");
        }
    }
}

#[test]
fn nothing_is_sent_again_once_bytes_are_gone() {
    let first = Origin::scripted(|connection: &mut Connection| {
        connection.head().expect("a head");
        let mut taken = 0;
        while taken < 200_000 {
            taken += connection.chunk().expect("a chunk").expect("the body goes on").len();
        }
    });
    let plane = Plane::changing(Protocol::Http1, &[first.node(), first.node()], &json!({ "filter": true }), &[]);
    let mut client = RawClient::connect(plane.addr);
    client.send("PUT / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = format!("{:x}\r\n{}\r\n", 50_000, "x".repeat(50_000));
    while client.offer(&piece) && first.open() > 0 || first.connections() == 0 {}
    client.offer(&piece);
    match client.try_response() {
        Ok(response) => assert_eq!(response.status, 502),
        Err(fault) => assert!(matches!(fault, Fault::Reset | Fault::Closed), "{fault:?}"),
    }
    assert_eq!(first.connections(), 1);
}

fn a_plugin_may_refuse_a_body_on_its_way(over: Protocol) {
    let origin = Origin::echo();
    for collect in [false, true] {
        let conf = json!({ "filter": true, "collect": collect, "refuse": "evil" });
        let plane = Plane::changing(over, &[origin.node()], &conf, &[]);
        let mut client = plane.client();
        for request in [post("/", "it is evil").into_bytes(), in_chunks("POST", "it is evil", 100)] {
            client.send([request.as_slice(), post("/", "good").as_bytes()].concat());
            let response = client.response();
            assert_eq!(response.status, 403);
            assert_eq!(response.field("x-weir-error"), Some("gateway; a word that may not pass"));
            assert_eq!(client.response().text(), "[GOOD]", "the connection is kept");
        }
    }
}

fn what_plugins_make_of_a_body_has_a_bound(over: Protocol) {
    // The limit is `limits.buffers`. It is the whole process's, so all tests in it keep to its default: 128 MiB.
    let origin = Origin::echo();
    for conf in [
        json!({ "filter": true, "repeat": 3_000_000 }),
        json!({ "filter": true, "collect": true, "repeat": 3_000_000 }),
        json!({ "collect": true, "replace": "{}".repeat(1_500_000) }),
    ] {
        let plane = Plane::changing(over, &[origin.node()], &conf, &[]);
        let mut client = plane.client();
        for request in [post("/", &"x".repeat(100)).into_bytes(), in_chunks("POST", &"x".repeat(100), 50)] {
            let response = client.request(&request);
            assert_eq!(response.status, 503, "{conf:.60}");
        }
    }
    assert!(origin.requests().iter().all(|request| request.body.is_empty()), "none of it was sent");
}

fn a_mirror_gets_what_the_node_gets(over: Protocol) {
    for (conf, expected) in [(json!({ "filter": true }), "[OLD]"), (json!({ "replace": "new" }), "new")] {
        let (origin, mirror) = (Origin::echo(), Origin::hello());
        let plugins = json!({ "changing": conf, "proxy-mirror": { "host": format!("http://{}", mirror.node()) } });
        let plane = Plane::start(over, &route_with(json!({ "plugins": plugins }), upstream(&[origin.node()])), &[]);
        for (at, request) in [post("/", "old").into_bytes(), in_chunks("POST", "old", 2)].iter().enumerate() {
            assert_eq!(plane.client().request(request).text(), expected);
            wait_until("the copy", LIMIT, || (mirror.complete().len() == at + 1).then_some(()));
            assert_eq!(mirror.last().body, expected.as_bytes());
        }
    }
}

#[test]
fn a_client_that_stops_within_the_body_is_refused() {
    let origin = Origin::scripted(|connection: &mut Connection| {
        connection.request();
    });
    let plane =
        Plane::changing(Protocol::Http1, &[origin.node()], &json!({ "filter": true }), &[("timeouts.body", "300ms")]);
    let mut client = RawClient::connect(plane.addr);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nabc");
    assert_eq!(client.try_response_within(LIMIT).expect("an answer").expect("whole").status, 408);
    let mut client = RawClient::connect(plane.addr);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx");
    assert_eq!(client.response().status, 400);
    assert!(origin.complete().is_empty());
}
