//! The call that runs in a machine: its place on the exchange, and things that it asks of the gateway.

use std::sync::Arc;

/// A point of an exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is no exchange.
    #[default]
    Nowhere,
    /// The head or the body of the request.
    Request,
    /// The head of the response.
    Response,
    /// The body of the response, whose head has been sent.
    ResponseBody,
    /// The end of the exchange.
    Log,
}

/// State of a call.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) stage: Stage,
    /// The context in which the call acts.
    pub(crate) context: i32,
    /// The configuration, while it is taken in.
    pub(crate) conf: Option<Arc<[u8]>>,
    /// The body that is looked at.
    pub(crate) body: Option<Vec<u8>>,
    /// True once the body was changed.
    pub(crate) has_changed_body: bool,
    /// The answer that the filter makes.
    pub(crate) answer: Option<Answer>,
    /// Requests to services that the filter has asked for.
    pub(crate) requests: Vec<ServiceRequest>,
    /// The answer of a service.
    pub(crate) service_answer: Option<ServiceAnswer>,
    /// True once the filter lets the request go on that it has paused.
    pub(crate) is_resumed: bool,
}

/// An answer that a filter makes.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// A request to a service.
#[derive(Debug)]
pub(crate) struct ServiceRequest {
    pub(crate) number: u32,
    /// `http://host:port`
    pub(crate) address: String,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) timeout_ms: u32,
}

/// The answer of a service.
#[derive(Debug, Default)]
pub(crate) struct ServiceAnswer {
    /// With `:status` among them.
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}
