//! Plugins without a data plane: configurations in YAML, exchanges made by hand.

use std::rc::Rc;
use std::sync::Arc;

use weir_config::{Diagnostic, Node};
use weir_plugin::{
    BuildCx, Consumer, ConsumerMatch, Consumers, Credentials, Definition, Exchange, Flow, Named, Origin, Phases, Plugin,
    RequestCx, ResponseCx, RouteInfo, StateRegistry, Tables,
};
use weir_router::{Mode, Query, Route, Router};
use weir_wire::head::Limits;
use weir_wire::target::PathRules;

/// What plugins are built with, and the exchange they see.
pub(crate) struct Bench {
    pub(crate) states: StateRegistry,
    pub(crate) exchange: Exchange,
    pub(crate) limit_keys: usize,
    pub(crate) metadata: Option<Node>,
    tables: Rc<Arc<Tables>>,
}

/// Consumers by name, each with what `key-auth` and `basic-auth` know of them.
const CONSUMERS: [(&str, &str, &str); 3] = [
    ("jack", "{key: jacks}", "{username: jack, password: 'pass:word'}"),
    ("jill", "{key: 'j&l l'}", "{username: jill, password: secret}"),
    ("anonymous", "{key: unused}", "{username: anonymous, password: unused}"),
];

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let mut consumers = Consumers::default();
        for (name, ..) in CONSUMERS {
            let custom_id = (name == "jill").then(|| "id-7".into());
            consumers.push(Consumer { name: Named::from(name), group_id: None, custom_id });
        }
        consumers.push_credential("cred-jill");
        let route = Route { paths: vec!["/a/*".into()], hosts: vec!["a.test".into()], ..Route::default() };
        let tables = Tables {
            router: Some(Router::build(Mode::HostUri, vec![route]).unwrap()),
            routes: vec![RouteInfo {
                id: Named::from("r1"),
                name: Some(Named::from("route one")),
                service_id: Some(Named::from("s1")),
                service_name: None,
                paths: Box::new([Named::from("/a/*")]),
                hosts: Box::new([Named::from("a.test")]),
            }],
            consumers,
        };
        Self {
            states: StateRegistry::default(),
            exchange: Exchange::default(),
            limit_keys: 100,
            metadata: None,
            tables: Rc::new(Arc::new(tables)),
        }
    }

    /// Builds a plugin from its configuration in YAML.
    pub(crate) fn build(&self, name: &str, conf: &str) -> Result<Arc<dyn Plugin>, Diagnostic> {
        let definition = definition(name);
        let conf = node(conf);
        let credentials = credentials(definition);
        definition.build(&conf, &BuildCx {
            plugin: name,
            place: "route/r1",
            states: &self.states,
            consumers: &self.tables.consumers,
            credentials: credentials.as_ref(),
            conf: &conf,
            limit_keys: self.limit_keys,
            metadata: self.metadata.as_ref(),
            product: "weir/1.2.3",
        })
    }

    /// Takes in a request, as the data plane does, and finds its route.
    pub(crate) fn request(&mut self, head: &str) {
        let x = &mut self.exchange;
        x.reset();
        x.request.buffer.clear();
        x.request.buffer.extend(head.as_bytes());
        let whole = x.request.head.parse(x.request.buffer.bytes(), &Limits::default()).unwrap();
        assert!(whole, "the head ends: {head:?}");
        x.request.accept_head(PathRules::default()).unwrap();
        x.tables = Some(Rc::clone(&self.tables));
        let mut params = std::mem::take(&mut x.params);
        let query = Query {
            method: x.request.method_bytes(),
            host: x.request.host(),
            host_port: x.request.host_port(),
            path: x.request.path(),
            remote: x.client.addr,
            source: &*x,
        };
        let matched = self.tables.router.as_ref().and_then(|router| router.find(&query, &mut params));
        x.matched = matched;
        x.params = params;
    }

    /// Runs the request hooks that the plugin has.
    pub(crate) fn run(&mut self, plugin: &dyn Plugin) -> Flow {
        let mut cx = RequestCx(&mut self.exchange);
        match plugin.rewrite(&mut cx) {
            Flow::Continue => plugin.access(&mut cx),
            flow => flow,
        }
    }

    /// Begins an upstream's response and runs the response hook.
    pub(crate) fn respond(&mut self, plugin: &dyn Plugin, status: u16) -> Flow {
        self.exchange.response.begin(status, Origin::Upstream);
        plugin.response(&mut ResponseCx(&mut self.exchange))
    }
}

pub(crate) fn definition(name: &str) -> &'static dyn Definition {
    let found = weir_plugins::definitions().iter().find(|definition| definition.name() == name);
    *found.unwrap_or_else(|| panic!("no plugin {name}"))
}

/// A value in YAML.
pub(crate) fn node(yaml: &str) -> Node {
    let parsed = Node::parse(yaml).unwrap_or_else(|error| panic!("{error} in:\n{yaml}"));
    if parsed.root.is_null() { Node::empty_map() } else { parsed.root }
}

fn credentials(definition: &dyn Definition) -> Option<Credentials> {
    let confs: Vec<(usize, Node)> = match definition.name() {
        "key-auth" => CONSUMERS.iter().map(|(_, key, _)| node(key)).enumerate().collect(),
        "basic-auth" => CONSUMERS.iter().map(|(.., basic)| node(basic)).enumerate().collect(),
        _ => return None,
    };
    let entries: Vec<(ConsumerMatch, &str, &Node)> = confs
        .iter()
        .map(|(n, conf)| {
            let credential = (CONSUMERS[*n].0 == "jill").then_some(0);
            (ConsumerMatch { consumer: *n as u32, credential }, CONSUMERS[*n].0, conf)
        })
        .collect();
    Some(definition.credentials(&entries).unwrap_or_else(|(_, error)| panic!("{error}")))
}

/// Whether the plugin has hooks in this phase.
pub(crate) fn runs_in(plugin: &dyn Plugin, name: &str, phase: Phases) -> bool {
    plugin.phases(definition(name).phases()).contains(phase)
}
