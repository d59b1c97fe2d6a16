//! Building plugins and laying them over each other: service below plugin config below route.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use weir_config::{
    Code, CompiledConfs, Consumer, Diagnostic, ErrorResponse, ItemPath, Items, Kind, Meta, Node, Origin,
    PluginMetadata, Plugins, Scope,
};
use weir_net::Network;
use weir_plugin::host::{Instance, Prepared};
use weir_plugin::{Api, ApiCx, ApiSet, ArgumentNames, BuildCx, Invalid, OpenApi, Plans, Shared, StateRegistry};
use weir_script::{Before, Form, Hook, Script};

use super::Definitions;
use super::ledger::Ledger;
use super::references::{Missing, NamedConsumers, UsedProtos};
use super::unresolved;
use super::upstreams::SharedUpstreams;
use crate::chain::{Brought, Chain, Step, StepMeta};

/// Builder of plugins, with everything they are built from.
pub(super) struct Builder<'a, 'd> {
    pub(super) definitions: Definitions,
    pub(super) states: &'a StateRegistry,
    pub(super) consumers: &'a NamedConsumers<'a>,
    pub(super) plans: &'a Plans,
    pub(super) protos: &'a UsedProtos<'a>,
    pub(super) metadata: &'a Items<PluginMetadata>,
    /// Configurations that were compiled to be checked.
    pub(super) compiled: &'a CompiledConfs,
    pub(super) limit_keys: usize,
    pub(super) https_port: u16,
    pub(super) cache_zones: &'a [weir_config::settings::CacheZone],
    pub(super) product: &'a str,
    pub(super) kong: &'a weir_config::settings::Kong,
    pub(super) network: &'a Arc<Network>,
    pub(super) apis: &'a [Arc<dyn Api>],
    pub(super) upstreams: &'a SharedUpstreams<'d>,
    pub(super) ledger: &'a Ledger,
    /// Arguments that plugins take credentials from.
    pub(super) credential_arguments: RefCell<Arc<ArgumentNames>>,
    pub(super) warnings: RefCell<Vec<Diagnostic>>,
    /// Warnings of the plugin that is being built.
    pub(super) warned: RefCell<Vec<Diagnostic>>,
}

/// The plugins of one place; one that is switched off there still takes the place of what lies below.
#[derive(Clone, Default, Debug)]
pub(super) struct Layer {
    steps: Vec<(u8, Option<Step>)>,
}

impl Layer {
    /// Lays `over` over this layer: plugin by plugin, `over` takes precedence.
    pub(super) fn put_over(&mut self, over: &Self) {
        for (kind, step) in &over.steps {
            match self.steps.iter_mut().find(|(k, _)| k == kind) {
                Some(place) => place.1.clone_from(step),
                None => self.steps.push((*kind, step.clone())),
            }
        }
    }

    /// Ready to run.
    pub(super) fn chain(&self) -> Arc<Chain> {
        if self.is_empty() {
            return Arc::clone(Chain::nothing());
        }
        let steps = self.steps.iter().filter_map(|(_, step)| step.clone()).collect();
        let off: Vec<_> = self.steps.iter().filter(|(_, step)| step.is_none()).map(|(kind, _)| *kind).collect();
        Arc::new(Chain::new(steps, &off))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Bytes of its chain.
    pub(super) fn size(&self) -> u64 {
        (self.steps.len() * size_of::<Step>()) as u64
    }

    /// Takes out plugins, so that those of what lies below run.
    pub(super) fn take_out(&mut self, kinds: &[u8]) {
        self.steps.retain(|(kind, _)| !kinds.contains(kind));
    }
}

/// Plugins that were built, and the upstreams that they may choose.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub(super) layer: Layer,
    pub(super) upstreams: Box<[u32]>,
    /// Bytes that it takes, as the ledger has them.
    pub(super) size: u64,
    /// The layer ready to run, once a place without other layers has needed it.
    chain: OnceLock<Arc<Chain>>,
    /// The same as what a consumer brings that has nothing of its own.
    brought: OnceLock<Arc<Brought>>,
}

impl Built {
    pub(super) fn new(layer: Layer, upstreams: Box<[u32]>, size: u64) -> Self {
        Self { layer, upstreams, size, chain: OnceLock::new(), brought: OnceLock::new() }
    }

    /// All that a consumer brings of which this is the group, and which has nothing of its own.
    pub(super) fn brought(&self) -> Arc<Brought> {
        let made = || Brought { chain: Self::chain([self]), keys: Box::default(), routes: Box::default() };
        Arc::clone(self.brought.get_or_init(|| Arc::new(made())))
    }

    /// Bytes of the chain of several places: a chain of its own, unless one of them alone has plugins.
    pub(super) fn size_of_chain<'b>(places: impl IntoIterator<Item = &'b Self>) -> u64 {
        let (mut places_with_any, mut steps) = (0, 0);
        for built in places {
            places_with_any += usize::from(!built.layer.is_empty());
            steps += built.layer.steps.len();
        }
        if places_with_any > 1 { (steps * size_of::<Step>()) as u64 } else { 0 }
    }

    /// The plugins of several places, each laid over the one before, ready to run.
    pub(super) fn chain<'b>(places: impl IntoIterator<Item = &'b Self>) -> Arc<Chain> {
        let places: Vec<_> = places.into_iter().filter(|built| !built.layer.is_empty()).collect();
        if let [one] = places[..] {
            return Arc::clone(one.chain.get_or_init(|| one.layer.chain()));
        }
        let mut layer = Layer::default();
        places.iter().for_each(|built| layer.put_over(&built.layer));
        layer.chain()
    }
}

impl Builder<'_, '_> {
    /// Builds the plugins of one place, and returns the upstreams that they registered as well.
    pub(super) fn build(
        &self,
        plugins: Option<&Plugins>,
        place: &str,
        path: &ItemPath,
        scope: Scope,
    ) -> Result<Built, Diagnostic> {
        let (layer, size) = self.ledger.measure(|| self.layer(plugins, place, path, scope));
        let upstreams = self.upstreams.take_asked();
        match layer {
            Ok(layer) => Ok(Built::new(layer, upstreams, size)),
            Err(diagnostic) => {
                self.ledger.give_back(size);
                Err(diagnostic)
            }
        }
    }

    fn apis(&self) -> Apis<'_> {
        Apis { apis: self.apis, definitions: self.definitions, metadata: self.metadata, network: self.network }
    }

    /// The rules around an instance that is built.
    fn cx<'c>(
        &'c self,
        plugin: &'c str,
        place: &'c str,
        position: u8,
        conf: &'c Node,
        metadata: Option<&'c Node>,
        apis: &'c Apis<'_>,
    ) -> BuildCx<'c> {
        BuildCx {
            plugin,
            place,
            states: self.states,
            consumers: self.consumers,
            plans: self.plans,
            protos: self.protos,
            position,
            conf,
            limit_keys: self.limit_keys,
            metadata,
            https_port: self.https_port,
            cache_zones: self.cache_zones,
            product: self.product,
            kong: self.kong,
            network: self.network,
            upstreams: self.upstreams,
            apis,
            warned: &self.warned,
        }
    }

    /// Builds the script of a route, which runs in the place of plugins.
    pub(super) fn script(&self, text: &str, place: &str, origin: &Origin) -> Result<Built, Diagnostic> {
        let wrong = |reason: String| {
            let code = Code::PluginRule { text: reason.into() };
            Diagnostic::error(origin.mark, format!("{}.script", origin.path), code)
        };
        let (conf, apis) = (Node::new(Kind::Null), self.apis());
        let (built, size) = self.ledger.measure(|| {
            let script =
                Script::check("script", Form::Object, vec![(Hook::Load, vec![text.to_owned()])], String::new());
            let script = script.map_err(|error| wrong(error.reason))?;
            let cx = self.cx("script", place, 0, &conf, None, &apis);
            script.build(&cx).map_err(|fault| wrong(fault.code.to_string()))
        });
        let upstreams = self.upstreams.take_asked();
        let script = built.inspect_err(|_| self.ledger.give_back(size))?;
        let phases = script.needed_phases();
        let step = Step {
            plugin: Arc::new(script),
            kind: 0,
            priority: 0,
            phases,
            prefers_route: false,
            reads_body: false,
            meta: None,
        };
        Ok(Built::new(Layer { steps: vec![(0, Some(step))] }, upstreams, size))
    }

    /// Starts the work that plugins do by their metadata alone.
    pub(super) fn background(&self) -> Result<Vec<Shared>, Diagnostic> {
        let (conf, apis) = (Node::new(Kind::Null), self.apis());
        let mut all = Vec::new();
        for (position, definition) in self.definitions.iter().enumerate() {
            let name = definition.name();
            let Some(metadata) = self.metadata.get(name).filter(|metadata| !metadata.is_unresolved) else { continue };
            let position = u8::try_from(position).unwrap_or(u8::MAX);
            let cx = self.cx(name, "plugin_metadata", position, &conf, Some(&metadata.conf), &apis);
            let started = definition.background(&cx).map_err(|fault| {
                let origin = &metadata.origin;
                Diagnostic::error(origin.mark, fault.path, *fault.code).under(&origin.path.to_string())
            });
            all.extend(started?);
        }
        Ok(all)
    }

    /// True if a consumer brings plugins to run. Most have none, and there may be a million.
    pub(super) fn brings_plugins(&self, consumer: &Consumer) -> bool {
        let is_data = |name: &str| self.definitions.iter().any(|d| d.is_auth() && d.name() == name);
        consumer.group_id.is_some()
            || consumer.plugins.iter().flatten().any(|(name, _)| !is_data(name))
            || consumer.credentials.iter().any(|credential| credential.plan.is_some())
    }

    /// Builds the plugins of one place. On consumers, what authenticates is data and not a plugin to run.
    fn layer(
        &self,
        plugins: Option<&Plugins>,
        place: &str,
        path: &ItemPath,
        scope: Scope,
    ) -> Result<Layer, Diagnostic> {
        let mut layer = Layer::default();
        for (name, conf) in plugins.into_iter().flatten() {
            let under = |d: Diagnostic| d.under(&format!("{path}.plugins.{name}"));
            let Some((kind, definition)) = self.definitions.iter().enumerate().find(|(_, d)| d.name() == &**name)
            else {
                let code = Code::UnbuildablePlugin { reason: "no such plugin".to_owned() };
                return Err(under(Diagnostic::error(conf.conf.mark, "", code)));
            };
            if scope == Scope::Consumer && definition.is_auth() {
                continue;
            }
            let kind = u8::try_from(kind).unwrap_or(u8::MAX);
            if conf.is_disabled() {
                layer.steps.push((kind, None));
                continue;
            }
            let meta = conf.meta.as_deref();
            let priority = meta.and_then(|meta| meta.priority).unwrap_or(i64::from(definition.priority()));
            let prefers_route = definition.prefers_route();
            let metadata = self.metadata.get(name);
            let filter = meta.and_then(|meta| meta.filter.as_ref());
            let filter_reads_body = filter.is_some_and(|filter| filter.expr().reads_body());
            if conf.is_unresolved() || metadata.is_some_and(|metadata| metadata.is_unresolved) {
                let (plugin, phases) = unresolved::plugin();
                let meta = meta.and_then(step_meta);
                let reads_body = filter_reads_body;
                let step = Step { plugin, kind, priority, phases, prefers_route, reads_body, meta };
                layer.steps.push((kind, Some(step)));
                continue;
            }
            let apis = self.apis();
            let metadata = metadata.map(|metadata| &metadata.conf);
            let cx = self.cx(name, place, kind, &conf.conf, metadata, &apis);
            weir_expr::spend(filter.map_or(0, |filter| filter.size())).map_err(|error| {
                let code = Code::TooLarge { what: String::new(), reason: error.to_string() };
                under(Diagnostic::error(conf.conf.mark, "_meta.filter", code))
            })?;
            let compiled = self.compiled.take(conf.compiled).and_then(|compiled| compiled.downcast::<Prepared>().ok());
            let instance = match compiled.filter(|prepared| prepared.plugin == &**name) {
                Some(prepared) => definition.build(*prepared, &cx),
                None => definition.compile(&cx),
            };
            let missing = self.consumers.take_missing().into_iter().map(|Missing { field, name }| {
                let mark = conf.conf.get(&field).map_or(conf.conf.mark, |node| node.mark);
                under(Diagnostic::warning(mark, field, Code::ConsumerAwaited { consumer: name }))
            });
            self.warnings.borrow_mut().extend(missing);
            self.warnings.borrow_mut().extend(self.warned.take().into_iter().map(under));
            let Instance { plugin, reads_body } = instance.map_err(under)?;
            let reads_body = reads_body || filter_reads_body;
            let plugin = match meta.and_then(|meta| meta.pre_function.as_deref()) {
                Some(text) => {
                    let before = Before::new(plugin, text, &cx);
                    let wrong = |fault: Invalid| under(Diagnostic::error(conf.conf.mark, fault.path, *fault.code));
                    Arc::new(before.map_err(wrong)?)
                }
                None => plugin,
            };
            for name in plugin.credential_arguments() {
                let mut names = self.credential_arguments.borrow_mut();
                if !names.has(name) {
                    Arc::make_mut(&mut names).add(name);
                }
            }
            let phases = plugin.phases(definition.phases());
            let meta = meta.and_then(step_meta);
            layer.steps.push((kind, Some(Step { plugin, kind, priority, phases, prefers_route, reads_body, meta })));
        }
        Ok(layer)
    }
}

/// The APIs of plugins, with what sets them up.
struct Apis<'a> {
    apis: &'a [Arc<dyn Api>],
    definitions: Definitions,
    metadata: &'a Items<PluginMetadata>,
    network: &'a Arc<Network>,
}

impl std::fmt::Debug for Apis<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.apis).finish()
    }
}

impl ApiSet for Apis<'_> {
    fn open(&self) -> Result<Vec<OpenApi>, Invalid> {
        let open = |api: &Arc<dyn Api>| {
            let metadata = self.metadata.get(api.plugin()).map(|metadata| &metadata.conf);
            let position = self.definitions.iter().position(|definition| definition.name() == api.plugin());
            let position = position.and_then(|position| u8::try_from(position).ok()).unwrap_or(u8::MAX);
            let plugin = api.open(&ApiCx { metadata, position, network: self.network })?;
            Ok(OpenApi { method: api.method(), path: api.path().as_bytes().into(), plugin })
        };
        self.apis.iter().map(open).collect()
    }
}

fn step_meta(meta: &Meta) -> Option<Arc<StepMeta>> {
    if meta.filter.is_none() && meta.error_response.is_none() {
        return None;
    }
    let error_response = meta.error_response.as_ref().map(|response| match response {
        ErrorResponse::Text(text) => text.as_bytes().into(),
        ErrorResponse::Json(value) => format!("{value}\n").into_bytes().into(),
    });
    Some(Arc::new(StepMeta { filter: meta.filter.as_ref().map(|v| v.expr().clone()), error_response }))
}
