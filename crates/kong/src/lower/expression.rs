//! Expressions of routes, in the language of Kong's router flavor `expressions`.
//!
//! ```text
//! http.path ^= "/api" && (http.method == "GET" || lower(http.headers.x_kind) == "a") && net.src.ip in 10.0.0.0/8
//! ```
//!
//! A predicate on a field that a request does not have is false, also with `!=`. Of the predicates that all have to hold,
//! the first on the path with `^=`, or with `~` from the beginning on, goes to the index of the router; its match is what
//! `strip_path` takes off.

use std::net::IpAddr;

use regex::bytes::Regex;
use weir_config::{Diagnostic, Kind, Mark, Node};

use super::routes::escaped;
use super::{list, number, text};
use crate::document::{Entity, whole};

/// An expression in the form of the model.
pub(super) struct Compiled {
    pub(super) priority: u64,
    /// The path for the router; none takes every path.
    pub(super) paths: Vec<String>,
    pub(super) condition: Node,
}

/// Deepest nesting of parentheses.
const DEEPEST: usize = 16;
/// Greatest priority: Kong's numbers have 46 bits.
const MOST_PRIORITY: i64 = (1 << 46) - 1;

/// The expression of a route, if it has one.
pub(super) fn of_route(route: &Entity, found: &mut Vec<Diagnostic>) -> Option<Compiled> {
    let written = route.text("expression")?;
    for field in ["methods", "hosts", "paths", "headers", "snis"] {
        if route.node.get(field).is_some_and(|node| node.as_seq() != Some(&[])) {
            found.push(route.fault(field, "cannot be set beside 'expression'"));
        }
    }
    let priority = match route.node.get("priority") {
        None => 0,
        Some(node) => match whole(node).filter(|priority| (0..=MOST_PRIORITY).contains(priority)) {
            Some(priority) => priority,
            None => {
                found.push(route.fault("priority", format!("value should be between 0 and {MOST_PRIORITY}")));
                0
            }
        },
    };
    let mark = route.node.get("expression").map_or(route.node.mark, |node| node.mark);
    let mut parser = Parser { text: written, at: 0, mark, depth: 0 };
    let parsed = parser.any().and_then(|parsed| match parser.rest().is_empty() {
        true => Ok(parsed),
        false => Err("expected && or ||".to_owned()),
    });
    match parsed {
        Ok(parsed) => {
            let paths = parsed.path().into_iter().collect();
            Some(Compiled { priority: priority.cast_unsigned(), paths, condition: parsed.node(mark) })
        }
        Err(reason) => {
            let column = written.get(..parser.at).map_or(0, |before| before.chars().count()) + 1;
            found.push(route.fault("expression", format!("{reason}, at its character {column}")));
            None
        }
    }
}

/// A part of an expression.
#[derive(Debug)]
enum Part {
    All(Vec<Part>),
    Any(Vec<Part>),
    Not(Box<Part>),
    Test {
        condition: Node,
        /// The path for the router that says the same.
        path: Option<String>,
    },
}

impl Part {
    fn node(self, mark: Mark) -> Node {
        let joined = |word: &str, parts: Vec<Self>| {
            list(mark, [text(word)].into_iter().chain(parts.into_iter().map(|part| part.node(mark))).collect())
        };
        match self {
            Self::All(parts) => joined("AND", parts),
            Self::Any(parts) => joined("OR", parts),
            // Two operands are the fewest that such a list may have.
            Self::Not(part) => {
                let inner = part.node(mark);
                list(mark, vec![text("!AND"), inner.clone(), inner])
            }
            Self::Test { condition, .. } => condition,
        }
    }

    fn path(&self) -> Option<String> {
        match self {
            Self::All(parts) => parts.iter().find_map(Self::path),
            Self::Test { path, .. } => path.clone(),
            Self::Any(_) | Self::Not(_) => None,
        }
    }
}

/// A value in an expression.
#[derive(Debug)]
enum Literal {
    Text(String),
    Number(i64),
    Range(String),
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    mark: Mark,
    depth: usize,
}

impl<'t> Parser<'t> {
    /// The text that is left, without blanks before it.
    fn rest(&mut self) -> &'t str {
        let text = self.text;
        let rest = text.get(self.at..).unwrap_or_default();
        self.at += rest.len() - rest.trim_start().len();
        text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, word: &str) -> bool {
        let is_there = self.rest().starts_with(word);
        self.at += if is_there { word.len() } else { 0 };
        is_there
    }

    /// Parts with `||` between them.
    fn any(&mut self) -> Result<Part, String> {
        let mut parts = vec![self.all()?];
        while self.take("||") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Part::Any(parts) })
    }

    /// Parts with `&&` between them, which binds more tightly.
    fn all(&mut self) -> Result<Part, String> {
        let mut parts = vec![self.part()?];
        while self.take("&&") {
            parts.push(self.part()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Part::All(parts) })
    }

    fn part(&mut self) -> Result<Part, String> {
        let is_negated = self.rest().starts_with('!');
        if is_negated {
            self.at += 1;
            if !self.rest().starts_with('(') {
                return Err("expected ( after !".to_owned());
            }
        }
        if !self.take("(") {
            return self.predicate();
        }
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("nested more than {DEEPEST} deep"));
        }
        let inner = self.any()?;
        if !self.take(")") {
            return Err("expected )".to_owned());
        }
        self.depth -= 1;
        Ok(if is_negated { Part::Not(Box::new(inner)) } else { inner })
    }

    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    fn predicate(&mut self) -> Result<Part, String> {
        let began = self.at;
        let (mut is_lower, mut open, mut name) = (false, 0, self.word());
        while let wrapper @ ("lower" | "any") = name
            && self.take("(")
        {
            is_lower |= wrapper == "lower";
            open += 1;
            name = self.word();
        }
        for _ in 0..open {
            if !self.take(")") {
                return Err("expected )".to_owned());
            }
        }
        let variable = variable(name).inspect_err(|_| self.at = began)?;
        let operators = ["==", "!=", "^=", "=^", ">=", "<=", ">", "<", "~", "not in", "in", "contains"];
        let Some(operator) = operators.into_iter().find(|operator| self.take(operator)) else {
            return Err(format!("expected one of {}", operators.join(" ")));
        };
        let value = self.literal()?;
        self.test(name, &variable, is_lower, operator, value)
    }

    fn literal(&mut self) -> Result<Literal, String> {
        let rest = self.rest();
        if let Some(raw) = rest.strip_prefix("r#\"") {
            let end = raw.find("\"#").ok_or("expected \"# at the end of a raw text")?;
            self.at += end + 5;
            return Ok(Literal::Text(raw.get(..end).unwrap_or_default().to_owned()));
        }
        if let Some(quoted) = rest.strip_prefix('"') {
            let (mut value, mut escapes) = (String::new(), false);
            for (at, c) in quoted.char_indices() {
                match (escapes, c) {
                    (false, '"') => {
                        self.at += at + 2;
                        return Ok(Literal::Text(value));
                    }
                    (false, '\\') => {
                        escapes = true;
                        continue;
                    }
                    (true, 'n') => value.push('\n'),
                    (true, 'r') => value.push('\r'),
                    (true, 't') => value.push('\t'),
                    (true, c) if !matches!(c, '"' | '\\') => return Err(format!("unknown escape \\{c}")),
                    (_, c) => value.push(c),
                }
                escapes = false;
            }
            return Err("expected \" at the end of a text".to_owned());
        }
        let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/' | '-' | 'x');
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let written = rest.get(..length).unwrap_or_default();
        let address = written.split('/').next().unwrap_or_default();
        let value = match (written.parse::<i64>(), address.parse::<IpAddr>()) {
            (Ok(number), _) => Literal::Number(number),
            (_, Ok(_)) => Literal::Range(written.to_owned()),
            _ => return Err("expected a text in quotes, a number, or an address or range".to_owned()),
        };
        self.at += length;
        Ok(value)
    }

    fn test(
        &self,
        field: &str,
        variable: &str,
        is_lower: bool,
        operator: &str,
        value: Literal,
    ) -> Result<Part, String> {
        let mark = self.mark;
        let plain = |condition: Node| Part::Test { condition, path: None };
        let check = |operator: &str, value: Node| list(mark, vec![text(variable), text(operator), value]);
        let matches = |regex: &str| check(if is_lower { "~*" } else { "~~" }, text(regex));
        let is_set = || {
            let unset = vec![text(variable), text("!"), text("=="), Node::new(Kind::Null)];
            plain(list(mark, unset))
        };
        let is_address = field.ends_with(".ip");
        let is_number = field.ends_with(".port") || field == "net.port";
        let unfit = |expected: &str| Err(format!("{field} is compared with {expected}"));
        Ok(match (operator, value) {
            ("==" | "!=" | "in" | "not in", Literal::Range(range)) if is_address => {
                let inside = plain(check("ipmatch", list(mark, vec![text(&range)])));
                if operator.starts_with(['!', 'n']) { Part::Not(Box::new(inside)) } else { inside }
            }
            (_, Literal::Range(_)) => return unfit("a text in quotes"),
            ("==" | "!=" | ">" | ">=" | "<" | "<=", Literal::Number(value)) if is_number => {
                plain(check(if operator == "!=" { "~=" } else { operator }, number(value)))
            }
            (_, Literal::Number(_)) => return unfit("a text in quotes"),
            (_, Literal::Text(_)) if is_address => return unfit("an address or a range, without quotes"),
            (_, Literal::Text(_)) if is_number => return unfit("a number"),
            ("==", Literal::Text(value)) if is_lower => plain(matches(&format!("^(?:{})$", escaped(&value)))),
            ("==", Literal::Text(value)) => plain(check("==", text(&value))),
            ("!=", Literal::Text(value)) => {
                let same = matches(&format!("^(?:{})$", escaped(&value)));
                Part::All(vec![is_set(), Part::Not(Box::new(plain(same)))])
            }
            ("^=", Literal::Text(value)) => {
                let condition = matches(&format!("^{}", escaped(&value)));
                let is_prefix = field == "http.path" && !is_lower && value.starts_with('/');
                Part::Test { condition, path: is_prefix.then_some(value) }
            }
            ("=^", Literal::Text(value)) => plain(matches(&format!("{}$", escaped(&value)))),
            ("contains", Literal::Text(value)) => plain(matches(&escaped(&value))),
            ("~", Literal::Text(value)) => {
                if let Err(error) = Regex::new(&value) {
                    let error = error.to_string();
                    let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    return Err(format!("invalid regex: {reason}"));
                }
                let condition = matches(&value);
                let path = value.strip_prefix("^/").filter(|_| field == "http.path" && !is_lower);
                Part::Test { condition, path: path.filter(|path| !path.contains('|')).map(|path| format!("~/{path}")) }
            }
            (operator, Literal::Text(_)) => return Err(format!("{operator} is not for texts")),
        })
    }
}

/// The variable of the model that a field stands for.
fn variable(field: &str) -> Result<String, String> {
    let named = [
        ("net.protocol", "scheme"),
        ("tls.sni", "ssl_server_name"),
        ("http.method", "request_method"),
        ("http.host", "host"),
        ("http.path", "uri"),
        ("net.src.ip", "remote_addr"),
        ("net.src.port", "remote_port"),
        ("net.dst.ip", "server_addr"),
        ("net.dst.port", "server_port"),
        ("net.port", "server_port"),
    ];
    if let Some((_, variable)) = named.into_iter().find(|(name, _)| *name == field) {
        return Ok(variable.to_owned());
    }
    let member = |start: &str| field.strip_prefix(start).filter(|name| !name.is_empty());
    if let Some(name) = member("http.headers.") {
        return Ok(format!("http_{}", name.to_ascii_lowercase().replace('-', "_")));
    }
    if let Some(name) = member("http.queries.") {
        return Ok(format!("arg_{name}"));
    }
    match field {
        "" => Err("expected a field such as http.path".to_owned()),
        _ if field.starts_with("http.path.segments.") => Err(format!("the field {field} is not supported")),
        _ => Err(format!("unknown field {field}")),
    }
}
