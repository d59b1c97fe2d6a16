//! Values of variables in the body of a request: fields of forms, places in JSON, GraphQL operations.
//!
//! Nothing is made before a variable asks, and what was made is kept until the request is over. Bodies are looked at in
//! place; what is copied out of them is a part of the budget for buffers.

mod form;
mod graphql;
mod json;

use std::cell::{Cell, OnceCell, RefCell};

use weir_expr::{BodyPath, PathStep, Value};
use weir_wire::query::{self, Argument};

use crate::buffers::Held;
use graphql::Graphql;
pub(crate) use graphql::Part;
pub use graphql::{Depth, graphql_changes, graphql_depth, graphql_operations};

/// Values made of a body for variables.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// True if a variable was asked for that the body may have, which is not here yet.
    pub(crate) wants_body: Cell<bool>,
    /// True if there was no room for a value in the budget.
    pub(crate) lacks_room: Cell<bool>,
    held: RefCell<Held>,
    taken: Cell<usize>,
    /// A form, decoded.
    form: OnceCell<Vec<u8>>,
    /// True if the body is JSON.
    is_json: OnceCell<bool>,
    found: OnceCell<Box<Entry>>,
    graphql: OnceCell<Option<Graphql>>,
}

/// Kind of body by a request's `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media<'a> {
    /// `application/x-www-form-urlencoded`
    Form,
    /// `application/json`
    Json,
    /// `multipart/form-data`, with its boundary.
    Multipart(&'a [u8]),
    /// Another one, or none.
    Other,
}

/// The value at a path.
#[derive(Debug)]
enum Found {
    Nothing,
    Boolean(bool),
    /// Bytes of the body.
    Text(std::ops::Range<usize>),
    Decoded(Vec<u8>),
    /// Bytes of the body, which are JSON.
    Json(std::ops::Range<usize>),
    List(String),
}

#[derive(Debug)]
struct Entry {
    path: BodyPath,
    found: Found,
    next: OnceCell<Box<Entry>>,
}

impl<'a> Media<'a> {
    /// Reads a `Content-Type`.
    pub(crate) fn of(content_type: Option<&'a [u8]>) -> Self {
        let text = content_type.unwrap_or_default();
        let end = text.iter().position(|b| *b == b';').unwrap_or(text.len());
        let (kind, parameters) = text.split_at_checked(end).unwrap_or_default();
        let kind = weir_wire::trim_ows(kind);
        match () {
            () if kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") => Self::Form,
            () if kind.eq_ignore_ascii_case(b"application/json") => Self::Json,
            () if kind.eq_ignore_ascii_case(b"multipart/form-data") => {
                form::parameter(parameters, b"boundary").map_or(Self::Other, Self::Multipart)
            }
            () => Self::Other,
        }
    }
}

impl Values {
    /// The first field of a form with this name.
    pub(crate) fn form_field<'v>(&'v self, body: &'v [u8], name: &[u8]) -> Option<Value<'v>> {
        let decoded = match query::is_plain(body) {
            true => body,
            false if !self.takes(body.len()) && self.form.get().is_none() => return None,
            false => self.form.get_or_init(|| {
                let mut decoded = Vec::with_capacity(body.len());
                query::decode(body, &mut decoded);
                decoded
            }),
        };
        Some(match query::find(body, decoded, name)? {
            Argument::Flag => Value::Boolean(true),
            Argument::Value(value) => Value::Bytes(value),
        })
    }

    /// The value at a path.
    pub(crate) fn at_path<'v>(&'v self, body: &'v [u8], media: Media<'_>, path: &BodyPath) -> Option<Value<'v>> {
        let bytes = |range: &std::ops::Range<usize>| body.get(range.clone()).unwrap_or_default();
        Some(match self.find(body, media, path) {
            Found::Nothing => return None,
            Found::Boolean(boolean) => Value::Boolean(*boolean),
            Found::Text(range) => Value::Bytes(bytes(range)),
            Found::Decoded(text) => Value::Bytes(text),
            Found::Json(range) => Value::Json(std::str::from_utf8(bytes(range)).ok()?),
            Found::List(list) => Value::Json(list),
        })
    }

    /// The same, looked for once for each path.
    fn find(&self, body: &[u8], media: Media<'_>, path: &BodyPath) -> &Found {
        let mut place = &self.found;
        while let Some(entry) = place.get() {
            if entry.path == *path {
                return &entry.found;
            }
            place = &entry.next;
        }
        let entry = place.get_or_init(|| {
            let found = self.look(body, media, path);
            let size = match &found {
                Found::Decoded(text) => text.capacity(),
                Found::List(text) => text.capacity(),
                _ => 0,
            };
            let found = if self.takes(size_of::<Entry>() + size) { found } else { Found::Nothing };
            Box::new(Entry { path: path.clone(), found, next: OnceCell::new() })
        });
        &entry.found
    }

    fn look(&self, body: &[u8], media: Media<'_>, path: &BodyPath) -> Found {
        let field = match path.steps() {
            [PathStep::Member(name)] => Some(name.as_bytes()),
            _ => None,
        };
        match (media, field) {
            (Media::Json, _) => self.json(body).map_or(Found::Nothing, |json| json::find(json, path)),
            (Media::Form, Some(name)) => form::fields(body, name),
            (Media::Multipart(boundary), Some(name)) => {
                form::part(body, boundary, name).map_or(Found::Nothing, Found::Text)
            }
            _ => Found::Nothing,
        }
    }

    /// The body, when it is JSON: in UTF-8 (RFC 8259 section 8.1).
    fn json<'b>(&self, body: &'b [u8]) -> Option<&'b str> {
        let text = std::str::from_utf8(body).ok()?;
        let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        self.is_json.get_or_init(is_json).then_some(text)
    }

    /// A part of the GraphQL operation in a body, or in `query`, the argument of a GET request.
    pub(crate) fn graphql<'v>(
        &'v self,
        source: impl FnOnce() -> Option<GraphqlSource<'v>>,
        part: Part,
    ) -> Option<Value<'v>> {
        let read = || match source()? {
            GraphqlSource::Query { text, operation_name } => self.parse_graphql(text, operation_name),
            GraphqlSource::Json(body) => {
                let json = self.json(body)?;
                let query = json::member(json, "query").filter(|_| self.takes(body.len()))?;
                let name = json::member(json, "operationName");
                self.parse_graphql(query.as_bytes(), name.as_ref().map(|name| name.as_bytes()))
            }
        };
        Some(self.graphql.get_or_init(read).as_ref()?.part(part))
    }

    fn parse_graphql(&self, text: &[u8], operation_name: Option<&[u8]>) -> Option<Graphql> {
        // Names are written with quotes and commas; a short one takes twice its length.
        self.takes(3 * text.len()).then(|| Graphql::parse(text, operation_name))?
    }

    /// Takes room of the budget; without it, the request has to be refused.
    fn takes(&self, bytes: usize) -> bool {
        let all = self.taken.get() + bytes;
        let has_room = self.held.borrow_mut().grow_to(all);
        if has_room {
            self.taken.set(all);
        } else {
            self.lacks_room.set(true);
        }
        has_room
    }
}

/// Place of a GraphQL document.
pub(crate) enum GraphqlSource<'a> {
    /// As it is, with the name of the operation that is to be executed.
    Query { text: &'a [u8], operation_name: Option<&'a [u8]> },
    /// In the member `query` of an object.
    Json(&'a [u8]),
}

#[cfg(test)]
mod tests {
    use super::{GraphqlSource, Media, Part, Values};
    use weir_expr::{Value, Variable};

    #[test]
    fn media_types_are_told_apart() {
        let boundary = |text: &'static str| Media::Multipart(text.as_bytes());
        for (text, media) in [
            ("application/json", Media::Json),
            ("Application/JSON ; charset=utf-8", Media::Json),
            ("application/jsonl", Media::Other),
            ("application/x-www-form-urlencoded", Media::Form),
            ("multipart/form-data; charset=a; Boundary=\"b c\"", boundary("b c")),
            ("multipart/form-data;boundary=x-1", boundary("x-1")),
            ("multipart/form-data", Media::Other),
            ("", Media::Other),
        ] {
            assert_eq!(Media::of(Some(text.as_bytes())), media, "{text}");
        }
        assert_eq!(Media::of(None), Media::Other);
    }

    /// The value that `post_arg.` finds, printed; JSON with a mark before it.
    fn at(body: &str, media: Media<'_>, path: &str) -> Option<String> {
        let Ok(Variable::PostField(path)) = Variable::parse(&format!("post_arg.{path}")) else { panic!("{path}") };
        let values = Values::default();
        let found = values.at_path(body.as_bytes(), media, &path).map(|value| match value {
            Value::Json(json) => format!("json {json}"),
            Value::Boolean(boolean) => format!("boolean {boolean}"),
            value => {
                let mut text = Vec::new();
                value.write_to(&mut text);
                String::from_utf8(text).unwrap()
            }
        });
        let again = values.at_path(body.as_bytes(), media, &path).is_some();
        assert_eq!(found.is_some(), again, "the second time as the first");
        found
    }

    #[test]
    fn places_in_json_are_found() {
        let body = r#"{"model":"gpt","n":1.50,"on":true,"no":null,"u\u0073er":{"id":"\u00e4"},"model":"last",
            "messages":[{"role":"a","content":[{"type":"text"},{"type":"image_url"}]},{"role":"b"}],"tags":["x",1]}"#;
        for (path, found) in [
            ("model", Some("last")),
            ("n", Some("json 1.50")),
            ("on", Some("boolean true")),
            ("no", Some("json null")),
            ("user.id", Some("ä")),
            ("user", Some(r#"json {"id":"\u00e4"}"#)),
            ("user.id.x", None),
            ("tags", Some(r#"json ["x",1]"#)),
            ("tags.0", None),
            ("tags[0]", Some(r#"json ["x"]"#)),
            ("tags[-1]", Some("json [1]")),
            ("tags[2]", None),
            ("messages[*].role", Some(r#"json ["a","b"]"#)),
            ("messages[*].content[*].type", Some(r#"json ["text","image_url"]"#)),
            ("messages[0]['role']", Some(r#"json ["a"]"#)),
            ("..type", Some(r#"json ["text","image_url"]"#)),
            ("messages..role", Some(r#"json ["a","b"]"#)),
            ("..nothing", None),
            ("user.*", Some(r#"json ["\u00e4"]"#)),
        ] {
            assert_eq!(at(body, Media::Json, path).as_deref(), found, "{path}");
        }
        for broken in ["", "{", "{\"a\":1}}", "a=1", "{\"a\":1,}"] {
            assert_eq!(at(broken, Media::Json, "a"), None, "{broken}");
        }
        assert_eq!(at("{\"a\":1}", Media::Other, "a"), None);
        assert_eq!(at("[{\"a\":1}]", Media::Json, "[0].a").as_deref(), Some("json [1]"));
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(at(&deep, Media::Json, "..a"), None);
        assert!(at(&deep, Media::Json, "[*]").is_some());
    }

    #[test]
    fn fields_of_forms_are_found() {
        let body = "name=j%20ack&flag&tag=a&tag=%22b&a.b=1";
        for (path, found) in [
            ("name", Some("j ack")),
            ("flag", Some("boolean true")),
            ("tag", Some(r#"json ["a","\"b"]"#)),
            ("a.b", None),
            ("nothing", None),
            ("tag[0]", None),
        ] {
            assert_eq!(at(body, Media::Form, path).as_deref(), found, "{path}");
        }
        let values = Values::default();
        let first = |name: &str| values.form_field(body.as_bytes(), name.as_bytes());
        assert_eq!([first("name"), first("tag")], [Some(Value::Bytes(b"j ack")), Some(Value::Bytes(b"a"))]);
        assert_eq!([first("flag"), first("x")], [Some(Value::Boolean(true)), None]);
        assert_eq!(values.form_field(b"plain=1", b"plain"), Some(Value::Bytes(b"1")));
    }

    #[test]
    fn parts_are_found() {
        let body = "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n--b\r\n\
            content-disposition: form-data; filename=\"name=x\"; name=file\r\nContent-Type: text/plain\r\n\r\n--bc\r\n\
            two\r\n--b\r\nContent-Disposition: form-data; name=\"q\\\"t\"\r\n\r\n\r\n--b--\r\nname=\"c\"";
        let media = Media::Multipart(b"b");
        for (path, found) in
            [("a", Some("one")), ("file", Some("--bc\r\ntwo")), ("['q\"t']", Some("")), ("q\"t", Some("")), ("c", None)]
        {
            assert_eq!(at(body, media, path).as_deref(), found, "{path}");
        }
        assert_eq!(at("--b\r\n\r\nx", media, "a"), None);
    }

    #[test]
    fn graphql_is_read_wherever_it_stands() {
        let of = |source: fn() -> Option<GraphqlSource<'static>>| {
            let values = Values::default();
            let mut text = Vec::new();
            for part in [Part::Operation, Part::Name, Part::RootFields] {
                match values.graphql(source, part) {
                    Some(value) => value.write_to(&mut text),
                    None => text.extend_from_slice(b"none"),
                }
                text.push(b' ');
            }
            String::from_utf8(text).unwrap()
        };
        let raw = || Some(GraphqlSource::Query { text: b"query q{a b}", operation_name: None });
        assert_eq!(of(raw), "query q [\"a\",\"b\"] ");
        assert_eq!(of(|| Some(GraphqlSource::Json(br#"{"query":"{\n a}"}"#))), "query  [\"a\"] ");
        let two = || Some(GraphqlSource::Json(br#"{"operationName":"n","query":"{a} mutation n {b}"}"#));
        assert_eq!(of(two), "mutation n [\"b\"] ");
        assert_eq!(of(|| Some(GraphqlSource::Json(b"{}"))), "none none none ");
        assert_eq!(of(|| None), "none none none ");
    }
}
