//! `headers`: fields of requests and responses.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use super::{DraftLink, read};
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    request: Vec<Command>,
    response: Vec<Command>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Command {
    op: Op,
    header: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    value_type: TextType,
}

/// Operation on a field, or on an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// Adds a value where there is one.
    Add,
    /// Replaces all values.
    Set,
    /// Adds a value.
    Push,
    /// Removes all values.
    Delete,
}

#[derive(Debug)]
struct Edit {
    op: Op,
    name: FieldName,
    value: Text,
}

/// The policy.
#[derive(Debug)]
struct Headers {
    request: Box<[Edit]>,
    response: Box<[Edit]>,
}

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let request = cx.ok(edits(conf.request, &format!("{field}.request")));
    let response = cx.ok(edits(conf.response, &format!("{field}.response")));
    Some(DraftLink::of(Headers { request: request?, response: response? }))
}

fn edits(commands: Vec<Command>, field: &str) -> Result<Box<[Edit]>, Invalid> {
    let edit = |(at, command): (usize, Command)| {
        let field = format!("{field}[{at}]");
        let name = FieldName::new(&command.header)
            .ok_or_else(|| Invalid::new(format!("{field}.header"), "expected the name of a field"))?;
        let value = Text::compile(&command.value, command.value_type, &format!("{field}.value"))?;
        Ok(Edit { op: command.op, name, value })
    };
    commands.into_iter().enumerate().map(edit).collect()
}

impl Policy for Headers {
    fn rewrite(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        for Edit { op, name, value } in &self.request {
            if *op == Op::Delete {
                cx.request_mut().remove_field(name);
                continue;
            }
            let has_one = cx.request().field(name).is_some();
            let around = Around { view: cx.view(), state, names: &parts.names };
            let value = clean(value.render(&around).into_owned());
            match op {
                Op::Set => cx.request_mut().set_field(name, value.as_bytes()),
                Op::Add if !has_one => {}
                Op::Add | Op::Push | Op::Delete => cx.request_mut().add_field(name, value.as_bytes()),
            }
        }
        Step::Next
    }

    fn has_response(&self) -> bool {
        !self.response.is_empty()
    }

    fn response(&self, parts: &Parts, cx: &mut ResponseCx<'_>, state: &mut State) {
        for Edit { op, name, value } in &self.response {
            if *op == Op::Delete {
                cx.remove_field(name);
                continue;
            }
            let response = cx.response();
            let has_one = response.head.fields.get(response.buffer.bytes(), name).is_some();
            let around = Around { view: cx.view(), state, names: &parts.names };
            let value = clean(value.render(&around).into_owned());
            match op {
                Op::Set => cx.set_field(name, value.as_bytes()),
                Op::Add if !has_one => {}
                Op::Add | Op::Push | Op::Delete => cx.add_field(name, value.as_bytes()),
            }
        }
    }
}

/// A value without what ends a field.
fn clean(mut value: String) -> String {
    value.retain(|letter| !matches!(letter, '\r' | '\n' | '\0'));
    value
}
