//! A model and a policy of Casbin, compiled: each line of the policy is a condition on a request.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_plugin::Invalid;

use super::matcher::{Condition, Names, Syntax};

/// Most steps from a user to a role.
const DEPTH: usize = 10;

/// A policy that decides about requests.
#[derive(Debug)]
pub(super) struct Enforcer {
    rules: Box<[Rule]>,
    effect: Effect,
}

/// A line of the policy.
#[derive(Debug)]
struct Rule {
    condition: Condition,
    denies: bool,
}

/// The decision that follows from the rules that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// One that allows.
    Allow,
    /// None that denies.
    NoDeny,
    /// One that allows, and none that denies.
    AllowAndNoDeny,
    /// The first one.
    First,
}

/// Roles of each user and each role, directly or by others.
pub(super) type Roles = HashMap<Box<[u8]>, HashSet<Box<[u8]>>>;

impl Enforcer {
    /// Compiles a model and a policy.
    ///
    /// # Errors
    /// The fault, in `model` or `policy`.
    pub(super) fn new(model: &str, policy: &str) -> Result<Self, Invalid> {
        let of_model = |text: String| Invalid::new("model", text);
        let sections = sections(model).map_err(of_model)?;
        let section = |name: &str| {
            let found = sections.get(name).map(String::as_str);
            found.ok_or_else(|| Invalid::new("model", format!("expected a section {name}")))
        };
        let request = names(section("request_definition.r")?);
        let fields = names(section("policy_definition.p")?);
        if request.len() != 3 {
            return Err(of_model("expected three names in request_definition: user, path and method".into()));
        }
        let effect = Effect::parse(section("policy_effect.e")?).map_err(of_model)?;
        let syntax = Syntax::parse(section("matchers.m")?).map_err(of_model)?;
        let has_roles = sections.contains_key("role_definition.g");
        if let Some(other) = sections.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(of_model(format!("'{other}' is not supported")));
        }
        let lines = Lines::parse(policy, has_roles).map_err(|text| Invalid::new("policy", text))?;
        let roles = Arc::new(closure(&lines.roles));
        let eft = fields.iter().position(|name| name == "eft");
        let mut rules = Vec::new();
        for (number, line) in &lines.policies {
            let fault = |text: String| Invalid::new("policy", format!("line {number}: {text}"));
            let without_eft = fields.len() - usize::from(eft.is_some());
            if line.len() < without_eft || line.len() > fields.len() {
                return Err(fault(format!("expected {} values, found {}", fields.len(), line.len())));
            }
            let denies = match eft.and_then(|at| line.get(at)).map(String::as_str) {
                None | Some("allow") => false,
                Some("deny") => true,
                Some(other) => return Err(fault(format!("expected allow or deny, found '{other}'"))),
            };
            let names = Names { request: &request, policy: &fields, values: line, roles: has_roles.then_some(&roles) };
            rules.push(Rule { condition: syntax.compile(&names).map_err(fault)?, denies });
        }
        // A policy without lines says nothing about the expression.
        if rules.is_empty() {
            let values = vec![String::new(); fields.len()];
            let names =
                Names { request: &request, policy: &fields, values: &values, roles: has_roles.then_some(&roles) };
            syntax.compile(&names).map_err(of_model)?;
        }
        Ok(Self { rules: rules.into(), effect })
    }

    /// True if the policy allows a request with these values: user, path and method.
    pub(super) fn allows(&self, request: [&[u8]; 3]) -> bool {
        let mut matching = self.rules.iter().filter(|rule| rule.condition.holds(request));
        match self.effect {
            Effect::Allow => matching.any(|rule| !rule.denies),
            Effect::NoDeny => !matching.any(|rule| rule.denies),
            Effect::First => matching.next().is_some_and(|rule| !rule.denies),
            Effect::AllowAndNoDeny => {
                let (mut allows, mut denies) = (false, false);
                for rule in matching {
                    allows |= !rule.denies;
                    denies |= rule.denies;
                }
                allows && !denies
            }
        }
    }
}

/// The parts of a model that are known.
const KNOWN: [&str; 5] =
    ["request_definition.r", "policy_definition.p", "role_definition.g", "policy_effect.e", "matchers.m"];

impl Effect {
    fn parse(text: &str) -> Result<Self, String> {
        let text: String = text.split_whitespace().collect();
        Ok(match text.as_str() {
            "some(where(p.eft==allow))" => Self::Allow,
            "!some(where(p.eft==deny))" => Self::NoDeny,
            "some(where(p.eft==allow))&&!some(where(p.eft==deny))" => Self::AllowAndNoDeny,
            "priority(p.eft)||deny" => Self::First,
            _ => return Err("policy_effect: expected one of the four usual forms".to_owned()),
        })
    }
}

/// The entries of a model by `section.name`.
fn sections(model: &str) -> Result<HashMap<String, String>, String> {
    let mut found = HashMap::new();
    let (mut section, mut pending) = (String::new(), String::new());
    for (at, line) in model.lines().enumerate() {
        // A comment may follow, though not within a text.
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.trim().to_owned();
            continue;
        }
        // A line that ends in a backslash goes on.
        if let Some(part) = line.strip_suffix('\\') {
            pending.push_str(part);
            continue;
        }
        pending.push_str(line);
        let whole = std::mem::take(&mut pending);
        let (name, value) = whole.split_once('=').ok_or_else(|| format!("line {}: expected 'name = value'", at + 1))?;
        found.insert(format!("{section}.{}", name.trim()), value.trim().to_owned());
    }
    Ok(found)
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).collect()
}

/// The lines of a policy.
#[derive(Default)]
struct Lines {
    /// Values of `p`, with the numbers of their lines.
    policies: Vec<(usize, Vec<String>)>,
    roles: Vec<(String, String)>,
}

impl Lines {
    fn parse(policy: &str, has_roles: bool) -> Result<Self, String> {
        let mut lines = Self::default();
        for (at, line) in policy.lines().enumerate() {
            let (number, line) = (at + 1, line.trim());
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut values = names(line);
            match values.remove(0).as_str() {
                "p" => lines.policies.push((number, values)),
                "g" if has_roles => match <[String; 2]>::try_from(values) {
                    Ok([user, role]) => lines.roles.push((user, role)),
                    Err(_) => return Err(format!("line {number}: expected a user and a role behind g")),
                },
                "g" => return Err(format!("line {number}: the model has no role_definition")),
                other => return Err(format!("line {number}: expected p or g, found '{other}'")),
            }
        }
        Ok(lines)
    }
}

/// All roles of everybody, up to [`DEPTH`] steps.
fn closure(pairs: &[(String, String)]) -> Roles {
    let mut direct: HashMap<&str, Vec<&str>> = HashMap::new();
    for (user, role) in pairs {
        direct.entry(user).or_default().push(role);
    }
    let mut roles = Roles::new();
    for user in direct.keys() {
        let mut found: HashSet<&str> = HashSet::new();
        let mut edge = vec![*user];
        for _ in 0..DEPTH {
            let next: Vec<&str> = edge.iter().filter_map(|name| direct.get(name)).flatten().copied().collect();
            edge = next.into_iter().filter(|role| found.insert(*role)).collect();
            if edge.is_empty() {
                break;
            }
        }
        roles.insert(user.as_bytes().into(), found.into_iter().map(|role| role.as_bytes().into()).collect());
    }
    roles
}

#[cfg(test)]
mod tests {
    use super::Enforcer;

    fn model(fields: &str, effect: &str, matcher: &str) -> String {
        format!(
            "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = {fields}\n[role_definition]\ng = _, _\n\
             [policy_effect]\ne = {effect}\n[matchers]\nm = {matcher}\n"
        )
    }

    const ALLOW: &str = "some(where (p.eft == allow))";

    fn decisions(model: &str, policy: &str, requests: &[&str]) -> Vec<bool> {
        let enforcer = Enforcer::new(model, policy).unwrap_or_else(|fault| panic!("{fault:?}"));
        let decide = |request: &&str| {
            let mut parts = request.split(' ').map(str::as_bytes);
            let mut part = || parts.next().expect("three parts");
            enforcer.allows([part(), part(), part()])
        };
        requests.iter().map(decide).collect()
    }

    #[test]
    fn policies_decide_as_casbin_does() {
        let roles = model("sub, obj, act", ALLOW, "g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act");
        let policy = "p, alice, /a, GET\n# a comment\np, admin, /b, POST\ng, bob, admin\ng, carol, bob\n";
        let requests =
            ["alice /a GET", "alice /a POST", "bob /b POST", "carol /b POST", "admin /b POST", "dave /b POST"];
        assert_eq!(decisions(&roles, policy, &requests), [true, false, true, true, true, false]);
        for (matcher, policy, requests, expected) in [
            ("r.sub == p.sub && keyMatch(r.obj, p.obj)", "p, a, /x/*, x", "a /x/y x|a /x x|a /y x|b /x/y x", "1000"),
            ("keyMatch2(r.obj, p.obj)", "p, a, /x/:id/y, x", "a /x/7/y x|a /x/7/8/y x|a /x//y x", "100"),
            ("keyMatch2(r.obj, p.obj)", "p, a, /x/*, x", "a /x/7/y x|a /x/ x|a /y x", "110"),
            ("keyMatch3(r.obj, p.obj)", "p, a, /x/{id}, x", "a /x/7 x|a /x/7/8 x", "10"),
            ("regexMatch(r.act, p.act)", "p, a, x, ^(GET|HEAD)$", "a x GET|a x HEAD|a x POST", "110"),
            ("regexMatch(r.obj, \"^/a+$\")", "p, a, x, x", "a /aa x|a /b x", "10"),
            ("ipMatch(r.sub, p.sub)", "p, 10.0.0.0/8, x, x", "10.1.2.3 x x|11.1.2.3 x x|nobody x x", "100"),
            ("r.sub in (\"a\", 'b') || r.sub == \"root\"", "p, x, x, x", "a x x|b x x|c x x|root x x", "1101"),
            ("!(r.sub != p.sub) && (r.obj == p.obj || true)", "p, a, x, x", "a y y|b x x", "10"),
        ] {
            let model = model("sub, obj, act", ALLOW, matcher);
            let requests: Vec<&str> = requests.split('|').collect();
            let expected: Vec<bool> = expected.chars().map(|c| c == '1').collect();
            assert_eq!(decisions(&model, policy, &requests), expected, "{matcher} {policy}");
        }
        let fields = "sub, obj, act, eft";
        let policy = "p, a, x, x, deny\np, a, x, x, allow\np, b, x, x\np, c, x, x, deny\n";
        let requests = ["a x x", "b x x", "c x x", "d x x"];
        for (effect, expected) in [
            (ALLOW, [true, true, false, false]),
            ("!some(where (p.eft == deny))", [false, true, false, true]),
            ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", [false, true, false, false]),
            ("priority(p.eft) || deny", [false, true, false, false]),
        ] {
            assert_eq!(decisions(&model(fields, effect, "r.sub == p.sub"), policy, &requests), expected, "{effect}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_place() {
        let good = model("sub, obj, act", ALLOW, "r.sub == p.sub");
        for (model, policy, path, says) in [
            ("", "", "model", "request_definition.r"),
            ("[a]\nb", "", "model", "line 2: expected 'name = value'"),
            (&*good.replace("r = sub, obj, act", "r = sub, dom, obj, act"), "", "model", "three names"),
            (&*good.replace("allow))", "maybe))"), "", "model", "policy_effect"),
            (&*good.replace("r.sub == p.sub", "r.sub == p.nobody"), "", "model", "p.nobody"),
            (&*good.replace("r.sub == p.sub", "r.sub =="), "", "model", "end"),
            (&*good.replace("r.sub == p.sub", "hack(r.sub)"), "", "model", "hack"),
            (&*good.replace("r.sub == p.sub", "regexMatch(p.sub, r.sub)"), "", "model", "pattern"),
            (&*good.replace("r.sub == p.sub", "r.sub"), "", "model", "expected"),
            (&*format!("{good}m2 = true\n"), "", "model", "'matchers.m2' is not supported"),
            (&*good, "p, a", "policy", "line 1: expected 3 values"),
            (&*good, "\nq, a, b, c", "policy", "line 2: expected p or g"),
            (&*good, "g, a", "policy", "line 1: expected a user and a role"),
            (&*good.replace("[role_definition]\ng = _, _\n", ""), "g, a, b", "policy", "no role_definition"),
            (&*good.replace("r.sub == p.sub", "regexMatch(r.sub, p.sub)"), "p, (, b, c", "policy", "line 1"),
            (&*good.replace("r.sub == p.sub", "ipMatch(r.sub, p.sub)"), "p, x, b, c", "policy", "line 1"),
            (&*good.replace("act\n[role", "act, eft\n[role"), "p, a, b, c, maybe", "policy", "allow or deny"),
        ] {
            let fault = Enforcer::new(model, policy).expect_err(says);
            assert_eq!(fault.path, path, "{model} {policy}");
            assert!(format!("{:?}", fault.code).contains(says), "{says}: {fault:?}");
        }
    }
}
