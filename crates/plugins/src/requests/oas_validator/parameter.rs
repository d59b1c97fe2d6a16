//! Parameters of an operation: place, style and schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use weir_plugin::Request;
use weir_wire::name::FieldName;

use super::schemas::{Source, Types};
use super::template::Captured;
use crate::requests::request_validation::decode;
use crate::requests::request_validation::schema::Schema;

/// Deepest nesting of an object in a query.
const DEEPEST: usize = 8;

/// Place of a parameter.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Query,
    Header(FieldName),
    Path,
}

impl Place {
    const fn text(&self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Header(_) => "header",
            Self::Path => "path",
        }
    }
}

/// A parameter.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) place: Place,
    pub(super) name: String,
    is_required: bool,
    allows_empty: bool,
    form: Form,
    schema: Option<Arc<Schema>>,
}

/// Way in which values are written.
#[derive(Debug)]
enum Form {
    /// JSON.
    Json,
    /// `deepObject`: `name[key]=value`.
    Deep(BTreeMap<String, Types>),
    Text(Text),
}

#[derive(Debug)]
struct Text {
    separator: u8,
    in_query: bool,
    is_exploded: bool,
    types: Types,
    items: Types,
    properties: BTreeMap<String, Types>,
}

impl Parameter {
    /// Compiles a parameter. `None` for one in a cookie.
    pub(super) fn compile<'d>(source: Source<'d>, written: &'d Value) -> Result<Option<Self>, String> {
        let written = source.follow(written)?;
        let name = written["name"].as_str().filter(|name| !name.is_empty()).ok_or("a parameter has no name")?;
        let fault = |text: &str| format!("the parameter {name}: {text}");
        let place = match written["in"].as_str() {
            Some("query") => Place::Query,
            Some("path") => Place::Path,
            Some("header") => Place::Header(FieldName::new(name).ok_or_else(|| fault("not the name of a field"))?),
            Some("cookie") => return Ok(None),
            _ => return Err(fault("expected in: query, header, path or cookie")),
        };
        let content = written["content"].as_object().and_then(|content| content.iter().next());
        let (form, schema) = match (content, &written["schema"]) {
            (Some((media, content)), _) if media.eq_ignore_ascii_case("application/json") => {
                (Form::Json, &content["schema"])
            }
            (Some((media, _)), _) => return Err(fault(&format!("the media type {media} is not supported"))),
            (None, schema) => (Form::read(source, &place, written, schema).map_err(|text| fault(&text))?, schema),
        };
        let compiled = if schema.is_null() { None } else { Some(source.compile(schema).map_err(|text| fault(&text))?) };
        let is_required = written["required"] == true || matches!(place, Place::Path);
        let allows_empty = written["allowEmptyValue"] == true && matches!(place, Place::Query);
        Ok(Some(Self { place, name: name.to_owned(), is_required, allows_empty, form, schema: compiled }))
    }

    /// True if both are the same parameter, of a path and of an operation.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.place.text() == other.place.text()
    }

    /// Checks the parameter of a request.
    ///
    /// # Errors
    /// Finding about it.
    pub(super) fn check(&self, request: &Request, captured: &Captured<'_>) -> Result<(), String> {
        self.found(request, captured)
            .map_err(|fault| format!("{} parameter '{}': {fault}", self.place.text(), self.name))
    }

    fn found(&self, request: &Request, captured: &Captured<'_>) -> Result<(), String> {
        let texts = self.texts(request, captured);
        let values = match &self.form {
            Form::Deep(properties) => self.deep_object(request, properties)?.into_iter().collect(),
            Form::Json if texts.len() > 1 => return Err("given more than once".to_owned()),
            Form::Json => {
                let read = |text: &String| decode::json(text.as_bytes()).map_err(|error| format!("no JSON: {error}"));
                texts.iter().map(read).collect::<Result<Vec<_>, _>>()?
            }
            Form::Text(text) => text.readings(&texts, request)?,
        };
        if values.is_empty() && !texts.is_empty() {
            return Err("cannot be read".to_owned());
        }
        let is_empty = matches!(texts.as_slice(), [text] if text.is_empty());
        if values.is_empty() || (is_empty && self.is_required && !self.allows_empty) {
            return if self.is_required { Err("required parameter is missing".to_owned()) } else { Ok(()) };
        }
        if is_empty && self.allows_empty {
            return Ok(());
        }
        let Some(schema) = &self.schema else { return Ok(()) };
        let mut fault = Ok(());
        for value in &values {
            match schema.check(value) {
                Ok(()) => return Ok(()),
                Err(why) => fault = fault.and(Err(why)),
            }
        }
        fault
    }

    fn texts(&self, request: &Request, captured: &Captured<'_>) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.place {
            Place::Query => {
                let own = request.arguments().filter(|(name, _)| *name == self.name.as_bytes());
                own.map(|(_, argument)| text(argument.text())).collect()
            }
            Place::Header(name) => request.head.fields.all(request.buffer.bytes(), name).map(text).collect(),
            Place::Path => {
                captured.iter().filter(|(name, _)| *name == self.name).map(|(_, value)| text(value)).collect()
            }
        }
    }

    /// The object of arguments such as `name[key]=value` and `name[key][inner]=value`.
    fn deep_object(&self, request: &Request, properties: &BTreeMap<String, Types>) -> Result<Option<Value>, String> {
        let mut object = Map::new();
        for (name, argument) in request.arguments() {
            let Some(keys) = name.strip_prefix(self.name.as_bytes()).filter(|keys| keys.starts_with(b"[")) else {
                continue;
            };
            let keys = String::from_utf8_lossy(keys);
            let keys = keys.strip_prefix('[').and_then(|keys| keys.strip_suffix(']')).ok_or("expected name[key]")?;
            let keys: Vec<_> = keys.split("][").collect();
            let value = String::from_utf8_lossy(argument.text());
            let value = match (keys.as_slice(), keys.first().and_then(|key| properties.get(*key))) {
                ([_], Some(types)) => types.read(&value),
                _ => Value::from(&*value),
            };
            if keys.len() > DEEPEST || keys.contains(&"") {
                return Err("an argument has no key, or too many".to_owned());
            }
            put(&mut object, &keys, value).ok_or("an argument is given more than once")?;
        }
        Ok((!object.is_empty()).then_some(Value::Object(object)))
    }
}

fn put(object: &mut Map<String, Value>, keys: &[&str], value: Value) -> Option<()> {
    match keys {
        [] => None,
        [last] => object.insert((*last).to_owned(), value).is_none().then_some(()),
        [first, rest @ ..] => {
            let inner = object.entry((*first).to_owned()).or_insert_with(|| Value::Object(Map::new()));
            put(inner.as_object_mut()?, rest, value)
        }
    }
}

impl Form {
    fn read<'d>(source: Source<'d>, place: &Place, written: &Value, schema: &'d Value) -> Result<Self, String> {
        let in_query = matches!(place, Place::Query);
        let style = written["style"].as_str().unwrap_or(if in_query { "form" } else { "simple" });
        let separator = match (style, in_query) {
            ("simple", false) | ("form", true) => b',',
            ("spaceDelimited", true) => b' ',
            ("pipeDelimited", true) => b'|',
            ("deepObject", true) => return Ok(Self::Deep(source.properties(schema))),
            _ => return Err(format!("the style {style} is not supported here")),
        };
        Ok(Self::Text(Text {
            separator,
            in_query,
            is_exploded: written["explode"].as_bool().unwrap_or(style == "form"),
            types: source.types(schema),
            items: source.items(schema),
            properties: source.properties(schema),
        }))
    }
}

impl Text {
    /// Values that the texts may be; none where the parameter is not there.
    fn readings(&self, texts: &[String], request: &Request) -> Result<Vec<Value>, String> {
        let mut readings = Vec::new();
        if texts.is_empty() {
            if self.types.has_objects && self.in_query && self.is_exploded {
                readings.extend(self.own_arguments(request)?);
            }
            return Ok(readings);
        }
        let split = || texts.iter().flat_map(|text| text.split(char::from(self.separator)).map(str::trim));
        if self.types.has_scalars() {
            match texts {
                [one] => readings.extend(self.types.readings(one)),
                _ if !self.types.has_lists => return Err("given more than once".to_owned()),
                _ => {}
            }
        }
        if self.types.has_lists {
            let read = |text: &str| self.items.read(text);
            readings.push(match self.in_query && self.is_exploded {
                true => texts.iter().map(|text| read(text)).collect(),
                false => split().map(read).collect(),
            });
        }
        if self.types.has_objects {
            readings.extend(self.object(&split().collect::<Vec<_>>()));
        }
        Ok(readings)
    }

    /// An object of pairs: `a=1,b=2`, or `a,1,b,2`.
    fn object(&self, parts: &[&str]) -> Option<Value> {
        let pairs: Option<Vec<(&str, &str)>> = match self.is_exploded {
            true => parts.iter().map(|part| part.split_once('=')).collect(),
            false => parts.chunks(2).map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect(),
        };
        let mut object = Map::new();
        for (name, text) in pairs? {
            if object.insert(name.to_owned(), self.property(name, text)).is_some() {
                return None;
            }
        }
        Some(Value::Object(object))
    }

    /// An object whose properties are arguments of the query.
    fn own_arguments(&self, request: &Request) -> Result<Option<Value>, String> {
        let mut object = Map::new();
        for (name, argument) in request.arguments() {
            let (name, text) = (String::from_utf8_lossy(name), String::from_utf8_lossy(argument.text()));
            if !self.properties.contains_key(&*name) {
                continue;
            }
            if object.insert(name.clone().into_owned(), self.property(&name, &text)).is_some() {
                return Err("given more than once".to_owned());
            }
        }
        Ok((!object.is_empty()).then_some(Value::Object(object)))
    }

    fn property(&self, name: &str, text: &str) -> Value {
        self.properties.get(name).map_or_else(|| text.into(), |types| types.read(text))
    }
}
