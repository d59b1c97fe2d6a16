//! `ua-restriction`: by what the client calls itself.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::Listed;
use crate::pattern::Patterns;

/// The definition.
#[derive(Debug)]
pub(crate) struct UaRestriction;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Lets requests without `User-Agent` through.
    bypass_missing: bool,
    /// Regular expressions, one of which has to match somewhere in `User-Agent`. Either this or `denylist`.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    allowlist: Option<Vec<String>>,
    /// Regular expressions, none of which may match. Either this or `allowlist`.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    denylist: Option<Vec<String>>,
    /// The message to a refused client.
    #[schemars(length(min = 1, max = 1024))]
    message: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self { bypass_missing: false, allowlist: None, denylist: None, message: "Not allowed".into() }
    }
}

impl Define for UaRestriction {
    const NAME: &'static str = "ua-restriction";
    const PRIORITY: i32 = 2999;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets clients through, or refuses them with 403, by their `User-Agent`. Of several such fields each has to pass. It keeps \
out who is honest about what it is, and nobody else.

All expressions are tried in one pass, in linear time; look-around and back-references are not supported. Case counts, \
unless an expression begins with `(?i)`.";
    const EXAMPLE: &'static str = "\
denylist:
  - \"(?i)curl\"
  - \"(Twitterspider)/(\\\\d+)\\\\.(\\\\d+)\"
message: no robots, please
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let (name, list) = (FieldName::constant("User-Agent"), cx.ok(conf.list())?);
        Some(Compiled::ready(Restricted { name, list, bypass: conf.bypass_missing, message: conf.message }))
    }
}

impl Conf {
    fn list(&self) -> Result<Listed<Patterns>, Invalid> {
        let (allowed, denied) = (self.allowlist.as_ref(), self.denylist.as_ref());
        Listed::compile(("allowlist", allowed), ("denylist", denied), |path, patterns| {
            Patterns::compile(path, patterns, false)
        })
    }
}

/// An instance.
#[derive(Debug)]
struct Restricted {
    name: FieldName,
    list: Listed<Patterns>,
    bypass: bool,
    message: String,
}

impl Plugin for Restricted {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let request = cx.request();
        let mut agents = request.head.fields.all(request.buffer.bytes(), &self.name).peekable();
        let passes = match agents.peek() {
            None => self.bypass,
            Some(_) => agents.all(|agent| self.list.lets_through(|patterns| patterns.is_match(agent))),
        };
        drop(agents);
        if passes { Flow::Continue } else { cx.refuse(403, &self.message) }
    }
}
