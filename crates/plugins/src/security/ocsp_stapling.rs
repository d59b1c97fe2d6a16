//! `ocsp-stapling`: a name for what the field `ocsp_stapling` of certificates does.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};

/// The definition.
#[derive(Debug)]
pub(crate) struct OcspStapling;

/// An empty object: there are no settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

impl Define for OcspStapling {
    const NAME: &'static str = "ocsp-stapling";
    const PRIORITY: i32 = -44;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Certificates are stapled by their field `ocsp_stapling`, see [TLS](../tls.md), whether the plugin is among those of the setting \
`plugins` or not. On a route the plugin does nothing; it is there so that configurations which list it are taken.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }
}

/// An instance. The answers are stapled by the gateway itself.
struct Nothing;

impl Plugin for Nothing {}
