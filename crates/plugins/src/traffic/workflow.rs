//! `workflow`: by conditions, an answer or a limit.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::{Diagnostic, Node, Scope, Vars};
use weir_expr::Expr;
use weir_plugin::host::{Definition, Prepared};
use weir_plugin::{
    BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, LogCx, PerRequest, Phases, Plugin, RequestCx,
};

use super::limit_conn::LimitConn;
use super::limit_count::LimitCount;

/// The definition.
#[derive(Debug)]
pub(crate) struct Workflow;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The first rule that is for a request decides; without one the request goes on.
    #[schemars(length(min = 1))]
    rules: Vec<Rule>,
}

/// Action for some requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// For which requests the rule is: all of this has to hold, as in a route's `vars`. Unset: for all.
    case: Option<Vars>,
    /// List of one action, which is a list of its name and its configuration. `[return, {code: 403}]`
    /// answers with this status and `{"error_msg":"rejected by workflow"}`; `[limit-count, {…}]` and `[limit-conn, {…}]`
    /// limit with the configuration of that plugin. APISIX takes further actions and ignores them: here they are an error.
    #[schemars(length(min = 1))]
    actions: Vec<Vec<Value>>,
}

/// The configuration of `return`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Return {
    /// The status.
    #[schemars(range(min = 200, max = 599))]
    code: u16,
}

impl Define for Workflow {
    const NAME: &'static str = "workflow";
    const PRIORITY: i32 = 1006;
    const PHASES: Phases = Phases::ACCESS.and(Phases::LOG);
    const ENCRYPTED: &'static [&'static str] =
        &["rules.*.actions.*.*.redis_password", "rules.*.actions.*.*.sentinel_password"];
    const DOC: &'static str = "\
Answers requests, or limits them, by conditions: the first rule whose `case` holds is the only one.

The limits of each rule are counted apart, and have the behaviour of [limit-count](limit-count.md) and \
[limit-conn](limit-conn.md). `plugin_metadata` of `limit-count` does not concern the limits here: their fields have the \
usual names.";
    const EXAMPLE: &'static str = "\
rules:
  - case: [[uri, ==, /internal]]
    actions: [[return, {code: 403}]]
  - case: [[http_x_tier, ==, free]]
    actions: [[limit-count, {count: 10, time_window: 60, rejected_code: 429}]]
  - actions: [[limit-count, {count: 1000, time_window: 60, rejected_code: 429}]]
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let written = cx.conf().get("rules").and_then(Node::as_seq).unwrap_or_default();
        let rules = conf.rules.into_iter().zip(written).enumerate().map(|(at, (rule, node))| {
            if rule.actions.len() > 1 {
                cx.say([Invalid::new(format!("rules[{at}].actions[1]"), "a rule has one action")]);
            }
            let action = node.get("actions").and_then(|actions| actions.as_seq()?.first()?.as_seq());
            let action = Action::compile(action.unwrap_or_default(), &format!("rules[{at}].actions[0]"), cx);
            Some((rule.case.map(|case| case.expr().clone()), action?))
        });
        let rules: Vec<Option<(Option<Expr>, Action)>> = rules.collect();
        let rules = rules.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Compiled::build(move |build| {
            let rules = rules.into_iter().enumerate().map(|(at, (case, action))| {
                let step = action.build(&format!("rules[{at}].actions[0][1]"), build)?;
                Ok(Branch { case, step })
            });
            Ok(Working { rules: rules.collect::<Result<_, Invalid>>()?, chosen: PerRequest::new() })
        }))
    }
}

/// An action of a rule.
enum Action {
    Return(u16),
    Limit { of: &'static dyn Definition, conf: Node, prepared: Prepared },
}

impl Action {
    /// The action that is written as a list of its name and its configuration.
    fn compile(action: &[Node], place: &str, cx: &CompileCx<'_>) -> Option<Self> {
        let [name, conf] = action else {
            let text = "expected a list of the name of an action and its configuration";
            cx.say([Invalid::new(place, text)]);
            return None;
        };
        let of: &'static dyn Definition = match name.as_str() {
            Some("return") => {
                let read = weir_config::schema::read::<Return>(conf);
                return match read {
                    Ok(read) => Some(Self::Return(read.code)),
                    Err(found) => {
                        cx.add(found.into_iter().map(|found| found.under(&format!("{place}[1]"))));
                        None
                    }
                };
            }
            Some(LimitCount::NAME) => &LimitCount,
            Some(LimitConn::NAME) => &LimitConn,
            _ => {
                cx.say([Invalid::new(format!("{place}[0]"), "expected return, limit-count or limit-conn")]);
                return None;
            }
        };
        let (found, prepared) = of.check(Scope::Route, conf);
        cx.add(found.into_iter().map(|found: Diagnostic| found.under(&format!("{place}[1]"))));
        Some(Self::Limit { of, conf: conf.clone(), prepared: prepared? })
    }

    fn build(self, place: &str, cx: &BuildCx<'_>) -> Result<Step, Invalid> {
        match self {
            Self::Return(code) => Ok(Step::Return(code)),
            Self::Limit { of, conf, prepared } => {
                // Counted apart from other rules with the same limit.
                let own = format!("{}/{}/{place}", cx.place, cx.plugin);
                let inner = BuildCx { plugin: of.name(), place: &own, conf: &conf, metadata: None, ..*cx };
                let built = of.build(prepared, &inner);
                built.map(|instance| Step::Limit(instance.plugin)).map_err(|found| {
                    let found = found.under(place);
                    Invalid::coded(found.path, *found.code)
                })
            }
        }
    }
}

/// An instance.
struct Working {
    rules: Box<[Branch]>,
    /// The number of the rule whose limit has a request.
    chosen: PerRequest<usize>,
}

/// A rule.
struct Branch {
    case: Option<Expr>,
    step: Step,
}

/// A compiled action.
enum Step {
    Return(u16),
    Limit(Arc<dyn Plugin>),
}

impl Working {
    fn limits(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.rules.iter().filter_map(|rule| match &rule.step {
            Step::Limit(limit) => Some(limit),
            Step::Return(_) => None,
        })
    }

    fn limit(&self, rule: usize) -> Option<&Arc<dyn Plugin>> {
        match &self.rules.get(rule)?.step {
            Step::Limit(limit) => Some(limit),
            Step::Return(_) => None,
        }
    }
}

impl Plugin for Working {
    fn phases(&self, declared: Phases) -> Phases {
        let logs = self.limits().any(|limit| limit.phases(declared).contains(Phases::LOG));
        if logs { declared } else { declared.without(Phases::LOG) }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let is_for = |rule: &Branch| rule.case.as_ref().is_none_or(|case| case.eval(cx.source()));
        let Some(at) = self.rules.iter().position(is_for) else { return Flow::Continue };
        match self.rules.get(at).map(|rule| &rule.step) {
            Some(Step::Return(code)) => {
                let body = b"{\"error_msg\":\"rejected by workflow\"}\n";
                cx.reply(*code).field("Content-Type", b"text/plain; charset=utf-8").body(body).done()
            }
            Some(Step::Limit(limit)) => {
                let flow = limit.access(cx);
                self.chosen.put(cx, at);
                flow
            }
            None => Flow::Continue,
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        match self.chosen.get(cx).copied().and_then(|rule| self.limit(rule)) {
            Some(limit) => limit.request_io(cx, io),
            None => Box::pin(std::future::ready(cx.fail(500, "workflow: no limit has the request"))),
        }
    }

    fn wait_limit(&self) -> Option<Duration> {
        self.limits().filter_map(|limit| limit.wait_limit()).max()
    }

    fn log(&self, cx: &LogCx<'_>) {
        let limit = self.chosen.get(cx).copied().and_then(|rule| self.limit(rule));
        if let Some(limit) = limit.filter(|limit| limit.phases(Workflow::PHASES).contains(Phases::LOG)) {
            limit.log(cx);
        }
    }
}
