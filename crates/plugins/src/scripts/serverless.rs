//! `serverless-pre-function` and `serverless-post-function`: functions in Lua before and after all other plugins.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_script::{Form, Hook, Script};

use super::invalid;

/// The definition of the one before other plugins.
#[derive(Debug)]
pub(crate) struct ServerlessPreFunction;

/// The definition of the one behind other plugins.
#[derive(Debug)]
pub(crate) struct ServerlessPostFunction;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Phase in which the functions run: `rewrite`, `access`, `before_proxy`, `header_filter`, `body_filter` or `log`.
    #[serde(default)]
    phase: Phase,
    /// Texts in Lua, each of which returns a `function(conf, ctx)`. They run in order, until one returns a status or a
    /// body: then that is the answer, in `rewrite` and `access`.
    #[schemars(length(min = 1))]
    functions: Vec<String>,
}

/// A phase.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Phase {
    Rewrite,
    #[default]
    Access,
    BeforeProxy,
    HeaderFilter,
    BodyFilter,
    Log,
}

impl Phase {
    fn hook(self) -> Hook {
        match self {
            Self::Rewrite => Hook::Rewrite,
            Self::Access => Hook::Access,
            Self::BeforeProxy => Hook::BeforeProxy,
            Self::HeaderFilter => Hook::HeaderFilter,
            Self::BodyFilter => Hook::BodyFilter,
            Self::Log => Hook::Log,
        }
    }
}

/// Phases that functions may have.
pub(super) const PHASES: Phases =
    Phases::REWRITE.and(Phases::ACCESS).and(Phases::UPSTREAM).and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);

fn compile(name: &str, conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
    let text = cx.conf().to_json().to_string();
    let texts = vec![(conf.phase.hook(), conf.functions)];
    let script = Script::check(name, Form::Functions, texts, text);
    let script = cx.ok(script.map_err(|error| invalid("functions", &error)))?;
    Some(Compiled::build(move |build| script.build(build)))
}

impl Define for ServerlessPreFunction {
    const NAME: &'static str = "serverless-pre-function";
    const PRIORITY: i32 = 10000;
    const PHASES: Phases = PHASES;
    const DOC: &'static str = "\
Runs functions in Lua before most other plugins: [scripts](../scripts.md) has what they may use, and their limits. A text \
that does not compile, or returns no function, refuses the configuration; a function that fails at run time, or takes more \
than its budget, has its request answered with 500.";
    const EXAMPLE: &'static str = "\
phase: rewrite
functions:
  - |
    return function(conf, ctx)
      local core = require(\"apisix.core\")
      if not core.request.header(ctx, \"x-team\") then
        return 403, {message = \"which team?\"}
      end
      core.request.set_header(ctx, \"X-Checked\", \"yes\")
    end
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        compile(Self::NAME, conf, cx)
    }
}

impl Define for ServerlessPostFunction {
    const NAME: &'static str = "serverless-post-function";
    const PRIORITY: i32 = -2000;
    const PHASES: Phases = PHASES;
    const DOC: &'static str = "\
Runs functions in Lua behind most other plugins: as [serverless-pre-function](serverless-pre-function.md), with another \
priority.";
    const EXAMPLE: &'static str = "\
phase: header_filter
functions:
  - |
    return function(conf, ctx)
      ngx.header[\"X-Route\"] = ctx.var.route_id
    end
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        compile(Self::NAME, conf, cx)
    }
}
