//! The resources of a rules file, typed and checked, in APISIX's model and with its names.
//!
//! The structs have the shape of the file, so that their JSON Schema is the schema of the file; where a file has two
//! ways to write a thing (`host` or `hosts`), one accessor reads both. Every limit is written once, at its field, and
//! checked from there. The limits and defaults are those of APISIX's own schemas.

mod balancing;
mod checks;
mod consumer;
mod developer;
mod document;
mod graphql_cost;
mod head;
mod id;
mod matching;
mod node_fault;
mod plan;
mod plugin;
mod proto;
mod route;
mod secret;
mod service;
mod ssl;
mod stream_route;
mod upstream;

pub use balancing::{Balancer, HashKey, HashOn};
pub use checks::{
    ActiveChecks, ActiveHealthy, ActiveUnhealthy, CheckType, Checks, PassiveChecks, PassiveHealthy, PassiveUnhealthy,
};
pub use consumer::{Consumer, ConsumerGroup, Credential, KeyPlan};
pub use developer::Developer;
pub use document::{Document, GlobalRule, ItemPath, Origin, PluginConfig, PluginMetadata};
pub use graphql_cost::{CostDecorations, CostPlace, GraphqlCostDecoration};
pub use id::{Id, Username};
pub use matching::{AddrRange, HostKind, HostPattern, Method, Methods, UriPattern, Vars};
pub use node_fault::NodeFault;
pub use plan::{Period, Plan, PlanAccess, PlanLimit, PlanMetric, PlanMetricRule, PlanScope, PlanWindow};
pub use plugin::{ErrorResponse, Meta, PluginConf, Plugins};
pub use proto::Proto;
pub use route::{Route, Status};
pub use secret::{Manager, ManagerId, SecretManager};
pub use service::Service;
pub use ssl::{ClientVerification, OcspStapling, Secret, Sni, Ssl, SslProtocol, SslType};
pub use stream_route::StreamRoute;
pub use upstream::{
    DiscoveryArgs, DiscoveryType, KeepalivePool, NodeAddr, NodeHost, Nodes, PassHost, ProxyHeader, Scheme, Timeout,
    Tunnel, Upstream, UpstreamHost, UpstreamTls,
};

pub(crate) use proto::compile as compile_proto;
pub(crate) use upstream::{is_open, node_from_key};

/// Labels: names to values of 1 to 256 characters without white space.
pub type Labels = std::collections::BTreeMap<String, String>;
