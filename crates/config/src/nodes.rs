//! Nodes that front ends write: items of the model, made of what a family's documents say.

use crate::node::{Key, Kind, Mark, Node};

/// A text.
#[must_use]
pub fn text(value: &str) -> Node {
    Node::new(Kind::Str(value.to_owned()))
}

/// A whole number.
#[must_use]
pub fn number(value: i64) -> Node {
    Node::new(Kind::Int(value))
}

/// A truth value.
#[must_use]
pub fn flag(value: bool) -> Node {
    Node::new(Kind::Bool(value))
}

/// A list at a position.
#[must_use]
pub fn list(mark: Mark, items: Vec<Node>) -> Node {
    Node { mark, kind: Kind::Seq(items) }
}

/// A mapping whose values without a position get its own.
pub fn map<'k>(mark: Mark, entries: impl IntoIterator<Item = (&'k str, Node)>) -> Node {
    let entry = |(name, mut value): (&str, Node)| {
        if value.mark == Mark::NONE {
            value.mark = mark;
        }
        (Key { text: name.into(), mark: value.mark }, value)
    };
    Node { mark, kind: Kind::Map(entries.into_iter().map(entry).collect()) }
}
