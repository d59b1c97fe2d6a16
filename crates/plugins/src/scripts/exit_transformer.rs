//! `exit-transformer`: functions in Lua that change what the gateway itself answers.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_script::{Form, Hook, Script};

use super::invalid;

/// The definition.
#[derive(Debug)]
pub(crate) struct ExitTransformer;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Texts in Lua. Each receives the status, the body (a table where it is JSON) and a table for fields as `...`, and
    /// returns all three.
    #[schemars(length(min = 1))]
    functions: Vec<String>,
}

impl Define for ExitTransformer {
    const NAME: &'static str = "exit-transformer";
    const PRIORITY: i32 = 22950;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "\
Passes what plugins answer, such as a refusal, through functions in Lua: [scripts](../scripts.md) has what they may use. \
Answers of upstreams, and of failures such as 502, stay as they are. A function that fails has the request answered with \
500, where APISIX leaves the answer as it was.";
    const EXAMPLE: &'static str = "\
functions:
  - |
    local code, body, headers = ...
    if code == 401 then
      return 403, {error = body.message}, {[\"X-Changed\"] = \"yes\"}
    end
    return code, body, headers
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let texts = vec![(Hook::HeaderFilter, conf.functions)];
        let script = Script::check(Self::NAME, Form::Answers, texts, String::new());
        let script = cx.ok(script.map_err(|error| invalid("functions", &error)))?;
        Some(Compiled::ready(script))
    }
}
