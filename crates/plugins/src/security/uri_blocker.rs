//! `uri-blocker`: by what stands in the request's target.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

use crate::pattern::Patterns;
use crate::rejection;

/// The definition.
#[derive(Debug)]
pub(crate) struct UriBlocker;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Regular expressions; a request whose path and query one of them matches anywhere is refused.
    #[schemars(inner(length(min = 1, max = 4096)), extend("uniqueItems" = true))]
    block_rules: Vec<String>,
    /// Status of a refusal.
    #[serde(default = "default_code")]
    #[schemars(range(min = 200, max = 999))]
    rejected_code: u16,
    /// A refusal's body is `{"error_msg":"…"}` with this text; without it, with status and reason phrase.
    #[serde(default)]
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Upper and lower case are the same.
    #[serde(default)]
    case_insensitive: bool,
}

fn default_code() -> u16 {
    403
}

impl Define for UriBlocker {
    const NAME: &'static str = "uri-blocker";
    const PRIORITY: i32 = 2900;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Refuses requests whose path and query match a regular expression: as the client sent them, and with the path as it goes \
upstream, decoded and normalised, so that a rule for `/admin` cannot be evaded with `/%61dmin` or `/x/../admin`. The query \
is taken as it was sent.

All expressions are tried in one pass, in linear time; look-around and back-references are not supported.";
    const EXAMPLE: &'static str = "\
block_rules:
  - root\\.exe
  - ^/internal/
rejected_code: 404
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let rules = cx.ok(conf.rules());
        if conf.block_rules.is_empty() {
            cx.warn("block_rules", "nothing is blocked: the list is empty");
        }
        Some(Compiled::ready(Blocking {
            rules: rules?,
            status: conf.rejected_code,
            body: rejection::error_msg(conf.rejected_code, conf.rejected_msg.as_deref()),
        }))
    }
}

impl Conf {
    fn rules(&self) -> Result<Patterns, Invalid> {
        Patterns::compile("block_rules", &self.block_rules, self.case_insensitive)
    }
}

/// An instance.
#[derive(Debug)]
struct Blocking {
    rules: Patterns,
    status: u16,
    body: Vec<u8>,
}

impl Plugin for Blocking {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let request = cx.request();
        let (normal, received) = (request.request_uri(), request.real_request_uri());
        let blocked = self.rules.is_match(received) || (normal != received && self.rules.is_match(normal));
        if !blocked {
            return Flow::Continue;
        }
        cx.reply(self.status).field("Content-Type", b"text/plain; charset=utf-8").body(&self.body).done()
    }
}
