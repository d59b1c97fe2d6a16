//! A catalog of plugins and a way to load a text, for the tests of rules files.
#![allow(dead_code)] // each test file uses its part

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{Diagnostic, InvalidItems, LoadOptions, Loaded, Node, PluginCatalog, RouterMode, Scope, load, schema};

/// Four plugins, with schemas like those of the real ones.
pub struct Catalog;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct LimitCount {
    #[schemars(range(min = 1))]
    count: i64,
    #[schemars(range(min = 1))]
    time_window: i64,
    #[schemars(range(min = 200, max = 599))]
    rejected_code: Option<u16>,
    key: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Key {
    key: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Nothing {}

impl PluginCatalog for Catalog {
    fn names(&self) -> Vec<&str> {
        vec!["key-auth", "limit-count", "prometheus", "mocking"]
    }

    fn check(&self, name: &str, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>> {
        match (name, scope) {
            ("limit-count", Scope::Metadata) => schema::read::<Nothing>(conf).map(drop),
            ("limit-count", _) => schema::read::<LimitCount>(conf).map(drop),
            ("key-auth", Scope::Consumer) => schema::read::<Key>(conf).map(drop),
            ("mocking", _) if conf.get("old").is_some() => {
                Err(vec![Diagnostic::warning(conf.mark_of("old"), "old", "this field has no effect")])
            }
            _ => Ok(()),
        }
    }
}

/// Variables of the tests' environment.
pub fn variable(name: &str) -> Option<String> {
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

pub const OPTIONS: LoadOptions<'static> = LoadOptions {
    invalid_items: InvalidItems::Refuse,
    strict: false,
    variables: &variable,
    plugins: &Catalog,
    router: RouterMode::RadixtreeHostUri,
};

/// Loads a text under the name `t`.
pub fn load_with(text: &str, options: &LoadOptions<'_>) -> Loaded {
    load("t", text.as_bytes(), options)
}

/// The diagnostics as they are shown.
pub fn shown(loaded: &Loaded) -> Vec<String> {
    loaded.diagnostics.iter().map(ToString::to_string).collect()
}

/// One document and what is said of it.
pub struct Case {
    pub about: &'static str,
    pub text: &'static str,
    /// All diagnostics, in order.
    pub said: &'static [&'static str],
    /// The ids of the routes, or `None` when the file is refused.
    pub routes: Option<&'static [&'static str]>,
}

/// Checks a table of cases.
pub fn check(cases: &[Case], options: &LoadOptions<'_>) {
    let mut wrong = Vec::new();
    for case in cases {
        let loaded = load_with(case.text, options);
        let said = shown(&loaded);
        let routes: Option<Vec<String>> =
            loaded.document.as_ref().map(|document| document.routes.iter().map(|route| route.id.to_string()).collect());
        let expected = case.routes.map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        if said != case.said || routes != expected {
            wrong.push(format!("{}:\n{}\n  routes {routes:?}, expected {expected:?}", case.about, said.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
