//! YAML in block style.

use serde_json::{Map, Value};

/// Columns of a line of comments.
const WIDTH: usize = 125;

/// Appends a comment in lines that begin with `lead`; further lines are indented as it is.
pub(super) fn comment(text: &str, lead: &str, out: &mut String) {
    let more = lead.replace('-', " ");
    let mut line = lead.to_owned();
    for word in text.split_whitespace() {
        if line.len() + word.len() > WIDTH && line.trim_end() != lead.trim_end() {
            out.push_str(line.trim_end());
            out.push('\n');
            line.clone_from(&more);
        }
        line.push_str(word);
        line.push(' ');
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Appends an item of a list.
pub(super) fn item(value: &Map<String, Value>, out: &mut String) {
    for (at, (name, value)) in value.iter().enumerate() {
        out.push_str(if at == 0 { "  - " } else { "    " });
        field(name, value, 4, out);
    }
}

fn field(name: &str, value: &Value, indent: usize, out: &mut String) {
    out.push_str(&scalar(name));
    out.push(':');
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            for (name, value) in fields {
                out.push_str(&" ".repeat(indent + 2));
                field(name, value, indent + 2, out);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            out.push('\n');
            for item in items {
                out.push_str(&" ".repeat(indent + 2));
                out.push_str("- ");
                match item {
                    Value::Object(fields) if !fields.is_empty() => {
                        for (at, (name, value)) in fields.iter().enumerate() {
                            if at > 0 {
                                out.push_str(&" ".repeat(indent + 4));
                            }
                            field(name, value, indent + 4, out);
                        }
                    }
                    other => {
                        flow(other, out);
                        out.push('\n');
                    }
                }
            }
        }
        other => {
            out.push(' ');
            flow(other, out);
            out.push('\n');
        }
    }
}

fn flow(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => out.push_str(&scalar(text)),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                flow(item, out);
            }
            out.push(']');
        }
        // JSON is YAML.
        other => out.push_str(&other.to_string()),
    }
}

/// A text, plain where no reader can take it for anything else.
fn scalar(text: &str) -> String {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
    let is_reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    match is_word && begins && !is_reserved {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_config::Node;

    use super::{comment, item};

    #[test]
    fn what_is_written_reads_as_what_it_was() {
        let value = json!({
            "id": "1", "on": "yes", "n": 1.5, "t": true, "empty": {}, "none": [], "text": "a: b # c\n\"d\" \u{e9}",
            "list": ["/a*", "x", 3, null], "deep": {"a": {"b c": [["uri", "~~", "^/x"], ["OR", ["a", "==", "b"]]]}},
            "objects": [{"a": {"b": 1}, "c": [{"d": []}]}, {}],
        });
        let mut text = "all:\n".to_owned();
        item(value.as_object().expect("a mapping"), &mut text);
        let read = Node::parse(&text).map(|parsed| parsed.root.to_json()).unwrap_or(Value::Null);
        assert_eq!(read, json!({ "all": [value] }), "{text}");
    }

    #[test]
    fn comments_are_broken_into_lines() {
        let mut out = String::new();
        comment(&"word ".repeat(60), "# - ", &mut out);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= 125), "{out}");
        assert!(lines[0].starts_with("# - word") && lines[1].starts_with("#   word"), "{out}");
    }
}
