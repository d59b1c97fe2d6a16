//! `google.api.http`: the requests that stand for calls of a method, and the fields that their paths hold.

use serde_json::Value as Tree;
use weir_config::prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor, Value};

use super::message;

/// A request that stands for a call.
#[derive(Debug)]
pub(super) struct Binding {
    method: Box<[u8]>,
    template: Template,
    pub(super) body: Body,
    /// The field of the answer that is sent; `None`: all of it.
    pub(super) response_body: Option<Box<str>>,
}

/// Field of the message that a body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// There is no body: arguments are fields.
    None,
    /// The message itself: arguments have no field.
    Message,
    /// This field: arguments are the others.
    Field(Box<str>),
}

/// Pattern for paths.
#[derive(Debug)]
struct Template {
    segments: Vec<Segment>,
    /// Text behind the last colon.
    verb: Option<String>,
    fields: Vec<Field>,
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Text(String),
    /// `*`.
    One,
    /// `**`, which is the last one.
    Rest,
}

/// Part of a path that is the value of a field.
#[derive(Debug)]
struct Field {
    path: Box<str>,
    /// Segments: the first one, and the one behind the last one.
    from: usize,
    to: usize,
}

/// The bindings of a method, in their order.
///
/// # Errors
/// Reason that one of them cannot be used.
pub(super) fn bindings(method: &MethodDescriptor) -> Result<Vec<Binding>, String> {
    let options = method.options();
    let Some(Value::Message(rule)) =
        options.extensions().find(|(option, _)| option.full_name() == "google.api.http").map(|(_, rule)| rule)
    else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    found.extend(binding(rule, method)?);
    if let Some(Value::List(more)) = rule.get_field_by_name("additional_bindings").as_deref() {
        for rule in more.iter().filter_map(Value::as_message) {
            found.extend(binding(rule, method)?);
        }
    }
    Ok(found)
}

fn text(message: &DynamicMessage, field: &str) -> Option<String> {
    let value = message.get_field_by_name(field)?;
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn binding(rule: &DynamicMessage, of: &MethodDescriptor) -> Result<Option<Binding>, String> {
    let named = ["get", "put", "post", "delete", "patch"]
        .into_iter()
        .find_map(|method| Some((method.to_ascii_uppercase(), text(rule, method)?)));
    let custom = || {
        let custom = rule.get_field_by_name("custom")?;
        let custom = custom.as_message()?;
        Some((text(custom, "kind")?, text(custom, "path")?))
    };
    let Some((method, path)) = named.or_else(custom) else { return Ok(None) };
    let input = of.input();
    let template = Template::parse(&path).ok_or_else(|| format!("its path {path} is not one of google.api.http"))?;
    let unknown = |name: &str| format!("its path {path} names the field {name}, which {} lacks", input.full_name());
    if let Some(field) = template.fields.iter().find(|field| !has_field(&input, &field.path)) {
        return Err(unknown(&field.path));
    }
    let body = match text(rule, "body").as_deref() {
        None => Body::None,
        Some("*") => Body::Message,
        Some(name) if input.get_field_by_name(name).is_some() => Body::Field(name.into()),
        Some(name) => return Err(format!("its body is the field {name}, which {} lacks", input.full_name())),
    };
    let response_body = text(rule, "response_body").map(String::into_boxed_str);
    if let Some(name) = response_body.as_deref().filter(|name| of.output().get_field_by_name(name).is_none()) {
        return Err(format!("its response_body is the field {name}, which {} lacks", of.output().full_name()));
    }
    Ok(Some(Binding { method: method.into_bytes().into(), template, body, response_body }))
}

/// True if a path of fields leads to a single value that is no message.
fn has_field(input: &MessageDescriptor, path: &str) -> bool {
    let mut message = Some(input.clone());
    let mut is_value = false;
    for step in path.split('.') {
        let Some(field) = message.take().and_then(|message| message.get_field_by_name(step)) else { return false };
        if field.is_list() || field.is_map() {
            return false;
        }
        message = field.kind().as_message().cloned();
        is_value = message.is_none();
    }
    is_value
}

impl Binding {
    /// True if the binding is for this request; `path` begins with a slash and is encoded.
    pub(super) fn is_for(&self, method: &[u8], path: &[u8]) -> bool {
        *self.method == *method && self.template.captures(path, |_, _| ())
    }

    /// Puts the fields of a path into a tree.
    pub(super) fn put_path(&self, path: &[u8], tree: &mut Tree) {
        self.template.captures(path, |field, value| message::put(tree, field, Tree::String(value)));
    }
}

impl Template {
    /// Reads `/v1/{name=shelves/*}/books/{id}:verb`; `None`: it is not in that form.
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text.strip_prefix('/')?;
        let mut template = Self { segments: Vec::new(), verb: None, fields: Vec::new() };
        loop {
            rest = match rest.strip_prefix('{') {
                Some(inside) => {
                    let (variable, after) = inside.split_once('}')?;
                    let (path, pattern) = variable.split_once('=').unwrap_or((variable, "*"));
                    if path.is_empty() || path.split('.').any(str::is_empty) {
                        return None;
                    }
                    let from = template.segments.len();
                    for segment in pattern.split('/') {
                        template.push(segment)?;
                    }
                    template.fields.push(Field { path: path.into(), from, to: template.segments.len() });
                    after
                }
                None => {
                    let end = rest.find(['/', ':']).unwrap_or(rest.len());
                    let (segment, after) = rest.split_at(end);
                    template.push(segment)?;
                    after
                }
            };
            if rest.is_empty() {
                break;
            }
            if let Some(verb) = rest.strip_prefix(':') {
                if verb.is_empty() || verb.contains(['/', '{', '*', ':']) {
                    return None;
                }
                template.verb = Some(verb.to_owned());
                break;
            }
            rest = rest.strip_prefix('/')?;
        }
        let rest_at = template.segments.iter().position(|segment| *segment == Segment::Rest);
        rest_at.is_none_or(|at| at + 1 == template.segments.len()).then_some(template)
    }

    fn push(&mut self, segment: &str) -> Option<()> {
        self.segments.push(match segment {
            "*" => Segment::One,
            "**" => Segment::Rest,
            text if text.is_empty() || text.contains(['*', '{', '}', '=', ':']) => return None,
            text => Segment::Text(text.to_owned()),
        });
        Some(())
    }

    /// True if a path fits; then `found` is called with each field and its value.
    fn captures(&self, path: &[u8], mut found: impl FnMut(&str, String)) -> bool {
        let Some(path) = path.strip_prefix(b"/") else { return false };
        let path = match &self.verb {
            Some(verb) => match path.strip_suffix(verb.as_bytes()).and_then(|path| path.strip_suffix(b":")) {
                Some(path) => path,
                None => return false,
            },
            None => path,
        };
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let has_rest = self.segments.last() == Some(&Segment::Rest);
        let fixed = self.segments.len() - usize::from(has_rest);
        if parts.len() < fixed || (!has_rest && parts.len() > fixed) {
            return false;
        }
        let fits = self.segments.iter().zip(&parts).all(|(segment, part)| match segment {
            Segment::Text(text) => decoded(part) == text.as_bytes(),
            Segment::One => !part.is_empty(),
            Segment::Rest => true,
        });
        if fits {
            for field in &self.fields {
                let to = if has_rest && field.to == self.segments.len() { parts.len() } else { field.to };
                let value = parts.get(field.from..to).unwrap_or_default().iter().map(|part| decoded(part));
                found(&field.path, String::from_utf8_lossy(&value.collect::<Vec<_>>().join(&b'/')).into_owned());
            }
        }
        fits
    }
}

/// Decodes `%XX`; a plus is a plus in a path.
pub(super) fn decoded(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part;
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::Template;

    fn captured(template: &str, path: &str) -> Option<Vec<(String, String)>> {
        let mut all = Vec::new();
        let template = Template::parse(template).unwrap_or_else(|| panic!("{template}"));
        template.captures(path.as_bytes(), |field, value| all.push((field.to_owned(), value))).then_some(all)
    }

    #[test]
    fn paths_are_taken_apart() {
        type Case<'a> = (&'a str, &'a str, Option<&'a [(&'a str, &'a str)]>);
        let cases: [Case<'_>; 15] = [
            ("/v1/books", "/v1/books", Some(&[])),
            ("/v1/books", "/v1/book", None),
            ("/v1/books", "/v1/books/", None),
            ("/v1/books/{id}", "/v1/books/7", Some(&[("id", "7")])),
            ("/v1/books/{id}", "/v1/books/", None),
            ("/v1/books/{id}", "/v1/books/a%2Fb+c", Some(&[("id", "a/b+c")])),
            ("/v1/books/{id}", "/v1/books/7/8", None),
            ("/v1/{name=shelves/*/books/*}", "/v1/shelves/1/books/2", Some(&[("name", "shelves/1/books/2")])),
            ("/v1/{name=shelves/*}/x", "/v1/shelves/1/y", None),
            ("/v1/{book.id}:read", "/v1/7:read", Some(&[("book.id", "7")])),
            ("/v1/{book.id}:read", "/v1/7", None),
            ("/v1/{a}/{b=**}", "/v1/1/2/3/4", Some(&[("a", "1"), ("b", "2/3/4")])),
            ("/v1/{b=**}:cut", "/v1/1/2:cut", Some(&[("b", "1/2")])),
            ("/v1/**", "/v1/1/2", Some(&[])),
            ("/v1/*/x", "/v1/1/x", Some(&[])),
        ];
        for (template, path, expected) in cases {
            let expected = expected.map(|all| all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect());
            assert_eq!(captured(template, path), expected, "{template} {path}");
        }
    }

    #[test]
    fn other_templates_are_refused() {
        for text in
            ["", "v1", "/", "/v1//a", "/v1/{a", "/v1/{}", "/v1/{a=}", "/v1/a*", "/v1/**/a", "/v1/{a..b}", "/v1:"]
        {
            assert!(Template::parse(text).is_none(), "{text}");
        }
    }
}
