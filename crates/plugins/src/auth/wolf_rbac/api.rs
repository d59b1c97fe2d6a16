//! The APIs by which users log in, change their password and learn who they are.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_net::Network;
use weir_plugin::{Api, ApiCx, Define, Flow, Invalid, Io, LocalFuture, Plugin, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::Known;

use super::{Application, Table, Token, WolfRbac, answer};
use crate::query;

/// One of the APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WolfApi {
    Login,
    ChangePassword,
    UserInfo,
}

impl WolfApi {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Login, Self::ChangePassword, Self::UserInfo];
}

impl Api for WolfApi {
    fn plugin(&self) -> &'static str {
        WolfRbac::NAME
    }

    fn method(&self) -> Method {
        match self {
            Self::Login => Method::Post,
            Self::ChangePassword => Method::Put,
            Self::UserInfo => Method::Get,
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Login => "/apisix/plugin/wolf-rbac/login",
            Self::ChangePassword => "/apisix/plugin/wolf-rbac/change_pwd",
            Self::UserInfo => "/apisix/plugin/wolf-rbac/user_info",
        }
    }

    fn open(&self, cx: &ApiCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        Ok(Arc::new(Open { api: *self, position: cx.position, network: Arc::clone(cx.network) }))
    }
}

/// Whatever answers.
#[derive(Debug)]
struct Open {
    api: WolfApi,
    /// Position of the plugin's credentials in the registry.
    position: u8,
    network: Arc<Network>,
}

/// The status and the message of a refusal.
type Refusal = (u16, &'static str);

const FAILED: &str = "request to wolf-server failed!";

impl Plugin for Open {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.api != WolfApi::UserInfo && cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A question ends before, by a limit of its own.
        Some(Duration::from_secs(10))
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let result = match self.api {
                WolfApi::Login => self.log_in(cx).await,
                WolfApi::ChangePassword => self.change_password(cx).await,
                WolfApi::UserInfo => self.user_info(cx).await,
            };
            match result {
                Ok(body) => answer(cx, 200, &body),
                Err((status, message)) => answer(cx, status, &json!({ "message": message })),
            }
        })
    }
}

impl Open {
    async fn log_in(&self, cx: &RequestCx<'_>) -> Result<Value, Refusal> {
        let arguments = arguments(cx).ok_or((400, "invalid request"))?;
        let appid = match &arguments["appid"] {
            Value::String(appid) => appid.clone(),
            Value::Null => return Err((400, "appid is missing")),
            other => other.to_string(),
        };
        let application = self.application(cx, appid.as_bytes())?;
        let data = self.call(&application, Method::Post, "/wolf/rbac/login.rest", None, &arguments).await?;
        let token = data["token"].as_str().ok_or((500, FAILED))?;
        Ok(json!({ "rbac_token": format!("V1#{appid}#{token}"), "user_info": data["userInfo"] }))
    }

    async fn change_password(&self, cx: &RequestCx<'_>) -> Result<Value, Refusal> {
        let arguments = arguments(cx).unwrap_or_default();
        let token = Token::of(cx).map_err(|message| (401, message))?;
        let application = self.application(cx, &token.appid)?;
        self.call(&application, Method::Post, "/wolf/rbac/change_pwd", Some(&token.wolf), &arguments).await?;
        Ok(json!({ "message": "success to change password" }))
    }

    async fn user_info(&self, cx: &RequestCx<'_>) -> Result<Value, Refusal> {
        let token = Token::of(cx).map_err(|message| (401, message))?;
        let application = self.application(cx, &token.appid)?;
        let path = "/wolf/rbac/user_info";
        let data = self.call(&application, Method::Get, path, Some(&token.wolf), &json!({})).await?;
        Ok(json!({ "user_info": data["userInfo"] }))
    }

    fn application(&self, cx: &RequestCx<'_>, appid: &[u8]) -> Result<Arc<Application>, Refusal> {
        let table = cx.credentials::<Table>(self.position).ok_or((500, "no consumer has the plugin wolf-rbac"))?;
        table.find(appid).map(|found| Arc::clone(found.more)).ok_or((400, "appid not found"))
    }

    async fn call(
        &self,
        application: &Application,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> Result<Value, Refusal> {
        match application.server.call(&self.network, method, path, token, body).await {
            Ok(Some(data)) => Ok(data),
            // As in APISIX: the status is 200.
            Ok(None) => Err((200, FAILED)),
            Err(reason) => {
                tracing::warn!(reason, path, "wolf cannot be asked");
                Err((500, FAILED))
            }
        }
    }
}

/// The arguments in the body: an object in JSON, or a form. `None`: it is no such object.
fn arguments(cx: &RequestCx<'_>) -> Option<Value> {
    let (request, body) = (cx.request(), cx.body().unwrap_or_default());
    let kind = request.head.fields.get_known(request.buffer.bytes(), Known::ContentType).unwrap_or_default();
    if kind.windows(16).any(|part| part == b"application/json") {
        return serde_json::from_slice(body).ok().filter(Value::is_object);
    }
    let mut arguments = Map::new();
    for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let text = |part: &[u8]| {
            let mut decoded = Vec::new();
            query::decode(part, &mut decoded);
            String::from_utf8_lossy(&decoded).into_owned()
        };
        arguments.insert(text(query::name(pair)), text(query::value(pair)).into());
    }
    Some(arguments.into())
}
