//! Patterns of paths, as regular expressions.

use regex::bytes::{Regex, RegexBuilder};

/// True for a path without parameters and expressions.
#[must_use]
pub fn is_plain(path: &str) -> bool {
    !path.contains(['{', '}', '*', '(', ')', '[', ']', '^', '$', '|', '+', '?', '\\'])
}

/// A path of Tyk as a regular expression: `{id}` is a segment, `{id:[0-9]+}` an expression of its own.
#[must_use]
pub fn pattern_of(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        pattern.push_str(before);
        // A repetition such as {2,3} stays.
        let end = from.find('}').filter(|end| {
            from.get(1..*end).is_some_and(|name| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
        });
        match end.and_then(|end| Some((from.get(1..end)?, from.get(end + 1..)?))) {
            Some((name, after)) => {
                match name.split_once(':') {
                    Some((_, own)) => pattern.push_str(&format!("({own})")),
                    None => pattern.push_str("([^/]+)"),
                }
                rest = after;
            }
            None => {
                pattern.push('{');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    pattern.push_str(rest);
    // A wildcard at the beginning is no expression.
    pattern.strip_prefix('*').map(|rest| format!(".*{rest}")).unwrap_or(pattern)
}

/// Compiles a regular expression within the budget of a configuration.
pub(in crate::tyk) fn compile(pattern: &str, ignores_case: bool) -> Result<Regex, String> {
    weir_expr::spend_for_regex(pattern).map_err(|error| error.to_string())?;
    let built = RegexBuilder::new(pattern).case_insensitive(ignores_case).build();
    built.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("'{pattern}' is no regular expression of this gateway (RE2 syntax): {last}")
    })
}

#[cfg(test)]
mod tests {
    use super::pattern_of;

    #[test]
    fn parameters_become_segments() {
        for (path, pattern) in [
            ("/a/b", "/a/b"),
            ("/a/{id}/b", "/a/([^/]+)/b"),
            ("/a/{id:[0-9]+}", "/a/([0-9]+)"),
            ("/a/[0-9]{2,3}", "/a/[0-9]{2,3}"),
            ("/good/(.*)", "/good/(.*)"),
            ("*", ".*"),
            ("/a{", "/a{"),
        ] {
            assert_eq!(pattern_of(path), pattern, "{path}");
        }
    }
}
