//! `traffic-label`: marks requests with fields, by conditions and weights.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Vars;
use weir_expr::{Expr, Source};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx, Turns};

use crate::fields::{FieldTemplate, FieldsConf};

/// The definition.
#[derive(Debug)]
pub(crate) struct TrafficLabel;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The first rule that is for a request labels it; without one it stays as it is.
    #[schemars(length(min = 1))]
    rules: Vec<Rule>,
}

/// Labels of some requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// For which requests the rule is: all of this has to hold, as in a route's `vars`. Unset: for all.
    r#match: Option<Vars>,
    /// Actions, each for a share of the requests by its `weight`.
    #[schemars(length(min = 1))]
    actions: Vec<Action>,
}

/// Action for a share of the requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Action {
    /// Fields that are set in the request, in place of those of the same names: texts, in which variables such as
    /// `$remote_addr` are replaced, or numbers. Unset: this share is not labelled.
    #[serde(default)]
    set_headers: FieldsConf,
    /// Share of the requests, in relation to the weights of the other actions.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    weight: u32,
}

fn one() -> u32 {
    1
}

impl Define for TrafficLabel {
    const NAME: &'static str = "traffic-label";
    const PRIORITY: i32 = 967;
    const PHASES: Phases = Phases::ACCESS;
    const TEMPLATES: &'static [&'static str] = &["rules.*.actions.*.set_headers.*"];
    const DOC: &'static str = "\
Sets fields of requests by conditions and weights: `traffic-split`, which runs next, limits and the upstream can tell the \
requests apart by them.

Shares are exact: of 100 requests in a row to actions of weights 95 and 5 the second does its part for five, whichever \
worker serves them.";
    const EXAMPLE: &'static str = "\
rules:
  - match: [[arg_version, ==, '2']]
    actions:
      - set_headers: {X-Version: '2', X-Client: $remote_addr}
  - actions:
      - set_headers: {X-Version: canary}
        weight: 5
      - weight: 95
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut rules = Vec::new();
        for (at, rule) in conf.rules.into_iter().enumerate() {
            let weights: Vec<u32> = rule.actions.iter().map(|action| action.weight).collect();
            let actions = rule.actions.iter().enumerate().map(|(number, action)| {
                action.set_headers.compile(&format!("rules[{at}].actions[{number}].set_headers"), false)
            });
            let actions = cx.ok(actions.collect::<Result<Vec<_>, Invalid>>());
            rules.push(actions.map(|actions| (rule.r#match, actions, weights)));
        }
        let rules = rules.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Compiled::build(move |build| {
            let rules = rules.into_iter().enumerate().map(|(at, rule)| Labelled::new(at, rule, build));
            Ok(Labelling(rules.collect::<Result<_, _>>()?))
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Labelling(Box<[Labelled]>);

/// A rule.
#[derive(Debug)]
struct Labelled {
    matches: Option<Expr>,
    actions: Vec<Vec<FieldTemplate>>,
    turns: Arc<Arc<dyn Turns>>,
}

impl Labelled {
    fn new(
        at: usize,
        (matches, actions, weights): (Option<Vars>, Vec<Vec<FieldTemplate>>, Vec<u32>),
        cx: &BuildCx<'_>,
    ) -> Result<Self, Invalid> {
        weir_expr::spend(cx.upstreams.size_of_turns(&weights))
            .map_err(|error| Invalid::new(format!("rules[{at}].actions"), error.to_string()))?;
        let key = format!("{}/{}/rules[{at}] {weights:?}", cx.place, cx.plugin);
        let turns = cx.states.get_or_create(&key, || cx.upstreams.turns(&weights));
        Ok(Self { matches: matches.map(|vars| vars.expr().clone()), actions, turns })
    }

    fn is_for(&self, source: &dyn Source) -> bool {
        self.matches.as_ref().is_none_or(|conditions| conditions.eval(source))
    }
}

impl Plugin for Labelling {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(rule) = self.0.iter().find(|rule| rule.is_for(cx.source())) else { return Flow::Continue };
        // One action needs no turn.
        let turn = if let [_] = rule.actions.as_slice() { Some(0) } else { rule.turns.next() };
        let Some(fields) = turn.and_then(|turn| rule.actions.get(turn)) else {
            return cx.fail(500, "traffic-label: no action has a weight");
        };
        let mut room = cx.take_scratch();
        for field in fields {
            room.clear();
            field.value.render(cx.source(), &mut room);
            // No value of a field holds a line end (RFC 9110 section 5.5); a decoded path may.
            room.iter_mut().filter(|byte| !weir_wire::is_field_byte(**byte)).for_each(|byte| *byte = b' ');
            cx.request_mut().set_field(&field.name, &room);
        }
        cx.put_scratch(room);
        Flow::Continue
    }
}
