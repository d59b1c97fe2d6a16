//! URL rewrites with their triggers.

use std::collections::BTreeMap;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{BuildCx, Invalid, Request, RequestCx};

use super::Whole;
use super::target::{self, Base};
use super::values::{Meta, Text, Values};
use crate::query;
use crate::tyk::{loops, patterns};

/// A rewrite.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    path: String,
    method: String,
    /// A regular expression that is searched in path and query behind the listen path.
    match_pattern: String,
    /// The new path and query, or a whole URL; `$1` stands for a group.
    rewrite_to: String,
    /// Conditions with results of their own; the first that holds counts.
    triggers: Vec<TriggerConf>,
}

impl Conf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// A condition.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct TriggerConf {
    /// `all` or `any`.
    on: String,
    options: Options,
    rewrite_to: String,
}

/// Sources of a condition, by names.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Options {
    header_matches: BTreeMap<String, MatchConf>,
    query_val_matches: BTreeMap<String, MatchConf>,
    path_part_matches: BTreeMap<String, MatchConf>,
    session_meta_matches: BTreeMap<String, MatchConf>,
    request_context_matches: BTreeMap<String, MatchConf>,
}

/// Pattern that is searched in a value.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct MatchConf {
    match_rx: String,
    reverse: bool,
}

/// A rewrite, compiled.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Regex,
    to: Destination,
    triggers: Box<[Trigger]>,
}

/// A new path and query, and the upstream of a whole URL.
#[derive(Debug)]
struct Destination {
    text: Text,
    /// Scheme and authority of a whole URL.
    url: Option<String>,
    upstream: Option<u32>,
    /// The API that a loop leads to.
    target: Option<loops::Target>,
}

/// Result of a rewrite.
pub(super) enum Rewritten<'r> {
    /// The request has not the pattern.
    No,
    /// The target of the upstream is settled.
    Yes,
    /// The request goes on at an API, with this path and query.
    Leads(&'r loops::Target, Vec<u8>),
}

#[derive(Debug)]
struct Trigger {
    needs_all: bool,
    matches: Box<[(Place, String, Regex, bool)]>,
    to: Destination,
}

/// Place of a value that a trigger looks at.
#[derive(Clone, Copy, Debug)]
enum Place {
    Header,
    Query,
    Part,
    Meta,
}

impl Destination {
    fn compile(to: &str, field: &str, apis: &loops::Ids) -> Result<Self, Invalid> {
        if let Some((name, rest)) = loops::parse(to) {
            if name.contains('$') {
                return Err(Invalid::new(field, "the API of a loop has to be fixed: variables may stand behind it"));
            }
            let target = Some(loops::Target::new(name, apis));
            return Ok(Self { text: Text::parse(rest), url: None, upstream: None, target });
        }
        let is_whole = to.starts_with("http://") || to.starts_with("https://");
        if !is_whole {
            return Ok(Self { text: Text::parse(to), url: None, upstream: None, target: None });
        }
        let rest = to.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        if authority.contains('$') {
            return Err(Invalid::new(field, "the host of a rewrite has to be fixed: variables may stand behind it"));
        }
        let end = to.len() - rest.len() + authority.len();
        let (url, path) = to.split_at(end);
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { text: Text::parse(path), url: Some(url.to_owned()), upstream: None, target: None })
    }

    fn build(&mut self, upstream: &Map<String, Value>, field: &str, build: &BuildCx<'_>) -> Result<(), Invalid> {
        if let Some(url) = &self.url {
            self.upstream = Some(target::add(target::at_url(upstream, url)?, field, build)?);
        }
        Ok(())
    }
}

impl Rewrite {
    pub(super) fn compile(conf: Conf, field: &str, apis: &loops::Ids) -> Result<Self, Invalid> {
        let pattern = patterns::compile(&conf.match_pattern, false);
        let mut triggers = Vec::new();
        for (at, trigger) in conf.triggers.into_iter().enumerate() {
            triggers.push(Trigger::compile(trigger, &format!("{field}.triggers[{at}]"), apis)?);
        }
        Ok(Self {
            pattern: pattern.map_err(|error| Invalid::new(format!("{field}.match_pattern"), error))?,
            to: Destination::compile(&conf.rewrite_to, &format!("{field}.rewrite_to"), apis)?,
            triggers: triggers.into(),
        })
    }

    pub(super) fn build(
        &mut self,
        upstream: &Map<String, Value>,
        at: usize,
        build: &BuildCx<'_>,
    ) -> Result<(), Invalid> {
        self.to.build(upstream, &format!("url_rewrites{at}"), build)?;
        for (number, trigger) in self.triggers.iter_mut().enumerate() {
            trigger.to.build(upstream, &format!("url_rewrites{at}triggers{number}"), build)?;
        }
        Ok(())
    }

    /// Settles the target of a request that has the pattern. Context variables have values in any case.
    pub(super) fn apply(
        &self,
        cx: &mut RequestCx<'_>,
        whole: &Whole<'_>,
        base: &Base,
        meta: Option<&Meta>,
    ) -> Rewritten<'_> {
        let mut given = Vec::new();
        let rest = target::rest(cx.request(), whole);
        if !rest.starts_with(b"/") {
            given.push(b'/');
        }
        given.extend_from_slice(rest);
        if let Some(query) = cx.request().query() {
            given.push(b'?');
            given.extend_from_slice(query);
        }
        let Some(groups) = self.pattern.captures(&given) else { return Rewritten::No };
        let mut captured = Vec::new();
        let to = self
            .triggers
            .iter()
            .enumerate()
            .find(|(number, trigger)| trigger.holds(*number, cx.request(), &given, meta, &mut captured));
        let to = to.map_or(&self.to, |(_, trigger)| &trigger.to);
        let (request, source) = (cx.request(), cx.source());
        let mut text = Vec::new();
        to.text.write(&Values { request, source, meta, has_context: true, captured: &captured }, &mut text);
        let mut made = Vec::new();
        expand(&text, &groups, &mut made);
        made.retain(|byte| !byte.is_ascii_control() && *byte != b' ');
        if let Some(target) = &to.target {
            return Rewritten::Leads(target, made);
        }
        let cut = made.iter().position(|byte| *byte == b'?');
        let path = made.get(..cut.unwrap_or(made.len())).unwrap_or_default();
        let query = cut.and_then(|cut| made.get(cut + 1..));
        let nothing = Base::of("");
        let base = if to.url.is_some() { &nothing } else { base };
        let mut out = std::mem::take(&mut cx.request_mut().upstream.target);
        out.clear();
        base.join(path, query, &mut out);
        cx.request_mut().upstream.target = out;
        if to.upstream.is_some() {
            cx.choose_upstream(to.upstream);
        }
        Rewritten::Yes
    }
}

/// Appends a text in which `$1` stands for a group. A group that is not there is empty.
fn expand(text: &[u8], groups: &regex::bytes::Captures<'_>, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if *byte == b'$' && digits > 0 {
            let number = after.get(..digits).unwrap_or_default();
            let number = std::str::from_utf8(number).ok().and_then(|number| number.parse::<usize>().ok());
            let group = number.and_then(|number| groups.get(number));
            out.extend_from_slice(group.map_or(&[], |group| group.as_bytes()));
            rest = after.get(digits..).unwrap_or_default();
        } else {
            out.push(*byte);
            rest = after;
        }
    }
}

impl Trigger {
    fn compile(conf: TriggerConf, field: &str, apis: &loops::Ids) -> Result<Self, Invalid> {
        if !conf.options.request_context_matches.is_empty() {
            let text =
                "triggers on context variables are not supported: match the header, the query or the path itself";
            return Err(Invalid::new(format!("{field}.options.request_context_matches"), text));
        }
        let mut matches = Vec::new();
        for (place, named) in [
            (Place::Header, conf.options.header_matches),
            (Place::Query, conf.options.query_val_matches),
            (Place::Part, conf.options.path_part_matches),
            (Place::Meta, conf.options.session_meta_matches),
        ] {
            for (name, condition) in named {
                let pattern = patterns::compile(&condition.match_rx, false);
                let pattern = pattern.map_err(|error| Invalid::new(format!("{field}.options"), error))?;
                matches.push((place, name, pattern, condition.reverse));
            }
        }
        let to = Destination::compile(&conf.rewrite_to, &format!("{field}.rewrite_to"), apis)?;
        Ok(Self { needs_all: conf.on == "all", matches: matches.into(), to })
    }

    /// True if the condition holds. What it has matched goes to `captured`, under the names of context variables.
    fn holds(
        &self,
        number: usize,
        request: &Request,
        given: &[u8],
        meta: Option<&Meta>,
        captured: &mut Vec<(String, Vec<u8>)>,
    ) -> bool {
        let mut holds = |(place, name, pattern, reverse): &(Place, String, Regex, bool)| {
            let (value, shown) = place.value(name, request, given, meta);
            let found = value.as_ref().and_then(|value| pattern.find(value));
            if let Some(found) = &found {
                captured.push((format!("trigger-{number}-{shown}-0"), found.as_bytes().to_vec()));
            }
            found.is_some() != *reverse
        };
        match self.needs_all {
            true => self.matches.iter().all(holds),
            false => self.matches.iter().any(&mut holds),
        }
    }
}

impl Place {
    /// A value, and the name under which it is captured.
    fn value(self, name: &str, request: &Request, given: &[u8], meta: Option<&Meta>) -> (Option<Vec<u8>>, String) {
        match self {
            Self::Header => (request.field_str(name).map(<[u8]>::to_vec), canonical(name)),
            Self::Query => {
                let value = request.query().and_then(|query| query::argument(query, name.as_bytes()));
                let value = value.map(|value| {
                    let mut decoded = Vec::new();
                    query::decode(value, &mut decoded);
                    decoded
                });
                (value, name.to_owned())
            }
            Self::Part => {
                let path = given.split(|byte| *byte == b'?').next().unwrap_or_default();
                (Some(path.to_vec()), name.to_owned())
            }
            Self::Meta => {
                let value = meta.and_then(|meta| meta.get(name));
                let value =
                    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned).into_bytes());
                (value, name.to_owned())
            }
        }
    }
}

/// The name of a header as Go writes it.
fn canonical(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| {
            first.to_uppercase().chain(letters.flat_map(char::to_lowercase)).collect()
        })
    };
    name.split('-').map(word).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::{canonical, expand};
    use regex::bytes::Regex;

    #[test]
    fn groups_are_put_in() {
        let pattern = Regex::new("/rw/(\\w+)(x)?").expect("a pattern");
        for (to, expected) in [("/new/$1", "/new/abc"), ("/$1$2/$10.$", "/abc/.$"), ("/a?b=$1", "/a?b=abc")] {
            let mut out = Vec::new();
            expand(to.as_bytes(), &pattern.captures(b"/rw/abc/def").expect("a match"), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
        assert_eq!(canonical("x-API-key"), "X-Api-Key");
    }
}
