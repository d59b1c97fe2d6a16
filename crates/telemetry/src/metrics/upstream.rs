//! `apisix_upstream_status`: results of health checks.

use std::fmt::{Debug, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use super::text::{quoted, value};

/// A series of `apisix_upstream_status`.
#[derive(Debug, Clone)]
pub struct UpstreamStatus {
    /// Label `name`: the upstream.
    pub name: Arc<str>,
    /// Name of the upstream for people: Kong's label `upstream`.
    pub title: Option<Arc<str>>,
    /// Labels `ip` and `port`.
    pub addr: SocketAddr,
    /// Source of the node's health, queried at each scrape.
    pub health: Arc<dyn NodeHealth>,
}

/// Source of a node's health.
pub trait NodeHealth: Debug + Send + Sync {
    /// True if the node receives requests; the metric is then 1, else 0.
    fn is_healthy(&self) -> bool;
}

impl UpstreamStatus {
    /// Kong's name of the upstream.
    pub(super) fn title(&self) -> &str {
        self.title.as_ref().unwrap_or(&self.name)
    }

    pub(super) fn write(&self, out: &mut String) {
        out.push_str("apisix_upstream_status{name=");
        quoted(out, &self.name);
        let _ = write!(out, ",ip=\"{}\",port=\"{}\"}}", self.addr.ip(), self.addr.port());
        value(out, u8::from(self.health.is_healthy()));
    }
}
