//! Routes: their plugins laid over those of their services and plugin configs, their upstreams, and what they match.

use std::sync::Arc;

use weir_config::{
    Code, Diagnostic, InvalidItems, Matching, Origin, ResourceKey, ResourceKind, Scope, Service, Status,
};
use weir_expr::Expr;
use weir_plugin::RouteInfo;
use weir_router::{BuildError, MethodSet, Mode, Router, Slots};
use weir_script::ConditionFunction;

use super::Faults;
use super::ledger::Ledger;
use super::left_out;
use super::making::Compilation;
use super::plugins::{Builder, Built};
use crate::chain::{Chain, Phase};
use crate::snapshot::Route;
use crate::upstream::recipe;

/// Compiled routes, and their patterns for the router.
#[derive(Default)]
pub(super) struct Routes<'m> {
    compiled: Vec<(u32, Route)>,
    /// Numbers, and what the route of each matches; `None`: it is gone.
    pub(super) patterns: Vec<(u32, Option<weir_router::Route>)>,
    origins: Vec<(u32, &'m Origin)>,
    /// Routes that are left out and keep their places.
    left_out: Vec<(u32, &'m Origin)>,
}

/// The part of a route that serves its requests.
struct Serving {
    chain: Arc<Chain>,
    upstream: Option<u32>,
    /// All upstreams that it uses.
    uses: Box<[u32]>,
    /// Bytes that it takes.
    size: u64,
}

impl<'m> Compilation<'m> {
    /// Compiles all routes that are concerned.
    pub(super) fn routes(&mut self, builder: &Builder<'_, '_>, faults: &mut Faults) -> Routes<'m> {
        for id in self.concerned(ResourceKind::Services, |model| model.services.shared_ids().collect()) {
            let place = ResourceKey::shared(ResourceKind::Services, id);
            if self.concerns_users(&place) {
                self.renew_layer(builder, place);
            }
        }
        for id in self.concerned(ResourceKind::PluginConfigs, |model| model.plugin_configs.shared_ids().collect()) {
            self.renew_layer(builder, ResourceKey::shared(ResourceKind::PluginConfigs, id));
        }
        let mut ids = self.concerned(ResourceKind::Routes, |model| {
            model.routes.in_order().into_iter().map(|listed| listed.item.id.shared()).collect()
        });
        ids.extend(self.users_of(ResourceKind::Services, ResourceKind::Routes));
        ids.extend(self.users_of(ResourceKind::PluginConfigs, ResourceKind::Routes));
        let mut routes = Routes::default();
        for id in &ids {
            self.route(id, builder, faults, &mut routes);
        }
        // Not one by one above: what requests read lies side by side in memory, and not among what they do not.
        for (number, route) in routes.compiled.drain(..) {
            self.routes.set(number, Some(route));
        }
        routes
    }

    fn route(&mut self, id: &Arc<str>, builder: &Builder<'_, '_>, faults: &mut Faults, routes: &mut Routes<'m>) {
        let model = self.model();
        let listed = model.routes.listed(id).filter(|listed| listed.item.status != Status::Disabled);
        let Some(listed) = listed else {
            self.drop_route(id, builder, routes);
            return;
        };
        let route = &*listed.item;
        let service = route.service_id.as_ref().and_then(|id| model.services.get(id.as_str())).map(AsRef::as_ref);
        if let Some(before) = self.slots.by_id.get(id).and_then(|number| self.slots.sizes.set(*number, None)) {
            builder.ledger.give_back(before);
        }
        let size = match self.matcher_size(route, service, builder.ledger) {
            Ok(size) => size,
            Err(diagnostic) => {
                // The route cannot even keep its place.
                faults.whole(diagnostic);
                return;
            }
        };
        let serving = match route.status {
            Status::LeftOut => None,
            _ => {
                match function(route).and_then(|function| Ok((function, self.serving(id, route, service, builder)?))) {
                    Ok(serving) => Some(serving),
                    Err(diagnostic) => {
                        faults.item(diagnostic);
                        if faults.invalid == InvalidItems::Refuse {
                            return;
                        }
                        None
                    }
                }
            }
        };
        let number = self.slots.by_id.get(id).copied().unwrap_or_else(|| {
            let number = self.slots.numbers.take();
            self.slots.by_id.insert_cow(Arc::clone(id), number);
            number
        });
        let mut condition = route.vars.as_ref().map(|vars| vars.expr().clone());
        let compiled = match serving {
            Some((function, Serving { chain, upstream, uses, size: own })) => {
                if let Some(function) = function {
                    condition = Some(Expr::and(condition, Arc::new(function)));
                }
                self.slots.sizes.set(number, Some(size + own));
                self.use_upstreams(number, Some(uses), builder);
                Route {
                    logs: chain.has(Phase::Log),
                    chain,
                    upstream,
                    timeouts: route.timeout.as_ref().map(|timeout| Box::new(recipe::timeouts(timeout))),
                    websocket: route.enable_websocket.or(service.and_then(|s| s.enable_websocket)).unwrap_or(false),
                }
            }
            None => {
                self.slots.sizes.set(number, Some(size));
                self.use_upstreams(number, None, builder);
                routes.left_out.push((number, &route.origin));
                Route { chain: left_out::chain(), upstream: None, timeouts: None, websocket: false, logs: false }
            }
        };
        routes.compiled.push((number, compiled));
        let pattern = pattern(route, service, condition, listed.order);
        self.infos.set(number, Some(Arc::new(info(route, service, &pattern))));
        routes.patterns.push((number, Some(pattern)));
        routes.origins.push((number, &route.origin));
    }

    /// The plugins of a route, with those of its service and plugin config, and its upstream.
    fn serving(
        &mut self,
        id: &Arc<str>,
        route: &weir_config::Route,
        service: Option<&Service>,
        builder: &Builder<'_, '_>,
    ) -> Result<Serving, Diagnostic> {
        let place = format!("route/{id}");
        let of_service =
            service.filter(|_| route.script.is_none()).and_then(|service| Some((service, service.script.as_ref()?)));
        let script = match (&route.script, of_service) {
            (Some(script), _) => Some((script, &route.origin)),
            (None, Some((service, script))) => {
                if route.plugins.is_some() || route.plugin_config_id.is_some() || service.plugins.is_some() {
                    let path = route.origin.path.to_string();
                    builder.warnings.borrow_mut().push(Diagnostic::warning(
                        route.origin.mark,
                        path,
                        Code::ScriptOfService,
                    ));
                }
                Some((script, &service.origin))
            }
            (None, None) => None,
        };
        let own = match script {
            Some((script, origin)) => builder.script(script, &place, origin)?,
            None => builder.build(route.plugins.as_ref(), &place, &route.origin.path, Scope::Route)?,
        };
        let mut complete = || -> Result<Serving, Diagnostic> {
            let mut shared =
                [(ResourceKind::Services, &route.service_id), (ResourceKind::PluginConfigs, &route.plugin_config_id)];
            if self.model().family.is_ranked {
                shared.reverse();
            }
            let mut below = Vec::new();
            for (kind, id) in shared {
                // A script runs in the place of plugins, wherever they stand.
                if let Some(id) = id.as_ref().filter(|_| script.is_none()) {
                    below.push(self.layer(builder, ResourceKey::shared(kind, id.shared()))?);
                }
            }
            let anew = self.has_changed(ResourceKind::Routes, id);
            let upstream = builder.upstreams.0.borrow_mut().of_route(route, service, anew)?;
            let places = || below.iter().map(AsRef::as_ref).chain([&own]);
            for number in places().flat_map(|built| built.upstreams.iter()).copied().chain(upstream) {
                let checked = builder.upstreams.0.borrow().check_use(number, false);
                checked.map_err(|code| Diagnostic::error(route.origin.mark, route.origin.path.to_string(), code))?;
            }
            let size = Built::size_of_chain(places());
            builder.ledger.take(size).map_err(|error| {
                let path = format!("{}.plugins", route.origin.path);
                let (what, reason) = ("with those of its service: ".to_owned(), error.to_string());
                Diagnostic::error(route.origin.mark, path, Code::TooLarge { what, reason })
            })?;
            let uses = own.upstreams.iter().copied().chain(upstream).collect();
            Ok(Serving { chain: Built::chain(places()), upstream, uses, size: own.size + size })
        };
        complete().inspect_err(|_| builder.ledger.give_back(own.size))
    }

    /// Bytes that a route's patterns take in the router, taken out of the ledger. The length of their text is no
    /// measure: the router has an entry for each pair of a host and a path.
    fn matcher_size(
        &self,
        route: &weir_config::Route,
        service: Option<&Service>,
        ledger: &Ledger,
    ) -> Result<u64, Diagnostic> {
        /// Bytes of an entry, with what its making takes meanwhile; and of a host, with what finds its paths.
        const ENTRY: u64 = 192;
        const HOST: u64 = 512;
        let matching = matching(route);
        let own = matching.map_or_else(|| route.host_patterns().count(), |matching| matching.hosts.len());
        let of_service = service.map_or(0, |service| service.hosts.len());
        let (hosts, whose) = if own == 0 { (of_service, " of its service") } else { (own, "") };
        let paths = matching.map_or_else(|| route.paths().count(), |matching| matching.paths.len());
        let (hosts, paths) = (hosts as u64, paths as u64);
        let (entries, sign) = match self.compiler().mode(self.model().family) {
            Mode::HostUri | Mode::Ranked => (paths * hosts.max(1), '×'),
            Mode::Uri | Mode::UriWithParameter => (paths + hosts, '+'),
        };
        let (most, path) = (self.compiler().route_entries, format!("{}.uris", route.origin.path));
        let what = format!("{hosts} hosts{whose} {sign} {paths} uris are {entries} entries of the matcher");
        if entries > most {
            let error = Diagnostic::error(route.origin.mark, path, Code::TooManyEntries { what, most });
            return Err(error.with_hint("a route for fewer of them, with a prefix or a wildcard host where it can be"));
        }
        let vars = route.vars.as_ref().map_or(0, |vars| vars.size());
        let size = entries * ENTRY + hosts * HOST + vars;
        let error = |error: weir_expr::TooLarge| {
            let code = Code::TooLarge { what: format!("{what}: "), reason: error.to_string() };
            Diagnostic::error(route.origin.mark, path, code)
        };
        ledger.take(size).map(|()| size).map_err(error)
    }

    fn drop_route(&mut self, id: &Arc<str>, builder: &Builder<'_, '_>, routes: &mut Routes<'m>) {
        let Some(number) = self.slots.by_id.remove_cow(id) else { return };
        self.use_upstreams(number, None, builder);
        builder.ledger.give_back(self.slots.sizes.set(number, None).unwrap_or_default());
        self.routes.set(number, None);
        self.infos.set(number, None);
        self.slots.numbers.give_back(number);
        routes.patterns.push((number, None));
    }

    /// Counts which upstreams the route with this number uses from now on.
    fn use_upstreams(&mut self, number: u32, uses: Option<Box<[u32]>>, builder: &Builder<'_, '_>) {
        let mut upstreams = builder.upstreams.0.borrow_mut();
        upstreams.claim(uses.as_deref().unwrap_or_default());
        if let Some(before) = self.slots.uses.set(number, uses) {
            upstreams.release(&before);
        }
    }
}

impl Routes<'_> {
    /// The routes of a new router, whose numbers are their positions.
    pub(super) fn all(&self) -> Vec<weir_router::Route> {
        self.patterns.iter().filter_map(|(_, route)| route.clone()).collect()
    }

    /// Finds the routes that would take the requests of those that are left out.
    pub(super) fn others(&self, router: &Router, infos: &Slots<Arc<RouteInfo>>) -> Vec<Diagnostic> {
        /// Each takes a look at the matcher for some of its paths.
        const MOST: usize = 100;
        let is_left_out = |number: u32| self.left_out.iter().any(|(other, _)| *other == number);
        let other = |(number, origin): &(u32, &Origin)| {
            let mut instead = String::new();
            let other = router.instead_of(*number, |other| !is_left_out(other)).and_then(|other| infos.get(other));
            if let Some(other) = other {
                instead = format!("; the route {} would take them otherwise", other.id.text);
            }
            Diagnostic::warning(origin.mark, origin.path.to_string(), Code::Answers503 { instead })
        };
        self.left_out.iter().take(MOST).map(other).collect()
    }

    /// Renders an error in the words of the configuration.
    pub(super) fn located(&self, error: &BuildError) -> Diagnostic {
        let origin = self.origins.iter().find(|(number, _)| *number as usize == error.route).map(|(_, origin)| origin);
        let path = origin.map(|o| format!("{}.{}", o.path, error.path)).unwrap_or_default();
        let code = Code::Unmatchable { reason: error.message.clone() };
        Diagnostic::error(origin.map(|o| o.mark).unwrap_or_default(), path, code)
    }
}

/// Match of a route in a family that orders routes by ranks.
fn matching(route: &weir_config::Route) -> Option<&Matching> {
    route.origin.entity.as_ref()?.matching.as_ref()
}

/// The condition of a route that is a function.
fn function(route: &weir_config::Route) -> Result<Option<ConditionFunction>, Diagnostic> {
    let Some(text) = &route.filter_func else { return Ok(None) };
    let function = ConditionFunction::check("filter_func", text).map_err(|reason| {
        let code = Code::PluginRule { text: reason.into() };
        Diagnostic::error(route.origin.mark, format!("{}.filter_func", route.origin.path), code)
    })?;
    Ok(Some(function))
}

fn pattern(
    route: &weir_config::Route,
    service: Option<&Service>,
    condition: Option<Expr>,
    order: u64,
) -> weir_router::Route {
    let matching = matching(route);
    let own: Vec<String> = match matching {
        Some(matching) => matching.hosts.clone(),
        None => route.host_patterns().map(|h| h.as_str().to_owned()).collect(),
    };
    weir_router::Route {
        paths: match matching {
            Some(matching) => matching.paths.clone(),
            None => route.paths().map(|p| p.as_str().to_owned()).collect(),
        },
        ranks: matching.map(|matching| matching.ranks.clone()).unwrap_or_default(),
        hosts: match service {
            Some(service) if own.is_empty() => service.hosts.iter().map(|h| h.as_str().to_owned()).collect(),
            _ => own,
        },
        methods: route.methods.iter().filter_map(|m| MethodSet::named(m.as_str())).collect(),
        remote_addrs: route.client_ranges().map(|r| r.net()).collect(),
        vars: condition,
        priority: route.priority,
        order,
    }
}

fn info(route: &weir_config::Route, service: Option<&Service>, pattern: &weir_router::Route) -> RouteInfo {
    RouteInfo {
        id: route.id.shared().into(),
        name: route.name.as_deref().map(Into::into),
        service_id: route.service_id.as_ref().map(|id| id.shared().into()),
        service_name: service.and_then(|s| s.name.as_deref()).map(Into::into),
        decorations: service.map(|service| service.graphql_cost_decorations.clone()).unwrap_or_default(),
        paths: pattern.paths.iter().map(|p| p.as_str().into()).collect(),
        hosts: pattern.hosts.iter().map(|h| h.as_str().into()).collect(),
    }
}
