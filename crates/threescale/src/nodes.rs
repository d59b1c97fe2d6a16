//! Nodes of lowered items.

use serde_json::Value;
use weir_config::{Key, Kind, Mark, Node};

pub(crate) fn to_node(value: &Value, mark: Mark) -> Node {
    let kind = match value {
        Value::Null => Kind::Null,
        Value::Bool(flag) => Kind::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Kind::Int(number),
            None => Kind::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Kind::Str(text.clone()),
        Value::Array(items) => Kind::Seq(items.iter().map(|item| to_node(item, mark)).collect()),
        Value::Object(members) => {
            let member =
                |(name, value): (&String, &Value)| (Key { text: name.as_str().into(), mark }, to_node(value, mark));
            Kind::Map(members.iter().map(member).collect())
        }
    };
    Node { mark, kind }
}

pub(crate) fn text(value: &str) -> Node {
    Node::new(Kind::Str(value.to_owned()))
}

pub(crate) fn flag(value: bool) -> Node {
    Node::new(Kind::Bool(value))
}

pub(crate) fn list(mark: Mark, items: Vec<Node>) -> Node {
    Node { mark, kind: Kind::Seq(items) }
}

/// A mapping whose values without a position get its own.
pub(crate) fn map<'k>(mark: Mark, entries: impl IntoIterator<Item = (&'k str, Node)>) -> Node {
    let entry = |(name, mut value): (&str, Node)| {
        if value.mark == Mark::NONE {
            value.mark = mark;
        }
        (Key { text: name.into(), mark: value.mark }, value)
    };
    Node { mark, kind: Kind::Map(entries.into_iter().map(entry).collect()) }
}
