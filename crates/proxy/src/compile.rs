//! Compilation of a configuration to a [`Snapshot`]: a pure step, all or nothing, away from the path of a request.
//! After a change the new snapshot shares all unaffected parts with the one before.

mod certificates;
mod consumers;
mod ledger;
pub(crate) mod left_out;
mod making;
mod plugins;
mod references;
mod routes;
mod streams;
pub(crate) mod unresolved;
mod upstreams;

use std::sync::Arc;

use weir_config::settings::{Discovery, Dns, PluginNames};
use weir_config::{
    APISIX, Checked, Code, CompiledConf, Diagnostic, Family, InvalidItems, Mark, Model, Node, PluginCatalog,
    ResourceKey, RouterMode, Scope, Settings,
};
use weir_net::Network;
use weir_plugin::host::Definition;
use weir_plugin::{Api, StateRegistry};
use weir_router::Mode;

use crate::chain::MOST_PLUGINS;
use crate::snapshot::Snapshot;
use crate::upstream::dns_services::DnsServices;
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::HealthTable;
use crate::upstream::resolve::Resolver;
use crate::upstream::services::Services;
use certificates::Certificates;
use making::Compilation;
pub(crate) use making::Kept;

/// The plugins there are.
pub type Definitions = &'static [&'static dyn Definition];

/// Compiles configurations; what outlives a single one is kept here.
#[derive(Debug)]
pub struct Compiler {
    /// Plugins of APISIX's family.
    definitions: ListedDefinitions,
    /// Plugins of the other families, by name.
    families: Vec<(&'static str, ListedDefinitions)>,
    mode: Mode,
    limit_keys: usize,
    route_entries: u64,
    compiled_size: u64,
    https_port: u16,
    cache_zones: Box<[weir_config::settings::CacheZone]>,
    /// True if logs mask credentials: `access_log.hide_credentials`.
    hides_credentials: bool,
    product: String,
    kong: weir_config::settings::Kong,
    apis: Vec<Arc<dyn Api>>,
    states: StateRegistry,
    endpoints: Arc<Endpoints>,
    health: Arc<HealthTable>,
    services: Arc<Services>,
    certificates: Certificates,
    network: Arc<Network>,
}

/// A compiled configuration.
#[derive(Debug)]
pub struct Compiled {
    /// Snapshot for the data plane.
    pub snapshot: Arc<Snapshot>,
    /// Items dropped because they cannot be built, when invalid items are skipped.
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

/// The plugins as the loader sees them.
#[derive(Clone, Copy)]
pub struct Catalog(pub Definitions);

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|d| d.name()).collect()
    }

    fn is_auth(&self, name: &str) -> bool {
        self.0.iter().any(|definition| definition.name() == name && definition.is_auth())
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        let Some(definition) = self.0.iter().find(|d| d.name() == name) else { return Checked::default() };
        let (found, prepared) = definition.check(scope, conf);
        Checked { found, compiled: prepared.map(|prepared| Box::new(prepared) as CompiledConf) }
    }
}

/// The plugins that the settings name; all plugins where none is named.
#[derive(Clone, Copy)]
pub struct ChosenPlugins<'a> {
    /// All plugins.
    pub catalog: Catalog,
    /// The setting `plugins`.
    pub names: &'a [String],
}

impl ChosenPlugins<'_> {
    /// True for a plugin that the setting names, be there such a plugin or not.
    #[must_use]
    pub fn is_wanted(&self, name: &str) -> bool {
        self.has(name)
    }

    fn has(&self, name: &str) -> bool {
        // APISIX's list of the plugins of streams is another one.
        let on_streams_alone = |name: &str| self.catalog.0.iter().any(|d| d.name() == name && !d.is_for_requests());
        self.names.iter().any(|known| known == PluginNames::ALL || known == name) || on_streams_alone(name)
    }

    /// Names in the setting that no plugin has.
    #[must_use]
    pub fn missing(&self) -> Vec<&str> {
        let known = self.catalog.names();
        let names = self.names.iter().map(String::as_str);
        names.filter(|name| *name != PluginNames::ALL && !known.contains(name)).collect()
    }
}

impl PluginCatalog for ChosenPlugins<'_> {
    fn names(&self) -> Vec<&str> {
        self.catalog.0.iter().map(|d| d.name()).filter(|name| self.has(name)).collect()
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        self.catalog.check(name, scope, conf)
    }

    fn is_auth(&self, name: &str) -> bool {
        self.catalog.is_auth(name)
    }

    fn is_left_out(&self, name: &str) -> bool {
        !self.has(name) && self.catalog.0.iter().any(|d| d.name() == name)
    }
}

/// Faults of items that cannot be built, and the policy for them.
struct Faults {
    invalid: InvalidItems,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

impl Faults {
    /// Records why an item is not built. The change is refused, unless invalid items are skipped.
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
    /// A compiler for these plugins and settings; `product` is shown in fields such as `x-mock-by`.
    #[must_use]
    pub fn new(definitions: Definitions, settings: &Settings, product: &str) -> Self {
        let mode = match settings.router {
            RouterMode::RadixtreeHostUri => Mode::HostUri,
            RouterMode::RadixtreeUri => Mode::Uri,
            RouterMode::RadixtreeUriWithParameter => Mode::UriWithParameter,
        };
        Self {
            definitions: ListedDefinitions(definitions),
            families: Vec::new(),
            mode,
            limit_keys: settings.limits.limit_keys as usize,
            route_entries: settings.limits.route_entries.into(),
            compiled_size: settings.limits.compiled_size.bytes(),
            https_port: settings.https_port(),
            cache_zones: settings.cache_zones.clone().into(),
            hides_credentials: settings.access_log.hide_credentials,
            product: product.to_owned(),
            kong: settings.kong_answers.clone(),
            apis: Vec::new(),
            states: StateRegistry::default(),
            endpoints: Arc::default(),
            health: Arc::default(),
            services: Arc::new(Services::new(&settings.discovery)),
            certificates: Certificates::new(settings),
            network: Arc::new(Network::new(&settings.tls.trusted_certificate)),
        }
    }

    /// Sets the APIs that routes may expose.
    #[must_use]
    pub fn with_apis(self, apis: Vec<Arc<dyn Api>>) -> Self {
        Self { apis, ..self }
    }

    /// The same, with the plugins of another family.
    #[must_use]
    pub fn with_family(mut self, family: &Family, definitions: Definitions) -> Self {
        self.families.push((family.name, ListedDefinitions(definitions)));
        self
    }

    /// The plugins of a family; none for one that was not added.
    fn definitions(&self, family: &Family) -> ListedDefinitions {
        let other = || self.families.iter().find(|(name, _)| *name == family.name);
        if family == &APISIX { self.definitions } else { other().map_or_else(Default::default, |(_, list)| *list) }
    }

    /// The order of routes in a family.
    fn mode(&self, family: &Family) -> Mode {
        if family.is_ranked { Mode::Ranked } else { self.mode }
    }

    /// State of plugins that outlives changes.
    #[must_use]
    pub fn states(&self) -> &StateRegistry {
        &self.states
    }

    /// Compiles a configuration.
    ///
    /// # Errors
    /// Everything that cannot be built, or that there are more than 255 plugins.
    pub fn compile(&self, model: &Model, invalid: InvalidItems, revision: u64) -> Result<Compiled, Vec<Diagnostic>> {
        let registered = self.definitions(model.family).0.len();
        if registered > MOST_PLUGINS {
            let text = format!("{registered} plugins are registered: there may be {MOST_PLUGINS}");
            return Err(vec![Diagnostic::error(Mark::NONE, "", Code::PluginRule { text: text.into() })]);
        }
        let mut faults = Faults { invalid, errors: Vec::new(), warnings: Vec::new() };
        let snapshot = Compilation::whole(self, model).finish(&mut faults, revision);
        model.compiled.clear();
        let snapshot = snapshot?;
        Ok(Compiled { snapshot: Arc::new(snapshot), warnings: faults.warnings })
    }

    /// Compiles the changes of a configuration, and shares the rest with `base`, the snapshot before them. The result
    /// equals that of [`Compiler::compile`] for `model`.
    ///
    /// # Errors
    /// Everything that cannot be built.
    pub fn change(
        &self,
        base: &Snapshot,
        model: &Model,
        places: &[ResourceKey],
        revision: u64,
    ) -> Result<Compiled, Vec<Diagnostic>> {
        let invalid = InvalidItems::Refuse;
        let Some(making) = Compilation::change(self, base, model, places) else {
            return self.compile(model, invalid, revision);
        };
        let mut faults = Faults { invalid, errors: Vec::new(), warnings: Vec::new() };
        let snapshot = making.finish(&mut faults, revision);
        model.compiled.clear();
        let snapshot = snapshot?;
        Ok(Compiled { snapshot: Arc::new(snapshot), warnings: faults.warnings })
    }

    /// Forgets state, health and endpoints that no snapshot uses; to be called after snapshots were freed.
    pub fn sweep(&self) {
        self.states.sweep();
        self.health.sweep();
        self.endpoints.sweep();
        self.certificates.sweep();
    }

    /// The nodes of services, as registries report them.
    #[must_use]
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The resolver of services that name servers know; `None` where the settings name no servers.
    ///
    /// # Errors
    /// A file of the settings cannot be read.
    pub fn dns_services(&self, dns: &Dns, discovery: &Discovery) -> Result<Option<DnsServices>, String> {
        DnsServices::new(&self.services, dns, discovery)
    }

    /// The resolver that keeps the addresses of named nodes fresh, and resolves names that plugins connect to.
    ///
    /// # Errors
    /// The system's DNS configuration cannot be read.
    pub fn resolver(&self, dns: &Dns) -> Result<Resolver, String> {
        Resolver::new(Arc::clone(&self.endpoints), Arc::clone(&self.network), dns)
    }
}
