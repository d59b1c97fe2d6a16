//! Mapping rules: which requests add what to which metric.

use std::collections::BTreeMap;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Invalid;

use super::usage::{Metrics, Usage};

/// A mapping rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// The method; `ANY` for all.
    http_method: String,
    /// The beginning of paths: `{name}` for a part of a segment, `$` for the end.
    pub(super) pattern: String,
    /// The metric.
    pub(super) metric_system_name: String,
    /// The addition to the metric.
    delta: Option<i64>,
    /// True if no rule after this one is looked at once this one matches.
    last: bool,
    /// Arguments: `{name}` for one with any value, else the value.
    querystring_parameters: BTreeMap<String, String>,
    /// Number of the backend API that owns the rule.
    owner_id: Option<u64>,
    /// `BackendApi` for a rule of a backend API.
    owner_type: String,
}

/// Name and value of an argument; no value: any.
type Wanted = (Box<[u8]>, Option<Box<[u8]>>);

/// A rule, compiled.
#[derive(Debug)]
struct Rule {
    /// Empty: every method.
    method: Box<[u8]>,
    pattern: Pattern,
    /// Name and value; no value: any.
    arguments: Box<[Wanted]>,
    metric: u16,
    delta: i64,
    is_last: bool,
    owner: Option<u64>,
    written: Box<str>,
}

/// The rules of a service.
#[derive(Debug)]
pub(super) struct Rules {
    rules: Box<[Rule]>,
    /// True if arguments are looked at.
    pub(super) has_arguments: bool,
}

/// A pattern of paths.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Paths that begin so.
    Prefix(Box<[u8]>),
    /// The one path.
    Whole(Box<[u8]>),
    Regex(Regex),
}

/// Bytes that a parameter stands for.
const PARAMETER: &str = r"([\w\-.~%!$&'()*+,;=@:]+)";
/// Most rules of a service.
const MOST: usize = 65_535;

impl Pattern {
    /// Compiles a pattern as APIcast does: anchored at the beginning, points are themselves, all else is a regular expression.
    pub(super) fn compile(text: &str, field: &str) -> Result<Self, Invalid> {
        let mut pattern = String::with_capacity(text.len());
        for letter in text.chars() {
            if letter == '?' {
                break;
            }
            if !(letter == '/' && pattern.ends_with('/')) {
                pattern.push(letter);
            }
        }
        let is_plain = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~' | b'%'))
        };
        if is_plain(&pattern) {
            return Ok(Self::Prefix(pattern.into_bytes().into()));
        }
        if let Some(whole) = pattern.strip_suffix('$').filter(|whole| is_plain(whole)) {
            return Ok(Self::Whole(whole.as_bytes().into()));
        }
        let mut regex = String::from("^(?-u)");
        let mut rest = pattern.as_str();
        while let Some(letter) = rest.chars().next() {
            let parameter = rest.strip_prefix('{').and_then(|inner| {
                let first = inner.chars().next()?.len_utf8();
                inner.get(first..)?.find('}').map(|end| first + end + 2)
            });
            match parameter {
                Some(length) => {
                    regex.push_str(PARAMETER);
                    rest = rest.get(length..).unwrap_or_default();
                    continue;
                }
                None if letter == '.' => regex.push_str("\\."),
                None => regex.push(letter),
            }
            rest = rest.get(letter.len_utf8()..).unwrap_or_default();
        }
        let compiled = Regex::new(&regex).map_err(|error| {
            let text = error.to_string().lines().last().unwrap_or_default().to_owned();
            Invalid::new(field, format!("no pattern of paths: {text}"))
        })?;
        Ok(Self::Regex(compiled))
    }

    /// True for an encoded path that the pattern takes.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => path.starts_with(prefix),
            Self::Whole(whole) => path == &**whole,
            Self::Regex(regex) => regex.is_match(path),
        }
    }
}

impl Rules {
    /// Compiles rules; `field` is their place in the configuration.
    pub(super) fn compile(conf: Vec<Conf>, metrics: &Metrics, field: &str) -> Result<Self, Invalid> {
        if conf.len() > MOST {
            return Err(Invalid::new(field, format!("expected at most {MOST} rules")));
        }
        let compile = |(at, rule): (usize, Conf)| {
            let field = format!("{field}[{at}]");
            let metric = metrics.number(&rule.metric_system_name).filter(|_| !rule.metric_system_name.is_empty());
            let metric =
                metric.ok_or_else(|| Invalid::new(format!("{field}.metric_system_name"), "required field missing"))?;
            let argument = |(name, value): (String, String)| {
                let value = (!is_parameter(&value)).then(|| value.into_bytes().into());
                (name.into_bytes().into(), value)
            };
            Ok(Rule {
                method: if rule.http_method == "ANY" { [].into() } else { method(&rule.http_method, &field)? },
                pattern: Pattern::compile(&rule.pattern, &format!("{field}.pattern"))?,
                arguments: rule.querystring_parameters.into_iter().map(argument).collect(),
                metric,
                delta: rule.delta.unwrap_or_default(),
                is_last: rule.last,
                owner: rule.owner_id.filter(|_| rule.owner_type == "BackendApi"),
                written: rule.pattern.into(),
            })
        };
        let rules: Box<[Rule]> = conf.into_iter().enumerate().map(compile).collect::<Result<_, Invalid>>()?;
        let has_arguments = rules.iter().any(|rule| !rule.arguments.is_empty());
        Ok(Self { rules, has_arguments })
    }

    /// Adds the usage of a request, and the numbers of the rules that match. `argument` gives the last value of an
    /// argument, `Some(None)` for one without a value.
    pub(super) fn apply<'v>(
        &self,
        method: &[u8],
        path: &[u8],
        argument: impl Fn(&[u8]) -> Option<Option<std::borrow::Cow<'v, [u8]>>>,
        usage: &mut Usage,
        matched: &mut Vec<u16>,
    ) {
        for (at, rule) in self.rules.iter().enumerate() {
            let is_wanted = |(name, value): &(Box<[u8]>, Option<Box<[u8]>>)| match (argument(name), value) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(given), Some(wanted)) => given.is_some_and(|given| given[..] == **wanted),
            };
            let takes = (rule.method.is_empty() || *rule.method == *method) && rule.pattern.matches(path);
            if takes && rule.arguments.iter().all(is_wanted) {
                usage.add(rule.metric, rule.delta);
                matched.push(at as u16);
                if rule.is_last {
                    break;
                }
            }
        }
        usage.drop_empty();
    }

    /// Takes back what rules of other backend APIs than `owner` have added.
    pub(super) fn keep_owner(&self, owner: u64, matched: &[u16], usage: &mut Usage) {
        for rule in matched.iter().filter_map(|at| self.rules.get(usize::from(*at))) {
            if rule.owner.is_some_and(|other| other != owner) {
                usage.add(rule.metric, -rule.delta);
            }
        }
        usage.drop_empty();
    }

    /// Appends the patterns of rules, as they were written.
    pub(super) fn write_patterns(&self, matched: &[u16], out: &mut Vec<u8>) {
        for (at, rule) in matched.iter().filter_map(|at| self.rules.get(usize::from(*at))).enumerate() {
            if at > 0 {
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(rule.written.as_bytes());
        }
    }
}

fn method(text: &str, field: &str) -> Result<Box<[u8]>, Invalid> {
    let is_method = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    match is_method {
        true => Ok(text.as_bytes().into()),
        false => Err(Invalid::new(
            format!("{field}.http_method"),
            format!("expected a method in capital letters, or ANY; found '{text}'"),
        )),
    }
}

/// True for a text with `{name}`.
fn is_parameter(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.split('{').skip(1).any(|rest| rest.split_once('}').is_some_and(|(name, _)| is_name(name)))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::json;

    use super::{Conf, Metrics, Pattern, Rules, Usage};

    #[test]
    fn patterns_are_those_of_apicast() {
        for (pattern, path, takes) in [
            ("/", "/any/thing", true),
            ("/a", "/abc", true),
            ("/a$", "/a", true),
            ("/a$", "/ab", false),
            ("/a//b", "/a/b", true),
            ("/a?x={y}", "/a/c", true),
            ("/v1.0/x", "/v1.0/x", true),
            ("/v1.0/x", "/v1a0/x", false),
            ("/u/{id}/p", "/u/12-a.b~c/p", true),
            ("/u/{id}/p", "/u/1/2/p", false),
            ("/u/{id}/p", "/u//p", false),
            ("/u/{id}$", "/u/a%20b", true),
            ("/u/{id}.json", "/u/7.json", true),
            ("/u/{id}.json", "/u/7xjson", false),
            ("/a/(b|c)", "/a/c", true),
            ("/a", "/x/a", false),
            ("/A", "/a", false),
        ] {
            let compiled = Pattern::compile(pattern, "x").expect("a pattern");
            assert_eq!(compiled.matches(path.as_bytes()), takes, "{pattern} {path}");
        }
        assert!(Pattern::compile("/a(", "x").is_err());
    }

    #[test]
    fn usage_is_that_of_all_rules_up_to_the_last() {
        let rules = json!([
            {"http_method": "GET", "pattern": "/a", "metric_system_name": "hits", "delta": 1},
            {"http_method": "ANY", "pattern": "/a/b", "metric_system_name": "hits", "delta": 2},
            {"http_method": "GET", "pattern": "/a/q", "metric_system_name": "q", "delta": 1,
             "querystring_parameters": {"p": "{any}", "v": "2"}},
            {"http_method": "GET", "pattern": "/a/l", "metric_system_name": "l", "delta": 5, "last": true},
            {"http_method": "GET", "pattern": "/a/l", "metric_system_name": "l", "delta": 7},
            {"http_method": "GET", "pattern": "/z", "metric_system_name": "z"},
            {"http_method": "GET", "pattern": "/o", "metric_system_name": "o", "delta": 3, "owner_id": 4,
             "owner_type": "BackendApi"}
        ]);
        let conf: Vec<Conf> = serde_json::from_value(rules).expect("rules");
        let names: Vec<String> = conf.iter().map(|rule| rule.metric_system_name.clone()).collect();
        let metrics = Metrics::new(names.iter().map(String::as_str));
        let rules = Rules::compile(conf, &metrics, "r").expect("rules");
        let used = |method: &str, path: &str, query: &[(&str, &str)], owner: Option<u64>| {
            let (mut usage, mut matched, mut out) = (Usage::default(), Vec::new(), Vec::new());
            let argument = |name: &[u8]| {
                let found = query.iter().rev().find(|(known, _)| known.as_bytes() == name);
                found.map(|(_, value)| Some(Cow::Owned(value.as_bytes().to_vec())))
            };
            rules.apply(method.as_bytes(), path.as_bytes(), argument, &mut usage, &mut matched);
            if let Some(owner) = owner {
                rules.keep_owner(owner, &matched, &mut usage);
            }
            usage.write_report(&metrics, &mut out);
            String::from_utf8(out).expect("text")
        };
        #[allow(clippy::type_complexity, reason = "a table of cases")]
        let cases: [(&str, &str, &[(&str, &str)], Option<u64>, &str); 9] = [
            ("GET", "/a/b", &[], None, "hits=3"),
            ("PUT", "/a/b", &[], None, "hits=2"),
            ("GET", "/a/q", &[("p", "x"), ("v", "1"), ("v", "2")], None, "hits=1&q=1"),
            ("GET", "/a/q", &[("v", "2")], None, "hits=1"),
            ("GET", "/a/l", &[], None, "hits=1&l=5"),
            ("GET", "/z", &[], None, ""),
            ("POST", "/none", &[], None, ""),
            ("GET", "/o", &[], Some(4), "o=3"),
            ("GET", "/o", &[], Some(5), ""),
        ];
        for (method, path, query, owner, expected) in cases {
            assert_eq!(used(method, path, query, owner), expected, "{method} {path}");
        }
    }
}
