//! From a configuration to a [`Snapshot`]: a pure step, all or nothing, away from the path of a request.

mod certificates;
mod consumers;
mod plugins;
mod upstreams;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use weir_config::settings::Dns;
use weir_config::{
    AddrRange, Diagnostic, Document, Id, InvalidItems, Node, PluginCatalog, RouterMode, Scope, Settings, Status,
};
use weir_plugin::{Definition, RouteInfo, StateRegistry, Tables};
use weir_router::{MethodSet, Mode, Router};

use crate::chain::{Chain, Phase};
use crate::snapshot::{Route, Snapshot};
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::HealthTable;
use crate::upstream::resolve::Resolver;
use certificates::Certificates;
use plugins::{Builder, Layer};
use upstreams::{SharedUpstreams, Upstreams};

/// The plugins there are.
pub type Definitions = &'static [&'static dyn Definition];

/// Compiles configurations; what outlives a single one is kept here.
#[derive(Debug)]
pub struct Compiler {
    definitions: ListedDefinitions,
    mode: Mode,
    limit_keys: usize,
    trusted_proxies: Vec<AddrRange>,
    https_port: u16,
    product: String,
    states: StateRegistry,
    endpoints: Arc<Endpoints>,
    health: HealthTable,
    certificates: Certificates,
}

/// A compiled configuration.
#[derive(Debug)]
pub struct Compiled {
    /// To be handed to the data plane.
    pub snapshot: Arc<Snapshot>,
    /// What was dropped because it cannot be built, when invalid items are skipped.
    pub warnings: Vec<Diagnostic>,
}

/// The registry, printable by its names.
#[derive(Clone, Copy, Default)]
pub(crate) struct ListedDefinitions(pub(crate) Definitions);

impl std::fmt::Debug for ListedDefinitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|d| d.name())).finish()
    }
}

/// The plugins as the loader asks about them.
#[derive(Clone, Copy)]
pub struct Catalog(pub Definitions);

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|d| d.name()).collect()
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>> {
        self.0.iter().find(|d| d.name() == name).map_or(Ok(()), |d| d.check(scope, conf))
    }
}

/// Those that the settings name; all of them where none is named.
#[derive(Clone, Copy)]
pub struct ChosenPlugins<'a> {
    /// All plugins.
    pub catalog: Catalog,
    /// The setting `plugins`.
    pub names: &'a [String],
}

impl ChosenPlugins<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|known| known == name)
    }

    /// Names in the setting that no plugin has.
    #[must_use]
    pub fn missing(&self) -> Vec<&str> {
        let known = self.catalog.names();
        self.names.iter().map(String::as_str).filter(|name| !known.contains(name)).collect()
    }
}

impl PluginCatalog for ChosenPlugins<'_> {
    fn names(&self) -> Vec<&str> {
        self.catalog.0.iter().map(|d| d.name()).filter(|name| self.has(name)).collect()
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>> {
        self.catalog.check(name, scope, conf)
    }

    fn is_left_out(&self, name: &str) -> bool {
        !self.has(name) && self.catalog.0.iter().any(|d| d.name() == name)
    }
}

/// Why an item cannot be built, and what to do about it.
struct Faults {
    invalid: InvalidItems,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

impl Faults {
    /// Notes why an item is not built. It refuses the change, unless invalid items are skipped.
    fn item(&mut self, diagnostic: Diagnostic) {
        match self.invalid {
            InvalidItems::Refuse => self.errors.push(diagnostic),
            InvalidItems::Skip => self.warnings.push(diagnostic),
        }
    }

    /// Notes what refuses the change in any case.
    fn whole(&mut self, diagnostic: Diagnostic) {
        self.errors.push(diagnostic);
    }
}

impl Compiler {
    /// A compiler for these plugins and settings; `product` is told in fields such as `x-mock-by`.
    #[must_use]
    pub fn new(definitions: Definitions, settings: &Settings, product: &str) -> Self {
        let mode = match settings.router {
            RouterMode::RadixtreeHostUri => Mode::HostUri,
            RouterMode::RadixtreeUri => Mode::Uri,
            RouterMode::RadixtreeUriWithParameter => Mode::UriWithParameter,
        };
        Self {
            definitions: ListedDefinitions(definitions),
            mode,
            limit_keys: settings.limits.limit_keys as usize,
            trusted_proxies: settings.trusted_proxies.clone(),
            https_port: settings.https_port(),
            product: product.to_owned(),
            states: StateRegistry::default(),
            endpoints: Arc::default(),
            health: HealthTable::default(),
            certificates: Certificates::new(settings),
        }
    }

    /// Compiles a configuration.
    ///
    /// # Errors
    /// Everything that cannot be built.
    pub fn compile(
        &self,
        document: &Document,
        invalid: InvalidItems,
        revision: u64,
    ) -> Result<Compiled, Vec<Diagnostic>> {
        let mut faults = Faults { invalid, errors: Vec::new(), warnings: Vec::new() };
        let consumers = consumers::list(document);
        let credentials = consumers::credentials(self, document, &consumers, &mut faults);
        let upstreams = Upstreams::new(&self.endpoints, &self.health, &self.certificates, document);
        let upstreams = SharedUpstreams(RefCell::new(upstreams));
        let builder = Builder {
            definitions: self.definitions.0,
            states: &self.states,
            consumers: &consumers,
            credentials: &credentials,
            metadata: document.plugin_metadata.iter().map(|m| (m.plugin.as_str(), &m.conf)).collect(),
            limit_keys: self.limit_keys,
            trusted_proxies: &self.trusted_proxies,
            https_port: self.https_port,
            product: &self.product,
            upstreams: &upstreams,
        };
        let consumer_chains = consumers::chains(document, &consumers, &builder, &mut faults);
        let global = self.global(document, &builder, &mut faults);
        let tls = self.certificates.hosts(document, &mut faults);
        let mut routes = Routes::default();
        self.routes(document, &builder, &upstreams, &mut routes, &global, &mut faults);
        if !faults.errors.is_empty() {
            return Err(faults.errors);
        }
        let origins = routes.origins;
        let router = Router::build(self.mode, routes.patterns).map_err(|error| {
            let origin = origins.get(error.route);
            let path = origin.map(|o| format!("{}.{}", o.path, error.path)).unwrap_or_default();
            vec![Diagnostic::error(origin.map(|o| o.mark).unwrap_or_default(), path, error.message)]
        })?;
        let tables = Arc::new(Tables { router: Some(router), routes: routes.infos, consumers });
        let snapshot = Snapshot {
            revision,
            tables,
            routes: routes.compiled,
            upstreams: upstreams.0.into_inner().compiled,
            tls,
            global,
            consumers: consumer_chains,
            definitions: self.definitions,
        };
        Ok(Compiled { snapshot: Arc::new(snapshot), warnings: faults.warnings })
    }

    /// Forgets state, health and endpoints that no snapshot uses; to be called after snapshots were freed.
    pub fn sweep(&self) {
        self.states.sweep();
        self.health.sweep();
        self.endpoints.sweep();
        self.certificates.sweep();
    }

    /// What keeps the addresses of named nodes fresh.
    ///
    /// # Errors
    /// The system's DNS configuration cannot be read.
    pub fn resolver(&self, dns: &Dns) -> Result<Resolver, String> {
        Resolver::new(Arc::clone(&self.endpoints), dns)
    }

    fn global(&self, document: &Document, builder: &Builder<'_>, faults: &mut Faults) -> Chain {
        let mut layer = Layer::default();
        for rule in &document.global_rules {
            match builder.layer(
                Some(&rule.plugins),
                &format!("global_rule/{}", rule.id),
                &rule.origin.path,
                Scope::GlobalRule,
            ) {
                Ok(built) => layer.put_over(&built),
                // Serving without it would open what it guards, so it refuses the change even where items are skipped.
                Err(diagnostic) => faults.whole(diagnostic),
            }
        }
        layer.chain()
    }

    fn routes<'d>(
        &self,
        document: &'d Document,
        builder: &Builder<'_>,
        upstreams: &SharedUpstreams<'d>,
        routes: &mut Routes<'d>,
        global: &Chain,
        faults: &mut Faults,
    ) {
        let mut services: HashMap<&Id, Result<Layer, Diagnostic>> = HashMap::new();
        for service in &document.services {
            let place = format!("service/{}", service.id);
            services.insert(
                &service.id,
                builder.layer(service.plugins.as_ref(), &place, &service.origin.path, Scope::Route),
            );
        }
        let mut configs: HashMap<&Id, Result<Layer, Diagnostic>> = HashMap::new();
        for config in &document.plugin_configs {
            let place = format!("plugin_config/{}", config.id);
            configs.insert(&config.id, builder.layer(Some(&config.plugins), &place, &config.origin.path, Scope::Route));
        }
        let by_id: HashMap<&Id, &weir_config::Service> = document.services.iter().map(|s| (&s.id, s)).collect();
        for route in document.routes.iter().filter(|r| r.status == Status::Enabled) {
            let service = route.service_id.as_ref().and_then(|id| by_id.get(id)).copied();
            let place = format!("route/{}", route.id);
            let own = builder.layer(route.plugins.as_ref(), &place, &route.origin.path, Scope::Route);
            let below = route.service_id.as_ref().and_then(|id| services.get(id));
            let shared = route.plugin_config_id.as_ref().and_then(|id| configs.get(id));
            let mut layer = Layer::default();
            let mut fault = None;
            for part in below.into_iter().chain(shared).chain([&own]) {
                match part {
                    Ok(part) => layer.put_over(part),
                    Err(diagnostic) => fault = Some(diagnostic.clone()),
                }
            }
            if let Some(diagnostic) = fault {
                faults.item(diagnostic);
                continue;
            }
            let upstream = match upstreams.0.borrow_mut().of_route(route, service) {
                Ok(upstream) => upstream,
                Err(diagnostic) => {
                    faults.item(diagnostic);
                    continue;
                }
            };
            routes.push(route, service, layer.chain(), upstream, global);
        }
    }
}

/// Routes in the three forms in which they are needed, by the same position.
#[derive(Default)]
struct Routes<'d> {
    patterns: Vec<weir_router::Route>,
    infos: Vec<RouteInfo>,
    compiled: Vec<Route>,
    origins: Vec<&'d weir_config::Origin>,
}

impl<'d> Routes<'d> {
    fn push(
        &mut self,
        route: &'d weir_config::Route,
        service: Option<&weir_config::Service>,
        chain: Chain,
        upstream: Option<u32>,
        global: &Chain,
    ) {
        let logs = chain.has(Phase::Log) || global.has(Phase::Log);
        let own: Vec<String> = route.host_patterns().map(|h| h.as_str().to_owned()).collect();
        let hosts = match service {
            Some(service) if own.is_empty() => service.hosts.iter().map(|h| h.as_str().to_owned()).collect(),
            _ => own,
        };
        let paths: Vec<String> = route.paths().map(|p| p.as_str().to_owned()).collect();
        self.infos.push(RouteInfo {
            id: route.id.as_str().into(),
            name: route.name.as_deref().map(Into::into),
            service_id: route.service_id.as_ref().map(|id| id.as_str().into()),
            service_name: service.and_then(|s| s.name.as_deref()).map(Into::into),
            paths: paths.iter().map(|p| p.as_str().into()).collect(),
            hosts: hosts.iter().map(|h| h.as_str().into()).collect(),
        });
        self.patterns.push(weir_router::Route {
            paths,
            hosts,
            methods: route.methods.iter().filter_map(|m| MethodSet::named(m.as_str())).collect(),
            remote_addrs: route.client_ranges().map(|r| r.net()).collect(),
            vars: route.vars.as_ref().map(|v| v.expr().clone()),
            priority: route.priority,
            order: self.patterns.len() as u64,
        });
        let service_websocket = service.and_then(|s| s.enable_websocket);
        self.compiled.push(Route {
            chain,
            upstream,
            timeouts: route.timeout.as_ref().map(upstreams::timeouts),
            websocket: route.enable_websocket.or(service_websocket).unwrap_or(false),
            logs,
        });
        self.origins.push(&route.origin);
    }
}
