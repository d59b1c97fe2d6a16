//! A family beside APISIX's, in the form that `CONTRIBUTING.md` describes: its documents are recognised, lowered and
//! checked, and findings speak of them in the family's own words.

use std::sync::Arc;

use weir_config::env::Variables;
use weir_config::load::{items, load_node};
use weir_config::node::{Key, Kind};
use weir_config::{
    Apisix, Code, Diagnostic, Entity, FrontEnd, InvalidItems, LoadOptions, Loaded, Lowered, Node, ResourceKind, load,
};

use crate::support::OPTIONS;

/// A list of sites, each of which has paths and a server: `sites: [{name, paths, server}]`.
#[derive(Debug)]
struct Sites;

impl FrontEnd for Sites {
    fn recognises(&self, root: &Node) -> bool {
        root.get("sites").is_some()
    }

    fn lower(&self, root: Node, _: Variables<'_>, found: &mut Vec<Diagnostic>) -> Lowered {
        let mut lowered = Lowered::new(root.mark);
        for (index, site) in root.get("sites").and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
            let path = format!("sites[{index}]");
            let Some(name) = site.get("name").and_then(Node::as_str) else {
                found.push(Diagnostic::error(site.mark, path, Code::FamilyRule { text: "a site needs a name".into() }));
                continue;
            };
            let mut route = Node { mark: site.mark, kind: Kind::Map(Vec::new()) };
            route.insert("id", Node::new(Kind::Str(name.to_owned())));
            for (field, written) in [("uris", "paths"), ("plugins", "plugins")] {
                if let Some(value) = site.get(written) {
                    route.insert(field, value.clone());
                }
            }
            if let Some(server) = site.get("server") {
                let node = (Key { text: server.as_str().unwrap_or_default().into(), mark: server.mark }, one());
                let mut upstream = Node { mark: server.mark, kind: Kind::Map(Vec::new()) };
                upstream.insert("nodes", Node { mark: server.mark, kind: Kind::Map(vec![node]) });
                route.insert("upstream", upstream);
            }
            let fields = vec![("uris", "paths"), ("upstream.nodes", "server")];
            lowered.add(
                ResourceKind::Routes,
                route,
                Entity { kind: "site", id: name.to_owned(), path, fields, ..Entity::default() },
            );
        }
        lowered
    }
}

fn one() -> Node {
    Node::new(Kind::Int(1))
}

const FRONT_ENDS: &[&dyn FrontEnd] = &[&Sites, &Apisix];

fn read(text: &str, invalid_items: InvalidItems) -> Loaded {
    load("t", text.as_bytes(), &LoadOptions { invalid_items, front_ends: FRONT_ENDS, ..OPTIONS })
}

#[test]
fn a_document_is_lowered() {
    let text =
        "sites:\n- {name: a, paths: [/a, /b/*], server: '127.0.0.1:80'}\n- {name: b, paths: [/c], plugins: {}}\n";
    let loaded = read(text, InvalidItems::Refuse);
    assert_eq!(loaded.diagnostics, []);
    let document = loaded.document.expect("a document");
    let ids: Vec<_> = document.routes.iter().map(|route| route.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let origin = &document.routes[1].origin;
    assert_eq!((origin.path.to_string().as_str(), origin.mark.line), ("sites[1]", 3));
    let entity = origin.entity.as_ref().map(Arc::as_ref).expect("an entity");
    assert_eq!((entity.kind, entity.id.as_str()), ("site", "b"));
    let written = items(text.as_bytes(), ResourceKind::Routes, &|_| None, FRONT_ENDS);
    let written: Vec<_> = written.iter().map(|item| (item.path.as_str(), item.id.as_str())).collect();
    assert_eq!(written, [("sites[0]", "a"), ("sites[1]", "b")]);
}

#[test]
fn findings_speak_of_the_document_as_written() {
    let cases: &[(&str, &[&str])] = &[
        ("sites: [{name: a, paths: [1], plugins: {}}]", &["t:1:27: sites[0].paths[0]: expected a text"]),
        ("sites: [{name: a, paths: [/a], server: 'no node'}]", &["t:1:40: sites[0].server[\"no node\"]: "]),
        (
            "sites: [{name: a, paths: [/a], plugins: {mocking: {old: 1}, limit-count: {}}}]",
            &[
                "t:1:57: warning: sites[0].plugins.mocking.old: this field has no effect",
                "t:1:74: sites[0].plugins.limit-count: ",
                "t:1:74: sites[0].plugins.limit-count: ",
            ],
        ),
        ("sites: [{name: a, paths: [/a]}]", &["t:1:9: sites[0]: "]),
        ("sites: [{paths: [/a]}]", &["t:1:9: sites[0]: a site needs a name"]),
        ("sites: [{name: a, name: b, paths: [/a], plugins: {}}]", &["t:1:19: sites[0].name: "]),
    ];
    for (text, expected) in cases {
        let loaded = read(text, InvalidItems::Refuse);
        let found: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        let fits = found.len() == expected.len() && found.iter().zip(*expected).all(|(f, e)| f.starts_with(e));
        assert!(fits, "{text}: {found:#?}");
        assert_eq!(loaded.document.is_none(), found.iter().any(|found| !found.contains("warning")), "{text}");
    }
}

#[test]
fn an_invalid_entity_is_dropped_under_its_own_name() {
    let text = "sites: [{name: a, paths: [/a], plugins: {limit-count: {}}}, {name: b, paths: [/b], plugins: {}}]";
    let loaded = read(text, InvalidItems::Skip);
    let dropped: Vec<_> = loaded.dropped.iter().map(|item| (item.path.as_str(), item.id.as_deref())).collect();
    assert_eq!(dropped, [("sites[0]", Some("a"))]);
    let document = loaded.document.expect("a document");
    let places: Vec<_> = document.routes.iter().map(|route| route.origin.path.to_string()).collect();
    assert_eq!(places, ["sites[0]", "sites[1]"], "the place of the first is kept");
    assert!(read("sites: [{paths: [/a]}]", InvalidItems::Skip).document.is_none(), "a site without a name refuses all");
}

#[test]
fn other_documents_are_read_as_before() {
    let apisix = "routes: [{id: a, uri: /a, plugins: {}}]\n#END\n";
    assert!(read(apisix, InvalidItems::Refuse).document.is_some());
    let other = read("openapi: 3.1.0\n", InvalidItems::Refuse);
    assert_eq!(other.diagnostics[0].to_string(), "t:1:1: openapi: not a rules file: this is an OpenAPI description");
    let sites = load("t", b"sites: []\n", &OPTIONS);
    let told = "t:1:1: not a rules file: this is none of the known kinds of file";
    assert!(sites.diagnostics[0].to_string().starts_with(told), "{:?}", sites.diagnostics);
    let nothing = LoadOptions { front_ends: &[], ..OPTIONS };
    assert!(load("t", apisix.as_bytes(), &nothing).diagnostics[0].to_string().starts_with(told));
    // The resources of a store are in the form of the model, whatever the families.
    assert!(load_node("", Node::parse(apisix).expect("a tree").root, &nothing).document.is_some());
}
