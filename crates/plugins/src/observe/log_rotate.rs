//! `log-rotate`: a name that turns the rotation of log files on.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};

/// The definition.
#[derive(Debug)]
pub(crate) struct LogRotate;

/// An empty object: there are no settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

impl Define for LogRotate {
    const NAME: &'static str = "log-rotate";
    const PRIORITY: i32 = 100;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Where the setting `plugins` names it, the files of the access logs and of the error log are moved away at their time or at their \
size, as the settings `log_rotation` say ([operations](../operations.md#rotation-of-logs)); `plugin_attr.log-rotate` of a \
`config.yaml` sets them. On a route the plugin does nothing.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }
}

/// An instance. The process rotates its files itself.
struct Nothing;

impl Plugin for Nothing {}
