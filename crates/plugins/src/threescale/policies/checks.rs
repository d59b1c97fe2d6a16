//! `ip_check` and `jwt_claim_check`: addresses, and claims of tokens.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{AddrRange, Node};
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx};

use super::{DraftLink, read};
use crate::security::address_set::AddressSet;
use crate::threescale::condition::{CombineOp, Comparison, Op, combine};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::rules::Pattern;
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};
use crate::threescale::values::Members;

#[derive(Debug, Deserialize, JsonSchema)]
struct IpConf {
    check_type: CheckType,
    ips: Vec<AddrRange>,
    #[serde(default = "not_allowed")]
    error_msg: String,
    #[serde(default = "last_caller")]
    client_ip_sources: Vec<IpSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CheckType {
    Blacklist,
    Whitelist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum IpSource {
    #[serde(rename = "X-Forwarded-For")]
    ForwardedFor,
    #[serde(rename = "X-Real-IP")]
    RealIp,
    #[serde(rename = "proxy_protocol_addr")]
    ProxyProtocol,
    #[serde(rename = "last_caller")]
    LastCaller,
}

fn not_allowed() -> String {
    "IP address not allowed".to_owned()
}

fn last_caller() -> Vec<IpSource> {
    vec![IpSource::LastCaller]
}

/// The policy `ip_check`.
#[derive(Debug)]
struct IpCheck {
    is_whitelist: bool,
    ips: AddressSet,
    body: Vec<u8>,
    sources: Vec<IpSource>,
}

/// Compiles `ip_check`.
pub(super) fn ip_check(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<IpConf>(conf, field, cx)?;
    if conf.client_ip_sources.iter().any(|source| matches!(source, IpSource::ForwardedFor | IpSource::RealIp)) {
        let text = "clients write this field themselves, unless a proxy ahead of the gateway does: last_caller follows \
            the setting real_ip";
        cx.warn(format!("{field}.client_ip_sources"), text);
    }
    Some(DraftLink::of(IpCheck {
        is_whitelist: conf.check_type == CheckType::Whitelist,
        ips: AddressSet::new(&conf.ips),
        body: format!("{}\n", conf.error_msg).into_bytes(),
        sources: conf.client_ip_sources,
    }))
}

impl IpCheck {
    fn address(&self, cx: &RequestCx<'_>) -> Option<IpAddr> {
        let of_field = |name: &str| {
            let text = cx.request().field_str(name)?.split(|byte| *byte == b',').next()?;
            std::str::from_utf8(weir_wire::trim_ows(text)).ok()?.parse().ok()
        };
        self.sources.iter().find_map(|source| match source {
            IpSource::ForwardedFor => of_field("x-forwarded-for"),
            IpSource::RealIp => of_field("x-real-ip"),
            IpSource::ProxyProtocol => Some(cx.client().sender),
            IpSource::LastCaller => Some(cx.client().addr),
        })
    }
}

impl Policy for IpCheck {
    fn access(&self, _: &Parts, cx: &mut RequestCx<'_>, _: &mut State) -> Step {
        let passes = self.address(cx).is_some_and(|address| self.ips.contains(address) == self.is_whitelist);
        if passes { Step::Next } else { deny(cx, &self.body) }
    }
}

/// Refuses a request with 403.
fn deny(cx: &mut RequestCx<'_>, body: &[u8]) -> Step {
    Step::Done(cx.reply(403).field("Content-Type", b"text/plain; charset=utf-8").body(body).done())
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ClaimConf {
    #[serde(default = "blocked")]
    error_message: String,
    #[serde(default)]
    rules: Vec<ClaimRule>,
    #[serde(default)]
    enable_extended_context: bool,
}

fn blocked() -> String {
    "Request blocked due to JWT claim policy".to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ClaimRule {
    #[serde(default)]
    combine_op: CombineOp,
    #[serde(default)]
    methods: Vec<String>,
    resource: String,
    #[serde(default)]
    resource_type: TextType,
    #[serde(default)]
    operations: Vec<ClaimOperation>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ClaimOperation {
    jwt_claim: String,
    #[serde(default)]
    jwt_claim_type: TextType,
    op: Op,
    value: String,
    #[serde(default)]
    value_type: TextType,
}

/// A resource: methods, and a pattern of paths.
#[derive(Debug)]
pub(super) struct Resource {
    methods: Vec<String>,
    text: Text,
    /// The pattern of a text that is the same for all requests.
    pattern: Option<Pattern>,
}

impl Resource {
    pub(super) fn compile(methods: Vec<String>, (text, kind): (&str, TextType), field: &str) -> Result<Self, Invalid> {
        let pattern = (kind == TextType::Plain).then(|| Pattern::compile(text, field)).transpose()?;
        Ok(Self { methods, text: Text::compile(text, kind, field)?, pattern })
    }

    /// True for a request of the resource.
    pub(super) fn takes(&self, around: &Around<'_>) -> bool {
        let request = around.view.request();
        let is_method = |known: &String| known == "ANY" || known.as_bytes() == request.method_bytes();
        if !self.methods.is_empty() && !self.methods.iter().any(is_method) {
            return false;
        }
        let mut path = Vec::new();
        around.state.write_encoded_path(request, &mut path);
        match &self.pattern {
            Some(pattern) => pattern.matches(&path),
            None => Pattern::compile(&self.text.render(around), "").is_ok_and(|pattern| pattern.matches(&path)),
        }
    }
}

#[derive(Debug)]
struct Claims {
    resource: Resource,
    is_any: bool,
    comparisons: Box<[(Text, Comparison)]>,
}

/// The policy `jwt_claim_check`.
#[derive(Debug)]
struct ClaimCheck {
    rules: Box<[Claims]>,
    body: Vec<u8>,
    /// True if templates read all of a request, and claims as members of `jwt`.
    is_extended: bool,
}

/// Compiles `jwt_claim_check`.
pub(super) fn jwt_claim_check(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<ClaimConf>(conf, field, cx)?;
    let is_extended = conf.enable_extended_context;
    let compile = |(at, rule): (usize, ClaimRule)| {
        let field = format!("{field}.rules[{at}]");
        let resource = (rule.resource.as_str(), rule.resource_type);
        let operation = |(at, operation): (usize, ClaimOperation)| {
            let field = format!("{field}.operations[{at}]");
            let prefix = if is_extended { "jwt." } else { "" };
            let claim = match operation.jwt_claim_type {
                TextType::Plain => format!("{{{{{prefix}{}}}}}", operation.jwt_claim),
                TextType::Liquid => operation.jwt_claim,
            };
            let left = Text::compile(&claim, TextType::Liquid, &format!("{field}.jwt_claim"))?;
            let right = (operation.value.as_str(), operation.value_type);
            Ok((left, Comparison::compile(operation.op, right, &format!("{field}.value"))?))
        };
        Ok(Claims {
            resource: Resource::compile(rule.methods, resource, &format!("{field}.resource"))?,
            is_any: rule.combine_op == CombineOp::Or,
            comparisons: rule.operations.into_iter().enumerate().map(operation).collect::<Result<_, Invalid>>()?,
        })
    };
    let rules = cx.ok(conf.rules.into_iter().enumerate().map(compile).collect::<Result<_, Invalid>>())?;
    Some(DraftLink::of(ClaimCheck { rules, body: format!("{}\n", conf.error_message).into_bytes(), is_extended }))
}

impl Policy for ClaimCheck {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let around = Around { view: cx.view(), state, names: &parts.names };
        let members = || match (self.is_extended, state.jwt.as_deref()) {
            (true, _) => around.members(),
            (false, claims) => claims.map(Members::of_json).unwrap_or_default(),
        };
        let holds = |(left, comparison): &(Text, Comparison)| comparison.holds(&left.render_with(members), &around);
        let is_denied = self
            .rules
            .iter()
            .any(|rule| rule.resource.takes(&around) && !combine(rule.is_any, rule.comparisons.iter().map(holds)));
        if is_denied { deny(cx, &self.body) } else { Step::Next }
    }
}
