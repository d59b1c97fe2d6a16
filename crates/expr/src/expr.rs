use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use regex::bytes::Regex;
use serde_json::Value as Json;

use crate::json_text::has_element;
use crate::number::to_number;
use crate::pattern::{RegexOptions, compile_regex};
use crate::value::{Scratch, Source, Value};
use crate::variable::{Variable, VariableError, nearest_of, suggestion};

/// A compiled expression, written by routes and plugins in the array form of lua-resty-expr.
///
/// ```text
/// [["arg_name", "==", "jack"], ["http_x_env", "!", "in", ["prod", "live"]]]
/// ["OR", ["remote_addr", "ipmatch", "10.0.0.0/8"], ["!AND", ["arg_a", ">", 1], ["arg_b", "~~", "^x"]]]
/// ```
///
/// # Rules
/// - A list of expressions holds when all of them hold; an empty one holds as a whole and is refused inside.
///   `["AND" | "OR" | "!AND" | "!OR", e, e, …]` nests. `[variable, operator, value]` is a test, `[variable, value]` means
///   `==`, `[variable, "!", operator, value]` is the opposite of the test. A single test stands in a list. Operators are
///   read without regard to case.
/// - `==` and `~=`: by number when the value is a JSON number, else by bytes. `null` means "not set". Of the booleans
///   `true` equals a query argument that came without `=`, and no text.
/// - `>`, `>=`, `<`, `<=`: by number, and false unless both sides read as numbers.
/// - `~~` matches a regular expression anywhere in the variable, `~*` without regard to case. Text is bytes, as in PCRE
///   without UTF mode. Look-around and back-references are refused when the expression is compiled, because matching
///   would no longer take linear time.
/// - `in`: the variable equals an element of the array. A number in it equals numbers of a JSON body alone: all other
///   variables are text and elements are not converted, so that `[1, 2]` has to be written `["1", "2"]`.
/// - `has`: an element of the variable's list equals the value, without conversion. Lists are `graphql_root_fields`, and
///   what `post_arg.` finds in a body. A variable with a single value counts as a list of one: then `has` is `==`.
/// - `ipmatch`: the variable is an address inside one of the networks; an IPv4 address that is mapped into IPv6 counts
///   as IPv4.
/// - A variable that is not set makes every test false, except `== null`; so `~=` and every `!` form are true.
#[derive(Clone, Debug)]
pub struct Expr {
    root: Node,
    /// Index in the array of the root's first operand: 1 after a leading `"AND"`, else 0.
    first_operand: usize,
}

/// A condition that is not written as an expression, such as a function of a script.
pub trait Condition: std::fmt::Debug + Send + Sync {
    /// True if the request meets the condition; `None`: that cannot be said, and the request must not go on.
    fn holds(&self, source: &dyn Source) -> Option<bool>;
}

thread_local! {
    static IS_UNDECIDED: Cell<bool> = const { Cell::new(false) };
}

/// True if a condition of this thread could not be decided since the last call. Such a condition does not hold.
pub fn take_undecided() -> bool {
    IS_UNDECIDED.replace(false)
}

#[derive(Clone, Debug)]
enum Node {
    All(Box<[Node]>),
    Any(Box<[Node]>),
    Not(Box<Node>),
    Test(Variable, Check),
    Condition(Arc<dyn Condition>),
}

/// Test of a variable's value.
#[derive(Clone, Debug)]
enum Check {
    Unset,
    Equal(Operand),
    Has(Operand),
    /// `None`: the value is no number.
    Order(Order, Option<f64>),
    In(Box<[Operand]>),
    Regex(Regex),
    IpMatch(Box<[IpNet]>),
}

#[derive(Clone, Debug)]
enum Operand {
    Bytes(Box<[u8]>),
    Number(f64),
    Boolean(bool),
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Expr {
    /// Compiles an expression from JSON.
    pub fn parse(json: &Json) -> Result<Expr, ExprError> {
        let logic = json.get(0).and_then(Json::as_str).map(Logic::named);
        if logic == Some(None) {
            let error = ExprError::new("rule should be wrapped inside brackets");
            return Err(ExprError { fault: ExprFault::NotAnArray, ..error });
        }
        let first_operand = usize::from(logic == Some(Some(Logic { any: false, negated: false })));
        Ok(Expr { root: parse_expression(json, 0)?, first_operand })
    }

    /// Warnings about valid expressions that hardly ever hold, and are therefore probably mistakes: a number in a
    /// list, an order comparison with a value that is no number, and `http_header_x` for `http_x`.
    pub fn doubts(json: &Json) -> Vec<ExprError> {
        let mut found = Vec::new();
        collect_doubts(json, "", &mut found);
        found
    }

    /// The expression that holds where `before` and this condition do.
    #[must_use]
    pub fn and(before: Option<Expr>, condition: Arc<dyn Condition>) -> Expr {
        let condition = Node::Condition(condition);
        let nodes = before.map(|before| before.root).into_iter().chain([condition]).collect();
        Expr { root: Node::All(nodes), first_operand: 0 }
    }

    /// True if the expression holds. Does not allocate, except for a regular expression's scratch space on its first
    /// use in a thread.
    pub fn eval(&self, source: &dyn Source) -> bool {
        self.root.eval(source)
    }

    /// Position (`[2]`) of the first expression that makes this one fail, or an empty path for the whole. `None` if
    /// the expression holds. For explanations: it allocates.
    pub fn failing(&self, source: &dyn Source) -> Option<String> {
        match &self.root {
            Node::All(nodes) => {
                let index = nodes.iter().position(|node| !node.eval(source))?;
                Some(format!("[{}]", index + self.first_operand))
            }
            root => (!root.eval(source)).then(String::new),
        }
    }

    /// True if the expression has a variable with a value in the body of the request.
    pub fn reads_body(&self) -> bool {
        self.variables().iter().any(|variable| variable.reads_body())
    }

    /// Every variable that is read, in the order of the text.
    pub fn variables(&self) -> Vec<&Variable> {
        let mut variables = Vec::new();
        self.root.collect_variables(&mut variables);
        variables
    }
}

impl Node {
    fn eval(&self, source: &dyn Source) -> bool {
        match self {
            Node::All(nodes) => nodes.iter().all(|node| node.eval(source)),
            Node::Any(nodes) => nodes.iter().any(|node| node.eval(source)),
            Node::Not(node) => !node.eval(source),
            Node::Test(variable, check) => check.holds(source.variable(variable)),
            Node::Condition(condition) => condition.holds(source).unwrap_or_else(|| {
                IS_UNDECIDED.set(true);
                false
            }),
        }
    }

    fn collect_variables<'a>(&'a self, variables: &mut Vec<&'a Variable>) {
        match self {
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().for_each(|node| node.collect_variables(variables)),
            Node::Not(node) => node.collect_variables(variables),
            Node::Test(variable, _) => variables.push(variable),
            Node::Condition(_) => {}
        }
    }
}

impl Check {
    fn holds(&self, value: Option<Value<'_>>) -> bool {
        let Some(value) = value else {
            return matches!(self, Check::Unset);
        };
        match self {
            Check::Unset => false,
            Check::Equal(operand) => operand.equals(value),
            Check::Has(operand) => match value {
                Value::Json(list) if list.starts_with('[') => has_element(list, |element| operand.is(element)),
                single => operand.equals(single),
            },
            Check::In(operands) => operands.iter().any(|operand| operand.is(value)),
            Check::Order(order, right) => {
                value.as_number().zip(*right).is_some_and(|(left, right)| order.agrees(left.partial_cmp(&right)))
            }
            Check::Regex(regex) => regex.is_match(value.print(&mut Scratch::new())),
            Check::IpMatch(networks) => address_of(value)
                .map(|address| address.to_canonical())
                .is_some_and(|address| networks.iter().any(|network| network.contains(&address))),
        }
    }
}

impl Operand {
    fn equals(&self, value: Value<'_>) -> bool {
        match self {
            Operand::Number(number) => value.as_number() == Some(*number),
            other => other.is(value),
        }
    }

    /// Equality without conversion, as for an element of a list.
    fn is(&self, value: Value<'_>) -> bool {
        match self {
            Operand::Bytes(bytes) => match value {
                Value::Boolean(_) | Value::Json(_) => false,
                text => text.print(&mut Scratch::new()) == &**bytes,
            },
            Operand::Boolean(boolean) => value == Value::Boolean(*boolean),
            Operand::Number(number) => matches!(value, Value::Json(_)) && value.as_number() == Some(*number),
        }
    }
}

impl Order {
    fn agrees(self, ordering: Option<std::cmp::Ordering>) -> bool {
        ordering.is_some_and(|ordering| match self {
            Order::Greater => ordering.is_gt(),
            Order::GreaterOrEqual => ordering.is_ge(),
            Order::Less => ordering.is_lt(),
            Order::LessOrEqual => ordering.is_le(),
        })
    }
}

fn address_of(value: Value<'_>) -> Option<IpAddr> {
    match value {
        Value::Ip(address) => Some(address),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::Number(_) | Value::Millis(_) | Value::Boolean(_) | Value::Json(_) => None,
    }
}

/// Error for a JSON value that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}{}{message}{}", if path.is_empty() { "" } else { ": " }, suggestion(nearest.as_deref()))]
pub struct ExprError {
    /// Position within the value, such as `[1][2]`, counted from 0; empty for the value as a whole.
    pub path: String,
    /// Description of the error.
    pub message: String,
    /// Kind of the error, for programs.
    pub fault: ExprFault,
    /// Known operator or variable that is most similar to the invalid one.
    pub nearest: Option<String>,
}

/// Kinds of faults, as far as programs tell them apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExprFault {
    /// No such operator; its name.
    Operator(String),
    /// A rule of too few elements.
    TooShort,
    /// The expression is no array.
    NotAnArray,
    /// Anything else.
    Other,
}

impl ExprError {
    fn new(message: impl Into<String>) -> ExprError {
        ExprError { path: String::new(), message: message.into(), fault: ExprFault::Other, nearest: None }
    }

    fn too_short() -> ExprError {
        ExprError { fault: ExprFault::TooShort, ..ExprError::new("rule too short") }
    }

    fn operator(name: &str) -> ExprError {
        ExprError {
            fault: ExprFault::Operator(name.to_owned()),
            ..ExprError::new(format!("invalid operator '{name}'"))
        }
    }

    /// The same error, with a position relative to the surrounding array.
    fn at(mut self, index: usize) -> ExprError {
        self.path.insert_str(0, &format!("[{index}]"));
        self
    }
}

impl From<VariableError> for ExprError {
    fn from(error: VariableError) -> ExprError {
        match error {
            VariableError::Unknown { name, nearest } => {
                ExprError { nearest, ..ExprError::new(format!("unknown variable '{name}'")) }
            }
            other => ExprError::new(other.to_string()),
        }
    }
}

fn collect_doubts(json: &Json, path: &str, found: &mut Vec<ExprError>) {
    let items = json.as_array().map_or(&[][..], Vec::as_slice);
    let mut doubt = |at: String, message: &str| {
        found.push(ExprError { path: format!("{path}{at}"), ..ExprError::new(message) });
    };
    let last = items.len().saturating_sub(1);
    if let [Json::String(name), ..] = items
        && let Some(reason) = VariableError::doubt(name)
    {
        doubt("[0]".to_owned(), &reason.to_string());
    }
    match items {
        [Json::String(name), .., Json::String(operator), Json::Array(list)]
            if operator.eq_ignore_ascii_case("in") && !name.starts_with("post_arg.") =>
        {
            for (at, _) in list.iter().enumerate().filter(|(_, item)| item.is_number()) {
                doubt(format!("[{last}][{at}]"), "a number equals no variable here: write it as a text");
            }
        }
        [Json::String(_), .., Json::String(operator), Json::String(text)]
            if matches!(operator.as_str(), ">" | ">=" | "<" | "<=") && to_number(text.as_bytes()).is_none() =>
        {
            doubt(format!("[{last}]"), "it is no number: the comparison never holds");
        }
        _ => {
            for (at, item) in items.iter().enumerate().filter(|(_, item)| item.is_array()) {
                collect_doubts(item, &format!("{path}[{at}]"), found);
            }
        }
    }
}

/// Maximum depth of nesting: evaluation is recursive.
const DEEPEST: usize = 32;

const OPERATORS: [&str; 11] = ["==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch"];

/// Operators of other languages that people write by mistake; they are too short for a similarity measure.
const FOREIGN_OPERATORS: [(&str, &str); 11] = [
    ("=", "=="),
    ("===", "=="),
    ("eq", "=="),
    ("!=", "~="),
    ("<>", "~="),
    ("~", "~~"),
    ("=~", "~~"),
    ("=>", ">="),
    ("=<", "<="),
    ("contains", "has"),
    ("cidr", "ipmatch"),
];

fn parse_expression(json: &Json, depth: usize) -> Result<Node, ExprError> {
    let Json::Array(items) = json else {
        return Err(ExprError::new("rule should be an array"));
    };
    if depth > DEEPEST {
        return Err(ExprError::new(format!("rule is nested deeper than {DEEPEST} levels")));
    }
    if items.is_empty() && depth > 0 {
        return Err(ExprError::too_short());
    }
    let Some(Json::String(head)) = items.first() else {
        return parse_operands(items, 0, depth).map(Node::All);
    };
    let Some(Logic { any, negated }) = Logic::named(head) else { return parse_test(head, items) };
    if items.len() < 3 {
        return Err(ExprError::too_short());
    }
    let operands = parse_operands(items, 1, depth)?;
    let node = if any { Node::Any(operands) } else { Node::All(operands) };
    Ok(if negated { Node::Not(Box::new(node)) } else { node })
}

#[derive(PartialEq, Eq)]
struct Logic {
    any: bool,
    negated: bool,
}

impl Logic {
    fn named(name: &str) -> Option<Logic> {
        let (negated, name) = name.strip_prefix('!').map_or((false, name), |name| (true, name));
        let any = name.eq_ignore_ascii_case("OR");
        (any || name.eq_ignore_ascii_case("AND")).then_some(Logic { any, negated })
    }
}

fn parse_operands(items: &[Json], first: usize, depth: usize) -> Result<Box<[Node]>, ExprError> {
    let operands = items.iter().enumerate().skip(first);
    operands.map(|(index, item)| parse_expression(item, depth + 1).map_err(|error| error.at(index))).collect()
}

fn parse_test(name: &str, items: &[Json]) -> Result<Node, ExprError> {
    let negated = items.len() > 2 && items[1].as_str() == Some("!");
    let operator_at = if negated { 2 } else { 1 };
    let known = |name: &str| OPERATORS.iter().find(|operator| operator.eq_ignore_ascii_case(name)).copied();
    let (operator, value_at) = match (negated, items.len()) {
        (_, 0 | 1) | (true, 3) => return Err(ExprError::too_short()),
        (false, 2) if items[1].as_str().and_then(known).is_some() => return Err(ExprError::too_short()),
        (false, 2) => ("==", 1),
        (false, 3) | (true, 4) => match &items[operator_at] {
            Json::String(name) => (name.as_str(), operator_at + 1),
            other => return Err(ExprError::operator(&other.to_string()).at(operator_at)),
        },
        _ => return Err(ExprError::new("rule too long")),
    };
    let variable = Variable::parse(name).map_err(|error| ExprError::from(error).at(0))?;
    let operator = known(operator).ok_or_else(|| unknown_operator(operator).at(operator_at))?;
    let check = parse_check(operator, &items[value_at]).map_err(|error| error.at(value_at))?;
    let test = Node::Test(variable, check);
    // Two negations cancel out, which keeps the tree flat.
    Ok(if negated != (operator == "~=") { Node::Not(Box::new(test)) } else { test })
}

fn unknown_operator(name: &str) -> ExprError {
    let foreign = FOREIGN_OPERATORS.iter().find(|(foreign, _)| foreign.eq_ignore_ascii_case(name));
    let nearest =
        foreign.map(|(_, ours)| *ours).or_else(|| nearest_of(&name.to_ascii_lowercase(), OPERATORS.into_iter()));
    ExprError { nearest: nearest.map(str::to_owned), ..ExprError::operator(name) }
}

fn parse_check(operator: &str, value: &Json) -> Result<Check, ExprError> {
    let ordered = |order| {
        let right = match parse_operand(operator, value)? {
            Operand::Bytes(text) => to_number(&text),
            Operand::Number(number) => Some(number),
            Operand::Boolean(_) => None,
        };
        Ok(Check::Order(order, right))
    };
    match operator {
        "==" | "~=" | "has" if value.is_null() => Ok(Check::Unset),
        "==" | "~=" => Ok(Check::Equal(parse_operand(operator, value)?)),
        "has" => Ok(Check::Has(parse_operand(operator, value)?)),
        ">" => ordered(Order::Greater),
        ">=" => ordered(Order::GreaterOrEqual),
        "<" => ordered(Order::Less),
        "<=" => ordered(Order::LessOrEqual),
        "in" => {
            let Json::Array(items) = value else {
                return Err(ExprError::new("operator 'in' needs an array"));
            };
            parse_list(items, |item| parse_operand(operator, item)).map(Check::In)
        }
        "ipmatch" => match value {
            Json::Array(items) => parse_list(items, parse_network).map(Check::IpMatch),
            single => Ok(Check::IpMatch([parse_network(single)?].into())),
        },
        _ => match value {
            Json::String(pattern) => {
                let options = RegexOptions { caseless: operator == "~*", ..RegexOptions::default() };
                let (regex, _) = compile_regex(pattern, options).map_err(ExprError::new)?;
                Ok(Check::Regex(regex))
            }
            _ => Err(ExprError::new(format!("operator '{operator}' needs a regular expression as a string"))),
        },
    }
}

fn parse_list<T>(items: &[Json], parse: impl Fn(&Json) -> Result<T, ExprError>) -> Result<Box<[T]>, ExprError> {
    items.iter().enumerate().map(|(index, item)| parse(item).map_err(|error| error.at(index))).collect()
}

fn parse_operand(operator: &str, value: &Json) -> Result<Operand, ExprError> {
    match value {
        Json::String(text) => Ok(Operand::Bytes(text.as_bytes().into())),
        Json::Number(number) => Ok(Operand::Number(number.as_f64().unwrap_or(f64::NAN))),
        Json::Bool(boolean) => Ok(Operand::Boolean(*boolean)),
        Json::Null | Json::Array(_) | Json::Object(_) => {
            Err(ExprError::new(format!("operator '{operator}' cannot compare with {value}")))
        }
    }
}

fn parse_network(value: &Json) -> Result<IpNet, ExprError> {
    let text = value.as_str().ok_or_else(|| ExprError::new("operator 'ipmatch' needs addresses as strings"))?;
    let parsed = match text.parse::<IpAddr>() {
        Ok(address) => Ok(IpNet::from(address.to_canonical())),
        Err(_) => text.parse::<IpNet>(),
    };
    parsed.map_err(|_| ExprError::new(format!("invalid ip address '{text}'")))
}
