//! `routing` and `upstream`: other upstreams, by what a request says.

use regex::bytes::Regex as BytesRegex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx};
use weir_wire::name::FieldName;

use super::{DraftLink, Site, read};
use crate::threescale::condition::{CombineOp, Comparison, Op, combine};
use crate::threescale::credentials::in_query;
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::target::{Target, Url};
use crate::threescale::text::{Around, Text, TextType};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct UpstreamConf {
    rules: Vec<UpstreamRule>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct UpstreamRule {
    regex: String,
    url: String,
}

/// The policy `upstream`.
#[derive(Debug)]
struct Upstream {
    number: usize,
    rules: Box<[(BytesRegex, Target)]>,
}

/// Compiles `upstream`.
pub(super) fn upstream(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<UpstreamConf>(conf, field, cx)?;
    let compile = |(at, rule): (usize, UpstreamRule)| {
        let field = format!("{field}.rules[{at}]");
        let regex = crate::threescale::condition::regex(&rule.regex, &format!("{field}.regex"))?;
        let regex = BytesRegex::new(regex.as_str()).map_err(|error| Invalid::new(&field, error.to_string()))?;
        Ok((regex, Url::parse(&rule.url, &format!("{field}.url"))?))
    };
    let rules = conf.rules.into_iter().enumerate().map(compile).collect::<Result<Vec<_>, Invalid>>();
    let rules = cx.ok(rules)?;
    Some(DraftLink::built(move |site| {
        let target = |(at, (regex, url)): (usize, (BytesRegex, Url))| {
            Ok((regex, url.build(None, site.upstream, &place(site, at), site.build)?))
        };
        let rules = rules.into_iter().enumerate().map(target).collect::<Result<_, Invalid>>()?;
        Ok(Upstream { number: site.number, rules })
    }))
}

fn place(site: &Site<'_>, rule: usize) -> String {
    format!("policy_chain.{}.rules.{rule}.url", site.number)
}

impl Policy for Upstream {
    fn rewrite(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let path = state.path(cx.request());
        if let Some(rule) = self.rules.iter().position(|(regex, _)| regex.is_match(path)) {
            state.chosen.push((self.number, rule));
        }
        Step::Next
    }

    fn content(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let target = state.target_of(self.number).and_then(|rule| self.rules.get(rule));
        target.map_or(Step::Next, |(_, target)| Step::Done(target.send(cx, state)))
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RoutingConf {
    rules: Vec<RoutingRule>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct RoutingRule {
    url: String,
    replace_path: Option<String>,
    owner_id: Option<u64>,
    host_header: Option<String>,
    #[serde(default)]
    condition: ConditionConf,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ConditionConf {
    combine_op: CombineOp,
    operations: Vec<Operation>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Operation {
    #[serde(rename = "match")]
    of: Of,
    op: Op,
    value: String,
    #[serde(default)]
    value_type: TextType,
    header_name: Option<String>,
    query_arg_name: Option<String>,
    jwt_claim_name: Option<String>,
    liquid_value: Option<String>,
}

/// The part of a request that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Of {
    Path,
    Header,
    QueryArg,
    JwtClaim,
    Liquid,
}

/// The same, compiled.
#[derive(Debug)]
enum Left {
    Path,
    Header(FieldName),
    Argument(Box<[u8]>),
    Claim(Box<str>),
    Template(Text),
}

#[derive(Debug)]
struct Rule<T> {
    target: T,
    owner: Option<u64>,
    replaced: Option<Text>,
    is_any: bool,
    comparisons: Box<[(Left, Comparison)]>,
}

/// The policy `routing`.
#[derive(Debug)]
struct Routing {
    number: usize,
    rules: Box<[Rule<Target>]>,
}

/// Compiles `routing`.
pub(super) fn routing(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<RoutingConf>(conf, field, cx)?;
    let compile = |(at, rule): (usize, RoutingRule)| {
        let field = format!("{field}.rules[{at}]");
        let url = Url::parse(&rule.url, &format!("{field}.url"))?;
        let replaced = rule.replace_path.filter(|path| !path.is_empty());
        let replaced = replaced
            .map(|path| Text::compile(&path, TextType::Liquid, &format!("{field}.replace_path")))
            .transpose()?;
        let operation = |(at, operation): (usize, Operation)| {
            let field = format!("{field}.condition.operations[{at}]");
            let right = (operation.value.as_str(), operation.value_type);
            let comparison = Comparison::compile(operation.op, right, &format!("{field}.value"))?;
            Ok((operation.left(&field)?, comparison))
        };
        Ok(Rule {
            target: (url, rule.host_header),
            owner: rule.owner_id,
            replaced,
            is_any: rule.condition.combine_op == CombineOp::Or,
            comparisons: rule.condition.operations.into_iter().enumerate().map(operation).collect::<Result<_, _>>()?,
        })
    };
    let rules = conf.rules.into_iter().enumerate().map(compile).collect::<Result<Vec<_>, Invalid>>();
    let rules = cx.ok(rules)?;
    Some(DraftLink::built(move |site| {
        let build = |(at, rule): (usize, Rule<(Url, Option<String>)>)| {
            let Rule { target: (url, host), owner, replaced, is_any, comparisons } = rule;
            let host = host.filter(|host| !host.is_empty());
            let host = host.as_deref().or(Some(site.host));
            let target = url.build(host, site.upstream, &place(site, at), site.build)?;
            Ok(Rule { target, owner, replaced, is_any, comparisons })
        };
        let rules = rules.into_iter().enumerate().map(build).collect::<Result<_, Invalid>>()?;
        Ok(Routing { number: site.number, rules })
    }))
}

impl Operation {
    fn left(&self, field: &str) -> Result<Left, Invalid> {
        let named = |name: &Option<String>, member: &str| {
            let name = name.clone().filter(|name| !name.is_empty());
            name.ok_or_else(|| Invalid::new(format!("{field}.{member}"), "required field missing"))
        };
        Ok(match self.of {
            Of::Path => Left::Path,
            Of::Header => {
                let name = named(&self.header_name, "header_name")?;
                let name = FieldName::new(&name)
                    .ok_or_else(|| Invalid::new(format!("{field}.header_name"), "expected the name of a field"))?;
                Left::Header(name)
            }
            Of::QueryArg => Left::Argument(named(&self.query_arg_name, "query_arg_name")?.into_bytes().into()),
            Of::JwtClaim => Left::Claim(named(&self.jwt_claim_name, "jwt_claim_name")?.into()),
            Of::Liquid => {
                let template = self.liquid_value.as_deref().unwrap_or_default();
                Left::Template(Text::compile(template, TextType::Liquid, &format!("{field}.liquid_value"))?)
            }
        })
    }
}

impl Left {
    fn holds(&self, comparison: &Comparison, around: &Around<'_>) -> bool {
        let request = around.view.request();
        // An absent value is `nil`, as Lua writes it.
        let compare = |value: Option<&[u8]>| {
            let value = value.map(String::from_utf8_lossy);
            comparison.holds(value.as_deref().unwrap_or("nil"), around)
        };
        match self {
            Self::Path => compare(Some(around.state.path(request))),
            Self::Header(name) => compare(request.field(name)),
            Self::Argument(name) => compare(in_query(request.query().unwrap_or_default(), name).as_deref()),
            Self::Claim(name) => {
                let text = match around.state.jwt.as_ref().and_then(|claims| claims.get(&**name)) {
                    None | Some(Value::Null) => None,
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(other) => Some(other.to_string()),
                };
                compare(text.as_deref().map(str::as_bytes))
            }
            Self::Template(template) => comparison.holds(&template.render(around), around),
        }
    }
}

impl Policy for Routing {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let around = Around { view: cx.view(), state, names: &parts.names };
        let holds = |rule: &Rule<Target>| {
            combine(rule.is_any, rule.comparisons.iter().map(|(left, comparison)| left.holds(comparison, &around)))
        };
        let Some(at) = self.rules.iter().position(holds) else { return Step::Next };
        let Some(rule) = self.rules.get(at) else { return Step::Next };
        let replaced = rule.replaced.as_ref().map(|path| path.render(&around).into_owned());
        state.replaced = replaced;
        state.chosen.push((self.number, at));
        // Only the backend API that is called counts.
        if let Some(owner) = rule.owner {
            parts.rules.keep_owner(owner, &state.matched, &mut state.usage);
        }
        Step::Next
    }

    fn content(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let target = state.target_of(self.number).and_then(|rule| self.rules.get(rule));
        target.map_or(Step::Next, |rule| Step::Done(rule.target.send(cx, state)))
    }
}
