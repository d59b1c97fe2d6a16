//! Plans: what callers may call, and how much, found by dense ids.

use std::sync::Arc;

use weir_config::{Period, PlanScope, PlanWindow, SharedMap};
use weir_router::{Numbers, Slots};

use crate::named::Named;

/// A plan as the path of a request needs it.
#[derive(Debug)]
pub struct Plan {
    /// Its id.
    pub id: Named,
    /// Its limits, short periods first.
    pub limits: Box<[PlanLimit]>,
    /// Methods and paths that may be called; `None`: all.
    pub access: Option<Box<[PlanAccess]>>,
}

/// One limit of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanLimit {
    /// Requests that pass in a period.
    pub count: u64,
    /// The period.
    pub per: Period,
    /// Sequence of periods.
    pub window: PlanWindow,
    /// Domain of the count.
    pub scope: PlanScope,
}

/// Something that callers on a plan may call; a request has to fit all that is there.
#[derive(Debug)]
pub struct PlanAccess {
    /// Ids of routes.
    pub routes: Option<Box<[Box<str>]>>,
    /// Ids of services.
    pub services: Option<Box<[Box<str>]>>,
    /// Methods.
    pub methods: Option<Box<[&'static str]>>,
    /// Paths.
    pub paths: Option<Box<[PlanPath]>>,
}

/// A path, decoded.
#[derive(Debug)]
pub enum PlanPath {
    /// The whole path.
    Whole(Box<str>),
    /// The beginning of a path.
    Beginning(Box<str>),
}

/// All plans, by dense id. A copy shares with the original what neither of them changes afterwards.
#[derive(Debug, Default, Clone)]
pub struct Plans {
    list: Slots<Arc<Plan>>,
    by_id: SharedMap<Arc<str>, u32>,
    numbers: Numbers,
}

impl Plans {
    /// Adds a plan, or puts it in the place of the one with its id.
    pub fn put(&mut self, plan: &weir_config::Plan) {
        let plan = Plan::new(plan);
        let number = self.find(&plan.id.text).unwrap_or_else(|| {
            let number = self.numbers.take();
            self.by_id.insert_cow(Arc::clone(&plan.id.text), number);
            number
        });
        self.list.set(number, Some(Arc::new(plan)));
    }

    /// The dense id of a plan. It stays the same as long as there is that plan.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    /// The plan with this dense id.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Arc<Plan>> {
        self.list.get(number)
    }
}

impl Plan {
    fn new(plan: &weir_config::Plan) -> Self {
        let texts = |ids: &Option<Vec<weir_config::Id>>| -> Option<Box<[Box<str>]>> {
            ids.as_ref().map(|ids| ids.iter().map(|id| id.as_str().into()).collect())
        };
        let path = |path: &String| match path.strip_suffix('*') {
            Some(beginning) => PlanPath::Beginning(beginning.into()),
            None => PlanPath::Whole(path.as_str().into()),
        };
        let access = |access: &weir_config::PlanAccess| PlanAccess {
            routes: texts(&access.routes),
            services: texts(&access.services),
            methods: access.methods.as_ref().map(|methods| methods.iter().map(|method| method.as_str()).collect()),
            paths: access.paths.as_ref().map(|paths| paths.iter().map(path).collect()),
        };
        let mut limits: Vec<PlanLimit> = plan
            .limits
            .iter()
            .map(|limit| PlanLimit { count: limit.count, per: limit.per, window: limit.window, scope: limit.scope })
            .collect();
        limits.sort_by_key(|limit| limit.per as u8);
        Self {
            id: plan.id.shared().into(),
            limits: limits.into(),
            access: plan.access.as_ref().map(|entries| entries.iter().map(access).collect()),
        }
    }
}
