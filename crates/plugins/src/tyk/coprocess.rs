//! `coprocess_pre`, `coprocess_post`, `coprocess_response`, and authentication by a service: middleware over gRPC (Tyk's driver
//! `grpc`).
//!
//! A service gets each request as a message and returns it with changes, an answer in place of the upstream's, or the session of
//! the caller. The protocol and what becomes of the answers are Tyk's.

mod exchange;
mod message;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, GrpcMethod, Invalid, Io, LocalFuture, PerRequest, Phases, Plugin,
    RequestCx, ResponseCx, Service, ServiceOptions,
};
use weir_wire::method::Method;

use super::body;
use super::changes::{self, Answer, FAILED};
use super::shared::{self, Known};
use message::{HookType, MiniRequest, Object};

/// The field of the service's address.
const SERVER: &str = "service.server";

/// The method of the protocol.
const DISPATCH: &str = "/coprocess.Dispatcher/Dispatch";

/// The definition of what runs before authentication.
#[derive(Debug)]
pub(crate) struct Before;

/// The definition of what runs behind it.
#[derive(Debug)]
pub(crate) struct Behind;

/// The definition of what changes answers.
#[derive(Debug)]
pub(crate) struct Answers;

/// The service, and what it is told of the API.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ServiceConf {
    /// Id of the API.
    api_id: String,
    /// Its organisation.
    org_id: String,
    /// `HOST:PORT` of the service (`coprocess_options.coprocess_grpc_server`).
    server: String,
    /// `config_data` of the API.
    #[schemars(with = "BTreeMap<String, Value>")]
    config_data: Map<String, Value>,
}

/// A function of the service.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct HookConf {
    /// Its name.
    name: String,
    /// Sends the body as bytes alone.
    raw_body_only: bool,
}

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// The service.
    service: ServiceConf,
    /// Functions before authentication (`pre`).
    pre: Vec<HookConf>,
    /// Functions right behind it (`post_key_auth`).
    post_key_auth: Vec<HookConf>,
    /// Functions before the upstream (`post`).
    post: Vec<HookConf>,
    /// Functions for the answers of upstreams (`response`).
    response: Vec<HookConf>,
}

impl Define for Before {
    const NAME: &'static str = "coprocess_pre";
    const PRIORITY: i32 = 1050;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Middleware over gRPC, before authentication.";
    const EXAMPLE: &'static str = "{service: {api_id: a, server: '127.0.0.1:5555'}, pre: [{name: Check}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let hooks = conf.pre.into_iter().map(|hook| (HookType::Pre, hook));
        compile(conf.service, hooks.collect(), true, cx)
    }
}

impl Define for Behind {
    const NAME: &'static str = "coprocess_post";
    const PRIORITY: i32 = 950;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Middleware over gRPC, behind authentication.";
    const EXAMPLE: &'static str = "{service: {api_id: a, server: '127.0.0.1:5555'}, post: [{name: Change}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let first = conf.post_key_auth.into_iter().map(|hook| (HookType::PostKeyAuth, hook));
        let hooks = first.chain(conf.post.into_iter().map(|hook| (HookType::Post, hook)));
        compile(conf.service, hooks.collect(), false, cx)
    }
}

impl Define for Answers {
    const NAME: &'static str = "coprocess_response";
    const PRIORITY: i32 = 850;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "Middleware over gRPC for answers of upstreams.";
    const EXAMPLE: &'static str =
        "{service: {api_id: a, server: '127.0.0.1:5555'}, response: [{name: ChangeAnswer}]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut dispatcher = cx.ok(Dispatcher::compile(conf.service))?;
        let hooks = conf.response.into();
        Some(Compiled::build(move |build| {
            let place = shared::place(build, &dispatcher.api);
            dispatcher.build(build)?;
            Ok(AnswerHooks { place, dispatcher, hooks })
        }))
    }
}

/// An instance for answers.
#[derive(Debug)]
struct AnswerHooks {
    place: Arc<PerRequest<Known>>,
    dispatcher: Dispatcher,
    hooks: Box<[HookConf]>,
}

impl Plugin for AnswerHooks {
    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        shared::wait_with_answer(cx)
    }

    fn response_io<'a>(&'a self, cx: &'a mut ResponseCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for hook in &self.hooks {
                if let Err(reason) = self.dispatcher.run_answer(hook, cx, io, &self.place).await {
                    return changes::refuse_answer(&hook.name, &reason);
                }
            }
            Flow::Continue
        })
    }
}

fn compile(
    service: ServiceConf,
    hooks: Box<[(HookType, HookConf)]>,
    is_pre: bool,
    cx: &CompileCx<'_>,
) -> Option<Compiled> {
    let mut dispatcher = cx.ok(Dispatcher::compile(service))?;
    Some(Compiled::build(move |build| {
        let place = shared::place(build, &dispatcher.api);
        dispatcher.build(build)?;
        Ok(Hooks { place, dispatcher, hooks, is_pre })
    }))
}

/// An instance.
#[derive(Debug)]
struct Hooks {
    place: Arc<PerRequest<Known>>,
    dispatcher: Dispatcher,
    hooks: Box<[(HookType, HookConf)]>,
    /// True before authentication, when there is no session.
    is_pre: bool,
}

impl Plugin for Hooks {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { shared::wait_with_body(cx) } else { Flow::Continue }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.is_pre { Flow::Continue } else { shared::wait_with_body(cx) }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            for (kind, hook) in &self.hooks {
                match self.dispatcher.run(*kind, hook, cx, io, &self.place).await {
                    Ok((None, _)) => {}
                    Ok((Some(answer), _)) => return answer.send(cx),
                    Err(reason) => {
                        tracing::warn!(hook = hook.name, reason, "middleware over gRPC failed: its request is refused");
                        return body::error(cx, 500, FAILED, &[]);
                    }
                }
            }
            Flow::Continue
        })
    }
}

/// Calls of a service.
#[derive(Debug)]
pub(super) struct Dispatcher {
    api: Box<str>,
    org: Box<str>,
    spec: BTreeMap<String, String>,
    address: String,
    method: Option<GrpcMethod>,
}

impl Dispatcher {
    pub(super) fn compile(conf: ServiceConf) -> Result<Self, Invalid> {
        let mut spec =
            BTreeMap::from([("OrgID".to_owned(), conf.org_id.clone()), ("APIID".to_owned(), conf.api_id.clone())]);
        if !conf.config_data.is_empty() {
            spec.insert("config_data".to_owned(), Value::Object(conf.config_data).to_string());
        }
        let (api, org) = (conf.api_id.into(), conf.org_id.into());
        Service::parse_grpc(SERVER, &conf.server, ServiceOptions::default())?;
        Ok(Self { api, org, spec, address: conf.server, method: None })
    }

    pub(super) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        let service = Service::parse_grpc(SERVER, &self.address, ServiceOptions::default())?.build(build)?;
        self.method = Some(GrpcMethod::new(service, DISPATCH));
        Ok(())
    }

    /// Calls a function with a request, and makes the changes that it returns: an answer in the place of the upstream's,
    /// and the rest of what came back.
    ///
    /// # Errors
    /// Reason for which the request cannot go on.
    async fn run(
        &self,
        kind: HookType,
        hook: &HookConf,
        cx: &mut RequestCx<'_>,
        io: &dyn Io,
        place: &PerRequest<Known>,
    ) -> Result<(Option<Answer>, Object), String> {
        let has_session = !matches!(kind, HookType::Pre | HookType::CustomKeyCheck);
        let known = place.get(cx).filter(|_| has_session);
        let body = cx.body().unwrap_or_default();
        let request = exchange::request(cx.request(), cx.source(), body, hook.raw_body_only);
        let mut object = self.call(io, self.object((kind, hook), request, known)).await?;
        let request = object.request.take().ok_or("the answer has no request")?;
        let new_method = Some(Method::parse(request.method.as_bytes())).filter(|method| *method != Method::Other);
        let is_changed = !request.method.is_empty() && request.method.as_bytes() != cx.request().method_bytes();
        let changes = exchange::changes(request, cx.body().unwrap_or_default());
        changes.apply(cx)?;
        if is_changed {
            cx.request_mut().upstream.method = Some(new_method.ok_or("the answer has an unknown method")?);
        }
        if let Some(url) = changes.new_url(cx) {
            shared::known(place, cx, |known| known.url = Some(url));
        }
        Ok((changes.answer, object))
    }

    /// Calls a function with an answer, and changes the answer as it wants.
    ///
    /// # Errors
    /// Reason for which the answer cannot go on.
    async fn run_answer(
        &self,
        hook: &HookConf,
        cx: &mut ResponseCx<'_>,
        io: &dyn Io,
        place: &PerRequest<Known>,
    ) -> Result<(), String> {
        let raw_only = hook.raw_body_only;
        let request = exchange::request(cx.request(), cx.source(), b"", raw_only);
        let mut object = self.object((HookType::Response, hook), request, place.get(cx));
        let response = exchange::response(cx.response(), cx.body().unwrap_or_default(), raw_only);
        let sent = response.headers.clone();
        object.response = Some(response);
        let returned = self.call(io, object).await?.response.ok_or("the answer of the service has no response")?;
        Ok(exchange::answer_changes(returned, &sent).apply(cx)?)
    }

    /// The message for a function.
    fn object(&self, (kind, hook): (HookType, &HookConf), request: MiniRequest, known: Option<&Known>) -> Object {
        let session = known.and_then(exchange::session);
        Object {
            hook_type: kind.into(),
            hook_name: hook.name.clone(),
            request: Some(request),
            metadata: session.as_ref().map(|session| session.metadata.clone()).unwrap_or_default(),
            session,
            spec: self.spec.clone(),
            response: None,
        }
    }

    /// Sends a message; what came back.
    async fn call(&self, io: &dyn Io, object: Object) -> Result<Object, String> {
        let method = self.method.as_ref().ok_or("the service is not built")?;
        let answer = method.call(io, &object.encode_to_vec()).await.map_err(|error| error.to_string())?;
        Object::decode(&*answer).map_err(|error| format!("the answer cannot be read: {error}"))
    }
}

/// Authentication by a service (`custom_middleware.auth_check`).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct CheckConf {
    /// The service.
    service: ServiceConf,
    /// The function.
    hook: HookConf,
}

/// Word of a service or a script about a caller.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The answer in place of the upstream's.
    Answer(Answer),
    /// The token of the caller, and the fields of the session.
    Caller(String, Value),
    /// The caller is nobody.
    Nobody,
}

/// The authentication, compiled.
#[derive(Debug)]
pub(super) struct Check {
    dispatcher: Dispatcher,
    hook: HookConf,
}

impl Check {
    pub(super) fn compile(conf: CheckConf) -> Result<Self, Invalid> {
        Ok(Self { dispatcher: Dispatcher::compile(conf.service)?, hook: conf.hook })
    }

    pub(super) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        self.dispatcher.build(build)
    }

    /// Asks who the caller is.
    pub(super) async fn ask(
        &self,
        cx: &mut RequestCx<'_>,
        io: &dyn Io,
        place: &PerRequest<Known>,
    ) -> Result<Verdict, String> {
        let dispatcher = &self.dispatcher;
        let (answer, object) = dispatcher.run(HookType::CustomKeyCheck, &self.hook, cx, io, place).await?;
        Ok(match (answer, exchange::authenticated(&object, &dispatcher.org)) {
            (Some(answer), _) => Verdict::Answer(answer),
            (None, Some((token, session))) => Verdict::Caller(token, session),
            (None, None) => Verdict::Nobody,
        })
    }
}
