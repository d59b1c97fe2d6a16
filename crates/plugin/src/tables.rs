//! What the exchange needs to know of the configuration besides what it runs: names for variables, logs and metrics.

use weir_router::Router;
use weir_telemetry::metrics::LazyLabel;

use crate::consumer::Consumers;

/// What one configuration is made of, found by dense ids.
#[derive(Default)]
pub struct Tables {
    /// The matcher; `None` before there is a configuration.
    pub router: Option<Router>,
    /// By route id.
    pub routes: Vec<RouteInfo>,
    /// The consumers.
    pub consumers: Consumers,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("routes", &self.routes.len()).finish_non_exhaustive()
    }
}

/// What a route is called.
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
    /// Its path patterns, in the order the router counts them.
    pub paths: Box<[Named]>,
    /// Its host patterns, in the order the router counts them.
    pub hosts: Box<[Named]>,
}

/// A text and its metric label, which is interned when it is first used.
#[derive(Debug, Default)]
pub struct Named {
    /// The text.
    pub text: Box<str>,
    /// Its label.
    pub label: LazyLabel,
}

impl From<&str> for Named {
    fn from(text: &str) -> Self {
        Self { text: text.into(), label: LazyLabel::default() }
    }
}
