//! Plugins compiled for one place: a list by priority and, for each phase, only those that have it.

use std::ptr;
use std::sync::{Arc, LazyLock};

use weir_expr::Expr;
use weir_plugin::host::Exchange;
use weir_plugin::{Phases, Plugin};

/// A plugin as it runs in one place.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) plugin: Arc<dyn Plugin>,
    /// Position of the plugin in the registry.
    pub(crate) kind: u8,
    pub(crate) priority: i64,
    pub(crate) phases: Phases,
    /// True if the step of a global rule gives way to the same plugin of the route.
    pub(crate) prefers_route: bool,
    /// True if the plugin, or its filter, reads variables of the request body.
    pub(crate) reads_body: bool,
    pub(crate) meta: Option<Arc<StepMeta>>,
}

/// Contents of `_meta` that matter while a step runs.
#[derive(Debug, Default)]
pub(crate) struct StepMeta {
    /// The step runs only when this holds.
    pub(crate) filter: Option<Expr>,
    /// Replaces the body of a refusal.
    pub(crate) error_response: Option<Box<[u8]>>,
}

/// Most plugins that there may be: positions of steps, and how far a phase has come, are bytes. With more of them nothing is
/// compiled.
pub(crate) const MOST_PLUGINS: usize = u8::MAX as usize;

/// A phase, as an index into a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Rewrite,
    Access,
    Upstream,
    Response,
    Body,
    Log,
    Encode,
    RequestBody,
}

const PHASES: [Phases; 8] = [
    Phases::REWRITE,
    Phases::ACCESS,
    Phases::UPSTREAM,
    Phases::RESPONSE,
    Phases::BODY,
    Phases::LOG,
    Phases::ENCODE,
    Phases::REQUEST_BODY,
];

/// The plugins of one place, ready to run. Places with the same plugins share it: many routes have only those of their
/// service, or none.
#[derive(Default)]
pub(crate) struct Chain {
    steps: Box<[Step]>,
    /// Positions in `steps` for each phase; all lists in one allocation.
    lists: Box<[u8]>,
    /// End of each phase's list in `lists`.
    ends: [u16; PHASES.len()],
    /// Phases that any step has.
    phases: Phases,
    kinds: Kinds,
    reads_body: bool,
}

/// A set of plugins, by their position in the registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds([u64; 4]);

/// Progress of a phase through a route's chain and the consumer's chain laid over it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Walk {
    base: u8,
    over: u8,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("kind", &self.kind).field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// Plugins that a consumer brings along.
#[derive(Debug)]
pub(crate) struct Brought {
    pub(crate) chain: Arc<Chain>,
    /// Chains of credentials with plugins of their own, by position.
    pub(crate) keys: Box<[(u32, Arc<Chain>)]>,
    /// Chains on routes with plugins for the consumer there, in the order of the routes' numbers.
    pub(crate) routes: Box<[(u32, Arc<Chain>)]>,
}

impl Brought {
    /// The chain for requests with this credential on this route.
    pub(crate) fn chain(&self, credential: Option<u32>, route: Option<u32>) -> &Chain {
        if let (false, Some(route)) = (self.routes.is_empty(), route)
            && let Ok(at) = self.routes.binary_search_by_key(&route, |(number, _)| *number)
            && let Some((_, chain)) = self.routes.get(at)
        {
            return chain;
        }
        let mut keys = self.keys.iter();
        keys.find(|(at, _)| Some(*at) == credential).map_or(&self.chain, |(_, chain)| chain)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.chain.is_nothing() && self.keys.is_empty() && self.routes.is_empty()
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|s| (s.kind, s.priority))).finish()
    }
}

impl Kinds {
    pub(crate) fn insert(&mut self, kind: u8) {
        if let Some(word) = self.0.get_mut(usize::from(kind >> 6)) {
            *word |= 1 << (kind & 63);
        }
    }

    pub(crate) fn contains(&self, kind: u8) -> bool {
        self.0.get(usize::from(kind >> 6)).is_some_and(|word| word & (1 << (kind & 63)) != 0)
    }
}

impl Chain {
    /// No plugin at all.
    pub(crate) fn nothing() -> &'static Arc<Self> {
        static NOTHING: LazyLock<Arc<Chain>> = LazyLock::new(Arc::default);
        &NOTHING
    }

    /// Orders steps by priority, high to low; of equal ones the order given stays.
    ///
    /// `off` are plugins that are switched off here: nothing runs, and over another chain they take the place of its steps.
    pub(crate) fn new(mut steps: Vec<Step>, off: &[u8]) -> Self {
        // One at most for each plugin.
        debug_assert!(steps.len() <= MOST_PLUGINS);
        steps.sort_by_key(|s| std::cmp::Reverse(s.priority));
        let mut lists = Vec::new();
        let mut ends = [0; PHASES.len()];
        for (end, phase) in ends.iter_mut().zip(PHASES) {
            lists.extend(steps.iter().zip(0u8..).filter(|(s, _)| s.phases.contains(phase)).map(|(_, i)| i));
            *end = lists.len() as u16;
        }
        let phases = steps.iter().fold(Phases::NONE, |phases, step| phases.and(step.phases));
        let mut kinds = Kinds::default();
        for kind in steps.iter().map(|step| &step.kind).chain(off) {
            kinds.insert(*kind);
        }
        let reads_body = steps.iter().any(|step| step.reads_body);
        Self { steps: steps.into(), lists: lists.into(), ends, phases, kinds, reads_body }
    }

    /// True if the chain has no effect, neither alone nor laid over another.
    pub(crate) fn is_nothing(&self) -> bool {
        self.kinds == Kinds::default()
    }

    /// True if a step belongs to this plugin and is not switched off here.
    pub(crate) fn runs(&self, kind: u8) -> bool {
        self.steps.iter().any(|step| step.kind == kind)
    }

    /// True if any step reads variables of the request body.
    pub(crate) fn reads_body(&self) -> bool {
        self.reads_body
    }

    /// True if any step has this phase.
    pub(crate) fn has(&self, phase: Phase) -> bool {
        PHASES.get(phase as usize).is_some_and(|phase| self.phases.has_any(*phase))
    }

    /// All steps, by priority.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    fn list(&self, phase: Phase) -> &[u8] {
        let phase = phase as usize;
        let start = phase.checked_sub(1).and_then(|p| self.ends.get(p)).copied().unwrap_or(0);
        let end = self.ends.get(phase).copied().unwrap_or(0);
        self.lists.get(usize::from(start)..usize::from(end)).unwrap_or_default()
    }

    fn step(&self, phase: Phase, at: u8) -> Option<&Step> {
        self.steps.get(usize::from(*self.list(phase).get(usize::from(at))?))
    }
}

impl Walk {
    /// The next step of a phase: from `base`, and from `over`, whose plugins take the place of those in `base`.
    pub(crate) fn next<'a>(&mut self, phase: Phase, base: &'a Chain, over: Option<&'a Chain>) -> Option<&'a Step> {
        let Some(over) = over else {
            let step = base.step(phase, self.base)?;
            self.base += 1;
            return Some(step);
        };
        loop {
            let low = base.step(phase, self.base);
            if low.is_some_and(|s| over.kinds.contains(s.kind)) {
                self.base += 1;
                continue;
            }
            let high = over.step(phase, self.over);
            return match (low, high) {
                (Some(l), Some(h)) if l.priority >= h.priority => {
                    self.base += 1;
                    Some(l)
                }
                (_, Some(h)) => {
                    self.over += 1;
                    Some(h)
                }
                (Some(l), None) => {
                    self.base += 1;
                    Some(l)
                }
                (None, None) => None,
            };
        }
    }

    /// The next step of `over` whose plugin is not in `base`: what a consumer alone brings to a phase that the route's
    /// own plugins have been through.
    pub(crate) fn next_only_over<'a>(&mut self, phase: Phase, base: &Chain, over: &'a Chain) -> Option<&'a Step> {
        loop {
            let step = over.step(phase, self.over)?;
            self.over += 1;
            if !base.kinds.contains(step.kind) {
                return Some(step);
            }
        }
    }
}

impl Step {
    /// True if `_meta.filter` lets the step run for this request. Evaluated once, when the step is first due, as in
    /// APISIX: later changes by plugins make no difference.
    pub(crate) fn applies(&self, x: &mut Exchange) -> bool {
        match self.filter() {
            None => true,
            Some(filter) => x.once(ptr::from_ref(filter).addr(), |x| filter.eval(x)),
        }
    }

    /// `_meta.filter`.
    pub(crate) fn filter(&self) -> Option<&Expr> {
        self.meta.as_ref()?.filter.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, Phase, Step, Walk};
    use std::sync::Arc;
    use weir_plugin::{Phases, Plugin};

    struct Nothing;
    impl Plugin for Nothing {}

    fn chain(steps: &[(u8, i64)]) -> Chain {
        let step = |(kind, priority): &(u8, i64)| Step {
            plugin: Arc::new(Nothing),
            kind: *kind,
            priority: *priority,
            phases: if *kind % 2 == 0 { Phases::ACCESS } else { Phases::ACCESS.and(Phases::REWRITE) },
            prefers_route: false,
            reads_body: false,
            meta: None,
        };
        Chain::new(steps.iter().map(step).collect(), &[])
    }

    fn walk(phase: Phase, base: &Chain, over: Option<&Chain>) -> Vec<u8> {
        let mut walk = Walk::default();
        std::iter::from_fn(|| walk.next(phase, base, over).map(|s| s.kind)).collect()
    }

    #[test]
    fn steps_run_by_priority_in_their_phases() {
        let base = chain(&[(1, 10), (2, 30), (3, 20)]);
        assert_eq!(walk(Phase::Access, &base, None), [2, 3, 1]);
        assert_eq!(walk(Phase::Rewrite, &base, None), [3, 1]);
        assert!(walk(Phase::Log, &base, None).is_empty());
        assert!(base.has(Phase::Rewrite) && !base.has(Phase::Body));
    }

    #[test]
    fn a_consumers_plugins_take_the_place_of_the_routes() {
        let base = chain(&[(1, 10), (2, 30), (3, 20)]);
        let over = chain(&[(3, 40), (4, 25), (201, 5)]);
        assert_eq!(walk(Phase::Access, &base, Some(&over)), [3, 2, 4, 1, 201]);
        let mut only = Walk::default();
        let rest: Vec<u8> =
            std::iter::from_fn(|| only.next_only_over(Phase::Rewrite, &base, &over).map(|s| s.kind)).collect();
        assert_eq!(rest, [201]);
    }

    #[test]
    fn what_a_consumer_switches_off_does_not_run() {
        let base = chain(&[(1, 10), (2, 30), (3, 20)]);
        let over = Chain::new(Vec::new(), &[2]);
        assert_eq!(walk(Phase::Access, &base, Some(&over)), [3, 1]);
        assert!(!over.is_nothing() && !over.runs(2) && base.runs(2));
        assert!(Chain::new(Vec::new(), &[]).is_nothing());
    }
}
