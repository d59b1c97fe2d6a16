//! A request allocates nothing: the whole data plane under a counting allocator, its own program because of it.
#![allow(clippy::disallowed_methods, reason = "a test has no worker clock to take its limit from")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_config::{Apisix, InvalidItems, LoadOptions, Model, Settings, load, settings::SettingsSource};
use weir_plugins::tyk::sessions::{Naming, Sessions};
use weir_proxy::{Catalog, Compiler, DataPlane};
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::{Metrics, MetricsOptions};
use weir_tyk::Tyk;
use weir_usage::{Arguments, Keep, Options, Usage};
use weir_wire::http2::PREFACE;
use weir_wire::http2::frame::{self, END_STREAM, Header, HeaderBlock, Kind};
use weir_wire::http2::hpack::Encoder;

/// Counts what worker threads ask of the allocator.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// 0: not known yet, 1: a worker, 2: another thread.
    static KIND: Cell<u8> = const { Cell::new(0) };
}

fn count() {
    // Asking for a thread's name allocates nothing; a thread that ends has no local storage any more.
    let _ = KIND.try_with(|kind| {
        if kind.get() == 0 {
            kind.set(2);
            if std::thread::current().name().is_some_and(|n| n.starts_with("weir-worker")) {
                kind.set(1);
            }
        }
        if kind.get() == 1 {
            ALLOCATED.fetch_add(1, Ordering::Relaxed);
        }
    });
}

// SAFETY: every call goes on to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello";

/// An origin that answers every request on every connection.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    addr
}

fn answer(mut stream: TcpStream) {
    let mut buf = [0; 8192];
    let mut held = 0;
    while let Ok(n) = stream.read(&mut buf[held..]) {
        if n == 0 {
            return;
        }
        held += n;
        while let Some(end) = buf[..held].windows(4).position(|w| w == b"\r\n\r\n") {
            buf.copy_within(end + 4..held, 0);
            held -= end + 4;
            if stream.write_all(RESPONSE).is_err() {
                return;
            }
        }
    }
}

fn exchange(client: &mut TcpStream, request: &[u8], status: &str) {
    client.write_all(request).expect("send");
    let mut buf = [0; 4096];
    let mut held = 0;
    loop {
        held += client.read(&mut buf[held..]).expect("receive");
        let text = String::from_utf8_lossy(&buf[..held]);
        assert!(held > 0 && text.starts_with(status), "{text}");
        let length = text.split("Content-Length: ").nth(1).and_then(|r| r.split("\r\n").next());
        let head = text.find("\r\n\r\n");
        if let (Some(length), Some(head)) = (length.and_then(|l| l.parse::<usize>().ok()), head)
            && held >= head + 4 + length
        {
            return;
        }
    }
}

/// A client over HTTP/2 that has sent its preface.
struct Streams {
    stream: TcpStream,
    encoder: Encoder,
    received: Vec<u8>,
    next: u32,
}

impl Streams {
    fn connect(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let mut begin = PREFACE.to_vec();
        frame::push_settings(&mut begin, &[]);
        stream.write_all(&begin).expect("send");
        Self { stream, encoder: Encoder::new(), received: Vec::new(), next: 1 }
    }

    /// Sends so many requests at once, and reads their responses, each with 5 bytes of content.
    fn exchange(&mut self, path: &str, count: usize) {
        let mut out = Vec::new();
        for _ in 0..count {
            let block = HeaderBlock::begin(&mut out, self.next);
            self.next += 2;
            self.encoder.begin(&mut out);
            self.encoder.push_method(&mut out, b"GET");
            self.encoder.push_scheme(&mut out, b"http");
            self.encoder.push_authority(&mut out, b"a.test:80");
            self.encoder.push_path(&mut out, path.as_bytes());
            self.encoder.push(&mut out, b"user-agent", b"test");
            self.encoder.push(&mut out, b"apikey", b"secret");
            self.encoder.push(&mut out, b"authorization", b"Basic amFjazpwdw==");
            block.finish(&mut out, 16_384, true);
        }
        self.stream.write_all(&out).expect("send");
        let (mut ended, mut content) = (0, 0);
        while ended < count {
            while let Some(header) = Header::read(&self.received) {
                let end = Header::LEN + header.length as usize;
                if self.received.len() < end {
                    break;
                }
                self.received.drain(..end);
                match header.kind {
                    Kind::Data => {
                        content += header.length;
                        ended += usize::from(header.has(END_STREAM));
                    }
                    Kind::Headers => assert!(!header.has(END_STREAM), "no content"),
                    Kind::Settings | Kind::WindowUpdate => {}
                    other => panic!("{other:?}"),
                }
            }
            if ended < count {
                let mut room = [0; 16 << 10];
                let n = self.stream.read(&mut room).expect("receive");
                assert!(n > 0, "the connection was closed");
                self.received.extend_from_slice(&room[..n]);
            }
        }
        assert_eq!(content as usize, 5 * count);
    }
}

/// Starts the data plane with this configuration, which records usage; its addresses for HTTP/1.1, and for HTTP/2 as well.
fn start(rules: &str, folder: &Path, keys: &[(&str, Value)]) -> (DataPlane, Arc<Usage>, SocketAddr, SocketAddr) {
    let definitions = weir_plugins::registry::definitions();
    let listeners = r#"["127.0.0.1:0", {"address": "127.0.0.1:0", "http2": true}]"#;
    let flags = [("listen.http", listeners), ("listen.https", "127.0.0.1:0"), ("workers", "1")]
        .map(|(path, value)| (path.to_owned(), value.to_owned()));
    let source = SettingsSource { flags: &flags, ..SettingsSource::default() };
    let (settings, _) = Settings::load(source).expect("settings");
    let catalog = Catalog(definitions);
    let options = LoadOptions { plugins: &catalog, front_ends: &[&Tyk, &Apisix], ..LoadOptions::PLAIN };
    let loaded = load("rules", rules.as_bytes(), &options);
    assert_eq!(loaded.errors().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
    let compiler = Compiler::new(definitions, &settings, "weir/test");
    let compiler = compiler.with_family(&weir_tyk::FAMILY, weir_plugins::tyk::definitions());
    let compiled =
        compiler.compile(&Model::from(loaded.document.expect("document")), InvalidItems::Refuse, 1).expect("compiled");
    for (key, session) in keys {
        let name = Naming::new(true, "").name(key);
        Sessions::of(compiler.states()).put(&name, session.clone(), false).expect("a session");
    }
    let metrics = Metrics::new(MetricsOptions::default());
    let keep = Keep { minutes: 1, hours: 1, days: 1, size: u64::MAX };
    let (path, at_start) = (folder.join("usage.db"), Box::new(|| {}));
    let options = Options { path, ring: 1 << 16, series: 1000, metric_apis: 100, keep, at_start };
    let usage = Usage::open(options, metrics.clone()).expect("usage");
    let mut plane =
        DataPlane::start(&settings, Vec::new(), &metrics, &AccessLogs::default(), Some(&usage)).expect("start");
    plane.apply(compiled.snapshot);
    let limit = Instant::now() + Duration::from_secs(10);
    while plane.ready().is_err() {
        assert!(Instant::now() < limit, "no worker became ready");
        std::thread::yield_now();
    }
    let addr = |at: usize| plane.addresses()[at].address.tcp().expect("an address and a port");
    let (plain, http2) = (addr(0), addr(1));
    (plane, usage, plain, http2)
}

/// One test, because the counter is one for the whole process.
#[test]
fn a_request_on_a_kept_connection_allocates_nothing() {
    let node = origin();
    let plugins = [
        ("bare", ""),
        ("checked", ""),
        ("key", "key-auth: {}"),
        ("limited", "key-auth: {}, limit-count: {count: 1000000, time_window: 600, key: consumer_name}"),
        (
            "five",
            "key-auth: {}, limit-count: {count: 1000000, time_window: 600}, prometheus: {}, \
            proxy-rewrite: {headers: {set: {X-From: $remote_addr}}}, \
            response-rewrite: {headers: {set: {X-Id: $consumer_name}}}",
        ),
        (
            "everyday",
            "cors: {allow_origins: 'https://a.test,https://b.test'}, ip-restriction: {whitelist: [127.0.0.1]}, \
            request-id: {}, ua-restriction: {denylist: [bot]}, uri-blocker: {block_rules: [evil]}, key-auth: {}, \
            limit-count: {count: 1000000, time_window: 600}",
        ),
        ("basic", "basic-auth: {}, limit-count: {count: 1000000, time_window: 600}"),
        ("mocked", "mocking: {response_example: hello}"),
    ];
    let balancers = [
        ("roundrobin", "type: roundrobin"),
        ("chash", "type: chash, hash_on: vars_combinations, key: $remote_addr$request_uri"),
        ("least_conn", "type: least_conn"),
        ("ewma", "type: ewma"),
    ];
    let route = |name: &str, nodes: &str, balancer: &str, plugins: &str| {
        format!(
            "  - {{id: {name}, uri: /{name}/*, upstream: {{nodes: {{{nodes}}}, {balancer}, \
             keepalive_pool: {{requests: 1000000}}}}, plugins: {{{plugins}}}}}\n"
        )
    };
    let one = format!("\"{node}\": 1");
    let two = format!("{one}, \"{}\": 2", origin());
    // As many failures as make its node unhealthy, by requests alone: nobody makes the active checks here.
    let checked = "checks: {active: {}, passive: {healthy: {http_statuses: [201]}, \
                   unhealthy: {http_statuses: [200], http_failures: 254}}}";
    let with_plugins = plugins.iter().map(|(name, plugins)| {
        let balancer = if *name == "checked" { checked } else { "type: roundrobin" };
        route(name, &one, balancer, plugins)
    });
    let routes: String =
        with_plugins.chain(balancers.iter().map(|(name, balancer)| route(name, &two, balancer, ""))).collect();
    let rules = format!(
        "routes:\n{routes}consumers:\n  - {{username: jack, plugins: {{key-auth: {{key: secret}}, \
         basic-auth: {{username: jack, password: pw}}}}}}\n#END\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let (_plane, usage, addr, http2) = start(&rules, folder.path(), &[]);
    let mut failures = Vec::new();
    // A connection that ends may cost an allocation, and must not do so while the next one is counted.
    let mut clients = Vec::new();
    for (name, _) in plugins.into_iter().chain(balancers) {
        let mut client = TcpStream::connect(addr).expect("connect");
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let request = format!(
            "GET /{name}/x?a=1 HTTP/1.1\r\nHost: a.test:80\r\nUser-Agent: test\r\nAccept: */*\r\napikey: secret\r\n\
             Authorization: Basic amFjazpwdw==\r\n\r\n"
        );
        let refused = "GET /nowhere HTTP/1.1\r\nHost: a.test\r\n\r\n";
        for _ in 0..200 {
            exchange(&mut client, request.as_bytes(), "HTTP/1.1 200");
            exchange(&mut client, refused.as_bytes(), "HTTP/1.1 404");
        }
        let before = ALLOCATED.load(Ordering::Relaxed);
        for _ in 0..1000 {
            exchange(&mut client, request.as_bytes(), "HTTP/1.1 200");
        }
        exchange(&mut client, refused.as_bytes(), "HTTP/1.1 404");
        let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
        if allocated > 0 {
            failures.push(format!("{name}: {allocated} allocations in 1000 requests"));
        }
        clients.push(client);
    }
    let mut others = Vec::new();
    for (name, _) in plugins {
        let mut client = Streams::connect(http2);
        let path = format!("/{name}/x?a=1");
        // With more at once than are counted: how many come together is a matter of timing.
        for at_once in [1, 20, 1, 20] {
            (0..200 / at_once).for_each(|_| client.exchange(&path, at_once));
        }
        let (before, began) = (ALLOCATED.load(Ordering::Relaxed), Instant::now());
        for at_once in [1, 8] {
            (0..800 / at_once).for_each(|_| client.exchange(&path, at_once));
        }
        let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
        // HPACK's table of a connection grows up to its size, by the `Date` of each second among others.
        if allocated > 4 + began.elapsed().as_secs() {
            failures.push(format!("{name} over HTTP/2: {allocated} allocations in 1600 streams"));
        }
        others.push(client);
    }
    let tyk_folder = tempfile::tempdir().expect("a folder");
    let (_tyk, _tyk_usage, addr, _) = start(&tyk(&node.to_string()), tyk_folder.path(), &[("secret", session())]);
    for name in ["keyless", "keyed"] {
        let mut client = TcpStream::connect(addr).expect("connect");
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        let request =
            format!("GET /{name}/x?a=1 HTTP/1.1\r\nHost: a.test:80\r\nUser-Agent: test\r\napikey: secret\r\n\r\n");
        (0..200).for_each(|_| exchange(&mut client, request.as_bytes(), "HTTP/1.1 200"));
        let before = ALLOCATED.load(Ordering::Relaxed);
        // Fewer than the requests after which a connection to a node is opened anew.
        (0..700).for_each(|_| exchange(&mut client, request.as_bytes(), "HTTP/1.1 200"));
        let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
        if allocated > 0 {
            failures.push(format!("Tyk, {name}: {allocated} allocations in 700 requests"));
        }
        clients.push(client);
    }
    assert!(ALLOCATED.load(Ordering::Relaxed) > 0, "the counter does not see the workers");
    assert!(failures.is_empty(), "{failures:?}");
    assert!(usage.close(Duration::from_secs(20)));
    let found = usage.ask(&Arguments::default()).expect("an answer").text;
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    assert!(found["rows"][0]["requests"].as_u64() > Some(10_000), "usage was recorded meanwhile: {found}");
}

/// Two of Tyk's API definitions, without and with keys.
fn tyk(node: &str) -> String {
    let definition = |id: &str, is_keyless: bool| {
        json!({
            "name": id, "api_id": id, "org_id": "o", "use_keyless": is_keyless, "auth": {"auth_header_name": "apikey"},
            "version_data": {"not_versioned": true, "versions": {"Default": {"name": "Default"}}},
            "proxy": {"listen_path": format!("/{id}/"), "target_url": format!("http://{node}/"), "strip_listen_path": true}
        })
    };
    let files = json!([
        {"kind": "conf", "name": "tyk.conf"}, {"kind": "api", "name": "keyless.json"}, {"kind": "api", "name": "keyed.json"}
    ]);
    let conf = json!({"listen_port": 8080, "secret": "s", "hash_keys": true});
    json!({"tyk": files, "contents": [conf, definition("keyless", true), definition("keyed", false)]}).to_string()
}

/// A session with a rate and a quota.
fn session() -> Value {
    json!({
        "org_id": "o", "rate": 1_000_000, "per": 600, "quota_max": 1_000_000, "quota_renewal_rate": 600,
        "access_rights": {"keyed": {"api_id": "keyed", "versions": ["Default"]}}
    })
}
