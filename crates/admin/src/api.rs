//! From an HTTP request to the handler that answers it.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, CONNECTION,
    CONTENT_TYPE, HeaderName, HeaderValue, SERVER,
};
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::timeout;
use weir_config::resource::AddrRange;
use weir_store::{Commit, Key};

use crate::answer::{Answer, Body, Outcome};
use crate::dashboard;
use crate::keys::{Identity, Keys};
use crate::kinds::{Target, check_method};
use crate::logins::{LoginProvider, Logins};
use crate::openapi;
use crate::operations::{self, Found, What};
use crate::origins::Hosts;
use crate::put::LastPut;
use crate::request::{Query, Request, cookie, segments};
use crate::server::Service;
use crate::sessions::{DEVELOPER_TOKEN, Sessions, Shown, is_confirmed};
use crate::streams::Streams;
use crate::turns::{Held, SMALL, Turns};
use crate::ui::Ui;
use crate::{Changed, Configuration, Gateway, Refused};

/// The product that tools look for, with the version of its API that is spoken here, and ours.
const SERVER_NAME: &str = concat!("APISIX/3.18.0 (weir/", env!("CARGO_PKG_VERSION"), ")");

/// Time that a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Bytes of a body that is too long which are taken all the same, and how long that may take.
const FORGOTTEN: usize = 16 * 1024 * 1024;
const FORGET_TIME: Duration = Duration::from_secs(3);

/// The path with words of its own for other methods.
const RELOAD: &str = "apisix/admin/plugins/reload";

/// Every method that something here knows.
const METHODS: &str = "POST, GET, PUT, OPTIONS, DELETE, PATCH";

const API_VERSION: HeaderName = HeaderName::from_static("x-api-version");

/// The Admin API.
#[derive(Debug)]
pub struct Api {
    pub(crate) configuration: Arc<dyn Configuration>,
    pub(crate) gateway: Arc<dyn Gateway>,
    pub(crate) options: Options,
    pub(crate) sessions: Sessions,
    /// Logins by the identity provider that are under way.
    pub(crate) logins: Logins,
    /// True if the configuration is only ever replaced as a whole.
    pub(crate) standalone: bool,
    /// Name of another family, whose own API has the resources.
    pub(crate) family: Option<&'static str>,
    pub(crate) last_put: LastPut,
    pub(crate) streams: Streams,
    pub(crate) turns: Turns,
    /// The OpenAPI document, once it was asked for.
    document: OnceLock<Bytes>,
    /// Bytes of values in an answer about what was.
    pub(crate) answer_size: usize,
    /// Turns to change a resource.
    pub(crate) writing: Writing,
}

/// Admission to the Admin API, and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys that open it.
    pub keys: Keys,
    /// Addresses that requests may come from; empty for any address.
    pub allow: Vec<AddrRange>,
    /// True if pages of other origins that know a key may use the API.
    pub cors: bool,
    /// Names by which it is reached.
    pub hosts: Hosts,
    /// Files at `/ui`.
    pub ui: Option<Ui>,
    /// True if the dashboard is at `/`.
    pub dashboard: bool,
    /// Identity provider of the dashboard.
    pub login: Option<Arc<dyn LoginProvider>>,
    /// True if clients reach the API over TLS.
    pub tls: bool,
    /// Bytes of a request body.
    pub body_size: usize,
    /// Bytes that bodies of requests and answers take together.
    pub memory: usize,
    /// Answers with all resources, or with what was, at one time.
    pub lists: usize,
    /// Bytes of values in an answer about what was.
    pub answer_size: usize,
}

impl Options {
    /// True when there are files at `/ui`.
    #[must_use]
    pub fn has_ui(&self) -> bool {
        self.ui.is_some()
    }
}

/// Turns to change resources, each held from looking at one to changing it, so that only other gateways can come in
/// between. Changes of different resources go on at the same time, and are made together.
#[derive(Debug)]
pub(crate) struct Writing([Mutex<()>; Writing::TURNS]);

impl Writing {
    /// More than clients write at the same time, as a rule; two resources may have the same one.
    const TURNS: usize = 64;

    /// The turn to change a resource; `None`: to create one whose name is still to be found.
    pub(crate) async fn turn(&self, key: Option<&Key>) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.0[hasher.finish() as usize % Self::TURNS].lock().await
    }
}

impl Default for Writing {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The address and the port of this gateway that it has connected to.
    pub(crate) local: IpAddr,
    pub(crate) port: u16,
    /// Cuts its connection.
    pub(crate) cut: Arc<Notify>,
    /// The subject of its certificate, if it has shown one.
    pub(crate) certificate: Option<String>,
}

impl Api {
    /// An API over a configuration.
    #[must_use]
    pub fn new(configuration: Arc<dyn Configuration>, gateway: Arc<dyn Gateway>, options: Options) -> Self {
        let (last_put, streams) = (LastPut::default(), Streams::default());
        let (turns, answer_size) = (Turns::new(options.lists, options.memory), options.answer_size);
        let writing = Writing::default();
        Self {
            configuration,
            gateway,
            options,
            sessions: Sessions::default(),
            logins: Logins::default(),
            standalone: false,
            family: None,
            last_put,
            streams,
            turns,
            document: OnceLock::new(),
            answer_size,
            writing,
        }
    }

    /// In API-driven standalone mode: the configuration is replaced as a whole and nothing else.
    #[must_use]
    pub fn standalone(self) -> Self {
        Self { standalone: true, ..self }
    }

    /// Beside the API of another family: what the dashboard asks of the gateway, without resources.
    #[must_use]
    pub fn beside(self, family: &'static str) -> Self {
        Self { family: Some(family), ..self }
    }

    pub(crate) async fn respond_to(self: &Arc<Self>, request: hyper::Request<Incoming>, peer: &Peer) -> Response<Body> {
        let answer = self.admit(request, peer).await.unwrap_or_else(|refusal| refusal);
        let answer = self.bounded(answer, peer).await;
        let (versioned, is_foreign) = (answer.versioned, answer.status == StatusCode::FORBIDDEN);
        let mut response = answer.into_response();
        let fields = response.headers_mut();
        fields.insert(SERVER, HeaderValue::from_static(SERVER_NAME));
        fields.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        if versioned {
            fields.insert(API_VERSION, HeaderValue::from_static("v3"));
        }
        if self.options.cors && !is_foreign {
            fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            fields.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
        }
        response
    }

    /// The answer, with its share of the memory for as long as it is written.
    async fn bounded(&self, mut answer: Answer, peer: &Peer) -> Answer {
        answer.body = match answer.body {
            Body::Whole(Some(body)) if body.len() > SMALL && !answer.is_shared => {
                let held = match answer.held.take() {
                    // A change is answered in any case, and its answer is hardly longer than the request.
                    Some(held) => Ok(held),
                    None => self.turns.share(body.len()).await,
                };
                match held {
                    Ok(mut held) => {
                        held.watch(body.len(), &peer.cut);
                        Body::Whole(Some(held.with(body)))
                    }
                    Err(refusal) => return refusal,
                }
            }
            Body::Pieces(mut pieces) => {
                pieces.turn.watch(pieces.bytes, &peer.cut);
                Body::Pieces(pieces)
            }
            other => other,
        };
        answer
    }

    /// Everything before a handler: may this client ask, and is all of its request here?
    async fn admit(self: &Arc<Self>, request: hyper::Request<Incoming>, peer: &Peer) -> Outcome {
        let allow = &self.options.allow;
        if !allow.is_empty() && !allow.iter().any(|range| range.contains(peer.address)) {
            let message = format!("{} may not use this API: it is not in admin.allow", peer.address);
            return Err(Answer::error(StatusCode::FORBIDDEN, message).unversioned());
        }
        let (head, body) = request.into_parts();
        let path = segments(head.uri.path());
        let place: Vec<&str> = path.iter().map(String::as_str).collect();
        if let (Some(ui), ["ui", ..]) = (&self.options.ui, place.as_slice()) {
            let is_folder = head.uri.path().ends_with('/');
            return ui.answer(&head.method, path.get(1..).unwrap_or_default(), is_folder, &head.headers).await;
        }
        if self.options.dashboard
            && let Some(outcome) = dashboard::answer(&head.method, &path, &head.headers)
        {
            return outcome;
        }
        // A client that sends no key, or leaves it to the browser to send one, must not be somebody else's page.
        let foreign = self
            .options
            .hosts
            .refusal(&head.uri, &head.headers, peer.local)
            .map(|reason| Answer::error(StatusCode::FORBIDDEN, reason).unversioned());
        match (&head.method, place.as_slice()) {
            (&Method::OPTIONS, _) => {
                return match foreign.filter(|_| self.options.keys.is_open()) {
                    Some(refusal) => Err(refusal),
                    None if self.options.cors => Ok(preflight()),
                    None => Ok(Answer::empty(StatusCode::OK).with(ALLOW, HeaderValue::from_static(METHODS))),
                };
            }
            (&Method::HEAD, ["apisix", "admin"]) => return Ok(Answer::empty(StatusCode::OK)),
            (_, ["apisix", "admin", _, ..] | ["weir", "v1", _, ..]) => {}
            _ => {
                return Err(Answer::error(StatusCode::NOT_FOUND, "404 Not Found").unversioned());
            }
        }
        let shown = Shown::of(&head.headers, peer.port);
        if let ["weir", "v1", "session"] = place.as_slice() {
            if let Some(refusal) = foreign {
                return Err(refusal);
            }
            let (body, _held) = self.receive(body).await?;
            return self.session(&head.method, &body, &shown, peer).await;
        }
        let query = Query::parse(head.uri.query());
        match place.as_slice() {
            ["weir", "v1", "session", "oidc"] => {
                return match foreign {
                    Some(refusal) => Err(refusal),
                    None => self.begin_login(&head.method, peer).await,
                };
            }
            // The browser comes from the provider's page. State and cookie say that it was sent there from here.
            ["weir", "v1", "session", "oidc", "callback"] => {
                return self.finish_login(&head.method, &query, &head.headers, peer).await;
            }
            _ => {}
        }
        if let ["weir", "v1", "self", ..] = place.as_slice() {
            let by = match head.headers.contains_key(DEVELOPER_TOKEN) {
                true => self.developer_of(&head.headers).await?,
                false => match foreign {
                    Some(refusal) if shown.token().is_some() => return Err(refusal),
                    _ => self.developer_of_session(&head.method, &shown).await?,
                },
            };
            let (body, held) = self.receive(body).await?;
            let request = Request { method: head.method, path, query, fields: head.headers, body, by };
            return self.answer(request, held).await;
        }
        let from_cookie = cookie(&head.headers, "x_api_key");
        let from_field = head.headers.get("x-api-key").map(|value| value.to_str().unwrap_or_default());
        let key = query.get("api_key").or(from_field).or(from_cookie.as_deref());
        let session = match key {
            None if !self.options.keys.is_open() => shown.token().and_then(|token| self.sessions.find(token)),
            _ => None,
        };
        let by = match session {
            Some((identity, csrf)) => {
                identity.check_method(&head.method).map_err(|reason| unauthorized(&reason))?;
                let is_change = !matches!(head.method, Method::GET | Method::HEAD);
                if is_change && !is_confirmed(&csrf, shown.csrf()) {
                    let message =
                        "a change over a session needs its token in X-CSRF-Token: GET /weir/v1/session tells it";
                    return Err(Answer::error(StatusCode::FORBIDDEN, message).unversioned());
                }
                identity
            }
            None => self
                .options
                .keys
                .check(key, peer.certificate.as_deref(), &head.method)
                .map_err(|reason| unauthorized(&reason))?,
        };
        let shows_key = query.get("api_key").is_some() || from_field.is_some();
        if let Some(refusal) = foreign.filter(|_| self.options.keys.is_open() || !shows_key) {
            return Err(refusal);
        }
        let (body, held) = self.receive(body).await?;
        let request = Request { method: head.method, path, query, fields: head.headers, body, by };
        self.answer(request, held).await
    }

    /// Answers a request of somebody who is known.
    async fn answer(self: &Arc<Self>, request: Request, held: Option<Held>) -> Outcome {
        if matches!(request.method, Method::GET | Method::HEAD) {
            return self.dispatch(&request).await;
        }
        // On a task of its own: a change that has begun is not left in the middle when the client goes away.
        let api = Arc::clone(self);
        let change = tokio::spawn(async move {
            let outcome = api.dispatch(&request).await;
            let (Ok(answer) | Err(answer)) = &outcome;
            // Neither bodies nor query strings: they hold keys.
            let (method, path, status) = (&request.method, request.path.join("/"), answer.status.as_u16());
            tracing::info!(%method, path, by = request.by.name, status, "admin API");
            let with_share = |answer: Answer| Answer { held, ..answer };
            match outcome {
                Ok(answer) => Ok(with_share(answer)),
                Err(answer) => Err(with_share(answer)),
            }
        });
        change.await.unwrap_or_else(|panicked| {
            tracing::error!(%panicked, "a request to the admin API could not be answered");
            Err(Answer::internal())
        })
    }

    async fn dispatch(&self, request: &Request) -> Outcome {
        match operations::find(&request.method, &request.path) {
            Found::Operation(what, rest) => self.perform(what, rest, request).await,
            Found::WrongMethod(known) => {
                let known = known.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
                let (method, path) = (&request.method, request.path.join("/"));
                let message = match path.as_str() {
                    RELOAD => format!("please use PUT method to reload the plugins, {method} method is not allowed."),
                    _ => format!("not supported `{method}` method for /{path}"),
                };
                let allow = HeaderValue::try_from(known).unwrap_or(HeaderValue::from_static(""));
                Err(Answer::error(StatusCode::METHOD_NOT_ALLOWED, message).with(ALLOW, allow))
            }
            Found::Nothing if self.standalone => Err(no_resources()),
            Found::Nothing if self.family.is_some() => {
                Err(Answer::error(StatusCode::NOT_FOUND, "404 Not Found").unversioned())
            }
            Found::Nothing => match request.path.as_slice() {
                [first, ..] if first == "apisix" => self.resource(request).await,
                _ => Err(Answer::error(StatusCode::NOT_FOUND, "404 Not Found").unversioned()),
            },
        }
    }

    async fn perform(&self, what: What, rest: &[String], request: &Request) -> Outcome {
        if self.standalone && what.is_of_a_store() {
            return Err(no_resources());
        }
        if self.family.is_some() && !what.is_of_the_gateway() {
            return Err(Answer::error(StatusCode::NOT_FOUND, "404 Not Found").unversioned());
        }
        let name = rest.first().map(String::as_str).unwrap_or_default();
        match what {
            What::PluginNames => self.plugin_names(&request.query),
            What::PluginSchemas => self.plugin_schemas(&request.query),
            What::PluginSchema => self.plugin_schema(name, &request.query),
            What::ReloadPlugins => Self::reload_plugins(),
            What::ResourceSchema => self.resource_schema(name),
            What::ValidateResource => self.validate_resource(name, request).await,
            What::Configs => self.configs(request).await,
            What::ReplaceConfigs => self.replace_configs(request).await,
            What::ValidateConfigs => self.validate_configs(request).await,
            What::Resources => self.resources(request).await,
            What::Resource => self.resource_at(rest, request).await,
            What::PutResource => self.put_resource(rest, request).await,
            What::DeleteResource => self.delete_resource(rest, request).await,
            What::Transaction => self.transaction(request).await,
            What::History => self.history(request).await,
            What::Difference => self.difference_of(request).await,
            What::Rollback => self.roll_back(request).await,
            What::Events => self.events(request).await,
            What::Explain => self.explain(request).await,
            What::Tyk => self.tyk(rest, request).await,
            What::ThreescaleApplications => self.threescale_applications(request).await,
            What::SendForReal => self.send_for_real(request).await,
            What::Usage => self.usage(request).await,
            What::Keys => self.issued_keys(request).await,
            What::IssueKey => self.issue_key(request).await,
            What::ChangeKey => self.change_key(rest, request).await,
            What::RevokeKey => self.revoke_key(rest, request).await,
            What::Products => self.products(request).await,
            What::ProductDocuments => self.product_documents(name).await,
            What::Identity => Ok(Self::identity(request)),
            What::Audit => self.audit(request).await,
            What::Developers => self.developers(request).await,
            What::AddDeveloper => self.add_developer(request).await,
            What::ChangeDeveloper => self.change_developer(name, request).await,
            What::RemoveDeveloper => self.remove_developer(name, request).await,
            What::Applications => self.applications(request).await,
            What::AddApplication => self.add_application(request).await,
            What::ChangeApplication => self.change_application(name, request).await,
            What::RemoveApplication => self.remove_application(name, request).await,
            What::Own => self.own(request).await,
            What::OwnApplications => self.own_applications(request).await,
            What::AddOwnApplication => self.add_own_application(request).await,
            What::ChangeOwnApplication => self.change_own_application(name, request).await,
            What::RemoveOwnApplication => self.remove_own_application(name, request).await,
            What::AddOwnKey => self.add_own_key(name, request).await,
            What::ChangeOwnKey => self.change_own_key(rest, request).await,
            What::RemoveOwnKey => self.remove_own_key(rest, request).await,
            What::OwnUsage => self.own_usage(request).await,
            What::OwnQuotas => self.own_quotas(request).await,
            What::OwnDocuments => self.own_documents(name, request).await,
            What::Quotas => self.quotas(request).await,
            What::ResetQuotas => self.reset_quotas(request).await,
            What::OpenApi => Ok(self.openapi()),
            What::About => self.about().await,
            What::Live => self.figures(request),
            What::Requests => self.requests(request),
            What::References => self.references(request).await,
            What::Problems => self.problems().await,
            What::Plugins => Ok(self.plugins()),
            // Answered before a key is asked for.
            What::Session | What::Login | What::Logout | What::BeginLogin | What::FinishLogin => {
                Err(Answer::internal())
            }
        }
    }

    async fn resource(&self, request: &Request) -> Outcome {
        let target = Target::parse(request.path.get(2..).unwrap_or_default())?;
        check_method(target.kind, &request.method)?;
        match request.method {
            Method::PUT => self.put(&target, request).await,
            Method::POST => self.post(&target, request).await,
            Method::PATCH => self.patch(&target, request).await,
            Method::DELETE => self.delete(&target, request).await,
            _ => self.get(&target, request).await,
        }
    }

    fn openapi(&self) -> Answer {
        let text = || Bytes::from(openapi::document(self.gateway.schemas()).to_string() + "\n");
        Answer::shared(self.document.get_or_init(text).clone())
    }

    /// The body of a request, with its share of the memory where it is more than a little.
    async fn receive(&self, body: Incoming) -> Result<(Bytes, Option<Held>), Answer> {
        let limit = self.options.body_size;
        let most = body.size_hint().upper().map_or(limit, |most| usize::try_from(most).unwrap_or(limit).min(limit));
        let held = if most > SMALL { Some(self.turns.share(most).await?) } else { None };
        Ok((receive(body, limit).await.map_err(Answer::from)?, held))
    }

    /// Makes changes that the role of the key allows.
    pub(crate) async fn change(&self, commit: Commit, dry_run: bool, by: &Identity) -> Result<Changed, Refused> {
        self.check_rights(&commit, by).await?;
        self.configuration.change(commit, dry_run).await
    }

    /// The author of a change, for the history.
    pub(crate) fn author(by: &Identity) -> String {
        by.name.clone()
    }
}

/// Resources cannot be changed one by one.
fn no_resources() -> Answer {
    let message = "in standalone mode the configuration is replaced as a whole: /apisix/admin/configs";
    Answer::error(StatusCode::NOT_FOUND, message).unversioned()
}

impl Service for Api {
    fn respond<'a>(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
        peer: &'a Peer,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>> {
        Box::pin(async move { self.respond_to(request, peer).await })
    }

    fn end(&self) {
        self.streams.end();
    }
}

pub(crate) fn unauthorized(reason: &str) -> Answer {
    let body = json!({ "error_msg": "failed to check token", "description": reason });
    Answer::json(StatusCode::UNAUTHORIZED, &body).unversioned()
}

/// Answer to a browser's question before a page of another origin may do something.
fn preflight() -> Answer {
    Answer::empty(StatusCode::OK)
        .with(CONTENT_TYPE, HeaderValue::from_static("text/plain"))
        .with(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS))
        .with(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"))
}

/// Reasons for refusing a body.
#[derive(Debug)]
pub(crate) struct Untaken {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl From<Untaken> for Answer {
    /// The connection ends with such a request: the rest of its body would be taken for the next one.
    fn from(untaken: Untaken) -> Self {
        let refusal = Self::error(untaken.status, format!("invalid request body: {}", untaken.message));
        refusal.unversioned().with(CONNECTION, HeaderValue::from_static("close"))
    }
}

/// The whole body, unless it is too long or takes too long.
pub(crate) async fn receive(mut body: Incoming, limit: usize) -> Result<Bytes, Untaken> {
    let refuse = |status: StatusCode, message: String| Err(Untaken { status, message });
    let told = body.size_hint().lower();
    let mut received = BytesMut::new();
    let fitting = async {
        while told <= limit as u64
            && let Some(frame) = body.frame().await
        {
            let Ok(piece) = frame?.into_data() else { continue };
            if received.len() + piece.len() > limit {
                return Ok(false);
            }
            received.extend_from_slice(&piece);
        }
        Ok::<_, hyper::Error>(told <= limit as u64)
    };
    match timeout(BODY_TIME, fitting).await {
        Ok(Ok(true)) => Ok(received.freeze()),
        Ok(Ok(false)) => {
            drop(received);
            forget(body).await;
            let size = if told > limit as u64 { told.to_string() } else { format!("of more than {limit}") };
            let message = format!("request size {size} is greater than the maximum size {limit} allowed");
            refuse(StatusCode::BAD_REQUEST, format!("{message} (limits.admin_body)"))
        }
        Ok(Err(error)) => refuse(StatusCode::BAD_REQUEST, error.to_string()),
        Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, format!("it did not come within {} s", BODY_TIME.as_secs())),
    }
}

/// Takes some of a body that is not wanted: most clients read no answer before they have sent everything.
async fn forget(mut body: Incoming) {
    let rest = async {
        let mut size = 0;
        while let (true, Some(Ok(frame))) = (size <= FORGOTTEN, body.frame().await) {
            size += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Whoever has not sent all of it by now gets the answer all the same.
    let _ = timeout(FORGET_TIME, rest).await;
}
