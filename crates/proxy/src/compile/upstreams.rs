//! Upstreams: each compiled once, however many routes use it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use weir_config::{
    CheckType, Checks, Code, Diagnostic, HashKey, Model, NodeAddr, NodeHost, Origin, PassHost, ResourceKey,
    ResourceKind, Scheme, Service, SharedMap, SharedSet, Timeout,
};
use weir_expr::Variable;
use weir_plugin::{Turns, UpstreamSet};
use weir_router::{Numbers, Slots};

use super::certificates::Certificates;
use super::ledger::Ledger;
use crate::upstream::Keepalive;
use crate::upstream::balance::turns::RoundRobin;
use crate::upstream::balance::{Balancer, MAX_NODES};
use crate::upstream::endpoint::Endpoints;
use crate::upstream::health::{HealthTable, Means};
use crate::upstream::{Checked, Node, PassHost as CompiledHost, Protocol, Timeouts, Upstream};

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
    endpoints: &'d Endpoints,
    health: &'d HealthTable,
    certificates: &'d Certificates,
    model: &'d Model,
    ledger: &'d Ledger,
    pub(super) numbered: Numbered,
    /// Upstreams that plugins have registered.
    asked: Vec<u32>,
    /// Upstreams that may have lost their last user.
    idle: Vec<u32>,
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
        endpoints: &'d Endpoints,
        health: &'d HealthTable,
        certificates: &'d Certificates,
        model: &'d Model,
        ledger: &'d Ledger,
        numbered: Numbered,
    ) -> Self {
        Self { endpoints, health, certificates, model, ledger, numbered, asked: Vec::new(), idle: Vec::new() }
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
        service: Option<&Service>,
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
        service: Option<&Service>,
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
        put.map_err(|fault| fault.under(&upstream.origin.path))
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
        if compiled.checked.is_some() {
            numbered.checked.insert_cow(number);
        } else {
            numbered.checked.remove_cow(&number);
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

    fn compiled(&self, upstream: &weir_config::Upstream, kind: &'static str, id: &str) -> Result<Upstream, Diagnostic> {
        // Without its certificate it has no nodes, which answers 503.
        let bare;
        let upstream = match self.certificates.lacks_certificate(upstream, self.model) {
            false => upstream,
            true => {
                bare = weir_config::Upstream {
                    nodes: weir_config::Nodes::default(),
                    scheme: Scheme::Http,
                    http2: false,
                    tls: None,
                    checks: None,
                    ..upstream.clone()
                };
                &bare
            }
        };
        let tls = self.certificates.setup(upstream, self.model)?;
        let protocol = protocol_of(upstream);
        let of_checks = protocol_of_checks(upstream, protocol);
        let tls_of_checks = self.certificates.setup_of_checks(upstream, of_checks, self.model)?;
        let title = upstream.name.as_deref().map(Arc::from);
        let checked =
            upstream.checks.clone().map(|checks| Checked { kind, id: id.into(), title, checks: Arc::new(checks) });
        let nodes: Box<[Node]> = upstream
            .nodes
            .0
            .iter()
            .map(|addr| {
                let endpoint = self.endpoints.get(addr, tls.as_ref());
                let host = host_of(addr, upstream.scheme);
                let health = checked.as_ref().map(|checked| {
                    let host = host_of_checks(upstream, &checked.checks, &host);
                    let means = Means { protocol: of_checks, tls: tls_of_checks.as_ref(), host };
                    self.health.get(&endpoint, &checked.checks, &means)
                });
                let host = if upstream.pass_host == PassHost::NodeName { name_of(addr) } else { host };
                Node { endpoint, host: host.into_bytes().into(), weight: addr.weight, priority: addr.priority, health }
            })
            .collect();
        if nodes.len() > MAX_NODES {
            let code = Code::TooManyNodes { most: MAX_NODES, found: nodes.len() };
            return Err(Diagnostic::error(upstream.origin.mark, "nodes", code));
        }
        let key = match upstream.r#type {
            weir_config::Balancer::Chash => {
                let key = HashKey::new(upstream.hash_on, upstream.key.as_deref());
                Some(key.map_err(|code| Diagnostic::error(upstream.origin.mark, "key", code))?)
            }
            _ => None,
        };
        let pool = &upstream.keepalive_pool;
        Ok(Upstream {
            size: 0,
            reads_body: key.as_ref().is_some_and(|key| key.variables().any(Variable::reads_body)),
            balancer: Balancer::new(upstream.r#type, key, &upstream.nodes.0),
            retries: upstream.retries.unwrap_or_else(|| (nodes.len() as u32).saturating_sub(1)),
            nodes,
            retry_ms: match upstream.retry_timeout {
                Duration::ZERO => u64::MAX,
                limit => millis(limit),
            },
            timeouts: timeouts(&upstream.timeout),
            has_timeouts: !upstream.timeout.is_default,
            scheme: upstream.scheme,
            protocol,
            is_grpc: upstream.scheme.is_grpc(),
            keepalive: Keepalive {
                size: pool.size,
                idle_ms: if pool.idle_timeout.is_zero() { u64::MAX } else { millis(pool.idle_timeout) },
                // A connection with a PROXY header is its client's: no other request may follow on it.
                requests: if upstream.proxy_protocol.is_some() { 1 } else { pool.requests },
            },
            proxy_protocol: upstream.proxy_protocol,
            checked,
            host: match upstream.pass_host {
                PassHost::Pass => CompiledHost::Pass,
                PassHost::Node | PassHost::NodeName => CompiledHost::Node,
                PassHost::Rewrite => {
                    let host = upstream.upstream_host.as_ref().map(|h| h.as_str()).unwrap_or_default();
                    CompiledHost::Rewrite(host.as_bytes().into())
                }
            },
        })
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

/// Protocol that is spoken to the nodes of an upstream.
fn protocol_of(upstream: &weir_config::Upstream) -> Protocol {
    match upstream.scheme {
        Scheme::Grpc | Scheme::Grpcs => Protocol::Http2,
        Scheme::Http if upstream.http2 => Protocol::Http2,
        Scheme::Https if upstream.http2 => Protocol::Negotiated,
        // Of streams nobody asks.
        Scheme::Http | Scheme::Https | Scheme::Tcp | Scheme::Tls | Scheme::Udp => Protocol::Http1,
    }
}

/// Protocol of active checks of the types `http` and `https`: that of requests. At a port of its own something else answers,
/// and without TLS nothing is negotiated.
fn protocol_of_checks(upstream: &weir_config::Upstream, protocol: Protocol) -> Protocol {
    let active = upstream.checks.as_ref().map(|checks| &checks.active);
    let is_negotiable = active.is_some_and(|active| active.r#type == CheckType::Https);
    match protocol {
        _ if active.is_some_and(|active| active.port.is_some()) => Protocol::Http1,
        Protocol::Negotiated if !is_negotiable => Protocol::Http1,
        protocol => protocol,
    }
}

pub(super) fn timeouts(timeout: &Timeout) -> Timeouts {
    Timeouts { connect: millis(timeout.connect), send: millis(timeout.send), read: millis(timeout.read) }
}

/// Milliseconds, never 0: a time limit always leaves some time.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The Host of active checks: their own, else what requests bring that have none from a client.
fn host_of_checks<'a>(upstream: &'a weir_config::Upstream, checks: &'a Checks, node: &'a str) -> &'a str {
    let rewritten = upstream.upstream_host.as_ref().filter(|_| upstream.pass_host == PassHost::Rewrite);
    checks.active.host.as_ref().or(rewritten).map_or(node, |host| host.as_str())
}

/// The Host of `pass_host: node`: without the port where that is the scheme's.
fn host_of(node: &NodeAddr, scheme: Scheme) -> String {
    let name = name_of(node);
    let has_port = match &node.host {
        NodeHost::Unix(_) => false,
        // The service is that of its domain, whichever port it has today.
        NodeHost::Name(name) => NodeHost::domain_of_service(name).is_none(),
        NodeHost::Ip(_) => true,
    };
    if has_port && node.port != scheme.default_port() { format!("{name}:{}", node.port) } else { name }
}

/// The host of a node, without a port. `localhost` for a Unix socket, as in nginx.
fn name_of(node: &NodeAddr) -> String {
    match &node.host {
        NodeHost::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        NodeHost::Ip(ip) => ip.to_string(),
        NodeHost::Name(name) => NodeHost::domain_of_service(name).unwrap_or(name).to_owned(),
        NodeHost::Unix(_) => "localhost".to_owned(),
    }
}
