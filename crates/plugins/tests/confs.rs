//! Configurations that are refused or warned about: the list `bad` of every file in `cases/`, and the examples.
//!
//! An entry has a configuration (`conf` on a route, `consumer` or `consumers` on consumers c0, c1, …, `metadata` in
//! `plugin_metadata`) and what an error `says` or a warning `warns`.

mod bench;

use std::path::{Path, PathBuf};

use bench::{Bench, definition};
use weir_config::{Checked, Diagnostic, LoadOptions, Node, PluginCatalog, Scope, load};
use weir_plugin::host::{CredentialChange, Definition};
use weir_plugin::{Consumer, ConsumerMatch, Consumers, Named};

#[test]
fn bad_configurations_are_told_why() {
    for definition in weir_plugins::definitions() {
        let name = definition.name();
        let file = folder("cases").join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let cases = bench::node(&text);
        assert_eq!(cases.get("plugin").and_then(Node::as_str), Some(name));
        let bad = cases.get("bad").and_then(Node::as_seq).unwrap_or_default();
        assert!(!bad.is_empty(), "{name} has bad configurations");
        for entry in bad {
            check_entry(*definition, entry);
        }
    }
}

fn check_entry(definition: &dyn Definition, entry: &Node) {
    let at = format!("{}.yaml:{}", definition.name(), entry.mark);
    let found = findings(definition, entry, &at);
    let (wanted, error) = match (entry.get("says"), entry.get("warns")) {
        (Some(says), None) => (says, true),
        (None, Some(warns)) => (warns, false),
        _ => panic!("{at}: expected either says or warns"),
    };
    let wanted = wanted.as_str().unwrap_or_else(|| panic!("{at}: expected a text"));
    let told = |found: &&Diagnostic| {
        let plain = Diagnostic { mark: weir_config::Mark::NONE, ..(*found).clone() }.to_string();
        plain.trim_start_matches("warning: ").contains(wanted)
    };
    let matching = found.iter().find(told).unwrap_or_else(|| panic!("{at}: wanted {wanted:?}, found {found:#?}"));
    assert_eq!(matching.is_error(), error, "{at}: {matching}");
    assert!(error || !found.iter().any(Diagnostic::is_error), "{at}: only warnings, found {found:#?}");
}

/// Findings about an entry's configuration, also those of building it if it is not refused before.
fn findings(definition: &dyn Definition, entry: &Node, at: &str) -> Vec<Diagnostic> {
    if let Some(conf) = entry.get("metadata") {
        return definition.check(Scope::Metadata, conf).0;
    }
    if let Some(conf) = entry.get("conf") {
        let scope = if definition.is_for_requests() { Scope::Route } else { Scope::StreamRoute };
        let mut found = definition.check(scope, conf).0;
        let built = Bench::new().build_node(definition.name(), conf);
        if !found.iter().any(Diagnostic::is_error) {
            found.extend(built.err());
        } else {
            assert!(built.is_err(), "{at}: was refused, yet can be built");
        }
        return found;
    }
    let confs: Vec<&Node> = match (entry.get("consumer"), entry.get("consumers").and_then(Node::as_seq)) {
        (Some(one), _) => vec![one],
        (_, Some(several)) => several.iter().collect(),
        _ => panic!("{at}: nothing to check"),
    };
    let checked = confs.iter().map(|conf| definition.check(Scope::Consumer, conf).0);
    let mut found: Vec<Diagnostic> = checked.flatten().collect();
    let names: Vec<String> = (0..confs.len()).map(|n| format!("c{n}")).collect();
    let who = |consumer: u32| ConsumerMatch { consumer, credential: None };
    let entries: Vec<(ConsumerMatch, &Node)> = confs.iter().zip(0..).map(|(conf, n)| (who(n), *conf)).collect();
    let mut consumers = Consumers::default();
    for name in &names {
        let name = Named::from(name.as_str());
        consumers.put(Consumer::new(name, None, Box::default(), Box::default()));
    }
    let change = CredentialChange { held: None, gone: &[], came: &entries, consumers: &consumers };
    match definition.credentials(&change) {
        Ok(_) => assert!(!found.iter().any(Diagnostic::is_error), "{at}: was refused, yet can be built"),
        Err((_, error)) => found.push(*error),
    }
    found
}

struct Plugins;

impl PluginCatalog for Plugins {
    fn names(&self) -> Vec<&str> {
        weir_plugins::definitions().iter().map(|definition| definition.name()).collect()
    }

    fn is_auth(&self, name: &str) -> bool {
        weir_plugins::definitions().iter().any(|definition| definition.name() == name && definition.is_auth())
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        Checked { found: definition(name).check(scope, conf).0, compiled: None }
    }
}

#[test]
fn examples_are_whole_files_without_a_fault() {
    for definition in weir_plugins::definitions() {
        let name = definition.name();
        Bench::new().build(name, definition.example()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = folder("../../examples/plugins").join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let plain: Vec<&str> = text.lines().map(str::trim).collect();
        let example: Vec<&str> = definition.example().lines().map(str::trim).collect();
        assert!(plain.windows(example.len()).any(|lines| lines == example), "{name}.yaml holds the example");
        assert_loads(&format!("examples/plugins/{name}.yaml"), &text);
    }
}

#[test]
fn cases_are_whole_files_without_a_fault() {
    for definition in weir_plugins::definitions() {
        let name = definition.name();
        let text = std::fs::read_to_string(folder("cases").join(format!("{name}.yaml"))).expect("cases can be read");
        let cases = bench::node(&text);
        let config = cases.get("config").and_then(Node::as_str).expect("a configuration");
        let findings =
            assert_loads(name, &config.replace("${ORIGIN}", "127.0.0.1:1980").replace("${SERVICE}", "127.0.0.1:1981"));
        let meant = [
            "nothing is changed",
            "changes nothing",
            "taken for the variable",
            "nothing is redirected",
            "response_example goes before",
            "stops no replay",
            "counts as not set",
            "is never set",
            "is not checked",
            "it has no effect, as in APISIX",
            "Host is not changed here",
            "left out",
            "not used",
            "the body is empty",
        ];
        let unexpected: Vec<_> =
            findings.iter().filter(|f| !meant.iter().any(|text| f.message().contains(text))).collect();
        assert!(unexpected.is_empty(), "{name}: {unexpected:#?}");
    }
}

fn assert_loads(name: &str, text: &str) -> Vec<Diagnostic> {
    let options = LoadOptions { strict: true, plugins: &Plugins, ..LoadOptions::PLAIN };
    let loaded = load(name, text.as_bytes(), &options);
    assert!(loaded.document.is_some(), "{name}: {:#?}", loaded.diagnostics);
    loaded.diagnostics
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
