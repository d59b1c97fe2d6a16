//! A request as handlers see it.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::{HeaderMap, Method};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::Audience;
use crate::answer::Answer;
use crate::cjson;
use crate::keys::{Identity, Role};

/// A request that was let in, with all of its body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The segments of the path below the API's own, decoded: `["routes", "1"]`.
    pub(crate) path: Vec<String>,
    pub(crate) query: Query,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    /// Whose key it came with.
    pub(crate) by: Identity,
}

/// The arguments behind `?`.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Request {
    /// Audience that the client belongs to, which decides about secrets.
    pub(crate) fn audience(&self) -> Audience {
        match self.by.role {
            Role::Admin => Audience::Administrator,
            Role::Operator | Role::Viewer | Role::Developer => Audience::Reader,
        }
    }

    /// The JSON of the body; `None` for an empty one.
    pub(crate) fn json(&self) -> Result<Option<Value>, Answer> {
        if self.body.is_empty() {
            return Ok(None);
        }
        let text = std::str::from_utf8(&self.body)
            .map_err(|error| Answer::bad(format!("invalid request body: {error}")).unversioned())?;
        cjson::parse(text).map(Some).map_err(|fault| {
            let message = format!("invalid request body: {fault}");
            let body = serde_json::json!({ "error_msg": message, "req_body": text });
            Answer::json(hyper::StatusCode::BAD_REQUEST, &body).unversioned()
        })
    }
}

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// All arguments, as names and values.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        self.0.iter().filter(|(name, _)| name != "api_key").cloned().collect()
    }

    /// A whole number from 1 on; without the argument the usual one.
    pub(crate) fn number(&self, name: &str, usual: usize, most: usize) -> Result<usize, Answer> {
        let Some(text) = self.get(name) else { return Ok(usual) };
        let number = text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| Answer::bad(format!("{name}: expected a whole number from 1 to {most}")))
    }

    /// All arguments of this name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first argument of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The segments of a path, decoded; empty ones are left out, so that `/routes/` is `/routes`.
pub(crate) fn segments(path: &str) -> Vec<String> {
    let decode = |segment: &str| percent_decode_str(segment).decode_utf8_lossy().into_owned();
    path.split('/').filter(|segment| !segment.is_empty()).map(decode).collect()
}

/// A cookie of a request.
pub(crate) fn cookie<'a>(fields: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    let texts = fields.get_all(hyper::header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| percent_decode_str(value).decode_utf8_lossy())
}
