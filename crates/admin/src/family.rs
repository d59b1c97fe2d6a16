//! The Admin API of another family than APISIX's: the same door, with the answers of the family.
//!
//! Addresses, keys, foreign pages, the size of bodies and the memory that bodies take together are settled here as for
//! APISIX's API ([`Options`]); the family sees whole requests of those who may ask.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::answer::Body;
use crate::api::{Api, Options, Peer, receive};
use crate::keys::Identity;
use crate::request::{Query, segments};
use crate::server::Service;
use crate::sessions::{Shown, is_confirmed};
use crate::turns::{Held, SMALL, Turns};

/// The handlers of a family.
pub trait FamilyApi: Send + Sync + fmt::Debug {
    /// Name of the field with the key.
    fn key_field(&self) -> &'static str;

    /// Answers a request that was let in.
    fn answer(self: Arc<Self>, request: FamilyRequest) -> Pin<Box<dyn Future<Output = FamilyAnswer> + Send>>;

    /// The answer to a request that was not let in, or could not be read.
    fn refusal(&self, status: StatusCode, message: &str) -> FamilyAnswer;
}

/// A request with all of its body.
#[derive(Debug)]
pub struct FamilyRequest {
    /// Method.
    pub method: Method,
    /// Segments of the path, decoded, without empty ones.
    pub path: Vec<String>,
    /// Arguments of the query, as names and values in order.
    pub query: Vec<(String, String)>,
    /// Fields.
    pub fields: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// The author of a change, for the history.
    pub author: String,
}

/// An answer of a family.
#[derive(Debug)]
pub struct FamilyAnswer {
    /// Status.
    pub status: StatusCode,
    /// Fields.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Body; `None` for an answer that has none.
    pub body: Option<Bytes>,
}

/// The API of a family behind its door.
#[derive(Debug)]
pub struct FamilyDoor {
    family: Arc<dyn FamilyApi>,
    options: Options,
    turns: Turns,
    /// The dashboard, and what it asks beside the family's API.
    dashboard: Option<Arc<Api>>,
}

impl FamilyDoor {
    /// The door to an API.
    #[must_use]
    pub fn new(family: Arc<dyn FamilyApi>, options: Options) -> Self {
        let turns = Turns::new(options.lists, options.memory);
        Self { family, options, turns, dashboard: None }
    }

    /// With the dashboard at the same address, whose sessions open the family's API as well.
    #[must_use]
    pub fn with_dashboard(self, api: Api) -> Self {
        Self { dashboard: Some(Arc::new(api)), ..self }
    }

    /// The owner of the session that a request without a key belongs to.
    fn session(
        &self,
        head: &hyper::http::request::Parts,
        peer: &Peer,
    ) -> Result<Option<Identity>, (StatusCode, String)> {
        let shown = Shown::of(&head.headers, peer.port);
        let found = self.dashboard.as_ref().zip(shown.token()).and_then(|(api, token)| api.sessions.find(token));
        let Some((identity, csrf)) = found else { return Ok(None) };
        identity.check_method(&head.method).map_err(|reason| (StatusCode::FORBIDDEN, reason))?;
        let is_change = !matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        if is_change && !is_confirmed(&csrf, shown.csrf()) {
            return Err((StatusCode::FORBIDDEN, "a change over a session needs its token in X-CSRF-Token".to_owned()));
        }
        Ok(Some(identity))
    }

    async fn admit(
        &self,
        request: hyper::Request<Incoming>,
        peer: &Peer,
    ) -> Result<FamilyAnswer, (StatusCode, String)> {
        let Options { allow, hosts, keys, body_size, .. } = &self.options;
        if !allow.is_empty() && !allow.iter().any(|range| range.contains(peer.address)) {
            let message = format!("{} may not use this API: it is not in admin.allow", peer.address);
            return Err((StatusCode::FORBIDDEN, message));
        }
        let (head, body) = request.into_parts();
        let key = head.headers.get(self.family.key_field()).map(|value| value.to_str().unwrap_or_default());
        // A client without a key must not be somebody else's page.
        if (keys.is_open() || key.is_none())
            && let Some(reason) = hosts.refusal(&head.uri, &head.headers, peer.local)
        {
            return Err((StatusCode::FORBIDDEN, reason));
        }
        let session = if keys.is_open() || key.is_some() { None } else { self.session(&head, peer)? };
        let by = match session {
            Some(identity) => identity,
            None => keys.check(key, peer.certificate.as_deref(), &head.method).map_err(|_| {
                (StatusCode::UNAUTHORIZED, "Invalid credentials. Token or User credentials required".into())
            })?,
        };
        let most = body.size_hint().upper().map_or(*body_size, |most| usize::try_from(most).unwrap_or(*body_size));
        let most = most.min(*body_size);
        let held = if most > SMALL { Some(self.share(most).await?) } else { None };
        let body = receive(body, *body_size).await.map_err(|refused| (refused.status, refused.message))?;
        let query = Query::parse(head.uri.query()).pairs();
        let path = segments(head.uri.path());
        let place = format!("/{}", path.join("/"));
        let (method, author) = (head.method.clone(), by.name.clone());
        let request = FamilyRequest { method: head.method, path, query, fields: head.headers, body, author };
        // On a task of its own: a change that has begun is not left in the middle when the client goes away.
        let answered = tokio::spawn(Arc::clone(&self.family).answer(request)).await;
        drop(held);
        let answer = answered.map_err(|panicked| {
            tracing::error!(%panicked, "a request to the admin API could not be answered");
            (StatusCode::INTERNAL_SERVER_ERROR, "An unexpected error occurred".to_owned())
        })?;
        if !matches!(method, Method::GET | Method::HEAD | Method::OPTIONS) {
            // Neither bodies nor query strings: they hold keys.
            tracing::info!(%method, path = place, by = by.name, status = answer.status.as_u16(), "admin API");
        }
        Ok(answer)
    }

    async fn share(&self, bytes: usize) -> Result<Held, (StatusCode, String)> {
        let busy = "too much is being sent and answered: try again (limits.admin_memory)";
        self.turns.share(bytes).await.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, busy.to_owned()))
    }
}

impl Service for FamilyDoor {
    fn respond<'a>(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
        peer: &'a Peer,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>> {
        Box::pin(async move {
            if let Some(api) = self.dashboard.as_ref().filter(|_| is_for_dashboard(&request)) {
                return api.respond_to(request, peer).await;
            }
            let refused = |(status, message): (StatusCode, String)| self.family.refusal(status, &message);
            let mut answer = self.admit(request, peer).await.unwrap_or_else(refused);
            if let Some(body) = answer.body.take_if(|body| body.len() > SMALL) {
                match self.share(body.len()).await {
                    Ok(mut held) => {
                        held.watch(body.len(), &peer.cut);
                        answer.body = Some(held.with(body));
                    }
                    Err(refusal) => answer = refused(refusal),
                }
            }
            let FamilyAnswer { status, fields, body } = answer;
            let mut response = Response::new(Body::Whole(body));
            *response.status_mut() = status;
            for (name, value) in fields {
                response.headers_mut().append(name, value);
            }
            response
        })
    }

    fn end(&self) {
        if let Some(api) = &self.dashboard {
            api.end();
        }
    }
}

/// True for the dashboard's own paths, and for the root where a browser asks for a page: programs get the family's answer.
fn is_for_dashboard(request: &hyper::Request<Incoming>) -> bool {
    let path = segments(request.uri().path());
    match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["weir", "v1", _, ..] | ["dashboard", _] => true,
        [] => {
            let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
            *request.method() == Method::GET && { accepted }.any(|value| value.contains("text/html"))
        }
        _ => false,
    }
}
