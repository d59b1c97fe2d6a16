//! `graphql-limit-count`: as `limit-count`, where an operation of GraphQL counts as deep as it is.

use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_plugin::{
    CompileCx, Compiled, Define, Depth, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx, graphql_depth,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::traffic::graphql::{document, invalid, refuse};
use crate::traffic::limit_count::{self, Limiting, Metadata};
use crate::traffic::redis;

/// The definition.
#[derive(Debug)]
pub(crate) struct GraphqlLimitCount;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    #[serde(flatten)]
    limit: limit_count::Conf,
    /// The cost of an operation: only `depth`, the levels of its selections.
    #[serde(default)]
    cost_strategy: Strategy,
    /// Refuses operations that cost more with 403; 0: none. They are counted as well.
    #[serde(default)]
    #[schemars(range(min = 0))]
    max_cost: f64,
    /// Factor of the cost, which is rounded up and at least 1.
    #[serde(default = "one")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    score_factor: f64,
    /// For other strategies than `depth`.
    #[serde(default = "yes", rename = "resolve_variables")]
    _resolve_variables: bool,
    /// For other strategies than `depth`.
    introspection_endpoint: Option<String>,
    /// For other strategies than `depth`.
    introspection_headers: Option<serde_json::Map<String, Value>>,
}

/// The cost of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Strategy {
    #[default]
    Depth,
    Complexity,
    NodeQuantifier,
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

impl Define for GraphqlLimitCount {
    const NAME: &'static str = "graphql-limit-count";
    const PRIORITY: i32 = 1004;
    const PHASES: Phases = Phases::ACCESS;
    const ENCRYPTED: &'static [&'static str] = redis::ENCRYPTED;
    const DOC: &'static str = "\
Counts requests as [limit-count](limit-count.md) does, with its fields and headers, and an operation of GraphQL as the levels \
of its selections: `{ shop { orders { id } } }` counts as 3. A fragment counts as what is in it, in its place. Of several operations the \
one that `operationName` names counts, or the deepest one. Every answer carries the cost as `X-Graphql-Query-Cost`.

Operations come by POST, as `application/json` with `query`, or as `application/graphql`. What cannot be read, or has fragments that \
name each other in a circle, is refused with 400, and another method with 405.";
    const EXAMPLE: &'static str = "\
count: 100
time_window: 60
rejected_code: 429
max_cost: 10
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        limit_count::check_metadata(metadata)
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.cost_strategy != Strategy::Depth {
            cx.say([Invalid::new(
                "cost_strategy",
                "expected depth: costs by the schema of the upstream are not supported",
            )]);
            return None;
        }
        for (field, is_there) in [
            ("introspection_endpoint", conf.introspection_endpoint.is_some()),
            ("introspection_headers", conf.introspection_headers.is_some()),
        ] {
            if is_there {
                cx.warn(field, "it has no effect with cost_strategy depth");
            }
        }
        let shows = conf.limit.shows();
        let (most, factor) = (conf.max_cost, conf.score_factor);
        let limiter = limit_count::limiter(conf.limit, cx)?;
        Some(Compiled::build(move |build| {
            Ok(Costing {
                limiting: limiter(build)?,
                most: (most > 0.0).then_some(most),
                factor,
                cost: shows.then(|| FieldName::constant("X-Graphql-Query-Cost")),
            })
        }))
    }
}

/// An instance. Reading an operation allocates.
#[derive(Debug)]
struct Costing {
    limiting: Limiting,
    most: Option<f64>,
    factor: f64,
    /// The field that tells the cost.
    cost: Option<FieldName>,
}

/// The depth of the operation in a request, or the message of a refusal.
fn depth(kind: &[u8], body: &[u8]) -> Result<u64, String> {
    let (query, name) = document(kind, body)?;
    match graphql_depth(&query, name.as_deref().map(str::as_bytes)) {
        Depth::Levels(levels) => Ok(levels),
        Depth::Circle => Err(invalid("fragment spreads must not form cycles")),
        Depth::Unreadable => Err(invalid("failed to parse graphql query")),
        Depth::NoOperation => Err(invalid("empty graphql query")),
    }
}

impl Costing {
    /// The cost of a request, or what comes instead.
    fn cost(&self, cx: &mut RequestCx<'_>) -> Result<u64, Flow> {
        if cx.request().method() != Method::Post {
            return Err(refuse(cx, 405, "only POST asks for an operation"));
        }
        let Some(body) = cx.body() else { return Err(Flow::AwaitBody) };
        match depth(cx.request().field_str("content-type").unwrap_or_default(), body) {
            // Depths are far below what a float holds exactly.
            Ok(depth) => Ok((depth as f64 * self.factor).ceil().max(1.0) as u64),
            Err(message) => Err(refuse(cx, 400, &message)),
        }
    }

    /// The end of a request of this cost that was counted, or could not be.
    fn end(&self, cost: u64, flow: Flow, cx: &mut RequestCx<'_>) -> Flow {
        let counted = matches!(flow, Flow::Continue | Flow::Respond(_));
        match self.most {
            Some(most) if counted && cost as f64 > most => {
                refuse(cx, 403, &invalid(&format!("query cost {cost} exceeds max_cost {most}")))
            }
            _ => flow,
        }
    }
}

impl Plugin for Costing {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let cost = match self.cost(cx) {
            Ok(cost) => cost,
            Err(flow) => return flow,
        };
        if let Some(name) = &self.cost {
            cx.set_response_field(name, |out| weir_wire::push_number(out, cost));
        }
        match self.limiting.charge(cost, cx) {
            Flow::Suspend => Flow::Suspend,
            flow => self.end(cost, flow, cx),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        self.limiting.wait_limit()
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let cost = match self.cost(cx) {
                Ok(cost) => cost,
                Err(flow) => return flow,
            };
            let flow = self.limiting.charge_remotely(cost, cx).await;
            self.end(cost, flow, cx)
        })
    }
}
