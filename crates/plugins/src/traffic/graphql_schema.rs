//! The schema of an upstream that speaks GraphQL, as it tells it: types of fields, and defaults of their arguments.

#![allow(clippy::disallowed_types, reason = "held for one lookup, by requests that would ask the upstream otherwise")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use weir_plugin::{Callout, CalloutError, Io, Keep, Remembered, RequestCx, Service};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

/// Time for an answer about a schema.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Milliseconds for which a schema holds, and for which a failure does.
const TTL_MS: u64 = 600_000;
const FAILED_MS: u64 = 10_000;
/// Schemas that are kept, and their bytes.
const MOST: usize = 1000;
const MOST_BYTES: usize = 64 << 20;

/// The question. Types stand in as many lists and `!` as schemas have in practice.
const QUESTION: &str = "query { __schema { queryType { name } mutationType { name } types { name fields { name \
                        args { name defaultValue } type { ...T } } } } } \
                        fragment T on __Type { name ofType { name ofType { name ofType { name ofType { name ofType { name \
                        ofType { name ofType { name } } } } } } } }";

/// A schema.
#[derive(Debug, Default)]
pub(crate) struct UpstreamSchema {
    /// The type of queries.
    pub(super) query: String,
    /// The type of mutations.
    pub(super) mutation: String,
    /// Fields by their types and names.
    types: HashMap<String, HashMap<String, FieldType>>,
}

/// A field of a type.
#[derive(Debug, Default)]
pub(super) struct FieldType {
    /// Name of its own type, without lists and `!`.
    pub(super) of: Option<String>,
    /// Defaults of its arguments, as they stand in the schema.
    pub(super) defaults: HashMap<String, String>,
}

impl UpstreamSchema {
    /// A field of a type.
    pub(super) fn field(&self, of: &str, name: &str) -> Option<&FieldType> {
        self.types.get(of)?.get(name)
    }

    /// The name of a type that has fields.
    pub(super) fn type_name(&self, name: &str) -> Option<&str> {
        self.types.get_key_value(name).map(|(name, _)| name.as_str())
    }

    /// Reads the answer of an upstream; with the bytes that the schema takes, about.
    fn read(answer: &[u8]) -> Result<(Self, usize), String> {
        let told: Told = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
        let told = told.data.ok_or("the answer has no data")?.schema;
        let name = |named: Option<Named>, other: &str| named.map_or_else(|| other.to_owned(), |named| named.name);
        let mut schema = Self {
            query: name(told.query_type, "Query"),
            mutation: name(told.mutation_type, "Mutation"),
            types: HashMap::new(),
        };
        let mut bytes = 1024;
        for of in told.types {
            let (Some(name), Some(fields)) = (of.name, of.fields) else { continue };
            bytes += name.len() + 128;
            let mut known = HashMap::with_capacity(fields.len());
            for field in fields {
                let defaults = field.args.into_iter().flatten();
                let defaults: HashMap<_, _> = defaults.filter_map(|arg| Some((arg.name, arg.default_value?))).collect();
                bytes += field.name.len()
                    + 192
                    + defaults.iter().map(|(name, text)| name.len() + text.len() + 64).sum::<usize>();
                known.insert(field.name, FieldType { of: field.of.and_then(Wrapped::name), defaults });
            }
            schema.types.insert(name, known);
        }
        Ok((schema, bytes))
    }
}

#[derive(Deserialize)]
struct Told {
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "__schema")]
    schema: ToldSchema,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldSchema {
    query_type: Option<Named>,
    mutation_type: Option<Named>,
    types: Vec<ToldType>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct ToldType {
    name: Option<String>,
    fields: Option<Vec<ToldField>>,
}

#[derive(Deserialize)]
struct ToldField {
    name: String,
    args: Option<Vec<ToldArgument>>,
    #[serde(rename = "type")]
    of: Option<Wrapped>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldArgument {
    name: String,
    default_value: Option<String>,
}

/// A type, or a list of it, or one that is never null.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wrapped {
    name: Option<String>,
    of_type: Option<Box<Self>>,
}

impl Wrapped {
    fn name(self) -> Option<String> {
        match (self.name, self.of_type) {
            (Some(name), _) => Some(name),
            (None, Some(inner)) => inner.name(),
            (None, None) => None,
        }
    }
}

/// Schemas of all services, for all workers.
pub(super) struct Schemas {
    known: Arc<Remembered<Option<Arc<UpstreamSchema>>>>,
    /// Those that were told last, for when an upstream tells none any more.
    last: Mutex<HashMap<Vec<u8>, Arc<UpstreamSchema>>>,
}

impl std::fmt::Debug for Schemas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schemas").finish_non_exhaustive()
    }
}

impl Default for Schemas {
    fn default() -> Self {
        Self { known: Arc::new(Remembered::new(MOST, MOST_BYTES)), last: Mutex::default() }
    }
}

/// The way to ask for schemas.
#[derive(Debug)]
pub(super) struct Introspection {
    pub(super) schemas: Arc<Schemas>,
    /// The place that is asked; `None`: the upstream of the request.
    pub(super) endpoint: Option<Service>,
    pub(super) headers: Box<[(FieldName, Vec<u8>)]>,
    /// Tells schemas that were asked for in different ways apart.
    pub(super) asked: Vec<u8>,
}

impl Introspection {
    /// The schema of the upstream of a service; `None` where it tells none, of which the log says why.
    pub(super) async fn schema(&self, cx: &RequestCx<'_>, io: &dyn Io, service: &str) -> Option<Arc<UpstreamSchema>> {
        let key = [service.as_bytes(), &[0], &self.asked].concat();
        let schemas = &self.schemas;
        let ask = || async {
            match self.ask(cx, io).await {
                Ok((schema, bytes)) => {
                    let schema = Arc::new(schema);
                    let mut last = schemas.last.lock().unwrap_or_else(PoisonError::into_inner);
                    if last.len() >= MOST {
                        last.clear();
                    }
                    last.insert(key.clone(), Arc::clone(&schema));
                    (Some(schema), Keep { ttl_ms: TTL_MS, bytes })
                }
                Err(reason) => {
                    tracing::warn!(service, reason, "the upstream tells no schema of GraphQL");
                    let last = schemas.last.lock().unwrap_or_else(PoisonError::into_inner);
                    (last.get(&key).cloned(), Keep { ttl_ms: FAILED_MS, bytes: 0 })
                }
            }
        };
        Option::clone(&*schemas.known.get(&key, cx.now_ms(), ask).await)
    }

    async fn ask(&self, cx: &RequestCx<'_>, io: &dyn Io) -> Result<(UpstreamSchema, usize), String> {
        let mut callout = match &self.endpoint {
            Some(endpoint) => endpoint.callout(Method::Post),
            None => to_upstream(cx, io).ok_or("there is no upstream")?,
        };
        callout.set_timeout(TIMEOUT);
        callout.set_field(&FieldName::constant("Content-Type"), b"application/json");
        for (name, value) in &self.headers {
            callout.set_field(name, value);
        }
        callout.set_body(serde_json::json!({ "query": QUESTION }).to_string().as_bytes());
        let answer = io.callout(callout).await.map_err(|error: CalloutError| error.reason().to_owned())?;
        match answer.status() {
            200 => UpstreamSchema::read(answer.body()),
            status => Err(format!("it answers with {status}")),
        }
    }
}

/// A request to the upstream of a request, with its path.
fn to_upstream(cx: &RequestCx<'_>, io: &dyn Io) -> Option<Callout> {
    let upstream = io.upstream()?;
    let request = cx.request();
    let mut target = Vec::new();
    request.write_upstream_target(&mut target);
    target.truncate(target.iter().position(|byte| *byte == b'?').unwrap_or(target.len()));
    let host = if request.upstream.host.is_empty() { request.host_port() } else { &request.upstream.host };
    Some(Callout::new(upstream, Method::Post, &target, host))
}
