//! A read-only view of an exchange, for hooks that report it.

use std::sync::Arc;

use weir_expr::{Source, Value, Variable};
use weir_router::Match;
use weir_telemetry::metrics::Label;

use crate::captures::Captures;
use crate::consumer::{Consumer, ConsumerMatch};
use crate::exchange::{Client, Exchange, Try};
use crate::request::Request;
use crate::response::Response;
use crate::tables::{RouteInfo, Tables};

/// A read-only view of an exchange, from [`HookCx::view`](crate::HookCx::view). All times are microseconds of the worker's
/// clock, which never goes back.
#[derive(Debug, Clone, Copy)]
pub struct View<'x>(pub(crate) &'x Exchange);

impl<'x> View<'x> {
    /// Groups of the regular expression that took the path, where the route keeps them.
    #[must_use]
    pub fn captures(self) -> Option<&'x Captures> {
        self.0.captures.as_ref()
    }

    /// The request.
    #[must_use]
    pub fn request(self) -> &'x Request {
        &self.0.request
    }

    /// The response.
    #[must_use]
    pub fn response(self) -> &'x Response {
        &self.0.response
    }

    /// The client and its connection.
    #[must_use]
    pub fn client(self) -> &'x Client {
        &self.0.client
    }

    /// The source of variables.
    #[must_use]
    pub fn source(self) -> &'x dyn Source {
        self.0
    }

    /// The value of a variable.
    #[must_use]
    pub fn variable(self, variable: &Variable) -> Option<Value<'x>> {
        self.0.variable(variable)
    }

    /// The names of the configuration; `None` before a route was looked for.
    #[must_use]
    pub fn tables(self) -> Option<&'x Arc<Tables>> {
        self.0.tables.as_deref()
    }

    /// The match of the router.
    #[must_use]
    pub fn matched(self) -> Option<Match> {
        self.0.matched
    }

    /// The matched route's names.
    #[must_use]
    pub fn route(self) -> Option<&'x RouteInfo> {
        self.0.route()
    }

    /// The consumer, once an authentication plugin has found one.
    #[must_use]
    pub fn consumer(self) -> Option<&'x Consumer> {
        self.0.consumer()
    }

    /// Caller and credential of the request.
    #[must_use]
    pub fn caller(self) -> Option<ConsumerMatch> {
        self.0.consumer
    }

    /// Every try at a node, in order.
    #[must_use]
    pub fn tries(self) -> &'x [Try] {
        &self.0.upstream.tries
    }

    /// Metric label of the last node's address.
    #[must_use]
    pub fn node(self) -> Option<Label> {
        self.0.upstream.node
    }

    /// True for a stream of a stream route, which has no request.
    #[must_use]
    pub fn is_stream(self) -> bool {
        self.0.stream.is_some()
    }

    /// Bytes received from the client so far.
    #[must_use]
    pub fn received(self) -> u64 {
        self.0.received
    }

    /// Bytes sent to the client so far.
    #[must_use]
    pub fn sent(self) -> u64 {
        self.0.sent
    }

    /// Milliseconds since 1970 at the first byte of the request.
    #[must_use]
    pub fn unix_ms(self) -> u64 {
        self.0.times.unix_ms
    }

    /// The time of the first byte of the request.
    #[must_use]
    pub fn start(self) -> u64 {
        self.0.times.start
    }

    /// The time now, renewed between phases that wait.
    #[must_use]
    pub fn now(self) -> u64 {
        self.0.times.now
    }

    /// Microseconds since the first byte of the request.
    #[must_use]
    pub fn duration(self) -> u64 {
        self.0.times.now.saturating_sub(self.0.times.start)
    }

    /// The begin of the first try at an upstream; `None` when there was none.
    #[must_use]
    pub fn upstream_start(self) -> Option<u64> {
        Some(self.0.times.upstream_start).filter(|start| *start != 0)
    }

    /// Microseconds spent on upstreams; `None` when none was asked.
    #[must_use]
    pub fn upstream_us(self) -> Option<u64> {
        self.0.upstream_us()
    }
}
