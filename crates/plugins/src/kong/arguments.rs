//! Arguments of a query or a form as Kong changes them: by name, and written in the order of names.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use weir_wire::query;

/// Arguments with their values.
#[derive(Debug, Default)]
pub(super) struct Arguments(BTreeMap<Vec<u8>, Vec<Argument>>);

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Argument {
    /// Without `=`.
    Flag,
    Text(Vec<u8>),
}

impl Arguments {
    /// Reads a query or a form.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut all = Self::default();
        for pair in text.split(|b| *b == b'&').filter(|pair| !pair.is_empty()) {
            let decoded = |text: &[u8]| {
                let mut out = Vec::with_capacity(text.len());
                query::decode(text, &mut out);
                out
            };
            let (name, value) = match pair.iter().position(|b| *b == b'=') {
                Some(at) => {
                    let (name, value) = pair.split_at(at);
                    (decoded(name), Argument::Text(decoded(value.get(1..).unwrap_or_default())))
                }
                None => (decoded(pair), Argument::Flag),
            };
            all.0.entry(name).or_default().push(value);
        }
        all
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.0.contains_key(name)
    }

    /// The values of an argument that have a text.
    pub(super) fn texts(&self, name: &[u8]) -> Vec<&[u8]> {
        let values = self.0.get(name).into_iter().flatten();
        values
            .filter_map(|value| match value {
                Argument::Flag => None,
                Argument::Text(text) => Some(text.as_slice()),
            })
            .collect()
    }

    /// The names with their values; an argument without `=` has none.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0.iter().flat_map(|(name, values)| {
            values.iter().map(|value| match value {
                Argument::Flag => (name.as_slice(), None),
                Argument::Text(text) => (name.as_slice(), Some(text.as_slice())),
            })
        })
    }

    /// Keeps the arguments whose names are wanted.
    pub(super) fn keep_only(&mut self, is_wanted: impl Fn(&[u8]) -> bool) {
        self.0.retain(|name, _| is_wanted(name));
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// Gives an argument another name, in place of one that has it.
    pub(super) fn rename(&mut self, old: &[u8], new: &[u8]) {
        match self.0.remove(old) {
            Some(values) => drop(self.0.insert(new.to_vec(), values)),
            None => drop(self.0.remove(new)),
        }
    }

    pub(super) fn set(&mut self, name: &[u8], value: &[u8]) {
        self.0.insert(name.to_vec(), vec![Argument::Text(value.to_vec())]);
    }

    /// Adds a value to those that are there; one without text gives way to it.
    pub(super) fn append(&mut self, name: &[u8], value: &[u8]) {
        let values = self.0.entry(name.to_vec()).or_default();
        if values[..] == [Argument::Flag] {
            values.clear();
        }
        values.push(Argument::Text(value.to_vec()));
    }

    /// Adds all of others to those that are there.
    pub(super) fn extend(&mut self, others: Self) {
        for (name, values) in others.0 {
            self.0.entry(name).or_default().extend(values);
        }
    }

    /// The arguments as an object: one without `=` is true, and one that comes several times has a list.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        for (name, value) in self.iter() {
            let value = value.map_or(Value::Bool(true), |text| String::from_utf8_lossy(text).into());
            put(&mut object, String::from_utf8_lossy(name).into_owned(), value);
        }
        object
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends them in the form of a query.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        for (name, values) in &self.0 {
            for value in values {
                if out.len() > begin {
                    out.push(b'&');
                }
                escape(name, out);
                if let Argument::Text(text) = value {
                    out.push(b'=');
                    escape(text, out);
                }
            }
        }
    }
}

/// Puts a value; one of a name that is there already makes a list.
pub(super) fn put(object: &mut Map<String, Value>, name: String, value: Value) {
    match object.get_mut(&name) {
        None => drop(object.insert(name, value)),
        Some(Value::Array(list)) => list.push(value),
        Some(held) => *held = Value::Array(vec![held.take(), value]),
    }
}

/// Appends a text with all but unreserved characters (RFC 3986 section 2.3) encoded.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(byte);
        } else {
            weir_wire::target::push_escape(out, byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn written(all: &Arguments) -> String {
        let mut out = Vec::new();
        all.write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn arguments_are_changed_by_name() {
        let mut all = Arguments::parse(b"z=1&a=x%20y&a=+&flag&e=");
        assert_eq!(written(&all), "a=x%20y&a=%20&e=&flag&z=1");
        all.remove(b"a");
        all.rename(b"z", b"y");
        all.rename(b"none", b"e");
        all.append(b"y", b"2");
        all.append(b"flag", b"on");
        all.set(b"new", "ü/".as_bytes());
        assert_eq!(written(&all), "flag=on&new=%C3%BC%2F&y=1&y=2");
        assert!(all.has(b"y") && !all.has(b"z"));
        all.extend(Arguments::parse(b"y=3"));
        assert_eq!(written(&all), "flag=on&new=%C3%BC%2F&y=1&y=2&y=3");
        assert!(Arguments::parse(b"").is_empty());
    }
}
