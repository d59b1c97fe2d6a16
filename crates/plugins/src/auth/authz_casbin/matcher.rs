//! The expression of a model: parsed once, and compiled for each line of the policy, whose values are constants in it.

use std::net::IpAddr;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use super::model::Roles;

/// Most levels of parentheses and negations.
const DEPTH: usize = 50;
/// Most bytes of a compiled pattern.
const PATTERN: usize = 1 << 20;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Syntax {
    True,
    False,
    Text(String),
    /// `r.sub`, `p.obj`
    Member(String, String),
    Call(String, Vec<Syntax>),
    Not(Box<Syntax>),
    Equal(Box<Syntax>, Box<Syntax>),
    In(Box<Syntax>, Vec<Syntax>),
    And(Vec<Syntax>),
    Or(Vec<Syntax>),
}

/// The meaning of names for one line of the policy.
pub(super) struct Names<'a> {
    pub(super) request: &'a [String],
    pub(super) policy: &'a [String],
    pub(super) values: &'a [String],
    pub(super) roles: Option<&'a Arc<Roles>>,
}

/// A condition on the values of a request.
#[derive(Debug)]
pub(super) enum Condition {
    Constant(bool),
    Equal(Text, Text),
    And(Box<[Condition]>),
    Or(Box<[Condition]>),
    Not(Box<Condition>),
    /// The text begins so; with `exact` it is that.
    Prefix {
        of: Text,
        prefix: Box<[u8]>,
        exact: bool,
    },
    Pattern(Text, Box<Regex>),
    /// An address within a range.
    Address(Text, IpAddr, u8),
    /// A user, a role, and who has which.
    Role(Text, Text, Arc<Roles>),
}

/// A text: a constant, or a value of the request.
#[derive(Debug, Clone)]
pub(super) enum Text {
    Constant(Box<[u8]>),
    Request(usize),
}

impl Condition {
    /// True if the condition holds for these values.
    pub(super) fn holds(&self, request: [&[u8]; 3]) -> bool {
        match self {
            Self::Constant(value) => *value,
            Self::Equal(one, other) => one.of(&request) == other.of(&request),
            Self::And(all) => all.iter().all(|one| one.holds(request)),
            Self::Or(all) => all.iter().any(|one| one.holds(request)),
            Self::Not(inner) => !inner.holds(request),
            Self::Prefix { of, prefix, exact: true } => of.of(&request) == &**prefix,
            Self::Prefix { of, prefix, exact: false } => {
                let text = of.of(&request);
                // A text that ends where the star stands begins so as well.
                text.starts_with(prefix)
            }
            Self::Pattern(of, pattern) => pattern.is_match(of.of(&request)),
            Self::Address(of, range, bits) => {
                let address = std::str::from_utf8(of.of(&request)).ok().and_then(|text| text.parse::<IpAddr>().ok());
                address.is_some_and(|address| is_within(address, *range, *bits))
            }
            Self::Role(user, role, roles) => {
                let (user, role) = (user.of(&request), role.of(&request));
                user == role || roles.get(user).is_some_and(|all| all.contains(role))
            }
        }
    }
}

impl Text {
    fn of<'r>(&'r self, request: &[&'r [u8]; 3]) -> &'r [u8] {
        match self {
            Self::Constant(text) => text,
            Self::Request(at) => request.get(*at).copied().unwrap_or_default(),
        }
    }
}

fn is_within(address: IpAddr, range: IpAddr, bits: u8) -> bool {
    match (address.to_canonical(), range) {
        (IpAddr::V4(address), IpAddr::V4(range)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == range.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(range)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == range.to_bits() & mask
        }
        _ => false,
    }
}

impl Syntax {
    /// Parses an expression.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        let parsed = parser.any()?;
        match parser.peek() {
            None => Ok(parsed),
            Some(token) => Err(format!("matchers: unexpected {token:?}")),
        }
    }

    /// The condition that the expression is with these names.
    pub(super) fn compile(&self, names: &Names<'_>) -> Result<Condition, String> {
        let all = |parts: &[Self]| parts.iter().map(|part| part.compile(names)).collect::<Result<Box<[_]>, _>>();
        Ok(match self {
            Self::True => Condition::Constant(true),
            Self::False => Condition::Constant(false),
            Self::And(parts) => Condition::And(all(parts)?),
            Self::Or(parts) => Condition::Or(all(parts)?),
            Self::Not(inner) => Condition::Not(Box::new(inner.compile(names)?)),
            Self::Equal(one, other) => Condition::Equal(one.text(names)?, other.text(names)?),
            Self::In(one, list) => {
                let one = one.text(names)?;
                let equal = |other: &Self| Ok(Condition::Equal(one.clone(), other.text(names)?));
                Condition::Or(list.iter().map(equal).collect::<Result<_, String>>()?)
            }
            Self::Call(name, arguments) => call(name, arguments, names)?,
            Self::Text(_) | Self::Member(..) => return Err("matchers: expected a condition, found a text".to_owned()),
        })
    }

    fn text(&self, names: &Names<'_>) -> Result<Text, String> {
        match self {
            Self::Text(text) => Ok(Text::Constant(text.as_bytes().into())),
            Self::Member(owner, name) => {
                let unknown = || format!("matchers: there is no {owner}.{name}");
                match owner.as_str() {
                    "r" => names.request.iter().position(|known| known == name).map(Text::Request).ok_or_else(unknown),
                    "p" => {
                        let at = names.policy.iter().position(|known| known == name).ok_or_else(unknown)?;
                        let value = names.values.get(at).map_or("allow", String::as_str);
                        Ok(Text::Constant(value.as_bytes().into()))
                    }
                    _ => Err(unknown()),
                }
            }
            _ => Err("matchers: expected a text, found a condition".to_owned()),
        }
    }
}

fn call(name: &str, arguments: &[Syntax], names: &Names<'_>) -> Result<Condition, String> {
    if !matches!(name, "g" | "keyMatch" | "keyMatch2" | "keyMatch3" | "regexMatch" | "ipMatch") {
        return Err(format!("matchers: there is no function '{name}'"));
    }
    let [one, other] = arguments else { return Err(format!("matchers: {name} takes two texts")) };
    let (one, other) = (one.text(names)?, other.text(names)?);
    if name == "g" {
        let roles = names.roles.ok_or("matchers: g needs a role_definition")?;
        return Ok(Condition::Role(one, other, Arc::clone(roles)));
    }
    // A pattern that a client could choose would be anybody's.
    let Text::Constant(pattern) = other else {
        return Err(format!("matchers: the second text of {name} is a pattern: it cannot be a value of the request"));
    };
    let pattern = String::from_utf8_lossy(&pattern).into_owned();
    if name == "keyMatch" {
        let (prefix, exact) = match pattern.find('*') {
            Some(at) => (pattern.get(..at).unwrap_or_default(), false),
            None => (pattern.as_str(), true),
        };
        return Ok(Condition::Prefix { of: one, prefix: prefix.as_bytes().into(), exact });
    }
    if name == "ipMatch" {
        let (address, bits) = pattern.split_once('/').unwrap_or((pattern.as_str(), ""));
        let address: IpAddr = address.parse().map_err(|_| format!("'{pattern}' is no address and no range"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = if bits.is_empty() { Some(most) } else { bits.parse().ok().filter(|bits| *bits <= most) };
        let bits = bits.ok_or_else(|| format!("'{pattern}' is no range of addresses"))?;
        return Ok(Condition::Address(one, address, bits));
    }
    let pattern = match name {
        "keyMatch2" => path_pattern(&pattern, ":", ""),
        "keyMatch3" => path_pattern(&pattern, "{", "}"),
        _ => pattern,
    };
    let built = RegexBuilder::new(&pattern).size_limit(PATTERN).build();
    Ok(Condition::Pattern(one, Box::new(built.map_err(|error| error.to_string())?)))
}

/// The pattern of a path with parts such as `:id` or `{id}`, which stand for one segment, and with `/*` for all that follows.
fn path_pattern(path: &str, begin: &str, end: &str) -> String {
    let mut pattern = String::from("^");
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("/*") {
            pattern.push_str("/.*");
            rest = after;
            continue;
        }
        let part = rest.strip_prefix(begin).and_then(|inner| {
            let len = inner.find(if end.is_empty() { "/" } else { end }).or(end.is_empty().then_some(inner.len()))?;
            let (name, after) = inner.split_at_checked(len)?;
            (!name.is_empty() && !name.contains('/')).then(|| after.strip_prefix(end).unwrap_or(after))
        });
        if let Some(after) = part {
            pattern.push_str("[^/]+");
            rest = after;
            continue;
        }
        pattern.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    pattern.push('$');
    pattern
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    /// `(`, `)`, `,`, `.`, `!`, `==`, `!=`, `&&`, `||`
    Sign(&'static str),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let signs = ["==", "!=", "&&", "||", "(", ")", ",", ".", "!"];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        rest = if let Some(sign) = signs.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            rest.get(sign.len()..).unwrap_or_default()
        } else if c == '"' || c == '\'' {
            let inner = rest.get(1..).unwrap_or_default();
            let (text, after) = inner.split_once(c).ok_or("matchers: a text has no end")?;
            tokens.push(Token::Text(text.to_owned()));
            after
        } else if is_name(c) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (name, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
            tokens.push(Token::Name(name.to_owned()));
            after
        } else {
            return Err(format!("matchers: unexpected '{c}'"));
        };
        rest = rest.trim_start();
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn takes(&mut self, sign: &'static str) -> bool {
        let is_there = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is_there);
        is_there
    }

    fn needs(&mut self, sign: &'static str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(format!("matchers: expected '{sign}'")) }
    }

    fn any(&mut self) -> Result<Syntax, String> {
        let mut parts = vec![self.all()?];
        while self.takes("||") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Syntax::Or(parts) })
    }

    fn all(&mut self) -> Result<Syntax, String> {
        let mut parts = vec![self.comparison()?];
        while self.takes("&&") {
            parts.push(self.comparison()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Syntax::And(parts) })
    }

    fn comparison(&mut self) -> Result<Syntax, String> {
        let one = self.single()?;
        if self.takes("==") {
            return Ok(Syntax::Equal(Box::new(one), Box::new(self.single()?)));
        }
        if self.takes("!=") {
            let equal = Syntax::Equal(Box::new(one), Box::new(self.single()?));
            return Ok(Syntax::Not(Box::new(equal)));
        }
        if self.peek() == Some(&Token::Name("in".to_owned())) {
            self.at += 1;
            self.needs("(")?;
            return Ok(Syntax::In(Box::new(one), self.list()?));
        }
        Ok(one)
    }

    /// Texts up to the closing parenthesis.
    fn list(&mut self) -> Result<Vec<Syntax>, String> {
        let mut list = Vec::new();
        if self.takes(")") {
            return Ok(list);
        }
        loop {
            list.push(self.single()?);
            if self.takes(")") {
                return Ok(list);
            }
            self.needs(",")?;
        }
    }

    fn single(&mut self) -> Result<Syntax, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("matchers: nested more than {DEPTH} deep"));
        }
        let parsed = self.single_within();
        self.depth -= 1;
        parsed
    }

    fn single_within(&mut self) -> Result<Syntax, String> {
        if self.takes("!") {
            return Ok(Syntax::Not(Box::new(self.single()?)));
        }
        if self.takes("(") {
            let inner = self.any()?;
            self.needs(")")?;
            return Ok(inner);
        }
        let token = self.peek().cloned().ok_or("matchers: unexpected end")?;
        self.at += 1;
        match token {
            Token::Text(text) => Ok(Syntax::Text(text)),
            Token::Name(name) if name == "true" => Ok(Syntax::True),
            Token::Name(name) if name == "false" => Ok(Syntax::False),
            Token::Name(name) if self.takes(".") => match self.peek().cloned() {
                Some(Token::Name(member)) => {
                    self.at += 1;
                    Ok(Syntax::Member(name, member))
                }
                _ => Err(format!("matchers: expected a name behind '{name}.'")),
            },
            Token::Name(name) => {
                self.needs("(")?;
                Ok(Syntax::Call(name, self.list()?))
            }
            Token::Sign(sign) => Err(format!("matchers: unexpected '{sign}'")),
        }
    }
}
