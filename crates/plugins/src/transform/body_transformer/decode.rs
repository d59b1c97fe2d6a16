//! Bodies, decoded to what templates read.

use std::collections::BTreeMap;
use std::rc::Rc;

use quick_xml::XmlVersion;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_wire::query;

use super::value::{Table, Value};

/// Levels of elements in XML.
const DEPTH: usize = 128;

/// A form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// XML: elements by their names without prefixes, attributes in `_attr`.
    Xml,
    /// JSON.
    Json,
    /// `application/x-www-form-urlencoded`.
    Encoded,
    /// The query of the request, in the place of a body.
    Args,
    /// Text, which `_body` has and nothing else.
    Plain,
    /// `multipart/form-data` and its like: the parts by their names.
    Multipart,
}

impl Format {
    /// The form by a Content-Type, as APISIX finds it.
    pub(super) fn of(content_type: &[u8]) -> Option<Self> {
        let has = |wanted: &str| memchr_contains(content_type, wanted);
        if has("text/xml") {
            Some(Self::Xml)
        } else if has("application/json") {
            Some(Self::Json)
        } else if has("application/x-www-form-urlencoded") {
            Some(Self::Encoded)
        } else if has("multipart/") {
            Some(Self::Multipart)
        } else {
            None
        }
    }
}

fn memchr_contains(text: &[u8], wanted: &str) -> bool {
    text.windows(wanted.len()).any(|window| window.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// JSON.
pub(super) fn json(body: &[u8]) -> Result<Rc<Table>, String> {
    let json: serde_json::Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match Value::from_json(&json) {
        Value::Table(table) => Ok(table),
        other => Err(format!("expected an object or a list, found a {}", other.kind())),
    }
}

/// Fields of a form, or of a query. A field that comes several times is a list.
pub(super) fn form(text: &[u8]) -> Rc<Table> {
    let mut fields = Fields::default();
    for argument in text.split(|b| *b == b'&').filter(|argument| !argument.is_empty()) {
        let mut name = Vec::new();
        query::decode(query::name(argument), &mut name);
        let value = match argument.contains(&b'=') {
            true => {
                let mut value = Vec::new();
                query::decode(query::value(argument), &mut value);
                Value::text(value)
            }
            false => Value::Boolean(true),
        };
        fields.put(name, value);
    }
    fields.table()
}

/// Parts of a multipart body (RFC 2046 section 5.1) that have a name.
pub(super) fn multipart(body: &[u8], content_type: &[u8]) -> Result<Rc<Table>, String> {
    let boundary = parameter(content_type, "boundary").ok_or("the Content-Type has no boundary")?;
    let delimiter = [b"--", boundary].concat();
    let mut fields = Fields::default();
    let mut lines = Lines { rest: body };
    let mut part: Option<Part> = None;
    while let Some(line) = lines.next() {
        let bare = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
        let after = bare.strip_prefix(delimiter.as_slice()).map(<[u8]>::trim_ascii_end);
        if let Some(after) = after.filter(|after| after.is_empty() || *after == b"--") {
            if let Some(done) = part.take() {
                done.put_into(&mut fields);
            }
            if after == b"--" {
                return Ok(fields.table());
            }
            part = Some(Part::default());
            continue;
        }
        if let Some(part) = &mut part {
            part.line(line, bare);
        }
    }
    Err("the body has no closing delimiter".to_owned())
}

/// Lines with their ends.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let length = match self.rest.iter().position(|b| *b == b'\n') {
            Some(at) => at + 1,
            None if self.rest.is_empty() => return None,
            None => self.rest.len(),
        };
        let (line, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(line)
    }
}

#[derive(Default)]
struct Part {
    name: Option<Vec<u8>>,
    in_content: bool,
    content: Vec<u8>,
}

impl Part {
    fn line(&mut self, line: &[u8], bare: &[u8]) {
        if self.in_content {
            self.content.extend_from_slice(line);
        } else if bare.is_empty() {
            self.in_content = true;
        } else if let Some(at) = bare.iter().position(|b| *b == b':') {
            let (field, value) = bare.split_at(at);
            if field.trim_ascii().eq_ignore_ascii_case(b"content-disposition") {
                self.name = parameter(value, "name").map(<[u8]>::to_vec);
            }
        }
    }

    fn put_into(self, fields: &mut Fields) {
        let Some(name) = self.name else { return };
        // The line end before a delimiter belongs to the delimiter.
        let content = self.content.strip_suffix(b"\n").unwrap_or(&self.content);
        fields.put(name, Value::text(content.strip_suffix(b"\r").unwrap_or(content)));
    }
}

/// The value of a parameter such as `; name="a"`.
fn parameter<'a>(value: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    value.split(|b| *b == b';').skip(1).find_map(|parameter| {
        let at = parameter.iter().position(|b| *b == b'=')?;
        let (name, value) = parameter.split_at(at);
        let value = value.get(1..)?.trim_ascii();
        let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        (name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()) && !bare.is_empty()).then_some(bare)
    })
}

/// Values by name, of which several become a list.
#[derive(Default)]
struct Fields(BTreeMap<Rc<[u8]>, Vec<Value>>);

impl Fields {
    fn put(&mut self, name: Vec<u8>, value: Value) {
        self.0.entry(name.into()).or_default().push(value);
    }

    fn map(self) -> BTreeMap<Rc<[u8]>, Value> {
        let joined = |mut values: Vec<Value>| match values.len() {
            1 => values.pop().unwrap_or(Value::Nil),
            _ => Value::Table(Rc::new(Table { list: values, is_list: true, ..Table::default() })),
        };
        self.0.into_iter().map(|(name, values)| (name, joined(values))).collect()
    }

    fn table(self) -> Rc<Table> {
        Rc::new(Table { map: self.map(), ..Table::default() })
    }
}

/// An element on its way.
#[derive(Default)]
struct Element {
    name: Vec<u8>,
    attributes: Option<Rc<Table>>,
    children: Fields,
    text: Vec<u8>,
}

/// XML, as APISIX's reader makes tables of it: an element with text alone is that text, one that comes several times a list,
/// one with attributes a table with `_attr` and its text at 1. Prefixes of namespaces are left out.
pub(super) fn xml(body: &[u8]) -> Result<Rc<Table>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the text is no UTF-8")?;
    let mut reader = Reader::from_str(text);
    let mut stack = vec![Element::default()];
    let fault = |error: &dyn std::fmt::Display, at: u64| format!("{error} at byte {at}");
    loop {
        let at = reader.buffer_position();
        let event = reader.read_event().map_err(|error| fault(&error, at))?;
        match event {
            Event::Start(start) => {
                if stack.len() > DEPTH {
                    return Err(format!("elements are nested more than {DEPTH} levels deep"));
                }
                stack.push(opened(&start)?);
            }
            Event::Empty(start) => {
                let element = opened(&start)?;
                close(&mut stack, element);
            }
            Event::End(_) => {
                // The reader has checked that the names belong together.
                if let Some(element) = stack.pop() {
                    close(&mut stack, element);
                }
            }
            Event::Text(text) => append(&mut stack, text.as_bytes()),
            Event::CData(text) => append(&mut stack, text.as_bytes()),
            Event::GeneralRef(reference) => {
                let text = reference.resolve_char_ref().map_err(|error| fault(&error, at))?.map(String::from);
                let named = || resolve_predefined_entity(&reference).map(str::to_owned);
                let text = text.or_else(named).ok_or_else(|| fault(&"an entity that is not known", at))?;
                append(&mut stack, text.as_bytes());
            }
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) | Event::DocType(_) => {}
        }
    }
    match (stack.pop(), stack.is_empty()) {
        (Some(root), true) if !root.children.0.is_empty() => Ok(root.children.table()),
        (_, false) => Err("an element is not closed".to_owned()),
        _ => Err("there is no element".to_owned()),
    }
}

fn opened(start: &BytesStart<'_>) -> Result<Element, String> {
    let mut attributes = Table::default();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|error| error.to_string())?;
        attributes.map.insert(bare(attribute.key.as_ref()).as_bytes().into(), Value::text(value.as_bytes()));
    }
    let attributes = (!attributes.map.is_empty()).then(|| Rc::new(attributes));
    Ok(Element { name: bare(start.name().as_ref()).as_bytes().to_vec(), attributes, ..Element::default() })
}

/// A name without its prefix.
fn bare(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

fn append(stack: &mut [Element], text: &[u8]) {
    if let Some(element) = stack.last_mut() {
        element.text.extend_from_slice(text);
    }
}

fn close(stack: &mut [Element], element: Element) {
    let Some(parent) = stack.last_mut() else { return };
    let Element { name, attributes, children, text } = element;
    let text = text.trim_ascii();
    let value = match attributes {
        None if children.0.is_empty() => Value::text(text),
        attributes => {
            let mut map = children.map();
            if let Some(attributes) = attributes {
                map.insert(b"_attr".as_slice().into(), Value::Table(attributes));
            }
            let list = if text.is_empty() { Vec::new() } else { vec![Value::text(text)] };
            Value::Table(Rc::new(Table { list, map, is_list: false }))
        }
    };
    parent.children.put(name, value);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn shown(table: Rc<Table>) -> Json {
        Value::Table(table).to_json()
    }

    #[test]
    fn elements_become_tables() {
        let soap = r#"<?xml version="1.0"?><s:Envelope xmlns:s="urn:s"><s:Body><c>A &amp; B &#33;</c><n>1</n><n><![CDATA[2<]]></n>
            <e/><f lang="en">why</f></s:Body></s:Envelope>"#;
        let expected = json!({ "Envelope": {
            "_attr": { "s": "urn:s" },
            "Body": { "c": "A & B !", "n": ["1", "2<"], "e": "", "f": { "1": "why", "_attr": { "lang": "en" } } },
        } });
        assert_eq!(shown(xml(soap.as_bytes()).unwrap()), expected);
        let deep = format!("{}{}", "<a>".repeat(200), "</a>".repeat(200));
        for (text, says) in [
            ("", "there is no element"),
            ("<a>", "not closed"),
            ("<a></b>", "at byte"),
            ("<a>&bomb;</a>", "not known"),
            (deep.as_str(), "nested"),
        ] {
            let error = xml(text.as_bytes()).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn forms_become_tables() {
        assert_eq!(shown(form(b"a=1&b=x+y%21&a=2&c&&d=")), json!({ "a": ["1", "2"], "b": "x y!", "c": true, "d": "" }));
    }

    #[test]
    fn parts_become_tables() {
        let body = b"preamble\r\n--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\ntwo\r\n--x\r\n\
            content-disposition: form-data; filename=f; name=b\r\nContent-Type: text/plain\r\n\r\nfile\r\n--x--\r\n";
        let table = multipart(body, b"multipart/form-data; boundary=\"x\"").unwrap();
        assert_eq!(shown(table), json!({ "a": "one\r\ntwo", "b": "file" }));
        assert!(multipart(body, b"multipart/form-data").is_err());
        assert!(multipart(b"--x\r\n", b"multipart/form-data; boundary=x").is_err());
    }
}
