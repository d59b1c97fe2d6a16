//! One run of the compiler: a snapshot made from nothing, or from the one before.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use weir_config::{Diagnostic, Model, ResourceKey, ResourceKind, Scope, SharedMap, SharedSet};
use weir_plugin::{ArgumentNames, ConsumerSet, Consumers, Credentials, Plans, RouteInfo, Shared, Tables};
use weir_router::{Numbers, Router, Slots};

use super::consumers;
use super::ledger::Ledger;
use super::plugins::{Builder, Built, Layer};
use super::references::{NamedConsumers, UsedProtos};
use super::streams::StreamUses;
use super::upstreams::{Numbered, SharedUpstreams, Upstreams, is_for_streams};
use super::{Compiler, Faults};
use crate::chain::{Brought, Chain};
use crate::snapshot::{Route, Snapshot};
use crate::stream::table::StreamTable;
use crate::tls::server::Hosts;

/// State of the compiler for a snapshot, from which the next one is made. Workers do not use it.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    model: Model,
    numbered: Numbered,
    slots: RouteSlots,
    stream_uses: StreamUses,
    layers: Layers,
    /// Consumers that plugins refer to by their numbers.
    named: SharedSet<u32>,
    /// Names of consumers that plugins refer to and that were not there.
    awaited: SharedSet<Arc<str>>,
    /// Ids of the protos that plugins were built with.
    protos: SharedSet<Arc<str>>,
    /// Bytes that all of it takes.
    size: u64,
}

/// Numbers of routes.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteSlots {
    pub(super) by_id: SharedMap<Arc<str>, u32>,
    pub(super) numbers: Numbers,
    /// The upstreams that each uses: its own, and those that its own plugins may choose.
    pub(super) uses: Slots<Box<[u32]>>,
    /// Bytes that each takes.
    pub(super) sizes: Slots<u64>,
}

/// Plugins that were built for services, plugin configs, consumer groups and consumers; and for all global rules under
/// the place without an id. Layers that cannot be built are absent, and are built again when needed.
pub(super) type Layers = SharedMap<ResourceKey, Arc<Built>>;

/// A snapshot while it is made.
pub(super) struct Compilation<'m> {
    compiler: &'m Compiler,
    /// The configuration before the change.
    before: Option<&'m Model>,
    model: &'m Model,
    /// Items to be compiled.
    places: BTreeSet<ResourceKey>,
    router: Option<&'m Router>,
    pub(super) routes: Slots<Route>,
    pub(super) infos: Slots<Arc<RouteInfo>>,
    pub(super) consumers: Arc<Consumers>,
    pub(super) consumer_chains: Arc<Slots<Arc<Brought>>>,
    plans: Arc<Plans>,
    credentials: Box<[Option<Credentials>]>,
    tls: Arc<Hosts>,
    global: Arc<Chain>,
    pub(super) streams: Arc<StreamTable>,
    pub(super) stream_uses: StreamUses,
    numbered: Numbered,
    pub(super) slots: RouteSlots,
    pub(super) layers: Layers,
    named: SharedSet<u32>,
    awaited: SharedSet<Arc<str>>,
    protos: SharedSet<Arc<str>>,
    size: u64,
    credential_arguments: Arc<ArgumentNames>,
    background: Arc<[Shared]>,
}

/// Names of query arguments that may have come together by changes, before the whole is compiled to forget those that no
/// plugin has any more.
const MOST_ARGUMENTS: usize = 256;

/// Uses of the upstream at a place: requests, streams.
fn uses_of(model: &Model, place: &ResourceKey) -> Option<(bool, bool)> {
    let upstream = match place.kind() {
        ResourceKind::Upstreams => model.upstreams.get(place.id()).map(AsRef::as_ref),
        _ => model.services.get(place.id()).and_then(|service| service.upstream.as_deref()),
    };
    upstream.map(|upstream| (upstream.scheme.of_streams().is_none(), is_for_streams(upstream.scheme)))
}

impl<'m> Compilation<'m> {
    /// A run for all of a configuration.
    pub(super) fn whole(compiler: &'m Compiler, model: &'m Model) -> Self {
        Self {
            compiler,
            before: None,
            model,
            places: BTreeSet::new(),
            router: None,
            routes: Slots::default(),
            infos: Slots::default(),
            consumers: Arc::default(),
            consumer_chains: Arc::default(),
            plans: Arc::default(),
            credentials: compiler.definitions(model.family).0.iter().map(|_| None).collect(),
            tls: Arc::default(),
            global: Arc::clone(Chain::nothing()),
            streams: Arc::default(),
            stream_uses: StreamUses::default(),
            numbered: Numbered::default(),
            slots: RouteSlots::default(),
            layers: SharedMap::new(),
            named: SharedSet::new(),
            awaited: SharedSet::new(),
            protos: SharedSet::new(),
            size: 0,
            credential_arguments: Arc::default(),
            background: Arc::default(),
        }
    }

    /// The changes at these places; `None`: they concern too much, or too little is known of the configuration before.
    pub(super) fn change(
        compiler: &'m Compiler,
        base: &'m Snapshot,
        model: &'m Model,
        places: &[ResourceKey],
    ) -> Option<Self> {
        let kept = base.kept.as_ref().filter(|_| base.credential_arguments.len() <= MOST_ARGUMENTS)?;
        let mut all: BTreeSet<ResourceKey> = BTreeSet::new();
        for place in places {
            match place.kind() {
                // Metadata and secrets are part of whatever was built from them, wherever their plugin or a reference
                // stands.
                ResourceKind::PluginMetadata | ResourceKind::Secrets => return None,
                // A number that plugins hold would lead to another consumer.
                ResourceKind::Consumers if model.consumers.get(place.id()).is_none() => {
                    let number = base.tables.consumers.find(place.id());
                    if number.is_some_and(|number| kept.named.contains(&number)) {
                        return None;
                    }
                }
                // Plugins were built without it, wherever they stand.
                ResourceKind::Consumers
                    if base.tables.consumers.find(place.id()).is_none() && kept.awaited.contains(place.id()) =>
                {
                    return None;
                }
                // Part of what was built with it, wherever the plugin stands.
                ResourceKind::Protos if kept.protos.contains(place.id()) => return None,
                // Plugins that refer to it have to be found.
                ResourceKind::Plans if model.plans.get(place.id()).is_none() => return None,
                // Upstreams are set up with the certificate itself.
                ResourceKind::Ssls => all.extend(model.referrers(place).cloned()),
                // Resources that refer to it by its number may not be able to use it any more.
                ResourceKind::Upstreams | ResourceKind::Services
                    if uses_of(&kept.model, place) != uses_of(model, place) =>
                {
                    return None;
                }
                _ => {}
            }
            all.insert(place.clone());
        }
        Some(Self {
            compiler,
            before: Some(&kept.model),
            model,
            places: all,
            router: base.tables.router.as_ref(),
            routes: base.routes.clone(),
            infos: base.tables.routes.clone(),
            consumers: Arc::clone(&base.tables.consumers),
            consumer_chains: Arc::clone(&base.consumers),
            plans: Arc::clone(&base.tables.plans),
            credentials: base.tables.credentials.clone(),
            tls: Arc::clone(&base.tls),
            global: Arc::clone(&base.global),
            streams: Arc::clone(&base.streams),
            stream_uses: kept.stream_uses.clone(),
            numbered: kept.numbered.clone(),
            slots: kept.slots.clone(),
            layers: kept.layers.clone(),
            named: kept.named.clone(),
            awaited: kept.awaited.clone(),
            protos: kept.protos.clone(),
            size: kept.size,
            credential_arguments: Arc::clone(&base.credential_arguments),
            background: Arc::clone(&base.background),
        })
    }

    /// Compiles what is to be compiled.
    ///
    /// # Errors
    /// Everything that cannot be built.
    pub(super) fn finish(mut self, faults: &mut Faults, revision: u64) -> Result<Snapshot, Vec<Diagnostic>> {
        let (compiler, model) = (self.compiler, self.model);
        let changed = consumers::changes(self.before, model, &self.places);
        if !changed.is_empty() || self.before.is_none() {
            let consumers = Arc::make_mut(&mut self.consumers);
            let numbers = consumers::list(consumers, &changed);
            consumers::credentials(
                compiler.definitions(model.family),
                &mut self.credentials,
                consumers,
                &changed,
                &numbers,
                faults,
            );
        }
        for id in self.concerned(ResourceKind::Plans, |model| model.plans.shared_ids().collect()) {
            if let Some(plan) = model.plans.get(&id) {
                Arc::make_mut(&mut self.plans).put(plan);
            }
        }
        let plans = Arc::clone(&self.plans);
        let consumers = Arc::clone(&self.consumers);
        let consumers = NamedConsumers {
            consumers: &consumers,
            asked: RefCell::default(),
            missing: RefCell::default(),
            awaited: RefCell::new(std::mem::take(&mut self.awaited)),
        };
        let protos = UsedProtos { protos: &model.protos, used: RefCell::new(std::mem::take(&mut self.protos)) };
        let numbered = std::mem::take(&mut self.numbered);
        let ledger = Ledger::new(compiler.compiled_size, self.size);
        let upstreams = Upstreams::new(
            &compiler.endpoints,
            &compiler.health,
            &compiler.services,
            &compiler.certificates,
            model,
            &ledger,
            numbered,
        );
        let upstreams = SharedUpstreams(RefCell::new(upstreams));
        for place in &self.places {
            if let Err(diagnostic) = upstreams.0.borrow_mut().renew(place) {
                faults.item(diagnostic);
            }
        }
        let builder = Builder {
            definitions: compiler.definitions(model.family).0,
            states: &compiler.states,
            consumers: &consumers,
            plans: &plans,
            protos: &protos,
            metadata: &model.plugin_metadata,
            compiled: &model.compiled,
            limit_keys: compiler.limit_keys,
            https_port: compiler.https_port,
            cache_zones: &compiler.cache_zones,
            product: &compiler.product,
            kong: &compiler.kong,
            network: &compiler.network,
            apis: &compiler.apis,
            upstreams: &upstreams,
            ledger: &ledger,
            credential_arguments: RefCell::new(Arc::clone(&self.credential_arguments)),
            warnings: RefCell::default(),
            warned: RefCell::default(),
        };
        self.consumer_chains(&builder, faults);
        if self.concerns(ResourceKind::GlobalRules) {
            self.global(&builder, faults);
        }
        if self.concerns(ResourceKind::Ssls) {
            self.tls = Arc::new(compiler.certificates.hosts(model, faults));
        }
        let routes = self.routes(&builder, faults);
        self.consumers_on_routes(&builder, faults);
        self.streams(&builder, faults);
        let mut warnings = builder.warnings.take();
        warnings.append(&mut upstreams.0.borrow_mut().warnings);
        if compiler.hides_credentials {
            self.credential_arguments = builder.credential_arguments.take();
        }
        if !faults.errors.is_empty() {
            return Err(std::mem::take(&mut faults.errors));
        }
        // A change of metadata compiles the whole.
        if self.before.is_none() {
            self.background = builder.background().map_err(|fault| vec![fault])?.into();
        }
        let router = match self.router {
            None => Router::build(compiler.mode(model.family), routes.all()),
            Some(before) => before.change(&routes.patterns),
        };
        let router = router.map_err(|error| vec![routes.located(&error)])?;
        faults.warnings.extend(routes.others(&router, &self.infos));
        self.awaited = consumers.awaited.into_inner();
        self.protos = protos.used.into_inner();
        for number in consumers.asked.into_inner() {
            self.named.insert_cow(number);
        }
        let Some(numbered) = upstreams.0.into_inner().finish() else {
            // A reference to an upstream that is gone: compiling the whole configuration reports it.
            return Compilation::whole(compiler, model).finish(faults, revision);
        };
        faults.warnings.extend(warnings);
        self.size = ledger.total();
        Ok(self.snapshot(router, numbered, revision, faults))
    }

    fn snapshot(self, router: Router, numbered: Numbered, revision: u64, faults: &Faults) -> Snapshot {
        let left_out = faults.warnings.iter().any(Diagnostic::is_error);
        let (compiled, checked) = (numbered.compiled.clone(), numbered.checked.clone());
        let discovered = numbered.discovered.clone();
        let Self { slots, stream_uses, layers, named, awaited, protos, size, .. } = self;
        let kept =
            Kept { model: self.model.clone(), numbered, slots, stream_uses, layers, named, awaited, protos, size };
        Snapshot {
            revision,
            tables: Arc::new(Tables {
                router: Some(router),
                routes: self.infos,
                consumers: self.consumers,
                plans: self.plans,
                credentials: self.credentials,
            }),
            routes: self.routes,
            upstreams: compiled,
            checked,
            discovered,
            tls: self.tls,
            global: self.global,
            streams: self.streams,
            credential_arguments: self.credential_arguments,
            background: self.background,
            consumers: self.consumer_chains,
            definitions: self.compiler.definitions(self.model.family),
            family: self.model.family.name,
            // A resource that was left out may be valid with the next change.
            kept: (self.model.is_changeable() && !left_out).then_some(kept),
            refuses_all: false,
        }
    }

    /// True if anything of this kind is to be compiled.
    pub(super) fn concerns(&self, kind: ResourceKind) -> bool {
        self.before.is_none() || self.places.iter().any(|place| place.kind() == kind)
    }

    fn global(&mut self, builder: &Builder<'_, '_>, faults: &mut Faults) {
        let place = ResourceKey::new(ResourceKind::GlobalRules, "");
        self.drop_layer(builder, &place);
        let mut all = Layer::default();
        let mut uses = Vec::new();
        let mut size = 0;
        for rule in self.model.global_rules.in_order() {
            let rule = &rule.item;
            let place = format!("global_rule/{}", rule.id);
            match builder.build(Some(&rule.plugins), &place, &rule.origin.path, Scope::GlobalRule) {
                Ok(built) => {
                    all.put_over(&built.layer);
                    uses.extend(built.upstreams);
                    size += built.size;
                }
                // Serving without it would open what it guards, so it refuses the change even where items are skipped.
                Err(diagnostic) => faults.whole(diagnostic),
            }
        }
        self.global = all.chain();
        self.put_layer(builder, place, Built::new(all, uses.into(), size));
    }

    /// Keeps plugins that were built for several users, instead of those that were there before.
    pub(super) fn put_layer(&mut self, builder: &Builder<'_, '_>, place: ResourceKey, built: Built) -> Arc<Built> {
        let mut upstreams = builder.upstreams.0.borrow_mut();
        upstreams.claim(&built.upstreams);
        let built = Arc::new(built);
        if let Some(before) = self.layers.insert_cow(place, Arc::clone(&built)) {
            upstreams.release(&before.upstreams);
            builder.ledger.give_back(before.size);
        }
        built
    }

    /// Forgets the plugins of a place.
    pub(super) fn drop_layer(&mut self, builder: &Builder<'_, '_>, place: &ResourceKey) {
        if let Some(before) = self.layers.remove_cow(place) {
            builder.upstreams.0.borrow_mut().release(&before.upstreams);
            builder.ledger.give_back(before.size);
        }
    }

    /// Builds the plugins of a place anew, which others lay theirs over.
    pub(super) fn renew_layer(&mut self, builder: &Builder<'_, '_>, place: ResourceKey) {
        self.drop_layer(builder, &place);
        // The items that need the layer report its faults.
        let _ = self.layer(builder, place);
    }

    /// The plugins of a place, which others lay theirs over; they are built when they are not there.
    pub(super) fn layer(&mut self, builder: &Builder<'_, '_>, place: ResourceKey) -> Result<Arc<Built>, Diagnostic> {
        if let Some(found) = self.layers.get(&place) {
            return Ok(Arc::clone(found));
        }
        let (model, id) = (self.model, place.id());
        let (kind, plugins, origin) = match place.kind() {
            ResourceKind::Services => {
                let service = model.services.get(id);
                ("service", service.and_then(|s| s.plugins.as_ref()), service.map(|s| &s.origin))
            }
            ResourceKind::PluginConfigs => {
                let config = model.plugin_configs.get(id);
                ("plugin_config", config.map(|c| &c.plugins), config.map(|c| &c.origin))
            }
            _ => {
                let group = model.consumer_groups.get(id);
                ("consumer_group", group.map(|g| &g.plugins), group.map(|g| &g.origin))
            }
        };
        let Some(origin) = origin else { return Ok(Arc::default()) };
        let built = builder.build(plugins, &format!("{kind}/{id}"), &origin.path, Scope::Route)?;
        Ok(self.put_layer(builder, place, built))
    }

    fn consumer_chains(&mut self, builder: &Builder<'_, '_>, faults: &mut Faults) {
        for id in self.concerned(ResourceKind::ConsumerGroups, |model| model.consumer_groups.shared_ids().collect()) {
            self.renew_layer(builder, ResourceKey::shared(ResourceKind::ConsumerGroups, id));
        }
        let mut consumers = self.concerned(ResourceKind::Consumers, |model| {
            let bringing = model.consumers.iter().filter(|(_, consumer)| builder.brings_plugins(consumer));
            bringing.map(|(id, _)| Arc::clone(id)).collect()
        });
        consumers.extend(self.users_of(ResourceKind::ConsumerGroups, ResourceKind::Consumers));
        for id in consumers {
            self.consumer_chain(builder, id, faults);
        }
    }

    /// The ids of one kind that are to be compiled; all of them where there is no snapshot before.
    pub(super) fn concerned(&self, kind: ResourceKind, all: impl Fn(&Model) -> Vec<Arc<str>>) -> Vec<Arc<str>> {
        match self.before {
            None => all(self.model),
            Some(_) => {
                let places = self.places.iter().filter(|place| place.kind() == kind);
                places.map(ResourceKey::shared_id).collect()
            }
        }
    }

    /// Users of the changed items of a kind that are not to be compiled anyway.
    pub(super) fn users_of(&self, kind: ResourceKind, users: ResourceKind) -> Vec<Arc<str>> {
        let changed = self.places.iter().filter(|place| place.kind() == kind && self.concerns_users(place));
        let users = changed.flat_map(|place| self.model.referrers(place)).filter(|user| user.kind() == users);
        users.filter(|user| !self.places.contains(*user)).map(ResourceKey::shared_id).collect()
    }

    /// True if a change at a place is compiled into the items that refer to it. Upstreams are not: they are found by
    /// number.
    pub(super) fn concerns_users(&self, place: &ResourceKey) -> bool {
        if place.kind() != ResourceKind::Services {
            return true;
        }
        let before = self.before.and_then(|before| before.services.get(place.id()));
        let (Some(before), Some(after)) = (before, self.model.services.get(place.id())) else { return true };
        before.name != after.name
            || before.hosts != after.hosts
            || before.plugins != after.plugins
            || before.script != after.script
            || before.graphql_cost_decorations != after.graphql_cost_decorations
            || before.enable_websocket != after.enable_websocket
            || before.upstream_id != after.upstream_id
            || before.upstream.is_some() != after.upstream.is_some()
    }

    pub(super) fn compiler(&self) -> &'m Compiler {
        self.compiler
    }

    pub(super) fn model(&self) -> &'m Model {
        self.model
    }

    /// True if an item itself has changed, and not only an item that it refers to.
    pub(super) fn has_changed(&self, kind: ResourceKind, id: &Arc<str>) -> bool {
        self.before.is_none() || self.places.contains(&ResourceKey::shared(kind, Arc::clone(id)))
    }
}
