//! Single items: what can be told of one without the others.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::item::{Item, item_path, readable_id};
use super::rules::drop_nulls;
use super::{LoadOptions, Loader};
use crate::diagnostic::Diagnostic;
use crate::env::{Variables, substitute};
use crate::node::{Kind, Node};
use crate::resource::{
    Consumer, ConsumerGroup, GlobalRule, PluginConfig, PluginMetadata, Proto, Route, SecretManager, Service, Ssl,
    Upstream,
};

/// Checks an item of a section, with its plugins, but not whether what it refers to exists. Paths are relative to the
/// item. A section that there is not has no items: `None`.
pub fn check_item(section: &str, node: Node, options: &LoadOptions<'_>) -> Option<Vec<Diagnostic>> {
    let mut loader = Loader::new(options);
    match section {
        "routes" => drop(loader.item::<Route>(0, node)),
        "services" => drop(loader.item::<Service>(0, node)),
        "upstreams" => drop(loader.item::<Upstream>(0, node)),
        "consumers" => drop(loader.item::<Consumer>(0, node)),
        "consumer_groups" => drop(loader.item::<ConsumerGroup>(0, node)),
        "plugin_configs" => drop(loader.item::<PluginConfig>(0, node)),
        "global_rules" => drop(loader.item::<GlobalRule>(0, node)),
        "protos" => drop(loader.item::<Proto>(0, node)),
        "ssls" => drop(loader.item::<Ssl>(0, node)),
        "secrets" => drop(loader.item::<SecretManager>(0, node)),
        "credentials" => {
            let id = node.get("id").and_then(readable_id).unwrap_or_default();
            drop(loader.lone_credential(0, node, id.rsplit('/').next().unwrap_or_default()));
        }
        PluginMetadata::SECTION => {
            let mut root = Node::empty_map();
            root.insert(section, Node::new(Kind::Seq(vec![node])));
            drop(loader.metadata(&mut root));
        }
        _ => return None,
    }
    // Whether a secret is what it has to be, nobody knows yet.
    let left = std::mem::take(&mut loader.left_references);
    loader.found.retain(|found| !left.contains(&found.path));
    // A credential that stands alone is read as an item of the consumers.
    let listed = if section == "credentials" { "consumers" } else { section };
    let prefix = format!("{listed}[0]");
    for found in &mut loader.found {
        if let Some(rest) = found.path.strip_prefix(&prefix) {
            found.path = rest.trim_start_matches('.').to_owned();
        }
    }
    let revealed = std::mem::take(&mut loader.revealed);
    Some(loader.found.into_iter().map(|found| revealed.redact(found)).collect())
}

/// An item of a section as it is in force: with its defaults, nodes as a list with their ports. Plugins'
/// configurations stay as they were written, references to the environment and to secrets too. `None` for what is no
/// valid item.
pub fn in_force(section: &str, node: &Node) -> Option<Value> {
    match section {
        "routes" => typed::<Route>(node),
        "services" => typed::<Service>(node),
        "upstreams" => typed::<Upstream>(node),
        "consumer_groups" => typed::<ConsumerGroup>(node),
        "plugin_configs" => typed::<PluginConfig>(node),
        "global_rules" => typed::<GlobalRule>(node),
        _ => None,
    }
}

fn typed<T: Item + Serialize + DeserializeOwned + JsonSchema>(node: &Node) -> Option<Value> {
    let mut node = node.clone();
    drop_nulls(&mut node, "", &mut Vec::new());
    let mut item = node.parse_into::<T>().ok()?;
    item.complete();
    serde_json::to_value(item).ok()
}

/// An item as it was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Where it stands: `routes[3]`.
    pub path: String,
    /// Its id: the one that it has, or the one that it gets.
    pub id: String,
    /// All of it, with its id.
    pub node: Node,
}

/// The items of a section of a rules file that was loaded before; of several with one id the one that holds. Empty for
/// a text that is no rules file.
pub fn items(text: &[u8], section: &str, variables: Variables<'_>) -> Vec<Written> {
    let Ok(text) = std::str::from_utf8(text) else { return Vec::new() };
    let substituted = substitute(text.strip_prefix('\u{feff}').unwrap_or(text), variables);
    let Ok(mut parsed) = Node::parse(&substituted.text) else { return Vec::new() };
    let Some((_, list)) = parsed.root.remove(section) else { return Vec::new() };
    let nodes = match list.kind {
        Kind::Seq(nodes) => nodes,
        Kind::Map(entries) if section == PluginMetadata::SECTION => {
            entries.into_iter().map(super::document::with_id).collect()
        }
        _ => return Vec::new(),
    };
    let mut found: Vec<Written> = Vec::with_capacity(nodes.len());
    for (index, mut node) in nodes.into_iter().enumerate() {
        let named = ["username", "id"].into_iter().find_map(|name| readable_id(node.get(name)?));
        let id = named.unwrap_or_else(|| format!("arr_{}", index + 1));
        if section != Consumer::SECTION {
            node.insert("id", Node { mark: node.mark, kind: Kind::Str(id.clone()) });
        }
        found.push(Written { path: item_path(section, index), id, node });
    }
    let mut held: HashMap<String, usize> = HashMap::with_capacity(found.len());
    for (at, item) in found.iter().enumerate() {
        held.insert(item.id.clone(), at);
    }
    let mut at = 0;
    found.retain(|item| {
        at += 1;
        held.get(&item.id) == Some(&(at - 1))
    });
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{check_item, in_force, items};
    use crate::LoadOptions;
    use crate::node::Node;

    fn tree(text: &str) -> Node {
        Node::parse(text).expect("a tree").root
    }

    #[test]
    fn an_item_is_checked_without_what_it_refers_to() {
        let options = LoadOptions::PLAIN;
        let cases: &[(&str, &str, &[&str])] = &[
            ("routes", "{uri: /a, upstream_id: nowhere}", &[]),
            ("routes", "{uri: 1, upstream_id: u}", &["uri"]),
            ("upstreams", "{nodes: {127.0.0.1: no}}", &["nodes[\"127.0.0.1\"]"]),
            ("consumers", "{username: jack, group_id: none}", &[]),
            ("consumers", "{username: j j}", &["username"]),
            ("credentials", "{id: jack/credentials/c1, plugins: {}}", &[]),
            ("credentials", "{id: jack/credentials/c1, plugins: 1}", &["plugins"]),
            ("plugin_metadata", "{id: nothing}", &["id"]),
            ("ssls", "{snis: [], cert: 1}", &["", "cert", "snis"]),
        ];
        for (section, item, paths) in cases {
            let found = check_item(section, tree(item), &options).expect("a section");
            let mut errors: Vec<_> =
                found.iter().filter(|found| found.is_error()).map(|found| found.path.as_str()).collect();
            errors.sort_unstable();
            assert_eq!(errors, *paths, "{section} {item}: {found:?}");
        }
        assert!(check_item("foos", tree("{}"), &options).is_none());
    }

    #[test]
    fn items_are_told_as_they_are_in_force() {
        let text = "routes:\n- {uri: /a, upstream: {nodes: {127.0.0.1: 1}}, plugins: {p: {key: $env://K}}}\n\
                    - {id: r, uri: /b, upstream_id: u}\n- {id: r, uri: /c, upstream_id: ${{U}}}\n#END\n";
        let found = items(text.as_bytes(), "routes", &|name| (name == "U").then(|| "v".to_owned()));
        let ids: Vec<_> = found.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["arr_1", "r"]);
        assert_eq!(found[1].path, "routes[2]");
        let first = in_force("routes", &found[0].node).expect("a route");
        assert_eq!(first["id"], "arr_1");
        assert_eq!(first["priority"], 0);
        assert_eq!(first["plugins"]["p"]["key"], "$env://K");
        let node = json!([{ "host": "127.0.0.1", "port": 80, "weight": 1, "priority": 0 }]);
        assert_eq!(first["upstream"]["nodes"], node);
        let second = in_force("routes", &found[1].node).expect("a route");
        assert_eq!((&second["uri"], &second["upstream_id"]), (&json!("/c"), &json!("v")));
        let metadata = items(b"plugin_metadata: {cors: {a: 1}}\n", "plugin_metadata", &|_| None);
        assert_eq!(metadata[0].id, "cors");
        assert!(items(b"{", "routes", &|_| None).is_empty());
    }
}
