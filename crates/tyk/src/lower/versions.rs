//! Versions of an API, in the parts that its two plugins read.

use weir_config::{Diagnostic, Key, Kind, Node};

use super::{Scripts, flag, list, map, text};
use crate::definition::{Definition, is_on};

/// The versions for both plugins.
pub(super) struct Versions {
    /// For `api`.
    pub(super) guard: Node,
    /// For `paths`.
    pub(super) chain: Node,
    /// For `cache`.
    pub(super) caches: Node,
    /// For `virtual`.
    pub(super) virtuals: Node,
    /// For `analytics`.
    pub(super) records: Node,
}

/// One version for all of them.
struct Parts {
    guard: Node,
    chain: Node,
    cache: Node,
    endpoints: Node,
    records: Node,
}

/// Lists of `extended_paths` that `api` reads.
const OF_GUARD: [&str; 6] = ["ignored", "black_list", "white_list", "internal", "size_limits", "rate_limit"];
/// Those that `paths` reads.
const OF_CHAIN: [&str; 11] = [
    "mock_response",
    "validate_json",
    "transform_headers",
    "transform_response_headers",
    "url_rewrites",
    "method_transforms",
    "hard_timeouts",
    "circuit_breakers",
    "persist_graphql",
    "transform",
    "transform_response",
];
/// Those that `cache` reads, where answers are cached at all.
const OF_CACHE: [&str; 2] = ["cache", "advance_cache_config"];
/// Those that `analytics` reads, where requests are recorded.
const OF_RECORDS: [&str; 2] = ["track_endpoints", "do_not_track_endpoints"];
/// Those that change what clients and upstreams get, with the reason for which they are refused.
const REFUSED: [(&str, &str); 3] = [
    ("transform_jq", "bodies are not transformed by jq"),
    ("transform_jq_response", "bodies are not transformed by jq"),
    ("go_plugin", "Go plugins are not supported: they are loaded into Tyk's own process"),
];
/// Fields of a version that `paths` reads.
const FIELDS: [&str; 5] = [
    "global_headers",
    "global_headers_remove",
    "global_response_headers",
    "global_response_headers_remove",
    "ignore_endpoint_case",
];

impl Versions {
    /// The versions; `None` with an error among the findings.
    pub(super) fn of(api: &Definition, scripts: &Scripts, found: &mut Vec<Diagnostic>) -> Option<Self> {
        let mark = api.node.mark;
        let before = found.len();
        let is_versioned = !api.flag("version_data.not_versioned");
        let all = api.at("version_data.versions").and_then(Node::as_map).unwrap_or_default();
        let chosen: Vec<&(Key, Node)> = match is_versioned {
            true => all.iter().collect(),
            // Only the entry Default counts, and without it the first.
            false => all.iter().find(|(key, _)| &*key.text == "Default").or(all.first()).into_iter().collect(),
        };
        let [mut guards, mut chains, mut caches, mut virtuals, mut records] = [const { Vec::new() }; 5];
        for (key, version) in chosen {
            let mut parts = self::version(api, &key.text, version, is_versioned, found);
            add_templates(&mut parts.chain, scripts);
            guards.push(parts.guard);
            chains.push(parts.chain);
            caches.push(parts.cache);
            virtuals.push(parts.endpoints);
            records.push(parts.records);
        }
        let mut guard = map(mark, [("list", list(mark, guards))]);
        if is_versioned && all.is_empty() {
            let text = "no version: every request is answered 403; set version_data.not_versioned";
            found.push(api.doubt("version_data", text));
        }
        if is_versioned {
            let location = match api.text("definition.location") {
                "" if all.len() == 1 => None,
                "" => Some("header"),
                known @ ("header" | "url-param" | "url") => Some(known),
                other => {
                    let text = format!("expected one of: header, url-param, url; found '{other}'");
                    found.push(api.fault("definition.location", text));
                    None
                }
            };
            if let Some(location) = location {
                guard.insert("location", text(location));
                let key = Some(api.text("definition.key")).filter(|key| !key.is_empty()).unwrap_or("x-api-version");
                guard.insert("key", text(key));
                let strips = api.flag("definition.strip_versioning_data") || api.flag("definition.strip_path");
                guard.insert("strip", flag(strips));
                guard.insert("fallback", flag(api.flag("definition.fallback_to_default")));
                let default = [api.text("definition.default"), api.text("version_data.default_version")];
                let default = default.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
                guard.insert("default", text(default));
                guard.insert("of_apis", flag(api.flag("definition.of_apis")));
                guard.insert("url_versioning_pattern", text(api.text("definition.url_versioning_pattern")));
            }
        }
        let is_refused = found.iter().skip(before).any(Diagnostic::is_error);
        (!is_refused).then(|| Self {
            guard,
            chain: list(mark, chains),
            caches: list(mark, caches),
            virtuals: list(mark, virtuals),
            records: list(mark, records),
        })
    }

    /// Names of the versions in their order; none for an API without versions.
    pub(super) fn names(&self) -> Vec<Node> {
        let is_of_apis = self.guard.get("of_apis").is_some_and(|flag| flag.kind == Kind::Bool(true));
        let is_versioned = self.guard.get("location").is_some() && !is_of_apis;
        let all = self.guard.get("list").and_then(Node::as_seq).filter(|_| is_versioned).unwrap_or_default();
        all.iter().filter_map(|version| version.get("name")).cloned().collect()
    }
}

fn version(api: &Definition, name: &str, version: &Node, is_versioned: bool, found: &mut Vec<Diagnostic>) -> Parts {
    let mark = version.mark;
    let mut guard = map(mark, [("name", text(name)), ("expires", text(""))]);
    if let Some(expires) = version.get("expires").filter(|_| is_versioned) {
        guard.insert("expires", expires.clone());
    }
    let [mut chain, mut cache, mut endpoints, mut records] = [(); 4].map(|()| map(mark, []));
    let is_on_version = |field: &str| version.get(field).is_some_and(|node| node.kind == Kind::Bool(true));
    if let Some(size) = version.get("global_size_limit").filter(|_| !is_on_version("global_size_limit_disabled")) {
        guard.insert("global_size_limit", size.clone());
    }
    if let Some(case) = version.get("ignore_endpoint_case") {
        guard.insert("ignore_endpoint_case", case.clone());
        cache.insert("ignore_endpoint_case", case.clone());
        endpoints.insert("ignore_endpoint_case", case.clone());
        records.insert("ignore_endpoint_case", case.clone());
    }
    for field in FIELDS {
        let disabled = match field {
            "global_headers" | "global_headers_remove" => "global_headers_disabled",
            _ => "global_response_headers_disabled",
        };
        if let Some(value) = version.get(field).filter(|_| !is_on_version(disabled)) {
            chain.insert(field, value.clone());
        }
    }
    if let Some(target) = version.get("override_target").filter(|target| is_on(target)) {
        chain.insert("override_target", target.clone());
    }
    let extended = version.get("extended_paths").filter(|_| is_on_version("use_extended_paths"));
    match extended {
        Some(extended) => {
            let parts = [&mut guard, &mut chain, &mut cache, &mut endpoints, &mut records];
            extended_paths(api, (name, extended), parts, found);
        }
        None => old_paths(version, &mut guard),
    }
    Parts { guard, chain, cache, endpoints, records }
}

/// Adds the texts of templates that are in files.
fn add_templates(chain: &mut Node, scripts: &Scripts) {
    let Kind::Map(lists) = &mut chain.kind else { return };
    for (_, entries) in lists.iter_mut().filter(|(key, _)| matches!(&*key.text, "transform" | "transform_response")) {
        let Kind::Seq(entries) = &mut entries.kind else { continue };
        for entry in entries {
            let Kind::Map(fields) = &mut entry.kind else { continue };
            let data = fields.iter_mut().find(|(key, _)| &*key.text == "template_data").map(|(_, data)| data);
            let Some(data) = data else { continue };
            let source = data.get("template_source").and_then(Node::as_str).unwrap_or_default();
            if let Some(code) = scripts.get(source) {
                data.insert("template_text", text(code));
            }
        }
    }
}

fn extended_paths(
    api: &Definition,
    (version, extended): (&str, &Node),
    [guard, chain, cache, endpoints, records]: [&mut Node; 5],
    found: &mut Vec<Diagnostic>,
) {
    let is_disabled = |entry: &Node| entry.get("disabled").is_some_and(|node| node.kind == Kind::Bool(true));
    for (key, entries) in extended.as_map().unwrap_or_default() {
        let name = &*key.text;
        let live: Vec<Node> =
            entries.as_seq().unwrap_or_default().iter().filter(|entry| !is_disabled(entry)).cloned().collect();
        if live.is_empty() {
            continue;
        }
        let place = format!("version_data.versions.{version}.extended_paths.{name}");
        if let Some((_, reason)) = REFUSED.iter().find(|(known, _)| *known == name) {
            found.push(api.fault(&place, *reason));
        } else if OF_GUARD.contains(&name) {
            guard.insert(name, list(entries.mark, live));
        } else if OF_CHAIN.contains(&name) {
            chain.insert(name, list(entries.mark, live));
        } else if OF_CACHE.contains(&name) {
            if !api.flag("cache_options.enable_cache") {
                found.push(api.doubt(&place, "without effect: cache_options.enable_cache is not on"));
            }
            cache.insert(name, list(entries.mark, live));
        } else if OF_RECORDS.contains(&name) {
            records.insert(name, list(entries.mark, live));
        } else if name == "virtual" {
            endpoints.insert(name, list(entries.mark, live));
        } else if name == "validate_request" {
            found.push(api.doubt(&place, "no effect, as in Tyk: definitions in the OAS form alone validate requests"));
        } else {
            found.push(api.doubt(&place, "unknown list of paths"));
        }
    }
}

/// Paths of the old form, which hold for all methods.
fn old_paths(version: &Node, guard: &mut Node) {
    let Some(paths) = version.get("paths") else { return };
    for name in ["ignored", "black_list", "white_list"] {
        let entries = paths.get(name).and_then(Node::as_seq).unwrap_or_default();
        let entries = entries.iter().filter(|path| path.as_str().is_some());
        let entries = entries.map(|path| map(path.mark, [("path", path.clone()), ("any_method", flag(true))]));
        let entries: Vec<Node> = entries.collect();
        if !entries.is_empty() {
            guard.insert(name, list(version.mark, entries));
        }
    }
}

/// The end of an API in seconds since 1970; 0: never.
pub(super) fn expiry(api: &Definition, found: &mut Vec<Diagnostic>) -> i64 {
    let time = api.text("expiration").trim();
    if time.is_empty() || time == "-1" {
        return 0;
    }
    let parsed = jiff::civil::DateTime::strptime("%Y-%m-%d %H:%M", time).ok();
    match parsed.and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC).ok()) {
        Some(time) => time.timestamp().as_second(),
        None => {
            found.push(api.fault("expiration", format!("expected a time such as 2030-12-31 23:59, found '{time}'")));
            0
        }
    }
}
