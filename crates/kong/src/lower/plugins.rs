//! Plugins by their scopes. The most specific of one name counts: consumer, route, service, global.

use weir_config::diagnostic::nearest;
use weir_config::{Diagnostic, Hint, Kind, Lowered, Mark, Node, ResourceKind};

use super::services::Address;
use super::{ANSWERS, GLOBAL, consumers, map, number, text};
use crate::document::{Document, Entity, EntityKind, rule, whole};
use crate::front_end::plugin_names;

/// Name of the plugin whose configuration becomes limits of routes.
const TIMEOUT: &str = "upstream-timeout";

/// Name of the plugin that needs the scheme and the port of its service.
const CANARY: &str = "canary";

/// The scope of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Global,
    Service(usize),
    Route(usize),
    Consumer(usize),
}

/// The plugins of a document with their scopes, without those that are disabled.
pub(crate) struct Scoped<'d> {
    document: &'d Document,
    plugins: Vec<(Scope, &'d Entity)>,
    /// True if a template asks for groups of paths.
    has_captures: bool,
}

impl<'d> Scoped<'d> {
    pub(crate) fn of(document: &'d Document, found: &mut Vec<Diagnostic>) -> Self {
        let mut scoped: Vec<(Scope, &Entity)> = Vec::new();
        for (_, plugin) in document.of(EntityKind::Plugins) {
            if plugin.flag("enabled") == Some(false) || !is_known(plugin, found) {
                continue;
            }
            let Some(scope) = scope(plugin, found) else { continue };
            if matches!(scope, Scope::Consumer(_)) && plugin.text("name") == Some(TIMEOUT) {
                found.push(plugin.fault("consumer", "limits of a consumer are not supported: write them for a route"));
                continue;
            }
            let name = plugin.text("name");
            match scoped.iter().find(|(other, first)| *other == scope && first.text("name") == name) {
                Some((_, first)) => {
                    let text = format!("the same plugin is configured at {} for the same requests", first.path);
                    found.push(plugin.fault("name", text));
                }
                None => scoped.push((scope, plugin)),
            }
        }
        let has_captures = scoped.iter().any(|(_, plugin)| plugin.node.to_json().to_string().contains("uri_captures"));
        Self { document, plugins: scoped, has_captures }
    }

    /// Limits of the plugin `upstream-timeout` for a route, in the form of the model; what it leaves out is the service's.
    pub(crate) fn timeouts(&self, route: usize, service: Option<usize>) -> Option<Node> {
        let scopes = [Some(Scope::Route(route)), service.map(Scope::Service), Some(Scope::Global)];
        let mut found = scopes.into_iter().flatten().filter_map(|scope| {
            let is_it = |(other, plugin): &&(Scope, &Entity)| *other == scope && plugin.text("name") == Some(TIMEOUT);
            self.plugins.iter().find(is_it).map(|(_, plugin)| *plugin)
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

    /// The plugins of a route, and where they stand.
    pub(crate) fn of_route(&self, route: usize) -> Plugins {
        self.collect(Scope::Route(route))
    }

    /// The plugins of a service.
    pub(crate) fn of_service(&self, service: usize) -> Plugins {
        self.collect(Scope::Service(service))
    }

    /// The plugins of a consumer.
    pub(crate) fn of_consumer(&self, consumer: usize) -> Plugins {
        self.collect(Scope::Consumer(consumer))
    }

    /// Adds the plugin config with the global plugins, and the global rule that makes answers Kong's.
    pub(crate) fn lower_global(&self, mark: Mark, lowered: &mut Lowered) {
        let Plugins { node, elsewhere } = self.collect(Scope::Global);
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
        let key = given.as_str()?;
        let mut all = self.document.of(EntityKind::Consumers).map(|(_, consumer)| consumer);
        let found = all.find(|consumer| consumer.id == key || consumer.name.as_deref() == Some(key))?;
        Some(Node { mark: given.mark, ..text(&consumers::key(found)) })
    }

    /// Writes the scheme of the service before the other host of a canary, and its port behind a host without one.
    fn complete_canary(&self, scope: Scope, config: &mut Node) {
        let service = match scope {
            Scope::Service(number) => Some(number),
            Scope::Route(number) => self.document.entities.get(number).and_then(|route| route.reference("service")),
            Scope::Global | Scope::Consumer(_) => None,
        };
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

    fn collect(&self, scope: Scope) -> Plugins {
        let mut plugins = Plugins { node: map(Mark::NONE, []), elsewhere: Vec::new() };
        for (_, plugin) in self.plugins.iter().filter(|(other, _)| *other == scope) {
            let name = plugin.text("name").unwrap_or_default();
            let mark = plugin.node.mark;
            let mut config = plugin.node.get("config").cloned().unwrap_or_else(|| map(mark, []));
            drop_nulls(&mut config);
            if let Some(anonymous) = config.get("anonymous").and_then(|node| self.consumer(node)) {
                config.insert("anonymous", anonymous);
            }
            if name == CANARY {
                self.complete_canary(scope, &mut config);
            }
            plugins.node.insert(name, config);
            plugins.elsewhere.push((format!("plugins.{name}"), plugin.at("config")));
        }
        plugins
    }
}

/// The plugins of one place in the form of the model, and the paths at which they stand.
pub(crate) struct Plugins {
    pub(crate) node: Node,
    pub(crate) elsewhere: Vec<(String, String)>,
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

fn scope(plugin: &Entity, found: &mut Vec<Diagnostic>) -> Option<Scope> {
    if plugin.reference("consumer_group").is_some() {
        found
            .push(plugin.fault("consumer_group", "plugins of consumer groups are Kong Enterprise's and not supported"));
        return None;
    }
    let [service, route, consumer] = ["service", "route", "consumer"].map(|field| plugin.reference(field));
    Some(match (service, route, consumer) {
        (None, None, None) => Scope::Global,
        (Some(service), None, None) => Scope::Service(service),
        // A route has one service, so that of a plugin beside it changes nothing.
        (_, Some(route), None) => Scope::Route(route),
        (None, None, Some(consumer)) => Scope::Consumer(consumer),
        _ => {
            let text = "a plugin for a consumer on one route or service alone is not supported yet: \
                write it for the consumer, or for the route or service";
            found.push(plugin.fault("consumer", text));
            return None;
        }
    })
}

/// True for a plugin that there is; says what is wrong with others.
fn is_known(plugin: &Entity, found: &mut Vec<Diagnostic>) -> bool {
    let Some(name) = plugin.text("name") else { return false };
    if plugin_names().any(|known| known == name) {
        return true;
    }
    let fault = match () {
        () if BUNDLED.contains(&name) => plugin.fault("name", format!("plugin '{name}' of Kong is not supported yet")),
        () if ENTERPRISE.contains(&name) => {
            plugin.fault("name", format!("plugin '{name}' of Kong Enterprise is not supported yet"))
        }
        () => {
            let near = nearest(name, plugin_names().chain(BUNDLED.iter().copied()));
            let hint = Hint::nearest(near);
            Diagnostic {
                hint,
                ..Diagnostic::error(
                    plugin.node.mark_of("name"),
                    plugin.at("name"),
                    rule(format!("plugin '{name}' is not known")),
                )
            }
        }
    };
    found.push(fault);
    false
}

/// True for a plugin that is not supported and guards nothing: a request may pass without it.
pub(crate) fn may_be_left_out(name: &str) -> bool {
    let is_kongs = BUNDLED.contains(&name) || ENTERPRISE.contains(&name);
    is_kongs && !GUARDS.contains(&name) && !plugin_names().any(|known| known == name)
}

/// Plugins that authenticate, limit or check requests.
#[rustfmt::skip]
const GUARDS: &[&str] = &[
    "acl", "ai-prompt-guard", "ai-rate-limiting-advanced", "ai-semantic-prompt-guard", "application-registration",
    "basic-auth", "bot-detection", "hmac-auth", "ip-restriction", "jwt", "key-auth", "ldap-auth", "mtls-auth", "oauth2",
    "opa", "openid-connect", "rate-limiting", "rate-limiting-advanced", "request-size-limiting",
    "request-termination", "request-validator", "response-ratelimiting", "session", "standard-webhooks",
];

/// The plugins that come with Kong 3.9.
#[rustfmt::skip]
const BUNDLED: &[&str] = &[
    "acl", "acme", "ai-prompt-decorator", "ai-prompt-guard", "ai-prompt-template", "ai-proxy", "ai-request-transformer",
    "ai-response-transformer", "aws-lambda", "azure-functions", "basic-auth", "bot-detection", "correlation-id", "cors",
    "datadog", "file-log", "grpc-gateway", "grpc-web", "hmac-auth", "http-log", "ip-restriction", "jwt", "key-auth",
    "ldap-auth", "loggly", "oauth2", "opentelemetry", "post-function", "pre-function", "prometheus", "proxy-cache",
    "rate-limiting", "redirect", "request-size-limiting", "request-termination", "request-transformer",
    "response-ratelimiting", "response-transformer", "session", "standard-webhooks", "statsd", "syslog", "tcp-log",
    "udp-log", "zipkin",
];

/// Plugins of Kong Enterprise that real files use.
const ENTERPRISE: &[&str] = &[
    "ai-proxy-advanced",
    "ai-rate-limiting-advanced",
    "ai-semantic-cache",
    "ai-semantic-prompt-guard",
    "application-registration",
    "canary",
    "exit-transformer",
    "jq",
    "mocking",
    "mtls-auth",
    "opa",
    "openid-connect",
    "proxy-cache-advanced",
    "rate-limiting-advanced",
    "request-transformer-advanced",
    "request-validator",
    "route-by-header",
    "upstream-timeout",
];
