//! Headers that are added and taken out, of requests and of responses.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Invalid, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use super::values::{Meta, Text, Values};

/// Changes at one path.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    path: String,
    method: String,
    /// Headers that are set, with variables in their values.
    add_headers: BTreeMap<String, String>,
    /// Names of headers that are taken out.
    delete_headers: Vec<String>,
}

impl Conf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// The changes, compiled.
#[derive(Debug)]
pub(super) struct Edits {
    delete: Box<[FieldName]>,
    add: Box<[(FieldName, Text)]>,
}

impl Edits {
    pub(super) fn of(conf: Conf, field: &str) -> Result<Self, Invalid> {
        Self::compile(conf.add_headers, &conf.delete_headers, field)
    }

    pub(super) fn compile(add: BTreeMap<String, String>, delete: &[String], field: &str) -> Result<Self, Invalid> {
        let named = |name: &str| {
            FieldName::new(name.trim()).ok_or_else(|| Invalid::new(field, format!("'{name}' is no name of a header")))
        };
        let checked = |text: String| match text.contains(['\r', '\n', '\0']) {
            true => Err(Invalid::new(field, "a value of a header has no line ends")),
            false => Ok(Text::parse(&text)),
        };
        let add = add.into_iter().map(|(name, value)| Ok((named(&name)?, checked(value)?)));
        let delete = delete.iter().filter(|name| !name.is_empty()).map(|name| named(name));
        Ok(Self { delete: delete.collect::<Result<_, _>>()?, add: add.collect::<Result<_, Invalid>>()? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.add.is_empty()
    }

    pub(super) fn change_request(&self, cx: &mut RequestCx<'_>, meta: Option<&Meta>, has_context: bool) {
        self.delete.iter().for_each(|name| cx.request_mut().remove_field(name));
        for (name, text) in &self.add {
            let mut value = Vec::new();
            let (request, source) = (cx.request(), cx.source());
            text.write(&Values { request, source, meta, has_context, captured: &[] }, &mut value);
            value.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
            cx.request_mut().set_field(name, &value);
        }
    }

    pub(super) fn change_response(&self, cx: &mut ResponseCx<'_>, meta: Option<&Meta>, has_context: bool) {
        for name in &self.delete {
            cx.remove_field(name);
        }
        for (name, text) in &self.add {
            let mut value = Vec::new();
            let (request, source) = (cx.request(), cx.source());
            text.write(&Values { request, source, meta, has_context, captured: &[] }, &mut value);
            value.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
            cx.set_field(name, &value);
        }
    }
}
