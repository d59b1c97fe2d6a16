//! Plugins without a data plane, built from configurations in YAML.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_config::{Diagnostic, Node, Proto, Upstream};
use weir_plugin::host::{CredentialChange, Definition};
use weir_plugin::{
    BuildCx, Consumer, ConsumerMatch, Consumers, Credentials, Named, Plugin, ProtoSet, RouteInfo, StateRegistry,
    Tables, Turns, UpstreamSet,
};
use weir_router::{Mode, Route, Router, Slots};

/// Surroundings of plugins under test: one route and three consumers.
pub(crate) struct Bench {
    pub(crate) states: StateRegistry,
    pub(crate) tables: Arc<Tables>,
}

const CONSUMERS: [&str; 3] = ["jack", "jill", "anonymous"];

/// Configurations of the consumers for an authentication plugin.
fn confs_of(plugin: &str) -> Option<[&'static str; 3]> {
    Some(match plugin {
        "basic-auth" => [
            "{username: jack, password: 'pass:word'}",
            "{username: jill, password: secret}",
            "{username: anonymous, password: unused}",
        ],
        "hmac-auth" => [
            "{key_id: jacks-id, secret_key: jacks-secret}",
            "{key_id: jills-id, secret_key: jills-secret}",
            "{key_id: unused, secret_key: unused}",
        ],
        "jwt-auth" => ["{key: jacks, secret: my-secret-key}", JILLS_TOKENS, "{key: unused, secret: unused}"],
        "key-auth" => ["{key: jacks}", "{key: 'j&l l'}", "{key: unused}"],
        _ => return None,
    })
}

/// The public key of the tokens of ES256 in `cases/jwt-auth.yaml`.
const JILLS_TOKENS: &str = "\
key: es
algorithm: ES256
public_key: |
  -----BEGIN PUBLIC KEY-----
  MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE3k+kKA4HYhLaRdAypEozi7C5KgEm
  cwH6AOWEWNhzZZk/paquObKwcnKVKOockiuG/HdScfZQ2opSoX/SpZt9Fg==
  -----END PUBLIC KEY-----
";

impl Bench {
    pub(crate) fn new() -> Self {
        let mut consumers = Consumers::default();
        for name in CONSUMERS {
            let jill = name == "jill";
            consumers.put(Consumer::new(
                Named::from(name),
                None,
                jill.then(|| ("custom_id".into(), "id-7".into())).into_iter().collect(),
                jill.then(|| "cred-jill".into()).into_iter().collect(),
            ));
        }
        let route = Route { paths: vec!["/a/*".into()], hosts: vec!["a.test".into()], ..Route::default() };
        let mut routes = Slots::default();
        let info = RouteInfo {
            id: Named::from("r1"),
            name: Some(Named::from("route one")),
            service_id: Some(Named::from("s1")),
            service_name: None,
            decorations: weir_config::CostDecorations::default(),
            paths: Box::new([Named::from("/a/*")]),
            hosts: Box::new([Named::from("a.test")]),
        };
        routes.set(0, Some(Arc::new(info)));
        let credentials = weir_plugins::definitions().iter().map(|d| credentials(*d, &consumers)).collect();
        let mut plans = weir_plugin::Plans::default();
        let plan = r#"{"id": "gold", "limits": [{"count": 1000000, "per": "month", "window": "calendar"}, {"count": 1000000, "per": "second", "scope": "route"}], "access": [{"paths": ["/a/*"]}]}"#;
        plans.put(&serde_json::from_str(plan).unwrap());
        let tables = Tables {
            router: Some(Router::build(Mode::HostUri, vec![route]).unwrap()),
            routes,
            consumers: Arc::new(consumers),
            plans: Arc::new(plans),
            credentials,
        };
        Self { states: StateRegistry::default(), tables: Arc::new(tables) }
    }

    /// Builds a plugin from its configuration in YAML.
    pub(crate) fn build(&self, name: &str, conf: &str) -> Result<Arc<dyn Plugin>, Diagnostic> {
        self.build_node(name, &node(conf))
    }

    /// The same from a value.
    pub(crate) fn build_node(&self, name: &str, conf: &Node) -> Result<Arc<dyn Plugin>, Diagnostic> {
        let definition = definition(name);
        let position = weir_plugins::definitions().iter().position(|d| d.name() == name).unwrap_or_default();
        let built = definition.compile(&BuildCx {
            plugin: name,
            place: "route/r1",
            states: &self.states,
            consumers: &*self.tables.consumers,
            plans: &self.tables.plans,
            protos: &OneProto,
            position: position as u8,
            conf,
            limit_keys: 100,
            metadata: None,
            https_port: 443,
            cache_zones: &[],
            product: "weir/1.2.3",
            kong: &weir_config::settings::Kong::default(),
            network: &Arc::default(),
            upstreams: &NamedUpstreams,
            apis: &weir_plugin::NoApis,
            warned: &std::cell::RefCell::default(),
        });
        built.map(|instance| instance.plugin)
    }
}

/// The proto `greeter`.
#[derive(Debug)]
struct OneProto;

impl ProtoSet for OneProto {
    fn find(&self, id: &str) -> Option<Arc<Proto>> {
        const TEXT: &str = "syntax = \"proto3\";\npackage helloworld;\nmessage Hello { string name = 1; }\n\
            service Greeter { rpc SayHello(Hello) returns (Hello); rpc Greet(Hello) returns (stream Hello); }\n";
        (id == "greeter").then(|| Arc::new(serde_json::from_value(serde_json::json!({ "content": TEXT })).unwrap()))
    }
}

/// Upstreams of the names `backend` and `next`, and whatever is written in place.
#[derive(Debug)]
pub(crate) struct NamedUpstreams;

impl UpstreamSet for NamedUpstreams {
    fn find(&self, id: &str) -> Result<Option<u32>, Diagnostic> {
        Ok(["backend", "next"].iter().position(|name| *name == id).map(|at| at as u32))
    }

    fn add(&self, _: &Upstream, _: &str) -> Result<u32, Diagnostic> {
        Ok(2)
    }

    fn turns(&self, weights: &[u32]) -> Arc<dyn Turns> {
        Arc::new(OneAfterAnother { count: weights.len(), next: AtomicUsize::new(0) })
    }
}

/// Turns of equal weights.
#[derive(Debug)]
struct OneAfterAnother {
    count: usize,
    next: AtomicUsize,
}

impl Turns for OneAfterAnother {
    fn next(&self) -> Option<usize> {
        Some(self.next.fetch_add(1, Ordering::Relaxed) % self.count)
    }
}

/// The plugin of this name; one of Kong's with `kong:` before it.
pub(crate) fn definition(name: &str) -> &'static dyn Definition {
    let (all, name) = match name.strip_prefix("kong:") {
        Some(name) => (weir_plugins::kong::definitions(), name),
        None => (weir_plugins::definitions(), name),
    };
    let found = all.iter().find(|definition| definition.name() == name);
    *found.unwrap_or_else(|| panic!("no plugin {name}"))
}

/// A value in YAML.
pub(crate) fn node(yaml: &str) -> Node {
    let parsed = Node::parse(yaml).unwrap_or_else(|error| panic!("{error} in:\n{yaml}"));
    if parsed.root.is_null() { Node::empty_map() } else { parsed.root }
}

fn credentials(definition: &dyn Definition, consumers: &Consumers) -> Option<Credentials> {
    let confs = confs_of(definition.name())?.map(node);
    let entries: Vec<(ConsumerMatch, &Node)> = CONSUMERS
        .iter()
        .zip(&confs)
        .enumerate()
        .map(|(n, (name, conf))| {
            let credential = (*name == "jill").then_some(0);
            (ConsumerMatch { consumer: n as u32, credential }, conf)
        })
        .collect();
    let change = CredentialChange { held: None, gone: &[], came: &entries, consumers };
    Some(definition.credentials(&change).unwrap_or_else(|(_, error)| panic!("{error}")))
}
