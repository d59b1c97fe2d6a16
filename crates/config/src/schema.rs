//! Checking a tree against the JSON Schema that a Rust type derives.
//!
//! The schema is the one place where a limit is written: the check, the documentation and the schemas that an API
//! serves all come from it. Unlike reading with serde, which stops at the first fault, a check finds all faults.
//!
//! The keywords are those that `schemars` derives, and `x-expected`: a description of the values a pattern allows.

mod defaults;
mod fault;
mod rule;
#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, RwLock};

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde::de::{DeserializeOwned, Unexpected};
use serde_json::Value;

pub use defaults::fill_defaults;
pub use fault::{Amount, Fault, NONE_OF_ANY, lua_type_of, type_of, way_in_resource, way_to};
use rule::{Others, Rule};

use crate::Diagnostic;
use crate::code::Code;
use crate::diagnostic::{Hint, Severity, nearest};
use crate::node::{Key, Kind, Node, Path, Step, field_hint, hint_for, quoted, steps};

/// The JSON Schema of a type: nothing is referred to (unless the type contains itself) and null is no value.
pub fn json_schema<T: JsonSchema>() -> Schema {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    WithoutNull.transform(&mut schema);
    schema
}

/// Reads a tree into a type: checks it against the type's schema first, so that every fault is found, then reads it.
pub fn read<T: DeserializeOwned + JsonSchema + 'static>(node: &Node) -> Result<T, Vec<Diagnostic>> {
    let found = Checker::of::<T>().check(node);
    if !found.is_empty() {
        return Err(found);
    }
    node.parse_into().map_err(|error| vec![error])
}

/// Takes unknown fields out of a tree at the places that `open` accepts: APISIX's schemas allow any field in some
/// places, and real files carry fields there that never had an effect. Findings about these fields become warnings.
pub fn ignore_unknown<'n>(
    node: &'n Node,
    found: &mut [Diagnostic],
    open: impl Fn(&Diagnostic, &[Step]) -> bool,
) -> Cow<'n, Node> {
    let mut known = Cow::Borrowed(node);
    for fault in found.iter_mut().filter(|fault| fault.code.is_unknown_field()) {
        let way = steps(&fault.path);
        if open(fault, &way) && take_out(known.to_mut(), &way) {
            fault.severity = Severity::Warning;
            *fault.code = Code::UnknownFieldIgnored;
        }
    }
    known
}

/// Takes the field that these steps lead to out of a tree; `false`: it was not found.
fn take_out(node: &mut Node, way: &[Step]) -> bool {
    let Some((Step::Name(name), way)) = way.split_last() else { return false };
    let parent = way.iter().try_fold(node, |node, step| match step {
        Step::Name(name) => node.get_mut(name),
        Step::Index(index) => match &mut node.kind {
            Kind::Seq(items) => items.get_mut(*index),
            _ => None,
        },
    });
    parent.is_some_and(|parent| parent.remove(name).is_some())
}

/// A schema, ready to check trees.
#[derive(Debug)]
pub struct Checker {
    rules: Vec<Rule>,
}

/// An optional field may be absent; it is not null.
struct WithoutNull;

impl Transform for WithoutNull {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(object) = schema.as_object_mut() else { return };
        if let Some(Value::Array(types)) = object.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                object.insert("type".into(), only);
            }
        }
        if let Some(Value::Array(choices)) = object.get_mut("enum") {
            choices.retain(|choice| !choice.is_null());
        }
        for keyword in ["anyOf", "oneOf"] {
            let Some(Value::Array(branches)) = object.get_mut(keyword) else { continue };
            branches.retain(|branch| branch.get("type").is_none_or(|name| name != "null"));
            if let [Value::Object(only)] = branches.as_slice() {
                let only = only.clone();
                object.remove(keyword);
                for (name, value) in only {
                    object.entry(name).or_insert(value);
                }
            }
        }
        if object.get("default").is_some_and(Value::is_null) {
            object.remove("default");
        }
    }
}

impl Checker {
    /// The checker of a type; made once for each type.
    pub fn of<T: JsonSchema + 'static>() -> Arc<Self> {
        static KNOWN: LazyLock<RwLock<HashMap<TypeId, Arc<Checker>>>> = LazyLock::new(Default::default);
        let id = TypeId::of::<T>();
        if let Some(known) = KNOWN.read().unwrap_or_else(|poison| poison.into_inner()).get(&id) {
            return known.clone();
        }
        let made = Arc::new(Self::new(&json_schema::<T>()));
        KNOWN.write().unwrap_or_else(|poison| poison.into_inner()).entry(id).or_insert(made).clone()
    }

    /// The checker of a schema.
    ///
    /// # Panics
    /// An error if a pattern in the schema is no regular expression: schemas come from types, not from users.
    pub fn new(schema: &Schema) -> Self {
        Self { rules: rule::compile(schema.as_value()) }
    }

    /// Words for what a value should be: `an integer from 1 to 65535`.
    pub fn expectation(&self) -> String {
        let Some(root) = self.rules.first() else { return String::new() };
        if root.any_of.is_empty() || root.expected.is_some() {
            return root.expectation();
        }
        root.any_of.iter().map(|at| self.rules[*at].expectation()).collect::<Vec<_>>().join(" or ")
    }

    /// Everything that does not fit. Paths are relative to `node`.
    pub fn check(&self, node: &Node) -> Vec<Diagnostic> {
        let mut check = Check { rules: &self.rules, found: Vec::new() };
        check.node(0, node, &Path::Root);
        check.found
    }
}

/// One run of a checker.
struct Check<'a> {
    rules: &'a [Rule],
    found: Vec<Diagnostic>,
}

impl Check<'_> {
    fn node(&mut self, at: usize, node: &Node, path: &Path<'_>) {
        let rules = self.rules;
        let rule = &rules[at];
        for inner in &rule.all_of {
            self.node(*inner, node, path);
        }
        if !rule.fits_type(node) {
            return self.misfit(rule, node, path);
        }
        if !rule.choices.is_empty() && !rule.choices.iter().any(|choice| equals(choice, node)) {
            return self.misfit(rule, node, path);
        }
        if !rule.any_of.is_empty() {
            self.any_of(rule, node, path);
        }
        match &node.kind {
            Kind::Int(number) if !rule.in_range(*number as f64) => self.misfit(rule, node, path),
            Kind::Float(number) if !rule.in_range(*number) => self.misfit(rule, node, path),
            Kind::Str(text) if !rule.fits_text(text) => self.misfit(rule, node, path),
            Kind::Seq(items) => self.list(rule, node, items, path),
            Kind::Map(entries) => self.mapping(rule, node, entries, path),
            _ => {}
        }
    }

    fn any_of(&mut self, rule: &Rule, node: &Node, path: &Path<'_>) {
        let mut fitting = rule.any_of.iter().filter(|at| self.rules[**at].fits_type(node)).copied().peekable();
        if fitting.peek().is_none() {
            if rule.expected.is_some() {
                return self.misfit(rule, node, path);
            }
            let words: Vec<String> = rule.any_of.iter().map(|at| self.rules[*at].expectation()).collect();
            return self.report_misfit(&words.join(" or "), node, path, Fault::NoAlternative { inside: 0 });
        }
        // The faults of the branch that was meant: the one with the right type, and of several the one with fewest.
        let mut fewest: Option<Vec<Diagnostic>> = None;
        for at in fitting {
            let mut check = Check { rules: self.rules, found: Vec::new() };
            check.node(at, node, path);
            if check.found.is_empty() {
                return;
            }
            if fewest.as_ref().is_none_or(|found| check.found.len() < found.len()) {
                fewest = Some(check.found);
            }
        }
        let found = fewest.unwrap_or_default();
        let own = path.text();
        if rule.expected.is_some() && found.iter().all(|fault| fault.path == own && fault.mark == node.mark) {
            return self.misfit(rule, node, path);
        }
        self.found.extend(found.into_iter().map(|found| {
            let inside = found.path.get(own.len()..).map_or(0, |rest| steps(rest).len());
            let of = found.code;
            Diagnostic { code: Box::new(Code::InAlternative { inside, of }), ..found }
        }));
    }

    fn list(&mut self, rule: &Rule, node: &Node, items: &[Node], path: &Path<'_>) {
        if rule.min_items.is_some_and(|min| items.len() < min) || rule.max_items.is_some_and(|max| items.len() > max) {
            self.misfit(rule, node, path);
        }
        let mut texts: HashSet<&str> = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let path = Path::Index(path, index);
            if let Some(at) = rule.items {
                self.node(at, item, &path);
            }
            let repeated = match item.as_str() {
                _ if !rule.unique => false,
                Some(text) => !texts.insert(text),
                // Quadratic, but such lists hold a handful of numbers.
                None => items[..index].contains(item),
            };
            if repeated {
                let first = items.iter().position(|other| other.kind == item.kind).unwrap_or_default();
                let code = Code::RepeatedItem { item: item.describe(), first };
                self.found.push(Diagnostic::error(item.mark, path.text(), code));
            }
        }
    }

    fn mapping(&mut self, rule: &Rule, node: &Node, entries: &[(Key, Node)], path: &Path<'_>) {
        if rule.max_fields.is_some_and(|max| entries.len() > max) {
            self.misfit(rule, node, path);
        }
        let mut misspelt: HashSet<&str> = HashSet::new();
        let mut absent: Option<Vec<&str>> = None;
        for (key, value) in entries {
            let path = Path::Name(path, &key.text);
            match (rule.field(&key.text), &rule.others) {
                (Some(at), _) => self.node(at, value, &path),
                (None, Others::Each(at)) => self.node(*at, value, &path),
                (None, Others::Any) => {}
                (None, Others::None) => {
                    // A field that is there already was not what this one was meant to be.
                    let absent = absent.get_or_insert_with(|| {
                        let written: HashSet<&str> = entries.iter().map(|(key, _)| &*key.text).collect();
                        rule.fields.iter().map(|(name, _)| name.as_str()).filter(|n| !written.contains(n)).collect()
                    });
                    misspelt.extend(nearest(&key.text, absent.iter().copied()));
                    let all = rule.fields.iter().map(|(name, _)| name.as_str());
                    let hint = field_hint(&key.text, absent.iter().copied(), all);
                    self.found.push(Diagnostic::error(key.mark, path.text(), Code::UnknownField).with_hint(hint));
                }
            }
        }
        for name in &rule.required {
            if entries.iter().all(|(key, _)| *key.text != *name) && !misspelt.contains(name.as_str()) {
                let code = Code::MissingField { field: name.clone() };
                self.found.push(Diagnostic::error(node.mark, path.text(), code));
            }
        }
    }

    fn misfit(&mut self, rule: &Rule, node: &Node, path: &Path<'_>) {
        let expected = rule.expectation();
        if let (Kind::Str(text), false) = (&node.kind, rule.choices.is_empty()) {
            let names = rule.choices.iter().filter_map(Value::as_str);
            if let Some(name) = nearest(text, names) {
                let code = Code::Misfit { expected, found: quoted(text), fault: Box::new(Fault::NotInEnum) };
                let error = Diagnostic::error(node.mark, path.text(), code);
                self.found.push(error.with_hint(Hint::DidYouMean(name.to_owned())));
                return;
            }
        }
        self.report_misfit(&expected, node, path, rule.fault(node));
    }

    fn report_misfit(&mut self, expected: &str, node: &Node, path: &Path<'_>, fault: Fault) {
        let found = match &node.kind {
            Kind::Str(text) if text.chars().count() > 60 => {
                format!("{} ({} characters)", quoted(text), text.chars().count())
            }
            Kind::Seq(items) if !items.is_empty() => format!("a list of {}", items.len()),
            Kind::Map(entries) if expected.starts_with("a mapping") => format!("one of {}", entries.len()),
            _ => node.describe(),
        };
        let code = Code::Misfit { expected: expected.to_owned(), found, fault: Box::new(fault) };
        let error = Diagnostic::error(node.mark, path.text(), code);
        let hint = match &node.kind {
            Kind::Bool(b) => hint_for(Unexpected::Bool(*b), expected),
            Kind::Int(i) => hint_for(Unexpected::Signed(*i), expected),
            Kind::Float(f) => hint_for(Unexpected::Float(*f), expected),
            Kind::Str(s) => hint_for(Unexpected::Str(s), expected),
            _ => None,
        };
        self.found.push(Diagnostic { hint, ..error });
    }
}

fn equals(choice: &Value, node: &Node) -> bool {
    match (choice, &node.kind) {
        (Value::String(text), Kind::Str(found)) => text == found,
        (Value::Bool(wanted), Kind::Bool(found)) => wanted == found,
        (Value::Number(wanted), Kind::Int(found)) => wanted.as_i64() == Some(*found),
        (Value::Number(wanted), Kind::Float(found)) => wanted.as_f64() == Some(*found),
        _ => false,
    }
}
