//! `server-info`: identity of the gateway, which the control API tells.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};

/// The definition.
#[derive(Debug)]
pub(crate) struct ServerInfo;

/// An empty object: there are no settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

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
        Some(Compiled::ready(Nothing))
    }
}

/// An instance, which does nothing.
struct Nothing;

impl Plugin for Nothing {}
