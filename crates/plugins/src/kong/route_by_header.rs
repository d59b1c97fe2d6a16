//! `route-by-header` of Kong Enterprise: requests with certain headers go to other upstreams.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::{Node, Upstream};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct RouteByHeader;

/// Configuration of Kong Enterprise.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The rules, of which the first that is met counts.
    rules: Vec<RuleConf>,
}

/// A rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleConf {
    /// Headers with the values that a request has to have in all of them.
    condition: BTreeMap<String, String>,
    /// Name of the upstream, or a host.
    #[serde(rename = "upstream_name")]
    #[schemars(length(min = 1))]
    _upstream_name: String,
    /// The upstream, which the front end writes.
    upstream: Option<Value>,
}

impl Define for RouteByHeader {
    const NAME: &'static str = "route-by-header";
    const PRIORITY: i32 = 850;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Sends requests with certain headers to other upstreams.";
    const EXAMPLE: &'static str = "rules: [{condition: {x-stage: next}, upstream_name: next.test}]\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut conditions = Vec::with_capacity(conf.rules.len());
        for (at, rule) in conf.rules.iter().enumerate() {
            if rule.condition.is_empty() {
                cx.say([Invalid::new(format!("rules[{at}].condition"), "expected at least one header")]);
            }
            for (name, value) in &rule.condition {
                let place = format!("rules[{at}].condition.{name}");
                let field = FieldName::new(name).ok_or_else(|| Invalid::new(place, "expected the name of a header"));
                conditions.push((at, cx.ok(field)?, value.as_bytes().to_vec()));
            }
        }
        Some(Compiled::build(move |build| {
            let rule = |(at, rule): (usize, &RuleConf)| {
                let own = conditions.iter().filter(|(rule, ..)| *rule == at);
                let condition = own.map(|(_, field, value)| (field.clone(), value.clone())).collect();
                Ok(Rule { condition, upstream: upstream(at, rule, build)? })
            };
            let rules = conf.rules.iter().enumerate().map(rule);
            Ok(Rules(rules.collect::<Result<_, Invalid>>()?))
        }))
    }
}

fn upstream(at: usize, rule: &RuleConf, build: &BuildCx<'_>) -> Result<u32, Invalid> {
    let place = format!("rules[{at}].upstream_name");
    let fault = || Invalid::new(place.clone(), "expected the name of an upstream, or a host");
    let written = rule.upstream.as_ref();
    let written = written
        .ok_or_else(|| Invalid::new(&place, "needs a service: configure the plugin for a service or a route of one"))?;
    let parsed = Node::parse(&written.to_string()).map_err(|_| fault())?;
    let upstream = Upstream::from_node(&parsed.root).0.ok_or_else(fault)?;
    build.inline_upstream(&place, &upstream)
}

/// An instance.
#[derive(Debug)]
struct Rules(Box<[Rule]>);

#[derive(Debug)]
struct Rule {
    condition: Box<[(FieldName, Vec<u8>)]>,
    upstream: u32,
}

impl Plugin for Rules {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let request = cx.request();
        let is_met =
            |rule: &&Rule| rule.condition.iter().all(|(field, value)| request.field(field) == Some(value.as_slice()));
        if let Some(rule) = self.0.iter().find(is_met) {
            cx.choose_upstream(Some(rule.upstream));
        }
        Flow::Continue
    }
}
