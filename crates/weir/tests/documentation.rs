//! The documents are correct: their links have targets, their names exist, their tables and listings match the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weir_config::catalog::APISIX_PLUGINS;
use weir_config::settings::apisix::KEYS;
use weir_config::settings::leaves;
use weir_config::unsupported::UNSUPPORTED;
use weir_wire::Reject;
use weir_wire::target::{self, PathRules};

use crate::harness::repository;

/// The text of a document of the repository.
pub(crate) fn document(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the first table under a heading, as cells; the head of the table is not among them.
pub(crate) fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let is_heading = |line: &str| line.starts_with('#');
    let section =
        document.lines().skip_while(|line| !(is_heading(line) && line.trim_start_matches('#').trim() == heading));
    let lines = section.skip(1).take_while(|line| !is_heading(line)).skip_while(|line| !line.starts_with('|'));
    let rows: Vec<Vec<String>> = lines.take_while(|line| line.starts_with('|')).skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "no table under {heading:?}");
    rows
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_matches('|').replace("\\|", "\u{1}");
    line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

/// A cell without the marks of code.
pub(crate) fn plain(cell: &str) -> String {
    cell.trim().trim_matches('`').to_owned()
}

/// Every Markdown document, with its path from the top.
fn documents() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("read a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir()
                && !matches!(name.as_str(), "target" | "results" | "node_modules")
                && !name.starts_with('.')
            {
                collect(&path, found);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&repository(), &mut found);
    let all: Vec<_> =
        found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("read it"))).collect();
    assert!(all.len() >= 15, "{} documents", all.len());
    all
}

/// Every plugin of APISIX is there, or has a reason in the README.
#[test]
fn plugins_that_are_not_there_are_named_with_a_reason() {
    let readme = document("README.md");
    let (_, section) = readme.split_once("These plugins of APISIX are refused by their names:").expect("the table");
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let named: BTreeSet<String> = table
        .skip(2)
        .flat_map(|line| {
            let cells = cells(line);
            assert!(!cells[1].is_empty(), "a reason: {line}");
            cells[0].split(',').map(plain).collect::<Vec<_>>()
        })
        .collect();
    let here: BTreeSet<&str> = weir_plugins::definitions().iter().map(|definition| definition.name()).collect();
    let missing = APISIX_PLUGINS.iter().filter(|name| !here.contains(*name)).map(|name| (*name).to_owned());
    assert_eq!(named, missing.collect());
}

/// The lines that are not in a listing.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut listing = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        listing ^= fence;
        !listing && !fence
    })
}

/// The anchor that a heading gets: lower case, blanks as dashes, no other punctuation.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for line in prose(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.contains("://") {
                    continue;
                }
                let (file, place) = link.split_once('#').unwrap_or((link, ""));
                let target = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
                let there = target.exists()
                    && (place.is_empty()
                        || prose(&fs::read_to_string(&target).unwrap_or_default())
                            .any(|line| line.starts_with('#') && anchor(line) == place));
                if !there {
                    broken.push(format!("{}: {link}", path.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The texts in backticks.
fn code(text: &str) -> Vec<&str> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn settings_that_are_named_exist() {
    let known: BTreeSet<String> = leaves().iter().map(|leaf| leaf.path.to_string()).collect();
    let groups: BTreeSet<&str> = known.iter().filter_map(|path| path.split_once('.')).map(|(group, _)| group).collect();
    // The fields of an upstream's `tls` are named in the same way.
    let of_upstreams = ["tls.client_cert", "tls.client_key", "tls.client_cert_id", "tls.verify", "tls.ca"];
    // So are those of chaitin-waf's `config`.
    let of_plugins = [
        "connect_timeout",
        "send_timeout",
        "read_timeout",
        "req_body_size",
        "keepalive_size",
        "keepalive_timeout",
        "real_client_ip",
    ]
    .map(|name| format!("config.{name}"));
    // So are keys of APISIX's config.yaml.
    let is_key = |name: &str| KEYS.iter().any(|row| row.path == name || row.path.starts_with(&format!("{name}.")));
    let is_setting = |name: &str| {
        let parts = name.split_once('.').filter(|(group, _)| groups.contains(group));
        parts.is_some_and(|(_, rest)| {
            !matches!(rest, "rs" | "yaml") && rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        })
    };
    let mut named = 0;
    for (path, text) in documents() {
        let is_own = |name: &str| of_upstreams.contains(&name) || of_plugins.iter().any(|own| own == name);
        for name in code(&text).into_iter().filter(|name| is_setting(name) && !is_own(name)) {
            assert!(known.contains(name) || is_key(name), "{}: there is no setting {name}", path.display());
            named += 1;
        }
    }
    assert!(named > 50, "only {named} settings are named");
}

#[test]
fn the_readme_names_all_plugins_and_all_that_is_missing() {
    let readme = document("README.md");
    for definition in weir_plugins::definitions() {
        assert!(readme.contains(&format!("`{}`", definition.name())), "{} is not in README.md", definition.name());
    }
    let features: BTreeSet<&str> = UNSUPPORTED.iter().map(|entry| entry.feature).collect();
    let missing = rows(&readme, "What is refused as not supported yet");
    let told: BTreeSet<&str> = missing.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(told, features, "told in README.md (left) and refused by the code (right)");
}

#[test]
fn the_readme_tells_to_try_what_the_quickstart_tells() {
    let (readme, script) = (document("README.md"), document("tools/quickstart"));
    let lines: Vec<_> =
        script.lines().filter(|line| line.starts_with("  curl ") || line.starts_with("  for ")).collect();
    assert!(lines.len() > 4, "{lines:?}");
    for line in lines {
        let line = line.trim().replace("$base", "http://127.0.0.1:9080").replace("$metrics", "9091");
        let line = line.replace("$admin", "9180").replace("$WEIR_ADMIN_KEY", "demo-admin");
        // Behind a line stands what it shows, in a column of its own.
        let command = line.split("  #").next().unwrap_or_default().trim();
        assert!(readme.contains(command), "README.md does not tell: {command}");
    }
}

#[test]
fn the_table_of_paths_is_what_the_code_does() {
    let routing = document("docs/routing.md");
    let mut refused = 0;
    for row in rows(&routing, "One form of a path") {
        let [received, setting, matched, sent] = &row[..] else { panic!("four cells: {row:?}") };
        let setting = plain(setting);
        let rules = PathRules {
            delete_tail_slash: setting == "uri.delete_tail_slash",
            servlet: setting == "uri.normalize_like_servlet",
            keep_encoded_slash: setting == "uri.match_encoded_slash",
        };
        assert!(setting.is_empty() || rules.delete_tail_slash | rules.servlet | rules.keep_encoded_slash, "{row:?}");
        match normalised(&plain(received), rules) {
            Ok((decoded, encoded)) => assert_eq!((decoded, encoded), (plain(matched), plain(sent)), "{row:?}"),
            Err(reject) => {
                assert_eq!((matched.as_str(), sent.as_str()), ("400", reject.reason), "{row:?}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 5, "{refused} refused paths");
}

/// The path that routes are matched against, and the path that the upstream receives.
fn normalised(path: &str, rules: PathRules) -> Result<(String, String), Reject> {
    target::split(path.as_bytes())?;
    let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
    target::normalise(path.as_bytes(), rules, &mut decoded, &mut encoded)?;
    Ok((String::from_utf8_lossy(&decoded).into_owned(), String::from_utf8_lossy(&encoded).into_owned()))
}

#[test]
fn the_plugins_of_the_contributors_guide_are_those_that_are_compiled() {
    let guide = document("CONTRIBUTING.md");
    let listings: Vec<_> = guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let examples = ["maintenance", "doorkeeper"];
    assert_eq!(listings.len(), examples.len());
    for (listing, name) in listings.iter().zip(examples) {
        let example = document(&format!("crates/plugins/examples/{name}.rs"));
        assert!(listing.lines().count() > 30, "{listing}");
        assert!(example.contains(listing.trim()), "CONTRIBUTING.md and crates/plugins/examples/{name}.rs differ");
    }
}
