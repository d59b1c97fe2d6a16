//! Requests passed on to a function as they are, with credentials of the gateway: what `aws-lambda`, `azure-functions` and
//! `openfunction` have in common.

use std::fmt::Debug;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::{Value, Variable};
use weir_plugin::{
    Callout, CalloutError, CompileCx, Compiled, Failure, Flow, Invalid, Io, LocalFuture, Plugin, RequestCx, Service,
    ServiceOptions,
};
use weir_wire::name::FieldName;

use super::called::{answer, copy_fields};
use super::signature::encoded_bytes;

/// The configuration of such a plugin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf<A> {
    /// URI of the function. The part of the path that a `*` at the end of the route's `uri` stands for is appended to its
    /// path, and the query of the request goes with it.
    #[schemars(length(min = 1))]
    function_uri: String,
    /// Credentials. Without them the function is called without any.
    #[serde(default)]
    authorization: Option<A>,
    /// Milliseconds for the function's answer; later the request is answered 503.
    #[serde(default = "three_seconds")]
    #[schemars(range(min = 100, max = 86_400_000))]
    timeout: u64,
    /// Verifies the certificate of the function.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Keeps connections for further requests.
    #[serde(default = "yes")]
    keepalive: bool,
    /// Milliseconds for which an unused connection is kept.
    #[serde(default = "minute")]
    #[schemars(range(min = 1000, max = 86_400_000))]
    keepalive_timeout: u64,
    /// Unused connections that a worker keeps.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    keepalive_pool: u32,
    /// Most bytes of a request body, where it is less than `limits.buffered_body`: a longer one is answered 413.
    #[serde(default = "most")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
}

pub(super) const fn three_seconds() -> u64 {
    3_000
}

pub(super) const fn minute() -> u64 {
    60_000
}

pub(super) const fn five() -> u32 {
    5
}

pub(super) const fn yes() -> bool {
    true
}

pub(super) const fn most() -> u64 {
    64 << 20
}

/// A way to show who calls.
pub(super) trait Credentials: Debug + Send + Sync + 'static {
    /// Puts credentials into a call. What the client has sent takes precedence, as in APISIX.
    fn put(&self, call: &mut Call<'_, '_>);
}

/// A call on its way.
pub(super) struct Call<'c, 'x> {
    pub(super) cx: &'c RequestCx<'x>,
    pub(super) callout: &'c mut Callout,
    /// Path and query as they are sent.
    pub(super) path: &'c str,
    pub(super) query: &'c str,
    pub(super) host: &'c str,
}

impl<A> Conf<A> {
    /// The plugin, with credentials that `make` makes of the configuration's and of the metadata.
    pub(super) fn compile<C, F>(self, name: &'static str, cx: &CompileCx<'_>, make: F) -> Option<Compiled>
    where
        C: Credentials,
        A: Send + 'static,
        F: Fn(Option<A>, &weir_plugin::BuildCx<'_>) -> Result<C, Invalid> + Send + 'static,
    {
        let timeout = Duration::from_millis(self.timeout);
        let options = ServiceOptions {
            verify: self.ssl_verify,
            keepalive: self.keepalive.then_some(self.keepalive_pool),
            idle: Duration::from_millis(self.keepalive_timeout),
            timeout,
        };
        let uri = self.function_uri;
        let service = cx.ok(Service::parse("function_uri", &uri, options))?;
        let authority = uri.split_once("://").map_or("", |(_, rest)| rest);
        let host = authority.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
        let (most, authorization) = (self.max_req_body_size, self.authorization);
        Some(Compiled::build(move |build| {
            let credentials = make(authorization, build)?;
            Ok(Function { name, service: service.build(build)?, host, credentials, timeout, most })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Function<C> {
    name: &'static str,
    service: Service,
    host: String,
    credentials: C,
    timeout: Duration,
    most: u64,
}

impl<C: Credentials> Plugin for Function<C> {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.body() {
            None => Flow::AwaitBody,
            Some(body) if body.len() as u64 > self.most => Flow::Abort(Failure::BODY_TOO_LARGE),
            Some(_) => Flow::Suspend,
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let callout = self.call(cx);
            match io.callout(callout).await {
                Ok(response) => answer(cx, response.status(), response.fields(), response.body()),
                Err(CalloutError::Busy) => cx.fail(503, "too many callouts under way"),
                Err(error) => {
                    tracing::error!(plugin = self.name, reason = error.reason(), "a function does not answer");
                    cx.fail(503, "the function does not answer")
                }
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A callout ends before, by its own timeout.
        Some(self.timeout + Duration::from_secs(5))
    }
}

impl<C: Credentials> Function<C> {
    fn call(&self, cx: &RequestCx<'_>) -> Callout {
        let own = String::from_utf8_lossy(self.service.target()).into_owned();
        let (own_path, own_query) = own.split_once('?').unwrap_or((&own, ""));
        let path = joined(own_path, &tail(cx));
        let query = query(cx, own_query);
        let mark = if query.is_empty() { "" } else { "?" };
        let mut callout = self.service.callout_to(cx.request().method(), format!("{path}{mark}{query}").as_bytes());
        callout.set_timeout(self.timeout);
        copy_fields(cx, &mut callout);
        if let Some(body) = cx.body().filter(|body| !body.is_empty()) {
            callout.set_body(body);
        }
        let mut call = Call { cx, callout: &mut callout, path: &path, query: &query, host: &self.host };
        self.credentials.put(&mut call);
        callout
    }
}

/// The text that the `*` at the end of the route's path stands for, encoded.
fn tail(cx: &RequestCx<'_>) -> String {
    let Some(Value::Bytes(pattern)) = cx.variable(&Variable::MatchedUri) else { return String::new() };
    let Some(prefix) = pattern.strip_suffix(b"*") else { return String::new() };
    encoded_bytes(cx.request().path().get(prefix.len()..).unwrap_or_default())
}

fn joined(path: &str, tail: &str) -> String {
    let slash = if tail.is_empty() || path.ends_with('/') || tail.starts_with('/') { "" } else { "/" };
    format!("{path}{slash}{tail}")
}

/// All arguments, encoded, in the order of their names: the one form that can be signed.
fn query(cx: &RequestCx<'_>, own: &str) -> String {
    let coded = |text: &[u8]| encoded_bytes(text).replace('/', "%2F");
    let mut pairs: Vec<(String, String)> = cx
        .request()
        .arguments()
        .map(|(name, value)| (coded(name), coded(value.text())))
        .filter(|(name, value)| !(name.is_empty() && value.is_empty()))
        .collect();
    // Those of the URI are encoded.
    let own = own.split('&').filter(|pair| !pair.is_empty());
    pairs.extend(own.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(a, b)| (a.to_owned(), b.to_owned())));
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

impl Call<'_, '_> {
    /// True if the client has sent this field.
    pub(super) fn has(&self, name: &FieldName) -> bool {
        self.callout.has_field(name)
    }

    /// Sets a field, unless there is nothing to set.
    pub(super) fn set(&mut self, name: &FieldName, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.callout.set_field(name, value.as_bytes());
        }
    }
}

/// Refuses a credential that no field can carry.
pub(super) fn check(path: &'static str, value: Option<&String>) -> Result<(), Invalid> {
    match value {
        Some(value) if !value.bytes().all(weir_wire::is_field_byte) => {
            Err(Invalid::new(path, "expected a text without control characters"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn paths_are_joined_by_one_slash() {
        for (path, tail, expected) in
            [("/", "a", "/a"), ("/f", "a/b", "/f/a/b"), ("/f/", "a", "/f/a"), ("/f", "", "/f"), ("/f", "/a", "/f/a")]
        {
            assert_eq!(joined(path, tail), expected);
        }
    }
}
