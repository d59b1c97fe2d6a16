//! `acl`: by labels of who calls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{CompileCx, Compiled, Consumer, Define, Flow, Invalid, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct Acl;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Labels with values, one of which a consumer has to have; nobody else is let through.
    allow_labels: Option<BTreeMap<String, Vec<String>>>,
    /// Labels with values: a consumer that has one of them is refused. They go before `allow_labels`.
    deny_labels: Option<BTreeMap<String, Vec<String>>>,
    /// The status of a refusal.
    #[serde(default = "forbidden")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// Message for a refused consumer; default: `The consumer is forbidden.`
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
}

fn forbidden() -> u16 {
    403
}

impl Define for Acl {
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 2410;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets consumers through, or refuses them, by their `labels`, once an authentication plugin has found out who calls. \
`deny_labels` is looked at first. The value of a label may be several: with commas between them, or a list of texts in \
JSON.

A request without a consumer is answered with 401. There are no users but consumers: what APISIX reads of users that \
`openid-connect` knows (`external_user_label_field` and the fields that begin so) is warned of and has no effect.";
    const EXAMPLE: &'static str = "\
allow_labels:
  team: [gateway, billing]
deny_labels:
  status: [left]
rejected_msg: ask your team lead
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.allow_labels.is_none() && conf.deny_labels.is_none() {
            cx.say([Invalid::new("", "expected allow_labels or deny_labels")]);
        }
        for (name, labels) in [("allow_labels", &conf.allow_labels), ("deny_labels", &conf.deny_labels)] {
            if labels.as_ref().is_some_and(|labels| labels.is_empty() || labels.values().any(Vec::is_empty)) {
                cx.say([Invalid::new(name, "expected one label or more, with one value or more")]);
            }
        }
        Some(Compiled::ready(Checked {
            allowed: conf.allow_labels,
            denied: conf.deny_labels.unwrap_or_default(),
            code: conf.rejected_code,
            message: conf.rejected_msg.unwrap_or_else(|| "The consumer is forbidden.".into()),
        }))
    }
}

type Labels = BTreeMap<String, Vec<String>>;

/// An instance.
#[derive(Debug)]
struct Checked {
    allowed: Option<Labels>,
    denied: Labels,
    code: u16,
    message: String,
}

impl Plugin for Checked {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let tables = cx.tables();
        let Some(consumer) = tables.as_ref().and_then(|tables| cx.consumer_in(tables)) else {
            return cx.refuse(401, "Missing authentication.");
        };
        let passes = !has(&self.denied, consumer) && self.allowed.as_ref().is_none_or(|labels| has(labels, consumer));
        if passes { Flow::Continue } else { cx.refuse(self.code, &self.message) }
    }
}

/// True if a consumer has one of these labels with one of its values.
fn has(labels: &Labels, consumer: &Consumer) -> bool {
    labels.iter().any(|(name, values)| {
        consumer.label(name).is_some_and(|held| is_among(held, |one| values.iter().any(|value| value == one)))
    })
}

/// True if one of the values of a label is the one looked for.
fn is_among(held: &str, is_it: impl Fn(&str) -> bool) -> bool {
    if held.starts_with('[')
        && let Ok(list) = serde_json::from_str::<Vec<Value>>(held)
    {
        return list.iter().filter_map(Value::as_str).any(is_it);
    }
    held.split(',').map(str::trim).any(is_it)
}
