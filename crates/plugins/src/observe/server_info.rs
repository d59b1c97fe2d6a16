//! `server-info`: identity of the gateway, which the control API tells.

use weir_plugin::{CompileCx, Compiled, Define, Phases};

use crate::name_alone::{Conf, nothing};

/// The definition.
#[derive(Debug)]
pub(crate) struct ServerInfo;

impl Define for ServerInfo {
    const NAME: &'static str = "server-info";
    const PRIORITY: i32 = 990;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Stands for the identity of the gateway at `GET /v1/server_info` of the [control API](../control-api.md): `hostname`, `version`, \
`boot_time`, `id` and `etcd_version`. It is told with the plugin and without it, so a place that names the plugin has no more \
than others. As in APISIX, in which the plugin is deprecated, a gateway tells the same to etcd, unless it is a data \
plane: versions that differ are a problem that the [dashboard](../dashboard.md) shows.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(nothing())
    }
}
