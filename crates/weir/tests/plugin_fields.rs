//! Every field of every plugin has an effect: with the field taken out of the configuration of its cases
//! (`crates/plugins/cases/`) one of them fails. Where no case can show it, `elsewhere` names the test that does.
//!
//! The data plane runs within the test: a gateway for each of hundreds of configurations would take minutes.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use weir_config::load::load_node;
use weir_config::settings::SettingsSource;
use weir_config::{InvalidItems, LoadOptions, Model, Node, Settings};
use weir_plugins::Apis;
use weir_proxy::{Catalog, Compiler, DataPlane, Definitions, Snapshot};
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::{Metrics, MetricsOptions};

use crate::harness::{LIMIT, Origin, each, repository, wait_until};
use crate::plugins::{files, holds, read, service};

/// Time limit of an answer without a field: some fields keep a plugin from waiting for minutes.
const PATIENCE: Duration = Duration::from_secs(4);

/// A data plane within this process, which serves one configuration after the other.
pub(crate) struct Plane {
    settings: Settings,
    definitions: Definitions,
    plane: DataPlane,
    apis: Apis,
    revision: u64,
}

impl Plane {
    fn start() -> Self {
        Self::with(weir_plugins::definitions(), &[])
    }

    /// A data plane with these plugins, and further settings.
    pub(crate) fn with(definitions: Definitions, more: &[(&str, &str)]) -> Self {
        let flags = [("listen.http", "127.0.0.1:0"), ("listen.https", "127.0.0.1:0"), ("workers", "1")];
        let flags = flags.iter().chain(more).map(|(path, value)| ((*path).to_owned(), (*value).to_owned()));
        let flags: Vec<_> = flags.collect();
        let (settings, ..) =
            Settings::load(SettingsSource { flags: &flags, ..SettingsSource::default() }).expect("settings");
        let metrics = Metrics::new(MetricsOptions::default());
        let plane = DataPlane::start(&settings, Vec::new(), &metrics, &AccessLogs::default(), None)
            .expect("start a data plane");
        let apis = Apis::default();
        apis.start(&metrics, Box::new(|work| work()));
        Self { settings, definitions, plane, apis, revision: 0 }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.plane.addresses()[0].address.tcp().expect("an address and a port")
    }

    /// Serves a configuration, with nothing that one before has left; false: it is refused.
    pub(crate) fn serve(&mut self, config: &Value) -> bool {
        self.revision += 1;
        let definitions = self.definitions;
        let compiler =
            Compiler::new(definitions, &self.settings, "weir/test").with_apis(self.apis.list(&self.settings));
        let options = LoadOptions { plugins: &Catalog(definitions), ..LoadOptions::PLAIN };
        let root = Node::parse(&config.to_string()).expect("a document").root;
        let Some(document) = load_node("t", root, &options).document else { return false };
        let Ok(compiled) = compiler.compile(&Model::from(document), InvalidItems::Refuse, self.revision) else {
            return false;
        };
        let snapshot: Arc<Snapshot> = compiled.snapshot;
        self.plane.apply(snapshot);
        wait_until("the worker to take it", LIMIT, || self.plane.serves(self.revision).then_some(()));
        self.plane.retire();
        true
    }
}

#[test]
fn without_any_field_a_case_fails() {
    each(
        &files(),
        |file| file.display().to_string(),
        |file| {
            let document = read(file);
            let plugin = document["plugin"].as_str().expect("a plugin");
            let cases = document["cases"].as_array().expect("a list of cases");
            let origin = Origin::echo();
            let service = service();
            let config = document["config"].as_str().expect("a configuration");
            let config = config.replace("${ORIGIN}", &origin.node()).replace("${SERVICE}", &service.node());
            let config = Node::parse(&config).expect("YAML").root.to_json();
            let mut plane = Plane::start();
            let mut fails = |config: &Value, limit: Duration| {
                !plane.serve(config) || cases.iter().any(|case| holds(case, plane.address(), &origin, limit).is_err())
            };
            assert!(!fails(&config, LIMIT), "a case fails with all fields");
            let mut found = Vec::new();
            conf_pointers(&config, plugin, "", &mut found);
            let mut fields = BTreeMap::<String, Vec<String>>::new();
            for (field, pointer) in found {
                fields.entry(field).or_default().push(pointer);
            }
            let elsewhere = seen_elsewhere(&document);
            let told = told_without_effect(&document);
            fields.retain(|field, _| !told.contains(field) && !elsewhere.iter().any(|(seen, _)| field == seen));
            let without_effect = fields.iter().filter(|(_, pointers)| !fails(&without(&config, pointers), PATIENCE));
            let names: Vec<_> = without_effect.map(|(field, _)| field.as_str()).collect();
            assert!(names.is_empty(), "all cases hold without {}", names.join(", "));
        },
    );
}

/// The fields whose effect tests show that `elsewhere` names: `conf.policy`, and the test.
fn seen_elsewhere(document: &Value) -> Vec<(String, String)> {
    let entries = document["elsewhere"].as_array().into_iter().flatten();
    let seen = |entry: &Value| {
        let (place, field) = ["conf", "consumer", "metadata"]
            .iter()
            .find_map(|place| Some((*place, entry[*place].as_str()?)))
            .expect("a field of conf, consumer or metadata");
        (format!("{place}.{field}"), entry["test"].as_str().expect("the name of a test").to_owned())
    };
    entries.map(seen).collect()
}

/// The fields of which `weir check` says that they have no effect.
fn told_without_effect(document: &Value) -> Vec<String> {
    let entries = document["bad"].as_array().into_iter().flatten();
    let told = |entry: &Value| {
        let place = ["conf", "consumer"].into_iter().find(|place| entry.get(place).is_some())?;
        let (field, said) = entry["warns"].as_str()?.split_once(": ")?;
        (said.contains("no effect") && !said.contains("unknown field")).then(|| format!("{place}.{field}"))
    };
    entries.filter_map(told).collect()
}

#[test]
fn tests_that_cases_name_are_there() {
    for file in files() {
        for (field, test) in seen_elsewhere(&read(&file)) {
            let (module, name) = test.split_once("::").unwrap_or_else(|| panic!("{test} is no file and test"));
            let folders = ["crates/weir/tests", "crates/plugins/tests"].map(|folder| repository().join(folder));
            let texts =
                folders.map(|folder| fs::read_to_string(folder.join(format!("{module}.rs"))).unwrap_or_default());
            let is_there = texts.iter().any(|text| text.contains(&format!("fn {name}()")));
            assert!(is_there, "{}: {field}: there is no test {test}", file.display());
        }
    }
}

/// A configuration without what these JSON pointers lead to.
fn without(config: &Value, pointers: &[String]) -> Value {
    let mut without = config.clone();
    for pointer in pointers.iter().rev() {
        let (parent, name) = pointer.rsplit_once('/').expect("a field in a mapping");
        let name = name.replace("~1", "/").replace("~0", "~");
        if let Some(fields) = without.pointer_mut(parent).and_then(Value::as_object_mut) {
            fields.remove(&name);
        }
    }
    without
}

/// The fields of all configurations of a plugin, by their paths in it, with JSON pointers to them.
fn conf_pointers(node: &Value, plugin: &str, at: &str, found: &mut Vec<(String, String)>) {
    match node {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                conf_pointers(item, plugin, &format!("{at}/{index}"), found);
            }
        }
        Value::Object(entries) => {
            for (name, value) in entries {
                let at = step(at, name);
                match value.get(plugin) {
                    Some(conf) if name == "plugins" => {
                        let place = if at.starts_with("/consumers") { "consumer" } else { "conf" };
                        field_pointers(conf, place, &step(&at, plugin), found);
                    }
                    _ => conf_pointers(value, plugin, &at, found),
                }
            }
        }
        _ => {}
    }
}

fn field_pointers(conf: &Value, path: &str, at: &str, found: &mut Vec<(String, String)>) {
    match conf {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                field_pointers(item, &format!("{path}[]"), &format!("{at}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let (path, at) = (format!("{path}.{name}"), step(at, name));
                found.push((path.clone(), at.clone()));
                field_pointers(value, &path, &at, found);
            }
        }
        _ => {}
    }
}

/// A JSON pointer to a member of what another leads to.
fn step(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}
