//! Paths below `/apisix/admin`, and the methods that a kind of resource knows.

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode};
use weir_store::{Key, Kind};

use crate::answer::Answer;

/// The methods of a kind.
pub(crate) fn methods(kind: Kind) -> impl Iterator<Item = &'static str> {
    ["GET", "PUT", "DELETE"].into_iter().chain(kind.entry().methods.iter().copied())
}

/// Refuses a method that a kind does not know.
pub(crate) fn check_method(kind: Kind, method: &Method) -> Result<(), Answer> {
    if *method == Method::HEAD || methods(kind).any(|known| *method == known) {
        return Ok(());
    }
    let message = format!("not supported `{method}` method for {}", kind.entry().noun);
    let refusal = Answer::error(StatusCode::METHOD_NOT_ALLOWED, message);
    let known = HeaderValue::from_str(&methods(kind).collect::<Vec<_>>().join(", "));
    // RFC 9110 section 15.5.6.
    Err(match known {
        Ok(known) => refusal.with(ALLOW, known),
        Err(_) => refusal,
    })
}

/// Target of a path below `/apisix/admin`.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// The consumer of credentials, the manager of secrets.
    pub(crate) parent: Option<String>,
    /// The id in the path.
    pub(crate) id: Option<String>,
    /// Segments after the id: a place inside the resource.
    pub(crate) inside: Vec<String>,
}

impl Target {
    /// Reads a path, of which there is at least one segment.
    pub(crate) fn parse(path: &[String]) -> Result<Self, Answer> {
        let matches = Kind::ALL.into_iter().filter_map(|kind| Self::of(kind, path));
        // The path of credentials begins with that of a consumer.
        matches.max_by_key(|place| place.kind.entry().path.len()).ok_or_else(|| {
            let name = path.first().map(String::as_str).unwrap_or_default();
            Answer::error(StatusCode::NOT_FOUND, format!("Unsupported resource type: {name}")).unversioned()
        })
    }

    /// Reads a path as that of a kind, of its list or of one resource.
    fn of(kind: Kind, path: &[String]) -> Option<Self> {
        let mut rest = path.iter();
        let mut place = Self { kind, parent: None, id: None, inside: Vec::new() };
        let mut parameters = kind.parameters().count();
        for wanted in kind.entry().path.split('/') {
            if !wanted.starts_with('{') {
                rest.next().filter(|found| *found == wanted)?;
                continue;
            }
            parameters -= 1;
            let found = rest.next().cloned();
            *(if parameters == 0 { &mut place.id } else { &mut place.parent }) = found;
        }
        place.inside = rest.cloned().collect();
        Some(place)
    }

    /// The key of the resource of this kind with this id; `None` for what can be no id.
    pub(crate) fn key(&self, id: &str) -> Option<Key> {
        let mut values = self.parent.as_deref().into_iter().chain([id]);
        let segment = |segment: &'static str| match segment.starts_with('{') {
            true => values.next().filter(|value| is_id(value)),
            false => Some(segment),
        };
        let segments: Option<Vec<&str>> = self.kind.entry().path.split('/').map(segment).collect();
        segments?.join("/").parse().ok()
    }
}

/// True for a text that may be a part of a key, and so cannot lead to another place in a store.
fn is_id(text: &str) -> bool {
    const LONGEST: usize = 256;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !matches!(text, "" | "." | "..") && text.len() <= LONGEST && text.bytes().all(fits)
}
