//! Lookups with [`Mode::Ranked`]: of all candidates the one of the greatest rank.

use std::ops::ControlFlow;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use crate::candidate::{Candidate, Group, Ranked};
use crate::index::Site;
use crate::method::MethodSet;
use crate::route::{Mode, Query};
use crate::router::{Match, Params, Router};

/// Maximum memory in bytes for the program of a regular expression, and for its cache in each thread.
const MOST_BYTES: usize = 1 << 20;

/// Compiles the regular expression of a path, which is matched from the beginning of the path on.
pub(crate) fn compile_regex(regex: &str) -> Result<Regex, String> {
    weir_expr::spend_for_regex(regex).map_err(|error| error.to_string())?;
    let mut builder = RegexBuilder::new(&format!("^{regex}"));
    let built = builder.size_limit(MOST_BYTES).dfa_size_limit(MOST_BYTES).build();
    built.map_err(|error| {
        let text = error.to_string();
        format!("invalid regular expression: {}", text.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })
}

impl Router {
    /// [`Router::find`] with [`Mode::Ranked`].
    pub(crate) fn find_ranked(&self, query: &Query<'_>, params: &mut Params) -> Option<Match> {
        let method = MethodSet::of(query.method);
        let mut best: Option<Match> = None;
        self.sites(query, |site| {
            let _ = site.prefixes.walk(query.path, |group| {
                let fitting = |candidate: &&Candidate| self.check(candidate, query, method, params).is_ok();
                // The candidates of a group are ordered by rank.
                let first = match group {
                    Group::One(candidate) => Some(candidate).filter(fitting),
                    Group::Many(candidates) => candidates.iter().map(|ranked| &ranked.candidate).find(fitting),
                    Group::Patterns(_) => None,
                };
                if let Some(candidate) = first {
                    let Candidate { route, path, .. } = *candidate;
                    let found = Match { route, path, host: candidate.host() };
                    if best.is_none_or(|best| self.rank(found) < self.rank(best)) {
                        best = Some(found);
                    }
                }
                ControlFlow::Continue(())
            });
        });
        best
    }

    /// Sort key of a match: the lowest goes first.
    fn rank(&self, found: Match) -> Option<impl PartialOrd + use<>> {
        let Match { route, path, host } = found;
        let host = host.unwrap_or(Candidate::NO_HOST);
        let candidate = Candidate { route, path, host, methods: MethodSet::ANY, needs: crate::needs::Needs::default() };
        self.index.routes.ranked(&candidate).map(|ranked| ranked.rank())
    }

    /// The sites of all host patterns that take the request's host, and of routes without one.
    fn sites(&self, query: &Query<'_>, mut visit: impl FnMut(&Site)) {
        let hosts = &self.index.hosts;
        let _ = hosts.walk(query, |site| {
            visit(site);
            ControlFlow::Continue(())
        });
        let _ = hosts.open.walk(query.host, |site: &Arc<Site>| {
            visit(site);
            ControlFlow::Continue(())
        });
        visit(&self.index.hostless);
    }

    /// Calls `visit` with the candidates of a request, best first, until it breaks; for explanations.
    pub(crate) fn in_order(
        &self,
        query: &Query<'_>,
        visit: impl FnMut(&Candidate) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.index.mode != Mode::Ranked {
            return self.index.walk(query, visit);
        }
        let mut all: Vec<Ranked> = Vec::new();
        self.sites(query, |site| {
            let _ = site.prefixes.walk(query.path, |group| {
                match group {
                    Group::One(candidate) => all.extend(self.index.routes.ranked(candidate)),
                    Group::Many(candidates) => all.extend(candidates.iter()),
                    Group::Patterns(_) => {}
                }
                ControlFlow::Continue(())
            });
        });
        all.sort_by_key(Ranked::rank);
        all.iter().map(|ranked| &ranked.candidate).try_for_each(visit)
    }
}
