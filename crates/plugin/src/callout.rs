//! Callouts: HTTP requests that a plugin makes of a service beside the exchange, while the exchange waits.
//!
//! ```text
//!  hook ─► Flow::Suspend ─► request_io(cx, io) ─► io.callout(Callout) ─► pools, TLS, DNS, retries of the gateway
//! ```
//!
//! The runner owns the deadline of a hook that waits and drops its future when the client has gone; a callout ends with
//! the future that awaits it. A plugin looks after neither.

use std::time::Duration;

use weir_wire::fields::Fields;
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::LocalFuture;
use crate::buffers::Held;
use crate::exchange::Client;

/// Services of the worker for hooks that wait.
pub trait Io {
    /// Sends a request to a service and returns its whole answer.
    ///
    /// Dropping the future cancels the callout.
    fn callout(&self, callout: Callout) -> LocalFuture<'_, Result<CalloutResponse, CalloutError>>;

    /// Sends a request to a service for which nobody waits: `done` is called in this worker with the answer, perhaps after
    /// the exchange is over. The bounds of callouts hold.
    fn start(&self, _callout: Callout, done: Box<dyn FnOnce(Result<CalloutResponse, CalloutError>)>) {
        done(Err(CalloutError::Failed("no callouts beside an exchange here")));
    }

    /// The number of the upstream that the request goes to, as far as it is decided: the one that a plugin has chosen, or else
    /// the route's. `None`: there is none yet, or the hook is none of a request.
    fn upstream(&self) -> Option<u32> {
        None
    }

    /// Connects to a node of an upstream, for a plugin that speaks a protocol of its own with it: to the one whose turn it is, or
    /// to others while none takes the connection within `timeout`. The connection counts as a callout until it is dropped.
    /// The plugin sets the time limits of all that follows.
    fn dial(&self, _upstream: u32, _timeout: Duration) -> LocalFuture<'_, Result<Box<dyn Duplex>, CalloutError>> {
        Box::pin(async { Err(CalloutError::Failed("no connections to nodes here")) })
    }

    /// Opens a connection of the gateway to itself, in memory, for a plugin that makes requests of a client's request. On it
    /// the plugin speaks HTTP/1.1, and is served as this client would be on a socket, with [`Client::inner`] set. `None`: this
    /// worker serves nobody.
    fn connect(&self, _client: &Client) -> Option<Box<dyn Duplex>> {
        None
    }
}

/// The plugin's end of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A request to a service beside the exchange.
#[derive(Debug)]
pub struct Callout {
    upstream: u32,
    method: Method,
    target: Vec<u8>,
    host: Vec<u8>,
    fields: Fields,
    body: Option<Vec<u8>>,
    timeout: Option<Duration>,
}

impl Callout {
    /// A request to this upstream, of [`BuildCx::upstream`](crate::BuildCx::upstream),
    /// [`BuildCx::inline_upstream`](crate::BuildCx::inline_upstream) or [`Service`](crate::Service). `target` is the
    /// request target, encoded; `host` is the `Host`, unless `pass_host` of the upstream names another.
    #[must_use]
    pub fn new(upstream: u32, method: Method, target: &[u8], host: &[u8]) -> Self {
        Self {
            upstream,
            method,
            target: target.to_vec(),
            host: host.to_vec(),
            fields: Fields::default(),
            body: None,
            timeout: None,
        }
    }

    /// Adds a field. Bytes that may not stand in a value are dropped from it. `Host` and fields that frame the body or
    /// belong to the connection are the gateway's own and must not be added.
    pub fn add_field(&mut self, name: &FieldName, value: &[u8]) {
        self.fields.add_named(name, |out| out.extend_from_slice(value));
    }

    /// Replaces the field.
    pub fn set_field(&mut self, name: &FieldName, value: &[u8]) {
        self.fields.set(b"", name, value);
    }

    /// True when the request has this field.
    #[must_use]
    pub fn has_field(&self, name: &FieldName) -> bool {
        self.fields.get(b"", name).is_some()
    }

    /// Sends this body, with a `Content-Length`.
    pub fn set_body(&mut self, body: &[u8]) {
        self.body = Some(body.to_vec());
    }

    /// Limits the time from now to the end of the answer, waiting for a connection included. Without it the timeouts of
    /// the upstream hold, and the deadline of the hook.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// The number of the upstream.
    #[must_use]
    pub fn upstream(&self) -> u32 {
        self.upstream
    }

    /// The time limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The `Host` where the upstream names no other.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// Bytes that the request takes in memory, about.
    #[must_use]
    pub fn size(&self) -> usize {
        self.target.len() + self.body.as_ref().map_or(0, Vec::len)
    }

    /// Appends the whole message, with this `Host`.
    pub fn write(&self, host: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(&self.target);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\n");
        self.fields.write(b"", out);
        if let Some(body) = &self.body {
            out.extend_from_slice(b"Content-Length: ");
            weir_wire::push_number(out, body.len() as u64);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body.as_deref().unwrap_or_default());
    }
}

/// The answer to a callout, whatever its status.
#[derive(Debug)]
pub struct CalloutResponse {
    status: u16,
    fields: Fields,
    trailers: Fields,
    body: Vec<u8>,
    /// The part of the budget for buffers that a long body takes.
    _held: Held,
}

impl CalloutResponse {
    /// An answer with these fields; `held` is the part of the budget that the body takes.
    #[must_use]
    pub fn new<'a>(status: u16, lines: impl Iterator<Item = (&'a [u8], &'a [u8])>, body: Vec<u8>, held: Held) -> Self {
        let mut fields = Fields::default();
        lines.for_each(|(name, value)| fields.add(name, value));
        Self { status, fields, trailers: Fields::default(), body, _held: held }
    }

    /// The same with a trailer section.
    #[must_use]
    pub fn with_trailers<'a>(mut self, lines: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        lines.for_each(|(name, value)| self.trailers.add(name, value));
        self
    }

    /// The first value of a field of the trailer section.
    #[must_use]
    pub fn trailer(&self, name: &FieldName) -> Option<&[u8]> {
        self.trailers.get(b"", name)
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first value of a field.
    #[must_use]
    pub fn field(&self, name: &FieldName) -> Option<&[u8]> {
        self.fields.get(b"", name)
    }

    /// All values of a field, in order.
    pub fn all<'a>(&'a self, name: &'a FieldName) -> impl Iterator<Item = &'a [u8]> {
        self.fields.all(b"", name)
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter(b"")
    }

    /// Bytes that it takes in memory, about.
    #[must_use]
    pub fn size(&self) -> usize {
        let fields: usize = self.fields.iter(b"").map(|(name, value)| name.len() + value.len() + 32).sum();
        size_of::<Self>() + fields + self.body.len()
    }

    /// The body, decoded from its framing.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Reasons for a callout without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalloutError {
    /// The worker has as many callouts under way as `limits.callouts` allows, or `limits.buffers` has no room.
    Busy,
    /// The timeout has passed.
    TimedOut,
    /// The answer is longer than `limits.callout_body`.
    TooLarge,
    /// The service cannot be reached, or its answer is broken: a few fixed words.
    Failed(&'static str),
}

impl CalloutError {
    /// A few words for logs and `X-Weir-Error`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Busy => "too many callouts under way",
            Self::TimedOut => "callout timed out",
            Self::TooLarge => "answer to a callout too large",
            Self::Failed(reason) => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Callout;
    use weir_wire::method::Method;
    use weir_wire::name::FieldName;

    #[test]
    fn a_callout_is_one_message_whatever_its_values_contain() {
        let name = FieldName::new("X-A").unwrap();
        let mut callout = Callout::new(0, Method::Post, b"/auth?a=b", b"unused");
        callout.add_field(&name, b"one\r\nX-B: two");
        assert!(callout.has_field(&name));
        callout.set_body(b"hello");
        let mut out = Vec::new();
        callout.write(b"a.test", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "POST /auth?a=b HTTP/1.1\r\nHost: a.test\r\nX-A: oneX-B: two\r\nContent-Length: 5\r\n\r\nhello"
        );
    }
}
