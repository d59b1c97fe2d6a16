//! A configuration text as a tree of values with their positions.

mod de;
mod json;
mod tree;
mod yaml;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::Diagnostic;
use crate::code::Code;
pub(crate) use de::{PLUGIN_CONF, coded, field_hint, hint_for};
pub use json::parse_json;
pub use yaml::parse_yaml;
pub(crate) use yaml::plain_scalar;

/// Key that marks a plugin's configuration with a reference that has no value, on its way to
/// [`PluginConf`](crate::PluginConf).
pub(crate) const UNRESOLVED: &str = "\0unresolved";

/// Key with the number under which a plugin's compiled configuration is kept, on its way to
/// [`PluginConf`](crate::PluginConf).
pub(crate) const COMPILED: &str = "\0compiled";

/// The largest text that is read, in bytes. A file of 100,000 routes has some 25 MiB.
pub const MAX_TEXT_BYTES: usize = 256 * 1024 * 1024;

/// Maximum depth of lists and mappings.
pub const MAX_DEPTH: usize = 128;

/// Number of values that YAML aliases may add to those that are written out. Bounds the work that a small text can cause:
/// nine lists of nine aliases each, nested nine times, would be 400 million values.
pub const MAX_ALIASED_NODES: usize = 1_000_000;

/// A value and where it stood.
///
/// Two nodes are equal when their values are: a change that only moves lines is none.
#[derive(Clone, Debug)]
pub struct Node {
    /// Beginning of the value.
    pub mark: Mark,
    /// The value.
    pub kind: Kind,
}

/// Content of a [`Node`].
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `null`, `~` or nothing at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or an exponent, or one too large for [`Kind::Int`].
    Float(f64),
    /// A text.
    Str(String),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping in the order it was written; keys are unique.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping and where it stood.
#[derive(Clone, Debug)]
pub struct Key {
    /// The key; a number or a boolean as it was written. Shared, because a large file repeats the same few keys
    /// thousands of times.
    pub text: Arc<str>,
    /// Beginning of the key.
    pub mark: Mark,
}

/// A position in a text: 1-based line and column, counted in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// 1-based line; 0 when unknown.
    pub line: u32,
    /// 1-based column; 0 when unknown.
    pub column: u32,
}

/// A text that was read, with what is doubtful in it.
#[derive(Debug)]
pub struct Parsed {
    /// The tree.
    pub root: Node,
    /// Keys that a mapping has twice; the tree holds the later value, as APISIX does.
    pub repeated: Vec<RepeatedKey>,
    /// Beginning of a second YAML document, which is not read.
    pub second_document: Option<Mark>,
}

/// A key that stands twice in one mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedKey {
    /// Path of the value.
    pub path: String,
    /// The earlier key.
    pub first: Mark,
    /// The later key.
    pub second: Mark,
}

impl Node {
    /// A value that stood nowhere.
    pub fn new(kind: Kind) -> Self {
        Self { mark: Mark::NONE, kind }
    }

    /// An empty mapping that stood nowhere.
    pub fn empty_map() -> Self {
        Self::new(Kind::Map(Vec::new()))
    }

    /// Puts a value under a key of a mapping, in the place of the one that is there.
    pub fn insert(&mut self, name: &str, value: Node) {
        let Kind::Map(entries) = &mut self.kind else { return };
        match entries.iter_mut().find(|(key, _)| &*key.text == name) {
            Some((_, old)) => *old = value,
            None => entries.push((Key { text: name.into(), mark: value.mark }, value)),
        }
    }

    /// Reads YAML or JSON, whichever the text is: JSON when it begins like JSON and can be read as such.
    pub fn parse(text: &str) -> Result<Parsed, Diagnostic> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_start().starts_with(['{', '[']) {
            match parse_json(text) {
                Ok(parsed) => return Ok(parsed),
                // Flow-style YAML begins in the same way. If the text is neither, the parser that got further has the
                // better error.
                Err(json) => return parse_yaml(text).map_err(|yaml| if yaml.mark > json.mark { yaml } else { json }),
            }
        }
        parse_yaml(text)
    }

    /// Reads the value into a type. The first thing that does not fit is the error, with its path relative to this
    /// value.
    pub fn parse_into<T: DeserializeOwned>(&self) -> Result<T, Diagnostic> {
        de::read(self)
    }

    /// The value under a key of a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// The value under a key of a mapping, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.kind {
            Kind::Map(entries) => entries.iter_mut().find(|(k, _)| &*k.text == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The key, with its position, and the value.
    pub fn entry(&self, key: &str) -> Option<(&Key, &Node)> {
        self.as_map()?.iter().find(|(k, _)| &*k.text == key).map(|(k, node)| (k, node))
    }

    /// Takes a key and its value out of a mapping.
    pub fn remove(&mut self, key: &str) -> Option<(Key, Node)> {
        match &mut self.kind {
            Kind::Map(entries) => {
                let at = entries.iter().position(|(k, _)| &*k.text == key)?;
                Some(entries.remove(at))
            }
            _ => None,
        }
    }

    /// The entries of a mapping.
    pub fn as_map(&self) -> Option<&[(Key, Node)]> {
        match &self.kind {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The elements of a list.
    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.kind {
            Kind::Seq(items) => Some(items),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.kind {
            Kind::Str(text) => Some(text),
            _ => None,
        }
    }

    /// True for null.
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// Position of the value under a key, or of this value when it has none.
    pub fn mark_of(&self, key: &str) -> Mark {
        self.get(key).map_or(self.mark, |node| node.mark)
    }

    /// The value as JSON; a number that JSON cannot hold (infinity) becomes null.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(b) => Value::Bool(*b),
            Kind::Int(i) => Value::from(*i),
            Kind::Float(f) => Value::from(*f),
            Kind::Str(s) => Value::String(s.clone()),
            Kind::Seq(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Kind::Map(entries) => {
                Value::Object(entries.iter().map(|(key, node)| (key.text.to_string(), node.to_json())).collect())
            }
        }
    }

    /// A short description for an error: `"abc"`, `3`, `a list`.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing (null)".into(),
            Kind::Bool(b) => b.to_string(),
            Kind::Int(i) => i.to_string(),
            Kind::Float(f) => f.to_string(),
            Kind::Str(s) => quoted(s),
            Kind::Seq(items) if items.is_empty() => "an empty list".into(),
            Kind::Seq(_) => "a list".into(),
            Kind::Map(_) => "a mapping".into(),
        }
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        Self::new(match value {
            Value::Null => Kind::Null,
            Value::Bool(b) => Kind::Bool(*b),
            Value::Number(n) => match n.as_i64() {
                Some(i) => Kind::Int(i),
                None => Kind::Float(n.as_f64().unwrap_or(f64::MAX)),
            },
            Value::String(s) => Kind::Str(s.clone()),
            Value::Array(items) => Kind::Seq(items.iter().map(Node::from).collect()),
            Value::Object(entries) => Kind::Map(
                entries
                    .iter()
                    .map(|(key, value)| (Key { text: key.as_str().into(), mark: Mark::NONE }, Node::from(value)))
                    .collect(),
            ),
        })
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.kind {
            Kind::Null => serializer.serialize_unit(),
            Kind::Bool(b) => serializer.serialize_bool(*b),
            Kind::Int(i) => serializer.serialize_i64(*i),
            Kind::Float(f) => serializer.serialize_f64(*f),
            Kind::Str(s) => serializer.serialize_str(s),
            Kind::Seq(items) => serializer.collect_seq(items),
            Kind::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, node) in entries {
                    map.serialize_entry(&*key.text, node)?;
                }
                map.end()
            }
        }
    }
}

impl Mark {
    /// No position.
    pub const NONE: Self = Self { line: 0, column: 0 };

    /// True if the position is known.
    pub fn is_known(self) -> bool {
        self.line != 0
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

fn too_large(size: usize) -> Diagnostic {
    Diagnostic::error(Mark::NONE, "", Code::TextTooLong { bytes: size })
}

/// A text in quotes for a message, shortened, with control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// Adds one step to a path: `.name`, or `["na.me"]` where the name would make the path ambiguous.
pub fn push_name(path: &mut String, name: &str) {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'$'));
    if !plain {
        path.push_str(&format!("[{}]", quoted(name)));
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Way to a value, which becomes a text only for a finding about the value.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Text(&'a str),
    Name(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Path::Root => {}
            Path::Text(text) => out.push_str(text),
            Path::Name(parent, name) => {
                parent.write(out);
                push_name(out, name);
            }
            Path::Index(parent, index) => {
                parent.write(out);
                push_index(out, *index);
            }
        }
    }
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Step to a field.
    Name(String),
    /// Step to an element of a list.
    Index(usize),
}

/// The steps of the path of a diagnostic, such as `upstream.nodes["a:1"]` or `uris[0]`.
pub fn steps(path: &str) -> Vec<Step> {
    let mut found = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = quoted.split_once("\"]").unwrap_or((quoted, ""));
            found.push(Step::Name(name.replace("\\\"", "\"")));
            rest = after;
        } else if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']').unwrap_or((index, ""));
            found.push(index.parse().map_or_else(|_| Step::Name(index.to_owned()), Step::Index));
            rest = after;
        } else {
            let name = rest.trim_start_matches('.');
            let end = name.find(['.', '[']).unwrap_or(name.len());
            found.push(Step::Name(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    found
}

/// Adds one step to a path: `[3]`.
pub(crate) fn push_index(path: &mut String, index: usize) {
    path.push_str(&format!("[{index}]"));
}
