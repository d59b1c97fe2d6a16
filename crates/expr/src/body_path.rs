//! Paths into the body of a request, as they stand behind `post_arg.`.

use std::sync::Arc;

/// A path, in one of two forms; cheap to clone.
///
/// - `user.name`: names of members with points between them, which lead to one value.
/// - `items[*].id`, `items[0]`, `..id`: a JSONPath without its `$.`, which leads to a list of values. It has members by
///   their name (`.name`, `['name']`), elements by their position (`[0]`, `[-1]` is the last one), all of either (`.*`,
///   `[*]`), and what lies at any depth (`..`), at most once. Slices, unions and filters are not supported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BodyPath(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Parts {
    text: Box<str>,
    steps: Box<[PathStep]>,
    finds_list: bool,
}

/// A step on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathStep {
    /// The member of an object with this name.
    Member(Box<str>),
    /// The element of a list at this position; a negative one counts from the end.
    Element(i64),
    /// Every member or element.
    Every,
    /// The value itself and all that lies in it.
    Within,
}

/// More steps than anybody writes.
const MOST_STEPS: usize = 32;

impl BodyPath {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let finds_list = text.contains(['[', '*']) || text.contains("..");
        let steps = if finds_list { json_path(text)? } else { plain_path(text)? };
        if steps.len() > MOST_STEPS {
            return Err("the path has more than 32 steps");
        }
        Ok(Self(Arc::new(Parts { text: text.into(), steps: steps.into(), finds_list })))
    }

    /// The path as it is written.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The steps from the whole body on.
    pub fn steps(&self) -> &[PathStep] {
        &self.0.steps
    }

    /// True if the path finds a list of values instead of a single value.
    pub fn finds_list(&self) -> bool {
        self.0.finds_list
    }
}

const NO_NAME: &str = "a name is missing between two points, or at an end";

fn plain_path(text: &str) -> Result<Vec<PathStep>, &'static str> {
    text.split('.').map(|name| if name.is_empty() { Err(NO_NAME) } else { Ok(PathStep::Member(name.into())) }).collect()
}

fn json_path(text: &str) -> Result<Vec<PathStep>, &'static str> {
    let mut steps = Vec::new();
    let mut rest = text;
    // The point before the first name stands before the whole path.
    let mut is_name = !text.starts_with(['[', '.']);
    loop {
        if is_name {
            let length = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(match &rest[..length] {
                "" => return Err(NO_NAME),
                "*" => PathStep::Every,
                name if name.contains('*') => return Err("a star stands for a whole name"),
                name => PathStep::Member(name.into()),
            });
            rest = &rest[length..];
        } else if let Some(bracket) = rest.strip_prefix('[') {
            let (step, length) = in_brackets(bracket)?;
            steps.push(step);
            rest = &bracket[length..];
        }
        if rest.is_empty() {
            return Ok(steps);
        }
        is_name = match rest.strip_prefix("..") {
            Some(_) if steps.contains(&PathStep::Within) => return Err("'..' may stand in it once"),
            Some(behind) => {
                steps.push(PathStep::Within);
                rest = behind;
                !behind.starts_with('[')
            }
            None => match rest.strip_prefix('.') {
                Some(behind) => {
                    rest = behind;
                    !behind.starts_with('[')
                }
                None if rest.starts_with('[') => false,
                None => return Err("expected a point or a bracket behind ']'"),
            },
        };
    }
}

/// Parses the step after a `[`; returns it and its length including the `]`.
fn in_brackets(text: &str) -> Result<(PathStep, usize), &'static str> {
    for quote in ['\'', '"'] {
        if let Some(quoted) = text.strip_prefix(quote) {
            let end = quoted.find(quote).ok_or("a quote has no end")?;
            return match quoted.as_bytes().get(end + 1) {
                Some(b']') => Ok((PathStep::Member(quoted[..end].into()), end + 3)),
                _ => Err("expected ']' behind a quoted name; unions are not supported"),
            };
        }
    }
    let end = text.find(']').ok_or("a bracket has no end")?;
    let step = match text[..end].trim() {
        "*" => PathStep::Every,
        filter if filter.starts_with(['?', '(']) => return Err("filters are not supported"),
        slice if slice.contains([':', ',']) => return Err("slices and unions are not supported"),
        position => {
            PathStep::Element(position.parse().map_err(|_| "expected a position, a quoted name or * in brackets")?)
        }
    };
    Ok((step, end + 1))
}

#[cfg(test)]
mod tests {
    use super::BodyPath;
    use super::PathStep::{Element, Every, Member, Within};

    #[test]
    fn paths_are_read() {
        let name = |name: &str| Member(name.into());
        let cases = [
            ("model", vec![name("model")], false),
            ("user.na-me.0", vec![name("user"), name("na-me"), name("0")], false),
            (
                "messages[*].content[0].type",
                vec![name("messages"), Every, name("content"), Element(0), name("type")],
                true,
            ),
            ("a['b.c'][\"d\"][-1]", vec![name("a"), name("b.c"), name("d"), Element(-1)], true),
            ("..id", vec![Within, name("id")], true),
            ("a..[0]", vec![name("a"), Within, Element(0)], true),
            ("*.b", vec![Every, name("b")], true),
            ("[0].b", vec![Element(0), name("b")], true),
        ];
        for (text, steps, finds_list) in cases {
            let path = BodyPath::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((path.steps(), path.finds_list(), path.text()), (&steps[..], finds_list, text));
        }
    }

    #[test]
    fn what_is_no_path_is_said() {
        for (text, reason) in [
            ("", "a name is missing between two points, or at an end"),
            ("a.", "a name is missing between two points, or at an end"),
            ("a..", "a name is missing between two points, or at an end"),
            ("a..b..c", "'..' may stand in it once"),
            ("a[", "a bracket has no end"),
            ("a['b", "a quote has no end"),
            ("a['b','c']", "expected ']' behind a quoted name; unions are not supported"),
            ("a[0:2]", "slices and unions are not supported"),
            ("a[?(@.b)]", "filters are not supported"),
            ("a[x]", "expected a position, a quoted name or * in brackets"),
            ("a[0]b", "expected a point or a bracket behind ']'"),
            ("a*", "a star stands for a whole name"),
        ] {
            assert_eq!(BodyPath::parse(text).err(), Some(reason), "{text}");
        }
        assert!(BodyPath::parse(&"a.".repeat(40)).is_err());
    }
}
