//! `ocsp-stapling`: a name for what the field `ocsp_stapling` of certificates does.

use weir_plugin::{CompileCx, Compiled, Define, Phases};

use crate::name_alone::{Conf, nothing};

/// The definition.
#[derive(Debug)]
pub(crate) struct OcspStapling;

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
        Some(nothing())
    }
}
