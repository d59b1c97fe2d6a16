//! The OpenAPI document of the whole API, written from the tables that requests are dispatched by and from the schemas
//! that they are checked with.

use serde_json::{Map, Value, json};
use weir_store::Kind;

use crate::operations::{OPERATIONS, Operation, Takes};
use crate::schemas::Schemas;

/// The document, version 3.1.
pub(crate) fn document(schemas: &Schemas) -> Value {
    let mut paths = Map::new();
    for kind in Kind::ranked() {
        resource_paths(*kind, &mut paths);
    }
    for operation in OPERATIONS {
        operation_paths(operation, &mut paths);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Weir Admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Resources of the gateway: below /apisix/admin as in version 3 of APISIX's Admin API, below /weir/v1 what goes beyond it.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:9180" }],
        "security": [{ "field": [] }, { "argument": [] }, { "cookie": [] }],
        "tags": [
            { "name": "resources", "description": "APISIX's resources" },
            { "name": "tools", "description": "schemas, checks and the configuration as a whole" },
            { "name": "weir", "description": "what goes beyond APISIX's API" },
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "field": { "type": "apiKey", "in": "header", "name": "X-API-KEY" },
                "argument": { "type": "apiKey", "in": "query", "name": "api_key" },
                "cookie": { "type": "apiKey", "in": "cookie", "name": "x_api_key" },
                "developer": { "type": "apiKey", "in": "header", "name": "X-Developer-Token" },
            },
            "schemas": components(schemas),
            "responses": {
                "Refused": {
                    "description": "It was refused, and why",
                    "content": { "application/json": { "schema": reference("Error") } },
                },
            },
        },
    })
}

fn value_schema(kind: Kind) -> Value {
    match kind.entry() {
        entry if entry.has_schema => reference(entry.name),
        _ => json!({ "type": "object" }),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The path of a kind, with the parameters in it, and the one more that names a resource.
fn place(kind: Kind) -> (&'static str, Vec<&'static str>, &'static str) {
    let below = kind.entry().path.rsplit_once('/').map_or("", |(below, _)| below);
    let mut parameters: Vec<_> = kind.parameters().collect();
    let id = parameters.pop().unwrap_or("id");
    (below, parameters, id)
}

fn resource_paths(kind: Kind, paths: &mut Map<String, Value>) {
    let (below, mut parameters, id) = place(kind);
    let all = format!("/apisix/admin/{below}");
    let one = format!("{all}/{{{id}}}");
    let has = |method: &str| kind.entry().methods.contains(&method);
    let noun = kind.entry().noun;
    let mut item = Map::new();
    item.insert("parameters".into(), in_path(&parameters));
    let list = resource_operation(kind, "get", "list", &format!("All of one kind: {noun}"), Shown::List);
    item.insert("get".into(), with_arguments(list, LIST_ARGUMENTS));
    if has("POST") {
        let made =
            resource_operation(kind, "post", "create", &format!("Makes a {noun} with an id of its own"), Shown::Made);
        item.insert("post".into(), with_arguments(made, TTL));
    }
    if kind == Kind::Consumers {
        let put = resource_operation(kind, "put", "put", "Makes or replaces a consumer", Shown::Kept);
        item.insert("put".into(), with_arguments(put, TTL));
    }
    paths.insert(all, item.into());
    parameters.push(id);
    let mut item = Map::new();
    item.insert("parameters".into(), in_path(&parameters));
    item.insert("get".into(), resource_operation(kind, "get", "get", &format!("One {noun}"), Shown::One));
    let put = resource_operation(kind, "put", "replace", &format!("Makes or replaces a {noun}"), Shown::Kept);
    item.insert("put".into(), with_arguments(put, TTL));
    let gone = resource_operation(kind, "delete", "delete", &format!("Deletes a {noun}"), Shown::Gone);
    item.insert("delete".into(), with_arguments(gone, FORCE));
    if has("PATCH") {
        let patch = resource_operation(kind, "patch", "patch", &format!("Changes a part of a {noun}"), Shown::One);
        item.insert("patch".into(), with_arguments(patch, TTL));
        let mut within = Map::new();
        parameters.push("field");
        within.insert("parameters".into(), in_path(&parameters));
        let summary = format!("Changes a field of a {noun}; further segments of the path lead deeper");
        let mut patch = resource_operation(kind, "patch", "patch_field", &summary, Shown::One);
        patch["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": {} } } });
        within.insert("patch".into(), with_arguments(patch, TTL));
        paths.insert(format!("{one}/{{field}}"), within.into());
    }
    paths.insert(one, item.into());
}

const LIST_ARGUMENTS: &[(&str, &str)] = &[
    ("page", "the page, from 1; together with page_size"),
    ("page_size", "resources on a page: 10 to 500"),
    ("name", "only those whose name matches this regular expression"),
    ("label", "only those with this label"),
    ("uri", "only those with a path that matches this regular expression"),
    ("filter", "only those with these fields: `service_id=1&upstream_id=2`, URL-encoded"),
];
const TTL: &[(&str, &str)] = &[("ttl", "seconds after which the resource goes away by itself")];
const FORCE: &[(&str, &str)] = &[("force", "true: even if others refer to it")];

/// Answer of an operation on resources.
#[derive(Clone, Copy)]
enum Shown {
    List,
    One,
    /// 200 or 201.
    Kept,
    /// 201.
    Made,
    Gone,
}

fn resource_operation(kind: Kind, method: &str, verb: &str, summary: &str, shown: Shown) -> Value {
    let value = value_schema(kind);
    let one = json!({
        "type": "object",
        "properties": {
            "key": { "type": "string" },
            "value": value,
            "createdIndex": { "type": "integer" },
            "modifiedIndex": { "type": "integer" },
        },
        "required": ["key", "value"],
    });
    let content = |schema: &Value| json!({ "application/json": { "schema": schema } });
    let mut responses = Map::new();
    match shown {
        Shown::List => {
            let list = json!({
                "type": "object",
                "properties": { "total": { "type": "integer" }, "list": { "type": "array", "items": one } },
                "required": ["total", "list"],
            });
            responses.insert("200".into(), json!({ "description": "the resources", "content": content(&list) }));
        }
        Shown::One | Shown::Kept => {
            responses.insert("200".into(), json!({ "description": "the resource", "content": content(&one) }));
        }
        Shown::Made | Shown::Gone => {}
    }
    if matches!(shown, Shown::Kept | Shown::Made) {
        responses.insert("201".into(), json!({ "description": "it was made", "content": content(&one) }));
    }
    if matches!(shown, Shown::Gone) {
        let gone =
            json!({ "type": "object", "properties": { "key": { "type": "string" }, "deleted": { "const": "1" } } });
        responses.insert("200".into(), json!({ "description": "it is gone", "content": content(&gone) }));
    }
    responses.insert("default".into(), json!({ "$ref": "#/components/responses/Refused" }));
    let name = kind.plural();
    let mut operation = json!({
        "operationId": format!("{verb}_{name}"),
        "summary": summary,
        "tags": ["resources"],
        "responses": responses,
    });
    if matches!(method, "put" | "post") {
        operation["requestBody"] = json!({ "required": true, "content": content(&value) });
    }
    if method == "patch" {
        operation["requestBody"] = json!({ "required": true, "content": content(&json!({ "type": "object" })) });
    }
    operation
}

fn in_path(names: &[&str]) -> Value {
    let parameter =
        |name: &&str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.iter().map(parameter).collect()
}

fn with_arguments(mut operation: Value, arguments: &[(&str, &str)]) -> Value {
    let told = |(name, meaning): &(&str, &str)| json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": "string" } });
    if !arguments.is_empty() {
        operation["parameters"] = arguments.iter().map(told).collect();
    }
    operation
}

/// An operation at its path; one on any resource at the paths of all kinds.
fn operation_paths(operation: &Operation, paths: &mut Map<String, Value>) {
    let Some(prefix) = operation.path.strip_suffix("/{key}") else {
        let parameters: Vec<&str> =
            operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        return add(operation, operation.path.to_owned(), &parameters, None, paths);
    };
    for kind in Kind::ranked() {
        let (below, mut parameters, id) = place(*kind);
        parameters.push(id);
        add(operation, format!("{prefix}/{below}/{{{id}}}"), &parameters, Some(*kind), paths);
    }
}

fn add(operation: &Operation, path: String, parameters: &[&str], kind: Option<Kind>, paths: &mut Map<String, Value>) {
    let schema = match operation.body {
        Takes::Nothing => None,
        Takes::Resource => Some(kind.map_or_else(|| json!({ "type": "object" }), value_schema)),
        Takes::Configs => Some(reference("Configuration")),
        Takes::Transaction => Some(reference("Transaction")),
        Takes::Rollback => Some(reference("Rollback")),
        Takes::NewKey => Some(reference("NewKey")),
        Takes::KeyChange => Some(reference("KeyChange")),
        Takes::Login => Some(reference("Login")),
        Takes::OwnRequest => Some(reference("OwnRequest")),
        Takes::NewDeveloper => Some(reference("NewDeveloper")),
        Takes::DeveloperChange => Some(reference("DeveloperChange")),
        Takes::NewApplication => Some(reference("NewApplication")),
        Takes::ApplicationChange => Some(reference("ApplicationChange")),
        Takes::NewOwnApplication => Some(reference("NewOwnApplication")),
        Takes::NewOwnKey => Some(reference("NewOwnKey")),
        Takes::OwnKeyChange => Some(reference("OwnKeyChange")),
    };
    let mut responses = Map::new();
    if !operation.answers.iter().any(|(status, _)| (202..300).contains(status)) {
        responses.insert("200".into(), json!({ "description": "done" }));
    }
    for (status, meaning) in operation.answers {
        let answer = match status {
            400.. => json!({
                "description": meaning,
                "content": { "application/json": { "schema": reference("Error") } },
            }),
            _ => json!({ "description": meaning }),
        };
        responses.insert(status.to_string(), answer);
    }
    responses.insert("default".into(), json!({ "$ref": "#/components/responses/Refused" }));
    let is_own = path.starts_with("/weir/v1/self");
    let method = operation.method.as_str().to_lowercase();
    let words: Vec<&str> = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty()).collect();
    let tag = if path.starts_with("/weir/") { "weir" } else { "tools" };
    let mut told = json!({
        "operationId": format!("{method}_{}", words.join("_")),
        "summary": operation.summary,
        "tags": [tag],
        "responses": responses,
    });
    if is_own {
        told["security"] = json!([{ "developer": [] }]);
    }
    if let Some(schema) = schema {
        told["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    let told = with_arguments(told, operation.query);
    let item = paths.entry(path).or_insert_with(|| json!({ "parameters": in_path(parameters) }));
    item[method] = told;
}

fn components(schemas: &Schemas) -> Map<String, Value> {
    let mut components = Map::new();
    for (name, schema) in schemas.resources() {
        let mut schema = schema.clone();
        if let Value::Object(fields) = &mut schema {
            fields.shift_remove("$schema");
        }
        components.insert(name.to_owned(), schema);
    }
    let diagnostic = json!({
        "type": "object",
        "properties": {
            "severity": { "enum": ["error", "warning"] },
            "path": { "type": "string" },
            "message": { "type": "string" },
            "hint": { "type": "string" },
        },
        "required": ["severity", "path", "message"],
    });
    components.insert(
        "Error".into(),
        json!({
            "type": "object",
            "properties": {
                "error_msg": { "type": "string" },
                "message": { "type": "string" },
                "description": { "type": "string" },
                "diagnostics": { "type": "array", "items": diagnostic },
            },
        }),
    );
    let mut sections = Map::new();
    for kind in Kind::sections() {
        let items = if kind == Kind::Consumers { json!({ "type": "object" }) } else { value_schema(kind) };
        sections.insert(kind.directory().into(), json!({ "type": "array", "items": items }));
        sections.insert(format!("{}_conf_version", kind.directory()), json!({ "type": "integer", "minimum": 0 }));
    }
    components.insert("Configuration".into(), json!({ "type": "object", "properties": sections }));
    components.insert("Transaction".into(), json!({
        "type": "object",
        "properties": {
            "changes": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "key": { "type": "string", "description": "such as routes/1 or consumers/jack/credentials/c1" },
                        "value": { "type": ["object", "null"], "description": "the resource; null deletes it" },
                        "if_match": { "description": "the revision that changed it last, or * where it must be there", "type": ["integer", "string"] },
                        "if_none_match": { "const": "*", "description": "it must not be there" },
                    },
                    "required": ["key", "value"],
                    "additionalProperties": false,
                },
            },
        },
        "required": ["changes"],
        "additionalProperties": false,
    }));
    let plan = json!({
        "type": ["object", "null"],
        "description": "the key's own plans, in the place of its consumer's; null: those of its consumer",
        "properties": {
            "plans": { "type": "array", "minItems": 1, "maxItems": 16, "items": { "type": "string" } },
            "expires": { "type": "integer", "minimum": 0, "description": "seconds since 1970; 0: never" },
            "suspended": { "type": "boolean" },
        },
        "required": ["plans"],
        "additionalProperties": false,
    });
    components.insert(
        "NewKey".into(),
        json!({
            "type": "object",
            "properties": {
                "consumer": { "type": "string" },
                "id": { "type": "string", "description": "one is made unless told" },
                "name": { "type": "string" },
                "desc": { "type": "string" },
                "plan": plan,
            },
            "required": ["consumer"],
            "additionalProperties": false,
        }),
    );
    components.insert(
        "KeyChange".into(),
        json!({
            "type": "object",
            "properties": {
                "plan": plan,
                "renew": { "type": "boolean", "description": "true: the key is replaced by a new one" },
            },
            "additionalProperties": false,
        }),
    );
    components.extend(crate::bodies::body_schemas());
    components.insert(
        "Login".into(),
        json!({
            "type": "object",
            "properties": { "key": { "type": "string", "description": "a key of the Admin API" } },
            "required": ["key"],
        }),
    );
    components.insert(
        "OwnRequest".into(),
        json!({
            "type": "object",
            "properties": {
                "request": { "type": "string", "description": "the method and the URL, or a path: `GET http://example.com/a`" },
                "headers": { "type": "array", "items": { "type": "string" }, "description": "fields, each `NAME: VALUE`" },
                "body": { "type": "string", "description": "the body" },
            },
            "required": ["request"],
        }),
    );
    components.insert(
        "Rollback".into(),
        json!({
            "type": "object",
            "properties": { "revision": { "type": "integer", "description": "the revision to go back to" } },
            "required": ["revision"],
            "additionalProperties": false,
        }),
    );
    components
}
