//! `url_rewriting` and `rewrite_url_captures`: paths and arguments.

use regex::bytes::{Captures, Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx};
use weir_wire::query;

use super::headers::Op;
use super::{DraftLink, read};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};
use crate::threescale::usage::encode;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RewritingConf {
    commands: Vec<Command>,
    query_args_commands: Vec<ArgumentCommand>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Command {
    op: Substitution,
    regex: String,
    replace: String,
    #[serde(default)]
    options: Option<String>,
    #[serde(default, rename = "break")]
    is_last: bool,
    #[serde(default)]
    methods: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Substitution {
    /// The first match.
    Sub,
    /// All matches.
    Gsub,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ArgumentCommand {
    op: Op,
    arg: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    value_type: TextType,
    #[serde(default)]
    methods: Vec<String>,
}

#[derive(Debug)]
struct PathEdit {
    regex: Regex,
    replacement: Vec<Piece>,
    is_global: bool,
    is_last: bool,
    methods: Vec<String>,
}

/// A part of a replacement.
#[derive(Debug)]
enum Piece {
    Text(Vec<u8>),
    Group(usize),
}

#[derive(Debug)]
struct ArgumentEdit {
    op: Op,
    name: Box<[u8]>,
    value: Text,
    methods: Vec<String>,
}

/// The policy `url_rewriting`.
#[derive(Debug)]
struct Rewriting {
    paths: Box<[PathEdit]>,
    arguments: Box<[ArgumentEdit]>,
}

/// Compiles `url_rewriting`.
pub(super) fn url_rewriting(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<RewritingConf>(conf, field, cx)?;
    let path = |(at, command): (usize, Command)| {
        let field = format!("{field}.commands[{at}]");
        let options = command.options.unwrap_or_default();
        // The others are about how nginx compiles an expression.
        if let Some(unknown) = options.chars().find(|option| !"aisxmjoUuD".contains(*option)) {
            return Err(Invalid::new(format!("{field}.options"), format!("unknown option '{unknown}'")));
        }
        Ok(PathEdit {
            regex: regex(&command.regex, &options, &format!("{field}.regex"))?,
            replacement: pieces(&command.replace),
            is_global: command.op == Substitution::Gsub,
            is_last: command.is_last,
            methods: command.methods,
        })
    };
    let argument = |(at, command): (usize, ArgumentCommand)| {
        let field = format!("{field}.query_args_commands[{at}].value");
        let value = Text::compile(&command.value, command.value_type, &field)?;
        let name = command.arg.into_bytes().into();
        Ok(ArgumentEdit { op: command.op, name, value, methods: command.methods })
    };
    let paths = cx.ok(conf.commands.into_iter().enumerate().map(path).collect::<Result<_, Invalid>>());
    let arguments = conf.query_args_commands.into_iter().enumerate().map(argument);
    let arguments = cx.ok(arguments.collect::<Result<_, Invalid>>());
    Some(DraftLink::of(Rewriting { paths: paths?, arguments: arguments? }))
}

fn regex(text: &str, options: &str, field: &str) -> Result<Regex, Invalid> {
    let has = |option: char| options.contains(option);
    let built = RegexBuilder::new(text)
        .case_insensitive(has('i'))
        .dot_matches_new_line(has('s'))
        .multi_line(has('m'))
        .ignore_whitespace(has('x'))
        .unicode(has('u') || has('U'))
        .build();
    built.map_err(|error| {
        let text = error.to_string().lines().last().unwrap_or_default().to_owned();
        Invalid::new(field, format!("expected a regular expression without look-around and references: {text}"))
    })
}

/// The parts of a replacement: `$1`, `${1}` and `$$`.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let after = rest.get(letter.len_utf8()..).unwrap_or_default();
        let group = (letter == '$').then(|| group_at(after)).flatten();
        match group {
            Some((number, length)) => {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(Piece::Group(number));
                rest = after.get(length..).unwrap_or_default();
            }
            None if letter == '$' && after.starts_with('$') => {
                plain.push(b'$');
                rest = after.get(1..).unwrap_or_default();
            }
            None => {
                plain.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
            }
        }
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    pieces
}

/// The number of a group behind `$`, and the length of what names it.
fn group_at(text: &str) -> Option<(usize, usize)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(inner) = text.strip_prefix('{') {
        let length = digits(inner);
        let number = inner.get(..length)?.parse().ok()?;
        return (inner.get(length..)?.starts_with('}')).then_some((number, length + 2));
    }
    let length = digits(text);
    Some((text.get(..length)?.parse().ok()?, length))
}

impl PathEdit {
    /// The changed path; `None` without a match.
    fn apply(&self, path: &[u8]) -> Option<Vec<u8>> {
        let limit = if self.is_global { 0 } else { 1 };
        self.regex.is_match(path).then(|| {
            self.regex
                .replacen(path, limit, |captures: &Captures<'_>| {
                    let mut out = Vec::new();
                    for piece in &self.replacement {
                        match piece {
                            Piece::Text(text) => out.extend_from_slice(text),
                            Piece::Group(number) => {
                                out.extend_from_slice(captures.get(*number).map_or(&[][..], |group| group.as_bytes()));
                            }
                        }
                    }
                    out
                })
                .into_owned()
        })
    }
}

fn takes(methods: &[String], method: &[u8]) -> bool {
    methods.is_empty() || methods.iter().any(|known| known.as_bytes() == method)
}

impl Policy for Rewriting {
    fn rewrite(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        for edit in &self.paths {
            if !takes(&edit.methods, cx.request().method_bytes()) {
                continue;
            }
            if let Some(path) = edit.apply(state.path(cx.request())) {
                state.set_path(&path);
                if edit.is_last {
                    break;
                }
            }
        }
        for edit in &self.arguments {
            if takes(&edit.methods, cx.request().method_bytes()) {
                let around = Around { view: cx.view(), state, names: &parts.names };
                let value = edit.value.render(&around).into_owned();
                change_argument(cx, edit.op, &edit.name, value.as_bytes());
            }
        }
        Step::Next
    }
}

/// Changes the arguments of a name.
fn change_argument(cx: &mut RequestCx<'_>, op: Op, name: &[u8], value: &[u8]) {
    let mut changed = Vec::new();
    let mut has_one = false;
    for argument in cx.request().query().unwrap_or_default().split(|byte| *byte == b'&') {
        let is_same = query::has_name(argument, name);
        has_one |= is_same;
        if argument.is_empty() || is_same && matches!(op, Op::Set | Op::Delete) {
            continue;
        }
        if !changed.is_empty() {
            changed.push(b'&');
        }
        changed.extend_from_slice(argument);
    }
    if op == Op::Push || op == Op::Set || op == Op::Add && has_one {
        if !changed.is_empty() {
            changed.push(b'&');
        }
        encode(name, &mut changed);
        changed.push(b'=');
        encode(value, &mut changed);
    }
    cx.request_mut().set_query(&changed);
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct CapturesConf {
    transformations: Vec<Transformation>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Transformation {
    match_rule: String,
    template: String,
    methods: Vec<String>,
}

#[derive(Debug)]
struct Transform {
    regex: Regex,
    /// The template: texts, and the numbers of captures.
    path: Vec<Piece>,
    arguments: Vec<(Box<[u8]>, Vec<Piece>)>,
    methods: Vec<String>,
}

/// The policy `rewrite_url_captures`.
#[derive(Debug)]
struct CapturesPolicy(Box<[Transform]>);

/// Compiles `rewrite_url_captures`.
pub(super) fn rewrite_url_captures(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<CapturesConf>(conf, field, cx)?;
    let compile = |(at, given): (usize, Transformation)| {
        let (mut pattern, mut names) = (String::from("(?-u)"), Vec::new());
        let mut rest = given.match_rule.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else { break };
            pattern.push_str(before);
            pattern.push_str(r"([\w\-.~%!$&'()*+,;=@:]+)");
            names.push(name);
            rest = after;
        }
        pattern.push_str(rest);
        let regex = regex(&pattern, "", &format!("{field}.transformations[{at}].match_rule"))?;
        let (path, arguments) = given.template.split_once('?').unwrap_or((&given.template, ""));
        let arguments = arguments.split('&').filter(|argument| !argument.is_empty()).map(|argument| {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            (name.as_bytes().into(), named_pieces(value, &names))
        });
        Ok(Transform {
            regex,
            path: named_pieces(path, &names),
            arguments: arguments.collect(),
            methods: given.methods,
        })
    };
    let all = conf.transformations.into_iter().enumerate().map(compile).collect::<Result<_, Invalid>>();
    Some(DraftLink::of(CapturesPolicy(cx.ok(all)?)))
}

/// The parts of a template in which `{name}` stands for a capture.
fn named_pieces(text: &str, names: &[&str]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        pieces.push(Piece::Text(before.as_bytes().to_vec()));
        match names.iter().position(|known| *known == name) {
            Some(at) => pieces.push(Piece::Group(at + 1)),
            None => pieces.push(Piece::Text(format!("{{{name}}}").into_bytes())),
        }
        rest = after;
    }
    pieces.push(Piece::Text(rest.as_bytes().to_vec()));
    pieces
}

fn filled(pieces: &[Piece], captures: &Captures<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Group(number) => {
                out.extend_from_slice(captures.get(*number).map_or(&[][..], |group| group.as_bytes()));
            }
        }
    }
    out
}

impl Policy for CapturesPolicy {
    fn rewrite(&self, _: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let path = state.path(cx.request()).to_vec();
        for transform in &self.0 {
            if !takes(&transform.methods, cx.request().method_bytes()) {
                continue;
            }
            let Some(captures) = transform.regex.captures(&path) else { continue };
            state.set_path(&filled(&transform.path, &captures));
            for (name, value) in &transform.arguments {
                change_argument(cx, Op::Set, name, &filled(value, &captures));
            }
            return Step::Next;
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::{PathEdit, pieces, regex};

    #[test]
    fn paths_are_substituted_as_in_nginx() {
        for (pattern, replace, options, is_global, path, expected) in [
            ("a", "b", "", false, "/a/a", Some("/b/a")),
            ("a", "b", "", true, "/a/a", Some("/b/b")),
            ("A", "b", "i", false, "/a", Some("/b")),
            ("/v(\\d+)/(.*)", "/$2/${1}0", "oj", false, "/v1/x", Some("/x/10")),
            ("x", "$$1", "", false, "/x", Some("/$1")),
            ("none", "b", "", true, "/a", None),
        ] {
            let edit = PathEdit {
                regex: regex(pattern, options, "x").expect("an expression"),
                replacement: pieces(replace),
                is_global,
                is_last: false,
                methods: Vec::new(),
            };
            let changed = edit.apply(path.as_bytes()).map(|path| String::from_utf8(path).expect("text"));
            assert_eq!(changed.as_deref(), expected, "{pattern}");
        }
    }
}
