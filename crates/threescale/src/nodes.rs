//! Nodes of lowered items.

use serde_json::Value;
use weir_config::{Key, Kind, Mark, Node};

/// A node with the content of a value, at one position.
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
