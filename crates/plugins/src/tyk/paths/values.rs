//! Texts with `$tyk_context` and `$tyk_meta`.

use weir_expr::{Source, Value as Known, Variable};
use weir_plugin::Request;
use weir_wire::name::FieldName;
use weir_wire::query;

use crate::tyk::sessions::Session;

/// A text with variables.
#[derive(Debug)]
pub(super) struct Text(Box<[Part]>);

#[derive(Debug)]
enum Part {
    Literal(Box<[u8]>),
    Meta(Box<str>),
    Context(Context),
}

/// A value of `$tyk_context`.
#[derive(Debug)]
enum Context {
    RequestData(Box<[u8]>),
    Header(FieldName),
    Cookie(Box<[u8]>),
    Path,
    PathParts,
    RemoteAddr,
    RequestId,
    /// Captures of a trigger.
    Captured(Box<str>),
    /// One that has no value here.
    Nothing,
}

/// Sources of the values of variables.
pub(super) struct Values<'v> {
    pub(super) request: &'v Request,
    pub(super) source: &'v dyn Source,
    pub(super) session: Option<&'v Session>,
    /// True if `$tyk_context` has values.
    pub(super) has_context: bool,
    /// Captures of triggers, by names.
    pub(super) captured: &'v [(String, Vec<u8>)],
}

impl Text {
    pub(super) fn parse(text: &str) -> Self {
        const KINDS: [&str; 2] = ["$tyk_context.", "$tyk_meta."];
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let found = KINDS.iter().filter_map(|kind| Some((rest.find(kind)?, *kind))).min();
            let Some((at, kind)) = found else { break };
            let (before, from) = rest.split_at(at);
            let named = from.get(kind.len()..).unwrap_or_default();
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let end = named.find(|c| !is_name(c)).unwrap_or(named.len());
            let (name, after) = named.split_at(end);
            parts.push(Part::Literal(before.as_bytes().into()));
            parts.push(if kind == "$tyk_meta." {
                Part::Meta(name.into())
            } else {
                Part::Context(Context::named(name))
            });
            rest = after;
        }
        parts.push(Part::Literal(rest.as_bytes().into()));
        Self(parts.into())
    }

    /// Appends the text with the values; a variable without one is empty.
    pub(super) fn write(&self, values: &Values<'_>, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Meta(name) => match values.session.and_then(|session| session.meta.get(&**name)) {
                    Some(serde_json::Value::String(text)) => out.extend_from_slice(text.as_bytes()),
                    None | Some(serde_json::Value::Null) => {}
                    // Writing into a vector does not fail.
                    Some(other) => serde_json::to_writer(&mut *out, other).unwrap_or_default(),
                },
                Part::Context(context) if values.has_context => context.write(values, out),
                Part::Context(_) => {}
            }
        }
    }
}

impl Context {
    fn named(name: &str) -> Self {
        let parts = |prefix| name.strip_prefix(prefix);
        if let Some(argument) = parts("request_data_") {
            return Self::RequestData(argument.as_bytes().into());
        }
        if let Some(header) = parts("headers_") {
            return FieldName::new(&header.replace('_', "-")).map_or(Self::Nothing, Self::Header);
        }
        if let Some(cookie) = parts("cookies_") {
            return Self::Cookie(cookie.as_bytes().into());
        }
        match name {
            "path" => Self::Path,
            "path_parts" => Self::PathParts,
            "remote_addr" => Self::RemoteAddr,
            "request_id" => Self::RequestId,
            name if name.starts_with("trigger-") => Self::Captured(name.into()),
            _ => Self::Nothing,
        }
    }

    fn write(&self, values: &Values<'_>, out: &mut Vec<u8>) {
        let request = values.request;
        match self {
            Self::RequestData(name) => {
                let value = request.query().and_then(|query| query::argument(query, name)).unwrap_or_default();
                query::decode(value, out);
            }
            Self::Header(name) => out.extend_from_slice(request.field(name).unwrap_or_default()),
            Self::Cookie(name) => out.extend_from_slice(request.cookie(name).unwrap_or_default()),
            Self::Path => out.extend_from_slice(request.path()),
            Self::PathParts => {
                let path = request.path();
                let start = out.len();
                out.extend_from_slice(path);
                out.iter_mut().skip(start).filter(|byte| **byte == b'/').for_each(|byte| *byte = b',');
            }
            Self::RemoteAddr => variable(values, &Variable::RemoteAddr, out),
            Self::RequestId => variable(values, &Variable::RequestId, out),
            Self::Captured(name) => {
                let found = values.captured.iter().find(|(known, _)| **known == **name);
                out.extend_from_slice(found.map_or(&[], |(_, value)| value));
            }
            Self::Nothing => {}
        }
    }
}

fn variable(values: &Values<'_>, variable: &Variable, out: &mut Vec<u8>) {
    if let Some(Known::Bytes(text)) = values.source.variable(variable) {
        out.extend_from_slice(text);
    }
}
