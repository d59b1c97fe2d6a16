//! `oauth`: the endpoints of an API's OAuth server behind its listen path (`use_oauth2`). Clients, codes and tokens
//! are kept beside the gateway API, which is asked.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};

use super::events::send;
use super::fetch::Fetch;
use super::gateway::{ApiRequest, Door, request};
use super::sessions::remote::{self, Remote};
use super::shared::{ListenPath, text, wait_with_body};

/// The definition.
#[derive(Debug)]
pub(crate) struct OAuth;

/// On the route of the endpoints.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// The listen path of the API.
    listen_path: String,
    #[serde(flatten)]
    server: OAuthServer,
    /// URL that is told of new tokens; empty: none.
    oauth_on_keychange_url: String,
    /// Value of `X-Tyk-Shared-Secret` for it.
    shared_secret: String,
    /// The Redis of sessions.
    storage: remote::Conf,
}

/// Settings of an API's OAuth server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OAuthServer {
    /// Id of the API.
    pub api_id: String,
    /// Its organisation.
    pub org_id: String,
    /// Grants that are allowed: `authorization_code`, `refresh_token`, `client_credentials`, `password`.
    pub allowed_access_types: Vec<String>,
    /// Answers of the authorisation that are allowed: `code`, `token`.
    pub allowed_authorize_types: Vec<String>,
    /// The page on which users agree.
    pub auth_login_redirect: String,
}

impl Define for OAuth {
    const NAME: &'static str = "oauth";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "The endpoints of an API's OAuth server.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let listen = cx.ok(listen)?;
        Some(Compiled::build(move |build| {
            Ok(Endpoints {
                listen,
                server: Arc::new(conf.server),
                door: Door::of(build.states),
                remote: conf.storage.build(build)?,
                notified: (!conf.oauth_on_keychange_url.is_empty()).then(|| Notified {
                    url: conf.oauth_on_keychange_url,
                    secret: conf.shared_secret,
                    fetch: Arc::new(Fetch::new(build.network)),
                }),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Endpoints {
    listen: ListenPath,
    server: Arc<OAuthServer>,
    door: Arc<Door>,
    remote: Option<Remote>,
    notified: Option<Notified>,
}

/// Whoever is told of new tokens.
#[derive(Debug)]
struct Notified {
    url: String,
    secret: String,
    fetch: Arc<Fetch>,
}

impl Plugin for Endpoints {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        wait_with_body(cx)
    }

    fn wait_limit(&self) -> Option<Duration> {
        Some(Duration::from_secs(60))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let mut path = Vec::new();
            self.listen.write_rest(cx.request(), &mut path);
            let path = text(&path).trim_matches('/').to_owned();
            let server = Some(Arc::clone(&self.server));
            let asked = |remote| ApiRequest { of_server: server, ..request(cx, &path, remote) };
            let answer = match self.door.answer(self.remote.as_ref(), asked).await {
                Ok(answer) => answer,
                Err(reason) => return cx.fail(503, reason),
            };
            if let Some(notified) = self.notified.as_ref().filter(|_| answer.status == 200 && path == "oauth/token") {
                notified.tell(cx.body().unwrap_or_default(), &answer.body);
            }
            answer.send(cx)
        })
    }
}

impl Notified {
    /// Tells of the tokens in an answer to a request with this form.
    fn tell(&self, form: &[u8], answer: &[u8]) {
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        let given = |name: &str| {
            crate::query::argument(form, name.as_bytes()).map(|value| {
                let mut decoded = Vec::new();
                crate::query::decode(value, &mut decoded);
                text(&decoded)
            })
        };
        let new = |name: &str| answer[name].as_str().unwrap_or_default();
        let old = given("refresh_token").unwrap_or_default();
        let body = json!({
            "auth_code": given("code").unwrap_or_default(), "new_oauth_token": new("access_token"),
            "refresh_token": new("refresh_token"), "old_refresh_token": old,
            "notification_type": if old.is_empty() { "new" } else { "refresh" },
        });
        let headers = json!({
            "Content-Type": "application/json", "User-Agent": "Tyk-Gatewy-Notifications",
            "X-Tyk-Shared-Secret": self.secret,
        });
        let told = json!({ "Method": "POST", "Domain": self.url, "Headers": headers, "Body": body.to_string() });
        send(Arc::clone(&self.fetch), told.to_string());
    }
}
