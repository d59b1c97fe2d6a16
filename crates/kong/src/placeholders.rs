//! Values from the environment: `$NAME`, `${NAME}`, `${NAME:-default}`, `{vault://env/NAME}`.

use weir_config::env::Variables;
use weir_config::node::push_name;
use weir_config::{Code, Diagnostic, Kind, Node};

use crate::vaults::{START, Unresolved, Vaults};

/// Puts the values of variables that are set in their places. Regular expressions of paths and Lua keep theirs. A text
/// that a variable makes up as a whole becomes a number or a boolean if it reads as one, as it does without quotes.
pub(crate) fn fill(node: &mut Node, variables: Variables<'_>, found: &mut Vec<Diagnostic>) {
    let vaults = Vaults::of(node);
    walk(node, &mut String::new(), &Sources { vaults, variables }, found);
}

/// Sources of values.
struct Sources<'v> {
    vaults: Vaults,
    variables: Variables<'v>,
}

/// A placeholder without a value.
enum Missing {
    Variable(String),
    Vault(Unresolved),
}

/// Names of fields with Lua.
const LUA: [&str; 7] =
    ["access", "rewrite", "header_filter", "body_filter", "log", "certificate", "custom_fields_by_lua"];

fn walk(node: &mut Node, path: &mut String, sources: &Sources<'_>, found: &mut Vec<Diagnostic>) {
    let mark = node.mark;
    match &mut node.kind {
        Kind::Map(entries) => {
            for (key, value) in entries.iter_mut().filter(|(key, _)| !LUA.contains(&&*key.text)) {
                let length = path.len();
                push_name(path, &key.text);
                walk(value, path, sources, found);
                path.truncate(length);
            }
        }
        Kind::Seq(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{at}]"));
                walk(item, path, sources, found);
                path.truncate(length);
            }
        }
        Kind::Str(text) if text.contains('$') || text.contains(START) => {
            if text.starts_with('~') {
                return;
            }
            let Some(filled) = fill_text(text, sources, &mut |missing| {
                let rule = |text: String| Code::FamilyRule { text: text.into() };
                found.push(match missing {
                    Missing::Vault(Unresolved(reason)) => Diagnostic::error(mark, path.clone(), rule(reason)),
                    Missing::Variable(name) => {
                        let text = format!("the environment variable {name} is not set: the text stays as it is");
                        Diagnostic::warning(mark, path.clone(), rule(text))
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
fn fill_text(text: &str, sources: &Sources<'_>, missing: &mut dyn FnMut(Missing)) -> Option<Filled> {
    let mut filled = Filled { text: String::with_capacity(text.len()), from_text: false };
    let (mut rest, mut is_filled) = (text, false);
    while let Some(at) = rest.find(['$', '{']) {
        let (before, from) = rest.split_at(at);
        filled.text.push_str(before);
        filled.from_text |= !before.is_empty();
        let (length, value) = match placeholder(from, sources) {
            Some((length, Ok(value))) => (length, Some(value)),
            Some((length, Err(fault))) => {
                missing(fault);
                (length, None)
            }
            None => {
                filled.from_text = true;
                (1, None)
            }
        };
        match value {
            Some(value) => {
                filled.text.push_str(&value);
                is_filled = true;
            }
            None => filled.text.push_str(from.get(..length).unwrap_or_default()),
        }
        rest = from.get(length..).unwrap_or_default();
    }
    filled.text.push_str(rest);
    filled.from_text |= !rest.is_empty();
    is_filled.then_some(filled)
}

/// The placeholder that a text begins with: its length, and its value.
fn placeholder(text: &str, sources: &Sources<'_>) -> Option<(usize, Result<String, Missing>)> {
    if let Some((length, value)) = sources.vaults.resolve(text, sources.variables) {
        return Some((length, value.map_err(Missing::Vault)));
    }
    let (inner, start) = match text.strip_prefix("${") {
        Some(inner) => (inner, 2),
        None => (text.strip_prefix('$')?, 1),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = inner.find(|c| !is_part(c)).unwrap_or(inner.len());
    let name = inner.get(..length).filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))?;
    let after = inner.get(length..).unwrap_or_default();
    let value = (sources.variables)(name);
    let missing = || Missing::Variable(name.to_owned());
    if start == 1 {
        return Some((1 + length, value.ok_or_else(missing)));
    }
    if after.starts_with('}') {
        return Some((2 + length + 1, value.ok_or_else(missing)));
    }
    // As in a shell: the default counts where the variable is empty as well.
    let default = after.strip_prefix(":-")?;
    let end = default.find('}')?;
    let value = value.filter(|value| !value.is_empty()).or_else(|| default.get(..end).map(str::to_owned));
    Some((2 + length + 2 + end + 1, value.ok_or_else(missing)))
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
            ("a: '${NONE:-8000}'", r#"{"a":8000}"#, 0),
            ("a: 'x${KEY:-none}'", r#"{"a":"xsecret"}"#, 0),
            ("a: '{vault://env/key}'", r#"{"a":"secret"}"#, 0),
            ("a: '{vault://other/key}'", r#"{"a":"{vault://other/key}"}"#, 1),
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
