//! Templates at work, within limits.

use serde_json::Value;

use super::functions::is_true;
use super::print::print;
use super::{Base, Command, Node, Operand, Pipe};

/// Most bytes of a text.
const MOST_BYTES: usize = 8 << 20;
/// Most actions and commands.
const MOST_STEPS: usize = 1_000_000;

struct Run<'d> {
    data: &'d Value,
    variables: Vec<(&'d str, Value)>,
    out: String,
    steps: usize,
}

/// The text that comes of data.
pub(super) fn run<'d>(nodes: &'d [Node], data: &'d Value) -> Result<String, String> {
    let mut run = Run { data, variables: Vec::new(), out: String::new(), steps: 0 };
    run.nodes(nodes, data)?;
    Ok(run.out)
}

impl<'d> Run<'d> {
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MOST_STEPS || self.out.len() > MOST_BYTES {
            return Err(format!("a template makes at most {MOST_BYTES} bytes in {MOST_STEPS} steps"));
        }
        Ok(())
    }

    fn nodes<'n: 'd>(&mut self, nodes: &'n [Node], dot: &Value) -> Result<(), String> {
        let scope = self.variables.len();
        for node in nodes {
            self.step()?;
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Print(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    print(&value, &mut self.out);
                }
                Node::Set { name, is_new, pipe } => {
                    let value = self.pipe(pipe, dot)?;
                    let known = self.variables.iter_mut().rev().find(|(known, _)| *known == &**name);
                    match known.filter(|_| !is_new) {
                        Some((_, held)) => *held = value,
                        None => self.variables.push((name, value)),
                    }
                }
                Node::If { pipe, body, other } => {
                    let chosen = if is_true(&self.pipe(pipe, dot)?) { body } else { other };
                    self.nodes(chosen, dot)?;
                }
                Node::With { pipe, body, other } => {
                    let value = self.pipe(pipe, dot)?;
                    match is_true(&value) {
                        true => self.nodes(body, &value)?,
                        false => self.nodes(other, dot)?,
                    }
                }
                Node::Range { key, value, pipe, body, other } => {
                    let names = (key.as_deref(), value.as_deref());
                    let range = self.pipe(pipe, dot)?;
                    self.range(range, names, body, (other, dot))?;
                }
            }
        }
        self.variables.truncate(scope);
        Ok(())
    }

    fn range<'n: 'd>(
        &mut self,
        range: Value,
        (key, value): (Option<&'n str>, Option<&'n str>),
        body: &'n [Node],
        (other, dot): (&'n [Node], &Value),
    ) -> Result<(), String> {
        let mut elements: Vec<(Value, Value)> = match range {
            Value::Array(items) => items.into_iter().enumerate().map(|(at, item)| (at.into(), item)).collect(),
            Value::Object(fields) => fields.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            Value::Null => Vec::new(),
            other => {
                let mut text = String::new();
                print(&other, &mut text);
                return Err(format!("range: {text} has no elements"));
            }
        };
        if elements.is_empty() {
            return self.nodes(other, dot);
        }
        if elements.first().is_some_and(|(key, _)| key.is_string()) {
            elements.sort_by(|(one, _), (other, _)| one.as_str().cmp(&other.as_str()));
        }
        for (at, element) in elements {
            let scope = self.variables.len();
            if let Some(key) = key {
                self.variables.push((key, at));
            }
            if let Some(value) = value {
                self.variables.push((value, element.clone()));
            }
            self.nodes(body, &element)?;
            self.variables.truncate(scope);
        }
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, String> {
        let mut last: Option<Value> = None;
        for command in &pipe.0 {
            self.step()?;
            last = Some(match command {
                Command::Value(operand) => self.operand(operand, dot)?,
                Command::Call(function, operands) => {
                    let mut arguments = Vec::with_capacity(operands.len() + 1);
                    for operand in operands {
                        arguments.push(self.operand(operand, dot)?);
                    }
                    arguments.extend(last);
                    function.call(&arguments)?
                }
            });
        }
        Ok(last.unwrap_or_default())
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, String> {
        let inner;
        let base = match &operand.base {
            Base::Dot => dot,
            Base::Variable(name) if name.is_empty() => self.data,
            Base::Variable(name) => {
                let found = self.variables.iter().rev().find(|(known, _)| *known == &**name);
                found.map_or(&Value::Null, |(_, value)| value)
            }
            Base::Literal(value) => value,
            Base::Pipe(pipe) => {
                inner = self.pipe(pipe, dot)?;
                &inner
            }
            Base::Call(function) => {
                inner = function.call(&[])?;
                &inner
            }
        };
        let mut fields = operand.fields.iter();
        Ok(fields.try_fold(base, |value, name| value.get(&**name)).cloned().unwrap_or_default())
    }
}
