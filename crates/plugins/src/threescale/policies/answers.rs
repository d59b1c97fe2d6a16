//! Policies that answer, or change what is answered: `cors`, `echo`, `maintenance_mode`, `statuscode_overwrite`.

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx, ResponseCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::{DraftLink, read};
use crate::threescale::condition::{self, Condition};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::Around;

/// A status that may be sent.
fn status(status: u16, field: String, cx: &CompileCx<'_>) -> Option<u16> {
    let is_good = (200..=599).contains(&status);
    if !is_good {
        cx.say([Invalid::new(field, format!("expected a status from 200 to 599, found {status}"))]);
    }
    is_good.then_some(status)
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct EchoConf {
    status: Option<u16>,
    exit: Option<Exit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Exit {
    /// Ends the request.
    Request,
    /// Ends the phase.
    Phase,
}

/// The policy `echo`.
#[derive(Debug)]
struct Echo {
    status: Option<u16>,
    exit: Option<Exit>,
}

/// Compiles `echo`.
pub(super) fn echo(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let EchoConf { status: given, exit } = read::<EchoConf>(conf, field, cx)?;
    let status = match given {
        Some(given) => Some(status(given, format!("{field}.status"), cx)?),
        None => None,
    };
    Some(DraftLink::of(Echo { status, exit }))
}

impl Policy for Echo {
    fn rewrite(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        state.status = self.status.or(state.status);
        match self.exit {
            None => Step::Next,
            Some(Exit::Phase) => Step::EndPhase,
            Some(Exit::Request) => Step::Done(cx.reply(state.status.unwrap_or(200)).done()),
        }
    }

    fn content(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let mut line = cx.take_scratch();
        let request = cx.request();
        line.extend_from_slice(request.method_bytes());
        line.push(b' ');
        line.extend_from_slice(request.received_target());
        line.extend_from_slice(b" HTTP/1.1");
        let is_json = request.field_str("accept") == Some(b"application/json");
        let body = match is_json {
            true => format!("{}\n", serde_json::json!({ "request": String::from_utf8_lossy(&line) })),
            false => format!("{}\n", String::from_utf8_lossy(&line)),
        };
        cx.put_scratch(line);
        let reply = cx.reply(state.status.unwrap_or(200)).field("Content-Type", b"text/plain; charset=utf-8");
        Step::Done(reply.body(body.as_bytes()).done())
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct CorsConf {
    allow_headers: Option<Vec<String>>,
    allow_methods: Option<Vec<String>>,
    allow_origin: Option<String>,
    allow_credentials: Option<bool>,
    max_age: Option<u64>,
}

/// The policy `cors`.
#[derive(Debug)]
struct Cors {
    /// `None`: those that the client asks for.
    headers: Option<Box<[u8]>>,
    methods: Option<Box<[u8]>>,
    origin: Origin,
    has_credentials: bool,
    max_age: Box<[u8]>,
    allow_headers: FieldName,
    allow_methods: FieldName,
    allow_origin: FieldName,
    allow_credentials: FieldName,
    age: FieldName,
}

#[derive(Debug)]
enum Origin {
    /// That of the client.
    Any,
    /// This one.
    Only(Box<[u8]>),
    /// That of the client, where the expression matches.
    Matching(Regex),
}

/// Compiles `cors`.
pub(super) fn cors(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<CorsConf>(conf, field, cx)?;
    let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    let origin = match conf.allow_origin.as_deref() {
        None => Origin::Any,
        Some(origin) if origin == "*" || is_url(origin) => Origin::Only(origin.as_bytes().into()),
        Some(pattern) => {
            let place = format!("{field}.allow_origin");
            let regex = condition::regex(pattern, &place)
                .and_then(|regex| Regex::new(regex.as_str()).map_err(|error| Invalid::new(&place, error.to_string())));
            Origin::Matching(cx.ok(regex)?)
        }
    };
    let joined = |list: Option<Vec<String>>| list.map(|list| list.join(", ").into_bytes().into_boxed_slice());
    let name = FieldName::constant;
    Some(DraftLink::of(Cors {
        headers: joined(conf.allow_headers),
        methods: joined(conf.allow_methods),
        origin,
        has_credentials: conf.allow_credentials.unwrap_or(true),
        max_age: conf.max_age.unwrap_or(600).to_string().into_bytes().into(),
        allow_headers: name("Access-Control-Allow-Headers"),
        allow_methods: name("Access-Control-Allow-Methods"),
        allow_origin: name("Access-Control-Allow-Origin"),
        allow_credentials: name("Access-Control-Allow-Credentials"),
        age: name("Access-Control-Max-Age"),
    }))
}

impl Policy for Cors {
    fn rewrite(&self, _: &Parts, cx: &mut RequestCx<'_>, _: &mut State) -> Step {
        let request = cx.request();
        let is_preflight = request.method() == Method::Options
            && request.field_str("origin").is_some()
            && request.field_str("access-control-request-method").is_some();
        if is_preflight { Step::Done(cx.reply(204).done()) } else { Step::Next }
    }

    fn has_response(&self) -> bool {
        true
    }

    fn response(&self, _: &Parts, cx: &mut ResponseCx<'_>, _: &mut State) {
        let field = |cx: &ResponseCx<'_>, name: &str| cx.request().field_str(name).map(<[u8]>::to_vec);
        let Some(origin) = field(cx, "origin") else { return };
        let asked = [
            (&self.allow_headers, &self.headers, "access-control-request-headers"),
            (&self.allow_methods, &self.methods, "access-control-request-method"),
        ];
        for (name, given, asked) in asked {
            match given {
                Some(given) => cx.set_field(name, given),
                None => {
                    if let Some(asked) = field(cx, asked) {
                        cx.set_field(name, &asked);
                    }
                }
            }
        }
        match &self.origin {
            Origin::Any => cx.set_field(&self.allow_origin, &origin),
            Origin::Only(known) => cx.set_field(&self.allow_origin, known),
            Origin::Matching(regex) if regex.is_match(&origin) => cx.set_field(&self.allow_origin, &origin),
            // The upstream's fields about origins are not the answer of this policy.
            Origin::Matching(_) => drop(cx.remove_field(&self.allow_origin)),
        }
        cx.set_field(&self.allow_credentials, if self.has_credentials { b"true" } else { b"false" });
        cx.set_field(&self.age, &self.max_age);
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct MaintenanceConf {
    #[serde(default = "unavailable")]
    status: u16,
    #[serde(default = "closed")]
    message: String,
    #[serde(default = "plain")]
    message_content_type: String,
    condition: Option<condition::Conf>,
}

fn unavailable() -> u16 {
    503
}

fn closed() -> String {
    "Service Unavailable - Maintenance".to_owned()
}

fn plain() -> String {
    "text/plain; charset=utf-8".to_owned()
}

/// The policy `maintenance_mode`.
#[derive(Debug)]
struct Maintenance {
    status: u16,
    body: Vec<u8>,
    content_type: Vec<u8>,
    condition: Option<Condition>,
}

/// Compiles `maintenance_mode`.
pub(super) fn maintenance_mode(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<MaintenanceConf>(conf, field, cx)?;
    let status = status(conf.status, format!("{field}.status"), cx)?;
    let condition = match &conf.condition {
        Some(condition) => Some(cx.ok(Condition::compile(condition, &format!("{field}.condition")))?),
        None => None,
    };
    if !conf.message_content_type.bytes().all(weir_wire::is_field_byte) {
        let text = "expected a content type without control characters";
        cx.say([Invalid::new(format!("{field}.message_content_type"), text)]);
        return None;
    }
    let body = format!("{}\n", conf.message).into_bytes();
    Some(DraftLink::of(Maintenance { status, body, content_type: conf.message_content_type.into_bytes(), condition }))
}

impl Policy for Maintenance {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let around = Around { view: cx.view(), state, names: &parts.names };
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(&around)) {
            return Step::Next;
        }
        let reply = cx.reply(self.status).field("Content-Type", &self.content_type);
        Step::Done(reply.body(&self.body).done())
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct CodesConf {
    http_statuses: Vec<Code>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
struct Code {
    upstream: u16,
    apicast: u16,
}

/// The policy `statuscode_overwrite`.
#[derive(Debug)]
struct Codes(Box<[Code]>);

/// Compiles `statuscode_overwrite`.
pub(super) fn statuscode_overwrite(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<CodesConf>(conf, field, cx)?;
    for (at, code) in conf.http_statuses.iter().enumerate() {
        status(code.apicast, format!("{field}.http_statuses[{at}].apicast"), cx)?;
    }
    Some(DraftLink::of(Codes(conf.http_statuses.into())))
}

impl Policy for Codes {
    fn has_response(&self) -> bool {
        true
    }

    fn response(&self, _: &Parts, cx: &mut ResponseCx<'_>, _: &mut State) {
        // The last entry of a status counts, as in APIcast.
        if let Some(code) = self.0.iter().rev().find(|code| code.upstream == cx.status()) {
            cx.set_status(code.apicast);
        }
    }
}
