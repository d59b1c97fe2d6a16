//! Bodies that templates are made of.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_expr::{Source, Value as Known, Variable};
use weir_plugin::{Invalid, Request};

use super::values::Meta;
use crate::tyk::batch::canonical;
use crate::tyk::shared::text;
use crate::tyk::template::{Template, xml};

/// A body that becomes the data of a template.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    path: String,
    method: String,
    template_data: TemplateConf,
}

/// The template.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct TemplateConf {
    /// Form of the body: `json` or `xml`.
    input_type: String,
    /// `blob` or `file`.
    template_mode: String,
    /// The template in base64, or the path of its file.
    template_source: String,
    /// The text of the file.
    template_text: String,
    /// Adds `_tyk_meta` to the data.
    enable_session: bool,
}

impl Conf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Transform {
    template: Template,
    is_xml: bool,
    has_session: bool,
}

impl Transform {
    pub(super) fn compile(conf: Conf, field: &str) -> Result<Arc<Self>, Invalid> {
        let TemplateConf { input_type, template_mode, template_source, template_text, enable_session } =
            conf.template_data;
        let fault = |name: &str, text: String| Invalid::new(format!("{field}.template_data.{name}"), text);
        if !matches!(input_type.as_str(), "" | "json" | "xml") {
            return Err(fault("input_type", format!("expected one of: json, xml; found '{input_type}'")));
        }
        let text = match template_mode.as_str() {
            "file" => template_text,
            "" | "blob" => {
                let decoded = STANDARD.decode(template_source.trim()).ok();
                let decoded = decoded.and_then(|text| String::from_utf8(text).ok());
                decoded.ok_or_else(|| fault("template_source", "expected a template in base64".to_owned()))?
            }
            other => return Err(fault("template_mode", format!("expected one of: blob, file; found '{other}'"))),
        };
        let template = Template::parse(&text).map_err(|error| fault("template_source", error))?;
        Ok(Arc::new(Self { template, is_xml: input_type == "xml", has_session: enable_session }))
    }

    /// The new body; `None` for one that is no JSON or no XML, which stays as it is.
    pub(super) fn apply(&self, body: &[u8], extra: &Extra) -> Result<Option<String>, String> {
        let empty: &[u8] = if self.is_xml { b"<_/>" } else { b"{}" };
        let body = if body.trim_ascii().is_empty() { empty } else { body };
        let mut data = match self.is_xml {
            true => match xml::read(body) {
                Ok(fields) => fields,
                Err(_) => return Ok(None),
            },
            false => match serde_json::from_slice::<Value>(body) {
                Ok(Value::Object(fields)) => fields,
                Ok(Value::Array(items)) => Map::from_iter([("array".to_owned(), Value::Array(items))]),
                Ok(_) | Err(_) => return Ok(None),
            },
        };
        if let Some(meta) = extra.meta.as_ref().filter(|_| self.has_session) {
            data.insert("_tyk_meta".to_owned(), Value::Object((**meta).clone()));
        }
        if let Some(context) = &extra.context {
            data.insert("_tyk_context".to_owned(), context.clone());
        }
        self.template.run(&Value::Object(data)).map(Some)
    }
}

/// Data beside the body.
#[derive(Debug, Default)]
pub(super) struct Extra {
    pub(super) meta: Option<Arc<Meta>>,
    pub(super) context: Option<Value>,
}

impl Extra {
    pub(super) fn of(request: &Request, source: &dyn Source, meta: Option<Arc<Meta>>, has_context: bool) -> Self {
        Self { meta, context: has_context.then(|| context(request, source)) }
    }
}

/// The values of `$tyk_context`.
fn context(request: &Request, source: &dyn Source) -> Value {
    let mut data = Map::new();
    for (name, value) in request.arguments() {
        if let Value::Array(list) = data.entry(text(name)).or_insert_with(|| json!([])) {
            list.push(text(value.text()).into());
        }
    }
    let variable = |variable: &Variable| match source.variable(variable) {
        Some(Known::Bytes(bytes)) => text(bytes),
        _ => String::new(),
    };
    let path = text(request.path());
    let mut context = json!({
        "request_data": data, "path_parts": path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>(),
        "path": path, "remote_addr": variable(&Variable::RemoteAddr), "request_id": variable(&Variable::RequestId),
    });
    for (name, value) in request.head.fields.iter(request.buffer.bytes()) {
        context[format!("headers_{}", canonical(&text(name)).replace('-', "_"))] = text(value).into();
    }
    context
}
