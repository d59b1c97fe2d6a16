//! Functions of templates: Go's own, Tyk's `jsonMarshal` and `xmlMarshal`, and a few of the library Sprig that Tyk has as well.

use std::cmp::Ordering;

use serde_json::Value;

use super::print::print;

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Or,
    Not,
    Len,
    Index,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Print,
    Println,
    Printf,
    Html,
    Js,
    UrlQuery,
    Json,
    Xml,
    Upper,
    Lower,
    Trim,
    Default,
    Quote,
    Join,
    Replace,
}

const NAMES: &[(&str, Function)] = &[
    ("and", Function::And),
    ("or", Function::Or),
    ("not", Function::Not),
    ("len", Function::Len),
    ("index", Function::Index),
    ("eq", Function::Eq),
    ("ne", Function::Ne),
    ("lt", Function::Lt),
    ("le", Function::Le),
    ("gt", Function::Gt),
    ("ge", Function::Ge),
    ("print", Function::Print),
    ("println", Function::Println),
    ("printf", Function::Printf),
    ("html", Function::Html),
    ("js", Function::Js),
    ("urlquery", Function::UrlQuery),
    ("jsonMarshal", Function::Json),
    ("toJson", Function::Json),
    ("xmlMarshal", Function::Xml),
    ("upper", Function::Upper),
    ("lower", Function::Lower),
    ("trim", Function::Trim),
    ("default", Function::Default),
    ("quote", Function::Quote),
    ("join", Function::Join),
    ("replace", Function::Replace),
];

/// False for nothing, false, zero, and what is empty.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn text(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
    }

    fn name(self) -> &'static str {
        NAMES.iter().find(|(_, function)| *function == self).map_or("", |(name, _)| name)
    }

    /// The value for arguments.
    pub(super) fn call(self, arguments: &[Value]) -> Result<Value, String> {
        let missing = || format!("{}: an argument is missing", self.name());
        let argument = |at: usize| arguments.get(at).ok_or_else(missing);
        let last = || arguments.last().ok_or_else(missing);
        let all = || arguments.iter().map(text).collect::<Vec<_>>();
        Ok(match self {
            Self::And => arguments.iter().find(|value| !is_true(value)).map_or_else(last, Ok)?.clone(),
            Self::Or => arguments.iter().find(|value| is_true(value)).map_or_else(last, Ok)?.clone(),
            Self::Not => (!is_true(argument(0)?)).into(),
            Self::Len => match argument(0)? {
                Value::String(text) => text.len().into(),
                Value::Array(items) => items.len().into(),
                Value::Object(fields) => fields.len().into(),
                other => return Err(format!("len: {} has no length", text(other))),
            },
            Self::Index => {
                let (first, rest) = arguments.split_first().ok_or_else(missing)?;
                rest.iter().try_fold(first, index)?.clone()
            }
            Self::Eq => {
                let (first, rest) = arguments.split_first().ok_or_else(missing)?;
                rest.iter().any(|other| compare(first, other) == Some(Ordering::Equal)).into()
            }
            Self::Ne => (compare(argument(0)?, argument(1)?) != Some(Ordering::Equal)).into(),
            Self::Lt => compare(argument(0)?, argument(1)?).is_some_and(Ordering::is_lt).into(),
            Self::Le => compare(argument(0)?, argument(1)?).is_some_and(Ordering::is_le).into(),
            Self::Gt => compare(argument(0)?, argument(1)?).is_some_and(Ordering::is_gt).into(),
            Self::Ge => compare(argument(0)?, argument(1)?).is_some_and(Ordering::is_ge).into(),
            Self::Print => all().concat().into(),
            Self::Println => (all().join(" ") + "\n").into(),
            Self::Printf => {
                let (format, rest) = arguments.split_first().ok_or_else(missing)?;
                format_values(&text(format), rest)?.into()
            }
            Self::Html => {
                let escaped = all().concat().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                escaped.replace('"', "&#34;").replace('\'', "&#39;").into()
            }
            Self::Js => {
                let escaped = all().concat().replace('\\', "\\\\").replace('"', "\\\"").replace('\'', "\\'");
                escaped.replace('<', "\\u003C").replace('>', "\\u003E").replace('\n', "\\u000A").into()
            }
            Self::UrlQuery => {
                let mut out = Vec::new();
                weir_wire::query::encode(all().concat().as_bytes(), &mut out);
                String::from_utf8_lossy(&out).into_owned().into()
            }
            Self::Json => last()?.to_string().into(),
            Self::Xml => super::xml::write(last()?).into(),
            Self::Upper => text(last()?).to_uppercase().into(),
            Self::Lower => text(last()?).to_lowercase().into(),
            Self::Trim => text(last()?).trim().into(),
            Self::Default => if is_true(argument(1)?) { argument(1)? } else { argument(0)? }.clone(),
            Self::Quote => Value::from(text(last()?)).to_string().into(),
            Self::Join => {
                let Value::Array(items) = argument(1)? else { return Err("join: expected a list".to_owned()) };
                items.iter().map(text).collect::<Vec<_>>().join(&text(argument(0)?)).into()
            }
            Self::Replace => text(argument(2)?).replace(&text(argument(0)?), &text(argument(1)?)).into(),
        })
    }
}

fn index<'v>(value: &'v Value, at: &Value) -> Result<&'v Value, String> {
    match (value, at) {
        (Value::Object(fields), Value::String(name)) => Ok(fields.get(name).unwrap_or(&Value::Null)),
        (Value::Array(items), Value::Number(number)) => {
            let at = number.as_f64().filter(|at| *at >= 0.0).map(|at| at as usize);
            at.and_then(|at| items.get(at)).ok_or_else(|| format!("index: there is no element {number}"))
        }
        (other, _) => Err(format!("index: {} has no elements of this kind", text(other))),
    }
}

fn compare(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64()?.partial_cmp(&other.as_f64()?),
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        _ => (one == other).then_some(Ordering::Equal),
    }
}

/// `%v`, `%s`, `%d`, `%q` and `%%`, each without flags.
fn format_values(format: &str, values: &[Value]) -> Result<String, String> {
    let (mut out, mut values, mut letters) = (String::new(), values.iter(), format.chars());
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let verb = letters.next();
        if verb == Some('%') {
            out.push('%');
            continue;
        }
        let Some(value) = values.next() else { return Err("printf: an argument is missing".to_owned()) };
        match (verb, value) {
            (Some('v' | 's'), value) => print(value, &mut out),
            (Some('d'), Value::Number(number)) => {
                out.push_str(&(number.as_f64().unwrap_or_default() as i64).to_string())
            }
            (Some('q'), value) => out.push_str(&Value::from(text(value)).to_string()),
            _ => return Err("printf: only %v, %s, %d and %q are supported".to_owned()),
        }
    }
    Ok(out)
}
