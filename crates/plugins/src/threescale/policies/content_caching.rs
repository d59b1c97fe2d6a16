//! `content_caching`: answers of the upstream that are kept, by rules for requests.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx};
use weir_wire::name::FieldName;

use super::{DraftLink, read};
use crate::threescale::condition::{self, Condition};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::Around;
use crate::traffic::proxy_cache::Caching;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    rules: Vec<RuleConf>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RuleConf {
    cache: bool,
    header: String,
    condition: condition::Conf,
}

/// A rule: the cache for requests that meet the condition; `None`: nothing is kept for them.
#[derive(Debug)]
struct Rule {
    condition: Condition,
    cache: Option<Caching>,
}

/// The policy.
#[derive(Debug)]
struct ContentCaching {
    number: usize,
    rules: Box<[Rule]>,
}

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let compile = |(at, rule): (usize, RuleConf)| {
        let place = format!("{field}.rules[{at}]");
        let condition = Condition::compile(&rule.condition, &format!("{place}.condition"))?;
        let name = if rule.header.is_empty() { "X-Cache-Status" } else { &rule.header };
        let fault = || Invalid::new(format!("{place}.header"), format!("'{name}' is no name of a header"));
        Ok((condition, rule.cache.then_some(FieldName::new(name).ok_or_else(fault)?)))
    };
    let rules = conf.rules.into_iter().enumerate().map(compile).collect::<Result<Vec<_>, Invalid>>();
    let rules = cx.ok(rules)?;
    Some(DraftLink::built(move |site| {
        let build = |(condition, header): (Condition, Option<FieldName>)| {
            let cache = header.map(|header| Caching::of_service(site.id, header, site.build)).transpose()?;
            Ok(Rule { condition, cache })
        };
        let rules = rules.into_iter().map(build).collect::<Result<_, Invalid>>()?;
        Ok(ContentCaching { number: site.number, rules })
    }))
}

impl Policy for ContentCaching {
    /// The first rule counts whose condition holds; the cache is asked where the request would be sent.
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let around = Around { view: cx.view(), state, names: &parts.names };
        let found = self.rules.iter().position(|rule| rule.condition.holds(&around));
        state.cached_by = found.map(|rule| (self.number, rule));
        Step::Next
    }

    fn cache(&self, rule: usize) -> Option<&Caching> {
        self.rules.get(rule)?.cache.as_ref()
    }

    fn has_cache(&self) -> bool {
        true
    }
}
