//! Contexts of hooks, made of the exchange that they are about.

use weir_telemetry::metrics::Recorder;

use crate::exchange::Exchange;
use crate::{BodyCx, LogCx, RequestBodyCx, RequestCx, ResponseCx, UpstreamCx};

/// The context of `rewrite`, `access` and `request_io`.
#[inline]
pub fn request(exchange: &mut Exchange) -> RequestCx<'_> {
    RequestCx(exchange)
}

/// The context of `upstream_request`.
#[inline]
pub fn upstream_request(exchange: &mut Exchange) -> UpstreamCx<'_> {
    UpstreamCx(exchange)
}

/// The context of `request_body`; `begins` with the first piece of an attempt.
#[inline]
pub fn request_body(exchange: &mut Exchange, begins: bool) -> RequestBodyCx<'_> {
    RequestBodyCx { exchange, begins }
}

/// The context of `response`, `encode` and `response_io`.
#[inline]
pub fn response(exchange: &mut Exchange) -> ResponseCx<'_> {
    ResponseCx(exchange)
}

/// The context of `body`.
#[inline]
pub fn body(exchange: &mut Exchange) -> BodyCx<'_> {
    BodyCx(exchange)
}

/// The context of `log`.
#[inline]
pub fn log<'a>(exchange: &'a Exchange, recorder: &'a Recorder) -> LogCx<'a> {
    LogCx { exchange, recorder }
}
