//! Messages of the runner's protocol. Numbers of fields are their places in the tables of APISIX's `ext-plugin.fbs`.

use std::net::IpAddr;

use weir_expr::{Source, Variable};
use weir_plugin::{RequestCx, ResponseCx};
use weir_wire::query::Argument;

use super::flat::{Field, Table, encode};

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Error = 0,
    PrepareConf = 1,
    RequestCall = 2,
    ExtraInfo = 3,
    ResponseCall = 4,
}

/// Methods by their numbers.
const METHODS: [&str; 15] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "PATCH",
    "TRACE",
];

/// Codes of errors.
const ERRORS: [&str; 3] = ["bad request", "service unavailable", "conf token not found"];
const UNKNOWN_CONF: u8 = 2;

/// A name, and a value unless it is to go.
pub(super) type Pair = (Vec<u8>, Option<Vec<u8>>);

/// A message of the runner about a request.
#[derive(Debug)]
pub(super) enum Runner {
    Reply(Reply),
    /// A wish to know more before.
    Wants(Wish),
    UnknownConf,
}

/// A thing that the runner wants to know.
#[derive(Debug)]
pub(super) enum Wish {
    Variable(String),
    Body,
    /// The body of the answer.
    AnswerBody,
}

/// The runner's word about a request or an answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// No change.
    Pass,
    Stop {
        status: u16,
        headers: Vec<Pair>,
        body: Vec<u8>,
    },
    Rewrite(Box<Rewrite>),
    /// About an answer.
    Answer(AnswerRewrite),
}

/// Changes of an answer.
#[derive(Debug)]
pub(super) struct AnswerRewrite {
    /// 0: as it is.
    pub(super) status: u16,
    pub(super) headers: Vec<Pair>,
    /// Empty: as it is.
    pub(super) body: Vec<u8>,
}

/// Changes of a request.
#[derive(Debug)]
pub(super) struct Rewrite {
    pub(super) path: Option<Vec<u8>>,
    pub(super) headers: Vec<Pair>,
    pub(super) args: Vec<Pair>,
    pub(super) response_headers: Vec<Pair>,
    pub(super) body: Option<Vec<u8>>,
}

fn entry(name: &[u8], value: Option<&[u8]>) -> Vec<Field> {
    vec![Field::Bytes(name.to_vec()), value.map_or(Field::None, |value| Field::Bytes(value.to_vec()))]
}

/// The message that tells the runner a configuration, under a key of its own.
pub(super) fn prepare(plugins: &[(String, String)], key: &str) -> Vec<u8> {
    let entries = plugins.iter().map(|(name, value)| entry(name.as_bytes(), Some(value.as_bytes()))).collect();
    encode(vec![Field::Tables(entries), Field::Bytes(key.into())])
}

/// The number under which the runner keeps the configuration.
pub(super) fn token(kind: u8, body: &[u8]) -> Result<u32, String> {
    if kind != Kind::PrepareConf as u8 {
        return Err(unexpected(kind, body));
    }
    Table::root(body).map(|table| table.int(0)).ok_or_else(|| MALFORMED.to_owned())
}

const MALFORMED: &str = "it has sent a malformed message";

fn unexpected(kind: u8, body: &[u8]) -> String {
    if kind == Kind::Error as u8 {
        let code = Table::root(body).map_or(u8::MAX, |table| table.byte(0));
        return ERRORS.get(usize::from(code)).map_or_else(|| format!("error {code}"), |text| (*text).to_owned());
    }
    format!("it has sent a message of an unexpected kind, {kind}")
}

/// The message that tells the runner a request.
pub(super) fn call(cx: &RequestCx<'_>, id: u32, token: u32) -> Vec<u8> {
    let request = cx.request();
    let address = match cx.client().addr {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let method = METHODS.iter().position(|name| name.as_bytes() == request.method_bytes());
    let target = &request.upstream.target;
    let path = match target.iter().position(|byte| *byte == b'?') {
        _ if target.is_empty() => request.path(),
        Some(end) => target.get(..end).unwrap_or_default(),
        None => target,
    };
    let argument = |(name, value): (&[u8], Argument<'_>)| match value {
        Argument::Flag => entry(name, None),
        Argument::Value(value) => entry(name, Some(value)),
    };
    let arguments = request.arguments().map(argument).collect();
    let host = Some(&*request.upstream.host).filter(|host| !host.is_empty());
    let header = |(name, value): (&[u8], &[u8])| {
        let is_host = name.eq_ignore_ascii_case(b"host");
        entry(&name.to_ascii_lowercase(), Some(host.filter(|_| is_host).unwrap_or(value)))
    };
    let headers = request.head.fields.iter(request.buffer.bytes()).map(header).collect();
    encode(vec![
        Field::Int(id),
        Field::Bytes(address),
        method.map_or(Field::None, |number| Field::Byte(number as u8)),
        Field::Bytes(path.to_vec()),
        Field::Tables(arguments),
        Field::Tables(headers),
        Field::Int(token),
    ])
}

/// The message that tells the runner an answer.
pub(super) fn answer_call(cx: &ResponseCx<'_>, id: u32, token: u32) -> Vec<u8> {
    let response = cx.response();
    let header = |(name, value): (&[u8], &[u8])| entry(&name.to_ascii_lowercase(), Some(value));
    let headers = response.head.fields.sent(response.buffer.bytes()).map(header).collect();
    encode(vec![Field::Int(id), Field::Int(response.status().into()), Field::Tables(headers), Field::Int(token)])
}

/// Reads a message behind a call of this kind.
pub(super) fn read(call: Kind, kind: u8, body: &[u8]) -> Result<Runner, String> {
    let table = Table::root(body).ok_or(MALFORMED)?;
    if kind == Kind::Error as u8 && table.byte(0) == UNKNOWN_CONF {
        return Ok(Runner::UnknownConf);
    }
    if kind == Kind::ExtraInfo as u8 {
        return match (table.byte(0), table.table(1)) {
            (1, Some(variable)) => {
                let name = variable.bytes(0).ok_or(MALFORMED)?;
                Ok(Runner::Wants(Wish::Variable(String::from_utf8_lossy(name).into_owned())))
            }
            (2, _) => Ok(Runner::Wants(Wish::Body)),
            (3, _) if call == Kind::ResponseCall => Ok(Runner::Wants(Wish::AnswerBody)),
            (other, _) => Err(format!("it asks for more of a kind that is not there, {other}")),
        };
    }
    if kind != call as u8 {
        return Err(unexpected(kind, body));
    }
    if call == Kind::ResponseCall {
        let headers = table.tables(2).and_then(pairs).ok_or(MALFORMED)?;
        let body = table.bytes(3).unwrap_or_default().to_vec();
        return Ok(Runner::Reply(Reply::Answer(AnswerRewrite { status: table.short(1), headers, body })));
    }
    let reply = match table.byte(1) {
        0 => Some(Reply::Pass),
        1 => table.table(2).and_then(|stop| {
            let body = stop.bytes(2).unwrap_or_default().to_vec();
            Some(Reply::Stop { status: stop.short(0), headers: pairs(stop.tables(1)?)?, body })
        }),
        2 => table.table(2).and_then(rewrite),
        other => return Err(format!("it has replied with an action that is not known, {other}")),
    };
    reply.map(Runner::Reply).ok_or_else(|| MALFORMED.to_owned())
}

fn rewrite(table: Table<'_>) -> Option<Reply> {
    Some(Reply::Rewrite(Box::new(Rewrite {
        path: table.bytes(0).map(<[u8]>::to_vec),
        headers: pairs(table.tables(1)?)?,
        args: pairs(table.tables(2)?)?,
        response_headers: pairs(table.tables(3)?)?,
        body: table.bytes(4).map(<[u8]>::to_vec),
    })))
}

fn pairs(entries: Vec<Table<'_>>) -> Option<Vec<Pair>> {
    entries.into_iter().map(|entry| Some((entry.bytes(0)?.to_vec(), entry.bytes(1).map(<[u8]>::to_vec)))).collect()
}

/// The message with a variable.
pub(super) fn variable(name: &str, source: &dyn Source) -> Vec<u8> {
    let value = Variable::parse(name).ok().and_then(|variable| {
        let mut text = Vec::new();
        source.variable(&variable)?.write_to(&mut text);
        Some(text)
    });
    encode(vec![value.map_or(Field::None, Field::Bytes)])
}

/// The message with a body.
pub(super) fn body(body: &[u8]) -> Vec<u8> {
    encode(vec![Field::Bytes(body.to_vec())])
}
