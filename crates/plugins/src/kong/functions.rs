//! Kong's `pre-function` and `post-function`: texts in Lua before and after all other plugins.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_script::{Form, Hook, Script};

use super::consumer::identity_for_scripts;

/// The definition of the one before other plugins.
#[derive(Debug)]
pub(crate) struct PreFunction;

/// The definition of the one behind other plugins.
#[derive(Debug)]
pub(crate) struct PostFunction;

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Texts for handshakes; not supported.
    certificate: Vec<String>,
    /// Texts for the phase `rewrite`.
    rewrite: Vec<String>,
    /// Texts for the phase `access`.
    access: Vec<String>,
    /// Texts for the head of the response.
    header_filter: Vec<String>,
    /// Texts for each piece of the response's body.
    body_filter: Vec<String>,
    /// Texts for the end of the exchange.
    log: Vec<String>,
}

const PHASES: Phases = Phases::REWRITE.and(Phases::ACCESS).and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);

fn check(name: &str, conf: Conf, cx: &CompileCx<'_>) -> Option<Script> {
    if !conf.certificate.is_empty() {
        cx.say([Invalid::new("certificate", "functions for handshakes are not supported")]);
        return None;
    }
    let texts = [
        (Hook::Rewrite, conf.rewrite),
        (Hook::Access, conf.access),
        (Hook::HeaderFilter, conf.header_filter),
        (Hook::BodyFilter, conf.body_filter),
        (Hook::Log, conf.log),
    ];
    let texts: Vec<_> = texts.into_iter().filter(|(_, texts)| !texts.is_empty()).collect();
    if texts.is_empty() {
        let text = "expected one of rewrite, access, header_filter, body_filter and log";
        cx.say([Invalid::new("", text)]);
        return None;
    }
    let script = Script::check(name, Form::Texts, texts, String::new());
    let script = script.map(|script| script.with_identities(identity_for_scripts));
    cx.ok(script.map_err(|error| Invalid::new(format!("{}[{}]", error.hook.name(), error.at), error.reason)))
}

impl Define for PreFunction {
    const NAME: &'static str = "pre-function";
    const PRIORITY: i32 = 1_000_000;
    const PHASES: Phases = PHASES;
    const DOC: &'static str = "Runs texts in Lua before all other plugins.";
    const EXAMPLE: &'static str = "access:\n  - kong.service.request.set_header('X-Path', kong.request.get_path())\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let script = check(Self::NAME, conf, cx)?.with_early_access();
        Some(Compiled::build(move |build| script.build(build)))
    }
}

impl Define for PostFunction {
    const NAME: &'static str = "post-function";
    const PRIORITY: i32 = -1000;
    const PHASES: Phases = PHASES;
    const DOC: &'static str = "Runs texts in Lua behind all other plugins.";
    const EXAMPLE: &'static str =
        "header_filter:\n  - kong.response.set_header('X-Source', kong.response.get_source())\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let script = check(Self::NAME, conf, cx)?;
        Some(Compiled::build(move |build| script.build(build)))
    }
}
