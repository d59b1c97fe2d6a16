//! `fault-injection`: answers that fail and answers that are late, to see how clients bear them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Vars;
use weir_expr::{Expr, Source, Template};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin, RequestCx};
use weir_wire::name::Known;

use crate::fields::{AnswerFields, FieldsConf};
use crate::rejection;

/// The definition.
#[derive(Debug)]
pub(crate) struct FaultInjection;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Answers here instead of the upstream. One of this and `delay` has to be there.
    abort: Option<AbortConf>,
    /// Lets requests wait, before `abort` is looked at.
    delay: Option<DelayConf>,
}

/// Answers here instead of the upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AbortConf {
    /// Status of the answer.
    #[schemars(range(min = 200, max = 999))]
    http_status: u16,
    /// Its body, in which variables such as `$remote_addr` are replaced. Without it an answer of 400 and above has
    /// status and reason phrase in it, another is empty.
    body: Option<String>,
    /// Its fields; variables in the values are replaced.
    headers: Option<FieldsConf>,
    /// The share of requests that are answered so, in percent; without it all are.
    #[schemars(range(max = 100))]
    percentage: Option<u8>,
    /// Lists of conditions; only requests for which one of the lists holds are answered so.
    #[schemars(length(max = 20))]
    vars: Option<Vec<Vars>>,
}

/// Lets requests wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayConf {
    /// Seconds, with decimals.
    #[schemars(range(min = 0, max = 86400))]
    duration: f64,
    /// The share of requests that wait, in percent; without it all do.
    #[schemars(range(max = 100))]
    percentage: Option<u8>,
    /// Lists of conditions; only requests for which one of the lists holds wait.
    #[schemars(length(max = 20))]
    vars: Option<Vec<Vars>>,
}

impl Define for FaultInjection {
    const NAME: &'static str = "fault-injection";
    const PRIORITY: i32 = 11000;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a share of the requests fail or wait, before other plugins see them: to find out whether clients bear it. `vars` and \
`percentage` choose the requests, for `delay` and `abort` apart; a request that both choose waits and then fails.

A delay holds no worker up.";
    const EXAMPLE: &'static str = "\
abort:
  http_status: 503
  body: '{\"message\": \"injected for $remote_addr\"}'
  headers:
    Content-Type: application/json
  percentage: 10
delay:
  duration: 0.2
  vars:
    - [[http_x_slow, ==, yes]]
";

    const TEMPLATES: &'static [&'static str] = &["abort.body", "abort.headers.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(cx.ok(conf.faults())?))
    }
}

impl Conf {
    fn faults(&self) -> Result<Faults, Invalid> {
        if self.abort.is_none() && self.delay.is_none() {
            return Err(Invalid::new("", "nothing is injected: expected abort or delay"));
        }
        let delay = self.delay.as_ref().map(DelayConf::compile).transpose()?;
        Ok(Faults {
            abort: self.abort.as_ref().map(AbortConf::compile).transpose()?,
            delay: delay.filter(|(_, duration)| !duration.is_zero()),
        })
    }
}

impl DelayConf {
    fn compile(&self) -> Result<(Chosen, Duration), Invalid> {
        let duration = Duration::try_from_secs_f64(self.duration);
        let duration = duration.map_err(|error| Invalid::new("delay.duration", error.to_string()))?;
        Ok((Chosen::new(self.percentage, self.vars.as_deref()), duration))
    }
}

impl AbortConf {
    fn compile(&self) -> Result<Abort, Invalid> {
        let body = match &self.body {
            Some(text) => {
                let parsed = Template::parse_lenient(text, false);
                Body::Template(parsed.map_err(|e| Invalid::new("abort.body", e.to_string()))?)
            }
            None if self.http_status >= 400 => Body::Fixed(rejection::error_msg(self.http_status, None)),
            None => Body::Fixed(Vec::new()),
        };
        Ok(Abort {
            chosen: Chosen::new(self.percentage, self.vars.as_deref()),
            status: self.http_status,
            body,
            fields: AnswerFields::compile(self.headers.as_ref(), "abort.headers")?,
        })
    }
}

/// An instance.
#[derive(Debug)]
struct Faults {
    abort: Option<Abort>,
    delay: Option<(Chosen, Duration)>,
}

#[derive(Debug)]
struct Abort {
    chosen: Chosen,
    status: u16,
    body: Body,
    fields: AnswerFields,
}

#[derive(Debug)]
enum Body {
    Fixed(Vec<u8>),
    Template(Template),
}

/// Conditions for the requests that are meant.
#[derive(Debug)]
struct Chosen {
    percentage: u8,
    /// One of them has to hold; `None`: there are no conditions.
    any: Option<Box<[Expr]>>,
}

impl Chosen {
    fn new(percentage: Option<u8>, vars: Option<&[Vars]>) -> Self {
        let any = vars.map(|lists| lists.iter().map(|vars| vars.expr().clone()).collect());
        Self { percentage: percentage.unwrap_or(100), any }
    }

    fn includes(&self, source: &dyn Source) -> bool {
        self.any.as_ref().is_none_or(|lists| lists.iter().any(|list| list.eval(source)))
            && (self.percentage == 100 || fastrand::u8(0..100) < self.percentage)
    }
}

impl Plugin for Faults {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        match &self.delay {
            Some((chosen, _)) if chosen.includes(cx.source()) => Flow::Suspend,
            _ => self.abort(cx),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        // The configuration says how long it waits.
        Some(Duration::MAX)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            if let Some((_, duration)) = self.delay {
                weir_runtime::sleep(duration).await;
            }
            self.abort(cx)
        })
    }
}

impl Faults {
    fn abort(&self, cx: &mut RequestCx<'_>) -> Flow {
        match &self.abort {
            Some(abort) if abort.chosen.includes(cx.source()) => abort.answer(cx),
            _ => Flow::Continue,
        }
    }
}

impl Abort {
    fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let ends = self.fields.render(cx.source(), &mut room);
        if let Body::Template(template) = &self.body {
            template.render(cx.source(), &mut room);
        }
        let body = match &self.body {
            Body::Fixed(body) => body,
            Body::Template(_) => room.get(ends..).unwrap_or_default(),
        };
        let mut answer = cx.reply(self.status);
        if !body.is_empty() && !self.fields.has(Known::ContentType) {
            answer = answer.field("Content-Type", b"text/plain; charset=utf-8");
        }
        let flow = self.fields.add_to(answer, room.get(..ends).unwrap_or_default()).body(body).done();
        cx.put_scratch(room);
        flow
    }
}
