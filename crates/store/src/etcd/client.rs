//! Calls of etcd's HTTP gateway, with failover from member to member.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::EtcdOptions;
use super::messages::{Fault, Token};

/// Maximum size of an answer in bytes. By default etcd accepts requests of up to 1.5 MiB; listings reduce the page
/// size until a page fits.
pub(super) const MAX_ANSWER: usize = 64 << 20;

/// Time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(30);

/// Phrases in etcd's errors which mean that a token is no longer valid. A restarted member knows no tokens.
const STALE_TOKEN: [&str; 3] = ["invalid auth token", "user name is empty", "revision in header is old"];

/// Client of the members of a cluster.
#[derive(Debug)]
pub(super) struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    members: Vec<String>,
    /// Index of the member that is asked first.
    current: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<HeaderValue>>,
    /// Deadline of a call over all members.
    timeout: Duration,
    tls_words: fn(&rustls::Error) -> String,
}

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// The request was not sent, so the member did not execute it.
    #[error("{0}")]
    NotSent(String),
    /// The member gave no complete answer, so it may have executed the request.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer is longer than [`MAX_ANSWER`].
    #[error("an answer of more than {} MiB", MAX_ANSWER >> 20)]
    TooLong,
    /// etcd refused the request, with this message.
    #[error("{0}")]
    Refused(String),
}

impl CallError {
    /// True if another member may succeed.
    pub(super) fn may_succeed_elsewhere(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::NoAnswer(_) => true,
            Self::TooLong => false,
            Self::Refused(words) => {
                ["no leader", "request timed out", "leader changed", "stopped", "not capable", "unhealthy cluster"]
                    .iter()
                    .any(|part| words.contains(part))
            }
        }
    }

    /// True if the member certainly did not execute the request.
    fn was_not_executed(&self) -> bool {
        match self {
            Self::NotSent(_) => true,
            Self::NoAnswer(_) | Self::TooLong => false,
            Self::Refused(words) => words.contains("no leader"),
        }
    }
}

impl Client {
    pub(super) fn new(options: &EtcdOptions) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(15)));
        let tls = HttpsConnectorBuilder::new().with_tls_config(options.tls.as_ref().clone());
        let mut tls = tls.https_or_http();
        if let Some(name) = &options.server_name
            && let Ok(name) = ServerName::try_from(name.clone())
        {
            tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let connector = tls.enable_http1().wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            http,
            // Starts at a random member, which spreads many gateways over the members.
            current: AtomicUsize::new(fastrand::usize(..options.hosts.len().max(1))),
            members: options.hosts.clone(),
            user: options.user.clone(),
            token: Mutex::new(None),
            timeout: options.timeout,
            tls_words: options.tls_words,
        }
    }

    /// Index of the member that is asked first.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Address of a member.
    pub(super) fn member(&self, index: usize) -> &str {
        self.members.get(index % self.members.len().max(1)).map_or("", String::as_str)
    }

    /// Makes the next member the first, unless another call has already done so.
    pub(super) fn leave(&self, index: usize) {
        let next = (index + 1) % self.members.len().max(1);
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One member's share of a call's deadline, so that the other members can be tried too.
    pub(super) fn share(&self) -> Duration {
        self.timeout / self.members.len().max(1) as u32
    }

    /// Sends an idempotent request, to each member in turn until one answers.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str, message: &Value) -> Result<T, CallError> {
        self.each(path, message, CallError::may_succeed_elsewhere).await
    }

    /// Executes a request at most once: tries another member only if the one before certainly did not execute it.
    pub(super) async fn once<T: DeserializeOwned>(&self, path: &str, message: &Value) -> Result<T, CallError> {
        self.each(path, message, CallError::was_not_executed).await
    }

    async fn each<T: DeserializeOwned>(
        &self,
        path: &str,
        message: &Value,
        may_go_on: fn(&CallError) -> bool,
    ) -> Result<T, CallError> {
        let mut last = CallError::NotSent("there is no member to ask".to_owned());
        for _ in 0..self.members.len() {
            let index = self.current();
            match self.at(index, path, message).await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    if error.may_succeed_elsewhere() {
                        self.leave(index);
                    }
                    if !may_go_on(&error) {
                        return Err(error);
                    }
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Sends a request to this member only.
    pub(super) async fn at<T: DeserializeOwned>(
        &self,
        index: usize,
        path: &str,
        message: &Value,
    ) -> Result<T, CallError> {
        let until = Instant::now() + self.share();
        let response = self.open(index, path, message, until).await?;
        let member = self.member(index);
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
        let bytes = match timeout_at(until, body).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => return Err(CallError::TooLong),
            Ok(Err(error)) => return Err(CallError::NoAnswer(format!("{member}: {error}"))),
            Err(_) => return Err(self.too_slow(member)),
        };
        serde_json::from_slice(&bytes).map_err(|error| CallError::NoAnswer(format!("{member}: not an answer: {error}")))
    }

    /// Sends a request to a member and waits for the head of a successful response.
    pub(super) async fn open(
        &self,
        index: usize,
        path: &str,
        message: &Value,
        until: Instant,
    ) -> Result<Response<Incoming>, CallError> {
        let mut renewed = false;
        loop {
            let token = self.token(index, until).await?;
            match self.send(index, path, message, token.as_ref(), until).await {
                Err(CallError::Refused(words)) if token.is_some() && !renewed && is_stale_token(&words) => {
                    self.forget_token();
                    renewed = true;
                }
                outcome => return outcome,
            }
        }
    }

    /// Discards the token, so that the next call authenticates again.
    pub(super) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn token(&self, index: usize, until: Instant) -> Result<Option<HeaderValue>, CallError> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(token.clone()));
        }
        let message = json!({ "name": name, "password": password });
        let response = self.send(index, "/v3/auth/authenticate", &message, None, until).await;
        let response = match response {
            // A configured user is allowed even while authentication is disabled in etcd.
            Err(CallError::Refused(words)) if words.contains("authentication is not enabled") => return Ok(None),
            response => response?,
        };
        let bytes = timeout_at(until, Limited::new(response.into_body(), 1 << 20).collect())
            .await
            .map_err(|_| self.too_slow(self.member(index)))?
            .map_err(|error| CallError::NoAnswer(error.to_string()))?
            .to_bytes();
        let token: Option<HeaderValue> =
            serde_json::from_slice::<Token>(&bytes).ok().and_then(|answer| answer.token.parse().ok());
        let Some(mut token) = token else {
            return Err(CallError::NoAnswer(format!("{}: no token in the answer", self.member(index))));
        };
        token.set_sensitive(true);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }

    async fn send(
        &self,
        index: usize,
        path: &str,
        message: &Value,
        token: Option<&HeaderValue>,
        until: Instant,
    ) -> Result<Response<Incoming>, CallError> {
        let member = self.member(index);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{member}{path}"))
            .header(CONTENT_TYPE, "application/json")
            // A member that is partitioned from the others ends its watches instead of going silent.
            .header("grpc-metadata-hasleader", "true");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let body = Full::new(Bytes::from(message.to_string()));
        let request = request.body(body).map_err(|error| CallError::NotSent(format!("{member}: {error}")))?;
        let response = match timeout_at(until, self.http.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let words = format!("{member}: {}", self.chain(&error));
                return Err(if error.is_connect() { CallError::NotSent(words) } else { CallError::NoAnswer(words) });
            }
            Err(_) => return Err(self.too_slow(member)),
        };
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = timeout_at(until, Limited::new(response.into_body(), 1 << 20).collect()).await;
        let bytes = body.ok().and_then(Result::ok).map(|collected| collected.to_bytes()).unwrap_or_default();
        Err(match serde_json::from_slice::<Fault>(&bytes) {
            Ok(fault) => CallError::Refused(fault.text()),
            // The error does not come from etcd itself but from a proxy in front of it.
            Err(_) if status.is_client_error() => {
                let words: String = String::from_utf8_lossy(&bytes).trim().chars().take(200).collect();
                CallError::Refused(format!("{member}: status {status}: {words}"))
            }
            Err(_) => CallError::NoAnswer(format!("{member}: status {status}")),
        })
    }

    /// Text of an error and of its sources.
    fn chain(&self, error: &dyn Error) -> String {
        let mut words = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            if let Some(error) = of_tls(error) {
                return format!("{words}: {}", (self.tls_words)(error));
            }
            let text = error.to_string();
            if !words.contains(&text) {
                words = format!("{words}: {text}");
            }
            source = error.source();
        }
        words
    }

    pub(super) fn too_slow(&self, member: &str) -> CallError {
        CallError::NoAnswer(format!("{member}: no answer within {:?}", self.share()))
    }
}

/// True if etcd's message means that a new token is needed.
pub(super) fn is_stale_token(words: &str) -> bool {
    STALE_TOKEN.iter().any(|part| words.contains(part))
}

/// TLS error inside an error of a connection.
fn of_tls<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().and_then(|inner| of_tls(inner)),
        None => error.downcast_ref(),
    }
}

/// A client shared by the store and its watches.
pub(super) type Shared = Arc<Client>;
