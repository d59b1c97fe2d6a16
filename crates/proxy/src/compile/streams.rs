//! Stream routes: their plugins laid over those of their services, and their upstreams. They are few, and compiled
//! together.

use std::sync::Arc;

use weir_config::{Code, CostDecorations, Diagnostic, ResourceKey, ResourceKind, Scheme, Scope};
use weir_plugin::{RouteInfo, Tables};
use weir_router::Slots;

use super::Faults;
use super::making::Compilation;
use super::plugins::{Builder, Built};
use super::upstreams::Owner;
use crate::stream::table::{Conditions, Name, StreamRoute, StreamTable};

/// Resources that the stream routes of a configuration use.
#[derive(Debug, Default, Clone)]
pub(super) struct StreamUses {
    upstreams: Box<[u32]>,
    /// Bytes that they take.
    size: u64,
}

impl Compilation<'_> {
    /// Compiles all stream routes, if any of them is concerned.
    pub(super) fn streams(&mut self, builder: &Builder<'_, '_>, faults: &mut Faults) {
        let of_services = self.users_of(ResourceKind::Services, ResourceKind::StreamRoutes);
        if !self.concerns(ResourceKind::StreamRoutes) && of_services.is_empty() {
            return;
        }
        let model = self.model();
        let mut uses = Vec::new();
        let mut size = 0;
        let (mut routes, mut infos) = (Vec::new(), Slots::default());
        for listed in model.stream_routes.in_order() {
            let route = &*listed.item;
            match self.stream_route(route, builder) {
                Ok((compiled, built)) => {
                    uses.extend(built.upstreams.iter().copied().chain(compiled.upstream));
                    size += built.size;
                    infos.set(routes.len() as u32, Some(Arc::new(self.stream_info(route))));
                    routes.push(compiled);
                }
                // Another one would take its connections, without its plugins.
                Err(diagnostic) => faults.whole(diagnostic),
            }
        }
        let mut upstreams = builder.upstreams.0.borrow_mut();
        upstreams.claim(&uses);
        let before = std::mem::replace(&mut self.stream_uses, StreamUses { upstreams: uses.into(), size });
        upstreams.release(&before.upstreams);
        builder.ledger.give_back(before.size);
        let tables = Arc::new(Tables { routes: infos, ..Tables::default() });
        self.streams = Arc::new(StreamTable { routes: routes.into(), tables });
    }

    fn stream_route(
        &mut self,
        route: &weir_config::StreamRoute,
        builder: &Builder<'_, '_>,
    ) -> Result<(StreamRoute, Built), Diagnostic> {
        let model = self.model();
        let service = route.service_id.as_ref().and_then(|id| model.services.get(id.as_str())).map(AsRef::as_ref);
        let place = format!("stream_route/{}", route.id);
        let own = builder.build(route.plugins.as_ref(), &place, &route.origin.path, Scope::StreamRoute)?;
        let below = match &route.service_id {
            Some(id) => Some(self.layer(builder, ResourceKey::shared(ResourceKind::Services, id.shared()))?),
            None => None,
        };
        let owner = Owner {
            place: ResourceKey::shared(ResourceKind::StreamRoutes, route.id.shared()),
            origin: &route.origin,
            upstream: route.upstream.as_deref(),
            upstream_id: route.upstream_id.as_ref(),
        };
        let anew = self.has_changed(ResourceKind::StreamRoutes, &route.id.shared());
        let refused = |code: Code| Diagnostic::error(route.origin.mark, route.origin.path.to_string(), code);
        // A plugin of the service that does not run here may be what guards the nodes.
        for (name, conf) in service.and_then(|service| service.plugins.as_ref()).into_iter().flatten() {
            let runs = builder.definitions.iter().any(|d| d.name() == &**name && d.is_for_streams());
            if !runs && !conf.is_disabled() {
                return Err(refused(Code::NotOnStreams { what: format!("the plugin {name} of its service") }));
            }
        }
        let mut upstreams = builder.upstreams.0.borrow_mut();
        let number = upstreams.of_owner(&owner, service, anew)?;
        let layers = || below.iter().map(AsRef::as_ref).chain([&own]);
        for number in layers().flat_map(|built| built.upstreams.iter()).chain(&number) {
            upstreams.check_use(*number, true).map_err(refused)?;
        }
        let scheme = number.and_then(|number| upstreams.scheme(number));
        drop(upstreams);
        let conditions = Conditions {
            server_port: route.server_port,
            server_addr: route.server_addr.as_ref().map(|range| range.net()),
            remote_addr: route.remote_addr.as_ref().map(|range| range.net()),
            name: route.sni.as_ref().map(|sni| Name::new(sni.as_str())),
            scheme: scheme.unwrap_or(Scheme::Http),
        };
        let chain = Built::chain(layers());
        Ok((StreamRoute { conditions, chain, upstream: number }, own))
    }

    fn stream_info(&self, route: &weir_config::StreamRoute) -> RouteInfo {
        let service = route.service_id.as_ref().and_then(|id| self.model().services.get(id.as_str()));
        RouteInfo {
            id: route.id.shared().into(),
            name: route.name.as_deref().map(Into::into),
            service_id: route.service_id.as_ref().map(|id| id.shared().into()),
            service_name: service.and_then(|s| s.name.as_deref()).map(Into::into),
            decorations: CostDecorations::default(),
            paths: Box::default(),
            hosts: Box::default(),
        }
    }
}
