//! Requests that become an operation of GraphQL (`persist_graphql`): the upstream gets a POST with the operation and with
//! variables from the path, the caller and the request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{Flow, Invalid, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::values::{Meta, Text, Values};

/// An operation.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    path: String,
    method: String,
    /// The operation in GraphQL's own language.
    operation: String,
    /// Its variables. In their texts `$path.NAME` stands for the part of the path under `{NAME}`.
    #[schemars(with = "std::collections::BTreeMap<String, Value>")]
    variables: Map<String, Value>,
}

impl Conf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Operation {
    operation: String,
    variables: Form,
    /// Texts for parts of the path, with the numbers of these parts; longer ones first.
    parts: Box<[(String, usize)]>,
    content_type: FieldName,
}

/// A value whose texts have variables.
#[derive(Debug)]
enum Form {
    Text(Text),
    List(Box<[Form]>),
    Fields(Box<[(String, Form)]>),
    Fixed(Value),
}

impl Operation {
    pub(super) fn compile(conf: Conf, field: &str) -> Result<Self, Invalid> {
        if conf.operation.trim().is_empty() {
            return Err(Invalid::new(format!("{field}.operation"), "expected an operation of GraphQL"));
        }
        let named = |(number, part): (usize, &str)| {
            let name = part.strip_prefix('{')?.strip_suffix('}')?;
            Some((format!("$path.{name}"), number))
        };
        let mut parts: Vec<(String, usize)> =
            conf.path.trim_start_matches('/').split('/').enumerate().filter_map(named).collect();
        parts.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Ok(Self {
            operation: conf.operation,
            variables: Form::of(Value::Object(conf.variables)),
            parts: parts.into(),
            content_type: FieldName::constant("Content-Type"),
        })
    }

    /// Makes the request the operation, once the whole of its body is there. `rest` is the path behind the listen path.
    pub(super) fn apply(&self, cx: &mut RequestCx<'_>, rest: &[u8], meta: Option<&Meta>, has_context: bool) -> Flow {
        if cx.body().is_none() {
            return Flow::AwaitBody;
        }
        let own: Vec<&[u8]> = rest.strip_prefix(b"/").unwrap_or(rest).split(|byte| *byte == b'/').collect();
        let part = |(name, number): &(String, usize)| {
            (name.clone(), String::from_utf8_lossy(own.get(*number).copied().unwrap_or_default()).into_owned())
        };
        let parts: Vec<(String, String)> = self.parts.iter().map(part).collect();
        let (request, source) = (cx.request(), cx.source());
        let values = Values { request, source, meta, has_context, captured: &[] };
        let body = json!({ "query": self.operation, "variables": self.variables.value(&values, &parts) }).to_string();
        cx.replace_body(body.as_bytes());
        let request = cx.request_mut();
        request.set_field(&self.content_type, b"application/json");
        request.upstream.method = Some(Method::Post);
        Flow::Continue
    }
}

impl Form {
    fn of(value: Value) -> Self {
        match value {
            Value::String(text) => Self::Text(Text::parse(&text)),
            Value::Array(list) => Self::List(list.into_iter().map(Self::of).collect()),
            Value::Object(fields) => {
                Self::Fields(fields.into_iter().map(|(name, value)| (name, Self::of(value))).collect())
            }
            other => Self::Fixed(other),
        }
    }

    fn value(&self, values: &Values<'_>, parts: &[(String, String)]) -> Value {
        match self {
            Self::Text(text) => {
                let mut written = Vec::new();
                text.write(values, &mut written);
                let written = String::from_utf8_lossy(&written).into_owned();
                Value::String(parts.iter().fold(written, |text, (name, part)| text.replace(name, part)))
            }
            Self::List(list) => list.iter().map(|form| form.value(values, parts)).collect(),
            Self::Fields(fields) => {
                Value::Object(fields.iter().map(|(name, form)| (name.clone(), form.value(values, parts))).collect())
            }
            Self::Fixed(value) => value.clone(),
        }
    }
}
