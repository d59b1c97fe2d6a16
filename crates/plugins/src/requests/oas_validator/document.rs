//! A compiled document: operations by method and path.

use std::collections::HashMap;

use serde_json::Value;
use weir_plugin::Request;
use weir_wire::name::FieldName;

use super::Skipped;
use super::body::Body;
use super::parameter::{Parameter, Place};
use super::schemas::{Shared, Source};
use super::template::{Captured, Template, segments};
use crate::requests::request_validation::decode;

/// Methods that a document may describe.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// Most findings about a request.
const MOST_FINDINGS: usize = 16;

/// A document.
#[derive(Debug)]
pub(crate) struct Document {
    /// Paths by their number of segments; those with fixed texts stand first.
    paths: HashMap<usize, Vec<PathItem>>,
    /// True if parameters in cookies, which are not checked, are described.
    pub(super) has_cookies: bool,
    content_type: FieldName,
}

#[derive(Debug)]
struct PathItem {
    template: Template,
    operations: Vec<(String, Operation)>,
}

/// An operation.
#[derive(Debug)]
struct Operation {
    parameters: Vec<Parameter>,
    body: Option<Body>,
}

impl Document {
    /// Reads and compiles a document in JSON.
    ///
    /// # Errors
    /// Fault of the document.
    pub(super) fn compile(text: &[u8]) -> Result<Self, String> {
        let document = decode::json(text).map_err(|error| format!("expected a document in JSON: {error}"))?;
        let shared = Shared::default();
        let source = Source::new(&document, &shared)?;
        let paths = document["paths"].as_object().ok_or("expected paths")?;
        let mut compiled =
            Self { paths: HashMap::new(), has_cookies: false, content_type: FieldName::constant("Content-Type") };
        for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
            compiled.add(source, path, item).map_err(|fault| format!("{path}: {fault}"))?;
        }
        for items in compiled.paths.values_mut() {
            items.sort_by(|one, other| one.template.order(&other.template));
        }
        Ok(compiled)
    }

    fn add<'d>(&mut self, source: Source<'d>, path: &str, item: &'d Value) -> Result<(), String> {
        let item = source.follow(item)?;
        let template = Template::parse(path)?;
        let mut operations = Vec::new();
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let read = self.operation(source, &item["parameters"], operation);
            let read = read.and_then(|operation| match operation.unnamed(&template) {
                Some(name) => Err(format!("the parameter {name} is not in the path")),
                None => Ok(operation),
            });
            operations.push((method.to_ascii_uppercase(), read.map_err(|fault| format!("{method}: {fault}"))?));
        }
        self.paths.entry(template.len()).or_default().push(PathItem { template, operations });
        Ok(())
    }

    fn operation<'d>(&mut self, source: Source<'d>, shared: &'d Value, own: &'d Value) -> Result<Operation, String> {
        let mut parameters: Vec<Parameter> = Vec::new();
        for written in [&own["parameters"], shared].into_iter().filter_map(Value::as_array).flatten() {
            match Parameter::compile(source, written)? {
                // An operation's own stands in the place of the path's.
                Some(parameter) if parameters.iter().any(|other| other.is(&parameter)) => {}
                Some(parameter) => parameters.push(parameter),
                None => self.has_cookies = true,
            }
        }
        let body = own.get("requestBody").map(|body| Body::compile(source, body)).transpose()?;
        Ok(Operation { parameters, body })
    }

    fn find(&self, request: &Request) -> Option<(&Operation, Captured<'_>)> {
        let path = request.encoded_path();
        self.paths.get(&segments(path).count())?.iter().find_map(|item| {
            let (_, operation) =
                item.operations.iter().find(|(method, _)| method.as_bytes() == request.method_bytes())?;
            Some((operation, item.template.captures(path)?))
        })
    }

    /// True if there is an operation for this request.
    pub(crate) fn has(&self, request: &Request) -> bool {
        self.find(request).is_some()
    }

    /// True if the body of this request is looked at.
    pub(crate) fn has_body(&self, request: &Request) -> bool {
        self.find(request).is_some_and(|(operation, _)| operation.body.is_some())
    }

    /// Checks a request.
    ///
    /// # Errors
    /// Findings, a line each.
    pub(crate) fn check(&self, request: &Request, skipped: &Skipped) -> Result<(), String> {
        let Some((operation, captured)) = self.find(request) else {
            let method = String::from_utf8_lossy(request.method_bytes());
            let path: String = String::from_utf8_lossy(request.path()).chars().take(256).collect();
            return Err(format!("no matching operation found for {method} {path}"));
        };
        let is_checked = |parameter: &&Parameter| match parameter.place {
            Place::Path => !skipped.path,
            Place::Query => !skipped.query,
            Place::Header(_) => !skipped.headers,
        };
        let checked = operation.parameters.iter().filter(is_checked);
        let mut findings: Vec<_> =
            checked.filter_map(|parameter| parameter.check(request, &captured).err()).take(MOST_FINDINGS).collect();
        if let Some(body) = operation.body.as_ref().filter(|_| !skipped.body) {
            let types = request.head.fields.all(request.buffer.bytes(), &self.content_type);
            let found = body.check(&types.collect::<Vec<_>>(), request.body().unwrap_or_default());
            findings.extend(found.err().map(|fault| format!("body: {fault}")));
        }
        if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
    }
}

impl Operation {
    /// A parameter of the path that the template does not have.
    fn unnamed(&self, template: &Template) -> Option<String> {
        let of_path = self.parameters.iter().filter(|parameter| matches!(parameter.place, Place::Path));
        of_path.map(|parameter| parameter.name.clone()).find(|name| template.names().all(|own| own != name))
    }
}
