//! XML as the values of templates, in the form of Go's library mxj, which Tyk uses: an element is the map of its children,
//! attributes have names that begin with `-`, the text beside them is `#text`, and elements that come several times are a list.
//! All values are texts, and prefixes of namespaces are left out.

use quick_xml::XmlVersion;
use quick_xml::escape::{escape, resolve_predefined_entity};
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use serde_json::{Map, Value};

/// Levels of elements.
const DEEPEST: usize = 128;
const TEXT: &str = "#text";

/// An element on its way.
#[derive(Default)]
struct Element {
    name: String,
    fields: Map<String, Value>,
    text: String,
}

impl Element {
    fn open(start: &BytesStart<'_>) -> Result<Self, String> {
        let local = |name: quick_xml::name::QName<'_>| name.local_name().as_ref().to_owned();
        let mut element = Self { name: local(start.name()), ..Self::default() };
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?;
            element.fields.insert(format!("-{}", local(attribute.key)), value.into_owned().into());
        }
        Ok(element)
    }

    /// The value of the element.
    fn close(self) -> (String, Value) {
        let Self { name, mut fields, text } = self;
        let text = text.trim();
        if fields.is_empty() {
            return (name, text.into());
        }
        if !text.is_empty() {
            fields.insert(TEXT.to_owned(), text.into());
        }
        (name, Value::Object(fields))
    }

    fn put(&mut self, (name, value): (String, Value)) {
        match self.fields.get_mut(&name) {
            None => drop(self.fields.insert(name, value)),
            Some(Value::Array(items)) => items.push(value),
            Some(one) => {
                let first = one.take();
                *one = Value::Array(vec![first, value]);
            }
        }
    }
}

/// Reads a document.
///
/// # Errors
/// The text is no XML, or has more levels than anybody reads.
pub(in crate::tyk) fn read(body: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the text is no UTF-8")?;
    let mut reader = Reader::from_str(text);
    let mut stack = vec![Element::default()];
    loop {
        let at = reader.buffer_position();
        let fault = |error: &dyn std::fmt::Display| format!("{error} at byte {at}");
        match reader.read_event().map_err(|error| fault(&error))? {
            Event::Start(_) if stack.len() > DEEPEST => {
                return Err(format!("elements are nested more than {DEEPEST} levels deep"));
            }
            Event::Start(start) => stack.push(Element::open(&start)?),
            Event::Empty(start) => {
                let closed = Element::open(&start)?.close();
                stack.iter_mut().last().into_iter().for_each(|parent| parent.put(closed.clone()));
            }
            Event::End(_) => {
                // The reader has checked that the names belong together.
                if let (Some(element), Some(parent)) = (stack.pop(), stack.last_mut()) {
                    parent.put(element.close());
                }
            }
            Event::Text(piece) => append(&mut stack, &piece),
            Event::CData(piece) => append(&mut stack, &piece),
            Event::GeneralRef(reference) => {
                let text = reference.resolve_char_ref().map_err(|error| fault(&error))?.map(String::from);
                let named = || resolve_predefined_entity(&reference).map(str::to_owned);
                append(&mut stack, &text.or_else(named).ok_or_else(|| fault(&"an entity that is not known"))?);
            }
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) | Event::DocType(_) => {}
        }
    }
    match (stack.pop(), stack.is_empty()) {
        (Some(root), true) if !root.fields.is_empty() => Ok(root.fields),
        (_, false) => Err("an element is not closed".to_owned()),
        _ => Err("there is no element".to_owned()),
    }
}

fn append(stack: &mut [Element], text: &str) {
    if let Some(element) = stack.last_mut() {
        element.text.push_str(text);
    }
}

/// Writes a value as a document, in lines of two blanks for each level (`xmlMarshal`). A map with more than one element, or
/// with none, stands in an element `doc`.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields)
            if fields.len() == 1 && !fields.keys().any(|name| name.starts_with('-') || name == TEXT) =>
        {
            fields.iter().for_each(|(name, value)| element(name, value, 0, &mut out));
        }
        other => element("doc", other, 0, &mut out),
    }
    out.truncate(out.trim_end_matches('\n').len());
    out
}

fn element(name: &str, value: &Value, level: usize, out: &mut String) {
    if let Value::Array(items) = value {
        items.iter().for_each(|item| element(name, item, level, out));
        return;
    }
    let indent = |out: &mut String| (0..level).for_each(|_| out.push_str("  "));
    indent(out);
    out.push('<');
    out.push_str(name);
    let fields = value.as_object();
    let mut children: Vec<(&String, &Value)> = Vec::new();
    for (name, value) in fields.into_iter().flatten() {
        match name.strip_prefix('-') {
            Some(attribute) => {
                for part in [" ", attribute, "=\"", &escape(text(value)), "\""] {
                    out.push_str(part);
                }
            }
            None if name == TEXT => {}
            None => children.push((name, value)),
        }
    }
    children.sort_by_key(|(name, _)| name.as_str());
    let own = fields.map_or_else(|| text(value), |fields| fields.get(TEXT).map(text).unwrap_or_default());
    match (own.is_empty(), children.is_empty()) {
        (true, true) => out.push_str("/>\n"),
        (_, true) => {
            for part in [">", &escape(own), "</", name, ">\n"] {
                out.push_str(part);
            }
        }
        (_, false) => {
            out.push('>');
            out.push_str(&escape(own));
            out.push('\n');
            children.into_iter().for_each(|(name, value)| element(name, value, level + 1, out));
            indent(out);
            for part in ["</", name, ">\n"] {
                out.push_str(part);
            }
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{read, write};

    #[test]
    fn documents_are_read_as_maps() {
        for (text, expected) in [
            ("<a>x</a>", json!({"a": "x"})),
            ("<?xml version=\"1.0\"?><a/>", json!({"a": ""})),
            ("<a b='1'>x &amp; y</a>", json!({"a": {"-b": "1", "#text": "x & y"}})),
            (
                "<s:a xmlns:s='u'><s:b>1</s:b><b>2</b><c><![CDATA[<]]></c></s:a>",
                json!({"a": {"-s": "u", "b": ["1", "2"], "c": "<"}}),
            ),
        ] {
            assert_eq!(read(text.as_bytes()).map(Value::Object), Ok(expected), "{text}");
        }
        let deep = "<a>".repeat(200);
        for text in ["", "x", "<a>", "<a></b>", "<a>&none;</a>", &deep] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_written_as_documents() {
        for (value, expected) in [
            (json!({"a": "x<"}), "<a>x&lt;</a>"),
            (json!({"a": {"-b": 1, "#text": "t"}}), "<a b=\"1\">t</a>"),
            (json!({"b": [1, {"c": ""}], "a": null}), "<doc>\n  <a/>\n  <b>1</b>\n  <b>\n    <c/>\n  </b>\n</doc>"),
            (json!({}), "<doc/>"),
        ] {
            assert_eq!(write(&value), expected);
        }
    }
}
