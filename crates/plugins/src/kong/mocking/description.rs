//! Descriptions of APIs: OpenAPI 3 and Swagger 2, of which the paths, the methods and the examples are read.

use serde_json::Value;
use weir_config::Node;

/// Statuses, media types and examples by path and method.
#[derive(Debug)]
pub(super) struct Description(Vec<Operation>);

#[derive(Debug)]
struct Operation {
    /// Method in capitals.
    method: String,
    /// Segments of the path; `None` takes any.
    segments: Vec<Option<String>>,
    answers: Vec<Answer>,
}

/// An answer, the lowest status first.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    contents: Vec<Content>,
}

/// Examples of one media type.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) kind: String,
    pub(super) examples: Vec<Example>,
}

/// A body.
#[derive(Debug)]
pub(super) struct Example {
    pub(super) name: String,
    pub(super) body: Vec<u8>,
}

impl Description {
    /// Reads a description. `base`: `None` matches its paths alone, and `Some` behind its base path or the one given.
    ///
    /// # Errors
    /// Finding about it.
    pub(super) fn read(text: &str, base: Option<Option<String>>) -> Result<Self, String> {
        let parsed = Node::parse(text).map_err(|error| format!("expected JSON or YAML: {error}"))?;
        let root = parsed.root.to_json();
        if root["openapi"].is_null() && root["swagger"].is_null() {
            return Err("expected a description in OpenAPI 3 or Swagger 2".to_owned());
        }
        let base = base.map(|custom| custom.unwrap_or_else(|| base_path(&root))).unwrap_or_default();
        let paths = root["paths"].as_object().ok_or("expected paths")?;
        let mut operations = Vec::new();
        for (path, item) in paths {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let Some(responses) = operation["responses"].as_object() else { continue };
                let mut answers: Vec<Answer> =
                    responses.iter().filter_map(|(status, response)| Answer::read(&root, status, response)).collect();
                answers.sort_by_key(|answer| answer.status);
                let path = format!("{}{path}", base.trim_end_matches('/'));
                let segments = segments(&path);
                let segments =
                    segments.map(|segment| (!segment.starts_with('{')).then(|| segment.to_owned())).collect();
                operations.push(Operation { method: method.to_ascii_uppercase(), segments, answers });
            }
        }
        if operations.is_empty() {
            return Err("no path has a method with responses".to_owned());
        }
        // Plain segments take precedence over parameters.
        operations.sort_by_key(|operation| operation.segments.iter().filter(|segment| segment.is_none()).count());
        Ok(Self(operations))
    }

    /// The answers to a method at a path.
    pub(super) fn find(&self, method: &[u8], path: &[u8]) -> Option<&[Answer]> {
        let path = std::str::from_utf8(path).ok()?;
        let takes = |operation: &&Operation| {
            let mut given = segments(path);
            let fits = |segment: &Option<String>| {
                given.next().is_some_and(|given| segment.as_ref().is_none_or(|segment| segment == given))
            };
            operation.method.as_bytes() == method && operation.segments.iter().all(fits) && given.next().is_none()
        };
        self.0.iter().find(takes).map(|operation| operation.answers.as_slice())
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The path of the first server, or Swagger's `basePath`.
fn base_path(root: &Value) -> String {
    let server = root["servers"][0]["url"].as_str().unwrap_or_default();
    let path = match server.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
        None => server,
    };
    root["basePath"].as_str().unwrap_or(path).to_owned()
}

/// Target of a reference within the description.
fn resolved<'v>(root: &'v Value, value: &'v Value) -> &'v Value {
    let target = value["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    target.and_then(|path| root.pointer(path)).unwrap_or(value)
}

impl Answer {
    fn read(root: &Value, status: &str, response: &Value) -> Option<Self> {
        let status =
            if status == "default" { 200 } else { status.parse().ok().filter(|status| (200..600).contains(status))? };
        let response = resolved(root, response);
        let content = |(kind, content): (&String, &Value)| {
            let mut examples = Vec::new();
            let named = content["examples"].as_object().into_iter().flatten();
            for (name, example) in named {
                let value = &resolved(root, example)["value"];
                examples.push(Example { name: name.clone(), body: body(value) });
            }
            let single = [&content["example"], &resolved(root, &content["schema"])["example"]];
            if let Some(value) = single.into_iter().find(|value| !value.is_null()).filter(|_| examples.is_empty()) {
                examples.push(Example { name: String::new(), body: body(value) });
            }
            Content { kind: kind.clone(), examples }
        };
        let mut contents: Vec<Content> = response["content"].as_object().into_iter().flatten().map(content).collect();
        // Swagger 2 has bodies by media types.
        for (kind, value) in response["examples"].as_object().into_iter().flatten() {
            let examples = vec![Example { name: String::new(), body: body(value) }];
            contents.push(Content { kind: kind.clone(), examples });
        }
        Some(Self { status, contents })
    }

    /// The content that a client accepts: the first of its list that is there, else the first.
    pub(super) fn content(&self, accept: &[u8]) -> Option<&Content> {
        let accepted = accept.split(|byte| *byte == b',').map(|part| {
            let kind = part.split(|byte| *byte == b';').next().unwrap_or_default();
            weir_wire::trim_ows(kind)
        });
        let mut found = accepted
            .filter_map(|kind| self.contents.iter().find(|content| content.kind.as_bytes().eq_ignore_ascii_case(kind)));
        found.next().or_else(|| self.contents.first())
    }
}

/// A text as it is, everything else as JSON.
fn body(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    }
}
