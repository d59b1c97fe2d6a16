//! The built files belong to the sources, and stay small.

use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use weir_dashboard::{ASSETS, asset};

/// Bytes that all files may have together, as gzip.
const BUDGET: usize = 150 * 1024;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("read a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// SHA-256 over the paths and contents of everything that the build reads, as `dashboard/build/seal.mjs` makes it.
fn digest() -> String {
    let root = folder();
    let mut files: Vec<PathBuf> =
        ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"]
            .map(|name| root.join(name))
            .into();
    sources(&root.join("src"), &mut files);
    sources(&root.join("public"), &mut files);
    let mut named: Vec<(String, PathBuf)> = files
        .into_iter()
        .map(|path| (path.strip_prefix(&root).expect("below the folder").to_string_lossy().into_owned(), path))
        .collect();
    named.sort();
    let mut context = Context::new(&SHA256);
    for (name, path) in named {
        let content = fs::read(path).expect("read a source");
        context.update(format!("{name}\n{}\n", content.len()).as_bytes());
        context.update(&content);
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_built_files_are_those_of_the_sources() {
    let built = fs::read_to_string(folder().join("dist/sources.sha256")).expect("the digest that the build leaves");
    assert_eq!(built.trim(), digest(), "dashboard/dist is out of date: run `make dashboard`");
}

#[test]
fn all_files_together_stay_small_and_are_whole() {
    let size: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
    assert!(size <= BUDGET, "{size} bytes as gzip; at most {BUDGET}");
    for asset in ASSETS {
        let file = fs::read(folder().join("dist").join(asset.path)).expect("the built file");
        assert_eq!(asset.plain(), file, "{}", asset.path);
    }
    assert_eq!(asset("").map(|asset| asset.path), Some("index.html"));
    assert!(asset("nothing").is_none() && asset("../Cargo.toml").is_none());
}

#[test]
fn nothing_comes_from_another_host_or_needs_a_weaker_policy() {
    let page = String::from_utf8(asset("").expect("the page").plain()).expect("text");
    assert!(!page.contains("://") && !page.contains("<style") && !page.contains("style="), "{page}");
    assert!(!page.contains("<script>"), "no script in the page itself: {page}");
    for name in ["dashboard/app.js", "dashboard/app.css"] {
        let text = String::from_utf8(asset(name).expect("built").plain()).expect("text");
        for word in ["eval(", "new Function(", "@import", "url(http"] {
            assert!(!text.contains(word), "{name} has {word}");
        }
    }
}

#[test]
fn no_registry_is_named() {
    let lock = fs::read_to_string(folder().join("package-lock.json")).expect("the lock file");
    assert!(!lock.contains("\"resolved\""), "package-lock.json names where packages were taken from: strip `resolved`");
}
