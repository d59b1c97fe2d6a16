//! Values from the environment: `$NAME`, `${NAME}`, `{vault://env/NAME}`.

use weir_config::env::Variables;
use weir_config::node::push_name;
use weir_config::{Code, Diagnostic, Kind, Node};

/// Puts the values of variables that are set in their places. Regular expressions of paths and Lua keep theirs. A text
/// that a variable makes up as a whole becomes a number or a boolean if it reads as one, as it does without quotes.
pub(crate) fn fill(node: &mut Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) {
    walk(node, &mut String::new(), variables, found);
}

/// Names of fields with Lua.
const LUA: [&str; 7] =
    ["access", "rewrite", "header_filter", "body_filter", "log", "certificate", "custom_fields_by_lua"];

fn walk(node: &mut Node, path: &mut String, variables: Variables<'_>, found: &mut Vec<Diagnostic>) {
    let mark = node.mark;
    match &mut node.kind {
        Kind::Map(entries) => {
            for (key, value) in entries.iter_mut().filter(|(key, _)| !LUA.contains(&&*key.text)) {
                let length = path.len();
                push_name(path, &key.text);
                walk(value, path, variables, found);
                path.truncate(length);
            }
        }
        Kind::Seq(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{at}]"));
                walk(item, path, variables, found);
                path.truncate(length);
            }
        }
        Kind::Str(text) if text.contains('$') || text.contains("{vault://") => {
            if text.starts_with('~') {
                return;
            }
            let Some(filled) = fill_text(text, variables, &mut |name, is_vault| {
                let reason = format!("the environment variable {name} is not set");
                let rule = |text: String| Code::FamilyRule { text: text.into() };
                found.push(match is_vault {
                    true => Diagnostic::error(mark, path.clone(), rule(reason)),
                    false => {
                        Diagnostic::warning(mark, path.clone(), rule(format!("{reason}: the text stays as it is")))
                    }
                });
            }) else {
                return;
            };
            let is_whole = !filled.from_text;
            node.kind = match filled.text.parse::<i64>() {
                Ok(number) if is_whole => Kind::Int(number),
                _ if is_whole && filled.text == "true" => Kind::Bool(true),
                _ if is_whole && filled.text == "false" => Kind::Bool(false),
                _ => Kind::Str(filled.text),
            };
        }
        _ => {}
    }
}

struct Filled {
    text: String,
    /// True if there was text beside the placeholder.
    from_text: bool,
}

/// The text with values; `None` if it has none.
fn fill_text(text: &str, variables: Variables<'_>, unset: &mut dyn FnMut(&str, bool)) -> Option<Filled> {
    let mut filled = Filled { text: String::with_capacity(text.len()), from_text: false };
    let (mut rest, mut is_filled) = (text, false);
    while let Some(at) = rest.find(['$', '{']) {
        let (before, from) = rest.split_at(at);
        filled.text.push_str(before);
        filled.from_text |= !before.is_empty();
        match placeholder(from) {
            Some((length, name, is_vault)) => {
                match variables(name) {
                    Some(value) => {
                        filled.text.push_str(&value);
                        is_filled = true;
                    }
                    None => {
                        unset(name, is_vault);
                        filled.text.push_str(from.get(..length).unwrap_or_default());
                    }
                }
                rest = from.get(length..).unwrap_or_default();
            }
            None => {
                filled.text.push_str(from.get(..1).unwrap_or_default());
                filled.from_text = true;
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    filled.text.push_str(rest);
    filled.from_text |= !rest.is_empty();
    is_filled.then_some(filled)
}

/// The placeholder that a text begins with: its length, the name, and whether it is a reference to Kong's vault `env`.
fn placeholder(text: &str) -> Option<(usize, &str, bool)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name_in = |start: &str, end: &str| {
        let inner = text.strip_prefix(start)?;
        let length = inner.find(|c| !is_part(c)).unwrap_or(inner.len());
        let name =
            inner.get(..length).filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))?;
        inner.get(length..)?.starts_with(end).then_some((start.len() + length + end.len(), name))
    };
    let vault = name_in("{vault://env/", "}").map(|(length, name)| (length, name, true));
    let plain = || name_in("${", "}").or_else(|| name_in("$", "")).map(|(length, name)| (length, name, false));
    vault.or_else(plain)
}

#[cfg(test)]
mod tests {
    use super::fill;
    use weir_config::{Kind, Node};

    #[test]
    fn placeholders_are_filled_where_they_are_set() {
        let cases = [
            ("a: $KEY", r#"{"a":"secret"}"#, 0),
            ("a: '${KEY}-x'", r#"{"a":"secret-x"}"#, 0),
            ("a: ${PORT}", r#"{"a":8080}"#, 0),
            ("a: '1${PORT}'", r#"{"a":"18080"}"#, 0),
            ("a: '{vault://env/KEY}'", r#"{"a":"secret"}"#, 0),
            ("a: ['http://$HOST:${PORT}/x']", r#"{"a":["http://h:8080/x"]}"#, 0),
            ("a: $NONE", r#"{"a":"$NONE"}"#, 1),
            ("a: '{vault://env/NONE}'", r#"{"a":"{vault://env/NONE}"}"#, 1),
            ("paths: ['~/x/$KEY$']", r#"{"paths":["~/x/$KEY$"]}"#, 0),
            ("access: ['return $KEY']", r#"{"access":["return $KEY"]}"#, 0),
            ("a: '$(headers.x)'", r#"{"a":"$(headers.x)"}"#, 0),
            ("a: '/x$'", r#"{"a":"/x$"}"#, 0),
            ("a: '{x}'", r#"{"a":"{x}"}"#, 0),
        ];
        let variables = |name: &str| match name {
            "KEY" => Some("secret".to_owned()),
            "PORT" => Some("8080".to_owned()),
            "HOST" => Some("h".to_owned()),
            _ => None,
        };
        for (text, expected, findings) in cases {
            let mut root = Node::parse(text).expect("a tree").root;
            let mut found = Vec::new();
            fill(&mut root, &variables, &mut found);
            assert_eq!((root.to_json().to_string().as_str(), found.len()), (expected, findings), "{text}");
            assert!(matches!(root.kind, Kind::Map(_)));
        }
    }
}
