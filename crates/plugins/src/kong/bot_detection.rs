//! Kong's `bot-detection`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::body;
use crate::pattern::Patterns;

/// The definition.
#[derive(Debug)]
pub(crate) struct BotDetection;

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Regular expressions for values of `User-Agent` that pass whatever else they look like.
    #[serde(alias = "whitelist")]
    allow: Vec<String>,
    /// Regular expressions for further values that are refused.
    #[serde(alias = "blacklist")]
    deny: Vec<String>,
}

/// Names of programs that are refused without configuration: libraries that send requests, and names of
/// crawlers with a version, as Kong refuses them.
const BOTS: &[&str] = &[
    "(?i)(?:bot|spider|scraper|indexer|crawler)[a-z0-9_-]*/v?[0-9]",
    "^(?:Go-http-client|okhttp|axios|reqwest|Apache-HttpClient|Python-urllib)\\b",
    "\\bMSIECrawler\\b",
];

impl Define for BotDetection {
    const NAME: &'static str = "bot-detection";
    const PRIORITY: i32 = 2500;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Refuses programs by what they call themselves.";
    const EXAMPLE: &'static str = "deny: [\"^curl/\"]\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let own: Vec<String> = BOTS.iter().map(|pattern| (*pattern).to_owned()).collect();
        let allowed = cx.ok(Patterns::compile("allow", &conf.allow, false));
        let denied = cx.ok(Patterns::compile("deny", &conf.deny, false));
        let bots = cx.ok(Patterns::compile("", &own, false));
        let name = FieldName::constant("User-Agent");
        Some(Compiled::ready(Guard { name, allowed: allowed?, denied: denied?, bots: bots? }))
    }
}

/// An instance.
#[derive(Debug)]
struct Guard {
    name: FieldName,
    allowed: Patterns,
    denied: Patterns,
    bots: Patterns,
}

impl Plugin for Guard {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let refusal = {
            let request = cx.request();
            let mut agents = request.head.fields.all(request.buffer.bytes(), &self.name);
            match (agents.next(), agents.next()) {
                (None, _) => None,
                (Some(_), Some(_)) => Some((400, "Only one User-Agent header allowed")),
                (Some(agent), None) if self.is_refused(agent) => Some((403, "Forbidden")),
                (Some(_), None) => None,
            }
        };
        match refusal {
            Some((status, message)) => body::error(cx, status, message, &[]),
            None => Flow::Continue,
        }
    }
}

impl Guard {
    fn is_refused(&self, agent: &[u8]) -> bool {
        !self.allowed.is_match(agent) && (self.denied.is_match(agent) || self.bots.is_match(agent))
    }
}
