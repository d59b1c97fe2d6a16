//! Templates in the form of lua-resty-template, without Lua: values, operators, a few functions, `if`, `for` and `local`. A
//! template that needs more is refused by the name of what it needs.

use std::rc::Rc;

use weir_expr::{Source, Value as Variable, Variable as Name};

use super::functions::{Function, MOST, escaped_for_html};
use super::lexer::tokens;
use super::parser::Parser;
use super::value::{Table, Value};

/// Most steps that a template takes.
const STEPS: u32 = 4_000_000;

/// A template.
#[derive(Debug)]
pub(super) struct Template {
    block: Box<[Statement]>,
    /// Number of its local variables.
    locals: usize,
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(Box<[u8]>),
    /// Printed expression, escaped for HTML or not.
    Print(Expression, bool),
    /// Conditions with their blocks, and the block where none holds.
    If(Box<[(Expression, Box<[Statement]>)]>, Box<[Statement]>),
    Local(usize, Option<Expression>),
    /// `for key, value in pairs(…)`; with `ipairs` a list alone.
    Each {
        key: usize,
        value: usize,
        of: Expression,
        list_alone: bool,
        block: Box<[Statement]>,
    },
    Count {
        counter: usize,
        from: Expression,
        to: Expression,
        step: Option<Expression>,
        block: Box<[Statement]>,
    },
}

#[derive(Debug)]
pub(super) enum Expression {
    Constant(Literal),
    Local(usize),
    /// A value of the body by its name.
    Field(Box<str>),
    /// `_body`
    Body,
    /// `_ctx.var.NAME`
    Variable(Name),
    Index(Box<[Expression; 2]>),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    Length(Box<Expression>),
    Binary(Operator, Box<[Expression; 2]>),
    Call(Function, Box<[Expression]>),
}

/// A constant, which all workers share.
#[derive(Debug)]
pub(super) enum Literal {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Box<[u8]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// Values with which a template is rendered.
pub(super) struct Input<'a> {
    pub(super) fields: &'a Table,
    pub(super) body: Option<&'a [u8]>,
    pub(super) source: &'a dyn Source,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// It is none, or it needs more of Lua than there is here.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (block, locals) = Parser::new(tokens(text)?).template()?;
        Ok(Self { block, locals })
    }

    /// Renders.
    ///
    /// # Errors
    /// A value is not what an operator needs, or the template exceeds a bound.
    pub(super) fn render(&self, input: &Input<'_>) -> Result<Vec<u8>, String> {
        let locals = vec![Value::Nil; self.locals];
        let mut run = Run { input, locals, out: Vec::new(), steps: 0 };
        run.block(&self.block)?;
        Ok(run.out)
    }
}

struct Run<'a> {
    input: &'a Input<'a>,
    locals: Vec<Value>,
    out: Vec<u8>,
    steps: u32,
}

impl Run<'_> {
    fn block(&mut self, block: &[Statement]) -> Result<(), String> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), String> {
        self.step()?;
        match statement {
            Statement::Text(text) => self.print(text),
            Statement::Print(expression, escapes) => {
                let value = self.value(expression)?;
                let is_text = matches!(value, Value::Text(_));
                let printed = value.printed();
                match *escapes && is_text {
                    true => self.print(&escaped_for_html(&printed)),
                    false => self.print(&printed),
                }
            }
            Statement::If(cases, otherwise) => {
                for (condition, block) in cases {
                    if self.value(condition)?.is_true() {
                        return self.block(block);
                    }
                }
                self.block(otherwise)
            }
            Statement::Local(at, value) => {
                let value = value.as_ref().map_or(Ok(Value::Nil), |value| self.value(value))?;
                self.set(*at, value);
                Ok(())
            }
            Statement::Each { key, value, of, list_alone, block } => self.each([*key, *value], of, *list_alone, block),
            Statement::Count { counter, from, to, step, block } => {
                let step = step.as_ref().map_or(Ok(1.0), |step| self.number(step))?;
                let (mut at, to) = (self.number(from)?, self.number(to)?);
                if step == 0.0 {
                    return Err("the step of a for is 0".to_owned());
                }
                while if step > 0.0 { at <= to } else { at >= to } {
                    self.set(*counter, Value::Number(at));
                    self.block(block)?;
                    self.step()?;
                    at += step;
                }
                Ok(())
            }
        }
    }

    fn each(
        &mut self,
        [key, value]: [usize; 2],
        of: &Expression,
        list_alone: bool,
        block: &[Statement],
    ) -> Result<(), String> {
        let table = match self.value(of)? {
            Value::Table(table) => table,
            other => return Err(format!("a for needs a table, not a {} value", other.kind())),
        };
        for (at, item) in (1..).zip(&table.list) {
            self.set(key, Value::Number(f64::from(at)));
            self.set(value, item.clone());
            self.block(block)?;
        }
        for (name, item) in table.map.iter().filter(|_| !list_alone) {
            self.set(key, Value::Text(Rc::clone(name)));
            self.set(value, item.clone());
            self.block(block)?;
        }
        Ok(())
    }

    fn set(&mut self, at: usize, value: Value) {
        if let Some(local) = self.locals.get_mut(at) {
            *local = value;
        }
    }

    fn print(&mut self, text: &[u8]) -> Result<(), String> {
        if self.out.len() + text.len() > MOST {
            return Err(format!("more than {MOST} bytes are printed"));
        }
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > STEPS { Err(format!("more than {STEPS} steps are taken")) } else { Ok(()) }
    }

    fn number(&mut self, expression: &Expression) -> Result<f64, String> {
        let value = self.value(expression)?;
        value.number().ok_or_else(|| format!("attempt to perform arithmetic on {}", described(expression, &value)))
    }

    fn value(&mut self, expression: &Expression) -> Result<Value, String> {
        self.step()?;
        Ok(match expression {
            Expression::Constant(literal) => literal.value(),
            Expression::Local(at) => self.locals.get(*at).cloned().unwrap_or(Value::Nil),
            Expression::Field(name) => self.input.fields.map.get(name.as_bytes()).cloned().unwrap_or(Value::Nil),
            Expression::Body => self.input.body.map_or(Value::Nil, Value::text),
            Expression::Variable(name) => of_variable(self.input.source.variable(name)),
            Expression::Index(pair) => {
                let [of, key] = &**pair;
                let (value, key) = (self.value(of)?, self.value(key)?);
                value.get(&key).ok_or_else(|| format!("attempt to index {}", described(of, &value)))?
            }
            Expression::Not(inner) => Value::Boolean(!self.value(inner)?.is_true()),
            Expression::Minus(inner) => Value::Number(-self.number(inner)?),
            Expression::Length(inner) => match self.value(inner)? {
                Value::Text(text) => Value::Number(text.len() as f64),
                Value::Table(table) => Value::Number(table.list.len() as f64),
                other => return Err(format!("attempt to get length of {}", described(inner, &other))),
            },
            Expression::Binary(operator, pair) => self.binary(*operator, pair)?,
            Expression::Call(function, arguments) => {
                let values = arguments.iter().map(|argument| self.value(argument)).collect::<Result<Vec<_>, _>>()?;
                function.call(&values)?
            }
        })
    }

    fn binary(&mut self, operator: Operator, pair: &[Expression; 2]) -> Result<Value, String> {
        use Operator::{
            Add, And, Concat, Divide, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Modulo, Multiply, NotEqual,
            Or, Subtract,
        };
        let [left, right] = pair;
        Ok(match operator {
            Or | And => {
                let value = self.value(left)?;
                if value.is_true() == (operator == Or) { value } else { self.value(right)? }
            }
            Equal | NotEqual => {
                let equal = self.value(left)?.equals(&self.value(right)?);
                Value::Boolean(equal == (operator == Equal))
            }
            Less => Value::Boolean(less(&self.value(left)?, &self.value(right)?, false)?),
            LessOrEqual => Value::Boolean(less(&self.value(left)?, &self.value(right)?, true)?),
            Greater => Value::Boolean(less(&self.value(right)?, &self.value(left)?, false)?),
            GreaterOrEqual => Value::Boolean(less(&self.value(right)?, &self.value(left)?, true)?),
            Concat => {
                let (a, b) = (self.value(left)?, self.value(right)?);
                let fault = |of: &Expression, value: &Value| format!("attempt to concatenate {}", described(of, value));
                let (first, second) =
                    (a.as_text().ok_or_else(|| fault(left, &a))?, b.as_text().ok_or_else(|| fault(right, &b))?);
                if first.len() + second.len() > MOST {
                    return Err(format!("a text has more than {MOST} bytes"));
                }
                Value::text([&*first, &*second].concat())
            }
            Add => Value::Number(self.number(left)? + self.number(right)?),
            Subtract => Value::Number(self.number(left)? - self.number(right)?),
            Multiply => Value::Number(self.number(left)? * self.number(right)?),
            Divide => Value::Number(self.number(left)? / self.number(right)?),
            Modulo => {
                let (a, b) = (self.number(left)?, self.number(right)?);
                Value::Number(a - (a / b).floor() * b)
            }
        })
    }
}

impl Literal {
    fn value(&self) -> Value {
        match self {
            Self::Nil => Value::Nil,
            Self::Boolean(flag) => Value::Boolean(*flag),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::text(text),
        }
    }
}

fn of_variable(found: Option<Variable<'_>>) -> Value {
    match found {
        None => Value::Nil,
        Some(Variable::Boolean(flag)) => Value::Boolean(flag),
        Some(other) => {
            let mut text = Vec::new();
            other.write_to(&mut text);
            Value::text(text)
        }
    }
}

/// A value in a message, with the name that it has in the template.
fn described(expression: &Expression, value: &Value) -> String {
    let name = match expression {
        Expression::Field(name) => Some((**name).to_owned()),
        Expression::Index(pair) => match &pair[1] {
            Expression::Constant(Literal::Text(name)) => Some(String::from_utf8_lossy(name).into_owned()),
            _ => None,
        },
        Expression::Variable(name) => Some(name.name().into_owned()),
        _ => None,
    };
    match name {
        Some(name) => format!("field '{name}' (a {} value)", value.kind()),
        None => format!("a {} value", value.kind()),
    }
}

fn less(left: &Value, right: &Value, or_equal: bool) -> Result<bool, String> {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => Ok(if or_equal { a <= b } else { a < b }),
        (Value::Text(a), Value::Text(b)) => Ok(if or_equal { a <= b } else { a < b }),
        _ => Err(format!("attempt to compare {} with {}", left.kind(), right.kind())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};
    use weir_expr::Source;

    use super::{Input, Template, Value, Variable};

    struct Method;

    impl Source for Method {
        fn variable(&self, variable: &weir_expr::Variable) -> Option<Variable<'_>> {
            (*variable == weir_expr::Variable::RequestMethod).then_some(Variable::Bytes(b"GET"))
        }
    }

    fn render(template: &str, fields: &Json) -> Result<String, String> {
        let Value::Table(table) = Value::from_json(fields) else { panic!("fields are an object") };
        let input = Input { fields: &table, body: Some(b"the not body"), source: &Method };
        Template::parse(template)?.render(&input).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn templates_are_rendered() {
        let fields = json!({
            "name": "hello", "age": "20", "n": 3, "tags": ["a", "b"], "deep": { "x": { "y": "z" }, "key 1": 1 },
            "none": null, "flag": false, "html": "<a href=\"/x\">'&", "empty": [],
        });
        for (template, expected) in [
            (r#"{"foo":"{{name .. " world"}}","bar":{{age+10}}}"#, r#"{"foo":"hello world","bar":30}"#),
            ("{{html}}|{*html*}", "&lt;a href=&quot;&#47;x&quot;&gt;&#39;&amp;|<a href=\"/x\">'&"),
            ("{{missing}}{{none}}{{flag}}{{n}}", "false3"),
            ("{{deep.x.y}}{{deep['key 1']}}{{tags[2]}}{{tags[3]}}{{#tags}}", "z1b2"),
            ("{% if n > 2 and not flag then %}yes{% elseif n == 1 then %}one{% else %}no{% end %}", "yes"),
            ("{% if none == nil then %}nil{% else %}null{% end %}{% if missing == nil then %}nil{% end %}", "nullnil"),
            ("{% for i, t in ipairs(tags) do %}{{i}}={{t}}{% if i < #tags then %},{% end %}{% end %}", "1=a,2=b"),
            ("{% for k, v in pairs(deep.x) do %}{{k}}:{{v}}{% end %}", "y:z"),
            ("{% for i = 3, 1, -1 do %}{{i}}{% end %}{% for i = 1, 0 do %}x{% end %}", "321"),
            ("{% local a, b = name, n * 2 %}{{a}}{{b}}{% local a = 1 %}{{a}}", "hello61"),
            (
                "{*_escape_json(deep)*}{*_escape_json(missing)*}{*_escape_json(empty)*}",
                r#"{"key 1":1,"x":{"y":"z"}}null[]"#,
            ),
            ("{*_escape_xml(html)*}", "&lt;a href=&quot;/x&quot;&gt;&apos;&amp;"),
            ("{*string.gsub(_body, \"not \", \"\")*}", "the body"),
            ("{{_ctx.var.request_method}}{{name:upper()}}{{string.sub(name, 2, -2)}}", "GETHELLOell"),
            (
                "{{table.concat(tags, '-')}}{{tostring(nil)}}{{tonumber('x') or 'none'}}{{type(tags)}}",
                "a-bnilnonetable",
            ),
            ("{{1 + 2 * 3 - -1}} {{7 % 4}} {{10 / 4}} {{math.floor(2.7)}} {{'a' .. 1 .. 'b'}}", "8 3 2.5 2 a1b"),
            ("{{n == 3 and 'three' or 'other'}} {{'a' < 'b'}} {{(n)}}", "three true 3"),
        ] {
            assert_eq!(render(template, &fields).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn faults_are_named() {
        let fields = json!({ "name": "x", "list": [1] });
        for (template, says) in [
            ("{{missing.x}}", "attempt to index field 'missing' (a nil value)"),
            ("{{name + 1}}", "attempt to perform arithmetic on field 'name' (a string value)"),
            ("{{missing .. 'x'}}", "attempt to concatenate field 'missing' (a nil value)"),
            ("{{1 < 'x'}}", "attempt to compare number with string"),
            ("{% for k in pairs(name) do %}{% end %}", "a for needs a table"),
            ("{% for i = 1, 1e9 do %}{% end %}", "steps"),
            ("{% for i = 1, 1000000 do %}0123456789012345678901234567890123456789{% end %}", "bytes are printed"),
            ("{*string.gsub(name, 'a*', 'b')*}", "string.gsub with a pattern is not supported"),
            ("{% local yaml = require('tinyyaml') %}", "require"),
            ("{{os.getenv('HOME')}}", "os.getenv"),
            ("{{ngx.var.uri}}", "ngx"),
            ("{% name = 1 %}", "name"),
            ("{% while true do %}{% end %}", "while"),
            ("{% if name then %}", "end"),
            ("{% end %}", "end"),
            ("{{name.x()}}", "not supported"),
            ("{{function() end}}", "function"),
            ("{{_ctx.consumer}}", "_ctx"),
            ("{{_ctx.var.no_such_variable}}", "no_such_variable"),
            ("{{a b}}", "b"),
        ] {
            let error = render(template, &fields).unwrap_err();
            assert!(error.contains(says), "{template}: {error}");
        }
    }
}
