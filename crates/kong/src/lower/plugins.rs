//! Plugins by their scopes. The most specific configuration of one name counts alone.
//!
//! | before | scope |
//! |---|---|
//! | 1 | consumer, route and service |
//! | 2 | consumer group, route and service |
//! | 3 | consumer and route |
//! | 4 | consumer and service |
//! | 5 | consumer group and route |
//! | 6 | consumer group and service |
//! | 7 | route and service |
//! | 8 to 12 | consumer, consumer group, route, service, none (all requests) |

use std::collections::{BTreeMap, HashMap};

use weir_config::{Diagnostic, Kind, Lowered, Mark, Node, OnRoutes, ResourceKind};
use weir_plugins::kong::definitions;

use super::address::Address;
use super::groups::Groups;
use super::names::{MTLS_AUTH, is_known, key};
use super::{ANSWERS, GLOBAL, LAYER, list, map, number, services, text};
use crate::document::{Document, Entity, EntityKind, whole};

/// Name of the plugin whose configuration becomes limits of routes.
const TIMEOUT: &str = "upstream-timeout";

/// Name of the plugin whose rules name upstreams.
const BY_HEADER: &str = "route-by-header";

/// Name of the plugin that needs the scheme and the port of its service.
const CANARY: &str = "canary";

/// The scope of a plugin: numbers of entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Scope {
    service: Option<usize>,
    route: Option<usize>,
    consumer: Option<usize>,
    group: Option<usize>,
}

/// The plugins of a document with their scopes, without those that are disabled.
pub(crate) struct Scoped<'d> {
    document: &'d Document,
    by_scope: HashMap<Scope, Vec<&'d Entity>>,
    /// Scopes with a consumer or a consumer group on routes or services, by both.
    by_consumer: HashMap<usize, Vec<Scope>>,
    by_group: HashMap<usize, Vec<Scope>>,
    /// Scopes with a route and its service, and no consumer.
    on_routes_of_services: Vec<Scope>,
    groups: Groups,
    /// True if a template asks for groups of paths.
    has_captures: bool,
}

/// Plugins that one consumer has, beside its own of all routes.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// Id of the layer with the plugins of its groups.
    pub(crate) group: Option<String>,
    pub(crate) on_routes: Vec<OnRoutes>,
}

/// Layers of plugins that several consumers have in common, by the plugins in them.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    known: HashMap<Vec<usize>, String>,
}

impl<'d> Scoped<'d> {
    pub(crate) fn of(document: &'d Document, found: &mut Vec<Diagnostic>) -> Self {
        let mut scoped = Self {
            document,
            by_scope: HashMap::new(),
            by_consumer: HashMap::new(),
            by_group: HashMap::new(),
            on_routes_of_services: Vec::new(),
            groups: Groups::of(document, found),
            has_captures: false,
        };
        for (_, plugin) in document.of(EntityKind::Plugins) {
            if plugin.flag("enabled") == Some(false) || !is_known(plugin, found) {
                continue;
            }
            let Some(scope) = scope(document, plugin, found) else { continue };
            let is_of_consumer = scope.consumer.is_some() || scope.group.is_some();
            if is_of_consumer && plugin.text("name") == Some(TIMEOUT) {
                found.push(plugin.fault("consumer", "limits of a consumer are not supported: write them for a route"));
                continue;
            }
            let written = plugin.node.to_json().to_string();
            let is_validated = plugin.text("name") == Some("request-validator") && written.contains("\"path\"");
            scoped.has_captures |= is_validated || written.contains("uri_captures");
            scoped.add(scope, plugin, found);
        }
        scoped
    }

    /// Limits of the plugin `upstream-timeout` for a route, in the form of the model; what it leaves out is the service's.
    pub(crate) fn timeouts(&self, route: usize, service: Option<usize>) -> Option<Node> {
        let route = Some(route);
        let scopes = [(route, service), (route, None), (None, service), (None, None)];
        let mut found = scopes.into_iter().flat_map(|(route, service)| {
            let plugins = self.plugins(Scope { route, service, ..Scope::default() });
            plugins.filter(|plugin| plugin.text("name") == Some(TIMEOUT))
        });
        let plugin = found.next()?;
        let service = service.and_then(|number| self.document.entities.get(number));
        let seconds = |field: &str, of_service: &str| {
            let given = plugin.node.get("config").and_then(|config| config.get(field)).and_then(whole);
            let given = given.or_else(|| service?.whole(of_service)).unwrap_or(60_000);
            Node { mark: plugin.node.mark, kind: Kind::Float(given as f64 / 1000.0) }
        };
        let limits = [
            ("connect", seconds("connect_timeout", "connect_timeout")),
            ("send", seconds("send_timeout", "write_timeout")),
            ("read", seconds("read_timeout", "read_timeout")),
        ];
        Some(map(plugin.node.mark, limits))
    }

    /// True if a template of a plugin asks for groups of the regular expressions of paths.
    pub(crate) fn has_captures(&self) -> bool {
        self.has_captures
    }

    fn add(&mut self, scope: Scope, plugin: &'d Entity, found: &mut Vec<Diagnostic>) {
        let name = plugin.text("name");
        let all = self.by_scope.entry(scope).or_default();
        if let Some(first) = all.iter().find(|first| first.text("name") == name) {
            let text = format!("the same plugin is configured at {} for the same requests", first.path);
            found.push(plugin.fault("name", text));
            return;
        }
        all.push(plugin);
        if all.len() > 1 {
            return;
        }
        match scope {
            Scope { service: None, route: None, .. } => {}
            Scope { consumer: Some(consumer), .. } => self.by_consumer.entry(consumer).or_default().push(scope),
            Scope { group: Some(group), .. } => self.by_group.entry(group).or_default().push(scope),
            Scope { service: Some(_), route: Some(_), .. } => self.on_routes_of_services.push(scope),
            _ => {}
        }
    }

    /// The plugins of a route, and where they stand.
    pub(crate) fn of_route(&self, route: usize, service: Option<usize>) -> Plugins {
        let mut plugins = self.collect(Scope { route: Some(route), ..Scope::default() });
        if service.is_some() {
            plugins.put_over(self.collect(Scope { route: Some(route), service, ..Scope::default() }));
        }
        plugins
    }

    /// The plugins of a service.
    pub(crate) fn of_service(&self, service: usize) -> Plugins {
        self.collect(Scope { service: Some(service), ..Scope::default() })
    }

    /// The plugins of a consumer.
    pub(crate) fn of_consumer(&self, consumer: usize) -> Plugins {
        self.collect(Scope { consumer: Some(consumer), ..Scope::default() })
    }

    /// The plugins that a consumer has by its groups and on single routes; layers of them are added where there is none
    /// with the same plugins yet.
    pub(crate) fn brought(&self, consumer: usize, layers: &mut Layers, lowered: &mut Lowered) -> Brought {
        let groups = self.groups.of_consumer(consumer);
        let of_group = |group: &usize| self.plugins(Scope { group: Some(*group), ..Scope::default() });
        let mut general: Vec<&Entity> = Vec::new();
        for plugin in groups.iter().flat_map(of_group) {
            if !general.iter().any(|known| known.text("name") == plugin.text("name")) {
                general.push(plugin);
            }
        }
        let mut by_route: BTreeMap<usize, Vec<(u8, &Entity)>> = BTreeMap::new();
        let of_groups = groups.iter().filter_map(|group| self.by_group.get(group)).flatten();
        for scope in self.by_consumer.get(&consumer).into_iter().flatten().chain(of_groups) {
            let rank = match scope {
                Scope { consumer: Some(_), route: Some(_), service: Some(_), .. } => 1,
                Scope { route: Some(_), service: Some(_), .. } => 2,
                Scope { consumer: Some(_), route: Some(_), .. } => 3,
                Scope { consumer: Some(_), .. } => 4,
                Scope { route: Some(_), .. } => 5,
                _ => 6,
            };
            for route in self.routes_of(*scope) {
                by_route.entry(route).or_default().extend(self.plugins(*scope).map(|plugin| (rank, plugin)));
            }
        }
        let mut without: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        if !self.on_routes_of_services.is_empty() {
            let own: Vec<&Entity> =
                self.plugins(Scope { consumer: Some(consumer), ..Scope::default() }).chain(general.clone()).collect();
            for scope in &self.on_routes_of_services {
                let names = self.plugins(*scope).filter_map(|plugin| plugin.text("name"));
                let names = names.filter(|name| own.iter().any(|plugin| plugin.text("name") == Some(*name)));
                let names: Vec<String> = names.map(str::to_owned).collect();
                if let (false, Some(route)) = (names.is_empty(), scope.route) {
                    without.insert(route, names);
                    by_route.entry(route).or_default();
                }
            }
        }
        let mut places: BTreeMap<(Option<String>, Vec<String>), Vec<String>> = BTreeMap::new();
        for (route, mut plugins) in by_route {
            plugins.sort_by_key(|(rank, _)| *rank);
            let mut winners: Vec<&Entity> = Vec::new();
            for (_, plugin) in plugins {
                if !winners.iter().any(|known| known.text("name") == plugin.text("name")) {
                    winners.push(plugin);
                }
            }
            let layer = self.layer(&winners, layers, lowered);
            let Some(entity) = self.document.entities.get(route) else { continue };
            let key = (layer, without.remove(&route).unwrap_or_default());
            places.entry(key).or_default().push(entity.id.clone());
        }
        let place = |((layer, without), routes)| OnRoutes { routes, layer, without };
        Brought { group: self.layer(&general, layers, lowered), on_routes: places.into_iter().map(place).collect() }
    }

    /// Id of the layer with these plugins.
    fn layer(&self, plugins: &[&Entity], layers: &mut Layers, lowered: &mut Lowered) -> Option<String> {
        let first = plugins.first()?;
        let key = plugins.iter().map(|plugin| std::ptr::from_ref(*plugin).addr()).collect();
        let number = layers.known.len();
        let id = layers.known.entry(key).or_insert_with(|| {
            let id = format!("{LAYER}{number}");
            let mut made = Plugins { node: map(Mark::NONE, []), elsewhere: Vec::new() };
            plugins.iter().for_each(|plugin| self.put(scope_of(plugin), plugin, &mut made));
            let item = map(first.node.mark, [("id", text(&id)), ("plugins", made.node)]);
            let entity = weir_config::Entity { elsewhere: made.elsewhere, ..first.origin() };
            lowered.add(ResourceKind::ConsumerGroups, item, entity);
            id
        });
        Some(id.clone())
    }

    /// The plugins of this name, each with the routes that it is for; `None`: all.
    pub(crate) fn routes_with(&self, name: &str) -> Vec<(&'d Entity, Option<Vec<usize>>)> {
        let mut all = Vec::new();
        for (scope, plugins) in &self.by_scope {
            let is_general = scope.route.is_none() && scope.service.is_none();
            for plugin in plugins.iter().filter(|plugin| plugin.text("name") == Some(name)) {
                all.push((*plugin, (!is_general).then(|| self.routes_of(*scope))));
            }
        }
        all
    }

    /// Numbers of the routes that a scope is for.
    fn routes_of(&self, scope: Scope) -> Vec<usize> {
        match (scope.route, scope.service) {
            (Some(route), _) => vec![route],
            (None, Some(service)) => {
                let routes = self.document.numbered_children(EntityKind::Routes, "service", service);
                routes.map(|(number, _)| number).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    fn plugins(&self, scope: Scope) -> impl Iterator<Item = &'d Entity> {
        self.by_scope.get(&scope).map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// Adds the plugin config with the global plugins, and the global rule that makes answers Kong's.
    pub(crate) fn lower_global(&self, mark: Mark, lowered: &mut Lowered) {
        let Plugins { node, elsewhere } = self.collect(Scope::default());
        let item = map(mark, [("id", text(GLOBAL)), ("plugins", node)]);
        let entity = weir_config::Entity {
            kind: "document",
            id: GLOBAL.to_owned(),
            path: "plugins".to_owned(),
            elsewhere,
            ..Default::default()
        };
        lowered.add(ResourceKind::PluginConfigs, item, entity.clone());
        let answers = map(mark, [("answers", map(mark, []))]);
        lowered.add(ResourceKind::GlobalRules, map(mark, [("id", text(ANSWERS)), ("plugins", answers)]), entity);
    }

    /// The name in the model of a consumer that is given by its name or its id.
    fn consumer(&self, given: &Node) -> Option<Node> {
        let number = self.document.find(EntityKind::Consumers, given.as_str()?)?;
        let found = self.document.entities.get(number)?;
        Some(Node { mark: given.mark, ..text(&key(found)) })
    }

    /// Writes the scheme of the service before the other host of a canary, and its port behind a host without one.
    fn complete_canary(&self, scope: Scope, config: &mut Node) {
        let of_route = |number: usize| self.document.entities.get(number).and_then(|route| route.reference("service"));
        let service = scope.service.or_else(|| scope.route.and_then(of_route));
        let service = service.and_then(|number| self.document.entities.get(number));
        let address = service.and_then(|service| Address::of(service, &mut Vec::new()));
        let (Some(address), Some(host)) = (address, config.get("upstream_host").and_then(Node::as_str)) else { return };
        let scheme = if matches!(address.protocol.as_str(), "https" | "wss") { "https" } else { "http" };
        let host = Node { mark: config.mark_of("upstream_host"), ..text(&format!("{scheme}://{host}")) };
        if config.get("upstream_port").is_none() {
            let port = Node { mark: host.mark, ..number(address.port) };
            config.insert("upstream_port", port);
        }
        config.insert("upstream_host", host);
    }

    /// Writes the upstream beside its name into rules: that of the service with other nodes.
    fn complete_rules(&self, scope: Scope, config: &mut Node) {
        let of_route = |number: usize| self.document.entities.get(number).and_then(|route| route.reference("service"));
        let service = scope.service.or_else(|| scope.route.and_then(of_route));
        let service = service.and_then(|number| self.document.entities.get(number));
        let Some(Node { kind: Kind::Seq(rules), .. }) = config.get_mut("rules") else { return };
        for rule in rules {
            let Some(name) = rule.get("upstream_name").and_then(Node::as_str).map(str::to_owned) else { continue };
            if let Some(upstream) = services::upstream_by_name(self.document, service, &name) {
                rule.insert("upstream", upstream);
            }
        }
    }

    /// Writes the certificates beside the ids of authorities.
    fn complete_authorities(&self, config: &mut Node) {
        let ids = config.get("ca_certificates").and_then(Node::as_seq).unwrap_or_default();
        let authority = |id: &Node| {
            let number = self.document.find(EntityKind::CaCertificates, id.as_str()?)?;
            let cert = self.document.entities.get(number)?.node.get("cert")?.clone();
            Some(map(id.mark, [("id", id.clone()), ("cert", cert)]))
        };
        let authorities = list(config.mark, ids.iter().filter_map(authority).collect());
        config.insert("authorities", authorities);
    }

    fn collect(&self, scope: Scope) -> Plugins {
        let mut plugins = Plugins { node: map(Mark::NONE, []), elsewhere: Vec::new() };
        self.plugins(scope).for_each(|plugin| self.put(scope, plugin, &mut plugins));
        plugins
    }

    fn put(&self, scope: Scope, plugin: &Entity, plugins: &mut Plugins) {
        let name = plugin.text("name").unwrap_or_default();
        let mark = plugin.node.mark;
        let mut config = plugin.node.get("config").cloned().unwrap_or_else(|| map(mark, []));
        drop_nulls(&mut config);
        for field in ["anonymous", "default_consumer"] {
            if let Some(consumer) = config.get(field).and_then(|node| self.consumer(node)) {
                config.insert(field, consumer);
            }
        }
        if name == MTLS_AUTH {
            self.complete_authorities(&mut config);
        }
        if name == CANARY {
            self.complete_canary(scope, &mut config);
        }
        if name == BY_HEADER {
            self.complete_rules(scope, &mut config);
        }
        if let Some(filter) = filter(plugin) {
            config.insert("_meta", map(mark, [("filter", filter)]));
        }
        plugins.node.insert(name, config);
        plugins.elsewhere.push((format!("plugins.{name}"), plugin.at("config")));
    }
}

/// The plugins of one place in the form of the model, and the paths at which they stand.
pub(crate) struct Plugins {
    pub(crate) node: Node,
    pub(crate) elsewhere: Vec<(String, String)>,
}

impl Plugins {
    fn put_over(&mut self, over: Self) {
        let Kind::Map(entries) = over.node.kind else { return };
        for (key, conf) in entries {
            let place = format!("plugins.{}", key.text);
            self.elsewhere.retain(|(lowered, _)| *lowered != place);
            self.node.insert(&key.text, conf);
        }
        self.elsewhere.extend(over.elsewhere);
    }
}

/// The entities that a plugin names.
fn scope_of(plugin: &Entity) -> Scope {
    let [service, route, consumer, group] =
        ["service", "route", "consumer", "consumer_group"].map(|field| plugin.reference(field));
    Scope { service, route, consumer, group }
}

/// A field that is null is not set.
fn drop_nulls(node: &mut Node) {
    match &mut node.kind {
        Kind::Map(entries) => {
            entries.retain(|(_, value)| !value.is_null());
            entries.iter_mut().for_each(|(_, value)| drop_nulls(value));
        }
        Kind::Seq(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The condition on requests for a plugin whose `protocols` leave out TLS, or all without it.
fn filter(plugin: &Entity) -> Option<Node> {
    let mark = plugin.node.mark;
    let scheme = match schemes(plugin) {
        (true, false) => "http",
        (false, true) => "https",
        _ => return None,
    };
    Some(list(mark, vec![list(mark, vec![text("scheme"), text("=="), text(scheme)])]))
}

/// Requests that the `protocols` of a plugin take: those without TLS, and those with it.
fn schemes(plugin: &Entity) -> (bool, bool) {
    let protocols = plugin.texts("protocols");
    let has = |names: &[&str]| protocols.is_empty() || protocols.iter().any(|name| names.contains(&name.as_str()));
    (has(&["http", "grpc", "ws"]), has(&["https", "grpcs", "wss"]))
}

/// True for plugins that have no consumer: they run before one is known, or find it.
fn is_before_consumers(name: &str) -> bool {
    let is_auth = |name: &str| definitions().iter().any(|plugin| plugin.name() == name && plugin.is_auth());
    matches!(name, "acl" | "cors" | "session" | "bot-detection" | "acme") || is_auth(name)
}

fn scope(document: &Document, plugin: &Entity, found: &mut Vec<Diagnostic>) -> Option<Scope> {
    let Scope { service, route, consumer, group } = scope_of(plugin);
    let name = plugin.text("name").unwrap_or_default();
    if plugin.node.get("ordering").is_some() {
        let text = "an order of plugins of its own is Kong Enterprise's and not supported: plugins run by priority";
        found.push(plugin.fault("ordering", text));
        return None;
    }
    if name == "acme"
        && let Some((field, _)) =
            [("service", service), ("route", route)].into_iter().find(|(_, given)| given.is_some())
    {
        found.push(plugin.fault(field, "value must be null"));
        return None;
    }
    if consumer.is_some() && group.is_some() {
        found.push(plugin.fault("consumer_group", "a plugin is for a consumer or for a consumer group, not for both"));
        return None;
    }
    for (field, given) in [("consumer", consumer), ("consumer_group", group)] {
        if given.is_none() || !is_before_consumers(name) {
            continue;
        }
        // Kong takes it where it is nested, without an effect.
        let is_nested = plugin.path.starts_with("consumer");
        found.push(match is_nested {
            true => plugin.doubt("name", format!("no effect: {name} runs before the consumer is known")),
            false => plugin.fault(field, "value must be null"),
        });
        return None;
    }
    if !plugin.texts("protocols").is_empty() && schemes(plugin) == (false, false) && !is_on_streams(document, plugin) {
        found.push(plugin.doubt("protocols", "no effect: no request has any of these protocols"));
        return None;
    }
    if let (Some(service), Some(route)) = (service, route) {
        let of_route = document.entities.get(route).and_then(|route| route.reference("service"));
        if of_route != Some(service) {
            found.push(plugin.doubt("service", "no effect: the route of this plugin belongs to another service"));
            return None;
        }
    }
    Some(Scope { service, route, consumer, group })
}

/// True for a plugin on a route, or a service, of streams.
fn is_on_streams(document: &Document, plugin: &Entity) -> bool {
    let on = |field: &str| plugin.reference(field).and_then(|number| document.entities.get(number));
    on("route").is_some_and(super::address::is_stream) || on("service").is_some_and(super::address::is_of_streams)
}
