//! The grammar of templates: statements across marks, and expressions of Lua by precedence.

use weir_expr::Variable;

use super::functions::Function;
use super::lexer::Token;
use super::template::{Expression, Literal, Operator, Statement};

/// Levels of nested blocks and expressions.
const DEPTH: usize = 64;

/// Functions by their names.
const FUNCTIONS: [(&str, Function); 13] = [
    ("_escape_json", Function::EscapeJson),
    ("_escape_xml", Function::EscapeXml),
    ("tostring", Function::ToText),
    ("tonumber", Function::ToNumber),
    ("type", Function::Type),
    ("string.upper", Function::Upper),
    ("string.lower", Function::Lower),
    ("string.len", Function::Len),
    ("string.sub", Function::Sub),
    ("string.gsub", Function::Replace),
    ("table.concat", Function::Join),
    ("math.floor", Function::Floor),
    ("math.ceil", Function::Ceil),
];

/// Libraries of Lua. A field of a body may have such a name; a call of a function of theirs is one of [`FUNCTIONS`] or refused.
const LIBRARIES: [&str; 7] = ["string", "table", "math", "os", "io", "debug", "package"];

/// Names of Lua and of APISIX that would be `nil` and mislead if they were taken for fields of a body.
const FOREIGN: [&str; 6] = ["require", "ngx", "pcall", "load", "setmetatable", "_multipart"];

/// Words that begin or end a statement.
const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
];

pub(super) struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    /// Names of local variables in sight, with their places.
    scope: Vec<(String, usize)>,
    locals: usize,
    depth: usize,
}

type Block = Box<[Statement]>;

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens: tokens.into_iter().peekable(), scope: Vec::new(), locals: 0, depth: 0 }
    }

    /// A whole template, and the number of its local variables.
    pub(super) fn template(mut self) -> Result<(Block, usize), String> {
        let block = self.statements()?;
        match self.tokens.next() {
            None => Ok((block, self.locals)),
            Some(other) => Err(format!("{} is not expected here", shown(&other))),
        }
    }

    /// A block with a scope of its own, up to a word that ends it.
    fn block(&mut self) -> Result<Block, String> {
        let names = self.scope.len();
        let block = self.statements();
        self.scope.truncate(names);
        block
    }

    fn statements(&mut self) -> Result<Block, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("blocks are nested more than {DEPTH} levels deep"));
        }
        let mut statements = Vec::new();
        loop {
            match self.tokens.peek() {
                None => break,
                Some(Token::EndOfCode | Token::Sign(";")) => drop(self.tokens.next()),
                Some(Token::Name(name)) if matches!(name.as_str(), "end" | "else" | "elseif") => break,
                Some(_) => self.statement(&mut statements)?,
            }
        }
        self.depth -= 1;
        Ok(statements.into())
    }

    fn statement(&mut self, out: &mut Vec<Statement>) -> Result<(), String> {
        match self.tokens.next() {
            Some(Token::Verbatim(text)) => out.push(Statement::Text(text.into())),
            Some(Token::Print(escapes)) => {
                let expression = self.expression(0)?;
                self.expect(&Token::EndOfPrint)?;
                out.push(Statement::Print(expression, escapes));
            }
            Some(Token::Name(name)) => match name.as_str() {
                "if" => out.push(self.condition()?),
                "for" => out.push(self.repetition()?),
                "local" => self.local(out)?,
                other => {
                    return Err(format!(
                        "the statement {other} … is not supported: templates have if, for and local, and print"
                    ));
                }
            },
            Some(other) => return Err(format!("{} is not expected here", shown(&other))),
            None => {}
        }
        Ok(())
    }

    /// Behind `if`.
    fn condition(&mut self) -> Result<Statement, String> {
        let mut cases = Vec::new();
        loop {
            let condition = self.expression(0)?;
            self.word("then")?;
            cases.push((condition, self.block()?));
            match self.tokens.next() {
                Some(Token::Name(name)) if name == "elseif" => {}
                Some(Token::Name(name)) if name == "else" => {
                    let otherwise = self.block()?;
                    self.word("end")?;
                    return Ok(Statement::If(cases.into(), otherwise));
                }
                Some(Token::Name(name)) if name == "end" => return Ok(Statement::If(cases.into(), Box::default())),
                _ => return Err("an if has no end".to_owned()),
            }
        }
    }

    /// Behind `for`.
    fn repetition(&mut self) -> Result<Statement, String> {
        let names = self.scope.len();
        let first = self.name()?;
        if self.takes("=") {
            let from = self.expression(0)?;
            self.expect(&Token::Sign(","))?;
            let to = self.expression(0)?;
            let step = if self.takes(",") { Some(self.expression(0)?) } else { None };
            self.word("do")?;
            let counter = self.declare(first);
            let block = self.block()?;
            self.scope.truncate(names);
            self.word("end")?;
            return Ok(Statement::Count { counter, from, to, step, block });
        }
        let second = if self.takes(",") { self.name()? } else { String::new() };
        self.word("in")?;
        let list_alone = match self.name()?.as_str() {
            "pairs" => false,
            "ipairs" => true,
            other => return Err(format!("a for over {other} is not supported: only pairs and ipairs")),
        };
        self.expect(&Token::Sign("("))?;
        let of = self.expression(0)?;
        self.expect(&Token::Sign(")"))?;
        self.word("do")?;
        let (key, value) = (self.declare(first), self.declare(second));
        let block = self.block()?;
        self.scope.truncate(names);
        self.word("end")?;
        Ok(Statement::Each { key, value, of, list_alone, block })
    }

    /// Behind `local`.
    fn local(&mut self, out: &mut Vec<Statement>) -> Result<(), String> {
        let mut names = vec![self.name()?];
        while self.takes(",") {
            names.push(self.name()?);
        }
        let mut values = Vec::new();
        if self.takes("=") {
            values.push(self.expression(0)?);
            while self.takes(",") {
                values.push(self.expression(0)?);
            }
        }
        if values.len() > names.len() {
            return Err("a local has more values than names".to_owned());
        }
        // The names are in sight behind the values alone.
        let mut values = values.into_iter();
        for name in names {
            let at = self.declare(name);
            out.push(Statement::Local(at, values.next()));
        }
        Ok(())
    }

    fn declare(&mut self, name: String) -> usize {
        let at = self.locals;
        self.locals += 1;
        self.scope.push((name, at));
        at
    }

    /// An expression of operators that bind at least so strongly.
    fn expression(&mut self, least: u8) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("expressions are nested more than {DEPTH} levels deep"));
        }
        let mut left = self.unary()?;
        while let Some((operator, strength, next)) = self.tokens.peek().and_then(operator) {
            if strength < least {
                break;
            }
            self.tokens.next();
            let right = self.expression(next)?;
            left = Expression::Binary(operator, Box::new([left, right]));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression, String> {
        /// Strength of the operators before a value, above that of `*`.
        const UNARY: u8 = 7;
        let make: fn(Box<Expression>) -> Expression = match self.tokens.peek() {
            Some(Token::Name(name)) if name == "not" => Expression::Not,
            Some(Token::Sign("-")) => Expression::Minus,
            Some(Token::Sign("#")) => Expression::Length,
            _ => return self.suffixed(),
        };
        self.tokens.next();
        self.expression(UNARY).map(|inner| make(Box::new(inner)))
    }

    /// A value with what is looked up in it, and calls.
    fn suffixed(&mut self) -> Result<Expression, String> {
        let mut value = self.primary()?;
        loop {
            if self.takes(".") {
                let key = Expression::Constant(Literal::Text(self.name()?.into_bytes().into()));
                value = Expression::Index(Box::new([value, key]));
            } else if self.takes("[") {
                let key = self.expression(0)?;
                self.expect(&Token::Sign("]"))?;
                value = Expression::Index(Box::new([value, key]));
            } else if self.takes(":") {
                let method = format!("string.{}", self.name()?);
                let function = function(&method)?;
                let mut arguments = vec![value];
                self.expect(&Token::Sign("("))?;
                self.arguments(&mut arguments)?;
                value = Expression::Call(function, arguments.into());
            } else if self.tokens.peek() == Some(&Token::Sign("(")) {
                return Err("a call of a value is not supported".to_owned());
            } else {
                return Ok(value);
            }
        }
    }

    fn primary(&mut self) -> Result<Expression, String> {
        let literal = match self.tokens.next() {
            Some(Token::Number(number)) => Literal::Number(number),
            Some(Token::Text(text)) => Literal::Text(text.into()),
            Some(Token::Sign("(")) => {
                let inner = self.expression(0)?;
                self.expect(&Token::Sign(")"))?;
                return Ok(inner);
            }
            Some(Token::Name(name)) => match name.as_str() {
                "nil" => Literal::Nil,
                "true" => Literal::Boolean(true),
                "false" => Literal::Boolean(false),
                _ => return self.named(name),
            },
            Some(other) => return Err(format!("expected a value, found {}", shown(&other))),
            None => return Err("expected a value at the end".to_owned()),
        };
        Ok(Expression::Constant(literal))
    }

    fn named(&mut self, name: String) -> Result<Expression, String> {
        if KEYWORDS.contains(&name.as_str()) {
            return Err(format!("the word {name} is not supported in a value"));
        }
        if let Some((_, at)) = self.scope.iter().rev().find(|(known, _)| *known == name) {
            return Ok(Expression::Local(*at));
        }
        match name.as_str() {
            "_body" => return Ok(Expression::Body),
            "_ctx" => return self.variable(),
            _ => {}
        }
        let (mut full, mut inner) = (name.clone(), None);
        if LIBRARIES.contains(&name.as_str()) && self.takes(".") {
            let key = self.name()?;
            full = format!("{name}.{key}");
            inner = Some(key);
        }
        if FOREIGN.contains(&name.as_str()) {
            return Err(format!("{full} is not supported: templates have no more of Lua than the documentation lists"));
        }
        if self.takes("(") {
            let function = function(&full)?;
            let mut arguments = Vec::new();
            self.arguments(&mut arguments)?;
            return Ok(Expression::Call(function, arguments.into()));
        }
        let field = Expression::Field(name.into());
        Ok(match inner {
            Some(key) => {
                let key = Expression::Constant(Literal::Text(key.into_bytes().into()));
                Expression::Index(Box::new([field, key]))
            }
            None => field,
        })
    }

    /// Behind `_ctx`.
    fn variable(&mut self) -> Result<Expression, String> {
        const ONLY: &str = "of _ctx only _ctx.var.NAME is supported";
        if !self.takes(".") || self.name()? != "var" || !self.takes(".") {
            return Err(ONLY.to_owned());
        }
        let name = self.name()?;
        Variable::parse(&name).map(Expression::Variable).map_err(|error| error.to_string())
    }

    /// Behind the opening bracket of a call.
    fn arguments(&mut self, arguments: &mut Vec<Expression>) -> Result<(), String> {
        if self.takes(")") {
            return Ok(());
        }
        loop {
            arguments.push(self.expression(0)?);
            if self.takes(")") {
                return Ok(());
            }
            self.expect(&Token::Sign(","))?;
        }
    }

    fn takes(&mut self, sign: &'static str) -> bool {
        self.tokens.next_if_eq(&Token::Sign(sign)).is_some()
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.next() {
            Some(Token::Name(name)) => Ok(name),
            Some(other) => Err(format!("expected a name, found {}", shown(&other))),
            None => Err("expected a name at the end".to_owned()),
        }
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        self.expect(&Token::Name(word.to_owned()))
    }

    fn expect(&mut self, wanted: &Token) -> Result<(), String> {
        match self.tokens.next() {
            Some(found) if found == *wanted => Ok(()),
            Some(found) => Err(format!("expected {}, found {}", shown(wanted), shown(&found))),
            None => Err(format!("expected {} at the end", shown(wanted))),
        }
    }
}

fn function(name: &str) -> Result<Function, String> {
    let found = FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| *function);
    found.ok_or_else(|| {
        let known: Vec<&str> = FUNCTIONS.iter().map(|(known, _)| *known).collect();
        format!("the function {name} is not supported: there are {}", known.join(", "))
    })
}

/// The operator of a token, its strength, and the least strength of what may stand at its right. `..` goes from the right.
fn operator(token: &Token) -> Option<(Operator, u8, u8)> {
    let left = |operator, strength| Some((operator, strength, strength + 1));
    match token {
        Token::Name(name) if name == "or" => left(Operator::Or, 1),
        Token::Name(name) if name == "and" => left(Operator::And, 2),
        Token::Sign("==") => left(Operator::Equal, 3),
        Token::Sign("~=") => left(Operator::NotEqual, 3),
        Token::Sign("<") => left(Operator::Less, 3),
        Token::Sign("<=") => left(Operator::LessOrEqual, 3),
        Token::Sign(">") => left(Operator::Greater, 3),
        Token::Sign(">=") => left(Operator::GreaterOrEqual, 3),
        Token::Sign("..") => Some((Operator::Concat, 4, 4)),
        Token::Sign("+") => left(Operator::Add, 5),
        Token::Sign("-") => left(Operator::Subtract, 5),
        Token::Sign("*") => left(Operator::Multiply, 6),
        Token::Sign("/") => left(Operator::Divide, 6),
        Token::Sign("%") => left(Operator::Modulo, 6),
        _ => None,
    }
}

/// A token in a message.
fn shown(token: &Token) -> String {
    match token {
        Token::Verbatim(_) => "text".to_owned(),
        Token::Print(true) => "{{".to_owned(),
        Token::Print(false) => "{*".to_owned(),
        Token::EndOfPrint => "the end of what is printed".to_owned(),
        Token::EndOfCode => "%}".to_owned(),
        Token::Name(name) => name.clone(),
        Token::Number(number) => number.to_string(),
        Token::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
        Token::Sign(sign) => (*sign).to_owned(),
    }
}
