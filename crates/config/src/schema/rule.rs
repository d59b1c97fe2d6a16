//! Schemas, compiled to be checked against.

use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::fault::Fault;
use crate::node::{Kind, Node};

/// The rules of a schema: that of the schema itself first, then those inside it.
pub(super) fn compile(schema: &Value) -> Vec<Rule> {
    let mut builder = Builder { root: schema, rules: Vec::new(), references: HashMap::new() };
    builder.add(schema);
    builder.rules
}

/// One schema, with the schemas inside it as indices into [`Checker::rules`].
#[derive(Debug, Default)]
pub(super) struct Rule {
    pub(super) types: Vec<Type>,
    pub(super) expected: Option<String>,
    pub(super) choices: Vec<Value>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) above: Option<f64>,
    pub(super) below: Option<f64>,
    pub(super) min_length: Option<usize>,
    pub(super) max_length: Option<usize>,
    pub(super) pattern: Option<Regex>,
    pub(super) fields: Vec<(String, usize)>,
    pub(super) required: Vec<String>,
    pub(super) others: Others,
    pub(super) max_fields: Option<usize>,
    pub(super) items: Option<usize>,
    pub(super) min_items: Option<usize>,
    pub(super) max_items: Option<usize>,
    pub(super) unique: bool,
    pub(super) any_of: Vec<usize>,
    pub(super) all_of: Vec<usize>,
}

/// Fields of a mapping beyond its known fields.
#[derive(Debug, Default)]
pub(super) enum Others {
    #[default]
    Any,
    None,
    Each(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Integer,
    Number,
    Text,
    List,
    Mapping,
}

struct Builder<'a> {
    root: &'a Value,
    rules: Vec<Rule>,
    references: HashMap<String, usize>,
}

impl<'a> Builder<'a> {
    /// Compiles a schema; the rule has its place before those inside it have theirs, so that a type may contain itself.
    fn add(&mut self, schema: &'a Value) -> usize {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(&known) = self.references.get(reference) {
                return known;
            }
            let at = self.rules.len();
            self.references.insert(reference.to_owned(), at);
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            return match target {
                Some(target) => self.add(target),
                None => self.push(),
            };
        }
        let at = self.push();
        let Some(object) = schema.as_object() else {
            return at;
        };
        let rule = self.compile(object);
        self.rules[at] = rule;
        at
    }

    fn push(&mut self) -> usize {
        self.rules.push(Rule::default());
        self.rules.len() - 1
    }

    fn compile(&mut self, object: &'a Map<String, Value>) -> Rule {
        let number = |key: &str| object.get(key).and_then(Value::as_f64);
        let size = |key: &str| object.get(key).and_then(Value::as_u64).map(|n| n as usize);
        let mut rule = Rule {
            types: types(object.get("type")),
            expected: object.get("x-expected").and_then(Value::as_str).map(str::to_owned),
            choices: match (object.get("enum"), object.get("const")) {
                (Some(Value::Array(choices)), _) => choices.clone(),
                (_, Some(choice)) => vec![choice.clone()],
                _ => Vec::new(),
            },
            min: number("minimum"),
            max: number("maximum"),
            above: number("exclusiveMinimum"),
            below: number("exclusiveMaximum"),
            min_length: size("minLength"),
            max_length: size("maxLength"),
            pattern: object
                .get("pattern")
                .and_then(Value::as_str)
                .map(|pattern| Regex::new(pattern).expect("the pattern of a schema is a regular expression")),
            min_items: size("minItems"),
            max_items: size("maxItems"),
            max_fields: size("maxProperties"),
            unique: object.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false),
            ..Rule::default()
        };
        match object.get("format").and_then(Value::as_str) {
            Some("uint32") => rule.max = rule.max.or(Some(u32::MAX.into())),
            Some("int32") => {
                rule.min = rule.min.or(Some(i32::MIN.into()));
                rule.max = rule.max.or(Some(i32::MAX.into()));
            }
            _ => {}
        }
        for (name, schema) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let at = self.add(schema);
            rule.fields.push((name.clone(), at));
        }
        for name in object.get("required").and_then(Value::as_array).into_iter().flatten() {
            rule.required.extend(name.as_str().map(str::to_owned));
        }
        rule.others = match object.get("additionalProperties") {
            None | Some(Value::Bool(true)) => Others::Any,
            Some(Value::Bool(false)) => Others::None,
            Some(schema) => Others::Each(self.add(schema)),
        };
        rule.items = object.get("items").filter(|schema| schema.is_object()).map(|schema| self.add(schema));
        for keyword in ["anyOf", "oneOf"] {
            for schema in object.get(keyword).and_then(Value::as_array).into_iter().flatten() {
                let at = self.add(schema);
                rule.any_of.push(at);
            }
        }
        for schema in object.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let at = self.add(schema);
            rule.all_of.push(at);
        }
        // A choice among names is easier to speak of as one list of names.
        let names = |at: &usize| match self.rules[*at].choices.as_slice() {
            [] => None,
            choices => Some(choices.to_vec()),
        };
        if let Some(choices) = rule.any_of.iter().map(names).collect::<Option<Vec<_>>>().filter(|c| !c.is_empty()) {
            rule.choices.extend(choices.into_iter().flatten());
            rule.any_of.clear();
        }
        rule
    }
}

fn types(keyword: Option<&Value>) -> Vec<Type> {
    let one = |name: &Value| match name.as_str()? {
        "boolean" => Some(Type::Bool),
        "integer" => Some(Type::Integer),
        "number" => Some(Type::Number),
        "string" => Some(Type::Text),
        "array" => Some(Type::List),
        "object" => Some(Type::Mapping),
        _ => None,
    };
    match keyword {
        Some(Value::Array(names)) => names.iter().filter_map(one).collect(),
        Some(name) => one(name).into_iter().collect(),
        None => Vec::new(),
    }
}

impl Type {
    fn fits(self, node: &Node) -> bool {
        match (self, &node.kind) {
            (Self::Bool, Kind::Bool(_))
            | (Self::Integer | Self::Number, Kind::Int(_))
            | (Self::Text, Kind::Str(_))
            | (Self::List, Kind::Seq(_))
            | (Self::Mapping, Kind::Map(_)) => true,
            (Self::Number, Kind::Float(number)) => number.is_finite(),
            // JSON writers make 1e6 of 1000000. Beyond 2^53 a float is no exact integer.
            (Self::Integer, Kind::Float(number)) => number.fract() == 0.0 && number.abs() < 9e15,
            _ => false,
        }
    }
}

impl Rule {
    /// The rule of a known field.
    pub(super) fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, at)| *at)
    }

    pub(super) fn fits_type(&self, node: &Node) -> bool {
        self.types.is_empty() || self.types.iter().any(|kind| kind.fits(node))
    }

    /// Words for what the value should be.
    pub(super) fn expectation(&self) -> String {
        if let Some(expected) = &self.expected {
            return expected.clone();
        }
        if !self.choices.is_empty() {
            let choices: Vec<String> = self
                .choices
                .iter()
                .map(|choice| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned))
                .collect();
            return match choices.as_slice() {
                [only] => only.clone(),
                _ => format!("one of {}", choices.join(", ")),
            };
        }
        let words: Vec<String> = self.types.iter().map(|kind| self.words(*kind)).collect();
        if words.is_empty() { "another value".into() } else { words.join(" or ") }
    }

    fn words(&self, kind: Type) -> String {
        let count = |min: Option<usize>, max: Option<usize>, what: &str| match (min, max) {
            (None | Some(0), None) => String::new(),
            (Some(min), None) => format!(" of {min} or more {what}"),
            (None | Some(0), Some(max)) => format!(" of at most {max} {what}"),
            (Some(min), Some(max)) if min == max => format!(" of {min} {what}"),
            (Some(min), Some(max)) => format!(" of {min} to {max} {what}"),
        };
        match kind {
            Type::Bool => "true or false".into(),
            Type::Integer => format!("an integer{}", self.range()),
            Type::Number => format!("a number{}", self.range()),
            Type::Text => match &self.pattern {
                Some(pattern) => format!("a text that matches {}", pattern.as_str()),
                None => format!("a text{}", count(self.min_length, self.max_length, "characters")),
            },
            Type::List => format!("a list{}", count(self.min_items, self.max_items, "elements")),
            Type::Mapping => format!("a mapping{}", count(None, self.max_fields, "entry")),
        }
    }

    fn range(&self) -> String {
        match (self.min, self.max, self.above, self.below) {
            (Some(min), Some(max), _, _) => format!(" from {min} to {max}"),
            (Some(min), None, _, Some(below)) => format!(" from {min} to below {below}"),
            (Some(min), None, ..) => format!(" of at least {min}"),
            (None, Some(max), Some(above), _) => format!(" above {above} and up to {max}"),
            (None, Some(max), ..) => format!(" of at most {max}"),
            (None, None, Some(above), Some(below)) => format!(" between {above} and {below}"),
            (None, None, Some(above), None) => format!(" above {above}"),
            (None, None, None, Some(below)) => format!(" below {below}"),
            (None, None, None, None) => String::new(),
        }
    }

    pub(super) fn in_range(&self, number: f64) -> bool {
        self.min.is_none_or(|min| number >= min)
            && self.max.is_none_or(|max| number <= max)
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
    }

    /// The fault of a value that does not fit this rule.
    pub(super) fn fault(&self, node: &Node) -> Fault {
        if !self.fits_type(node) {
            return match self.types.as_slice() {
                [only] => Fault::WrongType { expected: only.name().to_owned(), found: type_name(&node.kind) },
                _ => Fault::NoAlternative { inside: 0 },
            };
        }
        // Several types are several forms.
        if self.types.len() > 1 {
            return Fault::NoAlternative { inside: 0 };
        }
        if !self.choices.is_empty() {
            return Fault::NotInEnum;
        }
        let number = match &node.kind {
            Kind::Int(number) => Some(*number as f64),
            Kind::Float(number) => Some(*number),
            _ => None,
        };
        if let Some(found) = number {
            let below = self.min.filter(|min| found < *min).map(|least| (least, false));
            let below = below.or(self.above.filter(|above| found <= *above).map(|least| (least, true)));
            let above = self.max.filter(|max| found > *max).map(|most| (most, false));
            let above = above.or(self.below.filter(|below| found >= *below).map(|most| (most, true)));
            return match (below, above) {
                (Some((least, exclusive)), _) => {
                    Fault::TooSmall { found: found.into(), least: least.into(), exclusive }
                }
                (_, Some((most, exclusive))) => Fault::TooLarge { found: found.into(), most: most.into(), exclusive },
                _ => Fault::NoAlternative { inside: 0 },
            };
        }
        let outside = |found: usize, min: Option<usize>, max: Option<usize>| {
            min.filter(|min| found < *min).or(max.filter(|max| found > *max))
        };
        match &node.kind {
            Kind::Str(text) => {
                let found = text.chars().count();
                match (outside(found, self.min_length, self.max_length), &self.pattern) {
                    (Some(bound), _) => Fault::Length { found: found as u64, bound: bound as u64 },
                    (None, Some(pattern)) => Fault::Pattern { pattern: pattern.as_str().into(), found: text.clone() },
                    (None, None) => Fault::NoAlternative { inside: 0 },
                }
            }
            Kind::Seq(items) => match outside(items.len(), self.min_items, self.max_items) {
                Some(least) if items.len() < least => Fault::TooFewItems { least: least as u64 },
                Some(most) => Fault::TooManyItems { most: most as u64 },
                None => Fault::NoAlternative { inside: 0 },
            },
            Kind::Map(entries) => match outside(entries.len(), None, self.max_fields) {
                Some(most) => Fault::TooManyFields { most: most as u64 },
                None => Fault::NoAlternative { inside: 0 },
            },
            _ => Fault::NoAlternative { inside: 0 },
        }
    }

    pub(super) fn fits_text(&self, text: &str) -> bool {
        let long_enough = |length: usize| {
            self.min_length.is_none_or(|min| length >= min) && self.max_length.is_none_or(|max| length <= max)
        };
        (self.min_length.is_none() && self.max_length.is_none() || long_enough(text.chars().count()))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
    }
}

impl Type {
    /// Name of the type in a schema.
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Text => "string",
            Self::List => "array",
            Self::Mapping => "object",
        }
    }
}

fn type_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Null => "null",
        Kind::Bool(_) => "boolean",
        Kind::Int(_) | Kind::Float(_) => "number",
        Kind::Str(_) => "string",
        Kind::Seq(_) => "array",
        Kind::Map(_) => "object",
    }
}
