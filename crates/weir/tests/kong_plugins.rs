//! The cases of Kong's plugins (`crates/plugins/cases/kong/`), run through the real data plane.
//!
//! They are written as those of `crates/plugins/cases/`, with a declarative configuration of Kong. The origin gives back the
//! body that it receives, with the field line that a field `X-Reply` of the request holds. The list `bad` holds
//! configurations of the plugin with what `weir check` says or warns.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use weir_config::{Node, Scope};

use crate::harness::{Answer, LIMIT, Origin, Start, each, repository, weir};
use crate::plugins::{Protocol, holds_over, read, service};

fn files() -> Vec<PathBuf> {
    let folder = repository().join("crates/plugins/cases/kong");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no cases in {}", folder.display());
    files
}

/// Gives back bodies, with the field lines that requests ask for.
fn origin() -> Origin {
    Origin::answering(|request| {
        let mut head = format!("HTTP/1.1 200 OK\r\nX-Target: {}\r\nX-Method: {}\r\n", request.target, request.method);
        for line in request.fields.all("x-reply") {
            head += &format!("{line}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", request.body.len());
        Answer::keep([head.as_bytes(), &request.body].concat())
    })
}

#[test]
fn every_case_of_kongs_plugins_holds() {
    each(
        &files(),
        |file| file.display().to_string(),
        |file| {
            let document = read(file);
            let config = document["config"].as_str().expect("a configuration");
            let cases = document["cases"].as_array().expect("a list of cases");
            assert!(cases.len() >= 5, "only {} cases", cases.len());
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let (origin, service) = (origin(), service());
                let config = config.replace("${ORIGIN}", &origin.node()).replace("${SERVICE}", &service.node());
                let gateway = Start::text(&config).http2().start();
                let hold = |case| holds_over(protocol, case, gateway.addr, &origin, LIMIT).err();
                let failed: Vec<String> = cases.iter().filter_map(hold).collect();
                let (wrong, all) = (failed.len(), cases.len());
                assert!(failed.is_empty(), "{wrong} of {all} cases over {protocol:?}:\n{}", failed.join("\n"));
            }
        },
    );
}

#[test]
fn bad_configurations_of_kongs_plugins_are_told_with_their_place() {
    let mut cases = Vec::new();
    for file in files() {
        let document = read(&file);
        let plugin = document["plugin"].as_str().expect("a plugin").to_owned();
        let bad = document["bad"].as_array().expect("a list of bad configurations").clone();
        cases.extend(bad.into_iter().map(|entry| (plugin.clone(), entry)));
    }
    each(
        &cases,
        |(plugin, entry)| format!("{plugin}: {entry}"),
        |(plugin, entry)| {
            let folder = tempfile::tempdir().expect("create a folder");
            let file = folder.path().join("kong.json");
            let plugins = json!([{ "name": plugin, "config": entry["conf"] }]);
            let services =
                json!([{ "name": "s", "url": "http://127.0.0.1:1", "routes": [{ "name": "r", "paths": ["/"] }] }]);
            let document = json!({ "_format_version": "3.0", "services": services, "plugins": plugins });
            fs::write(&file, document.to_string()).expect("write a file");
            let (status, _, stderr) = weir(&["check", &file.display().to_string()]);
            let (text, expected) = match (entry["says"].as_str(), entry["warns"].as_str()) {
                (Some(says), None) => (says, 1),
                (None, Some(warns)) => (warns, 0),
                _ => panic!("either `says` or `warns`"),
            };
            assert_eq!(status, expected, "{stderr}");
            assert!(stderr.contains(text), "{text:?} is not in\n{stderr}");
            assert!(stderr.contains("kong.json:1:"), "no position in\n{stderr}");
        },
    );
}

#[test]
fn examples_of_kongs_plugins_are_right() {
    // The file of services that an example names is not there.
    let all = weir_plugins::kong::definitions().iter().filter(|definition| definition.name() != "grpc-gateway");
    for definition in all {
        let conf: Value = Node::parse(definition.example()).expect("YAML").root.to_json();
        let conf = Node::parse(&conf.to_string()).expect("JSON").root;
        let (found, _) = definition.check(Scope::Route, &conf);
        assert!(!found.iter().any(weir_config::Diagnostic::is_error), "{}: {found:?}", definition.name());
    }
}

/// Credentials of the examples of plugins that authenticate.
const CREDENTIALS: [(&str, &str); 6] = [
    ("key-auth", "keyauth_credentials: [{key: demo}]"),
    ("basic-auth", "basicauth_credentials: [{username: alice, password: demo}]"),
    ("jwt", "jwt_secrets: [{key: shop, secret: a-secret-of-at-least-32-characters}]"),
    ("hmac-auth", "hmacauth_credentials: [{username: alice, secret: demo}]"),
    (
        "mtls-auth",
        "mtls_auth_credentials: [{subject_name: alice.test}]\n\
        ca_certificates:\n- id: 8f6f9ad1-2c8c-4a0d-9d6c-0f4a1b2c3d4e\n\x20 cert: |\n\
        \x20   -----BEGIN CERTIFICATE-----\n\
        \x20   MIIBmzCCAUGgAwIBAgIUFw2llNTZAkEUUiOpUklNfvbZiQ0wCgYIKoZIzj0EAwIw\n\
        \x20   IjEgMB4GA1UEAwwXQXV0aG9yaXR5IG9mIGFuIGV4YW1wbGUwIBcNMjYxMTI2MTk0\n\
        \x20   MDM0WhgPMjEyNjExMDIxOTQwMzRaMCIxIDAeBgNVBAMMF0F1dGhvcml0eSBvZiBh\n\
        \x20   biBleGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYNLvtsZxNjQ56ugH\n\
        \x20   lS/YReh5YwZ+ZfaJkaUssos+rlk5x0NvD7EFty39DXiZ24ZCXPjbPy+RbbbgJ1SX\n\
        \x20   3Pe6TqNTMFEwHQYDVR0OBBYEFOYzdLEM6PgdU9fYslBjJxukEjrJMB8GA1UdIwQY\n\
        \x20   MBaAFOYzdLEM6PgdU9fYslBjJxukEjrJMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI\n\
        \x20   zj0EAwIDSAAwRQIgHnnajnrT0EiKCa5mvZ09N2l9ycbiNOeViyL9HeFJeVgCIQDO\n\
        \x20   06oQ82dtDKinCysL7ZqLYHnt1H63mEUcEC3HZ/TFdQ==\n\
        \x20   -----END CERTIFICATE-----",
    ),
    (
        "oauth2",
        "oauth2_credentials: [{name: shop, client_id: shop, client_secret: demo, redirect_uris: ['http://127.0.0.1/']}]",
    ),
];

/// The text of the example of a plugin: `examples/kong/NAME.yml`.
fn example(name: &str, conf: &Value) -> String {
    if name == "acme" {
        return format!(
            "# acme of Kong: weir run examples/kong/acme.yml\n_format_version: \"3.0\"\nservices:\n- name: orders\n  \
             url: http://127.0.0.1:8080\n  routes:\n  - {{name: orders, paths: [/]}}\nplugins:\n- name: acme\n  config: {conf}\n"
        );
    }
    let consumers = CREDENTIALS.iter().find(|(plugin, _)| *plugin == name);
    let consumers = consumers.map(|(_, held)| format!("consumers:\n- username: alice\n  {held}\n")).unwrap_or_default();
    format!(
        "# {name} of Kong: weir run examples/kong/{name}.yml\n_format_version: \"3.0\"\nservices:\n- name: orders\n  \
         url: http://127.0.0.1:8080\n  routes:\n  - {{name: orders, paths: [/orders]}}\n  plugins:\n  - name: {name}\n    \
         config: {conf}\n{consumers}"
    )
}

#[test]
fn every_plugin_of_kong_has_an_example_that_serves() {
    let origin = Origin::hello();
    let is_shown = |name: &str| !weir_plugins::kong::is_internal(name) && !matches!(name, "grpc-gateway" | "plan");
    let all: Vec<_> = weir_plugins::kong::definitions().iter().filter(|plugin| is_shown(plugin.name())).collect();
    each(
        &all,
        |plugin| plugin.name().to_owned(),
        |plugin| {
            let name = plugin.name();
            let conf = Node::parse(plugin.example()).expect("YAML").root.to_json();
            let (file, wanted) = (repository().join(format!("examples/kong/{name}.yml")), example(name, &conf));
            if std::env::var_os("UPDATE_DOCS").is_some() {
                fs::create_dir_all(file.parent().expect("a folder")).expect("make a folder");
                fs::write(&file, &wanted).expect("write an example");
            }
            let text = fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(text, wanted, "out of date: UPDATE_DOCS=1 cargo test -p weir --test blackbox -- kong_plugins");
            let gateway = Start::text(&text.replace("127.0.0.1:8080", &origin.node())).start();
            let status = gateway.get("/orders").status;
            assert!((200..600).contains(&status), "{status}");
        },
    );
}
