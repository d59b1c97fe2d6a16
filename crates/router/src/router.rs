use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use ipnet::IpNet;
use weir_expr::{Source, Value, Variable};

use crate::candidate::Candidate;
use crate::host::HostPattern;
use crate::index::Index;
use crate::method::MethodSet;
use crate::needs::Needs;
use crate::numbered::Compiled;
use crate::pattern::{Pattern, Rest, Segment, capture};
use crate::route::{Mode, Query, Route};

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Number of the route.
    pub route: u32,
    /// Index of the path that matched.
    pub path: u16,
    /// Index of the host that matched, if the route has hosts.
    pub host: Option<u16>,
}

/// Text taken by the wildcards of a matched path. Reused from request to request, it does not allocate once it has
/// grown to the longest pattern in use.
#[derive(Clone, Debug, Default)]
pub struct Params {
    /// Ranges by segment of the pattern's rest; empty for a literal segment.
    taken: Vec<Range<u32>>,
}

impl Params {
    /// Captures the wildcards of a pattern that is known to match.
    #[inline]
    fn capture(&mut self, pattern: Option<&Pattern>, path: &[u8]) {
        self.taken.clear();
        if let Some(Pattern { prefix, rest: Rest::Segments(segments) }) = pattern {
            self.taken.resize(segments.len(), 0..0);
            capture(segments, &path[*prefix..], &mut |index, taken| {
                self.taken[index] = (prefix + taken.start) as u32..(prefix + taken.end) as u32;
            });
        }
    }
}

/// A candidate that was, or would have been, tried for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the route.
    pub route: u32,
    /// Index of the path that took the path of the request.
    pub path: u16,
    /// Result for the candidate.
    pub outcome: Outcome,
}

/// Result for a candidate whose path took the path of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The candidate is the route of the request.
    Chosen,
    /// The candidate comes after the chosen one.
    NotTried,
    /// The candidate's methods do not include the request's.
    Method,
    /// None of the candidate's hosts is the request's.
    Host,
    /// The client's address is in none of the candidate's networks.
    RemoteAddr,
    /// The candidate's `vars` do not hold. The text is the position of the first part that fails (`[1]`), empty for
    /// the whole.
    Vars(String),
}

/// Error of a route that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {route}: {path}: {message}")]
pub struct BuildError {
    /// Number of the route.
    pub route: usize,
    /// Invalid field, such as `hosts[1]`.
    pub path: String,
    /// Description of the error.
    pub message: String,
}

/// Compiled routes.
pub struct Router {
    pub(crate) index: Index,
}

impl Router {
    /// Compiles routes, numbered by their positions; all of them or none.
    ///
    /// # Errors
    /// A route that cannot be compiled.
    pub fn build(mode: Mode, routes: Vec<Route>) -> Result<Router, BuildError> {
        let mut index = Index { mode, ..Index::default() };
        let compiled = (0..).zip(routes).map(|(number, route)| Ok((number, Some(compile(mode, number, route)?))));
        index.change(compiled.collect::<Result<_, _>>()?);
        Ok(Router { index })
    }

    /// Creates a router with some routes added, replaced or removed by their numbers; of several changes of one
    /// number the last one counts. Everything else is shared with this router, which stays unchanged.
    ///
    /// Numbers may have gaps, and the number of a removed route may be reused. Memory is needed up to the highest
    /// number, so numbers should be dense.
    ///
    /// # Errors
    /// A route that cannot be compiled. Then there is no new router.
    pub fn change(&self, changes: &[(u32, Option<Route>)]) -> Result<Router, BuildError> {
        let mode = self.index.mode;
        let last: BTreeMap<u32, &Option<Route>> = changes.iter().map(|(number, route)| (*number, route)).collect();
        let compiled = last
            .into_iter()
            .map(|(number, route)| Ok((number, route.clone().map(|route| compile(mode, number, route)).transpose()?)));
        let compiled = compiled.collect::<Result<_, _>>()?;
        let mut index = self.index.clone();
        index.change(compiled);
        Ok(Router { index })
    }

    /// Finds the route of a request, and stores the text of its wildcards in `params`.
    pub fn find(&self, query: &Query<'_>, params: &mut Params) -> Option<Match> {
        if self.index.mode == Mode::Ranked {
            return self.find_ranked(query, params);
        }
        let method = MethodSet::of(query.method);
        let mut found = None;
        let _ = self.index.walk(query, |candidate| match self.check(candidate, query, method, params) {
            Ok(host) => {
                found = Some(Match { route: candidate.route, path: candidate.path, host });
                ControlFlow::Break(())
            }
            Err(_) => ControlFlow::Continue(()),
        });
        found
    }

    /// Text that the wildcard of this name took of `path`, for which `params` were found; of several wildcards with
    /// the same name, the last one's.
    pub fn param<'a>(&self, found: &Match, params: &Params, path: &'a [u8], name: &str) -> Option<&'a [u8]> {
        param(self.index.routes.segments(found.route, found.path), params, path, name)
    }

    /// Names and texts of all named wildcards.
    pub fn params<'a>(
        &'a self,
        found: &Match,
        params: &'a Params,
        path: &'a [u8],
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        named(self.index.routes.segments(found.route, found.path), params, path)
    }

    /// Finds another route, accepted by `counts`, that would take requests of this one if it did not exist. For
    /// messages: tries only a few of its paths and hosts, and no conditions.
    pub fn instead_of(&self, route: u32, counts: impl Fn(u32) -> bool) -> Option<u32> {
        const MAX_TRIED: usize = 16;
        let compiled = self.index.routes.get(route)?;
        let sample = |host: &HostPattern| if host.wildcard { format!("x{}", host.text) } else { host.text.to_string() };
        let mut hosts: Vec<String> = compiled.hosts.iter().take(MAX_TRIED).map(sample).collect();
        if hosts.is_empty() {
            hosts.push(String::new());
        }
        let paths = compiled.route.paths.iter().take(MAX_TRIED).map(|path| match path.strip_prefix('*') {
            Some(rest) => format!("/{rest}"),
            None => path.replace('*', "x"),
        });
        for path in paths {
            for host in &hosts {
                let (host, remote) = (host.as_bytes(), IpAddr::from([0; 4]));
                let query =
                    Query { method: b"GET", host, host_port: host, path: path.as_bytes(), remote, source: &Nothing };
                let mut found = None;
                let _ = self.index.walk(&query, |candidate| {
                    let other = self.index.routes.get(candidate.route);
                    let takes = |host: &HostPattern| host.takes(query.host, query.host_port);
                    let host = !candidate.needs.has(Needs::HOST) || other.is_some_and(|o| o.hosts.iter().any(takes));
                    if candidate.route == route || !host || !counts(candidate.route) {
                        return ControlFlow::Continue(());
                    }
                    found = Some(candidate.route);
                    ControlFlow::Break(())
                });
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Lists all candidates for a request: first those that [`Router::find`] tries, in its order, with those that it
    /// would have tried after the chosen one; then those of other hosts. For explanations: the cost grows with the
    /// number of routes.
    pub fn explain(&self, query: &Query<'_>) -> Vec<Step> {
        let method = MethodSet::of(query.method);
        let mut params = Params::default();
        let mut steps = Vec::new();
        let mut chosen = false;
        let _ = self.in_order(query, |candidate| {
            let outcome = match self.check(candidate, query, method, &mut params) {
                _ if chosen => Outcome::NotTried,
                Ok(_) => Outcome::Chosen,
                Err(Refusal::Path) => return ControlFlow::Continue(()),
                Err(Refusal::Method) => Outcome::Method,
                Err(Refusal::Host) => Outcome::Host,
                Err(Refusal::RemoteAddr) => Outcome::RemoteAddr,
                Err(Refusal::Vars) => Outcome::Vars(self.failing_vars(candidate, query, &params)),
            };
            chosen |= outcome == Outcome::Chosen;
            steps.push(Step { route: candidate.route, path: candidate.path, outcome });
            ControlFlow::Continue(())
        });
        let tried = steps.len();
        for (number, compiled) in self.index.routes.iter() {
            for (path, (text, pattern)) in (0u16..).zip(compiled.route.paths.iter().zip(&compiled.patterns)) {
                let seen = steps[..tried].iter().any(|step| step.route == number && step.path == path);
                let regex = compiled.regexes.get(usize::from(path)).and_then(Option::as_ref);
                let takes = regex.map_or_else(|| pattern.takes(text, query.path), |regex| regex.is_match(query.path));
                if !seen && takes {
                    steps.push(Step { route: number, path, outcome: Outcome::Host });
                }
            }
        }
        steps
    }

    /// Checks the conditions of a candidate besides its path, cheapest first. Returns the host that matched.
    #[inline]
    pub(crate) fn check(
        &self,
        candidate: &Candidate,
        query: &Query<'_>,
        method: MethodSet,
        params: &mut Params,
    ) -> Result<Option<u16>, Refusal> {
        if !candidate.methods.is_empty() && !candidate.methods.contains(method) {
            return Err(Refusal::Method);
        }
        if candidate.needs.nothing() {
            params.taken.clear();
            return Ok(candidate.host());
        }
        self.check_route(candidate, query, params)
    }

    /// Checks the conditions that require access to the route, and captures the path.
    fn check_route(
        &self,
        candidate: &Candidate,
        query: &Query<'_>,
        params: &mut Params,
    ) -> Result<Option<u16>, Refusal> {
        let needs = candidate.needs;
        let compiled = self.index.routes.get(candidate.route).ok_or(Refusal::Host)?;
        let mut host = candidate.host();
        if needs.has(Needs::HOST) {
            let takes = |host: &HostPattern| host.takes(query.host, query.host_port);
            host = Some(compiled.hosts.iter().position(takes).ok_or(Refusal::Host)? as u16);
        }
        if needs.has(Needs::REGEX) {
            let regex = compiled.regexes.get(usize::from(candidate.path)).and_then(Option::as_ref);
            if !regex.is_some_and(|regex| regex.is_match(query.path)) {
                return Err(Refusal::Path);
            }
        }
        if needs.has(Needs::REMOTE_ADDR) {
            let remote = query.remote.to_canonical();
            if !compiled.route.remote_addrs.iter().any(|network| network.contains(&remote)) {
                return Err(Refusal::RemoteAddr);
            }
        }
        params.capture(compiled.patterns.get(usize::from(candidate.path)), query.path);
        if needs.has(Needs::VARS)
            && let Some(vars) = &compiled.route.vars
            && !vars.eval(&self.with_params(candidate, query, params))
        {
            return Err(Refusal::Vars);
        }
        Ok(host)
    }

    fn failing_vars(&self, candidate: &Candidate, query: &Query<'_>, params: &Params) -> String {
        let vars = self.index.routes.get(candidate.route).and_then(|compiled| compiled.route.vars.as_ref());
        vars.and_then(|vars| vars.failing(&self.with_params(candidate, query, params))).unwrap_or_default()
    }

    fn with_params<'a>(&'a self, candidate: &Candidate, query: &Query<'a>, params: &'a Params) -> WithParams<'a> {
        let segments = self.index.routes.segments(candidate.route, candidate.path);
        WithParams { source: query.source, segments, params, path: query.path }
    }
}

fn compile(mode: Mode, number: u32, mut route: Route) -> Result<Arc<Compiled>, BuildError> {
    for network in &mut route.remote_addrs {
        *network = canonical(*network);
    }
    Compiled::new(mode, number, route).map(Arc::new)
}

pub(crate) enum Refusal {
    Path,
    Method,
    Host,
    RemoteAddr,
    Vars,
}

/// A request without variables.
struct Nothing;

impl Source for Nothing {
    fn variable(&self, _: &Variable) -> Option<Value<'_>> {
        None
    }
}

/// Source for the `vars` of a candidate: includes the parameters of that candidate's path.
struct WithParams<'a> {
    source: &'a dyn Source,
    segments: &'a [Segment],
    params: &'a Params,
    path: &'a [u8],
}

impl Source for WithParams<'_> {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::UriParam(name) => param(self.segments, self.params, self.path, name).map(Value::Bytes),
            other => self.source.variable(other),
        }
    }
}

fn param<'a>(segments: &[Segment], params: &Params, path: &'a [u8], name: &str) -> Option<&'a [u8]> {
    named(segments, params, path).filter(|(known, _)| *known == name).last().map(|(_, taken)| taken)
}

fn named<'a, 'p>(
    segments: &'p [Segment],
    params: &'p Params,
    path: &'a [u8],
) -> impl Iterator<Item = (&'p str, &'a [u8])> {
    segments.iter().zip(&params.taken).filter_map(|(segment, taken)| {
        let name = segment.name().filter(|name| !name.is_empty())?;
        Some((name, path.get(taken.start as usize..taken.end as usize)?))
    })
}

/// Converts a network of IPv4-mapped IPv6 addresses to the IPv4 network, since addresses are compared in that form.
fn canonical(network: IpNet) -> IpNet {
    if let IpNet::V6(v6) = network
        && let (Some(address), Some(length)) = (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96))
        && let Ok(v4) = IpNet::new(address.into(), length)
    {
        return v4;
    }
    network
}
