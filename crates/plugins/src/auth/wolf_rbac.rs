//! `wolf-rbac`: a token of wolf names an application, and wolf says whether its user may do what the request asks for.

pub(crate) mod api;
mod server;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_net::Network;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Io, LocalFuture,
    Phases, Plugin, RequestCx,
};
use weir_wire::name::{FieldName, Known};

use super::credentials::{self, CredentialTable};
use crate::query;
use server::{Asked, Server, Verdict};

/// The definition.
#[derive(Debug)]
pub(crate) struct WolfRbac;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// No effect here, as the three below: a request is checked with what its consumer has.
    appid: Option<String>,
    /// No effect here.
    server: Option<String>,
    /// No effect here.
    header_prefix: Option<String>,
    /// No effect here.
    ssl_verify: Option<bool>,
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConsumerConf {
    /// Id of the application at wolf. No two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    appid: String,
    /// Address of wolf's server: `http://HOST:PORT` or `https://HOST:PORT`, and a path before its own.
    server: String,
    /// The beginning of the names of the fields that tell of the user: `UserId`, `Username` and `Nickname` follow it.
    header_prefix: String,
    /// Verifies the certificate of the server, by an authority of `tls.trusted_certificate` and for the name in `server`.
    ssl_verify: bool,
}

impl Default for ConsumerConf {
    fn default() -> Self {
        Self {
            appid: "unset".into(),
            server: "http://127.0.0.1:12180".into(),
            header_prefix: "X-".into(),
            ssl_verify: false,
        }
    }
}

impl ConsumerConf {
    fn application(&self) -> Result<Application, Invalid> {
        super::check_credential(&self.appid).map_err(|message| Invalid::new("appid", message))?;
        if self.appid.contains('#') {
            return Err(Invalid::new("appid", "expected a text without '#', which separates the parts of a token"));
        }
        let fields =
            ["UserId", "Username", "Nickname"].map(|name| FieldName::new(&format!("{}{name}", self.header_prefix)));
        let [Some(id), Some(username), Some(nickname)] = fields else {
            return Err(Invalid::new("header_prefix", "expected the beginning of the name of a field"));
        };
        Ok(Application { server: Server::new(&self.server, self.ssl_verify)?, fields: [id, username, nickname] })
    }
}

/// An application of wolf.
#[derive(Debug)]
struct Application {
    server: Server,
    /// Fields for the id, the user name and the nickname.
    fields: [FieldName; 3],
}

type Table = CredentialTable<Arc<Application>>;

impl Define for WolfRbac {
    const NAME: &'static str = "wolf-rbac";
    const PRIORITY: i32 = 2555;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when [wolf](https://github.com/iGeeky/wolf), a server for roles and permissions, allows it. The request \
carries a token `V1#APPID#TOKEN`: in the query argument `rbac_token`, in `Authorization`, in `X-Rbac-Token`, or in the cookie \
`x-rbac-token`; the first that is there counts. The application is that of a consumer, whose `server` is asked whether the user \
of the token may call this method and this path. The user's id, name and nickname (encoded as in URLs) go upstream and to the \
client by fields with `header_prefix`; fields of these names that the client sent are dropped.

| answer | |
|---|---|
| 401, `Missing rbac token in request` | there is none |
| 401, `invalid rbac token: parse failed` | it has another form |
| 401, `Missing related consumer` | no consumer has this plugin |
| 401, `Invalid appid in rbac token` | no consumer has this application |
| 4xx with wolf's reason | wolf refuses the request |
| 500, `request to wolf-server failed, …` | wolf does not answer within 10 seconds, or not as it should: nobody passes meanwhile. A status of 500 and above is asked again twice |

Each question has a connection of its own. Users log in by APIs that a route with [public-api](public-api.md) offers:

| API | takes | gives |
|---|---|---|
| `POST /apisix/plugin/wolf-rbac/login` | `appid`, `username`, `password`, as JSON or as a form, and whatever else wolf takes | `rbac_token`, `user_info` |
| `PUT /apisix/plugin/wolf-rbac/change_pwd` | a token, and `oldPassword` and `newPassword` | `message` |
| `GET /apisix/plugin/wolf-rbac/user_info` | a token | `user_info` |

An answer 200 that is no object in JSON refuses the request (APISIX lets it through).";
    const EXAMPLE: &'static str = "{}\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &[];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        let mut faults = Vec::from_iter(conf.application().err());
        if conf.server.starts_with("https://") && !conf.ssl_verify {
            faults.push(Invalid::warning("ssl_verify", "anybody on the way can answer in the place of wolf"));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Conf { appid, server, header_prefix, ssl_verify } = conf;
        for (is_set, field) in [
            (appid.is_some(), "appid"),
            (server.is_some(), "server"),
            (header_prefix.is_some(), "header_prefix"),
            (ssl_verify.is_some(), "ssl_verify"),
        ] {
            if is_set {
                cx.warn(field, "it has no effect here: that of the consumer counts");
            }
        }
        Some(Compiled::build(|build| Ok(Checked { position: build.position, network: Arc::clone(build.network) })))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut Table, entry: &AuthEntry<ConsumerConf>| {
            Ok(table.insert(entry.conf.appid.as_bytes(), b"", entry.who, Arc::new(entry.conf.application()?)))
        };
        let table = credentials::changed(&change, change.held(), |conf| &conf.appid, put, ("appid", "application"))?;
        Ok(Arc::new(table))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    /// Position of the plugin's credentials in the registry.
    position: u8,
    network: Arc<Network>,
}

/// A token as clients send it.
struct Token {
    appid: Vec<u8>,
    /// The part for wolf: a text that may stand in a field.
    wolf: String,
}

impl Token {
    /// The token of a request.
    ///
    /// # Errors
    /// The message of the refusal.
    fn of(cx: &RequestCx<'_>) -> Result<Self, &'static str> {
        let request = cx.request();
        let mut decoded = Vec::new();
        let text = if let Some(value) = request.query().and_then(|query| query::argument(query, b"rbac_token")) {
            query::decode(value, &mut decoded);
            &decoded
        } else {
            let field = request.head.fields.get_known(request.buffer.bytes(), Known::Authorization);
            let field = field.or_else(|| request.field_str("X-Rbac-Token"));
            field.or_else(|| request.cookie(b"x-rbac-token")).ok_or("Missing rbac token in request")?
        };
        Self::parse(text).ok_or("invalid rbac token: parse failed")
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.splitn(3, |byte| *byte == b'#');
        let (version, appid, wolf) = (parts.next()?, parts.next()?, parts.next()?);
        let is_good = version == b"V1" && wolf.iter().all(|byte| weir_wire::is_field_byte(*byte));
        let wolf = std::str::from_utf8(wolf).ok().filter(|_| is_good)?;
        Some(Self { appid: appid.into(), wolf: wolf.to_owned() })
    }
}

fn answer(cx: &mut RequestCx<'_>, status: u16, body: &Value) -> Flow {
    let reply = cx.reply(status).field("Content-Type", b"text/plain; charset=utf-8");
    reply.body(body.to_string().as_bytes()).body(b"\n").done()
}

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        match self.application(cx) {
            Ok(_) => Flow::Suspend,
            Err(message) => cx.reply(401).message(message).done(),
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let (token, who, application) = match self.application(cx) {
                Ok(found) => found,
                Err(message) => return cx.reply(401).message(message).done(),
            };
            let asked = Asked {
                appid: &token.appid,
                action: cx.request().method_bytes(),
                resource: cx.request().path(),
                client: cx.client().addr_text.as_bytes(),
            };
            let verdict = application.server.check(&self.network, &asked, &token.wolf).await;
            match verdict {
                Ok(verdict) => settle(cx, who, &application, &verdict),
                Err(reason) => {
                    tracing::warn!(reason, "wolf cannot be asked");
                    answer(cx, 500, &json!({ "message": format!("request to wolf-server failed, {reason}") }))
                }
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // All questions end before, by a limit of their own.
        Some(server::CHECK + Duration::from_secs(5))
    }
}

impl Checked {
    fn application(&self, cx: &RequestCx<'_>) -> Result<(Token, ConsumerMatch, Arc<Application>), &'static str> {
        let token = Token::of(cx)?;
        let table = cx.credentials::<Table>(self.position).ok_or("Missing related consumer")?;
        let found = table.find(&token.appid).ok_or("Invalid appid in rbac token")?;
        Ok((token, found.who, Arc::clone(found.more)))
    }
}

/// Does what wolf says.
fn settle(cx: &mut RequestCx<'_>, who: ConsumerMatch, application: &Application, verdict: &Verdict) -> Flow {
    for name in &application.fields {
        cx.request_mut().remove_field(name);
    }
    let text = |name: &str| match verdict.user.as_ref().and_then(|user| user.get(name)) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let (username, nickname) = (text("username"), text("nickname").or_else(|| text("username")));
    let mut encoded = Vec::new();
    query::encode(nickname.as_deref().unwrap_or_default().as_bytes(), &mut encoded);
    let values = [text("id"), username.clone(), nickname.is_some().then(|| String::from_utf8_lossy(&encoded).into())];
    for (name, value) in application.fields.iter().zip(values) {
        let Some(value) = value.filter(|value| value.bytes().all(weir_wire::is_field_byte)) else { continue };
        cx.set_response_field(name, |out| out.extend_from_slice(value.as_bytes()));
        cx.request_mut().set_field(name, value.as_bytes());
    }
    if verdict.status == 200 {
        cx.set_consumer(who);
        return Flow::Continue;
    }
    let mut body = Map::new();
    for (name, value) in [("message", verdict.reason.clone()), ("username", username), ("nickname", nickname)] {
        if let Some(value) = value {
            body.insert(name.to_owned(), value.into());
        }
    }
    answer(cx, verdict.status, &body.into())
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn a_token_has_three_parts() {
        for (text, wanted) in [
            ("V1#shop#abc", Some(("shop", "abc"))),
            ("V1#shop#a#c", Some(("shop", "a#c"))),
            ("V1##", Some(("", ""))),
            ("V1#shop", None),
            ("V2#shop#abc", None),
            ("V1#shop#a\r\nb", None),
            ("", None),
        ] {
            let found = Token::parse(text.as_bytes());
            let found = found.map(|token| (String::from_utf8(token.appid).expect("text"), token.wolf));
            assert_eq!(found, wanted.map(|(appid, wolf)| (appid.to_owned(), wolf.to_owned())), "{text:?}");
        }
    }
}
