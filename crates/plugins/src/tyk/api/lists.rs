//! Lists of paths of one version: ignored, black and white lists, internal paths, and limits of the size of requests.

use std::collections::BTreeMap;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Flow, Invalid, Request, RequestCx};
use weir_wire::head::Content;
use weir_wire::method::Method;

use super::Refusal;
use super::limits::Rate;
use crate::tyk::patterns;

/// The lists of a version.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    ignored: Vec<EntryConf>,
    black_list: Vec<EntryConf>,
    white_list: Vec<EntryConf>,
    internal: Vec<EntryConf>,
    size_limits: Vec<SizeConf>,
    rate_limit: Vec<RateConf>,
    /// Bytes that every request may have; 0: any number.
    global_size_limit: i64,
    /// Compares paths without regard to case.
    ignore_endpoint_case: bool,
}

/// A path.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct EntryConf {
    /// A regular expression that is searched in the path behind the listen path.
    path: String,
    /// The method; empty: those of `method_actions`.
    method: String,
    /// Compares the path without regard to case.
    ignore_case: bool,
    /// True for a path of the old form, which holds for all methods.
    any_method: bool,
    /// Actions, by methods.
    method_actions: BTreeMap<String, ActionConf>,
}

/// Action on a request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ActionConf {
    /// `no_action`, or `reply` for an answer in place of the upstream's.
    action: String,
    /// The status of a reply.
    code: i64,
    /// Its body.
    data: String,
    /// Its headers.
    headers: BTreeMap<String, String>,
}

/// A limit of the size of requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct SizeConf {
    path: String,
    method: String,
    /// Bytes.
    size_limit: i64,
}

/// A rate of one path, of all callers together.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RateConf {
    path: String,
    method: String,
    #[serde(flatten)]
    rate: Rate,
}

/// An answer that a list gives.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    body: Vec<u8>,
    headers: Vec<(String, String)>,
}

/// Verdict of a list on a request.
#[derive(Debug)]
pub(super) enum Verdict<'l> {
    Passes,
    Ignored,
    Forbidden,
    Replies(&'l Reply),
}

#[derive(Debug)]
struct Entry {
    pattern: Regex,
    any_method: bool,
    /// Methods, each with its reply if there is one.
    methods: Vec<(String, Option<Reply>)>,
}

/// The lists, compiled.
#[derive(Debug)]
pub(super) struct Lists {
    ignored: Vec<Entry>,
    black: Vec<Entry>,
    white: Vec<Entry>,
    internal: Vec<Entry>,
    sizes: Vec<(Regex, String, u64)>,
    rates: Vec<(Regex, String, Rate)>,
    global_size: u64,
}

impl Lists {
    pub(super) fn compile(conf: Conf) -> Result<Self, Invalid> {
        let ignores_case = conf.ignore_endpoint_case;
        let list = |name: &str, entries: Vec<EntryConf>| -> Result<Vec<Entry>, Invalid> {
            let compiled = entries.into_iter().enumerate();
            let compiled = compiled.map(|(at, entry)| {
                Entry::compile(entry, ignores_case).map_err(|error| Invalid::new(format!("{name}[{at}].path"), error))
            });
            compiled.collect()
        };
        let mut sizes = Vec::new();
        for (at, size) in conf.size_limits.into_iter().enumerate() {
            let pattern = patterns::compile(&patterns::pattern_of(&size.path), ignores_case);
            let pattern = pattern.map_err(|error| Invalid::new(format!("size_limits[{at}].path"), error))?;
            sizes.push((pattern, size.method, u64::try_from(size.size_limit).unwrap_or(0)));
        }
        let mut rates = Vec::new();
        for (at, rate) in conf.rate_limit.into_iter().enumerate() {
            let pattern = patterns::compile(&patterns::pattern_of(&rate.path), ignores_case);
            let pattern = pattern.map_err(|error| Invalid::new(format!("rate_limit[{at}].path"), error))?;
            rates.push((pattern, rate.method, rate.rate));
        }
        Ok(Self {
            rates,
            ignored: list("ignored", conf.ignored)?,
            black: list("black_list", conf.black_list)?,
            white: list("white_list", conf.white_list)?,
            internal: list("internal", conf.internal)?,
            sizes,
            global_size: u64::try_from(conf.global_size_limit).unwrap_or(0),
        })
    }

    /// Verdict of the lists: the first that has the path and the method counts. A white list forbids what is not in it.
    /// Paths that are internal are open to loops.
    pub(super) fn verdict(&self, method: &[u8], rest: &[u8], is_looping: bool) -> Verdict<'_> {
        let internal: &[Entry] = if is_looping { &[] } else { &self.internal };
        for (entries, verdict) in [
            (internal, Verdict::Forbidden),
            (&self.ignored, Verdict::Ignored),
            (&self.black, Verdict::Forbidden),
            (&self.white, Verdict::Passes),
        ] {
            for entry in entries {
                match entry.find(method, rest) {
                    Some(Some(reply)) => return Verdict::Replies(reply),
                    Some(None) => return verdict,
                    None => {}
                }
            }
        }
        if self.white.is_empty() { Verdict::Passes } else { Verdict::Forbidden }
    }

    /// The rate of a path: its pattern, its method and the rate.
    pub(super) fn rate(&self, method: &[u8], rest: &[u8]) -> Option<(&str, &str, Rate)> {
        let mut rates = self.rates.iter();
        let takes = |(pattern, name, _): &&(Regex, String, Rate)| {
            (name.is_empty() || name.as_bytes() == method) && pattern.is_match(rest)
        };
        rates.find(takes).map(|(pattern, name, rate)| (pattern.as_str(), name.as_str(), *rate))
    }

    /// Refuses a request that is too large, or whose size is not known.
    pub(super) fn check_size(&self, request: &Request, rest: &[u8]) -> Result<(), Refusal> {
        if self.sizes.is_empty() && self.global_size == 0 {
            return Ok(());
        }
        if matches!(request.method(), Method::Get | Method::Delete | Method::Trace | Method::Options | Method::Head) {
            return Ok(());
        }
        let of_path = self.sizes.iter().find(|(pattern, method, _)| {
            (method.is_empty() || method.as_bytes() == request.method_bytes()) && pattern.is_match(rest)
        });
        let limits = [self.global_size, of_path.map_or(0, |(_, _, size)| *size)];
        let Some(least) = limits.into_iter().filter(|limit| *limit > 0).min() else { return Ok(()) };
        match request.head.content {
            Content::Length(length) if length > least => Err((400, "Request is too large")),
            Content::Length(_) => Ok(()),
            _ => Err((411, "Content length is required for this request")),
        }
    }
}

impl Entry {
    fn compile(conf: EntryConf, ignores_case: bool) -> Result<Self, String> {
        let pattern = patterns::compile(&patterns::pattern_of(&conf.path), ignores_case || conf.ignore_case)?;
        let mut methods: Vec<(String, Option<Reply>)> = Vec::new();
        for (method, action) in conf.method_actions {
            let reply = (action.action == "reply").then(|| Reply {
                status: u16::try_from(action.code).ok().filter(|code| (200..600).contains(code)).unwrap_or(200),
                body: action.data.into_bytes(),
                headers: action.headers.into_iter().collect(),
            });
            methods.push((method, reply));
        }
        if !conf.method.is_empty() && !methods.iter().any(|(method, _)| *method == conf.method) {
            methods.push((conf.method, None));
        }
        Ok(Self { pattern, any_method: conf.any_method, methods })
    }

    /// The reply for a request that the entry takes, if it has one.
    fn find(&self, method: &[u8], rest: &[u8]) -> Option<Option<&Reply>> {
        let found = self.methods.iter().find(|(name, _)| name.as_bytes() == method);
        if found.is_none() && !self.any_method || !self.pattern.is_match(rest) {
            return None;
        }
        Some(found.and_then(|(_, reply)| reply.as_ref()))
    }
}

impl Reply {
    pub(super) fn answer(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut answer = cx.reply(self.status);
        let has_type = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        for (name, value) in &self.headers {
            answer = answer.field(name, value.as_bytes());
        }
        if !has_type {
            answer = answer.field("Content-Type", b"text/plain; charset=utf-8");
        }
        answer.body(&self.body).done()
    }
}
