//! Resources that are changed one by one: the same rules as for a whole document, and the same outcome.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_config::load::load_node;
use weir_config::{Diagnostic, ItemChange, Model, Node};

use crate::support::OPTIONS;

/// `routes/1: {uri: /a}` puts a resource in its place, `routes/1` takes it away.
fn change(text: &str) -> ItemChange {
    let (place, node) = match text.split_once(": ") {
        Some((place, node)) => (place, Some(Node::parse(node).expect("a tree").root)),
        None => (text, None),
    };
    ItemChange { key: place.parse().expect("a key"), node, left_out: false }
}

fn model(changes: &[&str]) -> Model {
    let changed = Model::default().change("t", changes.iter().copied().map(change).collect(), &OPTIONS);
    changed.unwrap_or_else(|found| panic!("{:?}", shown(&found))).model
}

fn shown(found: &[Diagnostic]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

const BASE: &[&str] = &[
    "ssls/cert: {type: client, cert: CERT, key: KEY}",
    "upstreams/u: {nodes: {'127.0.0.1:1': 1}}",
    "upstreams/tls: {nodes: {'127.0.0.1:1': 1}, scheme: https, tls: {client_cert_id: cert}}",
    "services/s: {upstream_id: u}",
    "plugin_configs/p: {plugins: {}}",
    "routes/r: {uri: /a, service_id: s, plugin_config_id: p}",
    "consumer_groups/g: {plugins: {}}",
    "consumers/jack: {group_id: g, credentials: [{id: c0}]}",
    "consumers/jack/credentials/c1: {}",
    "global_rules/1: {plugins: {}}",
];

fn base() -> Model {
    let pem = |kind: &str| format!("'-----BEGIN {kind}-----{}'", "x".repeat(128));
    let base: Vec<String> =
        BASE.iter().map(|text| text.replace("CERT", &pem("CERTIFICATE")).replace("KEY", &pem("PRIVATE KEY"))).collect();
    model(&base.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn changes_are_checked_like_documents() {
    let base = base();
    let cases: &[(&[&str], &[&str])] = &[
        (&["routes/new: {uri: /b, upstream_id: u}"], &[]),
        (&["routes/r: {uri: /b, upstream_id: u}"], &[]),
        (&["routes/r"], &[]),
        (&["routes/none"], &[]),
        (&["routes/r", "services/s", "plugin_configs/p", "upstreams/u"], &[]),
        (&["upstreams/tls", "ssls/cert"], &[]),
        (&["consumers/jack", "consumers/jack/credentials/c1", "consumer_groups/g"], &[]),
        // A resource may come before the one that it refers to.
        (&["routes/new: {uri: /b, service_id: n}", "services/n: {upstream_id: v}", "upstreams/v: {nodes: {}}"], &[]),
        (&["routes/r: {uri: /b, upstream_id: x}"], &["routes/r.upstream_id: there is no upstream with the id \"x\""]),
        (&["upstreams/u"], &["services/s.upstream_id: there is no upstream with the id \"u\""]),
        (
            &["services/s", "upstreams/u"],
            &["routes/r.service_id: there is no service with the id \"s\"; there are no services at all"],
        ),
        (
            &["plugin_configs/p"],
            &[
                "routes/r.plugin_config_id: there is no plugin config with the id \"p\"; there are no plugin_configs at all",
            ],
        ),
        (
            &["consumer_groups/g"],
            &[
                "consumers/jack.group_id: there is no consumer group with the id \"g\"; there are no consumer_groups at all",
            ],
        ),
        (
            &["ssls/cert"],
            &["upstreams/tls.tls.client_cert_id: there is no item of ssls with type: client and the id \"cert\""],
        ),
        (&["consumers/jack"], &["consumers/jack/credentials/c1: the consumer 'jack' of this credential is not there"]),
        (
            &["consumers/jill/credentials/c: {}"],
            &["consumers/jill/credentials/c: the consumer 'jill' of this credential is not there"],
        ),
        (&["routes/a: {id: b, uri: /b, upstream_id: u}"], &["routes/a.id: the id is b, but the item stands under a"]),
        (&["consumers/a: {username: b}"], &["consumers/a.username: the username is b, but the item stands under a"]),
        (
            &["consumers/jack/credentials/c: {id: d}"],
            &["consumers/jack/credentials/c.id: the id is d, but the item stands under jack/credentials/c"],
        ),
        (
            &["routes/r: {uri: 5, upstream_id: u}"],
            &["routes/r.uri: expected a text of 1 to 4096 characters, found 5; put it in quotes"],
        ),
        (&["plugin_metadata/no: {}"], &["plugin_metadata/no.id: there is no plugin \"no\""]),
        // A change that is refused is refused whole.
        (
            &["routes/new: {uri: /b, upstream_id: u}", "routes/r: {upstream_id: u}"],
            &["routes/r: a route needs uri or uris"],
        ),
    ];
    for (changes, expected) in cases {
        let changes: Vec<ItemChange> = changes.iter().copied().map(change).collect();
        let told = match base.change("", changes.clone(), &OPTIONS) {
            Ok(changed) => shown(&changed.warnings),
            Err(found) => shown(&found),
        };
        // Positions are those in each item's own text.
        let told: Vec<String> =
            told.iter().map(|t| t.trim_start_matches(|c: char| ":0123456789 ".contains(c)).into()).collect();
        assert_eq!(told, *expected, "{changes:?}");
    }
    assert_eq!(base.routes.ids().collect::<Vec<_>>(), ["r"]);
}

#[test]
fn credentials_belong_to_their_consumers() {
    let base = base();
    let ids = |model: &Model| {
        let jack = model.consumers.get("jack").expect("jack");
        jack.credentials.iter().map(|c| c.id.to_string()).collect::<Vec<_>>()
    };
    let after = |model: &Model, text: &str| {
        model.change("t", vec![change(text)], &OPTIONS).unwrap_or_else(|found| panic!("{:?}", shown(&found)))
    };
    assert_eq!(ids(&base), ["c0", "c1"]);
    let more = after(&base, "consumers/jack/credentials/c2: {}");
    assert_eq!(more.keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["consumers/jack"]);
    assert_eq!(ids(&more.model), ["c0", "c1", "c2"]);
    // One that stands beside its consumer goes before one of the same id within.
    assert_eq!(ids(&after(&more.model, "consumers/jack/credentials/c0: {}").model), ["c1", "c2", "c0"]);
    assert_eq!(ids(&after(&more.model, "consumers/jack/credentials/c1").model), ["c0", "c2"]);
    assert_eq!(ids(&after(&more.model, "consumers/jack: {desc: new}").model), ["c1", "c2"]);
    assert_eq!(ids(&base), ["c0", "c1"], "the model that was changed stays as it was");
}

/// Any sequence of changes comes to what the document of all items that are left would.
#[test]
fn a_sequence_of_changes_comes_to_the_document() {
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let mut model = Model::default();
        // In the order of their creation.
        let mut items: Vec<(String, String)> = Vec::new();
        let mut refused = 0;
        for _ in 0..300 {
            let mut wanted = items.clone();
            let changes: Vec<String> = (0..random.usize(1..4)).map(|_| random_change(&mut random)).collect();
            for text in &changes {
                let (place, node) = text.split_once(": ").map_or((text.as_str(), None), |(p, n)| (p, Some(n)));
                match (wanted.iter_mut().find(|(known, _)| known == place), node) {
                    (Some(item), Some(node)) => item.1 = node.to_owned(),
                    (None, Some(node)) => wanted.push((place.to_owned(), node.to_owned())),
                    (_, None) => wanted.retain(|(known, _)| known != place),
                }
            }
            let document = load_node("t", tree(&wanted), &OPTIONS).document;
            let changed = model.change("t", changes.iter().map(|text| change(text)).collect(), &OPTIONS);
            let found = changed.as_ref().err().map(|found| shown(found));
            assert_eq!(changed.is_ok(), document.is_some(), "{changes:?} to {items:?}: {found:?}");
            let (Ok(changed), Some(document)) = (changed, document) else {
                refused += 1;
                continue;
            };
            (model, items) = (changed.model, wanted);
            let routes: Vec<_> = model.routes.in_order().into_iter().map(|listed| &*listed.item).collect();
            assert_eq!(routes, document.routes.iter().map(AsRef::as_ref).collect::<Vec<_>>());
            let services: Vec<_> = model.services.in_order().into_iter().map(|listed| &*listed.item).collect();
            assert_eq!(services, document.services.iter().map(AsRef::as_ref).collect::<Vec<_>>());
            let consumers: Vec<_> = model.consumers.in_order().into_iter().map(|listed| &*listed.item).collect();
            assert_eq!(consumers, document.consumers.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        }
        assert!(refused > 10 && items.len() > 3, "{refused} refused, {} left", items.len());
    }
}

fn random_change(random: &mut Rng) -> String {
    let id = random.u8(1..5);
    let other = random.u8(1..5);
    let gone = random.u8(0..4) == 0;
    let place = match random.u8(0..5) {
        0 => format!("routes/{id}"),
        1 => format!("services/{id}"),
        2 => format!("upstreams/{id}"),
        3 => format!("consumers/{id}"),
        _ => format!("consumers/{id}/credentials/{other}"),
    };
    if gone {
        return place;
    }
    let node = match place.split('/').next() {
        Some("routes") if random.bool() => format!("{{uri: /{other}, upstream_id: {other}}}"),
        Some("routes") => format!("{{uri: /{other}, service_id: {other}}}"),
        Some("services") if random.bool() => format!("{{upstream_id: {other}}}"),
        Some("services") => format!("{{name: s{other}}}"),
        Some("upstreams") => format!("{{nodes: {{'127.0.0.1:{}': 1}}}}", other + 1),
        _ => format!("{{desc: d{other}}}"),
    };
    format!("{place}: {node}")
}

/// The document of these items.
fn tree(items: &[(String, String)]) -> Node {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    for (place, node) in items {
        let (section, id) = place.split_once('/').expect("a place");
        let key = if section == "consumers" && !id.contains('/') { "username" } else { "id" };
        let named = node.replacen('{', &format!("{{{key}: '{id}', "), 1);
        sections.entry(section).or_default().push_str(&format!("  - {named}\n"));
    }
    let text: String = sections.iter().map(|(section, items)| format!("{section}:\n{items}")).collect();
    Node::parse(if text.is_empty() { "{}" } else { &text }).expect("a document").root
}
