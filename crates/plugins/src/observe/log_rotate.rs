//! `log-rotate`: a name that turns the rotation of log files on.

use weir_plugin::{CompileCx, Compiled, Define, Phases};

use crate::name_alone::{Conf, nothing};

/// The definition.
#[derive(Debug)]
pub(crate) struct LogRotate;

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
        Some(nothing())
    }
}
