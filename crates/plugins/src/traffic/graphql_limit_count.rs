//! `graphql-limit-count`: as `limit-count`, where an operation of GraphQL counts as deep as it is, or by weights of its fields.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{CostDecorations, Diagnostic, Node};
use weir_plugin::{
    CompileCx, Compiled, Define, Depth, Flow, HookCx, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx, Service,
    ServiceOptions, graphql_depth,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::traffic::graphql::{document, invalid, parser, refuse};
use crate::traffic::graphql_cost::{Costs, Count, LARGEST};
use crate::traffic::graphql_schema::{self, Introspection, Schemas, UpstreamSchema};
use crate::traffic::limit_count::{self, Limiting, Metadata};

/// The definition.
#[derive(Debug)]
pub(crate) struct GraphqlLimitCount;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(crate) struct Conf {
    #[serde(flatten)]
    limit: limit_count::Conf,
    /// The cost of an operation. `depth`: the levels of its selections. `complexity`: all its fields, by the weights of the
    /// service. `node_quantifier`: its fields with a number among their arguments that multiplies, by these weights, as often as
    /// they are asked for.
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
    /// Reads numbers from variables, their defaults in the operation, and defaults of arguments in the schema. Without it they
    /// count as if they were not there, and a client pays less for a number in a variable.
    #[serde(default = "yes")]
    resolve_variables: bool,
    /// The URL that is asked for the schema; the upstream of the request where there is none. The certificate of a server with
    /// `https` is not verified, as that of a node is not.
    #[schemars(regex(pattern = "^https?://"))]
    introspection_endpoint: Option<String>,
    /// Fields of the request for the schema, such as one with a token. The client's are not sent.
    introspection_headers: Option<BTreeMap<String, String>>,
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
    const ENCRYPTED: &'static [&'static str] = &["redis_password", "sentinel_password", "introspection_headers"];
    const DOC: &'static str = "\
Counts requests as [limit-count](limit-count.md) does, with its fields and headers, and an operation of GraphQL as the levels \
of its selections: `{ shop { orders { id } } }` counts as 3. A fragment counts as what is in it, in its place. Of several operations the \
one that `operationName` names counts, or the costliest one. Every answer carries the cost as `X-Graphql-Query-Cost`.

Operations come by POST, as `application/json` with `query`, or as `application/graphql`. What cannot be read, or has fragments that \
name each other in a circle, is refused with 400, and another method with 405.

With `complexity` and `node_quantifier` fields have weights, which stand below a service \
(`/apisix/admin/services/{service_id}/graphql_cost_decorations/{id}`, or in a file as items of `services` with such an id):

```yaml
services:
  - {id: shop, upstream: {nodes: {'127.0.0.1:8080': 1}}}
  - id: shop/graphql_cost_decorations/products
    field_path: Query.products
    mul_arguments: [first]
```

The cost of a field is that of everything selected below it, times `mul_value` and the numbers of `mul_arguments`, and \
`add_value` and the numbers of `add_arguments`; without a weight both values are 1. `complexity` counts all fields, the operation as \
one of them, and `node_quantifier` the own costs of those fields that have one of their `mul_arguments`, as often as the fields above \
ask for them: `{ products(first: 50) { reviews(first: 20) { body } } }` comes to 1 + 50 where `first` multiplies both. A hundredth is added to each cost before it is \
rounded up, so this one is charged as 52.

Weights stand at places of the schema, which the upstream is asked for when the first operation comes (an introspection query by \
POST to the path of the request), and again after ten minutes. Where it tells none, the last one that it told holds; without that \
operations are refused with 400 for ten seconds. Routes without a service, and services without weights, count fields \
alone and ask for nothing. Operations of more than 128 levels, 15,000 words and signs, or 100,000 fields with those of fragments \
are refused with 400.";
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
        let is_depth = conf.cost_strategy == Strategy::Depth;
        for (field, is_there) in [
            ("introspection_endpoint", conf.introspection_endpoint.is_some()),
            ("introspection_headers", conf.introspection_headers.is_some()),
            ("resolve_variables", !conf.resolve_variables),
        ] {
            if is_there && is_depth {
                cx.warn(field, "it has no effect with cost_strategy depth");
            }
        }
        let asked =
            serde_json::to_vec(&(&conf.introspection_endpoint, &conf.introspection_headers)).unwrap_or_default();
        let options = ServiceOptions {
            verify: false,
            keepalive: None,
            timeout: graphql_schema::TIMEOUT,
            ..ServiceOptions::default()
        };
        let endpoint = conf.introspection_endpoint.map(|url| Service::parse("introspection_endpoint", &url, options));
        let endpoint = cx.ok(endpoint.transpose())?;
        let mut headers = Vec::new();
        for (name, value) in conf.introspection_headers.unwrap_or_default() {
            let place = format!("introspection_headers.{name}");
            let Some(field) = FieldName::new(&name).filter(|name| !name.is_framing()) else {
                cx.say([Invalid::new(place, "expected the name of a field that is not one of the connection")]);
                return None;
            };
            if !value.bytes().all(weir_wire::is_field_byte) {
                cx.say([Invalid::new(place, "expected a text without control characters")]);
                return None;
            }
            headers.push((field, value.into_bytes()));
        }
        let shows = conf.limit.shows();
        let (most, factor) = (conf.max_cost, conf.score_factor);
        let (strategy, resolves) = (conf.cost_strategy, conf.resolve_variables);
        let limiter = limit_count::limiter(conf.limit, cx)?;
        Some(Compiled::build(move |build| {
            let count = match strategy {
                Strategy::Depth => None,
                Strategy::Complexity => Some(Count::Fields),
                Strategy::NodeQuantifier => Some(Count::Quantifiers),
            };
            let counting = match count {
                Some(count) => Some(Counting {
                    count,
                    resolves,
                    introspection: Introspection {
                        schemas: build.states.get_or_create("schemas of GraphQL", Schemas::default),
                        endpoint: endpoint.map(|endpoint| endpoint.build(build)).transpose()?,
                        headers: headers.into(),
                        asked,
                    },
                }),
                None => None,
            };
            Ok(Costing {
                limiting: limiter(build)?,
                most: (most > 0.0).then_some(most),
                factor,
                counting,
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
    /// The count of fields by their weights; `None`: depth.
    counting: Option<Counting>,
    /// The field that tells the cost.
    cost: Option<FieldName>,
}

/// The count of fields by their weights.
#[derive(Debug)]
struct Counting {
    count: Count,
    /// True if variables and defaults count.
    resolves: bool,
    introspection: Introspection,
}

impl Counting {
    /// The cost of the operation in a request, or the message of a refusal.
    fn cost(
        &self,
        kind: &[u8],
        body: &[u8],
        weights: &CostDecorations,
        schema: Option<&UpstreamSchema>,
    ) -> Result<f64, String> {
        let asked = document(kind, body)?;
        let query = std::str::from_utf8(&asked.query).unwrap_or_default();
        let document = parser().parse_ast(query, "query").map_err(|_| invalid("failed to parse graphql query"))?;
        let costs = Costs { count: self.count, weights, schema, variables: self.resolves.then_some(&asked.variables) };
        // APISIX adds as much, and so counts 51 as 52.
        Ok(costs.of(&document, asked.operation.as_deref())? + 0.01)
    }
}

/// The depth of the operation in a request, or the message of a refusal.
fn depth(kind: &[u8], body: &[u8]) -> Result<f64, String> {
    let asked = document(kind, body)?;
    match graphql_depth(&asked.query, asked.operation.as_deref().map(str::as_bytes)) {
        // Depths are far below what a float holds exactly.
        Depth::Levels(levels) => Ok(levels as f64),
        Depth::Circle => Err(invalid("fragment spreads must not form cycles")),
        Depth::Unreadable => Err(invalid("failed to parse graphql query")),
        Depth::NoOperation => Err(invalid("empty graphql query")),
    }
}

impl Costing {
    /// The cost of a request, or what comes instead. Of a request whose fields have weights the schema is needed, and without
    /// it the request waits.
    fn cost(&self, cx: &mut RequestCx<'_>, schema: Option<&UpstreamSchema>) -> Result<u64, Flow> {
        if cx.request().method() != Method::Post {
            return Err(refuse(cx, 405, "only POST asks for an operation"));
        }
        let Some(body) = cx.body() else { return Err(Flow::AwaitBody) };
        let kind = cx.request().field_str("content-type").unwrap_or_default();
        let cost = match &self.counting {
            None => depth(kind, body),
            Some(counting) => {
                let weights = cx.view().route().map(|route| &route.decorations);
                let unset = CostDecorations::default();
                let weights = weights.unwrap_or(&unset);
                if schema.is_none() && !weights.is_empty() {
                    return Err(Flow::Suspend);
                }
                counting.cost(kind, body, weights, schema)
            }
        };
        match cost {
            Ok(cost) => Ok((cost * self.factor).ceil().clamp(1.0, LARGEST) as u64),
            Err(message) => Err(refuse(cx, 400, &message)),
        }
    }

    /// Tells the cost of a request and counts it.
    fn charge(&self, cost: u64, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(name) = &self.cost {
            cx.set_response_field(name, |out| weir_wire::push_number(out, cost));
        }
        match self.limiting.charge(cost, cx) {
            Flow::Suspend => Flow::Suspend,
            flow => self.end(cost, flow, cx),
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

    /// The schema that the weights of a request need.
    async fn schema(&self, cx: &mut RequestCx<'_>, io: &dyn Io) -> Result<Option<Arc<UpstreamSchema>>, Flow> {
        let Some(counting) = &self.counting else { return Ok(None) };
        let route = cx.view().route().filter(|route| !route.decorations.is_empty());
        let Some(service) = route.and_then(|route| Some(Arc::clone(&route.service_id.as_ref()?.text))) else {
            return Ok(None);
        };
        match counting.introspection.schema(cx, io, &service).await {
            Some(schema) => Ok(Some(schema)),
            None => Err(refuse(cx, 400, &invalid("failed to introspect the upstream graphql schema"))),
        }
    }
}

impl Plugin for Costing {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match self.cost(cx, None) {
            Ok(cost) => self.charge(cost, cx),
            Err(flow) => flow,
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        self.limiting.wait_limit()
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let schema = match self.schema(cx, io).await {
                Ok(schema) => schema,
                Err(flow) => return flow,
            };
            let cost = match self.cost(cx, schema.as_deref()) {
                Ok(cost) => cost,
                Err(flow) => return flow,
            };
            match self.charge(cost, cx) {
                Flow::Suspend => {
                    let flow = self.limiting.charge_remotely(cost, cx).await;
                    self.end(cost, flow, cx)
                }
                flow => flow,
            }
        })
    }
}
