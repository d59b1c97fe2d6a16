//! The real decK against Kong's Admin API. `tools/test-peers` builds decK and runs these tests; without the program they say
//! so and do nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{ADMIN_KEY, Authority, Gateway, Kind, Origin, Start, get, repository};

/// decK with a folder for its files.
struct Deck {
    program: PathBuf,
    address: String,
    folder: TempDir,
}

/// Exit status and output of a run of decK.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    said: String,
}

impl Deck {
    fn new(gateway: &Gateway) -> Option<Self> {
        let program = repository().join("target/test-tools/deck");
        if !program.exists() {
            println!("left out: there is no decK (make test-peers)");
            return None;
        }
        let address = format!("http://{}", gateway.admin.expect("an Admin API"));
        Some(Self { program, address, folder: tempfile::tempdir().expect("a folder") })
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let token = format!("Kong-Admin-Token:{ADMIN_KEY}");
        let output = Command::new(&self.program)
            .args(["gateway"])
            .args(arguments)
            .args(["--kong-addr", &self.address, "--headers", &token, "--analytics=false", "--no-color"])
            .env("HOME", self.folder.path())
            .output()
            .expect("decK runs");
        let said = [output.stdout, output.stderr].concat();
        Run { code: output.status.code(), said: String::from_utf8_lossy(&said).into_owned() }
    }

    fn must(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.said);
        run.said
    }

    fn write(&self, name: &str, state: &Value) -> String {
        let file = self.folder.path().join(name);
        fs::write(&file, state.to_string()).expect("write a file");
        file.display().to_string()
    }

    fn dump(&self, name: &str, more: &[&str]) -> Value {
        let file = self.folder.path().join(name);
        let path = file.display().to_string();
        self.must(&[&["dump", "--yes", "--format", "json", "-o", &path], more].concat());
        read(&file)
    }

    /// The numbers of entities that a comparison finds different: created, updated, deleted.
    fn differences(&self, file: &str) -> [usize; 3] {
        let said = self.must(&["diff", file]);
        ["Created: ", "Updated: ", "Deleted: "].map(|word| {
            let rest = said.rsplit_once(word).map_or("", |(_, rest)| rest);
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or_else(|_| panic!("no {word:?} in {said}"))
        })
    }
}

fn read(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("a dump");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const SERVICES: usize = 60;

/// A file with every kind of entity, written as decK dumps it: without defaults, in the order of names.
fn state(node: &str, authority: &Authority) -> Value {
    let services: Vec<Value> = (0..SERVICES).map(|number| {
        let (name, config) = match number % 6 {
            0 => ("key-auth", json!({ "hide_credentials": true, "key_names": ["apikey", "x-key"] })),
            1 => ("rate-limiting", json!({ "minute": 500, "hour": 9000, "policy": "local" })),
            2 => ("cors", json!({ "origins": ["http://a.test"], "credentials": true, "max_age": 3600 })),
            3 => ("request-transformer", json!({ "add": { "headers": ["x-one:1"] }, "remove": { "querystring": ["q"] } })),
            4 => ("ip-restriction", json!({ "allow": ["127.0.0.0/8", "::1"] })),
            _ => ("request-size-limiting", json!({ "allowed_payload_size": 2 })),
        };
        json!({
            "name": format!("s{number:03}"),
            "host": "pool", "protocol": "http", "path": "/base",
            "tags": ["made", format!("n{}", number % 3)],
            "read_timeout": 5000 + number,
            "routes": [
                { "name": format!("r{number:03}a"), "paths": [format!("/r{number}/"), format!("~/x{number}/[0-9]+$")], "methods": ["GET", "POST"] },
                { "name": format!("r{number:03}b"), "hosts": [format!("h{number}.test")], "headers": { "x-kind": ["a", "b"] }, "strip_path": false,
                  "plugins": [{ "name": "correlation-id", "config": { "header_name": "X-Id", "generator": "uuid" } }] },
            ],
            "plugins": [{ "name": name, "config": config }],
        })
    }).collect();
    let consumers: Vec<Value> = (0..40)
        .map(|number| {
            json!({
                "username": format!("c{number:02}"), "custom_id": format!("custom-{number}"),
                "keyauth_credentials": [{ "key": format!("key-of-{number}") }],
                "jwt_secrets": [{ "key": format!("iss-{number}"), "secret": "0123456789abcdef0123456789abcdef", "algorithm": "HS256" }],
                "acls": [{ "group": if number % 2 == 0 { "even" } else { "odd" } }],
            })
        })
        .collect();
    let certificate = authority.certificate(Kind::P256, &["deck.test"]);
    json!({
        "_format_version": "3.0",
        "services": services,
        "consumers": consumers,
        "plugins": [
            { "name": "prometheus", "config": { "per_consumer": true, "status_code_metrics": true } },
            { "name": "file-log", "config": { "path": "/dev/null" } },
        ],
        "upstreams": [{
            "name": "pool", "algorithm": "least-connections",
            "healthchecks": { "active": { "healthy": { "interval": 0 }, "http_path": "/status" } },
            "targets": [{ "target": node, "weight": 10 }],
        }],
        "certificates": [{ "id": "6f1ae1d1-3c2b-4a0b-9c51-0c7f8a3f3d10", "cert": certificate.cert, "key": certificate.key, "snis": [{ "name": "deck.test" }] }],
        "ca_certificates": [{ "id": "0a9c4b1e-92d4-4c43-8a2c-4b0f5d2a7e11", "cert": authority.pem() }],
    })
}

/// Everything that is in `wanted` is in `found` too; lists of entities are compared in the order of names.
fn covers(wanted: &Value, found: &Value, place: &str) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (name, value) in wanted {
                covers(value, found.get(name).unwrap_or(&Value::Null), &format!("{place}.{name}"));
            }
        }
        (Value::Array(wanted), Value::Array(found)) => {
            assert_eq!(wanted.len(), found.len(), "{place}: {found:?}");
            let sorted = |items: &[Value]| {
                let mut items = items.to_vec();
                items.sort_by_key(|item| ["name", "username", "target", "cert"].map(|key| item[key].to_string()));
                items
            };
            let (wanted, found) = (sorted(wanted), sorted(found));
            for (at, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
                covers(wanted, found, &format!("{place}[{at}]"));
            }
        }
        // A dump has the certificate with one line feed at its end.
        (Value::String(wanted), Value::String(found)) => assert_eq!(wanted.trim_end(), found.trim_end(), "{place}"),
        _ => assert_eq!(wanted, found, "{place}"),
    }
}

#[test]
fn deck_syncs_compares_dumps_and_resets() {
    let gateway = Start::stored().argument("--family").argument("kong").https().start();
    let Some(deck) = Deck::new(&gateway) else { return };
    let (origin, authority) = (Origin::echo(), Authority::new());
    assert!(deck.must(&["ping"]).contains("Successfully connected to Kong!"));
    let mut wanted = state(&origin.node(), &authority);
    let file = deck.write("kong.json", &wanted);
    deck.must(&["validate", &file]);
    let said = deck.must(&["sync", &file]);
    assert!(said.contains("Updated: 0") && said.contains("Deleted: 0"), "{said}");
    assert_eq!(deck.differences(&file), [0; 3], "nothing differs after a sync");
    // The changes are in force.
    let status = |path: &str| gateway.client().request(get(path)).status;
    assert_eq!(
        (status("/r0/a"), status("/r0/a?apikey=key-of-7"), status("/x1/22"), status("/none")),
        (401, 200, 200, 404)
    );
    // A dump of what was synced is the same state.
    let dumped = deck.dump("dump.json", &[]);
    covers(&wanted, &dumped, "dump");
    assert_eq!(deck.differences(&deck.folder.path().join("dump.json").display().to_string()), [0; 3]);
    // Only a part of it, by tags.
    let tagged = deck.dump("tagged.json", &["--select-tag", "n1"]);
    assert_eq!(tagged["services"].as_array().map(Vec::len), Some(SERVICES / 3), "{tagged}");
    // One change is one difference.
    wanted["services"][3]["routes"][0]["paths"] = json!(["/moved/"]);
    let file = deck.write("kong.json", &wanted);
    assert_eq!(deck.differences(&file), [0, 1, 0]);
    deck.must(&["sync", &file]);
    assert_eq!((status("/moved/a"), status("/r3/a")), (200, 404));
    assert_eq!(deck.differences(&file), [0; 3]);
    // An entity that Kong would refuse is refused, and named.
    wanted["services"][4]["plugins"][0]["config"]["allow"] = json!(["not-an-address"]);
    let refused = deck.run(&["sync", &deck.write("bad.json", &wanted)]);
    assert!(refused.code != Some(0) && refused.said.contains("ip-restriction"), "{refused:?}");
    deck.must(&["reset", "--force"]);
    let empty = deck.dump("empty.json", &[]);
    assert!(empty["services"].is_null() && empty["consumers"].is_null() && empty["upstreams"].is_null(), "{empty}");
    assert_eq!(status("/r0/a"), 404);
}
