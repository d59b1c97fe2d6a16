//! The shape of the workspace: who depends on whom, and for what reason on whom else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::documentation::{document, plain, rows};
use crate::harness::{put_program, repository};

/// A crate of this repository.
struct Package {
    name: String,
    folder: PathBuf,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    /// Only for tests.
    test: bool,
}

impl Dependency {
    /// True for a crate of this repository.
    fn is_own(&self) -> bool {
        self.name.starts_with("weir")
    }
}

/// The crates of a workspace, from cargo.
fn packages(manifest: &str) -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(repository().join(manifest))
        .output()
        .expect("run cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        folder: Path::new(&text(&package["manifest_path"])).parent().expect("a folder").to_owned(),
        dependencies: list(&package["dependencies"])
            .iter()
            .map(|d| Dependency { name: text(&d["name"]), test: d["kind"] == "dev" })
            .collect(),
    };
    list(&metadata["packages"]).iter().map(package).collect()
}

fn all_packages() -> Vec<Package> {
    let mut all = packages("Cargo.toml");
    all.extend(packages("fuzz/Cargo.toml"));
    assert!(all.len() >= 11, "{} crates", all.len());
    all
}

/// ARCHITECTURE.md says which crate may know which; a dependency that it does not name is a mistake in one of the two.
#[test]
fn crates_know_only_whom_the_architecture_lets_them() {
    let architecture = document("ARCHITECTURE.md");
    let known: BTreeMap<String, BTreeSet<String>> = rows(&architecture, "Dependencies between crates")
        .into_iter()
        .map(|row| (plain(&row[0]), row[1].split(',').map(plain).filter(|name| name != "nobody").collect()))
        .collect();
    let found: BTreeMap<String, BTreeSet<String>> = all_packages()
        .into_iter()
        .map(|package| {
            let own = package.dependencies.iter().filter(|d| d.is_own() && !d.test);
            let short = |name: &str| name.strip_prefix("weir-").unwrap_or(name).to_owned();
            (short(&package.name), own.map(|d| short(&d.name)).collect())
        })
        .collect();
    assert_eq!(found, known, "found (left) and told in ARCHITECTURE.md (right)");
    // Whatever the document says: these two stay apart, so that the data plane serves any set of plugins.
    assert!(!found["proxy"].contains("plugins") && !found["plugins"].contains("proxy"));
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = document("docs/dependencies.md");
    let mut wrong = Vec::new();
    for package in all_packages() {
        let mut told: BTreeMap<String, (String, String)> = rows(&reasons, &package.name)
            .into_iter()
            .map(|row| (plain(&row[0]), (row[1].clone(), row[2].clone())))
            .collect();
        let mut only_test: BTreeMap<String, bool> = BTreeMap::new();
        for dependency in package.dependencies.iter().filter(|d| !d.is_own()) {
            *only_test.entry(dependency.name.clone()).or_insert(true) &= dependency.test;
        }
        for (name, test) in only_test {
            let kind = if test { "tests" } else { "build" };
            match told.remove(&name) {
                Some((told, reason)) if told == kind && reason.len() > 10 => {}
                found => wrong.push(format!("{}: {name}, for {kind}, is told as {found:?}", package.name)),
            }
        }
        wrong.extend(told.keys().map(|name| format!("{}: {name} is told and not there", package.name)));
    }
    assert!(wrong.is_empty(), "docs/dependencies.md and the manifests differ:\n{}", wrong.join("\n"));
}

#[test]
fn no_dependency_is_there_for_nothing() {
    let mut unused = Vec::new();
    for package in all_packages() {
        let mut source = String::new();
        for folder in ["src", "tests", "examples", "fuzz_targets"] {
            read_sources(&package.folder.join(folder), &mut source);
        }
        for dependency in &package.dependencies {
            let name = dependency.name.replace('-', "_");
            let used = |end: &&str| source.contains(&format!("{name}{end}"));
            if !["::", ";", " as "].iter().any(used) {
                unused.push(format!("{}: {}", package.name, dependency.name));
            }
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let mut allowed = Vec::new();
    for package in packages("Cargo.toml") {
        let manifest = fs::read_to_string(package.folder.join("Cargo.toml")).expect("read a manifest");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} has lints of its own", package.name);
        let mut source = String::new();
        read_sources(&package.folder.join("src"), &mut source);
        allowed.extend(source.matches("allow(unsafe_code").map(|_| package.name.clone()));
    }
    assert_eq!(allowed, ["weir-proxy"; 2], "weir_proxy::schedule and weir_proxy::allocator");
}

/// Plugins use the accessors of contexts; the exchange itself, and the gateway's side of definitions, are for the data
/// plane and for the files here, which define or look up plugins.
#[test]
fn plugins_keep_to_their_face_of_the_api() {
    let folder = repository().join("crates/plugins/src");
    let mut users = Vec::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(&path).expect("read a source").contains("weir_plugin::host::") {
                users.push(path.strip_prefix(&folder).expect("below").to_string_lossy().into_owned());
            }
        }
    }
    users.sort_unstable();
    let allowed = [
        "auth/multi_auth.rs",
        "kong.rs",
        "kong/consumer.rs",
        "reference.rs",
        "registry.rs",
        "scripts/own.rs",
        "scripts/wasm.rs",
        "threescale.rs",
        "traffic/workflow.rs",
        "tyk.rs",
    ];
    assert_eq!(users, allowed, "files that use the gateway's side of the plugin API");
}

/// Appends every Rust source below a folder, which may be missing.
fn read_sources(folder: &Path, out: &mut String) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            read_sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push_str(&fs::read_to_string(&path).expect("read a source"));
        }
    }
}

/// The script that installs the tools of the tests runs as root without sudo, and as another user with it.
#[test]
fn tools_of_the_tests_are_installed_by_root_and_by_others() {
    for (user, expected) in
        [("0", "apt-get noninteractive "), ("1000", "sudo env DEBIAN_FRONTEND=noninteractive apt-get ")]
    {
        let folder = tempfile::tempdir().expect("create a folder");
        let at = |path: &str| folder.path().join(path);
        let executable = |path: &str, script: &str| {
            fs::create_dir_all(at(path).parent().expect("a folder")).expect("create a folder");
            put_program(&at(path), &format!("#!/bin/bash\n{script}\n"));
        };
        // The tools on this path only print the names by which they are called.
        executable("bin/id", &format!("echo {user}"));
        executable("bin/apt-get", "echo apt-get $DEBIAN_FRONTEND $* >>$LOG");
        executable("bin/sudo", "echo sudo $* >>$LOG; exec \"$@\"");
        executable("bin/python3", "exit 0");
        executable("target/test-tools/bin/openapi-spec-validator", "exit 0");
        executable("target/test-tools/bin/sslyze", "exit 0");
        executable("target/test-tools/bin/python", "exit 0");
        for module in ["oidc-provider", "playwright-core", "axe-core", "node-fetch"] {
            executable(&format!("target/test-tools/node_modules/{module}/index.js"), "");
        }
        executable("target/test-tools/cache-tests/cli.mjs", "");
        for program in ["env", "bash", "dirname"] {
            std::os::unix::fs::symlink(Path::new("/usr/bin").join(program), at("bin").join(program)).expect("link");
        }
        fs::create_dir(at("tools")).expect("create a folder");
        let script = fs::read_to_string(repository().join("tools/install-test-deps")).expect("read the script");
        put_program(&at("tools/install-test-deps"), &script);
        let output = Command::new(at("tools/install-test-deps"))
            .env_clear()
            .env("PATH", at("bin"))
            .env("LOG", at("log"))
            .output()
            .expect("run the script");
        let calls = fs::read_to_string(at("log")).unwrap_or_default();
        assert!(output.status.success(), "{user}: {calls}{}", String::from_utf8_lossy(&output.stderr));
        for call in ["update", "install"] {
            let expected = format!("{expected}{call} ");
            assert!(calls.lines().any(|line| line.starts_with(&expected)), "{user}: no {expected}in {calls}");
        }
        assert!(calls.lines().any(|line| line.contains(" install ") && line.ends_with("sqlite3")), "{user}: {calls}");
    }
}
