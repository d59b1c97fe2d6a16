//! `graphql`: requests of GraphQL are read and checked by the schema of an API, and by what a key may ask for: the depth of
//! operations and the fields of types. Questions about the schema are answered here; the others go on as they came.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apollo_compiler::ast::OperationType;
use apollo_compiler::collections::HashMap;
use apollo_compiler::executable::{Operation, Selection, SelectionSet};
use apollo_compiler::request::coerce_variable_values;
use apollo_compiler::response::JsonMap;
use apollo_compiler::schema::Implementers;
use apollo_compiler::validation::{DiagnosticList, Valid};
use apollo_compiler::{ExecutableDocument, Name, Schema, introspection};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, PerRequest, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::body;
use super::sessions::{GraphqlRights, Session, TypeFields};
use super::shared::{self, Known};
use crate::traffic::graphql::{DEEPEST, parser};

/// The definition.
#[derive(Debug)]
pub(crate) struct Graphql;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// The schema in GraphQL's own language.
    schema: String,
    /// Refuses questions about the schema.
    disable_introspection: bool,
    /// Fields that requests to the upstream get, unless they have them.
    request_headers: BTreeMap<String, String>,
}

impl Define for Graphql {
    const NAME: &'static str = "graphql";
    const PRIORITY: i32 = 940;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Checks of GraphQL requests.";
    const EXAMPLE: &'static str = "{api_id: a, schema: 'type Query {a: Int}'}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let schema = Schema::parse_and_validate(conf.schema, "schema").map_err(|failed| {
            let first = failed.errors.iter().next().map(|found| found.unstable_to_json_compat());
            let place = first.as_ref().and_then(|found| found.locations.first());
            let place = place.map_or(String::new(), |at| format!(" (line {}, column {})", at.line, at.column));
            let reason = first.map_or_else(String::new, |found| found.message);
            Invalid::new("schema", format!("expected a schema of GraphQL: {reason}{place}"))
        });
        let schema = cx.ok(schema)?;
        let mut headers = Vec::new();
        for (name, value) in conf.request_headers {
            let place = format!("request_headers.{name}");
            let Some(field) = FieldName::new(&name) else {
                cx.say([Invalid::new(place, "expected the name of a field")]);
                return None;
            };
            if value.contains("$tyk_") || !value.bytes().all(weir_wire::is_field_byte) {
                let text = "expected a text without control characters and without variables such as $tyk_context";
                cx.say([Invalid::new(place, text)]);
                return None;
            }
            headers.push((field, value.into_bytes()));
        }
        Some(Compiled::build(move |build| {
            Ok(Checked {
                place: shared::place(build, &conf.api_id),
                api: conf.api_id,
                implementers: schema.implementers_map(),
                schema,
                hides_schema: conf.disable_introspection,
                headers: headers.into(),
            })
        }))
    }
}

/// An instance.
struct Checked {
    place: Arc<PerRequest<Known>>,
    api: String,
    schema: Valid<Schema>,
    implementers: HashMap<Name, Implementers>,
    hides_schema: bool,
    headers: Box<[(FieldName, Vec<u8>)]>,
}

impl std::fmt::Debug for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checked").field("api", &self.api).finish_non_exhaustive()
    }
}

/// Refusal of a request.
enum Refusal {
    /// Tyk's own: status and text.
    Told(u16, &'static str),
    /// One with another text.
    Said(u16, String),
    /// Errors of GraphQL, with status 400.
    Errors(Value),
    /// The answer, in the place of the upstream's.
    Answer(String),
}

impl Plugin for Checked {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.request().field_str("upgrade").is_some_and(|value| value.eq_ignore_ascii_case(b"websocket")) {
            // Operations within a WebSocket would pass unchecked.
            return body::error(cx, 422, "websockets are not allowed", &[]);
        }
        if cx.request().method_bytes() == b"OPTIONS" {
            return Flow::Continue;
        }
        if cx.body().is_none() {
            return Flow::AwaitBody;
        }
        let session = self.place.get(cx).and_then(|known| known.session.clone());
        match self.check(cx.body().unwrap_or_default(), session.as_deref()) {
            Ok(()) => {
                for (field, value) in &self.headers {
                    if cx.request().field(field).is_none() {
                        cx.request_mut().set_field(field, value);
                    }
                }
                Flow::Continue
            }
            Err(Refusal::Told(status, text)) => body::error(cx, status, text, &[]),
            Err(Refusal::Said(status, text)) => body::error(cx, status, &text, &[]),
            Err(Refusal::Errors(errors)) => {
                let text = json!({ "errors": errors }).to_string();
                cx.reply(400).field("Content-Type", b"application/json").body(text.as_bytes()).done()
            }
            Err(Refusal::Answer(text)) => {
                cx.reply(200).field("Content-Type", b"application/json").body(text.as_bytes()).done()
            }
        }
    }
}

/// A request of GraphQL over HTTP.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    query: Option<String>,
    #[serde(rename = "operationName")]
    operation_name: Option<String>,
    variables: Option<JsonMap>,
}

/// Errors in the form of GraphQL.
fn told(errors: &DiagnosticList) -> Value {
    errors.iter().map(|found| json!(found.unstable_to_json_compat())).collect()
}

impl Checked {
    fn check(&self, body: &[u8], session: Option<&Session>) -> Result<(), Refusal> {
        if body.is_empty() {
            return Err(Refusal::Told(400, "the provided request is empty"));
        }
        let asked: Asked = serde_json::from_slice(body).map_err(|error| Refusal::Said(400, error.to_string()))?;
        let query = asked.query.unwrap_or_default();
        let document = parser().parse_executable(&self.schema, query, "query");
        let document = document.map_err(|failed| Refusal::Errors(told(&failed.errors)))?;
        let document = document.validate(&self.schema).map_err(|failed| Refusal::Errors(told(&failed.errors)))?;
        let name = asked.operation_name.as_deref().filter(|name| !name.is_empty());
        let operation = document.operations.get(name);
        let operation =
            operation.map_err(|error| Refusal::Errors(json!([error.to_graphql_error(&document.sources)])))?;
        let variables = coerce_variable_values(&self.schema, operation, &asked.variables.unwrap_or_default());
        let variables =
            variables.map_err(|error| Refusal::Errors(json!([error.to_graphql_error(&document.sources)])))?;
        let right = session.and_then(|session| session.right(&self.api));
        let rights = right.and_then(|right| right.graphql.as_deref());
        if asks_for_schema(operation, &document) {
            if self.hides_schema || rights.is_some_and(|rights| rights.hides_schema) {
                return Err(Refusal::Told(403, "introspection is disabled"));
            }
            return Err(Refusal::Answer(self.introspect(&document, operation, &variables)?));
        }
        let limit = right.and_then(|right| right.limits.as_ref()).map(|(limits, _)| limits.query_depth);
        let limit = limit.or_else(|| session.map(|session| session.limits.query_depth)).unwrap_or_default();
        if let Some((field, of)) = rights.and_then(|rights| restricted(&operation.selection_set, &document, rights)) {
            let message = format!("field: {field} is restricted on type: {of}");
            return Err(Refusal::Errors(json!([{ "message": message }])));
        }
        match is_too_deep(operation, &document, limit, rights) {
            true => Err(Refusal::Told(403, "depth limit exceeded")),
            false => Ok(()),
        }
    }

    /// The answer to a question about the schema.
    fn introspect(
        &self,
        document: &Valid<ExecutableDocument>,
        operation: &Operation,
        variables: &Valid<JsonMap>,
    ) -> Result<String, Refusal> {
        let refused = |error: apollo_compiler::request::RequestError| {
            Refusal::Errors(json!([error.to_graphql_error(&document.sources)]))
        };
        introspection::check_max_depth(document, operation).map_err(refused)?;
        let answer = introspection::partial_execute(&self.schema, &self.implementers, document, operation, variables);
        let answer = answer.map_err(refused)?;
        serde_json::to_string(&answer).map_err(|error| Refusal::Said(500, error.to_string()))
    }
}

/// True for a query of the schema alone.
fn asks_for_schema(operation: &Operation, document: &ExecutableDocument) -> bool {
    let mut has_schema = false;
    for field in operation.root_fields(document) {
        match field.name.as_str() {
            "__schema" | "__type" => has_schema = true,
            "__typename" => {}
            _ => return false,
        }
    }
    has_schema && operation.operation_type == OperationType::Query
}

/// Levels of fields of a selection, with those of its fragments in their places, as far as [`DEEPEST`] selections lie in each
/// other; what lies deeper is beyond any limit. A document has no circles of fragments.
fn depth(selections: &SelectionSet, document: &ExecutableDocument, known: &mut Depths, level: usize) -> u64 {
    if level > DEEPEST {
        return u64::from(u32::MAX);
    }
    let mut deepest = 0;
    for selection in &selections.selections {
        let deep = match selection {
            Selection::Field(field) => 1 + depth(&field.selection_set, document, known, level + 1),
            Selection::InlineFragment(inline) => depth(&inline.selection_set, document, known, level + 1),
            Selection::FragmentSpread(spread) => match known.get(&spread.fragment_name) {
                Some(deep) => *deep,
                None => {
                    let fragment = document.fragments.get(&spread.fragment_name);
                    let deep =
                        fragment.map_or(0, |fragment| depth(&fragment.selection_set, document, known, level + 1));
                    known.insert(spread.fragment_name.clone(), deep);
                    deep
                }
            },
        };
        deepest = deepest.max(deep);
    }
    deepest
}

/// Levels of fields of fragments by their names.
type Depths = BTreeMap<Name, u64>;

/// True for an operation that is deeper than a key allows: each field at its root has the limit of its own, else all have
/// that of the key. 0 and -1 are none.
fn is_too_deep(
    operation: &Operation,
    document: &ExecutableDocument,
    limit: i64,
    rights: Option<&GraphqlRights>,
) -> bool {
    let mut known = Depths::new();
    let is_beyond = |depth: u64, limit: i64| limit > 0 && depth > limit.unsigned_abs();
    let limits = rights.map(|rights| &*rights.field_depths).unwrap_or_default();
    if limits.is_empty() {
        return limit > 0 && is_beyond(depth(&operation.selection_set, document, &mut known, 0), limit);
    }
    let root = operation.selection_set.ty.as_str();
    operation.root_fields(document).any(|field| {
        let deep = depth(&field.selection_set, document, &mut known, 0);
        match limits.iter().find(|(of, name, _)| **of == *root && **name == *field.name.as_str()) {
            Some((_, _, own)) => is_beyond(deep, *own),
            None => is_beyond(deep + 1, limit),
        }
    })
}

/// The first field that a key may not ask for, and its type.
fn restricted(
    selections: &SelectionSet,
    document: &ExecutableDocument,
    rights: &GraphqlRights,
) -> Option<(String, String)> {
    let mut seen = BTreeSet::new();
    let mut left = vec![selections];
    while let Some(set) = left.pop() {
        for selection in &set.selections {
            match selection {
                Selection::Field(field) => {
                    if !allows(rights, set.ty.as_str(), field.name.as_str()) {
                        return Some((field.name.to_string(), set.ty.to_string()));
                    }
                    left.push(&field.selection_set);
                }
                Selection::InlineFragment(inline) => left.push(&inline.selection_set),
                Selection::FragmentSpread(spread) if seen.insert(&spread.fragment_name) => {
                    left.extend(document.fragments.get(&spread.fragment_name).map(|found| &found.selection_set));
                }
                Selection::FragmentSpread(_) => {}
            }
        }
    }
    None
}

/// True if a key may ask for a field of a type. A list of what is allowed takes precedence over one of what is not.
fn allows(rights: &GraphqlRights, of: &str, field: &str) -> bool {
    let has = |list: &[TypeFields]| {
        let own = list.iter().find(|(name, _)| **name == *of);
        own.is_some_and(|(_, fields)| fields.iter().any(|known| **known == *field || **known == *"*"))
    };
    match (rights.allowed.is_empty(), rights.restricted.is_empty()) {
        (false, _) => field == "__typename" || has(&rights.allowed),
        (true, false) => !has(&rights.restricted),
        (true, true) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = "type Query { people: [Person] me: Person } type Person { name: String! friends: [Person] }";

    fn document(schema: &Valid<Schema>, text: &str) -> Valid<ExecutableDocument> {
        ExecutableDocument::parse_and_validate(schema, text, "query").expect("a document")
    }

    #[test]
    fn depths_are_levels_of_fields() {
        let schema = Schema::parse_and_validate(SCHEMA, "schema").expect("a schema");
        for (text, expected) in [
            ("{ me { name } }", 2),
            ("{ me { ...f } } fragment f on Person { friends { ... on Person { name } } }", 3),
            ("{ __typename me { friends { friends { name } } } people { name } }", 4),
        ] {
            let document = document(&schema, text);
            let operation = document.operations.get(None).expect("an operation");
            assert_eq!(depth(&operation.selection_set, &document, &mut Depths::new(), 0), expected, "{text}");
            let limits = [0, -1, expected as i64, expected as i64 - 1];
            let found = limits.map(|limit| is_too_deep(operation, &document, limit, None));
            assert_eq!(found, [false, false, false, true], "{text}");
        }
        let document = document(&schema, "{ me { friends { name } } people { name } }");
        let operation = document.operations.get(None).expect("an operation");
        let own = |depth: i64| GraphqlRights {
            field_depths: vec![("Query".into(), "me".into(), depth)].into(),
            ..GraphqlRights::default()
        };
        let deep = |limit, depth| is_too_deep(operation, &document, limit, Some(&own(depth)));
        assert_eq!([deep(2, 2), deep(2, 1), deep(1, 2), deep(0, -1)], [false, true, true, false]);
    }

    #[test]
    fn fields_are_allowed_or_restricted() {
        let schema = Schema::parse_and_validate(SCHEMA, "schema").expect("a schema");
        let document = document(&schema, "{ __typename me { ...f } } fragment f on Person { name friends { name } }");
        let operation = document.operations.get(None).expect("an operation");
        let list = |fields: &[&str]| vec![("Person".into(), fields.iter().map(|field| (*field).into()).collect())];
        let found = |rights: GraphqlRights| restricted(&operation.selection_set, &document, &rights);
        let of = |field: &str, of: &str| Some((field.to_owned(), of.to_owned()));
        let restricts = |fields: &[&str]| GraphqlRights { restricted: list(fields).into(), ..GraphqlRights::default() };
        assert_eq!((found(restricts(&["age"])), found(restricts(&["friends"]))), (None, of("friends", "Person")));
        let mut allowed: Vec<TypeFields> = list(&["name", "friends"]);
        assert_eq!(
            found(GraphqlRights { allowed: allowed.clone().into(), ..GraphqlRights::default() }),
            of("me", "Query")
        );
        allowed.push(("Query".into(), vec!["*".into()].into()));
        assert_eq!(found(GraphqlRights { allowed: allowed.into(), ..GraphqlRights::default() }), None);
    }
}
