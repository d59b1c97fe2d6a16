//! Single items: checks, schemas and listings that need no other item.

use std::collections::HashMap;

use serde_json::Value;

use super::item::{item_path, readable_id};
use super::kinds::Item;
use super::{LoadOptions, Loader};
use crate::diagnostic::Diagnostic;
use crate::env::{Variables, substitute};
use crate::front_end::{Family, FrontEnd, Lowered, reading};
use crate::kind::{ResourceKind, with_type};
use crate::node::{Kind, Node};

/// Checks an item of a kind, with its plugins, but not whether what it refers to exists. Paths are relative to the
/// item. Of a kind that is not supported there are no items: `None`.
pub fn check_item(kind: ResourceKind, node: Node, options: &LoadOptions<'_>) -> Option<Vec<Diagnostic>> {
    let mut loader = Loader::new(options);
    with_type!(kind, T => { T::read_listed(&mut loader, 0, node); }, else return None);
    // The rules for a secret cannot be checked before its value is there.
    let left = std::mem::take(&mut loader.left_references);
    loader.found.retain(|found| !left.contains(&found.path));
    let prefix = item_path(kind, 0);
    for found in &mut loader.found {
        if let Some(rest) = found.path.strip_prefix(&prefix) {
            found.path = rest.trim_start_matches('.').to_owned();
        }
    }
    let revealed = std::mem::take(&mut loader.revealed);
    Some(loader.found.into_iter().map(|found| revealed.redact(found)).collect())
}

/// An item of a kind as it is in force: with its defaults, nodes as a list with their ports. Plugins'
/// configurations stay as they were written, references to the environment and to secrets too. `None` for what is no
/// valid item.
pub fn in_force(kind: ResourceKind, node: &Node) -> Option<Value> {
    with_type!(kind, T => T::in_force(node), else None)
}

/// The JSON Schema of a kind, with the rules that its type cannot express; `None` for a kind that is not supported.
pub fn schema_of(kind: ResourceKind) -> Option<Value> {
    with_type!(kind, T => Some(T::schema()), else None)
}

/// An item as it was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Path in the document: `routes[3]`.
    pub path: String,
    /// Id of the item, as written or as assigned.
    pub id: String,
    /// The whole item, with its id.
    pub node: Node,
}

/// A document that was loaded before, in the form of the model, and its family. `None` for a text that no front end reads.
pub fn lowered(
    text: &[u8],
    variables: Variables<'_>,
    front_ends: &[&dyn FrontEnd],
) -> Option<(&'static Family, Lowered)> {
    let text = std::str::from_utf8(text).ok()?;
    let substituted = substitute(text.strip_prefix('\u{feff}').unwrap_or(text), variables);
    let parsed = Node::parse(&substituted.text).ok()?;
    let front_end = reading(front_ends, &parsed.root)?;
    Some((front_end.family(), front_end.lower(parsed.root, variables, &mut Vec::new())))
}

/// The items of a kind in a document that was loaded before; of several with one id the one that holds. Empty for a text
/// that no front end reads.
pub fn items(text: &[u8], kind: ResourceKind, variables: Variables<'_>, front_ends: &[&dyn FrontEnd]) -> Vec<Written> {
    let Some((_, Lowered { mut root, origins })) = lowered(text, variables, front_ends) else { return Vec::new() };
    let Some((_, list)) = root.remove(kind.directory()) else { return Vec::new() };
    let nodes = match list.kind {
        Kind::Seq(nodes) => nodes,
        Kind::Map(entries) if kind == ResourceKind::PluginMetadata => {
            entries.into_iter().map(super::document::with_id).collect()
        }
        _ => return Vec::new(),
    };
    let mut found: Vec<Written> = Vec::with_capacity(nodes.len());
    for (index, mut node) in nodes.into_iter().enumerate() {
        let named = ["username", "id"].into_iter().find_map(|name| readable_id(node.get(name)?));
        let id = named.unwrap_or_else(|| format!("arr_{}", index + 1));
        if kind.directory() != ResourceKind::Consumers.directory() {
            node.insert("id", Node { mark: node.mark, kind: Kind::Str(id.clone()) });
        }
        let path = item_path(kind, index);
        let path = origins.find(&path).map_or(path, |(_, written)| written);
        found.push(Written { path, id, node });
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
    use crate::kind::ResourceKind;
    use crate::node::Node;
    use crate::{Apisix, FrontEnd, LoadOptions};

    const APISIX: &[&dyn FrontEnd] = &[&Apisix];

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
            ("stream_routes", "{upstream: {nodes: {\"a:1\": 1}}}", &[]),
            ("stream_routes", "{server_port: 0, protocol: {name: redis}}", &["protocol", "server_port"]),
            ("ssls", "{snis: [], cert: 1}", &["", "cert", "snis"]),
        ];
        for (section, item, paths) in cases {
            let kind = ResourceKind::named(section).expect("a kind");
            let found = check_item(kind, tree(item), &options).expect("a supported kind");
            let mut errors: Vec<_> =
                found.iter().filter(|found| found.is_error()).map(|found| found.path.as_str()).collect();
            errors.sort_unstable();
            assert_eq!(errors, *paths, "{section} {item}: {found:?}");
        }
    }

    #[test]
    fn items_are_told_as_they_are_in_force() {
        let text = "routes:\n- {uri: /a, upstream: {nodes: {127.0.0.1: 1}}, plugins: {p: {key: $env://K}}}\n\
                    - {id: r, uri: /b, upstream_id: u}\n- {id: r, uri: /c, upstream_id: ${{U}}}\n#END\n";
        let found = items(text.as_bytes(), ResourceKind::Routes, &|name| (name == "U").then(|| "v".to_owned()), APISIX);
        let ids: Vec<_> = found.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["arr_1", "r"]);
        assert_eq!(found[1].path, "routes[2]");
        let first = in_force(ResourceKind::Routes, &found[0].node).expect("a route");
        assert_eq!(first["id"], "arr_1");
        assert_eq!(first["priority"], 0);
        assert_eq!(first["plugins"]["p"]["key"], "$env://K");
        let node = json!([{ "host": "127.0.0.1", "port": 80, "weight": 1, "priority": 0 }]);
        assert_eq!(first["upstream"]["nodes"], node);
        let second = in_force(ResourceKind::Routes, &found[1].node).expect("a route");
        assert_eq!((&second["uri"], &second["upstream_id"]), (&json!("/c"), &json!("v")));
        let metadata = items(b"plugin_metadata: {cors: {a: 1}}\n", ResourceKind::PluginMetadata, &|_| None, APISIX);
        assert_eq!(metadata[0].id, "cors");
        assert!(items(b"{", ResourceKind::Routes, &|_| None, APISIX).is_empty());
    }
}
