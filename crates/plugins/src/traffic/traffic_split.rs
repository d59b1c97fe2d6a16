//! `traffic-split`: some of the requests go to other upstreams.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_config::{Code, Diagnostic, Id, Node, PassHost, Upstream, Vars};
use weir_expr::{Expr, ExprError, Source};
use weir_plugin::{BuildCx, CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx, Share, Turns};

/// The definition.
#[derive(Debug)]
pub(crate) struct TrafficSplit;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The first rule that is for a request decides; without one the request goes to the route's own upstream.
    rules: Vec<Rule>,
}

/// A rule for some requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Rule {
    /// For which requests the rule is: one of these has to hold. Unset or empty: for all.
    r#match: Option<Vec<Match>>,
    /// The upstreams that share the requests.
    #[schemars(length(min = 1, max = 20))]
    weighted_upstreams: Vec<Weighted>,
}

/// Conditions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Match {
    /// All of them have to hold, as in a route's `vars`.
    vars: Vars,
}

/// An upstream and its weight.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Weighted {
    /// The id of an upstream. Without it and without `upstream` the route's own is meant.
    upstream_id: Option<Id>,
    /// An upstream, written as in a route. Not with `upstream_id`. With `pass_host: node` its nodes see their name
    /// without the port, unless the scheme is `https`, as in APISIX.
    upstream: Option<Map<String, Value>>,
    /// The share of requests, in relation to the weights of the others; 0: none.
    weight: u32,
}

impl Default for Rule {
    fn default() -> Self {
        Self { r#match: None, weighted_upstreams: vec![Weighted::default()] }
    }
}

impl Default for Weighted {
    fn default() -> Self {
        Self { upstream_id: None, upstream: None, weight: 1 }
    }
}

impl Define for TrafficSplit {
    const NAME: &'static str = "traffic-split";
    const PRIORITY: i32 = 966;
    const PHASES: Phases = Phases::ACCESS;
    const STREAMS: bool = true;
    const PRIVATE_KEYS: &'static [&'static str] = &["rules.*.weighted_upstreams.*.upstream.tls.client_key"];
    const DOC: &'static str = "\
Sends shares of the requests, or those that meet conditions, to other upstreams: to try out a version with a few, or to \
move over to it step by step.

Shares are exact: of 100 requests in a row to weights 95 and 5 five go to the second, whichever worker serves them, and \
they are spread evenly. A change of the configuration that leaves a rule's weights alone goes on where it was. A time \
limit of the route goes before the chosen upstream's own, and its `retries`, `pass_host` and all else are the chosen \
upstream's. Tries after a failure stay within it.";
    const EXAMPLE: &'static str = "\
rules:
  - match:
      - vars: [[http_x_version, ==, next]]
    weighted_upstreams:
      - upstream_id: next
  - weighted_upstreams:
      - upstream_id: next
        weight: 5
      - weight: 95
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.rules.is_empty() {
            cx.warn("", "without rules nothing is changed");
        }
        cx.say(conf.rules.iter().enumerate().flat_map(|(at, rule)| rule.faults(at)));
        cx.add(doubts(cx.conf()));
        Some(Compiled::build(move |build| {
            let rules = conf.rules.into_iter().enumerate().map(|(at, rule)| Split::new(at, rule, build));
            Ok(Splits(rules.collect::<Result<_, _>>()?))
        }))
    }
}

/// Findings in upstreams and conditions that are written in the rules.
fn doubts(conf: &Node) -> Vec<Diagnostic> {
    let list = |node: Option<&Node>| node.and_then(Node::as_seq).map(<[Node]>::to_vec).unwrap_or_default();
    let mut found = Vec::new();
    for (at, rule) in list(conf.get("rules")).iter().enumerate() {
        for (number, weighted) in list(rule.get("weighted_upstreams")).iter().enumerate() {
            if let Some(upstream) = weighted.get("upstream") {
                let path = format!("{}.upstream", place(at, number));
                found.extend(Upstream::from_node(upstream).1.into_iter().map(|fault| fault.under(&path)));
            }
        }
        for (number, conditions) in list(rule.get("match")).iter().enumerate() {
            let Some(vars) = conditions.get("vars") else { continue };
            let path = format!("rules[{at}].match[{number}].vars");
            let doubts = Expr::doubts(&vars.to_json()).into_iter();
            let told = |doubt: ExprError| {
                let code = Code::DoubtfulCondition { reason: doubt.message };
                Diagnostic::warning(vars.mark, format!("{path}{}", doubt.path), code)
            };
            found.extend(doubts.map(told));
        }
    }
    found
}

const BOTH_UPSTREAMS: Code = Code::OnlyOneOf { one: "upstream_id", other: "upstream" };

/// The path of a weighted upstream in the configuration.
fn place(rule: usize, number: usize) -> String {
    format!("rules[{rule}].weighted_upstreams[{number}]")
}

/// The number of an upstream that is written in place.
fn inline(field: &str, node: &Node, cx: &BuildCx<'_>) -> Result<u32, Invalid> {
    match Upstream::from_node(node) {
        (Some(mut upstream), _) => {
            // Nodes of such an upstream see their name without a port, as with APISIX, which settles the scheme too late.
            if upstream.pass_host == PassHost::Node && !upstream.scheme.has_tls() {
                upstream.pass_host = PassHost::NodeName;
            }
            cx.inline_upstream(field, &upstream)
        }
        (None, found) => {
            let fault = found.into_iter().find(Diagnostic::is_error).map(|fault| fault.under(field));
            Err(fault.map_or_else(|| Invalid::new(field, "cannot be read"), |f| Invalid::coded(f.path, *f.code)))
        }
    }
}

impl Rule {
    fn faults(&self, at: usize) -> Vec<Invalid> {
        let twice = self.weighted_upstreams.iter().enumerate().filter(|(_, weighted)| {
            let Weighted { upstream_id, upstream, .. } = weighted;
            upstream_id.is_some() && upstream.is_some()
        });
        let mut faults: Vec<Invalid> =
            twice.map(|(number, _)| Invalid::coded(place(at, number), BOTH_UPSTREAMS)).collect();
        if self.weighted_upstreams.iter().all(|weighted| weighted.weight == 0) {
            let message = "expected a weight above 0: no request could go anywhere";
            faults.push(Invalid::new(format!("rules[{at}].weighted_upstreams"), message));
        }
        faults
    }
}

/// An instance.
#[derive(Debug)]
struct Splits(Box<[Split]>);

/// A rule.
#[derive(Debug)]
struct Split {
    /// Empty: it is for every request.
    matches: Box<[Expr]>,
    shares: Box<[Share]>,
    turns: Arc<Arc<dyn Turns>>,
}

impl Split {
    fn new(at: usize, rule: Rule, cx: &BuildCx<'_>) -> Result<Self, Invalid> {
        let matches = rule.r#match.into_iter().flatten().map(|conditions| conditions.vars.expr().clone());
        let written = cx.conf.get("rules").and_then(|rules| rules.as_seq()?.get(at)?.get("weighted_upstreams"));
        let written = written.and_then(Node::as_seq).unwrap_or_default();
        let mut shares = Vec::with_capacity(rule.weighted_upstreams.len());
        for (number, weighted) in rule.weighted_upstreams.iter().enumerate() {
            let place = place(at, number);
            let upstream = match (&weighted.upstream_id, written.get(number).and_then(|node| node.get("upstream"))) {
                (Some(id), _) => Some(cx.upstream(&format!("{place}.upstream_id"), id.as_str())?),
                (None, Some(node)) => Some(inline(&format!("{place}.upstream"), node, cx)?),
                (None, None) => None,
            };
            shares.push(Share { upstream, weight: weighted.weight });
        }
        let weights: Vec<u32> = shares.iter().map(|share| share.weight).collect();
        weir_expr::spend(cx.upstreams.size_of_turns(&weights))
            .map_err(|error| Invalid::new(format!("rules[{at}].weighted_upstreams"), error.to_string()))?;
        let key = format!("{}/{}/rules[{at}] {weights:?}", cx.place, cx.plugin);
        Ok(Self {
            matches: matches.collect(),
            shares: shares.into(),
            turns: cx.states.get_or_create(&key, || cx.upstreams.turns(&weights)),
        })
    }

    fn is_for(&self, source: &dyn Source) -> bool {
        self.matches.is_empty() || self.matches.iter().any(|conditions| conditions.eval(source))
    }
}

impl Splits {
    fn rule(&self, source: &dyn Source) -> Option<&Split> {
        self.0.iter().find(|rule| rule.is_for(source))
    }
}

impl Plugin for Splits {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(rule) = self.rule(cx.source()) {
            let share = rule.turns.next().and_then(|turn| rule.shares.get(turn));
            let Some(share) = share else { return cx.fail(500, "no upstream has a weight") };
            cx.choose_upstream(share.upstream);
        }
        Flow::Continue
    }

    fn shares(&self, source: &dyn Source) -> &[Share] {
        self.rule(source).map(|rule| &*rule.shares).unwrap_or_default()
    }
}
