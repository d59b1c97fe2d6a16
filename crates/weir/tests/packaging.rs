//! Recipes of packages: what they hold is there, is valid, and works.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use weir_config::Node;

use crate::harness::{EtcdCluster, Start, binary, program, repository, weir};

fn run(command: &mut Command) -> String {
    let output = command.output().expect("start a program");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    out.into_owned()
}

#[test]
fn a_debian_package_holds_a_gateway_that_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = repository().join("packaging/debian/build");
    run(Command::new(build).arg(binary()).arg(folder.path()).env("COMPRESSION", "none"));
    let package =
        fs::read_dir(folder.path()).expect("read the folder").next().expect("a package").expect("an entry").path();
    let info = run(Command::new(program("dpkg-deb")).arg("--info").arg(&package));
    for field in ["Package: weir", "Version: 0.1.0", "conffiles", "postinst"] {
        assert!(info.contains(field), "{info}");
    }
    let root = folder.path().join("root");
    run(Command::new(program("dpkg-deb")).arg("--extract").arg(&package).arg(&root));
    let installed = root.join("usr/bin/weir");
    assert!(run(Command::new(&installed).arg("version")).starts_with("weir "));
    let (settings, rules) = (root.join("etc/weir/weir.yaml"), root.join("etc/weir/apisix.yaml"));
    run(Command::new(&installed).args(["check", "--strict"]).arg(&rules).arg("--settings").arg(&settings));
    for unit in ["weir.service", "weir.socket", "weir-https.socket"] {
        assert!(root.join("usr/lib/systemd/system").join(unit).is_file(), "{unit}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(repository().join("packaging/debian").join(script)));
    }
}

/// Every file that the recipe of the container copies is there, its settings are taken, and its health check works.
#[test]
fn the_container_has_what_its_recipe_names() {
    let recipe = fs::read_to_string(repository().join("packaging/container/Containerfile")).expect("read the recipe");
    let copied =
        recipe.lines().filter(|line| line.starts_with("COPY ")).filter_map(|line| line.split(' ').rev().nth(1));
    let sources: Vec<&str> = copied.filter(|source| !source.starts_with('$')).collect();
    assert_eq!(sources.len(), 2, "{sources:?}");
    for source in sources {
        assert!(repository().join(source).exists(), "{source}");
    }
    assert!(recipe.contains("FROM scratch") && recipe.contains("USER 65532:65532"), "{recipe}");
    let settings = repository().join("packaging/container/weir.yaml");
    let (status, out, err) =
        weir(&["check", "--settings", &settings.display().to_string(), "--data-dir", "/nonexistent/x"]);
    assert!(!format!("{out}{err}").contains("weir.yaml"), "{status} {out}{err}");

    let gateway = Start::new(r#"{"routes": []}"#).start();
    let (status, out, err) = weir(&["ready", &gateway.status.to_string()]);
    assert_eq!((status, out.as_str()), (0, "ready\n"), "{err}");
    drop(gateway);
    let (status, _, err) = weir(&["ready", "127.0.0.1:1"]);
    assert!(status == 1 && err.contains("no answer from 127.0.0.1:1"), "{status} {err}");
}

/// The chart for Kubernetes. Without helm, which `make test-peers` builds, this is a check of YAML and of names alone.
#[test]
fn the_chart_knows_every_value_that_it_uses() {
    let chart = repository().join("packaging/helm/weir");
    let read = |name: &str| fs::read_to_string(chart.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let values = Node::parse(&read("values.yaml")).expect("YAML").root.to_json();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    let described = Node::parse(&read("Chart.yaml")).expect("YAML").root.to_json();
    assert_eq!((&described["name"], &described["appVersion"]), (&json!("weir"), &json!(env!("CARGO_PKG_VERSION"))));
    fn compare(values: &Value, schema: &Value, path: &str) {
        let (Some(values), Some(known)) = (values.as_object(), schema["properties"].as_object()) else { return };
        let names =
            |map: &serde_json::Map<String, Value>| map.keys().filter(|name| *name != "global").cloned().collect();
        let (found, expected): (BTreeSet<String>, BTreeSet<String>) = (names(values), names(known));
        assert_eq!(found, expected, "values and schema at {path:?}");
        values.iter().for_each(|(name, value)| compare(value, &known[name], &format!("{path}.{name}")));
    }
    compare(&values, &schema, "");
    let mut used = 0;
    for file in fs::read_dir(chart.join("templates")).expect("read the folder") {
        let file = file.expect("an entry").path();
        let text = fs::read_to_string(&file).expect("read a template");
        for (at, _) in text.match_indices(".Values.") {
            let path: String = text[at + 8..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
            let value = path.trim_end_matches('.').split('.').fold(&values, |value, name| &value[name]);
            assert!(!value.is_null(), "{}: .Values.{path} is not in values.yaml", file.display());
            used += 1;
        }
    }
    assert!(used > 20, "{used}");
}

#[test]
fn the_chart_is_rendered_by_helm_and_its_settings_are_taken() {
    let helm = repository().join("target/test-tools/helm");
    if !helm.is_file() {
        return println!("left out: there is no helm (make test-peers)");
    }
    let (chart, folder) = (repository().join("packaging/helm/weir"), tempfile::tempdir().expect("a folder"));
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", crate::etcd::route("/1", "one"));
    let of_etcd = format!("etcd.hosts={{{}}},adminSecret=keys,settings.usage.enabled=true", cluster.urls().join("\\,"));
    for (mode, more, expected) in [
        ("store", "", ["StatefulSet", "ConfigMap", "Service"]),
        ("rules", "replicas=2", ["Deployment", "ConfigMap", "Service"]),
        ("etcd", &of_etcd, ["Deployment", "ConfigMap", "Service"]),
    ] {
        let set = format!("mode={mode},{more}");
        run(Command::new(&helm).args(["lint", "--strict", "--set", &set]).arg(&chart));
        let text = run(Command::new(&helm).args(["template", "edge", "--set", &set]).arg(&chart));
        let documents: Vec<Value> = text
            .split("\n---\n")
            .map(|text| text.trim_start_matches("---\n"))
            .filter(|text| text.lines().any(|line| !line.starts_with('#') && !line.trim().is_empty()))
            .map(|text| {
                Node::parse(text).unwrap_or_else(|error| panic!("{mode}: {}: {text}", error.code)).root.to_json()
            })
            .collect();
        let kinds: BTreeSet<&str> = documents.iter().filter_map(|one| one["kind"].as_str()).collect();
        assert_eq!(kinds, BTreeSet::from(expected), "{mode}: {text}");
        let data =
            |name: &str| documents.iter().find_map(|one| one["data"][name].as_str()).unwrap_or_default().to_owned();
        let (settings, rules) = (folder.path().join("weir.yaml"), folder.path().join("rules.yaml"));
        fs::write(&settings, data("weir.yaml")).expect("write a file");
        let mut check = Command::new(binary());
        check.arg("check").arg("--settings").arg(&settings);
        if mode == "rules" {
            fs::write(&rules, data("rules.yaml")).expect("write a file");
            check.arg(&rules);
        }
        run(&mut check);
        assert_eq!(data("weir.yaml").contains("admin"), mode != "rules", "{}", data("weir.yaml"));
    }
    for (set, reason) in [
        ("replicas=2", "with mode store there is one gateway"),
        ("mode=etcd", "etcd.hosts: expected one member at least"),
        ("mode=file", "mode"),
        ("replica=2", "replica"),
    ] {
        let output =
            Command::new(&helm).args(["template", "edge", "--set", set]).arg(&chart).output().expect("run helm");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(reason), "{set}: {told}");
    }
}
