//! The path that an upstream receives, and requests without TLS: what the plugin `route` of a lowered route says.

use serde_json::{Value, json};

use super::plugins::Made;
use crate::lower::escaped;

/// Adds the plugins that do what a route does. Returns what has no counterpart.
pub(super) fn apply(behaviour: &Value, made: &mut Made) -> Vec<String> {
    let mut gone = Vec::new();
    let paths: Vec<&str> = behaviour["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let base = behaviour["base"].as_str().filter(|base| !base.is_empty()).unwrap_or("/");
    let pairs = pairs(&paths, behaviour["strip_path"] == true, base);
    if !pairs.is_empty() {
        if paths.iter().any(|path| path.starts_with('~')) {
            made.note("A regular expression is taken off the path as far as it matches; look at the result once.");
        }
        made.add("route", "proxy-rewrite", json!({ "regex_uri": pairs }));
    }
    if behaviour["plain"] == false {
        without_tls(behaviour["https_redirect_status_code"].as_i64().unwrap_or(426), made);
    }
    if behaviour["grpc"] == true {
        gone.push("answers to requests that are not of gRPC (415, 426): they go to the upstream".to_owned());
    }
    gone
}

/// Answers requests without TLS.
fn without_tls(status: i64, made: &mut Made) {
    if status == 426 {
        let vars = json!([[["scheme", "==", "http"]]]);
        let abort = json!({ "http_status": 426, "vars": vars });
        made.add("route", "fault-injection", json!({ "abort": abort }));
        return;
    }
    made.note("Requests without TLS are redirected with 301 for GET and HEAD and with 308 for other methods.");
    made.add("route", "redirect", json!({ "http_to_https": true }));
}

/// Pairs of regular expressions and replacements for the joining of paths, the longest path first.
fn pairs(paths: &[&str], strips: bool, base: &str) -> Vec<String> {
    let bare = base.trim_end_matches('/');
    let bare_or_root = if bare.is_empty() { "/" } else { bare };
    let literal = |text: &str| text.replace('$', "$$");
    let (base, bare, bare_or_root) = (literal(base), literal(bare), literal(bare_or_root));
    let mut pairs = Vec::new();
    if strips {
        let mut sorted = paths.to_vec();
        sorted.sort_by_key(|path| std::cmp::Reverse((path.starts_with('~'), path.len())));
        for path in sorted.into_iter().filter(|path| !matches!(*path, "" | "/")) {
            match path.strip_prefix('~') {
                Some(regex) => {
                    let group = groups(regex) + 1;
                    pairs.extend([format!("^(?:{regex})$"), bare_or_root.clone()]);
                    pairs.extend([format!("^(?:{regex})/?(.*)$"), format!("{bare}/${{{group}}}")]);
                }
                None if path.ends_with('/') => {
                    pairs.extend([format!("^{}(.*)$", escaped(path)), format!("{bare}/$1")]);
                }
                None => {
                    pairs.extend([format!("^{}$", escaped(path)), bare_or_root.clone()]);
                    pairs.extend([format!("^{}/?(.*)$", escaped(path)), format!("{bare}/$1")]);
                }
            }
        }
    }
    // Without a path that was taken off, the path of the service stands before that of the request.
    if !bare.is_empty() && (!strips || paths.iter().any(|path| matches!(*path, "" | "/"))) {
        pairs.extend(["^/$".to_owned(), base, "^(.*)$".to_owned(), format!("{bare}$1")]);
    }
    pairs
}

/// Number of the groups of a regular expression.
fn groups(regex: &str) -> usize {
    regex::Regex::new(regex).map_or(0, |regex| regex.captures_len() - 1)
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::pairs;

    /// The first pair that matches replaces what it matches, as `proxy-rewrite` does.
    fn joined(pairs: &[String], path: &str) -> String {
        for pair in pairs.chunks(2) {
            let regex = Regex::new(&pair[0]).expect("a regular expression");
            if regex.is_match(path) {
                return regex.replace(path, pair[1].as_str()).into_owned();
            }
        }
        path.to_owned()
    }

    #[test]
    fn paths_are_joined_as_kong_does() {
        for (route, strips, base, path, expected) in [
            ("/foo", true, "/", "/foo", "/"),
            ("/foo", true, "/", "/foo/x", "/x"),
            ("/foo", true, "/", "/foox", "/x"),
            ("/foo", true, "/base/", "/foo", "/base"),
            ("/foo", true, "/base/", "/foo/", "/base/"),
            ("/foo", true, "/base/", "/foox", "/base/x"),
            ("/foo", true, "/base", "/foo", "/base"),
            ("/foo", true, "/base", "/foo/", "/base/"),
            ("/foo", true, "/base", "/foo/x", "/base/x"),
            ("/foo/", true, "/base", "/foo/", "/base/"),
            ("/foo/", true, "/base", "/foo/x", "/base/x"),
            ("/foo/", true, "/", "/foo/", "/"),
            ("/", true, "/base", "/", "/base"),
            ("/", true, "/base/", "/", "/base/"),
            ("/", true, "/base/", "/x", "/base/x"),
            ("/", true, "/base", "/x/", "/base/x/"),
            ("/", true, "/", "/x", "/x"),
            ("/foo", false, "/base", "/foo/x", "/base/foo/x"),
            ("/foo", false, "/base/", "/foo/x", "/base/foo/x"),
            ("/", false, "/base", "/", "/base"),
            ("/", false, "/base/", "/", "/base/"),
            ("/foo", false, "/", "/foo", "/foo"),
            ("~/re/\\d+", true, "/base", "/re/12/x", "/base/x"),
            ("~/re/(\\d+)", true, "/", "/re/12", "/"),
            ("/a.b", true, "/c$1", "/a.b/x", "/c$1/x"),
        ] {
            assert_eq!(joined(&pairs(&[route], strips, base), path), expected, "{route} {strips} {base} {path}");
        }
        let both = pairs(&["/", "/foo"], true, "/base");
        assert_eq!((joined(&both, "/foo/x").as_str(), joined(&both, "/bar").as_str()), ("/base/x", "/base/bar"));
    }
}
