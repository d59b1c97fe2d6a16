//! The operation that a GraphQL document asks for (GraphQL, October 2021, section 2): its kind, its name, and the fields at
//! its top. What lies deeper is passed over, and so are the rules of the language that do not matter for that.

use weir_expr::Value;

/// An operation.
#[derive(Debug)]
pub(crate) struct Graphql {
    operation: &'static str,
    name: Box<[u8]>,
    /// A list in JSON.
    root_fields: String,
}

/// A part of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Operation,
    Name,
    RootFields,
}

/// More definitions than a document has; it is not read then.
const MOST_DEFINITIONS: usize = 1000;
/// Bound of the depth of brackets, and of the number of fragments of an operation.
const DEEPEST: usize = 128;

impl Graphql {
    /// Reads a document. Of several operations it is the one that `wanted` names, which is the one that is executed; without
    /// a name it is the first one.
    pub(crate) fn parse(text: &[u8], wanted: Option<&[u8]>) -> Option<Self> {
        let definitions = definitions(text)?;
        let operations = || definitions.iter().filter(|definition| definition.operation.is_some());
        let wanted = wanted.filter(|name| !name.is_empty());
        let chosen = match wanted {
            Some(name) => operations().find(|definition| definition.name == name)?,
            None => operations().next()?,
        };
        let mut fields = RootFields { definitions: &definitions, expanded: Vec::new(), list: String::from("[") };
        fields.add(chosen.selections).ok()?;
        let mut root_fields = fields.list;
        if root_fields.len() > 1 {
            root_fields.pop();
        }
        root_fields.push(']');
        Some(Self { operation: chosen.operation?, name: chosen.name.into(), root_fields })
    }

    pub(crate) fn part(&self, part: Part) -> Value<'_> {
        match part {
            Part::Operation => Value::Bytes(self.operation.as_bytes()),
            Part::Name => Value::Bytes(&self.name),
            Part::RootFields => Value::Json(&self.root_fields),
        }
    }
}

/// Names of the operations of a document of GraphQL, in their order; that of one without a name is empty. `None`: the text is no
/// such document, or has no operation.
#[must_use]
pub fn graphql_operations(text: &[u8]) -> Option<Vec<String>> {
    Graphql::parse(text, None)?;
    let operations = definitions(text)?.into_iter().filter(|definition| definition.operation.is_some());
    Some(operations.map(|operation| String::from_utf8_lossy(operation.name).into_owned()).collect())
}

/// True for a document that has an operation which is no query: a mutation or a subscription.
#[must_use]
pub fn graphql_changes(text: &[u8]) -> bool {
    let operations = definitions(text).unwrap_or_default().into_iter().filter_map(|definition| definition.operation);
    operations.into_iter().any(|operation| operation != "query")
}

/// Depth of what an operation of a document asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// So many levels of selections, at least one.
    Levels(u64),
    /// Fragments name each other in a circle.
    Circle,
    /// The text is no document of GraphQL, or nests deeper than anybody reads.
    Unreadable,
    /// The document has no operation.
    NoOperation,
}

/// Depth of the operation that `wanted` names, or of the deepest one where it names none. A fragment counts as what is in it,
/// in its place; one that is missing counts as nothing.
#[must_use]
pub fn graphql_depth(text: &[u8], wanted: Option<&[u8]>) -> Depth {
    let Some(definitions) = definitions(text) else { return Depth::Unreadable };
    let operations = || definitions.iter().filter(|definition| definition.operation.is_some());
    if operations().next().is_none() {
        return Depth::NoOperation;
    }
    let named = wanted.and_then(|name| operations().find(|definition| definition.name == name));
    let mut depths = Depths { definitions: &definitions, known: vec![None; definitions.len()], open: Vec::new() };
    let mut deepest = 1;
    for operation in operations().filter(|operation| named.is_none_or(|named| std::ptr::eq(named, *operation))) {
        match depths.of(operation.selections) {
            Ok(depth) => deepest = deepest.max(1 + depth),
            Err(depth) => return depth,
        }
    }
    Depth::Levels(deepest)
}

/// Depths of fragments, each of which is measured once.
struct Depths<'d, 'a> {
    definitions: &'d [Definition<'a>],
    known: Vec<Option<u64>>,
    /// Fragments that are being measured, by their position.
    open: Vec<usize>,
}

impl Depths<'_, '_> {
    /// Levels below these selections.
    fn of(&mut self, selections: &[u8]) -> Result<u64, Depth> {
        let mut deepest = 0;
        let own = walk(selections, true, &mut |level, selection| {
            if let Selection::Spread(name) = selection {
                deepest = deepest.max(level + self.of_fragment(name)?);
            }
            Ok(())
        })?;
        Ok(deepest.max(own))
    }

    fn of_fragment(&mut self, name: &[u8]) -> Result<u64, Depth> {
        let is_it = |definition: &Definition<'_>| definition.operation.is_none() && definition.name == name;
        let Some(position) = self.definitions.iter().position(is_it) else { return Ok(0) };
        if self.open.contains(&position) {
            return Err(Depth::Circle);
        }
        if let Some(known) = self.known.get(position).copied().flatten() {
            return Ok(known);
        }
        if self.open.len() >= DEEPEST {
            return Err(Depth::Unreadable);
        }
        let selections = self.definitions.get(position).map_or(&b""[..], |definition| definition.selections);
        self.open.push(position);
        let depth = self.of(selections)?;
        self.open.pop();
        if let Some(known) = self.known.get_mut(position) {
            *known = Some(depth);
        }
        Ok(depth)
    }
}

/// A selection of a list.
enum Selection<'a> {
    /// A field, by its own name.
    Field(&'a [u8]),
    /// A fragment that stands elsewhere.
    Spread(&'a [u8]),
}

/// Calls `each` with the selections of a list and their levels, from 0; those of fragments without a name count as standing in
/// their place. The deepest level that was opened. `descends`: what lies in fields is gone through as well, and not passed over.
fn walk<'a>(
    selections: &'a [u8],
    descends: bool,
    each: &mut dyn FnMut(u64, Selection<'a>) -> Result<(), Depth>,
) -> Result<u64, Depth> {
    fn next<'t>(tokens: &mut Tokens<'t>) -> Result<Token<'t>, Depth> {
        tokens.next().ok_or(Depth::Unreadable)
    }
    let mut tokens = Tokens { text: selections, at: 0 };
    // Braces that are open, and whether each is a level: those of fragments without a name are none. Fragments are gone
    // through as they come: to look for their ends first would be to read what lies in them once for each.
    let mut braces: Vec<bool> = Vec::new();
    let (mut level, mut deepest) = (0, 0);
    let mut token = next(&mut tokens)?;
    loop {
        let opens = match token {
            Token::End if braces.is_empty() => return Ok(deepest),
            Token::Mark(b'}') => {
                level -= u64::from(braces.pop().ok_or(Depth::Unreadable)?);
                token = next(&mut tokens)?;
                continue;
            }
            Token::Spread => {
                token = next(&mut tokens)?;
                match token {
                    Token::Name(name) if name != b"on" => {
                        token = next(&mut tokens)?;
                        token = tokens.skip_directives(token).ok_or(Depth::Unreadable)?;
                        each(level, Selection::Spread(name))?;
                        continue;
                    }
                    Token::Name(_) => {
                        next(&mut tokens)?;
                        token = next(&mut tokens)?;
                    }
                    _ => {}
                }
                false
            }
            Token::Name(mut name) => {
                token = next(&mut tokens)?;
                if matches!(token, Token::Mark(b':')) {
                    // That was another name for the field, which comes now.
                    let Token::Name(field) = next(&mut tokens)? else { return Err(Depth::Unreadable) };
                    name = field;
                    token = next(&mut tokens)?;
                }
                each(level, Selection::Field(name))?;
                if matches!(token, Token::Mark(b'(')) {
                    tokens.skip_brackets(b'(').ok_or(Depth::Unreadable)?;
                    token = next(&mut tokens)?;
                }
                true
            }
            _ => return Err(Depth::Unreadable),
        };
        token = tokens.skip_directives(token).ok_or(Depth::Unreadable)?;
        match token {
            Token::Mark(b'{') if opens && !descends => drop(tokens.skip_brackets(b'{').ok_or(Depth::Unreadable)?),
            Token::Mark(b'{') => {
                braces.push(opens);
                level += u64::from(opens);
                deepest = deepest.max(level);
            }
            _ if opens => continue,
            _ => return Err(Depth::Unreadable),
        }
        token = next(&mut tokens)?;
    }
}

/// An operation or a fragment.
struct Definition<'a> {
    /// `None`: a fragment.
    operation: Option<&'static str>,
    name: &'a [u8],
    /// The text between its braces.
    selections: &'a [u8],
}

fn definitions(text: &[u8]) -> Option<Vec<Definition<'_>>> {
    let mut tokens = Tokens { text, at: 0 };
    let mut found = Vec::new();
    loop {
        let mut definition = Definition { operation: Some("query"), name: b"", selections: b"" };
        match tokens.next()? {
            Token::End => return Some(found),
            Token::Mark(b'{') => {
                definition.selections = tokens.skip_brackets(b'{')?;
                found.push(definition);
                continue;
            }
            Token::Name(b"query") => {}
            Token::Name(b"mutation") => definition.operation = Some("mutation"),
            Token::Name(b"subscription") => definition.operation = Some("subscription"),
            Token::Name(b"fragment") => definition.operation = None,
            _ => return None,
        }
        let mut token = tokens.next()?;
        if let Token::Name(name) = token {
            definition.name = name;
            token = tokens.next()?;
        }
        match definition.operation {
            None => {
                let (Token::Name(b"on"), Token::Name(_)) = (token, tokens.next()?) else { return None };
                token = tokens.next()?;
            }
            Some(_) if matches!(token, Token::Mark(b'(')) => {
                tokens.skip_brackets(b'(')?;
                token = tokens.next()?;
            }
            Some(_) => {}
        }
        if !matches!(tokens.skip_directives(token)?, Token::Mark(b'{')) {
            return None;
        }
        definition.selections = tokens.skip_brackets(b'{')?;
        found.push(definition);
        if found.len() > MOST_DEFINITIONS {
            return None;
        }
    }
}

/// The fields at the top of an operation, those of its fragments among them.
struct RootFields<'d, 'a> {
    definitions: &'d [Definition<'a>],
    /// Fragments that were added, by their position: they may name each other.
    expanded: Vec<usize>,
    list: String,
}

impl RootFields<'_, '_> {
    fn add(&mut self, selections: &[u8]) -> Result<(), Depth> {
        walk(selections, false, &mut |_, selection| match selection {
            Selection::Field(name) => {
                self.list.push('"');
                self.list.push_str(std::str::from_utf8(name).map_err(|_| Depth::Unreadable)?);
                self.list.push_str("\",");
                Ok(())
            }
            Selection::Spread(name) => self.add_fragment(name),
        })
        .map(drop)
    }

    fn add_fragment(&mut self, name: &[u8]) -> Result<(), Depth> {
        let is_it = |definition: &Definition<'_>| definition.operation.is_none() && definition.name == name;
        let position = self.definitions.iter().position(is_it).ok_or(Depth::Unreadable)?;
        if self.expanded.contains(&position) {
            return Ok(());
        }
        if self.expanded.len() >= DEEPEST {
            return Err(Depth::Unreadable);
        }
        self.expanded.push(position);
        let definitions = self.definitions;
        self.add(definitions.get(position).ok_or(Depth::Unreadable)?.selections)
    }
}

#[derive(Debug, Clone, Copy)]
enum Token<'a> {
    Name(&'a [u8]),
    /// `...`
    Spread,
    /// A bracket or another mark.
    Mark(u8),
    /// A number or a string.
    Literal,
    End,
}

struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// The next token; `None`: there is none of the language.
    fn next(&mut self) -> Option<Token<'a>> {
        let rest = loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            match rest {
                [] => return Some(Token::End),
                [b' ' | b'\t' | b'\r' | b'\n' | b',', ..] => self.at += 1,
                [0xef, 0xbb, 0xbf, ..] => self.at += 3,
                [b'#', ..] => self.at += memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len()),
                _ => break rest,
            }
        };
        let is_in_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let (token, length) = match rest {
            [b'.', b'.', b'.', ..] => (Token::Spread, 3),
            [mark @ (b'!' | b'$' | b'&' | b'(' | b')' | b':' | b'=' | b'@' | b'[' | b']' | b'{' | b'|' | b'}'), ..] => {
                (Token::Mark(*mark), 1)
            }
            [b'"', b'"', b'"', ..] => (Token::Literal, block_length(rest)?),
            [b'"', ..] => (Token::Literal, string_length(rest)?),
            [b'-' | b'0'..=b'9', ..] => {
                let is_in_number = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.');
                (Token::Literal, rest.iter().take_while(|b| is_in_number(b)).count())
            }
            [b'_' | b'a'..=b'z' | b'A'..=b'Z', ..] => {
                let length = rest.iter().take_while(|b| is_in_name(b)).count();
                (Token::Name(rest.get(..length)?), length)
            }
            _ => return None,
        };
        self.at += length;
        Some(token)
    }

    /// Passes over directives, of which `token` may be the first; the token behind them.
    fn skip_directives(&mut self, mut token: Token<'a>) -> Option<Token<'a>> {
        while matches!(token, Token::Mark(b'@')) {
            let Token::Name(_) = self.next()? else { return None };
            token = self.next()?;
            if matches!(token, Token::Mark(b'(')) {
                self.skip_brackets(b'(')?;
                token = self.next()?;
            }
        }
        Some(token)
    }

    /// Passes over what stands behind this bracket, up to the one that closes it: the text between the two.
    fn skip_brackets(&mut self, open: u8) -> Option<&'a [u8]> {
        let closing = |open: u8| match open {
            b'(' => b')',
            b'[' => b']',
            _ => b'}',
        };
        let begin = self.at;
        let mut expected = vec![closing(open)];
        loop {
            match self.next()? {
                Token::End => return None,
                Token::Mark(open @ (b'(' | b'[' | b'{')) if expected.len() < DEEPEST => expected.push(closing(open)),
                Token::Mark(b'(' | b'[' | b'{') => return None,
                Token::Mark(close @ (b')' | b']' | b'}')) => {
                    if expected.pop() != Some(close) {
                        return None;
                    }
                    if expected.is_empty() {
                        return self.text.get(begin..self.at - 1);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Bytes of a string, with its quotes.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            b'\n' | b'\r' => return None,
            _ => at += 1,
        }
    }
}

/// Bytes of a string between three quotes on either side.
fn block_length(text: &[u8]) -> Option<usize> {
    let mut at = 3;
    loop {
        let rest = text.get(at..)?;
        let quote = memchr::memmem::find(rest, b"\"\"\"")?;
        at += quote + 3;
        if !rest.get(..quote)?.ends_with(b"\\") {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Depth, Graphql, graphql_depth};

    #[test]
    fn depths_are_levels_of_selections() {
        for (text, depth) in [
            ("{ a }", Depth::Levels(1)),
            ("{ a { b } c }", Depth::Levels(2)),
            ("query Q($x: In = {y: {z: 1}}) { a(in: {b: {c: 1}}) @d(e: {f: 1}) { b { c d: e } } }", Depth::Levels(3)),
            ("{ ... on T { a { b } } ... @include(if: true) { c } }", Depth::Levels(2)),
            ("{ a { ...F } } fragment F on T { b { c ...G } } fragment G on T { d { e { f } } }", Depth::Levels(5)),
            ("{ ...F ...F } fragment F on T { a { b } }", Depth::Levels(2)),
            ("{ a ...Missing }", Depth::Levels(1)),
            ("query A { a } query B { a { b { c } } }", Depth::Levels(3)),
            ("{ ...F } fragment F on T { a { ...G } } fragment G on T { ...F }", Depth::Circle),
            ("{ a } fragment F on T { ...F }", Depth::Levels(1)),
            ("fragment F on T { a }", Depth::NoOperation),
            ("", Depth::NoOperation),
            ("{ a", Depth::Unreadable),
            ("nonsense", Depth::Unreadable),
            ("{ ... on T }", Depth::Unreadable),
            ("{ } }", Depth::Unreadable),
        ] {
            assert_eq!(graphql_depth(text.as_bytes(), None), depth, "{text}");
        }
        let two = b"query A { a } query B { a { b { c } } }";
        for (name, depth) in [("A", 1), ("B", 3), ("C", 3)] {
            assert_eq!(graphql_depth(two, Some(name.as_bytes())), Depth::Levels(depth), "{name}");
        }
        let deep = format!("{}a{}", "{ a ".repeat(10_000), " }".repeat(10_000));
        assert_eq!(graphql_depth(deep.as_bytes(), None), Depth::Unreadable);
        // Each fragment twice in the one before: it is measured once.
        let mut doubled = String::from("{ ...F0 }");
        for at in 0..100 {
            doubled.push_str(&format!(" fragment F{at} on T {{ a {{ ...F{0} }} b {{ ...F{0} }} }}", at + 1));
        }
        assert_eq!(graphql_depth(doubled.as_bytes(), None), Depth::Levels(101));
    }

    fn read(text: &str, wanted: Option<&str>) -> Option<String> {
        let read = Graphql::parse(text.as_bytes(), wanted.map(str::as_bytes))?;
        Some(format!("{} {} {}", read.operation, String::from_utf8_lossy(&read.name), read.root_fields))
    }

    #[test]
    fn operations_are_read() {
        for (text, expected) in [
            ("query getRepo {\n owner {name}\n repo {created}\n}", r#"query getRepo ["owner","repo"]"#),
            ("{ a }", r#"query  ["a"]"#),
            (
                "\u{feff}# { b }\r\nmutation($id: [Int!] = [1, 2]) @skip(if: false) { x: add(by: \"}\") @a { id } , drop }",
                r#"mutation  ["add","drop"]"#,
            ),
            ("subscription S { a(x: {y: [\"\"\"} \\\"\"\" \"\"\"]}, z: -1.5e3, on: E) }", r#"subscription S ["a"]"#),
            (
                "query Q { ...F ... on T { b { c } } ... @include(if: $x) { d } on } fragment F on T { a ...G } fragment G on T { e ...F }",
                r#"query Q ["a","e","b","d","on"]"#,
            ),
            ("fragment F on T { hidden } query { ...F shown }", r#"query  ["hidden","shown"]"#),
            ("query query { query }", r#"query query ["query"]"#),
            ("query A {a} mutation B {b}", r#"query A ["a"]"#),
        ] {
            assert_eq!(read(text, None).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(read("query A {a} mutation B {b}", Some("B")).as_deref(), Some(r#"mutation B ["b"]"#));
        assert_eq!(read("query A {a}", Some("")).as_deref(), Some(r#"query A ["a"]"#));
    }

    #[test]
    fn what_is_no_operation_is_none() {
        for text in [
            "",
            "fragment F on T {a}",
            "{ a",
            "query",
            "query A",
            "{ a } }",
            "{ a(b: ] ) }",
            "{ ...Missing }",
            "type T { a: Int }",
            "{ a \"b }",
            "{ a(b: \"\"\"c) }",
            "{ : a }",
            "{ a: }",
            "{ ... on }",
            "query @ {a}",
            "{ é }",
            "name=a",
        ] {
            assert_eq!(read(text, None), None, "{text}");
        }
        assert_eq!(read("query A {a}", Some("B")), None);
        assert_eq!(read(&"{".repeat(100_000), None), None);
        assert_eq!(read(&format!("{{ {} }}", "...{".repeat(10_000)), None), None);
        assert_eq!(read(&"query A {a} ".repeat(2_000), None), None);
    }
}
