//! `degraphql`: a path of its own for an operation of GraphQL.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{
    CompileCx, Compiled, Define, Failure, Flow, Invalid, Phases, Plugin, RequestCx, Side, graphql_operations,
};
use weir_wire::head::Content;
use weir_wire::method::Method;
use weir_wire::name::FieldName;
use weir_wire::query::Argument;

use crate::auth::openid_connect::client::add_to_form;

/// The definition.
#[derive(Debug)]
pub(crate) struct Degraphql;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The document that the upstream is asked for.
    #[schemars(length(min = 1, max = 1024))]
    query: String,
    /// Names of variables of the operation. Their values are members of the body of a POST, which is an object in JSON, and
    /// query arguments of a GET, where they are texts.
    #[schemars(length(min = 1))]
    variables: Option<Vec<String>>,
    /// The operation, of several in `query`.
    #[schemars(length(min = 1, max = 1024))]
    operation_name: Option<String>,
    /// Most bytes of the body of a POST; a longer one is refused with 413. (APISIX answers 503.)
    #[serde(default = "mebibytes_64")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
}

fn mebibytes_64() -> u64 {
    64 << 20
}

impl Define for Degraphql {
    const NAME: &'static str = "degraphql";
    const PRIORITY: i32 = 509;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Makes a request for an operation of GraphQL out of any GET or POST: the upstream receives `query`, `operationName` and \
`variables` in the place of the client's own arguments or body. Any other method is answered 405, and a POST without an object in \
JSON, where there are `variables`, 400. Variables that the client has not given are left out.

The path of the GraphQL service is that of the route, or comes from [proxy-rewrite](proxy-rewrite.md). Bodies are held whole, up \
to `limits.buffered_body` as well.";
    const EXAMPLE: &'static str = "\
query: |
  query ($name: String!, $first: Int) { orders(name: $name, first: $first) { id } }
variables: [name, first]
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Some(operations) = graphql_operations(conf.query.as_bytes()) else {
            cx.say([Invalid::new("query", "expected a document of GraphQL with an operation")]);
            return None;
        };
        let fault = match conf.operation_name.as_deref() {
            None if operations.len() > 1 => Some("expected the name of one of the operations in query"),
            Some(name) if !operations.iter().any(|known| known == name) => Some("no operation in query has this name"),
            _ => None,
        };
        if let Some(text) = fault {
            cx.say([Invalid::new("operation_name", text)]);
            return None;
        }
        Some(Compiled::ready(Asking {
            operation: conf.operation_name,
            query: conf.query,
            variables: conf.variables,
            most: conf.max_req_body_size,
            content_type: FieldName::constant("Content-Type"),
        }))
    }
}

/// An instance. Reading a body into a tree and writing another one allocates.
#[derive(Debug)]
struct Asking {
    query: String,
    operation: Option<String>,
    variables: Option<Vec<String>>,
    /// Most bytes of a body.
    most: u64,
    content_type: FieldName,
}

impl Plugin for Asking {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.request().method() {
            Method::Get => {
                self.ask_by_arguments(cx);
                Flow::Continue
            }
            Method::Post => self.ask_by_body(cx),
            _ => refuse(405, "degraphql: only GET and POST ask for an operation"),
        }
    }
}

fn refuse(status: u16, reason: &'static str) -> Flow {
    Flow::Abort(Failure { status, side: Side::Client, reason })
}

impl Asking {
    fn ask_by_arguments(&self, cx: &mut RequestCx<'_>) {
        let mut arguments = Vec::new();
        if let Some(names) = &self.variables {
            let given: Map<_, _> = names.iter().filter_map(|name| Some((name.clone(), given(cx, name)?))).collect();
            add_to_form(&mut arguments, "variables", &Value::Object(given).to_string());
        }
        if let Some(operation) = &self.operation {
            add_to_form(&mut arguments, "operationName", operation);
        }
        add_to_form(&mut arguments, "query", &self.query);
        cx.request_mut().set_query(&arguments);
    }

    fn ask_by_body(&self, cx: &mut RequestCx<'_>) -> Flow {
        const TOO_LONG: Flow = Flow::Abort(Failure::BODY_TOO_LARGE);
        if matches!(cx.request().head.content, Content::Length(length) if length > self.most) {
            return TOO_LONG;
        }
        let mut question = Map::new();
        if let Some(names) = &self.variables {
            let Some(body) = cx.body() else { return Flow::AwaitBody };
            // One that came in chunks, and so with no length.
            if body.len() as u64 > self.most {
                return TOO_LONG;
            }
            let Ok(mut given) = serde_json::from_slice::<Map<String, Value>>(body) else {
                return refuse(400, "degraphql: the body is no object in JSON");
            };
            let variables: Map<_, _> = names.iter().filter_map(|name| given.remove_entry(name)).collect();
            question.insert("variables".into(), variables.into());
        }
        if let Some(operation) = &self.operation {
            question.insert("operationName".into(), json!(operation));
        }
        question.insert("query".into(), json!(self.query));
        cx.request_mut().set_field(&self.content_type, b"application/json");
        cx.replace_body(Value::Object(question).to_string().as_bytes());
        Flow::Continue
    }
}

/// The value of a query argument: a text, `true` for one without `=`, and a list for one that is repeated.
fn given(cx: &RequestCx<'_>, name: &str) -> Option<Value> {
    let arguments = cx.request().arguments().filter(|(known, _)| *known == name.as_bytes());
    let mut values: Vec<Value> = arguments
        .map(|(_, value)| match value {
            Argument::Flag => Value::Bool(true),
            Argument::Value(text) => String::from_utf8_lossy(text).into(),
        })
        .collect();
    if values.len() > 1 { Some(values.into()) } else { values.pop() }
}
