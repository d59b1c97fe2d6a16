//! A catalog of plugins and a way to load a text, for the tests of rules files.

use schemars::json_schema;
use weir_config::schema::Checker;
use weir_config::{Checked, Code, Diagnostic, LoadOptions, Loaded, Node, PluginCatalog, Scope, load};

/// Four plugins, with schemas like those of the real ones.
pub(crate) struct Catalog;

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        vec!["key-auth", "limit-count", "prometheus", "mocking"]
    }

    fn is_auth(&self, name: &str) -> bool {
        name == "key-auth"
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Checked {
        let schema = match (name, scope) {
            ("limit-count", Scope::Metadata) => json_schema!({ "type": "object", "additionalProperties": false }),
            ("limit-count", _) => json_schema!({
                "type": "object",
                "additionalProperties": false,
                "required": ["count", "time_window"],
                "properties": {
                    "count": { "type": "integer", "minimum": 1 },
                    "time_window": { "type": "integer", "minimum": 1 },
                    "rejected_code": { "type": "integer", "minimum": 200, "maximum": 599 },
                    "key": { "type": "string" }
                }
            }),
            ("key-auth", Scope::Consumer) => {
                json_schema!({ "type": "object", "required": ["key"], "properties": { "key": { "type": "string" } } })
            }
            ("mocking", _) if conf.get("old").is_some() => {
                let code = Code::PluginRule { text: "this field has no effect".into() };
                let found = vec![Diagnostic::warning(conf.mark_of("old"), "old", code)];
                return Checked { found, compiled: None };
            }
            _ => return Checked::default(),
        };
        Checked { found: Checker::new(&schema).check(conf), compiled: None }
    }
}

/// Variables of the tests' environment.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = match name {
        "HOST" => "10.0.0.9",
        "PORT" => "8080",
        "KEY" => "s3cret",
        "EMPTY" => "",
        "LINES" => "one\n      two",
        "JSON" => r#"{"key": "inner", "count": 5, "none": null}"#,
        _ => return None,
    };
    Some(value.to_owned())
}

pub(crate) const OPTIONS: LoadOptions<'static> =
    LoadOptions { variables: &variable, plugins: &Catalog, ..LoadOptions::PLAIN };

/// Loads a text under the name `t`.
pub(crate) fn load_with(text: &str, options: &LoadOptions<'_>) -> Loaded {
    load("t", text.as_bytes(), options)
}

/// The diagnostics as they are shown.
pub(crate) fn shown(loaded: &Loaded) -> Vec<String> {
    loaded.diagnostics.iter().map(ToString::to_string).collect()
}

/// True if a message is the expected one.
pub(crate) fn is_said(expected: &str, said: &str) -> bool {
    if expected.ends_with(": ") || expected.ends_with("; ") { said.starts_with(expected) } else { said == expected }
}

/// One document and what is said of it.
pub(crate) struct Case {
    pub(crate) about: &'static str,
    pub(crate) text: &'static str,
    /// All diagnostics, in order. One that ends in `: ` or `; ` is only the beginning.
    pub(crate) said: &'static [&'static str],
    /// The ids of the routes, or `None` when the file is refused.
    pub(crate) routes: Option<&'static [&'static str]>,
}

/// Checks a table of cases.
pub(crate) fn check(cases: &[Case], options: &LoadOptions<'_>) {
    let mut wrong = Vec::new();
    for case in cases {
        let loaded = load_with(case.text, options);
        let said = shown(&loaded);
        let routes: Option<Vec<String>> =
            loaded.document.as_ref().map(|document| document.routes.iter().map(|route| route.id.to_string()).collect());
        let expected = case.routes.map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        let same = said.len() == case.said.len()
            && case.said.iter().zip(&said).all(|(expected, said)| is_said(expected, said));
        if !same || routes != expected {
            wrong.push(format!("{}:\n{}\n  routes {routes:?}, expected {expected:?}", case.about, said.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
