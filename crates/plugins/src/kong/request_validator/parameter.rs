//! A parameter of a request: its place, its style and its schema.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{Invalid, RequestCx};
use weir_wire::name::FieldName;

use crate::kong::captures;
use crate::requests::request_validation::decode::part_of_path;
use crate::requests::request_validation::scalar::Scalar;
use crate::requests::request_validation::schema::Schema;

/// Place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Place {
    Query,
    Header,
    Path,
}

/// Way in which a parameter writes several values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum Style {
    Label,
    Form,
    Matrix,
    Simple,
    SpaceDelimited,
    PipeDelimited,
    DeepObject,
}

/// Configuration of a parameter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParameterConf {
    /// Place of the parameter.
    r#in: Place,
    /// Its name; in a path that of a group of the route's regular expression.
    #[schemars(length(min = 1))]
    name: String,
    /// True if it has to be there.
    required: bool,
    /// The way in which several values are written; `label`, `matrix` and `deepObject` are not supported.
    style: Option<Style>,
    /// True if each value is a parameter of its own.
    explode: Option<bool>,
    /// Its schema as a text in JSON (JSON Schema, draft 4), with a `type`.
    schema: Option<String>,
}

/// A parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    place: Place,
    name: Vec<u8>,
    field: Option<FieldName>,
    is_required: bool,
    schema: Option<Checked>,
}

#[derive(Debug)]
struct Checked {
    schema: Schema,
    kind: Scalar,
    /// The byte between values of a list; `None`: the parameter has one value. With `is_exploded` each value is a parameter.
    separator: Option<u8>,
    is_exploded: bool,
}

impl Parameter {
    /// Compiles a parameter; `uri` is that of the draft.
    pub(super) fn compile(conf: ParameterConf, at: &str, uri: &str) -> Result<Self, Invalid> {
        let fault = |field: &str, text: &str| Invalid::new(format!("{at}.{field}"), text);
        let field = match conf.r#in {
            Place::Header => {
                let name = FieldName::new(&conf.name);
                Some(name.ok_or_else(|| fault("name", "expected the name of a header"))?)
            }
            Place::Query | Place::Path => None,
        };
        let schema = match (&conf.schema, conf.style, conf.explode) {
            (None, None, None) => None,
            (Some(text), Some(style), Some(explode)) => {
                Some(Checked::compile(text, (conf.r#in, style, explode), at, uri)?)
            }
            _ => return Err(fault("schema", "schema, style and explode are needed together")),
        };
        Ok(Self { place: conf.r#in, name: conf.name.into_bytes(), field, is_required: conf.required, schema })
    }

    /// Checks the parameter of a request.
    ///
    /// # Errors
    /// Finding about it.
    pub(super) fn check(&self, cx: &RequestCx<'_>) -> Result<(), String> {
        let name = String::from_utf8_lossy(&self.name);
        let texts = self.texts(cx);
        if texts.is_empty() {
            return if self.is_required { Err(format!("{name}: required parameter missing")) } else { Ok(()) };
        }
        let Some(checked) = &self.schema else { return Ok(()) };
        checked.check(&texts).map_err(|why| format!("{name}: {why}"))
    }

    fn texts(&self, cx: &RequestCx<'_>) -> Vec<Vec<u8>> {
        let request = cx.request();
        match (self.place, &self.field) {
            (Place::Header, Some(field)) => {
                request.head.fields.all(request.buffer.bytes(), field).map(<[u8]>::to_vec).collect()
            }
            (Place::Header, None) => Vec::new(),
            (Place::Query, _) => {
                let own = request.arguments().filter(|(name, _)| *name == self.name);
                own.map(|(_, argument)| argument.text().to_vec()).collect()
            }
            (Place::Path, _) => {
                let group = std::str::from_utf8(&self.name).ok().and_then(|name| captures::named(cx, name));
                group.map(part_of_path).into_iter().collect()
            }
        }
    }
}

impl Checked {
    fn compile(
        text: &str,
        (place, style, explode): (Place, Style, bool),
        at: &str,
        uri: &str,
    ) -> Result<Self, Invalid> {
        let at = format!("{at}.schema");
        let fault = |text: String| Invalid::new(at.clone(), text);
        let written: Value =
            serde_json::from_str(text).map_err(|error| fault(format!("expected a schema in JSON: {error}")))?;
        let Value::Object(mut schema) = written else { return Err(fault("expected an object".to_owned())) };
        let kind = |schema: &Value| match schema["type"].as_str() {
            Some(name) => {
                Scalar::named(name).ok_or_else(|| fault(format!("the type {name} is not supported in a parameter")))
            }
            None => Err(fault("a type is needed".to_owned())),
        };
        let whole = Value::Object(schema.clone());
        let is_list = whole["type"] == "array";
        let kind = if is_list { kind(&whole["items"])? } else { kind(&whole)? };
        let separator =
            match (style, place) {
                (Style::Simple, Place::Header | Place::Path) | (Style::Form, Place::Query) => b',',
                (Style::SpaceDelimited, Place::Query) => b' ',
                (Style::PipeDelimited, Place::Query) => b'|',
                _ => return Err(fault(
                    "expected the style simple in headers and paths, form, spaceDelimited or pipeDelimited in queries"
                        .to_owned(),
                )),
            };
        schema.entry("$schema").or_insert_with(|| uri.into());
        let schema = Schema::compile(&at, schema)?;
        let is_exploded = explode && place == Place::Query;
        Ok(Self { schema, kind, separator: is_list.then_some(separator), is_exploded })
    }

    fn check(&self, texts: &[Vec<u8>]) -> Result<(), String> {
        let value = match self.separator {
            None => match texts {
                [one] => self.read(one),
                _ => return Err("given more than once".to_owned()),
            },
            Some(_) if self.is_exploded => texts.iter().map(|text| self.read(text)).collect(),
            Some(separator) => {
                let parts = texts.iter().flat_map(|text| text.split(move |byte| *byte == separator));
                parts.map(|text| self.read(weir_wire::trim_ows(text))).collect()
            }
        };
        self.schema.check(&value)
    }

    /// A text as a value of the type; as a text where it is none, which the schema refuses.
    fn read(&self, text: &[u8]) -> Value {
        let text = String::from_utf8_lossy(text);
        self.kind.read(&text).unwrap_or_else(|| text.into())
    }
}
