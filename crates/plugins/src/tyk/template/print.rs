//! Values as Go prints them.

use std::fmt::Write;

use serde_json::Value;

/// Appends a value as `%v` has it.
pub(super) fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<no value>"),
        Value::String(text) => out.push_str(text),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => print_number(number.as_f64().unwrap_or_default(), out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                print(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            out.push_str("map[");
            for (at, name) in names.into_iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                out.push_str(name);
                out.push(':');
                print(fields.get(name).unwrap_or(&Value::Null), out);
            }
            out.push(']');
        }
    }
}

/// Numbers are floats in Go: those from a million on, and very small ones, have an exponent.
fn print_number(number: f64, out: &mut String) {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let written = if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs())
    } else {
        write!(out, "{number}")
    };
    // Writing into a text does not fail.
    written.unwrap_or_default();
}
