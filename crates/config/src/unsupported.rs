//! Features of APISIX that this gateway does not have yet: one table. Supporting a feature means taking its line away here and
//! adding its field to the resource.

use crate::Diagnostic;
use crate::code::Code;
use crate::node::{Kind, Node, push_name};

/// A feature that is refused by name.
#[derive(Clone, Copy, Debug)]
pub struct Unsupported {
    /// Owner of the field.
    pub owner: Owner,
    /// Field that selects the feature.
    pub field: &'static str,
    /// Values that select the feature.
    pub when: When,
    /// Name for the message.
    pub feature: &'static str,
}

/// Owner of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A stream route.
    StreamRoute,
    /// An upstream, wherever it is written.
    Upstream,
}

/// Values of a field that select a feature.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Any but null.
    Present,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// Everything that is refused as not supported yet.
#[rustfmt::skip]
pub const UNSUPPORTED: &[Unsupported] = &[
    refuse(Owner::StreamRoute, "protocol", When::Present, "protocols above TCP (xRPC)"),
    refuse(Owner::Upstream, "scheme", When::OneOf(&["kafka"]), "Kafka proxying"),
];

const fn refuse(owner: Owner, field: &'static str, when: When, feature: &'static str) -> Unsupported {
    Unsupported { owner, field, when, feature }
}

impl Unsupported {
    /// Text of a refusal; `asked` is the field or section that selects the feature.
    pub fn refusal(&self, asked: &str) -> String {
        format!("not supported yet: {} ({asked})", self.feature)
    }
}

impl When {
    fn asks(self, node: &Node) -> bool {
        match (self, &node.kind) {
            (_, Kind::Null) => false,
            (Self::Present, _) => true,
            (Self::OneOf(texts), Kind::Str(text)) => texts.contains(&text.as_str()),
            (Self::OneOf(_), _) => false,
        }
    }
}

/// Takes what is not supported out of a mapping, with an error or a warning for each. Returns the fields that were taken.
pub fn take_out(owner: Owner, node: &mut Node, path: &str, found: &mut Vec<Diagnostic>) -> Vec<&'static str> {
    let mut taken = Vec::new();
    let Kind::Map(entries) = &mut node.kind else { return taken };
    entries.retain(|(key, value)| {
        let entry = UNSUPPORTED
            .iter()
            .find(|entry| entry.owner == owner && entry.field == &*key.text && entry.when.asks(value));
        let Some(entry) = entry else { return true };
        let mut path = path.to_owned();
        push_name(&mut path, entry.field);
        let message = match entry.when {
            When::OneOf(_) => entry.refusal(&format!("{}: {}", entry.field, value.as_str().unwrap_or_default())),
            _ => entry.refusal(entry.field),
        };
        let code = Code::Unsupported { refusal: message };
        found.push(Diagnostic::error(key.mark, path, code));
        taken.push(entry.field);
        false
    });
    taken
}
