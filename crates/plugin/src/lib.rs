//! The plugin API: what a plugin is, what it sees of a request, and how it is defined.
//!
//! ```text
//!  route matched ─► rewrite ─► (consumer known) ─► access ─► upstream_request ─► request_body ─► node
//!                                                      log ◄─ body ◄─ encode ◄─ response ◄─────────┘
//!                   global rules first, then the route's plugins, from high priority to low, in every phase
//! ```
//!
//! A plugin is one file with a unit struct that implements [`Define`], and one line in the registry. Its hooks are
//! synchronous; one that has to wait returns [`Flow::Suspend`] and goes on in [`Plugin::request_io`] or
//! [`Plugin::response_io`], with [`Io`] to ask others. A plugin never knows which version of HTTP carries a message.
//!
//! The crate has two faces. Authors of plugins use what stands here: contexts with accessors, and [`View`] to read an
//! exchange. [`host`] is for the data plane and the registry: the exchange with its fields, contexts made of it, and the
//! gateway's side of a definition.

mod api;
mod arguments;
mod buffers;
mod callout;
mod captures;
mod certificates;
mod consumer;
mod context;
mod definition;
mod encoder;
mod ending;
mod exchange;
pub mod grpc;
pub mod host;
mod lend;
mod moment;
mod named;
mod nodes;
mod per_request;
mod plans;
mod remembered;
mod request;
mod response;
mod service;
mod slot;
mod state;
mod tables;
mod upstreams;
mod values;
mod variables;
mod view;

pub use api::{Api, ApiCx, ApiSet, NoApis, OpenApi};
pub use arguments::ArgumentNames;
pub use buffers::{Held, NO_ROOM};
pub use callout::{Callout, CalloutError, CalloutResponse, Duplex, Io};
pub use captures::Captures;
pub use certificates::Chain;
pub use consumer::{Consumer, ConsumerMatch, ConsumerSet, Consumers};
pub use context::{Answer, BodyCx, HookCx, HookCxMut, LogCx, RequestBodyCx, RequestCx, ResponseCx, UpstreamCx};
pub use definition::{
    AuthChange, AuthEntries, AuthEntry, BuildCx, CompileCx, Compiled, Credentials, Define, Invalid, ProtoSet,
};
pub use encoder::Encoder;
pub use ending::at_worker_end;
pub use exchange::{AddrText, Client, NodeAddress, Try};
pub use grpc::{GrpcError, GrpcMethod};
pub use lend::{Lent, lend, lent};
pub use named::Named;
pub use nodes::{NodeChange, NodeListener, NodeListeners};
pub use per_request::PerRequest;
pub use plans::{Plan, PlanAccess, PlanLimit, PlanMetric, PlanPath, Plans};
pub use remembered::{Keep, Remembered};
pub use request::{OtherPath, Request, UpstreamTarget};
pub use response::{BodySource, Origin, Response};
pub use service::{Service, ServiceOptions, ServiceUri};
pub use slot::Slot;
pub use state::{Shared, StateRegistry};
pub use tables::{RouteInfo, Tables};
pub use upstreams::{NoUpstreams, Share, Turns, UpstreamSet};
pub use values::{Depth, graphql_changes, graphql_depth, graphql_operations};
pub use variables::hostname;
pub use view::View;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use weir_expr::Source;

/// A future of one worker: it never leaves its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A plugin as it is configured in one place. It is shared by all workers; what it counts, it counts in atomics.
///
/// Hooks are called for the phases in [`Plugin::phases`]. The defaults do nothing.
pub trait Plugin: Send + Sync + 'static {
    /// The phases this instance needs, among the `declared` ones of its definition: a configuration that has no use
    /// for a phase should not pay for it.
    fn phases(&self, declared: Phases) -> Phases {
        declared
    }

    /// The query argument that carries a credential, whose value logs do not show (`access_log.hide_credentials`).
    fn credential_argument(&self) -> Option<&[u8]> {
        None
    }

    /// All query arguments that carry credentials, for a plugin made of others.
    fn credential_arguments(&self) -> Vec<&[u8]> {
        self.credential_argument().into_iter().collect()
    }

    /// Before the consumer is known: authentication, redirects, changes to the request.
    fn rewrite(&self, _cx: &mut RequestCx<'_>) -> Flow {
        Flow::Continue
    }

    /// With the consumer known: limits, permissions, answers of its own.
    fn access(&self, _cx: &mut RequestCx<'_>) -> Flow {
        Flow::Continue
    }

    /// Among which upstreams the plugin would choose for a request of which nothing else is known; empty: it leaves that
    /// to others. For `weir explain` alone.
    fn shares(&self, _source: &dyn Source) -> &[Share] {
        &[]
    }

    /// Goes on after [`Flow::Suspend`] from `rewrite` or `access`, for what has to wait: callouts with [`Io::callout`],
    /// `weir_runtime::sleep`, channels of `tokio::sync`; tokio's timers and sockets do not work here.
    ///
    /// The runner drops the future when its deadline has come ([`Plugin::wait_limit`]), or the client has reset its
    /// connection; then nothing follows but the end of the exchange, so what the future holds must be given back by
    /// dropping it.
    fn request_io<'a>(&'a self, _cx: &'a mut RequestCx<'_>, _io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(std::future::ready(Flow::Abort(Failure::internal("plugin suspended without a continuation"))))
    }

    /// Goes on after [`Flow::Suspend`] from `response`, as [`Plugin::request_io`] does for a request.
    fn response_io<'a>(&'a self, _cx: &'a mut ResponseCx<'_>, _io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(std::future::ready(Flow::Abort(Failure::internal("plugin suspended without a continuation"))))
    }

    /// Deadline of `request_io` and `response_io`, for a plugin whose configuration says how long it waits. `None`:
    /// `timeouts.plugin`. A request whose plugin waits longer is refused with 504.
    fn wait_limit(&self) -> Option<Duration> {
        None
    }

    /// Before each try at a node: last changes to what the upstream receives.
    fn upstream_request(&self, _cx: &mut UpstreamCx<'_>) -> Flow {
        Flow::Continue
    }

    /// A piece of the request body on its way to the node, to be changed in place. With `last` the body ends; then the
    /// piece may be empty. Called only after a plugin asked for it with [`RequestCx::filter_body`].
    fn request_body(&self, _cx: &mut RequestBodyCx<'_>, _piece: &mut Vec<u8>, _last: bool) -> Flow {
        Flow::Continue
    }

    /// After the head of the answer is known, whoever gave it; after [`Flow::AwaitBody`] once more, with its body.
    fn response(&self, _cx: &mut ResponseCx<'_>) -> Flow {
        Flow::Continue
    }

    /// After all plugins have changed the head: for content codings, which come after whatever else changes a body. The
    /// first that calls [`ResponseCx::encode_body`] wins.
    fn encode(&self, _cx: &mut ResponseCx<'_>) -> Flow {
        Flow::Continue
    }

    /// A piece of the response body, to be changed in place. With `last` the body ends; then the piece may be empty.
    /// Called only after a plugin asked for it in [`Plugin::response`] with [`ResponseCx::filter_body`].
    fn body(&self, _cx: &mut BodyCx<'_>, _chunk: &mut Vec<u8>, _last: bool) -> Flow {
        Flow::Continue
    }

    /// Before [`Plugin::log`], with an exchange that can be lent ([`lend`]): for what reads it by functions that hold no
    /// reference. Changes have no effect any more.
    fn before_log(&self, _cx: &mut RequestCx<'_>) {}

    /// After the answer was sent, or the exchange ended otherwise.
    fn log(&self, _cx: &LogCx<'_>) {}
}

/// Continuation after a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// The next plugin.
    Continue,
    /// The answer in [`Exchange::response`] is sent; no further plugin of the request phases runs.
    Respond(Reply),
    /// The plugin has to wait: [`Plugin::request_io`] or [`Plugin::response_io`] is called. For the hooks of the request
    /// phases and for [`Plugin::response`].
    Suspend,
    /// The plugin needs the whole request body: it is collected, up to `limits.buffered_body` (413 above), and the same
    /// hook is called again (`rewrite` or `access` also after `request_io`); [`RequestCx::body`] then has it. For the
    /// hooks of the request phases. On a stream: more of what its client sends first, which
    /// [`RequestCx::first_bytes`] then has.
    ///
    /// From [`Plugin::response`] or [`Plugin::response_io`]: the whole body of the answer is collected (502 above
    /// `limits.buffered_body`), and `response` is called again; [`ResponseCx::body`] then has it.
    AwaitBody,
    /// The request begins anew at another route ([`RequestCx::reroute`]): the plugins of that one run, and no further one of this
    /// one. Global rules do not run again. For the hooks of the request phases.
    Reroute(Rerouted),
    /// The plugin cannot decide; the request is refused.
    Abort(Failure),
}

/// Proof that a request was led to another route with [`RequestCx::reroute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rerouted(pub(crate) ());

/// Proof that an answer was prepared with [`RequestCx::reply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply(pub(crate) ());

/// Reasons for an answer by the gateway itself instead of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The status to answer with.
    pub status: u16,
    /// Side that failed.
    pub side: Side,
    /// The fault in a few fixed words, for the log and the `X-Weir-Error` field.
    pub reason: &'static str,
}

/// The side of the gateway on which an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client sent something wrong, or went away.
    Client,
    /// The gateway: configuration, a plugin, a bound.
    Gateway,
    /// The upstream.
    Upstream,
}

impl Side {
    /// Its name in the `X-Weir-Error` field.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Gateway => "gateway",
            Self::Upstream => "upstream",
        }
    }
}

impl Failure {
    /// The request body is longer than a limit allows: 413.
    pub const BODY_TOO_LARGE: Self = Self { status: 413, side: Side::Client, reason: "request body too large" };

    /// A plugin or the gateway failed: 500.
    #[must_use]
    pub const fn internal(reason: &'static str) -> Self {
        Self { status: 500, side: Side::Gateway, reason }
    }

    /// The upstream failed, with 502, 503 or 504.
    #[must_use]
    pub const fn upstream(status: u16, reason: &'static str) -> Self {
        Self { status, side: Side::Upstream, reason }
    }
}

impl From<weir_wire::Reject> for Failure {
    fn from(reject: weir_wire::Reject) -> Self {
        let side = if reject.status == 502 { Side::Upstream } else { Side::Client };
        Self { status: reject.status, side, reason: reject.reason }
    }
}

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases(u8);

impl Phases {
    /// No phase.
    pub const NONE: Self = Self(0);
    /// [`Plugin::rewrite`]
    pub const REWRITE: Self = Self(1);
    /// [`Plugin::access`]
    pub const ACCESS: Self = Self(2);
    /// [`Plugin::upstream_request`]
    pub const UPSTREAM: Self = Self(4);
    /// [`Plugin::response`]
    pub const RESPONSE: Self = Self(8);
    /// [`Plugin::body`]
    pub const BODY: Self = Self(16);
    /// [`Plugin::log`]
    pub const LOG: Self = Self(32);
    /// [`Plugin::encode`]
    pub const ENCODE: Self = Self(64);
    /// [`Plugin::request_body`]
    pub const REQUEST_BODY: Self = Self(128);

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any of `other` is in this set.
    #[must_use]
    pub const fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Names of the phases, for documentation.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        [
            (Self::REWRITE, "rewrite"),
            (Self::ACCESS, "access"),
            (Self::UPSTREAM, "upstream_request"),
            (Self::REQUEST_BODY, "request_body"),
            (Self::RESPONSE, "response"),
            (Self::ENCODE, "encode"),
            (Self::BODY, "body"),
            (Self::LOG, "log"),
        ]
        .into_iter()
        .filter(|(phase, _)| self.contains(*phase))
        .map(|(_, name)| name)
        .collect()
    }
}
