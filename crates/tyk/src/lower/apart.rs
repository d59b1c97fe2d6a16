//! Versions that are APIs of their own (`version_definition`): each is a route with the base API's listen path, and with the
//! middleware of the version's API. The base's own middleware holds for the base's own version alone, as in Tyk.

use std::collections::HashMap;

use weir_config::{Diagnostic, Mark, Node};

use super::{flag, list, map, text};
use crate::definition::Definition;

/// The field.
pub(super) const FIELD: &str = "version_definition";
/// Name of the base API among its versions.
const SELF: &str = "self";

/// A route at the listen path of a base API.
pub(super) struct Version {
    /// The API, as a classic one with this version alone.
    pub(super) api: Definition,
    /// Name of the version; none for the route of requests that no other takes.
    pub(super) name: Option<String>,
    /// Conditions of the route.
    pub(super) vars: Option<Node>,
    /// Segment of the path behind the listen path that names the version.
    pub(super) segment: Option<String>,
}

/// Ids and names of the APIs that are versions of others.
pub(super) fn referred(apis: &[Definition]) -> Vec<&str> {
    let based = apis.iter().filter(|api| api.flag("version_definition.enabled"));
    let versions = based.filter_map(|api| api.at("version_definition.versions").and_then(Node::as_map));
    versions.flatten().filter_map(|(_, id)| id.as_str()).collect()
}

/// The routes of an API with versions, the last of which takes requests that name none, or one that is not known.
pub(super) fn versions(base: &Definition, apis: &[Definition], found: &mut Vec<Diagnostic>) -> Vec<Version> {
    let known = |api: &&Definition, id: &str| api.text("api_id") == id || api.text("name") == id;
    let of = |field: &str| base.text(&format!("{FIELD}.{field}"));
    let location = match of("location") {
        known @ ("header" | "url-param" | "url") => known,
        other => {
            let text = format!("expected one of: header, url-param, url; found '{other}'");
            found.push(base.fault("version_definition.location", text));
            return Vec::new();
        }
    };
    let key = if of("key").is_empty() { "x-api-version" } else { of("key") };
    let own = Some(of("name")).filter(|name| !name.is_empty()).unwrap_or(SELF);
    let mut targets: Vec<(&str, &Definition)> = vec![(own, base)];
    for (name, id) in base.at("version_definition.versions").and_then(Node::as_map).unwrap_or_default() {
        let id = id.as_str().unwrap_or_default();
        match apis.iter().find(|api| known(api, id)) {
            Some(api) if std::ptr::eq(api, base) => {}
            Some(api) => targets.push((&name.text, api)),
            None => {
                let text = format!("{}: no API has the id '{id}': requests for this version are refused", name.text);
                found.push(base.doubt("version_definition.versions", text));
            }
        }
    }
    let default = if of("default") == SELF { own } else { of("default") };
    let rest = targets.iter().find(|(name, _)| *name == default);
    if rest.is_none() && !default.is_empty() {
        let text = format!("no version has the name '{default}': requests without a version are refused");
        found.push(base.doubt("version_definition.default", text));
    }
    let mark = base.node.mark;
    let place = Place { base, location, key, strips: of_flags(base), mark };
    let mut made = Vec::new();
    for (name, target) in &targets {
        let condition = match location {
            "header" => Some(format!("http_{}", key.to_ascii_lowercase().replace('-', "_"))),
            "url-param" => Some(format!("arg_{key}")),
            _ => None,
        };
        let condition = condition.map(|variable| list(mark, vec![text(&variable), text("=="), text(name)]));
        made.push(Version {
            api: place.put(target, name, true),
            name: Some((*name).to_owned()),
            vars: condition.map(|condition| list(mark, vec![condition])),
            segment: (location == "url").then(|| (*name).to_owned()),
        });
    }
    let (name, target) = rest.copied().unwrap_or((own, base));
    made.push(Version { api: place.put(target, name, rest.is_some()), name: None, vars: None, segment: None });
    made
}

/// True if the version is taken out of requests.
fn of_flags(base: &Definition) -> bool {
    base.flag("version_definition.strip_versioning_data") || base.flag("version_definition.strip_path")
}

/// The base, and the place of versions in requests.
struct Place<'d> {
    base: &'d Definition,
    location: &'d str,
    key: &'d str,
    strips: bool,
    mark: Mark,
}

impl Place<'_> {
    /// The definition of an API at the base's listen path, as a classic one with this version. It is the default one, or none is.
    fn put(&self, api: &Definition, name: &str, is_default: bool) -> Definition {
        let mut node = api.node.clone();
        let versions = api.at("version_data.versions").and_then(Node::as_map).unwrap_or_default();
        let content = versions.iter().find(|(key, _)| &*key.text == "Default").or(versions.first());
        let mut content = content.map_or_else(|| map(self.mark, []), |(_, content)| content.clone());
        content.insert("name", text(name));
        content.insert("expires", text(""));
        let content = map(self.mark, [(name, content)]);
        node.insert("version_data", map(self.mark, [("not_versioned", flag(false)), ("versions", content)]));
        let mut definition = map(self.mark, [("location", text(self.location)), ("key", text(self.key))]);
        definition.insert("strip_versioning_data", flag(self.strips));
        definition.insert("fallback_to_default", flag(self.base.flag("version_definition.fallback_to_default")));
        if is_default {
            definition.insert("default", text(name));
        }
        if let Some(pattern) = self.base.at("version_definition.url_versioning_pattern") {
            definition.insert("url_versioning_pattern", pattern.clone());
        }
        definition.insert("of_apis", flag(true));
        node.insert("definition", definition);
        for field in ["listen_path", "strip_listen_path"] {
            let value = self.base.at(&format!("proxy.{field}")).cloned();
            if let (Some(proxy), Some(value)) = (node.get_mut("proxy"), value) {
                proxy.insert(field, value);
            }
        }
        for field in ["domain", "domain_disabled"] {
            match self.base.at(field) {
                Some(value) => node.insert(field, value.clone()),
                None => drop(node.remove(field)),
            }
        }
        Definition { file: api.file.clone(), node }
    }
}

/// Numbers of versions by the ids of their routes, so that each has one of its own.
#[derive(Default)]
pub(super) struct Numbers(HashMap<String, usize>);

impl Numbers {
    /// The id of the route of a version.
    pub(super) fn id(&mut self, base: &str) -> String {
        let number = self.0.entry(base.to_owned()).or_default();
        *number += 1;
        format!("{base}.version.{number}")
    }
}
