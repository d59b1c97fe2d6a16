//! `graphql-proxy-cache`: answers to queries of GraphQL are kept, by what the queries ask for.

use aws_lc_rs::digest;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{Value, Variable};
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Depth, Flow, Invalid, Io, LocalFuture, LogCx, Phases, Plugin, RequestCx,
    ResponseCx, graphql_changes, graphql_depth,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;
use weir_wire::query::{self, Argument};

use super::graphql::{document, invalid, refuse};
use super::proxy_cache::{self, Caching, Metadata, Strategy};
use crate::cache::directives::Directives;
use crate::hex;

/// The definition.
#[derive(Debug)]
pub(crate) struct GraphqlProxyCache;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The place of answers. `memory`: the memory of this process. `disk`: memory as well; answers do not outlive the
    /// process, of which a warning is made.
    cache_strategy: Strategy,
    /// The zone, whose room all places that name it share.
    #[schemars(length(min = 1, max = 100))]
    cache_zone: String,
    /// Seconds for which answers are kept.
    #[schemars(range(min = 1))]
    cache_ttl: u64,
    /// Keeps the answers of consumers apart.
    consumer_isolation: bool,
    /// Keeps answers with `Set-Cookie` as well.
    cache_set_cookie: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            cache_strategy: Strategy::default(),
            cache_zone: "disk_cache_one".to_owned(),
            cache_ttl: 300,
            consumer_isolation: true,
            cache_set_cookie: false,
        }
    }
}

impl Define for GraphqlProxyCache {
    const NAME: &'static str = "graphql-proxy-cache";
    const PRIORITY: i32 = 1009;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "\
Keeps answers with the status 200 to queries of GraphQL, as [proxy-cache](proxy-cache.md) keeps others, and says so in \
`Apisix-Cache-Status`. Queries come by `POST`, as `application/json` with `query` or as `application/graphql`, and by `GET` with the \
argument `query`. Documents with a mutation or a subscription are never answered with what is kept, and pass (`BYPASS`). What \
cannot be read is refused with 400, and another method with 405.

The key of an answer is made of the host, the route, the service, the consumer and the whole body, or the whole query string. Clients are told it \
in `APISIX-Cache-Key`. A request with the method `PURGE` whose field `APISIX-Cache-Key` has the key of an answer makes the cache forget it: \
200, or 404 where there was nothing. (APISIX has an API for that, which is not there.)

A zone holds so many bytes (`plugin_metadata`, as that of `proxy-cache`).";
    const EXAMPLE: &'static str = "\
cache_strategy: memory
cache_zone: memory_cache
cache_ttl: 60
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(|_| ())
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let isolates = conf.consumer_isolation;
        if conf.cache_strategy == Strategy::Redis {
            cx.say([Invalid::new(
                "cache_strategy",
                "expected memory or disk: proxy-cache alone keeps answers in a Redis",
            )]);
            return None;
        }
        let mut of_answers = proxy_cache::Conf::default();
        of_answers.cache_strategy = conf.cache_strategy;
        of_answers.cache_zone = conf.cache_zone;
        of_answers.cache_http_status = vec![200];
        of_answers.cache_ttl = conf.cache_ttl;
        of_answers.consumer_isolation = isolates;
        of_answers.cache_set_cookie = conf.cache_set_cookie;
        let caching = proxy_cache::caching(of_answers, cx)?;
        Some(Compiled::build(move |build| {
            Ok(Queries { caching: caching(build)?, isolates, key: FieldName::constant("APISIX-Cache-Key") })
        }))
    }
}

/// An instance. Reading a query allocates.
#[derive(Debug)]
struct Queries {
    caching: Caching,
    /// True if the consumer is part of the key.
    isolates: bool,
    /// The field with the key.
    key: FieldName,
}

impl Plugin for Queries {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let method = cx.request().method();
        if cx.request().method_bytes() == b"PURGE" {
            return self.purge(cx);
        }
        if !matches!(method, Method::Get | Method::Post) {
            return refuse(cx, 405, "only GET and POST ask for an operation");
        }
        if method == Method::Post && cx.body().is_none() {
            return Flow::AwaitBody;
        }
        match is_read(cx) {
            Ok(true) => {}
            Ok(false) => return self.caching.pass(cx, b"BYPASS"),
            Err(message) => return refuse(cx, 400, &message),
        }
        let key = self.key_of(cx);
        cx.set_response_field(&self.key, |out| out.extend_from_slice(&key));
        self.caching.find(cx, key, &Directives::default(), false)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(self.caching.load_all(cx, Flow::Continue))
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.caching.response(cx)
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        self.caching.body(cx, piece, last)
    }

    fn log(&self, cx: &LogCx<'_>) {
        self.caching.log(cx);
    }
}

impl Queries {
    /// The key of a request's answer, in hexadecimal digits.
    fn key_of(&self, cx: &RequestCx<'_>) -> Vec<u8> {
        let mut parts = Vec::with_capacity(128);
        let caller = self.isolates.then_some(Variable::ConsumerName);
        let variables = [Some(Variable::Host), Some(Variable::RouteId), Some(Variable::ServiceId), caller];
        for variable in variables.into_iter().flatten() {
            if let Some(Value::Bytes(value)) = cx.variable(&variable) {
                parts.extend_from_slice(value);
            }
            // Nothing of these has such a byte.
            parts.push(1);
        }
        let request = cx.request();
        match cx.body().filter(|_| request.method() == Method::Post) {
            Some(body) => {
                parts.extend_from_slice(request.field_str("content-type").unwrap_or_default());
                parts.push(1);
                parts.extend_from_slice(body);
            }
            None => parts.extend_from_slice(request.query().unwrap_or_default()),
        }
        hex::encode(digest::digest(&digest::SHA256, &parts).as_ref()).into_bytes()
    }

    fn purge(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(key) = cx.request().field(&self.key).map(<[u8]>::to_vec) else {
            return refuse(cx, 400, "expected the key of an answer in APISIX-Cache-Key");
        };
        let has_purged = self.caching.purge(&key);
        cx.reply(if has_purged { 200 } else { 404 }).done()
    }
}

/// True for a document of queries alone; the message of a refusal for what cannot be read.
fn is_read(cx: &RequestCx<'_>) -> Result<bool, String> {
    let request = cx.request();
    let text = if request.method() == Method::Get {
        let written = request.query().unwrap_or_default();
        if written.is_empty() {
            return Err(invalid("can't get graphql request body"));
        }
        let mut decoded = Vec::new();
        query::decode(written, &mut decoded);
        match query::find(written, &decoded, b"query") {
            Some(Argument::Value(text)) => text.to_vec().into(),
            _ => return Err("invalid graphql request, args[query] is nil".to_owned()),
        }
    } else {
        document(request.field_str("content-type").unwrap_or_default(), cx.body().unwrap_or_default())?.query
    };
    match graphql_depth(&text, None) {
        Depth::Levels(_) => Ok(!graphql_changes(&text)),
        // The upstream says what is wrong with it.
        Depth::Circle => Ok(false),
        Depth::Unreadable => Err(invalid("failed to parse graphql query")),
        Depth::NoOperation => Err(invalid("empty graphql query")),
    }
}
