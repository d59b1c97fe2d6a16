//! Filters in WebAssembly, by proxy-wasm: one in Go that the field X-Do of requests drives, and some in WebAssembly's own
//! text that do harm.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, Origin, Reload, Start, made_with_go, weir};

fn plugin(name: &str, file: &std::path::Path) -> Value {
    json!({ "name": name, "priority": 7000, "file": file.display().to_string() })
}

fn rules(origin: &Origin, conf: &Value) -> Value {
    json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { origin.node(): 1 } },
                         "plugins": { "go": { "conf": conf } } }] })
}

/// A gateway with the filter in Go on its only route.
fn with_go(origin: &Origin, conf: &Value) -> Option<Gateway> {
    let settings = json!({ "wasm": { "plugins": [plugin("go", &made_with_go("filter.wasm")?)] } });
    Some(Start::new(rules(origin, conf)).settings(settings).start())
}

#[test]
fn a_filter_sees_and_changes_requests_and_responses() {
    let origin = Origin::echo();
    let Some(gateway) = with_go(&origin, &json!("given")) else { return };
    let answer = gateway.send_to("a.test", "GET /a?b=1\nX-Secret: s\nX-Replaced: old");
    assert_eq!((answer.status, answer.field("x-filtered")), (200, Some("200")));
    let seen = origin.last();
    assert_eq!(seen.field("x-filter"), Some("given GET /a?b=1 /a r a.test 1"));
    assert_eq!((seen.field("x-secret"), seen.field("x-replaced")), (None, Some("new")));
    gateway.logged("go: the end of /a?b=1");
    // The first line, and an answer of its own.
    gateway.send_to("a.test", "GET /a\nX-Do: first line");
    let seen = origin.last();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str(), seen.field("host")),
        ("PUT", "/other?b=2", Some("other.test"))
    );
    let answer = gateway.send_to("a.test", "GET /a\nX-Do: answer");
    assert_eq!(
        (answer.status, answer.text(), answer.field("x-made")),
        (418, "made by the filter".to_owned(), Some("yes"))
    );
    // Bodies.
    gateway.send_to("a.test", "POST /a\nX-Do: request body\n\nhello");
    assert_eq!(origin.last().body, b"HELLO+");
    gateway.send_to("a.test", "POST /a\n\nhello");
    assert_eq!(origin.last().body, b"hello");
    let answer = gateway.send_to("a.test", "POST /a\nX-Do: response body\n\nhello");
    assert!(answer.text().starts_with("the body had ") && answer.text().ends_with(" bytes"), "{}", answer.text());
    // The head of the response.
    let answer = gateway.send_to("a.test", "GET /a\nX-Do: status");
    assert_eq!((answer.status, answer.field("x-filtered")), (203, Some("200 status")));
    let answer = gateway.send_to("a.test", "GET /a\nX-Do: late answer");
    assert_eq!((answer.status, answer.text(), answer.field("x-late")), (502, "late".to_owned(), Some("yes")));
    // Status codes for what is wrong: 2 is a bad argument, 12 a function that is not there.
    gateway.send_to("a.test", "GET /a\nX-Do: wrong");
    assert_eq!(origin.last().field("x-statuses"), Some("2 2 2 2 2 2 2 12"));
    // Shared data.
    for count in ["1", "2", "3"] {
        gateway.send_to("a.test", "GET /a\nX-Do: count");
        assert_eq!(origin.last().field("x-count"), Some(count));
    }
}

#[test]
fn a_filter_asks_services_of_its_configuration() {
    let (origin, service) = (Origin::hello(), Origin::echo());
    let address = format!("http://{}", service.node());
    let Some(gateway) = with_go(&origin, &json!(address)) else { return };
    assert_eq!(gateway.send_to("a.test", "GET /a\nX-Do: call").status, 200);
    let asked = service.last();
    assert_eq!((asked.method.as_str(), asked.target.as_str(), asked.field("x-own")), ("POST", "/asked?a=1", Some("1")));
    assert_eq!(asked.body, b"question");
    let called = origin.last().field("x-called").expect("a call").to_owned();
    assert!(called.starts_with("200 "), "{called}");
    // Nobody listens there.
    let gone = Origin::hello();
    gone.die();
    assert_eq!(gateway.reload(rules(&origin, &json!(format!("http://{}", gone.node())))), Reload::Applied);
    let answer = gateway.send_to("a.test", "GET /a\nX-Do: call");
    assert_eq!((answer.status, answer.text()), (504, "nobody answers".to_owned()));
    // An address that is no service of the configuration.
    assert_eq!(gateway.reload(rules(&origin, &json!("127.0.0.1:1"))), Reload::Applied);
    assert_eq!(gateway.send_to("a.test", "GET /a\nX-Do: call").status, 504);
    gateway.logged("no request can go to http://127.0.0.1:1");
}

#[test]
fn a_filter_that_fails_refuses_its_request_and_others_go_on() {
    let origin = Origin::hello();
    let Some(gateway) = with_go(&origin, &json!("given")) else { return };
    for (what, reason) in [
        ("loop", "more than 10000000 instructions (wasm.instructions)"),
        ("panic", "go: "),
        ("memory", "go: "),
        ("pause", "waits for nothing that comes"),
        ("late panic", "go: "),
    ] {
        let answer = gateway.send_to("a.test", &format!("GET /a\nX-Do: {what}"));
        assert_eq!(answer.status, 503, "{what}: {}", answer.text());
        gateway.logged(reason);
        // A machine that has failed gives way to another one in a moment.
        crate::harness::wait_until("the next machine", crate::harness::LIMIT, || {
            (gateway.send_to("a.test", "GET /a").status == 200).then_some(())
        });
    }
    assert!(origin.last().field("x-filter").is_some());
}

#[test]
fn configurations_are_tried_before_they_are_in_force() {
    let origin = Origin::hello();
    let Some(gateway) = with_go(&origin, &json!({ "a": 1 })) else { return };
    gateway.send_to("a.test", "GET /a");
    assert!(origin.last().field("x-filter").is_some_and(|text| text.starts_with("{\"a\":1} ")), "{:?}", origin.last());
    for (conf, reason) in [
        (json!({ "conf": "bad" }), "proxy_on_configure gave false"),
        (json!({ "conf": "" }), "conf"),
        (json!({}), "conf"),
        (json!({ "conf": 7 }), "conf"),
        (json!({ "conf": "x", "other": 1 }), "other"),
    ] {
        let mut wrong = rules(&origin, &json!("x"));
        wrong["routes"][0]["plugins"]["go"] = conf;
        assert_eq!(gateway.reload(&wrong), Reload::Rejected, "{wrong}");
        gateway.logged(reason);
    }
    assert_eq!(gateway.send_to("a.test", "GET /a").status, 200);
}

#[test]
fn what_is_no_filter_is_refused_at_start() {
    let folder = TempDir::new().expect("a folder");
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "routes: []\n#END\n").expect("a file");
    let abi = "(func (export \"proxy_abi_version_0_2_1\"))";
    for (module, reason) in [
        ("(module)".to_owned(), "it exports no proxy_abi_version_0_2_1"),
        ("(module (func (export \"proxy_abi_version_0_1_0\")))".to_owned(), "found proxy_abi_version_0_1_0"),
        (format!("(module (import \"env\" \"open\" (func)) {abi})"), "it imports env.open"),
        (
            format!("(module (import \"env\" \"memory\" (memory 1)) {abi})"),
            "it imports env.memory, which is no function",
        ),
        (String::new(), "no module of WebAssembly"),
    ] {
        let file = folder.path().join("filter.wasm");
        let bytes = if module.is_empty() { b"text".to_vec() } else { wat::parse_str(&module).expect("a module") };
        std::fs::write(&file, bytes).expect("a file");
        let settings = folder.path().join("settings.yaml");
        std::fs::write(&settings, json!({ "wasm": { "plugins": [plugin("f", &file)] } }).to_string()).expect("a file");
        let words = ["check", rules.to_str().expect("text"), "--settings", settings.to_str().expect("text")];
        let (code, _, errors) = weir(&words);
        assert!(code != 0 && errors.contains(reason) && errors.contains("filter.wasm"), "{module}: {errors}");
    }
    let settings = json!({ "wasm": { "plugins": [plugin("f", &folder.path().join("none.wasm"))] } }).to_string();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, settings).expect("a file");
    let (code, _, errors) = weir(&["check", rules.to_str().expect("text"), "--settings", file.to_str().expect("text")]);
    assert!(code != 0 && errors.contains("none.wasm: No such file"), "{errors}");
}

#[test]
fn memory_and_instructions_have_bounds_from_the_start() {
    let origin = Origin::hello();
    let folder = TempDir::new().expect("a folder");
    let abi = "(func (export \"proxy_abi_version_0_2_1\"))";
    for (name, module, reason) in [
        ("loop", format!("(module {abi} (func (export \"_start\") (loop br 0)))"), "instructions"),
        ("memory", format!("(module {abi} (memory (export \"memory\") 2000))"), "memory"),
        ("table", format!("(module {abi} (table 4000000 funcref) (memory (export \"memory\") 1))"), "table"),
        ("recursion", format!("(module {abi} (func $f (export \"_start\") call $f))"), "stack"),
    ] {
        let file = folder.path().join(format!("{name}.wasm"));
        std::fs::write(&file, wat::parse_str(&module).expect("a module")).expect("a file");
        let rules = json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { origin.node(): 1 } } }] });
        let settings = json!({ "wasm": { "plugins": [plugin(name, &file)], "instructions": 50_000 } });
        let gateway = Start::new(&rules).settings(settings).start();
        let mut wrong = rules.clone();
        wrong["routes"][0]["plugins"] = json!({ name: { "conf": "x" } });
        assert_eq!(gateway.reload(&wrong), Reload::Rejected, "{name}");
        assert!(gateway.logged(&format!("{name}.wasm: ")).contains(reason), "{name}: {}", gateway.stderr());
    }
}
