//! Values of Liquid templates: mappings in which a missing member is nil, as in APIcast, and so are its own members.

use liquid::model::{DisplayCow, KStringCow, State, Value};
use liquid::{ObjectView, ValueView};

/// A mapping whose missing members are nil.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<(String, Member)>,
    /// True if names are compared without regard to case, and `_` stands for `-`: fields of messages.
    is_lenient: bool,
}

/// A member.
#[derive(Debug)]
enum Member {
    Value(Value),
    Members(Members),
}

/// The value of whatever is missing, and of its members.
static NOTHING: Members = Members { members: Vec::new(), is_lenient: false };

impl Members {
    /// Names are those of fields of messages.
    pub(super) fn of_fields<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> Self {
        let mut all = Self { members: Vec::new(), is_lenient: true };
        for (name, value) in fields {
            // The first field of a name counts.
            let name = String::from_utf8_lossy(name).into_owned();
            if all.find(&name).is_none() {
                all.text(&name, value);
            }
        }
        all
    }

    /// The members of an object in JSON.
    pub(super) fn of_json(object: &serde_json::Map<String, serde_json::Value>) -> Self {
        let member = |value: &serde_json::Value| match value {
            serde_json::Value::Object(object) => Member::Members(Self::of_json(object)),
            // Numbers of any kind, texts and lists have a form in Liquid.
            other => Member::Value(liquid::model::to_value(other).unwrap_or(Value::Nil)),
        };
        let members = object.iter().map(|(name, value)| (name.clone(), member(value))).collect();
        Self { members, is_lenient: false }
    }

    /// Adds a text.
    pub(super) fn text(&mut self, name: &str, value: &[u8]) {
        let value = Value::scalar(String::from_utf8_lossy(value).into_owned());
        self.members.push((name.to_owned(), Member::Value(value)));
    }

    /// Adds a number.
    pub(super) fn number(&mut self, name: &str, value: i64) {
        self.members.push((name.to_owned(), Member::Value(Value::scalar(value))));
    }

    /// Adds a mapping.
    pub(super) fn members(&mut self, name: &str, members: Self) {
        self.members.push((name.to_owned(), Member::Members(members)));
    }

    fn find(&self, name: &str) -> Option<&Member> {
        let is_same = |known: &str| match self.is_lenient {
            false => known == name,
            true => {
                let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
                known.len() == name.len() && known.bytes().map(plain).eq(name.bytes().map(plain))
            }
        };
        self.members.iter().find(|(known, _)| is_same(known)).map(|(_, member)| member)
    }
}

impl Member {
    fn view(&self) -> &dyn ValueView {
        match self {
            Self::Value(value) => value,
            Self::Members(members) => members,
        }
    }
}

impl ValueView for Members {
    fn as_debug(&self) -> &dyn std::fmt::Debug {
        self
    }

    fn render(&self) -> DisplayCow<'_> {
        DisplayCow::Borrowed(&"")
    }

    fn source(&self) -> DisplayCow<'_> {
        DisplayCow::Borrowed(&"")
    }

    fn type_name(&self) -> &'static str {
        "object"
    }

    fn query_state(&self, state: State) -> bool {
        match state {
            State::Truthy => !self.members.is_empty(),
            State::DefaultValue | State::Empty | State::Blank => self.members.is_empty(),
        }
    }

    fn to_kstr(&self) -> KStringCow<'_> {
        KStringCow::from_static("")
    }

    fn to_value(&self) -> Value {
        if self.members.is_empty() {
            return Value::Nil;
        }
        let members = self.members.iter();
        Value::Object(members.map(|(name, member)| (name.clone().into(), member.view().to_value())).collect())
    }

    fn as_object(&self) -> Option<&dyn ObjectView> {
        Some(self)
    }

    fn is_nil(&self) -> bool {
        self.members.is_empty()
    }
}

impl ObjectView for Members {
    fn as_value(&self) -> &dyn ValueView {
        self
    }

    fn size(&self) -> i64 {
        self.members.len() as i64
    }

    fn keys<'k>(&'k self) -> Box<dyn Iterator<Item = KStringCow<'k>> + 'k> {
        Box::new(self.members.iter().map(|(name, _)| name.as_str().into()))
    }

    fn values<'k>(&'k self) -> Box<dyn Iterator<Item = &'k dyn ValueView> + 'k> {
        Box::new(self.members.iter().map(|(_, member)| member.view()))
    }

    fn iter<'k>(&'k self) -> Box<dyn Iterator<Item = (KStringCow<'k>, &'k dyn ValueView)> + 'k> {
        Box::new(self.members.iter().map(|(name, member)| (name.as_str().into(), member.view())))
    }

    fn contains_key(&self, _: &str) -> bool {
        true
    }

    fn get<'s>(&'s self, name: &str) -> Option<&'s dyn ValueView> {
        Some(self.find(name).map_or(&NOTHING as &dyn ValueView, Member::view))
    }
}
