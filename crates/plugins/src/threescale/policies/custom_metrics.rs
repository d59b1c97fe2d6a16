//! `custom_metrics`: usage by what was answered.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, LogCx};

use super::{DraftLink, read};
use crate::threescale::condition::{self, CombineOp, Comparison, combine};
use crate::threescale::parts::Parts;
use crate::threescale::policy::Policy;
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};
use crate::threescale::usage::encode;
use crate::threescale::values::Members;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    rules: Vec<RuleConf>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct RuleConf {
    metric: String,
    #[serde(default = "zero")]
    increment: String,
    #[serde(default)]
    condition: ConditionConf,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ConditionConf {
    combine_op: CombineOp,
    operations: Vec<condition::Operation>,
}

fn zero() -> String {
    "0".to_owned()
}

#[derive(Debug)]
struct Rule {
    metric: Text,
    increment: Text,
    is_any: bool,
    comparisons: Box<[(Text, Comparison)]>,
}

/// The policy.
#[derive(Debug)]
struct Metrics(Box<[Rule]>);

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let compile = |(at, rule): (usize, RuleConf)| {
        let field = format!("{field}.rules[{at}]");
        let operation = |(at, operation): (usize, condition::Operation)| {
            let field = format!("{field}.condition.operations[{at}]");
            let left = Text::compile(&operation.left, operation.left_type, &format!("{field}.left"))?;
            let right = (operation.right.as_str(), operation.right_type);
            Ok((left, Comparison::compile(operation.op, right, &format!("{field}.right"))?))
        };
        Ok(Rule {
            metric: Text::compile(&rule.metric, TextType::Liquid, &format!("{field}.metric"))?,
            increment: Text::compile(&rule.increment, TextType::Liquid, &format!("{field}.increment"))?,
            is_any: rule.condition.combine_op == CombineOp::Or,
            comparisons: rule.condition.operations.into_iter().enumerate().map(operation).collect::<Result<_, _>>()?,
        })
    };
    let rules = cx.ok(conf.rules.into_iter().enumerate().map(compile).collect::<Result<_, Invalid>>())?;
    Some(DraftLink::of(Metrics(rules)))
}

/// The members of templates: those of all policies, and the response.
fn members(around: &Around<'_>) -> Members {
    let mut all = around.members();
    let response = around.view.response();
    let mut resp = Members::default();
    resp.members("headers", Members::of_fields(response.head.fields.iter(response.buffer.bytes())));
    resp.number("status", response.status().into());
    all.members("resp", resp);
    all.number("status", response.status().into());
    let request = around.view.request();
    let mut req = Members::default();
    req.members("headers", Members::of_fields(request.head.fields.iter(request.buffer.bytes())));
    all.members("req", req);
    all
}

impl Policy for Metrics {
    fn has_log(&self) -> bool {
        true
    }

    fn log(&self, parts: &Parts, cx: &LogCx<'_>, state: &State) {
        // A request that nobody has authorised belongs to no application.
        let Some(authoriser) = parts.authoriser.as_ref().filter(|_| state.is_identified) else { return };
        let around = Around { view: cx.view(), state, names: &parts.names };
        let mut usage = Vec::new();
        for rule in &self.0 {
            let holds = |(left, comparison): &(Text, Comparison)| {
                comparison.holds(&left.render_with(|| members(&around)), &around)
            };
            if !combine(rule.is_any, rule.comparisons.iter().map(holds)) {
                continue;
            }
            let metric = rule.metric.render_with(|| members(&around));
            let increment = rule.increment.render_with(|| members(&around)).trim().parse::<u64>().unwrap_or_default();
            if metric.is_empty() || increment == 0 {
                continue;
            }
            if !usage.is_empty() {
                usage.push(b'&');
            }
            encode(metric.as_bytes(), &mut usage);
            usage.push(b'=');
            weir_wire::push_number(&mut usage, increment);
        }
        if !usage.is_empty() {
            authoriser.report_more(state, around.view.unix_ms(), &usage);
        }
    }
}
