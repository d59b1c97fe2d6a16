//! `api-breaker`: keeps requests from an upstream that fails.

mod circuit;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::Template;
use weir_plugin::{CompileCx, Compiled, Define, Flow, HookCx, Invalid, LogCx, PerRequest, Phases, Plugin, RequestCx};
use weir_wire::name::Known;

use crate::fields::{AnswerFields, FieldTemplate};
use crate::rejection;
use crate::traffic::key::{KeySource, Which};
use crate::traffic::table::Table;
use circuit::{Circuit, MAX_COUNT, Rule};

/// The definition.
#[derive(Debug)]
pub(crate) struct ApiBreaker;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Status of the answers that are given instead of the upstream's.
    #[schemars(range(min = 200, max = 599))]
    break_response_code: u16,
    /// Their body. Without it, it is `{"error_msg":"…"}` with status and reason phrase.
    break_response_body: Option<String>,
    /// Their fields; variables in the values are replaced. A name may stand more than once; of a field that a message
    /// has once only, such as `Content-Type`, the last counts. Only with `break_response_body`.
    break_response_headers: Option<Vec<BreakField>>,
    /// Most seconds for which the upstream is left alone.
    #[serde(default = "max_breaker_sec")]
    #[schemars(range(min = 3, max = 31_536_000))]
    max_breaker_sec: u32,
    /// Signs that the upstream fails.
    #[serde(default)]
    unhealthy: Unhealthy,
    /// Signs that the upstream works again.
    #[serde(default)]
    healthy: Healthy,
}

/// A field of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BreakField {
    /// Its name.
    #[schemars(length(min = 1))]
    key: String,
    /// Its value, in which variables such as `$remote_addr` are replaced.
    #[schemars(length(min = 1))]
    value: String,
}

/// Signs that the upstream fails.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Unhealthy {
    /// Statuses of failures, 500 to 599.
    #[schemars(length(min = 1), inner(range(min = 500, max = 599)), extend("uniqueItems" = true))]
    http_statuses: Vec<u16>,
    /// The number of failures that opens the circuit.
    #[schemars(range(min = 1, max = MAX_COUNT))]
    failures: u32,
}

/// Signs that the upstream works again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Healthy {
    /// Statuses of successes, 200 to 499.
    #[schemars(length(min = 1), inner(range(min = 200, max = 499)), extend("uniqueItems" = true))]
    http_statuses: Vec<u16>,
    /// The number of successes that closes the circuit, without a failure between them.
    #[schemars(range(min = 1, max = MAX_COUNT))]
    successes: u32,
}

impl Default for Unhealthy {
    fn default() -> Self {
        Self { http_statuses: vec![500], failures: 3 }
    }
}

impl Default for Healthy {
    fn default() -> Self {
        Self { http_statuses: vec![200], successes: 3 }
    }
}

fn max_breaker_sec() -> u32 {
    300
}

impl Define for ApiBreaker {
    const NAME: &'static str = "api-breaker";
    const PRIORITY: i32 = 1005;
    const PHASES: Phases = Phases::ACCESS.and(Phases::LOG);
    const DOC: &'static str = "\
Leaves an upstream alone for a while after it has failed `unhealthy.failures` times: requests are answered with \
`break_response_code` instead. The first time it is for 2 seconds, then for 4, 8 and so on up to `max_breaker_sec`: with \
each further `unhealthy.failures` failures it begins anew. \
`healthy.successes` successes in a row make everything forgotten.

Each host and path of the place where the plugin stands is looked at apart, for all workers together. What counts is the \
status of the last node that was asked, also when the gateway gave it for a node that did not answer (502, 504); answers \
made here say nothing. Statuses in neither list change nothing.

At most `limits.limit_keys` hosts and paths with failures are remembered; those without a failure or a success for \
`max_breaker_sec` seconds make room. When there is none, failures elsewhere are not counted, and requests pass.";
    const EXAMPLE: &'static str = "\
break_response_code: 503
break_response_body: '{\"message\": \"resting\"}'
break_response_headers:
  - {key: Content-Type, value: application/json}
unhealthy:
  http_statuses: [500, 502, 503]
  failures: 3
healthy:
  http_statuses: [200]
  successes: 1
";

    const TEMPLATES: &'static [&'static str] = &["break_response_headers.*.value"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let fields = cx.ok(conf.fields());
        if conf.break_response_headers.is_some() && conf.break_response_body.is_none() {
            cx.warn("break_response_headers", "it has no effect without break_response_body");
        }
        let host_and_path = Template::parse("$host$uri").map_err(|error| Invalid::new("", error.to_string()));
        let key = KeySource::Combination(cx.ok(host_and_path)?);
        let fields = fields?;
        let code = conf.break_response_code;
        Some(Compiled::build(move |build| {
            let state_key = format!("api-breaker {} {} {}", build.place, build.conf.to_json(), build.limit_keys);
            Ok(Breaker {
                fields,
                rule: Rule {
                    failures: conf.unhealthy.failures,
                    successes: conf.healthy.successes,
                    max_open: u64::from(conf.max_breaker_sec) * 1000,
                },
                unhealthy: conf.unhealthy.http_statuses.into(),
                healthy: conf.healthy.http_statuses.into(),
                key,
                circuits: build.states.get_or_create(&state_key, || Table::new(build.limit_keys)),
                asked: PerRequest::new(),
                code,
                has_body: conf.break_response_body.is_some(),
                body: conf.break_response_body.map_or_else(|| rejection::error_msg(code, None), String::into_bytes),
            })
        }))
    }
}

impl Conf {
    fn fields(&self) -> Result<AnswerFields, Invalid> {
        let fields = self.break_response_headers.iter().flatten().enumerate().map(|(at, field)| {
            FieldTemplate::new(&format!("break_response_headers[{at}]"), &field.key, &field.value, false)
        });
        fields.collect()
    }
}

/// An instance.
#[derive(Debug)]
struct Breaker {
    rule: Rule,
    unhealthy: Box<[u16]>,
    healthy: Box<[u16]>,
    key: KeySource,
    /// States of circuits. They outlive a change of the configuration.
    circuits: Arc<Table<Circuit>>,
    /// The circuit that a request asked.
    asked: PerRequest<Which>,
    code: u16,
    has_body: bool,
    body: Vec<u8>,
    fields: AnswerFields,
}

impl Plugin for Breaker {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(which) = self.key.which(0, cx) else { return Flow::Continue };
        let now = cx.now_ms();
        if self.circuits.look(which, |circuit| circuit.is_open(now, &self.rule)) == Some(true) {
            return self.answer(cx);
        }
        // Others may change the request, and with it what its host and path are.
        self.asked.put(cx, which);
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        let (Some(&which), Some(last)) = (self.asked.get(cx), cx.view().tries().last()) else { return };
        let now = cx.view().now() / 1000;
        if self.unhealthy.contains(&last.status) {
            let fail = |circuit: &Circuit| circuit.fail(now, &self.rule);
            // Without room for its key a failure is not counted, as the reference says.
            let _ = self.circuits.ask(which, now, self.rule.max_open, fail);
        } else if self.healthy.contains(&last.status) {
            self.circuits.look(which, |circuit| circuit.succeed(now, &self.rule));
        }
    }
}

impl Breaker {
    fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut values = cx.take_scratch();
        if self.has_body {
            self.fields.render(cx.source(), &mut values);
        }
        let mut answer = cx.reply(self.code);
        if !self.has_body || !self.fields.has(Known::ContentType) {
            answer = answer.field("Content-Type", b"text/plain; charset=utf-8");
        }
        if self.has_body {
            answer = self.fields.add_to(answer, &values);
        }
        let flow = answer.body(&self.body).done();
        cx.put_scratch(values);
        flow
    }
}
