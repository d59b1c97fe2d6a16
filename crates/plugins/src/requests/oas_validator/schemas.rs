//! Schemas of an OpenAPI document, each made a JSON Schema of its own with all that it refers to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_expr::spend;

use crate::query;
use crate::requests::request_validation::decode;
use crate::requests::request_validation::scalar::Scalar;
use crate::requests::request_validation::schema::Schema;

/// Longest chain of references, and deepest nesting in a search for types.
const MOST_STEPS: usize = 16;

/// Most schemas that one schema takes with it.
const MOST_DEFINITIONS: usize = 1000;

/// Memory that a part of a compiled schema is counted with, in bytes.
const BYTES_OF_PART: u64 = 1024;

/// Version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V30,
    V31,
}

/// The document in which references are looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'d> {
    document: &'d Value,
    version: Version,
    shared: &'d Shared,
}

/// Schemas of the document that are compiled, by the references to them: many operations have the same.
#[derive(Debug, Default)]
pub(super) struct Shared(RefCell<BTreeMap<String, Arc<Schema>>>);

/// Types that a schema allows.
#[derive(Debug, Default)]
pub(super) struct Types {
    scalars: Vec<Scalar>,
    /// Types of the items of a list, of a property.
    items: Vec<Scalar>,
    pub(super) has_lists: bool,
    pub(super) has_objects: bool,
}

impl Types {
    /// Readings of a text, of which a schema may take any.
    pub(super) fn readings(&self, text: &str) -> Vec<Value> {
        let reading = |scalar: &Scalar| match (scalar, text) {
            (Scalar::Boolean, "1") => Some(true.into()),
            (Scalar::Boolean, "0") => Some(false.into()),
            _ => scalar.read(text),
        };
        let mut readings: Vec<_> = self.scalars.iter().filter_map(reading).collect();
        if readings.is_empty() {
            readings.push(text.into());
        }
        readings
    }

    /// The reading of a text within a list or an object.
    pub(super) fn read(&self, text: &str) -> Value {
        if (self.has_lists || self.has_objects)
            && let Ok(value @ (Value::Array(_) | Value::Object(_))) = decode::json(text.as_bytes())
        {
            return value;
        }
        self.readings(text).into_iter().next().unwrap_or_default()
    }

    /// A field of a form, of which a list has one for each item.
    pub(super) fn read_field(&self, field: &Value) -> Value {
        let items = Self { scalars: self.items.clone(), ..Self::default() };
        let item = |text: &Value| text.as_str().map_or_else(|| text.clone(), |text| items.read(text));
        match field {
            Value::Bool(true) => self.read(""),
            Value::Array(fields) => fields.iter().map(item).collect(),
            Value::String(text) => match self.read(text) {
                read if self.has_lists && !read.is_array() => Value::Array(vec![item(field)]),
                read => read,
            },
            other => other.clone(),
        }
    }

    /// True if a single text may be a value.
    pub(super) fn has_scalars(&self) -> bool {
        !self.scalars.is_empty() || !(self.has_lists || self.has_objects)
    }

    fn add(&mut self, name: &str) {
        match name {
            "array" => self.has_lists = true,
            "object" => self.has_objects = true,
            name => {
                let scalar = Scalar::named(name).filter(|scalar| !self.scalars.contains(scalar));
                // A text can be read as anything, so it is the last reading.
                match scalar {
                    Some(Scalar::Text) => self.scalars.push(Scalar::Text),
                    Some(scalar) => self.scalars.insert(0, scalar),
                    None => {}
                }
            }
        }
    }
}

impl<'d> Source<'d> {
    /// The document of a supported version.
    pub(super) fn new(document: &'d Value, shared: &'d Shared) -> Result<Self, String> {
        let version = document["openapi"].as_str().unwrap_or_default();
        let version = match version.get(..4) {
            Some("3.0.") => Version::V30,
            Some("3.1.") => Version::V31,
            _ => return Err("expected a document of OpenAPI 3.0 or 3.1 (openapi: 3.0.3)".to_owned()),
        };
        Ok(Self { document, version, shared })
    }

    /// The part of the document that a value refers to; the value itself where it is no reference.
    pub(super) fn follow(self, value: &'d Value) -> Result<&'d Value, String> {
        let mut value = value;
        for _ in 0..MOST_STEPS {
            match value["$ref"].as_str() {
                Some(reference) => value = self.target(reference)?,
                None => return Ok(value),
            }
        }
        Err("a chain of references is too long".to_owned())
    }

    fn target(self, reference: &str) -> Result<&'d Value, String> {
        let pointer = reference.strip_prefix("#/").ok_or_else(|| {
            format!(
                "the reference {reference} leads out of the document: expected one such as #/components/schemas/NAME"
            )
        })?;
        let mut decoded = vec![b'/'];
        query::decode(pointer.replace('+', "%2B").as_bytes(), &mut decoded);
        let found = std::str::from_utf8(&decoded).ok().and_then(|pointer| self.document.pointer(pointer));
        found.ok_or_else(|| format!("the document has nothing at {reference}"))
    }

    /// Types that a schema allows, in itself and in the schemas that it is composed of.
    pub(super) fn types(self, schema: &'d Value) -> Types {
        let mut types = Types::default();
        self.collect_types(schema, &mut types, MOST_STEPS);
        types
    }

    fn collect_types(self, schema: &'d Value, types: &mut Types, steps: usize) {
        let (Some(steps), Ok(schema)) = (steps.checked_sub(1), self.follow(schema)) else { return };
        match &schema["type"] {
            Value::String(name) => types.add(name),
            Value::Array(names) => names.iter().filter_map(Value::as_str).for_each(|name| types.add(name)),
            _ => {}
        }
        self.parts(schema).for_each(|part| self.collect_types(part, types, steps));
    }

    fn parts(self, schema: &'d Value) -> impl Iterator<Item = &'d Value> {
        ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten().take(MOST_STEPS)
    }

    /// Types of the items of a list.
    pub(super) fn items(self, schema: &'d Value) -> Types {
        self.find(schema, "items", MOST_STEPS).map(|items| self.types(items)).unwrap_or_default()
    }

    /// Types of the properties of an object.
    pub(super) fn properties(self, schema: &'d Value) -> BTreeMap<String, Types> {
        let mut properties = BTreeMap::new();
        self.collect_properties(schema, &mut properties, MOST_STEPS);
        properties
    }

    fn collect_properties(self, schema: &'d Value, found: &mut BTreeMap<String, Types>, steps: usize) {
        let (Some(steps), Ok(schema)) = (steps.checked_sub(1), self.follow(schema)) else { return };
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let types = || Types { items: self.items(property).scalars, ..self.types(property) };
            found.entry(name.clone()).or_insert_with(types);
        }
        self.parts(schema).for_each(|part| self.collect_properties(part, found, steps));
    }

    fn find(self, schema: &'d Value, keyword: &str, steps: usize) -> Option<&'d Value> {
        let (steps, schema) = (steps.checked_sub(1)?, self.follow(schema).ok()?);
        schema.get(keyword).or_else(|| self.parts(schema).find_map(|part| self.find(part, keyword, steps)))
    }

    /// Compiles a schema of the document for requests.
    pub(super) fn compile(self, schema: &'d Value) -> Result<Arc<Schema>, String> {
        let Some(reference) = schema["$ref"].as_str().filter(|_| schema.as_object().is_some_and(|all| all.len() == 1))
        else {
            return self.compile_apart(schema).map(Arc::new);
        };
        if let Some(known) = self.shared.0.borrow().get(reference) {
            return Ok(Arc::clone(known));
        }
        let compiled = Arc::new(self.compile_apart(schema)?);
        self.shared.0.borrow_mut().insert(reference.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }

    fn compile_apart(self, schema: &'d Value) -> Result<Schema, String> {
        let mut closure = Closure { source: self, numbers: BTreeMap::new(), waiting: Vec::new() };
        let (root, mut definitions, mut depths) = (closure.rewrite(schema)?, Map::new(), BTreeMap::new());
        self.depth(schema, &mut depths)?;
        while let Some((number, target)) = closure.waiting.pop() {
            self.depth(target, &mut depths)?;
            if number >= MOST_DEFINITIONS {
                return Err(format!("a schema refers to more than {MOST_DEFINITIONS} others"));
            }
            definitions.insert(number.to_string(), closure.rewrite(target)?);
        }
        let (draft, place) = match self.version {
            Version::V30 => ("http://json-schema.org/draft-04/schema#", "definitions"),
            Version::V31 => ("https://json-schema.org/draft/2020-12/schema", "$defs"),
        };
        let whole = json!({ "$schema": draft, "allOf": [root], place: definitions });
        let Value::Object(whole) = whole else { return Err("a schema is no object".to_owned()) };
        Schema::compile("schema", whole).map_err(|fault| fault.code.to_string())
    }
}

impl<'d> Source<'d> {
    /// Number of references that are followed for one value. A schema that comes to itself in that way has no end.
    fn depth(self, schema: &'d Value, depths: &mut BTreeMap<&'d str, Option<usize>>) -> Result<usize, String> {
        let mut deepest = 0;
        if !schema.is_object() {
            return Ok(deepest);
        }
        if let Some(reference) = schema["$ref"].as_str() {
            deepest = match depths.get(reference) {
                Some(Some(known)) => *known,
                Some(None) => return Err(format!("the schema {reference} is a part of itself")),
                None => {
                    depths.insert(reference, None);
                    let depth = 1 + self.depth(self.target(reference)?, depths)?;
                    depths.insert(reference, Some(depth));
                    depth
                }
            };
        }
        let lists = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|keyword| schema[keyword].as_array()).flatten();
        for part in lists.chain(["not", "if", "then", "else"].map(|keyword| &schema[keyword])) {
            deepest = deepest.max(self.depth(part, depths)?);
        }
        if deepest > MOST_STEPS {
            return Err(format!("more than {MOST_STEPS} references are followed for one value"));
        }
        Ok(deepest)
    }
}

/// A schema on its way to be one of its own.
struct Closure<'d> {
    source: Source<'d>,
    /// Numbers of the schemas that are referred to.
    numbers: BTreeMap<&'d str, usize>,
    waiting: Vec<(usize, &'d Value)>,
}

impl<'d> Closure<'d> {
    fn rewrite(&mut self, schema: &'d Value) -> Result<Value, String> {
        spend(BYTES_OF_PART).map_err(|error| error.to_string())?;
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(_) if self.source.version == Version::V31 => return Ok(schema.clone()),
            _ => return Err("a schema is no object".to_owned()),
        };
        let mut made = Map::new();
        if let Some(Value::String(reference)) = members.get("$ref") {
            let number = self.number(reference)?;
            let place = if self.source.version == Version::V30 { "definitions" } else { "$defs" };
            made.insert("$ref".to_owned(), format!("#/{place}/{number}").into());
            if self.source.version == Version::V30 {
                return Ok(Value::Object(made));
            }
        }
        for (keyword, value) in members {
            if let Some(value) = self.keyword(keyword, value, members)? {
                made.insert(keyword.clone(), value);
            }
        }
        let is_nullable = self.source.version == Version::V30 && members.get("nullable") == Some(&true.into());
        if is_nullable && let Some(kind) = made.get_mut("type").filter(|kind| kind.is_string()) {
            *kind = json!([kind.take(), "null"]);
        }
        Ok(Value::Object(made))
    }

    /// The value of a keyword; `None` for one that asks for nothing, such as a description.
    fn keyword(
        &mut self,
        name: &str,
        value: &'d Value,
        schema: &'d Map<String, Value>,
    ) -> Result<Option<Value>, String> {
        Ok(Some(match name {
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                let parts = value.as_array().ok_or_else(|| format!("{name}: expected a list of schemas"))?;
                parts.iter().map(|part| self.rewrite(part)).collect::<Result<_, _>>()?
            }
            "properties" => self.properties(value)?,
            "patternProperties" | "dependentSchemas" => {
                let members = value.as_object().ok_or_else(|| format!("{name}: expected an object"))?;
                let rewritten = members.iter().map(|(name, schema)| Ok((name.clone(), self.rewrite(schema)?)));
                Value::Object(rewritten.collect::<Result<_, String>>()?)
            }
            "additionalProperties" if value.is_boolean() => value.clone(),
            "items"
            | "additionalProperties"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => self.rewrite(value)?,
            "required" => match value.as_array() {
                // A property that is of responses alone is not required in a request.
                Some(names) => {
                    let is_needed = |name: &&Value| {
                        let property = name.as_str().and_then(|name| schema.get("properties")?.get(name));
                        !property.is_some_and(|property| self.is_read_only(property))
                    };
                    let names: Vec<_> = names.iter().filter(is_needed).cloned().collect();
                    if names.is_empty() {
                        return Ok(None);
                    }
                    Value::Array(names)
                }
                None => value.clone(),
            },
            "type" | "enum" | "const" | "multipleOf" | "maximum" | "exclusiveMaximum" | "minimum"
            | "exclusiveMinimum" | "maxLength" | "minLength" | "pattern" | "maxItems" | "minItems" | "uniqueItems"
            | "maxContains" | "minContains" | "maxProperties" | "minProperties" | "dependentRequired" | "format" => {
                value.clone()
            }
            "$id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$schema" => {
                return Err(format!("{name} in a schema is not supported"));
            }
            _ => return Ok(None),
        }))
    }

    fn properties(&mut self, value: &'d Value) -> Result<Value, String> {
        let members = value.as_object().ok_or("properties: expected an object")?;
        let mut made = Map::new();
        for (name, property) in members {
            let property = match self.is_read_only(property) {
                true => json!({ "not": {} }),
                false => self.rewrite(property).map_err(|fault| format!("{name}: {fault}"))?,
            };
            made.insert(name.clone(), property);
        }
        Ok(Value::Object(made))
    }

    fn is_read_only(&self, property: &'d Value) -> bool {
        let is_marked = |schema: &Value| schema["readOnly"] == true;
        is_marked(property) || self.source.follow(property).is_ok_and(is_marked)
    }

    fn number(&mut self, reference: &'d str) -> Result<usize, String> {
        if let Some(number) = self.numbers.get(reference) {
            return Ok(*number);
        }
        let (number, target) = (self.numbers.len(), self.source.target(reference)?);
        self.numbers.insert(reference, number);
        self.waiting.push((number, target));
        Ok(number)
    }
}
