//! Tables of a configuration that an exchange reads: names for variables, logs and metrics.

use std::sync::Arc;

use weir_config::CostDecorations;
use weir_router::{Router, Slots};

use crate::consumer::Consumers;
use crate::definition::Credentials;
use crate::named::Named;
use crate::plans::Plans;

/// Parts of one configuration, found by dense ids.
#[derive(Default)]
pub struct Tables {
    /// The matcher; `None` before there is a configuration.
    pub router: Option<Router>,
    /// By route id.
    pub routes: Slots<Arc<RouteInfo>>,
    /// The consumers.
    pub consumers: Arc<Consumers>,
    /// The plans.
    pub plans: Arc<Plans>,
    /// Tables by which authentication plugins find consumers, by position in the registry.
    pub credentials: Box<[Option<Credentials>]>,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("routes", &self.routes.count()).finish_non_exhaustive()
    }
}

/// Names of a route.
#[derive(Debug)]
pub struct RouteInfo {
    /// Its id.
    pub id: Named,
    /// Its name, where it has one.
    pub name: Option<Named>,
    /// Id of its service, where it has one.
    pub service_id: Option<Named>,
    /// Name of its service, where that has one.
    pub service_name: Option<Named>,
    /// Weights of fields of GraphQL below its service.
    pub decorations: CostDecorations,
    /// Its path patterns, in the order the router counts them.
    pub paths: Box<[Named]>,
    /// Its host patterns, in the order the router counts them.
    pub hosts: Box<[Named]>,
}
