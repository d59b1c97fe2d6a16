use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The runner of `ext-plugin-pre-req` and `ext-plugin-post-req`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExtPlugin {
    /// The program that is started as the runner, and its arguments. It finds the address of its socket in
    /// `APISIX_LISTEN_ADDRESS`, and is started again 3 seconds after it has ended. Its output goes to the log.
    #[schemars(length(max = 256))]
    pub command: Vec<String>,
    /// The Unix socket of a runner that somebody else has started, in place of `command`. Empty: there is none.
    #[schemars(length(max = 100))]
    pub socket: String,
}
