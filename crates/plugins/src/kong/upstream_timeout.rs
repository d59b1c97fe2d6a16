//! `upstream-timeout` of Kong Enterprise. The front end makes limits of the route of it; the instance does nothing.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases, Plugin};

/// The definition.
#[derive(Debug)]
pub(crate) struct UpstreamTimeout;

/// Configuration of Kong Enterprise. What is not given is the service's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Milliseconds to connect to the upstream.
    #[serde(rename = "connect_timeout")]
    #[schemars(range(min = 1, max = 2_147_483_646))]
    _connect_timeout: Option<u64>,
    /// Milliseconds between two writes.
    #[serde(rename = "send_timeout")]
    #[schemars(range(min = 1, max = 2_147_483_646))]
    _send_timeout: Option<u64>,
    /// Milliseconds between two reads.
    #[serde(rename = "read_timeout")]
    #[schemars(range(min = 1, max = 2_147_483_646))]
    _read_timeout: Option<u64>,
}

impl Define for UpstreamTimeout {
    const NAME: &'static str = "upstream-timeout";
    const PRIORITY: i32 = 400;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "Limits of a route for its upstream, in the place of the service's.";
    const EXAMPLE: &'static str = "read_timeout: 5000\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }
}

/// An instance, which does nothing.
#[derive(Debug)]
struct Nothing;

impl Plugin for Nothing {}
