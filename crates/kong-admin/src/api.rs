//! From a request to the handler that answers it.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{ALLOW, HeaderName, HeaderValue, SERVER};
use hyper::{Method, StatusCode};
use serde_json::Value;
use weir_admin::{Configuration, FamilyAnswer, FamilyApi, FamilyRequest};
use weir_config::settings::{Kong, KongHeader};
use weir_plugins::kong::Tokens;

use crate::config::Config;
use crate::fault::{self, Outcome, answer, empty};
use crate::kinds;
use crate::live::Live;
use crate::target::Target;
use crate::{acme, health, info, proxy_cache, read, shape, tokens, write};

/// Facts about the gateway for `/` and `/status`.
pub trait Gateway: Send + Sync + fmt::Debug {
    /// Name of the machine.
    fn hostname(&self) -> String;

    /// Id of the process, a UUID.
    fn node_id(&self) -> String;

    /// Name and version that the gateway announces in Kong's family.
    fn kong(&self) -> &Kong;

    /// Kind of the store, in Kong's words: `postgres` stands for a store, `off` for none.
    fn database(&self) -> &'static str;

    /// False if the store cannot be reached.
    fn is_store_reachable(&self) -> bool;

    /// `/status`, without what the API knows itself.
    fn status(&self) -> Value;

    /// The addresses whose health is checked for these places; `None` if nothing is checked for them.
    fn addresses(&self, places: &[CheckedPlace]) -> Option<Vec<TargetAddress>>;

    /// Sets the health of the addresses that `chosen` takes. Returns their number.
    fn mark(&self, places: &[CheckedPlace], chosen: &dyn Fn(&TargetAddress) -> bool, is_healthy: bool) -> usize;
}

/// An item of the model whose upstream is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPlace {
    /// `services`, or `routes` for a route with an upstream of its own.
    pub kind: &'static str,
    /// The id.
    pub id: String,
}

/// An address of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAddress {
    /// Host of the target, as it is configured.
    pub host: String,
    /// The address.
    pub address: SocketAddr,
    /// True if requests are sent to it.
    pub is_healthy: bool,
}

impl TargetAddress {
    /// True for an address of the target with this host and port.
    pub(crate) fn is_of(&self, host: &str, port: u16) -> bool {
        self.address.port() == port && self.host.eq_ignore_ascii_case(host)
    }
}

/// Kong's Admin API.
#[derive(Debug)]
pub struct KongAdmin {
    live: Live,
    gateway: Arc<dyn Gateway>,
    config: Config,
    tokens: Arc<Tokens>,
}

impl KongAdmin {
    /// The API over a configuration of Kong's family, and over the tokens that its plugin `oauth2` has granted.
    #[must_use]
    pub fn new(configuration: Arc<dyn Configuration>, gateway: Arc<dyn Gateway>, tokens: Arc<Tokens>) -> Arc<Self> {
        Arc::new(Self { live: Live::new(configuration), gateway, config: Config::default(), tokens })
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
            ["status"] => {
                let status = info::status(&*self.gateway, &self.live.entities().await, &self.config.hash());
                Ok(answer(StatusCode::OK, &status))
            }
            ["config"] if !self.is_without_database() => {
                let text = "this endpoint is only available when Kong is configured to not use a database";
                Err(fault::message(StatusCode::BAD_REQUEST, text))
            }
            ["config"] if reads => self.config.read(),
            ["config"] if method == Method::POST => self.config.replace(&self.live, &request).await,
            ["config"] => Err(fault::wrong_method()),
            ["proxy-cache", rest @ ..] => proxy_cache::entries(rest, &method, &self.live.entities().await).await,
            ["acme"] => acme::order(&request).await,
            ["endpoints"] => Ok(answer(StatusCode::OK, &info::endpoints())),
            ["plugins", "enabled"] => Ok(answer(StatusCode::OK, &info::plugin_names())),
            ["tags"] => read::tags(&self.live.entities().await, None, &request),
            ["tags", tag] => read::tags(&self.live.entities().await, Some(tag), &request),
            ["schemas", name, "validate"] if method == Method::POST => {
                let (kind, _) = kinds::named(name).ok_or_else(fault::not_found)?;
                write::validate(kind, &self.live, &request).await
            }
            ["schemas", rest @ ..] if reads => info::schema(rest),
            ["upstreams", key, "health"] if reads => {
                health::health(key, &self.live.entities().await, &*self.gateway, &request)
            }
            ["upstreams", key, "targets", target, rest @ .., state @ ("healthy" | "unhealthy")] if rest.len() < 2 => {
                if !matches!(method, Method::PUT | Method::POST) {
                    return Err(fault::wrong_method());
                }
                let entities = self.live.entities().await;
                let address = rest.first().copied();
                health::mark([*key, *target], address, *state == "healthy", &entities, &*self.gateway)
            }
            // The list of targets has all of them anyway.
            ["upstreams", _, "targets", "all"] if reads => {
                request.path.truncate(3);
                self.entity(&request).await
            }
            _ => self.entity(&request).await,
        }
    }

    async fn entity(&self, request: &FamilyRequest) -> Outcome {
        let target = Target::of(&request.path).ok_or_else(fault::not_found)?;
        if target.kind.name == tokens::KIND && self.tokens.are_kept() {
            return tokens::tokens(&target, &self.live.entities().await, &self.tokens, request);
        }
        match (&request.method, target.id) {
            (&Method::GET | &Method::HEAD, _) => read::read(&target, &self.live.entities().await, request),
            (&Method::POST, None) | (&Method::PUT | &Method::PATCH | &Method::DELETE, Some(_))
                if self.is_without_database() =>
            {
                self.refuse(&target, &request.method).await
            }
            (&Method::POST, None) | (&Method::PUT | &Method::PATCH | &Method::DELETE, Some(_)) => {
                let outcome = write::write(&target, &self.live, request).await;
                if request.method == Method::DELETE && outcome.is_ok() && !self.tokens.is_empty() {
                    tokens::remove_orphans(&self.live.entities().await, &self.tokens);
                }
                outcome
            }
            _ => Err(fault::wrong_method()),
        }
    }
}

impl KongAdmin {
    /// True for a gateway whose entities come as a whole (`POST /config`).
    fn is_without_database(&self) -> bool {
        self.gateway.database() == "off"
    }

    /// Refuses a change of a single entity.
    async fn refuse(&self, target: &Target<'_>, method: &Method) -> Outcome {
        let verb = match *method {
            Method::POST => "create",
            Method::PATCH => "update",
            Method::PUT => "create or update",
            _ => "remove",
        };
        if *method == Method::DELETE {
            let entities = self.live.entities().await;
            let parent = target.parent_id(&entities)?;
            if target.find(&entities, parent.as_ref()).is_none() {
                return Ok(empty(StatusCode::NO_CONTENT));
            }
        }
        let by = target.id.filter(|id| !shape::is_uuid(id)).and(target.kind.key);
        let by = by.map(|key| format!(" by '{key}'")).unwrap_or_default();
        let text = format!("cannot {verb} '{}' entities{by} when not using a database", target.kind.name);
        let name = "operation unsupported";
        Err(fault::coded(StatusCode::METHOD_NOT_ALLOWED, 12, name, &text, shape::Object::new()))
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
            let kong = self.gateway.kong();
            if kong.has(KongHeader::AdminLatency) {
                let took = HeaderValue::from(began.elapsed().as_millis() as u64);
                answer.fields.push((HeaderName::from_static("x-kong-admin-latency"), took));
            }
            let product = HeaderValue::from_str(&format!("kong/{}", kong.version));
            if let (true, Ok(product)) = (kong.has(KongHeader::Server), product) {
                answer.fields.push((SERVER, product));
            }
            answer
        })
    }

    fn refusal(&self, status: StatusCode, message: &str) -> FamilyAnswer {
        fault::message(status, message)
    }
}
