use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::quantity::{KIB, MIB, Size};

/// The backend of [3scale](threescale-backend.md) at `listen.threescale_backend`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ThreescaleBackend {
    /// The path of a file with services, their metrics and plans, and applications, in YAML or JSON. Changes of the file
    /// take effect while the gateway runs, as those of the rules file do. Empty: services live in the data directory
    /// (`store.data_dir`), and the internal API makes them.
    #[schemars(length(max = 4096))]
    pub file: String,
    /// User of the internal API.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^:]*$"), extend("x-expected" = "a name without ':'"))]
    pub internal_user: String,
    /// Password of the internal API. Empty: the internal API is off, which needs `file`.
    pub internal_password: Secret,
    /// Bytes of the body of a report, or of a request to the internal API. More is answered 413. Bodies that are being
    /// received take 8 times as much together at most; further ones wait for up to 5 seconds, and are then answered 503.
    pub body: Size<{ KIB }, { 64 * MIB }>,
    /// Connections at one time, or fewer where file descriptors (`ulimit -n`) do not allow so many: at most an eighth of
    /// them. A new connection takes the place of the one that has been idle longest; with a request under way on each,
    /// the new one waits in the listen queue of the system.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections: u32,
}

impl Default for ThreescaleBackend {
    fn default() -> Self {
        Self {
            file: String::new(),
            internal_user: "weir".into(),
            internal_password: Secret::default(),
            body: Size::constant(MIB),
            connections: 1024,
        }
    }
}
