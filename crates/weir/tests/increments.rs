//! Snapshots that are made from the one before answer as those do that are compiled whole: its own program, since it
//! drives the data plane from within.
#![allow(clippy::disallowed_methods, reason = "a test has no worker clock to take its limit from")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use weir_config::load::load_node;
use weir_config::node::Kind;
use weir_config::settings::SettingsSource;
use weir_config::{Diagnostic, InvalidItems, ItemChange, LoadOptions, Model, Node, PluginCatalog, Settings};
use weir_plugin::host::Definition;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};
use weir_proxy::{Catalog, Compiler, DataPlane, ExplainRequest, Snapshot};
use weir_telemetry::access_log::AccessLogs;
use weir_telemetry::metrics::{Metrics, MetricsOptions};

/// Number of changes in a row; [`SEEDS`] is the number of such rows.
const CHANGES: usize = 150;
const SEEDS: u64 = 6;

fn settings() -> Settings {
    let flags = [("listen.http", "127.0.0.1:0"), ("listen.https", "127.0.0.1:0"), ("workers", "1")]
        .map(|(path, value)| (path.to_owned(), value.to_owned()));
    Settings::load(SettingsSource { flags: &flags, ..SettingsSource::default() }).expect("settings").0
}

fn options(plugins: &dyn PluginCatalog) -> LoadOptions<'_> {
    LoadOptions { plugins, ..LoadOptions::PLAIN }
}

/// A data plane with one worker, and a connection to it.
struct Plane {
    plane: DataPlane,
    client: TcpStream,
}

impl Plane {
    fn start(settings: &Settings) -> Self {
        let metrics = Metrics::new(MetricsOptions::default());
        let plane = DataPlane::start(settings, Vec::new(), &metrics, &AccessLogs::default(), None).expect("start");
        let address: SocketAddr = plane.addresses()[0].address.tcp().expect("an address and a port");
        let client = TcpStream::connect(address).expect("connect");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        Self { plane, client }
    }

    fn serve(&mut self, snapshot: &std::sync::Arc<Snapshot>) {
        self.plane.apply(std::sync::Arc::clone(snapshot));
        let limit = Instant::now() + Duration::from_secs(20);
        while !self.plane.serves(snapshot.revision()) {
            assert!(Instant::now() < limit, "the worker does not take the snapshot");
            std::thread::yield_now();
        }
        self.plane.retire();
    }

    /// The answer to a request, without its date.
    fn ask(&mut self, (host, path, key): (&str, &str, &str)) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\napikey: {key}\r\n\r\n");
        self.client.write_all(request.as_bytes()).expect("send");
        let mut held = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let read = self.client.read(&mut piece).expect("receive");
            held.extend_from_slice(&piece[..read]);
            let text = String::from_utf8_lossy(&held);
            assert!(read > 0, "closed after {text}");
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            if length.is_some_and(|length| length.parse() == Ok(body.len())) {
                let head: Vec<&str> = head.lines().filter(|line| !line.starts_with("Date: ")).collect();
                return format!("{}\n\n{body}", head.join("\n"));
            }
        }
    }
}

/// Resources in the order of their creation: `routes/1` and its text.
type Resources = Vec<(String, String)>;

fn change((place, node): &(String, Option<String>)) -> ItemChange {
    let node = node.as_ref().map(|text| Node::parse(text).expect("a tree").root);
    ItemChange { key: place.parse().expect("a key"), node, left_out: false }
}

/// Compiles all there is from the document of it.
fn whole(
    compiler: &Compiler,
    resources: &Resources,
    options: &LoadOptions<'_>,
    revision: u64,
) -> Result<std::sync::Arc<Snapshot>, Vec<Diagnostic>> {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    for (place, node) in resources {
        let (section, id) = place.split_once('/').expect("a place");
        let key = if section == "consumers" && !id.contains('/') { "username" } else { "id" };
        let named = node.replacen('{', &format!("{{{key}: '{id}', "), 1);
        sections.entry(section).or_default().push_str(&format!("  - {named}\n"));
    }
    let text: String = sections.iter().map(|(section, items)| format!("{section}:\n{items}")).collect();
    let root = Node::parse(if text.is_empty() { "{}" } else { &text }).expect("a document").root;
    let loaded = load_node("t", root, options);
    let Some(document) = loaded.document else { return Err(loaded.diagnostics) };
    compiler.compile(&Model::from(document), InvalidItems::Refuse, revision).map(|compiled| compiled.snapshot)
}

/// A resource that comes, changes or goes. Few ids, so that much refers to each other, and some of it to nothing.
fn random_change(random: &mut Rng) -> (String, Option<String>) {
    let id = random.u8(1..6);
    let section = random.choice(SECTIONS).expect("a section");
    let place = match *section {
        "consumers/credentials" => format!("consumers/c{id}/credentials/d{}", random.u8(1..3)),
        "consumers" => format!("consumers/c{id}"),
        "plugin_metadata" => "plugin_metadata/limit-count".to_owned(),
        section => format!("{section}/{id}"),
    };
    if random.u8(0..4) == 0 {
        return (place, None);
    }
    let (other, another) = (random.u8(1..6), random.u8(1..6));
    let mut fields: Vec<String> = Vec::new();
    let maybe = |random: &mut Rng, fields: &mut Vec<String>, share: u8, text: String| {
        if random.u8(0..100) < share {
            fields.push(text);
        }
    };
    let nodes = |random: &mut Rng| {
        let nodes: Vec<String> =
            (0..random.u8(1..3)).map(|n| format!("'127.0.0.1:{}': 1", 10 + n * 10 + other)).collect();
        let checks = if random.u8(0..5) == 0 { ", checks: {active: {healthy: {interval: 1000}}}" } else { "" };
        format!("nodes: {{{}}}, retries: {another}{checks}", nodes.join(", "))
    };
    match *section {
        "routes" => {
            let uri = random.choice(["/a", "/b", "/a/*", "/b/*", "/*"]).expect("a path");
            fields.push(format!("uri: {uri}, priority: {}", random.u8(0..3)));
            maybe(random, &mut fields, 30, format!("host: h{another}.test"));
            maybe(random, &mut fields, 40, format!("service_id: '{other}'"));
            maybe(random, &mut fields, 30, format!("plugin_config_id: '{another}'"));
            maybe(random, &mut fields, 10, "status: 0".to_owned());
            maybe(random, &mut fields, 20, format!("methods: [{}]", if other < 3 { "GET" } else { "POST" }));
            match random.u8(0..3) {
                0 => fields.push(format!("upstream_id: '{other}'")),
                1 => {
                    let nodes = nodes(random);
                    fields.push(format!("upstream: {{{nodes}}}"));
                }
                _ => {}
            }
            fields.push(plugins(random));
        }
        "services" => {
            maybe(random, &mut fields, 50, format!("name: n{other}"));
            maybe(random, &mut fields, 30, format!("hosts: [h{another}.test]"));
            match random.u8(0..3) {
                0 => fields.push(format!("upstream_id: '{other}'")),
                1 => {
                    let nodes = nodes(random);
                    fields.push(format!("upstream: {{{nodes}}}"));
                }
                _ => {}
            }
            fields.push(plugins(random));
        }
        "upstreams" => fields.push(nodes(random)),
        "plugin_configs" => fields.push(plugins(random)),
        "protos" => fields.push(format!("content: 'message M{other} {{}}'")),
        "consumer_groups" => {
            fields.push(format!("plugins: {{mocking: {{response_example: 'group {id} {other} $consumer_group_id'}}}}"));
        }
        "consumers" => {
            maybe(random, &mut fields, 40, format!("group_id: '{other}'"));
            maybe(random, &mut fields, 30, format!("labels: {{custom_id: x{another}}}"));
            let own = match random.u8(0..4) {
                0 => format!("mocking: {{response_example: '$consumer_name {other}'}}"),
                // Sometimes one that another consumer has.
                1 => format!("key-auth: {{key: k{other}}}"),
                _ => format!("key-auth: {{key: k{id}}}"),
            };
            fields.push(format!("plugins: {{{own}}}"));
        }
        "consumers/credentials" => fields.push(format!("plugins: {{key-auth: {{key: d{id}}}}}")),
        "global_rules" => {
            let plugin = match id {
                1 | 2 => format!("response-rewrite: {{headers: {{set: {{X-Global: 'g{id} {other}'}}}}}}"),
                3 => format!("traffic-split: {{rules: [{{weighted_upstreams: [{{upstream_id: '{other}'}}]}}]}}"),
                _ => format!("request-id: {{header_name: X-Id-{id}, algorithm: nanoid, include_in_response: false}}"),
            };
            fields.push(format!("plugins: {{{plugin}}}"));
        }
        _ => fields.push("{}".to_owned()),
    }
    let node = fields.join(", ");
    (place, Some(if node == "{}" { node } else { format!("{{{node}}}") }))
}

const SECTIONS: &[&str] = &[
    "routes",
    "routes",
    "routes",
    "routes",
    "services",
    "services",
    "upstreams",
    "upstreams",
    "plugin_configs",
    "protos",
    "consumer_groups",
    "consumers",
    "consumers",
    "consumers/credentials",
    "global_rules",
    "plugin_metadata",
];

fn plugins(random: &mut Rng) -> String {
    let other = random.u8(1..6);
    let mut plugins = vec![format!(
        "mocking: {{response_example: '{other} $route_id $service_id $service_name $consumer_name $matched_uri'}}"
    )];
    match random.u8(0..5) {
        0 => plugins.push("key-auth: {}".to_owned()),
        1 => plugins.push(format!("key-auth: {{anonymous_consumer: c{other}}}")),
        2 => plugins.push(format!(
            "traffic-split: {{rules: [{{weighted_upstreams: [{{upstream_id: '{other}'}}, {{weight: 2}}, \
             {{upstream: {{nodes: {{'127.0.0.2:{other}': 1}}}}}}]}}]}}"
        )),
        _ => {}
    }
    if random.bool() {
        plugins.remove(0);
    }
    format!("plugins: {{{}}}", plugins.join(", "))
}

/// The explanations of requests.
fn explained(snapshot: &Snapshot, settings: &Settings) -> Vec<String> {
    let hosts = ["h1.test", "h2.test", "h3.test", "h9.test"];
    let requests = hosts.into_iter().flat_map(|host| ["/a", "/b", "/a/b", "/b/", "/c"].map(|path| (host, path)));
    let explain = |(host, path): (&str, &str)| {
        let request = ExplainRequest {
            https: false,
            method: "GET".to_owned(),
            host: host.to_owned(),
            target: path.to_owned(),
            headers: Vec::new(),
            remote: IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let mut explanation = snapshot.explain(&request, settings).expect("a request");
        // Those of other hosts come last, in any order.
        let tried = explanation.candidates.iter().rposition(|c| !c.reason.starts_with("host is none"));
        let tried = tried.map_or(0, |last| last + 1);
        explanation.candidates[tried..].sort_unstable_by_key(|c| (c.id.clone(), c.pattern.clone()));
        format!("{explanation:#?}")
    };
    requests.map(explain).collect()
}

#[test]
fn any_sequence_of_changes_answers_like_the_whole() {
    let settings = settings();
    let definitions = weir_plugins::registry::definitions();
    let catalog = Catalog(definitions);
    let options = options(&catalog);
    let (mut made, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Rng::with_seed(seed);
        let (step, reference) =
            (Compiler::new(definitions, &settings, "weir/test"), Compiler::new(definitions, &settings, "weir/test"));
        let mut model = Model::default();
        let mut snapshot = step.compile(&model, InvalidItems::Refuse, 1).expect("nothing").snapshot;
        let mut resources: Resources = Vec::new();
        let (mut plane, mut other) = (Plane::start(&settings), Plane::start(&settings));
        for revision in 2..CHANGES as u64 + 2 {
            let changes: Vec<_> = (0..random.usize(1..4)).map(|_| random_change(&mut random)).collect();
            let mut wanted = resources.clone();
            for (place, node) in &changes {
                match (wanted.iter_mut().find(|(known, _)| known == place), node) {
                    (Some(known), Some(node)) => known.1.clone_from(node),
                    (None, Some(node)) => wanted.push((place.clone(), node.clone())),
                    (_, None) => wanted.retain(|(known, _)| known != place),
                }
            }
            let expected = whole(&reference, &wanted, &options, revision);
            let changed = model.change("t", changes.iter().map(change).collect(), &options);
            let compiled = changed.and_then(|changed| {
                let compiled = step.change(&snapshot, &changed.model, &changed.keys, revision)?;
                Ok((changed.model, compiled.snapshot))
            });
            let at = || format!("seed {seed}, revision {revision}: {changes:#?}\nto {resources:#?}");
            match (&compiled, &expected) {
                (Ok(_), Err(found)) => panic!("not refused: {found:?}\n{}", at()),
                (Err(found), Ok(_)) => panic!("refused: {found:?}\n{}", at()),
                (Err(_), Err(_)) => {
                    refused += 1;
                    continue;
                }
                (Ok(_), Ok(_)) => made += 1,
            }
            let (Ok((next, compiled)), Ok(expected)) = (compiled, expected) else { continue };
            for (told, whole) in explained(&compiled, &settings).iter().zip(explained(&expected, &settings)) {
                assert_eq!(*told, whole, "{}", at());
            }
            plane.serve(&compiled);
            other.serve(&expected);
            for _ in 0..8 {
                let key = format!("{}{}", random.choice(["k", "d"]).expect("a letter"), random.u8(1..6));
                let host = format!("h{}.test", random.u8(1..6));
                let path = *random.choice(&["/a", "/b", "/a/b", "/b/", "/c"]).expect("a path");
                let request = (host.as_str(), path, key.as_str());
                assert_eq!(plane.ask(request), other.ask(request), "{request:?}, {}", at());
            }
            step.sweep();
            (model, snapshot, resources) = (next, compiled, wanted);
        }
        assert!(resources.len() > 5, "{} resources are left", resources.len());
    }
    assert!(made > 100 && refused > 100, "{made} made, {refused} refused");
}

/// A plugin that counts how often its configurations are compiled, and how many instances are built.
#[derive(Debug)]
struct Counted;

static COMPILED: AtomicUsize = AtomicUsize::new(0);
static BUILT: AtomicUsize = AtomicUsize::new(0);

impl Define for Counted {
    const NAME: &'static str = "counted";
    const PRIORITY: i32 = 1;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "";
    const EXAMPLE: &'static str = "{}";

    type Conf = BTreeMap<String, u32>;
    type ConsumerConf = ();

    fn compile(conf: Self::Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        COMPILED.fetch_add(1, SeqCst);
        if conf.contains_key("warn") {
            cx.warn("warn", "a warning");
        }
        Some(Compiled::build(|_| {
            BUILT.fetch_add(1, SeqCst);
            Ok(Self)
        }))
    }
}

impl Plugin for Counted {}

#[test]
fn a_configuration_is_compiled_once_to_be_checked_and_built() {
    let counts = || (COMPILED.swap(0, SeqCst), BUILT.swap(0, SeqCst));
    let definitions: &'static [&'static dyn Definition] = &[&Counted];
    let (catalog, settings) = (Catalog(definitions), settings());
    let options = options(&catalog);
    let compiler = Compiler::new(definitions, &settings, "weir/test");
    let route = |value: &str| {
        let upstream = "upstream: {nodes: {'127.0.0.1:1': 1}}";
        let text = format!("{{uri: /a, plugins: {{counted: {{a: {value}}}}}, {upstream}}}");
        change(&("routes/a".to_owned(), Some(text)))
    };

    // A document, also where the plugin stands with others of its kind.
    let resources: Resources = [
        ("services/s", "{plugins: {counted: {warn: 1}}}"),
        ("routes/r", "{uri: /r, service_id: s, plugins: {counted: {}}, upstream: {nodes: {'127.0.0.1:1': 1}}}"),
        (
            "routes/off",
            "{uri: /o, plugins: {counted: {_meta: {disable: true}}}, upstream: {nodes: {'127.0.0.1:1': 1}}}",
        ),
        ("global_rules/g", "{plugins: {counted: {b: 2}}}"),
        ("consumers/c", "{plugins: {counted: {c: 3}}}"),
    ]
    .map(|(place, text)| (place.to_owned(), text.to_owned()))
    .into();
    whole(&compiler, &resources, &options, 1).expect("a document");
    assert_eq!(counts(), (5, 4), "what is switched off is checked alone");

    // A change, whose base keeps nothing of it.
    let base = Model::default().change("t", vec![route("1")], &options).expect("a change");
    let snapshot = compiler.compile(&base.model, InvalidItems::Refuse, 2).expect("compiled").snapshot;
    assert_eq!(counts(), (1, 1));
    let changed = base.model.change("t", vec![route("2")], &options).expect("a change");
    let snapshot = compiler.change(&snapshot, &changed.model, &changed.keys, 3).expect("compiled").snapshot;
    assert_eq!(counts(), (1, 1));

    // A change that was only checked leaves nothing behind that a later one could be built of.
    let dropped = changed.model.change("t", vec![route("3")], &options).expect("a change");
    assert_eq!((counts(), dropped.warnings.len()), ((1, 0), 0));
    drop(dropped);
    let keys = changed.keys.clone();
    compiler.change(&snapshot, &changed.model, &keys, 4).expect("compiled");
    assert_eq!(counts(), (1, 1), "built anew without a check, it is compiled anew");
}

#[test]
fn a_text_cannot_name_the_compiled_configuration_of_another() {
    let definitions = weir_plugins::registry::definitions();
    let catalog = Catalog(definitions);
    let options = options(&catalog);
    let hidden = (1..200).map(|number| format!("\"\\u0000compiled\": {number}"));
    for field in hidden {
        let text = format!("{{\"uri\": \"/a\", \"plugins\": {{\"key-auth\": {{{field}}}}}}}");
        let loaded = Model::default().change("t", vec![change(&("routes/a".to_owned(), Some(text)))], &options);
        let model = loaded.expect("a change").model;
        let conf = model.routes.get("a").and_then(|route| route.plugins.as_ref()?.get("key-auth").cloned());
        let conf = conf.expect("the plugin");
        assert!(matches!(&conf.conf.kind, Kind::Map(fields) if fields.capacity() == 0), "{conf:?}");
        assert!(model.compiled.take(conf.compiled).is_some(), "its own");
    }
}
