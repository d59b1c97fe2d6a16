//! From a configuration to a [`Snapshot`]: a pure step, all or nothing, away from the path of a request. A change makes
//! a snapshot out of the one before, with which it shares what it does not concern.

mod certificates;
mod consumers;
mod ledger;
mod left_out;
mod making;
mod plugins;
mod routes;
mod unresolved;
mod upstreams;

use std::sync::Arc;

use weir_config::settings::{Dns, PluginNames};
use weir_config::{Diagnostic, InvalidItems, Model, Node, Place, PluginCatalog, RouterMode, Scope, Settings};
use weir_net::Network;
use weir_plugin::{Api, Definition, StateRegistry};
use weir_router::Mode;

use crate::snapshot::Snapshot;
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::HealthTable;
use crate::upstream::resolve::Resolver;
use certificates::Certificates;
pub(crate) use making::Kept;
use making::Making;

/// The plugins there are.
pub type Definitions = &'static [&'static dyn Definition];

/// Compiles configurations; what outlives a single one is kept here.
#[derive(Debug)]
pub struct Compiler {
    definitions: ListedDefinitions,
    mode: Mode,
    limit_keys: usize,
    route_entries: u64,
    compiled_size: u64,
    https_port: u16,
    /// Whether logs mask credentials: `access_log.hide_credentials`.
    hides_credentials: bool,
    product: String,
    apis: Vec<Arc<dyn Api>>,
    states: StateRegistry,
    endpoints: Arc<Endpoints>,
    health: HealthTable,
    certificates: Certificates,
    network: Arc<Network>,
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
    /// True for a plugin that the setting names, be there such a plugin or not.
    #[must_use]
    pub fn is_wanted(&self, name: &str) -> bool {
        self.has(name)
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == PluginNames::ALL || known == name)
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
            route_entries: settings.limits.route_entries.into(),
            compiled_size: settings.limits.compiled_size.bytes(),
            https_port: settings.https_port(),
            hides_credentials: settings.access_log.hide_credentials,
            product: product.to_owned(),
            apis: Vec::new(),
            states: StateRegistry::default(),
            endpoints: Arc::default(),
            health: HealthTable::default(),
            certificates: Certificates::new(settings),
            network: Arc::new(Network::new(&settings.tls.trusted_certificate)),
        }
    }

    /// The same, with APIs that routes may expose.
    #[must_use]
    pub fn with_apis(self, apis: Vec<Arc<dyn Api>>) -> Self {
        Self { apis, ..self }
    }

    /// Compiles a configuration.
    ///
    /// # Errors
    /// Everything that cannot be built.
    pub fn compile(&self, model: &Model, invalid: InvalidItems, revision: u64) -> Result<Compiled, Vec<Diagnostic>> {
        let mut faults = Faults { invalid, errors: Vec::new(), warnings: Vec::new() };
        let snapshot = Making::whole(self, model).finish(&mut faults, revision)?;
        Ok(Compiled { snapshot: Arc::new(snapshot), warnings: faults.warnings })
    }

    /// Compiles what has changed of a configuration, and shares the rest with `base`, the snapshot of what it was before.
    /// What comes of it is what [`Compiler::compile`] would make of `model`.
    ///
    /// # Errors
    /// Everything that cannot be built.
    pub fn change(
        &self,
        base: &Snapshot,
        model: &Model,
        places: &[Place],
        revision: u64,
    ) -> Result<Compiled, Vec<Diagnostic>> {
        let invalid = InvalidItems::Refuse;
        let Some(making) = Making::change(self, base, model, places) else {
            return self.compile(model, invalid, revision);
        };
        let mut faults = Faults { invalid, errors: Vec::new(), warnings: Vec::new() };
        let snapshot = making.finish(&mut faults, revision)?;
        Ok(Compiled { snapshot: Arc::new(snapshot), warnings: faults.warnings })
    }

    /// Forgets state, health and endpoints that no snapshot uses; to be called after snapshots were freed.
    pub fn sweep(&self) {
        self.states.sweep();
        self.health.sweep();
        self.endpoints.sweep();
        self.certificates.sweep();
    }

    /// What keeps the addresses of named nodes fresh, and answers for names that plugins connect to.
    ///
    /// # Errors
    /// The system's DNS configuration cannot be read.
    pub fn resolver(&self, dns: &Dns) -> Result<Resolver, String> {
        Resolver::new(Arc::clone(&self.endpoints), Arc::clone(&self.network), dns)
    }
}
