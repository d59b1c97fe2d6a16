//! Upstreams: each compiled once, however many routes use it.

use std::cell::RefCell;
use std::sync::Arc;

use weir_config::{
    Code, Diagnostic, Model, Origin, ResourceKey, ResourceKind, Scheme, Service as ServiceItem, SharedMap, SharedSet,
};
use weir_plugin::{Turns, UpstreamSet};
use weir_router::{Numbers, Slots};

use super::certificates::Certificates;
use super::ledger::Ledger;
use crate::upstream::Upstream;
use crate::upstream::balance::Balancer;
use crate::upstream::balance::turns::RoundRobin;
use crate::upstream::discovered::Discovered;
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::HealthTable;
use crate::upstream::recipe::{Recipe, protocol_of, protocol_of_checks};
use crate::upstream::services::{Service, Services};

/// The upstreams of a configuration. Plugins and routes add to them in turn.
#[derive(Debug)]
pub(super) struct SharedUpstreams<'d>(pub(super) RefCell<Upstreams<'d>>);

impl SharedUpstreams<'_> {
    /// The upstreams that plugins have registered since the last call.
    pub(super) fn take_asked(&self) -> Box<[u32]> {
        std::mem::take(&mut self.0.borrow_mut().asked).into()
    }
}

impl UpstreamSet for SharedUpstreams<'_> {
    fn find(&self, id: &str) -> Result<Option<u32>, Diagnostic> {
        let mut upstreams = self.0.borrow_mut();
        let found = upstreams.find(id)?;
        upstreams.asked.extend(found);
        Ok(found)
    }

    fn add(&self, upstream: &weir_config::Upstream, place: &str) -> Result<u32, Diagnostic> {
        let mut upstreams = self.0.borrow_mut();
        let number = upstreams.put(upstream, "plugins", place, None)?;
        upstreams.asked.push(number);
        Ok(number)
    }

    fn turns(&self, weights: &[u32]) -> Arc<dyn Turns> {
        Arc::new(RoundRobin::new(&(0..).zip(weights.iter().copied()).collect::<Vec<_>>()))
    }

    fn size_of_turns(&self, weights: &[u32]) -> u64 {
        RoundRobin::size(weights.iter().copied())
    }
}

impl Turns for RoundRobin {
    fn next(&self) -> Option<usize> {
        self.pick(|_| true).map(usize::from)
    }
}

/// Upstreams under compilation.
#[derive(Debug)]
pub(super) struct Upstreams<'d> {
    endpoints: &'d Arc<Endpoints>,
    health: &'d Arc<HealthTable>,
    services: &'d Services,
    certificates: &'d Certificates,
    model: &'d Model,
    ledger: &'d Ledger,
    pub(super) numbered: Numbered,
    /// Upstreams that plugins have registered.
    asked: Vec<u32>,
    /// Upstreams that may have lost their last user.
    idle: Vec<u32>,
    /// Findings about upstreams that are served nevertheless.
    pub(super) warnings: Vec<Diagnostic>,
}

/// An item that has an upstream, in place or by its id.
#[derive(Debug)]
pub(super) struct Owner<'a> {
    pub(super) place: ResourceKey,
    pub(super) origin: &'a Origin,
    pub(super) upstream: Option<&'a weir_config::Upstream>,
    pub(super) upstream_id: Option<&'a weir_config::Id>,
}

/// True for the schemes of upstreams that streams go to. What says nothing of its scheme takes streams as they are, as in
/// APISIX.
pub(super) fn is_for_streams(scheme: Scheme) -> bool {
    scheme == Scheme::Http || scheme.of_streams().is_some()
}

/// Upstreams by the numbers that they keep as long as somebody uses them, whatever becomes of their content.
#[derive(Debug, Default, Clone)]
pub(super) struct Numbered {
    pub(super) compiled: Slots<Arc<Upstream>>,
    /// Upstreams with health checks.
    pub(super) checked: SharedSet<u32>,
    /// Upstreams whose nodes come from a registry.
    pub(super) discovered: SharedSet<u32>,
    numbers: Numbers,
    /// Numbers of the upstreams that other items can refer to: in `upstreams`, in a service, in a route.
    places: SharedMap<ResourceKey, u32>,
    uses: Slots<Use>,
}

#[derive(Debug, Clone)]
struct Use {
    place: Option<ResourceKey>,
    /// Number of routes and sets of plugins that use the upstream.
    count: u32,
}

impl<'d> Upstreams<'d> {
    pub(super) fn new(
        endpoints: &'d Arc<Endpoints>,
        health: &'d Arc<HealthTable>,
        services: &'d Services,
        certificates: &'d Certificates,
        model: &'d Model,
        ledger: &'d Ledger,
        numbered: Numbered,
    ) -> Self {
        Self {
            endpoints,
            health,
            services,
            certificates,
            model,
            ledger,
            numbered,
            asked: Vec::new(),
            idle: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Compiles the upstream at a place anew, if it is in use.
    ///
    /// # Errors
    /// The upstream cannot be built.
    pub(super) fn renew(&mut self, place: &ResourceKey) -> Result<(), Diagnostic> {
        let Some(number) = self.numbered.places.get(place).copied() else { return Ok(()) };
        let id = place.id();
        match place.kind() {
            ResourceKind::Upstreams => match self.model.upstreams.get(id) {
                Some(upstream) => self.put_shared(upstream, place.clone()).map(drop)?,
                // From now on the upstream is not found. A user that is left is detected at the end.
                None => {
                    self.numbered.places.remove_cow(place);
                    self.idle.push(number);
                }
            },
            ResourceKind::Services => {
                let service = self.model.services.get(id);
                if let Some((service, upstream)) = service.and_then(|s| Some((s, s.upstream.as_ref()?))) {
                    let fault = |fault| inline(&service.origin, fault);
                    self.put(upstream, "services", id, Some(place.clone())).map_err(fault)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The upstream of a route: its own, else its service's. With `anew` its own is compiled even if present.
    ///
    /// # Errors
    /// The upstream cannot be built.
    pub(super) fn of_route(
        &mut self,
        route: &weir_config::Route,
        service: Option<&ServiceItem>,
        anew: bool,
    ) -> Result<Option<u32>, Diagnostic> {
        let owner = Owner {
            place: ResourceKey::shared(ResourceKind::Routes, route.id.shared()),
            origin: &route.origin,
            upstream: route.upstream.as_deref(),
            upstream_id: route.upstream_id.as_ref(),
        };
        self.of_owner(&owner, service, anew)
    }

    /// The same for any item that has an upstream.
    ///
    /// # Errors
    /// The upstream cannot be built.
    pub(super) fn of_owner(
        &mut self,
        owner: &Owner<'_>,
        service: Option<&ServiceItem>,
        anew: bool,
    ) -> Result<Option<u32>, Diagnostic> {
        if let Some(upstream) = owner.upstream {
            let place = owner.place.clone();
            let known = self.numbered.places.get(&place).filter(|_| !anew).copied();
            return match known {
                Some(known) => Ok(Some(known)),
                None => self
                    .put(upstream, owner.place.kind().directory(), owner.place.id(), Some(place))
                    .map(Some)
                    .map_err(|fault| inline(owner.origin, fault)),
            };
        }
        if let Some(id) = owner.upstream_id {
            return self.find(id.as_str());
        }
        let Some(service) = service else { return Ok(None) };
        if let Some(upstream) = &service.upstream {
            let place = ResourceKey::shared(ResourceKind::Services, service.id.shared());
            if let Some(found) = self.numbered.places.get(&place) {
                return Ok(Some(*found));
            }
            let fault = |fault| inline(&service.origin, fault);
            return self.put(upstream, "services", service.id.as_str(), Some(place)).map(Some).map_err(fault);
        }
        service.upstream_id.as_ref().map_or(Ok(None), |id| self.find(id.as_str()))
    }

    /// Scheme of a compiled upstream.
    pub(super) fn scheme(&self, number: u32) -> Option<Scheme> {
        Some(self.numbered.compiled.get(number)?.scheme)
    }

    /// Checks that an upstream can be used for streams, or for requests.
    ///
    /// # Errors
    /// Its scheme is for the other.
    pub(super) fn check_use(&self, number: u32, streams: bool) -> Result<(), Code> {
        match self.scheme(number) {
            Some(scheme) if streams && !is_for_streams(scheme) => {
                Err(Code::NotOnStreams { what: "an upstream with scheme: https, grpc or grpcs".to_owned() })
            }
            Some(scheme) if !streams => match scheme.of_streams() {
                Some(scheme) => Err(Code::OnlyOnStreams { scheme }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn find(&mut self, id: &str) -> Result<Option<u32>, Diagnostic> {
        let Some(upstream) = self.model.upstreams.get(id) else { return Ok(None) };
        let place = ResourceKey::shared(ResourceKind::Upstreams, upstream.id.shared());
        match self.numbered.places.get(&place) {
            Some(found) => Ok(Some(*found)),
            None => self.put_shared(upstream, place).map(Some),
        }
    }

    fn put_shared(&mut self, upstream: &weir_config::Upstream, place: ResourceKey) -> Result<u32, Diagnostic> {
        let put = self.put(upstream, "upstreams", upstream.id.as_str(), Some(place));
        put.map_err(|fault| fault.under(&upstream.origin.path.to_string()))
    }

    /// Counts a use of each.
    pub(super) fn claim(&mut self, upstreams: &[u32]) {
        for number in upstreams {
            self.numbered.count(*number, |count| count + 1);
        }
    }

    /// Takes back what was claimed.
    pub(super) fn release(&mut self, upstreams: &[u32]) {
        for number in upstreams {
            self.numbered.count(*number, |count| count.saturating_sub(1));
        }
        self.idle.extend(upstreams);
    }

    /// The result, without unused upstreams. `None`: an upstream in use is gone.
    pub(super) fn finish(mut self) -> Option<Numbered> {
        for number in std::mem::take(&mut self.idle) {
            let Some(used) = self.numbered.uses.get(number).cloned() else { continue };
            let is_placed = |place: &ResourceKey| self.numbered.places.get(place) == Some(&number);
            if used.count > 0 {
                // A place that leads elsewhere is that of an upstream that was taken away.
                if used.place.as_ref().is_some_and(|place| !is_placed(place)) {
                    return None;
                }
                continue;
            }
            if let Some(place) = used.place.filter(is_placed) {
                self.numbered.places.remove_cow(&place);
            }
            if let Some(gone) = self.numbered.compiled.set(number, None) {
                self.ledger.give_back(gone.size);
            }
            self.numbered.uses.set(number, None);
            self.numbered.checked.remove_cow(&number);
            self.numbered.discovered.remove_cow(&number);
            self.numbered.numbers.give_back(number);
        }
        Some(self.numbered)
    }

    /// Compiles an upstream; `kind` and `id` are those of the item it is written in. At a place that has one already, it
    /// comes instead of that.
    fn put(
        &mut self,
        upstream: &weir_config::Upstream,
        kind: &'static str,
        id: &str,
        place: Option<ResourceKey>,
    ) -> Result<u32, Diagnostic> {
        let known = place.as_ref().and_then(|place| self.numbered.places.get(place)).copied();
        if let Some(before) = known.and_then(|number| self.numbered.compiled.get(number)) {
            self.ledger.give_back(before.size);
        }
        let size = Balancer::size(upstream.r#type, &upstream.nodes.0);
        self.ledger.take(size).map_err(|error| {
            let what = format!("{} nodes with their weights: ", upstream.nodes.0.len());
            let code = Code::TooLarge { what, reason: error.to_string() };
            Diagnostic::error(upstream.origin.mark, "nodes", code)
        })?;
        let compiled = match self.compiled(upstream, kind, id) {
            Ok(compiled) => Upstream { size, ..compiled },
            Err(diagnostic) => {
                self.ledger.give_back(size);
                return Err(diagnostic);
            }
        };
        let numbered = &mut self.numbered;
        let number = known.unwrap_or_else(|| numbered.numbers.take());
        for (is_in, set) in [
            (compiled.checked.is_some(), &mut numbered.checked),
            (compiled.discovered.is_some(), &mut numbered.discovered),
        ] {
            if is_in {
                set.insert_cow(number);
            } else {
                set.remove_cow(&number);
            }
        }
        numbered.compiled.set(number, Some(Arc::new(compiled)));
        if known.is_none() {
            if let Some(place) = &place {
                numbered.places.insert_cow(place.clone(), number);
            }
            numbered.uses.set(number, Some(Use { place, count: 0 }));
            self.idle.push(number);
        }
        Ok(number)
    }

    fn compiled(
        &mut self,
        upstream: &weir_config::Upstream,
        kind: &'static str,
        id: &str,
    ) -> Result<Upstream, Diagnostic> {
        let registry = Service::of(upstream).map(|service| service.registry);
        let unknown = registry.filter(|registry| !self.services.has(*registry));
        if let Some(registry) = unknown {
            let inline = if kind == "upstreams" { "" } else { ".upstream" };
            let (mark, path) = (upstream.origin.mark, format!("{kind}/{id}{inline}.discovery_type"));
            let code = Code::NoRegistry { registry: registry.name() };
            self.warnings.push(Diagnostic::warning(mark, path, code));
        }
        // Without its certificate or its registry it has no nodes, which answers 503.
        let bare;
        let upstream = match unknown.is_some() || self.certificates.lacks_certificate(upstream, self.model) {
            false => upstream,
            true => {
                bare = weir_config::Upstream {
                    nodes: weir_config::Nodes::default(),
                    scheme: Scheme::Http,
                    http2: false,
                    tls: None,
                    checks: None,
                    service_name: None,
                    ..upstream.clone()
                };
                &bare
            }
        };
        let tls = self.certificates.setup(upstream, self.model)?;
        let protocol = protocol_of(upstream);
        let of_checks = protocol_of_checks(upstream, protocol);
        let tls_of_checks = self.certificates.setup_of_checks(upstream, of_checks, self.model)?;
        let recipe = Recipe {
            upstream: upstream.clone(),
            kind,
            id: id.into(),
            tls,
            tls_of_checks,
            endpoints: Arc::clone(self.endpoints),
            health: Arc::clone(self.health),
        };
        match Service::of(upstream) {
            Some(service) => Discovered::build(recipe, service, self.services),
            None => recipe.build(),
        }
    }
}

impl Numbered {
    fn count(&mut self, number: u32, change: impl Fn(u32) -> u32) {
        if let Some(used) = self.uses.get(number) {
            let used = Use { place: used.place.clone(), count: change(used.count) };
            self.uses.set(number, Some(used));
        }
    }
}

/// Position of a fault in an upstream that is part of another item.
fn inline(origin: &Origin, fault: Diagnostic) -> Diagnostic {
    Diagnostic { mark: origin.mark, ..fault.under(&format!("{}.upstream", origin.path)) }
}
