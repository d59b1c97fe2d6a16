//! From a request to the handler that answers it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{ALLOW, HeaderName, HeaderValue, SERVER};
use hyper::{Method, StatusCode};
use serde_json::Value;
use weir_admin::{Configuration, FamilyAnswer, FamilyApi, FamilyRequest};

use crate::fault::{self, Outcome, answer, empty};
use crate::kinds;
use crate::live::Live;
use crate::target::Target;
use crate::{info, read, write};

/// What the gateway tells of itself.
pub trait Gateway: Send + Sync + fmt::Debug {
    /// Name of the machine.
    fn hostname(&self) -> String;

    /// Id of the process, a UUID.
    fn node_id(&self) -> String;

    /// Where the configuration is, in Kong's words: `postgres` stands for a store, `off` for none.
    fn database(&self) -> &'static str;

    /// False if the store cannot be reached.
    fn is_store_reachable(&self) -> bool;

    /// `/status`, without what the API knows itself.
    fn status(&self) -> Value;
}

/// Kong's Admin API.
#[derive(Debug)]
pub struct KongAdmin {
    live: Live,
    gateway: Arc<dyn Gateway>,
}

impl KongAdmin {
    /// The API over a configuration of Kong's family.
    #[must_use]
    pub fn new(configuration: Arc<dyn Configuration>, gateway: Arc<dyn Gateway>) -> Arc<Self> {
        Arc::new(Self { live: Live::new(configuration), gateway })
    }

    /// Follows the changes of the store, for ever. Nothing is answered before this runs.
    pub async fn follow(self: Arc<Self>) {
        self.live.follow().await;
    }

    async fn dispatch(&self, mut request: FamilyRequest) -> Outcome {
        // The only workspace there is.
        if request.path.first().is_some_and(|first| first == "default") {
            request.path.remove(0);
            if request.path.first().is_some_and(|first| first == "kong") {
                request.path.remove(0);
            }
        }
        let (method, path) = (request.method.clone(), request.path.clone());
        if method == Method::OPTIONS {
            let allow = HeaderValue::from_static(info::methods(&request));
            return Ok(FamilyAnswer { fields: vec![(ALLOW, allow)], ..empty(StatusCode::NO_CONTENT) });
        }
        let reads = matches!(method, Method::GET | Method::HEAD);
        let place: Vec<&str> = path.iter().map(String::as_str).collect();
        match place.as_slice() {
            [] | ["status" | "endpoints" | "tags", ..] | ["plugins", "enabled"] if !reads => Err(fault::wrong_method()),
            [] => Ok(answer(StatusCode::OK, &info::node(&*self.gateway, &self.live.entities().await))),
            ["status"] => Ok(answer(StatusCode::OK, &info::status(&*self.gateway, &self.live.entities().await))),
            ["endpoints"] => Ok(answer(StatusCode::OK, &info::endpoints())),
            ["plugins", "enabled"] => Ok(answer(StatusCode::OK, &info::plugin_names())),
            ["tags"] => read::tags(&self.live.entities().await, None, &request),
            ["tags", tag] => read::tags(&self.live.entities().await, Some(tag), &request),
            ["schemas", name, "validate"] if method == Method::POST => {
                let (kind, _) = kinds::named(name).ok_or_else(fault::not_found)?;
                write::validate(kind, &self.live, &request).await
            }
            ["schemas", rest @ ..] if reads => info::schema(rest),
            _ => self.entity(&request).await,
        }
    }

    async fn entity(&self, request: &FamilyRequest) -> Outcome {
        let target = Target::of(&request.path).ok_or_else(fault::not_found)?;
        match (&request.method, target.id) {
            (&Method::GET | &Method::HEAD, _) => read::read(&target, &self.live.entities().await, request),
            (&Method::POST, None) | (&Method::PUT | &Method::PATCH | &Method::DELETE, Some(_)) => {
                write::write(&target, &self.live, request).await
            }
            _ => Err(fault::wrong_method()),
        }
    }
}

impl FamilyApi for KongAdmin {
    fn key_field(&self) -> &'static str {
        "kong-admin-token"
    }

    fn answer(self: Arc<Self>, request: FamilyRequest) -> Pin<Box<dyn Future<Output = FamilyAnswer> + Send>> {
        Box::pin(async move {
            let began = Instant::now();
            let mut answer = self.dispatch(request).await.unwrap_or_else(|refusal| refusal);
            let took = HeaderValue::from(began.elapsed().as_millis() as u64);
            answer.fields.push((HeaderName::from_static("x-kong-admin-latency"), took));
            answer.fields.push((SERVER, HeaderValue::from_static("kong/3.9.3")));
            answer
        })
    }

    fn refusal(&self, status: StatusCode, message: &str) -> FamilyAnswer {
        fault::message(status, message)
    }
}
